/* What the suites of nn share: registries, kernel tables, a device's memory, and a naive model in double.
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

#define NN_UNUSED __attribute__((unused))

extern const struct dpn_op_class dpn_op_flatten, dpn_op_dense, dpn_op_relu;
extern const struct dpn_model_class dpn_model_dense, dpn_model_mlp;
extern const struct dpn_optimizer_class dpn_optimizer_sgd, dpn_optimizer_adam, dpn_optimizer_adamw;

/* A ReLU that nothing can be fused with: a node of its own in the middle, where gradients pass through it. */
static int nn_build_odd(struct dpn_model_builder *builder)
{
    size_t width;
    dpn_build_sizes(builder, "width", &width, 1);
    int x = dpn_build_dense(builder, 0, "first", width, 0.5);
    x = dpn_build_flatten(builder, x);
    x = dpn_build_relu(builder, x);
    return dpn_build_dense(builder, x, "second", dpn_build_classes(builder), 0.5);
}

static const struct dpn_model_class nn_model_odd = {.name = "odd",
                                                    .summary = "for tests",
                                                    .keys = "width=24,depth=2",
                                                    .build = nn_build_odd};

const struct dpn_model_class *const dpn_model_classes[] = {&dpn_model_dense, &dpn_model_mlp, &nn_model_odd,
                                                           NULL};
const struct dpn_op_class *const dpn_op_classes[] = {&dpn_op_flatten, &dpn_op_dense, &dpn_op_relu, NULL};
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

/* ---- a device's memory ---- */

struct nn_run {
    struct dpn_model *model;
    struct dpn_exec exec;
    float *params, *grads;
    void *memory;
    size_t bytes;
};

static NN_UNUSED float *nn_arena(size_t elems)
{
    float *arena;
    assert_int_equal(dpn_arena_alloc(&arena, elems * sizeof *arena, "a test"), DPN_OK);
    return arena;
}

/* Parameters of seed 3, training buffers for MAX_ROWS rows. MODEL stays the caller's. */
static NN_UNUSED void nn_run_open(struct nn_run *run, struct dpn_model *model,
                                  const struct dpn_kernels *kernels, struct dpn_team *team, size_t max_rows,
                                  int training)
{
    *run = (struct nn_run){.model = model, .bytes = dpn_exec_bytes(model, max_rows, training)};
    assert_int_equal(run->bytes % DPN_PAGE_BYTES, 0);
    assert_int_equal(dpn_arena_alloc(&run->memory, run->bytes, "a test"), DPN_OK);
    run->params = nn_arena(model->arena_elems);
    run->grads = nn_arena(model->arena_elems);
    dpn_model_init(model, 3, run->params);
    /* Whatever lay there must not matter. */
    memset(run->memory, 0x7f, run->bytes);
    assert_int_equal(dpn_exec_open(&run->exec, model, kernels, team, max_rows, training, run->memory),
                     DPN_OK);
    run->exec.params = run->params;
    run->exec.grads = run->grads;
}

static NN_UNUSED void nn_run_close(struct nn_run *run)
{
    dpn_exec_close(&run->exec);
    dpn_arena_free(run->memory, run->bytes);
    dpn_arena_free(run->params, run->model->arena_elems * sizeof(float));
    dpn_arena_free(run->grads, run->model->arena_elems * sizeof(float));
}

/* Rows of normal numbers and labels, sample FIRST and the following ones of stream SEED. */
static NN_UNUSED void nn_fill(struct nn_run *run, uint64_t seed, size_t first, size_t rows)
{
    const struct dpn_value *input = &run->model->values[0];
    for (size_t r = 0; r < rows; r++) {
        struct dpn_rng rng;
        dpn_rng_init(&rng, seed, DPN_RNG_TEST, 1, first + r);
        float *x = run->exec.value[0] + r * input->stride;
        for (size_t i = 0; i < input->elems; i++) x[i] = (float)dpn_rng_normal(&rng);
        run->exec.labels[r] = (int32_t)dpn_rng_below(&rng, (uint32_t)run->model->classes);
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

/* ---- a naive model in double: PyTorch's order, no padding ---- */

struct nn_naive {
    const struct dpn_model *model;
    size_t rows;
    double *tensor[16]; /* per tensor */
    double *value[16];  /* per value, [rows][elems] */
};

static NN_UNUSED void nn_naive_open(struct nn_naive *naive, const struct nn_run *run, size_t rows)
{
    const struct dpn_model *model = run->model;
    assert_true(model->n_tensors <= 16 && model->n_values <= 16);
    *naive = (struct nn_naive){.model = model, .rows = rows};
    for (size_t t = 0; t < model->n_tensors; t++) {
        size_t elems = model->tensors[t].elems;
        float *raw = malloc(elems * sizeof *raw);
        naive->tensor[t] = malloc(elems * sizeof *naive->tensor[t]);
        assert_true(raw && naive->tensor[t]);
        dpn_tensor_export(&model->tensors[t], run->params, raw);
        for (size_t i = 0; i < elems; i++) naive->tensor[t][i] = raw[i];
        free(raw);
    }
    for (size_t v = 0; v < model->n_values; v++) {
        naive->value[v] = calloc(rows * model->values[v].elems, sizeof *naive->value[v]);
        assert_non_null(naive->value[v]);
    }
    const struct dpn_value *input = &model->values[0];
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < input->elems; i++)
            naive->value[0][r * input->elems + i] = run->exec.value[0][r * input->stride + i];
}

static NN_UNUSED void nn_naive_close(struct nn_naive *naive)
{
    for (size_t t = 0; t < naive->model->n_tensors; t++) free(naive->tensor[t]);
    for (size_t v = 0; v < naive->model->n_values; v++) free(naive->value[v]);
}

static void nn_naive_node(struct nn_naive *naive, const struct dpn_node *node)
{
    const double *x = naive->value[node->input];
    double *y = naive->value[node->output];
    size_t in = naive->model->values[node->input].elems, out = naive->model->values[node->output].elems;
    int dense = strcmp(node->cls->name, "dense") == 0, relu = strcmp(node->cls->name, "relu") == 0;
    for (size_t r = 0; r < naive->rows; r++) {
        for (size_t o = 0; o < out; o++) {
            double sum = dense ? naive->tensor[node->tensors[1]][o] : x[r * in + o];
            for (size_t i = 0; dense && i < in; i++)
                sum += naive->tensor[node->tensors[0]][o * in + i] * x[r * in + i];
            y[r * out + o] = (relu || node->relu) && sum < 0 ? 0 : sum;
        }
    }
}

/* Sum of the rows' cross-entropies. */
static NN_UNUSED double nn_naive_loss(struct nn_naive *naive, const int32_t *labels)
{
    const struct dpn_model *model = naive->model;
    double loss = 0;
    for (size_t i = 0; i < model->n_nodes; i++) nn_naive_node(naive, &model->nodes[i]);
    for (size_t r = 0; r < naive->rows; r++) {
        const double *z = naive->value[model->logits] + r * model->classes;
        double max = z[0], sum = 0;
        for (size_t c = 1; c < model->classes; c++) max = z[c] > max ? z[c] : max;
        for (size_t c = 0; c < model->classes; c++) sum += exp(z[c] - max);
        loss += max + log(sum) - z[labels[r]];
    }
    return loss;
}

#endif
