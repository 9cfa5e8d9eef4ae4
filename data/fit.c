/* Whether what is asked for can fit into this machine's memory at all. */
#include "data/data.h"

#include <unistd.h>

enum dpn_status dpn_data_check_fits(const char *what, uint64_t count, uint64_t size)
{
    long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    if (pages <= 0 || page_bytes <= 0) return DPN_OK; /* unknown: let the allocation decide */
    uint64_t memory = (uint64_t)pages * (uint64_t)page_bytes, bytes;
    if (!__builtin_mul_overflow(count, size, &bytes) && bytes <= memory) return DPN_OK;
    return dpn_fail(DPN_ERR_INPUT, "%s: needs %.6g GB of memory, the machine has %.6g GB", what,
                    1e-9 * (double)count * (double)size, 1e-9 * (double)memory);
}
