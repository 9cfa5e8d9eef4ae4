/* How much memory a run takes: the plans of its devices, and all arenas, before anything is allocated. */
#include <math.h>
#include <stdio.h>

#include "core/log.h"
#include "core/memory.h"
#include "train/trainer.h"

/* Evaluation sends as many samples through the model at once as keep its largest value about this large. */
enum { MEMORY_EVAL_BYTES = 16 << 20 };

static size_t memory_eval_rows(const struct dpn_run *run)
{
    size_t stride = 1, rows;
    for (size_t v = 0; v < run->model->n_values; v++)
        if (run->model->values[v].stride > stride) stride = run->model->values[v].stride;
    rows = MEMORY_EVAL_BYTES / sizeof(float) / stride;
    if (rows < 1) rows = 1;
    if (rows > DPN_EVAL_CHUNK) rows = DPN_EVAL_CHUNK;
    return run->data.test.n && run->data.test.n < rows ? run->data.test.n : rows;
}

void dpn_memory_plan(struct dpn_run *run)
{
    run->eval_rows = memory_eval_rows(run);
    for (size_t m = 0; m < run->group.n; m++) {
        struct dpn_replica *replica = &run->replicas[m];
        size_t team = (size_t)replica->device->threads;
        replica->n_execs = run->norm_sync ? (size_t)replica->n_shards : 1;
        dpn_plan_make(&replica->eval_plan, run->model, run->kernels, team, run->eval_rows, 0);
        replica->exec_bytes = replica->eval_plan.bytes;
        if (!run->training) continue;
        dpn_plan_make(&replica->train_plan, run->model, run->kernels, team, run->max_rows, 1);
        size_t bytes;
        if (__builtin_mul_overflow(replica->train_plan.bytes, replica->n_execs, &bytes)) bytes = SIZE_MAX;
        if (bytes > replica->exec_bytes) replica->exec_bytes = bytes;
    }
}

size_t dpn_memory_stack_size(const struct dpn_run *run, const struct dpn_replica *replica)
{
    size_t steps = run->sampler.steps;
    uint64_t full = run->batch < run->shards ? run->batch : run->shards;
    size_t last = dpn_sampler_step_samples(&run->sampler, steps - 1);
    uint64_t rest = last < run->shards ? last : run->shards;
    size_t a = dpn_accumulate_depth(replica->first_shard, replica->n_shards, full);
    size_t b = dpn_accumulate_depth(replica->first_shard, replica->n_shards, rest);
    return a > b ? a : b;
}

/* The fused update needs no whole gradient, except in steps that report it. */
int dpn_memory_wants_result(const struct dpn_run *run)
{
    return !run->fused || (*run->config->log && run->config->log_tensors > 0);
}

/* ---- prediction ---- */

/* Bytes as doubles: what cannot fit must not wrap. */
struct memory_need {
    double params, gradients, state, activations, workspace, mode, check, save, total;
};

static size_t memory_nodes(const struct dpn_run *run)
{
    return run->group.node_count > 0 ? (size_t)run->group.node_count : 1;
}

static size_t memory_largest_tensor(const struct dpn_run *run)
{
    size_t most = 0;
    for (size_t i = 0; i < run->model->n_tensors; i++)
        if (run->model->tensors[i].elems > most) most = run->model->tensors[i].elems;
    return most;
}

/* What training takes beside parameters and activations. */
static void memory_predict_training(const struct dpn_run *run, double arena, double nodes,
                                    struct memory_need *need)
{
    double n = (double)run->group.n, slots = arena * (double)run->n_slots;
    for (size_t m = 0; m < run->group.n; m++)
        need->gradients += arena * (double)dpn_memory_stack_size(run, &run->replicas[m]);
    if (run->group.n > 1 && dpn_memory_wants_result(run)) need->gradients += arena * nodes;
    need->state = slots * (run->mode->replicated_state && !run->fused ? n : 1.0);
    if (!run->mode->replicated_state)
        need->mode = (double)run->batch * sizeof(float) *
                     (double)(run->model->values[0].stride + run->model->values[run->model->logits].stride);
    if (*run->config->init || run->resume) need->params += arena;
    if (run->resume) need->state += slots;
    if (run->config->check_reduce) /* copies of what members hand over, the sum, that of absolute values */
        need->check = need->gradients + 2 * arena;
    if (*run->config->out) need->save = (double)memory_largest_tensor(run) * sizeof(float);
}

static struct memory_need memory_predict(const struct dpn_run *run)
{
    double arena = (double)run->model->arena_elems * sizeof(float), n = (double)run->group.n;
    double nodes = (double)memory_nodes(run);
    struct memory_need need = {.params = arena * (run->fused ? nodes : n)};
    for (size_t m = 0; m < run->group.n; m++) {
        const struct dpn_replica *r = &run->replicas[m];
        const struct dpn_plan *plan = run->training ? &r->train_plan : &r->eval_plan;
        double activations = (double)plan->activation_floats * sizeof(float) * (double)r->n_execs;
        need.activations += activations;
        need.workspace += (double)r->exec_bytes - activations;
    }
    if (run->training) memory_predict_training(run, arena, nodes, &need);
    need.total = need.params + need.gradients + need.state + need.activations + need.workspace + need.mode +
                 need.check + need.save;
    return need;
}

enum dpn_status dpn_memory_check(const struct dpn_run *run)
{
    char what[DPN_NAME_BYTES + 256];
    double total = memory_predict(run).total;
    snprintf(what, sizeof what, "--model '%s' on %zu device(s)", run->model->spec, run->group.n);
    return dpn_data_check_fits(what, 1, total < 0x1p62 ? (uint64_t)total : (uint64_t)1 << 62);
}

static void memory_line(const char *what, double bytes)
{
    if (bytes > 0) dpn_note("  %-28s %12.1f MiB", what, bytes / (1024.0 * 1024.0));
}

void dpn_memory_report(const struct dpn_run *run)
{
    struct memory_need need = memory_predict(run);
    double now = (double)run->setup_bytes;
    dpn_note("memory that this run will take, at most:");
    memory_line("program and data set", now);
    memory_line("parameters", need.params);
    memory_line("gradients", need.gradients);
    memory_line("optimizer state", need.state);
    memory_line("activations, gradients of them", need.activations);
    memory_line("kernels' workspace", need.workspace);
    memory_line("batch of mode dp", need.mode);
    memory_line("copies of --check-reduce", need.check);
    memory_line("saving", need.save);
    /* Reading the data may have taken more for a while than all that is to come. */
    double peak = (double)dpn_peak_rss_bytes(), all = now + need.total;
    dpn_note("  %-28s %12.1f MiB", "in all", (peak > all ? peak : all) / (1024.0 * 1024.0));
    dpn_note("dry run: nothing was trained and nothing written");
}
