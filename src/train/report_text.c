/* The header block of a run and its closing breakdown, for people.
 */
#include "train/report_text.h"

#include <stdio.h>
#include <string.h>

#include "core/log.h"
#include "core/memory.h"
#include "train/placement.h"

static void text_data(const struct dpn_run *run)
{
    const struct dpn_dataset *d = &run->data;
    dpn_note("data      %s%s%s | train %zu, test %zu | %zux%zux%zu, %zu classes | checksum %08x | %s",
             d->name, *d->path ? " in " : "", d->path, d->train.n, d->test.n, d->channels, d->height,
             d->width, d->classes, d->train.crc, d->normalize);
    if (!d->real)
        dpn_note(
            "          synthetic data: generated patterns, not a real data set; its accuracy means nothing");
    if (d->test.n == 0) dpn_note("          no test part: nothing will be evaluated");
}

static void text_batch(const struct dpn_run *run)
{
    size_t most = 0, least = run->batch;
    char per_device[48];
    for (size_t m = 0; m < run->group.n; m++) {
        const struct dpn_replica *r = &run->replicas[m];
        size_t begin, end, rows;
        dpn_split(run->batch, run->shards, r->first_shard, &begin, &rows);
        dpn_split(run->batch, run->shards, r->first_shard + r->n_shards - 1, &end, &rows);
        rows += end - begin;
        if (rows > most) most = rows;
        if (rows < least) least = rows;
    }
    if (most == least) snprintf(per_device, sizeof per_device, "%zu", most);
    else snprintf(per_device, sizeof per_device, "%zu to %zu", least, most);
    dpn_note("batch     %zu global, %s per device, %llu shard(s) | %zu steps per epoch (last one %zu)",
             run->batch, per_device, (unsigned long long)run->shards, run->sampler.steps,
             dpn_sampler_step_samples(&run->sampler, run->sampler.steps - 1));
}

static void text_compute(const struct dpn_run *run)
{
    dpn_note("compute   %s kernels | BLAS %s, 1 thread a device thread%s%s", run->kernels->isa,
             run->blas.loaded ? run->blas.core : "own", run->blas.loaded ? " | " : "", run->blas.config);
    if (*run->blas.why) dpn_note("          %s", run->blas.why);
}

static void text_promise(const struct dpn_run *run)
{
    const struct dpn_reducer_class *r = run->reducer_class;
    int exact = (r->flags & DPN_REDUCE_EXACT_TREE) != 0;
    dpn_note("mode      %s | reducer %s (%s), %zu bucket(s)%s%s", run->mode->name, r->name,
             strcmp(run->config->reducer, "auto") ? "as asked" : "best that serves this group",
             run->plan.n_buckets, run->fused ? ", fused update" : "",
             run->config->check_reduce ? ", checked" : "");
    const char *promise = "same bits for these shards on any number of devices, in both modes";
    if (run->grad_sum) promise = "same bits from run to run; --grad-op sum depends on the number of devices";
    if (run->config->batch_per_device)
        promise = "same bits from run to run; --batch-per-device depends on the number of devices";
    if (!exact) promise = "same bits from run to run at most";
    if (run->training) dpn_note("promise   %s", promise);
}

/* Every option in force, wrapped. */
static void text_options(const struct dpn_run *run)
{
    enum dpn_command_mask command = run->training ? DPN_CMD_TRAIN : DPN_CMD_EVAL;
    char line[128] = "options  ", value[512], item[640];
    for (size_t i = 0; i < dpn_n_options; i++) {
        const struct dpn_option *option = &dpn_options[i];
        if (!(option->commands & command)) continue;
        dpn_option_text(run->config, option, value, sizeof value);
        if (!*value || (option->kind == DPN_OPT_FLAG && !strcmp(value, "false"))) continue;
        snprintf(item, sizeof item, " %s%s%s", option->name, option->kind == DPN_OPT_FLAG ? "" : "=",
                 option->kind == DPN_OPT_FLAG ? "" : value);
        if (strlen(line) + strlen(item) > 100) {
            dpn_note("%s", line);
            strcpy(line, "         ");
        }
        if (strlen(line) + strlen(item) < sizeof line) strcat(line, item);
        else dpn_note("         %s", item);
    }
    if (strspn(line, " ") < strlen(line)) dpn_note("%s", line);
}

void dpn_report_start(struct dpn_run *run)
{
    dpn_note("dpnode %s", DPN_VERSION);
    text_data(run);
    dpn_note("model     %s | %zu parameters", run->model->spec, run->model->parameters);
    dpn_placement_print(&run->group);
    text_compute(run);
    text_promise(run);
    if (run->training) {
        text_batch(run);
        dpn_note("optimizer %s | lr %g%s | %d state slot(s)", run->optimizer->name, run->schedule.base_lr,
                 run->config->scale_lr ? " (scaled by the number of devices)" : "", run->n_slots);
        if (run->config->clip_norm > 0)
            dpn_note("          gradient norm clipped at %g: this takes the reducer's plain path",
                     run->config->clip_norm);
    }
    if (run->schedule_short)
        dpn_warn("--schedule cosine ends at step %llu (--epochs %llu), before --steps %llu",
                 (unsigned long long)run->schedule.total_steps, (unsigned long long)run->config->epochs,
                 (unsigned long long)run->config->steps);
    if (run->fused && run->config->log_tensors > 0)
        dpn_note("          steps of --log-tensors take the reducer's plain path");
    if (!run->training && !run->start_params)
        dpn_note("weights   random start weights: neither --init nor --checkpoint was given");
    text_options(run);
    if (run->resume)
        dpn_note("resumed   %s | epoch %llu, step %llu", dpn_checkpoint_path(run->resume),
                 (unsigned long long)run->record.epoch, (unsigned long long)run->record.global_step);
}

void dpn_report_closing(struct dpn_run *run, const double *phases, double total)
{
    const struct dpn_totals *t = &run->totals;
    double sum = 0.0;
    for (int p = 0; p < DPN_N_PHASES; p++) sum += phases[p];
    dpn_note("time      %.2f s in all | start to first step %.0f ms, of which reading data %.0f ms", total,
             t->steps ? (double)(t->first_step_ns - run->start_ns) * 1e-6 : total * 1e3,
             (double)run->data.read_ns * 1e-6);
    if (t->timed_ns)
        dpn_note("rate      %.0f img/s, %.1f steps/s over %llu steps (first %d steps, evaluation and saving "
                 "not counted)",
                 (double)t->timed_samples / ((double)t->timed_ns * 1e-9),
                 (double)t->timed_steps / ((double)t->timed_ns * 1e-9), (unsigned long long)t->timed_steps,
                 DPN_WARMUP_STEPS);
    dpn_note("breakdown of a device's time, mean over devices:");
    for (int p = 0; p < DPN_N_PHASES; p++)
        dpn_note("  %-9s %8.3f s %5.1f %%%s", dpn_phase_names[p], phases[p],
                 sum > 0 ? 100.0 * phases[p] / sum : 0.0,
                 p == DPN_PHASE_REDUCE ? "  (exposed)"
                 : p == DPN_PHASE_WAIT ? "  (for the slowest device)"
                                       : "");
    if (run->record.best_accuracy >= 0) dpn_note("best      accuracy %.4f", run->record.best_accuracy);
    if (run->config->target_accuracy > 0) {
        if (t->target_ns)
            dpn_note("target    accuracy %g reached after %.2f s", run->config->target_accuracy,
                     (double)(t->target_ns - run->start_ns) * 1e-9);
        else dpn_note("target    accuracy %g not reached", run->config->target_accuracy);
    }
    dpn_note("memory    %.1f MiB at most", (double)dpn_peak_rss_bytes() / (1024.0 * 1024.0));
}
