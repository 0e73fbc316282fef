#!/bin/sh
# Reads of 1 MiB of files, half of which lies on each of two tiers whose devices are throttled alike, with one request each, and prints the
# milliseconds of a read. With the parts of a read one after the other it is twice what one device takes for its half; side by side, once.
#
# usage: read-over-two-tiers.sh POLYMUX      (the program; needs root, loop devices and the block I/O controller in version 1)
set -eu

polymux=$1
files=8
# 512 KiB in a quarter of a second: the controller lets a tenth of a second of it pass at once.
bytes_per_second=2097152
throttle=/sys/fs/cgroup/blkio/blkio.throttle.read_bps_device
base=$(mktemp -d /dev/shm/polymux-read-XXXXXX)
export POLYMUX_CONFIG_DIR="$base/config" POLYMUX_RUNTIME_DIR="$base/runtime" POLYMUX_MEMORY_DIR="$base/none"
devices=

clean_up() {
    if mountpoint -q "$base/volume"; then "$polymux" umount "$base/volume" || true; fi
    for tier in fast slow; do
        if mountpoint -q "$base/$tier"; then umount "$base/$tier"; fi
    done
    for device in $devices; do
        echo "$(lsblk -dno MAJ:MIN "$device" | tr -d ' ') 0" > "$throttle" || true
        losetup --detach "$device"
    done
    rm -rf "$base"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

mkdir "$base/config" "$base/runtime" "$base/volume"
for tier in fast slow; do
    truncate -s 256M "$base/$tier.image"
    device=$(losetup --find --show "$base/$tier.image")
    devices="$devices $device"
    mkfs.ext4 -q -m 0 "$device"
    mkdir "$base/$tier"
    mount "$device" "$base/$tier"
    mkdir "$base/$tier/tier"
done
"$polymux" create bench --tier="fast=$base/fast/tier" --tier="slow=$base/slow/tier" > "$base/said"
printf '\n[options]\npassthrough = "off"\n' >> "$base/config/bench.toml"
"$polymux" mount bench "$base/volume" >> "$base/said"
for number in $(seq "$files"); do
    head -c 4M /dev/urandom > "$base/volume/$number"
done
sync -f "$base/volume"
for number in $(seq "$files"); do
    "$polymux" migrate "$base/volume/$number" --to slow --range 2MiB-4MiB --wait >> "$base/said"
done
"$polymux" where "$base/volume/1" | head -20
# Nothing is in memory any more.
"$polymux" umount "$base/volume"
for tier in fast slow; do
    umount "$base/$tier"
done
set -- $devices
mount "$1" "$base/fast"
mount "$2" "$base/slow"
"$polymux" mount bench "$base/volume" >> "$base/said"
for device in $devices; do
    echo "$(lsblk -dno MAJ:MIN "$device" | tr -d ' ') $bytes_per_second" > "$throttle"
done
began=$(date +%s%N)
for number in $(seq "$files"); do
    dd if="$base/volume/$number" of=/dev/null bs=1M count=1 iflag=direct,skip_bytes skip=1536K status=none
done
ended=$(date +%s%N)
echo "milliseconds of a read of 1 MiB over two tiers: $(( (ended - began) / 1000000 / files ))"
