/* The safetensors file format (huggingface/safetensors, README "Format"): 8 bytes little-endian header
 * length, JSON header, tensors.
 *
 * Files that we write carry in __metadata__ a CRC-32 of themselves (docs/formats.md): "crc32", always the
 * first member, is the CRC of the whole file with those eight digits counted as '0', and "writer" is
 * "dpnode".
 */
#ifndef DPN_TRAIN_SAFETENSORS_H
#define DPN_TRAIN_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

enum { DPN_ST_MAX_RANK = 8 };

struct dpn_st_tensor {
    char *name;
    char dtype[8]; /* "F32", "I64", ... */
    unsigned rank;
    uint64_t shape[DPN_ST_MAX_RANK];
    uint64_t elems;
    uint64_t begin, end; /* byte offsets in the data part */
};

struct dpn_st_file {
    char *path;
    size_t n_tensors;
    struct dpn_st_tensor *tensors; /* in order of offsets */
    size_t n_metadata;
    char **metadata_keys, **metadata_values;
    const uint8_t *data; /* the data part, mapped read-only; any alignment in files of others */
    uint64_t data_bytes;
    void *map; /* the whole file */
    size_t map_bytes;
};

/* Maps PATH and checks everything declared against the file's size: header length (at most 100 MB), JSON
 * form, dtypes, shapes times element size = range, ranges contiguous from 0 without overlap or hole up to the
 * end of the file, unique names. Contents are not verified: see dpn_st_verify. DPN_ERR_INPUT naming PATH. The
 * file must not be cut while it is open. */
enum dpn_status dpn_st_open(const char *path, struct dpn_st_file **file);
void dpn_st_close(struct dpn_st_file *file);                                               /* NULL: nothing */
const struct dpn_st_tensor *dpn_st_find(const struct dpn_st_file *file, const char *name); /* or NULL */
const char *dpn_st_metadata(const struct dpn_st_file *file, const char *key);              /* or NULL */

/* Reads the whole file. *CRC: its CRC-32 with the digits of "crc32" counted as '0'. *OURS: whether it has
 * one, by us; then DPN_ERR_INPUT naming the file if it does not hold. A file of others (*OURS 0) has nothing
 * to be verified against. */
enum dpn_status dpn_st_verify(const struct dpn_st_file *file, int *ours, uint32_t *crc);

/* A tensor to be written: DATA is asked for when its turn comes (scratch memory may be reused). */
struct dpn_st_source {
    const char *name;
    const char *dtype; /* "F32" or "I64" */
    unsigned rank;
    const size_t *shape;
    const void *(*data)(void *arg, size_t position); /* of this tensor: elements in C order, little-endian */
};
struct dpn_st_pair {
    const char *key, *value; /* UTF-8 */
};
/* Writes a whole file to FD (empty, at offset 0; PATH for errors), header padded with spaces to 8 bytes, so
 * that the data part is 8-byte aligned. "crc32" and "writer" come before METADATA. Same arguments, same
 * bytes. *CRC: as dpn_st_verify gives it. Every write is checked; neither syncs nor closes. Errors:
 * DPN_ERR_SYSTEM, DPN_ERR_NOMEM. */
enum dpn_status dpn_st_write(int fd, const char *path, const struct dpn_st_pair *metadata, size_t n_metadata,
                             const struct dpn_st_source *sources, size_t n_sources, void *arg, uint32_t *crc);

#endif
