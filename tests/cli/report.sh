#!/usr/bin/env bash
# What a run says: rows N03 and P01 of the field cases, the log's events, `info`, `topo`, quiet.
. "${srcdir:-.}/tests/cli/lib.sh"
data=synthetic:samples=400,test=60,shape=1x12x12,classes=10
run() { "$DPNODE" train --devices 0 --data $data "$@"; }
run --epochs 1 --lr 1e-7 --log "$work/n03.log" --log-every 1 >"$work/out"
check N03 "lr is printed as 1e-07" grep -q '1e-07' "$work/out"
check N03 "value used is the value given" test "$("$TOOL" log-last "$work/n03.log" step lr)" = 9.9999999999999995e-08
run --epochs 2 --lr 1e-12 --schedule cosine --warmup-epochs 1 --log "$work/n03.log" --log-every 1 >"$work/out"
check N03 "first warm-up rate is not 0" sh -c "grep -m1 '\"event\":\"step\"' '$work/n03.log' | grep -Eq '\"lr\":[1-9.]+[0-9]*e-'"

start=$(date +%s.%N)
run --epochs 1000 --threads-per-device 1 --log "$work/p01.log" >"$work/out"
end=$(date +%s.%N)
real=$(awk -v a="$start" -v b="$end" 'BEGIN { print b - a }')
said=$("$TOOL" log-last "$work/p01.log" summary seconds)
check P01 "elapsed $said s within 2 % (and 150 ms of a loaded machine) of $real s" near "$said" "$real" "$(awk -v r="$real" 'BEGIN { print 0.02 * r + 0.15 }')"

for event in run step epoch eval summary; do
    check LOG "event $event" grep -q "^{\"event\":\"$event\"" "$work/p01.log"
done
check LOG "every line is one object" sh -c "! grep -v '^{.*}\$' '$work/p01.log'"
check LOG "closing breakdown" grep -q 'forward' "$work/out"
check LOG "epoch line" grep -Eq '^train \| epoch 3/1000 \| loss [0-9.]+ \| [0-9]+ img/s \| [0-9.]+ s$' "$work/out"
check LOG "val line" grep -Eq '^val   \| epoch 3/1000 \| loss [0-9.]+ \| accuracy [0-9.]+$' "$work/out"
run --quiet --epochs 1 >"$work/out"
check LOG "--quiet says nothing" test ! -s "$work/out"
run --epochs 3 --log "$work/t.log" --target-accuracy 0.11 --lr 0.1 >"$work/out"
check LOG "target accuracy is reported" grep -q 'target ' "$work/out"
# At one device the reducer does nothing: no flag, no copy, no bytes.
run --epochs 1 --log "$work/n1.log" --shards 8 >"$work/out"
check N1 "no flags, copies or passes at one device" grep -q '"bytes_read":0,"bytes_written":0,"bytes_copied":0,"flag_operations":0' "$work/n1.log"
run --quiet --epochs 1 --out "$work/o" --overwrite
check INFO "info of a checkpoint" sh -c "'$DPNODE' info '$work/o/last.safetensors' | grep -q fc1.weight"
refused INFO "/nonexistent" "$DPNODE" info /nonexistent
check TOPO "topo of a list" sh -c "'$DPNODE' topo --devices 0 | grep -q 'device 0'"
# Damaged or wrong weights are refused by name.
"$DPNODE" train --quiet --devices 0 --data $data --epochs 1 --model dense --out "$work/dense"
refused INIT "fc1.weight" "$DPNODE" eval --devices 0 --data $data --init "$work/dense/last.safetensors"
run --epochs 5 --lr 1e30 --quiet >"$work/out" 2>"$work/err"; status=$?
check N01 "a loss that is not finite ends the run with status 1" test $status = 1
check N01 "and names step and device" grep -q 'step .*device' "$work/err"
run --steps 1 --lr 1e30 --quiet --out "$work/nan" >"$work/out" 2>"$work/err"; status=$?
check N01 "an update that is not finite ends the run with status 1, too" test $status = 1
check N01 "and nothing is saved" test ! -e "$work/nan/last.safetensors"
finish
