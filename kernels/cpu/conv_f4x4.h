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

/* ---- what is fetched ahead ----
 *
 * The transforms read images in short runs of pixels, which no prefetcher of a CPU follows, from memory; the
 * products read caches only. So while products run, the images' part that comes next is fetched into L2.
 */

/* PIXELS pieces of LINES cache lines, STEP floats apart. */
struct f4_region {
    const float *at;
    size_t pixels, lines, step;
};
enum { F4_REGIONS = 5, F4_LINE = 16 };
struct f4_ahead {
    struct f4_region region[F4_REGIONS];
    size_t n, each; /* regions; lines at a time */
    size_t at, pixel, line;
};

/* Floats to the first pixel that no tile before TILE reads, if tiles' reads end BEYOND rows below them. */
static inline size_t f4_reach(const struct f4_images *images, const struct f4_tiling *tiling, size_t tile,
                              size_t beyond)
{
    const size_t per_image = tiling->rows * tiling->columns, last = tile - 1;
    if (tile == 0) return 0;
    const size_t rows = last % per_image / tiling->columns * F4_OUT + F4_OUT + beyond;
    return last / per_image * images->stride +
           (rows < images->height ? rows : images->height) * images->width * images->cstride;
}

/* Of an image that reaches there, the floats FROM .. END of IMAGES, channels C .. C+CHANNELS-1. */
static inline void f4_ahead_add(struct f4_ahead *ahead, const float *x, const struct f4_images *images,
                                size_t from, size_t end, size_t c, size_t channels)
{
    if (x == NULL || end <= from) return;
    ahead->region[ahead->n++] = (struct f4_region){
        .at = x + from + c,
        .pixels = (end - from) / images->cstride,
        .lines = channels / F4_LINE,
        .step = images->cstride,
    };
}

/* Spreads it all over CALLS of f4_fetch. */
static inline void f4_ahead_spread(struct f4_ahead *ahead, size_t calls)
{
    size_t lines = 0;
    for (size_t i = 0; i < ahead->n; i++) lines += ahead->region[i].pixels * ahead->region[i].lines;
    ahead->each = (lines + calls - 1) / calls;
    ahead->at = ahead->pixel = ahead->line = 0;
}

static inline void f4_fetch(struct f4_ahead *ahead)
{
    for (size_t left = ahead->each, run; left > 0 && ahead->at < ahead->n; left -= run) {
        const struct f4_region *region = &ahead->region[ahead->at];
        const float *from = region->at + ahead->pixel * region->step + ahead->line * F4_LINE;
        run = region->lines - ahead->line < left ? region->lines - ahead->line : left;
        for (size_t i = 0; i < run; i++) __builtin_prefetch((const void *)(from + i * F4_LINE), 0, 2);
        ahead->line += run;
        if (ahead->line < region->lines) continue;
        ahead->line = 0;
        if (++ahead->pixel < region->pixels) continue;
        ahead->pixel = 0;
        ahead->at++;
    }
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
    struct f4_ahead *ahead; /* NULL: nothing */
};
void DPN_ISA_SYMBOL(f4_products)(const struct f4_products *products);

/* The weights pass: fields of struct dpn_conv_algorithm. */
size_t DPN_ISA_SYMBOL(f4_weights_shared)(const struct dpn_conv *conv);
size_t DPN_ISA_SYMBOL(f4_weights_private)(const struct dpn_conv *conv);
size_t DPN_ISA_SYMBOL(f4_weights_items)(const struct dpn_conv *conv, int phase);
void DPN_ISA_SYMBOL(f4_weights_run)(const struct dpn_conv_args *args, int phase, size_t first, size_t count,
                                    float *scratch);

#endif
