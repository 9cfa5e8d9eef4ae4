/* F(4x4,3x3): the weights pass, dW = G^T [sum over tiles of (B^T d B) (A dY A^T)] G.
 *
 * Idea: for a block of 64 input and 64 output channels the 36 sums (590 KB) stay in L2 while all tiles go by,
 * some dozen at a time; their transforms are computed again for every block, which costs less than storing
 * them. Where there are few blocks, a fixed number of contiguous parts of the tiles are summed apart, for
 * teams, and added in order. Determinism: block, parts and their order come from the shape alone.
 */
#include "core/team.h"

#include "kernels/cpu/conv_f4x4.h"

enum { F4W_TILES = 48, F4W_CHANNELS = 64, F4W_MIN_ITEMS = 4 };

struct f4w_grid {
    struct f4_tiling tiling;
    size_t in_blocks, out_blocks, parts;
    size_t plane; /* of a block's sums */
};

static struct f4w_grid f4w_grid(const struct dpn_conv *conv)
{
    struct f4w_grid grid = {
        .tiling = f4_tiles(conv->samples, conv->out_height, conv->out_width),
        .in_blocks = (conv->in_cstride + F4W_CHANNELS - 1) / F4W_CHANNELS,
        .out_blocks = (conv->out_cstride + F4W_CHANNELS - 1) / F4W_CHANNELS,
        .plane = f4_plane(F4W_CHANNELS, F4W_CHANNELS),
    };
    size_t blocks = grid.in_blocks * grid.out_blocks, most = (grid.tiling.n + F4W_TILES - 1) / F4W_TILES;
    grid.parts = (F4W_MIN_ITEMS + blocks - 1) / blocks;
    if (grid.parts > most) grid.parts = most;
    return grid;
}

static size_t f4w_width(size_t channels, size_t block)
{
    size_t left = channels - block * F4W_CHANNELS;
    return left < F4W_CHANNELS ? left : F4W_CHANNELS;
}

/* Sums of parts; a single part needs no place outside the thread's scratch. */
size_t DPN_ISA_SYMBOL(f4_weights_shared)(const struct dpn_conv *conv)
{
    const struct f4w_grid grid = f4w_grid(conv);
    return grid.parts == 1 ? 0 : grid.parts * grid.in_blocks * grid.out_blocks * F4_POINTS * grid.plane;
}

size_t DPN_ISA_SYMBOL(f4_weights_private)(const struct dpn_conv *conv)
{
    return F4_POINTS * (f4w_grid(conv).plane + 2 * f4_plane(F4W_TILES, F4W_CHANNELS));
}

size_t DPN_ISA_SYMBOL(f4_weights_items)(const struct dpn_conv *conv, int phase)
{
    const struct f4w_grid grid = f4w_grid(conv);
    size_t blocks = grid.in_blocks * grid.out_blocks;
    if (phase == 0) return blocks * grid.parts;
    return phase == 1 && grid.parts > 1 ? blocks : 0;
}

/* SUMS[36][64][width] of part PART. */
static void f4w_sum(const struct dpn_conv_args *args, const struct f4w_grid *grid, size_t in_block,
                    size_t out_block, size_t part, float *sums, float *scratch)
{
    const struct dpn_conv *conv = args->conv;
    struct f4_input x = {.images = {conv->in_height, conv->in_width, conv->in_cstride, conv->in_stride},
                         .tiling = grid->tiling,
                         .pad = conv->pad};
    struct f4_input dy = {.images = {conv->out_height, conv->out_width, conv->out_cstride, conv->out_stride},
                          .tiling = grid->tiling};
    size_t in = f4w_width(conv->in_cstride, in_block), out = f4w_width(conv->out_cstride, out_block);
    size_t first, count, v_plane = f4_plane(F4W_TILES, in), d_plane = f4_plane(F4W_TILES, out);
    float *v = scratch, *d = scratch + F4_POINTS * v_plane;
    f4_set_source(&x, &args->x);
    f4_set_gradient(&dy, &args->dy);
    dpn_split(grid->tiling.n, grid->parts, part, &first, &count);
    for (size_t at = first; at < first + count; at += F4W_TILES) {
        size_t left = first + count - at, tiles = left < F4W_TILES ? left : F4W_TILES;
        DPN_ISA_SYMBOL(f4_input)(&x, at, tiles, in_block * F4W_CHANNELS, in, v, v_plane);
        DPN_ISA_SYMBOL(f4_gradient)(&dy, at, tiles, out_block * F4W_CHANNELS, out, d, d_plane);
        for (size_t xi = 0; xi < F4_POINTS; xi++) {
            struct dpn_gemm gemm = {
                .m = in,
                .n = out,
                .k = tiles,
                .a = v + xi * v_plane,
                .a_row = 1,
                .a_col = in,
                .b = d + xi * d_plane,
                .b_row = out,
                .b_col = 1,
                .c = sums + xi * grid->plane,
                .c_row = out,
                .accumulate = at > first,
            };
            DPN_ISA_SYMBOL(gemm)(&gemm);
        }
    }
}

static DPN_ALWAYS_INLINE void f4w_gt(const dpn_vec u[6], dpn_vec out[3])
{
    dpn_vec even_p = (u[1] + u[2]) * dpn_vec_set(F4_GP), odd_p = (u[1] - u[2]) * dpn_vec_set(F4_P * F4_GP);
    dpn_vec even_q = (u[3] + u[4]) * dpn_vec_set(F4_GQ), odd_q = (u[3] - u[4]) * dpn_vec_set(F4_Q * F4_GQ);
    out[0] = dpn_vec_fma(dpn_vec_set(F4_G0), u[0], even_p + even_q);
    out[1] = odd_p + odd_q;
    out[2] = dpn_vec_fma(dpn_vec_set(F4_P2), even_p, dpn_vec_fma(dpn_vec_set(F4_Q2), even_q, u[5]));
}

/* Back to 3x3 windows, into the weights' panel. */
static void f4w_finish(const struct dpn_conv_args *args, const struct f4w_grid *grid, size_t in_block,
                       size_t out_block, const float *sums)
{
    const struct dpn_conv *conv = args->conv;
    size_t offset, stride, out = f4w_width(conv->out_cstride, out_block);
    dpn_panel(9 * conv->in_channels, conv->out_channels, out_block, &offset, &stride);
    for (size_t i = 0; i < F4W_CHANNELS && in_block * F4W_CHANNELS + i < conv->in_channels; i++)
        for (size_t o = 0; o < out; o += DPN_LANES) {
            const float *u = sums + i * out + o;
            float *to = args->dweights + offset + (in_block * F4W_CHANNELS + i) * stride + o;
            dpn_vec t[3][F4_IN], column[F4_IN], w[3];
            DPN_UNROLL
            for (size_t j = 0; j < F4_IN; j++) {
                DPN_UNROLL
                for (size_t k = 0; k < F4_IN; k++)
                    column[k] = dpn_vec_load(u + (k * F4_IN + j) * grid->plane);
                f4w_gt(column, w);
                DPN_UNROLL
                for (size_t k = 0; k < 3; k++) t[k][j] = w[k];
            }
            DPN_UNROLL
            for (size_t k = 0; k < 3; k++) {
                f4w_gt(t[k], w);
                DPN_UNROLL
                for (size_t j = 0; j < 3; j++)
                    dpn_vec_store(to + (3 * k + j) * conv->in_channels * stride, w[j]);
            }
        }
}

void DPN_ISA_SYMBOL(f4_weights_run)(const struct dpn_conv_args *args, int phase, size_t first, size_t count,
                                    float *scratch)
{
    const struct f4w_grid grid = f4w_grid(args->conv);
    const size_t block_floats = F4_POINTS * grid.plane;
    for (size_t i = first; i < first + count; i++) {
        size_t block = phase == 0 ? i / grid.parts : i, part = i % grid.parts;
        size_t in_block = block / grid.out_blocks, out_block = block % grid.out_blocks;
        float *parts = args->shared + block * grid.parts * block_floats;
        if (phase == 0 && grid.parts > 1) {
            f4w_sum(args, &grid, in_block, out_block, part, parts + part * block_floats, scratch);
        } else if (phase == 0) {
            f4w_sum(args, &grid, in_block, out_block, 0, scratch, scratch + block_floats);
            f4w_finish(args, &grid, in_block, out_block, scratch);
        } else {
            for (size_t p = 1; p < grid.parts; p++)
                DPN_ISA_SYMBOL(add)(block_floats, parts, parts + p * block_floats, parts);
            f4w_finish(args, &grid, in_block, out_block, parts);
        }
    }
}
