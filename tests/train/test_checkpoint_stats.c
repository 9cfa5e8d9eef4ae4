/* Running statistics in weights files: saved and loaded beside the weights, asked for by name, counters of rank 0. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/train/checkpoint_fixture.h"
#include "train/safetensors.h"

/* Tensors of a file that another program wrote: the model's, in any order, counters, of 24 values each. */
struct foreign {
    size_t n;
    struct dpn_st_source sources[8];
    float values[24];
    int64_t counter;
};

static const void *foreign_data(void *arg, size_t position)
{
    const struct foreign *foreign = arg;
    return strcmp(foreign->sources[position].dtype, "I64") == 0 ? (const void *)&foreign->counter : foreign->values;
}

static void foreign_add(struct foreign *foreign, const char *name, const char *dtype, unsigned rank,
                        const size_t *shape)
{
    foreign->sources[foreign->n++] = (struct dpn_st_source){name, dtype, rank, shape, foreign_data};
}

/* All that the fixture's model wants. */
static struct foreign foreign_all(void)
{
    struct foreign foreign = {.counter = 0};
    for (int i = 0; i < 24; i++) foreign.values[i] = 0.5f + (float)i;
    for (size_t b = 0; b < 2; b++)
        foreign_add(&foreign, fixture_buffers[b].name, "F32", fixture_buffers[b].rank, fixture_buffers[b].shape);
    for (size_t t = 0; t < 3; t++)
        foreign_add(&foreign, fixture_tensors[t].name, "F32", fixture_tensors[t].rank, fixture_tensors[t].shape);
    return foreign;
}

/* Writes FOREIGN and loads it: the error, or "". Nothing is stored if there is one. */
static const char *foreign_error(struct foreign *foreign, uint64_t *batches)
{
    struct fixture_arenas memory;
    uint32_t crc;
    FILE *file = fopen(fixture_path("foreign.safetensors"), "wb");
    assert_non_null(file);
    assert_int_equal(dpn_st_write(fileno(file), "foreign", NULL, 0, foreign->sources, foreign->n, foreign, &crc),
                     DPN_OK);
    assert_int_equal(fclose(file), 0);
    fixture_fill(&memory, UINT64_MAX);
    memory.batches = 99;
    enum dpn_status status =
        dpn_weights_load(fixture_path("foreign.safetensors"), &fixture_model, &memory.arenas);
    *batches = memory.batches;
    for (size_t b = 0; b < 2; b++)
        for (size_t i = 0; i < 4; i++)
            assert_true(memory.buffers[fixture_buffers[b].offset + i] == (status == DPN_OK ? 0.5f + (float)i : 0));
    assert_true(memory.params[80] == (status == DPN_OK ? 0.5f : 0));
    if (status == DPN_OK) return "";
    assert_int_equal(status, DPN_ERR_INPUT);
    assert_true(memory.batches == 99);
    assert_non_null(strstr(dpn_error_text(), fixture_path("foreign.safetensors")));
    return dpn_error_text();
}

/* PyTorch counts in every batch norm; one of the counters is taken, and a file need not have any. */
static void test_counters(void **state)
{
    (void)state;
    static const size_t one[1] = {1}, two[1] = {2};
    uint64_t batches;
    struct foreign foreign = foreign_all();
    assert_string_equal(foreign_error(&foreign, &batches), "");
    assert_true(batches == 99);
    foreign.counter = (INT64_C(1) << 40) + 7;
    foreign_add(&foreign, "norm.1.num_batches_tracked", "I64", 0, NULL);
    assert_string_equal(foreign_error(&foreign, &batches), "");
    assert_true(batches == (UINT64_C(1) << 40) + 7);
    /* of another name and rank, as some programs write a scalar */
    foreign.sources[5] = (struct dpn_st_source){"other.num_batches_tracked", "I64", 1, one, foreign_data};
    assert_string_equal(foreign_error(&foreign, &batches), "");
    assert_true(batches == (UINT64_C(1) << 40) + 7);
    /* no count */
    foreign.counter = -1;
    assert_string_equal(foreign_error(&foreign, &batches), "");
    assert_true(batches == 99);
    foreign.sources[5] = (struct dpn_st_source){"norm.1.num_batches_tracked", "F32", 1, two, foreign_data};
    assert_string_equal(foreign_error(&foreign, &batches), "");
    assert_true(batches == 99);
    foreign.sources[5].name = "norm.1.num_batches";
    assert_non_null(strstr(foreign_error(&foreign, &batches), "\"norm.1.num_batches\" is not one of model"));
}

/* Running statistics are asked for by name, like any tensor. */
static void test_missing_statistics(void **state)
{
    (void)state;
    static const size_t five[1] = {5};
    uint64_t batches;
    struct foreign foreign = foreign_all();
    foreign.sources[1].name = "norm.1.num_batches_tracked";
    assert_non_null(strstr(foreign_error(&foreign, &batches), "has no tensor \"norm.1.running_var\""));
    foreign.sources[1].name = "norm.1.running_var";
    foreign.sources[0].name = "norm.2.running_mean";
    assert_non_null(strstr(foreign_error(&foreign, &batches), "has no tensor \"norm.1.running_mean\""));
    foreign.sources[0].name = "norm.1.running_mean";
    foreign.sources[0].shape = five;
    assert_non_null(strstr(foreign_error(&foreign, &batches), "has shape [5], the model's has [4]"));
    /* and a model without batch norms does not take them */
    foreign = foreign_all();
    fixture_model.n_buffers = 0;
    const char *text = foreign_error(&foreign, &batches);
    fixture_model.n_buffers = 2;
    assert_non_null(strstr(text, "\"norm.1.running_mean\" is not one of model"));
}

/* In the file: after the tensors, a count for each batch norm, of rank 0. */
static void test_saved_statistics(void **state)
{
    (void)state;
    struct dpn_st_file *file;
    int64_t counter;
    struct dpn_checkpoint_dir *dir;
    assert_int_equal(dpn_checkpoint_dir_open(fixture_path("stats"), 0, 0, 0, &dir), DPN_OK);
    assert_int_equal(fixture_save(dir, 3, 0), DPN_OK);
    dpn_checkpoint_dir_close(dir);
    assert_int_equal(dpn_st_open(fixture_path("stats/step-00000003.safetensors"), &file), DPN_OK);
    assert_int_equal(file->n_tensors, 6);
    assert_string_equal(file->tensors[3].name, "norm.1.running_mean");
    assert_string_equal(file->tensors[4].name, "norm.1.running_var");
    assert_string_equal(file->tensors[5].name, "norm.1.num_batches_tracked");
    assert_string_equal(file->tensors[5].dtype, "I64");
    assert_int_equal(file->tensors[5].rank, 0);
    assert_int_equal(file->tensors[5].elems, 1);
    memcpy(&counter, file->data + file->tensors[5].begin, sizeof counter);
    assert_true(counter == (INT64_C(1) << 40) + 3);
    const float second = fixture_value(3, 7, 1, 1);
    assert_memory_equal(file->data + file->tensors[4].begin + sizeof(float), &second, sizeof(float));
    dpn_st_close(file);
    assert_int_equal(dpn_st_open(fixture_path("stats/step-00000003.state.safetensors"), &file), DPN_OK);
    assert_int_equal(file->n_tensors, 3 * FIXTURE_SLOTS); /* no slots of theirs */
    dpn_st_close(file);
}

/* What PyTorch wrote for a ResNet-18 is there, to the last counter. */
static void test_pytorchs_resnet(void **state)
{
    (void)state;
    const char *srcdir = getenv("srcdir");
    char path[FIXTURE_PATH_BYTES];
    struct dpn_model *model;
    snprintf(path, sizeof path, "%s/tests/reference/resnet18-momentum.safetensors", srcdir ? srcdir : ".");
    assert_int_equal(dpn_model_open("resnet18:width=8", 3, 32, 32, 10, &model), DPN_OK);
    float *params = calloc(model->arena_elems, sizeof *params), *buffers = calloc(model->buffer_elems, sizeof *buffers);
    uint64_t batches = 99;
    assert_true(params && buffers);
    const struct dpn_checkpoint_arenas arenas = {.params = params, .buffers = buffers, .batches = &batches};
    if (dpn_weights_load(path, model, &arenas) != DPN_OK) fail_msg("%s", dpn_error_text());
    assert_true(batches == 0);
    for (size_t b = 0; b < model->n_buffers; b++)
        for (size_t i = 0; i < model->buffers[b].elems; i++)
            assert_true(buffers[model->buffers[b].offset + i] == (b % 2 ? 1.0f : 0.0f));
    free(params);
    free(buffers);
    dpn_model_close(model);
}

static void test_round_trip(void **state)
{
    (void)state;
    struct dpn_checkpoint_dir *dir;
    uint64_t step;
    int exact;
    assert_int_equal(dpn_checkpoint_dir_open(fixture_path("trip"), 0, 0, 0, &dir), DPN_OK);
    assert_int_equal(fixture_save(dir, 5, 0), DPN_OK);
    dpn_checkpoint_dir_close(dir);
    assert_int_equal(fixture_resume("auto", "trip", &step, &exact), DPN_OK);
    assert_int_equal(step, 5);
    assert_true(exact); /* statistics and counter too */
}

static int setup(void **state)
{
    (void)state;
    fixture_open();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    fixture_close();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counters),
        cmocka_unit_test(test_missing_statistics),
        cmocka_unit_test(test_saved_statistics),
        cmocka_unit_test(test_pytorchs_resnet),
        cmocka_unit_test(test_round_trip),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
