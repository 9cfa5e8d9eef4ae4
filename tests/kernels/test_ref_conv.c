/* The plain convolution against another formulation: each product is scattered from the input's side into a
 * double, over arrays in PyTorch's order, with everything fused done in passes of its own before and after.
 * */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/kernels.h"

enum { MAX_N = 30000, MAX_CHANNELS = 160, GAP = 16 };

static const struct {
    size_t samples, in_channels, in_cstride, in_height, in_width, out_channels, kernel_height, kernel_width;
    size_t stride, pad;
} shapes[] = {
    {2, 3, 3, 6, 6, 10, 3, 3, 1, 1},   {1, 5, 16, 7, 5, 17, 3, 3, 2, 1},   {3, 16, 16, 4, 4, 16, 1, 1, 1, 0},
    {2, 7, 16, 5, 6, 70, 1, 1, 2, 0},  {1, 1, 1, 12, 12, 6, 5, 5, 1, 0},   {2, 6, 16, 8, 8, 16, 5, 5, 1, 2},
    {1, 2, 16, 9, 11, 3, 2, 4, 3, 1},  {1, 20, 32, 3, 3, 130, 3, 3, 1, 1}, {4, 16, 16, 1, 1, 5, 3, 3, 1, 1},
    {1, 4, 16, 10, 10, 8, 7, 7, 2, 3}, {2, 33, 48, 2, 3, 64, 3, 3, 2, 1},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

/* Floats as the kernel reads and writes them, and what it must have made of them: x and dy as read,
 * w[co][ci][ky][kx], sums of products. */
static float x[MAX_N], y[MAX_N], dy[MAX_N], z[MAX_N], dx[MAX_N], panel[MAX_N], d_panel[MAX_N], before[MAX_N];
static double x_read[MAX_N], dy_read[MAX_N], w[MAX_N], sum_y[MAX_N], sum_dx[MAX_N], sum_w[MAX_N];
static float w_float[MAX_N], dw_float[MAX_N], bias[MAX_CHANNELS], blocks[MAX_N];
static float scale[MAX_CHANNELS], shift[MAX_CHANNELS], g_scale[MAX_CHANNELS], z_scale[MAX_CHANNELS];
static float g_shift[MAX_CHANNELS], mean[MAX_CHANNELS];
static uint32_t random_state;

static float uniform(void)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (float)(random_state >> 8) / 8388608.0f - 1.0f;
}

static struct dpn_conv shape_of(size_t s)
{
    struct dpn_conv conv = {.samples = shapes[s].samples, .in_channels = shapes[s].in_channels};
    conv.in_cstride = shapes[s].in_cstride;
    conv.in_height = shapes[s].in_height, conv.in_width = shapes[s].in_width;
    conv.in_stride = conv.in_height * conv.in_width * conv.in_cstride + GAP;
    conv.out_channels = shapes[s].out_channels;
    conv.out_cstride = (conv.out_channels + 15) / 16 * 16;
    conv.kernel_height = shapes[s].kernel_height, conv.kernel_width = shapes[s].kernel_width;
    conv.stride = shapes[s].stride, conv.pad = shapes[s].pad;
    conv.out_height = (conv.in_height + 2 * conv.pad - conv.kernel_height) / conv.stride + 1;
    conv.out_width = (conv.in_width + 2 * conv.pad - conv.kernel_width) / conv.stride + 1;
    conv.out_stride = conv.out_height * conv.out_width * conv.out_cstride + GAP;
    assert_true(conv.samples * conv.in_stride <= MAX_N && conv.samples * conv.out_stride <= MAX_N);
    return conv;
}

static struct dpn_panel_rows rows_of(const struct dpn_conv *conv)
{
    return (struct dpn_panel_rows){.taps = conv->kernel_height * conv->kernel_width,
                                   .channels = conv->in_channels,
                                   .cstride = conv->in_channels};
}

/* Random values in the CHANNELS of SAMPLES samples of PIXELS, 0 between them. */
static void fill(float *to, size_t samples, size_t stride, size_t pixels, size_t cstride, size_t channels)
{
    for (size_t i = 0; i < MAX_N; i++) to[i] = 0;
    for (size_t n = 0; n < samples; n++)
        for (size_t i = 0; i < pixels * cstride; i++)
            to[n * stride + i] = i % cstride < channels ? uniform() : 0;
}

static void fill_channel_values(float *to, size_t channels)
{
    for (size_t c = 0; c < MAX_CHANNELS; c++) to[c] = c < channels ? uniform() : 0;
}

static void fill_all(const struct dpn_conv *conv, uint32_t seed)
{
    const size_t in_pixels = conv->in_height * conv->in_width,
                 out_pixels = conv->out_height * conv->out_width;
    const struct dpn_panel_rows rows = rows_of(conv);
    const size_t n = rows.taps * rows.channels * conv->out_channels;
    assert_true(dpn_panel_elems(rows.taps * rows.channels, conv->out_channels) <= MAX_N);
    random_state = seed;
    fill(x, conv->samples, conv->in_stride, in_pixels, conv->in_cstride, conv->in_channels);
    fill(before, conv->samples, conv->in_stride, in_pixels, conv->in_cstride, conv->in_channels);
    fill(dy, conv->samples, conv->out_stride, out_pixels, conv->out_cstride, conv->out_channels);
    fill(z, conv->samples, conv->out_stride, out_pixels, conv->out_cstride, conv->out_channels);
    fill_channel_values(bias, conv->out_channels);
    fill_channel_values(scale, conv->in_channels);
    fill_channel_values(shift, conv->in_channels);
    fill_channel_values(mean, conv->in_channels);
    fill_channel_values(g_scale, conv->out_channels);
    fill_channel_values(z_scale, conv->out_channels);
    fill_channel_values(g_shift, conv->out_channels);
    for (size_t i = 0; i < n; i++) w[i] = (double)(w_float[i] = uniform());
    dpn_panel_pack(&rows, conv->out_channels, w_float, panel);
    for (size_t i = 0; i < MAX_N; i++) x_read[i] = (double)x[i], dy_read[i] = (double)dy[i];
}

/* x * scale + shift, RELU, rounded as float operations are. Padding channels have 0 and 0. */
static void read_scaled(const struct dpn_conv *conv, int relu)
{
    const size_t floats = conv->in_height * conv->in_width * conv->in_cstride;
    for (size_t n = 0; n < conv->samples; n++)
        for (size_t i = 0; i < floats; i++) {
            const size_t at = n * conv->in_stride + i, c = i % conv->in_cstride;
            const float product = x[at] * scale[c], value = product + shift[c];
            x_read[at] = relu && value < 0 ? 0.0 : (double)value;
        }
}

static void read_combined(const struct dpn_conv *conv)
{
    const size_t floats = conv->out_height * conv->out_width * conv->out_cstride;
    for (size_t n = 0; n < conv->samples; n++)
        for (size_t i = 0; i < floats; i++) {
            const size_t at = n * conv->out_stride + i, c = i % conv->out_cstride;
            const float first = dy[at] * g_scale[c], second = z[at] * z_scale[c], sum = first + second;
            dy_read[at] = (double)(sum + g_shift[c]);
        }
}

/* All three sums at once: product by product, from every input pixel to the outputs that it reaches. */
static void scatter_pixel(const struct dpn_conv *conv, size_t n, long iy, long ix)
{
    const size_t taps = conv->kernel_height * conv->kernel_width;
    const double *from = x_read + n * conv->in_stride +
                         ((size_t)iy * conv->in_width + (size_t)ix) * conv->in_cstride;
    double *d_from = sum_dx + (from - x_read);
    for (size_t tap = 0; tap < taps; tap++) {
        const long down = iy + (long)conv->pad - (long)(tap / conv->kernel_width);
        const long right = ix + (long)conv->pad - (long)(tap % conv->kernel_width), step = (long)conv->stride;
        if (down < 0 || right < 0 || down % step != 0 || right % step != 0) continue;
        if (down / step >= (long)conv->out_height || right / step >= (long)conv->out_width) continue;
        const size_t to = n * conv->out_stride +
                          ((size_t)(down / step) * conv->out_width + (size_t)(right / step)) *
                              conv->out_cstride;
        for (size_t co = 0; co < conv->out_channels; co++)
            for (size_t ci = 0; ci < conv->in_channels; ci++) {
                const size_t weight = (co * conv->in_channels + ci) * taps + tap;
                sum_y[to + co] += from[ci] * w[weight];
                d_from[ci] += dy_read[to + co] * w[weight];
                sum_w[weight] += from[ci] * dy_read[to + co];
            }
    }
}

static void scatter(const struct dpn_conv *conv)
{
    for (size_t i = 0; i < MAX_N; i++) sum_y[i] = sum_dx[i] = sum_w[i] = 0;
    for (size_t n = 0; n < conv->samples; n++)
        for (size_t iy = 0; iy < conv->in_height; iy++)
            for (size_t ix = 0; ix < conv->in_width; ix++) scatter_pixel(conv, n, (long)iy, (long)ix);
}

/* All items, the last first, alone or all in one call. */
static void run(const struct dpn_conv_args *args, int together)
{
    const struct dpn_conv_algorithm *algorithm = dpn_kernels_ref.conv[0];
    const size_t items = algorithm->items(args->conv, args->pass, 0);
    assert_non_null(algorithm);
    assert_null(dpn_kernels_ref.conv[1]);
    assert_string_equal(algorithm->name, "direct");
    assert_true(algorithm->serves(args->conv, args->pass));
    assert_true(items > 0);
    assert_int_equal(algorithm->items(args->conv, args->pass, 1), 0);
    if (together) algorithm->run(args, 0, 0, items, NULL);
    else
        for (size_t i = items; i-- > 0;) algorithm->run(args, 0, i, 1, NULL);
}

static void check_close(size_t i, float got, double want)
{
    if (!(fabs((double)got - want) <= 1e-6 * fabs(want) + 1e-7))
        fail_msg("element %zu is %.9g, not %.9g", i, (double)got, want);
}

/* OPTIONS: 1 scaled source, 2 its ReLU, 4 bias, 8 ReLU, 16 moments. */
static void check_forward(const struct dpn_conv *conv, int options)
{
    const size_t pixels = conv->out_height * conv->out_width, floats = dpn_block_floats(conv->out_cstride);
    struct dpn_conv_args args = {.conv = conv, .pass = DPN_CONV_FORWARD, .weights = panel, .y = y};
    static float block[MAX_N];
    args.x.x = x;
    args.x.relu = (options & 2) != 0 && (options & 1);
    if (options & 1) args.x.scale = scale, args.x.shift = shift, read_scaled(conv, args.x.relu);
    if (options & 4) args.bias = bias;
    args.relu = options & 8;
    if (options & 16) args.moments = blocks;
    for (size_t i = 0; i < MAX_N; i++) y[i] = blocks[i] = 12345.0f;
    scatter(conv);
    run(&args, options % 3 == 0);
    for (size_t i = 0; i < MAX_N; i++) {
        const size_t n = i / conv->out_stride, at = i % conv->out_stride, c = at % conv->out_cstride;
        if (n >= conv->samples || at >= pixels * conv->out_cstride) {
            assert_true(y[i] == 12345.0f);
            continue;
        }
        double want = sum_y[i] + (args.bias != NULL ? (double)bias[c] : 0);
        if (args.relu && want < 0) want = 0;
        if (c >= conv->out_channels) assert_true(y[i] == 0.0f);
        else check_close(i, y[i], want);
    }
    assert_int_equal(dpn_kernels_ref.conv[0]->blocks(conv, DPN_CONV_FORWARD), conv->samples);
    for (size_t n = 0; args.moments != NULL && n < conv->samples; n++) {
        dpn_kernels_ref.moments(pixels, conv->out_cstride, y + n * conv->out_stride, block);
        assert_memory_equal(block, blocks + n * floats, floats * sizeof(float));
    }
    assert_true(blocks[args.moments != NULL ? conv->samples * floats : 0] == 12345.0f);
}

/* OPTIONS: 1 combined gradient, 2 accumulate, 4 mask by y, 8 mask by z, 16 sums without a mask. */
static void check_data(const struct dpn_conv *conv, int options)
{
    const size_t floats = conv->in_height * conv->in_width * conv->in_cstride;
    const size_t block = dpn_block_floats(conv->in_cstride);
    struct dpn_conv_args args = {.conv = conv, .pass = DPN_CONV_DATA, .weights = panel, .dx = dx};
    struct dpn_mask_sums mask = {.z = x, .mean = mean, .sums = blocks};
    static double sums[2 * MAX_CHANNELS];
    args.dy.g = dy;
    if (options & 1) {
        args.dy = (struct dpn_gradient){dy, z, g_scale, z_scale, g_shift};
        read_combined(conv);
    }
    if (options & 4) mask.y = before;
    else if (options & 8) mask.scale = scale, mask.shift = shift;
    if (options & 28) args.mask = &mask;
    args.accumulate = options & 2;
    for (size_t i = 0; i < MAX_N; i++) dx[i] = args.accumulate ? before[i] : 12345.0f;
    scatter(conv);
    run(&args, options % 3 == 0);
    for (size_t n = 0; n < conv->samples; n++) {
        memset(sums, 0, sizeof sums);
        for (size_t i = 0; i < floats; i++) {
            const size_t at = n * conv->in_stride + i, c = i % conv->in_cstride;
            const float activation = x[at] * scale[c] + shift[c];
            double want = sum_dx[at] + (args.accumulate ? (double)before[at] : 0);
            if (mask.y != NULL && !(before[at] > 0)) want = 0;
            if (mask.scale != NULL && !(activation > 0)) want = 0;
            check_close(at, dx[at], want);
            sums[c] += want;
            sums[conv->in_cstride + c] += want * ((double)x[at] - (double)mean[c]);
        }
        if (args.mask == NULL) continue;
        for (size_t c = 0; c < 2 * conv->in_cstride; c++)
            assert_true(fabs((double)blocks[n * block + c] - sums[c]) <= 1e-5 + 1e-6 * fabs(sums[c]));
        assert_true(blocks[n * block + 2 * conv->in_cstride] == (float)(conv->in_height * conv->in_width));
    }
    assert_true(dx[floats] == (args.accumulate ? before[floats] : 12345.0f)); /* between samples */
}

/* OPTIONS: 1 scaled source, 2 its ReLU, 4 combined gradient. */
static void check_weights(const struct dpn_conv *conv, int options)
{
    const struct dpn_panel_rows rows = rows_of(conv);
    const size_t n = rows.taps * rows.channels * conv->out_channels;
    const size_t stored = dpn_panel_elems(rows.taps * rows.channels, conv->out_channels);
    struct dpn_conv_args args = {.conv = conv, .pass = DPN_CONV_WEIGHTS, .dweights = d_panel};
    args.x = (struct dpn_source){x, NULL, NULL, 0};
    args.dy.g = dy;
    if (options & 1) {
        args.x = (struct dpn_source){x, scale, shift, options & 2};
        read_scaled(conv, options & 2);
    }
    if (options & 4) {
        args.dy = (struct dpn_gradient){dy, z, g_scale, z_scale, g_shift};
        read_combined(conv);
    }
    for (size_t i = 0; i < MAX_N; i++) d_panel[i] = 12345.0f;
    scatter(conv);
    run(&args, options % 3 == 0);
    dpn_panel_unpack(&rows, conv->out_channels, d_panel, dw_float);
    for (size_t i = 0; i < n; i++) check_close(i, dw_float[i], sum_w[i]);
    dpn_panel_pack(&rows, conv->out_channels, dw_float, panel); /* whose padding is 0 */
    assert_memory_equal(panel, d_panel, stored * sizeof(float));
    assert_true(d_panel[stored] == 12345.0f);
}

static void test_forward(void **state)
{
    (void)state;
    for (size_t s = 0; s < N_SHAPES; s++) {
        const struct dpn_conv conv = shape_of(s);
        for (int options = 0; options < 32; options += s % 2 ? 1 : 3) {
            fill_all(&conv, (uint32_t)s);
            check_forward(&conv, options);
        }
    }
}

static void test_data(void **state)
{
    (void)state;
    for (size_t s = 0; s < N_SHAPES; s++) {
        const struct dpn_conv conv = shape_of(s);
        for (int options = 0; options < 32; options++) {
            if ((options & 4) && (options & 8)) continue;
            fill_all(&conv, (uint32_t)s);
            check_data(&conv, options);
        }
    }
}

static void test_weights(void **state)
{
    (void)state;
    for (size_t s = 0; s < N_SHAPES; s++) {
        const struct dpn_conv conv = shape_of(s);
        for (int options = 0; options < 8; options++) {
            fill_all(&conv, (uint32_t)s);
            check_weights(&conv, options);
        }
    }
}

/* <conv(x), dy> = <x, data(dy)> = <w, weights(x, dy)>. */
static void test_adjoint(void **state)
{
    (void)state;
    for (size_t s = 0; s < N_SHAPES; s++) {
        const struct dpn_conv conv = shape_of(s);
        const size_t stored = dpn_panel_elems(rows_of(&conv).taps * conv.in_channels, conv.out_channels);
        struct dpn_conv_args args = {.conv = &conv, .weights = panel, .y = y, .dx = dx, .dweights = d_panel};
        double by_y = 0, by_x = 0, by_w = 0, sizes = 0;
        fill_all(&conv, (uint32_t)s + 100);
        memset(y, 0, sizeof y), memset(dx, 0, sizeof dx);
        args.x.x = x, args.dy.g = dy;
        args.pass = DPN_CONV_FORWARD, run(&args, 1);
        args.pass = DPN_CONV_DATA, run(&args, 1);
        args.pass = DPN_CONV_WEIGHTS, run(&args, 1);
        for (size_t i = 0; i < MAX_N; i++)
            by_y += (double)y[i] * (double)dy[i], by_x += (double)x[i] * (double)dx[i];
        for (size_t i = 0; i < MAX_N; i++) sizes += fabs((double)y[i] * (double)dy[i]);
        for (size_t i = 0; i < stored; i++) by_w += (double)panel[i] * (double)d_panel[i];
        assert_true(sizes > 1 && fabs(by_y) > 0);
        assert_true(fabs(by_y - by_x) <= 1e-7 * sizes && fabs(by_y - by_w) <= 1e-7 * sizes);
    }
}

/* NaN goes through both ReLUs; what a NaN activation masks is 0. */
static void test_nan_shows(void **state)
{
    (void)state;
    const struct dpn_conv conv = shape_of(2); /* 1x1: one pixel to one pixel */
    struct dpn_conv_args args = {.conv = &conv,
                                 .pass = DPN_CONV_FORWARD,
                                 .weights = panel,
                                 .y = y,
                                 .relu = 1};
    struct dpn_mask_sums mask = {.y = before, .z = x, .mean = mean, .sums = blocks};
    fill_all(&conv, 5);
    x[16 + 3] = NAN;
    args.x = (struct dpn_source){x, scale, shift, 1};
    run(&args, 1);
    for (size_t i = 0; i < conv.in_stride - GAP; i++) assert_int_equal(isnan(y[i]), i / 16 == 1);
    args.pass = DPN_CONV_DATA, args.dx = dx, args.dy.g = dy, args.mask = &mask;
    x[16 + 3] = 1, before[16 + 3] = NAN, before[16 + 4] = 1;
    run(&args, 1);
    assert_true(dx[16 + 3] == 0.0f && dx[16 + 4] != 0.0f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forward), cmocka_unit_test(test_data),      cmocka_unit_test(test_weights),
        cmocka_unit_test(test_adjoint), cmocka_unit_test(test_nan_shows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
