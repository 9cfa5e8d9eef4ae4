/* How one thread waits for another: growing counters, waited for by a short spin, then yields, then a futex
 * of at most 100 ms. Every wait also watches an abort word: nothing waits unbounded.
 *
 * Any thread. Counters wrap around at 2^32; comparisons are modular.
 */
#ifndef DPN_CORE_WAIT_H
#define DPN_CORE_WAIT_H

#include <stdatomic.h>
#include <stdint.h>

#include "core/status.h"

/* First failure of a group of threads: who fails first leaves its status and text, the others see it and
 * leave. */
struct dpn_abort {
    _Alignas(64) _Atomic uint32_t raised; /* 0, then 1 once status and text are being written, then 2 */
    enum dpn_status status;
    char text[1024];
};

/* Records STATUS and the calling thread's error text unless somebody was first. Never blocks. */
void dpn_abort_raise(struct dpn_abort *abort, enum dpn_status status);
static inline int dpn_abort_raised(const struct dpn_abort *abort)
{
    return atomic_load_explicit(&abort->raised, memory_order_acquire) != 0;
}
/* The first cause, copied into this thread's error text, and its status; DPN_OK if none was raised. */
enum dpn_status dpn_abort_cause(struct dpn_abort *abort);

/* A counter that only grows, on a cache line of its own. */
struct dpn_flag {
    _Alignas(64) _Atomic uint32_t value;
    _Atomic uint32_t sleepers;
};

/* Adds N (release) and wakes sleepers; returns the value before. */
uint32_t dpn_flag_add(struct dpn_flag *flag, uint32_t n);
static inline uint32_t dpn_flag_value(const struct dpn_flag *flag) /* acquire */
{
    return atomic_load_explicit(&flag->value, memory_order_acquire);
}
static inline int dpn_flag_reached(const struct dpn_flag *flag,
                                   uint32_t target) /* value >= target, modular; acquire */
{
    return (int32_t)(dpn_flag_value(flag) - target) >= 0;
}

/* Returns DPN_OK once the flag has reached TARGET, or DPN_ERR_ABORTED once ABORT (may be NULL) is raised. */
enum dpn_status dpn_flag_wait(struct dpn_flag *flag, uint32_t target, struct dpn_abort *abort);

/* Whether threads of this process share cores: then waiting does not spin before it yields. Set by main
 * before threads start. */
void dpn_wait_set_oversubscribed(int oversubscribed);

/* A barrier of N threads that can be aborted; usable any number of times. Zeroed memory with n set is ready.
 */
struct dpn_barrier {
    uint32_t n;
    struct dpn_flag arrived;
    struct dpn_flag released;
};
/* Returns DPN_OK when all N have called; DPN_ERR_ABORTED if ABORT is raised. What any thread wrote before it
 * is visible to all after it. */
enum dpn_status dpn_barrier_wait(struct dpn_barrier *barrier, struct dpn_abort *abort);

#endif
