/* What is said of where devices run. */
#include "train/placement.h"

#include <string.h>

#include "core/log.h"

enum { PLACEMENT_CPUS_CHARS = 1024 };

/* What a device of the group is: a unit of CPUs, or the kind's own name. */
static const char *placement_unit(const struct dpn_device_group *group)
{
    return strcmp(group->cls->name, "cpu") == 0 ? dpn_unit_kind_name(group->unit) : group->cls->name;
}

void dpn_placement_print(const struct dpn_device_group *group)
{
    char cpus[PLACEMENT_CPUS_CHARS];
    for (size_t i = 0; i < group->n; i++) {
        const struct dpn_device *device = &group->devices[i];
        dpn_note("device %d | %s %d | CPUs %s | node %d | %d thread%s%s", device->member,
                 placement_unit(group), device->index, dpn_cpuset_text(&device->cpus, cpus, sizeof cpus),
                 device->node, device->threads, device->threads == 1 ? "" : "s",
                 device->pinned < 0 ? ""
                 : device->pinned   ? " | pinned"
                                    : " | not pinned");
    }
}

void dpn_placement_json(const struct dpn_device_group *group, struct dpn_json *json)
{
    char cpus[PLACEMENT_CPUS_CHARS];
    dpn_json_open_array(json, "devices");
    for (size_t i = 0; i < group->n; i++) {
        const struct dpn_device *device = &group->devices[i];
        dpn_json_open_object(json, NULL);
        dpn_json_i64(json, "device", device->member);
        dpn_json_string(json, "kind", group->cls->name);
        dpn_json_string(json, "unit", placement_unit(group));
        dpn_json_i64(json, "index", device->index);
        dpn_json_string(json, "cpus", dpn_cpuset_text(&device->cpus, cpus, sizeof cpus));
        dpn_json_i64(json, "node", device->node);
        dpn_json_i64(json, "threads", device->threads);
        if (device->pinned >= 0) dpn_json_bool(json, "pinned", device->pinned);
        dpn_json_close_object(json);
    }
    dpn_json_close_array(json);
}
