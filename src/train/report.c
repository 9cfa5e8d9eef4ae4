/* What a run says: the block at its start, epoch lines, the JSON log, the breakdown at its end.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "train/placement.h"
#include "train/report_text.h"
#include "train/trainer.h"

static int report_logs(const struct dpn_run *run)
{
    return run->log_fd >= 0;
}

static void report_begin(struct dpn_run *run, const char *event)
{
    dpn_json_reset(&run->json);
    dpn_json_open_object(&run->json, NULL);
    dpn_json_string(&run->json, "event", event);
}

static enum dpn_status report_end(struct dpn_run *run)
{
    dpn_json_close_object(&run->json);
    return dpn_json_end_line(&run->json, run->log_fd, run->config->log);
}

enum dpn_status dpn_report_step(struct dpn_run *run, const struct dpn_step *step, double loss)
{
    report_begin(run, "step");
    dpn_json_u64(&run->json, "epoch", step->epoch);
    dpn_json_u64(&run->json, "step", step->global);
    dpn_json_u64(&run->json, "samples", step->samples);
    dpn_json_double(&run->json, "loss", loss);
    dpn_json_double(&run->json, "lr", step->lr);
    return report_end(run);
}

int dpn_report_tensors_step(const struct dpn_run *run, const struct dpn_step *step)
{
    return report_logs(run) && run->config->log_tensors > 0 && step->global % run->config->log_tensors == 0;
}

int dpn_report_tensors_due(const struct dpn_run *run, const struct dpn_replica *replica,
                           const struct dpn_step *step)
{
    return replica->member == 0 && dpn_report_tensors_step(run, step);
}

static void report_norms_of(struct dpn_run *run, const struct dpn_tensor *tensors, size_t n,
                            const float *arena)
{
    for (size_t t = 0; t < n; t++)
        dpn_json_double(&run->json, tensors[t].name, dpn_tensor_norm(&tensors[t], run->kernels, arena));
}

/* The event's first half; dpn_report_tensors ends it after the update. */
enum dpn_status dpn_report_gradients(struct dpn_run *run, const struct dpn_step *step, const float *grads)
{
    report_begin(run, "tensors");
    dpn_json_u64(&run->json, "step", step->global);
    dpn_json_open_object(&run->json, "grad_norm");
    report_norms_of(run, run->model->tensors, run->model->n_tensors, grads);
    dpn_json_close_object(&run->json);
    run->tensors_open = 1;
    return DPN_OK;
}

enum dpn_status dpn_report_tensors(struct dpn_run *run, const float *params)
{
    if (!run->tensors_open) return DPN_OK;
    run->tensors_open = 0;
    dpn_json_open_object(&run->json, "param_norm");
    report_norms_of(run, run->model->tensors, run->model->n_tensors, params);
    report_norms_of(run, run->model->buffers, run->model->n_buffers, run->buffers);
    dpn_json_close_object(&run->json);
    return report_end(run);
}

enum dpn_status dpn_report_epoch(struct dpn_run *run, uint64_t epoch, double loss, uint64_t samples,
                                 double seconds)
{
    double rate = (double)samples / seconds;
    dpn_progress_clear(run->progress);
    dpn_note("train | epoch %llu/%llu | loss %.4f | %.0f img/s | %.1f s", (unsigned long long)epoch + 1,
             (unsigned long long)run->end_epoch, loss, rate, seconds);
    if (!report_logs(run)) return DPN_OK;
    report_begin(run, "epoch");
    dpn_json_u64(&run->json, "epoch", epoch);
    dpn_json_u64(&run->json, "step", run->record.global_step);
    dpn_json_u64(&run->json, "samples", samples);
    dpn_json_double(&run->json, "loss", loss);
    dpn_json_double(&run->json, "seconds", seconds);
    dpn_json_double(&run->json, "samples_per_second", rate);
    return report_end(run);
}

enum dpn_status dpn_report_eval(struct dpn_run *run, uint64_t epoch, double loss, double accuracy)
{
    dpn_progress_clear(run->progress);
    if (run->training)
        dpn_note("val   | epoch %llu/%llu | loss %.4f | accuracy %.4f",
                 (unsigned long long)(run->end_epoch ? epoch + 1 : 0), (unsigned long long)run->end_epoch,
                 loss, accuracy);
    else dpn_note("eval  | samples %zu | loss %.6f | accuracy %.6f", run->data.test.n, loss, accuracy);
    if (!report_logs(run)) return DPN_OK;
    report_begin(run, "eval");
    dpn_json_u64(&run->json, "epoch", epoch);
    dpn_json_double(&run->json, "loss", loss);
    dpn_json_double(&run->json, "accuracy", accuracy);
    dpn_json_u64(&run->json, "samples", run->data.test.n);
    return report_end(run);
}

/* ---- start ---- */

enum dpn_status dpn_report_run_event(struct dpn_run *run)
{
    struct dpn_json *json = &run->json;
    char text[32];
    if (!report_logs(run)) return DPN_OK;
    report_begin(run, "run");
    dpn_json_string(json, "version", DPN_VERSION);
    dpn_json_string(json, "data", run->data.name);
    dpn_json_string(json, "data_path", run->data.path);
    dpn_json_u64(json, "train_samples", run->data.train.n);
    dpn_json_u64(json, "test_samples", run->data.test.n);
    snprintf(text, sizeof text, "%08x", run->data.train.crc);
    dpn_json_string(json, "data_checksum", text);
    dpn_json_string(json, "model", run->model->spec);
    dpn_json_u64(json, "parameters", run->model->parameters);
    dpn_json_u64(json, "members", run->group.n);
    dpn_json_string(json, "cpu_unit", dpn_unit_kind_name(run->group.unit));
    dpn_placement_json(&run->group, json);
    dpn_json_double(json, "cpu_quota", run->group.cpu_quota);
    dpn_json_string(json, "isa", run->kernels->isa);
    dpn_json_string(json, "blas_core", run->blas.loaded ? run->blas.core : "own");
    dpn_json_string(json, "blas_config", run->blas.config);
    dpn_json_string(json, "mode", run->mode->name);
    dpn_json_string(json, "reducer", run->reducer_class->name);
    dpn_json_u64(json, "buckets", run->plan.n_buckets);
    dpn_json_bool(json, "exact_tree", (run->reducer_class->flags & DPN_REDUCE_EXACT_TREE) != 0);
    dpn_json_u64(json, "batch", run->batch);
    dpn_json_u64(json, "shards", run->shards);
    dpn_json_u64(json, "steps_per_epoch", run->sampler.steps);
    dpn_json_u64(json, "start_epoch", run->record.epoch);
    dpn_json_u64(json, "start_step", run->record.global_step);
    dpn_json_double(json, "lr", run->schedule.base_lr);
    snprintf(text, sizeof text, "%016llx", (unsigned long long)dpn_options_digest(run->config));
    dpn_json_string(json, "options_digest", text);
    dpn_json_open_object(json, "options");
    dpn_options_json(run->config, run->training ? DPN_CMD_TRAIN : DPN_CMD_EVAL, ~0u, json);
    dpn_json_close_object(json);
    return report_end(run);
}

/* ---- end ---- */

static double report_seconds(uint64_t ns)
{
    return (double)ns * 1e-9;
}

static void report_phases_json(struct dpn_run *run, const double *phases)
{
    dpn_json_open_object(&run->json, "breakdown_seconds");
    for (int p = 0; p < DPN_N_PHASES; p++) dpn_json_double(&run->json, dpn_phase_names[p], phases[p]);
    dpn_json_close_object(&run->json);
}

/* Mean over devices, in seconds, of each phase; waiting for the slowest is told apart by the reducer's own
 * figures. */
static void report_phases(const struct dpn_run *run, double *phases)
{
    for (int p = 0; p < DPN_N_PHASES; p++) phases[p] = 0.0;
    for (size_t m = 0; m < run->group.n; m++) {
        struct dpn_reduce_stats stats;
        run->reducer->cls->stats(run->reducer, (int)m, &stats);
        double waited = report_seconds(stats.wait_slowest_ns);
        double reduce = report_seconds(run->replicas[m].phase_ns[DPN_PHASE_REDUCE]);
        if (waited > reduce) waited = reduce;
        for (int p = 0; p < DPN_N_PHASES; p++) phases[p] += report_seconds(run->replicas[m].phase_ns[p]);
        phases[DPN_PHASE_REDUCE] -= waited;
        phases[DPN_PHASE_WAIT] += waited;
    }
    for (int p = 0; p < DPN_N_PHASES; p++) phases[p] /= (double)run->group.n;
}

static void report_reducer_json(struct dpn_run *run)
{
    struct dpn_reduce_stats sum = {0};
    for (size_t m = 0; m < run->group.n; m++) {
        struct dpn_reduce_stats one;
        run->reducer->cls->stats(run->reducer, (int)m, &one);
        sum.reductions += one.reductions;
        sum.bytes_read += one.bytes_read;
        sum.bytes_written += one.bytes_written;
        sum.bytes_copied += one.bytes_copied;
        sum.flag_operations += one.flag_operations;
        sum.work_ns += one.work_ns;
        sum.wait_slowest_ns += one.wait_slowest_ns;
        sum.wait_data_ns += one.wait_data_ns;
    }
    dpn_json_open_object(&run->json, "reducer");
    dpn_json_u64(&run->json, "reductions", sum.reductions);
    dpn_json_u64(&run->json, "bytes_read", sum.bytes_read);
    dpn_json_u64(&run->json, "bytes_written", sum.bytes_written);
    dpn_json_u64(&run->json, "bytes_copied", sum.bytes_copied);
    dpn_json_u64(&run->json, "flag_operations", sum.flag_operations);
    dpn_json_double(&run->json, "work_seconds", report_seconds(sum.work_ns));
    dpn_json_double(&run->json, "wait_slowest_seconds", report_seconds(sum.wait_slowest_ns));
    dpn_json_double(&run->json, "wait_data_seconds", report_seconds(sum.wait_data_ns));
    dpn_json_close_object(&run->json);
}

static enum dpn_status report_summary_event(struct dpn_run *run, const double *phases, double total)
{
    const struct dpn_totals *t = &run->totals;
    struct dpn_json *json = &run->json;
    if (!report_logs(run)) return DPN_OK;
    report_begin(run, "summary");
    dpn_json_u64(json, "steps", t->steps);
    dpn_json_u64(json, "samples", t->samples);
    dpn_json_u64(json, "epochs", run->record.epoch);
    dpn_json_u64(json, "global_step", run->record.global_step);
    dpn_json_double(json, "seconds", total);
    dpn_json_double(json, "startup_seconds",
                    t->steps ? report_seconds(t->first_step_ns - run->start_ns) : total);
    dpn_json_double(json, "data_read_seconds", report_seconds(run->data.read_ns));
    dpn_json_u64(json, "warmup_steps", t->steps < DPN_WARMUP_STEPS ? t->steps : DPN_WARMUP_STEPS);
    dpn_json_u64(json, "timed_steps", t->timed_steps);
    dpn_json_u64(json, "timed_samples", t->timed_samples);
    dpn_json_double(json, "timed_seconds", report_seconds(t->timed_ns));
    if (t->timed_ns) {
        dpn_json_double(json, "samples_per_second", (double)t->timed_samples / report_seconds(t->timed_ns));
        dpn_json_double(json, "steps_per_second", (double)t->timed_steps / report_seconds(t->timed_ns));
    } else {
        dpn_json_null(json, "samples_per_second");
        dpn_json_null(json, "steps_per_second");
    }
    if (t->steps) dpn_json_double(json, "loss", t->last_loss);
    if (run->record.best_accuracy >= 0) dpn_json_double(json, "best_accuracy", run->record.best_accuracy);
    if (t->target_ns) dpn_json_double(json, "target_seconds", report_seconds(t->target_ns - run->start_ns));
    report_phases_json(run, phases);
    report_reducer_json(run);
    dpn_json_u64(json, "peak_memory_bytes", dpn_peak_rss_bytes());
    if (run->stop_signal) dpn_json_i64(json, "signal", run->stop_signal);
    return report_end(run);
}

enum dpn_status dpn_report_summary(struct dpn_run *run)
{
    double phases[DPN_N_PHASES], total = report_seconds(dpn_now_ns() - run->start_ns);
    dpn_progress_clear(run->progress);
    report_phases(run, phases);
    if (run->training) dpn_report_closing(run, phases, total);
    return report_summary_event(run, phases, total);
}
