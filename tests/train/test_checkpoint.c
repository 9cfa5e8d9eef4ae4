/* Checkpoints: what is saved comes back, what is damaged or does not belong is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/train/checkpoint_fixture.h"
#include "train/command.h"
#include "train/safetensors.h"

extern const struct dpn_command dpn_command_info;

/* A folder NAME with checkpoints of steps FIRST .. LAST, of which BEST is the best (0: none). */
static void make_run(const char *name, uint64_t first, uint64_t last, uint64_t best)
{
    struct dpn_checkpoint_dir *dir;
    assert_int_equal(dpn_checkpoint_dir_open(fixture_path(name), 0, first > 1, 0, &dir), DPN_OK);
    for (uint64_t step = first; step <= last; step++)
        assert_int_equal(fixture_save(dir, step, step == best), DPN_OK);
    dpn_checkpoint_dir_close(dir);
}

static void assert_resumes(const char *path, const char *name, uint64_t wanted)
{
    uint64_t step;
    int exact;
    if (fixture_resume(path, name, &step, &exact) != DPN_OK) fail_msg("%s", dpn_error_text());
    assert_int_equal(step, wanted);
    assert_true(exact);
}

static void assert_resume_fails(const char *path, enum dpn_status status, const char *text)
{
    uint64_t step;
    int exact;
    if (fixture_resume(path, NULL, &step, &exact) != status) fail_msg("%s: %s", path, dpn_error_text());
    if (!strstr(dpn_error_text(), text)) fail_msg("no \"%s\" in: %s", text, dpn_error_text());
}

static void copy_file(const char *from, const char *to)
{
    char bytes[8192];
    FILE *in = fopen(fixture_path(from), "rb"), *out = fopen(fixture_path(to), "wb");
    assert_true(in && out);
    const size_t n = fread(bytes, 1, sizeof(bytes), in);
    assert_int_equal(fwrite(bytes, 1, n, out), n);
    assert_int_equal(fclose(in) | fclose(out), 0);
}

static void cut_file(const char *name, long change)
{
    struct stat info;
    assert_int_equal(stat(fixture_path(name), &info), 0);
    assert_int_equal(truncate(fixture_path(name), change > 0 ? info.st_size + change : -change), 0);
}

static void test_round_trip(void **state)
{
    (void)state;
    make_run("rt", 1, 5, 2);
    assert_resumes("auto", "rt", 5);
    assert_resumes(fixture_path("rt/step-00000005.safetensors"), NULL, 5);
    assert_resumes(fixture_path("rt/step-00000005.state.safetensors"), NULL, 5);
    assert_resumes(fixture_path("rt/epoch-0001.safetensors"), NULL, 4);
    assert_resumes(fixture_path("rt/last.safetensors"), NULL, 5);
    assert_resumes(fixture_path("rt/last.state.safetensors"), NULL, 5);

    struct fixture_arenas loaded, wanted;
    fixture_fill(&loaded, UINT64_MAX);
    fixture_fill(&wanted, 2);
    assert_int_equal(dpn_weights_load(fixture_path("rt/best.safetensors"), &fixture_model, &loaded.arenas),
                     DPN_OK);
    assert_memory_equal(loaded.params, wanted.params, sizeof(loaded.params));
    assert_memory_equal(loaded.buffers, wanted.buffers, sizeof(loaded.buffers));
    assert_true(loaded.batches == wanted.batches);
    assert_int_equal(fixture_count("rt", ""), 13);
}

/* Weights depend on the weights alone, so that runs can be compared with cmp. */
static void test_same_bytes(void **state)
{
    (void)state;
    struct fixture_arenas memory;
    struct dpn_progress_record record = fixture_record(3);
    struct dpn_checkpoint_dir *dir;
    make_run("same", 3, 3, 0);
    record.devices = 7;
    record.samples = UINT64_C(1) << 53;
    record.step_in_epoch = 0;
    fixture_fill(&memory, 3);
    assert_int_equal(dpn_checkpoint_dir_open(fixture_path("same"), 0, 1, 0, &dir), DPN_OK);
    assert_int_equal(dpn_checkpoint_save(dir, &fixture_model, &fixture_config, &record, &memory.arenas, 0),
                     DPN_OK);
    dpn_checkpoint_dir_close(dir);
    struct dpn_st_file *a, *b;
    assert_int_equal(dpn_st_open(fixture_path("same/step-00000003.safetensors"), &a), DPN_OK);
    assert_int_equal(dpn_st_open(fixture_path("same/epoch-0000.safetensors"), &b), DPN_OK);
    assert_int_equal(a->map_bytes, b->map_bytes);
    assert_memory_equal(a->map, b->map, a->map_bytes);
    assert_string_equal(a->tensors[0].name, "fc1.weight");
    assert_int_equal(a->tensors[0].shape[0], 3);
    assert_int_equal(a->tensors[0].shape[1], 5);
    const float second = fixture_value(3, 0, 0, 1);
    assert_memory_equal(a->data + sizeof(float), &second, sizeof(float));
    dpn_st_close(a);
    dpn_st_close(b);
}

static void test_large_counts(void **state)
{
    (void)state;
    struct fixture_arenas memory;
    struct dpn_checkpoint_dir *dir;
    struct dpn_config config;
    struct dpn_checkpoint *checkpoint;
    struct dpn_progress_record record = fixture_record(1), back;
    int found;
    record.samples = UINT64_C(2147483648);
    record.global_step = INT64_MAX;
    record.best_accuracy = -1;
    record.epoch_loss_sum = 0x1.fffffffffffffp+1000;
    fixture_fill(&memory, 1);
    assert_int_equal(dpn_checkpoint_dir_open(fixture_path("large"), 0, 0, 0, &dir), DPN_OK);
    assert_int_equal(dpn_checkpoint_save(dir, &fixture_model, &fixture_config, &record, &memory.arenas, 0),
                     DPN_OK);
    dpn_checkpoint_dir_close(dir);
    assert_true(fixture_exists("large/step-9223372036854775807.state.safetensors"));
    dpn_config_defaults(&config);
    assert_int_equal(dpn_checkpoint_open("auto", fixture_path("large"), &config, &back, &found, &checkpoint),
                     DPN_OK);
    assert_true(found);
    assert_true(back.samples == record.samples && back.global_step == record.global_step);
    assert_true(back.best_accuracy == -1 && back.epoch_loss_sum == record.epoch_loss_sum);
    dpn_checkpoint_close(checkpoint);
}

static void try_damage(const char *name)
{
    const char *path = fixture_path(name);
    struct fixture_arenas memory;
    unsigned char bytes[8192];
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    const size_t n = fread(bytes, 1, sizeof(bytes), file);
    assert_in_range(n, 100, sizeof(bytes) - 1);
    fixture_fill(&memory, UINT64_MAX);
    for (size_t i = 0; i < n; i++) {
        uint64_t step;
        int exact;
        const unsigned char damaged = (unsigned char)(bytes[i] ^ (1 << (i % 8)));
        assert_int_equal(pwrite(fileno(file), &damaged, 1, (off_t)i), 1);
        if (fixture_resume(path, NULL, &step, &exact) != DPN_ERR_INPUT)
            fail_msg("%s: byte %zu flipped: accepted", name, i);
        assert_non_null(strstr(dpn_error_text(), path));
        assert_int_equal(dpn_weights_load(path, &fixture_model, &memory.arenas), DPN_ERR_INPUT);
        assert_non_null(strstr(dpn_error_text(), path));
        assert_int_equal(pwrite(fileno(file), &bytes[i], 1, (off_t)i), 1);
    }
    for (size_t i = 0; i < FIXTURE_ARENA_ELEMS; i++) assert_true(memory.params[i] == 0.0f);
    assert_int_equal(fclose(file), 0);
    assert_resumes(path, NULL, 1);

    const long lengths[] = {1, -(long)(n - 1), -(long)(n / 2), 0};
    for (size_t i = 0; i < 4; i++) {
        cut_file(name, lengths[i]);
        assert_resume_fails(path, DPN_ERR_INPUT, path);
        assert_int_equal(dpn_weights_load(path, &fixture_model, &memory.arenas), DPN_ERR_INPUT);
    }
}

static void test_damage(void **state)
{
    (void)state;
    make_run("damaged-weights", 1, 1, 0);
    try_damage("damaged-weights/step-00000001.safetensors");
    make_run("damaged-state", 1, 1, 0);
    try_damage("damaged-state/step-00000001.state.safetensors");
}

static void test_auto_skips_damage(void **state)
{
    (void)state;
    uint64_t step;
    int exact;
    make_run("skip", 1, 4, 0);
    cut_file("skip/last.safetensors", 1); /* the same file as epoch-0001.safetensors */
    assert_resumes("auto", "skip", 3);
    assert_resume_fails(fixture_path("skip/last.safetensors"), DPN_ERR_INPUT, "last.safetensors");
    cut_file("skip/step-00000003.state.safetensors", -100);
    assert_int_equal(unlink(fixture_path("skip/step-00000002.safetensors")), 0);
    assert_resumes("auto", "skip", 1);
    cut_file("skip/step-00000001.safetensors", -9);
    assert_int_equal(fixture_resume("auto", "skip", &step, &exact), DPN_ERR_INPUT);
    assert_non_null(strstr(dpn_error_text(), "skip"));

    assert_int_equal(fixture_resume("auto", "nowhere", &step, &exact), DPN_OK);
    assert_int_equal(step, 0);
    assert_int_equal(mkdir(fixture_path("empty"), 0777), 0);
    copy_file("damaged-weights/last.state.safetensors", "empty/another.safetensors");
    assert_int_equal(fixture_resume("auto", "empty", &step, &exact), DPN_OK);
    assert_int_equal(step, 0);
    assert_int_equal(fixture_resume("auto", NULL, &step, &exact), DPN_ERR_USAGE);
}

/* Killed between the renames of last.safetensors and last.state.safetensors. */
static void test_last_mismatch(void **state)
{
    (void)state;
    make_run("mix", 1, 2, 0);
    assert_int_equal(unlink(fixture_path("mix/last.safetensors")), 0);
    copy_file("mix/step-00000001.safetensors", "mix/last.safetensors");
    assert_resumes(fixture_path("mix/last.safetensors"), NULL, 2);
    assert_resumes(fixture_path("mix/last.state.safetensors"), NULL, 2);
    copy_file("mix/step-00000001.safetensors", "mix/step-00000002.safetensors");
    assert_resume_fails(fixture_path("mix/step-00000002.safetensors"), DPN_ERR_INPUT, "does not belong");
    assert_resumes("auto", "mix", 1);
}

static void test_wrong_names(void **state)
{
    (void)state;
    make_run("names", 1, 1, 1);
    assert_resume_fails(fixture_path("names/best.safetensors"), DPN_ERR_INPUT, "best.state.safetensors");
    assert_resume_fails(fixture_path("names/gone.safetensors"), DPN_ERR_INPUT, "gone");
    assert_resume_fails("names", DPN_ERR_USAGE, "--resume names");
}

/* Writes NAME with one F32 tensor and METADATA, by dpnode's own writer. */
static const void *craft_data(void *arg, size_t position)
{
    (void)position;
    return arg;
}

static void craft(const char *name, const char *tensor, unsigned rank, const size_t *shape, const char *dtype,
                  const struct dpn_st_pair *metadata, size_t n_metadata)
{
    static float zeros[64];
    struct dpn_st_source source = {tensor, dtype, rank, shape, craft_data};
    uint32_t crc;
    FILE *file = fopen(fixture_path(name), "wb");
    assert_non_null(file);
    assert_int_equal(dpn_st_write(fileno(file), name, metadata, n_metadata, &source, 1, zeros, &crc), DPN_OK);
    assert_int_equal(fclose(file), 0);
}

static void assert_weights_fail(const char *name, const char *text)
{
    struct fixture_arenas memory;
    fixture_fill(&memory, UINT64_MAX);
    assert_int_equal(dpn_weights_load(fixture_path(name), &fixture_model, &memory.arenas), DPN_ERR_INPUT);
    assert_non_null(strstr(dpn_error_text(), fixture_path(name)));
    if (!strstr(dpn_error_text(), text)) fail_msg("no \"%s\" in: %s", text, dpn_error_text());
}

static void test_wrong_tensors(void **state)
{
    (void)state;
    static const size_t shape[3] = {5, 3, 1}, right[2] = {3, 5};
    struct fixture_arenas memory;
    craft("x.safetensors", "fc2.weight", 2, right, "F32", NULL, 0);
    assert_weights_fail("x.safetensors", "no tensor \"fc1.weight\"");
    craft("x.safetensors", "fc1.weight", 2, shape, "F32", NULL, 0);
    assert_weights_fail("x.safetensors", "has shape [5, 3], the model's has [3, 5]");
    craft("x.safetensors", "fc1.weight", 3, shape, "F32", NULL, 0);
    assert_weights_fail("x.safetensors", "has shape [5, 3, 1]");
    craft("x.safetensors", "fc1.weight", 2, right, "I64", NULL, 0);
    assert_weights_fail("x.safetensors", "is I64, not F32");
    craft("x.safetensors", "fc1.weight", 2, right, "F32", NULL, 0);
    assert_weights_fail("x.safetensors", "no tensor \"fc1.bias\"");

    make_run("tensors", 1, 1, 0);
    assert_weights_fail("tensors/last.state.safetensors", "state file");
    fixture_fill(&memory, UINT64_MAX);
    fixture_model.n_tensors = 2; /* a model without "scale" */
    enum dpn_status status = dpn_weights_load(fixture_path("tensors/last.safetensors"), &fixture_model,
                                              &memory.arenas);
    fixture_model.n_tensors = 3;
    assert_int_equal(status, DPN_ERR_INPUT);
    assert_non_null(strstr(dpn_error_text(), "\"scale\" is not one of model"));
}

/* Loads checkpoint "tensors/last" into MODEL with the first N_SLOTS of the fixture's slots; returns the
 * error. */
static const char *load_error(const struct dpn_model *model, int n_slots)
{
    struct dpn_config config;
    struct dpn_progress_record record;
    struct dpn_checkpoint *checkpoint;
    struct fixture_arenas memory;
    int found;
    dpn_config_defaults(&config);
    fixture_fill(&memory, UINT64_MAX);
    memory.arenas.n_slots = n_slots;
    assert_int_equal(dpn_checkpoint_open(fixture_path("tensors/last.safetensors"), NULL, &config, &record,
                                         &found, &checkpoint),
                     DPN_OK);
    assert_string_equal(dpn_checkpoint_path(checkpoint), fixture_path("tensors/last.safetensors"));
    enum dpn_status status = dpn_checkpoint_load(checkpoint, model, &memory.arenas);
    dpn_checkpoint_close(checkpoint);
    for (size_t i = 0; status != DPN_OK && i < FIXTURE_ARENA_ELEMS; i++)
        assert_true(memory.params[i] == 0.0f && memory.buffers[i] == 0.0f);
    return status == DPN_OK ? "" : dpn_error_text();
}

static void test_wrong_model(void **state)
{
    (void)state;
    struct dpn_model other = fixture_model;
    assert_string_equal(load_error(&fixture_model, 2), "");
    assert_non_null(strstr(load_error(&fixture_model, 1), "\"exp_avg_sq.fc1.weight\" is not one"));
    assert_non_null(strstr(load_error(&fixture_model, 0), "exp_avg.fc1.weight"));
    snprintf(other.spec, sizeof(other.spec), "mlp:hidden=4");
    assert_non_null(strstr(load_error(&other, 2), "holds model mlp:hidden=3, this run's is mlp:hidden=4"));
}

static void test_foreign_state(void **state)
{
    (void)state;
    static const size_t shape[1] = {3};
    static const struct dpn_st_pair later[2] = {{"format", "dpnode-state"}, {"format_version", "2"}};
    static const struct dpn_st_pair partial[2] = {{"format", "dpnode-state"}, {"format_version", "1"}};
    make_run("foreign", 1, 1, 0);
    const char *path = fixture_path("foreign/step-00000001.state.safetensors");
    craft("foreign/step-00000001.state.safetensors", "a", 1, shape, "F32", later, 2);
    assert_resume_fails(path, DPN_ERR_INPUT, "format version 2");
    craft("foreign/step-00000001.state.safetensors", "a", 1, shape, "F32", partial, 2);
    assert_resume_fails(path, DPN_ERR_INPUT, "\"epoch\"");
    craft("foreign/step-00000001.state.safetensors", "a", 1, shape, "F32", NULL, 0);
    assert_resume_fails(path, DPN_ERR_INPUT, "is not the state file");
}

/* ---- options ---- */

/* Opens checkpoint "options/last" after parsing OPTIONS; CONFIG's strings live until *CHECKPOINT is
 * closed. */
static enum dpn_status open_with(int argc, const char *const *argv, struct dpn_config *config,
                                 struct dpn_checkpoint **checkpoint)
{
    struct dpn_progress_record record;
    const char *positional[1];
    size_t n_positional;
    int found, help, version;
    dpn_config_defaults(config);
    assert_int_equal(dpn_options_parse(argc, (char *const *)(uintptr_t)argv, DPN_CMD_TRAIN, config,
                                       positional, 1, &n_positional, &help, &version),
                     DPN_OK);
    return dpn_checkpoint_open(fixture_path("options/last.safetensors"), NULL, config, &record, &found,
                               checkpoint);
}

static void assert_refused(const char *option, const char *value, const char *text)
{
    const char *argv[2] = {option, value};
    struct dpn_config config;
    struct dpn_checkpoint *checkpoint;
    assert_int_equal(open_with(value ? 2 : 1, argv, &config, &checkpoint), DPN_ERR_USAGE);
    assert_null(checkpoint);
    if (!strstr(dpn_error_text(), text)) fail_msg("no \"%s\" in: %s", text, dpn_error_text());
    assert_non_null(strstr(dpn_error_text(), fixture_path("options/last.state.safetensors")));
}

static void test_options(void **state)
{
    (void)state;
    struct dpn_config config, saved = fixture_config;
    struct dpn_checkpoint *checkpoint;
    fixture_config.seed = UINT64_MAX;
    fixture_config.lr = 0.1;
    fixture_config.nesterov = 1;
    fixture_config.model = "mlp:hidden=3";
    fixture_config.epochs = 77;
    make_run("options", 1, 1, 0);
    fixture_config = saved;

    assert_int_equal(open_with(0, NULL, &config, &checkpoint), DPN_OK);
    assert_true(config.seed == UINT64_MAX && config.lr == 0.1 && config.nesterov);
    assert_string_equal(config.model, "mlp:hidden=3");
    assert_int_equal(config.shards, 6);
    assert_int_equal(config.epochs, 77); /* taken over; may be given otherwise */
    dpn_checkpoint_close(checkpoint);

    const char *same[] = {"--lr", "1e-1", "--shards=6", "--nesterov", "--epochs", "9", "--devices=0"};
    assert_int_equal(open_with(7, same, &config, &checkpoint), DPN_OK);
    assert_int_equal(config.epochs, 9);
    dpn_checkpoint_close(checkpoint);

    assert_refused("--lr", "0.05", "--lr 0.05 differs from 0.1 in ");
    assert_refused("--seed", "0", "--seed 0 differs from 18446744073709551615 in ");
    assert_refused("--shards", "4", "--shards 4 differs from 6 in ");
    assert_refused("--no-shuffle", NULL, "--no-shuffle true differs from false in ");
    assert_refused("--batch-per-device", "8", "--batch-per-device 8 differs from (none) in ");
}

static void test_unknown_option(void **state)
{
    (void)state;
    struct dpn_st_file *file;
    struct dpn_st_pair pairs[32];
    static const size_t shape[1] = {3};
    static char texts[32][2][4096];
    make_run("unknown", 1, 1, 0);
    assert_int_equal(dpn_st_open(fixture_path("unknown/step-00000001.state.safetensors"), &file), DPN_OK);
    size_t n = 0;
    for (size_t i = 2; i < file->n_metadata; i++, n++) { /* without crc32 and writer */
        const int options = strcmp(file->metadata_keys[i], "options") == 0;
        snprintf(texts[n][0], sizeof(texts[n][0]), "%s", file->metadata_keys[i]);
        snprintf(texts[n][1], sizeof(texts[n][1]), "%s",
                 options ? "{\"warp\":\"9\"}" : file->metadata_values[i]);
        pairs[n] = (struct dpn_st_pair){texts[n][0], texts[n][1]};
    }
    dpn_st_close(file);
    craft("unknown/step-00000001.state.safetensors", "a", 1, shape, "F32", pairs, n);
    assert_resume_fails(fixture_path("unknown/step-00000001.state.safetensors"), DPN_ERR_INPUT, "--warp 9");
}

static enum dpn_status info(const char *name)
{
    struct dpn_config config;
    int exit_status = 0;
    dpn_config_defaults(&config);
    return dpn_command_info.run(&config, fixture_path(name), &exit_status);
}

static void test_info(void **state)
{
    (void)state;
    make_run("info", 1, 2, 2);
    assert_int_equal(info("info"), DPN_OK);
    assert_int_equal(info("info/last.state.safetensors"), DPN_OK);
    assert_int_equal(info("info/best.safetensors"), DPN_OK);
    cut_file("info/step-00000001.safetensors", 1);
    assert_int_equal(info("info/step-00000001.safetensors"), DPN_ERR_INPUT);
    assert_int_equal(info("info"), DPN_ERR_INPUT);
    assert_int_equal(info("info/none"), DPN_ERR_INPUT);
    FILE *file = fopen(fixture_path("page"), "w");
    assert_non_null(file);
    fputs("<!DOCTYPE html>", file);
    fclose(file);
    assert_int_equal(info("page"), DPN_ERR_INPUT);
    assert_non_null(strstr(dpn_error_text(), "3c 21 44 4f"));
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
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_same_bytes),
        cmocka_unit_test(test_large_counts),
        cmocka_unit_test(test_damage),
        cmocka_unit_test(test_auto_skips_damage),
        cmocka_unit_test(test_last_mismatch),
        cmocka_unit_test(test_wrong_names),
        cmocka_unit_test(test_wrong_tensors),
        cmocka_unit_test(test_wrong_model),
        cmocka_unit_test(test_foreign_state),
        cmocka_unit_test(test_options),
        cmocka_unit_test(test_unknown_option),
        cmocka_unit_test(test_info),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
