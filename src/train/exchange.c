/* Batch norms of several shards: running statistics from all shards' moments, and with --batch-norm sync the
 * exchange of moments in the middle of a pass, by shared memory and a barrier of its own.
 *
 * Every leaf's doubles are laid side by side and each member adds them up along the one tree, so the
 * statistics have the same bits on every member and for any number of members. Two buffers serve in turn:
 * whoever writes one again has passed the barrier of the other, which nobody passes before all have read the
 * first.
 */
#include <string.h>

#include "core/log.h"
#include "train/trainer.h"

static enum dpn_status exchange_moments(void *arg, size_t at, int backward, size_t elems, const double **all,
                                        uint64_t *leaves)
{
    struct dpn_replica *replica = arg;
    struct dpn_run *run = replica->run;
    double *shared = run->exchange[replica->exchanges++ & 1];
    for (uint64_t i = 0; replica->first_shard + i < replica->end_shard; i++) {
        const struct dpn_exec *exec = &replica->execs[i];
        memcpy(shared + (replica->first_shard + i) * elems, (backward ? exec->sums : exec->moments) + at,
               elems * sizeof *shared);
    }
    *all = shared;
    *leaves = replica->step->leaves;
    if (run->group.n == 1) return DPN_OK;
    return dpn_barrier_wait(&run->norm_barrier, &run->group.abort);
}

struct dpn_exec_group dpn_exchange_group(struct dpn_replica *replica, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        replica->rows[i] = dpn_accumulate_shard(replica->run, replica, replica->step, i).rows;
    return (struct dpn_exec_group){
        .execs = replica->execs,
        .rows = replica->rows,
        .n = (size_t)count,
        .exchange = exchange_moments,
        .arg = replica,
    };
}

void dpn_exchange_moments(struct dpn_run *run, struct dpn_exec *exec, const struct dpn_step *step,
                          uint64_t shard)
{
    if (run->buffers)
        exec->moments = run->shard_moments[step->global & 1] + shard * run->model->moments_elems;
}

void dpn_exchange_running(struct dpn_run *run, const struct dpn_step *step)
{
    if (!run->buffers) return;
    int uncorrected = dpn_batch_norm_update(run->model, run->shard_moments[step->global & 1],
                                            run->model->moments_elems, step->leaves, run->norm_sync,
                                            run->buffers);
    run->batches++;
    if (uncorrected && !run->uncorrected_said)
        dpn_note("note: a batch norm saw one value per channel in a shard: its variance counts as it is, "
                 "without the "
                 "correction m/(m-1)");
    run->uncorrected_said |= uncorrected;
}
