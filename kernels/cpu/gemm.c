/* Matrix product: each C[i][j] is one chain of multiply-adds over ascending k (kernels.h).
 *
 * Columns are taken 64 at a time (a panel), k in blocks whose part of the panel stays in L1, rows in tiles of
 * which every accumulator lives in a register. A tile that is not the first of its k blocks goes on from C,
 * so blocking leaves the chain as it is. Transposed B, and columns that do not fill 16, are packed block by
 * block into a buffer on the stack, zero-padded; no other copy is made.
 *
 * Tiles for 32 registers: 6x64, 8x48, 12x32, 24x16 (24 accumulators each: 8 hide the latency of two FMA
 * pipes, the rest cuts loads of B). For 16 registers: 6 rows of two vectors. A 6x64 tile fetches ahead one
 * line a step of k, which is worth 8-15% when B comes from beyond L2.
 *
 * A set with FMA fuses every step of every chain, by intrinsics, one without never does: what a compiler
 * contracts by itself would depend on what stands around it (a sanitizer's checks are enough).
 */
#include <string.h>

#include "kernels/cpu/vector.h"

enum {
    GEMM_COLUMNS = DPN_PANEL_COLUMNS,
    GEMM_K_BLOCK = 128, /* 128 x 64 floats: 32 KB of L1, and the size of the packing buffer */
    GEMM_MAX_ROWS = 24,
};

/* Loads and stores of any alignment; the same speed as aligned ones where the address is. */
typedef float gemm_vec __attribute__((vector_size(DPN_LANES * 4)));
typedef float gemm_vec_any __attribute__((vector_size(DPN_LANES * 4), aligned(4), may_alias));

/* SUM + X * ROW. */
static DPN_ALWAYS_INLINE gemm_vec gemm_step(gemm_vec sum, float x, gemm_vec row)
{
#if DPN_LANES == 16
    return _mm512_fmadd_ps(_mm512_set1_ps(x), row, sum);
#elif DPN_LANES == 8
    return _mm256_fmadd_ps(_mm256_set1_ps(x), row, sum);
#else
    return sum + x * row;
#endif
}

struct gemm_tile {
    size_t k;
    const float *a;
    size_t a_stride; /* between rows, or between steps of k: the other stride is 1 */
    const float *b;
    size_t b_row;
    float *c;
    size_t c_row;
    int accumulate;
    uintptr_t ahead;   /* address in what the next block will read: a line of it is fetched every step of k */
    size_t ahead_step; /* a line's bytes; 0: nothing known, AHEAD stays where it is */
};
typedef void gemm_tile_fn(const struct gemm_tile *tile);

/* ROWS x VECS accumulators, constants in every copy. A_BY_K: A's k stride is 1, else its row stride. */
static DPN_ALWAYS_INLINE void gemm_multiply(const struct gemm_tile *tile, const size_t rows,
                                            const size_t vecs, const int a_by_k)
{
    const size_t a_row = a_by_k ? tile->a_stride : 1, a_col = a_by_k ? 1 : tile->a_stride;
    const size_t b_row = tile->b_row, c_row = tile->c_row, k = tile->k;
    const size_t ahead_step = tile->ahead_step;
    const int prefetch = a_by_k && vecs == 4; /* elsewhere it cost more than it brought */
    const float *a = tile->a, *b = tile->b;
    uintptr_t ahead = tile->ahead;
    gemm_vec acc[GEMM_MAX_ROWS][4], row[4];

    DPN_UNROLL
    for (size_t i = 0; i < rows; i++) {
        DPN_UNROLL
        for (size_t v = 0; v < vecs; v++) acc[i][v] = (gemm_vec){0};
    }
    if (tile->accumulate) {
        const float *c = tile->c;
        DPN_UNROLL
        for (size_t i = 0; i < rows; i++) {
            DPN_UNROLL
            for (size_t v = 0; v < vecs; v++) acc[i][v] = *(const gemm_vec_any *)(c + v * DPN_LANES);
            c += c_row;
        }
    }
    for (size_t l = 0; l < k; l++) {
        DPN_UNROLL
        for (size_t v = 0; v < vecs; v++) row[v] = *(const gemm_vec_any *)(b + v * DPN_LANES);
        DPN_UNROLL
        for (size_t i = 0; i < rows; i++) {
            const float factor = a[i * a_row];
            DPN_UNROLL
            for (size_t v = 0; v < vecs; v++) acc[i][v] = gemm_step(acc[i][v], factor, row[v]);
        }
        if (prefetch) __builtin_prefetch((const void *)ahead);
        ahead += ahead_step;
        a += a_col;
        b += b_row;
    }
    float *c = tile->c;
    /* Hides that C is the same as above: all rows' addresses would be kept in registers over the loop. */
    __asm__("" : "+r"(c));
    DPN_UNROLL
    for (size_t i = 0; i < rows; i++) {
        DPN_UNROLL
        for (size_t v = 0; v < vecs; v++) *(gemm_vec_any *)(c + v * DPN_LANES) = acc[i][v];
        c += c_row;
    }
}

/* clang-format off */
#define GEMM_TILE(rows, vecs) \
    static void gemm_##rows##x##vecs##_by_k(const struct gemm_tile *tile) \
    { \
        gemm_multiply(tile, rows, vecs, 1); \
    } \
    static void gemm_##rows##x##vecs##_by_row(const struct gemm_tile *tile) \
    { \
        gemm_multiply(tile, rows, vecs, 0); \
    }
#define GEMM_ENTRY(rows, vecs) {rows, {gemm_##rows##x##vecs##_by_row, gemm_##rows##x##vecs##_by_k}}
/* clang-format on */

/* Tiles of one width, tallest first, down to one row. */
struct gemm_height {
    size_t rows;
    gemm_tile_fn *run[2];
};

GEMM_TILE(6, 2)
GEMM_TILE(5, 2)
GEMM_TILE(4, 2)
GEMM_TILE(3, 2)
GEMM_TILE(2, 2)
GEMM_TILE(1, 2)
#if DPN_LANES == 16
GEMM_TILE(6, 4)
GEMM_TILE(5, 4)
GEMM_TILE(4, 4)
GEMM_TILE(3, 4)
GEMM_TILE(2, 4)
GEMM_TILE(1, 4)
GEMM_TILE(8, 3)
GEMM_TILE(6, 3)
GEMM_TILE(4, 3)
GEMM_TILE(2, 3)
GEMM_TILE(1, 3)
GEMM_TILE(12, 2)
GEMM_TILE(8, 2)
GEMM_TILE(24, 1)
GEMM_TILE(16, 1)
GEMM_TILE(8, 1)
GEMM_TILE(4, 1)
GEMM_TILE(2, 1)
GEMM_TILE(1, 1)
enum { GEMM_MAX_VECS = 4 };
static const struct gemm_height gemm_heights[GEMM_MAX_VECS + 1][9] = {
    [1] = {GEMM_ENTRY(24, 1), GEMM_ENTRY(16, 1), GEMM_ENTRY(8, 1), GEMM_ENTRY(4, 1), GEMM_ENTRY(2, 1),
           GEMM_ENTRY(1, 1)},
    [2] = {GEMM_ENTRY(12, 2), GEMM_ENTRY(8, 2), GEMM_ENTRY(6, 2), GEMM_ENTRY(5, 2), GEMM_ENTRY(4, 2),
           GEMM_ENTRY(3, 2), GEMM_ENTRY(2, 2), GEMM_ENTRY(1, 2)},
    [3] = {GEMM_ENTRY(8, 3), GEMM_ENTRY(6, 3), GEMM_ENTRY(4, 3), GEMM_ENTRY(2, 3), GEMM_ENTRY(1, 3)},
    [4] = {GEMM_ENTRY(6, 4), GEMM_ENTRY(5, 4), GEMM_ENTRY(4, 4), GEMM_ENTRY(3, 4), GEMM_ENTRY(2, 4),
           GEMM_ENTRY(1, 4)},
};
#else
enum { GEMM_MAX_VECS = 2 };
static const struct gemm_height gemm_heights[GEMM_MAX_VECS + 1][9] = {
    [2] = {GEMM_ENTRY(6, 2), GEMM_ENTRY(5, 2), GEMM_ENTRY(4, 2), GEMM_ENTRY(3, 2), GEMM_ENTRY(2, 2),
           GEMM_ENTRY(1, 2)},
};
#endif

/* The tile for the next of REMAINING rows: as few tiles as the tallest allows, all about equally tall,
 * because a low last tile leaves the FMA pipes waiting. */
static const struct gemm_height *gemm_choose(const struct gemm_height *heights, size_t remaining)
{
    size_t tallest = heights[0].rows, tiles = (remaining + tallest - 1) / tallest;
    size_t even = (remaining + tiles - 1) / tiles;
    const struct gemm_height *height = heights;
    while (height[0].rows > remaining) height++;
    while (height[1].rows >= even) height++;
    return height;
}

/* C[m][width] (+)= A B for one column tile of WIDTH = whole vectors and one block of k. */
static void gemm_rows(const struct gemm_tile *first, size_t m, size_t width, int a_by_k)
{
    const struct gemm_height *heights = gemm_heights[width / DPN_LANES];
    const size_t a_step = a_by_k ? first->a_stride : 1;
    struct gemm_tile tile = *first;
    while (m > 0) {
        const struct gemm_height *height = gemm_choose(heights, m);
        height->run[a_by_k](&tile);
        tile.a += height->rows * a_step;
        tile.c += height->rows * tile.c_row;
        tile.ahead += tile.k * tile.ahead_step;
        m -= height->rows;
    }
}

/* As gemm_rows, but only the first VALID of the tile's WIDTH columns exist in C: through a buffer. */
static void gemm_rows_partial(const struct gemm_tile *first, size_t m, size_t width, size_t valid, int a_by_k)
{
    _Alignas(64) float buffer[GEMM_MAX_ROWS * GEMM_COLUMNS];
    const size_t a_step = a_by_k ? first->a_stride : 1;
    struct gemm_tile tile = *first;
    tile.c = buffer;
    tile.c_row = width;
    for (size_t i = 0; i < m; i += GEMM_MAX_ROWS) {
        size_t rows = m - i < GEMM_MAX_ROWS ? m - i : GEMM_MAX_ROWS;
        float *c = first->c + i * first->c_row;
        memset(buffer, 0, rows * width * sizeof *buffer);
        for (size_t r = 0; tile.accumulate && r < rows; r++)
            memcpy(buffer + r * width, c + r * first->c_row, valid * sizeof *c);
        tile.a = first->a + i * a_step;
        gemm_rows(&tile, rows, width, a_by_k);
        for (size_t r = 0; r < rows; r++) memcpy(c + r * first->c_row, buffer + r * width, valid * sizeof *c);
    }
}

/* to[l][j] = B(l, j) for l < K, j < VALID, else 0; rows of WIDTH floats. */
static void gemm_pack(const struct dpn_gemm *gemm, const float *b, size_t k, size_t valid, size_t width,
                      float *to)
{
    size_t l4 = 0, j4 = 0;
    if (gemm->b_col != 1) { /* transposed: b_row is 1 */
        l4 = k & ~(size_t)3;
        j4 = valid & ~(size_t)3;
        for (size_t j = 0; j < j4; j += 4)
            for (size_t l = 0; l < l4; l += 4)
                dpn_transpose4(b + j * gemm->b_col + l, gemm->b_col, to + l * width + j, width);
    }
    for (size_t l = 0; l < k; l++) {
        float *row = to + l * width;
        for (size_t j = l < l4 ? j4 : 0; j < valid; j++) row[j] = b[l * gemm->b_row + j * gemm->b_col];
        for (size_t j = valid; j < width; j++) row[j] = 0;
    }
}

/* One block of k of a whole panel, cut into tiles' widths. FIRST lacks b and c. */
static void gemm_columns(const struct gemm_tile *first, size_t m, const float *b, float *c, size_t width,
                         size_t valid, int a_by_k)
{
    const size_t widest = GEMM_MAX_VECS * DPN_LANES;
    for (size_t s = 0; s < valid; s += widest) {
        size_t columns = width - s < widest ? width - s : widest;
        struct gemm_tile tile = *first;
        tile.b = b + s;
        tile.c = c + s;
        if (s + columns <= valid) gemm_rows(&tile, m, columns, a_by_k);
        else gemm_rows_partial(&tile, m, columns, valid - s, a_by_k);
    }
}

/* Columns J .. J+VALID-1 of C, VALID at most GEMM_COLUMNS. */
static void gemm_panel(const struct dpn_gemm *gemm, size_t j, size_t valid)
{
    _Alignas(64) float packed[GEMM_K_BLOCK * GEMM_COLUMNS];
    const size_t width = (valid + 15) / 16 * 16;
    const int a_by_k = gemm->a_col == 1;
    const int pack = gemm->b_col != 1 || width != valid;
    const size_t blocks = (gemm->k + GEMM_K_BLOCK - 1) / GEMM_K_BLOCK;
    const size_t block = (gemm->k + blocks - 1) / blocks;

    /* What follows this block in memory is the next one to be read, and after the last the next panel's. */
    const int ordered = pack ? gemm->b_row == 1 && gemm->b_col == GEMM_COLUMNS : gemm->b_row == GEMM_COLUMNS;

    for (size_t l = 0; l < gemm->k; l += block) {
        size_t k = gemm->k - l < block ? gemm->k - l : block;
        const float *b = gemm->b + l * gemm->b_row + j * gemm->b_col;
        if (pack) gemm_pack(gemm, b, k, valid, width, packed);
        struct gemm_tile tile = {
            .k = k,
            .a = gemm->a + l * gemm->a_col,
            .a_stride = a_by_k ? gemm->a_row : gemm->a_col,
            .b_row = pack ? width : gemm->b_row,
            .c_row = gemm->c_row,
            .accumulate = gemm->accumulate || l > 0,
            .ahead = (uintptr_t)(ordered ? b + GEMM_COLUMNS * (pack ? valid : k) : gemm->a),
            .ahead_step = ordered ? 64 : 0,
        };
        gemm_columns(&tile, gemm->m, pack ? packed : b, gemm->c + j, width, valid, a_by_k);
    }
}

void DPN_ISA_SYMBOL(gemm)(const struct dpn_gemm *gemm)
{
    if (gemm->k == 0 && !gemm->accumulate)
        for (size_t i = 0; i < gemm->m; i++) memset(gemm->c + i * gemm->c_row, 0, gemm->n * sizeof *gemm->c);
    if (gemm->m == 0 || gemm->k == 0) return;
    /* Whole vectors and the rest apart: only the rest needs packing. */
    const size_t whole = gemm->b_col == 1 ? gemm->n / 16 * 16 : gemm->n;
    for (size_t j = 0; j < whole; j += GEMM_COLUMNS)
        gemm_panel(gemm, j, whole - j < GEMM_COLUMNS ? whole - j : GEMM_COLUMNS);
    if (whole < gemm->n) gemm_panel(gemm, whole, gemm->n - whole);
}
