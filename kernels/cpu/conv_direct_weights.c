/* Direct convolution, gradient of the weights.
 *
 * dweights = patches of x, transposed, times dy. It is cut into blocks of rows and groups of panels; an
 * item goes over bands of output pixels in ascending order, packs only those floats of the patches that
 * its rows are and those columns of dy that its panels are, and adds their product. Where that makes few
 * items the bands are cut as well, into a number of parts that the shape decides: the first part's sums
 * are made in dweights, the others' in `shared`, and phase 1 adds them in order.
 *
 * Where the output is pooled an item goes over whole samples (conv_direct_sparse.c).
 *
 * Few output channels would leave most of a vector empty: an item then makes its sums turned, dy's
 * channels times the patches, and turns them at the end.
 *
 * Cost: the flops of the definition, a copy of the patches a group of panels and of dy a block of rows,
 * and the parts' matrices. Every element is one chain over a part's pixels, then over the parts.
 */
#include "kernels/cpu/conv_direct.h"

enum {
    WEIGHTS_ROWS = 192,               /* of a block, at most */
    WEIGHTS_PANELS = 4,               /* of a group, at most */
    WEIGHTS_PIXELS = 128,             /* multiplied at a time, at most: gemm's block of k */
    WEIGHTS_FEW = 8,                  /* output channels that are few */
    WEIGHTS_ITEMS = 24,               /* fewer are cut into parts */
    WEIGHTS_POOLED_PARTS = 8,         /* of samples: each has a turn of its own */
    WEIGHTS_PART_FLOATS = 640 * 1024, /* of all parts together, at most */
    WEIGHTS_SLICE = 16 * 1024,        /* floats of an item of phase 1 */
};

struct weights_plan {
    size_t rows, row_blocks, block_rows, groups, group_panels, panels;
    size_t parts, part_floats;
    size_t pixels; /* at a time */
    int windows, turned;
    struct direct_bands bands;
};

static struct weights_plan weights_plan(const struct dpn_conv *conv)
{
    const int dense = conv->out_stride == conv->out_height * conv->out_width * conv->out_cstride;
    const size_t target = direct_max(WEIGHTS_PIXELS, direct_staged_band(conv->in_channels));
    struct weights_plan plan = {.rows = conv->kernel_height * conv->kernel_width * conv->in_channels};
    plan.windows = direct_windows(conv) && plan.rows <= WEIGHTS_ROWS;
    /* A single tap may be multiplied in place, where what follows the last pixel is not to be read. */
    plan.turned = !plan.windows && conv->out_channels <= WEIGHTS_FEW &&
                  conv->kernel_height * conv->kernel_width > 1;
    const size_t blocks = conv->pool ? 1 : direct_cuts(plan.rows, WEIGHTS_ROWS);
    plan.block_rows = direct_round16(direct_cuts(plan.rows, blocks));
    plan.row_blocks = direct_cuts(plan.rows, plan.block_rows);
    plan.panels = direct_cuts(conv->out_channels, DPN_PANEL_COLUMNS);
    plan.group_panels = direct_cuts(plan.panels, direct_cuts(plan.panels, WEIGHTS_PANELS));
    plan.groups = direct_cuts(plan.panels, plan.group_panels);
    if (conv->pool) plan.bands = (struct direct_bands){conv->samples, 1, 1, conv->out_height};
    else
        plan.bands = DPN_ISA_SYMBOL(direct_bands)(conv->samples, conv->out_height, conv->out_width, dense,
                                                  target);
    const size_t pixels = plan.bands.samples * plan.bands.rows * conv->out_width;
    plan.pixels = plan.windows ? pixels : direct_cuts(pixels, direct_cuts(pixels, WEIGHTS_PIXELS));
    plan.part_floats = dpn_panel_elems(plan.rows, conv->out_channels);
    plan.parts = conv->pool ? WEIGHTS_POOLED_PARTS
                            : direct_cuts(WEIGHTS_ITEMS, plan.row_blocks * plan.groups);
    plan.parts = direct_min(plan.parts, 1 + WEIGHTS_PART_FLOATS / plan.part_floats);
    plan.parts = direct_max(1, direct_min(plan.parts, plan.bands.count / 2));
    return plan;
}

/* Of packed patches. */
static size_t weights_patches_floats(const struct weights_plan *plan)
{
    return plan->windows ? 0 : direct_packed_floats(plan->pixels, plan->block_rows);
}

static size_t weights_turned_floats(const struct weights_plan *plan)
{
    return plan->turned ? WEIGHTS_FEW * plan->block_rows : 0;
}

/* What an item is. */
struct weights_item {
    size_t row, rows;     /* of dweights */
    size_t panel, panels; /* columns */
    float *sums;          /* the part's matrix */
    float *x, *dy, *turned, *staged;
};

/* The panels of dy for COUNT pixels from position FIRST of BAND on: where they are, or packed. */
static const float *weights_columns(const struct dpn_conv *conv, const struct direct_map *dy,
                                    const struct direct_band *band, size_t first, size_t count, size_t panel,
                                    size_t width, float *to, size_t *row)
{
    const size_t from = band->sample * conv->out_stride +
                        (band->row * conv->out_width + first) * conv->out_cstride;
    if (dy->kind == DIRECT_PLAIN && conv->out_cstride <= DPN_PANEL_COLUMNS) {
        *row = conv->out_cstride;
        return dy->x + from;
    }
    *row = width;
    DPN_ISA_SYMBOL(direct_columns)(dy, from, count, panel * DPN_PANEL_COLUMNS, width, to);
    return to;
}

/* The sums of few output channels, turned: PATCHES' product as it would be, with the operands exchanged.
 * Columns past the item's rows are of whatever the packing left there. */
static void weights_turned(const struct dpn_conv *conv, const struct direct_map *dy,
                           const struct direct_band *band, size_t first, const struct weights_item *item,
                           const struct dpn_gemm *patches)
{
    struct dpn_gemm gemm = {.m = conv->out_channels,
                            .n = direct_round16(item->rows),
                            .k = patches->k,
                            .a_row = 1};
    gemm.a = weights_columns(conv, dy, band, first, gemm.k, 0, conv->out_cstride, item->dy, &gemm.a_col);
    gemm.b = patches->a;
    gemm.b_row = patches->a_col;
    gemm.b_col = 1;
    gemm.c = item->turned;
    gemm.c_row = gemm.n;
    gemm.accumulate = patches->accumulate;
    DPN_ISA_SYMBOL(gemm)(&gemm);
}

static void weights_turn(const struct dpn_conv *conv, const struct weights_item *item)
{
    const size_t stride = conv->out_cstride, row = direct_round16(item->rows);
    for (size_t r = 0; r < item->rows; r++)
        for (size_t c = 0; c < stride; c++)
            item->sums[(item->row + r) * stride + c] = c < conv->out_channels ? item->turned[c * row + r]
                                                                              : 0.0f;
}

static void weights_band(const struct dpn_conv_args *args, const struct weights_plan *plan,
                         const struct weights_item *item, const struct direct_band *band, int accumulate)
{
    const struct dpn_conv *conv = args->conv;
    const size_t pixels = band->samples * band->rows * conv->out_width;
    const struct direct_map dy = DPN_ISA_SYMBOL(direct_dy)(conv, &args->dy);
    struct direct_gather gather = DPN_ISA_SYMBOL(direct_x_gather)(conv, &args->x, band);
    struct dpn_gemm gemm = {.m = item->rows, .a_row = 1, .b_col = 1, .accumulate = accumulate};
    DPN_ISA_SYMBOL(direct_stage)(&gather, item->staged);
    for (size_t first = 0; first < pixels; first += plan->pixels, gemm.accumulate = 1) {
        gemm.k = direct_min(plan->pixels, pixels - first);
        if (plan->windows) {
            size_t width = direct_round16(conv->out_channels), row;
            const float *b = weights_columns(conv, &dy, band, first, gemm.k, 0, width, item->dy, &row);
            DPN_ISA_SYMBOL(direct_window_sums)
            (&gather, first, gemm.k, b, row, width, conv->out_channels, item->sums, gemm.accumulate);
            continue;
        }
        gemm.a = DPN_ISA_SYMBOL(direct_rows)(&gather, first, gemm.k, item->row, item->row + item->rows,
                                             item->x, &gemm.a_col);
        if (plan->turned) {
            weights_turned(conv, &dy, band, first, item, &gemm);
            continue;
        }
        for (size_t panel = item->panel; panel < item->panel + item->panels; panel++) {
            size_t offset;
            dpn_panel(plan->rows, conv->out_channels, panel, &offset, &gemm.c_row);
            gemm.n = gemm.c_row;
            gemm.b = weights_columns(conv, &dy, band, first, gemm.k, panel, gemm.n, item->dy, &gemm.b_row);
            gemm.c = item->sums + offset + item->row * gemm.c_row;
            DPN_ISA_SYMBOL(gemm)(&gemm);
        }
    }
}

static void weights_sum(const struct dpn_conv_args *args, const struct weights_plan *plan, size_t index,
                        float *scratch)
{
    const struct dpn_conv *conv = args->conv;
    const size_t block = index % plan->row_blocks, group = index / plan->row_blocks % plan->groups;
    const size_t part = index / plan->row_blocks / plan->groups;
    const size_t begin = part * plan->bands.count / plan->parts,
                 end = (part + 1) * plan->bands.count / plan->parts;
    struct weights_item item = {.row = block * plan->block_rows, .panel = group * plan->group_panels};
    item.rows = direct_min(plan->block_rows, plan->rows - item.row);
    item.panels = direct_min(plan->group_panels, plan->panels - item.panel);
    item.sums = part == 0 ? args->dweights : args->shared + (part - 1) * plan->part_floats;
    if (conv->pool) {
        DPN_ISA_SYMBOL(direct_sparse_weights)(args, begin, end - begin, item.sums, scratch);
        return;
    }
    item.x = scratch;
    item.dy = item.x + weights_patches_floats(plan);
    item.turned = item.dy + plan->pixels * DPN_PANEL_COLUMNS;
    item.staged = item.turned + weights_turned_floats(plan);
    for (size_t b = begin; b < end; b++) {
        const struct direct_band band = DPN_ISA_SYMBOL(direct_band)(&plan->bands, conv->samples,
                                                                    conv->out_height, b);
        weights_band(args, plan, &item, &band, b > begin);
    }
    if (plan->turned) {
        weights_turn(conv, &item);
        return;
    }
    /* A padding column is a sum of x times 0, which is no 0 where x is not finite. */
    const size_t last = item.panel + item.panels - 1, valid = conv->out_channels - last * DPN_PANEL_COLUMNS;
    size_t offset, stride;
    dpn_panel(plan->rows, conv->out_channels, last, &offset, &stride);
    DPN_ISA_SYMBOL(direct_finish)
    (item.rows, stride, direct_min(valid, stride), NULL, 0, item.sums + offset + item.row * stride, stride);
}

/* Slice INDEX of dweights: the first part's sums are there, the others' follow. */
static void weights_add(const struct dpn_conv_args *args, const struct weights_plan *plan, size_t index)
{
    const size_t begin = index * WEIGHTS_SLICE, end = direct_min(begin + WEIGHTS_SLICE, plan->part_floats);
    for (size_t i = begin; i < end; i += DPN_LANES) {
        dpn_vec sum = dpn_vec_load(args->dweights + i);
        for (size_t part = 0; part + 1 < plan->parts; part++)
            sum += dpn_vec_load(args->shared + part * plan->part_floats + i);
        dpn_vec_store(args->dweights + i, sum);
    }
}

size_t DPN_ISA_SYMBOL(direct_weights_shared)(const struct dpn_conv *conv)
{
    const struct weights_plan plan = weights_plan(conv);
    return (plan.parts - 1) * plan.part_floats;
}

size_t DPN_ISA_SYMBOL(direct_weights_private)(const struct dpn_conv *conv)
{
    if (conv->pool) return DPN_ISA_SYMBOL(direct_sparse_weights_private)(conv);
    const struct weights_plan plan = weights_plan(conv);
    const struct dpn_source none = {0};
    const struct direct_band band = DPN_ISA_SYMBOL(direct_band)(&plan.bands, conv->samples, conv->out_height,
                                                                0);
    const struct direct_gather gather = DPN_ISA_SYMBOL(direct_x_gather)(conv, &none, &band);
    return weights_patches_floats(&plan) + plan.pixels * DPN_PANEL_COLUMNS + weights_turned_floats(&plan) +
           DPN_ISA_SYMBOL(direct_stage_floats)(&gather);
}

size_t DPN_ISA_SYMBOL(direct_weights_items)(const struct dpn_conv *conv, int phase)
{
    const struct weights_plan plan = weights_plan(conv);
    if (phase == 0) return plan.parts * plan.groups * plan.row_blocks;
    return phase == 1 && plan.parts > 1 ? direct_cuts(plan.part_floats, WEIGHTS_SLICE) : 0;
}

void DPN_ISA_SYMBOL(direct_weights)(const struct dpn_conv_args *args, int phase, size_t first, size_t count,
                                    float *scratch)
{
    const struct weights_plan plan = weights_plan(args->conv);
    for (size_t item = first; item < first + count; item++) {
        if (phase == 0) weights_sum(args, &plan, item, scratch);
        else weights_add(args, &plan, item);
    }
}
