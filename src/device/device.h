/* Devices: where replicas compute. A registry of kinds (cpu; later cuda), and the group of pinned threads
 * that drive them.
 */
#ifndef DPN_DEVICE_DEVICE_H
#define DPN_DEVICE_DEVICE_H

#include <stdatomic.h>
#include <stddef.h>

#include "core/status.h"
#include "core/team.h"
#include "core/wait.h"
#include "kernels/kernels.h"
#include "topo/topo.h"

/* One device of this rank. */
struct dpn_device {
    struct dpn_device_group *group;
    int member; /* position in the --devices list */
    int index;  /* index in the machine's list of units (of a list that wraps round: the unit it came to) */
    struct dpn_cpuset cpus; /* of its team: thread t runs on the t-th of them, modulo their number */
    int node;               /* NUMA node of its memory */
    int threads;            /* team size */
    int pinned;             /* every thread's binding took; -1 before dpn_device_group_run's body */
    const struct dpn_kernels *kernels;
    struct dpn_team *team; /* valid inside dpn_device_group_run's body */
};

struct dpn_device_group {
    const struct dpn_device_class *cls;
    struct dpn_topo *topo;
    enum dpn_unit_kind unit; /* of CPU devices */
    size_t n_units;          /* how many devices of this kind the allowed set has */
    size_t n;
    struct dpn_device *devices;
    int oversubscribed;        /* threads share CPUs, or are more than the CPU quota pays for */
    int node_count;            /* different NUMA nodes among the devices */
    double cpu_quota;          /* 0: none */
    char sharing_warning[160]; /* said once, when the group runs; "" if nothing is shared */
    atomic_int binding_warned, placement_warned; /* one warning a run */
    struct dpn_abort abort;
};

struct dpn_device_request {
    const char *list; /* --devices, without a kind prefix; "all" */
    enum dpn_unit_kind unit;
    int smt, oversubscribe;
    size_t threads_per_device; /* 0: the unit's CPUs, within the quota */
};

/* A kind of device. */
struct dpn_device_class {
    const char *name; /* "cpu" */
    const char *summary;
    /* DPN_OK, or DPN_DECLINED with the reason in the error text. */
    enum dpn_status (*probe)(void);
    /* Fills group->devices (malloc'd), n, n_units, unit, oversubscribed; refuses bad lists (DPN_ERR_USAGE).
     * What it leaves in group->devices on failure is freed by the caller. */
    enum dpn_status (*resolve)(struct dpn_device_group *group, const struct dpn_device_request *request);
    /* An arena that DEVICE will use: page-aligned zero memory, placed on its node. Device's own thread, after
     * binding. */
    enum dpn_status (*alloc)(struct dpn_device *device, void *arena, size_t bytes, const char *what);
    void (*free)(struct dpn_device *device, void *arena, size_t bytes);
    /* Called on the device's thread: binds it, opens its team, runs body, closes. */
    enum dpn_status (*drive)(struct dpn_device_group *group, struct dpn_device *device,
                             enum dpn_status (*body)(void *arg, struct dpn_device *device), void *arg);
};

extern const struct dpn_device_class *const dpn_device_classes[]; /* NULL-terminated, from plugins.def */

/* Resolves --kind and --devices ("0-7", "cpu:0-3", "all") on TOPO (kept, not owned). LIST counts,
 * request->list does not. KIND "auto": the first class that is not "cpu" and probes well, else "cpu". Errors:
 * DPN_ERR_USAGE naming --devices or --kind, the offending token and the valid range; a kind that was not
 * built names the configure flag. GROUP must stay where it is. */
enum dpn_status dpn_device_group_open(struct dpn_device_group *group, struct dpn_topo *topo, const char *kind,
                                      const char *list, const struct dpn_device_request *request,
                                      const struct dpn_kernels *kernels);
void dpn_device_group_close(struct dpn_device_group *group);

/* Runs body(arg, device) once on every device, each on its own pinned thread with its team open; the calling
 * thread is device 0. Returns when all have returned: DPN_OK, or the first failure (its text becomes the
 * caller's). A body that fails raises group->abort, so that nobody waits for it. Failing to start a thread is
 * DPN_ERR_SYSTEM with the numbers wanted and got, and no body has run. The caller's CPU mask is restored.
 * After a failure the group is spent: another run returns the same cause. */
enum dpn_status dpn_device_group_run(struct dpn_device_group *group,
                                     enum dpn_status (*body)(void *arg, struct dpn_device *device),
                                     void *arg);

#endif
