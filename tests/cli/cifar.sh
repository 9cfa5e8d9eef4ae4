#!/usr/bin/env bash
# CIFAR-10: the Python form converted, what `info` says of batch files, a set that was swapped. Rows D13, D14.
. "${srcdir:-.}/tests/cli/lib.sh" || exit 1
: "${work:?}"
tiny=$reference/cifar-tiny
run() { "$DPNODE" train --devices 0 --quiet --model mlp:hidden=8 --batch 16 "$@"; }
fresh() { rm -rf "${work:?}/c"; cp -r "$tiny" "$work/c"; chmod -R u+w "$work/c"; }
files='data_batch_1 data_batch_2 data_batch_3 data_batch_4 data_batch_5 test_batch'

# ---- sizes and places ----
fresh; truncate -s 30729999 "$work/c/data_batch_3.bin"
refused D14 "data_batch_3.bin: 30729999 bytes" "$DPNODE" train --devices 0 --data "cifar10:$work/c"
check D14 "wanted sizes shown" grep -q '3073.*30730000' "$work/err"
mkdir -p "$work/root/cifar10"; cp -r "$tiny" "$work/root/cifar10/cifar-10-batches-bin"
check D14 "the official folder below --data-root" \
    sh -c "'$DPNODE' train --dry-run --data cifar10 --data-root '$work/root' | grep -q '$work/root/cifar10/cifar-10-batches-bin'"
check D14 "and below \$DPNODE_DATA" \
    sh -c "DPNODE_DATA='$work/root' '$DPNODE' train --dry-run --data cifar10 | grep -q '$work/root/cifar10/cifar-10-batches-bin'"
refused D14 "$work/none" env DPNODE_DATA="$work/root" "$DPNODE" train --data cifar10 --data-root "$work/none"

# ---- a set that was swapped between a run and its resumption ----
fresh
run --data "cifar10:$work/c" --steps 3 --out "$work/before"
resume=("$DPNODE" train --devices 0 --quiet --model mlp:hidden=8 --batch 16 --data "cifar10:$work/c" --steps 4
    --resume "$work/before/last.safetensors")
check D12 "the same set resumes" "${resume[@]}"
printf '\001\002' | dd of="$work/c/data_batch_5.bin" bs=1 seek=147502 conv=notrunc 2>/dev/null
refused D12 "checksum" "${resume[@]}"

# ---- info ----
fresh
check INFO "a batch file" sh -c "'$DPNODE' info '$work/c/test_batch.bin' | grep -q '48 images of 3x32x32'"
counted=$("$DPNODE" info "$work/c/test_batch.bin" | awk '$1 == "label" { n += $3 } END { print n }')
check INFO "its labels are counted ($counted)" test "$counted" = 48
check INFO "a folder of them" test "$("$DPNODE" info "$work/c" | grep -c '48 images')" = 6
printf '\377' | dd of="$work/c/test_batch.bin" bs=1 seek=6146 conv=notrunc 2>/dev/null
refused INFO "label 255 at index 2" "$DPNODE" info "$work/c/test_batch.bin"
truncate -s -1 "$work/c/data_batch_1.bin"
refused INFO "147503 bytes" "$DPNODE" info "$work/c/data_batch_1.bin"
gzip "$work/c/data_batch_2.bin" && mv "$work/c/data_batch_2.bin.gz" "$work/c/data_batch_2.bin"
refused INFO "gzip" "$DPNODE" info "$work/c/data_batch_2.bin"

# ---- the Python form ----
if ! command -v python3 >/dev/null; then
    echo "SKIP D13: no python3"
    finish
    exit
fi
# make_pickles FORM TO: the small set as pickles, made without NumPy: FORM py2 (strings of bytes, as the official files),
# 2 to 5 (protocols), numpy5 (NumPy's own way in protocol 5), or a way to spoil them.
make_pickles() {
    rm -rf "${2:?}"; mkdir -p "$2"
    python3 - "$1" "$tiny" "$2" <<'EOF'
import io, os, pickle, struct, sys, types
form, source, target = sys.argv[1:]

def module(name, **members):
    made = sys.modules[name] = types.ModuleType(name)
    for key, value in members.items():
        value.__module__, value.__qualname__ = name, key
        value.__name__ = key
        setattr(made, key, value)

class ndarray:
    def __init__(self, shape, data):
        self.shape, self.data = shape, data
    def __reduce__(self):
        kind = dtype("f4" if form == "float" else "u1")
        if form == "numpy5":
            return _frombuffer, (bytearray(self.data), kind, self.shape, "C")
        return _reconstruct, (ndarray, (0,), b"b"), (1, self.shape, kind, form == "fortran", self.data)
class dtype:
    def __init__(self, name):
        self.name = name
    def __reduce__(self):
        return dtype, (self.name, 0, 1), (3, "|", None, None, None, -1, -1, 0)
class system:
    def __reduce__(self):
        return os.system, ("touch '%s/owned'" % target,)
def _reconstruct(*_): pass
def _frombuffer(*_): pass
module("numpy", ndarray=ndarray, dtype=dtype)
module("numpy.core")
module("numpy.core.multiarray", _reconstruct=_reconstruct)
module("numpy.core.numeric", _frombuffer=_frombuffer)

class Old(pickle._Pickler):  # Python 2 wrote byte strings
    dispatch = dict(pickle._Pickler.dispatch)
    def save_string(self, text):
        self.write(pickle.BINSTRING + struct.pack("<i", len(text)) + text)
        self.memoize(text)
    dispatch[bytes] = save_string

for name in ["data_batch_%d" % i for i in range(1, 6)] + ["test_batch"]:
    data = open("%s/%s.bin" % (source, name), "rb").read()
    n = len(data) // 3073
    labels = [data[i * 3073] for i in range(n)]
    pixels = b"".join(data[i * 3073 + 1:(i + 1) * 3073] for i in range(n))
    shape = (n, 3, 1024) if form == "shape" else (n, 3072)
    if form == "label": labels[5] = 10
    if form == "count": labels.pop()
    if form == "empty": labels, pixels, shape = [], b"", (0, 3072)
    batch = {b"data": ndarray(shape, pixels), b"labels": labels, b"batch_label": b"batch", b"filenames": [b"a.png"] * n}
    if form == "code": batch[b"more"] = system()
    file = io.BytesIO()
    protocol = 5 if form == "numpy5" else int(form) if form.isdigit() else 3 if form == "empty" else 2
    (Old if form == "py2" else pickle.Pickler)(file, protocol).dump(batch)
    open("%s/%s" % (target, name), "wb").write(file.getvalue())
EOF
}
convert() { python3 "$srcdir/data/cifar10_from_python.py" "$work/py" "$work/converted"; }
for form in py2 2 3 4 5 numpy5; do
    rm -rf "${work:?}/converted"; make_pickles "$form" "$work/py"
    check D13 "form $form is converted" convert
    for file in $files; do check D13 "form $form: $file.bin" same "$tiny/$file.bin" "$work/converted/$file.bin"; done
done
refused D13 "cifar10_from_python.py" "$DPNODE" train --devices 0 --data "cifar10:$work/py"
for form in float fortran shape label count empty code; do
    rm -rf "${work:?}/converted"; make_pickles "$form" "$work/py"
    if convert >"$work/out" 2>"$work/err"; then bad "D13: form $form is taken"; continue; fi
    if [ "$(wc -l <"$work/err")" -eq 1 ] && grep -q "$work/py/data_batch_1: cannot be converted" "$work/err"; then
        ok "D13: form $form is refused: $(cat "$work/err")"
    else
        bad "D13: form $form: wanted one line with the file's name"
    fi
    check D13 "form $form: nothing is written" test -z "$(ls "$work/converted")"
done
check D13 "no code in a pickle is run" test ! -e "$work/py/owned"
finish
