/* shm: threads of one address space, one level.
 *
 * Idea: nobody copies anything in. Each bucket is cut into slices of whole quanta (1,024 floats), balanced
 *   over the members; the owner of a slice adds it from where the members' segments lie to where the results
 *   belong. A bucket of at most SHM_SMALL_ELEMS has one owner. Which slice is whose shifts by one from bucket
 *   to bucket, so that remainders and small buckets are spread.
 * Steps: start notes the member's segments in its slot and adds 1 to the bucket's `arrived`. Once all have,
 *   each owner adds its slice in tree order, in chunks that stay in the first-level cache, writes every
 *   distinct `out` once, and adds 1 to `published`. wait returns when all owners of all buckets have.
 *   progress adds a bucket whose members have all arrived, and never waits. Fused: chunks of the sum go to
 *   the group's update instead of an `out`; `published` then says that they have been applied.
 * Bytes moved, per member of n with s segments and d distinct outs in all: s/n of the bucket read, d/n
 *   written.
 * Cost, per bucket: 2 contended atomic additions a member, about 4 cache lines' transfers in sequence, and (s
 *   + d)/n * bytes / bandwidth. Overlaps with backward as far as progress is called.
 * Determinism: exact_tree; which member adds what never changes a bit.
 * Limits: host memory; NUMA-blind (a slice is read from wherever the segments lie).
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/memory.h"
#include "core/team.h"
#include "reduce/reduce.h"
#include "reduce/reduce_util.h"

extern const struct dpn_reducer_class dpn_reducer_shm; /* below */

/* Two members need the same time for this many floats whether one of them or both add them: the second
 * owner's flag costs what its half of the addition saves. */
enum { SHM_SMALL_ELEMS = 2048 };
/* 8 KiB: two sources, the sum and a copy of it fit a first-level cache of 32 KiB. */
enum { SHM_CHUNK_ELEMS = 2048 };

/* Growing counters: step s (from 0) of a bucket is complete at (s+1) * members and (s+1) * owners. */
struct shm_bucket {
    struct dpn_flag arrived;
    struct dpn_flag published;
};

struct shm_member {
    _Alignas(64) float sum[SHM_CHUNK_ELEMS]; /* of the fused path */
    _Alignas(64) uint32_t step; /* steps completed; a line of its own, written all the time by its member */
    size_t started, added;      /* buckets of this step */
    uint64_t mark_ns;           /* up to where this member's time is booked */
    struct dpn_reduce_stats stats;
    struct dpn_reduce_terms terms;
};

struct shm {
    struct dpn_reducer base;
    const struct dpn_reduce_group *group;
    const struct dpn_bucket_plan *plan;
    struct dpn_reduce_table table;
    struct dpn_reduce_meeting meeting;
    struct shm_bucket *buckets;
    struct shm_member *members;
};

static int shm_probe(const struct dpn_reduce_group *group, char *reason, size_t reason_size)
{
    return dpn_reduce_probe_host(group, reason, reason_size) == 0 ? 100 : -1;
}

static void shm_close(struct dpn_reducer *reducer)
{
    struct shm *shm = (struct shm *)reducer;
    for (int i = 0; shm->members && i < shm->group->n; i++) dpn_reduce_terms_close(&shm->members[i].terms);
    free(shm->members);
    free(shm->buckets);
    dpn_reduce_meeting_close(&shm->meeting);
    dpn_reduce_table_close(&shm->table);
    free(shm);
}

static enum dpn_status shm_open_parts(struct shm *shm)
{
    int n = shm->group->n;
    size_t n_buckets = shm->plan->n_buckets;
    DPN_TRY(dpn_reduce_table_open(&shm->table, n_buckets, n));
    DPN_TRY(dpn_reduce_meeting_open(&shm->meeting, shm->group));
    DPN_TRY(dpn_calloc(&shm->buckets, n_buckets, sizeof *shm->buckets, "the reducer's counters"));
    DPN_TRY(dpn_calloc(&shm->members, (size_t)n, sizeof *shm->members, "the reducer's members"));
    for (int i = 0; i < n; i++) DPN_TRY(dpn_reduce_terms_open(&shm->members[i].terms, n));
    return DPN_OK;
}

static enum dpn_status shm_open(const struct dpn_reduce_group *group, const struct dpn_bucket_plan *plan,
                                struct dpn_reducer **reducer)
{
    struct shm *shm;
    DPN_TRY(dpn_calloc(&shm, 1, sizeof *shm, "the reducer"));
    shm->base.cls = &dpn_reducer_shm;
    shm->group = group;
    shm->plan = plan;
    enum dpn_status status = shm_open_parts(shm);
    if (status == DPN_OK) *reducer = &shm->base;
    else shm_close(&shm->base);
    return status;
}

static uint32_t shm_owners(const struct shm *shm, size_t bucket)
{
    size_t quanta = shm->plan->buckets[bucket].elems / DPN_ARENA_QUANTUM_ELEMS, n = (size_t)shm->group->n;
    if (quanta <= SHM_SMALL_ELEMS / DPN_ARENA_QUANTUM_ELEMS) return 1;
    return (uint32_t)(quanta < n ? quanta : n);
}

/* MEMBER's slice of BUCKET, in floats from the bucket's start; *ELEMS is 0 if it owns none. */
static void shm_slice(const struct shm *shm, size_t bucket, int member, size_t *first, size_t *elems)
{
    size_t owners = shm_owners(shm, bucket), n = (size_t)shm->group->n;
    size_t part = ((size_t)member + n - bucket % n) % n;
    *first = *elems = 0;
    if (part >= owners) return;
    dpn_split(shm->plan->buckets[bucket].elems / DPN_ARENA_QUANTUM_ELEMS, owners, part, first, elems);
    *first *= DPN_ARENA_QUANTUM_ELEMS;
    *elems *= DPN_ARENA_QUANTUM_ELEMS;
}

/* Books the member's time since the last mark on *COUNTER_NS. */
static void shm_book(struct shm_member *self, uint64_t *counter_ns)
{
    uint64_t now_ns = dpn_now_ns();
    *counter_ns += now_ns - self->mark_ns;
    self->mark_ns = now_ns;
}

/* The bucket is one segment already: copies it to the outs that are not that segment. */
static void shm_copy_slice(struct shm_member *self, size_t first, size_t elems)
{
    const struct dpn_reduce_terms *terms = &self->terms;
    for (size_t i = 0; i < terms->n_outs; i++) {
        if (terms->outs[i] == terms->sources[0]) continue;
        memcpy(terms->outs[i] + first, terms->sources[0] + first, elems * sizeof(float));
        self->stats.bytes_copied += elems * sizeof(float);
    }
}

/* Floats of the next chunk, where LEFT are left. */
static size_t shm_chunk(size_t left)
{
    return left < SHM_CHUNK_ELEMS ? left : SHM_CHUNK_ELEMS;
}

/* Readies the terms for adding from float FIRST of the bucket on. */
static void shm_program(struct dpn_reduce_terms *terms, size_t first)
{
    size_t depth = dpn_tree_program(terms->nodes, terms->n_sources, terms->leaves, terms->adds);
    assert(depth == 1);
    (void)depth;
    for (size_t i = 0; i < terms->n_sources; i++) terms->sources[i] += first;
}

/* Nobody wants the sum itself: each chunk of it goes to the group's update while it is in cache. AT is where
 * the slice begins in the arena. */
static void shm_fuse_slice(struct shm_member *self, const struct dpn_reduce_group *group, int member,
                           size_t first, size_t at, size_t elems)
{
    const struct dpn_reduce_update *update = group->update;
    struct dpn_reduce_terms *terms = &self->terms;
    size_t n = terms->n_sources;
    int hints = update->soon && group->n > 1;
    shm_program(terms, first);
    if (hints) update->soon(update->arg, member, at, shm_chunk(elems));
    for (size_t done = 0; done < elems;) {
        size_t chunk = shm_chunk(elems - done), left = elems - done - chunk;
        const float *sum = terms->sources[0];
        if (hints && left > 0) update->soon(update->arg, member, at + done + chunk, shm_chunk(left));
        if (n > 1) {
            group->kernels->tree_sum(chunk, n, terms->adds, terms->sources, self->sum);
            sum = self->sum;
        }
        update->apply(update->arg, member, at + done, chunk, sum);
        for (size_t i = 0; i < n; i++) terms->sources[i] += chunk;
        done += chunk;
    }
    if (n == 1) return; /* the update alone has touched it */
    self->stats.bytes_read += n * elems * sizeof(float);
    self->stats.bytes_written += elems * sizeof(float);
}

static void shm_add_slice(struct shm_member *self, const struct dpn_kernels *kernels, size_t first,
                          size_t elems)
{
    struct dpn_reduce_terms *terms = &self->terms;
    size_t n = terms->n_sources;
    shm_program(terms, first);
    for (size_t done = 0; done < elems;) {
        size_t chunk = shm_chunk(elems - done);
        /* An `out` may be a segment: no chunk of it is written before all segments' chunks were read. */
        float *sum = terms->outs[0] + first + done;
        kernels->tree_sum(chunk, n, terms->adds, terms->sources, sum);
        for (size_t i = 1; i < terms->n_outs; i++)
            memcpy(terms->outs[i] + first + done, sum, chunk * sizeof *sum);
        for (size_t i = 0; i < n; i++) terms->sources[i] += chunk;
        done += chunk;
    }
    self->stats.bytes_read += n * elems * sizeof(float);
    self->stats.bytes_written += terms->n_outs * elems * sizeof(float);
}

/* Adds this member's slice of the next bucket, whose members have all arrived, and publishes it. */
static void shm_add_next(struct shm *shm, int member)
{
    struct shm_member *self = &shm->members[member];
    size_t bucket = self->added++, first, elems;
    shm_slice(shm, bucket, member, &first, &elems);
    if (elems == 0) return;
    dpn_reduce_terms_gather(&self->terms, &shm->table, bucket);
    if (dpn_reduce_terms_fused(&self->terms, shm->group)) {
        shm_fuse_slice(self, shm->group, member, first, shm->plan->buckets[bucket].first + first, elems);
        shm_book(self, &self->stats.work_ns);
    } else if (!dpn_reduce_terms_done(&self->terms)) {
        if (self->terms.n_sources == 1) shm_copy_slice(self, first, elems);
        else shm_add_slice(self, shm->group->kernels, first, elems);
        shm_book(self, &self->stats.work_ns);
    }
    if (shm->group->n == 1) return;
    dpn_flag_add(&shm->buckets[bucket].published, 1);
    self->stats.flag_operations++;
}

static enum dpn_status shm_start(struct dpn_reducer *reducer, int member, size_t bucket, uint64_t leaves,
                                 const struct dpn_segment *segments, size_t n_segments, float *out)
{
    struct shm *shm = (struct shm *)reducer;
    struct shm_member *self = &shm->members[member];
    DPN_TRY(dpn_reduce_alive(shm->group));
    assert(bucket == self->started && bucket < shm->plan->n_buckets);
    self->started++;
    /* The slot is free: wait has seen `published` of all who read it in the step before. */
    dpn_reduce_table_set(&shm->table, bucket, member, leaves, segments, n_segments, out);
    if (shm->group->n == 1) return DPN_OK;
    dpn_flag_add(&shm->buckets[bucket].arrived, 1);
    self->stats.flag_operations++;
    return DPN_OK;
}

static enum dpn_status shm_progress(struct dpn_reducer *reducer, int member)
{
    struct shm *shm = (struct shm *)reducer;
    struct shm_member *self = &shm->members[member];
    uint32_t n = (uint32_t)shm->group->n;
    DPN_TRY(dpn_reduce_alive(shm->group));
    if (self->added == self->started) return DPN_OK;
    if (n > 1 && !dpn_flag_reached(&shm->buckets[self->added].arrived, (self->step + 1) * n)) return DPN_OK;
    self->mark_ns = dpn_now_ns();
    shm_add_next(shm, member);
    return DPN_OK;
}

/* Waits for FLAG; the clock is read only if there is something to wait for. */
static enum dpn_status shm_await(struct shm *shm, struct shm_member *self, struct dpn_flag *flag,
                                 uint32_t target, uint64_t *counter_ns)
{
    if (shm->group->n == 1 || dpn_flag_reached(flag, target)) return DPN_OK;
    enum dpn_status status = dpn_flag_wait(flag, target, shm->group->abort);
    shm_book(self, counter_ns);
    return status;
}

static enum dpn_status shm_wait(struct dpn_reducer *reducer, int member)
{
    struct shm *shm = (struct shm *)reducer;
    struct shm_member *self = &shm->members[member];
    uint32_t steps = self->step + 1, n = (uint32_t)shm->group->n;
    DPN_TRY(dpn_reduce_alive(shm->group));
    assert(self->started == shm->plan->n_buckets);
    self->mark_ns = dpn_now_ns();
    while (self->added < self->started) {
        struct dpn_flag *arrived = &shm->buckets[self->added].arrived;
        DPN_TRY(shm_await(shm, self, arrived, steps * n, &self->stats.wait_slowest_ns));
        shm_add_next(shm, member);
    }
    for (size_t b = 0; b < self->started; b++) {
        struct dpn_flag *published = &shm->buckets[b].published;
        DPN_TRY(shm_await(shm, self, published, steps * shm_owners(shm, b), &self->stats.wait_data_ns));
    }
    self->stats.reductions += self->started;
    self->step++;
    self->started = self->added = 0;
    return DPN_OK;
}

static enum dpn_status shm_broadcast(struct dpn_reducer *reducer, int member, int root, float *buffer,
                                     size_t elems)
{
    struct shm *shm = (struct shm *)reducer;
    return dpn_reduce_meeting_broadcast(&shm->meeting, member, root, buffer, elems,
                                        &shm->members[member].stats);
}

static enum dpn_status shm_barrier(struct dpn_reducer *reducer, int member)
{
    struct shm *shm = (struct shm *)reducer;
    struct dpn_reduce_stats *stats = &shm->members[member].stats;
    return dpn_reduce_meet(&shm->meeting, stats, &stats->wait_slowest_ns);
}

static void shm_stats(const struct dpn_reducer *reducer, int member, struct dpn_reduce_stats *stats)
{
    *stats = ((const struct shm *)reducer)->members[member].stats;
}

const struct dpn_reducer_class dpn_reducer_shm = {
    .name = "shm",
    .summary = "each member adds its slice of every bucket, straight from the others' memory",
    .flags = DPN_REDUCE_EXACT_TREE | DPN_REDUCE_HOST | DPN_REDUCE_FUSED,
    .probe = shm_probe,
    .open = shm_open,
    .start = shm_start,
    .progress = shm_progress,
    .wait = shm_wait,
    .broadcast = shm_broadcast,
    .barrier = shm_barrier,
    .stats = shm_stats,
    .close = shm_close,
};
