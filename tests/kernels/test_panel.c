/* Panel matrices: sizes, places, padding, and the way to PyTorch's layout and back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "kernels/kernels.h"

static void test_sizes(void **state)
{
    (void)state;
    assert_int_equal(dpn_panel_elems(784, 10), 784 * 16);
    assert_int_equal(dpn_panel_elems(784, 16), 784 * 16);
    assert_int_equal(dpn_panel_elems(784, 17), 784 * 32);
    assert_int_equal(dpn_panel_elems(784, 64), 784 * 64);
    assert_int_equal(dpn_panel_elems(784, 512), 784 * 512);
    assert_int_equal(dpn_panel_elems(5, 130), 5 * (64 + 64 + 16));
    assert_int_equal(dpn_panel_elems(0, 10), 0);
    assert_int_equal(dpn_panel_elems(7, 0), 0);
}

static void check_panel(size_t rows, size_t columns, size_t p, size_t want_offset, size_t want_stride)
{
    size_t offset = 1, stride = 1;
    dpn_panel(rows, columns, p, &offset, &stride);
    assert_int_equal(offset, want_offset);
    assert_int_equal(stride, want_stride);
}

static void test_places(void **state)
{
    (void)state;
    check_panel(784, 10, 0, 0, 16);
    check_panel(784, 512, 0, 0, 64);
    check_panel(784, 512, 7, 7 * 784 * 64, 64);
    check_panel(5, 130, 1, 5 * 64, 64);
    check_panel(5, 130, 2, 5 * 128, 16);
    check_panel(5, 97, 1, 5 * 64, 48);
}

static float *filled(size_t n, float value)
{
    float *memory = malloc(n * sizeof(float));
    assert_non_null(memory);
    for (size_t i = 0; i < n; i++) memory[i] = value;
    return memory;
}

/* Every place of the panel matrix holds PyTorch's [column][channel][tap], or 0; and unpacking gives it back.
 * */
static void check_round_trip(size_t taps, size_t channels, size_t cstride, size_t columns)
{
    const struct dpn_panel_rows layout = {taps, channels, cstride};
    const size_t rows = taps * cstride, n = taps * channels * columns,
                 stored = dpn_panel_elems(rows, columns);
    float *weight = filled(n, 0), *back = filled(n + 1, -1), *panel = filled(stored + 1, -1);
    for (size_t i = 0; i < n; i++) weight[i] = (float)(i + 1);

    dpn_panel_pack(&layout, columns, weight, panel);
    size_t seen = 0;
    for (size_t column = 0; column < columns; column += DPN_PANEL_COLUMNS) {
        size_t offset, stride;
        dpn_panel(rows, columns, column / DPN_PANEL_COLUMNS, &offset, &stride);
        assert_int_equal(offset, seen);
        seen += rows * stride;
        for (size_t r = 0; r < rows; r++) {
            const size_t tap = r / cstride, channel = r % cstride;
            for (size_t c = 0; c < stride; c++) {
                const int there = column + c < columns && channel < channels;
                const float want = there ? weight[((column + c) * channels + channel) * taps + tap] : 0;
                assert_true(panel[offset + r * stride + c] == want);
            }
        }
    }
    assert_int_equal(seen, stored);
    assert_true(panel[stored] == -1);
    dpn_panel_unpack(&layout, columns, panel, back);
    assert_memory_equal(back, weight, n * sizeof(float));
    assert_true(back[n] == -1);
    free(weight);
    free(back);
    free(panel);
}

static void test_round_trips(void **state)
{
    (void)state;
    static const size_t columns[] = {1, 10, 16, 17, 63, 64, 65, 100, 128, 130, 512};
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) {
        check_round_trip(1, 1, 1, columns[i]);
        check_round_trip(1, 37, 37, columns[i]); /* a dense layer */
        check_round_trip(9, 3, 3, columns[i]);   /* a convolution of an image */
        check_round_trip(9, 32, 32, columns[i]); /* and a later one */
        check_round_trip(25, 6, 16, columns[i]); /* a dense layer after 5x5 pixels of 6 channels */
        check_round_trip(1, 5, 16, columns[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_round_trips),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
