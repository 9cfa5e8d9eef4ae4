/* The memory plan: nothing is laid over what is still needed, found by a count of lives of its own and by
 * running; what it takes; sizes beyond any memory. */
#include "tests/nn/nn_test.h"

static const char *const plan_specs[] = {
    "dense",
    "mlp:hidden=70x5x33",
    "odd:width=20",
    "lenet",
    "resnet18:width=8",
    "resnet20:width=4",
    "net:ops=c20k3s1p1-n-r-[-c20k3s1p1-n-+-r-m3s2p1-r-[-c20k3s1p1-r-c20k3s1p1-n-+-r-g-d0",
    "net:ops=c5k3s1p1b-r-g-d0",
    "net:ops=c5k5s1p2-r-c6k5s1p2b-r-m2s2p0-c7k3s2p1-m2s2p0-d0",
    "net:ops=c5k3s1p1-r-c5k3s1p1-r-c5k3s1p1-r-c5k3s1p1-r-g-d0",
    "net:ops=c5k3s1p1-[-c5k3s1p1-x-r-+-[-n-r-+-a2s2p0-r-[-g-x-c5k3s1p1b-n-g-+-d0",
    "net:ops=c5k3s1p1-r-[-[-[-m3s1p1-x-c5k3s1p1-+-+-+-d9-r-d0",
    "net:ops=c5k3s1p1b-n-r-[-c5k3s1p1b-n-r-c5k3s1p1b-n-+-r-d0",
};
enum { PLAN_SPECS = sizeof plan_specs / sizeof plan_specs[0], PLAN_ROWS = 3 };

/* ---- lives, counted from what ops read and write ---- */

struct plan_life {
    int first, last; /* first > last: never */
};

struct plan_count {
    const struct dpn_model *model;
    struct plan_life value[DPN_MAX_VALUES], grad[DPN_MAX_VALUES];
};

static void plan_touch(struct plan_life *life, int time)
{
    if (life->first > life->last) *life = (struct plan_life){time, time};
    if (time < life->first) life->first = time;
    if (time > life->last) life->last = time;
}

/* Whoever reads a lazy value reads the batch norm's input. */
static void plan_touch_value(struct plan_count *count, int value, int time)
{
    const struct dpn_value *v = &count->model->values[value];
    if (v->lazy) plan_touch_value(count, count->model->nodes[v->maker].input, time);
    else if (v->in_place_of >= 0) plan_touch_value(count, v->in_place_of, time);
    else plan_touch(&count->value[value], time);
}

/* A lazy gradient is computed from that of the batch norm's output and from its input. */
static void plan_touch_grad(struct plan_count *count, int value, int time)
{
    const struct dpn_model *model = count->model;
    if (model->values[value].grad_lazy) {
        const struct dpn_node *norm = &model->nodes[model->values[value].first_reader];
        plan_touch_value(count, value, time);
        plan_touch_grad(count, norm->output, time);
        return;
    }
    plan_touch(&count->grad[nn_grad_root(model, (size_t)value)], time);
}

static int plan_named(const struct dpn_node *node, const char *name)
{
    return strcmp(node->cls->name, name) == 0;
}

/* Ops that read their input in backward: products, maxima, deviations from the mean; a ReLU looks at its
 * output. */
static void plan_count_backward(struct plan_count *count, const struct dpn_node *node, int time)
{
    const struct dpn_model *model = count->model;
    int maximum = plan_named(node, "pool") && !node->window.average;
    if (!model->values[node->output].learns) return;
    plan_touch_grad(count, node->output, time);
    if (node->needs_input_grad && !model->values[node->input].grad_lazy)
        plan_touch_grad(count, node->input, time);
    if (node->needs_residual_grad) plan_touch_grad(count, node->residual, time);
    if (plan_named(node, "dense") || plan_named(node, "conv") || plan_named(node, "batch_norm") || maximum)
        plan_touch_value(count, node->input, time);
    if (node->relu || plan_named(node, "relu") || maximum) plan_touch_value(count, node->output, time);
    if (node->masks >= 0) {
        plan_touch_value(count, model->nodes[node->masks].input, time);
        if (model->nodes[node->masks].relu) plan_touch_value(count, node->input, time);
    }
}

static void plan_count(struct plan_count *count, const struct dpn_model *model, int training)
{
    int n = (int)model->n_nodes;
    *count = (struct plan_count){.model = model};
    for (size_t v = 0; v < model->n_values; v++) count->value[v] = count->grad[v] = (struct plan_life){1, 0};
    plan_touch_value(count, 0, -1); /* filled before the first node */
    for (int i = 0; i < n; i++) {
        const struct dpn_node *node = &model->nodes[i];
        plan_touch_value(count, node->input, i);
        plan_touch_value(count, node->output, i);
        if (node->pool) plan_touch_value(count, model->nodes[node->pooled].output, i);
        if (node->residual >= 0) plan_touch_value(count, node->residual, i);
        if (training) plan_count_backward(count, node, 2 * n - i);
    }
    plan_touch_value(count, model->logits, n); /* the loss */
    if (training) plan_touch_grad(count, model->logits, n);
}

struct plan_piece {
    struct plan_life life;
    size_t at, floats;
};

static size_t plan_pieces(const struct plan_count *count, const struct dpn_plan *plan,
                          struct plan_piece *pieces)
{
    const struct dpn_model *model = count->model;
    size_t n = 0;
    for (size_t v = 0; v < model->n_values; v++) {
        const struct dpn_node *maker = model->values[v].maker >= 0 ? &model->nodes[model->values[v].maker]
                                                                   : NULL;
        for (int g = 0; g < 2; g++) {
            size_t floats = plan->max_rows * model->values[v].stride;
            if (!g && maker && maker->pool) /* a byte a maximum */
                floats = plan->max_rows * model->values[model->nodes[maker->pooled].output].stride / 4;
            struct plan_life life = g ? count->grad[v] : count->value[v];
            size_t at = g ? plan->grad_at[v] : plan->value_at[v];
            if (life.first > life.last) continue;
            assert_true(at != SIZE_MAX && at % 16 == 0 && at + floats <= plan->activation_floats);
            pieces[n++] = (struct plan_piece){life, at, floats};
        }
    }
    return n;
}

static void plan_check_lives(const struct dpn_model *model, size_t rows, int training)
{
    static struct plan_piece pieces[2 * DPN_MAX_VALUES];
    static struct plan_count count;
    struct dpn_plan plan;
    dpn_plan_make(&plan, model, &dpn_kernels_ref, 2, rows, training);
    assert_int_equal(plan.max_rows, rows);
    assert_int_equal(plan.training, training);
    plan_count(&count, model, training);
    size_t n = plan_pieces(&count, &plan, pieces);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < i; j++) {
            const struct plan_piece *a = &pieces[i], *b = &pieces[j];
            if (a->life.last < b->life.first || b->life.last < a->life.first) continue;
            if (a->at < b->at + b->floats && b->at < a->at + a->floats)
                fail_msg("%s: at %zu and %zu two buffers overlap", model->spec, a->at, b->at);
        }
    /* What is not stored has no place. */
    for (size_t v = 0; v < model->n_values; v++) {
        if (model->values[v].lazy) assert_true(plan.value_at[v] == SIZE_MAX);
        if (!training || model->values[v].grad_lazy || !model->values[v].learns)
            assert_true(plan.grad_at[v] == SIZE_MAX);
    }
    assert_true(plan.shared_at >= plan.activation_floats &&
                plan.blocks_at >= plan.shared_at + plan.workspace.shared);
    assert_true(plan.scratch_at >= plan.blocks_at + plan.workspace.blocks);
    assert_true(plan.bytes >= (plan.scratch_at + 2 * plan.workspace.scratch) * sizeof(float));
    assert_int_equal(plan.bytes % DPN_PAGE_BYTES, 0);
}

static void test_what_lives_does_not_overlap(void **state)
{
    (void)state;
    for (size_t s = 0; s < PLAN_SPECS; s++) {
        struct dpn_model *model = nn_open(plan_specs[s], 3, 16, 16, 10);
        for (int training = 0; training < 2; training++) {
            plan_check_lives(model, 1, training);
            plan_check_lives(model, 7, training);
        }
        dpn_model_close(model);
    }
}

/* ---- running ---- */

/* Memory full of NaN gives the same bits as buffers apart, every time. */
static void plan_check_run(const char *spec, const struct dpn_kernels *kernels)
{
    struct dpn_model *model = nn_open(spec, 3, 16, 16, 10);
    struct nn_run tight, apart;
    nn_run_open(&tight, model, kernels, NULL, PLAN_ROWS, 1);
    nn_run_open_apart(&apart, model, kernels, PLAN_ROWS);
    for (uint64_t again = 0; again < 2; again++) {
        memset(tight.memory, 0xff, tight.plan.bytes);
        memset(apart.memory, 0xff, apart.plan.bytes);
        nn_fill(&tight.exec, again, 0, PLAN_ROWS);
        nn_fill(&apart.exec, again, 0, PLAN_ROWS);
        double loss = nn_step(&tight, PLAN_ROWS, 0.5f);
        assert_true(isfinite(loss));
        assert_true(loss == nn_step(&apart, PLAN_ROWS, 0.5f));
        if (memcmp(tight.grads, apart.grads, model->arena_elems * sizeof(float)) != 0)
            fail_msg("%s with %s: gradients differ from those with buffers apart", spec, kernels->isa);
        for (size_t i = 0; i < model->arena_elems; i++) assert_true(isfinite(tight.grads[i]));
        /* The input and the logits are still there. */
        size_t input = PLAN_ROWS * model->values[0].stride * sizeof(float);
        assert_memory_equal(tight.exec.value[0], apart.exec.value[0], input);
        size_t logits = PLAN_ROWS * model->values[model->logits].stride * sizeof(float);
        assert_memory_equal(tight.exec.value[model->logits], apart.exec.value[model->logits], logits);
    }
    nn_run_close(&tight);
    nn_run_close(&apart);
    dpn_model_close(model);
}

static void test_shared_memory_gives_the_bits_of_buffers_apart(void **state)
{
    (void)state;
    const struct dpn_kernels *tables[NN_MAX_TABLES];
    size_t n = nn_tables(tables, NN_MAX_TABLES);
    for (size_t s = 0; s < PLAN_SPECS; s++) {
        plan_check_run(plan_specs[s], tables[0]);
        plan_check_run(plan_specs[s], tables[n - 1]);
    }
}

/* ---- sizes ---- */

static size_t plan_bytes(const struct dpn_model *model, size_t rows, int training)
{
    struct dpn_plan plan;
    dpn_plan_make(&plan, model, &dpn_kernels_ref, 1, rows, training);
    return plan.bytes;
}

/* A deep chain takes the memory of its two widest neighbours, not of all its layers. */
static void test_buffers_are_used_again(void **state)
{
    (void)state;
    struct dpn_model *shallow = nn_open("mlp:hidden=512x512", 1, 1, 16, 16);
    struct dpn_model *deep = nn_open("mlp:hidden=512x512x512x512x512x512x512x512", 1, 1, 16, 16);
    const size_t rows = 64, layer = rows * 512 * sizeof(float), small = 64 << 10;
    assert_true(plan_bytes(deep, rows, 0) < 2 * layer + small);
    assert_true(plan_bytes(deep, rows, 0) <= plan_bytes(shallow, rows, 0) + DPN_PAGE_BYTES);
    /* training: all activations; two gradients, but the activations before them are no longer needed */
    assert_true(plan_bytes(deep, rows, 1) >= (8 + 1) * layer);
    assert_true(plan_bytes(deep, rows, 1) < (8 + 2) * layer + small);
    dpn_model_close(shallow);
    dpn_model_close(deep);
}

/* A batch norm's output that its readers compute is not stored: 12 of the 20 in a ResNet-18. */
static void test_resnet18_fits(void **state)
{
    (void)state;
    struct dpn_model *model = nn_open("resnet18", 3, 32, 32, 10);
    struct dpn_plan plan;
    dpn_plan_make(&plan, model, &dpn_kernels_ref, 1, 64, 1);
    assert_true(plan.activation_floats * sizeof(float) < 300e6);
    dpn_plan_make(&plan, model, &dpn_kernels_ref, 1, 64, 0);
    assert_true(plan.activation_floats * sizeof(float) <= 64 * 3 * 65536 * sizeof(float) + (4 << 20));
    /* What the algorithms of fast tables want beside them, for teams of 1 and 16 threads. */
    const struct dpn_kernels *kernels;
    assert_int_equal(dpn_kernels_select("auto", &kernels), DPN_OK);
    size_t last = 0;
    for (size_t team = 1; team <= 16; team *= 16) {
        dpn_plan_make(&plan, model, kernels, team, 64, 1);
        assert_true(plan.bytes > last && plan.bytes < (size_t)600 << 20);
        last = plan.bytes;
    }
    dpn_model_close(model);
}

/* Passes over fewer rows find what they want, however an algorithm cuts them. */
static void test_workspaces_serve_fewer_rows(void **state)
{
    (void)state;
    static const char *const specs[] = {"lenet", "resnet20:width=4", "resnet18",
                                        "net:ops=c70k1s1p0-r-c5k3s1p1b-n-r-d0"};
    const struct dpn_kernels *tables[NN_MAX_TABLES];
    size_t n = nn_tables(tables, NN_MAX_TABLES);
    for (size_t s = 0; s < sizeof specs / sizeof specs[0]; s++)
        for (size_t pixels = 8; pixels <= 32; pixels += 12) {
            struct dpn_model *model = nn_open(specs[s], 3, pixels + 4, pixels + 4, 10);
            for (size_t k = 1; k < n; k++)
                for (size_t max = 5; max <= 65; max += 20) {
                    struct dpn_plan plan, fewer;
                    dpn_plan_make(&plan, model, tables[k], 2, max, 1);
                    for (size_t rows = 1; rows < max; rows++) {
                        dpn_plan_make(&fewer, model, tables[k], 2, rows, 1);
                        if (fewer.workspace.shared > plan.workspace.shared ||
                            fewer.workspace.scratch > plan.workspace.scratch ||
                            fewer.workspace.blocks > plan.workspace.blocks)
                            fail_msg("%s of %zu pixels with %s: %zu rows want more than %zu", specs[s],
                                     pixels + 4, tables[k]->isa, rows, max);
                    }
                }
            dpn_model_close(model);
        }
}

static void test_sizes_saturate(void **state)
{
    (void)state;
    static const char *const specs[] = {"mlp:hidden=2147483648", "resnet18", "lenet",
                                        "net:ops=c5k3s1p1b-r-[-m3s1p1-+-n-g-d0"};
    static const size_t rows[] = {(size_t)1 << 31, (size_t)1 << 33, (size_t)1 << 40,
                                  (size_t)1 << 47, SIZE_MAX / 2,    SIZE_MAX};
    const struct dpn_kernels *tables[NN_MAX_TABLES];
    size_t n = nn_tables(tables, NN_MAX_TABLES);
    for (size_t s = 0; s < sizeof specs / sizeof specs[0]; s++) {
        struct dpn_model *model = nn_open(specs[s], 1, s == 0 ? 1 : 32, s == 0 ? 1 : 32, 1);
        for (size_t k = 0; k < n; k++)
            for (int training = 0; training < 2; training++) {
                size_t last = 0;
                for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
                    struct dpn_plan plan;
                    dpn_plan_make(&plan, model, tables[k], 4, rows[i], training);
                    assert_true(plan.bytes >= last && plan.bytes / 64 >= rows[i] / 256);
                    assert_true(i < 4 || plan.bytes >= (size_t)1 << 58);
                    assert_int_equal(plan.bytes % DPN_PAGE_BYTES, 0);
                    last = plan.bytes;
                }
            }
        dpn_model_close(model);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_lives_does_not_overlap),
        cmocka_unit_test(test_shared_memory_gives_the_bits_of_buffers_apart),
        cmocka_unit_test(test_buffers_are_used_again),
        cmocka_unit_test(test_resnet18_fits),
        cmocka_unit_test(test_workspaces_serve_fewer_rows),
        cmocka_unit_test(test_sizes_saturate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
