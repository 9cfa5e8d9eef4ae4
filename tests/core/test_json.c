/* The JSON writer. */
#include <fcntl.h>
#include <float.h>
#include <locale.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/json.h"
#include "core/rng.h"

static void test_nesting(void **state)
{
    (void)state;
    struct dpn_json json;
    dpn_json_init(&json);
    dpn_json_open_object(&json, NULL);
    dpn_json_string(&json, "event", "run");
    dpn_json_open_array(&json, "list");
    dpn_json_u64(&json, NULL, 1);
    dpn_json_open_object(&json, NULL);
    dpn_json_close_object(&json);
    dpn_json_open_array(&json, NULL);
    dpn_json_close_array(&json);
    dpn_json_null(&json, NULL);
    dpn_json_close_array(&json);
    dpn_json_bool(&json, "yes", 7);
    dpn_json_bool(&json, "no", 0);
    dpn_json_u64(&json, "max", UINT64_MAX);
    dpn_json_i64(&json, "min", INT64_MIN);
    dpn_json_raw(&json, "raw", "{\"a\":1}");
    dpn_json_close_object(&json);
    assert_string_equal(json.text,
                        "{\"event\":\"run\",\"list\":[1,{},[],null],\"yes\":true,\"no\":false,"
                        "\"max\":18446744073709551615,\"min\":-9223372036854775808,\"raw\":{\"a\":1}}");
    dpn_json_reset(&json);
    assert_string_equal(json.text, "");
    dpn_json_open_object(&json, NULL);
    dpn_json_close_object(&json);
    assert_string_equal(json.text, "{}");
    dpn_json_free(&json);
}

static void assert_quoted(const char *value, const char *want)
{
    struct dpn_json json;
    dpn_json_init(&json);
    dpn_json_string(&json, NULL, value);
    assert_string_equal(json.text, want);
    dpn_json_free(&json);
}

#define LOST "\xef\xbf\xbd"

static void test_strings(void **state)
{
    (void)state;
    assert_quoted("", "\"\"");
    assert_quoted("a\"b\\c/", "\"a\\\"b\\\\c/\"");
    assert_quoted("\n\t\x01\x1f", "\"\\u000a\\u0009\\u0001\\u001f\"");
    assert_quoted("\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80", "\"\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80\"");
    assert_quoted("a\xff"
                  "b",
                  "\"a" LOST "b\"");
    assert_quoted("\xc3", "\"" LOST "\"");                            /* cut short */
    assert_quoted("\xe2\x82", "\"" LOST LOST "\"");                   /* cut short */
    assert_quoted("\xc0\xaf", "\"" LOST LOST "\"");                   /* longer than needed */
    assert_quoted("\xe0\x80\xaf", "\"" LOST LOST LOST "\"");          /* longer than needed */
    assert_quoted("\xed\xa0\x80", "\"" LOST LOST LOST "\"");          /* a surrogate */
    assert_quoted("\xf4\x90\x80\x80", "\"" LOST LOST LOST LOST "\""); /* above U+10FFFF */
    assert_quoted("\xf4\x8f\xbf\xbf", "\"\xf4\x8f\xbf\xbf\"");        /* U+10FFFF */
}

static void assert_number(double value, const char *want)
{
    struct dpn_json json;
    dpn_json_init(&json);
    dpn_json_double(&json, NULL, value);
    assert_string_equal(json.text, want);
    dpn_json_free(&json);
}

static void test_doubles(void **state)
{
    (void)state;
    assert_number(0.1, "0.1");
    assert_number(1, "1");
    assert_number(2.302585092994046, "2.302585092994046");
    assert_number(0.1 + 0.2, "0.30000000000000004");
    assert_number(1e300, "1e+300");
    assert_number(NAN, "null");
    assert_number(INFINITY, "null");
    assert_number(-INFINITY, "null");
}

static void round_trips(void)
{
    struct dpn_rng rng;
    dpn_rng_init(&rng, 5, DPN_RNG_TEST, 0, 0);
    struct dpn_json json;
    dpn_json_init(&json);
    for (int i = 0; i < 5000; i++) {
        uint64_t bits = (uint64_t)dpn_rng_u32(&rng) << 32 | dpn_rng_u32(&rng);
        double value;
        if (i == 0) bits = 1; /* the least subnormal */
        memcpy(&value, &bits, sizeof value);
        if (i == 1) value = DBL_MAX;
        if (!isfinite(value)) continue;
        dpn_json_reset(&json);
        dpn_json_double(&json, NULL, value);
        assert_int_equal(strspn(json.text, "0123456789.e+-"), strlen(json.text));
        for (char *c = json.text; *c; c++)
            if (*c == '.') *c = localeconv()->decimal_point[0];
        double back = strtod(json.text, NULL);
        assert_memory_equal(&back, &value, sizeof value);
    }
    dpn_json_free(&json);
}

static void test_doubles_round_trip(void **state)
{
    (void)state;
    round_trips();
}

static void test_doubles_in_other_locales(void **state)
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
    assert_number(0.5, "0.5");
    round_trips();
    setlocale(LC_ALL, "C");
}

static void test_growth_and_output(void **state)
{
    (void)state;
    struct dpn_json json;
    dpn_json_init(&json);
    FILE *file = tmpfile();
    assert_non_null(file);
    for (int line = 0; line < 2; line++) {
        dpn_json_open_array(&json, NULL);
        for (uint64_t i = 0; i < 10000; i++) dpn_json_u64(&json, NULL, i);
        dpn_json_close_array(&json);
        assert_int_equal(dpn_json_end_line(&json, fileno(file), "x.jsonl"), DPN_OK);
        assert_int_equal(json.length, 0);
    }
    rewind(file);
    char *text = malloc(200000);
    assert_non_null(text);
    for (int line = 0; line < 2; line++) {
        assert_non_null(fgets(text, 200000, file));
        assert_int_equal(strncmp(text, "[0,1,2,", 7), 0);
        assert_string_equal(text + strlen(text) - 7, ",9999]\n");
    }
    assert_null(fgets(text, 200000, file));
    free(text);
    fclose(file);
    dpn_json_free(&json);
}

static void test_write_errors(void **state)
{
    (void)state;
    struct dpn_json json;
    dpn_json_init(&json);
    dpn_json_string(&json, NULL, "lost");
    assert_int_equal(dpn_json_end_line(&json, -1, "x.jsonl"), DPN_ERR_SYSTEM);
    assert_string_equal(dpn_error_text(), "cannot write x.jsonl: Bad file descriptor");
    assert_int_equal(json.length, 0);
    int full = open("/dev/full", O_WRONLY);
    if (full >= 0) {
        dpn_json_string(&json, NULL, "lost");
        assert_int_equal(dpn_json_end_line(&json, full, "x.jsonl"), DPN_ERR_SYSTEM);
        assert_string_equal(dpn_error_text(), "cannot write x.jsonl: No space left on device");
        close(full);
    }
    json.failed = 1;
    assert_int_equal(dpn_json_end_line(&json, STDOUT_FILENO, "x.jsonl"), DPN_ERR_NOMEM);
    assert_int_equal(json.failed, 0);
    dpn_json_free(&json);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nesting),
        cmocka_unit_test(test_strings),
        cmocka_unit_test(test_doubles),
        cmocka_unit_test(test_doubles_round_trip),
        cmocka_unit_test(test_doubles_in_other_locales),
        cmocka_unit_test(test_growth_and_output),
        cmocka_unit_test(test_write_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
