/* Direct convolution, products over patches that are read where they lie in the staged copy.
 *
 * Idea: there a patch is ny runs of nx*channels floats, one pitch apart, and the next patch begins
 * step*channels floats on. A tile of sums in registers needs of a patch one float at a time, from memory, so
 * it can walk the runs as well as a packed row. With one panel of output channels at most, packing costs as
 * much as the products.
 *
 * Cost: the flops of the definition; a load a product of a vector, which two pipes hide.
 * Determinism: chains as gemm's, whatever the tiles.
 * Limits: a staged gather, widths of whole vectors. Tiles do not go over the end of a row of pixels: rows
 * should be as long as a tile is tall.
 */
#include "kernels/cpu/conv_direct.h"

#if DPN_LANES == 16
enum { WINDOW_VECS = 4, WINDOW_TALLEST = 25 };
/* Tallest tile of one, two, four vectors: accumulators, and loads of B to use them on. */
static const size_t window_tall[WINDOW_VECS + 1] = {0, 16, 12, 0, 6};
#else
enum { WINDOW_VECS = 2, WINDOW_TALLEST = 6 };
static const size_t window_tall[WINDOW_VECS + 1] = {0, 0, 6};
#endif

/* Positions of a gather, a row of pixels at a time. */
struct window_walk {
    const struct direct_gather *gather;
    size_t sample, row, column, left;
};

static struct window_walk window_begin(const struct direct_gather *gather, size_t first, size_t count)
{
    const size_t lines = first / gather->columns;
    return (struct window_walk){
        gather, lines / gather->rows, lines % gather->rows, first % gather->columns, count,
    };
}

/* How many positions lie in the rest of the row; FROM: the first float of the first one's patch. */
static DPN_ALWAYS_INLINE size_t window_next(struct window_walk *walk, const float **from)
{
    const struct direct_gather *gather = walk->gather;
    const size_t count = direct_min(walk->left, gather->columns - walk->column);
    const size_t line = walk->sample * direct_stage_rows(gather) + walk->row * gather->step;
    *from = gather->staged +
            (line * direct_stage_columns(gather) + walk->column * gather->step) * gather->map.channels;
    walk->left -= count;
    walk->column = 0;
    if (++walk->row == gather->rows) {
        walk->row = 0;
        walk->sample++;
    }
    return count;
}

struct window_tile {
    const float *a, *b;
    size_t step, pitch;  /* from patch to patch, from run to run */
    size_t runs, run;    /* of a patch, floats of a run */
    size_t b_row, c_row; /* strides */
    float *c;
};

/* ---- forward: C[patch][] = patch times B ---- */

/* ROWS and VECS are constants in every copy. */
static DPN_ALWAYS_INLINE void window_product(const struct window_tile *tile, const size_t rows,
                                             const size_t vecs)
{
    const size_t step = tile->step, run = tile->run, b_row = tile->b_row;
    const float *line = tile->a, *b = tile->b;
    dpn_vec sum[WINDOW_TALLEST][WINDOW_VECS], row[WINDOW_VECS];

    DPN_UNROLL
    for (size_t i = 0; i < rows; i++) {
        DPN_UNROLL
        for (size_t v = 0; v < vecs; v++) sum[i][v] = (dpn_vec){0};
    }
    for (size_t r = 0; r < tile->runs; r++, line += tile->pitch) {
        const float *a = line;
        for (size_t l = 0; l < run; l++, a++, b += b_row) {
            DPN_UNROLL
            for (size_t v = 0; v < vecs; v++) row[v] = dpn_vec_load(b + v * DPN_LANES);
            DPN_UNROLL
            for (size_t i = 0; i < rows; i++) {
                const dpn_vec factor = dpn_vec_set(a[i * step]);
                DPN_UNROLL
                for (size_t v = 0; v < vecs; v++) sum[i][v] = dpn_vec_fma(factor, row[v], sum[i][v]);
            }
        }
    }
    float *c = tile->c;
    DPN_UNROLL
    for (size_t i = 0; i < rows; i++, c += tile->c_row) {
        DPN_UNROLL
        for (size_t v = 0; v < vecs; v++) dpn_vec_store(c + v * DPN_LANES, sum[i][v]);
    }
}

/* ---- weights: C[float of a patch][] += sum over patches of the float times B[patch] ---- */

/* RUNS runs of ROWS floats of every patch; POSITIONS says which patches. RUNS, ROWS and VECS are constants in
 * every copy. */
static DPN_ALWAYS_INLINE void window_sum(const struct window_tile *tile, const struct window_walk *positions,
                                         size_t offset, int accumulate, const size_t runs, const size_t rows,
                                         const size_t vecs)
{
    const size_t step = tile->step, pitch = tile->pitch, b_row = tile->b_row, c_run = tile->run * tile->c_row;
    struct window_walk walk = *positions;
    const float *b = tile->b, *a;
    dpn_vec sum[WINDOW_TALLEST][WINDOW_VECS], row[WINDOW_VECS];

    DPN_UNROLL
    for (size_t i = 0; i < runs * rows; i++) {
        DPN_UNROLL
        for (size_t v = 0; v < vecs; v++) sum[i][v] = (dpn_vec){0};
    }
    if (accumulate) {
        const float *c = tile->c;
        DPN_UNROLL
        for (size_t i = 0; i < runs * rows; i++) {
            DPN_UNROLL
            for (size_t v = 0; v < vecs; v++)
                sum[i][v] = dpn_vec_load(c + i / rows * c_run + i % rows * tile->c_row + v * DPN_LANES);
        }
    }
    while (walk.left > 0) {
        size_t count = window_next(&walk, &a);
        a += offset;
        for (; count > 0; count--, a += step, b += b_row) {
            DPN_UNROLL
            for (size_t v = 0; v < vecs; v++) row[v] = dpn_vec_load(b + v * DPN_LANES);
            DPN_UNROLL
            for (size_t i = 0; i < runs * rows; i++) {
                const dpn_vec factor = dpn_vec_set(a[i / rows * pitch + i % rows]);
                DPN_UNROLL
                for (size_t v = 0; v < vecs; v++) sum[i][v] = dpn_vec_fma(factor, row[v], sum[i][v]);
            }
        }
    }
    float *c = tile->c;
    DPN_UNROLL
    for (size_t i = 0; i < runs * rows; i++) {
        DPN_UNROLL
        for (size_t v = 0; v < vecs; v++)
            dpn_vec_store(c + i / rows * c_run + i % rows * tile->c_row + v * DPN_LANES, sum[i][v]);
    }
}

/* ---- tiles ---- */

typedef void window_product_fn(const struct window_tile *tile);
typedef void window_sum_fn(const struct window_tile *tile, const struct window_walk *positions, size_t offset,
                           int accumulate);
struct window_entry {
    window_product_fn *product;
    window_sum_fn *sum;
};

/* clang-format off */
#define WINDOW_SUM(runs, rows, vecs) \
    static void window_sum_##runs##x##rows##x##vecs( \
        const struct window_tile *tile, const struct window_walk *positions, size_t offset, int accumulate) \
    { \
        window_sum(tile, positions, offset, accumulate, runs, rows, vecs); \
    }
#define WINDOW_TILE(rows, vecs) \
    static void window_product_##rows##x##vecs(const struct window_tile *tile) \
    { \
        window_product(tile, rows, vecs); \
    } \
    WINDOW_SUM(1, rows, vecs)
#define WINDOW_ENTRY(rows, vecs) [rows] = {window_product_##rows##x##vecs, window_sum_1x##rows##x##vecs},
#define WINDOW_TO_6(each, vecs) \
    each(1, vecs) each(2, vecs) each(3, vecs) each(4, vecs) each(5, vecs) each(6, vecs)
#define WINDOW_TO_12(each, vecs) \
    WINDOW_TO_6(each, vecs) \
    each(7, vecs) each(8, vecs) each(9, vecs) each(10, vecs) each(11, vecs) each(12, vecs)
#define WINDOW_TO_16(each, vecs) \
    WINDOW_TO_12(each, vecs) each(13, vecs) each(14, vecs) each(15, vecs) each(16, vecs)

#if DPN_LANES == 16
WINDOW_TO_16(WINDOW_TILE, 1)
WINDOW_TO_12(WINDOW_TILE, 2)
WINDOW_TO_6(WINDOW_TILE, 4)
WINDOW_SUM(3, 3, 1)
WINDOW_SUM(3, 3, 2)
WINDOW_SUM(5, 5, 1)
static const struct window_entry window_entries[WINDOW_VECS + 1][17] = {
    [1] = {WINDOW_TO_16(WINDOW_ENTRY, 1)},
    [2] = {WINDOW_TO_12(WINDOW_ENTRY, 2)},
    [4] = {WINDOW_TO_6(WINDOW_ENTRY, 4)},
};
#else
WINDOW_TO_6(WINDOW_TILE, 2)
static const struct window_entry window_entries[WINDOW_VECS + 1][7] = {
    [2] = {WINDOW_TO_6(WINDOW_ENTRY, 2)},
};
#endif
/* clang-format on */

/* Vectors of the next tile of WIDTH more columns. */
static size_t window_vecs(size_t width)
{
    size_t vecs = WINDOW_VECS;
    while (vecs * DPN_LANES > width) vecs /= 2;
    return vecs;
}

/* Rows of the next tile of LEFT more: as few tiles as can be, all about equally tall. */
static size_t window_rows(size_t left, size_t vecs)
{
    return direct_cuts(left, direct_cuts(left, window_tall[vecs]));
}

static struct window_tile window_tile(const struct direct_gather *gather, const float *b, size_t b_row,
                                      float *c, size_t c_row)
{
    const size_t channels = gather->map.channels;
    return (struct window_tile){
        .b = b,
        .step = gather->step * channels,
        .pitch = direct_stage_columns(gather) * channels,
        .runs = gather->ny,
        .run = gather->nx * channels,
        .b_row = b_row,
        .c_row = c_row,
        .c = c,
    };
}

void DPN_ISA_SYMBOL(direct_window_products)(const struct direct_gather *gather, size_t first, size_t count,
                                            const float *b, size_t width, float *c, size_t c_row)
{
    struct window_walk walk = window_begin(gather, first, count);
    struct window_tile tile = window_tile(gather, b, width, c, c_row);
    while (walk.left > 0) {
        const float *from;
        const size_t pixels = window_next(&walk, &from);
        for (size_t s = 0, vecs; s < width; s += vecs * DPN_LANES) {
            vecs = window_vecs(width - s);
            tile.b = b + s;
            tile.a = from;
            tile.c = c + s;
            for (size_t left = pixels, rows; left > 0; left -= rows) {
                rows = window_rows(left, vecs);
                window_entries[vecs][rows].product(&tile);
                tile.a += rows * tile.step;
                tile.c += rows * c_row;
            }
        }
        c += pixels * c_row;
    }
}

/* A function for whole patches of few floats, which alone fill a tile; NULL: there is none. */
static window_sum_fn *window_whole(size_t runs, size_t run, size_t vecs)
{
#if DPN_LANES == 16
    if (runs == 3 && run == 3 && vecs < 4) return vecs == 1 ? window_sum_3x3x1 : window_sum_3x3x2;
    if (runs == 5 && run == 5 && vecs == 1) return window_sum_5x5x1;
#else
    (void)runs;
    (void)run;
    (void)vecs;
#endif
    return NULL;
}

void DPN_ISA_SYMBOL(direct_window_sums)(const struct direct_gather *gather, size_t first, size_t count,
                                        const float *b, size_t b_row, size_t width, float *sums,
                                        int accumulate)
{
    const struct window_walk walk = window_begin(gather, first, count);
    struct window_tile tile = window_tile(gather, b, b_row, sums, width);
    for (size_t s = 0, vecs; s < width; s += vecs * DPN_LANES) {
        vecs = window_vecs(width - s);
        tile.b = b + s;
        tile.c = sums + s;
        window_sum_fn *whole = window_whole(tile.runs, tile.run, vecs);
        if (whole != NULL) {
            whole(&tile, &walk, 0, accumulate);
            continue;
        }
        for (size_t r = 0; r < tile.runs; r++) {
            for (size_t at = 0, rows; at < tile.run; at += rows) {
                rows = window_rows(tile.run - at, vecs);
                window_entries[vecs][rows].sum(&tile, &walk, r * tile.pitch + at, accumulate);
                tile.c += rows * width;
            }
        }
    }
}
