/* F(4x4,3x3): the weights pass, dW = G^T [sum over tiles of (B^T d B) (A dY A^T)] G.
 *
 * Idea: for a block of 64 input and 64 output channels the 36 sums (590 KB) stay in L2 while all tiles go by,
 * 32 at a time; their transforms are computed again for every block, which costs less than storing them.
 * Where there are so few tiles that the transformed input of all of them stays in L2 too, it is kept for the
 * blocks of one slice of input channels. Where there are few blocks, a fixed number of contiguous parts of
 * the tiles are summed apart, for teams, each transformed back into a dW of its own, a quarter of the size of
 * its sums; phase 1 adds these in order.
 * Cost: 36 multiplications per 16 outputs and pair of channels, at nine tenths of the FMA peak with AVX-512;
 * the transforms of x and dY take a third of the time, bound by writing to L2.
 * Determinism: blocks, parts and their order come from the shape alone; a sum is one chain over its part's
 * tiles.
 * Limits: as of the other passes (conv_f4x4.c).
 */
#include "core/team.h"

#include "kernels/cpu/conv_f4x4.h"

enum {
    F4W_CHANNELS = 64,   /* of a block, on either side; on the output's a panel */
    F4W_TILES = 32,      /* at a time: 24 to 40 are equally fast, 64 crowd the sums out of L2 */
    F4W_KEPT_TILES = 64, /* at most, whose transformed input is kept from block to block */
    F4W_ITEMS = 16,      /* fewer blocks are cut into parts, */
    F4W_PART_TILES = 64, /* of at least that many tiles */
    F4W_SLICES = 16,     /* items of phase 1 */
    F4W_ROWS = 6,        /* of a product's tile in registers; some have one less */
    F4W_VECS = DPN_LANES == 16 ? 4 : 2,
    F4W_STRIP = F4W_VECS * DPN_LANES, /* columns of one */
    F4W_LINE = 16,                    /* floats of a cache line */
};

struct f4w_grid {
    struct f4_tiling tiling;
    size_t in_blocks, out_blocks, parts;
    size_t kept;                      /* groups of F4W_TILES tiles whose V has a place of its own */
    size_t u_plane, v_plane, d_plane; /* of the sums, of transformed x and dY */
    size_t floats;                    /* of dW */
};

static struct f4w_grid f4w_grid(const struct dpn_conv *conv)
{
    struct f4w_grid grid = {
        .tiling = f4_tiles(conv->samples, conv->out_height, conv->out_width),
        .in_blocks = (conv->in_channels + F4W_CHANNELS - 1) / F4W_CHANNELS,
        .out_blocks = (conv->out_channels + F4W_CHANNELS - 1) / F4W_CHANNELS,
        .parts = 1,
        .kept = 1,
        .u_plane = f4_plane(F4W_CHANNELS, F4W_CHANNELS),
        .v_plane = f4_plane(F4W_TILES, F4W_CHANNELS),
        .d_plane = f4_plane(F4W_TILES, F4W_CHANNELS),
        .floats = dpn_panel_elems(9 * conv->in_channels, conv->out_channels),
    };
    const size_t blocks = grid.in_blocks * grid.out_blocks, most = grid.tiling.n / F4W_PART_TILES;
    if (blocks < F4W_ITEMS && most > 1) {
        grid.parts = (F4W_ITEMS + blocks - 1) / blocks;
        if (grid.parts > most) grid.parts = most;
    }
    if (grid.tiling.n <= F4W_KEPT_TILES) grid.kept = (grid.tiling.n + F4W_TILES - 1) / F4W_TILES;
    return grid;
}

static size_t f4w_width(size_t channels, size_t block)
{
    const size_t left = channels - block * F4W_CHANNELS;
    return left < F4W_CHANNELS ? left : F4W_CHANNELS;
}

/* The first part's dW is the result's place. */
size_t DPN_ISA_SYMBOL(f4_weights_shared)(const struct dpn_conv *conv)
{
    const struct f4w_grid grid = f4w_grid(conv);
    return (grid.parts - 1) * grid.floats;
}

size_t DPN_ISA_SYMBOL(f4_weights_private)(const struct dpn_conv *conv)
{
    const struct f4w_grid grid = f4w_grid(conv);
    return F4_POINTS * (grid.u_plane + grid.d_plane + grid.kept * grid.v_plane);
}

size_t DPN_ISA_SYMBOL(f4_weights_items)(const struct dpn_conv *conv, int phase)
{
    const struct f4w_grid grid = f4w_grid(conv);
    if (phase == 0) return grid.in_blocks * grid.out_blocks * grid.parts;
    return phase == 1 && grid.parts > 1 ? F4W_SLICES : 0;
}

/* ---- products ---- */

/* U[64 or fewer][64] (+)= V^T D over K tiles, for one of the 36 points. */
struct f4w_product {
    size_t k, rows; /* ROWS: multiple of 16 */
    const float *v, *d;
    float *u;
    int accumulate;
    const float *next_v, *next_d; /* of the next point */
    struct f4_ahead *ahead;
};

/* A tile of U in registers, ROWS a constant in every copy. A step of k fetches into L1 one line of U's
 * rows further down, which come next, and from NEAR on one of what the next product reads: both are in L2,
 * and a tile's first loads would wait for them. */
static DPN_ALWAYS_INLINE void f4w_multiply(const struct f4w_product *product, const size_t rows, size_t row,
                                           size_t column, uintptr_t near)
{
    const size_t v_row = product->rows, k = product->k;
    const float *v = product->v + row, *d = product->d + column;
    float *u = product->u + row * F4W_CHANNELS + column;
    const size_t below_step = (F4W_STRIP == F4W_CHANNELS ? F4W_LINE : F4W_CHANNELS) * sizeof *u;
    uintptr_t below = (uintptr_t)(u + rows * F4W_CHANNELS);
    dpn_vec sum[F4W_ROWS][F4W_VECS], line[F4W_VECS];

    DPN_UNROLL
    for (size_t i = 0; i < rows; i++) {
        DPN_UNROLL
        for (size_t c = 0; c < F4W_VECS; c++)
            sum[i][c] = product->accumulate ? dpn_vec_load(u + i * F4W_CHANNELS + c * DPN_LANES)
                                            : (dpn_vec){0};
    }
    for (size_t l = 0; l < k; l++) {
        DPN_UNROLL
        for (size_t c = 0; c < F4W_VECS; c++) line[c] = dpn_vec_load(d + c * DPN_LANES);
        DPN_UNROLL
        for (size_t i = 0; i < rows; i++) {
            const dpn_vec factor = dpn_vec_set(v[i]);
            DPN_UNROLL
            for (size_t c = 0; c < F4W_VECS; c++) sum[i][c] = dpn_vec_fma(factor, line[c], sum[i][c]);
        }
        __builtin_prefetch((const void *)below);
        __builtin_prefetch((const void *)near);
        below += below_step;
        near += F4W_LINE * sizeof *u;
        v += v_row;
        d += F4W_CHANNELS;
    }
    /* Hides that U is the same as above: all rows' addresses would be kept in registers over the loop. */
    __asm__("" : "+r"(u));
    DPN_UNROLL
    for (size_t i = 0; i < rows; i++) {
        DPN_UNROLL
        for (size_t c = 0; c < F4W_VECS; c++) dpn_vec_store(u + i * F4W_CHANNELS + c * DPN_LANES, sum[i][c]);
    }
}

static void f4w_multiply6(const struct f4w_product *product, size_t row, size_t column, uintptr_t near)
{
    f4w_multiply(product, F4W_ROWS, row, column, near);
}

static void f4w_multiply5(const struct f4w_product *product, size_t row, size_t column, uintptr_t near)
{
    f4w_multiply(product, F4W_ROWS - 1, row, column, near);
}

/* Where tile NUMBER begins to fetch the next product's D, and after that V: K lines of the 4*K of each. */
static uintptr_t f4w_near(const struct f4w_product *product, size_t number)
{
    const size_t tiles = F4W_CHANNELS / F4W_LINE, bytes = product->k * F4W_LINE * sizeof(float);
    if (number < tiles) return (uintptr_t)product->next_d + number * bytes;
    if (number < 2 * tiles) return (uintptr_t)product->next_v + (number - tiles) * bytes;
    return (uintptr_t)product->next_d;
}

/* How many tiles of registers make up ROWS rows. */
static size_t f4w_tiles(size_t rows)
{
    return (rows + F4W_ROWS - 1) / F4W_ROWS;
}

/* A whole panel of outputs. */
static void f4w_panel_product(const struct f4w_product *product)
{
    const size_t tiles = f4w_tiles(product->rows), tall = product->rows - (F4W_ROWS - 1) * tiles;
    size_t number = 0;
    for (size_t column = 0; column < F4W_CHANNELS; column += F4W_STRIP) {
        size_t row = 0;
        for (size_t t = 0; t < tiles; t++, number++) {
            f4_fetch(product->ahead);
            (t < tall ? f4w_multiply6 : f4w_multiply5)(product, row, column, f4w_near(product, number));
            row += t < tall ? F4W_ROWS : F4W_ROWS - 1;
        }
    }
}

/* The last panel, if it is narrower. */
static void f4w_narrow_product(const struct f4w_product *product, size_t width)
{
    const struct dpn_gemm gemm = {
        .m = product->rows,
        .n = width,
        .k = product->k,
        .a = product->v,
        .a_row = 1,
        .a_col = product->rows,
        .b = product->d,
        .b_row = width,
        .b_col = 1,
        .c = product->u,
        .c_row = width,
        .accumulate = product->accumulate,
    };
    DPN_ISA_SYMBOL(gemm)(&gemm);
}

/* ---- items ---- */

/* A block of channels and a part of the tiles, and the scratch's division. */
struct f4w_item {
    size_t in_block, out_block, part;
    size_t in, out;      /* channels of the block */
    size_t first, count; /* tiles */
    float *u, *d, *v;
};

static struct f4w_item f4w_item(const struct dpn_conv *conv, const struct f4w_grid *grid, size_t number,
                                float *scratch)
{
    const size_t block = number / grid->parts;
    struct f4w_item item = {
        .in_block = block / grid->out_blocks,
        .out_block = block % grid->out_blocks,
        .part = number % grid->parts,
        .u = scratch,
        .d = scratch + F4_POINTS * grid->u_plane,
        .v = scratch + F4_POINTS * (grid->u_plane + grid->d_plane),
    };
    item.in = f4w_width(conv->in_cstride, item.in_block);
    item.out = f4w_width(conv->out_cstride, item.out_block);
    dpn_split(grid->tiling.n, grid->parts, item.part, &item.first, &item.count);
    return item;
}

/* What the transforms read for the tiles that come after the TILES tiles from AT on. */
static struct f4_ahead f4w_ahead(const struct f4_input *x, const struct f4_input *dy,
                                 const struct f4w_item *item, size_t at, size_t tiles, int v_kept)
{
    struct f4_ahead ahead = {.n = 0};
    const size_t left = item->first + item->count - at - tiles;
    const size_t end = at + tiles + (left < F4W_TILES ? left : F4W_TILES);
    const size_t beyond = F4_IN - F4_OUT - x->pad;
    if (!v_kept)
        f4_ahead_add(&ahead, x->x.x, &x->images, f4_reach(&x->images, &x->tiling, at + tiles, beyond),
                     f4_reach(&x->images, &x->tiling, end, beyond), item->in_block * F4W_CHANNELS, item->in);
    const size_t begin = f4_reach(&dy->images, &dy->tiling, at + tiles, 0);
    const size_t to = f4_reach(&dy->images, &dy->tiling, end, 0);
    f4_ahead_add(&ahead, dy->dy.g, &dy->images, begin, to, item->out_block * F4W_CHANNELS, item->out);
    f4_ahead_add(&ahead, dy->dy.z, &dy->images, begin, to, item->out_block * F4W_CHANNELS, item->out);
    return ahead;
}

/* TILES tiles from AT on into the sums. V_KEPT: their transformed input is in V already. */
static void f4w_add_tiles(const struct dpn_conv_args *args, const struct f4w_grid *grid,
                          const struct f4w_item *item, size_t at, size_t tiles, float *v, int v_kept)
{
    const struct dpn_conv *conv = args->conv;
    struct f4_input x = {.images = {conv->in_height, conv->in_width, conv->in_cstride, conv->in_stride},
                         .tiling = grid->tiling,
                         .pad = conv->pad};
    struct f4_input dy = {.images = {conv->out_height, conv->out_width, conv->out_cstride, conv->out_stride},
                          .tiling = grid->tiling};
    struct f4w_product product = {.k = tiles, .rows = item->in, .accumulate = at > item->first};
    f4_set_source(&x, &args->x);
    f4_set_gradient(&dy, &args->dy);
    if (!v_kept)
        DPN_ISA_SYMBOL(f4_input)(&x, at, tiles, item->in_block * F4W_CHANNELS, item->in, v, grid->v_plane);
    DPN_ISA_SYMBOL(f4_gradient)
    (&dy, at, tiles, item->out_block * F4W_CHANNELS, item->out, item->d, grid->d_plane);
    struct f4_ahead ahead = f4w_ahead(&x, &dy, item, at, tiles, v_kept);
    f4_ahead_spread(&ahead, F4_POINTS * f4w_tiles(item->in) * (F4W_CHANNELS / F4W_STRIP));
    product.ahead = &ahead;
    for (size_t xi = 0; xi < F4_POINTS; xi++) {
        const size_t next = xi + 1 < F4_POINTS ? xi + 1 : xi;
        product.v = v + xi * grid->v_plane;
        product.d = item->d + xi * grid->d_plane;
        product.u = item->u + xi * grid->u_plane;
        product.next_v = v + next * grid->v_plane;
        product.next_d = item->d + next * grid->d_plane;
        if (item->out == F4W_CHANNELS) f4w_panel_product(&product);
        else f4w_narrow_product(&product, item->out);
    }
}

/* One side of G^T u G. */
static DPN_ALWAYS_INLINE void f4w_gt(const dpn_vec u[6], dpn_vec out[3])
{
    dpn_vec even_p = (u[1] + u[2]) * dpn_vec_set(F4_GP);
    dpn_vec even_q = (u[3] + u[4]) * dpn_vec_set(F4_GQ), odd_q = (u[3] - u[4]) * dpn_vec_set(F4_Q * F4_GQ);
    out[0] = dpn_vec_fma(dpn_vec_set(F4_G0), u[0], even_p + even_q);
    out[1] = dpn_vec_fma(dpn_vec_set(F4_P * F4_GP), u[1] - u[2], odd_q);
    out[2] = dpn_vec_fma(dpn_vec_set(F4_P2), even_p, dpn_vec_fma(dpn_vec_set(F4_Q2), even_q, u[5]));
}

/* A vector of the sums back to 3x3 windows, TAP floats apart. */
static DPN_ALWAYS_INLINE void f4w_finish_vector(const float *u, size_t plane, float *to, size_t tap)
{
    dpn_vec t[3][F4_IN], column[F4_IN], w[3];
    DPN_UNROLL
    for (size_t j = 0; j < F4_IN; j++) {
        DPN_UNROLL
        for (size_t k = 0; k < F4_IN; k++) column[k] = dpn_vec_load(u + (k * F4_IN + j) * plane);
        f4w_gt(column, w);
        DPN_UNROLL
        for (size_t k = 0; k < 3; k++) t[k][j] = w[k];
    }
    DPN_UNROLL
    for (size_t k = 0; k < 3; k++) {
        f4w_gt(t[k], w);
        DPN_UNROLL
        for (size_t j = 0; j < 3; j++) dpn_vec_store(to + (3 * k + j) * tap, w[j]);
    }
}

/* The sums into the block's place in the panel matrix DWEIGHTS. */
static void f4w_finish(const struct dpn_conv *conv, const struct f4w_grid *grid, const struct f4w_item *item,
                       float *dweights)
{
    const size_t channel = item->in_block * F4W_CHANNELS, rows = f4w_width(conv->in_channels, item->in_block);
    const size_t valid = f4w_width(conv->out_channels, item->out_block);
    size_t offset, stride;
    dpn_panel(9 * conv->in_channels, conv->out_channels, item->out_block, &offset, &stride);
    const size_t tap = conv->in_channels * stride;
    for (size_t i = 0; i < rows; i++) {
        float *to = dweights + offset + (channel + i) * stride;
        for (size_t o = 0; o < item->out; o += DPN_LANES)
            f4w_finish_vector(item->u + i * item->out + o, grid->u_plane, to + o, tap);
        /* Zeros of dY would do, were x always finite. */
        for (size_t o = valid; o < stride; o++)
            for (size_t t = 0; t < 9; t++) to[t * tap + o] = 0;
    }
}

static void f4w_sum(const struct dpn_conv_args *args, const struct f4w_grid *grid,
                    const struct f4w_item *item, int v_kept)
{
    float *v = item->v;
    for (size_t done = 0; done < item->count; done += F4W_TILES) {
        const size_t left = item->count - done, tiles = left < F4W_TILES ? left : F4W_TILES;
        f4w_add_tiles(args, grid, item, item->first + done, tiles, v, v_kept);
        if (grid->kept > 1) v += F4_POINTS * grid->v_plane;
    }
    f4w_finish(args->conv, grid, item,
               item->part ? args->shared + (item->part - 1) * grid->floats : args->dweights);
}

/* Slice NUMBER of the parts' sum. */
static void f4w_add_parts(const struct dpn_conv_args *args, const struct f4w_grid *grid, size_t number)
{
    size_t first, count;
    dpn_split(grid->floats / 16, F4W_SLICES, number, &first, &count);
    float *to = args->dweights + first * 16;
    for (size_t p = 1; p < grid->parts; p++)
        DPN_ISA_SYMBOL(add)(count * 16, to, args->shared + (p - 1) * grid->floats + first * 16, to);
}

void DPN_ISA_SYMBOL(f4_weights_run)(const struct dpn_conv_args *args, int phase, size_t first, size_t count,
                                    float *scratch)
{
    const struct f4w_grid grid = f4w_grid(args->conv);
    const int all_kept = grid.tiling.n <= grid.kept * F4W_TILES;
    size_t in_scratch = grid.in_blocks; /* the slice of channels of which V is in scratch */
    for (size_t i = first; i < first + count; i++) {
        if (phase == 0) {
            const struct f4w_item item = f4w_item(args->conv, &grid, i, scratch);
            f4w_sum(args, &grid, &item, all_kept && item.in_block == in_scratch);
            in_scratch = item.in_block;
        } else {
            f4w_add_parts(args, &grid, i);
        }
    }
}
