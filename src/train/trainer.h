/* The training engine: one run on the devices of this rank.
 *
 * Life of a run: cmd_train.c fills struct dpn_run (setup.c), every device thread executes dpn_trainer_body
 * (trainer.c), which calls the mode's step for every step, evaluates, and has device 0 save and log.
 *
 * Who may write what. struct dpn_run is set up before the device threads start; afterwards only device 0
 * writes, between barriers, or before it starts the first bucket of a step (stop, read by all after they
 * waited for that step). struct dpn_replica: its own device's thread; shard_loss entries by the owner of the
 * shard.
 */
#ifndef DPN_TRAIN_TRAINER_H
#define DPN_TRAIN_TRAINER_H

#include <stddef.h>
#include <stdint.h>

#include "core/json.h"
#include "core/options.h"
#include "core/status.h"
#include "core/wait.h"
#include "data/data.h"
#include "device/device.h"
#include "nn/nn.h"
#include "reduce/reduce.h"
#include "train/checkpoint.h"
#include "train/progress.h"

enum { DPN_EVAL_CHUNK = 256, DPN_WARMUP_STEPS = 10, DPN_MAX_SLOTS = 4, DPN_MAX_STACK = 64 };

/* Where a device's time goes; every nanosecond of its loop is booked on one of them. */
enum dpn_phase {
    DPN_PHASE_INPUT,
    DPN_PHASE_FORWARD,
    DPN_PHASE_BACKWARD,
    DPN_PHASE_REDUCE, /* exposed: start, progress and wait, without waiting for the slowest */
    DPN_PHASE_WAIT,   /* for the slowest member */
    DPN_PHASE_UPDATE,
    DPN_PHASE_EVAL,
    DPN_PHASE_SAVE,
    DPN_PHASE_OTHER, /* logging, shuffling */
    DPN_N_PHASES
};
extern const char *const dpn_phase_names[DPN_N_PHASES];

/* One step, the same on every member. */
struct dpn_step {
    uint64_t global; /* number since the start of training */
    uint64_t epoch;
    size_t in_epoch;
    size_t samples;  /* of the whole batch */
    uint64_t leaves; /* shards that hold a sample */
    double lr;
};

/* A member's part of a step. */
struct dpn_shard {
    uint64_t index; /* in the step's tree */
    size_t first;   /* position in the batch of its first sample */
    size_t rows;
};

struct dpn_run;

struct dpn_replica {
    struct dpn_run *run;
    struct dpn_device *device;
    int member;
    uint64_t first_shard, n_shards; /* of the V shards */
    /* One for all shards in turn; with --batch-norm sync one for each of them. Evaluation has its own plan
     * over the same memory. */
    struct dpn_exec *execs, eval;
    size_t n_execs;
    size_t *rows; /* [n_execs] of this step's shards */
    struct dpn_plan train_plan, eval_plan;
    void *exec_memory;
    size_t exec_bytes;
    uint64_t exchanges;          /* of batch-norm moments so far (exchange.c) */
    float *params;               /* shared by the devices of a node if run->fused */
    float *state[DPN_MAX_SLOTS]; /* where run->fused device 0's serves all */
    const struct dpn_step *step; /* the one under way */
    float *out;                  /* where this step's reduced gradient goes, or NULL */
    /* Partial sums of this step, a stack: the binary counter of DESIGN section 4 (accumulate.c). */
    float *stack[DPN_MAX_STACK];
    size_t stack_size, depth;
    float *result;      /* arena of the reduced gradient; stack[0] where nobody else is there */
    uint64_t end_shard; /* this step's present shards are first_shard .. end_shard-1 */
    size_t next_bucket; /* first bucket of this step not yet started */
    double *norm_parts; /* for --clip-norm; NULL without */
    uint64_t phase_ns[DPN_N_PHASES];
    uint64_t mark_ns; /* when the current phase began */
};

/* A parallel mode. To add one: mode_NAME.c, one line in plugins.def. */
struct dpn_mode_class {
    const char *name;
    const char *summary;
    /* Before devices start: refuse what the mode cannot do (DPN_ERR_USAGE). */
    enum dpn_status (*check)(const struct dpn_run *run);
    /* On every device thread, after its exec is open: extra buffers. May be NULL. */
    enum dpn_status (*open)(struct dpn_run *run, struct dpn_replica *replica);
    void (*close)(struct dpn_run *run, struct dpn_replica *replica);
    /* One whole step: when it returns on a member, that member's part of the update is done. Stores shard
     * losses. */
    enum dpn_status (*step)(struct dpn_run *run, struct dpn_replica *replica, const struct dpn_step *step);
    /* Makes every replica's params current before evaluation. May be NULL. */
    enum dpn_status (*sync)(struct dpn_run *run, struct dpn_replica *replica);
    int replicated_state; /* every replica holds optimizer state (ddp), or device 0 alone (dp) */
};
extern const struct dpn_mode_class *const dpn_mode_classes[];

/* Totals that device 0 keeps. */
struct dpn_totals {
    uint64_t steps, samples;                       /* of this process */
    uint64_t first_step_ns;                        /* clock at the start of the first step */
    uint64_t timed_steps, timed_samples, timed_ns; /* without warm-up steps, evaluation and saving */
    uint64_t target_ns;                            /* clock when the target accuracy was reached, 0: not */
    double last_loss, last_accuracy;
};

struct dpn_run {
    struct dpn_config *config;
    uint64_t start_ns; /* clock when main began */

    struct dpn_topo *topo;
    struct dpn_device_group group;
    const struct dpn_kernels *kernels;
    struct dpn_kernels kernels_own; /* the table with this run's choices in it */
    struct dpn_blas blas;

    struct dpn_dataset data;
    struct dpn_sampler sampler;
    struct dpn_model *model;
    const struct dpn_optimizer_class *optimizer;
    struct dpn_optimizer_settings settings;
    int n_slots;
    struct dpn_schedule schedule;
    int schedule_short; /* it ends before the run does */
    double *milestones;

    const struct dpn_mode_class *mode;
    const struct dpn_reducer_class *reducer_class;
    struct dpn_reduce_group reduce_group;
    int *reduce_nodes;
    struct dpn_bucket *buckets;
    struct dpn_bucket_plan plan;
    struct dpn_reducer *reducer;

    size_t batch;     /* global */
    uint64_t shards;  /* V */
    size_t max_rows;  /* of one shard */
    size_t eval_rows; /* samples that go through the model at once in evaluation */
    int augment;      /* --augment crop-flip */
    int norm_sync;    /* --batch-norm sync, and the model has any */
    struct dpn_reduce_update fused_update;
    int fused;    /* owners of slices apply the optimizer in the reducer; one set of parameters a node */
    int grad_sum; /* --grad-op sum */
    int training; /* 0: cmd_eval */
    struct dpn_replica *replicas;
    float *start_params, *start_state[DPN_MAX_SLOTS]; /* from --init or --resume; NULL: by seed. */
    double *shard_loss[2];                            /* [V], by parity of the step */
    /* Batch norms' running statistics: one set for all devices, written by device 0 between steps. NULL:
     * none. */
    float *buffers;
    uint64_t batches;         /* training steps in them */
    double *shard_moments[2]; /* [V][model->moments_elems], by parity of the step */
    double *exchange[2];      /* [V][most of one batch norm], by turns; with norm_sync */
    struct dpn_barrier norm_barrier;
    int uncorrected_said;       /* a batch norm with one value per channel has been remarked on */
    int stop[2];                /* by parity of the step: leave after it */
    struct dpn_barrier barrier; /* of all device threads */
    void *mode_data;            /* dp's root buffers */

    /* evaluation */
    float *eval_logits; /* [members][chunk][stride] */
    int32_t *eval_labels;
    double *eval_loss;
    uint64_t *eval_correct;
    int eval_cut; /* a signal cut it short */

    /* progress through the data; device 0 */
    struct dpn_progress_record record;
    double epoch_loss_sum;        /* of the epoch just completed */
    uint64_t end_epoch, end_step; /* where training ends: whichever comes first */
    int finished;

    struct dpn_checkpoint_dir *out;
    struct dpn_checkpoint *resume;
    uint64_t save_epochs, save_steps; /* one of them 0; both 0: only at the end */
    int saved;                        /* the state now in memory has been saved */
    int log_fd;
    size_t setup_bytes;  /* dry run: resident with the data set, before anything that memory.c predicts */
    size_t resume_bytes; /* dry run: of the files that are resumed from, until they are loaded */
    int tensors_open;    /* a `tensors` event has been begun */
    struct dpn_json json;
    struct dpn_progress *progress;
    struct dpn_totals totals;
    int stop_signal; /* signal that ended the run, 0: none */
};

/* setup.c: everything before device threads start, in the order that refuses early; and its undoing. */
enum dpn_status dpn_run_open(struct dpn_run *run, struct dpn_config *config, int training, uint64_t start_ns);
void dpn_run_close(struct dpn_run *run);

/* trainer.c: the body of every device thread; ARG: struct dpn_run. And, when all device threads have ended,
 * freeing what they opened (also if some never began). */
enum dpn_status dpn_trainer_body(void *arg, struct dpn_device *device);
void dpn_trainer_close(struct dpn_run *run);

/* evaluate.c: all members call; device 0 ends with the result in *LOSS (mean) and *ACCURACY; others leave
 * them alone. Every sample of the test set is counted once, in chunks of 256 whose results are added in
 * ascending order. */
enum dpn_status dpn_evaluate(struct dpn_run *run, struct dpn_replica *replica, double *loss,
                             double *accuracy);

/* input.c: samples at positions FIRST .. FIRST+ROWS-1 of a step's batch, gathered and normalised into the
 * exec's input and labels by the device's team. */
void dpn_input_batch(struct dpn_run *run, struct dpn_replica *replica, const struct dpn_step *step,
                     size_t first, size_t rows, float *input, int32_t *labels);
/* Asks for the same samples ahead of time, as far as they fit into the second-level cache beside other
 * things. */
void dpn_input_ahead(struct dpn_run *run, struct dpn_replica *replica, const struct dpn_step *step,
                     size_t first, size_t rows);
/* Test samples FIRST .. FIRST+ROWS-1 into the evaluation's input; labels to LABELS. */
void dpn_input_test(struct dpn_run *run, struct dpn_replica *replica, size_t first, size_t rows,
                    int32_t *labels);

/* accumulate.c: shard gradients into partial sums, partial sums into buckets. */
/* Deepest stack of partial sums of a member that owns COUNT shards from FIRST, of LEAVES present ones. */
size_t dpn_accumulate_depth(uint64_t first, uint64_t count, uint64_t leaves);
/* Begins a step: empties the stack. Returns how many of the member's shards are present (hold a sample). */
uint64_t dpn_accumulate_begin(struct dpn_replica *replica, const struct dpn_step *step);
/* The member's present shard NUMBER (0, 1, ...). */
struct dpn_shard dpn_accumulate_shard(const struct dpn_run *run, const struct dpn_replica *replica,
                                      const struct dpn_step *step, uint64_t number);
/* Backward of the shard whose logits' gradient is set; its gradients join the partial sums. With the member's
 * last present shard, buckets are started as they get ready. OUT: arena for the reduced gradient, or NULL. */
enum dpn_status dpn_accumulate_backward(struct dpn_run *run, struct dpn_replica *replica,
                                        const struct dpn_step *step, struct dpn_shard shard, float *out);
/* The same for all of the member's COUNT present shards at once, whose batch norms meet those of all members
 * (exchange.c); also with COUNT 0. */
enum dpn_status dpn_accumulate_backward_group(struct dpn_run *run, struct dpn_replica *replica,
                                              const struct dpn_step *step, uint64_t count, float *out);
/* Starts the buckets not yet started (all, if the member has no present shard) and waits for the results. */
enum dpn_status dpn_accumulate_finish(struct dpn_run *run, struct dpn_replica *replica,
                                      const struct dpn_step *step, float *out);

/* exchange.c: batch norms of several shards. */
/* The member's COUNT present shards as a group, for the step under way. */
struct dpn_exec_group dpn_exchange_group(struct dpn_replica *replica, uint64_t count);
/* Where the exec of shard SHARD leaves its moments. */
void dpn_exchange_moments(struct dpn_run *run, struct dpn_exec *exec, const struct dpn_step *step,
                          uint64_t shard);
/* Device 0, after a step: the running statistics. */
void dpn_exchange_running(struct dpn_run *run, const struct dpn_step *step);

/* memory.c: plans of a replica, and what the run will take. */
void dpn_memory_plan(struct dpn_run *run);
/* DPN_ERR_NOMEM if it cannot fit into the machine. */
enum dpn_status dpn_memory_check(const struct dpn_run *run);
void dpn_memory_report(const struct dpn_run *run); /* --dry-run */
/* Partial sums that REPLICA holds at the same time. */
size_t dpn_memory_stack_size(const struct dpn_run *run, const struct dpn_replica *replica);
/* Whether the reduced gradient gets an arena of its own. */
int dpn_memory_wants_result(const struct dpn_run *run);

/* update.c: clips and applies GRADS to the replica's params by its team. */
/* The fused update of the reducer; ARG: struct dpn_run. */
void dpn_update_fused(void *arg, int member, size_t first, size_t elems, const float *sum);
void dpn_update_soon(void *arg, int member, size_t first, size_t elems);
enum dpn_status dpn_update(struct dpn_run *run, struct dpn_replica *replica, const struct dpn_step *step,
                           const float *grads);
size_t dpn_update_norm_parts(size_t arena_elems); /* doubles in norm_parts */

/* bucket.c: cuts an arena into buckets of about BUCKET_MB MiB (0: chosen from the arena's size), both ends
 * small. *BUCKETS is malloc'd. */
enum dpn_status dpn_bucket_plan_make(size_t arena_elems, double bucket_mb, struct dpn_bucket **buckets,
                                     size_t *n_buckets);

/* Books the time since the last mark on PHASE. */
void dpn_phase_end(struct dpn_replica *replica, enum dpn_phase phase);

/* The loss gradient's scale for a shard of member MEMBER: 1/B, or 1/(samples of its member) with --grad-op
 * sum. */
float dpn_loss_scale(const struct dpn_run *run, const struct dpn_replica *replica,
                     const struct dpn_step *step);

/* report.c: what a run says. All on device 0 or before it starts. */
void dpn_report_start(struct dpn_run *run);
enum dpn_status dpn_report_run_event(struct dpn_run *run);
enum dpn_status dpn_report_step(struct dpn_run *run, const struct dpn_step *step, double loss);
/* `tensors` events (--log-tensors N): gradient norms of the reduced gradient before clipping, parameter norms
 * after the update. */
int dpn_report_tensors_step(const struct dpn_run *run, const struct dpn_step *step); /* the same on all */
int dpn_report_tensors_due(const struct dpn_run *run, const struct dpn_replica *replica,
                           const struct dpn_step *step);
enum dpn_status dpn_report_gradients(struct dpn_run *run, const struct dpn_step *step, const float *grads);
enum dpn_status dpn_report_tensors(struct dpn_run *run, const float *params);
/* EPOCH is 0-based here and in the log; what a person reads counts from 1. */
enum dpn_status dpn_report_epoch(struct dpn_run *run, uint64_t epoch, double loss, uint64_t samples,
                                 double seconds);
enum dpn_status dpn_report_eval(struct dpn_run *run, uint64_t epoch, double loss, double accuracy);
enum dpn_status dpn_report_summary(struct dpn_run *run);

#endif
