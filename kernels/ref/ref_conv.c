/* Convolution as its definition: every output element is one sum, in double, over all the products it is made
 * of, and is rounded once. For tests; nothing is done to be fast.
 *
 * Determinism: a sum runs over ascending taps (or pixels), then channels. Items: a sample of the output
 * (forward, data), or a row of the weights. Blocks of moments and sums: a sample.
 */
#include <assert.h>
#include <math.h>

#include "kernels/ref/ref.h"

static size_t conv_round16(size_t n)
{
    return (n + 15) / 16 * 16;
}

/* Place in the panel matrix of the weight from input channel CI, under tap (KY, KX), to output channel CO. */
static size_t conv_weight(const struct dpn_conv *conv, size_t ky, size_t kx, size_t ci, size_t co)
{
    const size_t rows = conv->kernel_height * conv->kernel_width * conv->in_channels;
    const size_t row = (ky * conv->kernel_width + kx) * conv->in_channels + ci;
    size_t offset, stride;
    dpn_panel(rows, conv->out_channels, co / DPN_PANEL_COLUMNS, &offset, &stride);
    return offset + row * stride + co % DPN_PANEL_COLUMNS;
}

/* Place of input pixel (Y, X) of sample N, its channel 0. */
static size_t conv_in(const struct dpn_conv *conv, size_t n, size_t y, size_t x)
{
    return n * conv->in_stride + (y * conv->in_width + x) * conv->in_cstride;
}

/* The input coordinate under tap K of output coordinate O. Not below SIZE, also where it would be negative:
 * in the padding. */
static size_t conv_under(const struct dpn_conv *conv, size_t o, size_t k)
{
    return o * conv->stride + k - conv->pad;
}

/* The output coordinate whose tap K lies on input coordinate I; SIZE if there is none. */
static size_t conv_over(const struct dpn_conv *conv, size_t i, size_t k, size_t size)
{
    const size_t o = i + conv->pad - k;
    if (o % conv->stride != 0 || o / conv->stride >= size) return size; /* negative ones have wrapped round */
    return o / conv->stride;
}

/* Output pixel (OY, OX) of what is stored. */
static size_t conv_stored(const struct dpn_conv *conv, size_t n, size_t oy, size_t ox)
{
    const size_t width = conv->pool ? conv->out_width / conv->pool : conv->out_width;
    return n * conv->out_stride + (oy * width + ox) * conv->out_cstride;
}

/* dY of output channel CO of pixel (OY, OX). */
static float conv_gradient(const struct dpn_conv_args *args, size_t n, size_t oy, size_t ox, size_t co)
{
    const struct dpn_conv *conv = args->conv;
    const size_t pool = conv->pool;
    if (!pool) return ref_gradient(&args->dy, conv_stored(conv, n, oy, ox) + co, co);
    if (oy / pool >= conv->out_height / pool || ox / pool >= conv->out_width / pool) return 0;
    const size_t i = conv_stored(conv, n, oy / pool, ox / pool) + co;
    return args->place[i] == oy % pool * pool + ox % pool ? args->dy.g[i] : 0;
}

static double conv_forward_sum(const struct dpn_conv_args *args, size_t n, size_t oy, size_t ox, size_t co)
{
    const struct dpn_conv *conv = args->conv;
    double sum = 0;
    for (size_t ky = 0; ky < conv->kernel_height; ky++) {
        for (size_t kx = 0; kx < conv->kernel_width; kx++) {
            const size_t iy = conv_under(conv, oy, ky), ix = conv_under(conv, ox, kx);
            if (iy >= conv->in_height || ix >= conv->in_width) continue;
            for (size_t ci = 0; ci < conv->in_channels; ci++)
                sum += (double)ref_source(&args->x, conv_in(conv, n, iy, ix) + ci, ci) *
                       (double)args->weights[conv_weight(conv, ky, kx, ci, co)];
        }
    }
    return sum;
}

/* y[co] of pixel (OY, OX), also in the padding. */
static float conv_forward_one(const struct dpn_conv_args *args, size_t n, size_t oy, size_t ox, size_t co)
{
    if (co >= args->conv->out_channels) return 0;
    double sum = conv_forward_sum(args, n, oy, ox, co);
    if (args->bias != NULL) sum += (double)args->bias[co];
    return args->relu ? ref_max0((float)sum) : (float)sum;
}

/* The maximum over pooled pixel (PY, PX)'s window, and its place. */
static float conv_forward_pooled(const struct dpn_conv_args *args, size_t n, size_t py, size_t px, size_t co,
                                 uint8_t *place)
{
    const size_t pool = args->conv->pool;
    float largest = 0;
    for (size_t i = 0; i < pool * pool; i++) {
        const float y = conv_forward_one(args, n, py * pool + i / pool, px * pool + i % pool, co);
        if (i > 0 && !(y > largest) && !(isnan(y) && !isnan(largest))) continue;
        largest = y;
        *place = (uint8_t)i;
    }
    return largest;
}

static void conv_forward(const struct dpn_conv_args *args, size_t n)
{
    const struct dpn_conv *conv = args->conv;
    const size_t block = dpn_block_floats(conv->out_cstride), unit = conv->pool ? conv->pool : 1;
    for (size_t oy = 0; oy < conv->out_height / unit; oy++) {
        for (size_t ox = 0; ox < conv->out_width / unit; ox++) {
            const size_t at = conv_stored(conv, n, oy, ox);
            for (size_t co = 0; co < conv->out_cstride; co++)
                args->y[at + co] = conv->pool
                                       ? conv_forward_pooled(args, n, oy, ox, co, &args->place[at + co])
                                       : conv_forward_one(args, n, oy, ox, co);
        }
    }
    if (args->moments != NULL)
        dpn_ref_moments(conv->out_height * conv->out_width, conv->out_cstride, args->y + n * conv->out_stride,
                        args->moments + n * block);
}

static double conv_data_sum(const struct dpn_conv_args *args, size_t n, size_t iy, size_t ix, size_t ci)
{
    const struct dpn_conv *conv = args->conv;
    double sum = 0;
    for (size_t ky = 0; ky < conv->kernel_height; ky++) {
        for (size_t kx = 0; kx < conv->kernel_width; kx++) {
            const size_t oy = conv_over(conv, iy, ky, conv->out_height);
            const size_t ox = conv_over(conv, ix, kx, conv->out_width);
            if (oy == conv->out_height || ox == conv->out_width) continue;
            for (size_t co = 0; co < conv->out_channels; co++)
                sum += (double)conv_gradient(args, n, oy, ox, co) *
                       (double)args->weights[conv_weight(conv, ky, kx, ci, co)];
        }
    }
    return sum;
}

static void conv_data(const struct dpn_conv_args *args, size_t n)
{
    const struct dpn_conv *conv = args->conv;
    for (size_t iy = 0; iy < conv->in_height; iy++) {
        for (size_t ix = 0; ix < conv->in_width; ix++) {
            float *dx = args->dx + conv_in(conv, n, iy, ix);
            for (size_t ci = 0; ci < conv->in_cstride; ci++) {
                double sum = args->accumulate ? (double)dx[ci] : 0;
                if (ci < conv->in_channels) sum += conv_data_sum(args, n, iy, ix, ci);
                dx[ci] = (float)sum;
            }
        }
    }
    if (args->mask != NULL) {
        const size_t start = n * conv->in_stride;
        struct dpn_mask_sums mask = *args->mask;
        if (mask.y != NULL) mask.y += start;
        mask.z += start;
        mask.sums += n * dpn_block_floats(conv->in_cstride);
        dpn_ref_mask_sums(conv->in_height * conv->in_width, conv->in_cstride, args->dx + start, &mask);
    }
}

static double conv_weights_sum(const struct dpn_conv_args *args, size_t ky, size_t kx, size_t ci, size_t co)
{
    const struct dpn_conv *conv = args->conv;
    double sum = 0;
    for (size_t n = 0; n < conv->samples; n++) {
        for (size_t oy = 0; oy < conv->out_height; oy++) {
            for (size_t ox = 0; ox < conv->out_width; ox++) {
                const size_t iy = conv_under(conv, oy, ky), ix = conv_under(conv, ox, kx);
                if (iy >= conv->in_height || ix >= conv->in_width) continue;
                sum += (double)ref_source(&args->x, conv_in(conv, n, iy, ix) + ci, ci) *
                       (double)conv_gradient(args, n, oy, ox, co);
            }
        }
    }
    return sum;
}

/* ROW of the panel matrix, padding included. */
static void conv_weights(const struct dpn_conv_args *args, size_t row)
{
    const struct dpn_conv *conv = args->conv;
    const size_t ci = row % conv->in_channels, tap = row / conv->in_channels;
    const size_t ky = tap / conv->kernel_width, kx = tap % conv->kernel_width;
    for (size_t co = 0; co < conv->out_channels; co++)
        args->dweights[conv_weight(conv, ky, kx, ci, co)] = (float)conv_weights_sum(args, ky, kx, ci, co);
    const size_t last = conv_weight(conv, ky, kx, ci, conv->out_channels - 1);
    const size_t padding = conv_round16(conv->out_channels) - conv->out_channels;
    for (size_t c = 1; c <= padding; c++) args->dweights[last + c] = 0;
}

static int conv_serves(const struct dpn_conv *conv, enum dpn_conv_pass pass)
{
    (void)conv;
    (void)pass;
    return 1;
}

static size_t conv_no_floats(const struct dpn_conv *conv, enum dpn_conv_pass pass)
{
    (void)conv;
    (void)pass;
    return 0;
}

static size_t conv_items(const struct dpn_conv *conv, enum dpn_conv_pass pass, int phase)
{
    if (phase > 0) return 0;
    if (pass == DPN_CONV_WEIGHTS) return conv->kernel_height * conv->kernel_width * conv->in_channels;
    return conv->samples;
}

static size_t conv_blocks(const struct dpn_conv *conv, enum dpn_conv_pass pass)
{
    return pass == DPN_CONV_WEIGHTS ? 0 : conv->samples;
}

static void conv_run(const struct dpn_conv_args *args, int phase, size_t first, size_t count, float *scratch)
{
    (void)scratch;
    assert(phase == 0);
    for (size_t i = first; i < first + count; i++) {
        if (args->pass == DPN_CONV_FORWARD) conv_forward(args, i);
        else if (args->pass == DPN_CONV_DATA) conv_data(args, i);
        else conv_weights(args, i);
    }
}

const struct dpn_conv_algorithm dpn_conv_ref_direct = {
    .name = "direct",
    .serves = conv_serves,
    .shared_floats = conv_no_floats,
    .private_floats = conv_no_floats,
    .items = conv_items,
    .blocks = conv_blocks,
    .run = conv_run,
};

const struct dpn_conv_algorithm *const dpn_conv_ref[] = {&dpn_conv_ref_direct, NULL};
