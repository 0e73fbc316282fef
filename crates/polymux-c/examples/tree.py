#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Prints the tree of a volume with sizes, or puts a file into it, by ctypes and without a mount.

    tree.py VOLUME                 prints the tree
    tree.py VOLUME put FILE PATH   copies a file of this machine to PATH of the volume, durably

LIBPOLYMUX names the library where it is not in the usual places.
"""

import ctypes
import os
import sys

library = ctypes.CDLL(os.environ.get("LIBPOLYMUX", "libpolymux.so"), use_errno=True)
library.polymux_error_message.restype = ctypes.c_char_p
library.polymux_pwrite.restype = ctypes.c_ssize_t
library.polymux_lseek.restype = ctypes.c_int64

DIRECTORY = 4  # DT_DIR


class Entry(ctypes.Structure):
    """struct polymux_dirent"""

    _fields_ = [
        ("ino", ctypes.c_uint64),
        ("position", ctypes.c_int64),
        ("type", ctypes.c_ubyte),
        ("name", ctypes.c_char * 256),
    ]


def checked(result, about):
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), about)
    return result


class Volume:
    def __init__(self, name):
        self.pointer = ctypes.c_void_p()
        if library.polymux_open_volume(name.encode(), 0, ctypes.byref(self.pointer)) != 0:
            sys.exit(library.polymux_error_message().decode())

    def open(self, path, flags, mode=0o644):
        return checked(library.polymux_open(self.pointer, os.fsencode(path), flags, mode), path)

    def size(self, path):
        descriptor = self.open(path, os.O_RDONLY)
        size = checked(library.polymux_lseek(self.pointer, descriptor, ctypes.c_int64(0), os.SEEK_END), path)
        self.close(descriptor)
        return size

    def close(self, descriptor):
        checked(library.polymux_close(self.pointer, descriptor), "close")

    def entries(self, path):
        descriptor = self.open(path, os.O_RDONLY | os.O_DIRECTORY)
        entry = Entry()
        while checked(library.polymux_readdir(self.pointer, descriptor, ctypes.byref(entry)), path) == 1:
            yield os.fsdecode(entry.name), entry.type
        self.close(descriptor)

    def put(self, source, path):
        descriptor = self.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        offset = 0
        with open(source, "rb") as file:
            while data := file.read(1 << 20):
                while data:
                    written = checked(
                        library.polymux_pwrite(
                            self.pointer, descriptor, data, ctypes.c_size_t(len(data)), ctypes.c_int64(offset)
                        ),
                        path,
                    )
                    offset += written
                    data = data[written:]
        checked(library.polymux_fsync(self.pointer, descriptor), path)
        self.close(descriptor)

    def end(self):
        if library.polymux_close_volume(self.pointer) != 0:
            sys.exit(library.polymux_error_message().decode())


def show(volume, path, depth):
    for name, kind in sorted(volume.entries(path)):
        below = path.rstrip("/") + "/" + name
        if kind == DIRECTORY:
            print("  " * depth + name + "/")
            show(volume, below, depth + 1)
        elif kind == 8:  # DT_REG
            print("  " * depth + name, volume.size(below))
        else:
            print("  " * depth + name)


def main(arguments):
    if len(arguments) not in (2, 5) or (len(arguments) == 5 and arguments[2] != "put"):
        sys.exit(__doc__)
    volume = Volume(arguments[1])
    try:
        if len(arguments) == 5:
            volume.put(arguments[3], arguments[4])
        else:
            show(volume, "/", 0)
    finally:
        volume.end()


if __name__ == "__main__":
    main(sys.argv)
