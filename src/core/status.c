/* Error texts, one a thread: see status.h. */
#include "core/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { STATUS_TEXT_BYTES = 1024 };

static _Thread_local char status_text[STATUS_TEXT_BYTES];

const char *dpn_status_name(enum dpn_status status)
{
    switch (status) {
    case DPN_OK: return "done";
    case DPN_ERR_USAGE: return "bad usage";
    case DPN_ERR_INPUT: return "bad input";
    case DPN_ERR_NOMEM: return "out of memory";
    case DPN_ERR_SYSTEM: return "system error";
    case DPN_ERR_NUMERIC: return "not finite";
    case DPN_ERR_ABORTED: return "aborted";
    case DPN_ERR_CONTRACT: return "broken contract";
    case DPN_DECLINED: return "declined";
    }
    return "unknown status";
}

/* Text may quote file names and arguments: it must stay one line and must not steer the terminal. */
static void status_store(const char *text)
{
    size_t n = 0;
    for (; text[n] != '\0' && n + 1 < sizeof status_text; n++) {
        unsigned char c = (unsigned char)text[n];
        if (c == '\n' || c == '\t') status_text[n] = ' ';
        else status_text[n] = (char)(c < 0x20 || c == 0x7f ? '?' : c);
    }
    status_text[n] = '\0';
}

enum dpn_status dpn_fail(enum dpn_status status, const char *format, ...)
{
    /* Not straight into status_text: the arguments may include the text that is being replaced. */
    char text[STATUS_TEXT_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    status_store(text);
    return status;
}

enum dpn_status dpn_fail_errno(enum dpn_status status, int errnum, const char *format, ...)
{
    char text[STATUS_TEXT_BYTES], reason[128];
    const char *why = strerror_r(errnum, reason, sizeof reason);
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    /* A long file name must not push the reason out. */
    size_t room = sizeof text - strlen(why) - sizeof ": ";
    size_t length = strlen(text);
    if (length > room) length = room;
    snprintf(text + length, sizeof text - length, ": %s", why);
    status_store(text);
    return status;
}

const char *dpn_error_text(void)
{
    return status_text;
}
