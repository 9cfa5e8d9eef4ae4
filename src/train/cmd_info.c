/* `dpnode info FILE`: what a checkpoint, a safetensors file, an IDX file, a NumPy array, a batch file of
 * CIFAR-10 or a folder of them holds, and whether it is sound. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/log.h"
#include "core/memory.h"
#include "data/data.h"
#include "train/checkpoint_private.h"
#include "train/command.h"

enum { INFO_HEAD_BYTES = 16, INFO_TEXT_BYTES = 256 };

enum info_form { INFO_UNKNOWN, INFO_SAFETENSORS, INFO_IDX, INFO_GZIP, INFO_NPY, INFO_CIFAR };

/* TEXT for a terminal: what is not printable ASCII becomes '?'. Returns BUFFER. */
static const char *info_clean(const char *text, char buffer[INFO_TEXT_BYTES])
{
    size_t at = 0;
    for (; at < INFO_TEXT_BYTES - 1 && text[at]; at++)
        buffer[at] = text[at] >= ' ' && text[at] <= '~' ? text[at] : '?';
    buffer[at] = '\0';
    return buffer;
}

/* ---- safetensors ---- */

static void info_tensor(const struct dpn_st_tensor *tensor)
{
    char name[INFO_TEXT_BYTES], shape[INFO_TEXT_BYTES];
    size_t at = (size_t)snprintf(shape, sizeof(shape), "[");
    for (unsigned i = 0; i < tensor->rank; i++)
        at += (size_t)snprintf(shape + at, sizeof(shape) - at, "%s%" PRIu64, i ? ", " : "", tensor->shape[i]);
    snprintf(shape + at, sizeof(shape) - at, "]");
    dpn_note("  %-44s %-5s %-20s %12" PRIu64, info_clean(tensor->name, name), tensor->dtype, shape,
             tensor->elems);
}

/* What PyTorch registers as a buffer of a batch norm: kept, not trained. */
static int info_is_buffer(const char *name)
{
    static const char *const buffers[] = {"running_mean", "running_var", "num_batches_tracked"};
    const char *dot = strrchr(name, '.');
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        if (strcmp(dot ? dot + 1 : name, buffers[i]) == 0) return 1;
    return 0;
}

static void info_tensors(const struct dpn_st_file *file, int each)
{
    uint64_t elems[2] = {0}; /* of at most 8 bytes each in one file: no overflow but with empty types */
    for (size_t i = 0; i < file->n_tensors; i++) {
        if (each) info_tensor(&file->tensors[i]);
        elems[info_is_buffer(file->tensors[i].name)] += file->tensors[i].elems;
    }
    dpn_note("tensors | %zu | parameters %" PRIu64 " | buffers %" PRIu64 " | data %" PRIu64
             " bytes | file %zu bytes",
             file->n_tensors, elems[0], elems[1], file->data_bytes, file->map_bytes);
}

/* The options of a state file's run, which are too long for one line. */
static void info_options(const struct dpn_st_file *file)
{
    const char *text = dpn_st_metadata(file, "options");
    if (!text) return;
    dpn_note("options");
    for (size_t length; *text; text += length) {
        char piece[INFO_TEXT_BYTES];
        length = strlen(text);
        if (length > 100) {
            for (length = 100; length > 1 && text[length - 1] != ','; length--) continue;
            if (length == 1) length = 100;
        }
        char line[101];
        snprintf(line, sizeof(line), "%.*s", (int)length, text);
        dpn_note("  %s", info_clean(line, piece));
    }
}

static void info_metadata(const struct dpn_st_file *file)
{
    if (file->n_metadata > 0) dpn_note("metadata");
    for (size_t i = 0; i < file->n_metadata; i++) {
        char key[INFO_TEXT_BYTES], value[INFO_TEXT_BYTES];
        if (strcmp(file->metadata_keys[i], "options") == 0) continue;
        dpn_note("  %s = %s", info_clean(file->metadata_keys[i], key),
                 info_clean(file->metadata_values[i], value));
    }
    info_options(file);
}

/* Whether the other file of the pair is there and belongs to this one. */
static enum dpn_status info_pair(const char *path)
{
    char stem[DPN_CKPT_STEM_BYTES];
    const char *slash = strrchr(path, '/');
    const enum dpn_ckpt_file kind = dpn_ckpt_classify(slash ? slash + 1 : path, stem);
    if (kind != DPN_CKPT_WEIGHTS && kind != DPN_CKPT_STATE) return DPN_OK;

    struct dpn_progress_record record;
    struct dpn_checkpoint *checkpoint = NULL;
    int mismatch;
    char *folder = slash ? strndup(path, (size_t)(slash - path)) : strdup(".");
    char *state = folder ? dpn_ckpt_path(folder, stem, DPN_STATE_SUFFIX) : NULL;
    enum dpn_status status = state ? DPN_OK : dpn_fail(DPN_ERR_NOMEM, "%s: no memory to look at it", path);
    if (status == DPN_OK && access(state, F_OK) != 0) {
        dpn_note("checkpoint | weights alone: no %s", state);
    } else if (status == DPN_OK) {
        status = dpn_ckpt_open_pair(folder, stem, &record, &mismatch, &checkpoint);
        if (status == DPN_OK)
            dpn_note("checkpoint | %s | complete: both files are sound and belong together", stem);
    }
    dpn_checkpoint_close(checkpoint);
    free(state);
    free(folder);
    return status;
}

/* WHOLE: with every tensor, the metadata and the other file of the pair. */
static enum dpn_status info_safetensors(const char *path, int whole)
{
    struct dpn_st_file *file;
    int ours = 0;
    uint32_t crc;
    DPN_TRY(dpn_st_open(path, &file));
    enum dpn_status status = dpn_st_verify(file, &ours, &crc);
    dpn_note("%s: safetensors", path);
    info_tensors(file, whole);
    if (whole) info_metadata(file);
    if (status == DPN_OK)
        dpn_note("CRC-32 | %08" PRIx32 " | %s", crc,
                 ours ? "holds" : "not by dpnode: nothing to verify it against");
    dpn_st_close(file);
    DPN_TRY(status);
    return ours && whole ? info_pair(path) : DPN_OK;
}

/* ---- IDX ---- */

static void info_counts(const size_t counts[256])
{
    for (int value = 0; value < 256; value++)
        if (counts[value] > 0) dpn_note("  label %-3d %10zu", value, counts[value]);
}

static void info_labels(const struct dpn_idx *idx)
{
    size_t counts[256] = {0};
    for (size_t i = 0; i < idx->dims[0]; i++) counts[idx->bytes[i]]++;
    info_counts(counts);
}

static void info_pixels(const uint8_t *pixels, size_t n)
{
    double sum = 0, squares = 0;
    for (size_t i = 0; i < n; i++) {
        const double x = pixels[i] / 255.0;
        sum += x;
        squares += x * x;
    }
    if (n == 0) return;
    const double mean = sum / (double)n, variance = squares / (double)n - mean * mean;
    dpn_note("  values of 0..1: mean %.4f, standard deviation %.4f", mean, sqrt(variance > 0 ? variance : 0));
}

/* HISTOGRAM: also what the elements are. */
static enum dpn_status info_idx(const char *path, int histogram)
{
    struct dpn_idx idx;
    char dims[INFO_TEXT_BYTES];
    size_t at = 0, n = 1;
    DPN_TRY(dpn_idx_read_any(path, &idx));
    for (unsigned i = 0; i < idx.rank; i++) {
        at += (size_t)snprintf(dims + at, sizeof(dims) - at, "%s%zu", i ? " x " : "", idx.dims[i]);
        n *= idx.dims[i];
    }
    dpn_note("%s: IDX%s, %s, %s | file %zu bytes | CRC-32 of contents %08" PRIx32, path,
             idx.gzip ? " (gzip)" : "", idx.magic == DPN_IDX_LABELS ? "labels" : "bytes", dims,
             idx.file_bytes, idx.crc);
    if (histogram && idx.rank == 1) info_labels(&idx);
    if (histogram && idx.rank > 1) info_pixels(idx.bytes, n);
    free(idx.bytes);
    return DPN_OK;
}

/* ---- NumPy arrays and CIFAR-10's batch files ---- */

/* Element I as a number; of half precision there is none. */
static double info_npy_value(const struct dpn_npy *npy, size_t i)
{
    const uint8_t *at = npy->data + i * npy->item_bytes;
    uint64_t bits = 0;
    double wide;
    float narrow;
    memcpy(&bits, at, npy->item_bytes);
    if (npy->kind == 'u') return (double)bits;
    const unsigned unused = 64 - 8 * (unsigned)npy->item_bytes;
    if (npy->kind == 'i') return (double)((int64_t)(bits << unused) >> unused);
    if (npy->item_bytes == sizeof(wide)) {
        memcpy(&wide, at, sizeof(wide));
        return wide;
    }
    memcpy(&narrow, at, sizeof(narrow));
    return narrow;
}

static void info_npy_values(const struct dpn_npy *npy)
{
    double least = INFINITY, greatest = -INFINITY, sum = 0, squares = 0;
    size_t finite = 0;
    if (npy->elems == 0 || (npy->kind == 'f' && npy->item_bytes == 2)) return;
    for (size_t i = 0; i < npy->elems; i++) {
        const double x = info_npy_value(npy, i);
        if (!isfinite(x)) continue;
        finite++;
        least = x < least ? x : least;
        greatest = x > greatest ? x : greatest;
        sum += x;
        squares += x * x;
    }
    if (finite > 0) {
        const double n = (double)finite, mean = sum / n, variance = squares / n - mean * mean;
        dpn_note("  values of %.9g to %.9g: mean %.6g, standard deviation %.6g", least, greatest, mean,
                 sqrt(variance > 0 ? variance : 0));
    }
    if (finite < npy->elems) dpn_note("  NOT FINITE: %zu of %zu values", npy->elems - finite, npy->elems);
}

static enum dpn_status info_npy(const char *path, int whole)
{
    struct dpn_npy npy;
    char shape[INFO_TEXT_BYTES];
    DPN_TRY(dpn_npy_open(path, &npy));
    dpn_npy_shape_text(&npy, shape, sizeof shape);
    dpn_note("%s: NumPy array | %s%zu | shape %s | file %zu bytes", path,
             npy.kind == 'f'   ? "float"
             : npy.kind == 'u' ? "uint"
                               : "int",
             8 * npy.item_bytes, shape, npy.map_bytes);
    if (whole) info_npy_values(&npy);
    dpn_npy_close(&npy);
    return DPN_OK;
}

static enum dpn_status info_cifar(const char *path, int whole)
{
    const size_t image_bytes = DPN_CIFAR_RECORD_BYTES - 1;
    FILE *file;
    size_t n, counts[256] = {0};
    uint32_t crc = 0;
    DPN_TRY(dpn_cifar_open(path, &file, &n));
    uint8_t *pixels = malloc(n * image_bytes);
    int32_t *labels = malloc(n * sizeof(*labels));
    enum dpn_status status = pixels && labels
                                 ? dpn_cifar_read(path, file, n, pixels, labels, &crc)
                                 : dpn_fail(DPN_ERR_NOMEM, "%s: no memory for %zu images", path, n);
    if (status == DPN_OK) {
        for (size_t i = 0; i < n; i++) counts[labels[i]]++;
        dpn_note("%s: batch file of CIFAR-10 | %zu images of 3x32x32 | CRC-32 of contents %08" PRIx32, path,
                 n, crc);
    }
    if (status == DPN_OK && whole) {
        info_counts(counts);
        info_pixels(pixels, n * image_bytes);
    }
    free(labels);
    free(pixels);
    fclose(file);
    return status;
}

/* ---- by content ---- */

/* The first bytes of PATH; *N: how many there are. */
static enum dpn_status info_head(const char *path, uint8_t head[INFO_HEAD_BYTES], size_t *n)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return dpn_fail_errno(DPN_ERR_INPUT, errno, "%s: cannot open", path);
    ssize_t got = read(fd, head, INFO_HEAD_BYTES);
    int error = errno;
    close(fd);
    if (got < 0) return dpn_fail_errno(DPN_ERR_INPUT, error, "%s: cannot read", path);
    *n = (size_t)got;
    return DPN_OK;
}

static enum info_form info_guess(const char *path, const uint8_t *head, size_t n)
{
    const size_t length = strlen(path), suffix = sizeof(DPN_WEIGHTS_SUFFIX) - 1;
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    if (n >= 6 && memcmp(head, "\x93NUMPY", 6) == 0) return INFO_NPY;
    /* These have no mark of their own. */
    if ((strncmp(name, "data_batch_", 11) == 0 || strncmp(name, "test_batch", 10) == 0) &&
        strcmp(path + length - 4, ".bin") == 0)
        return INFO_CIFAR;
    if (n >= 2 && head[0] == 0x1f && head[1] == 0x8b) return INFO_GZIP;
    /* By name too: a damaged one is then refused with what is wrong with it. */
    if (n > 8 && head[8] == '{') return INFO_SAFETENSORS;
    if (length > suffix && strcmp(path + length - suffix, DPN_WEIGHTS_SUFFIX) == 0) return INFO_SAFETENSORS;
    if (n >= 4 && head[0] == 0 && head[1] == 0 && head[2] >= 8 && head[2] <= 14 && head[3] >= 1 &&
        head[3] <= 8)
        return INFO_IDX;
    return INFO_UNKNOWN;
}

static enum dpn_status info_unknown(const char *path, const uint8_t *head, size_t n)
{
    char hex[3 * INFO_HEAD_BYTES + 1] = "";
    const char *what = "an unknown format";
    for (size_t i = 0; i < n && i < 8; i++) snprintf(hex + 3 * i, sizeof(hex) - 3 * i, " %02x", head[i]);
    if (n == 0) return dpn_fail(DPN_ERR_INPUT, "%s: is empty", path);
    if (n >= 4 && memcmp(head, "PK\3\4", 4) == 0)
        what = "a zip archive (torch.save writes such; save safetensors instead)";
    if (n >= 2 && head[0] == 0x80 && head[1] <= 5)
        what = "a Python pickle (data/cifar10_from_python.py converts CIFAR-10's)";
    if (head[0] == '<') what = "HTML or XML";
    return dpn_fail(DPN_ERR_INPUT, "%s: is neither safetensors nor a data file but %s: it begins with%s",
                    path, what, hex);
}

static enum dpn_status info_file(const char *path)
{
    uint8_t head[INFO_HEAD_BYTES] = {0};
    size_t n;
    DPN_TRY(info_head(path, head, &n));
    switch (info_guess(path, head, n)) {
    case INFO_SAFETENSORS: return info_safetensors(path, 1);
    case INFO_IDX:
    case INFO_GZIP: return info_idx(path, 1);
    case INFO_NPY: return info_npy(path, 1);
    case INFO_CIFAR: return info_cifar(path, 1);
    case INFO_UNKNOWN: break;
    }
    return info_unknown(path, head, n);
}

/* ---- folders ---- */

static enum dpn_status info_checkpoint_row(const char *folder, const struct dpn_ckpt_entry *entry)
{
    struct dpn_progress_record record;
    struct dpn_checkpoint *checkpoint;
    int mismatch;
    enum dpn_status status = dpn_ckpt_open_pair(folder, entry->stem, &record, &mismatch, &checkpoint);
    if (status != DPN_OK) {
        dpn_note("  %-22s NOT COMPLETE: %s", entry->stem, dpn_error_text());
        return status;
    }
    char best[32] = "none yet";
    if (record.best_accuracy >= 0) snprintf(best, sizeof(best), "%.4f", record.best_accuracy);
    dpn_note("  %-22s epoch %" PRIu64 " + %" PRIu64 " steps | step %" PRIu64 " | samples %" PRIu64
             " | V %" PRIu64 " | best accuracy %s | complete",
             entry->stem, record.epoch, record.step_in_epoch, record.global_step, record.samples,
             record.shards, best);
    dpn_checkpoint_close(checkpoint);
    return DPN_OK;
}

struct info_folder {
    const char *path;
    size_t n_known, n_others;
    enum dpn_status worst;
};

static enum dpn_status info_folder_entry(void *arg, const char *name)
{
    struct info_folder *folder = arg;
    char stem[DPN_CKPT_STEM_BYTES];
    uint8_t head[INFO_HEAD_BYTES] = {0};
    size_t n = 0;
    struct stat info;
    const enum dpn_ckpt_file kind = dpn_ckpt_classify(name, stem);
    if (kind == DPN_CKPT_STATE || kind == DPN_CKPT_WEIGHTS) return DPN_OK; /* listed as checkpoints */
    char *path = dpn_ckpt_path(folder->path, name, "");
    if (!path) return dpn_fail(DPN_ERR_NOMEM, "%s: no memory to list it", folder->path);
    enum info_form form = INFO_UNKNOWN;
    if (stat(path, &info) == 0 && S_ISREG(info.st_mode) && info_head(path, head, &n) == DPN_OK)
        form = info_guess(path, head, n);
    enum dpn_status status = DPN_OK;
    if (form == INFO_IDX || form == INFO_GZIP) {
        status = info_idx(path, 0);
    } else if (form == INFO_NPY) {
        status = info_npy(path, 0);
    } else if (form == INFO_CIFAR) {
        status = info_cifar(path, 0);
    } else if (form == INFO_SAFETENSORS) {
        status = info_safetensors(path, 0);
    } else {
        folder->n_others++;
    }
    folder->n_known += form != INFO_UNKNOWN;
    if (status != DPN_OK) {
        dpn_note("%s", dpn_error_text());
        folder->worst = status;
    }
    free(path);
    return DPN_OK;
}

static enum dpn_status info_folder(const char *path)
{
    struct info_folder folder = {.path = path, .worst = DPN_OK};
    struct dpn_ckpt_entry *entries;
    size_t n;
    DPN_TRY(dpn_ckpt_list(path, &entries, &n));
    dpn_note("%s: folder", path);
    if (n > 0) dpn_note("checkpoints | %zu", n);
    for (size_t i = 0; i < n; i++) {
        enum dpn_status status = info_checkpoint_row(path, &entries[i]);
        if (status != DPN_OK) folder.worst = status;
    }
    free(entries);
    DPN_TRY(dpn_ckpt_scan(path, info_folder_entry, &folder));
    if (n == 0 && folder.n_known == 0) dpn_note("no checkpoint and no data file in it");
    if (folder.n_others > 0) dpn_note("other files | %zu", folder.n_others);
    if (folder.worst != DPN_OK) return dpn_fail(folder.worst, "%s: not all files in it are sound", path);
    return DPN_OK;
}

static enum dpn_status info_run(struct dpn_config *config, const char *positional, int *exit_status)
{
    struct stat info;
    (void)config;
    (void)exit_status;
    if (!positional) return dpn_fail(DPN_ERR_USAGE, "info: name a checkpoint, a data file or a folder");
    if (stat(positional, &info) != 0) return dpn_fail_errno(DPN_ERR_INPUT, errno, "%s", positional);
    if (S_ISDIR(info.st_mode)) return info_folder(positional);
    if (!S_ISREG(info.st_mode))
        return dpn_fail(DPN_ERR_INPUT, "%s: is neither a file nor a folder", positional);
    return info_file(positional);
}

const struct dpn_command dpn_command_info = {
    .name = "info",
    .summary = "say what a checkpoint, a data file or a folder holds, and whether it is sound",
    .mask = DPN_CMD_INFO,
    .positional = "FILE",
    .run = info_run,
};
