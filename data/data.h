/* Data sets in memory, the sampler, and how a step's batch is cut into shards.
 *
 * To add a data set: one file data_NAME.c with a struct dpn_dataset_class, one line in src/plugins.def.
 */
#ifndef DPN_DATA_DATA_H
#define DPN_DATA_DATA_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "core/status.h"

enum { DPN_MAX_CHANNELS = 16, DPN_MAX_CLASSES = 65536 };

/* Where Debian's package dataset-fashion-mnist puts its files: the default data set. */
#define DPN_FASHION_MNIST_DEBIAN_DIR "/usr/share/datasets/fashion-mnist"

/* One split. Pixels are u8 or f32 (the other is NULL), sample after sample, CHW, no padding. */
struct dpn_samples {
    size_t n;
    const uint8_t *u8;
    const float *f32;
    const int32_t *labels; /* each in 0..classes-1, checked at load */
    /* CRC-32 over the images file's and then the labels file's uncompressed bytes (their CRCs combined), so
     * raw and gzip give the same; of CIFAR-10: over its files' bytes in order; of NumPy arrays: see
     * data_npy.c; of a generated set: over the pixels, then the labels as little-endian int32. */
    uint32_t crc;
};

struct dpn_dataset {
    const struct dpn_dataset_class *cls;
    char name[32];
    char *path; /* absolute path of the resolved folder, "" for synthetic; malloc'd */
    int real;   /* 0: generated */
    size_t channels, height, width;
    size_t classes;
    struct dpn_samples train, test;                         /* test.n 0: the set has no test part */
    size_t sample_elems;                                    /* channels*height*width */
    float scale[DPN_MAX_CHANNELS], shift[DPN_MAX_CHANNELS]; /* input = raw * scale + shift, per channel */
    char normalize[160]; /* for the run header: "mean 0.2860 / std 0.3530", "1/255", "as is" */
    uint64_t read_ns;    /* time spent reading and checking */
    void *storage;       /* owned by the class */
    size_t storage_bytes;
};

struct dpn_dataset_request {
    /* --data: NAME[:DIR], NAME[:key=value,...] for synthetic. "" or "auto": Fashion-MNIST where Debian's
     * package puts it, else synthetic; with a DATA_ROOT, Fashion-MNIST there and nothing else. */
    const char *spec;
    const char *data_root; /* --data-root, "" if not given; if given, a set is looked for there only */
    const char *normalize; /* --normalize: "" (the set's constants), "none", "MEAN[,..]/STD[,..]" */
};

struct dpn_dataset_class {
    const char *name; /* "fashion-mnist" */
    const char *summary;
    const double *mean, *std; /* the set's constants, in units of pixel/255; NULL if none */
    size_t n_constants;       /* of each: 1 (serves every channel) or the set's channels; 0 if none */
    /* ARGUMENT: what follows the colon of the spec, NULL if there is no colon, never "". ROOT as in the
     * request. Called with DATASET zeroed but for cls and name; fills everything but scale, shift,
     * normalize, read_ns and sample_elems. Leaves nothing allocated on failure. */
    enum dpn_status (*open)(const struct dpn_dataset_class *cls, const char *argument, const char *root,
                            struct dpn_dataset *dataset);
    void (*close)(struct dpn_dataset *dataset); /* frees storage; path is the caller's */
};
extern const struct dpn_dataset_class *const dpn_dataset_classes[]; /* NULL-terminated, from plugins.def */

/* Opens what REQUEST names; errors are DPN_ERR_USAGE, DPN_ERR_INPUT or DPN_ERR_NOMEM and name the option or
 * file and the bad value. Only the folder resolved is read: no cache, and no other folder if it is bad.
 * Nothing is printed. One thread, before devices start. */
enum dpn_status dpn_dataset_open(const struct dpn_dataset_request *request, struct dpn_dataset *dataset);
void dpn_dataset_close(struct dpn_dataset *dataset); /* a zeroed or closed DATASET: nothing */

/* Where a set of files may lie: the folder that was given, or --data-root or $DPNODE_DATA or ./data/sets, as
 * NAME or BELOW in it (BELOW also in NAME); and where a package puts it (NULL: nowhere). */
struct dpn_data_place {
    const char *name, *below, *system_folder;
    const char *wanted; /* the files, for the error text */
    /* Whether DIR is the set's folder, by a file that is there (whatever its contents). */
    enum dpn_status (*holds)(const char *dir, int *holds);
};
/* *PATH := the absolute path of the first such folder, malloc'd. ARGUMENT: the DIR of --data, or NULL; ROOT:
 * --data-root or "". DPN_ERR_INPUT names all places that were tried. */
enum dpn_status dpn_data_locate(const struct dpn_data_place *place, const char *argument, const char *root,
                                char **path);

/* DPN_ERR_NOMEM, naming WHAT and both sizes, if COUNT items of SIZE bytes are more than the machine has
 * memory: Linux would grant the address space and kill the process later. */
enum dpn_status dpn_data_check_fits(const char *what, uint64_t count, uint64_t size);

/* IDX (the form of MNIST: big-endian magic 00 00 TYPE RANK, RANK sizes of 4 bytes, elements). */
enum { DPN_IDX_IMAGES = 0x803, DPN_IDX_LABELS = 0x801 };
struct dpn_idx {
    uint32_t magic;
    unsigned rank;
    size_t dims[4];
    uint8_t *bytes;    /* the elements, no header; malloc'd, the caller frees */
    uint32_t crc;      /* CRC-32 of the uncompressed file, header included */
    size_t raw_bytes;  /* size of the uncompressed file, header included */
    size_t file_bytes; /* size on disk */
    int gzip;
};
/* Reads PATH, raw or gzip (found out by content, whatever the name). Verified: a regular file, magic, type
 * 08, rank, sizes at least 1 and their product against the bytes there are, gzip's CRC and length at the
 * end of each member; trailing bytes are refused. Memory is bounded by the bytes really there, never by the
 * header alone. WANT_MAGIC: DPN_IDX_IMAGES or DPN_IDX_LABELS. Errors: DPN_ERR_INPUT, DPN_ERR_NOMEM, with
 * nothing allocated. */
enum dpn_status dpn_idx_read(const char *path, uint32_t want_magic, struct dpn_idx *idx);
/* As dpn_idx_read for any IDX of type 08 (rank 1..4): for `dpnode info`. */
enum dpn_status dpn_idx_read_any(const char *path, struct dpn_idx *idx);

/* CIFAR-10's binary form: a label byte and 3 planes of 32x32 bytes. */
enum { DPN_CIFAR_RECORD_BYTES = 1 + 3 * 32 * 32 };
/* Opens a batch file; *RECORDS is at least 1. Refused with DPN_ERR_INPUT naming PATH: what is no regular
 * file, a size that is no whole number of records, gzip, and Python's pickle form (also where PATH without
 * ".bin" is there instead). The caller closes *FILE. */
enum dpn_status dpn_cifar_open(const char *path, FILE **file, size_t *records);
/* Reads the next RECORDS records: their planes to PIXELS, their labels, checked to be 0 to 9, to LABELS; *CRC
 * is continued over their bytes. PATH is for errors. */
enum dpn_status dpn_cifar_read(const char *path, FILE *file, size_t records, uint8_t *pixels, int32_t *labels,
                               uint32_t *crc);

/* NumPy's .npy form, versions 1 to 3, C order, little-endian: the file mapped read-only. */
enum { DPN_NPY_MAX_RANK = 8 };
struct dpn_npy {
    char kind; /* 'u', 'i' or 'f' */
    size_t item_bytes;
    unsigned rank;
    size_t dims[DPN_NPY_MAX_RANK];
    size_t elems;
    const uint8_t *data; /* in the map, aligned as in the file */
    void *map;
    size_t map_bytes;
};
/* Checked: magic, version, every key of the header, order of bytes and elements, and the sizes against the
 * file's. Errors: DPN_ERR_INPUT naming PATH. The file must not be cut while it is open. */
enum dpn_status dpn_npy_open(const char *path, struct dpn_npy *npy);
void dpn_npy_close(struct dpn_npy *npy); /* zeroed: nothing */
/* "3x32x32" */
void dpn_npy_shape_text(const struct dpn_npy *npy, char *text, size_t size);

/* CRC-32 (zlib's) of BYTES bytes continued from CRC (0 to start), and of the concatenation of two ranges. */
uint32_t dpn_crc32(uint32_t crc, const void *bytes, size_t n_bytes);
uint32_t dpn_crc32_combine(uint32_t first, uint32_t second, size_t second_bytes);

/* ---- sampler ---- */

enum dpn_last_batch { DPN_LAST_SHORT, DPN_LAST_DROP, DPN_LAST_WRAP };

struct dpn_sampler {
    size_t n;     /* samples in the set */
    size_t batch; /* global */
    enum dpn_last_batch last;
    int shuffle;
    uint64_t seed;
    size_t steps;    /* per epoch, at least 1 */
    uint64_t epoch;  /* whose order ORDER holds */
    uint32_t *order; /* n indices */
};
/* Opens with the order of epoch 0. DPN_ERR_USAGE naming both numbers if an epoch would have no step (drop
 * with n < batch), or if n is 0 or above 2^32 - 1, or batch is 0. */
enum dpn_status dpn_sampler_open(struct dpn_sampler *sampler, size_t n, size_t batch,
                                 enum dpn_last_batch last, int shuffle, uint64_t seed);
void dpn_sampler_close(struct dpn_sampler *sampler);
/* Makes ORDER the permutation of (seed, epoch): Fisher-Yates on dpn_rng_below, or 0..n-1 without shuffle. */
void dpn_sampler_set_epoch(struct dpn_sampler *sampler, uint64_t epoch);
/* Samples of step STEP (0..steps-1): batch, or the rest in the last step of `short`. */
size_t dpn_sampler_step_samples(const struct dpn_sampler *sampler, size_t step);
/* The dataset index of position POSITION (0..step_samples-1) of step STEP; `wrap` starts the epoch's order
 * over, as often as needed. */
static inline uint32_t dpn_sampler_index(const struct dpn_sampler *sampler, size_t step, size_t position)
{
    size_t at = step * sampler->batch + position;
    return sampler->order[at < sampler->n ? at : at % sampler->n];
}
/* Shard V of N_SHARDS over SAMPLES samples is dpn_split of core/team.h: sizes differ by at most 1, larger
 * first. */

#endif
