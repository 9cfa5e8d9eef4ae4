/* Direct convolution, the passes back from maximum pooling.
 *
 * Idea: of a window's pixels, one has a channel's whole gradient. So a maximum's part in a pass is one patch:
 * the weights pass adds g times x's patch at its place to the channel's filter, the data pass adds g times
 * the channel's filter to dx there. Filters are kept turned, each one's floats together: as many runs as the
 * kernel has rows, each padded to whole vectors, so that a patch of the staged x or dx is added run by run.
 * The data pass first sums over the channels whose maximum has the same place in its window.
 *
 * Cost: the flops of the definition over the windows' area, bound by loads that cross cache lines.
 * Determinism: the weights are chains over a part's windows; dx is a chain over the channels of a place,
 * places added in order, window after window.
 */
#include <string.h>

#include "kernels/cpu/conv_direct.h"

enum { SPARSE_RUNS = 5, SPARSE_VECS = 2 }; /* most of a tile of sums in registers */

/* Short runs: of its loads half as many cross a line. */
enum { SPARSE_SHORT = 8, SPARSE_SHORT_VECS = DPN_LANES < SPARSE_SHORT ? SPARSE_SHORT / DPN_LANES : 1 };
typedef float sparse_short __attribute__((vector_size(SPARSE_SHORT * 4)));
typedef float sparse_short_any __attribute__((vector_size(SPARSE_SHORT * 4), aligned(4), may_alias));

static DPN_ALWAYS_INLINE void sparse_short_add(float g, const float *x, sparse_short *sum)
{
    const sparse_short factor = g - (sparse_short){0}, patch = *(const sparse_short_any *)x;
#if DPN_LANES >= 8
    *sum = _mm256_fmadd_ps(factor, patch, *sum);
#else
    *sum += factor * patch;
#endif
}

/* Floats of a run, and of a turned filter. */
static size_t sparse_run(const struct dpn_conv *conv)
{
    return direct_round16(conv->kernel_width * conv->in_channels);
}

static size_t sparse_row(const struct dpn_conv *conv)
{
    return conv->kernel_height * sparse_run(conv);
}

/* The staged patches of a sample, of x or of dx. */
struct sparse_stage {
    size_t rows, columns, pitch;                         /* pixels; floats of a row */
    size_t place[DPN_CONV_MAX_POOL * DPN_CONV_MAX_POOL]; /* floats from a window's first patch to each */
};

static struct sparse_stage sparse_stage(const struct dpn_conv *conv)
{
    struct sparse_stage stage;
    stage.rows = (conv->out_height - 1) * conv->stride + conv->kernel_height;
    stage.columns = (conv->out_width - 1) * conv->stride + conv->kernel_width;
    stage.pitch = stage.columns * conv->in_channels;
    for (size_t p = 0; p < conv->pool * conv->pool; p++)
        stage.place[p] = p / conv->pool * conv->stride * stage.pitch +
                         p % conv->pool * conv->stride * conv->in_channels;
    return stage;
}

/* A run's last vector reaches into the next one, or past the end. */
static size_t sparse_stage_floats(const struct sparse_stage *stage)
{
    return direct_round16(stage->rows * stage->pitch) + DIRECT_SLACK;
}

/* One sample: its maxima, the staged x or dx, the turned filters or their sums. */
struct sparse_sample {
    const struct dpn_conv *conv;
    const struct sparse_stage *stage;
    const float *g;
    const uint8_t *place;
    float *staged, *filters;
};

static struct sparse_sample sparse_sample(const struct dpn_conv_args *args, const struct sparse_stage *stage,
                                          size_t n, float *staged, float *filters)
{
    const size_t at = n * args->conv->out_stride;
    return (struct sparse_sample){args->conv, stage, args->dy.g + at, args->place + at, staged, filters};
}

/* ---- weights ---- */

/* To channel C's filter, RUNS runs of VECS vectors (0: of 8 floats) from float AT on; X: the same of the
 * first window's patch. RUNS and VECS are constants in every copy. */
static DPN_ALWAYS_INLINE void sparse_sum(const struct sparse_sample *sample, size_t c, size_t at,
                                         const float *x, const size_t runs, const size_t vecs)
{
    const struct dpn_conv *conv = sample->conv;
    const size_t columns = conv->out_width / conv->pool, cstride = conv->out_cstride, run = sparse_run(conv);
    const size_t pitch = sample->stage->pitch, step = conv->pool * conv->stride;
    const uint8_t *place = sample->place + c;
    const float *g = sample->g + c;
    float *filter = sample->filters + c * sparse_row(conv) + at;
    dpn_vec sum[SPARSE_RUNS][SPARSE_VECS];
    sparse_short few[SPARSE_RUNS];

    DPN_UNROLL
    for (size_t r = 0; r < runs; r++) {
        if (vecs == 0) few[r] = *(const sparse_short_any *)(filter + r * run);
        DPN_UNROLL
        for (size_t v = 0; v < vecs; v++) sum[r][v] = dpn_vec_load(filter + r * run + v * DPN_LANES);
    }
    for (size_t row = conv->out_height / conv->pool; row > 0; row--, x += step * pitch) {
        const float *window = x;
        for (size_t column = columns; column > 0; column--) {
            const dpn_vec factor = dpn_vec_set(*g);
            const float *patch = window + sample->stage->place[*place];
            DPN_UNROLL
            for (size_t r = 0; r < runs; r++, patch += pitch) {
                if (vecs == 0) sparse_short_add(*g, patch, &few[r]);
                DPN_UNROLL
                for (size_t v = 0; v < vecs; v++)
                    sum[r][v] = dpn_vec_fma(factor, dpn_vec_load(patch + v * DPN_LANES), sum[r][v]);
            }
            window += step * conv->in_channels;
            g += cstride;
            place += cstride;
        }
    }
    DPN_UNROLL
    for (size_t r = 0; r < runs; r++) {
        if (vecs == 0) *(sparse_short_any *)(filter + r * run) = few[r];
        DPN_UNROLL
        for (size_t v = 0; v < vecs; v++) dpn_vec_store(filter + r * run + v * DPN_LANES, sum[r][v]);
    }
}

/* ---- data ---- */

enum { SPARSE_END = 255 };

/* A window's channels by the place of their maximum, in ascending order. */
struct sparse_lists {
    uint8_t first[DPN_CONV_MAX_POOL * DPN_CONV_MAX_POOL], next[DPN_PANEL_COLUMNS];
};

static DPN_ALWAYS_INLINE void sparse_lists(const struct dpn_conv *conv, const uint8_t *place,
                                           struct sparse_lists *lists)
{
    for (size_t p = 0; p < conv->pool * conv->pool; p++) lists->first[p] = SPARSE_END;
    for (size_t c = conv->out_channels; c-- > 0;) {
        lists->next[c] = lists->first[place[c]];
        lists->first[place[c]] = (uint8_t)c;
    }
}

/* From the filters, RUNS runs of VECS vectors from float AT on, to the staged dx; TO: the same of the first
 * window's patch. The first VALID floats of a run are its own: 0 times g, in the others, may be NaN. RUNS and
 * VECS are constants in every copy. */
static DPN_ALWAYS_INLINE void sparse_spread(const struct sparse_sample *sample, size_t at, float *to,
                                            size_t valid, const size_t runs, const size_t vecs)
{
    const struct dpn_conv *conv = sample->conv;
    const size_t cstride = conv->out_cstride, run = sparse_run(conv), row = sparse_row(conv);
    const size_t pitch = sample->stage->pitch, step = conv->pool * conv->stride;
    const float *g = sample->g, *filters = sample->filters + at;
    const uint8_t *place = sample->place;
    struct sparse_lists lists;
    dpn_vec_int keep[SPARSE_VECS];

    for (size_t v = 0; v < vecs; v++) keep[v] = direct_keep(v * DPN_LANES, valid);
    for (size_t y = conv->out_height / conv->pool; y > 0; y--, to += step * pitch) {
        float *window = to;
        for (size_t x = conv->out_width / conv->pool; x > 0; x--) {
            sparse_lists(conv, place, &lists);
            for (size_t p = 0; p < conv->pool * conv->pool; p++) {
                size_t c = lists.first[p];
                dpn_vec sum[SPARSE_RUNS][SPARSE_VECS] = {{{0}}};
                if (c == SPARSE_END) continue;
                for (; c != SPARSE_END; c = lists.next[c]) {
                    const dpn_vec factor = dpn_vec_set(g[c]);
                    const float *filter = filters + c * row;
                    DPN_UNROLL
                    for (size_t r = 0; r < runs; r++) {
                        DPN_UNROLL
                        for (size_t v = 0; v < vecs; v++)
                            sum[r][v] = dpn_vec_fma(factor, dpn_vec_load(filter + r * run + v * DPN_LANES),
                                                    sum[r][v]);
                    }
                }
                float *dx = window + sample->stage->place[p];
                DPN_UNROLL
                for (size_t r = 0; r < runs; r++, dx += pitch) {
                    DPN_UNROLL
                    for (size_t v = 0; v < vecs; v++)
                        dpn_vec_store(dx + v * DPN_LANES, dpn_vec_load(dx + v * DPN_LANES) +
                                                              (dpn_vec)((dpn_vec_int)sum[r][v] & keep[v]));
                }
            }
            window += step * conv->in_channels;
            g += cstride;
            place += cstride;
        }
    }
}

/* ---- tiles of a filter ---- */

struct sparse_tile {
    void (*sum)(const struct sparse_sample *sample, size_t c, size_t at, const float *x);
    void (*spread)(const struct sparse_sample *sample, size_t at, float *to, size_t valid);
};

/* clang-format off */
#define SPARSE_TILE(runs, vecs) \
    static void sparse_sum_##runs##x##vecs(const struct sparse_sample *sample, size_t c, size_t at, \
                                           const float *x) \
    { \
        sparse_sum(sample, c, at, x, runs, vecs); \
    } \
    static void sparse_spread_##runs##x##vecs(const struct sparse_sample *sample, size_t at, float *to, \
                                              size_t valid) \
    { \
        sparse_spread(sample, at, to, valid, runs, vecs ? vecs : SPARSE_SHORT_VECS); \
    }
#define SPARSE_ENTRY(runs, vecs) [runs] = {sparse_sum_##runs##x##vecs, sparse_spread_##runs##x##vecs}
SPARSE_TILE(1, 0)
SPARSE_TILE(3, 0)
SPARSE_TILE(5, 0)
SPARSE_TILE(1, 1)
SPARSE_TILE(3, 1)
SPARSE_TILE(5, 1)
SPARSE_TILE(1, 2)
SPARSE_TILE(3, 2)
SPARSE_TILE(5, 2)
static const struct sparse_tile sparse_tiles[SPARSE_VECS + 1][SPARSE_RUNS + 1] = {
    [0] = {SPARSE_ENTRY(1, 0), SPARSE_ENTRY(3, 0), SPARSE_ENTRY(5, 0)},
    [1] = {SPARSE_ENTRY(1, 1), SPARSE_ENTRY(3, 1), SPARSE_ENTRY(5, 1)},
    [2] = {SPARSE_ENTRY(1, 2), SPARSE_ENTRY(3, 2), SPARSE_ENTRY(5, 2)},
};
/* clang-format on */

/* The weights pass of a sample for channel C, or with DATA its data pass. */
static void sparse_run_sample(const struct sparse_sample *sample, size_t c, int data)
{
    const struct dpn_conv *conv = sample->conv;
    const size_t run = sparse_run(conv), valid = conv->kernel_width * conv->in_channels;
    for (size_t left = conv->kernel_height, r = 0, runs; left > 0; left -= runs, r += runs) {
        runs = left >= 5 ? 5 : left >= 3 ? 3 : 1;
        for (size_t f = 0, vecs; f < run; f += vecs ? vecs * DPN_LANES : run) {
            vecs = valid <= SPARSE_SHORT ? 0 : run - f >= SPARSE_VECS * DPN_LANES ? SPARSE_VECS : 1;
            const struct sparse_tile *tile = &sparse_tiles[vecs][runs];
            float *staged = sample->staged + r * sample->stage->pitch + f;
            if (data) tile->spread(sample, r * run + f, staged, valid > f ? valid - f : 0);
            else tile->sum(sample, c, r * run + f, staged);
        }
    }
}

/* ---- the passes ---- */

size_t DPN_ISA_SYMBOL(direct_sparse_weights_private)(const struct dpn_conv *conv)
{
    const struct sparse_stage stage = sparse_stage(conv);
    return conv->out_channels * sparse_row(conv) + sparse_stage_floats(&stage);
}

void DPN_ISA_SYMBOL(direct_sparse_weights)(const struct dpn_conv_args *args, size_t first, size_t count,
                                           float *dweights, float *scratch)
{
    const struct dpn_conv *conv = args->conv;
    const size_t row = sparse_row(conv), run = sparse_run(conv),
                 taps = conv->kernel_width * conv->in_channels;
    const struct sparse_stage stage = sparse_stage(conv);
    float *staged = scratch + conv->out_channels * row;
    memset(scratch, 0, conv->out_channels * row * sizeof *scratch);
    for (size_t n = first; n < first + count; n++) {
        const struct direct_band band = {n, 1, 0, conv->out_height};
        struct direct_gather gather = DPN_ISA_SYMBOL(direct_x_gather)(conv, &args->x, &band);
        DPN_ISA_SYMBOL(direct_stage_all)(&gather, staged);
        const struct sparse_sample sample = sparse_sample(args, &stage, n, staged, scratch);
        for (size_t c = 0; c < conv->out_channels; c++) sparse_run_sample(&sample, c, 0);
    }
    for (size_t k = 0; k < conv->kernel_height * taps; k++, dweights += conv->out_cstride) {
        const float *from = scratch + k / taps * run + k % taps;
        for (size_t c = 0; c < conv->out_cstride; c++)
            dweights[c] = c < conv->out_channels ? from[c * row] : 0.0f;
    }
}

size_t DPN_ISA_SYMBOL(direct_sparse_data_shared)(const struct dpn_conv *conv)
{
    return conv->out_channels * sparse_row(conv);
}

size_t DPN_ISA_SYMBOL(direct_sparse_data_private)(const struct dpn_conv *conv)
{
    const struct sparse_stage stage = sparse_stage(conv);
    return sparse_stage_floats(&stage);
}

void DPN_ISA_SYMBOL(direct_sparse_turn)(const struct dpn_conv_args *args, size_t channel)
{
    const struct dpn_conv *conv = args->conv;
    const size_t run = sparse_run(conv), taps = conv->kernel_width * conv->in_channels;
    const float *from = args->weights + channel;
    float *to = args->shared + channel * sparse_row(conv);
    for (size_t r = 0; r < conv->kernel_height; r++)
        for (size_t i = 0; i < run; i++) *to++ = i < taps ? from[(r * taps + i) * conv->out_cstride] : 0.0f;
}

/* The staged dx to its place. */
static void sparse_put(const struct dpn_conv_args *args, const struct sparse_stage *stage,
                       const float *staged, float *dx)
{
    const struct dpn_conv *conv = args->conv;
    const size_t channels = conv->in_channels, cstride = conv->in_cstride;
    for (size_t y = conv->pad; y < conv->pad + conv->in_height; y++) {
        for (size_t x = conv->pad; x < conv->pad + conv->in_width; x++, dx += cstride) {
            const float *from = y < stage->rows && x < stage->columns
                                    ? staged + y * stage->pitch + x * channels
                                    : NULL; /* met by no patch */
            for (size_t c = 0; c < channels; c++) {
                const float value = from != NULL ? from[c] : 0.0f;
                dx[c] = args->accumulate ? dx[c] + value : value;
            }
        }
    }
}

void DPN_ISA_SYMBOL(direct_sparse_data)(const struct dpn_conv_args *args, size_t sample, float *scratch)
{
    const struct dpn_conv *conv = args->conv;
    const struct sparse_stage stage = sparse_stage(conv);
    const struct sparse_sample job = sparse_sample(args, &stage, sample, scratch, args->shared);
    memset(scratch, 0, sparse_stage_floats(&stage) * sizeof *scratch);
    sparse_run_sample(&job, 0, 1);
    sparse_put(args, &stage, scratch, args->dx + sample * conv->in_stride);
}
