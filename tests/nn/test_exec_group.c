/* Shards that meet at every batch norm: together they are the whole batch, and their bits do not depend on
 * which member runs which. Members are threads here. */
#include <pthread.h>

#include "tests/nn/nn_test.h"

enum { GROUP_MAX_LEAVES = 8, GROUP_MAX_MEMBERS = 5 };

struct group_case {
    const char *spec;
    size_t channels, height, width;
    size_t leaves, rows[GROUP_MAX_LEAVES];
};

static const struct group_case group_cases[] = {
    {"net:ops=c5k3s1p1-n-r-c4k3s2p1-n-r-g-d0", 2, 5, 5, 4, {2, 2, 2, 2}},
    {"net:ops=c5k3s1p1-n-r-[-c5k3s1p1-n-r-c5k3s1p1-n-+-r-g-d0", 3, 4, 4, 7, {3, 3, 3, 3, 3, 2, 2}},
    {"net:ops=c5k3s1p1b-r-m2s2p0-n-d0", 1, 6, 6, 5, {1, 1, 1, 1, 1}},
    {"net:ops=d6-n-r-d0", 1, 2, 3, 8, {1, 1, 1, 1, 1, 1, 1, 1}}, /* alone each has variance 0 */
    {"resnet20:width=4", 3, 8, 8, 6, {5, 5, 5, 5, 4, 4}},
    {"lenet", 1, 12, 12, 3, {2, 2, 1}}, /* nothing to meet at */
};
enum { GROUP_CASES = sizeof group_cases / sizeof group_cases[0] };

/* ---- members ---- */

struct group_shared {
    const struct group_case *c;
    struct dpn_model *model;
    const struct dpn_kernels *kernels;
    pthread_barrier_t barrier;
    double *all[2];
    size_t samples;
    struct nn_run runs[GROUP_MAX_LEAVES];
    double loss[GROUP_MAX_LEAVES];
    size_t done[GROUP_MAX_LEAVES]; /* floats of the arena said to be final */
};

struct group_member {
    struct group_shared *shared;
    size_t first, count, exchanges;
    int failed; /* checks in threads: cmocka's jump out of the main one only */
    struct dpn_exec execs[GROUP_MAX_LEAVES];
    enum dpn_status status;
};

static enum dpn_status group_exchange(void *arg, size_t at, int backward, size_t elems, const double **all,
                                      uint64_t *leaves)
{
    struct group_member *member = arg;
    struct group_shared *shared = member->shared;
    double *turn = shared->all[member->exchanges++ & 1];
    member->failed |= at + elems > shared->model->moments_elems;
    for (size_t i = 0; i < member->count; i++) {
        const struct dpn_exec *exec = &member->execs[i];
        memcpy(turn + (member->first + i) * elems, (backward ? exec->sums : exec->moments) + at,
               elems * sizeof *turn);
    }
    pthread_barrier_wait(&shared->barrier);
    *all = turn;
    *leaves = shared->c->leaves;
    return DPN_OK;
}

/* Ranges of an exec follow each other from the arena's beginning to its end. */
static enum dpn_status group_done(void *arg, size_t i, size_t first, size_t end)
{
    struct group_member *member = arg;
    size_t *done = &member->shared->done[member->first + i];
    member->failed |= i >= member->count || first != *done || end <= first;
    *done = end;
    return DPN_OK;
}

static void *group_run(void *arg)
{
    struct group_member *member = arg;
    struct group_shared *shared = member->shared;
    struct dpn_exec_group group = {member->execs, shared->c->rows + member->first,
                                   member->count, group_exchange,
                                   group_done,    member};
    dpn_kernels_thread_init();
    for (size_t i = 0; i < member->count; i++) member->execs[i] = shared->runs[member->first + i].exec;
    member->status = dpn_exec_forward_group(shared->model, &group);
    for (size_t i = 0; i < member->count; i++) {
        uint64_t correct;
        dpn_exec_loss(&member->execs[i], group.rows[i], 1, 1.0f / (float)shared->samples,
                      &shared->loss[member->first + i], &correct);
    }
    if (member->status == DPN_OK) member->status = dpn_exec_backward_group(shared->model, &group);
    return NULL;
}

/* Runs the leaves on MEMBERS members, of which member m has counts[m] of them, in order. */
static void group_go(struct group_shared *shared, const size_t *counts, size_t members)
{
    struct group_member member[GROUP_MAX_MEMBERS];
    pthread_t threads[GROUP_MAX_MEMBERS];
    size_t first = 0;
    assert_int_equal(pthread_barrier_init(&shared->barrier, NULL, (unsigned)members), 0);
    memset(shared->done, 0, sizeof shared->done);
    for (size_t m = 0; m < members; first += counts[m++]) {
        member[m] = (struct group_member){.shared = shared, .first = first, .count = counts[m]};
        assert_int_equal(pthread_create(&threads[m], NULL, group_run, &member[m]), 0);
    }
    assert_int_equal(first, shared->c->leaves);
    for (size_t m = 0; m < members; m++) {
        assert_int_equal(pthread_join(threads[m], NULL), 0);
        assert_int_equal(member[m].status, DPN_OK);
        assert_false(member[m].failed);
        assert_int_equal(member[m].exchanges, 2 * shared->model->norms);
    }
    for (size_t l = 0; l < shared->c->leaves; l++)
        assert_int_equal(shared->done[l], shared->model->arena_elems);
    pthread_barrier_destroy(&shared->barrier);
}

static void group_open(struct group_shared *shared, const struct group_case *c,
                       const struct dpn_kernels *kernels)
{
    *shared = (struct group_shared){.c = c, .kernels = kernels};
    shared->model = nn_open(c->spec, c->channels, c->height, c->width, 4);
    for (int t = 0; t < 2; t++) {
        shared->all[t] = calloc(c->leaves * shared->model->moments_elems + 1, sizeof(double));
        assert_non_null(shared->all[t]);
    }
    for (size_t l = 0; l < c->leaves; l++) {
        nn_run_open(&shared->runs[l], shared->model, kernels, NULL, c->rows[0], 1);
        nn_stir(&shared->runs[l], 6);
        nn_fill(&shared->runs[l].exec, 4, shared->samples, c->rows[l]);
        shared->samples += c->rows[l];
    }
}

static void group_close(struct group_shared *shared)
{
    for (size_t l = 0; l < shared->c->leaves; l++) nn_run_close(&shared->runs[l]);
    for (int t = 0; t < 2; t++) free(shared->all[t]);
    dpn_model_close(shared->model);
}

/* ---- tests ---- */

static void group_check_whole(const struct group_case *c, const struct dpn_kernels *kernels, double limit)
{
    struct group_shared shared;
    struct nn_run whole;
    double loss = 0, error = 0, size = 0;
    group_open(&shared, c, kernels);
    group_go(&shared, (const size_t[]){c->leaves}, 1);
    nn_run_open(&whole, shared.model, kernels, NULL, shared.samples, 1);
    nn_stir(&whole, 6);
    nn_fill(&whole.exec, 4, 0, shared.samples);
    double wanted = nn_step(&whole, shared.samples, 1.0f / (float)shared.samples);
    for (size_t l = 0; l < c->leaves; l++) loss += shared.loss[l];
    if (!(fabs(loss - wanted) <= limit * wanted))
        fail_msg("%s: loss %.9g, of the batch %.9g", c->spec, loss, wanted);
    for (size_t i = 0; i < shared.model->arena_elems; i++) {
        double sum = 0;
        for (size_t l = 0; l < c->leaves; l++) sum += shared.runs[l].grads[i];
        error += (sum - whole.grads[i]) * (sum - whole.grads[i]);
        size += (double)whole.grads[i] * whole.grads[i];
    }
    if (!(error <= limit * limit * size))
        fail_msg("%s: gradients are off by %g", c->spec, sqrt(error / size));
    nn_run_close(&whole);
    group_close(&shared);
}

static void test_shards_that_meet_are_the_batch(void **state)
{
    (void)state;
    const struct dpn_kernels *tables[NN_MAX_TABLES];
    size_t n = nn_tables(tables, NN_MAX_TABLES);
    for (size_t i = 0; i < GROUP_CASES; i++)
        for (size_t k = 0; k < n; k++) group_check_whole(&group_cases[i], tables[k], k == 0 ? 1e-5 : 5e-5);
}

static void group_check_bits(const struct group_case *c, const struct dpn_kernels *kernels)
{
    struct group_shared alone, spread;
    size_t arena, half = c->leaves / 2, rest = c->leaves - half;
    const size_t counts[][GROUP_MAX_MEMBERS] = {
        {half, rest},
        {rest, half},
        {1, c->leaves - 1},
        {0, c->leaves},
        {1, 0, c->leaves - 3, 2},
        {1, 1, 0, c->leaves - 2, 0},
    };
    static const size_t members[] = {2, 2, 2, 2, 4, 5};
    group_open(&alone, c, kernels);
    group_go(&alone, (const size_t[]){c->leaves}, 1);
    arena = alone.model->arena_elems * sizeof(float);
    for (size_t d = 0; d < sizeof members / sizeof members[0]; d++) {
        group_open(&spread, c, kernels);
        group_go(&spread, counts[d], members[d]);
        for (size_t l = 0; l < c->leaves; l++) {
            assert_true(spread.loss[l] == alone.loss[l]);
            if (memcmp(spread.runs[l].grads, alone.runs[l].grads, arena) != 0)
                fail_msg("%s: leaf %zu of spread %zu has other gradients", c->spec, l, d);
            assert_memory_equal(spread.runs[l].exec.moments, alone.runs[l].exec.moments,
                                alone.model->moments_elems * sizeof(double));
            assert_memory_equal(spread.runs[l].exec.sums, alone.runs[l].exec.sums,
                                alone.model->moments_elems * sizeof(double));
        }
        group_close(&spread);
    }
    group_close(&alone);
}

static void test_any_spread_over_members_gives_the_same_bits(void **state)
{
    (void)state;
    const struct dpn_kernels *tables[NN_MAX_TABLES];
    size_t n = nn_tables(tables, NN_MAX_TABLES);
    for (size_t i = 0; i < GROUP_CASES; i++) {
        group_check_bits(&group_cases[i], tables[0]);
        group_check_bits(&group_cases[i], tables[n - 1]);
    }
}

/* A group of one shard is a shard on its own. */
static void test_one_leaf(void **state)
{
    (void)state;
    const struct group_case c = {"net:ops=c5k3s1p1-n-r-[-c5k3s1p1-n-r-c5k3s1p1-n-+-r-g-d0", 3, 4, 4, 1, {5}};
    struct group_shared shared;
    struct nn_run one;
    group_open(&shared, &c, &dpn_kernels_ref);
    group_go(&shared, (const size_t[]){1}, 1);
    nn_run_open(&one, shared.model, &dpn_kernels_ref, NULL, 5, 1);
    nn_stir(&one, 6);
    nn_fill(&one.exec, 4, 0, 5);
    assert_true(nn_step(&one, 5, 1.0f / 5) == shared.loss[0]);
    assert_memory_equal(one.grads, shared.runs[0].grads, shared.model->arena_elems * sizeof(float));
    nn_run_close(&one);
    group_close(&shared);
}

struct group_failing {
    struct group_member member;
    size_t exchanges, dones; /* until it fails */
};

static enum dpn_status group_failing_exchange(void *arg, size_t at, int backward, size_t elems,
                                              const double **all, uint64_t *leaves)
{
    struct group_failing *failing = arg;
    if (failing->exchanges-- == 0) return dpn_fail(DPN_ERR_ABORTED, "planted");
    return group_exchange(&failing->member, at, backward, elems, all, leaves);
}

static enum dpn_status group_failing_done(void *arg, size_t i, size_t first, size_t end)
{
    struct group_failing *failing = arg;
    (void)i;
    (void)first;
    (void)end;
    return failing->dones-- == 0 ? dpn_fail(DPN_ERR_ABORTED, "planted") : DPN_OK;
}

/* Whatever the exchange or the listener returns ends the pass. */
static void test_failures(void **state)
{
    (void)state;
    const struct group_case *c = &group_cases[0];
    struct group_shared shared;
    group_open(&shared, c, &dpn_kernels_ref);
    assert_int_equal(pthread_barrier_init(&shared.barrier, NULL, 1), 0);
    for (size_t i = 0; i < 6; i++) {
        struct group_failing failing = {{.shared = &shared, .count = c->leaves},
                                        i < 4 ? i : 9,
                                        i < 4 ? 99 : i - 4};
        struct dpn_exec_group group = {failing.member.execs, c->rows, c->leaves, group_failing_exchange,
                                       group_failing_done,   &failing};
        for (size_t l = 0; l < c->leaves; l++) failing.member.execs[l] = shared.runs[l].exec;
        enum dpn_status status = dpn_exec_forward_group(shared.model, &group);
        assert_int_equal(status, i < 2 ? DPN_ERR_ABORTED : DPN_OK);
        if (i < 2) continue;
        for (size_t l = 0; l < c->leaves; l++) {
            double loss;
            uint64_t correct;
            dpn_exec_loss(&failing.member.execs[l], c->rows[l], 1, 1.0f, &loss, &correct);
        }
        assert_int_equal(dpn_exec_backward_group(shared.model, &group), DPN_ERR_ABORTED);
    }
    pthread_barrier_destroy(&shared.barrier);
    group_close(&shared);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shards_that_meet_are_the_batch),
        cmocka_unit_test(test_any_spread_over_members_gives_the_same_bits),
        cmocka_unit_test(test_one_leaf),
        cmocka_unit_test(test_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
