/* Start weights and the way between the arena and PyTorch's order. */
#include "tests/nn/nn_test.h"

/* Every tensor's elements are the draws of its own stream, in PyTorch's order; all else is 0. */
static void test_streams_in_torch_order(void **state)
{
    (void)state;
    struct dpn_model *model = nn_open("mlp:hidden=70x3", 1, 2, 9, 13);
    float *params = nn_arena(model->arena_elems), *again = nn_arena(model->arena_elems);
    memset(params, 0x7f, model->arena_elems * sizeof *params);
    dpn_model_init(model, 42, params);
    for (size_t t = 0; t < model->n_tensors; t++) {
        const struct dpn_tensor *tensor = &model->tensors[t];
        float *drawn = malloc(tensor->elems * sizeof *drawn), *held = malloc(tensor->elems * sizeof *held);
        struct dpn_rng rng;
        assert_true(drawn && held);
        dpn_rng_init(&rng, 42, DPN_RNG_INIT, t, 0);
        for (size_t i = 0; i < tensor->elems; i++)
            drawn[i] = (float)((2 * dpn_rng_uniform(&rng) - 1) * tensor->init_scale);
        dpn_tensor_export(tensor, params, held);
        assert_memory_equal(held, drawn, tensor->elems * sizeof *held);
        dpn_tensor_import(tensor, drawn, again);
        free(drawn);
        free(held);
    }
    assert_memory_equal(params, again, model->arena_elems * sizeof *params);
    dpn_arena_free(params, model->arena_elems * sizeof *params);
    dpn_arena_free(again, model->arena_elems * sizeof *again);
    dpn_model_close(model);
}

static void test_seeds(void **state)
{
    (void)state;
    struct dpn_model *model = nn_open("mlp", 1, 4, 4, 10);
    size_t bytes = model->arena_elems * sizeof(float);
    float *a = nn_arena(model->arena_elems), *b = nn_arena(model->arena_elems);
    dpn_model_init(model, 1, a);
    dpn_model_init(model, 1, b);
    assert_memory_equal(a, b, bytes);
    dpn_model_init(model, 2, b);
    size_t same = 0;
    for (size_t i = 0; i < model->arena_elems; i++) same += a[i] == b[i];
    assert_true(same < model->arena_elems - model->parameters + model->parameters / 100);
    dpn_arena_free(a, bytes);
    dpn_arena_free(b, bytes);
    dpn_model_close(model);
}

struct init_moments {
    double mean, deviation, min, max;
};

static struct init_moments init_moments(const struct dpn_tensor *tensor, const float *params)
{
    struct init_moments m = {0, 0, INFINITY, -INFINITY};
    float *x = malloc(tensor->elems * sizeof *x);
    assert_non_null(x);
    dpn_tensor_export(tensor, params, x);
    for (size_t i = 0; i < tensor->elems; i++) {
        m.mean += x[i] / (double)tensor->elems;
        m.min = x[i] < m.min ? x[i] : m.min;
        m.max = x[i] > m.max ? x[i] : m.max;
    }
    for (size_t i = 0; i < tensor->elems; i++)
        m.deviation += (x[i] - m.mean) * (x[i] - m.mean) / (double)tensor->elems;
    m.deviation = sqrt(m.deviation);
    free(x);
    return m;
}

static void test_distributions(void **state)
{
    (void)state;
    struct dpn_model *model = nn_open("dense", 1, 100, 100, 10);
    float *params = nn_arena(model->arena_elems);
    dpn_model_init(model, 0, params);
    struct init_moments m = init_moments(&model->tensors[0], params); /* 100,000 normal(0, 0.01) */
    assert_true(fabs(m.mean) < 2e-4 && fabs(m.deviation - 0.01) < 2e-4);
    assert_true(m.max > 0.035 && m.max < 0.07 && m.min < -0.035 && m.min > -0.07);
    m = init_moments(&model->tensors[1], params);
    assert_true(m.min == 0 && m.max == 0);
    dpn_arena_free(params, model->arena_elems * sizeof *params);
    dpn_model_close(model);

    model = nn_open("mlp:hidden=100x1000", 1, 1, 1, 10);
    params = nn_arena(model->arena_elems);
    dpn_model_init(model, 0, params);
    m = init_moments(&model->tensors[2], params); /* 100,000 uniform(-0.1, 0.1) */
    assert_true(fabs(m.mean) < 2e-3 && fabs(m.deviation - 0.2 / sqrt(12)) < 1e-3);
    assert_true(m.min >= -0.1f && m.min < -0.0999 && m.max <= 0.1f && m.max > 0.0999);
    m = init_moments(&model->tensors[3], params); /* 1,000 biases of the same bound */
    assert_true(m.min >= -0.1f && m.min < -0.098 && m.max <= 0.1f && m.max > 0.098);
    dpn_arena_free(params, model->arena_elems * sizeof *params);
    dpn_model_close(model);
}

static void test_norm(void **state)
{
    (void)state;
    const struct dpn_kernels *tables[NN_MAX_TABLES];
    size_t n = nn_tables(tables, NN_MAX_TABLES);
    struct dpn_model *model = nn_open("mlp:hidden=70", 1, 1, 30, 3);
    float *params = nn_arena(model->arena_elems);
    dpn_model_init(model, 5, params);
    for (size_t t = 0; t < model->n_tensors; t++) {
        const struct dpn_tensor *tensor = &model->tensors[t];
        float *x = malloc(tensor->elems * sizeof *x);
        double sum = 0;
        assert_non_null(x);
        dpn_tensor_export(tensor, params, x);
        for (size_t i = 0; i < tensor->elems; i++) sum += (double)x[i] * x[i];
        for (size_t k = 0; k < n; k++)
            assert_true(fabs(dpn_tensor_norm(tensor, tables[k], params) - sqrt(sum)) <= 1e-12 * sqrt(sum));
        free(x);
    }
    dpn_arena_free(params, model->arena_elems * sizeof *params);
    dpn_model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_streams_in_torch_order),
        cmocka_unit_test(test_seeds),
        cmocka_unit_test(test_distributions),
        cmocka_unit_test(test_norm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
