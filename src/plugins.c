/* Expands plugins.def into the registries' arrays. */
#include "data/data.h"
#include "device/device.h"
#include "nn/nn.h"
#include "reduce/reduce.h"
#include "train/command.h"
#include "train/trainer.h"

/* Each pass gives DPN_PLUGIN one registry's meaning: SELECT(registry) keeps the lines of that registry. */
#define DPN_TYPE_device    struct dpn_device_class
#define DPN_TYPE_reducer   struct dpn_reducer_class
#define DPN_TYPE_op        struct dpn_op_class
#define DPN_TYPE_model     struct dpn_model_class
#define DPN_TYPE_optimizer struct dpn_optimizer_class
#define DPN_TYPE_dataset   struct dpn_dataset_class
#define DPN_TYPE_mode      struct dpn_mode_class
#define DPN_TYPE_command   struct dpn_command

#define DPN_PLUGIN(registry, symbol) extern const DPN_TYPE_##registry dpn_##registry##_##symbol;
#include "plugins.def"
#undef DPN_PLUGIN

/* KEEP_<registry> is defined to `x,` while that registry's array is written and to nothing for the others. */
#define DPN_PLUGIN(registry, symbol) DPN_KEEP_##registry(&dpn_##registry##_##symbol)
#define DPN_NOTHING(x)
#define DPN_ITEM(x) x,

#define DPN_KEEP_device(x)    DPN_NOTHING(x)
#define DPN_KEEP_reducer(x)   DPN_NOTHING(x)
#define DPN_KEEP_op(x)        DPN_NOTHING(x)
#define DPN_KEEP_model(x)     DPN_NOTHING(x)
#define DPN_KEEP_optimizer(x) DPN_NOTHING(x)
#define DPN_KEEP_dataset(x)   DPN_NOTHING(x)
#define DPN_KEEP_mode(x)      DPN_NOTHING(x)
#define DPN_KEEP_command(x)   DPN_NOTHING(x)

#undef DPN_KEEP_device
#define DPN_KEEP_device(x) DPN_ITEM(x)
const struct dpn_device_class *const dpn_device_classes[] = {
#include "plugins.def"
    NULL};
#undef DPN_KEEP_device
#define DPN_KEEP_device(x) DPN_NOTHING(x)

#undef DPN_KEEP_reducer
#define DPN_KEEP_reducer(x) DPN_ITEM(x)
const struct dpn_reducer_class *const dpn_reducer_classes[] = {
#include "plugins.def"
    NULL};
#undef DPN_KEEP_reducer
#define DPN_KEEP_reducer(x) DPN_NOTHING(x)

#undef DPN_KEEP_op
#define DPN_KEEP_op(x) DPN_ITEM(x)
const struct dpn_op_class *const dpn_op_classes[] = {
#include "plugins.def"
    NULL};
#undef DPN_KEEP_op
#define DPN_KEEP_op(x) DPN_NOTHING(x)

#undef DPN_KEEP_model
#define DPN_KEEP_model(x) DPN_ITEM(x)
const struct dpn_model_class *const dpn_model_classes[] = {
#include "plugins.def"
    NULL};
#undef DPN_KEEP_model
#define DPN_KEEP_model(x) DPN_NOTHING(x)

#undef DPN_KEEP_optimizer
#define DPN_KEEP_optimizer(x) DPN_ITEM(x)
const struct dpn_optimizer_class *const dpn_optimizer_classes[] = {
#include "plugins.def"
    NULL};
#undef DPN_KEEP_optimizer
#define DPN_KEEP_optimizer(x) DPN_NOTHING(x)

#undef DPN_KEEP_dataset
#define DPN_KEEP_dataset(x) DPN_ITEM(x)
const struct dpn_dataset_class *const dpn_dataset_classes[] = {
#include "plugins.def"
    NULL};
#undef DPN_KEEP_dataset
#define DPN_KEEP_dataset(x) DPN_NOTHING(x)

#undef DPN_KEEP_mode
#define DPN_KEEP_mode(x) DPN_ITEM(x)
const struct dpn_mode_class *const dpn_mode_classes[] = {
#include "plugins.def"
    NULL};
#undef DPN_KEEP_mode
#define DPN_KEEP_mode(x) DPN_NOTHING(x)

#undef DPN_KEEP_command
#define DPN_KEEP_command(x) DPN_ITEM(x)
const struct dpn_command *const dpn_command_list[] = {
#include "plugins.def"
    NULL};
#undef DPN_KEEP_command
#define DPN_KEEP_command(x) DPN_NOTHING(x)
