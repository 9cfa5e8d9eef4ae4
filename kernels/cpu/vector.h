/* Vectors of one instruction set's length for products and convolutions: gcc's vector types, and the few
 * operations that they lack.
 */
#ifndef DPN_KERNELS_CPU_VECTOR_H
#define DPN_KERNELS_CPU_VECTOR_H

#include "kernels/cpu/isa.h"

#include <string.h>

#if DPN_LANES > 4
#include <immintrin.h>
#endif

typedef float dpn_vec __attribute__((vector_size(DPN_LANES * 4)));
/* In memory, at any multiple of 4 bytes. */
typedef float dpn_vec_any __attribute__((vector_size(DPN_LANES * 4), aligned(4), may_alias));
typedef int dpn_vec_int __attribute__((vector_size(DPN_LANES * 4)));

static DPN_ALWAYS_INLINE dpn_vec dpn_vec_load(const float *at)
{
    return *(const dpn_vec_any *)at;
}

static DPN_ALWAYS_INLINE void dpn_vec_store(float *at, dpn_vec x)
{
    *(dpn_vec_any *)at = x;
}

static DPN_ALWAYS_INLINE dpn_vec dpn_vec_set(float x)
{
    return x - (dpn_vec){0};
}

#if DPN_LANES == 16
/* AT[0], AT[1] in turn. */
static DPN_ALWAYS_INLINE dpn_vec dpn_vec_set_two(const float *at)
{
    double two;
    memcpy(&two, at, sizeof two);
    return _mm512_castpd_ps(_mm512_set1_pd(two));
}
#endif

/* A*B + C, fused where the set can: always, not where a compiler thinks fit. */
static DPN_ALWAYS_INLINE dpn_vec dpn_vec_fma(dpn_vec a, dpn_vec b, dpn_vec c)
{
#if DPN_LANES == 16
    return _mm512_fmadd_ps(a, b, c);
#elif DPN_LANES == 8
    return _mm256_fmadd_ps(a, b, c);
#else
    return a * b + c;
#endif
}

/* max(0, x), NaN stays NaN. */
static DPN_ALWAYS_INLINE dpn_vec dpn_vec_relu(dpn_vec x)
{
#if DPN_LANES == 16
    return _mm512_max_ps(_mm512_setzero_ps(), x);
#elif DPN_LANES == 8
    return _mm256_max_ps(_mm256_setzero_ps(), x);
#else
    return (dpn_vec)((dpn_vec_int)x & ~(x < 0.0f));
#endif
}

/* X where Y > 0, else 0 (also where Y is NaN). */
static DPN_ALWAYS_INLINE dpn_vec dpn_vec_where_positive(dpn_vec y, dpn_vec x)
{
#if DPN_LANES == 16
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(y, _mm512_setzero_ps(), _CMP_GT_OQ), x);
#else
    return (dpn_vec)((dpn_vec_int)x & (y > 0.0f));
#endif
}

/* X into LARGEST, and NUMBER into AT, where x is larger. The first NaN stays. */
static DPN_ALWAYS_INLINE void dpn_vec_larger(dpn_vec x, int number, dpn_vec *largest, dpn_vec_int *at)
{
#if DPN_LANES == 16
    const __mmask16 take = _mm512_mask_cmp_ps_mask(_mm512_cmp_ps_mask(*largest, *largest, _CMP_ORD_Q), x,
                                                   *largest, _CMP_NLE_UQ);
    *largest = _mm512_mask_mov_ps(*largest, take, x);
    *at = (dpn_vec_int)_mm512_mask_mov_epi32((__m512i)*at, take, _mm512_set1_epi32(number));
#else
    const dpn_vec_int take = (x > *largest) | ((x != x) & (*largest == *largest));
    *largest = (dpn_vec)(((dpn_vec_int)x & take) | ((dpn_vec_int)*largest & ~take));
    *at = (((dpn_vec_int){0} + number) & take) | (*at & ~take);
#endif
}

/* As many bytes, widened. */
static DPN_ALWAYS_INLINE dpn_vec_int dpn_vec_load_bytes(const uint8_t *at)
{
#if DPN_LANES == 16
    return (dpn_vec_int)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i_u *)at));
#elif DPN_LANES == 8
    return (dpn_vec_int)_mm256_cvtepu8_epi32(_mm_loadu_si64(at));
#else
    return (dpn_vec_int){at[0], at[1], at[2], at[3]};
#endif
}

/* Each element's lowest byte. */
static DPN_ALWAYS_INLINE void dpn_vec_store_bytes(uint8_t *at, dpn_vec_int x)
{
#if DPN_LANES == 16
    _mm_storeu_si128((__m128i_u *)at, _mm512_cvtepi32_epi8((__m512i)x));
#else
    for (size_t l = 0; l < DPN_LANES; l++) at[l] = (uint8_t)x[l];
#endif
}

/* Past the caches: whole cache lines only, so a plain store where a vector is less than one. */
static DPN_ALWAYS_INLINE void dpn_vec_stream(float *at, dpn_vec x)
{
#if DPN_LANES == 16
    _mm512_stream_ps(at, x);
#else
    dpn_vec_store(at, x);
#endif
}

typedef float dpn_quad __attribute__((vector_size(16)));
typedef float dpn_quad_any __attribute__((vector_size(16), aligned(4), may_alias));

/* Transposes 4x4: to[j*to_row + i] = from[i*from_row + j]. */
static DPN_ALWAYS_INLINE void dpn_transpose4(const float *from, size_t from_row, float *to, size_t to_row)
{
    dpn_quad r0 = *(const dpn_quad_any *)from, r1 = *(const dpn_quad_any *)(from + from_row);
    dpn_quad r2 = *(const dpn_quad_any *)(from + 2 * from_row);
    dpn_quad r3 = *(const dpn_quad_any *)(from + 3 * from_row);
    dpn_quad low01 = __builtin_shufflevector(r0, r1, 0, 4, 1, 5);
    dpn_quad low23 = __builtin_shufflevector(r2, r3, 0, 4, 1, 5);
    dpn_quad high01 = __builtin_shufflevector(r0, r1, 2, 6, 3, 7);
    dpn_quad high23 = __builtin_shufflevector(r2, r3, 2, 6, 3, 7);
    *(dpn_quad_any *)to = __builtin_shufflevector(low01, low23, 0, 1, 4, 5);
    *(dpn_quad_any *)(to + to_row) = __builtin_shufflevector(low01, low23, 2, 3, 6, 7);
    *(dpn_quad_any *)(to + 2 * to_row) = __builtin_shufflevector(high01, high23, 0, 1, 4, 5);
    *(dpn_quad_any *)(to + 3 * to_row) = __builtin_shufflevector(high01, high23, 2, 3, 6, 7);
}

/* Orders stores past the caches before whatever tells other threads of them. */
static inline void dpn_stream_fence(void)
{
#if DPN_LANES == 16
    _mm_sfence();
#endif
}

#endif
