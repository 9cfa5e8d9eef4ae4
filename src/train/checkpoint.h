/* Checkpoints: two safetensors files, written so that a crash at any moment leaves the newest complete one
 * usable.
 *
 * docs/formats.md describes the files. A checkpoint NAME is NAME.safetensors (weights only, PyTorch's state
 * dict) and NAME.state.safetensors (optimizer slots "<slot>.<tensor>", the record in __metadata__). It exists
 * when its state file does and both CRCs hold. All calls: one thread (global rank 0, device 0).
 */
#ifndef DPN_TRAIN_CHECKPOINT_H
#define DPN_TRAIN_CHECKPOINT_H

#include <stddef.h>
#include <stdint.h>

#include "core/options.h"
#include "core/status.h"
#include "nn/nn.h"

enum { DPN_CHECKPOINT_FORMAT = 1 };

/* What resuming needs beside tensors. Counts are below 2^63. */
struct dpn_progress_record {
    uint64_t epoch;         /* complete epochs */
    uint64_t step_in_epoch; /* steps done in the epoch after them */
    uint64_t global_step;   /* updates done */
    uint64_t samples;       /* consumed since the start */
    uint64_t shards;        /* V */
    uint64_t devices;       /* N of the run that wrote it; for the note only */
    double best_accuracy;   /* negative: none yet */
    double epoch_loss_sum;  /* sum of the losses of the samples of the unfinished epoch */
    uint64_t data_samples;  /* training samples of the set, and its checksum */
    uint32_t data_crc;
};

/* Memory that a checkpoint saves from or loads into. */
struct dpn_checkpoint_arenas {
    float *params;
    float *buffers;    /* running statistics */
    uint64_t *batches; /* every batch norm's num_batches_tracked: training steps since the statistics began */
    int n_slots;
    const char *const *slot_names;
    float *const *slots;
};

struct dpn_checkpoint_dir; /* an output folder, locked against other runs while it is open */

/* --out: creates DIR (and missing parents) or refuses; a folder that another run has open is refused, and one
 * that holds checkpoints of ours unless OVERWRITE or RESUME; probes it by creating and removing a file;
 * tidies stale temporary files of ours. With OVERWRITE and not RESUME, what is there of ours goes when the
 * first new checkpoint is complete. KEEP 0: all. Before step 1. Errors: DPN_ERR_USAGE naming --out. */
enum dpn_status dpn_checkpoint_dir_open(const char *dir, int overwrite, int resume, uint64_t keep,
                                        struct dpn_checkpoint_dir **out);
/* Refuses what dpn_checkpoint_dir_open would, and leaves everything as it is. Rights are asked for, not
 * tried; another run's lock is seen. */
enum dpn_status dpn_checkpoint_dir_check(const char *dir, int overwrite, int resume);
/* Removes a folder that dpn_checkpoint_dir_open created and that is still empty. NULL: nothing. */
void dpn_checkpoint_dir_close(struct dpn_checkpoint_dir *dir);

/* Writes checkpoint "epoch-%04u" (step_in_epoch 0) or "step-%08u" (global_step), then repoints last.* (and
 * best.safetensors if BEST), then prunes to `keep` checkpoints (0: all; never this one). Every write, fsync,
 * rename and close is checked; on failure earlier checkpoints are untouched and temporary files removed.
 * Errors: DPN_ERR_SYSTEM naming the file. */
enum dpn_status dpn_checkpoint_save(struct dpn_checkpoint_dir *dir, const struct dpn_model *model,
                                    const struct dpn_config *config, const struct dpn_progress_record *record,
                                    const struct dpn_checkpoint_arenas *arenas, int best);

/* --resume: PATH is NAME.safetensors or NAME.state.safetensors, or "auto" (the newest complete checkpoint in
 * DIR; damaged newer ones are skipped with a warning; *FOUND 0 if there is no checkpoint at all: a fresh
 * start; only damaged ones: DPN_ERR_INPUT). Reads and checks the record and both files' CRCs; sets every
 * option of role NUMBERS that was not given on the command line to the record's value and refuses
 * (DPN_ERR_USAGE naming the option and both values) one that was given and differs; --shards likewise comes
 * from the file. Strings in CONFIG then point into *CHECKPOINT: close it after the last use of CONFIG. */
struct dpn_checkpoint; /* an opened checkpoint */
enum dpn_status dpn_checkpoint_open(const char *path, const char *dir, struct dpn_config *config,
                                    struct dpn_progress_record *record, int *found,
                                    struct dpn_checkpoint **checkpoint);
/* Loads tensors and slots, verifying the model, names, shapes and dtypes before the first one is stored, and
 * lets go of the files: once only. DPN_ERR_INPUT naming the file. */
enum dpn_status dpn_checkpoint_load(struct dpn_checkpoint *checkpoint, const struct dpn_model *model,
                                    const struct dpn_checkpoint_arenas *arenas);
const char *dpn_checkpoint_path(const struct dpn_checkpoint *checkpoint); /* of its weights file */
void dpn_checkpoint_close(struct dpn_checkpoint *checkpoint);             /* NULL: nothing */

/* --init, --checkpoint: weights and running statistics of a safetensors file into ARENAS (slots are not
 * looked at). Every tensor and buffer of the model must be there with its shape and dtype F32, and nothing
 * else but counters
 * ("*.num_batches_tracked", one of which becomes *batches); DPN_ERR_INPUT naming the file and the tensor. A
 * file that dpnode wrote is verified by the CRC that it carries; of any other only the structure can be.
 * ARENAS are written only if all is well. */
enum dpn_status dpn_weights_load(const char *path, const struct dpn_model *model,
                                 const struct dpn_checkpoint_arenas *arenas);

#endif
