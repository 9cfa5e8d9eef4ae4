/* OpenBLAS behind the gemm slot, loaded while running and only when asked for.
 *
 * Why not linked: its own detection takes a generic core type on CPUs newer than itself (5 times slower), and
 * its constructor starts threads. So the core type is chosen from CPUID and one thread is asked for before
 * dlopen.
 */
#include <assert.h>
#include <dlfcn.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "kernels/cpu/select.h"

enum { BLAS_ROW_MAJOR = 101, BLAS_AS_IS = 111, BLAS_TRANSPOSED = 112 }; /* CBLAS's own numbers */

typedef void blas_sgemm_fn(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                           const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc);

static blas_sgemm_fn *blas_sgemm;
static void (*blas_set_omp_threads)(
    int threads); /* of the OpenMP runtime that OpenBLAS is linked with, if any */
static struct dpn_kernels blas_table;

/* Core types of OpenBLAS that use the full width of a CPU with FEATURES. */
static const struct blas_core {
    const char *name;
    unsigned features;
} blas_cores[] = {
    {"SkylakeX", DPN_CPU_AVX512},
    {"Cooperlake", DPN_CPU_AVX512 | DPN_CPU_BF16},
    {"SapphireRapids", DPN_CPU_AVX512 | DPN_CPU_BF16},
    {"Haswell", DPN_CPU_AVX2},
    {"Zen", DPN_CPU_AVX2},
};

const char *dpn_blas_core_type(unsigned features, const char *inherited, char *remark, size_t size)
{
    const unsigned width = features & DPN_CPU_AVX512 ? DPN_CPU_AVX512 : features & DPN_CPU_AVX2;
    const char *best = NULL;
    if (width == DPN_CPU_AVX512)
        best = "SkylakeX"; /* also where Cooperlake would run: as fast or faster in fp32 */
    else if (width == DPN_CPU_AVX2) best = features & DPN_CPU_AMD ? "Zen" : "Haswell";

    if (size > 0) remark[0] = '\0';
    if (inherited == NULL || inherited[0] == '\0') return best;
    for (size_t i = 0; i < sizeof blas_cores / sizeof *blas_cores; i++) {
        const struct blas_core *core = &blas_cores[i];
        if (strcasecmp(inherited, core->name) == 0 && (core->features & features) == core->features &&
            (core->features & width) != 0)
            return core->name;
    }
    if (best == NULL || strcasecmp(inherited, best) != 0)
        snprintf(remark, size, "OPENBLAS_CORETYPE=%.40s does not suit this CPU: %s%s", inherited,
                 best != NULL ? "replaced by " : "removed", best != NULL ? best : "");
    return best;
}

/* CBLAS wants a leading dimension of at least the row's length and 1, also where no second row is. */
static int blas_leading(size_t stride, size_t length)
{
    size_t least = length > 0 ? length : 1;
    assert(stride <= INT_MAX && length <= INT_MAX);
    return (int)(stride > least ? stride : least);
}

static void blas_gemm(const struct dpn_gemm *gemm)
{
    const int trans_a = gemm->a_col != 1, trans_b = gemm->b_col != 1;
    const int lda = trans_a ? blas_leading(gemm->a_col, gemm->m) : blas_leading(gemm->a_row, gemm->k);
    const int ldb = trans_b ? blas_leading(gemm->b_col, gemm->k) : blas_leading(gemm->b_row, gemm->n);
    if (gemm->m == 0 || gemm->n == 0) return;
    blas_sgemm(BLAS_ROW_MAJOR, trans_a ? BLAS_TRANSPOSED : BLAS_AS_IS, trans_b ? BLAS_TRANSPOSED : BLAS_AS_IS,
               (int)gemm->m, (int)gemm->n, (int)gemm->k, 1.0f, gemm->a, lda, gemm->b, ldb,
               gemm->accumulate ? 1.0f : 0.0f, gemm->c, blas_leading(gemm->c_row, gemm->n));
}

enum { BLAS_M = 21, BLAS_N = 35, BLAS_K = 19, BLAS_LD = 37 };

/* Largest difference from REF in C = A B, either of them transposed, or more than LIMIT if a value is not
 * finite. */
static float blas_difference(const struct dpn_kernels *ref, int trans_a, int trans_b, int accumulate)
{
    float a[BLAS_LD * BLAS_LD], b[BLAS_LD * BLAS_LD], c[2][BLAS_M * BLAS_LD], largest = 0;
    for (size_t i = 0; i < BLAS_LD * BLAS_LD; i++) {
        a[i] = (float)((i * 37 + 11) % 64) / 32.0f - 1.0f;
        b[i] = (float)((i * 29 + 5) % 64) / 32.0f - 1.0f;
    }
    for (size_t i = 0; i < BLAS_M * BLAS_LD; i++) c[0][i] = c[1][i] = (float)(i % 16);
    struct dpn_gemm gemm = {
        .m = BLAS_M,
        .n = BLAS_N,
        .k = BLAS_K,
        .accumulate = accumulate,
        .c_row = BLAS_LD,
        .a = a,
        .a_row = trans_a ? 1 : BLAS_LD,
        .a_col = trans_a ? BLAS_LD : 1,
        .b = b,
        .b_row = trans_b ? 1 : BLAS_LD,
        .b_col = trans_b ? BLAS_LD : 1,
    };
    gemm.c = c[0];
    ref->gemm(&gemm);
    gemm.c = c[1];
    blas_gemm(&gemm);
    for (size_t i = 0; i < BLAS_M * BLAS_LD; i++) {
        float difference = fabsf(c[0][i] - c[1][i]);
        if (!(difference <= largest)) largest = isfinite(difference) ? difference : INFINITY;
    }
    return largest;
}

static int blas_is_right(void)
{
    for (int form = 0; form < 8; form++)
        if (blas_difference(&dpn_kernels_ref, form & 1, form & 2, form & 4) > 1e-4f) return 0;
    return 1;
}

/* Sets the environment that OpenBLAS's constructor reads, and loads it. NULL: blas->why says why. */
static void *blas_open(struct dpn_blas *blas)
{
    const char *core = dpn_blas_core_type(dpn_cpu_features(), getenv("OPENBLAS_CORETYPE"), blas->why,
                                          sizeof blas->why);
    if (core != NULL) setenv("OPENBLAS_CORETYPE", core, 1);
    else unsetenv("OPENBLAS_CORETYPE");
    setenv("OPENBLAS_NUM_THREADS", "1", 1);

    void *library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) library = dlopen("libopenblas.so", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) snprintf(blas->why, sizeof blas->why, "%s", dlerror());
    return library;
}

/* Finds the functions and writes down what was loaded. 0: not usable, blas->why says why. */
static int blas_resolve(void *library, struct dpn_blas *blas)
{
    const char *(*core)(void) = (const char *(*)(void))dlsym(library, "openblas_get_corename");
    const char *(*config)(void) = (const char *(*)(void))dlsym(library, "openblas_get_config");
    void (*set_threads)(int) = (void (*)(int))dlsym(library, "openblas_set_num_threads");
    Dl_info info;

    blas_sgemm = (blas_sgemm_fn *)dlsym(library, "cblas_sgemm");
    blas_set_omp_threads = (void (*)(int))dlsym(library, "omp_set_num_threads");
    if (blas_sgemm == NULL) {
        snprintf(blas->why, sizeof blas->why, "it has no cblas_sgemm");
        return 0;
    }
    if (dladdr((void *)blas_sgemm, &info) != 0) snprintf(blas->path, sizeof blas->path, "%s", info.dli_fname);
    if (core != NULL) snprintf(blas->core, sizeof blas->core, "%s", core());
    if (config != NULL) snprintf(blas->config, sizeof blas->config, "%s", config());
    if (strstr(blas->config, "USE64BITINT") != NULL) {
        snprintf(blas->why, sizeof blas->why, "%.120s: built for 64-bit integers", blas->path);
        return 0;
    }
    if (set_threads != NULL) set_threads(1);
    dpn_blas_thread_init();
    return 1;
}

void dpn_blas_load(const struct dpn_kernels *kernels, const struct dpn_kernels **table, struct dpn_blas *blas)
{
    *table = kernels;
    memset(blas, 0, sizeof *blas);
    void *library = blas_open(blas);
    if (library == NULL) return;
    if (!blas_resolve(library, blas)) goto unusable;
    if (!blas_is_right()) {
        snprintf(blas->why, sizeof blas->why, "%.120s (%s): a small product came out wrong", blas->path,
                 blas->core);
        goto unusable;
    }
    const char *asked = getenv("OPENBLAS_CORETYPE");
    if (blas->why[0] == '\0' && asked != NULL && blas->core[0] != '\0' && strcasecmp(asked, blas->core) != 0)
        snprintf(blas->why, sizeof blas->why, "core type %s was asked for", asked);
    blas_table = *kernels;
    blas_table.gemm = blas_gemm;
    blas_table.fixed_cut = 1;
    *table = &blas_table;
    blas->loaded = 1;
    return;

unusable: /* left in memory: its constructor has run, and unloading it gains nothing */
    blas_set_omp_threads = NULL;
}

void dpn_blas_thread_init(void)
{
    if (blas_set_omp_threads != NULL) blas_set_omp_threads(1);
}
