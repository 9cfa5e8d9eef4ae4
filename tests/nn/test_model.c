/* Models: names, shapes, the arena's layout, specs and their errors. */
#include "tests/nn/nn_test.h"

static void model_check_tensor(const struct dpn_model *model, size_t t, const char *name, size_t out,
                               size_t in)
{
    const struct dpn_tensor *tensor = &model->tensors[t];
    assert_string_equal(tensor->name, name);
    assert_int_equal(tensor->rank, in ? 2 : 1);
    assert_int_equal(tensor->shape[0], out);
    if (in) assert_int_equal(tensor->shape[1], in);
    assert_int_equal(tensor->elems, in ? out * in : out);
    assert_int_equal(tensor->layout, in ? DPN_LAYOUT_PANEL : DPN_LAYOUT_PLAIN);
}

static void test_dense(void **state)
{
    (void)state;
    struct dpn_model *model = nn_open("dense", 1, 28, 28, 10);
    assert_string_equal(model->spec, "dense");
    assert_int_equal(model->n_tensors, 2);
    model_check_tensor(model, 0, "fc.weight", 10, 784);
    model_check_tensor(model, 1, "fc.bias", 10, 0);
    assert_int_equal(model->parameters, 7850);
    assert_int_equal(model->n_nodes, 1);
    assert_int_equal(model->nodes[0].relu, 1);
    assert_int_equal(model->nodes[0].needs_input_grad, 0);
    assert_int_equal(model->values[0].elems, 784);
    assert_int_equal(model->values[model->logits].stride, 16);
    assert_int_equal(model->tensors[0].init, DPN_INIT_NORMAL);
    assert_true(model->tensors[0].init_scale == 0.01);
    assert_int_equal(model->tensors[1].init, DPN_INIT_ZERO);
    assert_true(model->flops_per_sample == 2.0 * 7840 * 2);
    nn_check_arena(model);
    dpn_model_close(model);
}

static void test_mlp(void **state)
{
    (void)state;
    struct dpn_model *model = nn_open("mlp", 1, 28, 28, 10);
    assert_string_equal(model->spec, "mlp:hidden=128x64");
    assert_int_equal(model->n_tensors, 6);
    model_check_tensor(model, 0, "fc1.weight", 128, 784);
    model_check_tensor(model, 1, "fc1.bias", 128, 0);
    model_check_tensor(model, 2, "fc2.weight", 64, 128);
    model_check_tensor(model, 3, "fc2.bias", 64, 0);
    model_check_tensor(model, 4, "fc3.weight", 10, 64);
    model_check_tensor(model, 5, "fc3.bias", 10, 0);
    assert_int_equal(model->parameters, 109386);
    assert_true(model->tensors[4].offset == 0 && model->tensors[0].offset > model->tensors[2].offset);
    for (size_t t = 0; t < 6; t++) {
        const double fan_in[] = {784, 128, 64};
        assert_int_equal(model->tensors[t].init, DPN_INIT_UNIFORM);
        assert_true(fabs(model->tensors[t].init_scale * sqrt(fan_in[t / 2]) - 1) < 1e-12);
    }
    assert_true(model->flops_per_sample == 2.0 * (2 * 784 * 128 + 3 * 128 * 64 + 3 * 64 * 10));
    nn_check_arena(model);
    dpn_model_close(model);
}

static void test_specs_have_a_normal_form(void **state)
{
    (void)state;
    static const char *const specs[][2] = {
        {"mlp:hidden=5", "mlp:hidden=5"},
        {"mlp:hidden=0128x064", "mlp:hidden=128x64"},
        {"odd:depth=7", "odd:width=24,depth=7"},
        {"odd:depth=7,width=2", "odd:width=2,depth=7"},
        {"mlp:hidden=1x2x3x4x5x6x7x8x9x10x11x12x13x14x15x16",
         "mlp:hidden=1x2x3x4x5x6x7x8x9x10x11x12x13x14x15x16"},
    };
    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++) {
        struct dpn_model *model = nn_open(specs[i][0], 1, 2, 3, 4), *again;
        assert_string_equal(model->spec, specs[i][1]);
        again = nn_open(model->spec, 1, 2, 3, 4);
        assert_string_equal(again->spec, model->spec);
        assert_int_equal(again->arena_elems, model->arena_elems);
        nn_check_arena(model);
        dpn_model_close(model);
        dpn_model_close(again);
    }
}

/* Counts pass 2^31 elements and 2^31 bytes; nothing of the size is allocated. */
static void test_large_layers(void **state)
{
    (void)state;
    struct dpn_model *model = nn_open("mlp:hidden=46341x46341", 1, 28, 28, 10);
    assert_true(model->tensors[2].elems == 2147488281u);
    assert_true(model->parameters == 2147488281u + 784u * 46341 + 46341 + 46341 + 463410 + 10);
    assert_true(model->tensors[0].offset > 2147488281u);
    nn_check_arena(model);
    dpn_model_close(model);

    model = nn_open("mlp:hidden=23171x23171", 1, 28, 28, 10);
    assert_true(model->tensors[2].elems * 4 == 2147580964u);
    nn_check_arena(model);
    dpn_model_close(model);

    model = nn_open("mlp:hidden=2147483648", 1, 1, 1, 65536);
    assert_true(model->tensors[2].elems == (size_t)1 << 47);
    nn_check_arena(model);
    dpn_model_close(model);

    /* 16 of the largest sizes would be 2^66 parameters */
    char spec[200] = "mlp:hidden=2147483648";
    for (int i = 0; i < 15; i++) strcat(spec, "x2147483648");
    assert_int_equal(dpn_model_open(spec, 1, 28, 28, 10, &model), DPN_ERR_USAGE);
    assert_non_null(strstr(dpn_error_text(), "--model"));
    assert_non_null(strstr(dpn_error_text(), "too large"));
    assert_null(model);
}

static void test_errors(void **state)
{
    (void)state;
    static const struct {
        const char *spec, *wanted[3]; /* parts of the text, beside "--model" */
    } cases[] = {
        {"", {""}},
        {"mpl", {"'mpl'", "dense, mlp", "'mlp'"}},
        {"resnet50", {"'resnet50'", "dense, mlp"}},
        {"MLP", {"'MLP'"}},
        {"mlp:", {"mlp:"}},
        {"mlp:hiden=3", {"mlp: key 'hiden'", "hidden", "did you mean 'hidden'"}},
        {"mlp:width=3", {"'width'", "hidden"}},
        {"mlp:hidden", {"hidden"}},
        {"mlp:hidden=", {"hidden"}},
        {"mlp:hidden=0", {"mlp: hidden", "'0'", "1..2147483648"}},
        {"mlp:hidden=-5", {"'-5'"}},
        {"mlp:hidden=12y", {"'12y'"}},
        {"mlp:hidden=12x", {"''"}},
        {"mlp:hidden=x12", {"''"}},
        {"mlp:hidden=12xx3", {"''"}},
        {"mlp:hidden=12X3", {"'12X3'"}},
        {"mlp:hidden=1e3", {"'1e3'"}},
        {"mlp:hidden= 3", {"' 3'"}},
        {"mlp:hidden=2147483649", {"'2147483649'", "2147483648"}},
        {"mlp:hidden=18446744073709551617", {"'18446744073709551617'"}},
        {"mlp:hidden=1x2x3x4x5x6x7x8x9x10x11x12x13x14x15x16x17", {"16 sizes", "'17'"}},
        {"mlp:hidden=3,hidden=4", {"hidden", "twice"}},
        {"dense:hidden=3", {"dense takes no keys", "'hidden'"}},
        {"odd:a=1,b=2,c=3,d=4,e=5,f=6,g=7,h=8,i=9", {"8 keys"}},
        {"odd:width=3x4", {"1 sizes", "'4'"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct dpn_model *model = (struct dpn_model *)&model;
        enum dpn_status status = dpn_model_open(cases[i].spec, 1, 28, 28, 10, &model);
        if (status != DPN_ERR_USAGE) fail_msg("'%s' gave status %d", cases[i].spec, status);
        assert_null(model);
        if (!strstr(dpn_error_text(), "--model")) fail_msg("no --model in: %s", dpn_error_text());
        for (size_t j = 0; j < 3 && cases[i].wanted[j]; j++)
            if (!strstr(dpn_error_text(), cases[i].wanted[j]))
                fail_msg("'%s': no \"%s\" in: %s", cases[i].spec, cases[i].wanted[j], dpn_error_text());
    }
}

/* Images that shrink to nothing, and sizes that no memory holds. */
static void test_convolutions_that_do_not_fit(void **state)
{
    (void)state;
    static const struct {
        const char *spec;
        size_t height, width;
        const char *wanted;
    } cases[] = {
        {"lenet", 28, 11, "images of 1x28x11 are too small"},
        {"lenet", 1, 28, "too small"},
        {"lenet", 9, 28, "conv2"},
        {"net:ops=c4k5s1p0-d0", 4, 9, "l0"},
        {"net:ops=c4k1s1p0-m3s1p0-d0", 9, 2, "a pooling layer sees 9x2"},
        {"resnet18:width=2147483648", 32, 32, "too large"},
        {"resnet20:width=0", 32, 32, "'0'"},
        {"resnet34:width=4x5", 32, 32, "'5'"},
        {"lenet:width=3", 32, 32, "lenet takes no keys"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct dpn_model *model;
        enum dpn_status status = dpn_model_open(cases[i].spec, 1, cases[i].height, cases[i].width, 10,
                                                &model);
        if (status != DPN_ERR_USAGE) fail_msg("'%s' gave status %d", cases[i].spec, status);
        assert_null(model);
        if (!strstr(dpn_error_text(), "--model") || !strstr(dpn_error_text(), cases[i].wanted))
            fail_msg("'%s': no \"%s\" in: %s", cases[i].spec, cases[i].wanted, dpn_error_text());
    }
    dpn_model_close(nn_open("lenet", 1, 12, 12, 10)); /* the smallest */
    dpn_model_close(nn_open("resnet18:width=3", 3, 1, 1, 10));
}

static void test_closing_nothing(void **state)
{
    (void)state;
    dpn_model_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dense),
        cmocka_unit_test(test_mlp),
        cmocka_unit_test(test_specs_have_a_normal_form),
        cmocka_unit_test(test_large_layers),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_convolutions_that_do_not_fit),
        cmocka_unit_test(test_closing_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
