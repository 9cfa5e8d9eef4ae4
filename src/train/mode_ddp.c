/* Mode ddp. Idea: every device computes its shards' gradients, and all take part in a bucketed all-reduce
 * that overlaps backward. Fused (teams of one thread): the owner of a slice of the sum applies the optimizer
 * to that slice of the parameters, which the devices of a NUMA node share. Plain: each device has a replica
 * of its own, and all make the same update. Bytes moved a step: each gradient segment read once; parameters
 * (fused) or the sum (plain) written once a node. Determinism: the reducer's (exact_tree: same bits for any
 * number of devices). Limits: none.
 */
#include "train/trainer.h"

static enum dpn_status ddp_check(const struct dpn_run *run)
{
    (void)run;
    return DPN_OK;
}

/* While shard NUMBER of COUNT is computed, its successor's samples come from memory. */
static void ddp_look_ahead(struct dpn_run *run, struct dpn_replica *replica, const struct dpn_step *step,
                           uint64_t number, uint64_t count)
{
    struct dpn_step next = *step;
    struct dpn_shard shard;
    if (number + 1 == count) {
        if (++next.in_epoch >= run->sampler.steps) return;
        next.samples = dpn_sampler_step_samples(&run->sampler, next.in_epoch);
        number = UINT64_MAX;
    }
    shard = dpn_accumulate_shard(run, replica, &next, number + 1);
    dpn_input_ahead(run, replica, &next, shard.first, shard.rows);
}

/* Shard NUMBER of COUNT into EXEC. */
static struct dpn_shard ddp_load(struct dpn_run *run, struct dpn_replica *replica,
                                 const struct dpn_step *step, uint64_t number, struct dpn_exec *exec)
{
    struct dpn_shard shard = dpn_accumulate_shard(run, replica, step, number);
    dpn_input_batch(run, replica, step, shard.first, shard.rows, exec->value[0], exec->labels);
    dpn_exchange_moments(run, exec, step, shard.index);
    dpn_phase_end(replica, DPN_PHASE_INPUT);
    return shard;
}

/* One shard after the other through the whole model. */
static enum dpn_status ddp_shards(struct dpn_run *run, struct dpn_replica *replica,
                                  const struct dpn_step *step, uint64_t count, float *out)
{
    struct dpn_exec *exec = &replica->execs[0];
    float scale = dpn_loss_scale(run, replica, step);
    uint64_t correct;
    for (uint64_t i = 0; i < count; i++) {
        struct dpn_shard shard = ddp_load(run, replica, step, i, exec);
        dpn_exec_forward(exec, shard.rows, 1);
        ddp_look_ahead(run, replica, step, i, count);
        dpn_exec_loss(exec, shard.rows, 1, scale, &run->shard_loss[step->global & 1][shard.index], &correct);
        dpn_phase_end(replica, DPN_PHASE_FORWARD);
        DPN_TRY(dpn_accumulate_backward(run, replica, step, shard, out));
    }
    return DPN_OK;
}

/* All shards through an op before the next one, because batch norms look at the whole batch. */
static enum dpn_status ddp_group(struct dpn_run *run, struct dpn_replica *replica,
                                 const struct dpn_step *step, uint64_t count, float *out)
{
    struct dpn_exec_group group = dpn_exchange_group(replica, count);
    float scale = dpn_loss_scale(run, replica, step);
    uint64_t correct;
    for (uint64_t i = 0; i < count; i++) ddp_load(run, replica, step, i, &replica->execs[i]);
    DPN_TRY(dpn_exec_forward_group(run->model, &group));
    for (uint64_t i = 0; i < count; i++)
        dpn_exec_loss(&replica->execs[i], replica->rows[i], 1, scale,
                      &run->shard_loss[step->global & 1][replica->first_shard + i], &correct);
    dpn_phase_end(replica, DPN_PHASE_FORWARD);
    return dpn_accumulate_backward_group(run, replica, step, count, out);
}

static enum dpn_status ddp_step(struct dpn_run *run, struct dpn_replica *replica, const struct dpn_step *step)
{
    uint64_t count = dpn_accumulate_begin(replica, step);
    /* Fused: nobody wants the gradient itself, except to look at it. */
    int whole = !run->fused || dpn_report_tensors_step(run, step);
    float *out = whole ? replica->result : NULL;

    replica->step = step;
    DPN_TRY((run->norm_sync ? ddp_group : ddp_shards)(run, replica, step, count, out));
    DPN_TRY(dpn_accumulate_finish(run, replica, step, out));
    if (!whole) return DPN_OK;
    if (dpn_report_tensors_due(run, replica, step)) DPN_TRY(dpn_report_gradients(run, step, out));
    return dpn_update(run, replica, step, out);
}

const struct dpn_mode_class dpn_mode_ddp = {
    .name = "ddp",
    .summary = "every device all-reduces gradients in buckets, overlapped with backward",
    .check = ddp_check,
    .step = ddp_step,
    .replicated_state = 1,
};
