/* Training runs that PyTorch computed in float64 (tests/reference), on the real Fashion-MNIST, by every
 * kernel table. */
#include <jansson.h>
#include <unistd.h>

#include "data/data.h"
#include "tests/nn/nn_test.h"

#define REF_IMAGES "/usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz"
#define REF_LABELS "/usr/share/datasets/fashion-mnist/train-labels-idx1-ubyte.gz"

enum { REF_PIXELS = 784 };

/* Relative. float32 comes within 2e-6; Adam with a beta2 rounded to float32 is off by 9e-5. */
static const double ref_limit = 1e-5;

static struct dpn_idx ref_images, ref_labels;

static int ref_setup(void **state)
{
    (void)state;
    if (access(REF_IMAGES, R_OK) != 0) return 0;
    return dpn_idx_read(REF_IMAGES, 2051, &ref_images) != DPN_OK ||
           dpn_idx_read(REF_LABELS, 2049, &ref_labels) != DPN_OK;
}

static int ref_teardown(void **state)
{
    (void)state;
    free(ref_images.bytes);
    free(ref_labels.bytes);
    return 0;
}

struct ref_case {
    json_t *json; /* settings and expected values */
    size_t batch, replicas, steps;
    int sum; /* of the replicas' means */
    const struct dpn_optimizer_class *optimizer;
    struct dpn_optimizer_settings settings;
};

static void ref_path(char *path, size_t size, const char *name, const char *ending)
{
    const char *srcdir = getenv("srcdir");
    snprintf(path, size, "%s/tests/reference/%s%s", srcdir ? srcdir : ".", name, ending);
}

static double ref_number(const json_t *object, const char *key, double otherwise)
{
    const json_t *value = json_object_get(object, key);
    return value ? json_number_value(value) : otherwise;
}

static void ref_open(struct ref_case *c, const char *name)
{
    char path[512];
    json_error_t error;
    ref_path(path, sizeof path, name, ".json");
    *c = (struct ref_case){.json = json_load_file(path, 0, &error)};
    if (!c->json) fail_msg("%s: %s", path, error.text);
    c->batch = (size_t)ref_number(c->json, "batch", 0);
    c->replicas = (size_t)ref_number(c->json, "replicas", 0);
    c->steps = (size_t)ref_number(c->json, "steps", 0);
    c->sum = strcmp(json_string_value(json_object_get(c->json, "grad_op")), "sum") == 0;
    const char *optimizer = json_string_value(json_object_get(c->json, "optimizer"));
    assert_int_equal(dpn_optimizer_find(optimizer, &c->optimizer), DPN_OK);
    const json_t *args = json_object_get(c->json, "optimizer_args"), *betas = json_object_get(args, "betas");
    c->settings = (struct dpn_optimizer_settings){
        .lr = ref_number(args, "lr", 0),
        .momentum = ref_number(args, "momentum", 0),
        .weight_decay = ref_number(args, "weight_decay", 0),
        .beta1 = betas ? json_number_value(json_array_get(betas, 0)) : 0.9,
        .beta2 = betas ? json_number_value(json_array_get(betas, 1)) : 0.999,
        .eps = ref_number(args, "eps", 1e-8),
        .nesterov = json_is_true(json_object_get(args, "nesterov")),
    };
    assert_true(c->batch > 0 && c->replicas > 0 && c->steps > 0);
    assert_int_equal(c->optimizer->check(&c->settings), DPN_OK);
}

/* The start weights of NAME.safetensors. */
static void ref_load(const char *name, const struct dpn_model *model, float *params)
{
    char path[512];
    uint64_t header_bytes;
    ref_path(path, sizeof path, name, ".safetensors");
    FILE *file = fopen(path, "rb");
    if (!file) fail_msg("%s: cannot open", path);
    assert_int_equal(fread(&header_bytes, sizeof header_bytes, 1, file), 1);
    char *text = malloc(header_bytes);
    assert_non_null(text);
    assert_int_equal(fread(text, 1, header_bytes, file), header_bytes);
    json_t *header = json_loadb(text, header_bytes, 0, NULL);
    assert_int_equal(json_object_size(header), model->n_tensors);
    for (size_t t = 0; t < model->n_tensors; t++) {
        const struct dpn_tensor *tensor = &model->tensors[t];
        const json_t *entry = json_object_get(header, tensor->name),
                     *range = json_object_get(entry, "data_offsets");
        json_int_t begin = json_integer_value(json_array_get(range, 0));
        assert_int_equal(json_integer_value(json_array_get(range, 1)) - begin, tensor->elems * sizeof(float));
        float *values = malloc(tensor->elems * sizeof *values);
        assert_non_null(values);
        assert_int_equal(fseek(file, (long)(8 + header_bytes) + (long)begin, SEEK_SET), 0);
        assert_int_equal(fread(values, sizeof *values, tensor->elems, file), tensor->elems);
        dpn_tensor_import(tensor, values, params);
        free(values);
    }
    json_decref(header);
    free(text);
    fclose(file);
}

static void ref_fill(struct dpn_exec *exec, const struct dpn_kernels *kernels, size_t first, size_t rows)
{
    const double mean = 0.2860, deviation = 0.3530;
    assert_true(first + rows <= ref_images.dims[0]);
    for (size_t r = 0; r < rows; r++) {
        kernels->u8_to_f32(REF_PIXELS, ref_images.bytes + (first + r) * REF_PIXELS,
                           (float)(1 / (255 * deviation)), (float)(-mean / deviation),
                           exec->value[0] + r * REF_PIXELS);
        exec->labels[r] = ref_labels.bytes[first + r];
    }
}

static void ref_close_to(const char *name, const char *isa, const char *what, double value, double expected)
{
    if (!(fabs(value - expected) <= ref_limit * fabs(expected)))
        fail_msg("%s with %s: %s is %.9g, PyTorch has %.9g", name, isa, what, value, expected);
}

/* The step's gradient, replica by replica, in SUM. Returns the mean loss. */
static double ref_gradient(const struct ref_case *c, struct nn_run *run, size_t step, float *sum)
{
    size_t rows = c->batch / c->replicas;
    double total = 0;
    memset(sum, 0, run->model->arena_elems * sizeof *sum);
    for (size_t r = 0; r < c->replicas; r++) {
        ref_fill(&run->exec, run->exec.kernels, step * c->batch + r * rows, rows);
        total += nn_step(run, rows, 1.0f / (float)(c->sum ? rows : c->batch));
        run->exec.kernels->add(run->model->arena_elems, sum, run->grads, sum);
    }
    return total / (double)c->batch;
}

static void ref_norms(const char *name, const struct nn_run *run, const float *arena, const json_t *expected)
{
    for (size_t t = 0; t < run->model->n_tensors; t++) {
        const struct dpn_tensor *tensor = &run->model->tensors[t];
        ref_close_to(name, run->exec.kernels->isa, tensor->name,
                     dpn_tensor_norm(tensor, run->exec.kernels, arena),
                     ref_number(expected, tensor->name, NAN));
    }
}

static void ref_eval(const char *name, const struct ref_case *c, struct nn_run *run)
{
    const json_t *expected = json_object_get(c->json, "eval_first_batch");
    double loss, n = (double)c->batch;
    uint64_t correct;
    ref_fill(&run->exec, run->exec.kernels, 0, c->batch);
    dpn_exec_forward(&run->exec, c->batch, 0);
    dpn_exec_loss(&run->exec, c->batch, 0, 0.0f, &loss, &correct);
    ref_close_to(name, run->exec.kernels->isa, "evaluation loss", loss / n,
                 ref_number(expected, "loss", NAN));
    assert_true(fabs((double)correct / n - ref_number(expected, "accuracy", NAN)) < 1e-9);
}

static void ref_train(const char *name, const struct ref_case *c, const struct dpn_kernels *kernels)
{
    struct dpn_model *model = nn_open(json_string_value(json_object_get(c->json, "model")), 1, 28, 28, 10);
    struct nn_run run;
    size_t bytes = model->arena_elems * sizeof(float);
    float *sum = nn_arena(model->arena_elems),
          *slots[2] = {nn_arena(model->arena_elems), nn_arena(model->arena_elems)};
    const json_t *losses = json_object_get(c->json, "loss");
    assert_int_equal(json_array_size(losses), c->steps);
    nn_run_open(&run, model, kernels, NULL, c->batch, 1);
    ref_load(name, model, run.params);
    for (size_t s = 0; s < c->steps; s++) {
        double loss = ref_gradient(c, &run, s, sum);
        ref_close_to(name, kernels->isa, "loss", loss, json_number_value(json_array_get(losses, s)));
        if (s == 0) ref_norms(name, &run, sum, json_object_get(c->json, "grad_norm_step0"));
        c->optimizer->update(&c->settings, kernels, c->settings.lr, s + 1, model->arena_elems, run.params,
                             sum, slots);
    }
    ref_norms(name, &run, run.params, json_object_get(c->json, "norm_after"));
    ref_eval(name, c, &run);
    free(sum);
    for (int i = 0; i < 2; i++) free(slots[i]);
    nn_run_close(&run);
    dpn_model_close(model);
}

static void ref_check(const char *name)
{
    const struct dpn_kernels *tables[NN_MAX_TABLES];
    struct ref_case c;
    if (!ref_images.bytes) {
        print_message("no %s (Debian's package dataset-fashion-mnist)\n", REF_IMAGES);
        skip();
    }
    size_t n = nn_tables(tables, NN_MAX_TABLES);
    ref_open(&c, name);
    for (size_t k = 0; k < n; k++) ref_train(name, &c, tables[k]);
    json_decref(c.json);
}

static void test_dense_sgd(void **state)
{
    (void)state;
    ref_check("dense-sgd");
}

static void test_dense_sgd_of_two_replicas(void **state)
{
    (void)state;
    ref_check("dense-sgd-2replicas");
}

static void test_dense_sum_of_two_replicas(void **state)
{
    (void)state;
    ref_check("dense-sum-2replicas");
}

static void test_mlp_momentum(void **state)
{
    (void)state;
    ref_check("mlp-momentum");
}

static void test_mlp_nesterov(void **state)
{
    (void)state;
    ref_check("mlp-nesterov");
}

static void test_mlp_adam(void **state)
{
    (void)state;
    ref_check("mlp-adam");
}

static void test_mlp_adamw(void **state)
{
    (void)state;
    ref_check("mlp-adamw");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dense_sgd),
        cmocka_unit_test(test_dense_sgd_of_two_replicas),
        cmocka_unit_test(test_dense_sum_of_two_replicas),
        cmocka_unit_test(test_mlp_momentum),
        cmocka_unit_test(test_mlp_nesterov),
        cmocka_unit_test(test_mlp_adam),
        cmocka_unit_test(test_mlp_adamw),
    };
    return cmocka_run_group_tests(tests, ref_setup, ref_teardown);
}
