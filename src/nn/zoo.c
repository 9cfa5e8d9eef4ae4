/* The models. */
#include <stdio.h>

#include "nn/nn.h"

enum { ZOO_MAX_HIDDEN = 16 };

static int zoo_dense(struct dpn_model_builder *builder)
{
    int x = dpn_build_dense(builder, 0, "fc", dpn_build_classes(builder), 0.01);
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
    int x = 0;
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

static int zoo_lenet(struct dpn_model_builder *builder)
{
    int x = dpn_build_conv(builder, 0, "conv1", &(struct dpn_conv_options){6, 5, 5, 1, 2, .bias = 1});
    x = dpn_build_max_pool(builder, dpn_build_relu(builder, x), 2, 2, 0);
    x = dpn_build_conv(builder, x, "conv2", &(struct dpn_conv_options){16, 5, 5, 1, 0, .bias = 1});
    x = dpn_build_max_pool(builder, dpn_build_relu(builder, x), 2, 2, 0);
    x = dpn_build_relu(builder, dpn_build_dense(builder, x, "fc1", 120, 0.0));
    x = dpn_build_relu(builder, dpn_build_dense(builder, x, "fc2", 84, 0.0));
    return dpn_build_dense(builder, x, "fc3", dpn_build_classes(builder), 0.0);
}

const struct dpn_model_class dpn_model_lenet = {
    .name = "lenet",
    .summary = "LeNet-5 with ReLU and maximum pooling (LeCun et al. 1998)",
    .keys = "",
    .build = zoo_lenet,
};

/* Conv2d without bias, then batch norm: OWNER.AT and OWNER.AT+1. */
static int zoo_conv_norm(struct dpn_model_builder *builder, int x, const char *owner, int at, size_t out,
                         size_t kernel, size_t stride)
{
    char conv[DPN_NAME_BYTES], norm[DPN_NAME_BYTES];
    snprintf(conv, sizeof conv, "%s.%d", owner, at);
    snprintf(norm, sizeof norm, "%s.%d", owner, at + 1);
    x = dpn_build_conv(builder, x, conv,
                       &(struct dpn_conv_options){out, kernel, kernel, stride, kernel / 2, .bias = 0});
    return dpn_build_batch_norm(builder, x, norm);
}

/* He et al. 2015, the basic block: relu(norm(conv(relu(norm(conv(x))))) + shortcut(x)). */
static int zoo_block(struct dpn_model_builder *builder, int x, const char *owner, size_t out, size_t stride)
{
    char name[DPN_NAME_BYTES - 24];
    const struct dpn_value *in = dpn_build_shape(builder, x);
    if (!in) return -1;
    int same = stride == 1 && in->channels == out, shortcut = x;
    snprintf(name, sizeof name, "%s.residual_function", owner);
    int y = dpn_build_relu(builder, zoo_conv_norm(builder, x, name, 0, out, 3, stride));
    y = zoo_conv_norm(builder, y, name, 3, out, 3, 1);
    snprintf(name, sizeof name, "%s.shortcut", owner);
    if (!same) shortcut = zoo_conv_norm(builder, x, name, 0, out, 1, stride);
    return dpn_build_relu(builder, dpn_build_add(builder, y, shortcut));
}

/* The form for CIFAR: a 3x3 stem, then stages conv2, conv3, ... of blocks, each but the first halving the
 * image and doubling the channels. */
static int zoo_resnet(struct dpn_model_builder *builder, const size_t *blocks, size_t stages)
{
    size_t width;
    char name[32];
    if (dpn_build_sizes(builder, "width", &width, 1) != 1) return -1;
    int x = dpn_build_relu(builder, zoo_conv_norm(builder, 0, "conv1", 0, width, 3, 1));
    for (size_t s = 0; s < stages; s++, width *= 2) {
        for (size_t b = 0; b < blocks[s]; b++) {
            snprintf(name, sizeof name, "conv%zu.%zu", s + 2, b);
            x = zoo_block(builder, x, name, width, s > 0 && b == 0 ? 2 : 1);
        }
    }
    x = dpn_build_global_average_pool(builder, x);
    return dpn_build_dense(builder, x, "dense_layer", dpn_build_classes(builder), 0.0);
}

static int zoo_resnet18(struct dpn_model_builder *builder)
{
    return zoo_resnet(builder, (const size_t[]){2, 2, 2, 2}, 4);
}

const struct dpn_model_class dpn_model_resnet18 = {
    .name = "resnet18",
    .summary = "ResNet-18 in the form for CIFAR (3x3 stem)",
    .keys = "width=64",
    .build = zoo_resnet18,
};

static int zoo_resnet34(struct dpn_model_builder *builder)
{
    return zoo_resnet(builder, (const size_t[]){3, 4, 6, 3}, 4);
}

const struct dpn_model_class dpn_model_resnet34 = {
    .name = "resnet34",
    .summary = "ResNet-34 in the form for CIFAR (3x3 stem)",
    .keys = "width=64",
    .build = zoo_resnet34,
};

static int zoo_resnet20(struct dpn_model_builder *builder)
{
    return zoo_resnet(builder, (const size_t[]){3, 3, 3}, 3);
}

const struct dpn_model_class dpn_model_resnet20 = {
    .name = "resnet20",
    .summary = "ResNet-20 of He et al. 2015 for CIFAR, 1x1 convolutions as shortcuts",
    .keys = "width=16",
    .build = zoo_resnet20,
};
