/* The affinity mask at process entry, taken before any library's constructor could change it. */
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "topo/topo.h"

/* The kernel wants room for all CPUs that it was built for; 8,192 is the most it can be built for. */
enum { ENTRY_KERNEL_CPUS = 8192, ENTRY_LONG_BITS = 8 * sizeof(unsigned long) };
static unsigned long entry_mask[ENTRY_KERNEL_CPUS / ENTRY_LONG_BITS];
static long entry_bytes;

/* Runs before the sanitizers' run-time libraries are set up, hence uninstrumented, and by the plain system
 * call: they intercept sched_getaffinity. */
__attribute__((no_sanitize("address", "thread", "undefined"))) static void entry_record(void)
{
    entry_bytes = syscall(SYS_sched_getaffinity, 0, sizeof entry_mask, entry_mask);
}

__attribute__((section(".preinit_array"), used)) static void (*const entry_hook)(void) = entry_record;

void dpn_topo_entry_mask(struct dpn_cpuset *set)
{
    memset(set, 0, sizeof *set);
    if (entry_bytes <= 0) {
        dpn_topo_self_mask(set);
        return;
    }
    for (unsigned cpu = 0; cpu < DPN_MAX_CPUS; cpu++)
        if (entry_mask[cpu / ENTRY_LONG_BITS] >> (cpu % ENTRY_LONG_BITS) & 1) dpn_cpuset_add(set, cpu);
}
