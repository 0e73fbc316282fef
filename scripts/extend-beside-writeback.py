#!/usr/bin/env python3
"""Shows a defect of the kernel's FUSE client (SEMANTICS.md, "What the kernel does"): a file that is extended by write() while its
last page is dirty through a mapping and is just being written back loses the bytes between its old end and the end of that page.

Works in a directory of any mounted file system; a native one shows nothing:

    scripts/extend-beside-writeback.py DIRECTORY [ROUNDS]

Ends with 1 where a byte was lost.
"""

import ctypes
import mmap
import os
import sys
import threading

OLD_END = 2705
STORED = slice(86, 1621)
WRITTEN_AT, WRITTEN = 30, b"\x18" * 8534
SYNC_FILE_RANGE_WRITE = 2

libc = ctypes.CDLL(None, use_errno=True)
being_written = -1


def keep_writing_back():
    """Starts writing the first page back, again and again."""
    while True:
        if being_written >= 0:
            libc.sync_file_range(being_written, ctypes.c_long(0), ctypes.c_long(4096), SYNC_FILE_RANGE_WRITE)


def one_round(path):
    """Returns whether what is read is wrong, and whether it still is once the kernel has dropped its pages."""
    global being_written
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    os.write(file, b"\x10" * OLD_END)
    mapping = mmap.mmap(file, OLD_END)
    being_written = file
    for _ in range(4):
        mapping[STORED] = b"\x17" * (STORED.stop - STORED.start)
        os.sched_yield()
    os.pwrite(file, WRITTEN, WRITTEN_AT)
    being_written = -1
    expected = b"\x10" * WRITTEN_AT + WRITTEN
    is_wrong = os.pread(file, 2 * len(expected), 0) != expected
    os.fsync(file)
    mapping.close()
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    stays_wrong = os.pread(file, 2 * len(expected), 0) != expected
    os.close(file)
    return is_wrong, stays_wrong


def main():
    path = os.path.join(sys.argv[1], "extended-beside-writeback")
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 300
    threading.Thread(target=keep_writing_back, daemon=True).start()
    outcomes = [one_round(path) for _ in range(rounds)]
    os.unlink(path)
    in_memory, lost = (sum(column) for column in zip(*outcomes))
    print(f"{rounds} rounds: {in_memory} times wrong in memory, {lost} times wrong for good")
    return 1 if in_memory + lost else 0


if __name__ == "__main__":
    sys.exit(main())
