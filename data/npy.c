/* NumPy's .npy form (numpy.lib.format): 93 "NUMPY", a version, a header that is a Python dictionary literal,
 * then the elements. Only what a data set needs is taken: little-endian or single-byte numbers, C order.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/data.h"

enum { NPY_MAX_HEADER = 1 << 16, NPY_TEXT_BYTES = 64 };

/* A reader of the header's text. */
struct npy_text {
    const char *path, *at, *end;
};

static enum dpn_status npy_bad(const struct npy_text *text, const char *what)
{
    return dpn_fail(DPN_ERR_INPUT, "%s: bad .npy header: %s", text->path, what);
}

static void npy_blanks(struct npy_text *text)
{
    while (text->at < text->end && (*text->at == ' ' || *text->at == '\n')) text->at++;
}

static int npy_take(struct npy_text *text, char c)
{
    npy_blanks(text);
    if (text->at >= text->end || *text->at != c) return 0;
    text->at++;
    return 1;
}

/* 'text' without escapes. */
static enum dpn_status npy_string(struct npy_text *text, char value[NPY_TEXT_BYTES])
{
    size_t n = 0;
    npy_blanks(text);
    char quote = text->at < text->end ? *text->at : 0;
    if (quote != '\'' && quote != '"')
        return npy_bad(text, "a string is wanted (structured types are not read)");
    for (text->at++; text->at < text->end && *text->at != quote; text->at++) {
        if (*text->at < ' ' || *text->at > '~' || *text->at == '\\')
            return npy_bad(text, "a string holds what is no plain text");
        if (n + 1 >= NPY_TEXT_BYTES) return npy_bad(text, "a string is too long");
        value[n++] = *text->at;
    }
    value[n] = '\0';
    return npy_take(text, quote) ? DPN_OK : npy_bad(text, "a string does not end");
}

static int npy_word(struct npy_text *text, const char *word)
{
    size_t length = strlen(word);
    npy_blanks(text);
    if ((size_t)(text->end - text->at) < length || memcmp(text->at, word, length) != 0) return 0;
    text->at += length;
    return 1;
}

static enum dpn_status npy_number(struct npy_text *text, size_t *value)
{
    size_t n = 0;
    npy_blanks(text);
    const char *start = text->at;
    for (; text->at < text->end && *text->at >= '0' && *text->at <= '9'; text->at++)
        if (__builtin_mul_overflow(n, (size_t)10, &n) ||
            __builtin_add_overflow(n, (size_t)(*text->at - '0'), &n))
            return npy_bad(text, "a size is too large");
    *value = n;
    return text->at > start ? DPN_OK : npy_bad(text, "a size is wanted");
}

static enum dpn_status npy_shape(struct npy_text *text, struct dpn_npy *npy)
{
    int commas = 0;
    if (!npy_take(text, '(')) return npy_bad(text, "shape is no tuple");
    npy->rank = 0;
    while (!npy_take(text, ')')) {
        if (npy->rank == DPN_NPY_MAX_RANK) return npy_bad(text, "more than 8 dimensions");
        DPN_TRY(npy_number(text, &npy->dims[npy->rank++]));
        int comma = npy_take(text, ',');
        if (!comma && !(text->at < text->end && *text->at == ')'))
            return npy_bad(text, "shape is no tuple of sizes");
        commas += comma;
    }
    /* Python's (3) is a number. */
    return npy->rank == 1 && !commas ? npy_bad(text, "shape is no tuple") : DPN_OK;
}

static enum dpn_status npy_type(struct npy_text *text, struct dpn_npy *npy)
{
    char type[NPY_TEXT_BYTES];
    DPN_TRY(npy_string(text, type));
    int known = strlen(type) == 3 && strchr("uif", type[1]) && strchr("1248", type[2]);
    if (known && type[0] == '>' && type[2] != '1')
        return dpn_fail(DPN_ERR_INPUT, "%s: elements of type '%s' are big-endian; wanted is little-endian",
                        text->path, type);
    if (!known || !strchr("<|>", type[0]) || (type[0] == '|') > (type[2] == '1') ||
        (type[1] == 'f' && type[2] == '1'))
        return dpn_fail(DPN_ERR_INPUT, "%s: elements of type '%s' are not read, only integers and floats",
                        text->path, type);
    npy->kind = type[1];
    npy->item_bytes = (size_t)(type[2] - '0');
    return DPN_OK;
}

static enum dpn_status npy_header(struct npy_text *text, struct dpn_npy *npy)
{
    char key[NPY_TEXT_BYTES];
    unsigned seen = 0;
    if (!npy_take(text, '{')) return npy_bad(text, "it is no dictionary");
    while (!npy_take(text, '}')) {
        DPN_TRY(npy_string(text, key));
        if (!npy_take(text, ':')) return npy_bad(text, "a colon is missing");
        unsigned bit = !strcmp(key, "descr")           ? 1
                       : !strcmp(key, "fortran_order") ? 2
                       : !strcmp(key, "shape")         ? 4
                                                       : 8;
        if (bit == 8 || (seen & bit)) return npy_bad(text, "an unknown or repeated key");
        seen |= bit;
        if (bit == 1) DPN_TRY(npy_type(text, npy));
        if (bit == 4) DPN_TRY(npy_shape(text, npy));
        if (bit == 2 && npy_word(text, "True"))
            return dpn_fail(DPN_ERR_INPUT,
                            "%s: is in Fortran order; wanted is C order (numpy.ascontiguousarray)",
                            text->path);
        if (bit == 2 && !npy_word(text, "False"))
            return npy_bad(text, "fortran_order is neither True nor False");
        if (!npy_take(text, ',') && !(text->at < text->end && *text->at == '}'))
            return npy_bad(text, "a comma is missing");
    }
    npy_blanks(text);
    if (text->at != text->end) return npy_bad(text, "something follows the dictionary");
    return seen == 7 ? DPN_OK : npy_bad(text, "descr, fortran_order or shape is missing");
}

/* Sizes against what is there. */
static enum dpn_status npy_check_size(const char *path, struct dpn_npy *npy, size_t offset)
{
    char shape[128];
    size_t bytes;
    int overflow = 0;
    npy->elems = 1;
    for (unsigned d = 0; d < npy->rank; d++)
        overflow |= __builtin_mul_overflow(npy->elems, npy->dims[d], &npy->elems);
    overflow |= __builtin_mul_overflow(npy->elems, npy->item_bytes, &bytes);
    dpn_npy_shape_text(npy, shape, sizeof shape);
    if (overflow || bytes != npy->map_bytes - offset)
        return dpn_fail(DPN_ERR_INPUT, "%s: %zu bytes of elements, but shape %s wants %s%zu", path,
                        npy->map_bytes - offset, shape, overflow ? "more than " : "",
                        overflow ? SIZE_MAX : bytes);
    npy->data = (const uint8_t *)npy->map + offset;
    return DPN_OK;
}

static enum dpn_status npy_parse(const char *path, struct dpn_npy *npy)
{
    const unsigned char *bytes = npy->map;
    if (npy->map_bytes < 10 || memcmp(bytes, "\x93NUMPY", 6) != 0) {
        if (npy->map_bytes >= 4 && memcmp(bytes, "PK\3\4", 4) == 0)
            return dpn_fail(DPN_ERR_INPUT, "%s: is an .npz archive; wanted is a single array (numpy.save)",
                            path);
        return dpn_fail(DPN_ERR_INPUT, "%s: is not in NumPy's .npy form", path);
    }
    unsigned version = bytes[6];
    size_t start = version == 1 ? 10 : 12;
    if (version < 1 || version > 3 || bytes[7] != 0)
        return dpn_fail(DPN_ERR_INPUT, "%s: .npy version %u.%u is not known", path, version, bytes[7]);
    size_t length = bytes[8] + 256u * bytes[9];
    if (version > 1 && npy->map_bytes >= 12) length += 65536u * bytes[10] + ((size_t)bytes[11] << 24);
    if (length > NPY_MAX_HEADER || start + length > npy->map_bytes)
        return dpn_fail(DPN_ERR_INPUT, "%s: bad .npy header: %zu bytes long in a file of %zu", path, length,
                        npy->map_bytes);
    struct npy_text text = {path, (const char *)bytes + start, (const char *)bytes + start + length};
    DPN_TRY(npy_header(&text, npy));
    return npy_check_size(path, npy, start + length);
}

static enum dpn_status npy_map(const char *path, int fd, struct dpn_npy *npy)
{
    struct stat st;
    if (fstat(fd, &st) != 0) return dpn_fail_errno(DPN_ERR_INPUT, errno, "%s: cannot read", path);
    if (!S_ISREG(st.st_mode))
        return dpn_fail(DPN_ERR_INPUT, "%s: is %s, not a file", path,
                        S_ISDIR(st.st_mode) ? "a folder" : "special");
    if (st.st_size == 0) return dpn_fail(DPN_ERR_INPUT, "%s: is empty", path);
    void *map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (map == MAP_FAILED) return dpn_fail_errno(DPN_ERR_INPUT, errno, "%s: cannot map", path);
    npy->map = map;
    npy->map_bytes = (size_t)st.st_size;
    return DPN_OK;
}

enum dpn_status dpn_npy_open(const char *path, struct dpn_npy *npy)
{
    *npy = (struct dpn_npy){0};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return dpn_fail_errno(DPN_ERR_INPUT, errno, "%s: cannot open", path);
    enum dpn_status status = npy_map(path, fd, npy);
    close(fd);
    if (status == DPN_OK) status = npy_parse(path, npy);
    if (status != DPN_OK) dpn_npy_close(npy);
    return status;
}

void dpn_npy_close(struct dpn_npy *npy)
{
    if (npy->map) munmap(npy->map, npy->map_bytes);
    *npy = (struct dpn_npy){0};
}

void dpn_npy_shape_text(const struct dpn_npy *npy, char *text, size_t size)
{
    size_t at = (size_t)snprintf(text, size, "%s", npy->rank ? "" : "()");
    for (unsigned d = 0; d < npy->rank && at < size; d++)
        at += (size_t)snprintf(text + at, size - at, "%s%zu", d ? "x" : "", npy->dims[d]);
}
