/* Models, ops, optimizers. Nothing here knows that it is replicated: nn never sees reduce.
 *
 * A model is a list of nodes (ops) over values (activations) with tensors (parameters). All parameters of a
 * model lie in one flat arena, gradients in one of the same layout, optimizer slots likewise. The arena is
 * laid out in backward order: the tensors whose gradients are complete first come first, so that "gradients
 * ready" is always a prefix.
 *
 * To add an op: one file op_NAME.c with a struct dpn_op_class and its dpn_build_NAME (declared here), one
 * line in src/plugins.def. To add a model: a few lines in zoo.c and one line in src/plugins.def.
 */
#ifndef DPN_NN_NN_H
#define DPN_NN_NN_H

#include <stddef.h>
#include <stdint.h>

#include "core/rng.h"
#include "core/status.h"
#include "core/team.h"
#include "kernels/kernels.h"

enum {
    DPN_MAX_NODES_PER_MODEL = 256,
    DPN_MAX_VALUES = DPN_MAX_NODES_PER_MODEL + 1,
    DPN_MAX_TENSORS = 512,
    DPN_NODE_TENSORS = 4,
    DPN_NAME_BYTES = 96,
    DPN_SPEC_BYTES = 256,
};

/* How a tensor's elements lie in the arena; files always hold PyTorch's order. */
enum dpn_layout {
    DPN_LAYOUT_PLAIN, /* as in PyTorch */
    DPN_LAYOUT_PANEL, /* Linear.weight [out][in] stored as the panel matrix [in][out] of kernels.h */
};

enum dpn_init {
    DPN_INIT_ZERO,
    DPN_INIT_ONE,
    DPN_INIT_UNIFORM, /* uniform(-init_scale, init_scale): PyTorch's for Linear, 1/sqrt(fan_in) */
    DPN_INIT_NORMAL,  /* normal(0, init_scale) */
};

struct dpn_tensor {
    char name[DPN_NAME_BYTES]; /* PyTorch state-dict name: "fc1.weight" */
    unsigned rank;
    size_t shape[4]; /* PyTorch's: Linear.weight is [out][in] */
    size_t elems;    /* product of shape */
    enum dpn_layout layout;
    size_t offset; /* first float in the arena, multiple of 16 */
    size_t stored; /* floats in the arena, padding included (padding stays 0), multiple of 16 */
    enum dpn_init init;
    double init_scale;
};

/* Shape of one sample of a value: features CHW; stride: floats from one sample to the next, round16 of
 * elems. */
struct dpn_value {
    size_t channels, height, width;
    size_t elems, stride;
    int in_place_of; /* value whose buffers it shares (flatten, in-place relu), or -1 */
    int learns;      /* parameters lie upstream: it has a gradient */
};

struct dpn_op_class;
struct dpn_node {
    const struct dpn_op_class *cls;
    int input, output;             /* values */
    int tensors[DPN_NODE_TENSORS]; /* indices into model->tensors, -1: none */
    int relu;                      /* fused activation */
    int needs_input_grad;          /* 0 for the first op with parameters: nothing before it learns */
    double macs;                   /* forward multiply-adds of one sample */
    /* Arena floats whose gradients are final once this node's backward is done: a prefix, multiple of 16; the
     * last one is arena_elems. */
    size_t ready;
};

struct dpn_model {
    char spec[DPN_SPEC_BYTES]; /* normal form, all keys: "mlp:hidden=128x64" */
    size_t n_nodes, n_values, n_tensors;
    struct dpn_node *nodes;     /* forward order */
    struct dpn_value *values;   /* value 0: the input; every value is read by one node at most */
    struct dpn_tensor *tensors; /* state-dict order */
    int logits;                 /* value */
    size_t classes;
    size_t parameters;       /* elements, padding not counted */
    size_t arena_elems;      /* floats of one arena, multiple of 1,024 */
    double flops_per_sample; /* forward + backward multiply-adds, times 2 */
};

/* ---- building ---- */

/* A model under construction; calls after a failure do nothing and it is reported at the end. */
struct dpn_model_builder;

/* Ops: each appends a node that reads value INPUT and returns its output value (-1 after a failure). */
int dpn_build_flatten(struct dpn_model_builder *builder, int input);
/* Linear(in, out) named NAME ("fc1"): NAME.weight, NAME.bias. Normal(0, NORMAL_STD) weight and zero bias if
 * NORMAL_STD > 0, else PyTorch's default. The input counts as flat. */
int dpn_build_dense(struct dpn_model_builder *builder, int input, const char *name, size_t out,
                    double normal_std);
/* Fused into the node that made INPUT if that op can (INPUT then is the activated value and is returned),
 * else a node of its own, in place. */
int dpn_build_relu(struct dpn_model_builder *builder, int input);

size_t dpn_build_classes(const struct dpn_model_builder *builder);
/* Text given for KEY (one of the class's keys), or its default. */
const char *dpn_build_option(const struct dpn_model_builder *builder, const char *key);
/* KEY's text as 1..MAX sizes of 1..2^31 joined by 'x' ("128x64"). Returns how many, 0 after a failure. */
size_t dpn_build_sizes(struct dpn_model_builder *builder, const char *key, size_t *sizes, size_t max);
void dpn_build_fail(struct dpn_model_builder *builder, enum dpn_status status); /* error text already set */

/* For op files. A new value, a new tensor OWNER.PART of the arena, a new node; -1 or NULL after a failure. */
const struct dpn_value *dpn_build_shape(const struct dpn_model_builder *builder, int value); /* NULL for -1 */
int dpn_build_value(struct dpn_model_builder *builder, size_t channels, size_t height, size_t width,
                    int in_place_of);
int dpn_build_tensor(struct dpn_model_builder *builder, const char *owner, const char *part,
                     enum dpn_layout layout, unsigned rank, const size_t *shape, enum dpn_init init,
                     double init_scale);
struct dpn_node *dpn_build_node(struct dpn_model_builder *builder, const struct dpn_op_class *cls, int input,
                                int output, double macs);
/* The node that makes VALUE, which no node reads yet; NULL for the input value. */
struct dpn_node *dpn_build_producer(struct dpn_model_builder *builder, int value);

struct dpn_model_class {
    const char *name; /* "mlp" */
    const char *summary;
    const char *keys; /* "hidden=128x64": all keys with their defaults, comma-separated; "" if none */
    /* Builds from the input value 0 and returns the logits' value. */
    int (*build)(struct dpn_model_builder *builder);
};
extern const struct dpn_model_class *const dpn_model_classes[]; /* NULL-terminated, from plugins.def */

/* Builds SPEC ("mlp:hidden=512x256") for inputs CHANNELS x HEIGHT x WIDTH and CLASSES outputs. Errors:
 * DPN_ERR_USAGE naming --model and the bad text; DPN_ERR_NOMEM. Any thread; no parameter memory is
 * allocated. */
enum dpn_status dpn_model_open(const char *spec, size_t channels, size_t height, size_t width, size_t classes,
                               struct dpn_model **model);
void dpn_model_close(struct dpn_model *model); /* NULL: nothing */

/* Start weights of (model, SEED) into PARAMS (arena), padding zeroed: tensor t draws from stream (seed,
 * INIT, t) in PyTorch's element order, so neither layout nor placement matters. */
void dpn_model_init(const struct dpn_model *model, uint64_t seed, float *params);
/* Between the arena's layout and PyTorch's (contiguous, tensor->elems floats). */
void dpn_tensor_export(const struct dpn_tensor *tensor, const float *arena, float *torch_order);
void dpn_tensor_import(const struct dpn_tensor *tensor, const float *torch_order, float *arena);
/* L2 norm of a tensor in an arena (kernels->sum_squares over its stored floats). */
double dpn_tensor_norm(const struct dpn_tensor *tensor, const struct dpn_kernels *kernels,
                       const float *arena);

/* ---- ops ---- */

struct dpn_exec;
struct dpn_op_class {
    const char *name;
    int fuses_relu; /* applies node->relu itself, forward and backward */
    /* Called by the executor on the device's thread 0; spreads work by dpn_exec_spread. ROWS samples. Leaves
     * the padding columns of what it writes 0. */
    void (*forward)(const struct dpn_node *node, struct dpn_exec *exec, size_t rows, int training);
    /* Reads (and may spoil) the output's gradient, writes the node's tensor gradients (overwrites, never
     * adds) and, if needs_input_grad, the input's gradient. Called only if the output learns. */
    void (*backward)(const struct dpn_node *node, struct dpn_exec *exec, size_t rows);
};

extern const struct dpn_op_class *const dpn_op_classes[]; /* NULL-terminated, from plugins.def */

/* ---- execution ---- */

/* One device's buffers for running shards of up to max_rows samples (and evaluation chunks): a plan made
 * once. */
struct dpn_exec {
    const struct dpn_model *model;
    const struct dpn_kernels *kernels;
    struct dpn_team *team; /* NULL: the calling thread alone */
    size_t max_rows;
    const float *params; /* arena; set by the caller before forward */
    float *grads;        /* arena that backward writes; set before backward */
    float **value;       /* activations [rows][stride] per value; padding columns 0 */
    float **grad;        /* gradients of values; NULL where none is needed */
    int32_t *labels;     /* [max_rows] */
    /* While dpn_exec_backward runs: its caller's READY, and the first status that was not DPN_OK. */
    enum dpn_status (*ready)(void *arg, size_t floats);
    void *ready_arg;
    enum dpn_status ready_status;
    float *memory;       /* one arena for all of the above */
    size_t memory_bytes;
};

/* Bytes that dpn_exec_open will want, a multiple of the page size; about SIZE_MAX (which no allocator
 * grants) if the number does not fit. */
size_t dpn_exec_bytes(const struct dpn_model *model, size_t max_rows, int training);
/* Lays the plan out in MEMORY (page-aligned, dpn_exec_bytes long, owned by the caller, zeroed and so first
 * touched here by the calling device thread). Without TRAINING there are no gradients, and activations share
 * buffers: only value 0 and the logits outlive a forward pass. */
enum dpn_status dpn_exec_open(struct dpn_exec *exec, const struct dpn_model *model,
                              const struct dpn_kernels *kernels, struct dpn_team *team, size_t max_rows,
                              int training, void *memory);
void dpn_exec_close(struct dpn_exec *exec);

/* Input rows are in exec->value[0] (padding columns left 0), labels in exec->labels. ROWS in 1..max_rows. */
void dpn_exec_forward(struct dpn_exec *exec, size_t rows, int training);
/* Loss of ROWS rows of logits: *LOSS = sum of the samples' losses, *CORRECT = hits; with GRADIENT the logits'
 * gradient times SCALE is left in exec->grad[logits]. */
void dpn_exec_loss(struct dpn_exec *exec, size_t rows, int gradient, float scale, double *loss,
                   uint64_t *correct);
/* Backward from exec->grad[logits] (spoilt) after a forward of the same rows; after every node with tensors
 * calls ready(arg, floats): the gradients of arena[0..floats) are final. READY may be NULL; a failure of
 * ready stops and is returned. Floats of the arena past the last tensor are not written: GRADS starts as
 * zeros. */
enum dpn_status dpn_exec_backward(struct dpn_exec *exec, size_t rows,
                                  enum dpn_status (*ready)(void *arg, size_t floats), void *arg);

/* For op files: the gradients of arena[0..floats) are final already in the middle of a node's backward, and
 * the node will read none of its parameters there again. Long ops report pieces, so that they are reduced
 * while they are in cache. */
void dpn_exec_ready(struct dpn_exec *exec, size_t floats);

/* For op files. Runs fn(arg, thread, size) on the whole team, or fn(arg, 0, 1) here if WORK (in
 * multiply-adds, a function of the shape alone) is not worth handing out. */
void dpn_exec_spread(const struct dpn_exec *exec, double work, dpn_team_fn *fn, void *arg);
/* GRAD = Y > 0 ? GRAD : 0 over ELEMS floats, spread. */
void dpn_relu_backward(const struct dpn_exec *exec, size_t elems, const float *y, float *grad);

/* ---- optimizers ---- */

struct dpn_optimizer_settings {
    double lr, momentum, weight_decay, beta1, beta2, eps; /* lr: base rate */
    int nesterov;
};
struct dpn_optimizer_class {
    const char *name; /* "sgd" */
    const char *summary;
    double default_lr;
    /* Names of state slots that SETTINGS may need, NULL-terminated: "momentum_buffer"; "exp_avg",
     * "exp_avg_sq" (PyTorch's). */
    const char *const *slots;
    /* Refuses settings that make no sense together: DPN_ERR_USAGE naming the option. */
    enum dpn_status (*check)(const struct dpn_optimizer_settings *settings);
    /* How many of the slots SETTINGS uses (sgd without momentum: 0). */
    int (*n_slots)(const struct dpn_optimizer_settings *settings);
    /* One update of ELEMS floats of every arena, with learning rate LR, at update number T (1, 2, ...; the
     * global one, also after a resume). The one function for every path: any cut into slices gives the same
     * bits. STATE: n_slots pointers. Weight decay takes in every tensor, biases too, as PyTorch's. Zeros
     * stay zeros where parameter, gradient and state are all 0 (padding). */
    void (*update)(const struct dpn_optimizer_settings *settings, const struct dpn_kernels *kernels,
                   double lr, uint64_t t, size_t elems, float *params, const float *grads,
                   float *const *state);
};
/* NULL-terminated, from plugins.def. */
extern const struct dpn_optimizer_class *const dpn_optimizer_classes[];
/* DPN_ERR_USAGE naming --optimizer. */
enum dpn_status dpn_optimizer_find(const char *name, const struct dpn_optimizer_class **cls);

enum dpn_schedule_kind { DPN_SCHEDULE_CONSTANT, DPN_SCHEDULE_STEP, DPN_SCHEDULE_COSINE };
struct dpn_schedule {
    enum dpn_schedule_kind kind;
    double base_lr, gamma, min_lr, warmup_epochs;
    const double *milestones; /* epochs, ascending */
    size_t n_milestones;
    uint64_t steps_per_epoch, total_steps; /* total_steps: epochs * steps_per_epoch, also with --steps */
};
/* The rate of global step STEP (0, 1, ...): a function of the step alone. Warm-up: linear,
 * base_lr*(step+1)/warmup_steps for the first warmup_steps = round(warmup_epochs*steps_per_epoch) steps;
 * `step`: base_lr * gamma^(milestones m with step >= m*steps_per_epoch: PyTorch's MultiStepLR for whole
 * epochs); `cosine`: min_lr + (base_lr-min_lr)*(1+cos(pi*s/(total-warmup)))/2 with s steps since warm-up;
 * min_lr from total on. */
double dpn_schedule_lr(const struct dpn_schedule *schedule, uint64_t step);

#endif
