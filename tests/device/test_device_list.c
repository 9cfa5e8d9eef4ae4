/* What --kind, --devices, --threads-per-device and --oversubscribe make of described machines. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "device/device.h"

/* ---- stand-ins ---- */

extern const struct dpn_device_class dpn_device_cpu;

static enum dpn_status no_hardware(void)
{
    return dpn_fail(DPN_DECLINED, "no such hardware here");
}

static const struct dpn_device_class device_absent = {.name = "absent", .probe = no_hardware};

const struct dpn_device_class *const dpn_device_classes[] = {&dpn_device_cpu, &device_absent, NULL};

void dpn_kernels_thread_init(void)
{
}

void dpn_blas_thread_init(void)
{
}

static const struct dpn_kernels some_kernels = {.isa = "test"};

/* ---- helpers ---- */

static struct dpn_topo *open_topo(const char *description)
{
    struct dpn_topo *topo = NULL;
    assert_int_equal(dpn_topo_open(&topo, description, NULL), DPN_OK);
    return topo;
}

static enum dpn_status open_group(struct dpn_device_group *group, struct dpn_topo *topo, const char *list,
                                  struct dpn_device_request request)
{
    return dpn_device_group_open(group, topo, "auto", list, &request, &some_kernels);
}

static void expect_refused(struct dpn_topo *topo, const char *kind, const char *list, int oversubscribe,
                           const char *text)
{
    struct dpn_device_group group;
    struct dpn_device_request request = {.unit = DPN_UNIT_CORE, .oversubscribe = oversubscribe};
    assert_int_equal(dpn_device_group_open(&group, topo, kind, list, &request, &some_kernels), DPN_ERR_USAGE);
    if (!strstr(dpn_error_text(), text)) fail_msg("'%s' does not say '%s'", dpn_error_text(), text);
}

/* Device I of GROUP as "member:index cpus node threads". */
static void expect_device(const struct dpn_device_group *group, size_t i, const char *expected)
{
    char cpus[256], text[300];
    const struct dpn_device *device = &group->devices[i];
    snprintf(text, sizeof text, "%d:%d %s %d %d", device->member, device->index,
             dpn_cpuset_text(&device->cpus, cpus, sizeof cpus), device->node, device->threads);
    assert_string_equal(text, expected);
    assert_ptr_equal(device->group, group);
    assert_ptr_equal(device->kernels, &some_kernels);
    assert_int_equal(device->pinned, -1);
}

static void test_lists(void **state)
{
    struct dpn_topo *topo = open_topo("package:2 numa:2 core:4 pu:1");
    struct dpn_device_group group;
    (void)state;

    assert_int_equal(open_group(&group, topo, "all", (struct dpn_device_request){.unit = DPN_UNIT_AUTO}),
                     DPN_OK);
    assert_int_equal(group.unit, DPN_UNIT_PACKAGE);
    assert_int_equal(group.n, 2);
    assert_int_equal(group.n_units, 2);
    assert_int_equal(group.node_count, 2);
    assert_false(group.oversubscribed);
    expect_device(&group, 0, "0:0 0-7 0 8");
    expect_device(&group, 1, "1:1 8-15 2 8");
    dpn_device_group_close(&group);

    /* Gaps are accepted, order is kept; the k-th entry is member k. */
    assert_int_equal(open_group(&group, topo, "cpu:3,0", (struct dpn_device_request){.unit = DPN_UNIT_NUMA}),
                     DPN_OK);
    assert_int_equal(group.n, 2);
    expect_device(&group, 0, "0:3 12-15 3 4");
    expect_device(&group, 1, "1:0 0-3 0 4");
    dpn_device_group_close(&group);

    assert_int_equal(open_group(&group, topo, "4-6",
                                (struct dpn_device_request){.unit = DPN_UNIT_CORE, .threads_per_device = 1}),
                     DPN_OK);
    assert_int_equal(group.n_units, 16);
    assert_int_equal(group.node_count, 1);
    expect_device(&group, 2, "2:6 6 1 1");
    dpn_device_group_close(&group);
    dpn_topo_close(topo);
}

/* V01, V02, V03 and kinds. */
static void test_refusals(void **state)
{
    struct dpn_topo *topo = open_topo("core:2 pu:1");
    (void)state;
    expect_refused(topo, "auto", "0-7", 0, "0-1");
    expect_refused(topo, "auto", "0-7", 0, "--devices '0-7'");
    expect_refused(topo, "auto", "2", 0, "--oversubscribe");
    expect_refused(topo, "auto", "0,0", 0, "--oversubscribe");
    expect_refused(topo, "auto", "0-1,1", 0, "--devices '1'");
    expect_refused(topo, "auto", "-1", 0, "--devices '-1'");
    expect_refused(topo, "auto", "0,", 0, "--devices");
    expect_refused(topo, "auto", "0-99999999999999999999", 1, "99999999999999999999");
    expect_refused(topo, "auto", "0-1024", 1, "1024");
    expect_refused(topo, "auto", "cpu:", 0, "--devices");
    expect_refused(topo, "auto", "cpu:0,cpu:1", 0, "'cpu:1'");
    expect_refused(topo, "auto", "gpu:0", 0, "--devices 'gpu:0'");
    expect_refused(topo, "auto", "cuda:0", 0, "--devices 'cuda:0': this dpnode was built without CUDA");
    expect_refused(topo, "cuda", "all", 0,
                   "--kind 'cuda': this dpnode was built without CUDA (configure --with-cuda)");
    expect_refused(topo, "absent", "all", 0, "--kind 'absent': no such hardware here");
    expect_refused(topo, "absent", "cpu:0", 0, "--devices 'cpu:0' does not agree with --kind 'absent'");
    expect_refused(topo, "cpu", "absent:0", 0, "no such hardware here");
    expect_refused(topo, "tpu", "all", 0, "--kind 'tpu'");
    assert_null(strstr(dpn_error_text(), "--oversubscribe"));
    expect_refused(topo, "auto", "1gpu2", 0, "'1gpu2'");
    assert_null(strstr(dpn_error_text(), "--oversubscribe"));
    dpn_topo_close(topo);
}

static void test_teams(void **state)
{
    struct dpn_topo *topo = open_topo("package:2 core:4 pu:2");
    struct dpn_device_group group;
    struct dpn_device_request request = {.unit = DPN_UNIT_PACKAGE, .smt = 1};
    (void)state;

    assert_int_equal(open_group(&group, topo, "1", request), DPN_OK);
    expect_device(&group, 0, "0:1 8-15 0 8");
    dpn_device_group_close(&group);

    request.threads_per_device = 3;
    assert_int_equal(open_group(&group, topo, "1", request), DPN_OK);
    expect_device(&group, 0, "0:1 8-10 0 3");
    assert_false(group.oversubscribed);
    dpn_device_group_close(&group);

    /* More threads than CPUs: they share. */
    request.threads_per_device = 9;
    assert_int_equal(open_group(&group, topo, "1", request), DPN_OK);
    expect_device(&group, 0, "0:1 8-15 0 9");
    assert_true(group.oversubscribed);
    dpn_device_group_close(&group);

    request.threads_per_device = DPN_MAX_CPUS + 1;
    assert_int_equal(open_group(&group, topo, "1", request), DPN_ERR_USAGE);
    assert_non_null(strstr(dpn_error_text(), "--threads-per-device '4097'"));
    dpn_topo_close(topo);
}

/* Devices that share a unit take its CPUs in turn; only when these run out do they share CPUs. */
static void test_oversubscription(void **state)
{
    struct dpn_topo *topo = open_topo("package:2 core:3 pu:1");
    struct dpn_device_group group;
    struct dpn_device_request request = {.unit = DPN_UNIT_PACKAGE, .oversubscribe = 1};
    (void)state;

    assert_int_equal(open_group(&group, topo, "all", request), DPN_OK); /* nothing is shared */
    expect_device(&group, 1, "1:1 3-5 0 3");
    assert_false(group.oversubscribed);
    dpn_device_group_close(&group);

    assert_int_equal(open_group(&group, topo, "0-4", request), DPN_OK);
    assert_int_equal(group.n, 5);
    assert_int_equal(group.n_units, 2);
    expect_device(&group, 0, "0:0 0 0 1");
    expect_device(&group, 1, "1:1 3 0 1");
    expect_device(&group, 2, "2:0 1 0 1");
    expect_device(&group, 4, "4:0 2 0 1");
    assert_false(group.oversubscribed);
    dpn_device_group_close(&group);

    request.threads_per_device = 2;
    assert_int_equal(open_group(&group, topo, "0,0", request), DPN_OK);
    expect_device(&group, 0, "0:0 0-1 0 2");
    expect_device(&group, 1, "1:0 0,2 0 2");
    assert_true(group.oversubscribed);
    dpn_device_group_close(&group);
    dpn_topo_close(topo);
}

/* Teams fit into the CPU quota where they can; where they cannot, waiting must not eat it up. */
static void test_quota(void **state)
{
    static const struct {
        double quota;
        const char *list;
        size_t asked;
        int threads, oversubscribed;
    } cases[] = {
        {0, "0-1", 0, 4, 0},   {8, "0-1", 0, 4, 0},   {7.9, "0-1", 0, 3, 0}, {7.9, "0", 0, 4, 0},
        {3.5, "0", 0, 3, 0},   {2, "0-1", 0, 1, 0},   {1.5, "0-1", 0, 1, 1}, {0.5, "1", 0, 1, 1},
        {2.5, "0-1", 4, 4, 1}, {2.5, "0-1", 1, 1, 0},
    };
    struct dpn_topo *topo = open_topo("package:2 core:4 pu:1");
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct dpn_device_group group = {.topo = topo, .cpu_quota = cases[i].quota};
        struct dpn_device_request request = {
            .list = cases[i].list, .unit = DPN_UNIT_PACKAGE, .threads_per_device = cases[i].asked};
        assert_int_equal(dpn_device_cpu.resolve(&group, &request), DPN_OK);
        assert_int_equal(group.devices[0].threads, cases[i].threads);
        assert_int_equal(dpn_cpuset_count(&group.devices[0].cpus), cases[i].threads);
        assert_int_equal(group.oversubscribed, cases[i].oversubscribed);
        dpn_device_group_close(&group);
    }
    dpn_topo_close(topo);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lists), cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_teams), cmocka_unit_test(test_oversubscription),
        cmocka_unit_test(test_quota),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
