/* When this process began. */
#include "core/clock.h"

uint64_t dpn_process_start_ns(void)
{
    static uint64_t start_ns;
    if (start_ns == 0) start_ns = dpn_now_ns();
    return start_ns;
}
