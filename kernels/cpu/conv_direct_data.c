/* Direct convolution, gradient of the input.
 *
 * Input pixels fall into stride^2 classes by the taps that meet them; in one class the pass is a
 * convolution of dy of stride 1, with the class's taps turned round. Phase 0 transposes the weights class
 * by class into `shared`; an item of phase 1 is a band of dx in which every class is multiplied from
 * packed patches of dy and put in its place, so that ReLU's mask and the sums find the band finished and
 * in cache. Pixels that no tap meets are 0 (or stay).
 *
 * Few input channels would leave most of a vector empty. They go the other way round: an item is a sample
 * of dx, one product gives every output pixel's contributions to all its taps, and each input pixel
 * collects its own.
 *
 * Where the output is pooled an item is a sample too (conv_direct_sparse.c).
 *
 * Cost: the flops of the definition, a copy of the weights, and a copy of a patch an input pixel (few
 * channels: of the contributions). Every element of dx is one chain (few channels: one a tap, added in the
 * order of the taps), of a form that the shape alone decides.
 */
#include "kernels/cpu/conv_direct.h"

enum {
    DATA_FEW = 8,                 /* channels that are few */
    DATA_FEW_FLOATS = 512 * 1024, /* of a sample's contributions, at most */
};

typedef float data_half __attribute__((vector_size(32)));
typedef float data_half_any __attribute__((vector_size(32), aligned(4), may_alias));
typedef int data_half_int __attribute__((vector_size(32)));

/* ---- the cut of the pass ---- */

struct data_plan {
    int few;
    size_t k, block; /* floats of the largest patch; patches at once */
    struct direct_bands bands;
};

static size_t data_taps(const struct dpn_conv *conv)
{
    return conv->kernel_height * conv->kernel_width;
}

static int data_dense(const struct dpn_conv *conv)
{
    return conv->in_stride == conv->in_height * conv->in_width * conv->in_cstride;
}

static struct data_plan data_plan(const struct dpn_conv *conv)
{
    const size_t s = conv->stride, out_pixels = conv->out_height * conv->out_width;
    struct data_plan plan = {0};
    if (conv->pool) {
        plan.bands = (struct direct_bands){conv->samples, 1, 1, conv->in_height};
        return plan;
    }
    plan.few = conv->in_channels <= DATA_FEW && conv->in_cstride == 16 &&
               out_pixels * direct_round16(data_taps(conv) * conv->in_channels) <= DATA_FEW_FLOATS;
    if (plan.few) {
        plan.k = conv->out_channels;
        plan.block = out_pixels;
        plan.bands = (struct direct_bands){conv->samples, 1, 1, conv->in_height};
        return plan;
    }
    plan.k = direct_cuts(conv->kernel_height, s) * direct_cuts(conv->kernel_width, s) * conv->out_channels;
    plan.bands = DPN_ISA_SYMBOL(direct_bands)(conv->samples, conv->in_height, conv->in_width,
                                              data_dense(conv), direct_rows_at_once(plan.k) * s * s);
    plan.block = direct_block(plan.bands.samples * direct_cuts(plan.bands.rows, s) *
                                  direct_cuts(conv->in_width, s),
                              plan.k);
    return plan;
}

/* Pixels BEGIN .. BEGIN+COUNT-1 of one dimension: those of class R are FIRST, FIRST + stride, ..., COUNT
 * of them, met by TAPS taps, after BEFORE taps of the classes before. The first one's window on dy begins
 * at CORNER. */
struct data_class {
    size_t first, count, taps, before;
    long corner;
};

static struct data_class data_class(const struct dpn_conv *conv, size_t kernel, size_t r, size_t begin,
                                    size_t count)
{
    const size_t s = conv->stride, phase = (begin + conv->pad) % s, skip = (r + s - phase) % s;
    struct data_class class = {.first = begin + skip};
    class.count = skip < count ? (count - skip - 1) / s + 1 : 0;
    class.taps = r < kernel ? (kernel - 1 - r) / s + 1 : 0;
    for (size_t before = 0; before < r && before < kernel; before++)
        class.before += (kernel - 1 - before) / s + 1;
    class.corner = (long)((class.first + conv->pad - r) / s) - (long)class.taps + 1;
    return class;
}

/* ---- phase 0: transposed weights ---- */

/* to[j][i] = from[i][j] for i < ROWS, j < COLUMNS; zeros in to[j][ROWS .. round16(ROWS)-1]. */
static void data_transpose(const float *from, size_t from_row, size_t rows, size_t columns, float *to,
                           size_t to_row)
{
    const size_t rows4 = rows / 4 * 4, columns4 = columns / 4 * 4;
    for (size_t j = 0; j < columns4; j += 4)
        for (size_t i = 0; i < rows4; i += 4)
            dpn_transpose4(from + i * from_row + j, from_row, to + j * to_row + i, to_row);
    for (size_t j = 0; j < columns; j++) {
        for (size_t i = j < columns4 ? rows4 : 0; i < rows; i++) to[j * to_row + i] = from[i * from_row + j];
        for (size_t i = rows; i < direct_round16(rows); i++) to[j * to_row + i] = 0;
    }
}

/* Rows ROW .. ROW+COUNT-1 of the weights, their columns of panel PANEL, as rows TO_ROW.. and columns 0 ..
 * COUNT-1 of the panel matrix TO of TO_ROWS rows. */
static void data_turn(const struct dpn_conv_args *args, size_t row, size_t count, size_t panel, float *to,
                      size_t to_rows, size_t to_row)
{
    const struct dpn_conv *conv = args->conv;
    const size_t first = panel * DPN_PANEL_COLUMNS;
    const size_t columns = direct_min(DPN_PANEL_COLUMNS, conv->out_channels - first);
    size_t from_offset, from_stride;
    dpn_panel(data_taps(conv) * conv->in_channels, conv->out_channels, panel, &from_offset, &from_stride);
    for (size_t c = 0; c < count; c += DPN_PANEL_COLUMNS) {
        size_t offset, stride;
        dpn_panel(to_rows, count, c / DPN_PANEL_COLUMNS, &offset, &stride);
        data_transpose(args->weights + from_offset + (row + c) * from_stride, from_stride,
                       direct_min(DPN_PANEL_COLUMNS, count - c), columns,
                       to + offset + (to_row + first) * stride, stride);
    }
}

/* ITEM: a tap, and a panel of output channels. */
static void data_turn_item(const struct dpn_conv_args *args, const struct data_plan *plan, size_t item)
{
    const struct dpn_conv *conv = args->conv;
    const size_t panels = direct_cuts(conv->out_channels, DPN_PANEL_COLUMNS), s = conv->stride;
    const size_t tap = item / panels, ky = tap / conv->kernel_width, kx = tap % conv->kernel_width;
    if (plan->few) {
        data_turn(args, 0, data_taps(conv) * conv->in_channels, item, args->shared, conv->out_channels, 0);
        return;
    }
    const struct data_class cy = data_class(conv, conv->kernel_height, ky % s, 0, conv->in_height);
    const struct data_class cx = data_class(conv, conv->kernel_width, kx % s, 0, conv->in_width);
    const size_t before = cy.before * conv->kernel_width + cy.taps * cx.before;
    /* Tap j of a class lies on dy's pixel u - j of the window that ends at u. */
    const size_t place = (cy.taps - 1 - ky / s) * cx.taps + (cx.taps - 1 - kx / s);
    data_turn(args, tap * conv->in_channels, conv->in_channels, item % panels,
              args->shared + before * conv->out_channels * direct_round16(conv->in_channels),
              cy.taps * cx.taps * conv->out_channels, place * conv->out_channels);
}

/* ---- phase 1: bands of dx ---- */

/* COUNT floats. */
static DPN_ALWAYS_INLINE void data_put(const float *from, size_t count, int accumulate, float *to)
{
    if (count % 16 == 0) {
        for (size_t i = 0; i < count; i += DPN_LANES) {
            dpn_vec v = from != NULL ? dpn_vec_load(from + i) : (dpn_vec){0};
            dpn_vec_store(to + i, accumulate ? dpn_vec_load(to + i) + v : v);
        }
        return;
    }
    for (size_t i = 0; i < count; i++) {
        const float v = from != NULL ? from[i] : 0.0f;
        to[i] = accumulate ? to[i] + v : v;
    }
}

/* Puts rows of FROM (stride FROM_ROW; NULL: zeros) in the places of positions FIRST.. of the class's
 * pixels. */
static void data_scatter(const struct dpn_conv_args *args, const struct direct_gather *gather,
                         const struct data_class *cy, const struct data_class *cx, size_t first, size_t count,
                         const float *from, size_t from_row)
{
    const struct dpn_conv *conv = args->conv;
    const size_t floats = conv->in_cstride % 16 == 0 ? conv->in_cstride : conv->in_channels;
    size_t column = first % gather->columns, row = first / gather->columns % gather->rows;
    size_t n = first / gather->columns / gather->rows;
    for (size_t i = 0; i < count; i++) {
        const size_t y = cy->first + row * conv->stride, x = cx->first + column * conv->stride;
        float *dx = args->dx + (gather->sample + n) * conv->in_stride +
                    (y * conv->in_width + x) * conv->in_cstride;
        data_put(from, floats, args->accumulate, dx);
        if (from != NULL) from += from_row;
        if (++column < gather->columns) continue;
        column = 0;
        if (++row < gather->rows) continue;
        row = 0;
        n++;
    }
}

/* One class of a band: the whole product, to its places. */
static void data_class_band(const struct dpn_conv_args *args, const struct data_plan *plan,
                            const struct direct_band *band, size_t ry, size_t rx, float *scratch)
{
    const struct dpn_conv *conv = args->conv;
    const struct data_class cy = data_class(conv, conv->kernel_height, ry, band->row, band->rows);
    const struct data_class cx = data_class(conv, conv->kernel_width, rx, 0, conv->in_width);
    const size_t positions = band->samples * cy.count * cx.count, width = direct_round16(conv->in_channels);
    const size_t k = cy.taps * cx.taps * conv->out_channels;
    const int in_place = conv->stride == 1 && conv->in_cstride == width; /* positions are dx's pixels */
    const float *weights = args->shared + (cy.before * conv->kernel_width + cy.taps * cx.before) *
                                              conv->out_channels * width;
    struct direct_gather gather = {
        .map = DPN_ISA_SYMBOL(direct_dy)(conv, &args->dy),
        .sample = band->sample,
        .samples = band->samples,
        .rows = cy.count,
        .columns = cx.count,
        .step = 1,
        .ny = cy.taps,
        .nx = cx.taps,
        .top = cy.corner,
        .left = cx.corner,
    };
    if (positions == 0) return;
    if (k == 0) {
        if (!args->accumulate) data_scatter(args, &gather, &cy, &cx, 0, positions, NULL, 0);
        return;
    }
    float *product = scratch + direct_packed_floats(plan->block, plan->k);
    float *dx = args->dx + band->sample * conv->in_stride + band->row * conv->in_width * conv->in_cstride;
    DPN_ISA_SYMBOL(direct_stage)(&gather, product + plan->block * width);
    for (size_t first = 0; first < positions; first += plan->block) {
        struct dpn_gemm gemm = {.m = direct_min(plan->block, positions - first),
                                .k = k,
                                .a_col = 1,
                                .b_col = 1};
        gemm.a = DPN_ISA_SYMBOL(direct_rows)(&gather, first, gemm.m, 0, k, scratch, &gemm.a_row);
        gemm.c_row = width;
        gemm.accumulate = in_place && args->accumulate;
        for (size_t c = 0; c < conv->in_channels; c += DPN_PANEL_COLUMNS) {
            size_t offset;
            dpn_panel(k, conv->in_channels, c / DPN_PANEL_COLUMNS, &offset, &gemm.b_row);
            gemm.n = gemm.b_row;
            gemm.b = weights + offset;
            gemm.c = in_place ? dx + first * width + c : product + c;
            DPN_ISA_SYMBOL(gemm)(&gemm);
        }
        if (!in_place) data_scatter(args, &gather, &cy, &cx, first, gemm.m, product, width);
    }
}

static void data_band(const struct dpn_conv_args *args, const struct data_plan *plan,
                      const struct direct_band *band, float *scratch)
{
    const struct dpn_conv *conv = args->conv;
    for (size_t ry = 0; ry < conv->stride; ry++)
        for (size_t rx = 0; rx < conv->stride; rx++) data_class_band(args, plan, band, ry, rx, scratch);
}

/* The largest staged copy of a class of the first band. */
static size_t data_staged(const struct dpn_conv *conv, const struct data_plan *plan)
{
    const struct dpn_gradient none = {0};
    struct direct_gather gather = {
        .map = DPN_ISA_SYMBOL(direct_dy)(conv, &none),
        .samples = plan->few ? 1 : plan->bands.samples,
        .rows = plan->few ? conv->out_height : direct_cuts(plan->bands.rows, conv->stride),
        .columns = plan->few ? conv->out_width : direct_cuts(conv->in_width, conv->stride),
        .step = 1,
        .ny = plan->few ? 1 : direct_cuts(conv->kernel_height, conv->stride),
        .nx = plan->few ? 1 : direct_cuts(conv->kernel_width, conv->stride),
    };
    return DPN_ISA_SYMBOL(direct_stage_floats)(&gather);
}

/* ---- phase 1, few channels: samples of dx ---- */

/* The taps that meet one input coordinate: FIRST, FIRST + stride, ..., below END; the first one's output
 * coordinate is OUT, the next one's OUT - 1, ... */
struct data_meets {
    size_t first, end, out;
};

/* For coordinate AT - pad, where AT = WHOLE*stride + PHASE (its caller counts: no division a pixel). */
static DPN_ALWAYS_INLINE struct data_meets data_meets(size_t stride, size_t at, size_t whole, size_t phase,
                                                      size_t kernel, size_t outs)
{
    const size_t skip = whole < outs ? 0 : whole - outs + 1; /* taps of outputs past the last */
    return (struct data_meets){phase + skip * stride, direct_min(at + 1, kernel), whole - skip};
}

/* dx of a sample from its output pixels' contributions PARTS, rows of ROW floats. */
static void data_collect(const struct dpn_conv_args *args, size_t sample, const float *parts, size_t row)
{
    const struct dpn_conv *conv = args->conv;
    const size_t s = conv->stride, pad = conv->pad, channels = conv->in_channels, kw = conv->kernel_width;
    const size_t next = s * channels -
                        row; /* from a tap to the next, which lies on the output pixel before */
    data_half_int keep;
    for (size_t c = 0; c < DATA_FEW; c++) keep[c] = c < channels ? -1 : 0;
    float *dx = args->dx + sample * conv->in_stride;
    for (size_t y = 0; y < conv->in_height; y++) {
        const struct data_meets my = data_meets(s, y + pad, (y + pad) / s, (y + pad) % s, conv->kernel_height,
                                                conv->out_height);
        size_t whole = pad / s, phase = pad % s;
        for (size_t x = 0; x < conv->in_width; x++, dx += 16) {
            const struct data_meets mx = data_meets(s, x + pad, whole, phase, kw, conv->out_width);
            data_half sum = {0};
            size_t line = (my.out * conv->out_width + mx.out) * row + (my.first * kw + mx.first) * channels;
            for (size_t ky = my.first; ky < my.end; ky += s) {
                size_t part = line;
                for (size_t kx = mx.first; kx < mx.end; kx += s, part += next)
                    sum += *(const data_half_any *)(parts + part);
                line += s * kw * channels - conv->out_width * row;
            }
            if (args->accumulate) sum += *(const data_half_any *)dx;
            *(data_half_any *)dx = (data_half)((data_half_int)sum & keep);
            *(data_half_any *)(dx + DATA_FEW) = (data_half){0};
            if (++phase == s) {
                phase = 0;
                whole++;
            }
        }
    }
}

static void data_few(const struct dpn_conv_args *args, const struct data_plan *plan, size_t sample,
                     float *scratch)
{
    const struct dpn_conv *conv = args->conv;
    const size_t pixels = plan->block, columns = data_taps(conv) * conv->in_channels,
                 row = direct_round16(columns);
    float *parts = scratch + direct_packed_floats(pixels, plan->k);
    struct direct_gather gather = {
        .map = DPN_ISA_SYMBOL(direct_dy)(conv, &args->dy),
        .sample = sample,
        .samples = 1,
        .rows = conv->out_height,
        .columns = conv->out_width,
        .step = 1,
        .ny = 1,
        .nx = 1,
    };
    struct dpn_gemm gemm = {.m = pixels, .k = plan->k, .a_col = 1, .b_col = 1, .c_row = row};
    DPN_ISA_SYMBOL(direct_stage)(&gather, parts + pixels * row + DIRECT_SLACK);
    gemm.a = DPN_ISA_SYMBOL(direct_rows)(&gather, 0, pixels, 0, plan->k, scratch, &gemm.a_row);
    for (size_t c = 0; c < columns; c += DPN_PANEL_COLUMNS) {
        size_t offset;
        dpn_panel(plan->k, columns, c / DPN_PANEL_COLUMNS, &offset, &gemm.b_row);
        gemm.n = gemm.b_row;
        gemm.b = args->shared + offset;
        gemm.c = parts + c;
        DPN_ISA_SYMBOL(gemm)(&gemm);
    }
    data_collect(args, sample, parts, row);
}

/* ---- the pass ---- */

/* ReLU's mask and the sums, or at least zeros in the padding, of the finished band. */
static void data_finish(const struct dpn_conv_args *args, const struct direct_band *band, size_t item)
{
    const struct dpn_conv *conv = args->conv;
    const size_t cstride = conv->in_cstride, pixels = band->samples * band->rows * conv->in_width;
    const size_t at = band->sample * conv->in_stride + band->row * conv->in_width * cstride;
    if (cstride % 16 == 0)
        DPN_ISA_SYMBOL(direct_finish)(pixels, cstride, conv->in_channels, NULL, 0, args->dx + at, cstride);
    if (args->mask == NULL) return;
    struct dpn_mask_sums mask = *args->mask;
    if (mask.y != NULL) mask.y += at;
    if (mask.z != NULL) mask.z += at;
    mask.sums += item * dpn_block_floats(cstride);
    DPN_ISA_SYMBOL(mask_sums)(pixels, cstride, args->dx + at, &mask);
}

size_t DPN_ISA_SYMBOL(direct_data_shared)(const struct dpn_conv *conv)
{
    if (conv->pool) return DPN_ISA_SYMBOL(direct_sparse_data_shared)(conv);
    const size_t columns = conv->in_channels * (data_plan(conv).few ? data_taps(conv) : 1);
    return direct_round16(columns) * conv->out_channels * (data_plan(conv).few ? 1 : data_taps(conv));
}

size_t DPN_ISA_SYMBOL(direct_data_private)(const struct dpn_conv *conv)
{
    if (conv->pool) return DPN_ISA_SYMBOL(direct_sparse_data_private)(conv);
    const struct data_plan plan = data_plan(conv);
    const size_t width = direct_round16(conv->in_channels * (plan.few ? data_taps(conv) : 1));
    return direct_packed_floats(plan.block, plan.k) + plan.block * width + DIRECT_SLACK +
           data_staged(conv, &plan);
}

size_t DPN_ISA_SYMBOL(direct_data_items)(const struct dpn_conv *conv, int phase)
{
    const struct data_plan plan = data_plan(conv);
    const size_t panels = direct_cuts(conv->out_channels, DPN_PANEL_COLUMNS);
    if (phase == 0 && conv->pool) return conv->out_channels;
    if (phase == 0) return plan.few ? panels : panels * data_taps(conv);
    return phase == 1 ? plan.bands.count : 0;
}

void DPN_ISA_SYMBOL(direct_data)(const struct dpn_conv_args *args, int phase, size_t first, size_t count,
                                 float *scratch)
{
    const struct dpn_conv *conv = args->conv;
    const struct data_plan plan = data_plan(conv);
    for (size_t item = first; item < first + count; item++) {
        if (phase == 0) {
            if (conv->pool) DPN_ISA_SYMBOL(direct_sparse_turn)(args, item);
            else data_turn_item(args, &plan, item);
            continue;
        }
        const struct direct_band band = DPN_ISA_SYMBOL(direct_band)(&plan.bands, conv->samples,
                                                                    conv->in_height, item);
        if (conv->pool) DPN_ISA_SYMBOL(direct_sparse_data)(args, item, scratch);
        else if (plan.few) data_few(args, &plan, item, scratch);
        else data_band(args, &plan, &band, scratch);
        data_finish(args, &band, item);
    }
}
