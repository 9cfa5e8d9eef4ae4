/* Random numbers: Philox's known answers, streams, distributions. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/rng.h"

/* From kat_vectors of Random123 1.14: philox4x32 10. */
static void test_known_answers(void **state)
{
    (void)state;
    static const struct {
        uint32_t counter[4], key[2], block[4];
    } known[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        struct dpn_rng rng = {.left = 0};
        memcpy(rng.counter, known[i].counter, sizeof rng.counter);
        memcpy(rng.key, known[i].key, sizeof rng.key);
        for (int word = 0; word < 4; word++) assert_int_equal(dpn_rng_u32(&rng), known[i].block[word]);
    }
}

static void test_block_number_carries(void **state)
{
    (void)state;
    struct dpn_rng rng = {.counter = {0xffffffff, 5, 6, 7}};
    dpn_rng_u32(&rng);
    assert_int_equal(rng.counter[0], 0);
    assert_int_equal(rng.counter[1], 6);
    assert_int_equal(rng.counter[2], 6);
}

/* The stream's definition in rng.h, block by block. */
static void test_stream_definition(void **state)
{
    (void)state;
    const uint64_t seed = UINT64_C(0x0123456789abcdef), a = UINT64_C(0xabcdef0123),
                   b = UINT64_C(0xfedcba9876543210);
    struct dpn_rng rng, name = {.counter = {0x76543210, 0xfedcba98, 0xcdef0123, 0xab | DPN_RNG_AUGMENT << 8},
                                .key = {0x89abcdef, 0x01234567}};
    uint32_t w[4];
    for (int i = 0; i < 4; i++) w[i] = dpn_rng_u32(&name);
    dpn_rng_init(&rng, seed, DPN_RNG_AUGMENT, a, b);
    for (uint32_t n = 0; n < 3; n++) {
        struct dpn_rng block = {.counter = {n, 0, w[2], w[3]}, .key = {w[0], w[1]}};
        for (int i = 0; i < 4; i++) assert_int_equal(dpn_rng_u32(&rng), dpn_rng_u32(&block));
    }
}

static uint64_t first_draw(uint64_t seed, enum dpn_rng_purpose purpose, uint64_t a, uint64_t b)
{
    struct dpn_rng rng;
    dpn_rng_init(&rng, seed, purpose, a, b);
    uint64_t high = dpn_rng_u32(&rng);
    return high << 32 | dpn_rng_u32(&rng);
}

static void test_streams_differ(void **state)
{
    (void)state;
    uint64_t draws[4096];
    size_t n = 0;
    const uint64_t bs[] = {0, 1, 255, 256, UINT64_C(1) << 32, UINT64_MAX};
    const uint64_t as[] = {0, 1, 255, 256, UINT64_C(1) << 32, (UINT64_C(1) << 40) - 1};
    const uint64_t seeds[] = {0, 1, UINT64_C(1) << 32, UINT64_MAX};
    for (size_t s = 0; s < 4; s++)
        for (int purpose = DPN_RNG_INIT; purpose <= DPN_RNG_TEST; purpose++)
            for (size_t i = 0; i < 6; i++)
                for (size_t j = 0; j < 6; j++)
                    draws[n++] = first_draw(seeds[s], (enum dpn_rng_purpose)purpose, as[i], bs[j]);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < i; j++) assert_true(draws[i] != draws[j]);
    assert_true(first_draw(3, DPN_RNG_INIT, 4, 5) == first_draw(3, DPN_RNG_INIT, 4, 5));
}

static void test_below(void **state)
{
    (void)state;
    struct dpn_rng rng;
    dpn_rng_init(&rng, 1, DPN_RNG_TEST, 0, 0);
    for (int i = 0; i < 100; i++) assert_int_equal(dpn_rng_below(&rng, 1), 0);

    enum { N = 7, DRAWS = 70000 };
    int count[N] = {0};
    for (int i = 0; i < DRAWS; i++) {
        uint32_t value = dpn_rng_below(&rng, N);
        assert_true(value < N);
        count[value]++;
    }
    double chi2 = 0;
    for (int i = 0; i < N; i++) chi2 += (count[i] - DRAWS / N) * (double)(count[i] - DRAWS / N) / (DRAWS / N);
    assert_true(chi2 < 27.9); /* 6 degrees of freedom: 1 in 10,000 */

    /* A bound of 3 * 2^30: taking the high word without rejection would draw every third value twice as
     * often. */
    const uint32_t big = UINT32_C(3) << 30;
    int residue[3] = {0};
    for (int i = 0; i < 30000; i++) {
        uint32_t value = dpn_rng_below(&rng, big);
        assert_true(value < big);
        residue[value % 3]++;
    }
    for (int i = 0; i < 3; i++) assert_true(residue[i] > 9600 && residue[i] < 10400);
}

static void test_uniform_uses_53_bits(void **state)
{
    (void)state;
    struct dpn_rng rng, words;
    dpn_rng_init(&rng, 3, DPN_RNG_TEST, 0, 0);
    words = rng;
    for (int i = 0; i < 1000; i++) {
        double high = dpn_rng_u32(&words) >> 5, low = dpn_rng_u32(&words) >> 6;
        assert_true(dpn_rng_uniform(&rng) == (high * 67108864.0 + low) / 9007199254740992.0);
    }
}

static void test_uniform_and_normal(void **state)
{
    (void)state;
    enum { DRAWS = 200000 };
    struct dpn_rng rng;
    dpn_rng_init(&rng, 2, DPN_RNG_TEST, 0, 0);
    double sum = 0, squares = 0;
    for (int i = 0; i < DRAWS; i++) {
        double u = dpn_rng_uniform(&rng);
        assert_true(u >= 0 && u < 1);
        sum += u;
        squares += u * u;
    }
    assert_true(fabs(sum / DRAWS - 0.5) < 0.003);
    assert_true(fabs(squares / DRAWS - 1.0 / 3) < 0.003);

    double moment[5] = {0};
    for (int i = 0; i < DRAWS; i++) {
        double z = dpn_rng_normal(&rng), power = 1;
        assert_true(isfinite(z));
        for (int k = 1; k <= 4; k++) moment[k] += power *= z;
    }
    assert_true(fabs(moment[1] / DRAWS) < 0.01);
    assert_true(fabs(moment[2] / DRAWS - 1) < 0.015);
    assert_true(fabs(moment[3] / DRAWS) < 0.03);
    assert_true(fabs(moment[4] / DRAWS - 3) < 0.1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_answers),
        cmocka_unit_test(test_block_number_carries),
        cmocka_unit_test(test_stream_definition),
        cmocka_unit_test(test_streams_differ),
        cmocka_unit_test(test_below),
        cmocka_unit_test(test_uniform_uses_53_bits),
        cmocka_unit_test(test_uniform_and_normal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
