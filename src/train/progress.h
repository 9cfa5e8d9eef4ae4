/* The helper thread of a run: signals and the progress line. Device threads only read and write words here.
 */
#ifndef DPN_TRAIN_PROGRESS_H
#define DPN_TRAIN_PROGRESS_H

#include <stdatomic.h>
#include <stdint.h>

#include "core/status.h"

struct dpn_progress;

enum dpn_progress_when { DPN_PROGRESS_AUTO, DPN_PROGRESS_ALWAYS, DPN_PROGRESS_NEVER };

/* Blocks INT and TERM for this thread and those it will start. First thing in a command that wants them. */
void dpn_progress_block_signals(void);

/* Starts the helper thread: it takes INT and TERM (the first asks for a stop, the second ends the process at
 * once with 128 + signal) and shows the line. A terminal shows a line that is redrawn; AUTO shows nothing
 * elsewhere, ALWAYS a plain line every 10 s. */
enum dpn_status dpn_progress_start(enum dpn_progress_when when, struct dpn_progress **progress);
void dpn_progress_stop(struct dpn_progress *progress); /* joins it; NULL: nothing */

/* The first signal that arrived, 0 if none. Any thread, wait-free. */
int dpn_progress_signal(const struct dpn_progress *progress);

/* What the line shows. Any one thread; SAMPLES done of TOTAL in this epoch, EPOCH of EPOCHS (1-based). */
void dpn_progress_epoch(struct dpn_progress *progress, uint64_t epoch, uint64_t epochs, uint64_t total);
void dpn_progress_update(struct dpn_progress *progress, uint64_t samples, double loss);
/* Takes the line away before something else is printed. */
void dpn_progress_clear(struct dpn_progress *progress);

#endif
