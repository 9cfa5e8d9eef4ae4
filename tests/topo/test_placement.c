/* Memory on NUMA nodes. Two nodes are rare: a table that claims two lets the calls reach the kernel on any
 * machine. */
#include <numa.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/memory.h"
#include "topo/machine.h"
#include "topo/topo.h"

enum { PAGES = 1300, BYTES = PAGES * DPN_PAGE_BYTES };

static struct dpn_topo_pu two_pus[] = {{.node_os = 0}, {.node_os = 0}};
static const struct dpn_topo two_nodes = {.pus = two_pus, .n_pus = 2, .n_nodes = 2, .n_packages = 1};

static char *pages(void)
{
    char *memory;
    assert_int_equal(dpn_arena_alloc(&memory, BYTES, "test"), DPN_OK);
    return memory;
}

static void need_numa(void)
{
    if (numa_available() >= 0) return;
    print_message("SKIP: this kernel has no NUMA memory policy\n");
    skip();
}

static void test_one_node(void **state)
{
    static const struct dpn_topo one_node = {.n_nodes = 1, .n_packages = 1};
    static const struct dpn_topo described = {.n_nodes = 8, .n_packages = 2, .synthetic = 1};
    const struct dpn_topo *topos[] = {&one_node, &described};
    size_t on_node, elsewhere, untouched;
    (void)state;
    for (int i = 0; i < 2; i++) {
        char *memory = pages();
        assert_int_equal(dpn_topo_place_on_node(topos[i], memory, BYTES, 5), DPN_OK);
        assert_int_equal(dpn_topo_interleave(topos[i], memory, BYTES), DPN_OK);
        assert_int_equal(dpn_topo_verify(topos[i], memory, BYTES, 5, &on_node, &elsewhere, &untouched),
                         DPN_OK);
        assert_int_equal(on_node, PAGES);
        assert_int_equal(elsewhere + untouched, 0);
        dpn_arena_free(memory, BYTES);
    }
}

static void test_place(void **state)
{
    size_t on_node, elsewhere, untouched;
    (void)state;
    need_numa();
    char *memory = pages();
    assert_int_equal(dpn_topo_place_on_node(&two_nodes, memory, BYTES, 0), DPN_OK);
    assert_int_equal(dpn_topo_verify(&two_nodes, memory, BYTES, 0, &on_node, &elsewhere, &untouched), DPN_OK);
    assert_int_equal(untouched, PAGES);
    memset(memory, 1, BYTES);
    assert_int_equal(dpn_topo_verify(&two_nodes, memory, BYTES - 1, 0, &on_node, &elsewhere, &untouched),
                     DPN_OK);
    assert_int_equal(on_node, PAGES);
    assert_int_equal(elsewhere + untouched, 0);
    assert_int_equal(dpn_topo_verify(&two_nodes, memory, BYTES, 1, &on_node, &elsewhere, &untouched), DPN_OK);
    assert_int_equal(elsewhere, PAGES);
    dpn_arena_free(memory, BYTES);
}

static void test_interleave(void **state)
{
    size_t on_node, elsewhere, untouched;
    (void)state;
    need_numa();
    char *memory = pages();
    assert_int_equal(dpn_topo_interleave(&two_nodes, memory, BYTES), DPN_OK);
    memset(memory, 1, BYTES);
    assert_int_equal(dpn_topo_verify(&two_nodes, memory, BYTES, 0, &on_node, &elsewhere, &untouched), DPN_OK);
    assert_int_equal(on_node, PAGES);
    dpn_arena_free(memory, BYTES);
}

/* The same on all nodes of a machine that has several. */
static void test_real_nodes(void **state)
{
    struct dpn_topo *topo;
    size_t on_node, elsewhere, untouched;
    (void)state;
    need_numa();
    assert_int_equal(dpn_topo_open(&topo, NULL, NULL), DPN_OK);
    if (dpn_topo_n_nodes(topo) < 2 || dpn_topo_is_synthetic(topo)) {
        print_message("SKIP: this machine has one NUMA node\n");
        dpn_topo_close(topo);
        skip();
    }
    for (size_t i = 0; i < topo->n_pus; i++) {
        char *memory = pages();
        assert_int_equal(dpn_topo_place_on_node(topo, memory, BYTES, topo->pus[i].node_os), DPN_OK);
        memset(memory, 1, BYTES);
        assert_int_equal(
            dpn_topo_verify(topo, memory, BYTES, topo->pus[i].node_os, &on_node, &elsewhere, &untouched),
            DPN_OK);
        assert_int_equal(on_node, PAGES);
        dpn_arena_free(memory, BYTES);
        while (i + 1 < topo->n_pus && topo->pus[i + 1].node_os == topo->pus[i].node_os) i++;
    }
    dpn_topo_close(topo);
}

static void test_bad_nodes(void **state)
{
    (void)state;
    need_numa();
    char *memory = pages();
    assert_int_equal(dpn_topo_place_on_node(&two_nodes, memory, BYTES, -1), DPN_ERR_SYSTEM);
    assert_int_equal(dpn_topo_place_on_node(&two_nodes, memory, BYTES, DPN_MAX_NODES), DPN_ERR_SYSTEM);
    if (numa_max_node() < DPN_MAX_NODES - 1)
        assert_int_equal(dpn_topo_place_on_node(&two_nodes, memory, BYTES, DPN_MAX_NODES - 1),
                         DPN_ERR_SYSTEM);
    assert_int_equal(dpn_topo_place_on_node(&two_nodes, memory + 1, BYTES - 1, 0), DPN_ERR_SYSTEM);
    dpn_arena_free(memory, BYTES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_node),   cmocka_unit_test(test_place),
        cmocka_unit_test(test_interleave), cmocka_unit_test(test_real_nodes),
        cmocka_unit_test(test_bad_nodes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
