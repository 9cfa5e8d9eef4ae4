/* The executor: where a device's activations and gradients lie, and running a model's nodes over them.
 *
 * Values that share a buffer are a group, named by its root. A buffer is given again to a later group once
 * the last node that touches the earlier one has run; a chain of layers so needs two.
 */
#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "core/memory.h"
#include "nn/nn.h"

enum { EXEC_SPREAD_MIN_MACS = 50000 }; /* about 1 us of one core: what handing out and joining costs */

/* A group's life in node times, inclusive; first > last: it needs no buffer. */
struct exec_life {
    size_t first, last;
};

struct exec_plan {
    size_t labels_at, floats_at, bytes; /* bytes */
    size_t value_at[DPN_MAX_VALUES];    /* floats from floats_at, of roots */
    size_t grad_at[DPN_MAX_VALUES];     /* SIZE_MAX: no gradient */
};

/* The largest multiple of a page: sums stop there instead of wrapping. */
static const size_t exec_limit = SIZE_MAX - DPN_PAGE_BYTES + 1;

static size_t exec_add(size_t a, size_t b)
{
    size_t sum;
    return __builtin_add_overflow(a, b, &sum) || sum > exec_limit ? exec_limit : sum;
}

static size_t exec_mul(size_t a, size_t b)
{
    size_t product;
    return __builtin_mul_overflow(a, b, &product) || product > exec_limit ? exec_limit : product;
}

static size_t exec_root(const struct dpn_model *model, size_t value)
{
    while (model->values[value].in_place_of >= 0) value = (size_t)model->values[value].in_place_of;
    return value;
}

static void exec_extend(struct exec_life *life, size_t time)
{
    if (life->first > life->last) {
        life->first = life->last = time;
        return;
    }
    if (time < life->first) life->first = time;
    if (time > life->last) life->last = time;
}

static int exec_overlap(const struct exec_life *a, const struct exec_life *b)
{
    return a->first <= b->last && b->first <= a->last;
}

/* Gives each group with a life the first buffer that is free then, and lays the buffers out from float FROM
 * on; AT of groups without one is left alone. Values are visited in the order of their lives. Returns the
 * first float after them. */
static size_t exec_assign(const struct dpn_model *model, const struct exec_life *lives, int descending,
                          size_t max_rows, size_t from, size_t *at)
{
    size_t n = model->n_values, buffer_of[DPN_MAX_VALUES], stride[DPN_MAX_VALUES], begin[DPN_MAX_VALUES];
    size_t n_buffers = 0;
    for (size_t k = 0; k < n; k++) {
        size_t v = descending ? n - 1 - k : k, b = 0;
        buffer_of[v] = SIZE_MAX;
        if (lives[v].first > lives[v].last) continue;
        for (; b < n_buffers; b++) {
            int taken = 0;
            for (size_t u = 0; u < n && !taken; u++) {
                int done = descending ? u > v : u < v;
                taken = done && buffer_of[u] == b && exec_overlap(&lives[u], &lives[v]);
            }
            if (!taken) break;
        }
        if (b == n_buffers) stride[n_buffers++] = 0;
        buffer_of[v] = b;
        if (model->values[v].stride > stride[b]) stride[b] = model->values[v].stride;
    }
    for (size_t b = 0; b < n_buffers; b++) {
        begin[b] = from;
        from = exec_add(from, exec_mul(stride[b], max_rows));
    }
    for (size_t v = 0; v < n; v++)
        if (buffer_of[v] != SIZE_MAX) at[v] = begin[buffer_of[v]];
    return from;
}

/* Activations: in training all live to the end. Value 0 always does: whoever fills it keeps its padding, and
 * may run it twice. */
static size_t exec_plan_values(const struct dpn_model *model, size_t max_rows, int training, size_t *at)
{
    struct exec_life lives[DPN_MAX_VALUES];
    for (size_t v = 0; v < model->n_values; v++) lives[v] = (struct exec_life){1, 0};
    exec_extend(&lives[0], 0);
    for (size_t i = 0; i < model->n_nodes; i++) {
        exec_extend(&lives[exec_root(model, (size_t)model->nodes[i].input)], i);
        exec_extend(&lives[exec_root(model, (size_t)model->nodes[i].output)], i);
    }
    exec_extend(&lives[exec_root(model, (size_t)model->logits)], model->n_nodes);
    exec_extend(&lives[0], model->n_nodes);
    for (size_t v = 0; training && v < model->n_values; v++)
        if (lives[v].first <= lives[v].last) lives[v].last = model->n_nodes;
    return exec_assign(model, lives, 0, max_rows, 0, at);
}

/* Gradients, in backward time: from the loss or the node that reads the value to the node that made it. */
static size_t exec_plan_grads(const struct dpn_model *model, size_t max_rows, size_t from, size_t *at)
{
    struct exec_life lives[DPN_MAX_VALUES];
    for (size_t v = 0; v < model->n_values; v++) lives[v] = (struct exec_life){1, 0};
    exec_extend(&lives[exec_root(model, (size_t)model->logits)], 0);
    for (size_t i = model->n_nodes; i-- > 0;) {
        const struct dpn_node *node = &model->nodes[i];
        size_t time = model->n_nodes - i;
        if (model->values[node->output].learns)
            exec_extend(&lives[exec_root(model, (size_t)node->output)], time);
        if (node->needs_input_grad) exec_extend(&lives[exec_root(model, (size_t)node->input)], time);
    }
    return exec_assign(model, lives, 1, max_rows, from, at);
}

static void exec_plan(const struct dpn_model *model, size_t max_rows, int training, struct exec_plan *plan)
{
    memset(plan->grad_at, 0xff, sizeof plan->grad_at);
    size_t floats = exec_plan_values(model, max_rows, training, plan->value_at);
    if (training) floats = exec_plan_grads(model, max_rows, floats, plan->grad_at);
    size_t pointers = 2 * model->n_values * sizeof(float *);
    plan->labels_at = (pointers + DPN_CACHE_LINE_BYTES - 1) / DPN_CACHE_LINE_BYTES * DPN_CACHE_LINE_BYTES;
    /* Saturated sums come out too large to be had, never too small. */
    size_t labels = exec_mul(exec_add(max_rows, 15) / 16, DPN_CACHE_LINE_BYTES);
    plan->floats_at = exec_add(plan->labels_at, labels);
    size_t bytes = exec_add(plan->floats_at, exec_mul(floats, sizeof(float)));
    bytes = exec_add(bytes, DPN_PAGE_BYTES - 1);
    plan->bytes = bytes / DPN_PAGE_BYTES * DPN_PAGE_BYTES;
}

size_t dpn_exec_bytes(const struct dpn_model *model, size_t max_rows, int training)
{
    struct exec_plan plan;
    exec_plan(model, max_rows, training, &plan);
    return plan.bytes;
}

enum dpn_status dpn_exec_open(struct dpn_exec *exec, const struct dpn_model *model,
                              const struct dpn_kernels *kernels, struct dpn_team *team, size_t max_rows,
                              int training, void *memory)
{
    struct exec_plan plan;
    assert(max_rows > 0 && (uintptr_t)memory % DPN_CACHE_LINE_BYTES == 0);
    exec_plan(model, max_rows, training, &plan);
    memset(memory, 0, plan.bytes);
    char *base = memory;
    float **pointers = memory, *floats = (float *)(void *)(base + plan.floats_at);
    *exec = (struct dpn_exec){
        .model = model,
        .kernels = kernels,
        .team = team,
        .max_rows = max_rows,
        .value = pointers,
        .grad = pointers + model->n_values,
        .labels = (int32_t *)(void *)(base + plan.labels_at),
        .memory = memory,
        .memory_bytes = plan.bytes,
    };
    for (size_t v = 0; v < model->n_values; v++) {
        size_t root = exec_root(model, v);
        exec->value[v] = floats + plan.value_at[root];
        if (model->values[v].learns && plan.grad_at[root] != SIZE_MAX)
            exec->grad[v] = floats + plan.grad_at[root];
    }
    return DPN_OK;
}

void dpn_exec_close(struct dpn_exec *exec)
{
    memset(exec, 0, sizeof *exec);
}

void dpn_exec_spread(const struct dpn_exec *exec, double work, dpn_team_fn *fn, void *arg)
{
    if (work < EXEC_SPREAD_MIN_MACS || !exec->team || dpn_team_size(exec->team) == 1) fn(arg, 0, 1);
    else dpn_team_run(exec->team, fn, arg);
}

void dpn_exec_forward(struct dpn_exec *exec, size_t rows, int training)
{
    const struct dpn_model *model = exec->model;
    assert(rows > 0 && rows <= exec->max_rows);
    for (size_t i = 0; i < model->n_nodes; i++)
        model->nodes[i].cls->forward(&model->nodes[i], exec, rows, training);
}

void dpn_exec_loss(struct dpn_exec *exec, size_t rows, int gradient, float scale, double *loss,
                   uint64_t *correct)
{
    const struct dpn_model *model = exec->model;
    float *grad = gradient ? exec->grad[model->logits] : NULL;
    assert(rows > 0 && rows <= exec->max_rows && (!gradient || grad));
    exec->kernels->softmax_xent(rows, model->classes, model->values[model->logits].stride,
                                exec->value[model->logits], exec->labels, scale, grad, loss, correct);
}

void dpn_exec_ready(struct dpn_exec *exec, size_t floats)
{
    if (exec->ready && exec->ready_status == DPN_OK)
        exec->ready_status = exec->ready(exec->ready_arg, floats);
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
        if (!exec->grad[node->output]) continue;
        node->cls->backward(node, exec, rows);
        if (node->tensors[0] >= 0) dpn_exec_ready(exec, node->ready);
        DPN_TRY(exec->ready_status);
    }
    return DPN_OK;
}
