/* The order of an epoch's samples, and how many steps it has. */
#include "data/data.h"

#include <assert.h>
#include <stdlib.h>

#include "core/rng.h"

enum dpn_status dpn_sampler_open(struct dpn_sampler *sampler, size_t n, size_t batch,
                                 enum dpn_last_batch last, int shuffle, uint64_t seed)
{
    if (n == 0 || n > UINT32_MAX)
        return dpn_fail(DPN_ERR_USAGE, "--data: %zu training samples, wanted 1 to %u", n, UINT32_MAX);
    if (batch == 0) return dpn_fail(DPN_ERR_USAGE, "--batch: 0 of %zu samples, wanted at least 1", n);
    if (last == DPN_LAST_DROP && n < batch)
        return dpn_fail(DPN_ERR_USAGE, "--batch %zu: with --last-batch drop, %zu samples make no step", batch,
                        n);

    *sampler = (struct dpn_sampler){.n = n, .batch = batch, .last = last, .shuffle = shuffle, .seed = seed};
    sampler->steps = n / batch + (last != DPN_LAST_DROP && n % batch != 0);
    sampler->order = malloc(n * sizeof(*sampler->order));
    if (!sampler->order) return dpn_fail(DPN_ERR_NOMEM, "no memory for the order of %zu samples", n);
    dpn_sampler_set_epoch(sampler, 0);
    return DPN_OK;
}

void dpn_sampler_close(struct dpn_sampler *sampler)
{
    free(sampler->order);
    *sampler = (struct dpn_sampler){0};
}

void dpn_sampler_set_epoch(struct dpn_sampler *sampler, uint64_t epoch)
{
    uint32_t *order = sampler->order;
    sampler->epoch = epoch;
    for (size_t i = 0; i < sampler->n; i++) order[i] = (uint32_t)i;
    if (!sampler->shuffle) return;

    struct dpn_rng rng;
    dpn_rng_init(&rng, sampler->seed, DPN_RNG_SHUFFLE, epoch, 0);
    for (size_t i = sampler->n - 1; i > 0; i--) {
        size_t j = dpn_rng_below(&rng, (uint32_t)i + 1);
        uint32_t held = order[i];
        order[i] = order[j];
        order[j] = held;
    }
}

size_t dpn_sampler_step_samples(const struct dpn_sampler *sampler, size_t step)
{
    assert(step < sampler->steps);
    if (sampler->last != DPN_LAST_SHORT || step + 1 < sampler->steps) return sampler->batch;
    return sampler->n - step * sampler->batch;
}
