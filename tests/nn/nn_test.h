/* What the suites of nn share: registries, kernel tables, a device's memory.
 */
#ifndef DPN_TESTS_NN_NN_TEST_H
#define DPN_TESTS_NN_NN_TEST_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/memory.h"
#include "nn/nn.h"
#include "tests/nn/nn_net.h"

#define NN_UNUSED __attribute__((unused))

extern const struct dpn_op_class dpn_op_dense, dpn_op_relu, dpn_op_conv, dpn_op_batch_norm, dpn_op_pool,
    dpn_op_global_pool, dpn_op_add;
extern const struct dpn_model_class dpn_model_dense, dpn_model_mlp, dpn_model_lenet, dpn_model_resnet18,
    dpn_model_resnet20, dpn_model_resnet34;
extern const struct dpn_optimizer_class dpn_optimizer_sgd, dpn_optimizer_adam, dpn_optimizer_adamw;

/* A ReLU that nothing can be fused with: a node of its own in the middle, where gradients pass through it. */
static int nn_build_odd(struct dpn_model_builder *builder)
{
    size_t width;
    dpn_build_sizes(builder, "width", &width, 1);
    int x = dpn_build_dense(builder, 0, "first", width, 0.5);
    x = dpn_build_global_average_pool(builder, x);
    x = dpn_build_relu(builder, x);
    return dpn_build_dense(builder, x, "second", dpn_build_classes(builder), 0.5);
}

static const struct dpn_model_class nn_model_odd = {.name = "odd",
                                                    .summary = "for tests",
                                                    .keys = "width=24,depth=2",
                                                    .build = nn_build_odd};

const struct dpn_model_class *const dpn_model_classes[] =
    {&dpn_model_dense,    &dpn_model_mlp,      &dpn_model_lenet,
     &dpn_model_resnet18, &dpn_model_resnet20, &dpn_model_resnet34,
     &nn_model_odd,       &nn_model_net,       NULL};
const struct dpn_op_class *const dpn_op_classes[] = {&dpn_op_dense,      &dpn_op_relu, &dpn_op_conv,
                                                     &dpn_op_batch_norm, &dpn_op_pool, &dpn_op_global_pool,
                                                     &dpn_op_add,        NULL};
const struct dpn_optimizer_class *const dpn_optimizer_classes[] = {&dpn_optimizer_sgd, &dpn_optimizer_adam,
                                                                   &dpn_optimizer_adamw, NULL};

/* The kernel tables that this machine can run; "ref" first. */
static NN_UNUSED size_t nn_tables(const struct dpn_kernels **tables, size_t max)
{
    static const char *const names[] = {"ref", "baseline", "avx2", "avx512"};
    size_t n = 0;
    for (size_t i = 0; i < sizeof names / sizeof names[0] && n < max; i++)
        if (dpn_kernels_select(names[i], &tables[n]) == DPN_OK) n++;
    assert_true(n >= 1);
    assert_string_equal(tables[0]->isa, "ref");
    return n;
}
enum { NN_MAX_TABLES = 4 };

static NN_UNUSED struct dpn_model *nn_open(const char *spec, size_t channels, size_t height, size_t width,
                                           size_t classes)
{
    struct dpn_model *model;
    if (dpn_model_open(spec, channels, height, width, classes, &model) != DPN_OK)
        fail_msg("%s", dpn_error_text());
    return model;
}

/* Tensors fill [0, arena_elems) without overlap, the last node's first, each at a cache line. */
static NN_UNUSED void nn_check_arena(const struct dpn_model *model)
{
    size_t at = 0, elems = 0, last = 0;
    for (size_t i = model->n_nodes; i-- > 0;) {
        const struct dpn_node *node = &model->nodes[i];
        assert_int_equal(node->first, at);
        for (int j = 0; j < DPN_NODE_TENSORS && node->tensors[j] >= 0; j++) {
            const struct dpn_tensor *tensor = &model->tensors[node->tensors[j]];
            assert_int_equal(tensor->offset, at);
            assert_int_equal(tensor->offset % 16, 0);
            assert_int_equal(tensor->stored % 16, 0);
            assert_true(tensor->stored >= tensor->elems);
            at += tensor->stored;
            elems += tensor->elems;
        }
        assert_true(node->ready >= at && node->ready % 16 == 0 && node->ready >= last);
        assert_true(node->ready == at || node->ready == model->arena_elems);
        last = node->ready;
    }
    assert_int_equal(last, model->arena_elems);
    assert_int_equal(model->arena_elems, dpn_arena_round(at));
    assert_int_equal(model->parameters, elems);
}

/* ---- a device's memory ---- */

struct nn_run {
    struct dpn_model *model;
    struct dpn_plan plan;
    struct dpn_exec exec;
    float *params, *grads, *buffers;
    void *memory;
};

/* Of the heap, where AddressSanitizer sees its ends. */
static NN_UNUSED void *nn_alloc(size_t bytes)
{
    size_t lines = bytes / DPN_CACHE_LINE_BYTES + 1;
    void *memory = aligned_alloc(DPN_CACHE_LINE_BYTES, lines * DPN_CACHE_LINE_BYTES);
    assert_non_null(memory);
    return memory;
}

static NN_UNUSED float *nn_arena(size_t elems)
{
    return memset(nn_alloc(elems * sizeof(float)), 0, elems * sizeof(float));
}

static NN_UNUSED size_t nn_grad_root(const struct dpn_model *model, size_t value)
{
    const struct dpn_value *v = &model->values[value];
    if (v->in_place_of >= 0) return nn_grad_root(model, (size_t)v->in_place_of);
    return v->grad_shared_with >= 0 ? nn_grad_root(model, (size_t)v->grad_shared_with) : value;
}

/* Changes PLAN so that nothing is laid over anything else: all that a pass leaves can be looked at
 * afterwards. */
static NN_UNUSED void nn_plan_apart(struct dpn_plan *plan, const struct dpn_model *model, size_t team)
{
    size_t at = 0;
    for (size_t v = 0; v < model->n_values; v++) {
        int shared = model->values[v].in_place_of;
        if (plan->value_at[v] == SIZE_MAX) continue;
        plan->value_at[v] = shared >= 0 ? plan->value_at[shared] : at;
        if (shared < 0) at += plan->max_rows * model->values[v].stride;
    }
    for (size_t v = 0; v < model->n_values; v++) {
        if (plan->grad_at[v] == SIZE_MAX || nn_grad_root(model, v) != v) continue;
        plan->grad_at[v] = at;
        at += plan->max_rows * model->values[v].stride;
    }
    for (size_t v = 0; v < model->n_values; v++)
        if (plan->grad_at[v] != SIZE_MAX) plan->grad_at[v] = plan->grad_at[nn_grad_root(model, v)];
    plan->shared_at = at = dpn_arena_round(at);
    plan->blocks_at = at += plan->workspace.shared;
    plan->scratch_at = at += plan->workspace.blocks;
    plan->bytes = dpn_arena_round(at + team * plan->workspace.scratch) * sizeof(float);
}

/* Parameters of seed 3, and start values of running statistics, over RUN's plan. */
static NN_UNUSED void nn_run_open_plan(struct nn_run *run, struct dpn_model *model,
                                       const struct dpn_kernels *kernels, struct dpn_team *team)
{
    run->model = model;
    assert_int_equal(run->plan.bytes % DPN_PAGE_BYTES, 0);
    run->memory = nn_alloc(run->plan.bytes);
    run->params = nn_arena(model->arena_elems);
    run->grads = nn_arena(model->arena_elems);
    run->buffers = nn_arena(model->buffer_elems);
    dpn_model_init(model, 3, run->params);
    dpn_model_init_buffers(model, run->buffers);
    /* Whatever lay there must not matter: NaN. */
    memset(run->memory, 0xff, run->plan.bytes);
    assert_int_equal(dpn_exec_open(&run->exec, model, kernels, team, &run->plan, run->memory), DPN_OK);
    run->exec.params = run->params;
    run->exec.grads = run->grads;
    run->exec.buffers = run->buffers;
}

/* Buffers for MAX_ROWS rows. MODEL stays the caller's. */
static NN_UNUSED void nn_run_open(struct nn_run *run, struct dpn_model *model,
                                  const struct dpn_kernels *kernels, struct dpn_team *team, size_t max_rows,
                                  int training)
{
    *run = (struct nn_run){.model = model};
    dpn_plan_make(&run->plan, model, kernels, team ? (size_t)dpn_team_size(team) : 1, max_rows, training);
    nn_run_open_plan(run, model, kernels, team);
}

static NN_UNUSED void nn_run_open_apart(struct nn_run *run, struct dpn_model *model,
                                        const struct dpn_kernels *kernels, size_t max_rows)
{
    *run = (struct nn_run){.model = model};
    dpn_plan_make(&run->plan, model, kernels, 1, max_rows, 1);
    nn_plan_apart(&run->plan, model, 1);
    nn_run_open_plan(run, model, kernels, NULL);
}

static NN_UNUSED void nn_run_close(struct nn_run *run)
{
    dpn_exec_close(&run->exec);
    free(run->memory);
    free(run->params);
    free(run->grads);
    free(run->buffers);
}

/* Rows of normal numbers and labels, sample FIRST and the following ones of stream SEED. */
static NN_UNUSED void nn_fill(struct dpn_exec *exec, uint64_t seed, size_t first, size_t rows)
{
    const struct dpn_value *input = &exec->model->values[0];
    for (size_t r = 0; r < rows; r++) {
        struct dpn_rng rng;
        dpn_rng_init(&rng, seed, DPN_RNG_TEST, 1, first + r);
        float *x = exec->value[0] + r * input->stride;
        memset(x, 0, input->stride * sizeof *x);
        for (size_t i = 0; i < input->elems; i++) x[i] = (float)dpn_rng_normal(&rng);
        exec->labels[r] = (int32_t)dpn_rng_below(&rng, (uint32_t)exec->model->classes);
    }
}

/* Parameters of batch norms, biases and running statistics that are not their start values, for tests of
 * arithmetic. */
static NN_UNUSED void nn_stir(struct nn_run *run, uint64_t seed)
{
    const struct dpn_model *model = run->model;
    for (size_t t = 0; t < model->n_tensors + model->n_buffers; t++) {
        const struct dpn_tensor *tensor = t < model->n_tensors ? &model->tensors[t]
                                                               : &model->buffers[t - model->n_tensors];
        float *at = (t < model->n_tensors ? run->params : run->buffers) + tensor->offset;
        struct dpn_rng rng;
        dpn_rng_init(&rng, seed, DPN_RNG_TEST, 2, t);
        if (tensor->rank != 1) continue;
        for (size_t i = 0; i < tensor->elems; i++)
            at[i] = (float)(tensor->init == DPN_INIT_ONE ? 0.5 + dpn_rng_uniform(&rng)
                                                         : 0.3 * dpn_rng_normal(&rng));
    }
}

/* Forward, loss of weight SCALE a sample, backward. Returns the loss. */
static NN_UNUSED double nn_step(struct nn_run *run, size_t rows, float scale)
{
    double loss;
    uint64_t correct;
    dpn_exec_forward(&run->exec, rows, 1);
    dpn_exec_loss(&run->exec, rows, 1, scale, &loss, &correct);
    assert_int_equal(dpn_exec_backward(&run->exec, rows, NULL, NULL), DPN_OK);
    return loss;
}

#endif
