/* The Winograd convolution's weights pass of every instruction set against the definition in double: sides,
 * channels and padding of every class, both forms on load, items handed out in any way, NaN. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/team.h"
#include "kernels/kernels.h"

enum { N_SETS = 3, GAP = 32 };

static const char *const ww_sets[N_SETS] = {"baseline", "avx2", "avx512"};
static const struct dpn_conv_algorithm *ww_algorithms[N_SETS]; /* NULL: this CPU cannot */
static const double ww_bound = 1e-5;                           /* relative Frobenius norm */

struct ww_shape {
    size_t samples, in, in_cstride, out, height, width, pad; /* IN_CSTRIDE 0: as conv.h says */
};
/* What is done on load. */
enum { WW_PLAIN = 0, WW_AFFINE = 1, WW_RELU = 2, WW_GRADIENT = 4, WW_FORMS = 8 };

struct ww_data {
    struct dpn_conv conv;
    int form;
    size_t x_floats, dy_floats, w_floats;
    float *x, *scale, *shift, *g, *z, *g_scale, *z_scale, *g_shift, *dweights;
    double *want;
};

static uint64_t ww_state = 88172645463325252u;

static double ww_uniform(void)
{
    ww_state ^= ww_state << 13;
    ww_state ^= ww_state >> 7;
    ww_state ^= ww_state << 17;
    return ((double)(ww_state >> 11) + 0.5) / 9007199254740992.0;
}

static float ww_normal(void)
{
    return (float)(sqrt(-2 * log(ww_uniform())) * cos(6.283185307179586 * ww_uniform()));
}

static size_t ww_round16(size_t n)
{
    return (n + 15) / 16 * 16;
}

/* Exactly COUNT floats, all NaN: a sanitizer sees any access past them, and a read before a write shows. */
static float *ww_floats(size_t count)
{
    void *at = NULL;
    const size_t bytes = (count ? count : 1) * sizeof(float);
    assert_int_equal(posix_memalign(&at, 64, bytes), 0);
    memset(at, 0xff, bytes);
    return at;
}

/* Samples with a gap of NaN between them. */
static float *ww_tensor(size_t samples, size_t pixels, size_t channels, size_t cstride, size_t stride)
{
    float *at = ww_floats((samples - 1) * stride + pixels * cstride);
    for (size_t n = 0; n < samples; n++)
        for (size_t i = 0; i < pixels * cstride; i++)
            at[n * stride + i] = i % cstride < channels ? ww_normal() : 0.0f;
    return at;
}

static float *ww_channels(size_t channels, size_t cstride, float size, float center)
{
    float *at = ww_floats(cstride);
    for (size_t c = 0; c < cstride; c++) at[c] = c < channels ? size * ww_normal() + center : 0.0f;
    return at;
}

static double ww_read_x(const struct ww_data *d, size_t at, size_t c)
{
    double x = (double)d->x[at + c];
    if (d->form & WW_AFFINE) x = x * (double)d->scale[c] + (double)d->shift[c];
    return d->form & WW_RELU && x < 0 ? 0 : x;
}

static double ww_read_dy(const struct ww_data *d, size_t at, size_t c)
{
    double dy = (double)d->g[at + c];
    if (d->form & WW_GRADIENT)
        dy = dy * (double)d->g_scale[c] + (double)d->z[at + c] * (double)d->z_scale[c] +
             (double)d->g_shift[c];
    return dy;
}

static size_t ww_weight(const struct dpn_conv *conv, size_t tap, size_t ci, size_t co)
{
    size_t offset, stride;
    dpn_panel(9 * conv->in_channels, conv->out_channels, co / DPN_PANEL_COLUMNS, &offset, &stride);
    return offset + (tap * conv->in_channels + ci) * stride + co % DPN_PANEL_COLUMNS;
}

/* One output pixel into all of tap TAP. */
static void ww_truth_pixel(struct ww_data *d, size_t tap, size_t x_at, const double *dy)
{
    const struct dpn_conv *conv = &d->conv;
    for (size_t ci = 0; ci < conv->in_channels; ci++) {
        const double x = ww_read_x(d, x_at, ci);
        for (size_t co = 0; co < conv->out_channels; co += DPN_PANEL_COLUMNS) {
            double *to = d->want + ww_weight(conv, tap, ci, co);
            const size_t left = conv->out_channels - co;
            for (size_t o = 0; o < left && o < DPN_PANEL_COLUMNS; o++) to[o] += x * dy[co + o];
        }
    }
}

static void ww_truth(struct ww_data *d)
{
    const struct dpn_conv *conv = &d->conv;
    double *dy = calloc(conv->out_channels, sizeof *dy);
    assert_non_null(dy);
    for (size_t n = 0; n < conv->samples; n++)
        for (size_t p = 0; p < conv->out_height * conv->out_width; p++) {
            for (size_t co = 0; co < conv->out_channels; co++)
                dy[co] = ww_read_dy(d, n * conv->out_stride + p * conv->out_cstride, co);
            for (size_t tap = 0; tap < 9; tap++) {
                const size_t y = p / conv->out_width + tap / 3 - conv->pad;
                const size_t x = p % conv->out_width + tap % 3 - conv->pad;
                if (y < conv->in_height && x < conv->in_width) /* else negative, or outside */
                    ww_truth_pixel(d, tap, n * conv->in_stride + (y * conv->in_width + x) * conv->in_cstride,
                                   dy);
            }
        }
    free(dy);
}

static struct ww_data ww_open(const struct ww_shape *shape, int form)
{
    struct ww_data d = {.form = form};
    struct dpn_conv *conv = &d.conv;
    *conv = (struct dpn_conv){
        .samples = shape->samples,
        .in_channels = shape->in,
        .in_cstride = shape->in_cstride ? shape->in_cstride : ww_round16(shape->in),
        .in_height = shape->height,
        .in_width = shape->width,
        .out_channels = shape->out,
        .out_cstride = ww_round16(shape->out),
        .out_height = shape->height + 2 * shape->pad - 2,
        .out_width = shape->width + 2 * shape->pad - 2,
        .kernel_height = 3,
        .kernel_width = 3,
        .stride = 1,
        .pad = shape->pad,
    };
    const size_t in_pixels = conv->in_height * conv->in_width,
                 out_pixels = conv->out_height * conv->out_width;
    conv->in_stride = in_pixels * conv->in_cstride + GAP;
    conv->out_stride = out_pixels * conv->out_cstride + GAP;
    d.w_floats = dpn_panel_elems(9 * conv->in_channels, conv->out_channels);
    d.x = ww_tensor(conv->samples, in_pixels, conv->in_channels, conv->in_cstride, conv->in_stride);
    d.g = ww_tensor(conv->samples, out_pixels, conv->out_channels, conv->out_cstride, conv->out_stride);
    d.z = ww_tensor(conv->samples, out_pixels, conv->out_channels, conv->out_cstride, conv->out_stride);
    d.scale = ww_channels(conv->in_channels, conv->in_cstride, 0.3f, 1.0f);
    d.shift = ww_channels(conv->in_channels, conv->in_cstride, 0.5f, 0.1f);
    d.g_scale = ww_channels(conv->out_channels, conv->out_cstride, 0.3f, 1.0f);
    d.z_scale = ww_channels(conv->out_channels, conv->out_cstride, 0.3f, 0.0f);
    d.g_shift = ww_channels(conv->out_channels, conv->out_cstride, 0.1f, 0.0f);
    d.dweights = ww_floats(d.w_floats);
    d.want = calloc(d.w_floats, sizeof *d.want);
    assert_non_null(d.want);
    return d;
}

static void ww_close(struct ww_data *d)
{
    float *all[] = {d->x, d->scale, d->shift, d->g, d->z, d->g_scale, d->z_scale, d->g_shift, d->dweights};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
    free(d->want);
}

static struct dpn_conv_args ww_args(const struct ww_data *d, float *dweights)
{
    struct dpn_conv_args args = {.conv = &d->conv,
                                 .pass = DPN_CONV_WEIGHTS,
                                 .x = {.x = d->x},
                                 .dy = {.g = d->g}};
    if (d->form & WW_AFFINE) {
        args.x.scale = d->scale;
        args.x.shift = d->shift;
        args.x.relu = (d->form & WW_RELU) != 0;
    }
    if (d->form & WW_GRADIENT) {
        args.dy.z = d->z;
        args.dy.g_scale = d->g_scale;
        args.dy.z_scale = d->z_scale;
        args.dy.shift = d->g_shift;
    }
    args.dweights = dweights;
    return args;
}

/* By a team of SIZE, its members one after another, the last first. SIZE 0: a member for every item. */
static void ww_run(const struct dpn_conv_algorithm *algorithm, const struct ww_data *d, size_t size,
                   float *dweights)
{
    struct dpn_conv_args args = ww_args(d, dweights);
    args.shared = ww_floats(algorithm->shared_floats(&d->conv, DPN_CONV_WEIGHTS));
    memset(dweights, 0xff, d->w_floats * sizeof *dweights);
    for (int phase = 0; phase < DPN_CONV_MAX_PHASES; phase++) {
        const size_t items = algorithm->items(&d->conv, DPN_CONV_WEIGHTS, phase),
                     members = size ? size : items;
        for (size_t m = members; items > 0 && m-- > 0;) {
            float *scratch = ww_floats(algorithm->private_floats(&d->conv, DPN_CONV_WEIGHTS));
            size_t first, count;
            dpn_split(items, members, m, &first, &count);
            if (count > 0) algorithm->run(&args, phase, first, count, scratch);
            free(scratch);
        }
    }
    free(args.shared);
}

static const char *ww_describe(const struct ww_data *d, size_t set)
{
    static char text[200];
    snprintf(text, sizeof text, "%s, form %d, %zu samples, %zu (%zu) -> %zu channels, %zux%zu, pad %zu",
             ww_sets[set], d->form, d->conv.samples, d->conv.in_channels, d->conv.in_cstride,
             d->conv.out_channels, d->conv.in_height, d->conv.in_width, d->conv.pad);
    return text;
}

/* The error of D->dweights; fails where padding is not 0 (a NaN is caught by the bound). */
static double ww_error(const struct ww_data *d, size_t set)
{
    double difference = 0, size = 0;
    for (size_t i = 0; i < d->w_floats; i++) {
        const double e = (double)d->dweights[i] - d->want[i];
        difference += e * e;
        size += d->want[i] * d->want[i];
    }
    for (size_t row = 0; row < 9 * d->conv.in_channels; row++)
        for (size_t co = d->conv.out_channels; co < d->conv.out_cstride; co++)
            if (d->dweights[ww_weight(&d->conv, 0, 0, co) +
                            row * (ww_weight(&d->conv, 0, 1, co) - ww_weight(&d->conv, 0, 0, co))] != 0.0f)
                fail_msg("padding is not 0: %s", ww_describe(d, set));
    return sqrt(difference / (size > 0 ? size : 1));
}

static double ww_check(const struct ww_shape *shape, int form)
{
    struct ww_data d = ww_open(shape, form);
    double worst = 0;
    ww_truth(&d);
    for (size_t s = 0; s < N_SETS; s++) {
        if (!ww_algorithms[s]) continue;
        assert_true(ww_algorithms[s]->serves(&d.conv, DPN_CONV_WEIGHTS));
        ww_run(ww_algorithms[s], &d, 1, d.dweights);
        const double error = ww_error(&d, s);
        if (!(error <= ww_bound)) fail_msg("error %g: %s", error, ww_describe(&d, s));
        if (error > worst) worst = error;
    }
    ww_close(&d);
    return worst;
}

static void test_sides(void **state)
{
    (void)state;
    static const size_t sides[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 32};
    enum { N_SIDES = sizeof sides / sizeof *sides };
    for (size_t h = 0; h < N_SIDES; h++)
        for (size_t w = 0; w < N_SIDES; w++)
            for (size_t pad = 0; pad <= 2; pad++) {
                if (sides[h] + 2 * pad < 3 || sides[w] + 2 * pad < 3) continue;
                const struct ww_shape shape = {1 + (h + w) % 5, 16, 0, 16, sides[h], sides[w], pad};
                ww_check(&shape, (int)((h + w + pad) % WW_FORMS) & ~WW_RELU);
            }
}

/* One block of input channels or several; panels that are full, narrow, or no multiple of 16; one part or
 * many; transformed input kept or not. */
static const struct ww_shape ww_shapes[] = {
    {5, 48, 0, 48, 7, 6, 1},     {2, 64, 0, 64, 9, 13, 1},  {3, 64, 0, 64, 32, 32, 1},
    {9, 16, 0, 16, 32, 32, 1},   {2, 80, 0, 64, 8, 8, 1},   {2, 64, 0, 80, 8, 8, 0},
    {1, 80, 0, 80, 13, 9, 2},    {3, 128, 0, 48, 5, 5, 1},  {2, 128, 0, 128, 8, 8, 1},
    {9, 128, 0, 128, 13, 13, 1}, {2, 256, 0, 256, 4, 4, 1}, {17, 128, 0, 256, 8, 8, 1},
    {65, 64, 0, 128, 4, 4, 1},   {33, 64, 0, 128, 4, 4, 1}, {3, 8, 0, 16, 6, 6, 1},
    {3, 5, 0, 20, 9, 7, 1},      {2, 40, 0, 64, 8, 8, 1},   {2, 40, 0, 70, 8, 8, 1},
    {2, 5, 48, 16, 6, 6, 1},     {2, 20, 80, 64, 6, 6, 1},  {2, 70, 0, 130, 5, 6, 1},
    {64, 16, 0, 5, 13, 13, 1},
};
enum { N_SHAPES = sizeof ww_shapes / sizeof *ww_shapes };

static void test_shapes(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_SHAPES; i++) {
        ww_check(&ww_shapes[i], WW_PLAIN);
        ww_check(&ww_shapes[i], WW_AFFINE | WW_RELU | WW_GRADIENT);
    }
}

static void test_forms(void **state)
{
    (void)state;
    static const struct ww_shape shape = {3, 48, 0, 80, 7, 10, 1};
    for (int form = 0; form < WW_FORMS; form++)
        if (!(form & WW_RELU) || form & WW_AFFINE) ww_check(&shape, form);
}

static void test_splits(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 2, 3, 5, 16};
    for (size_t i = 0; i < N_SHAPES; i++) {
        struct ww_data d = ww_open(&ww_shapes[i], WW_PLAIN);
        float *again = ww_floats(d.w_floats);
        for (size_t s = 0; s < N_SETS; s++) {
            if (!ww_algorithms[s]) continue;
            ww_run(ww_algorithms[s], &d, 1, d.dweights);
            for (size_t t = 0; t < sizeof sizes / sizeof *sizes; t++) {
                ww_run(ww_algorithms[s], &d, sizes[t], again);
                if (memcmp(again, d.dweights, d.w_floats * sizeof *again))
                    fail_msg("a team of %zu gives other bits: %s", sizes[t], ww_describe(&d, s));
            }
        }
        free(again);
        ww_close(&d);
    }
}

/* A team's share is at least a quarter wherever there are tiles enough. */
static void test_items(void **state)
{
    (void)state;
    static const struct ww_shape shapes[] = {{8, 64, 0, 64, 32, 32, 1},
                                             {64, 128, 0, 128, 16, 16, 1},
                                             {64, 256, 0, 256, 8, 8, 1},
                                             {64, 512, 0, 512, 4, 4, 1}};
    for (size_t i = 0; i < 4; i++) {
        struct ww_data d = ww_open(&shapes[i], WW_PLAIN);
        for (size_t s = 0; s < N_SETS; s++)
            if (ww_algorithms[s]) assert_true(ww_algorithms[s]->items(&d.conv, DPN_CONV_WEIGHTS, 0) >= 4);
        ww_close(&d);
    }
}

/* A NaN of dY reaches every weight that it is a term of, and no other output channel. */
static void ww_check_nan_dy(const struct ww_shape *shape, size_t pixel, size_t channel, int in_z)
{
    struct ww_data d = ww_open(shape, in_z ? WW_GRADIENT : WW_PLAIN);
    (in_z ? d.z : d.g)[(d.conv.samples - 1) * d.conv.out_stride + pixel * d.conv.out_cstride + channel] = NAN;
    ww_truth(&d);
    for (size_t s = 0; s < N_SETS; s++) {
        if (!ww_algorithms[s]) continue;
        ww_run(ww_algorithms[s], &d, 1, d.dweights);
        for (size_t tap = 0; tap < 9; tap++)
            for (size_t ci = 0; ci < d.conv.in_channels; ci++)
                for (size_t co = 0; co < d.conv.out_cstride; co++) {
                    const size_t at = ww_weight(&d.conv, tap, ci, co);
                    if (isnan(d.want[at]) ? !isnan(d.dweights[at]) : co != channel && isnan(d.dweights[at]))
                        fail_msg("NaN of channel %zu, weight %zu of %zu to %zu: %s", channel, tap, ci, co,
                                 ww_describe(&d, s));
                }
    }
    ww_close(&d);
}

static void test_nan(void **state)
{
    (void)state;
    static const struct ww_shape narrow = {2, 16, 0, 20, 6, 7, 1}, wide = {3, 64, 0, 64, 32, 32, 1};
    for (size_t pixel = 0; pixel < 42; pixel++) ww_check_nan_dy(&narrow, pixel, pixel % 20, pixel % 2 != 0);
    ww_check_nan_dy(&wide, 517, 63, 0);
    ww_check_nan_dy(&wide, 1023, 0, 1);
}

/* A NaN of x reaches its row, and leaves padding columns 0. */
static void test_nan_of_x(void **state)
{
    (void)state;
    static const struct ww_shape shape = {2, 16, 0, 20, 6, 7, 1};
    struct ww_data d = ww_open(&shape, WW_PLAIN);
    d.x[d.conv.in_stride + 15 * d.conv.in_cstride + 3] = NAN;
    for (size_t s = 0; s < N_SETS; s++) {
        if (!ww_algorithms[s]) continue;
        ww_run(ww_algorithms[s], &d, 1, d.dweights);
        for (size_t tap = 0; tap < 9; tap++)
            for (size_t co = 0; co < 32; co++) {
                const float reached = d.dweights[ww_weight(&d.conv, tap, 3, co)];
                assert_true(co < 20 ? isnan(reached) : reached == 0.0f);
                assert_false(isnan(d.dweights[ww_weight(&d.conv, tap, 4, co)]));
            }
    }
    ww_close(&d);
}

static int ww_setup(void **state)
{
    (void)state;
    for (size_t s = 0; s < N_SETS; s++) {
        const struct dpn_kernels *kernels;
        if (dpn_kernels_select(ww_sets[s], &kernels) != DPN_OK) {
            print_message("SKIP %s: this CPU cannot run it, or it was not built\n", ww_sets[s]);
            continue;
        }
        for (size_t i = 0; kernels->conv[i]; i++)
            if (!strcmp(kernels->conv[i]->name, "winograd")) ww_algorithms[s] = kernels->conv[i];
        assert_non_null(ww_algorithms[s]);
    }
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sides),    cmocka_unit_test(test_shapes), cmocka_unit_test(test_forms),
        cmocka_unit_test(test_splits),   cmocka_unit_test(test_items),  cmocka_unit_test(test_nan),
        cmocka_unit_test(test_nan_of_x),
    };
    return cmocka_run_group_tests_name("kernels/winograd_weights", tests, ww_setup, NULL);
}
