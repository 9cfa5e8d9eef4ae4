/* Notes, warnings and errors, one write a line: see log.h. */
#include "core/log.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LOG_LINE_BYTES = 2048, LOG_STALL_MS = 2000 };

static enum dpn_verbosity log_verbosity = DPN_NORMAL;
static atomic_int log_failed;

void dpn_log_set_verbosity(enum dpn_verbosity verbosity)
{
    log_verbosity = verbosity;
}

enum dpn_verbosity dpn_log_verbosity(void)
{
    return log_verbosity;
}

static void log_write(int fd, const char *line, size_t length)
{
    while (length > 0) {
        ssize_t wrote = write(fd, line, length);
        if (wrote > 0) {
            line += wrote;
            length -= (size_t)wrote;
            continue;
        }
        if (wrote < 0 && errno == EINTR) continue;
        /* A terminal shared with another program may have been left non-blocking. */
        struct pollfd ready = {.fd = fd, .events = POLLOUT};
        if (wrote < 0 && errno == EAGAIN && poll(&ready, 1, LOG_STALL_MS) > 0) continue;
        atomic_store(&log_failed, 1);
        return;
    }
}

__attribute__((format(printf, 3, 0))) static void log_line(int fd, const char *prefix, const char *format,
                                                           va_list args)
{
    char small[LOG_LINE_BYTES], *line = small;
    size_t prefix_length = strlen(prefix);
    va_list again;
    va_copy(again, args);
    int length = vsnprintf(small + prefix_length, sizeof small - prefix_length, format, args);
    if (length < 0) {
        va_end(again);
        atomic_store(&log_failed, 1);
        return;
    }
    size_t text_length = (size_t)length;
    if (text_length >= sizeof small - prefix_length - 1) {
        char *big = malloc(prefix_length + text_length + 2);
        if (big) {
            vsnprintf(big + prefix_length, text_length + 1, format, again);
            line = big;
        } else {
            text_length = sizeof small - prefix_length - 2;
        }
    }
    va_end(again);
    memcpy(line, prefix, prefix_length);
    for (char *c = line + prefix_length; c < line + prefix_length + text_length; c++)
        if (*c == '\n') *c = ' ';
    line[prefix_length + text_length] = '\n';

    /* What was printed through stdio comes first. */
    if (fd == STDOUT_FILENO) fflush(stdout);
    log_write(fd, line, prefix_length + text_length + 1);
    if (line != small) free(line);
}

void dpn_note(const char *format, ...)
{
    if (log_verbosity < DPN_NORMAL) return;
    va_list args;
    va_start(args, format);
    log_line(STDOUT_FILENO, "", format, args);
    va_end(args);
}

void dpn_note_verbose(const char *format, ...)
{
    if (log_verbosity < DPN_VERBOSE) return;
    va_list args;
    va_start(args, format);
    log_line(STDOUT_FILENO, "", format, args);
    va_end(args);
}

void dpn_warn(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    log_line(STDERR_FILENO, "dpnode: warning: ", format, args);
    va_end(args);
}

void dpn_error(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    log_line(STDERR_FILENO, "dpnode: ", format, args);
    va_end(args);
}

int dpn_log_failed(void)
{
    /* Help and reports are printed through stdio, whose failures show only once it has been flushed. */
    int stdio_failed = fflush(stdout) != 0 || ferror(stdout) || ferror(stderr);
    return stdio_failed || atomic_load(&log_failed);
}
