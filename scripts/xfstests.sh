#!/bin/bash
# Runs the group `quick` of xfstests on two volumes over loop devices, and compares what comes of each test with the list
# of those that are expected to fail or do not apply (xfstests-expected.txt). Everything that is mounted is seen by this run alone.
#
# usage: xfstests.sh POLYMUX XFSTESTS [ARGUMENT OF check ...]      as root; XFSTESTS is a directory where xfstests was built
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
[ $# -ge 2 ] || { sed -n '2,5s/^# \?//p' "$0"; exit 2; }
polymux=$(realpath "$1"); suite=$(realpath "$2"); shift 2
[ "$(id -u)" = 0 ] || { echo "xfstests needs root"; exit 2; }
[ -x "$suite/check" ] && [ -x "$suite/ltp/fsx" ] || { echo "$suite: no xfstests that were built"; exit 2; }

# Mounts, the helper of mount(8) and the users of the suite exist in a mount name space of their own.
if [ "${POLYMUX_XFSTESTS_INSIDE:-}" != 1 ]; then
    POLYMUX_XFSTESTS_INSIDE=1 exec unshare --mount --propagation private "$0" "$polymux" "$suite" "$@"
fi

work=$(mktemp -d "${TMPDIR:-/var/tmp}/polymux-xfstests-XXXXXX")
chmod 755 "$work"
export POLYMUX_CONFIG_DIR=$work/config POLYMUX_RUNTIME_DIR=$work/runtime POLYMUX_MEMORY_DIR=$work/none
finish() {
    for name in vol_one vol_two; do
        umount -A "$work/$name" 2> /dev/null || true
    done
    # The daemons end after their mounts.
    for _ in $(seq 100); do
        [ -z "$(ls -A "$work/runtime" 2> /dev/null)" ] && break
        sleep 0.1
    done
    for name in vol_one vol_two; do
        umount "$work/$name-fast" "$work/$name-slow" 2> /dev/null || umount -l "$work/$name-fast" "$work/$name-slow" || true
    done
    if [ -n "${POLYMUX_XFSTESTS_KEEP:-}" ]; then echo "kept: $work"; else rm -rf --one-file-system "$work"; fi
}
trap finish EXIT

mkdir "$work"/{config,runtime,sbin,results,etc,bin}
ln -s "$polymux" "$work/sbin/mount.fuse.polymux"
ln -s "$polymux" "$work/sbin/mount.polymux"
mount -t overlay overlay -o "lowerdir=$work/sbin:$(realpath /sbin)" "$(realpath /sbin)"
cp /etc/passwd /etc/group "$work/etc/"
number=3000000
for user in fsgqa fsgqa2 123456-fsgqa; do
    number=$((number + 1))
    id "$user" > /dev/null 2>&1 && continue
    echo "$user:x:$number:$number::$work/etc:/bin/bash" >> "$work/etc/passwd"
    echo "$user:x:$number:" >> "$work/etc/group"
done
mount --bind "$work/etc/passwd" /etc/passwd
mount --bind "$work/etc/group" /etc/group

for name in vol_one vol_two; do
    mkdir "$work/$name" "$work/$name-fast" "$work/$name-slow"
    truncate -s 6G "$work/$name-fast.image"
    truncate -s 10G "$work/$name-slow.image"
    mkfs.ext4 -q -F "$work/$name-fast.image"
    mkfs.xfs -q -f "$work/$name-slow.image"
    for tier in fast slow; do
        mount -o loop "$work/$name-$tier.image" "$work/$name-$tier"
        mkdir "$work/$name-$tier/tier"
    done
    "$polymux" create --tier fast="$work/$name-fast/tier" --tier slow="$work/$name-slow/tier" "$name" > /dev/null
done

# The suite wants the type of a mount to be the one that it was told, without the part behind the dot.
printf '#!/bin/sh\n%s "$@" | sed "s/fuse\\.polymux /fuse /"\n' "$(type -P df)" > "$work/bin/df"
chmod 755 "$work/bin/df"
export PATH=$work/bin:$PATH
export FSTYP=fuse FUSE_SUBTYP=.polymux
export TEST_DEV=vol_one TEST_DIR=$work/vol_one SCRATCH_DEV=vol_two SCRATCH_MNT=$work/vol_two
export TEST_FS_MOUNT_OPTS="-o allow_other" MOUNT_OPTIONS="-o allow_other" RESULT_BASE=$work/results
mount -t fuse.polymux vol_one "$work/vol_one"

# Tests that must not be run come with their reason, as everything else in the list.
awk '$1 == "never" { print $2 }' "$here/xfstests-expected.txt" > "$work/never"
arguments=("$@")
whole=
[ ${#arguments[@]} -gt 0 ] || { arguments=(-g quick); whole=whole; }
cd "$suite"
./check -E "$work/never" "${arguments[@]}" 2>&1 | tee "$work/output" || true
python3 "$here/xfstests-compare.py" "$here/xfstests-expected.txt" "$work/results" $whole
