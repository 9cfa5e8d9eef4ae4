/* Flatten: CHW features as one row. Shares its input's buffers, so nothing is computed or moved. */
#include "nn/nn.h"

static void flatten_forward(const struct dpn_node *node, struct dpn_exec *exec, size_t rows, int training)
{
    (void)node;
    (void)exec;
    (void)rows;
    (void)training;
}

static void flatten_backward(const struct dpn_node *node, struct dpn_exec *exec, size_t rows)
{
    (void)node;
    (void)exec;
    (void)rows;
}

const struct dpn_op_class dpn_op_flatten = {
    .name = "flatten",
    .fuses_relu = 0,
    .forward = flatten_forward,
    .backward = flatten_backward,
};

int dpn_build_flatten(struct dpn_model_builder *builder, int input)
{
    const struct dpn_value *in = dpn_build_shape(builder, input);
    if (!in) return -1;
    int output = dpn_build_value(builder, in->elems, 1, 1, input);
    return dpn_build_node(builder, &dpn_op_flatten, input, output, 0.0) ? output : -1;
}
