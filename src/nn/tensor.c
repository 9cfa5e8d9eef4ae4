/* Tensors in the arena: start values, PyTorch's order, norms. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "nn/nn.h"

static float tensor_draw(const struct dpn_tensor *tensor, struct dpn_rng *rng)
{
    switch (tensor->init) {
    case DPN_INIT_ZERO: return 0.0f;
    case DPN_INIT_ONE: return 1.0f;
    case DPN_INIT_UNIFORM: return (float)((2.0 * dpn_rng_uniform(rng) - 1.0) * tensor->init_scale);
    case DPN_INIT_NORMAL: return (float)(dpn_rng_normal(rng) * tensor->init_scale);
    }
    assert(!"an enum dpn_init");
    return 0.0f;
}

/* Draws in PyTorch's order [out][channel][tap] straight into the panels: no second copy of a large matrix. */
static void tensor_init_panel(const struct dpn_tensor *tensor, struct dpn_rng *rng, float *at)
{
    const struct dpn_panel_rows *rows = &tensor->rows;
    size_t out = tensor->shape[0];
    for (size_t o = 0; o < out; o++) {
        size_t offset, stride;
        dpn_panel(rows->taps * rows->cstride, out, o / DPN_PANEL_COLUMNS, &offset, &stride);
        float *column = at + offset + o % DPN_PANEL_COLUMNS;
        for (size_t c = 0; c < rows->channels; c++)
            for (size_t t = 0; t < rows->taps; t++)
                column[(t * rows->cstride + c) * stride] = tensor_draw(tensor, rng);
    }
}

void dpn_model_init(const struct dpn_model *model, uint64_t seed, float *params)
{
    memset(params, 0, model->arena_elems * sizeof *params);
    for (size_t t = 0; t < model->n_tensors; t++) {
        const struct dpn_tensor *tensor = &model->tensors[t];
        float *at = params + tensor->offset;
        struct dpn_rng rng;
        dpn_rng_init(&rng, seed, DPN_RNG_INIT, t, 0);
        if (tensor->layout == DPN_LAYOUT_PANEL) tensor_init_panel(tensor, &rng, at);
        else
            for (size_t i = 0; i < tensor->elems; i++) at[i] = tensor_draw(tensor, &rng);
    }
}

void dpn_model_init_buffers(const struct dpn_model *model, float *buffers)
{
    memset(buffers, 0, model->buffer_elems * sizeof *buffers);
    for (size_t b = 0; b < model->n_buffers; b++)
        for (size_t i = 0; i < model->buffers[b].elems; i++)
            buffers[model->buffers[b].offset + i] = tensor_draw(&model->buffers[b], NULL);
}

void dpn_tensor_export(const struct dpn_tensor *tensor, const float *arena, float *torch_order)
{
    if (tensor->layout == DPN_LAYOUT_PANEL)
        dpn_panel_unpack(&tensor->rows, tensor->shape[0], arena + tensor->offset, torch_order);
    else memcpy(torch_order, arena + tensor->offset, tensor->elems * sizeof *torch_order);
}

void dpn_tensor_import(const struct dpn_tensor *tensor, const float *torch_order, float *arena)
{
    float *at = arena + tensor->offset;
    if (tensor->layout == DPN_LAYOUT_PANEL) {
        dpn_panel_pack(&tensor->rows, tensor->shape[0], torch_order, at);
    } else {
        memcpy(at, torch_order, tensor->elems * sizeof *at);
        memset(at + tensor->elems, 0, (tensor->stored - tensor->elems) * sizeof *at);
    }
}

double dpn_tensor_norm(const struct dpn_tensor *tensor, const struct dpn_kernels *kernels, const float *arena)
{
    return sqrt(kernels->sum_squares(tensor->stored, arena + tensor->offset));
}
