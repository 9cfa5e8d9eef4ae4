#!/usr/bin/env bash
# Training runs computed by PyTorch in float64 (tests/reference): every loss within 1e-4 relative, every gradient norm
# within 1e-3 (Winograd: 1e-3 and 5e-3), on 1, 2 and 4 devices, in both modes, with every reducer.
. "${srcdir:-.}/tests/cli/lib.sh"
[ -d "$fashion" ] || skip_all "no $fashion (Debian package dataset-fashion-mnist)"

# arguments CASE: the options of a reference run.
arguments() {
    case $1 in
    dense-*) echo --model dense --lr 0.01 --momentum 0 ;;
    mlp-momentum) echo --model mlp --lr 0.05 --momentum 0.9 --weight-decay 1e-4 ;;
    mlp-nesterov) echo --model mlp --lr 0.05 --momentum 0.9 --weight-decay 1e-4 --nesterov ;;
    mlp-adam) echo --model mlp --optimizer adam --lr 0.001 --weight-decay 1e-4 ;;
    mlp-adamw) echo --model mlp --optimizer adamw --lr 0.001 --weight-decay 0.01 ;;
    lenet-adam-4replicas) echo --model lenet --optimizer adam --lr 0.001 ;;
    resnet18-momentum) echo --model resnet18:width=8 --lr 0.02 --momentum 0.9 --weight-decay 5e-4 ;;
    resnet18-adam-2replicas) echo --model resnet18:width=8 --optimizer adam --lr 0.001 ;;
    esac
}
for file in "$reference"/dense-*.json "$reference"/mlp-*.json; do
    name=$(basename "$file" .json)
    devices="0 0-1 0-3" op=mean
    # With `sum` every member adds its own mean, so the expected values are those of two members.
    [ "$name" = dense-sum-2replicas ] && devices=0-1 op=sum
    for list in $devices; do
        for mode in ddp dp; do
            for reducer in ref shm; do
                # shellcheck disable=SC2046
                "$DPNODE" train --quiet --oversubscribe --devices "$list" --mode $mode --reducer $reducer --grad-op $op \
                    --data "fashion-mnist:$fashion" --init "$reference/$name.safetensors" $(arguments "$name") \
                    --batch 64 --steps 20 --no-shuffle --eval-every 0 --log "$work/log" --log-every 1 --log-tensors 1
                check REF "$name on $list, $mode, $reducer: $("$TOOL" reference "$file" "$work/log" 1e-4 1e-3 2>&1)" \
                    "$TOOL" reference "$file" "$work/log" 1e-4 1e-3
            done
        done
    done
done

# conv CASE DATA BATCH STEPS TOLERANCE GRADIENT-TOLERANCE OPTIONS...: a case of a convolutional net.
conv() {
    local name=$1 data=$2 batch=$3 steps=$4 tolerance=$5 gradients=$6
    shift 6
    # shellcheck disable=SC2046
    "$DPNODE" train --quiet --oversubscribe --data "$data" --init "$reference/$name.safetensors" $(arguments "$name") \
        --batch "$batch" --steps "$steps" --no-shuffle --eval-every 0 --log "$work/log" --log-every 1 --log-tensors 1 "$@" 2>/dev/null
    check REF "$name, $*: $("$TOOL" reference "$reference/$name.json" "$work/log" "$tolerance" "$gradients" "$steps" 2>&1)" \
        "$TOOL" reference "$reference/$name.json" "$work/log" "$tolerance" "$gradients" "$steps"
}
tiny=cifar10:$reference/cifar-tiny
for mode in ddp dp; do
    for layout in "--devices 0-3" "--devices 0 --shards 4" "--devices 0-2 --shards 4"; do
        # shellcheck disable=SC2086
        conv lenet-adam-4replicas "fashion-mnist:$fashion" 64 20 1e-4 1e-3 --mode $mode $layout
    done
    # A ReLU's input within rounding of 0 comes out on one side or the other, and its gradient is there or not: from
    # step 4 on this case holds three such, which move later losses by up to 6e-3 in whichever runs they turn.
    conv resnet18-momentum "$tiny" 32 3 1e-4 1e-3 --mode $mode --devices 0 --conv direct
    conv resnet18-momentum "$tiny" 32 6 1e-2 1e-3 --mode $mode --devices 0 --conv direct
    # Statistics of the whole batch, whoever has which part of it: the case of one replica.
    for layout in "--devices 0-1" "--devices 0-3" "--devices 0 --shards 4" "--devices 0-2 --shards 5"; do
        # shellcheck disable=SC2086
        conv resnet18-momentum "$tiny" 32 3 1e-4 1e-3 --mode $mode $layout --batch-norm sync --conv direct
        # shellcheck disable=SC2086
        conv resnet18-momentum "$tiny" 32 6 1e-2 1e-3 --mode $mode $layout --batch-norm sync --conv direct
    done
    # Adam divides every gradient by its own size, so rounding grows from step to step, by the same amount in PyTorch:
    # its own float32 run of this case is 1e-8, 5e-7, 3e-5, 3e-4, 7e-5, 7e-4 off.
    for layout in "--devices 0-1" "--devices 0 --shards 2"; do
        # shellcheck disable=SC2086
        conv resnet18-adam-2replicas "$tiny" 32 3 1e-4 1e-3 --mode $mode $layout --conv direct
        # shellcheck disable=SC2086
        conv resnet18-adam-2replicas "$tiny" 32 6 1e-2 1e-3 --mode $mode $layout --conv direct
    done
done
for isa in baseline avx2 avx512; do
    if "$DPNODE" train --quiet --devices 0 --isa $isa --data "$tiny" --model lenet --steps 1 --eval-every 0 2>/dev/null; then
        conv resnet18-momentum "$tiny" 32 6 1e-2 5e-3 --devices 0 --isa $isa
        conv resnet18-momentum "$tiny" 32 3 1e-3 5e-3 --devices 0 --isa $isa --conv winograd
        conv resnet18-momentum "$tiny" 32 6 1e-2 5e-3 --devices 0 --isa $isa --conv winograd
    else
        echo "SKIP REF: this CPU cannot run $isa"
    fi
done
finish
