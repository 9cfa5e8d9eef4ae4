/* Learning-rate schedules. */
#include <assert.h>
#include <math.h>

#include "nn/nn.h"

double dpn_schedule_lr(const struct dpn_schedule *schedule, uint64_t step)
{
    const double pi = 3.14159265358979323846;
    double at = (double)step, base = schedule->base_lr, per_epoch = (double)schedule->steps_per_epoch;
    double warmup = round(schedule->warmup_epochs * per_epoch), span, passed = 0.0;
    if (at < warmup) return base * (at + 1.0) / warmup;
    switch (schedule->kind) {
    case DPN_SCHEDULE_CONSTANT: return base;
    case DPN_SCHEDULE_STEP:
        for (size_t i = 0; i < schedule->n_milestones; i++)
            passed += at >= schedule->milestones[i] * per_epoch;
        return base * pow(schedule->gamma, passed);
    case DPN_SCHEDULE_COSINE:
        span = (double)schedule->total_steps - warmup;
        if (at - warmup >= span) return schedule->min_lr;
        return schedule->min_lr + (base - schedule->min_lr) * (1.0 + cos(pi * (at - warmup) / span)) / 2.0;
    }
    assert(!"an enum dpn_schedule_kind");
    return base;
}
