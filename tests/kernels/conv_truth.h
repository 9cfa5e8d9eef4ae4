/* Random tensors of a convolution with any of its fused parts, and what its passes make of them, by the
 * definition in double. */
#ifndef DPN_TESTS_KERNELS_CONV_TRUTH_H
#define DPN_TESTS_KERNELS_CONV_TRUTH_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/kernels.h"

enum { MASK_NONE = 0, MASK_BY_Y, MASK_BY_Z, MASK_SUMS_ONLY, N_MASKS };
struct options {
    int affine, source_relu; /* x on load */
    int gradient;            /* dy on load */
    int bias, relu, moments; /* forward */
    int accumulate, mask;    /* data */
    size_t gap;              /* floats between samples */
};

struct tensors {
    struct dpn_conv conv;
    struct options options;
    size_t in_floats, out_floats, weight_floats, in_pixels, out_pixels;
    float *x, *scale, *shift, *weights, *bias;
    float *g, *z, *g_scale, *z_scale, *g_shift;
    float *before; /* dx where it accumulates */
    float *mask_y, *mask_z, *mask_scale, *mask_shift, *mask_mean;
    double *x_read, *dy_read;  /* as the transforms give them */
    double *y, *dx, *dweights; /* the truth */
};

static uint32_t random_state = 1;

static uint32_t random_below(uint32_t limit)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (uint32_t)(((uint64_t)(random_state >> 8) * limit) >> 24);
}

/* Multiples of 1/32 from -2 to 2: products of two, plus a third, are exact, so signs are certain. */
static float random_float(void)
{
    return ((float)random_below(129) - 64.0f) / 32.0f;
}

static size_t round16(size_t n)
{
    return (n + 15) / 16 * 16;
}

/* Exactly COUNT floats, so that a sanitizer sees any access past them. */
static float *floats(size_t count)
{
    void *at = NULL;
    assert_int_equal(posix_memalign(&at, 64, (count ? count : 1) * sizeof(float)), 0);
    return at;
}

/* Channels of CSTRIDE floats, zeros past CHANNELS. */
static float *random_channels(size_t pixels, size_t channels, size_t cstride)
{
    float *at = floats(pixels * cstride);
    for (size_t i = 0; i < pixels * cstride; i++) at[i] = i % cstride < channels ? random_float() : 0.0f;
    return at;
}

/* A tensor of the convolution's input or output, with NaN between samples: nobody may read that. */
static float *random_tensor(size_t samples, size_t pixels, size_t channels, size_t cstride, size_t stride)
{
    const size_t count = (samples - 1) * stride + pixels * cstride;
    float *at = floats(count);
    for (size_t i = 0; i < count; i++) {
        const size_t in = i % stride;
        at[i] = in >= pixels * cstride ? NAN : in % cstride < channels ? random_float() : 0.0f;
    }
    return at;
}

static size_t weight_at(const struct dpn_conv *conv, size_t tap, size_t ci, size_t co)
{
    size_t offset, stride;
    dpn_panel(conv->kernel_height * conv->kernel_width * conv->in_channels, conv->out_channels,
              co / DPN_PANEL_COLUMNS, &offset, &stride);
    return offset + (tap * conv->in_channels + ci) * stride + co % DPN_PANEL_COLUMNS;
}

static double *doubles(size_t count)
{
    double *at = calloc(count ? count : 1, sizeof *at);
    assert_non_null(at);
    return at;
}

static struct dpn_conv make_conv(size_t samples, size_t ci, size_t co, size_t height, size_t width, size_t kh,
                                 size_t kw, size_t stride, size_t pad, size_t gap)
{
    struct dpn_conv conv = {
        .samples = samples,
        .in_channels = ci,
        .in_cstride = round16(ci),
        .in_height = height,
        .in_width = width,
        .out_channels = co,
        .out_cstride = round16(co),
        .out_height = (height + 2 * pad - kh) / stride + 1,
        .out_width = (width + 2 * pad - kw) / stride + 1,
        .kernel_height = kh,
        .kernel_width = kw,
        .stride = stride,
        .pad = pad,
    };
    conv.in_stride = height * width * conv.in_cstride + gap;
    conv.out_stride = conv.out_height * conv.out_width * conv.out_cstride + gap;
    return conv;
}

/* As a model's input is: channels without padding. */
static void make_input(struct dpn_conv *conv)
{
    conv->in_cstride = conv->in_channels;
    conv->in_stride = conv->in_height * conv->in_width * conv->in_channels;
}

/* ---- the truth ---- */

static void read_tensors(struct tensors *t)
{
    const struct dpn_conv *conv = &t->conv;
    for (size_t i = 0; i < t->in_floats; i++) {
        const size_t c = i % conv->in_stride % conv->in_cstride;
        double value = (double)t->x[i];
        if (t->options.affine) value = value * (double)t->scale[c] + (double)t->shift[c];
        t->x_read[i] = t->options.source_relu && value < 0 ? 0 : value;
    }
    for (size_t i = 0; i < t->out_floats; i++) {
        const size_t c = i % conv->out_stride % conv->out_cstride;
        t->dy_read[i] = (double)t->g[i];
        if (t->options.gradient)
            t->dy_read[i] = t->dy_read[i] * (double)t->g_scale[c] + (double)t->z[i] * (double)t->z_scale[c] +
                            (double)t->g_shift[c];
    }
}

/* One output pixel and tap: their parts of all three results. */
static void truth_tap(struct tensors *t, size_t out, size_t in, size_t tap)
{
    const struct dpn_conv *conv = &t->conv;
    for (size_t ci = 0; ci < conv->in_channels; ci++) {
        for (size_t co = 0; co < conv->out_channels; co++) {
            const size_t w = weight_at(conv, tap, ci, co);
            t->y[out + co] += t->x_read[in + ci] * (double)t->weights[w];
            t->dx[in + ci] += t->dy_read[out + co] * (double)t->weights[w];
            t->dweights[w] += t->x_read[in + ci] * t->dy_read[out + co];
        }
    }
}

static void truth_sums(struct tensors *t)
{
    const struct dpn_conv *conv = &t->conv;
    for (size_t n = 0; n < conv->samples; n++) {
        for (size_t p = 0; p < conv->out_height * conv->out_width; p++) {
            const size_t out = n * conv->out_stride + p * conv->out_cstride;
            for (size_t tap = 0; tap < conv->kernel_height * conv->kernel_width; tap++) {
                const size_t y = p / conv->out_width * conv->stride + tap / conv->kernel_width - conv->pad;
                const size_t x = p % conv->out_width * conv->stride + tap % conv->kernel_width - conv->pad;
                if (y < conv->in_height && x < conv->in_width) /* else negative, or outside */
                    truth_tap(t, out, n * conv->in_stride + (y * conv->in_width + x) * conv->in_cstride, tap);
            }
        }
    }
}

static void truth_finish(struct tensors *t)
{
    const struct dpn_conv *conv = &t->conv;
    for (size_t i = 0; i < t->out_floats; i++) {
        const size_t at = i % conv->out_stride, c = at % conv->out_cstride;
        if (at >= t->out_pixels * conv->out_cstride) continue;
        if (t->options.bias) t->y[i] += (double)t->bias[c];
        if (t->options.relu && t->y[i] < 0) t->y[i] = 0;
    }
    for (size_t i = 0; i < t->in_floats; i++) {
        const size_t at = i % conv->in_stride, c = at % conv->in_cstride;
        if (at >= t->in_pixels * conv->in_cstride) continue;
        if (t->options.accumulate) t->dx[i] += (double)t->before[i];
        if (t->options.mask == MASK_BY_Y && !(t->mask_y[i] > 0)) t->dx[i] = 0;
        if (t->options.mask == MASK_BY_Z && !(t->mask_z[i] * t->mask_scale[c] + t->mask_shift[c] > 0))
            t->dx[i] = 0;
    }
}

static struct tensors make_tensors(struct dpn_conv conv, struct options options)
{
    const size_t in_pixels = conv.in_height * conv.in_width, out_pixels = conv.out_height * conv.out_width;
    struct tensors t = {.conv = conv, .options = options, .in_pixels = in_pixels, .out_pixels = out_pixels};
    const size_t rows = conv.kernel_height * conv.kernel_width * conv.in_channels;
    t.in_floats = (conv.samples - 1) * conv.in_stride + in_pixels * conv.in_cstride;
    t.out_floats = (conv.samples - 1) * conv.out_stride + out_pixels * conv.out_cstride;
    t.weight_floats = dpn_panel_elems(rows, conv.out_channels);
    t.x = random_tensor(conv.samples, in_pixels, conv.in_channels, conv.in_cstride, conv.in_stride);
    t.before = random_tensor(conv.samples, in_pixels, conv.in_channels, conv.in_cstride, conv.in_stride);
    t.mask_y = random_tensor(conv.samples, in_pixels, conv.in_channels, conv.in_cstride, conv.in_stride);
    t.mask_z = random_tensor(conv.samples, in_pixels, conv.in_channels, conv.in_cstride, conv.in_stride);
    t.g = random_tensor(conv.samples, out_pixels, conv.out_channels, conv.out_cstride, conv.out_stride);
    t.z = random_tensor(conv.samples, out_pixels, conv.out_channels, conv.out_cstride, conv.out_stride);
    t.scale = random_channels(1, conv.in_channels, conv.in_cstride);
    t.shift = random_channels(1, conv.in_channels, conv.in_cstride);
    t.mask_scale = random_channels(1, conv.in_channels, conv.in_cstride);
    t.mask_shift = random_channels(1, conv.in_channels, conv.in_cstride);
    t.mask_mean = random_channels(1, conv.in_channels, conv.in_cstride);
    t.g_scale = random_channels(1, conv.out_channels, conv.out_cstride);
    t.z_scale = random_channels(1, conv.out_channels, conv.out_cstride);
    t.g_shift = random_channels(1, conv.out_channels, conv.out_cstride);
    t.bias = random_channels(1, conv.out_channels, conv.out_cstride);
    t.weights = floats(t.weight_floats);
    memset(t.weights, 0, t.weight_floats * sizeof(float));
    for (size_t tap = 0; tap < conv.kernel_height * conv.kernel_width; tap++)
        for (size_t ci = 0; ci < conv.in_channels; ci++)
            for (size_t co = 0; co < conv.out_channels; co++)
                t.weights[weight_at(&conv, tap, ci, co)] = random_float();
    t.x_read = doubles(t.in_floats);
    t.dy_read = doubles(t.out_floats);
    t.y = doubles(t.out_floats);
    t.dx = doubles(t.in_floats);
    t.dweights = doubles(t.weight_floats);
    return t;
}

static __attribute__((unused)) void find_truth(struct tensors *t)
{
    read_tensors(t);
    truth_sums(t);
    truth_finish(t);
}

static void free_tensors(struct tensors *t)
{
    float *all[] = {t->x,      t->scale,      t->shift,      t->weights,  t->bias,    t->g,
                    t->z,      t->before,     t->g_scale,    t->z_scale,  t->g_shift, t->mask_y,
                    t->mask_z, t->mask_scale, t->mask_shift, t->mask_mean};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
    free(t->x_read);
    free(t->dy_read);
    free(t->y);
    free(t->dx);
    free(t->dweights);
}

static __attribute__((unused)) const char *describe(const struct tensors *t)
{
    static char text[400];
    const struct dpn_conv *c = &t->conv;
    const struct options *o = &t->options;
    snprintf(text, sizeof text,
             "%zu samples, %zu (%zu) -> %zu channels, %zux%zu, kernel %zux%zu, stride %zu, pad %zu, gap %zu; "
             "affine %d "
             "relu %d gradient %d bias %d relu %d moments %d accumulate %d mask %d",
             c->samples, c->in_channels, c->in_cstride, c->out_channels, c->in_height, c->in_width,
             c->kernel_height, c->kernel_width, c->stride, c->pad, o->gap, o->affine, o->source_relu,
             o->gradient, o->bias, o->relu, o->moments, o->accumulate, o->mask);
    return text;
}

#endif
