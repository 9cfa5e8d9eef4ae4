/* Shared by the reducer suites: members as threads, inputs that tell orders of addition apart, buffers.
 *
 * Workers must not use cmocka's asserts (they jump); they leave the first failure in struct test_group.
 */
#ifndef DPN_TESTS_REDUCE_TESTING_H
#define DPN_TESTS_REDUCE_TESTING_H

#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/memory.h"
#include "core/status.h"
#include "core/team.h"
#include "core/tree.h"
#include "core/wait.h"
#include "kernels/kernels.h"
#include "reduce/reduce.h"

enum { TEST_MAX_MEMBERS = 16, TEST_MAX_LEAVES = 64, TEST_MAX_SEGMENTS = 8 };

/* Buckets of sizes that divide badly. */
static const struct dpn_bucket test_uneven_buckets[] = {{0, 1024},     {1024, 3072},  {4096, 5120},
                                                        {9216, 1024},  {10240, 9216}, {19456, 4096},
                                                        {23552, 2048}, {25600, 11264}};
enum { TEST_N_UNEVEN = 8, TEST_UNEVEN_ELEMS = 36864 };
static const struct dpn_bucket_plan test_uneven = {TEST_N_UNEVEN, test_uneven_buckets};

struct test_group {
    struct dpn_abort abort; /* first: has a cache line's alignment */
    struct dpn_reduce_group group;
    int node[TEST_MAX_MEMBERS];
    struct dpn_reducer *reducer;
    void *arg;
    void (*body)(struct test_group *test, int member);
    pthread_mutex_t lock;
    char failure[512]; /* "" if none */
};

static inline void test_fail(struct test_group *test, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static inline void test_fail(struct test_group *test, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    pthread_mutex_lock(&test->lock);
    if (test->failure[0] == '\0') vsnprintf(test->failure, sizeof test->failure, format, args);
    pthread_mutex_unlock(&test->lock);
    va_end(args);
    dpn_abort_raise(&test->abort, DPN_ERR_CONTRACT);
}

static inline void test_group_init(struct test_group *test, int n)
{
    memset(test, 0, sizeof *test);
    int oversubscribed = n > sysconf(_SC_NPROCESSORS_ONLN);
    test->group = (struct dpn_reduce_group){.n = n,
                                            .node = test->node,
                                            .oversubscribed = oversubscribed,
                                            .abort = &test->abort,
                                            .kernels = &dpn_kernels_ref};
    pthread_mutex_init(&test->lock, NULL);
    dpn_wait_set_oversubscribed(oversubscribed);
}

struct test_member {
    struct test_group *test;
    int member;
};

static inline void *test_member_main(void *arg)
{
    struct test_member *member = arg;
    member->test->body(member->test, member->member);
    return NULL;
}

/* Runs BODY on a thread for each member. */
static inline void test_run(struct test_group *test, void (*body)(struct test_group *test, int member),
                            void *arg)
{
    pthread_t threads[TEST_MAX_MEMBERS];
    struct test_member members[TEST_MAX_MEMBERS];
    test->body = body;
    test->arg = arg;
    for (int i = 0; i < test->group.n; i++) {
        members[i] = (struct test_member){test, i};
        if (pthread_create(&threads[i], NULL, test_member_main, &members[i]) != 0) abort();
    }
    for (int i = 0; i < test->group.n; i++) pthread_join(threads[i], NULL);
}

static inline uint64_t test_hash(uint64_t x) /* splitmix64's output function */
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* Element ELEM of leaf LEAF: any sign and mantissa, exponents over a range as wide as a mantissa. */
static inline float test_value(uint64_t seed, uint64_t leaf, size_t elem)
{
    uint64_t bits = test_hash(seed * 1000003 + leaf * 8191 + (uint64_t)elem * 131);
    uint32_t exponent = 127 - 12 + (uint32_t)((bits >> 40) % 24);
    uint32_t pattern = (uint32_t)(bits & 0x807fffff) | exponent << 23;
    float value;
    memcpy(&value, &pattern, sizeof value);
    return value;
}

/* Sum of leaves FIRST .. FIRST+COUNT-1 of an aligned node, from the leaves upwards: written without the
 * reducers' and core/tree.c's ways of walking the tree. */
static inline float test_sum(uint64_t seed, uint64_t first, uint64_t count, size_t elem)
{
    float level[TEST_MAX_LEAVES];
    for (uint64_t i = 0; i < count; i++) level[i] = test_value(seed, first + i, elem);
    for (; count > 1; count = (count + 1) / 2)
        for (uint64_t i = 0; i < count; i += 2)
            level[i / 2] = i + 1 < count ? level[i] + level[i + 1] : level[i];
    return level[0];
}

/* What MEMBER of N holds of a step with LEAVES present leaves of SHARDS. */
static inline size_t test_nodes(int member, int n, uint64_t shards, uint64_t leaves,
                                struct dpn_tree_node *nodes)
{
    size_t first, count;
    dpn_split((size_t)shards, (size_t)n, (size_t)member, &first, &count);
    if (first >= leaves) return 0;
    if (first + count > leaves) count = (size_t)leaves - first;
    return dpn_tree_cover(first, count, leaves, nodes);
}

/* Fills DATA[0..elems-1] with the partial sum NODE of the step, elements from FIRST_ELEM on. */
static inline void test_fill(uint64_t seed, struct dpn_tree_node node, uint64_t leaves, size_t first_elem,
                             size_t elems, float *data)
{
    uint64_t first, count;
    dpn_tree_span(node, leaves, &first, &count);
    for (size_t i = 0; i < elems; i++) data[i] = test_sum(seed, first, count, first_elem + i);
}

/* Seeded delays and calls of progress: a different interleaving every time, no different result. */
static inline enum dpn_status test_dawdle(struct test_group *test, int member, uint64_t *seed)
{
    uint64_t draw = *seed = test_hash(*seed);
    for (uint64_t i = 0; i < draw % 3; i++) DPN_TRY(test->reducer->cls->progress(test->reducer, member));
    if (draw >> 8 & 1) sched_yield();
    uint64_t until_ns = dpn_now_ns() + (draw >> 16) % 8000;
    while ((draw >> 9 & 3) == 0 && dpn_now_ns() < until_ns) continue;
    return DPN_OK;
}

static inline float *test_floats(size_t elems)
{
    float *data;
    if (dpn_calloc(&data, elems, sizeof *data, "a test's buffer") != DPN_OK) abort();
    return data;
}

#endif
