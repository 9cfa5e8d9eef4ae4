/* Mode dp, as torch.nn.DataParallel. Idea: device 0 owns the model, the batch and the optimizer; each step it
 * broadcasts the parameters, scatters the batch, gathers the logits, computes the loss, scatters the logits'
 * gradient, and reduces gradients to itself. All are real copies between devices' buffers: that is what the
 * mode costs and what it is measured for. V > N runs in waves of one shard per device (with
 * --batch-norm sync in one wave of all). Bytes copied a step:
 * parameters x (N-1), inputs, logits and their gradients once each. Determinism: same numbers as ddp, bit by
 * bit. Limits: one rank; device 0 works alone during loading, loss and update.
 */
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "train/trainer.h"

/* Device 0's buffers of the whole batch. */
struct dp_root {
    float *input, *logits;
    int32_t *labels;
    size_t input_bytes, logits_bytes, labels_bytes;
};

static enum dpn_status dp_check(const struct dpn_run *run)
{
    (void)run;
    return DPN_OK;
}

static enum dpn_status dp_open(struct dpn_run *run, struct dpn_replica *replica)
{
    const struct dpn_value *values = run->model->values;
    struct dp_root *root;
    if (replica->member != 0) return DPN_OK;
    DPN_TRY(dpn_calloc(&root, 1, sizeof *root, "mode dp"));
    run->mode_data = root;
    root->input_bytes = run->batch * values[0].stride * sizeof(float);
    root->logits_bytes = run->batch * values[run->model->logits].stride * sizeof(float);
    root->labels_bytes = run->batch * sizeof(int32_t);
    DPN_TRY(dpn_arena_alloc(&root->input, root->input_bytes, "mode dp: inputs of a batch"));
    DPN_TRY(dpn_arena_alloc(&root->logits, root->logits_bytes, "mode dp: logits of a batch"));
    return dpn_arena_alloc(&root->labels, root->labels_bytes, "mode dp: labels of a batch");
}

static void dp_close(struct dpn_run *run, struct dpn_replica *replica)
{
    struct dp_root *root = run->mode_data;
    if (replica->member != 0 || !root) return;
    dpn_arena_free(root->input, root->input_bytes);
    dpn_arena_free(root->logits, root->logits_bytes);
    dpn_arena_free(root->labels, root->labels_bytes);
    free(root);
    run->mode_data = NULL;
}

static enum dpn_status dp_meet(struct dpn_run *run, struct dpn_replica *replica)
{
    if (run->group.n == 1) return DPN_OK;
    enum dpn_status status = dpn_barrier_wait(&run->barrier, &run->group.abort);
    dpn_phase_end(replica, DPN_PHASE_WAIT);
    return status;
}

/* Device 0: the losses of shards FIRST .. END-1 of every member, each in one piece as ddp does it; logits
 * become their gradients. */
static void dp_losses(struct dpn_run *run, const struct dpn_step *step, uint64_t first, uint64_t end)
{
    const struct dp_root *root = run->mode_data;
    size_t stride = run->model->values[run->model->logits].stride;
    for (size_t m = 0; m < run->group.n; m++) {
        const struct dpn_replica *owner = &run->replicas[m];
        for (uint64_t i = first; i < end && i < owner->n_shards && owner->first_shard + i < step->leaves;
             i++) {
            struct dpn_shard shard = dpn_accumulate_shard(run, owner, step, i);
            float *logits = root->logits + shard.first * stride;
            uint64_t correct;
            run->kernels->softmax_xent(shard.rows, run->model->classes, stride, logits,
                                       root->labels + shard.first, dpn_loss_scale(run, owner, step), logits,
                                       &run->shard_loss[step->global & 1][shard.index], &correct);
        }
    }
}

/* Between forward and backward of the members' shards FIRST .. END-1. */
static enum dpn_status dp_loss(struct dpn_run *run, struct dpn_replica *replica, const struct dpn_step *step,
                               uint64_t first, uint64_t end)
{
    DPN_TRY(dp_meet(run, replica));
    if (replica->member == 0) {
        dp_losses(run, step, first, end);
        dpn_phase_end(replica, DPN_PHASE_FORWARD);
    }
    return dp_meet(run, replica);
}

/* From the root: the inputs of shard NUMBER. */
static struct dpn_shard dp_scatter(struct dpn_run *run, struct dpn_replica *replica,
                                   const struct dpn_step *step, uint64_t number, struct dpn_exec *exec)
{
    const struct dp_root *root = run->mode_data;
    size_t stride = run->model->values[0].stride;
    struct dpn_shard shard = dpn_accumulate_shard(run, replica, step, number);
    memcpy(exec->value[0], root->input + shard.first * stride, shard.rows * stride * sizeof(float));
    dpn_exchange_moments(run, exec, step, shard.index);
    dpn_phase_end(replica, DPN_PHASE_INPUT);
    return shard;
}

/* To and from the root: the logits of a shard, and their gradients. */
static void dp_gather(const struct dpn_run *run, const struct dpn_exec *exec, struct dpn_shard shard)
{
    const struct dp_root *root = run->mode_data;
    size_t stride = run->model->values[run->model->logits].stride;
    memcpy(root->logits + shard.first * stride, exec->value[run->model->logits],
           shard.rows * stride * sizeof(float));
}

static void dp_scatter_gradient(const struct dpn_run *run, const struct dpn_exec *exec,
                                struct dpn_shard shard)
{
    const struct dp_root *root = run->mode_data;
    size_t stride = run->model->values[run->model->logits].stride;
    memcpy(exec->grad[run->model->logits], root->logits + shard.first * stride,
           shard.rows * stride * sizeof(float));
}

static enum dpn_status dp_wave(struct dpn_run *run, struct dpn_replica *replica, const struct dpn_step *step,
                               uint64_t wave, uint64_t count, float *out)
{
    struct dpn_exec *exec = &replica->execs[0];
    struct dpn_shard shard = {0};

    if (wave < count) {
        shard = dp_scatter(run, replica, step, wave, exec);
        dpn_exec_forward(exec, shard.rows, 1);
        dp_gather(run, exec, shard);
        dpn_phase_end(replica, DPN_PHASE_FORWARD);
    }
    DPN_TRY(dp_loss(run, replica, step, wave, wave + 1));
    if (wave >= count) return DPN_OK;
    dp_scatter_gradient(run, exec, shard);
    return dpn_accumulate_backward(run, replica, step, shard, out);
}

/* One wave of all shards, because batch norms look at the whole batch. */
static enum dpn_status dp_group(struct dpn_run *run, struct dpn_replica *replica, const struct dpn_step *step,
                                uint64_t count, float *out)
{
    struct dpn_exec_group group = dpn_exchange_group(replica, count);
    for (uint64_t i = 0; i < count; i++) dp_scatter(run, replica, step, i, &replica->execs[i]);
    DPN_TRY(dpn_exec_forward_group(run->model, &group));
    for (uint64_t i = 0; i < count; i++)
        dp_gather(run, &replica->execs[i], dpn_accumulate_shard(run, replica, step, i));
    dpn_phase_end(replica, DPN_PHASE_FORWARD);
    DPN_TRY(dp_loss(run, replica, step, 0, run->shards));
    for (uint64_t i = 0; i < count; i++)
        dp_scatter_gradient(run, &replica->execs[i], dpn_accumulate_shard(run, replica, step, i));
    return dpn_accumulate_backward_group(run, replica, step, count, out);
}

/* Parameters from device 0 to all. */
static enum dpn_status dp_sync(struct dpn_run *run, struct dpn_replica *replica)
{
    if (run->group.n == 1) return DPN_OK;
    enum dpn_status status = run->reducer->cls->broadcast(run->reducer, replica->member, 0, replica->params,
                                                          run->model->arena_elems);
    dpn_phase_end(replica, DPN_PHASE_REDUCE);
    return status;
}

static enum dpn_status dp_step(struct dpn_run *run, struct dpn_replica *replica, const struct dpn_step *step)
{
    struct dp_root *root = run->mode_data;
    uint64_t count = dpn_accumulate_begin(replica, step);
    uint64_t waves = (run->shards + run->group.n - 1) / run->group.n;
    float *out = replica->member == 0 ? replica->result : NULL;

    replica->step = step;
    if (replica->member == 0) {
        dpn_input_batch(run, replica, step, 0, step->samples, root->input, root->labels);
        dpn_phase_end(replica, DPN_PHASE_INPUT);
    }
    DPN_TRY(dp_sync(run, replica));
    DPN_TRY(dp_meet(run, replica));
    if (run->norm_sync) DPN_TRY(dp_group(run, replica, step, count, out));
    for (uint64_t w = 0; w < waves && !run->norm_sync; w++)
        DPN_TRY(dp_wave(run, replica, step, w, count, out));
    DPN_TRY(dpn_accumulate_finish(run, replica, step, out));
    if (replica->member != 0) return DPN_OK;
    if (dpn_report_tensors_due(run, replica, step)) DPN_TRY(dpn_report_gradients(run, step, replica->result));
    return dpn_update(run, replica, step, replica->result);
}

const struct dpn_mode_class dpn_mode_dp = {
    .name = "dp",
    .summary = "as torch.nn.DataParallel: device 0 broadcasts parameters, scatters, gathers, steps alone",
    .check = dp_check,
    .open = dp_open,
    .close = dp_close,
    .step = dp_step,
    .sync = dp_sync,
};
