/* Building a model: its spec, its values, nodes and tensors, and where each tensor lies in the arena. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "core/parse.h"
#include "nn/nn.h"

enum { MODEL_MAX_KEYS = 8, MODEL_MAX_CLASSES = 64 };

/* Arenas stay below 2^60 bytes, so that no later product of a few small factors and a size can wrap. */
static const size_t model_max_elems = (size_t)1 << 58;
static const uint64_t model_max_size = (uint64_t)1 << 31; /* of what a user may type */

struct model_option {
    char *key, *value;
};

struct model_options {
    size_t n;
    struct model_option item[MODEL_MAX_KEYS];
};

struct dpn_model_builder {
    const char *spec;
    const struct dpn_model_class *cls;
    struct dpn_model *model;
    struct model_options options; /* every key of the class, in its order */
    size_t stored;                /* floats of all tensors so far */
    unsigned char read[DPN_MAX_VALUES];
    unsigned char gone[DPN_MAX_VALUES]; /* overwritten by an op in place */
    enum dpn_status status;
};

/* ---- options of a spec ---- */

static void model_options_free(struct model_options *options)
{
    for (size_t i = 0; i < options->n; i++) {
        free(options->item[i].key);
        free(options->item[i].value);
    }
    options->n = 0;
}

static enum dpn_status model_options_add(void *arg, const char *key, const char *value)
{
    struct model_options *options = arg;
    char quoted[DPN_QUOTE_BYTES];
    if (options->n == MODEL_MAX_KEYS)
        return dpn_fail(DPN_ERR_USAGE, "--model has more than %d keys, at %s", MODEL_MAX_KEYS,
                        dpn_quote(key, quoted));
    struct model_option *item = &options->item[options->n];
    item->key = strdup(key);
    item->value = strdup(value);
    options->n++;
    if (!item->key || !item->value)
        return dpn_fail(DPN_ERR_NOMEM, "cannot get memory for the model's options");
    return DPN_OK;
}

/* Fills OPTIONS with the class's keys and defaults. */
static enum dpn_status model_options_default(const struct dpn_model_class *cls, struct model_options *options)
{
    char spec[DPN_SPEC_BYTES];
    char *name = NULL;
    if (!cls->keys[0]) return DPN_OK;
    int length = snprintf(spec, sizeof spec, "%s:%s", cls->name, cls->keys);
    assert(length > 0 && (size_t)length < sizeof spec);
    (void)length;
    enum dpn_status status = dpn_parse_spec("--model", spec, &name, model_options_add, options);
    free(name);
    return status;
}

/* Moves what was given into the defaults. */
static enum dpn_status model_options_apply(const struct dpn_model_class *cls, struct model_options *options,
                                           struct model_options *given)
{
    const char *words[MODEL_MAX_KEYS + 1] = {NULL};
    char where[DPN_NAME_BYTES], quoted[DPN_QUOTE_BYTES];
    for (size_t i = 0; i < options->n; i++) words[i] = options->item[i].key;
    snprintf(where, sizeof where, "--model %s: key", cls->name);
    for (size_t i = 0; i < given->n; i++) {
        int at;
        if (options->n == 0)
            return dpn_fail(DPN_ERR_USAGE, "--model %s takes no keys, not %s", cls->name,
                            dpn_quote(given->item[i].key, quoted));
        DPN_TRY(dpn_parse_choice(where, given->item[i].key, words, &at));
        char *value = options->item[at].value;
        options->item[at].value = given->item[i].value;
        given->item[i].value = value;
    }
    return DPN_OK;
}

static struct model_option *model_option(const struct dpn_model_builder *builder, const char *key)
{
    for (size_t i = 0; i < builder->options.n; i++)
        if (strcmp(builder->options.item[i].key, key) == 0)
            return (struct model_option *)&builder->options.item[i];
    assert(!"a key of the class");
    return NULL;
}

const char *dpn_build_option(const struct dpn_model_builder *builder, const char *key)
{
    return model_option(builder, key)->value;
}

/* Parses TEXT, which it cuts up, into SIZES. */
static enum dpn_status model_parse_sizes(const char *where, char *text, size_t *sizes, size_t max, size_t *n)
{
    char quoted[DPN_QUOTE_BYTES];
    *n = 0;
    for (char *token = text, *next; token; token = next) {
        uint64_t size;
        next = strchr(token, 'x');
        if (next) *next++ = '\0';
        if (*n == max)
            return dpn_fail(DPN_ERR_USAGE, "%s has more than %zu sizes, at %s", where, max,
                            dpn_quote(token, quoted));
        DPN_TRY(dpn_parse_u64(where, token, 1, model_max_size, &size));
        sizes[(*n)++] = (size_t)size;
    }
    return DPN_OK;
}

size_t dpn_build_sizes(struct dpn_model_builder *builder, const char *key, size_t *sizes, size_t max)
{
    char where[DPN_NAME_BYTES], normal[DPN_SPEC_BYTES] = "";
    size_t n = 0, length = 0;
    if (builder->status != DPN_OK) return 0;
    struct model_option *option = model_option(builder, key);
    snprintf(where, sizeof where, "--model %s: %s", builder->cls->name, key);
    enum dpn_status status = model_parse_sizes(where, option->value, sizes, max, &n);
    for (size_t i = 0; status == DPN_OK && i < n; i++) {
        length += (size_t)snprintf(normal + length, sizeof normal - length, i ? "x%zu" : "%zu", sizes[i]);
        assert(length < sizeof normal);
    }
    if (status == DPN_OK) {
        free(option->value);
        option->value = strdup(normal);
        if (!option->value) status = dpn_fail(DPN_ERR_NOMEM, "cannot get memory for the model's options");
    }
    if (status == DPN_OK) return n;
    dpn_build_fail(builder, status);
    return 0;
}

/* ---- building ---- */

void dpn_build_fail(struct dpn_model_builder *builder, enum dpn_status status)
{
    if (builder->status == DPN_OK) builder->status = status;
}

static void model_too_large(struct dpn_model_builder *builder)
{
    char quoted[DPN_QUOTE_BYTES];
    dpn_build_fail(builder,
                   dpn_fail(DPN_ERR_USAGE, "--model %s is too large: more than %zu parameters or values",
                            dpn_quote(builder->spec, quoted), model_max_elems));
}

size_t dpn_build_classes(const struct dpn_model_builder *builder)
{
    return builder->model->classes;
}

const struct dpn_value *dpn_build_shape(const struct dpn_model_builder *builder, int value)
{
    if (builder->status != DPN_OK || value < 0) return NULL;
    assert((size_t)value < builder->model->n_values);
    return &builder->model->values[value];
}

int dpn_build_value(struct dpn_model_builder *builder, size_t channels, size_t height, size_t width,
                    int in_place_of)
{
    struct dpn_model *model = builder->model;
    size_t elems;
    if (builder->status != DPN_OK) return -1;
    assert(model->n_values < DPN_MAX_VALUES && channels > 0 && height > 0 && width > 0);
    if (__builtin_mul_overflow(channels, height, &elems) || __builtin_mul_overflow(elems, width, &elems) ||
        elems > model_max_elems) {
        model_too_large(builder);
        return -1;
    }
    assert(in_place_of < 0 || model->values[in_place_of].elems == elems);
    /* The input is as the data set has it; everything else fills whole vectors. */
    size_t cstride = model->n_values == 0 ? channels : dpn_round16(channels);
    model->values[model->n_values] = (struct dpn_value){
        .channels = channels,
        .height = height,
        .width = width,
        .cstride = in_place_of < 0 ? cstride : model->values[in_place_of].cstride,
        .elems = elems,
        .in_place_of = in_place_of,
    };
    struct dpn_value *value = &model->values[model->n_values];
    value->stride = dpn_round16(height * width * value->cstride);
    if (in_place_of >= 0) builder->gone[in_place_of] = 1;
    return (int)model->n_values++;
}

/* Floats that TENSOR takes in the arena; 0 if that is beyond any memory. */
static size_t model_stored(const struct dpn_tensor *tensor)
{
    size_t padded, rows;
    if (tensor->elems > model_max_elems) return 0;
    if (tensor->layout == DPN_LAYOUT_PLAIN) return dpn_round16(tensor->elems);
    if (tensor->shape[0] > model_max_elems ||
        __builtin_mul_overflow(tensor->rows.taps, tensor->rows.cstride, &rows) ||
        __builtin_mul_overflow(dpn_round16(tensor->shape[0]), rows, &padded) || padded > model_max_elems)
        return 0;
    return dpn_panel_elems(rows, tensor->shape[0]);
}

int dpn_build_tensor(struct dpn_model_builder *builder, const char *owner, const char *part,
                     const struct dpn_panel_rows *rows, unsigned rank, const size_t *shape,
                     enum dpn_init init, double init_scale)
{
    struct dpn_model *model = builder->model;
    if (builder->status != DPN_OK) return -1;
    assert(model->n_tensors < DPN_MAX_TENSORS && rank >= 1 && rank <= 4);
    struct dpn_tensor *tensor = &model->tensors[model->n_tensors];
    *tensor = (struct dpn_tensor){.rank = rank,
                                  .elems = 1,
                                  .layout = rows ? DPN_LAYOUT_PANEL : DPN_LAYOUT_PLAIN,
                                  .init = init,
                                  .init_scale = init_scale};
    if (rows) tensor->rows = *rows;
    int length = snprintf(tensor->name, sizeof tensor->name, "%s.%s", owner, part);
    assert(length > 0 && (size_t)length < sizeof tensor->name);
    (void)length;
    int overflow = 0;
    for (unsigned d = 0; d < rank; d++) {
        assert(shape[d] > 0);
        tensor->shape[d] = shape[d];
        overflow |= __builtin_mul_overflow(tensor->elems, shape[d], &tensor->elems);
    }
    tensor->stored = overflow ? 0 : model_stored(tensor);
    if (tensor->stored == 0 || tensor->stored > model_max_elems - builder->stored) {
        model_too_large(builder);
        return -1;
    }
    builder->stored += tensor->stored;
    return (int)model->n_tensors++;
}

int dpn_build_buffer(struct dpn_model_builder *builder, const char *owner, const char *part, size_t elems,
                     enum dpn_init init)
{
    struct dpn_model *model = builder->model;
    if (builder->status != DPN_OK) return -1;
    assert(model->n_buffers < DPN_MAX_TENSORS);
    struct dpn_tensor *buffer = &model->buffers[model->n_buffers];
    *buffer = (struct dpn_tensor){.rank = 1, .shape = {elems}, .elems = elems, .init = init};
    int length = snprintf(buffer->name, sizeof buffer->name, "%s.%s", owner, part);
    assert(length > 0 && (size_t)length < sizeof buffer->name);
    (void)length;
    buffer->offset = model->buffer_elems;
    buffer->stored = dpn_round16(elems);
    model->buffer_elems += buffer->stored;
    return (int)model->n_buffers++;
}

struct dpn_node *dpn_build_node(struct dpn_model_builder *builder, const struct dpn_op_class *cls, int input,
                                int output, double macs)
{
    struct dpn_model *model = builder->model;
    if (builder->status != DPN_OK) return NULL;
    assert(model->n_nodes < DPN_MAX_NODES_PER_MODEL && input >= 0 && output > input);
    assert(!builder->gone[input] || model->values[output].in_place_of == input);
    builder->read[input] = 1;
    struct dpn_node *node = &model->nodes[model->n_nodes++];
    *node = (struct dpn_node){.cls = cls, .input = input, .residual = -1, .output = output, .macs = macs};
    node->buffers = node->norm = node->masks = node->pooled = -1;
    for (int i = 0; i < DPN_NODE_TENSORS; i++) node->tensors[i] = -1;
    return node;
}

void dpn_build_residual(struct dpn_model_builder *builder, struct dpn_node *node, int value)
{
    assert(!builder->gone[value] && value != node->input && value != node->output);
    builder->read[value] = 1;
    node->residual = value;
}

struct dpn_node *dpn_build_producer(struct dpn_model_builder *builder, int value)
{
    struct dpn_model *model = builder->model;
    if (builder->read[value]) return NULL;
    for (size_t i = 0; i < model->n_nodes; i++)
        if (model->nodes[i].output == value) return &model->nodes[i];
    return NULL;
}

void dpn_build_too_small(struct dpn_model_builder *builder, int input, const char *what)
{
    const struct dpn_value *value = dpn_build_shape(builder, input);
    if (!value) return;
    dpn_build_fail(builder, dpn_fail(DPN_ERR_USAGE,
                                     "--model '%s': images of %zux%zux%zu are too small: %s sees %zux%zu",
                                     builder->cls->name, builder->model->values[0].channels,
                                     builder->model->values[0].height, builder->model->values[0].width, what,
                                     value->height, value->width));
}

/* ---- finishing ---- */

static void model_finish_nodes(struct dpn_model *model)
{
    for (size_t i = 0; i < model->n_nodes; i++) {
        struct dpn_node *node = &model->nodes[i];
        model->flops_per_sample += 2.0 * node->macs * (1 + (node->tensors[0] >= 0) + node->needs_input_grad);
        if (!node->cls->moments_elems) continue;
        node->moments_at = model->moments_elems;
        model->moments_elems += node->cls->moments_elems(model, node);
        node->aux_at = model->aux_elems;
        model->aux_elems += node->cls->aux_elems(model, node);
        model->norms++;
    }
    model->buffer_elems = model->buffer_elems ? dpn_arena_round(model->buffer_elems) : 0;
}

/* Backward order: the last node's tensors first. */
static void model_finish_arena(struct dpn_model *model)
{
    size_t at = 0;
    for (size_t i = model->n_nodes; i-- > 0;) {
        struct dpn_node *node = &model->nodes[i];
        node->first = at;
        for (int j = 0; j < DPN_NODE_TENSORS && node->tensors[j] >= 0; j++) {
            struct dpn_tensor *tensor = &model->tensors[node->tensors[j]];
            tensor->offset = at;
            at += tensor->stored;
            model->parameters += tensor->elems;
        }
        node->ready = at;
    }
    model->arena_elems = dpn_arena_round(at);
    for (size_t i = 0; i < model->n_nodes; i++)
        if (model->nodes[i].ready == at) model->nodes[i].ready = model->arena_elems;
}

static void model_finish_spec(const struct dpn_model_builder *builder)
{
    char *spec = builder->model->spec;
    size_t length = (size_t)snprintf(spec, DPN_SPEC_BYTES, "%s", builder->cls->name);
    for (size_t i = 0; i < builder->options.n && length < DPN_SPEC_BYTES; i++)
        length += (size_t)snprintf(spec + length, DPN_SPEC_BYTES - length, "%c%s=%s", i ? ',' : ':',
                                   builder->options.item[i].key, builder->options.item[i].value);
    assert(length < DPN_SPEC_BYTES);
}

static enum dpn_status model_find(const char *name, const struct dpn_model_class **cls)
{
    const char *words[MODEL_MAX_CLASSES + 1] = {NULL};
    int at;
    for (size_t i = 0; dpn_model_classes[i]; i++) {
        assert(i < MODEL_MAX_CLASSES);
        words[i] = dpn_model_classes[i]->name;
    }
    DPN_TRY(dpn_parse_choice("--model", name, words, &at));
    *cls = dpn_model_classes[at];
    return DPN_OK;
}

static enum dpn_status model_alloc(struct dpn_model **out)
{
    struct dpn_model *model;
    DPN_TRY(dpn_calloc(out, 1, sizeof **out, "the model"));
    model = *out;
    DPN_TRY(dpn_calloc(&model->nodes, DPN_MAX_NODES_PER_MODEL, sizeof *model->nodes, "the model's nodes"));
    DPN_TRY(dpn_calloc(&model->values, DPN_MAX_VALUES, sizeof *model->values, "the model's values"));
    DPN_TRY(dpn_calloc(&model->buffers, DPN_MAX_TENSORS, sizeof *model->buffers, "the model's buffers"));
    return dpn_calloc(&model->tensors, DPN_MAX_TENSORS, sizeof *model->tensors, "the model's tensors");
}

static enum dpn_status model_build(struct dpn_model_builder *builder, size_t channels, size_t height,
                                   size_t width)
{
    struct dpn_model *model = builder->model;
    dpn_build_value(builder, channels, height, width, -1);
    int logits = builder->cls->build(builder);
    DPN_TRY(builder->status);
    assert(logits > 0 && model->values[logits].elems == model->classes && model->n_tensors > 0);
    model->logits = logits;
    dpn_model_link(model);
    model_finish_nodes(model);
    model_finish_arena(model);
    model_finish_spec(builder);
    return DPN_OK;
}

enum dpn_status dpn_model_open(const char *spec, size_t channels, size_t height, size_t width, size_t classes,
                               struct dpn_model **model)
{
    struct dpn_model_builder builder = {.spec = spec};
    struct model_options given = {.n = 0};
    char *name = NULL;
    enum dpn_status status;
    assert(classes > 0);

    *model = NULL;
    if ((status = dpn_parse_spec("--model", spec, &name, model_options_add, &given)) != DPN_OK) goto out;
    if ((status = model_find(name, &builder.cls)) != DPN_OK) goto out;
    if ((status = model_options_default(builder.cls, &builder.options)) != DPN_OK) goto out;
    if ((status = model_options_apply(builder.cls, &builder.options, &given)) != DPN_OK) goto out;
    if ((status = model_alloc(&builder.model)) != DPN_OK) goto out;
    builder.model->classes = classes;
    if ((status = model_build(&builder, channels, height, width)) != DPN_OK) goto out;
    *model = builder.model;
    builder.model = NULL;
out:
    dpn_model_close(builder.model);
    model_options_free(&builder.options);
    model_options_free(&given);
    free(name);
    return status;
}

void dpn_model_close(struct dpn_model *model)
{
    if (!model) return;
    free(model->tensors);
    free(model->buffers);
    free(model->values);
    free(model->nodes);
    free(model);
}
