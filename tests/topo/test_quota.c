/* The CPU quota of control groups, read below made-up roots. */
#include <errno.h>
#include <ftw.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "topo/topo.h"

static char quota_root[] = "/tmp/dpn-quota-XXXXXX";

static int make_root(void **state)
{
    (void)state;
    strcpy(quota_root + strlen(quota_root) - 6, "XXXXXX");
    return mkdtemp(quota_root) ? 0 : -1;
}

static int remove_one(const char *path, const struct stat *info, int type, struct FTW *where)
{
    (void)info;
    (void)type;
    (void)where;
    return remove(path);
}

static int remove_root(void **state)
{
    (void)state;
    return nftw(quota_root, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* Writes TEXT to PATH below the root, making its folders. */
static void put(const char *path, const char *text)
{
    char full[PATH_MAX];
    snprintf(full, sizeof full, "%s%s", quota_root, path);
    for (char *slash = full + strlen(quota_root) + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
        *slash = '\0';
        assert_true(mkdir(full, 0777) == 0 || errno == EEXIST);
        *slash = '/';
    }
    FILE *file = fopen(full, "w");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

static double quota(void)
{
    return dpn_topo_cpu_quota(quota_root);
}

#define MOUNT_V2 "31 23 0:28 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw\n"
#define MOUNT_V1                                                                          \
    "32 31 0:29 / /sys/fs/cgroup/cpuset rw,relatime shared:9 - cgroup cgroup rw,cpuset\n" \
    "33 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:10 - cgroup cgroup rw,cpu,cpuacct\n"

static void test_nothing_there(void **state)
{
    (void)state;
    assert_true(quota() == 0);
    put("/proc/self/cgroup", "0::/\n");
    assert_true(quota() == 0);
    put("/proc/self/mountinfo", MOUNT_V2);
    assert_true(quota() == 0);
    assert_true(dpn_topo_cpu_quota("/nowhere/at/all") == 0);
}

static void test_v2(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "0::/job/step\n");
    put("/proc/self/mountinfo", "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n" MOUNT_V2);
    put("/sys/fs/cgroup/job/step/cpu.max", "150000 100000\n");
    assert_true(quota() == 1.5);
    put("/sys/fs/cgroup/job/step/cpu.max", "20000 10000\n");
    assert_true(quota() == 2.0);
    put("/sys/fs/cgroup/job/step/cpu.max", "max 100000\n");
    assert_true(quota() == 0);
    put("/sys/fs/cgroup/job/step/cpu.max", "250000\n"); /* the default period */
    assert_true(quota() == 2.5);
    put("/sys/fs/cgroup/job/step/cpu.max", "");
    assert_true(quota() == 0);
    put("/sys/fs/cgroup/job/step/cpu.max", "100000 0\n");
    assert_true(quota() == 0);
    put("/sys/fs/cgroup/job/step/cpu.max", "garbage\n");
    assert_true(quota() == 0);
}

static void test_v2_ancestors(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "0::/a/b/c\n");
    put("/proc/self/mountinfo", MOUNT_V2);
    put("/sys/fs/cgroup/a/b/c/cpu.max", "400000 100000\n");
    put("/sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
    put("/sys/fs/cgroup/a/cpu.max", "300000 100000\n");
    assert_true(quota() == 3.0);
    put("/sys/fs/cgroup/cpu.max", "50000 100000\n"); /* the top as a container sees it */
    assert_true(quota() == 0.5);
    /* Not above the mount point, nor beside the own branch. */
    put("/sys/fs/cpu.max", "1000 100000\n");
    put("/sys/fs/cgroup/a/other/cpu.max", "1000 100000\n");
    assert_true(quota() == 0.5);
}

static void test_v1(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "9:cpuset:/other\n4:cpu,cpuacct:/docker/abc\n1:name=systemd:/x\n");
    put("/proc/self/mountinfo", MOUNT_V1);
    put("/sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_period_us", "100000\n");
    assert_true(quota() == 0);
    put("/sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us", "25000\n");
    put("/sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_period_us", "50000\n");
    assert_true(quota() == 0.5);
    put("/sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_quota_us", "10000\n"); /* no period: the default */
    assert_true(quota() == 0.1);
    put("/sys/fs/cgroup/cpuset/other/cpu.cfs_quota_us", "10\n"); /* not the controller asked */
    assert_true(quota() == 0.1);
}

/* A container without its own cgroup namespace: the group's full path, but only its own part is mounted. */
static void test_v1_mounted_part(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "4:cpu,cpuacct:/docker/abc\n");
    put("/proc/self/mountinfo",
        "33 31 0:30 /docker/abc /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu,cpuacct\n");
    put("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "120000\n");
    assert_true(quota() == 1.2);
    put("/proc/self/cgroup", "4:cpu,cpuacct:/docker/abc/inner\n");
    put("/sys/fs/cgroup/cpu/inner/cpu.cfs_quota_us", "110000\n");
    assert_true(quota() == 1.1);
    /* "/docker/abcd" is not below "/docker/abc": only the mount itself is known to hold. */
    put("/proc/self/cgroup", "4:cpu,cpuacct:/docker/abcd\n");
    put("/sys/fs/cgroup/cpu/d/cpu.cfs_quota_us", "10\n");
    assert_true(quota() == 1.2);
}

/* Another group's part bind-mounted somewhere does not count where the own group is in sight. */
static void test_other_mounts(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "0::/own\n");
    put("/proc/self/mountinfo", "40 23 0:28 /other /mnt/other rw - cgroup2 cgroup2 rw\n" MOUNT_V2);
    put("/mnt/other/cpu.max", "1000 100000\n");
    put("/sys/fs/cgroup/own/cpu.max", "200000 100000\n");
    assert_true(quota() == 2.0);
    put("/proc/self/cgroup", "0::/../../own\n"); /* seen from a namespace below */
    put("/sys/fs/cgroup/cpu.max", "300000 100000\n");
    assert_true(quota() == 0.01);
}

static void test_hybrid(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "4:cpu,cpuacct:/one\n0::/two\n");
    put("/proc/self/mountinfo", MOUNT_V1 "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
    put("/sys/fs/cgroup/cpu,cpuacct/one/cpu.cfs_quota_us", "130000\n");
    assert_true(quota() == 1.3);
    put("/sys/fs/cgroup/unified/two/cpu.max", "120000 100000\n");
    assert_true(quota() == 1.2);
    put("/sys/fs/cgroup/unified/two/cpu.max", "140000 100000\n");
    assert_true(quota() == 1.3);
}

static void test_odd_text(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "\nnonsense\n0::/a group\n");
    put("/proc/self/mountinfo", "\n - \n1 2 3 - cgroup2\n"
                                "31 23 0:28 / /sys/my\\040groups rw - cgroup2 none rw\n");
    put("/sys/my groups/a group/cpu.max", "70000 100000\n");
    assert_true(quota() == 0.7);
}

int main(void)
{
#define QUOTA_TEST(f) cmocka_unit_test_setup_teardown(f, make_root, remove_root)
    const struct CMUnitTest tests[] = {
        QUOTA_TEST(test_nothing_there),   QUOTA_TEST(test_v2),
        QUOTA_TEST(test_v2_ancestors),    QUOTA_TEST(test_v1),
        QUOTA_TEST(test_v1_mounted_part), QUOTA_TEST(test_other_mounts),
        QUOTA_TEST(test_hybrid),          QUOTA_TEST(test_odd_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
