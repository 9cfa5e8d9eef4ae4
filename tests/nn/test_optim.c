/* Optimizers against torch.optim's formulas in double, any cut into slices, and names. */
#include "tests/nn/nn_test.h"

enum { OPTIM_ELEMS = 1024, OPTIM_STEPS = 20 };

struct optim_case {
    const struct dpn_optimizer_class *cls;
    struct dpn_optimizer_settings settings;
};

static const struct optim_case optim_cases[] = {
    {&dpn_optimizer_sgd, {.lr = 0.1}},
    {&dpn_optimizer_sgd, {.lr = 0.1, .weight_decay = 0.01}},
    {&dpn_optimizer_sgd, {.lr = 0.05, .momentum = 0.9}},
    {&dpn_optimizer_sgd, {.lr = 0.05, .momentum = 0.9, .weight_decay = 0.01}},
    {&dpn_optimizer_sgd, {.lr = 0.05, .momentum = 0.9, .weight_decay = 0.01, .nesterov = 1}},
    {&dpn_optimizer_adam, {.lr = 0.001, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8}},
    {&dpn_optimizer_adam, {.lr = 0.01, .beta1 = 0.8, .beta2 = 0.99, .eps = 1e-3, .weight_decay = 0.1}},
    {&dpn_optimizer_adamw, {.lr = 0.001, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.1}},
    {&dpn_optimizer_adamw, {.lr = 0.01, .beta1 = 0.0, .beta2 = 0.5, .eps = 1e-6}},
};
enum { OPTIM_CASES = sizeof optim_cases / sizeof optim_cases[0] };

/* The rate changes from step to step, as schedules have it. */
static double optim_lr(const struct optim_case *c, uint64_t t)
{
    return c->settings.lr * (1.0 + 0.5 * sin((double)t));
}

/* One element's update, by PyTorch's documentation. */
static void optim_naive(const struct optim_case *c, uint64_t t, double *p, double g, double *m, double *v)
{
    const struct dpn_optimizer_settings *s = &c->settings;
    double lr = optim_lr(c, t);
    if (c->cls == &dpn_optimizer_sgd) {
        g += s->weight_decay * *p;
        *m = t == 1 ? g : s->momentum * *m + g;
        if (s->momentum != 0) g = s->nesterov ? g + s->momentum * *m : *m;
        *p -= lr * g;
        return;
    }
    if (c->cls == &dpn_optimizer_adamw) *p -= lr * s->weight_decay * *p;
    else g += s->weight_decay * *p;
    *m = s->beta1 * *m + (1 - s->beta1) * g;
    *v = s->beta2 * *v + (1 - s->beta2) * g * g;
    double m_hat = *m / (1 - pow(s->beta1, (double)t)), v_hat = *v / (1 - pow(s->beta2, (double)t));
    *p -= lr * m_hat / (sqrt(v_hat) + s->eps);
}

struct optim_memory {
    _Alignas(64) float p[OPTIM_ELEMS], g[OPTIM_ELEMS], m[OPTIM_ELEMS], v[OPTIM_ELEMS];
};

static void optim_start(struct optim_memory *memory)
{
    struct dpn_rng rng;
    memset(memory, 0, sizeof *memory);
    dpn_rng_init(&rng, 7, DPN_RNG_TEST, 0, 0);
    for (int i = 0; i < OPTIM_ELEMS; i++) memory->p[i] = (float)dpn_rng_normal(&rng);
}

static void optim_gradient(struct optim_memory *memory, uint64_t t)
{
    struct dpn_rng rng;
    dpn_rng_init(&rng, 7, DPN_RNG_TEST, 1, t);
    for (int i = 0; i < OPTIM_ELEMS; i++)
        memory->g[i] = (float)(dpn_rng_normal(&rng) * pow(10, dpn_rng_uniform(&rng) * 4 - 3));
}

/* Update T of the elements in slices of SLICE. */
static void optim_update(const struct optim_case *c, const struct dpn_kernels *kernels, uint64_t t,
                         struct optim_memory *memory, size_t slice)
{
    for (size_t at = 0; at < OPTIM_ELEMS; at += slice) {
        size_t n = OPTIM_ELEMS - at < slice ? OPTIM_ELEMS - at : slice;
        float *slots[2] = {memory->m + at, memory->v + at};
        c->cls->update(&c->settings, kernels, optim_lr(c, t), t, n, memory->p + at, memory->g + at,
                       c->cls->n_slots(&c->settings) ? slots : NULL);
    }
}

static void optim_check(const struct optim_case *c, const struct dpn_kernels *kernels)
{
    static struct optim_memory memory;
    static double p[OPTIM_ELEMS], m[OPTIM_ELEMS], v[OPTIM_ELEMS];
    int slots = c->cls->n_slots(&c->settings);
    optim_start(&memory);
    memset(m, 0, sizeof m);
    memset(v, 0, sizeof v);
    for (int i = 0; i < OPTIM_ELEMS; i++) p[i] = memory.p[i];
    for (uint64_t t = 1; t <= OPTIM_STEPS; t++) {
        optim_gradient(&memory, t);
        optim_update(c, kernels, t, &memory, OPTIM_ELEMS);
        for (int i = 0; i < OPTIM_ELEMS; i++) optim_naive(c, t, &p[i], memory.g[i], &m[i], &v[i]);
    }
    for (int i = 0; i < OPTIM_ELEMS; i++) {
        if (!(fabs(memory.p[i] - p[i]) < 2e-6 * (1 + fabs(p[i]))))
            fail_msg("%s, %s, element %d: %.9g, expected %.9g", c->cls->name, kernels->isa, i, memory.p[i],
                     p[i]);
        /* Tight enough to see 1 - beta2 taken from a rounded beta2. */
        if (slots > 0) assert_true(fabs(memory.m[i] - m[i]) < 4e-6 * (1 + fabs(m[i])));
        if (slots > 1) assert_true(fabs(memory.v[i] - v[i]) < 4e-6 * fabs(v[i]));
    }
}

static void test_torch_formulas(void **state)
{
    (void)state;
    const struct dpn_kernels *tables[NN_MAX_TABLES];
    size_t n = nn_tables(tables, NN_MAX_TABLES);
    for (size_t k = 0; k < n; k++)
        for (size_t i = 0; i < OPTIM_CASES; i++) optim_check(&optim_cases[i], tables[k]);
}

static void test_slices_give_the_same_bits(void **state)
{
    (void)state;
    static struct optim_memory whole, cut;
    const size_t slices[] = {1, 16, 48, 112, 1000};
    const struct dpn_kernels *tables[NN_MAX_TABLES];
    size_t n = nn_tables(tables, NN_MAX_TABLES);
    for (size_t k = 0; k < n; k++)
        for (size_t i = 0; i < OPTIM_CASES; i++)
            for (size_t s = 0; s < sizeof slices / sizeof slices[0]; s++) {
                optim_start(&whole);
                optim_start(&cut);
                for (uint64_t t = 1; t <= 3; t++) {
                    optim_gradient(&whole, t);
                    optim_gradient(&cut, t);
                    optim_update(&optim_cases[i], tables[k], t, &whole, OPTIM_ELEMS);
                    optim_update(&optim_cases[i], tables[k], t, &cut, slices[s]);
                }
                assert_memory_equal(&whole, &cut, sizeof whole);
            }
}

/* A gradient of 1 and rate 0.1: velocities 1, 1.9, 2.71, 3.439. Losing it after step 2 moves 0.58. */
static void test_momentum_by_hand(void **state)
{
    (void)state;
    const struct dpn_optimizer_settings settings = {.lr = 0.1, .momentum = 0.9};
    _Alignas(64) float p[16] = {0}, g[16], m[16];
    float *slots[1] = {m};
    for (int i = 0; i < 16; i++) {
        g[i] = 1.0f;
        m[i] = NAN; /* the first step must not read it */
    }
    for (uint64_t t = 1; t <= 4; t++)
        dpn_optimizer_sgd.update(&settings, &dpn_kernels_ref, 0.1, t, 16, p, g, slots);
    for (int i = 0; i < 16; i++) assert_true(fabs(p[i] + 0.9049) < 1e-6);
}

/* Adam's first step has the size of the rate, whatever the gradient's. */
static void test_adam_by_hand(void **state)
{
    (void)state;
    const struct dpn_optimizer_settings settings = {.lr = 0.01, .beta1 = 0.9, .beta2 = 0.999, .eps = 0};
    _Alignas(64) float p[16] = {0}, g[16] = {1e-3f, -1e3f, 0.0f, 5.0f}, m[16] = {0}, v[16] = {0};
    float *slots[2] = {m, v};
    dpn_optimizer_adam.update(&settings, &dpn_kernels_ref, 0.01, 1, 16, p, g, slots);
    assert_true(fabs(p[0] + 0.01) < 1e-7 && fabs(p[1] - 0.01) < 1e-7 && fabs(p[3] + 0.01) < 1e-7);
    for (int i = 4; i < 16; i++) assert_true(p[i] == 0.0f && m[i] == 0.0f && v[i] == 0.0f);
    assert_true(p[2] == 0.0f);
}

static void test_slots(void **state)
{
    (void)state;
    struct dpn_optimizer_settings settings = {.lr = 0.1, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
    assert_int_equal(dpn_optimizer_sgd.n_slots(&settings), 0);
    settings.momentum = 0.9;
    assert_int_equal(dpn_optimizer_sgd.n_slots(&settings), 1);
    assert_string_equal(dpn_optimizer_sgd.slots[0], "momentum_buffer");
    assert_null(dpn_optimizer_sgd.slots[1]);
    assert_int_equal(dpn_optimizer_adam.n_slots(&settings), 2);
    assert_string_equal(dpn_optimizer_adamw.slots[0], "exp_avg");
    assert_string_equal(dpn_optimizer_adamw.slots[1], "exp_avg_sq");
    assert_null(dpn_optimizer_adamw.slots[2]);
}

static void test_find(void **state)
{
    (void)state;
    const struct dpn_optimizer_class *cls = NULL;
    assert_int_equal(dpn_optimizer_find("adamw", &cls), DPN_OK);
    assert_ptr_equal(cls, &dpn_optimizer_adamw);
    assert_int_equal(dpn_optimizer_find("adma", &cls), DPN_ERR_USAGE);
    assert_non_null(strstr(dpn_error_text(), "--optimizer"));
    assert_non_null(strstr(dpn_error_text(), "'adma'"));
    assert_non_null(strstr(dpn_error_text(), "sgd, adam, adamw"));
    assert_non_null(strstr(dpn_error_text(), "did you mean 'adam'"));
    assert_int_equal(dpn_optimizer_find("", &cls), DPN_ERR_USAGE);
}

static void optim_refused(const struct dpn_optimizer_class *cls, struct dpn_optimizer_settings settings,
                          const char *option)
{
    assert_int_equal(cls->check(&settings), DPN_ERR_USAGE);
    assert_non_null(strstr(dpn_error_text(), option));
}

static void test_settings_that_make_no_sense(void **state)
{
    (void)state;
    for (size_t i = 0; i < OPTIM_CASES; i++)
        assert_int_equal(optim_cases[i].cls->check(&optim_cases[i].settings), DPN_OK);
    struct dpn_optimizer_settings settings = {.lr = 0.1, .momentum = 0.9, .beta1 = 0.9, .beta2 = 0.999};
    settings.nesterov = 1;
    assert_int_equal(dpn_optimizer_sgd.check(&settings), DPN_OK);
    optim_refused(&dpn_optimizer_adam, settings, "--nesterov");
    settings.momentum = 0;
    optim_refused(&dpn_optimizer_sgd, settings, "--nesterov");
    settings.nesterov = 0;
    settings.beta1 = 1;
    optim_refused(&dpn_optimizer_adamw, settings, "--beta1");
    settings.beta1 = 0;
    settings.beta2 = 1.5;
    optim_refused(&dpn_optimizer_adam, settings, "--beta2");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_torch_formulas),
        cmocka_unit_test(test_slices_give_the_same_bits),
        cmocka_unit_test(test_momentum_by_hand),
        cmocka_unit_test(test_adam_by_hand),
        cmocka_unit_test(test_slots),
        cmocka_unit_test(test_find),
        cmocka_unit_test(test_settings_that_make_no_sense),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
