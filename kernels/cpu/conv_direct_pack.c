/* Packing for the direct convolution: patches of a tensor as rows of a matrix.
 *
 * Where a pixel's channels are whole vectors, patches are copied from the tensor itself, one run of a
 * patch's row at a time, with the border looked at for each. Other tensors are first copied to a staged
 * piece that has the border in it, real channels only and the transform done, from which every run is
 * copied by whole vectors without a question: a run's last vector may reach into the next run, which is
 * written later.
 *
 * Cost: one load and one store a vector, at most ny*nx/step^2 times the tensor.
 */
#include <string.h>

#include "kernels/cpu/conv_direct.h"

typedef float pack_half_any __attribute__((vector_size(32), aligned(4), may_alias));

/* One vector as KIND says, its first float of channel C. */
static DPN_ALWAYS_INLINE dpn_vec pack_read(const struct direct_map *map, const enum direct_kind kind,
                                           size_t from, size_t c)
{
    dpn_vec v = dpn_vec_load(map->x + from);
    if (kind >= DIRECT_AFFINE) v = dpn_vec_fma(v, dpn_vec_load(map->scale + c), dpn_vec_load(map->shift + c));
    if (kind == DIRECT_GRADIENT)
        v = dpn_vec_fma(dpn_vec_load(map->z + from), dpn_vec_load(map->z_scale + c), v);
    if (kind == DIRECT_RELU || kind == DIRECT_AFFINE_RELU) v = dpn_vec_relu(v);
    return v;
}

/* N floats (a multiple of 16) from float FROM on, which is of channel C; whole pixels lie one after the
 * other. */
static DPN_ALWAYS_INLINE void pack_run(const struct direct_map *map, const enum direct_kind kind, size_t from,
                                       size_t c, size_t n, float *to)
{
    for (size_t i = 0; i < n; i += DPN_LANES) {
        dpn_vec_store(to + i, pack_read(map, kind, from + i, c));
        c += DPN_LANES;
        if (c == map->channels) c = 0;
    }
}

static DPN_ALWAYS_INLINE void pack_zeros(size_t n, float *to)
{
    for (size_t i = 0; i < n; i += DPN_LANES) dpn_vec_store(to + i, (dpn_vec){0});
}

/* Fewer floats than a vector, without a look at those around them. */
static void pack_few(const struct direct_map *map, size_t from, size_t c, size_t n, float *to)
{
    for (size_t i = 0; i < n; i++) {
        const size_t channel = c + i;
        /* One operation of a whole vector a float: the same rounding as everywhere else. */
        dpn_vec v = dpn_vec_set(map->x[from + i]);
        if (map->kind >= DIRECT_AFFINE)
            v = dpn_vec_fma(v, dpn_vec_set(map->scale[channel]), dpn_vec_set(map->shift[channel]));
        if (map->kind == DIRECT_GRADIENT)
            v = dpn_vec_fma(dpn_vec_set(map->z[from + i]), dpn_vec_set(map->z_scale[channel]), v);
        if (map->kind == DIRECT_RELU || map->kind == DIRECT_AFFINE_RELU) v = dpn_vec_relu(v);
        to[i] = v[0];
    }
}

/* COUNT whole pixels from float FROM on, real channels only. Writes up to 15 floats more. */
static DPN_ALWAYS_INLINE void pack_pixels(const struct direct_map *map, const enum direct_kind kind,
                                          size_t from, size_t count, float *to)
{
    const size_t channels = map->channels, cstride = map->cstride;
    if (cstride == channels && kind < DIRECT_AFFINE) { /* one run: nothing depends on the channel */
        const size_t n = count * channels, whole = n / DPN_LANES * DPN_LANES;
        pack_run(map, kind, from, 0, whole, to);
        if (whole > 0) dpn_vec_store(to + n - DPN_LANES, pack_read(map, kind, from + n - DPN_LANES, 0));
        else pack_few(map, from, 0, n, to);
    } else if (cstride % 16 == 0) {
        for (size_t i = 0; i < count; i++) {
            for (size_t c = 0; c < channels; c += DPN_LANES)
                dpn_vec_store(to + c, pack_read(map, kind, from + c, c));
            from += cstride;
            to += channels;
        }
    } else {
        for (size_t i = 0; i < count; i++) pack_few(map, from + i * cstride, 0, channels, to + i * channels);
    }
}

/* Which of N pixels from coordinate FIRST on lie in a map of SIZE: BEGIN .. END-1. */
static DPN_ALWAYS_INLINE void pack_inside(long first, size_t n, size_t size, size_t *begin, size_t *end)
{
    const long count = (long)n, left = (long)size - first, lo = first < 0 ? -first : 0;
    *begin = (size_t)(lo < count ? lo : count);
    *end = left <= (long)*begin ? *begin : (size_t)(left < count ? left : count);
}

/* ---- staged ---- */

static DPN_ALWAYS_INLINE void pack_stage(const struct direct_gather *gather, const enum direct_kind kind,
                                         float *to)
{
    const struct direct_map *map = &gather->map;
    const size_t rows = direct_stage_rows(gather), columns = direct_stage_columns(gather),
                 channels = map->channels;
    size_t begin, end;
    pack_inside(gather->left, columns, map->width, &begin, &end);
    for (size_t n = gather->sample; n < gather->sample + gather->samples; n++) {
        for (size_t r = 0; r < rows; r++, to += columns * channels) {
            const long y = gather->top + (long)r;
            if (y < 0 || y >= (long)map->height || begin == end) {
                memset(to, 0, columns * channels * sizeof *to);
                continue;
            }
            const size_t x = (size_t)(gather->left + (long)begin);
            const size_t from = n * map->stride + ((size_t)y * map->width + x) * map->cstride;
            memset(to, 0, begin * channels * sizeof *to);
            pack_pixels(map, kind, from, end - begin, to + begin * channels);
            memset(to + end * channels, 0, (columns - end) * channels * sizeof *to);
        }
    }
}

/* One run of FLOATS floats, whole half vectors. */
static DPN_ALWAYS_INLINE void pack_copy(const float *from, float *to, const size_t floats)
{
    DPN_UNROLL
    for (size_t j = 0; j + DPN_LANES <= floats; j += DPN_LANES) dpn_vec_store(to + j, dpn_vec_load(from + j));
    if (floats % DPN_LANES) *(pack_half_any *)(to + floats - 8) = *(const pack_half_any *)(from + floats - 8);
}

/* Patches from the staged copy. FLOATS: those of a run, a constant, where whole patches are packed; else
 * 0. */
static DPN_ALWAYS_INLINE void pack_staged(const struct direct_gather *gather, size_t first, size_t count,
                                          size_t k0, size_t k1, float *a, size_t a_row, const size_t floats)
{
    const size_t channels = gather->map.channels, pitch = direct_stage_columns(gather) * channels;
    const size_t run = gather->nx * channels, step = gather->step, ny = gather->ny, ky1 = (k1 - 1) / run;
    size_t column = first % gather->columns, row = first / gather->columns % gather->rows;
    size_t n = first / gather->columns / gather->rows;
    while (count > 0) {
        const size_t here = direct_min(count, gather->columns - column);
        const float *from = gather->staged + (n * direct_stage_rows(gather) + row * step) * pitch +
                            column * step * channels;
        for (size_t i = 0; i < here; i++, from += step * channels, a += a_row) {
            float *to = a;
            const float *x = from;
            for (size_t ky = 0; floats > 0 && ky < ny; ky++, x += pitch, to += run) pack_copy(x, to, floats);
            for (size_t ky = k0 / run, begin = k0 % run; floats == 0 && ky <= ky1; ky++, begin = 0) {
                const size_t length = (ky == ky1 ? k1 - ky1 * run : run) - begin;
                x = from + ky * pitch + begin;
                for (size_t j = 0; j < length; j += DPN_LANES) dpn_vec_store(to + j, dpn_vec_load(x + j));
                to += length;
            }
        }
        count -= here;
        column = 0;
        if (++row == gather->rows) {
            row = 0;
            n++;
        }
    }
}

/* ---- from the map itself ---- */

static DPN_ALWAYS_INLINE void pack_map(const struct direct_gather *gather, const enum direct_kind kind,
                                       size_t first, size_t count, size_t k0, size_t k1, float *a,
                                       size_t a_row)
{
    const struct direct_map *map = &gather->map;
    const size_t channels = map->channels, run = gather->nx * channels, ky0 = k0 / run, ky1 = (k1 - 1) / run;
    size_t column = first % gather->columns, row = first / gather->columns % gather->rows;
    size_t n = gather->sample + first / gather->columns / gather->rows;
    for (size_t i = 0; i < count; i++, a += a_row) {
        const long left = gather->left + (long)(column * gather->step);
        size_t inside_begin, inside_end;
        pack_inside(left, gather->nx, map->width, &inside_begin, &inside_end);
        float *to = a;
        for (size_t ky = ky0; ky <= ky1; ky++) {
            const long y = gather->top + (long)(row * gather->step + ky);
            const size_t begin = ky == ky0 ? k0 - ky0 * run : 0, end = ky == ky1 ? k1 - ky1 * run : run;
            const int outside = y < 0 || y >= (long)map->height;
            const size_t lo = outside ? end : direct_min(end, direct_max(begin, inside_begin * channels));
            const size_t hi = direct_max(lo, direct_min(end, inside_end * channels));
            if (lo > begin) pack_zeros(lo - begin, to);
            if (hi > lo) {
                const size_t corner = n * map->stride + (size_t)(y * (long)map->width + left) * channels;
                pack_run(map, kind, corner + lo, lo % channels, hi - lo, to + (lo - begin));
            }
            if (end > hi) pack_zeros(end - hi, to + (hi - begin));
            to += end - begin;
        }
        if (++column < gather->columns) continue;
        column = 0;
        if (++row < gather->rows) continue;
        row = 0;
        n++;
    }
}

int DPN_ISA_SYMBOL(direct_in_place)(const struct direct_gather *gather)
{
    const struct direct_map *map = &gather->map;
    if (gather->ny != 1 || gather->nx != 1 || gather->step != 1 || gather->left != 0 || gather->top < 0)
        return 0;
    if (gather->columns != map->width || (size_t)gather->top + gather->rows > map->height) return 0;
    if (gather->samples > 1 && (map->stride != gather->rows * map->width * map->cstride)) return 0;
    return map->kind == DIRECT_PLAIN;
}

size_t DPN_ISA_SYMBOL(direct_stage_floats)(const struct direct_gather *gather)
{
    if (!direct_stages(gather->map.channels, gather->map.cstride)) return 0;
    return direct_round16(gather->samples * direct_stage_rows(gather) * direct_stage_columns(gather) *
                          gather->map.channels) +
           DIRECT_SLACK;
}

void DPN_ISA_SYMBOL(direct_stage_all)(struct direct_gather *gather, float *staged)
{
    gather->staged = staged;
    switch (gather->map.kind) {
    case DIRECT_PLAIN: pack_stage(gather, DIRECT_PLAIN, staged); break;
    case DIRECT_RELU: pack_stage(gather, DIRECT_RELU, staged); break;
    case DIRECT_AFFINE: pack_stage(gather, DIRECT_AFFINE, staged); break;
    case DIRECT_AFFINE_RELU: pack_stage(gather, DIRECT_AFFINE_RELU, staged); break;
    case DIRECT_GRADIENT: pack_stage(gather, DIRECT_GRADIENT, staged); break;
    }
}

void DPN_ISA_SYMBOL(direct_stage)(struct direct_gather *gather, float *staged)
{
    if (direct_stages(gather->map.channels, gather->map.cstride) && !DPN_ISA_SYMBOL(direct_in_place)(gather))
        DPN_ISA_SYMBOL(direct_stage_all)(gather, staged);
}

static void pack_from_stage(const struct direct_gather *gather, size_t first, size_t count, size_t k0,
                            size_t k1, float *a, size_t a_row)
{
    const size_t run = gather->nx * gather->map.channels;
    if (k0 != 0 || k1 != gather->ny * run) {
        pack_staged(gather, first, count, k0, k1, a, a_row, 0);
        return;
    }
    switch ((run + 7) / 8) {
    case 1: pack_staged(gather, first, count, 0, k1, a, a_row, 8); break;
    case 2: pack_staged(gather, first, count, 0, k1, a, a_row, 16); break;
    case 3: pack_staged(gather, first, count, 0, k1, a, a_row, 24); break;
    case 4: pack_staged(gather, first, count, 0, k1, a, a_row, 32); break;
    case 6: pack_staged(gather, first, count, 0, k1, a, a_row, 48); break;
    case 12: pack_staged(gather, first, count, 0, k1, a, a_row, 96); break;
    default: pack_staged(gather, first, count, 0, k1, a, a_row, 0); break;
    }
}

static void pack_rows(const struct direct_gather *gather, size_t first, size_t count, size_t k0, size_t k1,
                      float *a, size_t a_row)
{
    if (gather->staged != NULL) {
        pack_from_stage(gather, first, count, k0, k1, a, a_row);
        return;
    }
    switch (gather->map.kind) {
    case DIRECT_PLAIN: pack_map(gather, DIRECT_PLAIN, first, count, k0, k1, a, a_row); break;
    case DIRECT_RELU: pack_map(gather, DIRECT_RELU, first, count, k0, k1, a, a_row); break;
    case DIRECT_AFFINE: pack_map(gather, DIRECT_AFFINE, first, count, k0, k1, a, a_row); break;
    case DIRECT_AFFINE_RELU: pack_map(gather, DIRECT_AFFINE_RELU, first, count, k0, k1, a, a_row); break;
    case DIRECT_GRADIENT: pack_map(gather, DIRECT_GRADIENT, first, count, k0, k1, a, a_row); break;
    }
}

const float *DPN_ISA_SYMBOL(direct_rows)(const struct direct_gather *gather, size_t first, size_t count,
                                         size_t k0, size_t k1, float *scratch, size_t *row)
{
    const struct direct_map *map = &gather->map;
    if (DPN_ISA_SYMBOL(direct_in_place)(gather)) {
        const size_t pixel = (size_t)gather->top * map->width + first;
        *row = map->cstride;
        return map->x + gather->sample * map->stride + pixel * map->cstride + k0;
    }
    *row = direct_row_stride(k1 - k0);
    pack_rows(gather, first, count, k0, k1, scratch, *row);
    return scratch;
}

/* ---- columns of dy, and what is done to a fresh product ---- */

static DPN_ALWAYS_INLINE void pack_columns(const struct direct_map *map, const enum direct_kind kind,
                                           size_t from, size_t count, size_t c0, size_t width, float *to)
{
    for (size_t c = c0; c < c0 + width; c += DPN_LANES, to += DPN_LANES) {
        const dpn_vec_int keep = direct_keep(c, map->channels);
        for (size_t i = 0; i < count; i++) {
            dpn_vec v = pack_read(map, kind, from + i * map->cstride + c, c);
            dpn_vec_store(to + i * width, (dpn_vec)((dpn_vec_int)v & keep));
        }
    }
}

void DPN_ISA_SYMBOL(direct_columns)(const struct direct_map *map, size_t from, size_t count, size_t c,
                                    size_t width, float *to)
{
    if (map->kind == DIRECT_GRADIENT) pack_columns(map, DIRECT_GRADIENT, from, count, c, width, to);
    else pack_columns(map, DIRECT_PLAIN, from, count, c, width, to);
}

void DPN_ISA_SYMBOL(direct_finish)(size_t pixels, size_t width, size_t valid, const float *bias, int relu,
                                   float *y, size_t y_row)
{
    if (bias == NULL && !relu && valid == width) return;
    for (size_t c = 0; c < width; c += DPN_LANES) {
        const dpn_vec_int keep = direct_keep(c, valid);
        /* Without a bias: -0 leaves every sum as it is. */
        const dpn_vec add = bias != NULL ? dpn_vec_load(bias + c) : -(dpn_vec){0};
        for (size_t i = 0; i < pixels; i++) {
            dpn_vec v = dpn_vec_load(y + i * y_row + c) + add;
            if (relu) v = dpn_vec_relu(v);
            dpn_vec_store(y + i * y_row + c, (dpn_vec)((dpn_vec_int)v & keep));
        }
    }
}
