/* The sampler: orders, step counts, and the cutting of a step's batch into shards. */
#include "data/data.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/team.h"

static void open_sampler(struct dpn_sampler *sampler, size_t n, size_t batch, enum dpn_last_batch last,
                         int shuffle, uint64_t seed)
{
    if (dpn_sampler_open(sampler, n, batch, last, shuffle, seed) != DPN_OK) fail_msg("%s", dpn_error_text());
}

static void assert_permutation(const uint32_t *order, size_t n)
{
    unsigned char *seen = calloc(n, 1);
    assert_non_null(seen);
    for (size_t i = 0; i < n; i++) {
        assert_true(order[i] < n);
        assert_int_equal(seen[order[i]], 0);
        seen[order[i]] = 1;
    }
    free(seen);
}

/* R01 */
static void test_orders_of_three_epochs(void **state)
{
    (void)state;
    enum { N = 22, EPOCHS = 3 };
    uint32_t orders[EPOCHS][N];
    struct dpn_sampler sampler, other;
    open_sampler(&sampler, N, 4, DPN_LAST_SHORT, 1, 1);
    assert_int_equal(sampler.epoch, 0);
    for (uint64_t epoch = 0; epoch < EPOCHS; epoch++) {
        if (epoch > 0) dpn_sampler_set_epoch(&sampler, epoch); /* 0 is there from the start */
        assert_int_equal(sampler.epoch, epoch);
        assert_permutation(sampler.order, N);
        memcpy(orders[epoch], sampler.order, sizeof(orders[epoch]));
    }
    assert_memory_not_equal(orders[0], orders[1], sizeof(orders[0]));
    assert_memory_not_equal(orders[0], orders[2], sizeof(orders[0]));
    assert_memory_not_equal(orders[1], orders[2], sizeof(orders[0]));

    /* A pure function of (seed, epoch): not of the way there, nor of the batch. */
    open_sampler(&other, N, 7, DPN_LAST_WRAP, 1, 1);
    for (uint64_t epoch = EPOCHS; epoch-- > 0;) {
        dpn_sampler_set_epoch(&other, epoch);
        assert_memory_equal(other.order, orders[epoch], sizeof(orders[epoch]));
    }
    dpn_sampler_close(&other);
    open_sampler(&other, N, 4, DPN_LAST_SHORT, 1, 2);
    assert_memory_not_equal(other.order, orders[0], sizeof(orders[0]));
    dpn_sampler_close(&other);
    dpn_sampler_close(&sampler);
}

/* Every one of the 6 orders of 3 samples comes up about equally often. */
static void test_shuffle_is_fair(void **state)
{
    (void)state;
    enum { EPOCHS = 6000 };
    unsigned counts[27] = {0};
    struct dpn_sampler sampler;
    open_sampler(&sampler, 3, 1, DPN_LAST_SHORT, 1, 5);
    for (uint64_t epoch = 0; epoch < EPOCHS; epoch++) {
        dpn_sampler_set_epoch(&sampler, epoch);
        counts[9 * sampler.order[0] + 3 * sampler.order[1] + sampler.order[2]]++;
    }
    dpn_sampler_close(&sampler);
    const int codes[] = {5, 7, 11, 15, 19, 21}; /* 012 021 102 120 201 210 */
    for (size_t i = 0; i < 6; i++)
        assert_in_range(counts[codes[i]], 850, 1150); /* 1000 and 5 standard deviations */
}

static void test_no_shuffle(void **state)
{
    (void)state;
    struct dpn_sampler sampler;
    open_sampler(&sampler, 10, 4, DPN_LAST_SHORT, 0, 1);
    for (uint64_t epoch = 0; epoch < 2; epoch++) {
        dpn_sampler_set_epoch(&sampler, epoch);
        for (uint32_t i = 0; i < 10; i++) assert_int_equal(sampler.order[i], i);
    }
    assert_int_equal(dpn_sampler_index(&sampler, 2, 1), 9);
    dpn_sampler_close(&sampler);
}

static void test_steps_and_their_samples(void **state)
{
    (void)state;
    static const struct {
        size_t n, batch;
        enum dpn_last_batch last;
        size_t steps, last_samples;
    } cases[] = {
        {17, 8, DPN_LAST_SHORT, 3, 1}, /* S09: 8, 8, 1 */
        {17, 8, DPN_LAST_DROP, 2, 8},          {17, 8, DPN_LAST_WRAP, 3, 8},
        {16, 8, DPN_LAST_SHORT, 2, 8},         {16, 8, DPN_LAST_DROP, 2, 8},
        {16, 8, DPN_LAST_WRAP, 2, 8},          {5, 64, DPN_LAST_SHORT, 1, 5}, /* S06 */
        {5, 64, DPN_LAST_WRAP, 1, 64},         {3, 3, DPN_LAST_DROP, 1, 3},
        {1, 1, DPN_LAST_SHORT, 1, 1},          {1, SIZE_MAX, DPN_LAST_SHORT, 1, 1},
        {60000, 128, DPN_LAST_SHORT, 469, 96},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct dpn_sampler sampler;
        open_sampler(&sampler, cases[i].n, cases[i].batch, cases[i].last, 1, 0);
        assert_int_equal(sampler.steps, cases[i].steps);
        for (size_t step = 0; step + 1 < sampler.steps; step++)
            assert_int_equal(dpn_sampler_step_samples(&sampler, step), cases[i].batch);
        assert_int_equal(dpn_sampler_step_samples(&sampler, sampler.steps - 1), cases[i].last_samples);
        dpn_sampler_close(&sampler);
    }
}

/* An epoch takes every sample once; what `wrap` takes again are the first of the same order. */
static void test_indices_of_an_epoch(void **state)
{
    (void)state;
    struct dpn_sampler sampler;
    uint32_t taken[24], i = 0;
    open_sampler(&sampler, 17, 8, DPN_LAST_WRAP, 1, 3);
    for (size_t step = 0; step < sampler.steps; step++)
        for (size_t position = 0; position < dpn_sampler_step_samples(&sampler, step); position++)
            taken[i++] = dpn_sampler_index(&sampler, step, position);
    assert_int_equal(i, 24);
    assert_permutation(taken, 17);
    assert_memory_equal(taken + 17, taken, 7 * sizeof(*taken));
    dpn_sampler_close(&sampler);

    open_sampler(&sampler, 3, 8, DPN_LAST_WRAP, 1, 3); /* more than once round */
    for (size_t position = 0; position < 8; position++)
        assert_int_equal(dpn_sampler_index(&sampler, 0, position), sampler.order[position % 3]);
    dpn_sampler_close(&sampler);
}

/* S03 and S06: sizes of the shards, together every sample once. */
static void test_shards(void **state)
{
    (void)state;
    static const struct {
        size_t n, parts, sizes[9];
    } cases[] = {
        {9, 4, {3, 2, 2, 2}},
        {36, 7, {6, 5, 5, 5, 5, 5, 5}},
        {256, 6, {43, 43, 43, 43, 42, 42}},
        {3, 7, {1, 1, 1, 0, 0, 0, 0}},
        {4, 9, {1, 1, 1, 1, 0, 0, 0, 0, 0}},
        {5, 2, {3, 2}},
        {1, 1, {1}},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        size_t next = 0, first, count;
        for (size_t part = 0; part < cases[i].parts; part++) {
            dpn_split(cases[i].n, cases[i].parts, part, &first, &count);
            assert_int_equal(count, cases[i].sizes[part]);
            assert_int_equal(first, next);
            next += count;
        }
        assert_int_equal(next, cases[i].n);
    }
}

static void test_refusals(void **state)
{
    (void)state;
    struct dpn_sampler sampler;
    assert_int_equal(dpn_sampler_open(&sampler, 5, 64, DPN_LAST_DROP, 1, 0), DPN_ERR_USAGE);
    assert_non_null(strstr(dpn_error_text(), "64"));
    assert_non_null(strstr(dpn_error_text(), "5 samples"));
    assert_int_equal(dpn_sampler_open(&sampler, 0, 8, DPN_LAST_SHORT, 1, 0), DPN_ERR_USAGE);
    assert_int_equal(dpn_sampler_open(&sampler, 8, 0, DPN_LAST_SHORT, 1, 0), DPN_ERR_USAGE);
    assert_int_equal(dpn_sampler_open(&sampler, (size_t)UINT32_MAX + 1, 8, DPN_LAST_SHORT, 1, 0),
                     DPN_ERR_USAGE);
    assert_non_null(strstr(dpn_error_text(), "4294967296"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_orders_of_three_epochs),
        cmocka_unit_test(test_shuffle_is_fair),
        cmocka_unit_test(test_no_shuffle),
        cmocka_unit_test(test_steps_and_their_samples),
        cmocka_unit_test(test_indices_of_an_epoch),
        cmocka_unit_test(test_shards),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
