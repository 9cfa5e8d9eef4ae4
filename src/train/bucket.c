/* How the gradient arena is cut into buckets: in backward order, both ends small. The first bucket is ready
 * early in backward, so a small one starts the overlap soon; the last is ready when backward ends, so all of
 * its reduction is exposed.
 */
#include <stdlib.h>

#include "core/memory.h"
#include "train/trainer.h"

enum { BUCKET_QUANTUM = DPN_ARENA_QUANTUM_ELEMS };

/* Without --bucket-mb: 64 Ki floats. That is 256 KiB, which is still in the second-level cache when it is
 * reduced right after backward wrote it; a bucket costs about a microsecond of flags. */
enum { BUCKET_AUTO_ELEMS = 65536 };

static size_t bucket_target(double bucket_mb)
{
    size_t target = BUCKET_AUTO_ELEMS;
    if (bucket_mb > 0) target = (size_t)(bucket_mb * 1024 * 1024 / sizeof(float));
    target = target / BUCKET_QUANTUM * BUCKET_QUANTUM;
    return target ? target : BUCKET_QUANTUM;
}

enum dpn_status dpn_bucket_plan_make(size_t arena_elems, double bucket_mb, struct dpn_bucket **buckets,
                                     size_t *n_buckets)
{
    size_t target = bucket_target(bucket_mb), end = target / 4 / BUCKET_QUANTUM * BUCKET_QUANTUM;
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
