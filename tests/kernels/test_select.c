/* Which table of kernels is taken, and the floating-point mode of a thread. */
#include <float.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cpu/select.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

static const char *chosen(const char *isa, unsigned features)
{
    const struct dpn_kernels *kernels = NULL;
    assert_int_equal(dpn_kernels_choose(isa, features, &kernels), DPN_OK);
    return kernels->isa;
}

static void check_refused(const char *isa, unsigned features, const char *text)
{
    const struct dpn_kernels *kernels = NULL;
    assert_int_equal(dpn_kernels_choose(isa, features, &kernels), DPN_ERR_USAGE);
    assert_null(kernels);
    assert_non_null(strstr(dpn_error_text(), "--isa"));
    assert_non_null(strstr(dpn_error_text(), text));
}

static void test_widest_is_chosen(void **state)
{
    (void)state;
    assert_string_equal(chosen("auto", 0), "baseline");
#if defined(__x86_64__)
    assert_string_equal(chosen("auto", DPN_CPU_AVX2), "avx2");
    assert_string_equal(chosen("auto", DPN_CPU_AVX2 | DPN_CPU_AVX512), "avx512");
    assert_string_equal(chosen("auto", DPN_CPU_AVX2 | DPN_CPU_AVX512 | DPN_CPU_BF16), "avx512");
    assert_string_equal(chosen("auto", DPN_CPU_AVX2 | DPN_CPU_AMD), "avx2");
#endif
}

static void test_named_is_chosen(void **state)
{
    (void)state;
    const unsigned all = DPN_CPU_AVX2 | DPN_CPU_AVX512;
    assert_string_equal(chosen("ref", all), "ref");
    assert_string_equal(chosen("baseline", all), "baseline");
#if defined(__x86_64__)
    assert_string_equal(chosen("avx2", all), "avx2");
    assert_string_equal(chosen("avx512", all), "avx512");
#endif
}

static void test_what_cannot_run_is_refused(void **state)
{
    (void)state;
    check_refused("avx512", DPN_CPU_AVX2, "avx512");
    check_refused("avx2", 0, "avx2");
    check_refused("avx", DPN_CPU_AVX2, "'avx'");
    check_refused("AVX2", DPN_CPU_AVX2, "'AVX2'");
    check_refused("", DPN_CPU_AVX2, "''");
}

static void test_this_cpu(void **state)
{
    (void)state;
    const struct dpn_kernels *kernels = NULL, *named = NULL;
    assert_int_equal(dpn_kernels_select("auto", &kernels), DPN_OK);
    print_message("this CPU: %s\n", kernels->isa);
    assert_int_equal(dpn_kernels_select(kernels->isa, &named), DPN_OK);
    assert_ptr_equal(kernels, named);
    assert_string_not_equal(kernels->isa, "ref");
    assert_int_equal(dpn_kernels_select("sse9", &named), DPN_ERR_USAGE);
}

static void test_every_slot_is_filled(void **state)
{
    (void)state;
    static const char *const names[] = {"ref", "baseline", "avx2", "avx512"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const struct dpn_kernels *kernels;
        if (dpn_kernels_choose(names[i], DPN_CPU_AVX2 | DPN_CPU_AVX512, &kernels) != DPN_OK) continue;
        assert_string_equal(kernels->isa, names[i]);
        for (size_t at = 0; at < offsetof(struct dpn_kernels, fixed_cut); at += sizeof(void (*)(void))) {
            void *slot; /* every member before fixed_cut is a pointer */
            memcpy(&slot, (const char *)kernels + at, sizeof slot);
            assert_non_null(slot);
        }
    }
}

static void test_denormals_are_flushed(void **state)
{
    (void)state;
#if defined(__x86_64__)
    const unsigned before = _mm_getcsr();
    /* volatile, or the arithmetic moves across the changes of mode */
    volatile float small = FLT_MIN, flushed, kept, read, nearest;
    _mm_setcsr((before & ~0x8040u) | 0x6000); /* denormals kept, round towards zero */
    kept = small * 0.5f;
    dpn_kernels_thread_init();
    flushed = small * 0.5f;
    read = kept * 4.0f;
    volatile float one = 1.0f, tiny = FLT_EPSILON * 0.75f;
    nearest = one + tiny;
    const unsigned after = _mm_getcsr();
    _mm_setcsr(before);
    assert_true(kept > 0.0f);
    assert_true(flushed == 0.0f);
    assert_true(read == 0.0f);
    assert_true(nearest == 1.0f + FLT_EPSILON);
    assert_int_equal(after & 0xffc0, 0x9fc0);
#else
    print_message("no MXCSR on this architecture\n");
    skip();
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_widest_is_chosen),           cmocka_unit_test(test_named_is_chosen),
        cmocka_unit_test(test_what_cannot_run_is_refused), cmocka_unit_test(test_this_cpu),
        cmocka_unit_test(test_every_slot_is_filled),       cmocka_unit_test(test_denormals_are_flushed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
