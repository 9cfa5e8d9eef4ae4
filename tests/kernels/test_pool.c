/* Pooling: the plain loops against windows written out in another way, every instruction set against the
 * plain loops, value by value. */
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

enum { N_TABLES = 3, SAMPLES = 3, GAP = 16, MAX_N = SAMPLES * (40 * 40 * 64 + GAP) };

static const char *const isa_names[N_TABLES] = {"baseline", "avx2", "avx512"};
static const struct dpn_kernels *tables[N_TABLES]; /* NULL: this CPU cannot */
static float x[MAX_N], y_want[MAX_N], y_got[MAX_N], dy[MAX_N], dx_want[MAX_N], dx_got[MAX_N];
static uint32_t random_state = 3;

#define EACH_TABLE(t)                  \
    for (int t = 0; t < N_TABLES; t++) \
        if (tables[t] != NULL)

static uint32_t random_word(void)
{
    random_state = random_state * 1664525u + 1013904223u;
    return random_state >> 8;
}

static const struct {
    size_t height, width, cstride, kernel, stride, pad;
} shapes[] = {
    {28, 28, 16, 2, 2, 0}, {10, 10, 16, 2, 2, 0}, {7, 9, 32, 2, 2, 0},  {2, 2, 64, 2, 2, 0},
    {3, 2, 48, 2, 2, 0},   {8, 8, 64, 3, 2, 1},   {7, 10, 16, 3, 1, 1}, {6, 5, 48, 3, 2, 0},
    {9, 9, 16, 2, 1, 1},   {5, 7, 16, 2, 3, 0},   {4, 4, 512, 4, 4, 0}, {7, 7, 64, 7, 1, 0},
    {8, 8, 16, 8, 8, 0},   {6, 6, 80, 5, 2, 2},   {1, 1, 16, 1, 1, 0},  {1, 1, 16, 3, 1, 1},
    {40, 33, 16, 3, 3, 1}, {5, 5, 208, 4, 3, 2},  {12, 4, 16, 2, 2, 1}, {4, 9, 32, 1, 2, 0},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static struct dpn_pool shape_of(size_t s, int average)
{
    struct dpn_pool pool = {.samples = SAMPLES, .cstride = shapes[s].cstride, .in_height = shapes[s].height};
    pool.in_width = shapes[s].width;
    pool.kernel = shapes[s].kernel, pool.stride = shapes[s].stride, pool.pad = shapes[s].pad;
    pool.average = average;
    pool.out_height = (pool.in_height + 2 * pool.pad - pool.kernel) / pool.stride + 1;
    pool.out_width = (pool.in_width + 2 * pool.pad - pool.kernel) / pool.stride + 1;
    pool.in_stride = pool.in_height * pool.in_width * pool.cstride + GAP;
    pool.out_stride = pool.out_height * pool.out_width * pool.cstride + GAP;
    assert_true(SAMPLES * pool.in_stride <= MAX_N && SAMPLES * pool.out_stride <= MAX_N);
    return pool;
}

/* TIES: few values, so that windows often have two that are largest. The last channel is padding. */
static void fill(size_t cstride, int ties)
{
    for (size_t i = 0; i < MAX_N; i++) {
        x[i] = ties ? (float)(random_word() % 3) - 1.0f : (float)random_word() / 8388608.0f - 1.0f;
        dy[i] = (float)random_word() / 8388608.0f - 1.0f;
        y_want[i] = y_got[i] = dx_want[i] = dx_got[i] = 12345.0f;
        if (i % cstride == cstride - 1) x[i] = dy[i] = 0;
    }
}

static void add_not_finite(void)
{
    for (size_t i = 0; i < MAX_N / 5; i++) {
        static const float bad[] = {NAN, INFINITY, -INFINITY, -0.0f};
        x[random_word() % MAX_N] = bad[i % 4];
    }
}

static void check_same(size_t n, const float *want, const float *got, const char *isa, size_t shape)
{
    for (size_t i = 0; i < n; i++)
        if (!(want[i] == got[i] || (isnan(want[i]) && isnan(got[i]))))
            fail_msg("%s, shape %zu: value %zu is %g, not %g", isa, shape, i, (double)got[i],
                     (double)want[i]);
}

/* Samples FIRST .. of all, forward and backward, and what lies before, between and behind stays. */
static void check_against_ref(const struct dpn_pool *pool, size_t shape, size_t first)
{
    dpn_kernels_ref.pool(pool, first, SAMPLES - first, x, y_want);
    dpn_kernels_ref.pool_grad(pool, first, SAMPLES - first, x, y_want, dy, dx_want);
    EACH_TABLE(t)
    {
        for (size_t i = 0; i < MAX_N; i++) y_got[i] = dx_got[i] = 12345.0f;
        tables[t]->pool(pool, first, SAMPLES - first, x, y_got);
        check_same(MAX_N, y_want, y_got, isa_names[t], shape);
        tables[t]->pool_grad(pool, first, SAMPLES - first, x, y_got, dy, dx_got);
        check_same(MAX_N, dx_want, dx_got, isa_names[t], shape);
    }
}

static void test_against_ref(void **state)
{
    (void)state;
    for (size_t s = 0; s < N_SHAPES; s++) {
        for (int form = 0; form < 8; form++) {
            const struct dpn_pool pool = shape_of(s, form & 1);
            fill(pool.cstride, form & 2);
            if (form & 4) add_not_finite();
            check_against_ref(&pool, s, s % 2);
        }
    }
}

/* A channel of sample N with PAD pixels of EDGE around, in PICTURE, rows of 64. */
static void padded(const struct dpn_pool *pool, size_t n, size_t c, float edge, float picture[64][64])
{
    for (size_t i = 0; i < 64; i++)
        for (size_t j = 0; j < 64; j++) picture[i][j] = edge;
    for (size_t i = 0; i < pool->in_height; i++)
        for (size_t j = 0; j < pool->in_width; j++)
            picture[i + pool->pad][j + pool->pad] =
                x[n * pool->in_stride + (i * pool->in_width + j) * pool->cstride + c];
}

/* Forward from a padded picture, and the gradient by asking of every pixel which windows chose it. */
static void check_channel(const struct dpn_pool *pool, size_t n, size_t c)
{
    float picture[64][64];
    double gradient[64][64] = {{0}};
    padded(pool, n, c, pool->average ? 0.0f : -INFINITY, picture);
    for (size_t o = 0; o < pool->out_height * pool->out_width; o++) {
        const size_t top = o / pool->out_width * pool->stride, left = o % pool->out_width * pool->stride;
        const size_t at = n * pool->out_stride + o * pool->cstride + c;
        double sum = 0;
        size_t best_row = top, best_col = left;
        for (size_t i = top; i < top + pool->kernel; i++) {
            for (size_t j = left; j < left + pool->kernel; j++) {
                sum += (double)picture[i][j];
                if (picture[i][j] > picture[best_row][best_col]) best_row = i, best_col = j;
                if (pool->average) gradient[i][j] += (double)dy[at] / (double)(pool->kernel * pool->kernel);
            }
        }
        if (pool->average) {
            const double mean = sum / (double)(pool->kernel * pool->kernel);
            assert_true(fabs((double)y_want[at] - mean) < 1e-6);
        } else {
            assert_true(y_want[at] == picture[best_row][best_col]);
            gradient[best_row][best_col] += (double)dy[at];
        }
    }
    for (size_t i = 0; i < pool->in_height; i++)
        for (size_t j = 0; j < pool->in_width; j++) {
            const size_t at = n * pool->in_stride + (i * pool->in_width + j) * pool->cstride + c;
            assert_true(fabs((double)dx_want[at] - gradient[i + pool->pad][j + pool->pad]) < 1e-6);
        }
}

static void test_ref_is_right(void **state)
{
    (void)state;
    for (size_t s = 0; s < N_SHAPES; s++) {
        for (int form = 0; form < 4; form++) {
            const struct dpn_pool pool = shape_of(s, form & 1);
            fill(pool.cstride, form & 2);
            dpn_kernels_ref.pool(&pool, 0, SAMPLES, x, y_want);
            dpn_kernels_ref.pool_grad(&pool, 0, SAMPLES, x, y_want, dy, dx_want);
            for (size_t n = 0; n < SAMPLES; n++)
                for (size_t c = 0; c < pool.cstride; c += c < 17 ? 1 : 13) check_channel(&pool, n, c);
        }
    }
}

static void check_pair(const struct dpn_kernels *kernels, const float values[4], float largest, size_t winner)
{
    const struct dpn_pool pool = {1, 16, 2, 2, 64, 1, 1, 16, 2, 2, 0, 0};
    for (size_t i = 0; i < 64; i++) x[i] = values[i / 16];
    for (size_t c = 0; c < 16; c++) dy[c] = 1.5f;
    kernels->pool(&pool, 0, 1, x, y_got);
    kernels->pool_grad(&pool, 0, 1, x, y_got, dy, dx_got);
    for (size_t c = 0; c < 16; c++) assert_true(isnan(largest) ? isnan(y_got[c]) : y_got[c] == largest);
    for (size_t i = 0; i < 64; i++)
        if (dx_got[i] != (i / 16 == winner ? 1.5f : 0.0f))
            fail_msg("%s: gradient of %zu", kernels->isa, i / 16);
}

static void test_who_wins(void **state)
{
    (void)state;
    static const struct {
        float values[4], largest;
        size_t winner;
    } cases[] = {
        {{1, 2, 3, 4}, 4, 3},
        {{4, 4, 4, 4}, 4, 0},
        {{-3, -2, -2, -5}, -2, 1},
        {{-INFINITY, -INFINITY, -INFINITY, -INFINITY}, -INFINITY, 0},
        {{INFINITY, NAN, 7, INFINITY}, NAN, 1},
        {{1, 2, NAN, NAN}, NAN, 2},
        {{NAN, 2, 3, 4}, NAN, 0},
        {{-0.0f, 0.0f, -1, -1}, 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        check_pair(&dpn_kernels_ref, cases[i].values, cases[i].largest, cases[i].winner);
        EACH_TABLE(t) check_pair(tables[t], cases[i].values, cases[i].largest, cases[i].winner);
    }
}

/* What an average's gradient does not need may be missing. */
static void test_average_reads_no_activations(void **state)
{
    (void)state;
    for (size_t s = 0; s < N_SHAPES; s++) {
        const struct dpn_pool pool = shape_of(s, 1);
        fill(pool.cstride, 0);
        dpn_kernels_ref.pool_grad(&pool, 0, SAMPLES, x, y_want, dy, dx_want);
        dpn_kernels_ref.pool_grad(&pool, 0, SAMPLES, NULL, NULL, dy, dx_got);
        check_same(MAX_N, dx_want, dx_got, "ref", s);
        EACH_TABLE(t)
        {
            tables[t]->pool_grad(&pool, 0, SAMPLES, NULL, NULL, dy, dx_got);
            check_same(MAX_N, dx_want, dx_got, isa_names[t], s);
        }
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
        cmocka_unit_test(test_ref_is_right),
        cmocka_unit_test(test_against_ref),
        cmocka_unit_test(test_who_wins),
        cmocka_unit_test(test_average_reads_no_activations),
    };
    return cmocka_run_group_tests(tests, open_tables, NULL);
}
