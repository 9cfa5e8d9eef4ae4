/* The options table and the command line. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/options.h"
#include "core/parse.h"

enum { WORDS_MAX = 16, HELP_BYTES = 32768 };

struct parsed {
    enum dpn_status status;
    struct dpn_config config;
    const char *positional[2];
    size_t n_positional;
    int help, version;
    char line[512]; /* what CONFIG's words point into */
};

/* Parses LINE, cut at blanks, as COMMAND with room for one positional word. "''" stands for an empty word. */
static struct parsed *parse(enum dpn_command_mask command, const char *line)
{
    static struct parsed p;
    char *argv[WORDS_MAX], *rest = p.line;
    int argc = 0;
    memset(&p, 0, sizeof p);
    snprintf(p.line, sizeof p.line, "%s", line);
    while (rest && *line) {
        assert_true(argc < WORDS_MAX);
        argv[argc] = strsep(&rest, " ");
        if (strcmp(argv[argc], "''") == 0) argv[argc][0] = '\0';
        argc++;
    }
    dpn_config_defaults(&p.config);
    p.status = dpn_options_parse(argc, argv, command, &p.config, p.positional, 1, &p.n_positional, &p.help,
                                 &p.version);
    return &p;
}

static void assert_refused(enum dpn_command_mask command, const char *line, const char *want)
{
    struct parsed *p = parse(command, line);
    assert_int_equal(p->status, DPN_ERR_USAGE);
    assert_string_equal(dpn_error_text(), want);
}

static void test_table_is_sound(void **state)
{
    (void)state;
    assert_true(dpn_n_options <= 256);
    for (size_t i = 0; i < dpn_n_options; i++) {
        const struct dpn_option *option = &dpn_options[i];
        int flag = option->kind == DPN_OPT_FLAG;
        assert_ptr_equal(dpn_option_find(option->name), option);
        assert_true(option->commands != 0);
        assert_int_equal(flag, option->metavar == NULL);
        assert_int_equal(flag, option->default_text == NULL);
        assert_true(option->offset < offsetof(struct dpn_config, given));
        size_t length = strlen(option->help);
        assert_true(length > 0 && option->help[length - 1] == '.');
        for (size_t j = 0; j < i; j++) {
            assert_true(dpn_options[j].offset != option->offset);
            assert_string_not_equal(dpn_options[j].name, option->name);
            /* a group is one block of --help */
            if (strcmp(dpn_options[j].group, option->group) == 0)
                assert_string_equal(dpn_options[i - 1].group, option->group);
        }
    }
    assert_null(dpn_option_find("lrr"));
}

/* No field without an option. */
static void test_table_covers_the_config(void **state)
{
    (void)state;
    struct dpn_config config;
    size_t covered = 0;
    for (size_t i = 0; i < dpn_n_options; i++)
        covered += dpn_options[i].kind == DPN_OPT_FLAG ? sizeof(int) : 8;
    /* only padding beside ints may be missing */
    size_t size = offsetof(struct dpn_config, given), flags = 0;
    for (size_t i = 0; i < dpn_n_options; i++) flags += dpn_options[i].kind == DPN_OPT_FLAG;
    assert_true(covered <= size && size - covered <= flags * sizeof(int));
    dpn_config_defaults(&config);
    for (size_t i = 0; i < dpn_n_options; i++)
        if (dpn_options[i].kind == DPN_OPT_STRING || dpn_options[i].kind == DPN_OPT_CHOICE)
            assert_non_null(*(const char *const *)((const char *)&config + dpn_options[i].offset));
}

static void test_defaults(void **state)
{
    (void)state;
    struct dpn_config c = parse(DPN_CMD_TRAIN, "")->config;
    assert_string_equal(c.devices, "all");
    assert_string_equal(c.mode, "ddp");
    assert_string_equal(c.reducer, "auto");
    assert_string_equal(c.model, "mlp");
    assert_string_equal(c.optimizer, "sgd");
    assert_string_equal(c.last_batch, "short");
    assert_string_equal(c.grad_op, "mean");
    assert_string_equal(c.out, "");
    assert_string_equal(c.save_every, "1");
    assert_true(c.batch == 128 && c.batch_per_device == 0 && c.epochs == 10 && c.steps == 0 && c.seed == 0);
    assert_true(c.shards == 0 && c.threads_per_device == 0 && c.bucket_mb == 0);
    assert_true(isnan(c.lr));
    assert_true(c.momentum == 0.9 && c.weight_decay == 0 && c.beta1 == 0.9 && c.beta2 == 0.999 &&
                c.eps == 1e-8);
    assert_true(c.eval_every == 1 && c.target_accuracy == 0 && c.keep == 3 && c.log_every == 50 &&
                c.log_tensors == 0);
    assert_true(!c.smt && !c.nesterov && !c.quiet && !c.overwrite && !c.check_reduce && !c.no_shuffle);
    assert_false(dpn_option_given(&c, "lr"));
}

static void test_values(void **state)
{
    (void)state;
    struct parsed *p =
        parse(DPN_CMD_TRAIN, "--batch 64 --lr=0.5 --smt --devices -1 --model=mlp:hidden=5 --seed "
                             "18446744073709551615");
    assert_int_equal(p->status, DPN_OK);
    assert_true(p->config.batch == 64 && p->config.lr == 0.5 && p->config.smt == 1);
    assert_true(p->config.seed == UINT64_MAX);
    assert_string_equal(p->config.devices, "-1"); /* for the list's parser to refuse */
    assert_string_equal(p->config.model, "mlp:hidden=5");
    assert_true(dpn_option_given(&p->config, "batch") && dpn_option_given(&p->config, "smt"));
    assert_false(dpn_option_given(&p->config, "epochs"));
    assert_int_equal(p->n_positional, 0);

    p = parse(DPN_CMD_INFO, "--verbose -- --file");
    assert_int_equal(p->status, DPN_OK);
    assert_int_equal(p->n_positional, 1);
    assert_string_equal(p->positional[0], "--file");
    p = parse(DPN_CMD_INFO, "-");
    assert_int_equal(p->n_positional, 1);
}

static void test_help_and_version(void **state)
{
    (void)state;
    assert_true(parse(DPN_CMD_TRAIN, "--batch 3 --help --nonsense")->help);
    assert_true(parse(DPN_CMD_TRAIN, "-h")->help);
    assert_true(parse(DPN_CMD_TRAIN, "--version")->version);
    assert_int_equal(parse(DPN_CMD_TRAIN, "--nonsense --help")->status, DPN_ERR_USAGE);
}

static void test_refusals(void **state)
{
    (void)state;
    const enum dpn_command_mask train = DPN_CMD_TRAIN;
    assert_refused(train, "--learning-rte 0.5", "unknown option '--learning-rte'; see dpnode --help");
    assert_refused(train, "--epoch 3", "unknown option '--epoch'; did you mean '--epochs'?");
    assert_refused(train, "--bacth=3", "unknown option '--bacth'; did you mean '--batch'?");
    assert_refused(train, "--optim adam", "unknown option '--optim'; did you mean '--optimizer'?");
    assert_refused(train, "-lr 3", "unknown option '-lr'; did you mean '--lr'?");
    assert_refused(train, "-x", "unknown option '-x'; see dpnode --help");
    assert_refused(train, "--=1", "unknown option '--'; see dpnode --help");
    assert_refused(train, "foo bar", "unexpected word 'bar'");
    assert_refused(train, "--batch", "--batch needs a value: --batch B");
    assert_refused(train, "--batch --lr 3", "--batch needs a value (--batch B) but '--lr' follows");
    assert_refused(train, "--out -- x", "--out needs a value (--out DIR) but '--' follows");
    assert_refused(train, "--batch=", "--batch '': the value is empty");
    assert_refused(train, "--out ''", "--out '': the value is empty");
    assert_refused(train, "--lr ''", "--lr '': the value is empty");
    assert_refused(train, "--smt=true", "--smt takes no value, but 'true' is given");
    assert_refused(train, "--batch 3 --batch 4", "--batch is given twice");
    assert_refused(train, "--checkpoint x", "--checkpoint is not an option of train but of: eval");
    assert_refused(DPN_CMD_TOPO, "--seed 1", "--seed is not an option of topo but of: train, eval");
    assert_refused(DPN_CMD_INFO, "--devices 0",
                   "--devices is not an option of info but of: train, eval, topo, bench");

    assert_refused(train, "--batch 0", "--batch '0' is not a whole number in 1..2147483647");
    assert_refused(train, "--batch -5", "--batch '-5' is not a whole number in 1..2147483647");
    assert_refused(train, "--batch 12x", "--batch '12x' is not a whole number in 1..2147483647");
    assert_refused(train, "--batch 1e3", "--batch '1e3' is not a whole number in 1..2147483647");
    assert_refused(train, "--batch 4294967297",
                   "--batch '4294967297' is not a whole number in 1..2147483647");
    assert_refused(train, "--batch-per-device 0",
                   "--batch-per-device '0' is not a whole number in 1..2147483647");
    assert_refused(train, "--seed 18446744073709551616",
                   "--seed '18446744073709551616' is not a whole number in 0..18446744073709551615");
    assert_refused(train, "--steps 4611686018427387905",
                   "--steps '4611686018427387905' is not a whole number in 0..4611686018427387904");
    assert_refused(train, "--lr nan", "--lr 'nan' is not a number in 0..1e+30");
    assert_refused(train, "--lr inf", "--lr 'inf' is not a number in 0..1e+30");
    assert_refused(train, "--lr -1", "--lr '-1' is not a number in 0..1e+30");
    assert_refused(train, "--lr 0.1.2", "--lr '0.1.2' is not a number in 0..1e+30");
    assert_refused(train, "--momentum 1.1", "--momentum '1.1' is not a number in 0..1");
    assert_refused(train, "--last-batch sort",
                   "--last-batch 'sort' is not one of: short, drop, wrap; did you mean 'short'?");
    assert_int_equal(parse(train, "--epochs 0")->status, DPN_OK);
}

static void test_registry_choices(void **state)
{
    (void)state;
    const struct dpn_option *optimizer = dpn_option_find("optimizer");
    assert_null(dpn_option_choices(optimizer));
    assert_int_equal(parse(DPN_CMD_TRAIN, "--optimizer anything")->status, DPN_OK);
    dpn_options_set_choices("optimizer", "sgd|adam|adamw");
    assert_string_equal(dpn_option_choices(optimizer), "sgd|adam|adamw");
    assert_int_equal(parse(DPN_CMD_TRAIN, "--optimizer adamw")->status, DPN_OK);
    assert_refused(DPN_CMD_TRAIN, "--optimizer adma",
                   "--optimizer 'adma' is not one of: sgd, adam, adamw; did you mean 'adam'?");
    /* of a string only the help learns */
    dpn_options_set_choices("model", "dense|mlp");
    assert_int_equal(parse(DPN_CMD_TRAIN, "--model mlp:hidden=5")->status, DPN_OK);
}

/* Text of every option of some settings, set into another config, gives the same settings. */
static void test_text_round_trips(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "",
        "--lr 0.1 --momentum 0.30000000000000004 --seed 18446744073709551615 --nesterov --batch-per-device 7",
        "--lr 4.9e-324 --weight-decay 1e30 --model mlp:hidden=1x2 --steps 4611686018427387904 --quiet",
    };
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        struct parsed *p = parse(DPN_CMD_TRAIN, lines[i]);
        assert_int_equal(p->status, DPN_OK);
        static char text[64][128];
        struct dpn_config copy;
        memset(&copy, 0xa5, sizeof copy);
        assert_true(dpn_n_options <= 64);
        for (size_t j = 0; j < dpn_n_options; j++) {
            const struct dpn_option *option = &dpn_options[j];
            assert_ptr_equal(dpn_option_text(&p->config, option, text[j], sizeof text[j]), text[j]);
            assert_int_equal(dpn_option_set(&copy, option, "record", text[j]), DPN_OK);
            char again[128];
            assert_string_equal(dpn_option_text(&copy, option, again, sizeof again), text[j]);
        }
        assert_true(copy.seed == p->config.seed && copy.steps == p->config.steps);
        assert_memory_equal(&copy.momentum, &p->config.momentum, sizeof copy.momentum);
        if (i > 0) assert_memory_equal(&copy.lr, &p->config.lr, sizeof copy.lr);
        assert_true(dpn_options_digest(&copy) == dpn_options_digest(&p->config));
    }
    struct dpn_config config;
    dpn_config_defaults(&config);
    assert_int_equal(dpn_option_set(&config, dpn_option_find("smt"), "x.safetensors", "yes"), DPN_ERR_USAGE);
    assert_string_equal(dpn_error_text(), "x.safetensors 'yes' is not true or false");
    assert_int_equal(dpn_option_set(&config, dpn_option_find("batch"), "x.safetensors", ""), DPN_ERR_USAGE);
}

static void test_digest(void **state)
{
    (void)state;
    uint64_t base = dpn_options_digest(&parse(DPN_CMD_TRAIN, "")->config);
    static const char *const same[] = {"--devices 0-3", "--mode dp",  "--bucket-mb 3", "--epochs 99",
                                       "--out d",       "--log x",    "--quiet",       "--data mnist",
                                       "--smt",         "--batch 128"};
    static const char *const other[] = {
        "--batch 127",   "--seed 1",         "--lr 0.05",        "--model dense", "--isa ref",
        "--no-shuffle",  "--shards 8",       "--nesterov",       "--blas own",    "--eps 1e-7",
        "--grad-op sum", "--normalize none", "--last-batch drop"};
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++)
        assert_true(dpn_options_digest(&parse(DPN_CMD_TRAIN, same[i])->config) == base);
    for (size_t i = 0; i < sizeof other / sizeof other[0]; i++)
        assert_true(dpn_options_digest(&parse(DPN_CMD_TRAIN, other[i])->config) != base);
}

static void test_json(void **state)
{
    (void)state;
    struct parsed *p = parse(DPN_CMD_EVAL, "--seed 18446744073709551615 --quiet --data a\"b");
    struct dpn_json json;
    dpn_json_init(&json);
    dpn_json_open_object(&json, NULL);
    dpn_options_json(&p->config, DPN_CMD_EVAL, 1u << DPN_ROLE_SPEECH | 1u << DPN_ROLE_FILES, &json);
    dpn_json_close_object(&json);
    assert_string_equal(json.text,
                        "{\"data\":\"a\\\"b\",\"data-root\":\"\",\"init\":\"\",\"checkpoint\":\"\","
                        "\"log\":\"\",\"quiet\":true,\"verbose\":false,\"dry-run\":false}");
    dpn_json_reset(&json);
    dpn_json_open_object(&json, NULL);
    dpn_options_json(&p->config, DPN_CMD_TRAIN, 1u << DPN_ROLE_NUMBERS, &json);
    dpn_json_close_object(&json);
    assert_non_null(strstr(json.text, "\"seed\":18446744073709551615,"));
    assert_non_null(strstr(json.text, "\"lr\":null,"));
    assert_non_null(strstr(json.text, "\"momentum\":0.9,"));
    assert_non_null(strstr(json.text, "\"batch-per-device\":null,"));
    assert_null(strstr(json.text, "devices"));
    dpn_json_free(&json);
}

static void read_help(enum dpn_command_mask command, char *text)
{
    fflush(NULL);
    FILE *file = tmpfile();
    int saved = dup(STDOUT_FILENO);
    assert_true(file && saved >= 0);
    dup2(fileno(file), STDOUT_FILENO);
    dpn_options_help(command);
    dup2(saved, STDOUT_FILENO);
    close(saved);
    rewind(file);
    text[fread(text, 1, HELP_BYTES - 1, file)] = '\0';
    fclose(file);
}

static void test_help_text(void **state)
{
    (void)state;
    static char text[HELP_BYTES];
    static const enum dpn_command_mask commands[] = {DPN_CMD_TRAIN, DPN_CMD_EVAL, DPN_CMD_TOPO, DPN_CMD_INFO};
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        read_help(commands[i], text);
        for (size_t j = 0; j < dpn_n_options; j++) {
            char line[64];
            snprintf(line, sizeof line, "\n  --%s%c", dpn_options[j].name,
                     dpn_options[j].metavar ? ' ' : '\0');
            assert_int_equal(strstr(text, line) != NULL, (dpn_options[j].commands & commands[i]) != 0);
        }
        for (char *rest = text, *line; (line = strsep(&rest, "\n"));) assert_true(strlen(line) <= 79);
    }
    read_help(DPN_CMD_TRAIN, text);
    assert_non_null(strstr(text, "sgd, adam, adamw.")); /* of the registry */
    assert_non_null(strstr(text, "Default: 128.\n"));
    assert_non_null(strstr(text, "short, drop, wrap."));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table_is_sound),   cmocka_unit_test(test_table_covers_the_config),
        cmocka_unit_test(test_defaults),         cmocka_unit_test(test_values),
        cmocka_unit_test(test_help_and_version), cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_registry_choices), cmocka_unit_test(test_text_round_trips),
        cmocka_unit_test(test_digest),           cmocka_unit_test(test_json),
        cmocka_unit_test(test_help_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
