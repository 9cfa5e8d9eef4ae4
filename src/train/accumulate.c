/* Shard gradients become partial sums by a binary counter keyed by the global shard index, so that only
 * siblings of the one tree are ever added; with the last shard the sums are finished bucket by bucket, while
 * they are in cache, and handed to the reducer.
 */
#include <assert.h>

#include "core/memory.h"
#include "train/trainer.h"

enum { ACC_QUANTUM = 16 }; /* floats: a cache line is one thread's */

size_t dpn_accumulate_depth(uint64_t first, uint64_t count, uint64_t leaves)
{
    uint64_t end = first + count < leaves ? first + count : leaves;
    size_t depth = 0, deepest = 0;
    for (uint64_t leaf = first; leaf < end; leaf++) {
        if (++depth > deepest) deepest = depth;
        depth -= dpn_tree_adds_after(leaf, first, end, leaves);
    }
    return deepest ? deepest : 1;
}

uint64_t dpn_accumulate_begin(struct dpn_replica *replica, const struct dpn_step *step)
{
    uint64_t end = replica->first_shard + replica->n_shards;
    replica->end_shard = end < step->leaves ? end : step->leaves;
    replica->depth = 0;
    replica->next_bucket = 0;
    return replica->end_shard > replica->first_shard ? replica->end_shard - replica->first_shard : 0;
}

struct dpn_shard dpn_accumulate_shard(const struct dpn_run *run, const struct dpn_replica *replica,
                                      const struct dpn_step *step, uint64_t number)
{
    struct dpn_shard shard = {.index = replica->first_shard + number};
    dpn_split(step->samples, run->shards, shard.index, &shard.first, &shard.rows);
    return shard;
}

struct acc_add {
    const struct dpn_kernels *kernels;
    float *sum;
    const float *other;
    size_t elems;
};

static void acc_add_part(void *arg, int thread, int size)
{
    const struct acc_add *add = arg;
    size_t first, count;
    dpn_split(add->elems / ACC_QUANTUM, (size_t)size, (size_t)thread, &first, &count);
    first *= ACC_QUANTUM;
    add->kernels->add(count * ACC_QUANTUM, add->sum + first, add->other + first, add->sum + first);
}

/* The N topmost pairs of the stack, FIRST .. FIRST+ELEMS-1 of each arena. */
static void acc_fold(const struct dpn_run *run, struct dpn_replica *replica, size_t depth, unsigned n,
                     size_t first, size_t elems)
{
    for (unsigned i = 0; i < n; i++, depth--) {
        struct acc_add add = {run->kernels, replica->stack[depth - 2] + first,
                              replica->stack[depth - 1] + first, elems};
        dpn_team_run(replica->device->team, acc_add_part, &add);
    }
}

struct acc_ready {
    struct dpn_run *run;
    struct dpn_replica *replica;
    const struct dpn_step *step;
    float *out;
    unsigned adds; /* still to be made on every bucket */
};

static enum dpn_status acc_start(const struct acc_ready *ready, size_t bucket)
{
    struct dpn_run *run = ready->run;
    struct dpn_replica *replica = ready->replica;
    const struct dpn_bucket *span = &run->plan.buckets[bucket];
    struct dpn_tree_node nodes[DPN_TREE_MAX_SEGMENTS_PER_RUN];
    struct dpn_segment segments[DPN_MAX_STACK];
    size_t n = 0;

    if (replica->end_shard > replica->first_shard) {
        acc_fold(run, replica, replica->depth, ready->adds, span->first, span->elems);
        n = dpn_tree_cover(replica->first_shard, replica->end_shard - replica->first_shard,
                           ready->step->leaves, nodes);
        assert(n == replica->depth - ready->adds);
    }
    for (size_t i = 0; i < n; i++)
        segments[i] = (struct dpn_segment){nodes[i], replica->stack[i] + span->first};
    return run->reducer->cls->start(run->reducer, replica->member, bucket, ready->step->leaves, segments, n,
                                    ready->out ? ready->out + span->first : NULL);
}

/* Called by backward when the gradients of the arena's first FLOATS floats are final. */
static enum dpn_status acc_ready(void *arg, size_t floats)
{
    const struct acc_ready *ready = arg;
    struct dpn_replica *replica = ready->replica;
    const struct dpn_bucket_plan *plan = &ready->run->plan;

    dpn_phase_end(replica, DPN_PHASE_BACKWARD);
    while (replica->next_bucket < plan->n_buckets) {
        const struct dpn_bucket *bucket = &plan->buckets[replica->next_bucket];
        if (bucket->first + bucket->elems > floats) break;
        DPN_TRY(acc_start(ready, replica->next_bucket));
        replica->next_bucket++;
    }
    if (replica->next_bucket > 0 && floats < ready->run->model->arena_elems)
        DPN_TRY(ready->run->reducer->cls->progress(ready->run->reducer, replica->member));
    dpn_phase_end(replica, DPN_PHASE_REDUCE);
    return DPN_OK;
}

enum dpn_status dpn_accumulate_backward(struct dpn_run *run, struct dpn_replica *replica,
                                        const struct dpn_step *step, struct dpn_shard shard, float *out)
{
    unsigned adds = dpn_tree_adds_after(shard.index, replica->first_shard, replica->end_shard, step->leaves);
    int last = shard.index + 1 == replica->end_shard;
    struct acc_ready ready = {run, replica, step, out, adds};

    assert(replica->depth < replica->stack_size);
    replica->execs[0].grads = replica->stack[replica->depth++];
    DPN_TRY(dpn_exec_backward(&replica->execs[0], shard.rows, last ? acc_ready : NULL, &ready));
    if (!last) {
        acc_fold(run, replica, replica->depth, adds, 0, run->model->arena_elems);
        replica->depth -= adds;
        dpn_phase_end(replica, DPN_PHASE_BACKWARD);
    }
    return DPN_OK;
}

/* After exec I is through a node whose gradients are FIRST .. END-1 of the arena. */
static enum dpn_status acc_group_done(void *arg, size_t i, size_t first, size_t end)
{
    struct dpn_replica *replica = arg;
    const struct dpn_step *step = replica->step;
    uint64_t shard = replica->first_shard + i;
    unsigned adds = dpn_tree_adds_after(shard, replica->first_shard, replica->end_shard, step->leaves);
    if (shard + 1 == replica->end_shard) {
        struct acc_ready ready = {replica->run, replica, step, replica->out, adds};
        return acc_ready(&ready, end);
    }
    size_t depth = 1;
    while (replica->stack[depth - 1] != replica->execs[i].grads) depth++;
    acc_fold(replica->run, replica, depth, adds, first, end - first);
    return DPN_OK;
}

enum dpn_status dpn_accumulate_backward_group(struct dpn_run *run, struct dpn_replica *replica,
                                              const struct dpn_step *step, uint64_t count, float *out)
{
    struct dpn_exec_group group = dpn_exchange_group(replica, count);
    group.done = acc_group_done;
    replica->out = out;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t shard = replica->first_shard + i;
        assert(replica->depth < replica->stack_size);
        replica->execs[i].grads = replica->stack[replica->depth++];
        if (i + 1 < count)
            replica->depth -= dpn_tree_adds_after(shard, replica->first_shard, replica->end_shard,
                                                  step->leaves);
    }
    DPN_TRY(dpn_exec_backward_group(run->model, &group));
    dpn_phase_end(replica, DPN_PHASE_BACKWARD);
    return DPN_OK;
}

enum dpn_status dpn_accumulate_finish(struct dpn_run *run, struct dpn_replica *replica,
                                      const struct dpn_step *step, float *out)
{
    if (replica->next_bucket == 0) {
        struct acc_ready ready = {run, replica, step, out, 0};
        DPN_TRY(acc_ready(&ready, run->model->arena_elems));
    }
    assert(replica->next_bucket == run->plan.n_buckets);
    enum dpn_status status = run->reducer->cls->wait(run->reducer, replica->member);
    dpn_phase_end(replica, DPN_PHASE_REDUCE);
    return status;
}
