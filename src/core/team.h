/* The team of threads of one device: one OpenMP region for the device's whole life (the only one in the
 * program).
 *
 * Work is handed out and joined by our own flags; a team of one opens no region and costs nothing.
 */
#ifndef DPN_CORE_TEAM_H
#define DPN_CORE_TEAM_H

#include <stddef.h>

#include "core/status.h"
#include "core/wait.h"

struct dpn_team;

typedef void dpn_team_fn(void *arg, int thread, int size);

/* Opens a team of SIZE >= 1 threads around the calling thread (its thread 0), has every other thread call
 * bind(bind_arg, thread), runs body(arg, team) on the calling thread, and closes the team when body returns.
 * Getting fewer threads than asked is DPN_ERR_SYSTEM with both numbers. Returns body's status. */
enum dpn_status dpn_team_open(int size, void (*bind)(void *bind_arg, int thread), void *bind_arg,
                              struct dpn_abort *abort,
                              enum dpn_status (*body)(void *arg, struct dpn_team *team), void *arg);

int dpn_team_size(const struct dpn_team *team);

/* Runs fn(arg, thread, size) on every thread of the team, returns when all are done. Only from thread 0. */
void dpn_team_run(struct dpn_team *team, dpn_team_fn *fn, void *arg);

/* Part PART of PARTS of N items: sizes differ by at most one, larger parts first; empty parts have count 0.
 */
static inline void dpn_split(size_t n, size_t parts, size_t part, size_t *first, size_t *count)
{
    size_t base = n / parts, extra = n % parts;
    *first = part * base + (part < extra ? part : extra);
    *count = base + (part < extra ? 1 : 0);
}

#endif
