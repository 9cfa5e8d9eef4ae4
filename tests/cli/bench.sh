#!/usr/bin/env bash
# `dpnode bench kernels`: what it prints and writes, that nothing is wrong, and what it refuses.
. "${srcdir:-.}/tests/cli/lib.sh"
bench() { "$DPNODE" bench kernels --rounds 1 --batch 2 "$@"; }
for isa in baseline auto; do
    check BENCH "$isa: nothing is wrong" bench --isa $isa --json "$work/$isa.json" --csv "$work/$isa.csv"
done
cases=$(wc -l <"$work/auto.json")
check BENCH "many cases ($cases)" test "$cases" -gt 50
check BENCH "as many in both files" test "$(wc -l <"$work/auto.csv")" -eq $((cases + 1))
check BENCH "each with its numbers" test "$(grep -c '"milliseconds":[0-9].*"of_roof":[0-9].*"wrong":0}' "$work/auto.json")" -eq "$cases"
for op in conv gemm moments bn_apply mask_sums bn_grad relu add max_pool image sgd adam; do
    check BENCH "$op is there" grep -q "\"op\":\"$op\"" "$work/auto.json"
done
for what in '"algorithm":"winograd","pass":"data"' '"algorithm":"direct","pass":"weights"'; do
    check BENCH "$what is there" grep -q -- "$what" "$work/auto.json"
done
check BENCH "a filter" sh -c "'$DPNODE' bench kernels --rounds 1 --batch 1 --filter 'stride 2 @8' | grep -c '^conv' | grep -qx 6"
check BENCH "a team" bench --threads-per-device 2 --filter "64->64"
refused BENCH "WHAT" "$DPNODE" bench
refused BENCH "kernel" "$DPNODE" bench kernles
refused BENCH "nothing-like-it" "$DPNODE" bench kernels --filter nothing-like-it
refused BENCH "rounds" "$DPNODE" bench kernels --rounds 0
refused BENCH "isa" "$DPNODE" bench kernels --isa avx9
finish
