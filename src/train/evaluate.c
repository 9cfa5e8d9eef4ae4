/* Exact evaluation: every test sample once, in chunks of 256 of the file's order, whoever computes them;
 * chunk results are added in ascending order, so the figures do not depend on the number of devices.
 */
#include "train/trainer.h"

static size_t evaluate_chunks(const struct dpn_run *run)
{
    return (run->data.test.n + DPN_EVAL_CHUNK - 1) / DPN_EVAL_CHUNK;
}

static void evaluate_chunk(struct dpn_run *run, struct dpn_replica *replica, size_t chunk)
{
    size_t first = chunk * DPN_EVAL_CHUNK, left = run->data.test.n - first;
    size_t rows = left < DPN_EVAL_CHUNK ? left : DPN_EVAL_CHUNK;
    dpn_input_test(run, replica, first, rows);
    dpn_exec_forward(&replica->exec, rows, 0);
    dpn_exec_loss(&replica->exec, rows, 0, 0.0f, &run->eval_loss[chunk], &run->eval_correct[chunk]);
}

enum dpn_status dpn_evaluate(struct dpn_run *run, struct dpn_replica *replica, double *loss, double *accuracy)
{
    size_t chunks = evaluate_chunks(run);
    if (run->mode->sync) DPN_TRY(run->mode->sync(run, replica));
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
