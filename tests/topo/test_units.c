/* Units on described machines. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "topo/machine.h"
#include "topo/topo.h"

#define BIG     "package:2 numa:4 core:8 pu:1"
#define BIG_SMT "package:2 numa:4 core:8 pu:2"

/* "0-3,8" */
static struct dpn_cpuset parse_set(const char *text)
{
    struct dpn_cpuset set = {{0}};
    while (*text) {
        char *end;
        unsigned long first = strtoul(text, &end, 10), last = first;
        if (*end == '-') last = strtoul(end + 1, &end, 10);
        for (; first <= last; first++) dpn_cpuset_add(&set, (unsigned)first);
        text = *end == ',' ? end + 1 : end;
    }
    return set;
}

static struct dpn_topo *machine(const char *description, const char *allowed)
{
    struct dpn_topo *topo = NULL;
    struct dpn_cpuset set = parse_set(allowed ? allowed : "");
    assert_int_equal(dpn_topo_open(&topo, description, allowed ? &set : NULL), DPN_OK);
    return topo;
}

/* Units of KIND as "cpus@node/package cpus@node/package ...", first and last only where there are many. */
static void expect_units(const struct dpn_topo *topo, enum dpn_unit_kind kind, int smt,
                         enum dpn_unit_kind used_as, size_t n_expected, const char *first, const char *last)
{
    struct dpn_unit *units;
    enum dpn_unit_kind used;
    size_t n;
    char cpus[256], text[300];

    assert_int_equal(dpn_topo_units(topo, kind, smt, &units, &n, &used), DPN_OK);
    assert_int_equal(used, used_as);
    assert_int_equal(n, n_expected);
    for (size_t i = 0; i<n; i += n> 1 ? n - 1 : 1) {
        assert_int_equal(units[i].n_cpus, dpn_cpuset_count(&units[i].cpus));
        snprintf(text, sizeof text, "%s@%d/%d", dpn_cpuset_text(&units[i].cpus, cpus, sizeof cpus),
                 units[i].node, units[i].package);
        assert_string_equal(text, i == 0 ? first : last);
    }
    /* No CPU in two units, none that is not allowed. */
    struct dpn_cpuset seen = {{0}};
    for (size_t i = 0; i < n; i++)
        for (int cpu = dpn_cpuset_next(&units[i].cpus, -1); cpu >= 0;
             cpu = dpn_cpuset_next(&units[i].cpus, cpu)) {
            assert_false(dpn_cpuset_has(&seen, (unsigned)cpu));
            assert_true(dpn_cpuset_has(dpn_topo_allowed(topo), (unsigned)cpu));
            dpn_cpuset_add(&seen, (unsigned)cpu);
        }
    free(units);
}

static void test_big(void **state)
{
    struct dpn_topo *topo = machine(BIG, NULL);
    (void)state;
    assert_true(dpn_topo_is_synthetic(topo));
    assert_int_equal(dpn_topo_n_packages(topo), 2);
    assert_int_equal(dpn_topo_n_nodes(topo), 8);
    assert_int_equal(dpn_cpuset_count(dpn_topo_allowed(topo)), 64);
    expect_units(topo, DPN_UNIT_PACKAGE, 0, DPN_UNIT_PACKAGE, 2, "0-31@0/0", "32-63@4/1");
    expect_units(topo, DPN_UNIT_NUMA, 0, DPN_UNIT_NUMA, 8, "0-7@0/0", "56-63@7/1");
    expect_units(topo, DPN_UNIT_CORE, 0, DPN_UNIT_CORE, 64, "0@0/0", "63@7/1");
    expect_units(topo, DPN_UNIT_AUTO, 0, DPN_UNIT_PACKAGE, 2, "0-31@0/0", "32-63@4/1");
    dpn_topo_close(topo);
}

static void test_smt(void **state)
{
    struct dpn_topo *topo = machine(BIG_SMT, NULL);
    (void)state;
    expect_units(topo, DPN_UNIT_NUMA, 0, DPN_UNIT_NUMA, 8, "0,2,4,6,8,10,12,14@0/0",
                 "112,114,116,118,120,122,124,126@7/1");
    expect_units(topo, DPN_UNIT_NUMA, 1, DPN_UNIT_NUMA, 8, "0-15@0/0", "112-127@7/1");
    expect_units(topo, DPN_UNIT_CORE, 0, DPN_UNIT_CORE, 64, "0@0/0", "126@7/1");
    expect_units(topo, DPN_UNIT_CORE, 1, DPN_UNIT_CORE, 64, "0-1@0/0", "126-127@7/1");
    dpn_topo_close(topo);
}

/* As Linux numbers them: the second hardware threads after all first ones. */
static void test_linux_numbering(void **state)
{
    struct dpn_topo *topo =
        machine("package:2 core:4 pu:2(indexes=0,8,1,9,2,10,3,11,4,12,5,13,6,14,7,15)", NULL);
    (void)state;
    expect_units(topo, DPN_UNIT_PACKAGE, 0, DPN_UNIT_PACKAGE, 2, "0-3@0/0", "4-7@0/1");
    expect_units(topo, DPN_UNIT_PACKAGE, 1, DPN_UNIT_PACKAGE, 2, "0-3,8-11@0/0", "4-7,12-15@0/1");
    expect_units(topo, DPN_UNIT_CORE, 1, DPN_UNIT_CORE, 8, "0,8@0/0", "7,15@0/1");
    dpn_topo_close(topo);
}

/* One hardware thread a core is allowed, not always the lower one; or all of some cores. */
static void test_allowed_siblings(void **state)
{
    struct dpn_topo *topo = machine("package:1 core:4 pu:2", "1,3,4,7");
    (void)state;
    expect_units(topo, DPN_UNIT_CORE, 0, DPN_UNIT_CORE, 4, "1@0/0", "7@0/0");
    expect_units(topo, DPN_UNIT_CORE, 1, DPN_UNIT_CORE, 4, "1@0/0", "7@0/0");
    expect_units(topo, DPN_UNIT_PACKAGE, 0, DPN_UNIT_PACKAGE, 1, "1,3-4,7@0/0", "");
    dpn_topo_close(topo);

    topo = machine("package:1 core:4 pu:2", "2,3,5");
    expect_units(topo, DPN_UNIT_CORE, 0, DPN_UNIT_CORE, 2, "2@0/0", "5@0/0");
    expect_units(topo, DPN_UNIT_CORE, 1, DPN_UNIT_CORE, 2, "2-3@0/0", "5@0/0");
    dpn_topo_close(topo);
}

/* The allowed set cuts units and leaves some out; indices count what is left. */
static void test_allowed_cuts(void **state)
{
    struct dpn_topo *topo = machine(BIG, "6-9,33,4095");
    (void)state;
    assert_int_equal(dpn_cpuset_count(dpn_topo_allowed(topo)), 5);
    assert_int_equal(dpn_cpuset_count(dpn_topo_online(topo)), 64);
    assert_int_equal(dpn_topo_n_nodes(topo), 8);
    expect_units(topo, DPN_UNIT_PACKAGE, 0, DPN_UNIT_PACKAGE, 2, "6-9@0/0", "33@4/1");
    expect_units(topo, DPN_UNIT_NUMA, 0, DPN_UNIT_NUMA, 3, "6-7@0/0", "33@4/1");
    expect_units(topo, DPN_UNIT_CORE, 0, DPN_UNIT_CORE, 5, "6@0/0", "33@4/1");
    dpn_topo_close(topo);
}

static void test_auto(void **state)
{
    static const struct {
        const char *description, *allowed;
        enum dpn_unit_kind used;
        size_t n;
        const char *first, *last;
    } cases[] = {
        {BIG, NULL, DPN_UNIT_PACKAGE, 2, "0-31@0/0", "32-63@4/1"},
        {BIG, "0-31", DPN_UNIT_NUMA, 4, "0-7@0/0", "24-31@3/0"},
        {BIG, "32-63", DPN_UNIT_NUMA, 4, "32-39@4/1", "56-63@7/1"},
        {BIG, "8-15", DPN_UNIT_CORE, 8, "8@1/0", "15@1/0"},
        {BIG, "9", DPN_UNIT_CORE, 1, "9@1/0", ""},
        {"package:1 numa:1 l3:3 core:2 pu:1", NULL, DPN_UNIT_L3, 3, "0-1@0/0", "4-5@0/0"},
        {"package:1 numa:1 l3:3 core:2 pu:1", "4-5", DPN_UNIT_CORE, 2, "4@0/0", "5@0/0"},
        {"core:1 pu:1", NULL, DPN_UNIT_CORE, 1, "0@0/0", ""},
        {"core:1 pu:2", NULL, DPN_UNIT_CORE, 1, "0@0/0", ""},
        {"pu:3", NULL, DPN_UNIT_CORE, 3, "0@0/0", "2@0/0"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct dpn_topo *topo = machine(cases[i].description, cases[i].allowed);
        expect_units(topo, DPN_UNIT_AUTO, 0, cases[i].used, cases[i].n, cases[i].first, cases[i].last);
        dpn_topo_close(topo);
    }
}

static void test_no_l3(void **state)
{
    struct dpn_topo *topo = machine("package:2 core:2 pu:1", NULL);
    struct dpn_unit *units = (void *)1;
    enum dpn_unit_kind used;
    size_t n = 7;
    (void)state;
    assert_int_equal(dpn_topo_units(topo, DPN_UNIT_L3, 0, &units, &n, &used), DPN_ERR_USAGE);
    assert_null(units);
    assert_int_equal(n, 0);
    assert_non_null(strstr(dpn_error_text(), "--cpu-unit 'l3'"));
    dpn_topo_close(topo);
}

/* Tables that hwloc's descriptions cannot make: a CPU on no node, one in no L3 (efficiency cores), siblings
 * in falling order. */
static void test_odd_tables(void **state)
{
    struct dpn_topo_pu pus[] = {
        {.cpu = 5, .core = 0, .l3 = 0, .node = 1, .node_os = 9, .package = 0},
        {.cpu = 2, .core = 0, .l3 = 0, .node = 1, .node_os = 9, .package = 0},
        {.cpu = 7, .core = 1, .l3 = -1, .node = -1, .node_os = 0, .package = 0},
        {.cpu = 1, .core = 2, .l3 = 1, .node = 1, .node_os = 9, .package = 0},
    };
    struct dpn_topo topo = {
        .allowed = parse_set("1,2,5,7"), .pus = pus, .n_pus = 4, .n_nodes = 2, .n_packages = 1};
    (void)state;
    expect_units(&topo, DPN_UNIT_CORE, 0, DPN_UNIT_CORE, 3, "2@9/0", "1@9/0");
    expect_units(&topo, DPN_UNIT_CORE, 1, DPN_UNIT_CORE, 3, "2,5@9/0", "1@9/0");
    expect_units(&topo, DPN_UNIT_L3, 0, DPN_UNIT_L3, 2, "2@9/0", "1@9/0");
    expect_units(&topo, DPN_UNIT_NUMA, 0, DPN_UNIT_NUMA, 1, "1-2@9/0", "");
    expect_units(&topo, DPN_UNIT_AUTO, 0, DPN_UNIT_L3, 2, "2@9/0", "1@9/0");
}

/* Two memories with the same CPUs (high-bandwidth memory): one unit each pair, on the first. */
static void test_two_memories(void **state)
{
    struct dpn_topo *topo = machine("package:2 [numa] [numa] core:4 pu:1", NULL);
    (void)state;
    assert_int_equal(dpn_topo_n_nodes(topo), 4);
    expect_units(topo, DPN_UNIT_NUMA, 0, DPN_UNIT_NUMA, 2, "0-3@0/0", "4-7@2/1");
    dpn_topo_close(topo);
}

static void test_refusals(void **state)
{
    struct dpn_topo *topo;
    struct dpn_cpuset elsewhere = parse_set("100-200");
    (void)state;
    assert_int_equal(dpn_topo_open(&topo, "no:such thing", NULL), DPN_ERR_USAGE);
    assert_null(topo);
    assert_int_equal(dpn_topo_open(&topo, BIG, &elsewhere), DPN_ERR_SYSTEM);
    assert_null(topo);
    assert_non_null(strstr(dpn_error_text(), "0-63"));
    dpn_topo_close(NULL);
}

static void test_kind_names(void **state)
{
    (void)state;
    for (enum dpn_unit_kind kind = DPN_UNIT_AUTO; kind <= DPN_UNIT_CORE; kind++) {
        enum dpn_unit_kind parsed;
        assert_int_equal(dpn_unit_kind_parse(dpn_unit_kind_name(kind), &parsed), DPN_OK);
        assert_int_equal(parsed, kind);
    }
    enum dpn_unit_kind untouched = DPN_UNIT_L3;
    assert_int_equal(dpn_unit_kind_parse("socket", &untouched), DPN_ERR_USAGE);
    assert_int_equal(untouched, DPN_UNIT_L3);
    assert_non_null(strstr(dpn_error_text(), "--cpu-unit 'socket'"));
}

static void test_this_machine(void **state)
{
    struct dpn_topo *topo;
    struct dpn_cpuset entry;
    (void)state;
    dpn_topo_entry_mask(&entry);
    assert_true(dpn_cpuset_count(&entry) > 0);
    assert_int_equal(dpn_topo_open(&topo, NULL, NULL), DPN_OK);
    if (!dpn_topo_is_synthetic(topo))
        for (int cpu = -1; (cpu = dpn_cpuset_next(dpn_topo_allowed(topo), cpu)) >= 0;) {
            assert_true(dpn_cpuset_has(&entry, (unsigned)cpu));
            assert_true(dpn_cpuset_has(dpn_topo_online(topo), (unsigned)cpu));
        }
    for (enum dpn_unit_kind kind = DPN_UNIT_AUTO; kind <= DPN_UNIT_CORE; kind++) {
        struct dpn_unit *units;
        enum dpn_unit_kind used;
        size_t n, cpus = 0;
        if (dpn_topo_units(topo, kind, 1, &units, &n, &used) != DPN_OK) {
            assert_int_equal(kind, DPN_UNIT_L3);
            continue;
        }
        for (size_t i = 0; i < n; i++) cpus += units[i].n_cpus;
        if (kind != DPN_UNIT_L3) assert_int_equal(cpus, dpn_cpuset_count(dpn_topo_allowed(topo)));
        free(units);
    }
    dpn_topo_close(topo);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_big),
        cmocka_unit_test(test_smt),
        cmocka_unit_test(test_linux_numbering),
        cmocka_unit_test(test_allowed_siblings),
        cmocka_unit_test(test_allowed_cuts),
        cmocka_unit_test(test_auto),
        cmocka_unit_test(test_no_l3),
        cmocka_unit_test(test_odd_tables),
        cmocka_unit_test(test_two_memories),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_kind_names),
        cmocka_unit_test(test_this_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
