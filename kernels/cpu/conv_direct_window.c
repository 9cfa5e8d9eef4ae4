/* Direct convolution, products over patches that are read where they lie in the staged copy.
 *
 * Idea: there a patch is ny runs of nx*channels floats, one pitch apart, and the next patch begins
 * step*channels floats on. A tile of sums in registers needs of a patch one float at a time, from memory, so
 * it can walk the runs as well as a packed row. With one panel of output channels at most, packing costs as
 * much as the products.
 *
 * Few output channels leave half of a vector of 16 empty. With a single input channel at steps of 1 the next
 * pixel's float is the next in memory: a vector then holds two pixels of 8 channels each, in turn.
 *
 * Cost: the flops of the definition; a load a product of a vector, which two pipes hide.
 * Determinism: chains as gemm's, whatever the tiles; sums of pairs are one chain for the first pixels and one
 * for the second ones of all pairs, added at the end.
 * Limits: a staged gather, widths of whole vectors. Tiles do not go over the end of a row of pixels: rows
 * should be as long as a tile is tall.
 */
#include "kernels/cpu/conv_direct.h"

#if DPN_LANES == 16
enum { WINDOW_VECS = 4, WINDOW_TALLEST = 25, WINDOW_PAIRS = 16 };
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

#if DPN_LANES == 16
/* The low 8 floats of a and b in turn. */
static DPN_ALWAYS_INLINE dpn_vec window_pair(dpn_vec a, dpn_vec b)
{
    return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}

/* PAIRS pairs of pixels, 8 channels, a constant in every copy. */
static DPN_ALWAYS_INLINE void window_pair_product(const struct window_tile *tile, const size_t pairs)
{
    const dpn_vec zero = {0};
    const float *line = tile->a, *b = tile->b;
    dpn_vec sum[WINDOW_PAIRS];

    DPN_UNROLL
    for (size_t i = 0; i < pairs; i++) sum[i] = zero;
    for (size_t r = 0; r < tile->runs; r++, line += tile->pitch) {
        const float *a = line;
        for (size_t l = 0; l < tile->run; l++, a++, b += tile->b_row) {
            const dpn_vec row = dpn_vec_load(b), both = window_pair(row, row);
            DPN_UNROLL
            for (size_t i = 0; i < pairs; i++) sum[i] = dpn_vec_fma(dpn_vec_set_two(a + 2 * i), both, sum[i]);
        }
    }
    float *c = tile->c;
    DPN_UNROLL
    for (size_t i = 0; i < pairs; i++, c += 2 * tile->c_row) {
        dpn_vec_store(c, __builtin_shufflevector(sum[i], zero, 0, 2, 4, 6, 8, 10, 12, 14, 16, 17, 18, 19, 20,
                                                 21, 22, 23));
        dpn_vec_store(c + tile->c_row, __builtin_shufflevector(sum[i], zero, 1, 3, 5, 7, 9, 11, 13, 15, 16,
                                                               17, 18, 19, 20, 21, 22, 23));
    }
}
#endif

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

#if DPN_LANES == 16
/* Whole patches of RUNS runs of ROWS floats, 8 channels, pixels in pairs. */
static DPN_ALWAYS_INLINE void window_pair_sum(const struct window_tile *tile,
                                              const struct window_walk *positions, int accumulate,
                                              const size_t runs, const size_t rows)
{
    const size_t pitch = tile->pitch, b_row = tile->b_row;
    const dpn_vec zero = {0};
    struct window_walk walk = *positions;
    const float *b = tile->b, *a;
    dpn_vec sum[WINDOW_TALLEST];

    DPN_UNROLL
    for (size_t i = 0; i < runs * rows; i++) sum[i] = zero;
    while (walk.left > 0) {
        size_t count = window_next(&walk, &a);
        for (; count > 1; count -= 2, a += 2, b += 2 * b_row) {
            const dpn_vec both = window_pair(dpn_vec_load(b), dpn_vec_load(b + b_row));
            DPN_UNROLL
            for (size_t i = 0; i < runs * rows; i++)
                sum[i] = dpn_vec_fma(dpn_vec_set_two(a + i / rows * pitch + i % rows), both, sum[i]);
        }
        if (count == 0) continue;
        const dpn_vec one = window_pair(dpn_vec_load(b), zero);
        DPN_UNROLL
        for (size_t i = 0; i < runs * rows; i++)
            sum[i] = dpn_vec_fma(dpn_vec_set(a[i / rows * pitch + i % rows]), one, sum[i]);
        b += b_row;
    }
    float *c = tile->c;
    DPN_UNROLL
    for (size_t i = 0; i < runs * rows; i++, c += tile->c_row) {
        const dpn_vec turned = __builtin_shufflevector(sum[i], zero, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13,
                                                       12, 15, 14);
        dpn_vec total = __builtin_shufflevector(sum[i] + turned, zero, 0, 2, 4, 6, 8, 10, 12, 14, 16, 17, 18,
                                                19, 20, 21, 22, 23);
        if (accumulate) total += dpn_vec_load(c);
        dpn_vec_store(c, total);
    }
}
#endif

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
#define WINDOW_PAIR(pairs, vecs) \
    static void window_pair_product_##pairs(const struct window_tile *tile) \
    { \
        window_pair_product(tile, pairs); \
    }
#define WINDOW_PAIR_ENTRY(pairs, vecs) [pairs] = window_pair_product_##pairs,
#define WINDOW_PAIR_SUM(runs, rows) \
    static void window_pair_sum_##runs##x##rows( \
        const struct window_tile *tile, const struct window_walk *positions, size_t offset, int accumulate) \
    { \
        (void)offset; \
        window_pair_sum(tile, positions, accumulate, runs, rows); \
    }
WINDOW_TO_16(WINDOW_PAIR, 1)
WINDOW_PAIR_SUM(3, 3)
WINDOW_PAIR_SUM(5, 5)
static window_product_fn *const window_pairs[WINDOW_PAIRS + 1] = {WINDOW_TO_16(WINDOW_PAIR_ENTRY, 1)};
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

/* Whether pixels go in pairs. */
static int window_in_pairs(const struct direct_gather *gather, size_t valid)
{
    return DPN_LANES == 16 && gather->map.channels == 1 && gather->step == 1 && valid <= 8;
}

/* As many pixels as go in pairs from TILE on; returns how many. */
static size_t window_pair_products(struct window_tile *tile, size_t pixels)
{
#if DPN_LANES == 16
    for (size_t left = pixels / 2, pairs; left > 0; left -= pairs) {
        pairs = direct_cuts(left, direct_cuts(left, WINDOW_PAIRS));
        window_pairs[pairs](tile);
        tile->a += 2 * pairs;
        tile->c += 2 * pairs * tile->c_row;
    }
    return pixels / 2 * 2;
#else
    (void)tile;
    (void)pixels;
    return 0;
#endif
}

void DPN_ISA_SYMBOL(direct_window_products)(const struct direct_gather *gather, size_t first, size_t count,
                                            const float *b, size_t width, size_t valid, float *c,
                                            size_t c_row)
{
    const int in_pairs = window_in_pairs(gather, valid);
    struct window_walk walk = window_begin(gather, first, count);
    struct window_tile tile = window_tile(gather, b, width, c, c_row);
    while (walk.left > 0) {
        const float *from;
        const size_t pixels = window_next(&walk, &from);
        tile.a = from;
        tile.c = c;
        const size_t done = in_pairs ? window_pair_products(&tile, pixels) : 0;
        for (size_t s = 0, vecs; s < width; s += vecs * DPN_LANES) {
            vecs = window_vecs(width - s);
            tile.b = b + s;
            tile.a = from + done * tile.step;
            tile.c = c + s + done * c_row;
            for (size_t left = pixels - done, rows; left > 0; left -= rows) {
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
static window_sum_fn *window_whole(size_t runs, size_t run, size_t vecs, int in_pairs)
{
#if DPN_LANES == 16
    if (in_pairs && runs == 3 && run == 3) return window_pair_sum_3x3;
    if (in_pairs && runs == 5 && run == 5) return window_pair_sum_5x5;
    if (runs == 3 && run == 3 && vecs < 4) return vecs == 1 ? window_sum_3x3x1 : window_sum_3x3x2;
    if (runs == 5 && run == 5 && vecs == 1) return window_sum_5x5x1;
#else
    (void)runs;
    (void)run;
    (void)vecs;
    (void)in_pairs;
#endif
    return NULL;
}

void DPN_ISA_SYMBOL(direct_window_sums)(const struct direct_gather *gather, size_t first, size_t count,
                                        const float *b, size_t b_row, size_t width, size_t valid, float *sums,
                                        int accumulate)
{
    const int in_pairs = window_in_pairs(gather, valid);
    const struct window_walk walk = window_begin(gather, first, count);
    struct window_tile tile = window_tile(gather, b, b_row, sums, width);
    for (size_t s = 0, vecs; s < width; s += vecs * DPN_LANES) {
        vecs = window_vecs(width - s);
        tile.b = b + s;
        tile.c = sums + s;
        window_sum_fn *whole = window_whole(tile.runs, tile.run, vecs, in_pairs);
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
