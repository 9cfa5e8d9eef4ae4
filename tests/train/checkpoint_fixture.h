/* A small model by hand and scratch folders, for the suites on checkpoints.
 *
 * Every number that checkpoint S holds follows from S, so that a loaded checkpoint can be checked against its
 * record.
 */
#ifndef DPN_TESTS_TRAIN_CHECKPOINT_FIXTURE_H
#define DPN_TESTS_TRAIN_CHECKPOINT_FIXTURE_H

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "nn/nn.h"
#include "train/checkpoint.h"

enum { FIXTURE_ARENA_ELEMS = 1024, FIXTURE_SLOTS = 2, FIXTURE_PATH_BYTES = 512 };

static struct dpn_tensor fixture_tensors[3], fixture_buffers[2];
static struct dpn_model fixture_model = {.spec = "mlp:hidden=3",
                                         .n_tensors = 3,
                                         .n_buffers = 2,
                                         .norms = 1,
                                         .tensors = fixture_tensors,
                                         .buffers = fixture_buffers,
                                         .arena_elems = FIXTURE_ARENA_ELEMS,
                                         .buffer_elems = FIXTURE_ARENA_ELEMS};
static const char *const fixture_slot_names[FIXTURE_SLOTS] = {"exp_avg", "exp_avg_sq"};
static struct dpn_config fixture_config;
static char fixture_folder[FIXTURE_PATH_BYTES]; /* scratch */

static uint64_t fixture_salt; /* 0 or 1: runs that save other numbers at the same step */

/* The arenas of a run. */
struct fixture_arenas {
    float params[FIXTURE_ARENA_ELEMS];
    float buffers[FIXTURE_ARENA_ELEMS];
    uint64_t batches;
    float slots[FIXTURE_SLOTS][FIXTURE_ARENA_ELEMS];
    float *slot[FIXTURE_SLOTS];
    struct dpn_checkpoint_arenas arenas;
};

static inline void fixture_open(void)
{
    static const struct dpn_tensor tensors[3] = {
        {.name = "fc1.weight", .rank = 2, .shape = {3, 5}, .elems = 15, .layout = DPN_LAYOUT_PANEL,
         .rows = {1, 5, 5}, .offset = 0, .stored = 80},
        {.name = "fc1.bias", .rank = 1, .shape = {3}, .elems = 3, .offset = 80, .stored = 16},
        {.name = "scale", .rank = 0, .elems = 1, .offset = 96, .stored = 16},
    };
    static const struct dpn_tensor buffers[2] = {
        {.name = "norm.1.running_mean", .rank = 1, .shape = {4}, .elems = 4, .offset = 0, .stored = 16},
        {.name = "norm.1.running_var", .rank = 1, .shape = {4}, .elems = 4, .offset = 16, .stored = 16},
    };
    memcpy(fixture_tensors, tensors, sizeof(tensors));
    memcpy(fixture_buffers, buffers, sizeof(buffers));
    dpn_config_defaults(&fixture_config);
    /* Memory where there is some: ext4 waits for the disk when a rename replaces a file. */
    const char *base = getenv("TMPDIR");
    if (!base) base = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    snprintf(fixture_folder, sizeof(fixture_folder), "%s/dpnode-test-XXXXXX", base);
    if (!mkdtemp(fixture_folder)) abort();
}

static inline const char *fixture_path(const char *name)
{
    static char paths[4][2 * FIXTURE_PATH_BYTES];
    static int turn;
    char *path = paths[turn++ % 4];
    snprintf(path, sizeof(paths[0]), "%s/%s", fixture_folder, name);
    return path;
}

/* Number of files in folder NAME whose names begin with PREFIX. */
static inline int fixture_count(const char *name, const char *prefix)
{
    int n = 0;
    DIR *stream = opendir(fixture_path(name));
    if (!stream) return -1;
    for (struct dirent *entry; (entry = readdir(stream));)
        n += strncmp(entry->d_name, prefix, strlen(prefix)) == 0 && strcmp(entry->d_name, ".") != 0 &&
             strcmp(entry->d_name, "..") != 0;
    closedir(stream);
    return n;
}

static inline int fixture_exists(const char *name)
{
    return access(fixture_path(name), F_OK) == 0;
}

static inline int fixture_remove_one(const char *path, const struct stat *info, int kind, struct FTW *where)
{
    (void)info;
    (void)kind;
    (void)where;
    return remove(path);
}

static inline void fixture_remove(const char *name)
{
    nftw(fixture_path(name), fixture_remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static inline void fixture_close(void)
{
    fixture_remove("");
}

static inline float fixture_value(uint64_t step, int arena, size_t tensor, size_t elem)
{
    return (float)(step * 1000 + (uint64_t)arena * 100 + tensor * 20 + elem + fixture_salt * 500000) + 0.25f;
}

/* Arena ARENA (0: params) of STEP, by way of PyTorch's order. */
static inline void fixture_fill_arena(uint64_t step, int arena, float *at)
{
    memset(at, 0, FIXTURE_ARENA_ELEMS * sizeof(*at));
    for (size_t t = 0; t < fixture_model.n_tensors; t++) {
        float values[32];
        for (size_t i = 0; i < fixture_tensors[t].elems; i++) values[i] = fixture_value(step, arena, t, i);
        dpn_tensor_import(&fixture_tensors[t], values, at);
    }
}

static inline void fixture_fill_buffers(uint64_t step, float *at)
{
    memset(at, 0, FIXTURE_ARENA_ELEMS * sizeof(*at));
    for (size_t b = 0; b < fixture_model.n_buffers; b++)
        for (size_t i = 0; i < fixture_buffers[b].elems; i++)
            at[fixture_buffers[b].offset + i] = fixture_value(step, 7, b, i);
}

/* Arenas of STEP; UINT64_MAX: all zero. */
static inline void fixture_fill(struct fixture_arenas *memory, uint64_t step)
{
    memset(memory, 0, sizeof(*memory));
    for (int s = 0; s < FIXTURE_SLOTS; s++) memory->slot[s] = memory->slots[s];
    memory->arenas = (struct dpn_checkpoint_arenas){.params = memory->params,
                                                    .buffers = memory->buffers,
                                                    .batches = &memory->batches,
                                                    .n_slots = FIXTURE_SLOTS,
                                                    .slot_names = fixture_slot_names,
                                                    .slots = memory->slot};
    if (step == UINT64_MAX) return;
    fixture_fill_arena(step, 0, memory->params);
    fixture_fill_buffers(step, memory->buffers);
    memory->batches = step + (UINT64_C(1) << 40);
    for (int s = 0; s < FIXTURE_SLOTS; s++) fixture_fill_arena(step, s + 1, memory->slots[s]);
}

/* Checkpoint "epoch-<step>" of four-step epochs if STEP is a multiple of 4, else "step-<step>". */
static inline struct dpn_progress_record fixture_record(uint64_t step)
{
    return (struct dpn_progress_record){.epoch = step / 4,
                                        .step_in_epoch = step % 4,
                                        .global_step = step,
                                        .samples = step * 64 + fixture_salt,
                                        .shards = 6,
                                        .devices = 2,
                                        .best_accuracy = 0.1 + (double)step / 3,
                                        .epoch_loss_sum = (double)step / 7,
                                        .data_samples = 60000,
                                        .data_crc = 0x0badcafe};
}

static inline enum dpn_status fixture_save(struct dpn_checkpoint_dir *dir, uint64_t step, int best)
{
    struct fixture_arenas memory;
    const struct dpn_progress_record record = fixture_record(step);
    fixture_fill(&memory, step);
    return dpn_checkpoint_save(dir, &fixture_model, &fixture_config, &record, &memory.arenas, best);
}

/* Whether RECORD and LOADED are all of one step and one salt. */
static inline int fixture_is_exact(const struct dpn_progress_record *record,
                                   const struct fixture_arenas *loaded)
{
    struct fixture_arenas wanted;
    const uint64_t salt = fixture_salt;
    fixture_salt = record->samples - record->global_step * 64;
    fixture_fill(&wanted, record->global_step);
    const struct dpn_progress_record saved = fixture_record(record->global_step);
    fixture_salt = salt;
    return memcmp(loaded->params, wanted.params, sizeof(wanted.params)) == 0 &&
           memcmp(loaded->buffers, wanted.buffers, sizeof(wanted.buffers)) == 0 &&
           loaded->batches == wanted.batches &&
           memcmp(loaded->slots, wanted.slots, sizeof(wanted.slots)) == 0 && record->epoch == saved.epoch &&
           record->step_in_epoch == saved.step_in_epoch && record->shards == 6 && record->devices == 2 &&
           record->best_accuracy == saved.best_accuracy && record->epoch_loss_sum == saved.epoch_loss_sum &&
           record->data_samples == 60000 && record->data_crc == saved.data_crc;
}

/* Resumes from PATH ("auto": of folder NAME): *STEP is the step found, 0 if none; *EXACT whether all tensors
 * and the record are that step's. */
static inline enum dpn_status fixture_resume(const char *path, const char *name, uint64_t *step, int *exact)
{
    struct dpn_config config;
    struct dpn_progress_record record;
    struct dpn_checkpoint *checkpoint;
    struct fixture_arenas loaded;
    int found;
    *step = 0;
    *exact = 0;
    dpn_config_defaults(&config);
    DPN_TRY(
        dpn_checkpoint_open(path, name ? fixture_path(name) : NULL, &config, &record, &found, &checkpoint));
    if (!found) return DPN_OK;
    fixture_fill(&loaded, UINT64_MAX);
    enum dpn_status status = dpn_checkpoint_load(checkpoint, &fixture_model, &loaded.arenas);
    *step = record.global_step;
    *exact = config.shards == 6 && fixture_is_exact(&record, &loaded);
    dpn_checkpoint_close(checkpoint);
    return status;
}

#endif
