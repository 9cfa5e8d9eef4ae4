/* What the reducers for host memory have in common: the table of what members handed over, the serial sum,
 * the meeting point. For reducers only.
 */
#ifndef DPN_REDUCE_UTIL_H
#define DPN_REDUCE_UTIL_H

#include <stddef.h>
#include <stdint.h>

#include "core/status.h"
#include "reduce/reduce.h"

/* DPN_OK, or DPN_ERR_ABORTED once the group's abort word is raised. */
enum dpn_status dpn_reduce_alive(const struct dpn_reduce_group *group);

/* 0, or -1 with the reason if the CPU cannot read the members' memory. */
int dpn_reduce_probe_host(const struct dpn_reduce_group *group, char *reason, size_t reason_size);

/* What one member handed over for one bucket. Written by the member in start, read by others once they
 * know that it has; a cache line of its own, so that a member's start does not disturb those who read its
 * neighbour. */
struct dpn_reduce_slot {
    _Alignas(64) uint64_t leaves;
    size_t n_segments;
    float *out;
    struct dpn_segment first; /* mostly there is one, and the reader needs this line only */
    struct dpn_segment *more; /* the others, set once by open */
};
struct dpn_reduce_table {
    int n;
    struct dpn_reduce_slot *slots; /* [bucket][member] */
    struct dpn_segment *more;
    size_t more_bytes;
};
enum dpn_status dpn_reduce_table_open(struct dpn_reduce_table *table, size_t n_buckets, int n);
void dpn_reduce_table_close(struct dpn_reduce_table *table); /* zeroed: nothing */
void dpn_reduce_table_set(struct dpn_reduce_table *table, size_t bucket, int member, uint64_t leaves,
                          const struct dpn_segment *segments, size_t n_segments, float *out);

/* One bucket as a sum: all members' segments in tree order, and where the result goes. */
struct dpn_reduce_terms {
    uint64_t leaves; /* as member 0 said */
    size_t n_sources;
    struct dpn_tree_node *nodes;
    const float **sources;
    size_t n_outs;
    float **outs;  /* distinct */
    uint8_t *adds; /* room for the programme of dpn_tree_program, not filled */
    void *memory;
    size_t memory_bytes;
};
enum dpn_status dpn_reduce_terms_open(struct dpn_reduce_terms *terms, int n);
void dpn_reduce_terms_close(struct dpn_reduce_terms *terms); /* zeroed: nothing */
/* From the table's slots of BUCKET; all members must have set theirs. */
void dpn_reduce_terms_gather(struct dpn_reduce_terms *terms, const struct dpn_reduce_table *table,
                             size_t bucket);
/* Whether the group's update takes the sum: there is one, and nobody gave an `out`. */
int dpn_reduce_terms_fused(const struct dpn_reduce_terms *terms, const struct dpn_reduce_group *group);

/* Whether the sum is one segment that lies in the only `out` already. */
int dpn_reduce_terms_done(const struct dpn_reduce_terms *terms);

/* DST := the tree's root, floats OFFSET .. OFFSET+ELEMS-1, by descending the tree from its root: the
 * definition of the right result. DST is no source; ELEMS <= DPN_REDUCE_BLOCK_ELEMS. */
enum { DPN_REDUCE_BLOCK_ELEMS = 1024 };
void dpn_reduce_serial_sum(const struct dpn_reduce_terms *terms, size_t offset, size_t elems, float *dst);

/* Where all members meet; the broadcast that follows from it. */
struct dpn_reduce_meeting {
    const struct dpn_reduce_group *group;
    struct dpn_barrier *barrier;
    float **buffers; /* [member], of the broadcast under way */
};
enum dpn_status dpn_reduce_meeting_open(struct dpn_reduce_meeting *meeting,
                                        const struct dpn_reduce_group *group);
void dpn_reduce_meeting_close(struct dpn_reduce_meeting *meeting); /* zeroed: nothing */
/* A barrier; adds the time to *WAIT_NS, which is a member of *STATS. No shared word in a group of one. */
enum dpn_status dpn_reduce_meet(struct dpn_reduce_meeting *meeting, struct dpn_reduce_stats *stats,
                                uint64_t *wait_ns);
/* struct dpn_reducer_class's broadcast. */
enum dpn_status dpn_reduce_meeting_broadcast(struct dpn_reduce_meeting *meeting, int member, int root,
                                             float *buffer, size_t elems, struct dpn_reduce_stats *stats);

#endif
