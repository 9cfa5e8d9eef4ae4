/* Loading: weights of any safetensors file, and checkpoints, whose two files must be sound and belong
 * together. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/log.h"
#include "core/memory.h"
#include "train/checkpoint_private.h"

/* ---- tensors into an arena ---- */

static void load_shape_text(unsigned rank, const uint64_t *shape, char *text, size_t size)
{
    size_t at = (size_t)snprintf(text, size, "[");
    for (unsigned i = 0; i < rank && at < size; i++)
        at += (size_t)snprintf(text + at, size - at, "%s%" PRIu64, i ? ", " : "", shape[i]);
    if (at < size) snprintf(text + at, size - at, "]");
}

/* The tensor NAME of FILE, which must be F32 and of TENSOR's shape. */
static enum dpn_status load_find(const struct dpn_st_file *file, const char *name,
                                 const struct dpn_tensor *tensor, const struct dpn_st_tensor **found)
{
    const struct dpn_st_tensor *there = dpn_st_find(file, name);
    if (!there) return dpn_fail(DPN_ERR_INPUT, "%s: has no tensor \"%s\"", file->path, name);
    if (strcmp(there->dtype, "F32") != 0)
        return dpn_fail(DPN_ERR_INPUT, "%s: tensor \"%s\" is %s, not F32", file->path, name, there->dtype);
    uint64_t shape[4];
    int same = there->rank == tensor->rank;
    for (unsigned i = 0; i < tensor->rank; i++) {
        shape[i] = tensor->shape[i];
        same = same && there->shape[i] == shape[i];
    }
    if (!same) {
        char mine[128], theirs[128];
        load_shape_text(tensor->rank, shape, mine, sizeof(mine));
        load_shape_text(there->rank, there->shape, theirs, sizeof(theirs));
        return dpn_fail(DPN_ERR_INPUT, "%s: tensor \"%s\" has shape %s, the model's has %s", file->path, name,
                        theirs, mine);
    }
    *found = there;
    return DPN_OK;
}

/* Where the tensors of a file go: those of the model, once for every slot (one slot "" for weights), then
 * buffers. */
struct load {
    const struct dpn_st_file *file;
    const struct dpn_model *model;
    size_t n_slots;
    const char *const *slot_names; /* NULL: plain names */
    float *const *arenas;
    float *buffers; /* NULL: the file holds none */
    uint64_t *batches;
    size_t n;                           /* of what is wanted */
    const struct dpn_st_tensor **found; /* [slot][tensor], [buffer] */
    float *scratch;
};

static const struct dpn_tensor *load_wanted(const struct load *load, size_t i, float **arena)
{
    const size_t n = load->model->n_tensors;
    int buffer = i >= load->n_slots * n;
    *arena = buffer ? load->buffers : load->arenas[i / n];
    return buffer ? &load->model->buffers[i - load->n_slots * n] : &load->model->tensors[i % n];
}

static enum dpn_status load_find_all(struct load *load)
{
    const size_t n = load->model->n_tensors;
    for (size_t i = 0; i < load->n; i++) {
        float *arena;
        const struct dpn_tensor *tensor = load_wanted(load, i, &arena);
        if (!load->slot_names) {
            DPN_TRY(load_find(load->file, tensor->name, tensor, &load->found[i]));
            continue;
        }
        char *name = dpn_ckpt_slot_name(load->slot_names[i / n], tensor->name);
        if (!name) return dpn_fail(DPN_ERR_NOMEM, "%s: no memory to load it", load->file->path);
        enum dpn_status status = load_find(load->file, name, tensor, &load->found[i]);
        free(name);
        DPN_TRY(status);
    }
    return DPN_OK;
}

/* PyTorch counts batches in every batch norm; nothing here depends on it. */
static int load_is_counter(const char *name)
{
    static const char suffix[] = ".num_batches_tracked";
    const size_t length = strlen(name);
    return length >= sizeof(suffix) - 1 && strcmp(name + length - (sizeof(suffix) - 1), suffix) == 0;
}

static enum dpn_status load_refuse_others(const struct load *load)
{
    for (size_t t = 0; t < load->file->n_tensors; t++) {
        const struct dpn_st_tensor *there = &load->file->tensors[t];
        int wanted = load_is_counter(there->name);
        for (size_t i = 0; !wanted && i < load->n; i++) wanted = load->found[i] == there;
        if (!wanted)
            return dpn_fail(DPN_ERR_INPUT, "%s: tensor \"%s\" is not one of model %s", load->file->path,
                            there->name, load->model->spec);
    }
    return DPN_OK;
}

static enum dpn_status load_check(struct load *load)
{
    size_t largest = 0;
    load->n = load->n_slots * load->model->n_tensors + (load->buffers ? load->model->n_buffers : 0);
    for (size_t i = 0; i < load->n; i++) {
        float *arena;
        const struct dpn_tensor *tensor = load_wanted(load, i, &arena);
        if (tensor->elems > largest) largest = tensor->elems;
    }
    DPN_TRY(dpn_calloc(&load->found, load->n, sizeof(*load->found), "loading tensors"));
    DPN_TRY(load_find_all(load));
    DPN_TRY(load_refuse_others(load));
    return dpn_calloc(&load->scratch, largest, sizeof(float), "loading tensors");
}

/* One counter serves for all: they count the same batches. A file of others need not have any. */
static void load_counter(const struct load *load)
{
    for (size_t t = 0; load->batches && t < load->file->n_tensors; t++) {
        const struct dpn_st_tensor *there = &load->file->tensors[t];
        int64_t value;
        if (!load_is_counter(there->name) || strcmp(there->dtype, "I64") != 0 || there->elems != 1) continue;
        memcpy(&value, load->file->data + there->begin, sizeof value);
        if (value < 0) continue;
        *load->batches = (uint64_t)value;
        return;
    }
}

static void load_import(const struct load *load)
{
    for (size_t i = 0; i < load->n; i++) {
        const struct dpn_st_tensor *there = load->found[i];
        float *arena;
        const struct dpn_tensor *tensor = load_wanted(load, i, &arena);
        /* By way of memory of our own: a file of others need not align its tensors. */
        memcpy(load->scratch, load->file->data + there->begin, there->end - there->begin);
        dpn_tensor_import(tensor, load->scratch, arena);
    }
    load_counter(load);
}

static void load_free(struct load *load)
{
    free(load->found);
    free(load->scratch);
}

enum dpn_status dpn_weights_load(const char *path, const struct dpn_model *model,
                                 const struct dpn_checkpoint_arenas *arenas)
{
    struct dpn_st_file *file;
    int ours;
    uint32_t crc;
    DPN_TRY(dpn_st_open(path, &file));
    struct load load = {.file = file,
                        .model = model,
                        .n_slots = 1,
                        .arenas = &arenas->params,
                        .buffers = arenas->buffers,
                        .batches = arenas->batches};
    enum dpn_status status = dpn_st_verify(file, &ours, &crc);
    if (status == DPN_OK && dpn_st_metadata(file, "weights_crc32"))
        status =
            dpn_fail(DPN_ERR_INPUT,
                     "%s: is the state file of a checkpoint; the weights are in the file without \".state\"",
                     path);
    if (status == DPN_OK) status = load_check(&load);
    if (status == DPN_OK) load_import(&load);
    load_free(&load);
    dpn_st_close(file);
    return status;
}

/* ---- a checkpoint's two files ---- */

static enum dpn_status load_open_verified(const char *folder, const char *stem, const char *suffix,
                                          struct dpn_st_file **file, uint32_t *crc)
{
    int ours;
    char *path = dpn_ckpt_path(folder, stem, suffix);
    if (!path) return dpn_fail(DPN_ERR_NOMEM, "no memory to open a checkpoint");
    enum dpn_status status = dpn_st_open(path, file);
    if (status == DPN_OK) status = dpn_st_verify(*file, &ours, crc);
    if (status == DPN_OK && !ours) status = dpn_fail(DPN_ERR_INPUT, "%s: was not written by dpnode", path);
    free(path);
    return status;
}

static enum dpn_status load_open_files(struct dpn_checkpoint *checkpoint, const char *folder,
                                       const char *stem, struct dpn_progress_record *record, int *mismatch)
{
    uint32_t weights_crc, state_crc;
    DPN_TRY(load_open_verified(folder, stem, DPN_STATE_SUFFIX, &checkpoint->state, &state_crc));
    DPN_TRY(dpn_ckpt_record_read(checkpoint->state, record));
    DPN_TRY(load_open_verified(folder, stem, DPN_WEIGHTS_SUFFIX, &checkpoint->weights, &weights_crc));
    checkpoint->path = strdup(checkpoint->weights->path);
    if (!checkpoint->path) return dpn_fail(DPN_ERR_NOMEM, "no memory to open a checkpoint");

    char text[9];
    const char *wanted = dpn_st_metadata(checkpoint->state, "weights_crc32");
    snprintf(text, sizeof(text), "%08" PRIx32, weights_crc);
    *mismatch = !wanted || strcmp(wanted, text) != 0;
    if (*mismatch)
        return dpn_fail(DPN_ERR_INPUT,
                        "%s: does not belong to its state file: CRC-32 is %s, the state was saved with %s",
                        checkpoint->path, text, wanted ? wanted : "none");
    return DPN_OK;
}

enum dpn_status dpn_ckpt_open_pair(const char *folder, const char *stem, struct dpn_progress_record *record,
                                   int *mismatch, struct dpn_checkpoint **out)
{
    struct dpn_checkpoint *checkpoint;
    *out = NULL;
    *mismatch = 0;
    DPN_TRY(dpn_calloc(&checkpoint, 1, sizeof(*checkpoint), "checkpoint"));
    enum dpn_status status = load_open_files(checkpoint, folder, stem, record, mismatch);
    if (status == DPN_OK) *out = checkpoint;
    else dpn_checkpoint_close(checkpoint);
    return status;
}

/* The newest complete checkpoint of FOLDER. *N: checkpoints seen. */
static enum dpn_status load_newest(const char *folder, struct dpn_progress_record *record, size_t *n,
                                   struct dpn_checkpoint **checkpoint)
{
    struct dpn_ckpt_entry *entries;
    int mismatch;
    enum dpn_status status = DPN_OK;
    DPN_TRY(dpn_ckpt_list(folder, &entries, n));
    for (size_t i = 0; i < *n; i++) {
        status = dpn_ckpt_open_pair(folder, entries[i].stem, record, &mismatch, checkpoint);
        if (status != DPN_ERR_INPUT) break;
        dpn_warn("skipping checkpoint %s/%s: %s", folder, entries[i].stem, dpn_error_text());
    }
    free(entries);
    if (status == DPN_ERR_INPUT)
        return dpn_fail(DPN_ERR_INPUT, "%s: none of its %zu checkpoints is complete and sound", folder, *n);
    return status;
}

static enum dpn_status load_auto(const char *folder, struct dpn_progress_record *record, int *found,
                                 struct dpn_checkpoint **checkpoint)
{
    struct stat info;
    size_t n = 0;
    if (!folder || folder[0] == '\0')
        return dpn_fail(DPN_ERR_USAGE, "--resume auto needs --out, the folder to look in");
    if (stat(folder, &info) != 0) return DPN_OK; /* nothing was ever saved there */
    DPN_TRY(load_newest(folder, record, &n, checkpoint));
    *found = n > 0;
    return DPN_OK;
}

/* Cuts PATH into *FOLDER (malloc'd) and *STEM (malloc'd). */
static enum dpn_status load_split(const char *path, char **folder, char **stem)
{
    static const char *const suffixes[] = {DPN_STATE_SUFFIX, DPN_WEIGHTS_SUFFIX};
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    const size_t length = strlen(name);
    for (int i = 0; i < 2; i++) {
        const size_t suffix = strlen(suffixes[i]);
        if (length <= suffix || strcmp(name + length - suffix, suffixes[i]) != 0) continue;
        *stem = strndup(name, length - suffix);
        *folder = slash == path ? strdup("") : slash ? strndup(path, (size_t)(slash - path)) : strdup(".");
        return *stem && *folder ? DPN_OK : dpn_fail(DPN_ERR_NOMEM, "no memory to open a checkpoint");
    }
    return dpn_fail(DPN_ERR_USAGE, "--resume %s: want \"auto\" or a file NAME.safetensors", path);
}

/* Opens STEM of FOLDER; *BROKEN: its weights are there, but not the state that was saved with them. */
static enum dpn_status load_pair(const char *path, const char *folder, const char *stem,
                                 struct dpn_progress_record *record, int *broken,
                                 struct dpn_checkpoint **checkpoint)
{
    char *state = dpn_ckpt_path(folder, stem, DPN_STATE_SUFFIX);
    char *weights = dpn_ckpt_path(folder, stem, DPN_WEIGHTS_SUFFIX);
    enum dpn_status status;
    *broken = 0;
    if (!state || !weights) {
        status = dpn_fail(DPN_ERR_NOMEM, "no memory to open a checkpoint");
    } else if (access(weights, F_OK) == 0 && access(state, F_OK) != 0) {
        *broken = 1;
        status = dpn_fail(DPN_ERR_INPUT,
                          "--resume %s: there is no %s beside it (weights alone start a run with --init)",
                          path, state);
    } else {
        status = dpn_ckpt_open_pair(folder, stem, record, broken, checkpoint);
    }
    free(state);
    free(weights);
    return status;
}

static enum dpn_status load_named(const char *path, struct dpn_progress_record *record, int *found,
                                  struct dpn_checkpoint **checkpoint)
{
    char *folder = NULL, *stem = NULL;
    int broken = 0;
    size_t n = 0;
    enum dpn_status status = load_split(path, &folder, &stem);
    if (status == DPN_OK) status = load_pair(path, folder, stem, record, &broken, checkpoint);
    /* Killed between the two renames of `last`: what both names stood for is still there under its number. */
    if (broken && strcmp(stem, "last") == 0) {
        dpn_warn("%s; taking the newest complete checkpoint of %s", dpn_error_text(), folder);
        status = load_newest(folder, record, &n, checkpoint);
        if (status == DPN_OK && n == 0)
            status = dpn_fail(DPN_ERR_INPUT, "--resume %s: no checkpoint in %s", path, folder);
    }
    *found = status == DPN_OK;
    free(stem);
    free(folder);
    return status;
}

enum dpn_status dpn_checkpoint_open(const char *path, const char *dir, struct dpn_config *config,
                                    struct dpn_progress_record *record, int *found,
                                    struct dpn_checkpoint **checkpoint)
{
    *checkpoint = NULL;
    *found = 0;
    if (strcmp(path, "auto") == 0) DPN_TRY(load_auto(dir, record, found, checkpoint));
    else DPN_TRY(load_named(path, record, found, checkpoint));
    if (!*found) return DPN_OK;

    struct dpn_checkpoint *opened = *checkpoint;
    enum dpn_status status = dpn_ckpt_apply_options(opened->state, record, config, &opened->texts,
                                                    &opened->n_texts);
    if (status == DPN_OK) return DPN_OK;
    dpn_checkpoint_close(opened);
    *checkpoint = NULL;
    *found = 0;
    return status;
}

enum dpn_status dpn_checkpoint_load(struct dpn_checkpoint *checkpoint, const struct dpn_model *model,
                                    const struct dpn_checkpoint_arenas *arenas)
{
    const char *spec = dpn_st_metadata(checkpoint->state, "model");
    if (!spec || strcmp(spec, model->spec) != 0)
        return dpn_fail(DPN_ERR_INPUT, "%s: holds model %s, this run's is %s", checkpoint->state->path,
                        spec ? spec : "none", model->spec);
    struct load weights = {.file = checkpoint->weights,
                           .model = model,
                           .n_slots = 1,
                           .arenas = &arenas->params,
                           .buffers = arenas->buffers,
                           .batches = arenas->batches};
    struct load state = {.file = checkpoint->state,
                         .model = model,
                         .n_slots = (size_t)arenas->n_slots,
                         .slot_names = arenas->slot_names,
                         .arenas = arenas->slots};
    enum dpn_status status = load_check(&weights);
    if (status == DPN_OK) status = load_check(&state);
    if (status == DPN_OK) {
        load_import(&weights);
        load_import(&state);
        /* A mapped file keeps its disk space after it is pruned. */
        dpn_st_close(checkpoint->weights);
        dpn_st_close(checkpoint->state);
        checkpoint->weights = checkpoint->state = NULL;
    }
    load_free(&weights);
    load_free(&state);
    return status;
}

const char *dpn_checkpoint_path(const struct dpn_checkpoint *checkpoint)
{
    return checkpoint->path;
}

void dpn_checkpoint_close(struct dpn_checkpoint *checkpoint)
{
    if (!checkpoint) return;
    dpn_st_close(checkpoint->weights);
    dpn_st_close(checkpoint->state);
    for (size_t i = 0; i < checkpoint->n_texts; i++) free(checkpoint->texts[i]);
    free(checkpoint->texts);
    free(checkpoint->path);
    free(checkpoint);
}
