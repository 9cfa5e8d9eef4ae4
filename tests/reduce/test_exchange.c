/* Every reducer of the list: broadcast, barrier, abort. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/reduce/reduce_testing.h"

extern const struct dpn_reducer_class dpn_reducer_ref, dpn_reducer_shm;
const struct dpn_reducer_class *const dpn_reducer_classes[] = {&dpn_reducer_ref, &dpn_reducer_shm, NULL};

/* ---- broadcast and barrier ---- */

static const size_t broadcast_sizes[] = {1000, 0, 1, 100001};
enum { N_BROADCAST_SIZES = 4, BROADCAST_MAX = 100001 };

struct broadcast_case {
    float *buffers[TEST_MAX_MEMBERS];
};

static void broadcast_member(struct test_group *test, int member)
{
    const struct broadcast_case *cases = test->arg;
    float *buffer = cases->buffers[member];
    uint64_t seed = (uint64_t)member;
    for (size_t s = 0; s < N_BROADCAST_SIZES; s++)
        for (int root = 0; root < test->group.n; root++) {
            size_t elems = broadcast_sizes[s];
            for (size_t i = 0; member == root && i < elems; i++) buffer[i] = test_value(s, (uint64_t)root, i);
            enum dpn_status status = test_dawdle(test, member, &seed);
            if (status == DPN_OK)
                status = test->reducer->cls->broadcast(test->reducer, member, root, elems ? buffer : NULL,
                                                       elems);
            if (status != DPN_OK) {
                if (status != DPN_ERR_ABORTED) test_fail(test, "broadcast: %s", dpn_error_text());
                return;
            }
            for (size_t i = 0; i < elems; i++)
                if (buffer[i] != test_value(s, (uint64_t)root, i)) {
                    test_fail(test, "%s: broadcast of %zu from %d of %d, member %d: float %zu differs",
                              test->reducer->cls->name, elems, root, test->group.n, member, i);
                    return;
                }
            /* The next root may share its buffer with a member that still compares. */
            if (test->reducer->cls->barrier(test->reducer, member) != DPN_OK) return;
        }
}

static void test_broadcast(void **state)
{
    static const int members[] = {1, 2, 3, 5, 8};
    (void)state;
    for (int c = 0; dpn_reducer_classes[c]; c++)
        for (size_t m = 0; m < sizeof members / sizeof members[0]; m++)
            for (int sharing = 1; sharing <= 3; sharing++) { /* members per buffer */
                struct test_group test;
                struct broadcast_case cases;
                float *memory[TEST_MAX_MEMBERS];
                int n = members[m];
                test_group_init(&test, n);
                for (int i = 0; i < n; i++) memory[i] = test_floats(BROADCAST_MAX);
                for (int i = 0; i < n; i++) cases.buffers[i] = memory[i / sharing];
                const struct dpn_reducer_class *cls = dpn_reducer_classes[c];
                assert_int_equal(cls->open(&test.group, &test_uneven, &test.reducer), DPN_OK);
                test_run(&test, broadcast_member, &cases);
                cls->close(test.reducer);
                for (int i = 0; i < n; i++) free(memory[i]);
                if (test.failure[0]) fail_msg("%s", test.failure);
            }
}

struct barrier_case {
    _Atomic int reached;
};

static void barrier_member(struct test_group *test, int member)
{
    struct barrier_case *cases = test->arg;
    uint64_t seed = (uint64_t)member + 7;
    for (int round = 1; round <= 50; round++) {
        test_dawdle(test, member, &seed);
        atomic_fetch_add_explicit(&cases->reached, 1, memory_order_relaxed);
        if (test->reducer->cls->barrier(test->reducer, member) != DPN_OK) test_fail(test, "barrier failed");
        if (atomic_load_explicit(&cases->reached, memory_order_relaxed) < round * test->group.n)
            test_fail(test, "%s: left a barrier before all had arrived", test->reducer->cls->name);
    }
}

static void test_barrier(void **state)
{
    (void)state;
    for (int c = 0; dpn_reducer_classes[c]; c++)
        for (int n = 1; n <= 8; n++) {
            struct test_group test;
            struct barrier_case cases = {0};
            test_group_init(&test, n);
            assert_int_equal(dpn_reducer_classes[c]->open(&test.group, &test_uneven, &test.reducer), DPN_OK);
            test_run(&test, barrier_member, &cases);
            dpn_reducer_classes[c]->close(test.reducer);
            if (test.failure[0]) fail_msg("%s", test.failure);
        }
}

/* ---- abort ---- */

/* Where the last member fails while the others go on. */
enum { ABORT_BEFORE_START, ABORT_MIDWAY, ABORT_BEFORE_WAIT, ABORT_BROADCAST_ROOT, ABORT_BARRIER, N_ABORTS };

struct abort_case {
    int phase;
    float *segments[TEST_MAX_MEMBERS];
    float *out;
    _Atomic uint64_t raised_ns;
};

static enum dpn_status abort_start(struct test_group *test, int member, size_t n_buckets, int progress)
{
    const struct abort_case *cases = test->arg;
    uint64_t leaves = (uint64_t)test->group.n;
    struct dpn_tree_node nodes[DPN_TREE_MAX_SEGMENTS_PER_RUN];
    test_nodes(member, test->group.n, leaves, leaves, nodes);
    for (size_t b = 0; b < n_buckets; b++) {
        size_t first = test_uneven_buckets[b].first;
        struct dpn_segment segment = {nodes[0], cases->segments[member] + first};
        DPN_TRY(test->reducer->cls->start(test->reducer, member, b, leaves, &segment, 1, cases->out + first));
        if (progress) DPN_TRY(test->reducer->cls->progress(test->reducer, member));
    }
    return DPN_OK;
}

/* The steps of a member that does not fail; the failing one gets as far as PHASE says. */
static enum dpn_status abort_steps(struct test_group *test, int member, int failing)
{
    const struct abort_case *cases = test->arg;
    const struct dpn_reducer_class *cls = test->reducer->cls;
    size_t n_buckets = TEST_N_UNEVEN;
    if (cases->phase == ABORT_BARRIER && failing) return DPN_OK;
    if (cases->phase == ABORT_BARRIER) return cls->barrier(test->reducer, member);
    if (cases->phase == ABORT_BROADCAST_ROOT && failing) return DPN_OK;
    if (cases->phase == ABORT_BROADCAST_ROOT)
        return cls->broadcast(test->reducer, member, test->group.n - 1, cases->segments[member], 1000);
    if (failing && cases->phase == ABORT_BEFORE_START) return DPN_OK;
    if (failing && cases->phase == ABORT_MIDWAY) return abort_start(test, member, n_buckets / 2, 1);
    /* Without progress the failing member keeps its slices to itself, so that the others cannot finish. */
    DPN_TRY(abort_start(test, member, n_buckets, !failing));
    return failing ? DPN_OK : cls->wait(test->reducer, member);
}

static void abort_member(struct test_group *test, int member)
{
    struct abort_case *cases = test->arg;
    const struct dpn_reducer_class *cls = test->reducer->cls;
    int failing = member == test->group.n - 1;
    enum dpn_status status = abort_steps(test, member, failing);
    if (failing) {
        usleep(20000); /* the others are waiting by now; if not, the test is only weaker */
        atomic_store(&cases->raised_ns, dpn_now_ns());
        dpn_abort_raise(&test->abort, dpn_fail(DPN_ERR_NUMERIC, "planted"));
    } else {
        if (status != DPN_ERR_ABORTED) test_fail(test, "phase %d: status %d", cases->phase, status);
        if (dpn_now_ns() - atomic_load(&cases->raised_ns) > 1000000000u)
            test_fail(test, "took over a second");
    }
    /* From now on nothing works, and nothing waits. */
    struct dpn_segment segment = {{0, 0}, cases->segments[member]};
    if (cls->start(test->reducer, member, 0, 1, &segment, 1, NULL) != DPN_ERR_ABORTED ||
        cls->progress(test->reducer, member) != DPN_ERR_ABORTED ||
        cls->wait(test->reducer, member) != DPN_ERR_ABORTED ||
        cls->broadcast(test->reducer, member, 0, cases->segments[member], 1) != DPN_ERR_ABORTED ||
        cls->barrier(test->reducer, member) != DPN_ERR_ABORTED)
        test_fail(test, "phase %d: a call after the abort did not say so", cases->phase);
}

static void test_abort(void **state)
{
    (void)state;
    for (int c = 0; dpn_reducer_classes[c]; c++)
        for (int phase = 0; phase < N_ABORTS; phase++)
            for (int n = 2; n <= 4; n++) {
                struct test_group test;
                struct abort_case cases = {.phase = phase};
                test_group_init(&test, n);
                for (int i = 0; i < n; i++) cases.segments[i] = test_floats(TEST_UNEVEN_ELEMS);
                cases.out = test_floats(TEST_UNEVEN_ELEMS);
                assert_int_equal(dpn_reducer_classes[c]->open(&test.group, &test_uneven, &test.reducer),
                                 DPN_OK);
                test_run(&test, abort_member, &cases);
                dpn_reducer_classes[c]->close(test.reducer);
                free(cases.out);
                for (int i = 0; i < n; i++) free(cases.segments[i]);
                if (test.failure[0]) fail_msg("%s", test.failure);
                assert_int_equal(dpn_abort_cause(&test.abort), DPN_ERR_NUMERIC);
                assert_string_equal(dpn_error_text(), "planted");
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_broadcast),
        cmocka_unit_test(test_barrier),
        cmocka_unit_test(test_abort),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
