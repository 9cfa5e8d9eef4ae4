/* The blocks of text at the start and the end of a run; report.c says the rest.
 */
#ifndef DPN_TRAIN_REPORT_TEXT_H
#define DPN_TRAIN_REPORT_TEXT_H

#include "train/trainer.h"

/* PHASES: mean seconds per device, DPN_N_PHASES of them; TOTAL: seconds since the process started. */
void dpn_report_closing(struct dpn_run *run, const double *phases, double total);

#endif
