#!/usr/bin/env bash
# NumPy arrays: they train as the same set in another form does, a set that was swapped, what `info` says of them.
. "${srcdir:-.}/tests/cli/lib.sh" || exit 1
: "${work:?}"
command -v python3 >/dev/null || skip_all "no python3 to make arrays with"
tiny=$reference/cifar-tiny
run() { "$DPNODE" train --devices 0 --quiet --model mlp:hidden=8 --batch 16 --steps 20 "$@"; }

# arrays DIR TYPE: the small CIFAR-10 as arrays of TYPE u1 or f4 (bytes over 255 in single precision).
arrays() {
    mkdir -p "$1"
    python3 - "$tiny" "$1" "$2" <<'EOF'
import array, sys
source, target, kind = sys.argv[1:]

def save(name, descr, shape, data):
    header = "{'descr': '%s', 'fortran_order': False, 'shape': %r, }" % (descr, shape)
    header += " " * (-(len(header) + 11) % 64) + "\n"
    with open("%s/%s.npy" % (target, name), "wb") as file:
        file.write(b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header.encode() + data)

for part, names in (("train", ["data_batch_%d" % i for i in range(1, 6)]), ("test", ["test_batch"])):
    data = b"".join(open("%s/%s.bin" % (source, name), "rb").read() for name in names)
    n = len(data) // 3073
    x = b"".join(data[i * 3073 + 1:(i + 1) * 3073] for i in range(n))
    if kind == "f4": save(part + "_x", "<f4", (n, 3, 32, 32), array.array("f", (v / 255 for v in x)).tobytes())
    else: save(part + "_x", "|u1", (n, 3, 32, 32), x)
    save(part + "_y", "<i8", (n,), array.array("q", list(data[::3073])).tobytes())
EOF
}
arrays "$work/u1" u1
arrays "$work/f4" f4

# ---- the same numbers ----
run --data "cifar10:$tiny" --normalize none --out "$work/c"
run --data "npy:$work/u1" --out "$work/n"
check NPY "bytes train as CIFAR-10's files do" same "$work/c/last.safetensors" "$work/n/last.safetensors"
constants=0.4914,0.4822,0.4465/0.2470,0.2435,0.2616
run --data "cifar10:$tiny" --out "$work/cn"
run --data "npy:$work/u1" --normalize "$constants" --out "$work/nn"
check NPY "and with CIFAR-10's constants" same "$work/cn/last.safetensors" "$work/nn/last.safetensors"
loss() { "$DPNODE" eval --devices 0 --model mlp:hidden=8 --data "$1" --init "$work/n/last.safetensors" "${@:2}" | grep -o 'loss [0-9.]*' | cut -d' ' -f2; }
bytes=$(loss "npy:$work/u1") floats=$(loss "npy:$work/f4")
check NPY "floats evaluate as bytes over 255: $bytes, $floats" near "${bytes:-0}" "${floats:-1}" 0.0001
check NPY "--data-root names the folder too" run --data npy --data-root "$work/u1" --out "$work/root"
check NPY "with the same weights" same "$work/n/last.safetensors" "$work/root/last.safetensors"
"$DPNODE" train --dry-run --devices 0 --data "npy:$work/f4" >"$work/header"
check NPY "samples, shape and classes are shown" grep -q 'train 240, test 48 | 3x32x32, 10 classes' "$work/header"
check NPY "floats are taken as they are" grep -q 'as is' "$work/header"
check NPY "and the path" grep -qF "$work/f4" "$work/header"

# ---- a set that was swapped ----
resume=("$DPNODE" train --devices 0 --quiet --model mlp:hidden=8 --batch 16 --steps 21 --resume "$work/n/last.safetensors")
check NPY "the same set resumes" "${resume[@]}" --data "npy:$work/u1"
cp -r "$work/u1" "$work/other"
printf 'swapped' | dd of="$work/other/train_x.npy" bs=1 seek=300000 conv=notrunc 2>/dev/null
refused NPY "checksum" "${resume[@]}" --data "npy:$work/other"

# ---- labels ----
python3 -c "
data = bytearray(open('$work/u1/test_y.npy', 'rb').read())
data[-8:] = (65536).to_bytes(8, 'little')
open('$work/other/test_y.npy', 'wb').write(data)"
refused NPY "label 65536 at index 47, wanted 0 to 65535" "$DPNODE" train --devices 0 --data "npy:$work/other"
refused NPY "test_y.npy" "$DPNODE" train --devices 0 --data "npy:$work/other"

# ---- info ----
check INFO "bytes" sh -c "'$DPNODE' info '$work/u1/train_x.npy' | grep -q 'uint8 | shape 240x3x32x32'"
check INFO "labels and their range" sh -c "'$DPNODE' info '$work/u1/train_y.npy' | grep -q 'values of 0 to 9'"
check INFO "all arrays of a folder" test "$("$DPNODE" info "$work/f4" | grep -c 'NumPy array')" = 4
printf '\000\000\300\177' | dd of="$work/f4/test_x.npy" bs=1 seek=1024 conv=notrunc 2>/dev/null
check INFO "what is not finite" sh -c "'$DPNODE' info '$work/f4/test_x.npy' | grep -q 'NOT FINITE: 1 of 147456'"
truncate -s -1 "$work/f4/train_x.npy"
refused INFO "train_x.npy" "$DPNODE" info "$work/f4/train_x.npy"

# ---- as NumPy itself writes them ----
if python3 -c 'import numpy' 2>/dev/null; then
    mkdir "$work/np"
    python3 - "$tiny" "$work/np" <<'EOF'
import numpy, sys
def load(names):
    data = numpy.concatenate([numpy.fromfile("%s/%s.bin" % (sys.argv[1], name), numpy.uint8) for name in names]).reshape(-1, 3073)
    return numpy.ascontiguousarray(data[:, 1:].reshape(-1, 3, 32, 32)), data[:, 0].astype(numpy.int64)
for part, names in (("train", ["data_batch_%d" % i for i in range(1, 6)]), ("test", ["test_batch"])):
    x, y = load(names)
    numpy.save("%s/%s_x.npy" % (sys.argv[2], part), x)
    numpy.save("%s/%s_y.npy" % (sys.argv[2], part), y)
EOF
    run --data "npy:$work/np" --out "$work/npout"
    check NPY "numpy.save" same "$work/n/last.safetensors" "$work/npout/last.safetensors"
    python3 -c "
import numpy
x = numpy.load('$work/np/train_x.npy')
numpy.save('$work/np/train_x.npy', numpy.asfortranarray(x))"
    refused NPY "Fortran" "$DPNODE" train --devices 0 --data "npy:$work/np"
else
    echo "SKIP NPY: no NumPy in python3: its own files"
fi
finish
