#!/usr/bin/env bash
# Data files: rows D01-D12 of the field cases.
. "${srcdir:-.}/tests/cli/lib.sh" || exit 1
run() { "$DPNODE" train --devices 0 --quiet --epochs 1 --batch 4 --no-shuffle --data "$@"; }
fresh() { rm -rf "$work/d"; zeros "$work/d" 0x7,1x6 0x7,1x3; }
images=$work/d/train-images-idx3-ubyte labels=$work/d/train-labels-idx1-ubyte

fresh; run "mnist:$work/d" --out "$work/raw"
gzip "$images"; run "mnist:$work/d" --out "$work/gz"
check D01 "gzip trains like raw" same "$work/raw/last.safetensors" "$work/gz/last.safetensors"
mv "$images.gz" "$images"; run "mnist:$work/d" --out "$work/renamed"
check D01 "gzip without .gz trains like raw" same "$work/raw/last.safetensors" "$work/renamed/last.safetensors"
fresh; gzip "$images"
size=$(stat -c %s "$images.gz")
printf '\377' | dd of="$images.gz" bs=1 seek=$((size / 2)) conv=notrunc 2>/dev/null
refused D03 "train-images" "$DPNODE" train --devices 0 --data "mnist:$work/d"
fresh; gzip "$images"; printf '\377' | dd of="$images.gz" bs=1 seek=$(($(stat -c %s "$images.gz") - 7)) conv=notrunc 2>/dev/null
refused D03 "train-images" "$DPNODE" train --devices 0 --data "mnist:$work/d"
fresh; gzip "$images"; truncate -s -9 "$images.gz"
refused D03 "train-images" "$DPNODE" train --devices 0 --data "mnist:$work/d"
fresh; printf '<!DOCTYPE html><html></html>' >"$images"
refused D04 "3c21444f" "$DPNODE" train --devices 0 --data "mnist:$work/d"
grep -q 00000803 "$work/err" && ok "D04: wanted magic shown" || bad "D04: wanted magic not shown"
fresh; printf '\003\010\000\000\015\000\000\000\034\000\000\000\034\000\000\000' | dd of="$images" bs=1 conv=notrunc 2>/dev/null
refused D06 "train-images" "$DPNODE" train --devices 0 --data "mnist:$work/d"
fresh; cp "$labels" "$images"
refused D06 "2049" "$DPNODE" train --devices 0 --data "mnist:$work/d"
fresh; printf '\015' | dd of="$images" bs=1 seek=2 conv=notrunc 2>/dev/null
refused D06 "train-images" "$DPNODE" train --devices 0 --data "mnist:$work/d"
fresh; printf '\352\140' | dd of="$images" bs=1 seek=6 conv=notrunc 2>/dev/null
refused D07 "47040016" "$DPNODE" train --devices 0 --data "mnist:$work/d"
fresh; truncate -s -1 "$images"
refused D07 "train-images" "$DPNODE" train --devices 0 --data "mnist:$work/d"
fresh; printf x >>"$images"
refused D07 "train-images" "$DPNODE" train --devices 0 --data "mnist:$work/d"
fresh; cp "$work/d/t10k-labels-idx1-ubyte" "$labels"
refused D08 "13" "$DPNODE" train --devices 0 --data "mnist:$work/d"
grep -q 10 "$work/err" && ok "D08: both counts" || bad "D08: both counts"
rm -rf "$work/d"; zeros "$work/d" 0,1,10 0,1
refused D10 "10" "$DPNODE" train --devices 0 --data "mnist:$work/d"
grep -q 'index 2\|label 2\|2 ' "$work/err" && ok "D10: index" || bad "D10: index"
rm -rf "$work/d"; zeros "$work/d" 0,255 0,1
refused D10 "255" "$DPNODE" train --devices 0 --data "mnist:$work/d"
refused D12 "/nonexistent" "$DPNODE" train --devices 0 --data mnist:/nonexistent
zeros "$work/one" 0x7,1x6 0x7; zeros "$work/two" 0x6,1x7 0x7
for set in one two; do "$DPNODE" train --devices 0 --epochs 1 --data "mnist:$work/$set" >"$work/$set.txt"; done
check D12 "path is printed" grep -q "$work/two" "$work/two.txt"
sum() { grep -o 'checksum [0-9a-f]*' "$work/$1.txt"; }
if [ "$(sum one)" != "$(sum two)" ]; then ok "D12: checksums differ"; else bad "D12: checksums differ"; fi
mkdir "$work/cwd" && cp -r "$work/two" "$work/cwd/data" 2>/dev/null
if [ -d "$fashion" ]; then
    check D12 "no folder given: Fashion-MNIST of the system" \
        sh -c "cd '$work' && '$DPNODE' info '$fashion' | grep -qi 60000"
else
    echo "SKIP D12: no $fashion (Debian package dataset-fashion-mnist)"
fi
shared=${DPNODE_SHARED:-/nonexistent}
if [ -d "$shared/data/mnist" ]; then
    check D12 "real MNIST: 60000 and 10000" sh -c \
        "'$DPNODE' train --devices 0 --data mnist:$shared/data/mnist --steps 5 | grep -q 'train 60000, test 10000'"
else
    echo "SKIP D12: no real MNIST (set DPNODE_SHARED to a folder with data/mnist)"
fi
finish
