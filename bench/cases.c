/* `bench kernels`: every slot of the kernel table but the convolutions, at the shapes of the models. */
#include <stdint.h>
#include <stdio.h>

#include "bench/bench.h"
#include "core/team.h"

/* What the cases have in common: the thread's piece of n rows. */
struct cases_piece {
    size_t first, count;
};

static struct cases_piece cases_piece(const struct dpn_bench_case *c, size_t quantum, int thread, int size)
{
    struct cases_piece piece;
    dpn_split((c->n + quantum - 1) / quantum, (size_t)size, (size_t)thread, &piece.first, &piece.count);
    piece.first *= quantum;
    piece.count *= quantum;
    if (piece.first > c->n) piece.first = c->n;
    if (piece.first + piece.count > c->n) piece.count = c->n - piece.first;
    return piece;
}

#define CASES_RUN(name)                                                                         \
    static void cases_##name(const struct dpn_bench_case *c, const struct dpn_kernels *kernels, \
                             float *const *b, int phase, int thread, int size)

CASES_RUN(gemm)
{
    struct cases_piece p = cases_piece(c, 12, thread, size);
    struct dpn_gemm gemm = {.m = p.count,
                            .n = c->columns,
                            .k = c->k,
                            .a = b[0] + p.first * c->k,
                            .a_row = c->k,
                            .a_col = 1,
                            .b = b[1],
                            .b_row = c->columns,
                            .b_col = 1,
                            .c = b[2] + p.first * c->columns,
                            .c_row = c->columns};
    (void)phase;
    kernels->gemm(&gemm);
}

CASES_RUN(moments)
{
    struct cases_piece p = cases_piece(c, 512, thread, size);
    (void)phase;
    for (size_t at = p.first; at < p.first + p.count; at += 512)
        kernels->moments(p.first + p.count - at < 512 ? p.first + p.count - at : 512, c->columns,
                         b[0] + at * c->columns,
                         b[DPN_BENCH_BLOCKS] + at / 512 * dpn_block_floats(c->columns));
}

CASES_RUN(bn_apply)
{
    struct cases_piece p = cases_piece(c, 256, thread, size);
    struct dpn_bn_apply args = {.pixels = p.count,
                                .cstride = c->columns,
                                .z = b[0] + p.first * c->columns,
                                .scale = b[3],
                                .shift = b[4],
                                .relu = 1,
                                .y = b[2] + p.first * c->columns};
    (void)phase;
    if (c->k) args.residual.x = b[1] + p.first * c->columns;
    if (p.count) kernels->bn_apply(&args);
}

CASES_RUN(mask_sums)
{
    struct cases_piece p = cases_piece(c, 512, thread, size);
    (void)phase;
    for (size_t at = p.first; at < p.first + p.count; at += 512) {
        struct dpn_mask_sums mask = {.z = b[0] + at * c->columns,
                                     .scale = b[3],
                                     .shift = b[4],
                                     .mean = b[5],
                                     .sums = b[DPN_BENCH_BLOCKS] + at / 512 * dpn_block_floats(c->columns)};
        kernels->mask_sums(p.first + p.count - at < 512 ? p.first + p.count - at : 512, c->columns,
                           b[2] + at * c->columns, &mask);
    }
}

CASES_RUN(bn_grad)
{
    struct cases_piece p = cases_piece(c, 256, thread, size);
    struct dpn_gradient dy = {b[0] + p.first * c->columns, b[1] + p.first * c->columns, b[3], b[4], b[5]};
    (void)phase;
    if (p.count) kernels->bn_grad(p.count, c->columns, &dy, b[2] + p.first * c->columns);
}

CASES_RUN(relu)
{
    struct cases_piece p = cases_piece(c, 1024, thread, size);
    (void)phase;
    kernels->relu(p.count, b[0] + p.first, b[2] + p.first);
}

CASES_RUN(add)
{
    struct cases_piece p = cases_piece(c, 1024, thread, size);
    (void)phase;
    kernels->add(p.count, b[0] + p.first, b[1] + p.first, b[2] + p.first);
}

CASES_RUN(sgd)
{
    struct cases_piece p = cases_piece(c, 1024, thread, size);
    const struct dpn_sgd args = {.lr = 0.1f, .momentum = 0.9f, .weight_decay = 1e-4f};
    (void)phase;
    kernels->sgd(p.count, &args, b[2] + p.first, b[0] + p.first, b[1] + p.first);
}

CASES_RUN(adam)
{
    struct cases_piece p = cases_piece(c, 1024, thread, size);
    const struct dpn_adam args = {.beta1 = 0.9,
                                  .beta2 = 0.999,
                                  .eps = 1e-8f,
                                  .step_size = 1e-3f,
                                  .inv_sqrt_bias2 = 1};
    (void)phase;
    kernels->adam(p.count, &args, b[2] + p.first, b[0] + p.first, b[1] + p.first, b[3] + p.first);
}

CASES_RUN(sum_squares)
{
    (void)phase;
    if (thread == 0 && size > 0) b[2][0] = (float)kernels->sum_squares(c->n, b[0]);
}

static struct dpn_pool cases_pool_shape(const struct dpn_bench_case *c)
{
    size_t side = c->k, plane = side * side * c->columns;
    return (struct dpn_pool){.samples = c->n / (side * side),
                             .cstride = c->columns,
                             .in_height = side,
                             .in_width = side,
                             .in_stride = plane,
                             .out_height = side / 2,
                             .out_width = side / 2,
                             .out_stride = plane / 4,
                             .kernel = 2,
                             .stride = 2};
}

CASES_RUN(pool)
{
    const struct dpn_pool pool = cases_pool_shape(c);
    size_t first, count;
    (void)phase;
    dpn_split(pool.samples, (size_t)size, (size_t)thread, &first, &count);
    if (count) kernels->pool(&pool, first, count, b[0], b[2]);
}

/* Buffer 0 as bytes: CHW images one after the other. */
CASES_RUN(image)
{
    size_t side = c->k, pixels = side * side, first, count;
    (void)phase;
    dpn_split(c->n / pixels, (size_t)size, (size_t)thread, &first, &count);
    for (size_t i = first; i < first + count; i++) {
        const struct dpn_image image = {.channels = c->columns,
                                        .height = side,
                                        .width = side,
                                        .u8 = (const uint8_t *)b[0] + i * pixels * c->columns,
                                        .top = 1,
                                        .left = -2,
                                        .flip = (int)(i & 1),
                                        .scale = b[3],
                                        .shift = b[4],
                                        .out = b[2] + i * pixels * c->columns};
        kernels->image(&image);
    }
}

struct cases_spec {
    const char *op, *note;
    void (*run)(const struct dpn_bench_case *c, const struct dpn_kernels *kernels, float *const *buffers,
                int phase, int thread, int size);
    size_t rows, columns, k; /* rows: of a sample if per_sample, else in all */
    int per_sample;
    double passes; /* how often each element crosses the memory bus; 0: flops count */
    double bound;  /* as of struct dpn_bench_case */
};

/* Sums may be of another order, an element's own expression may be fused or not. */
#define CASES_SUMS  2e-6
#define CASES_ROUND 2e-7

static const struct cases_spec cases_specs[] = {
    {"gemm", "64x784x512", cases_gemm, 64, 512, 784, 0, 0, CASES_SUMS},
    {"gemm", "2048x576x64", cases_gemm, 2048, 64, 576, 0, 0, CASES_SUMS},
    {"gemm", "512x512x512", cases_gemm, 512, 512, 512, 0, 0, CASES_SUMS},
    {"moments", "64 channels @32", cases_moments, 1024, 64, 0, 1, 1, CASES_SUMS},
    {"bn_apply", "64 channels @32, ReLU", cases_bn_apply, 1024, 64, 0, 1, 2, CASES_ROUND},
    {"bn_apply", "64 channels @32, residual, ReLU", cases_bn_apply, 1024, 64, 1, 1, 3, CASES_ROUND},
    {"mask_sums", "64 channels @32", cases_mask_sums, 1024, 64, 0, 1, 3, CASES_SUMS},
    {"bn_grad", "64 channels @32", cases_bn_grad, 1024, 64, 0, 1, 3, CASES_ROUND},
    {"relu", "64 channels @32", cases_relu, 65536, 0, 0, 1, 2, 0},
    {"add", "64 channels @32", cases_add, 65536, 0, 0, 1, 3, 0},
    {"max_pool", "16 channels @28, 2x2", cases_pool, 784, 16, 28, 1, 1.25, 0},
    {"image", "3x32x32, crop and flip", cases_image, 1024, 3, 32, 1, 1.25, CASES_ROUND},
    {"sgd", "momentum, 11 M parameters", cases_sgd, 11173888, 0, 0, 0, 5, CASES_ROUND},
    {"adam", "11 M parameters", cases_adam, 11173888, 0, 0, 0, 7, CASES_ROUND},
    {"sum_squares", "11 M parameters", cases_sum_squares, 11173888, 0, 0, 0, 1, CASES_SUMS},
};

size_t dpn_bench_cases(const struct dpn_kernels *kernels, size_t batch, struct dpn_bench_case *cases,
                       size_t max)
{
    size_t n = dpn_bench_conv_cases(kernels, batch, cases, max);
    for (size_t i = 0; i < sizeof cases_specs / sizeof *cases_specs && n < max; i++) {
        const struct cases_spec *s = &cases_specs[i];
        struct dpn_bench_case *c = &cases[n++];
        size_t rows = s->per_sample ? s->rows * batch : s->rows, width = s->columns ? s->columns : 1;
        *c = (struct dpn_bench_case){.op = s->op,
                                     .algorithm = "",
                                     .pass = "",
                                     .n = rows,
                                     .columns = s->columns,
                                     .k = s->k,
                                     .bound = s->bound,
                                     .results = 0xff & ~(1U << DPN_BENCH_BLOCKS),
                                     .run = s->run,
                                     .phases = 1};
        snprintf(c->shape, sizeof c->shape, "%s", s->note);
        c->bytes = 4.0 * s->passes * (double)(rows * width);
        if (s->run == cases_gemm) {
            c->flops = 2.0 * (double)rows * (double)s->columns * (double)s->k;
            c->bytes = 4.0 * (double)(rows * s->k + s->k * s->columns + rows * s->columns);
        }
        if (s->run == cases_moments || s->run == cases_mask_sums) c->blocks = (rows + 511) / 512;
    }
    return n;
}
