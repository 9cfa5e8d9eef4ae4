/* Where the devices of a group run, for people and for the log.
 *
 * Whether threads are pinned is known, and said, once dpn_device_group_run's body has started.
 */
#ifndef DPN_TRAIN_PLACEMENT_H
#define DPN_TRAIN_PLACEMENT_H

#include "core/json.h"
#include "device/device.h"

/* A note a device: "device 0 | core 0 | CPUs 0 | node 0 | 1 thread | pinned". */
void dpn_placement_print(const struct dpn_device_group *group);

/* Adds an array "devices" to the open object of JSON. */
void dpn_placement_json(const struct dpn_device_group *group, struct dpn_json *json);

#endif
