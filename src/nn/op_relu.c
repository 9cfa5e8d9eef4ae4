/* ReLU, in place where nobody else reads its input. Cost: one pass over the value each way, 8 bytes an
 * element forward, 12 backward. Element by element, so any cut gives the same bits.
 */
#include <assert.h>

#include "nn/nn.h"

/* Pieces handed to threads, in floats: whole pages, so that no two threads write one cache line. */
enum { RELU_PIECE_ELEMS = 1024, RELU_MACS_PER_ELEM = 4 };

struct relu_job {
    const struct dpn_kernels *kernels;
    size_t elems;
    const float *y; /* backward; forward: NULL */
    float *from, *to;
    int adds; /* backward: to what is there */
};

static void relu_piece(void *arg, int thread, int size)
{
    const struct relu_job *job = arg;
    size_t first, count, pieces = (job->elems + RELU_PIECE_ELEMS - 1) / RELU_PIECE_ELEMS;
    dpn_split(pieces, (size_t)size, (size_t)thread, &first, &count);
    if (count == 0) return;
    size_t begin = first * RELU_PIECE_ELEMS, end = begin + count * RELU_PIECE_ELEMS;
    if (end > job->elems) end = job->elems;
    size_t n = end - begin;
    float *from = job->from + begin, *to = job->to + begin;
    if (!job->y) {
        job->kernels->relu(n, from, to);
    } else if (job->adds) {
        job->kernels->relu_grad(n, job->y + begin, from, from);
        job->kernels->add(n, to, from, to);
    } else {
        job->kernels->relu_grad(n, job->y + begin, from, to);
    }
}

static void relu_spread(const struct dpn_exec *exec, struct relu_job *job)
{
    job->kernels = exec->kernels;
    dpn_exec_spread(exec, (double)job->elems * RELU_MACS_PER_ELEM, relu_piece, job);
}

void dpn_relu_backward(const struct dpn_exec *exec, size_t elems, const float *y, float *grad)
{
    struct relu_job job = {.elems = elems, .y = y, .from = grad, .to = grad};
    relu_spread(exec, &job);
}

static void relu_forward(const struct dpn_node *node, struct dpn_exec *exec, size_t rows, int training)
{
    (void)training;
    struct relu_job job = {.elems = rows * exec->model->values[node->output].stride,
                           .from = exec->value[node->input],
                           .to = exec->value[node->output]};
    relu_spread(exec, &job);
}

static void relu_backward(const struct dpn_node *node, struct dpn_exec *exec, size_t rows)
{
    struct relu_job job = {.elems = rows * exec->model->values[node->output].stride,
                           .y = exec->value[node->output],
                           .from = exec->grad[node->output],
                           .to = exec->grad[node->input],
                           .adds = node->adds_input_grad};
    relu_spread(exec, &job);
}

const struct dpn_op_class dpn_op_relu = {
    .name = "relu",
    .keeps_output = 1,
    .sharing = DPN_SHARES_INPUT,
    .forward = relu_forward,
    .backward = relu_backward,
};

int dpn_build_relu(struct dpn_model_builder *builder, int input)
{
    const struct dpn_value *in = dpn_build_shape(builder, input);
    if (!in) return -1;
    struct dpn_node *producer = dpn_build_producer(builder, input);
    if (producer && producer->cls->fuses_relu) {
        producer->relu = 1; /* twice is once */
        return input;
    }
    /* Whoever has read it may want it as it is in its backward. */
    assert(producer || in->cstride % 16 == 0);
    int output = dpn_build_value(builder, in->channels, in->height, in->width, producer ? input : -1);
    return dpn_build_node(builder, &dpn_op_relu, input, output, 0.0) ? output : -1;
}
