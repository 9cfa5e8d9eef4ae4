/* Groups of allowed CPUs that make devices. */
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "core/parse.h"
#include "topo/machine.h"

/* In the order of enum dpn_unit_kind, as --cpu-unit spells them. */
static const char *const units_names[] = {"auto", "package", "numa", "l3", "core", NULL};

const char *dpn_unit_kind_name(enum dpn_unit_kind kind)
{
    return units_names[kind];
}

enum dpn_status dpn_unit_kind_parse(const char *text, enum dpn_unit_kind *kind)
{
    int choice;
    DPN_TRY(dpn_parse_choice("--cpu-unit", text, units_names, &choice));
    *kind = (enum dpn_unit_kind)choice;
    return DPN_OK;
}

/* Logical index of the object of KIND that holds PU; -1 if none does. */
static int units_key(const struct dpn_topo_pu *pu, enum dpn_unit_kind kind)
{
    switch (kind) {
    case DPN_UNIT_PACKAGE: return pu->package;
    case DPN_UNIT_NUMA: return pu->node;
    case DPN_UNIT_L3: return pu->l3;
    default: return pu->core;
    }
}

/* Whether PU is the lowest-numbered allowed hardware thread of its core. Siblings are neighbours in logical
 * order. */
static int units_is_first_thread(const struct dpn_topo *topo, size_t pu)
{
    int core = topo->pus[pu].core;
    for (size_t i = pu; i > 0 && topo->pus[i - 1].core == core; i--)
        if (topo->pus[i - 1].cpu < topo->pus[pu].cpu) return 0;
    for (size_t i = pu + 1; i < topo->n_pus && topo->pus[i].core == core; i++)
        if (topo->pus[i].cpu < topo->pus[pu].cpu) return 0;
    return 1;
}

/* Position of KEY among the N keys, looked for from the end: neighbours in logical order mostly share a unit.
 * N if new. */
static size_t units_find(const int *keys, size_t n, int key)
{
    for (size_t i = n; i > 0; i--)
        if (keys[i - 1] == key) return i - 1;
    return n;
}

/* Units of one kind: one for every key that occurs, in order of first occurrence. KEYS and UNITS have room
 * for n_pus. Returns their number. */
static size_t units_group(const struct dpn_topo *topo, enum dpn_unit_kind kind, int smt, int *keys,
                          struct dpn_unit *units)
{
    size_t n = 0;
    for (size_t i = 0; i < topo->n_pus; i++) {
        const struct dpn_topo_pu *pu = &topo->pus[i];
        int key = units_key(pu, kind);
        if (key < 0 || (!smt && !units_is_first_thread(topo, i))) continue;
        size_t found = units_find(keys, n, key);
        struct dpn_unit *unit = &units[found];
        if (found == n) keys[n++] = key;
        if (unit->n_cpus == 0 || (int)pu->cpu < dpn_cpuset_next(&unit->cpus, -1)) {
            unit->node = pu->node_os;
            unit->package = pu->package;
        }
        dpn_cpuset_add(&unit->cpus, pu->cpu);
        unit->n_cpus++;
    }
    return n;
}

static enum dpn_status units_of_kind(const struct dpn_topo *topo, enum dpn_unit_kind kind, int smt,
                                     struct dpn_unit **units, size_t *n_units)
{
    int *keys = NULL;
    enum dpn_status status;
    *units = NULL;
    if ((status = dpn_calloc(&keys, topo->n_pus, sizeof *keys, "list of units")) != DPN_OK) goto out;
    if ((status = dpn_calloc(units, topo->n_pus, sizeof **units, "list of units")) != DPN_OK) goto out;
    *n_units = units_group(topo, kind, smt, keys, *units);
out:
    free(keys);
    return status;
}

enum dpn_status dpn_topo_units(const struct dpn_topo *topo, enum dpn_unit_kind kind, int smt,
                               struct dpn_unit **units, size_t *n_units, enum dpn_unit_kind *used)
{
    enum dpn_unit_kind tried = kind == DPN_UNIT_AUTO ? DPN_UNIT_PACKAGE : kind;
    for (;; tried++) {
        DPN_TRY(units_of_kind(topo, tried, smt, units, n_units));
        if (kind != DPN_UNIT_AUTO || tried == DPN_UNIT_CORE || *n_units > 1) break;
        free(*units);
    }
    *used = tried;
    if (*n_units > 0) return DPN_OK;
    free(*units);
    *units = NULL;
    return dpn_fail(DPN_ERR_USAGE,
                    "--cpu-unit '%s': this machine reports none (package, numa and core always exist)",
                    dpn_unit_kind_name(tried));
}
