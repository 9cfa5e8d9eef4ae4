/* Pooling, and raw images to inputs, as plain loops.
 *
 * A window's elements are taken in ascending order of row and column, and windows in ascending order of
 * theirs: average and gradients are chains of float additions in that order.
 */
#include <assert.h>
#include <math.h>

#include "kernels/ref/ref.h"

/* Place of element K, in 0 .. kernel*kernel-1, of output pixel (OY, OX)'s window, channel 0; -1 if it is
 * padding. */
static long pool_element(const struct dpn_pool *pool, size_t oy, size_t ox, size_t k)
{
    const size_t iy = oy * pool->stride + k / pool->kernel - pool->pad;
    const size_t ix = ox * pool->stride + k % pool->kernel - pool->pad;
    if (iy >= pool->in_height || ix >= pool->in_width) return -1; /* negative ones have wrapped round */
    return (long)((iy * pool->in_width + ix) * pool->cstride);
}

/* X, Y: one sample's channel C. */
static float pool_window(const struct dpn_pool *pool, size_t oy, size_t ox, const float *x)
{
    const size_t elements = pool->kernel * pool->kernel;
    float largest = NAN, sum = 0;
    int any = 0;
    for (size_t k = 0; k < elements; k++) {
        const long place = pool_element(pool, oy, ox, k);
        if (place < 0) continue;
        sum += x[place];
        if (!any || x[place] > largest || isnan(x[place])) largest = x[place];
        any = 1;
    }
    assert(any);
    return pool->average ? sum / (float)elements : largest;
}

void dpn_ref_pool(const struct dpn_pool *pool, size_t first, size_t count, const float *x, float *y)
{
    for (size_t n = first; n < first + count; n++) {
        for (size_t oy = 0; oy < pool->out_height; oy++)
            for (size_t ox = 0; ox < pool->out_width; ox++)
                for (size_t c = 0; c < pool->cstride; c++)
                    y[n * pool->out_stride + (oy * pool->out_width + ox) * pool->cstride + c] =
                        pool_window(pool, oy, ox, x + n * pool->in_stride + c);
    }
}

/* Adds to one sample's channel DX what output pixel (OY, OX), of value *Y and gradient DY, sends back. An
 * average reads neither X nor Y. */
static void pool_window_grad(const struct dpn_pool *pool, size_t oy, size_t ox, const float *x,
                             const float *y, float dy, float *dx)
{
    const size_t elements = pool->kernel * pool->kernel;
    for (size_t k = 0; k < elements; k++) {
        const long place = pool_element(pool, oy, ox, k);
        if (place < 0) continue;
        if (pool->average) {
            dx[place] += dy / (float)elements;
        } else if (x[place] == *y || (isnan(x[place]) && isnan(*y))) {
            dx[place] += dy;
            return;
        }
    }
}

void dpn_ref_pool_grad(const struct dpn_pool *pool, size_t first, size_t count, const float *x,
                       const float *y, const float *dy, float *dx)
{
    for (size_t n = first; n < first + count; n++) {
        const size_t in = n * pool->in_stride;
        for (size_t i = 0; i < pool->in_height * pool->in_width * pool->cstride; i++) dx[in + i] = 0;
        for (size_t oy = 0; oy < pool->out_height; oy++) {
            for (size_t ox = 0; ox < pool->out_width; ox++) {
                for (size_t c = 0; c < pool->cstride; c++) {
                    const size_t out = n * pool->out_stride + (oy * pool->out_width + ox) * pool->cstride + c;
                    const float *from = pool->average ? NULL : x + in + c,
                                *top = pool->average ? NULL : y + out;
                    pool_window_grad(pool, oy, ox, from, top, dy[out], dx + in + c);
                }
            }
        }
    }
}

/* Raw value of channel C at (Y, X) of the image; 0 outside. */
static float pool_raw(const struct dpn_image *image, size_t c, long y, long x)
{
    if (y < 0 || x < 0 || (size_t)y >= image->height || (size_t)x >= image->width) return 0;
    const size_t i = (c * image->height + (size_t)y) * image->width + (size_t)x;
    return image->u8 != NULL ? (float)image->u8[i] : image->f32[i];
}

void dpn_ref_image(const struct dpn_image *image)
{
    const long height = (long)image->height, width = (long)image->width;
    float *out = image->out;
    for (long y = 0; y < height; y++) {
        for (long x = 0; x < width; x++) {
            for (size_t c = 0; c < image->channels; c++) {
                const long column = image->flip ? width - 1 - x : x;
                *out++ = pool_raw(image, c, image->top + y, image->left + column) * image->scale[c] +
                         image->shift[c];
            }
        }
    }
}
