/* The output folder: what is refused before a run, what is pruned, and crashes and failures at any moment of
 * a save. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "tests/train/checkpoint_fixture.h"

/* ---- system calls that count, and fail or kill at a chosen one ---- */

static long calls, fail_at, kill_at; /* 0: never */
static int no_links, fail_errno = EIO;

static int injected(void)
{
    calls++;
    if (calls == kill_at) _exit(42);
    if (calls == fail_at) errno = fail_errno;
    return calls == fail_at;
}

/* These stand in for the C library's in the program under test, which is linked into this one. */
int linkat(int from_dir, const char *from, int to_dir, const char *to, int flags)
{
    if (no_links) {
        errno = EPERM;
        return -1;
    }
    return injected() ? -1 : (int)syscall(SYS_linkat, from_dir, from, to_dir, to, flags);
}

int renameat(int from_dir, const char *from, int to_dir, const char *to)
{
    return injected() ? -1 : (int)syscall(SYS_renameat2, from_dir, from, to_dir, to, 0);
}

int unlinkat(int dir, const char *path, int flags)
{
    return injected() ? -1 : (int)syscall(SYS_unlinkat, dir, path, flags);
}

int fsync(int fd)
{
    (void)fd; /* a killed process loses nothing that it wrote; the disk is not what is tested here */
    return injected() ? -1 : 0;
}

ssize_t write(int fd, const void *bytes, size_t n)
{
    if (fd <= 2) return syscall(SYS_write, fd, bytes, n);
    return injected() ? -1 : syscall(SYS_write, fd, bytes, n > 200 ? 200 : n); /* short ones */
}

/* ---- helpers ---- */

static struct dpn_checkpoint_dir *open_dir(const char *name, int overwrite, int resume, uint64_t keep)
{
    struct dpn_checkpoint_dir *dir;
    if (dpn_checkpoint_dir_open(fixture_path(name), overwrite, resume, keep, &dir) != DPN_OK)
        fail_msg("%s", dpn_error_text());
    return dir;
}

static void save(struct dpn_checkpoint_dir *dir, uint64_t step, int best)
{
    if (fixture_save(dir, step, best) != DPN_OK) fail_msg("step %" PRIu64 ": %s", step, dpn_error_text());
}

static uint64_t resumed(const char *path, const char *name)
{
    uint64_t step;
    int exact;
    if (fixture_resume(path, name, &step, &exact) != DPN_OK) fail_msg("%s", dpn_error_text());
    assert_true(exact || step == 0);
    return step;
}

static void assert_refused(const char *path)
{
    struct dpn_checkpoint_dir *dir;
    assert_int_equal(dpn_checkpoint_dir_open(path, 0, 0, 0, &dir), DPN_ERR_USAGE);
    assert_null(dir);
    assert_non_null(strstr(dpn_error_text(), "--out"));
    if (!strstr(dpn_error_text(), path)) fail_msg("%s is not in: %s", path, dpn_error_text());
}

static void touch(const char *name)
{
    FILE *file = fopen(fixture_path(name), "w");
    assert_non_null(file);
    assert_int_equal(fclose(file), 0);
}

/* ---- the folder ---- */

static void test_create(void **state)
{
    (void)state;
    char name[600], path[1200];
    dpn_checkpoint_dir_close(open_dir("a/b/c//d/", 0, 0, 0));
    assert_false(fixture_exists("a")); /* nothing was saved: nothing is left */
    struct dpn_checkpoint_dir *dir = open_dir("a/b/c", 0, 0, 0);
    assert_int_equal(fixture_count("a/b/c", ""), 0);
    save(dir, 1, 0);
    dpn_checkpoint_dir_close(dir);
    assert_true(fixture_exists("a/b/c/last.safetensors"));

    touch("file");
    assert_refused(fixture_path("file"));
    assert_refused(fixture_path("file/below/it"));
    assert_refused("/proc/dpnode-out");
    memset(name, 'x', sizeof(name));
    name[sizeof(name) - 1] = '\0';
    snprintf(path, sizeof(path), "%s/new/%s", fixture_folder, name);
    assert_refused(path);
    assert_false(fixture_exists("new"));
}

/* 0 if a folder that its user may not write, and one below it, are refused; 77: could not be tried. */
static int try_read_only(void)
{
    struct dpn_checkpoint_dir *dir;
    if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) return 77;
    const char *paths[] = {fixture_path("locked"), fixture_path("locked/below")};
    for (int i = 0; i < 2; i++)
        if (dpn_checkpoint_dir_open(paths[i], 0, 0, 0, &dir) != DPN_ERR_USAGE ||
            !strstr(dpn_error_text(), paths[i]))
            return 1;
    return 0;
}

static void test_read_only(void **state)
{
    (void)state;
    int status;
    assert_int_equal(mkdir(fixture_path("locked"), 0555), 0);
    assert_int_equal(chmod(fixture_folder, 0755), 0);
    pid_t child = fork();
    if (child == 0) _exit(try_read_only());
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WEXITSTATUS(status) == 77) {
        print_message("SKIP: root here, and cannot become another user\n");
        skip();
    }
    assert_int_equal(status, 0);
}

static void test_lock(void **state)
{
    (void)state;
    struct dpn_checkpoint_dir *other, *dir = open_dir("lock", 0, 0, 0);
    assert_refused(fixture_path("lock"));
    assert_int_equal(dpn_checkpoint_dir_open(fixture_path("lock"), 1, 0, 0, &other), DPN_ERR_USAGE);
    dpn_checkpoint_dir_close(dir);
    dpn_checkpoint_dir_close(open_dir("lock", 0, 0, 0));
}

static void test_overwrite(void **state)
{
    (void)state;
    struct dpn_checkpoint_dir *dir = open_dir("over", 0, 0, 0);
    for (uint64_t step = 1; step <= 5; step++) save(dir, step, step == 3);
    dpn_checkpoint_dir_close(dir);
    touch("over/notes.txt");
    touch("over/epoch-1.safetensors"); /* not a name of ours */
    assert_refused(fixture_path("over"));
    assert_int_equal(fixture_count("over", "step-"), 8);

    dir = open_dir("over", 1, 0, 0);
    assert_int_equal(resumed("auto", "over"), 5); /* still there, as long as there is nothing new */
    save(dir, 1, 0);
    dpn_checkpoint_dir_close(dir);
    assert_int_equal(resumed("auto", "over"), 1);
    assert_int_equal(resumed(fixture_path("over/last.safetensors"), NULL), 1);
    assert_false(fixture_exists("over/best.safetensors"));
    assert_int_equal(fixture_count("over", ""), 2 + 2 + 2);

    dir = open_dir("over", 0, 1, 0); /* resuming keeps what is there */
    save(dir, 2, 1);
    dpn_checkpoint_dir_close(dir);
    assert_int_equal(fixture_count("over", ""), 2 + 2 + 2 + 3);
}

static void test_keep(void **state)
{
    (void)state;
    struct dpn_checkpoint_dir *dir = open_dir("keep", 0, 0, 2);
    for (uint64_t step = 2; step <= 6; step++) save(dir, step, step == 3);
    touch("keep/other.safetensors");
    assert_true(fixture_exists("keep/step-00000005.state.safetensors"));
    assert_true(fixture_exists("keep/step-00000006.safetensors"));
    assert_int_equal(fixture_count("keep", ""), 4 + 3 + 1);
    save(dir, 1, 0); /* resumed from an older file: the newest that was written stays, whatever its number */
    assert_true(fixture_exists("keep/step-00000001.state.safetensors"));
    assert_true(fixture_exists("keep/step-00000006.state.safetensors"));
    assert_int_equal(fixture_count("keep", ""), 4 + 3 + 1);
    dpn_checkpoint_dir_close(dir);
    dir = open_dir("keep", 0, 1, 1);
    save(dir, 7, 0);
    assert_int_equal(fixture_count("keep", ""), 2 + 3 + 1);
    dpn_checkpoint_dir_close(dir);
    assert_int_equal(resumed(fixture_path("keep/last.safetensors"), NULL), 7);
}

static void test_no_links(void **state)
{
    (void)state;
    struct stat numbered, last;
    struct dpn_checkpoint_dir *dir = open_dir("links", 0, 0, 1);
    no_links = 1;
    for (uint64_t step = 1; step <= 3; step++) save(dir, step, step == 2);
    no_links = 0;
    dpn_checkpoint_dir_close(dir);
    assert_int_equal(resumed(fixture_path("links/last.safetensors"), NULL), 3);
    assert_int_equal(resumed("auto", "links"), 3);
    assert_int_equal(stat(fixture_path("links/step-00000003.safetensors"), &numbered), 0);
    assert_int_equal(stat(fixture_path("links/last.safetensors"), &last), 0);
    assert_true(numbered.st_ino != last.st_ino);
    assert_int_equal(fixture_count("links", ""), 5);
}

static void test_stale_temporaries(void **state)
{
    (void)state;
    struct dpn_checkpoint_dir *dir = open_dir("stale", 0, 0, 0);
    save(dir, 1, 0);
    dpn_checkpoint_dir_close(dir);
    touch("stale/.tmp-dpnode-1-epoch-0009.safetensors");
    touch("stale/.tmp-other");
    assert_int_equal(resumed("auto", "stale"), 1);
    dpn_checkpoint_dir_close(open_dir("stale", 0, 1, 0));
    assert_int_equal(fixture_count("stale", ".tmp-"), 1);
}

/* ---- crashes and failures ---- */

/* A folder with steps 1 and 2, of which only the last is kept. */
static void prepare(const char *name)
{
    fixture_remove(name);
    struct dpn_checkpoint_dir *dir = open_dir(name, 0, 0, 1);
    save(dir, 1, 1);
    save(dir, 2, 0);
    dpn_checkpoint_dir_close(dir);
}

/* Saves STEP as the best in a child that dies before system call number CALL; 1 if it lived to the end. */
static int save_in_child(const char *name, uint64_t step, int overwrite, long call)
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        struct dpn_checkpoint_dir *dir;
        if (dpn_checkpoint_dir_open(fixture_path(name), overwrite, !overwrite, 1, &dir) != DPN_OK) _exit(1);
        fixture_salt = 1;
        calls = 0;
        kill_at = call;
        _exit(fixture_save(dir, step, 1) == DPN_OK ? 0 : 1);
    }
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status)) fail_msg("the child was killed");
    if (WEXITSTATUS(status) != 0 && WEXITSTATUS(status) != 42) fail_msg("the child failed");
    return WEXITSTATUS(status) == 0;
}

/* Killed before every single system call of a save: of a new name, and of one that replaces an older
 * run's. */
static void try_every_crash(uint64_t step, int overwrite, int links)
{
    int done = 0, seen_new = 0;
    no_links = !links;
    for (long call = 1; !done; call++) {
        struct fixture_arenas memory;
        fixture_fill(&memory, UINT64_MAX);
        prepare("crash");
        done = save_in_child("crash", step, overwrite, call);
        const uint64_t found = resumed("auto", "crash");
        if (found != 2 && found != step) fail_msg("call %ld: step %" PRIu64 " was found", call, found);
        if (!overwrite && seen_new && found != step) fail_msg("call %ld: the new checkpoint went away", call);
        seen_new = found == step;
        const uint64_t last = resumed(fixture_path("crash/last.state.safetensors"), NULL);
        if (last != 2 && last != step) fail_msg("call %ld: last is step %" PRIu64, call, last);
        assert_int_equal(dpn_weights_load(fixture_path("crash/best.safetensors"), &fixture_model,
                                          &memory.arenas),
                         DPN_OK);
        dpn_checkpoint_dir_close(open_dir("crash", 0, 1, 1));
        assert_int_equal(fixture_count("crash", ".tmp-"), 0);
    }
    no_links = 0;
    assert_true(seen_new);
}

static void test_every_crash(void **state)
{
    (void)state;
    try_every_crash(3, 0, 1);
    try_every_crash(3, 0, 0);
    try_every_crash(2, 0, 1);
    try_every_crash(2, 1, 1);
    try_every_crash(1, 1, 1);
}

/* Every single system call of a save fails: the older checkpoint stays, and no temporary file. */
static void test_every_failure(void **state)
{
    (void)state;
    int done = 0;
    for (long call = 1; !done; call++) {
        prepare("fail");
        struct dpn_checkpoint_dir *dir = open_dir("fail", 0, 1, 1);
        fail_errno = call % 2 ? EIO : ENOSPC;
        calls = 0;
        fail_at = call;
        const enum dpn_status status = fixture_save(dir, 3, 1);
        done = calls < call;
        fail_at = 0;
        if (status != DPN_OK) {
            assert_int_equal(status, DPN_ERR_SYSTEM);
            assert_non_null(strstr(dpn_error_text(), fixture_path("fail")));
        }
        const uint64_t found = resumed("auto", "fail");
        if (found != 3 && (status == DPN_OK || found != 2)) fail_msg("call %ld: step %" PRIu64, call, found);
        assert_int_equal(fixture_count("fail", ".tmp-"), 0);
        save(dir, 3, 1); /* and the next attempt succeeds */
        dpn_checkpoint_dir_close(dir);
        assert_int_equal(resumed(fixture_path("fail/last.safetensors"), NULL), 3);
    }
}

/* The disk fills up while a tensor is written. */
static void test_file_too_large(void **state)
{
    (void)state;
    struct rlimit old, small;
    prepare("full");
    struct dpn_checkpoint_dir *dir = open_dir("full", 0, 1, 1);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    signal(SIGXFSZ, SIG_IGN);
    small = (struct rlimit){300, old.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    const enum dpn_status status = fixture_save(dir, 3, 1);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(status, DPN_ERR_SYSTEM);
    assert_non_null(strstr(dpn_error_text(), "step-00000003"));
    assert_int_equal(fixture_count("full", ".tmp-"), 0);
    assert_int_equal(resumed("auto", "full"), 2);
    dpn_checkpoint_dir_close(dir);
}

static void save_for_ever(const char *name, uint64_t step, int report)
{
    struct dpn_checkpoint_dir *dir;
    if (dpn_checkpoint_dir_open(fixture_path(name), 0, 1, 2, &dir) != DPN_OK) _exit(1);
    for (;; step++) {
        if (fixture_save(dir, step, step % 3 == 0) != DPN_OK) _exit(2);
        if (syscall(SYS_write, report, &step, sizeof(step)) != sizeof(step)) _exit(3);
    }
}

/* SIGKILL at random moments of a run that saves all the time. */
static void test_kill(void **state)
{
    (void)state;
    uint64_t found = 0;
    unsigned random = 12345;
    for (int round = 0; round < 100; round++) {
        int report[2], status;
        uint64_t complete = found, step;
        assert_int_equal(pipe(report), 0);
        pid_t child = fork();
        if (child == 0) save_for_ever("kill", found + 1, report[1]);
        close(report[1]);
        random = random * 1664525u + 1013904223u;
        usleep(500 + (random >> 8) % 20000);
        kill(child, SIGKILL);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status));
        while (read(report[0], &step, sizeof(step)) == sizeof(step)) complete = step;
        close(report[0]);
        found = resumed("auto", "kill");
        if (found < complete)
            fail_msg("round %d: step %" PRIu64 " was complete, %" PRIu64 " found", round, complete, found);
        if (fixture_exists("kill/last.safetensors"))
            assert_in_range(resumed(fixture_path("kill/last.safetensors"), NULL), complete, found);
    }
    print_message("%" PRIu64 " checkpoints in 100 rounds\n", found);
    assert_in_range(fixture_count("kill", "step-"), 1, 8);
}

static int setup(void **state)
{
    (void)state;
    fixture_open();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    fixture_close();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_create),         cmocka_unit_test(test_read_only),
        cmocka_unit_test(test_lock),           cmocka_unit_test(test_overwrite),
        cmocka_unit_test(test_keep),           cmocka_unit_test(test_no_links),
        cmocka_unit_test(test_every_crash),    cmocka_unit_test(test_stale_temporaries),
        cmocka_unit_test(test_every_failure),  cmocka_unit_test(test_kill),
        cmocka_unit_test(test_file_too_large),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
