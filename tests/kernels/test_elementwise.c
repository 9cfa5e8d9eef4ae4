/* Everything but products and optimizers: every instruction set against the plain loops, most of it bit by
 * bit. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/tree.h"
#include "kernels/kernels.h"
#include "tests/kernels/tables.h"

enum { N_TABLES = 3, MAX_N = 5000, MAX_SOURCES = 130 };

static const char *const isa_names[N_TABLES] = {"baseline", "avx2", "avx512"};
static const struct dpn_kernels *tables[N_TABLES]; /* NULL: this CPU cannot */
static const size_t sizes[] = {0, 1, 2, 7, 15, 16, 17, 31, 64, 100, 1023, 1024, 1025, 4999};
static float buffer_x[MAX_N], buffer_y[MAX_N], buffer_want[MAX_N + 1], buffer_got[MAX_N + 1];
static uint32_t random_state = 7;

#define EACH_TABLE(t)                  \
    for (int t = 0; t < N_TABLES; t++) \
        if (tables[t] != NULL)
#define EACH_SIZE(n) \
    for (size_t i_##n = 0, n; i_##n < sizeof sizes / sizeof *sizes && (n = sizes[i_##n], 1); i_##n++)

static float random_float(void)
{
    random_state = random_state * 1664525u + 1013904223u;
    uint32_t bits = random_state >> 8;
    return ldexpf((float)bits / 8388608.0f - 1.0f, (int)(bits % 11) - 5);
}

static void fill(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) x[i] = random_float();
}

/* Both result buffers hold N results and one value after them that must not change. */
static void check_same(size_t n, const char *isa)
{
    if (memcmp(buffer_got, buffer_want, (n + 1) * sizeof(float)) != 0)
        fail_msg("%s differs at n = %zu", isa, n);
}

static void start_results(const float *from, size_t n)
{
    memcpy(buffer_got, from, n * sizeof(float));
    buffer_got[n] = 12345.0f;
    memcpy(buffer_want, buffer_got, (n + 1) * sizeof(float));
}

static void test_relu(void **state)
{
    (void)state;
    EACH_TABLE(t) EACH_SIZE(n)
    {
        fill(buffer_x, MAX_N);
        if (n > 3) buffer_x[n - 1] = -0.0f, buffer_x[n - 2] = INFINITY, buffer_x[n - 3] = -INFINITY;
        start_results(buffer_y, n);
        dpn_kernels_ref.relu(n, buffer_x, buffer_want);
        tables[t]->relu(n, buffer_x, buffer_got);
        check_same(n, isa_names[t]);
        start_results(buffer_x, n);
        dpn_kernels_ref.relu(n, buffer_want, buffer_want);
        tables[t]->relu(n, buffer_got, buffer_got);
        check_same(n, isa_names[t]);
        for (size_t i = 0; i < n; i++) assert_true(buffer_got[i] == (buffer_x[i] > 0 ? buffer_x[i] : 0));
    }
}

static void test_relu_keeps_nan(void **state)
{
    (void)state;
    EACH_TABLE(t)
    {
        fill(buffer_x, 40);
        buffer_x[3] = buffer_x[38] = NAN;
        tables[t]->relu(40, buffer_x, buffer_got);
        assert_true(isnan(buffer_got[3]) && isnan(buffer_got[38]));
        tables[t]->bias_relu(1, 40, 48, buffer_y, 1, buffer_x);
        assert_true(isnan(buffer_x[3]) && isnan(buffer_x[38]));
    }
}

static void test_relu_grad(void **state)
{
    (void)state;
    EACH_TABLE(t) EACH_SIZE(n)
    {
        fill(buffer_x, MAX_N);
        fill(buffer_y, MAX_N);
        for (size_t i = 0; i < n; i += 3) buffer_y[i] = 0.0f;
        start_results(buffer_x, n);
        dpn_kernels_ref.relu_grad(n, buffer_y, buffer_x, buffer_want);
        tables[t]->relu_grad(n, buffer_y, buffer_got, buffer_got); /* in place */
        check_same(n, isa_names[t]);
        for (size_t i = 0; i < n; i++) assert_true(buffer_got[i] == (buffer_y[i] > 0 ? buffer_x[i] : 0));
    }
}

static void test_bias_relu(void **state)
{
    (void)state;
    static const size_t widths[] = {1, 10, 15, 16, 17, 64, 100};
    EACH_TABLE(t)
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
        for (int form = 0; form < 4; form++) {
            const size_t cols = widths[w], stride = (cols + 15) / 16 * 16, rows = 7, n = rows * stride;
            const float *bias = form & 1 ? buffer_y : NULL;
            fill(buffer_x, n);
            fill(buffer_y, cols);
            start_results(buffer_x, n);
            dpn_kernels_ref.bias_relu(rows, cols, stride, bias, form & 2, buffer_want);
            tables[t]->bias_relu(rows, cols, stride, bias, form & 2, buffer_got);
            check_same(n, isa_names[t]);
            for (size_t i = 0; i < n; i++) {
                float want = buffer_x[i] + (bias != NULL ? buffer_y[i % stride % cols] : 0);
                if (i % stride >= cols) want = buffer_x[i];
                else if ((form & 2) && want < 0) want = 0;
                assert_true(buffer_got[i] == want);
            }
        }
}

static void test_col_sum(void **state)
{
    (void)state;
    static const size_t widths[] = {1, 10, 16, 63, 64, 65, 130, 192};
    EACH_TABLE(t)
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
        for (size_t rows = 0; rows < 20; rows++) {
            const size_t cols = widths[w], stride = (cols + 15) / 16 * 16;
            fill(buffer_x, rows * stride);
            start_results(buffer_y, cols);
            for (size_t c = 0; c < cols; c++) {
                float sum = 0;
                for (size_t r = 0; r < rows; r++) sum += buffer_x[r * stride + c];
                buffer_want[c] = sum;
            }
            tables[t]->col_sum(rows, cols, stride, buffer_x, buffer_got);
            check_same(cols, isa_names[t]);
            dpn_kernels_ref.col_sum(rows, cols, stride, buffer_x, buffer_got);
            check_same(cols, "ref");
        }
}

static void test_add_and_scale(void **state)
{
    (void)state;
    EACH_TABLE(t) EACH_SIZE(n)
    {
        fill(buffer_x, MAX_N);
        fill(buffer_y, MAX_N);
        start_results(buffer_x, n);
        for (size_t i = 0; i < n; i++) buffer_want[i] = (buffer_x[i] + buffer_y[i]) * 0.3f;
        tables[t]->add(n, buffer_got, buffer_y, buffer_got);
        tables[t]->scale(n, 0.3f, buffer_got);
        check_same(n, isa_names[t]);
        start_results(buffer_y, n);
        dpn_kernels_ref.add(n, buffer_x, buffer_want, buffer_want);
        dpn_kernels_ref.scale(n, 0.3f, buffer_want);
        tables[t]->add(n, buffer_x, buffer_got, buffer_got);
        tables[t]->scale(n, 0.3f, buffer_got);
        check_same(n, isa_names[t]);
    }
}

static void test_conversions(void **state)
{
    (void)state;
    static uint8_t bytes[MAX_N];
    for (size_t i = 0; i < MAX_N; i++) bytes[i] = (uint8_t)(i * 7);
    EACH_TABLE(t) EACH_SIZE(n)
    {
        start_results(buffer_y, n);
        for (size_t i = 0; i < n; i++) buffer_want[i] = (float)bytes[i] * 0.0123f + -0.4242f;
        tables[t]->u8_to_f32(n, bytes, 0.0123f, -0.4242f, buffer_got);
        check_same(n, isa_names[t]);
        dpn_kernels_ref.u8_to_f32(n, bytes, 0.0123f, -0.4242f, buffer_got);
        check_same(n, "ref");
        fill(buffer_x, MAX_N);
        start_results(buffer_x, n);
        dpn_kernels_ref.f32_affine(n, buffer_want, 1.7f, 0.3f, buffer_want);
        tables[t]->f32_affine(n, buffer_got, 1.7f, 0.3f, buffer_got);
        check_same(n, isa_names[t]);
        for (size_t i = 0; i < n; i++) assert_true(buffer_got[i] == buffer_x[i] * 1.7f + 0.3f);
    }
}

static void test_sum_squares(void **state)
{
    (void)state;
    EACH_TABLE(t) EACH_SIZE(n)
    {
        fill(buffer_x, MAX_N);
        double sum = 0, got = tables[t]->sum_squares(n, buffer_x),
               want = dpn_kernels_ref.sum_squares(n, buffer_x);
        for (size_t i = 0; i < n; i++) sum += (double)buffer_x[i] * (double)buffer_x[i];
        assert_true(got == want);
        assert_true(fabs(want - sum) <= 1e-13 * sum);
    }
}

/* Sum of leaves FIRST .. FIRST+WIDTH-1 below N by splitting at the power of two: the tree's definition. */
static float tree_of(const float *leaves, size_t n, size_t first, size_t width)
{
    if (width == 1) return leaves[first];
    if (first + width / 2 >= n) return tree_of(leaves, n, first, width / 2);
    return tree_of(leaves, n, first, width / 2) + tree_of(leaves, n, first + width / 2, width / 2);
}

static void check_tree_sum(const struct dpn_kernels *kernels, size_t n_sources, size_t n, size_t aliased)
{
    static float memory[MAX_SOURCES][1100];
    float leaves[MAX_SOURCES], dst[1100], *target = aliased < n_sources ? memory[aliased] : dst;
    const float *sources[MAX_SOURCES];
    struct dpn_tree_node nodes[MAX_SOURCES];
    uint8_t adds[MAX_SOURCES];
    float want[1100];
    size_t width = 1;
    while (width < n_sources) width *= 2;
    for (size_t s = 0; s < n_sources; s++) {
        fill(memory[s], n + 1);
        sources[s] = memory[s];
        nodes[s] = (struct dpn_tree_node){0, s};
    }
    dst[n] = 12345.0f;
    for (size_t i = 0; i < n; i++) {
        for (size_t s = 0; s < n_sources; s++) leaves[s] = memory[s][i];
        want[i] = tree_of(leaves, n_sources, 0, width);
    }
    want[n] = target[n];
    assert_int_equal(dpn_tree_program(nodes, n_sources, n_sources, adds), 1);
    kernels->tree_sum(n, n_sources, adds, sources, target);
    if (memcmp(target, want, (n + 1) * sizeof(float)) != 0)
        fail_msg("%s: %zu sources of %zu floats", kernels->isa, n_sources, n);
}

static void test_tree_sum(void **state)
{
    (void)state;
    static const size_t lengths[] = {0, 1, 17, 127, 128, 129, 1000};
    for (size_t n_sources = 1; n_sources <= MAX_SOURCES; n_sources += n_sources < 20 ? 1 : 37) {
        for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
            check_tree_sum(&dpn_kernels_ref, n_sources, lengths[l], n_sources - 1);
            EACH_TABLE(t)
            {
                check_tree_sum(tables[t], n_sources, lengths[l], n_sources);
                check_tree_sum(tables[t], n_sources, lengths[l], 0);
                check_tree_sum(tables[t], n_sources, lengths[l], n_sources - 1);
            }
        }
    }
}

/* Programmes that are not the ones of 3 and 4 single leaves. */
static void test_tree_sum_of_other_programmes(void **state)
{
    (void)state;
    static const uint8_t right3[] = {0, 0, 2}, left4[] = {0, 1, 1, 1}, left8[] = {0, 1, 1, 1, 1, 1, 1, 1};
    const float a = 1.0f, b = 1e8f, c = -1e8f, d = 0.5f;
    const float *sources[] = {&a, &b, &c, &d, &a, &a, &a, &a};
    EACH_TABLE(t)
    {
        float got;
        tables[t]->tree_sum(1, 3, right3, sources, &got);
        assert_true(got == 1.0f);
        tables[t]->tree_sum(1, 4, left4, sources, &got);
        assert_true(got == 0.5f);
        tables[t]->tree_sum(1, 8, left8, sources, &got);
        assert_true(got == 4.5f);
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
        cmocka_unit_test(test_relu),        cmocka_unit_test(test_relu_keeps_nan),
        cmocka_unit_test(test_relu_grad),   cmocka_unit_test(test_bias_relu),
        cmocka_unit_test(test_col_sum),     cmocka_unit_test(test_add_and_scale),
        cmocka_unit_test(test_conversions), cmocka_unit_test(test_sum_squares),
        cmocka_unit_test(test_tree_sum),    cmocka_unit_test(test_tree_sum_of_other_programmes),
    };
    return cmocka_run_group_tests(tests, open_tables, NULL);
}
