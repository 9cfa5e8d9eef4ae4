/* Softmax cross-entropy of every instruction set against long double. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/kernels.h"
#include "tests/kernels/tables.h"

enum { N_TABLES = 4, MAX_N = 16 * 1024 };

static const char *const isa_names[N_TABLES] = {"ref", "baseline", "avx2", "avx512"};
static const struct dpn_kernels *tables[N_TABLES]; /* NULL: this CPU cannot */
static float logits[MAX_N], gradient[MAX_N], other[MAX_N];
static int32_t labels[256];
static uint32_t random_state = 3;

#define EACH_TABLE(t)                  \
    for (int t = 0; t < N_TABLES; t++) \
        if (tables[t] != NULL)

static uint32_t random_bits(void)
{
    random_state = random_state * 1664525u + 1013904223u;
    return random_state >> 8;
}

/* Random rows of logits in +-SPREAD, and labels. Padding is not a number: it must not be read as a class. */
static void fill(size_t rows, size_t classes, size_t stride, float spread)
{
    assert_true(rows * stride <= MAX_N);
    for (size_t r = 0; r < rows; r++) {
        for (size_t c = 0; c < stride; c++)
            logits[r * stride + c] = c < classes ? spread * ((float)random_bits() / 8388608.0f - 1.0f) : NAN;
        labels[r] = (int32_t)(random_bits() % classes);
    }
}

/* Loss of a row; softmax of each class in P. */
static long double true_row(const float *x, size_t classes, size_t label, long double *p)
{
    long double largest = -INFINITY, rest = 0;
    size_t top = 0;
    for (size_t c = 0; c < classes; c++)
        if (x[c] > largest) largest = x[c], top = c;
    for (size_t c = 0; c < classes; c++) {
        p[c] = expl(x[c] - largest);
        if (c != top) rest += p[c];
    }
    for (size_t c = 0; c < classes; c++) p[c] /= 1 + rest;
    return log1pl(rest) + (largest - x[label]);
}

static void check_rows(const struct dpn_kernels *kernels, size_t rows, size_t classes, size_t stride,
                       float scale)
{
    static long double p[1024];
    double loss = -1;
    uint64_t correct = 99, hits = 0;
    long double want = 0;
    memset(gradient, 0x7f, sizeof gradient);
    kernels->softmax_xent(rows, classes, stride, logits, labels, scale, gradient, &loss, &correct);
    for (size_t r = 0; r < rows; r++) {
        const size_t label = (size_t)labels[r];
        size_t top = 0;
        want += true_row(logits + r * stride, classes, label, p);
        for (size_t c = 0; c < classes; c++) {
            if (logits[r * stride + c] > logits[r * stride + top]) top = c;
            long double exact = (p[c] - (c == label)) * scale;
            /* of a label that is nearly certain, p - 1 has fewer digits here than there */
            long double error = fabsl(gradient[r * stride + c] - exact);
            if (error > 3e-7L * fabsl(exact) + 1e-18L * scale)
                fail_msg("%s: gradient %g, not %Lg", kernels->isa, (double)gradient[r * stride + c], exact);
        }
        for (size_t c = classes; c < stride; c++) assert_true(gradient[r * stride + c] == 0.0f);
        hits += top == label;
    }
    if (!(fabsl(loss - want) <= 1e-10L * want))
        fail_msg("%s: loss %.17g, not %.17Lg", kernels->isa, loss, want);
    assert_int_equal(correct, hits);
}

static void test_against_long_double(void **state)
{
    (void)state;
    static const size_t classes[] = {1, 2, 3, 10, 16, 17, 100, 1000};
    static const float spreads[] = {0.0f, 0.01f, 1.0f, 10.0f, 40.0f};
    EACH_TABLE(t)
    for (size_t c = 0; c < sizeof classes / sizeof *classes; c++) {
        const size_t stride = (classes[c] + 15) / 16 * 16;
        for (size_t s = 0; s < sizeof spreads / sizeof *spreads; s++) {
            for (size_t rows = 1; rows <= 16 && rows * stride <= MAX_N; rows += rows < 9 ? 1 : 7) {
                fill(rows, classes[c], stride, spreads[s]);
                check_rows(tables[t], rows, classes[c], stride, 1.0f / (float)rows);
            }
        }
    }
}

static void test_small_loss_keeps_its_digits(void **state)
{
    (void)state;
    EACH_TABLE(t)
    {
        for (float gap = 1; gap < 80; gap += 3.7f) {
            fill(1, 10, 16, 0);
            labels[0] = 4;
            logits[4] = gap;
            check_rows(tables[t], 1, 10, 16, 1.0f);
        }
    }
}

static void test_far_logits(void **state)
{
    (void)state;
    EACH_TABLE(t)
    {
        double loss;
        uint64_t correct;
        fill(2, 3, 16, 0);
        logits[0] = 3e38f, logits[1] = -3e38f, labels[0] = 1;
        logits[16] = 2000, labels[1] = 0;
        tables[t]->softmax_xent(2, 3, 16, logits, labels, 1.0f, gradient, &loss, &correct);
        assert_true(fabs(loss / ((double)3e38f * 2) - 1) < 1e-6);
        assert_int_equal(correct, 1);
        assert_true(gradient[0] == 1.0f && gradient[1] == -1.0f && gradient[2] == 0.0f);
        assert_true(fabsf(gradient[16]) < 1e-30f && gradient[17] < 1e-30f);
    }
}

static void test_first_of_equals_wins(void **state)
{
    (void)state;
    EACH_TABLE(t)
    {
        for (size_t label = 0; label < 20; label++) {
            double loss;
            uint64_t correct;
            fill(1, 20, 32, 0);
            labels[0] = (int32_t)label;
            tables[t]->softmax_xent(1, 20, 32, logits, labels, 1.0f, NULL, &loss, &correct);
            assert_int_equal(correct, label == 0);
            assert_true(fabs(loss - log(20)) < 1e-12);
            logits[3] = logits[7] = logits[19] = 1.0f;
            tables[t]->softmax_xent(1, 20, 32, logits, labels, 1.0f, NULL, &loss, &correct);
            assert_int_equal(correct, label == 3);
        }
    }
}

static void test_not_finite_shows(void **state)
{
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    EACH_TABLE(t)
    for (size_t b = 0; b < 3; b++) {
        for (size_t c = 0; c < 10; c++) {
            double loss;
            uint64_t correct;
            fill(5, 10, 16, 2.0f);
            logits[2 * 16 + c] = bad[b];
            labels[2] = (int32_t)c;
            tables[t]->softmax_xent(5, 10, 16, logits, labels, 1.0f, gradient, &loss, &correct);
            assert_false(isfinite(loss));
            assert_true(correct <= 4);
            for (size_t i = 0; i < 5 * 16; i++)
                assert_int_equal(!isfinite(gradient[i]), i / 16 == 2 && i % 16 < 10);
        }
    }
}

/* A row gets the same bits alone, among others, in place, and without a gradient. */
static void test_a_row_depends_on_itself(void **state)
{
    (void)state;
    enum { ROWS = 21, CLASSES = 37, STRIDE = 48 };
    EACH_TABLE(t)
    {
        double loss, sum = 0, one;
        uint64_t correct, hits = 0;
        fill(ROWS, CLASSES, STRIDE, 5.0f);
        tables[t]->softmax_xent(ROWS, CLASSES, STRIDE, logits, labels, 0.1f, gradient, &loss, &correct);
        for (size_t r = 0; r < ROWS; r++) {
            memset(other, 0, sizeof other);
            tables[t]->softmax_xent(1, CLASSES, STRIDE, logits + r * STRIDE, labels + r, 0.1f, other, &one,
                                    &hits);
            assert_memory_equal(other, gradient + r * STRIDE, STRIDE * sizeof(float));
            sum += one;
        }
        assert_true(sum == loss);
        tables[t]->softmax_xent(ROWS, CLASSES, STRIDE, logits, labels, 0.1f, NULL, &one, &hits);
        assert_true(one == loss);
        assert_int_equal(hits, correct);
        tables[t]->softmax_xent(ROWS, CLASSES, STRIDE, logits, labels, 0.1f, logits, &one, &hits);
        assert_true(one == loss);
        assert_int_equal(hits, correct);
        assert_memory_equal(logits, gradient, ROWS * STRIDE * sizeof(float));
    }
}

static void test_no_rows(void **state)
{
    (void)state;
    EACH_TABLE(t)
    {
        double loss = 7;
        uint64_t correct = 7;
        tables[t]->softmax_xent(0, 10, 16, logits, labels, 1.0f, gradient, &loss, &correct);
        assert_true(loss == 0.0);
        assert_int_equal(correct, 0);
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
        cmocka_unit_test(test_against_long_double),
        cmocka_unit_test(test_small_loss_keeps_its_digits),
        cmocka_unit_test(test_far_logits),
        cmocka_unit_test(test_first_of_equals_wins),
        cmocka_unit_test(test_not_finite_shows),
        cmocka_unit_test(test_a_row_depends_on_itself),
        cmocka_unit_test(test_no_rows),
    };
    return cmocka_run_group_tests(tests, open_tables, NULL);
}
