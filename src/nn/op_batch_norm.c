/* Batch normalisation (Ioffe & Szegedy 2015), with ReLU and residual addition fused: y = [relu](z*scale +
 * shift + r), scale = weight/sqrt(var + eps), shift = bias - mean*scale.
 *
 * Cost: next to convolutions nothing but what is fused into them (link.c); else one pass for the moments, one
 * for y, one for mask and sums of the gradient, one for z's gradient. Moments depend on the shape alone
 * (blocks.c).
 */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "core/memory.h"
#include "core/tree.h"
#include "nn/nn.h"

/* What PyTorch's BatchNorm2d has by default. */
static const double norm_eps = 1e-5, norm_momentum = 0.1;

/* Pieces handed to threads. */
enum { NORM_MACS_PER_ELEM = 4, NORM_PIECE_PIXELS = 256 };

/* Rows of cstride floats in exec->aux. */
enum {
    NORM_MEAN,
    NORM_INVSTD,
    NORM_SCALE,
    NORM_SHIFT,
    NORM_G_SCALE,
    NORM_Z_SCALE,
    NORM_G_SHIFT,
    NORM_AUX_ROWS
};

static size_t norm_cstride(const struct dpn_exec *exec, const struct dpn_node *node)
{
    return exec->model->values[node->input].cstride;
}

static float *norm_aux(const struct dpn_exec *exec, const struct dpn_node *node, int row)
{
    return exec->aux + node->aux_at + (size_t)row * norm_cstride(exec, node);
}

static size_t norm_pixels(const struct dpn_exec *exec, const struct dpn_node *node, size_t rows)
{
    const struct dpn_value *z = &exec->model->values[node->input];
    return rows * z->height * z->width;
}

struct norm_job {
    const struct dpn_kernels *kernels;
    size_t pixels, cstride;
    float *d;
    struct dpn_bn_apply apply;
    struct dpn_gradient gradient;
    int adds;       /* the residual's gradient: to what is there */
    float *scratch; /* NULL: z's gradient is overwritten; else added to, by way of a piece here */
    size_t scratch_floats;
};

/* This thread's run of pieces. */
static size_t norm_share(const struct norm_job *job, int thread, int size, size_t *first)
{
    size_t begin, count, pieces = (job->pixels + NORM_PIECE_PIXELS - 1) / NORM_PIECE_PIXELS;
    dpn_split(pieces, (size_t)size, (size_t)thread, &begin, &count);
    *first = begin * NORM_PIECE_PIXELS;
    size_t end = (begin + count) * NORM_PIECE_PIXELS;
    return (end < job->pixels ? end : job->pixels) - (*first < job->pixels ? *first : job->pixels);
}

static void norm_spread(const struct dpn_exec *exec, struct norm_job *job, dpn_team_fn *fn)
{
    job->kernels = exec->kernels;
    dpn_exec_spread(exec, (double)job->pixels * (double)job->cstride * NORM_MACS_PER_ELEM, fn, job);
}

/* ---- moments ---- */

struct dpn_mask_sums dpn_batch_norm_mask(const struct dpn_exec *exec, const struct dpn_node *norm)
{
    struct dpn_mask_sums mask = {
        .z = exec->value[norm->input],
        .mean = norm_aux(exec, norm, NORM_MEAN),
        .sums = exec->blocks,
    };
    if (!norm->relu) return mask;
    mask.y = exec->value[norm->output];
    if (mask.y) return mask;
    mask.scale = norm_aux(exec, norm, NORM_SCALE);
    mask.shift = norm_aux(exec, norm, NORM_SHIFT);
    return mask;
}

/* Whether the convolution that reads the norm's output has masked its gradient and taken the sums. */
static int norm_masked(const struct dpn_model *model, const struct dpn_node *node)
{
    int reader = model->values[node->output].first_reader;
    return reader >= 0 && model->nodes[reader].masks == (int)(node - model->nodes);
}

static int norm_measured(const struct dpn_model *model, const struct dpn_node *node)
{
    int maker = model->values[node->input].maker;
    return maker >= 0 && model->nodes[maker].norm == (int)(node - model->nodes);
}

static void norm_measure(const struct dpn_node *node, struct dpn_exec *exec, size_t rows, int backward)
{
    const struct dpn_model *model = exec->model;
    size_t pixels = norm_pixels(exec, node, rows), cstride = norm_cstride(exec, node);
    if (backward ? norm_masked(model, node) : norm_measured(model, node)) return;
    if (backward) {
        const struct dpn_mask_sums mask = dpn_batch_norm_mask(exec, node);
        dpn_exec_mask_sums(exec, pixels, cstride, exec->grad[node->output], &mask,
                           exec->sums + node->moments_at);
    } else {
        dpn_exec_moments(exec, pixels, cstride, exec->value[node->input], exec->moments + node->moments_at);
    }
}

/* Of a channel: count, mean and sum of squared deviations of both parts together (Chan, Golub & LeVeque
 * 1979); or count and two sums. */
static void norm_merge(double into[3], const double other[3], int backward)
{
    double n = into[0] + other[0], delta = other[1] - into[1];
    if (other[0] == 0) return;
    if (backward) {
        into[1] += other[1];
        into[2] += other[2];
    } else {
        into[1] += delta * other[0] / n;
        into[2] += other[2] + delta * delta * into[0] * other[0] / n;
    }
    into[0] = n;
}

/* TOTAL: channel C of LEAVES shards along the one tree, shard i's doubles at ALL + i*STRIDE. */
static void norm_combine_channel(const double *all, size_t stride, uint64_t leaves, size_t cstride, size_t c,
                                 int backward, double total[3])
{
    double stack[DPN_TREE_MAX_LEVEL + 2][3];
    size_t depth = 0;
    for (uint64_t leaf = 0; leaf < leaves; leaf++) {
        const double *from = all + leaf * stride;
        stack[depth][0] = from[0];
        stack[depth][1] = from[1 + c];
        stack[depth++][2] = from[1 + cstride + c];
        for (unsigned adds = dpn_tree_adds_after(leaf, 0, leaves, leaves); adds > 0; adds--, depth--)
            norm_merge(stack[depth - 2], stack[depth - 1], backward);
    }
    assert(depth == 1);
    memcpy(total, stack[0], sizeof stack[0]);
}

static void norm_combine(size_t elems, const double *all, uint64_t leaves, int backward, double *total)
{
    size_t cstride = (elems - 1) / 2;
    for (size_t c = 0; c < cstride; c++) {
        double one[3];
        norm_combine_channel(all, elems, leaves, cstride, c, backward, one);
        total[0] = one[0];
        total[1 + c] = one[1];
        total[1 + cstride + c] = one[2];
    }
}

/* ---- forward ---- */

static void norm_set(const struct dpn_node *node, const struct dpn_exec *exec, size_t c, double mean,
                     double var)
{
    const struct dpn_model *model = exec->model;
    double invstd = 1.0 / sqrt(var + norm_eps);
    double scale = (double)exec->params[model->tensors[node->tensors[0]].offset + c] * invstd;
    norm_aux(exec, node, NORM_MEAN)[c] = (float)mean;
    norm_aux(exec, node, NORM_INVSTD)[c] = (float)invstd;
    norm_aux(exec, node, NORM_SCALE)[c] = (float)scale;
    /* With the rounded scale, so that the mean becomes the bias whatever the rounding. */
    norm_aux(exec, node,
             NORM_SHIFT)[c] = (float)((double)exec->params[model->tensors[node->tensors[1]].offset + c] -
                                      mean * (double)(float)scale);
}

static void norm_adopt_forward(const struct dpn_node *node, const struct dpn_exec *exec, const double *total)
{
    size_t cstride = norm_cstride(exec, node), channels = exec->model->values[node->input].channels;
    for (size_t c = 0; c < channels; c++)
        norm_set(node, exec, c, total[1 + c], total[1 + cstride + c] / total[0]);
}

/* The gradient of z, as dz = g*scale + z*z_scale + shift: scale*(g - sum g/n - (z - mean)*invstd^2*sum g(z -
 * mean)/n).
 */
static void norm_adopt_backward(const struct dpn_node *node, const struct dpn_exec *exec, const double *total)
{
    const struct dpn_model *model = exec->model;
    size_t cstride = norm_cstride(exec, node), channels = model->values[node->input].channels;
    for (size_t c = 0; c < channels; c++) {
        double invstd = (double)norm_aux(exec, node, NORM_INVSTD)[c],
               mean = (double)norm_aux(exec, node, NORM_MEAN)[c];
        double scale = (double)norm_aux(exec, node, NORM_SCALE)[c];
        double z_scale = -scale * invstd * invstd * total[1 + cstride + c] / total[0];
        norm_aux(exec, node, NORM_G_SCALE)[c] = (float)scale;
        norm_aux(exec, node, NORM_Z_SCALE)[c] = (float)z_scale;
        norm_aux(exec, node, NORM_G_SHIFT)[c] = (float)(-scale * total[1 + c] / total[0] - z_scale * mean);
    }
}

/* The shard's own sums, however many shards shared the statistics. */
static void norm_tensor_grads(const struct dpn_node *node, const struct dpn_exec *exec)
{
    const struct dpn_model *model = exec->model;
    size_t cstride = norm_cstride(exec, node);
    const double *own = exec->sums + node->moments_at;
    float *dweight = exec->grads + model->tensors[node->tensors[0]].offset;
    float *dbias = exec->grads + model->tensors[node->tensors[1]].offset;
    for (size_t c = 0; c < model->values[node->input].channels; c++) {
        dbias[c] = (float)own[1 + c];
        dweight[c] = (float)(own[1 + cstride + c] * (double)norm_aux(exec, node, NORM_INVSTD)[c]);
    }
}

static void norm_adopt(const struct dpn_node *node, struct dpn_exec *exec, const double *total, int backward)
{
    if (backward) norm_adopt_backward(node, exec, total);
    else norm_adopt_forward(node, exec, total);
}

static void norm_running(const struct dpn_node *node, const struct dpn_exec *exec)
{
    const struct dpn_model *model = exec->model;
    const float *mean = exec->buffers + model->buffers[node->buffers].offset;
    const float *var = exec->buffers + model->buffers[node->buffers + 1].offset;
    for (size_t c = 0; c < model->values[node->input].channels; c++)
        norm_set(node, exec, c, (double)mean[c], (double)var[c]);
}

static void norm_apply_part(void *arg, int thread, int size)
{
    const struct norm_job *job = arg;
    struct dpn_bn_apply part = job->apply;
    size_t first;
    part.pixels = norm_share(job, thread, size, &first);
    if (part.pixels == 0) return;
    part.z += first * job->cstride;
    part.y += first * job->cstride;
    if (part.residual.x) part.residual.x += first * job->cstride;
    job->kernels->bn_apply(&part);
}

static void norm_forward(const struct dpn_node *node, struct dpn_exec *exec, size_t rows, int training)
{
    struct norm_job job = {.pixels = norm_pixels(exec, node, rows), .cstride = norm_cstride(exec, node)};
    if (!training) norm_running(node, exec);
    if (exec->model->values[node->output].lazy) return;
    job.apply = (struct dpn_bn_apply){
        .cstride = job.cstride,
        .z = exec->value[node->input],
        .scale = norm_aux(exec, node, NORM_SCALE),
        .shift = norm_aux(exec, node, NORM_SHIFT),
        .relu = node->relu,
        .y = exec->value[node->output],
    };
    if (node->residual >= 0) job.apply.residual = dpn_exec_source(exec, node->residual);
    norm_spread(exec, &job, norm_apply_part);
}

/* ---- backward ---- */

static void norm_grad_part(void *arg, int thread, int size)
{
    const struct norm_job *job = arg;
    struct dpn_gradient dy = job->gradient;
    size_t first, pixels = norm_share(job, thread, size, &first);
    float *into = job->d + first * job->cstride;
    if (pixels == 0) return;
    dy.g += first * job->cstride;
    dy.z += first * job->cstride;
    if (!job->scratch) {
        job->kernels->bn_grad(pixels, job->cstride, &dy, into);
        return;
    }
    float *part = job->scratch + (size_t)thread * job->scratch_floats;
    for (size_t n, floats; pixels > 0; pixels -= n, dy.g += floats, dy.z += floats, into += floats) {
        n = pixels < NORM_PIECE_PIXELS ? pixels : NORM_PIECE_PIXELS;
        floats = n * job->cstride;
        job->kernels->bn_grad(n, job->cstride, &dy, part);
        job->kernels->add(floats, into, part, into);
    }
}

static void norm_residual_part(void *arg, int thread, int size)
{
    const struct norm_job *job = arg;
    size_t first, pixels = norm_share(job, thread, size, &first);
    const float *from = job->gradient.g + first * job->cstride;
    float *into = job->d + first * job->cstride;
    if (pixels == 0) return;
    if (job->adds) job->kernels->add(pixels * job->cstride, into, from, into);
    else memcpy(into, from, pixels * job->cstride * sizeof *into);
}

static struct dpn_gradient norm_gradient(const struct dpn_exec *exec, const struct dpn_node *node)
{
    return (struct dpn_gradient){
        .g = exec->grad[node->output],
        .z = exec->value[node->input],
        .g_scale = norm_aux(exec, node, NORM_G_SCALE),
        .z_scale = norm_aux(exec, node, NORM_Z_SCALE),
        .shift = norm_aux(exec, node, NORM_G_SHIFT),
    };
}

static void norm_backward(const struct dpn_node *node, struct dpn_exec *exec, size_t rows)
{
    struct norm_job job = {.pixels = norm_pixels(exec, node, rows),
                           .cstride = norm_cstride(exec, node),
                           .gradient = norm_gradient(exec, node),
                           .adds = node->adds_residual_grad};
    norm_tensor_grads(node, exec);
    if (node->needs_residual_grad && exec->grad[node->residual] != exec->grad[node->output]) {
        job.d = exec->grad[node->residual];
        norm_spread(exec, &job, norm_residual_part);
    }
    if (!node->needs_input_grad || exec->model->values[node->input].grad_lazy) return;
    job.d = exec->grad[node->input];
    if (node->adds_input_grad) job.scratch = exec->scratch;
    job.scratch_floats = exec->scratch_floats;
    norm_spread(exec, &job, norm_grad_part);
}

/* ---- reading through a norm ---- */

struct dpn_source dpn_exec_source(const struct dpn_exec *exec, int value)
{
    const struct dpn_value *v = &exec->model->values[value];
    if (!v->lazy) return (struct dpn_source){.x = exec->value[value]};
    const struct dpn_node *norm = &exec->model->nodes[v->maker];
    return (struct dpn_source){
        .x = exec->value[norm->input],
        .scale = norm_aux(exec, norm, NORM_SCALE),
        .shift = norm_aux(exec, norm, NORM_SHIFT),
        .relu = norm->relu,
    };
}

struct dpn_gradient dpn_exec_gradient(const struct dpn_exec *exec, const struct dpn_node *node)
{
    if (node->pool) return (struct dpn_gradient){.g = exec->grad[exec->model->nodes[node->pooled].output]};
    if (!exec->model->values[node->output].grad_lazy)
        return (struct dpn_gradient){.g = exec->grad[node->output]};
    return norm_gradient(exec, &exec->model->nodes[node->norm]);
}

/* ---- running statistics ---- */

/* Mean and variance of channel C that one step contributes: of all values together, or averaged over shards.
 */
static void norm_step_statistics(const double *moments, size_t stride, uint64_t leaves, size_t cstride,
                                 size_t c, double *mean, double *var, int *uncorrected)
{
    double samples = 0;
    *mean = *var = 0;
    for (uint64_t l = 0; l < leaves; l++) samples += moments[l * stride];
    for (uint64_t l = 0; l < leaves; l++) {
        const double *m = moments + l * stride;
        double n = m[0];
        *mean += n / samples * m[1 + c];
        *var += n / samples * (m[1 + cstride + c] / (n > 1 ? n - 1 : n));
        *uncorrected |= n <= 1;
    }
}

static void norm_move(float *running, double value)
{
    *running = (float)((1.0 - norm_momentum) * (double)*running + norm_momentum * value);
}

int dpn_batch_norm_update(const struct dpn_model *model, const double *moments, size_t stride,
                          uint64_t leaves, int sync, float *buffers)
{
    int uncorrected = 0;
    for (size_t i = 0; i < model->n_nodes; i++) {
        const struct dpn_node *node = &model->nodes[i];
        if (node->buffers < 0) continue;
        size_t cstride = model->values[node->input].cstride;
        const double *at = moments + node->moments_at;
        for (size_t c = 0; c < model->values[node->input].channels; c++) {
            double whole[3], mean, var;
            if (sync) {
                norm_combine_channel(at, stride, leaves, cstride, c, 0, whole);
                norm_step_statistics(whole, 3, 1, 1, 0, &mean, &var, &uncorrected);
            } else {
                norm_step_statistics(at, stride, leaves, cstride, c, &mean, &var, &uncorrected);
            }
            norm_move(buffers + model->buffers[node->buffers].offset + c, mean);
            norm_move(buffers + model->buffers[node->buffers + 1].offset + c, var);
        }
    }
    return uncorrected;
}

/* ---- the class ---- */

static size_t norm_moments_elems(const struct dpn_model *model, const struct dpn_node *node)
{
    return 1 + 2 * model->values[node->input].cstride;
}

static size_t norm_aux_elems(const struct dpn_model *model, const struct dpn_node *node)
{
    return NORM_AUX_ROWS * model->values[node->input].cstride;
}

static void norm_workspace(const struct dpn_model *model, const struct dpn_node *node,
                           const struct dpn_kernels *kernels, size_t rows, int training,
                           struct dpn_workspace *workspace)
{
    const struct dpn_value *z = &model->values[node->input];
    (void)kernels;
    if (training) workspace->blocks = dpn_exec_blocks_floats(rows * z->height * z->width, z->cstride);
    if (training && node->needs_input_grad && node->adds_input_grad)
        workspace->scratch = NORM_PIECE_PIXELS * z->cstride;
}

const struct dpn_op_class dpn_op_batch_norm = {
    .name = "batch_norm",
    .fuses_relu = 1,
    .fuses_add = 1,
    .reads_lazy_residual = 1,
    .keeps_input = 1,
    .keeps_output = 1,
    .sharing = DPN_SHARES_RESIDUAL,
    .forward = norm_forward,
    .backward = norm_backward,
    .moments_elems = norm_moments_elems,
    .aux_elems = norm_aux_elems,
    .measure = norm_measure,
    .adopt = norm_adopt,
    .combine = norm_combine,
    .workspace = norm_workspace,
};

int dpn_build_batch_norm(struct dpn_model_builder *builder, int input, const char *name)
{
    const struct dpn_value *z = dpn_build_shape(builder, input);
    if (!z) return -1;
    assert(z->cstride % 16 == 0);
    size_t channels = z->channels;
    int weight = dpn_build_tensor(builder, name, "weight", NULL, 1, &channels, DPN_INIT_ONE, 0);
    int bias = dpn_build_tensor(builder, name, "bias", NULL, 1, &channels, DPN_INIT_ZERO, 0);
    int mean = dpn_build_buffer(builder, name, "running_mean", channels, DPN_INIT_ZERO);
    dpn_build_buffer(builder, name, "running_var", channels, DPN_INIT_ONE);
    int output = dpn_build_value(builder, channels, z->height, z->width, -1);
    struct dpn_node *node = dpn_build_node(builder, &dpn_op_batch_norm, input, output, 0);
    if (!node) return -1;
    node->tensors[0] = weight;
    node->tensors[1] = bias;
    node->buffers = mean;
    return output;
}
