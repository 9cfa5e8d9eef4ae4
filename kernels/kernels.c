/* Panel matrices, and the choice of an instruction set. */
#include "kernels/kernels.h"

#include <assert.h>
#include <string.h>

#include "kernels/cpu/select.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <xmmintrin.h>
#endif

static size_t kernels_round16(size_t n)
{
    return (n + 15) / 16 * 16;
}

size_t dpn_panel_elems(size_t rows, size_t columns)
{
    return rows * kernels_round16(columns); /* 64 is a multiple of 16, so only the last panel has padding */
}

void dpn_panel(size_t rows, size_t columns, size_t p, size_t *offset, size_t *stride)
{
    assert(p * DPN_PANEL_COLUMNS < columns);
    size_t left = columns - p * DPN_PANEL_COLUMNS;
    *offset = p * DPN_PANEL_COLUMNS * rows;
    *stride = left < DPN_PANEL_COLUMNS ? kernels_round16(left) : DPN_PANEL_COLUMNS;
}

/* PyTorch's order of one column, channel by channel, and the row of element K of it. */
static size_t kernels_column_elems(const struct dpn_panel_rows *rows)
{
    return rows->channels * rows->taps;
}

static size_t kernels_panel_row(const struct dpn_panel_rows *rows, size_t k)
{
    return k % rows->taps * rows->cstride + k / rows->taps;
}

/* Between the columns FIRST .. FIRST+15 of PyTorch's layout and the panel: squares of 16 x 16, whose cache
 * lines are whole on both sides. Columns from COLUMNS on are 0 in the panel. */
static void kernels_pack16(const struct dpn_panel_rows *rows, size_t columns, size_t first,
                           const float *torch_weight, float *panel, size_t stride)
{
    const size_t n = kernels_column_elems(rows), width = columns - first < 16 ? columns - first : 16;
    const float *from = torch_weight + first * n;
    for (size_t start = 0; start < n; start += 16) {
        const size_t end = n - start < 16 ? n : start + 16;
        for (size_t k = start; k < end; k++) {
            float *row = panel + kernels_panel_row(rows, k) * stride;
            for (size_t c = 0; c < width; c++) row[c] = from[c * n + k];
            for (size_t c = width; c < 16; c++) row[c] = 0;
        }
    }
}

static void kernels_unpack16(const struct dpn_panel_rows *rows, size_t columns, size_t first,
                             const float *panel, size_t stride, float *torch_weight)
{
    const size_t n = kernels_column_elems(rows), width = columns - first < 16 ? columns - first : 16;
    float *to = torch_weight + first * n;
    for (size_t start = 0; start < n; start += 16) {
        const size_t count = n - start < 16 ? n - start : 16;
        const float *row[16];
        for (size_t k = 0; k < count; k++) row[k] = panel + kernels_panel_row(rows, start + k) * stride;
        /* Column by column: 16 columns that lie a power of two apart do not fit into L1 at once. */
        for (size_t c = 0; c < width; c++)
            for (size_t k = 0; k < count; k++) to[c * n + start + k] = row[k][c];
    }
}

void dpn_panel_pack(const struct dpn_panel_rows *rows, size_t columns, const float *torch_weight,
                    float *panel)
{
    const size_t n_rows = rows->taps * rows->cstride;
    assert(rows->cstride >= rows->channels);
    if (rows->cstride > rows->channels) memset(panel, 0, dpn_panel_elems(n_rows, columns) * sizeof *panel);
    for (size_t first = 0; first < columns; first += 16) {
        size_t offset, stride;
        dpn_panel(n_rows, columns, first / DPN_PANEL_COLUMNS, &offset, &stride);
        kernels_pack16(rows, columns, first, torch_weight, panel + offset + first % DPN_PANEL_COLUMNS,
                       stride);
    }
}

void dpn_panel_unpack(const struct dpn_panel_rows *rows, size_t columns, const float *panel,
                      float *torch_weight)
{
    const size_t n_rows = rows->taps * rows->cstride;
    for (size_t first = 0; first < columns; first += 16) {
        size_t offset, stride;
        dpn_panel(n_rows, columns, first / DPN_PANEL_COLUMNS, &offset, &stride);
        kernels_unpack16(rows, columns, first, panel + offset + first % DPN_PANEL_COLUMNS, stride,
                         torch_weight);
    }
}

unsigned dpn_cpu_features(void)
{
    unsigned features = 0;
#if defined(__x86_64__)
    /* These builtins also ask whether the operating system saves the wide registers. */
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2"))
        features |= DPN_CPU_AVX2;
    if ((features & DPN_CPU_AVX2) && __builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl"))
        features |= DPN_CPU_AVX512;
    unsigned eax, ebx, ecx, edx;
    if ((features & DPN_CPU_AVX512) && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && (eax & (1u << 5)))
        features |= DPN_CPU_BF16;
    if (__get_cpuid(0, &eax, &ebx, &ecx, &edx) && ecx == signature_AMD_ecx) features |= DPN_CPU_AMD;
#endif
    return features;
}

/* Widest first; FEATURES all have to be there. */
static const struct kernels_isa {
    const char *name;
    unsigned features;
    const struct dpn_kernels *kernels; /* NULL: not for this architecture */
} kernels_isas[] = {
#if defined(__x86_64__)
    {"avx512", DPN_CPU_AVX2 | DPN_CPU_AVX512, &dpn_kernels_avx512},
    {"avx2", DPN_CPU_AVX2, &dpn_kernels_avx2},
#else
    {"avx512", 0, NULL},
    {"avx2", 0, NULL},
#endif
    {"baseline", 0, &dpn_kernels_baseline},
    {"ref", 0, &dpn_kernels_ref},
};

enum dpn_status dpn_kernels_choose(const char *isa, unsigned features, const struct dpn_kernels **kernels)
{
    for (size_t i = 0; i < sizeof kernels_isas / sizeof *kernels_isas; i++) {
        const struct kernels_isa *entry = &kernels_isas[i];
        const int runs = entry->kernels != NULL && (entry->features & features) == entry->features;
        if (strcmp(isa, entry->name) == 0) {
            if (entry->kernels == NULL) return dpn_fail(DPN_ERR_USAGE, "--isa %s: not in this build", isa);
            if (!runs) return dpn_fail(DPN_ERR_USAGE, "--isa %s: this CPU or system cannot run it", isa);
        } else if (strcmp(isa, "auto") != 0 || !runs) {
            continue;
        }
        *kernels = entry->kernels;
        return DPN_OK;
    }
    return dpn_fail(DPN_ERR_USAGE, "--isa '%s': not one of auto, ref, baseline, avx2, avx512", isa);
}

enum dpn_status dpn_kernels_select(const char *isa, const struct dpn_kernels **kernels)
{
    return dpn_kernels_choose(isa, dpn_cpu_features(), kernels);
}

void dpn_kernels_thread_init(void)
{
#if defined(__x86_64__)
    /* Nearest, exceptions masked, denormals read and written as 0: a momentum slot whose gradient has become
     * 0 decays into them, and every operation on one costs over a hundred cycles. */
    _mm_setcsr(0x1f80 | 0x8000 | 0x0040);
#endif
}
