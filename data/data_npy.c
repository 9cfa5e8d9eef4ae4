/* NumPy arrays: train_x.npy, train_y.npy, and both or neither of test_x.npy, test_y.npy.
 *
 * x: uint8 or float32, samples x channels x height x width, samples x height x width, or samples x features.
 * y: integers, one per sample; classes are 0 to the largest label of both parts (at least 2 of them). x is
 * mapped and read where it lies, so sets larger than memory work; y is converted. Bytes are divided by 255,
 * floats are taken as they are; whether they are finite is found out by the loss. Checksum of a part: CRC-32
 * over the shape, the labels, and x: all of it up to 64 MiB, else its first and last 64 KiB and 4 KiB of
 * every MiB, so that opening a large set does not read all of it. So another set is found out; a change of
 * a few samples in a large one may not be.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "data/data.h"

enum {
    NPY_WHOLE_BYTES = 64 << 20, /* up to here the checksum covers everything */
    NPY_END_BYTES = 64 << 10,
    NPY_STEP_BYTES = 1 << 20,
    NPY_SAMPLE_BYTES = 4 << 10,
};

struct npy_storage {
    struct dpn_npy images[2]; /* train, test */
    int32_t *labels[2];
};

static const char *const npy_parts[2] = {"train", "test"};

static enum dpn_status npy_path(const struct dpn_dataset *dataset, int part, char what, char **path)
{
    if (asprintf(path, "%s/%s_%c.npy", dataset->path, npy_parts[part], what) >= 0) return DPN_OK;
    *path = NULL;
    return dpn_fail(DPN_ERR_NOMEM, "%s: no memory for a path", dataset->path);
}

static int64_t npy_integer(const struct dpn_npy *npy, size_t i)
{
    const uint8_t *at = npy->data + i * npy->item_bytes;
    uint64_t value = 0;
    for (size_t b = 0; b < npy->item_bytes; b++) value |= (uint64_t)at[b] << (8 * b);
    if (npy->kind == 'u') return value > INT64_MAX ? INT64_MAX : (int64_t)value;
    unsigned unused = 64 - 8 * (unsigned)npy->item_bytes;
    return (int64_t)(value << unused) >> unused;
}

static enum dpn_status npy_convert_labels(struct dpn_dataset *dataset, const char *path,
                                          const struct dpn_npy *npy, int32_t *labels)
{
    for (size_t i = 0; i < npy->elems; i++) {
        int64_t value = npy_integer(npy, i);
        if (value < 0 || value >= DPN_MAX_CLASSES)
            return dpn_fail(DPN_ERR_INPUT, "%s: label %lld at index %zu, wanted 0 to %d", path,
                            (long long)value, i, DPN_MAX_CLASSES - 1);
        labels[i] = (int32_t)value;
        if ((size_t)value >= dataset->classes) dataset->classes = (size_t)value + 1;
    }
    return DPN_OK;
}

static enum dpn_status npy_read_labels(struct dpn_dataset *dataset, int part, const char *path,
                                       size_t samples, const char *images_path)
{
    struct npy_storage *storage = dataset->storage;
    struct dpn_npy npy;
    char shape[128];
    DPN_TRY(dpn_npy_open(path, &npy));
    enum dpn_status status = DPN_OK;
    dpn_npy_shape_text(&npy, shape, sizeof shape);
    if (npy.kind == 'f') status = dpn_fail(DPN_ERR_INPUT, "%s: labels are floats, wanted are integers", path);
    else if (npy.rank != 1)
        status = dpn_fail(DPN_ERR_INPUT, "%s: shape %s, wanted is one label a sample", path, shape);
    else if (npy.elems != samples)
        status = dpn_fail(DPN_ERR_INPUT, "%s holds %zu samples, but %s holds %zu labels", images_path,
                          samples, path, npy.elems);
    if (status == DPN_OK && !(storage->labels[part] = malloc(samples * sizeof(int32_t))))
        status = dpn_fail(DPN_ERR_NOMEM, "%s: no memory for %zu labels", path, samples);
    if (status == DPN_OK) status = npy_convert_labels(dataset, path, &npy, storage->labels[part]);
    dpn_npy_close(&npy);
    return status;
}

/* Channels, height and width of a sample. */
static enum dpn_status npy_image_shape(const char *path, const struct dpn_npy *npy, size_t shape[3])
{
    char text[128];
    dpn_npy_shape_text(npy, text, sizeof text);
    if (!(npy->kind == 'u' && npy->item_bytes == 1) && !(npy->kind == 'f' && npy->item_bytes == 4))
        return dpn_fail(DPN_ERR_INPUT, "%s: elements of type %c%zu, wanted are uint8 or float32", path,
                        npy->kind, npy->item_bytes);
    if (npy->rank < 2 || npy->rank > 4)
        return dpn_fail(DPN_ERR_INPUT, "%s: shape %s, wanted is samples x [channels x] height x width", path,
                        text);
    if (npy->elems == 0) return dpn_fail(DPN_ERR_INPUT, "%s: shape %s holds nothing", path, text);
    shape[0] = npy->rank == 4 ? npy->dims[1] : 1;
    shape[1] = npy->rank == 2 ? 1 : npy->dims[npy->rank - 2];
    shape[2] = npy->dims[npy->rank - 1];
    if (shape[0] > DPN_MAX_CHANNELS)
        return dpn_fail(DPN_ERR_INPUT,
                        "%s: %zu channels, at most %d are taken (shape %s: channels come first)", path,
                        shape[0], DPN_MAX_CHANNELS, text);
    if (npy->kind == 'f' && (uintptr_t)npy->data % sizeof(float) != 0)
        return dpn_fail(DPN_ERR_INPUT, "%s: its floats are not aligned to 4 bytes; save it again with NumPy",
                        path);
    return DPN_OK;
}

static uint32_t npy_checksum(const struct dpn_npy *images, const int32_t *labels)
{
    size_t bytes = images->elems * images->item_bytes;
    uint32_t crc = dpn_crc32(0, images->dims, images->rank * sizeof *images->dims);
    crc = dpn_crc32(crc, labels, images->dims[0] * sizeof *labels);
    if (bytes <= NPY_WHOLE_BYTES) return dpn_crc32(crc, images->data, bytes);
    crc = dpn_crc32(crc, images->data, NPY_END_BYTES);
    for (size_t at = NPY_STEP_BYTES; at + NPY_SAMPLE_BYTES <= bytes; at += NPY_STEP_BYTES)
        crc = dpn_crc32(crc, images->data + at, NPY_SAMPLE_BYTES);
    return dpn_crc32(crc, images->data + (bytes - NPY_END_BYTES), NPY_END_BYTES);
}

static enum dpn_status npy_read_part(struct dpn_dataset *dataset, int part, const char *images_path,
                                     const char *labels_path)
{
    struct npy_storage *storage = dataset->storage;
    struct dpn_samples *samples = part ? &dataset->test : &dataset->train;
    struct dpn_npy *images = &storage->images[part];
    size_t shape[3] = {0};
    DPN_TRY(dpn_npy_open(images_path, images));
    DPN_TRY(npy_image_shape(images_path, images, shape));
    if (part && (shape[0] != dataset->channels || shape[1] != dataset->height || shape[2] != dataset->width ||
                 images->kind != storage->images[0].kind))
        return dpn_fail(DPN_ERR_INPUT,
                        "%s: %s samples of %zux%zux%zu, but the training samples are %s of %zux%zux%zu",
                        images_path, images->kind == 'u' ? "uint8" : "float32", shape[0], shape[1], shape[2],
                        storage->images[0].kind == 'u' ? "uint8" : "float32", dataset->channels,
                        dataset->height, dataset->width);
    dataset->channels = shape[0];
    dataset->height = shape[1];
    dataset->width = shape[2];
    DPN_TRY(npy_read_labels(dataset, part, labels_path, images->dims[0], images_path));
    *samples = (struct dpn_samples){.n = images->dims[0], .labels = storage->labels[part]};
    if (images->kind == 'u') samples->u8 = images->data;
    else samples->f32 = (const float *)(const void *)images->data;
    samples->crc = npy_checksum(images, storage->labels[part]);
    dataset->storage_bytes += images->elems * images->item_bytes + samples->n * sizeof *samples->labels;
    return DPN_OK;
}

static enum dpn_status npy_open_part(struct dpn_dataset *dataset, int part)
{
    char *images = NULL, *labels = NULL;
    enum dpn_status status = npy_path(dataset, part, 'x', &images);
    if (status == DPN_OK) status = npy_path(dataset, part, 'y', &labels);
    /* A set without both test files has no test part; with one of them it is refused by opening the other.
     * A link to nowhere counts as there. */
    struct stat st;
    int there = status == DPN_OK && (lstat(images, &st) == 0 || lstat(labels, &st) == 0);
    if (status == DPN_OK && (there || !part)) status = npy_read_part(dataset, part, images, labels);
    free(images);
    free(labels);
    return status;
}

static void npy_close(struct dpn_dataset *dataset)
{
    struct npy_storage *storage = dataset->storage;
    for (int part = 0; part < 2; part++) {
        dpn_npy_close(&storage->images[part]);
        free(storage->labels[part]);
    }
    free(storage);
    dataset->storage = NULL;
}

static enum dpn_status npy_open(const struct dpn_dataset_class *cls, const char *argument, const char *root,
                                struct dpn_dataset *dataset)
{
    (void)cls;
    if (!argument && !root[0])
        return dpn_fail(DPN_ERR_USAGE,
                        "--data npy: wanted npy:DIR, the folder of train_x.npy and train_y.npy");
    dataset->path = realpath(argument ? argument : root, NULL);
    if (!dataset->path)
        return dpn_fail_errno(DPN_ERR_INPUT, errno, "--data npy:%s: cannot open the folder",
                              argument ? argument : root);
    enum dpn_status status = DPN_OK;
    dataset->storage = calloc(1, sizeof(struct npy_storage));
    if (!dataset->storage) {
        status = dpn_fail(DPN_ERR_NOMEM, "%s: no memory", dataset->path);
        goto out;
    }
    dataset->real = 1;
    dataset->classes = 2;
    status = npy_open_part(dataset, 0);
    if (status == DPN_OK) status = npy_open_part(dataset, 1);
out:
    if (status == DPN_OK) return DPN_OK;
    if (dataset->storage) npy_close(dataset);
    free(dataset->path);
    dataset->path = NULL;
    return status;
}

const struct dpn_dataset_class dpn_dataset_npy = {
    .name = "npy",
    .summary = "NumPy arrays of your own (npy:DIR), uint8 or float32",
    .open = npy_open,
    .close = npy_close,
};
