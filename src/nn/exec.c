/* The executor: running a model's nodes over one device's buffers, shard by shard, or over several shards
 * that meet at every batch norm.
 */
#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "nn/nn.h"

enum { EXEC_SPREAD_MIN_MACS = 50000 }; /* about 1 us of one core: what handing out and joining costs */

/* ---- opening ---- */

static size_t exec_lines(size_t bytes)
{
    return (bytes + DPN_CACHE_LINE_BYTES - 1) / DPN_CACHE_LINE_BYTES * DPN_CACHE_LINE_BYTES;
}

/* The small things, one after the other in one block. */
static enum dpn_status exec_tables(struct dpn_exec *exec)
{
    const struct dpn_model *model = exec->model;
    size_t pointers = exec_lines(2 * model->n_values * sizeof(float *));
    size_t labels = exec_lines(exec->max_rows * sizeof(int32_t));
    size_t moments = exec_lines(model->moments_elems * sizeof(double));
    size_t aux = exec_lines(model->aux_elems * sizeof(float));
    DPN_TRY(dpn_calloc(&exec->tables, 1, pointers + labels + 3 * moments + aux, "a device's tables"));
    char *at = exec->tables;
    exec->value = (float **)(void *)at;
    exec->grad = exec->value + model->n_values;
    exec->labels = (int32_t *)(void *)(at += pointers);
    exec->moments = (double *)(void *)(at += labels);
    exec->sums = (double *)(void *)(at += moments);
    exec->total = (double *)(void *)(at += moments);
    exec->aux = (float *)(void *)(at + moments);
    return DPN_OK;
}

enum dpn_status dpn_exec_open(struct dpn_exec *exec, const struct dpn_model *model,
                              const struct dpn_kernels *kernels, struct dpn_team *team,
                              const struct dpn_plan *plan, void *memory)
{
    float *floats = memory;
    assert((uintptr_t)memory % DPN_CACHE_LINE_BYTES == 0);
    *exec = (struct dpn_exec){
        .model = model,
        .kernels = kernels,
        .team = team,
        .max_rows = plan->max_rows,
        .shared = floats + plan->shared_at,
        .blocks = floats + plan->blocks_at,
        .scratch = floats + plan->scratch_at,
        .scratch_floats = plan->workspace.scratch,
    };
    DPN_TRY(exec_tables(exec));
    for (size_t v = 0; v < model->n_values; v++) {
        exec->value[v] = plan->value_at[v] == SIZE_MAX ? NULL : floats + plan->value_at[v];
        exec->grad[v] = plan->grad_at[v] == SIZE_MAX ? NULL : floats + plan->grad_at[v];
    }
    return DPN_OK;
}

void dpn_exec_close(struct dpn_exec *exec)
{
    free(exec->tables);
    memset(exec, 0, sizeof *exec);
}

/* ---- for op files ---- */

void dpn_exec_spread(const struct dpn_exec *exec, double work, dpn_team_fn *fn, void *arg)
{
    if (work < EXEC_SPREAD_MIN_MACS || !exec->team || dpn_team_size(exec->team) == 1) fn(arg, 0, 1);
    else dpn_team_run(exec->team, fn, arg);
}

void dpn_exec_ready(struct dpn_exec *exec, size_t floats)
{
    if (exec->ready && exec->ready_status == DPN_OK)
        exec->ready_status = exec->ready(exec->ready_arg, floats);
}

/* ---- the loss ---- */

void dpn_exec_loss(struct dpn_exec *exec, size_t rows, int gradient, float scale, double *loss,
                   uint64_t *correct)
{
    const struct dpn_model *model = exec->model;
    float *grad = gradient ? exec->grad[model->logits] : NULL;
    assert(rows > 0 && rows <= exec->max_rows && (!gradient || grad));
    exec->kernels->softmax_xent(rows, model->classes, model->values[model->logits].stride,
                                exec->value[model->logits], exec->labels, scale, grad, loss, correct);
}

/* ---- one shard ---- */

static void exec_own_moments(const struct dpn_node *node, struct dpn_exec *exec, size_t rows, int backward)
{
    if (!node->cls->measure) return;
    node->cls->measure(node, exec, rows, backward);
    node->cls->adopt(node, exec, (backward ? exec->sums : exec->moments) + node->moments_at, backward);
}

void dpn_exec_forward(struct dpn_exec *exec, size_t rows, int training)
{
    const struct dpn_model *model = exec->model;
    assert(rows > 0 && rows <= exec->max_rows);
    for (size_t i = 0; i < model->n_nodes; i++) {
        const struct dpn_node *node = &model->nodes[i];
        if (training) exec_own_moments(node, exec, rows, 0);
        node->cls->forward(node, exec, rows, training);
    }
}

enum dpn_status dpn_exec_backward(struct dpn_exec *exec, size_t rows,
                                  enum dpn_status (*ready)(void *arg, size_t floats), void *arg)
{
    const struct dpn_model *model = exec->model;
    assert(rows > 0 && rows <= exec->max_rows && exec->grad[model->logits]);
    exec->ready = ready;
    exec->ready_arg = arg;
    exec->ready_status = DPN_OK;
    for (size_t i = model->n_nodes; i-- > 0;) {
        const struct dpn_node *node = &model->nodes[i];
        if (!model->values[node->output].learns) continue;
        exec_own_moments(node, exec, rows, 1);
        node->cls->backward(node, exec, rows);
        if (node->tensors[0] >= 0) dpn_exec_ready(exec, node->ready);
        DPN_TRY(exec->ready_status);
    }
    return DPN_OK;
}

/* ---- shards that meet ---- */

static enum dpn_status exec_meet(const struct dpn_model *model, const struct dpn_node *node,
                                 const struct dpn_exec_group *group, int backward)
{
    size_t elems = node->cls->moments_elems(model, node);
    const double *all;
    uint64_t leaves;
    for (size_t i = 0; i < group->n; i++)
        node->cls->measure(node, &group->execs[i], group->rows[i], backward);
    DPN_TRY(group->exchange(group->arg, node->moments_at, backward, elems, &all, &leaves));
    if (group->n == 0) return DPN_OK;
    double *total = group->execs[0].total;
    node->cls->combine(elems, all, leaves, backward, total);
    for (size_t i = 0; i < group->n; i++) node->cls->adopt(node, &group->execs[i], total, backward);
    return DPN_OK;
}

enum dpn_status dpn_exec_forward_group(const struct dpn_model *model, const struct dpn_exec_group *group)
{
    for (size_t i = 0; i < model->n_nodes; i++) {
        const struct dpn_node *node = &model->nodes[i];
        if (node->cls->measure) DPN_TRY(exec_meet(model, node, group, 0));
        for (size_t e = 0; e < group->n; e++) node->cls->forward(node, &group->execs[e], group->rows[e], 1);
    }
    return DPN_OK;
}

enum dpn_status dpn_exec_backward_group(const struct dpn_model *model, const struct dpn_exec_group *group)
{
    for (size_t e = 0; e < group->n; e++) group->execs[e].ready = NULL;
    for (size_t i = model->n_nodes; i-- > 0;) {
        const struct dpn_node *node = &model->nodes[i];
        if (!model->values[node->output].learns) continue;
        if (node->cls->measure) DPN_TRY(exec_meet(model, node, group, 1));
        for (size_t e = 0; e < group->n; e++) {
            node->cls->backward(node, &group->execs[e], group->rows[e]);
            if (node->tensors[0] >= 0) DPN_TRY(group->done(group->arg, e, node->first, node->ready));
        }
    }
    return DPN_OK;
}
