#!/usr/bin/env python3
"""What each kind of user can do to each kind of file, and what is left of the file's privileges afterwards.

Run as root with a directory. For every user, file and way to change it this makes a new file, lets the user change it, and
prints one line: what the call answered, the mode afterwards, whether the file still has capabilities, and as whom it runs. It
is run first: what a program runs as must not depend on anybody having looked. Two file systems that behave alike give one output.

Where a command is named, it is run with each file that an `old-` way opened, before the file gets its mode; it prints whether the
kernel changes that file itself ("also for changes"), and must. The file is overwritten before, which that takes.

usage: matrix.py DIRECTORY all|short [COMMAND ...]
"""
import ctypes
import errno
import mmap
import os
import shutil
import stat
import struct
import subprocess
import sys
import time

OWNER, GROUP = 2001, 3000
STRANGER = 2003
RUNNER = 2004
PROGRAM = shutil.which("id")
CAPABILITIES = "security.capability"
# CAP_NET_RAW, permitted and effective, version 2 of the attribute.
CAPABILITY_VALUE = struct.pack("<IIIII", 0x02000001, 1 << 13, 0, 0, 0)
CAP_FSETID = 4
libc = ctypes.CDLL(None, use_errno=True)
PUNCH, KEEP, ZERO = 2, 1, 16

# name: (uid, gid, further groups, capability to drop or to keep)
USERS = {
    "root": (0, 0, [], None),
    "root-without-fsetid": (0, 0, [], "drop"),
    "root-in-group-without-fsetid": (0, 0, [GROUP], "drop"),
    "owner": (OWNER, OWNER, [], None),
    "owner-in-group": (OWNER, OWNER, [GROUP], None),
    "group-first": (2002, GROUP, [], None),
    "group-further": (2002, 2002, [GROUP], None),
    "stranger": (STRANGER, STRANGER, [], None),
    "stranger-with-fsetid": (STRANGER, STRANGER, [], "keep"),
}

# name: (mode, attributes)
FILES = {
    "0777": (0o777, []),
    "4777": (0o4777, []),
    "2777": (0o2777, []),
    "6777": (0o6777, []),
    "2767": (0o2767, []),
    "6767": (0o6767, []),
    "6666": (0o6666, []),
    "1777": (0o1777, []),
    "6755": (0o6755, []),
    "2764": (0o2764, []),
    "capable": (0o777, ["capability"]),
    "capable-4777": (0o4777, ["capability"]),
    "acl-6711": (0o6711, ["acl"]),
}


def acl():
    """user::rwx, user:STRANGER:rw-, group::--x, mask::rwx, other::--x"""
    entries = [(1, 7, 0xFFFFFFFF), (2, 6, STRANGER), (4, 1, 0xFFFFFFFF), (16, 7, 0xFFFFFFFF), (32, 1, 0xFFFFFFFF)]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def check(result):
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def fallocate(fd, mode, offset, length):
    check(libc.fallocate(fd, mode, ctypes.c_long(offset), ctypes.c_long(length)))


def direct_write(path):
    fd = os.open(path, os.O_RDWR | os.O_DIRECT)
    block = mmap.mmap(-1, 4096)
    os.preadv(fd, [block], 0)
    os.pwritev(fd, [block], 0)


def through_pipe(fd, bytes_):
    end, begin = os.pipe()
    os.write(begin, bytes_)
    os.lseek(fd, 0, os.SEEK_SET)
    if os.splice(end, fd, len(bytes_)) != len(bytes_):
        raise OSError(errno.EIO, "short")


def store(fd):
    mapping = mmap.mmap(fd, 4096)
    mapping[0] = mapping[0]
    mapping.flush()
    mapping.close()


def copy_range(fd, source):
    if os.copy_file_range(source, fd, 4096, 0, 0) != 4096:
        raise OSError(errno.EIO, "short")


def send(fd, source):
    os.lseek(fd, 0, os.SEEK_SET)
    if os.sendfile(fd, source, 0, 4096) != 4096:
        raise OSError(errno.EIO, "short")


# Ways through a descriptor, opened by the user or, for `old`, by the user before the file got its mode.
THROUGH = {
    "write": lambda fd, source: os.write(fd, b"\x7f"),
    "pwrite": lambda fd, source: os.pwrite(fd, b"ELF", 1),
    "splice": lambda fd, source: through_pipe(fd, b"\x7fELF"),
    "sendfile": send,
    "copy-range": copy_range,
    "ftruncate": lambda fd, source: os.ftruncate(fd, os.fstat(fd).st_size),
    "allocate": lambda fd, source: fallocate(fd, 0, 0, 4096),
    "allocate-keep": lambda fd, source: fallocate(fd, KEEP, 1 << 20, 4096),
    "punch": lambda fd, source: fallocate(fd, PUNCH | KEEP, 1 << 16, 4096),
    "store": lambda fd, source: store(fd),
}

WAYS = {name: name for name in THROUGH}
WAYS.update({"old-" + name: name for name in THROUGH})
WAYS.update({name: name for name in [
    "append", "direct", "truncate", "open-truncate", "chown-nothing", "chown-self", "chgrp-own", "utime",
    "set-user-attribute", "chmod-same", "chmod-set-gid", "set-acl", "list-attributes", "set-trusted",
]})


def act_by_path(way, path, user):
    uid, gid, groups, _ = user
    if way == "append":
        fd = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.write(fd, b"x")
    elif way == "direct":
        direct_write(path)
    elif way == "truncate":
        os.truncate(path, os.stat(path).st_size)
    elif way == "open-truncate":
        os.close(os.open(path, os.O_WRONLY | os.O_TRUNC))
    elif way == "chown-nothing":
        os.chown(path, -1, -1)
    elif way == "chown-self":
        os.chown(path, uid, -1)
    elif way == "chgrp-own":
        os.chown(path, -1, groups[0] if groups else gid)
    elif way == "utime":
        os.utime(path)
    elif way == "set-user-attribute":
        os.setxattr(path, "user.note", b"x")
    elif way == "chmod-same":
        os.chmod(path, stat.S_IMODE(os.stat(path).st_mode))
    elif way == "chmod-set-gid":
        os.chmod(path, 0o2755)
    elif way == "set-acl":
        os.setxattr(path, "system.posix_acl_access", acl())
    elif way == "set-trusted":
        os.setxattr(path, "trusted.note", b"x")
    elif way == "list-attributes":
        return " ".join(sorted(os.listxattr(path)))
    return None


class Header(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


def set_capabilities(permitted):
    sets = (ctypes.c_uint32 * 6)()
    sets[0] = sets[1] = permitted & 0xFFFFFFFF
    sets[3] = sets[4] = permitted >> 32
    check(libc.capset(ctypes.byref(Header(0x20080522, 0)), sets))


def become(user):
    uid, gid, groups, capability = user
    if capability == "keep":
        check(libc.prctl(8, 1, 0, 0, 0))  # PR_SET_KEEPCAPS
    os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    if capability == "drop":
        set_capabilities(((1 << 41) - 1) & ~(1 << CAP_FSETID))
    elif capability == "keep":
        set_capabilities(1 << CAP_FSETID)


def in_child(work):
    """Runs `work` in a child, and returns the text that it returned."""
    end, begin = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(end)
        try:
            said = work()
        except OSError as error:
            said = errno.errorcode.get(error.errno, str(error.errno))
        os.write(begin, (said or "ok").encode())
        os._exit(0)
    os.close(begin)
    with os.fdopen(end, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(child, 0)
    return said or "died"


def runs_as(path):
    def run():
        become((RUNNER, RUNNER, [], None))
        end, begin = os.pipe()
        child = os.fork()
        if child == 0:
            os.dup2(begin, 1)
            os.dup2(os.open("/dev/null", os.O_WRONLY), 2)
            try:
                os.execv(path, [path])
            except OSError as error:
                os.write(1, errno.errorcode[error.errno].encode())
            os._exit(1)
        os.close(begin)
        with os.fdopen(end, "rb") as pipe:
            said = pipe.read().decode().split()
        os.waitpid(child, 0)
        return " ".join(word for word in said if not word.startswith("groups=")) or "nothing"

    return in_child(run)


def has_capabilities(path):
    try:
        os.getxattr(path, CAPABILITIES)
        return True
    except OSError:
        return False


def give_mode(path, file):
    mode, attributes = file
    os.chmod(path, mode)
    if "acl" in attributes:
        os.setxattr(path, "system.posix_acl_access", acl())
    if "capability" in attributes:
        os.setxattr(path, CAPABILITIES, CAPABILITY_VALUE)
    os.setxattr(path, "trusted.secret", b"x")


def overwrite(path):
    """Writes the first byte again through a descriptor of its own, and does not make the file longer."""
    fd = os.open(path, os.O_RDWR)
    os.pwrite(fd, os.pread(fd, 1, 0), 0)
    os.fsync(fd)
    os.close(fd)


def opened_before(path, command):
    """Opens a file that was overwritten before; where there is a command, such that the kernel changes it itself."""
    deadline = time.monotonic() + 20
    while True:
        overwrite(path)
        fd = os.open(path, os.O_RDWR)
        if not command:
            return fd
        told = subprocess.run(command + [path], check=True, capture_output=True, text=True).stdout
        if "also for changes" in told:
            return fd
        # That an earlier descriptor was closed may be heard late.
        if time.monotonic() > deadline:
            sys.exit(f"{path} is not passed through for changes: {told}")
        os.close(fd)
        time.sleep(0.02)


def entry(directory, program, source, way, user_name, file_name, command):
    path = os.path.join(directory, f"{way}.{user_name}.{file_name}")
    user, file = USERS[user_name], FILES[file_name]
    with open(path, "wb") as made:
        made.write(program)
    old, call = None, WAYS[way]
    os.chown(path, OWNER, GROUP)
    if way.startswith("old-"):
        os.chmod(path, 0o777)
        old = opened_before(path, command)
    give_mode(path, file)

    def work():
        if call in THROUGH:
            from_ = os.open(source, os.O_RDONLY)
            become(user)
            THROUGH[call](old if old is not None else os.open(path, os.O_RDWR), from_)
            return None
        become(user)
        return act_by_path(call, path, user)

    said = in_child(work)
    if old is not None:
        os.close(old)
    ran = runs_as(path)
    told = stat.S_IMODE(os.stat(path).st_mode)
    print(f"{way:18} {user_name:28} {file_name:12} {said:10} {told:05o} "
          f"{'capable' if has_capabilities(path) else '-':7} {ran}")
    os.unlink(path)


SHORT_WAYS = [
    "write", "append", "direct", "ftruncate", "open-truncate", "allocate", "copy-range", "splice", "store", "old-write",
    "old-ftruncate", "old-store", "chown-nothing", "chgrp-own", "set-acl", "list-attributes",
]
SHORT_FILES = ["0777", "2767", "6777", "6755", "capable-4777", "acl-6711"]


def main():
    directory, form, *command = sys.argv[1:]
    is_short = form == "short"
    ways, files = (SHORT_WAYS, SHORT_FILES) if is_short else (WAYS, FILES)
    os.chmod(directory, 0o755)
    with open(PROGRAM, "rb") as file:
        program = file.read()
    source = os.path.join(directory, "source")
    with open(source, "wb") as file:
        file.write(program)
    os.chmod(source, 0o644)
    for way in ways:
        for user_name in USERS:
            for file_name in files:
                entry(directory, program, source, way, user_name, file_name, command)


main()
