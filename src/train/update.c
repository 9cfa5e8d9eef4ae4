/* The optimizer step: fused into the reducer slice by slice, or over a replica's whole arena by its team.
 * Clipping is that of torch.nn.utils.clip_grad_norm_.
 */
#include <math.h>
#include <string.h>

#include "core/memory.h"
#include "train/trainer.h"

enum { UPDATE_QUANTUM = DPN_ARENA_QUANTUM_ELEMS, UPDATE_NORM_BLOCK = 64 * DPN_ARENA_QUANTUM_ELEMS };

struct update_job {
    const struct dpn_run *run;
    const struct dpn_replica *replica;
    const struct dpn_step *step;
    const float *grads;
    float *scaled; /* where clipped gradients go */
    float factor;
};

/* This thread's slice of what the device updates: the whole arena, or its share of shared parameters. */
static size_t update_slice(const struct update_job *job, int thread, int size, size_t *first)
{
    size_t begin = 0, quanta = job->run->model->arena_elems / UPDATE_QUANTUM, count;
    if (job->run->fused) dpn_split(quanta, job->run->group.n, (size_t)job->replica->member, &begin, &quanta);
    dpn_split(quanta, (size_t)size, (size_t)thread, first, &count);
    *first = (*first + begin) * UPDATE_QUANTUM;
    return count * UPDATE_QUANTUM;
}

/* The devices of a node share one set of parameters, its first device's: every other node gets a copy. */
static void update_publish(const struct dpn_run *run, const struct dpn_replica *replica, size_t first,
                           size_t elems)
{
    if (run->group.node_count == 1) return;
    for (size_t m = 0; m < run->group.n; m++) {
        float *params = run->replicas[m].params;
        size_t before = 0;
        while (before < m && run->replicas[before].params != params) before++;
        if (before == m && params != replica->params)
            memcpy(params + first, replica->params + first, elems * sizeof *params);
    }
}

/* ELEMS floats from FIRST on, whose gradients are at GRADS. */
static void update_span(const struct dpn_run *run, const struct dpn_replica *replica,
                        const struct dpn_step *step, size_t first, size_t elems, const float *grads)
{
    const struct dpn_replica *holder = run->fused ? &run->replicas[0] : replica;
    float *state[DPN_MAX_SLOTS] = {NULL};
    for (int i = 0; i < run->n_slots; i++) state[i] = holder->state[i] + first;
    run->optimizer->update(&run->settings, run->kernels, step->lr, step->global + 1, elems,
                           replica->params + first, grads, state);
    if (run->fused) update_publish(run, replica, first, elems);
}

void dpn_update_fused(void *arg, int member, size_t first, size_t elems, const float *sum)
{
    const struct dpn_run *run = arg;
    const struct dpn_replica *replica = &run->replicas[member];
    update_span(run, replica, replica->step, first, elems, sum);
}

/* Other cores have read these parameters in this step, so writing them means taking each cache line away from
 * those first. Asked for ahead of time, many lines are under way at once; the writes alone wait for them one
 * after the other (measured with two devices: 2.1 times the time of the whole reduction). */
void dpn_update_soon(void *arg, int member, size_t first, size_t elems)
{
    const struct dpn_run *run = arg;
    dpn_prefetch_write(run->replicas[member].params + first, elems * sizeof(float));
}

static void update_apply(void *arg, int thread, int size)
{
    const struct update_job *job = arg;
    size_t first, count = update_slice(job, thread, size, &first);
    if (count) update_span(job->run, job->replica, job->step, first, count, job->grads + first);
}

static void update_norm_part(void *arg, int thread, int size)
{
    const struct update_job *job = arg;
    size_t elems = job->run->model->arena_elems;
    size_t blocks = dpn_update_norm_parts(elems), first, count;
    dpn_split(blocks, (size_t)size, (size_t)thread, &first, &count);
    for (size_t b = first; b < first + count; b++) {
        size_t at = b * UPDATE_NORM_BLOCK,
               n = elems - at < UPDATE_NORM_BLOCK ? elems - at : UPDATE_NORM_BLOCK;
        job->replica->norm_parts[b] = job->run->kernels->sum_squares(n, job->grads + at);
    }
}

static void update_scale_part(void *arg, int thread, int size)
{
    const struct update_job *job = arg;
    size_t first, count = update_slice(job, thread, size, &first);
    job->run->kernels->f32_affine(count, job->grads + first, job->factor, 0.0f, job->scaled + first);
}

/* The reduced gradient may be shared with other devices, so the clipped one goes to a buffer of this
 * replica's. */
static void update_clip(struct dpn_run *run, struct dpn_replica *replica, struct update_job *job)
{
    size_t blocks = dpn_update_norm_parts(run->model->arena_elems);
    double sum = 0.0;
    dpn_team_run(replica->device->team, update_norm_part, job);
    for (size_t b = 0; b < blocks; b++) sum += replica->norm_parts[b];
    double factor = run->config->clip_norm / (sqrt(sum) + 1e-6);
    if (factor >= 1.0) return;
    job->factor = (float)factor;
    job->scaled = replica->stack[0];
    dpn_team_run(replica->device->team, update_scale_part, job);
    job->grads = job->scaled;
}

size_t dpn_update_norm_parts(size_t arena_elems)
{
    return (arena_elems + UPDATE_NORM_BLOCK - 1) / UPDATE_NORM_BLOCK;
}

enum dpn_status dpn_update(struct dpn_run *run, struct dpn_replica *replica, const struct dpn_step *step,
                           const float *grads)
{
    struct update_job job = {run, replica, step, grads, NULL, 1.0f};
    if (run->config->clip_norm > 0) update_clip(run, replica, &job);
    dpn_team_run(replica->device->team, update_apply, &job);
    dpn_phase_end(replica, DPN_PHASE_UPDATE);
    if (!run->fused) return DPN_OK;
    /* Nobody may use the shared parameters before all shares are done. */
    return run->reducer->cls->barrier(run->reducer, replica->member);
}
