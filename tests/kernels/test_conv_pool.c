/* Convolutions that pool: the same bits as the convolution followed by the pooling, all passes, every
 * instruction set, any cut. Backward sums run in another order, but these inputs' are exact. */
#include "tests/kernels/conv_truth.h"
#include "tests/kernels/tables.h"

enum { N_TABLES = 4, POOL_GUARD = 48 };
static const char *const isa_names[N_TABLES] = {"ref", "baseline", "avx2", "avx512"};
static const struct dpn_kernels *tables[N_TABLES];

/* A pooled convolution, the same without its pooling, and the pooling. */
struct pair {
    struct dpn_conv fused, plain;
    struct dpn_pool pool;
};

static struct pair make_pair(const size_t *s, int model_input)
{
    struct pair pair = {.plain = make_conv(s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7], s[8], 0)};
    if (model_input) make_input(&pair.plain);
    pair.fused = pair.plain;
    pair.fused.pool = s[9];
    pair.pool = (struct dpn_pool){
        .samples = s[0],
        .cstride = pair.plain.out_cstride,
        .in_height = pair.plain.out_height,
        .in_width = pair.plain.out_width,
        .in_stride = pair.plain.out_stride,
        .out_height = pair.plain.out_height / s[9],
        .out_width = pair.plain.out_width / s[9],
        .kernel = s[9],
        .stride = s[9],
    };
    /* Samples apart: whatever lies between stays. */
    pair.fused.out_stride = pair.pool.out_stride = pair.pool.out_height * pair.pool.out_width *
                                                       pair.pool.cstride +
                                                   16;
    assert_true(dpn_conv_may_pool(&pair.fused));
    return pair;
}

static void run(const struct dpn_kernels *table, struct dpn_conv_args args, int backwards)
{
    const struct dpn_conv_algorithm *algorithm = dpn_conv_choose(table, args.conv, args.pass);
    const size_t scratch_floats = algorithm->private_floats(args.conv, args.pass);
    const size_t shared_floats = algorithm->shared_floats(args.conv, args.pass);
    float *scratch = floats(scratch_floats), *shared = floats(shared_floats);
    assert_string_equal(algorithm->name, "direct");
    memset(shared, 0x7f, shared_floats * sizeof *shared);
    args.shared = shared;
    for (int phase = 0; phase < DPN_CONV_MAX_PHASES; phase++) {
        const size_t items = algorithm->items(args.conv, args.pass, phase);
        if (items == 0) break;
        memset(scratch, 0xff, scratch_floats * sizeof *scratch);
        if (!backwards) algorithm->run(&args, phase, 0, items, scratch);
        for (size_t item = items; backwards && item-- > 0;) algorithm->run(&args, phase, item, 1, scratch);
    }
    free(scratch);
    free(shared);
}

static void same(const char *isa, const char *what, size_t n, const float *a, const float *b)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof *a) != 0)
            fail_msg("%s: %s at %zu: %.9g, unfused %.9g", isa, what, i, (double)a[i], (double)b[i]);
}

/* Makes PLACE and the maxima and compares them with the pooling of what the plain convolution gives, Y. */
static void check_forward(const struct dpn_kernels *table, const struct pair *pair, const struct tensors *t,
                          size_t pooled, float *y, uint8_t *place, int relu)
{
    float *want = floats(pooled), *out = floats(pooled + POOL_GUARD);
    struct dpn_conv_args args = {.conv = &pair->plain,
                                 .pass = DPN_CONV_FORWARD,
                                 .x = {.x = t->x, .scale = t->scale, .shift = t->shift},
                                 .weights = t->weights,
                                 .bias = t->bias,
                                 .relu = relu,
                                 .y = y};
    run(table, args, 0);
    for (size_t i = 0; i < pooled; i++) want[i] = -5.0f;
    for (size_t i = 0; i < pooled + POOL_GUARD; i++) out[i] = -5.0f;
    memset(place, 77, pooled);
    table->pool(&pair->pool, 0, pair->pool.samples, y, want);
    args.conv = &pair->fused;
    args.y = out;
    args.place = place;
    for (int backwards = 0; backwards < 2; backwards++) {
        run(table, args, backwards);
        same(table->isa, "maximum", pooled, out, want);
        for (size_t i = 0; i < POOL_GUARD; i++) assert_true(out[pooled + i] == -5.0f);
    }
    free(want);
    free(out);
}

/* The mask and the sums of what lies before, as the plain convolution of DY has them; their blocks are
 * others. */
static void check_masked(const struct dpn_kernels *table, const struct pair *pair, const struct tensors *t,
                         const float *g, const float *dy, uint8_t *place)
{
    const size_t cstride = pair->plain.in_cstride, step = dpn_block_floats(cstride);
    float *dx[2] = {floats(t->in_floats), floats(t->in_floats)};
    double totals[2][2] = {{0}}, size = 0;
    for (int f = 0; f < 2; f++) {
        struct dpn_conv_args args = {.conv = f ? &pair->fused : &pair->plain,
                                     .pass = DPN_CONV_DATA,
                                     .weights = t->weights,
                                     .dx = dx[f],
                                     .dy.g = f ? g : dy,
                                     .place = place};
        const size_t blocks = dpn_conv_choose(table, args.conv, args.pass)->blocks(args.conv, args.pass);
        float *sums = floats(blocks * step);
        struct dpn_mask_sums mask = {.y = t->mask_y, .z = t->mask_z, .mean = t->mask_mean, .sums = sums};
        double pixels = 0;
        args.mask = &mask;
        run(table, args, f);
        for (size_t b = 0; b < blocks; b++) {
            pixels += (double)sums[b * step + 2 * cstride];
            for (size_t c = 0; c < pair->plain.in_channels; c++)
                for (int s = 0; s < 2; s++) totals[f][s] += (double)sums[b * step + (size_t)s * cstride + c];
        }
        assert_true(pixels == (double)(pair->plain.samples * t->in_pixels));
        free(sums);
    }
    same(table->isa, "masked dx", t->in_floats, dx[1], dx[0]);
    for (size_t i = 0; i < t->in_floats; i++) size += fabs((double)dx[0][i]);
    for (int s = 0; s < 2; s++)
        if (!(fabs(totals[0][s] - totals[1][s]) <= 1e-5 * (1 + size)))
            fail_msg("%s: sums %d are %g, not %g", table->isa, s, totals[1][s], totals[0][s]);
    free(dx[0]);
    free(dx[1]);
}

static void check_backward(const struct dpn_kernels *table, const struct pair *pair, const struct tensors *t,
                           size_t pooled, const float *y, uint8_t *place)
{
    float *p = floats(pooled), *g = floats(pooled), *dy = floats(t->out_floats);
    float *dx[2] = {floats(t->in_floats), floats(t->in_floats)};
    float *dweights[2] = {floats(t->weight_floats), floats(t->weight_floats)};
    struct dpn_conv_args args[2];
    table->pool(&pair->pool, 0, pair->pool.samples, y, p);
    for (size_t i = 0; i < pooled; i++) {
        const size_t in = i % pair->pool.out_stride, c = in % pair->pool.cstride;
        const int real = in < pair->pool.out_stride - 16 && c < pair->plain.out_channels;
        g[i] = real ? random_float() : 0.0f;
    }
    table->pool_grad(&pair->pool, 0, pair->pool.samples, y, p, g, dy);
    for (int pass = DPN_CONV_DATA; pass <= DPN_CONV_WEIGHTS; pass++) {
        for (int f = 0; f < 2; f++) {
            args[f] = (struct dpn_conv_args){.conv = f ? &pair->fused : &pair->plain,
                                             .pass = (enum dpn_conv_pass)pass,
                                             .x = {.x = t->x, .scale = t->scale, .shift = t->shift},
                                             .weights = t->weights,
                                             .dx = dx[f],
                                             .dweights = dweights[f]};
            args[f].dy.g = f ? g : dy;
            args[f].place = place;
            for (size_t i = 0; i < t->in_floats; i++) dx[f][i] = 0.5f;
            args[f].accumulate = pair->plain.samples % 2 != 0;
            run(table, args[f], f);
        }
        if (pass == DPN_CONV_DATA) same(table->isa, "dx", t->in_floats, dx[1], dx[0]);
        else same(table->isa, "dweights", t->weight_floats, dweights[1], dweights[0]);
    }
    if (pair->plain.in_cstride % 16 == 0) check_masked(table, pair, t, g, dy, place);
    for (int f = 0; f < 2; f++) {
        free(dx[f]);
        free(dweights[f]);
    }
    free(p);
    free(g);
    free(dy);
}

static void check(const size_t *shape, int relu, int model_input)
{
    const struct pair pair = make_pair(shape, model_input);
    struct tensors t = make_tensors(pair.plain, (struct options){0});
    const size_t pooled = pair.plain.samples * pair.fused.out_stride;
    float *y = floats(t.out_floats);
    uint8_t *place = malloc(pooled);
    assert_non_null(place);
    for (int i = 0; i < N_TABLES; i++) {
        if (!tables[i]) continue;
        check_forward(tables[i], &pair, &t, pooled, y, place, relu);
        for (size_t at = 0; at < pooled; at++) { /* nothing between samples; the first of equals */
            const size_t in = at % pair.fused.out_stride;
            assert_true(in >= pair.fused.out_stride - 16 ? place[at] == 77 : place[at] < shape[9] * shape[9]);
        }
        check_backward(tables[i], &pair, &t, pooled, y, place);
    }
    free(place);
    free(y);
    free_tensors(&t);
}

static const size_t shapes[][10] = {
    /* samples, in, out, height, width, kernel, kernel, stride, pad, pool */
    {5, 1, 6, 28, 28, 5, 5, 1, 2, 2},  {7, 6, 16, 14, 14, 5, 5, 1, 0, 2}, {3, 3, 20, 11, 13, 5, 5, 1, 2, 2},
    {2, 3, 48, 17, 19, 7, 7, 2, 3, 3}, {4, 5, 33, 9, 8, 1, 1, 1, 0, 2},   {1, 2, 7, 12, 31, 3, 5, 1, 1, 4},
    {6, 40, 17, 7, 6, 2, 2, 1, 1, 3},  {2, 64, 40, 8, 9, 3, 3, 2, 1, 2},  {9, 1, 16, 5, 5, 5, 5, 1, 2, 5},
};

static void test_same_bits_as_unfused(void **state)
{
    (void)state;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int relu = 0; relu < 2; relu++) check(shapes[s], relu, relu);
}

/* The first NaN of a window is its maximum; otherwise the first largest. */
static void test_place(void **state)
{
    (void)state;
    const size_t shape[10] = {1, 1, 1, 2, 4, 1, 1, 1, 0, 2};
    const struct pair pair = make_pair(shape, 1);
    const float x[2][8] = {{1, 3, -1, -2, 3, 2, -1, -1}, {5, 9, 1, NAN, NAN, NAN, NAN, 7}};
    const int want[2][2] = {{1, 0}, {2, 1}};
    float weights[16] = {1};
    for (int i = 0; i < N_TABLES; i++) {
        for (int k = 0; tables[i] && k < 2; k++) {
            float y[48];
            uint8_t place[48];
            run(tables[i],
                (struct dpn_conv_args){.conv = &pair.fused,
                                       .pass = DPN_CONV_FORWARD,
                                       .x = {.x = x[k]},
                                       .weights = weights,
                                       .y = y,
                                       .place = place},
                0);
            for (int w = 0; w < 2; w++) {
                const float at = x[k][(want[k][w] / 2) * 4 + 2 * w + want[k][w] % 2];
                assert_int_equal(place[16 * w], want[k][w]);
                assert_true(isnan(at) ? isnan(y[16 * w]) : y[16 * w] == at);
            }
        }
    }
}

/* A gradient that is not finite shows in dx where its patch lies, and nowhere else. */
static void test_not_finite(void **state)
{
    (void)state;
    const size_t shape[10] = {2, 3, 20, 11, 13, 5, 5, 1, 2, 2};
    const struct pair pair = make_pair(shape, 0);
    struct tensors t = make_tensors(pair.plain, (struct options){0});
    const size_t pooled = 2 * pair.fused.out_stride, width = pair.fused.in_width;
    float *g = floats(pooled), *dx = floats(t.in_floats);
    uint8_t *place = calloc(pooled, 1);
    const size_t y = 2, x = 3, channel = 7;
    const size_t at = (y * pair.pool.out_width + x) * pair.pool.cstride + channel;
    assert_non_null(place);
    for (size_t i = 0; i < pooled; i++) g[i] = 1.0f;
    for (size_t i = 0; i < t.weight_floats; i++) t.weights[i] = 1.0f;
    g[at] = INFINITY;
    place[at] = 3; /* output pixel (2*y + 1, 2*x + 1); pad 2: its patch begins one above and left of that */
    for (int i = 0; i < N_TABLES; i++) {
        if (!tables[i]) continue;
        struct dpn_conv_args args = {.conv = &pair.fused,
                                     .pass = DPN_CONV_DATA,
                                     .weights = t.weights,
                                     .dy.g = g,
                                     .place = place,
                                     .dx = dx};
        run(tables[i], args, 0);
        for (size_t p = 0; p < pair.fused.samples * t.in_pixels; p++) {
            const size_t row = p % t.in_pixels / width, column = p % width;
            const int hit = p < t.in_pixels && row >= 2 * y - 1 && row < 2 * y + 4 && column >= 2 * x - 1 &&
                            column < 2 * x + 4;
            const float *pixel = dx + p / t.in_pixels * pair.fused.in_stride +
                                 p % t.in_pixels * pair.fused.in_cstride;
            for (size_t c = 0; c < pair.fused.in_channels; c++)
                if (isfinite(pixel[c]) == hit)
                    fail_msg("%s: dx is %g at pixel %zu, channel %zu", tables[i]->isa, (double)pixel[c], p,
                             c);
        }
    }
    free(place);
    free(g);
    free(dx);
    free_tensors(&t);
}

static int setup(void **state)
{
    (void)state;
    select_tables(isa_names, N_TABLES, tables);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits_as_unfused),
        cmocka_unit_test(test_place),
        cmocka_unit_test(test_not_finite),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
