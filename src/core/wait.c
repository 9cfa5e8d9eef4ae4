/* Spin, yield, futex: see wait.h. */
#include "core/wait.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stddef.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* A pause is about 40 ns on the CPUs this was tuned on and a yield with nobody to yield to about 300 ns, so a
 * wait spins for some 4 us, yields for about a millisecond and only then sleeps: nothing in a step of
 * microseconds sleeps. */
enum { WAIT_SPINS = 100, WAIT_YIELDS = 4000, WAIT_SLEEP_NS = 100 * 1000 * 1000 };

static int wait_spins = WAIT_SPINS;

void dpn_wait_set_oversubscribed(int oversubscribed)
{
    wait_spins = oversubscribed ? 1 : WAIT_SPINS;
}

static void wait_pause(void)
{
#if defined __x86_64__ || defined __i386__
    __builtin_ia32_pause();
#endif
}

void dpn_abort_raise(struct dpn_abort *abort, enum dpn_status status)
{
    uint32_t unraised = 0;
    if (!atomic_compare_exchange_strong(&abort->raised, &unraised, 1)) return;
    abort->status = status;
    strncpy(abort->text, dpn_error_text(), sizeof abort->text - 1);
    atomic_store_explicit(&abort->raised, 2, memory_order_release);
}

enum dpn_status dpn_abort_cause(struct dpn_abort *abort)
{
    if (!dpn_abort_raised(abort)) return DPN_OK;
    while (atomic_load_explicit(&abort->raised, memory_order_acquire) != 2) sched_yield();
    return dpn_fail(abort->status, "%s", abort->text);
}

/* What was waited for may have come just before somebody failed, and then it counts. */
static enum dpn_status wait_aborted(const struct dpn_flag *flag, uint32_t target)
{
    if (dpn_flag_reached(flag, target)) return DPN_OK;
    return dpn_fail(DPN_ERR_ABORTED, "stopped because another thread failed");
}

uint32_t dpn_flag_add(struct dpn_flag *flag, uint32_t n)
{
    /* Both accesses are sequentially consistent so that either this thread sees the sleeper, or the sleeper
     * sees the new value before it sleeps (wait_sleep makes the same two accesses the other way round). */
    uint32_t before = atomic_fetch_add_explicit(&flag->value, n, memory_order_seq_cst);
    if (atomic_load_explicit(&flag->sleepers, memory_order_seq_cst) != 0)
        syscall(SYS_futex, &flag->value, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
    return before;
}

static void wait_sleep(struct dpn_flag *flag, uint32_t target)
{
    static const struct timespec limit = {0, WAIT_SLEEP_NS};
    atomic_fetch_add_explicit(&flag->sleepers, 1, memory_order_seq_cst);
    uint32_t value = atomic_load_explicit(&flag->value, memory_order_seq_cst);
    if ((int32_t)(value - target) < 0)
        syscall(SYS_futex, &flag->value, FUTEX_WAIT_PRIVATE, value, &limit, NULL, 0);
    atomic_fetch_sub_explicit(&flag->sleepers, 1, memory_order_seq_cst);
}

enum dpn_status dpn_flag_wait(struct dpn_flag *flag, uint32_t target, struct dpn_abort *abort)
{
    for (int i = 0; i < wait_spins; i++) {
        if (dpn_flag_reached(flag, target)) return DPN_OK;
        wait_pause();
    }
    for (int i = 0; i < WAIT_YIELDS; i++) {
        if (dpn_flag_reached(flag, target)) return DPN_OK;
        if (abort && dpn_abort_raised(abort)) return wait_aborted(flag, target);
        sched_yield();
    }
    while (!dpn_flag_reached(flag, target)) {
        if (abort && dpn_abort_raised(abort)) return wait_aborted(flag, target);
        wait_sleep(flag, target);
    }
    return DPN_OK;
}

enum dpn_status dpn_barrier_wait(struct dpn_barrier *barrier, struct dpn_abort *abort)
{
    /* `released` cannot move before this thread has arrived, so reading it first names this round. */
    uint32_t target = dpn_flag_value(&barrier->released) + 1;
    if (dpn_flag_add(&barrier->arrived, 1) + 1 == barrier->n) {
        atomic_store_explicit(&barrier->arrived.value, 0,
                              memory_order_relaxed); /* ordered by the release below */
        dpn_flag_add(&barrier->released, 1);
        return DPN_OK;
    }
    return dpn_flag_wait(&barrier->released, target, abort);
}
