/* Reads IDX files, raw or gzip. Bytes are inflated straight into the array that is handed out, and the CRC
 * that zlib computes to check a gzip member is kept, so compressed pixels are touched once. */
#include "data/data.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "core/memory.h"

enum {
    IDX_INPUT_BYTES = 1 << 17,
    IDX_PIECE_BYTES = 1 << 30, /* zlib counts in 32 bits */
    IDX_GUESS_RATIO = 8,       /* first guess of a gzip file's expansion: clothes have 2, digits 5 */
    IDX_MAX_RATIO = 1032,      /* Deflate's limit: two bits can say "258 bytes as before" */
    IDX_TYPE_U8 = 0x08,
};

/* The uncompressed bytes of a file, in order. */
struct idx_source {
    const char *path;
    int fd;
    size_t file_bytes;
    int gzip;
    uint32_t crc;     /* of all bytes delivered (raw), of all members ended (gzip) */
    size_t delivered; /* uncompressed bytes so far */
    z_stream z;
    unsigned char *input; /* NULL: raw */
    int between_members;
    size_t members; /* ended */
};

static void idx_source_close(struct idx_source *source)
{
    if (source->input) inflateEnd(&source->z);
    free(source->input);
    if (source->fd >= 0) close(source->fd);
}

static enum dpn_status idx_source_open_gzip(struct idx_source *source)
{
    unsigned char *input = malloc(IDX_INPUT_BYTES);
    if (!input) return dpn_fail(DPN_ERR_NOMEM, "%s: no memory to decompress", source->path);
    enum { GZIP_ONLY = 16 }; /* added to the window size: gzip's header and trailer, checked by zlib */
    if (inflateInit2(&source->z, MAX_WBITS + GZIP_ONLY) != Z_OK) {
        free(input);
        return dpn_fail(DPN_ERR_NOMEM, "%s: no memory to decompress", source->path);
    }
    source->input = input;
    return DPN_OK;
}

/* On failure too, idx_source_close is the caller's. */
static enum dpn_status idx_source_open(struct idx_source *source, const char *path)
{
    *source = (struct idx_source){.path = path};
    source->fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK); /* a FIFO must not block here */
    if (source->fd < 0) return dpn_fail_errno(DPN_ERR_INPUT, errno, "%s: cannot open", path);
    struct stat st;
    if (fstat(source->fd, &st) != 0) return dpn_fail_errno(DPN_ERR_INPUT, errno, "%s: cannot read", path);
    if (S_ISDIR(st.st_mode)) return dpn_fail(DPN_ERR_INPUT, "%s: is a folder, wanted an IDX file", path);
    if (!S_ISREG(st.st_mode)) return dpn_fail(DPN_ERR_INPUT, "%s: is not a regular file", path);
    source->file_bytes = (size_t)st.st_size;
    if (source->file_bytes == 0) return dpn_fail(DPN_ERR_INPUT, "%s: is empty, wanted an IDX file", path);

    unsigned char start[2] = {0, 0};
    if (pread(source->fd, start, sizeof(start), 0) < 0)
        return dpn_fail_errno(DPN_ERR_INPUT, errno, "%s: cannot read", path);
    source->gzip = start[0] == 0x1f && start[1] == 0x8b;
    return source->gzip ? idx_source_open_gzip(source) : DPN_OK;
}

static enum dpn_status idx_read_some(struct idx_source *source, void *bytes, size_t want, size_t *got)
{
    for (;;) {
        ssize_t n = read(source->fd, bytes, want < IDX_PIECE_BYTES ? want : IDX_PIECE_BYTES);
        if (n >= 0) {
            *got = (size_t)n;
            return DPN_OK;
        }
        if (errno != EINTR) return dpn_fail_errno(DPN_ERR_INPUT, errno, "%s: cannot read", source->path);
    }
}

static enum dpn_status idx_pull_raw(struct idx_source *source, uint8_t *bytes, size_t want, size_t *got)
{
    size_t have = 0, n = 1;
    while (have < want && n > 0) {
        DPN_TRY(idx_read_some(source, bytes + have, want - have, &n));
        have += n;
    }
    source->crc = dpn_crc32(source->crc, bytes, have);
    *got = have;
    return DPN_OK;
}

static enum dpn_status idx_fail_trailing(const struct idx_source *source, const char *why)
{
    return dpn_fail(DPN_ERR_INPUT, "%s: trailing bytes after the gzip data (%zu uncompressed bytes): %s",
                    source->path, source->delivered, why);
}

static enum dpn_status idx_fail_gzip(const struct idx_source *source, int zlib_code)
{
    const char *why = source->z.msg ? source->z.msg : zError(zlib_code);
    if (zlib_code == Z_MEM_ERROR) return dpn_fail(DPN_ERR_NOMEM, "%s: no memory to decompress", source->path);
    if (source->members > 0 && source->z.total_out == 0) return idx_fail_trailing(source, why);
    return dpn_fail(DPN_ERR_INPUT, "%s: damaged gzip file: %s after %zu uncompressed bytes", source->path,
                    why, source->delivered);
}

/* Makes input available; *END if the file has no more. */
static enum dpn_status idx_refill(struct idx_source *source, int *end)
{
    *end = 0;
    if (source->z.avail_in > 0) return DPN_OK;
    size_t n = 0;
    DPN_TRY(idx_read_some(source, source->input, IDX_INPUT_BYTES, &n));
    source->z.next_in = source->input;
    source->z.avail_in = (uInt)n;
    *end = n == 0;
    return DPN_OK;
}

static void idx_end_member(struct idx_source *source)
{
    source->crc = dpn_crc32_combine(source->crc, (uint32_t)source->z.adler, source->z.total_out);
    source->between_members = 1;
    source->members++;
}

static enum dpn_status idx_pull_gzip(struct idx_source *source, uint8_t *bytes, size_t want, size_t *got)
{
    z_stream *z = &source->z;
    *got = 0;
    while (*got < want) {
        int end;
        DPN_TRY(idx_refill(source, &end));
        if (end && source->between_members) return DPN_OK;
        if (end)
            return dpn_fail(DPN_ERR_INPUT, "%s: gzip data is cut off after %zu uncompressed bytes",
                            source->path, source->delivered);
        if (source->between_members) {
            if (*z->next_in != 0x1f) return idx_fail_trailing(source, "no gzip member");
            inflateReset(z);
            source->between_members = 0;
        }
        size_t piece = want - *got < IDX_PIECE_BYTES ? want - *got : IDX_PIECE_BYTES;
        z->next_out = bytes + *got;
        z->avail_out = (uInt)piece;
        int code = inflate(z, Z_NO_FLUSH);
        *got += piece - z->avail_out;
        source->delivered += piece - z->avail_out;
        if (code == Z_STREAM_END) idx_end_member(source);
        else if (code != Z_OK && code != Z_BUF_ERROR) /* Z_BUF_ERROR: wants more input */
            return idx_fail_gzip(source, code);
    }
    return DPN_OK;
}

/* Up to WANT uncompressed bytes; fewer only at the verified end of the file. */
static enum dpn_status idx_pull(struct idx_source *source, void *bytes, size_t want, size_t *got)
{
    if (source->gzip) return idx_pull_gzip(source, bytes, want, got);
    DPN_TRY(idx_pull_raw(source, bytes, want, got));
    source->delivered += *got;
    return DPN_OK;
}

static uint32_t idx_big_endian(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

static const char *idx_kind(uint32_t magic)
{
    return magic == DPN_IDX_IMAGES ? "images" : magic == DPN_IDX_LABELS ? "labels" : "elements";
}

static int idx_is_text(const uint8_t *magic)
{
    for (int i = 0; i < 4; i++)
        if (!isprint(magic[i]) && !isspace(magic[i])) return 0;
    return 1;
}

/* What the wrong magic is most likely a sign of, into HINT. */
static void idx_explain_magic(const uint8_t *bytes, uint32_t want, char *hint, size_t size)
{
    uint32_t magic = idx_big_endian(bytes), swapped = __builtin_bswap32(magic);
    unsigned type = magic >> 8 & 0xff, rank = magic & 0xff;
    hint[0] = '\0';
    if (idx_is_text(bytes)) snprintf(hint, size, "; it is text, such as an error page saved under this name");
    else if (magic >> 16 == 0x1f8b) snprintf(hint, size, "; it was compressed with gzip twice");
    else if (swapped >> 8 == IDX_TYPE_U8)
        snprintf(hint, size, "; its header is little-endian, IDX is big-endian");
    else if (magic == DPN_IDX_LABELS || magic == DPN_IDX_IMAGES)
        snprintf(hint, size, "; it holds %s, not %s", idx_kind(magic), idx_kind(want));
    else if (magic >> 16 == 0 && type >= 0x09 && type <= 0x0e)
        snprintf(hint, size, "; its elements are of type %02x, only 08 (unsigned bytes) is read", type);
    else if (magic >> 8 == IDX_TYPE_U8)
        snprintf(hint, size, "; it has %u dimensions, wanted %u", rank, want ? want & 0xff : 4);
}

static enum dpn_status idx_check_magic(const char *path, const uint8_t *bytes, uint32_t want,
                                       struct dpn_idx *idx)
{
    idx->magic = idx_big_endian(bytes);
    idx->rank = idx->magic & 0xff;
    if (want ? idx->magic == want : idx->magic >> 8 == IDX_TYPE_U8 && idx->rank >= 1 && idx->rank <= 4)
        return DPN_OK;
    char hint[100];
    idx_explain_magic(bytes, want, hint, sizeof(hint));
    if (want)
        return dpn_fail(DPN_ERR_INPUT, "%s: not an IDX file of %s: magic %08x (%u), wanted %08x (%u)%s", path,
                        idx_kind(want), idx->magic, idx->magic, want, want, hint);
    return dpn_fail(DPN_ERR_INPUT, "%s: not an IDX file: magic %08x, wanted 00000801 to 00000804%s", path,
                    idx->magic, hint);
}

/* "60000 x 28 x 28", and whether the sizes would make sense in the other byte order. */
static void idx_format_dims(const struct dpn_idx *idx, char *text, size_t size)
{
    size_t length = 0;
    int swapped = 0;
    for (unsigned i = 0; i < idx->rank; i++) {
        length += (size_t)snprintf(text + length, size - length, "%s%zu", i ? " x " : "", idx->dims[i]);
        swapped |= idx->dims[i] >= 1u << 24 && __builtin_bswap32((uint32_t)idx->dims[i]) < 1u << 24;
    }
    if (swapped) snprintf(text + length, size - length, " (little-endian? IDX is big-endian)");
}

/* Reads the header; *BYTES := size of the elements that it promises, checked against what the file can
 * hold. */
static enum dpn_status idx_read_header(struct idx_source *source, uint32_t want, struct dpn_idx *idx,
                                       size_t *bytes)
{
    const char *path = source->path;
    uint8_t header[4 + 4 * 4];
    size_t got;
    DPN_TRY(idx_pull(source, header, 4, &got));
    if (got < 4) return dpn_fail(DPN_ERR_INPUT, "%s: holds only %zu bytes, no IDX header", path, got);
    DPN_TRY(idx_check_magic(path, header, want, idx));
    size_t sizes_bytes = (size_t)4 * idx->rank;
    DPN_TRY(idx_pull(source, header + 4, sizes_bytes, &got));
    if (got < sizes_bytes)
        return dpn_fail(DPN_ERR_INPUT, "%s: the header is cut off: %zu bytes, wanted %zu", path, 4 + got,
                        4 + sizes_bytes);

    char dims[100];
    size_t elems = 1;
    int overflow = 0, empty = 0;
    for (unsigned i = 0; i < idx->rank; i++) {
        idx->dims[i] = idx_big_endian(header + 4 + 4 * i);
        empty |= idx->dims[i] == 0;
        overflow |= __builtin_mul_overflow(elems, idx->dims[i], &elems);
    }
    overflow |= elems > SIZE_MAX / 4;
    idx_format_dims(idx, dims, sizeof(dims));
    if (empty)
        return dpn_fail(DPN_ERR_INPUT, "%s: the header says %s: no %s", path, dims, idx_kind(idx->magic));
    if (overflow) return dpn_fail(DPN_ERR_INPUT, "%s: the header's sizes are absurd: %s bytes", path, dims);
    if (!source->gzip && elems != source->file_bytes - source->delivered)
        return dpn_fail(DPN_ERR_INPUT,
                        "%s: the header says %s, so the file should have %zu bytes; it has %zu", path, dims,
                        elems + source->delivered, source->file_bytes);
    if (source->gzip && elems / IDX_MAX_RATIO > source->file_bytes)
        return dpn_fail(DPN_ERR_INPUT,
                        "%s: the header says %s, that is %zu bytes; %zu bytes of gzip cannot hold them", path,
                        dims, elems, source->file_bytes);
    *bytes = elems;
    return DPN_OK;
}

static enum dpn_status idx_grow(struct dpn_idx *idx, size_t capacity, const char *path)
{
    uint8_t *bytes = realloc(idx->bytes, capacity);
    if (!bytes) return dpn_fail(DPN_ERR_NOMEM, "%s: no memory for %zu bytes", path, capacity);
    idx->bytes = bytes;
    dpn_memory_large_pages(bytes, capacity);
    return DPN_OK;
}

/* The WANT bytes after the header, into a block that grows with what has really arrived. */
static enum dpn_status idx_read_elements(struct idx_source *source, size_t want, struct dpn_idx *idx)
{
    const char *path = source->path;
    size_t capacity = want, have = 0, got;
    if (source->gzip && source->file_bytes < want / IDX_GUESS_RATIO)
        capacity = IDX_GUESS_RATIO * source->file_bytes;
    DPN_TRY(dpn_data_check_fits(path, want, 1));
    for (;;) {
        DPN_TRY(idx_grow(idx, capacity, path));
        DPN_TRY(idx_pull(source, idx->bytes + have, capacity - have, &got));
        have += got;
        if (have < capacity || have == want) break;
        capacity = capacity < want / 2 ? 2 * capacity : want;
    }
    size_t header_bytes = source->delivered - have;
    if (have < want)
        return dpn_fail(DPN_ERR_INPUT, "%s: too short: wanted %zu uncompressed bytes, found %zu", path,
                        header_bytes + want, source->delivered);
    /* Asking for one byte more also makes zlib read and check the trailer of the last member. */
    uint8_t extra;
    DPN_TRY(idx_pull(source, &extra, 1, &got));
    if (got > 0)
        return dpn_fail(DPN_ERR_INPUT, "%s: trailing bytes: wanted %zu uncompressed bytes, found more", path,
                        header_bytes + want);
    return DPN_OK;
}

static enum dpn_status idx_load(const char *path, uint32_t want, struct dpn_idx *idx)
{
    *idx = (struct dpn_idx){0};
    struct idx_source source;
    size_t bytes = 0;
    enum dpn_status status = idx_source_open(&source, path);
    if (status == DPN_OK) status = idx_read_header(&source, want, idx, &bytes);
    if (status == DPN_OK) status = idx_read_elements(&source, bytes, idx);
    if (status == DPN_OK) {
        idx->crc = source.crc;
        idx->raw_bytes = source.delivered;
        idx->file_bytes = source.file_bytes;
        idx->gzip = source.gzip;
    } else {
        free(idx->bytes);
        *idx = (struct dpn_idx){0};
    }
    idx_source_close(&source);
    return status;
}

enum dpn_status dpn_idx_read(const char *path, uint32_t want_magic, struct dpn_idx *idx)
{
    return idx_load(path, want_magic, idx);
}

enum dpn_status dpn_idx_read_any(const char *path, struct dpn_idx *idx)
{
    return idx_load(path, 0, idx);
}
