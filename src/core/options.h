/* The options table: parsing, --help, the header of a run, the JSON log, the checkpoint's record and the
 * digest that ranks compare all come from the one array in options_table.c.
 *
 * To add an option: one line in options_table.c, one field in struct dpn_config.
 */
#ifndef DPN_CORE_OPTIONS_H
#define DPN_CORE_OPTIONS_H

#include <stddef.h>
#include <stdint.h>

#include "core/json.h"
#include "core/status.h"

/* Effective settings. Strings point into argv, the table, or a checkpoint's record; "" means not given. */
struct dpn_config {
    /* devices */
    const char *devices, *kind, *cpu_unit;
    int smt, oversubscribe;
    uint64_t threads_per_device; /* 0: the unit's CPUs */
    /* data parallelism */
    const char *mode, *reducer, *grad_op;
    double bucket_mb; /* 0: auto */
    uint64_t shards;  /* 0: one per member */
    int check_reduce;
    /* model and data */
    const char *model, *data, *data_root, *normalize, *augment, *batch_norm;
    uint64_t batch, batch_per_device; /* batch_per_device 0: batch is given globally */
    uint64_t epochs, steps;           /* steps 0: no limit */
    uint64_t seed;
    int no_shuffle;
    const char *last_batch;
    /* optimizer */
    const char *optimizer;
    double lr; /* NaN: the optimizer's default */
    double momentum, weight_decay, beta1, beta2, eps;
    double clip_norm; /* 0: off */
    int nesterov, scale_lr;
    const char *schedule, *milestones;
    double gamma, min_lr, warmup_epochs;
    /* evaluation */
    uint64_t eval_every;
    double target_accuracy; /* 0: none */
    /* files */
    const char *init, *checkpoint, *out, *save_every, *resume;
    uint64_t keep;
    int overwrite;
    /* what is said */
    const char *log;
    uint64_t log_every, log_tensors; /* log_tensors 0: off */
    int quiet, verbose;
    const char *progress;
    /* compute */
    const char *blas, *conv, *isa;
    int dry_run;
    /* bench */
    uint64_t rounds;
    const char *filter, *json, *csv;
    uint64_t given[4]; /* bit i: option i of the table was on the command line */
};

/* Which commands take an option. */
enum dpn_command_mask {
    DPN_CMD_TRAIN = 1,
    DPN_CMD_EVAL = 2,
    DPN_CMD_TOPO = 4,
    DPN_CMD_INFO = 8,
    DPN_CMD_BENCH = 16,
};

enum dpn_option_kind {
    DPN_OPT_FLAG,   /* int; no value */
    DPN_OPT_U64,    /* uint64_t in min..max */
    DPN_OPT_DOUBLE, /* double in min..max */
    DPN_OPT_STRING, /* const char *; checked by whoever uses it */
    DPN_OPT_CHOICE, /* const char *; a word of dpn_options_set_choices, else of CHOICES, else any */
};

/* What an option is to a run. */
enum dpn_option_role {
    DPN_ROLE_NUMBERS,   /* changes the numbers: in the digest; a resumed run must have the same */
    DPN_ROLE_PLACEMENT, /* where and how fast: any value gives the same numbers */
    DPN_ROLE_TARGET,    /* how far to go: may change on resume */
    DPN_ROLE_FILES,     /* what is read and written */
    DPN_ROLE_SPEECH,    /* what is said */
};

struct dpn_option {
    const char *name;    /* without "--" */
    const char *metavar; /* "N", "LIST"; NULL for flags */
    enum dpn_option_kind kind;
    enum dpn_option_role role;
    unsigned commands;        /* dpn_command_mask bits */
    const char *default_text; /* parsed like the user's; NULL: flag; "": not given, NaN or 0 in numbers */
    double min, max;          /* numbers: inclusive */
    const char *choices;      /* "a|b|c" or NULL */
    const char *group;        /* heading in --help */
    const char *help;         /* one or more sentences; wrapped by --help */
    size_t offset;            /* of the field in struct dpn_config */
};

extern const struct dpn_option dpn_options[];
extern const size_t dpn_n_options; /* at most 256 */

/* Words of a registry ("a|b|c", kept by pointer) become the choices of option NAME, instead of the table's.
 * For a STRING option ("--model") --help lists them, but any text is accepted. Before parsing and before
 * threads start. */
void dpn_options_set_choices(const char *name, const char *choices);
/* The choices now in force for OPTION, or NULL. */
const char *dpn_option_choices(const struct dpn_option *option);

/* All defaults. */
void dpn_config_defaults(struct dpn_config *config);

/* Parses ARGV[0..argc-1] (options of COMMAND only, no program name) over CONFIG. "--name value" and
 * "--name=value"; flags take no value; an option given twice is refused; "--" ends options. Positional words
 * go to POSITIONAL (room for max_positional pointers), one too many is refused by name. No abbreviations;
 * unknown options are refused with the nearest known one, options of other commands with the commands that
 * take them, empty values too. *HELP is set by --help or -h, *VERSION by --version; what follows them is not
 * read. */
enum dpn_status dpn_options_parse(int argc, char *const *argv, enum dpn_command_mask command,
                                  struct dpn_config *config, const char **positional, size_t max_positional,
                                  size_t *n_positional, int *help, int *version);

/* Sets one option from text that dpn_option_text wrote or a user typed; TEXT is kept by pointer for words. ""
 * is accepted where the default is "". WHERE names the source in errors ("--lr", or a file). Errors:
 * DPN_ERR_USAGE. */
enum dpn_status dpn_option_set(struct dpn_config *config, const struct dpn_option *option, const char *where,
                               const char *text);
const struct dpn_option *dpn_option_find(const char *name); /* NULL if unknown */
int dpn_option_given(const struct dpn_config *config, const char *name);
/* The value in force as text that parses back to it (doubles round-trip; flags "true" or "false"), into
 * BUFFER. Returns BUFFER. */
const char *dpn_option_text(const struct dpn_config *config, const struct dpn_option *option, char *buffer,
                            size_t size);

/* --help of COMMAND on stdout: groups, metavars, choices, defaults in bold-free plain text, 79 columns. */
void dpn_options_help(enum dpn_command_mask command);

/* Members of an open JSON object: every option of COMMAND whose role is in ROLES (bit 1 << role). Numbers are
 * JSON numbers, flags booleans. */
void dpn_options_json(const struct dpn_config *config, enum dpn_command_mask command, unsigned roles,
                      struct dpn_json *json);

/* 64-bit FNV-1a of "name=value\n" over all options of role NUMBERS, in table order. */
uint64_t dpn_options_digest(const struct dpn_config *config);

#endif
