/* The Winograd convolution F(4x4,3x3) for 3x3 windows at stride 1: forward and, with turned filters, the data
 * pass. The weights pass is in conv_f4x4_weights.c.
 *
 * Idea: blocks of tiles that stay in L2 with their 36 products (narrow), or, where there are few tiles and
 * many channels (wide), all tiles at once and filters transformed on the way, a panel of outputs at a time,
 * for the transformed filters would not fit into any cache. Cost: 36 multiplications per 16 outputs and pair
 * of channels, and the transforms. Determinism: block sizes come from the shape; each output is one chain
 * over channels. Limits: channels in whole vectors of 16; the error is about twice that of the direct sum
 * (docs/RESULTS.md).
 */
#include <assert.h>

#include "kernels/cpu/conv_f4x4.h"

enum {
    F4_BLOCK_TILES =
        36, /* at most, of an item of the narrow way: six rows of the product's tile in registers */
    F4_MIN_TILES = 12,
    F4_WIDE_TILES = 128,        /* at most, of the wide way */
    F4_WIDE_FILTERS = 4 << 20,  /* floats of transformed filters, from which on it is taken */
    F4_WIDE_CHANNELS = 64,      /* input channels whose filters are transformed at once */
    F4_WIDE_BLOCK = 8,          /* tiles of an item of its first phase */
    F4_STREAM_FLOATS = 1 << 18, /* outputs larger than this go past the caches: half of L2 */
    F4_FILTER_CHANNELS = 16,    /* of an item of the narrow way's first phase */
};

/* A pass seen as one from images of `in` channels to images of `out` channels. */
struct f4_pass {
    struct f4_images in, out;
    struct f4_tiling tiling;   /* of the output */
    size_t pad, panels, block; /* block: tiles of an item */
    int data, wide;
};

static size_t f4_panel_width(const struct f4_pass *pass, size_t panel)
{
    size_t left = pass->out.cstride - panel * DPN_PANEL_COLUMNS;
    return left < DPN_PANEL_COLUMNS ? left : DPN_PANEL_COLUMNS;
}

/* Tiles of a block: transformed input and one panel of products fill about half of L2. Blocks are about
 * equally large and a multiple of four in number, so that teams share them evenly. */
static size_t f4_block(size_t in, size_t tiles)
{
    size_t most = in <= 256 ? F4_BLOCK_TILES : F4_BLOCK_TILES * 256 / in;
    if (most < F4_MIN_TILES) most = F4_MIN_TILES;
    size_t blocks = (tiles + 4 * most - 1) / (4 * most) * 4;
    return (tiles + blocks - 1) / blocks;
}

static struct f4_pass f4_pass(const struct dpn_conv *conv, enum dpn_conv_pass which)
{
    const struct f4_images x = {conv->in_height, conv->in_width, conv->in_cstride, conv->in_stride};
    const struct f4_images y = {conv->out_height, conv->out_width, conv->out_cstride, conv->out_stride};
    int data = which == DPN_CONV_DATA;
    struct f4_pass pass = {.in = data ? y : x,
                           .out = data ? x : y,
                           .pad = data ? 2 - conv->pad : conv->pad,
                           .data = data};
    pass.tiling = f4_tiles(conv->samples, pass.out.height, pass.out.width);
    pass.panels = (pass.out.cstride + DPN_PANEL_COLUMNS - 1) / DPN_PANEL_COLUMNS;
    pass.wide = pass.tiling.n <= F4_WIDE_TILES &&
                F4_POINTS * pass.in.cstride * pass.out.cstride >= F4_WIDE_FILTERS;
    pass.block = pass.wide ? F4_WIDE_BLOCK : f4_block(pass.in.cstride, pass.tiling.n);
    return pass;
}

static size_t f4_blocks(const struct f4_pass *pass)
{
    return (pass->tiling.n + pass->block - 1) / pass->block;
}

static size_t f4_wide_slices(const struct f4_pass *pass)
{
    return (pass->in.cstride + F4_WIDE_CHANNELS - 1) / F4_WIDE_CHANNELS;
}

/* Channels of slice SLICE, and the plane of its part of V. */
static size_t f4_wide_slice(const struct f4_pass *pass, size_t slice, size_t *plane)
{
    size_t left = pass->in.cstride - slice * F4_WIDE_CHANNELS;
    size_t channels = left < F4_WIDE_CHANNELS ? left : F4_WIDE_CHANNELS;
    *plane = f4_plane(pass->tiling.n, channels);
    return channels;
}

/* ---- the object's questions ---- */

static int f4_serves(const struct dpn_conv *conv, enum dpn_conv_pass pass)
{
    (void)pass;
    return conv->kernel_height == 3 && conv->kernel_width == 3 && conv->stride == 1 && conv->pad <= 2 &&
           conv->in_cstride % 16 == 0 && conv->out_cstride % 16 == 0 && conv->pool == 0;
}

static size_t f4_shared_floats(const struct dpn_conv *conv, enum dpn_conv_pass which)
{
    if (which == DPN_CONV_WEIGHTS) return DPN_ISA_SYMBOL(f4_weights_shared)(conv);
    const struct f4_pass pass = f4_pass(conv, which);
    if (pass.wide) return f4_wide_slices(&pass) * F4_POINTS * f4_plane(pass.tiling.n, F4_WIDE_CHANNELS);
    size_t floats = 0;
    for (size_t p = 0; p < pass.panels; p++)
        floats += F4_POINTS * f4_plane(pass.in.cstride, f4_panel_width(&pass, p));
    return floats;
}

static size_t f4_private_floats(const struct dpn_conv *conv, enum dpn_conv_pass which)
{
    if (which == DPN_CONV_WEIGHTS) return DPN_ISA_SYMBOL(f4_weights_private)(conv);
    const struct f4_pass pass = f4_pass(conv, which);
    size_t m = f4_plane(pass.wide ? pass.tiling.n : pass.block, DPN_PANEL_COLUMNS);
    size_t other = pass.wide ? f4_plane(F4_WIDE_CHANNELS, DPN_PANEL_COLUMNS)
                             : f4_plane(pass.block, pass.in.cstride);
    return F4_POINTS * (m + other);
}

static size_t f4_items(const struct dpn_conv *conv, enum dpn_conv_pass which, int phase)
{
    if (which == DPN_CONV_WEIGHTS) return DPN_ISA_SYMBOL(f4_weights_items)(conv, phase);
    const struct f4_pass pass = f4_pass(conv, which);
    if (phase > 1) return 0;
    if (pass.wide) return phase == 0 ? f4_blocks(&pass) : pass.panels;
    return phase == 0 ? pass.panels * (pass.in.cstride / F4_FILTER_CHANNELS) : f4_blocks(&pass);
}

static size_t f4_moment_blocks(const struct dpn_conv *conv, enum dpn_conv_pass which)
{
    const struct f4_pass pass = f4_pass(conv, which);
    return pass.wide ? 1 : f4_blocks(&pass);
}

/* ---- running ---- */

static struct f4_input f4_pass_input(const struct dpn_conv_args *args, const struct f4_pass *pass)
{
    struct f4_input input = {.images = pass->in, .tiling = pass->tiling, .pad = pass->pad};
    if (pass->data) f4_set_gradient(&input, &args->dy);
    else f4_set_source(&input, &args->x);
    return input;
}

/* Block BLOCK of moments or sums. */
static struct f4_output f4_pass_output(const struct dpn_conv_args *args, const struct f4_pass *pass,
                                       size_t block, struct dpn_mask_sums *mask)
{
    struct f4_output output = {.images = pass->out, .tiling = pass->tiling};
    size_t at = block * dpn_block_floats(pass->out.cstride);
    /* What is added to has been read into the caches anyway. */
    output.stream = args->conv->samples * pass->out.stride > F4_STREAM_FLOATS &&
                    !(pass->data && args->accumulate);
    if (!pass->data) {
        output.y = args->y;
        output.bias = args->bias;
        output.relu = args->relu;
        output.moments = args->moments ? args->moments + at : NULL;
        return output;
    }
    output.y = args->dx;
    output.accumulate = args->accumulate;
    if (args->mask) {
        *mask = *args->mask;
        mask->sums += at;
        output.mask = mask;
    }
    return output;
}

static void f4_narrow_filters(const struct dpn_conv_args *args, const struct f4_pass *pass, size_t item)
{
    size_t pieces = pass->in.cstride / F4_FILTER_CHANNELS, panel = item / pieces, piece = item % pieces;
    size_t width = f4_panel_width(pass, panel);
    float *u = args->shared + panel * F4_POINTS * f4_plane(pass->in.cstride, DPN_PANEL_COLUMNS);
    DPN_ISA_SYMBOL(f4_filter)
    (args->conv, args->weights, pass->data, panel, piece * F4_FILTER_CHANNELS, F4_FILTER_CHANNELS, width,
     u + piece * F4_FILTER_CHANNELS * width, f4_plane(pass->in.cstride, width));
}

/* What is read after panel PANEL's products for tiles FIRST .. FIRST+TILES-1: by their output transform, and
 * a share of what the next block's input transform reads. */
static struct f4_ahead f4_narrow_ahead(const struct f4_pass *pass, const struct f4_input *input,
                                       const struct f4_output *output, size_t first, size_t tiles,
                                       size_t panel)
{
    struct f4_ahead ahead = {.n = 0};
    const size_t c = panel * DPN_PANEL_COLUMNS, width = f4_panel_width(pass, panel);
    const size_t begin = f4_reach(&pass->out, &pass->tiling, first, 0);
    const size_t end = f4_reach(&pass->out, &pass->tiling, first + tiles, 0);
    if (output->mask) {
        f4_ahead_add(&ahead, output->mask->z, &pass->out, begin, end, c, width);
        f4_ahead_add(&ahead, output->mask->y, &pass->out, begin, end, c, width);
    }
    if (output->accumulate) f4_ahead_add(&ahead, output->y, &pass->out, begin, end, c, width);
    const size_t last = first + tiles + pass->block < pass->tiling.n ? first + tiles + pass->block
                                                                     : pass->tiling.n;
    const size_t beyond = F4_IN - F4_OUT - pass->pad;
    const size_t from = f4_reach(&pass->in, &pass->tiling, first + tiles, beyond);
    const size_t pixels = (f4_reach(&pass->in, &pass->tiling, last, beyond) - from) / pass->in.cstride;
    const size_t at = from + pixels * panel / pass->panels * pass->in.cstride;
    const size_t to = from + pixels * (panel + 1) / pass->panels * pass->in.cstride;
    f4_ahead_add(&ahead, input->x.x, &pass->in, at, to, 0, pass->in.cstride);
    f4_ahead_add(&ahead, input->form == F4_GRADIENT ? input->dy.z : NULL, &pass->in, at, to, 0,
                 pass->in.cstride);
    return ahead;
}

static void f4_narrow_block(const struct dpn_conv_args *args, const struct f4_pass *pass, size_t block,
                            float *scratch)
{
    const struct f4_input input = f4_pass_input(args, pass);
    struct dpn_mask_sums mask;
    const struct f4_output output = f4_pass_output(args, pass, block, &mask);
    size_t first = block * pass->block, left = pass->tiling.n - first;
    size_t tiles = left < pass->block ? left : pass->block, channels = pass->in.cstride;
    size_t v_plane = f4_plane(pass->block, channels);
    float *v = scratch, *m = scratch + F4_POINTS * v_plane;
    struct f4_products products = {.tiles = tiles, .channels = channels, .v = v, .v_plane = v_plane, .m = m};

    DPN_ISA_SYMBOL(f4_input)(&input, first, tiles, 0, channels, v, v_plane);
    for (size_t p = 0; p < pass->panels; p++) {
        products.width = f4_panel_width(pass, p);
        products.u = args->shared + p * F4_POINTS * f4_plane(channels, DPN_PANEL_COLUMNS);
        products.u_plane = f4_plane(channels, products.width);
        products.m_plane = f4_plane(pass->block, products.width);
        struct f4_ahead ahead = f4_narrow_ahead(pass, &input, &output, first, tiles, p);
        products.ahead = &ahead;
        DPN_ISA_SYMBOL(f4_products)(&products);
        DPN_ISA_SYMBOL(f4_output)
        (&output, first, tiles, p * DPN_PANEL_COLUMNS, products.width, m, products.m_plane);
    }
}

static void f4_wide_input(const struct dpn_conv_args *args, const struct f4_pass *pass, size_t block)
{
    const struct f4_input input = f4_pass_input(args, pass);
    size_t first = block * pass->block, left = pass->tiling.n - first;
    size_t tiles = left < pass->block ? left : pass->block;
    float *v = args->shared;
    for (size_t s = 0; s < f4_wide_slices(pass); s++) {
        size_t plane, channels = f4_wide_slice(pass, s, &plane);
        DPN_ISA_SYMBOL(f4_input)
        (&input, first, tiles, s * F4_WIDE_CHANNELS, channels, v + first * channels, plane);
        v += F4_POINTS * plane;
    }
}

static void f4_wide_panel(const struct dpn_conv_args *args, const struct f4_pass *pass, size_t panel,
                          float *scratch)
{
    struct dpn_mask_sums mask;
    const struct f4_output output = f4_pass_output(args, pass, 0, &mask);
    size_t tiles = pass->tiling.n, width = f4_panel_width(pass, panel), m_plane = f4_plane(tiles, width);
    size_t u_plane = f4_plane(F4_WIDE_CHANNELS, DPN_PANEL_COLUMNS);
    float *u = scratch, *m = scratch + F4_POINTS * u_plane;
    const float *v = args->shared;
    for (size_t s = 0; s < f4_wide_slices(pass); s++) {
        size_t plane, channels = f4_wide_slice(pass, s, &plane);
        DPN_ISA_SYMBOL(f4_filter)
        (args->conv, args->weights, pass->data, panel, s * F4_WIDE_CHANNELS, channels, width, u, u_plane);
        const struct f4_products products = {
            .tiles = tiles,
            .channels = channels,
            .width = width,
            .v = v,
            .u = u,
            .m = m,
            .v_plane = plane,
            .u_plane = u_plane,
            .m_plane = m_plane,
            .accumulate = s > 0,
        };
        DPN_ISA_SYMBOL(f4_products)(&products);
        v += F4_POINTS * plane;
    }
    DPN_ISA_SYMBOL(f4_output)(&output, 0, tiles, panel * DPN_PANEL_COLUMNS, width, m, m_plane);
}

static void f4_run(const struct dpn_conv_args *args, int phase, size_t first, size_t count, float *scratch)
{
    if (args->pass == DPN_CONV_WEIGHTS) {
        DPN_ISA_SYMBOL(f4_weights_run)(args, phase, first, count, scratch);
        return;
    }
    const struct f4_pass pass = f4_pass(args->conv, args->pass);
    for (size_t i = first; i < first + count; i++) {
        if (pass.wide && phase == 0) f4_wide_input(args, &pass, i);
        else if (pass.wide) f4_wide_panel(args, &pass, i, scratch);
        else if (phase == 0) f4_narrow_filters(args, &pass, i);
        else f4_narrow_block(args, &pass, i, scratch);
    }
    dpn_stream_fence();
}

const struct dpn_conv_algorithm DPN_ISA_SYMBOL(conv_f4x4) = {
    .name = "winograd",
    .serves = f4_serves,
    .shared_floats = f4_shared_floats,
    .private_floats = f4_private_floats,
    .items = f4_items,
    .blocks = f4_moment_blocks,
    .run = f4_run,
};
