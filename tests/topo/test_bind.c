/* The mask at entry, and binding. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/team.h"
#include "topo/topo.h"

static void mask_text(void (*get)(struct dpn_cpuset *set), char *text, size_t size)
{
    struct dpn_cpuset set;
    get(&set);
    dpn_cpuset_text(&set, text, size);
}

static enum dpn_status nothing(void *arg, struct dpn_team *team)
{
    (void)arg;
    (void)team;
    return DPN_OK;
}

/* What the re-executed program prints: mask at entry, mask when main started, allowed CPUs. */
static int child(void)
{
    char entry[512], now[512], allowed[512];
    struct dpn_topo *topo;
    mask_text(dpn_topo_self_mask, now, sizeof now);
    mask_text(dpn_topo_entry_mask, entry, sizeof entry);
    if (dpn_topo_open(&topo, NULL, NULL) != DPN_OK) return 1;
    dpn_cpuset_text(dpn_topo_allowed(topo), allowed, sizeof allowed);
    dpn_topo_close(topo);
    printf("%s %s %s\n", entry, now, allowed);
    /* Never shrinks anything now; its place here is to link the OpenMP library, whose constructor does. */
    return dpn_team_open(1, NULL, NULL, NULL, nothing, NULL) == DPN_OK ? 0 : 1;
}

/* Runs this program again with NAME=VALUE, returns what it said. */
static void run_child(const char *name, const char *value, char *entry, char *now, char *allowed)
{
    int ends[2], wait_status;
    assert_int_equal(pipe(ends), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        dup2(ends[1], STDOUT_FILENO);
        if (name) setenv(name, value, 1);
        execl("/proc/self/exe", "test_bind", "child", (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    FILE *said = fdopen(ends[0], "r");
    assert_non_null(said);
    assert_int_equal(fscanf(said, "%511s %511s %511s", entry, now, allowed), 3);
    fclose(said);
    assert_int_equal(waitpid(pid, &wait_status, 0), pid);
    assert_int_equal(wait_status, 0);
}

/* T07: OpenMP libraries shrink the mask before main. */
static void test_entry_mask_before_openmp(void **state)
{
    char mine[512], entry[512], now[512], allowed[512], first[16];
    struct dpn_cpuset self;
    (void)state;
    mask_text(dpn_topo_self_mask, mine, sizeof mine);
    dpn_topo_self_mask(&self);
    snprintf(first, sizeof first, "%d", dpn_cpuset_next(&self, -1));

    run_child(NULL, NULL, entry, now, allowed);
    assert_string_equal(entry, mine);
    assert_string_equal(now, mine);
    run_child("OMP_PROC_BIND", "true", entry, now, allowed);
    assert_string_equal(entry, mine);
    run_child("GOMP_CPU_AFFINITY", first, entry, now, allowed);
    assert_string_equal(entry, mine);
    if (strcmp(now, mine) != 0) print_message("main started on CPUs %s of %s\n", now, mine);
}

/* T05: started on one CPU only, as by taskset. */
static void test_started_on_one_cpu(void **state)
{
    char entry[512], now[512], allowed[512], last_text[16];
    struct dpn_topo *topo;
    struct dpn_cpuset before, one = {{0}};
    int last = -1;
    (void)state;
    dpn_topo_self_mask(&before);
    for (int cpu = -1; (cpu = dpn_cpuset_next(&before, cpu)) >= 0;) last = cpu;
    dpn_cpuset_add(&one, (unsigned)last);
    snprintf(last_text, sizeof last_text, "%d", last);

    assert_int_equal(dpn_topo_open(&topo, NULL, NULL), DPN_OK);
    assert_int_equal(dpn_topo_bind_self(topo, &one), DPN_OK);
    run_child(NULL, NULL, entry, now, allowed);
    assert_string_equal(entry, last_text);
    assert_string_equal(allowed, last_text);
    assert_int_equal(dpn_topo_bind_self(topo, &before), DPN_OK);
    dpn_topo_close(topo);
}

static void test_bind(void **state)
{
    struct dpn_topo *topo;
    struct dpn_cpuset before, now;
    (void)state;
    dpn_topo_self_mask(&before);
    assert_int_equal(dpn_topo_open(&topo, NULL, NULL), DPN_OK);
    if (dpn_topo_is_synthetic(topo)) {
        print_message("SKIP: hwloc was told to describe another machine\n");
        dpn_topo_close(topo);
        skip();
    }
    for (int cpu = -1; (cpu = dpn_cpuset_next(dpn_topo_allowed(topo), cpu)) >= 0;) {
        struct dpn_cpuset one = {{0}};
        dpn_cpuset_add(&one, (unsigned)cpu);
        assert_int_equal(dpn_topo_bind_self(topo, &one), DPN_OK);
        dpn_topo_self_mask(&now);
        assert_memory_equal(&now, &one, sizeof now);
    }
    assert_int_equal(dpn_topo_bind_self(topo, &before), DPN_OK);
    dpn_topo_self_mask(&now);
    assert_memory_equal(&now, &before, sizeof now);
    dpn_topo_close(topo);
}

static void test_bind_fails(void **state)
{
    struct dpn_topo *topo;
    struct dpn_cpuset before, none = {{0}}, absent = {{0}}, half;
    (void)state;
    dpn_topo_self_mask(&before);
    assert_int_equal(dpn_topo_open(&topo, NULL, NULL), DPN_OK);
    if (dpn_topo_is_synthetic(topo) || dpn_cpuset_has(dpn_topo_online(topo), DPN_MAX_CPUS - 1)) {
        print_message("SKIP: this machine has the CPU that the test takes for absent\n");
        dpn_topo_close(topo);
        skip();
    }
    assert_int_equal(dpn_topo_bind_self(topo, &none), DPN_ERR_SYSTEM);
    dpn_cpuset_add(&absent, DPN_MAX_CPUS - 1);
    assert_int_equal(dpn_topo_bind_self(topo, &absent), DPN_ERR_SYSTEM);
    assert_non_null(strstr(dpn_error_text(), "'4095'"));
    /* The kernel takes this one and leaves the absent CPU out: only reading back tells. */
    half = before;
    dpn_cpuset_add(&half, DPN_MAX_CPUS - 1);
    assert_int_equal(dpn_topo_bind_self(topo, &half), DPN_ERR_SYSTEM);
    assert_int_equal(dpn_topo_bind_self(topo, &before), DPN_OK);
    dpn_topo_close(topo);
}

static void test_synthetic_binds_nothing(void **state)
{
    struct dpn_topo *topo;
    struct dpn_cpuset before, now, absent = {{0}};
    (void)state;
    dpn_topo_self_mask(&before);
    assert_int_equal(dpn_topo_open(&topo, "core:1000 pu:1", NULL), DPN_OK);
    dpn_cpuset_add(&absent, 999);
    assert_int_equal(dpn_topo_bind_self(topo, &absent), DPN_OK);
    dpn_topo_self_mask(&now);
    assert_memory_equal(&now, &before, sizeof now);
    dpn_topo_close(topo);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_entry_mask_before_openmp),
        cmocka_unit_test(test_started_on_one_cpu),
        cmocka_unit_test(test_bind),
        cmocka_unit_test(test_bind_fails),
        cmocka_unit_test(test_synthetic_binds_nothing),
    };
    if (argc > 1 && strcmp(argv[1], "child") == 0) return child();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
