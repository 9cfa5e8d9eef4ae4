/* The safetensors reader and writer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <glob.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "train/safetensors.h"

static char path[256];

/* PATH := header length, HEADER, DATA_BYTES bytes 0, 1, 2, ... */
static void write_file(const char *header, uint64_t header_bytes, size_t data_bytes)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    fwrite(&header_bytes, 8, 1, file);
    fputs(header, file);
    for (size_t i = 0; i < data_bytes; i++) fputc((int)(i & 255), file);
    assert_int_equal(fclose(file), 0);
}

static enum dpn_status try_header(const char *header, size_t data_bytes)
{
    struct dpn_st_file *file = NULL;
    write_file(header, strlen(header), data_bytes);
    enum dpn_status status = dpn_st_open(path, &file);
    if (status != DPN_OK) {
        assert_null(file);
        assert_non_null(strstr(dpn_error_text(), path));
    }
    dpn_st_close(file);
    return status;
}

static void test_bad_headers(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        size_t data_bytes;
    } bad[] = {
        {"", 0},
        {"[]", 0},
        {" {}", 0},
        {"{", 0},
        {"{} x", 0},
        {"{\"a\":1}", 0},
        {"{\"a\":{}}", 0},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1}}", 4},
        {"{\"a\":{\"dtype\":\"F33\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4},
        {"{\"a\":{\"dtype\":3,\"shape\":[1],\"data_offsets\":[0,4]}}", 4},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":1,\"data_offsets\":[0,4]}}", 4},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1.0],\"data_offsets\":[0,4]}}", 4},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[-4,0]}}", 4},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4},
        {"{\"a\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 3},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 5},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", 4},
        /* a hole, an overlap, the same name twice */
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[3,4]}}",
         4},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]}}",
         3},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
         "\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
         2},
        {"{\"__metadata__\":1}", 0},
        {"{\"__metadata__\":{\"a\":1}}", 0},
        /* sizes that overflow 64 bits: 2^32 * 2^32 elements; 2^62 elements of 4 bytes; above 2^63 */
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[0,0]}}", 0},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[18446744073709551615],\"data_offsets\":[0,1]}}", 1},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[46341,46341],\"data_offsets\":[0,8589953124]}}", 4},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        if (try_header(bad[i].header, bad[i].data_bytes) != DPN_ERR_INPUT)
            fail_msg("accepted: %s", bad[i].header);
}

static void test_bad_files(void **state)
{
    (void)state;
    struct dpn_st_file *file;
    static const uint64_t lengths[] = {0, 3, 1000, 100000001, UINT64_MAX, UINT64_MAX - 7};
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        write_file("{}  ", lengths[i], 0);
        assert_int_equal(dpn_st_open(path, &file), DPN_ERR_INPUT);
    }
    assert_int_equal(truncate(path, 7), 0);
    assert_int_equal(dpn_st_open(path, &file), DPN_ERR_INPUT);
    assert_int_equal(truncate(path, 0), 0);
    assert_int_equal(dpn_st_open(path, &file), DPN_ERR_INPUT);
    assert_int_equal(dpn_st_open("/nonexistent/x", &file), DPN_ERR_INPUT);
    assert_int_equal(dpn_st_open("/tmp", &file), DPN_ERR_INPUT);
    assert_int_equal(dpn_st_open("/dev/null", &file), DPN_ERR_INPUT);
}

/* As other writers leave it: tensors in any order, metadata anywhere, an empty tensor, padding, data
 * unaligned. */
static void test_foreign(void **state)
{
    (void)state;
    struct dpn_st_file *file;
    int ours;
    uint32_t crc;
    const char *header = "{\"b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[4,7]},"
                         "\"none\":{\"dtype\":\"F32\",\"shape\":[0,7],\"data_offsets\":[4,4]},"
                         "\"__metadata__\":{\"format\":\"pt\",\"crc32\":\"00000000\"},"
                         "\"a\":{\"data_offsets\":[0,4],\"shape\":[],\"dtype\":\"F32\"}}   ";
    write_file(header, strlen(header), 7);
    assert_int_equal(dpn_st_open(path, &file), DPN_OK);
    assert_int_equal(file->n_tensors, 3);
    assert_string_equal(file->tensors[0].name, "a");
    assert_string_equal(file->tensors[2].name, "b");
    assert_int_equal(dpn_st_find(file, "b")->begin, 4);
    assert_int_equal(dpn_st_find(file, "none")->elems, 0);
    assert_int_equal(dpn_st_find(file, "a")->rank, 0);
    assert_int_equal(dpn_st_find(file, "a")->elems, 1);
    assert_null(dpn_st_find(file, "c"));
    assert_int_equal(file->data[6], 6);
    assert_string_equal(dpn_st_metadata(file, "format"), "pt");
    assert_null(dpn_st_metadata(file, "none"));
    assert_int_equal(dpn_st_verify(file, &ours, &crc), DPN_OK);
    assert_false(ours);
    dpn_st_close(file);
}

/* More bytes than an int counts. */
static void test_large(void **state)
{
    (void)state;
    struct dpn_st_file *file;
    const char *header =
        "{\"w\":{\"dtype\":\"F32\",\"shape\":[23171,23171],\"data_offsets\":[0,2147580964]}}";
    write_file(header, strlen(header), 0);
    if (truncate(path, (off_t)(8 + strlen(header) + 2147580964)) != 0) {
        print_message("SKIP: no sparse file of 2 GiB here\n");
        skip();
    }
    assert_int_equal(dpn_st_open(path, &file), DPN_OK);
    assert_true(file->tensors[0].elems == UINT64_C(536895241));
    assert_true(file->data_bytes == UINT64_C(2147580964));
    dpn_st_close(file);
}

static const float numbers[6] = {1.5f, -2.0f, 0.0f, 3.25f, 1e-30f, 1e30f};
static const int64_t counter = INT64_MIN + 1;

static const void *source_data(void *arg, size_t position)
{
    assert_ptr_equal(arg, numbers);
    return position == 0 ? (const void *)numbers : (const void *)&counter;
}

static uint32_t write_two(const char *value)
{
    static const size_t shape[2] = {2, 3};
    const struct dpn_st_source sources[2] = {{"x \"1\"\n", "F32", 2, shape, source_data},
                                             {"n", "I64", 0, NULL, source_data}};
    const struct dpn_st_pair metadata[1] = {{"note", value}};
    uint32_t crc = 0;
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(dpn_st_write(fileno(file), path, metadata, 1, sources, 2, (void *)(uintptr_t)numbers,
                                  &crc),
                     DPN_OK);
    assert_int_equal(fclose(file), 0);
    return crc;
}

static void test_round_trip(void **state)
{
    (void)state;
    static const char start[] = "{\"__metadata__\":{\"crc32\":\"";
    const char *notes[] = {"", "a", "ab", "abc", "abcd", "\"quoted\"", "sieben.", "acht....", "caf\xc3\xa9"};
    for (size_t i = 0; i < sizeof(notes) / sizeof(notes[0]); i++) {
        struct dpn_st_file *file;
        int ours;
        uint32_t crc, written = write_two(notes[i]);
        assert_int_equal(dpn_st_open(path, &file), DPN_OK);
        assert_int_equal((size_t)(file->data - (const uint8_t *)file->map) % 8, 0);
        assert_memory_equal((const char *)file->map + 8, start, sizeof(start) - 1);
        assert_int_equal(dpn_st_verify(file, &ours, &crc), DPN_OK);
        assert_true(ours);
        assert_int_equal(crc, written);
        assert_string_equal(dpn_st_metadata(file, "note"), notes[i]);
        assert_string_equal(dpn_st_metadata(file, "writer"), "dpnode");
        const struct dpn_st_tensor *x = dpn_st_find(file, "x \"1\"\n");
        assert_non_null(x);
        assert_int_equal(x->rank, 2);
        assert_int_equal(x->shape[1], 3);
        assert_memory_equal(file->data + x->begin, numbers, sizeof(numbers));
        assert_memory_equal(file->data + dpn_st_find(file, "n")->begin, &counter, 8);
        dpn_st_close(file);
    }
}

/* No single damaged byte, and no cut, is taken for the file that was written, or for one of somebody
 * else's. */
static void test_every_byte(void **state)
{
    (void)state;
    unsigned char bytes[1024];
    write_two("note");
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    const size_t n = fread(bytes, 1, sizeof(bytes), file);
    assert_in_range(n, 100, sizeof(bytes) - 1);
    for (size_t i = 0; i < n; i++) {
        for (int bit = 0; bit < 8; bit++) {
            struct dpn_st_file *opened;
            int ours;
            uint32_t crc;
            const unsigned char damaged = (unsigned char)(bytes[i] ^ (1 << bit));
            assert_int_equal(pwrite(fileno(file), &damaged, 1, (off_t)i), 1);
            enum dpn_status status = dpn_st_open(path, &opened);
            if (status == DPN_OK) {
                status = dpn_st_verify(opened, &ours, &crc);
                dpn_st_close(opened);
            }
            if (status != DPN_ERR_INPUT) fail_msg("byte %zu, bit %d flipped: accepted", i, bit);
            assert_non_null(strstr(dpn_error_text(), path));
        }
        assert_int_equal(pwrite(fileno(file), &bytes[i], 1, (off_t)i), 1);
    }
    for (size_t length = 0; length < n; length++) {
        struct dpn_st_file *opened;
        assert_int_equal(ftruncate(fileno(file), (off_t)(n - 1 - length)), 0);
        if (dpn_st_open(path, &opened) != DPN_ERR_INPUT)
            fail_msg("cut to %zu bytes: accepted", n - 1 - length);
    }
    assert_int_equal(fclose(file), 0);
}

static void test_pytorch(void **state)
{
    (void)state;
    char pattern[512];
    glob_t found;
    snprintf(pattern, sizeof(pattern), "%s/tests/reference/*.safetensors",
             getenv("srcdir") ? getenv("srcdir") : ".");
    if (glob(pattern, 0, NULL, &found) != 0) {
        print_message("SKIP: no reference files at %s\n", pattern);
        skip();
    }
    for (size_t i = 0; i < found.gl_pathc; i++) {
        struct dpn_st_file *file;
        assert_int_equal(dpn_st_open(found.gl_pathv[i], &file), DPN_OK);
        assert_true(file->n_tensors >= 2);
        for (size_t t = 0; t < file->n_tensors; t++)
            assert_true(strcmp(file->tensors[t].dtype, "F32") == 0 ||
                        strcmp(file->tensors[t].dtype, "I64") == 0);
        if (strstr(found.gl_pathv[i], "mlp-adam.")) {
            assert_int_equal(dpn_st_find(file, "fc1.weight")->shape[0], 128);
            assert_int_equal(dpn_st_find(file, "fc1.weight")->shape[1], 784);
        }
        dpn_st_close(file);
    }
    globfree(&found);
}

/* A full disk is an error of the write, with the file's name. */
static void test_write_error(void **state)
{
    (void)state;
    static const size_t shape[2] = {2, 3};
    const struct dpn_st_source source = {"x", "F32", 2, shape, source_data};
    uint32_t crc;
    int fd = open("/dev/full", O_WRONLY | O_CLOEXEC);
    if (fd < 0) {
        print_message("SKIP: no /dev/full\n");
        skip();
    }
    assert_int_equal(dpn_st_write(fd, "the/file", NULL, 0, &source, 1, (void *)(uintptr_t)numbers, &crc),
                     DPN_ERR_SYSTEM);
    assert_non_null(strstr(dpn_error_text(), "the/file"));
    close(fd);
}

static int setup(void **state)
{
    (void)state;
    snprintf(path, sizeof(path), "%s/dpnode-test-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    int fd = mkstemp(path);
    return fd < 0 ? -1 : close(fd);
}

static int teardown(void **state)
{
    (void)state;
    return unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_headers), cmocka_unit_test(test_bad_files),
        cmocka_unit_test(test_foreign),     cmocka_unit_test(test_large),
        cmocka_unit_test(test_round_trip),  cmocka_unit_test(test_every_byte),
        cmocka_unit_test(test_pytorch),     cmocka_unit_test(test_write_error),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
