/* CIFAR-10 in its binary form: data_batch_1.bin .. data_batch_5.bin and test_batch.bin, each a whole number
 * of records of 1 label byte and 3072 pixel bytes (3 planes of 32x32). All six files must be there; how many
 * records each has is its own affair.
 *
 * Memory: one byte a pixel and four a label; files are read straight into the images' place. Checksum of a
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
};

struct cifar_storage {
    uint8_t *images[2]; /* train, test */
    int32_t *labels[2];
};

static void cifar_file_name(int part, int file, char *name, size_t size)
{
    if (part) snprintf(name, size, "test_batch.bin");
    else snprintf(name, size, "data_batch_%d.bin", file + 1);
}

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

#define CIFAR_CONVERT "data/cifar10_from_python.py converts CIFAR-10's Python form"

static enum dpn_status cifar_missing(const char *dir, const char *path, const char *name)
{
    struct stat st;
    char *pickle = NULL;
    int length = (int)strlen(name) - (int)strlen(".bin");
    int error = errno;
    if (asprintf(&pickle, "%s/%.*s", dir, length, name) < 0)
        return dpn_fail(DPN_ERR_NOMEM, "%s: no memory for a path", dir);
    int there = stat(pickle, &st) == 0;
    enum dpn_status status =
        there ? dpn_fail(DPN_ERR_INPUT, "%s: not there, but %s is: wanted is the binary form; " CIFAR_CONVERT,
                         path, pickle)
              : dpn_fail_errno(DPN_ERR_INPUT, error, "%s: cannot open", path);
    free(pickle);
    return status;
}

/* Opens a file and finds out how many records it has. */
static enum dpn_status cifar_open_file(const char *dir, const char *name, const char *path, int *fd,
                                       size_t *records)
{
    struct stat st;
    unsigned char head[2] = {0, 0};
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0) return cifar_missing(dir, path, name);
    if (fstat(*fd, &st) != 0) return dpn_fail_errno(DPN_ERR_INPUT, errno, "%s: cannot read", path);
    if (!S_ISREG(st.st_mode))
        return dpn_fail(DPN_ERR_INPUT, "%s: is %s, not a file", path,
                        S_ISDIR(st.st_mode) ? "a folder" : "special");
    ssize_t got = pread(*fd, head, sizeof head, 0);
    if (got < 0) return dpn_fail_errno(DPN_ERR_INPUT, errno, "%s: cannot read", path);
    if (head[0] == 0x80 && head[1] >= 2 && head[1] <= 5)
        return dpn_fail(DPN_ERR_INPUT, "%s: is a Python pickle, wanted is the binary form; " CIFAR_CONVERT,
                        path);
    if (head[0] == 0x1f && head[1] == 0x8b)
        return dpn_fail(DPN_ERR_INPUT, "%s: is compressed with gzip; wanted is the file as it unpacks", path);
    *records = (size_t)st.st_size / CIFAR_RECORD;
    if (st.st_size == 0 || (size_t)st.st_size % CIFAR_RECORD != 0)
        return dpn_fail(DPN_ERR_INPUT, "%s: %lld bytes are no whole number of records of %d bytes", path,
                        (long long)st.st_size, CIFAR_RECORD);
    return DPN_OK;
}

/* RECORDS records of FD, sample numbers from FIRST on. */
static enum dpn_status cifar_read_records(const char *path, int fd, size_t records, size_t first,
                                          uint8_t *images, int32_t *labels, uint32_t *crc)
{
    unsigned char record[CIFAR_RECORD];
    FILE *file = fdopen(dup(fd), "rb");
    if (!file) return dpn_fail_errno(DPN_ERR_INPUT, errno, "%s: cannot read", path);
    enum dpn_status status = DPN_OK;
    for (size_t i = 0; i < records && status == DPN_OK; i++) {
        if (fread(record, sizeof record, 1, file) != 1)
            status = dpn_fail(DPN_ERR_INPUT, "%s: cannot read record %zu of %zu", path, i, records);
        else if (record[0] >= CIFAR_CLASSES)
            status = dpn_fail(DPN_ERR_INPUT, "%s: label %u at index %zu, wanted 0 to %d", path, record[0], i,
                              CIFAR_CLASSES - 1);
        labels[first + i] = record[0];
        memcpy(images + (first + i) * CIFAR_PIXELS, record + 1, CIFAR_PIXELS);
        *crc = dpn_crc32(*crc, record, sizeof record);
    }
    fclose(file);
    return status;
}

struct cifar_part {
    char names[CIFAR_FILES][24];
    char *paths[CIFAR_FILES]; /* malloc'd */
    int fds[CIFAR_FILES];
    size_t records[CIFAR_FILES], files, n;
};

static enum dpn_status cifar_open_files(const char *dir, int part, struct cifar_part *p)
{
    for (size_t f = 0; f < p->files; f++) {
        cifar_file_name(part, (int)f, p->names[f], sizeof p->names[f]);
        if (asprintf(&p->paths[f], "%s/%s", dir, p->names[f]) < 0) {
            p->paths[f] = NULL;
            return dpn_fail(DPN_ERR_NOMEM, "%s: no memory for a path", dir);
        }
        DPN_TRY(cifar_open_file(dir, p->names[f], p->paths[f], &p->fds[f], &p->records[f]));
        p->n += p->records[f];
    }
    return DPN_OK;
}

static enum dpn_status cifar_read_part(struct dpn_dataset *dataset, int part, struct cifar_part *p)
{
    struct cifar_storage *storage = dataset->storage;
    struct dpn_samples *samples = part ? &dataset->test : &dataset->train;
    size_t first = 0;
    DPN_TRY(dpn_data_check_fits(dataset->path, p->n, CIFAR_PIXELS + sizeof(int32_t)));
    storage->images[part] = malloc(p->n * CIFAR_PIXELS);
    storage->labels[part] = malloc(p->n * sizeof(int32_t));
    if (!storage->images[part] || !storage->labels[part])
        return dpn_fail(DPN_ERR_NOMEM, "%s: no memory for %zu images", dataset->path, p->n);
    for (size_t f = 0; f < p->files; f++) {
        DPN_TRY(cifar_read_records(p->paths[f], p->fds[f], p->records[f], first, storage->images[part],
                                   storage->labels[part], &samples->crc));
        first += p->records[f];
    }
    samples->n = p->n;
    samples->u8 = storage->images[part];
    samples->labels = storage->labels[part];
    dataset->storage_bytes += p->n * (CIFAR_PIXELS + sizeof(int32_t));
    return DPN_OK;
}

static enum dpn_status cifar_open_part(struct dpn_dataset *dataset, int part)
{
    struct cifar_part p = {.files = part ? 1 : CIFAR_FILES};
    for (size_t f = 0; f < CIFAR_FILES; f++) p.fds[f] = -1;
    enum dpn_status status = cifar_open_files(dataset->path, part, &p);
    if (status == DPN_OK) status = cifar_read_part(dataset, part, &p);
    for (size_t f = 0; f < CIFAR_FILES; f++) {
        if (p.fds[f] >= 0) close(p.fds[f]);
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
