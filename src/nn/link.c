/* The last step of building a model: who reads what, and what therefore need not be stored or moved.
 *
 * Around batch norm nearly all time is memory traffic, so its work is done inside the convolutions next to
 * it.
 *
 * conv -> norm: the convolution takes the moments of its output, and computes the gradient of its output from
 * that of the norm's output while it reads it (node->norm, value->grad_lazy).
 *
 * norm -> any readers: the norm's output is computed by whoever reads it, if all readers can (value->lazy).
 *
 * norm -> conv: the data pass of the convolution that touches the gradient of the norm's output last masks it
 * and takes the norm's sums (node->masks).
 *
 * conv -> maximum pooling: an element of the pooled gradient goes to one element, which ReLU let pass if it
 * let the maximum pass, and the bias's gradient is the sum of them all: both are done before they are spread
 * (node->pooled). Where the kernels may, they pool in the convolution itself, whose output is never stored
 * (node->pool).
 *
 * A residual's gradient is the (masked) gradient of the sum: both share a buffer (value->grad_shared_with).
 */
#include <assert.h>

#include "core/memory.h"
#include "nn/nn.h"

static void link_reader(struct dpn_value *value, int node)
{
    if (value->n_readers++ == 0) value->first_reader = node;
    value->last_reader = node;
}

static void link_readers(struct dpn_model *model)
{
    for (size_t v = 0; v < model->n_values; v++) {
        struct dpn_value *value = &model->values[v];
        value->stored = value->stride;
        value->maker = value->first_reader = value->last_reader = value->grad_shared_with = -1;
    }
    for (size_t i = 0; i < model->n_nodes; i++) {
        struct dpn_node *node = &model->nodes[i];
        link_reader(&model->values[node->input], (int)i);
        if (node->residual >= 0) link_reader(&model->values[node->residual], (int)i);
        model->values[node->output].maker = (int)i;
    }
}

static void link_gradients(struct dpn_model *model)
{
    for (size_t i = 0; i < model->n_nodes; i++) {
        struct dpn_node *node = &model->nodes[i];
        struct dpn_value *input = &model->values[node->input];
        struct dpn_value *residual = node->residual >= 0 ? &model->values[node->residual] : NULL;
        node->needs_input_grad = input->learns;
        node->needs_residual_grad = residual && residual->learns;
        node->adds_input_grad = input->last_reader != (int)i;
        node->adds_residual_grad = residual && residual->last_reader != (int)i;
        model->values[node->output].learns = node->tensors[0] >= 0 || node->needs_input_grad ||
                                             node->needs_residual_grad;
        if (node->cls->sharing == DPN_SHARES_INPUT && node->needs_input_grad && !node->adds_input_grad &&
            input->in_place_of < 0 && model->values[node->output].in_place_of < 0)
            input->grad_shared_with = node->output;
        if (node->cls->sharing == DPN_SHARES_RESIDUAL && node->needs_residual_grad &&
            !node->adds_residual_grad && residual->in_place_of < 0)
            residual->grad_shared_with = node->output;
    }
}

static int link_can_be_lazy(const struct dpn_model *model, int value)
{
    if (value == model->logits || model->values[value].n_readers == 0) return 0;
    for (size_t i = 0; i < model->n_nodes; i++) {
        const struct dpn_node *node = &model->nodes[i];
        if (node->input == value && !node->cls->reads_lazy) return 0;
        if (node->residual == value && !node->cls->reads_lazy_residual) return 0;
    }
    return 1;
}

static void link_norm(struct dpn_model *model, int at)
{
    struct dpn_node *norm = &model->nodes[at];
    struct dpn_value *z = &model->values[norm->input], *y = &model->values[norm->output];
    struct dpn_node *maker = z->maker >= 0 ? &model->nodes[z->maker] : NULL;

    if (maker && maker->cls->takes_moments && !maker->relu && z->n_readers == 1 && z->maker == at - 1 &&
        z->grad_shared_with < 0) {
        maker->norm = at;
        /* Stored where a bias sums it, or where the convolution adds to what it would be computed from: its
         * input is the norm's residual. */
        z->grad_lazy = z->learns && maker->tensors[1] < 0 && norm->residual != maker->input;
    }
    if (norm->residual < 0 && link_can_be_lazy(model, norm->output)) y->lazy = 1;
    if (y->first_reader >= 0) {
        struct dpn_node *reader = &model->nodes[y->first_reader];
        if (reader->cls->takes_moments && reader->input == norm->output && y->learns) reader->masks = at;
    }
}

static void link_pool(struct dpn_model *model, int at)
{
    const struct dpn_node *pool = &model->nodes[at];
    struct dpn_value *x = &model->values[pool->input];
    struct dpn_node *maker = x->maker >= 0 ? &model->nodes[x->maker] : NULL;
    if (!maker || !maker->cls->takes_moments || x->n_readers != 1 || pool->window.average) return;
    maker->pooled = at;
    const struct dpn_window *window = &maker->window;
    const struct dpn_conv conv = {
        .out_channels = x->channels,
        .kernel_height = window->kernel_height,
        .kernel_width = window->kernel_width,
        .stride = window->stride,
        .pool = pool->window.kernel_height,
    };
    if (pool->window.stride != conv.pool || pool->window.pad != 0 || !dpn_conv_may_pool(&conv)) return;
    const struct dpn_value *y = &model->values[pool->output];
    const size_t places = y->height * y->width * y->cstride; /* bytes */
    maker->pool = conv.pool;
    x->stored = dpn_round16(places / sizeof(float));
    x->grad_lazy = x->learns;
}

void dpn_model_link(struct dpn_model *model)
{
    link_readers(model);
    link_gradients(model);
    for (size_t i = 0; i < model->n_nodes; i++) {
        if (model->nodes[i].cls->moments_elems) link_norm(model, (int)i);
        if (model->nodes[i].cls->selects) link_pool(model, (int)i);
    }
}
