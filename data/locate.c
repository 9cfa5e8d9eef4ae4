/* Where the folder of a data set is. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "data/data.h"

struct locate {
    const struct dpn_data_place *place;
    char *found; /* malloc'd */
    char tried[800];
    enum dpn_status status;
};

static void locate_note(struct locate *search, const char *dir)
{
    struct stat st;
    const char *why = "";
    if (stat(dir, &st) != 0) why = errno == ENOENT ? " (no such folder)" : " (cannot be read)";
    else if (!S_ISDIR(st.st_mode)) why = " (not a folder)";
    size_t length = strlen(search->tried);
    snprintf(search->tried + length, sizeof(search->tried) - length, "%s%s%s", length ? ", " : "", dir, why);
}

/* True if the search is over: DIR is it, or memory ran out. */
__attribute__((format(printf, 2, 3))) static int locate_try(struct locate *search, const char *format, ...)
{
    char *dir;
    int holds = 0;
    va_list args;
    va_start(args, format);
    int length = vasprintf(&dir, format, args);
    va_end(args);
    if (length < 0) {
        search->status = dpn_fail(DPN_ERR_NOMEM, "--data %s: no memory for a path", search->place->name);
        return 1;
    }
    search->status = search->place->holds(dir, &holds);
    if (search->status == DPN_OK && holds) {
        search->found = realpath(dir, NULL); /* two runs from two folders must show two paths */
        if (!search->found) search->status = dpn_fail_errno(DPN_ERR_INPUT, errno, "%s: cannot read", dir);
    } else if (search->status == DPN_OK) {
        locate_note(search, dir);
    }
    free(dir);
    return search->found || search->status != DPN_OK;
}

static int locate_root(struct locate *search, const char *root)
{
    return locate_try(search, "%s/%s", root, search->place->name) ||
           locate_try(search, "%s/%s/%s", root, search->place->name, search->place->below) ||
           locate_try(search, "%s/%s", root, search->place->below) || locate_try(search, "%s", root);
}

/* A folder or a --data-root that was given is the only place; $DPNODE_DATA is one more place to look. */
static int locate_all(struct locate *search, const char *argument, const char *root)
{
    if (argument)
        return locate_try(search, "%s", argument) ||
               locate_try(search, "%s/%s", argument, search->place->below);
    if (root[0]) return locate_root(search, root);
    const char *environment = getenv("DPNODE_DATA");
    if (environment && environment[0] && locate_root(search, environment)) return 1;
    if (locate_root(search, "./data/sets")) return 1;
    return search->place->system_folder && locate_try(search, "%s", search->place->system_folder);
}

enum dpn_status dpn_data_locate(const struct dpn_data_place *place, const char *argument, const char *root,
                                char **path)
{
    struct locate search = {.place = place};
    if (!locate_all(&search, argument, root))
        return dpn_fail(DPN_ERR_INPUT, "--data %s%s%s: not found in %s; wanted there: %s", place->name,
                        argument ? ":" : "", argument ? argument : "", search.tried, place->wanted);
    *path = search.found;
    return search.status;
}
