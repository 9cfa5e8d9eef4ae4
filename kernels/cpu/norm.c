/* Batch norm's passes over tensors that fit no cache: each reads and writes every element once.
 *
 * A channel's sums are chains over ascending pixels in one lane of one vector: nothing is added across lanes,
 * nothing fused (-ffp-contract=off), so all instruction sets give the same bits. Sums run in pieces of a size
 * that cstride alone decides. Moments read a piece twice, the second time from L1: about its own mean nothing
 * cancels; sums of a piece are added to the total, which keeps chains short.
 *
 * Outputs of 4 MiB and more are written around the caches, unless they replace an input: measured, 16 MiB
 * take a third less time, and reading them again a tenth more; 2 MiB gain nothing.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kernels/cpu/vector.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum {
    NORM_PIECE = 8192,     /* floats of a piece: 32 KB of L1 */
    NORM_GROUP = 4,        /* vectors of channels whose sums stay in registers */
    NORM_STREAM = 1 << 20, /* floats of output that are written around the caches */
};

/* Around the caches; TO is aligned to whole vectors, and the rest of its cache line is written next. */
static DPN_ALWAYS_INLINE void norm_stream(float *to, dpn_vec value)
{
#if DPN_LANES == 16
    _mm512_stream_ps(to, value);
#elif DPN_LANES == 8
    _mm256_stream_ps(to, value);
#elif defined(__x86_64__)
    _mm_stream_ps(to, value);
#else
    dpn_vec_store(to, value);
#endif
}

/* Makes streamed stores visible to whoever is told next that they are done. */
static void norm_stream_end(void)
{
#if defined(__x86_64__)
    _mm_sfence();
#endif
}

/* max(LOW, x), where NaN stays NaN: ReLU with LOW 0, nothing with LOW -infinity. */
static DPN_ALWAYS_INLINE dpn_vec norm_at_least(dpn_vec low, dpn_vec x)
{
#if DPN_LANES == 16
    return _mm512_max_ps(low, x); /* the second one if either is NaN */
#elif DPN_LANES == 8
    return _mm256_max_ps(low, x);
#elif defined(__x86_64__)
    return _mm_max_ps(low, x);
#else
    const dpn_vec_int below = low > x;
    return (dpn_vec)(((dpn_vec_int)low & below) | ((dpn_vec_int)x & ~below));
#endif
}

static dpn_vec norm_low(int relu)
{
    return dpn_vec_set(relu ? 0.0f : -INFINITY);
}

/* ---- moments ---- */

/* Puts the moments of one piece, VECS vectors of channels, together with those in MEAN and SQUARES of the
 * BEFORE pixels before it, of which BASE is the first. MEAN is counted from BASE on: the means of many pieces
 * are added up, and a large mean would lose digits each time. */
static DPN_ALWAYS_INLINE void norm_piece_moments(const size_t vecs, size_t pixels, size_t before,
                                                 size_t cstride, const float *base, const float *x,
                                                 float *mean, float *squares)
{
    dpn_vec first[NORM_GROUP], sum[NORM_GROUP], here[NORM_GROUP], shift[NORM_GROUP];
    const float all = (float)(before + pixels), share = (float)pixels / all;
    DPN_UNROLL
    for (size_t v = 0; v < vecs; v++) {
        first[v] = dpn_vec_load(x + v * DPN_LANES);
        sum[v] = (dpn_vec){0};
    }
    for (size_t p = 0; p < pixels; p++) {
        DPN_UNROLL
        for (size_t v = 0; v < vecs; v++) sum[v] += dpn_vec_load(x + p * cstride + v * DPN_LANES) - first[v];
    }
    DPN_UNROLL
    for (size_t v = 0; v < vecs; v++) {
        shift[v] = sum[v] / (float)pixels;
        here[v] = first[v] + shift[v];
        shift[v] += first[v] - dpn_vec_load(base + v * DPN_LANES);
        sum[v] = (dpn_vec){0};
    }
    for (size_t p = 0; p < pixels; p++) {
        DPN_UNROLL
        for (size_t v = 0; v < vecs; v++) {
            const dpn_vec deviation = dpn_vec_load(x + p * cstride + v * DPN_LANES) - here[v];
            sum[v] += deviation * deviation;
        }
    }
    DPN_UNROLL
    for (size_t v = 0; v < vecs; v++) {
        float *const mean_at = mean + v * DPN_LANES, *const squares_at = squares + v * DPN_LANES;
        if (before > 0) {
            const dpn_vec delta = shift[v] - dpn_vec_load(mean_at);
            shift[v] = dpn_vec_load(mean_at) + delta * share;
            sum[v] = (dpn_vec_load(squares_at) + sum[v]) + delta * delta * ((float)before * share);
        }
        dpn_vec_store(mean_at, shift[v]);
        dpn_vec_store(squares_at, sum[v]);
    }
}

static size_t norm_piece_pixels(size_t cstride)
{
    return cstride < NORM_PIECE ? NORM_PIECE / cstride : 1;
}

void DPN_ISA_SYMBOL(moments)(size_t pixels, size_t cstride, const float *x, float *block)
{
    const size_t piece = norm_piece_pixels(cstride), step = NORM_GROUP * DPN_LANES;
    float *const squares = block + cstride;
    memset(block, 0, dpn_block_floats(cstride) * sizeof *block);
    block[2 * cstride] = (float)pixels;
    for (size_t p = 0; p < pixels; p += piece) {
        const size_t count = pixels - p < piece ? pixels - p : piece;
        const float *at = x + p * cstride;
        size_t c = 0;
        for (; c + step <= cstride; c += step)
            norm_piece_moments(NORM_GROUP, count, p, cstride, x + c, at + c, block + c, squares + c);
        for (; c < cstride; c += DPN_LANES)
            norm_piece_moments(1, count, p, cstride, x + c, at + c, block + c, squares + c);
    }
    for (size_t c = 0; pixels > 0 && c < cstride; c++) block[c] += x[c];
}

void DPN_ISA_SYMBOL(moments_combine)(size_t blocks, size_t cstride, const float *moments, double *out)
{
    double *const mean = out + 1, *const squares = mean + cstride;
    memset(out, 0, (1 + 2 * cstride) * sizeof *out);
    for (size_t b = 0; b < blocks; b++) {
        const float *block = moments + b * dpn_block_floats(cstride);
        const double here = (double)block[2 * cstride], before = out[0], all = before + here;
        const double share = here / all, both = before * here / all;
        if (here == 0.0) continue;
        out[0] = all;
        DPN_INDEPENDENT
        for (size_t c = 0; c < cstride; c++) {
            const double delta = (double)block[c] - mean[c];
            mean[c] += delta * share;
            squares[c] += (double)block[cstride + c] + delta * delta * both;
        }
    }
}

/* ---- sums of gradients ---- */

enum norm_mask { NORM_NO_MASK, NORM_MASK_Y, NORM_MASK_Z };

/* One piece of VECS vectors of channels. D, Y, Z and everything in SUMS begin at the first of them. */
static DPN_ALWAYS_INLINE void norm_piece_sums(const size_t vecs, const enum norm_mask kind, size_t pixels,
                                              size_t cstride, float *d, const struct dpn_mask_sums *mask,
                                              float *product_sums)
{
    dpn_vec sum[NORM_GROUP], product[NORM_GROUP];
    DPN_UNROLL
    for (size_t v = 0; v < vecs; v++) sum[v] = product[v] = (dpn_vec){0};
    for (size_t p = 0; p < pixels; p++) {
        DPN_UNROLL
        for (size_t v = 0; v < vecs; v++) {
            const size_t c = v * DPN_LANES, i = p * cstride + c;
            const dpn_vec z = dpn_vec_load(mask->z + i);
            dpn_vec value = dpn_vec_load(d + i), y;
            if (kind != NORM_NO_MASK) {
                if (kind == NORM_MASK_Y) y = dpn_vec_load(mask->y + i);
                else y = z * dpn_vec_load(mask->scale + c) + dpn_vec_load(mask->shift + c);
                value = dpn_vec_where_positive(y, value);
                dpn_vec_store(d + i, value);
            }
            sum[v] += value;
            product[v] += value * (z - dpn_vec_load(mask->mean + c));
        }
    }
    DPN_UNROLL
    for (size_t v = 0; v < vecs; v++) {
        float *const sum_at = mask->sums + v * DPN_LANES, *const product_at = product_sums + v * DPN_LANES;
        dpn_vec_store(sum_at, dpn_vec_load(sum_at) + sum[v]);
        dpn_vec_store(product_at, dpn_vec_load(product_at) + product[v]);
    }
}

static DPN_ALWAYS_INLINE void norm_masked(const enum norm_mask kind, size_t pixels, size_t cstride, float *d,
                                          const struct dpn_mask_sums *mask)
{
    const size_t piece = norm_piece_pixels(cstride), step = NORM_GROUP * DPN_LANES;
    for (size_t p = 0; p < pixels; p += piece) {
        const size_t count = pixels - p < piece ? pixels - p : piece;
        size_t c = 0;
        while (c < cstride) {
            const size_t i = p * cstride + c;
            struct dpn_mask_sums at = {.z = mask->z + i, .mean = mask->mean + c, .sums = mask->sums + c};
            if (kind == NORM_MASK_Y) at.y = mask->y + i;
            if (kind == NORM_MASK_Z) at.scale = mask->scale + c, at.shift = mask->shift + c;
            if (c + step <= cstride) {
                norm_piece_sums(NORM_GROUP, kind, count, cstride, d + i, &at, at.sums + cstride);
                c += step;
            } else {
                norm_piece_sums(1, kind, count, cstride, d + i, &at, at.sums + cstride);
                c += DPN_LANES;
            }
        }
    }
}

void DPN_ISA_SYMBOL(mask_sums)(size_t pixels, size_t cstride, float *d, const struct dpn_mask_sums *mask)
{
    memset(mask->sums, 0, dpn_block_floats(cstride) * sizeof *mask->sums);
    mask->sums[2 * cstride] = (float)pixels;
    if (mask->y != NULL) norm_masked(NORM_MASK_Y, pixels, cstride, d, mask);
    else if (mask->scale != NULL) norm_masked(NORM_MASK_Z, pixels, cstride, d, mask);
    else norm_masked(NORM_NO_MASK, pixels, cstride, d, mask);
}

void DPN_ISA_SYMBOL(sums_combine)(size_t blocks, size_t cstride, const float *sums, double *out)
{
    memset(out, 0, (1 + 2 * cstride) * sizeof *out);
    for (size_t b = 0; b < blocks; b++) {
        const float *block = sums + b * dpn_block_floats(cstride);
        out[0] += (double)block[2 * cstride];
        DPN_INDEPENDENT
        for (size_t i = 0; i < 2 * cstride; i++) out[1 + i] += (double)block[i];
    }
}

/* ---- element by element ---- */

static int norm_streams(size_t n, const float *to, const float *a, const float *b)
{
    return n >= NORM_STREAM && to != a && to != b && (uintptr_t)to % sizeof(dpn_vec) == 0;
}

enum norm_residual { NORM_NONE, NORM_PLAIN, NORM_SCALED };

static DPN_ALWAYS_INLINE void norm_apply(const struct dpn_bn_apply *args, const enum norm_residual kind,
                                         const int stream)
{
    const size_t cstride = args->cstride;
    const float *z = args->z, *scale = args->scale, *shift = args->shift, *x = args->residual.x;
    const float *x_scale = args->residual.scale, *x_shift = args->residual.shift;
    const dpn_vec low = norm_low(args->relu), x_low = norm_low(args->residual.relu);
    float *y = args->y;
    for (size_t p = 0; p < args->pixels; p++) {
        for (size_t c = 0; c < cstride; c += DPN_LANES) {
            dpn_vec value = dpn_vec_load(z + c) * dpn_vec_load(scale + c) + dpn_vec_load(shift + c);
            if (kind != NORM_NONE) {
                dpn_vec residual = dpn_vec_load(x + c);
                if (kind == NORM_SCALED)
                    residual = residual * dpn_vec_load(x_scale + c) + dpn_vec_load(x_shift + c);
                value += norm_at_least(x_low, residual);
            }
            value = norm_at_least(low, value);
            if (stream) norm_stream(y + c, value);
            else dpn_vec_store(y + c, value);
        }
        z += cstride;
        y += cstride;
        if (kind != NORM_NONE) x += cstride;
    }
    if (stream) norm_stream_end();
}

void DPN_ISA_SYMBOL(bn_apply)(const struct dpn_bn_apply *args)
{
    const struct dpn_source *residual = &args->residual;
    if (norm_streams(args->pixels * args->cstride, args->y, args->z, residual->x)) {
        if (residual->x == NULL) norm_apply(args, NORM_NONE, 1);
        else if (residual->scale == NULL) norm_apply(args, NORM_PLAIN, 1);
        else norm_apply(args, NORM_SCALED, 1);
    } else {
        if (residual->x == NULL) norm_apply(args, NORM_NONE, 0);
        else if (residual->scale == NULL) norm_apply(args, NORM_PLAIN, 0);
        else norm_apply(args, NORM_SCALED, 0);
    }
}

static DPN_ALWAYS_INLINE void norm_grad(size_t pixels, size_t cstride, const struct dpn_gradient *dy,
                                        float *dz, const int stream)
{
    const float *g = dy->g, *z = dy->z;
    const float *g_scale = dy->g_scale, *z_scale = dy->z_scale, *shift = dy->shift;
    for (size_t p = 0; p < pixels; p++) {
        for (size_t c = 0; c < cstride; c += DPN_LANES) {
            const dpn_vec value = dpn_vec_load(g + c) * dpn_vec_load(g_scale + c) +
                                  dpn_vec_load(z + c) * dpn_vec_load(z_scale + c) + dpn_vec_load(shift + c);
            if (stream) norm_stream(dz + c, value);
            else dpn_vec_store(dz + c, value);
        }
        g += cstride;
        z += cstride;
        dz += cstride;
    }
    if (stream) norm_stream_end();
}

void DPN_ISA_SYMBOL(bn_grad)(size_t pixels, size_t cstride, const struct dpn_gradient *dy, float *dz)
{
    const size_t n = pixels * cstride;
    if (dy->z == NULL) memmove(dz, dy->g, n * sizeof *dz);
    else if (norm_streams(n, dz, dy->g, dy->z)) norm_grad(pixels, cstride, dy, dz, 1);
    else norm_grad(pixels, cstride, dy, dz, 0);
}
