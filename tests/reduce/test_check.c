/* The checking reducer lets good reducers through with their bits, and catches broken ones and callers. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/reduce/reduce_testing.h"

extern const struct dpn_reducer_class dpn_reducer_ref, dpn_reducer_shm;

static const struct dpn_bucket buckets[] = {{0, 1024}, {1024, 6144}, {7168, 2048}};
static const struct dpn_bucket_plan plan = {3, buckets};
enum { ELEMS = 9216, N_BUCKETS = 3 };

/* ---- reducers with one fault each ----
 * Member 0 adds everything, slowly, in tree order unless that is the fault. */

enum fault {
    FAULT_NONE,
    FAULT_ORDER,     /* adds from left to right */
    FAULT_FORGETS,   /* leaves the last segment out */
    FAULT_EARLY,     /* start writes the out, from what has arrived */
    FAULT_LATE,      /* wait returns before the sum is made */
    FAULT_ONE_BIT,   /* one float, last bit */
    FAULT_WRONG_OUT, /* the last member's out is never written */
    FAULT_BROADCAST, /* one float short */
};

struct faulty_slot {
    _Alignas(64) size_t n;
    uint64_t leaves;
    struct dpn_segment segments[TEST_MAX_SEGMENTS];
    float *out;
};
struct faulty {
    struct dpn_reducer base;
    struct dpn_barrier barrier;
    pthread_mutex_t lock; /* keeps the early writes to a shared out from being a data race as well */
    enum fault fault;
    const struct dpn_reduce_group *group;
    struct faulty_slot slots[N_BUCKETS][TEST_MAX_MEMBERS];
    float *buffers[TEST_MAX_MEMBERS];
};

static enum dpn_status faulty_start(struct dpn_reducer *reducer, int member, size_t bucket, uint64_t leaves,
                                    const struct dpn_segment *segments, size_t n_segments, float *out)
{
    struct faulty *faulty = (struct faulty *)reducer;
    struct faulty_slot *slot = &faulty->slots[bucket][member];
    slot->n = n_segments;
    slot->leaves = leaves;
    slot->out = out;
    memcpy(slot->segments, segments, n_segments * sizeof *segments);
    if (faulty->fault == FAULT_EARLY && out && n_segments > 0) {
        pthread_mutex_lock(&faulty->lock);
        memcpy(out, segments[0].data, buckets[bucket].elems * sizeof *out);
        pthread_mutex_unlock(&faulty->lock);
    }
    return DPN_OK;
}

static enum dpn_status faulty_progress(struct dpn_reducer *reducer, int member)
{
    (void)reducer, (void)member;
    return DPN_OK;
}

static void faulty_sum(const struct faulty *faulty, size_t bucket)
{
    struct dpn_segment segments[TEST_MAX_MEMBERS * TEST_MAX_SEGMENTS];
    struct dpn_tree_node nodes[TEST_MAX_MEMBERS * TEST_MAX_SEGMENTS] = {{0, 0}};
    uint8_t adds[TEST_MAX_MEMBERS * TEST_MAX_SEGMENTS];
    const struct faulty_slot *slots = faulty->slots[bucket];
    size_t n = 0;
    for (int m = 0; m < faulty->group->n; m++)
        for (size_t i = 0; i < slots[m].n; i++) segments[n++] = slots[m].segments[i];
    for (size_t i = 0; i < n; i++) nodes[i] = segments[i].node;
    dpn_tree_program(nodes, n, slots[0].leaves, adds);
    if (faulty->fault == FAULT_FORGETS && n > 1) adds[--n - 1]++;
    for (size_t i = 0; i < buckets[bucket].elems; i++) {
        float stack[TEST_MAX_MEMBERS * TEST_MAX_SEGMENTS];
        size_t depth = 0;
        for (size_t j = 0; j < n; j++) {
            stack[depth++] = segments[j].data[i];
            unsigned times = faulty->fault == FAULT_ORDER ? j > 0 : adds[j];
            for (; times > 0 && depth > 1; times--, depth--) stack[depth - 2] += stack[depth - 1];
        }
        if (faulty->fault == FAULT_ONE_BIT && i == buckets[bucket].elems - 1) {
            uint32_t bits;
            memcpy(&bits, &stack[0], sizeof bits);
            bits ^= 1;
            memcpy(&stack[0], &bits, sizeof bits);
        }
        for (int m = 0; m < faulty->group->n - (faulty->fault == FAULT_WRONG_OUT); m++)
            if (slots[m].out) slots[m].out[i] = stack[0];
    }
}

static enum dpn_status faulty_wait(struct dpn_reducer *reducer, int member)
{
    struct faulty *faulty = (struct faulty *)reducer;
    DPN_TRY(dpn_barrier_wait(&faulty->barrier, faulty->group->abort));
    if (faulty->fault == FAULT_EARLY || faulty->fault == FAULT_LATE) return DPN_OK;
    for (size_t b = 0; member == 0 && b < N_BUCKETS; b++) faulty_sum(faulty, b);
    return dpn_barrier_wait(&faulty->barrier, faulty->group->abort);
}

static enum dpn_status faulty_broadcast(struct dpn_reducer *reducer, int member, int root, float *buffer,
                                        size_t elems)
{
    struct faulty *faulty = (struct faulty *)reducer;
    faulty->buffers[member] = buffer;
    DPN_TRY(dpn_barrier_wait(&faulty->barrier, faulty->group->abort));
    size_t copied = elems - (faulty->fault == FAULT_BROADCAST && elems > 0);
    if (buffer != faulty->buffers[root]) memcpy(buffer, faulty->buffers[root], copied * sizeof *buffer);
    return dpn_barrier_wait(&faulty->barrier, faulty->group->abort);
}

static enum dpn_status faulty_barrier(struct dpn_reducer *reducer, int member)
{
    struct faulty *faulty = (struct faulty *)reducer;
    (void)member;
    return dpn_barrier_wait(&faulty->barrier, faulty->group->abort);
}

static void faulty_stats(const struct dpn_reducer *reducer, int member, struct dpn_reduce_stats *stats)
{
    (void)reducer, (void)member;
    memset(stats, 0, sizeof *stats);
}

static void faulty_close(struct dpn_reducer *reducer)
{
    free(reducer);
}

#define FAULTY_CLASS(name_, flags_)                                                        \
    {                                                                                      \
        .name = name_, .summary = "for this test", .flags = flags_, .start = faulty_start, \
        .progress = faulty_progress, .wait = faulty_wait, .broadcast = faulty_broadcast,   \
        .barrier = faulty_barrier, .stats = faulty_stats, .close = faulty_close,           \
    }
static const struct dpn_reducer_class class_exact = FAULTY_CLASS("faulty",
                                                                 DPN_REDUCE_EXACT_TREE | DPN_REDUCE_HOST);
static const struct dpn_reducer_class class_inexact = FAULTY_CLASS("inexact", DPN_REDUCE_HOST);

const struct dpn_reducer_class *const dpn_reducer_classes[] = {&dpn_reducer_ref, &dpn_reducer_shm,
                                                               &class_exact, NULL};

static struct dpn_reducer *faulty_open(const struct dpn_reduce_group *group,
                                       const struct dpn_reducer_class *cls, enum fault fault)
{
    struct faulty *faulty;
    if (dpn_calloc(&faulty, 1, sizeof *faulty, "a faulty reducer") != DPN_OK) abort();
    faulty->base.cls = cls;
    faulty->fault = fault;
    faulty->group = group;
    pthread_mutex_init(&faulty->lock, NULL);
    faulty->barrier.n = (uint32_t)group->n;
    return &faulty->base;
}

/* ---- a run of some steps under the checking reducer ---- */

/* Callers with one fault each, made by the last member in the last step. */
enum misuse {
    MISUSE_NONE,
    MISUSE_BUCKET_SKIPPED,
    MISUSE_BUCKET_TWICE,
    MISUSE_WAIT_EARLY,
    MISUSE_LEAVES_DIFFER,
    MISUSE_NO_LEAVES,
    MISUSE_SEGMENT_MISSING,
    MISUSE_NOT_CANONICAL,
    MISUSE_NO_NODE,
    MISUSE_SEGMENTS_SWAPPED,
    MISUSE_TOO_MANY_SEGMENTS,
    MISUSE_UNALIGNED_SEGMENT,
    MISUSE_UNALIGNED_OUT,
    MISUSE_NULL_SEGMENT,
    MISUSE_SEGMENT_TWICE,
    MISUSE_OVERLAP,
    MISUSE_WRITES_AFTER_START,
    MISUSE_BROADCAST_ROOT,
    MISUSE_BROADCAST_SIZE,
    MISUSE_BROADCAST_UNALIGNED,
    N_MISUSES
};

enum { MEMBERS = 3, SHARDS = 8, STEPS = 4, BROADCAST_ELEMS = 1024 };

struct check_case {
    enum misuse misuse;
    float *segments[TEST_MAX_MEMBERS][TEST_MAX_SEGMENTS];
    float *out[TEST_MAX_MEMBERS];
    enum dpn_status status[TEST_MAX_MEMBERS];
    char text[TEST_MAX_MEMBERS][1024];
};

/* Steps differ in leaves and in where the result goes: shared out, private, own segment, root only. */
static uint64_t case_leaves(int step)
{
    return step == 1 ? 2 : SHARDS - (uint64_t)step % 2;
}
static float *case_out(const struct check_case *cases, int member, int step, size_t n_nodes)
{
    if (step == 0) return cases->out[0];
    if (step == 2 && n_nodes > 0) return cases->segments[member][0];
    if (step == 3 && member != 1) return NULL;
    return cases->out[member];
}

static enum dpn_status case_start(struct test_group *test, int member, size_t bucket, uint64_t leaves,
                                  struct dpn_segment *segments, size_t n, float *out, enum misuse misuse)
{
    const struct dpn_reducer_class *cls = test->reducer->cls;
    struct dpn_segment many[DPN_TREE_MAX_SEGMENTS_PER_RUN + 1] = {{{0, 0}, NULL}};
    switch (misuse) {
    case MISUSE_BUCKET_SKIPPED: bucket++; break;
    case MISUSE_LEAVES_DIFFER: leaves = SHARDS + 1; break; /* the same nodes exist there */
    case MISUSE_NO_LEAVES: leaves = 0; break;
    case MISUSE_SEGMENT_MISSING: n--; break;
    case MISUSE_NOT_CANONICAL: segments[0].node.level--, segments[0].node.index *= 2; break;
    case MISUSE_NO_NODE: segments[0].node.index = leaves; break;
    case MISUSE_UNALIGNED_SEGMENT: segments[0].data++; break;
    case MISUSE_UNALIGNED_OUT: out++; break;
    case MISUSE_NULL_SEGMENT: segments[0].data = NULL; break;
    case MISUSE_OVERLAP: out = segments[0].data + 16; break;
    case MISUSE_TOO_MANY_SEGMENTS:
        return cls->start(test->reducer, member, bucket, leaves, many, DPN_TREE_MAX_SEGMENTS_PER_RUN + 1,
                          out);
    default: break;
    }
    return cls->start(test->reducer, member, bucket, leaves, segments, n, out);
}

/* Misuse that needs two segments is made by member 1: its run, of 8 shards on 3 members, has two. */
static int misuse_member(enum misuse misuse)
{
    return misuse == MISUSE_SEGMENTS_SWAPPED || misuse == MISUSE_SEGMENT_TWICE ? 1 : MEMBERS - 1;
}

static enum dpn_status case_bucket(struct test_group *test, int member, int step, size_t b,
                                   enum misuse misuse)
{
    struct check_case *cases = test->arg;
    uint64_t leaves = case_leaves(step);
    struct dpn_tree_node nodes[DPN_TREE_MAX_SEGMENTS_PER_RUN];
    struct dpn_segment segments[TEST_MAX_SEGMENTS];
    size_t n = test_nodes(member, test->group.n, SHARDS, leaves, nodes);
    float *out = case_out(cases, member, step, n);
    for (size_t i = 0; i < n; i++) {
        segments[i] = (struct dpn_segment){nodes[i], cases->segments[member][i] + buckets[b].first};
        test_fill((uint64_t)step, nodes[i], leaves, buckets[b].first, buckets[b].elems, segments[i].data);
    }
    if (misuse == MISUSE_SEGMENTS_SWAPPED) {
        struct dpn_segment first = segments[0];
        segments[0] = segments[1];
        segments[1] = first;
    }
    if (misuse == MISUSE_SEGMENT_TWICE) segments[1].data = segments[0].data;
    DPN_TRY(case_start(test, member, b, leaves, segments, n, out ? out + buckets[b].first : NULL, misuse));
    for (size_t i = 0; misuse == MISUSE_NONE && i < n; i++)
        if (!isnan(segments[i].data[buckets[b].elems / 2]))
            test_fail(test, "step %d, member %d: a segment was not poisoned", step, member);
    if (misuse == MISUSE_BUCKET_TWICE)
        DPN_TRY(case_start(test, member, b, leaves, segments, n, NULL, MISUSE_NONE));
    if (misuse == MISUSE_WRITES_AFTER_START) segments[0].data[buckets[b].elems - 1] = 1;
    return test->reducer->cls->progress(test->reducer, member);
}

static enum dpn_status case_broadcast(struct test_group *test, int member, enum misuse misuse)
{
    struct check_case *cases = test->arg;
    float *buffer = cases->segments[member][0];
    size_t elems = BROADCAST_ELEMS;
    int root = 1;
    if (misuse == MISUSE_BROADCAST_ROOT) root = 0;
    if (misuse == MISUSE_BROADCAST_SIZE) elems--;
    if (misuse == MISUSE_BROADCAST_UNALIGNED) buffer++;
    for (size_t i = 0; i < BROADCAST_ELEMS && member == 1; i++) buffer[i] = (float)i;
    DPN_TRY(test->reducer->cls->broadcast(test->reducer, member, root, buffer, elems));
    for (size_t i = 0; i < BROADCAST_ELEMS; i++)
        if (buffer[i] != (float)i) test_fail(test, "member %d got a wrong broadcast", member);
    return test->reducer->cls->barrier(test->reducer, member);
}

static enum dpn_status case_step(struct test_group *test, int member, int step, enum misuse misuse)
{
    struct check_case *cases = test->arg;
    uint64_t leaves = case_leaves(step);
    struct dpn_tree_node nodes[DPN_TREE_MAX_SEGMENTS_PER_RUN];
    size_t n = test_nodes(member, test->group.n, SHARDS, leaves, nodes);
    DPN_TRY(case_broadcast(test, member, misuse));
    for (size_t b = 0; b < N_BUCKETS; b++) {
        if (misuse == MISUSE_WAIT_EARLY && b == N_BUCKETS - 1) break;
        DPN_TRY(case_bucket(test, member, step, b, b == N_BUCKETS - 1 ? misuse : MISUSE_NONE));
    }
    DPN_TRY(test->reducer->cls->wait(test->reducer, member));
    const float *out = case_out(cases, member, step, n);
    for (size_t i = 0; i < n; i++)
        if (isnan(cases->segments[member][i][ELEMS / 2]))
            test_fail(test, "step %d, member %d: a segment is poisoned after wait", step, member);
    for (size_t i = 0; out && i < ELEMS; i++) {
        float right = test_sum((uint64_t)step, 0, leaves, i);
        if (memcmp(&out[i], &right, sizeof right) != 0) {
            test_fail(test, "step %d, member %d, float %zu: %.9g, not %.9g", step, member, i, (double)out[i],
                      (double)right);
            break;
        }
    }
    return DPN_OK;
}

static void case_member(struct test_group *test, int member)
{
    struct check_case *cases = test->arg;
    enum dpn_status status = DPN_OK;
    for (int step = 0; step < STEPS && status == DPN_OK; step++) {
        int misused = step == STEPS - 2 && member == misuse_member(cases->misuse);
        status = case_step(test, member, step, misused ? cases->misuse : MISUSE_NONE);
    }
    cases->status[member] = status;
    if (status != DPN_OK) snprintf(cases->text[member], sizeof cases->text[member], "%s", dpn_error_text());
}

/* Runs the steps on a reducer of class CLS (with FAULT) under check. Returns the group's cause. */
static enum dpn_status case_run(const struct dpn_reducer_class *cls, enum fault fault, enum misuse misuse,
                                int n, struct check_case *cases)
{
    struct test_group test;
    struct dpn_reducer *inner;
    memset(cases, 0, sizeof *cases);
    test_group_init(&test, n);
    cases->misuse = misuse;
    for (int i = 0; i < n; i++) {
        cases->out[i] = test_floats(ELEMS + 64);
        for (int j = 0; j < TEST_MAX_SEGMENTS; j++) cases->segments[i][j] = test_floats(ELEMS + 64);
    }
    if (cls->open) assert_int_equal(cls->open(&test.group, &plan, &inner), DPN_OK);
    else inner = faulty_open(&test.group, cls, fault);
    assert_int_equal(dpn_reduce_check_open(&test.group, &plan, inner, &test.reducer), DPN_OK);
    assert_int_equal(test.reducer->cls->flags, cls->flags);
    test_run(&test, case_member, cases);
    test.reducer->cls->close(test.reducer);
    for (int i = 0; i < n; i++) {
        free(cases->out[i]);
        for (int j = 0; j < TEST_MAX_SEGMENTS; j++) free(cases->segments[i][j]);
    }
    if (test.failure[0]) fail_msg("%s", test.failure);
    return dpn_abort_cause(&test.abort);
}

static void test_good_reducers_pass(void **state)
{
    struct check_case cases;
    (void)state;
    for (int c = 0; dpn_reducer_classes[c]; c++)
        for (int n = 2; n <= 8; n++) {
            if (case_run(dpn_reducer_classes[c], FAULT_NONE, MISUSE_NONE, n, &cases) != DPN_OK)
                fail_msg("%s", dpn_error_text());
            for (int m = 0; m < n; m++) assert_int_equal(cases.status[m], DPN_OK);
        }
}

static void test_broken_reducers_are_caught(void **state)
{
    static const struct {
        enum fault fault;
        const char *text;
    } faults[] = {
        {FAULT_ORDER, "should be"},     {FAULT_FORGETS, "should be"}, {FAULT_EARLY, "should be"},
        {FAULT_LATE, "never written"},  {FAULT_ONE_BIT, "should be"}, {FAULT_WRONG_OUT, "never written"},
        {FAULT_BROADCAST, "broadcast"},
    };
    struct check_case cases;
    (void)state;
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        enum dpn_status cause = case_run(&class_exact, faults[i].fault, MISUSE_NONE, MEMBERS, &cases);
        if (cause != DPN_ERR_CONTRACT || !strstr(dpn_error_text(), faults[i].text))
            fail_msg("fault %d: status %d, %s", (int)faults[i].fault, cause, dpn_error_text());
        for (int m = 0; m < MEMBERS; m++) assert_int_not_equal(cases.status[m], DPN_OK);
    }
}

static void test_broken_callers_are_caught(void **state)
{
    static const char *const texts[N_MISUSES] = {
        [MISUSE_BUCKET_SKIPPED] = "bucket 3 of 3 started, 2 was next",
        [MISUSE_BUCKET_TWICE] = "bucket 2 of 3 started, 3 was next",
        [MISUSE_WAIT_EARLY] = "wait with 2 of 3 buckets started",
        [MISUSE_LEAVES_DIFFER] = "9 leaves for member 2, 8 for member 0",
        [MISUSE_NO_LEAVES] = "0 leaves",
        [MISUSE_SEGMENT_MISSING] = "continue at leaf 6 of 8",
        [MISUSE_NOT_CANONICAL] = "continue at leaf 7 of 8",
        [MISUSE_NO_NODE] = "not the name of a node",
        [MISUSE_SEGMENTS_SWAPPED] = "segment 1 begins at leaf",
        [MISUSE_TOO_MANY_SEGMENTS] = "129 segments",
        [MISUSE_UNALIGNED_SEGMENT] = "segment 0 is NULL or not 64-byte aligned",
        [MISUSE_UNALIGNED_OUT] = "out is not 64-byte aligned",
        [MISUSE_NULL_SEGMENT] = "segment 0 is NULL",
        [MISUSE_SEGMENT_TWICE] = "is a segment already",
        [MISUSE_OVERLAP] = "buffers overlap",
        [MISUSE_WRITES_AFTER_START] = "was written between start and wait",
        [MISUSE_BROADCAST_ROOT] = "1024 from 1",
        [MISUSE_BROADCAST_SIZE] = "broadcast of 1023 floats",
        [MISUSE_BROADCAST_UNALIGNED] = "broadcast buffer is NULL or not",
    };
    struct check_case cases;
    (void)state;
    for (int misuse = MISUSE_NONE + 1; misuse < N_MISUSES; misuse++) {
        enum dpn_status cause = case_run(&dpn_reducer_shm, FAULT_NONE, (enum misuse)misuse, MEMBERS, &cases);
        if (cause != DPN_ERR_CONTRACT || !strstr(dpn_error_text(), texts[misuse]))
            fail_msg("misuse %d: status %d, %s", misuse, cause, dpn_error_text());
        for (int m = 0; m < MEMBERS; m++) {
            int named = cases.status[m] == DPN_ERR_CONTRACT || cases.status[m] == DPN_ERR_ABORTED;
            if (!named) fail_msg("misuse %d: member %d ended with status %d", misuse, m, cases.status[m]);
        }
    }
}

/* A node of an only-child chain has one name: over 5 leaves, leaf 4 is (2, 1), not (0, 4). */
static void test_names_must_be_canonical(void **state)
{
    static const struct dpn_tree_node names[] = {{0, 4}, {1, 2}, {2, 1}};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct test_group test;
        struct dpn_reducer *inner;
        test_group_init(&test, 1);
        assert_int_equal(dpn_reducer_ref.open(&test.group, &plan, &inner), DPN_OK);
        assert_int_equal(dpn_reduce_check_open(&test.group, &plan, inner, &test.reducer), DPN_OK);
        float *left = test_floats(ELEMS), *right = test_floats(ELEMS);
        struct dpn_segment segments[] = {{{2, 0}, left}, {names[i], right}};
        enum dpn_status status = test.reducer->cls->start(test.reducer, 0, 0, 5, segments, 2, left);
        assert_int_equal(status, i == 2 ? DPN_OK : DPN_ERR_CONTRACT);
        test.reducer->cls->close(test.reducer);
        free(right);
        free(left);
    }
}

/* A reducer that does not promise the tree's order is held to rounding, no more and no less. */
static void inexact_member(struct test_group *test, int member)
{
    struct check_case *cases = test->arg;
    cases->status[member] = DPN_OK;
    for (size_t b = 0; b < N_BUCKETS && cases->status[member] == DPN_OK; b++)
        cases->status[member] = case_bucket(test, member, 0, b, MISUSE_NONE);
    if (cases->status[member] == DPN_OK)
        cases->status[member] = test->reducer->cls->wait(test->reducer, member);
}

static enum dpn_status inexact_run(enum fault fault)
{
    struct test_group test;
    struct check_case cases;
    memset(&cases, 0, sizeof cases);
    test_group_init(&test, MEMBERS);
    for (int i = 0; i < MEMBERS; i++) {
        cases.out[i] = test_floats(ELEMS);
        for (int j = 0; j < TEST_MAX_SEGMENTS; j++) cases.segments[i][j] = test_floats(ELEMS);
    }
    struct dpn_reducer *inner = faulty_open(&test.group, &class_inexact, fault);
    assert_int_equal(dpn_reduce_check_open(&test.group, &plan, inner, &test.reducer), DPN_OK);
    test_run(&test, inexact_member, &cases);
    test.reducer->cls->close(test.reducer);
    for (int i = 0; i < MEMBERS; i++) {
        free(cases.out[i]);
        for (int j = 0; j < TEST_MAX_SEGMENTS; j++) free(cases.segments[i][j]);
    }
    return dpn_abort_cause(&test.abort);
}

static void test_inexact_is_held_to_rounding(void **state)
{
    (void)state;
    assert_int_equal(inexact_run(FAULT_ORDER), DPN_OK);
    assert_int_equal(inexact_run(FAULT_FORGETS), DPN_ERR_CONTRACT);
    assert_int_equal(inexact_run(FAULT_LATE), DPN_ERR_CONTRACT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good_reducers_pass),          cmocka_unit_test(test_broken_reducers_are_caught),
        cmocka_unit_test(test_broken_callers_are_caught),   cmocka_unit_test(test_names_must_be_canonical),
        cmocka_unit_test(test_inexact_is_held_to_rounding),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
