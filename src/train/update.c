/* The optimizer step of one replica, spread over its team; with --clip-norm as
 * torch.nn.utils.clip_grad_norm_.
 */
#include <math.h>

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

/* This thread's slice of the arena. */
static size_t update_slice(const struct update_job *job, int thread, int size, size_t *first)
{
    size_t count;
    dpn_split(job->run->model->arena_elems / UPDATE_QUANTUM, (size_t)size, (size_t)thread, first, &count);
    *first *= UPDATE_QUANTUM;
    return count * UPDATE_QUANTUM;
}

static void update_apply(void *arg, int thread, int size)
{
    const struct update_job *job = arg;
    float *state[DPN_MAX_SLOTS] = {NULL};
    size_t first, count = update_slice(job, thread, size, &first);
    if (count == 0) return;
    for (int i = 0; i < job->run->n_slots; i++) state[i] = job->replica->state[i] + first;
    job->run->optimizer->update(&job->run->settings, job->run->kernels, job->step->lr, job->step->global + 1,
                                count, job->replica->params + first, job->grads + first, state);
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

void dpn_update(struct dpn_run *run, struct dpn_replica *replica, const struct dpn_step *step,
                const float *grads)
{
    struct update_job job = {run, replica, step, grads, NULL, 1.0f};
    if (run->config->clip_norm > 0) update_clip(run, replica, &job);
    dpn_team_run(replica->device->team, update_apply, &job);
    dpn_phase_end(replica, DPN_PHASE_UPDATE);
}
