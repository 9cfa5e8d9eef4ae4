/* Measuring. To add a sub-command of `bench`: one file, one line in cmd_bench.c. To add a kernel to `bench
 * kernels`: a few lines in cases.c.
 */
#ifndef DPN_BENCH_BENCH_H
#define DPN_BENCH_BENCH_H

#include <stddef.h>

#include "core/options.h"
#include "core/status.h"
#include "kernels/kernels.h"

/* `bench kernels`; *WRONG: wrong elements in all. kernels.c. */
enum dpn_status dpn_bench_kernels(const struct dpn_config *config, size_t *wrong);

enum { DPN_BENCH_MAX_CASES = 256, DPN_BENCH_BUFFERS = 8, DPN_BENCH_BLOCKS = 6 };

/* One kernel at one shape. */
struct dpn_bench_case {
    const char *op, *algorithm, *pass; /* "" where there is no choice */
    char shape[64];
    double flops; /* of one run: what its definition takes; 0: memory-bound */
    double bytes; /* that one run must read and write */
    int conv;     /* CONV and PASS hold */
    struct dpn_conv shape_conv;
    enum dpn_conv_pass conv_pass;
    const struct dpn_conv_algorithm *conv_algorithm;
    size_t n, columns, k; /* of the others: elements or rows, columns, depth */
    double bound; /* of a result's relative Frobenius error against the plain loops; 0: the same bits */
    /* Buffers that hold results, and those that must have the same bits in any case, as sets; the others are
     * workspace. */
    unsigned results, exact;
    size_t blocks; /* of moments or sums of COLUMNS channels, in buffer DPN_BENCH_BLOCKS; 0: none */
    /* Makes of buffers of random numbers what the kernel may be given; NULL: they are. */
    void (*prepare)(const struct dpn_bench_case *c, float *const *buffers);
    /* This thread's share of one run with KERNELS on BUFFERS. */
    void (*run)(const struct dpn_bench_case *c, const struct dpn_kernels *kernels, float *const *buffers,
                int phase, int thread, int size);
    int phases;
};

/* What a case works on: buffers of random numbers, and of workspace. */
struct dpn_bench_room {
    size_t floats; /* of each buffer */
    float *buffers[DPN_BENCH_BUFFERS];
};

/* All cases for KERNELS at BATCH samples; returns how many. cases.c, cases_conv.c. */
size_t dpn_bench_cases(const struct dpn_kernels *kernels, size_t batch, struct dpn_bench_case *cases,
                       size_t max);
size_t dpn_bench_conv_cases(const struct dpn_kernels *kernels, size_t batch, struct dpn_bench_case *cases,
                            size_t max);
/* Floats that a case's buffers must have for a team of THREADS. */
size_t dpn_bench_floats(const struct dpn_bench_case *c, size_t threads);

#endif
