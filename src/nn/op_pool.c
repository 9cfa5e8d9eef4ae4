/* Maximum and average pooling over square windows. Cost: one pass each way. Sample by sample, each output one
 * fixed chain, so any cut gives the same bits. What a convolution pools itself (link.c) is left to it.
 */
#include <assert.h>

#include "nn/nn.h"

enum { POOL_MACS_PER_ELEM = 4 };

struct pool_job {
    const struct dpn_kernels *kernels;
    struct dpn_pool pool;
    const float *x, *dy;
    float *y, *dx;
    float *scratch; /* NULL: dx is overwritten; else added to, by way of one sample here */
    size_t scratch_floats;
};

static struct pool_job pool_job(const struct dpn_node *node, const struct dpn_exec *exec, size_t rows)
{
    const struct dpn_value *x = &exec->model->values[node->input], *y = &exec->model->values[node->output];
    return (struct pool_job){
        .kernels = exec->kernels,
        .pool = {.samples = rows,
                 .cstride = x->cstride,
                 .in_height = x->height,
                 .in_width = x->width,
                 .in_stride = x->stride,
                 .out_height = y->height,
                 .out_width = y->width,
                 .out_stride = y->stride,
                 .kernel = node->window.kernel_height,
                 .stride = node->window.stride,
                 .pad = node->window.pad,
                 .average = node->window.average},
        .x = exec->value[node->input],
        .y = exec->value[node->output],
    };
}

static void pool_forward_part(void *arg, int thread, int size)
{
    const struct pool_job *job = arg;
    size_t first, count;
    dpn_split(job->pool.samples, (size_t)size, (size_t)thread, &first, &count);
    if (count) job->kernels->pool(&job->pool, first, count, job->x, job->y);
}

static void pool_backward_part(void *arg, int thread, int size)
{
    const struct pool_job *job = arg;
    size_t first, count;
    dpn_split(job->pool.samples, (size_t)size, (size_t)thread, &first, &count);
    if (count == 0) return;
    if (!job->scratch) {
        job->kernels->pool_grad(&job->pool, first, count, job->x, job->y, job->dy, job->dx);
        return;
    }
    float *part = job->scratch + (size_t)thread * job->scratch_floats;
    for (size_t n = first; n < first + count; n++) {
        size_t in = n * job->pool.in_stride, out = n * job->pool.out_stride;
        job->kernels->pool_grad(&job->pool, 0, 1, job->x + in, job->y + out, job->dy + out, part);
        job->kernels->add(job->pool.in_stride, job->dx + in, part, job->dx + in);
    }
}

static double pool_work(const struct pool_job *job)
{
    return (double)job->pool.samples * (double)job->pool.in_stride * POOL_MACS_PER_ELEM;
}

static const struct dpn_node *pool_maker(const struct dpn_node *node, const struct dpn_exec *exec)
{
    const int maker = exec->model->values[node->input].maker;
    return maker >= 0 ? &exec->model->nodes[maker] : NULL;
}

static void pool_forward(const struct dpn_node *node, struct dpn_exec *exec, size_t rows, int training)
{
    struct pool_job job = pool_job(node, exec, rows);
    const struct dpn_node *maker = pool_maker(node, exec);
    (void)training;
    if (maker && maker->pool) return; /* done */
    dpn_exec_spread(exec, pool_work(&job), pool_forward_part, &job);
}

static void pool_backward(const struct dpn_node *node, struct dpn_exec *exec, size_t rows)
{
    struct pool_job job = pool_job(node, exec, rows);
    if (!node->needs_input_grad) return;
    job.dy = exec->grad[node->output];
    job.dx = exec->grad[node->input];
    const struct dpn_node *maker = pool_maker(node, exec);
    if (maker && maker->pooled >= 0)
        dpn_conv_backward_bias(maker, exec, rows * job.pool.out_height * job.pool.out_width, job.y,
                               exec->grad[node->output]);
    if (maker && maker->pool) return; /* read through */
    if (node->adds_input_grad) job.scratch = exec->scratch;
    job.scratch_floats = exec->scratch_floats;
    dpn_exec_spread(exec, pool_work(&job), pool_backward_part, &job);
}

static void pool_workspace(const struct dpn_model *model, const struct dpn_node *node,
                           const struct dpn_kernels *kernels, size_t rows, int training,
                           struct dpn_workspace *workspace)
{
    (void)kernels;
    (void)rows;
    if (training && node->needs_input_grad && node->adds_input_grad)
        workspace->scratch = model->values[node->input].stride;
}

const struct dpn_op_class dpn_op_pool = {
    .name = "pool",
    .selects = 1,
    .keeps_input = 1,
    .keeps_output = 1,
    .forward = pool_forward,
    .backward = pool_backward,
    .workspace = pool_workspace,
};

static int pool_build(struct dpn_model_builder *builder, int input, struct dpn_window window)
{
    const struct dpn_value *x = dpn_build_shape(builder, input);
    if (!x) return -1;
    size_t kernel = window.kernel_height, pad = window.pad;
    assert(x->cstride % 16 == 0 && pad <= kernel / 2);
    if (x->height + 2 * pad < kernel || x->width + 2 * pad < kernel) {
        dpn_build_too_small(builder, input, "a pooling layer");
        return -1;
    }
    int output = dpn_build_value(builder, x->channels, (x->height + 2 * pad - kernel) / window.stride + 1,
                                 (x->width + 2 * pad - kernel) / window.stride + 1, -1);
    struct dpn_node *node = dpn_build_node(builder, &dpn_op_pool, input, output, 0.0);
    if (!node) return -1;
    node->window = window;
    return output;
}

int dpn_build_max_pool(struct dpn_model_builder *builder, int input, size_t kernel, size_t stride, size_t pad)
{
    return pool_build(builder, input, (struct dpn_window){kernel, kernel, stride, pad, 0});
}

int dpn_build_average_pool(struct dpn_model_builder *builder, int input, size_t kernel, size_t stride,
                           size_t pad)
{
    return pool_build(builder, input, (struct dpn_window){kernel, kernel, stride, pad, 1});
}
