/* What a finished model knows of itself: names and shapes as PyTorch's, parameters, the arena's order; which
 * values and gradients are never stored or shared, and what convolutions do for the batch norms around them.
 */
#include "tests/nn/nn_test.h"
#include "train/safetensors.h"

/* ---- names ---- */

static int link_is(const char *name, const char *ending)
{
    size_t n = strlen(name), m = strlen(ending);
    return n >= m && strcmp(name + n - m, ending) == 0;
}

static void link_check_tensor(const struct dpn_st_tensor *there, const struct dpn_tensor *mine)
{
    assert_string_equal(there->name, mine->name);
    assert_int_equal(there->rank, mine->rank);
    assert_int_equal(there->elems, mine->elems);
    for (unsigned d = 0; d < mine->rank; d++) assert_int_equal(there->shape[d], mine->shape[d]);
}

/* A file that PyTorch's state dict went into, in its order. */
static void link_check_names(const char *spec, const char *file, size_t channels, size_t pixels)
{
    const char *srcdir = getenv("srcdir");
    char path[512];
    struct dpn_st_file *dict;
    struct dpn_model *model = nn_open(spec, channels, pixels, pixels, 10);
    size_t tensors = 0, buffers = 0, counters = 0;
    snprintf(path, sizeof path, "%s/tests/reference/%s.safetensors", srcdir ? srcdir : ".", file);
    if (dpn_st_open(path, &dict) != DPN_OK) fail_msg("%s", dpn_error_text());
    for (size_t t = 0; t < dict->n_tensors; t++) {
        const struct dpn_st_tensor *there = &dict->tensors[t];
        if (link_is(there->name, ".num_batches_tracked")) {
            counters++;
        } else if (link_is(there->name, ".running_mean") || link_is(there->name, ".running_var")) {
            assert_true(buffers < model->n_buffers);
            link_check_tensor(there, &model->buffers[buffers++]);
        } else {
            assert_true(tensors < model->n_tensors);
            link_check_tensor(there, &model->tensors[tensors++]);
        }
    }
    assert_int_equal(tensors, model->n_tensors);
    assert_int_equal(buffers, model->n_buffers);
    assert_int_equal(counters, model->norms);
    dpn_st_close(dict);
    dpn_model_close(model);
}

static void test_names_and_shapes_are_pytorchs(void **state)
{
    (void)state;
    link_check_names("dense", "dense-sgd", 1, 28);
    link_check_names("mlp", "mlp-adam", 1, 28);
    link_check_names("lenet", "lenet-adam-4replicas", 1, 28);
    link_check_names("resnet18:width=8", "resnet18-momentum", 3, 32);
}

static void test_parameters(void **state)
{
    (void)state;
    static const struct {
        const char *spec;
        size_t channels, pixels, parameters, tensors, norms;
        double macs; /* forward; 0: not counted here */
    } cases[] = {
        {"lenet", 1, 28, 61706, 10, 0, 0},
        {"resnet18", 3, 32, 11173962, 62, 20, 555422720},
        {"resnet34", 3, 32, 21282122, 110, 36, 0},
        {"resnet20", 3, 32, 272474, 65, 21, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct dpn_model *model = nn_open(cases[i].spec, cases[i].channels, cases[i].pixels, cases[i].pixels,
                                          10);
        assert_int_equal(model->parameters, cases[i].parameters);
        assert_int_equal(model->n_tensors, cases[i].tensors);
        assert_int_equal(model->norms, cases[i].norms);
        assert_int_equal(model->n_buffers, 2 * cases[i].norms);
        /* Thrice, but no gradient of the images. */
        if (cases[i].macs > 0)
            assert_true(model->flops_per_sample == 2 * (3 * cases[i].macs - 3.0 * 64 * 9 * 32 * 32));
        nn_check_arena(model);
        /* Backward order: the classifier first, the first layer last. */
        assert_int_equal(model->tensors[model->n_tensors - 2].offset, 0);
        assert_int_equal(model->nodes[0].ready, model->arena_elems);
        dpn_model_close(model);
    }
}

/* Running statistics, moments and what is computed of them lie side by side, each batch norm its own. */
static void test_places_of_batch_norms(void **state)
{
    (void)state;
    struct dpn_model *model = nn_open("resnet18:width=20", 3, 32, 32, 10);
    size_t buffer = 0, at = 0, moments = 0, aux = 0;
    for (size_t i = 0; i < model->n_nodes; i++) {
        const struct dpn_node *node = &model->nodes[i];
        const struct dpn_value *z = &model->values[node->input];
        if (!node->cls->moments_elems) {
            assert_int_equal(node->buffers, -1);
            continue;
        }
        assert_int_equal(node->buffers, buffer);
        for (int k = 0; k < 2; k++, buffer++) {
            assert_int_equal(model->buffers[buffer].elems, z->channels);
            assert_int_equal(model->buffers[buffer].offset, at);
            at += model->buffers[buffer].stored;
        }
        assert_true(link_is(model->buffers[buffer - 2].name, ".running_mean"));
        assert_true(link_is(model->buffers[buffer - 1].name, ".running_var"));
        assert_int_equal(node->moments_at, moments);
        moments += 1 + 2 * z->cstride;
        assert_int_equal(node->aux_at, aux);
        aux += node->cls->aux_elems(model, node);
    }
    assert_int_equal(buffer, model->n_buffers);
    assert_int_equal(model->moments_elems, moments);
    assert_int_equal(model->aux_elems, aux);
    assert_int_equal(model->buffer_elems, dpn_arena_round(at));
    dpn_model_close(model);
}

/* ---- links ---- */

/* Node I in words: see link_resnet. */
static void link_say(const struct dpn_model *model, size_t i, char *text, size_t size)
{
    const struct dpn_node *node = &model->nodes[i];
    const struct dpn_value *in = &model->values[node->input], *out = &model->values[node->output];
    const struct dpn_value *residual = node->residual >= 0 ? &model->values[node->residual] : NULL;
    if (node->norm >= 0) assert_int_equal(node->norm, i + 1);
    if (node->masks >= 0) assert_int_equal(node->masks, in->maker);
    if (residual) assert_int_equal(node->adds_residual_grad, 0);
    if (node->pooled >= 0) assert_int_equal(node->pooled, i + 1);
    snprintf(text, size, "%s%s%s%s%s%s%s%s%s%s%s", node->cls->name, node->relu ? " relu" : "",
             node->pool          ? " pools"
             : node->pooled >= 0 ? " pooled"
                                 : "",
             in->lazy ? " of lazy" : "",
             !residual        ? ""
             : residual->lazy ? " + lazy"
                              : " + stored",
             residual && residual->grad_shared_with == node->output ? " shared" : "",
             node->norm >= 0 ? " takes moments" : "", node->masks >= 0 ? " masks" : "",
             node->adds_input_grad ? " adds" : "", out->lazy ? " -> lazy" : "",
             out->grad_lazy ? " -> lazy gradient" : "");
}

static size_t link_expect(const struct dpn_model *model, size_t i, const char *const *wanted, size_t n)
{
    for (size_t k = 0; k < n; k++, i++) {
        char text[200];
        assert_true(i < model->n_nodes);
        link_say(model, i, text, sizeof text);
        if (strcmp(text, wanted[k]) != 0)
            fail_msg("%s, node %zu: '%s', wanted '%s'", model->spec, i, text, wanted[k]);
    }
    return i;
}

/* A ResNet of STAGES of BLOCKS[s] blocks, node by node. */
static void link_resnet(const char *spec, const size_t *blocks, size_t stages)
{
    static const char *const stem[] = {"conv takes moments -> lazy gradient", "batch_norm relu -> lazy"};
    static const char *const first[] = {"conv of lazy takes moments masks adds -> lazy gradient",
                                        "batch_norm relu -> lazy",
                                        "conv of lazy takes moments masks -> lazy gradient",
                                        "batch_norm relu + lazy shared"};
    static const char *const plain[] = {"conv takes moments masks adds -> lazy gradient",
                                        "batch_norm relu -> lazy",
                                        "conv of lazy takes moments masks -> lazy gradient",
                                        "batch_norm relu + stored shared"};
    static const char *const projected[] = {"conv takes moments masks adds -> lazy gradient",
                                            "batch_norm relu -> lazy",
                                            "conv of lazy takes moments masks -> lazy gradient",
                                            "batch_norm -> lazy",
                                            "conv takes moments -> lazy gradient",
                                            "batch_norm relu + lazy shared"};
    static const char *const end[] = {"global_pool", "dense"};
    struct dpn_model *model = nn_open(spec, 3, 32, 32, 10);
    size_t i = link_expect(model, 0, stem, 2), shared = 0;
    for (size_t s = 0; s < stages; s++)
        for (size_t b = 0; b < blocks[s]; b++) {
            if (s > 0 && b == 0) i = link_expect(model, i, projected, 6);
            else i = link_expect(model, i, s == 0 && b == 0 ? first : plain, 4);
        }
    i = link_expect(model, i, end, 2);
    assert_int_equal(i, model->n_nodes);
    for (size_t v = 0; v < model->n_values; v++) shared += model->values[v].grad_shared_with >= 0;
    size_t residuals = 0;
    for (size_t s = 0; s < stages; s++) residuals += blocks[s];
    assert_int_equal(shared, residuals);
    assert_int_equal(model->nodes[0].needs_input_grad, 0);
    dpn_model_close(model);
}

static void test_resnets(void **state)
{
    (void)state;
    link_resnet("resnet18:width=8", (const size_t[]){2, 2, 2, 2}, 4);
    link_resnet("resnet34:width=8", (const size_t[]){3, 4, 6, 3}, 4);
    link_resnet("resnet20", (const size_t[]){3, 3, 3}, 3);
}

static void link_net(const char *ops, const char *const *wanted)
{
    char spec[DPN_SPEC_BYTES];
    size_t n = 0;
    snprintf(spec, sizeof spec, "net:ops=%s", ops);
    struct dpn_model *model = nn_open(spec, 2, 8, 8, 3);
    while (wanted[n]) n++;
    assert_int_equal(link_expect(model, 0, wanted, n), model->n_nodes);
    dpn_model_close(model);
}

#define LINK_NET(ops, ...) link_net((ops), (const char *const[]){__VA_ARGS__, NULL})

static void test_lenet(void **state)
{
    (void)state;
    LINK_NET("c6k5s1p2b-r-m2s2p0-d120-r-d0", "conv relu pools -> lazy gradient", "pool", "dense relu",
             "dense");
}

/* Who undoes a convolution's ReLU: the maximum pooling that alone reads it; where the convolution pools
 * itself. */
static void test_pooled(void **state)
{
    (void)state;
    LINK_NET("c5k3s1p1b-m3s1p1-g-d0", "conv pooled", "pool", "global_pool", "dense");
    LINK_NET("c5k3s2p1-m2s2p0-g-d0", "conv pools -> lazy gradient", "pool", "global_pool", "dense");
    LINK_NET("c5k5s1p2-r-m2s2p0-c63k1s1p0-m2s2p0-d0", "conv relu pools -> lazy gradient", "pool",
             "conv pools -> lazy gradient", "pool", "dense");
    LINK_NET("c64k5s1p2-m2s2p0-d0", "conv pooled", "pool", "dense");
    LINK_NET("c5k5s1p2-m3s2p0-d0", "conv pooled", "pool", "dense");
    LINK_NET("c5k5s1p2-m2s2p1-d0", "conv pooled", "pool", "dense");
    LINK_NET("c5k3s1p1b-r-a2s2p0-g-d0", "conv relu", "pool", "global_pool", "dense");
    LINK_NET("c5k3s1p1b-r-[-m3s1p1-+-g-d0", "conv relu", "pool adds", "add + stored", "global_pool", "dense");
    LINK_NET("c5k3s1p1-m2s2p0-c5k3s1p1b-r-g-d0", "conv pooled", "pool", "conv relu", "global_pool", "dense");
}

/* What else may stand around a batch norm. */
static void test_links(void **state)
{
    (void)state;
    /* the logits are stored, and so is what one of its readers cannot compute */
    LINK_NET("c5k3s1p1-n-r-d0", "conv takes moments -> lazy gradient", "batch_norm relu", "dense");
    LINK_NET("c5k3s1p1-g-c3k1s1p0-n", "conv", "global_pool", "conv takes moments -> lazy gradient",
             "batch_norm");
    LINK_NET("c5k3s1p1-n-r-[-a3s1p1-x-c5k3s1p1-+-g-d0", "conv takes moments -> lazy gradient",
             "batch_norm relu", "pool adds", "conv", "add + stored", "global_pool", "dense");
    LINK_NET("c5k3s1p1-n-[-c5k3s1p1-x-m3s1p1-+-g-d0", "conv takes moments -> lazy gradient", "batch_norm",
             "conv masks adds", "pool", "add + stored", "global_pool", "dense");
    /* a ReLU in between, a bias to sum, a second reader, a second op in between */
    LINK_NET("c5k3s1p1-r-n-g-d0", "conv relu", "batch_norm", "global_pool", "dense");
    LINK_NET("c5k3s1p1b-n-g-d0", "conv takes moments", "batch_norm", "global_pool", "dense");
    LINK_NET("c5k3s1p1-[-n-r-+-g-d0", "conv", "batch_norm relu adds", "add + stored", "global_pool", "dense");
    LINK_NET("c5k3s1p1-m2s2p0-n-g-d0", "conv pooled", "pool", "batch_norm", "global_pool", "dense");
    LINK_NET("c5k3s1p1-[-c5k3s1p1-x-n-+-g-d0", "conv", "conv adds", "batch_norm + stored shared",
             "global_pool", "dense");
    /* its convolution reads its residual */
    LINK_NET("c5k3s1p1-r-[-c5k3s1p1-n-+-g-d0", "conv relu", "conv takes moments adds",
             "batch_norm + stored shared", "global_pool", "dense");
    /* its residual is its input: an addition of its own */
    LINK_NET("c5k3s1p1-[-n-+-r-g-d0", "conv", "batch_norm adds", "add relu + stored", "global_pool", "dense");
}

/* An addition passes its gradient on to its first summand in place. */
static void test_shared_gradients_of_additions(void **state)
{
    (void)state;
    struct dpn_model *model = nn_open("net:ops=c5k3s1p1-r-[-c5k3s1p1-r-+-g-d0", 2, 8, 8, 3);
    assert_string_equal(model->nodes[2].cls->name, "add");
    assert_int_equal(model->values[model->nodes[2].input].grad_shared_with, model->nodes[2].output);
    assert_int_equal(model->values[model->nodes[2].residual].grad_shared_with, -1);
    dpn_model_close(model);
    /* What a ReLU overwrote in place has that value's gradient. */
    model = nn_open("net:ops=c5k3s1p1-[-m3s1p1-r-+-g-d0", 2, 8, 8, 3);
    assert_string_equal(model->nodes[3].cls->name, "add");
    assert_true(model->values[model->nodes[3].input].in_place_of >= 0);
    for (size_t v = 0; v < model->n_values; v++)
        if (model->values[v].in_place_of >= 0) assert_int_equal(model->values[v].grad_shared_with, -1);
    dpn_model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names_and_shapes_are_pytorchs),
        cmocka_unit_test(test_parameters),
        cmocka_unit_test(test_places_of_batch_norms),
        cmocka_unit_test(test_resnets),
        cmocka_unit_test(test_lenet),
        cmocka_unit_test(test_pooled),
        cmocka_unit_test(test_links),
        cmocka_unit_test(test_shared_gradients_of_additions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
