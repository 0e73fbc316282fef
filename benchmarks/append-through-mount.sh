#!/bin/sh
# Appending with fdatasync through a mounted volume, against the file system below it. Makes a volume of two tiers below
# DIRECTORY, mounts it, measures, and takes everything away again. Needs root.
#
# usage: append-through-mount.sh POLYMUX POLYMUX-BENCH DIRECTORY [OPTIONS]
set -eu

polymux=$1
bench=$2
work=$(mktemp -d "$3/polymux-append-XXXXXX")
shift 3
export POLYMUX_CONFIG_DIR="$work/config" POLYMUX_RUNTIME_DIR="$work/run"
mounted=

clean_up() {
    if [ -n "$mounted" ]; then "$polymux" umount "$work/mount" || true; fi
    rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

mkdir "$work/config" "$work/run" "$work/fast" "$work/slow" "$work/mount" "$work/native"
"$polymux" create append --tier "fast=$work/fast" --tier "slow=$work/slow"
"$polymux" mount append "$work/mount"
mounted=yes
"$bench" append --directory "$work/native" --mounted "$work/mount" "$@"
"$polymux" status append
