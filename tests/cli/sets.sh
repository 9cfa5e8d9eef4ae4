#!/usr/bin/env bash
# Data sets of images: CIFAR-10's binary form, NumPy arrays, augmentation. Rows D13, D14, R03.
. "${srcdir:-.}/tests/cli/lib.sh" || exit 1
run() { "$DPNODE" train --devices 0 --quiet --model mlp:hidden=8 --epochs 1 --batch 16 "$@"; }

# ---- CIFAR-10 ----
tiny=$reference/cifar-tiny
fresh() { rm -rf "$work/c"; cp -r "$tiny" "$work/c"; chmod -R u+w "$work/c"; }
fresh
check D14 "the small set trains" run --data "cifar10:$work/c"
check D14 "240 and 48 images" sh -c "'$DPNODE' train --dry-run --data 'cifar10:$work/c' | grep -q 'train 240, test 48'"
truncate -s -1 "$work/c/data_batch_3.bin"
refused D14 data_batch_3.bin "$DPNODE" train --devices 0 --data "cifar10:$work/c"
fresh; rm "$work/c/data_batch_4.bin"
refused D14 data_batch_4.bin "$DPNODE" train --devices 0 --data "cifar10:$work/c"
fresh; rm "$work/c/test_batch.bin"
refused D14 test_batch.bin "$DPNODE" train --devices 0 --data "cifar10:$work/c"
fresh; rm "$work/c/data_batch_2.bin"; mkdir "$work/c/data_batch_2.bin"
refused D14 folder "$DPNODE" train --devices 0 --data "cifar10:$work/c"
fresh; : >"$work/c/data_batch_1.bin"
refused D14 data_batch_1.bin "$DPNODE" train --devices 0 --data "cifar10:$work/c"
fresh; printf '\012' | dd of="$work/c/data_batch_2.bin" bs=1 seek=3073 conv=notrunc 2>/dev/null
refused D14 "label 10 at index 1" "$DPNODE" train --devices 0 --data "cifar10:$work/c"
fresh; for file in "$work"/c/*.bin; do mv "$file" "${file%.bin}"; done
refused D13 cifar10_from_python.py "$DPNODE" train --devices 0 --data "cifar10:$work/c"
fresh; printf '\200\002' | dd of="$work/c/data_batch_1.bin" bs=1 conv=notrunc 2>/dev/null
refused D13 pickle "$DPNODE" train --devices 0 --data "cifar10:$work/c"
fresh; gzip -c "$work/c/test_batch.bin" >"$work/t" && mv "$work/t" "$work/c/test_batch.bin"
refused D13 gzip "$DPNODE" train --devices 0 --data "cifar10:$work/c"

# ---- NumPy arrays ----
# npy FILE TYPE SHAPE: elements from stdin, behind a header as NumPy writes it.
npy() {
    local header="{'descr': '$2', 'fortran_order': ${4:-False}, 'shape': ($3), }"
    local padded=$(((10 + ${#header} + 1 + 63) / 64 * 64 - 10))
    { printf '\223NUMPY\001\000'; printf "\\$(printf %03o $((padded % 256)))\\$(printf %03o $((padded / 256)))"
        printf '%-*s\n' $((padded - 1)) "$header"; cat; } >"$1"
}
bytes() { head -c "$1" "$tiny/data_batch_1.bin"; }
labels() { for ((i = 0; i < $1; i++)); do printf "\\$(printf %03o $((i % 3)))"; done; }
arrays() {
    rm -rf "$work/n"; mkdir "$work/n"
    bytes $((24 * 2 * 5 * 7)) | npy "$work/n/train_x.npy" '|u1' '24, 2, 5, 7'
    labels 24 | npy "$work/n/train_y.npy" '|u1' '24,'
    bytes $((6 * 2 * 5 * 7)) | npy "$work/n/test_x.npy" '|u1' '6, 2, 5, 7'
    labels 6 | npy "$work/n/test_y.npy" '|i1' '6,'
}
arrays
check NPY "trains" run --data "npy:$work/n"
check NPY "shape and classes" sh -c "'$DPNODE' train --dry-run --data 'npy:$work/n' | grep -q 'train 24, test 6 | 2x5x7, 3 classes'"
rm "$work"/n/test_*; check NPY "no test part" run --data "npy:$work/n"
arrays; rm "$work/n/test_y.npy"; refused NPY test_y.npy "$DPNODE" train --devices 0 --data "npy:$work/n"
arrays; head -c $((24 * 4)) /dev/zero | npy "$work/n/train_y.npy" '<i4' '24,'
check NPY "labels of 4 bytes" run --data "npy:$work/n"
arrays; head -c $((24 * 5 * 7 * 4)) /dev/zero | npy "$work/n/train_x.npy" '<f4' '24, 5, 7'; rm "$work"/n/test_*
check NPY "floats, grey" run --data "npy:$work/n"
arrays; truncate -s -1 "$work/n/train_x.npy"; refused NPY train_x.npy "$DPNODE" train --devices 0 --data "npy:$work/n"
arrays; printf x >>"$work/n/train_x.npy"; refused NPY train_x.npy "$DPNODE" train --devices 0 --data "npy:$work/n"
arrays; labels 23 | npy "$work/n/train_y.npy" '|u1' '23,'; refused NPY 23 "$DPNODE" train --devices 0 --data "npy:$work/n"
arrays; printf '\377%.0s' {1..24} | npy "$work/n/train_y.npy" '|i1' '24,'
refused NPY "label -1 at index 0" "$DPNODE" train --devices 0 --data "npy:$work/n"
arrays; bytes 1680 | npy "$work/n/train_x.npy" '|u1' '24, 2, 5, 7' True
refused NPY Fortran "$DPNODE" train --devices 0 --data "npy:$work/n"
arrays; bytes 13440 | npy "$work/n/train_x.npy" '<f8' '24, 2, 5, 7'
refused NPY float32 "$DPNODE" train --devices 0 --data "npy:$work/n"
arrays; bytes 6720 | npy "$work/n/train_x.npy" '>f4' '24, 2, 5, 7'
refused NPY big-endian "$DPNODE" train --devices 0 --data "npy:$work/n"
arrays; bytes 420 | npy "$work/n/test_x.npy" '|u1' '6, 2, 7, 5'
refused NPY 2x7x5 "$DPNODE" train --devices 0 --data "npy:$work/n"
arrays; printf '<!DOCTYPE html>' >"$work/n/train_x.npy"; refused NPY train_x.npy "$DPNODE" train --devices 0 --data "npy:$work/n"
refused NPY train_x.npy "$DPNODE" train --devices 0 --data "npy:$work"
refused NPY /nonexistent "$DPNODE" train --devices 0 --data npy:/nonexistent
arrays
check NPY "odd images through a residual net" "$DPNODE" train --devices 0 --quiet --model resnet18:width=4 --batch 5 --epochs 1 --data "npy:$work/n"
check NPY "and another" "$DPNODE" train --devices 0 --quiet --model resnet20:width=8 --batch 5 --epochs 1 --data "npy:$work/n"
refused NPY "conv2" "$DPNODE" train --devices 0 --model lenet --data synthetic:shape=1x4x4

# ---- augmentation: a function of seed, epoch and sample ----
losses() { rm -f "$work/log"; "$DPNODE" train --quiet --oversubscribe --model mlp:hidden=8 --data "cifar10:$tiny" --batch 1 --lr 0 --momentum 0 --no-shuffle \
    --epochs 2 --eval-every 0 --log "$work/log" --log-every 1 --shards 1 "$@" 2>/dev/null; grep -o '"epoch":[01],.*"loss":[^,]*' "$work/log" | sed 's/"step":[0-9]*,//'; }
of_epoch() { grep "\"epoch\":$1," | sed 's/"epoch":[01],//'; }
losses --devices 0 --augment crop-flip >"$work/augmented"
losses --devices 0 >"$work/plain"
check R03 "images change from epoch to epoch" sh -c "[ \"\$(grep 'epoch\":0' '$work/augmented' | cut -d, -f2-)\" != \"\$(grep 'epoch\":1' '$work/augmented' | cut -d, -f2-)\" ]"
check R03 "without it they do not" test "$(of_epoch 0 <"$work/plain")" = "$(of_epoch 1 <"$work/plain")"
changed=$(diff <(of_epoch 0 <"$work/augmented") <(of_epoch 0 <"$work/plain") | grep -c '^<')
check R03 "nearly every sample is changed ($changed of 240)" test "$changed" -gt 200
for n in 1 2 3; do
    "$DPNODE" train --quiet --oversubscribe --devices 0-$((n - 1)) --shards 6 --model mlp:hidden=8 --data "cifar10:$tiny" --batch 50 --epochs 2 \
        --augment crop-flip --out "$work/a$n" 2>/dev/null
    check R03 "$n device(s): same bits" same "$work/a1/last.safetensors" "$work/a$n/last.safetensors"
done

arrays; bytes $((24 * 35)) | npy "$work/n/train_x.npy" '|u1' '24, 35'; rm "$work"/n/test_*
check NPY "vectors train" run --data "npy:$work/n"
refused R03 "--augment 'crop-flip'" "$DPNODE" train --devices 0 --data "npy:$work/n" --augment crop-flip
refused R03 "1x1x35" "$DPNODE" train --devices 0 --data "npy:$work/n" --augment crop-flip

# ---- the converter ----
if command -v python3 >/dev/null; then
    check D13 "the converter refuses what is no pickle of images" sh -c "! python3 '$srcdir/data/cifar10_from_python.py' '$tiny' '$work/p'"
else
    echo "SKIP D13: no python3"
fi
finish
