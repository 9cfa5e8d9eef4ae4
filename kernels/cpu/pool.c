/* Pooling. A vector holds channels, so a window is a chain of vector operations in ascending order of its
 * elements, and all instruction sets give the same bits. Compiled with -ffp-contract=off.
 *
 * The 2 x 2 window at steps of 2 is compiled with constant bounds, and writes each gradient once; others
 * start from zeros and add, window by window.
 */
#include <string.h>

#include "kernels/cpu/vector.h"

/* The part of an output pixel's window that lies in the image, and the floats between its rows and pixels. */
struct pool_window {
    size_t top, left, rows, cols;
    size_t row_step, col_step;
};

/* First coordinate and number of those that window O covers along an axis of SIZE pixels. */
static DPN_ALWAYS_INLINE void pool_clip(const struct dpn_pool *pool, size_t o, size_t size, size_t *first,
                                        size_t *count)
{
    const size_t start = o * pool->stride, end = start + pool->kernel - pool->pad;
    *first = start > pool->pad ? start - pool->pad : 0;
    *count = (end < size ? end : size) - *first;
}

/* PAIRS: the window is 2 x 2 at steps of 2, without padding. */
static DPN_ALWAYS_INLINE struct pool_window pool_window(const struct dpn_pool *pool, size_t oy, size_t ox,
                                                        const int pairs)
{
    struct pool_window window = {2 * oy, 2 * ox, 2, 2, pool->in_width * pool->cstride, pool->cstride};
    if (!pairs) {
        pool_clip(pool, oy, pool->in_height, &window.top, &window.rows);
        pool_clip(pool, ox, pool->in_width, &window.left, &window.cols);
    }
    return window;
}

static int pool_pairs(const struct dpn_pool *pool)
{
    return pool->kernel == 2 && pool->stride == 2 && pool->pad == 0;
}

static DPN_ALWAYS_INLINE dpn_vec pool_where(dpn_vec_int mask, dpn_vec x)
{
    return (dpn_vec)((dpn_vec_int)x & mask);
}

/* ---- forward; X: the window's first element ---- */

static DPN_ALWAYS_INLINE dpn_vec pool_maximum(const struct pool_window *window, const float *x)
{
    dpn_vec largest = dpn_vec_load(x);
    for (size_t i = 0; i < window->rows; i++) {
        for (size_t j = 0; j < window->cols; j++) {
            const dpn_vec value = dpn_vec_load(x + i * window->row_step + j * window->col_step);
            const dpn_vec_int take = (value > largest) | (value != value);
            largest = (dpn_vec)(((dpn_vec_int)value & take) | ((dpn_vec_int)largest & ~take));
        }
    }
    return largest;
}

static DPN_ALWAYS_INLINE dpn_vec pool_sum(const struct pool_window *window, const float *x)
{
    dpn_vec sum = {0};
    for (size_t i = 0; i < window->rows; i++) {
        for (size_t j = 0; j < window->cols; j++)
            sum += dpn_vec_load(x + i * window->row_step + j * window->col_step);
    }
    return sum;
}

static DPN_ALWAYS_INLINE void pool_sample(const struct dpn_pool *pool, const int average, const int pairs,
                                          const float *x, float *y)
{
    const float elements = (float)(pool->kernel * pool->kernel);
    for (size_t oy = 0; oy < pool->out_height; oy++) {
        for (size_t ox = 0; ox < pool->out_width; ox++) {
            const struct pool_window window = pool_window(pool, oy, ox, pairs);
            const float *at = x + window.top * window.row_step + window.left * window.col_step;
            for (size_t c = 0; c < pool->cstride; c += DPN_LANES) {
                if (average) dpn_vec_store(y + c, pool_sum(&window, at + c) / elements);
                else dpn_vec_store(y + c, pool_maximum(&window, at + c));
            }
            y += pool->cstride;
        }
    }
}

void DPN_ISA_SYMBOL(pool)(const struct dpn_pool *pool, size_t first, size_t count, const float *x, float *y)
{
    const int pairs = pool_pairs(pool);
    for (size_t n = first; n < first + count; n++) {
        const float *from = x + n * pool->in_stride;
        float *to = y + n * pool->out_stride;
        if (pool->average) {
            if (pairs) pool_sample(pool, 1, 1, from, to);
            else pool_sample(pool, 1, 0, from, to);
        } else {
            if (pairs) pool_sample(pool, 0, 1, from, to);
            else pool_sample(pool, 0, 0, from, to);
        }
    }
}

/* ---- backward; X, DX: the window's first element ---- */

/* The gradient goes to the first element that is Y, NaN or not. ADD: to what is there, else in its place. */
static DPN_ALWAYS_INLINE void pool_maximum_grad(const struct pool_window *window, const int add,
                                                const float *x, dpn_vec y, dpn_vec dy, float *dx)
{
    const dpn_vec_int nan = y != y;
    for (size_t i = 0; i < window->rows; i++) {
        for (size_t j = 0; j < window->cols; j++) {
            const size_t place = i * window->row_step + j * window->col_step;
            const dpn_vec value = dpn_vec_load(x + place);
            const dpn_vec_int hit = (value == y) | ((value != value) & nan);
            const dpn_vec part = pool_where(hit, dy);
            dy = pool_where(~hit, dy);
            dpn_vec_store(dx + place, add ? dpn_vec_load(dx + place) + part : part);
        }
    }
}

static DPN_ALWAYS_INLINE void pool_sum_grad(const struct pool_window *window, const int add, dpn_vec share,
                                            float *dx)
{
    for (size_t i = 0; i < window->rows; i++) {
        for (size_t j = 0; j < window->cols; j++) {
            float *to = dx + i * window->row_step + j * window->col_step;
            dpn_vec_store(to, add ? dpn_vec_load(to) + share : share);
        }
    }
}

static DPN_ALWAYS_INLINE void pool_sample_grad(const struct dpn_pool *pool, const int average,
                                               const int pairs, const float *x, const float *y,
                                               const float *dy, float *dx)
{
    const float elements = (float)(pool->kernel * pool->kernel);
    if (!pairs || 2 * pool->out_height != pool->in_height || 2 * pool->out_width != pool->in_width)
        memset(dx, 0, pool->in_height * pool->in_width * pool->cstride * sizeof *dx);
    for (size_t oy = 0; oy < pool->out_height; oy++) {
        for (size_t ox = 0; ox < pool->out_width; ox++) {
            const struct pool_window window = pool_window(pool, oy, ox, pairs);
            const size_t at = window.top * window.row_step + window.left * window.col_step;
            for (size_t c = 0; c < pool->cstride; c += DPN_LANES) {
                const dpn_vec from = dpn_vec_load(dy + c);
                float *to = dx + at + c;
                if (average) pool_sum_grad(&window, !pairs, from / elements, to);
                else pool_maximum_grad(&window, !pairs, x + at + c, dpn_vec_load(y + c), from, to);
            }
            if (!average) y += pool->cstride;
            dy += pool->cstride;
        }
    }
}

void DPN_ISA_SYMBOL(pool_grad)(const struct dpn_pool *pool, size_t first, size_t count, const float *x,
                               const float *y, const float *dy, float *dx)
{
    const int pairs = pool_pairs(pool);
    for (size_t n = first; n < first + count; n++) {
        const size_t in = n * pool->in_stride, out = n * pool->out_stride;
        if (pool->average) { /* x and y are not read, and may be NULL */
            if (pairs) pool_sample_grad(pool, 1, 1, NULL, NULL, dy + out, dx + in);
            else pool_sample_grad(pool, 1, 0, NULL, NULL, dy + out, dx + in);
        } else {
            if (pairs) pool_sample_grad(pool, 0, 1, x + in, y + out, dy + out, dx + in);
            else pool_sample_grad(pool, 0, 0, x + in, y + out, dy + out, dx + in);
        }
    }
}
