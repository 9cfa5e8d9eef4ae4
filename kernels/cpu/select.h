/* What this CPU can run, and the choices made from it: shared by the table of tables (kernels.c) and the BLAS
 * loader. The choices are pure functions of the features, so that tests reach those of other machines.
 */
#ifndef DPN_KERNELS_CPU_SELECT_H
#define DPN_KERNELS_CPU_SELECT_H

#include <stddef.h>

#include "kernels/kernels.h"

enum {
    DPN_CPU_AVX2 = 1,   /* AVX2, FMA and BMI2, and the operating system saves their registers */
    DPN_CPU_AVX512 = 2, /* AVX-512 F, DQ, BW and VL, likewise */
    DPN_CPU_BF16 = 4,   /* AVX-512 BF16 */
    DPN_CPU_AMD = 8,
};
unsigned dpn_cpu_features(void);

/* dpn_kernels_select for a CPU with FEATURES. */
enum dpn_status dpn_kernels_choose(const char *isa, unsigned features, const struct dpn_kernels **kernels);

/* The OPENBLAS_CORETYPE to load OpenBLAS with on a CPU with FEATURES, given the INHERITED one (NULL: not
 * set); NULL: leave it to OpenBLAS. A remark on an inherited value that was not kept goes to REMARK (SIZE
 * bytes), else "". */
const char *dpn_blas_core_type(unsigned features, const char *inherited, char *remark, size_t size);

extern const struct dpn_kernels dpn_kernels_baseline;
#if defined(__x86_64__)
extern const struct dpn_kernels dpn_kernels_avx2, dpn_kernels_avx512;
#endif

#endif
