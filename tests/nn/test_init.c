/* Start weights and the way between the arena and PyTorch's order. */
#include "tests/nn/nn_test.h"

/* Every tensor's elements are the draws of its own stream, in PyTorch's order; all else is 0. */
static void init_check_streams(const char *spec)
{
    struct dpn_model *model = nn_open(spec, 3, 9, 10, 13);
    float *params = nn_arena(model->arena_elems), *again = nn_arena(model->arena_elems);
    memset(params, 0x7f, model->arena_elems * sizeof *params);
    dpn_model_init(model, 42, params);
    for (size_t t = 0; t < model->n_tensors; t++) {
        const struct dpn_tensor *tensor = &model->tensors[t];
        float *drawn = malloc(tensor->elems * sizeof *drawn), *held = malloc(tensor->elems * sizeof *held);
        struct dpn_rng rng;
        assert_true(drawn && held);
        dpn_rng_init(&rng, 42, DPN_RNG_INIT, t, 0);
        for (size_t i = 0; i < tensor->elems; i++) {
            if (tensor->init == DPN_INIT_UNIFORM)
                drawn[i] = (float)((2 * dpn_rng_uniform(&rng) - 1) * tensor->init_scale);
            else drawn[i] = tensor->init == DPN_INIT_ONE ? 1.0f : 0.0f;
        }
        dpn_tensor_export(tensor, params, held);
        assert_memory_equal(held, drawn, tensor->elems * sizeof *held);
        dpn_tensor_import(tensor, drawn, again);
        free(drawn);
        free(held);
    }
    assert_memory_equal(params, again, model->arena_elems * sizeof *params);
    free(params);
    free(again);
    dpn_model_close(model);
}

static void test_streams_in_torch_order(void **state)
{
    (void)state;
    init_check_streams("mlp:hidden=70x3");
    init_check_streams("resnet18:width=7");
    init_check_streams("net:ops=c5k3s1p1b-n-r-m2s2p0-c70k3w1s2p1b-r-d0");
}

/* By hand, so that packing and unpacking cannot both be wrong: weight [out][channel][y][x] of a convolution
 * lies at row (y*2 + x)*channels + c of the panel that holds column out; of a dense layer at row
 * pixel*cstride + c. */
static void test_where_weights_lie(void **state)
{
    (void)state;
    struct dpn_model *model = nn_open("net:ops=c70k3w2s1p1-d3", 2, 3, 2, 3);
    float *arena = nn_arena(model->arena_elems);
    const struct dpn_tensor *conv = &model->tensors[0], *dense = &model->tensors[1];
    float *weight = malloc(conv->elems * sizeof *weight);
    assert_non_null(weight);
    assert_int_equal(conv->elems, 70 * 2 * 6);
    for (size_t i = 0; i < conv->elems; i++) weight[i] = (float)i;
    dpn_tensor_import(conv, weight, arena);
    for (size_t i = 0; i < conv->elems; i++) {
        size_t o = i / 12, c = i / 6 % 2, tap = i % 6, row = tap * 2 + c;
        size_t at = o < 64 ? row * 64 + o : 64 * 12 + row * 16 + o - 64;
        assert_true(arena[conv->offset + at] == (float)i);
    }
    free(weight);

    /* 70 channels of 3 x 3 pixels: 80 rows a pixel */
    assert_int_equal(dense->elems, 3 * 70 * 9);
    weight = malloc(dense->elems * sizeof *weight);
    assert_non_null(weight);
    for (size_t i = 0; i < dense->elems; i++) weight[i] = (float)i;
    dpn_tensor_import(dense, weight, arena);
    for (size_t i = 0; i < dense->elems; i++) {
        size_t o = i / 630, c = i / 9 % 70, pixel = i % 9;
        assert_true(arena[dense->offset + (pixel * 80 + c) * 16 + o] == (float)i);
    }
    free(weight);
    free(arena);
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
    free(a);
    free(b);
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
    free(params);
    dpn_model_close(model);

    model = nn_open("mlp:hidden=100x1000", 1, 1, 1, 10);
    params = nn_arena(model->arena_elems);
    dpn_model_init(model, 0, params);
    m = init_moments(&model->tensors[2], params); /* 100,000 uniform(-0.1, 0.1) */
    assert_true(fabs(m.mean) < 2e-3 && fabs(m.deviation - 0.2 / sqrt(12)) < 1e-3);
    assert_true(m.min >= -0.1f && m.min < -0.0999 && m.max <= 0.1f && m.max > 0.0999);
    m = init_moments(&model->tensors[3], params); /* 1,000 biases of the same bound */
    assert_true(m.min >= -0.1f && m.min < -0.098 && m.max <= 0.1f && m.max > 0.098);
    free(params);
    dpn_model_close(model);
}

static void test_convolutions_and_batch_norms(void **state)
{
    (void)state;
    struct dpn_model *model = nn_open("net:ops=c100k5s1p2b-n-r-c200k3s1p1-g-d0", 4, 8, 8, 10);
    float *params = nn_arena(model->arena_elems), *buffers = nn_arena(model->buffer_elems);
    dpn_model_init(model, 0, params);
    memset(buffers, 0x7f, model->buffer_elems * sizeof *buffers);
    dpn_model_init_buffers(model, buffers);
    struct init_moments m = init_moments(&model->tensors[0], params); /* fan-in 100 */
    assert_true(m.min >= -0.1f && m.min < -0.0999 && m.max <= 0.1f && m.max > 0.0999);
    m = init_moments(&model->tensors[1], params);
    assert_true(m.min >= -0.1f && m.min < -0.09 && m.max <= 0.1f && m.max > 0.09);
    m = init_moments(&model->tensors[4], params); /* fan-in 900 */
    assert_true(m.min >= -1.0f / 30 && m.min < -0.0333 && m.max <= 1.0f / 30 && m.max > 0.0333);
    for (int t = 2; t < 4; t++) {
        m = init_moments(&model->tensors[t], params); /* weight 1, bias 0 */
        assert_true(m.min == 3 - t && m.max == 3 - t);
    }
    assert_int_equal(model->n_buffers, 2);
    for (size_t i = 0; i < model->buffer_elems; i++) /* mean 0, variance 1, and no more */
        assert_true(buffers[i] == (i >= model->buffers[1].offset && i < model->buffers[1].offset + 100));
    free(params);
    free(buffers);
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
    free(params);
    dpn_model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_streams_in_torch_order),
        cmocka_unit_test(test_where_weights_lie),
        cmocka_unit_test(test_seeds),
        cmocka_unit_test(test_distributions),
        cmocka_unit_test(test_convolutions_and_batch_norms),
        cmocka_unit_test(test_norm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
