/* Small networks written as a line of text, for tests: as a model of its own ("net:ops=c4k3s1p1-n-r-g-d0"),
 * and computed naively in double, in PyTorch's order and without padding, from the text alone.
 *
 * Tokens, joined by '-', act on the current value:
 *   c4k3s1p1   convolution, 4 outputs, kernel 3 (k3w1: 3 high, 1 wide), step 1, padding 1; b at the end: with
 * a bias n r g      batch norm, ReLU, global average pool m2s2p0     maximum pool, kernel 2, step 2, padding
 * 0; a2s2p0: average pool d7         dense layer of 7 outputs; d0: of as many as there are classes [ x +
 * remember the value; exchange it with the remembered one; add the remembered one, which is forgotten
 */
#ifndef DPN_TESTS_NN_NN_NET_H
#define DPN_TESTS_NN_NN_NET_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nn/nn.h"

enum { NET_MAX_STACK = 8, NET_MAX_TENSORS = 160 };

struct net_token {
    char op;
    size_t out, kernel, kernel_width, stride, pad;
    int bias;
};

/* Takes one token off TEXT; NULL at its end. */
static inline const char *net_token(const char *text, struct net_token *token)
{
    if (!text || *text == '\0') return NULL;
    *token = (struct net_token){.op = *text++};
    char *end = (char *)(uintptr_t)text;
    size_t number = strtoul(text, &end, 10);
    *(strchr("ma", token->op) ? &token->kernel : &token->out) = number;
    while (*end && *end != '-') {
        char what = *end++;
        number = strtoul(end, &end, 10);
        if (what == 'k') token->kernel = token->kernel_width = number;
        else if (what == 'w') token->kernel_width = number;
        else if (what == 's') token->stride = number;
        else if (what == 'p') token->pad = number;
        else if (what == 'b') token->bias = 1;
        else abort();
    }
    return *end ? end + 1 : end;
}

/* ---- the model ---- */

static inline int net_build_token(struct dpn_model_builder *builder, const struct net_token *t,
                                  const char *name, int x)
{
    const struct dpn_conv_options conv = {t->out, t->kernel, t->kernel_width, t->stride, t->pad, t->bias};
    switch (t->op) {
    case 'c': return dpn_build_conv(builder, x, name, &conv);
    case 'n': return dpn_build_batch_norm(builder, x, name);
    case 'r': return dpn_build_relu(builder, x);
    case 'g': return dpn_build_global_average_pool(builder, x);
    case 'm': return dpn_build_max_pool(builder, x, t->kernel, t->stride, t->pad);
    case 'a': return dpn_build_average_pool(builder, x, t->kernel, t->stride, t->pad);
    case 'd': return dpn_build_dense(builder, x, name, t->out ? t->out : dpn_build_classes(builder), 0.0);
    default: abort();
    }
}

static inline int net_build(struct dpn_model_builder *builder)
{
    const char *text = dpn_build_option(builder, "ops");
    int stack[NET_MAX_STACK], depth = 0, x = 0;
    struct net_token token;
    for (int i = 0; (text = net_token(text, &token)); i++) {
        char name[16];
        snprintf(name, sizeof name, "l%d", i);
        if (token.op == '[') {
            stack[depth++] = x;
        } else if (token.op == 'x') {
            int y = stack[depth - 1];
            stack[depth - 1] = x;
            x = y;
        } else if (token.op == '+') {
            x = dpn_build_add(builder, stack[--depth], x);
        } else {
            x = net_build_token(builder, &token, name, x);
        }
    }
    return x;
}

static const struct dpn_model_class nn_model_net = {.name = "net",
                                                    .summary = "for tests",
                                                    .keys = "ops=d0",
                                                    .build = net_build};

/* ---- the same in double ---- */

struct net_map {
    size_t channels, height, width;
    double *x; /* [rows][channels][height][width] */
};

/* What a batch norm saw in training: per channel. */
struct net_moments {
    double *mean, *var; /* var: biased */
    size_t n;           /* values of a channel */
};

struct net {
    const char *text;
    size_t channels, height, width, classes, rows;
    int training;
    double *input;               /* [rows][channels][height][width] */
    size_t n_tensors, n_buffers; /* in order of the text */
    double *tensor[NET_MAX_TENSORS],
        *buffer[NET_MAX_TENSORS]; /* buffers: running mean, variance, mean, ... */
    struct net_moments moments[NET_MAX_TENSORS];
    double *logits;              /* [rows][classes], of the last run */
    size_t at_tensor, at_buffer; /* during a run */
};

static inline double *net_alloc(size_t n)
{
    double *x = calloc(n ? n : 1, sizeof *x);
    if (!x) abort();
    return x;
}

static inline size_t net_elems(const struct net_map *map)
{
    return map->channels * map->height * map->width;
}

static inline struct net_map net_new(const struct net *net, size_t channels, size_t height, size_t width)
{
    struct net_map map = {channels, height, width, NULL};
    map.x = net_alloc(net->rows * net_elems(&map));
    return map;
}

/* Element (Y, X) of one channel's plane, where padding is OUTSIDE. */
static inline double net_at(const struct net_map *map, const double *plane, size_t y, size_t x,
                            double outside)
{
    return y < map->height && x < map->width ? plane[y * map->width + x] : outside;
}

static inline double net_conv_sum(const struct net_token *t, const struct net_map *in, const double *sample,
                                  const double *weight, size_t oy, size_t ox)
{
    double sum = 0;
    for (size_t c = 0; c < in->channels; c++)
        for (size_t ky = 0; ky < t->kernel; ky++)
            for (size_t kx = 0; kx < t->kernel_width; kx++, weight++)
                sum += *weight * net_at(in, sample + c * in->height * in->width, oy * t->stride + ky - t->pad,
                                        ox * t->stride + kx - t->pad, 0);
    return sum;
}

static inline struct net_map net_conv(struct net *net, const struct net_token *t, const struct net_map *in)
{
    const double *weight = net->tensor[net->at_tensor++],
                 *bias = t->bias ? net->tensor[net->at_tensor++] : NULL;
    struct net_map out = net_new(net, t->out, (in->height + 2 * t->pad - t->kernel) / t->stride + 1,
                                 (in->width + 2 * t->pad - t->kernel_width) / t->stride + 1);
    double *y = out.x;
    for (size_t r = 0; r < net->rows; r++)
        for (size_t o = 0; o < t->out; o++)
            for (size_t i = 0; i < out.height * out.width; i++)
                *y++ = (bias ? bias[o] : 0) +
                       net_conv_sum(t, in, in->x + r * net_elems(in),
                                    weight + o * in->channels * t->kernel * t->kernel_width, i / out.width,
                                    i % out.width);
    return out;
}

static inline double net_window(const struct net_token *t, const struct net_map *in, const double *plane,
                                size_t oy, size_t ox)
{
    double most = -INFINITY, sum = 0;
    for (size_t ky = 0; ky < t->kernel; ky++)
        for (size_t kx = 0; kx < t->kernel; kx++) {
            size_t y = oy * t->stride + ky - t->pad, x = ox * t->stride + kx - t->pad;
            most = fmax(most, net_at(in, plane, y, x, -INFINITY));
            sum += net_at(in, plane, y, x, 0);
        }
    return t->op == 'm' ? most : sum / (double)(t->kernel * t->kernel);
}

static inline struct net_map net_pool(struct net *net, const struct net_token *t, const struct net_map *in)
{
    struct net_token window = *t;
    if (t->op == 'g') window = (struct net_token){.op = 'a', .kernel = 1, .stride = 1};
    struct net_map out =
        net_new(net, in->channels,
                t->op == 'g' ? 1 : (in->height + 2 * window.pad - window.kernel) / window.stride + 1,
                t->op == 'g' ? 1 : (in->width + 2 * window.pad - window.kernel) / window.stride + 1);
    size_t plane = in->height * in->width, size = out.height * out.width;
    for (size_t p = 0; p < net->rows * in->channels; p++)
        for (size_t i = 0; i < size; i++) {
            if (t->op != 'g') {
                out.x[p * size + i] = net_window(&window, in, in->x + p * plane, i / out.width,
                                                 i % out.width);
                continue;
            }
            for (size_t k = 0; k < plane; k++) out.x[p] += in->x[p * plane + k] / (double)plane;
        }
    return out;
}

static inline void net_channel_moments(const struct net *net, const struct net_map *in, size_t c,
                                       double *mean, double *var)
{
    size_t plane = in->height * in->width, n = net->rows * plane;
    *mean = *var = 0;
    for (size_t i = 0; i < n; i++)
        *mean += in->x[(i / plane * in->channels + c) * plane + i % plane] / (double)n;
    for (size_t i = 0; i < n; i++) {
        double d = in->x[(i / plane * in->channels + c) * plane + i % plane] - *mean;
        *var += d * d / (double)n;
    }
}

static inline struct net_map net_norm(struct net *net, const struct net_map *in)
{
    const double *weight = net->tensor[net->at_tensor++], *bias = net->tensor[net->at_tensor++];
    struct net_moments *seen = &net->moments[net->at_buffer / 2];
    const double *running_mean = net->buffer[net->at_buffer++], *running_var = net->buffer[net->at_buffer++];
    struct net_map out = net_new(net, in->channels, in->height, in->width);
    size_t plane = in->height * in->width;
    seen->n = net->rows * plane;
    for (size_t c = 0; c < in->channels; c++) {
        double mean = running_mean[c], var = running_var[c];
        if (net->training) {
            net_channel_moments(net, in, c, &mean, &var);
            seen->mean[c] = mean;
            seen->var[c] = var;
        }
        for (size_t i = 0; i < seen->n; i++) {
            size_t at = (i / plane * in->channels + c) * plane + i % plane;
            out.x[at] = (in->x[at] - mean) / sqrt(var + 1e-5) * weight[c] + bias[c];
        }
    }
    return out;
}

static inline struct net_map net_dense(struct net *net, const struct net_token *t, const struct net_map *in)
{
    const double *weight = net->tensor[net->at_tensor++], *bias = net->tensor[net->at_tensor++];
    struct net_map out = net_new(net, t->out ? t->out : net->classes, 1, 1);
    size_t n = net_elems(in);
    for (size_t i = 0; i < net->rows * out.channels; i++) {
        size_t r = i / out.channels, o = i % out.channels;
        out.x[i] = bias[o];
        for (size_t k = 0; k < n; k++) out.x[i] += weight[o * n + k] * in->x[r * n + k];
    }
    return out;
}

/* The value after TOKEN, which takes IN over. */
static inline struct net_map net_apply(struct net *net, const struct net_token *token, struct net_map in)
{
    struct net_map out = in;
    switch (token->op) {
    case 'c': out = net_conv(net, token, &in); break;
    case 'n': out = net_norm(net, &in); break;
    case 'd': out = net_dense(net, token, &in); break;
    case 'r':
        for (size_t i = 0; i < net->rows * net_elems(&in); i++) in.x[i] = in.x[i] < 0 ? 0 : in.x[i];
        return in;
    default: out = net_pool(net, token, &in);
    }
    free(in.x);
    return out;
}

static inline struct net_map net_copy(const struct net *net, const struct net_map *from)
{
    struct net_map copy = net_new(net, from->channels, from->height, from->width);
    memcpy(copy.x, from->x, net->rows * net_elems(from) * sizeof *copy.x);
    return copy;
}

static inline void net_run(struct net *net)
{
    struct net_map stack[NET_MAX_STACK], start = {net->channels, net->height, net->width, net->input};
    struct net_map x = net_copy(net, &start);
    struct net_token token;
    int depth = 0;
    net->at_tensor = net->at_buffer = 0;
    for (const char *text = net->text; (text = net_token(text, &token));) {
        if (token.op == '[') {
            stack[depth++] = net_copy(net, &x);
        } else if (token.op == 'x') {
            struct net_map y = stack[depth - 1];
            stack[depth - 1] = x;
            x = y;
        } else if (token.op == '+') {
            const struct net_map *other = &stack[--depth];
            for (size_t i = 0; i < net->rows * net_elems(&x); i++) x.x[i] += other->x[i];
            free(other->x);
        } else {
            x = net_apply(net, &token, x);
        }
    }
    if (depth != 0 || net_elems(&x) != net->classes || net->at_tensor != net->n_tensors) abort();
    memcpy(net->logits, x.x, net->rows * net->classes * sizeof *x.x);
    free(x.x);
}

/* Runs; the sum of the rows' cross-entropies. */
static inline double net_loss(struct net *net, const int32_t *labels)
{
    double loss = 0;
    net_run(net);
    for (size_t r = 0; r < net->rows; r++) {
        const double *z = net->logits + r * net->classes;
        double max = z[0], sum = 0;
        for (size_t c = 1; c < net->classes; c++) max = fmax(max, z[c]);
        for (size_t c = 0; c < net->classes; c++) sum += exp(z[c] - max);
        loss += max + log(sum) - z[labels[r]];
    }
    return loss;
}

/* A tensor of PyTorch's order as doubles. */
static inline double *net_import(const struct dpn_tensor *tensor, const float *arena)
{
    float *raw = calloc(tensor->elems, sizeof *raw);
    double *x = net_alloc(tensor->elems);
    if (!raw) abort();
    dpn_tensor_export(tensor, arena, raw);
    for (size_t i = 0; i < tensor->elems; i++) x[i] = raw[i];
    free(raw);
    return x;
}

/* TEXT with the parameters, running statistics and input of an exec of the same network. */
static inline void net_open(struct net *net, const char *text, const struct dpn_exec *exec, size_t rows,
                            int training)
{
    const struct dpn_model *model = exec->model;
    const struct dpn_value *in = &model->values[0];
    *net = (struct net){.text = text,
                        .channels = in->channels,
                        .height = in->height,
                        .width = in->width,
                        .classes = model->classes,
                        .rows = rows,
                        .training = training,
                        .n_tensors = model->n_tensors,
                        .n_buffers = model->n_buffers};
    net->input = net_alloc(rows * in->elems);
    net->logits = net_alloc(rows * model->classes);
    for (size_t t = 0; t < model->n_tensors; t++)
        net->tensor[t] = net_import(&model->tensors[t], exec->params);
    for (size_t b = 0; b < model->n_buffers; b++) {
        net->buffer[b] = net_import(&model->buffers[b], exec->buffers);
        net->moments[b / 2].mean = b % 2 ? net->moments[b / 2].mean : net_alloc(model->buffers[b].elems);
        net->moments[b / 2].var = b % 2 ? net->moments[b / 2].var : net_alloc(model->buffers[b].elems);
    }
    for (size_t i = 0; i < rows * in->elems; i++) {
        size_t r = i / in->elems, c = i / (in->height * in->width) % in->channels,
               p = i % (in->height * in->width);
        net->input[i] = exec->value[0][r * in->stride + p * in->cstride + c];
    }
}

static inline void net_close(struct net *net)
{
    for (size_t t = 0; t < net->n_tensors; t++) free(net->tensor[t]);
    for (size_t b = 0; b < net->n_buffers; b++) {
        free(net->buffer[b]);
        free(b % 2 ? net->moments[b / 2].var : net->moments[b / 2].mean);
    }
    free(net->input);
    free(net->logits);
}

#endif
