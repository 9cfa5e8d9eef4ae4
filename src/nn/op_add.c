/* Addition of two values of equal shape (a residual connection), where no batch norm can take it over. Cost:
 * one pass forward, at most one backward: the first summand's gradient is the output's own. Element by
 * element.
 */
#include <assert.h>
#include <string.h>

#include "nn/nn.h"

/* Pieces handed to threads, in floats: whole pages. */
enum { ADD_PIECE_ELEMS = 1024, ADD_MACS_PER_ELEM = 4 };

struct add_job {
    const struct dpn_kernels *kernels;
    size_t elems;
    const float *a, *b; /* b NULL: copy */
    float *to;
    int relu;
};

static void add_part(void *arg, int thread, int size)
{
    const struct add_job *job = arg;
    size_t first, count, pieces = (job->elems + ADD_PIECE_ELEMS - 1) / ADD_PIECE_ELEMS;
    dpn_split(pieces, (size_t)size, (size_t)thread, &first, &count);
    if (count == 0) return;
    size_t begin = first * ADD_PIECE_ELEMS, end = begin + count * ADD_PIECE_ELEMS;
    if (end > job->elems) end = job->elems;
    if (job->b) job->kernels->add(end - begin, job->a + begin, job->b + begin, job->to + begin);
    else memcpy(job->to + begin, job->a + begin, (end - begin) * sizeof *job->to);
    if (job->relu) job->kernels->relu(end - begin, job->to + begin, job->to + begin);
}

static void add_spread(const struct dpn_exec *exec, struct add_job *job)
{
    job->kernels = exec->kernels;
    dpn_exec_spread(exec, (double)job->elems * ADD_MACS_PER_ELEM, add_part, job);
}

static void add_forward(const struct dpn_node *node, struct dpn_exec *exec, size_t rows, int training)
{
    struct add_job job = {.elems = rows * exec->model->values[node->output].stride,
                          .a = exec->value[node->input],
                          .b = exec->value[node->residual],
                          .to = exec->value[node->output],
                          .relu = node->relu};
    (void)training;
    add_spread(exec, &job);
}

static void add_gradient(const struct dpn_exec *exec, size_t elems, const float *dy, float *to, int adds)
{
    struct add_job job = {.elems = elems, .a = dy, .b = adds ? to : NULL, .to = to};
    if (to != dy) add_spread(exec, &job);
}

static void add_backward(const struct dpn_node *node, struct dpn_exec *exec, size_t rows)
{
    size_t elems = rows * exec->model->values[node->output].stride;
    float *dy = exec->grad[node->output];
    if (node->relu) dpn_relu_backward(exec, elems, exec->value[node->output], dy);
    if (node->needs_residual_grad)
        add_gradient(exec, elems, dy, exec->grad[node->residual], node->adds_residual_grad);
    if (node->needs_input_grad) add_gradient(exec, elems, dy, exec->grad[node->input], node->adds_input_grad);
}

const struct dpn_op_class dpn_op_add = {
    .name = "add",
    .fuses_relu = 1,
    .keeps_output = 1,
    .sharing = DPN_SHARES_INPUT,
    .forward = add_forward,
    .backward = add_backward,
};

int dpn_build_add(struct dpn_model_builder *builder, int a, int b)
{
    const struct dpn_value *left = dpn_build_shape(builder, a), *right = dpn_build_shape(builder, b);
    if (!left || !right) return -1;
    assert(left->channels == right->channels && left->height == right->height && left->width == right->width);
    assert(left->cstride == right->cstride); /* which the model's input may have otherwise */
    int late = a > b ? a : b, early = a > b ? b : a;
    struct dpn_node *maker = dpn_build_producer(builder, late);
    if (maker && maker->cls->fuses_add && maker->residual < 0 && !maker->relu && maker->input != early) {
        dpn_build_residual(builder, maker, early);
        return late;
    }
    int output = dpn_build_value(builder, left->channels, left->height, left->width, -1);
    struct dpn_node *node = dpn_build_node(builder, &dpn_op_add, late, output, 0.0);
    if (!node) return -1;
    dpn_build_residual(builder, node, early);
    return output;
}
