/* What the files of the Winograd convolution F(4x4,3x3) share (Lavin & Gray 2016).
 *
 * A 4x4 tile of the output comes from a 6x6 tile of the input: y = A^T [(G g G^T) . (B^T d B)] A, 36
 * multiplications where the definition has 144. Over all tiles and channels these are 36 matrix products.
 * Tiles are counted over the whole batch: sample by sample, row by row.
 */
#ifndef DPN_KERNELS_CPU_CONV_F4X4_H
#define DPN_KERNELS_CPU_CONV_F4X4_H

#include "kernels/cpu/vector.h"

enum { F4_OUT = 4, F4_IN = 6, F4_POINTS = 36 };

/* The points 0, +-P, +-Q, infinity, and what the transforms make of them. All pairs in steps of 1/20 were
 * tried: near (5/8, 3/2) the error is least, less than half of that of (1, 2), for as many operations
 * (docs/RESULTS.md). The powers are exact in float32. */
#define F4_P  0.625f
#define F4_Q  1.5f
#define F4_P2 (F4_P * F4_P)
#define F4_Q2 (F4_Q * F4_Q)
#define F4_P3 (F4_P * F4_P2)
#define F4_Q3 (F4_Q * F4_Q2)
/* Scales of the filters' rows for 0, +-P, +-Q. */
#define F4_G0 (1.0f / (F4_P2 * F4_Q2))
#define F4_GP (0.5f / (F4_P2 * (F4_P2 - F4_Q2)))
#define F4_GQ (0.5f / (F4_Q2 * (F4_Q2 - F4_P2)))

/* One side of a convolution: a batch of images, and the tiles that cover the *other* side's. */
struct f4_images {
    size_t height, width, cstride, stride;
};
struct f4_tiling {
    size_t rows, columns, n; /* of an image; in the batch */
};

/* What is read: one of conv.h's three forms. */
enum f4_form { F4_PLAIN, F4_SOURCE, F4_GRADIENT };
struct f4_input {
    struct f4_images images;
    struct f4_tiling tiling;
    size_t pad;
    enum f4_form form;
    struct dpn_source x;
    struct dpn_gradient dy;
};

static inline struct f4_tiling f4_tiles(size_t samples, size_t height, size_t width)
{
    struct f4_tiling tiling = {(height + F4_OUT - 1) / F4_OUT, (width + F4_OUT - 1) / F4_OUT, 0};
    tiling.n = samples * tiling.rows * tiling.columns;
    return tiling;
}

static inline void f4_set_source(struct f4_input *input, const struct dpn_source *x)
{
    input->x = *x;
    input->form = x->scale ? F4_SOURCE : F4_PLAIN;
}

static inline void f4_set_gradient(struct f4_input *input, const struct dpn_gradient *dy)
{
    input->dy = *dy;
    input->x.x = dy->g;
    input->form = dy->z ? F4_GRADIENT : F4_PLAIN;
}

/* Floats from one of the 36 planes to the next: an odd number of cache lines, or the planes would fight for
 * the same lines of L1. */
static inline size_t f4_plane(size_t tiles, size_t channels)
{
    size_t lines = tiles * channels / 16;
    return (lines | 1) * 16;
}

/* V[36][tile][channel] = B^T d B of TILES tiles from FIRST on, CHANNELS channels from FIRST_CHANNEL on; PLANE
 * floats between planes, rows of CHANNELS floats. */
void DPN_ISA_SYMBOL(f4_input)(const struct f4_input *input, size_t first, size_t tiles, size_t first_channel,
                              size_t channels, float *v, size_t plane);
/* D[36][tile][channel] = A dY A^T, likewise, of the 4x4 tiles of a gradient. */
void DPN_ISA_SYMBOL(f4_gradient)(const struct f4_input *input, size_t first, size_t tiles,
                                 size_t first_channel, size_t channels, float *d, size_t plane);

/* What the output transform does with a tile. */
struct f4_output {
    struct f4_images images;
    struct f4_tiling tiling;
    float *y;
    const float *bias; /* NULL: none */
    int relu, accumulate, stream;
    float *moments;                   /* this block's, or NULL */
    const struct dpn_mask_sums *mask; /* or NULL; its sums: this block's */
};
/* y = A^T M A for tiles FIRST .. FIRST+TILES-1, channels FIRST_CHANNEL .. +CHANNELS-1, from
 * M[36][tile][channel]. */
void DPN_ISA_SYMBOL(f4_output)(const struct f4_output *output, size_t first, size_t tiles,
                               size_t first_channel, size_t channels, const float *m, size_t plane);

/* U[36][channel][WIDTH] = G g G^T for CHANNELS channels of the input side from FIRST on and the WIDTH
 * channels of the output side's panel P; PLANE floats between planes. DATA: of the filters turned round, from
 * outputs to inputs. */
void DPN_ISA_SYMBOL(f4_filter)(const struct dpn_conv *conv, const float *weights, int data, size_t panel,
                               size_t first, size_t channels, size_t width, float *u, size_t plane);

/* M[36][tile][WIDTH] (+)= V[36][tile][channel] U[36][channel][WIDTH], planes as above. */
struct f4_products {
    size_t tiles, channels, width;
    const float *v, *u;
    float *m;
    size_t v_plane, u_plane, m_plane;
    int accumulate;
};
void DPN_ISA_SYMBOL(f4_products)(const struct f4_products *products);

/* The weights pass: fields of struct dpn_conv_algorithm. */
size_t DPN_ISA_SYMBOL(f4_weights_shared)(const struct dpn_conv *conv);
size_t DPN_ISA_SYMBOL(f4_weights_private)(const struct dpn_conv *conv);
size_t DPN_ISA_SYMBOL(f4_weights_items)(const struct dpn_conv *conv, int phase);
void DPN_ISA_SYMBOL(f4_weights_run)(const struct dpn_conv_args *args, int phase, size_t first, size_t count,
                                    float *scratch);

#endif
