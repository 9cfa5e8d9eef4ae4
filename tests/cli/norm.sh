#!/usr/bin/env bash
# Batch norm's running statistics in files, on resume and in evaluation, and the memory that is predicted. Row B02.
. "${srcdir:-.}/tests/cli/lib.sh"
data=synthetic:samples=60,test=40,shape=3x16x16,classes=10
net() { "$DPNODE" train --quiet --oversubscribe --data $data --model resnet18:width=8 --batch 16 "$@" 2>/dev/null; }

# ---- an unbroken run and one that stopped in mid-epoch, on other devices and in the other mode ----
for how in local sync; do
    net --devices 0 --shards 4 --batch-norm $how --augment crop-flip --epochs 3 --out "$work/whole-$how"
    net --devices 0-1 --shards 4 --batch-norm $how --augment crop-flip --epochs 3 --steps 6 --out "$work/part-$how"
    net --devices 0-2 --mode dp --resume "$work/part-$how/last.safetensors" --epochs 3 --steps 0 --out "$work/part-$how"
    check C01 "$how: stopped and resumed, same bits" same "$work/whole-$how/last.safetensors" "$work/part-$how/last.safetensors"
    check C01 "$how: same state" same "$work/whole-$how/last.state.safetensors" "$work/part-$how/last.state.safetensors"
done
if cmp -s "$work/whole-local/last.safetensors" "$work/whole-sync/last.safetensors"; then
    bad "B01: local and sync give the same weights"
else
    ok "B01: local and sync give other weights"
fi

# ---- what a checkpoint holds ----
last=$work/whole-local/last.safetensors
for tensor in conv1.1.running_mean conv1.1.running_var conv5.1.residual_function.4.running_var conv3.0.shortcut.1.running_mean; do
    check CKPT "$tensor" grep -qa "\"$tensor\":{\"dtype\":\"F32\"" "$last"
done
check CKPT "a counter for each batch norm" test "$(grep -ao 'num_batches_tracked":{"dtype":"I64","shape":\[\]' "$last" | wc -l)" -eq 20
check CKPT "running statistics moved" test "$("$TOOL" tensor "$last" conv1.1.running_mean | sort -u | wc -l)" -gt 4

# ---- evaluation ----
of() { grep -o '"loss":[^,]*,"accuracy":[^,]*' "$1" | tail -n 1; }
net --devices 0 --init "$last" --epochs 0 --log "$work/e0"
for n in 1 2 3; do
    "$DPNODE" eval --quiet --oversubscribe --devices 0-$((n - 1)) --data $data --model resnet18:width=8 --checkpoint "$last" --log "$work/e$n" 2>/dev/null
    check S10 "evaluation on $n device(s)" test "$(of "$work/e0")" = "$(of "$work/e$n")"
done
"$DPNODE" train --quiet --devices 0 --data $data --model resnet18:width=8 --epochs 0 --out "$work/mlp" 2>/dev/null
check S10 "untrained weights evaluate otherwise" test "$(of "$work/e1")" != "$("$DPNODE" eval --devices 0 --data $data --model resnet18:width=8 --checkpoint "$work/mlp/last.safetensors" --quiet --log "$work/e9"; of "$work/e9")"

# ---- B02: one value per channel: the last stage sees 1x1 images in shards of one sample ----
data=synthetic:samples=20,test=8,shape=3x8x8,classes=10
net --devices 0-1 --shards 8 --batch 8 --epochs 1 --out "$work/single" --log "$work/single.log"
check B02 "statistics stay finite" sh -c "! '$TOOL' tensor '$work/single/last.safetensors' conv5.1.residual_function.4.running_var | grep -qi 'nan\|inf'"
check B02 "and the evaluation is a number" grep -q '"event":"eval".*"loss":[0-9]' "$work/single.log"
check B02 "a remark says so" sh -c "'$DPNODE' train --devices 0 --shards 8 --batch 8 --epochs 1 --data $data --model resnet18:width=8 | grep -q 'one value per channel'"

# ---- the memory that a run takes ----
data=synthetic:samples=640,test=64,shape=3x32x32,classes=10
plan="--data $data --devices 0 --model resnet18:width=16 --batch 64"
# shellcheck disable=SC2086
"$DPNODE" train $plan --dry-run --out "$work/none" --log "$work/none.log" >"$work/dry"
check DRY "nothing is written" test ! -e "$work/none" -a ! -e "$work/none.log"
predicted=$(sed -n 's/^ *in all *\([0-9.]*\) MiB$/\1/p' "$work/dry")
# shellcheck disable=SC2086
"$DPNODE" train $plan --epochs 1 >"$work/run"
real=$(sed -n 's/^memory *\([0-9.]*\) MiB at most$/\1/p' "$work/run")
check DRY "predicted $predicted MiB, $real in fact" near 1 "$(awk -v a="$predicted" -v b="$real" 'BEGIN { print a / b }')" 0.15
check M09 "a model that fits nowhere: sizes are positive" sh -c \
    "'$DPNODE' train --model mlp:hidden=46341x46341 --devices 0 --dry-run 2>/dev/null | grep -q '^  parameters  *[0-9.]* MiB' "
finish
