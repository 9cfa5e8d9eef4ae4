/* .npy files made byte by byte. */
#ifndef DPN_TESTS_DATA_NPY_FIXTURES_H
#define DPN_TESTS_DATA_NPY_FIXTURES_H

#include "tests/data/fixtures.h"

/* A file of VERSION with HEADER, padded with blanks to a multiple of ALIGN bytes, before N_BYTES elements. */
static inline struct blob blob_npy_as(unsigned version, const char *header, size_t align,
                                      const void *elements, size_t n_bytes)
{
    size_t start = version == 1 ? 10 : 12, text = strlen(header) + 1;
    size_t length = (start + text + align - 1) / align * align - start;
    struct blob blob = {calloc(1, start + length + n_bytes), start + length + n_bytes};
    assert_non_null(blob.bytes);
    memcpy(blob.bytes, "\x93NUMPY", 6);
    blob.bytes[6] = (uint8_t)version;
    for (size_t b = 0; b < start - 8; b++) blob.bytes[8 + b] = (uint8_t)(length >> (8 * b));
    memset(blob.bytes + start, ' ', length - 1);
    memcpy(blob.bytes + start, header, strlen(header));
    blob.bytes[start + length - 1] = '\n';
    if (elements) memcpy(blob.bytes + start + length, elements, n_bytes);
    return blob;
}

static inline struct blob blob_npy(const char *type, const char *shape, const void *elements, size_t n_bytes)
{
    char header[300];
    snprintf(header, sizeof(header), "{'descr': '%s', 'fortran_order': False, 'shape': (%s), }", type, shape);
    return blob_npy_as(1, header, 64, elements, n_bytes);
}

static inline const char *write_npy(const char *folder, const char *name, const char *type, const char *shape,
                                    const void *elements, size_t n_bytes)
{
    struct blob blob = blob_npy(type, shape, elements, n_bytes);
    const char *path = fixture_blob(folder, name, blob, 0);
    free(blob.bytes);
    return path;
}

#endif
