#!/usr/bin/env python3
"""What append-only and immutable files and directories let root do, one line for each way.

Two file systems that behave alike give one output. Flags are set with chattr.

usage: flags.py DIRECTORY
"""
import ctypes
import errno
import fcntl
import mmap
import os
import subprocess
import sys

libc = ctypes.CDLL(None, use_errno=True)
PUNCH, KEEP, ZERO, EXCHANGE, NOAPPEND = 2, 1, 16, 2, 0x20
CONTENT = b"0123456789" * 1000


def check(result):
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def fallocate(fd, mode, offset, length):
    check(libc.fallocate(fd, mode, ctypes.c_long(offset), ctypes.c_long(length)))


def rename2(old, new, flags):
    check(libc.renameat2(-100, old.encode(), -100, new.encode(), flags))


def overwrite_after_clearing(path):
    fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) & ~os.O_APPEND)
    os.pwrite(fd, b"changed", 0)


def overwrite_without_append(path):
    fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    os.pwritev(fd, [b"changed"], 0, NOAPPEND)


def store(path):
    """Of an append-only file the kernel refuses the mapping where it knows the flag; what counts is what is left of the file."""
    fd = os.open(path, os.O_RDWR | os.O_APPEND)
    try:
        mapping = mmap.mmap(fd, 4096)
        mapping[0] = 0x2A
        mapping.flush()
    except OSError:
        raise OSError(errno.EACCES, "refused") from None


def copy_into(path, opened):
    source = os.open(path + ".source", os.O_RDONLY)
    os.copy_file_range(source, os.open(path, opened), 10, 0, 0)


FILE_WAYS = {
    "read": lambda p: os.read(os.open(p, os.O_RDONLY), 10),
    "open-write": lambda p: os.open(p, os.O_WRONLY),
    "open-read-write": lambda p: os.open(p, os.O_RDWR),
    "open-append": lambda p: os.open(p, os.O_WRONLY | os.O_APPEND),
    "open-read-append": lambda p: os.open(p, os.O_RDWR | os.O_APPEND),
    "open-truncate": lambda p: os.open(p, os.O_WRONLY | os.O_TRUNC),
    "open-truncate-append": lambda p: os.open(p, os.O_WRONLY | os.O_APPEND | os.O_TRUNC),
    "open-create": lambda p: os.open(p, os.O_WRONLY | os.O_CREAT),
    "append": lambda p: os.write(os.open(p, os.O_WRONLY | os.O_APPEND), b"more"),
    "append-direct": lambda p: os.write(os.open(p, os.O_WRONLY | os.O_APPEND | os.O_SYNC), b"more"),
    "overwrite-after-clearing": overwrite_after_clearing,
    "overwrite-without-append": overwrite_without_append,
    "store": store,
    "truncate": lambda p: os.truncate(p, 5),
    "truncate-longer": lambda p: os.truncate(p, 50000),
    "ftruncate-append": lambda p: os.ftruncate(os.open(p, os.O_WRONLY | os.O_APPEND), 5),
    "allocate": lambda p: fallocate(os.open(p, os.O_WRONLY | os.O_APPEND), 0, 0, 40000),
    "allocate-keep": lambda p: fallocate(os.open(p, os.O_WRONLY | os.O_APPEND), KEEP, 0, 40000),
    "punch": lambda p: fallocate(os.open(p, os.O_WRONLY | os.O_APPEND), PUNCH | KEEP, 0, 4096),
    "zero": lambda p: fallocate(os.open(p, os.O_WRONLY | os.O_APPEND), ZERO, 0, 4096),
    "copy-into": lambda p: copy_into(p, os.O_WRONLY),
    "copy-into-append": lambda p: copy_into(p, os.O_WRONLY | os.O_APPEND),
    "chmod": lambda p: os.chmod(p, 0o600),
    "chown": lambda p: os.chown(p, 5, 5),
    "chown-nothing": lambda p: os.chown(p, -1, -1),
    "touch": lambda p: os.utime(p),
    "set-times": lambda p: os.utime(p, (1, 1)),
    "set-attribute": lambda p: os.setxattr(p, "user.new", b"x"),
    "set-trusted": lambda p: os.setxattr(p, "trusted.new", b"x"),
    "remove-attribute": lambda p: os.removexattr(p, "user.old"),
    "get-attribute": lambda p: os.getxattr(p, "user.old"),
    "set-acl": lambda p: subprocess.run(["setfacl", "-m", "u:9:rwx", p], check=True, stderr=subprocess.DEVNULL),
    "link": lambda p: os.link(p, p + ".link"),
    "unlink": os.unlink,
    "rename": lambda p: os.rename(p, p + ".renamed"),
    "rename-over": lambda p: os.rename(p + ".source", p),
    "exchange": lambda p: rename2(p + ".source", p, EXCHANGE),
    "whiteout": lambda p: rename2(p, p + ".moved", 4),
}

DIRECTORY_WAYS = {
    "create": lambda p: os.close(os.open(p + "/new", os.O_CREAT | os.O_WRONLY)),
    "create-existing": lambda p: os.close(os.open(p + "/inside", os.O_CREAT | os.O_WRONLY)),
    "create-exclusively-existing": lambda p: os.close(os.open(p + "/inside", os.O_CREAT | os.O_EXCL | os.O_WRONLY)),
    "create-without-name": lambda p: os.close(os.open(p, os.O_TMPFILE | os.O_WRONLY)),
    "mkdir": lambda p: os.mkdir(p + "/new"),
    "mkdir-existing": lambda p: os.mkdir(p + "/below"),
    "symlink": lambda p: os.symlink("x", p + "/new"),
    "mknod": lambda p: os.mknod(p + "/new", 0o20600, os.makedev(1, 3)),
    "link-into": lambda p: os.link(p + ".source", p + "/new"),
    "change-inside": lambda p: os.truncate(p + "/inside", 1),
    "unlink-inside": lambda p: os.unlink(p + "/inside"),
    "unlink-missing": lambda p: os.unlink(p + "/missing"),
    "rmdir-inside": lambda p: os.rmdir(p + "/below"),
    "rename-inside": lambda p: os.rename(p + "/inside", p + "/renamed"),
    "rename-out": lambda p: os.rename(p + "/inside", p + ".out"),
    "rename-into": lambda p: os.rename(p + ".source", p + "/new"),
    "rename-into-over": lambda p: os.rename(p + ".source", p + "/inside"),
    "exchange-into": lambda p: rename2(p + ".source", p + "/inside", EXCHANGE),
    "list": lambda p: os.listdir(p),
    "chmod": lambda p: os.chmod(p, 0o700),
    "chown": lambda p: os.chown(p, 5, 5),
    "touch": lambda p: os.utime(p),
    "set-times": lambda p: os.utime(p, (1, 1)),
    "set-attribute": lambda p: os.setxattr(p, "user.new", b"x"),
    "rmdir": os.rmdir,
    "rename": lambda p: os.rename(p, p + ".renamed"),
}

# Through a descriptor that was opened for writing before the flag was set.
OLD_WAYS = {
    "old-write": lambda fd: os.pwrite(fd, b"changed", 0),
    "old-append": lambda fd: os.pwrite(fd, b"changed", len(CONTENT)),
    "old-truncate": lambda fd: os.ftruncate(fd, 5),
    "old-allocate": lambda fd: fallocate(fd, 0, 0, 40000),
    "old-punch": lambda fd: fallocate(fd, PUNCH | KEEP, 0, 4096),
    "old-chmod": lambda fd: os.fchmod(fd, 0o600),
    "old-chown": lambda fd: os.fchown(fd, 5, 5),
    "old-touch": lambda fd: os.utime(fd),
    "old-attribute": lambda fd: os.setxattr(fd, "user.new", b"x"),
    "old-sync": os.fsync,
}


def put(path):
    with open(path, "wb") as file:
        file.write(CONTENT)
        os.fsync(file.fileno())


def outcome(act, *arguments):
    """In a process of its own, so that no descriptor stays."""
    end, begin = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            act(*arguments)
            answer = "ok"
        except OSError as error:
            answer = errno.errorcode.get(error.errno, str(error.errno))
        except subprocess.CalledProcessError:
            answer = "failed"
        os.write(begin, answer.encode())
        os._exit(0)
    os.close(begin)
    answer = os.read(end, 100).decode()
    os.close(end)
    os.waitpid(child, 0)
    return answer


def chattr(change, path):
    return subprocess.run(["chattr", change, path], check=False, stderr=subprocess.DEVNULL).returncode


def content(path):
    try:
        with open(path, "rb") as file:
            found = file.read()
    except (FileNotFoundError, IsADirectoryError):
        return "-"
    return f"{len(found)}:{sum(found) % 9973}"


def main():
    os.chdir(sys.argv[1])
    number = 0
    for kind, ways in (("file", FILE_WAYS), ("directory", DIRECTORY_WAYS), ("old", OLD_WAYS)):
        for flag in ("+a", "+i"):
            for name, act in ways.items():
                number += 1
                path = f"{kind}{number}"
                put(path + ".source")
                fd = None
                if kind == "directory":
                    os.mkdir(path)
                    os.mkdir(path + "/below")
                    put(path + "/inside")
                else:
                    put(path)
                    os.setxattr(path, "user.old", b"x")
                if kind == "old":
                    fd = os.open(path, os.O_RDWR)
                if chattr(flag, path) != 0:
                    print(kind, flag, name, "chattr failed")
                    continue
                answer = outcome(act, path if fd is None else fd)
                if fd is not None:
                    os.close(fd)
                print(kind, flag, name, answer, content(path))
                for left in (path, path + ".renamed", path + ".source", path + ".moved"):
                    if os.path.lexists(left) and not os.path.islink(left):
                        chattr("-ai", left)
                subprocess.run(f"rm -rf {path}*", shell=True, check=True)


main()
