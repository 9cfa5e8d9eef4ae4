/* Data sets in the four files of MNIST: Fashion-MNIST and MNIST.
 *
 * Idea: read each IDX file straight into memory as bytes; nothing is converted but the labels.
 * Files: {train,t10k}-images-idx3-ubyte and {train,t10k}-labels-idx1-ubyte, also spelled
 * train-images.idx3-ubyte, with or without ".gz". Where a folder has several forms of one file the raw one
 * is read (first the spelling with "-"), and only that one. A folder without either t10k file has no test
 * part; with one of the two it is refused.
 * Memory: one byte a pixel and four a label.
 */
#include "data/data.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MNIST_CLASSES = 10 };

struct mnist_kind {
    const char *name; /* in file names */
    uint32_t magic;
};
static const struct mnist_kind mnist_images = {"images", DPN_IDX_IMAGES};
static const struct mnist_kind mnist_labels = {"labels", DPN_IDX_LABELS};

struct mnist_storage {
    uint8_t *images[2]; /* train, test */
    int32_t *labels[2];
};

/* *PATH := the file of KIND in DIR (malloc'd), or NULL if it has none. A link to nowhere counts as there:
 * opening it will say what is wrong. */
static enum dpn_status mnist_locate(const char *dir, const char *part, const struct mnist_kind *kind,
                                    char **path)
{
    for (int i = 0; i < 4; i++) {
        if (asprintf(path, "%s/%s-%s%cidx%u-ubyte%s", dir, part, kind->name, i & 1 ? '.' : '-',
                     kind->magic & 0xff, i & 2 ? ".gz" : "") < 0) {
            *path = NULL;
            return dpn_fail(DPN_ERR_NOMEM, "%s: no memory for a path", dir);
        }
        struct stat st;
        if (lstat(*path, &st) == 0 || (errno != ENOENT && errno != ENOTDIR)) return DPN_OK;
        free(*path);
    }
    *path = NULL;
    return DPN_OK;
}

static enum dpn_status mnist_holds(const char *dir, int *holds)
{
    char *file = NULL;
    DPN_TRY(mnist_locate(dir, "train", &mnist_images, &file));
    if (!file) DPN_TRY(mnist_locate(dir, "train", &mnist_labels, &file));
    *holds = file != NULL;
    free(file);
    return DPN_OK;
}

/* ---- reading ---- */

static enum dpn_status mnist_widen_labels(const char *path, const struct dpn_idx *idx, int32_t **widened)
{
    size_t n = idx->dims[0];
    for (size_t i = 0; i < n; i++)
        if (idx->bytes[i] >= MNIST_CLASSES)
            return dpn_fail(DPN_ERR_INPUT, "%s: label %u at index %zu, wanted 0 to %u", path, idx->bytes[i],
                            i, MNIST_CLASSES - 1);
    int32_t *labels = malloc(n * sizeof(*labels));
    if (!labels) return dpn_fail(DPN_ERR_NOMEM, "%s: no memory for %zu labels", path, n);
    for (size_t i = 0; i < n; i++) labels[i] = idx->bytes[i];
    *widened = labels;
    return DPN_OK;
}

/* The two files of a part, both there. On failure what was allocated is left in STORAGE for the caller. */
static enum dpn_status mnist_read_part(struct dpn_dataset *dataset, int part, const char *images_path,
                                       const char *labels_path)
{
    struct mnist_storage *storage = dataset->storage;
    struct dpn_samples *samples = part ? &dataset->test : &dataset->train;
    struct dpn_idx images, labels;
    DPN_TRY(dpn_idx_read(labels_path, DPN_IDX_LABELS, &labels));
    enum dpn_status status = mnist_widen_labels(labels_path, &labels, &storage->labels[part]);
    free(labels.bytes);
    DPN_TRY(status);

    DPN_TRY(dpn_idx_read(images_path, DPN_IDX_IMAGES, &images));
    storage->images[part] = images.bytes;
    if (images.dims[0] != labels.dims[0])
        return dpn_fail(DPN_ERR_INPUT, "%s holds %zu images, but %s holds %zu labels", images_path,
                        images.dims[0], labels_path, labels.dims[0]);
    if (part && (images.dims[1] != dataset->height || images.dims[2] != dataset->width))
        return dpn_fail(DPN_ERR_INPUT, "%s: images of %zu x %zu, but the training images are %zu x %zu",
                        images_path, images.dims[1], images.dims[2], dataset->height, dataset->width);
    dataset->height = images.dims[1];
    dataset->width = images.dims[2];
    *samples = (struct dpn_samples){.n = images.dims[0], .u8 = images.bytes, .labels = storage->labels[part]};
    samples->crc = dpn_crc32_combine(images.crc, labels.crc, labels.raw_bytes);
    dataset->storage_bytes += samples->n * (images.dims[1] * images.dims[2] + sizeof(*samples->labels));
    return DPN_OK;
}

static enum dpn_status mnist_open_part(struct dpn_dataset *dataset, int part)
{
    const char *prefix = part ? "t10k" : "train";
    char *images = NULL, *labels = NULL;
    enum dpn_status status = mnist_locate(dataset->path, prefix, &mnist_images, &images);
    if (status == DPN_OK) status = mnist_locate(dataset->path, prefix, &mnist_labels, &labels);
    if (status != DPN_OK) goto out;
    if (images && labels) status = mnist_read_part(dataset, part, images, labels);
    else if (images || labels || !part)
        status = dpn_fail(DPN_ERR_INPUT, "%s: there is no %s-%s (raw or .gz) beside %s", dataset->path,
                          prefix, images ? "labels-idx1-ubyte" : "images-idx3-ubyte",
                          images ? images : labels);
out:
    free(labels);
    free(images);
    return status;
}

static void mnist_close(struct dpn_dataset *dataset)
{
    struct mnist_storage *storage = dataset->storage;
    for (int part = 0; part < 2; part++) {
        free(storage->images[part]);
        free(storage->labels[part]);
    }
    free(storage);
    dataset->storage = NULL;
}

static enum dpn_status mnist_open(const char *torch_folder, const char *system_folder, const char *argument,
                                  const char *root, struct dpn_dataset *dataset)
{
    const struct dpn_data_place place = {
        .name = dataset->name,
        .below = torch_folder,
        .system_folder = system_folder,
        .wanted = "train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte, "
                  "t10k-labels-idx1-ubyte (raw or .gz)",
        .holds = mnist_holds,
    };
    DPN_TRY(dpn_data_locate(&place, argument, root, &dataset->path));
    enum dpn_status status = DPN_OK;
    dataset->storage = calloc(1, sizeof(struct mnist_storage));
    if (!dataset->storage) {
        status = dpn_fail(DPN_ERR_NOMEM, "%s: no memory", dataset->path);
        goto out;
    }
    dataset->real = 1;
    dataset->channels = 1;
    dataset->classes = MNIST_CLASSES;
    status = mnist_open_part(dataset, 0);
    if (status == DPN_OK) status = mnist_open_part(dataset, 1);
out:
    if (status == DPN_OK) return DPN_OK;
    if (dataset->storage) mnist_close(dataset);
    free(dataset->path);
    dataset->path = NULL;
    return status;
}

static enum dpn_status mnist_open_fashion(const struct dpn_dataset_class *cls, const char *argument,
                                          const char *root, struct dpn_dataset *dataset)
{
    (void)cls;
    return mnist_open("FashionMNIST/raw", DPN_FASHION_MNIST_DEBIAN_DIR, argument, root, dataset);
}

static enum dpn_status mnist_open_digits(const struct dpn_dataset_class *cls, const char *argument,
                                         const char *root, struct dpn_dataset *dataset)
{
    (void)cls;
    return mnist_open("MNIST/raw", NULL, argument, root, dataset);
}

static const double mnist_fashion_mean[] = {0.2860}, mnist_fashion_std[] = {0.3530};
static const double mnist_digits_mean[] = {0.1307}, mnist_digits_std[] = {0.3081};

const struct dpn_dataset_class dpn_dataset_fashion_mnist = {
    .name = "fashion-mnist",
    .summary = "28x28 grey images of clothes, 10 classes (IDX files)",
    .mean = mnist_fashion_mean,
    .std = mnist_fashion_std,
    .n_constants = 1,
    .open = mnist_open_fashion,
    .close = mnist_close,
};

const struct dpn_dataset_class dpn_dataset_mnist = {
    .name = "mnist",
    .summary = "28x28 grey images of handwritten digits, 10 classes (IDX files)",
    .mean = mnist_digits_mean,
    .std = mnist_digits_std,
    .n_constants = 1,
    .open = mnist_open_digits,
    .close = mnist_close,
};
