/* dpn_reducer_select, over a list with two classes made for it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/kernels.h"
#include "reduce/reduce.h"

extern const struct dpn_reducer_class dpn_reducer_ref, dpn_reducer_shm;

static int probe_best(const struct dpn_reduce_group *group, char *reason, size_t reason_size)
{
    (void)group, (void)reason, (void)reason_size;
    return 1000;
}

static int probe_declines(const struct dpn_reduce_group *group, char *reason, size_t reason_size)
{
    (void)group;
    snprintf(reason, reason_size, "it rains");
    return -1;
}

static const struct dpn_reducer_class class_quick = {.name = "quick",
                                                     .flags = DPN_REDUCE_HOST,
                                                     .probe = probe_best};
static const struct dpn_reducer_class class_rainy = {.name = "rainy",
                                                     .flags = DPN_REDUCE_EXACT_TREE | DPN_REDUCE_HOST,
                                                     .probe = probe_declines};

const struct dpn_reducer_class *const dpn_reducer_classes[] = {&dpn_reducer_ref, &class_quick,
                                                               &dpn_reducer_shm, &class_rainy, NULL};

static struct dpn_abort group_abort;
static const int nodes[2];
static const struct dpn_reduce_group host = {.n = 2,
                                             .node = nodes,
                                             .abort = &group_abort,
                                             .kernels = &dpn_kernels_ref};

static void test_auto_is_the_best_exact_one(void **state)
{
    const struct dpn_reducer_class *cls = NULL;
    (void)state;
    assert_int_equal(dpn_reducer_select("auto", &host, &cls), DPN_OK);
    assert_ptr_equal(cls, &dpn_reducer_shm); /* not the quick one, which nobody asked for */
}

static void test_by_name(void **state)
{
    const struct dpn_reducer_class *cls = NULL;
    (void)state;
    assert_int_equal(dpn_reducer_select("quick", &host, &cls), DPN_OK);
    assert_ptr_equal(cls, &class_quick);
    assert_int_equal(dpn_reducer_select("ref", &host, &cls), DPN_OK);
    assert_ptr_equal(cls, &dpn_reducer_ref);
}

static void test_refusals_say_why(void **state)
{
    const struct dpn_reducer_class *cls = NULL;
    struct dpn_reduce_group other = host;
    (void)state;
    assert_int_equal(dpn_reducer_select("rainy", &host, &cls), DPN_ERR_USAGE);
    assert_string_equal(dpn_error_text(), "--reducer rainy: it rains");
    assert_int_equal(dpn_reducer_select("smh", &host, &cls), DPN_ERR_USAGE);
    assert_non_null(strstr(dpn_error_text(), "--reducer 'smh'"));
    assert_non_null(strstr(dpn_error_text(), "'shm'"));

    other.kernels = NULL;
    assert_int_equal(dpn_reducer_select("shm", &other, &cls), DPN_ERR_USAGE);
    assert_string_equal(dpn_error_text(), "--reducer shm: the CPU cannot read the members' memory");
    assert_int_equal(dpn_reducer_select("auto", &other, &cls), DPN_ERR_USAGE);
    assert_non_null(strstr(dpn_error_text(), "shm: the CPU cannot read"));
    assert_non_null(strstr(dpn_error_text(), "rainy: it rains"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_auto_is_the_best_exact_one),
        cmocka_unit_test(test_by_name),
        cmocka_unit_test(test_refusals_say_why),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
