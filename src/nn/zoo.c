/* The models. */
#include <stdio.h>

#include "nn/nn.h"

enum { ZOO_MAX_HIDDEN = 16 };

static int zoo_dense(struct dpn_model_builder *builder)
{
    int x = dpn_build_flatten(builder, 0);
    x = dpn_build_dense(builder, x, "fc", dpn_build_classes(builder), 0.01);
    return dpn_build_relu(builder, x);
}

const struct dpn_model_class dpn_model_dense = {
    .name = "dense",
    .summary = "one dense layer, then ReLU on the logits (the MindSpore tutorial's)",
    .keys = "",
    .build = zoo_dense,
};

static int zoo_mlp(struct dpn_model_builder *builder)
{
    size_t hidden[ZOO_MAX_HIDDEN];
    size_t n = dpn_build_sizes(builder, "hidden", hidden, ZOO_MAX_HIDDEN);
    char name[32];
    int x = dpn_build_flatten(builder, 0);
    for (size_t i = 0; i < n; i++) {
        snprintf(name, sizeof name, "fc%zu", i + 1);
        x = dpn_build_dense(builder, x, name, hidden[i], 0.0);
        x = dpn_build_relu(builder, x);
    }
    snprintf(name, sizeof name, "fc%zu", n + 1);
    return dpn_build_dense(builder, x, name, dpn_build_classes(builder), 0.0);
}

const struct dpn_model_class dpn_model_mlp = {
    .name = "mlp",
    .summary = "dense layers with ReLU between them",
    .keys = "hidden=128x64",
    .build = zoo_mlp,
};
