/* Everything before the device threads start, cheap checks first: options, devices, data, model, weights, and
 * only then the output folder and the log, so that a run that is refused leaves nothing behind.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/parse.h"
#include "train/trainer.h"

static const char setup_auto[] = "auto";

/* ---- options that need no machine and no data ---- */

static enum dpn_status setup_save_every(struct dpn_run *run)
{
    const char *text = run->config->save_every;
    size_t length = strlen(text);
    char digits[32];
    int steps = length > 1 && text[length - 1] == 's';
    if (length >= sizeof digits) return dpn_fail(DPN_ERR_USAGE, "--save-every '%s' is too long", text);
    memcpy(digits, text, length + 1);
    if (steps) digits[length - 1] = '\0';
    return dpn_parse_u64("--save-every", digits, 0, UINT64_MAX >> 2,
                         steps ? &run->save_steps : &run->save_epochs);
}

/* Before a checkpoint's options are taken over. */
static enum dpn_status setup_check_resume(const struct dpn_config *c)
{
    if (*c->resume && *c->init) return dpn_fail(DPN_ERR_USAGE, "--resume and --init cannot both be given");
    if (*c->resume && c->overwrite)
        return dpn_fail(DPN_ERR_USAGE, "--resume and --overwrite cannot both be given");
    if (!strcmp(c->resume, setup_auto) && !*c->out)
        return dpn_fail(DPN_ERR_USAGE, "--resume 'auto' needs --out (the folder to look in)");
    return DPN_OK;
}

static enum dpn_status setup_check_options(struct dpn_run *run)
{
    const struct dpn_config *c = run->config;
    if (c->batch_per_device && dpn_option_given(c, "batch") && dpn_option_given(c, "batch-per-device"))
        return dpn_fail(DPN_ERR_USAGE, "--batch and --batch-per-device cannot both be given");
    if (c->scale_lr && !c->batch_per_device)
        return dpn_fail(DPN_ERR_USAGE,
                        "--scale-lr needs --batch-per-device (a global --batch needs no scaling)");
    if (*c->milestones && strcmp(c->schedule, "step"))
        return dpn_fail(DPN_ERR_USAGE, "--milestones '%s' needs --schedule step", c->milestones);
    if (!strcmp(c->schedule, "step") && !*c->milestones)
        return dpn_fail(DPN_ERR_USAGE, "--schedule 'step' needs --milestones");
    return setup_save_every(run);
}

/* ---- machine ---- */

static enum dpn_status setup_devices(struct dpn_run *run)
{
    const struct dpn_config *c = run->config;
    struct dpn_device_request request = {.smt = c->smt,
                                         .oversubscribe = c->oversubscribe,
                                         .threads_per_device = (size_t)c->threads_per_device};
    DPN_TRY(dpn_kernels_select(c->isa, &run->kernels));
    DPN_TRY(dpn_unit_kind_parse(c->cpu_unit, &request.unit));
    DPN_TRY(dpn_topo_open(&run->topo, NULL, NULL));
    DPN_TRY(dpn_device_group_open(&run->group, run->topo, c->kind, c->devices, &request, run->kernels));
    /* `auto` is our own GEMM: measured faster on every shape of these models (docs/RESULTS.md). */
    if (!strcmp(c->blas, "openblas")) {
        dpn_blas_load(run->kernels, &run->kernels, &run->blas);
        if (!run->blas.loaded)
            return dpn_fail(DPN_ERR_USAGE, "--blas 'openblas' cannot be had: %s", run->blas.why);
    }
    run->kernels_own = *run->kernels;
    if (!strcmp(c->conv, "winograd")) run->kernels_own.conv_choice = DPN_CONV_WINOGRAD;
    if (!strcmp(c->conv, "direct")) run->kernels_own.conv_choice = DPN_CONV_DIRECT;
    run->kernels = &run->kernels_own;
    for (size_t i = 0; i < run->group.n; i++) run->group.devices[i].kernels = run->kernels;
    run->barrier.n = run->norm_barrier.n = (uint32_t)run->group.n;
    return DPN_OK;
}

/* ---- data, batch, shards ---- */

/* All devices read the samples, so their pages are spread over the NUMA nodes. A hint: failing is a remark
 * only. */
static void setup_interleave(struct dpn_run *run, const struct dpn_samples *samples)
{
    size_t bytes = samples->n * run->data.sample_elems * (samples->u8 ? sizeof(uint8_t) : sizeof(float));
    uintptr_t begin = samples->u8 ? (uintptr_t)samples->u8 : (uintptr_t)samples->f32, end = begin + bytes;
    begin = (begin + DPN_PAGE_BYTES - 1) / DPN_PAGE_BYTES * DPN_PAGE_BYTES;
    end = end / DPN_PAGE_BYTES * DPN_PAGE_BYTES;
    if (begin < end && dpn_topo_interleave(run->topo, (void *)begin, end - begin) != DPN_OK)
        dpn_warn("data pages are not interleaved over NUMA nodes: %s", dpn_error_text());
}

static enum dpn_status setup_data(struct dpn_run *run)
{
    const struct dpn_config *c = run->config;
    struct dpn_dataset_request request = {.spec = c->data,
                                          .data_root = c->data_root,
                                          .normalize = c->normalize};
    DPN_TRY(dpn_dataset_open(&request, &run->data));
    setup_interleave(run, &run->data.train);
    setup_interleave(run, &run->data.test);
    if (!run->training && run->data.test.n == 0)
        return dpn_fail(DPN_ERR_INPUT, "data set '%s' in '%s' has no test part to evaluate", run->data.name,
                        run->data.path);
    return DPN_OK;
}

static enum dpn_status setup_batch(struct dpn_run *run)
{
    static const char *const last_words[] = {"short", "drop", "wrap"};
    const struct dpn_config *c = run->config;
    enum dpn_last_batch last = DPN_LAST_SHORT;
    size_t n = run->group.n;

    run->batch = c->batch_per_device ? c->batch_per_device * n : c->batch;
    run->shards = c->shards ? c->shards : n;
    run->grad_sum = !strcmp(c->grad_op, "sum");
    if (run->shards < n)
        return dpn_fail(DPN_ERR_USAGE, "--shards '%llu'%s is less than the number of devices, %zu",
                        (unsigned long long)run->shards, run->resume ? " (from the checkpoint)" : "", n);
    for (int i = 0; i < 3; i++)
        if (!strcmp(c->last_batch, last_words[i])) last = (enum dpn_last_batch)i;
    DPN_TRY(dpn_sampler_open(&run->sampler, run->data.train.n, run->batch, last, !c->no_shuffle, c->seed));
    /* With `short` a batch never has more samples than the set. */
    if (last == DPN_LAST_SHORT && run->batch > run->data.train.n) run->batch = run->data.train.n;
    run->max_rows = (run->batch + run->shards - 1) / run->shards;
    DPN_TRY(dpn_calloc(&run->replicas, n, sizeof *run->replicas, "replicas"));
    for (size_t m = 0; m < n; m++) {
        struct dpn_replica *replica = &run->replicas[m];
        size_t first, count;
        dpn_split((size_t)run->shards, n, m, &first, &count);
        replica->run = run;
        replica->member = (int)m;
        replica->device = &run->group.devices[m];
        replica->first_shard = first;
        replica->n_shards = count;
    }
    for (int i = 0; i < 2; i++)
        DPN_TRY(dpn_calloc(&run->shard_loss[i], (size_t)run->shards, sizeof(double), "shard losses"));
    run->augment = !strcmp(c->augment, "crop-flip");
    if (run->augment && (run->data.height == 1 || run->data.width == 1))
        return dpn_fail(DPN_ERR_USAGE, "--augment '%s' is for images, data set '%s' has %zux%zux%zu",
                        c->augment, run->data.name, run->data.channels, run->data.height, run->data.width);
    size_t chunks = run->data.test.n / DPN_EVAL_CHUNK + 1;
    DPN_TRY(dpn_calloc(&run->eval_loss, chunks, sizeof(double), "evaluation"));
    return dpn_calloc(&run->eval_correct, chunks, sizeof(uint64_t), "evaluation");
}

/* ---- model, optimizer ---- */

static enum dpn_status setup_schedule(struct dpn_run *run)
{
    struct dpn_config *c = run->config;
    double scale = c->scale_lr ? (double)run->group.n : 1.0;
    uint64_t per_epoch = run->sampler.steps;
    if (isnan(c->lr)) c->lr = run->optimizer->default_lr;
    run->settings = (struct dpn_optimizer_settings){.lr = c->lr * scale,
                                                    .momentum = c->momentum,
                                                    .weight_decay = c->weight_decay,
                                                    .beta1 = c->beta1,
                                                    .beta2 = c->beta2,
                                                    .eps = c->eps,
                                                    .nesterov = c->nesterov};
    DPN_TRY(run->optimizer->check(&run->settings));
    run->n_slots = run->optimizer->n_slots(&run->settings);
    run->schedule = (struct dpn_schedule){.base_lr = c->lr * scale,
                                          .gamma = c->gamma,
                                          .min_lr = c->min_lr,
                                          .warmup_epochs = c->warmup_epochs,
                                          .steps_per_epoch = per_epoch,
                                          .total_steps = c->epochs * per_epoch};
    if (!strcmp(c->schedule, "cosine")) run->schedule.kind = DPN_SCHEDULE_COSINE;
    if (!strcmp(c->schedule, "step")) {
        run->schedule.kind = DPN_SCHEDULE_STEP;
        DPN_TRY(dpn_parse_double_list("--milestones", c->milestones, 0, 1e9, &run->milestones,
                                      &run->schedule.n_milestones));
        for (size_t i = 1; i < run->schedule.n_milestones; i++)
            if (run->milestones[i] <= run->milestones[i - 1])
                return dpn_fail(DPN_ERR_USAGE, "--milestones '%s' is not ascending", c->milestones);
        run->schedule.milestones = run->milestones;
    }
    if (c->steps > run->schedule.total_steps && run->schedule.kind == DPN_SCHEDULE_COSINE && run->training)
        run->schedule_short = 1;
    run->end_epoch = c->epochs;
    run->end_step = c->steps ? c->steps : UINT64_MAX;
    if (c->steps && !dpn_option_given(c, "epochs")) run->end_epoch = (c->steps - 1) / per_epoch + 1;
    return DPN_OK;
}

/* Who reduces and updates, and how; nothing is allocated that grows with the model. */
static enum dpn_status setup_mode(struct dpn_run *run)
{
    const struct dpn_config *c = run->config;
    struct dpn_reduce_group *group = &run->reduce_group;
    DPN_TRY(dpn_calloc(&run->reduce_nodes, run->group.n, sizeof(int), "reducer group"));
    for (size_t m = 0; m < run->group.n; m++) run->reduce_nodes[m] = run->group.devices[m].node;
    *group = (struct dpn_reduce_group){.n = (int)run->group.n,
                                       .node = run->reduce_nodes,
                                       .oversubscribed = run->group.oversubscribed,
                                       .abort = &run->group.abort,
                                       .kernels = run->kernels};
    for (size_t i = 0; dpn_mode_classes[i]; i++)
        if (!strcmp(dpn_mode_classes[i]->name, c->mode)) run->mode = dpn_mode_classes[i];
    if (!run->mode) return dpn_fail(DPN_ERR_USAGE, "--mode '%s' is unknown", c->mode);
    DPN_TRY(run->mode->check(run));
    DPN_TRY(dpn_reducer_select(c->reducer, group, &run->reducer_class));
    /* Teams are better at a whole arena than one thread at its slice; clipping and checking want the
     * gradient. */
    run->fused = run->training && run->mode->replicated_state && !c->check_reduce && c->clip_norm <= 0 &&
                 (run->reducer_class->flags & DPN_REDUCE_FUSED) != 0;
    for (size_t m = 0; m < run->group.n; m++) run->fused &= run->group.devices[m].threads == 1;
    run->fused_update = (struct dpn_reduce_update){dpn_update_fused, dpn_update_soon, run};
    if (run->fused) group->update = &run->fused_update;
    return DPN_OK;
}

static enum dpn_status setup_reducer(struct dpn_run *run)
{
    const struct dpn_config *c = run->config;
    DPN_TRY(dpn_bucket_plan_make(run->model->arena_elems, c->bucket_mb, &run->buckets, &run->plan.n_buckets));
    run->plan.buckets = run->buckets;
    if (c->dry_run) return DPN_OK;
    DPN_TRY(run->reducer_class->open(&run->reduce_group, &run->plan, &run->reducer));
    if (!c->check_reduce) return DPN_OK;
    struct dpn_reducer *inner = run->reducer;
    run->reducer = NULL;
    return dpn_reduce_check_open(&run->reduce_group, &run->plan, inner, &run->reducer);
}

/* What batch norms and the evaluation share among devices. */
static enum dpn_status setup_shared(struct dpn_run *run)
{
    const struct dpn_model *model = run->model;
    size_t chunks = run->group.n * DPN_EVAL_CHUNK, most = 0;
    size_t leaves = run->shards < run->batch ? (size_t)run->shards : run->batch;
    DPN_TRY(dpn_calloc(&run->eval_logits, chunks * model->values[model->logits].stride, sizeof(float),
                       "evaluation"));
    DPN_TRY(dpn_calloc(&run->eval_labels, chunks, sizeof(int32_t), "evaluation"));
    if (model->norms == 0) return DPN_OK;
    DPN_TRY(dpn_calloc(&run->buffers, model->buffer_elems, sizeof(float), "running statistics"));
    dpn_model_init_buffers(model, run->buffers);
    for (size_t i = 0; i < model->n_nodes; i++) {
        const struct dpn_node *node = &model->nodes[i];
        size_t elems = node->cls->moments_elems ? node->cls->moments_elems(model, node) : 0;
        if (elems > most) most = elems;
    }
    for (int i = 0; run->training && i < 2; i++) {
        DPN_TRY(dpn_calloc(&run->shard_moments[i], leaves * model->moments_elems, sizeof(double),
                           "moments of shards"));
        if (run->norm_sync)
            DPN_TRY(dpn_calloc(&run->exchange[i], leaves * most, sizeof(double), "moments of shards"));
    }
    return DPN_OK;
}

/* Only a dry run tells. */
static size_t setup_resident(const struct dpn_run *run)
{
    return run->config->dry_run ? dpn_rss_bytes() : 0;
}

static enum dpn_status setup_memory(struct dpn_run *run)
{
    run->norm_sync = run->training && run->model->norms > 0 && !strcmp(run->config->batch_norm, "sync");
    dpn_memory_plan(run);
    size_t resident = setup_resident(run);
    run->setup_bytes = resident > run->resume_bytes ? resident - run->resume_bytes : 0;
    return dpn_memory_check(run);
}

/* ---- files ---- */

static enum dpn_status setup_start_arena(const struct dpn_run *run, float **arena)
{
    return dpn_arena_alloc(arena, run->model->arena_elems * sizeof(float), "start weights");
}

static enum dpn_status setup_resume(struct dpn_run *run)
{
    struct dpn_checkpoint_arenas arenas = {.n_slots = run->n_slots,
                                           .buffers = run->buffers,
                                           .batches = &run->batches,
                                           .slot_names = run->optimizer->slots,
                                           .slots = run->start_state};
    const struct dpn_samples *train = &run->data.train;
    DPN_TRY(setup_start_arena(run, &run->start_params));
    for (int i = 0; i < run->n_slots; i++) DPN_TRY(setup_start_arena(run, &run->start_state[i]));
    arenas.params = run->start_params;
    if (run->record.data_samples != train->n || run->record.data_crc != train->crc)
        return dpn_fail(
            DPN_ERR_INPUT,
            "--resume '%s' was trained on other data (%llu samples, checksum %08x; here %zu, %08x)",
            dpn_checkpoint_path(run->resume), (unsigned long long)run->record.data_samples,
            run->record.data_crc, train->n, train->crc);
    if (run->record.devices != run->group.n && (run->config->batch_per_device || run->grad_sum))
        return dpn_fail(DPN_ERR_USAGE, "%s gives other numbers on %zu device(s) than on the %llu of '%s'",
                        run->grad_sum ? "--grad-op 'sum'" : "--batch-per-device", run->group.n,
                        (unsigned long long)run->record.devices, dpn_checkpoint_path(run->resume));
    if (run->record.step_in_epoch >= run->sampler.steps)
        return dpn_fail(DPN_ERR_INPUT, "--resume '%s' is at step %llu of an epoch of %zu",
                        dpn_checkpoint_path(run->resume), (unsigned long long)run->record.step_in_epoch,
                        run->sampler.steps);
    return dpn_checkpoint_load(run->resume, run->model, &arenas);
}

static enum dpn_status setup_weights(struct dpn_run *run)
{
    const struct dpn_config *c = run->config;
    const char *file = *c->checkpoint ? c->checkpoint : c->init;
    if (run->resume) return setup_resume(run);
    run->record = (struct dpn_progress_record){.best_accuracy = -1.0};
    if (!*file) return DPN_OK;
    DPN_TRY(setup_start_arena(run, &run->start_params));
    struct dpn_checkpoint_arenas arenas = {.params = run->start_params,
                                           .buffers = run->buffers,
                                           .batches = &run->batches};
    return dpn_weights_load(file, run->model, &arenas);
}

/* The folder that file PATH lies in. */
static void setup_folder_of(const char *path, char folder[PATH_MAX])
{
    const char *slash = strrchr(path, '/');
    if (slash) snprintf(folder, PATH_MAX, "%.*s", (int)(slash - path) + 1, path);
    else snprintf(folder, PATH_MAX, ".");
}

/* Whether the run goes on in the folder that it is resumed from; only then may --out hold checkpoints. */
static int setup_resumes_in_out(const struct dpn_run *run)
{
    char folder[PATH_MAX], from[PATH_MAX], out[PATH_MAX];
    setup_folder_of(dpn_checkpoint_path(run->resume), folder);
    return realpath(folder, from) && realpath(run->config->out, out) && !strcmp(from, out);
}

static enum dpn_status setup_log(struct dpn_run *run)
{
    const char *path = run->config->log;
    if (!*path) return DPN_OK;
    /* A resumed run goes on with its log: nothing of the first part is lost. */
    run->log_fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | (run->resume ? O_APPEND : O_TRUNC), 0666);
    if (run->log_fd < 0) return dpn_fail_errno(DPN_ERR_USAGE, errno, "--log '%s' cannot be opened", path);
    return DPN_OK;
}

/* What setup_log would refuse, found out without making a file. */
static enum dpn_status setup_check_log(const struct dpn_run *run)
{
    const char *path = run->config->log;
    struct stat about;
    if (!*path) return DPN_OK;
    if (stat(path, &about) == 0) {
        if (S_ISDIR(about.st_mode)) errno = EISDIR;
        else if (access(path, W_OK) == 0) return DPN_OK;
    } else if (errno == ENOENT) {
        char folder[PATH_MAX];
        setup_folder_of(path, folder);
        if (access(folder, W_OK | X_OK) == 0) return DPN_OK;
    }
    return dpn_fail_errno(DPN_ERR_USAGE, errno, "--log '%s' cannot be opened", path);
}

static enum dpn_status setup_files(struct dpn_run *run)
{
    const struct dpn_config *c = run->config;
    const int resumes = run->resume && setup_resumes_in_out(run);
    if (c->dry_run) {
        if (run->training && *c->out) DPN_TRY(dpn_checkpoint_dir_check(c->out, c->overwrite, resumes));
        return setup_check_log(run);
    }
    if (run->training && *c->out)
        DPN_TRY(dpn_checkpoint_dir_open(c->out, c->overwrite, resumes, c->keep, &run->out));
    return setup_log(run);
}

static int setup_nothing_to_do(struct dpn_run *run)
{
    if (!run->resume || (run->record.epoch < run->end_epoch && run->record.global_step < run->end_step))
        return 0;
    dpn_note("already at epoch %llu (step %llu), target %llu, nothing to do",
             (unsigned long long)run->record.epoch, (unsigned long long)run->record.global_step,
             (unsigned long long)(run->record.epoch >= run->end_epoch ? run->end_epoch : run->end_step));
    return 1;
}

enum dpn_status dpn_run_open(struct dpn_run *run, struct dpn_config *config, int training, uint64_t start_ns)
{
    int found = 0;
    *run = (struct dpn_run){.config = config, .training = training, .start_ns = start_ns, .log_fd = -1};
    dpn_json_init(&run->json);
    DPN_TRY(setup_check_resume(config));
    /* First, because it sets options: among them which kernels are used. */
    if (*config->resume) {
        size_t before = setup_resident(run);
        DPN_TRY(dpn_checkpoint_open(config->resume, config->out, config, &run->record, &found, &run->resume));
        size_t now = setup_resident(run);
        run->resume_bytes = now > before ? now - before : 0;
    }
    DPN_TRY(setup_check_options(run));
    DPN_TRY(setup_devices(run));
    DPN_TRY(dpn_optimizer_find(config->optimizer, &run->optimizer));
    DPN_TRY(setup_data(run));
    DPN_TRY(setup_batch(run));
    DPN_TRY(dpn_model_open(config->model, run->data.channels, run->data.height, run->data.width,
                           run->data.classes, &run->model));
    DPN_TRY(setup_schedule(run));
    DPN_TRY(setup_mode(run));
    enum dpn_status fits = setup_memory(run);
    if (fits != DPN_OK && config->dry_run) dpn_memory_report(run);
    DPN_TRY(fits);
    DPN_TRY(setup_reducer(run));
    DPN_TRY(setup_shared(run));
    DPN_TRY(setup_weights(run));
    run->record.shards = run->shards;
    run->record.data_samples = run->data.train.n;
    run->record.data_crc = run->data.train.crc;
    if (training && setup_nothing_to_do(run)) {
        run->finished = 1;
        return DPN_OK;
    }
    if (run->resume && run->record.devices != run->group.n)
        dpn_note(
            "note: the checkpoint was written by %llu device(s), this run has %zu: same shards, same numbers",
            (unsigned long long)run->record.devices, run->group.n);
    run->record.devices = run->group.n;
    return setup_files(run);
}

void dpn_run_close(struct dpn_run *run)
{
    size_t bytes = run->model ? run->model->arena_elems * sizeof(float) : 0;
    if (run->log_fd >= 0) close(run->log_fd);
    if (run->out) dpn_checkpoint_dir_close(run->out);
    if (run->resume) dpn_checkpoint_close(run->resume);
    dpn_arena_free(run->start_params, bytes);
    for (int i = 0; i < DPN_MAX_SLOTS; i++) dpn_arena_free(run->start_state[i], bytes);
    if (run->reducer) run->reducer->cls->close(run->reducer);
    free(run->buckets);
    free(run->reduce_nodes);
    free(run->milestones);
    if (run->model) dpn_model_close(run->model);
    free(run->buffers);
    for (int i = 0; i < 2; i++) free(run->shard_moments[i]);
    for (int i = 0; i < 2; i++) free(run->exchange[i]);
    free(run->eval_logits);
    free(run->eval_labels);
    free(run->eval_loss);
    free(run->eval_correct);
    for (int i = 0; i < 2; i++) free(run->shard_loss[i]);
    free(run->replicas);
    dpn_sampler_close(&run->sampler);
    dpn_dataset_close(&run->data);
    dpn_device_group_close(&run->group);
    if (run->topo) dpn_topo_close(run->topo);
    dpn_json_free(&run->json);
}
