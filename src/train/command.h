/* Commands: what `dpnode NAME ...` runs. To add one: cmd_NAME.c, one line in src/plugins.def.
 */
#ifndef DPN_TRAIN_COMMAND_H
#define DPN_TRAIN_COMMAND_H

#include <stddef.h>

#include "core/options.h"
#include "core/status.h"

struct dpn_command {
    const char *name;
    const char *summary;        /* one line for --help */
    enum dpn_command_mask mask; /* which options it takes */
    const char *positional;     /* "FILE" or NULL: what its one positional word is */
    /* Runs on the main thread with parsed options. POSITIONAL: the word, or NULL if none was given. On
     * failure the error text says why and main prints it; *EXIT_STATUS is preset (0; on failure 2 for
     * DPN_ERR_USAGE and DPN_ERR_INPUT, else 1) and may be set by the command (128 + signal; 1 for input
     * errors after step 1). */
    enum dpn_status (*run)(struct dpn_config *config, const char *positional, int *exit_status);
};
extern const struct dpn_command *const dpn_command_list[]; /* NULL-terminated, from plugins.def */

#endif
