/* Optimizer steps: PyTorch's formulas, known values, and the same bits whatever the set and the slice. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/kernels.h"
#include "tests/kernels/tables.h"

enum { N_TABLES = 4, N = 1037, STEPS = 5 };

static const char *const isa_names[N_TABLES] = {"ref", "baseline", "avx2", "avx512"};
static const struct dpn_kernels *tables[N_TABLES]; /* NULL: this CPU cannot */
static uint32_t random_state = 11;

#define EACH_TABLE(t)                  \
    for (int t = 0; t < N_TABLES; t++) \
        if (tables[t] != NULL)

/* One replica: parameters, gradients and both slots. */
struct replica {
    float p[N], g[N], m[N], v[N];
};

static float random_float(void)
{
    random_state = random_state * 1664525u + 1013904223u;
    uint32_t bits = random_state >> 8;
    return ldexpf((float)bits / 8388608.0f - 1.0f, (int)(bits % 9) - 6);
}

static void start(struct replica *replica)
{
    memset(replica, 0, sizeof *replica);
    for (size_t i = 0; i < N; i++) replica->p[i] = random_float();
}

static void new_gradient(struct replica *replica)
{
    for (size_t i = 0; i < N; i++) replica->g[i] = i % 97 == 0 ? 0.0f : random_float();
}

static struct dpn_adam adam_args(double lr, double beta1, double beta2, float decay, int decoupled, int t)
{
    return (struct dpn_adam){
        .beta1 = beta1,
        .beta2 = beta2,
        .eps = 1e-8f,
        .weight_decay = decay,
        .decoupled = decoupled,
        .decay_factor = (float)(1 - lr * (double)decay),
        .step_size = (float)(lr / (1 - pow(beta1, t))),
        .inv_sqrt_bias2 = (float)(1 / sqrt(1 - pow(beta2, t))),
    };
}

/* One scalar weight under a constant gradient of 1; how far it has moved after STEPS_TAKEN. */
static double sgd_moved(const struct dpn_kernels *kernels, struct dpn_sgd args, int steps_taken)
{
    float p = 0, g = 1, m = 99; /* the first step must not read m */
    for (int t = 0; t < steps_taken; t++) {
        args.first = t == 0;
        kernels->sgd(1, &args, &p, &g, &m);
    }
    return -(double)p;
}

static void test_sgd_known_values(void **state)
{
    (void)state;
    EACH_TABLE(t)
    {
        const struct dpn_kernels *kernels = tables[t];
        const struct dpn_sgd plain = {.lr = 0.1f}, momentum = {.lr = 0.1f, .momentum = 0.9f};
        const struct dpn_sgd nesterov = {.lr = 0.1f, .momentum = 0.9f, .nesterov = 1};
        assert_true(fabs(sgd_moved(kernels, plain, 4) - 0.4) < 1e-6);
        assert_true(fabs(sgd_moved(kernels, momentum, 1) - 0.1) < 1e-7);
        assert_true(fabs(sgd_moved(kernels, momentum, 4) - 0.9049) < 1e-6);
        assert_true(fabs(sgd_moved(kernels, nesterov, 1) - 0.19) < 1e-7);
        assert_true(fabs(sgd_moved(kernels, nesterov, 2) - (0.19 + 0.271)) < 1e-6);
    }
}

static void test_sgd_decay_shrinks_by_factor(void **state)
{
    (void)state;
    EACH_TABLE(t)
    {
        const struct dpn_sgd args = {.lr = 0.1f, .weight_decay = 0.1f};
        float p = 1, g = 0;
        for (int step = 0; step < 5; step++) tables[t]->sgd(1, &args, &p, &g, NULL);
        assert_true(fabsf(p - 0.950990f) < 1e-6f);
    }
}

static void test_sgd_against_double(void **state)
{
    (void)state;
    static struct replica replica;
    static double p[N], m[N];
    EACH_TABLE(t)
    for (int form = 0; form < 4; form++) {
        struct dpn_sgd args = {.lr = 0.05f, .momentum = 0.9f};
        args.nesterov = form & 1;
        args.weight_decay = form & 2 ? 0.01f : 0.0f;
        start(&replica);
        for (size_t i = 0; i < N; i++) p[i] = (double)replica.p[i];
        for (int step = 0; step < STEPS; step++) {
            new_gradient(&replica);
            args.first = step == 0;
            tables[t]->sgd(N, &args, replica.p, replica.g, replica.m);
            for (size_t i = 0; i < N; i++) {
                double g = (double)replica.g[i] + (double)args.weight_decay * p[i];
                m[i] = args.first ? g : (double)args.momentum * m[i] + g;
                p[i] -= (double)args.lr * (args.nesterov ? g + (double)args.momentum * m[i] : m[i]);
            }
        }
        for (size_t i = 0; i < N; i++) assert_true(fabs((double)replica.p[i] - p[i]) < 1e-6);
    }
}

static void test_adam_against_double(void **state)
{
    (void)state;
    static struct replica replica;
    static double p[N], m[N], v[N];
    static const double beta1s[] = {0.9, 0.3}; /* torch.lerp has two forms */
    EACH_TABLE(t)
    for (int form = 0; form < 6; form++) {
        const double lr = 0.01, beta1 = beta1s[form & 1], beta2 = 0.999;
        const double decay = form > 1 ? (double)0.1f : 0.0;
        const int decoupled = form > 3;
        start(&replica);
        memset(m, 0, sizeof m);
        memset(v, 0, sizeof v);
        for (size_t i = 0; i < N; i++) p[i] = (double)replica.p[i];
        for (int step = 1; step <= STEPS; step++) {
            const struct dpn_adam args = adam_args(lr, beta1, beta2, (float)decay, decoupled, step);
            new_gradient(&replica);
            tables[t]->adam(N, &args, replica.p, replica.g, replica.m, replica.v);
            for (size_t i = 0; i < N; i++) {
                double g = (double)replica.g[i] + (decoupled ? 0 : decay * p[i]);
                if (decoupled) p[i] *= 1 - lr * decay;
                m[i] = beta1 * m[i] + (1 - beta1) * g;
                v[i] = beta2 * v[i] + (1 - beta2) * g * g;
                double denominator = sqrt(v[i] / (1 - pow(beta2, step))) + 1e-8;
                p[i] -= lr / (1 - pow(beta1, step)) * m[i] / denominator;
            }
        }
        for (size_t i = 0; i < N; i++) {
            assert_true(fabs((double)replica.p[i] - p[i]) < 3e-6);
            assert_true(fabs((double)replica.m[i] - m[i]) < 1e-6);
            assert_true(fabs((double)replica.v[i] - v[i]) <= 1e-6 * v[i]);
        }
    }
}

static void test_adam_first_step_is_lr(void **state)
{
    (void)state;
    EACH_TABLE(t)
    {
        const struct dpn_adam args = adam_args(0.001, 0.9, 0.999, 0, 0, 1);
        float p = 1, g = -2.5f, m = 0, v = 0;
        tables[t]->adam(1, &args, &p, &g, &m, &v);
        assert_true(fabsf(p - 1.001f) < 2e-7f);
        assert_true(fabsf(v - 0.00625f) < 1e-9f); /* 1 - 0.999f in float would be 1e-5 off */
    }
}

/* Runs STEPS of optimizer FORM (0..3 sgd, 4..7 adam) over slices of STEP floats. */
static void run_steps(const struct dpn_kernels *kernels, int form, size_t step, struct replica *replica)
{
    for (int t = 1; t <= STEPS; t++) {
        const struct dpn_sgd sgd = {.lr = 0.05f,
                                    .momentum = form ? 0.9f : 0.0f,
                                    .nesterov = form == 2,
                                    .weight_decay = form == 3 ? 0.01f : 0.0f,
                                    .first = t == 1};
        const struct dpn_adam adam = adam_args(0.01, form == 5 ? 0.4 : 0.9, 0.99, form > 5 ? 0.1f : 0,
                                               form == 7, t);
        new_gradient(replica);
        for (size_t i = 0; i < N; i += step) {
            const size_t n = N - i < step ? N - i : step;
            if (form < 4) kernels->sgd(n, &sgd, replica->p + i, replica->g + i, replica->m + i);
            else kernels->adam(n, &adam, replica->p + i, replica->g + i, replica->m + i, replica->v + i);
        }
    }
}

static void test_any_slice_and_set_same_bits(void **state)
{
    (void)state;
    static struct replica want, got;
    static const size_t slices[] = {N, 1, 3, 16, 17, 100};
    for (int form = 0; form < 8; form++) {
        random_state = 5;
        start(&want);
        run_steps(&dpn_kernels_ref, form, N, &want);
        EACH_TABLE(t)
        for (size_t s = 0; s < sizeof slices / sizeof *slices; s++) {
            random_state = 5;
            start(&got);
            run_steps(tables[t], form, slices[s], &got);
            if (memcmp(&got, &want, sizeof got) != 0)
                fail_msg("%s: optimizer form %d in slices of %zu", isa_names[t], form, slices[s]);
        }
    }
}

static void test_padding_stays_zero(void **state)
{
    (void)state;
    EACH_TABLE(t)
    for (int form = 0; form < 8; form++) {
        struct replica replica;
        memset(&replica, 0, sizeof replica);
        for (int step = 1; step < 3; step++) {
            const struct dpn_sgd sgd = {.lr = 0.1f,
                                        .momentum = 0.9f,
                                        .weight_decay = 0.1f,
                                        .nesterov = form & 1};
            const struct dpn_adam adam = adam_args(0.01, 0.9, 0.99, 0.1f, form & 1, step);
            if (form & 2) tables[t]->sgd(N, &sgd, replica.p, replica.g, replica.m);
            else tables[t]->adam(N, &adam, replica.p, replica.g, replica.m, replica.v);
        }
        for (size_t i = 0; i < N; i++) assert_true(replica.p[i] == 0.0f && replica.m[i] == 0.0f);
    }
}

static int open_tables(void **state)
{
    (void)state;
    select_tables(isa_names, N_TABLES, tables);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sgd_known_values),      cmocka_unit_test(test_sgd_decay_shrinks_by_factor),
        cmocka_unit_test(test_sgd_against_double),    cmocka_unit_test(test_adam_against_double),
        cmocka_unit_test(test_adam_first_step_is_lr), cmocka_unit_test(test_any_slice_and_set_same_bits),
        cmocka_unit_test(test_padding_stays_zero),
    };
    return cmocka_run_group_tests(tests, open_tables, NULL);
}
