#!/bin/sh
# Runs a measuring command on a new ext4 with its ordinary options (journal, no discard) in a loop device over a file
# below DIRECTORY. For machines whose own file system is unusual: without a journal ext4 neither reuses inodes for minutes
# nor commits in groups, and with `discard` every freed block waits for the device.
#
# usage: on-loop-device.sh DIRECTORY SIZE COMMAND...      (COMMAND gets `--directory MOUNTPOINT` at its end; needs root)
set -eu

directory=$1
size=$2
shift 2
image=$(mktemp "$directory/polymux-loop-XXXXXX")
mount_point=$(mktemp -d "$directory/polymux-loop-mount-XXXXXX")
device=

clean_up() {
    if mountpoint -q "$mount_point"; then umount "$mount_point"; fi
    if [ -n "$device" ]; then losetup --detach "$device"; fi
    rmdir "$mount_point"
    rm -f "$image"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

# All blocks are there before anything is measured: otherwise the file system below would allocate inside the clock.
fallocate -l "$size" "$image"
device=$(losetup --find --show --direct-io=on "$image")
mkfs.ext4 -q -E lazy_itable_init=0,lazy_journal_init=0 "$device"
mount "$device" "$mount_point"
"$@" --directory "$mount_point"
