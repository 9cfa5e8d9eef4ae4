#!/bin/sh
# Brings the official files of a data set into data/sets/NAME (or DIR): fetch.sh mnist|fashion-mnist|cifar10 [DIR]
#
# Downloads are resumed, and verified before they get their name: by the MD5 of what they hold, unpacked, so that a mirror
# may have compressed them anew. A file that does not match is kept aside as NAME.bad and never used. What is there
# already is verified, not fetched again. $DPNODE_MIRROR: an address (https://, file://) to ask first.
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
    cifar10) echo '3b791db1eb8a35b4f03b44faab0d7560 cifar-10-binary.tar.gz' ;;
    esac
}

addresses_of()
{
    if [ -n "${DPNODE_MIRROR:-}" ]; then echo "${DPNODE_MIRROR%/}"; fi
    case $1 in
    mnist) echo 'https://ossci-datasets.s3.amazonaws.com/mnist
https://storage.googleapis.com/cvdf-datasets/mnist' ;;
    fashion-mnist) echo 'http://fashion-mnist.s3-website.eu-central-1.amazonaws.com' ;;
    cifar10) echo 'https://www.cs.toronto.edu/~kriz' ;;
    esac
}

cifar_files='data_batch_1 data_batch_2 data_batch_3 data_batch_4 data_batch_5 test_batch'

# What file $1 holds: the unpacked file, or all files of CIFAR-10's archive in order.
contents()
{
    case $1 in
    *.tar.gz*) for file in $cifar_files; do tar -xzOf "$1" "cifar-10-batches-bin/$file.bin" || return; done ;;
    *) gzip -dc <"$1" ;;
    esac 2>/dev/null
}

# Whether file $1 holds what has MD5 $2.
matches()
{
    [ -f "$1" ] && [ "$(contents "$1" | md5sum | cut -d ' ' -f 1)" = "$2" ]
}

# Address $1 into file $2, going on where it ends.
download()
{
    if command -v curl >/dev/null 2>&1; then
        curl --fail --silent --show-error --location --continue-at - --connect-timeout 20 --output "$2" "$1"
    elif command -v wget >/dev/null 2>&1; then
        wget --quiet --continue --timeout=20 --output-document="$2" "$1"
    else
        fail 'neither curl nor wget is installed'
    fi
}

# File $2 of MD5 $1 into the current folder.
fetch()
{
    if matches "$2" "$1"; then
        printf '%s: there already\n' "$2"
        return
    fi
    if [ -e "$2" ]; then
        mv -- "$2" "$2.bad" || fail "$PWD/$2: does not match its checksum, and cannot be renamed"
        printf 'fetch.sh: %s: does not match its checksum; kept as %s.bad\n' "$PWD/$2" "$2" >&2
    fi
    for address in $addresses; do
        printf '%s: from %s\n' "$2" "$address"
        # What is complete already makes some servers refuse to go on: look before asking.
        if ! matches "$2.part" "$1"; then download "$address/$2" "$2.part"; fi
        if matches "$2.part" "$1"; then
            mv -- "$2.part" "$2" || fail "$PWD/$2: cannot be renamed"
            return
        fi
        if [ -s "$2.part" ] && is_whole "$address/$2" "$2.part"; then
            mv -f -- "$2.part" "$2.bad" || fail "$PWD/$2.part: cannot be renamed"
            printf 'fetch.sh: %s/%s: does not match its checksum; kept as %s.bad\n' "$address" "$2" "$2" >&2
        fi
    done
    fail "$2: could not be had from $(echo "$addresses" | tr '\n' ' ')(run again to go on where it stopped)"
}

# Whether nothing more comes from address $1 for file $2: then it is not an interrupted download but a wrong file.
is_whole()
{
    before=$(wc -c <"$2")
    download "$1" "$2" 2>/dev/null
    [ "$(wc -c <"$2")" -eq "$before" ]
}

# The archive's six files, by way of a folder of their own, so that none is there half.
unpack_cifar10()
{
    for file in $cifar_files; do
        if [ "$(wc -c 2>/dev/null <"$file.bin")" != 30730000 ]; then
            rm -rf -- cifar-10-batches-bin.part
            mkdir cifar-10-batches-bin.part || fail "$PWD: cannot make a folder"
            tar -xzf cifar-10-binary.tar.gz -C cifar-10-batches-bin.part --strip-components=1 ||
                fail "$PWD/cifar-10-binary.tar.gz: cannot be unpacked"
            mv -f -- cifar-10-batches-bin.part/*.bin . || fail "$PWD: cannot be written"
            rm -rf -- cifar-10-batches-bin.part
            break
        fi
    done
}

if [ $# -lt 1 ] || [ $# -gt 2 ] || [ -z "$(files_of "$1")" ]; then usage; fi
command -v md5sum >/dev/null 2>&1 || fail 'md5sum is not installed'
set_name=$1
folder=${2:-$(dirname -- "$0")/sets/$1}
addresses=$(addresses_of "$1")
mkdir -p -- "$folder" || fail "$folder: cannot be made"
cd -- "$folder" || fail "$folder: cannot be entered"
files_of "$set_name" >.files.$$ || fail "$PWD: cannot be written"
trap 'rm -f -- .files.$$' EXIT
while read -r sum name; do fetch "$sum" "$name" </dev/null; done <.files.$$ || exit 1
if [ "$set_name" = cifar10 ]; then unpack_cifar10; fi
printf '%s is in %s\n' "$set_name" "$PWD"
