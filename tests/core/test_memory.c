/* Arenas and aligned blocks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "core/memory.h"

static void test_rounding(void **state)
{
    (void)state;
    assert_int_equal(dpn_arena_round(0), 0);
    assert_int_equal(dpn_arena_round(1), 1024);
    assert_int_equal(dpn_arena_round(1024), 1024);
    assert_int_equal(dpn_arena_round(1025), 2048);
    assert_int_equal(dpn_round16(0), 0);
    assert_int_equal(dpn_round16(10), 16);
    assert_int_equal(dpn_round16(16), 16);
    assert_int_equal(dpn_round16(784), 784);
    assert_int_equal(DPN_ARENA_QUANTUM_ELEMS * sizeof(float), DPN_PAGE_BYTES);
}

static void test_arena(void **state)
{
    (void)state;
    const size_t sizes[] = {0, 1, 4095, 4096, 4097, 1 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        unsigned char *arena = NULL;
        assert_int_equal(dpn_arena_alloc(&arena, sizes[i], "test"), DPN_OK);
        assert_non_null(arena);
        assert_int_equal((uintptr_t)arena % DPN_PAGE_BYTES, 0);
        for (size_t b = 0; b < sizes[i]; b++) assert_int_equal(arena[b], 0);
        memset(arena, 1, sizes[i]);
        dpn_arena_free(arena, sizes[i]);
    }
    dpn_arena_free(NULL, 4096);
}

static void test_arena_is_untouched(void **state)
{
    (void)state;
    enum { PAGES = 64 };
    float *arena;
    unsigned char resident[PAGES];
    assert_int_equal(dpn_arena_alloc(&arena, PAGES * DPN_PAGE_BYTES, "test"), DPN_OK);
    assert_int_equal(mincore(arena, PAGES * DPN_PAGE_BYTES, resident), 0);
    for (int page = 0; page < PAGES; page++) assert_int_equal(resident[page] & 1, 0);
    dpn_arena_free(arena, PAGES * DPN_PAGE_BYTES);
}

static void test_too_much(void **state)
{
    (void)state;
    float *arena = (float *)&arena;
    assert_int_equal(dpn_arena_alloc(&arena, SIZE_MAX, "the gradients"), DPN_ERR_NOMEM);
    assert_null(arena);
    assert_non_null(strstr(dpn_error_text(), "the gradients"));
    assert_int_equal(dpn_arena_alloc(&arena, SIZE_MAX / 2, "the gradients"), DPN_ERR_NOMEM);
    assert_non_null(strstr(dpn_error_text(), "Cannot allocate memory"));
    assert_int_equal(dpn_calloc(&arena, SIZE_MAX / 2, 3, "the list"), DPN_ERR_NOMEM);
    assert_null(arena);
    assert_non_null(strstr(dpn_error_text(), "the list"));
}

static void test_blocks(void **state)
{
    (void)state;
    const size_t counts[] = {0, 1, 7, 1000};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        unsigned char *block;
        assert_int_equal(dpn_calloc(&block, counts[i], 12, "test"), DPN_OK);
        assert_non_null(block);
        assert_int_equal((uintptr_t)block % DPN_CACHE_LINE_BYTES, 0);
        for (size_t b = 0; b < counts[i] * 12; b++) assert_int_equal(block[b], 0);
        free(block);
    }
}

static void test_peak_rss(void **state)
{
    (void)state;
    enum { MORE = 64 << 20 };
    size_t before = dpn_peak_rss_bytes();
    if (before == 0) {
        print_message("SKIP: no VmHWM in /proc/self/status\n");
        skip();
    }
    unsigned char *arena;
    assert_int_equal(dpn_arena_alloc(&arena, MORE, "test"), DPN_OK);
    memset(arena, 1, MORE);
    size_t after = dpn_peak_rss_bytes();
    dpn_arena_free(arena, MORE);
    /* the kernel's counters lag a little; an earlier peak may hide part of the growth */
    assert_true(after >= (size_t)MORE - (4 << 20) && after < (size_t)1 << 40);
    assert_true(after >= before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rounding),
        cmocka_unit_test(test_arena),
        cmocka_unit_test(test_arena_is_untouched),
        cmocka_unit_test(test_too_much),
        cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_peak_rss),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
