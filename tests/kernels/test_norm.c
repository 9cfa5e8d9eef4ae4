/* Batch norm's kernels: what is element by element and what is in double bit by bit against the plain loops,
 * sums in float32 within what their terms allow, and the same bits from every instruction set. */
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

enum { N_TABLES = 3, MAX_CSTRIDE = 512, MAX_PIXELS = 1100, MAX_N = MAX_CSTRIDE * MAX_PIXELS };

static const char *const isa_names[N_TABLES] = {"baseline", "avx2", "avx512"};
static const struct dpn_kernels *tables[N_TABLES]; /* NULL: this CPU cannot */
static const size_t cstrides[] = {16, 32, 48, 64, 80, 208, 512};
static const size_t pixel_counts[] = {0, 1, 2, 3, 16, 17, 129, 170, 513, 1025};
static float *x, *d, *y, *want, *got; /* MAX_N floats each, 64-byte aligned */
static float scale[MAX_CSTRIDE], shift[MAX_CSTRIDE], mean[MAX_CSTRIDE], scale2[MAX_CSTRIDE],
    shift2[MAX_CSTRIDE];
static float block_got[2 * MAX_CSTRIDE + 17], block_first[2 * MAX_CSTRIDE + 17];
static uint32_t random_state = 11;

#define EACH_TABLE(t)                  \
    for (int t = 0; t < N_TABLES; t++) \
        if (tables[t] != NULL)
#define EACH_SHAPE(pixels, cstride)                                    \
    for (size_t i_ = 0; i_ < sizeof cstrides / sizeof *cstrides; i_++) \
        for (size_t j_ = 0, cstride = cstrides[i_], pixels;            \
             j_ < sizeof pixel_counts / sizeof *pixel_counts && (pixels = pixel_counts[j_], 1); j_++)

static float uniform(void)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (float)(random_state >> 8) / 8388608.0f - 1.0f;
}

/* Channels of quite different size. */
static void fill(float *values, size_t pixels, size_t cstride)
{
    for (size_t i = 0; i < pixels * cstride; i++)
        values[i] = ldexpf(uniform(), (int)(i % cstride % 7) * 3 - 9);
}

static void fill_channels(void)
{
    for (size_t c = 0; c < MAX_CSTRIDE; c++) {
        scale[c] = uniform(), shift[c] = uniform() * 0.3f, mean[c] = uniform() * 0.1f;
        scale2[c] = uniform(), shift2[c] = uniform() * 0.3f;
    }
}

/* Equal values, or both NaN. */
static void check_same(size_t n, const float *wanted, const float *gotten, const char *isa)
{
    for (size_t i = 0; i < n; i++)
        if (!(wanted[i] == gotten[i] || (isnan(wanted[i]) && isnan(gotten[i]))))
            fail_msg("%s: value %zu is %g, not %g", isa, i, (double)gotten[i], (double)wanted[i]);
}

/* BLOCK_GOT: the same bits from every table, and nothing behind the block touched. */
static void check_block(size_t cstride, int first, const char *isa)
{
    const size_t n = dpn_block_floats(cstride);
    assert_true(block_got[n] == 12345.0f);
    if (first) memcpy(block_first, block_got, n * sizeof(float));
    if (memcmp(block_first, block_got, n * sizeof(float)) != 0) fail_msg("%s has bits of its own", isa);
}

static int first_table(void)
{
    for (int t = 0; t < N_TABLES; t++)
        if (tables[t] != NULL) return t;
    return -1;
}

/* Mean and squared deviations of channel C in long double. */
static void exact_moments(size_t pixels, size_t cstride, size_t c, long double *middle, long double *squares)
{
    long double sum = 0;
    for (size_t p = 0; p < pixels; p++) sum += (long double)x[p * cstride + c];
    *middle = pixels > 0 ? sum / pixels : 0;
    *squares = 0;
    for (size_t p = 0; p < pixels; p++) {
        const long double deviation = (long double)x[p * cstride + c] - *middle;
        *squares += deviation * deviation;
    }
}

static void check_moments(const struct dpn_kernels *kernels, size_t pixels, size_t cstride, double tolerance)
{
    const size_t n = dpn_block_floats(cstride);
    for (size_t i = 0; i <= n; i++) block_got[i] = 12345.0f;
    kernels->moments(pixels, cstride, x, block_got);
    assert_true(block_got[2 * cstride] == (float)pixels);
    for (size_t c = 0; c < cstride; c++) {
        long double middle, squares;
        exact_moments(pixels, cstride, c, &middle, &squares);
        const long double deviation = pixels > 0 ? sqrtl(squares / pixels) : 0;
        if (!(fabsl(block_got[c] - middle) <= tolerance * deviation + 1e-7L * fabsl(middle)))
            fail_msg("%s: mean %.9g, not %.12Lg", kernels->isa, (double)block_got[c], middle);
        if (!(fabsl(block_got[cstride + c] - squares) <= tolerance * squares))
            fail_msg("%s: squares %.9g, not %.12Lg (%zu pixels)", kernels->isa,
                     (double)block_got[cstride + c], squares, pixels);
    }
}

static void test_moments(void **state)
{
    (void)state;
    EACH_SHAPE(pixels, cstride)
    {
        fill(x, pixels, cstride);
        for (size_t p = 0; p < pixels; p++) x[p * cstride + cstride - 1] = 0; /* padding */
        check_moments(&dpn_kernels_ref, pixels, cstride, 1e-6);
        EACH_TABLE(t)
        {
            check_moments(tables[t], pixels, cstride, 2e-6);
            assert_true(block_got[cstride - 1] == 0.0f && block_got[2 * cstride - 1] == 0.0f);
            check_block(cstride, t == first_table(), isa_names[t]);
        }
    }
}

/* Nothing may cancel, wherever the mean is, and a first pixel far away spoils nothing. */
static void test_moments_do_not_cancel(void **state)
{
    (void)state;
    static const float means[] = {1000.0f, -30000.0f, 1.0f, 0.0f};
    for (size_t m = 0; m < sizeof means / sizeof *means; m++) {
        for (int outlier = 0; outlier < 2; outlier++) {
            const size_t cstride = 16, pixels = 30000;
            for (size_t i = 0; i < pixels * cstride; i++)
                x[i] = means[m] + (uniform() + uniform() + uniform());
            for (size_t c = 0; outlier && c < cstride; c++) x[c] = -1e3f * (float)c;
            EACH_TABLE(t) check_moments(tables[t], pixels, cstride, 5e-5);
        }
    }
    for (size_t i = 0; i < 1000 * 16; i++) x[i] = 777.7f; /* a constant has no deviation */
    EACH_TABLE(t)
    {
        check_moments(tables[t], 1000, 16, 0);
        assert_true(block_got[16] == 0.0f);
    }
}

static void test_moments_show_what_is_not_finite(void **state)
{
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (size_t b = 0; b < 3; b++) {
        for (size_t place = 0; place < 600; place += 299) {
            fill(x, 600, 16);
            x[place * 16 + 5] = bad[b];
            EACH_TABLE(t)
            {
                tables[t]->moments(600, 16, x, block_got);
                for (size_t c = 0; c < 16; c++) {
                    assert_int_equal(!isfinite(block_got[c]), c == 5);
                    assert_int_equal(!isfinite(block_got[16 + c]), c == 5);
                }
            }
        }
    }
}

/* Blocks of 1, 2, 3, ... pixels, and empty ones with rubbish in them. */
static void test_moments_combine(void **state)
{
    (void)state;
    enum { BLOCKS = 30 };
    static float blocks[BLOCKS * (2 * MAX_CSTRIDE + 16)];
    static double combined[1 + 2 * MAX_CSTRIDE], combined_ref[1 + 2 * MAX_CSTRIDE];
    for (size_t i = 0; i < sizeof cstrides / sizeof *cstrides; i++) {
        const size_t cstride = cstrides[i], n = dpn_block_floats(cstride);
        size_t pixels = 0;
        fill(x, MAX_PIXELS, cstride);
        for (size_t b = 0; b < BLOCKS; b++) {
            const size_t count = b % 5 == 0 ? 0 : b;
            dpn_kernels_ref.moments(count, cstride, x + pixels * cstride, blocks + b * n);
            if (count == 0) memset(blocks + b * n, 0xff, 2 * cstride * sizeof(float));
            pixels += count;
        }
        dpn_kernels_ref.moments_combine(BLOCKS, cstride, blocks, combined_ref);
        assert_true(combined_ref[0] == (double)pixels);
        for (size_t c = 0; c < cstride; c++) {
            long double middle, squares;
            exact_moments(pixels, cstride, c, &middle, &squares);
            assert_true(fabsl(combined_ref[1 + c] - middle) <= 1e-6L * sqrtl(squares / pixels));
            assert_true(fabsl(combined_ref[1 + cstride + c] - squares) <= 1e-6L * squares);
        }
        EACH_TABLE(t)
        {
            for (size_t k = 0; k < 1 + 2 * cstride; k++) combined[k] = -1;
            tables[t]->moments_combine(BLOCKS, cstride, blocks, combined);
            assert_memory_equal(combined, combined_ref, (1 + 2 * cstride) * sizeof(double));
            tables[t]->moments_combine(1, cstride, blocks, combined); /* an empty one alone */
            for (size_t k = 0; k < 1 + 2 * cstride; k++) assert_true(combined[k] == 0.0);
        }
    }
}

static void test_sums_combine(void **state)
{
    (void)state;
    enum { BLOCKS = 9 };
    static float blocks[BLOCKS * (2 * MAX_CSTRIDE + 16)];
    static double combined[1 + 2 * MAX_CSTRIDE], combined_ref[1 + 2 * MAX_CSTRIDE];
    for (size_t i = 0; i < sizeof cstrides / sizeof *cstrides; i++) {
        const size_t cstride = cstrides[i], n = dpn_block_floats(cstride);
        fill(blocks, BLOCKS, n);
        for (size_t b = 0; b < BLOCKS; b++) blocks[b * n + 2 * cstride] = (float)(b + 1);
        dpn_kernels_ref.sums_combine(BLOCKS, cstride, blocks, combined_ref);
        assert_true(combined_ref[0] == 45.0);
        for (size_t k = 0; k < 2 * cstride; k++) {
            double sum = 0;
            for (size_t b = 0; b < BLOCKS; b++) sum += (double)blocks[b * n + k];
            assert_true(combined_ref[1 + k] == sum);
        }
        EACH_TABLE(t)
        {
            tables[t]->sums_combine(BLOCKS, cstride, blocks, combined);
            assert_memory_equal(combined, combined_ref, (1 + 2 * cstride) * sizeof(double));
        }
    }
}

/* FORM: bits 0, 1 the residual (none, plain, scaled, scaled then ReLU), bit 2 ReLU; PLACE: y is got, z or the
 * residual. D holds the residual. */
static void check_apply(const struct dpn_kernels *kernels, size_t pixels, size_t cstride, int form, int place)
{
    const size_t n = pixels * cstride;
    const int kind = form & 3;
    struct dpn_bn_apply args = {.pixels = pixels, .cstride = cstride, .z = x, .scale = scale, .shift = shift};
    args.relu = form & 4;
    if (kind > 0) args.residual.x = d;
    if (kind > 1) args.residual.scale = scale2, args.residual.shift = shift2;
    args.residual.relu = kind == 3;
    if (kind == 0 && place == 2) return;
    args.y = want;
    dpn_kernels_ref.bn_apply(&args);
    args.y = got;
    if (place == 1) memcpy(got, x, n * sizeof(float)), args.z = got;
    if (place == 2) memcpy(got, d, n * sizeof(float)), args.residual.x = got;
    got[n] = 12345.0f;
    kernels->bn_apply(&args);
    check_same(n, want, got, kernels->isa);
    assert_true(got[n] == 12345.0f);
    for (size_t i = 0; i < n; i += 37) {
        float value = x[i] * scale[i % cstride] + shift[i % cstride], rest = kind > 0 ? d[i] : 0;
        if (kind > 1) rest = rest * scale2[i % cstride] + shift2[i % cstride];
        if (kind == 3 && rest < 0) rest = 0;
        value += rest;
        if (args.relu && value < 0) value = 0;
        assert_true(want[i] == value || (isnan(want[i]) && isnan(value)));
    }
}

static void test_bn_apply(void **state)
{
    (void)state;
    EACH_SHAPE(pixels, cstride)
    {
        fill(x, pixels, cstride);
        fill(d, pixels, cstride);
        if (pixels > 2) {
            x[3] = NAN, x[5] = INFINITY, x[6] = -INFINITY;
            d[7] = NAN, d[cstride] = INFINITY, d[cstride + 1] = -INFINITY;
        }
        EACH_TABLE(t)
        for (int form = 0; form < 8; form++)
            for (int place = 0; place < 3; place++) check_apply(tables[t], pixels, cstride, form, place);
    }
}

/* Large enough to be written around the caches, at aligned and other addresses. */
static void test_bn_apply_and_grad_of_large_tensors(void **state)
{
    (void)state;
    const size_t cstride = 48, many = (5 << 20) / sizeof(float) / cstride, room = (many * cstride + 80) * 4;
    float *const kept[] = {x, d, want, got};
    x = aligned_alloc(64, room), d = aligned_alloc(64, room);
    want = aligned_alloc(64, room), got = aligned_alloc(64, room);
    assert_true(x != NULL && d != NULL && want != NULL && got != NULL);
    fill(x, many, cstride);
    fill(d, many, cstride);
    EACH_TABLE(t)
    for (int form = 0; form < 8; form++) {
        check_apply(tables[t], many, cstride, form, 0);
        got += 3;
        check_apply(tables[t], many, cstride, form, 0);
        got -= 3;
    }
    const struct dpn_gradient dy = {.g = d, .z = x, .g_scale = scale, .z_scale = scale2, .shift = shift};
    dpn_kernels_ref.bn_grad(many, cstride, &dy, want);
    EACH_TABLE(t)
    for (size_t off = 0; off < 4; off += 3) {
        tables[t]->bn_grad(many, cstride, &dy, got + off);
        check_same(many * cstride, want, got + off, isa_names[t]);
    }
    free(x), free(d), free(want), free(got);
    x = kept[0], d = kept[1], want = kept[2], got = kept[3];
}

static void test_bn_grad(void **state)
{
    (void)state;
    EACH_SHAPE(pixels, cstride)
    {
        const size_t n = pixels * cstride;
        struct dpn_gradient dy = {.g = d, .z = x, .g_scale = scale, .z_scale = scale2, .shift = shift};
        fill(x, pixels, cstride);
        fill(d, pixels, cstride);
        if (pixels > 2) d[1] = NAN, x[4] = INFINITY;
        dpn_kernels_ref.bn_grad(pixels, cstride, &dy, want);
        for (size_t i = 0; i < n; i++) {
            const size_t c = i % cstride;
            const float value = d[i] * scale[c] + x[i] * scale2[c] + shift[c];
            assert_true(want[i] == value || (isnan(value) && isnan(want[i])));
        }
        EACH_TABLE(t)
        {
            got[n] = 12345.0f;
            dy.g = d;
            tables[t]->bn_grad(pixels, cstride, &dy, got);
            check_same(n, want, got, isa_names[t]);
            memcpy(got, d, n * sizeof(float));
            dy.g = got;
            tables[t]->bn_grad(pixels, cstride, &dy, got);
            check_same(n, want, got, isa_names[t]);
            assert_true(got[n] == 12345.0f);
            const struct dpn_gradient plain = {.g = d};
            tables[t]->bn_grad(pixels, cstride, &plain, got);
            check_same(n, d, got, isa_names[t]);
        }
    }
}

/* KIND: 0 no mask, 1 by y, 2 by z. The gradient is in D, the masked one in WANT and GOT. */
static void check_mask(const struct dpn_kernels *kernels, size_t pixels, size_t cstride, int kind)
{
    const size_t n = pixels * cstride, floats = dpn_block_floats(cstride);
    struct dpn_mask_sums mask = {.y = kind == 1 ? y : NULL, .z = x, .mean = mean, .sums = block_got};
    if (kind == 2) mask.scale = scale, mask.shift = shift;
    memcpy(got, d, n * sizeof(float));
    got[n] = 12345.0f;
    for (size_t i = 0; i <= floats; i++) block_got[i] = 12345.0f;
    kernels->mask_sums(pixels, cstride, got, &mask);
    assert_true(got[n] == 12345.0f && block_got[2 * cstride] == (float)pixels);
    for (size_t c = 0; c < cstride; c++) {
        double sum = 0, product = 0, sizes = 0, product_sizes = 0;
        for (size_t i = c; i < n; i += cstride) {
            const float before = x[i] * scale[c] + shift[c];
            const int passes = kind == 0 || (kind == 1 ? y[i] > 0 : before > 0);
            if (got[i] != (passes ? d[i] : 0)) fail_msg("%s: gradient %zu, kind %d", kernels->isa, i, kind);
            const double term = passes ? (double)d[i] : 0, by_z = term * ((double)x[i] - (double)mean[c]);
            if (!passes) continue;
            sum += term, sizes += fabs(term), product += by_z, product_sizes += fabs(by_z);
        }
        if (!(fabs((double)block_got[c] - sum) <= 3e-7 * sizes))
            fail_msg("%s: sum %.9g, not %.9g", kernels->isa, (double)block_got[c], sum);
        if (isnan(product)) assert_true(isnan(block_got[cstride + c]));
        else if (!(fabs((double)block_got[cstride + c] - product) <= 6e-7 * product_sizes))
            fail_msg("%s: product %.9g, not %.9g", kernels->isa, (double)block_got[cstride + c], product);
    }
}

static void test_mask_sums(void **state)
{
    (void)state;
    EACH_SHAPE(pixels, cstride)
    {
        fill(x, pixels, cstride);
        fill(y, pixels, cstride);
        fill(d, pixels, cstride);
        for (size_t i = 0; i < pixels * cstride; i += 5) y[i] = i % 2 ? 0.0f : -0.0f;
        for (size_t p = 0; p < pixels; p++)
            x[(p + 1) * cstride - 1] = d[(p + 1) * cstride - 1] = 0; /* padding */
        if (pixels > 1) y[2] = NAN, y[cstride + 3] = INFINITY, y[4] = -INFINITY;
        const float kept[3] = {scale[cstride - 1], shift[cstride - 1], mean[cstride - 1]};
        scale[cstride - 1] = shift[cstride - 1] = mean[cstride - 1] = 0;
        for (int kind = 0; kind < 3; kind++) {
            check_mask(&dpn_kernels_ref, pixels, cstride, kind);
            EACH_TABLE(t)
            {
                check_mask(tables[t], pixels, cstride, kind);
                assert_true(block_got[cstride - 1] == 0.0f && block_got[2 * cstride - 1] == 0.0f);
                check_block(cstride, t == first_table(), isa_names[t]);
            }
        }
        scale[cstride - 1] = kept[0], shift[cstride - 1] = kept[1], mean[cstride - 1] = kept[2];
    }
}

/* An activation that is NaN or 0 lets nothing pass. */
static void check_all_masked(const struct dpn_kernels *kernels, float activation)
{
    static const float zeros[64];
    float ones[64];
    struct dpn_mask_sums mask = {.z = x, .scale = ones, .shift = zeros, .mean = mean, .sums = block_got};
    for (size_t i = 0; i < 64; i++) ones[i] = got[i] = 1.0f, x[i] = activation;
    kernels->mask_sums(1, 64, got, &mask);
    for (size_t i = 0; i < 64; i++) assert_true(got[i] == 0.0f);
    for (size_t i = 0; i < 64; i++) got[i] = 1.0f, x[i] = 2.0f, y[i] = activation;
    mask.y = y, mask.scale = mask.shift = NULL;
    kernels->mask_sums(1, 64, got, &mask);
    for (size_t i = 0; i < 64; i++) assert_true(got[i] == 0.0f && block_got[i] == 0.0f);
}

static void test_nan_and_zero_are_masked(void **state)
{
    (void)state;
    static const float activations[] = {NAN, 0.0f, -0.0f, -INFINITY};
    for (size_t a = 0; a < sizeof activations / sizeof *activations; a++) {
        check_all_masked(&dpn_kernels_ref, activations[a]);
        EACH_TABLE(t) check_all_masked(tables[t], activations[a]);
    }
}

static float *allocated(void)
{
    float *memory = aligned_alloc(64, (MAX_N + 16) * sizeof(float));
    assert_non_null(memory);
    return memory;
}

static int open_tables(void **state)
{
    (void)state;
    select_tables(isa_names, N_TABLES, tables);
    x = allocated(), y = allocated(), d = allocated(), want = allocated(), got = allocated();
    fill_channels();
    return 0;
}

static int free_all(void **state)
{
    (void)state;
    free(x), free(y), free(d), free(want), free(got);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_moments),
        cmocka_unit_test(test_moments_do_not_cancel),
        cmocka_unit_test(test_moments_show_what_is_not_finite),
        cmocka_unit_test(test_moments_combine),
        cmocka_unit_test(test_sums_combine),
        cmocka_unit_test(test_bn_apply),
        cmocka_unit_test(test_bn_apply_and_grad_of_large_tensors),
        cmocka_unit_test(test_bn_grad),
        cmocka_unit_test(test_mask_sums),
        cmocka_unit_test(test_nan_and_zero_are_masked),
    };
    return cmocka_run_group_tests(tests, open_tables, free_all);
}
