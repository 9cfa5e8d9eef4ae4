/* Optimizer steps: PyTorch 2.x's single-tensor arithmetic, rounded to float32 after every operation.
 *
 * Element-wise, with -ffp-contract=off: whatever the slice and the vector length, an element gets the same
 * bits. The options are constants in each copy of the loops.
 */
#include <math.h>

#include "kernels/cpu/isa.h"

/* BUFFER: 0 no momentum, 1 first step, 2 later ones. */
static DPN_ALWAYS_INLINE void optim_sgd(size_t n, const struct dpn_sgd *args, const int buffer,
                                        const int nesterov, float *restrict p, const float *restrict g,
                                        float *restrict m)
{
    const float lr = args->lr, momentum = args->momentum, decay = args->weight_decay;
    for (size_t i = 0; i < n; i++) {
        float gradient = g[i];
        if (decay != 0.0f) gradient += decay * p[i];
        if (buffer != 0) {
            m[i] = buffer == 1 ? gradient : m[i] * momentum + gradient;
            gradient = nesterov ? gradient + momentum * m[i] : m[i];
        }
        p[i] -= lr * gradient;
    }
}

void DPN_ISA_SYMBOL(sgd)(size_t n, const struct dpn_sgd *args, float *p, const float *g, float *m)
{
    if (args->momentum == 0.0f) optim_sgd(n, args, 0, 0, p, g, m);
    else if (args->first && args->nesterov) optim_sgd(n, args, 1, 1, p, g, m);
    else if (args->first) optim_sgd(n, args, 1, 0, p, g, m);
    else if (args->nesterov) optim_sgd(n, args, 2, 1, p, g, m);
    else optim_sgd(n, args, 2, 0, p, g, m);
}

/* SMALL_WEIGHT: torch.lerp goes from the nearer end. */
static DPN_ALWAYS_INLINE void optim_adam(size_t n, const struct dpn_adam *args, const int decoupled,
                                         const int small_weight, float *restrict p, const float *restrict g,
                                         float *restrict m, float *restrict v)
{
    const float beta2 = (float)args->beta2, decay = args->weight_decay;
    const float weight1 = (float)(1.0 - args->beta1), weight2 = (float)(1.0 - args->beta2);
    const float decay_factor = args->decay_factor, eps = args->eps;
    const float step_size = args->step_size, inv_sqrt_bias2 = args->inv_sqrt_bias2;
    for (size_t i = 0; i < n; i++) {
        float gradient = g[i], param = p[i];
        if (decoupled) param *= decay_factor;
        else if (decay != 0.0f) gradient += decay * param;
        float difference = gradient - m[i];
        m[i] = small_weight ? m[i] + weight1 * difference : gradient - difference * (1.0f - weight1);
        v[i] = v[i] * beta2 + weight2 * gradient * gradient;
        float denominator = sqrtf(v[i]) * inv_sqrt_bias2 + eps;
        p[i] = param - step_size * m[i] / denominator;
    }
}

void DPN_ISA_SYMBOL(adam)(size_t n, const struct dpn_adam *args, float *p, const float *g, float *m, float *v)
{
    const int small_weight = (float)(1.0 - args->beta1) < 0.5f;
    if (args->decoupled && small_weight) optim_adam(n, args, 1, 1, p, g, m, v);
    else if (args->decoupled) optim_adam(n, args, 1, 0, p, g, m, v);
    else if (small_weight) optim_adam(n, args, 0, 1, p, g, m, v);
    else optim_adam(n, args, 0, 0, p, g, m, v);
}
