/* What a person reads: notes on standard output, warnings and errors on standard error.
 *
 * One line a call, "dpnode: " in front of warnings and errors; callable from any thread (one write a line).
 * The JSON log is json.h; the progress line is train/progress.h.
 */
#ifndef DPN_CORE_LOG_H
#define DPN_CORE_LOG_H

enum dpn_verbosity { DPN_QUIET = -1, DPN_NORMAL = 0, DPN_VERBOSE = 1 };

/* Set once by main before threads start. Quiet drops notes; warnings and errors are always printed. */
void dpn_log_set_verbosity(enum dpn_verbosity verbosity);
enum dpn_verbosity dpn_log_verbosity(void);

void dpn_note(const char *format, ...) __attribute__((format(printf, 1, 2))); /* stdout, unless quiet */
void dpn_note_verbose(const char *format, ...) __attribute__((format(printf, 1, 2))); /* stdout, if verbose */
void dpn_warn(const char *format, ...)
    __attribute__((format(printf, 1, 2))); /* stderr, "dpnode: warning: " */
void dpn_error(const char *format, ...) __attribute__((format(printf, 1, 2))); /* stderr, "dpnode: " */

/* True if writing to stdout or stderr has failed so far (full disk, closed pipe); main turns it into
 * status 1. */
int dpn_log_failed(void);

#endif
