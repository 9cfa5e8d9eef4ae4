/* ref: the serial reducer.
 *
 * Idea: wait for everybody, let member 0 add everything in tree order, wait again. Nothing is clever, so that
 *   its result is the truth that other reducers are tested against. The file to copy when adding one.
 * Steps: start notes what the member hands over; wait meets, member 0 walks the tree from its root bucket by
 *   bucket in blocks of 1,024 floats and copies each sum to every distinct `out`, all meet again.
 * Bytes moved: every segment read once, every distinct `out` written once, all by one core.
 * Cost: 2 barriers + (segments + outs) * bytes / bandwidth of one core. No overlap with backward.
 * Determinism: exact_tree.
 * Limits: host memory; no speed.
 */
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/memory.h"
#include "reduce/reduce.h"
#include "reduce/reduce_util.h"

extern const struct dpn_reducer_class dpn_reducer_ref; /* below */

struct ref_member {
    _Alignas(
        64) struct dpn_reduce_stats stats; /* a line of its own: each member writes its own all the time */
};

struct ref {
    struct dpn_reducer base;
    const struct dpn_reduce_group *group;
    const struct dpn_bucket_plan *plan;
    struct dpn_reduce_table table;
    struct dpn_reduce_terms terms; /* member 0's */
    struct dpn_reduce_meeting meeting;
    struct ref_member *members;
};

static int ref_probe(const struct dpn_reduce_group *group, char *reason, size_t reason_size)
{
    return dpn_reduce_probe_host(group, reason, reason_size);
}

static void ref_close(struct dpn_reducer *reducer)
{
    struct ref *ref = (struct ref *)reducer;
    free(ref->members);
    dpn_reduce_meeting_close(&ref->meeting);
    dpn_reduce_terms_close(&ref->terms);
    dpn_reduce_table_close(&ref->table);
    free(ref);
}

static enum dpn_status ref_open_parts(struct ref *ref)
{
    DPN_TRY(dpn_reduce_table_open(&ref->table, ref->plan->n_buckets, ref->group->n));
    DPN_TRY(dpn_reduce_terms_open(&ref->terms, ref->group->n));
    DPN_TRY(dpn_reduce_meeting_open(&ref->meeting, ref->group));
    return dpn_calloc(&ref->members, (size_t)ref->group->n, sizeof *ref->members, "the reducer's members");
}

static enum dpn_status ref_open(const struct dpn_reduce_group *group, const struct dpn_bucket_plan *plan,
                                struct dpn_reducer **reducer)
{
    struct ref *ref;
    DPN_TRY(dpn_calloc(&ref, 1, sizeof *ref, "the reducer"));
    ref->base.cls = &dpn_reducer_ref;
    ref->group = group;
    ref->plan = plan;
    enum dpn_status status = ref_open_parts(ref);
    if (status == DPN_OK) *reducer = &ref->base;
    else ref_close(&ref->base);
    return status;
}

static enum dpn_status ref_start(struct dpn_reducer *reducer, int member, size_t bucket, uint64_t leaves,
                                 const struct dpn_segment *segments, size_t n_segments, float *out)
{
    struct ref *ref = (struct ref *)reducer;
    DPN_TRY(dpn_reduce_alive(ref->group));
    dpn_reduce_table_set(&ref->table, bucket, member, leaves, segments, n_segments, out);
    return DPN_OK;
}

static enum dpn_status ref_progress(struct dpn_reducer *reducer, int member)
{
    (void)member;
    return dpn_reduce_alive(((struct ref *)reducer)->group);
}

static void ref_sum_bucket(struct ref *ref, size_t bucket, struct dpn_reduce_stats *stats)
{
    struct dpn_reduce_terms *terms = &ref->terms;
    size_t elems = ref->plan->buckets[bucket].elems, bytes = elems * sizeof(float);
    const struct dpn_reduce_update *update = ref->group->update;
    dpn_reduce_terms_gather(terms, &ref->table, bucket);
    int fused = dpn_reduce_terms_fused(terms, ref->group);
    if (!fused && dpn_reduce_terms_done(terms)) return;

    /* Through a block of its own, because an `out` may be a segment that is still to be read. */
    float block[DPN_REDUCE_BLOCK_ELEMS];
    for (size_t offset = 0; offset < elems; offset += DPN_REDUCE_BLOCK_ELEMS) {
        dpn_reduce_serial_sum(terms, offset, DPN_REDUCE_BLOCK_ELEMS, block);
        for (size_t i = 0; i < terms->n_outs; i++) memcpy(terms->outs[i] + offset, block, sizeof block);
        if (fused)
            update->apply(update->arg, 0, ref->plan->buckets[bucket].first + offset, DPN_REDUCE_BLOCK_ELEMS,
                          block);
    }
    stats->bytes_read += terms->n_sources * bytes;
    stats->bytes_written += (fused ? 1 : terms->n_outs) * bytes;
}

static enum dpn_status ref_wait(struct dpn_reducer *reducer, int member)
{
    struct ref *ref = (struct ref *)reducer;
    struct dpn_reduce_stats *stats = &ref->members[member].stats;
    DPN_TRY(dpn_reduce_meet(&ref->meeting, stats, &stats->wait_slowest_ns));
    if (member == 0) {
        uint64_t start_ns = dpn_now_ns();
        for (size_t b = 0; b < ref->plan->n_buckets; b++) ref_sum_bucket(ref, b, stats);
        stats->work_ns += dpn_now_ns() - start_ns;
    }
    /* Also keeps the table as it is until member 0 has read it. */
    DPN_TRY(dpn_reduce_meet(&ref->meeting, stats, &stats->wait_data_ns));
    stats->reductions += ref->plan->n_buckets;
    return DPN_OK;
}

static enum dpn_status ref_broadcast(struct dpn_reducer *reducer, int member, int root, float *buffer,
                                     size_t elems)
{
    struct ref *ref = (struct ref *)reducer;
    return dpn_reduce_meeting_broadcast(&ref->meeting, member, root, buffer, elems,
                                        &ref->members[member].stats);
}

static enum dpn_status ref_barrier(struct dpn_reducer *reducer, int member)
{
    struct ref *ref = (struct ref *)reducer;
    struct dpn_reduce_stats *stats = &ref->members[member].stats;
    return dpn_reduce_meet(&ref->meeting, stats, &stats->wait_slowest_ns);
}

static void ref_stats(const struct dpn_reducer *reducer, int member, struct dpn_reduce_stats *stats)
{
    *stats = ((const struct ref *)reducer)->members[member].stats;
}

const struct dpn_reducer_class dpn_reducer_ref = {
    .name = "ref",
    .summary = "one member adds everything, serially: the truth, for tests",
    .flags = DPN_REDUCE_EXACT_TREE | DPN_REDUCE_HOST | DPN_REDUCE_FUSED,
    .probe = ref_probe,
    .open = ref_open,
    .start = ref_start,
    .progress = ref_progress,
    .wait = ref_wait,
    .broadcast = ref_broadcast,
    .barrier = ref_barrier,
    .stats = ref_stats,
    .close = ref_close,
};
