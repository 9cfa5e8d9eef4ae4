#!/usr/bin/env bash
# Command line: rows V01-V07 of the field cases, help and version.
. "${srcdir:-.}/tests/cli/lib.sh"
zeros "$work/z" 0x7,1x6 0x7,1x3
z=mnist:$work/z
units=$("$DPNODE" topo | grep -c '' )
check V00 "topo prints something" test "$units" -gt 3
check V00 "--help" sh -c "'$DPNODE' --help | grep -q -- --devices"
check V00 "--version" sh -c "'$DPNODE' --version | grep -q '^dpnode 0'"
check V01 "--devices 0 is the first device, one of them" \
    sh -c "'$DPNODE' train --devices 0 --data $z --epochs 1 | grep -q 'device 0'"
refused V01 "-1" "$DPNODE" train --devices -1 --data "$z"
refused V02 "0" "$DPNODE" train --devices 0,0 --data "$z"
refused V02 "1" "$DPNODE" train --oversubscribe --devices 0-2,1-999999999999 --data "$z"
check V02 "gaps and order are kept" \
    sh -c "'$DPNODE' train --oversubscribe --devices 2,0,4 --data $z --epochs 1 | grep -c '^device' | grep -qx 3"
for list in 0-4096 0-99999999999999999999 1gpu2 0- -3 0,,1 '0,' ',' x 1-0 99; do
    refused V03 "--devices" "$DPNODE" train --devices "$list" --data /nonexistent
done
refused V06 "--learning-rte" "$DPNODE" train --learning-rte 0.5
refused V06 "adam" "$DPNODE" train --optimizer adma
refused V06 "stray" "$DPNODE" train stray
refused V06 "trian" "$DPNODE" trian
refused V06 "--lr" "$DPNODE" train --lr 0.1 --lr 0.2
refused V06 "hiden" "$DPNODE" train --data "$z" --model mlp:hiden=3
refused V06 "mpl" "$DPNODE" train --data "$z" --model mpl
for value in 0 -5 abc 12x 1e3 4294967297 '' ' 1' 0x10 +1; do refused V07 "--batch" "$DPNODE" train --batch "$value"; done
for value in nan inf -1 0.1.2 1e999 abc 0x1p3 ''; do refused V07 "--lr" "$DPNODE" train --lr "$value"; done
refused V07 "--seed" "$DPNODE" train --seed 18446744073709551616
refused V07 "--epochs" "$DPNODE" train --epochs -1
check V07 "--epochs 0 evaluates the start weights" \
    sh -c "'$DPNODE' train --devices 0 --data $z --epochs 0 | grep -q '^val'"
refused V07 "--kind" "$DPNODE" train --kind cuda
refused V07 "--batch" "$DPNODE" train --batch 8 --batch-per-device 8
refused V07 "--shards" "$DPNODE" train --oversubscribe --devices 0-3 --shards 3 --data "$z"
refused V07 "--resume" "$DPNODE" train --resume auto --data "$z"
refused V07 "--mode" "$DPNODE" train --mode ddpp
refused V07 "--reducer" "$DPNODE" train --reducer nccl
finish
