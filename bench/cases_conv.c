/* `bench kernels`: the convolutions of the models, every pass, every algorithm that serves. */
#include <stdio.h>
#include <string.h>

#include "bench/bench.h"
#include "core/team.h"

struct cases_layer {
    size_t in, out, side, kernel, stride, pad;
    int input;   /* the model's input: no data pass */
    size_t pool; /* as in struct dpn_conv */
};

static const struct cases_layer cases_layers[] = {
    {3, 64, 32, 3, 1, 1, 1, 0},    {64, 64, 32, 3, 1, 1, 0, 0},  {128, 128, 16, 3, 1, 1, 0, 0},
    {256, 256, 8, 3, 1, 1, 0, 0},  {512, 512, 4, 3, 1, 1, 0, 0}, {64, 128, 32, 3, 2, 1, 0, 0},
    {128, 256, 16, 3, 2, 1, 0, 0}, {256, 512, 8, 3, 2, 1, 0, 0}, {64, 128, 32, 1, 2, 0, 0, 0},
    {128, 256, 16, 1, 2, 0, 0, 0}, {256, 512, 8, 1, 2, 0, 0, 0}, {1, 6, 28, 5, 1, 2, 1, 0},
    {6, 16, 14, 5, 1, 0, 0, 0},    {1, 6, 28, 5, 1, 2, 1, 2},    {6, 16, 14, 5, 1, 0, 0, 2},
};

enum {
    CASES_X,
    CASES_Y,
    CASES_DY,
    CASES_WEIGHTS,
    CASES_SHARED,
    CASES_SCRATCH,
    CASES_BLOCKS = DPN_BENCH_BLOCKS,
    CASES_PLACE
};

/* Bounds of relative Frobenius errors between two float32 sums. */
static const double cases_direct = 2e-6, cases_winograd = 1e-5;

static size_t cases_weights(const struct dpn_conv *conv)
{
    return dpn_panel_elems(conv->kernel_height * conv->kernel_width * conv->in_channels, conv->out_channels);
}

/* Buffers are random numbers; where zeros must be (padding of channels), none of these layers has a place but
 * LeNet's few channels, whose padding is not read. */
static void cases_conv_run(const struct dpn_bench_case *c, const struct dpn_kernels *kernels,
                           float *const *buffers, int phase, int thread, int size)
{
    const struct dpn_conv *conv = &c->shape_conv;
    const struct dpn_conv_algorithm *algorithm = c->conv_algorithm;
    struct dpn_conv_args args = {.conv = conv, .pass = c->conv_pass, .shared = buffers[CASES_SHARED]};
    size_t first, count, items;
    (void)kernels;
    args.x.x = buffers[CASES_X];
    args.weights = buffers[CASES_WEIGHTS];
    args.dy.g = buffers[CASES_DY];
    args.y = args.dx = args.dweights = buffers[CASES_Y];
    args.moments = c->blocks ? buffers[CASES_BLOCKS] : NULL;
    args.place = conv->pool ? (uint8_t *)buffers[CASES_PLACE] : NULL;
    items = algorithm->items(conv, c->conv_pass, phase);
    if (items == 0) return;
    dpn_split(items, (size_t)size, (size_t)thread, &first, &count);
    if (count)
        algorithm->run(&args, phase, first, count,
                       buffers[CASES_SCRATCH] +
                           (size_t)thread * algorithm->private_floats(conv, c->conv_pass));
}

/* Places of maxima: any element of a window. */
static void cases_places(const struct dpn_bench_case *c, float *const *buffers)
{
    const struct dpn_conv *conv = &c->shape_conv;
    uint8_t *place = (uint8_t *)buffers[CASES_PLACE];
    for (size_t i = 0; i < conv->samples * conv->out_stride; i++)
        place[i] = (uint8_t)(i * 2654435761U >> 16 & 0xff) % (conv->pool * conv->pool);
}

static struct dpn_conv cases_conv(const struct cases_layer *layer, size_t batch)
{
    size_t out = (layer->side + 2 * layer->pad - layer->kernel) / layer->stride + 1;
    struct dpn_conv conv = {.samples = batch,
                            .in_channels = layer->in,
                            .in_cstride = layer->input ? layer->in : (layer->in + 15) / 16 * 16,
                            .in_height = layer->side,
                            .in_width = layer->side,
                            .out_channels = layer->out,
                            .out_cstride = (layer->out + 15) / 16 * 16,
                            .out_height = out,
                            .out_width = out,
                            .kernel_height = layer->kernel,
                            .kernel_width = layer->kernel,
                            .stride = layer->stride,
                            .pad = layer->pad,
                            .pool = layer->pool};
    conv.in_stride = layer->side * layer->side * conv.in_cstride;
    conv.in_stride = (conv.in_stride + 15) / 16 * 16;
    if (layer->pool) out /= layer->pool;
    conv.out_stride = out * out * conv.out_cstride;
    return conv;
}

static struct dpn_bench_case cases_make(const struct cases_layer *layer, size_t batch,
                                        enum dpn_conv_pass pass, const struct dpn_conv_algorithm *algorithm)
{
    static const char *const passes[] = {"forward", "data", "weights"};
    struct dpn_bench_case c = {.op = "conv",
                               .algorithm = algorithm->name,
                               .pass = passes[pass],
                               .conv = 1,
                               .shape_conv = cases_conv(layer, batch),
                               .conv_pass = pass,
                               .conv_algorithm = algorithm,
                               .bound = strcmp(algorithm->name, "winograd") ? cases_direct : cases_winograd,
                               .results = 1U << CASES_Y,
                               .exact = 1U << CASES_X | 1U << CASES_DY | 1U << CASES_WEIGHTS |
                                        1U << CASES_PLACE,
                               .run = cases_conv_run,
                               .phases = DPN_CONV_MAX_PHASES};
    const struct dpn_conv *conv = &c.shape_conv;
    size_t x = batch * conv->in_stride, y = batch * conv->out_stride, w = cases_weights(conv);
    snprintf(c.shape, sizeof c.shape, "%zu->%zu %zux%zu stride %zu @%zu%s", layer->in, layer->out,
             layer->kernel, layer->kernel, layer->stride, layer->side, layer->pool ? " pooled" : "");
    if (pass == DPN_CONV_FORWARD && !layer->pool) {
        c.blocks = algorithm->blocks(conv, pass);
        c.columns = conv->out_cstride;
    }
    if (pass != DPN_CONV_FORWARD && layer->pool) c.prepare = cases_places;
    c.flops = 2.0 * (double)(batch * conv->out_height * conv->out_width) *
              (double)(layer->kernel * layer->kernel * layer->in) * (double)layer->out;
    c.bytes = 4.0 * (double)(x + y + w);
    return c;
}

size_t dpn_bench_conv_cases(const struct dpn_kernels *kernels, size_t batch, struct dpn_bench_case *cases,
                            size_t max)
{
    size_t n = 0;
    for (size_t l = 0; l < sizeof cases_layers / sizeof *cases_layers; l++)
        for (int p = DPN_CONV_FORWARD; p <= DPN_CONV_WEIGHTS; p++) {
            enum dpn_conv_pass pass = (enum dpn_conv_pass)p;
            const struct dpn_conv conv = cases_conv(&cases_layers[l], batch);
            if (pass == DPN_CONV_DATA && cases_layers[l].input) continue;
            for (size_t a = 0; kernels->conv[a]; a++)
                if (kernels->conv[a]->serves(&conv, pass) && n < max)
                    cases[n++] = cases_make(&cases_layers[l], batch, pass, kernels->conv[a]);
        }
    return n;
}

size_t dpn_bench_floats(const struct dpn_bench_case *c, size_t threads)
{
    if (!c->conv)
        return c->n * (c->columns ? c->columns : 1) + (c->flops > 0 ? c->k * (c->n + c->columns) : 0) + 4096;
    const struct dpn_conv *conv = &c->shape_conv;
    size_t most = conv->samples * (conv->in_stride > conv->out_stride ? conv->in_stride : conv->out_stride);
    size_t wanted[] = {c->conv_algorithm->shared_floats(conv, c->conv_pass),
                       c->conv_algorithm->private_floats(conv, c->conv_pass) * threads, cases_weights(conv),
                       c->conv_pass == DPN_CONV_WEIGHTS ? 0
                                                        : c->conv_algorithm->blocks(conv, c->conv_pass) *
                                                              dpn_block_floats(conv->out_cstride)};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        if (wanted[i] > most) most = wanted[i];
    return most + 4096;
}
