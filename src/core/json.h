/* A writer for JSON: one object a line, numbers with enough digits to come back as they were.
 *
 * Builds text in a growing buffer; nothing is written until dpn_json_end_line hands a whole line to the file
 * in one write. Not thread-safe: one writer per thread or a lock by the owner.
 */
#ifndef DPN_CORE_JSON_H
#define DPN_CORE_JSON_H

#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

struct dpn_json {
    char *text; /* always NUL-terminated once something was added */
    size_t length, capacity;
    int first;  /* no comma wanted before the next item */
    int failed; /* out of memory: reported by dpn_json_end_line */
};

void dpn_json_init(struct dpn_json *json);
void dpn_json_free(struct dpn_json *json);
void dpn_json_reset(struct dpn_json *json); /* empty again, memory kept */

/* Inside an object KEY is the member's name; inside an array it is NULL. */
void dpn_json_open_object(struct dpn_json *json, const char *key);
void dpn_json_close_object(struct dpn_json *json);
void dpn_json_open_array(struct dpn_json *json, const char *key);
void dpn_json_close_array(struct dpn_json *json);
/* Escaped; invalid UTF-8 bytes become U+FFFD. */
void dpn_json_string(struct dpn_json *json, const char *key, const char *value);
void dpn_json_u64(struct dpn_json *json, const char *key, uint64_t value);
void dpn_json_i64(struct dpn_json *json, const char *key, int64_t value);
/* The shortest of %.15g..%.17g that round-trips; NaN and infinities: null. */
void dpn_json_double(struct dpn_json *json, const char *key, double value);
void dpn_json_bool(struct dpn_json *json, const char *key, int value);
void dpn_json_null(struct dpn_json *json, const char *key);
void dpn_json_raw(struct dpn_json *json, const char *key, const char *json_text); /* already JSON */

/* Adds a newline, writes all to FD in one go (retrying EINTR and short writes), empties the buffer.
 * PATH names the file in errors: DPN_ERR_SYSTEM, DPN_ERR_NOMEM. */
enum dpn_status dpn_json_end_line(struct dpn_json *json, int fd, const char *path);

#endif
