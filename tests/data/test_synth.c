/* The generated set: sizes, that it can be learned, that it depends on nothing but (split, index),
 * refusals. */
#include "data/data.h"

#include <float.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

extern const struct dpn_dataset_class dpn_dataset_synthetic;
const struct dpn_dataset_class *const dpn_dataset_classes[] = {&dpn_dataset_synthetic, NULL};

static enum dpn_status open_spec(struct dpn_dataset *dataset, const char *spec)
{
    struct dpn_dataset_request request = {.spec = spec, .data_root = "", .normalize = ""};
    return dpn_dataset_open(&request, dataset);
}

static void assert_opens(struct dpn_dataset *dataset, const char *spec)
{
    if (open_spec(dataset, spec) != DPN_OK) fail_msg("%s: %s", spec, dpn_error_text());
}

static void test_defaults(void **state)
{
    (void)state;
    struct dpn_dataset dataset;
    assert_opens(&dataset, "synthetic");
    assert_string_equal(dataset.name, "synthetic");
    assert_string_equal(dataset.path, "");
    assert_int_equal(dataset.real, 0);
    assert_int_equal(dataset.train.n, 5000);
    assert_int_equal(dataset.test.n, 1000);
    assert_int_equal(dataset.channels, 3);
    assert_int_equal(dataset.height, 32);
    assert_int_equal(dataset.width, 32);
    assert_int_equal(dataset.classes, 10);
    assert_int_equal(dataset.storage_bytes, 6000 * (3072 + 4));
    assert_int_equal(dataset.train.crc, dpn_crc32(dpn_crc32(0, dataset.train.u8, (size_t)5000 * 3072),
                                                  dataset.train.labels, 5000 * 4));
    double sum = 0;
    for (size_t i = 0; i < (size_t)5000 * 3072; i++) sum += dataset.train.u8[i];
    assert_in_range((unsigned)(sum / (5000 * 3072)), 110, 145); /* the constants say 127.5 */
    dpn_dataset_close(&dataset);
}

static void test_shapes(void **state)
{
    (void)state;
    static const struct {
        const char *spec;
        size_t n, test, channels, height, width, classes;
    } cases[] = {
        {"synthetic:shape=28x27", 5000, 1000, 1, 28, 27, 10},
        {"synthetic:shape=5,samples=2", 2, 1000, 1, 1, 5, 10},
        {"synthetic:shape=1,samples=1,test=0,classes=2", 1, 0, 1, 1, 1, 2},
        {"synthetic:samples=3,test=1,shape=16x1x3,classes=65536", 3, 1, 16, 1, 3, 65536},
        {"synthetic:test=7,samples=9,shape=2x3x17", 9, 7, 2, 3, 17, 10},
        {"synthetic:samples=1,test=0,shape=1x1x65536", 1, 0, 1, 1, 65536, 10},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct dpn_dataset dataset;
        assert_opens(&dataset, cases[i].spec);
        assert_int_equal(dataset.train.n, cases[i].n);
        assert_int_equal(dataset.test.n, cases[i].test);
        assert_int_equal(dataset.channels, cases[i].channels);
        assert_int_equal(dataset.height, cases[i].height);
        assert_int_equal(dataset.width, cases[i].width);
        assert_int_equal(dataset.classes, cases[i].classes);
        assert_int_equal(dataset.sample_elems, cases[i].channels * cases[i].height * cases[i].width);
        dpn_dataset_close(&dataset);
    }
}

/* A longer set starts with the shorter one; the splits differ; a second opening gives the same. */
static void test_depends_on_split_and_index_alone(void **state)
{
    (void)state;
    struct dpn_dataset less, more, again;
    assert_opens(&less, "synthetic:samples=30,test=30,shape=3x5x5");
    assert_opens(&more, "synthetic:samples=50,test=40,shape=3x5x5");
    assert_opens(&again, "synthetic:samples=30,test=30,shape=3x5x5");
    assert_memory_equal(less.train.u8, more.train.u8, 30 * 75);
    assert_memory_equal(less.train.labels, more.train.labels, 30 * sizeof(int32_t));
    assert_memory_equal(less.test.u8, more.test.u8, 30 * 75);
    assert_int_equal(less.train.crc, again.train.crc);
    assert_int_equal(less.test.crc, again.test.crc);
    for (size_t i = 0; i < 30; i++) /* also where the labels agree */
        assert_memory_not_equal(less.train.u8 + i * 75, less.test.u8 + i * 75, 75);
    assert_memory_not_equal(less.train.labels, less.test.labels, 30 * sizeof(int32_t));
    assert_memory_not_equal(less.train.u8, less.train.u8 + 75, 75);
    dpn_dataset_close(&less);
    dpn_dataset_close(&more);
    dpn_dataset_close(&again);
}

static void test_labels_are_balanced_and_mixed(void **state)
{
    (void)state;
    struct dpn_dataset dataset;
    unsigned counts[7] = {0}, in_order = 0;
    assert_opens(&dataset, "synthetic:samples=703,test=0,shape=2,classes=7");
    for (size_t i = 0; i < 703; i++) {
        assert_in_range(dataset.train.labels[i], 0, 6);
        counts[dataset.train.labels[i]]++;
        in_order += i > 0 && dataset.train.labels[i] == (dataset.train.labels[i - 1] + 1) % 7;
    }
    for (int label = 0; label < 7; label++) assert_in_range(counts[label], 100, 101);
    assert_in_range(in_order, 50, 170); /* a seventh of the pairs */
    dpn_dataset_close(&dataset);
}

/* The class whose mean training image is nearest to IMAGE. */
static int nearest_class(const double *means, const uint8_t *image, size_t elems, int classes)
{
    int best = 0;
    double least = DBL_MAX;
    for (int label = 0; label < classes; label++) {
        double distance = 0;
        for (size_t i = 0; i < elems; i++)
            distance += (image[i] - means[(size_t)label * elems + i]) *
                        (image[i] - means[(size_t)label * elems + i]);
        if (distance < least) {
            least = distance;
            best = label;
        }
    }
    return best;
}

/* What the training part teaches holds for the test part; noise keeps samples of a class apart. */
static void test_can_be_learned(void **state)
{
    (void)state;
    enum { N = 400, TEST = 200, ELEMS = 64, CLASSES = 10 };
    struct dpn_dataset dataset;
    double *means = calloc(CLASSES * ELEMS, sizeof(*means));
    assert_non_null(means);
    assert_opens(&dataset, "synthetic:samples=400,test=200,shape=8x8");
    for (size_t n = 0; n < N; n++)
        for (size_t i = 0; i < ELEMS; i++)
            means[(size_t)dataset.train.labels[n] * ELEMS + i] += dataset.train.u8[n * ELEMS + i] * CLASSES /
                                                                  (double)N;
    unsigned right = 0;
    for (size_t n = 0; n < TEST; n++)
        right += nearest_class(means, dataset.test.u8 + n * ELEMS, ELEMS, CLASSES) == dataset.test.labels[n];
    assert_in_range(right, 190, TEST);
    free(means);
    dpn_dataset_close(&dataset);
}

static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        const char *spec, *part;
    } cases[] = {
        {"synthetic:sample=5", "did you mean 'samples'"},
        {"synthetic:size=5", "samples, test, shape, classes"},
        {"synthetic:samples", "samples"},
        {"synthetic:samples=", "samples"},
        {"synthetic:samples=0", "'0'"},
        {"synthetic:samples=-1", "'-1'"},
        {"synthetic:samples=1e3", "'1e3'"},
        {"synthetic:samples=4294967296", "4294967296"},
        {"synthetic:samples=5,samples=6", "twice"},
        {"synthetic:samples=5,,test=1", "synthetic"},
        {"synthetic:test=x", "'x'"},
        {"synthetic:classes=1", "'1'"},
        {"synthetic:classes=65537", "65537"},
        {"synthetic:shape=0x32x32", "'0'"},
        {"synthetic:shape=17x32x32", "'17'"},
        {"synthetic:shape=3x32x", "''"},
        {"synthetic:shape=x", "''"},
        {"synthetic:shape=3x32x32x1", "3x32x32x1"},
        {"synthetic:shape=3X32X32", "3X32X32"},
        {"synthetic:shape=65537", "65537"},
        {"synthetic:/some/folder", "/some/folder"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct dpn_dataset dataset;
        enum dpn_status status = open_spec(&dataset, cases[i].spec);
        if (status == DPN_OK) fail_msg("%s was accepted", cases[i].spec);
        assert_int_equal(status, DPN_ERR_USAGE);
        if (!strstr(dpn_error_text(), cases[i].part))
            fail_msg("no %s in \"%s\"", cases[i].part, dpn_error_text());
        assert_non_null(strstr(dpn_error_text(), "--data"));
    }
}

/* More than the machine has is refused at once, not killed later. */
static void test_too_large(void **state)
{
    (void)state;
    struct dpn_dataset dataset;
    const char *const specs[] = {"synthetic:samples=4294967295,shape=16x65536x65536",
                                 "synthetic:samples=1,test=0,shape=16x65536x65536,classes=65536",
                                 "synthetic:samples=1,test=0,shape=16x4x65536,classes=65536"};
    for (size_t i = 0; i < sizeof(specs) / sizeof(specs[0]); i++) {
        if (i == 2 && dpn_data_check_fits("", 65536 * 64, 65536) == DPN_OK) break; /* a machine of 256 GiB */
        assert_int_equal(open_spec(&dataset, specs[i]), DPN_ERR_INPUT);
        assert_non_null(strstr(dpn_error_text(), "GB"));
    }
    assert_int_equal(dpn_data_check_fits("", UINT64_MAX, UINT64_MAX), DPN_ERR_INPUT);
    assert_int_equal(dpn_data_check_fits("", 1, 1 << 20), DPN_OK);
    assert_int_equal(dpn_data_check_fits("", 0, UINT64_MAX), DPN_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_depends_on_split_and_index_alone),
        cmocka_unit_test(test_labels_are_balanced_and_mixed),
        cmocka_unit_test(test_can_be_learned),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_too_large),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
