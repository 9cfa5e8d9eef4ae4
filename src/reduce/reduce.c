/* Choosing a reducer. */
#include "reduce/reduce.h"

#include <assert.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "core/parse.h"

enum { REDUCE_MAX_NAMES = 32, REDUCE_REASON_BYTES = 160 };

/* The best exact class; else every class's reason for not being it. */
static enum dpn_status reduce_select_best(const struct dpn_reduce_group *group,
                                          const struct dpn_reducer_class **cls)
{
    char why[512] = "";
    size_t length = 0;
    int best = -1;
    for (int i = 0; dpn_reducer_classes[i]; i++) {
        const struct dpn_reducer_class *candidate = dpn_reducer_classes[i];
        char reason[REDUCE_REASON_BYTES] = "does not keep the order of additions";
        int score = -1;
        if (candidate->flags & DPN_REDUCE_EXACT_TREE) score = candidate->probe(group, reason, sizeof reason);
        if (score > best) {
            best = score;
            *cls = candidate;
        }
        if (score < 0 && length < sizeof why)
            length += (size_t)snprintf(why + length, sizeof why - length, "; %s: %s", candidate->name,
                                       reason);
    }
    if (best >= 0) return DPN_OK;
    return dpn_fail(DPN_ERR_USAGE, "--reducer auto: no reducer can serve these devices%s", why);
}

enum dpn_status dpn_reducer_select(const char *name, const struct dpn_reduce_group *group,
                                   const struct dpn_reducer_class **cls)
{
    const char *words[REDUCE_MAX_NAMES + 2] = {"auto"};
    for (int i = 0; dpn_reducer_classes[i]; i++) {
        assert(i < REDUCE_MAX_NAMES);
        words[i + 1] = dpn_reducer_classes[i]->name;
    }
    int choice;
    DPN_TRY(dpn_parse_choice("--reducer", name, words, &choice));
    if (choice == 0) return reduce_select_best(group, cls);

    char reason[REDUCE_REASON_BYTES] = "it declines";
    *cls = dpn_reducer_classes[choice - 1];
    if ((*cls)->probe(group, reason, sizeof reason) >= 0) return DPN_OK;
    return dpn_fail(DPN_ERR_USAGE, "--reducer %s: %s", name, reason);
}
