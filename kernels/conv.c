/* Which convolution algorithm serves a shape. */
#include <assert.h>

#include "kernels/kernels.h"

/* Fewer channels than this do not fill the products of a transformed tile: measured, direct is faster. */
enum { CONV_WINOGRAD_CHANNELS = 32 };

const struct dpn_conv_algorithm *dpn_conv_choose(const struct dpn_kernels *kernels,
                                                 const struct dpn_conv *conv, enum dpn_conv_pass pass)
{
    const struct dpn_conv_algorithm *const *list = kernels->conv;
    size_t fewest = conv->in_channels < conv->out_channels ? conv->in_channels : conv->out_channels;
    for (; list[1]; list++) {
        if (kernels->conv_choice == DPN_CONV_DIRECT) continue;
        if (kernels->conv_choice == DPN_CONV_AUTO && fewest < CONV_WINOGRAD_CHANNELS) continue;
        if (list[0]->serves(conv, pass)) return list[0];
    }
    assert(list[0]->serves(conv, pass));
    return list[0];
}
