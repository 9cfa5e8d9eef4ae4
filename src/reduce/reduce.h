/* The reducer contract: how the members of a group sum spans of numbers.
 *
 * A reducer knows spans of float32, never models. Members are numbered 0..n-1; each member is one thread. The
 * gradient arena is cut into buckets once (dpn_bucket_plan); in every step each member hands over, bucket by
 * bucket in index order, its partial sums as an ordered list of segments: nodes of the one tree of
 * core/tree.h. A member's segments cover a contiguous run of leaves, and the runs ascend with the member's
 * number; a member whose shards are all empty takes part with zero segments. The result of a bucket is the
 * tree's root.
 *
 * Step protocol, the same calls in the same order on every member, every bucket in every step:
 *     for b = 0 .. n_buckets-1 (as backward gets there):  start(b), with progress() as often as liked between
 *     wait(): all buckets of this step are complete in this member's `out`
 * From start(b) on, the member's segments of bucket b and its `out` belong to the reducer: neither read nor
 * written until wait returns. Afterwards the segments' contents are undefined, except that what was 0 in all
 * of a bucket's segments is 0 (padding stays padding), and that `out` may be a segment (then it holds the
 * result). `out` may be the same memory for several members (it is then written once), and NULL if this
 * member does not want the result (mode dp). A member that shares an `out` which is another member's segment
 * must be done reading it before that member writes its gradients again: the reducer cannot know. All members
 * name the same number of leaves, which may change from step to step.
 *
 * Segments, out and broadcast buffers are 64-byte aligned; bucket bounds are multiples of 1,024 floats.
 * Buffers that are not the same memory do not overlap.
 *
 * Every wait tests the group's abort word; after an abort every call returns DPN_ERR_ABORTED, but other
 * members may still be adding: buffers must live until all members have left. Nothing sleeps in start and
 * progress. A group of one uses no shared word and, where its only segment is its `out`, touches no number.
 */
#ifndef DPN_REDUCE_REDUCE_H
#define DPN_REDUCE_REDUCE_H

#include <stddef.h>
#include <stdint.h>

#include "core/status.h"
#include "core/tree.h"
#include "core/wait.h"
#include "kernels/kernels.h"

enum dpn_reduce_flags {
    DPN_REDUCE_EXACT_TREE = 1, /* adds siblings of the tree only: same bits as `ref` */
    DPN_REDUCE_HOST = 2,       /* serves members whose memory the CPU reads */
    DPN_REDUCE_CUDA = 4,
    DPN_REDUCE_FUSED = 8, /* serves the group's update */
};

struct dpn_bucket {
    size_t first; /* float offset in the arena, multiple of 1,024 */
    size_t elems; /* multiple of 1,024, > 0 */
};
struct dpn_bucket_plan {
    size_t n_buckets;
    const struct dpn_bucket *buckets; /* contiguous, ascending, covering the arena */
};

/* A member's partial sum: NODE of the tree, and the first float of the *bucket* in the buffer that holds it.
 */
struct dpn_segment {
    struct dpn_tree_node node;
    float *data;
};

/* Fused update: what to do with a finished piece of the sum instead of handing it out. In a step in which no
 * member gives an `out`, the owner of a slice calls apply() with every piece of it while it is in cache; wait
 * then means that all pieces have been applied, and what apply wrote is visible to all. Pieces are multiples
 * of 16 floats, at FIRST in the arena; each float of it comes exactly once a step, from one member's thread.
 */
struct dpn_reduce_update {
    void (*apply)(void *arg, int member, size_t first, size_t elems, const float *sum);
    /* May be NULL: the same member will apply this piece next but one. A hint, to fetch what will be written.
     */
    void (*soon)(void *arg, int member, size_t first, size_t elems);
    void *arg;
};

struct dpn_reduce_group {
    int n;                                  /* members, >= 1 */
    const int *node;                        /* NUMA node of each member */
    int oversubscribed;                     /* members share CPUs */
    struct dpn_abort *abort;                /* never NULL */
    const struct dpn_kernels *kernels;      /* tree_sum; NULL where the CPU cannot read the members' memory */
    const struct dpn_reduce_update *update; /* NULL: none; else the reducer must have DPN_REDUCE_FUSED */
};

/* What a member has done since open, for reports and tests. */
struct dpn_reduce_stats {
    uint64_t reductions;      /* buckets completed */
    uint64_t bytes_read;      /* of segments that were added */
    uint64_t bytes_written;   /* of sums, counted once for every distinct `out` */
    uint64_t bytes_copied;    /* broadcasts, and buckets that are one segment already */
    uint64_t flag_operations; /* arrivals at shared words: each is one or two atomic updates */
    uint64_t work_ns;         /* summing and copying */
    uint64_t wait_slowest_ns; /* waiting for other members to arrive */
    uint64_t wait_data_ns;    /* waiting for others to publish after all had arrived */
};

struct dpn_reducer; /* an open reducer: begins with its class */

struct dpn_reducer_class {
    const char *name;
    const char *summary;
    unsigned flags;

    /* A score >= 0 (the highest wins under --reducer auto), or negative with the reason in REASON: declining
     * is not failing. */
    int (*probe)(const struct dpn_reduce_group *group, char *reason, size_t reason_size);

    /* One call, by one thread, before members start. The group and plan must outlive the reducer. */
    enum dpn_status (*open)(const struct dpn_reduce_group *group, const struct dpn_bucket_plan *plan,
                            struct dpn_reducer **reducer);

    /* This member's SEGMENTS of bucket BUCKET, in tree order, at most DPN_TREE_MAX_SEGMENTS_PER_RUN; LEAVES
     * >= 1 of the step's tree. OUT: where the member wants the bucket's sum (first float of the bucket), or
     * NULL. Never blocks. Segments are copied by the call, their data is not. */
    enum dpn_status (*start)(struct dpn_reducer *reducer, int member, size_t bucket, uint64_t leaves,
                             const struct dpn_segment *segments, size_t n_segments, float *out);
    /* Does a piece of work if some is ready. Never waits. */
    enum dpn_status (*progress)(struct dpn_reducer *reducer, int member);
    /* Returns when all buckets of this step are in OUT of this member, and its segments may be written again.
     * What any member wrote before it started a bucket is then visible to all. Ends the step. */
    enum dpn_status (*wait)(struct dpn_reducer *reducer, int member);

    /* ELEMS floats from member ROOT's BUFFER to everybody's (all call; buffers may be the same memory).
     * Returns when all buffers hold the data. ELEMS any number, also 0 (BUFFER may then be NULL). */
    enum dpn_status (*broadcast)(struct dpn_reducer *reducer, int member, int root, float *buffer,
                                 size_t elems);
    enum dpn_status (*barrier)(struct dpn_reducer *reducer, int member);

    /* By the member's own thread, or after all members are done. */
    void (*stats)(const struct dpn_reducer *reducer, int member, struct dpn_reduce_stats *stats);
    /* After all members are done. */
    void (*close)(struct dpn_reducer *reducer);
};

struct dpn_reducer {
    const struct dpn_reducer_class *cls;
};

extern const struct dpn_reducer_class *const dpn_reducer_classes[]; /* NULL-terminated, from plugins.def */

/* The class called NAME, or for "auto" the best that serves GROUP and has exact_tree (the first of equals).
 * Errors: DPN_ERR_USAGE naming --reducer and the reason. reduce.c. */
enum dpn_status dpn_reducer_select(const char *name, const struct dpn_reduce_group *group,
                                   const struct dpn_reducer_class **cls);

/* Wraps INNER, which it owns and closes from now on, also if it fails. Members' memory is replaced by copies
 * with the same aliasing, and poisoned (NaN) from start on; at the end of wait `out` gets the verified sum,
 * and segments what INNER left in their copies. Verifies the order of calls, the segments, and the sums
 * against the serial sum of `ref`: bit by bit if INNER is exact_tree, else within rounding. Violations are
 * DPN_ERR_CONTRACT, and the group is aborted. Has INNER's flags. reduce_check.c. */
enum dpn_status dpn_reduce_check_open(const struct dpn_reduce_group *group,
                                      const struct dpn_bucket_plan *plan, struct dpn_reducer *inner,
                                      struct dpn_reducer **reducer);

#endif
