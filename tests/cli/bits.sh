#!/usr/bin/env bash
# Same bits: for a fixed number of shards, any number of devices, both modes, any team size, every exact reducer.
. "${srcdir:-.}/tests/cli/lib.sh"
# Synthetic data keeps this independent of packages; 300 samples in batches of 70 leave a ragged last batch of 20.
data=synthetic:samples=300,test=40,shape=1x12x12,classes=10
# The folder is new each time: a run that fails leaves no weights to compare.
train() { rm -rf "$1"; "$DPNODE" train --quiet --oversubscribe --data $data --seed 5 --epochs 2 --out "$@" 2>/dev/null; }
# all NAME BASE-OPTIONS -- VARIANT...: every variant's weights equal the first one's.
compare() {
    local name=$1 file=$2
    shift 2
    train "$work/b" --batch 70 --model mlp:hidden=40x24 "$@"
    check R04 "$name" same "$file" "$work/b/last.safetensors"
}
for v in 8 7 12; do
    train "$work/first-$v" --batch 70 --model mlp:hidden=40x24 --devices 0 --shards $v
    counts="1 2 3 4 8"; [ $v != 8 ] && counts="1 2 5"
    for n in $counts; do
        for mode in ddp dp; do
            compare "V=$v, $n device(s), $mode" "$work/first-$v/last.safetensors" --devices 0-$((n - 1)) --shards $v --mode $mode
        done
    done
done
first=$work/first-8/last.safetensors
for threads in 1 2 3; do
    for n in 1 2; do
        compare "$n device(s), team of $threads" "$first" --devices 0-$((n - 1)) --shards 8 --threads-per-device $threads
    done
done
compare "reducer ref" "$first" --devices 0-2 --shards 8 --reducer ref
compare "checked" "$first" --devices 0-2 --shards 8 --check-reduce
compare "small buckets" "$first" --devices 0-3 --shards 8 --bucket-mb 0.01
compare "OMP_NUM_THREADS=4" "$first" --devices 0-1 --shards 8
OMP_NUM_THREADS=4 OPENBLAS_NUM_THREADS=8 compare "thread variables" "$first" --devices 0-1 --shards 8
# Several NUMA nodes (made up; nothing is bound there): a copy of the parameters on each.
export HWLOC_SYNTHETIC="package:2 numa:2 core:2 pu:1"
check R04 "4 synthetic NUMA nodes" sh -c "'$DPNODE' topo --cpu-unit core --devices 0-7 | grep -q 'node 3'"
for mode in ddp dp; do
    compare "8 devices on 4 synthetic NUMA nodes, $mode" "$first" --cpu-unit core --devices 0-7 --shards 8 --mode $mode
done
unset HWLOC_SYNTHETIC
# A batch smaller than V, and one ragged for every member.
for batch in 5 11; do
    train "$work/few" --batch $batch --model mlp:hidden=40x24 --devices 0 --shards 8
    for n in 2 3 8; do
        for mode in ddp dp; do
            train "$work/b" --batch $batch --model mlp:hidden=40x24 --devices 0-$((n - 1)) --shards 8 --mode $mode
            check R04 "batch $batch, V=8, $n devices, $mode" same "$work/few/last.safetensors" "$work/b/last.safetensors"
        done
    done
done
# Optimizers, clipping and dense, 1 against 3 devices.
for options in "--optimizer adam" "--optimizer adamw --weight-decay 0.1" "--nesterov" "--clip-norm 0.5" "--model dense" \
    "--last-batch wrap" "--last-batch drop" "--schedule cosine --warmup-epochs 1"; do
    case $options in --model*) model= ;; *) model="--model mlp:hidden=40x24" ;; esac
    # shellcheck disable=SC2086
    train "$work/one" --batch 70 $model --devices 0 --shards 6 $options
    for mode in ddp dp; do
        # shellcheck disable=SC2086
        train "$work/three" --batch 70 $model --devices 0-2 --shards 6 --mode $mode $options
        check R04 "$options, 3 devices, $mode" same "$work/one/last.safetensors" "$work/three/last.safetensors"
    done
done
# Convolutional nets: batch norm of shards or of the whole batch, a ragged last batch, shards of one sample and none.
# nets NAME OPTIONS -- : one device against others.
nets() {
    local name=$1
    shift
    train "$work/one" --devices 0 --shards 8 "$@"
    for layout in "1 dp 1" "2 ddp 1" "3 ddp 1" "4 dp 1" "8 ddp 1" "3 dp 2" "1 ddp 2" "2 ddp 3"; do
        # shellcheck disable=SC2086
        set -- $layout "$@"
        train "$work/b" --devices "0-$(($1 - 1))" --mode "$2" --threads-per-device "$3" --shards 8 "${@:4}"
        check R04 "$name, $1 device(s), $2, team of $3" same "$work/one/last.safetensors" "$work/b/last.safetensors"
        shift 3
    done
}
data=synthetic:samples=43,test=10,shape=3x20x20,classes=10
nets "resnet18, local" --model resnet18:width=8 --batch 24
nets "resnet18, sync" --model resnet18:width=8 --batch 24 --batch-norm sync
nets "resnet18, winograd, adam, shards of one" --model resnet18:width=8 --batch 8 --conv winograd --optimizer adam
nets "resnet18, fewer samples than shards" --model resnet18:width=8 --batch 5 --batch-norm sync --steps 6
nets "lenet, crop-flip" --model lenet --batch 24 --augment crop-flip
data=synthetic:samples=300,test=40,shape=1x12x12,classes=10
# The check can fail: another seed, another V, another batch give other weights.
train "$work/other" --batch 70 --model mlp:hidden=40x24 --devices 0 --shards 5
check R04 "another V gives other bits" sh -c "! cmp -s '$first' '$work/other/last.safetensors'"
# R01: orders differ between epochs: the losses of two epochs at learning rate 0 with batches of 1 are a permutation of each other.
"$DPNODE" train --quiet --devices 0 --data synthetic:samples=22,test=2,shape=1x8x8 --batch 1 --epochs 3 --lr 0 --momentum 0 --seed 1 \
    --log "$work/r01.log" --log-every 1
losses() { grep "\"event\":\"step\",\"epoch\":$1," "$work/r01.log" | grep -o '"loss":[^,]*'; }
check R01 "22 samples each epoch" test "$(losses 0 | wc -l) $(losses 2 | wc -l)" = "22 22"
check R01 "same samples" test "$(losses 0 | sort | cksum)" = "$(losses 1 | sort | cksum)"
if [ "$(losses 0)" != "$(losses 1)" ] && [ "$(losses 1)" != "$(losses 2)" ]; then ok "R01: other order"; else bad "R01: other order"; fi
finish
