/* The record in a state file's __metadata__: strings, integers in decimal, so that neither word size nor byte
 * order of the machine that wrote it matters. */
#include <assert.h>
#include <float.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/json.h"
#include "core/memory.h"
#include "core/parse.h"
#include "train/checkpoint_private.h"

#ifndef DPN_VERSION
#define DPN_VERSION "0.1.0"
#endif

enum { RECORD_OPTION_BYTES = 8192 };

static const char record_form[] = "dpnode-state";

static const struct {
    const char *key;
    size_t offset;
} record_counts[] = {
    {"epoch", offsetof(struct dpn_progress_record, epoch)},
    {"step_in_epoch", offsetof(struct dpn_progress_record, step_in_epoch)},
    {"global_step", offsetof(struct dpn_progress_record, global_step)},
    {"samples", offsetof(struct dpn_progress_record, samples)},
    {"shards", offsetof(struct dpn_progress_record, shards)},
    {"devices", offsetof(struct dpn_progress_record, devices)},
    {"data_samples", offsetof(struct dpn_progress_record, data_samples)},
};
static const struct {
    const char *key;
    size_t offset;
} record_doubles[] = {
    {"best_accuracy", offsetof(struct dpn_progress_record, best_accuracy)},
    {"epoch_loss_sum", offsetof(struct dpn_progress_record, epoch_loss_sum)},
};
enum {
    RECORD_N_COUNTS = sizeof(record_counts) / sizeof(record_counts[0]),
    RECORD_N_DOUBLES = sizeof(record_doubles) / sizeof(record_doubles[0]),
};

/* An option that may differ on resume but is taken from the record if it is not given: schedules end where
 * it says. */
static int record_is_target(const struct dpn_option *option)
{
    return strcmp(option->name, "epochs") == 0;
}

/* An option that the record holds. V stands in the record itself: --shards may have been left to the
 * default. */
static int record_has_option(const struct dpn_option *option)
{
    return record_is_target(option) ||
           (option->role == DPN_ROLE_NUMBERS && (option->commands & DPN_CMD_TRAIN) &&
            strcmp(option->name, "shards") != 0);
}

/* ---- writing ---- */

static void record_add(struct dpn_ckpt_text *text, const char *key, const char *value)
{
    assert(text->n_pairs < DPN_CKPT_MAX_PAIRS);
    text->pairs[text->n_pairs++] = (struct dpn_st_pair){key, value};
}

/* The value of the next pair, to be printed into. */
static char *record_slot(struct dpn_ckpt_text *text)
{
    assert(text->n_pairs < DPN_CKPT_MAX_PAIRS);
    return text->values[text->n_pairs];
}

static void record_add_u64(struct dpn_ckpt_text *text, const char *key, uint64_t value)
{
    char *slot = record_slot(text);
    snprintf(slot, DPN_CKPT_VALUE_BYTES, "%" PRIu64, value);
    record_add(text, key, slot);
}

static void record_add_crc(struct dpn_ckpt_text *text, const char *key, uint32_t value)
{
    char *slot = record_slot(text);
    snprintf(slot, DPN_CKPT_VALUE_BYTES, "%08" PRIx32, value);
    record_add(text, key, slot);
}

static enum dpn_status record_options(const struct dpn_config *config, char **text)
{
    struct dpn_json json;
    char *value;
    DPN_TRY(dpn_calloc(&value, RECORD_OPTION_BYTES, 1, "checkpoint options"));
    dpn_json_init(&json);
    dpn_json_open_object(&json, NULL);
    for (size_t i = 0; i < dpn_n_options; i++)
        if (record_has_option(&dpn_options[i]))
            dpn_json_string(&json, dpn_options[i].name,
                            dpn_option_text(config, &dpn_options[i], value, RECORD_OPTION_BYTES));
    dpn_json_close_object(&json);
    *text = json.failed ? NULL : strdup(json.text);
    dpn_json_free(&json);
    free(value);
    return *text ? DPN_OK : dpn_fail(DPN_ERR_NOMEM, "cannot get memory for the options of a checkpoint");
}

enum dpn_status dpn_ckpt_text_make(const struct dpn_model *model, const struct dpn_config *config,
                                   const struct dpn_progress_record *record, uint32_t weights_crc,
                                   struct dpn_ckpt_text *text)
{
    memset(text, 0, sizeof(*text));
    DPN_TRY(record_options(config, &text->options));
    record_add(text, "format", record_form);
    record_add_u64(text, "format_version", DPN_CHECKPOINT_FORMAT);
    record_add(text, "dpnode_version", DPN_VERSION);
    record_add_crc(text, "weights_crc32", weights_crc);
    record_add(text, "model", model->spec);
    char *slot = record_slot(text);
    snprintf(slot, DPN_CKPT_VALUE_BYTES, "%016" PRIx64, dpn_options_digest(config));
    record_add(text, "options_digest", slot);
    record_add(text, "options", text->options);
    record_add_u64(text, "seed", config->seed);
    for (size_t i = 0; i < RECORD_N_COUNTS; i++) {
        uint64_t value;
        memcpy(&value, (const char *)record + record_counts[i].offset, sizeof(value));
        record_add_u64(text, record_counts[i].key, value);
    }
    for (size_t i = 0; i < RECORD_N_DOUBLES; i++) {
        double value;
        memcpy(&value, (const char *)record + record_doubles[i].offset, sizeof(value));
        slot = record_slot(text);
        snprintf(slot, DPN_CKPT_VALUE_BYTES, "%.17g", value);
        record_add(text, record_doubles[i].key, slot);
    }
    record_add_crc(text, "data_crc32", record->data_crc);
    return DPN_OK;
}

void dpn_ckpt_text_free(struct dpn_ckpt_text *text)
{
    free(text->options);
    text->options = NULL;
}

/* ---- reading ---- */

static enum dpn_status record_value(const struct dpn_st_file *state, const char *key, const char **value)
{
    *value = dpn_st_metadata(state, key);
    return *value ? DPN_OK : dpn_fail(DPN_ERR_INPUT, "%s: has no \"%s\" in __metadata__", state->path, key);
}

static enum dpn_status record_form_check(const struct dpn_st_file *state)
{
    const char *form = dpn_st_metadata(state, "format"), *version;
    if (!form || strcmp(form, record_form) != 0)
        return dpn_fail(DPN_ERR_INPUT, "%s: is not the state file of a dpnode checkpoint", state->path);
    DPN_TRY(record_value(state, "format_version", &version));
    char known[DPN_CKPT_VALUE_BYTES];
    snprintf(known, sizeof(known), "%d", DPN_CHECKPOINT_FORMAT);
    if (strcmp(version, known) != 0)
        return dpn_fail(DPN_ERR_INPUT, "%s: checkpoint format version %s, this dpnode (%s) reads version %s",
                        state->path, version, DPN_VERSION, known);
    return DPN_OK;
}

enum dpn_status dpn_ckpt_record_read(const struct dpn_st_file *state, struct dpn_progress_record *record)
{
    const char *text;
    char where[512];
    DPN_TRY(record_form_check(state));
    for (size_t i = 0; i < RECORD_N_COUNTS; i++) {
        uint64_t value;
        DPN_TRY(record_value(state, record_counts[i].key, &text));
        snprintf(where, sizeof(where), "%s: %s", state->path, record_counts[i].key);
        if (dpn_parse_u64(where, text, 0, INT64_MAX, &value) != DPN_OK) return DPN_ERR_INPUT;
        memcpy((char *)record + record_counts[i].offset, &value, sizeof(value));
    }
    for (size_t i = 0; i < RECORD_N_DOUBLES; i++) {
        double value;
        DPN_TRY(record_value(state, record_doubles[i].key, &text));
        snprintf(where, sizeof(where), "%s: %s", state->path, record_doubles[i].key);
        if (dpn_parse_double(where, text, -DBL_MAX, DBL_MAX, &value) != DPN_OK) return DPN_ERR_INPUT;
        memcpy((char *)record + record_doubles[i].offset, &value, sizeof(value));
    }
    char digits[9];
    DPN_TRY(record_value(state, "data_crc32", &text));
    record->data_crc = (uint32_t)strtoul(text, NULL, 16);
    snprintf(digits, sizeof(digits), "%08" PRIx32, record->data_crc);
    if (strcmp(digits, text) != 0)
        return dpn_fail(DPN_ERR_INPUT, "%s: data_crc32 is \"%s\", not eight hexadecimal digits", state->path,
                        text);
    return DPN_OK;
}

/* ---- options ---- */

struct record_options {
    const struct dpn_st_file *state;
    const json_t *saved;
    struct dpn_config *config, defaults;
    char *mine, *theirs; /* RECORD_OPTION_BYTES each */
    char **texts;
    size_t n_texts;
};

/* Gives CONFIG a string of its own that lives as long as the checkpoint. */
static enum dpn_status record_set_option(struct record_options *work, const struct dpn_option *option,
                                         const char *value)
{
    char *text = strdup(value);
    if (!text) return dpn_fail(DPN_ERR_NOMEM, "%s: no memory for its options", work->state->path);
    work->texts[work->n_texts++] = text;
    return dpn_option_set(work->config, option, work->state->path, text) == DPN_OK ? DPN_OK : DPN_ERR_INPUT;
}

static enum dpn_status record_differs(const struct record_options *work, const char *name, const char *mine,
                                      const char *theirs)
{
    return dpn_fail(DPN_ERR_USAGE, "--%s %s differs from %s in %s (a resumed run must have the same numbers)",
                    name, *mine ? mine : "(none)", *theirs ? theirs : "(none)", work->state->path);
}

/* An option that the file does not have came later: the run that wrote the file had its default. */
static enum dpn_status record_apply_option(struct record_options *work, const struct dpn_option *option)
{
    const char *saved = json_string_value(json_object_get(work->saved, option->name));
    const char *mine = dpn_option_text(work->config, option, work->mine, RECORD_OPTION_BYTES);
    if (!saved) saved = dpn_option_text(&work->defaults, option, work->theirs, RECORD_OPTION_BYTES);
    if (strcmp(saved, mine) == 0) return DPN_OK;
    if (dpn_option_given(work->config, option->name))
        return record_is_target(option) ? DPN_OK : record_differs(work, option->name, mine, saved);
    return record_set_option(work, option, saved);
}

static enum dpn_status record_apply_shards(struct record_options *work, uint64_t shards)
{
    char mine[DPN_CKPT_VALUE_BYTES], theirs[DPN_CKPT_VALUE_BYTES];
    snprintf(mine, sizeof(mine), "%" PRIu64, work->config->shards);
    snprintf(theirs, sizeof(theirs), "%" PRIu64, shards);
    if (dpn_option_given(work->config, "shards") && work->config->shards != shards)
        return record_differs(work, "shards", mine, theirs);
    work->config->shards = shards;
    return DPN_OK;
}

static enum dpn_status record_apply(struct record_options *work, json_t *saved)
{
    const char *name;
    json_t *value;
    json_object_foreach(saved, name, value)
    {
        if (!json_is_string(value))
            return dpn_fail(DPN_ERR_INPUT, "%s: option \"%s\" is no string", work->state->path, name);
        if (!dpn_option_find(name))
            return dpn_fail(DPN_ERR_INPUT,
                            "%s: was made with --%s %s, an option that this dpnode (%s) does not have",
                            work->state->path, name, json_string_value(value), DPN_VERSION);
    }
    for (size_t i = 0; i < dpn_n_options; i++)
        if (record_has_option(&dpn_options[i])) DPN_TRY(record_apply_option(work, &dpn_options[i]));
    return DPN_OK;
}

enum dpn_status dpn_ckpt_apply_options(const struct dpn_st_file *state,
                                       const struct dpn_progress_record *record, struct dpn_config *config,
                                       char ***texts, size_t *n_texts)
{
    const char *text;
    struct record_options work = {.state = state, .config = config};
    json_error_t error;
    DPN_TRY(record_value(state, "options", &text));
    json_t *saved = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    enum dpn_status status = saved && json_is_object(saved)
                                 ? DPN_OK
                                 : dpn_fail(DPN_ERR_INPUT, "%s: bad \"options\"", state->path);
    dpn_config_defaults(&work.defaults);
    work.saved = saved;
    if (status == DPN_OK) status = dpn_calloc(&work.mine, RECORD_OPTION_BYTES, 1, "checkpoint options");
    if (status == DPN_OK) status = dpn_calloc(&work.theirs, RECORD_OPTION_BYTES, 1, "checkpoint options");
    if (status == DPN_OK)
        status = dpn_calloc(&work.texts, dpn_n_options, sizeof(char *), "checkpoint options");
    if (status == DPN_OK) status = record_apply(&work, saved);
    if (status == DPN_OK) status = record_apply_shards(&work, record->shards);
    *texts = work.texts;
    *n_texts = work.n_texts;
    free(work.mine);
    free(work.theirs);
    json_decref(saved);
    return status;
}
