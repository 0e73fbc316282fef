#!/bin/sh
# Installs what `make try`, `make test` or `make bench` needs and is missing, on Debian 12 and its relatives. Changes nothing where
# nothing is missing. Without root it says what to install, and ends with 1.
set -eu

usage() {
    echo "usage: $0 try|test|bench" >&2
    exit 2
}
[ $# -eq 1 ] || usage

# program:package, one a line; a program may also lie in /sbin, which is not in every user's path.
needed='cc:gcc
fusermount3:fuse3'
case $1 in
try) ;;
test)
    needed="$needed
make:make
mkfs.ext4:e2fsprogs
mkfs.xfs:xfsprogs
mkfs.vfat:dosfstools
losetup:mount
mount:mount
findmnt:util-linux
flock:util-linux
fincore:util-linux-extra
getfacl:acl
setfattr:attr
sqlite3:sqlite3
git:git
tar:tar
python3:python3
fio:fio
fuser:psmisc
capsh:libcap2-bin"
    ;;
bench)
    # mergerfs is what is compared with, RocksDB, dbench and fio are programs that are measured; without one of them that part is left out. Redis and
    # PostgreSQL are measured where they are there: their packages would start servers.
    needed="$needed
make:make
mkfs.ext4:e2fsprogs
mkfs.xfs:xfsprogs
losetup:mount
mount:mount
fstrim:util-linux
tar:tar
git:git
python3:python3
mergerfs:mergerfs
db_bench:rocksdb-tools
dbench:dbench
fio:fio"
    ;;
*) usage ;;
esac

PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
missing=
for pair in $needed; do
    program=${pair%%:*}
    package=${pair#*:}
    if ! command -v "$program" >/dev/null 2>&1; then
        case " $missing " in
        *" $package "*) ;;
        *) missing="$missing $package" ;;
        esac
    fi
done
# The linker needs the C library's own files, which gcc only recommends.
if [ ! -e /usr/include/stdio.h ] && command -v dpkg >/dev/null 2>&1; then
    missing="$missing libc6-dev"
fi

# The example of a database on a volume is compiled against it.
if [ "$1" = test ] && [ ! -e /usr/include/sqlite3ext.h ] && command -v dpkg >/dev/null 2>&1; then
    missing="$missing libsqlite3-dev"
fi

if [ -n "$missing" ]; then
    if ! command -v apt-get >/dev/null 2>&1; then
        echo "missing:$missing (names of Debian packages); install them and try again" >&2
        exit 1
    fi
    if [ "$(id -u)" -ne 0 ]; then
        echo "missing; install as root:  apt-get install$missing" >&2
        exit 1
    fi
    echo "installing:$missing"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -q
    # shellcheck disable=SC2086 # a list of packages
    apt-get install -q -y --no-install-recommends $missing
fi

if [ ! -e /dev/fuse ]; then
    echo "warning: there is no /dev/fuse: volumes cannot be mounted here (in a container, allow the device)" >&2
fi
