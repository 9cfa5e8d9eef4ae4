/* The registry of device kinds, and the group of threads that drive the devices of a run. */
#include "device/device.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/parse.h"

static const struct dpn_device_class *device_find_class(const char *name)
{
    for (size_t i = 0; dpn_device_classes[i]; i++)
        if (strcmp(dpn_device_classes[i]->name, name) == 0) return dpn_device_classes[i];
    return NULL;
}

/* Any other kind that was built and finds hardware goes before CPUs. */
static enum dpn_status device_choose_auto(const struct dpn_device_class **cls)
{
    for (size_t i = 0; dpn_device_classes[i]; i++) {
        *cls = dpn_device_classes[i];
        if (strcmp((*cls)->name, "cpu") != 0 && (*cls)->probe() == DPN_OK) return DPN_OK;
    }
    if ((*cls = device_find_class("cpu")) != NULL) return DPN_OK;
    return dpn_fail(DPN_ERR_USAGE, "--kind 'auto': no kind of device can serve here");
}

/* The class called NAME; OPTION and VALUE are what the user wrote. */
static enum dpn_status device_choose_named(const char *option, const char *value, const char *name,
                                           const struct dpn_device_class **cls)
{
    char quoted[DPN_QUOTE_BYTES];
    if ((*cls = device_find_class(name)) != NULL) {
        enum dpn_status status = (*cls)->probe();
        if (status != DPN_DECLINED) return status;
        char reason[512];
        strncpy(reason, dpn_error_text(), sizeof reason - 1);
        reason[sizeof reason - 1] = '\0';
        return dpn_fail(DPN_ERR_USAGE, "%s %s: %s", option, dpn_quote(value, quoted), reason);
    }
    if (strcmp(name, "cuda") == 0)
        return dpn_fail(DPN_ERR_USAGE, "%s %s: this dpnode was built without CUDA (configure --with-cuda)",
                        option, dpn_quote(value, quoted));
    return dpn_fail(DPN_ERR_USAGE, "%s %s: no such kind of device (cpu, cuda)", option,
                    dpn_quote(value, quoted));
}

/* Chooses the class by KIND and by a prefix of LIST ("cpu:0-3"); *INDICES is LIST without it. */
static enum dpn_status device_choose(const char *kind, const char *list, const struct dpn_device_class **cls,
                                     const char **indices)
{
    const char *colon = strchr(list, ':');
    int is_auto = strcmp(kind, "auto") == 0;
    char prefix[32], quoted[DPN_QUOTE_BYTES], quoted_kind[DPN_QUOTE_BYTES];

    *indices = colon ? colon + 1 : list;
    if (!colon) return is_auto ? device_choose_auto(cls) : device_choose_named("--kind", kind, kind, cls);
    size_t length = (size_t)(colon - list);
    if (length >= sizeof prefix) length = sizeof prefix - 1;
    memcpy(prefix, list, length);
    prefix[length] = '\0';
    DPN_TRY(device_choose_named("--devices", list, prefix, cls));
    if (is_auto || strcmp(kind, prefix) == 0) return DPN_OK;
    return dpn_fail(DPN_ERR_USAGE, "--devices %s does not agree with --kind %s", dpn_quote(list, quoted),
                    dpn_quote(kind, quoted_kind));
}

static int device_count_nodes(const struct dpn_device_group *group)
{
    int count = 0;
    for (size_t i = 0; i < group->n; i++) {
        size_t first = 0;
        while (group->devices[first].node != group->devices[i].node) first++;
        count += first == i;
    }
    return count;
}

enum dpn_status dpn_device_group_open(struct dpn_device_group *group, struct dpn_topo *topo, const char *kind,
                                      const char *list, const struct dpn_device_request *request,
                                      const struct dpn_kernels *kernels)
{
    struct dpn_device_request resolved = *request;

    memset(group, 0, sizeof *group);
    group->topo = topo;
    /* A described machine is not the one whose control group we are in. */
    group->cpu_quota = dpn_topo_is_synthetic(topo) ? 0 : dpn_topo_cpu_quota("/");
    DPN_TRY(device_choose(kind && kind[0] ? kind : "auto", list && list[0] ? list : "all", &group->cls,
                          &resolved.list));
    enum dpn_status status = group->cls->resolve(group, &resolved);
    if (status != DPN_OK) {
        dpn_device_group_close(group);
        return status;
    }
    for (size_t i = 0; i < group->n; i++) {
        struct dpn_device *device = &group->devices[i];
        device->group = group;
        device->member = (int)i;
        device->pinned = -1;
        device->kernels = kernels;
    }
    group->node_count = device_count_nodes(group);
    dpn_wait_set_oversubscribed(group->oversubscribed);
    return DPN_OK;
}

void dpn_device_group_close(struct dpn_device_group *group)
{
    free(group->devices);
    group->devices = NULL;
    group->n = 0;
}

/* What one call of dpn_device_group_run shares. */
struct device_run {
    struct dpn_device_group *group;
    enum dpn_status (*body)(void *arg, struct dpn_device *device);
    void *arg;
    struct dpn_flag gate; /* opens once all threads exist: no body runs if one could not be had */
};

struct device_thread {
    struct device_run *run;
    struct dpn_device *device;
    pthread_t thread;
};

static void device_drive(struct device_run *run, struct dpn_device *device)
{
    enum dpn_status status = run->group->cls->drive(run->group, device, run->body, run->arg);
    if (status != DPN_OK) dpn_abort_raise(&run->group->abort, status);
}

static void *device_main(void *arg)
{
    struct device_thread *self = arg;
    if (dpn_flag_wait(&self->run->gate, 1, &self->run->group->abort) == DPN_OK)
        device_drive(self->run, self->device);
    return NULL;
}

/* Starts the threads of devices 1, 2, ... and opens the gate; else raises the group's abort, which makes them
 * leave. Returns how many threads there are to join. */
static size_t device_start_threads(struct device_run *run, struct device_thread *threads)
{
    struct dpn_device_group *group = run->group;
    for (size_t i = 1; i < group->n; i++) {
        threads[i].run = run;
        threads[i].device = &group->devices[i];
        int error = pthread_create(&threads[i].thread, NULL, device_main, &threads[i]);
        if (error == 0) continue;
        dpn_fail_errno(DPN_ERR_SYSTEM, error, "--devices: %zu device threads wanted, %zu obtained", group->n,
                       i);
        dpn_abort_raise(&group->abort, DPN_ERR_SYSTEM);
        return i;
    }
    dpn_flag_add(&run->gate, 1);
    return group->n;
}

enum dpn_status dpn_device_group_run(struct dpn_device_group *group,
                                     enum dpn_status (*body)(void *arg, struct dpn_device *device), void *arg)
{
    struct device_run run = {.group = group, .body = body, .arg = arg};
    struct device_thread *threads;
    struct dpn_cpuset before;

    if (dpn_abort_raised(&group->abort)) return dpn_abort_cause(&group->abort);
    DPN_TRY(dpn_calloc(&threads, group->n, sizeof *threads, "device threads"));
    if (*group->sharing_warning) dpn_warn("%s", group->sharing_warning);
    dpn_topo_self_mask(&before);
    size_t n_threads = device_start_threads(&run, threads);
    if (n_threads == group->n) device_drive(&run, &group->devices[0]);
    for (size_t i = 1; i < n_threads; i++) pthread_join(threads[i].thread, NULL);
    /* Later threads (a helper, another run) must not inherit device 0's CPU; nothing is lost if it fails. */
    (void)dpn_topo_bind_self(group->topo, &before);
    free(threads);
    return dpn_abort_cause(&group->abort);
}
