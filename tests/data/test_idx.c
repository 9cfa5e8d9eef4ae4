/* dpn_idx_read: what is read, and that every kind of bad file is refused with the values that are wrong. */
#include "data/data.h"

#include <errno.h>
#include <signal.h>

#include "tests/data/fixtures.h"

static void assert_refused(const char *path, uint32_t magic, enum dpn_status want, const char *part)
{
    struct dpn_idx idx;
    memset(&idx, 0xee, sizeof(idx));
    enum dpn_status status = magic ? dpn_idx_read(path, magic, &idx) : dpn_idx_read_any(path, &idx);
    if (status == DPN_OK) fail_msg("%s was accepted, wanted \"%s\"", path, part);
    assert_int_equal(status, want);
    assert_null(idx.bytes);
    assert_error_has(part);
    assert_error_has(path);
}

static void assert_reads(const char *path, uint32_t magic, struct blob plain, int gzip)
{
    struct dpn_idx idx;
    if (dpn_idx_read(path, magic, &idx) != DPN_OK) fail_msg("%s", dpn_error_text());
    size_t header = 4 + 4 * (size_t)idx.rank;
    assert_int_equal(idx.magic, magic);
    assert_int_equal(idx.gzip, gzip);
    assert_int_equal(idx.raw_bytes, plain.n);
    assert_memory_equal(idx.bytes, plain.bytes + header, plain.n - header);
    assert_int_equal(idx.crc, crc32(0, plain.bytes, (uInt)plain.n));
    free(idx.bytes);
}

/* D01: what the name says does not count. */
static void test_raw_and_gzip_are_told_by_content(void **state)
{
    struct blob images = blob_images(7, 5, 3);
    assert_reads(fixture_blob(*state, "raw", images, 0), DPN_IDX_IMAGES, images, 0);
    assert_reads(fixture_blob(*state, "gzip.gz", images, 1), DPN_IDX_IMAGES, images, 1);
    assert_reads(fixture_blob(*state, "gzip", images, 1), DPN_IDX_IMAGES, images, 1);
    assert_reads(fixture_blob(*state, "raw.gz", images, 0), DPN_IDX_IMAGES, images, 0);

    struct dpn_idx idx;
    assert_int_equal(dpn_idx_read(fixture_path(*state, "gzip"), DPN_IDX_IMAGES, &idx), DPN_OK);
    assert_int_equal(idx.rank, 3);
    assert_int_equal(idx.dims[0], 7);
    assert_int_equal(idx.dims[1], 5);
    assert_int_equal(idx.dims[2], 3);
    free(idx.bytes);
    free(images.bytes);
}

static void test_gzip_twice_is_named(void **state)
{
    struct blob images = blob_images(7, 5, 3), once = blob_gzip(images);
    const char *path = fixture_blob(*state, "twice", once, 1);
    assert_refused(path, DPN_IDX_IMAGES, DPN_ERR_INPUT, "1f8b0800");
    assert_error_has("twice");
    free(once.bytes);
    free(images.bytes);
}

/* The block grows from eight times the compressed size to the real size. */
static void test_gzip_that_expands_much(void **state)
{
    const uint32_t n = 3000000;
    struct blob labels = blob_idx(DPN_IDX_LABELS, &n, 1, n);
    memset(labels.bytes + 8, 7, n);
    labels.bytes[8 + n - 1] = 9;
    assert_reads(fixture_blob(*state, "zeros", labels, 1), DPN_IDX_LABELS, labels, 1);
    free(labels.bytes);
}

/* D03: a damaged byte is refused or, in bits that gzip does not use, harmless. */
static void test_gzip_damaged_anywhere(void **state)
{
    struct blob images = blob_images(20, 4, 4), packed = blob_gzip(images);
    const char *path = fixture_path(*state, "damaged");
    size_t refused = 0;
    for (size_t i = 10; i < packed.n; i++) { /* the ten bytes of the header hold a time and a system */
        packed.bytes[i] ^= 0x20;
        fixture_write(path, packed.bytes, packed.n);
        struct dpn_idx idx;
        if (dpn_idx_read(path, DPN_IDX_IMAGES, &idx) == DPN_OK) {
            assert_memory_equal(idx.bytes, images.bytes + 16, images.n - 16);
            assert_int_equal(idx.raw_bytes, images.n);
            free(idx.bytes);
        } else {
            refused++;
        }
        packed.bytes[i] ^= 0x20;
    }
    assert_in_range(refused, packed.n - 12, packed.n - 10);

    packed.bytes[packed.n / 2] ^= 1;
    fixture_write(path, packed.bytes, packed.n);
    assert_refused(path, DPN_IDX_IMAGES, DPN_ERR_INPUT, "damaged gzip");
    packed.bytes[packed.n / 2] ^= 1;
    packed.bytes[packed.n - 8] ^= 1;
    fixture_write(path, packed.bytes, packed.n);
    assert_refused(path, DPN_IDX_IMAGES, DPN_ERR_INPUT, "incorrect data check");
    packed.bytes[packed.n - 8] ^= 1;
    packed.bytes[packed.n - 1] ^= 1;
    fixture_write(path, packed.bytes, packed.n);
    assert_refused(path, DPN_IDX_IMAGES, DPN_ERR_INPUT, "incorrect length check");
    free(packed.bytes);
    free(images.bytes);
}

static void test_gzip_cut_off_anywhere(void **state)
{
    struct blob images = blob_images(20, 4, 4), packed = blob_gzip(images);
    const char *path = fixture_path(*state, "cut");
    for (size_t n = 2; n < packed.n; n++) {
        fixture_write(path, packed.bytes, n);
        assert_refused(path, DPN_IDX_IMAGES, DPN_ERR_INPUT, "cut off");
    }
    free(packed.bytes);
    free(images.bytes);
}

static void test_gzip_members_and_trailing_bytes(void **state)
{
    struct blob images = blob_images(20, 4, 4);
    struct blob front = {images.bytes, 100}, back = {images.bytes + 100, images.n - 100},
                none = {images.bytes, 0};
    struct blob first = blob_gzip(front), second = blob_gzip(back), empty = blob_gzip(none);
    struct blob both = blob_join(first, second), three = blob_join(both, empty);
    assert_reads(fixture_blob(*state, "both", both, 0), DPN_IDX_IMAGES, images, 1);
    assert_reads(fixture_blob(*state, "three", three, 0), DPN_IDX_IMAGES, images, 1);

    const char *const tails[] = {"x", "garbage", "\x1f", "\x1f\x8b", "\x1f\x8b\x08"};
    for (size_t i = 0; i < sizeof(tails) / sizeof(tails[0]); i++) {
        struct blob tail = blob_copy(tails[i], strlen(tails[i])), all = blob_join(three, tail);
        const char *want = tails[i][0] == '\x1f' ? "cut off" : "trailing bytes";
        assert_refused(fixture_blob(*state, "tail", all, 0), DPN_IDX_IMAGES, DPN_ERR_INPUT, want);
        free(all.bytes);
        free(tail.bytes);
    }
    struct blob zero = blob_copy("", 1), padded = blob_join(both, zero), again = blob_join(both, second);
    assert_refused(fixture_blob(*state, "zero", padded, 0), DPN_IDX_IMAGES, DPN_ERR_INPUT, "trailing bytes");
    assert_refused(fixture_blob(*state, "again", again, 0), DPN_IDX_IMAGES, DPN_ERR_INPUT, "found more");
    both.bytes[both.n - 8] ^= 1;
    assert_refused(fixture_blob(*state, "crc", both, 0), DPN_IDX_IMAGES, DPN_ERR_INPUT,
                   "incorrect data check");
    struct blob all[] = {images, first, second, empty, both, three, zero, padded, again};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) free(all[i].bytes);
}

/* D04 and D06: the magic found, the one wanted, and what it is a sign of. */
static void test_wrong_magic(void **state)
{
    static const struct {
        const char *bytes;
        uint32_t want;
        const char *found, *wanted, *hint;
    } cases[] = {
        {"<!DO", DPN_IDX_IMAGES, "magic 3c21444f", "wanted 00000803", "text"},
        {"\0\0\x08\x01", DPN_IDX_IMAGES, "magic 00000801", "wanted 00000803", "it holds labels, not images"},
        {"\0\0\x08\x03", DPN_IDX_LABELS, "magic 00000803", "wanted 00000801", "it holds images, not labels"},
        {"\x03\x08\0\0", DPN_IDX_IMAGES, "magic 03080000", "wanted 00000803", "little-endian"},
        {"\x01\x08\0\0", DPN_IDX_LABELS, "magic 01080000", "wanted 00000801", "little-endian"},
        {"\0\0\x0d\x03", DPN_IDX_IMAGES, "magic 00000d03", "wanted 00000803", "type 0d"},
        {"\0\0\x09\x01", DPN_IDX_LABELS, "magic 00000901", "wanted 00000801", "type 09"},
        {"\0\0\x08\x02", DPN_IDX_IMAGES, "magic 00000802", "wanted 00000803", "2 dimensions, wanted 3"},
        {"\0\0\x08\x05", 0, "magic 00000805", "wanted 00000801 to 00000804", "5 dimensions"},
        {"\0\0\x08\0", 0, "magic 00000800", "wanted 00000801 to 00000804", "0 dimensions"},
        {"\xff\xff\xff\xff", DPN_IDX_IMAGES, "magic ffffffff", "wanted 00000803", ""},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        for (int gzip = 0; gzip < 2; gzip++) {
            uint8_t bytes[64] = {0};
            memcpy(bytes, cases[i].bytes, 4);
            struct blob blob = {bytes, sizeof(bytes)};
            assert_refused(fixture_blob(*state, "magic", blob, gzip), cases[i].want, DPN_ERR_INPUT,
                           cases[i].found);
            assert_error_has(cases[i].wanted);
            assert_error_has(cases[i].hint);
        }
}

/* D06: sizes in the other byte order under a right magic. */
static void test_little_endian_sizes(void **state)
{
    const uint32_t dims[] = {1625948160, 469762048, 469762048}; /* 60000, 28, 28 */
    struct blob blob = blob_idx(DPN_IDX_IMAGES, dims, 3, 100);
    for (int gzip = 0; gzip < 2; gzip++) {
        assert_refused(fixture_blob(*state, "swapped", blob, gzip), DPN_IDX_IMAGES, DPN_ERR_INPUT,
                       "1625948160");
        assert_error_has("little-endian");
    }
    free(blob.bytes);
}

/* D07: sizes wanted and found. */
static void test_wrong_size(void **state)
{
    const uint32_t dims[] = {60000, 28, 28};
    struct blob five = blob_idx(DPN_IDX_IMAGES, dims, 3, (size_t)5 * 28 * 28);
    assert_refused(fixture_blob(*state, "five", five, 0), DPN_IDX_IMAGES, DPN_ERR_INPUT, "47040016");
    assert_error_has("3936");
    assert_refused(fixture_blob(*state, "five.gz", five, 1), DPN_IDX_IMAGES, DPN_ERR_INPUT, "47040000");
    free(five.bytes);

    struct blob images = blob_images(5, 28, 28), shorter = images, longer = blob_images(5, 28, 28);
    shorter.n--;
    longer.bytes = realloc(longer.bytes, ++longer.n);
    assert_non_null(longer.bytes);
    longer.bytes[longer.n - 1] = 1;
    assert_refused(fixture_blob(*state, "short", shorter, 0), DPN_IDX_IMAGES, DPN_ERR_INPUT, "3936");
    assert_error_has("3935");
    assert_refused(fixture_blob(*state, "long", longer, 0), DPN_IDX_IMAGES, DPN_ERR_INPUT, "3936");
    assert_error_has("3937");
    assert_refused(fixture_blob(*state, "short.gz", shorter, 1), DPN_IDX_IMAGES, DPN_ERR_INPUT,
                   "wanted 3936");
    assert_error_has("found 3935");
    assert_refused(fixture_blob(*state, "long.gz", longer, 1), DPN_IDX_IMAGES, DPN_ERR_INPUT, "wanted 3936");
    free(images.bytes);
    free(longer.bytes);
}

static void test_cut_off_header(void **state)
{
    struct blob images = blob_images(1, 2, 2);
    for (size_t n = 0; n < 16; n++) {
        struct blob start = {images.bytes, n};
        const char *want = n == 0 ? "empty" : n < 4 ? "no IDX header" : "header is cut off";
        assert_refused(fixture_blob(*state, "start", start, 0), DPN_IDX_IMAGES, DPN_ERR_INPUT, want);
        if (n > 0)
            assert_refused(fixture_blob(*state, "start.gz", start, 1), DPN_IDX_IMAGES, DPN_ERR_INPUT, want);
    }
    free(images.bytes);
}

/* Sizes of nothing, sizes that overflow, and sizes that the compressed bytes cannot hold. */
static void test_absurd_sizes(void **state)
{
    static const struct {
        uint32_t dims[3];
        const char *raw, *gzip;
    } cases[] = {
        {{0, 28, 28}, "0 x 28 x 28", "no images"},
        {{5, 0, 28}, "5 x 0 x 28", "no images"},
        {{UINT32_MAX, UINT32_MAX, UINT32_MAX}, "absurd", "absurd"},
        {{UINT32_MAX, UINT32_MAX, 1}, "absurd", "absurd"},
        {{1u << 31, 1u << 31, 4}, "absurd", "absurd"}, /* 2^64: 0 in 64 bits */
        {{UINT32_MAX, 256, 256}, "bytes", "cannot hold"},
        {{1000000, 28, 28}, "784000016", "cannot hold"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct blob blob = blob_idx(DPN_IDX_IMAGES, cases[i].dims, 3, 784);
        assert_refused(fixture_blob(*state, "raw", blob, 0), DPN_IDX_IMAGES, DPN_ERR_INPUT, cases[i].raw);
        assert_refused(fixture_blob(*state, "gz", blob, 1), DPN_IDX_IMAGES, DPN_ERR_INPUT, cases[i].gzip);
        free(blob.bytes);
    }
}

static void test_not_a_file(void **state)
{
    const char *dir = *state;
    alarm(20); /* a FIFO without a writer must not be waited for */
    assert_refused(dir, DPN_IDX_IMAGES, DPN_ERR_INPUT, "is a folder");
    assert_refused(fixture_path(dir, "absent"), DPN_IDX_IMAGES, DPN_ERR_INPUT, strerror(ENOENT));
    assert_int_equal(mkfifo(fixture_path(dir, "fifo"), 0600), 0);
    assert_refused(fixture_path(dir, "fifo"), DPN_IDX_IMAGES, DPN_ERR_INPUT, "not a regular file");
    assert_refused("/dev/null", DPN_IDX_IMAGES, DPN_ERR_INPUT, "not a regular file");
    alarm(0);
}

static void test_unreadable_file(void **state)
{
    if (geteuid() == 0) {
        print_message("SKIP: root may read everything\n");
        skip();
    }
    struct blob images = blob_images(1, 2, 2);
    const char *path = fixture_blob(*state, "secret", images, 0);
    free(images.bytes);
    assert_int_equal(chmod(path, 0), 0);
    assert_refused(path, DPN_IDX_IMAGES, DPN_ERR_INPUT, strerror(EACCES));
}

static void test_any_rank(void **state)
{
    const uint32_t dims[] = {2, 3, 4, 5};
    size_t elems = 1;
    for (unsigned rank = 1; rank <= 4; rank++) {
        elems *= dims[rank - 1];
        struct blob blob = blob_idx(0x800 | rank, dims, rank, elems);
        struct dpn_idx idx;
        assert_int_equal(dpn_idx_read_any(fixture_blob(*state, "any", blob, rank & 1), &idx), DPN_OK);
        assert_int_equal(idx.rank, rank);
        for (unsigned i = 0; i < rank; i++) assert_int_equal(idx.dims[i], dims[i]);
        assert_memory_equal(idx.bytes, blob.bytes + 4 + 4 * rank, elems);
        free(idx.bytes);
        free(blob.bytes);
    }
}

static void test_crc(void **state)
{
    (void)state;
    const char text[] = "123456789"; /* the check value of every table of CRCs */
    assert_int_equal(dpn_crc32(0, text, 9), 0xcbf43926);
    assert_int_equal(dpn_crc32(dpn_crc32(0, text, 4), text + 4, 5), 0xcbf43926);
    assert_int_equal(dpn_crc32(0xcbf43926, NULL, 0), 0xcbf43926);
    assert_int_equal(dpn_crc32_combine(dpn_crc32(0, text, 4), dpn_crc32(0, text + 4, 5), 5), 0xcbf43926);
    assert_int_equal(dpn_crc32_combine(0xcbf43926, 0, 0), 0xcbf43926);
}

/* D07: the sizes of the real files. */
static void test_real_files(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint32_t magic;
        size_t n, raw_bytes;
        uint32_t crc;
    } files[] = {
        {"train-images-idx3-ubyte.gz", DPN_IDX_IMAGES, 60000, 47040016, 0xb4f29f28},
        {"train-labels-idx1-ubyte.gz", DPN_IDX_LABELS, 60000, 60008, 0x741a4657},
        {"t10k-images-idx3-ubyte.gz", DPN_IDX_IMAGES, 10000, 7840016, 0x678fe0b1},
        {"t10k-labels-idx1-ubyte.gz", DPN_IDX_LABELS, 10000, 10008, 0x80142c1f},
    };
    if (access(DPN_FASHION_MNIST_DEBIAN_DIR, F_OK) != 0) {
        print_message("SKIP: Debian's package dataset-fashion-mnist is not installed\n");
        skip();
    }
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        struct dpn_idx idx;
        const char *path = fixture_path(DPN_FASHION_MNIST_DEBIAN_DIR, files[i].name);
        if (dpn_idx_read(path, files[i].magic, &idx) != DPN_OK) fail_msg("%s", dpn_error_text());
        assert_int_equal(idx.dims[0], files[i].n);
        assert_int_equal(idx.raw_bytes, files[i].raw_bytes);
        assert_int_equal(idx.crc, files[i].crc);
        free(idx.bytes);
    }
}

#define DATA_TEST(f) cmocka_unit_test_setup_teardown(f, fixture_setup, fixture_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        DATA_TEST(test_raw_and_gzip_are_told_by_content),
        DATA_TEST(test_gzip_twice_is_named),
        DATA_TEST(test_gzip_that_expands_much),
        DATA_TEST(test_gzip_damaged_anywhere),
        DATA_TEST(test_gzip_cut_off_anywhere),
        DATA_TEST(test_gzip_members_and_trailing_bytes),
        DATA_TEST(test_wrong_magic),
        DATA_TEST(test_little_endian_sizes),
        DATA_TEST(test_wrong_size),
        DATA_TEST(test_cut_off_header),
        DATA_TEST(test_absurd_sizes),
        DATA_TEST(test_not_a_file),
        DATA_TEST(test_unreadable_file),
        DATA_TEST(test_any_rank),
        cmocka_unit_test(test_crc),
        cmocka_unit_test(test_real_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
