/* ReLU in place. Cost: one pass over the value each way, 8 bytes an element forward, 12 backward. Element by
 * element, so any cut gives the same bits. */
#include "nn/nn.h"

/* Pieces handed to threads, in floats: whole pages, so that no two threads write one cache line. */
enum { RELU_PIECE_ELEMS = 1024, RELU_MACS_PER_ELEM = 4 };

struct relu_job {
    const struct dpn_kernels *kernels;
    size_t elems;
    const float *y;
    float *x; /* forward: in place; backward: the gradient */
    int backward;
};

static void relu_piece(void *arg, int thread, int size)
{
    const struct relu_job *job = arg;
    size_t first, count, pieces = (job->elems + RELU_PIECE_ELEMS - 1) / RELU_PIECE_ELEMS;
    dpn_split(pieces, (size_t)size, (size_t)thread, &first, &count);
    if (count == 0) return;
    size_t begin = first * RELU_PIECE_ELEMS, end = begin + count * RELU_PIECE_ELEMS;
    if (end > job->elems) end = job->elems;
    if (job->backward) job->kernels->relu_grad(end - begin, job->y + begin, job->x + begin, job->x + begin);
    else job->kernels->relu(end - begin, job->x + begin, job->x + begin);
}

void dpn_relu_backward(const struct dpn_exec *exec, size_t elems, const float *y, float *grad)
{
    struct relu_job job = {.kernels = exec->kernels, .elems = elems, .y = y, .x = grad, .backward = 1};
    dpn_exec_spread(exec, (double)elems * RELU_MACS_PER_ELEM, relu_piece, &job);
}

static void relu_forward(const struct dpn_node *node, struct dpn_exec *exec, size_t rows, int training)
{
    (void)training;
    size_t elems = rows * exec->model->values[node->output].stride;
    struct relu_job job = {.kernels = exec->kernels, .elems = elems, .x = exec->value[node->output]};
    dpn_exec_spread(exec, (double)elems * RELU_MACS_PER_ELEM, relu_piece, &job);
}

static void relu_backward(const struct dpn_node *node, struct dpn_exec *exec, size_t rows)
{
    dpn_relu_backward(exec, rows * exec->model->values[node->output].stride, exec->value[node->output],
                      exec->grad[node->output]);
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
    int output = dpn_build_value(builder, in->channels, in->height, in->width, input);
    return dpn_build_node(builder, &dpn_op_relu, input, output, 0.0) ? output : -1;
}
