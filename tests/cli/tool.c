/* What the black-box tests need beside dpnode itself: fixtures, and comparisons of its logs and weights.
 *
 * tool idx DIR PART LABELS: IDX pair of all-zero 28x28 images; PART train|t10k; LABELS "0x7,1x6" or "0,1,10".
 *
 * tool zero-biases IN OUT: copies a weights file with every tensor called *bias set to 0.
 *
 * tool tensor FILE NAME: prints a tensor, a value a line.
 *
 * tool reference CASE.json LOG TOL GRADTOL [N]: compares a run's (N first) step losses and gradient norms
 * with expected ones.
 *
 * tool log-max LOG EVENT KEY: largest value of KEY over events EVENT.
 *
 * tool log-last LOG EVENT KEY: last value of KEY over events EVENT, with all its digits.
 */
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "train/safetensors.h"

static int tool_fail(const char *what, const char *which)
{
    fprintf(stderr, "tool: %s: %s\n", what, which);
    return 1;
}

static void tool_be32(FILE *file, uint32_t value)
{
    for (int shift = 24; shift >= 0; shift -= 8) fputc((int)(value >> shift & 255), file);
}

/* "0x7,1x6" -> 0 seven times, 1 six times. */
static size_t tool_labels(const char *text, uint8_t *labels, size_t room)
{
    size_t n = 0;
    while (*text) {
        char *end;
        unsigned long value = strtoul(text, &end, 10), times = 1;
        if (*end == 'x') times = strtoul(end + 1, &end, 10);
        for (; times && n < room; times--) labels[n++] = (uint8_t)value;
        text = *end == ',' ? end + 1 : end;
    }
    return n;
}

static int tool_idx(char **argv)
{
    static uint8_t labels[100000];
    static const uint8_t image[784];
    char path[4096];
    size_t n = tool_labels(argv[4], labels, sizeof labels);
    snprintf(path, sizeof path, "%s/%s-images-idx3-ubyte", argv[2], argv[3]);
    FILE *file = fopen(path, "wb");
    if (!file) return tool_fail("cannot write", path);
    tool_be32(file, 2051);
    tool_be32(file, (uint32_t)n);
    tool_be32(file, 28);
    tool_be32(file, 28);
    for (size_t i = 0; i < n; i++) fwrite(image, 1, sizeof image, file);
    if (fclose(file)) return tool_fail("cannot write", path);
    snprintf(path, sizeof path, "%s/%s-labels-idx1-ubyte", argv[2], argv[3]);
    file = fopen(path, "wb");
    if (!file) return tool_fail("cannot write", path);
    tool_be32(file, 2049);
    tool_be32(file, (uint32_t)n);
    fwrite(labels, 1, n, file);
    return fclose(file) ? tool_fail("cannot write", path) : 0;
}

/* ---- weights ---- */

static const void *tool_zeroed(void *arg, size_t position)
{
    const struct dpn_st_file *file = arg;
    const struct dpn_st_tensor *tensor = &file->tensors[position];
    size_t length = strlen(tensor->name);
    static const uint8_t zeros[1 << 16];
    if (length >= 4 && !strcmp(tensor->name + length - 4, "bias") &&
        tensor->end - tensor->begin <= sizeof zeros)
        return zeros;
    return file->data + tensor->begin;
}

static int tool_zero_biases(char **argv)
{
    struct dpn_st_file *file;
    struct dpn_st_source sources[256];
    uint32_t crc;
    if (dpn_st_open(argv[2], &file) != DPN_OK) return tool_fail("cannot read", dpn_error_text());
    if (file->n_tensors > 256) return tool_fail("too many tensors in", argv[2]);
    for (size_t i = 0; i < file->n_tensors; i++) {
        const struct dpn_st_tensor *t = &file->tensors[i];
        sources[i] = (struct dpn_st_source){t->name, t->dtype, t->rank, t->shape, tool_zeroed};
    }
    int fd = open(argv[3], O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (fd < 0 || dpn_st_write(fd, argv[3], NULL, 0, sources, file->n_tensors, file, &crc) != DPN_OK ||
        close(fd))
        return tool_fail("cannot write", argv[3]);
    dpn_st_close(file);
    return 0;
}

static int tool_tensor(char **argv)
{
    struct dpn_st_file *file;
    if (dpn_st_open(argv[2], &file) != DPN_OK) return tool_fail("cannot read", dpn_error_text());
    const struct dpn_st_tensor *tensor = dpn_st_find(file, argv[3]);
    if (!tensor || strcmp(tensor->dtype, "F32")) return tool_fail("no such float tensor", argv[3]);
    for (uint64_t at = tensor->begin; at < tensor->end; at += sizeof(float)) {
        float value;
        memcpy(&value, file->data + at, sizeof value);
        printf("%.9g\n", (double)value);
    }
    dpn_st_close(file);
    return 0;
}

/* ---- logs ---- */

/* Calls each(arg, event) for every line of LOG whose event is EVENT (NULL: all). */
static int tool_each(const char *path, const char *event, void (*each)(void *arg, json_t *line), void *arg)
{
    static char text[1 << 20];
    FILE *file = fopen(path, "r");
    if (!file) return tool_fail("cannot read", path);
    while (fgets(text, sizeof text, file)) {
        json_t *line = json_loads(text, 0, NULL);
        if (!line) return tool_fail("not JSON", text);
        const char *kind = json_string_value(json_object_get(line, "event"));
        if (!event || (kind && !strcmp(kind, event))) each(arg, line);
        json_decref(line);
    }
    fclose(file);
    return 0;
}

struct tool_value {
    const char *key;
    double max, last;
    int seen;
};

static void tool_value(void *arg, json_t *line)
{
    struct tool_value *value = arg;
    json_t *item = json_object_get(line, value->key);
    if (!json_is_number(item)) return;
    value->last = json_number_value(item);
    if (!value->seen || value->last > value->max) value->max = value->last;
    value->seen = 1;
}

static int tool_log(char **argv, int max)
{
    struct tool_value value = {.key = argv[4]};
    if (tool_each(argv[2], argv[3], tool_value, &value)) return 1;
    if (!value.seen) return tool_fail("no such number in the log", argv[4]);
    printf("%.17g\n", max ? value.max : value.last);
    return 0;
}

struct tool_compare {
    json_t *expected;
    double tolerance, gradient_tolerance, worst, worst_gradient;
    size_t losses, norms;
};

static double tool_relative(double got, double want)
{
    double error = fabs(got - want) / (fabs(want) > 0 ? fabs(want) : 1.0);
    return isfinite(error) ? error : INFINITY;
}

static void tool_compare_line(void *arg, json_t *line)
{
    struct tool_compare *compare = arg;
    const char *event = json_string_value(json_object_get(line, "event"));
    json_int_t step = json_integer_value(json_object_get(line, "step"));
    if (!strcmp(event, "step")) {
        json_t *want = json_array_get(json_object_get(compare->expected, "loss"), (size_t)step);
        double error = tool_relative(json_number_value(json_object_get(line, "loss")),
                                     json_number_value(want));
        if (error > compare->worst) compare->worst = error;
        compare->losses++;
    } else if (!strcmp(event, "tensors") && step == 0) {
        const char *name;
        json_t *want, *norms = json_object_get(line, "grad_norm");
        json_object_foreach(json_object_get(compare->expected, "grad_norm_step0"), name, want)
        {
            double error = tool_relative(json_number_value(json_object_get(norms, name)),
                                         json_number_value(want));
            if (error > compare->worst_gradient) compare->worst_gradient = error;
            compare->norms++;
        }
    }
}

static int tool_reference(char **argv)
{
    struct tool_compare compare = {.tolerance = atof(argv[4]), .gradient_tolerance = atof(argv[5])};
    compare.expected = json_load_file(argv[2], 0, NULL);
    if (!compare.expected) return tool_fail("cannot read", argv[2]);
    size_t losses = json_array_size(json_object_get(compare.expected, "loss"));
    if (argv[6]) losses = (size_t)atol(argv[6]);
    size_t norms = json_object_size(json_object_get(compare.expected, "grad_norm_step0"));
    if (tool_each(argv[3], NULL, tool_compare_line, &compare)) return 1;
    json_decref(compare.expected);
    printf("%zu of %zu losses, worst relative error %.2e; %zu of %zu gradient norms, %.2e\n", compare.losses,
           losses, compare.worst, compare.norms, norms, compare.worst_gradient);
    return !(compare.losses == losses && compare.norms == norms && compare.worst <= compare.tolerance &&
             compare.worst_gradient <= compare.gradient_tolerance);
}

int main(int argc, char **argv)
{
    if (argc == 5 && !strcmp(argv[1], "idx")) return tool_idx(argv);
    if (argc == 4 && !strcmp(argv[1], "zero-biases")) return tool_zero_biases(argv);
    if (argc == 4 && !strcmp(argv[1], "tensor")) return tool_tensor(argv);
    if ((argc == 6 || argc == 7) && !strcmp(argv[1], "reference")) return tool_reference(argv);
    if (argc == 5 && !strcmp(argv[1], "log-max")) return tool_log(argv, 1);
    if (argc == 5 && !strcmp(argv[1], "log-last")) return tool_log(argv, 0);
    fprintf(stderr, "tool: see the comment at the top of tests/cli/tool.c\n");
    return 2;
}
