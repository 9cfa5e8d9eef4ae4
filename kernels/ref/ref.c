/* Every slot as plain loops: the truth that the fast kernels are tested against, written to be read, not to
 * be fast. Here the table and the simple ones.
 *
 * Products are rounded before they are added, so gemm is the chain of kernels.h for a set without FMA.
 */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "kernels/ref/ref.h"

static void ref_gemm(const struct dpn_gemm *gemm)
{
    for (size_t i = 0; i < gemm->m; i++) {
        for (size_t j = 0; j < gemm->n; j++) {
            float *c = &gemm->c[i * gemm->c_row + j], sum = gemm->accumulate ? *c : 0.0f;
            for (size_t l = 0; l < gemm->k; l++)
                sum += gemm->a[i * gemm->a_row + l * gemm->a_col] *
                       gemm->b[l * gemm->b_row + j * gemm->b_col];
            *c = sum;
        }
    }
}

static void ref_bias_relu(size_t rows, size_t cols, size_t stride, const float *bias, int relu, float *y)
{
    for (size_t r = 0; r < rows; r++) {
        for (size_t c = 0; c < cols; c++) {
            float *value = &y[r * stride + c];
            if (bias != NULL) *value += bias[c];
            if (relu) *value = ref_max0(*value);
        }
    }
}

static void ref_relu(size_t n, const float *x, float *y)
{
    for (size_t i = 0; i < n; i++) y[i] = ref_max0(x[i]);
}

static void ref_relu_grad(size_t n, const float *y, const float *dy, float *dx)
{
    for (size_t i = 0; i < n; i++) dx[i] = y[i] > 0.0f ? dy[i] : 0.0f;
}

static void ref_col_sum(size_t rows, size_t cols, size_t stride, const float *x, float *out)
{
    for (size_t c = 0; c < cols; c++) {
        float sum = 0;
        for (size_t r = 0; r < rows; r++) sum += x[r * stride + c];
        out[c] = sum;
    }
}

/* Index of the first largest of X[n]; N if one is not finite. */
static size_t ref_argmax(const float *x, size_t n)
{
    size_t top = 0;
    for (size_t c = 0; c < n; c++) {
        if (!isfinite(x[c])) return n;
        if (x[c] > x[top]) top = c;
    }
    return top;
}

/* As softmax_xent for one row. The largest term, exp(0), is left out of REST: with it a small loss would
 * be lost. */
static double ref_xent_row(const float *x, size_t n, size_t label, float scale, float *dlogits,
                           uint64_t *correct)
{
    const size_t top = ref_argmax(x, n);
    if (top == n) {
        for (size_t c = 0; dlogits != NULL && c < n; c++) dlogits[c] = NAN;
        return (double)NAN;
    }
    const double largest = (double)x[top], own = (double)x[label] - largest;
    double rest = 0;
    for (size_t c = 0; c < n; c++)
        if (c != top) rest += exp((double)x[c] - largest);
    for (size_t c = 0; dlogits != NULL && c < n; c++) {
        double e = exp((double)x[c] - largest);
        if (c == label) e = label == top ? -rest : e - (1.0 + rest);
        dlogits[c] = (float)(e / (1.0 + rest) * (double)scale);
    }
    *correct += top == label;
    return log1p(rest) - own;
}

static void ref_softmax_xent(size_t rows, size_t classes, size_t stride, const float *logits,
                             const int32_t *labels, float scale, float *dlogits, double *loss,
                             uint64_t *correct)
{
    *loss = 0;
    *correct = 0;
    for (size_t r = 0; r < rows; r++) {
        float *gradient = dlogits != NULL ? dlogits + r * stride : NULL;
        assert(labels[r] >= 0 && (size_t)labels[r] < classes);
        *loss += ref_xent_row(logits + r * stride, classes, (size_t)labels[r], scale, gradient, correct);
        for (size_t c = classes; gradient != NULL && c < stride; c++) gradient[c] = 0;
    }
}

static void ref_sgd(size_t n, const struct dpn_sgd *args, float *p, const float *g, float *m)
{
    for (size_t i = 0; i < n; i++) {
        float gradient = g[i];
        if (args->weight_decay != 0.0f) gradient += args->weight_decay * p[i];
        if (args->momentum != 0.0f) {
            m[i] = args->first ? gradient : m[i] * args->momentum + gradient;
            gradient = args->nesterov ? gradient + args->momentum * m[i] : m[i];
        }
        p[i] -= args->lr * gradient;
    }
}

/* torch.lerp: from the nearer end. */
static float ref_lerp(float start, float end, float weight)
{
    return weight < 0.5f ? start + weight * (end - start) : end - (end - start) * (1.0f - weight);
}

static void ref_adam(size_t n, const struct dpn_adam *args, float *p, const float *g, float *m, float *v)
{
    const float weight1 = (float)(1.0 - args->beta1), weight2 = (float)(1.0 - args->beta2);
    for (size_t i = 0; i < n; i++) {
        float gradient = g[i], denominator;
        if (args->decoupled) p[i] *= args->decay_factor;
        else if (args->weight_decay != 0.0f) gradient += args->weight_decay * p[i];
        m[i] = ref_lerp(m[i], gradient, weight1);
        v[i] = v[i] * (float)args->beta2 + weight2 * gradient * gradient;
        denominator = sqrtf(v[i]) * args->inv_sqrt_bias2 + args->eps;
        p[i] -= args->step_size * m[i] / denominator;
    }
}

static void ref_add(size_t n, const float *a, const float *b, float *dst)
{
    for (size_t i = 0; i < n; i++) dst[i] = a[i] + b[i];
}

static void ref_tree_sum(size_t n, size_t n_sources, const uint8_t *adds, const float *const *sources,
                         float *dst)
{
    enum { DEPTH = 66 }; /* one partial sum a level of the tree at most, and the new one */
    float stack[DEPTH];
    for (size_t i = 0; i < n; i++) {
        size_t depth = 0;
        for (size_t s = 0; s < n_sources; s++) {
            assert(depth < DEPTH);
            stack[depth++] = sources[s][i];
            for (unsigned a = 0; a < adds[s]; a++) {
                depth--;
                stack[depth - 1] += stack[depth];
            }
        }
        assert(depth == 1);
        dst[i] = stack[0];
    }
}

static void ref_scale(size_t n, float factor, float *x)
{
    for (size_t i = 0; i < n; i++) x[i] *= factor;
}

static double ref_sum_squares(size_t n, const float *x)
{
    double total = 0;
    for (size_t block = 0; block < n; block += 1024) {
        double lanes[16] = {0};
        for (size_t i = block; i < n && i < block + 1024; i++) lanes[i % 16] += (double)x[i] * (double)x[i];
        for (size_t half = 8; half > 0; half /= 2)
            for (size_t l = 0; l < half; l++) lanes[l] += lanes[l + half];
        total += lanes[0];
    }
    return total;
}

static void ref_u8_to_f32(size_t n, const uint8_t *src, float scale, float shift, float *dst)
{
    for (size_t i = 0; i < n; i++) dst[i] = (float)src[i] * scale + shift;
}

static void ref_f32_affine(size_t n, const float *src, float scale, float shift, float *dst)
{
    for (size_t i = 0; i < n; i++) dst[i] = src[i] * scale + shift;
}

static double ref_peak(size_t n, float *result)
{
    for (size_t i = 0; i < 64 * n; i++) *result = *result * 0.999f + 1.0f;
    return 128.0 * (double)n;
}

static void ref_stream(size_t n, const float *from, float *to)
{
    memcpy(to, from, n * sizeof *to);
}

const struct dpn_kernels dpn_kernels_ref = {
    .isa = "ref",
    .gemm = ref_gemm,
    .bias_relu = ref_bias_relu,
    .relu = ref_relu,
    .relu_grad = ref_relu_grad,
    .col_sum = ref_col_sum,
    .softmax_xent = ref_softmax_xent,
    .sgd = ref_sgd,
    .adam = ref_adam,
    .add = ref_add,
    .tree_sum = ref_tree_sum,
    .scale = ref_scale,
    .sum_squares = ref_sum_squares,
    .u8_to_f32 = ref_u8_to_f32,
    .f32_affine = ref_f32_affine,
    .conv = dpn_conv_ref,
    .moments = dpn_ref_moments,
    .moments_combine = dpn_ref_moments_combine,
    .bn_apply = dpn_ref_bn_apply,
    .mask_sums = dpn_ref_mask_sums,
    .sums_combine = dpn_ref_sums_combine,
    .bn_grad = dpn_ref_bn_grad,
    .pool = dpn_ref_pool,
    .pool_grad = dpn_ref_pool_grad,
    .image = dpn_ref_image,
    .peak = ref_peak,
    .stream = ref_stream,
};
