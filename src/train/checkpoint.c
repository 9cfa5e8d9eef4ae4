/* Saving. Everything that can run out of space is done under temporary names first; what follows is renames,
 * in an order that leaves a complete checkpoint at every moment: either NAME or, while NAME is being
 * replaced, `last`. */
#include "train/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/memory.h"
#include "train/checkpoint_private.h"

enum { SAVE_COPY_BYTES = 1 << 20 };

enum save_which { SAVE_WEIGHTS, SAVE_STATE, SAVE_LAST_WEIGHTS, SAVE_LAST_STATE, SAVE_BEST, SAVE_N_FILES };

struct save_file {
    char name[DPN_CKPT_NAME_BYTES];
    char temp[DPN_CKPT_NAME_BYTES + 40];
    int there; /* the temporary file is */
};

struct save {
    struct dpn_checkpoint_dir *dir;
    const struct dpn_model *model;
    const struct dpn_checkpoint_arenas *arenas;
    struct save_file files[SAVE_N_FILES];
    float *scratch; /* the largest tensor, in PyTorch's order */
    int64_t batches;
    uint32_t weights_crc;
};

static enum dpn_status save_fail(const struct save *save, const char *name, int error, const char *what)
{
    return dpn_fail_errno(DPN_ERR_SYSTEM, error, "%s/%s: cannot %s", save->dir->path, name, what);
}

/* ---- tensors ---- */

/* A weights file holds the model's tensors, then its buffers, then a counter for each batch norm. */
static const void *save_weight_data(void *arg, size_t position)
{
    struct save *save = arg;
    const struct dpn_model *model = save->model;
    if (position >= model->n_tensors + model->n_buffers) return &save->batches;
    if (position < model->n_tensors)
        dpn_tensor_export(&model->tensors[position], save->arenas->params, save->scratch);
    else
        dpn_tensor_export(&model->buffers[position - model->n_tensors], save->arenas->buffers, save->scratch);
    return save->scratch;
}

static const void *save_slot_data(void *arg, size_t position)
{
    const struct save *save = arg;
    const size_t n = save->model->n_tensors;
    dpn_tensor_export(&save->model->tensors[position % n], save->arenas->slots[position / n], save->scratch);
    return save->scratch;
}

static struct dpn_st_source save_source(const struct dpn_tensor *tensor, const char *name,
                                        const void *(*data)(void *arg, size_t position))
{
    return (struct dpn_st_source){.name = name,
                                  .dtype = "F32",
                                  .rank = tensor->rank,
                                  .shape = tensor->shape,
                                  .data = data};
}

/* NAMES: room for a name per batch norm. */
static void save_weight_sources(struct save *save, struct dpn_st_source *sources,
                                char (*names)[DPN_NAME_BYTES + 32])
{
    static const char mean[] = ".running_mean";
    const struct dpn_model *model = save->model;
    size_t n = 0, norms = 0;
    for (size_t i = 0; i < model->n_tensors; i++, n++)
        sources[n] = save_source(&model->tensors[i], model->tensors[i].name, save_weight_data);
    for (size_t i = 0; i < model->n_buffers; i++, n++)
        sources[n] = save_source(&model->buffers[i], model->buffers[i].name, save_weight_data);
    for (size_t i = 0; i < model->n_buffers; i++) {
        const char *name = model->buffers[i].name;
        size_t owner = strlen(name) - (sizeof mean - 1);
        if (strcmp(name + owner, mean) != 0) continue;
        snprintf(names[norms], sizeof names[norms], "%.*s.num_batches_tracked", (int)owner, name);
        sources[n++] = (struct dpn_st_source){.name = names[norms++],
                                              .dtype = "I64",
                                              .data = save_weight_data};
    }
}

static enum dpn_status save_write_weights(struct save *save, int fd, const char *path)
{
    static const struct dpn_st_pair metadata[] = {{"format", "pt"}};
    const struct dpn_model *model = save->model;
    size_t n = model->n_tensors + model->n_buffers + model->norms;
    struct dpn_st_source *sources = NULL;
    char(*names)[DPN_NAME_BYTES + 32] = NULL;
    enum dpn_status status = dpn_calloc(&sources, n, sizeof(*sources), "checkpoint header");
    if (status == DPN_OK) status = dpn_calloc(&names, model->norms + 1, sizeof(*names), "checkpoint header");
    if (status == DPN_OK) {
        save_weight_sources(save, sources, names);
        status = dpn_st_write(fd, path, metadata, 1, sources, n, save, &save->weights_crc);
    }
    free(names);
    free(sources);
    return status;
}

static enum dpn_status save_write_state(struct save *save, int fd, const char *path,
                                        const struct dpn_ckpt_text *text)
{
    const struct dpn_model *model = save->model;
    const size_t n = model->n_tensors * (size_t)save->arenas->n_slots;
    struct dpn_st_source *sources = NULL;
    char **names = NULL;
    uint32_t crc;
    enum dpn_status status = dpn_calloc(&sources, n, sizeof(*sources), "checkpoint header");
    if (status == DPN_OK) status = dpn_calloc(&names, n, sizeof(*names), "checkpoint header");
    for (size_t i = 0; status == DPN_OK && i < n; i++) {
        const struct dpn_tensor *tensor = &model->tensors[i % model->n_tensors];
        names[i] = dpn_ckpt_slot_name(save->arenas->slot_names[i / model->n_tensors], tensor->name);
        if (!names[i]) status = dpn_fail(DPN_ERR_NOMEM, "%s: no memory for its header", path);
        sources[i] = save_source(tensor, names[i], save_slot_data);
    }
    if (status == DPN_OK) status = dpn_st_write(fd, path, text->pairs, text->n_pairs, sources, n, save, &crc);
    for (size_t i = 0; names && i < n; i++) free(names[i]);
    free(names);
    free(sources);
    return status;
}

/* ---- temporary files ---- */

static enum dpn_status save_create(struct save *save, enum save_which which, int *fd)
{
    struct save_file *file = &save->files[which];
    /* Whatever has that name is not followed or written into. */
    if (unlinkat(save->dir->fd, file->temp, 0) != 0 && errno != ENOENT)
        return save_fail(save, file->temp, errno, "remove it");
    *fd = openat(save->dir->fd, file->temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (*fd < 0) return save_fail(save, file->name, errno, "create it");
    file->there = 1;
    return DPN_OK;
}

/* Ends a temporary file: its bytes are on the disk before any name points to them. */
static enum dpn_status save_finish(struct save *save, enum save_which which, int fd, enum dpn_status status)
{
    if (status == DPN_OK && fsync(fd) != 0)
        status = save_fail(save, save->files[which].name, errno, "sync it");
    if (close(fd) != 0 && status == DPN_OK)
        status = save_fail(save, save->files[which].name, errno, "close it");
    return status;
}

/* TEXT: the record of a state file, NULL for weights. */
static enum dpn_status save_write(struct save *save, enum save_which which, const struct dpn_ckpt_text *text)
{
    int fd;
    DPN_TRY(save_create(save, which, &fd));
    char *path = dpn_ckpt_path(save->dir->path, save->files[which].name, "");
    enum dpn_status status = path ? DPN_OK : dpn_fail(DPN_ERR_NOMEM, "no memory to save a checkpoint");
    if (status == DPN_OK)
        status = text ? save_write_state(save, fd, path, text) : save_write_weights(save, fd, path);
    free(path);
    return save_finish(save, which, fd, status);
}

static enum dpn_status save_copy_bytes(struct save *save, const char *name, int from, int to)
{
    enum dpn_status status = DPN_OK;
    char *buffer;
    DPN_TRY(dpn_calloc(&buffer, SAVE_COPY_BYTES, 1, "copying a checkpoint"));
    for (;;) {
        ssize_t got = read(from, buffer, SAVE_COPY_BYTES);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) status = save_fail(save, name, errno, "copy it");
        if (got <= 0) break;
        for (ssize_t done = 0; done < got && status == DPN_OK;) {
            ssize_t written = write(to, buffer + done, (size_t)(got - done));
            if (written < 0 && errno != EINTR) status = save_fail(save, name, errno, "write");
            if (written > 0) done += written;
        }
        if (status != DPN_OK) break;
    }
    free(buffer);
    return status;
}

static enum dpn_status save_copy(struct save *save, enum save_which from, enum save_which to)
{
    int target;
    int source = openat(save->dir->fd, save->files[from].temp, O_RDONLY | O_CLOEXEC);
    if (source < 0) return save_fail(save, save->files[from].name, errno, "read it");
    enum dpn_status status = save_create(save, to, &target);
    if (status == DPN_OK) {
        status = save_copy_bytes(save, save->files[to].name, source, target);
        status = save_finish(save, to, target, status);
    }
    close(source);
    return status;
}

/* A second temporary name for the same file, or a copy where the file system has no links. */
static enum dpn_status save_link(struct save *save, enum save_which from, enum save_which to)
{
    struct save_file *file = &save->files[to];
    const int fd = save->dir->fd;
    if (unlinkat(fd, file->temp, 0) != 0 && errno != ENOENT)
        return save_fail(save, file->temp, errno, "remove it");
    if (linkat(fd, save->files[from].temp, fd, file->temp, 0) == 0) {
        file->there = 1;
        return DPN_OK;
    }
    switch (errno) {
    case EPERM:
    case EMLINK:
    case ENOSYS:
    case EOPNOTSUPP: return save_copy(save, from, to);
    default: return save_fail(save, file->name, errno, "link it");
    }
}

/* ---- renames ---- */

static enum dpn_status save_publish(struct save *save, enum save_which which)
{
    struct save_file *file = &save->files[which];
    if (!file->there) return DPN_OK;
    if (renameat(save->dir->fd, file->temp, save->dir->fd, file->name) != 0)
        return save_fail(save, file->name, errno, "rename the new file to it");
    file->there = 0;
    return DPN_OK;
}

static enum dpn_status save_sync_dir(const struct save *save)
{
    if (fsync(save->dir->fd) != 0 && errno != EINVAL) /* EINVAL: not for folders of this file system */
        return dpn_fail_errno(DPN_ERR_SYSTEM, errno, "%s: cannot sync the folder", save->dir->path);
    return DPN_OK;
}

static enum dpn_status save_publish_all(struct save *save)
{
    DPN_TRY(save_publish(save, SAVE_WEIGHTS));
    /* Before the state, whose record says how good the best is: it is never better than best.safetensors. */
    DPN_TRY(save_publish(save, SAVE_BEST));
    DPN_TRY(save_sync_dir(save)); /* the weights' name reaches the disk before the state's */
    DPN_TRY(save_publish(save, SAVE_STATE));
    DPN_TRY(save_sync_dir(save)); /* NAME is complete before `last` lets go of its predecessor */
    DPN_TRY(save_publish(save, SAVE_LAST_WEIGHTS));
    DPN_TRY(save_publish(save, SAVE_LAST_STATE));
    return save_sync_dir(save); /* and `last` is, before a predecessor is pruned */
}

static enum dpn_status save_prepare_all(struct save *save, const struct dpn_config *config,
                                        const struct dpn_progress_record *record, int best)
{
    struct dpn_ckpt_text text;
    DPN_TRY(save_write(save, SAVE_WEIGHTS, NULL));
    enum dpn_status status = dpn_ckpt_text_make(save->model, config, record, save->weights_crc, &text);
    if (status == DPN_OK) status = save_write(save, SAVE_STATE, &text);
    dpn_ckpt_text_free(&text);
    DPN_TRY(status);
    DPN_TRY(save_link(save, SAVE_WEIGHTS, SAVE_LAST_WEIGHTS));
    DPN_TRY(save_link(save, SAVE_STATE, SAVE_LAST_STATE));
    return best ? save_link(save, SAVE_WEIGHTS, SAVE_BEST) : DPN_OK;
}

static void save_name_files(struct save *save, const char *stem)
{
    const char *const stems[SAVE_N_FILES] = {stem, stem, "last", "last", "best"};
    for (int i = 0; i < SAVE_N_FILES; i++) {
        struct save_file *file = &save->files[i];
        snprintf(file->name, sizeof(file->name), "%s%s", stems[i],
                 i == SAVE_STATE || i == SAVE_LAST_STATE ? DPN_STATE_SUFFIX : DPN_WEIGHTS_SUFFIX);
        snprintf(file->temp, sizeof(file->temp), DPN_CKPT_TEMP_PREFIX "%ld-%s", (long)getpid(), file->name);
    }
}

enum dpn_status dpn_checkpoint_save(struct dpn_checkpoint_dir *dir, const struct dpn_model *model,
                                    const struct dpn_config *config, const struct dpn_progress_record *record,
                                    const struct dpn_checkpoint_arenas *arenas, int best)
{
    struct save save = {.dir = dir, .model = model, .arenas = arenas, .batches = (int64_t)*arenas->batches};
    char stem[DPN_CKPT_STEM_BYTES];
    size_t largest = 0;
    if (record->step_in_epoch == 0) snprintf(stem, sizeof(stem), "epoch-%04" PRIu64, record->epoch);
    else snprintf(stem, sizeof(stem), "step-%08" PRIu64, record->global_step);
    save_name_files(&save, stem);
    for (size_t i = 0; i < model->n_tensors; i++)
        if (model->tensors[i].elems > largest) largest = model->tensors[i].elems;
    for (size_t i = 0; i < model->n_buffers; i++)
        if (model->buffers[i].elems > largest) largest = model->buffers[i].elems;

    enum dpn_status status = dpn_calloc(&save.scratch, largest, sizeof(float), "saving a checkpoint");
    if (status == DPN_OK) status = save_prepare_all(&save, config, record, best);
    if (status == DPN_OK) status = save_publish_all(&save);
    for (int i = 0; i < SAVE_N_FILES; i++)
        if (save.files[i].there) unlinkat(dir->fd, save.files[i].temp, 0);
    free(save.scratch);
    DPN_TRY(status);
    dpn_ckpt_tidy(dir, stem, best);
    return DPN_OK;
}
