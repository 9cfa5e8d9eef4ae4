/* The data set made of NumPy arrays: samples, labels, parts, and the checksum. */
#include "data/data.h"

#include <limits.h>
#include <math.h>

#include "tests/data/npy_fixtures.h"

extern const struct dpn_dataset_class dpn_dataset_npy;
const struct dpn_dataset_class *const dpn_dataset_classes[] = {&dpn_dataset_npy, NULL};

static enum dpn_status open_spec(const char *root, const char *spec, struct dpn_dataset *dataset)
{
    struct dpn_dataset_request request = {.spec = spec, .data_root = root, .normalize = ""};
    return dpn_dataset_open(&request, dataset);
}

static const char *spec_of(const char *folder)
{
    static char spec[600];
    snprintf(spec, sizeof(spec), "npy:%s", folder);
    return spec;
}

static void open_set(const char *folder, struct dpn_dataset *dataset)
{
    if (open_spec("", spec_of(folder), dataset) != DPN_OK) fail_msg("%s", dpn_error_text());
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

static uint8_t pixels[4 * 210 * 4];
static const uint8_t four_labels[] = {0, 2, 1, 0};

/* 4 training samples of 2x5x7 bytes and 3 classes, 2 test samples. */
static void write_set(const char *folder)
{
    for (size_t i = 0; i < sizeof(pixels); i++) pixels[i] = (uint8_t)(i * i + i / 7);
    write_npy(folder, "train_x.npy", "|u1", "4, 2, 5, 7", pixels, 280);
    write_npy(folder, "train_y.npy", "|u1", "4,", four_labels, 4);
    write_npy(folder, "test_x.npy", "|u1", "2, 2, 5, 7", pixels + 70, 140);
    write_npy(folder, "test_y.npy", "|u1", "2,", four_labels + 1, 2);
}

static void test_set(void **state)
{
    struct dpn_dataset dataset;
    char real[PATH_MAX];
    write_set(*state);
    open_set(*state, &dataset);
    assert_non_null(realpath(*state, real));
    assert_string_equal(dataset.path, real);
    assert_int_equal(dataset.real, 1);
    assert_int_equal(dataset.channels, 2);
    assert_int_equal(dataset.height, 5);
    assert_int_equal(dataset.width, 7);
    assert_int_equal(dataset.sample_elems, 70);
    assert_int_equal(dataset.classes, 3);
    assert_int_equal(dataset.train.n, 4);
    assert_int_equal(dataset.test.n, 2);
    assert_int_equal(dataset.storage_bytes, 6 * (70 + 4));
    assert_memory_equal(dataset.train.u8, pixels, 280);
    assert_memory_equal(dataset.test.u8, pixels + 70, 140);
    for (int i = 0; i < 4; i++) assert_int_equal(dataset.train.labels[i], four_labels[i]);
    assert_int_equal(dataset.test.labels[0], 2);
    assert_string_equal(dataset.normalize, "1/255");
    assert_true(fabs(255 * (double)dataset.scale[1] + (double)dataset.shift[1] - 1) < 1e-6);
    dpn_dataset_close(&dataset);
}

static void test_shapes_and_floats(void **state)
{
    static const struct {
        const char *type, *shape;
        size_t elems, channels, height, width;
    } cases[] = {
        {"|u1", "4, 5, 7", 140, 1, 5, 7},      {"|u1", "4, 70", 280, 1, 1, 70},
        {"<f4", "4, 16, 1, 3", 192, 16, 1, 3}, {"<f4", "4, 5, 7", 140, 1, 5, 7},
        {"<f4", "4, 1", 4, 1, 1, 1},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct dpn_dataset dataset;
        int floats = cases[i].type[1] == 'f';
        write_set(*state);
        remove(fixture_path(*state, "test_x.npy"));
        remove(fixture_path(*state, "test_y.npy"));
        write_npy(*state, "train_x.npy", cases[i].type, cases[i].shape, pixels,
                  cases[i].elems << (2 * floats));
        open_set(*state, &dataset);
        assert_int_equal(dataset.channels, cases[i].channels);
        assert_int_equal(dataset.height, cases[i].height);
        assert_int_equal(dataset.width, cases[i].width);
        assert_int_equal(dataset.test.n, 0);
        assert_string_equal(dataset.normalize, floats ? "as is" : "1/255");
        assert_int_equal(dataset.train.u8 == NULL, floats);
        assert_int_equal(dataset.train.f32 == NULL, !floats);
        if (floats) {
            assert_int_equal((uintptr_t)dataset.train.f32 % 64, 0);
            assert_memory_equal(dataset.train.f32, pixels, cases[i].elems * 4);
        }
        dpn_dataset_close(&dataset);
    }
}

/* Labels 0 and LARGEST in each type that can hold them. */
static void test_label_types(void **state)
{
    static const struct {
        const char *type;
        size_t item_bytes;
        uint32_t largest;
    } cases[] = {{"|u1", 1, 255},   {"|i1", 1, 127},   {"<u2", 2, 65535}, {"<i2", 2, 32767},
                 {"<u4", 4, 65535}, {"<i4", 4, 65535}, {"<u8", 8, 65535}, {"<i8", 8, 65535}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct dpn_dataset dataset;
        uint8_t labels[32] = {0};
        for (size_t b = 0; b < 4 && b < cases[i].item_bytes; b++)
            labels[2 * cases[i].item_bytes + b] = (uint8_t)(cases[i].largest >> (8 * b));
        write_set(*state);
        write_npy(*state, "train_y.npy", cases[i].type, "4,", labels, 4 * cases[i].item_bytes);
        open_set(*state, &dataset);
        assert_int_equal(dataset.train.labels[1], 0);
        assert_int_equal(dataset.train.labels[2], cases[i].largest);
        assert_int_equal(dataset.classes, cases[i].largest + 1);
        dpn_dataset_close(&dataset);
    }
}

static void test_classes(void **state)
{
    struct dpn_dataset dataset;
    write_set(*state);
    write_npy(*state, "test_y.npy", "|u1", "2,", "\0\11", 2);
    open_set(*state, &dataset);
    assert_int_equal(dataset.classes, 10);
    dpn_dataset_close(&dataset);
    write_npy(*state, "train_y.npy", "|u1", "4,", "\0\0\0\0", 4);
    write_npy(*state, "test_y.npy", "|u1", "2,", "\0\0", 2);
    open_set(*state, &dataset);
    assert_int_equal(dataset.classes, 2);
    dpn_dataset_close(&dataset);
}

static void test_bad_labels(void **state)
{
    static const struct {
        const char *type;
        size_t item_bytes;
        uint64_t value;
        const char *part;
    } cases[] = {{"|i1", 1, 0xff, "label -1 at index 3"},
                 {"<i2", 2, 0x8000, "label -32768 at index 3"},
                 {"<i4", 4, 65536, "label 65536 at index 3, wanted 0 to 65535"},
                 {"<u4", 4, UINT32_MAX, "label 4294967295 at index 3"},
                 {"<i8", 8, (uint64_t)1 << 32, "label 4294967296 at index 3"},
                 {"<i8", 8, UINT64_MAX, "label -1 at index 3"},
                 {"<u8", 8, UINT64_MAX, "at index 3, wanted 0 to 65535"},
                 {"<f4", 4, 0, "labels are floats"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint8_t labels[32] = {0};
        for (size_t b = 0; b < cases[i].item_bytes; b++)
            labels[3 * cases[i].item_bytes + b] = (uint8_t)(cases[i].value >> (8 * b));
        write_set(*state);
        write_npy(*state, "train_y.npy", cases[i].type, "4,", labels, 4 * cases[i].item_bytes);
        assert_refused(*state, cases[i].part, "train_y.npy");
    }
    write_npy(*state, "train_y.npy", "|u1", "4, 1", four_labels, 4);
    assert_refused(*state, "shape 4x1", "train_y.npy");
    write_npy(*state, "train_y.npy", "|u1", "", four_labels, 1);
    assert_refused(*state, "shape ()", "train_y.npy");
    write_npy(*state, "train_y.npy", "|u1", "3,", four_labels, 3);
    assert_refused(*state, "holds 4 samples", "holds 3 labels");
    write_npy(*state, "train_y.npy", "|u1", "0,", four_labels, 0);
    assert_refused(*state, "holds 4 samples", "holds 0 labels");
}

static void test_bad_samples(void **state)
{
    static const struct {
        const char *type, *shape;
        size_t n_bytes;
        const char *part;
    } cases[] = {
        {"|i1", "4, 2, 5, 7", 280, "type i1"},      {"<f8", "4, 2, 5, 7", 2240, "type f8"},
        {"<f2", "4, 2, 5, 7", 560, "type f2"},      {"<i8", "4, 2, 5", 320, "type i8"},
        {"|u1", "280,", 280, "shape 280"},          {"|u1", "", 1, "shape ()"},
        {"|u1", "4, 2, 5, 7, 1", 280, "4x2x5x7x1"}, {"|u1", "4, 0, 5, 7", 0, "4x0x5x7 holds nothing"},
        {"|u1", "0, 2, 5, 7", 0, "0x2x5x7 holds"},  {"|u1", "4, 5, 0", 0, "4x5x0 holds nothing"},
        {"|u1", "4, 17, 1, 2", 136, "17 channels"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        write_set(*state);
        write_npy(*state, "train_x.npy", cases[i].type, cases[i].shape, pixels, cases[i].n_bytes);
        assert_refused(*state, cases[i].part, "train_x.npy");
    }
}

/* A header that is not padded may leave floats at odd addresses. */
static void test_unaligned_floats(void **state)
{
    for (int blanks = 0; blanks < 4; blanks++) {
        struct dpn_dataset dataset;
        char header[100];
        snprintf(header, sizeof(header), "{'descr': '<f4', 'fortran_order': False, 'shape': (4, 2)}%*s",
                 blanks, "");
        struct blob blob = blob_npy_as(1, header, 1, pixels, 32);
        write_set(*state);
        remove(fixture_path(*state, "test_x.npy"));
        remove(fixture_path(*state, "test_y.npy"));
        fixture_blob(*state, "train_x.npy", blob, 0);
        if (blob.n % 4 != 0) assert_refused(*state, "not aligned", "train_x.npy");
        if (blob.n % 4 == 0) {
            open_set(*state, &dataset);
            dpn_dataset_close(&dataset);
        }
        free(blob.bytes);
    }
}

static void test_parts_that_differ(void **state)
{
    write_set(*state);
    write_npy(*state, "test_x.npy", "|u1", "2, 2, 7, 5", pixels, 140);
    assert_refused(*state, "2x7x5", "2x5x7");
    write_npy(*state, "test_x.npy", "|u1", "2, 70", pixels, 140);
    assert_refused(*state, "1x1x70", "test_x.npy");
    write_npy(*state, "test_x.npy", "<f4", "2, 2, 5, 7", pixels, 560);
    assert_refused(*state, "float32", "uint8");
    write_set(*state);
    write_npy(*state, "test_y.npy", "|u1", "3,", four_labels, 3);
    assert_refused(*state, "holds 2 samples", "holds 3 labels");
    remove(fixture_path(*state, "test_y.npy"));
    assert_refused(*state, "test_y.npy", "No such file");
    assert_int_equal(symlink("/nonexistent", fixture_path(*state, "test_y.npy")), 0);
    remove(fixture_path(*state, "test_x.npy"));
    assert_refused(*state, "test_x.npy", "No such file");
}

static void test_places(void **state)
{
    struct dpn_dataset dataset;
    const char *folder = fixture_folder(*state, "set");
    assert_int_equal(open_spec("", "npy", &dataset), DPN_ERR_USAGE);
    assert_error_has("npy:DIR");
    assert_refused("/nonexistent", "/nonexistent", "No such file");
    assert_refused(folder, "train_x.npy", "No such file");
    write_set(folder);
    assert_int_equal(open_spec(folder, "npy", &dataset), DPN_OK);
    dpn_dataset_close(&dataset);
    char file[600];
    snprintf(file, sizeof(file), "%s/train_x.npy", folder);
    assert_refused(file, "train_x.npy/train_x.npy", "Not a directory");
}

/* ---- the checksum ---- */

static uint32_t crc_of(const char *folder)
{
    struct dpn_dataset dataset;
    open_set(folder, &dataset);
    uint32_t crc = dataset.train.crc;
    dpn_dataset_close(&dataset);
    return crc;
}

static void put_byte(const char *path, off_t at, char value)
{
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseeko(file, at, at < 0 ? SEEK_END : SEEK_SET), 0);
    assert_int_equal(fwrite(&value, 1, 1, file), 1);
    assert_int_equal(fclose(file), 0);
}

/* In a small set it covers everything; where the header puts its blanks does not matter. */
static void test_checksum(void **state)
{
    struct blob blob = blob_npy_as(2, "{'descr': '|u1', 'fortran_order': False, 'shape': (4, 2, 5, 7), }", 16,
                                   NULL, 280);
    write_set(*state);
    uint32_t crc = crc_of(*state);
    memcpy(blob.bytes + blob.n - 280, pixels, 280);
    const char *path = fixture_blob(*state, "train_x.npy", blob, 0);
    assert_int_equal(crc_of(*state), crc);
    for (off_t at = -280; at < 0; at += 31) {
        put_byte(path, at, (char)~blob.bytes[(off_t)blob.n + at]);
        assert_int_not_equal(crc_of(*state), crc);
        put_byte(path, at, (char)blob.bytes[(off_t)blob.n + at]);
    }
    assert_int_equal(crc_of(*state), crc);
    write_npy(*state, "train_y.npy", "|u1", "4,", "\0\2\0\1", 4);
    assert_int_not_equal(crc_of(*state), crc);
    write_set(*state);
    remove(fixture_path(*state, "test_x.npy"));
    remove(fixture_path(*state, "test_y.npy"));
    write_npy(*state, "train_x.npy", "|u1", "4, 2, 7, 5", pixels, 280);
    assert_int_not_equal(crc_of(*state), crc);
    free(blob.bytes);
}

/* 80 MiB, a hole: its ends and 4 KiB of every MiB count. */
static void test_checksum_of_a_large_set(void **state)
{
    const off_t mib = 1 << 20, header = 128, bytes = 80 * mib;
    write_set(*state);
    remove(fixture_path(*state, "test_x.npy"));
    remove(fixture_path(*state, "test_y.npy"));
    const char *path = write_npy(*state, "train_x.npy", "<f4", "4, 10, 1024, 512", NULL, 0);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size, header);
    assert_int_equal(truncate(path, header + bytes), 0);
    uint32_t crc = crc_of(*state);
    const off_t covered[] = {0,        (64 << 10) - 1,     mib,      mib + 4095, 2 * mib,
                             79 * mib, bytes - (64 << 10), bytes - 1};
    for (size_t i = 0; i < sizeof(covered) / sizeof(covered[0]); i++) {
        put_byte(path, header + covered[i], 1);
        assert_int_not_equal(crc_of(*state), crc);
        put_byte(path, header + covered[i], 0);
    }
    put_byte(path, header + mib / 2, 1);
    assert_int_equal(crc_of(*state), crc);
}

#define DATA_TEST(f) cmocka_unit_test_setup_teardown(f, fixture_setup, fixture_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        DATA_TEST(test_set),
        DATA_TEST(test_shapes_and_floats),
        DATA_TEST(test_label_types),
        DATA_TEST(test_classes),
        DATA_TEST(test_bad_labels),
        DATA_TEST(test_bad_samples),
        DATA_TEST(test_unaligned_floats),
        DATA_TEST(test_parts_that_differ),
        DATA_TEST(test_places),
        DATA_TEST(test_checksum),
        DATA_TEST(test_checksum_of_a_large_set),
    };
    unsetenv("DPNODE_DATA");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
