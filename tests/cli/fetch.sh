#!/usr/bin/env bash
# data/fetch.sh, from a mirror on this machine: nothing is fetched from the network.
. "${srcdir:-.}/tests/cli/lib.sh" || exit 1
: "${work:?}"
shared=${DPNODE_SHARED:-/nonexistent}
script=$srcdir/data/fetch.sh
images=train-images-idx3-ubyte.gz
export DPNODE_MIRROR=file://$work/mirror

# ---- usage ----
for arguments in '' 'cifar100' 'mnist a b' '--help'; do
    status=0
    # shellcheck disable=SC2086 # words
    sh "$script" $arguments >"$work/out" 2>"$work/err" || status=$?
    if [ "$status" -eq 2 ] && grep -q '^usage: fetch.sh mnist|fashion-mnist|cifar10' "$work/err" && [ ! -s "$work/out" ]; then
        ok "FETCH: usage for \"$arguments\""
    else
        bad "FETCH: usage for \"$arguments\": status $status"
    fi
done
command -v curl >/dev/null || skip_all "no curl, which knows file://"
[ -d "$shared/data/mnist" ] || skip_all "no real MNIST (set DPNODE_SHARED to a folder with data/mnist)"

cp -r "$shared/data/mnist" "$work/mirror"; chmod -R u+w "$work/mirror"
fetch() { timeout 120 sh "$script" mnist "$work/f"; }
# fails TEXT: fetching fails with TEXT in a line of ours.
fails() {
    if fetch >"$work/out" 2>"$work/err"; then bad "FETCH: wanted a failure with \"$1\""; return; fi
    if grep '^fetch.sh: ' "$work/err" | grep -qF -- "$1"; then ok "FETCH: fails: $(tail -n 1 "$work/err")"; else bad "FETCH: no \"$1\" in: $(cat "$work/err")"; fi
}
whole() { same "$work/f/$images" "$shared/data/mnist/$images"; }
# spoil FILE AT: one byte changed.
spoil() { printf '\252' | dd of="$1" bs=1 seek="$2" conv=notrunc 2>/dev/null; }

check FETCH "brings four files" fetch
check FETCH "no more and no less" diff <(cd "$work/f" && echo *) <(cd "$shared/data/mnist" && echo *)
check FETCH "as they are" whole
check FETCH "they train" "$DPNODE" train --quiet --devices 0 --data "mnist:$work/f" --steps 2 --eval-every 0
mkdir "$work/cwd"
check FETCH "into ./data/sets, where dpnode looks" sh -c \
    "cd '$work/cwd' && sh '$(realpath "$script")' mnist && '$DPNODE' train --dry-run --devices 0 --data mnist | grep -q '$work/cwd/data/sets/mnist'"

mv "$work/mirror" "$work/away"
check FETCH "what is there is not fetched again" fetch
check FETCH "and said" test "$(fetch | grep -c 'there already')" = 4
rm "$work/f/$images"; head -c 1000000 "$work/away/$images" >"$work/f/$images.part"
fails "$images: could not be had from file://$work/mirror"
check FETCH "a failure keeps the part" test "$(stat -c %s "$work/f/$images.part")" = 1000000
check FETCH "and gives it no other name" test ! -e "$work/f/$images"
mv "$work/away" "$work/mirror"

# Only what is missing comes from the mirror: it has nothing right before.
spoil "$work/mirror/$images" 1000
check FETCH "goes on with a part" fetch
check FETCH "and has it right" whole
check FETCH "the part is gone" test ! -e "$work/f/$images.part"
cp "$shared/data/mnist/$images" "$work/mirror/"; chmod u+w "$work/mirror/$images"

rm "$work/f/$images"; head -c 1000000 "$work/mirror/$images" >"$work/f/$images.part"; spoil "$work/f/$images.part" 5000
check FETCH "starts afresh after a wrong part" fetch
check FETCH "with the right file" whole
check FETCH "and keeps the wrong one aside" test -e "$work/f/$images.bad"
rm "$work/f/$images" "$work/f/$images.bad"; cat "$work/mirror/$images" "$work/mirror/$images" >"$work/f/$images.part"
check FETCH "and after one that is too long" fetch
check FETCH "with the right file" whole

rm "$work/f/$images.bad"; spoil "$work/f/$images" 4000000
check FETCH "a damaged file is replaced" fetch
check FETCH "by the right one" whole
check FETCH "and kept aside" test -e "$work/f/$images.bad"
printf x >>"$work/f/$images"
check FETCH "one with a byte too many too" fetch
check FETCH "by the right one" whole

rm "$work/f/$images" "$work/f/$images.bad"; spoil "$work/mirror/$images" 4000000
fails "$images.part: does not match its checksum"
check FETCH "a wrong file does not get the name" test ! -e "$work/f/$images"
check FETCH "nor stays to be gone on with" test ! -e "$work/f/$images.part"
truncate -s 4000000 "$work/mirror/$images"
fails "$images"
check FETCH "nor does a short one" test ! -e "$work/f/$images"
cp "$shared/data/mnist/t10k-images-idx3-ubyte.gz" "$work/mirror/$images"
fails "$images"
check FETCH "nor another file of the set" test ! -e "$work/f/$images"

# ---- an archive: packed anew, so only what it holds is right ----
if [ -d "$shared/data/cifar-10-batches-bin" ]; then
    cifar() { timeout 300 sh "$script" cifar10 "$work/c"; }
    tar -C "$shared/data" -cf - cifar-10-batches-bin | gzip -1 >"$work/mirror/cifar-10-binary.tar.gz"
    check FETCH "CIFAR-10's archive" cifar
    check FETCH "is unpacked" diff <(cd "$shared/data/cifar-10-batches-bin" && md5sum -- *.bin) <(cd "$work/c" && md5sum -- *.bin)
    check FETCH "it is complete" "$DPNODE" train --dry-run --devices 0 --data "cifar10:$work/c"
    rm "$work/mirror/cifar-10-binary.tar.gz"; mv "$work/c/cifar-10-binary.tar.gz" "$work/"
    check FETCH "the six files are enough" cifar
    chmod u+w "$work/c/data_batch_3.bin"; spoil "$work/c/data_batch_3.bin" 3333
    if cifar >"$work/out" 2>"$work/err"; then bad "FETCH: a damaged batch file is taken"; else ok "FETCH: a damaged batch file is not taken"; fi
    mv "$work/cifar-10-binary.tar.gz" "$work/c/"
    check FETCH "but replaced from the archive" cifar
    check FETCH "by the right one" same "$work/c/data_batch_3.bin" "$shared/data/cifar-10-batches-bin/data_batch_3.bin"
else
    echo "SKIP FETCH: no real CIFAR-10 (set DPNODE_SHARED to a folder with data/cifar-10-batches-bin)"
fi
finish
