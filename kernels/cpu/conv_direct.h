/* What the three passes of the direct convolution share: a tensor as patches are read from it, the cut of
 * a pass into bands of pixels, and the packing of patches into rows of a matrix.
 *
 * A patch is the window of pixels under one position of the kernel, as one row of ny*nx*channels floats in
 * the order of the weights' rows. Forward and weights pack patches of x; the data pass packs patches of
 * dy, with those of the kernel's taps that meet one class of input pixels.
 */
#ifndef DPN_KERNELS_CPU_CONV_DIRECT_H
#define DPN_KERNELS_CPU_CONV_DIRECT_H

#include "kernels/cpu/vector.h"

/* Floats that packing may write past its last row, and read past the end of a staged copy. */
enum { DIRECT_SLACK = 16 };

enum direct_kind {
    DIRECT_PLAIN,
    DIRECT_RELU,        /* max(0, x) */
    DIRECT_AFFINE,      /* x*scale + shift */
    DIRECT_AFFINE_RELU, /* max(0, x*scale + shift) */
    DIRECT_GRADIENT,    /* x*scale + z*z_scale + shift */
};

/* A tensor as it is read. */
struct direct_map {
    enum direct_kind kind;
    const float *x, *z;
    const float *scale, *z_scale, *shift;
    size_t channels, cstride, height, width, stride; /* STRIDE: floats from sample to sample */
};

/* The cut of a tensor's pixels into COUNT bands: ROWS rows (the last band of a sample: what is left) of
 * one sample, or SAMPLES whole samples (the last band: what is left). */
struct direct_bands {
    size_t count, per_sample, samples, rows;
};
struct direct_band {
    size_t sample, samples, row, rows;
};

/* The patches of SAMPLES x ROWS x COLUMNS positions. The first has its corner at pixel (TOP, LEFT) of
 * sample SAMPLE, which may lie outside; from one to the next it is STEP pixels. */
struct direct_gather {
    struct direct_map map;
    size_t sample, samples, rows, columns, step, ny, nx;
    long top, left;
    const float *staged; /* by direct_stage; NULL: patches are packed from the map itself */
};

static inline size_t direct_min(size_t a, size_t b)
{
    return a < b ? a : b;
}

static inline size_t direct_max(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* How many pieces of at most MOST make up N. */
static inline size_t direct_cuts(size_t n, size_t most)
{
    return (n + most - 1) / most;
}

static inline size_t direct_round16(size_t n)
{
    return (n + 15) / 16 * 16;
}

/* All ones in the lanes of channels below VALID, of those from C on. */
static DPN_ALWAYS_INLINE dpn_vec_int direct_keep(size_t c, size_t valid)
{
    dpn_vec_int keep = {0};
    for (size_t l = 0; l < DPN_LANES; l++) keep[l] = c + l < valid ? -1 : 0;
    return keep;
}

/* Row stride of a matrix of packed rows of K floats: an odd number of cache lines, so that rows do not
 * share the sets of a cache. */
static inline size_t direct_row_stride(size_t k)
{
    return direct_round16(k) / 16 % 2 ? direct_round16(k) : direct_round16(k) + 16;
}

/* Floats of a matrix of ROWS packed rows. */
static inline size_t direct_packed_floats(size_t rows, size_t k)
{
    return rows * direct_row_stride(k) + DIRECT_SLACK;
}

/* About how many patches of K floats to multiply at a time: half of L2 at most. */
static inline size_t direct_rows_at_once(size_t k)
{
    return direct_min(96, direct_max(24, 200 * 1024 / k));
}

/* The cut of POSITIONS patches of K floats into products: of this many each, whole tiles of any height. */
static inline size_t direct_block(size_t positions, size_t k)
{
    const size_t rows = direct_rows_at_once(k),
                 even = direct_cuts(positions, direct_cuts(positions, rows + rows / 2));
    return direct_min(positions, (even + 23) / 24 * 24);
}

/* Whether patches of CHANNELS at CSTRIDE go through a staged copy: runs that are no whole vectors, or so
 * short that looking for the border at each costs more than copying first. */
static inline int direct_stages(size_t channels, size_t cstride)
{
    return channels != cstride || channels % 16 != 0 || channels < 64;
}

/* The staged copy: of each sample so many rows, of so many pixels. */
static inline size_t direct_stage_rows(const struct direct_gather *gather)
{
    return (gather->rows - 1) * gather->step + gather->ny;
}

static inline size_t direct_stage_columns(const struct direct_gather *gather)
{
    return (gather->columns - 1) * gather->step + gather->nx;
}

/* Whether x's patches are multiplied where they lie in the staged copy (conv_direct_window.c): one panel of
 * output channels, over which a copy of them would not pay; rows of pixels that fill tiles; weights that
 * stay in L1. */
static inline int direct_windows(const struct dpn_conv *conv)
{
    const size_t taps = conv->kernel_height * conv->kernel_width;
    return taps > 1 && direct_stages(conv->in_channels, conv->in_cstride) && conv->out_width >= 8 &&
           conv->out_channels <= DPN_PANEL_COLUMNS &&
           taps * conv->in_channels * direct_round16(conv->out_channels) <= 8192;
}

/* Pixels of a band at least: where CHANNELS are few it is long, so that less of the staged copy is copied
 * twice. */
static inline size_t direct_staged_band(size_t channels)
{
    return channels < 64 ? 512 : 1;
}

/* About TARGET pixels a band. DENSE: a sample begins where the one before ends, so a band may hold
 * several. */
struct direct_bands DPN_ISA_SYMBOL(direct_bands)(size_t samples, size_t height, size_t width, int dense,
                                                 size_t target);
struct direct_band DPN_ISA_SYMBOL(direct_band)(const struct direct_bands *bands, size_t samples,
                                               size_t height, size_t index);

/* dY as the definition has it: not of a convolution that pools. */
struct direct_map DPN_ISA_SYMBOL(direct_dy)(const struct dpn_conv *conv, const struct dpn_gradient *dy);
/* The patches of x that BAND of y is made of. */
struct direct_gather DPN_ISA_SYMBOL(direct_x_gather)(const struct dpn_conv *conv, const struct dpn_source *x,
                                                     const struct direct_band *band);

/* ---- conv_direct_pack.c ---- */
/* Floats that direct_stage takes for GATHER, slack included: by its shape, whatever the map's kind. */
size_t DPN_ISA_SYMBOL(direct_stage_floats)(const struct direct_gather *gather);
/* Whether the patches are whole pixels that lie one after the other: nothing to copy. */
int DPN_ISA_SYMBOL(direct_in_place)(const struct direct_gather *gather);
/* Copies to STAGED what GATHER's patches cover: as read, real channels only, zeros outside of the map.
 * Does nothing where patches are in place, or better packed from the map itself. */
void DPN_ISA_SYMBOL(direct_stage)(struct direct_gather *gather, float *staged);
/* The same, in any case. */
void DPN_ISA_SYMBOL(direct_stage_all)(struct direct_gather *gather, float *staged);
/* Floats K0 .. K1-1 of the patches of positions FIRST .. FIRST+COUNT-1, as rows of a matrix (stride ROW):
 * where they lie as such, else packed to SCRATCH, direct_packed_floats(). K0 and K1 are multiples of 16,
 * or K1 the patch's end. */
const float *DPN_ISA_SYMBOL(direct_rows)(const struct direct_gather *gather, size_t first, size_t count,
                                         size_t k0, size_t k1, float *scratch, size_t *row);
/* COUNT pixels of MAP from the one at float FROM on, their channels C .. C+WIDTH-1, to rows of WIDTH floats;
 * zeros past the real channels. C and WIDTH are multiples of 16. */
void DPN_ISA_SYMBOL(direct_columns)(const struct direct_map *map, size_t from, size_t count, size_t c,
                                    size_t width, float *to);
/* For columns 0 .. WIDTH-1 of PIXELS rows of Y (stride Y_ROW): adds BIAS (or NULL), then max(0, .) with
 * RELU; columns from VALID on are set to 0. WIDTH is a multiple of 16. */
void DPN_ISA_SYMBOL(direct_finish)(size_t pixels, size_t width, size_t valid, const float *bias, int relu,
                                   float *y, size_t y_row);

/* ---- conv_direct_pool.c ---- */
/* Of products Y, SAMPLES images of ROWS x width pixels, each whole, finished as direct_finish would: windows'
 * maxima and their places. OUT and PLACE: of the first sample's first window. */
void DPN_ISA_SYMBOL(direct_pool)(const struct dpn_conv *conv, size_t samples, size_t rows, const float *y,
                                 const float *bias, int relu, float *out, uint8_t *place);

/* ---- conv_direct_sparse.c: of convolutions that pool ---- */
size_t DPN_ISA_SYMBOL(direct_sparse_weights_private)(const struct dpn_conv *conv);
/* The sum of samples FIRST .. FIRST+COUNT-1, all of DWEIGHTS. */
void DPN_ISA_SYMBOL(direct_sparse_weights)(const struct dpn_conv_args *args, size_t first, size_t count,
                                           float *dweights, float *scratch);
size_t DPN_ISA_SYMBOL(direct_sparse_data_shared)(const struct dpn_conv *conv);
size_t DPN_ISA_SYMBOL(direct_sparse_data_private)(const struct dpn_conv *conv);
/* One output channel's part of `shared`. */
void DPN_ISA_SYMBOL(direct_sparse_turn)(const struct dpn_conv_args *args, size_t channel);
/* dx of a sample, but for its padding channels, from a complete `shared`. */
void DPN_ISA_SYMBOL(direct_sparse_data)(const struct dpn_conv_args *args, size_t sample, float *scratch);

/* ---- conv_direct_window.c ---- */
/* For COUNT positions from FIRST of a staged gather: C[position][WIDTH] = patch[ny*nx*channels] times
 * B[ny*nx*channels][WIDTH]. WIDTH: a multiple of 16, at most a panel, of which the first VALID columns are
 * not padding. Each element is one chain over the patch, the same as gemm's. */
void DPN_ISA_SYMBOL(direct_window_products)(const struct direct_gather *gather, size_t first, size_t count,
                                            const float *b, size_t width, size_t valid, float *c,
                                            size_t c_row);
/* SUMS[ny*nx*channels][WIDTH] (+)= the patches, transposed, times B[position][WIDTH] of row stride B_ROW.
 * Each element is one chain over the positions, the same as gemm's, or the sum of two, of every other one. */
void DPN_ISA_SYMBOL(direct_window_sums)(const struct direct_gather *gather, size_t first, size_t count,
                                        const float *b, size_t b_row, size_t width, size_t valid, float *sums,
                                        int accumulate);

/* ---- the passes in files of their own, with the meanings of struct dpn_conv_algorithm ---- */
size_t DPN_ISA_SYMBOL(direct_data_shared)(const struct dpn_conv *conv);
size_t DPN_ISA_SYMBOL(direct_data_private)(const struct dpn_conv *conv);
size_t DPN_ISA_SYMBOL(direct_data_items)(const struct dpn_conv *conv, int phase);
void DPN_ISA_SYMBOL(direct_data)(const struct dpn_conv_args *args, int phase, size_t first, size_t count,
                                 float *scratch);
size_t DPN_ISA_SYMBOL(direct_weights_shared)(const struct dpn_conv *conv);
size_t DPN_ISA_SYMBOL(direct_weights_private)(const struct dpn_conv *conv);
size_t DPN_ISA_SYMBOL(direct_weights_items)(const struct dpn_conv *conv, int phase);
void DPN_ISA_SYMBOL(direct_weights)(const struct dpn_conv_args *args, int phase, size_t first, size_t count,
                                    float *scratch);

#endif
