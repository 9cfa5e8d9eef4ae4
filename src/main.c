/* Command dispatch. The only exit of the program is main's return. */
#include <stdio.h>
#include <string.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/options.h"
#include "core/parse.h"
#include "data/data.h"
#include "device/device.h"
#include "nn/nn.h"
#include "reduce/reduce.h"
#include "train/command.h"
#include "train/trainer.h"

enum { MAIN_WORDS = 64, MAIN_TEXT = 512 };

/* A registry's names as the choices of an option: "a|b|c", with "auto" in front if WITH_AUTO. */
#define MAIN_CHOICES(option, list, with_auto)                                                        \
    do {                                                                                             \
        static char text_[MAIN_TEXT];                                                                \
        if (with_auto) strcpy(text_, "auto");                                                        \
        for (size_t i_ = 0; (list)[i_]; i_++)                                                        \
            snprintf(text_ + strlen(text_), sizeof text_ - strlen(text_), "%s%s", *text_ ? "|" : "", \
                     (list)[i_]->name);                                                              \
        dpn_options_set_choices(option, text_);                                                      \
    } while (0)

static void main_registries(void)
{
    MAIN_CHOICES("mode", dpn_mode_classes, 0);
    MAIN_CHOICES("reducer", dpn_reducer_classes, 1);
    MAIN_CHOICES("optimizer", dpn_optimizer_classes, 0);
}

static void main_list_names(const char *heading, const char *const *names, size_t n)
{
    printf("%-11s", heading);
    for (size_t i = 0; i < n; i++) printf("%s%s", i ? ", " : "", names[i]);
    printf("\n");
}

#define MAIN_LIST(heading, list)                                                   \
    do {                                                                           \
        const char *names_[MAIN_WORDS];                                            \
        size_t n_ = 0;                                                             \
        for (; (list)[n_] && n_ < MAIN_WORDS; n_++) names_[n_] = (list)[n_]->name; \
        main_list_names(heading, names_, n_);                                      \
    } while (0)

static void main_version(void)
{
    printf("dpnode %s\n", DPN_VERSION);
    printf("compiler   %s\n", __VERSION__);
    MAIN_LIST("commands", dpn_command_list);
    MAIN_LIST("devices", dpn_device_classes);
    MAIN_LIST("modes", dpn_mode_classes);
    MAIN_LIST("reducers", dpn_reducer_classes);
    MAIN_LIST("models", dpn_model_classes);
    MAIN_LIST("optimizers", dpn_optimizer_classes);
    MAIN_LIST("data sets", dpn_dataset_classes);
    printf("not built  CUDA (configure --with-cuda), MPI (configure --with-mpi)\n");
}

static void main_help(const struct dpn_command *command)
{
    printf("usage: dpnode [COMMAND] [OPTIONS]\n\nCommands (no command means train):\n");
    for (size_t i = 0; dpn_command_list[i]; i++) {
        const struct dpn_command *c = dpn_command_list[i];
        printf("  %-5s %-5s %s\n", c->name, c->positional ? c->positional : "", c->summary);
    }
    printf("\nModels (--model):\n");
    for (size_t i = 0; dpn_model_classes[i]; i++) {
        const struct dpn_model_class *m = dpn_model_classes[i];
        printf("  %s%s%s: %s\n", m->name, *m->keys ? ":" : "", m->keys, m->summary);
    }
    printf("\nData sets (--data):\n");
    for (size_t i = 0; dpn_dataset_classes[i]; i++)
        printf("  %s: %s\n", dpn_dataset_classes[i]->name, dpn_dataset_classes[i]->summary);
    printf("\nOptions of `dpnode %s`:\n", command->name);
    dpn_options_help(command->mask);
    printf(
        "\nExit status: 0 done; 1 failed while running; 2 bad usage or input, found before the first step;\n"
        "128+N stopped by signal N (saved first if there is --out).\n");
}

static enum dpn_status main_find_command(const char *word, const struct dpn_command **command)
{
    const char *names[MAIN_WORDS + 1] = {NULL};
    for (size_t i = 0; i < MAIN_WORDS && dpn_command_list[i]; i++) {
        names[i] = dpn_command_list[i]->name;
        if (!word || !strcmp(names[i], word)) {
            *command = dpn_command_list[i];
            return DPN_OK;
        }
    }
    const char *near = dpn_near_miss(word, names);
    return dpn_fail(DPN_ERR_USAGE, "unknown command '%s'%s%s%s; see dpnode --help", word,
                    near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
}

static enum dpn_status main_dispatch(int argc, char **argv, int *exit_status)
{
    const struct dpn_command *command = NULL;
    struct dpn_config config;
    const char *positional = NULL;
    size_t n_positional = 0;
    int help = 0, version = 0;
    const char *word = argc > 1 && argv[1][0] != '-' ? argv[1] : NULL;

    main_registries();
    DPN_TRY(main_find_command(word, &command));
    dpn_config_defaults(&config);
    int skip = word ? 2 : 1;
    DPN_TRY(dpn_options_parse(argc - skip, argv + skip, command->mask, &config, &positional,
                              command->positional ? 1 : 0, &n_positional, &help, &version));
    if (version) main_version();
    else if (help) main_help(command);
    if (version || help) return DPN_OK;
    if (command->positional && n_positional == 0)
        return dpn_fail(DPN_ERR_USAGE, "%s wants a %s", command->name, command->positional);
    dpn_log_set_verbosity(config.quiet ? DPN_QUIET : config.verbose ? DPN_VERBOSE : DPN_NORMAL);
    return command->run(&config, positional, exit_status);
}

int main(int argc, char **argv)
{
    int exit_status = 0;
    dpn_process_start_ns();
    enum dpn_status status = main_dispatch(argc, argv, &exit_status);
    if (status != DPN_OK) {
        dpn_error("%s", dpn_error_text());
        if (exit_status == 0) exit_status = status == DPN_ERR_USAGE || status == DPN_ERR_INPUT ? 2 : 1;
    }
    if ((fflush(stdout) != 0 || dpn_log_failed()) && exit_status == 0) {
        dpn_error("standard output could not be written");
        exit_status = 1;
    }
    return exit_status;
}
