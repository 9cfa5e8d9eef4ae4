/* The output folder: names, opening and locking it, and what is removed from it. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/log.h"
#include "core/memory.h"
#include "train/checkpoint_private.h"

/* ---- names ---- */

/* TEXT is PREFIX and a number as "%0<width>u" prints it. */
static int dir_is_numbered(const char *text, const char *prefix, size_t width)
{
    const size_t skip = strlen(prefix);
    if (strncmp(text, prefix, skip) != 0) return 0;
    const size_t digits = strspn(text + skip, "0123456789");
    return text[skip + digits] == '\0' &&
           (digits == width || (digits > width && digits <= 20 && text[skip] != '0'));
}

enum dpn_ckpt_file dpn_ckpt_classify(const char *file, char stem[DPN_CKPT_STEM_BYTES])
{
    static const char state_suffix[] = DPN_STATE_SUFFIX, weights_suffix[] = DPN_WEIGHTS_SUFFIX;
    size_t length = strlen(file), suffix = sizeof(weights_suffix) - 1;
    enum dpn_ckpt_file kind = DPN_CKPT_WEIGHTS;
    stem[0] = '\0';
    if (strncmp(file, DPN_CKPT_TEMP_PREFIX, sizeof(DPN_CKPT_TEMP_PREFIX) - 1) == 0) return DPN_CKPT_TEMP;
    if (length > sizeof(state_suffix) - 1 &&
        strcmp(file + length - (sizeof(state_suffix) - 1), state_suffix) == 0) {
        kind = DPN_CKPT_STATE;
        suffix = sizeof(state_suffix) - 1;
    } else if (length <= suffix || strcmp(file + length - suffix, weights_suffix) != 0) {
        return DPN_CKPT_OTHER;
    }
    if (length - suffix >= DPN_CKPT_STEM_BYTES) return DPN_CKPT_OTHER;
    memcpy(stem, file, length - suffix);
    stem[length - suffix] = '\0';
    if (strcmp(stem, "last") == 0 || dir_is_numbered(stem, "epoch-", 4) || dir_is_numbered(stem, "step-", 8))
        return kind;
    if (strcmp(stem, "best") == 0 && kind == DPN_CKPT_WEIGHTS) return DPN_CKPT_BEST;
    stem[0] = '\0';
    return DPN_CKPT_OTHER;
}

char *dpn_ckpt_path(const char *folder, const char *stem, const char *suffix)
{
    char *path;
    return asprintf(&path, "%s/%s%s", folder, stem, suffix) < 0 ? NULL : path;
}

char *dpn_ckpt_slot_name(const char *slot, const char *tensor)
{
    char *name;
    return asprintf(&name, "%s.%s", slot, tensor) < 0 ? NULL : name;
}

static int dir_is_name(const struct dirent *entry)
{
    return strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
}

enum dpn_status dpn_ckpt_scan(const char *path, enum dpn_status (*each)(void *arg, const char *name),
                              void *arg)
{
    struct dirent **entries;
    int n = scandir(path, &entries, dir_is_name, alphasort);
    if (n < 0) return dpn_fail_errno(DPN_ERR_INPUT, errno, "%s: cannot read the folder", path);
    enum dpn_status status = DPN_OK;
    for (int i = 0; i < n; i++) {
        if (status == DPN_OK) status = each(arg, entries[i]->d_name);
        free(entries[i]);
    }
    free(entries);
    return status;
}

/* ---- list ---- */

struct dir_list {
    const char *path;
    struct dpn_ckpt_entry *entries;
    size_t n, capacity;
};

static enum dpn_status dir_list_add(void *arg, const char *name)
{
    struct dir_list *list = arg;
    struct dpn_ckpt_entry entry = {.readable = 0};
    if (dpn_ckpt_classify(name, entry.stem) != DPN_CKPT_STATE) return DPN_OK;
    if (list->n == list->capacity) {
        const size_t capacity = list->capacity ? 2 * list->capacity : 16;
        struct dpn_ckpt_entry *bigger = reallocarray(list->entries, capacity, sizeof(*bigger));
        if (!bigger) return dpn_fail(DPN_ERR_NOMEM, "%s: no memory to list it", list->path);
        list->entries = bigger;
        list->capacity = capacity;
    }
    struct dpn_st_file *state = NULL;
    struct dpn_progress_record record;
    char *path = dpn_ckpt_path(list->path, name, "");
    if (!path) return dpn_fail(DPN_ERR_NOMEM, "%s: no memory to list it", list->path);
    if (dpn_st_open(path, &state) == DPN_OK && dpn_ckpt_record_read(state, &record) == DPN_OK) {
        entry.readable = 1;
        entry.global_step = record.global_step;
    }
    dpn_st_close(state);
    free(path);
    list->entries[list->n++] = entry;
    return DPN_OK;
}

static int dir_compare_entries(const void *a, const void *b)
{
    const struct dpn_ckpt_entry *x = a, *y = b;
    if (x->readable != y->readable) return x->readable - y->readable;
    if (x->global_step != y->global_step) return x->global_step > y->global_step ? -1 : 1;
    const int x_last = strcmp(x->stem, "last") == 0, y_last = strcmp(y->stem, "last") == 0;
    return x_last != y_last ? x_last - y_last : strcmp(x->stem, y->stem);
}

enum dpn_status dpn_ckpt_list(const char *path, struct dpn_ckpt_entry **entries, size_t *n_entries)
{
    struct dir_list list = {.path = path};
    enum dpn_status status = dpn_ckpt_scan(path, dir_list_add, &list);
    *entries = NULL;
    *n_entries = 0;
    if (status != DPN_OK) {
        free(list.entries);
        return status;
    }
    if (list.n > 0) qsort(list.entries, list.n, sizeof(*list.entries), dir_compare_entries);
    *entries = list.entries;
    *n_entries = list.n;
    return DPN_OK;
}

/* ---- opening ---- */

/* How much of PATH names its parent, the slash included; 0: the current folder. */
static size_t dir_parent_length(const char *path)
{
    size_t length = strlen(path);
    while (length > 0 && path[length - 1] == '/') length--;
    while (length > 0 && path[length - 1] != '/') length--;
    return length;
}

/* Removes CREATED levels of PATH, from the innermost, as far as they are empty. Changes PATH. */
static void dir_unmake(char *path, size_t created)
{
    for (; created > 0 && rmdir(path) == 0; created--) path[dir_parent_length(path)] = '\0';
}

/* Creates PATH and its missing parents; *CREATED counts levels. What was created goes again if a later level
 * fails. */
static int dir_make(const char *path, size_t *created)
{
    *created = 0;
    if (mkdir(path, 0777) == 0) {
        *created = 1;
        return 0;
    }
    if (errno == EEXIST) return 0;
    if (errno != ENOENT) return errno;

    size_t length = dir_parent_length(path);
    while (length > 1 && path[length - 1] == '/') length--;
    if (length == 0) return ENOENT;
    char *parent = strndup(path, length);
    if (!parent) return ENOMEM;
    size_t above = 0;
    int error = dir_make(parent, &above);
    if (error == 0) {
        if (mkdir(path, 0777) == 0) *created = above + 1;
        else if (errno != EEXIST) error = errno;
        if (error != 0) dir_unmake(parent, above);
    }
    free(parent);
    return error;
}

static enum dpn_status dir_lock(struct dpn_checkpoint_dir *dir)
{
    dir->fd = open(dir->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir->fd < 0)
        return dpn_fail_errno(DPN_ERR_USAGE, errno, "--out %s: cannot open the folder", dir->path);
    if (flock(dir->fd, LOCK_EX | LOCK_NB) == 0) {
        dir->locked = 1;
    } else if (errno == EWOULDBLOCK) {
        return dpn_fail(DPN_ERR_USAGE, "--out %s: another run is writing there", dir->path);
    } else { /* a file system without locks: the run is as safe as its user */
        dpn_note_verbose("--out %s: cannot be locked (%s)", dir->path, strerror(errno));
    }
    return DPN_OK;
}

/* Finds out now, not at the first save, that nothing can be written. */
static enum dpn_status dir_probe(const struct dpn_checkpoint_dir *dir)
{
    char name[DPN_CKPT_NAME_BYTES];
    snprintf(name, sizeof(name), DPN_CKPT_TEMP_PREFIX "%ld-probe", (long)getpid());
    int fd = openat(dir->fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) return dpn_fail_errno(DPN_ERR_USAGE, errno, "--out %s: cannot create a file", dir->path);
    ssize_t written = write(fd, "\n", 1);
    int error = written == 1 ? 0 : errno;
    if (close(fd) != 0 && error == 0) error = errno;
    if (unlinkat(dir->fd, name, 0) != 0 && error == 0) error = errno;
    if (error != 0) return dpn_fail_errno(DPN_ERR_USAGE, error, "--out %s: cannot write a file", dir->path);
    return DPN_OK;
}

static enum dpn_status dir_note_old(void *arg, const char *name)
{
    struct dpn_checkpoint_dir *dir = arg;
    char stem[DPN_CKPT_STEM_BYTES];
    const enum dpn_ckpt_file kind = dpn_ckpt_classify(name, stem);
    if (kind == DPN_CKPT_OTHER || kind == DPN_CKPT_TEMP) return DPN_OK;
    void *bigger = reallocarray(dir->old, dir->n_old + 1, sizeof(*dir->old));
    if (!bigger) return dpn_fail(DPN_ERR_NOMEM, "--out %s: no memory to list it", dir->path);
    dir->old = bigger;
    snprintf(dir->old[dir->n_old++], DPN_CKPT_NAME_BYTES, "%s", name);
    return DPN_OK;
}

static enum dpn_status dir_remove_temp(void *arg, const char *name)
{
    const struct dpn_checkpoint_dir *dir = arg;
    char stem[DPN_CKPT_STEM_BYTES];
    if (dpn_ckpt_classify(name, stem) == DPN_CKPT_TEMP && unlinkat(dir->fd, name, 0) != 0 && errno != ENOENT)
        dpn_warn("%s/%s: cannot remove it: %s", dir->path, name, strerror(errno));
    return DPN_OK;
}

/* Locks the folder and looks at what is there. */
static enum dpn_status dir_examine(struct dpn_checkpoint_dir *dir, int overwrite, int resume)
{
    DPN_TRY(dir_lock(dir));
    if (dpn_ckpt_scan(dir->path, dir_note_old, dir) != DPN_OK)
        return dpn_fail(DPN_ERR_USAGE, "--out %s: cannot list the folder", dir->path);
    if (dir->n_old > 0 && !overwrite && !resume)
        return dpn_fail(
            DPN_ERR_USAGE,
            "--out %s: holds a run already (%s): give --resume auto, --overwrite or another folder",
            dir->path, dir->old[0]);
    if (resume) dir->n_old = 0;
    return DPN_OK;
}

static enum dpn_status dir_prepare(struct dpn_checkpoint_dir *dir, int overwrite, int resume)
{
    DPN_TRY(dir_examine(dir, overwrite, resume));
    DPN_TRY(dir_probe(dir));
    /* Without a lock these may belong to a run that is alive. */
    if (dir->locked) DPN_TRY(dpn_ckpt_scan(dir->path, dir_remove_temp, dir));
    return DPN_OK;
}

static enum dpn_status dir_new(const char *path, struct dpn_checkpoint_dir **dir)
{
    DPN_TRY(dpn_calloc(dir, 1, sizeof(**dir), "output folder"));
    (*dir)->fd = -1;
    (*dir)->path = strdup(path);
    if ((*dir)->path) return DPN_OK;
    free(*dir);
    *dir = NULL;
    return dpn_fail(DPN_ERR_NOMEM, "--out %s: no memory to open it", path);
}

/* Whether PATH, which is not there, could be made: its nearest parent that is there takes new folders. */
static int dir_can_make(const char *path)
{
    char *parent = strdup(path);
    int error = parent ? ENOENT : ENOMEM;
    while (error == ENOENT) {
        const size_t length = dir_parent_length(parent);
        parent[length] = '\0';
        error = access(length > 0 ? parent : ".", W_OK | X_OK) == 0 ? 0 : errno;
        if (length == 0) break;
    }
    free(parent);
    return error;
}

enum dpn_status dpn_checkpoint_dir_check(const char *path, int overwrite, int resume)
{
    struct dpn_checkpoint_dir *dir;
    if (access(path, F_OK) != 0) {
        int error = errno == ENOENT ? dir_can_make(path) : errno;
        if (error == 0) return DPN_OK;
        return dpn_fail_errno(DPN_ERR_USAGE, error, "--out %s: cannot create the folder", path);
    }
    DPN_TRY(dir_new(path, &dir));
    enum dpn_status status = dir_examine(dir, overwrite, resume);
    if (status == DPN_OK && access(path, W_OK | X_OK) != 0)
        status = dpn_fail_errno(DPN_ERR_USAGE, errno, "--out %s: cannot create a file", path);
    dpn_checkpoint_dir_close(dir);
    return status;
}

enum dpn_status dpn_checkpoint_dir_open(const char *path, int overwrite, int resume, uint64_t keep,
                                        struct dpn_checkpoint_dir **out)
{
    struct dpn_checkpoint_dir *dir;
    *out = NULL;
    DPN_TRY(dir_new(path, &dir));
    dir->keep = keep;
    enum dpn_status status = DPN_OK;
    int error = dir_make(path, &dir->created);
    if (error != 0) status = dpn_fail_errno(DPN_ERR_USAGE, error, "--out %s: cannot create the folder", path);
    if (status == DPN_OK) status = dir_prepare(dir, overwrite, resume);
    if (status == DPN_OK) *out = dir;
    else dpn_checkpoint_dir_close(dir);
    return status;
}

void dpn_checkpoint_dir_close(struct dpn_checkpoint_dir *dir)
{
    if (!dir) return;
    if (dir->path) dir_unmake(dir->path, dir->created);
    if (dir->fd >= 0) close(dir->fd);
    free(dir->old);
    free(dir->path);
    free(dir);
}

/* ---- after a save ---- */

static void dir_remove(const struct dpn_checkpoint_dir *dir, const char *name)
{
    if (unlinkat(dir->fd, name, 0) != 0 && errno != ENOENT)
        dpn_warn("%s/%s: cannot remove it: %s", dir->path, name, strerror(errno));
}

/* Weights first: what a crash leaves in between still counts as an old checkpoint, which the next pruning
 * removes. */
static void dir_remove_checkpoint(const struct dpn_checkpoint_dir *dir, const char *stem)
{
    char name[DPN_CKPT_NAME_BYTES];
    snprintf(name, sizeof(name), "%s" DPN_WEIGHTS_SUFFIX, stem);
    dir_remove(dir, name);
    snprintf(name, sizeof(name), "%s" DPN_STATE_SUFFIX, stem);
    dir_remove(dir, name);
}

/* States first: after the first few calls nothing is left that --resume auto would take for the newest. */
static void dir_remove_old(struct dpn_checkpoint_dir *dir, const char *saved, int best)
{
    for (int state = 1; state >= 0; state--) {
        for (size_t i = 0; i < dir->n_old; i++) {
            char stem[DPN_CKPT_STEM_BYTES];
            const enum dpn_ckpt_file kind = dpn_ckpt_classify(dir->old[i], stem);
            const int new_now = strcmp(stem, saved) == 0 || strcmp(stem, "last") == 0 ||
                                (kind == DPN_CKPT_BEST && best);
            if (!new_now && (kind == DPN_CKPT_STATE) == state) dir_remove(dir, dir->old[i]);
        }
    }
    dir->n_old = 0;
}

static void dir_prune(const struct dpn_checkpoint_dir *dir, const char *saved)
{
    struct dpn_ckpt_entry *entries;
    size_t n;
    uint64_t kept = 1;
    if (dpn_ckpt_list(dir->path, &entries, &n) != DPN_OK) {
        dpn_warn("%s: old checkpoints stay: %s", dir->path, dpn_error_text());
        return;
    }
    for (size_t i = 0; i < n; i++) {
        const char *stem = entries[i].stem;
        if (!entries[i].readable || strcmp(stem, "last") == 0 || strcmp(stem, saved) == 0) continue;
        if (kept < dir->keep) kept++;
        else dir_remove_checkpoint(dir, stem);
    }
    free(entries);
}

void dpn_ckpt_tidy(struct dpn_checkpoint_dir *dir, const char *stem, int best)
{
    dir_remove_old(dir, stem, best);
    if (dir->keep > 0) dir_prune(dir, stem);
}
