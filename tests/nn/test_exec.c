/* The executor: kernel tables against ref, any team, shard and buffer, padding, NaN, what is ready when. */
#include "tests/nn/nn_test.h"

struct exec_case {
    const char *spec;
    size_t channels, height, width, classes, rows;
};

/* A block of every kind: lazy and stored, projected and not, pools, an addition. */
#define EXEC_NET                                                                                           \
    "net:ops=c20k3s1p1-n-r-[-c20k3s1p1-n-r-c20k3s1p1-n-+-r-[-c36k3s2p1-n-r-c36k3s1p1-n-x-c36k1s2p0-n-+-r-" \
    "m3s1p1-[-"                                                                                            \
    "c36k3s1p1b-r-+-r-g-d0"

/* ---- kernel tables, teams ---- */

static const struct exec_case exec_cases[] = {
    {"dense", 1, 28, 28, 10, 64},
    {"mlp", 1, 28, 28, 10, 64},
    {"mlp:hidden=130x70x33", 1, 10, 10, 17, 61},
    {"odd:width=200", 3, 9, 9, 10, 13},
    {"mlp", 1, 28, 28, 10, 1},
    {"mlp:hidden=7", 1, 1, 5, 3, 2},
    {"mlp:hidden=2100", 1, 1, 31, 2, 129},
    {"dense", 1, 40, 60, 64, 5},
    {"lenet", 1, 28, 28, 10, 3},
    {"resnet18:width=8", 3, 16, 16, 10, 3},
    {"resnet18:width=33", 3, 9, 8, 10, 2},
    {EXEC_NET, 3, 12, 10, 10, 5},
};
enum { EXEC_CASES = sizeof exec_cases / sizeof exec_cases[0] };

static double exec_relative(const float *a, const float *b, size_t n)
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
    for (size_t i = 0; i < EXEC_CASES; i++) {
        const struct exec_case *c = &exec_cases[i];
        struct dpn_model *model = nn_open(c->spec, c->channels, c->height, c->width, c->classes);
        struct nn_run run[NN_MAX_TABLES];
        for (size_t k = 0; k < n; k++) {
            nn_run_open(&run[k], model, tables[k], NULL, c->rows, 1);
            nn_fill(&run[k].exec, i, 0, c->rows);
            nn_step(&run[k], c->rows, 1.0f / (float)c->rows);
            double logits = exec_relative(run[k].exec.value[model->logits], run[0].exec.value[model->logits],
                                          c->rows * model->values[model->logits].stride);
            double grads = exec_relative(run[k].grads, run[0].grads, model->arena_elems);
            /* Batch norms, and Winograd's transforms, make more of a rounding. */
            double limit = model->norms ? 2e-4 : 1e-5;
            if (!(logits < limit && grads < limit))
                fail_msg("%s with %s: logits off by %g, gradients by %g", c->spec, tables[k]->isa, logits,
                         grads);
        }
        for (size_t k = 0; k < n; k++) nn_run_close(&run[k]);
        dpn_model_close(model);
    }
}

struct exec_team_job {
    const struct exec_case *c;
    struct dpn_model *model;
    const struct dpn_kernels *kernels;
    const struct nn_run *alone;
    double loss;
};

static enum dpn_status exec_in_team(void *arg, struct dpn_team *team)
{
    struct exec_team_job *job = arg;
    struct nn_run run;
    nn_run_open(&run, job->model, job->kernels, team, job->c->rows, 1);
    nn_fill(&run.exec, 5, 0, job->c->rows);
    double loss = nn_step(&run, job->c->rows, 0.125f);
    assert_true(loss == job->loss);
    size_t logits = (size_t)job->model->logits;
    assert_memory_equal(run.exec.value[logits], job->alone->exec.value[logits],
                        job->c->rows * job->model->values[logits].stride * sizeof(float));
    assert_memory_equal(run.exec.moments, job->alone->exec.moments,
                        job->model->moments_elems * sizeof(double));
    assert_memory_equal(run.exec.sums, job->alone->exec.sums, job->model->moments_elems * sizeof(double));
    assert_memory_equal(run.grads, job->alone->grads, job->model->arena_elems * sizeof(float));
    nn_run_close(&run);
    return DPN_OK;
}

static void exec_no_binding(void *arg, int thread)
{
    (void)arg;
    (void)thread;
}

static void test_any_team_gives_the_same_bits(void **state)
{
    (void)state;
    const struct dpn_kernels *tables[NN_MAX_TABLES];
    size_t n = nn_tables(tables, NN_MAX_TABLES);
    for (size_t i = 0; i < EXEC_CASES; i++) {
        const struct exec_case *c = &exec_cases[i];
        struct dpn_model *model = nn_open(c->spec, c->channels, c->height, c->width, c->classes);
        for (size_t k = 0; k < n; k++) {
            struct dpn_abort abort = {.raised = 0};
            struct nn_run alone;
            nn_run_open(&alone, model, tables[k], NULL, c->rows, 1);
            nn_fill(&alone.exec, 5, 0, c->rows);
            struct exec_team_job job = {c, model, tables[k], &alone, nn_step(&alone, c->rows, 0.125f)};
            for (int size = 1; size <= 3; size++)
                assert_int_equal(dpn_team_open(size, exec_no_binding, NULL, &abort, exec_in_team, &job),
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
    struct dpn_model *model = nn_open("net:ops=c5k3s1p1b-r-[-m3s1p1-+-a2s2p0-d20-r-d0", 1, 6, 5, 7);
    struct nn_run whole, one;
    nn_run_open(&whole, model, &dpn_kernels_ref, NULL, rows, 1);
    nn_run_open(&one, model, &dpn_kernels_ref, NULL, 1, 1);
    nn_fill(&whole.exec, 8, 0, rows);
    double loss = nn_step(&whole, rows, 1.0f / (float)rows), losses = 0;
    float *sum = nn_arena(model->arena_elems);
    for (size_t r = 0; r < rows; r++) {
        nn_fill(&one.exec, 8, r, 1);
        losses += nn_step(&one, 1, 1.0f / (float)rows);
        for (size_t i = 0; i < model->arena_elems; i++) sum[i] += one.grads[i];
    }
    assert_true(fabs(loss - losses) < 1e-6 * loss);
    assert_true(exec_relative(sum, whole.grads, model->arena_elems) < 1e-6);
    free(sum);
    nn_run_close(&whole);
    nn_run_close(&one);
    dpn_model_close(model);
}

static void exec_check_stale(const char *spec, const struct dpn_kernels *kernels, size_t pixels)
{
    const size_t most = 9;
    struct dpn_model *model = nn_open(spec, 1, pixels, pixels + 4, 5);
    struct nn_run used, fresh;
    nn_run_open(&used, model, kernels, NULL, most, 1);
    for (size_t rows = most; rows > 0; rows--) {
        nn_run_open(&fresh, model, kernels, NULL, rows, 1);
        nn_fill(&used.exec, rows, 0, rows);
        nn_fill(&fresh.exec, rows, 0, rows);
        assert_true(nn_step(&used, rows, 1.0f) == nn_step(&fresh, rows, 1.0f));
        for (size_t i = 0; i < model->arena_elems; i++)
            if (memcmp(&used.grads[i], &fresh.grads[i], sizeof(float)) != 0)
                fail_msg("%s, %zu rows, with %s: gradient %zu is %.9g after others, else %.9g", spec, rows,
                         kernels->isa, i, used.grads[i], fresh.grads[i]);
        nn_run_close(&fresh);
    }
    nn_run_close(&used);
    dpn_model_close(model);
}

static const char *const exec_specs[] = {"dense", "mlp:hidden=70x5x33", "odd:width=20", "resnet20:width=5",
                                         EXEC_NET};
enum { EXEC_SPECS = sizeof exec_specs / sizeof exec_specs[0] };

/* A short shard after long ones sees nothing of them. */
static void test_stale_buffers_do_not_matter(void **state)
{
    (void)state;
    const struct dpn_kernels *tables[NN_MAX_TABLES];
    size_t n = nn_tables(tables, NN_MAX_TABLES);
    for (size_t s = 0; s < EXEC_SPECS; s++)
        for (size_t k = 0; k < n; k++) {
            exec_check_stale(exec_specs[s], tables[k], 3);
            if (k > 0) exec_check_stale(exec_specs[s], tables[k], 8);
        }
}

static void test_evaluation_has_the_logits_of_training(void **state)
{
    (void)state;
    static const char *const specs[] = {"dense", "mlp:hidden=70x5x33", "odd:width=20",
                                        "net:ops=c5k3s1p1b-r-[-m3s1p1-+-a2s2p0-d20-r-d0"};
    for (size_t s = 0; s < sizeof specs / sizeof specs[0]; s++) {
        struct dpn_model *model = nn_open(specs[s], 1, 3, 7, 5);
        struct nn_run train, eval;
        double loss[2];
        uint64_t correct[2];
        nn_run_open(&train, model, &dpn_kernels_ref, NULL, 8, 1);
        nn_run_open(&eval, model, &dpn_kernels_ref, NULL, 8, 0);
        nn_fill(&train.exec, 4, 0, 8);
        nn_fill(&eval.exec, 4, 0, 8);
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

/* ---- padding ---- */

/* Marks the elements of all tensors in MASK; what stays 0 is padding. */
static void exec_mark(const struct dpn_model *model, float *mask)
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

/* X, of VALUE's layout: channels past the last one and floats past the last pixel. */
static void exec_check_rows(const float *x, const struct dpn_value *value, size_t rows)
{
    size_t pixels = value->height * value->width;
    for (size_t i = 0; i < rows * value->stride; i++) {
        size_t at = i % value->stride;
        if (at < pixels * value->cstride && at % value->cstride < value->channels) continue;
        if (x[i] != 0.0f) fail_msg("padding at %zu of a value of %zu floats is %g", i, value->stride, x[i]);
    }
}

static void exec_check_padding(const struct dpn_optimizer_class *optimizer, const struct dpn_kernels *kernels,
                               const char *spec)
{
    struct dpn_optimizer_settings settings =
        {.lr = 0.01, .momentum = 0.9, .weight_decay = 0.01, .beta1 = 0.9, .beta2 = 0.999, .eps = 0.0};
    struct dpn_model *model = nn_open(spec, 1, 3, 7, 13);
    size_t elems = model->arena_elems;
    float *mask = nn_arena(elems), *slots[2] = {nn_arena(elems), nn_arena(elems)};
    struct nn_run run;
    nn_run_open_apart(&run, model, kernels, 5);
    exec_mark(model, mask);
    for (uint64_t t = 1; t <= 5; t++) {
        nn_fill(&run.exec, t, 0, 5);
        nn_step(&run, 5, 0.2f);
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
    for (size_t v = 0; v < model->n_values; v++) {
        if (run.exec.value[v]) exec_check_rows(run.exec.value[v], &model->values[v], 5);
        if (run.exec.grad[v]) exec_check_rows(run.exec.grad[v], &model->values[v], 5);
    }
    nn_run_close(&run);
    for (int i = 0; i < 2; i++) free(slots[i]);
    free(mask);
    dpn_model_close(model);
}

static void test_padding_stays_zero(void **state)
{
    (void)state;
    const struct dpn_kernels *tables[NN_MAX_TABLES];
    size_t n = nn_tables(tables, NN_MAX_TABLES);
    for (size_t k = 0; k < n; k++)
        for (size_t i = 0; dpn_optimizer_classes[i]; i++)
            for (size_t s = 0; s < EXEC_SPECS; s++)
                exec_check_padding(dpn_optimizer_classes[i], tables[k], exec_specs[s]);
}

/* A parameter that is not a number must show in the loss, also behind ReLUs. */
static void test_nan_reaches_the_loss(void **state)
{
    (void)state;
    const struct dpn_kernels *tables[NN_MAX_TABLES];
    size_t n = nn_tables(tables, NN_MAX_TABLES);
    for (size_t k = 0; k < n; k++)
        for (size_t s = 0; s < EXEC_SPECS; s++) {
            struct dpn_model *model = nn_open(exec_specs[s], 1, 3, 7, 5);
            struct nn_run run;
            nn_run_open(&run, model, tables[k], NULL, 4, 1);
            nn_fill(&run.exec, s, 0, 4);
            assert_true(isfinite(nn_step(&run, 4, 1.0f)));
            run.params[model->tensors[0].offset] = NAN;
            assert_false(isfinite(nn_step(&run, 4, 1.0f)));
            nn_run_close(&run);
            dpn_model_close(model);
        }
}

/* ---- ready ---- */

struct exec_ready {
    const struct nn_run *run;
    size_t calls, floats;
    float *seen; /* copy of the gradients that were called final, as they were then */
    size_t fail_at;
};

static enum dpn_status exec_ready(void *arg, size_t floats)
{
    struct exec_ready *ready = arg;
    assert_true(floats > ready->floats && floats % 16 == 0);
    memcpy(ready->seen + ready->floats, ready->run->grads + ready->floats,
           (floats - ready->floats) * sizeof(float));
    ready->floats = floats;
    return ++ready->calls == ready->fail_at ? dpn_fail(DPN_ERR_ABORTED, "planted") : DPN_OK;
}

static void exec_check_ready(const char *spec, size_t calls)
{
    struct dpn_model *model = nn_open(spec, 1, 3, 7, 5);
    struct nn_run run;
    nn_run_open(&run, model, &dpn_kernels_ref, NULL, 4, 1);
    nn_fill(&run.exec, 1, 0, 4);
    struct exec_ready ready = {.run = &run, .seen = nn_arena(model->arena_elems)};
    for (size_t t = 0; t < model->n_tensors; t++)
        for (size_t i = 0; i < model->tensors[t].elems; i++) run.grads[model->tensors[t].offset + i] = NAN;
    double loss;
    uint64_t correct;
    dpn_exec_forward(&run.exec, 4, 1);
    dpn_exec_loss(&run.exec, 4, 1, 1.0f, &loss, &correct);
    assert_int_equal(dpn_exec_backward(&run.exec, 4, exec_ready, &ready), DPN_OK);
    assert_int_equal(ready.calls, calls);
    assert_int_equal(ready.floats, model->arena_elems);
    assert_memory_equal(ready.seen, run.grads, model->arena_elems * sizeof(float));
    for (size_t i = 0; i < model->arena_elems; i++) assert_true(isfinite(run.grads[i]));

    ready.calls = ready.floats = 0;
    ready.fail_at = 2;
    dpn_exec_forward(&run.exec, 4, 1);
    dpn_exec_loss(&run.exec, 4, 1, 1.0f, &loss, &correct);
    assert_int_equal(dpn_exec_backward(&run.exec, 4, exec_ready, &ready), DPN_ERR_ABORTED);
    assert_int_equal(ready.calls, 2);
    free(ready.seen);
    nn_run_close(&run);
    dpn_model_close(model);
}

static void test_ready_is_a_final_prefix(void **state)
{
    (void)state;
    exec_check_ready("mlp:hidden=70x5", 4);   /* three layers, of which fc1 has two panels */
    exec_check_ready("resnet20:width=5", 43); /* 21 convolutions with batch norms, one dense layer */
    exec_check_ready(EXEC_NET, 14);
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
    assert_int_equal(model->n_nodes, 3);
    for (size_t i = 0; i < 3; i++) {
        assert_string_equal(model->nodes[i].cls->name, "dense");
        assert_int_equal(model->nodes[i].relu, i < 2);
        assert_int_equal(model->nodes[i].needs_input_grad, i > 0);
    }
    dpn_model_close(model);
    /* A value that another node has read stays as it is. */
    model = nn_open("net:ops=c5k3s1p1-[-m3s1p1-x-r-+-g-d0", 1, 4, 4, 2);
    assert_string_equal(model->nodes[2].cls->name, "relu");
    assert_int_equal(model->values[model->nodes[2].output].in_place_of, -1);
    dpn_model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tables_match_ref),
        cmocka_unit_test(test_any_team_gives_the_same_bits),
        cmocka_unit_test(test_shards_of_one_sample_sum_to_the_batch),
        cmocka_unit_test(test_stale_buffers_do_not_matter),
        cmocka_unit_test(test_evaluation_has_the_logits_of_training),
        cmocka_unit_test(test_padding_stays_zero),
        cmocka_unit_test(test_nan_reaches_the_loss),
        cmocka_unit_test(test_ready_is_a_final_prefix),
        cmocka_unit_test(test_a_relu_of_its_own_and_a_fused_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
