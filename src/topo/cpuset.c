/* Sets of CPU numbers. */
#include <stdio.h>
#include <string.h>

#include "topo/topo.h"

size_t dpn_cpuset_count(const struct dpn_cpuset *set)
{
    size_t count = 0;
    for (size_t i = 0; i < DPN_MAX_CPUS / 64; i++) count += (size_t)__builtin_popcountll(set->word[i]);
    return count;
}

int dpn_cpuset_next(const struct dpn_cpuset *set, int after)
{
    size_t cpu = (size_t)(after + 1);
    while (cpu < DPN_MAX_CPUS) {
        uint64_t rest = set->word[cpu / 64] >> (cpu % 64);
        if (rest) return (int)cpu + __builtin_ctzll(rest);
        cpu = (cpu / 64 + 1) * 64;
    }
    return -1;
}

/* Last CPU of the run of neighbours that starts at FIRST. */
static int cpuset_run_end(const struct dpn_cpuset *set, int first)
{
    while (dpn_cpuset_has(set, (unsigned)first + 1)) first++;
    return first;
}

const char *dpn_cpuset_text(const struct dpn_cpuset *set, char *buffer, size_t size)
{
    static const char ellipsis[] = "...";
    size_t length = 0, cut = 0; /* cut: the longest whole-item prefix that leaves room for the ellipsis */
    if (size == 0) return "";
    buffer[0] = '\0';
    for (int first = dpn_cpuset_next(set, -1); first >= 0;) {
        int last = cpuset_run_end(set, first);
        int next = dpn_cpuset_next(set, last);
        char item[32];
        int chars = first == last ? snprintf(item, sizeof item, "%d", first)
                                  : snprintf(item, sizeof item, "%d-%d", first, last);
        if (next >= 0) item[chars++] = ',';
        if (length + (size_t)chars + 1 > size) {
            snprintf(buffer + cut, size - cut, "%s", ellipsis);
            return buffer;
        }
        memcpy(buffer + length, item, (size_t)chars);
        length += (size_t)chars;
        buffer[length] = '\0';
        if (length + sizeof ellipsis <= size) cut = length;
        first = next;
    }
    return buffer;
}
