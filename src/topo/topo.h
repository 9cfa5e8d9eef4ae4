/* Where this process may run: allowed CPUs, CPU quota, the units that devices are made of, binding, memory
 * placement.
 *
 * The only folder that knows hwloc and libnuma. A synthetic topology (hwloc's description strings) serves
 * tests: everything but binding and memory placement works on it.
 */
#ifndef DPN_TOPO_TOPO_H
#define DPN_TOPO_TOPO_H

#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

enum { DPN_MAX_CPUS = 4096, DPN_MAX_NODES = 256 };

/* A set of operating-system CPU numbers. */
struct dpn_cpuset {
    uint64_t word[DPN_MAX_CPUS / 64];
};
static inline int dpn_cpuset_has(const struct dpn_cpuset *set, unsigned cpu)
{
    return cpu < DPN_MAX_CPUS && (set->word[cpu / 64] >> (cpu % 64) & 1);
}
static inline void dpn_cpuset_add(struct dpn_cpuset *set, unsigned cpu)
{
    if (cpu < DPN_MAX_CPUS) set->word[cpu / 64] |= UINT64_C(1) << (cpu % 64);
}
size_t dpn_cpuset_count(const struct dpn_cpuset *set);
int dpn_cpuset_next(const struct dpn_cpuset *set, int after); /* lowest member > after (-1 to start), or -1 */
const char *dpn_cpuset_text(const struct dpn_cpuset *set, char *buffer,
                            size_t size); /* "0-3,8"; cut with "..." */

/* The affinity mask that the process was started with, recorded (.preinit_array) before any library could
 * shrink it: libgomp with OMP_PROC_BIND or GOMP_CPU_AFFINITY has already done so when main starts. */
void dpn_topo_entry_mask(struct dpn_cpuset *set);

/* CPUs' worth of time that cgroup v2 (cpu.max) or v1 (cpu.cfs_quota_us) grants to this process: the least
 * over its group and all groups above it; 0.0 if unlimited. ROOT replaces "/" in tests
 * (ROOT/proc/self/cgroup, ROOT/proc/self/mountinfo, ROOT/sys/fs/cgroup/...). */
double dpn_topo_cpu_quota(const char *root);

struct dpn_topo;

/* Discovers this machine (SYNTHETIC NULL) or builds hwloc's SYNTHETIC description ("package:2 numa:4 core:8
 * pu:1"). ALLOWED NULL: the entry mask, cut to what the cgroup's cpuset allows; for a synthetic topology all.
 */
enum dpn_status dpn_topo_open(struct dpn_topo **topo, const char *synthetic,
                              const struct dpn_cpuset *allowed);
void dpn_topo_close(struct dpn_topo *topo);
const struct dpn_cpuset *dpn_topo_allowed(const struct dpn_topo *topo);
const struct dpn_cpuset *dpn_topo_online(
    const struct dpn_topo *topo); /* all CPUs of the machine that are on */
/* Not the running machine: built from a description, or hwloc was pointed elsewhere (HWLOC_SYNTHETIC,
 * HWLOC_XMLFILE). */
int dpn_topo_is_synthetic(const struct dpn_topo *topo);
size_t dpn_topo_n_nodes(const struct dpn_topo *topo);        /* NUMA nodes of the machine, at least 1 */
size_t dpn_topo_n_packages(const struct dpn_topo *topo);     /* at least 1 */
const char *dpn_topo_cpu_model(const struct dpn_topo *topo); /* "" if unknown */

enum dpn_unit_kind { DPN_UNIT_AUTO, DPN_UNIT_PACKAGE, DPN_UNIT_NUMA, DPN_UNIT_L3, DPN_UNIT_CORE };
const char *dpn_unit_kind_name(
    enum dpn_unit_kind kind); /* "package", "numa", ... as --cpu-unit spells them */
enum dpn_status dpn_unit_kind_parse(const char *text, enum dpn_unit_kind *kind);

/* A unit: one possible CPU device. */
struct dpn_unit {
    struct dpn_cpuset
        cpus;      /* allowed CPUs to use: one hardware thread a core (the lowest allowed), all with smt */
    size_t n_cpus; /* members of cpus, at least 1 */
    int node;      /* OS number of the NUMA node that holds its first CPU; 0 if unknown */
    int package;   /* logical package index; 0 if unknown */
};
/* The units of KIND of the allowed set, in logical (hardware) order, those without an allowed CPU left out.
 * DPN_UNIT_AUTO: the first of package, numa, l3, core of which the allowed set holds more than one, else
 * core. A kind that the machine does not report (l3) is DPN_ERR_USAGE. A CPU is in one unit of a kind at
 * most: of nodes with the same CPUs (high-bandwidth memory) the first counts. *UNITS is malloc'd; *USED tells
 * the kind taken. An index never depends on a device list. */
enum dpn_status dpn_topo_units(const struct dpn_topo *topo, enum dpn_unit_kind kind, int smt,
                               struct dpn_unit **units, size_t *n_units, enum dpn_unit_kind *used);

/* Binds the calling thread to CPUS and reads the mask back. DPN_ERR_SYSTEM if it did not take (the caller
 * warns once and goes on unpinned: numbers never depend on binding). A synthetic topology binds nothing. */
enum dpn_status dpn_topo_bind_self(const struct dpn_topo *topo, const struct dpn_cpuset *cpus);
/* The calling thread's mask now. */
void dpn_topo_self_mask(struct dpn_cpuset *set);

/* Memory placement (libnuma). All are hints whose failure the caller reports once as a warning:
 * DPN_ERR_SYSTEM. Machines with one node and synthetic topologies: nothing to do, DPN_OK. ADDRESS
 * page-aligned; pages not yet touched obey. */
enum dpn_status dpn_topo_place_on_node(const struct dpn_topo *topo, void *address, size_t bytes, int node);
/* Over the nodes that hold an allowed CPU. */
enum dpn_status dpn_topo_interleave(const struct dpn_topo *topo, void *address, size_t bytes);
/* Pages of the range that lie on NODE, on other nodes, and not yet touched (where there is nothing to do: all
 * on NODE). */
enum dpn_status dpn_topo_verify(const struct dpn_topo *topo, const void *address, size_t bytes, int node,
                                size_t *on_node, size_t *elsewhere, size_t *untouched);

#endif
