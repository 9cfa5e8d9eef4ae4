/* NumPy's .npy form: what is read, and what is refused. */
#include "data/data.h"

#include "tests/data/npy_fixtures.h"

static void assert_not_npy(const char *folder, struct blob blob, const char *part)
{
    struct dpn_npy npy;
    memset(&npy, 0xee, sizeof(npy));
    const char *path = fixture_blob(folder, "bad.npy", blob, 0);
    if (dpn_npy_open(path, &npy) == DPN_OK) fail_msg("accepted, wanted \"%s\"", part);
    assert_error_has(part);
    assert_error_has(path);
    assert_null(npy.map);
    dpn_npy_close(&npy);
}

static void test_types_and_shapes(void **state)
{
    static const struct {
        const char *type, *shape, *text;
        char kind;
        size_t item_bytes, elems;
        unsigned rank;
    } cases[] = {
        {"|u1", "3, 4, 5, 6", "3x4x5x6", 'u', 1, 360, 4},
        {"|i1", "7,", "7", 'i', 1, 7, 1},
        {"<u2", "2, 3", "2x3", 'u', 2, 6, 2},
        {"<i2", "2,3,", "2x3", 'i', 2, 6, 2},
        {"<u4", " 2 , 3 ", "2x3", 'u', 4, 6, 2},
        {"<i4", "1, 1, 1, 1, 1, 1, 1, 9", "1x1x1x1x1x1x1x9", 'i', 4, 9, 8},
        {"<u8", "", "()", 'u', 8, 1, 0},
        {"<i8", "5,", "5", 'i', 8, 5, 1},
        {"<f4", "5, 2", "5x2", 'f', 4, 10, 2},
        {"<f8", "5, 2", "5x2", 'f', 8, 10, 2},
        {"|u1", "5, 0, 2", "5x0x2", 'u', 1, 0, 3},
    };
    static const uint8_t bytes[400] = {1, 2, 3};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct dpn_npy npy;
        char text[128];
        size_t n_bytes = cases[i].elems * cases[i].item_bytes;
        const char *path = write_npy(*state, "a.npy", cases[i].type, cases[i].shape, bytes, n_bytes);
        if (dpn_npy_open(path, &npy) != DPN_OK) fail_msg("%s", dpn_error_text());
        assert_int_equal(npy.kind, cases[i].kind);
        assert_int_equal(npy.item_bytes, cases[i].item_bytes);
        assert_int_equal(npy.elems, cases[i].elems);
        assert_int_equal(npy.rank, cases[i].rank);
        dpn_npy_shape_text(&npy, text, sizeof(text));
        assert_string_equal(text, cases[i].text);
        assert_memory_equal(npy.data, bytes, n_bytes);
        assert_int_equal((uintptr_t)npy.data % 64, 0);
        dpn_npy_close(&npy);
        assert_null(npy.map);
        dpn_npy_close(&npy);
    }
}

static void test_versions_and_headers(void **state)
{
    static const char *const headers[] = {
        "{'descr': '|u1', 'fortran_order': False, 'shape': (3,), }",
        "{'shape': (3,), 'fortran_order': False, 'descr': '|u1'}",
        "{\"descr\":\"|u1\",\"fortran_order\":False,\"shape\":(3,)}",
        "  {  'descr' : '<u1' , 'fortran_order' : False , 'shape' : ( 3 , ) , }  ",
    };
    for (unsigned version = 1; version <= 3; version++) {
        for (size_t i = 0; i < sizeof(headers) / sizeof(headers[0]); i++) {
            struct dpn_npy npy;
            struct blob blob = blob_npy_as(version, headers[i], i % 2 ? 1 : 16, "xyz", 3);
            const char *path = fixture_blob(*state, "a.npy", blob, 0);
            free(blob.bytes);
            if (dpn_npy_open(path, &npy) != DPN_OK) fail_msg("%s", dpn_error_text());
            assert_int_equal(npy.elems, 3);
            assert_memory_equal(npy.data, "xyz", 3);
            dpn_npy_close(&npy);
        }
    }
}

static void test_bad_headers(void **state)
{
    static const struct {
        const char *header, *part;
    } cases[] = {
        {"{'descr': '>f4', 'fortran_order': False, 'shape': (3,), }", "big-endian"},
        {"{'descr': '>i8', 'fortran_order': False, 'shape': (3,), }", "'>i8'"},
        {"{'descr': '|u1', 'fortran_order': True, 'shape': (3,), }", "Fortran"},
        {"{'descr': '|O', 'fortran_order': False, 'shape': (3,), }", "'|O'"},
        {"{'descr': '|b1', 'fortran_order': False, 'shape': (3,), }", "'|b1'"},
        {"{'descr': '<U3', 'fortran_order': False, 'shape': (3,), }", "'<U3'"},
        {"{'descr': '|S3', 'fortran_order': False, 'shape': (3,), }", "'|S3'"},
        {"{'descr': '<c8', 'fortran_order': False, 'shape': (3,), }", "'<c8'"},
        {"{'descr': '<f1', 'fortran_order': False, 'shape': (3,), }", "'<f1'"},
        {"{'descr': '<f16', 'fortran_order': False, 'shape': (3,), }", "'<f16'"},
        {"{'descr': '<i3', 'fortran_order': False, 'shape': (3,), }", "'<i3'"},
        {"{'descr': '|i4', 'fortran_order': False, 'shape': (3,), }", "'|i4'"},
        {"{'descr': 'u1', 'fortran_order': False, 'shape': (3,), }", "'u1'"},
        {"{'descr': '', 'fortran_order': False, 'shape': (3,), }", "''"},
        {"{'descr': [('a', '<i4')], 'fortran_order': False, 'shape': (3,), }", "structured"},
        {"{'descr': '|u1', 'fortran_order': 0, 'shape': (3,), }", "fortran_order"},
        {"{'descr': '|u1', 'fortran_order': False, 'shape': (3), }", "tuple"},
        {"{'descr': '|u1', 'fortran_order': False, 'shape': 3, }", "tuple"},
        {"{'descr': '|u1', 'fortran_order': False, 'shape': [3], }", "tuple"},
        {"{'descr': '|u1', 'fortran_order': False, 'shape': (3 4), }", "tuple"},
        {"{'descr': '|u1', 'fortran_order': False, 'shape': (-3,), }", "size"},
        {"{'descr': '|u1', 'fortran_order': False, 'shape': (0x3,), }", "tuple"},
        {"{'descr': '|u1', 'fortran_order': False, 'shape': (3", "size"},
        {"{'descr': '|u1', 'fortran_order': False, 'shape': (99999999999999999999,), }", "too large"},
        {"{'descr': '|u1', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,3), }", "8 dimensions"},
        {"{'descr': '|u1', 'fortran_order': False, }", "missing"},
        {"{'descr': '|u1', 'shape': (3,), }", "missing"},
        {"{'fortran_order': False, 'shape': (3,), }", "missing"},
        {"{}", "missing"},
        {"{'descr': '|u1', 'descr': '|u1', 'fortran_order': False, 'shape': (3,), }", "repeated"},
        {"{'descr': '|u1', 'fortran_order': False, 'shape': (3,), 'more': 1, }", "unknown"},
        {"{'descr': '|u1', 'fortran_order': False, 'shape': (3,), } x", "follows"},
        {"{'descr': '|u1' 'fortran_order': False, 'shape': (3,), }", "comma"},
        {"{'descr' '|u1', 'fortran_order': False, 'shape': (3,), }", "colon"},
        {"{'descr': '|u1, 'fortran_order': False, 'shape': (3,), }", "'|u1, '"},
        {"{'descr': '|u1", "no plain text"},
        {"{'de\\x73cr': '|u1', 'fortran_order': False, 'shape': (3,), }", "no plain text"},
        {"['descr', '|u1']", "dictionary"},
        {"", "dictionary"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct blob blob = blob_npy_as(1, cases[i].header, 64, "xyz", 3);
        assert_not_npy(*state, blob, cases[i].part);
        free(blob.bytes);
    }
}

/* Short, trailing, and products of sizes that do not fit a machine word. */
static void test_sizes(void **state)
{
    static const struct {
        const char *type, *shape, *part;
        size_t n_bytes;
    } cases[] = {
        {"|u1", "24, 2, 5", "239 bytes of elements, but shape 24x2x5 wants 240", 239},
        {"|u1", "24, 2, 5", "241 bytes of elements, but shape 24x2x5 wants 240", 241},
        {"<f4", "3,", "3 bytes of elements, but shape 3 wants 12", 3},
        {"|u1", "3, 0", "1 bytes of elements, but shape 3x0 wants 0", 1},
        {"|u1", "5,", "0 bytes of elements", 0},
        {"|u1", "4294967296, 4294967296", "wants more than", 0},
        {"<f8", "4611686018427387904,", "wants more than", 0},
        {"|u1", "18446744073709551615, 18446744073709551615, 0", "wants more than", 0},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct blob blob = blob_npy(cases[i].type, cases[i].shape, NULL, cases[i].n_bytes);
        assert_not_npy(*state, blob, cases[i].part);
        free(blob.bytes);
    }
}

static void test_other_files(void **state)
{
    struct dpn_npy npy;
    struct blob blob = blob_npy("|u1", "3,", "xyz", 3);
    assert_not_npy(*state, (struct blob){(uint8_t *)"", 0}, "is empty");
    assert_not_npy(*state, (struct blob){(uint8_t *)"<!DOCTYPE html><html>", 21}, "not in NumPy's");
    assert_not_npy(*state, (struct blob){(uint8_t *)"PK\3\4 and so on", 14}, "npz");
    blob.bytes[6] = 4;
    assert_not_npy(*state, blob, "version 4.0");
    blob.bytes[6] = 0;
    assert_not_npy(*state, blob, "version 0.0");
    blob.bytes[6] = blob.bytes[7] = 1;
    assert_not_npy(*state, blob, "version 1.1");
    blob.bytes[7] = 0;
    blob.bytes[8] = (uint8_t)(blob.n - 10 + 1);
    assert_not_npy(*state, blob, "122 bytes long in a file of 131");
    blob.bytes[9] = 0xff;
    assert_not_npy(*state, blob, "bad .npy header");
    blob.bytes[6] = 2;
    blob.bytes[11] = 0xff;
    assert_not_npy(*state, blob, "bad .npy header");
    free(blob.bytes);
    assert_int_equal(dpn_npy_open(fixture_folder(*state, "folder.npy"), &npy), DPN_ERR_INPUT);
    assert_error_has("is a folder");
    const char *fifo = fixture_path(*state, "fifo.npy");
    mkfifo(fifo, 0666);
    assert_int_equal(dpn_npy_open(fifo, &npy), DPN_ERR_INPUT);
    assert_error_has("is special");
    assert_int_equal(dpn_npy_open("/nonexistent/x.npy", &npy), DPN_ERR_INPUT);
    assert_error_has("/nonexistent/x.npy");
}

/* Every file that is cut or has one byte of its header changed is refused, or read within its bounds. */
static void test_damaged(void **state)
{
    static const uint8_t values[] = {0, '\'', '(', ')', ',', '}', '9', ' ', 0xff};
    size_t opened = 0;
    for (unsigned version = 1; version <= 2; version++) {
        struct blob good = blob_npy_as(version, "{'descr': '<i2', 'fortran_order': False, 'shape': (3, 2), }",
                                       64, NULL, 12);
        for (size_t n = 0; n < good.n; n++) assert_not_npy(*state, (struct blob){good.bytes, n}, "bad.npy");
        for (size_t at = 0; at < good.n - 12; at++) {
            for (size_t v = 0; v < sizeof(values); v++) {
                struct dpn_npy npy;
                uint8_t before = good.bytes[at];
                good.bytes[at] = values[v];
                const char *path = fixture_blob(*state, "bad.npy", good, 0);
                good.bytes[at] = before;
                if (dpn_npy_open(path, &npy) != DPN_OK) continue;
                opened++;
                assert_true(npy.elems * npy.item_bytes + (size_t)(npy.data - (uint8_t *)npy.map) == good.n);
                dpn_npy_close(&npy);
            }
        }
        free(good.bytes);
    }
    assert_true(opened > 0); /* blanks among blanks */
}

#define DATA_TEST(f) cmocka_unit_test_setup_teardown(f, fixture_setup, fixture_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        DATA_TEST(test_types_and_shapes), DATA_TEST(test_versions_and_headers),
        DATA_TEST(test_bad_headers),      DATA_TEST(test_sizes),
        DATA_TEST(test_other_files),      DATA_TEST(test_damaged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
