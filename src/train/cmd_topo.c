/* `dpnode topo`: this machine as dpnode sees it, and where a --devices list would run. */
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "train/command.h"
#include "train/placement.h"

enum { TOPO_CPUS_CHARS = 1024 };

static const char *topo_plural(size_t n)
{
    return n == 1 ? "" : "s";
}

static void topo_print_machine(const struct dpn_topo *topo, double quota)
{
    char allowed[TOPO_CPUS_CHARS], online[TOPO_CPUS_CHARS];
    size_t packages = dpn_topo_n_packages(topo), nodes = dpn_topo_n_nodes(topo);
    const char *model = dpn_topo_cpu_model(topo);

    dpn_note("machine   %zu package%s, %zu NUMA node%s, %s%s", packages, topo_plural(packages), nodes,
             topo_plural(nodes), model[0] ? model : "unknown CPU model",
             dpn_topo_is_synthetic(topo) ? " (described, not this machine)" : "");
    dpn_note("CPUs      %s allowed (%zu), %s online (%zu)",
             dpn_cpuset_text(dpn_topo_allowed(topo), allowed, sizeof allowed),
             dpn_cpuset_count(dpn_topo_allowed(topo)),
             dpn_cpuset_text(dpn_topo_online(topo), online, sizeof online),
             dpn_cpuset_count(dpn_topo_online(topo)));
    if (quota > 0) dpn_note("quota     %.2f CPUs", quota);
    else dpn_note("quota     none");
}

static void topo_print_gpus(void)
{
    for (size_t i = 0; dpn_device_classes[i]; i++) {
        if (strcmp(dpn_device_classes[i]->name, "cuda") != 0) continue;
        enum dpn_status status = dpn_device_classes[i]->probe();
        dpn_note("GPUs      %s", status == DPN_OK ? "present (--kind cuda)" : dpn_error_text());
        return;
    }
    dpn_note("GPUs      none (built without CUDA)");
}

static enum dpn_status topo_print_units(const struct dpn_topo *topo, enum dpn_unit_kind kind, int smt)
{
    char cpus[TOPO_CPUS_CHARS];
    struct dpn_unit *units = NULL;
    enum dpn_unit_kind used;
    size_t n = 0;

    enum dpn_status status = dpn_topo_units(topo, kind, smt, &units, &n, &used);
    /* DPN_ERR_USAGE: a kind that this machine has not. */
    if (status != DPN_OK && status != DPN_ERR_USAGE) return status;
    dpn_note("%s", "");
    dpn_note("--cpu-unit %s: %zu", dpn_unit_kind_name(kind), n);
    if (n == 0) return DPN_OK;
    dpn_note("  index  package  node  CPUs");
    for (size_t i = 0; i < n; i++)
        dpn_note("  %5zu  %7d  %4d  %s", i, units[i].package, units[i].node,
                 dpn_cpuset_text(&units[i].cpus, cpus, sizeof cpus));
    free(units);
    return DPN_OK;
}

static enum dpn_status topo_body(void *arg, struct dpn_device *device)
{
    (void)arg;
    (void)device;
    return DPN_OK;
}

static enum dpn_status topo_print_all(const struct dpn_topo *topo, struct dpn_device_group *group,
                                      const struct dpn_config *config)
{
    /* The group knows its quota; a body that does nothing tells whether binding takes. */
    DPN_TRY(dpn_device_group_run(group, topo_body, NULL));
    topo_print_machine(topo, group->cpu_quota);
    topo_print_gpus();
    for (enum dpn_unit_kind kind = DPN_UNIT_PACKAGE; kind <= DPN_UNIT_CORE; kind++)
        DPN_TRY(topo_print_units(topo, kind, config->smt));
    dpn_note("%s", "");
    dpn_note("--devices %s: %zu of %zu", config->devices, group->n, group->n_units);
    dpn_placement_print(group);
    return DPN_OK;
}

static enum dpn_status topo_run(struct dpn_config *config, const char *positional, int *exit_status)
{
    struct dpn_device_request request = {.smt = config->smt,
                                         .oversubscribe = config->oversubscribe,
                                         .threads_per_device = (size_t)config->threads_per_device};
    struct dpn_device_group group;
    struct dpn_topo *topo;

    (void)positional;
    (void)exit_status;
    DPN_TRY(dpn_unit_kind_parse(config->cpu_unit, &request.unit));
    DPN_TRY(dpn_topo_open(&topo, NULL, NULL));
    /* The list first: a bad one is refused before anything is printed. */
    enum dpn_status status = dpn_device_group_open(&group, topo, config->kind, config->devices, &request,
                                                   &dpn_kernels_ref);
    if (status == DPN_OK) {
        status = topo_print_all(topo, &group, config);
        dpn_device_group_close(&group);
    }
    dpn_topo_close(topo);
    return status;
}

const struct dpn_command dpn_command_topo = {
    .name = "topo",
    .summary =
        "show allowed CPUs, NUMA nodes, units and GPUs with their indices, and where --devices would run",
    .mask = DPN_CMD_TOPO,
    .run = topo_run,
};
