/* Direct convolution, maximum pooling of its output.
 *
 * Idea: few channels at many pixels are all memory traffic, and pooling leaves a fraction of them. A band of
 * y is pooled while it is in cache and never stored; a byte says where each maximum was.
 */
#include "kernels/cpu/conv_direct.h"

/* What is done to y as it is read. */
struct pool_finish {
    dpn_vec bias;
    dpn_vec_int keep;
};

static DPN_ALWAYS_INLINE dpn_vec pool_read(const float *y, const struct pool_finish *finish, const int relu)
{
    const dpn_vec value = dpn_vec_load(y) + finish->bias;
    return (dpn_vec)((dpn_vec_int)(relu ? dpn_vec_relu(value) : value) & finish->keep);
}

/* A vector of channels of SAMPLES images; SIZE is a constant where it is 2, RELU always. */
static DPN_ALWAYS_INLINE void pool_channels(const struct dpn_conv *conv, size_t samples, size_t rows,
                                            const float *y, float *out, uint8_t *place,
                                            const struct pool_finish *finish, const size_t size,
                                            const int relu)
{
    const size_t cstride = conv->out_cstride, row = conv->out_width * cstride;
    const size_t columns = conv->out_width / size, lines = rows / size;
    for (size_t n = 0; n < samples; n++) {
        size_t at = n * conv->out_stride;
        for (size_t py = 0; py < lines; py++) {
            const float *window = y + (n * rows + py * size) * row;
            for (size_t px = 0; px < columns; px++, window += size * cstride, at += cstride) {
                dpn_vec largest = pool_read(window, finish, relu);
                dpn_vec_int number = {0};
                for (size_t i = 0; i < size; i++)
                    for (size_t j = i == 0; j < size; j++)
                        dpn_vec_larger(pool_read(window + i * row + j * cstride, finish, relu),
                                       (int)(i * size + j), &largest, &number);
                dpn_vec_store(out + at, largest);
                dpn_vec_store_bytes(place + at, number);
            }
        }
    }
}

void DPN_ISA_SYMBOL(direct_pool)(const struct dpn_conv *conv, size_t samples, size_t rows, const float *y,
                                 const float *bias, int relu, float *out, uint8_t *place)
{
    for (size_t c = 0; c < conv->out_cstride; c += DPN_LANES) {
        /* Without a bias: -0 leaves every sum as it is. */
        const struct pool_finish finish = {
            .bias = bias != NULL ? dpn_vec_load(bias + c) : -(dpn_vec){0},
            .keep = direct_keep(c, conv->out_channels),
        };
        if (conv->pool != 2)
            if (relu) pool_channels(conv, samples, rows, y + c, out + c, place + c, &finish, conv->pool, 1);
            else pool_channels(conv, samples, rows, y + c, out + c, place + c, &finish, conv->pool, 0);
        else if (relu) pool_channels(conv, samples, rows, y + c, out + c, place + c, &finish, 2, 1);
        else pool_channels(conv, samples, rows, y + c, out + c, place + c, &finish, 2, 0);
    }
}
