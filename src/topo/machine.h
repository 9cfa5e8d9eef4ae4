/* What is kept of a machine once hwloc has described it. Private to src/topo and its tests.
 */
#ifndef DPN_TOPO_MACHINE_H
#define DPN_TOPO_MACHINE_H

#include <stddef.h>

#include "topo/topo.h"

/* An allowed hardware thread and the objects that hold it, by logical (hardware-order) index. */
struct dpn_topo_pu {
    unsigned cpu; /* OS number */
    int core;     /* a number of its own where the machine reports no cores */
    int l3;       /* -1: in no L3 cache */
    int node;     /* -1: on no NUMA node */
    int node_os;  /* OS number of that node, 0 if none */
    int package;
};

struct dpn_topo {
    struct dpn_cpuset online, allowed;
    struct dpn_topo_pu *pus; /* the allowed ones, in logical order */
    size_t n_pus, n_nodes, n_packages;
    int synthetic;
    char cpu_model[128];
};

#endif
