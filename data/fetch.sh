#!/bin/sh
# Brings the official files of a data set into ./data/sets/NAME (or DIR), where dpnode looks for them:
# fetch.sh mnist|fashion-mnist|cifar10 [DIR]
#
# Downloads are resumed, and verified before they get their name: by the MD5 of what they hold, unpacked, so that a mirror
# may have compressed them anew. A file that does not match is kept aside as NAME.bad and never used. What is there
# already is verified, not fetched again. $DPNODE_MIRROR: an address (https://, file://) to ask instead of the official
# ones, a folder with files of the same names.
set -u
LC_ALL=C
export LC_ALL

fail()
{
    printf 'fetch.sh: %s\n' "$*" >&2
    exit 1
}

usage()
{
    printf 'usage: fetch.sh mnist|fashion-mnist|cifar10 [DIR]\n' >&2
    exit 2
}

# The files of set $1: a line each of MD5 and name.
files_of()
{
    case $1 in
    mnist)
        echo '6bbc9ace898e44ae57da46a324031adb train-images-idx3-ubyte.gz
a25bea736e30d166cdddb491f175f624 train-labels-idx1-ubyte.gz
2646ac647ad5339dbf082846283269ea t10k-images-idx3-ubyte.gz
27ae3e4e09519cfbb04c329615203637 t10k-labels-idx1-ubyte.gz' ;;
    fashion-mnist)
        echo 'f4a8712d7a061bf5bd6d2ca38dc4d50a train-images-idx3-ubyte.gz
9018921c3c673c538a1fc5bad174d6f9 train-labels-idx1-ubyte.gz
8181f5470baa50b63fa0f6fddb340f0a t10k-images-idx3-ubyte.gz
15d484375f8d13e6eb1aabb0c3f46965 t10k-labels-idx1-ubyte.gz' ;;
    cifar10) echo 'c32a1d4ab5d03f1284b67883e8d87530 cifar-10-binary.tar.gz' ;;
    esac
}

addresses_of()
{
    if [ -n "${DPNODE_MIRROR:-}" ]; then
        echo "${DPNODE_MIRROR%/}"
        return
    fi
    case $1 in
    mnist) echo 'https://ossci-datasets.s3.amazonaws.com/mnist
https://storage.googleapis.com/cvdf-datasets/mnist' ;;
    fashion-mnist) echo 'http://fashion-mnist.s3-website.eu-central-1.amazonaws.com
https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion' ;;
    cifar10) echo 'https://www.cs.toronto.edu/~kriz
https://cave.cs.toronto.edu/kriz' ;;
    esac
}

# CIFAR-10's archive unpacked, a line each of MD5 and name.
cifar_members()
{
    echo '5dd7e06a14cb22eb9f671a540d1b7c25 data_batch_1.bin
5ea93a67294ea407fff1d09f752e9692 data_batch_2.bin
942cd6a4bcdd0dd3c604fbe906cb4421 data_batch_3.bin
ae636b3ba5c66a11e91e8cb52e771fcb data_batch_4.bin
53f37980c15c3d472c316c40844f3f0d data_batch_5.bin
803d5f7f4d78ea53de84dbe85f74fb6d test_batch.bin'
}

md5_of()
{
    md5sum | cut -d ' ' -f 1
}

# Whether the file of MD5 $1 and name $2 is there.
is_file()
{
    [ -f "$2" ] && [ "$(md5_of <"$2")" = "$1" ]
}

# Whether file $1 holds what has MD5 $2; an archive is the official one with this MD5, or has the right members.
matches()
{
    [ -f "$1" ] || return
    case $1 in
    *.tar.gz*)
        if is_file "$2" "$1"; then return; fi
        while read -r sum name; do
            [ "$(tar -xzOf "$1" "cifar-10-batches-bin/$name" 2>/dev/null | md5_of)" = "$sum" ] || return
        done <<EOF
$(cifar_members)
EOF
        ;;
    *) gzip -t <"$1" 2>/dev/null && [ "$(gzip -dc <"$1" | md5_of)" = "$2" ] ;;
    esac
}

# File $1 does not match: $2 holds it from now on.
set_aside()
{
    mv -f -- "$1" "$2" || fail "$PWD/$1: does not match its checksum, and cannot be renamed"
    printf 'fetch.sh: %s: does not match its checksum; kept as %s\n' "$PWD/$1" "$2" >&2
}

# Address $1 into file $2, going on where it ends. Status 3: the server cannot go on from there.
download()
{
    if command -v curl >/dev/null 2>&1; then
        code=$(curl --fail --silent --show-error --location --continue-at - --connect-timeout 20 --write-out '%{http_code}' \
            --output "$2" "$1")
        case $?,$code in
        0,*) return 0 ;;
        33,* | 36,* | 22,416) return 3 ;;
        *) return 1 ;;
        esac
    elif command -v wget >/dev/null 2>&1; then
        wget --quiet --continue --timeout=20 --output-document="$2" "$1"
        case $? in
        0) return 0 ;;
        1) return 3 ;;
        *)
            printf 'fetch.sh: %s: cannot be fetched\n' "$1" >&2
            return 1
            ;;
        esac
    else
        fail 'neither curl nor wget is installed'
    fi
}

# Address $1 into file $2, which is to match $3. What is there may come from another server, which packed it otherwise: if it
# does not lead to a match, once more from the start.
obtain()
{
    old=$([ ! -s "$2" ] || echo yes)
    status=0
    download "$1" "$2" || status=$?
    if [ "$status" -eq 0 ] && matches "$2" "$3"; then return; fi
    if [ "$old" = yes ] && [ "$status" -ne 1 ]; then
        set_aside "$2" "${2%.part}.bad"
        status=0
        download "$1" "$2" || status=$?
        if [ "$status" -eq 0 ] && matches "$2" "$3"; then return; fi
    fi
    if [ "$status" -ne 1 ] && [ -e "$2" ]; then set_aside "$2" "${2%.part}.bad"; fi
    return 1
}

# File $2 of MD5 $1 into the current folder.
fetch()
{
    if matches "$2" "$1"; then
        printf '%s: there already\n' "$2"
        return
    fi
    if [ -e "$2" ]; then set_aside "$2" "$2.bad"; fi
    for address in $addresses; do
        printf '%s: from %s\n' "$2" "$address"
        if matches "$2.part" "$1" || obtain "$address/$2" "$2.part" "$1"; then
            mv -- "$2.part" "$2" || fail "$PWD/$2: cannot be renamed"
            return
        fi
    done
    # shellcheck disable=SC2086 # one line of the words
    fail "$2: could not be had from" $addresses '(run again to go on where it stopped)'
}

have_cifar10()
{
    while read -r sum name; do is_file "$sum" "$name" || return; done <<EOF
$(cifar_members)
EOF
}

# The archive's files, by way of a folder of their own, so that none is there half.
unpack_cifar10()
{
    folder=cifar-10-batches-bin.part
    rm -rf -- "$folder"
    mkdir "$folder" || fail "$PWD: cannot make a folder"
    tar -xzf cifar-10-binary.tar.gz -C "$folder" || fail "$PWD/cifar-10-binary.tar.gz: cannot be unpacked"
    while read -r sum name; do
        if is_file "$sum" "$name"; then continue; fi
        if [ -e "$name" ]; then set_aside "$name" "$name.bad"; fi
        mv -- "$folder/cifar-10-batches-bin/$name" "$name" || fail "$PWD/$name: cannot be written"
    done <<EOF
$(cifar_members)
EOF
    rm -rf -- "$folder"
}

if [ $# -lt 1 ] || [ $# -gt 2 ] || [ -z "$(files_of "$1")" ]; then usage; fi
command -v md5sum >/dev/null 2>&1 || fail 'md5sum is not installed'
set_name=$1
folder=${2:-data/sets/$1}
addresses=$(addresses_of "$1")
mkdir -p -- "$folder" || fail "$folder: cannot be made"
cd -- "$folder" || fail "$folder: cannot be entered"
if [ "$set_name" = cifar10 ] && have_cifar10; then
    echo 'data_batch_1.bin to test_batch.bin: there already'
else
    while read -r sum name; do fetch "$sum" "$name" </dev/null; done <<EOF
$(files_of "$set_name")
EOF
    if [ "$set_name" = cifar10 ]; then unpack_cifar10; fi
fi
printf '%s is in %s\n' "$set_name" "$PWD"
