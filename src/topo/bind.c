/* Binding the calling thread, checked by reading back. */
#include <errno.h>
#include <sched.h>
#include <string.h>

#include "topo/machine.h"

/* The kernel refuses to report into less room than the CPUs that it was built for (8,192 at most). */
enum { BIND_SETS = 8192 / CPU_SETSIZE };
struct bind_mask {
    cpu_set_t sets[BIND_SETS];
};

void dpn_topo_self_mask(struct dpn_cpuset *set)
{
    struct bind_mask mask;
    memset(set, 0, sizeof *set);
    memset(&mask, 0, sizeof mask);
    if (sched_getaffinity(0, sizeof mask, mask.sets) != 0) return;
    for (unsigned cpu = 0; cpu < DPN_MAX_CPUS; cpu++)
        if (CPU_ISSET_S(cpu, sizeof mask, mask.sets)) dpn_cpuset_add(set, cpu);
}

enum dpn_status dpn_topo_bind_self(const struct dpn_topo *topo, const struct dpn_cpuset *cpus)
{
    struct bind_mask mask;
    struct dpn_cpuset got;
    char wanted_text[128], got_text[128];

    if (topo->synthetic) return DPN_OK;
    memset(&mask, 0, sizeof mask);
    for (int cpu = dpn_cpuset_next(cpus, -1); cpu >= 0; cpu = dpn_cpuset_next(cpus, cpu))
        CPU_SET_S((size_t)cpu, sizeof mask, mask.sets);
    dpn_cpuset_text(cpus, wanted_text, sizeof wanted_text);
    if (sched_setaffinity(0, sizeof mask, mask.sets) != 0)
        return dpn_fail_errno(DPN_ERR_SYSTEM, errno, "binding to CPUs '%s' failed", wanted_text);
    /* The kernel silently leaves out what the cpuset forbids. */
    dpn_topo_self_mask(&got);
    if (memcmp(&got, cpus, sizeof got) != 0)
        return dpn_fail(DPN_ERR_SYSTEM, "binding to CPUs '%s' gave CPUs '%s'", wanted_text,
                        dpn_cpuset_text(&got, got_text, sizeof got_text));
    return DPN_OK;
}
