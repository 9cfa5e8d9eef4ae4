/* Fused update: every float of the sum reaches the group's update exactly once a step, with the bits of the
 * tree, and what the update wrote is there for all after wait; steps in which somebody gives an `out` are
 * plain. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/reduce/reduce_testing.h"

extern const struct dpn_reducer_class dpn_reducer_ref, dpn_reducer_shm;
const struct dpn_reducer_class *const dpn_reducer_classes[] = {&dpn_reducer_ref, &dpn_reducer_shm, NULL};

enum { FUSED_STEPS = 5, FUSED_PLAIN_STEP = 3 };

struct fused_case {
    uint64_t shards;
    float *params; /* shared by all, as the trainer shares them */
    float *segments[TEST_MAX_MEMBERS][TEST_MAX_SEGMENTS];
    float *out;
    uint8_t *applied; /* times in this step; each float has one writer, so no atomics */
    struct test_group *test;
};

static void fused_apply(void *arg, int member, size_t first, size_t elems, const float *sum)
{
    struct fused_case *fused = arg;
    if (first % 16 || elems % 16 || first + elems > TEST_UNEVEN_ELEMS)
        test_fail(fused->test, "member %d: piece of %zu floats at %zu", member, elems, first);
    for (size_t i = 0; i < elems; i++) {
        fused->params[first + i] = sum[i];
        fused->applied[first + i]++;
    }
}

/* Hints name pieces inside the arena. */
static void fused_soon(void *arg, int member, size_t first, size_t elems)
{
    struct fused_case *fused = arg;
    if (first % 16 || elems % 16 || elems == 0 || first + elems > TEST_UNEVEN_ELEMS)
        test_fail(fused->test, "member %d: hint of %zu floats at %zu", member, elems, first);
}

static enum dpn_status fused_step(struct test_group *test, int member, uint64_t step, uint64_t leaves)
{
    struct fused_case *fused = test->arg;
    const struct dpn_reducer_class *cls = test->reducer->cls;
    struct dpn_tree_node nodes[DPN_TREE_MAX_SEGMENTS_PER_RUN];
    size_t n = test_nodes(member, test->group.n, fused->shards, leaves, nodes);
    float *out = step == FUSED_PLAIN_STEP ? fused->out : NULL;
    uint64_t seed = step * 97 + (uint64_t)member;
    for (size_t i = 0; i < n; i++)
        test_fill(step, nodes[i], leaves, 0, TEST_UNEVEN_ELEMS, fused->segments[member][i]);
    for (size_t b = 0; b < test_uneven.n_buckets; b++) {
        struct dpn_segment segments[TEST_MAX_SEGMENTS];
        size_t first = test_uneven_buckets[b].first;
        for (size_t i = 0; i < n; i++)
            segments[i] = (struct dpn_segment){nodes[i], fused->segments[member][i] + first};
        DPN_TRY(test_dawdle(test, member, &seed));
        DPN_TRY(cls->start(test->reducer, member, b, leaves, segments, n, out ? out + first : NULL));
    }
    return cls->wait(test->reducer, member);
}

/* After wait: what is in the shared memory, seen from every member. */
static void fused_verify(struct test_group *test, int member, uint64_t step, uint64_t leaves)
{
    const struct fused_case *fused = test->arg;
    int plain = step == FUSED_PLAIN_STEP;
    const float *got = plain ? fused->out : fused->params;
    for (size_t i = 0; i < TEST_UNEVEN_ELEMS; i++) {
        float want = test_sum(step, 0, leaves, i);
        if (memcmp(&got[i], &want, sizeof want) == 0 && fused->applied[i] == !plain) continue;
        test_fail(
            test,
            "%s, %d members, V %llu, step %llu, member %d: float %zu is %.9g, wanted %.9g; applied %d times",
            test->reducer->cls->name, test->group.n, (unsigned long long)fused->shards,
            (unsigned long long)step, member, i, (double)got[i], (double)want, fused->applied[i]);
        return;
    }
}

static void fused_member(struct test_group *test, int member)
{
    struct fused_case *fused = test->arg;
    const struct dpn_reducer_class *cls = test->reducer->cls;
    for (uint64_t step = 0; step < FUSED_STEPS; step++) {
        uint64_t leaves = step == 1 ? 1 : step == 2 ? fused->shards - 1 : fused->shards;
        if (fused_step(test, member, step, leaves) != DPN_OK) return;
        fused_verify(test, member, step, leaves);
        /* All have looked before it is cleared, and it is cleared before anybody goes on. */
        if (cls->barrier(test->reducer, member) != DPN_OK) return;
        if (member == 0) memset(fused->applied, 0, TEST_UNEVEN_ELEMS);
        if (cls->barrier(test->reducer, member) != DPN_OK) return;
    }
}

static void fused_run(const struct dpn_reducer_class *cls, int n, uint64_t shards)
{
    struct test_group test;
    struct fused_case fused = {.shards = shards, .test = &test};
    struct dpn_reduce_update update = {fused_apply, fused_soon, &fused};
    test_group_init(&test, n);
    test.group.update = &update;
    fused.params = test_floats(TEST_UNEVEN_ELEMS);
    fused.out = test_floats(TEST_UNEVEN_ELEMS);
    fused.applied = calloc(TEST_UNEVEN_ELEMS, 1);
    assert_non_null(fused.applied);
    for (int m = 0; m < n; m++)
        for (int i = 0; i < TEST_MAX_SEGMENTS; i++) fused.segments[m][i] = test_floats(TEST_UNEVEN_ELEMS);
    assert_true(cls->flags & DPN_REDUCE_FUSED);
    assert_int_equal(cls->open(&test.group, &test_uneven, &test.reducer), DPN_OK);
    test_run(&test, fused_member, &fused);
    test.reducer->cls->close(test.reducer);
    for (int m = 0; m < n; m++)
        for (int i = 0; i < TEST_MAX_SEGMENTS; i++) free(fused.segments[m][i]);
    free(fused.params);
    free(fused.out);
    free(fused.applied);
    if (test.failure[0]) fail_msg("%s", test.failure);
}

static void test_fused(void **state)
{
    static const int members[] = {1, 2, 3, 5, 8};
    static const uint64_t shards[] = {6, 7, 8, 12};
    (void)state;
    for (int c = 0; dpn_reducer_classes[c]; c++)
        for (size_t m = 0; m < sizeof members / sizeof members[0]; m++)
            for (size_t v = 0; v < sizeof shards / sizeof shards[0]; v++)
                if (shards[v] >= (uint64_t)members[m])
                    fused_run(dpn_reducer_classes[c], members[m], shards[v]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_fused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
