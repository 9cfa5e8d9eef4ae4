/* Direct convolution, maximum pooling of its output and back.
 *
 * Idea: few channels at many pixels are all memory traffic, and pooling leaves a fraction of them. A band of
 * y is pooled while it is in cache and never stored; backward, dy is made of the pooled gradient where it is
 * packed.
 *
 * Cost: a byte a maximum to store; two loads and a store a vector of dy.
 */
#include "kernels/cpu/conv_direct.h"

/* One vector of a window that begins at Y; SIZE is a constant where it is 2. */
static DPN_ALWAYS_INLINE void pool_window(const float *y, size_t row, size_t cstride, const size_t size,
                                          float *out, uint8_t *place)
{
    dpn_vec largest = dpn_vec_load(y);
    dpn_vec_int at = {0};
    for (size_t i = 0; i < size; i++) {
        for (size_t j = 0; j < size; j++) {
            const dpn_vec value = dpn_vec_load(y + i * row + j * cstride);
            /* The first NaN wins. */
            const dpn_vec_int take = (value > largest) | ((value != value) & (largest == largest));
            largest = (dpn_vec)(((dpn_vec_int)value & take) | ((dpn_vec_int)largest & ~take));
            at = (((dpn_vec_int){0} + (int)(i * size + j)) & take) | (at & ~take);
        }
    }
    dpn_vec_store(out, largest);
    dpn_vec_store_bytes(place, at);
}

static DPN_ALWAYS_INLINE void pool_sample(const struct dpn_conv *conv, const size_t size, size_t rows,
                                          const float *y, float *out, uint8_t *place)
{
    const size_t cstride = conv->out_cstride, row = conv->out_width * cstride;
    for (size_t py = 0; py < rows / size; py++, y += size * row) {
        for (size_t px = 0; px < conv->out_width / size; px++) {
            for (size_t c = 0; c < cstride; c += DPN_LANES)
                pool_window(y + px * size * cstride + c, row, cstride, size, out + c, place + c);
            out += cstride;
            place += cstride;
        }
    }
}

void DPN_ISA_SYMBOL(direct_pool)(const struct dpn_conv *conv, size_t samples, size_t rows, const float *y,
                                 float *out, uint8_t *place)
{
    for (size_t n = 0; n < samples; n++) {
        if (conv->pool == 2) pool_sample(conv, 2, rows, y, out, place);
        else pool_sample(conv, conv->pool, rows, y, out, place);
        y += rows * conv->out_width * conv->out_cstride;
        out += conv->out_stride;
        place += conv->out_stride;
    }
}

/* A vector of the pooled gradient where PLACE is WANTED, else 0. */
static DPN_ALWAYS_INLINE dpn_vec pool_at(dpn_vec dy, dpn_vec_int place, size_t wanted)
{
    return (dpn_vec)((dpn_vec_int)dy & (place == (dpn_vec_int){0} + (int)wanted));
}

/* The first COUNT of a window row's pixels, 16 * SIXTEENS channels each. Pixel after pixel, as a pixel's
 * padding may be the next one's place. PLACE: of the first one. */
static DPN_ALWAYS_INLINE void pool_pixels(const float *from, const uint8_t *places, const size_t sixteens,
                                          size_t place, size_t count, float *to, size_t to_step)
{
    for (size_t k = 0; k < count; k++, to += to_step) {
        for (size_t c = 0; c < sixteens * 16; c += 16) {
            DPN_UNROLL
            for (size_t v = c; v < c + 16; v += DPN_LANES)
                dpn_vec_store(to + v,
                              pool_at(dpn_vec_load(from + v), dpn_vec_load_bytes(places + v), place + k));
        }
    }
}

/* COUNT pixels of row Y from X on. */
static DPN_ALWAYS_INLINE void pool_row(const struct direct_map *map, size_t n, size_t y, size_t x,
                                       size_t count, size_t c, const size_t sixteens, const size_t pool,
                                       float *to, size_t to_step)
{
    const size_t rows = map->height / pool, columns = map->width / pool, place = y % pool * pool;
    const size_t end = y / pool < rows && x < columns * pool ? direct_min(x + count, columns * pool) : x;
    size_t at = n * map->stride + (y / pool * columns + x / pool) * map->cstride + c;
    const float *last = to + count * to_step;
    for (size_t j = x % pool, here; x < end; x += here, j = 0, at += map->cstride) {
        here = direct_min(pool - j, end - x);
        if (here == pool) pool_pixels(map->x + at, map->place + at, sixteens, place, pool, to, to_step);
        else pool_pixels(map->x + at, map->place + at, sixteens, place + j, here, to, to_step);
        to += here * to_step;
    }
    for (; to < last; to += to_step) /* dropped by the pooling */
        for (size_t v = 0; v < sixteens * 16; v += DPN_LANES) dpn_vec_store(to + v, (dpn_vec){0});
}

void DPN_ISA_SYMBOL(direct_unpool)(const struct direct_map *map, size_t n, size_t y, size_t x, size_t count,
                                   size_t c, size_t width, float *to, size_t to_step)
{
    while (count > 0) {
        const size_t here = direct_min(count, map->width - x);
        if (map->pool == 2 && width == 16) pool_row(map, n, y, x, here, c, 1, 2, to, to_step);
        else pool_row(map, n, y, x, here, c, width / 16, map->pool, to, to_step);
        to += here * to_step;
        count -= here;
        x = 0;
        if (++y < map->height) continue;
        y = 0;
        n++;
    }
}
