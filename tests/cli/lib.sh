# shellcheck shell=bash
# Helpers of the black-box tests; sourced by them.  They get DPNODE (the program), TOOL (tests/cli/tool)
# and srcdir from the harness.  A check prints "ok ROW: ..." or "not ok ROW: ..."; finish sets the status.
set -u
: "${DPNODE:?path of the program}" "${TOOL:?path of tests/cli/tool}"
srcdir=${srcdir:-.}
reference=$srcdir/tests/reference
fashion=/usr/share/datasets/fashion-mnist
work=$(mktemp -d "${TMPDIR:-/tmp}/dpnode-test.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
failures=0

ok() { echo "ok $*"; }
bad() { echo "not ok $*"; failures=$((failures + 1)); }
# check ROW TEXT COMMAND...: passes if COMMAND succeeds.
check() {
    local row=$1 text=$2
    shift 2
    if "$@" >"$work/check.out" 2>&1; then ok "$row: $text"; else bad "$row: $text"; sed 's/^/    /' "$work/check.out" | head -n 20; fi
}
# refused ROW WANT COMMAND...: COMMAND ends with status 2 within 20 s, one line on stderr that contains WANT, no stdout.
refused() {
    local row=$1 want=$2 status=0
    shift 2
    timeout 20 "$@" >"$work/out" 2>"$work/err" || status=$?
    if [ "$status" -eq 2 ] && [ "$(wc -l <"$work/err")" -eq 1 ] && grep -qF -- "$want" "$work/err" && [ ! -s "$work/out" ]; then
        ok "$row: refused: $(cat "$work/err")"
    else
        bad "$row: wanted status 2 and one line with \"$want\"; got status $status:"
        head -n 5 "$work/err" | sed 's/^/    /'
    fi
}
# near A B TOLERANCE: absolute difference.
near() { awk -v a="$1" -v b="$2" -v t="$3" 'BEGIN { d = a - b; if (d < 0) d = -d; exit !(d <= t) }'; }
same() { cmp "$1" "$2"; }
skip_all() { echo "SKIP: $*"; exit 77; }
finish() { [ "$failures" -eq 0 ] || { echo "$failures check(s) failed"; exit 1; }; }
# zeros DIR TRAIN-LABELS TEST-LABELS: the fixture Z[...].
zeros() { mkdir -p "$1" && "$TOOL" idx "$1" train "$2" && "$TOOL" idx "$1" t10k "$3"; }
# zero_init DATA FILE: start weights of mlp with zero biases.
zero_init() {
    "$DPNODE" train --quiet --devices 0 --data "$1" --epochs 0 --out "$work/init" --overwrite >/dev/null &&
        "$TOOL" zero-biases "$work/init/last.safetensors" "$2"
}
