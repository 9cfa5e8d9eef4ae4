#!/usr/bin/env bash
# Threads, affinity, BLAS: rows T01, T02, T05, T07 of the field cases.
. "${srcdir:-.}/tests/cli/lib.sh"
data=synthetic:samples=4000,test=60,shape=1x28x28,classes=10
cpus=$(nproc)

# threads_of COMMAND...: most threads seen while it runs.
threads_of() {
    "$@" >/dev/null 2>&1 &
    local pid=$! most=0 now
    while kill -0 $pid 2>/dev/null; do
        now=$(awk '/^Threads:/ { print $2 }' /proc/$pid/status 2>/dev/null)
        [ "${now:-0}" -gt $most ] && most=$now
        sleep 0.02
    done
    wait $pid
    echo $most
}
for set in "" "OMP_NUM_THREADS=8" "OPENBLAS_NUM_THREADS=8"; do
    # shellcheck disable=SC2086
    most=$(threads_of env $set "$DPNODE" train --quiet --oversubscribe --devices 0-3 --data $data --epochs 40 --threads-per-device 1)
    check T01 "4 devices${set:+ with $set}: at most $most threads" test "$most" -ge 4 -a "$most" -le 7
done
"$DPNODE" train --oversubscribe --devices 0-1 --data $data --epochs 1 >"$work/out" 2>/dev/null
check T01 "BLAS threads are printed" grep -q 'BLAS.*1 thread' "$work/out"

# T02: whatever OpenBLAS is installed, and none at all.
"$DPNODE" train --quiet --devices 0 --data $data --epochs 1 --blas own --log "$work/own.log"
"$DPNODE" train --devices 0 --data $data --epochs 1 --blas auto --log "$work/auto.log" >"$work/out"
check T02 "auto and own agree" near "$("$TOOL" log-last "$work/own.log" eval loss)" "$("$TOOL" log-last "$work/auto.log" eval loss)" 1e-4
if "$DPNODE" train --quiet --devices 0 --data $data --epochs 1 --blas openblas --log "$work/blas.log" 2>"$work/err"; then
    check T02 "OpenBLAS and own agree" near "$("$TOOL" log-last "$work/own.log" eval loss)" "$("$TOOL" log-last "$work/blas.log" eval loss)" 1e-4
    check T02 "the build is printed" sh -c "'$DPNODE' train --devices 0 --data $data --epochs 1 --blas openblas | grep -q 'OpenBLAS [0-9]'"
    for core in "" Prescott Nonsense SkylakeX; do
        check T02 "OPENBLAS_CORETYPE='$core'" env OPENBLAS_CORETYPE="$core" "$DPNODE" train --quiet --devices 0 --data $data --epochs 1 --blas openblas
    done
else
    echo "SKIP T02: $(cat "$work/err")"
fi
for isa in ref baseline avx2 avx512; do
    status=0; "$DPNODE" train --quiet --devices 0 --data $data --epochs 1 --isa $isa --log "$work/isa.log" 2>"$work/err" || status=$?
    if [ $status = 2 ]; then
        check T02 "--isa $isa: refused by name" grep -q -- --isa "$work/err"
    else
        check T02 "--isa $isa agrees" near "$("$TOOL" log-last "$work/own.log" eval loss)" "$("$TOOL" log-last "$work/isa.log" eval loss)" 2e-3
    fi
done

last=$((cpus - 1))
check T05 "taskset -c $last: device 0 is CPU $last" sh -c \
    "taskset -c $last '$DPNODE' train --devices 0 --data $data --epochs 1 | grep -q 'device 0.*CPUs $last '"
refused T05 "valid: 0" taskset -c $last "$DPNODE" train --devices 0-1 --data $data
if [ "$cpus" -ge 2 ]; then
    # bindings PID: the CPUs that its threads are bound to, one each.
    bindings() { grep -h Cpus_allowed_list /proc/"$1"/task/*/status 2>/dev/null | awk '{ print $2 }'; }
    for variable in "OMP_PROC_BIND=true" "GOMP_CPU_AFFINITY=0" "OMP_PLACES={0}"; do
        env "$variable" "$DPNODE" train --quiet --devices 0-1 --data $data --epochs 1000000 >/dev/null 2>&1 &
        pid=$!
        for _ in $(seq 100); do
            list=$(bindings $pid | sort -u | tr '\n' ' ')
            case " $list" in *" 0 "*" 1 "*) break ;; esac
            sleep 0.1
        done
        kill $pid; wait $pid 2>/dev/null
        check T07 "$variable: device threads on CPUs 0 and 1 ($list)" sh -c "echo '$list' | grep -qw 0 && echo '$list' | grep -qw 1"
    done
else
    echo "SKIP T07: one CPU"
fi
finish
