/* Softmax cross-entropy. A vector holds one class of several rows, so that nothing is added across a vector
 * and a row's result is one chain over its classes, whatever the vector length and its neighbours.
 *
 * All in double: logits are few, and a loss near 0 keeps its digits only if 1 + rest is never rounded to
 * float. Exponential and logarithm are our own: libm has no vectors, and its versions differ.
 *
 * Compiled with -ffp-contract=off.
 */
#include <float.h>
#include <math.h>
#include <string.h>

#include "kernels/cpu/isa.h"

enum { SOFTMAX_ROWS = DPN_LANES / 2 };
typedef double softmax_vec __attribute__((vector_size(SOFTMAX_ROWS * 8)));
typedef int64_t softmax_int __attribute__((vector_size(SOFTMAX_ROWS * 8)));

/* What the passes over a group of rows hand on. Rows that a short group lacks repeat its last one. */
struct softmax_group {
    const float *x[SOFTMAX_ROWS];
    softmax_vec largest;
    softmax_vec finite; /* 0; NaN if a logit is infinite or NaN */
    softmax_int top;    /* the first class that has the largest logit */
    softmax_vec rest;   /* sum of exp(x - largest) over all classes but TOP */
};

/* Lane by lane: MASK (all ones or 0) ? A : B. */
static DPN_ALWAYS_INLINE softmax_vec softmax_select(softmax_int mask, softmax_vec a, softmax_vec b)
{
    return (softmax_vec)(((softmax_int)a & mask) | ((softmax_int)b & ~mask));
}

/* exp(x) for x <= 0, relative error below 1e-11 (below -708: exp(-708)): 2^n times a polynomial on |r| <=
 * ln(2)/2. */
static DPN_ALWAYS_INLINE softmax_vec softmax_exp(softmax_vec x)
{
    const double shift = 0x1.8p52; /* adding it rounds to an integer, which the low bits then hold */
    x = softmax_select(x < -708.0, (softmax_vec){0} - 708.0, x);
    const softmax_vec shifted = x * 0x1.71547652b82fep+0 + shift, n = shifted - shift;
    const softmax_vec r = (x - n * 0x1.62e42fefa39efp-1) - n * 0x1.abc9e3b39803fp-56; /* ln(2) in two parts */
    softmax_vec p = r * (1.0 / 3628800.0) + 1.0 / 362880.0;
    p = p * r + 1.0 / 40320.0;
    p = p * r + 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    return (softmax_vec)((softmax_int)p + ((softmax_int)shifted << 52));
}

/* log(1 + x) for x >= 0, relative error below 1e-14. With 1 + x = 2^n m, m in [2/3, 4/3): n ln(2) + 2
 * atanh(s), s = (m-1)/(m+1); what 1 + x rounded away is added to first order. */
static DPN_ALWAYS_INLINE softmax_vec softmax_log1p(softmax_vec x)
{
    const softmax_vec one_x = 1.0 + x, lost = x - (one_x - 1.0);
    const softmax_int two_thirds = (softmax_int)((softmax_vec){0} + 2.0 / 3.0);
    const softmax_int exponent = ((softmax_int)one_x - two_thirds) & -(INT64_C(1) << 52);
    const softmax_vec m = (softmax_vec)((softmax_int)one_x - exponent);
    const softmax_vec n = __builtin_convertvector(exponent >> 52, softmax_vec);
    const softmax_vec s = (m - 1.0) / (m + 1.0), z = s * s;
    softmax_vec p = z * (1.0 / 19.0) + 1.0 / 17.0;
    p = p * z + 1.0 / 15.0;
    p = p * z + 1.0 / 13.0;
    p = p * z + 1.0 / 11.0;
    p = p * z + 1.0 / 9.0;
    p = p * z + 1.0 / 7.0;
    p = p * z + 1.0 / 5.0;
    p = p * z + 1.0 / 3.0;
    p = 2.0 * s + 2.0 * s * (p * z);
    return n * 0x1.62e42fefa39efp-1 + (p + lost / one_x);
}

static DPN_ALWAYS_INLINE softmax_vec softmax_column(const struct softmax_group *group, size_t c)
{
    softmax_vec column;
    DPN_UNROLL
    for (size_t i = 0; i < SOFTMAX_ROWS; i++) column[i] = (double)group->x[i][c];
    return column;
}

static DPN_ALWAYS_INLINE void softmax_find_largest(struct softmax_group *group, size_t classes)
{
    softmax_vec largest = (softmax_vec){0} - DBL_MAX, finite = {0};
    softmax_int top = {0};
    for (size_t c = 0; c < classes; c++) {
        const softmax_vec x = softmax_column(group, c);
        const softmax_int more = x > largest;
        largest = softmax_select(more, x, largest);
        top = (((softmax_int){0} + (int64_t)c) & more) | (top & ~more);
        finite += x - x;
    }
    group->largest = largest;
    group->finite = finite;
    group->top = top;
}

/* The exponentials go to GRADIENT (rows, may be the logits) unless that is NULL. */
static DPN_ALWAYS_INLINE void softmax_sum(struct softmax_group *group, size_t classes, float *const *gradient)
{
    softmax_vec rest = {0};
    for (size_t c = 0; c < classes; c++) {
        const softmax_vec e = softmax_exp(softmax_column(group, c) - group->largest);
        const softmax_int others = group->top != (int64_t)c;
        rest += (softmax_vec)((softmax_int)e & others);
        if (gradient != NULL) {
            DPN_UNROLL
            for (size_t i = 0; i < SOFTMAX_ROWS; i++) gradient[i][c] = (float)e[i];
        }
    }
    group->rest = rest;
}

/* ROW holds exp(x - largest), and then (softmax - onehot) * SCALE. */
static void softmax_gradient(size_t classes, size_t stride, size_t label, int hit, double rest, double scale,
                             float *row)
{
    const double total = 1.0 + rest, factor = scale / total;
    const double own = hit ? -rest : (double)row[label] - total; /* (softmax - 1) * total */
    for (size_t c = 0; c < classes; c++) row[c] = (float)((double)row[c] * factor);
    row[label] = (float)(own * factor);
    for (size_t c = classes; c < stride; c++) row[c] = 0;
}

void DPN_ISA_SYMBOL(softmax_xent)(size_t rows, size_t classes, size_t stride, const float *logits,
                                  const int32_t *labels, float scale, float *dlogits, double *loss,
                                  uint64_t *correct)
{
    struct softmax_group group;
    float *gradient[SOFTMAX_ROWS];
    double sum = 0;
    uint64_t hits = 0;
    for (size_t r = 0; r < rows; r += SOFTMAX_ROWS) {
        const size_t count = rows - r < SOFTMAX_ROWS ? rows - r : SOFTMAX_ROWS;
        softmax_vec own = {0};
        for (size_t i = 0; i < SOFTMAX_ROWS; i++) {
            const size_t row = r + (i < count ? i : count - 1);
            group.x[i] = logits + row * stride;
            gradient[i] = dlogits != NULL ? dlogits + row * stride : NULL;
            own[i] = (double)group.x[i][labels[row]];
        }
        softmax_find_largest(&group, classes);
        softmax_sum(&group, classes, dlogits != NULL ? gradient : NULL);
        const softmax_vec losses = softmax_log1p(group.rest) + (group.largest - own) + group.finite;
        for (size_t i = 0; i < count; i++) {
            const size_t label = (size_t)labels[r + i];
            const int finite = group.finite[i] == 0.0, hit = finite && (size_t)group.top[i] == label;
            sum += losses[i];
            hits += (uint64_t)hit;
            if (dlogits != NULL)
                softmax_gradient(classes, stride, label, hit, group.rest[i],
                                 finite ? (double)scale : (double)NAN, gradient[i]);
        }
    }
    *loss = sum;
    *correct = hits;
}
