/* Everything but products and optimizers, as loops that vectorise for the set they are compiled for.
 *
 * Sums run in lanes of fixed number, so a result does not depend on vector length.
 *
 * Compiled with -ffp-contract=off.
 */
#include <string.h>

#include "kernels/cpu/isa.h"

enum {
    ELEM_LANES = 16,
    ELEM_SQUARES_BLOCK = 1024,
    ELEM_COLUMNS = 64,
    ELEM_SUM_BLOCK = 128, /* floats of a tree sum at a time: 65 partial sums of it fit L1 */
    ELEM_SUM_DEPTH = 65,  /* partial sums on the stack lie on different levels of the tree, plus one on top */
};

/* NaN stays NaN: a diverged model must show. */
static DPN_ALWAYS_INLINE float elem_relu(float x)
{
    return 0.0f > x ? 0.0f : x;
}

void DPN_ISA_SYMBOL(bias_relu)(size_t rows, size_t cols, size_t stride, const float *bias, int relu, float *y)
{
    for (size_t r = 0; r < rows; r++, y += stride) {
        if (bias != NULL) {
            DPN_INDEPENDENT
            for (size_t c = 0; c < cols; c++) {
                float sum = y[c] + bias[c];
                y[c] = relu ? elem_relu(sum) : sum;
            }
        } else if (relu) {
            for (size_t c = 0; c < cols; c++) y[c] = elem_relu(y[c]);
        }
    }
}

void DPN_ISA_SYMBOL(relu)(size_t n, const float *x, float *y)
{
    DPN_INDEPENDENT
    for (size_t i = 0; i < n; i++) y[i] = elem_relu(x[i]);
}

void DPN_ISA_SYMBOL(relu_grad)(size_t n, const float *y, const float *dy, float *dx)
{
    DPN_INDEPENDENT
    for (size_t i = 0; i < n; i++) {
        float gradient = dy[i];
        dx[i] = y[i] > 0.0f ? gradient : 0.0f;
    }
}

void DPN_ISA_SYMBOL(col_sum)(size_t rows, size_t cols, size_t stride, const float *x, float *out)
{
    for (size_t c = 0; c < cols; c += ELEM_COLUMNS) {
        size_t width = cols - c < ELEM_COLUMNS ? cols - c : ELEM_COLUMNS;
        float sum[ELEM_COLUMNS] = {0};
        if (width == ELEM_COLUMNS) { /* a constant count keeps the sums in registers */
            for (size_t r = 0; r < rows; r++)
                for (size_t i = 0; i < ELEM_COLUMNS; i++) sum[i] += x[r * stride + c + i];
        } else {
            for (size_t r = 0; r < rows; r++)
                for (size_t i = 0; i < width; i++) sum[i] += x[r * stride + c + i];
        }
        memcpy(out + c, sum, width * sizeof *out);
    }
}

void DPN_ISA_SYMBOL(add)(size_t n, const float *a, const float *b, float *dst)
{
    DPN_INDEPENDENT
    for (size_t i = 0; i < n; i++) dst[i] = a[i] + b[i];
}

static void elem_sum3(size_t n, const float *const *s, float *dst)
{
    const float *a = s[0], *b = s[1], *c = s[2];
    DPN_INDEPENDENT
    for (size_t i = 0; i < n; i++) dst[i] = (a[i] + b[i]) + c[i];
}

static void elem_sum4(size_t n, const float *const *s, float *dst)
{
    const float *a = s[0], *b = s[1], *c = s[2], *d = s[3];
    DPN_INDEPENDENT
    for (size_t i = 0; i < n; i++) dst[i] = (a[i] + b[i]) + (c[i] + d[i]);
}

static void elem_sum8(size_t n, const float *const *s, float *dst)
{
    const float *a = s[0], *b = s[1], *c = s[2], *d = s[3], *e = s[4], *f = s[5], *g = s[6], *h = s[7];
    DPN_INDEPENDENT
    for (size_t i = 0; i < n; i++) dst[i] = ((a[i] + b[i]) + (c[i] + d[i])) + ((e[i] + f[i]) + (g[i] + h[i]));
}

/* Any programme: block by block on a stack whose entries are sources until they are added to. */
static void elem_sum_any(size_t n, size_t n_sources, const uint8_t *adds, const float *const *sources,
                         float *dst)
{
    _Alignas(64) float partial[ELEM_SUM_DEPTH][ELEM_SUM_BLOCK];
    const float *stack[ELEM_SUM_DEPTH];
    for (size_t i = 0; i < n; i += ELEM_SUM_BLOCK) {
        size_t count = n - i < ELEM_SUM_BLOCK ? n - i : ELEM_SUM_BLOCK, depth = 0;
        for (size_t s = 0; s < n_sources; s++) {
            stack[depth++] = sources[s] + i;
            for (unsigned a = 0; a < adds[s]; a++) {
                depth--;
                DPN_ISA_SYMBOL(add)(count, stack[depth - 1], stack[depth], partial[depth - 1]);
                stack[depth - 1] = partial[depth - 1];
            }
        }
        memmove(dst + i, stack[0], count * sizeof *dst);
    }
}

void DPN_ISA_SYMBOL(tree_sum)(size_t n, size_t n_sources, const uint8_t *adds, const float *const *sources,
                              float *dst)
{
    if (n_sources == 1) memmove(dst, sources[0], n * sizeof *dst);
    else if (n_sources == 2) DPN_ISA_SYMBOL(add)(n, sources[0], sources[1], dst);
    else if (n_sources == 3 && memcmp(adds, "\0\1\1", 3) == 0) elem_sum3(n, sources, dst);
    else if (n_sources == 4 && memcmp(adds, "\0\1\0\2", 4) == 0) elem_sum4(n, sources, dst);
    else if (n_sources == 8 && memcmp(adds, "\0\1\0\2\0\1\0\3", 8) == 0) elem_sum8(n, sources, dst);
    else elem_sum_any(n, n_sources, adds, sources, dst);
}

void DPN_ISA_SYMBOL(scale)(size_t n, float factor, float *x)
{
    for (size_t i = 0; i < n; i++) x[i] *= factor;
}

static DPN_ALWAYS_INLINE double elem_add_lanes(double *lanes)
{
    for (size_t half = ELEM_LANES / 2; half > 0; half /= 2)
        for (size_t l = 0; l < half; l++) lanes[l] += lanes[l + half];
    return lanes[0];
}

double DPN_ISA_SYMBOL(sum_squares)(size_t n, const float *x)
{
    double total = 0;
    for (size_t i = 0; i < n; i += ELEM_SQUARES_BLOCK) {
        size_t count = n - i < ELEM_SQUARES_BLOCK ? n - i : ELEM_SQUARES_BLOCK, whole = count / ELEM_LANES;
        double lanes[ELEM_LANES] = {0};
        for (size_t b = 0; b < whole; b++) {
            for (size_t l = 0; l < ELEM_LANES; l++) {
                double value = (double)x[i + b * ELEM_LANES + l];
                lanes[l] += value * value;
            }
        }
        for (size_t l = 0; l < count - whole * ELEM_LANES; l++) {
            double value = (double)x[i + whole * ELEM_LANES + l];
            lanes[l] += value * value;
        }
        total += elem_add_lanes(lanes);
    }
    return total;
}

void DPN_ISA_SYMBOL(u8_to_f32)(size_t n, const uint8_t *src, float scale, float shift, float *dst)
{
    DPN_INDEPENDENT
    for (size_t i = 0; i < n; i++) dst[i] = (float)src[i] * scale + shift;
}

void DPN_ISA_SYMBOL(f32_affine)(size_t n, const float *src, float scale, float shift, float *dst)
{
    DPN_INDEPENDENT
    for (size_t i = 0; i < n; i++) dst[i] = src[i] * scale + shift;
}
