/* CPU devices.
 *
 * Idea: a device is a unit of the allowed CPUs (package, NUMA node, L3 group, core) with a team of threads,
 *   one a CPU.
 * Cost: one pthread a device; one OpenMP region a device whose team has more than one thread.
 * Bytes moved: none, devices share the address space.
 * Determinism: where threads run, how many there are and whether binding took never changes a number.
 * Limits: binding and memory placement are hints; where they fail the run goes on, with one warning.
 */
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/parse.h"
#include "device/device.h"

static enum dpn_status cpu_probe(void)
{
    return DPN_OK;
}

/* Parses the list. A complaint that oversubscription would silence says so. */
static enum dpn_status cpu_parse_list(const struct dpn_device_request *request, size_t n_units, int **indices,
                                      size_t *n)
{
    int over = request->oversubscribe, *ignored;
    size_t n_ignored;
    char reason[768];
    enum dpn_status status = dpn_parse_index_list("--devices", request->list, n_units, over, over, indices,
                                                  n);
    if (status != DPN_ERR_USAGE || over) return status;
    strncpy(reason, dpn_error_text(), sizeof reason - 1);
    reason[sizeof reason - 1] = '\0';
    if (dpn_parse_index_list("--devices", request->list, n_units, 1, 1, &ignored, &n_ignored) != DPN_OK)
        return dpn_fail(status, "%s", reason);
    free(ignored);
    return dpn_fail(status, "%s (--oversubscribe lets devices share units)", reason);
}

/* The unit's CPUs, within the quota; 1 where units are shared; or what was asked for. */
static size_t cpu_team_size(const struct dpn_device_group *group, const struct dpn_device_request *request,
                            const struct dpn_unit *unit, int shared)
{
    if (request->threads_per_device > 0) return request->threads_per_device;
    if (shared) return 1;
    size_t share = unit->n_cpus;
    if (group->cpu_quota > 0 && group->cpu_quota / (double)group->n < (double)share)
        share = (size_t)floor(group->cpu_quota / (double)group->n);
    return share > 0 ? share : 1;
}

/* THREADS CPUs of UNIT from its FIRST-th on, wrapping round. */
static struct dpn_cpuset cpu_pick(const struct dpn_unit *unit, size_t first, size_t threads)
{
    struct dpn_cpuset picked = {{0}};
    size_t position = 0;
    if (threads >= unit->n_cpus) return unit->cpus;
    for (int cpu = dpn_cpuset_next(&unit->cpus, -1); cpu >= 0; cpu = dpn_cpuset_next(&unit->cpus, cpu)) {
        size_t distance = (position++ + unit->n_cpus - first % unit->n_cpus) % unit->n_cpus;
        if (distance < threads) dpn_cpuset_add(&picked, (unsigned)cpu);
    }
    return picked;
}

/* How the devices of a list weigh on the units. */
struct cpu_load {
    size_t units;   /* with a device on them */
    size_t threads; /* of all devices */
    int cpus_shared;
};

static void cpu_warn(struct dpn_device_group *group, const struct cpu_load *load)
{
    const char *unit = dpn_unit_kind_name(group->unit);
    char *text = group->sharing_warning;
    if (load->units < group->n)
        snprintf(text, sizeof group->sharing_warning, "--oversubscribe: %zu devices share %zu %s unit%s",
                 group->n, load->units, unit, load->units == 1 ? "" : "s");
    else if (load->cpus_shared)
        snprintf(text, sizeof group->sharing_warning,
                 "--threads-per-device %d: more threads than a %s unit has CPUs, they share them",
                 group->devices[0].threads, unit);
    else if (group->cpu_quota > 0 && (double)load->threads > group->cpu_quota)
        snprintf(text, sizeof group->sharing_warning,
                 "the CPU quota pays for %.2f CPUs, less than the run's %zu thread%s: it will be throttled",
                 group->cpu_quota, load->threads, load->threads == 1 ? "" : "s");
}

/* Gives every device of INDICES its unit, CPUs and team. TAKEN: zeroed, one a unit. */
static void cpu_assign(struct dpn_device_group *group, const struct dpn_device_request *request,
                       const struct dpn_unit *units, const int *indices, size_t *taken)
{
    struct cpu_load load = {0};
    for (size_t i = 0; i < group->n; i++) load.units += taken[(size_t)indices[i] % group->n_units]++ == 0;
    memset(taken, 0, group->n_units * sizeof *taken);
    for (size_t i = 0; i < group->n; i++) {
        struct dpn_device *device = &group->devices[i];
        size_t index = (size_t)indices[i] % group->n_units;
        const struct dpn_unit *unit = &units[index];
        size_t threads = cpu_team_size(group, request, unit, load.units < group->n);
        device->index = (int)index;
        device->node = unit->node;
        device->threads = (int)threads;
        device->cpus = cpu_pick(unit, taken[index], threads);
        taken[index] += threads;
        load.threads += threads;
        load.cpus_shared |= taken[index] > unit->n_cpus;
    }
    /* Beyond the quota threads that wait by spinning would use up what the working ones are granted. */
    group->oversubscribed = load.cpus_shared ||
                            (group->cpu_quota > 0 && (double)load.threads > group->cpu_quota);
    cpu_warn(group, &load);
}

static enum dpn_status cpu_resolve(struct dpn_device_group *group, const struct dpn_device_request *request)
{
    struct dpn_unit *units = NULL;
    int *indices = NULL;
    size_t *taken = NULL;
    enum dpn_status status;

    if (request->threads_per_device > DPN_MAX_CPUS)
        return dpn_fail(DPN_ERR_USAGE, "--threads-per-device '%zu' is more than %d",
                        request->threads_per_device, DPN_MAX_CPUS);
    status = dpn_topo_units(group->topo, request->unit, request->smt, &units, &group->n_units, &group->unit);
    if (status != DPN_OK) return status;
    if ((status = cpu_parse_list(request, group->n_units, &indices, &group->n)) != DPN_OK) goto out;
    if ((status = dpn_calloc(&group->devices, group->n, sizeof *group->devices, "devices")) != DPN_OK)
        goto out;
    if ((status = dpn_calloc(&taken, group->n_units, sizeof *taken, "devices")) != DPN_OK) goto out;
    cpu_assign(group, request, units, indices, taken);
out:
    free(taken);
    free(indices);
    free(units);
    return status;
}

static void cpu_warn_placement(struct dpn_device *device, const char *what)
{
    if (atomic_exchange(&device->group->placement_warned, 1) == 0)
        dpn_warn("memory of device %d (%s) is not all on NUMA node %d: %s", device->member, what,
                 device->node, dpn_error_text());
}

static enum dpn_status cpu_alloc(struct dpn_device *device, void *arena, size_t bytes, const char *what)
{
    const struct dpn_topo *topo = device->group->topo;
    size_t on_node, elsewhere, untouched;
    char *address;

    DPN_TRY(dpn_arena_alloc(arena, bytes, what));
    memcpy(&address, arena, sizeof address);
    if (dpn_topo_place_on_node(topo, address, bytes, device->node) != DPN_OK)
        cpu_warn_placement(device, what);
    for (size_t offset = 0; offset < bytes; offset += DPN_PAGE_BYTES) ((volatile char *)address)[offset] = 0;
    if (dpn_topo_verify(topo, address, bytes, device->node, &on_node, &elsewhere, &untouched) == DPN_OK &&
        elsewhere > 0) {
        dpn_fail(DPN_ERR_SYSTEM, "%zu of %zu pages lie elsewhere", elsewhere,
                 on_node + elsewhere + untouched);
        cpu_warn_placement(device, what);
    }
    return DPN_OK;
}

static void cpu_free(struct dpn_device *device, void *arena, size_t bytes)
{
    (void)device;
    dpn_arena_free(arena, bytes);
}

/* A device being driven. */
struct cpu_driven {
    struct dpn_device *device;
    enum dpn_status (*body)(void *arg, struct dpn_device *device);
    void *arg;
    atomic_int unpinned; /* threads whose binding did not take */
};

/* The THREAD-th CPU of the device, modulo their number. */
static struct dpn_cpuset cpu_of_thread(const struct dpn_device *device, int thread)
{
    struct dpn_cpuset one = {{0}};
    int cpu = -1;
    for (int left = thread % (int)dpn_cpuset_count(&device->cpus); left >= 0; left--)
        cpu = dpn_cpuset_next(&device->cpus, cpu);
    dpn_cpuset_add(&one, (unsigned)cpu);
    return one;
}

static void cpu_bind(struct cpu_driven *driven, int thread)
{
    struct dpn_device *device = driven->device;
    struct dpn_cpuset one = cpu_of_thread(device, thread);
    if (dpn_topo_bind_self(device->group->topo, &one) == DPN_OK) return;
    atomic_fetch_add(&driven->unpinned, 1);
    if (atomic_exchange(&device->group->binding_warned, 1) == 0)
        dpn_warn("device %d, thread %d: %s; going on unpinned", device->member, thread, dpn_error_text());
}

/* First thing of every thread of a team. */
static void cpu_enter(void *arg, int thread)
{
    cpu_bind(arg, thread);
    dpn_kernels_thread_init();
    dpn_blas_thread_init();
}

static enum dpn_status cpu_body(void *arg, struct dpn_team *team)
{
    struct cpu_driven *driven = arg;
    struct dpn_device *device = driven->device;
    /* Again: with OMP_PROC_BIND or GOMP_CPU_AFFINITY libgomp has moved this thread when it opened the region.
     */
    cpu_bind(driven, 0);
    device->pinned = !dpn_topo_is_synthetic(device->group->topo) && atomic_load(&driven->unpinned) == 0;
    device->team = team;
    enum dpn_status status = driven->body(driven->arg, device);
    device->team = NULL;
    return status;
}

static enum dpn_status cpu_drive(struct dpn_device_group *group, struct dpn_device *device,
                                 enum dpn_status (*body)(void *arg, struct dpn_device *device), void *arg)
{
    struct cpu_driven driven = {.device = device, .body = body, .arg = arg};
    cpu_enter(&driven, 0);
    return dpn_team_open(device->threads, cpu_enter, &driven, &group->abort, cpu_body, &driven);
}

const struct dpn_device_class dpn_device_cpu = {
    .name = "cpu",
    .summary = "units of the allowed CPUs, each with a team of threads",
    .probe = cpu_probe,
    .resolve = cpu_resolve,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .drive = cpu_drive,
};
