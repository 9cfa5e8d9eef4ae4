/* `bench kernels`: every kernel at the shapes of the models, its time against this machine's measured roof,
 * and its results against the plain loops. README.md of this folder defines every number.
 *
 * A round measures the roof, then one case, and sets the two in relation, so that a machine that changes its
 * speed changes both. Medians over rounds.
 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/bench.h"
#include "core/clock.h"
#include "core/json.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/rng.h"
#include "data/data.h"
#include "device/device.h"

enum {
    KB_DEFAULT_BATCH = 64,
    KB_CHECK_BATCH = 2,
    KB_CHECK_ELEMS = 100000,
    KB_MIN_NS = 3000000,
    KB_PEAK_STEPS = 400,
    KB_COPY_BYTES = 64 << 20
};

/* An element of a result that need not have the same bits is wrong if it is off by more than so many times
 * the result's bound, in root mean squares. */
static const double kb_element = 100;

struct kb_result {
    double ns, low_ns, high_ns; /* of a run: median, quartiles */
    double of_roof;             /* median over rounds */
    double rate;                /* GF/s or GB/s at the median time */
    size_t wrong;
};

struct kb {
    const struct dpn_config *config;
    const struct dpn_kernels *kernels;
    struct dpn_bench_case *cases, *checks; /* the same cases at both batches */
    size_t n;
    struct kb_result *results;
    struct dpn_bench_room room;
    float *copy[2];
    size_t wrong, threads;
};

/* ---- running on a team ---- */

struct kb_job {
    const struct dpn_bench_case *c;
    const struct dpn_kernels *kernels;
    float *const *buffers;
    int phase;
};

static void kb_part(void *arg, int thread, int size)
{
    const struct kb_job *job = arg;
    job->c->run(job->c, job->kernels, job->buffers, job->phase, thread, size);
}

static void kb_run(const struct kb *kb, const struct dpn_bench_case *c, struct dpn_team *team)
{
    struct kb_job job = {c, kb->kernels, kb->room.buffers, 0};
    for (job.phase = 0; job.phase < c->phases; job.phase++) dpn_team_run(team, kb_part, &job);
}

struct kb_roof {
    const struct kb *kb;
    int stream;
    double flops[64];
};

static void kb_peak_part(void *arg, int thread, int size)
{
    struct kb_roof *roof = arg;
    float result = 1.0f;
    (void)size;
    roof->flops[thread % 64] = roof->kb->kernels->peak(KB_PEAK_STEPS, &result);
}

/* Ordinary stores read a line before they write it, unless the processor sees through them; those past the
 * caches do not, but have a limit of their own. */
static void kb_copy_part(void *arg, int thread, int size)
{
    const struct kb_roof *roof = arg;
    const struct kb *kb = roof->kb;
    size_t first, count;
    dpn_split(KB_COPY_BYTES / DPN_PAGE_BYTES, (size_t)size, (size_t)thread, &first, &count);
    const size_t at = first * DPN_PAGE_BYTES / sizeof(float), n = count * DPN_PAGE_BYTES / sizeof(float);
    if (roof->stream) kb->kernels->stream(n, kb->copy[0] + at, kb->copy[1] + at);
    else memcpy(kb->copy[1] + at, kb->copy[0] + at, n * sizeof(float));
}

static double kb_roof_ns(struct kb_roof *roof, void (*part)(void *arg, int thread, int size),
                         struct dpn_team *team)
{
    uint64_t start = dpn_now_ns();
    dpn_team_run(team, part, roof);
    return (double)(dpn_now_ns() - start);
}

/* GF/s of the whole team, or GB/s read and written: of the faster way to copy. */
static double kb_roof(const struct kb *kb, int flops, struct dpn_team *team)
{
    struct kb_roof roof = {.kb = kb};
    if (flops) {
        double ns = kb_roof_ns(&roof, kb_peak_part, team);
        return roof.flops[0] * dpn_team_size(team) / ns;
    }
    double ns = kb_roof_ns(&roof, kb_copy_part, team);
    roof.stream = 1;
    double streamed = kb_roof_ns(&roof, kb_copy_part, team);
    return 2.0 * KB_COPY_BYTES / (streamed < ns ? streamed : ns);
}

/* ---- measuring ---- */

static int kb_compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The value at FRACTION of N sorted ones. */
static double kb_quantile(const double *sorted, size_t n, double fraction)
{
    double at = fraction * (double)(n - 1);
    size_t i = (size_t)at;
    return i + 1 < n ? sorted[i] + (at - (double)i) * (sorted[i + 1] - sorted[i]) : sorted[n - 1];
}

static double kb_time(const struct kb *kb, const struct dpn_bench_case *c, struct dpn_team *team)
{
    uint64_t start = dpn_now_ns(), now = start;
    size_t runs = 0;
    do {
        kb_run(kb, c, team);
        runs++;
        now = dpn_now_ns();
    } while (now - start < KB_MIN_NS);
    return (double)(now - start) / (double)runs;
}

static enum dpn_status kb_measure(struct kb *kb, size_t number, struct dpn_team *team)
{
    const struct dpn_bench_case *c = &kb->cases[number];
    struct kb_result *result = &kb->results[number];
    size_t rounds = (size_t)kb->config->rounds;
    double *ns, *share, work = c->flops > 0 ? c->flops : c->bytes;
    DPN_TRY(dpn_calloc(&ns, 2 * rounds, sizeof *ns, "rounds"));
    share = ns + rounds;
    kb_run(kb, c, team);
    for (size_t r = 0; r < rounds; r++) {
        double roof = kb_roof(kb, c->flops > 0, team);
        ns[r] = kb_time(kb, c, team);
        share[r] = work / ns[r] / roof;
    }
    qsort(ns, rounds, sizeof *ns, kb_compare);
    qsort(share, rounds, sizeof *share, kb_compare);
    result->ns = kb_quantile(ns, rounds, 0.5);
    result->low_ns = kb_quantile(ns, rounds, 0.25);
    result->high_ns = kb_quantile(ns, rounds, 0.75);
    result->of_roof = kb_quantile(share, rounds, 0.5);
    result->rate = work / result->ns;
    free(ns);
    return DPN_OK;
}

/* ---- checking ---- */

/* A table of random numbers over and over: its length is a prime, so rows of matrices differ. */
static void kb_fill(const struct kb *kb, const struct dpn_bench_case *c, size_t floats)
{
    enum { TABLE = 65521 };
    static float table[TABLE];
    struct dpn_rng rng;
    dpn_rng_init(&rng, 1, DPN_RNG_TEST, 0, 0);
    for (size_t k = 0; k < TABLE; k++) table[k] = (float)dpn_rng_uniform(&rng) - 0.5f;
    for (size_t i = 0; i < DPN_BENCH_BUFFERS; i++) {
        float *buffer = kb->room.buffers[i],
              low = i == 3 ? 0.75f : 0.0f; /* scales, and Adam's squares: positive */
        for (size_t k = 0, t = 977 * i; k < floats; k++, t = t + 1 < TABLE ? t + 1 : 0)
            buffer[k] = table[t] + low;
    }
    if (c->prepare) c->prepare(c, kb->room.buffers);
}

/* Wrong elements of N; at least one if their Frobenius error is beyond BOUND, 0: if a bit differs. */
static size_t kb_wrong(double bound, size_t n, const float *got, const float *want)
{
    double size = 0, difference = 0;
    size_t wrong = 0;
    if (memcmp(got, want, n * sizeof *got) == 0) return 0;
    for (size_t i = 0; i < n; i++) {
        double d = (double)got[i] - (double)want[i];
        size += (double)want[i] * (double)want[i];
        difference += d * d;
    }
    double element = kb_element * bound * sqrt(size / (double)n);
    for (size_t i = 0; i < n; i++) {
        if (bound > 0) wrong += !(fabs((double)got[i] - (double)want[i]) <= element);
        else wrong += memcmp(&got[i], &want[i], sizeof *got) != 0;
    }
    return wrong ? wrong : !(sqrt(difference) <= bound * sqrt(size));
}

/* Blocks of moments joined by Chan's rule, or of sums added: how many of them there are is the kernel's
 * choice. TO: [2][columns], and the count. */
static void kb_join(const struct dpn_bench_case *c, const float *blocks, float *to)
{
    const size_t width = c->columns, step = dpn_block_floats(width);
    const int moments = strcmp(c->op, "mask_sums") != 0;
    for (size_t channel = 0; channel < width; channel++) {
        double count = 0, first = 0, second = 0;
        for (size_t b = 0; b < c->blocks; b++) {
            const float *block = blocks + b * step;
            const double here = (double)block[2 * width], all = count + here;
            const double delta = (double)block[channel] - (moments ? first : 0);
            first += moments ? delta * here / all : delta;
            second += (double)block[width + channel] + (moments ? delta * delta * count * here / all : 0);
            count = all;
        }
        to[channel] = (float)first;
        to[width + channel] = (float)second;
        to[2 * width] = (float)count;
    }
}

/* What a run left: every buffer that counts, whole, and what the blocks come to. */
static void kb_keep(const struct kb *kb, const struct dpn_bench_case *c, size_t floats, float *to)
{
    for (size_t i = 0; i < DPN_BENCH_BUFFERS; i++)
        if ((c->results | c->exact) >> i & 1)
            memcpy(to + i * floats, kb->room.buffers[i], floats * sizeof *to);
    if (c->blocks) kb_join(c, kb->room.buffers[DPN_BENCH_BLOCKS], to + DPN_BENCH_BUFFERS * floats);
}

/* The parts of a result one by one: what is right in a large one must not hide what is wrong in a small one.
 */
static size_t kb_count_wrong(const struct dpn_bench_case *c, size_t floats, const float *got,
                             const float *want)
{
    size_t wrong = 0;
    for (size_t i = 0; i < DPN_BENCH_BUFFERS; i++) {
        const double bound = c->exact >> i & 1 ? 0 : c->bound;
        if ((c->results | c->exact) >> i & 1)
            wrong += kb_wrong(bound, floats, got + i * floats, want + i * floats);
    }
    got += DPN_BENCH_BUFFERS * floats;
    want += DPN_BENCH_BUFFERS * floats;
    if (!c->blocks) return wrong;
    for (int part = 0; part < 2; part++)
        wrong += kb_wrong(10 * c->bound, c->columns, got + (size_t)part * c->columns,
                          want + (size_t)part * c->columns);
    return wrong + (got[2 * c->columns] != want[2 * c->columns]);
}

/* The same case, a few samples of it, by the table and by the plain loops. */
static enum dpn_status kb_check(struct kb *kb, size_t number, struct dpn_team *team)
{
    const struct dpn_bench_case *c = &kb->checks[number];
    struct dpn_bench_case plain = *c;
    size_t floats = dpn_bench_floats(c, kb->threads);
    float *kept;
    if (c->conv) {
        plain.conv_algorithm = dpn_kernels_ref.conv[0];
        if (c->blocks) plain.blocks = plain.conv_algorithm->blocks(&c->shape_conv, c->conv_pass);
        size_t plain_floats = dpn_bench_floats(&plain, kb->threads);
        if (plain_floats > floats) floats = plain_floats;
    }
    const size_t all = DPN_BENCH_BUFFERS * floats + 2 * c->columns + 1;
    DPN_TRY(dpn_calloc(&kept, 2 * all, sizeof *kept, "results"));
    kb_fill(kb, c, floats);
    kb_run(kb, c, team);
    kb_keep(kb, c, floats, kept);
    kb_fill(kb, c, floats);
    const struct kb reference = {.kernels = &dpn_kernels_ref, .room = kb->room};
    kb_run(&reference, &plain, team);
    kb_keep(kb, &plain, floats, kept + all);
    kb->results[number].wrong = kb_count_wrong(c, floats, kept, kept + all);
    kb->wrong += kb->results[number].wrong;
    free(kept);
    return DPN_OK;
}

/* ---- saying ---- */

static void kb_line(const struct kb *kb, size_t number)
{
    const struct dpn_bench_case *c = &kb->cases[number];
    const struct kb_result *r = &kb->results[number];
    dpn_note("%-11s %-31s %-8s %-7s %9.3f %8.1f %-4s %6.0f %% %6zu", c->op, c->shape, c->algorithm, c->pass,
             r->ns * 1e-6, r->rate, c->flops > 0 ? "GF/s" : "GB/s", 100 * r->of_roof, r->wrong);
}

static enum dpn_status kb_open(const char *path, int *fd)
{
    *fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    return *fd < 0 ? dpn_fail_errno(DPN_ERR_USAGE, errno, "%s: cannot be opened", path) : DPN_OK;
}

static enum dpn_status kb_write_json(const struct kb *kb, const char *path)
{
    struct dpn_json json;
    int fd;
    enum dpn_status status = kb_open(path, &fd);
    dpn_json_init(&json);
    for (size_t i = 0; status == DPN_OK && i < kb->n; i++) {
        const struct dpn_bench_case *c = &kb->cases[i];
        const struct kb_result *r = &kb->results[i];
        dpn_json_open_object(&json, NULL);
        dpn_json_string(&json, "op", c->op);
        dpn_json_string(&json, "shape", c->shape);
        dpn_json_string(&json, "algorithm", c->algorithm);
        dpn_json_string(&json, "pass", c->pass);
        dpn_json_string(&json, "isa", kb->kernels->isa);
        dpn_json_u64(&json, "threads", kb->threads);
        dpn_json_double(&json, "milliseconds", r->ns * 1e-6);
        dpn_json_double(&json, "milliseconds_q1", r->low_ns * 1e-6);
        dpn_json_double(&json, "milliseconds_q3", r->high_ns * 1e-6);
        dpn_json_double(&json, c->flops > 0 ? "gflops" : "gigabytes_per_second", r->rate);
        dpn_json_double(&json, "of_roof", r->of_roof);
        dpn_json_u64(&json, "wrong", r->wrong);
        dpn_json_close_object(&json);
        status = dpn_json_end_line(&json, fd, path);
    }
    dpn_json_free(&json);
    if (fd >= 0 && close(fd) != 0 && status == DPN_OK)
        status = dpn_fail_errno(DPN_ERR_SYSTEM, errno, "%s: cannot be closed", path);
    return status;
}

static enum dpn_status kb_write_csv(const struct kb *kb, const char *path)
{
    FILE *file = fopen(path, "w");
    if (!file) return dpn_fail_errno(DPN_ERR_USAGE, errno, "%s: cannot be opened", path);
    fprintf(file, "op,shape,algorithm,pass,milliseconds,q1,q3,rate,unit,of_roof,wrong\n");
    for (size_t i = 0; i < kb->n; i++) {
        const struct dpn_bench_case *c = &kb->cases[i];
        const struct kb_result *r = &kb->results[i];
        fprintf(file, "%s,\"%s\",%s,%s,%.6f,%.6f,%.6f,%.3f,%s,%.4f,%zu\n", c->op, c->shape, c->algorithm,
                c->pass, r->ns * 1e-6, r->low_ns * 1e-6, r->high_ns * 1e-6, r->rate,
                c->flops > 0 ? "GF/s" : "GB/s", r->of_roof, r->wrong);
    }
    int failed = ferror(file);
    if (fclose(file) != 0 || failed) return dpn_fail(DPN_ERR_SYSTEM, "%s: cannot be written", path);
    return DPN_OK;
}

/* ---- the command ---- */

static void kb_filter(struct kb *kb)
{
    size_t n = 0;
    for (size_t i = 0; i < kb->n; i++) {
        const struct dpn_bench_case *c = &kb->cases[i];
        char line[128];
        snprintf(line, sizeof line, "%s %s %s %s", c->op, c->shape, c->algorithm, c->pass);
        if (!strstr(line, kb->config->filter)) continue;
        kb->checks[n] = kb->checks[i];
        kb->cases[n++] = kb->cases[i];
    }
    kb->n = n;
}

static enum dpn_status kb_make_cases(struct kb *kb)
{
    size_t batch = dpn_option_given(kb->config, "batch") ? (size_t)kb->config->batch : KB_DEFAULT_BATCH;
    DPN_TRY(dpn_calloc(&kb->cases, DPN_BENCH_MAX_CASES, sizeof *kb->cases, "cases"));
    DPN_TRY(dpn_calloc(&kb->checks, DPN_BENCH_MAX_CASES, sizeof *kb->checks, "cases"));
    DPN_TRY(dpn_calloc(&kb->results, DPN_BENCH_MAX_CASES, sizeof *kb->results, "results"));
    kb->n = dpn_bench_cases(kb->kernels, batch, kb->cases, DPN_BENCH_MAX_CASES);
    dpn_bench_cases(kb->kernels, batch < KB_CHECK_BATCH ? batch : KB_CHECK_BATCH, kb->checks,
                    DPN_BENCH_MAX_CASES);
    for (size_t i = 0; i < kb->n; i++) {
        struct dpn_bench_case *c = &kb->checks[i];
        if (!c->conv && c->columns == 0 && c->n > KB_CHECK_ELEMS) c->n = KB_CHECK_ELEMS;
    }
    kb_filter(kb);
    if (kb->n == 0) return dpn_fail(DPN_ERR_USAGE, "--filter '%s' matches no case", kb->config->filter);
    for (size_t i = 0; i < kb->n; i++) {
        size_t a = dpn_bench_floats(&kb->cases[i], kb->threads),
               b = dpn_bench_floats(&kb->checks[i], kb->threads);
        if (a > kb->room.floats) kb->room.floats = a;
        if (b > kb->room.floats) kb->room.floats = b;
    }
    return dpn_data_check_fits("bench kernels", DPN_BENCH_BUFFERS * sizeof(float), kb->room.floats);
}

static enum dpn_status kb_body(void *arg, struct dpn_device *device)
{
    struct kb *kb = arg;
    if (device->member != 0) return DPN_OK;
    for (size_t i = 0; i < DPN_BENCH_BUFFERS; i++)
        DPN_TRY(dpn_arena_alloc(&kb->room.buffers[i], kb->room.floats * sizeof(float), "a case's buffers"));
    for (int i = 0; i < 2; i++) {
        DPN_TRY(dpn_arena_alloc(&kb->copy[i], KB_COPY_BYTES, "the copy that the roof is"));
        memset(kb->copy[i], i, KB_COPY_BYTES);
    }
    kb_fill(kb, &kb->cases[0], kb->room.floats);
    kb_roof(kb, 0, device->team);
    dpn_note("%s kernels | %zu thread(s) | roof %.0f GF/s, copying %.1f GB/s read and written",
             kb->kernels->isa, kb->threads, kb_roof(kb, 1, device->team), kb_roof(kb, 0, device->team));
    dpn_note("%-11s %-31s %-8s %-7s %9s %13s %8s %6s", "op", "shape", "by", "pass", "ms", "rate", "of roof",
             "wrong");
    for (size_t i = 0; i < kb->n; i++) {
        DPN_TRY(kb_measure(kb, i, device->team));
        DPN_TRY(kb_check(kb, i, device->team));
        if (i + 1 < kb->n) kb_fill(kb, &kb->cases[i + 1], dpn_bench_floats(&kb->cases[i + 1], kb->threads));
        kb_line(kb, i);
    }
    dpn_note(
        "GF/s count the multiplications of the definition: Winograd and pooled convolutions do fewer, so "
        "they may pass the roof. What fits into a cache may pass the roof of copying.");
    return DPN_OK;
}

static enum dpn_status kb_go(struct kb *kb)
{
    const struct dpn_config *config = kb->config;
    struct dpn_device_request request = {.smt = config->smt,
                                         .oversubscribe = config->oversubscribe,
                                         .threads_per_device = (size_t)config->threads_per_device};
    struct dpn_device_group group;
    struct dpn_topo *topo;
    DPN_TRY(dpn_unit_kind_parse(config->cpu_unit, &request.unit));
    DPN_TRY(dpn_topo_open(&topo, NULL, NULL));
    const char *devices = dpn_option_given(config, "devices") ? config->devices : "0";
    enum dpn_status status = dpn_device_group_open(&group, topo, config->kind, devices, &request,
                                                   kb->kernels);
    if (status == DPN_OK) {
        kb->threads = (size_t)group.devices[0].threads;
        status = kb_make_cases(kb);
        if (status == DPN_OK) status = dpn_device_group_run(&group, kb_body, kb);
        dpn_device_group_close(&group);
    }
    dpn_topo_close(topo);
    if (status == DPN_OK && *config->json) status = kb_write_json(kb, config->json);
    if (status == DPN_OK && *config->csv) status = kb_write_csv(kb, config->csv);
    return status;
}

enum dpn_status dpn_bench_kernels(const struct dpn_config *config, size_t *wrong)
{
    struct kb kb = {.config = config};
    DPN_TRY(dpn_kernels_select(config->isa, &kb.kernels));
    enum dpn_status status = kb_go(&kb);
    *wrong = kb.wrong;
    for (size_t i = 0; i < DPN_BENCH_BUFFERS; i++)
        dpn_arena_free(kb.room.buffers[i], kb.room.floats * sizeof(float));
    for (int i = 0; i < 2; i++) dpn_arena_free(kb.copy[i], KB_COPY_BYTES);
    free(kb.cases);
    free(kb.checks);
    free(kb.results);
    return status;
}
