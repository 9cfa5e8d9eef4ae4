/* The helper thread: takes signals with sigtimedwait, redraws the progress line in between. */
#include "train/progress.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"

enum { PROGRESS_TICK_NS = 200 * 1000 * 1000, PROGRESS_PLAIN_TICKS = 50 };

struct dpn_progress {
    pthread_t thread;
    int tty, plain;
    _Atomic int stop;
    _Atomic int signal;
    _Alignas(64) _Atomic uint64_t samples; /* written every step by device 0: a line of its own */
    _Atomic uint64_t loss_bits;
    _Alignas(64) _Atomic uint64_t epoch, epochs, total, epoch_start_ns;
    pthread_mutex_t line; /* held while the line is drawn or taken away */
    int drawn;
};

static void progress_signals(sigset_t *set)
{
    sigemptyset(set);
    sigaddset(set, SIGINT);
    sigaddset(set, SIGTERM);
}

void dpn_progress_block_signals(void)
{
    sigset_t set;
    progress_signals(&set);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN); /* a closed pipe becomes a write error, which is reported */
    signal(SIGXFSZ, SIG_IGN); /* likewise a file size limit */
}

static void progress_draw(struct dpn_progress *progress)
{
    uint64_t epoch = atomic_load(&progress->epoch), total = atomic_load(&progress->total);
    uint64_t samples = atomic_load_explicit(&progress->samples, memory_order_relaxed);
    uint64_t bits = atomic_load_explicit(&progress->loss_bits, memory_order_relaxed);
    double seconds = (double)(dpn_now_ns() - atomic_load(&progress->epoch_start_ns)) * 1e-9, loss;
    char line[160];
    if (epoch == 0 || samples == 0 || seconds <= 0) return;
    memcpy(&loss, &bits, sizeof loss);
    double rate = (double)samples / seconds;
    int n = snprintf(line, sizeof line,
                     "%sepoch %llu/%llu | %3.0f%% | loss %.4f | %.0f img/s | %.0f s left%s",
                     progress->tty ? "\r\033[K" : "", (unsigned long long)epoch,
                     (unsigned long long)atomic_load(&progress->epochs),
                     100.0 * (double)samples / (double)total, loss, rate,
                     samples < total ? (double)(total - samples) / rate : 0.0, progress->tty ? "" : "\n");
    pthread_mutex_lock(&progress->line);
    if (write(progress->tty ? STDERR_FILENO : STDOUT_FILENO, line, (size_t)n) == n)
        progress->drawn = progress->tty;
    pthread_mutex_unlock(&progress->line);
}

static void progress_take(struct dpn_progress *progress, int signal_number)
{
    int none = 0;
    if (!atomic_compare_exchange_strong(&progress->signal, &none, signal_number)) {
        dpn_error("second signal: stopping at once");
        _exit(128 + signal_number);
    }
    dpn_progress_clear(progress);
    dpn_warn("%s: stopping after this step (again: at once)", signal_number == SIGINT ? "SIGINT" : "SIGTERM");
}

static void *progress_main(void *arg)
{
    struct dpn_progress *progress = arg;
    const struct timespec tick = {0, PROGRESS_TICK_NS};
    sigset_t set;
    progress_signals(&set);
    for (unsigned ticks = 1; !atomic_load(&progress->stop); ticks++) {
        int got = sigtimedwait(&set, NULL, &tick);
        if (atomic_load(&progress->stop)) break;
        if (got == SIGINT || got == SIGTERM) progress_take(progress, got);
        else if (progress->tty || (progress->plain && ticks % PROGRESS_PLAIN_TICKS == 0))
            progress_draw(progress);
    }
    return NULL;
}

enum dpn_status dpn_progress_start(enum dpn_progress_when when, struct dpn_progress **out)
{
    struct dpn_progress *progress;
    DPN_TRY(dpn_calloc(&progress, 1, sizeof *progress, "progress"));
    progress->tty = when != DPN_PROGRESS_NEVER && isatty(STDERR_FILENO);
    progress->plain = when == DPN_PROGRESS_ALWAYS && !progress->tty;
    pthread_mutex_init(&progress->line, NULL);
    int error = pthread_create(&progress->thread, NULL, progress_main, progress);
    if (error) {
        free(progress);
        return dpn_fail_errno(DPN_ERR_SYSTEM, error, "cannot start the helper thread");
    }
    *out = progress;
    return DPN_OK;
}

void dpn_progress_stop(struct dpn_progress *progress)
{
    if (!progress) return;
    atomic_store(&progress->stop, 1);
    /* Wakes sigtimedwait early; sent to that thread alone, and `stop` is looked at first. */
    pthread_kill(progress->thread, SIGINT);
    pthread_join(progress->thread, NULL);
    dpn_progress_clear(progress);
    pthread_mutex_destroy(&progress->line);
    free(progress);
}

int dpn_progress_signal(const struct dpn_progress *progress)
{
    return progress ? atomic_load_explicit(&progress->signal, memory_order_relaxed) : 0;
}

void dpn_progress_epoch(struct dpn_progress *progress, uint64_t epoch, uint64_t epochs, uint64_t total)
{
    if (!progress) return;
    atomic_store(&progress->samples, 0);
    atomic_store(&progress->epochs, epochs);
    atomic_store(&progress->total, total);
    atomic_store(&progress->epoch_start_ns, dpn_now_ns());
    atomic_store(&progress->epoch, epoch);
}

void dpn_progress_update(struct dpn_progress *progress, uint64_t samples, double loss)
{
    uint64_t bits;
    if (!progress) return;
    memcpy(&bits, &loss, sizeof bits);
    atomic_store_explicit(&progress->samples, samples, memory_order_relaxed);
    atomic_store_explicit(&progress->loss_bits, bits, memory_order_relaxed);
}

void dpn_progress_clear(struct dpn_progress *progress)
{
    if (!progress) return;
    pthread_mutex_lock(&progress->line);
    if (progress->drawn && write(STDERR_FILENO, "\r\033[K", 4) < 0) progress->tty = 0;
    progress->drawn = 0;
    pthread_mutex_unlock(&progress->line);
}
