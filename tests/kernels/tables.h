/* What the kernel suites share: the tables of the instruction sets that this CPU has. A suite names its sets
 * in isa_names[N_TABLES] and has them opened before its first test.
 */
#ifndef DPN_TESTS_KERNELS_TABLES_H
#define DPN_TESTS_KERNELS_TABLES_H

#include <stddef.h>

#include "kernels/kernels.h"

/* tables[t]: the table of names[t], or NULL, said, if this CPU cannot run it. */
static void select_tables(const char *const *names, size_t n, const struct dpn_kernels **tables)
{
    for (size_t t = 0; t < n; t++) {
        if (dpn_kernels_select(names[t], &tables[t]) != DPN_OK) {
            print_message("SKIP %s: %s\n", names[t], dpn_error_text());
            tables[t] = NULL;
        }
    }
}

#endif
