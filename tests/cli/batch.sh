#!/usr/bin/env bash
# Cutting the batch, averaging, evaluation: rows S01-S14, and counting samples: P03.
. "${srcdir:-.}/tests/cli/lib.sh"
# What it is to write is new: a run that fails leaves nothing to check.
dp() {
    local arg before=
    for arg; do
        case $before in --log | --out) rm -rf "$arg" ;; esac
        before=$arg
    done
    "$DPNODE" "$@"
}
zeros "$work/z13" 0x7,1x6 0x7,1x6
z13=mnist:$work/z13
zero_init "$z13" "$work/zero.safetensors"
common=(--init "$work/zero.safetensors" --normalize none --momentum 0 --no-shuffle --overwrite)

bias() { "$TOOL" tensor "$1/last.safetensors" fc3.bias; }
check_s01() {
    local values
    mapfile -t values < <(bias "$1")
    near "${values[0]}" 0.438462 1e-6 && near "${values[1]}" 0.361538 1e-6 || return 1
    for i in 2 3 4 5 6 7 8 9; do near "${values[$i]}" -0.1 1e-7 || return 1; done
}
for mode in ddp dp; do
    for devices in 0 0-1 0-3; do
        dp train --quiet --oversubscribe --devices $devices --mode $mode --data "$z13" "${common[@]}" --batch 13 --lr 1 --steps 1 \
            --out "$work/s01" --log "$work/s01.log" --log-every 1
        check S01 "$mode on $devices: bias after one step" check_s01 "$work/s01"
        check S01 "$mode on $devices: loss on the set" near "$("$TOOL" log-last "$work/s01.log" eval loss)" 1.921834 2e-6
        check S01 "$mode on $devices: first loss is ln 10" near "$("$TOOL" log-last "$work/s01.log" step loss)" 2.302585 1e-6
    done
done
one=
for case in "9 4" "36 7" "5 6" "2 4" "1 3" "13 7"; do
    set -- $case
    for n in 1 "$2"; do
        dp train --quiet --oversubscribe --devices 0-$((n - 1)) --shards "$2" --data "$z13" --batch "$1" --steps 3 --lr 0.1 --seed 3 --overwrite \
            --out "$work/s03-$n"
    done
    check S03 "batch $1 on $2 devices equals 1 device" same "$work/s03-1/last.safetensors" "$work/s03-$2/last.safetensors"
done
check S05 "batch 1 on 4 devices ends" timeout 30 "$DPNODE" train --quiet --oversubscribe --devices 0-3 --data "$z13" --batch 1 --epochs 1
zeros "$work/z3" 0,1,2 0,1; zeros "$work/z4" 0,1,2,3 0; zeros "$work/z5" 0,1,2,3,4 0
for case in "3 7 64" "4 9 64" "5 2 64"; do
    set -- $case
    dp train --quiet --oversubscribe --devices 0-$(($2 - 1)) --data "mnist:$work/z$1" --batch "$3" --epochs 2 --log "$work/s06.log"
    check S06 "$1 samples on $2 devices: $(("$1" * 2)) samples in 2 steps" \
        test "$("$TOOL" log-last "$work/s06.log" summary samples)/$("$TOOL" log-last "$work/s06.log" summary steps)" = "$(($1 * 2))/2"
done
zeros "$work/z17" 0x9,1x8 0
timeout 60 "$DPNODE" train --quiet --oversubscribe --devices 0-1 --data "mnist:$work/z17" --batch 8 --epochs 1 --log "$work/s09.log" --log-every 1
check S09 "17 samples, batch 8: 3 steps" test "$("$TOOL" log-last "$work/s09.log" summary steps)" = 3
check S09 "last step has 1 sample" test "$("$TOOL" log-last "$work/s09.log" step samples)" = 1
for last in drop wrap; do
    dp train --quiet --devices 0 --data "mnist:$work/z17" --batch 8 --epochs 1 --last-batch $last --log "$work/s09.log"
    want=16; [ $last = wrap ] && want=24
    check S09 "--last-batch $last: $want samples" test "$("$TOOL" log-last "$work/s09.log" summary samples)" = $want
done
refused S09 "--batch" "$DPNODE" train --devices 0 --data "mnist:$work/z17" --batch 18 --last-batch drop
zeros "$work/z10" 0x7,1x3 0x7,1x3
for devices in 0 0-1 0-2; do
    dp eval --quiet --oversubscribe --devices $devices --data "mnist:$work/z10" --init "$work/zero.safetensors" --normalize none --log "$work/s10.log"
    check S10 "accuracy 0.7 on $devices" near "$("$TOOL" log-last "$work/s10.log" eval accuracy)" 0.7 1e-12
    check S10 "10 samples on $devices" test "$("$TOOL" log-last "$work/s10.log" eval samples)" = 10
done
zeros "$work/z8" 0x8 0x8
for devices in 0 0-3; do
    for steps in 1 5; do
        dp train --quiet --oversubscribe --devices $devices --data "mnist:$work/z8" "${common[@]}" --lr 0.1 --weight-decay 0.1 --batch 8 --steps $steps --epochs 9 --out "$work/s12"
        got=$(paste <("$TOOL" tensor "$work/zero.safetensors" fc1.weight) <("$TOOL" tensor "$work/s12/last.safetensors" fc1.weight) |
            awk '$1 > 0.01 { sum += $2 / $1; n++ } END { printf "%.7f", sum / n }')
        want=0.99; [ $steps = 5 ] && want=0.950990
        check S12 "decay on $devices after $steps step(s): $got" near "$got" $want 2e-6
    done
done
for n in 1 4; do
    dp train --oversubscribe --devices 0-$((n - 1)) --shards 4 --data "$z13" --batch 5 --epochs 2 --log "$work/s14-$n.log" --log-every 1 >"$work/s14-$n.txt"
    grep '"event":"step"' "$work/s14-$n.log" >"$work/s14-$n.steps"
done
check S14 "same trajectory on 1 and 4 devices" same "$work/s14-1.steps" "$work/s14-4.steps"
refused S14 "--scale-lr" "$DPNODE" train --scale-lr --data "$z13"
check S14 "--scale-lr is printed" sh -c \
    "'$DPNODE' train --oversubscribe --devices 0-1 --batch-per-device 3 --scale-lr --lr 0.1 --data '$z13' --epochs 1 | grep -q 'lr 0.2'"
if [ -d "$fashion" ]; then
    for n in 1 2 4; do
        dp train --oversubscribe --devices 0-$((n - 1)) --data "fashion-mnist:$fashion" --batch 128 --epochs 1 --eval-every 0 --log "$work/s08.log" --log-every 1 >"$work/s08.txt"
        check S08 "$n device(s): 469 steps" test "$("$TOOL" log-last "$work/s08.log" summary steps)" = 469
        check S08 "$n device(s): last step has 96" test "$("$TOOL" log-last "$work/s08.log" step samples)" = 96
        check S08 "$n device(s): said at start" grep -q '128 global.*469 steps per epoch (last one 96)' "$work/s08.txt"
        check P03 "$n device(s): 60000 samples" test "$("$TOOL" log-last "$work/s08.log" summary samples)" = 60000
        check P03 "$n device(s): rate x time" near "$(awk -v a="$("$TOOL" log-last "$work/s08.log" epoch samples_per_second)" -v b="$("$TOOL" log-last "$work/s08.log" epoch seconds)" 'BEGIN { print a * b }')" 60000 1
    done
    dp train --quiet --oversubscribe --devices 0-3 --data "fashion-mnist:$fashion" --batch-per-device 128 --epochs 1 --eval-every 0 --log "$work/s08.log" --log-every 1
    check S08 "4 x 128 per device: 118 steps" test "$("$TOOL" log-last "$work/s08.log" summary steps)" = 118
    check S08 "4 x 128 per device: last step has 96" test "$("$TOOL" log-last "$work/s08.log" step samples)" = 96
else
    echo "SKIP S08, P03: no $fashion (Debian package dataset-fashion-mnist)"
fi
finish
