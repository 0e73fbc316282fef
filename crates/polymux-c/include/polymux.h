/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * libpolymux: a Polymux volume inside a program, without a mount.
 *
 * polymux_open_volume opens a volume by its name, as `polymux mount` would, and the process has it for itself until it is closed. All
 * other functions return what the POSIX call of the same name returns: -1, with errno set, on failure. Descriptors are numbers of the
 * volume, not of the kernel: they can be used only with the functions below.
 *
 * Paths begin at the root of the volume, with or without a slash. Permissions are checked for the effective user, groups and umask that
 * the process had when it opened the volume, to whom new files belong.
 *
 * Durability is that of POSIX: polymux_fsync and polymux_fdatasync return when the tiers have the bytes, and a sync of a directory makes
 * its names durable. A program that ends without polymux_close_volume is like a daemon that is killed: everything synced is
 * there after the next open or mount.
 *
 * Every function may be called from any thread. The threads of the library take no signals. In a child after fork() every call on the volume of its
 * parent fails with ENOTCONN, and closing it does nothing; a child that executes another program is no problem. The process needs its rights on
 * the tiers for as long as the volume is open, and opens it after it has become a daemon.
 *
 * errno values that have a meaning of their own:
 *   EBUSY     (open of a volume) it is in use; polymux_error_message() names the process
 *   ENOTCONN  the process is a child of the one that opened the volume
 *   ENODEV    (open of a volume) a tier is missing: POLYMUX_DEGRADED opens it all the same, unless that one has the metadata
 *   EIO       a tier is missing or failed, or a range was lost with it
 */
#ifndef POLYMUX_H
#define POLYMUX_H

#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>
#include <time.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Raised when a function or structure below changes its meaning. */
#define POLYMUX_ABI 1

/* An open volume. */
typedef struct polymux_volume polymux_volume;

/* Flags of polymux_open_volume. */
#define POLYMUX_READ_ONLY 1u /* nothing of the volume is changed */
#define POLYMUX_DEGRADED 2u  /* also where a tier is missing */
#define POLYMUX_NO_MOVES 4u  /* no block is moved between tiers while it is open here */

/*
 * Opens a volume by its name, or by the path of its configuration (a text with a slash, or one that ends in ".toml"), and sets *opened.
 * 0, or -1 with errno and polymux_error_message().
 */
int polymux_open_volume(const char *name, unsigned flags, polymux_volume **opened);

/*
 * Closes all descriptors and the volume: everything is written back, and others may use it. The pointer is invalid from then on, and no other
 * thread may be in a call with it, as with fclose(3). A null pointer is allowed. -1: something could not be written; the volume is closed all the
 * same, and as after a crash. In the child of a fork it does nothing. It may be called from a function of atexit(3).
 */
int polymux_close_volume(polymux_volume *volume);

/* Why the last polymux_open_volume or polymux_close_volume of this thread failed, in one line. Valid until its next call of either. */
const char *polymux_error_message(void);

/* Sentences about anything that the user of the volume should know, index 0 and on; null at the end. Valid until it is closed. */
const char *polymux_warning(const polymux_volume *volume, size_t index);

/* Version of the library. */
const char *polymux_version(void);

/* --- open files ------------------------------------------------------------------------------------------------------------- */

/*
 * Flags are those of open(2): access mode, O_CREAT, O_EXCL, O_TRUNC, O_APPEND, O_SYNC, O_DSYNC, O_NOFOLLOW, O_DIRECTORY, O_TMPFILE.
 * O_PATH is refused (EINVAL); O_DIRECT, O_CLOEXEC, O_NONBLOCK, O_NOATIME and O_NOCTTY change nothing. Pipes, sockets and devices cannot be
 * opened (ENXIO). `mode` is read with O_CREAT and O_TMPFILE only.
 */
int polymux_open(const polymux_volume *volume, const char *path, int flags, mode_t mode);
int polymux_close(const polymux_volume *volume, int descriptor);
int polymux_dup(const polymux_volume *volume, int descriptor);
ssize_t polymux_read(const polymux_volume *volume, int descriptor, void *data, size_t length);
ssize_t polymux_write(const polymux_volume *volume, int descriptor, const void *data, size_t length);
ssize_t polymux_pread(const polymux_volume *volume, int descriptor, void *data, size_t length, off_t offset);
ssize_t polymux_pwrite(const polymux_volume *volume, int descriptor, const void *data, size_t length, off_t offset);
off_t polymux_lseek(const polymux_volume *volume, int descriptor, off_t offset, int whence);
int polymux_fsync(const polymux_volume *volume, int descriptor);
int polymux_fdatasync(const polymux_volume *volume, int descriptor);
int polymux_ftruncate(const polymux_volume *volume, int descriptor, off_t size);
/* `mode`: 0, FALLOC_FL_KEEP_SIZE, and with it FALLOC_FL_PUNCH_HOLE or FALLOC_FL_ZERO_RANGE, or the latter alone. */
int polymux_fallocate(const polymux_volume *volume, int descriptor, int mode, off_t offset, off_t length);
/* Gives an open file a name: one of O_TMPFILE, which has none, or another one. */
int polymux_link_file(const polymux_volume *volume, int descriptor, const char *path);
/* May copy less than asked for. The positions of the files stay. */
ssize_t polymux_copy_file_range(const polymux_volume *volume, int from, off_t from_offset, int to, off_t to_offset, size_t length);

/* --- attributes: `flags` is 0 or AT_SYMLINK_NOFOLLOW ------------------------------------------------------------------------ */

/* st_dev is 0. While the tier that knows the end of a file does not answer, st_size is the least that it can be. */
int polymux_stat(const polymux_volume *volume, const char *path, struct stat *found, int flags);
int polymux_fstat(const polymux_volume *volume, int descriptor, struct stat *found);
int polymux_access(const polymux_volume *volume, const char *path, int mask);
int polymux_chmod(const polymux_volume *volume, const char *path, mode_t mode);
int polymux_fchmod(const polymux_volume *volume, int descriptor, mode_t mode);
/* (uid_t)-1 and (gid_t)-1 leave one as it is. */
int polymux_chown(const polymux_volume *volume, const char *path, uid_t owner, gid_t group, int flags);
int polymux_fchown(const polymux_volume *volume, int descriptor, uid_t owner, gid_t group);
int polymux_truncate(const polymux_volume *volume, const char *path, off_t size);
/* Access and modification time, with UTIME_NOW and UTIME_OMIT; a null pointer: now for both. */
int polymux_utimens(const polymux_volume *volume, const char *path, const struct timespec times[2], int flags);
int polymux_futimens(const polymux_volume *volume, int descriptor, const struct timespec times[2]);
int polymux_statvfs(const polymux_volume *volume, struct statvfs *found);
/* Makes the whole volume durable. */
int polymux_syncfs(const polymux_volume *volume);

/* --- names ------------------------------------------------------------------------------------------------------------------ */

int polymux_mkdir(const polymux_volume *volume, const char *path, mode_t mode);
int polymux_rmdir(const polymux_volume *volume, const char *path);
int polymux_mknod(const polymux_volume *volume, const char *path, mode_t mode, dev_t device);
int polymux_unlink(const polymux_volume *volume, const char *path);
/* `flags`: 0, RENAME_NOREPLACE or RENAME_EXCHANGE. */
int polymux_rename(const polymux_volume *volume, const char *from, const char *to, unsigned flags);
int polymux_link(const polymux_volume *volume, const char *existing, const char *path);
int polymux_symlink(const polymux_volume *volume, const char *target, const char *path);
/* No zero is put behind the target. */
ssize_t polymux_readlink(const polymux_volume *volume, const char *path, char *target, size_t length);

/* --- directories ------------------------------------------------------------------------------------------------------------ */

struct polymux_dirent {
    uint64_t ino;
    off_t position;     /* behind this entry, for polymux_seekdir */
    unsigned char type; /* DT_REG, DT_DIR, ... of dirent.h */
    char name[256];
};

/* The next entry of a directory that polymux_open opened; `.` and `..` are not among them. 1, 0 at the end, or -1. */
int polymux_readdir(const polymux_volume *volume, int descriptor, struct polymux_dirent *entry);
/* Goes on behind an entry; 0: from the beginning. The names are read anew. */
int polymux_seekdir(const polymux_volume *volume, int descriptor, off_t position);

/* --- extended attributes: a length of 0 asks for that of the answer --------------------------------------------------------- */

ssize_t polymux_getxattr(const polymux_volume *volume, const char *path, const char *name, void *value, size_t length, int flags);
ssize_t polymux_listxattr(const polymux_volume *volume, const char *path, char *names, size_t length, int flags);
/* `mode`: 0, XATTR_CREATE or XATTR_REPLACE. */
int polymux_setxattr(const polymux_volume *volume, const char *path, const char *name, const void *value, size_t length, int mode, int flags);
int polymux_removexattr(const polymux_volume *volume, const char *path, const char *name, int flags);

#ifdef __cplusplus
}
#endif

#endif
