/* What every device thread does: open its replica, take part in every step, meet the others where something
 * is decided.
 *
 * All members run the same loop over the same numbers, so they make the same reducer calls in the same order.
 * Only device 0 decides (a signal, a target reached): for a step it says so before it starts the step's first
 * bucket, elsewhere between two barriers.
 */
#include "train/trainer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"

const char *const dpn_phase_names[DPN_N_PHASES] = {"input",  "forward", "backward", "reduce", "wait",
                                                   "update", "eval",    "save",     "other"};

void dpn_phase_end(struct dpn_replica *replica, enum dpn_phase phase)
{
    uint64_t now = dpn_now_ns();
    replica->phase_ns[phase] += now - replica->mark_ns;
    replica->mark_ns = now;
}

float dpn_loss_scale(const struct dpn_run *run, const struct dpn_replica *replica,
                     const struct dpn_step *step)
{
    if (!run->grad_sum) return (float)(1.0 / (double)step->samples);
    size_t first, rows, unused;
    uint64_t end = replica->first_shard + replica->n_shards;
    dpn_split(step->samples, run->shards, replica->first_shard, &first, &rows);
    dpn_split(step->samples, run->shards, end - 1, &unused, &rows);
    rows = unused + rows - first;
    return rows ? (float)(1.0 / (double)rows) : 0.0f;
}

static enum dpn_status trainer_barrier(struct dpn_run *run, struct dpn_replica *replica, enum dpn_phase phase)
{
    if (run->group.n == 1) return DPN_OK;
    enum dpn_status status = dpn_barrier_wait(&run->barrier, &run->group.abort);
    dpn_phase_end(replica, phase);
    return status;
}

/* ---- opening a replica ---- */

static enum dpn_status trainer_alloc(const struct dpn_run *run, struct dpn_replica *replica, float **arena,
                                     const char *what)
{
    size_t bytes = run->model->arena_elems * sizeof(float);
    DPN_TRY(run->group.cls->alloc(replica->device, arena, bytes, what));
    memset(*arena, 0,
           bytes); /* the first touch places the pages: here, by the bound thread that will use them */
    return DPN_OK;
}

/* The devices of a node share one arena for the reduced gradient: it is written once and read by each. Its
 * first device owns it. */
static struct dpn_replica *trainer_node_leader(const struct dpn_run *run, const struct dpn_replica *replica)
{
    for (size_t m = 0; m < run->group.n; m++)
        if (run->group.devices[m].node == replica->device->node) return &run->replicas[m];
    return NULL;
}

static enum dpn_status trainer_open_training(struct dpn_run *run, struct dpn_replica *replica)
{
    int keeps_state = (run->mode->replicated_state && !run->fused) || replica->member == 0;
    replica->stack_size = dpn_memory_stack_size(run, replica);
    if (replica->stack_size > DPN_MAX_STACK)
        return dpn_fail(DPN_ERR_USAGE, "--shards '%llu' needs too many partial sums on one device",
                        (unsigned long long)run->shards);
    for (size_t i = 0; i < replica->stack_size; i++)
        DPN_TRY(trainer_alloc(run, replica, &replica->stack[i], "gradients"));
    for (int i = 0; keeps_state && i < run->n_slots; i++)
        DPN_TRY(trainer_alloc(run, replica, &replica->state[i], "optimizer state"));
    if (run->config->clip_norm > 0)
        DPN_TRY(dpn_calloc(&replica->norm_parts, dpn_update_norm_parts(run->model->arena_elems),
                           sizeof(double), "gradient norm"));
    if (run->group.n == 1) replica->result = replica->stack[0];
    else if (trainer_node_leader(run, replica) == replica && dpn_memory_wants_result(run))
        DPN_TRY(trainer_alloc(run, replica, &replica->result, "reduced gradient"));
    return run->mode->open ? run->mode->open(run, replica) : DPN_OK;
}

/* Start weights: from a file read at set-up, or by seed on device 0, then to all. Optimizer state likewise.
 */
static enum dpn_status trainer_start_weights(struct dpn_run *run, struct dpn_replica *replica)
{
    size_t elems = run->model->arena_elems;
    if (replica->member == 0) {
        if (run->start_params) memcpy(replica->params, run->start_params, elems * sizeof(float));
        else dpn_model_init(run->model, run->config->seed, replica->params);
        for (int i = 0; i < run->n_slots; i++)
            if (run->start_state[i]) memcpy(replica->state[i], run->start_state[i], elems * sizeof(float));
    }
    if (run->group.n == 1) return DPN_OK;
    const struct dpn_reducer_class *reducer = run->reducer->cls;
    DPN_TRY(reducer->broadcast(run->reducer, replica->member, 0, replica->params, elems));
    for (int i = 0; run->training && run->mode->replicated_state && !run->fused && i < run->n_slots; i++)
        DPN_TRY(reducer->broadcast(run->reducer, replica->member, 0, replica->state[i], elems));
    return DPN_OK;
}

/* Activations: written here first, by the thread that will use them. */
static enum dpn_status trainer_open_execs(struct dpn_run *run, struct dpn_replica *replica)
{
    struct dpn_team *team = replica->device->team;
    DPN_TRY(
        run->group.cls->alloc(replica->device, &replica->exec_memory, replica->exec_bytes, "activations"));
    memset(replica->exec_memory, 0, replica->exec_bytes);
    DPN_TRY(dpn_exec_open(&replica->eval, run->model, run->kernels, team, &replica->eval_plan,
                          replica->exec_memory));
    replica->eval.buffers = run->buffers;
    if (!run->training) return DPN_OK;
    DPN_TRY(dpn_calloc(&replica->execs, replica->n_execs, sizeof *replica->execs, "shards"));
    DPN_TRY(dpn_calloc(&replica->rows, replica->n_execs, sizeof *replica->rows, "shards"));
    for (size_t i = 0; i < replica->n_execs; i++)
        DPN_TRY(dpn_exec_open(&replica->execs[i], run->model, run->kernels, team, &replica->train_plan,
                              (char *)replica->exec_memory + i * replica->train_plan.bytes));
    return DPN_OK;
}

static enum dpn_status trainer_open(struct dpn_run *run, struct dpn_replica *replica)
{
    replica->mark_ns = dpn_now_ns();
    DPN_TRY(trainer_open_execs(run, replica));
    if (!run->fused || trainer_node_leader(run, replica) == replica)
        DPN_TRY(trainer_alloc(run, replica, &replica->params, "parameters"));
    if (run->training) DPN_TRY(trainer_open_training(run, replica));
    DPN_TRY(trainer_barrier(run, replica, DPN_PHASE_OTHER));
    const struct dpn_replica *leader = trainer_node_leader(run, replica);
    if (!replica->params) replica->params = leader->params;
    if (!replica->result && leader != replica) replica->result = leader->result;
    replica->eval.params = replica->params;
    for (size_t i = 0; replica->execs && i < replica->n_execs; i++)
        replica->execs[i].params = replica->params;
    DPN_TRY(trainer_start_weights(run, replica));
    dpn_phase_end(replica, DPN_PHASE_OTHER);
    return DPN_OK;
}

static void trainer_close(struct dpn_run *run, struct dpn_replica *replica)
{
    size_t bytes = run->model->arena_elems * sizeof(float);
    const struct dpn_device_class *cls = run->group.cls;
    if (run->mode->close) run->mode->close(run, replica);
    if (run->training && run->group.n > 1 && trainer_node_leader(run, replica) == replica)
        cls->free(replica->device, replica->result, bytes);
    for (size_t i = 0; i < replica->stack_size; i++) cls->free(replica->device, replica->stack[i], bytes);
    for (int i = 0; i < DPN_MAX_SLOTS; i++) cls->free(replica->device, replica->state[i], bytes);
    if (!run->fused || trainer_node_leader(run, replica) == replica)
        cls->free(replica->device, replica->params, bytes);
    free(replica->norm_parts);
    for (size_t i = 0; replica->execs && i < replica->n_execs; i++) dpn_exec_close(&replica->execs[i]);
    free(replica->execs);
    free(replica->rows);
    dpn_exec_close(&replica->eval);
    cls->free(replica->device, replica->exec_memory, replica->exec_bytes);
}

/* ---- steps ---- */

/* This thread's place in the run; the same on every member. */
struct trainer_place {
    uint64_t epoch, global;
    size_t in_epoch;
    int stop;
    uint64_t segment_ns;      /* device 0: when this stretch of steps began */
    uint64_t segment_samples; /* its samples */
    uint64_t timed_from_ns;   /* same without warm-up, 0: still warming up */
};

static struct dpn_step trainer_make_step(const struct dpn_run *run, const struct trainer_place *place)
{
    struct dpn_step step = {.global = place->global, .epoch = place->epoch, .in_epoch = place->in_epoch};
    step.samples = dpn_sampler_step_samples(&run->sampler, place->in_epoch);
    step.leaves = step.samples < run->shards ? step.samples : run->shards;
    step.lr = dpn_schedule_lr(&run->schedule, place->global);
    return step;
}

/* Every member computes the same loss from the same shard losses, so all reach the same verdict. */
static enum dpn_status trainer_check_loss(const struct dpn_run *run, const struct dpn_step *step,
                                          double *loss)
{
    const double *losses = run->shard_loss[step->global & 1];
    *loss = dpn_tree_sum(losses, step->leaves) / (double)step->samples;
    if (isfinite(*loss)) return DPN_OK;
    uint64_t shard = 0;
    while (shard + 1 < step->leaves && isfinite(losses[shard])) shard++;
    size_t owner = 0;
    while (owner + 1 < run->group.n &&
           run->replicas[owner].first_shard + run->replicas[owner].n_shards <= shard)
        owner++;
    return dpn_fail(DPN_ERR_NUMERIC,
                    "the loss is not finite at step %llu (epoch %llu), first on device %zu (shard %llu)",
                    (unsigned long long)step->global, (unsigned long long)step->epoch + 1, owner,
                    (unsigned long long)shard);
}

/* Device 0, after a step. */
static enum dpn_status trainer_count(struct dpn_run *run, struct dpn_replica *replica,
                                     const struct dpn_step *step, double loss, struct trainer_place *place)
{
    struct dpn_totals *totals = &run->totals;
    run->record.global_step = step->global + 1;
    run->record.step_in_epoch = step->in_epoch + 1;
    run->record.samples += step->samples;
    run->record.epoch_loss_sum += loss * (double)step->samples;
    if (step->in_epoch + 1 == run->sampler.steps) {
        /* From here on a checkpoint is one between epochs. */
        run->epoch_loss_sum = run->record.epoch_loss_sum;
        run->record.epoch_loss_sum = 0.0;
        run->record.epoch = step->epoch + 1;
        run->record.step_in_epoch = 0;
    }
    run->saved = 0;
    totals->last_loss = loss;
    totals->samples += step->samples;
    place->segment_samples += step->samples;
    if (place->timed_from_ns) {
        totals->timed_steps++;
        totals->timed_samples += step->samples;
    }
    if (++totals->steps == DPN_WARMUP_STEPS) place->timed_from_ns = dpn_now_ns();
    dpn_progress_update(run->progress, step->in_epoch * run->batch + step->samples, loss);
    if (run->log_fd < 0) return DPN_OK;
    DPN_TRY(dpn_report_tensors(run, replica->params)); /* first: the mode has begun that event */
    if (step->global % run->config->log_every == 0) DPN_TRY(dpn_report_step(run, step, loss));
    dpn_phase_end(replica, DPN_PHASE_OTHER);
    return DPN_OK;
}

/* Whether device 0 wants to save after this step, apart from the end of epochs; the same on every member. */
static int trainer_step_save_due(const struct dpn_run *run, const struct trainer_place *place)
{
    return run->out && run->save_steps && place->global % run->save_steps == 0;
}

/* Device 0 books the stretch of steps that ends here. */
static void trainer_segment_end(struct dpn_run *run, struct trainer_place *place)
{
    if (place->timed_from_ns) run->totals.timed_ns += dpn_now_ns() - place->timed_from_ns;
}

static void trainer_segment_begin(struct dpn_run *run, struct trainer_place *place)
{
    if (run->totals.steps >= DPN_WARMUP_STEPS) place->timed_from_ns = dpn_now_ns();
}

static enum dpn_status trainer_save(struct dpn_run *run, struct dpn_replica *replica, int best)
{
    struct dpn_checkpoint_arenas arenas = {replica->params, run->buffers,          &run->batches,
                                           run->n_slots,    run->optimizer->slots, replica->state};
    enum dpn_status status;
    if (run->saved && !best) return DPN_OK;
    /* The loss is checked before each update; this is what the last one made. */
    if (!isfinite(run->kernels->sum_squares(run->model->arena_elems, replica->params)))
        return dpn_fail(DPN_ERR_NUMERIC, "the parameters after step %llu are not finite: not saved",
                        (unsigned long long)run->record.global_step - 1);
    status = dpn_checkpoint_save(run->out, run->model, run->config, &run->record, &arenas, best);
    run->saved = status == DPN_OK;
    dpn_phase_end(replica, DPN_PHASE_SAVE);
    return status;
}

static enum dpn_status trainer_steps(struct dpn_run *run, struct dpn_replica *replica,
                                     struct trainer_place *place)
{
    int leader = replica->member == 0;
    place->segment_ns = dpn_now_ns();
    place->segment_samples = 0;
    if (leader) {
        if (run->totals.steps == 0) run->totals.first_step_ns = place->segment_ns;
        trainer_segment_begin(run, place);
    }
    while (place->in_epoch < run->sampler.steps && place->global < run->end_step && !place->stop) {
        struct dpn_step step = trainer_make_step(run, place);
        double loss;
        if (leader) run->stop[step.global & 1] = dpn_progress_signal(run->progress);
        DPN_TRY(run->mode->step(run, replica, &step));
        DPN_TRY(trainer_check_loss(run, &step, &loss));
        place->stop = run->stop[step.global & 1];
        if (leader) {
            dpn_exchange_running(run, &step);
            DPN_TRY(trainer_count(run, replica, &step, loss, place));
        }
        place->global++;
        place->in_epoch++;
        if (!trainer_step_save_due(run, place) || place->stop) continue;
        if (leader) {
            trainer_segment_end(run, place);
            DPN_TRY(trainer_save(run, replica, 0));
            trainer_segment_begin(run, place);
        }
        DPN_TRY(trainer_barrier(run, replica, DPN_PHASE_SAVE));
    }
    if (leader) trainer_segment_end(run, place);
    return DPN_OK;
}

/* ---- between epochs ---- */

static enum dpn_status trainer_accuracy(struct dpn_run *run, uint64_t epoch, double loss, double accuracy,
                                        int *best)
{
    DPN_TRY(dpn_report_eval(run, epoch, loss, accuracy));
    if (!isfinite(loss))
        return dpn_fail(DPN_ERR_NUMERIC, "the evaluation loss after step %llu (epoch %llu) is not finite",
                        (unsigned long long)run->record.global_step - 1, (unsigned long long)epoch + 1);
    run->totals.last_accuracy = accuracy;
    *best = accuracy > run->record.best_accuracy;
    if (*best) run->record.best_accuracy = accuracy;
    if (run->config->target_accuracy > 0 && accuracy >= run->config->target_accuracy) {
        run->totals.target_ns = dpn_now_ns();
        run->finished = 1;
    }
    return DPN_OK;
}

/* Device 0: what happens at the end of an epoch, or of training inside one. */
static enum dpn_status trainer_decide(struct dpn_run *run, struct dpn_replica *replica,
                                      const struct trainer_place *place, int best)
{
    int signal = dpn_progress_signal(run->progress);
    if (place->global >= run->end_step || place->epoch >= run->end_epoch || signal) run->finished = 1;
    if (signal) run->stop_signal = signal;
    if (run->out) {
        int epoch_save = run->save_epochs && place->in_epoch == 0 && place->epoch % run->save_epochs == 0;
        if (epoch_save || best || run->finished) DPN_TRY(trainer_save(run, replica, best));
    }
    if (!run->finished) dpn_sampler_set_epoch(&run->sampler, place->epoch);
    dpn_phase_end(replica, DPN_PHASE_OTHER);
    return DPN_OK;
}

static enum dpn_status trainer_boundary(struct dpn_run *run, struct dpn_replica *replica,
                                        struct trainer_place *place)
{
    int leader = replica->member == 0, best = 0;
    uint64_t ended = place->epoch; /* the epoch these steps belong to */
    int complete = place->in_epoch == run->sampler.steps;
    if (complete) {
        place->epoch++;
        place->in_epoch = 0;
    }
    int last = place->global >= run->end_step || place->epoch >= run->end_epoch;
    int evaluate = run->data.test.n > 0 && run->config->eval_every > 0 && !place->stop &&
                   (last || place->epoch % run->config->eval_every == 0);
    if (leader && complete) {
        double seconds = (double)(dpn_now_ns() - place->segment_ns) * 1e-9;
        double samples = (double)run->batch * (double)(run->sampler.steps - 1) +
                         (double)dpn_sampler_step_samples(&run->sampler, run->sampler.steps - 1);
        DPN_TRY(dpn_report_epoch(run, ended, run->epoch_loss_sum / samples, place->segment_samples, seconds));
    }
    if (evaluate) {
        double loss = 0.0, accuracy = 0.0;
        DPN_TRY(dpn_evaluate(run, replica, &loss, &accuracy));
        if (leader && !run->eval_cut) DPN_TRY(trainer_accuracy(run, ended, loss, accuracy, &best));
    }
    if (leader) DPN_TRY(trainer_decide(run, replica, place, best));
    return trainer_barrier(run, replica, DPN_PHASE_OTHER);
}

/* `eval`, or --epochs 0: the start weights, evaluated (and saved, if there is --out). */
static enum dpn_status trainer_evaluate_only(struct dpn_run *run, struct dpn_replica *replica)
{
    double loss = 0.0, accuracy = 0.0;
    if (replica->member == 0 && run->out) DPN_TRY(trainer_save(run, replica, 0));
    if (run->data.test.n == 0) return DPN_OK;
    DPN_TRY(dpn_evaluate(run, replica, &loss, &accuracy));
    if (replica->member != 0) return DPN_OK;
    run->stop_signal = dpn_progress_signal(run->progress);
    if (run->eval_cut) return DPN_OK;
    run->totals.last_accuracy = accuracy;
    return dpn_report_eval(run, run->record.epoch, loss, accuracy);
}

static enum dpn_status trainer_run(struct dpn_run *run, struct dpn_replica *replica)
{
    struct trainer_place place = {.epoch = run->record.epoch,
                                  .global = run->record.global_step,
                                  .in_epoch = (size_t)run->record.step_in_epoch};
    DPN_TRY(trainer_open(run, replica));
    if (replica->member == 0) {
        dpn_report_start(run);
        DPN_TRY(dpn_report_run_event(run));
    }
    if (!run->training || run->end_epoch == 0) return trainer_evaluate_only(run, replica);
    /* Read by all after the barrier; written again only between barriers. */
    if (replica->member == 0) dpn_sampler_set_epoch(&run->sampler, place.epoch);
    DPN_TRY(trainer_barrier(run, replica, DPN_PHASE_OTHER));
    while (!run->finished) {
        if (replica->member == 0)
            dpn_progress_epoch(run->progress, place.epoch + 1, run->end_epoch, run->sampler.n);
        DPN_TRY(trainer_steps(run, replica, &place));
        DPN_TRY(trainer_boundary(run, replica, &place));
    }
    return DPN_OK;
}

enum dpn_status dpn_trainer_body(void *arg, struct dpn_device *device)
{
    struct dpn_run *run = arg;
    struct dpn_replica *replica = &run->replicas[device->member];
    replica->device = device;
    /* Buffers are freed when all threads have ended, for after a failure others may still read them. */
    enum dpn_status status = trainer_run(run, replica);
    if (status != DPN_OK) dpn_abort_raise(&run->group.abort, status);
    return status;
}

void dpn_trainer_close(struct dpn_run *run)
{
    for (size_t m = 0; m < run->group.n; m++) trainer_close(run, &run->replicas[m]);
}
