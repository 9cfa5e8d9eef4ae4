/* The table of CPU kernels: pure functions of their arguments, single-threaded, callable from any thread.
 *
 * Each instruction set fills the same table from the same sources (kernels/cpu), and kernels/ref fills it
 * with plain loops: the truth the others are tested against. Callers cut work into pieces and give them to
 * team threads; how they cut never changes a result, because every slot computes each output element by a
 * fixed sequence of operations that depends on the shapes and the instruction set alone:
 *   gemm       C[i][j] is one chain of multiply-adds over k = 0..K-1, starting at 0 or at C[i][j]; cuts of
 *              m, n and k (with accumulate) and their order cannot change it. avx2 and avx512 fuse, and agree
 *              bit by bit; ref and baseline round every product, and agree
 *   col_sum    rows in ascending order, one chain a column
 *   reductions (sum_squares, loss) run in a documented order over the whole range they are given
 *
 * Layout: matrices are row-major float32. A "panel" matrix (weights of dense layers, [in][out]) is stored as
 * [ceil(out/64)][in][64]: panel p holds columns 64p .. 64p+63, in rows of 64 floats; the last panel has rows
 * of round16(out - 64p) floats. Columns past OUT are padding and stay 0.
 */
#ifndef DPN_KERNELS_KERNELS_H
#define DPN_KERNELS_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "core/status.h"
#include "kernels/conv.h"

enum { DPN_PANEL_COLUMNS = 64 };

/* Floats that a panel matrix of ROWS x COLUMNS takes, padding included. */
size_t dpn_panel_elems(size_t rows, size_t columns);
/* Offset of panel P's first float, and its row stride (64, or the last panel's round16 rest). */
void dpn_panel(size_t rows, size_t columns, size_t p, size_t *offset, size_t *stride);
/* The rows of a weight's panel matrix: TAPS (kernel positions, or pixels before a dense layer) of CHANNELS,
 * in steps of CSTRIDE >= channels rows (rows between are 0). PyTorch's order is [column][channel][tap]. */
struct dpn_panel_rows {
    size_t taps, channels, cstride;
};
/* Between PyTorch's Linear.weight [out][in] or Conv2d.weight [out][in][kh][kw] and the panel matrix
 * [rows = taps*cstride][columns = out]; padding is 0. */
void dpn_panel_pack(const struct dpn_panel_rows *rows, size_t columns, const float *torch_weight,
                    float *panel);
void dpn_panel_unpack(const struct dpn_panel_rows *rows, size_t columns, const float *panel,
                      float *torch_weight);

/* C[m][n] = A B, or C += A B with accumulate. Element A(i,k) = a[i*a_row + k*a_col], B(k,j) = b[k*b_row +
 * j*b_col], C(i,j) = c[i*c_row + j]. One of a_row, a_col is 1 and one of b_row, b_col is 1. b and c
 * 64-byte aligned where n is a multiple of 16, b_col 1 and b_row, c_row multiples of 16 (the fast path);
 * anything else works. C overlaps neither A nor B. Up to 38 KB of stack. */
struct dpn_gemm {
    size_t m, n, k;
    const float *a;
    size_t a_row, a_col;
    const float *b;
    size_t b_row, b_col;
    float *c;
    size_t c_row;
    int accumulate;
};

/* One optimizer step on a slice: p, g and the slots m, v are slices of equal length. Arithmetic as
 * PyTorch's torch.optim (2.x, single-tensor path), in float32, with the step's scalars computed in double
 * by the caller. */
struct dpn_sgd {
    float lr, momentum, weight_decay; /* momentum 0: m is not used and may be NULL */
    int nesterov;
    int first; /* first step: m = g (PyTorch), not momentum*m + g */
};
struct dpn_adam {
    double beta1, beta2; /* double: 1 - beta is rounded to float32 once, as in PyTorch */
    float eps, weight_decay;
    int decoupled;        /* AdamW: p *= 1 - lr*weight_decay first; Adam: g += weight_decay*p */
    float decay_factor;   /* 1 - lr*weight_decay */
    float step_size;      /* lr / (1 - beta1^t) */
    float inv_sqrt_bias2; /* 1 / sqrt(1 - beta2^t): p -= step_size * m / (sqrt(v)*inv_sqrt_bias2 + eps) */
};

/* Pooling over windows of KERNEL x KERNEL at steps of STRIDE, PAD pixels around (at most kernel/2). NHWC as
 * in conv.h; both sides have the same CSTRIDE, a multiple of 16. out = (in + 2*pad - kernel)/stride + 1
 * (floor). */
struct dpn_pool {
    size_t samples, cstride;
    size_t in_height, in_width, in_stride, out_height, out_width, out_stride;
    size_t kernel, stride, pad;
    int average; /* else maximum. PyTorch's AvgPool2d with count_include_pad: divides by kernel*kernel */
};

/* Batch norm's output: y = [relu](z*scale[c] + shift[c] + residual). RESIDUAL.x NULL: none; its own scale,
 * shift and relu as in conv.h. PIXELS x CSTRIDE, contiguous; CSTRIDE a multiple of 16. */
struct dpn_bn_apply {
    size_t pixels, cstride;
    const float *z, *scale, *shift;
    struct dpn_source residual;
    int relu;
    float *y; /* may be z or residual.x */
};

/* How a sample's raw pixels become an input: window (TOP, LEFT) of HEIGHT x WIDTH of the image with zeros
 * (raw ones) around it, mirrored left to right if FLIP, then value*scale[c] + shift[c]. One of U8 and F32 is
 * NULL; CHW. OUT: HWC, cstride = channels. */
struct dpn_image {
    size_t channels, height, width;
    const uint8_t *u8;
    const float *f32;
    long top, left;
    int flip;
    const float *scale, *shift;
    float *out;
};

/* --conv. */
enum dpn_conv_choice {
    DPN_CONV_AUTO,     /* the fastest for the shape, as measured */
    DPN_CONV_WINOGRAD, /* wherever it serves */
    DPN_CONV_DIRECT,   /* the most general everywhere */
};

struct dpn_kernels {
    const char *isa; /* "ref", "baseline", "avx2", "avx512" */

    void (*gemm)(const struct dpn_gemm *gemm);

    /* y[r][c] += bias[c] for c < cols (then max(0, .) with relu, where NaN stays NaN), rows of STRIDE
     * floats; bias may be NULL. */
    void (*bias_relu)(size_t rows, size_t cols, size_t stride, const float *bias, int relu, float *y);
    void (*relu)(size_t n, const float *x, float *y);
    /* dx = y > 0 ? dy : 0; dx may be dy. */
    void (*relu_grad)(size_t n, const float *y, const float *dy, float *dx);
    /* out[c] = sum over rows of x[r][c], rows ascending. */
    void (*col_sum)(size_t rows, size_t cols, size_t stride, const float *x, float *out);

    /* Softmax cross-entropy by log-sum-exp over rows of CLASSES values (row stride STRIDE). *loss = sum
     * over rows, ascending, of the losses (each in double); *correct = rows whose first largest logit is
     * the label. With dlogits not NULL (may be logits): (softmax - onehot) * scale, padding columns to
     * STRIDE set to 0. Labels are in 0..classes-1 (checked when data is loaded). A non-finite logit makes
     * the loss and its row's gradient NaN, and the row no hit. */
    void (*softmax_xent)(size_t rows, size_t classes, size_t stride, const float *logits,
                         const int32_t *labels, float scale, float *dlogits, double *loss, uint64_t *correct);

    void (*sgd)(size_t n, const struct dpn_sgd *args, float *p, const float *g, float *m);
    void (*adam)(size_t n, const struct dpn_adam *args, float *p, const float *g, float *m, float *v);

    /* dst = a + b (dst may be either). */
    void (*add)(size_t n, const float *a, const float *b, float *dst);
    /* dst = sum of N_SOURCES sources by the stack programme of core/tree.h (adds[j] additions after pushing
     * source j, one value left). dst may be any of the sources. n_sources >= 1. */
    void (*tree_sum)(size_t n, size_t n_sources, const uint8_t *adds, const float *const *sources,
                     float *dst);
    void (*scale)(size_t n, float factor, float *x);
    /* Sum of squares in double: fixed blocks of 1,024 floats, each summed in 16 interleaved double lanes
     * added pairwise (lane l and l+8, then l+4, ...), blocks ascending. */
    double (*sum_squares)(size_t n, const float *x);

    /* dst[i] = src[i] * scale + shift. */
    void (*u8_to_f32)(size_t n, const uint8_t *src, float scale, float shift, float *dst);
    /* dst[i] = src[i] * scale + shift, floats. */
    void (*f32_affine)(size_t n, const float *src, float scale, float shift, float *dst);

    /* From most specialised to most general; NULL-terminated, the last one serves every shape and pass. */
    const struct dpn_conv_algorithm *const *conv;

    /* ---- batch norm over PIXELS x CSTRIDE (contiguous) ---- */
    /* Count, mean, sum of squared deviations of every channel: one block as conv.h defines it. In float32,
     * two passes or an equivalent that does not cancel. */
    void (*moments)(size_t pixels, size_t cstride, const float *x, float *block);
    /* BLOCKS blocks, ascending, by Chan's rule in double: out[0] count, then mean [cstride], then sum of
     * squared deviations [cstride]. A block with 0 pixels changes nothing. */
    void (*moments_combine)(size_t blocks, size_t cstride, const float *moments, double *out);
    void (*bn_apply)(const struct dpn_bn_apply *args);
    /* Masks D (in place) and takes its sums: one block of mask->sums as conv.h says (there: y, z are pixels
     * 0.. of this piece too). */
    void (*mask_sums)(size_t pixels, size_t cstride, float *d, const struct dpn_mask_sums *mask);
    /* BLOCKS blocks of sums, ascending, in double: out[0] pixels, then the first sums [cstride], then the
     * second. */
    void (*sums_combine)(size_t blocks, size_t cstride, const float *sums, double *out);
    /* dz = g*g_scale[c] + z*z_scale[c] + shift[c]; dz may be g. */
    void (*bn_grad)(size_t pixels, size_t cstride, const struct dpn_gradient *dy, float *dz);

    /* ---- pooling: samples FIRST .. FIRST+COUNT-1 ---- */
    /* Maximum: the first largest in window order, NaN wins; padding never wins. */
    void (*pool)(const struct dpn_pool *pool, size_t first, size_t count, const float *x, float *y);
    /* dx overwritten, padding channels included. The maximum's gradient goes to the first element of the
     * window that equals it (NaN: the first NaN). */
    void (*pool_grad)(const struct dpn_pool *pool, size_t first, size_t count, const float *x, const float *y,
                      const float *dy, float *dx);

    void (*image)(const struct dpn_image *image);

    /* For measuring: N times some hundred independent vector multiply-adds in registers; returns their flops.
     * RESULT: one float, read and written. */
    double (*peak)(size_t n, float *result);
    /* For measuring: copies N floats, multiple of 16, 64-byte aligned, past the caches where the set has
     * stores that do. */
    void (*stream)(size_t n, const float *from, float *to);

    int fixed_cut; /* 1: gemm's bits depend on how it is cut (OpenBLAS), so callers cut by the shape alone */
    enum dpn_conv_choice conv_choice; /* which of them dpn_conv_choose takes */
};

/* The plain loops. */
extern const struct dpn_kernels dpn_kernels_ref;

/* The table of instruction set ISA: "auto" (the widest that CPUID and the operating system allow), "ref",
 * "baseline", "avx2", "avx512". One that this CPU cannot run, or that was not built, is refused:
 * DPN_ERR_USAGE naming --isa. */
enum dpn_status dpn_kernels_select(const char *isa, const struct dpn_kernels **kernels);

/* The algorithm for a pass of CONV: a function of the table and the shape of a sample, never of the number of
 * samples. Never NULL. conv.c. */
const struct dpn_conv_algorithm *dpn_conv_choose(const struct dpn_kernels *kernels,
                                                 const struct dpn_conv *conv, enum dpn_conv_pass pass);

/* OpenBLAS, loaded at run time: kernels/cpu/blas_openblas.c. For comparison and for CPUs that only it
 * knows: on those measured, no shape of this project's layers was faster with it than with the table's own
 * gemm, so nothing needs it unless asked. */
struct dpn_blas {
    int loaded;       /* 0: own GEMM serves, `why` says why */
    char core[32];    /* its core type ("SkylakeX") */
    char config[160]; /* openblas_get_config() */
    char path[256];   /* the library file */
    char why[200];    /* why not loaded, or a remark (a corrected OPENBLAS_CORETYPE); "" if none */
};
/* Chooses a core type by CPUID (an inherited OPENBLAS_CORETYPE is kept only if this CPU can run it at full
 * width), sets OPENBLAS_NUM_THREADS=1, loads libopenblas.so.0 in one-thread mode, and checks small
 * products against dpn_kernels_ref. Changes the environment: before threads start. On success *TABLE is a
 * copy of *KERNELS (static storage) whose gemm slot is sgemm for every product. Its elements are no chain
 * over k: how a product is cut changes bits, and fixed_cut says so. Dimensions and strides must fit an int.
 * Never fails: without OpenBLAS *TABLE is KERNELS. */
void dpn_blas_load(const struct dpn_kernels *kernels, const struct dpn_kernels **table,
                   struct dpn_blas *blas);
/* To be called once by every thread that will call gemm: OpenMP builds of OpenBLAS keep their thread count
 * per calling thread. */
void dpn_blas_thread_init(void);

/* Rounding to nearest, denormals taken and given as 0: sets this thread's MXCSR so, whatever it inherited.
 * Every thread, at its start. */
void dpn_kernels_thread_init(void);

#endif
