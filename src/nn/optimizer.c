/* Finding optimizers by name. */
#include <assert.h>

#include "core/parse.h"
#include "nn/nn.h"

enum { OPTIM_MAX_CLASSES = 32 };

enum dpn_status dpn_optimizer_find(const char *name, const struct dpn_optimizer_class **cls)
{
    const char *words[OPTIM_MAX_CLASSES + 1] = {NULL};
    int at;
    for (size_t i = 0; dpn_optimizer_classes[i]; i++) {
        assert(i < OPTIM_MAX_CLASSES);
        words[i] = dpn_optimizer_classes[i]->name;
    }
    DPN_TRY(dpn_parse_choice("--optimizer", name, words, &at));
    *cls = dpn_optimizer_classes[at];
    return DPN_OK;
}
