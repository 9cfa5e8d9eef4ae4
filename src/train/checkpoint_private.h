/* What the checkpoint files share among themselves and with cmd_info.c: names, the record, the list of a
 * folder. */
#ifndef DPN_TRAIN_CHECKPOINT_PRIVATE_H
#define DPN_TRAIN_CHECKPOINT_PRIVATE_H

#include <stddef.h>
#include <stdint.h>

#include "train/checkpoint.h"
#include "train/safetensors.h"

/* "step-18446744073709551615" and a suffix fit. */
enum { DPN_CKPT_STEM_BYTES = 32, DPN_CKPT_NAME_BYTES = 64 };

#define DPN_WEIGHTS_SUFFIX ".safetensors"
#define DPN_STATE_SUFFIX   ".state.safetensors"
/* Of the files that are being written; the process's number and the final name follow. */
#define DPN_CKPT_TEMP_PREFIX ".tmp-dpnode-"

struct dpn_checkpoint_dir {
    char *path;
    int fd; /* of the folder: base of all file names, and the lock */
    int locked;
    uint64_t keep;
    size_t created;                   /* levels of PATH that were created */
    char (*old)[DPN_CKPT_NAME_BYTES]; /* files that go once a new checkpoint is complete */
    size_t n_old;
};

/* ---- names (checkpoint_dir.c) ---- */

enum dpn_ckpt_file { DPN_CKPT_OTHER, DPN_CKPT_WEIGHTS, DPN_CKPT_STATE, DPN_CKPT_BEST, DPN_CKPT_TEMP };

/* What FILE (no folder) is by its name alone; STEM: "epoch-0003", "step-00000012", "last", "best", or "". */
enum dpn_ckpt_file dpn_ckpt_classify(const char *file, char stem[DPN_CKPT_STEM_BYTES]);

/* Calls each(arg, name) for every entry of folder PATH, in order of names, and stops at its first error. */
enum dpn_status dpn_ckpt_scan(const char *path, enum dpn_status (*each)(void *arg, const char *name),
                              void *arg);

/* FOLDER/STEM SUFFIX, and SLOT.TENSOR; malloc'd; NULL without memory. */
char *dpn_ckpt_path(const char *folder, const char *stem, const char *suffix);
char *dpn_ckpt_slot_name(const char *slot, const char *tensor);

/* A checkpoint found in a folder. */
struct dpn_ckpt_entry {
    char stem[DPN_CKPT_STEM_BYTES];
    int readable; /* the record could be read; contents not verified */
    uint64_t global_step;
};
/* All checkpoints (state files) of folder PATH, unreadable ones first, then by falling global step, `last`
 * after its equal. *ENTRIES is malloc'd. */
enum dpn_status dpn_ckpt_list(const char *path, struct dpn_ckpt_entry **entries, size_t *n_entries);

/* After checkpoint STEM is complete: removes what --overwrite replaces, then prunes. Failures are
 * warnings. */
void dpn_ckpt_tidy(struct dpn_checkpoint_dir *dir, const char *stem, int best);

/* ---- the record (checkpoint_record.c) ---- */

enum { DPN_CKPT_MAX_PAIRS = 24, DPN_CKPT_VALUE_BYTES = 40 };

struct dpn_ckpt_text {
    struct dpn_st_pair pairs[DPN_CKPT_MAX_PAIRS];
    size_t n_pairs;
    char values[DPN_CKPT_MAX_PAIRS][DPN_CKPT_VALUE_BYTES];
    char *options; /* JSON */
};
/* __metadata__ of a state file beside the weights whose CRC is WEIGHTS_CRC. Free with dpn_ckpt_text_free,
 * also on failure. */
enum dpn_status dpn_ckpt_text_make(const struct dpn_model *model, const struct dpn_config *config,
                                   const struct dpn_progress_record *record, uint32_t weights_crc,
                                   struct dpn_ckpt_text *text);
void dpn_ckpt_text_free(struct dpn_ckpt_text *text);

/* The record of a state file; form and version checked, contents not verified. Errors: DPN_ERR_INPUT. */
enum dpn_status dpn_ckpt_record_read(const struct dpn_st_file *state, struct dpn_progress_record *record);

/* Sets or compares the options of CONFIG as dpn_checkpoint_open says. *TEXTS: the strings that CONFIG now
 * points to. */
enum dpn_status dpn_ckpt_apply_options(const struct dpn_st_file *state,
                                       const struct dpn_progress_record *record, struct dpn_config *config,
                                       char ***texts, size_t *n_texts);

/* ---- pairs (checkpoint_load.c) ---- */

struct dpn_checkpoint {
    struct dpn_st_file *weights, *state; /* NULL once loaded */
    char *path;                          /* of the weights file */
    char **texts;
    size_t n_texts;
};

/* Opens checkpoint STEM of FOLDER, both files verified and matched. *MISMATCH: both are sound but not of one
 * save. *CHECKPOINT: dpn_checkpoint_close. Errors: DPN_ERR_INPUT. */
enum dpn_status dpn_ckpt_open_pair(const char *folder, const char *stem, struct dpn_progress_record *record,
                                   int *mismatch, struct dpn_checkpoint **checkpoint);

#endif
