/* Raw images to inputs: every table against a canvas of zeros with the image in its middle, bit by bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/kernels.h"
#include "tests/kernels/tables.h"

enum { N_TABLES = 4, MARGIN = 64, MAX_SIDE = 300, MAX_CHANNELS = 5, MAX_N = 3 * 64 * MAX_SIDE };

static const char *const isa_names[N_TABLES] = {"ref", "baseline", "avx2", "avx512"};
static const struct dpn_kernels *tables[N_TABLES]; /* NULL: this CPU cannot */
static uint8_t bytes[MAX_N];
static float floats[MAX_N], want[MAX_N + 1], got[MAX_N + 1];
static float canvas[MAX_CHANNELS][64 + 2 * MARGIN][MAX_SIDE + 2 * MARGIN];
static const float scale[MAX_CHANNELS] = {0.0157f, -0.0123f, 0.011f, 3.7f, 0.0f};
static const float shift[MAX_CHANNELS] = {-1.99f, 0.37f, -0.0f, 100.1f, 7.0f};

static const struct {
    size_t channels, height, width;
} shapes[] = {{1, 28, 28}, {3, 32, 32}, {1, 1, 1},   {3, 1, 1},  {3, 5, 7},   {2, 9, 17},  {4, 6, 5},
              {1, 3, 300}, {3, 2, 300}, {3, 64, 33}, {5, 4, 40}, {1, 17, 15}, {3, 1, 256}, {3, 3, 257}};

static void paint(const struct dpn_image *image)
{
    memset(canvas, 0, sizeof canvas);
    for (size_t c = 0; c < image->channels; c++)
        for (size_t i = 0; i < image->height; i++)
            for (size_t j = 0; j < image->width; j++) {
                const size_t at = (c * image->height + i) * image->width + j;
                canvas[c][MARGIN + i][MARGIN + j] = image->u8 != NULL ? (float)image->u8[at] : image->f32[at];
            }
}

static void expect(const struct dpn_image *image)
{
    size_t n = 0;
    for (size_t i = 0; i < image->height; i++)
        for (size_t j = 0; j < image->width; j++)
            for (size_t c = 0; c < image->channels; c++) {
                const long column = (long)(image->flip ? image->width - 1 - j : j);
                const float raw = canvas[c][(long)i + MARGIN + image->top][column + MARGIN + image->left];
                const float product = raw * scale[c];
                want[n++] = product + shift[c];
            }
    want[n] = 12345.0f;
}

static void check_tables(struct dpn_image *image)
{
    const size_t n = image->channels * image->height * image->width;
    expect(image);
    for (int t = 0; t < N_TABLES; t++) {
        if (tables[t] == NULL) continue;
        for (size_t i = 0; i <= n; i++) got[i] = 12345.0f;
        image->out = got;
        tables[t]->image(image);
        for (size_t i = 0; i <= n; i++)
            if (got[i] != want[i])
                fail_msg("%s: %zux%zux%zu at %ld, %ld, flip %d: value %zu is %g, not %g", isa_names[t],
                         image->channels, image->height, image->width, image->top, image->left, image->flip,
                         i, (double)got[i], (double)want[i]);
    }
}

static void test_windows(void **state)
{
    (void)state;
    static const long starts[] = {0, 1, -1, 4, -4, 15, -17, 64, -64};
    enum { N_STARTS = sizeof starts / sizeof *starts };
    for (size_t s = 0; s < 2 * (sizeof shapes / sizeof *shapes); s++) {
        struct dpn_image image = {.scale = scale, .shift = shift};
        image.channels = shapes[s / 2].channels;
        image.height = shapes[s / 2].height, image.width = shapes[s / 2].width;
        if (s % 2) image.f32 = floats;
        else image.u8 = bytes;
        paint(&image);
        for (size_t top = 0; top < N_STARTS; top++)
            for (size_t left = 0; left < N_STARTS; left++)
                for (image.flip = 0; image.flip < 2; image.flip++) {
                    image.top = starts[top], image.left = starts[left];
                    check_tables(&image);
                }
    }
}

/* Neither cropped nor mirrored, a value is what u8_to_f32 and f32_affine make of it. */
static void test_same_as_conversion(void **state)
{
    (void)state;
    for (int t = 0; t < N_TABLES; t++) {
        if (tables[t] == NULL) continue;
        struct dpn_image image = {.channels = 1, .height = 28, .width = 28, .u8 = bytes, .scale = scale};
        image.shift = shift, image.out = got;
        tables[t]->image(&image);
        tables[t]->u8_to_f32(784, bytes, scale[0], shift[0], want);
        assert_memory_equal(got, want, 784 * sizeof(float));
        image.u8 = NULL, image.f32 = floats;
        tables[t]->image(&image);
        tables[t]->f32_affine(784, floats, scale[0], shift[0], want);
        assert_memory_equal(got, want, 784 * sizeof(float));
    }
}

static int open_tables(void **state)
{
    (void)state;
    select_tables(isa_names, N_TABLES, tables);
    for (size_t i = 0; i < MAX_N; i++) {
        bytes[i] = (uint8_t)(i * 131 + i / 255);
        floats[i] = (float)(i * 7919 % 10007) / 313.0f - 15.0f;
    }
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_windows),
        cmocka_unit_test(test_same_as_conversion),
    };
    return cmocka_run_group_tests(tests, open_tables, NULL);
}
