/* The matrix product of every instruction set: bit by bit the chain that kernels.h promises, whatever the
 * shape, the layout, the alignment, and how the work is cut. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/kernels.h"
#include "tests/kernels/tables.h"

enum { N_TABLES = 4, MAX_ELEMS = 600 * 160, SENTINEL_ROWS = 1 };

static const char *const isa_names[N_TABLES] = {"ref", "baseline", "avx2", "avx512"};
static const struct dpn_kernels *tables[N_TABLES]; /* NULL: this CPU cannot */

struct layout {
    int a_transposed, b_transposed, accumulate;
    size_t offset; /* floats by which b and c miss their alignment */
};

static float *buffer_a, *buffer_b, *buffer_c, *buffer_want, *buffer_start;
static uint32_t random_state = 1;

static uint32_t random_below(uint32_t limit)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (uint32_t)(((uint64_t)(random_state >> 8) * limit) >> 24);
}

/* Of wide exponent and either sign, so that another order of additions shows. */
static float random_float(void)
{
    float mantissa = 1.0f + (float)random_below(1u << 23) / (float)(1u << 23);
    return ldexpf(random_below(2) ? mantissa : -mantissa, (int)random_below(13) - 6);
}

static void fill_buffers(void)
{
    for (size_t i = 0; i < MAX_ELEMS; i++) {
        buffer_a[i] = random_float();
        buffer_b[i] = random_float();
        buffer_start[i] = random_float();
    }
}

static int fuses(const struct dpn_kernels *kernels)
{
    return strncmp(kernels->isa, "avx", 3) == 0;
}

static void chain(const struct dpn_gemm *gemm, int fused, float *c)
{
    for (size_t i = 0; i < gemm->m; i++) {
        for (size_t j = 0; j < gemm->n; j++) {
            float sum = gemm->accumulate ? c[i * gemm->c_row + j] : 0.0f;
            for (size_t l = 0; l < gemm->k; l++) {
                float x = gemm->a[i * gemm->a_row + l * gemm->a_col];
                float y = gemm->b[l * gemm->b_row + j * gemm->b_col];
                sum = fused ? fmaf(x, y, sum) : sum + x * y;
            }
            c[i * gemm->c_row + j] = sum;
        }
    }
}

/* A product of random matrices whose rows are PADDING longer than they need be. */
static struct dpn_gemm make_gemm(size_t m, size_t n, size_t k, struct layout layout, size_t padding)
{
    struct dpn_gemm gemm = {.m = m, .n = n, .k = k, .accumulate = layout.accumulate, .c_row = n + padding};
    gemm.a_row = layout.a_transposed ? 1 : k + padding;
    gemm.a_col = layout.a_transposed ? m + padding : 1;
    gemm.b_row = layout.b_transposed ? 1 : n + padding;
    gemm.b_col = layout.b_transposed ? k + padding : 1;
    gemm.a = buffer_a;
    gemm.b = buffer_b + layout.offset;
    gemm.c = buffer_c + layout.offset;
    return gemm;
}

static void check_gemm(const struct dpn_gemm *gemm, struct layout layout)
{
    const size_t extent = (gemm->m + SENTINEL_ROWS) * gemm->c_row + layout.offset;
    assert_true(extent <= MAX_ELEMS);
    for (int fused = 0; fused < 2; fused++) {
        memcpy(buffer_want, buffer_start, extent * sizeof(float));
        chain(gemm, fused, buffer_want + layout.offset);
        for (int t = 0; t < N_TABLES; t++) {
            if (tables[t] == NULL || fuses(tables[t]) != fused) continue;
            memcpy(buffer_c, buffer_start, extent * sizeof(float));
            tables[t]->gemm(gemm);
            if (memcmp(buffer_c, buffer_want, extent * sizeof(float)) != 0)
                fail_msg("%s: m %zu n %zu k %zu, A%s B%s%s, offset %zu", isa_names[t], gemm->m, gemm->n,
                         gemm->k, layout.a_transposed ? "^T" : "", layout.b_transposed ? "^T" : "",
                         layout.accumulate ? ", accumulated" : "", layout.offset);
        }
    }
}

static void test_chain_of_every_height_and_width(void **state)
{
    (void)state;
    for (size_t m = 1; m <= 26; m++) {
        for (size_t n = 16; n <= 64; n += 16) {
            struct layout layout = {.a_transposed = (int)(m & 1), .accumulate = (int)(m >> 1 & 1)};
            struct dpn_gemm gemm = make_gemm(m, n, 5, layout, 0);
            check_gemm(&gemm, layout);
            layout.a_transposed = !layout.a_transposed;
            gemm = make_gemm(m, n, 5, layout, 0);
            check_gemm(&gemm, layout);
        }
    }
}

static void test_chain_of_random_shapes(void **state)
{
    (void)state;
    for (int round = 0; round < 160; round++) {
        const int odd = round % 2;
        size_t m = 1 + random_below(70), n = 1 + random_below(150),
               k = 1 + random_below(round % 8 ? 60 : 400);
        if (!odd) n = (n + 15) / 16 * 16;
        struct layout layout = {.a_transposed = (int)random_below(2),
                                .b_transposed = (int)random_below(2),
                                .accumulate = (int)random_below(2),
                                .offset = odd ? random_below(16) : 0};
        struct dpn_gemm gemm = make_gemm(m, n, k, layout, odd ? random_below(20) : 16 * random_below(3));
        check_gemm(&gemm, layout);
    }
}

static void test_k_block_borders(void **state)
{
    (void)state;
    static const size_t ks[] = {1, 63, 64, 65, 127, 128, 129, 255, 256, 257, 513};
    for (size_t i = 0; i < sizeof ks / sizeof *ks; i++) {
        for (int form = 0; form < 4; form++) {
            struct layout layout = {.a_transposed = form & 1,
                                    .b_transposed = form >> 1,
                                    .accumulate = form == 2};
            struct dpn_gemm gemm = make_gemm(7, 74, ks[i], layout, 0);
            check_gemm(&gemm, layout);
        }
    }
}

static void test_empty_products(void **state)
{
    (void)state;
    for (size_t empty = 0; empty < 3; empty++) {
        for (int form = 0; form < 8; form++) {
            struct layout layout = {.a_transposed = form & 1,
                                    .b_transposed = form >> 1 & 1,
                                    .accumulate = form >> 2};
            struct dpn_gemm gemm = make_gemm(empty == 0 ? 0 : 5, empty == 1 ? 0 : 20, empty == 2 ? 0 : 9,
                                             layout, 3);
            check_gemm(&gemm, layout); /* k = 0 writes zeros unless accumulated; nothing else is touched */
        }
    }
}

/* Runs GEMM in pieces of random m, n and k; the later k pieces accumulate. */
static void run_cut(const struct dpn_kernels *kernels, const struct dpn_gemm *gemm, size_t step_m,
                    size_t step_n, size_t step_k)
{
    for (size_t i = 0; i < gemm->m; i += step_m) {
        for (size_t j = 0; j < gemm->n; j += step_n) {
            for (size_t l = 0; l < gemm->k; l += step_k) {
                struct dpn_gemm piece = *gemm;
                piece.m = gemm->m - i < step_m ? gemm->m - i : step_m;
                piece.n = gemm->n - j < step_n ? gemm->n - j : step_n;
                piece.k = gemm->k - l < step_k ? gemm->k - l : step_k;
                piece.a += i * gemm->a_row + l * gemm->a_col;
                piece.b += l * gemm->b_row + j * gemm->b_col;
                piece.c += i * gemm->c_row + j;
                piece.accumulate = gemm->accumulate || l > 0;
                kernels->gemm(&piece);
            }
        }
    }
}

static void test_cutting_changes_no_bit(void **state)
{
    (void)state;
    for (int round = 0; round < 40; round++) {
        struct layout layout = {.a_transposed = round & 1,
                                .b_transposed = round >> 1 & 1,
                                .accumulate = round >> 2 & 1};
        size_t m = 1 + random_below(64), n = 1 + random_below(200), k = 1 + random_below(300);
        struct dpn_gemm gemm = make_gemm(m, n, k, layout, 0);
        size_t step_m = 1 + random_below((uint32_t)m), step_n = 1 + random_below((uint32_t)n);
        size_t step_k = 1 + random_below((uint32_t)k);
        for (int t = 0; t < N_TABLES; t++) {
            if (tables[t] == NULL) continue;
            memcpy(buffer_c, buffer_start, m * n * sizeof(float));
            tables[t]->gemm(&gemm);
            memcpy(buffer_want, buffer_c, m * n * sizeof(float));
            memcpy(buffer_c, buffer_start, m * n * sizeof(float));
            run_cut(tables[t], &gemm, step_m, step_n, step_k);
            if (memcmp(buffer_c, buffer_want, m * n * sizeof(float)) != 0)
                fail_msg("%s: %zu x %zu x %zu in pieces of %zu x %zu x %zu", isa_names[t], m, n, k, step_m,
                         step_n, step_k);
        }
    }
}

static void test_fused_sets_agree(void **state)
{
    (void)state;
    if (tables[2] == NULL || tables[3] == NULL) {
        print_message("this CPU runs at most one set with FMA\n");
        skip();
    }
    struct layout layout = {0};
    struct dpn_gemm gemm = make_gemm(64, 144, 390, layout, 0);
    tables[2]->gemm(&gemm);
    memcpy(buffer_want, buffer_c, gemm.m * gemm.c_row * sizeof(float));
    tables[3]->gemm(&gemm);
    assert_memory_equal(buffer_c, buffer_want, gemm.m * gemm.c_row * sizeof(float));
}

static void test_close_to_double(void **state)
{
    (void)state;
    struct layout layout = {.b_transposed = 1};
    struct dpn_gemm gemm = make_gemm(20, 40, 300, layout, 0);
    for (int t = 0; t < N_TABLES; t++) {
        if (tables[t] == NULL) continue;
        tables[t]->gemm(&gemm);
        for (size_t i = 0; i < gemm.m; i++) {
            for (size_t j = 0; j < gemm.n; j++) {
                double sum = 0, magnitude = 0;
                for (size_t l = 0; l < gemm.k; l++) {
                    double product = (double)gemm.a[i * gemm.a_row + l] * (double)gemm.b[j * gemm.b_col + l];
                    sum += product;
                    magnitude += fabs(product);
                }
                assert_true(fabs((double)gemm.c[i * gemm.c_row + j] - sum) <= 3e-6 * magnitude);
            }
        }
    }
}

static void test_not_finite_is_not_lost(void **state)
{
    (void)state;
    struct layout layout = {0};
    struct dpn_gemm gemm = make_gemm(3, 20, 4, layout, 0);
    buffer_a[1] = 0.0f; /* row 0, k = 1: 0 * inf */
    buffer_b[gemm.b_row + 17] = INFINITY;
    buffer_a[gemm.a_row + 2] = NAN; /* row 1 */
    for (int t = 0; t < N_TABLES; t++) {
        if (tables[t] == NULL) continue;
        tables[t]->gemm(&gemm);
        assert_true(isnan(gemm.c[17]));
        assert_true(isfinite(gemm.c[16]));
        for (size_t j = 0; j < gemm.n; j++) assert_true(isnan(gemm.c[gemm.c_row + j]));
        assert_true(isinf(gemm.c[2 * gemm.c_row + 17]));
    }
    fill_buffers();
}

static int open_tables(void **state)
{
    (void)state;
    select_tables(isa_names, N_TABLES, tables);
    float **buffers[] = {&buffer_a, &buffer_b, &buffer_c, &buffer_want, &buffer_start};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++) {
        *buffers[i] = aligned_alloc(64, MAX_ELEMS * sizeof(float));
        if (*buffers[i] == NULL) return -1;
        memset(*buffers[i], 0, MAX_ELEMS * sizeof(float));
    }
    fill_buffers();
    return 0;
}

static int close_tables(void **state)
{
    (void)state;
    free(buffer_a);
    free(buffer_b);
    free(buffer_c);
    free(buffer_want);
    free(buffer_start);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chain_of_every_height_and_width),
        cmocka_unit_test(test_chain_of_random_shapes),
        cmocka_unit_test(test_k_block_borders),
        cmocka_unit_test(test_empty_products),
        cmocka_unit_test(test_cutting_changes_no_bit),
        cmocka_unit_test(test_fused_sets_agree),
        cmocka_unit_test(test_close_to_double),
        cmocka_unit_test(test_not_finite_is_not_lost),
    };
    return cmocka_run_group_tests(tests, open_tables, close_tables);
}
