/* F(4x4,3x3): the 36 products of transformed input tiles and transformed filters.
 *
 * Idea: as in gemm.c (tiles of six rows of 64 columns in registers, blocks of channels whose filters stay in
 * L1), and every step of a chain fetches a line of the block of filters that comes next, which is in L2 or
 * beyond, and one of the next product's input, which is in L2: gemm knows neither of them. Measured: about 3%
 * of a pass from 128 channels on, nothing at 64. Shorter vectors and narrow panels take gemm.
 * Determinism: an element is one chain over channels, the same as gemm's.
 */
#include "kernels/cpu/conv_f4x4.h"

#if DPN_LANES == 16

enum {
    F4P_ROWS = 6,
    F4P_VECS = DPN_PANEL_COLUMNS / DPN_LANES,
    F4P_CHANNELS = 128, /* at most, of a block: 32 KB of filters */
    F4P_LINE = 16,      /* floats of a cache line */
};

struct f4p_tile {
    size_t k;
    const float *v, *u;
    size_t v_row;
    float *m;
    int accumulate;
    uintptr_t next_u, next_v; /* where to fetch from, a line a step */
    struct f4_ahead *ahead;
};

/* ROWS is a constant in every copy. */
static DPN_ALWAYS_INLINE void f4p_multiply(const struct f4p_tile *tile, const size_t rows)
{
    const size_t k = tile->k, v_row = tile->v_row;
    const float *v = tile->v, *u = tile->u;
    float *m = tile->m;
    uintptr_t next_u = tile->next_u, next_v = tile->next_v;
    dpn_vec sum[F4P_ROWS][F4P_VECS], line[F4P_VECS];

    DPN_UNROLL
    for (size_t i = 0; i < rows; i++) {
        DPN_UNROLL
        for (size_t c = 0; c < F4P_VECS; c++)
            sum[i][c] = tile->accumulate ? dpn_vec_load(m + i * DPN_PANEL_COLUMNS + c * DPN_LANES)
                                         : (dpn_vec){0};
    }
    for (size_t l = 0; l < k; l++) {
        DPN_UNROLL
        for (size_t c = 0; c < F4P_VECS; c++) line[c] = dpn_vec_load(u + c * DPN_LANES);
        DPN_UNROLL
        for (size_t i = 0; i < rows; i++) {
            const dpn_vec factor = dpn_vec_set(v[i * v_row]);
            DPN_UNROLL
            for (size_t c = 0; c < F4P_VECS; c++) sum[i][c] = dpn_vec_fma(factor, line[c], sum[i][c]);
        }
        __builtin_prefetch((const void *)next_u, 0, 2); /* to L2: L1 has no room for two blocks */
        __builtin_prefetch((const void *)next_v);
        next_u += F4P_LINE * sizeof *u;
        next_v += F4P_LINE * sizeof *v;
        v++;
        u += DPN_PANEL_COLUMNS;
    }
    /* Hides that M is the same as above: all rows' addresses would be kept in registers over the loop. */
    __asm__("" : "+r"(m));
    DPN_UNROLL
    for (size_t i = 0; i < rows; i++) {
        DPN_UNROLL
        for (size_t c = 0; c < F4P_VECS; c++)
            dpn_vec_store(m + i * DPN_PANEL_COLUMNS + c * DPN_LANES, sum[i][c]);
    }
}

/* clang-format off */
#define F4P_MULTIPLY(rows) \
    static void f4p_multiply##rows(const struct f4p_tile *tile) { f4p_multiply(tile, rows); }
/* clang-format on */
F4P_MULTIPLY(1)
F4P_MULTIPLY(2)
F4P_MULTIPLY(3)
F4P_MULTIPLY(4)
F4P_MULTIPLY(5)
F4P_MULTIPLY(6)

/* Line AT of the LINES at START, or the first again when they are all fetched. */
static uintptr_t f4p_line(uintptr_t start, size_t at, size_t lines)
{
    return start + (at < lines ? at : 0) * F4P_LINE * sizeof(float);
}

/* FIRST is the first tile of registers of a block of channels; its next_* are where the next data begins. */
static void f4p_rows(const struct f4p_tile *first, size_t rows)
{
    static void (*const run[F4P_ROWS + 1])(
        const struct f4p_tile *) = {NULL,          f4p_multiply1, f4p_multiply2, f4p_multiply3,
                                    f4p_multiply4, f4p_multiply5, f4p_multiply6};
    const size_t n = (rows + F4P_ROWS - 1) / F4P_ROWS;
    struct f4p_tile tile = *first;
    for (size_t t = 0, row = 0; t < n; t++) {
        const size_t height = (rows - row + n - t - 1) / (n - t); /* all about equally tall */
        tile.next_u = f4p_line(first->next_u, t * tile.k, tile.k * DPN_PANEL_COLUMNS / F4P_LINE);
        tile.next_v = f4p_line(first->next_v, t * tile.k, rows * tile.v_row / F4P_LINE);
        if (tile.ahead) f4_fetch(tile.ahead);
        run[height](&tile);
        tile.v += height * tile.v_row;
        tile.m += height * DPN_PANEL_COLUMNS;
        row += height;
    }
}

static size_t f4p_blocks(const struct f4_products *p)
{
    return (p->channels + F4P_CHANNELS - 1) / F4P_CHANNELS;
}

/* Tiles of registers of one product. */
static size_t f4p_calls(const struct f4_products *p)
{
    return f4p_blocks(p) * ((p->tiles + F4P_ROWS - 1) / F4P_ROWS);
}

/* One of the products, a whole panel wide. The next block of filters follows this one, or begins the next
 * plane; after the last plane, the next panel's or the next slice's planes follow. */
static void f4p_product(const struct f4_products *p, size_t xi)
{
    const size_t blocks = f4p_blocks(p);
    const size_t block = (p->channels + blocks - 1) / blocks;
    struct f4p_tile tile = {
        .v = p->v + xi * p->v_plane,
        .u = p->u + xi * p->u_plane,
        .v_row = p->channels,
        .m = p->m + xi * p->m_plane,
        .accumulate = p->accumulate,
        .next_v = (uintptr_t)(p->v + (xi + 1) * p->v_plane),
        .ahead = p->ahead,
    };
    for (size_t left = p->channels; left > 0; left -= tile.k) {
        tile.k = left < block ? left : block;
        tile.next_u = left > tile.k ? (uintptr_t)(tile.u + tile.k * DPN_PANEL_COLUMNS)
                                    : (uintptr_t)(p->u + (xi + 1) * p->u_plane);
        f4p_rows(&tile, p->tiles);
        tile.v += tile.k;
        tile.u += tile.k * DPN_PANEL_COLUMNS;
        tile.accumulate = 1;
    }
}

#endif

static void f4p_gemm(const struct f4_products *p, size_t xi)
{
    const struct dpn_gemm gemm = {
        .m = p->tiles,
        .n = p->width,
        .k = p->channels,
        .a = p->v + xi * p->v_plane,
        .a_row = p->channels,
        .a_col = 1,
        .b = p->u + xi * p->u_plane,
        .b_row = p->width,
        .b_col = 1,
        .c = p->m + xi * p->m_plane,
        .c_row = p->width,
        .accumulate = p->accumulate,
    };
    DPN_ISA_SYMBOL(gemm)(&gemm);
}

void DPN_ISA_SYMBOL(f4_products)(const struct f4_products *products)
{
#if DPN_LANES == 16
    if (products->width == DPN_PANEL_COLUMNS) {
        if (products->ahead) f4_ahead_spread(products->ahead, F4_POINTS * f4p_calls(products));
        for (size_t xi = 0; xi < F4_POINTS; xi++) f4p_product(products, xi);
        return;
    }
#endif
    if (products->ahead) f4_ahead_spread(products->ahead, F4_POINTS);
    for (size_t xi = 0; xi < F4_POINTS; xi++) {
        if (products->ahead) f4_fetch(products->ahead);
        f4p_gemm(products, xi);
    }
}
