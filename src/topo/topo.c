/* Discovery: asks hwloc once what this machine (or a described one) is, and keeps a plain table of it. */
#include "topo/topo.h"

#include <hwloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "topo/machine.h"

/* Logical index of the object of TYPE that holds PU, NONE if there is none. */
static int topo_ancestor(hwloc_topology_t hwloc, hwloc_obj_type_t type, hwloc_obj_t pu, int none)
{
    hwloc_obj_t obj = hwloc_get_ancestor_obj_by_type(hwloc, type, pu);
    return obj ? (int)obj->logical_index : none;
}

/* The first node whose CPUs include PU: nodes without CPUs never match, of nodes with the same CPUs the first
 * does. */
static hwloc_obj_t topo_node_of(hwloc_topology_t hwloc, hwloc_obj_t pu)
{
    hwloc_obj_t node = NULL;
    while ((node = hwloc_get_next_obj_by_type(hwloc, HWLOC_OBJ_NUMANODE, node)) != NULL)
        if (node->cpuset && hwloc_bitmap_isset(node->cpuset, pu->os_index)) return node;
    return NULL;
}

static struct dpn_topo_pu topo_describe_pu(hwloc_topology_t hwloc, hwloc_obj_t pu)
{
    int n_cores = hwloc_get_nbobjs_by_type(hwloc, HWLOC_OBJ_CORE);
    hwloc_obj_t node = topo_node_of(hwloc, pu);
    return (struct dpn_topo_pu){
        .cpu = pu->os_index,
        .core = topo_ancestor(hwloc, HWLOC_OBJ_CORE, pu, n_cores + (int)pu->logical_index),
        .l3 = topo_ancestor(hwloc, HWLOC_OBJ_L3CACHE, pu, -1),
        .node = node ? (int)node->logical_index : -1,
        .node_os = node ? (int)node->os_index : 0,
        .package = topo_ancestor(hwloc, HWLOC_OBJ_PACKAGE, pu, 0),
    };
}

/* Fills online, allowed and the table. ALLOWED NULL: whatever hwloc says. */
static enum dpn_status topo_list_pus(struct dpn_topo *topo, hwloc_topology_t hwloc,
                                     const struct dpn_cpuset *allowed)
{
    hwloc_const_bitmap_t permitted = hwloc_topology_get_allowed_cpuset(hwloc);
    int n = hwloc_get_nbobjs_by_type(hwloc, HWLOC_OBJ_PU);
    hwloc_obj_t pu = NULL;
    char text[128];

    DPN_TRY(dpn_calloc(&topo->pus, n > 0 ? (size_t)n : 1, sizeof *topo->pus, "list of CPUs"));
    while ((pu = hwloc_get_next_obj_by_type(hwloc, HWLOC_OBJ_PU, pu)) != NULL) {
        if (pu->os_index >= DPN_MAX_CPUS) continue;
        dpn_cpuset_add(&topo->online, pu->os_index);
        if (!hwloc_bitmap_isset(permitted, pu->os_index)) continue;
        if (allowed && !dpn_cpuset_has(allowed, pu->os_index)) continue;
        dpn_cpuset_add(&topo->allowed, pu->os_index);
        topo->pus[topo->n_pus++] = topo_describe_pu(hwloc, pu);
    }
    if (topo->n_pus > 0) return DPN_OK;
    return dpn_fail(DPN_ERR_SYSTEM, "none of the machine's CPUs '%s' may be used by this process",
                    dpn_cpuset_text(&topo->online, text, sizeof text));
}

static void topo_model_from_cpuinfo(char *model, size_t size)
{
    char line[256];
    FILE *file = fopen("/proc/cpuinfo", "re");
    if (!file) return;
    while (fgets(line, sizeof line, file)) {
        const char *value = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !value) continue;
        value += 1 + strspn(value + 1, " \t");
        snprintf(model, size, "%.*s", (int)strcspn(value, "\n"), value);
        break;
    }
    fclose(file);
}

static void topo_find_model(struct dpn_topo *topo, hwloc_topology_t hwloc)
{
    hwloc_obj_t package = hwloc_get_obj_by_type(hwloc, HWLOC_OBJ_PACKAGE, 0);
    const char *model = package ? hwloc_obj_get_info_by_name(package, "CPUModel") : NULL;
    if (!model) model = hwloc_obj_get_info_by_name(hwloc_get_root_obj(hwloc), "CPUModel");
    if (model) snprintf(topo->cpu_model, sizeof topo->cpu_model, "%s", model);
    else if (!topo->synthetic) topo_model_from_cpuinfo(topo->cpu_model, sizeof topo->cpu_model);
}

static enum dpn_status topo_load(hwloc_topology_t hwloc, const char *synthetic)
{
    /* CPUs that are not ours stay in, so that the machine is described whole; I/O objects cost most of the
     * time and nobody asks for them; the x86 component would move this thread from CPU to CPU. */
    hwloc_topology_set_flags(hwloc, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
    hwloc_topology_set_io_types_filter(hwloc, HWLOC_TYPE_FILTER_KEEP_NONE);
    hwloc_topology_set_components(hwloc, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, "x86");
    if (synthetic && hwloc_topology_set_synthetic(hwloc, synthetic) != 0)
        return dpn_fail(DPN_ERR_USAGE, "'%s' does not describe a machine", synthetic);
    if (hwloc_topology_load(hwloc) != 0)
        return dpn_fail(DPN_ERR_SYSTEM, "hwloc cannot tell what this machine is");
    return DPN_OK;
}

static enum dpn_status topo_fill(struct dpn_topo *topo, hwloc_topology_t hwloc,
                                 const struct dpn_cpuset *allowed)
{
    int nodes = hwloc_get_nbobjs_by_type(hwloc, HWLOC_OBJ_NUMANODE);
    int packages = hwloc_get_nbobjs_by_type(hwloc, HWLOC_OBJ_PACKAGE);
    struct dpn_cpuset entry;

    topo->synthetic = !hwloc_topology_is_thissystem(hwloc);
    topo->n_nodes = nodes > 1 ? (size_t)nodes : 1;
    topo->n_packages = packages > 1 ? (size_t)packages : 1;
    topo_find_model(topo, hwloc);
    if (!allowed && !topo->synthetic) {
        dpn_topo_entry_mask(&entry);
        allowed = &entry;
    }
    return topo_list_pus(topo, hwloc, allowed);
}

enum dpn_status dpn_topo_open(struct dpn_topo **topo, const char *synthetic, const struct dpn_cpuset *allowed)
{
    hwloc_topology_t hwloc;
    enum dpn_status status;

    DPN_TRY(dpn_calloc(topo, 1, sizeof **topo, "topology"));
    if (hwloc_topology_init(&hwloc) != 0) {
        status = dpn_fail(DPN_ERR_SYSTEM, "hwloc does not start");
        goto out;
    }
    if ((status = topo_load(hwloc, synthetic)) == DPN_OK) status = topo_fill(*topo, hwloc, allowed);
    hwloc_topology_destroy(hwloc);
out:
    if (status != DPN_OK) {
        dpn_topo_close(*topo);
        *topo = NULL;
    }
    return status;
}

void dpn_topo_close(struct dpn_topo *topo)
{
    if (!topo) return;
    free(topo->pus);
    free(topo);
}

const struct dpn_cpuset *dpn_topo_allowed(const struct dpn_topo *topo)
{
    return &topo->allowed;
}

const struct dpn_cpuset *dpn_topo_online(const struct dpn_topo *topo)
{
    return &topo->online;
}

int dpn_topo_is_synthetic(const struct dpn_topo *topo)
{
    return topo->synthetic;
}

size_t dpn_topo_n_nodes(const struct dpn_topo *topo)
{
    return topo->n_nodes;
}

size_t dpn_topo_n_packages(const struct dpn_topo *topo)
{
    return topo->n_packages;
}

const char *dpn_topo_cpu_model(const struct dpn_topo *topo)
{
    return topo->cpu_model;
}
