/* Device groups: running bodies on pinned threads with teams. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/memory.h"
#include "device/device.h"

#if defined __SANITIZE_THREAD__
#define UNDER_TSAN 1
#elif defined __has_feature
#if __has_feature(thread_sanitizer)
#define UNDER_TSAN 1
#endif
#endif

#ifdef UNDER_TSAN
enum { MOST_TEAM = 1 }; /* libgomp is not instrumented */
#else
enum { MOST_TEAM = 3 };
#endif

/* ---- stand-ins ---- */

extern const struct dpn_device_class dpn_device_cpu;

const struct dpn_device_class *const dpn_device_classes[] = {&dpn_device_cpu, NULL};

static atomic_int kernel_inits, blas_inits;

void dpn_kernels_thread_init(void)
{
    atomic_fetch_add(&kernel_inits, 1);
}

void dpn_blas_thread_init(void)
{
    atomic_fetch_add(&blas_inits, 1);
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

struct visit {
    struct dpn_device_group *group;
    atomic_int bodies, threads, wrong, fail_member;
    struct dpn_barrier barrier;
    atomic_int aborted;
};

/* CPU that thread THREAD of DEVICE has to be on. */
static int cpu_of(const struct dpn_device *device, int thread)
{
    int cpu = -1;
    for (int left = thread % (int)dpn_cpuset_count(&device->cpus); left >= 0; left--)
        cpu = dpn_cpuset_next(&device->cpus, cpu);
    return cpu;
}

struct visit_team {
    struct visit *visit;
    const struct dpn_device *device;
};

static void visit_thread(void *arg, int thread, int size)
{
    struct visit_team *team = arg;
    struct dpn_cpuset mask;
    dpn_topo_self_mask(&mask);
    if (size != team->device->threads) atomic_fetch_add(&team->visit->wrong, 1);
    if (team->device->pinned &&
        (dpn_cpuset_count(&mask) != 1 || dpn_cpuset_next(&mask, -1) != cpu_of(team->device, thread)))
        atomic_fetch_add(&team->visit->wrong, 1);
    atomic_fetch_add(&team->visit->threads, 1);
}

static enum dpn_status visit_body(void *arg, struct dpn_device *device)
{
    struct visit *visit = arg;
    struct visit_team team = {visit, device};
    atomic_fetch_add(&visit->bodies, 1);
    if (dpn_team_size(device->team) != device->threads) atomic_fetch_add(&visit->wrong, 1);
    dpn_team_run(device->team, visit_thread, &team);
    return dpn_barrier_wait(&visit->barrier, &device->group->abort);
}

static void run_group(struct dpn_topo *topo, int n, int threads)
{
    struct dpn_device_group group;
    struct dpn_device_request request = {
        .unit = DPN_UNIT_AUTO, .oversubscribe = 1, .threads_per_device = (size_t)threads};
    struct visit visit = {.group = &group, .barrier = {.n = (uint32_t)n}};
    struct dpn_cpuset before, after;
    char list[16];

    snprintf(list, sizeof list, "0-%d", n - 1);
    atomic_store(&kernel_inits, 0);
    atomic_store(&blas_inits, 0);
    dpn_topo_self_mask(&before);
    assert_int_equal(open_group(&group, topo, list, request), DPN_OK);
    assert_int_equal(group.n, n);
    for (int round = 1; round <= 2; round++) {
        assert_int_equal(dpn_device_group_run(&group, visit_body, &visit), DPN_OK);
        assert_int_equal(visit.bodies, n * round);
        assert_int_equal(visit.threads, n * threads * round);
        assert_int_equal(visit.wrong, 0);
        assert_int_equal(kernel_inits, n * threads * round);
        assert_int_equal(blas_inits, n * threads * round);
    }
    for (int i = 0; i < n; i++) {
        assert_int_equal(group.devices[i].pinned, !dpn_topo_is_synthetic(topo));
        assert_null(group.devices[i].team);
    }
    dpn_topo_self_mask(&after);
    assert_memory_equal(&after, &before, sizeof after);
    dpn_device_group_close(&group);
}

static void test_run(void **state)
{
    static const int sizes[] = {1, 2, 5};
    struct dpn_topo *topo = open_topo(NULL);
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (int threads = 1; threads <= MOST_TEAM; threads++) run_group(topo, sizes[i], threads);
    dpn_topo_close(topo);
}

/* Nothing is bound on a described machine. */
static void test_run_described(void **state)
{
    struct dpn_topo *topo = open_topo("package:2 core:32 pu:1");
    (void)state;
    run_group(topo, 2, MOST_TEAM);
    dpn_topo_close(topo);
}

/* A CPU that this machine has not got: the body runs all the same, unpinned. */
static void test_unpinned(void **state)
{
    struct dpn_topo *topo = open_topo(NULL);
    struct dpn_device_group group;
    struct visit visit = {.group = &group, .barrier = {.n = 3}};
    (void)state;
    if (dpn_topo_is_synthetic(topo) || dpn_cpuset_has(dpn_topo_online(topo), DPN_MAX_CPUS - 1)) {
        print_message("SKIP: this machine has the CPU that the test takes for absent\n");
        dpn_topo_close(topo);
        skip();
    }
    assert_int_equal(open_group(&group, topo, "0-2", (struct dpn_device_request){.oversubscribe = 1}),
                     DPN_OK);
    memset(&group.devices[1].cpus, 0, sizeof group.devices[1].cpus);
    dpn_cpuset_add(&group.devices[1].cpus, DPN_MAX_CPUS - 1);
    group.devices[2].cpus = group.devices[1].cpus;
    assert_int_equal(dpn_device_group_run(&group, visit_body, &visit), DPN_OK);
    assert_int_equal(visit.bodies, 3);
    assert_int_equal(visit.wrong, 0);
    assert_int_equal(group.devices[0].pinned, 1);
    assert_int_equal(group.devices[1].pinned, 0);
    assert_int_equal(group.devices[2].pinned, 0);
    assert_int_equal(group.binding_warned, 1);
    dpn_device_group_close(&group);
    dpn_topo_close(topo);
}

/* ---- failing ---- */

static enum dpn_status failing_body(void *arg, struct dpn_device *device)
{
    struct visit *visit = arg;
    atomic_fetch_add(&visit->bodies, 1);
    if (device->member == visit->fail_member) {
        usleep(20000);
        return dpn_fail(DPN_ERR_NUMERIC, "member %d found a bad loss", device->member);
    }
    enum dpn_status status = dpn_barrier_wait(&visit->barrier, &device->group->abort);
    if (status == DPN_ERR_ABORTED) atomic_fetch_add(&visit->aborted, 1);
    return status;
}

static void test_failing_body(void **state)
{
    struct dpn_topo *topo = open_topo(NULL);
    (void)state;
    for (int n = 1; n <= 5; n += 2)
        for (int fail_member = 0; fail_member<n; fail_member += n> 1 ? n - 1 : 1) {
            struct dpn_device_group group;
            struct visit visit = {.fail_member = fail_member, .barrier = {.n = (uint32_t)n}};
            char list[16], text[64];
            snprintf(list, sizeof list, "0-%d", n - 1);
            snprintf(text, sizeof text, "member %d found a bad loss", fail_member);
            assert_int_equal(
                open_group(&group, topo, list,
                           (struct dpn_device_request){.oversubscribe = 1, .threads_per_device = MOST_TEAM}),
                DPN_OK);
            assert_int_equal(dpn_device_group_run(&group, failing_body, &visit), DPN_ERR_NUMERIC);
            assert_string_equal(dpn_error_text(), text);
            assert_int_equal(visit.bodies, n);
            assert_int_equal(visit.aborted, n - 1);

            /* The group is spent. */
            dpn_fail(DPN_ERR_SYSTEM, "something else");
            assert_int_equal(dpn_device_group_run(&group, failing_body, &visit), DPN_ERR_NUMERIC);
            assert_string_equal(dpn_error_text(), text);
            assert_int_equal(visit.bodies, n);
            dpn_device_group_close(&group);
        }
    dpn_topo_close(topo);
}

static enum dpn_status count_body(void *arg, struct dpn_device *device)
{
    (void)device;
    atomic_fetch_add((atomic_int *)arg, 1);
    return DPN_OK;
}

/* In a process of its own: 0 if a group of 8 is refused for want of threads and no body ran; 77 if the limit
 * does not bind. */
static int run_with_few_threads(struct dpn_topo *topo)
{
    struct dpn_device_group group;
    struct rlimit limit = {3, 3};
    atomic_int bodies = 0;
    if (open_group(&group, topo, "0-7", (struct dpn_device_request){.oversubscribe = 1}) != DPN_OK) return 2;
    if (setrlimit(RLIMIT_NPROC, &limit) != 0) return 77;
    if (geteuid() == 0 && setresuid(65534, 65534, 65534) != 0) return 77; /* no limit binds root */
    enum dpn_status status = dpn_device_group_run(&group, count_body, &bodies);
    if (status == DPN_OK) return 77;
    if (status != DPN_ERR_SYSTEM || bodies != 0) return 3;
    return strstr(dpn_error_text(), "8 device threads wanted, ") ? 0 : 4;
}

/* T04 */
static void test_no_threads_left(void **state)
{
    struct dpn_topo *topo = open_topo(NULL);
    int wait_status;
    (void)state;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) _exit(run_with_few_threads(topo));
    assert_int_equal(waitpid(pid, &wait_status, 0), pid);
    dpn_topo_close(topo);
    assert_true(WIFEXITED(wait_status));
    if (WEXITSTATUS(wait_status) == 77) {
        print_message("SKIP: no limit on threads binds here\n");
        skip();
    }
    assert_int_equal(WEXITSTATUS(wait_status), 0);
}

/* ---- memory ---- */

static enum dpn_status alloc_body(void *arg, struct dpn_device *device)
{
    const struct dpn_device_class *cls = device->group->cls;
    size_t bytes = 3 * DPN_PAGE_BYTES + 100, sum = 0;
    unsigned char *arena;
    (void)arg;
    DPN_TRY(cls->alloc(device, &arena, bytes, "arena of the test"));
    for (size_t i = 0; i < bytes; i++) sum += arena[i];
    int aligned = (uintptr_t)arena % DPN_PAGE_BYTES == 0;
    cls->free(device, arena, bytes);
    return aligned && sum == 0 ? DPN_OK : dpn_fail(DPN_ERR_CONTRACT, "not zero or not aligned");
}

static enum dpn_status greedy_body(void *arg, struct dpn_device *device)
{
    void *arena;
    (void)arg;
    return device->group->cls->alloc(device, &arena, SIZE_MAX / 4, "far too much");
}

static void test_alloc(void **state)
{
    struct dpn_topo *topo = open_topo(NULL);
    struct dpn_device_group group;
    (void)state;
    assert_int_equal(open_group(&group, topo, "0-1", (struct dpn_device_request){.oversubscribe = 1}),
                     DPN_OK);
    assert_int_equal(dpn_device_group_run(&group, alloc_body, NULL), DPN_OK);
    assert_int_equal(group.placement_warned, 0);
    assert_int_equal(dpn_device_group_run(&group, greedy_body, NULL), DPN_ERR_NOMEM);
    assert_non_null(strstr(dpn_error_text(), "far too much"));
    dpn_device_group_close(&group);
    dpn_topo_close(topo);
}

/* ---- OpenMP's own ideas of affinity (T07) ---- */

static int child(void)
{
    struct dpn_topo *topo;
    struct dpn_device_group group;
    struct visit visit = {.group = &group, .barrier = {.n = 2}};
    struct dpn_device_request request = {
        .unit = DPN_UNIT_CORE, .oversubscribe = 1, .threads_per_device = MOST_TEAM};
    if (dpn_topo_open(&topo, NULL, NULL) != DPN_OK) return 1;
    if (open_group(&group, topo, "0-1", request) != DPN_OK) return 2;
    if (dpn_device_group_run(&group, visit_body, &visit) != DPN_OK) return 3;
    int pinned = group.devices[0].pinned && group.devices[1].pinned;
    int same = group.n_units > 1 &&
               dpn_cpuset_next(&group.devices[0].cpus, -1) == dpn_cpuset_next(&group.devices[1].cpus, -1);
    dpn_device_group_close(&group);
    dpn_topo_close(topo);
    return visit.wrong ? 4 : !pinned ? 5 : same ? 6 : 0;
}

static void test_openmp_affinity(void **state)
{
    static const char *const settings[][2] = {{"OMP_PROC_BIND", "true"},
                                              {"OMP_PROC_BIND", "close"},
                                              {"GOMP_CPU_AFFINITY", NULL},
                                              {"OMP_DYNAMIC", "true"}};
    struct dpn_cpuset self;
    char first[16];
    (void)state;
    dpn_topo_self_mask(&self);
    snprintf(first, sizeof first, "%d", dpn_cpuset_next(&self, -1));
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        int wait_status;
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
            setenv(settings[i][0], settings[i][1] ? settings[i][1] : first, 1);
            execl("/proc/self/exe", "test_device", "child", (char *)NULL);
            _exit(127);
        }
        assert_int_equal(waitpid(pid, &wait_status, 0), pid);
        if (wait_status != 0) fail_msg("with %s: status %d", settings[i][0], WEXITSTATUS(wait_status));
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_run),
        cmocka_unit_test(test_run_described),
        cmocka_unit_test(test_unpinned),
        cmocka_unit_test(test_failing_body),
        cmocka_unit_test(test_alloc),
        cmocka_unit_test(test_no_threads_left),
        cmocka_unit_test(test_openmp_affinity),
    };
    if (argc > 1 && strcmp(argv[1], "child") == 0) return child();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
