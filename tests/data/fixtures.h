/* Files for the suites of tests/data: a scratch folder, IDX files made byte by byte, gzip. */
#ifndef DPN_TESTS_DATA_FIXTURES_H
#define DPN_TESTS_DATA_FIXTURES_H

#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <cmocka.h>

#include "core/status.h"

/* A block of bytes, malloc'd. */
struct blob {
    uint8_t *bytes;
    size_t n;
};

static inline int fixture_remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st;
    (void)flag;
    (void)ftw;
    return remove(path);
}

/* cmocka's setup and teardown: *STATE is the scratch folder's path. */
static inline int fixture_setup(void **state)
{
    char path[] = "/tmp/dpn-test-data-XXXXXX";
    *state = mkdtemp(path) ? strdup(path) : NULL;
    return *state ? 0 : -1;
}

static inline int fixture_teardown(void **state)
{
    int failed = nftw(*state, fixture_remove_one, 16, FTW_DEPTH | FTW_PHYS);
    free(*state);
    return failed;
}

/* "DIR/NAME", valid for the next 255 calls. */
static inline const char *fixture_path(const char *dir, const char *name)
{
    static char paths[256][512];
    static unsigned next;
    char *path = paths[next++ % 256];
    snprintf(path, sizeof(paths[0]), "%s/%s", dir, name);
    return path;
}

/* Makes DIR/NAME and the folders on the way; returns its path. */
static inline const char *fixture_folder(const char *dir, const char *name)
{
    const char *path = fixture_path(dir, name);
    char prefix[512];
    for (size_t i = strlen(dir) + 1; i <= strlen(path); i++) {
        if (path[i] != '/' && path[i] != '\0') continue;
        snprintf(prefix, sizeof(prefix), "%.*s", (int)i, path);
        mkdir(prefix, 0777);
    }
    return path;
}

static inline void fixture_write(const char *path, const void *bytes, size_t n)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

static inline struct blob blob_copy(const void *bytes, size_t n)
{
    struct blob blob = {malloc(n ? n : 1), n};
    assert_non_null(blob.bytes);
    memcpy(blob.bytes, bytes, n);
    return blob;
}

/* A then B; frees neither. */
static inline struct blob blob_join(struct blob a, struct blob b)
{
    struct blob blob = {malloc(a.n + b.n + 1), a.n + b.n};
    assert_non_null(blob.bytes);
    memcpy(blob.bytes, a.bytes, a.n);
    memcpy(blob.bytes + a.n, b.bytes, b.n);
    return blob;
}

/* One gzip member. */
static inline struct blob blob_gzip(struct blob plain)
{
    z_stream z = {0};
    assert_int_equal(deflateInit2(&z, 6, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    struct blob blob = {malloc(deflateBound(&z, plain.n)), deflateBound(&z, plain.n)};
    assert_non_null(blob.bytes);
    z.next_in = plain.bytes;
    z.avail_in = (uInt)plain.n;
    z.next_out = blob.bytes;
    z.avail_out = (uInt)blob.n;
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    blob.n = z.total_out;
    deflateEnd(&z);
    return blob;
}

/* An IDX file: header of MAGIC and RANK sizes, then ELEMS bytes that repeat nothing for long. */
static inline struct blob blob_idx(uint32_t magic, const uint32_t *dims, unsigned rank, size_t elems)
{
    struct blob blob = {calloc(1, 4 + 4 * (size_t)rank + elems), 4 + 4 * (size_t)rank + elems};
    assert_non_null(blob.bytes);
    for (unsigned word = 0; word <= rank; word++)
        for (unsigned byte = 0; byte < 4; byte++)
            blob.bytes[4 * word + byte] = (uint8_t)((word ? dims[word - 1] : magic) >> (24 - 8 * byte));
    uint32_t number = 12345;
    for (size_t i = 0; i < elems; i++) {
        number = number * 1664525u + 1013904223u;
        blob.bytes[4 + 4 * (size_t)rank + i] = (uint8_t)(number >> 24);
    }
    return blob;
}

static inline struct blob blob_images(uint32_t n, uint32_t height, uint32_t width)
{
    const uint32_t dims[] = {n, height, width};
    return blob_idx(0x803, dims, 3, (size_t)n * height * width);
}

static inline struct blob blob_labels(const uint8_t *labels, uint32_t n)
{
    struct blob blob = blob_idx(0x801, &n, 1, n);
    memcpy(blob.bytes + 8, labels, n);
    return blob;
}

/* Writes PLAIN, compressed if GZIP, to DIR/NAME. */
static inline const char *fixture_blob(const char *dir, const char *name, struct blob plain, int gzip)
{
    const char *path = fixture_path(dir, name);
    struct blob packed = gzip ? blob_gzip(plain) : blob_copy(plain.bytes, plain.n);
    fixture_write(path, packed.bytes, packed.n);
    free(packed.bytes);
    return path;
}

/* The calling thread's error text contains PART and is one line. */
static inline void assert_error_has(const char *part)
{
    if (!strstr(dpn_error_text(), part)) fail_msg("no \"%s\" in \"%s\"", part, dpn_error_text());
    assert_null(strchr(dpn_error_text(), '\n'));
}

#endif
