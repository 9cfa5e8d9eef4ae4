/* check: wraps another reducer and believes nobody (--check-reduce).
 *
 * Idea: the wrapped reducer works on copies ("shadows") of what members hand over, so that members' own
 *   memory can be poisoned while the contract says that it is not theirs, and every sum can be verified
 *   before they see it. When it is theirs again it is as the wrapped reducer would have left it.
 * Steps: start verifies the call and the segments, copies them, poisons the originals; the last member to
 *   start a bucket verifies that the members' runs make the whole tree, adds the copies serially, and poisons
 *   the outs, all before the wrapped reducer can know that everybody has arrived. wait compares each result
 *   with that sum, verifies that the poison is untouched, and copies the sum out.
 * Bytes moved: several times the wrapped reducer's, partly serially. Memory: a copy of every segment and
 *   `out`.
 * Cost: whatever it takes; start takes a lock that another member may hold for a whole bucket's sum.
 * Determinism: as the wrapped reducer's. exact_tree is verified bit by bit, others within rounding.
 * Limits: host memory.
 */
#include <float.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "reduce/reduce.h"
#include "reduce/reduce_util.h"

static const uint32_t check_poison = 0x7fdead01; /* a quiet NaN that no arithmetic here makes */

/* The copy of one piece of members' memory; the same memory has the same copy, whoever names it. */
struct check_shadow {
    float *real, *copy;
    int owner;  /* the member whose segment it is, or -1 */
    int writer; /* the first member that named it as its `out`, or -1 */
};

struct check_bucket {
    int arrived; /* members that have started it; all: the next start begins a new step */
    size_t n_shadows, room;
    struct check_shadow *shadows;
    size_t n_sources;
    float *expected;  /* the sum */
    float *magnitude; /* the sum of absolute values, for reducers that are not exact */
};

struct check_member {
    _Alignas(64) size_t next; /* bucket to be started */
    int root;                 /* of the broadcast under way, as this member says */
    size_t elems;
    float *buffer;
    struct dpn_reduce_stats stats; /* of the wrapper's own meetings, not reported */
};

struct check {
    struct dpn_reducer base;
    struct dpn_reducer_class cls; /* with the wrapped reducer's flags */
    struct dpn_reducer *inner;
    const struct dpn_reduce_group *group;
    const struct dpn_bucket_plan *plan;
    struct dpn_reduce_table real,
        copies; /* what members handed over, and what the wrapped reducer got instead */
    struct dpn_reduce_terms terms;
    struct dpn_reduce_meeting meeting;
    pthread_mutex_t lock; /* guards buckets and terms while a step is being started */
    struct check_bucket *buckets;
    struct check_member *members;
};

static enum dpn_status check_violation(const struct check *check, int member, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static enum dpn_status check_violation(const struct check *check, int member, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return dpn_fail(DPN_ERR_CONTRACT, "--check-reduce: reducer %s, member %d: %s", check->inner->cls->name,
                    member, text);
}

/* Tells the others of a failure that only this member has seen. */
static enum dpn_status check_report(const struct check *check, enum dpn_status status)
{
    if (status != DPN_OK) dpn_abort_raise(check->group->abort, status);
    return status;
}

static int check_aligned(const float *data)
{
    return (uintptr_t)data % DPN_CACHE_LINE_BYTES == 0;
}

static void check_spoil(float *data, size_t elems)
{
    for (size_t i = 0; i < elems; i++) memcpy(&data[i], &check_poison, sizeof check_poison);
}

/* ---- start ---- */

/* Whether NODE is a node of the tree, under its canonical name. */
static int check_node(struct dpn_tree_node node, uint64_t leaves, uint64_t *first, uint64_t *count)
{
    struct dpn_tree_node canonical[DPN_TREE_MAX_SEGMENTS_PER_RUN];
    if (node.level > DPN_TREE_MAX_LEVEL || node.index > (leaves - 1) >> node.level) return 0;
    dpn_tree_span(node, leaves, first, count);
    return dpn_tree_cover(*first, *count, leaves, canonical) == 1 && canonical[0].level == node.level &&
           canonical[0].index == node.index;
}

static enum dpn_status check_segments(const struct check *check, int member, size_t bucket, uint64_t leaves,
                                      const struct dpn_segment *segments, size_t n_segments)
{
    uint64_t first, count, next = 0;
    for (size_t i = 0; i < n_segments; i++) {
        struct dpn_tree_node node = segments[i].node;
        if (!check_node(node, leaves, &first, &count))
            return check_violation(check, member,
                                   "bucket %zu: (%u, %llu) is not the name of a node over %llu leaves",
                                   bucket, node.level, (unsigned long long)node.index,
                                   (unsigned long long)leaves);
        if (i > 0 && first != next)
            return check_violation(check, member, "bucket %zu: segment %zu begins at leaf %llu, not %llu",
                                   bucket, i, (unsigned long long)first, (unsigned long long)next);
        next = first + count;
        if (!segments[i].data || !check_aligned(segments[i].data))
            return check_violation(check, member, "bucket %zu: segment %zu is NULL or not 64-byte aligned",
                                   bucket, i);
    }
    return DPN_OK;
}

/* What can be said of a call of start without the other members. */
static enum dpn_status check_call(struct check *check, int member, size_t bucket, uint64_t leaves,
                                  const struct dpn_segment *segments, size_t n_segments, const float *out)
{
    struct check_member *self = &check->members[member];
    if (bucket != self->next || bucket >= check->plan->n_buckets)
        return check_violation(check, member, "bucket %zu of %zu started, %zu was next", bucket,
                               check->plan->n_buckets, self->next);
    self->next++;
    if (leaves < 1 || leaves > UINT64_C(1) << DPN_TREE_MAX_LEVEL)
        return check_violation(check, member, "bucket %zu: %llu leaves", bucket, (unsigned long long)leaves);
    if (n_segments > DPN_TREE_MAX_SEGMENTS_PER_RUN)
        return check_violation(check, member, "bucket %zu: %zu segments", bucket, n_segments);
    if (!check_aligned(out))
        return check_violation(check, member, "bucket %zu: out is not 64-byte aligned", bucket);
    return check_segments(check, member, bucket, leaves, segments, n_segments);
}

static enum dpn_status check_shadow_add(struct check_bucket *bucket, size_t elems)
{
    if (bucket->n_shadows == bucket->room) {
        size_t room = bucket->room + 8;
        struct check_shadow *shadows = realloc(bucket->shadows, room * sizeof *shadows);
        if (!shadows) return dpn_fail(DPN_ERR_NOMEM, "cannot get memory for --check-reduce's list of copies");
        memset(shadows + bucket->room, 0, (room - bucket->room) * sizeof *shadows);
        bucket->shadows = shadows;
        bucket->room = room;
    }
    struct check_shadow *shadow = &bucket->shadows[bucket->n_shadows];
    if (!shadow->copy) DPN_TRY(dpn_calloc(&shadow->copy, elems, sizeof(float), "--check-reduce's copies"));
    bucket->n_shadows++;
    return DPN_OK;
}

/* *SHADOW := the copy of REAL, poisoned if REAL was not named before. Valid until the next call. */
static enum dpn_status check_shadow_of(struct check *check, int member, size_t bucket, float *real,
                                       struct check_shadow **shadow)
{
    struct check_bucket *state = &check->buckets[bucket];
    size_t elems = check->plan->buckets[bucket].elems;
    for (size_t i = 0; i < state->n_shadows; i++) {
        uintptr_t a = (uintptr_t)state->shadows[i].real, b = (uintptr_t)real;
        *shadow = &state->shadows[i];
        if (a == b) return DPN_OK;
        if ((a < b ? b - a : a - b) < elems * sizeof(float))
            return check_violation(check, member, "bucket %zu: buffers overlap", bucket);
    }
    DPN_TRY(check_shadow_add(state, elems));
    *shadow = &state->shadows[state->n_shadows - 1];
    (*shadow)->real = real;
    (*shadow)->owner = -1;
    (*shadow)->writer = -1;
    check_spoil((*shadow)->copy, elems);
    return DPN_OK;
}

/* Whether the members' segments are, one after the other, the whole tree. */
static enum dpn_status check_tree(const struct check *check, int member, size_t bucket)
{
    const struct dpn_reduce_terms *terms = &check->terms;
    uint64_t first, count, next = 0;
    for (int other = 0; other < check->group->n; other++) {
        uint64_t leaves = check->copies.slots[bucket * (size_t)check->group->n + (size_t)other].leaves;
        if (leaves != terms->leaves)
            return check_violation(check, member, "bucket %zu: %llu leaves for member %d, %llu for member 0",
                                   bucket, (unsigned long long)leaves, other,
                                   (unsigned long long)terms->leaves);
    }
    for (size_t i = 0; i < terms->n_sources; i++, next = first + count) {
        dpn_tree_span(terms->nodes[i], terms->leaves, &first, &count);
        if (first != next) break;
    }
    if (next != terms->leaves)
        return check_violation(check, member,
                               "bucket %zu: no member's segments continue at leaf %llu of %llu", bucket,
                               (unsigned long long)next, (unsigned long long)terms->leaves);
    return DPN_OK;
}

/* All members have started BUCKET and the wrapped reducer does not know yet: what should come out? */
static enum dpn_status check_complete(struct check *check, int member, size_t bucket)
{
    struct check_bucket *state = &check->buckets[bucket];
    struct dpn_reduce_terms *terms = &check->terms;
    size_t elems = check->plan->buckets[bucket].elems;
    dpn_reduce_terms_gather(terms, &check->copies, bucket);
    DPN_TRY(check_tree(check, member, bucket));
    for (size_t i = 0; i < elems; i += DPN_REDUCE_BLOCK_ELEMS)
        dpn_reduce_serial_sum(terms, i, DPN_REDUCE_BLOCK_ELEMS, state->expected + i);
    state->n_sources = terms->n_sources;
    memset(state->magnitude, 0, elems * sizeof *state->magnitude);
    for (size_t j = 0; j < terms->n_sources; j++)
        for (size_t i = 0; i < elems; i++) state->magnitude[i] += fabsf(terms->sources[j][i]);
    for (size_t i = 0; i < state->n_shadows; i++)
        if (state->shadows[i].owner < 0) check_spoil(state->shadows[i].real, elems);
    return DPN_OK;
}

/* Under the lock: copies the member's segments to where GIVEN and *GIVEN_OUT (NULL before) then say. */
static enum dpn_status check_take(struct check *check, int member, size_t bucket, uint64_t leaves,
                                  const struct dpn_segment *segments, size_t n_segments, float *out,
                                  struct dpn_segment *given, float **given_out)
{
    struct check_bucket *state = &check->buckets[bucket];
    size_t elems = check->plan->buckets[bucket].elems;
    struct check_shadow *shadow;
    if (state->arrived == check->group->n) state->arrived = 0, state->n_shadows = 0;
    for (size_t i = 0; i < n_segments; i++) {
        DPN_TRY(check_shadow_of(check, member, bucket, segments[i].data, &shadow));
        if (shadow->owner >= 0)
            return check_violation(check, member, "bucket %zu: segment %zu's memory is a segment already",
                                   bucket, i);
        shadow->owner = member;
        memcpy(shadow->copy, shadow->real, elems * sizeof(float));
        check_spoil(shadow->real, elems);
        given[i] = (struct dpn_segment){segments[i].node, shadow->copy};
    }
    if (out) {
        DPN_TRY(check_shadow_of(check, member, bucket, out, &shadow));
        if (shadow->writer < 0) shadow->writer = member;
        *given_out = shadow->copy;
    }
    dpn_reduce_table_set(&check->real, bucket, member, leaves, segments, n_segments, out);
    dpn_reduce_table_set(&check->copies, bucket, member, leaves, given, n_segments, *given_out);
    return ++state->arrived == check->group->n ? check_complete(check, member, bucket) : DPN_OK;
}

static enum dpn_status check_start(struct dpn_reducer *reducer, int member, size_t bucket, uint64_t leaves,
                                   const struct dpn_segment *segments, size_t n_segments, float *out)
{
    struct check *check = (struct check *)reducer;
    struct dpn_segment given[DPN_TREE_MAX_SEGMENTS_PER_RUN];
    float *given_out = NULL;
    DPN_TRY(dpn_reduce_alive(check->group));
    enum dpn_status status = check_call(check, member, bucket, leaves, segments, n_segments, out);
    if (status == DPN_OK) {
        pthread_mutex_lock(&check->lock);
        status = check_take(check, member, bucket, leaves, segments, n_segments, out, given, &given_out);
        pthread_mutex_unlock(&check->lock);
    }
    DPN_TRY(check_report(check, status));
    return check->inner->cls->start(check->inner, member, bucket, leaves, given, n_segments, given_out);
}

/* ---- wait ---- */

static int check_right(const struct check *check, const struct check_bucket *state, size_t i, float value)
{
    float expected = state->expected[i];
    /* Which of two NaNs an addition passes on is the compiler's choice. */
    if (isnan(expected)) return isnan(value);
    if (check->cls.flags & DPN_REDUCE_EXACT_TREE) return memcmp(&value, &expected, sizeof value) == 0;
    if (isinf(expected)) return value == expected;
    return fabsf(value - expected) <= 2 * FLT_EPSILON * (float)state->n_sources * state->magnitude[i];
}

/* Before this member meets the others: a result that is late must be seen as missing. */
static enum dpn_status check_result(struct check *check, int member, size_t bucket)
{
    struct check_bucket *state = &check->buckets[bucket];
    const float *out = check->copies.slots[bucket * (size_t)check->group->n + (size_t)member].out;
    pthread_mutex_lock(&check->lock);
    int arrived = state->arrived;
    pthread_mutex_unlock(&check->lock);
    if (arrived != check->group->n)
        return check_violation(check, member, "wait returned when %d of %d members had started bucket %zu",
                               arrived, check->group->n, bucket);
    for (size_t i = 0; out && i < check->plan->buckets[bucket].elems; i++) {
        if (check_right(check, state, i, out[i])) continue;
        int missing = memcmp(&out[i], &check_poison, sizeof check_poison) == 0;
        return check_violation(check, member, "bucket %zu, float %zu: sum is %.9g%s, should be %.9g", bucket,
                               i, (double)out[i], missing ? " (never written)" : "",
                               (double)state->expected[i]);
    }
    return DPN_OK;
}

/* Nobody but the wrapper may have written the member's segments since start. */
static enum dpn_status check_untouched(const struct check *check, int member, size_t bucket)
{
    const struct dpn_reduce_slot *slot =
        &check->real.slots[bucket * (size_t)check->group->n + (size_t)member];
    for (size_t j = 0; j < slot->n_segments; j++) {
        const float *data = j == 0 ? slot->first.data : slot->more[j - 1].data;
        for (size_t i = 0; i < check->plan->buckets[bucket].elems; i++)
            if (memcmp(&data[i], &check_poison, sizeof check_poison) != 0)
                return check_violation(check, member,
                                       "bucket %zu: segment %zu was written between start and wait", bucket,
                                       j);
    }
    return DPN_OK;
}

/* The memory that is the member's again, as the wrapped reducer would have left it: results, and segments
 * with whatever lies in them that no op writes: padding above all. */
static void check_give_back(struct check *check, int member, size_t bucket)
{
    struct check_bucket *state = &check->buckets[bucket];
    for (size_t i = 0; i < state->n_shadows; i++) {
        const struct check_shadow *shadow = &state->shadows[i];
        if (shadow->writer == member || (shadow->writer < 0 && shadow->owner == member))
            memcpy(shadow->real, shadow->copy, check->plan->buckets[bucket].elems * sizeof(float));
    }
}

static enum dpn_status check_verify(struct check *check, int member)
{
    for (size_t b = 0; b < check->plan->n_buckets; b++) {
        DPN_TRY(check_result(check, member, b));
        DPN_TRY(check_untouched(check, member, b));
    }
    return DPN_OK;
}

static enum dpn_status check_wait(struct dpn_reducer *reducer, int member)
{
    struct check *check = (struct check *)reducer;
    struct check_member *self = &check->members[member];
    DPN_TRY(dpn_reduce_alive(check->group));
    if (self->next != check->plan->n_buckets)
        return check_report(check, check_violation(check, member, "wait with %zu of %zu buckets started",
                                                   self->next, check->plan->n_buckets));
    DPN_TRY(check->inner->cls->wait(check->inner, member));
    DPN_TRY(check_report(check, check_verify(check, member)));
    /* All have verified before any `out` is written, and all outs are written before anybody uses one. */
    DPN_TRY(dpn_reduce_meet(&check->meeting, &self->stats, &self->stats.wait_slowest_ns));
    for (size_t b = 0; b < check->plan->n_buckets; b++) check_give_back(check, member, b);
    self->next = 0;
    return dpn_reduce_meet(&check->meeting, &self->stats, &self->stats.wait_data_ns);
}

static enum dpn_status check_progress(struct dpn_reducer *reducer, int member)
{
    struct check *check = (struct check *)reducer;
    return check->inner->cls->progress(check->inner, member);
}

/* ---- broadcast and the rest ---- */

/* After all have noted their arguments: do they agree? Poisons the buffer, if this member is the first of
 * those that share it and it is not the root's. */
static enum dpn_status check_broadcast_call(struct check *check, int member)
{
    const struct check_member *self = &check->members[member], *first = &check->members[0];
    if (self->root != first->root || self->elems != first->elems || self->root < 0 ||
        self->root >= check->group->n)
        return check_violation(check, member, "broadcast of %zu floats from %d, member 0 says %zu from %d",
                               self->elems, self->root, first->elems, first->root);
    if ((!self->buffer && self->elems > 0) || !check_aligned(self->buffer))
        return check_violation(check, member, "broadcast buffer is NULL or not 64-byte aligned");
    if (self->buffer == check->members[self->root].buffer) return DPN_OK;
    for (int other = 0; other < member; other++)
        if (check->members[other].buffer == self->buffer) return DPN_OK;
    check_spoil(self->buffer, self->elems);
    return DPN_OK;
}

static enum dpn_status check_broadcast(struct dpn_reducer *reducer, int member, int root, float *buffer,
                                       size_t elems)
{
    struct check *check = (struct check *)reducer;
    struct check_member *self = &check->members[member];
    self->root = root;
    self->elems = elems;
    self->buffer = buffer;
    DPN_TRY(dpn_reduce_meet(&check->meeting, &self->stats, &self->stats.wait_slowest_ns));
    DPN_TRY(check_report(check, check_broadcast_call(check, member)));
    DPN_TRY(dpn_reduce_meet(&check->meeting, &self->stats, &self->stats.wait_slowest_ns));
    DPN_TRY(check->inner->cls->broadcast(check->inner, member, root, buffer, elems));
    const float *source = check->members[root].buffer;
    if (elems > 0 && memcmp(buffer, source, elems * sizeof *buffer) != 0)
        return check_report(check,
                            check_violation(check, member, "broadcast of %zu floats from %d came out wrong",
                                            elems, root));
    /* Keeps the root's buffer and everybody's arguments as they are until all have compared. */
    return dpn_reduce_meet(&check->meeting, &self->stats, &self->stats.wait_data_ns);
}

static enum dpn_status check_barrier(struct dpn_reducer *reducer, int member)
{
    struct check *check = (struct check *)reducer;
    return check->inner->cls->barrier(check->inner, member);
}

static void check_stats(const struct dpn_reducer *reducer, int member, struct dpn_reduce_stats *stats)
{
    const struct check *check = (const struct check *)reducer;
    check->inner->cls->stats(check->inner, member, stats);
}

static void check_close(struct dpn_reducer *reducer)
{
    struct check *check = (struct check *)reducer;
    for (size_t b = 0; check->buckets && b < check->plan->n_buckets; b++) {
        struct check_bucket *state = &check->buckets[b];
        for (size_t i = 0; i < state->room; i++) free(state->shadows[i].copy);
        free(state->shadows);
        free(state->expected);
        free(state->magnitude);
    }
    free(check->members);
    free(check->buckets);
    pthread_mutex_destroy(&check->lock);
    dpn_reduce_meeting_close(&check->meeting);
    dpn_reduce_terms_close(&check->terms);
    dpn_reduce_table_close(&check->copies);
    dpn_reduce_table_close(&check->real);
    check->inner->cls->close(check->inner);
    free(check);
}

static enum dpn_status check_open_parts(struct check *check)
{
    size_t n_buckets = check->plan->n_buckets;
    int n = check->group->n;
    DPN_TRY(dpn_reduce_table_open(&check->real, n_buckets, n));
    DPN_TRY(dpn_reduce_table_open(&check->copies, n_buckets, n));
    DPN_TRY(dpn_reduce_terms_open(&check->terms, n));
    DPN_TRY(dpn_reduce_meeting_open(&check->meeting, check->group));
    DPN_TRY(dpn_calloc(&check->members, (size_t)n, sizeof *check->members, "--check-reduce"));
    DPN_TRY(dpn_calloc(&check->buckets, n_buckets, sizeof *check->buckets, "--check-reduce"));
    for (size_t b = 0; b < n_buckets; b++) {
        struct check_bucket *state = &check->buckets[b];
        size_t elems = check->plan->buckets[b].elems;
        DPN_TRY(dpn_calloc(&state->expected, elems, sizeof(float), "--check-reduce's sums"));
        DPN_TRY(dpn_calloc(&state->magnitude, elems, sizeof(float), "--check-reduce's sums"));
    }
    return DPN_OK;
}

enum dpn_status dpn_reduce_check_open(const struct dpn_reduce_group *group,
                                      const struct dpn_bucket_plan *plan, struct dpn_reducer *inner,
                                      struct dpn_reducer **reducer)
{
    struct check *check;
    enum dpn_status status = dpn_calloc(&check, 1, sizeof *check, "--check-reduce");
    if (status != DPN_OK) {
        inner->cls->close(inner);
        return status;
    }
    *check = (struct check){
        .inner = inner,
        .group = group,
        .plan = plan,
        .lock = PTHREAD_MUTEX_INITIALIZER,
        .cls = {.name = "check",
                .summary = "verifies another reducer",
                .flags = inner->cls->flags,
                .start = check_start,
                .progress = check_progress,
                .wait = check_wait,
                .broadcast = check_broadcast,
                .barrier = check_barrier,
                .stats = check_stats,
                .close = check_close},
    };
    check->base.cls = &check->cls;
    status = check_open_parts(check);
    if (status == DPN_OK) *reducer = &check->base;
    else check_close(&check->base);
    return status;
}
