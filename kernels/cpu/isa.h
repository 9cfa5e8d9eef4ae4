/* What differs between the compilations of kernels/cpu: every per-set source is compiled once per instruction
 * set with -DDPN_ISA=baseline, avx2 or avx512 and that set's flags, and fills one table dpn_kernels_<set>.
 *
 * Only symbols, vector length and loop hints live here; the sources are the same for all sets.
 */
#ifndef DPN_KERNELS_CPU_ISA_H
#define DPN_KERNELS_CPU_ISA_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/kernels.h"

#ifndef DPN_ISA
#error "compile with -DDPN_ISA=baseline, avx2 or avx512"
#endif

#define DPN_ISA_JOIN_(name, isa) dpn_##name##_##isa
#define DPN_ISA_JOIN(name, isa)  DPN_ISA_JOIN_(name, isa)
/* dpn_gemm_avx2 for DPN_ISA_SYMBOL(gemm). */
#define DPN_ISA_SYMBOL(name) DPN_ISA_JOIN(name, DPN_ISA)

#define DPN_ISA_TEXT_(isa) #isa
#define DPN_ISA_TEXT(isa)  DPN_ISA_TEXT_(isa)
#define DPN_ISA_NAME       DPN_ISA_TEXT(DPN_ISA)

#if defined(__AVX512F__)
#define DPN_LANES 16
#elif defined(__AVX2__)
#define DPN_LANES 8
#else
#define DPN_LANES 4
#endif

/* DPN_INDEPENDENT: iteration i of the loop touches elements i only, so its arrays may be one and the same. */
#if defined(__clang__)
#pragma clang diagnostic ignored "-Wpass-failed" /* sanitized and -O0 builds cannot follow the hints */
#define DPN_UNROLL      _Pragma("clang loop unroll(full)")
#define DPN_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define DPN_UNROLL      _Pragma("GCC unroll 32")
#define DPN_INDEPENDENT _Pragma("GCC ivdep")
#endif

#define DPN_ALWAYS_INLINE inline __attribute__((always_inline))

/* The slots of kernels.h. */
void DPN_ISA_SYMBOL(gemm)(const struct dpn_gemm *gemm);
void DPN_ISA_SYMBOL(bias_relu)(size_t rows, size_t cols, size_t stride, const float *bias, int relu,
                               float *y);
void DPN_ISA_SYMBOL(relu)(size_t n, const float *x, float *y);
void DPN_ISA_SYMBOL(relu_grad)(size_t n, const float *y, const float *dy, float *dx);
void DPN_ISA_SYMBOL(col_sum)(size_t rows, size_t cols, size_t stride, const float *x, float *out);
void DPN_ISA_SYMBOL(softmax_xent)(size_t rows, size_t classes, size_t stride, const float *logits,
                                  const int32_t *labels, float scale, float *dlogits, double *loss,
                                  uint64_t *correct);
void DPN_ISA_SYMBOL(sgd)(size_t n, const struct dpn_sgd *args, float *p, const float *g, float *m);
void DPN_ISA_SYMBOL(adam)(size_t n, const struct dpn_adam *args, float *p, const float *g, float *m,
                          float *v);
void DPN_ISA_SYMBOL(add)(size_t n, const float *a, const float *b, float *dst);
void DPN_ISA_SYMBOL(tree_sum)(size_t n, size_t n_sources, const uint8_t *adds, const float *const *sources,
                              float *dst);
void DPN_ISA_SYMBOL(scale)(size_t n, float factor, float *x);
double DPN_ISA_SYMBOL(sum_squares)(size_t n, const float *x);
void DPN_ISA_SYMBOL(u8_to_f32)(size_t n, const uint8_t *src, float scale, float shift, float *dst);
void DPN_ISA_SYMBOL(f32_affine)(size_t n, const float *src, float scale, float shift, float *dst);
extern const struct dpn_conv_algorithm DPN_ISA_SYMBOL(conv_f4x4), DPN_ISA_SYMBOL(conv_direct);
void DPN_ISA_SYMBOL(moments)(size_t pixels, size_t cstride, const float *x, float *block);
void DPN_ISA_SYMBOL(moments_combine)(size_t blocks, size_t cstride, const float *moments, double *out);
void DPN_ISA_SYMBOL(bn_apply)(const struct dpn_bn_apply *args);
void DPN_ISA_SYMBOL(mask_sums)(size_t pixels, size_t cstride, float *d, const struct dpn_mask_sums *mask);
void DPN_ISA_SYMBOL(sums_combine)(size_t blocks, size_t cstride, const float *sums, double *out);
void DPN_ISA_SYMBOL(bn_grad)(size_t pixels, size_t cstride, const struct dpn_gradient *dy, float *dz);
void DPN_ISA_SYMBOL(pool)(const struct dpn_pool *pool, size_t first, size_t count, const float *x, float *y);
void DPN_ISA_SYMBOL(pool_grad)(const struct dpn_pool *pool, size_t first, size_t count, const float *x,
                               const float *y, const float *dy, float *dx);
void DPN_ISA_SYMBOL(image)(const struct dpn_image *image);
double DPN_ISA_SYMBOL(peak)(size_t n, float *result);
void DPN_ISA_SYMBOL(stream)(size_t n, const float *from, float *to);

#endif
