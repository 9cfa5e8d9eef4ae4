/* The most multiply-adds that one core of this instruction set does, and its copy past the caches: for
 * measuring what the others reach. Twelve chains hide the latency of two pipes; they stay in registers, and
 * the result is used so that none is left out.
 */
#include "kernels/cpu/vector.h"

enum { PEAK_CHAINS = 12, PEAK_STEPS = 64 };

double DPN_ISA_SYMBOL(peak)(size_t n, float *result)
{
    dpn_vec sum[PEAK_CHAINS], factor = dpn_vec_set(0.999f), term = dpn_vec_set(result[0]);
    for (size_t i = 0; i < PEAK_CHAINS; i++) sum[i] = dpn_vec_set((float)i);
    for (size_t r = 0; r < n * PEAK_STEPS; r++) {
        DPN_UNROLL
        for (size_t i = 0; i < PEAK_CHAINS; i++) sum[i] = dpn_vec_fma(sum[i], factor, term);
    }
    for (size_t i = 1; i < PEAK_CHAINS; i++) sum[0] += sum[i];
    result[0] = sum[0][0];
    return 2.0 * DPN_LANES * PEAK_CHAINS * PEAK_STEPS * (double)n;
}

void DPN_ISA_SYMBOL(stream)(size_t n, const float *from, float *to)
{
    for (size_t i = 0; i < n; i += DPN_LANES) dpn_vec_stream(to + i, dpn_vec_load(from + i));
    dpn_stream_fence();
}
