/* Direct convolution of every shape as matrix products over packed patches (implicit GEMM), and its
 * forward pass.
 *
 * Forward: an item is a band of output pixels. Its patches of x are packed block by block into private
 * scratch, the batch norm and ReLU before done on the way, and multiplied with the weights, which are a
 * packed B as they lie; bias, ReLU, moments and maximum pooling follow while the band is in cache. A 1x1
 * kernel of stride 1 multiplies x where it lies. Data and weights: conv_direct_data.c, conv_direct_weights.c.
 *
 * Cost: the flops of the definition, plus one copy of a patch an output pixel. Every element of y is one
 * chain over the kernel's taps and channels, in the order of the weights' rows; cuts come from the shape
 * alone.
 *
 * Limits: none on the shape. A row of one sample is the least that an item can be.
 */
#include "kernels/cpu/conv_direct.h"

struct direct_bands DPN_ISA_SYMBOL(direct_bands)(size_t samples, size_t height, size_t width, int dense,
                                                 size_t target)
{
    const size_t pixels = height * width;
    struct direct_bands bands = {.per_sample = 1, .samples = 1, .rows = height};
    if (pixels >= target || !dense) {
        const size_t cuts = (pixels + target / 2) / target;
        bands.rows = direct_cuts(height, direct_min(height, direct_max(1, cuts)));
        bands.per_sample = direct_cuts(height, bands.rows);
        bands.count = samples * bands.per_sample;
    } else {
        bands.count = direct_cuts(samples, (target + pixels / 2) / pixels);
        bands.samples = direct_cuts(samples, bands.count);
        bands.count = direct_cuts(samples, bands.samples);
    }
    return bands;
}

struct direct_band DPN_ISA_SYMBOL(direct_band)(const struct direct_bands *bands, size_t samples,
                                               size_t height, size_t index)
{
    const size_t sample = index / bands->per_sample * bands->samples;
    const size_t row = index % bands->per_sample * bands->rows;
    return (struct direct_band){
        .sample = sample,
        .samples = direct_min(bands->samples, samples - sample),
        .row = row,
        .rows = direct_min(bands->rows, height - row),
    };
}

static struct direct_map direct_x(const struct dpn_conv *conv, const struct dpn_source *x)
{
    struct direct_map map = {
        .kind = x->relu ? DIRECT_RELU : DIRECT_PLAIN,
        .x = x->x,
        .scale = x->scale,
        .shift = x->shift,
        .channels = conv->in_channels,
        .cstride = conv->in_cstride,
        .height = conv->in_height,
        .width = conv->in_width,
        .stride = conv->in_stride,
    };
    if (x->scale != NULL) map.kind = x->relu ? DIRECT_AFFINE_RELU : DIRECT_AFFINE;
    return map;
}

struct direct_map DPN_ISA_SYMBOL(direct_dy)(const struct dpn_conv *conv, const struct dpn_gradient *dy)
{
    return (struct direct_map){
        .kind = dy->z != NULL ? DIRECT_GRADIENT : DIRECT_PLAIN,
        .x = dy->g,
        .z = dy->z,
        .scale = dy->g_scale,
        .z_scale = dy->z_scale,
        .shift = dy->shift,
        .channels = conv->out_channels,
        .cstride = conv->out_cstride,
        .height = conv->out_height,
        .width = conv->out_width,
        .stride = conv->out_stride,
    };
}

struct direct_gather DPN_ISA_SYMBOL(direct_x_gather)(const struct dpn_conv *conv, const struct dpn_source *x,
                                                     const struct direct_band *band)
{
    return (struct direct_gather){
        .map = direct_x(conv, x),
        .sample = band->sample,
        .samples = band->samples,
        .rows = band->rows,
        .columns = conv->out_width,
        .step = conv->stride,
        .ny = conv->kernel_height,
        .nx = conv->kernel_width,
        .top = (long)(band->row * conv->stride) - (long)conv->pad,
        .left = -(long)conv->pad,
    };
}

/* ---- forward ---- */

struct direct_plan {
    size_t k, block; /* floats of a patch; patches at once */
    size_t unit;     /* rows of pixels that stay together */
    size_t pixels;   /* of a band */
    int windows;
    struct direct_bands bands; /* of units */
};

static struct direct_plan direct_forward_plan(const struct dpn_conv *conv)
{
    const size_t k = conv->kernel_height * conv->kernel_width * conv->in_channels;
    const size_t pixels = conv->out_height * conv->out_width;
    const size_t target = direct_max(direct_rows_at_once(k), direct_staged_band(conv->in_channels));
    struct direct_plan plan = {.k = k, .windows = direct_windows(conv), .unit = conv->pool ? conv->pool : 1};
    const int dense = conv->pool || conv->out_stride == pixels * conv->out_cstride;
    plan.bands = DPN_ISA_SYMBOL(direct_bands)(conv->samples, conv->out_height / plan.unit,
                                              conv->out_width * plan.unit, dense, target);
    plan.pixels = plan.bands.samples * plan.bands.rows * plan.unit * conv->out_width;
    plan.block = plan.windows ? plan.pixels : direct_block(plan.pixels, k);
    return plan;
}

static struct direct_band direct_forward_at(const struct dpn_conv *conv, const struct direct_plan *plan,
                                            size_t item)
{
    struct direct_band band = DPN_ISA_SYMBOL(direct_band)(&plan->bands, conv->samples,
                                                          conv->out_height / plan->unit, item);
    band.row *= plan->unit;
    band.rows *= plan->unit;
    return band;
}

/* The first band's: none is larger. */
static size_t direct_forward_staged(const struct dpn_conv *conv, const struct direct_plan *plan)
{
    const struct dpn_source none = {0};
    const struct direct_band band = direct_forward_at(conv, plan, 0);
    const struct direct_gather gather = DPN_ISA_SYMBOL(direct_x_gather)(conv, &none, &band);
    return DPN_ISA_SYMBOL(direct_stage_floats)(&gather);
}

static void direct_forward_band(const struct dpn_conv_args *args, const struct direct_plan *plan, size_t item,
                                float *scratch)
{
    const struct dpn_conv *conv = args->conv;
    const size_t cstride = conv->out_cstride;
    const struct direct_band band = direct_forward_at(conv, plan, item);
    const size_t pixels = band.samples * band.rows * conv->out_width;
    const size_t at = band.sample * conv->out_stride +
                      band.row / plan->unit * (conv->out_width / plan->unit) * cstride;
    struct direct_gather gather = DPN_ISA_SYMBOL(direct_x_gather)(conv, &args->x, &band);
    float *staged = scratch + (plan->windows ? 0 : direct_packed_floats(plan->block, plan->k));
    float *y = conv->pool ? staged + direct_forward_staged(conv, plan) : args->y + at;

    DPN_ISA_SYMBOL(direct_stage)(&gather, staged);
    for (size_t first = 0; first < pixels; first += plan->block) {
        struct dpn_gemm gemm = {.m = direct_min(plan->block, pixels - first),
                                .k = plan->k,
                                .a_col = 1,
                                .b_col = 1};
        if (!plan->windows)
            gemm.a = DPN_ISA_SYMBOL(direct_rows)(&gather, first, gemm.m, 0, plan->k, scratch, &gemm.a_row);
        gemm.c_row = cstride;
        for (size_t c = 0; c < conv->out_channels; c += DPN_PANEL_COLUMNS) {
            size_t offset;
            dpn_panel(plan->k, conv->out_channels, c / DPN_PANEL_COLUMNS, &offset, &gemm.b_row);
            gemm.n = gemm.b_row;
            gemm.b = args->weights + offset;
            gemm.c = y + first * cstride + c;
            const size_t valid = direct_min(gemm.n, conv->out_channels - c);
            if (plan->windows) {
                DPN_ISA_SYMBOL(direct_window_products)
                (&gather, first, gemm.m, gemm.b, gemm.n, valid, gemm.c, cstride);
            } else {
                DPN_ISA_SYMBOL(gemm)(&gemm);
            }
            if (conv->pool) continue; /* finished as it is pooled */
            DPN_ISA_SYMBOL(direct_finish)
            (gemm.m, gemm.n, valid, args->bias != NULL ? args->bias + c : NULL, args->relu, gemm.c, cstride);
        }
    }
    if (conv->pool) DPN_ISA_SYMBOL(direct_pool)
    (conv, band.samples, band.rows, y, args->bias, args->relu, args->y + at, args->place + at);
    if (args->moments != NULL)
        DPN_ISA_SYMBOL(moments)(pixels, cstride, y, args->moments + item * dpn_block_floats(cstride));
}

/* ---- the algorithm ---- */

static int direct_serves(const struct dpn_conv *conv, enum dpn_conv_pass pass)
{
    (void)conv;
    (void)pass;
    return 1;
}

static size_t direct_shared_floats(const struct dpn_conv *conv, enum dpn_conv_pass pass)
{
    if (pass == DPN_CONV_DATA) return DPN_ISA_SYMBOL(direct_data_shared)(conv);
    if (pass == DPN_CONV_WEIGHTS) return DPN_ISA_SYMBOL(direct_weights_shared)(conv);
    return 0;
}

static size_t direct_private_floats(const struct dpn_conv *conv, enum dpn_conv_pass pass)
{
    if (pass == DPN_CONV_DATA) return DPN_ISA_SYMBOL(direct_data_private)(conv);
    if (pass == DPN_CONV_WEIGHTS) return DPN_ISA_SYMBOL(direct_weights_private)(conv);
    const struct direct_plan plan = direct_forward_plan(conv);
    return (plan.windows ? 0 : direct_packed_floats(plan.block, plan.k)) +
           direct_forward_staged(conv, &plan) + (conv->pool ? plan.pixels * conv->out_cstride : 0);
}

static size_t direct_items(const struct dpn_conv *conv, enum dpn_conv_pass pass, int phase)
{
    if (pass == DPN_CONV_DATA) return DPN_ISA_SYMBOL(direct_data_items)(conv, phase);
    if (pass == DPN_CONV_WEIGHTS) return DPN_ISA_SYMBOL(direct_weights_items)(conv, phase);
    return phase == 0 ? direct_forward_plan(conv).bands.count : 0;
}

static size_t direct_blocks(const struct dpn_conv *conv, enum dpn_conv_pass pass)
{
    if (pass == DPN_CONV_WEIGHTS) return 0;
    return direct_items(conv, pass, pass == DPN_CONV_DATA);
}

static void direct_run(const struct dpn_conv_args *args, int phase, size_t first, size_t count,
                       float *scratch)
{
    if (args->pass == DPN_CONV_DATA) {
        DPN_ISA_SYMBOL(direct_data)(args, phase, first, count, scratch);
    } else if (args->pass == DPN_CONV_WEIGHTS) {
        DPN_ISA_SYMBOL(direct_weights)(args, phase, first, count, scratch);
    } else {
        const struct direct_plan plan = direct_forward_plan(args->conv);
        for (size_t item = first; item < first + count; item++)
            direct_forward_band(args, &plan, item, scratch);
    }
}

const struct dpn_conv_algorithm DPN_ISA_SYMBOL(conv_direct) = {
    .name = "direct",
    .serves = direct_serves,
    .shared_floats = direct_shared_floats,
    .private_floats = direct_private_floats,
    .items = direct_items,
    .blocks = direct_blocks,
    .run = direct_run,
};
