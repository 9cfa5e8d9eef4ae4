/* The summation tree, against its recursive definition written out as text: "((0+1)+2)". */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/rng.h"
#include "core/tree.h"

enum { LEAVES_MAX = 40, TEXT_BYTES = 512 };

struct text {
    char s[TEXT_BYTES];
};

static int exists(unsigned level, uint64_t index, uint64_t leaves)
{
    return (index << level) < leaves;
}

static unsigned root_level(uint64_t leaves)
{
    unsigned level = 0;
    while ((UINT64_C(1) << level) < leaves) level++;
    return level;
}

static struct text joined(const struct text *left, const struct text *right)
{
    struct text text;
    int length = snprintf(text.s, sizeof text.s, "(%.250s+%.250s)", left->s, right->s);
    assert_true(length < TEXT_BYTES && strlen(left->s) <= 250 && strlen(right->s) <= 250);
    return text;
}

/* The rule itself. */
static struct text definition(unsigned level, uint64_t index, uint64_t leaves)
{
    struct text text;
    if (level == 0) {
        snprintf(text.s, sizeof text.s, "%d", (int)index);
        return text;
    }
    struct text left = definition(level - 1, 2 * index, leaves);
    if (!exists(level - 1, 2 * index + 1, leaves)) return left;
    struct text right = definition(level - 1, 2 * index + 1, leaves);
    return joined(&left, &right);
}

static void assert_canonical(struct dpn_tree_node node, uint64_t leaves)
{
    int sibling = exists(node.level, node.index ^ 1, leaves);
    int root = node.index == 0 && node.level == root_level(leaves);
    assert_true(sibling || root);
}

/* Fewest nodes that tile leaves first..end-1, by trying all. */
static size_t fewest(uint64_t first, uint64_t end, uint64_t leaves)
{
    size_t best[LEAVES_MAX + 1];
    best[end] = 0;
    for (uint64_t at = end; at-- > first;) {
        best[at] = SIZE_MAX;
        for (unsigned level = 0; level <= root_level(leaves); level++) {
            if (at % (UINT64_C(1) << level) != 0) continue;
            uint64_t stop = at + (UINT64_C(1) << level);
            if (stop > leaves) stop = leaves;
            if (stop <= end && best[stop] + 1 < best[at]) best[at] = best[stop] + 1;
        }
    }
    return best[first];
}

/* Runs the stack programme over the nodes' texts; the stack is left in STACK, its depth returned. */
static size_t run_program(const struct dpn_tree_node *nodes, size_t n, uint64_t leaves, struct text *stack)
{
    uint8_t adds[LEAVES_MAX * 2];
    assert_true(n <= sizeof adds);
    size_t said = dpn_tree_program(nodes, n, leaves, adds), depth = 0;
    for (size_t j = 0; j < n; j++) {
        stack[depth++] = definition(nodes[j].level, nodes[j].index, leaves);
        for (unsigned k = 0; k < adds[j]; k++, depth--) {
            assert_true(depth >= 2);
            stack[depth - 2] = joined(&stack[depth - 2], &stack[depth - 1]);
        }
    }
    assert_int_equal(depth, said);
    return depth;
}

static void assert_stack_is_cover(const struct text *stack, size_t depth, uint64_t first, uint64_t count,
                                  uint64_t leaves)
{
    struct dpn_tree_node cover[DPN_TREE_MAX_SEGMENTS_PER_RUN];
    assert_int_equal(depth, dpn_tree_cover(first, count, leaves, cover));
    for (size_t i = 0; i < depth; i++)
        assert_string_equal(stack[i].s, definition(cover[i].level, cover[i].index, leaves).s);
}

static void test_examples(void **state)
{
    (void)state;
    struct dpn_tree_node n[DPN_TREE_MAX_SEGMENTS_PER_RUN];

    /* 8 shards on 3 members: 2 + 2 + 1 segments */
    assert_int_equal(dpn_tree_cover(0, 3, 8, n), 2);
    assert_true(n[0].level == 1 && n[0].index == 0 && n[1].level == 0 && n[1].index == 2);
    assert_int_equal(dpn_tree_cover(3, 3, 8, n), 2);
    assert_true(n[0].level == 0 && n[0].index == 3 && n[1].level == 1 && n[1].index == 2);
    assert_int_equal(dpn_tree_cover(6, 2, 8, n), 1);
    assert_true(n[0].level == 1 && n[0].index == 3);

    /* only children */
    assert_int_equal(dpn_tree_cover(0, 7, 7, n), 1);
    assert_true(n[0].level == 3 && n[0].index == 0);
    assert_int_equal(dpn_tree_cover(6, 1, 7, n), 1);
    assert_true(n[0].level == 1 && n[0].index == 3);
    assert_int_equal(dpn_tree_cover(4, 3, 7, n), 1);
    assert_true(n[0].level == 2 && n[0].index == 1);
    assert_int_equal(dpn_tree_cover(4, 1, 5, n), 1);
    assert_true(n[0].level == 2 && n[0].index == 1);
    assert_int_equal(dpn_tree_cover(0, 1, 1, n), 1);
    assert_true(n[0].level == 0 && n[0].index == 0);
    assert_int_equal(dpn_tree_cover(3, 0, 7, n), 0);

    uint64_t first, count;
    dpn_tree_span((struct dpn_tree_node){2, 1}, 7, &first, &count);
    assert_true(first == 4 && count == 3);
    assert_string_equal(definition(3, 0, 7).s, "(((0+1)+(2+3))+((4+5)+6))");
}

static void test_cover_of_every_run(void **state)
{
    (void)state;
    struct dpn_tree_node nodes[DPN_TREE_MAX_SEGMENTS_PER_RUN];
    for (uint64_t leaves = 1; leaves <= LEAVES_MAX; leaves++)
        for (uint64_t begin = 0; begin < leaves; begin++)
            for (uint64_t end = begin + 1; end <= leaves; end++) {
                size_t n = dpn_tree_cover(begin, end - begin, leaves, nodes);
                assert_int_equal(n, fewest(begin, end, leaves));
                uint64_t at = begin;
                for (size_t i = 0; i < n; i++) {
                    uint64_t first, count;
                    dpn_tree_span(nodes[i], leaves, &first, &count);
                    assert_int_equal(first, at);
                    assert_canonical(nodes[i], leaves);
                    at += count;
                }
                assert_int_equal(at, end);
            }
}

/* A member that accumulates leaf by leaf ends up with exactly the segments of its run. */
static void test_binary_counter(void **state)
{
    (void)state;
    struct text stack[LEAVES_MAX];
    struct dpn_tree_node leaf_nodes[LEAVES_MAX];
    uint8_t adds[LEAVES_MAX];
    for (uint64_t leaves = 1; leaves <= LEAVES_MAX; leaves++)
        for (uint64_t begin = 0; begin < leaves; begin++)
            for (uint64_t end = begin + 1; end <= leaves; end++) {
                size_t n = 0;
                for (uint64_t leaf = begin; leaf < end; leaf++) {
                    assert_int_equal(dpn_tree_cover(leaf, 1, leaves, &leaf_nodes[n]), 1);
                    n++;
                }
                size_t depth = dpn_tree_program(leaf_nodes, n, leaves, adds);
                for (uint64_t leaf = begin; leaf < end; leaf++)
                    assert_int_equal(dpn_tree_adds_after(leaf, begin, end, leaves), adds[leaf - begin]);
                assert_int_equal(run_program(leaf_nodes, n, leaves, stack), depth);
                assert_stack_is_cover(stack, depth, begin, end - begin, leaves);
            }
}

/* Any cut of the leaves into members, and any grouping of neighbours among these, gives the definition's
 * expression. */
static void test_cuts_into_members(void **state)
{
    (void)state;
    struct dpn_rng rng;
    dpn_rng_init(&rng, 7, DPN_RNG_TEST, 1, 0);
    struct text stack[LEAVES_MAX];
    for (uint64_t leaves = 1; leaves <= LEAVES_MAX; leaves++) {
        struct text want = definition(root_level(leaves), 0, leaves);
        for (unsigned members = 1; members <= 9; members++)
            for (int trial = 0; trial < 12; trial++) {
                struct dpn_tree_node nodes[LEAVES_MAX * 2], group[LEAVES_MAX * 2];
                size_t n = 0, n_group = 0;
                uint64_t at = 0, group_first = 0;
                unsigned group_members = 1 + dpn_rng_below(&rng, members);
                for (unsigned m = 0; m < members; m++) {
                    /* also members without a leaf */
                    uint64_t count =
                        m + 1 == members ? leaves - at : dpn_rng_below(&rng, (uint32_t)(leaves - at) + 1);
                    size_t k = dpn_tree_cover(at, count, leaves, nodes + n);
                    memcpy(group + n_group, nodes + n, k * sizeof *nodes);
                    n += k;
                    n_group += k;
                    at += count;
                    if ((m + 1) % group_members == 0) {
                        size_t depth = run_program(group, n_group, leaves, stack);
                        assert_stack_is_cover(stack, depth, group_first, at - group_first, leaves);
                        group_first = at;
                        n_group = 0;
                    }
                }
                assert_int_equal(run_program(nodes, n, leaves, stack), 1);
                assert_string_equal(stack[0].s, want.s);
            }
    }
}

static double recursive_sum(const double *values, unsigned level, uint64_t index, uint64_t leaves)
{
    if (level == 0) return values[index];
    double left = recursive_sum(values, level - 1, 2 * index, leaves);
    if (!exists(level - 1, 2 * index + 1, leaves)) return left;
    return left + recursive_sum(values, level - 1, 2 * index + 1, leaves);
}

static void test_sum(void **state)
{
    (void)state;
    struct dpn_rng rng;
    dpn_rng_init(&rng, 7, DPN_RNG_TEST, 2, 0);
    double values[1000];
    int orders_differ = 0;
    for (size_t i = 0; i < 1000; i++)
        values[i] = dpn_rng_normal(&rng) * ldexp(1.0, (int)dpn_rng_below(&rng, 60) - 30);
    for (uint64_t leaves = 1; leaves <= 1000; leaves++) {
        double want = recursive_sum(values, root_level(leaves), 0, leaves),
               got = dpn_tree_sum(values, leaves);
        assert_memory_equal(&want, &got, sizeof want);
        double serial = 0;
        for (uint64_t i = 0; i < leaves; i++) serial += values[i];
        orders_differ += serial != got;
    }
    assert_true(orders_differ > 100); /* the inputs can tell orders apart */
    assert_true(dpn_tree_sum(values, 0) == 0.0);
}

static void test_huge_trees(void **state)
{
    (void)state;
    struct dpn_tree_node nodes[DPN_TREE_MAX_SEGMENTS_PER_RUN];
    uint8_t adds[DPN_TREE_MAX_SEGMENTS_PER_RUN * 2];
    const uint64_t sizes[] = {UINT64_C(1) << 63, (UINT64_C(1) << 63) - 1, (UINT64_C(1) << 62) + 1};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        uint64_t leaves = sizes[s], cuts[] = {0, 1, leaves / 3, leaves - 1, leaves};
        struct dpn_tree_node all[DPN_TREE_MAX_SEGMENTS_PER_RUN * 4];
        size_t n = 0;
        for (size_t c = 0; c + 1 < sizeof cuts / sizeof cuts[0]; c++) {
            size_t k = dpn_tree_cover(cuts[c], cuts[c + 1] - cuts[c], leaves, nodes);
            uint64_t at = cuts[c], first, count;
            for (size_t i = 0; i < k; i++) {
                dpn_tree_span(nodes[i], leaves, &first, &count);
                assert_true(first == at);
                at += count;
            }
            assert_true(at == cuts[c + 1]);
            memcpy(all + n, nodes, k * sizeof *nodes);
            n += k;
        }
        assert_true(n <= sizeof adds);
        assert_int_equal(dpn_tree_program(all, n, leaves, adds), 1);
        assert_int_equal(dpn_tree_cover(0, leaves, leaves, nodes), 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_examples),
        cmocka_unit_test(test_cover_of_every_run),
        cmocka_unit_test(test_binary_counter),
        cmocka_unit_test(test_cuts_into_members),
        cmocka_unit_test(test_sum),
        cmocka_unit_test(test_huge_trees),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
