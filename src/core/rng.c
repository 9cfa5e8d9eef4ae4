/* Streams of Philox4x32-10 by Random123: see rng.h. */
#include "core/rng.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include <Random123/philox.h>

static void rng_philox(const uint32_t key[2], const uint32_t counter[4], uint32_t block[4])
{
    philox4x32_key_t k = {{key[0], key[1]}};
    philox4x32_ctr_t c = {{counter[0], counter[1], counter[2], counter[3]}};
    c = philox4x32_R(10, c, k);
    memcpy(block, c.v, sizeof c.v);
}

void dpn_rng_init(struct dpn_rng *rng, uint64_t seed, enum dpn_rng_purpose purpose, uint64_t a, uint64_t b)
{
    assert(a < UINT64_C(1) << 40);
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    const uint32_t name[4] = {(uint32_t)b, (uint32_t)(b >> 32), (uint32_t)a,
                              (uint32_t)(a >> 32) | (uint32_t)purpose << 8};
    uint32_t mixed[4];
    rng_philox(key, name, mixed);
    rng->key[0] = mixed[0];
    rng->key[1] = mixed[1];
    rng->counter[0] = rng->counter[1] = 0;
    rng->counter[2] = mixed[2];
    rng->counter[3] = mixed[3];
    rng->left = 0;
}

uint32_t dpn_rng_u32(struct dpn_rng *rng)
{
    if (rng->left == 0) {
        rng_philox(rng->key, rng->counter, rng->block);
        if (++rng->counter[0] == 0) rng->counter[1]++;
        rng->left = 4;
    }
    return rng->block[4 - rng->left--];
}

uint32_t dpn_rng_below(struct dpn_rng *rng, uint32_t n)
{
    assert(n > 0);
    uint64_t product = (uint64_t)dpn_rng_u32(rng) * n;
    if ((uint32_t)product < n) {
        uint32_t threshold = -n % n; /* 2^32 mod n: so many low words would favour some results */
        while ((uint32_t)product < threshold) product = (uint64_t)dpn_rng_u32(rng) * n;
    }
    return (uint32_t)(product >> 32);
}

double dpn_rng_uniform(struct dpn_rng *rng)
{
    uint64_t high = dpn_rng_u32(rng) >> 5, low = dpn_rng_u32(rng) >> 6;
    return (double)(high << 26 | low) * 0x1p-53;
}

double dpn_rng_normal(struct dpn_rng *rng)
{
    double radius = sqrt(-2.0 * log(1.0 - dpn_rng_uniform(rng))); /* 1 - [0, 1): never the logarithm of 0 */
    double angle = 2.0 * M_PI * dpn_rng_uniform(rng);
    return radius * cos(angle);
}
