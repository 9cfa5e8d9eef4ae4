/* What is done with the options table: parse, print, digest. The table itself is options_table.c. */
#include "core/options.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/parse.h"

enum {
    OPTIONS_MAX = 256,
    OPTIONS_WORDS = 32,      /* choices of one option */
    OPTIONS_NUMBER = 40,     /* bytes of any number as text */
    OPTIONS_WIDTH = 79,      /* columns of --help */
    OPTIONS_HELP_COLUMN = 28 /* where the explanation starts */
};

static const struct {
    enum dpn_command_mask mask;
    const char *name;
} options_commands[] = {
    {DPN_CMD_TRAIN, "train"}, {DPN_CMD_EVAL, "eval"},   {DPN_CMD_TOPO, "topo"},
    {DPN_CMD_INFO, "info"},   {DPN_CMD_BENCH, "bench"},
};
enum { OPTIONS_N_COMMANDS = sizeof options_commands / sizeof options_commands[0] };

static const char *options_registry[OPTIONS_MAX];

static size_t options_position(const struct dpn_option *option)
{
    assert(dpn_n_options <= OPTIONS_MAX && option >= dpn_options && option < dpn_options + dpn_n_options);
    return (size_t)(option - dpn_options);
}

const struct dpn_option *dpn_option_find(const char *name)
{
    for (size_t i = 0; i < dpn_n_options; i++)
        if (strcmp(dpn_options[i].name, name) == 0) return &dpn_options[i];
    return NULL;
}

void dpn_options_set_choices(const char *name, const char *choices)
{
    const struct dpn_option *option = dpn_option_find(name);
    assert(option && (option->kind == DPN_OPT_CHOICE || option->kind == DPN_OPT_STRING));
    options_registry[options_position(option)] = choices;
}

const char *dpn_option_choices(const struct dpn_option *option)
{
    const char *registry = options_registry[options_position(option)];
    return registry ? registry : option->choices;
}

int dpn_option_given(const struct dpn_config *config, const char *name)
{
    const struct dpn_option *option = dpn_option_find(name);
    assert(option);
    size_t i = options_position(option);
    return config->given[i / 64] >> i % 64 & 1;
}

/* ---- fields ---- */

static void *options_field(struct dpn_config *config, const struct dpn_option *option)
{
    return (char *)config + option->offset;
}

static const void *options_value(const struct dpn_config *config, const struct dpn_option *option)
{
    return (const char *)config + option->offset;
}

static enum dpn_status options_set_choice(const struct dpn_option *option, const char *where,
                                          const char *text)
{
    const char *choices = dpn_option_choices(option);
    if (!choices) return DPN_OK;
    char *copy = strdup(choices), *rest = copy;
    if (!copy) return dpn_fail(DPN_ERR_NOMEM, "%s: no memory", where);
    const char *words[OPTIONS_WORDS + 1];
    size_t n = 0;
    while (rest) {
        assert(n < OPTIONS_WORDS);
        words[n++] = strsep(&rest, "|");
    }
    words[n] = NULL;
    int choice;
    enum dpn_status status = dpn_parse_choice(where, text, words, &choice);
    free(copy);
    return status;
}

enum dpn_status dpn_option_set(struct dpn_config *config, const struct dpn_option *option, const char *where,
                               const char *text)
{
    void *field = options_field(config, option);
    int unset = *text == '\0' && option->default_text && *option->default_text == '\0';
    char quoted[DPN_QUOTE_BYTES];
    switch (option->kind) {
    case DPN_OPT_FLAG:
        if (strcmp(text, "true") != 0 && strcmp(text, "false") != 0)
            return dpn_fail(DPN_ERR_USAGE, "%s %s is not true or false", where, dpn_quote(text, quoted));
        *(int *)field = strcmp(text, "true") == 0;
        return DPN_OK;
    case DPN_OPT_U64:
        if (unset) {
            *(uint64_t *)field = 0;
            return DPN_OK;
        }
        return dpn_parse_u64(where, text, (uint64_t)option->min,
                             option->max >= 0x1p64 ? UINT64_MAX : (uint64_t)option->max, field);
    case DPN_OPT_DOUBLE:
        if (unset) {
            *(double *)field = NAN;
            return DPN_OK;
        }
        return dpn_parse_double(where, text, option->min, option->max, field);
    case DPN_OPT_CHOICE: DPN_TRY(options_set_choice(option, where, text)); break;
    case DPN_OPT_STRING: break;
    }
    *(const char **)field = text;
    return DPN_OK;
}

void dpn_config_defaults(struct dpn_config *config)
{
    memset(config, 0, sizeof *config);
    for (size_t i = 0; i < dpn_n_options; i++) {
        const struct dpn_option *option = &dpn_options[i];
        if (!option->default_text) continue;
        enum dpn_status status = dpn_option_set(config, option, option->name, option->default_text);
        assert(status == DPN_OK);
        (void)status;
    }
}

/* The value as text: the word itself, or a number written into SCRATCH. */
static const char *options_text(const struct dpn_config *config, const struct dpn_option *option,
                                char scratch[OPTIONS_NUMBER])
{
    const void *value = options_value(config, option);
    int may_be_unset = option->default_text && *option->default_text == '\0';
    switch (option->kind) {
    case DPN_OPT_FLAG: return *(const int *)value ? "true" : "false";
    case DPN_OPT_U64:
        if (may_be_unset && *(const uint64_t *)value == 0) return "";
        snprintf(scratch, OPTIONS_NUMBER, "%" PRIu64, *(const uint64_t *)value);
        return scratch;
    case DPN_OPT_DOUBLE:
        if (may_be_unset && isnan(*(const double *)value)) return "";
        return dpn_format_double(*(const double *)value, scratch);
    case DPN_OPT_CHOICE:
    case DPN_OPT_STRING: return *(const char *const *)value;
    }
    return "";
}

const char *dpn_option_text(const struct dpn_config *config, const struct dpn_option *option, char *buffer,
                            size_t size)
{
    char scratch[OPTIONS_NUMBER];
    snprintf(buffer, size, "%s", options_text(config, option, scratch));
    return buffer;
}

void dpn_options_json(const struct dpn_config *config, enum dpn_command_mask command, unsigned roles,
                      struct dpn_json *json)
{
    char scratch[OPTIONS_NUMBER];
    for (size_t i = 0; i < dpn_n_options; i++) {
        const struct dpn_option *option = &dpn_options[i];
        if (!(option->commands & command) || !(roles >> option->role & 1)) continue;
        const char *text = options_text(config, option, scratch);
        if (option->kind == DPN_OPT_CHOICE || option->kind == DPN_OPT_STRING)
            dpn_json_string(json, option->name, text);
        else dpn_json_raw(json, option->name, *text ? text : "null");
    }
}

static uint64_t options_hash(uint64_t hash, const char *text)
{
    for (; *text; text++) hash = (hash ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
    return hash;
}

uint64_t dpn_options_digest(const struct dpn_config *config)
{
    char scratch[OPTIONS_NUMBER];
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < dpn_n_options; i++) {
        const struct dpn_option *option = &dpn_options[i];
        if (option->role != DPN_ROLE_NUMBERS) continue;
        hash = options_hash(hash, option->name);
        hash = options_hash(hash, "=");
        hash = options_hash(hash, options_text(config, option, scratch));
        hash = options_hash(hash, "\n");
    }
    return hash;
}

/* ---- the command line ---- */

/* Levenshtein finds misspelt names, this the cut ones ("--optim"). */
static const char *options_completion(const char *name)
{
    const char *found = NULL;
    size_t length = strlen(name);
    if (length < 3) return NULL;
    for (size_t i = 0; i < dpn_n_options; i++) {
        if (strncmp(dpn_options[i].name, name, length) != 0) continue;
        if (found) return NULL;
        found = dpn_options[i].name;
    }
    return found;
}

static enum dpn_status options_unknown(const char *word, size_t length)
{
    char name[OPTIONS_WIDTH + 1], typed[OPTIONS_WIDTH + 1], quoted[DPN_QUOTE_BYTES];
    const char *names[OPTIONS_MAX + 3];
    size_t n = 0;
    names[n++] = "help";
    names[n++] = "version";
    for (size_t i = 0; i < dpn_n_options; i++) names[n++] = dpn_options[i].name;
    names[n] = NULL;

    size_t dashes = strspn(word, "-");
    snprintf(typed, sizeof typed, "%.*s", (int)(length < sizeof typed ? length : sizeof typed), word);
    snprintf(name, sizeof name, "%s", typed + (dashes < strlen(typed) ? dashes : strlen(typed)));
    const char *near = options_completion(name);
    if (!near) near = dpn_near_miss(name, names);
    if (near)
        return dpn_fail(DPN_ERR_USAGE, "unknown option %s; did you mean '--%s'?", dpn_quote(typed, quoted),
                        near);
    return dpn_fail(DPN_ERR_USAGE, "unknown option %s; see dpnode --help", dpn_quote(typed, quoted));
}

static enum dpn_status options_of_others(const struct dpn_option *option, enum dpn_command_mask command)
{
    const char *this_command = "this command";
    char others[64] = "";
    size_t length = 0;
    for (size_t i = 0; i < OPTIONS_N_COMMANDS; i++) {
        if (options_commands[i].mask == command) this_command = options_commands[i].name;
        if (option->commands & options_commands[i].mask)
            length += (size_t)snprintf(others + length, sizeof others - length, "%s%s", length ? ", " : "",
                                       options_commands[i].name);
    }
    return dpn_fail(DPN_ERR_USAGE, "--%s is not an option of %s but of: %s", option->name, this_command,
                    others);
}

struct options_walk {
    int argc, at; /* AT: the word being looked at */
    char *const *argv;
    enum dpn_command_mask command;
    struct dpn_config *config;
};

/* The value of OPTION, in the same word after EQUALS or in the next one. */
static enum dpn_status options_take_value(struct options_walk *walk, const struct dpn_option *option,
                                          const char *equals, const char **value)
{
    char quoted[DPN_QUOTE_BYTES];
    if (equals) {
        *value = equals + 1;
    } else if (walk->at + 1 == walk->argc) {
        return dpn_fail(DPN_ERR_USAGE, "--%s needs a value: --%s %s", option->name, option->name,
                        option->metavar);
    } else if (strncmp(walk->argv[walk->at + 1], "--", 2) == 0) {
        return dpn_fail(DPN_ERR_USAGE, "--%s needs a value (--%s %s) but %s follows", option->name,
                        option->name, option->metavar, dpn_quote(walk->argv[walk->at + 1], quoted));
    } else {
        *value = walk->argv[++walk->at];
    }
    /* An unset variable in a script, not a wish for the default. */
    if (**value == '\0') return dpn_fail(DPN_ERR_USAGE, "--%s '': the value is empty", option->name);
    return DPN_OK;
}

static enum dpn_status options_take(struct options_walk *walk)
{
    const char *word = walk->argv[walk->at], *equals = strchr(word, '=');
    size_t length = equals ? (size_t)(equals - word) : strlen(word);
    const struct dpn_option *option = NULL;
    if (word[1] == '-')
        for (size_t i = 0; i < dpn_n_options && !option; i++)
            if (strlen(dpn_options[i].name) == length - 2 &&
                memcmp(dpn_options[i].name, word + 2, length - 2) == 0)
                option = &dpn_options[i];
    if (!option) return options_unknown(word, length);
    if (!(option->commands & walk->command)) return options_of_others(option, walk->command);

    size_t i = options_position(option);
    uint64_t bit = UINT64_C(1) << i % 64;
    if (walk->config->given[i / 64] & bit)
        return dpn_fail(DPN_ERR_USAGE, "--%s is given twice", option->name);
    walk->config->given[i / 64] |= bit;

    char where[OPTIONS_WIDTH + 1], quoted[DPN_QUOTE_BYTES];
    const char *value = "true";
    if (option->kind != DPN_OPT_FLAG) DPN_TRY(options_take_value(walk, option, equals, &value));
    else if (equals)
        return dpn_fail(DPN_ERR_USAGE, "--%s takes no value, but %s is given", option->name,
                        dpn_quote(equals + 1, quoted));
    snprintf(where, sizeof where, "--%s", option->name);
    return dpn_option_set(walk->config, option, where, value);
}

enum dpn_status dpn_options_parse(int argc, char *const *argv, enum dpn_command_mask command,
                                  struct dpn_config *config, const char **positional, size_t max_positional,
                                  size_t *n_positional, int *help, int *version)
{
    char quoted[DPN_QUOTE_BYTES];
    struct options_walk walk = {.argc = argc, .argv = argv, .command = command, .config = config};
    int options_ended = 0;
    *n_positional = 0;
    *help = *version = 0;
    memset(config->given, 0, sizeof config->given);
    for (; walk.at < argc; walk.at++) {
        const char *word = argv[walk.at];
        if (options_ended || word[0] != '-' || word[1] == '\0') {
            if (*n_positional == max_positional)
                return dpn_fail(DPN_ERR_USAGE, "unexpected word %s", dpn_quote(word, quoted));
            positional[(*n_positional)++] = word;
        } else if (strcmp(word, "--") == 0) {
            options_ended = 1;
        } else if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
            *help = 1;
            return DPN_OK;
        } else if (strcmp(word, "--version") == 0) {
            *version = 1;
            return DPN_OK;
        } else {
            DPN_TRY(options_take(&walk));
        }
    }
    return DPN_OK;
}

/* ---- --help ---- */

/* Prints LENGTH bytes of TEXT from column *COLUMN on, on the next line if this one has no room for them. What
 * is longer than a line stays whole. */
static void options_print_piece(const char *text, size_t length, size_t *column)
{
    if (*column > OPTIONS_HELP_COLUMN && *column + 1 + length > OPTIONS_WIDTH) {
        printf("\n%*s", OPTIONS_HELP_COLUMN, "");
        *column = OPTIONS_HELP_COLUMN;
    }
    if (*column > OPTIONS_HELP_COLUMN) *column += (size_t)printf(" ");
    *column += (size_t)printf("%.*s", (int)length, text);
}

static void options_print_wrapped(const char *text, size_t *column)
{
    while (*text) {
        size_t length = strcspn(text, " ");
        options_print_piece(text, length, column);
        text += length;
        text += strspn(text, " ");
    }
}

static size_t options_print_name(const char *name, const char *metavar)
{
    size_t column = (size_t)printf("  %s%s%s", name, metavar ? " " : "", metavar ? metavar : "");
    if (column + 2 > OPTIONS_HELP_COLUMN) {
        putchar('\n');
        column = 0;
    }
    printf("%*s", OPTIONS_HELP_COLUMN - (int)column, "");
    return OPTIONS_HELP_COLUMN;
}

static void options_print_choices(const struct dpn_option *option, size_t *column)
{
    char list[512];
    size_t length = (size_t)snprintf(list, sizeof list, "%s",
                                     option->kind == DPN_OPT_CHOICE ? "One of: " : "Names: ");
    for (const char *c = dpn_option_choices(option); *c && length + 3 < sizeof list; c++) {
        if (*c == '|') list[length++] = ',';
        list[length++] = *c == '|' ? ' ' : *c;
    }
    snprintf(list + length, sizeof list - length, ".");
    options_print_wrapped(list, column);
}

static void options_print(const struct dpn_option *option)
{
    char name[OPTIONS_WIDTH + 1], text[OPTIONS_WIDTH + 1];
    snprintf(name, sizeof name, "--%s", option->name);
    size_t column = options_print_name(name, option->metavar);
    options_print_wrapped(option->help, &column);
    if (dpn_option_choices(option)) options_print_choices(option, &column);
    if (option->default_text && *option->default_text) {
        size_t length = (size_t)snprintf(text, sizeof text, "Default: %s.", option->default_text);
        options_print_piece(text, length, &column);
    }
    putchar('\n');
}

void dpn_options_help(enum dpn_command_mask command)
{
    const char *group = NULL;
    for (size_t i = 0; i < dpn_n_options; i++) {
        if (!(dpn_options[i].commands & command)) continue;
        if (!group || strcmp(group, dpn_options[i].group) != 0) {
            printf("%s%s:\n", group ? "\n" : "", dpn_options[i].group);
            group = dpn_options[i].group;
        }
        options_print(&dpn_options[i]);
    }
    printf("\nHelp:\n");
    options_print_name("-h, --help", NULL);
    printf("Print this help.\n");
    options_print_name("--version", NULL);
    printf("Print the version and what is built in.\n");
    fflush(stdout);
}
