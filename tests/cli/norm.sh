#!/usr/bin/env bash
# Batch norm's running statistics: their values, in files, on resume and in evaluation. Rows B01, B02, C01, S10.
. "${srcdir:-.}/tests/cli/lib.sh"
# 600 test samples are three chunks of evaluation, one for each of three devices; 60 in batches of 16 leave 12.
data=synthetic:samples=60,test=600,shape=3x16x16,classes=10
net() { "$DPNODE" train --quiet --oversubscribe --data $data --model resnet18:width=8 "$@" 2>/dev/null; }
# The bytes of a safetensors file's tensors, without the header, which says who wrote it.
tensors() { tail -c +$((9 + $(od -An -tu8 -N8 "$1"))) "$1"; }
same_tensors() { cmp <(tensors "$1") <(tensors "$2"); }

# ---- an unbroken run and one that stopped in mid-epoch, on other devices and in the other mode ----
for how in local sync; do
    net --batch 16 --devices 0 --shards 4 --batch-norm $how --augment crop-flip --epochs 3 --out "$work/whole-$how" --log "$work/$how.log"
    net --batch 16 --devices 0-1 --shards 4 --batch-norm $how --augment crop-flip --epochs 3 --steps 6 --out "$work/part-$how"
    net --devices 0-2 --mode dp --resume "$work/part-$how/last.safetensors" --epochs 3 --steps 0 --out "$work/part-$how"
    check C01 "$how: stopped and resumed, same bits" same "$work/whole-$how/last.safetensors" "$work/part-$how/last.safetensors"
    check C01 "$how: same state" same_tensors "$work/whole-$how/last.state.safetensors" "$work/part-$how/last.state.safetensors"
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
counters=$(grep -ao 'num_batches_tracked":{"dtype":"I64","shape":\[\],"data_offsets":\[[0-9]*' "$last" | grep -o '[0-9]*$')
check CKPT "a counter for each batch norm" test "$(echo "$counters" | wc -l)" -eq 20
for at in $counters; do tensors "$last" | od -An -td8 -j "$at" -N8; done >"$work/counts"
check CKPT "each of which counted 12 steps" test "$(sort -u "$work/counts" | tr -d ' ')" = 12
check CKPT "running statistics moved" test "$("$TOOL" tensor "$last" conv1.1.running_mean | sort -u | wc -l)" -gt 4

# ---- evaluation ----
of() { grep -o '"loss":[^,]*,"accuracy":[^,]*' "$1" | tail -n 1; }
for how in local sync; do
    for n in 1 2 3; do
        "$DPNODE" eval --quiet --oversubscribe --devices 0-$((n - 1)) --data $data --model resnet18:width=8 \
            --checkpoint "$work/whole-$how/last.safetensors" --log "$work/e$n" 2>/dev/null
        check S10 "$how, on $n device(s): what the run itself found" test "$(of "$work/e$n")" = "$(of "$work/$how.log")"
        rm -f "$work/e$n"
    done
done
net --batch 16 --devices 0 --init "$last" --epochs 0 --log "$work/e0"
check S10 "as start weights, too" test "$(of "$work/e0")" = "$(of "$work/local.log")"
net --devices 0 --epochs 0 --log "$work/e9"
check S10 "untrained weights evaluate otherwise" test -n "$(of "$work/e9")" -a "$(of "$work/e9")" != "$(of "$work/local.log")"

# ---- B01: a channel of 0s in one shard, of 2s in the other ----
# Images of one pixel: of a 3x3 convolution's taps only the middle one sees it, so the norm behind the first convolution
# sees 0 and 2w, w being that weight: mean w, variance w*w, or 0 in each shard; unbiased over both of them 2*w*w.
npy() { # FILE SHAPE: bytes from stdin behind NumPy's header
    local header="{'descr': '|u1', 'fortran_order': False, 'shape': ($2), }"
    { printf '\223NUMPY\001\000\166\000'; printf '%-117s\n' "$header"; cat; } >"$1"
}
mkdir "$work/pixels"
printf '\000\377' | npy "$work/pixels/train_x.npy" '2, 1, 1'
printf '\000\001' | npy "$work/pixels/train_y.npy" '2,'
pixels() {
    "$DPNODE" train --quiet --oversubscribe --data "npy:$work/pixels" --normalize 0/0.5 --model resnet18:width=4 --batch 2 --shards 2 \
        --steps 1 --lr 0 --momentum 0 --no-shuffle --overwrite "$@" 2>/dev/null
}
# Mean and variance are as they should be, up to float32's rounding.
is_right() {
    paste <("$TOOL" tensor "$1" conv1.0.weight | awk 'NR % 9 == 5') <("$TOOL" tensor "$1" conv1.1.running_mean) \
        <("$TOOL" tensor "$1" conv1.1.running_var) |
        awk -v sync="$2" 'function off(a, b) { return a - b > 1e-6 || b - a > 1e-6 }
            { n++; if (NF != 3 || off($2, 0.1 * $1) || off($3, 0.9 + sync * 0.2 * $1 * $1)) { print; wrong = 1 } }
            END { exit wrong || n != 4 }'
}
for how in local sync; do
    shared=0; [ $how = sync ] && shared=1
    for layout in "0 ddp" "0-1 ddp" "0-1 dp"; do
        # shellcheck disable=SC2086
        set -- $layout
        rm -rf "$work/pixel"
        pixels --devices "$1" --mode "$2" --batch-norm $how --out "$work/pixel"
        [ "$layout" = "0 ddp" ] && { rm -rf "$work/pixel-$how"; cp -rL "$work/pixel" "$work/pixel-$how"; }
        check B01 "$how, devices $1, $2: running statistics" is_right "$work/pixel/last.safetensors" $shared
        check B01 "$how, devices $1, $2: same bits" same "$work/pixel-$how/last.safetensors" "$work/pixel/last.safetensors"
    done
done

# ---- B02: one value per channel: the last stage sees 1x1 images in shards of one sample ----
data=synthetic:samples=20,test=8,shape=3x8x8,classes=10
for how in local sync; do
    # A last batch of 4 leaves half of the shards empty; a last batch of 1 all but one.
    for batch in 8 19; do
        rm -rf "$work/single"
        net --devices 0-1 --shards $batch --batch $batch --batch-norm $how --epochs 2 --lr 0.01 --out "$work/single" --log "$work/single.log"
        for tensor in conv5.0.residual_function.1.running_var conv5.1.residual_function.4.running_var conv5.1.residual_function.4.weight; do
            "$TOOL" tensor "$work/single/last.safetensors" $tensor >"$work/values"
            check B02 "$how, batch $batch: $tensor stays finite" sh -c "[ \$(wc -l <'$work/values') = 64 ] && ! grep -qi 'nan\|inf' '$work/values'"
        done
        check B02 "$how, batch $batch: the evaluation is a number" grep -q '"event":"eval".*"loss":[0-9]' "$work/single.log"
        rm -f "$work/single.log"
    done
done
check B02 "a remark says so" sh -c "'$DPNODE' train --devices 0 --shards 8 --batch 8 --epochs 1 --data $data --model resnet18:width=8 | grep -q 'one value per channel'"
check B02 "none where there is more than one" sh -c "'$DPNODE' train --devices 0 --batch 8 --epochs 1 --data $data --model resnet18:width=8 >'$work/out' && ! grep -q 'one value per channel' '$work/out'"
finish
