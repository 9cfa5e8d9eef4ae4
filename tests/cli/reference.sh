#!/usr/bin/env bash
# Training runs computed by PyTorch in float64 (tests/reference): every loss within 1e-4 relative, every gradient norm
# within 1e-3, on 1, 2 and 4 devices, in both modes, with every reducer.
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
finish
