/* Error texts and the lines for a person. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/log.h"
#include "core/status.h"

static void test_fail_keeps_text(void **state)
{
    (void)state;
    assert_int_equal(dpn_fail(DPN_ERR_USAGE, "--batch '%s' is bad", "x"), DPN_ERR_USAGE);
    assert_string_equal(dpn_error_text(), "--batch 'x' is bad");
    assert_int_equal(dpn_fail(DPN_ERR_INPUT, "a.idx: %s", dpn_error_text()), DPN_ERR_INPUT);
    assert_string_equal(dpn_error_text(), "a.idx: --batch 'x' is bad");
}

static void test_text_is_one_line(void **state)
{
    (void)state;
    dpn_fail(DPN_ERR_INPUT, "a\nb\tc\x1b[31md\x7f");
    assert_string_equal(dpn_error_text(), "a b c?[31md?");
    char *big = malloc(5001);
    assert_non_null(big);
    memset(big, 'y', 5000);
    big[5000] = '\0';
    dpn_fail(DPN_ERR_INPUT, "%s", big);
    assert_int_equal(strlen(dpn_error_text()), 1023);
    dpn_fail_errno(DPN_ERR_SYSTEM, ENOSPC, "%s", big); /* the reason survives the cut */
    assert_true(strlen(dpn_error_text()) <= 1023);
    assert_non_null(strstr(dpn_error_text(), ": No space left on device"));
    free(big);
}

static void test_errno(void **state)
{
    (void)state;
    assert_int_equal(dpn_fail_errno(DPN_ERR_INPUT, ENOENT, "cannot open %s", "x.gz"), DPN_ERR_INPUT);
    assert_string_equal(dpn_error_text(), "cannot open x.gz: No such file or directory");
}

static void *other_thread(void *arg)
{
    (void)arg;
    int empty = dpn_error_text()[0] == '\0';
    dpn_fail(DPN_ERR_NOMEM, "other");
    return empty ? NULL : (void *)1;
}

static void test_text_is_per_thread(void **state)
{
    (void)state;
    dpn_fail(DPN_ERR_USAGE, "mine");
    pthread_t thread;
    void *result;
    assert_int_equal(pthread_create(&thread, NULL, other_thread, NULL), 0);
    assert_int_equal(pthread_join(thread, &result), 0);
    assert_null(result);
    assert_string_equal(dpn_error_text(), "mine");
}

static enum dpn_status tries(enum dpn_status status, int *went_on)
{
    DPN_TRY(status);
    *went_on = 1;
    return DPN_OK;
}

static void test_try_and_names(void **state)
{
    (void)state;
    int went_on = 0;
    assert_int_equal(tries(DPN_DECLINED, &went_on), DPN_DECLINED);
    assert_false(went_on);
    assert_int_equal(tries(DPN_OK, &went_on), DPN_OK);
    assert_true(went_on);
    for (int s = DPN_DECLINED; s <= DPN_OK; s++) {
        assert_string_not_equal(dpn_status_name((enum dpn_status)s), "unknown status");
        for (int t = s + 1; t <= DPN_OK; t++)
            assert_string_not_equal(dpn_status_name((enum dpn_status)s), dpn_status_name((enum dpn_status)t));
    }
    assert_non_null(dpn_status_name((enum dpn_status)99));
}

struct said {
    char out[5200], err[10400];
};

static void slurp(FILE *file, char *text, size_t size)
{
    rewind(file);
    text[fread(text, 1, size - 1, file)] = '\0';
    fclose(file);
}

/* What write_lines(arg) writes to both streams, through temporary files. */
static void capture(void (*write_lines)(const char *arg), const char *arg, struct said *said)
{
    fflush(NULL);
    FILE *out = tmpfile(), *err = tmpfile();
    assert_true(out && err);
    int saved_out = dup(STDOUT_FILENO), saved_err = dup(STDERR_FILENO);
    assert_true(saved_out >= 0 && saved_err >= 0);
    dup2(fileno(out), STDOUT_FILENO);
    dup2(fileno(err), STDERR_FILENO);
    write_lines(arg);
    fflush(NULL);
    dup2(saved_out, STDOUT_FILENO);
    dup2(saved_err, STDERR_FILENO);
    close(saved_out);
    close(saved_err);
    slurp(out, said->out, sizeof said->out);
    slurp(err, said->err, sizeof said->err);
}

static void say_all(const char *arg)
{
    printf("first ");
    dpn_note("note %s", arg);
    dpn_note_verbose("more");
    dpn_warn("careful with %s", arg);
    dpn_error("--x '%s'", arg);
}

static void test_log_streams(void **state)
{
    (void)state;
    static struct said said;
    capture(say_all, "a", &said);
    assert_string_equal(said.out, "first note a\n");
    assert_string_equal(said.err, "dpnode: warning: careful with a\ndpnode: --x 'a'\n");
    capture(say_all, "a\nb", &said);
    assert_string_equal(said.err, "dpnode: warning: careful with a b\ndpnode: --x 'a b'\n");

    dpn_log_set_verbosity(DPN_VERBOSE);
    capture(say_all, "a", &said);
    assert_string_equal(said.out, "first note a\nmore\n");
    dpn_log_set_verbosity(DPN_QUIET);
    capture(say_all, "a", &said);
    assert_string_equal(said.out, "first ");
    assert_string_equal(said.err, "dpnode: warning: careful with a\ndpnode: --x 'a'\n");
    dpn_log_set_verbosity(DPN_NORMAL);
}

static void test_log_long_lines(void **state)
{
    (void)state;
    enum { LONGEST = 5000 };
    static char word[LONGEST + 1], want[2 * LONGEST + 64];
    static struct said said;
    /* around the size of any buffer inside */
    const size_t lengths[] = {2003, 2010, 2020, 2030, 2035, 2036, 2037, 2038, 2039,   2040,
                              2041, 2042, 2043, 2045, 2046, 2047, 2048, 4095, LONGEST};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        memset(word, 'z', lengths[i]);
        word[lengths[i]] = '\0';
        capture(say_all, word, &said);
        snprintf(want, sizeof want, "first note %s\n", word);
        assert_string_equal(said.out, want);
        snprintf(want, sizeof want, "dpnode: warning: careful with %s\ndpnode: --x '%s'\n", word, word);
        assert_string_equal(said.err, want);
    }
}

static void test_log_notices_full_disk(void **state)
{
    (void)state;
    assert_false(dpn_log_failed());
    int full = open("/dev/full", O_WRONLY), saved = dup(STDOUT_FILENO);
    if (full < 0) {
        print_message("SKIP: no /dev/full here\n");
        skip();
    }
    fflush(stdout);
    dup2(full, STDOUT_FILENO);
    dpn_note("lost");
    dup2(saved, STDOUT_FILENO);
    close(full);
    close(saved);
    assert_true(dpn_log_failed());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fail_keeps_text), cmocka_unit_test(test_text_is_one_line),
        cmocka_unit_test(test_errno),           cmocka_unit_test(test_text_is_per_thread),
        cmocka_unit_test(test_try_and_names),   cmocka_unit_test(test_log_streams),
        cmocka_unit_test(test_log_long_lines),  cmocka_unit_test(test_log_notices_full_disk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
