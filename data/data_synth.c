/* A generated data set: something to learn where no real one is at hand. It says nothing about accuracy.
 *
 * Idea: each class has a coarse random pattern (4x4 cells a channel, 16 cells for a vector); a sample is its
 * class's pattern plus noise, one byte of Philox a pixel, both 0..127, so that sums never leave a byte.
 * Labels come in blocks that hold every class once, in random order.
 * Determinism: every number is keyed by (split, index) alone: the set is the same for every --seed and
 * machine.
 * Cost: a quarter of a Philox block for 4 pixels; memory: one byte a pixel and four a label.
 */
#include "data/data.h"

#include <endian.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "core/parse.h"
#include "core/rng.h"

/* First key of the streams, beside the purpose. */
enum { SYNTH_PIXELS = 0, SYNTH_LABELS = 2, SYNTH_PATTERN = 4 }; /* + split: 0 train, 1 test */

enum {
    SYNTH_MAX_SIDE = 65536,
    SYNTH_CELLS = 4,
    SYNTH_VECTOR_CELLS = 16,
    SYNTH_HALF = 0x7f, /* greatest value of pattern and of noise */
};

struct synth_config {
    uint64_t samples, test, channels, height, width, classes;
};

/* One row of pixels for each (class, channel, row of cells). */
struct synth_patterns {
    size_t rows; /* of cells, per channel */
    uint8_t *pixels;
};

struct synth_storage {
    uint8_t *images[2]; /* train, test */
    int32_t *labels[2];
};

/* ---- key=value ---- */

/* CxHxW, HxW or N */
static enum dpn_status synth_parse_shape(struct synth_config *config, const char *value)
{
    char quoted[DPN_QUOTE_BYTES];
    uint64_t sides[3] = {0};
    size_t n = 0;
    char *copy = strdup(value), *rest = copy;
    if (!copy) return dpn_fail(DPN_ERR_NOMEM, "--data: no memory");
    enum dpn_status status = DPN_OK;
    while (rest && n < 3 && status == DPN_OK) {
        uint64_t most = n == 0 && strchr(value, 'x') != strrchr(value, 'x') ? DPN_MAX_CHANNELS
                                                                            : SYNTH_MAX_SIDE;
        status = dpn_parse_u64("--data synthetic: shape:", strsep(&rest, "x"), 1, most, &sides[n++]);
    }
    if (status == DPN_OK && rest)
        status = dpn_fail(DPN_ERR_USAGE, "--data synthetic: shape: %s is not CxHxW, HxW or N",
                          dpn_quote(value, quoted));
    free(copy);
    config->channels = n == 3 ? sides[0] : 1;
    config->height = n == 1 ? 1 : sides[n - 2];
    config->width = sides[n - 1];
    return status;
}

static enum dpn_status synth_set(void *arg, const char *key, const char *value)
{
    static const char *const keys[] = {"samples", "test", "shape", "classes", NULL};
    struct synth_config *config = arg;
    int choice;
    DPN_TRY(dpn_parse_choice("--data synthetic: key", key, keys, &choice));
    switch (choice) {
    case 0: return dpn_parse_u64("--data synthetic: samples:", value, 1, UINT32_MAX, &config->samples);
    case 1: return dpn_parse_u64("--data synthetic: test:", value, 0, UINT32_MAX, &config->test);
    case 2: return synth_parse_shape(config, value);
    default: return dpn_parse_u64("--data synthetic: classes:", value, 2, DPN_MAX_CLASSES, &config->classes);
    }
}

static enum dpn_status synth_parse(const char *argument, struct synth_config *config)
{
    *config = (struct synth_config){5000, 1000, 3, 32, 32, 10};
    if (!argument) return DPN_OK;
    char *spec, *name;
    if (asprintf(&spec, "synthetic:%s", argument) < 0) return dpn_fail(DPN_ERR_NOMEM, "--data: no memory");
    enum dpn_status status = dpn_parse_spec("--data", spec, &name, synth_set, config);
    if (status == DPN_OK) free(name);
    free(spec);
    return status;
}

/* ---- generating ---- */

static enum dpn_status synth_make_patterns(const struct synth_config *config, struct synth_patterns *patterns)
{
    size_t width = config->width, wanted = config->height == 1 ? SYNTH_VECTOR_CELLS : SYNTH_CELLS;
    size_t columns = width < wanted ? width : wanted;
    patterns->rows = config->height < SYNTH_CELLS ? config->height : SYNTH_CELLS;
    size_t class_rows = config->channels * patterns->rows;
    DPN_TRY(dpn_data_check_fits("--data synthetic", config->classes * class_rows, width));
    uint8_t *row = patterns->pixels = malloc(config->classes * class_rows * width);
    if (!row) return dpn_fail(DPN_ERR_NOMEM, "--data synthetic: no memory for the patterns");
    for (size_t label = 0; label < config->classes; label++) {
        struct dpn_rng rng;
        dpn_rng_init(&rng, 0, DPN_RNG_SYNTH, SYNTH_PATTERN, label);
        for (size_t r = 0; r < class_rows; r++, row += width) {
            uint8_t cells[SYNTH_VECTOR_CELLS];
            for (size_t column = 0; column < columns; column++)
                cells[column] = (uint8_t)dpn_rng_below(&rng, SYNTH_HALF + 1);
            for (size_t x = 0; x < width; x++) row[x] = cells[x * columns / width];
        }
    }
    return DPN_OK;
}

/* Blocks of one label of each class, shuffled; a last, partial block holds the lowest classes. */
static void synth_make_labels(size_t split, size_t n, size_t classes, int32_t *labels)
{
    for (size_t first = 0; first < n; first += classes) {
        struct dpn_rng rng;
        size_t count = n - first < classes ? n - first : classes;
        dpn_rng_init(&rng, 0, DPN_RNG_SYNTH, SYNTH_LABELS + split, first / classes);
        for (size_t i = 0; i < count; i++) {
            size_t j = dpn_rng_below(&rng, (uint32_t)i + 1);
            labels[first + i] = labels[first + j];
            labels[first + j] = (int32_t)i;
        }
    }
}

static void synth_fill_noise(size_t split, size_t index, uint8_t *pixels, size_t n)
{
    struct dpn_rng rng;
    dpn_rng_init(&rng, 0, DPN_RNG_SYNTH, SYNTH_PIXELS + split, index);
    for (size_t i = 0; i < n; i += 4) {
        uint32_t word = htole32(dpn_rng_u32(&rng));
        memcpy(pixels + i, &word, n - i < 4 ? n - i : 4);
    }
}

/* pixels[x] := row[x] + pixels[x]/2, eight at a time: bytes of at most 127 add without a carry. */
static void synth_add_row(uint8_t *pixels, const uint8_t *row, size_t width)
{
    size_t x = 0;
    for (; x + 8 <= width; x += 8) {
        uint64_t noise, pattern;
        memcpy(&noise, pixels + x, 8);
        memcpy(&pattern, row + x, 8);
        pattern += noise >> 1 & UINT64_C(0x7f7f7f7f7f7f7f7f);
        memcpy(pixels + x, &pattern, 8);
    }
    for (; x < width; x++) pixels[x] = (uint8_t)(row[x] + (pixels[x] >> 1));
}

static void synth_make_image(const struct synth_config *config, const struct synth_patterns *patterns,
                             int32_t label, uint8_t *pixels)
{
    size_t width = config->width, height = config->height, rows = patterns->rows;
    const uint8_t *pattern = patterns->pixels + (size_t)label * config->channels * rows * width;
    for (size_t c = 0; c < config->channels; c++, pattern += rows * width)
        for (size_t y = 0; y < height; y++, pixels += width)
            synth_add_row(pixels, pattern + y * rows / height * width, width);
}

static uint32_t synth_crc(const struct dpn_samples *samples, size_t sample_bytes)
{
    uint32_t crc = dpn_crc32(0, samples->u8, samples->n * sample_bytes);
    for (size_t i = 0; i < samples->n; i++) {
        uint32_t label = htole32((uint32_t)samples->labels[i]);
        crc = dpn_crc32(crc, &label, sizeof(label));
    }
    return crc;
}

/* On failure what was allocated is left in STORAGE for the caller. */
static enum dpn_status synth_make_split(const struct synth_config *config,
                                        const struct synth_patterns *patterns, size_t split, size_t n,
                                        struct synth_storage *storage, struct dpn_samples *samples)
{
    if (n == 0) return DPN_OK;
    size_t sample_bytes = config->channels * config->height * config->width;
    uint8_t *images = storage->images[split] = malloc(n * sample_bytes);
    if (images) dpn_memory_large_pages(images, n * sample_bytes);
    int32_t *labels = storage->labels[split] = malloc(n * sizeof(*labels));
    if (!images || !labels) return dpn_fail(DPN_ERR_NOMEM, "--data synthetic: no memory for %zu samples", n);
    synth_make_labels(split, n, config->classes, labels);
    for (size_t i = 0; i < n; i++) {
        synth_fill_noise(split, i, images + i * sample_bytes, sample_bytes);
        synth_make_image(config, patterns, labels[i], images + i * sample_bytes);
    }
    *samples = (struct dpn_samples){.n = n, .u8 = images, .labels = labels};
    samples->crc = synth_crc(samples, sample_bytes);
    return DPN_OK;
}

static void synth_close(struct dpn_dataset *dataset)
{
    struct synth_storage *storage = dataset->storage;
    for (int split = 0; split < 2; split++) {
        free(storage->images[split]);
        free(storage->labels[split]);
    }
    free(storage);
    dataset->storage = NULL;
}

static enum dpn_status synth_open(const struct dpn_dataset_class *cls, const char *argument, const char *root,
                                  struct dpn_dataset *dataset)
{
    (void)cls;
    (void)root;
    struct synth_config config;
    struct synth_patterns patterns = {0};
    DPN_TRY(synth_parse(argument, &config));
    uint64_t sample_bytes = config.channels * config.height * config.width; /* at most 2^36 */
    DPN_TRY(dpn_data_check_fits("--data synthetic", config.samples + config.test,
                                sample_bytes + sizeof(int32_t)));

    enum dpn_status status;
    dataset->path = strdup("");
    dataset->storage = calloc(1, sizeof(struct synth_storage));
    if (!dataset->path || !dataset->storage) {
        status = dpn_fail(DPN_ERR_NOMEM, "--data synthetic: no memory");
        goto out;
    }
    dataset->channels = config.channels;
    dataset->height = config.height;
    dataset->width = config.width;
    dataset->classes = config.classes;
    dataset->storage_bytes = (config.samples + config.test) * (sample_bytes + sizeof(int32_t));
    status = synth_make_patterns(&config, &patterns);
    if (status == DPN_OK)
        status = synth_make_split(&config, &patterns, 0, config.samples, dataset->storage, &dataset->train);
    if (status == DPN_OK)
        status = synth_make_split(&config, &patterns, 1, config.test, dataset->storage, &dataset->test);
out:
    free(patterns.pixels);
    if (status == DPN_OK) return DPN_OK;
    if (dataset->storage) synth_close(dataset);
    free(dataset->path);
    dataset->path = NULL;
    return status;
}

static const double synth_mean[] = {0.5}, synth_std[] = {0.25};

const struct dpn_dataset_class dpn_dataset_synthetic = {
    .name = "synthetic",
    .summary = "generated images, not real: samples=5000,test=1000,shape=3x32x32,classes=10",
    .mean = synth_mean,
    .std = synth_std,
    .n_constants = 1,
    .open = synth_open,
    .close = synth_close,
};
