/* Every convolution algorithm of every instruction set against the plain loops of kernels/ref: shapes of
 * every class, all that is fused, and items handed out one by one in reverse.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/rng.h"
#include "kernels/kernels.h"

/* Relative Frobenius norms, and of moments relative to their channel's size. */
static const double conv_winograd_bound = 1e-5, conv_direct_bound = 2e-6, conv_moments_bound = 2e-3;

struct conv_case {
    size_t samples, in, out, height, width, kernel_height, kernel_width, stride, pad;
    int input; /* the model's: channels are not padded, no data pass */
};

/* Sides that are no multiples of a tile, one pixel, more channels than a panel, and the layers of the models.
 */
static const struct conv_case conv_cases[] = {
    {2, 16, 16, 1, 1, 3, 3, 1, 1, 0},    {1, 16, 48, 2, 3, 3, 3, 1, 1, 0},
    {3, 5, 8, 4, 4, 3, 3, 1, 1, 0},      {2, 48, 5, 5, 7, 3, 3, 1, 1, 0},
    {1, 64, 80, 8, 9, 3, 3, 1, 1, 0},    {2, 80, 64, 13, 6, 3, 3, 1, 0, 0},
    {1, 130, 16, 7, 13, 3, 3, 1, 2, 0},  {1, 64, 64, 12, 12, 3, 3, 1, 1, 0},
    {1, 192, 80, 5, 6, 3, 3, 1, 1, 0},   {1, 384, 320, 2, 3, 3, 3, 1, 1, 0},
    {1, 16, 16, 40, 33, 3, 3, 1, 1, 0},  {9, 32, 64, 6, 6, 3, 3, 1, 1, 0},
    {1, 64, 128, 10, 12, 3, 3, 2, 1, 0}, {1, 5, 80, 9, 6, 3, 3, 2, 1, 0},
    {2, 16, 130, 7, 7, 3, 3, 3, 1, 0},   {2, 64, 128, 6, 6, 1, 1, 2, 0, 0},
    {2, 80, 16, 5, 4, 1, 1, 1, 0, 0},    {1, 16, 16, 6, 7, 1, 1, 3, 0, 0},
    {3, 3, 64, 12, 12, 3, 3, 1, 1, 1},   {2, 1, 6, 28, 28, 5, 5, 1, 2, 1},
    {2, 6, 16, 14, 14, 5, 5, 1, 0, 0},   {2, 8, 5, 11, 9, 7, 7, 2, 3, 0},
    {1, 3, 17, 9, 12, 2, 3, 3, 1, 1},    {2, 16, 8, 9, 5, 1, 3, 1, 1, 0},
    {1, 130, 320, 4, 3, 3, 3, 2, 1, 0},
};

static struct dpn_rng conv_rng;

/* Buffers of one case, filled; what is computed is compared with the reference's in *_ref. */
struct conv_data {
    struct dpn_conv conv;
    size_t x_floats, y_floats, w_floats;
    float *x, *x_z, *x_y, *dx, *dx_ref, *weights, *dweights, *dweights_ref, *y, *y_ref, *g, *z;
    float *in[5], *out[4]; /* vectors of constants per channel */
};

static size_t conv_round16(size_t n)
{
    return (n + 15) / 16 * 16;
}

static float *conv_floats(size_t n)
{
    size_t bytes = (n * sizeof(float) + 64 + 63) / 64 * 64;
    float *floats = aligned_alloc(64, bytes);
    assert_non_null(floats);
    memset(floats, 0xff, bytes); /* NaN: what is not written shows */
    return floats;
}

static float *conv_random(size_t pixels, size_t channels, size_t cstride, float scale, float shift)
{
    float *floats = conv_floats(pixels * cstride);
    for (size_t i = 0; i < pixels; i++)
        for (size_t c = 0; c < cstride; c++)
            floats[i * cstride + c] = c < channels ? scale * (float)dpn_rng_normal(&conv_rng) + shift : 0.0f;
    return floats;
}

/* Images whose samples are STRIDE apart. */
static float *conv_images(size_t samples, size_t pixels, size_t channels, size_t cstride, size_t stride)
{
    float *images = conv_floats(samples * stride);
    for (size_t n = 0; n < samples; n++) {
        float *one = conv_random(pixels, channels, cstride, 1.0f, 0.0f);
        memset(images + n * stride, 0, stride * sizeof *images);
        memcpy(images + n * stride, one, pixels * cstride * sizeof *images);
        free(one);
    }
    return images;
}

static float *conv_weights(const struct dpn_conv *conv)
{
    size_t taps = conv->kernel_height * conv->kernel_width;
    const struct dpn_panel_rows rows = {taps, conv->in_channels, conv->in_channels};
    size_t n = taps * conv->in_channels * conv->out_channels;
    float *torch_order = conv_random(1, n, n, sqrtf(2.0f / (float)(taps * conv->in_channels)), 0.0f);
    float *weights = conv_floats(dpn_panel_elems(taps * conv->in_channels, conv->out_channels));
    dpn_panel_pack(&rows, conv->out_channels, torch_order, weights);
    free(torch_order);
    return weights;
}

static struct conv_data conv_open(const struct conv_case *c)
{
    struct conv_data d = {.conv = {
                              .samples = c->samples,
                              .in_channels = c->in,
                              .in_cstride = c->input ? c->in : conv_round16(c->in),
                              .in_height = c->height,
                              .in_width = c->width,
                              .out_channels = c->out,
                              .out_cstride = conv_round16(c->out),
                              .out_height = (c->height + 2 * c->pad - c->kernel_height) / c->stride + 1,
                              .out_width = (c->width + 2 * c->pad - c->kernel_width) / c->stride + 1,
                              .kernel_height = c->kernel_height,
                              .kernel_width = c->kernel_width,
                              .stride = c->stride,
                              .pad = c->pad,
                          }};
    struct dpn_conv *v = &d.conv;
    size_t in_pixels = v->in_height * v->in_width, out_pixels = v->out_height * v->out_width;
    v->in_stride = conv_round16(in_pixels * v->in_cstride);
    v->out_stride = out_pixels * v->out_cstride;
    d.x_floats = v->samples * v->in_stride;
    d.y_floats = v->samples * v->out_stride;
    d.w_floats = dpn_panel_elems(v->kernel_height * v->kernel_width * v->in_channels, v->out_channels);
    float **images[] = {&d.x, &d.x_z, &d.x_y};
    for (size_t i = 0; i < 3; i++)
        *images[i] = conv_images(v->samples, in_pixels, v->in_channels, v->in_cstride, v->in_stride);
    d.g = conv_images(v->samples, out_pixels, v->out_channels, v->out_cstride, v->out_stride);
    d.z = conv_images(v->samples, out_pixels, v->out_channels, v->out_cstride, v->out_stride);
    d.weights = conv_weights(v);
    float **results[] = {&d.dx, &d.dx_ref, &d.y, &d.y_ref, &d.dweights, &d.dweights_ref};
    size_t floats[] = {d.x_floats, d.x_floats, d.y_floats, d.y_floats, d.w_floats, d.w_floats};
    for (size_t i = 0; i < 6; i++) *results[i] = conv_floats(floats[i]);
    for (size_t i = 0; i < 5; i++)
        d.in[i] = conv_random(1, v->in_channels, conv_round16(v->in_channels), 0.3f, i == 0 ? 1.0f : 0.2f);
    for (size_t i = 0; i < 4; i++)
        d.out[i] = conv_random(1, v->out_channels, v->out_cstride, 0.3f, i == 0 ? 1.0f : 0.1f);
    return d;
}

static void conv_close(struct conv_data *d)
{
    float *all[] = {d->x,        d->x_z,          d->x_y,   d->dx,    d->dx_ref, d->weights,
                    d->dweights, d->dweights_ref, d->y,     d->y_ref, d->g,      d->z,
                    d->in[0],    d->in[1],        d->in[2], d->in[3], d->in[4],  d->out[0],
                    d->out[1],   d->out[2],       d->out[3]};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

/* REVERSED: items one by one, the last first. */
static void conv_run(const struct dpn_conv_algorithm *algorithm, struct dpn_conv_args *args, int reversed)
{
    float *scratch = conv_floats(algorithm->private_floats(args->conv, args->pass));
    args->shared = conv_floats(algorithm->shared_floats(args->conv, args->pass));
    for (int phase = 0; phase < DPN_CONV_MAX_PHASES; phase++) {
        size_t items = algorithm->items(args->conv, args->pass, phase);
        if (items == 0) break;
        if (!reversed) algorithm->run(args, phase, 0, items, scratch);
        for (size_t i = items; reversed && i-- > 0;) algorithm->run(args, phase, i, 1, scratch);
    }
    free(args->shared);
    free(scratch);
}

static double conv_error(const float *got, const float *want, size_t n)
{
    double difference = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        double d = (double)got[i] - (double)want[i];
        difference += d * d;
        size += (double)want[i] * (double)want[i];
    }
    return sqrt(difference / (size > 0 ? size : 1));
}

static void conv_expect(const char *what, const char *isa, const struct dpn_conv_algorithm *algorithm,
                        const struct dpn_conv *conv, int variant, double error, double bound)
{
    if (error <= bound) return;
    fail_msg("%s %s %s, variant %d: %g > %g for %zux%zux%zux%zu -> %zu, %zux%zu stride %zu pad %zu", isa,
             algorithm->name, what, variant, error, bound, conv->samples, conv->in_channels, conv->in_height,
             conv->in_width, conv->out_channels, conv->kernel_height, conv->kernel_width, conv->stride,
             conv->pad);
}

/* Largest difference of the combined moments or sums, relative to SIZE plus the value. */
static double conv_blocks_error(const struct dpn_conv *conv, enum dpn_conv_pass pass, size_t cstride,
                                const struct dpn_conv_algorithm *algorithm, const float *got,
                                const struct dpn_conv_algorithm *reference, const float *want, double size)
{
    void (*combine)(size_t, size_t, const float *, double *) = pass == DPN_CONV_FORWARD
                                                                   ? dpn_kernels_ref.moments_combine
                                                                   : dpn_kernels_ref.sums_combine;
    double *a = calloc(1 + 2 * cstride, sizeof *a), *b = calloc(1 + 2 * cstride, sizeof *b), worst = 0;
    assert_non_null(a);
    assert_non_null(b);
    combine(algorithm->blocks(conv, pass), cstride, got, a);
    combine(reference->blocks(conv, pass), cstride, want, b);
    assert_true(a[0] == b[0]);
    for (size_t i = 1; i <= 2 * cstride; i++) {
        double error = fabs(a[i] - b[i]) / (size + fabs(b[i]));
        if (!(error <= worst)) worst = error;
    }
    free(a);
    free(b);
    return worst;
}

static double conv_bound(const struct dpn_conv_algorithm *algorithm)
{
    return strcmp(algorithm->name, "winograd") ? conv_direct_bound : conv_winograd_bound;
}

/* Variants: plain; scale and shift; bias and ReLU; scale, shift, ReLU on both sides. */
static void conv_check_forward(const char *isa, const struct dpn_conv_algorithm *algorithm,
                               struct conv_data *d)
{
    const struct dpn_conv_algorithm *reference = dpn_kernels_ref.conv[0];
    const struct dpn_conv *conv = &d->conv;
    for (int v = 0; v < 4; v++) {
        size_t floats = dpn_block_floats(conv->out_cstride);
        float *got = conv_floats(algorithm->blocks(conv, DPN_CONV_FORWARD) * floats);
        float *want = conv_floats(reference->blocks(conv, DPN_CONV_FORWARD) * floats);
        struct dpn_conv_args args = {
            .conv = conv,
            .pass = DPN_CONV_FORWARD,
            .x = {d->x, v & 1 ? d->in[0] : NULL, v & 1 ? d->in[1] : NULL, v == 3},
            .weights = d->weights,
            .bias = v == 2 ? d->out[1] : NULL,
            .relu = v >= 2,
            .y = d->y_ref,
            .moments = want,
        };
        conv_run(reference, &args, 0);
        args.y = d->y;
        args.moments = got;
        conv_run(algorithm, &args, 0);
        conv_expect("forward", isa, algorithm, conv, v, conv_error(d->y, d->y_ref, d->y_floats),
                    conv_bound(algorithm));
        conv_expect("moments", isa, algorithm, conv, v,
                    conv_blocks_error(conv, DPN_CONV_FORWARD, conv->out_cstride, algorithm, got, reference,
                                      want, 1e-2),
                    conv_moments_bound);
        args.y = d->y_ref;
        conv_run(algorithm, &args, 1);
        assert_memory_equal(d->y, d->y_ref, d->y_floats * sizeof(float));
        free(got);
        free(want);
    }
}

/* Variants: added or not; no mask, none but sums, by y, by z; dy plain or through a norm. */
static void conv_check_data(const char *isa, const struct dpn_conv_algorithm *algorithm, struct conv_data *d)
{
    const struct dpn_conv_algorithm *reference = dpn_kernels_ref.conv[0];
    const struct dpn_conv *conv = &d->conv;
    for (int v = 0; v < 12; v++) {
        int kind = v / 2 % 4, through = v >= 6;
        size_t floats = dpn_block_floats(conv->in_cstride), bytes = d->x_floats * sizeof(float);
        float *got = conv_floats(algorithm->blocks(conv, DPN_CONV_DATA) * floats);
        float *want = conv_floats(reference->blocks(conv, DPN_CONV_DATA) * floats);
        struct dpn_mask_sums mask = {.y = kind == 2 ? d->x_y : NULL,
                                     .z = d->x_z,
                                     .scale = kind == 3 ? d->in[0] : NULL,
                                     .shift = kind == 3 ? d->in[1] : NULL,
                                     .mean = d->in[2],
                                     .sums = want};
        struct dpn_conv_args args = {
            .conv = conv,
            .pass = DPN_CONV_DATA,
            .weights = d->weights,
            .dy = {d->g, through ? d->z : NULL, d->out[0], d->out[1], d->out[2]},
            .dx = d->dx_ref,
            .accumulate = v & 1,
            .mask = kind ? &mask : NULL,
        };
        memcpy(d->dx_ref, d->x, bytes);
        conv_run(reference, &args, 0);
        mask.sums = got;
        args.dx = d->dx;
        memcpy(d->dx, d->x, bytes);
        conv_run(algorithm, &args, 0);
        conv_expect("data", isa, algorithm, conv, v, conv_error(d->dx, d->dx_ref, d->x_floats),
                    3 * conv_bound(algorithm));
        if (kind)
            conv_expect("sums", isa, algorithm, conv, v,
                        conv_blocks_error(conv, DPN_CONV_DATA, conv->in_cstride, algorithm, got, reference,
                                          want, sqrt((double)d->x_floats / (double)conv->in_cstride)),
                        conv_moments_bound);
        args.dx = d->dx_ref;
        memcpy(d->dx_ref, d->x, bytes);
        conv_run(algorithm, &args, 1);
        assert_memory_equal(d->dx, d->dx_ref, bytes);
        free(got);
        free(want);
    }
}

/* Variants: dy plain or through a norm; x plain or through a norm and ReLU. */
static void conv_check_weights(const char *isa, const struct dpn_conv_algorithm *algorithm,
                               struct conv_data *d)
{
    const struct dpn_conv *conv = &d->conv;
    for (int v = 0; v < 4; v++) {
        struct dpn_conv_args args = {
            .conv = conv,
            .pass = DPN_CONV_WEIGHTS,
            .x = {d->x, v & 2 ? d->in[0] : NULL, v & 2 ? d->in[1] : NULL, v & 2},
            .dy = {d->g, v & 1 ? d->z : NULL, d->out[0], d->out[1], d->out[2]},
            .dweights = d->dweights_ref,
        };
        conv_run(dpn_kernels_ref.conv[0], &args, 0);
        args.dweights = d->dweights;
        conv_run(algorithm, &args, 0);
        conv_expect("weights", isa, algorithm, conv, v, conv_error(d->dweights, d->dweights_ref, d->w_floats),
                    3 * conv_bound(algorithm));
        args.dweights = d->dweights_ref;
        conv_run(algorithm, &args, 1);
        assert_memory_equal(d->dweights, d->dweights_ref, d->w_floats * sizeof(float));
    }
}

static void conv_check_isa(const char *isa)
{
    const struct dpn_kernels *kernels;
    if (dpn_kernels_select(isa, &kernels) != DPN_OK) {
        print_message("this CPU cannot run %s\n", isa);
        skip();
    }
    for (size_t c = 0; c < sizeof conv_cases / sizeof *conv_cases; c++) {
        dpn_rng_init(&conv_rng, 1, DPN_RNG_TEST, c, 0);
        struct conv_data d = conv_open(&conv_cases[c]);
        for (size_t a = 0; kernels->conv[a]; a++) {
            const struct dpn_conv_algorithm *algorithm = kernels->conv[a];
            if (algorithm->serves(&d.conv, DPN_CONV_FORWARD)) conv_check_forward(isa, algorithm, &d);
            if (algorithm->serves(&d.conv, DPN_CONV_DATA) && !conv_cases[c].input)
                conv_check_data(isa, algorithm, &d);
            if (algorithm->serves(&d.conv, DPN_CONV_WEIGHTS)) conv_check_weights(isa, algorithm, &d);
        }
        conv_close(&d);
    }
}

static void conv_baseline(void **state)
{
    (void)state;
    conv_check_isa("baseline");
}

static void conv_avx2(void **state)
{
    (void)state;
    conv_check_isa("avx2");
}

static void conv_avx512(void **state)
{
    (void)state;
    conv_check_isa("avx512");
}

/* A tensor of mean 100 and deviation 1 must not lose its deviation. */
static void conv_moments_do_not_cancel(void **state)
{
    const struct conv_case c = {4, 16, 16, 16, 16, 3, 3, 1, 1, 0};
    const struct dpn_kernels *kernels;
    (void)state;
    assert_int_equal(dpn_kernels_select("auto", &kernels), DPN_OK);
    dpn_rng_init(&conv_rng, 2, DPN_RNG_TEST, 0, 0);
    struct conv_data d = conv_open(&c);
    for (size_t i = 0; i < 16; i++) d.out[1][i] = 100.0f;
    for (size_t a = 0; kernels->conv[a]; a++) {
        const struct dpn_conv_algorithm *algorithm = kernels->conv[a];
        float *blocks = conv_floats(algorithm->blocks(&d.conv, DPN_CONV_FORWARD) * dpn_block_floats(16));
        double shifted[33], plain[33];
        struct dpn_conv_args args = {.conv = &d.conv,
                                     .x = {.x = d.x},
                                     .weights = d.weights,
                                     .y = d.y,
                                     .moments = blocks};
        conv_run(algorithm, &args, 0);
        kernels->moments_combine(algorithm->blocks(&d.conv, DPN_CONV_FORWARD), 16, blocks, plain);
        args.bias = d.out[1];
        conv_run(algorithm, &args, 0);
        kernels->moments_combine(algorithm->blocks(&d.conv, DPN_CONV_FORWARD), 16, blocks, shifted);
        for (size_t i = 0; i < 16; i++) {
            assert_true(fabs(shifted[1 + i] - plain[1 + i] - 100) < 1e-4);
            assert_true(fabs(shifted[17 + i] / plain[17 + i] - 1) < 1e-4);
        }
        free(blocks);
    }
    conv_close(&d);
}

/* The choice: a function of the shape of a sample alone, and what --conv asks for. */
static void conv_choice(void **state)
{
    const struct dpn_kernels *kernels;
    (void)state;
    assert_int_equal(dpn_kernels_select("auto", &kernels), DPN_OK);
    struct dpn_kernels table = *kernels;
    struct dpn_conv conv = {.samples = 1,
                            .in_channels = 64,
                            .in_cstride = 64,
                            .in_height = 8,
                            .in_width = 8,
                            .in_stride = 4096,
                            .out_channels = 64,
                            .out_cstride = 64,
                            .out_height = 8,
                            .out_width = 8,
                            .out_stride = 4096,
                            .kernel_height = 3,
                            .kernel_width = 3,
                            .stride = 1,
                            .pad = 1};
    assert_string_equal(dpn_conv_choose(&table, &conv, DPN_CONV_FORWARD)->name, "winograd");
    table.conv_choice = DPN_CONV_DIRECT;
    assert_string_equal(dpn_conv_choose(&table, &conv, DPN_CONV_FORWARD)->name, "direct");
    conv.in_channels = 5;
    conv.in_cstride = 16;
    table.conv_choice = DPN_CONV_WINOGRAD;
    assert_string_equal(dpn_conv_choose(&table, &conv, DPN_CONV_FORWARD)->name, "winograd");
    table.conv_choice = DPN_CONV_AUTO;
    assert_string_equal(dpn_conv_choose(&table, &conv, DPN_CONV_FORWARD)->name, "direct");
    conv.kernel_height = conv.kernel_width = 5;
    conv.pad = 2;
    table.conv_choice = DPN_CONV_WINOGRAD;
    assert_string_equal(dpn_conv_choose(&table, &conv, DPN_CONV_DATA)->name, "direct");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conv_baseline), cmocka_unit_test(conv_avx2),
        cmocka_unit_test(conv_avx512),   cmocka_unit_test(conv_moments_do_not_cancel),
        cmocka_unit_test(conv_choice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
