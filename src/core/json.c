/* A writer for JSON: see json.h. */
#include "core/json.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/parse.h"

void dpn_json_init(struct dpn_json *json)
{
    *json = (struct dpn_json){.first = 1};
}

void dpn_json_free(struct dpn_json *json)
{
    free(json->text);
    dpn_json_init(json);
}

void dpn_json_reset(struct dpn_json *json)
{
    json->length = 0;
    json->first = 1;
    json->failed = 0;
    if (json->text) json->text[0] = '\0';
}

/* ---- text ---- */

static void json_add(struct dpn_json *json, const char *text, size_t length)
{
    if (json->failed) return;
    if (json->capacity - json->length <= length) {
        size_t capacity = json->capacity ? json->capacity : 512;
        while (capacity - json->length <= length) {
            if (__builtin_mul_overflow(capacity, 2, &capacity)) {
                json->failed = 1;
                return;
            }
        }
        char *bigger = realloc(json->text, capacity);
        if (!bigger) {
            json->failed = 1;
            return;
        }
        json->text = bigger;
        json->capacity = capacity;
    }
    memcpy(json->text + json->length, text, length);
    json->length += length;
    json->text[json->length] = '\0';
}

static void json_add_text(struct dpn_json *json, const char *text)
{
    json_add(json, text, strlen(text));
}

/* Length of the valid UTF-8 character at S, 0 if there is none (Unicode 15, table 3-7). */
static size_t json_utf8(const unsigned char *s)
{
    if (s[0] < 0x80) return 1;
    if (s[0] < 0xc2 || s[0] > 0xf4) return 0;
    unsigned low = 0x80, high = 0xbf;
    if (s[0] == 0xe0) low = 0xa0;  /* longer than needed */
    if (s[0] == 0xed) high = 0x9f; /* surrogates */
    if (s[0] == 0xf0) low = 0x90;
    if (s[0] == 0xf4) high = 0x8f; /* above U+10FFFF */
    if (s[1] < low || s[1] > high) return 0;
    size_t length = s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;
    for (size_t i = 2; i < length; i++)
        if (s[i] < 0x80 || s[i] > 0xbf) return 0;
    return length;
}

static void json_add_quoted(struct dpn_json *json, const char *text)
{
    json_add(json, "\"", 1);
    for (const unsigned char *s = (const unsigned char *)text; *s;) {
        size_t length = json_utf8(s);
        char escape[8];
        if (length == 0) {
            json_add_text(json, "\xef\xbf\xbd");
            length = 1;
        } else if (*s == '"' || *s == '\\') {
            snprintf(escape, sizeof escape, "\\%c", *s);
            json_add_text(json, escape);
        } else if (*s < 0x20) {
            snprintf(escape, sizeof escape, "\\u%04x", *s);
            json_add_text(json, escape);
        } else {
            json_add(json, (const char *)s, length);
        }
        s += length;
    }
    json_add(json, "\"", 1);
}

/* ---- items ---- */

static void json_begin(struct dpn_json *json, const char *key)
{
    if (!json->first) json_add(json, ",", 1);
    json->first = 0;
    if (!key) return;
    json_add_quoted(json, key);
    json_add(json, ":", 1);
}

static void json_open(struct dpn_json *json, const char *key, const char *bracket)
{
    json_begin(json, key);
    json_add_text(json, bracket);
    json->first = 1;
}

static void json_close(struct dpn_json *json, const char *bracket)
{
    json_add_text(json, bracket);
    json->first = 0;
}

void dpn_json_open_object(struct dpn_json *json, const char *key)
{
    json_open(json, key, "{");
}

void dpn_json_close_object(struct dpn_json *json)
{
    json_close(json, "}");
}

void dpn_json_open_array(struct dpn_json *json, const char *key)
{
    json_open(json, key, "[");
}

void dpn_json_close_array(struct dpn_json *json)
{
    json_close(json, "]");
}

void dpn_json_string(struct dpn_json *json, const char *key, const char *value)
{
    json_begin(json, key);
    json_add_quoted(json, value);
}

void dpn_json_raw(struct dpn_json *json, const char *key, const char *json_text)
{
    json_begin(json, key);
    json_add_text(json, json_text);
}

void dpn_json_u64(struct dpn_json *json, const char *key, uint64_t value)
{
    char text[24];
    snprintf(text, sizeof text, "%" PRIu64, value);
    dpn_json_raw(json, key, text);
}

void dpn_json_i64(struct dpn_json *json, const char *key, int64_t value)
{
    char text[24];
    snprintf(text, sizeof text, "%" PRId64, value);
    dpn_json_raw(json, key, text);
}

void dpn_json_double(struct dpn_json *json, const char *key, double value)
{
    char text[DPN_DOUBLE_BYTES];
    dpn_json_raw(json, key, isfinite(value) ? dpn_format_double(value, text) : "null");
}

void dpn_json_bool(struct dpn_json *json, const char *key, int value)
{
    dpn_json_raw(json, key, value ? "true" : "false");
}

void dpn_json_null(struct dpn_json *json, const char *key)
{
    dpn_json_raw(json, key, "null");
}

/* ---- output ---- */

enum dpn_status dpn_json_end_line(struct dpn_json *json, int fd, const char *path)
{
    enum dpn_status status = DPN_OK;
    json_add(json, "\n", 1);
    if (json->failed) status = dpn_fail(DPN_ERR_NOMEM, "no memory for a line of %s", path);

    const char *rest = json->text;
    size_t left = status == DPN_OK ? json->length : 0;
    while (left > 0) {
        ssize_t wrote = write(fd, rest, left);
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote <= 0) {
            status = dpn_fail_errno(DPN_ERR_SYSTEM, wrote < 0 ? errno : EIO, "cannot write %s", path);
            break;
        }
        rest += wrote;
        left -= (size_t)wrote;
    }
    dpn_json_reset(json);
    return status;
}
