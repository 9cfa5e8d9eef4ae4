/* Convolution (Conv2d), with bias and ReLU fused, or with the batch norms around it (link.c).
 *
 * The kernels do the work (kernels/conv.h); here is what they are asked for. Cost and bits are the chosen
 * algorithm's: items are a function of the shape, so any team gives the same bits.
 */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "core/memory.h"
#include "nn/nn.h"

enum { CONV_CUT_ROWS = 1024 }; /* see conv_workspace */

/* The value that a convolution's kernel writes. */
static int conv_written(const struct dpn_model *model, const struct dpn_node *node)
{
    return node->pool ? model->nodes[node->pooled].output : node->output;
}

static struct dpn_conv conv_shape(const struct dpn_model *model, const struct dpn_node *node, size_t rows)
{
    const struct dpn_value *x = &model->values[node->input], *y = &model->values[node->output];
    return (struct dpn_conv){
        .samples = rows,
        .in_channels = x->channels,
        .in_cstride = x->cstride,
        .in_height = x->height,
        .in_width = x->width,
        .in_stride = x->stride,
        .out_channels = y->channels,
        .out_cstride = y->cstride,
        .out_height = y->height,
        .out_width = y->width,
        .out_stride = model->values[conv_written(model, node)].stride,
        .kernel_height = node->window.kernel_height,
        .kernel_width = node->window.kernel_width,
        .stride = node->window.stride,
        .pad = node->window.pad,
        .pool = node->pool,
    };
}

/* ---- running a pass ---- */

struct conv_job {
    const struct dpn_exec *exec;
    const struct dpn_conv_algorithm *algorithm;
    struct dpn_conv_args args;
    int phase;
    size_t items;
};

static void conv_part(void *arg, int thread, int size)
{
    const struct conv_job *job = arg;
    size_t first, count;
    dpn_split(job->items, (size_t)size, (size_t)thread, &first, &count);
    if (count == 0) return;
    job->algorithm->run(&job->args, job->phase, first, count,
                        job->exec->scratch + (size_t)thread * job->exec->scratch_floats);
}

/* Returns the blocks of moments or sums that ARGS asked for. */
static size_t conv_run(const struct dpn_exec *exec, const struct dpn_node *node,
                       const struct dpn_conv_args *args)
{
    const struct dpn_conv *conv = args->conv;
    struct conv_job job = {.exec = exec,
                           .algorithm = dpn_conv_choose(exec->kernels, conv, args->pass),
                           .args = *args};
    job.args.shared = exec->shared;
    for (job.phase = 0; job.phase < DPN_CONV_MAX_PHASES; job.phase++) {
        job.items = job.algorithm->items(conv, args->pass, job.phase);
        if (job.items == 0) break;
        dpn_exec_spread(exec, node->macs * (double)conv->samples, conv_part, &job);
    }
    return args->pass == DPN_CONV_WEIGHTS ? 0 : job.algorithm->blocks(conv, args->pass);
}

static const float *conv_tensor(const struct dpn_exec *exec, const struct dpn_node *node, const float *arena,
                                int t)
{
    return node->tensors[t] < 0 ? NULL : arena + exec->model->tensors[node->tensors[t]].offset;
}

static uint8_t *conv_place(const struct dpn_exec *exec, const struct dpn_node *node)
{
    return node->pool ? (uint8_t *)exec->value[node->output] : NULL;
}

static void conv_forward(const struct dpn_node *node, struct dpn_exec *exec, size_t rows, int training)
{
    const struct dpn_conv conv = conv_shape(exec->model, node, rows);
    int moments = training && node->norm >= 0;
    struct dpn_conv_args args = {
        .conv = &conv,
        .pass = DPN_CONV_FORWARD,
        .x = dpn_exec_source(exec, node->input),
        .weights = conv_tensor(exec, node, exec->params, 0),
        .bias = conv_tensor(exec, node, exec->params, 1),
        .relu = node->relu,
        .y = exec->value[conv_written(exec->model, node)],
        .place = conv_place(exec, node),
        .moments = moments ? exec->blocks : NULL,
    };
    size_t blocks = conv_run(exec, node, &args);
    if (moments)
        exec->kernels->moments_combine(blocks, conv.out_cstride, exec->blocks,
                                       exec->moments + exec->model->nodes[node->norm].moments_at);
}

/* ---- backward ---- */

void dpn_conv_backward_bias(const struct dpn_node *node, struct dpn_exec *exec, size_t pixels, const float *y,
                            float *grad)
{
    const struct dpn_value *output = &exec->model->values[node->output];
    if (!node->relu && node->tensors[1] < 0) return;
    /* The second sum is not wanted, so any mean serves. */
    const struct dpn_mask_sums mask = {.y = node->relu ? y : NULL, .z = y, .mean = y};
    double *sums = NULL;
    if (node->tensors[1] >= 0)
        sums = (double *)(void *)(exec->blocks + dpn_exec_blocks_floats(pixels, output->cstride));
    dpn_exec_mask_sums(exec, pixels, output->cstride, grad, &mask, sums);
    if (!sums) return;
    float *dbias = exec->grads + exec->model->tensors[node->tensors[1]].offset;
    for (size_t c = 0; c < output->channels; c++) dbias[c] = (float)sums[1 + c];
}

static void conv_backward_data(const struct dpn_node *node, struct dpn_exec *exec, struct dpn_conv_args args)
{
    const struct dpn_node *norm = node->masks >= 0 ? &exec->model->nodes[node->masks] : NULL;
    struct dpn_mask_sums mask;
    args.pass = DPN_CONV_DATA;
    args.dx = exec->grad[node->input];
    args.accumulate = node->adds_input_grad;
    if (norm) {
        mask = dpn_batch_norm_mask(exec, norm);
        args.mask = &mask;
    }
    size_t blocks = conv_run(exec, node, &args);
    if (norm)
        exec->kernels->sums_combine(blocks, args.conv->in_cstride, exec->blocks,
                                    exec->sums + norm->moments_at);
}

/* dX first, for it reads the weights. */
static void conv_backward(const struct dpn_node *node, struct dpn_exec *exec, size_t rows)
{
    const struct dpn_conv conv = conv_shape(exec->model, node, rows);
    if (node->pooled < 0)
        dpn_conv_backward_bias(node, exec, rows * conv.out_height * conv.out_width, exec->value[node->output],
                               exec->grad[node->output]);
    struct dpn_conv_args args = {
        .conv = &conv,
        .x = dpn_exec_source(exec, node->input),
        .weights = conv_tensor(exec, node, exec->params, 0),
        .dy = dpn_exec_gradient(exec, node),
        .place = conv_place(exec, node),
    };
    if (node->needs_input_grad) conv_backward_data(node, exec, args);
    args.pass = DPN_CONV_WEIGHTS;
    args.dweights = exec->grads + exec->model->tensors[node->tensors[0]].offset;
    conv_run(exec, node, &args);
}

/* ---- the class ---- */

static void conv_wish(const struct dpn_model *model, const struct dpn_node *node,
                      const struct dpn_kernels *kernels, size_t rows, int training,
                      struct dpn_workspace *workspace)
{
    const struct dpn_conv conv = conv_shape(model, node, rows);
    for (int p = DPN_CONV_FORWARD; p <= (training ? DPN_CONV_WEIGHTS : DPN_CONV_FORWARD); p++) {
        enum dpn_conv_pass pass = (enum dpn_conv_pass)p;
        if (pass == DPN_CONV_DATA && !node->needs_input_grad) continue;
        const struct dpn_conv_algorithm *algorithm = dpn_conv_choose(kernels, &conv, pass);
        size_t shared = algorithm->shared_floats(&conv, pass),
               scratch = algorithm->private_floats(&conv, pass);
        size_t cstride = pass == DPN_CONV_DATA ? conv.in_cstride : conv.out_cstride, blocks = 0;
        if (pass != DPN_CONV_WEIGHTS) blocks = algorithm->blocks(&conv, pass) * dpn_block_floats(cstride);
        if (shared > workspace->shared) workspace->shared = shared;
        if (scratch > workspace->scratch) workspace->scratch = scratch;
        if (training && blocks > workspace->blocks) workspace->blocks = blocks;
    }
    /* Bias-gradient sums and what they add up to. */
    size_t bias = dpn_exec_blocks_floats(rows * conv.out_height * conv.out_width, conv.out_cstride) +
                  2 * (1 + 2 * conv.out_cstride);
    if (training && (node->relu || node->tensors[1] >= 0) && bias > workspace->blocks)
        workspace->blocks = bias;
}

/* A pass over fewer rows may want more, where an algorithm cuts its work by their number. Cuts are of far
 * fewer pixels than CONV_CUT_ROWS samples have. */
static void conv_workspace(const struct dpn_model *model, const struct dpn_node *node,
                           const struct dpn_kernels *kernels, size_t rows, int training,
                           struct dpn_workspace *workspace)
{
    conv_wish(model, node, kernels, rows, training, workspace);
    for (size_t fewer = 1; fewer < rows && fewer <= CONV_CUT_ROWS; fewer++)
        conv_wish(model, node, kernels, fewer, training, workspace);
}

const struct dpn_op_class dpn_op_conv = {
    .name = "conv",
    .fuses_relu = 1,
    .reads_lazy = 1,
    .takes_moments = 1,
    .keeps_input = 1,
    .keeps_output = 0,
    .forward = conv_forward,
    .backward = conv_backward,
    .workspace = conv_workspace,
};

/* Rows or columns of the output; 0: the window does not fit. */
static size_t conv_out(size_t in, size_t kernel, size_t stride, size_t pad)
{
    return in + 2 * pad < kernel ? 0 : (in + 2 * pad - kernel) / stride + 1;
}

int dpn_build_conv(struct dpn_model_builder *builder, int input, const char *name,
                   const struct dpn_conv_options *options)
{
    const struct dpn_value *x = dpn_build_shape(builder, input);
    if (!x) return -1;
    size_t height = conv_out(x->height, options->kernel_height, options->stride, options->pad);
    size_t width = conv_out(x->width, options->kernel_width, options->stride, options->pad);
    if (height == 0 || width == 0) {
        dpn_build_too_small(builder, input, name);
        return -1;
    }
    size_t taps = options->kernel_height * options->kernel_width, out = options->out;
    struct dpn_panel_rows rows = {.taps = taps, .channels = x->channels, .cstride = x->channels};
    size_t shape[4] = {out, x->channels, options->kernel_height, options->kernel_width};
    double bound = 1.0 / sqrt((double)(taps * x->channels));
    double macs = (double)(taps * x->channels) * (double)out * (double)(height * width);
    int weight = dpn_build_tensor(builder, name, "weight", &rows, 4, shape, DPN_INIT_UNIFORM, bound);
    int bias = -1;
    if (options->bias) bias = dpn_build_tensor(builder, name, "bias", NULL, 1, &out, DPN_INIT_UNIFORM, bound);
    int output = dpn_build_value(builder, out, height, width, -1);
    struct dpn_node *node = dpn_build_node(builder, &dpn_op_conv, input, output, macs);
    if (!node) return -1;
    node->tensors[0] = weight;
    node->tensors[1] = bias;
    node->window = (struct dpn_window){.kernel_height = options->kernel_height,
                                       .kernel_width = options->kernel_width,
                                       .stride = options->stride,
                                       .pad = options->pad};
    return output;
}
