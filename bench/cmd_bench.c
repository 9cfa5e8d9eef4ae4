/* `dpnode bench WHAT`: measuring. */
#include <string.h>

#include "bench/bench.h"
#include "core/parse.h"
#include "train/command.h"

static const char *const bench_words[] = {"kernels", NULL};

static enum dpn_status bench_run(struct dpn_config *config, const char *positional, int *exit_status)
{
    size_t wrong = 0;
    int choice;
    DPN_TRY(dpn_parse_choice("bench", positional, bench_words, &choice));
    DPN_TRY(dpn_bench_kernels(config, &wrong));
    if (wrong == 0) return DPN_OK;
    *exit_status = 1;
    return dpn_fail(DPN_ERR_NUMERIC, "bench kernels: %zu wrong element(s)", wrong);
}

const struct dpn_command dpn_command_bench = {
    .name = "bench",
    .summary = "kernels: time every kernel against this machine's measured roof, and check its numbers",
    .mask = DPN_CMD_BENCH,
    .positional = "WHAT",
    .run = bench_run,
};
