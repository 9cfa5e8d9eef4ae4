/* Schedules against values computed by hand. */
#include "tests/nn/nn_test.h"

static void schedule_is(const struct dpn_schedule *schedule, uint64_t step, double expected)
{
    double lr = dpn_schedule_lr(schedule, step);
    if (!(fabs(lr - expected) <= 1e-14 * (fabs(expected) + 1)))
        fail_msg("step %ju: %.17g, expected %.17g", (uintmax_t)step, lr, expected);
}

static void test_constant(void **state)
{
    (void)state;
    struct dpn_schedule s = {.kind = DPN_SCHEDULE_CONSTANT,
                             .base_lr = 0.05,
                             .steps_per_epoch = 10,
                             .total_steps = 30};
    assert_true(dpn_schedule_lr(&s, 0) == 0.05);
    assert_true(dpn_schedule_lr(&s, 29) == 0.05);
    assert_true(dpn_schedule_lr(&s, UINT64_MAX) == 0.05);
}

static void test_warmup(void **state)
{
    (void)state;
    struct dpn_schedule s = {.kind = DPN_SCHEDULE_CONSTANT,
                             .base_lr = 0.1,
                             .warmup_epochs = 0.5,
                             .steps_per_epoch = 10,
                             .total_steps = 30};
    schedule_is(&s, 0, 0.02);
    schedule_is(&s, 1, 0.04);
    schedule_is(&s, 4, 0.1);
    schedule_is(&s, 5, 0.1);
    s.warmup_epochs = 0.24; /* 2.4 steps: 2 */
    schedule_is(&s, 0, 0.05);
    schedule_is(&s, 1, 0.1);
    s.warmup_epochs = 0.04; /* 0.4 steps: none */
    assert_true(dpn_schedule_lr(&s, 0) == 0.1);
}

static void test_step(void **state)
{
    (void)state;
    const double milestones[] = {1, 3, 3.5};
    struct dpn_schedule s = {.kind = DPN_SCHEDULE_STEP,
                             .base_lr = 0.8,
                             .gamma = 0.5,
                             .milestones = milestones,
                             .n_milestones = 3,
                             .steps_per_epoch = 4,
                             .total_steps = 20};
    const double expected[] = {0.8, 0.8, 0.8, 0.8, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4,
                               0.4, 0.4, 0.2, 0.2, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1};
    for (uint64_t i = 0; i < 20; i++) schedule_is(&s, i, expected[i]);
    s.warmup_epochs = 1.5; /* hides the first milestone, does not move it */
    schedule_is(&s, 4, 0.8 * 5 / 6);
    schedule_is(&s, 6, 0.4);
}

static void test_cosine(void **state)
{
    (void)state;
    struct dpn_schedule s = {.kind = DPN_SCHEDULE_COSINE,
                             .base_lr = 0.3,
                             .min_lr = 0.1,
                             .steps_per_epoch = 6,
                             .total_steps = 12};
    schedule_is(&s, 0, 0.3);
    schedule_is(&s, 4, 0.1 + 0.2 * 0.75); /* cos(60 degrees) = 1/2 */
    schedule_is(&s, 6, 0.2);
    schedule_is(&s, 8, 0.1 + 0.2 * 0.25);
    schedule_is(&s, 11, 0.1 + 0.1 * (1 - cos(0.26179938779914943654))); /* 15 degrees */
    schedule_is(&s, 12, 0.1);
    schedule_is(&s, 1000, 0.1);
    s.warmup_epochs = 1; /* 6 steps up, 6 down */
    schedule_is(&s, 0, 0.05);
    schedule_is(&s, 5, 0.3);
    schedule_is(&s, 6, 0.3);
    schedule_is(&s, 8, 0.25);
    schedule_is(&s, 9, 0.2);
    schedule_is(&s, 10, 0.15);
    schedule_is(&s, 12, 0.1);
    s.warmup_epochs = 2; /* nothing left */
    schedule_is(&s, 11, 0.3);
    schedule_is(&s, 12, 0.1);
    s.warmup_epochs = 3;
    schedule_is(&s, 11, 0.3 * 12 / 18);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_constant),
        cmocka_unit_test(test_warmup),
        cmocka_unit_test(test_step),
        cmocka_unit_test(test_cosine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
