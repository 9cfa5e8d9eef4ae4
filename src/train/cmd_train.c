/* `dpnode train` and `dpnode eval`: the same set-up and the same device threads. */
#include "core/clock.h"
#include "core/log.h"
#include "train/command.h"
#include "train/trainer.h"

#include <string.h>

static enum dpn_progress_when train_progress_when(const struct dpn_config *config)
{
    if (config->quiet || !strcmp(config->progress, "never")) return DPN_PROGRESS_NEVER;
    return strcmp(config->progress, "always") ? DPN_PROGRESS_AUTO : DPN_PROGRESS_ALWAYS;
}

/* From a run that is set up to its last word. */
static enum dpn_status train_go(struct dpn_run *run, int *exit_status)
{
    enum dpn_status status = dpn_device_group_run(&run->group, dpn_trainer_body, run);
    dpn_trainer_close(run);
    /* Bad input found before the first step is the user's to mend; anything later is a failure while running.
     */
    if (status != DPN_OK && run->totals.steps > 0) *exit_status = 1;
    DPN_TRY(status);
    DPN_TRY(dpn_report_summary(run));
    if (run->stop_signal) *exit_status = 128 + run->stop_signal;
    return DPN_OK;
}

static enum dpn_status train_command(struct dpn_config *config, int training, int *exit_status)
{
    struct dpn_run run;
    struct dpn_progress *progress = NULL;
    uint64_t start_ns = dpn_process_start_ns();

    dpn_progress_block_signals();
    DPN_TRY(dpn_progress_start(train_progress_when(config), &progress));
    enum dpn_status status = dpn_run_open(&run, config, training, start_ns);
    run.progress = progress;
    if (status == DPN_OK && config->dry_run) {
        dpn_report_start(&run);
        dpn_memory_report(&run);
    } else if (status == DPN_OK && !run.finished) {
        status = train_go(&run, exit_status);
    }
    dpn_progress_stop(progress);
    dpn_run_close(&run);
    return status;
}

static enum dpn_status train_run(struct dpn_config *config, const char *positional, int *exit_status)
{
    (void)positional;
    return train_command(config, 1, exit_status);
}

static enum dpn_status eval_run(struct dpn_config *config, const char *positional, int *exit_status)
{
    (void)positional;
    if (*config->init && *config->checkpoint)
        return dpn_fail(DPN_ERR_USAGE, "--init and --checkpoint cannot both be given");
    return train_command(config, 0, exit_status);
}

const struct dpn_command dpn_command_train = {
    .name = "train",
    .summary = "train a model data-parallel on the devices of this machine (the default command)",
    .mask = DPN_CMD_TRAIN,
    .run = train_run,
};

const struct dpn_command dpn_command_eval = {
    .name = "eval",
    .summary = "evaluate weights (--init or --checkpoint) on the data set's test part",
    .mask = DPN_CMD_EVAL,
    .run = eval_run,
};
