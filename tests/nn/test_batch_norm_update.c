/* Running statistics: PyTorch's update by hand, averaged over shards or of the whole batch, one value per
 * channel, and what a step of an exec makes of them. */
#include "tests/nn/nn_test.h"

enum { UPDATE_MAX_LEAVES = 8 };

static struct dpn_model *update_model(void)
{
    return nn_open("net:ops=c2k1s1p0-n-r-c3k1s1p0-n-g-d0", 1, 2, 2, 3);
}

/* The moments of one shard's channel of batch norm NORM (a node). */
static void update_set(const struct dpn_model *model, size_t norm, double *shard, size_t c, double n,
                       double mean, double squares)
{
    const struct dpn_node *node = &model->nodes[norm];
    double *at = shard + node->moments_at;
    assert_true(node->buffers >= 0);
    at[0] = n;
    at[1 + c] = mean;
    at[1 + model->values[node->input].cstride + c] = squares;
}

struct update {
    struct dpn_model *model;
    double *moments; /* [UPDATE_MAX_LEAVES][moments_elems] */
    float *buffers;
};

static void update_open(struct update *update)
{
    update->model = update_model();
    update->moments = calloc(UPDATE_MAX_LEAVES * update->model->moments_elems, sizeof *update->moments);
    assert_non_null(update->moments);
    update->buffers = nn_arena(update->model->buffer_elems);
    dpn_model_init_buffers(update->model, update->buffers);
    /* Whatever is not set below: 4 values of mean 0 and variance 1. */
    for (size_t l = 0; l < UPDATE_MAX_LEAVES; l++)
        for (size_t norm = 1; norm < 4; norm += 2)
            for (size_t c = 0; c < (norm == 1 ? 2 : 3); c++)
                update_set(update->model, norm, update->moments + l * update->model->moments_elems, c, 4, 0,
                           3);
}

static void update_close(struct update *update)
{
    free(update->moments);
    free(update->buffers);
    dpn_model_close(update->model);
}

static double *update_shard(struct update *update, size_t leaf)
{
    return update->moments + leaf * update->model->moments_elems;
}

static int update_go(struct update *update, uint64_t leaves, int sync)
{
    return dpn_batch_norm_update(update->model, update->moments, update->model->moments_elems, leaves, sync,
                                 update->buffers);
}

static float update_mean(const struct update *update, size_t c)
{
    return update->buffers[update->model->buffers[0].offset + c];
}

static float update_var(const struct update *update, size_t c)
{
    return update->buffers[update->model->buffers[1].offset + c];
}

/* A channel of zeros on one device and of twos on the other: 0.1 * 1 = 0.1, not the first device's 0.0. */
static void test_all_devices_count(void **state)
{
    (void)state;
    for (int sync = 0; sync < 2; sync++) {
        struct update update;
        update_open(&update);
        update_set(update.model, 1, update_shard(&update, 0), 0, 4, 0, 0);
        update_set(update.model, 1, update_shard(&update, 1), 0, 4, 2, 0);
        assert_int_equal(update_go(&update, 2, sync), 0);
        assert_true(update_mean(&update, 0) == 0.1f);
        /* local: both variances are 0; sync: of 0, 0, 0, 0, 2, 2, 2, 2 it is 8/7 */
        assert_true(update_var(&update, 0) == (float)(sync ? 0.9 * 1 + 0.1 * (8.0 / 7) : 0.9 * 1));
        assert_true(update_mean(&update, 1) == 0.0f &&
                    update_var(&update, 1) == (float)(sync ? 0.9 + 0.1 * 6 / 7 : 1.0));
        /* and a second step moves on from there */
        assert_int_equal(update_go(&update, 2, sync), 0);
        assert_true(fabsf(update_mean(&update, 0) - 0.19f) < 1e-7f);
        update_close(&update);
    }
}

/* Shards of 3 and 1 samples of 4 pixels: weights 3/4 and 1/4. */
static void test_shards_count_by_their_samples(void **state)
{
    (void)state;
    for (int sync = 0; sync < 2; sync++) {
        struct update update;
        update_open(&update);
        for (size_t c = 0; c < 2; c++) {
            update_set(update.model, 1, update_shard(&update, 0), c, 12, 1, 11 * 2);
            update_set(update.model, 1, update_shard(&update, 1), c, 4, 5, 3 * 8);
        }
        assert_int_equal(update_go(&update, 2, sync), 0);
        /* local: (12*2 + 4*8)/16; sync: 22 + 24 + 4^2*12*4/16 over 15 */
        double var = sync ? (22 + 24 + 16 * 3) / 15.0 : 3.5;
        for (size_t c = 0; c < 2; c++) {
            assert_true(fabs(update_mean(&update, c) - 0.2) < 1e-7);
            assert_true(fabs(update_var(&update, c) - (0.9 + 0.1 * var)) < 1e-6);
        }
        update_close(&update);
    }
}

/* One value per channel: the factor m/(m-1) is left out, and it is said; a whole batch of several such shards
 * is fine. */
static void test_one_value_per_channel(void **state)
{
    (void)state;
    struct update update;
    update_open(&update);
    for (size_t l = 0; l < 2; l++)
        for (size_t c = 0; c < 2; c++)
            update_set(update.model, 1, update_shard(&update, l), c, 1, 3 + 2 * (double)l, 0);
    assert_int_equal(update_go(&update, 1, 0), 1);
    assert_true(update_mean(&update, 0) == (float)(0.1 * 3) && update_var(&update, 0) == (float)0.9);
    assert_int_equal(update_go(&update, 1, 1), 1);
    assert_int_equal(update_go(&update, 2, 0), 1);
    assert_true(isfinite(update_mean(&update, 0)) && isfinite(update_var(&update, 0)));
    dpn_model_init_buffers(update.model, update.buffers);
    assert_int_equal(update_go(&update, 2, 1), 0); /* of 3 and 5: variance 2 */
    assert_true(fabs(update_var(&update, 0) - (0.9 + 0.2)) < 1e-6);
    update_close(&update);
}

/* Only channels are written: padding stays as it is. */
static void test_padding_stays_zero(void **state)
{
    (void)state;
    struct update update;
    update_open(&update);
    update_go(&update, 3, 0);
    update_go(&update, 3, 1);
    for (size_t i = 0; i < update.model->buffer_elems; i++) {
        int channel = 0;
        for (size_t b = 0; b < update.model->n_buffers; b++)
            channel |= i - update.model->buffers[b].offset < update.model->buffers[b].elems;
        if (!channel) assert_true(update.buffers[i] == 0.0f);
    }
    update_close(&update);
}

/* Values far from 0 whose squares would cancel, and the merge of all shards in any number. */
static void test_sync_is_the_whole_batch(void **state)
{
    (void)state;
    for (uint64_t leaves = 1; leaves <= UPDATE_MAX_LEAVES; leaves++) {
        struct update update;
        double x[UPDATE_MAX_LEAVES * 5], all = 0, squares = 0;
        size_t n = 0;
        struct dpn_rng rng;
        dpn_rng_init(&rng, 3, DPN_RNG_TEST, 7, leaves);
        update_open(&update);
        for (size_t l = 0; l < leaves; l++) {
            size_t count = 1 + dpn_rng_below(&rng, 5);
            double mean = 0, own = 0;
            for (size_t i = 0; i < count; i++) {
                x[n + i] = 1e6 + 3.0 * (double)l + dpn_rng_normal(&rng);
                mean += x[n + i] / (double)count;
            }
            for (size_t i = 0; i < count; i++) own += (x[n + i] - mean) * (x[n + i] - mean);
            for (size_t c = 0; c < 2; c++)
                update_set(update.model, 1, update_shard(&update, l), c, (double)count, mean, own);
            n += count;
        }
        for (size_t i = 0; i < n; i++) all += x[i] / (double)n;
        for (size_t i = 0; i < n; i++) squares += (x[i] - all) * (x[i] - all);
        assert_int_equal(update_go(&update, leaves, 1), n == 1);
        double var = n > 1 ? squares / (double)(n - 1) : 0;
        assert_true(fabs(update_mean(&update, 1) - 0.1 * all) <= 1e-7 * all);
        if (!(fabs(update_var(&update, 1) - (0.9 + 0.1 * var)) <= 1e-6 * (1 + var)))
            fail_msg("%u leaves: variance %g, wanted %g", (unsigned)leaves, update_var(&update, 1),
                     0.9 + 0.1 * var);
        update_close(&update);
    }
}

/* ---- what an exec makes of them ---- */

/* One step's statistics are PyTorch's of that batch, and evaluation then uses them. */
static void test_a_step(void **state)
{
    (void)state;
    static const char text[] = "c5k3s1p1-n-r-m2s2p0-n-c4k3s1p1b-n-r-g-d0";
    char spec[DPN_SPEC_BYTES];
    snprintf(spec, sizeof spec, "net:ops=%s", text);
    struct dpn_model *model = nn_open(spec, 2, 6, 6, 3);
    const struct dpn_kernels *tables[NN_MAX_TABLES];
    size_t n = nn_tables(tables, NN_MAX_TABLES);
    for (size_t k = 0; k < n; k++) {
        struct nn_run run;
        struct net net;
        double loss, wanted;
        uint64_t correct;
        nn_run_open(&run, model, tables[k], NULL, 3, 1);
        nn_stir(&run, 2);
        nn_fill(&run.exec, 8, 0, 3);
        net_open(&net, text, &run.exec, 3, 1);
        net_run(&net);
        dpn_exec_forward(&run.exec, 3, 1);
        assert_int_equal(dpn_batch_norm_update(model, run.exec.moments, model->moments_elems, 1, 0,
                                               run.buffers),
                         0);
        for (size_t b = 0; b < model->n_buffers; b++) {
            const struct net_moments *seen = &net.moments[b / 2];
            double *is = net_import(&model->buffers[b], run.buffers), m = (double)seen->n;
            for (size_t c = 0; c < model->buffers[b].elems; c++) {
                double step = b % 2 ? seen->var[c] * m / (m - 1) : seen->mean[c];
                net.buffer[b][c] = 0.9 * net.buffer[b][c] + 0.1 * step;
                if (!(fabs(is[c] - net.buffer[b][c]) <= 1e-6 * (1 + fabs(net.buffer[b][c]))))
                    fail_msg("%s: %s[%zu] is %.9g, PyTorch's %.9g", tables[k]->isa, model->buffers[b].name, c,
                             is[c], net.buffer[b][c]);
            }
            free(is);
        }
        net.training = 0;
        wanted = net_loss(&net, run.exec.labels);
        dpn_exec_forward(&run.exec, 3, 0);
        dpn_exec_loss(&run.exec, 3, 0, 0.0f, &loss, &correct);
        assert_true(fabs(loss - wanted) <= 1e-5 * wanted);
        net_close(&net);
        nn_run_close(&run);
    }
    dpn_model_close(model);
}

/* A shard of one sample with one pixel trains and leaves numbers; so does evaluating one sample. */
static void test_a_step_of_one_value(void **state)
{
    (void)state;
    struct dpn_model *model = nn_open("net:ops=c4k1s1p0-n-r-c4k1s1p0-n-d0", 3, 1, 1, 3);
    const struct dpn_kernels *tables[NN_MAX_TABLES];
    size_t n = nn_tables(tables, NN_MAX_TABLES);
    for (size_t k = 0; k < n; k++) {
        struct nn_run run;
        nn_run_open(&run, model, tables[k], NULL, 1, 1);
        nn_stir(&run, 2);
        for (size_t b = 0; b < model->n_buffers; b += 2) /* variances are positive */
            for (size_t c = 0; c < 4; c++) assert_true(run.buffers[model->buffers[b + 1].offset + c] > 0);
        nn_fill(&run.exec, 8, 0, 1);
        assert_true(isfinite(nn_step(&run, 1, 1.0f)));
        for (size_t i = 0; i < model->arena_elems; i++) assert_true(isfinite(run.grads[i]));
        assert_int_equal(dpn_batch_norm_update(model, run.exec.moments, model->moments_elems, 1, 0,
                                               run.buffers),
                         1);
        for (size_t i = 0; i < model->buffer_elems; i++) assert_true(isfinite(run.buffers[i]));
        double loss;
        uint64_t correct;
        dpn_exec_forward(&run.exec, 1, 0);
        dpn_exec_loss(&run.exec, 1, 0, 0.0f, &loss, &correct);
        assert_true(isfinite(loss));
        nn_run_close(&run);
    }
    dpn_model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_devices_count),       cmocka_unit_test(test_shards_count_by_their_samples),
        cmocka_unit_test(test_one_value_per_channel),   cmocka_unit_test(test_padding_stays_zero),
        cmocka_unit_test(test_sync_is_the_whole_batch), cmocka_unit_test(test_a_step),
        cmocka_unit_test(test_a_step_of_one_value),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
