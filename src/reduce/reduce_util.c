/* What the reducers for host memory have in common: see reduce_util.h. */
#include "reduce/reduce_util.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/memory.h"

enum { UTIL_MORE_SEGMENTS = DPN_TREE_MAX_SEGMENTS_PER_RUN - 1 };

enum dpn_status dpn_reduce_alive(const struct dpn_reduce_group *group)
{
    if (!dpn_abort_raised(group->abort)) return DPN_OK;
    return dpn_fail(DPN_ERR_ABORTED, "reduction stopped because another thread failed");
}

int dpn_reduce_probe_host(const struct dpn_reduce_group *group, char *reason, size_t reason_size)
{
    if (group->kernels) return 0;
    snprintf(reason, reason_size, "the CPU cannot read the members' memory");
    return -1;
}

enum dpn_status dpn_reduce_table_open(struct dpn_reduce_table *table, size_t n_buckets, int n)
{
    *table = (struct dpn_reduce_table){.n = n};
    size_t slots = n_buckets * (size_t)n;
    DPN_TRY(dpn_calloc(&table->slots, slots, sizeof *table->slots, "the reducer's descriptors"));
    /* An arena, because hardly a page of it is ever touched. */
    table->more_bytes = slots * UTIL_MORE_SEGMENTS * sizeof *table->more;
    DPN_TRY(dpn_arena_alloc(&table->more, table->more_bytes, "the reducer's segments"));
    for (size_t i = 0; i < slots; i++) table->slots[i].more = table->more + i * UTIL_MORE_SEGMENTS;
    return DPN_OK;
}

void dpn_reduce_table_close(struct dpn_reduce_table *table)
{
    dpn_arena_free(table->more, table->more_bytes);
    free(table->slots);
}

void dpn_reduce_table_set(struct dpn_reduce_table *table, size_t bucket, int member, uint64_t leaves,
                          const struct dpn_segment *segments, size_t n_segments, float *out)
{
    assert(n_segments <= DPN_TREE_MAX_SEGMENTS_PER_RUN);
    struct dpn_reduce_slot *slot = &table->slots[bucket * (size_t)table->n + (size_t)member];
    slot->leaves = leaves;
    slot->n_segments = n_segments;
    slot->out = out;
    if (n_segments > 0) slot->first = segments[0];
    for (size_t i = 1; i < n_segments; i++) slot->more[i - 1] = segments[i];
}

enum dpn_status dpn_reduce_terms_open(struct dpn_reduce_terms *terms, int n)
{
    *terms = (struct dpn_reduce_terms){0};
    size_t members = (size_t)n, most = members * DPN_TREE_MAX_SEGMENTS_PER_RUN;
    terms->memory_bytes = most * (sizeof *terms->nodes + sizeof *terms->sources + sizeof *terms->adds) +
                          members * sizeof *terms->outs;
    DPN_TRY(dpn_arena_alloc(&terms->memory, terms->memory_bytes, "the reducer's list of terms"));
    terms->nodes = terms->memory;
    terms->sources = (const float **)(terms->nodes + most);
    terms->outs = (float **)(terms->sources + most);
    terms->adds = (uint8_t *)(terms->outs + members);
    return DPN_OK;
}

void dpn_reduce_terms_close(struct dpn_reduce_terms *terms)
{
    dpn_arena_free(terms->memory, terms->memory_bytes);
}

static void util_add_out(struct dpn_reduce_terms *terms, float *out)
{
    if (!out) return;
    for (size_t i = 0; i < terms->n_outs; i++)
        if (terms->outs[i] == out) return;
    terms->outs[terms->n_outs++] = out;
}

void dpn_reduce_terms_gather(struct dpn_reduce_terms *terms, const struct dpn_reduce_table *table,
                             size_t bucket)
{
    const struct dpn_reduce_slot *slot = &table->slots[bucket * (size_t)table->n];
    terms->leaves = slot->leaves;
    terms->n_sources = 0;
    terms->n_outs = 0;
    for (int member = 0; member < table->n; member++, slot++) {
        util_add_out(terms, slot->out);
        for (size_t i = 0; i < slot->n_segments; i++) {
            const struct dpn_segment *segment = i == 0 ? &slot->first : &slot->more[i - 1];
            terms->nodes[terms->n_sources] = segment->node;
            terms->sources[terms->n_sources++] = segment->data;
        }
    }
}

int dpn_reduce_terms_done(const struct dpn_reduce_terms *terms)
{
    return terms->n_outs == 0 ||
           (terms->n_sources == 1 && terms->n_outs == 1 && terms->outs[0] == terms->sources[0]);
}

int dpn_reduce_terms_fused(const struct dpn_reduce_terms *terms, const struct dpn_reduce_group *group)
{
    return terms->n_outs == 0 && group->update != NULL;
}

struct util_walk {
    const struct dpn_reduce_terms *terms;
    size_t next; /* first source not yet used */
    size_t offset, elems;
};

/* The node over leaves FIRST .. FIRST+COUNT-1: a segment as it is, else its left child + its right child. */
static void util_node_sum(struct util_walk *walk, uint64_t first, uint64_t count, float *dst)
{
    const struct dpn_reduce_terms *terms = walk->terms;
    assert(walk->next < terms->n_sources);
    uint64_t segment_first, segment_count;
    dpn_tree_span(terms->nodes[walk->next], terms->leaves, &segment_first, &segment_count);
    assert(segment_first == first && segment_count <= count);
    if (segment_count == count) {
        memcpy(dst, terms->sources[walk->next++] + walk->offset, walk->elems * sizeof *dst);
        return;
    }
    uint64_t left = 1; /* leaves of the left child: the largest power of two below COUNT */
    while (left < count - left) left *= 2;
    float right[DPN_REDUCE_BLOCK_ELEMS];
    util_node_sum(walk, first, left, dst);
    util_node_sum(walk, first + left, count - left, right);
    for (size_t i = 0; i < walk->elems; i++) dst[i] = dst[i] + right[i];
}

void dpn_reduce_serial_sum(const struct dpn_reduce_terms *terms, size_t offset, size_t elems, float *dst)
{
    assert(elems <= DPN_REDUCE_BLOCK_ELEMS);
    struct util_walk walk = {.terms = terms, .offset = offset, .elems = elems};
    util_node_sum(&walk, 0, terms->leaves, dst);
    assert(walk.next == terms->n_sources);
}

enum dpn_status dpn_reduce_meeting_open(struct dpn_reduce_meeting *meeting,
                                        const struct dpn_reduce_group *group)
{
    *meeting = (struct dpn_reduce_meeting){.group = group};
    DPN_TRY(dpn_calloc(&meeting->barrier, 1, sizeof *meeting->barrier, "the reducer's barrier"));
    DPN_TRY(
        dpn_calloc(&meeting->buffers, (size_t)group->n, sizeof *meeting->buffers, "the reducer's broadcast"));
    meeting->barrier->n = (uint32_t)group->n;
    return DPN_OK;
}

void dpn_reduce_meeting_close(struct dpn_reduce_meeting *meeting)
{
    free(meeting->buffers);
    free(meeting->barrier);
}

enum dpn_status dpn_reduce_meet(struct dpn_reduce_meeting *meeting, struct dpn_reduce_stats *stats,
                                uint64_t *wait_ns)
{
    DPN_TRY(dpn_reduce_alive(meeting->group));
    if (meeting->group->n == 1) return DPN_OK;
    uint64_t start_ns = dpn_now_ns();
    stats->flag_operations++;
    enum dpn_status status = dpn_barrier_wait(meeting->barrier, meeting->group->abort);
    *wait_ns += dpn_now_ns() - start_ns;
    return status;
}

/* One of the members that share a buffer fills it: the first of them, and nobody where it is the root's. */
static int util_fills_buffer(const struct dpn_reduce_meeting *meeting, int member, int root)
{
    if (meeting->buffers[member] == meeting->buffers[root]) return 0;
    for (int other = 0; other < member; other++)
        if (meeting->buffers[other] == meeting->buffers[member]) return 0;
    return 1;
}

enum dpn_status dpn_reduce_meeting_broadcast(struct dpn_reduce_meeting *meeting, int member, int root,
                                             float *buffer, size_t elems, struct dpn_reduce_stats *stats)
{
    assert(root >= 0 && root < meeting->group->n);
    meeting->buffers[member] = buffer;
    DPN_TRY(dpn_reduce_meet(meeting, stats, &stats->wait_slowest_ns));
    if (elems > 0 && util_fills_buffer(meeting, member, root)) {
        uint64_t start_ns = dpn_now_ns();
        memcpy(buffer, meeting->buffers[root], elems * sizeof *buffer);
        stats->bytes_copied += elems * sizeof *buffer;
        stats->work_ns += dpn_now_ns() - start_ns;
    }
    /* Keeps the root's data, and the list of buffers, as they are until all have copied. */
    return dpn_reduce_meet(meeting, stats, &stats->wait_data_ns);
}
