/* The one OpenMP region of a device, held open for the device's life; work goes through two of our own flags.
 *
 * A libgomp region costs about 1 us hot, but 100 us after a pause of 20 ms and milliseconds when two threads
 * share a core; a persistent region with flags of our own costs 0.3 us and waits as core/wait.h does.
 */
#include "core/team.h"

#include <omp.h>
#include <stddef.h>

#if defined __SANITIZE_THREAD__
#define TEAM_TSAN 1
#elif defined __has_feature
#if __has_feature(thread_sanitizer)
#define TEAM_TSAN 1
#endif
#endif

#ifdef TEAM_TSAN
#include <sanitizer/tsan_interface.h>
#define TEAM_RELEASE(address) __tsan_release(address)
#define TEAM_ACQUIRE(address) __tsan_acquire(address)
#else
#define TEAM_RELEASE(address) ((void)(address))
#define TEAM_ACQUIRE(address) ((void)(address))
#endif

struct dpn_team {
    int size;
    int stop; /* read by workers after `go` */
    dpn_team_fn *fn;
    void *arg;
    uint32_t jobs;         /* handed out so far; thread 0 only */
    struct dpn_flag go;    /* +1 a job */
    struct dpn_flag ready; /* +1 by every worker that is bound and listening */
    struct dpn_flag done;  /* +1 by every worker a job */
};

static void team_work(struct dpn_team *team, int thread)
{
    for (uint32_t job = 1;; job++) {
        /* Not abortable: thread 0 always sends `stop`, and must not leave while a worker uses its buffers. */
        dpn_flag_wait(&team->go, job, NULL);
        if (team->stop) return;
        team->fn(team->arg, thread, team->size);
        dpn_flag_add(&team->done, 1);
    }
}

int dpn_team_size(const struct dpn_team *team)
{
    return team->size;
}

void dpn_team_run(struct dpn_team *team, dpn_team_fn *fn, void *arg)
{
    if (team->size == 1) {
        fn(arg, 0, 1);
        return;
    }
    team->fn = fn;
    team->arg = arg;
    team->jobs++;
    dpn_flag_add(&team->go, 1);
    fn(arg, 0, team->size);
    dpn_flag_wait(&team->done, team->jobs * (uint32_t)(team->size - 1), NULL);
}

/* What a region's threads share while it is open. */
struct team_opening {
    struct dpn_team team;
    void (*bind)(void *bind_arg, int thread);
    void *bind_arg;
    struct dpn_abort *abort;
    enum dpn_status (*body)(void *arg, struct dpn_team *team);
    void *arg;
    enum dpn_status status; /* body's; thread 0 only */
};

static enum dpn_status team_lead(struct team_opening *opening)
{
    struct dpn_team *team = &opening->team;
    int got = omp_get_num_threads();
    if (got != team->size)
        return dpn_fail(DPN_ERR_SYSTEM, "a device's team wants %d threads and got %d (OMP_THREAD_LIMIT?)",
                        team->size, got);
    DPN_TRY(dpn_flag_wait(&team->ready, (uint32_t)(team->size - 1), opening->abort));
    return opening->body(opening->arg, team);
}

/* Fork and join are ordered by the OpenMP runtime, which is not instrumented: TSan is told what it cannot
 * see. */
static __attribute__((noinline)) void team_thread(struct team_opening *opening)
{
    struct dpn_team *team = &opening->team;
    int thread = omp_get_thread_num();
    TEAM_ACQUIRE(opening);
    if (thread == 0) {
        opening->status = team_lead(opening);
        team->stop = 1;
        dpn_flag_add(&team->go, 1);
    } else {
        if (opening->bind) opening->bind(opening->bind_arg, thread);
        dpn_flag_add(&team->ready, 1);
        team_work(team, thread);
    }
    TEAM_RELEASE(opening);
}

/* Not instrumented: the compiler's record of shared variables is read before anything could be annotated. */
static __attribute__((noinline, no_sanitize("thread"))) void team_region(struct team_opening *opening,
                                                                         int size)
{
#pragma omp parallel num_threads(size)
    team_thread(opening);
}

enum dpn_status dpn_team_open(int size, void (*bind)(void *bind_arg, int thread), void *bind_arg,
                              struct dpn_abort *abort,
                              enum dpn_status (*body)(void *arg, struct dpn_team *team), void *arg)
{
    struct team_opening opening = {.team = {.size = size},
                                   .bind = bind,
                                   .bind_arg = bind_arg,
                                   .abort = abort,
                                   .body = body,
                                   .arg = arg};
    if (size == 1) return body(arg, &opening.team);
    omp_set_dynamic(0);
    TEAM_RELEASE(&opening);
    team_region(&opening, size);
    TEAM_ACQUIRE(&opening);
    return opening.status;
}
