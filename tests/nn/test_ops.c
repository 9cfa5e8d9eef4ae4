/* Ops and executor: gradients against finite differences, kernel tables against ref, any team, shard and
 * buffer. */
#include "tests/nn/nn_test.h"

struct ops_case {
    const char *spec;
    size_t channels, height, width, classes, rows;
};

/* ---- gradients ---- */

static double ops_difference(struct nn_naive *naive, const int32_t *labels, double *at)
{
    double kept = *at, h = 1e-6;
    *at = kept + h;
    double above = nn_naive_loss(naive, labels);
    *at = kept - h;
    double below = nn_naive_loss(naive, labels);
    *at = kept;
    return (above - below) / (2 * h);
}

static void ops_check_gradients(const struct ops_case *c, const struct dpn_kernels *kernels, uint64_t seed)
{
    struct dpn_model *model = nn_open(c->spec, c->channels, c->height, c->width, c->classes);
    struct nn_run run;
    struct nn_naive naive;
    nn_run_open(&run, model, kernels, NULL, c->rows, 1);
    nn_fill(&run, seed, 0, c->rows);
    nn_naive_open(&naive, &run, c->rows);
    double loss = nn_step(&run, c->rows, 1.0f);
    double expected = nn_naive_loss(&naive, run.exec.labels);
    if (fabs(loss - expected) > 1e-5 * (1 + expected))
        fail_msg("%s: loss %.9g, naive %.9g", c->spec, loss, expected);
    for (size_t t = 0; t < model->n_tensors; t++) {
        const struct dpn_tensor *tensor = &model->tensors[t];
        float *grad = malloc(tensor->elems * sizeof *grad);
        assert_non_null(grad);
        dpn_tensor_export(tensor, run.grads, grad);
        for (size_t i = 0; i < tensor->elems; i++) {
            double numeric = ops_difference(&naive, run.exec.labels, &naive.tensor[t][i]);
            if (!(fabs(grad[i] - numeric) <= 1e-4 * (0.1 + fabs(numeric))))
                fail_msg("%s rows %zu in %zu classes %zu, %s[%zu]: %.9g, numeric %.9g", c->spec, c->rows,
                         model->values[0].elems, c->classes, tensor->name, i, grad[i], numeric);
        }
        free(grad);
    }
    nn_naive_close(&naive);
    nn_run_close(&run);
    dpn_model_close(model);
}

static void test_gradients(void **state)
{
    (void)state;
    static const char *const specs[] = {"dense", "mlp:hidden=17", "mlp:hidden=5x16x9", "odd:width=3",
                                        "odd:width=18"};
    struct dpn_rng rng;
    dpn_rng_init(&rng, 11, DPN_RNG_TEST, 0, 0);
    for (uint64_t i = 0; i < 50; i++) {
        struct ops_case c = {
            .spec = specs[i % 5],
            .channels = 1 + dpn_rng_below(&rng, 3),
            .height = 1 + dpn_rng_below(&rng, 3),
            .width = 1 + dpn_rng_below(&rng, 4),
            .classes = 1 + dpn_rng_below(&rng, 17),
            .rows = i < 5 ? 1 : 1 + dpn_rng_below(&rng, 9),
        };
        ops_check_gradients(&c, &dpn_kernels_ref, i);
    }
}

/* More than one panel, a ragged last one, no dimension a multiple of anything. */
static void test_gradients_of_panels(void **state)
{
    (void)state;
    const struct ops_case cases[] = {{"mlp:hidden=70", 1, 1, 3, 3, 2},
                                     {"mlp:hidden=130", 1, 1, 2, 2, 3},
                                     {"mlp:hidden=2x64", 1, 3, 1, 65, 2}};
    const struct dpn_kernels *tables[NN_MAX_TABLES];
    size_t n = nn_tables(tables, NN_MAX_TABLES);
    for (size_t k = 0; k < n; k++)
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
            ops_check_gradients(&cases[i], tables[k], i);
}

/* ---- kernel tables, teams ---- */

static const struct ops_case ops_cases[] = {
    {"dense", 1, 28, 28, 10, 64},
    {"mlp", 1, 28, 28, 10, 64},
    {"mlp:hidden=130x70x33", 1, 10, 10, 17, 61},
    {"odd:width=200", 3, 9, 9, 10, 13},
    {"mlp", 1, 28, 28, 10, 1},
    {"mlp:hidden=7", 1, 1, 5, 3, 2},
    {"mlp:hidden=2100", 1, 1, 31, 2, 129},
    {"dense", 1, 40, 60, 64, 5},
};
enum { OPS_CASES = sizeof ops_cases / sizeof ops_cases[0] };

static double ops_relative(const float *a, const float *b, size_t n)
{
    double error = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        error += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        size += (double)b[i] * b[i];
    }
    return size > 0 ? sqrt(error / size) : sqrt(error);
}

static void test_tables_match_ref(void **state)
{
    (void)state;
    const struct dpn_kernels *tables[NN_MAX_TABLES];
    size_t n = nn_tables(tables, NN_MAX_TABLES);
    for (size_t i = 0; i < OPS_CASES; i++) {
        const struct ops_case *c = &ops_cases[i];
        struct dpn_model *model = nn_open(c->spec, c->channels, c->height, c->width, c->classes);
        struct nn_run run[NN_MAX_TABLES];
        for (size_t k = 0; k < n; k++) {
            nn_run_open(&run[k], model, tables[k], NULL, c->rows, 1);
            nn_fill(&run[k], i, 0, c->rows);
            nn_step(&run[k], c->rows, 1.0f / (float)c->rows);
            double logits = ops_relative(run[k].exec.value[model->logits], run[0].exec.value[model->logits],
                                         c->rows * model->values[model->logits].stride);
            double grads = ops_relative(run[k].grads, run[0].grads, model->arena_elems);
            if (!(logits < 1e-5 && grads < 1e-5))
                fail_msg("%s with %s: logits off by %g, gradients by %g", c->spec, tables[k]->isa, logits,
                         grads);
        }
        for (size_t k = 0; k < n; k++) nn_run_close(&run[k]);
        dpn_model_close(model);
    }
}

struct ops_team_job {
    const struct ops_case *c;
    struct dpn_model *model;
    const struct dpn_kernels *kernels;
    const struct nn_run *alone;
    double loss;
};

static enum dpn_status ops_in_team(void *arg, struct dpn_team *team)
{
    struct ops_team_job *job = arg;
    struct nn_run run;
    nn_run_open(&run, job->model, job->kernels, team, job->c->rows, 1);
    nn_fill(&run, 5, 0, job->c->rows);
    double loss = nn_step(&run, job->c->rows, 0.125f);
    assert_true(loss == job->loss);
    for (size_t v = 0; v < job->model->n_values; v++)
        assert_memory_equal(run.exec.value[v], job->alone->exec.value[v],
                            job->c->rows * job->model->values[v].stride * sizeof(float));
    assert_memory_equal(run.grads, job->alone->grads, job->model->arena_elems * sizeof(float));
    nn_run_close(&run);
    return DPN_OK;
}

static void ops_no_binding(void *arg, int thread)
{
    (void)arg;
    (void)thread;
}

static void test_any_team_gives_the_same_bits(void **state)
{
    (void)state;
    const struct dpn_kernels *tables[NN_MAX_TABLES];
    size_t n = nn_tables(tables, NN_MAX_TABLES);
    for (size_t i = 0; i < OPS_CASES; i++) {
        const struct ops_case *c = &ops_cases[i];
        struct dpn_model *model = nn_open(c->spec, c->channels, c->height, c->width, c->classes);
        for (size_t k = 0; k < n; k++) {
            struct dpn_abort abort = {.raised = 0};
            struct nn_run alone;
            nn_run_open(&alone, model, tables[k], NULL, c->rows, 1);
            nn_fill(&alone, 5, 0, c->rows);
            struct ops_team_job job = {c, model, tables[k], &alone, nn_step(&alone, c->rows, 0.125f)};
            for (int size = 1; size <= 3; size++)
                assert_int_equal(dpn_team_open(size, ops_no_binding, NULL, &abort, ops_in_team, &job),
                                 DPN_OK);
            nn_run_close(&alone);
        }
        dpn_model_close(model);
    }
}

/* ---- shards and buffers ---- */

static void test_shards_of_one_sample_sum_to_the_batch(void **state)
{
    (void)state;
    const size_t rows = 6;
    struct dpn_model *model = nn_open("mlp:hidden=20x9", 1, 3, 5, 7);
    struct nn_run whole, one;
    nn_run_open(&whole, model, &dpn_kernels_ref, NULL, rows, 1);
    nn_run_open(&one, model, &dpn_kernels_ref, NULL, 1, 1);
    nn_fill(&whole, 8, 0, rows);
    double loss = nn_step(&whole, rows, 1.0f / (float)rows), losses = 0;
    float *sum = nn_arena(model->arena_elems);
    for (size_t r = 0; r < rows; r++) {
        nn_fill(&one, 8, r, 1);
        losses += nn_step(&one, 1, 1.0f / (float)rows);
        for (size_t i = 0; i < model->arena_elems; i++) sum[i] += one.grads[i];
    }
    assert_true(fabs(loss - losses) < 1e-6 * loss);
    assert_true(ops_relative(sum, whole.grads, model->arena_elems) < 1e-6);
    dpn_arena_free(sum, model->arena_elems * sizeof *sum);
    nn_run_close(&whole);
    nn_run_close(&one);
    dpn_model_close(model);
}

/* A short shard after long ones sees nothing of them. */
static void test_stale_buffers_do_not_matter(void **state)
{
    (void)state;
    static const char *const specs[] = {"dense", "mlp:hidden=70x5x33", "odd:width=20"};
    for (size_t s = 0; s < 3; s++) {
        struct dpn_model *model = nn_open(specs[s], 1, 3, 7, 5);
        struct nn_run used, fresh;
        nn_run_open(&used, model, &dpn_kernels_ref, NULL, 9, 1);
        nn_run_open(&fresh, model, &dpn_kernels_ref, NULL, 3, 1);
        for (uint64_t i = 0; i < 3; i++) {
            nn_fill(&used, i, 0, 9);
            nn_step(&used, 9, 1.0f);
        }
        nn_fill(&used, 77, 0, 3);
        nn_fill(&fresh, 77, 0, 3);
        assert_true(nn_step(&used, 3, 1.0f) == nn_step(&fresh, 3, 1.0f));
        assert_memory_equal(used.grads, fresh.grads, model->arena_elems * sizeof(float));
        nn_run_close(&used);
        nn_run_close(&fresh);
        dpn_model_close(model);
    }
}

static void test_evaluation_has_the_logits_of_training(void **state)
{
    (void)state;
    static const char *const specs[] = {"dense", "mlp:hidden=70x5x33", "odd:width=20"};
    for (size_t s = 0; s < 3; s++) {
        struct dpn_model *model = nn_open(specs[s], 1, 3, 7, 5);
        struct nn_run train, eval;
        double loss[2];
        uint64_t correct[2];
        nn_run_open(&train, model, &dpn_kernels_ref, NULL, 8, 1);
        nn_run_open(&eval, model, &dpn_kernels_ref, NULL, 8, 0);
        nn_fill(&train, 4, 0, 8);
        nn_fill(&eval, 4, 0, 8);
        for (size_t v = 0; v < model->n_values; v++) assert_null(eval.exec.grad[v]);
        dpn_exec_forward(&train.exec, 8, 1);
        dpn_exec_loss(&train.exec, 8, 0, 0.0f, &loss[0], &correct[0]);
        for (int again = 0; again < 2; again++) {
            dpn_exec_forward(&eval.exec, 8, 0);
            dpn_exec_loss(&eval.exec, 8, 0, 0.0f, &loss[1], &correct[1]);
            assert_true(loss[0] == loss[1]);
            assert_true(correct[0] == correct[1] && correct[0] <= 8);
        }
        nn_run_close(&train);
        nn_run_close(&eval);
        dpn_model_close(model);
    }
}

/* A deep chain takes the memory of its two widest neighbours, not of all its layers. */
static void test_buffers_are_used_again(void **state)
{
    (void)state;
    struct dpn_model *shallow = nn_open("mlp:hidden=512x512", 1, 1, 16, 16);
    struct dpn_model *deep = nn_open("mlp:hidden=512x512x512x512x512x512x512x512", 1, 1, 16, 16);
    const size_t rows = 64, layer = rows * 512 * sizeof(float), small = 64 << 10;
    assert_true(dpn_exec_bytes(deep, rows, 0) < 2 * layer + small);
    assert_true(dpn_exec_bytes(deep, rows, 0) <= dpn_exec_bytes(shallow, rows, 0) + DPN_PAGE_BYTES);
    /* training: all activations, two gradients */
    assert_true(dpn_exec_bytes(deep, rows, 1) >= (8 + 2) * layer);
    assert_true(dpn_exec_bytes(deep, rows, 1) < (8 + 2) * layer + small);
    dpn_model_close(shallow);
    dpn_model_close(deep);
}

static void test_sizes_saturate(void **state)
{
    (void)state;
    struct dpn_model *model = nn_open("mlp:hidden=2147483648", 1, 1, 1, 1);
    size_t rows[] = {(size_t)1 << 31, (size_t)1 << 33, (size_t)1 << 40, SIZE_MAX / 2, SIZE_MAX};
    size_t last = 0;
    for (size_t i = 0; i < 5; i++) {
        size_t bytes = dpn_exec_bytes(model, rows[i], 1);
        assert_true(bytes >= last && bytes >= (size_t)1 << 62);
        assert_int_equal(bytes % DPN_PAGE_BYTES, 0);
        last = bytes;
    }
    dpn_model_close(model);
}

/* ---- padding ---- */

/* Marks the elements of all tensors in MASK; what stays 0 is padding. */
static void ops_mark(const struct dpn_model *model, float *mask)
{
    for (size_t t = 0; t < model->n_tensors; t++) {
        size_t elems = model->tensors[t].elems;
        float *ones = malloc(elems * sizeof *ones);
        assert_non_null(ones);
        for (size_t i = 0; i < elems; i++) ones[i] = 1.0f;
        dpn_tensor_import(&model->tensors[t], ones, mask);
        free(ones);
    }
}

static void ops_check_rows(const float *x, const struct dpn_value *value, size_t rows)
{
    for (size_t r = 0; r < rows; r++)
        for (size_t i = value->elems; i < value->stride; i++) assert_true(x[r * value->stride + i] == 0.0f);
}

/* Gradients of values share buffers, so each is looked at once it is complete. */
static enum dpn_status ops_padded(void *arg, size_t floats)
{
    const struct nn_run *run = arg;
    for (size_t i = 0; i < run->model->n_nodes; i++) {
        const struct dpn_node *node = &run->model->nodes[i];
        if (node->ready == floats && node->tensors[0] >= 0 && node->needs_input_grad)
            ops_check_rows(run->exec.grad[node->input], &run->model->values[node->input], 5);
    }
    return DPN_OK;
}

static void ops_check_padding(const struct dpn_optimizer_class *optimizer, const struct dpn_kernels *kernels,
                              const char *spec)
{
    struct dpn_optimizer_settings settings =
        {.lr = 0.01, .momentum = 0.9, .weight_decay = 0.01, .beta1 = 0.9, .beta2 = 0.999, .eps = 0.0};
    struct dpn_model *model = nn_open(spec, 1, 3, 7, 13);
    size_t elems = model->arena_elems;
    float *mask = nn_arena(elems), *slots[2] = {nn_arena(elems), nn_arena(elems)};
    struct nn_run run;
    nn_run_open(&run, model, kernels, NULL, 5, 1);
    ops_mark(model, mask);
    for (uint64_t t = 1; t <= 5; t++) {
        double loss;
        uint64_t correct;
        nn_fill(&run, t, 0, 5);
        dpn_exec_forward(&run.exec, 5, 1);
        dpn_exec_loss(&run.exec, 5, 1, 0.2f, &loss, &correct);
        ops_check_rows(run.exec.grad[model->logits], &model->values[model->logits], 5);
        assert_int_equal(dpn_exec_backward(&run.exec, 5, ops_padded, &run), DPN_OK);
        optimizer->update(&settings, kernels, settings.lr, t, elems, run.params, run.grads, slots);
    }
    size_t padding = 0;
    for (size_t i = 0; i < elems; i++) {
        if (mask[i] != 0.0f) continue;
        padding++;
        assert_true(run.params[i] == 0.0f && run.grads[i] == 0.0f && slots[0][i] == 0.0f &&
                    slots[1][i] == 0.0f);
    }
    assert_int_equal(padding, elems - model->parameters);
    for (size_t v = 0; v < model->n_values; v++) ops_check_rows(run.exec.value[v], &model->values[v], 5);
    nn_run_close(&run);
    for (int i = 0; i < 2; i++) dpn_arena_free(slots[i], elems * sizeof(float));
    dpn_arena_free(mask, elems * sizeof *mask);
    dpn_model_close(model);
}

static void test_padding_stays_zero(void **state)
{
    (void)state;
    const struct dpn_kernels *tables[NN_MAX_TABLES];
    size_t n = nn_tables(tables, NN_MAX_TABLES);
    for (size_t k = 0; k < n; k++)
        for (size_t i = 0; dpn_optimizer_classes[i]; i++) {
            ops_check_padding(dpn_optimizer_classes[i], tables[k], "mlp:hidden=70x5x33");
            ops_check_padding(dpn_optimizer_classes[i], tables[k], "dense");
            ops_check_padding(dpn_optimizer_classes[i], tables[k], "odd:width=20");
        }
}

/* A parameter that is not a number must show in the loss, also behind ReLUs. */
static void test_nan_reaches_the_loss(void **state)
{
    (void)state;
    static const char *const specs[] = {"dense", "mlp:hidden=70x5", "odd:width=20"};
    const struct dpn_kernels *tables[NN_MAX_TABLES];
    size_t n = nn_tables(tables, NN_MAX_TABLES);
    for (size_t k = 0; k < n; k++)
        for (size_t s = 0; s < 3; s++) {
            struct dpn_model *model = nn_open(specs[s], 1, 3, 7, 5);
            struct nn_run run;
            nn_run_open(&run, model, tables[k], NULL, 4, 1);
            nn_fill(&run, s, 0, 4);
            assert_true(isfinite(nn_step(&run, 4, 1.0f)));
            run.params[model->tensors[0].offset] = NAN;
            assert_false(isfinite(nn_step(&run, 4, 1.0f)));
            nn_run_close(&run);
            dpn_model_close(model);
        }
}

/* ---- ready ---- */

struct ops_ready {
    const struct nn_run *run;
    size_t calls, floats[16];
    float *seen; /* copy of the gradients that were called final, as they were then */
    size_t fail_at;
};

static enum dpn_status ops_ready(void *arg, size_t floats)
{
    struct ops_ready *ready = arg;
    size_t before = ready->calls ? ready->floats[ready->calls - 1] : 0;
    assert_true(floats > before && floats % 16 == 0 && ready->calls < 16);
    memcpy(ready->seen + before, ready->run->grads + before, (floats - before) * sizeof(float));
    ready->floats[ready->calls++] = floats;
    return ready->calls == ready->fail_at ? dpn_fail(DPN_ERR_ABORTED, "planted") : DPN_OK;
}

static void test_ready_is_a_final_prefix(void **state)
{
    (void)state;
    struct dpn_model *model = nn_open("mlp:hidden=70x5", 1, 3, 7, 5);
    struct nn_run run;
    nn_run_open(&run, model, &dpn_kernels_ref, NULL, 4, 1);
    nn_fill(&run, 1, 0, 4);
    struct ops_ready ready = {.run = &run, .seen = nn_arena(model->arena_elems)};
    for (size_t t = 0; t < model->n_tensors; t++)
        for (size_t i = 0; i < model->tensors[t].stored; i++) run.grads[model->tensors[t].offset + i] = NAN;
    double loss;
    uint64_t correct;
    dpn_exec_forward(&run.exec, 4, 1);
    dpn_exec_loss(&run.exec, 4, 1, 1.0f, &loss, &correct);
    assert_int_equal(dpn_exec_backward(&run.exec, 4, ops_ready, &ready), DPN_OK);
    assert_int_equal(ready.calls, 4); /* three layers, of which fc1 has two panels */
    assert_int_equal(ready.floats[3], model->arena_elems);
    assert_memory_equal(ready.seen, run.grads, model->arena_elems * sizeof(float));
    for (size_t i = 0; i < model->arena_elems; i++) assert_true(isfinite(run.grads[i]));

    ready.calls = 0;
    ready.fail_at = 2;
    dpn_exec_loss(&run.exec, 4, 1, 1.0f, &loss, &correct);
    assert_int_equal(dpn_exec_backward(&run.exec, 4, ops_ready, &ready), DPN_ERR_ABORTED);
    assert_int_equal(ready.calls, 2);
    dpn_arena_free(ready.seen, model->arena_elems * sizeof(float));
    nn_run_close(&run);
    dpn_model_close(model);
}

static void test_a_relu_of_its_own_and_a_fused_one(void **state)
{
    (void)state;
    struct dpn_model *model = nn_open("odd", 1, 1, 3, 2);
    assert_int_equal(model->n_nodes, 4);
    assert_string_equal(model->nodes[2].cls->name, "relu");
    assert_int_equal(model->values[model->nodes[2].output].in_place_of, model->nodes[2].input);
    assert_int_equal(model->nodes[0].relu, 0);
    dpn_model_close(model);
    model = nn_open("mlp", 1, 1, 3, 2);
    assert_int_equal(model->n_nodes, 4);
    for (size_t i = 1; i < 4; i++) {
        assert_string_equal(model->nodes[i].cls->name, "dense");
        assert_int_equal(model->nodes[i].relu, i < 3);
        assert_int_equal(model->nodes[i].needs_input_grad, i > 1);
    }
    dpn_model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradients),
        cmocka_unit_test(test_gradients_of_panels),
        cmocka_unit_test(test_tables_match_ref),
        cmocka_unit_test(test_any_team_gives_the_same_bits),
        cmocka_unit_test(test_shards_of_one_sample_sum_to_the_batch),
        cmocka_unit_test(test_stale_buffers_do_not_matter),
        cmocka_unit_test(test_evaluation_has_the_logits_of_training),
        cmocka_unit_test(test_buffers_are_used_again),
        cmocka_unit_test(test_sizes_saturate),
        cmocka_unit_test(test_padding_stays_zero),
        cmocka_unit_test(test_nan_reaches_the_loss),
        cmocka_unit_test(test_ready_is_a_final_prefix),
        cmocka_unit_test(test_a_relu_of_its_own_and_a_fused_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
