/* Page-aligned arenas and small aligned blocks.
 *
 * An arena is untouched when it is handed out: its pages are placed by whichever thread writes them first, so
 * the device thread that will use an arena must be the first to touch it, after it has bound itself.
 */
#ifndef DPN_CORE_MEMORY_H
#define DPN_CORE_MEMORY_H

#include <stddef.h>

#include "core/status.h"

enum { DPN_ARENA_QUANTUM_ELEMS = 1024, DPN_CACHE_LINE_BYTES = 64, DPN_PAGE_BYTES = 4096 };

/* ELEMS floats rounded up to the arena quantum (1,024 floats = one 4 KiB page). */
size_t dpn_arena_round(size_t elems);

/* ELEMS rounded up to a multiple of 16 floats, one cache line: the row stride of activations and panels. */
size_t dpn_round16(size_t elems);

/* *ARENA := page-aligned zero memory of at least BYTES bytes (0 counts as 1), by mmap, untouched; WHAT names
 * it in the error text. Free with dpn_arena_free and the same BYTES. Errors: DPN_ERR_NOMEM. Any thread. */
enum dpn_status dpn_arena_alloc(void *arena, size_t bytes, const char *what);
void dpn_arena_free(void *arena, size_t bytes); /* arena NULL: nothing */

/* Asks for large pages in the range (not yet touched); blocks below 4 MiB are left alone. A hint. */
void dpn_memory_large_pages(void *address, size_t bytes);

/* *BLOCK := zeroed block of COUNT items of SIZE bytes, 64-byte aligned; overflow is checked.
 * Free with free(). Errors: DPN_ERR_NOMEM. Any thread. */
enum dpn_status dpn_calloc(void *block, size_t count, size_t size, const char *what);

/* Asks for the cache lines of the range in a state in which they can be written: takes them from other cores.
 */
static inline void dpn_prefetch_write(const void *address, size_t bytes)
{
    const char *line = address;
    for (size_t i = 0; i < bytes; i += DPN_CACHE_LINE_BYTES) {
#if defined __x86_64__
        /* __builtin_prefetch(., 1) gives a prefetch for reading unless -mprfchw; CPUs without it do nothing.
         */
        __asm__ volatile("prefetchw %0" : : "m"(line[i]));
#else
        __builtin_prefetch(line + i, 1);
#endif
    }
}

/* Peak resident set of the process in bytes (VmHWM of /proc/self/status); 0 if unknown. */
size_t dpn_peak_rss_bytes(void);
/* The resident set now (VmRSS), likewise. */
size_t dpn_rss_bytes(void);

#endif
