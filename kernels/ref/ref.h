/* The slots of kernels.h as plain loops, by file: ref.c holds the table and the simple ones. */
#ifndef DPN_KERNELS_REF_REF_H
#define DPN_KERNELS_REF_REF_H

#include "kernels/kernels.h"

/* NaN stays NaN. */
static inline float ref_max0(float x)
{
    return x < 0.0f ? 0.0f : x;
}

/* X[I], of channel C, as SOURCE says it is read. */
static inline float ref_source(const struct dpn_source *source, size_t i, size_t c)
{
    float value = source->x[i];
    if (source->scale != NULL) value = value * source->scale[c] + source->shift[c];
    return source->relu ? ref_max0(value) : value;
}

/* dY[I], of channel C, as DY says it is read. */
static inline float ref_gradient(const struct dpn_gradient *dy, size_t i, size_t c)
{
    if (dy->z == NULL) return dy->g[i];
    return dy->g[i] * dy->g_scale[c] + dy->z[i] * dy->z_scale[c] + dy->shift[c];
}

/* ref_conv.c: one item a sample (forward, data) or a row of the weights, one block a sample, no scratch. */
extern const struct dpn_conv_algorithm dpn_conv_ref_direct;
extern const struct dpn_conv_algorithm *const dpn_conv_ref[]; /* it alone, NULL-terminated */

/* ref_norm.c */
void dpn_ref_moments(size_t pixels, size_t cstride, const float *x, float *block);
void dpn_ref_moments_combine(size_t blocks, size_t cstride, const float *moments, double *out);
void dpn_ref_bn_apply(const struct dpn_bn_apply *args);
void dpn_ref_mask_sums(size_t pixels, size_t cstride, float *d, const struct dpn_mask_sums *mask);
void dpn_ref_sums_combine(size_t blocks, size_t cstride, const float *sums, double *out);
void dpn_ref_bn_grad(size_t pixels, size_t cstride, const struct dpn_gradient *dy, float *dz);

/* ref_pool.c */
void dpn_ref_pool(const struct dpn_pool *pool, size_t first, size_t count, const float *x, float *y);
void dpn_ref_pool_grad(const struct dpn_pool *pool, size_t first, size_t count, const float *x,
                       const float *y, const float *dy, float *dx);
void dpn_ref_image(const struct dpn_image *image);

#endif
