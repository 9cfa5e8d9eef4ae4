/* The CPU time that control groups grant: the least over this process's own group and all groups above it. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "topo/topo.h"

/* What the mounts of one hierarchy said. */
struct quota_found {
    int own_seen; /* the own group lies below a mount */
    double own;   /* the least over it and those above */
    double other; /* at mounts of other groups: all that is visible where the own one is not */
};

struct quota_search {
    const char *root;
    char v1_path[PATH_MAX];      /* own group in the hierarchy of the v1 "cpu" controller; "" if none */
    char v2_path[PATH_MAX];      /* own group in the v2 hierarchy; "" if none */
    struct quota_found found[2]; /* v1, v2 */
};

/* One line of /proc/self/mountinfo that mounts a hierarchy of groups. */
struct quota_mount {
    const char *group; /* the group that lies at the mount point */
    const char *point;
    int version;
};

/* Whether WORD is one of the comma-separated LIST. */
static int quota_lists(const char *list, const char *word)
{
    size_t length = strlen(word);
    while (*list) {
        size_t item = strcspn(list, ",\n");
        if (item == length && strncmp(list, word, length) == 0) return 1;
        list += item;
        list += *list != '\0';
    }
    return 0;
}

static double quota_least(double a, double b) /* 0: unlimited */
{
    if (a <= 0) return b;
    if (b <= 0) return a;
    return a < b ? a : b;
}

/* Number in FILE of DIR; FALLBACK if there is none ("max", -1, no such file). With PERIOD, the number that
 * follows too. */
static double quota_read(const char *dir, const char *file, double fallback, double *period)
{
    char path[PATH_MAX], line[128] = "", *end;
    FILE *stream;
    if ((size_t)snprintf(path, sizeof path, "%s/%s", dir, file) >= sizeof path) return fallback;
    if (!(stream = fopen(path, "re"))) return fallback;
    if (!fgets(line, sizeof line, stream)) line[0] = '\0';
    fclose(stream);
    unsigned long long value = strtoull(line, &end, 10);
    if (end == line || line[0] == '-') return fallback;
    if (period) {
        char *after;
        unsigned long long second = strtoull(end, &after, 10);
        if (after != end) *period = (double)second;
    }
    return (double)value;
}

/* CPUs granted by the group in DIR alone. */
static double quota_of_group(const char *dir, int version)
{
    double period = 100000; /* microseconds; the kernel's default */
    double quota;
    if (version == 2) {
        quota = quota_read(dir, "cpu.max", 0, &period);
    } else {
        quota = quota_read(dir, "cpu.cfs_quota_us", 0, NULL);
        period = quota_read(dir, "cpu.cfs_period_us", period, NULL);
    }
    return quota > 0 && period > 0 ? quota / period : 0;
}

/* The least over the group at POINT/BELOW and those above it, up to the mount point. */
static double quota_walk(const char *root, const char *point, const char *below, int version)
{
    char dir[PATH_MAX];
    double least = 0;
    size_t top = (size_t)snprintf(dir, sizeof dir, "%s%s", root, point);
    if (top >= sizeof dir) return 0;
    if ((size_t)snprintf(dir + top, sizeof dir - top, "%s", below) >= sizeof dir - top) return 0;
    for (;;) {
        least = quota_least(least, quota_of_group(dir, version));
        char *slash = strrchr(dir + top, '/');
        if (!slash) return least;
        *slash = '\0';
    }
}

static void quota_find_own_groups(struct quota_search *search)
{
    char path[PATH_MAX], *line = NULL;
    size_t capacity = 0;
    FILE *stream;
    if ((size_t)snprintf(path, sizeof path, "%s/proc/self/cgroup", search->root) >= sizeof path) return;
    if (!(stream = fopen(path, "re"))) return;
    while (getline(&line, &capacity, stream) > 0) { /* "4:cpu,cpuacct:/group", "0::/group" */
        char *controllers = strchr(line, ':');
        char *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group) continue;
        *controllers++ = '\0';
        *group++ = '\0';
        group[strcspn(group, "\n")] = '\0';
        if (quota_lists(controllers, "cpu")) snprintf(search->v1_path, sizeof search->v1_path, "%s", group);
        else if (strcmp(line, "0") == 0 && controllers[0] == '\0')
            snprintf(search->v2_path, sizeof search->v2_path, "%s", group);
    }
    free(line);
    fclose(stream);
}

/* Undoes mountinfo's \040 for spaces and the like, in place. */
static void quota_unescape(char *text)
{
    char *to = text;
    for (const char *from = text; *from; to++) {
        if (from[0] == '\\' && strspn(from + 1, "01234567") >= 3) {
            *to = (char)((from[1] - '0') * 64 + (from[2] - '0') * 8 + (from[3] - '0'));
            from += 4;
        } else {
            *to = *from++;
        }
    }
    *to = '\0';
}

/* "31 23 0:28 /group /point rw - cgroup2 source options". Cuts LINE up; returns whether it mounts groups of
 * CPU time. */
static int quota_parse_mount(char *line, struct quota_mount *mount)
{
    char *tail = strstr(line, " - ");
    char *head[5] = {NULL}, *type, *options, *save = NULL; /* head: id, parent, device, group, point */
    if (!tail) return 0;
    *tail = '\0';
    for (int i = 0; i < 5; i++) head[i] = strtok_r(i == 0 ? line : NULL, " ", &save);
    type = strtok_r(tail + 3, " \n", &save);
    strtok_r(NULL, " \n", &save);
    options = strtok_r(NULL, " \n", &save);
    if (!head[4] || !type) return 0;
    if (strcmp(type, "cgroup2") == 0) mount->version = 2;
    else if (strcmp(type, "cgroup") == 0 && options && quota_lists(options, "cpu")) mount->version = 1;
    else return 0;
    quota_unescape(head[3]);
    quota_unescape(head[4]);
    mount->group = strcmp(head[3], "/") == 0 ? "" : head[3];
    mount->point = strcmp(head[4], "/") == 0 ? "" : head[4];
    return 1;
}

/* What of the group PATH lies below the mounted GROUP ("" or "/sub/group"); NULL if it lies elsewhere, as
 * seen from inside a container that was given only its own part of the hierarchy. */
static const char *quota_below(const char *group, const char *path)
{
    size_t length = strlen(group);
    if (strncmp(path, group, length) != 0 || strstr(path, "/..")) return NULL;
    path += length;
    if (path[0] != '\0' && path[0] != '/') return NULL;
    return strcmp(path, "/") == 0 ? "" : path;
}

/* Adds what one mount says. */
static void quota_visit(struct quota_search *search, const struct quota_mount *mount)
{
    const char *own = mount->version == 2 ? search->v2_path : search->v1_path;
    struct quota_found *found = &search->found[mount->version - 1];
    if (own[0] == '\0') return;
    const char *below = quota_below(mount->group, own);
    if (below) {
        found->own_seen = 1;
        found->own = quota_least(found->own, quota_walk(search->root, mount->point, below, mount->version));
    } else {
        found->other = quota_least(found->other, quota_walk(search->root, mount->point, "", mount->version));
    }
}

double dpn_topo_cpu_quota(const char *root)
{
    struct quota_search search = {.root = root && strcmp(root, "/") != 0 ? root : ""};
    char path[PATH_MAX], *line = NULL;
    size_t capacity = 0;
    double least = 0;
    FILE *stream;

    quota_find_own_groups(&search);
    if ((size_t)snprintf(path, sizeof path, "%s/proc/self/mountinfo", search.root) >= sizeof path) return 0;
    if (!(stream = fopen(path, "re"))) return 0;
    while (getline(&line, &capacity, stream) > 0) {
        struct quota_mount mount;
        if (quota_parse_mount(line, &mount)) quota_visit(&search, &mount);
    }
    free(line);
    fclose(stream);
    for (int i = 0; i < 2; i++)
        least = quota_least(least, search.found[i].own_seen ? search.found[i].own : search.found[i].other);
    return least;
}
