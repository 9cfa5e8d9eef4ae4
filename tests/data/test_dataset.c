/* dpn_dataset_open: where a set is found, what is refused, and how pixels are normalised. */
#include "data/data.h"

#include <limits.h>
#include <math.h>

#include "tests/data/fixtures.h"

/* A set of floats, to see that they are taken as they are. */
static enum dpn_status floats_open(const struct dpn_dataset_class *cls, const char *argument,
                                   const char *root, struct dpn_dataset *dataset)
{
    static const float pixels[2] = {-1, 1};
    static const int32_t labels[1] = {0};
    (void)cls;
    (void)argument;
    (void)root;
    dataset->path = strdup("");
    dataset->channels = 2;
    dataset->height = dataset->width = 1;
    dataset->classes = 1;
    dataset->train = (struct dpn_samples){.n = 1, .f32 = pixels, .labels = labels};
    return dataset->path ? DPN_OK : DPN_ERR_NOMEM;
}

static void floats_close(struct dpn_dataset *dataset)
{
    (void)dataset;
}

static const struct dpn_dataset_class floats_class = {.name = "floats",
                                                      .summary = "for this suite",
                                                      .open = floats_open,
                                                      .close = floats_close};

extern const struct dpn_dataset_class dpn_dataset_fashion_mnist, dpn_dataset_mnist, dpn_dataset_synthetic;
const struct dpn_dataset_class *const dpn_dataset_classes[] = {&dpn_dataset_fashion_mnist, &dpn_dataset_mnist,
                                                               &dpn_dataset_synthetic, &floats_class, NULL};

/* ---- helpers ---- */

static const uint8_t ten_labels[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};

/* N images of 4x3 and their labels in FOLDER, which is made; PART "train" or "t10k". */
static void write_part(const char *folder, const char *part, uint32_t n, int gzip)
{
    char name[64];
    struct blob images = blob_images(n, 4, 3), labels = blob_labels(ten_labels, n);
    snprintf(name, sizeof(name), "%s-images-idx3-ubyte%s", part, gzip ? ".gz" : "");
    fixture_blob(folder, name, images, gzip);
    snprintf(name, sizeof(name), "%s-labels-idx1-ubyte%s", part, gzip ? ".gz" : "");
    fixture_blob(folder, name, labels, gzip);
    free(images.bytes);
    free(labels.bytes);
}

static enum dpn_status open_as(struct dpn_dataset *dataset, const char *root, const char *normalize,
                               const char *spec)
{
    struct dpn_dataset_request request = {.spec = spec, .data_root = root, .normalize = normalize};
    return dpn_dataset_open(&request, dataset);
}

static const char *mnist_in(const char *folder)
{
    static char spec[600];
    snprintf(spec, sizeof(spec), "mnist:%s", folder);
    return spec;
}

static void assert_opens(struct dpn_dataset *dataset, const char *root, const char *spec)
{
    if (open_as(dataset, root, "", spec) != DPN_OK) fail_msg("%s", dpn_error_text());
}

static void assert_refused(const char *root, const char *normalize, const char *spec, enum dpn_status want,
                           const char *part)
{
    struct dpn_dataset dataset;
    memset(&dataset, 0xee, sizeof(dataset));
    enum dpn_status status = open_as(&dataset, root, normalize, spec);
    if (status == DPN_OK) fail_msg("%s was accepted, wanted \"%s\"", spec, part);
    assert_int_equal(status, want);
    assert_error_has(part);
    assert_null(dataset.cls);
    dpn_dataset_close(&dataset);
}

/* Opens SPEC with ROOT and expects N training samples from FOLDER. */
static void assert_found(const char *root, const char *spec, const char *folder, size_t n)
{
    struct dpn_dataset dataset;
    char real[PATH_MAX];
    assert_non_null(realpath(folder, real));
    assert_opens(&dataset, root, spec);
    assert_string_equal(dataset.path, real);
    assert_int_equal(dataset.train.n, n);
    dpn_dataset_close(&dataset);
}

/* ---- what is read ---- */

static void test_reads_four_files(void **state)
{
    struct dpn_dataset dataset;
    struct blob images = blob_images(10, 4, 3);
    write_part(*state, "train", 10, 0);
    write_part(*state, "t10k", 3, 1);
    assert_opens(&dataset, "", mnist_in(*state));
    assert_ptr_equal(dataset.cls, &dpn_dataset_mnist);
    assert_string_equal(dataset.name, "mnist");
    assert_int_equal(dataset.real, 1);
    assert_int_equal(dataset.channels, 1);
    assert_int_equal(dataset.height, 4);
    assert_int_equal(dataset.width, 3);
    assert_int_equal(dataset.sample_elems, 12);
    assert_int_equal(dataset.classes, 10);
    assert_int_equal(dataset.train.n, 10);
    assert_int_equal(dataset.test.n, 3);
    assert_null(dataset.train.f32);
    assert_memory_equal(dataset.train.u8, images.bytes + 16, 120);
    for (int i = 0; i < 10; i++) assert_int_equal(dataset.train.labels[i], i);
    assert_int_equal(dataset.test.labels[2], 2);
    assert_int_equal(dataset.storage_bytes, 13 * (12 + 4));
    assert_true(dataset.read_ns > 0);
    dpn_dataset_close(&dataset);
    assert_null(dataset.cls);
    dpn_dataset_close(&dataset);
    free(images.bytes);
}

/* D01: the checksum is of the contents, however they are stored. */
static void test_crc_is_the_same_raw_and_gzip(void **state)
{
    struct blob images = blob_images(10, 4, 3), labels = blob_labels(ten_labels, 10),
                all = blob_join(images, labels);
    for (int gzip = 0; gzip < 2; gzip++) {
        struct dpn_dataset dataset;
        const char *folder = fixture_folder(*state, gzip ? "gzip" : "raw");
        write_part(folder, "train", 10, gzip);
        assert_opens(&dataset, "", mnist_in(folder));
        assert_int_equal(dataset.train.crc, crc32(0, all.bytes, (uInt)all.n));
        assert_memory_equal(dataset.train.u8, images.bytes + 16, 120);
        dpn_dataset_close(&dataset);
    }
    free(images.bytes);
    free(labels.bytes);
    free(all.bytes);
}

static void test_spellings_and_preference(void **state)
{
    const char *folder = *state;
    struct blob labels = blob_labels(ten_labels, 10);
    const char *const names[] = {"train-images.idx3-ubyte.gz", "train-images-idx3-ubyte.gz",
                                 "train-images.idx3-ubyte", "train-images-idx3-ubyte"};
    fixture_blob(folder, "train-labels.idx1-ubyte", labels, 0);
    for (uint32_t i = 0; i < 4; i++) { /* each is preferred to the ones before it */
        struct dpn_dataset dataset;
        struct blob images = blob_images(10, 4, 3 + i);
        fixture_blob(folder, names[i], images, i < 2);
        free(images.bytes);
        assert_opens(&dataset, "", mnist_in(folder));
        assert_int_equal(dataset.width, 3 + i);
        dpn_dataset_close(&dataset);
    }
    /* Only that one: a bad raw file is not made up for by the good gzip beside it. */
    fixture_write(fixture_path(folder, names[3]), "<html>", 6);
    assert_refused("", "", mnist_in(folder), DPN_ERR_INPUT, "3c68746d");
    assert_int_equal(unlink(fixture_path(folder, names[3])), 0);
    assert_int_equal(symlink("nowhere", fixture_path(folder, names[3])), 0);
    assert_refused("", "", mnist_in(folder), DPN_ERR_INPUT, "train-images-idx3-ubyte: cannot open");
    free(labels.bytes);
}

/* ---- what is refused ---- */

/* D08 */
static void test_counts_that_differ(void **state)
{
    struct blob images = blob_images(10, 4, 3), labels = blob_labels(ten_labels, 6);
    fixture_blob(*state, "train-images-idx3-ubyte", images, 0);
    fixture_blob(*state, "train-labels-idx1-ubyte.gz", labels, 1);
    assert_refused("", "", mnist_in(*state), DPN_ERR_INPUT, "10 images");
    assert_error_has("6 labels");
    assert_error_has("train-labels-idx1-ubyte.gz");
    free(images.bytes);
    free(labels.bytes);
}

/* D10 */
static void test_labels_out_of_range(void **state)
{
    static const struct {
        uint8_t labels[3];
        const char *want;
    } cases[] = {{{0, 1, 10}, "label 10 at index 2"},
                 {{255, 0, 0}, "label 255 at index 0"},
                 {{1, 26, 5}, "label 26"}};
    write_part(*state, "train", 3, 0);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct blob labels = blob_labels(cases[i].labels, 3);
        fixture_blob(*state, "train-labels-idx1-ubyte", labels, 0);
        assert_refused("", "", mnist_in(*state), DPN_ERR_INPUT, cases[i].want);
        assert_error_has("0 to 9");
        assert_error_has("train-labels-idx1-ubyte");
        free(labels.bytes);
    }
}

static void test_parts_missing(void **state)
{
    const char *folder = *state;
    struct blob images = blob_images(2, 4, 3), other = blob_images(2, 3, 4);
    struct dpn_dataset dataset;
    write_part(folder, "train", 10, 0);
    assert_opens(&dataset, "", mnist_in(folder)); /* no test part at all */
    assert_int_equal(dataset.test.n, 0);
    assert_null(dataset.test.u8);
    dpn_dataset_close(&dataset);

    fixture_blob(folder, "t10k-images-idx3-ubyte", images, 0);
    assert_refused("", "", mnist_in(folder), DPN_ERR_INPUT, "no t10k-labels-idx1-ubyte");
    write_part(folder, "t10k", 2, 0);
    fixture_blob(folder, "t10k-images-idx3-ubyte", other, 0);
    assert_refused("", "", mnist_in(folder), DPN_ERR_INPUT, "3 x 4");
    assert_error_has("4 x 3");
    unlink(fixture_path(folder, "t10k-images-idx3-ubyte"));
    assert_refused("", "", mnist_in(folder), DPN_ERR_INPUT, "no t10k-images-idx3-ubyte");
    unlink(fixture_path(folder, "train-labels-idx1-ubyte"));
    assert_refused("", "", mnist_in(folder), DPN_ERR_INPUT, "no train-labels-idx1-ubyte");
    write_part(folder, "train", 10, 0);
    unlink(fixture_path(folder, "train-images-idx3-ubyte"));
    assert_refused("", "", mnist_in(folder), DPN_ERR_INPUT, "no train-images-idx3-ubyte");
    fixture_folder(folder, "train-images-idx3-ubyte");
    assert_refused("", "", mnist_in(folder), DPN_ERR_INPUT, "train-images-idx3-ubyte: is a folder");
    free(images.bytes);
    free(other.bytes);
}

static void test_names(void **state)
{
    (void)state;
    assert_refused("", "", "mnits", DPN_ERR_USAGE, "mnits");
    assert_error_has("fashion-mnist, mnist, synthetic");
    assert_error_has("did you mean 'mnist'");
    assert_refused("", "", "imagenet:/tmp", DPN_ERR_USAGE, "imagenet");
    assert_refused("", "", "mnist:", DPN_ERR_USAGE, "mnist:");
    assert_refused("", "", "synthetic:", DPN_ERR_USAGE, "synthetic:");
    assert_refused("", "", ":/tmp", DPN_ERR_USAGE, "--data");
}

/* ---- where a set is found ---- */

static void test_folder_given(void **state)
{
    const char *torch = fixture_folder(*state, "MNIST/raw"), *direct = fixture_folder(*state, "direct");
    write_part(torch, "train", 3, 0);
    write_part(direct, "train", 2, 0);
    assert_found("", mnist_in(*state), torch, 3);
    assert_found("", mnist_in(direct), direct, 2);
    assert_found("/nowhere", mnist_in(direct), direct, 2); /* before --data-root */

    const char *empty = fixture_folder(*state, "empty");
    setenv("DPNODE_DATA", *state, 1); /* must not be looked at */
    assert_refused("", "", mnist_in(empty), DPN_ERR_INPUT, empty);
    assert_error_has("MNIST/raw (no such folder)");
    assert_error_has("t10k-labels-idx1-ubyte");
    assert_refused("", "", mnist_in(fixture_path(direct, "train-images-idx3-ubyte")), DPN_ERR_INPUT,
                   "not a folder");
    unsetenv("DPNODE_DATA");
}

static void test_roots(void **state)
{
    const char *roots[] = {fixture_folder(*state, "root"), fixture_folder(*state, "environment")};
    const char *inside = fixture_folder(*state, "inside/data/sets/mnist");
    write_part(inside, "train", 4, 0);
    assert_int_equal(chdir(fixture_path(*state, "inside")), 0);
    assert_found("", "mnist", inside, 4);

    for (int i = 1; i >= 0; i--) { /* the environment, then --data-root */
        const char *root = i ? "" : roots[0];
        if (i) setenv("DPNODE_DATA", roots[1], 1);
        if (i) assert_found(root, "mnist", inside, 4); /* nothing there: the next place */
        else
            assert_refused(root, "", "mnist", DPN_ERR_INPUT,
                           "MNIST/raw"); /* asked for by hand: the only place */
        write_part(roots[i], "train", 1, 0);
        assert_found(root, "mnist", roots[i], 1);
        const char *torch = fixture_folder(roots[i], "MNIST/raw");
        write_part(torch, "train", 2, 0);
        assert_found(root, "mnist", torch, 2);
        const char *named = fixture_folder(roots[i], "mnist");
        write_part(named, "train", 3, 0);
        assert_found(root, "mnist", named, 3);
    }
    unsetenv("DPNODE_DATA");
    write_part(fixture_folder(*state, "root/FashionMNIST/raw"), "train", 5, 0);
    assert_found(roots[0], "", fixture_path(*state, "root/FashionMNIST/raw"), 5);
    assert_int_equal(chdir(*state), 0);
    assert_refused("", "", "mnist", DPN_ERR_INPUT, "--data mnist: not found in ./data/sets/mnist");
    assert_error_has("./data/sets/MNIST/raw");
    assert_error_has("train-images-idx3-ubyte");
    assert_int_equal(chdir("/"), 0);
}

static void test_default_set(void **state)
{
    (void)state;
    struct dpn_dataset dataset;
    int debian = access(DPN_FASHION_MNIST_DEBIAN_DIR, F_OK) == 0;
    for (int i = 0; i < 2; i++) {
        assert_opens(&dataset, "", i ? "auto" : "");
        assert_string_equal(dataset.name, debian ? "fashion-mnist" : "synthetic");
        assert_string_equal(dataset.path, debian ? DPN_FASHION_MNIST_DEBIAN_DIR : "");
        assert_int_equal(dataset.real, debian);
        dpn_dataset_close(&dataset);
    }
}

/* D12: the two sets of the same file names differ in what a run prints. */
static void test_real_sets(void **state)
{
    (void)state;
    const char *shared = getenv("DPNODE_SHARED");
    if (!shared || access(fixture_path(shared, "data/mnist"), F_OK) != 0 ||
        access(DPN_FASHION_MNIST_DEBIAN_DIR, F_OK) != 0) {
        print_message("SKIP: needs Debian's dataset-fashion-mnist and $DPNODE_SHARED/data/mnist\n");
        skip();
    }
    struct dpn_dataset mnist, fashion;
    assert_opens(&mnist, fixture_path(shared, "data"), "mnist");
    assert_opens(&fashion, "", "fashion-mnist:" DPN_FASHION_MNIST_DEBIAN_DIR);
    assert_int_equal(mnist.train.n, 60000);
    assert_int_equal(mnist.test.n, 10000);
    assert_int_equal(mnist.train.crc, 0x2705307c);
    assert_int_equal(mnist.test.crc, 0x481227ec);
    assert_int_equal(mnist.train.labels[0], 5);
    assert_int_equal(fashion.train.n, 60000);
    assert_int_equal(fashion.train.crc, 0xc5355358);
    assert_int_equal(fashion.test.crc, 0x137d213c);
    assert_int_equal(fashion.train.labels[0], 9);
    assert_string_equal(mnist.normalize, "mean 0.1307 / std 0.3081");
    assert_string_equal(fashion.normalize, "mean 0.2860 / std 0.3530");
    dpn_dataset_close(&fashion);
    dpn_dataset_close(&mnist);
}

/* ---- normalisation ---- */

static void assert_normalizes(const char *spec, const char *normalize, const char *text, size_t channel,
                              double raw, double want)
{
    struct dpn_dataset dataset;
    if (open_as(&dataset, "", normalize, spec) != DPN_OK) fail_msg("%s", dpn_error_text());
    assert_string_equal(dataset.normalize, text);
    double got = raw * (double)dataset.scale[channel] + (double)dataset.shift[channel];
    if (fabs(got - want) > 1e-6 * (1 + fabs(want)))
        fail_msg("%s %s: %g, wanted %g", spec, normalize, got, want);
    dpn_dataset_close(&dataset);
}

static void test_normalize(void **state)
{
    const char *colours = "synthetic:samples=1,test=0,shape=3x2x2", *thirds = "0,0.5,1/0.5,0.25,2";
    write_part(*state, "train", 1, 0);
    const char *grey = mnist_in(*state);
    assert_normalizes(grey, "", "mean 0.1307 / std 0.3081", 0, 255, (1 - 0.1307) / 0.3081);
    assert_normalizes(grey, "", "mean 0.1307 / std 0.3081", 0, 0, -0.1307 / 0.3081);
    assert_normalizes(grey, "none", "1/255", 0, 51, 0.2);
    assert_normalizes(grey, "0.5/0.25", "mean 0.5 / std 0.25", 0, 255, 2);
    assert_normalizes(grey, "-1e-1/2", "mean -1e-1 / std 2", 0, 0, 0.05);
    assert_normalizes(colours, "", "mean 0.5000 / std 0.2500", 2, 255, 2);
    assert_normalizes(colours, "0.5/1", "mean 0.5 / std 1", 2, 0, -0.5);
    assert_normalizes(colours, thirds, "mean 0,0.5,1 / std 0.5,0.25,2", 0, 255, 2);
    assert_normalizes(colours, thirds, "mean 0,0.5,1 / std 0.5,0.25,2", 1, 255, 2);
    assert_normalizes(colours, thirds, "mean 0,0.5,1 / std 0.5,0.25,2", 2, 0, -0.5);
    assert_normalizes("floats", "", "as is", 1, 0.75, 0.75);
    assert_normalizes("floats", "none", "as is", 1, 0.75, 0.75);
    assert_normalizes("floats", "1,2/4,8", "mean 1,2 / std 4,8", 1, 10, 1);
}

static void test_normalize_refusals(void **state)
{
    const char *const bad[] = {"nonne",   "0.5",     "/",        "0.5/",      "/0.5",    "0.5/0",   "0.5/-1",
                               "0,5/1",   "0.5/1/2", "0.5/nan",  "inf/1",     "0.5/0x1", "0.5 /1",  "0.5/1,",
                               "0.5/1,1", "1,1/1,1", "0/1e-300", "1e9/1e-35", "1e400/1", "0.5;0.5", " none"};
    write_part(*state, "train", 1, 0);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_refused("", bad[i], mnist_in(*state), DPN_ERR_USAGE, "--normalize");
    assert_refused("", "0,0/1,1", "synthetic:samples=1,test=0,shape=3x2x2", DPN_ERR_USAGE, "3 channels");
}

#define DATA_TEST(f) cmocka_unit_test_setup_teardown(f, fixture_setup, fixture_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        DATA_TEST(test_reads_four_files),
        DATA_TEST(test_crc_is_the_same_raw_and_gzip),
        DATA_TEST(test_spellings_and_preference),
        DATA_TEST(test_counts_that_differ),
        DATA_TEST(test_labels_out_of_range),
        DATA_TEST(test_parts_missing),
        cmocka_unit_test(test_names),
        DATA_TEST(test_folder_given),
        DATA_TEST(test_roots),
        cmocka_unit_test(test_default_set),
        cmocka_unit_test(test_real_sets),
        DATA_TEST(test_normalize),
        DATA_TEST(test_normalize_refusals),
    };
    unsetenv("DPNODE_DATA");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
