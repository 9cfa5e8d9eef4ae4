/* OpenBLAS: the choice of its core type, and its products against the plain loops. Loading it sets the
 * environment and cannot be undone, so every load happens in a child process. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "kernels/cpu/select.h"

enum { AVX2 = DPN_CPU_AVX2, AVX512 = DPN_CPU_AVX2 | DPN_CPU_AVX512, NOT_THERE = 77 };

static void check_core(unsigned features, const char *inherited, const char *want, int remarked)
{
    char remark[200] = "?";
    const char *core = dpn_blas_core_type(features, inherited, remark, sizeof remark);
    if (want == NULL) assert_null(core);
    else assert_string_equal(core, want);
    assert_int_equal(remark[0] != '\0', remarked);
    if (remarked) assert_non_null(strstr(remark, inherited));
}

static void test_core_type_by_cpu(void **state)
{
    (void)state;
    check_core(AVX512, NULL, "SkylakeX", 0);
    check_core(AVX512 | DPN_CPU_BF16, NULL, "SkylakeX", 0);
    check_core(AVX512 | DPN_CPU_AMD, "", "SkylakeX", 0);
    check_core(AVX2, NULL, "Haswell", 0);
    check_core(AVX2 | DPN_CPU_AMD, NULL, "Zen", 0);
    check_core(0, NULL, NULL, 0);
}

static void test_inherited_core_type(void **state)
{
    (void)state;
    check_core(AVX512, "SkylakeX", "SkylakeX", 0);
    check_core(AVX512, "skylakex", "SkylakeX", 0);
    check_core(AVX512 | DPN_CPU_BF16, "Cooperlake", "Cooperlake", 0);
    check_core(AVX512 | DPN_CPU_BF16, "SapphireRapids", "SapphireRapids", 0);
    check_core(AVX512, "Cooperlake", "SkylakeX", 1); /* needs BF16: too wide */
    check_core(AVX512, "Haswell", "SkylakeX", 1);    /* too narrow */
    check_core(AVX512, "Prescott", "SkylakeX", 1);
    check_core(AVX512, "NoSuchCore", "SkylakeX", 1);
    check_core(AVX2, "Haswell", "Haswell", 0);
    check_core(AVX2 | DPN_CPU_AMD, "Haswell", "Haswell", 0);
    check_core(AVX2, "Zen", "Zen", 0);
    check_core(AVX2, "SkylakeX", "Haswell", 1); /* would die of an illegal instruction */
    check_core(AVX2 | DPN_CPU_AMD, "SkylakeX", "Zen", 1);
    check_core(0, "Haswell", NULL, 1);
}

static void test_long_inherited_name_is_cut(void **state)
{
    (void)state;
    char name[1000], remark[64];
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    assert_string_equal(dpn_blas_core_type(AVX512, name, remark, sizeof remark), "SkylakeX");
    assert_true(strlen(remark) < sizeof remark);
}

/* Runs CHECK in a child with OPENBLAS_CORETYPE set to CORE (NULL: unset), and OPENBLAS_NUM_THREADS to 7. */
static void in_child(const char *core, int (*check)(void))
{
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        if (core != NULL) setenv("OPENBLAS_CORETYPE", core, 1);
        else unsetenv("OPENBLAS_CORETYPE");
        setenv("OPENBLAS_NUM_THREADS", "7", 1);
        _exit(check());
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == NOT_THERE) {
        print_message("OpenBLAS is not installed\n");
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* Loads it on top of the widest own table. */
static const struct dpn_kernels *load(struct dpn_blas *blas, const struct dpn_kernels **own)
{
    const struct dpn_kernels *table = NULL;
    if (dpn_kernels_select("auto", own) != DPN_OK) return NULL;
    dpn_blas_load(*own, &table, blas);
    return table;
}

static int check_facts(void)
{
    struct dpn_blas blas;
    const struct dpn_kernels *own, *table = load(&blas, &own);
    if (table == NULL) return 1;
    if (!blas.loaded) return table != own ? 2 : blas.path[0] == '\0' ? NOT_THERE : 3;
    if (table == own || table->gemm == own->gemm || table->adam != own->adam) return 4;
    if (strcmp(table->isa, own->isa) != 0) return 5;
    if (strstr(blas.path, "openblas") == NULL || strstr(blas.config, "OpenBLAS") == NULL) return 6;
    if (strcmp(getenv("OPENBLAS_NUM_THREADS"), "1") != 0) return 7;
    fprintf(stderr, "OpenBLAS: %s, %s, %s%s%s\n", blas.core, blas.path, blas.config, blas.why[0] ? "; " : "",
            blas.why);
    dpn_blas_thread_init();
    return 0;
}

/* The core in use is one of the widest that the CPU runs, whatever was inherited. */
static int check_core_in_use(void)
{
    struct dpn_blas blas;
    const struct dpn_kernels *own;
    if (load(&blas, &own) == NULL) return 1;
    if (!blas.loaded) return NOT_THERE;
    const unsigned features = dpn_cpu_features();
    if (features & DPN_CPU_AVX512) return strcmp(blas.core, "SkylakeX") != 0;
    if (features & DPN_CPU_AVX2) return strcmp(blas.core, features & DPN_CPU_AMD ? "Zen" : "Haswell") != 0;
    return 0;
}

static int check_remark(void)
{
    struct dpn_blas blas;
    const struct dpn_kernels *own;
    if (load(&blas, &own) == NULL) return 1;
    if (!blas.loaded) return NOT_THERE;
    return strstr(blas.why, "Prescott") == NULL;
}

/* Largest error over all elements of one product, and 1e9 if what lies between C's rows has changed. */
static float product_error(const struct dpn_kernels *table, struct dpn_gemm gemm)
{
    enum { MAX = 200 * 300 };
    static float a[MAX], b[MAX], want[MAX], got[MAX];
    float largest = 0;
    for (size_t i = 0; i < MAX; i++) {
        a[i] = (float)(i * 7919 % 201) / 100.0f - 1.0f;
        b[i] = (float)(i * 104729 % 201) / 100.0f - 1.0f;
        want[i] = got[i] = (float)(i % 5);
    }
    gemm.a = a;
    gemm.b = b;
    gemm.c = want;
    dpn_kernels_ref.gemm(&gemm);
    gemm.c = got;
    table->gemm(&gemm);
    for (size_t i = 0; i < MAX; i++) largest = fmaxf(largest, fabsf(want[i] - got[i]));
    return largest;
}

static int check_products(void)
{
    struct dpn_blas blas;
    const struct dpn_kernels *own, *table = load(&blas, &own);
    static const size_t shapes[][3] = {{1, 1, 1},   {1, 17, 5},   {5, 1, 7},    {3, 4, 0},     {0, 4, 3},
                                       {4, 0, 3},   {32, 16, 60}, {64, 64, 64}, {100, 64, 31}, {64, 150, 64},
                                       {1, 64, 64}, {64, 1, 64},  {37, 29, 41}, {6, 64, 1}};
    if (table == NULL) return 1;
    if (!blas.loaded) return NOT_THERE;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        for (int form = 0; form < 16; form++) {
            const size_t m = shapes[s][0], n = shapes[s][1], k = shapes[s][2], padding = form & 8 ? 3 : 0;
            struct dpn_gemm gemm = {.m = m, .n = n, .k = k, .accumulate = form & 4, .c_row = n + padding};
            gemm.a_row = form & 1 ? 1 : k + padding;
            gemm.a_col = form & 1 ? m + padding : 1;
            gemm.b_row = form & 2 ? 1 : n + padding;
            gemm.b_col = form & 2 ? k + padding : 1;
            if (!(product_error(table, gemm) < 2e-5f)) {
                fprintf(stderr, "%zu x %zu x %zu, form %d\n", m, n, k, form);
                return 2;
            }
        }
    }
    return 0;
}

static void test_loads_or_says_why(void **state)
{
    (void)state;
    in_child(NULL, check_facts);
}

static void test_own_choice_of_core(void **state)
{
    (void)state;
    in_child(NULL, check_core_in_use);
}

static void test_narrow_inherited_core_is_replaced(void **state)
{
    (void)state;
    if (!(dpn_cpu_features() & DPN_CPU_AVX2)) {
        print_message("this CPU has no AVX2\n");
        skip();
    }
    in_child("Prescott", check_core_in_use);
    in_child("Prescott", check_remark);
    in_child("", check_core_in_use);
    in_child("Nonsense", check_core_in_use);
}

static void test_products(void **state)
{
    (void)state;
    in_child(NULL, check_products);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_core_type_by_cpu),
        cmocka_unit_test(test_inherited_core_type),
        cmocka_unit_test(test_long_inherited_name_is_cut),
        cmocka_unit_test(test_loads_or_says_why),
        cmocka_unit_test(test_own_choice_of_core),
        cmocka_unit_test(test_narrow_inherited_core_is_replaced),
        cmocka_unit_test(test_products),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
