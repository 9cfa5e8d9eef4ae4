/* Arenas by mmap, aligned blocks, peak memory: see memory.h. */
#include "core/memory.h"

#include <assert.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static size_t memory_round(size_t value, size_t quantum)
{
    assert(value <= SIZE_MAX - (quantum - 1));
    return (value + quantum - 1) / quantum * quantum;
}

size_t dpn_arena_round(size_t elems)
{
    return memory_round(elems, DPN_ARENA_QUANTUM_ELEMS);
}

size_t dpn_round16(size_t elems)
{
    return memory_round(elems, DPN_CACHE_LINE_BYTES / sizeof(float));
}

static size_t memory_arena_bytes(size_t bytes)
{
    return bytes == 0 ? DPN_PAGE_BYTES : memory_round(bytes, DPN_PAGE_BYTES);
}

enum dpn_status dpn_arena_alloc(void *arena, size_t bytes, const char *what)
{
    void *memory = MAP_FAILED;
    int cause = ENOMEM;
    if (bytes <= PTRDIFF_MAX) {
        memory = mmap(NULL, memory_arena_bytes(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                      -1, 0);
        cause = errno;
    }
    if (memory == MAP_FAILED) {
        memory = NULL;
        memcpy(arena, &memory, sizeof memory);
        return dpn_fail_errno(DPN_ERR_NOMEM, cause, "cannot get %zu bytes for %s", bytes, what);
    }
    dpn_memory_large_pages(memory, bytes);
    memcpy(arena, &memory, sizeof memory); /* *ARENA may be a pointer of any type */
    return DPN_OK;
}

void dpn_memory_large_pages(void *address, size_t bytes)
{
    enum { LARGE = 4 << 20 };
    uintptr_t begin = (uintptr_t)address, end = begin + bytes;
    if (bytes < LARGE) return;
    begin = (begin + DPN_PAGE_BYTES - 1) / DPN_PAGE_BYTES * DPN_PAGE_BYTES;
    madvise((void *)begin, (end - begin) / DPN_PAGE_BYTES * DPN_PAGE_BYTES, MADV_HUGEPAGE);
}

void dpn_arena_free(void *arena, size_t bytes)
{
    if (!arena) return;
    int failed = munmap(arena, memory_arena_bytes(bytes));
    assert(failed == 0);
    (void)failed;
}

enum dpn_status dpn_calloc(void *block, size_t count, size_t size, const char *what)
{
    size_t bytes = 0;
    void *memory = NULL;
    if (!__builtin_mul_overflow(count, size, &bytes) && bytes <= PTRDIFF_MAX) {
        bytes = bytes == 0 ? DPN_CACHE_LINE_BYTES : memory_round(bytes, DPN_CACHE_LINE_BYTES);
        memory = aligned_alloc(DPN_CACHE_LINE_BYTES, bytes);
    }
    memcpy(block, &memory, sizeof memory);
    if (!memory)
        return dpn_fail(DPN_ERR_NOMEM, "cannot get memory for %s: %zu items of %zu bytes", what, count, size);
    memset(memory, 0, bytes);
    return DPN_OK;
}

/* What /proc says under FORMAT, in bytes; 0 where it does not. */
static size_t memory_status(const char *format)
{
    FILE *file = fopen("/proc/self/status", "re");
    if (!file) return 0;
    char line[256];
    unsigned long long kib = 0;
    while (fgets(line, sizeof line, file))
        if (sscanf(line, format, &kib) == 1) break;
    fclose(file);
    return (size_t)kib * 1024;
}

size_t dpn_peak_rss_bytes(void)
{
    return memory_status("VmHWM: %llu kB");
}

size_t dpn_rss_bytes(void)
{
    return memory_status("VmRSS: %llu kB");
}
