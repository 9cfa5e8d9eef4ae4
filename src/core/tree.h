/* The one summation tree over the shards of a step (docs/reducers.md): which partial sums may be added, in
 * which order. Pure integer logic, shared by gradients, losses and batch-norm statistics.
 *
 * Node (level, index) covers leaves index*2^level .. (index+1)*2^level - 1 below LEAVES; it is the sum of its
 * children (level-1, 2*index) + (level-1, 2*index+1), or its only child. An absent leaf is no leaf at all, so
 * LEAVES is the number of shards that hold at least one sample. A node and the only-child chain above it are
 * the same partial sum; it is always named by its lowest level whose sibling exists (its "canonical" name),
 * the root by the lowest level that covers all leaves.
 */
#ifndef DPN_CORE_TREE_H
#define DPN_CORE_TREE_H

#include <stddef.h>
#include <stdint.h>

struct dpn_tree_node {
    uint32_t level;
    uint64_t index;
};

enum { DPN_TREE_MAX_LEVEL = 63, DPN_TREE_MAX_SEGMENTS_PER_RUN = 128 };

/* The fewest nodes that cover exactly the leaves first .. first+count-1, left to right, canonical, into NODES
 * (room for DPN_TREE_MAX_SEGMENTS_PER_RUN). Returns their number; 0 if COUNT is 0. first+count <= leaves. */
size_t dpn_tree_cover(uint64_t first, uint64_t count, uint64_t leaves, struct dpn_tree_node *nodes);

/* First leaf and number of leaves that NODE covers. */
void dpn_tree_span(struct dpn_tree_node node, uint64_t leaves, uint64_t *first, uint64_t *count);

/* Programme of a stack machine that sums N adjacent partial sums NODES, given left to right: after pushing
 * number j, add the two topmost ADDS[j] times (older operand on the left). Returns the depth left on the
 * stack: 1 if they cover a whole node. */
size_t dpn_tree_program(const struct dpn_tree_node *nodes, size_t n, uint64_t leaves, uint8_t *adds);

/* The binary counter of an accumulating member: after leaf LEAF was pushed, how often to add the two topmost,
 * given that the member's run started at leaf FIRST and ends before leaf END. Same order as dpn_tree_program
 * over single leaves. */
unsigned dpn_tree_adds_after(uint64_t leaf, uint64_t first, uint64_t end, uint64_t leaves);

/* Sum of LEAVES doubles in tree order; 0.0 for none. */
double dpn_tree_sum(const double *values, uint64_t leaves);

#endif
