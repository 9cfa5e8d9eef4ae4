/* The table of one instruction set. */
#include "kernels/cpu/isa.h"
#include "kernels/cpu/select.h"

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
};
