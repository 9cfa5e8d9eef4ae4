/* Opens a data set by name and works out how its pixels become inputs. */
#include "data/data.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/parse.h"

/* ---- normalisation ---- */

static enum dpn_status dataset_set_constants(struct dpn_dataset *dataset, const char *option,
                                             const double *mean, size_t n_mean, const double *std,
                                             size_t n_std)
{
    double full = dataset->train.u8 ? 255.0 : 1.0; /* what a pixel is divided by before the constants apply */
    size_t channels = dataset->channels;
    if ((n_mean != 1 && n_mean != channels) || (n_std != 1 && n_std != channels))
        return dpn_fail(DPN_ERR_USAGE,
                        "--normalize %s: %zu means and %zu standard deviations for %zu channel%s", option,
                        n_mean, n_std, channels, channels == 1 ? "" : "s");
    for (size_t c = 0; c < channels; c++) {
        double m = mean[n_mean == 1 ? 0 : c], s = std[n_std == 1 ? 0 : c];
        if (!(s > 0))
            return dpn_fail(DPN_ERR_USAGE, "--normalize %s: a standard deviation must be above 0", option);
        double scale = 1.0 / (full * s), shift = -m / s;
        if (scale > FLT_MAX || fabs(shift) > FLT_MAX)
            return dpn_fail(DPN_ERR_USAGE, "--normalize %s: a standard deviation of %g is too small", option,
                            s);
        dataset->scale[c] = (float)scale;
        dataset->shift[c] = (float)shift;
    }
    return DPN_OK;
}

/* MEAN[,..]/STD[,..] */
static enum dpn_status dataset_parse_constants(struct dpn_dataset *dataset, const char *option)
{
    const double most = 1e9;
    double *mean = NULL, *std = NULL;
    size_t n_mean, n_std;
    char quoted[DPN_QUOTE_BYTES];
    enum dpn_status status;
    char *copy = strdup(option), *slash = copy ? strchr(copy, '/') : NULL;
    if (!copy) return dpn_fail(DPN_ERR_NOMEM, "--normalize: no memory");
    if (!slash) {
        status = dpn_fail(DPN_ERR_USAGE, "--normalize %s: wanted 'none' or MEAN[,..]/STD[,..]",
                          dpn_quote(option, quoted));
        goto out;
    }
    *slash = '\0';
    status = dpn_parse_double_list("--normalize, means:", copy, -most, most, &mean, &n_mean);
    if (status != DPN_OK) goto out;
    status = dpn_parse_double_list("--normalize, standard deviations:", slash + 1, 0, most, &std, &n_std);
    if (status != DPN_OK) goto out;
    status = dataset_set_constants(dataset, option, mean, n_mean, std, n_std);
    snprintf(dataset->normalize, sizeof(dataset->normalize), "mean %s / std %s", copy, slash + 1);
out:
    free(std);
    free(mean);
    free(copy);
    return status;
}

static void dataset_describe_constants(struct dpn_dataset *dataset)
{
    const struct dpn_dataset_class *cls = dataset->cls;
    const double *lists[2] = {cls->mean, cls->std};
    const char *starts[2] = {"mean ", " / std "};
    size_t size = sizeof(dataset->normalize), length = 0;
    for (int l = 0; l < 2; l++)
        for (size_t i = 0; i < cls->n_constants && length < size; i++)
            length += (size_t)snprintf(dataset->normalize + length, size - length, "%s%.4f",
                                       i ? "," : starts[l], lists[l][i]);
}

static enum dpn_status dataset_normalize(struct dpn_dataset *dataset, const char *option)
{
    const struct dpn_dataset_class *cls = dataset->cls;
    if (option[0] && strcmp(option, "none") != 0) return dataset_parse_constants(dataset, option);
    if (!option[0] && cls->mean) {
        dataset_describe_constants(dataset);
        return dataset_set_constants(dataset, "(the set's constants)", cls->mean, cls->n_constants, cls->std,
                                     cls->n_constants);
    }
    snprintf(dataset->normalize, sizeof(dataset->normalize), "%s", dataset->train.u8 ? "1/255" : "as is");
    const double mean = 0, std = 1;
    return dataset_set_constants(dataset, option, &mean, 1, &std, 1);
}

/* ---- opening ---- */

static enum dpn_status dataset_find_class(const char *name, const struct dpn_dataset_class **cls)
{
    enum { MOST = 64 };
    const char *words[MOST + 1];
    int n = 0, choice;
    for (; dpn_dataset_classes[n]; n++) {
        assert(n < MOST);
        words[n] = dpn_dataset_classes[n]->name;
    }
    words[n] = NULL;
    DPN_TRY(dpn_parse_choice("--data", name, words, &choice));
    *cls = dpn_dataset_classes[choice];
    return DPN_OK;
}

/* The spec that stands for none, in full. */
static const char *dataset_default_spec(const char *data_root)
{
    if (data_root[0]) return "fashion-mnist";
    int there = access(DPN_FASHION_MNIST_DEBIAN_DIR, F_OK) == 0;
    return there ? "fashion-mnist:" DPN_FASHION_MNIST_DEBIAN_DIR : "synthetic";
}

static enum dpn_status dataset_open_class(const struct dpn_dataset_class *cls, const char *argument,
                                          const struct dpn_dataset_request *request,
                                          struct dpn_dataset *dataset)
{
    *dataset = (struct dpn_dataset){.cls = cls};
    snprintf(dataset->name, sizeof(dataset->name), "%s", cls->name);
    enum dpn_status status = cls->open(cls, argument, request->data_root, dataset);
    if (status != DPN_OK) {
        *dataset = (struct dpn_dataset){0};
        return status;
    }
    assert(dataset->path && dataset->train.n > 0 && !dataset->train.u8 == !!dataset->train.f32);
    assert(dataset->channels >= 1 && dataset->channels <= DPN_MAX_CHANNELS);
    assert(dataset->classes >= 1 && dataset->classes <= DPN_MAX_CLASSES);
    dataset->sample_elems = dataset->channels * dataset->height * dataset->width;
    status = dataset_normalize(dataset, request->normalize);
    if (status != DPN_OK) dpn_dataset_close(dataset);
    return status;
}

enum dpn_status dpn_dataset_open(const struct dpn_dataset_request *request, struct dpn_dataset *dataset)
{
    uint64_t start_ns = dpn_now_ns();
    const struct dpn_dataset_class *cls = NULL;
    const char *spec = request->spec;
    *dataset = (struct dpn_dataset){0};
    if (!spec[0] || strcmp(spec, "auto") == 0) spec = dataset_default_spec(request->data_root);
    char *name = strdup(spec);
    if (!name) return dpn_fail(DPN_ERR_NOMEM, "--data: no memory");
    char *argument = strchr(name, ':');
    if (argument) *argument++ = '\0';

    enum dpn_status status = dataset_find_class(name, &cls);
    if (status == DPN_OK && argument && !argument[0])
        status = dpn_fail(DPN_ERR_USAGE, "--data '%s:': nothing stands after the colon", name);
    if (status == DPN_OK) status = dataset_open_class(cls, argument, request, dataset);
    free(name);
    if (status == DPN_OK) dataset->read_ns = dpn_now_ns() - start_ns;
    return status;
}

void dpn_dataset_close(struct dpn_dataset *dataset)
{
    if (!dataset->cls) return;
    dataset->cls->close(dataset);
    free(dataset->path);
    *dataset = (struct dpn_dataset){0};
}
