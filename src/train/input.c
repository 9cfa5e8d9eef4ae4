/* From data set to the model's input: gather by index, augment, normalise, by the device's own team.
 *
 * Augmentation is a function of (seed, epoch, sample): neither device nor batch matters.
 */
#include <string.h>

#include "core/memory.h"
#include "train/trainer.h"

/* Below INPUT_TEAM_ELEMS a team's hand-out costs more than it saves. Samples lie at random places of a set
 * that is larger than the caches, so those INPUT_AHEAD rows ahead are asked for while a row is converted. */
enum { INPUT_TEAM_ELEMS = 1 << 16, INPUT_AHEAD = 4, INPUT_AHEAD_BYTES = 1 << 16 };

enum { INPUT_CROP_PAD = 4 }; /* --augment crop-flip */

struct input_job {
    const struct dpn_run *run;
    const struct dpn_samples *samples;
    const struct dpn_step *step; /* NULL: samples in file order */
    size_t first, rows, stride;
    float *input;
    int32_t *labels;
};

static size_t input_index(const struct input_job *job, size_t position)
{
    return job->step ? dpn_sampler_index(&job->run->sampler, job->step->in_epoch, position) : position;
}

static void input_prefetch(const struct input_job *job, size_t index)
{
    size_t elems = job->run->data.sample_elems;
    const char *at = job->samples->u8 ? (const char *)(job->samples->u8 + index * elems)
                                      : (const char *)(job->samples->f32 + index * elems);
    size_t bytes = elems * (job->samples->u8 ? sizeof(uint8_t) : sizeof(float));
    for (size_t i = 0; i < bytes; i += DPN_CACHE_LINE_BYTES) __builtin_prefetch(at + i, 0, 3);
    __builtin_prefetch(&job->samples->labels[index], 0, 2);
}

static void input_augment(const struct input_job *job, size_t index, struct dpn_image *image)
{
    struct dpn_rng rng;
    dpn_rng_init(&rng, job->run->config->seed, DPN_RNG_AUGMENT, job->step->epoch, index);
    image->top = (long)dpn_rng_below(&rng, 2 * INPUT_CROP_PAD + 1) - INPUT_CROP_PAD;
    image->left = (long)dpn_rng_below(&rng, 2 * INPUT_CROP_PAD + 1) - INPUT_CROP_PAD;
    image->flip = (int)dpn_rng_below(&rng, 2);
}

static void input_sample(const struct input_job *job, size_t index, float *row)
{
    const struct dpn_dataset *data = &job->run->data;
    size_t at = index * data->sample_elems;
    struct dpn_image image = {
        .channels = data->channels,
        .height = data->height,
        .width = data->width,
        .u8 = job->samples->u8 ? job->samples->u8 + at : NULL,
        .f32 = job->samples->u8 ? NULL : job->samples->f32 + at,
        .scale = data->scale,
        .shift = data->shift,
        .out = row,
    };
    if (job->step && job->run->augment) input_augment(job, index, &image);
    job->run->kernels->image(&image);
    /* The buffer may have served another value meanwhile; gemm wants padding columns to be 0. */
    memset(row + data->sample_elems, 0, (job->stride - data->sample_elems) * sizeof *row);
}

static void input_part(void *arg, int thread, int size)
{
    const struct input_job *job = arg;
    size_t first, count;
    dpn_split(job->rows, (size_t)size, (size_t)thread, &first, &count);
    size_t end = first + count;
    for (size_t r = first; r < end && r < first + INPUT_AHEAD; r++)
        input_prefetch(job, input_index(job, job->first + r));
    for (size_t r = first; r < end; r++) {
        size_t index = input_index(job, job->first + r);
        if (r + INPUT_AHEAD < end) input_prefetch(job, input_index(job, job->first + r + INPUT_AHEAD));
        input_sample(job, index, job->input + r * job->stride);
        job->labels[r] = job->samples->labels[index];
    }
}

static void input_fill(const struct dpn_replica *replica, struct input_job *job)
{
    if (job->rows * job->stride < INPUT_TEAM_ELEMS) input_part(job, 0, 1);
    else dpn_team_run(replica->device->team, input_part, job);
}

void dpn_input_batch(struct dpn_run *run, struct dpn_replica *replica, const struct dpn_step *step,
                     size_t first, size_t rows, float *input, int32_t *labels)
{
    struct input_job job = {run,   &run->data.train, step, first, rows, run->model->values[0].stride, input,
                            labels};
    input_fill(replica, &job);
}

void dpn_input_ahead(struct dpn_run *run, struct dpn_replica *replica, const struct dpn_step *step,
                     size_t first, size_t rows)
{
    struct input_job job = {run, &run->data.train, step, first, rows, 0, NULL, NULL};
    size_t bytes = run->data.sample_elems * (run->data.train.u8 ? sizeof(uint8_t) : sizeof(float));
    /* Into this core's cache; a team gathers with all its cores. */
    if (replica->device->threads > 1) return;
    if (rows * bytes > INPUT_AHEAD_BYTES) rows = INPUT_AHEAD_BYTES / bytes;
    for (size_t r = 0; r < rows; r++) input_prefetch(&job, input_index(&job, first + r));
}

void dpn_input_test(struct dpn_run *run, struct dpn_replica *replica, size_t first, size_t rows,
                    int32_t *labels)
{
    struct input_job job =
        {run,   &run->data.test, NULL, first, rows, run->model->values[0].stride, replica->eval.value[0],
         labels};
    input_fill(replica, &job);
}
