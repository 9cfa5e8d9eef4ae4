/* The summation tree: see tree.h. */
#include "core/tree.h"

#include <assert.h>

/* Leaves are bounded so that the root's level fits DPN_TREE_MAX_LEVEL. */
static void tree_check(uint64_t leaves)
{
    assert(leaves >= 1 && leaves <= UINT64_C(1) << DPN_TREE_MAX_LEVEL);
    (void)leaves;
}

/* Whether a node (level, index) holds a leaf; written without index << level, which could overflow. */
static int tree_exists(uint32_t level, uint64_t index, uint64_t leaves)
{
    return index <= (leaves - 1) >> level;
}

static int tree_is_root(struct dpn_tree_node node, uint64_t leaves)
{
    return node.index == 0 && (leaves - 1) >> node.level == 0;
}

/* Climbs the only-child chain to the level where there is a sibling to be added to. Only a left child can
 * lack its sibling. */
static struct dpn_tree_node tree_canonical(struct dpn_tree_node node, uint64_t leaves)
{
    while (node.index % 2 == 0 && !tree_is_root(node, leaves) &&
           !tree_exists(node.level, node.index + 1, leaves)) {
        node.level++;
        node.index /= 2;
    }
    return node;
}

static struct dpn_tree_node tree_parent(struct dpn_tree_node node, uint64_t leaves)
{
    struct dpn_tree_node parent = {node.level + 1, node.index / 2};
    return tree_canonical(parent, leaves);
}

void dpn_tree_span(struct dpn_tree_node node, uint64_t leaves, uint64_t *first, uint64_t *count)
{
    tree_check(leaves);
    assert(node.level <= DPN_TREE_MAX_LEVEL && tree_exists(node.level, node.index, leaves));
    *first = node.index << node.level;
    uint64_t width = UINT64_C(1) << node.level, rest = leaves - *first;
    *count = width < rest ? width : rest;
}

size_t dpn_tree_cover(uint64_t first, uint64_t count, uint64_t leaves, struct dpn_tree_node *nodes)
{
    size_t n = 0;
    if (count == 0) return 0;
    tree_check(leaves);
    assert(count <= leaves && first <= leaves - count);
    uint64_t end = first + count;
    while (first < end) {
        struct dpn_tree_node node = {0, first};
        uint64_t start, width = 1;
        /* The largest node that starts here and ends within the run. Where the run ends with the last leaf
         * this also climbs only-child chains, so the name that it stops at is the canonical one. */
        while (node.index % 2 == 0 && !tree_is_root(node, leaves)) {
            struct dpn_tree_node parent = {node.level + 1, node.index / 2};
            uint64_t parent_width;
            dpn_tree_span(parent, leaves, &start, &parent_width);
            if (parent_width > end - first) break;
            node = parent;
            width = parent_width;
        }
        assert(n < DPN_TREE_MAX_SEGMENTS_PER_RUN);
        nodes[n++] = node;
        first += width;
    }
    return n;
}

size_t dpn_tree_program(const struct dpn_tree_node *nodes, size_t n, uint64_t leaves, uint8_t *adds)
{
    struct dpn_tree_node stack[DPN_TREE_MAX_SEGMENTS_PER_RUN + 1];
    size_t depth = 0;
    uint64_t next = 0; /* leaf that must follow */
    for (size_t j = 0; j < n; j++) {
        uint64_t first, count;
        dpn_tree_span(nodes[j], leaves, &first, &count);
        assert(j == 0 || first == next);
        (void)next;
        next = first + count;

        assert(depth <= DPN_TREE_MAX_SEGMENTS_PER_RUN);
        stack[depth++] = tree_canonical(nodes[j], leaves);
        adds[j] = 0;
        while (depth >= 2) {
            struct dpn_tree_node left = stack[depth - 2], right = stack[depth - 1];
            if (right.index % 2 == 0 || left.level != right.level || left.index != right.index - 1) break;
            stack[--depth - 1] = tree_parent(right, leaves);
            adds[j]++;
        }
    }
    return depth;
}

unsigned dpn_tree_adds_after(uint64_t leaf, uint64_t first, uint64_t end, uint64_t leaves)
{
    tree_check(leaves);
    assert(first <= leaf && leaf < end && end <= leaves);
    (void)end; /* a run that ends early leaves its open partial sums on the stack, as segments */
    unsigned adds = 0;
    struct dpn_tree_node node = tree_canonical((struct dpn_tree_node){0, leaf}, leaves);
    while (node.index % 2 == 1 && (node.index - 1) << node.level >= first) {
        node = tree_parent(node, leaves);
        adds++;
    }
    return adds;
}

double dpn_tree_sum(const double *values, uint64_t leaves)
{
    double stack[DPN_TREE_MAX_LEVEL + 2];
    size_t depth = 0;
    if (leaves == 0) return 0.0;
    for (uint64_t leaf = 0; leaf < leaves; leaf++) {
        stack[depth++] = values[leaf];
        for (unsigned adds = dpn_tree_adds_after(leaf, 0, leaves, leaves); adds > 0; adds--) {
            stack[depth - 2] += stack[depth - 1];
            depth--;
        }
    }
    assert(depth == 1);
    return stack[0];
}
