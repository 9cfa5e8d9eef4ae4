/* Batch norm's slots as plain loops. Sums in double, rounded to float once; everything else is rounded after
 * every operation, as in the fast ones.
 */
#include "kernels/ref/ref.h"

void dpn_ref_moments(size_t pixels, size_t cstride, const float *x, float *block)
{
    for (size_t i = 0; i < dpn_block_floats(cstride); i++) block[i] = 0;
    block[2 * cstride] = (float)pixels;
    if (pixels == 0) return;
    for (size_t c = 0; c < cstride; c++) {
        double sum = 0, squares = 0;
        for (size_t p = 0; p < pixels; p++) sum += (double)x[p * cstride + c];
        const double mean = sum / (double)pixels;
        for (size_t p = 0; p < pixels; p++) {
            const double deviation = (double)x[p * cstride + c] - mean;
            squares += deviation * deviation;
        }
        block[c] = (float)mean;
        block[cstride + c] = (float)squares;
    }
}

void dpn_ref_moments_combine(size_t blocks, size_t cstride, const float *moments, double *out)
{
    double *mean = out + 1, *squares = mean + cstride;
    for (size_t i = 0; i < 1 + 2 * cstride; i++) out[i] = 0;
    for (size_t b = 0; b < blocks; b++) {
        const float *block = moments + b * dpn_block_floats(cstride);
        const double here = (double)block[2 * cstride], before = out[0], all = before + here;
        if (here == 0.0) continue;
        out[0] = all;
        for (size_t c = 0; c < cstride; c++) {
            const double delta = (double)block[c] - mean[c];
            mean[c] += delta * (here / all);
            squares[c] += (double)block[cstride + c] + delta * delta * (before * here / all);
        }
    }
}

void dpn_ref_bn_apply(const struct dpn_bn_apply *args)
{
    for (size_t p = 0; p < args->pixels; p++) {
        for (size_t c = 0; c < args->cstride; c++) {
            const size_t i = p * args->cstride + c;
            float value = args->z[i] * args->scale[c] + args->shift[c];
            if (args->residual.x != NULL) value += ref_source(&args->residual, i, c);
            args->y[i] = args->relu ? ref_max0(value) : value;
        }
    }
}

/* Whether the activation of element I, channel C, lets the gradient pass. */
static int norm_passes(const struct dpn_mask_sums *mask, size_t i, size_t c)
{
    if (mask->y != NULL) return mask->y[i] > 0.0f;
    if (mask->scale != NULL) return mask->z[i] * mask->scale[c] + mask->shift[c] > 0.0f;
    return 1;
}

void dpn_ref_mask_sums(size_t pixels, size_t cstride, float *d, const struct dpn_mask_sums *mask)
{
    for (size_t i = 0; i < dpn_block_floats(cstride); i++) mask->sums[i] = 0;
    mask->sums[2 * cstride] = (float)pixels;
    for (size_t c = 0; c < cstride; c++) {
        double sum = 0, product = 0;
        for (size_t p = 0; p < pixels; p++) {
            const size_t i = p * cstride + c;
            if (!norm_passes(mask, i, c)) d[i] = 0;
            sum += (double)d[i];
            product += (double)d[i] * ((double)mask->z[i] - (double)mask->mean[c]);
        }
        mask->sums[c] = (float)sum;
        mask->sums[cstride + c] = (float)product;
    }
}

void dpn_ref_sums_combine(size_t blocks, size_t cstride, const float *sums, double *out)
{
    for (size_t i = 0; i < 1 + 2 * cstride; i++) out[i] = 0;
    for (size_t b = 0; b < blocks; b++) {
        const float *block = sums + b * dpn_block_floats(cstride);
        out[0] += (double)block[2 * cstride];
        for (size_t i = 0; i < 2 * cstride; i++) out[1 + i] += (double)block[i];
    }
}

void dpn_ref_bn_grad(size_t pixels, size_t cstride, const struct dpn_gradient *dy, float *dz)
{
    for (size_t i = 0; i < pixels * cstride; i++) dz[i] = ref_gradient(dy, i, i % cstride);
}
