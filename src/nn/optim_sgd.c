/* SGD with momentum, Nesterov's too, as torch.optim.SGD with dampening 0. */
#include "nn/nn.h"

static enum dpn_status sgd_check(const struct dpn_optimizer_settings *settings)
{
    if (settings->nesterov && settings->momentum == 0.0)
        return dpn_fail(DPN_ERR_USAGE, "--nesterov needs --momentum above 0");
    return DPN_OK;
}

static int sgd_n_slots(const struct dpn_optimizer_settings *settings)
{
    return settings->momentum != 0.0;
}

static void sgd_update(const struct dpn_optimizer_settings *settings, const struct dpn_kernels *kernels,
                       double lr, uint64_t t, size_t elems, float *params, const float *grads,
                       float *const *state)
{
    struct dpn_sgd args = {
        .lr = (float)lr,
        .momentum = (float)settings->momentum,
        .weight_decay = (float)settings->weight_decay,
        .nesterov = settings->nesterov,
        .first = t == 1,
    };
    kernels->sgd(elems, &args, params, grads, sgd_n_slots(settings) ? state[0] : NULL);
}

static const char *const sgd_slots[] = {"momentum_buffer", NULL};

const struct dpn_optimizer_class dpn_optimizer_sgd = {
    .name = "sgd",
    .summary = "stochastic gradient descent with momentum",
    .default_lr = 0.05,
    .slots = sgd_slots,
    .check = sgd_check,
    .n_slots = sgd_n_slots,
    .update = sgd_update,
};
