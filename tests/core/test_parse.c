/* Strict parsing: what is accepted, what is refused, and how that reads. */
#include <locale.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/parse.h"

#define BIG "99999999999999999999"

static void test_u64(void **state)
{
    (void)state;
    uint64_t value = 77;
    assert_int_equal(dpn_parse_u64("--batch", "1", 1, 2147483647, &value), DPN_OK);
    assert_true(value == 1);
    assert_int_equal(dpn_parse_u64("--batch", "2147483647", 1, 2147483647, &value), DPN_OK);
    assert_int_equal(dpn_parse_u64("--seed", "18446744073709551615", 0, UINT64_MAX, &value), DPN_OK);
    assert_true(value == UINT64_MAX);
    assert_int_equal(dpn_parse_u64("--seed", "007", 0, UINT64_MAX, &value), DPN_OK);
    assert_true(value == 7);

    static const char *const bad[] = {"0",  "-5", "abc", "12x", "1e3", "4294967297", "2147483648", "",  " 1",
                                      "1 ", "+1", "0x1", "1.0", "1,2", BIG,          BIG "x",      "-", "\n"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        value = 77;
        assert_int_equal(dpn_parse_u64("--batch", bad[i], 1, 2147483647, &value), DPN_ERR_USAGE);
        assert_true(value == 77);
        assert_non_null(strstr(dpn_error_text(), "--batch '"));
        assert_non_null(strstr(dpn_error_text(), "1..2147483647"));
    }
    dpn_parse_u64("--batch", "abc", 1, 2147483647, &value);
    assert_string_equal(dpn_error_text(), "--batch 'abc' is not a whole number in 1..2147483647");
    assert_int_equal(dpn_parse_u64("--seed", "18446744073709551616", 0, UINT64_MAX, &value), DPN_ERR_USAGE);
    assert_non_null(strstr(dpn_error_text(), "0..18446744073709551615"));
    /* 10 times this overflows to a small number */
    assert_int_equal(dpn_parse_u64("--seed", "36893488147419103232", 0, UINT64_MAX, &value), DPN_ERR_USAGE);
}

static void test_double(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        double value;
    } good[] = {{"0.05", 0.05},
                {"1e-7", 1e-7},
                {"0", 0},
                {"-0", 0},
                {"1.", 1},
                {".5", 0.5},
                {"+2", 2},
                {"1E+3", 1000},
                {"4.9e-324", 0x1p-1074},
                {"1e-310", 1e-310},
                {"0e-400", 0},
                {"1e30", 1e30},
                {"0.1000000000000000055511151231257827", 0.1}};
    double value;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_int_equal(dpn_parse_double("--lr", good[i].text, 0, 1e30, &value), DPN_OK);
        assert_memory_equal(&value, &good[i].value, sizeof value);
    }
    static const char *const bad[] = {"nan",   "NaN",   "inf", "-inf",  "infinity", "-1",
                                      "0.1.2", "0x1p3", "1e",  "e5",    ".",        "",
                                      " 1",    "1 ",    "1,5", "1e400", "-1e400",   "1e-400",
                                      "1e31",  "1f",    "--1", "1e5.5", "nan(1)",   "1_000"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        value = 77;
        assert_int_equal(dpn_parse_double("--lr", bad[i], 0, 1e30, &value), DPN_ERR_USAGE);
        assert_true(value == 77);
        assert_non_null(strstr(dpn_error_text(), "--lr '"));
    }
    dpn_parse_double("--lr", "nan", 0, 1e30, &value);
    assert_string_equal(dpn_error_text(), "--lr 'nan' is not a number in 0..1e+30");
}

static void test_double_in_other_locales(void **state)
{
    (void)state;
    static const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8", "de_DE", "fr_FR.UTF-8", "fr_FR.utf8"};
    int found = 0;
    for (size_t i = 0; i < sizeof names / sizeof names[0] && !found; i++)
        found = setlocale(LC_ALL, names[i]) && localeconv()->decimal_point[0] == ',';
    if (!found) {
        setlocale(LC_ALL, "C");
        print_message("SKIP: no locale with a decimal comma is installed\n");
        skip();
    }
    double value;
    assert_int_equal(dpn_parse_double("--lr", "0.25", 0, 1, &value), DPN_OK);
    assert_true(value == 0.25);
    assert_int_equal(dpn_parse_double("--lr", "0,25", 0, 1, &value), DPN_ERR_USAGE);
    setlocale(LC_ALL, "C");
}

static void assert_list(const char *text, size_t count, int duplicates, int wrap, const char *want)
{
    int *indices;
    size_t n;
    char got[256] = "";
    assert_int_equal(dpn_parse_index_list("--devices", text, count, duplicates, wrap, &indices, &n), DPN_OK);
    for (size_t i = 0; i < n; i++)
        snprintf(got + strlen(got), sizeof got - strlen(got), "%s%d", i ? " " : "", indices[i]);
    free(indices);
    assert_string_equal(got, want);
}

static void assert_no_list(const char *text, size_t count, int duplicates, int wrap, const char *want)
{
    int *indices = (int *)&indices;
    size_t n = 1;
    assert_int_equal(dpn_parse_index_list("--devices", text, count, duplicates, wrap, &indices, &n),
                     DPN_ERR_USAGE);
    assert_null(indices);
    assert_int_equal(n, 0);
    assert_string_equal(dpn_error_text(), want);
}

static void test_index_lists(void **state)
{
    (void)state;
    assert_list("0", 2, 0, 0, "0");
    assert_list("1", 2, 0, 0, "1");
    assert_list("0-1", 2, 0, 0, "0 1");
    assert_list("1,0", 2, 0, 0, "1 0");
    assert_list("0,2,4-6", 8, 0, 0, "0 2 4 5 6");
    assert_list("4-6,0", 8, 0, 0, "4 5 6 0");
    assert_list("3-3", 8, 0, 0, "3");
    assert_list("all", 3, 0, 0, "0 1 2");
    assert_list("0,0", 2, 1, 0, "0 0");
    assert_list("0-2,1", 2, 1, 1, "0 1 2 1");
    assert_list("all", 2, 0, 1, "0 1");
    assert_list("1023", 2, 0, 1, "1023");
}

static void test_bad_index_lists(void **state)
{
    (void)state;
    assert_no_list("2", 2, 0, 0, "--devices '2': index 2 is out of range, valid: 0-1");
    assert_no_list("1", 1, 0, 0, "--devices '1': index 1 is out of range, valid: 0");
    assert_no_list("0-7", 2, 0, 0, "--devices '0-7': index 7 is out of range, valid: 0-1");
    assert_no_list("0-" BIG, 2, 0, 0, "--devices '0-" BIG "': index " BIG " is out of range, valid: 0-1");
    assert_no_list("4294967296", 2, 0, 0,
                   "--devices '4294967296': index 4294967296 is out of range, valid: 0-1");
    assert_no_list("1gpu2", 2, 0, 0, "--devices '1gpu2' is not an index or a range of indices, valid: 0-1");
    assert_no_list("0-", 2, 0, 0, "--devices '0-' is not an index or a range of indices, valid: 0-1");
    assert_no_list("-3", 2, 0, 0, "--devices '-3' is not an index or a range of indices, valid: 0-1");
    assert_no_list("-1", 2, 0, 0, "--devices '-1' is not an index or a range of indices, valid: 0-1");
    assert_no_list("0--1", 2, 0, 0, "--devices '0--1' is not an index or a range of indices, valid: 0-1");
    assert_no_list("0-1-2", 2, 0, 0, "--devices '0-1-2' is not an index or a range of indices, valid: 0-1");
    assert_no_list("0, 1", 2, 0, 0, "--devices ' 1' is not an index or a range of indices, valid: 0-1");
    assert_no_list("0,all", 2, 0, 0, "--devices 'all' is not an index or a range of indices, valid: 0-1");
    assert_no_list("0,,1", 2, 0, 0, "--devices '0,,1' has an empty item");
    assert_no_list("0,", 2, 0, 0, "--devices '0,' has an empty item");
    assert_no_list(",0", 2, 0, 0, "--devices ',0' has an empty item");
    assert_no_list("", 2, 0, 0, "--devices '' has an empty item");
    assert_no_list("1-0", 2, 0, 0, "--devices '1-0': the range runs backwards");
    assert_no_list("0,0", 2, 0, 0, "--devices '0': index 0 is given twice");
    assert_no_list("0-2,1", 4, 0, 0, "--devices '1': index 1 is given twice");
    assert_no_list("1024", 2, 1, 1, "--devices '1024': index 1024 is out of range, valid: 0-1023");
    assert_no_list("0-1023,0", 2, 1, 1, "--devices '0': more than 1024 entries");
    assert_no_list("all", 100000, 0, 0, "--devices 'all': more than 1024 entries");
    assert_no_list("0", 0, 0, 0, "--devices '0': there is nothing to choose from");
}

static void test_double_lists(void **state)
{
    (void)state;
    double *values;
    size_t n;
    assert_int_equal(dpn_parse_double_list("--milestones", "30,60.5,80", 0, 1e9, &values, &n), DPN_OK);
    assert_int_equal(n, 3);
    assert_true(values[0] == 30 && values[1] == 60.5 && values[2] == 80);
    free(values);
    static const char *const bad[] = {"", ",", "30,", "30,,60", "30,x", "-1", "1e10"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        values = (double *)&values;
        assert_int_equal(dpn_parse_double_list("--milestones", bad[i], 0, 1e9, &values, &n), DPN_ERR_USAGE);
        assert_null(values);
        assert_non_null(strstr(dpn_error_text(), "--milestones '"));
    }
}

static enum dpn_status collect(void *arg, const char *key, const char *value)
{
    char *text = arg;
    if (strcmp(key, "stop") == 0) return dpn_fail(DPN_ERR_INPUT, "stopped");
    snprintf(text + strlen(text), 128 - strlen(text), "[%s|%s]", key, value);
    return DPN_OK;
}

static void assert_spec(const char *spec, const char *want_name, const char *want_pairs)
{
    char *name, pairs[128] = "";
    assert_int_equal(dpn_parse_spec("--model", spec, &name, collect, pairs), DPN_OK);
    assert_string_equal(name, want_name);
    assert_string_equal(pairs, want_pairs);
    free(name);
}

static void test_specs(void **state)
{
    (void)state;
    assert_spec("dense", "dense", "");
    assert_spec("mlp:hidden=512x256", "mlp", "[hidden|512x256]");
    assert_spec("synthetic:samples=5000,shape=3x32x32", "synthetic", "[samples|5000][shape|3x32x32]");
    assert_spec("x:k=a=b:c", "x", "[k|a=b:c]");

    static const char *const bad[] = {
        "",       ":",        ":a=1",     "mlp:",         "mlp:hidden", "mlp:hidden=",
        "mlp:=3", "mlp:a=1,", "mlp:,a=1", "mlp:a=1,,b=2", "mlp:a=1,a=1"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char *name = (char *)&name, pairs[128] = "";
        assert_int_equal(dpn_parse_spec("--model", bad[i], &name, collect, pairs), DPN_ERR_USAGE);
        assert_null(name);
        assert_non_null(strstr(dpn_error_text(), "--model '"));
    }
    char *name, pairs[128] = "";
    assert_int_equal(dpn_parse_spec("--model", "m:a=1,stop=1,b=2", &name, collect, pairs), DPN_ERR_INPUT);
    assert_string_equal(pairs, "[a|1]");
    assert_string_equal(dpn_error_text(), "stopped");
}

static void test_words(void **state)
{
    (void)state;
    static const char *const words[] = {"sgd", "adam", "adamw", NULL};
    int choice = -1;
    assert_int_equal(dpn_parse_choice("--optimizer", "adamw", words, &choice), DPN_OK);
    assert_int_equal(choice, 2);
    assert_int_equal(dpn_parse_choice("--optimizer", "adma", words, &choice), DPN_ERR_USAGE);
    assert_string_equal(dpn_error_text(),
                        "--optimizer 'adma' is not one of: sgd, adam, adamw; did you mean 'adam'?");
    assert_int_equal(dpn_parse_choice("--optimizer", "lamb", words, &choice), DPN_ERR_USAGE);
    assert_string_equal(dpn_error_text(), "--optimizer 'lamb' is not one of: sgd, adam, adamw");
    assert_int_equal(dpn_parse_choice("--optimizer", "", words, &choice), DPN_ERR_USAGE);
    assert_int_equal(dpn_parse_choice("--optimizer", "SGD", words, &choice), DPN_ERR_USAGE);

    assert_string_equal(dpn_near_miss("sgdd", words), "sgd");
    assert_string_equal(dpn_near_miss("adam", words), "adam");
    assert_string_equal(dpn_near_miss("adamx", words), "adam"); /* the first of equals */
    assert_null(dpn_near_miss("", words));
    assert_null(dpn_near_miss("x", words));
    assert_null(dpn_near_miss("xy", words));
    assert_null(dpn_near_miss("entirely-different", words));
    char big[5000];
    memset(big, 'a', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    assert_null(dpn_near_miss(big, words));
}

static void test_quoting_and_formatting(void **state)
{
    (void)state;
    char quoted[DPN_QUOTE_BYTES], text[DPN_DOUBLE_BYTES], word[400] = "";
    assert_string_equal(dpn_quote("abc", quoted), "'abc'");
    for (size_t length = 1; length < 200; length++) {
        word[length - 1] = 'a';
        dpn_quote(word, quoted);
        assert_true(strlen(quoted) < DPN_QUOTE_BYTES);
        if (length <= 74)
            assert_int_equal(strlen(quoted), length + 2);
        else
            assert_string_equal(quoted + strlen(quoted) - 5, "a...'");
    }
    /* two-byte characters are not cut in half, at odd or even places */
    for (size_t start = 0; start < 2; start++) {
        memset(word, 'a', start);
        for (size_t i = 0; i < 100; i++) memcpy(word + start + 2 * i, "\xc3\xa9", 3);
        dpn_quote(word, quoted);
        assert_string_equal(quoted + strlen(quoted) - 6, "\xc3\xa9...'");
        assert_int_equal((strlen(quoted) - start) % 2, 1);
    }
    assert_string_equal(dpn_format_double(0.05, text), "0.05");
    assert_string_equal(dpn_format_double(-0x1.fffffffffffffp+1023, text), "-1.7976931348623157e+308");
    assert_string_equal(dpn_format_double(NAN, text)[0] == '-' ? text + 1 : text, "nan");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_u64),
        cmocka_unit_test(test_double),
        cmocka_unit_test(test_double_in_other_locales),
        cmocka_unit_test(test_index_lists),
        cmocka_unit_test(test_bad_index_lists),
        cmocka_unit_test(test_double_lists),
        cmocka_unit_test(test_specs),
        cmocka_unit_test(test_words),
        cmocka_unit_test(test_quoting_and_formatting),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
