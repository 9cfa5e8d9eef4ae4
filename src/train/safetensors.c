/* Reading and writing safetensors. Nothing that a file says is believed before its size has been checked. */
#include "train/safetensors.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/json.h"
#include "core/memory.h"
#include "data/data.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "tensors are read and written as they lie in memory");

enum { ST_LENGTH_BYTES = 8, ST_MAX_HEADER_BYTES = 100000000, ST_CRC_DIGITS = 8 };

/* The CRC stands at a fixed place, so that no damage elsewhere can hide it from the reader. */
static const char st_prefix[] = "{\"__metadata__\":{\"crc32\":\"";
enum { ST_CRC_OFFSET = ST_LENGTH_BYTES + sizeof(st_prefix) - 1 };

static const struct {
    const char *name;
    unsigned bytes;
} st_dtypes[] = {
    {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1},
    {"I16", 2},  {"U16", 2}, {"F16", 2}, {"BF16", 2},    {"I32", 4},     {"U32", 4},
    {"F32", 4},  {"I64", 8}, {"U64", 8}, {"F64", 8},     {"C64", 8},
};

/* Bytes of one element, 0 for a dtype that we do not know. */
static unsigned st_dtype_bytes(const char *dtype)
{
    for (size_t i = 0; i < sizeof(st_dtypes) / sizeof(st_dtypes[0]); i++)
        if (strcmp(st_dtypes[i].name, dtype) == 0) return st_dtypes[i].bytes;
    return 0;
}

/* ---- reading ---- */

/* *VALUE := a JSON integer that is not negative. */
static int st_is_count(const json_t *json, uint64_t *value)
{
    if (!json_is_integer(json) || json_integer_value(json) < 0) return 0;
    *value = (uint64_t)json_integer_value(json);
    return 1;
}

static enum dpn_status st_read_shape(const char *path, const char *name, const json_t *shape,
                                     struct dpn_st_tensor *tensor)
{
    if (!json_is_array(shape))
        return dpn_fail(DPN_ERR_INPUT, "%s: tensor \"%s\" has no list \"shape\"", path, name);
    if (json_array_size(shape) > DPN_ST_MAX_RANK)
        return dpn_fail(DPN_ERR_INPUT, "%s: tensor \"%s\" has %zu dimensions, at most %d are read", path,
                        name, json_array_size(shape), DPN_ST_MAX_RANK);
    tensor->rank = (unsigned)json_array_size(shape);
    tensor->elems = 1;
    for (unsigned i = 0; i < tensor->rank; i++)
        if (!st_is_count(json_array_get(shape, i), &tensor->shape[i]) ||
            __builtin_mul_overflow(tensor->elems, tensor->shape[i], &tensor->elems))
            return dpn_fail(DPN_ERR_INPUT, "%s: tensor \"%s\": dimension %u is no size", path, name, i);
    return DPN_OK;
}

static enum dpn_status st_read_tensor(const char *path, const char *name, const json_t *json,
                                      struct dpn_st_tensor *tensor)
{
    const json_t *offsets = json_object_get(json, "data_offsets");
    const char *dtype = json_string_value(json_object_get(json, "dtype"));
    if (!json_is_object(json) || json_object_size(json) != 3 || !dtype || !offsets)
        return dpn_fail(DPN_ERR_INPUT, "%s: tensor \"%s\" is not described by dtype, shape and data_offsets",
                        path, name);
    unsigned elem_bytes = st_dtype_bytes(dtype);
    if (elem_bytes == 0)
        return dpn_fail(DPN_ERR_INPUT, "%s: tensor \"%s\" has the unknown dtype \"%s\"", path, name, dtype);
    snprintf(tensor->dtype, sizeof(tensor->dtype), "%s", dtype);
    DPN_TRY(st_read_shape(path, name, json_object_get(json, "shape"), tensor));

    uint64_t bytes;
    if (json_array_size(offsets) != 2 || !st_is_count(json_array_get(offsets, 0), &tensor->begin) ||
        !st_is_count(json_array_get(offsets, 1), &tensor->end) || tensor->begin > tensor->end ||
        __builtin_mul_overflow(tensor->elems, elem_bytes, &bytes) || bytes != tensor->end - tensor->begin)
        return dpn_fail(DPN_ERR_INPUT, "%s: tensor \"%s\": data_offsets do not fit its shape and dtype", path,
                        name);
    tensor->name = strdup(name);
    return tensor->name ? DPN_OK : dpn_fail(DPN_ERR_NOMEM, "%s: no memory for its header", path);
}

static enum dpn_status st_read_metadata(struct dpn_st_file *file, json_t *metadata)
{
    if (!json_is_object(metadata))
        return dpn_fail(DPN_ERR_INPUT, "%s: __metadata__ is no object", file->path);
    size_t n = json_object_size(metadata);
    DPN_TRY(dpn_calloc(&file->metadata_keys, n, sizeof(char *), "safetensors metadata"));
    DPN_TRY(dpn_calloc(&file->metadata_values, n, sizeof(char *), "safetensors metadata"));
    const char *key;
    json_t *value;
    json_object_foreach(metadata, key, value)
    {
        if (!json_is_string(value))
            return dpn_fail(DPN_ERR_INPUT, "%s: \"%s\" in __metadata__ is no string", file->path, key);
        size_t at = file->n_metadata++;
        file->metadata_keys[at] = strdup(key);
        file->metadata_values[at] = strdup(json_string_value(value));
        if (!file->metadata_keys[at] || !file->metadata_values[at])
            return dpn_fail(DPN_ERR_NOMEM, "%s: no memory for its metadata", file->path);
    }
    return DPN_OK;
}

static int st_compare_offsets(const void *a, const void *b)
{
    const struct dpn_st_tensor *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

/* Every byte of the data part belongs to exactly one tensor. */
static enum dpn_status st_check_ranges(struct dpn_st_file *file)
{
    uint64_t at = 0;
    qsort(file->tensors, file->n_tensors, sizeof(*file->tensors), st_compare_offsets);
    for (size_t i = 0; i < file->n_tensors; i++) {
        const struct dpn_st_tensor *tensor = &file->tensors[i];
        if (tensor->begin != at)
            return dpn_fail(DPN_ERR_INPUT,
                            "%s: tensor \"%s\" begins at byte %" PRIu64 " of the data, not at %" PRIu64,
                            file->path, tensor->name, tensor->begin, at);
        at = tensor->end;
    }
    if (at != file->data_bytes)
        return dpn_fail(DPN_ERR_INPUT,
                        "%s: holds %" PRIu64 " bytes of tensors where its header declares %" PRIu64,
                        file->path, file->data_bytes, at);
    return DPN_OK;
}

static enum dpn_status st_read_header(struct dpn_st_file *file, json_t *header)
{
    if (!json_is_object(header))
        return dpn_fail(DPN_ERR_INPUT, "%s: its header is no JSON object", file->path);
    DPN_TRY(
        dpn_calloc(&file->tensors, json_object_size(header), sizeof(*file->tensors), "safetensors header"));
    const char *name;
    json_t *value;
    json_object_foreach(header, name, value)
    {
        if (strcmp(name, "__metadata__") == 0) {
            DPN_TRY(st_read_metadata(file, value));
            continue;
        }
        DPN_TRY(st_read_tensor(file->path, name, value, &file->tensors[file->n_tensors]));
        file->n_tensors++;
    }
    return st_check_ranges(file);
}

static enum dpn_status st_map(struct dpn_st_file *file)
{
    struct stat info;
    /* O_NONBLOCK: a FIFO given by mistake is refused below instead of being waited for. */
    int fd = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return dpn_fail_errno(DPN_ERR_INPUT, errno, "%s: cannot open", file->path);
    enum dpn_status status = DPN_OK;
    if (fstat(fd, &info) != 0) {
        status = dpn_fail_errno(DPN_ERR_INPUT, errno, "%s: cannot stat", file->path);
    } else if (!S_ISREG(info.st_mode)) {
        status = dpn_fail(DPN_ERR_INPUT, "%s: is a %s, not a safetensors file", file->path,
                          S_ISDIR(info.st_mode) ? "folder" : "special file");
    } else if (info.st_size < ST_LENGTH_BYTES) {
        status = dpn_fail(DPN_ERR_INPUT, "%s: %lld bytes are too few for a safetensors file", file->path,
                          (long long)info.st_size);
    } else {
        file->map_bytes = (size_t)info.st_size;
        file->map = mmap(NULL, file->map_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
        if (file->map == MAP_FAILED) {
            file->map = NULL;
            status = dpn_fail_errno(DPN_ERR_SYSTEM, errno, "%s: cannot map", file->path);
        }
    }
    close(fd);
    return status;
}

static enum dpn_status st_parse(struct dpn_st_file *file)
{
    const uint8_t *bytes = file->map;
    uint64_t header_bytes;
    memcpy(&header_bytes, bytes, sizeof(header_bytes));
    if (header_bytes > file->map_bytes - ST_LENGTH_BYTES || header_bytes > ST_MAX_HEADER_BYTES)
        return dpn_fail(DPN_ERR_INPUT,
                        "%s: not a safetensors file, or cut: %" PRIu64 " bytes of header in a file of %zu",
                        file->path, header_bytes, file->map_bytes);
    if (header_bytes == 0 || bytes[ST_LENGTH_BYTES] != '{')
        return dpn_fail(DPN_ERR_INPUT, "%s: not a safetensors file: its header does not begin with '{'",
                        file->path);
    file->data = bytes + ST_LENGTH_BYTES + header_bytes;
    file->data_bytes = file->map_bytes - ST_LENGTH_BYTES - header_bytes;

    json_error_t error;
    json_t *header = json_loadb((const char *)bytes + ST_LENGTH_BYTES, header_bytes, JSON_REJECT_DUPLICATES,
                                &error);
    if (!header) return dpn_fail(DPN_ERR_INPUT, "%s: bad JSON in its header: %s", file->path, error.text);
    enum dpn_status status = st_read_header(file, header);
    json_decref(header);
    return status;
}

enum dpn_status dpn_st_open(const char *path, struct dpn_st_file **out)
{
    struct dpn_st_file *file;
    *out = NULL;
    DPN_TRY(dpn_calloc(&file, 1, sizeof(*file), "safetensors file"));
    file->path = strdup(path);
    enum dpn_status status = file->path ? DPN_OK : dpn_fail(DPN_ERR_NOMEM, "%s: no memory to open it", path);
    if (status == DPN_OK) status = st_map(file);
    if (status == DPN_OK) status = st_parse(file);
    if (status == DPN_OK) *out = file;
    else dpn_st_close(file);
    return status;
}

void dpn_st_close(struct dpn_st_file *file)
{
    if (!file) return;
    if (file->map) munmap(file->map, file->map_bytes);
    for (size_t i = 0; i < file->n_tensors; i++) free(file->tensors[i].name);
    for (size_t i = 0; i < file->n_metadata; i++) {
        free(file->metadata_keys[i]);
        free(file->metadata_values[i]);
    }
    free(file->tensors);
    free(file->metadata_keys);
    free(file->metadata_values);
    free(file->path);
    free(file);
}

const struct dpn_st_tensor *dpn_st_find(const struct dpn_st_file *file, const char *name)
{
    for (size_t i = 0; i < file->n_tensors; i++)
        if (strcmp(file->tensors[i].name, name) == 0) return &file->tensors[i];
    return NULL;
}

const char *dpn_st_metadata(const struct dpn_st_file *file, const char *key)
{
    for (size_t i = 0; i < file->n_metadata; i++)
        if (strcmp(file->metadata_keys[i], key) == 0) return file->metadata_values[i];
    return NULL;
}

enum dpn_status dpn_st_verify(const struct dpn_st_file *file, int *ours, uint32_t *crc)
{
    static const char zeros[] = "00000000";
    const char *stored = dpn_st_metadata(file, "crc32"), *writer = dpn_st_metadata(file, "writer");
    const uint8_t *bytes = file->map;
    /* Either member marks a file as ours: damage to one of them does not turn it into a file of others. */
    *ours = (writer && strcmp(writer, "dpnode") == 0) ||
            (file->map_bytes >= ST_CRC_OFFSET &&
             memcmp(bytes + ST_LENGTH_BYTES, st_prefix, sizeof(st_prefix) - 1) == 0);
    if (!*ours) {
        *crc = dpn_crc32(0, bytes, file->map_bytes);
        return DPN_OK;
    }
    if (!stored || strlen(stored) != ST_CRC_DIGITS || file->map_bytes < ST_CRC_OFFSET + ST_CRC_DIGITS ||
        memcmp(bytes + ST_LENGTH_BYTES, st_prefix, sizeof(st_prefix) - 1) != 0)
        return dpn_fail(DPN_ERR_INPUT, "%s: damaged: its CRC-32 is not where dpnode writes it", file->path);

    uint32_t value = dpn_crc32(0, bytes, ST_CRC_OFFSET);
    value = dpn_crc32(value, zeros, ST_CRC_DIGITS);
    const size_t rest = ST_CRC_OFFSET + ST_CRC_DIGITS;
    *crc = dpn_crc32(value, bytes + rest, file->map_bytes - rest);
    char text[ST_CRC_DIGITS + 1];
    snprintf(text, sizeof(text), "%08" PRIx32, *crc);
    if (strcmp(text, stored) != 0)
        return dpn_fail(DPN_ERR_INPUT, "%s: damaged: CRC-32 is %s, its header says %s", file->path, text,
                        stored);
    return DPN_OK;
}

/* ---- writing ---- */

static enum dpn_status st_write_all(int fd, const char *path, const void *data, size_t bytes)
{
    const char *at = data;
    while (bytes > 0) {
        ssize_t written = write(fd, at, bytes);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0)
            return dpn_fail_errno(DPN_ERR_SYSTEM, written < 0 ? errno : EIO, "%s: cannot write", path);
        at += written;
        bytes -= (size_t)written;
    }
    return DPN_OK;
}

static uint64_t st_source_bytes(const struct dpn_st_source *source)
{
    uint64_t bytes = st_dtype_bytes(source->dtype);
    assert(bytes != 0 && source->rank <= DPN_ST_MAX_RANK);
    for (unsigned i = 0; i < source->rank; i++) {
        int overflow = __builtin_mul_overflow(bytes, source->shape[i], &bytes);
        assert(!overflow);
        (void)overflow;
    }
    return bytes;
}

static void st_header_text(struct dpn_json *json, const struct dpn_st_pair *metadata, size_t n_metadata,
                           const struct dpn_st_source *sources, size_t n_sources)
{
    uint64_t at = 0;
    dpn_json_open_object(json, NULL);
    dpn_json_open_object(json, "__metadata__");
    dpn_json_string(json, "crc32", "00000000");
    dpn_json_string(json, "writer", "dpnode");
    for (size_t i = 0; i < n_metadata; i++) dpn_json_string(json, metadata[i].key, metadata[i].value);
    dpn_json_close_object(json);
    for (size_t i = 0; i < n_sources; i++) {
        dpn_json_open_object(json, sources[i].name);
        dpn_json_string(json, "dtype", sources[i].dtype);
        dpn_json_open_array(json, "shape");
        for (unsigned d = 0; d < sources[i].rank; d++) dpn_json_u64(json, NULL, sources[i].shape[d]);
        dpn_json_close_array(json);
        dpn_json_open_array(json, "data_offsets");
        dpn_json_u64(json, NULL, at);
        at += st_source_bytes(&sources[i]);
        dpn_json_u64(json, NULL, at);
        dpn_json_close_array(json);
        dpn_json_close_object(json);
    }
    dpn_json_close_object(json);
}

static enum dpn_status st_write_header(int fd, const char *path, const struct dpn_json *json, uint32_t *crc)
{
    static const char spaces[] = "       ";
    const size_t padding = (8 - json->length % 8) % 8;
    const uint64_t length = json->length + padding;
    assert(memcmp(json->text, st_prefix, sizeof(st_prefix) - 1) == 0);
    if (length > ST_MAX_HEADER_BYTES)
        return dpn_fail(DPN_ERR_SYSTEM, "%s: a header of %" PRIu64 " bytes is too long", path, length);
    DPN_TRY(st_write_all(fd, path, &length, sizeof(length)));
    DPN_TRY(st_write_all(fd, path, json->text, json->length));
    DPN_TRY(st_write_all(fd, path, spaces, padding));
    *crc = dpn_crc32(0, &length, sizeof(length));
    *crc = dpn_crc32(*crc, json->text, json->length);
    *crc = dpn_crc32(*crc, spaces, padding);
    return DPN_OK;
}

enum dpn_status dpn_st_write(int fd, const char *path, const struct dpn_st_pair *metadata, size_t n_metadata,
                             const struct dpn_st_source *sources, size_t n_sources, void *arg, uint32_t *crc)
{
    struct dpn_json json;
    dpn_json_init(&json);
    st_header_text(&json, metadata, n_metadata, sources, n_sources);
    enum dpn_status status = json.failed ? dpn_fail(DPN_ERR_NOMEM, "%s: no memory for its header", path)
                                         : st_write_header(fd, path, &json, crc);
    dpn_json_free(&json);
    DPN_TRY(status);
    for (size_t i = 0; i < n_sources; i++) {
        const size_t bytes = st_source_bytes(&sources[i]);
        const void *data = sources[i].data(arg, i);
        DPN_TRY(st_write_all(fd, path, data, bytes));
        *crc = dpn_crc32(*crc, data, bytes);
    }
    char digits[ST_CRC_DIGITS + 1];
    snprintf(digits, sizeof(digits), "%08" PRIx32, *crc);
    if (lseek(fd, ST_CRC_OFFSET, SEEK_SET) < 0)
        return dpn_fail_errno(DPN_ERR_SYSTEM, errno, "%s: cannot seek", path);
    return st_write_all(fd, path, digits, ST_CRC_DIGITS);
}
