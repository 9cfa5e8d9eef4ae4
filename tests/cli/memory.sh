#!/usr/bin/env bash
# --dry-run: the memory that it foretells is what runs take; it refuses what they would and leaves nothing behind. Row O01.
. "${srcdir:-.}/tests/cli/lib.sh"
# Large enough that what is not foretold (stacks, the C library's own) does not matter.
mlp=(--model mlp:hidden=2048x2048 --data "synthetic:samples=256,test=64,shape=1x28x28" --batch 64)
lenet=(--model lenet --data "synthetic:samples=2048,test=64,shape=3x32x32" --batch 1024)
resnet=(--model resnet18:width=16 --data "synthetic:samples=128,test=32" --batch 64)
mib() { awk -v word="$1" '$1 == "memory" && word == "took" { print $2 } $1 == "in" && $2 == "all" && word == "told" { print $3 }'; }
# foretold NAME OPTIONS...: the run takes at most what was said (and 8 MiB: stacks, tables), and at least 85 % of it (less 8 MiB).
foretold() {
    local name=$1 told took
    shift
    rm -rf "$work/o"
    told=$("$DPNODE" train --dry-run --oversubscribe "$@" 2>/dev/null | mib told)
    if [ -e "$work/o" ]; then bad "MEMORY: $name: the dry run wrote"; fi
    took=$("$DPNODE" train --oversubscribe --steps 2 "$@" 2>/dev/null | mib took)
    if awk -v a="$took" -v b="$told" 'BEGIN { exit !(a > 0 && a <= b + 8 && a >= 0.85 * b - 8) }'; then
        ok "MEMORY: $name: $told MiB foretold, $took taken"
    else
        bad "MEMORY: $name: $told MiB foretold, $took taken"
    fi
}
sanitized=
if grep -qa '__asan_init\|__tsan_init' "$DPNODE"; then
    echo "SKIP MEMORY: what a sanitizer takes is not foretold"
    sanitized=yes
fi
"$DPNODE" train --quiet --devices 0 "${mlp[@]}" --steps 1 --out "$work/first-1"
for n in 1 2; do
    [ -z "$sanitized" ] || break
    on=(--devices "0-$((n - 1))" --shards 2)
    foretold "mlp, $n device(s)" "${mlp[@]}" "${on[@]}"
    foretold "mlp, dp, $n device(s)" "${mlp[@]}" "${on[@]}" --mode dp --optimizer adam
    foretold "mlp, --check-reduce, $n device(s)" "${mlp[@]}" "${on[@]}" --check-reduce
    foretold "mlp, --out, $n device(s)" "${mlp[@]}" "${on[@]}" --out "$work/o"
    foretold "lenet, $n device(s)" "${lenet[@]}" "${on[@]}"
    foretold "resnet, sync, $n device(s)" "${resnet[@]}" "${on[@]}" --batch-norm sync
    rm -rf "$work/first-$n"
    "$DPNODE" train --quiet --oversubscribe "${mlp[@]}" "${on[@]}" --steps 1 --optimizer adam --out "$work/first-$n" 2>/dev/null
    foretold "mlp, --init, $n device(s)" "${mlp[@]}" "${on[@]}" --init "$work/first-$n/last.safetensors"
    foretold "mlp, --resume, $n device(s)" "${mlp[@]}" "${on[@]}" --optimizer adam --resume "$work/first-$n/last.safetensors" --epochs 2
done

# ---- what a run would refuse ----
dry() { "$DPNODE" train --devices 0 --data synthetic:samples=20,test=4 --model dense --dry-run "$@"; }
none() { [ -z "$(ls -A "$work/empty")" ]; }
mkdir "$work/empty"
check O01 "a new folder and a new log are fine" dry --out "$work/empty/a/b" --log "$work/empty/log"
check O01 "and are not made" none
: >"$work/file"
for dry in --dry-run --quiet; do
    refused O01 "$work/file/x" "$DPNODE" train --devices 0 --data synthetic:samples=20,test=4 --model dense $dry --out "$work/file/x"
    refused O01 "--out $work/file" "$DPNODE" train --devices 0 --data synthetic:samples=20,test=4 --model dense $dry --out "$work/file"
    refused O01 "$work/none/log" "$DPNODE" train --devices 0 --data synthetic:samples=20,test=4 --model dense $dry --log "$work/none/log"
    refused O01 "--log '$work/empty'" "$DPNODE" train --devices 0 --data synthetic:samples=20,test=4 --model dense $dry --log "$work/empty"
    refused O01 "holds a run already" "$DPNODE" train --devices 0 --data synthetic:samples=20,test=4 --model dense $dry --out "$work/first-1"
done
# Too large: before anything of the model's size is asked for, also where that would not even have a number of bytes.
for hidden in 1000000x1000000 1048576x1048576x1048576; do
    refused MEMORY "--model 'mlp:hidden=$hidden'" "$DPNODE" train --devices 0 --data synthetic:samples=20,test=4 --model mlp:hidden=$hidden
    refused MEMORY "--model 'mlp:hidden=$hidden'" "$DPNODE" train --devices 0 --data synthetic:samples=20,test=4 --model mlp:hidden=$hidden --check-reduce
    "$DPNODE" train --devices 0 --data synthetic:samples=20,test=4 --model mlp:hidden=$hidden --dry-run >"$work/out" 2>"$work/err"; status=$?
    check MEMORY "a dry run says how much $hidden would take" grep -q 'in all .* MiB' "$work/out"
    check MEMORY "and refuses it" test $status = 2
done
finish
