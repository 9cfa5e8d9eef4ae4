/* Every op, alone and next to the others it is fused with: losses, gradients, moments and evaluation against
 * the same network in double (nn_net.h), gradients by central differences. */
#include "tests/nn/nn_test.h"

enum { OPS_SAMPLED = 40 }; /* elements of a larger tensor whose gradient is looked at */

struct ops_case {
    const char *text;
    size_t channels, height, width, classes, rows;
};

static const struct ops_case ops_dense[] = {
    {"d0", 1, 1, 5, 3, 1},
    {"d0-r", 3, 2, 4, 17, 4},
    {"d17-r-d0", 2, 3, 3, 4, 9},
    {"d5-r-d16-r-d9-r-d0", 1, 2, 2, 5, 7},
    {"d3-g-r-d0", 1, 3, 4, 1, 3}, /* a ReLU of its own */
    {"d70-r-d130-d0", 1, 1, 3, 65, 2},
    {"[-d7-r-x-d7-+-r-d0", 2, 2, 3, 4, 3},
    {"c5k3s1p1-d9-r-d0", 2, 4, 3, 4, 2}, /* of pixels with padding between them */
    {"c18k1s1p0-r-d0", 3, 3, 2, 4, 2},
};

static const struct ops_case ops_conv[] = {
    {"c5k3s1p1-d0", 1, 5, 4, 3, 2},
    {"c5k3s1p1b-r-d0", 3, 5, 6, 3, 2},
    {"c3k1s1p0-r-c4k5s2p2b-d0", 2, 6, 5, 3, 3},
    {"c17k3s2p1b-r-c3k3s1p0-r-d0", 3, 7, 7, 3, 2},
    {"c4k5s1p2-r-c18k3s1p1b-r-c2k1s2p0b-d0", 1, 5, 5, 2, 1},
    {"c4k3w1s1p1b-r-c5k1w3s1p1-r-d0", 2, 4, 5, 3, 2},
    {"c20k3s1p1-r-c20k3s1p1-g-d0", 16, 4, 4, 3, 1},
    {"c5k3s1p1b-r-g-d0", 3, 6, 6, 3, 2}, /* nobody but its own ReLU keeps the output */
    {"c4k3s3p0-r-d0", 2, 7, 8, 3, 2},
};

static const struct ops_case ops_norm[] = {
    {"c5k3s1p1-n-d0", 2, 4, 4, 3, 3},
    {"c5k3s1p1-n-r-d0", 2, 4, 5, 3, 3},
    {"c5k3s1p1-n-r-c4k3s1p1-d0", 3, 5, 4, 3, 2},         /* lazy */
    {"c5k3s1p1-n-c4k3s2p1-n-r-g-d0", 3, 5, 5, 3, 3},     /* lazy without ReLU */
    {"c5k3s1p1b-n-r-c4k1s1p0b-n-r-g-d0", 1, 4, 4, 3, 3}, /* convolutions with a bias */
    {"c5k3s1p1b-r-m2s2p0-n-c4k3s1p1-n-r-g-d0", 2, 6, 6, 3, 3},
    {"c5k3s1p1-r-n-r-c4k1s1p0-d0", 2, 4, 4, 3, 3}, /* a ReLU between: not linked */
    {"c5k3s1p1-n-n-r-g-d0", 2, 4, 4, 3, 2},
    {"c5k3s1p1-[-n-r-+-g-d0", 2, 4, 4, 3, 3}, /* two read the convolution */
    {"d6-n-r-d0", 1, 2, 3, 3, 6},
    {"c5k3s1p1-n-r-[-c4k3s1p1-x-c4k1s1p0-+-r-g-d0", 2, 4, 4, 3, 2}, /* two convolutions read a lazy one */
    {"c5k3s1p1-n-r-[-a3s1p1-x-c5k3s1p1-n-+-r-g-d0", 2, 4, 4, 3, 2}, /* first read by a pool */
    {"c18k3s1p1-n-r-c17k3s1p1-n-r-g-d0", 2, 4, 4, 3, 2},
    {"c5k1s1p0-n-r-c4k1s1p0-n-r-d0", 3, 1, 1, 3, 4},
};

static const struct ops_case ops_residual[] = {
    {"c5k3s1p1-n-r-[-c5k3s1p1-n-r-c5k3s1p1-n-+-r-g-d0", 3, 4, 4, 3, 2},              /* ResNet's block */
    {"c4k3s1p1-n-r-[-c6k3s2p1-n-r-c6k3s1p1-n-x-c6k1s2p0-n-+-r-g-d0", 3, 6, 5, 3, 3}, /* and with projection */
    {"c4k3s1p1-n-r-[-c4k3s1p1-n-r-c4k3s1p1-n-+-r-[-c6k3s2p1-n-r-c6k3s1p1-n-x-c6k1s2p0-n-+-r-[-"
     "c6k3s1p1-n-r-c6k3s1p1-n-+-r-g-d0",
     3, 6, 6, 3, 2},
    {"c5k3s1p1-n-r-[-c5k3s1p1-n-r-c5k3s1p1-n-+-c4k3s1p1-n-r-g-d0", 3, 4, 4, 3, 2}, /* no ReLU after it */
    {"c5k3s1p1-n-[-c5k3s1p1-n-+-c5k3s1p1-n-r-g-d0", 2, 4, 4, 3, 2},
    {"c5k3s1p1-n-r-[-c5k3s1p1-n-+-r-g-d0", 2, 4, 4, 3, 3}, /* the convolution reads the residual itself */
    {"c5k3s1p1-[-n-+-r-g-d0", 2, 4, 4, 3, 3},              /* and so does the batch norm */
    {"c5k3s1p1-m2s2p0-r-[-c5k3s1p1-n-+-r-g-d0", 2, 6, 6, 3, 2},
    {"c5k3s1p1-m2s2p0-r-[-c5k3s1p1-r-c5k3s1p1-n-+-r-g-d0", 2, 6, 6, 3, 2},  /* its gradient is not shared */
    {"[-c16k3s1p1-n-+-r-g-d0", 16, 3, 3, 3, 2},                             /* what does not learn */
    {"c5k3s1p1-n-r-[-[-c5k3s1p1-n-+-r-c5k3s1p1-n-+-r-g-d0", 2, 4, 4, 3, 2}, /* twice the residual */
};

static const struct ops_case ops_add[] = {
    {"c5k3s1p1-r-[-c5k3s1p1-r-+-g-d0", 2, 4, 4, 3, 2},
    {"c5k3s1p1-r-[-c5k3s1p1-+-r-g-d0", 2, 4, 4, 3, 2},
    {"c5k3s1p1-[-c5k3s1p1-+-r-d0", 2, 4, 4, 3, 2},
    {"[-c16k3s1p1-+-r-g-d0", 16, 3, 3, 3, 2},
    {"c4k3s1p1-n-r-[-[-c4k3s1p1-x-c4k1s1p0-+-+-r-g-d0", 2, 4, 4, 3, 2},
    {"c4k3s1p1-r-[-[-c4k3s1p1-r-+-[-c4k3s1p1-r-+-+-r-g-d0", 2, 4, 4, 3, 2},
    {"c5k3s1p1-n-r-[-c5k3s1p1-r-+-c5k3s1p1-n-r-g-d0", 2, 4, 4, 3, 2},
    {"c5k3s1p1-[-c5k3s1p1-x-r-+-g-d0", 2, 4, 4, 3, 2}, /* a ReLU of what another has read */
    {"c5k3s1p1-n-[-c5k3s1p1-x-r-+-g-d0", 2, 4, 4, 3, 2},
};

static const struct ops_case ops_pool[] = {
    {"c5k3s1p1-m2s2p0-d0", 2, 5, 6, 3, 2},
    {"c5k3s1p1-m3s2p1-d0", 2, 6, 5, 3, 2},
    {"c5k3s1p1b-r-m2s2p0-c4k3s1p1-a2s2p0-d0", 2, 8, 8, 3, 2},
    {"c5k3s1p1-a3s2p1-r-d0", 2, 5, 5, 3, 2},
    {"c18k3s1p1-m2s2p0-r-m2s1p0-d0", 2, 6, 6, 3, 2},
    {"c5k3s1p1-n-r-m3s2p1-c4k3s1p1-n-r-g-d0", 2, 6, 6, 3, 2},
    {"c5k3s1p1-r-[-c5k3s1p1-x-m3s1p1-+-g-d0", 2, 4, 4, 3, 2},
    {"c5k3s1p1-r-[-m3s1p1-x-c5k3s1p1-+-g-d0", 2, 4, 4, 3,
     2}, /* the pool reads first, so its gradient comes last */
    {"c5k3s1p1-r-[-a3s1p1-x-c5k3s1p1-+-g-d0", 2, 4, 4, 3, 2},
    {"c5k3s1p1-r-[-g-x-c5k3s1p1-g-+-d0", 2, 4, 4, 3, 2},
    {"c5k3s1p1-r-[-d6-x-g-d6-+-d0", 2, 3, 4, 3, 2},
    {"c5k3s1p1-n-r-[-d6-x-g-d6-+-d0", 2, 3, 4, 3, 2},
    /* Pooled by the convolution itself: rows that are dropped, a batch norm or another such one before. */
    {"c5k5s1p2b-r-m2s2p0-d0", 2, 6, 5, 3, 2},
    {"c5k3s1p1-n-r-c6k5s1p2b-r-m2s2p0-g-d0", 2, 6, 6, 3, 2},
    {"c5k3s1p1-n-c6k1s1p0-m3s3p0-d0", 2, 7, 6, 3, 2},
    {"c5k5s1p2-r-m2s2p0-c6k3s2p1b-m2s2p0-d0", 1, 9, 9, 3, 2},
    {"c5k3s1p1-n-r-[-c6k5s1p2-r-m2s2p0-x-a2s2p0-c6k1s1p0-+-g-d0", 2, 4, 4, 3, 2},
};

#define OPS_LIST(cases) (cases), sizeof(cases) / sizeof((cases)[0])

/* ---- gradients ---- */

static struct dpn_model *ops_open(const struct ops_case *c)
{
    char spec[DPN_SPEC_BYTES];
    snprintf(spec, sizeof spec, "net:ops=%s", c->text);
    return nn_open(spec, c->channels, c->height, c->width, c->classes);
}

static double ops_difference(struct net *net, const int32_t *labels, double *at)
{
    double kept = *at, h = 1e-7;
    *at = kept + h;
    double above = net_loss(net, labels);
    *at = kept - h;
    double below = net_loss(net, labels);
    *at = kept;
    return (above - below) / (2 * h);
}

static void ops_check_tensor(const struct ops_case *c, const struct nn_run *run, struct net *net, size_t t)
{
    const struct dpn_tensor *tensor = &run->model->tensors[t];
    double *grad = net_import(tensor, run->grads);
    size_t step = tensor->elems > OPS_SAMPLED ? tensor->elems / OPS_SAMPLED : 1;
    for (size_t i = 0; i < tensor->elems; i += step) {
        double numeric = ops_difference(net, run->exec.labels, &net->tensor[t][i]);
        if (!(fabs(grad[i] - numeric) <= 1e-4 * (0.1 + fabs(numeric))))
            fail_msg("%s of %zux%zux%zu, %zu rows, with %s: %s[%zu]: %.9g, numeric %.9g", c->text,
                     c->channels, c->height, c->width, c->rows, run->exec.kernels->isa, tensor->name, i,
                     grad[i], numeric);
    }
    free(grad);
}

static void ops_check_moments(const struct ops_case *c, const struct nn_run *run, const struct net *net)
{
    const struct dpn_model *model = run->model;
    for (size_t i = 0, norm = 0; i < model->n_nodes; i++) {
        const struct dpn_value *z = &model->values[model->nodes[i].input];
        if (model->nodes[i].buffers < 0) continue;
        const struct net_moments *wanted = &net->moments[norm++];
        const double *moments = run->exec.moments + model->nodes[i].moments_at;
        assert_true(moments[0] == (double)wanted->n);
        for (size_t k = 0; k < z->channels; k++) {
            double mean = moments[1 + k], var = moments[1 + z->cstride + k] / moments[0];
            if (!(fabs(mean - wanted->mean[k]) <= 1e-5 * (1 + fabs(wanted->mean[k])) &&
                  fabs(var - wanted->var[k]) <= 1e-5 * (1 + wanted->var[k])))
                fail_msg("%s: batch norm %zu, channel %zu: mean %g, variance %g, wanted %g, %g", c->text,
                         norm - 1, k, mean, var, wanted->mean[k], wanted->var[k]);
        }
    }
}

static void ops_check_case(const struct ops_case *c, const struct dpn_kernels *kernels, uint64_t seed)
{
    struct dpn_model *model = ops_open(c);
    struct nn_run run;
    struct net net;
    nn_run_open(&run, model, kernels, NULL, c->rows, 1);
    nn_stir(&run, seed);
    nn_fill(&run.exec, seed, 0, c->rows);
    net_open(&net, c->text, &run.exec, c->rows, 1);
    double loss = nn_step(&run, c->rows, 1.0f), expected = net_loss(&net, run.exec.labels);
    if (!(fabs(loss - expected) <= 1e-5 * (1 + expected)))
        fail_msg("%s with %s: loss %.9g, naive %.9g", c->text, kernels->isa, loss, expected);
    ops_check_moments(c, &run, &net);
    for (size_t t = 0; t < model->n_tensors; t++) ops_check_tensor(c, &run, &net, t);
    net_close(&net);
    nn_run_close(&run);
    dpn_model_close(model);
}

static void ops_check(const struct ops_case *cases, size_t n)
{
    for (size_t i = 0; i < n; i++) ops_check_case(&cases[i], &dpn_kernels_ref, i);
}

static void test_gradients_of_dense(void **state)
{
    (void)state;
    ops_check(OPS_LIST(ops_dense));
}

static void test_gradients_of_conv(void **state)
{
    (void)state;
    ops_check(OPS_LIST(ops_conv));
}

static void test_gradients_of_batch_norm(void **state)
{
    (void)state;
    ops_check(OPS_LIST(ops_norm));
}

static void test_gradients_of_residuals(void **state)
{
    (void)state;
    ops_check(OPS_LIST(ops_residual));
}

static void test_gradients_of_add(void **state)
{
    (void)state;
    ops_check(OPS_LIST(ops_add));
}

static void test_gradients_of_pools(void **state)
{
    (void)state;
    ops_check(OPS_LIST(ops_pool));
}

static const struct {
    const struct ops_case *cases;
    size_t n;
} ops_lists[] = {{OPS_LIST(ops_dense)},    {OPS_LIST(ops_conv)}, {OPS_LIST(ops_norm)},
                 {OPS_LIST(ops_residual)}, {OPS_LIST(ops_add)},  {OPS_LIST(ops_pool)}};
enum { OPS_LISTS = sizeof ops_lists / sizeof ops_lists[0] };

/* Fast tables: every op once. */
static void test_gradients_of_every_table(void **state)
{
    (void)state;
    const struct dpn_kernels *tables[NN_MAX_TABLES];
    size_t n = nn_tables(tables, NN_MAX_TABLES);
    for (size_t k = 1; k < n; k++)
        for (size_t l = 0; l < OPS_LISTS; l++)
            for (size_t i = l % 2; i < ops_lists[l].n; i += 2)
                ops_check_case(&ops_lists[l].cases[i], tables[k], i);
}

/* The lists leave no op out. */
static void test_every_op_is_there(void **state)
{
    (void)state;
    for (size_t o = 0; dpn_op_classes[o]; o++) {
        size_t seen = 0;
        for (size_t l = 0; l < OPS_LISTS; l++)
            for (size_t i = 0; i < ops_lists[l].n; i++) {
                struct dpn_model *model = ops_open(&ops_lists[l].cases[i]);
                for (size_t j = 0; j < model->n_nodes; j++) seen += model->nodes[j].cls == dpn_op_classes[o];
                dpn_model_close(model);
            }
        if (seen == 0) fail_msg("no case with op %s", dpn_op_classes[o]->name);
    }
}

/* ---- evaluation ---- */

/* The logits of evaluation, which reads running statistics and keeps nothing. */
static void ops_check_evaluation(const struct ops_case *c, const struct dpn_kernels *kernels)
{
    struct dpn_model *model = ops_open(c);
    struct nn_run run;
    struct net net;
    nn_run_open(&run, model, kernels, NULL, c->rows, 0);
    nn_stir(&run, 5);
    nn_fill(&run.exec, 9, 0, c->rows);
    net_open(&net, c->text, &run.exec, c->rows, 0);
    net_run(&net);
    for (int again = 0; again < 2; again++) {
        dpn_exec_forward(&run.exec, c->rows, 0);
        for (size_t i = 0; i < c->rows * c->classes; i++) {
            size_t at = i / c->classes * model->values[model->logits].stride + i % c->classes;
            double is = run.exec.value[model->logits][at];
            if (!(fabs(is - net.logits[i]) <= 1e-5 * (1 + fabs(net.logits[i]))))
                fail_msg("%s with %s: logit %zu is %.9g, naive %.9g", c->text, kernels->isa, i, is,
                         net.logits[i]);
        }
    }
    for (size_t v = 0; v < model->n_values; v++) assert_null(run.exec.grad[v]);
    net_close(&net);
    nn_run_close(&run);
    dpn_model_close(model);
}

static void test_evaluation(void **state)
{
    (void)state;
    const struct dpn_kernels *tables[NN_MAX_TABLES];
    size_t n = nn_tables(tables, NN_MAX_TABLES);
    for (size_t k = 0; k < n; k++)
        for (size_t l = 0; l < OPS_LISTS; l++)
            for (size_t i = 0; i < ops_lists[l].n; i++)
                ops_check_evaluation(&ops_lists[l].cases[i], tables[k]);
}

/* ---- the zoo ---- */

/* The zoo's networks, as the text says what they compute. */
static void test_zoo(void **state)
{
    (void)state;
    static const struct {
        const char *spec;
        struct ops_case c;
    } cases[] = {
        {"dense", {"d0-r", 1, 3, 4, 5, 3}},
        {"mlp:hidden=9x17", {"d9-r-d17-r-d0", 1, 3, 4, 5, 3}},
        {"lenet", {"c6k5s1p2b-r-m2s2p0-c16k5s1p0b-r-m2s2p0-d120-r-d84-r-d0", 1, 28, 28, 10, 2}},
        {"resnet20:width=3",
         {"c3k3s1p1-n-r-[-c3k3s1p1-n-r-c3k3s1p1-n-+-r-[-c3k3s1p1-n-r-c3k3s1p1-n-+-r-[-c3k3s1p1-n-r-c3k3s1p1-"
          "n-+-r-[-"
          "c6k3s2p1-n-r-c6k3s1p1-n-x-c6k1s2p0-n-+-r-[-c6k3s1p1-n-r-c6k3s1p1-n-+-r-[-c6k3s1p1-n-r-c6k3s1p1-n-+"
          "-r-[-"
          "c12k3s2p1-n-r-c12k3s1p1-n-x-c12k1s2p0-n-+-r-[-c12k3s1p1-n-r-c12k3s1p1-n-+-r-[-"
          "c12k3s1p1-n-r-c12k3s1p1-n-+-r-g-d0",
          3, 8, 8, 4, 2}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct ops_case *c = &cases[i].c;
        struct dpn_model *model = nn_open(cases[i].spec, c->channels, c->height, c->width, c->classes);
        for (int training = 0; training < 2; training++) {
            struct nn_run run;
            struct net net;
            double loss, expected;
            uint64_t correct;
            nn_run_open(&run, model, &dpn_kernels_ref, NULL, c->rows, 1);
            nn_stir(&run, 1);
            nn_fill(&run.exec, i, 0, c->rows);
            net_open(&net, c->text, &run.exec, c->rows, training);
            expected = net_loss(&net, run.exec.labels);
            dpn_exec_forward(&run.exec, c->rows, training);
            dpn_exec_loss(&run.exec, c->rows, 0, 0.0f, &loss, &correct);
            if (!(fabs(loss - expected) <= 1e-5 * (1 + expected)))
                fail_msg("%s: loss %.9g, naive %.9g", cases[i].spec, loss, expected);
            net_close(&net);
            nn_run_close(&run);
        }
        dpn_model_close(model);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradients_of_dense),
        cmocka_unit_test(test_gradients_of_conv),
        cmocka_unit_test(test_gradients_of_batch_norm),
        cmocka_unit_test(test_gradients_of_residuals),
        cmocka_unit_test(test_gradients_of_add),
        cmocka_unit_test(test_gradients_of_pools),
        cmocka_unit_test(test_gradients_of_every_table),
        cmocka_unit_test(test_every_op_is_there),
        cmocka_unit_test(test_evaluation),
        cmocka_unit_test(test_zoo),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
