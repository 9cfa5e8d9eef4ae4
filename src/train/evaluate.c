/* Exact evaluation: every test sample once, in chunks of 256 of the file's order, whoever computes them;
 * chunk results are added in ascending order, so the figures do not depend on the number of devices.
 */
#include <string.h>

#include "train/trainer.h"

static size_t evaluate_chunks(const struct dpn_run *run)
{
    return (run->data.test.n + DPN_EVAL_CHUNK - 1) / DPN_EVAL_CHUNK;
}

/* Through the model in pieces that suit the caches (a sample's logits do not depend on them), the loss of the
 * chunk as one. */
static void evaluate_chunk(struct dpn_run *run, struct dpn_replica *replica, size_t chunk)
{
    size_t first = chunk * DPN_EVAL_CHUNK, left = run->data.test.n - first;
    size_t rows = left < DPN_EVAL_CHUNK ? left : DPN_EVAL_CHUNK;
    size_t stride = run->model->values[run->model->logits].stride;
    float *logits = run->eval_logits + (size_t)replica->member * DPN_EVAL_CHUNK * stride;
    int32_t *labels = run->eval_labels + (size_t)replica->member * DPN_EVAL_CHUNK;
    struct dpn_exec *exec = &replica->eval;
    for (size_t at = 0; at < rows; at += run->eval_rows) {
        size_t n = rows - at < run->eval_rows ? rows - at : run->eval_rows;
        dpn_input_test(run, replica, first + at, n, labels + at);
        dpn_exec_forward(exec, n, 0);
        memcpy(logits + at * stride, exec->value[run->model->logits], n * stride * sizeof *logits);
    }
    run->kernels->softmax_xent(rows, run->model->classes, stride, logits, labels, 0.0f, NULL,
                               &run->eval_loss[chunk], &run->eval_correct[chunk]);
}

enum dpn_status dpn_evaluate(struct dpn_run *run, struct dpn_replica *replica, double *loss, double *accuracy)
{
    size_t chunks = evaluate_chunks(run);
    if (run->mode->sync) DPN_TRY(run->mode->sync(run, replica));
    /* The running statistics are device 0's work. */
    if (run->buffers) DPN_TRY(dpn_barrier_wait(&run->barrier, &run->group.abort));
    if (replica->member == 0) run->eval_cut = 0;
    for (size_t c = (size_t)replica->member; c < chunks; c += run->group.n) {
        if (dpn_progress_signal(run->progress)) break;
        evaluate_chunk(run, replica, c);
    }
    DPN_TRY(dpn_barrier_wait(&run->barrier, &run->group.abort));
    if (replica->member == 0) {
        double sum = 0.0;
        uint64_t correct = 0;
        for (size_t c = 0; c < chunks; c++) {
            sum += run->eval_loss[c];
            correct += run->eval_correct[c];
        }
        *loss = sum / (double)run->data.test.n;
        *accuracy = (double)correct / (double)run->data.test.n;
        /* Whoever saw the signal skipped chunks; it cannot have been taken back since. */
        run->eval_cut = dpn_progress_signal(run->progress) != 0;
    }
    dpn_phase_end(replica, DPN_PHASE_EVAL);
    return DPN_OK;
}
