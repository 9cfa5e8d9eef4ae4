/* Direct convolution, maximum pooling of its output.
 *
 * Idea: few channels at many pixels are all memory traffic, and pooling leaves a fraction of them. A band of
 * y is pooled while it is in cache and never stored; a byte says where each maximum was.
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
