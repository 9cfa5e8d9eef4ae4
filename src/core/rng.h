/* Counter-based random numbers: Philox4x32-10 (Salmon et al., SC'11), by the Random123 library.
 *
 * A stream is a pure function of (seed, purpose, a, b): nothing depends on the device, the thread or on what
 * was drawn before, so every consumer keys its own stream by what the numbers are for.
 */
#ifndef DPN_CORE_RNG_H
#define DPN_CORE_RNG_H

#include <stdint.h>

enum dpn_rng_purpose {
    DPN_RNG_INIT = 1,    /* a = tensor's number in state-dict order, b = 0 */
    DPN_RNG_SHUFFLE = 2, /* a = epoch, b = 0 */
    DPN_RNG_AUGMENT = 3, /* a = epoch, b = sample index */
    DPN_RNG_SYNTH = 4,   /* a = split, b = sample index */
    DPN_RNG_TEST = 5,
};

struct dpn_rng {
    uint32_t counter[4]; /* block number (2 words, low first), then the stream's own two words */
    uint32_t key[2];
    uint32_t block[4];
    unsigned left; /* words of block not yet used */
};

/* Starts the stream (SEED, PURPOSE, A, B); A below 2^40, B any 64-bit value. With P(key; counter) for
 * Philox4x32-10 and low words first, w = P(seed; b, b >> 32, a, a >> 32 | purpose << 8), and block n of the
 * stream is P(w[0], w[1]; n, n >> 32, w[2], w[3]). P is a bijection of the counter: streams of one seed never
 * meet. */
void dpn_rng_init(struct dpn_rng *rng, uint64_t seed, enum dpn_rng_purpose purpose, uint64_t a, uint64_t b);
uint32_t dpn_rng_u32(struct dpn_rng *rng);
uint32_t dpn_rng_below(struct dpn_rng *rng, uint32_t n); /* 0..n-1, unbiased (Lemire 2019); n > 0 */
double dpn_rng_uniform(struct dpn_rng *rng);             /* [0, 1): 27 bits of a first word, 26 of a second */
double dpn_rng_normal(struct dpn_rng *rng); /* standard normal (Box-Muller, one value of two uniforms) */

#endif
