/* Which NUMA node memory lies on. */
#include <errno.h>
#include <numa.h>
#include <numaif.h>

#include "core/memory.h"
#include "topo/machine.h"

enum { PLACEMENT_LONG_BITS = 8 * sizeof(unsigned long), PLACEMENT_CHUNK = 512 };

struct placement_nodes {
    unsigned long word[DPN_MAX_NODES / PLACEMENT_LONG_BITS];
};

static int placement_add(struct placement_nodes *nodes, int node)
{
    if (node < 0 || node >= DPN_MAX_NODES) return 0;
    nodes->word[(size_t)node / PLACEMENT_LONG_BITS] |= 1ul << ((size_t)node % PLACEMENT_LONG_BITS);
    return 1;
}

static int placement_idle(const struct dpn_topo *topo)
{
    return topo->synthetic || topo->n_nodes < 2;
}

static enum dpn_status placement_set(void *address, size_t bytes, int policy,
                                     const struct placement_nodes *nodes)
{
    if (numa_available() < 0) return dpn_fail(DPN_ERR_SYSTEM, "the kernel offers no NUMA memory policy");
    /* mbind counts one bit less than it is told. */
    if (mbind(address, bytes, policy, nodes->word, DPN_MAX_NODES + 1, 0) != 0)
        return dpn_fail_errno(DPN_ERR_SYSTEM, errno, "placing %zu bytes of memory on its NUMA node failed",
                              bytes);
    return DPN_OK;
}

enum dpn_status dpn_topo_place_on_node(const struct dpn_topo *topo, void *address, size_t bytes, int node)
{
    struct placement_nodes nodes = {{0}};
    if (placement_idle(topo) || bytes == 0) return DPN_OK;
    if (!placement_add(&nodes, node)) return dpn_fail(DPN_ERR_SYSTEM, "no NUMA node %d", node);
    /* Preferred, not bound: a full node must not kill the run. */
    return placement_set(address, bytes, MPOL_PREFERRED, &nodes);
}

enum dpn_status dpn_topo_interleave(const struct dpn_topo *topo, void *address, size_t bytes)
{
    struct placement_nodes nodes = {{0}};
    if (placement_idle(topo) || bytes == 0) return DPN_OK;
    for (size_t i = 0; i < topo->n_pus; i++) placement_add(&nodes, topo->pus[i].node_os);
    return placement_set(address, bytes, MPOL_INTERLEAVE, &nodes);
}

enum dpn_status dpn_topo_verify(const struct dpn_topo *topo, const void *address, size_t bytes, int node,
                                size_t *on_node, size_t *elsewhere, size_t *untouched)
{
    size_t n_pages = (bytes + DPN_PAGE_BYTES - 1) / DPN_PAGE_BYTES;
    *on_node = *elsewhere = *untouched = 0;
    if (placement_idle(topo)) {
        *on_node = n_pages;
        return DPN_OK;
    }
    if (numa_available() < 0) return dpn_fail(DPN_ERR_SYSTEM, "the kernel does not tell where memory lies");
    for (size_t first = 0; first < n_pages; first += PLACEMENT_CHUNK) {
        size_t count = n_pages - first < PLACEMENT_CHUNK ? n_pages - first : PLACEMENT_CHUNK;
        void *pages[PLACEMENT_CHUNK];
        int where[PLACEMENT_CHUNK];
        for (size_t i = 0; i < count; i++)
            pages[i] = (char *)(uintptr_t)address + (first + i) * DPN_PAGE_BYTES;
        if (move_pages(0, count, pages, NULL, where, 0) != 0)
            return dpn_fail_errno(DPN_ERR_SYSTEM, errno, "asking where memory lies failed");
        for (size_t i = 0; i < count; i++) {
            size_t *counter = where[i] < 0 ? untouched : where[i] == node ? on_node : elsewhere;
            (*counter)++;
        }
    }
    return DPN_OK;
}
