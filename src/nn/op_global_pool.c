/* Global average pooling (AdaptiveAvgPool2d(1)). Cost: one pass each way; one ascending chain per channel. */
#include <assert.h>
#include <string.h>

#include "nn/nn.h"

enum { GPOOL_MACS_PER_ELEM = 2 };

struct gpool_job {
    const struct dpn_exec *exec;
    const struct dpn_value *in, *out;
    size_t rows;
    float *from, *to;
    int adds; /* backward: to what is there */
};

static void gpool_forward_part(void *arg, int thread, int size)
{
    const struct gpool_job *job = arg;
    const struct dpn_kernels *kernels = job->exec->kernels;
    size_t first, count, plane = job->in->height * job->in->width, cstride = job->in->cstride;
    dpn_split(job->rows, (size_t)size, (size_t)thread, &first, &count);
    for (size_t r = first; r < first + count; r++) {
        float *to = job->to + r * job->out->stride;
        kernels->col_sum(plane, cstride, cstride, job->from + r * job->in->stride, to);
        kernels->scale(cstride, 1.0f / (float)plane, to);
    }
}

static void gpool_backward_part(void *arg, int thread, int size)
{
    const struct gpool_job *job = arg;
    const struct dpn_kernels *kernels = job->exec->kernels;
    size_t first, count, plane = job->in->height * job->in->width, cstride = job->in->cstride;
    dpn_split(job->rows, (size_t)size, (size_t)thread, &first, &count);
    for (size_t r = first; r < first + count; r++) {
        float *share = job->from + r * job->out->stride, *to = job->to + r * job->in->stride;
        kernels->scale(cstride, 1.0f / (float)plane, share);
        for (size_t p = 0; p < plane; p++, to += cstride) {
            if (job->adds) kernels->add(cstride, to, share, to);
            else memcpy(to, share, cstride * sizeof *to);
        }
    }
}

static void gpool_run(const struct dpn_node *node, const struct dpn_exec *exec, size_t rows,
                      dpn_team_fn *part, float *from, float *to)
{
    struct gpool_job job = {.exec = exec,
                            .in = &exec->model->values[node->input],
                            .out = &exec->model->values[node->output],
                            .rows = rows,
                            .from = from,
                            .to = to,
                            .adds = node->adds_input_grad};
    dpn_exec_spread(exec, (double)rows * (double)job.in->stride * GPOOL_MACS_PER_ELEM, part, &job);
}

static void gpool_forward(const struct dpn_node *node, struct dpn_exec *exec, size_t rows, int training)
{
    (void)training;
    gpool_run(node, exec, rows, gpool_forward_part, exec->value[node->input], exec->value[node->output]);
}

static void gpool_backward(const struct dpn_node *node, struct dpn_exec *exec, size_t rows)
{
    if (node->needs_input_grad)
        gpool_run(node, exec, rows, gpool_backward_part, exec->grad[node->output], exec->grad[node->input]);
}

const struct dpn_op_class dpn_op_global_pool = {
    .name = "global_pool",
    .forward = gpool_forward,
    .backward = gpool_backward,
};

int dpn_build_global_average_pool(struct dpn_model_builder *builder, int input)
{
    const struct dpn_value *x = dpn_build_shape(builder, input);
    if (!x) return -1;
    assert(x->cstride % 16 == 0);
    int output = dpn_build_value(builder, x->channels, 1, 1, -1);
    return dpn_build_node(builder, &dpn_op_global_pool, input, output, 0.0) ? output : -1;
}
