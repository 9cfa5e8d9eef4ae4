/* 2-D convolution (cross-correlation, as PyTorch's Conv2d) over a batch of samples, forward and backward.
 *
 * Activations are NHWC float32: sample n, pixel (y, x), channel c at n*sample_stride + (y*width + x)*cstride
 * + c. A cstride is the number of channels rounded up to 16, and the floats between are 0; only a model's
 * input has cstride = channels. Weights are the panel matrix of kernels.h with rows = taps*in_channels (row
 * (ky*kernel_width + kx)*in_channels + c) and columns = out_channels.
 *
 * An algorithm does a pass in phases, each cut into items. Which items there are, and what an item computes,
 * depends on the shape (struct dpn_conv) and the instruction set alone; items of a phase are independent, a
 * phase begins when the one before is done. So any team gives the same bits. Items of one phase write
 * disjoint memory.
 *
 * What batch norm would read or write again in passes of its own is done here while the data is in cache.
 *
 * Source: x is read as it is, or as [relu](x*scale[c] + shift[c]), a batch norm's output that is never
 * stored.
 *
 * Gradient: dy is read as it is, or as g*g_scale[c] + z*z_scale[c] + shift[c], batch norm's input gradient.
 *
 * Moments: per block of output pixels, count, mean and sum of squared deviations of every channel.
 *
 * Mask and sums: in the data pass, the finished dx is masked by a ReLU and batch norm's two sums are taken of
 * it.
 *
 * Maximum pooling: y is never stored, only each window's maximum and which element that was; backward, the
 * gradient of the maxima is read as dy.
 *
 * Padding pixels are exactly 0 whatever scale and shift say.
 */
#ifndef DPN_KERNELS_CONV_H
#define DPN_KERNELS_CONV_H

#include <stddef.h>
#include <stdint.h>

enum { DPN_CONV_MAX_PHASES = 3, DPN_CONV_MAX_POOL = 15 };

/* Shape of one convolution. out_height = (in_height + 2*pad - kernel_height)/stride + 1, and so on. POOL: 0,
 * or the side of the windows that y is pooled over, at steps of as much; then out_stride is that of the
 * pooled tensor, of out_height/pool x out_width/pool pixels (rows and columns past the last whole window are
 * dropped).
 */
struct dpn_conv {
    size_t samples;
    size_t in_channels, in_cstride, in_height, in_width,
        in_stride; /* in_stride: floats from sample to sample */
    size_t out_channels, out_cstride, out_height, out_width, out_stride;
    size_t kernel_height, kernel_width, stride, pad;
    size_t pool;
};

/* Whether POOL may be asked for: where the output has so few channels that passes over it weigh most, and
 * where no faster algorithm would be lost. */
static inline int dpn_conv_may_pool(const struct dpn_conv *conv)
{
    return conv->pool >= 2 && conv->pool <= DPN_CONV_MAX_POOL && conv->out_channels < 64 &&
           !(conv->kernel_height == 3 && conv->kernel_width == 3 && conv->stride == 1);
}

enum dpn_conv_pass {
    DPN_CONV_FORWARD, /* y from x and weights */
    DPN_CONV_DATA,    /* dx from dy and weights */
    DPN_CONV_WEIGHTS, /* dweights from x and dy */
};

/* X read as it is (scale NULL), or times SCALE[c] plus SHIFT[c] ([in_cstride] floats each, 0 in the padding),
 * then max(0, .) with RELU (NaN stays NaN). */
struct dpn_source {
    const float *x;
    const float *scale, *shift;
    int relu;
};

/* dY read as G (Z NULL), or as G*g_scale[c] + Z*z_scale[c] + shift[c] ([out_cstride] floats each, 0 in the
 * padding). Z has G's layout. With pool, G (Z NULL) is the gradient of the maxima. */
struct dpn_gradient {
    const float *g, *z;
    const float *g_scale, *z_scale, *shift;
};

/* Of a finished gradient d of the layout of dx: it is set to 0 where the activation before it was not
 * positive, that is where y <= 0 or NaN (Y not NULL), or where z*scale[c] + shift[c] <= 0 or NaN (SCALE not
 * NULL), or nowhere; then SUMS gets, block by block, sum d and sum d*(z - mean[c]) over the block's pixels.
 */
struct dpn_mask_sums {
    const float *y;
    const float *z, *scale, *shift, *mean;
    float *sums; /* dpn_block_floats(cstride) a block: sum d [cstride], sum d*(z-mean) [cstride], pixels,
                    unused */
};

/* Floats of one block of moments or sums: two of CSTRIDE floats, then 16 of which the first is the number of
 * pixels. Moments: mean [cstride], sum of (y-mean)^2 [cstride], pixels. */
static inline size_t dpn_block_floats(size_t cstride)
{
    return 2 * cstride + 16;
}

struct dpn_conv_args {
    const struct dpn_conv *conv;
    enum dpn_conv_pass pass;
    struct dpn_source x;        /* forward, weights */
    const float *weights;       /* forward, data */
    const float *bias;          /* forward: [round16(out_channels)], or NULL */
    int relu;                   /* forward: y = max(0, .) after the bias, NaN stays NaN */
    float *y;                   /* forward; with pool: the maxima, as kernels.h's pool gives them */
    uint8_t *place;             /* with pool: of the maxima's layout, the first element of the window that is
                                   the maximum, counted row by row; forward writes it, the others read it */
    float *moments;             /* forward: blocks() blocks of y as written, or NULL; not with pool */
    struct dpn_gradient dy;     /* data, weights */
    float *dx;                  /* data */
    int accumulate;             /* data: dx += */
    struct dpn_mask_sums *mask; /* data: or NULL; its sums: blocks() blocks */
    float *dweights;            /* weights: overwritten, panel padding included (zeros) */
    float *shared; /* shared_floats() floats, 64-byte aligned, contents undefined between passes */
};

struct dpn_conv_algorithm {
    const char *name; /* "winograd", "direct" */
    /* Whether it can do this pass of this shape (any data). */
    int (*serves)(const struct dpn_conv *conv, enum dpn_conv_pass pass);
    /* Workspace of a pass. Fewer samples may want more of it, as items are cut by their number. */
    size_t (*shared_floats)(const struct dpn_conv *conv, enum dpn_conv_pass pass);
    /* Scratch of one thread, multiple of 16 floats. */
    size_t (*private_floats)(const struct dpn_conv *conv, enum dpn_conv_pass pass);
    /* Number of items of PHASE, 0: the pass has no such phase, nor a later one. */
    size_t (*items)(const struct dpn_conv *conv, enum dpn_conv_pass pass, int phase);
    /* Blocks of moments (forward) or sums (data): their pixels make up the tensor, each pixel in one block
     * per channel. */
    size_t (*blocks)(const struct dpn_conv *conv, enum dpn_conv_pass pass);
    /* Items FIRST .. FIRST+COUNT-1 of PHASE. SCRATCH: private_floats() floats, 64-byte aligned, of this
     * thread. */
    void (*run)(const struct dpn_conv_args *args, int phase, size_t first, size_t count, float *scratch);
};

#endif
