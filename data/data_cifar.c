/* CIFAR-10 in its binary form: data_batch_1.bin .. data_batch_5.bin and test_batch.bin, each a whole number
 * of records of 1 label byte and 3072 pixel bytes (3 planes of 32x32). All six files must be there; how many
 * records each has is its own affair.
 *
 * Memory: one byte a pixel and four a label; pixels are read straight to where they stay. Checksum of a
 * part: CRC-32 over its files' bytes in order.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/data.h"

enum {
    CIFAR_RECORD = DPN_CIFAR_RECORD_BYTES,
    CIFAR_PIXELS = CIFAR_RECORD - 1,
    CIFAR_CLASSES = 10,
    CIFAR_FILES = 5,
    CIFAR_OFFICIAL_RECORDS = 10000,
    CIFAR_BUFFER_BYTES = 256 << 10,
};

struct cifar_storage {
    uint8_t *images[2]; /* train, test */
    int32_t *labels[2];
};

/* The folder is known by any of its files, in either form. */
static enum dpn_status cifar_holds(const char *dir, int *holds)
{
    static const char *const names[] = {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
                                        "data_batch_4.bin", "data_batch_5.bin", "test_batch.bin",
                                        "data_batch_1",     "test_batch"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct stat st;
        char *path;
        if (asprintf(&path, "%s/%s", dir, names[i]) < 0)
            return dpn_fail(DPN_ERR_NOMEM, "%s: no memory for a path", dir);
        *holds = lstat(path, &st) == 0;
        free(path);
        if (*holds) return DPN_OK;
    }
    return DPN_OK;
}

/* ---- one file ---- */

#define CIFAR_CONVERT "data/cifar10_from_python.py converts CIFAR-10's Python form"

/* What to say of PATH that could not be opened for ERROR. */
static enum dpn_status cifar_missing(const char *path, int error)
{
    struct stat st;
    char *pickle = strdup(path), *suffix = pickle ? strrchr(pickle, '.') : NULL;
    if (!pickle) return dpn_fail(DPN_ERR_NOMEM, "%s: no memory for a path", path);
    if (suffix) *suffix = '\0';
    enum dpn_status status;
    if (error == ENOENT && suffix && stat(pickle, &st) == 0)
        status = dpn_fail(DPN_ERR_INPUT,
                          "%s: not there, but %s is: wanted is the binary form; " CIFAR_CONVERT, path,
                          pickle);
    else status = dpn_fail_errno(DPN_ERR_INPUT, error, "%s: cannot open", path);
    free(pickle);
    return status;
}

static enum dpn_status cifar_check(const char *path, int fd, size_t *records)
{
    struct stat st;
    unsigned char head[2] = {0, 0};
    if (fstat(fd, &st) != 0) return dpn_fail_errno(DPN_ERR_INPUT, errno, "%s: cannot read", path);
    if (!S_ISREG(st.st_mode))
        return dpn_fail(DPN_ERR_INPUT, "%s: is %s, not a file", path,
                        S_ISDIR(st.st_mode) ? "a folder" : "special");
    if (pread(fd, head, sizeof head, 0) < 0)
        return dpn_fail_errno(DPN_ERR_INPUT, errno, "%s: cannot read", path);
    if (head[0] == 0x80 && head[1] >= 2 && head[1] <= 5)
        return dpn_fail(DPN_ERR_INPUT, "%s: is a Python pickle, wanted is the binary form; " CIFAR_CONVERT,
                        path);
    if (head[0] == 0x1f && head[1] == 0x8b)
        return dpn_fail(DPN_ERR_INPUT, "%s: is compressed with gzip; wanted is the file as it unpacks", path);
    *records = (size_t)st.st_size / CIFAR_RECORD;
    if (st.st_size == 0 || (size_t)st.st_size % CIFAR_RECORD != 0)
        return dpn_fail(DPN_ERR_INPUT,
                        "%s: %lld bytes are no whole number of records of %d bytes (official files have %d)",
                        path, (long long)st.st_size, CIFAR_RECORD, CIFAR_OFFICIAL_RECORDS * CIFAR_RECORD);
    return DPN_OK;
}

enum dpn_status dpn_cifar_open(const char *path, FILE **file, size_t *records)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return cifar_missing(path, errno);
    enum dpn_status status = cifar_check(path, fd, records);
    *file = status == DPN_OK ? fdopen(fd, "rb") : NULL;
    if (status == DPN_OK && !*file) status = dpn_fail_errno(DPN_ERR_NOMEM, errno, "%s: cannot read", path);
    if (*file) setvbuf(*file, NULL, _IOFBF, CIFAR_BUFFER_BYTES); /* a label at a time is asked for */
    if (status != DPN_OK) close(fd);
    return status;
}

enum dpn_status dpn_cifar_read(const char *path, FILE *file, size_t records, uint8_t *pixels, int32_t *labels,
                               uint32_t *crc)
{
    for (size_t i = 0; i < records; i++) {
        uint8_t *image = pixels + i * CIFAR_PIXELS, label;
        if (fread(&label, 1, 1, file) != 1 || fread(image, CIFAR_PIXELS, 1, file) != 1)
            return dpn_fail(DPN_ERR_INPUT, "%s: cannot read record %zu of %zu", path, i, records);
        if (label >= CIFAR_CLASSES)
            return dpn_fail(DPN_ERR_INPUT, "%s: label %u at index %zu, wanted 0 to %d", path, label, i,
                            CIFAR_CLASSES - 1);
        labels[i] = label;
        *crc = dpn_crc32(dpn_crc32(*crc, &label, 1), image, CIFAR_PIXELS);
    }
    return DPN_OK;
}

/* ---- the files of a part ---- */

struct cifar_part {
    char *paths[CIFAR_FILES]; /* malloc'd */
    FILE *files[CIFAR_FILES];
    size_t records[CIFAR_FILES];
    size_t n_files, n;
};

static enum dpn_status cifar_open_files(const char *dir, int part, struct cifar_part *p)
{
    for (size_t f = 0; f < p->n_files; f++) {
        int length = part ? asprintf(&p->paths[f], "%s/test_batch.bin", dir)
                          : asprintf(&p->paths[f], "%s/data_batch_%zu.bin", dir, f + 1);
        if (length < 0) {
            p->paths[f] = NULL;
            return dpn_fail(DPN_ERR_NOMEM, "%s: no memory for a path", dir);
        }
        DPN_TRY(dpn_cifar_open(p->paths[f], &p->files[f], &p->records[f]));
        p->n += p->records[f];
    }
    return DPN_OK;
}

static enum dpn_status cifar_read_part(struct dpn_dataset *dataset, int part, struct cifar_part *p)
{
    struct cifar_storage *storage = dataset->storage;
    struct dpn_samples *samples = part ? &dataset->test : &dataset->train;
    DPN_TRY(dpn_data_check_fits(dataset->path, p->n, CIFAR_PIXELS + sizeof(int32_t)));
    storage->images[part] = malloc(p->n * CIFAR_PIXELS);
    storage->labels[part] = malloc(p->n * sizeof(int32_t));
    if (!storage->images[part] || !storage->labels[part])
        return dpn_fail(DPN_ERR_NOMEM, "%s: no memory for %zu images", dataset->path, p->n);
    size_t first = 0;
    for (size_t f = 0; f < p->n_files; f++) {
        DPN_TRY(dpn_cifar_read(p->paths[f], p->files[f], p->records[f],
                               storage->images[part] + first * CIFAR_PIXELS, storage->labels[part] + first,
                               &samples->crc));
        first += p->records[f];
    }
    samples->n = p->n;
    samples->u8 = storage->images[part];
    samples->labels = storage->labels[part];
    dataset->storage_bytes += p->n * (CIFAR_PIXELS + sizeof(int32_t));
    return DPN_OK;
}

/* All files are opened before the first is read: a missing one is found at once. */
static enum dpn_status cifar_open_part(struct dpn_dataset *dataset, int part)
{
    struct cifar_part p = {.n_files = part ? 1 : CIFAR_FILES};
    enum dpn_status status = cifar_open_files(dataset->path, part, &p);
    if (status == DPN_OK) status = cifar_read_part(dataset, part, &p);
    for (size_t f = 0; f < p.n_files; f++) {
        if (p.files[f]) fclose(p.files[f]);
        free(p.paths[f]);
    }
    return status;
}

static void cifar_close(struct dpn_dataset *dataset)
{
    struct cifar_storage *storage = dataset->storage;
    for (int part = 0; part < 2; part++) {
        free(storage->images[part]);
        free(storage->labels[part]);
    }
    free(storage);
    dataset->storage = NULL;
}

static enum dpn_status cifar_open(const struct dpn_dataset_class *cls, const char *argument, const char *root,
                                  struct dpn_dataset *dataset)
{
    const struct dpn_data_place place = {
        .name = cls->name,
        .below = "cifar-10-batches-bin",
        .wanted = "data_batch_1.bin to data_batch_5.bin, test_batch.bin",
        .holds = cifar_holds,
    };
    DPN_TRY(dpn_data_locate(&place, argument, root, &dataset->path));
    enum dpn_status status = DPN_OK;
    dataset->storage = calloc(1, sizeof(struct cifar_storage));
    if (!dataset->storage) {
        status = dpn_fail(DPN_ERR_NOMEM, "%s: no memory", dataset->path);
        goto out;
    }
    dataset->real = 1;
    dataset->channels = 3;
    dataset->height = dataset->width = 32;
    dataset->classes = CIFAR_CLASSES;
    status = cifar_open_part(dataset, 0);
    if (status == DPN_OK) status = cifar_open_part(dataset, 1);
out:
    if (status == DPN_OK) return DPN_OK;
    if (dataset->storage) cifar_close(dataset);
    free(dataset->path);
    dataset->path = NULL;
    return status;
}

static const double cifar_mean[] = {0.4914, 0.4822, 0.4465}, cifar_std[] = {0.2470, 0.2435, 0.2616};

const struct dpn_dataset_class dpn_dataset_cifar10 = {
    .name = "cifar10",
    .summary = "32x32 colour images, 10 classes (CIFAR-10's binary form)",
    .mean = cifar_mean,
    .std = cifar_std,
    .n_constants = 3,
    .open = cifar_open,
    .close = cifar_close,
};
