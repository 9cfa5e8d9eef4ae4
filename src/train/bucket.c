/* How the gradient arena is cut into buckets: in backward order, both ends small. The first bucket is ready
 * early in backward, so a small one starts the overlap soon; the last is ready when backward ends, so all of
 * its reduction is exposed.
 */
#include <stdlib.h>

#include "core/memory.h"
#include "train/trainer.h"

enum { BUCKET_QUANTUM = DPN_ARENA_QUANTUM_ELEMS };

/* Without --bucket-mb: up to 64 Ki floats (256 KiB, well inside L2) one bucket, for cutting costs a flag
 * round trip a bucket; else an eighth of the arena, at most 25 MB (PyTorch's bucket_cap_mb). */
static size_t bucket_target(size_t arena_elems, double bucket_mb)
{
    size_t target;
    if (bucket_mb > 0) {
        target = (size_t)(bucket_mb * 1024 * 1024 / sizeof(float));
    } else if (arena_elems <= 65536) {
        target = arena_elems;
    } else {
        target = arena_elems / 8;
        if (target < 65536) target = 65536;
        if (target > 6553600) target = 6553600;
    }
    target = target / BUCKET_QUANTUM * BUCKET_QUANTUM;
    return target ? target : BUCKET_QUANTUM;
}

enum dpn_status dpn_bucket_plan_make(size_t arena_elems, double bucket_mb, struct dpn_bucket **buckets,
                                     size_t *n_buckets)
{
    size_t target = bucket_target(arena_elems, bucket_mb), end = target / 4 / BUCKET_QUANTUM * BUCKET_QUANTUM;
    size_t n = 0, at = 0;
    if (end == 0) end = BUCKET_QUANTUM;
    int small_ends = arena_elems > 2 * end + target;
    DPN_TRY(
        dpn_calloc(buckets, arena_elems / (small_ends ? end : target) + 2, sizeof **buckets, "bucket plan"));
    while (at < arena_elems) {
        size_t left = arena_elems - at, elems = target;
        if (small_ends) {
            if (at == 0) elems = end;
            else if (left <= end) elems = left;
            else if (left - end < target) elems = left - end;
        }
        if (elems > left) elems = left;
        (*buckets)[n++] = (struct dpn_bucket){at, elems};
        at += elems;
    }
    *n_buckets = n;
    return DPN_OK;
}
