/* The memory plan of an exec: every activation and gradient gets its place for as long as it is needed, in
 * one piece of memory that they share over time.
 *
 * Time runs through the nodes forward (0 .. n-1), the loss (n), and backward (2n-i for node i). Largest
 * first, each buffer goes to the lowest place that no buffer alive at the same time occupies. Values that
 * share a buffer are one, named by their root.
 */
#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "core/memory.h"
#include "nn/nn.h"

enum { PLAN_MAX_BUFFERS = 2 * DPN_MAX_VALUES };

struct plan_buffer {
    size_t first, last; /* times, inclusive; first > last: not needed */
    size_t floats;
    size_t *at;
};

struct plan_lives {
    const struct dpn_model *model;
    int training;
    struct plan_buffer value[DPN_MAX_VALUES], grad[DPN_MAX_VALUES];
};

/* The largest multiple of a page: sums stop there instead of wrapping. */
static const size_t plan_limit = SIZE_MAX - DPN_PAGE_BYTES + 1;

static size_t plan_add(size_t a, size_t b)
{
    size_t sum;
    return __builtin_add_overflow(a, b, &sum) || sum > plan_limit ? plan_limit : sum;
}

static size_t plan_mul(size_t a, size_t b)
{
    size_t product;
    return __builtin_mul_overflow(a, b, &product) || product > plan_limit ? plan_limit : product;
}

/* ---- lives ---- */

static int plan_value_root(const struct dpn_model *model, int value)
{
    for (;;) {
        const struct dpn_value *v = &model->values[value];
        if (v->lazy) value = model->nodes[v->maker].input;
        else if (v->in_place_of >= 0) value = v->in_place_of;
        else return value;
    }
}

static int plan_grad_root(const struct dpn_model *model, int value)
{
    for (;;) {
        const struct dpn_value *v = &model->values[value];
        if (v->in_place_of >= 0) value = v->in_place_of;
        else if (v->grad_shared_with >= 0) value = v->grad_shared_with;
        else return value;
    }
}

static void plan_extend(struct plan_buffer *buffer, size_t time)
{
    if (buffer->first > buffer->last) {
        buffer->first = buffer->last = time;
        return;
    }
    if (time < buffer->first) buffer->first = time;
    if (time > buffer->last) buffer->last = time;
}

static void plan_value_used(struct plan_lives *lives, int value, size_t time)
{
    plan_extend(&lives->value[plan_value_root(lives->model, value)], time);
}

/* A lazy gradient is that of the norm's output, read through. */
static void plan_grad_used(struct plan_lives *lives, int value, size_t time)
{
    const struct dpn_model *model = lives->model;
    if (!model->values[value].learns) return;
    if (model->values[value].grad_lazy) value = model->nodes[model->values[value].last_reader].output;
    plan_extend(&lives->grad[plan_grad_root(model, value)], time);
}

static void plan_node_backward(struct plan_lives *lives, const struct dpn_node *node, size_t time)
{
    const struct dpn_model *model = lives->model;
    if (!model->values[node->output].learns) return;
    plan_grad_used(lives, node->output, time);
    if (node->needs_input_grad) plan_grad_used(lives, node->input, time);
    if (node->needs_residual_grad) plan_grad_used(lives, node->residual, time);
    if (node->cls->keeps_input) plan_value_used(lives, node->input, time);
    /* A fused ReLU is undone by what it left. */
    if (node->cls->keeps_output || node->relu) plan_value_used(lives, node->output, time);
    if (node->norm >= 0 || node->pool) plan_value_used(lives, node->output, time);
    if (node->masks >= 0) {
        plan_value_used(lives, model->nodes[node->masks].input, time);
        plan_value_used(lives, model->nodes[node->masks].output, time);
    }
}

static void plan_lives_make(struct plan_lives *lives)
{
    const struct dpn_model *model = lives->model;
    size_t n = model->n_nodes;
    for (size_t v = 0; v < model->n_values; v++)
        lives->value[v] = lives->grad[v] = (struct plan_buffer){.first = 1, .last = 0};
    /* Whoever fills the input may run it twice, and so may whoever reads the logits. */
    plan_value_used(lives, 0, 0);
    plan_value_used(lives, 0, lives->training ? 2 * n : n);
    plan_value_used(lives, model->logits, lives->training ? 2 * n : n);
    for (size_t i = 0; i < n; i++) {
        const struct dpn_node *node = &model->nodes[i];
        plan_value_used(lives, node->input, i);
        plan_value_used(lives, node->output, i);
        if (node->pool) plan_value_used(lives, model->nodes[node->pooled].output, i);
        if (node->residual >= 0) plan_value_used(lives, node->residual, i);
        if (lives->training) plan_node_backward(lives, node, 2 * n - i);
    }
    if (lives->training) plan_grad_used(lives, model->logits, n);
}

/* ---- places ---- */

static int plan_conflict(const struct plan_buffer *a, const struct plan_buffer *b)
{
    return a->first <= b->last && b->first <= a->last;
}

/* The lowest place for BUFFER beside those PLACED, which are sorted by place. */
static size_t plan_lowest(const struct plan_buffer *buffer, struct plan_buffer *const *placed, size_t n)
{
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        if (!plan_conflict(buffer, placed[i])) continue;
        if (*placed[i]->at >= plan_add(at, buffer->floats)) break;
        size_t end = plan_add(*placed[i]->at, placed[i]->floats);
        if (end > at) at = end;
    }
    return at;
}

/* Returns the floats that all of them take together. */
static size_t plan_place(struct plan_buffer **buffers, size_t n)
{
    struct plan_buffer *placed[PLAN_MAX_BUFFERS];
    size_t floats = 0;
    for (size_t i = 0; i < n; i++) {
        size_t largest = i;
        for (size_t j = i + 1; j < n; j++)
            if (buffers[j]->floats > buffers[largest]->floats) largest = j;
        struct plan_buffer *buffer = buffers[largest];
        memmove(&buffers[i + 1], &buffers[i], (largest - i) * sizeof *buffers);
        buffers[i] = buffer;
        *buffer->at = plan_lowest(buffer, placed, i);
        size_t k = i;
        for (; k > 0 && *placed[k - 1]->at > *buffer->at; k--) placed[k] = placed[k - 1];
        placed[k] = buffer;
        size_t end = plan_add(*buffer->at, buffer->floats);
        if (end > floats) floats = end;
    }
    return floats;
}

static size_t plan_activations(struct plan_lives *lives, struct dpn_plan *plan)
{
    const struct dpn_model *model = lives->model;
    struct plan_buffer *buffers[PLAN_MAX_BUFFERS];
    size_t n = 0;
    for (size_t v = 0; v < model->n_values; v++) {
        const struct dpn_value *value = &model->values[v];
        struct plan_buffer *both[2] = {&lives->value[v], &lives->grad[v]};
        both[0]->at = &plan->value_at[v];
        both[1]->at = &plan->grad_at[v];
        for (int i = 0; i < 2; i++) {
            if (both[i]->first > both[i]->last) continue;
            both[i]->floats = plan_mul(i == 0 ? value->stored : value->stride, plan->max_rows);
            buffers[n++] = both[i];
        }
    }
    size_t floats = plan_place(buffers, n);
    for (size_t v = 0; v < model->n_values; v++) {
        plan->value_at[v] = plan->value_at[plan_value_root(model, (int)v)];
        plan->grad_at[v] = plan->grad_at[plan_grad_root(model, (int)v)];
    }
    return floats;
}

/* What a lazy value's or gradient's name must not lead to. */
static void plan_forget_lazy(const struct dpn_model *model, struct dpn_plan *plan)
{
    for (size_t v = 0; v < model->n_values; v++) {
        if (model->values[v].lazy) plan->value_at[v] = SIZE_MAX;
        if (model->values[v].grad_lazy || !model->values[v].learns) plan->grad_at[v] = SIZE_MAX;
    }
}

static void plan_workspace(const struct dpn_model *model, const struct dpn_kernels *kernels,
                           struct dpn_plan *plan)
{
    for (size_t i = 0; i < model->n_nodes; i++) {
        const struct dpn_node *node = &model->nodes[i];
        struct dpn_workspace want = {0}, *most = &plan->workspace;
        if (!node->cls->workspace) continue;
        node->cls->workspace(model, node, kernels, plan->max_rows, plan->training, &want);
        if (want.shared > most->shared) most->shared = want.shared;
        if (want.scratch > most->scratch) most->scratch = want.scratch;
        if (want.blocks > most->blocks) most->blocks = want.blocks;
    }
    /* Threads' scratch apart by whole pages: no page is two threads'. */
    plan->workspace.shared = dpn_arena_round(plan->workspace.shared);
    plan->workspace.scratch = dpn_arena_round(plan->workspace.scratch);
    plan->workspace.blocks = dpn_arena_round(plan->workspace.blocks);
}

void dpn_plan_make(struct dpn_plan *plan, const struct dpn_model *model, const struct dpn_kernels *kernels,
                   size_t team, size_t max_rows, int training)
{
    struct plan_lives lives = {.model = model, .training = training};
    assert(max_rows > 0 && team > 0);
    memset(plan, 0, sizeof *plan);
    memset(plan->value_at, 0xff, sizeof plan->value_at);
    memset(plan->grad_at, 0xff, sizeof plan->grad_at);
    plan->max_rows = max_rows;
    plan->training = training;
    plan_lives_make(&lives);
    size_t floats = plan_add(plan_activations(&lives, plan), DPN_ARENA_QUANTUM_ELEMS - 1);
    floats = floats / DPN_ARENA_QUANTUM_ELEMS * DPN_ARENA_QUANTUM_ELEMS;
    plan->activation_floats = floats;
    plan_forget_lazy(model, plan);
    if (floats < plan_limit / sizeof(float)) plan_workspace(model, kernels, plan);
    plan->shared_at = floats;
    plan->blocks_at = plan_add(plan->shared_at, plan->workspace.shared);
    plan->scratch_at = plan_add(plan->blocks_at, plan->workspace.blocks);
    floats = plan_add(plan->scratch_at, plan_mul(plan->workspace.scratch, team));
    plan->bytes = plan_mul(floats, sizeof(float));
}
