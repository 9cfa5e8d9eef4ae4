/* Sets of CPU numbers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "topo/topo.h"

static struct dpn_cpuset set_of(const unsigned *cpus, size_t n)
{
    struct dpn_cpuset set = {{0}};
    for (size_t i = 0; i < n; i++) dpn_cpuset_add(&set, cpus[i]);
    return set;
}

#define SET(...) \
    set_of((const unsigned[]){__VA_ARGS__}, sizeof((const unsigned[]){__VA_ARGS__}) / sizeof(unsigned))

static void test_members(void **state)
{
    struct dpn_cpuset set = SET(0, 63, 64, 130, DPN_MAX_CPUS - 1, DPN_MAX_CPUS, 1u << 31);
    (void)state;
    assert_int_equal(dpn_cpuset_count(&set), 5);
    assert_true(dpn_cpuset_has(&set, 64));
    assert_false(dpn_cpuset_has(&set, 65));
    assert_false(dpn_cpuset_has(&set, DPN_MAX_CPUS));

    static const int expected[] = {0, 63, 64, 130, DPN_MAX_CPUS - 1, -1};
    int cpu = -1;
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        cpu = dpn_cpuset_next(&set, cpu);
        assert_int_equal(cpu, expected[i]);
    }
    assert_int_equal(dpn_cpuset_next(&set, DPN_MAX_CPUS - 1), -1);
}

static void test_empty(void **state)
{
    struct dpn_cpuset set = {{0}};
    char text[8] = "x";
    (void)state;
    assert_int_equal(dpn_cpuset_count(&set), 0);
    assert_int_equal(dpn_cpuset_next(&set, -1), -1);
    assert_string_equal(dpn_cpuset_text(&set, text, sizeof text), "");
    assert_string_equal(dpn_cpuset_text(&set, text, 0), "");
}

static void test_text(void **state)
{
    char text[64];
    struct dpn_cpuset one = SET(7), pair = SET(0, 1), mixed = SET(0, 1, 2, 3, 8, 62, 63, 64, 65, 4095);
    (void)state;
    assert_string_equal(dpn_cpuset_text(&one, text, sizeof text), "7");
    assert_string_equal(dpn_cpuset_text(&pair, text, sizeof text), "0-1");
    assert_string_equal(dpn_cpuset_text(&mixed, text, sizeof text), "0-3,8,62-65,4095");
}

/* Whatever the room: whole text, or whole items and "...", always ended and never longer. */
static void test_text_cut(void **state)
{
    static const char full[] = "0-3,8,62-65,4095";
    struct dpn_cpuset set = SET(0, 1, 2, 3, 8, 62, 63, 64, 65, 4095);
    char text[32];
    (void)state;
    for (size_t size = 1; size < sizeof text; size++) {
        memset(text, '#', sizeof text);
        dpn_cpuset_text(&set, text, size);
        size_t length = strlen(text);
        assert_true(length < size);
        assert_int_equal(text[size], '#');
        if (size >= sizeof full) {
            assert_string_equal(text, full);
            continue;
        }
        size_t dots = size - 1 < 3 ? size - 1 : 3;
        assert_true(length >= dots);
        assert_memory_equal(text + length - dots, "...", dots);
        assert_memory_equal(text, full, length - dots);
        if (length > 3) assert_int_equal(text[length - 4], ',');
    }
    assert_string_equal(dpn_cpuset_text(&set, text, sizeof full - 1), "0-3,8,62-65,...");
    assert_string_equal(dpn_cpuset_text(&set, text, 10), "0-3,8,...");
    assert_string_equal(dpn_cpuset_text(&set, text, 9), "0-3,...");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_members),
        cmocka_unit_test(test_empty),
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_text_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
