/* Status codes and the calling thread's error text.
 *
 * Every function that can fail for a reason outside the program returns an enum dpn_status and leaves one
 * line of text for its thread; our own bugs are assert()s.  The text names the option or file and the bad
 * value, has no trailing newline, and needs nothing added to be printed after "dpnode: ".
 */
#ifndef DPN_CORE_STATUS_H
#define DPN_CORE_STATUS_H

enum dpn_status {
    DPN_OK = 0,
    DPN_ERR_USAGE = -1,    /* bad option, value or combination of them: exit status 2 */
    DPN_ERR_INPUT = -2,    /* a file that is missing, unreadable or malformed: exit status 2 before step 1 */
    DPN_ERR_NOMEM = -3,    /* memory could not be had */
    DPN_ERR_SYSTEM = -4,   /* a system call or library failed */
    DPN_ERR_NUMERIC = -5,  /* a loss or gradient that is not finite */
    DPN_ERR_ABORTED = -6,  /* another thread failed first; its text is the cause */
    DPN_ERR_CONTRACT = -7, /* the checking reducer found a broken contract */
    DPN_DECLINED = -8,     /* not an error: this plug-in cannot serve here, the text says why */
};

/* The constant's name in words ("bad usage", ...); never NULL. */
const char *dpn_status_name(enum dpn_status status);

/* Sets the calling thread's error text (cut at 1,023 bytes, newlines replaced) and returns STATUS. */
enum dpn_status dpn_fail(enum dpn_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* As dpn_fail, with ": " and the text of errno value ERRNUM added. */
enum dpn_status dpn_fail_errno(enum dpn_status status, int errnum, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The calling thread's last error text; "" if none. Valid until the thread's next dpn_fail. */
const char *dpn_error_text(void);

/* Returns from the enclosing function with the status of CALL unless that is DPN_OK. */
#define DPN_TRY(call)                                          \
    do {                                                       \
        enum dpn_status dpn_try_status_ = (call);              \
        if (dpn_try_status_ != DPN_OK) return dpn_try_status_; \
    } while (0)

#endif
