/* The options table: the one place where an option is named, bounded and explained. */
#include "core/options.h"

enum {
    TABLE_TRAIN = DPN_CMD_TRAIN,
    TABLE_EVAL = DPN_CMD_EVAL,
    TABLE_RUN = DPN_CMD_TRAIN | DPN_CMD_EVAL,
    TABLE_DEVICES = DPN_CMD_TRAIN | DPN_CMD_EVAL | DPN_CMD_TOPO | DPN_CMD_BENCH,
    TABLE_ALL = DPN_CMD_TRAIN | DPN_CMD_EVAL | DPN_CMD_TOPO | DPN_CMD_INFO | DPN_CMD_BENCH,
    TABLE_BENCH = DPN_CMD_BENCH,
    TABLE_BATCH = DPN_CMD_TRAIN | DPN_CMD_BENCH,
    TABLE_KERNELS = DPN_CMD_TRAIN | DPN_CMD_EVAL | DPN_CMD_BENCH,
};

#define TABLE_2_31 2147483647.0
#define TABLE_2_62 0x1p62
#define TABLE_2_64 0x1p64 /* stands for 2^64 - 1, which no double holds */
#define TABLE_HUGE 1e30

#define TABLE_FIELD(field) offsetof(struct dpn_config, field)
#define FLAG(name, role, commands, group, field, help)                                              \
    {                                                                                               \
        name, NULL, DPN_OPT_FLAG, DPN_ROLE_##role, TABLE_##commands, NULL, 0, 1, NULL, group, help, \
            TABLE_FIELD(field)                                                                      \
    }
#define U64(name, metavar, role, commands, initial, min, max, group, field, help)                            \
    {                                                                                                        \
        name, metavar, DPN_OPT_U64, DPN_ROLE_##role, TABLE_##commands, initial, min, max, NULL, group, help, \
            TABLE_FIELD(field)                                                                               \
    }
#define DOUBLE(name, metavar, role, commands, initial, min, max, group, field, help)                      \
    {                                                                                                     \
        name, metavar, DPN_OPT_DOUBLE, DPN_ROLE_##role, TABLE_##commands, initial, min, max, NULL, group, \
            help, TABLE_FIELD(field)                                                                      \
    }
#define STRING(name, metavar, role, commands, initial, group, field, help)                                  \
    {                                                                                                       \
        name, metavar, DPN_OPT_STRING, DPN_ROLE_##role, TABLE_##commands, initial, 0, 0, NULL, group, help, \
            TABLE_FIELD(field)                                                                              \
    }
#define CHOICE(name, metavar, role, commands, initial, choices, group, field, help)                      \
    {                                                                                                    \
        name, metavar, DPN_OPT_CHOICE, DPN_ROLE_##role, TABLE_##commands, initial, 0, 0, choices, group, \
            help, TABLE_FIELD(field)                                                                     \
    }

#define GROUP_DEVICES    "Devices"
#define GROUP_PARALLEL   "Data parallelism"
#define GROUP_DATA       "Model and data"
#define GROUP_OPTIMIZER  "Optimizer"
#define GROUP_EVALUATION "Evaluation"
#define GROUP_FILES      "Files"
#define GROUP_OUTPUT     "Output"
#define GROUP_COMPUTE    "Compute"
#define GROUP_BENCH      "Measuring"

/* In the order of --help. */
const struct dpn_option dpn_options[] = {
    STRING("devices", "LIST", PLACEMENT, DEVICES, "all", GROUP_DEVICES, devices,
           "Indices of the devices to use, 0 being the first: 0-7, 0,2,4-6, cpu:0-3. What an index means "
           "never depends on the list; the order is kept."),
    CHOICE("kind", "KIND", PLACEMENT, DEVICES, "auto", "auto|cpu|cuda", GROUP_DEVICES, kind,
           "Kind of device; auto: GPUs if the build and the machine have any, else cpu."),
    CHOICE("cpu-unit", "UNIT", PLACEMENT, DEVICES, "auto", "auto|package|numa|l3|core", GROUP_DEVICES,
           cpu_unit,
           "What a CPU device is; auto: the first of package, numa, l3, core of which the allowed CPUs hold "
           "more than one, else core."),
    FLAG("smt", PLACEMENT, DEVICES, GROUP_DEVICES, smt, "Use all hardware threads of a core instead of one."),
    U64("threads-per-device", "N", PLACEMENT, DEVICES, "0", 0, 1024, GROUP_DEVICES, threads_per_device,
        "Threads of a CPU device; 0: the unit's CPUs, within the CPU quota."),
    FLAG("oversubscribe", PLACEMENT, DEVICES, GROUP_DEVICES, oversubscribe,
         "Allow more devices than units, wrapping round."),

    CHOICE("mode", "MODE", PLACEMENT, TRAIN, "ddp", NULL, GROUP_PARALLEL, mode,
           "ddp: every device takes part in an all-reduce that overlaps backward. dp: "
           "device 0 owns the model, broadcasts it and gathers logits every step. Both give the "
           "same numbers."),
    CHOICE("reducer", "NAME", PLACEMENT, TRAIN, "auto", NULL, GROUP_PARALLEL, reducer,
           "How gradients are summed; auto: the best one that serves these devices and sums in tree order."),
    DOUBLE("bucket-mb", "X", PLACEMENT, TRAIN, "0", 0, 4096, GROUP_PARALLEL, bucket_mb,
           "Size of a gradient bucket in MiB; 0: chosen."),
    U64("shards", "V", NUMBERS, TRAIN, "0", 0, 1048576, GROUP_PARALLEL, shards,
        "Shards per step, at least one per device; more of them is gradient accumulation. Runs with equal V "
        "give equal bits on any number of devices. 0: one per device."),
    CHOICE("grad-op", "OP", NUMBERS, TRAIN, "mean", "mean|sum", GROUP_PARALLEL, grad_op,
           "mean: over the global batch. sum: of every device's own mean."),
    FLAG("check-reduce", PLACEMENT, TRAIN, GROUP_PARALLEL, check_reduce,
         "Check the reducer: every call, and every sum against the reference."),

    STRING("model", "NAME[:KEY=VALUE,...]", NUMBERS, RUN, "mlp", GROUP_DATA, model,
           "The network, with its keys: mlp:hidden=512x256."),
    /* The same set may lie elsewhere tomorrow: that it is the same is told by its checksum, not by this. */
    STRING("data", "NAME[:DIR]", FILES, RUN, "auto", GROUP_DATA, data,
           "The data set and its folder; auto: fashion-mnist where Debian's package puts it, else synthetic, "
           "which takes keys: synthetic:samples=5000,test=1000 and also shape=3x32x32, classes=10."),
    STRING("data-root", "DIR", FILES, RUN, "", GROUP_DATA, data_root,
           "Folder of data sets, for --data without DIR; else $DPNODE_DATA, else ./data/sets."),
    STRING("normalize", "HOW", NUMBERS, RUN, "", GROUP_DATA, normalize,
           "none (1/255 only) or MEAN[,...]/STD[,...], per channel. Without it: the set's constants."),
    CHOICE("augment", "HOW", NUMBERS, TRAIN, "none", "none|crop-flip", GROUP_DATA, augment,
           "crop-flip: pad every training image by 4 pixels, crop it at random, mirror every other one."),
    CHOICE("batch-norm", "HOW", NUMBERS, TRAIN, "local", "local|sync", GROUP_DATA, batch_norm,
           "Statistics of batch norms: local: of every shard by itself, as PyTorch's DDP. sync: of the whole "
           "batch."),
    U64("batch", "B", NUMBERS, BATCH, "128", 1, TABLE_2_31, GROUP_DATA, batch,
        "Samples per optimizer step over all devices; of bench: samples of each case, 64 if not given."),
    U64("batch-per-device", "B", NUMBERS, TRAIN, "", 1, TABLE_2_31, GROUP_DATA, batch_per_device,
        "Samples per step of each device, instead of --batch."),
    /* Where the cosine schedule ends follows from epochs; extending such a run is the user's choice. */
    U64("epochs", "N", TARGET, TRAIN, "10", 0, 1e9, GROUP_DATA, epochs,
        "Passes over the training samples; 0: evaluate the start weights only."),
    U64("steps", "N", TARGET, TRAIN, "0", 0, TABLE_2_62, GROUP_DATA, steps,
        "Stop after N optimizer steps; 0: no limit."),
    U64("seed", "N", NUMBERS, RUN, "0", 0, TABLE_2_64, GROUP_DATA, seed, "Seed of all randomness."),
    FLAG("no-shuffle", NUMBERS, TRAIN, GROUP_DATA, no_shuffle,
         "Take the samples in the set's order in every epoch."),
    CHOICE("last-batch", "HOW", NUMBERS, TRAIN, "short", "short|drop|wrap", GROUP_DATA, last_batch,
           "An epoch's last samples if they fill no batch: a short batch, none, or one filled up from the "
           "start."),

    CHOICE("optimizer", "NAME", NUMBERS, TRAIN, "sgd", NULL, GROUP_OPTIMIZER, optimizer,
           "Update rule, with PyTorch's meaning of its numbers."),
    DOUBLE("lr", "X", NUMBERS, TRAIN, "", 0, TABLE_HUGE, GROUP_OPTIMIZER, lr,
           "Learning rate. Without it: the optimizer's own, 0.05 for sgd, 0.001 for adam and adamw."),
    DOUBLE("momentum", "X", NUMBERS, TRAIN, "0.9", 0, 1, GROUP_OPTIMIZER, momentum, "Momentum of sgd."),
    FLAG("nesterov", NUMBERS, TRAIN, GROUP_OPTIMIZER, nesterov, "Nesterov momentum (sgd)."),
    DOUBLE("weight-decay", "X", NUMBERS, TRAIN, "0", 0, TABLE_HUGE, GROUP_OPTIMIZER, weight_decay,
           "Weight decay; added to the gradient by sgd and adam, decoupled in adamw."),
    DOUBLE("beta1", "X", NUMBERS, TRAIN, "0.9", 0, 1, GROUP_OPTIMIZER, beta1,
           "Decay of adam's first moment."),
    DOUBLE("beta2", "X", NUMBERS, TRAIN, "0.999", 0, 1, GROUP_OPTIMIZER, beta2,
           "Decay of adam's second moment."),
    DOUBLE("eps", "X", NUMBERS, TRAIN, "1e-08", 0, 1, GROUP_OPTIMIZER, eps,
           "Term added to adam's denominator."),
    DOUBLE("clip-norm", "X", NUMBERS, TRAIN, "0", 0, TABLE_HUGE, GROUP_OPTIMIZER, clip_norm,
           "Scale the gradient down to this L2 norm if it is larger; 0: off."),
    FLAG("scale-lr", NUMBERS, TRAIN, GROUP_OPTIMIZER, scale_lr,
         "Multiply the learning rate by the number of devices; only with --batch-per-device."),
    CHOICE("schedule", "NAME", NUMBERS, TRAIN, "constant", "constant|step|cosine", GROUP_OPTIMIZER, schedule,
           "Learning rate over time: constant; times --gamma at each of --milestones; cosine down to "
           "--min-lr."),
    STRING("milestones", "EPOCHS", NUMBERS, TRAIN, "", GROUP_OPTIMIZER, milestones,
           "Epochs at which --schedule step acts: 30,60,80."),
    DOUBLE("gamma", "X", NUMBERS, TRAIN, "0.1", 0, TABLE_HUGE, GROUP_OPTIMIZER, gamma,
           "Factor of --schedule step."),
    DOUBLE("min-lr", "X", NUMBERS, TRAIN, "0", 0, TABLE_HUGE, GROUP_OPTIMIZER, min_lr,
           "Last learning rate of --schedule cosine."),
    DOUBLE("warmup-epochs", "X", NUMBERS, TRAIN, "0", 0, 1e9, GROUP_OPTIMIZER, warmup_epochs,
           "Raise the learning rate linearly for so many epochs first."),

    U64("eval-every", "N", TARGET, TRAIN, "1", 0, TABLE_2_62, GROUP_EVALUATION, eval_every,
        "Evaluate after every N epochs; 0: never."),
    DOUBLE("target-accuracy", "A", TARGET, TRAIN, "0", 0, 1, GROUP_EVALUATION, target_accuracy,
           "Stop at the first evaluation that reaches this accuracy and print the time; 0: none."),

    STRING("init", "FILE", FILES, RUN, "", GROUP_FILES, init,
           "Start from the weights of a safetensors file, a PyTorch state dict."),
    STRING("checkpoint", "FILE", FILES, EVAL, "", GROUP_FILES, checkpoint,
           "Evaluate the weights of a checkpoint."),
    STRING("out", "DIR", FILES, TRAIN, "", GROUP_FILES, out,
           "Folder for checkpoints. Without it nothing is written."),
    STRING("save-every", "N", FILES, TRAIN, "1", GROUP_FILES, save_every,
           "Save after every N epochs, or after every N steps if written as 500s."),
    U64("keep", "N", FILES, TRAIN, "3", 0, 1e6, GROUP_FILES, keep, "Numbered checkpoints to keep; 0: all."),
    STRING("resume", "FILE", FILES, TRAIN, "", GROUP_FILES, resume,
           "Go on from a checkpoint; auto: from the newest in --out, or a fresh start if there is none."),
    FLAG("overwrite", FILES, TRAIN, GROUP_FILES, overwrite,
         "Accept an --out folder that holds the checkpoints of another run."),

    STRING("log", "FILE", SPEECH, RUN, "", GROUP_OUTPUT, log, "Write a log of JSON lines."),
    U64("log-every", "N", SPEECH, TRAIN, "50", 1, TABLE_2_62, GROUP_OUTPUT, log_every,
        "Log steps 0, N, 2N and so on."),
    U64("log-tensors", "N", SPEECH, TRAIN, "0", 0, TABLE_2_62, GROUP_OUTPUT, log_tensors,
        "Log the norms of all tensors and gradients every N steps; 0: never."),
    FLAG("quiet", SPEECH, RUN, GROUP_OUTPUT, quiet, "Print warnings and errors only."),
    FLAG("verbose", SPEECH, ALL, GROUP_OUTPUT, verbose, "Print more."),
    CHOICE("progress", "WHEN", SPEECH, TRAIN, "auto", "auto|always|never", GROUP_OUTPUT, progress,
           "The progress line, on standard error; auto: if that is a terminal. always: a plain line now and "
           "then."),
    FLAG("dry-run", SPEECH, RUN, GROUP_OUTPUT, dry_run,
         "Check everything, print what the run would be and the memory it would take, and stop there; "
         "nothing is written."),

    CHOICE("blas", "NAME", NUMBERS, RUN, "auto", "auto|openblas|own", GROUP_COMPUTE, blas,
           "Who multiplies matrices; auto: own, which measured faster on every layer of these models. "
           "openblas is "
           "loaded at run time and checked."),
    CHOICE("conv", "HOW", NUMBERS, RUN, "auto", "auto|winograd|direct", GROUP_COMPUTE, conv,
           "How convolutions are computed; auto: the fastest for each shape, as measured. winograd: "
           "F(4x4,3x3) wherever it serves (3x3, stride 1)."),
    CHOICE("isa", "SET", NUMBERS, KERNELS, "auto", "auto|ref|baseline|avx2|avx512", GROUP_COMPUTE, isa,
           "Instruction set of the kernels; auto: the widest that this CPU has."),

    U64("rounds", "R", SPEECH, BENCH, "9", 1, 1000, GROUP_BENCH, rounds,
        "Rounds of measuring; medians are shown."),
    STRING("filter", "TEXT", SPEECH, BENCH, "", GROUP_BENCH, filter, "Only cases whose line contains this."),
    STRING("json", "FILE", FILES, BENCH, "", GROUP_BENCH, json, "Write the results as JSON, a line a case."),
    STRING("csv", "FILE", FILES, BENCH, "", GROUP_BENCH, csv,
           "Write the results as comma-separated values."),
};

const size_t dpn_n_options = sizeof dpn_options / sizeof dpn_options[0];
