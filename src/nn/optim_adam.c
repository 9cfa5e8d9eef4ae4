/* Adam and AdamW, as torch.optim's without amsgrad: they differ in how weight decay enters. */
#include <float.h>
#include <math.h>

#include "nn/nn.h"

static enum dpn_status adam_check(const struct dpn_optimizer_settings *settings)
{
    if (settings->nesterov) return dpn_fail(DPN_ERR_USAGE, "--nesterov is for --optimizer sgd");
    if (!(settings->beta1 >= 0.0 && settings->beta1 < 1.0))
        return dpn_fail(DPN_ERR_USAGE, "--beta1: %g is not in [0, 1)", settings->beta1);
    if (!(settings->beta2 >= 0.0 && settings->beta2 < 1.0))
        return dpn_fail(DPN_ERR_USAGE, "--beta2: %g is not in [0, 1)", settings->beta2);
    return DPN_OK;
}

static int adam_n_slots(const struct dpn_optimizer_settings *settings)
{
    (void)settings;
    return 2;
}

static void adam_run(const struct dpn_optimizer_settings *settings, const struct dpn_kernels *kernels,
                     double lr, uint64_t t, int decoupled, size_t elems, float *params, const float *grads,
                     float *const *state)
{
    double bias1 = 1.0 - pow(settings->beta1, (double)t), bias2 = 1.0 - pow(settings->beta2, (double)t);
    float eps = (float)settings->eps;
    struct dpn_adam args = {
        .beta1 = settings->beta1,
        .beta2 = settings->beta2,
        .eps = eps > FLT_MIN ? eps : FLT_MIN, /* 0 would make padding 0/0 */
        .weight_decay = (float)settings->weight_decay,
        .decoupled = decoupled,
        .decay_factor = (float)(1.0 - lr * settings->weight_decay),
        .step_size = (float)(lr / bias1),
        .inv_sqrt_bias2 = (float)(1.0 / sqrt(bias2)),
    };
    kernels->adam(elems, &args, params, grads, state[0], state[1]);
}

static void adam_update(const struct dpn_optimizer_settings *settings, const struct dpn_kernels *kernels,
                        double lr, uint64_t t, size_t elems, float *params, const float *grads,
                        float *const *state)
{
    adam_run(settings, kernels, lr, t, 0, elems, params, grads, state);
}

static void adamw_update(const struct dpn_optimizer_settings *settings, const struct dpn_kernels *kernels,
                         double lr, uint64_t t, size_t elems, float *params, const float *grads,
                         float *const *state)
{
    adam_run(settings, kernels, lr, t, 1, elems, params, grads, state);
}

static const char *const adam_slots[] = {"exp_avg", "exp_avg_sq", NULL};

const struct dpn_optimizer_class dpn_optimizer_adam = {
    .name = "adam",
    .summary = "Adam; weight decay adds to the gradient",
    .default_lr = 0.001,
    .slots = adam_slots,
    .check = adam_check,
    .n_slots = adam_n_slots,
    .update = adam_update,
};

const struct dpn_optimizer_class dpn_optimizer_adamw = {
    .name = "adamw",
    .summary = "Adam with decoupled weight decay",
    .default_lr = 0.001,
    .slots = adam_slots,
    .check = adam_check,
    .n_slots = adam_n_slots,
    .update = adamw_update,
};
