/* The table of one instruction set. */
#include "kernels/cpu/isa.h"
#include "kernels/cpu/select.h"

static const struct dpn_conv_algorithm *const table_conv[] = {
    &DPN_ISA_SYMBOL(conv_f4x4),
    &DPN_ISA_SYMBOL(conv_direct),
    NULL,
};

const struct dpn_kernels DPN_ISA_SYMBOL(kernels) = {
    .isa = DPN_ISA_NAME,
    .gemm = DPN_ISA_SYMBOL(gemm),
    .bias_relu = DPN_ISA_SYMBOL(bias_relu),
    .relu = DPN_ISA_SYMBOL(relu),
    .relu_grad = DPN_ISA_SYMBOL(relu_grad),
    .col_sum = DPN_ISA_SYMBOL(col_sum),
    .softmax_xent = DPN_ISA_SYMBOL(softmax_xent),
    .sgd = DPN_ISA_SYMBOL(sgd),
    .adam = DPN_ISA_SYMBOL(adam),
    .add = DPN_ISA_SYMBOL(add),
    .tree_sum = DPN_ISA_SYMBOL(tree_sum),
    .scale = DPN_ISA_SYMBOL(scale),
    .sum_squares = DPN_ISA_SYMBOL(sum_squares),
    .u8_to_f32 = DPN_ISA_SYMBOL(u8_to_f32),
    .f32_affine = DPN_ISA_SYMBOL(f32_affine),
    .conv = table_conv,
    .moments = DPN_ISA_SYMBOL(moments),
    .moments_combine = DPN_ISA_SYMBOL(moments_combine),
    .bn_apply = DPN_ISA_SYMBOL(bn_apply),
    .mask_sums = DPN_ISA_SYMBOL(mask_sums),
    .sums_combine = DPN_ISA_SYMBOL(sums_combine),
    .bn_grad = DPN_ISA_SYMBOL(bn_grad),
    .pool = DPN_ISA_SYMBOL(pool),
    .pool_grad = DPN_ISA_SYMBOL(pool_grad),
    .image = DPN_ISA_SYMBOL(image),
    .peak = DPN_ISA_SYMBOL(peak),
    .stream = DPN_ISA_SYMBOL(stream),
};
