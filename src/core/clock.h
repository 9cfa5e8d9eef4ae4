/* Wall-clock time that never steps back. */
#ifndef DPN_CORE_CLOCK_H
#define DPN_CORE_CLOCK_H

#include <stdint.h>
#include <time.h>

/* Nanoseconds of CLOCK_MONOTONIC. Any thread. */
static inline uint64_t dpn_now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* The clock at the first call, which is main's first act: when this process began. One thread. */
uint64_t dpn_process_start_ns(void);

#endif
