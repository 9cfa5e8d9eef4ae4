/* Statistics of a tensor's channels by blocks of pixels: batch norm's moments, and masked gradients with
 * their sums, where no convolution takes them on its way. Float32 within a block, blocks combined in
 * ascending order in double; blocks depend on the shape alone, so any team gives the same bits. Cost: one
 * pass.
 */
#include "nn/nn.h"

/* Pixels of a block: 64 channels of it fill L2 by a sixteenth. */
enum { BLOCKS_PIXELS = 512, BLOCKS_MACS_PER_ELEM = 4 };

struct blocks_job {
    const struct dpn_kernels *kernels;
    size_t pixels, cstride;
    const float *x; /* moments */
    float *d, *blocks;
    const struct dpn_mask_sums *mask; /* NULL: moments */
};

static size_t blocks_number(size_t pixels)
{
    return (pixels + BLOCKS_PIXELS - 1) / BLOCKS_PIXELS;
}

size_t dpn_exec_blocks_floats(size_t pixels, size_t cstride)
{
    return blocks_number(pixels) * dpn_block_floats(cstride);
}

static void blocks_one(const struct blocks_job *job, size_t number)
{
    size_t at = number * BLOCKS_PIXELS, left = job->pixels - at, offset = at * job->cstride;
    size_t pixels = left < BLOCKS_PIXELS ? left : BLOCKS_PIXELS;
    float *block = job->blocks + number * dpn_block_floats(job->cstride);
    if (!job->mask) {
        job->kernels->moments(pixels, job->cstride, job->x + offset, block);
        return;
    }
    struct dpn_mask_sums mask = *job->mask;
    mask.sums = block;
    mask.z += offset;
    if (mask.y) mask.y += offset;
    job->kernels->mask_sums(pixels, job->cstride, job->d + offset, &mask);
}

static void blocks_part(void *arg, int thread, int size)
{
    const struct blocks_job *job = arg;
    size_t first, count;
    dpn_split(blocks_number(job->pixels), (size_t)size, (size_t)thread, &first, &count);
    for (size_t b = first; b < first + count; b++) blocks_one(job, b);
}

static void blocks_spread(const struct dpn_exec *exec, struct blocks_job *job)
{
    job->kernels = exec->kernels;
    job->blocks = exec->blocks;
    dpn_exec_spread(exec, (double)job->pixels * (double)job->cstride * BLOCKS_MACS_PER_ELEM, blocks_part,
                    job);
}

void dpn_exec_moments(const struct dpn_exec *exec, size_t pixels, size_t cstride, const float *x, double *out)
{
    struct blocks_job job = {.pixels = pixels, .cstride = cstride, .x = x};
    blocks_spread(exec, &job);
    exec->kernels->moments_combine(blocks_number(pixels), cstride, exec->blocks, out);
}

void dpn_exec_mask_sums(const struct dpn_exec *exec, size_t pixels, size_t cstride, float *d,
                        const struct dpn_mask_sums *mask, double *out)
{
    struct blocks_job job = {.pixels = pixels, .cstride = cstride, .d = d, .mask = mask};
    blocks_spread(exec, &job);
    if (out) exec->kernels->sums_combine(blocks_number(pixels), cstride, exec->blocks, out);
}
