#!/usr/bin/env bash
# Checkpoints, resuming and signals: rows C01-C09, O01 and G01 of the field cases.
. "${srcdir:-.}/tests/cli/lib.sh"
data=synthetic:samples=400,test=60,shape=1x12x12,classes=10
base=(--quiet --oversubscribe --data "$data" --model mlp:hidden=40x24 --seed 5)
train() { "$DPNODE" train "${base[@]}" "$@" 2>/dev/null; }

for options in "--momentum 0.9" "--optimizer adam" "--optimizer adamw --weight-decay 0.1" "--schedule cosine --warmup-epochs 1 --momentum 0.9"; do
    # shellcheck disable=SC2086
    {
        train --devices 0 --shards 8 --batch 70 --epochs 3 --overwrite --out "$work/whole" $options
        # Stopped in mid-epoch (6 steps an epoch), on another device count, in the other mode.
        train --devices 0-1 --shards 8 --batch 70 --epochs 3 --steps 8 --overwrite --out "$work/part" $options
        train --devices 0-2 --mode dp --resume auto --epochs 3 --out "$work/part"
    }
    check C01 "$options: resumed in mid-epoch on other devices, same weights" same "$work/whole/last.safetensors" "$work/part/last.safetensors"
done
# The instruction set, and where the schedule ends, come from the checkpoint too.
train --devices 0 --shards 2 --batch 70 --epochs 4 --schedule cosine --isa ref --overwrite --out "$work/whole"
train --devices 0-1 --batch 70 --epochs 4 --schedule cosine --isa ref --steps 9 --overwrite --out "$work/part"
train --devices 0 --resume auto --out "$work/part"
check C01 "--isa ref, cosine: resumed without naming them, same weights" same "$work/whole/last.safetensors" "$work/part/last.safetensors"
train --devices 0-1 --grad-op sum --steps 2 --overwrite --out "$work/sum"
refused C01 "--grad-op" "$DPNODE" train "${base[@]}" --devices 0 --resume auto --out "$work/sum"
train --devices 0 --batch 70 --epochs 2 --save-every 3s --overwrite --out "$work/s"
check C01 "--save-every 3s wrote step-00000009" test -f "$work/s/step-00000009.state.safetensors"
train --devices 0 --batch 70 --epochs 2 --out "$work/s2" --resume "$work/s/step-00000009.state.safetensors"
check C01 "resumed from a named file" same "$work/s/last.safetensors" "$work/s2/last.safetensors"

train --devices 0 --batch 70 --epochs 9 --steps 8 --overwrite --out "$work/c03"
"$DPNODE" train --oversubscribe --data $data --model mlp:hidden=40x24 --devices 0-1 --shards 1 --resume auto --out "$work/c03" >"$work/out" 2>"$work/err"
check C03 "V below N is refused" grep -q -- --shards "$work/err"
train --devices 0 --shards 2 --batch 70 --epochs 9 --steps 8 --overwrite --out "$work/c03"
"$DPNODE" train --oversubscribe --data $data --model mlp:hidden=40x24 --devices 0-1 --resume auto --steps 10 --epochs 9 --out "$work/c03" --log "$work/c03.log" --log-every 1 >"$work/out" 2>/dev/null
check C03 "steps go on with 8, 9" test "$(grep -o '"step":[0-9]*,"samples"' "$work/c03.log" | tr -dc '0-9\n' | tr '\n' ' ')" = "8 9 "
check C03 "a note says that N changed" grep -q 'written by 1 device' "$work/out"
refused C03 "--lr" "$DPNODE" train "${base[@]}" --devices 0 --resume auto --out "$work/c03" --lr 0.3
refused C03 "--batch" "$DPNODE" train "${base[@]}" --devices 0 --resume auto --out "$work/c03" --batch 71
refused C03 "other data" "$DPNODE" train --devices 0 --resume auto --out "$work/c03" --data synthetic:samples=401,test=60,shape=1x12x12

# C05: kill -9 at a random moment, then resume; the last survivor must equal an unbroken run.
train --devices 0 --batch 10 --epochs 6 --overwrite --out "$work/whole"
rm -rf "$work/kill"; kills=0
for i in $(seq 1 ${DPNODE_TEST_KILLS:-15}); do
    "$DPNODE" train "${base[@]}" --devices 0-1 --shards 2 --batch 10 --epochs 60 --save-every 3s --keep 2 --resume auto --out "$work/kill" >/dev/null 2>"$work/err" &
    pid=$!
    sleep "0.$(printf '%03d' $((RANDOM % 250)))"
    kill -9 $pid 2>/dev/null && kills=$((kills + 1))
    wait $pid 2>/dev/null
done
status=0
"$DPNODE" train "${base[@]}" --devices 0 --batch 10 --epochs 60 --shards 2 --resume auto --out "$work/kill" >/dev/null 2>"$work/err" || status=$?
check C05 "resume works after $kills kills: $(head -n 1 "$work/err")" test $status = 0
train --devices 0 --shards 2 --batch 10 --epochs 60 --overwrite --out "$work/unbroken"
check C05 "same bits as unbroken" same "$work/unbroken/last.safetensors" "$work/kill/last.safetensors"
check C05 "temporary files are tidied" sh -c "! ls -a '$work/kill' | grep -q tmp"

# C06: damage.
train --devices 0 --batch 70 --epochs 1 --overwrite --out "$work/c06"
for file in last.safetensors last.state.safetensors; do
    size=$(stat -Lc %s "$work/c06/$file")
    for damage in "-s -1" "-s $((size / 2))" "-s 0" "-s +1"; do
        rm -rf "$work/bad"; cp -rL "$work/c06" "$work/bad"
        # shellcheck disable=SC2086
        truncate $damage "$work/bad/$file"
        refused C06 "$work/bad/" "$DPNODE" train "${base[@]}" --devices 0 --epochs 2 --resume "$work/bad/$file"
    done
    for at in $((size / 2)) $((size - 1)) 20; do
        rm -rf "$work/bad"; cp -rL "$work/c06" "$work/bad"
        byte=$(od -An -tu1 -j $at -N 1 "$work/bad/$file" | tr -d ' ')
        # shellcheck disable=SC2059
        printf "\\$(printf %o $(((byte + 1) % 256)))" | dd of="$work/bad/$file" bs=1 seek=$at conv=notrunc 2>/dev/null
        refused C06 "$work/bad/" "$DPNODE" train "${base[@]}" --devices 0 --epochs 2 --resume "$work/bad/$file"
    done
done
refused C06 "/nonexistent" "$DPNODE" train "${base[@]}" --devices 0 --resume /nonexistent/last.safetensors
refused C06 "/nonexistent" "$DPNODE" eval --data $data --init /nonexistent/last.safetensors

# C08: at or past the target.
train --devices 0 --batch 70 --epochs 3 --overwrite --out "$work/c08"
before=$(cd "$work/c08" && cksum *)
for epochs in 3 2; do
    status=0
    "$DPNODE" train --data $data --model mlp:hidden=40x24 --seed 5 --devices 0 --resume auto --epochs $epochs --out "$work/c08" >"$work/out" 2>&1 || status=$?
    check C08 "--epochs $epochs: status 0" test $status = 0
    check C08 "--epochs $epochs: says so" grep -q "already at epoch 3.*target $epochs, nothing to do" "$work/out"
    check C08 "--epochs $epochs: files untouched" test "$before" = "$(cd "$work/c08" && cksum *)"
done
train --devices 0 --resume auto --epochs 5 --out "$work/c08" --log "$work/c08.log"
check C08 "--epochs 5: exactly two more" test "$("$TOOL" log-last "$work/c08.log" summary steps)" = 12

# O01: the output folder is checked before the first step.
check O01 "missing folder and parent are made" train --devices 0 --epochs 1 --out "$work/new/deep/er"
echo x >"$work/file"
refused O01 "$work/file" "$DPNODE" train "${base[@]}" --devices 0 --out "$work/file"
refused O01 "$work/file/sub" "$DPNODE" train "${base[@]}" --devices 0 --out "$work/file/sub"
refused O01 "--out" "$DPNODE" train "${base[@]}" --devices 0 --out "$work/c08"
refused O01 "/proc/none" "$DPNODE" train "${base[@]}" --devices 0 --out /proc/none
refused O01 "--log" "$DPNODE" train "${base[@]}" --devices 0 --log /nonexistent/log
status=0; "$DPNODE" train "${base[@]}" --devices 0 --epochs 1 --log /dev/full >/dev/null 2>"$work/err" || status=$?
check O01 "a full disk for the log is an error" test $status = 1
if [ "$(id -u)" = 0 ] && id nobody >/dev/null 2>&1 && command -v setpriv >/dev/null; then
    mkdir "$work/ro" && chmod 755 "$work" "$work/ro"
    refused O01 "$work/ro" setpriv --reuid=nobody --clear-groups "$DPNODE" train "${base[@]}" --devices 0 --out "$work/ro"
else
    echo "SKIP O01: read-only folder needs root with setpriv and a user nobody"
fi

# G01: INT and TERM stop at a step boundary, saved, 128 + signal; resume gives the same bits.
train --devices 0 --shards 2 --batch 10 --epochs 40 --overwrite --out "$work/whole"
for case in "INT 130" "TERM 143"; do
    set -- $case
    for delay in 0.0 0.05 0.1 0.2; do
        rm -rf "$work/sig"
        "$DPNODE" train "${base[@]}" --devices 0-1 --batch 10 --epochs 4000 --out "$work/sig" >/dev/null 2>"$work/err" &
        pid=$!
        # The folder is made at the end of set-up: from then on the signal must be taken as one.
        for _ in $(seq 200); do [ -d "$work/sig" ] && break; sleep 0.05; done
        sleep $delay
        kill -"$1" $pid; status=0; wait $pid || status=$?
        check G01 "$1 $delay s after set-up: status $2" test $status = "$2"
        check G01 "$1: one line says so" grep -q "SIG$1" "$work/err"
        if [ -f "$work/sig/last.state.safetensors" ]; then
            epoch=$("$DPNODE" info "$work/sig/last.state.safetensors" | awk '/^ *epoch / { print $NF; exit }')
            [ "${epoch:-0}" -lt 40 ] && train --devices 0 --resume auto --epochs 40 --out "$work/sig" &&
                check G01 "$1: resumed, same bits" same "$work/whole/last.safetensors" "$work/sig/last.safetensors"
        else
            bad "G01 $1: no checkpoint"
        fi
    done
done
finish
