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
    /* Linear.weight [out][in] or Conv2d.weight [out][in][kh][kw] as the panel matrix of kernels.h, rows as
     * the tensor's `rows` say, columns = out */
    DPN_LAYOUT_PANEL,
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
    struct dpn_panel_rows rows; /* of DPN_LAYOUT_PANEL */
    size_t offset;              /* first float in the arena, multiple of 16 */
    size_t stored;              /* floats in the arena, padding included (padding stays 0), multiple of 16 */
    enum dpn_init init;
    double init_scale;
};

/* Shape of one sample of a value: HWC, channel c of pixel (y, x) at (y*width + x)*cstride + c. cstride:
 * channels rounded up to 16, so that channels fill vectors (the rest is 0); the model's input has cstride =
 * channels. stride: floats from one sample to the next, round16 of height*width*cstride. */
struct dpn_value {
    size_t channels, height, width, cstride;
    size_t elems, stride;                     /* elems: channels*height*width */
    int in_place_of;                          /* value whose buffers it shares (in-place relu), or -1 */
    int learns;                               /* parameters lie upstream: it has a gradient */
    int maker;                                /* node whose output it is; -1: the model's input */
    int n_readers, first_reader, last_reader; /* nodes; last_reader -1: none */
    /* A batch norm's output that is never stored: readers compute it from the norm's input (dpn_exec_source).
     */
    int lazy;
    int grad_shared_with; /* value whose gradient buffer serves this one too, or -1 */
    int grad_lazy;        /* its gradient is never stored: the maker computes it (dpn_exec_gradient) */
    size_t stored;        /* floats kept of a sample: stride, or where only places of maxima are kept fewer */
};

/* Window of a convolution or pooling. */
struct dpn_window {
    size_t kernel_height, kernel_width, stride, pad;
    int average; /* pooling: mean instead of maximum */
};

struct dpn_op_class;
struct dpn_node {
    const struct dpn_op_class *cls;
    int input, residual, output;   /* values; residual -1: none */
    int tensors[DPN_NODE_TENSORS]; /* indices into model->tensors, -1: none */
    int buffers;                   /* batch norm: model->buffers [buffers] mean, [buffers + 1] variance; -1 */
    struct dpn_window window;
    int relu;             /* fused activation */
    int needs_input_grad; /* 0 for the first op with parameters: nothing before it learns */
    int needs_residual_grad;
    int adds_input_grad; /* other readers of its input have written its gradient: add to it */
    int adds_residual_grad;
    int norm;    /* convolution: batch norm that reads its output and nobody else does: takes its moments, and
                    reads  its output's gradient through it; node, or -1 */
    int masks;   /* convolution: batch norm whose output it reads first: its data pass masks that value's
                    finished gradient and takes the norm's sums; node, or -1 */
    int pooled;  /* convolution: maximum pooling that reads its output and nobody else does: undoes its ReLU
                    and takes its bias's sums, over fewer elements; node, or -1 */
    size_t pool; /* convolution: side of that pooling's windows if it is done in the convolution (conv.h),
                    which then writes the pooling's output, and places where its own would be; else 0 */
    size_t aux_at;     /* batch norm: floats in exec->aux */
    size_t moments_at; /* batch norm: doubles in exec->moments and exec->sums */
    double macs;       /* forward multiply-adds of one sample */
    /* Arena floats of its tensors: first .. ready-1. Gradients of arena[0..ready) are final once this node's
     * backward is done; multiple of 16; the last one is arena_elems. */
    size_t first, ready;
};

struct dpn_model {
    char spec[DPN_SPEC_BYTES]; /* normal form, all keys: "mlp:hidden=128x64" */
    size_t n_nodes, n_values, n_tensors, n_buffers;
    struct dpn_node *nodes;     /* forward order */
    struct dpn_value *values;   /* value 0: the input */
    struct dpn_tensor *tensors; /* state-dict order */
    struct dpn_tensor *buffers; /* running statistics, in an arena of their own; no gradient reaches them */
    int logits;                 /* value */
    size_t classes;
    size_t parameters;       /* elements, padding not counted */
    size_t arena_elems;      /* floats of one arena, multiple of 1,024 */
    size_t buffer_elems;     /* floats of the buffers' arena, multiple of 1,024; 0: none */
    size_t aux_elems;        /* floats of what batch norms compute per pass */
    size_t moments_elems;    /* doubles of all batch norms' moments of one shard */
    size_t norms;            /* batch norms */
    double flops_per_sample; /* forward + backward multiply-adds, times 2 */
};

/* ---- building ---- */

/* A model under construction; calls after a failure do nothing and it is reported at the end. */
struct dpn_model_builder;

/* Ops: each appends a node that reads value INPUT and returns its output value (-1 after a failure). A value
 * may have any number of readers. */
/* Linear(in, out) named NAME ("fc1"): NAME.weight, NAME.bias. Normal(0, NORMAL_STD) weight and zero bias if
 * NORMAL_STD > 0, else PyTorch's default. The input counts as flattened (PyTorch's order, CHW). */
int dpn_build_dense(struct dpn_model_builder *builder, int input, const char *name, size_t out,
                    double normal_std);
/* Fused into the node that made INPUT if that op can (INPUT then is the activated value and is returned),
 * else a node of its own, in place. */
int dpn_build_relu(struct dpn_model_builder *builder, int input);

struct dpn_conv_options {
    size_t out, kernel_height, kernel_width, stride, pad;
    int bias;
};
/* Conv2d named NAME: NAME.weight, NAME.bias; PyTorch's default initialisation. Refused (--model) if the
 * window does not fit into the padded image. */
int dpn_build_conv(struct dpn_model_builder *builder, int input, const char *name,
                   const struct dpn_conv_options *options);
/* BatchNorm2d named NAME: NAME.weight, .bias, .running_mean, .running_var; eps 1e-5, momentum 0.1. */
int dpn_build_batch_norm(struct dpn_model_builder *builder, int input, const char *name);
int dpn_build_max_pool(struct dpn_model_builder *builder, int input, size_t kernel, size_t stride,
                       size_t pad);
int dpn_build_average_pool(struct dpn_model_builder *builder, int input, size_t kernel, size_t stride,
                           size_t pad);
int dpn_build_global_average_pool(struct dpn_model_builder *builder, int input);
/* A + B, of equal shape. Fused into the later of the nodes that made them if that is a batch norm whose
 * output nobody reads. */
int dpn_build_add(struct dpn_model_builder *builder, int a, int b);

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
/* ROWS: of a panel matrix; NULL: plain. */
int dpn_build_tensor(struct dpn_model_builder *builder, const char *owner, const char *part,
                     const struct dpn_panel_rows *rows, unsigned rank, const size_t *shape,
                     enum dpn_init init, double init_scale);
/* A running statistic of ELEMS channels. */
int dpn_build_buffer(struct dpn_model_builder *builder, const char *owner, const char *part, size_t elems,
                     enum dpn_init init);
struct dpn_node *dpn_build_node(struct dpn_model_builder *builder, const struct dpn_op_class *cls, int input,
                                int output, double macs);
/* NODE reads VALUE as its residual. */
void dpn_build_residual(struct dpn_model_builder *builder, struct dpn_node *node, int value);
/* The node that makes VALUE, which no node reads yet; NULL for the input value, or if one does. */
struct dpn_node *dpn_build_producer(struct dpn_model_builder *builder, int value);
/* --model: the image of value INPUT is too small for WHAT. */
void dpn_build_too_small(struct dpn_model_builder *builder, int input, const char *what);

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
/* Start values of the running statistics (buffers' arena). */
void dpn_model_init_buffers(const struct dpn_model *model, float *buffers);
/* Between the arena's layout and PyTorch's (contiguous, tensor->elems floats). */
void dpn_tensor_export(const struct dpn_tensor *tensor, const float *arena, float *torch_order);
void dpn_tensor_import(const struct dpn_tensor *tensor, const float *torch_order, float *arena);
/* L2 norm of a tensor in an arena (kernels->sum_squares over its stored floats). */
double dpn_tensor_norm(const struct dpn_tensor *tensor, const struct dpn_kernels *kernels,
                       const float *arena);

/* model.c's last step: who reads what, which values and gradients are never stored or shared. link.c. */
void dpn_model_link(struct dpn_model *model);

/* ---- ops ---- */

struct dpn_exec;

/* Floats. */
struct dpn_workspace {
    size_t shared, scratch, blocks;
};

/* Which gradient of a node is nothing but its output's (masked): the two share a buffer where nobody else
 * needs it. */
enum dpn_grad_sharing { DPN_SHARES_NONE, DPN_SHARES_INPUT, DPN_SHARES_RESIDUAL };

struct dpn_op_class {
    const char *name;
    int fuses_relu;                      /* applies node->relu itself, forward and backward */
    int fuses_add;                       /* adds node->residual itself */
    int reads_lazy, reads_lazy_residual; /* its input, its residual may be lazy values */
    int takes_moments; /* a convolution: may be linked to batch norms by node->norm and node->masks */
    int selects; /* maximum pooling (without window.average): may be linked to a convolution by its pooled */
    int keeps_input, keeps_output; /* what backward reads */
    enum dpn_grad_sharing sharing;

    /* Called by the executor on the device's thread 0; spreads work by dpn_exec_spread. ROWS samples. Leaves
     * the padding of what it writes 0. */
    void (*forward)(const struct dpn_node *node, struct dpn_exec *exec, size_t rows, int training);
    /* Reads (and may spoil) the output's gradient, writes the node's tensor gradients (overwrites, never
     * adds) and, if needs_input_grad, the input's gradient (adds if adds_input_grad); the residual's
     * likewise. Called only if the output learns. */
    void (*backward)(const struct dpn_node *node, struct dpn_exec *exec, size_t rows);

    /* Ops whose result depends on the whole batch (batch norm): before forward in training, measure() leaves
     * moments_elems(node) doubles of the shard in exec->moments + node->moments_at, and adopt() takes those
     * of the shard (`local`) or of all shards together (`sync`); before backward likewise with exec->sums.
     * combine: TOTAL becomes what LEAVES shards give along the one tree, shard i's ELEMS doubles at ALL +
     * i*ELEMS. NULL for other ops. */
    size_t (*moments_elems)(const struct dpn_model *model, const struct dpn_node *node);
    size_t (*aux_elems)(const struct dpn_model *model, const struct dpn_node *node); /* floats in exec->aux */
    void (*measure)(const struct dpn_node *node, struct dpn_exec *exec, size_t rows, int backward);
    void (*adopt)(const struct dpn_node *node, struct dpn_exec *exec, const double *total, int backward);
    void (*combine)(size_t elems, const double *all, uint64_t leaves, int backward, double *total);

    /* Floats of workspace that a pass over ROWS rows wants: shared by the team, of each thread, and of blocks
     * of moments or sums. NULL: none. */
    void (*workspace)(const struct dpn_model *model, const struct dpn_node *node,
                      const struct dpn_kernels *kernels, size_t rows, int training,
                      struct dpn_workspace *workspace);
};

extern const struct dpn_op_class *const dpn_op_classes[]; /* NULL-terminated, from plugins.def */

/* ---- execution ---- */

/* Where everything of an exec lies: made once, by shape alone. plan.c. */
struct dpn_plan {
    size_t max_rows;
    int training;
    size_t value_at[DPN_MAX_VALUES]; /* floats from the start of memory; SIZE_MAX: not stored */
    size_t grad_at[DPN_MAX_VALUES];
    size_t activation_floats;       /* activations and their gradients, which share memory over time */
    struct dpn_workspace workspace; /* the largest wish of any node */
    size_t shared_at, blocks_at, scratch_at; /* floats */
    size_t bytes;                            /* all of it, a multiple of the page size */
};
/* Saturates instead of wrapping: a plan that no memory can hold has about SIZE_MAX bytes. TEAM: threads. */
void dpn_plan_make(struct dpn_plan *plan, const struct dpn_model *model, const struct dpn_kernels *kernels,
                   size_t team, size_t max_rows, int training);

/* One device's buffers for running shards of up to max_rows samples. */
struct dpn_exec {
    const struct dpn_model *model;
    const struct dpn_kernels *kernels;
    struct dpn_team *team; /* NULL: the calling thread alone */
    size_t max_rows;
    const float *params;  /* arena; set by the caller before forward */
    const float *buffers; /* running statistics; set by the caller before forward without training */
    float *grads;         /* arena that backward writes; set before backward */
    float **value;        /* activations [rows][stride] per value; NULL: lazy */
    float **grad;         /* gradients of values; NULL where none is stored */
    int32_t *labels;      /* [max_rows] */
    double *moments; /* of this shard's batch norms; own ones unless the caller sets others before forward */
    double *sums;
    double *total;  /* of all shards, of the batch norm that they meet at */
    float *aux;     /* what batch norms computed in this pass */
    float *blocks;  /* workspace: moments or sums by blocks */
    float *shared;  /* workspace of the team */
    float *scratch; /* of each thread, scratch_floats apart */
    size_t scratch_floats;
    /* While dpn_exec_backward runs: its caller's READY, and the first status that was not DPN_OK. */
    enum dpn_status (*ready)(void *arg, size_t floats);
    void *ready_arg;
    enum dpn_status ready_status;
    void *tables; /* memory of the small things above */
};

/* Lays PLAN out in MEMORY (64-byte aligned, plan->bytes long, owned by the caller; placed by the thread that
 * writes it first, which the caller sees to). Several execs may lie over one memory if only one at a time is
 * between its forward and the end of its backward. DPN_ERR_NOMEM. */
enum dpn_status dpn_exec_open(struct dpn_exec *exec, const struct dpn_model *model,
                              const struct dpn_kernels *kernels, struct dpn_team *team,
                              const struct dpn_plan *plan, void *memory);
void dpn_exec_close(struct dpn_exec *exec); /* zeroed: nothing */

/* Input rows are in exec->value[0] (padding 0), labels in exec->labels. ROWS in 1..max_rows. */
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

/* Shards that meet at every batch norm (`sync`): N execs of this member (N may be 0), ROWS[i] samples each.
 */
struct dpn_exec_group {
    struct dpn_exec *execs;
    const size_t *rows;
    size_t n;
    /* Of every leaf of the step's tree ELEMS doubles, from this member's N execs (moments + AT of each, or
     * with BACKWARD sums + AT) and all others' (all members call, in the same order): *ALL = [leaves][elems],
     * good until the next but one call. */
    enum dpn_status (*exchange)(void *arg, size_t at, int backward, size_t elems, const double **all,
                                uint64_t *leaves);
    /* After the backward of exec I through a node with tensors: arena[first..end) of its grads is final. */
    enum dpn_status (*done)(void *arg, size_t i, size_t first, size_t end);
    void *arg;
};
enum dpn_status dpn_exec_forward_group(const struct dpn_model *model, const struct dpn_exec_group *group);
enum dpn_status dpn_exec_backward_group(const struct dpn_model *model, const struct dpn_exec_group *group);

/* The new running statistics after a step, from the moments of its LEAVES shards (MOMENTS + i*STRIDE
 * doubles): PyTorch's update with momentum 0.1, of the sample-weighted average over shards (`local`), or of
 * the whole batch's moments (SYNC); in double, rounded once. The unbiased correction is left out where there
 * is one value per channel; returns whether that happened. op_batch_norm.c. */
int dpn_batch_norm_update(const struct dpn_model *model, const double *moments, size_t stride,
                          uint64_t leaves, int sync, float *buffers);

/* For op files: VALUE as its readers read it, and the gradient of a convolution's output, lazy or not. */
struct dpn_source dpn_exec_source(const struct dpn_exec *exec, int value);
struct dpn_gradient dpn_exec_gradient(const struct dpn_exec *exec, const struct dpn_node *node);
/* Convolution NODE's ReLU undone in GRAD, PIXELS x its output's cstride, by Y, which is what it gave; the
 * sums of what is left over the pixels are its bias's gradient. op_conv.c. */
void dpn_conv_backward_bias(const struct dpn_node *node, struct dpn_exec *exec, size_t pixels, const float *y,
                            float *grad);
/* What a convolution's data pass does to the gradient of batch norm NORM's output; sums: into exec->blocks.
 */
struct dpn_mask_sums dpn_batch_norm_mask(const struct dpn_exec *exec, const struct dpn_node *norm);

/* For op files: the gradients of arena[0..floats) are final already in the middle of a node's backward, and
 * the node will read none of its parameters there again. Long ops report pieces, so that they are reduced
 * while they are in cache. */
void dpn_exec_ready(struct dpn_exec *exec, size_t floats);

/* For op files. Runs fn(arg, thread, size) on the whole team, or fn(arg, 0, 1) here if WORK (in
 * multiply-adds, a function of the shape alone) is not worth handing out. */
void dpn_exec_spread(const struct dpn_exec *exec, double work, dpn_team_fn *fn, void *arg);
/* For op files: moments of X, and masked sums of D (masked in place), over PIXELS x CSTRIDE, block by block
 * of a fixed number of pixels in exec->blocks, spread, and combined into OUT (NULL: not wanted). Of MASK, y
 * and z are those of pixel 0; its sums are not looked at. blocks.c. */
size_t dpn_exec_blocks_floats(size_t pixels, size_t cstride); /* of exec->blocks, that both want */
void dpn_exec_moments(const struct dpn_exec *exec, size_t pixels, size_t cstride, const float *x,
                      double *out);
void dpn_exec_mask_sums(const struct dpn_exec *exec, size_t pixels, size_t cstride, float *d,
                        const struct dpn_mask_sums *mask, double *out);
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
