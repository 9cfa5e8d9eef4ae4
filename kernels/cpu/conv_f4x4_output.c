/* F(4x4,3x3): from the transform's domain to images (A^T M A), and what is done to a finished tile while it
 * is in registers: bias, ReLU, addition to what is there, batch norm's moments or masked sums.
 *
 * Moments of a block are taken about the block's first pixel, so that they do not cancel. Sums run over the
 * block's pixels in order, in as many chains as a vector has lanes.
 */
#include <string.h>

#include "kernels/cpu/conv_f4x4.h"

enum { F4_OUT_MAX_CHANNELS = DPN_PANEL_COLUMNS };

static DPN_ALWAYS_INLINE void f4_at(const dpn_vec m[6], dpn_vec out[4])
{
    const dpn_vec p = dpn_vec_set(F4_P), q = dpn_vec_set(F4_Q), p2 = dpn_vec_set(F4_P2),
                  q2 = dpn_vec_set(F4_Q2);
    const dpn_vec p3 = dpn_vec_set(F4_P3), q3 = dpn_vec_set(F4_Q3);
    dpn_vec even_p = m[1] + m[2], odd_p = m[1] - m[2], even_q = m[3] + m[4], odd_q = m[3] - m[4];
    out[0] = m[0] + even_p + even_q;
    out[1] = dpn_vec_fma(p, odd_p, q * odd_q);
    out[2] = dpn_vec_fma(p2, even_p, q2 * even_q);
    out[3] = dpn_vec_fma(p3, odd_p, dpn_vec_fma(q3, odd_q, m[5]));
}

/* What to do with a tile, as constants of each copy of the code. */
enum f4_mask { F4_NO_MASK, F4_MASK_NONE, F4_MASK_Y, F4_MASK_Z };
struct f4_job {
    int accumulate, moments;
    enum f4_mask mask;
};

/* Running sums of a channel vector of the block, in L1. */
struct f4_sums {
    float *first, *second, *origin; /* [F4_OUT_MAX_CHANNELS] each; origin: of moments */
};

struct f4_tile {
    ptrdiff_t at; /* floats from the image's start */
    size_t rows, columns;
    int first; /* of its block */
};

static DPN_ALWAYS_INLINE dpn_vec f4_finish(const struct f4_output *output, const struct f4_job job,
                                           ptrdiff_t at, size_t channel, dpn_vec y)
{
    if (job.accumulate) y += dpn_vec_load(output->y + at);
    if (job.mask == F4_MASK_Y) y = dpn_vec_where_positive(dpn_vec_load(output->mask->y + at), y);
    if (job.mask == F4_MASK_Z) {
        dpn_vec active = dpn_vec_fma(dpn_vec_load(output->mask->z + at),
                                     dpn_vec_load(output->mask->scale + channel),
                                     dpn_vec_load(output->mask->shift + channel));
        y = dpn_vec_where_positive(active, y);
    }
    if (job.mask == F4_NO_MASK && !job.accumulate) {
        if (output->bias) y += dpn_vec_load(output->bias + channel);
        if (output->relu) y = dpn_vec_relu(y);
    }
    return y;
}

/* One vector of channels of one tile. C: within the panel. */
static DPN_ALWAYS_INLINE void f4_output_vector(const struct f4_output *output, const struct f4_job job,
                                               const struct f4_tile *tile, size_t channel, size_t c,
                                               const float *m, size_t plane, const struct f4_sums *sums)
{
    const size_t step = output->images.cstride, row = output->images.width * step;
    dpn_vec t[F4_OUT][F4_IN], column[F4_IN], out[F4_OUT];
    dpn_vec first = {0}, second = {0}, origin = {0};

    DPN_UNROLL
    for (size_t j = 0; j < F4_IN; j++) {
        DPN_UNROLL
        for (size_t i = 0; i < F4_IN; i++) column[i] = dpn_vec_load(m + (i * F4_IN + j) * plane);
        f4_at(column, out);
        DPN_UNROLL
        for (size_t i = 0; i < F4_OUT; i++) t[i][j] = out[i];
    }
    for (size_t i = 0; i < F4_OUT; i++) {
        if (i >= tile->rows) break;
        f4_at(t[i], out);
        DPN_UNROLL
        for (size_t j = 0; j < F4_OUT; j++) {
            if (j >= tile->columns) break;
            const ptrdiff_t at = tile->at + (ptrdiff_t)(i * row + j * step + channel);
            dpn_vec y = f4_finish(output, job, at, channel, out[j]);
            if (output->stream) dpn_vec_stream(output->y + at, y);
            else dpn_vec_store(output->y + at, y);
            if (job.moments) {
                if (i == 0 && j == 0) {
                    if (tile->first) dpn_vec_store(sums->origin + c, y);
                    origin = dpn_vec_load(sums->origin + c);
                }
                dpn_vec d = y - origin;
                first += d;
                second = dpn_vec_fma(d, d, second);
            }
            if (job.mask != F4_NO_MASK) {
                dpn_vec z = dpn_vec_load(output->mask->z + at) - dpn_vec_load(output->mask->mean + channel);
                first += y;
                second = dpn_vec_fma(y, z, second);
            }
        }
    }
    if (job.moments || job.mask != F4_NO_MASK) {
        dpn_vec_store(sums->first + c, dpn_vec_load(sums->first + c) + first);
        dpn_vec_store(sums->second + c, dpn_vec_load(sums->second + c) + second);
    }
}

static DPN_ALWAYS_INLINE void f4_output_tiles(const struct f4_output *output, const struct f4_job job,
                                              size_t first, size_t tiles, size_t first_channel,
                                              size_t channels, const float *m, size_t plane,
                                              const struct f4_sums *sums, size_t *pixels)
{
    const struct f4_tiling *tiling = &output->tiling;
    const struct f4_images *images = &output->images;
    for (size_t t = 0; t < tiles; t++, m += channels) {
        size_t per_image = tiling->rows * tiling->columns, sample = (first + t) / per_image;
        size_t rest = (first + t) % per_image, y = rest / tiling->columns * F4_OUT;
        size_t x = rest % tiling->columns * F4_OUT;
        struct f4_tile tile = {
            .at = (ptrdiff_t)(sample * images->stride + (y * images->width + x) * images->cstride),
            .rows = images->height - y < F4_OUT ? images->height - y : F4_OUT,
            .columns = images->width - x < F4_OUT ? images->width - x : F4_OUT,
            .first = t == 0,
        };
        *pixels += tile.rows * tile.columns;
        for (size_t c = 0; c < channels; c += DPN_LANES)
            f4_output_vector(output, job, &tile, first_channel + c, c, m + c, plane, sums);
    }
}

/* The block's sums as conv.h wants them. */
static void f4_output_moments(const struct f4_output *output, size_t first_channel, size_t channels,
                              size_t pixels, const struct f4_sums *sums)
{
    float *mean = output->moments + first_channel, *squares = mean + output->images.cstride;
    for (size_t c = 0; c < channels; c += DPN_LANES) {
        const dpn_vec first = dpn_vec_load(sums->first + c), shift = first / (float)pixels;
        dpn_vec_store(mean + c, dpn_vec_load(sums->origin + c) + shift);
        dpn_vec_store(squares + c, dpn_vec_relu(dpn_vec_fma(-first, shift, dpn_vec_load(sums->second + c))));
    }
    output->moments[2 * output->images.cstride] = (float)pixels;
}

static void f4_output_sums(const struct f4_output *output, size_t first_channel, size_t channels,
                           size_t pixels, const struct f4_sums *sums)
{
    float *block = output->mask->sums;
    memcpy(block + first_channel, sums->first, channels * sizeof *block);
    memcpy(block + output->images.cstride + first_channel, sums->second, channels * sizeof *block);
    block[2 * output->images.cstride] = (float)pixels;
}

/* The right copy of the code. */
#define F4_RUN(...)                                                                                        \
    f4_output_tiles(output, (struct f4_job){__VA_ARGS__}, first, tiles, first_channel, channels, m, plane, \
                    &sums, &pixels)

void DPN_ISA_SYMBOL(f4_output)(const struct f4_output *output, size_t first, size_t tiles,
                               size_t first_channel, size_t channels, const float *m, size_t plane)
{
    _Alignas(64) float room[3][F4_OUT_MAX_CHANNELS] = {{0}};
    const struct f4_sums sums = {room[0], room[1], room[2]};
    const struct dpn_mask_sums *mask = output->mask;
    size_t pixels = 0;
    if (!mask) {
        if (output->accumulate) F4_RUN(.accumulate = 1);
        else if (output->moments) F4_RUN(.moments = 1);
        else F4_RUN(.moments = 0);
    } else if (output->accumulate) {
        if (mask->y) F4_RUN(.accumulate = 1, .mask = F4_MASK_Y);
        else if (mask->scale) F4_RUN(.accumulate = 1, .mask = F4_MASK_Z);
        else F4_RUN(.accumulate = 1, .mask = F4_MASK_NONE);
    } else {
        if (mask->y) F4_RUN(.mask = F4_MASK_Y);
        else if (mask->scale) F4_RUN(.mask = F4_MASK_Z);
        else F4_RUN(.mask = F4_MASK_NONE);
    }
    if (output->moments) f4_output_moments(output, first_channel, channels, pixels, &sums);
    if (mask) f4_output_sums(output, first_channel, channels, pixels, &sums);
}
