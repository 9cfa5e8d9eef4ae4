/* Every reducer of the list, against sums worked out here: their bits, and what it cost to make them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/reduce/reduce_testing.h"

extern const struct dpn_reducer_class dpn_reducer_ref, dpn_reducer_shm;
const struct dpn_reducer_class *const dpn_reducer_classes[] = {&dpn_reducer_ref, &dpn_reducer_shm, NULL};

static const struct dpn_bucket one_small[] = {{0, 1024}};
static const struct dpn_bucket one_large[] = {{0, 57344}};
static const struct dpn_bucket_plan plans[] = {{1, one_small},
                                               {TEST_N_UNEVEN, test_uneven_buckets},
                                               {1, one_large}};
enum { N_PLANS = 3 };

static size_t plan_elems(const struct dpn_bucket_plan *plan)
{
    const struct dpn_bucket *last = &plan->buckets[plan->n_buckets - 1];
    return last->first + last->elems;
}

/* ---- sums ---- */

/* Where results go. */
enum { OUT_SHARED, OUT_PRIVATE, OUT_OWN_SEGMENT, OUT_ROOT_ONLY, OUT_OTHERS_SEGMENT, N_OUTS };

struct sum_case {
    const struct dpn_bucket_plan *plan;
    const uint64_t (*steps)[2]; /* shards, leaves */
    size_t n_steps;
    float *expected[64]; /* [step] */
    float *shared;
    float *segments[TEST_MAX_MEMBERS][TEST_MAX_SEGMENTS];
    float *private[TEST_MAX_MEMBERS];
    int jitter;
};

static float *sum_out(const struct sum_case *sums, int member, int n_members, size_t step, size_t n_nodes)
{
    switch (step % N_OUTS) {
    case OUT_SHARED: return sums->shared;
    case OUT_OWN_SEGMENT: return n_nodes > 0 ? sums->segments[member][0] : sums->private[member];
    case OUT_ROOT_ONLY: return (size_t)member == step % (size_t)n_members ? sums->private[member] : NULL;
    case OUT_OTHERS_SEGMENT: return sums->segments[0][0]; /* member 0 always holds leaf 0 */
    default: return sums->private[member];
    }
}

static enum dpn_status sum_step(struct test_group *test, int member, size_t step, uint64_t *seed)
{
    const struct sum_case *sums = test->arg;
    const struct dpn_reducer_class *cls = test->reducer->cls;
    uint64_t shards = sums->steps[step][0], leaves = sums->steps[step][1];
    struct dpn_tree_node nodes[DPN_TREE_MAX_SEGMENTS_PER_RUN];
    size_t n = test_nodes(member, test->group.n, shards, leaves, nodes);
    float *out = sum_out(sums, member, test->group.n, step, n);
    for (size_t b = 0; b < sums->plan->n_buckets; b++) {
        struct dpn_bucket bucket = sums->plan->buckets[b];
        struct dpn_segment segments[TEST_MAX_SEGMENTS];
        for (size_t i = 0; i < n; i++) {
            segments[i] = (struct dpn_segment){nodes[i], sums->segments[member][i] + bucket.first};
            test_fill(step, nodes[i], leaves, bucket.first, bucket.elems, segments[i].data);
        }
        DPN_TRY(cls->start(test->reducer, member, b, leaves, segments, n, out ? out + bucket.first : NULL));
        memset(segments, 0xff, sizeof segments); /* the call has copied them */
        if (sums->jitter) DPN_TRY(test_dawdle(test, member, seed));
    }
    DPN_TRY(cls->wait(test->reducer, member));
    for (size_t i = 0; out && i < plan_elems(sums->plan); i++)
        if (memcmp(&out[i], &sums->expected[step][i], sizeof *out) != 0) {
            test_fail(test,
                      "%s, %d members, step %zu (%u shards, %u leaves), member %d, float %zu: %.9g, not %.9g",
                      cls->name, test->group.n, step, (unsigned)shards, (unsigned)leaves, member, i,
                      (double)out[i], (double)sums->expected[step][i]);
            break;
        }
    /* Only where members read what is another's to write does anybody have to wait for the readers. */
    return step % N_OUTS == OUT_OTHERS_SEGMENT ? cls->barrier(test->reducer, member) : DPN_OK;
}

static void sum_member(struct test_group *test, int member)
{
    const struct sum_case *sums = test->arg;
    uint64_t seed = (uint64_t)member + 100;
    for (size_t step = 0; step < sums->n_steps; step++) {
        enum dpn_status status = sum_step(test, member, step, &seed);
        if (status == DPN_OK) continue;
        if (status != DPN_ERR_ABORTED)
            test_fail(test, "member %d, step %zu: %s", member, step, dpn_error_text());
        return;
    }
}

static void sum_case_run(const struct dpn_reducer_class *cls, struct sum_case *sums, int n)
{
    struct test_group test;
    size_t elems = plan_elems(sums->plan);
    test_group_init(&test, n);
    sums->shared = test_floats(elems);
    for (int i = 0; i < n; i++) {
        sums->private[i] = test_floats(elems);
        for (int j = 0; j < TEST_MAX_SEGMENTS; j++) sums->segments[i][j] = test_floats(elems);
    }
    assert_int_equal(cls->open(&test.group, sums->plan, &test.reducer), DPN_OK);
    test_run(&test, sum_member, sums);
    cls->close(test.reducer);
    for (int i = 0; i < n; i++) {
        free(sums->private[i]);
        for (int j = 0; j < TEST_MAX_SEGMENTS; j++) free(sums->segments[i][j]);
    }
    free(sums->shared);
    if (test.failure[0]) fail_msg("%s", test.failure);
}

static void sum_expect(struct sum_case *sums)
{
    size_t elems = plan_elems(sums->plan);
    for (size_t s = 0; s < sums->n_steps; s++) {
        sums->expected[s] = test_floats(elems);
        for (size_t i = 0; i < elems; i++) sums->expected[s][i] = test_sum(s, 0, sums->steps[s][1], i);
    }
}

static void sum_forget(struct sum_case *sums)
{
    for (size_t s = 0; s < sums->n_steps; s++) free(sums->expected[s]);
}

/* Each (shards, leaves) with each kind of `out`: N_OUTS repetitions and a number of pairs prime to it. */
static void sums_of(int n, const uint64_t (*pairs)[2], size_t n_pairs, size_t max_plan, int jitter)
{
    uint64_t steps[64][2];
    assert_true(n_pairs % N_OUTS != 0 && n_pairs * N_OUTS <= 64);
    for (size_t i = 0; i < n_pairs * N_OUTS; i++) memcpy(steps[i], pairs[i % n_pairs], sizeof steps[i]);
    for (size_t p = 0; p < max_plan; p++) {
        struct sum_case sums = {.plan = &plans[p],
                                .steps = (const uint64_t(*)[2])steps,
                                .n_steps = n_pairs * N_OUTS,
                                .jitter = jitter};
        sum_expect(&sums);
        for (int c = 0; dpn_reducer_classes[c]; c++) sum_case_run(dpn_reducer_classes[c], &sums, n);
        sum_forget(&sums);
    }
}

/* Shards at least as many as members; then fewer leaves than shards, than members, and one. */
static const uint64_t all_pairs[][2] = {{6, 6}, {7, 7}, {8, 8}, {12, 12}, {14, 14}, {12, 5}, {8, 1}, {8, 3}};
enum { N_ALL_PAIRS = 8 };

static void test_sums(void **state)
{
    static const int members[] = {1, 2, 3, 4, 5};
    (void)state;
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++)
        sums_of(members[i], all_pairs, N_ALL_PAIRS, N_PLANS, 1);
}

static void test_sums_many_members(void **state)
{
    static const uint64_t pairs7[][2] = {{7, 7}, {8, 8}, {12, 12}, {12, 5}, {8, 1}, {8, 3}};
    static const uint64_t pairs8[][2] = {{8, 8}, {12, 12}, {8, 1}, {12, 7}};
    static const uint64_t pairs16[][2] = {{16, 16}, {17, 17}, {40, 40}, {16, 3}};
    (void)state;
    sums_of(7, pairs7, 6, N_PLANS, 1);
    sums_of(8, pairs8, 4, N_PLANS, 1);
    sums_of(16, pairs16, 4, 2, 1);
}

/* Without delays, so that members run into each other's steps. */
static void test_sums_at_speed(void **state)
{
    (void)state;
    for (int n = 2; n <= 3; n++) sums_of(n, all_pairs, N_ALL_PAIRS, 2, 0);
}

/* The comparison of bits means something only if another order of additions gives other bits. */
static void test_inputs_tell_orders_apart(void **state)
{
    enum { LEAVES = 8, ELEMS = 1000 };
    int different = 0;
    (void)state;
    for (size_t i = 0; i < ELEMS; i++) {
        float serial = 0, tree = test_sum(1, 0, LEAVES, i);
        for (uint64_t leaf = 0; leaf < LEAVES; leaf++) serial += test_value(1, leaf, i);
        different += memcmp(&serial, &tree, sizeof tree) != 0;
    }
    assert_true(different > ELEMS / 4);
}

/* ---- statistics ---- */

struct stats_case {
    float *segments[TEST_MAX_MEMBERS];
    float *out;
    struct dpn_reduce_stats stats[TEST_MAX_MEMBERS];
};

static void stats_member(struct test_group *test, int member)
{
    struct stats_case *cases = test->arg;
    const struct dpn_bucket_plan *plan = &test_uneven;
    struct dpn_tree_node nodes[DPN_TREE_MAX_SEGMENTS_PER_RUN];
    uint64_t leaves = (uint64_t)test->group.n;
    test_nodes(member, test->group.n, leaves, leaves, nodes);
    for (int step = 0; step < 2; step++) {
        for (size_t b = 0; b < plan->n_buckets; b++) {
            size_t first = plan->buckets[b].first;
            struct dpn_segment segment = {nodes[0], cases->segments[member] + first};
            test->reducer->cls->start(test->reducer, member, b, leaves, &segment, 1, cases->out + first);
        }
        test->reducer->cls->wait(test->reducer, member);
    }
    test->reducer->cls->stats(test->reducer, member, &cases->stats[member]);
}

static void stats_of(const struct dpn_reducer_class *cls, int n, struct stats_case *cases,
                     struct dpn_reduce_stats *total)
{
    struct test_group test;
    test_group_init(&test, n);
    for (int i = 0; i < n; i++) cases->segments[i] = test_floats(TEST_UNEVEN_ELEMS);
    cases->out = n == 1 ? cases->segments[0] : test_floats(TEST_UNEVEN_ELEMS);
    assert_int_equal(cls->open(&test.group, &test_uneven, &test.reducer), DPN_OK);
    test_run(&test, stats_member, cases);
    cls->close(test.reducer);
    memset(total, 0, sizeof *total);
    for (int i = 0; i < n; i++) {
        const struct dpn_reduce_stats *one = &cases->stats[i];
        assert_int_equal(one->reductions, 2 * TEST_N_UNEVEN);
        total->bytes_read += one->bytes_read;
        total->bytes_written += one->bytes_written;
        total->bytes_copied += one->bytes_copied;
        total->flag_operations += one->flag_operations;
        free(cases->segments[i]);
    }
    if (n > 1) free(cases->out);
}

/* A group of one is as if there were no reducer. */
static void test_stats_of_one(void **state)
{
    (void)state;
    for (int c = 0; dpn_reducer_classes[c]; c++) {
        struct stats_case cases;
        struct dpn_reduce_stats total;
        stats_of(dpn_reducer_classes[c], 1, &cases, &total);
        assert_int_equal(total.flag_operations, 0);
        assert_int_equal(total.bytes_copied, 0);
        assert_int_equal(total.bytes_read, 0);
        assert_int_equal(total.bytes_written, 0);
    }
}

/* Every segment is read once, the one `out` is written once, nothing is copied. */
static void test_stats_read_once(void **state)
{
    (void)state;
    for (int c = 0; dpn_reducer_classes[c]; c++)
        for (int n = 2; n <= 5; n++) {
            struct stats_case cases;
            struct dpn_reduce_stats total;
            stats_of(dpn_reducer_classes[c], n, &cases, &total);
            assert_int_equal(total.bytes_read, 2 * (uint64_t)n * TEST_UNEVEN_ELEMS * sizeof(float));
            assert_int_equal(total.bytes_written, 2 * TEST_UNEVEN_ELEMS * sizeof(float));
            assert_int_equal(total.bytes_copied, 0);
            assert_true(total.flag_operations > 0);
        }
}

/* shm spreads the work, remainders and small buckets included. */
static void test_shm_is_balanced(void **state)
{
    struct stats_case cases;
    struct dpn_reduce_stats total;
    (void)state;
    stats_of(&dpn_reducer_shm, 4, &cases, &total);
    for (int i = 0; i < 4; i++) {
        assert_true(cases.stats[i].bytes_read > total.bytes_read / 8);
        assert_true(cases.stats[i].bytes_read < total.bytes_read / 2);
    }
}

/* A group of one whose accumulation left two partial sums still gets their sum, where it wants it. */
static void test_one_member_two_segments(void **state)
{
    (void)state;
    for (int c = 0; dpn_reducer_classes[c]; c++) {
        const struct dpn_reducer_class *cls = dpn_reducer_classes[c];
        struct test_group test;
        test_group_init(&test, 1);
        assert_int_equal(cls->open(&test.group, &plans[0], &test.reducer), DPN_OK);
        float *left = test_floats(1024), *right = test_floats(1024), *out = test_floats(1024);
        struct dpn_segment segments[] = {{{1, 0}, left}, {{1, 1}, right}};
        for (int own = 0; own <= 1; own++) {
            float *result = own ? right : out;
            test_fill(9, segments[0].node, 3, 0, 1024, left);
            test_fill(9, segments[1].node, 3, 0, 1024, right);
            assert_int_equal(cls->start(test.reducer, 0, 0, 3, segments, 2, result), DPN_OK);
            assert_int_equal(cls->wait(test.reducer, 0), DPN_OK);
            for (size_t i = 0; i < 1024; i++) assert_true(result[i] == test_sum(9, 0, 3, i));
        }
        free(out);
        free(right);
        free(left);
        cls->close(test.reducer);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_inputs_tell_orders_apart),
        cmocka_unit_test(test_sums),
        cmocka_unit_test(test_sums_many_members),
        cmocka_unit_test(test_sums_at_speed),
        cmocka_unit_test(test_stats_of_one),
        cmocka_unit_test(test_stats_read_once),
        cmocka_unit_test(test_shm_is_balanced),
        cmocka_unit_test(test_one_member_two_segments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
