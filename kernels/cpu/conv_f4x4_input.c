/* F(4x4,3x3): from images to the transform's domain: input tiles (B^T d B), gradient tiles (A dY A^T), and
 * filters (G g G^T). Memory-bound but for the few dozen additions a vector; what batch norm would do to the
 * data is done as it is loaded. Tile by tile, vector by vector: nothing depends on how tiles are grouped.
 */
#include <string.h>

#include "kernels/cpu/conv_f4x4.h"

/* ---- loading ---- */

/* A channel vector's constants of the form. */
struct f4_constants {
    dpn_vec scale, z_scale, shift;
};

static DPN_ALWAYS_INLINE struct f4_constants f4_constants(const struct f4_input *input, enum f4_form form,
                                                          size_t c)
{
    struct f4_constants k = {{0}, {0}, {0}};
    if (form == F4_SOURCE) {
        k.scale = dpn_vec_load(input->x.scale + c);
        k.shift = dpn_vec_load(input->x.shift + c);
    }
    if (form == F4_GRADIENT) {
        k.scale = dpn_vec_load(input->dy.g_scale + c);
        k.z_scale = dpn_vec_load(input->dy.z_scale + c);
        k.shift = dpn_vec_load(input->dy.shift + c);
    }
    return k;
}

static DPN_ALWAYS_INLINE dpn_vec f4_load(const float *x, const float *z, enum f4_form form, int relu,
                                         const struct f4_constants *k)
{
    dpn_vec v = dpn_vec_load(x);
    if (form == F4_SOURCE) {
        v = dpn_vec_fma(v, k->scale, k->shift);
        if (relu) v = dpn_vec_relu(v);
    }
    if (form == F4_GRADIENT) v = dpn_vec_fma(dpn_vec_load(z), k->z_scale, dpn_vec_fma(v, k->scale, k->shift));
    return v;
}

/* Where a tile lies: its first pixel's offset, and which of its rows and columns are in the image. */
struct f4_place {
    ptrdiff_t at;
    size_t row_begin, row_end, column_begin, column_end;
};

/* SIDE: pixels of a tile's side; its first row is STEP*row - pad. */
static DPN_ALWAYS_INLINE void f4_range(size_t tile, size_t pad, size_t side, size_t length, size_t *begin,
                                       size_t *end)
{
    ptrdiff_t first = (ptrdiff_t)(tile * F4_OUT) - (ptrdiff_t)pad, left = (ptrdiff_t)length - first;
    *begin = first < 0 ? (size_t)-first : 0;
    *end = left < 0 ? 0 : left < (ptrdiff_t)side ? (size_t)left : side;
    if (*end < *begin) *end = *begin;
}

static DPN_ALWAYS_INLINE struct f4_place f4_place(const struct f4_images *images,
                                                  const struct f4_tiling *tiling, size_t pad, size_t side,
                                                  size_t tile)
{
    size_t per_image = tiling->rows * tiling->columns, sample = tile / per_image, rest = tile % per_image;
    size_t row = rest / tiling->columns, column = rest % tiling->columns;
    struct f4_place place;
    f4_range(row, pad, side, images->height, &place.row_begin, &place.row_end);
    f4_range(column, pad, side, images->width, &place.column_begin, &place.column_end);
    ptrdiff_t y = (ptrdiff_t)(row * F4_OUT) - (ptrdiff_t)pad,
              x = (ptrdiff_t)(column * F4_OUT) - (ptrdiff_t)pad;
    place.at = (ptrdiff_t)(sample * images->stride) +
               (y * (ptrdiff_t)images->width + x) * (ptrdiff_t)images->cstride;
    return place;
}

/* ---- the transforms, along one side ---- */

static DPN_ALWAYS_INLINE void f4_b(const dpn_vec d[6], dpn_vec out[6])
{
    const dpn_vec p = dpn_vec_set(F4_P), q = dpn_vec_set(F4_Q), p2 = dpn_vec_set(F4_P2),
                  q2 = dpn_vec_set(F4_Q2);
    const dpn_vec product = dpn_vec_set(F4_P2 * F4_Q2), sum = dpn_vec_set(F4_P2 + F4_Q2);
    dpn_vec even_p = dpn_vec_fma(-q2, d[2], d[4]), odd_p = dpn_vec_fma(-q2, d[1], d[3]);
    dpn_vec even_q = dpn_vec_fma(-p2, d[2], d[4]), odd_q = dpn_vec_fma(-p2, d[1], d[3]);
    out[0] = dpn_vec_fma(product, d[0], dpn_vec_fma(-sum, d[2], d[4]));
    out[1] = dpn_vec_fma(p, odd_p, even_p);
    out[2] = dpn_vec_fma(-p, odd_p, even_p);
    out[3] = dpn_vec_fma(q, odd_q, even_q);
    out[4] = dpn_vec_fma(-q, odd_q, even_q);
    out[5] = dpn_vec_fma(product, d[1], dpn_vec_fma(-sum, d[3], d[5]));
}

static DPN_ALWAYS_INLINE void f4_a(const dpn_vec d[4], dpn_vec out[6])
{
    const dpn_vec p = dpn_vec_set(F4_P), q = dpn_vec_set(F4_Q), p2 = dpn_vec_set(F4_P2),
                  q2 = dpn_vec_set(F4_Q2);
    const dpn_vec p3 = dpn_vec_set(F4_P3), q3 = dpn_vec_set(F4_Q3);
    dpn_vec even_p = dpn_vec_fma(p2, d[2], d[0]), odd_p = dpn_vec_fma(p3, d[3], p * d[1]);
    dpn_vec even_q = dpn_vec_fma(q2, d[2], d[0]), odd_q = dpn_vec_fma(q3, d[3], q * d[1]);
    out[0] = d[0];
    out[1] = even_p + odd_p;
    out[2] = even_p - odd_p;
    out[3] = even_q + odd_q;
    out[4] = even_q - odd_q;
    out[5] = d[3];
}

static DPN_ALWAYS_INLINE void f4_g(const dpn_vec g[3], dpn_vec out[6])
{
    const dpn_vec p2 = dpn_vec_set(F4_P2), q2 = dpn_vec_set(F4_Q2);
    const dpn_vec scale_p = dpn_vec_set(F4_GP), scale_q = dpn_vec_set(F4_GQ);
    dpn_vec even_p = dpn_vec_fma(p2, g[2], g[0]), odd_p = g[1] * dpn_vec_set(F4_P * F4_GP);
    dpn_vec even_q = dpn_vec_fma(q2, g[2], g[0]), odd_q = g[1] * dpn_vec_set(F4_Q * F4_GQ);
    out[0] = g[0] * dpn_vec_set(F4_G0);
    out[1] = dpn_vec_fma(scale_p, even_p, odd_p);
    out[2] = dpn_vec_fma(scale_p, even_p, -odd_p);
    out[3] = dpn_vec_fma(scale_q, even_q, odd_q);
    out[4] = dpn_vec_fma(scale_q, even_q, -odd_q);
    out[5] = g[2];
}

/* ---- input tiles ---- */

/* One vector of channels of one tile. WHOLE: no pixel of it is outside the image. */
static DPN_ALWAYS_INLINE void f4_input_vector(const struct f4_input *input, const struct f4_place *place,
                                              size_t c, enum f4_form form, int relu, int whole, float *v,
                                              size_t plane)
{
    const size_t step = input->images.cstride, row = input->images.width * step;
    const struct f4_constants k = f4_constants(input, form, c);
    const float *x = input->x.x + place->at + c;
    const float *z = form == F4_GRADIENT ? input->dy.z + place->at + c : x;
    dpn_vec t[F4_IN][F4_IN], d[F4_IN], out[F4_IN];

    for (size_t i = 0; i < F4_IN; i++) {
        if (whole) {
            DPN_UNROLL
            for (size_t j = 0; j < F4_IN; j++)
                d[j] = f4_load(x + i * row + j * step, z + i * row + j * step, form, relu, &k);
        } else {
            DPN_UNROLL
            for (size_t j = 0; j < F4_IN; j++) d[j] = (dpn_vec){0};
            if (i >= place->row_begin && i < place->row_end) {
                DPN_UNROLL
                for (size_t j = 0; j < F4_IN; j++)
                    if (j >= place->column_begin && j < place->column_end)
                        d[j] = f4_load(x + i * row + j * step, z + i * row + j * step, form, relu, &k);
            }
        }
        f4_b(d, t[i]);
    }
    DPN_UNROLL
    for (size_t j = 0; j < F4_IN; j++) {
        DPN_UNROLL
        for (size_t i = 0; i < F4_IN; i++) d[i] = t[i][j];
        f4_b(d, out);
        DPN_UNROLL
        for (size_t i = 0; i < F4_IN; i++) dpn_vec_store(v + (i * F4_IN + j) * plane, out[i]);
    }
}

static DPN_ALWAYS_INLINE void f4_input_tile(const struct f4_input *input, size_t tile, size_t first_channel,
                                            size_t channels, enum f4_form form, int relu, float *v,
                                            size_t plane)
{
    const struct f4_place place = f4_place(&input->images, &input->tiling, input->pad, F4_IN, tile);
    const int whole = place.row_begin == 0 && place.row_end == F4_IN && place.column_begin == 0 &&
                      place.column_end == F4_IN;
    if (whole)
        for (size_t c = 0; c < channels; c += DPN_LANES)
            f4_input_vector(input, &place, first_channel + c, form, relu, 1, v + c, plane);
    else
        for (size_t c = 0; c < channels; c += DPN_LANES)
            f4_input_vector(input, &place, first_channel + c, form, relu, 0, v + c, plane);
}

void DPN_ISA_SYMBOL(f4_input)(const struct f4_input *input, size_t first, size_t tiles, size_t first_channel,
                              size_t channels, float *v, size_t plane)
{
    for (size_t t = 0; t < tiles; t++, v += channels) {
        size_t tile = first + t;
        if (input->form == F4_PLAIN)
            f4_input_tile(input, tile, first_channel, channels, F4_PLAIN, 0, v, plane);
        else if (input->form == F4_GRADIENT)
            f4_input_tile(input, tile, first_channel, channels, F4_GRADIENT, 0, v, plane);
        else if (input->x.relu) f4_input_tile(input, tile, first_channel, channels, F4_SOURCE, 1, v, plane);
        else f4_input_tile(input, tile, first_channel, channels, F4_SOURCE, 0, v, plane);
    }
}

/* ---- gradient tiles ---- */

static DPN_ALWAYS_INLINE void f4_gradient_vector(const struct f4_input *input, const struct f4_place *place,
                                                 size_t c, enum f4_form form, float *out_d, size_t plane)
{
    const size_t step = input->images.cstride, row = input->images.width * step;
    const struct f4_constants k = f4_constants(input, form, c);
    const float *g = input->dy.g + place->at + c;
    const float *z = form == F4_GRADIENT ? input->dy.z + place->at + c : g;
    dpn_vec t[F4_OUT][F4_IN], d[F4_OUT], out[F4_IN];

    for (size_t i = 0; i < F4_OUT; i++) {
        DPN_UNROLL
        for (size_t j = 0; j < F4_OUT; j++)
            d[j] = i < place->row_end && j < place->column_end
                       ? f4_load(g + i * row + j * step, z + i * row + j * step, form, 0, &k)
                       : (dpn_vec){0};
        f4_a(d, t[i]);
    }
    DPN_UNROLL
    for (size_t j = 0; j < F4_IN; j++) {
        DPN_UNROLL
        for (size_t i = 0; i < F4_OUT; i++) d[i] = t[i][j];
        f4_a(d, out);
        DPN_UNROLL
        for (size_t i = 0; i < F4_IN; i++) dpn_vec_store(out_d + (i * F4_IN + j) * plane, out[i]);
    }
}

void DPN_ISA_SYMBOL(f4_gradient)(const struct f4_input *input, size_t first, size_t tiles,
                                 size_t first_channel, size_t channels, float *d, size_t plane)
{
    for (size_t t = 0; t < tiles; t++, d += channels) {
        struct f4_place place = f4_place(&input->images, &input->tiling, 0, F4_OUT, first + t);
        if (input->form == F4_GRADIENT)
            for (size_t c = 0; c < channels; c += DPN_LANES)
                f4_gradient_vector(input, &place, first_channel + c, F4_GRADIENT, d + c, plane);
        else
            for (size_t c = 0; c < channels; c += DPN_LANES)
                f4_gradient_vector(input, &place, first_channel + c, F4_PLAIN, d + c, plane);
    }
}

/* ---- filters ---- */

static DPN_ALWAYS_INLINE void f4_filter_vector(const dpn_vec g[9], float *u, size_t plane)
{
    dpn_vec t[3][F4_IN], d[3], out[F4_IN];
    DPN_UNROLL
    for (size_t i = 0; i < 3; i++) f4_g(g + 3 * i, t[i]);
    DPN_UNROLL
    for (size_t j = 0; j < F4_IN; j++) {
        DPN_UNROLL
        for (size_t i = 0; i < 3; i++) d[i] = t[i][j];
        f4_g(d, out);
        DPN_UNROLL
        for (size_t i = 0; i < F4_IN; i++) dpn_vec_store(u + (i * F4_IN + j) * plane, out[i]);
    }
}

static void f4_filter_forward(const struct dpn_conv *conv, const float *weights, size_t panel, size_t first,
                              size_t channels, size_t width, float *u, size_t plane)
{
    size_t offset, stride;
    dpn_panel(9 * conv->in_channels, conv->out_channels, panel, &offset, &stride);
    for (size_t c = 0; c < channels; c++)
        for (size_t o = 0; o < width; o += DPN_LANES) {
            const float *at = weights + offset + (first + c) * stride + o;
            dpn_vec g[9];
            DPN_UNROLL
            for (size_t t = 0; t < 9; t++)
                g[t] = first + c < conv->in_channels ? dpn_vec_load(at + t * conv->in_channels * stride)
                                                     : (dpn_vec){0};
            f4_filter_vector(g, u + c * width + o, plane);
        }
}

enum { F4_TURN = 16 }; /* side of the blocks in which filters are transposed */

/* turned[t][o][c] = weight of tap 8-t from input channel C+c to output channel O+o, of a block. */
static void f4_filter_turn(const struct dpn_conv *conv, const float *weights, size_t c, size_t o,
                           float turned[9][F4_TURN][F4_TURN])
{
    size_t offset, stride, left = conv->in_channels > c ? conv->in_channels - c : 0;
    dpn_panel(9 * conv->in_channels, conv->out_channels, o / DPN_PANEL_COLUMNS, &offset, &stride);
    const float *at = weights + offset + c * stride + o % DPN_PANEL_COLUMNS;
    if (left < F4_TURN) memset(turned, 0, 9 * sizeof turned[0]);
    for (size_t t = 0; t < 9; t++) {
        const float *from = at + (8 - t) * conv->in_channels * stride;
        size_t i = 0;
        for (; i + 4 <= F4_TURN && i + 4 <= left; i += 4)
            for (size_t j = 0; j < F4_TURN; j += 4)
                dpn_transpose4(from + i * stride + j, stride, &turned[t][j][i], F4_TURN);
        for (; i < F4_TURN && i < left; i++)
            for (size_t j = 0; j < F4_TURN; j++) turned[t][j][i] = from[i * stride + j];
    }
}

static void f4_filter_data(const struct dpn_conv *conv, const float *weights, size_t panel, size_t first,
                           size_t channels, size_t width, float *u, size_t plane)
{
    _Alignas(64) float turned[9][F4_TURN][F4_TURN];
    for (size_t o = 0; o < channels; o += F4_TURN)
        for (size_t c = 0; c < width; c += F4_TURN) {
            f4_filter_turn(conv, weights, panel * DPN_PANEL_COLUMNS + c, first + o, turned);
            for (size_t j = 0; j < F4_TURN; j++)
                for (size_t i = 0; i < F4_TURN; i += DPN_LANES) {
                    dpn_vec g[9];
                    DPN_UNROLL
                    for (size_t t = 0; t < 9; t++) g[t] = dpn_vec_load(&turned[t][j][i]);
                    f4_filter_vector(g, u + (o + j) * width + c + i, plane);
                }
        }
}

void DPN_ISA_SYMBOL(f4_filter)(const struct dpn_conv *conv, const float *weights, int data, size_t panel,
                               size_t first, size_t channels, size_t width, float *u, size_t plane)
{
    (data ? f4_filter_data : f4_filter_forward)(conv, weights, panel, first, channels, width, u, plane);
}
