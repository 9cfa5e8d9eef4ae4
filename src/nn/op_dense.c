/* Dense layer: Y = X W + b, with ReLU if fused; W is a panel matrix [in][out].
 *
 * Cost: one GEMM each for Y, dW and dX, cut into pieces for the team. The kernels' contract makes every cut
 * give the same bits, so pieces are chosen for balance alone: a grid of outer blocks (panels; column blocks
 * of dX) times granules of rows, of which each thread takes an equal run. A team of one makes one GEMM a
 * panel. Backward takes one dispatch, two with ReLU: its mask must be on dY before any thread reads it.
 */
#include <math.h>
#include <string.h>

#include "core/memory.h"
#include "nn/nn.h"

/* Multiples of the micro-kernels' heights, so that only the last granule has a ragged end; those of dW also
 * whole cache lines of X's columns. */
enum { DENSE_ROW_GRANULE = 12, DENSE_WEIGHT_GRANULE = 48, DENSE_COLUMN_BLOCK = 64 };

/* Pieces of a product whose bits depend on the cut (kernels->fixed_cut), whatever the team's size. */
enum { DENSE_FIXED_PIECES = 8 };

struct dense_job {
    const struct dpn_kernels *kernels;
    size_t rows, in, out, x_stride, y_stride;
    size_t panels;
    const float *x, *weight, *bias;
    float *y;
    int relu;
    /* backward; dx NULL: not wanted */
    const float *dy;
    float *dx, *dweight, *dbias;
    int add_dx;
};

/* What a thread does of the grid: outer blocks first_block.., granule rows first_row.. of each. */
typedef void dense_block_fn(const struct dense_job *job, size_t first_block, size_t blocks, size_t first_row,
                            size_t rows);

static inline size_t dense_min(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Calls block() on piece PIECE of PIECES of BLOCKS x ROWS, outer blocks that it owns whole in one call. */
static void dense_walk_piece(const struct dense_job *job, size_t blocks, size_t rows, size_t granule,
                             size_t piece, size_t pieces, dense_block_fn *block)
{
    size_t first, count, granules = (rows + granule - 1) / granule;
    dpn_split(blocks * granules, pieces, piece, &first, &count);
    while (count > 0) {
        size_t outer = first / granules, inner = first % granules, n_outer = 1;
        size_t n = dense_min(granules - inner, count);
        if (n == granules) n_outer = count / granules;
        size_t row = inner * granule;
        block(job, outer, n_outer, row, dense_min(n * granule, rows - row));
        first += n_outer * n;
        count -= n_outer * n;
    }
}

/* The thread's share of BLOCKS x ROWS. */
static void dense_walk(const struct dense_job *job, size_t blocks, size_t rows, size_t granule, int thread,
                       int size, dense_block_fn *block)
{
    size_t first = (size_t)thread, count = 1, pieces = (size_t)size;
    if (job->kernels->fixed_cut) {
        pieces = DENSE_FIXED_PIECES;
        dpn_split(pieces, (size_t)size, (size_t)thread, &first, &count);
    }
    for (size_t p = first; p < first + count; p++)
        dense_walk_piece(job, blocks, rows, granule, p, pieces, block);
}

static void dense_forward_block(const struct dense_job *job, size_t first_panel, size_t panels, size_t row,
                                size_t rows)
{
    for (size_t p = first_panel; p < first_panel + panels; p++) {
        size_t offset, stride, column = p * DPN_PANEL_COLUMNS;
        dpn_panel(job->in, job->out, p, &offset, &stride);
        float *y = job->y + row * job->y_stride + column;
        struct dpn_gemm gemm = {
            .m = rows,
            .n = stride,
            .k = job->in,
            .a = job->x + row * job->x_stride,
            .a_row = job->x_stride,
            .a_col = 1,
            .b = job->weight + offset,
            .b_row = stride,
            .b_col = 1,
            .c = y,
            .c_row = job->y_stride,
        };
        job->kernels->gemm(&gemm);
        job->kernels->bias_relu(rows, stride, job->y_stride, job->bias + column, job->relu, y);
    }
}

static void dense_forward_piece(void *arg, int thread, int size)
{
    const struct dense_job *job = arg;
    dense_walk(job, job->panels, job->rows, DENSE_ROW_GRANULE, thread, size, dense_forward_block);
}

/* dW = X^T dY for rows ROW.. of W in the panels given; whoever has row 0 sums the panel's bias gradient. */
static void dense_weights_block(const struct dense_job *job, size_t first_panel, size_t panels, size_t row,
                                size_t rows)
{
    for (size_t p = first_panel; p < first_panel + panels; p++) {
        size_t offset, stride, column = p * DPN_PANEL_COLUMNS;
        dpn_panel(job->in, job->out, p, &offset, &stride);
        struct dpn_gemm gemm = {
            .m = rows,
            .n = stride,
            .k = job->rows,
            .a = job->x + row,
            .a_row = 1,
            .a_col = job->x_stride,
            .b = job->dy + column,
            .b_row = job->y_stride,
            .b_col = 1,
            .c = job->dweight + offset + row * stride,
            .c_row = stride,
        };
        job->kernels->gemm(&gemm);
        if (row == 0)
            job->kernels->col_sum(job->rows, stride, job->y_stride, job->dy + column, job->dbias + column);
    }
}

/* dX = dY W^T for columns of the column blocks given. The padding columns of a panel count in k: dY and W
 * are 0 there. */
static void dense_data_block(const struct dense_job *job, size_t first_block, size_t blocks, size_t row,
                             size_t rows)
{
    size_t begin = first_block * DENSE_COLUMN_BLOCK;
    size_t end = dense_min(begin + blocks * DENSE_COLUMN_BLOCK, job->in);
    float *dx = job->dx + row * job->x_stride;
    for (size_t p = 0; p < job->panels; p++) {
        size_t offset, stride;
        dpn_panel(job->in, job->out, p, &offset, &stride);
        struct dpn_gemm gemm = {
            .m = rows,
            .n = end - begin,
            .k = stride,
            .a = job->dy + row * job->y_stride + p * DPN_PANEL_COLUMNS,
            .a_row = job->y_stride,
            .a_col = 1,
            .b = job->weight + offset + begin * stride,
            .b_row = 1,
            .b_col = stride,
            .c = dx + begin,
            .c_row = job->x_stride,
            .accumulate = p > 0 || job->add_dx,
        };
        job->kernels->gemm(&gemm);
    }
    /* The buffer was another value's before, of another stride: its padding is that one's data. */
    if (end == job->in && job->x_stride > job->in)
        for (size_t r = 0; r < rows; r++)
            memset(dx + r * job->x_stride + job->in, 0, (job->x_stride - job->in) * sizeof *dx);
}

static void dense_backward_piece(void *arg, int thread, int size)
{
    const struct dense_job *job = arg;
    dense_walk(job, job->panels, job->in, DENSE_WEIGHT_GRANULE, thread, size, dense_weights_block);
    if (job->dx)
        dense_walk(job, (job->in + DENSE_COLUMN_BLOCK - 1) / DENSE_COLUMN_BLOCK, job->rows, DENSE_ROW_GRANULE,
                   thread, size, dense_data_block);
}

/* dX first, for it reads W; then dW panel by panel, each reported as soon as it is there. */
static void dense_backward_alone(const struct dense_job *job, struct dpn_exec *exec, size_t weight_offset)
{
    if (job->dx)
        dense_data_block(job, 0, (job->in + DENSE_COLUMN_BLOCK - 1) / DENSE_COLUMN_BLOCK, 0, job->rows);
    for (size_t p = 0; p < job->panels; p++) {
        size_t offset, stride;
        dpn_panel(job->in, job->out, p, &offset, &stride);
        dense_weights_block(job, p, 1, 0, job->in);
        if (p + 1 < job->panels) dpn_exec_ready(exec, weight_offset + offset + job->in * stride);
    }
}

static struct dense_job dense_job(const struct dpn_node *node, const struct dpn_exec *exec, size_t rows)
{
    const struct dpn_model *model = exec->model;
    const struct dpn_value *x = &model->values[node->input], *y = &model->values[node->output];
    return (struct dense_job){
        .kernels = exec->kernels,
        .rows = rows,
        .in = x->height * x->width * x->cstride,
        .out = y->elems,
        .x_stride = x->stride,
        .y_stride = y->stride,
        .panels = (y->elems + DPN_PANEL_COLUMNS - 1) / DPN_PANEL_COLUMNS,
        .x = exec->value[node->input],
        .weight = exec->params + model->tensors[node->tensors[0]].offset,
        .bias = exec->params + model->tensors[node->tensors[1]].offset,
        .y = exec->value[node->output],
        .relu = node->relu,
    };
}

static void dense_forward(const struct dpn_node *node, struct dpn_exec *exec, size_t rows, int training)
{
    (void)training;
    struct dense_job job = dense_job(node, exec, rows);
    dpn_exec_spread(exec, node->macs * (double)rows, dense_forward_piece, &job);
}

static void dense_backward(const struct dpn_node *node, struct dpn_exec *exec, size_t rows)
{
    struct dense_job job = dense_job(node, exec, rows);
    float *dy = exec->grad[node->output];
    job.dy = dy;
    job.dx = node->needs_input_grad ? exec->grad[node->input] : NULL;
    job.add_dx = node->adds_input_grad;
    job.dweight = exec->grads + exec->model->tensors[node->tensors[0]].offset;
    job.dbias = exec->grads + exec->model->tensors[node->tensors[1]].offset;
    if (job.relu) dpn_relu_backward(exec, rows * job.y_stride, job.y, dy);
    if ((!exec->team || dpn_team_size(exec->team) == 1) && !job.kernels->fixed_cut) {
        dense_backward_alone(&job, exec, exec->model->tensors[node->tensors[0]].offset);
        return;
    }
    dpn_exec_spread(exec, node->macs * (double)rows * (job.dx ? 2 : 1), dense_backward_piece, &job);
}

const struct dpn_op_class dpn_op_dense = {
    .name = "dense",
    .fuses_relu = 1,
    .keeps_input = 1,
    .keeps_output = 1,
    .forward = dense_forward,
    .backward = dense_backward,
};

int dpn_build_dense(struct dpn_model_builder *builder, int input, const char *name, size_t out,
                    double normal_std)
{
    const struct dpn_value *x = dpn_build_shape(builder, input);
    if (!x) return -1;
    size_t in = x->elems;
    struct dpn_panel_rows rows = {.taps = x->height * x->width,
                                  .channels = x->channels,
                                  .cstride = x->cstride};
    double bound = 1.0 / sqrt((double)in);
    int weight = dpn_build_tensor(builder, name, "weight", &rows, 2, (size_t[]){out, in},
                                  normal_std > 0 ? DPN_INIT_NORMAL : DPN_INIT_UNIFORM,
                                  normal_std > 0 ? normal_std : bound);
    int bias = dpn_build_tensor(builder, name, "bias", NULL, 1, (size_t[]){out},
                                normal_std > 0 ? DPN_INIT_ZERO : DPN_INIT_UNIFORM, bound);
    int output = dpn_build_value(builder, out, 1, 1, -1);
    struct dpn_node *node = dpn_build_node(builder, &dpn_op_dense, input, output, (double)in * (double)out);
    if (!node) return -1;
    node->tensors[0] = weight;
    node->tensors[1] = bias;
    return output;
}
