/* CIFAR-10's binary form: what is read, where it is found, and what is refused. Rows D13, D14. */
#include "data/data.h"

#include <limits.h>
#include <math.h>

#include "tests/data/fixtures.h"

extern const struct dpn_dataset_class dpn_dataset_cifar10;
const struct dpn_dataset_class *const dpn_dataset_classes[] = {&dpn_dataset_cifar10, NULL};

enum { RECORD = DPN_CIFAR_RECORD_BYTES, PIXELS = RECORD - 1, FILES = 6 };

static const char *const names[FILES] = {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
                                         "data_batch_4.bin", "data_batch_5.bin", "test_batch.bin"};

/* N records whose bytes differ from file to file. */
static struct blob blob_records(size_t n, unsigned file)
{
    struct blob blob = {malloc(n * RECORD), n * RECORD};
    assert_non_null(blob.bytes);
    uint32_t number = 77 + file;
    for (size_t i = 0; i < blob.n; i++) {
        number = number * 1664525u + 1013904223u;
        blob.bytes[i] = (uint8_t)(i % RECORD ? number >> 24 : (number >> 24) % 10);
    }
    return blob;
}

/* File F gets F + 2 records. */
static void write_set(const char *folder)
{
    for (unsigned f = 0; f < FILES; f++) {
        struct blob records = blob_records(f + 2, f);
        fixture_blob(folder, names[f], records, 0);
        free(records.bytes);
    }
}

static const char *spec_of(const char *folder)
{
    static char spec[600];
    snprintf(spec, sizeof(spec), "cifar10:%s", folder);
    return spec;
}

static enum dpn_status open_spec(const char *root, const char *spec, struct dpn_dataset *dataset)
{
    struct dpn_dataset_request request = {.spec = spec, .data_root = root, .normalize = ""};
    return dpn_dataset_open(&request, dataset);
}

static void assert_refused(const char *folder, const char *part, const char *also)
{
    struct dpn_dataset dataset;
    memset(&dataset, 0xee, sizeof(dataset));
    if (open_spec("", spec_of(folder), &dataset) == DPN_OK) fail_msg("accepted, wanted \"%s\"", part);
    assert_error_has(part);
    assert_error_has(also);
    assert_null(dataset.cls);
}

/* ---- what is read ---- */

static void test_reads_six_files(void **state)
{
    struct dpn_dataset dataset;
    size_t at = 0;
    uint32_t crc = 0;
    write_set(*state);
    if (open_spec("", spec_of(*state), &dataset) != DPN_OK) fail_msg("%s", dpn_error_text());
    assert_int_equal(dataset.train.n, 2 + 3 + 4 + 5 + 6);
    assert_int_equal(dataset.test.n, 7);
    assert_int_equal(dataset.channels, 3);
    assert_int_equal(dataset.height, 32);
    assert_int_equal(dataset.width, 32);
    assert_int_equal(dataset.sample_elems, PIXELS);
    assert_int_equal(dataset.classes, 10);
    assert_int_equal(dataset.real, 1);
    assert_int_equal(dataset.storage_bytes, 27 * (PIXELS + 4));
    assert_null(dataset.train.f32);
    for (unsigned f = 0; f < FILES; f++) {
        struct blob records = blob_records(f + 2, f);
        const struct dpn_samples *part = f < 5 ? &dataset.train : &dataset.test;
        if (f == 5) {
            assert_int_equal(dataset.train.crc, crc);
            at = 0;
            crc = 0;
        }
        for (size_t i = 0; i < f + 2; i++, at++) {
            assert_int_equal(part->labels[at], records.bytes[i * RECORD]);
            assert_memory_equal(part->u8 + at * PIXELS, records.bytes + i * RECORD + 1, PIXELS);
        }
        crc = (uint32_t)crc32(crc, records.bytes, (uInt)records.n);
        free(records.bytes);
    }
    assert_int_equal(dataset.test.crc, crc);
    dpn_dataset_close(&dataset);
}

static void test_normalize(void **state)
{
    const double mean[] = {0.4914, 0.4822, 0.4465}, std[] = {0.2470, 0.2435, 0.2616};
    struct dpn_dataset dataset;
    write_set(*state);
    assert_int_equal(open_spec("", spec_of(*state), &dataset), DPN_OK);
    assert_string_equal(dataset.normalize, "mean 0.4914,0.4822,0.4465 / std 0.2470,0.2435,0.2616");
    for (int c = 0; c < 3; c++) {
        const double white = 255 * (double)dataset.scale[c] + (double)dataset.shift[c];
        assert_true(fabs(white - (1 - mean[c]) / std[c]) < 1e-5);
        assert_true(fabs((double)dataset.shift[c] + mean[c] / std[c]) < 1e-5);
    }
    dpn_dataset_close(&dataset);
}

static void test_real_set(void **state)
{
    (void)state;
    const char *shared = getenv("DPNODE_SHARED");
    if (!shared || access(fixture_path(shared, "data/cifar-10-batches-bin"), F_OK) != 0) {
        print_message("SKIP: needs $DPNODE_SHARED/data/cifar-10-batches-bin\n");
        skip();
    }
    struct dpn_dataset dataset;
    size_t counts[10] = {0};
    if (open_spec(fixture_path(shared, "data"), "cifar10", &dataset) != DPN_OK)
        fail_msg("%s", dpn_error_text());
    assert_int_equal(dataset.train.n, 50000);
    assert_int_equal(dataset.test.n, 10000);
    assert_int_equal(dataset.train.crc, 0x0b3d5253);
    assert_int_equal(dataset.test.crc, 0x19777d49);
    for (size_t i = 0; i < dataset.train.n; i++) counts[dataset.train.labels[i]]++;
    for (int label = 0; label < 10; label++) assert_int_equal(counts[label], 5000);
    /* With the set's constants the red plane is centred. */
    double sum = 0;
    for (size_t i = 0; i < dataset.train.n; i++)
        for (size_t p = 0; p < 1024; p++) sum += dataset.train.u8[i * PIXELS + p];
    sum = sum / (1024.0 * 50000) * (double)dataset.scale[0] + (double)dataset.shift[0];
    assert_true(fabs(sum) < 1e-3);
    dpn_dataset_close(&dataset);
}

/* ---- where it is found ---- */

static void assert_found(const char *root, const char *spec, const char *folder)
{
    struct dpn_dataset dataset;
    char real[PATH_MAX];
    assert_non_null(realpath(folder, real));
    if (open_spec(root, spec, &dataset) != DPN_OK) fail_msg("%s", dpn_error_text());
    assert_string_equal(dataset.path, real);
    dpn_dataset_close(&dataset);
}

static void test_places(void **state)
{
    const char *const folders[] = {"a/cifar-10-batches-bin", "b/cifar10/cifar-10-batches-bin", "c/cifar10",
                                   "d"};
    for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]); i++) {
        const char *folder = fixture_folder(*state, folders[i]);
        const char *top = fixture_path(*state, (const char[]){(char)('a' + i), '\0'});
        write_set(folder);
        assert_found("", spec_of(folder), folder);
        assert_found(top, "cifar10", folder);
        setenv("DPNODE_DATA", top, 1);
        assert_found("", "cifar10", folder);
        unsetenv("DPNODE_DATA");
    }
    assert_found("", spec_of(fixture_path(*state, "a")), fixture_path(*state, folders[0]));
}

/* A folder that was given is the only place. */
static void test_no_other_place(void **state)
{
    struct dpn_dataset dataset;
    const char *empty = fixture_folder(*state, "empty"), *full = fixture_folder(*state, "full");
    write_set(full);
    setenv("DPNODE_DATA", full, 1);
    assert_refused(empty, empty, "data_batch_1.bin");
    assert_int_equal(open_spec(empty, "cifar10", &dataset), DPN_ERR_INPUT);
    assert_error_has("not found in");
    unsetenv("DPNODE_DATA");
}

/* ---- what is refused ---- */

static void test_missing_files(void **state)
{
    for (unsigned f = 0; f < FILES; f++) {
        write_set(*state);
        remove(fixture_path(*state, names[f]));
        assert_refused(*state, names[f], "No such file");
        assert_int_equal(symlink("/nonexistent", fixture_path(*state, names[f])), 0);
        assert_refused(*state, names[f], "No such file");
        remove(fixture_path(*state, names[f]));
    }
}

static void test_no_files_at_all(void **state)
{
    const char *folder = fixture_folder(*state, "set");
    for (unsigned f = 0; f < FILES; f++) mkdir(fixture_path(folder, names[f]), 0777);
    assert_refused(folder, "data_batch_1.bin", "is a folder");
    for (unsigned f = 0; f < FILES; f++) {
        remove(fixture_path(folder, names[f]));
        mkfifo(fixture_path(folder, names[f]), 0666);
    }
    assert_refused(folder, "data_batch_1.bin", "is special");
}

static void test_sizes(void **state)
{
    static const struct {
        off_t bytes;
        const char *text;
    } sizes[] = {{0, "0 bytes"},
                 {1, "1 bytes"},
                 {RECORD - 1, "3072 bytes"},
                 {RECORD + 1, "3074 bytes"},
                 {30729999, "30729999 bytes"},
                 {30730001, "30730001 bytes"}};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        unsigned f = (unsigned)i % FILES;
        write_set(*state);
        assert_int_equal(truncate(fixture_path(*state, names[f]), sizes[i].bytes), 0);
        assert_refused(*state, names[f], sizes[i].text);
        assert_error_has("3073");
    }
}

static void test_labels(void **state)
{
    for (unsigned f = 0; f < FILES; f++) {
        for (unsigned label = 10; label < 256; label += 245) {
            char text[64];
            write_set(*state);
            struct blob records = blob_records(f + 2, f);
            records.bytes[(size_t)(f + 1) * RECORD] = (uint8_t)label;
            fixture_blob(*state, names[f], records, 0);
            free(records.bytes);
            snprintf(text, sizeof(text), "label %u at index %u, wanted 0 to 9", label, f + 1);
            assert_refused(*state, names[f], text);
        }
    }
}

static void test_other_forms(void **state)
{
    struct blob records = blob_records(3, 0);
    for (unsigned f = 0; f < FILES; f++) {
        write_set(*state);
        fixture_blob(*state, names[f], records, 1);
        assert_refused(*state, names[f], "gzip");
        records.bytes[0] = 0x80;
        for (uint8_t protocol = 2; protocol <= 5; protocol++) {
            records.bytes[1] = protocol;
            fixture_blob(*state, names[f], records, 0);
            assert_refused(*state, names[f], "pickle");
            assert_error_has("data/cifar10_from_python.py");
        }
        records.bytes[0] = 1;
    }
    free(records.bytes);
}

/* One file or all of them without ".bin". */
static void test_python_form(void **state)
{
    char plain[32];
    write_set(*state);
    for (unsigned f = FILES; f-- > 0;) {
        snprintf(plain, sizeof(plain), "%.*s", (int)strlen(names[f]) - 4, names[f]);
        assert_int_equal(rename(fixture_path(*state, names[f]), fixture_path(*state, plain)), 0);
        assert_refused(*state, names[f], "data/cifar10_from_python.py");
        assert_error_has("binary form");
    }
}

/* A file that is cut between the check of its size and its reading. */
static void test_cut_while_read(void **state)
{
    static uint8_t pixels[4 * PIXELS];
    int32_t labels[4];
    uint32_t crc = 0;
    FILE *file;
    size_t n;
    struct blob records = blob_records(4, 1);
    const char *path = fixture_blob(*state, "data_batch_1.bin", records, 0);
    free(records.bytes);
    assert_int_equal(dpn_cifar_open(path, &file, &n), DPN_OK);
    assert_int_equal(n, 4);
    assert_int_equal(truncate(path, 2 * RECORD + 100), 0);
    assert_int_equal(dpn_cifar_read(path, file, n, pixels, labels, &crc), DPN_ERR_INPUT);
    assert_error_has("record 2 of 4");
    fclose(file);
}

#define DATA_TEST(f) cmocka_unit_test_setup_teardown(f, fixture_setup, fixture_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        DATA_TEST(test_reads_six_files), DATA_TEST(test_normalize),      DATA_TEST(test_real_set),
        DATA_TEST(test_places),          DATA_TEST(test_no_other_place), DATA_TEST(test_missing_files),
        DATA_TEST(test_no_files_at_all), DATA_TEST(test_sizes),          DATA_TEST(test_labels),
        DATA_TEST(test_other_forms),     DATA_TEST(test_python_form),    DATA_TEST(test_cut_while_read),
    };
    unsetenv("DPNODE_DATA");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
