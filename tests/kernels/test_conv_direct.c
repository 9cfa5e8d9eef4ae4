/* The direct convolution of every instruction set against the definition in double: all passes, shapes and
 * fused parts; the same bits however the items are handed out and whatever the scratch held; nothing
 * written but what is due. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/kernels/conv_truth.h"

enum { N_ISAS = 4, GUARD = 64 };
static const double most_error = 2e-6;   /* relative Frobenius */
static const double most_products = 6e6; /* of one sample size chosen at random: keeps the truth quick */

static const char *const isa_names[N_ISAS] = {"ref", "baseline", "avx2", "avx512"};
static const struct dpn_conv_algorithm *algorithms[N_ISAS]; /* NULL: this CPU cannot */

/* ---- running a pass ---- */

/* What a pass wrote: its result and its blocks, GUARD floats after each that must stay. */
struct result {
    size_t floats, block_floats;
    float *out, *blocks;
};

static struct dpn_conv_args make_args(const struct tensors *t, enum dpn_conv_pass pass,
                                      const struct result *result, struct dpn_mask_sums *mask)
{
    const struct options *o = &t->options;
    struct dpn_conv_args args = {.conv = &t->conv, .pass = pass, .weights = t->weights};
    args.x = (struct dpn_source){.x = t->x, .relu = o->source_relu};
    if (o->affine) {
        args.x.scale = t->scale;
        args.x.shift = t->shift;
    }
    args.dy = (struct dpn_gradient){.g = t->g};
    if (o->gradient) args.dy = (struct dpn_gradient){t->g, t->z, t->g_scale, t->z_scale, t->g_shift};
    if (pass == DPN_CONV_FORWARD) {
        args.bias = o->bias ? t->bias : NULL;
        args.relu = o->relu;
        args.y = result->out;
        args.moments = o->moments ? result->blocks : NULL;
    } else if (pass == DPN_CONV_DATA) {
        args.dx = result->out;
        args.accumulate = o->accumulate;
        *mask = (struct dpn_mask_sums){.z = t->mask_z, .mean = t->mask_mean, .sums = result->blocks};
        if (o->mask == MASK_BY_Y) mask->y = t->mask_y;
        if (o->mask == MASK_BY_Z) {
            mask->scale = t->mask_scale;
            mask->shift = t->mask_shift;
        }
        args.mask = o->mask != MASK_NONE ? mask : NULL;
    } else {
        args.dweights = result->out;
    }
    return args;
}

/* Runs PASS; with BACKWARDS item by item, the last first. Memory that the algorithm may not read holds
 * BYTE. */
static struct result run_pass(const struct dpn_conv_algorithm *algorithm, const struct tensors *t,
                              enum dpn_conv_pass pass, int backwards, int byte)
{
    const struct dpn_conv *conv = &t->conv;
    const size_t cstride = pass == DPN_CONV_FORWARD ? conv->out_cstride : conv->in_cstride;
    const size_t private_floats = algorithm->private_floats(conv, pass);
    const size_t shared_floats = algorithm->shared_floats(conv, pass);
    struct result result = {.block_floats = algorithm->blocks(conv, pass) * dpn_block_floats(cstride)};
    result.floats = pass == DPN_CONV_FORWARD ? t->out_floats
                    : pass == DPN_CONV_DATA  ? t->in_floats
                                             : t->weight_floats;
    assert_true(algorithm->serves(conv, pass));
    assert_int_equal(private_floats % 16, 0);
    result.out = floats(result.floats + GUARD);
    result.blocks = floats(result.block_floats + GUARD);
    for (size_t i = 0; i < result.floats + GUARD; i++) result.out[i] = 12345.0f;
    for (size_t i = 0; i < result.block_floats + GUARD; i++) result.blocks[i] = 12345.0f;
    if (pass == DPN_CONV_DATA && t->options.accumulate)
        memcpy(result.out, t->before, t->in_floats * sizeof(float));

    float *scratch = floats(private_floats), *shared = floats(shared_floats);
    memset(shared, byte, shared_floats * sizeof(float));
    struct dpn_mask_sums mask;
    struct dpn_conv_args args = make_args(t, pass, &result, &mask);
    args.shared = shared;
    for (int phase = 0; phase < DPN_CONV_MAX_PHASES; phase++) {
        const size_t items = algorithm->items(conv, pass, phase);
        if (items == 0) break;
        memset(scratch, byte, private_floats * sizeof(float));
        if (!backwards) algorithm->run(&args, phase, 0, items, scratch);
        for (size_t item = items; backwards && item-- > 0;) algorithm->run(&args, phase, item, 1, scratch);
    }
    free(scratch);
    free(shared);
    return result;
}

/* ---- what must hold ---- */

/* FLOATS of pixels of CSTRIDE floats, samples STRIDE apart: close to TRUTH, 0 in padding channels,
 * untouched between samples and after the end. */
static void check_tensor(const struct tensors *t, const char *isa, const char *what,
                         const struct result *result, const double *truth, size_t channels, size_t cstride,
                         size_t pixels, size_t stride)
{
    double wrong = 0, all = 0;
    const float *gap = strcmp(what, "dx") == 0 && t->options.accumulate ? t->before : NULL;
    for (size_t i = 0; i < result->floats + GUARD; i++) {
        const size_t in = i % stride;
        const int between = i >= result->floats || in >= pixels * cstride;
        const double value = (double)result->out[i];
        if (between) {
            if (gap != NULL && i < result->floats) assert_true(isnan(value));
            else if (value != 12345.0)
                fail_msg("%s %s: written past the end at %zu: %s", isa, what, i, describe(t));
        } else if (in % cstride >= channels) {
            if (value != 0) fail_msg("%s %s: padding at %zu is %g: %s", isa, what, i, value, describe(t));
        } else {
            wrong += (value - truth[i]) * (value - truth[i]);
            all += truth[i] * truth[i];
        }
    }
    if (!(sqrt(wrong) <= most_error * sqrt(all)))
        fail_msg("%s %s: error %.3g: %s", isa, what, sqrt(wrong / all), describe(t));
}

static void check_weights(const struct tensors *t, const char *isa, const struct result *result)
{
    double wrong = 0, all = 0;
    for (size_t i = 0; i < result->floats; i++) {
        const double value = (double)result->out[i];
        wrong += (value - t->dweights[i]) * (value - t->dweights[i]); /* padding: the truth is 0 */
        all += t->dweights[i] * t->dweights[i];
    }
    const size_t rows = t->conv.kernel_height * t->conv.kernel_width * t->conv.in_channels;
    for (size_t co = t->conv.out_channels; co < t->conv.out_cstride; co++) {
        size_t offset, stride;
        dpn_panel(rows, t->conv.out_channels, co / DPN_PANEL_COLUMNS, &offset, &stride);
        for (size_t r = 0; r < rows; r++)
            if (result->out[offset + r * stride + co % DPN_PANEL_COLUMNS] != 0)
                fail_msg("%s dweights: padding: %s", isa, describe(t));
    }
    for (size_t i = 0; i < GUARD; i++) assert_true(result->out[result->floats + i] == 12345.0f);
    if (!(sqrt(wrong) <= most_error * sqrt(all)))
        fail_msg("%s dweights: error %.3g: %s", isa, sqrt(wrong / all), describe(t));
}

static void check_guard(const struct tensors *t, const char *isa, const struct result *result, int used)
{
    for (size_t i = used ? result->block_floats : 0; i < result->block_floats + GUARD; i++)
        if (result->blocks[i] != 12345.0f) fail_msg("%s: blocks written at %zu: %s", isa, i, describe(t));
}

/* Blocks joined by Chan's rule are the mean and deviations of y as written. */
static void check_moments(const struct tensors *t, const char *isa, const struct result *result)
{
    const struct dpn_conv *conv = &t->conv;
    const size_t cstride = conv->out_cstride, block = dpn_block_floats(cstride), pixels = t->out_pixels;
    for (size_t c = 0; c < cstride; c++) {
        double count = 0, mean = 0, squares = 0, sum = 0, largest = 0, deviation = 0;
        for (size_t b = 0; b < result->block_floats; b += block) {
            const double here = (double)result->blocks[b + 2 * cstride];
            const double delta = (double)result->blocks[b + c] - mean, joined = count + here;
            mean += delta * here / joined;
            squares += (double)result->blocks[b + cstride + c] + delta * delta * count * here / joined;
            count = joined;
        }
        for (size_t i = 0; i < conv->samples * pixels; i++) {
            const double y = (double)result->out[i / pixels * conv->out_stride + i % pixels * cstride + c];
            sum += y;
            largest = fmax(largest, fabs(y));
        }
        for (size_t i = 0; i < conv->samples * pixels; i++) {
            const double y = (double)result->out[i / pixels * conv->out_stride + i % pixels * cstride + c] -
                             sum / count;
            deviation += y * y;
        }
        if (count != (double)(conv->samples * pixels) || !(fabs(mean - sum / count) <= 1e-5 * largest) ||
            !(fabs(squares - deviation) <= 1e-6 * largest * largest * count))
            fail_msg("%s moments of channel %zu: %g %g %g, not %g %g: %s", isa, c, count, mean, squares,
                     sum / count, deviation, describe(t));
    }
}

static void check_sums(const struct tensors *t, const char *isa, const struct result *result)
{
    const struct dpn_conv *conv = &t->conv;
    const size_t cstride = conv->in_cstride, block = dpn_block_floats(cstride), pixels = t->in_pixels;
    for (size_t c = 0; c < conv->in_channels; c++) {
        double count = 0, sums[2] = {0}, want[2] = {0}, size[2] = {0};
        for (size_t b = 0; b < result->block_floats; b += block) {
            count += (double)result->blocks[b + 2 * cstride];
            sums[0] += (double)result->blocks[b + c];
            sums[1] += (double)result->blocks[b + cstride + c];
        }
        for (size_t i = 0; i < conv->samples * pixels; i++) {
            const size_t at = i / pixels * conv->in_stride + i % pixels * cstride + c;
            const double d = (double)result->out[at],
                         product = d * ((double)t->mask_z[at] - (double)t->mask_mean[c]);
            want[0] += d;
            want[1] += product;
            size[0] += fabs(d);
            size[1] += fabs(product);
        }
        for (int s = 0; s < 2; s++)
            if (count != (double)(conv->samples * pixels) ||
                !(fabs(sums[s] - want[s]) <= 1e-5 * size[s] + 1e-9))
                fail_msg("%s sums of channel %zu: %g %g, not %g: %s", isa, c, count, sums[s], want[s],
                         describe(t));
    }
}

static void check_pass(const struct tensors *t, int isa, enum dpn_conv_pass pass)
{
    const struct dpn_conv *conv = &t->conv;
    const char *name = isa_names[isa];
    struct result result = run_pass(algorithms[isa], t, pass, 0, 0xff);
    struct result other = run_pass(algorithms[isa], t, pass, 1, 0x3f);
    if (memcmp(result.out, other.out, result.floats * sizeof(float)) != 0)
        fail_msg("%s pass %d: other bits item by item: %s", name, (int)pass, describe(t));
    const int blocks = pass == DPN_CONV_FORWARD ? t->options.moments
                                                : pass == DPN_CONV_DATA && t->options.mask;
    for (size_t i = 0; blocks && i < result.block_floats; i++) {
        const size_t cstride = pass == DPN_CONV_FORWARD ? conv->out_cstride : conv->in_cstride;
        if (i % dpn_block_floats(cstride) <= 2 * cstride && /* what follows the count is not used */
            memcmp(&result.blocks[i], &other.blocks[i], sizeof(float)) != 0)
            fail_msg("%s pass %d: other blocks item by item: %s", name, (int)pass, describe(t));
    }
    check_guard(t, name, &result, blocks);
    if (pass == DPN_CONV_FORWARD) {
        check_tensor(t, name, "y", &result, t->y, conv->out_channels, conv->out_cstride, t->out_pixels,
                     conv->out_stride);
        if (blocks) check_moments(t, name, &result);
    } else if (pass == DPN_CONV_DATA) {
        check_tensor(t, name, "dx", &result, t->dx, conv->in_channels, conv->in_cstride, t->in_pixels,
                     conv->in_stride);
        if (blocks) check_sums(t, name, &result);
    } else {
        check_weights(t, name, &result);
    }
    free(result.out);
    free(result.blocks);
    free(other.out);
    free(other.blocks);
}

static void check_conv(struct dpn_conv conv, struct options options)
{
    if (conv.in_cstride % 16 != 0) options.mask = MASK_NONE; /* nothing lies before a model's input */
    struct tensors t = make_tensors(conv, options);
    find_truth(&t);
    for (int isa = 0; isa < N_ISAS; isa++)
        for (int pass = DPN_CONV_FORWARD; algorithms[isa] != NULL && pass <= DPN_CONV_WEIGHTS; pass++)
            check_pass(&t, isa, (enum dpn_conv_pass)pass);
    free_tensors(&t);
}

/* ---- tests ---- */

static const size_t kernels[][2] = {{1, 1}, {3, 3}, {5, 5}, {7, 7}, {2, 3}, {1, 3}};
static const size_t channels[] = {1, 3, 5, 6, 8, 16, 40, 64, 80, 130};
enum { N_KERNELS = 6, N_CHANNELS = 10 };

static struct options random_options(void)
{
    return (struct options){
        .affine = (int)random_below(2),
        .source_relu = (int)random_below(2),
        .gradient = (int)random_below(2),
        .bias = (int)random_below(2),
        .relu = (int)random_below(2),
        .moments = (int)random_below(2),
        .accumulate = (int)random_below(2),
        .mask = (int)random_below(N_MASKS),
        .gap = random_below(4) ? 0 : 16 * (1 + random_below(3)),
    };
}

/* A random convolution with this kernel, or 0 samples if none fits. */
static struct dpn_conv random_conv(const size_t *kernel, size_t stride, size_t pad, size_t gap)
{
    for (int tries = 0; tries < 100; tries++) {
        const size_t samples = random_below(3) ? 1 + random_below(4) : 1 + random_below(20);
        const size_t height = 1 + random_below(9), width = 1 + random_below(9);
        const size_t ci = channels[random_below(N_CHANNELS)], co = channels[random_below(N_CHANNELS)];
        if (height + 2 * pad < kernel[0] || width + 2 * pad < kernel[1]) continue;
        struct dpn_conv conv = make_conv(samples, ci, co, height, width, kernel[0], kernel[1], stride, pad,
                                         gap);
        const double products = (double)(samples * conv.out_height * conv.out_width) *
                                (double)(kernel[0] * kernel[1] * ci * co);
        if (products > most_products) continue;
        if (random_below(6) == 0) make_input(&conv);
        return conv;
    }
    return (struct dpn_conv){0};
}

static void test_every_kernel_stride_and_pad(void **state)
{
    (void)state;
    size_t checked = 0;
    for (size_t k = 0; k < N_KERNELS; k++) {
        for (size_t stride = 1; stride <= 3; stride++) {
            for (size_t pad = 0; pad <= 3; pad++) {
                for (int round = 0; round < 4; round++) {
                    const struct options options = random_options();
                    const struct dpn_conv conv = random_conv(kernels[k], stride, pad, options.gap);
                    if (conv.samples > 0) check_conv(conv, options);
                    checked += conv.samples > 0;
                }
            }
        }
    }
    assert_true(checked > 200);
}

static void test_every_pair_of_channels(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_CHANNELS; i++) {
        for (size_t o = 0; o < N_CHANNELS; o++) {
            struct options options = random_options();
            const size_t stride = 1 + random_below(2), size = 2 + random_below(3);
            check_conv(make_conv(3, channels[i], channels[o], size, 3, 3, 3, stride, 1, options.gap),
                       options);
        }
    }
}

/* Shapes that take each way through the passes: staged or not, few channels, in place, several bands and
 * parts. */
static struct dpn_conv way(size_t index)
{
    static const size_t shapes[][9] = {
        /* samples, in, out, height, width, kernel, kernel, stride, pad */
        {5, 64, 80, 6, 5, 3, 3, 1, 1},  {5, 64, 64, 8, 8, 3, 3, 2, 1},  {3, 6, 16, 14, 14, 5, 5, 1, 0},
        {2, 1, 6, 28, 28, 5, 5, 1, 2},  {7, 40, 130, 5, 4, 1, 1, 1, 0}, {4, 64, 40, 9, 7, 1, 1, 2, 0},
        {30, 16, 16, 8, 8, 3, 3, 1, 1}, {2, 130, 6, 6, 9, 2, 3, 3, 2},  {40, 3, 64, 9, 9, 3, 3, 1, 1},
        {1, 8, 8, 1, 300, 1, 3, 1, 1},  {2, 1, 32, 9, 21, 3, 3, 1, 1},  {3, 1, 12, 8, 17, 3, 3, 1, 1},
        {2, 5, 48, 11, 23, 3, 4, 2, 1}, {3, 1, 7, 9, 35, 3, 3, 1, 1},   {2, 1, 8, 10, 66, 2, 5, 1, 2},
    };
    if (index >= sizeof shapes / sizeof *shapes) return (struct dpn_conv){0};
    const size_t *s = shapes[index];
    return make_conv(s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7], s[8], 0);
}

static void test_every_option_alone_and_all_together(void **state)
{
    (void)state;
    static const struct options alone[] = {
        {0},
        {.affine = 1},
        {.source_relu = 1},
        {.affine = 1, .source_relu = 1},
        {.gradient = 1},
        {.bias = 1},
        {.relu = 1},
        {.moments = 1},
        {.accumulate = 1},
        {.mask = MASK_BY_Y},
        {.mask = MASK_BY_Z},
        {.mask = MASK_SUMS_ONLY},
        {.affine = 1,
         .source_relu = 1,
         .gradient = 1,
         .bias = 1,
         .relu = 1,
         .moments = 1,
         .accumulate = 1,
         .mask = MASK_BY_Z},
    };
    for (size_t w = 0; way(w).samples > 0; w++)
        for (size_t o = 0; o < sizeof alone / sizeof *alone; o++) check_conv(way(w), alone[o]);
}

static void test_model_input(void **state)
{
    (void)state;
    for (size_t c = 1; c <= 5; c += 2) {
        for (int affine = 0; affine < 2; affine++) {
            struct dpn_conv conv = make_conv(3, c, 6, 7, 11, 5, 5, 1, 2, 0);
            make_input(&conv);
            check_conv(conv, (struct options){.affine = affine, .bias = 1, .moments = 1});
        }
    }
}

/* It shows in all elements that it has a part in and, but for the weights, where it meets padding pixels'
 * zeros, in no others. */
static void check_not_finite(struct dpn_conv conv, float bad)
{
    struct tensors t = make_tensors(conv, (struct options){.relu = 1});
    const size_t in = conv.in_height * conv.in_width / 2 * conv.in_cstride;
    const size_t out = conv.out_height * conv.out_width / 2 * conv.out_cstride;
    size_t hit = 0;
    for (size_t i = 0; i < t.weight_floats; i++) t.weights[i] = fabsf(t.weights[i]);
    t.x[in] = bad;
    t.g[out] = bad;
    find_truth(&t);
    for (int isa = 0; isa < N_ISAS; isa++) {
        for (int pass = DPN_CONV_FORWARD; algorithms[isa] != NULL && pass <= DPN_CONV_WEIGHTS; pass++) {
            struct result r = run_pass(algorithms[isa], &t, (enum dpn_conv_pass)pass, 0, 0xff);
            const double *truth = pass == DPN_CONV_FORWARD ? t.y : pass == DPN_CONV_DATA ? t.dx : t.dweights;
            for (size_t i = 0; i < r.floats; i++) {
                hit += !isfinite(truth[i]);
                if (isfinite(truth[i]) && pass == DPN_CONV_WEIGHTS && truth[i] != 0) continue;
                if (!isfinite(truth[i]) != !isfinite(r.out[i]))
                    fail_msg("%s pass %d: %g, not %g, at %zu: %s", isa_names[isa], pass, (double)r.out[i],
                             truth[i], i, describe(&t));
            }
            free(r.out);
            free(r.blocks);
        }
    }
    assert_true(hit > 0);
    free_tensors(&t);
}

static void test_not_finite_passes_through(void **state)
{
    (void)state;
    for (size_t w = 0; way(w).samples > 0; w++) {
        check_not_finite(way(w), NAN);
        check_not_finite(way(w), INFINITY);
    }
}

/* Padding pixels are 0 although the transform would make something of them, and dy's as well. */
static void test_padding_is_zero_after_the_transform(void **state)
{
    (void)state;
    const struct options options = {.affine = 1, .gradient = 1};
    for (size_t c = 6; c <= 64; c += 58) {
        struct tensors t = make_tensors(make_conv(1, c, c, 2, 2, 3, 3, 1, 1, 0), options);
        for (size_t i = 0; i < c; i++) t.shift[i] = t.g_shift[i] = 1000.0f;
        find_truth(&t);
        for (int isa = 0; isa < N_ISAS; isa++)
            for (int pass = DPN_CONV_FORWARD; algorithms[isa] != NULL && pass <= DPN_CONV_WEIGHTS; pass++)
                check_pass(&t, isa, (enum dpn_conv_pass)pass);
        free_tensors(&t);
    }
}

static int setup(void **state)
{
    (void)state;
    for (int isa = 0; isa < N_ISAS; isa++) {
        const struct dpn_kernels *table;
        if (dpn_kernels_select(isa_names[isa], &table) != DPN_OK) {
            print_message("SKIP %s: this CPU cannot run it\n", isa_names[isa]);
            continue;
        }
        const struct dpn_conv_algorithm *const *list = table->conv;
        while (list[1] != NULL) list++; /* the last one serves everything */
        algorithms[isa] = *list;
    }
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_kernel_stride_and_pad),
        cmocka_unit_test(test_every_pair_of_channels),
        cmocka_unit_test(test_every_option_alone_and_all_together),
        cmocka_unit_test(test_model_input),
        cmocka_unit_test(test_not_finite_passes_through),
        cmocka_unit_test(test_padding_is_zero_after_the_transform),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
