/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Every function of the header, called as a C program calls it. Ends with 0, or says which line failed. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <polymux.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#define CHECK(condition)                                                                               \
    do {                                                                                               \
        if (!(condition)) {                                                                            \
            fprintf(stderr, "line %d: %s (errno %d: %s)\n", __LINE__, #condition, errno, strerror(errno)); \
            exit(1);                                                                                   \
        }                                                                                              \
    } while (0)
#define FAILS(call, number) CHECK((call) == -1 && errno == (number))

static const polymux_volume *volume;

static void files(void)
{
    char data[16] = { 0 };
    struct stat found;
    int file = polymux_open(volume, "/file", O_RDWR | O_CREAT | O_EXCL, 0640);
    CHECK(file == 0);
    CHECK(polymux_write(volume, file, "0123456789", 10) == 10);
    CHECK(polymux_pwrite(volume, file, "ab", 2, 4) == 2);
    CHECK(polymux_lseek(volume, file, -8, SEEK_END) == 2);
    CHECK(polymux_read(volume, file, data, 4) == 4 && memcmp(data, "23ab", 4) == 0);
    CHECK(polymux_pread(volume, file, data, sizeof data, 8) == 2 && memcmp(data, "89", 2) == 0);
    CHECK(polymux_pread(volume, file, data, sizeof data, 10) == 0);
    CHECK(polymux_read(volume, file, NULL, 0) == 0);
    FAILS(polymux_read(volume, file, NULL, 1), EFAULT);
    FAILS(polymux_pread(volume, file, data, 1, -1), EINVAL);
    int second = polymux_dup(volume, file);
    CHECK(second == 1 && polymux_lseek(volume, second, 0, SEEK_CUR) == 6);
    CHECK(polymux_close(volume, file) == 0 && polymux_fsync(volume, second) == 0);
    FAILS(polymux_close(volume, file), EBADF);
    FAILS(polymux_fsync(volume, -1), EBADF);
    CHECK(polymux_ftruncate(volume, second, 100000) == 0 && polymux_fdatasync(volume, second) == 0);
    CHECK(polymux_fallocate(volume, second, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 100000) == 0);
    FAILS(polymux_fallocate(volume, second, FALLOC_FL_COLLAPSE_RANGE, 0, 4096), EOPNOTSUPP);
    FAILS(polymux_lseek(volume, second, 0, SEEK_DATA), ENXIO);
    CHECK(polymux_lseek(volume, second, 0, SEEK_HOLE) == 0);
    CHECK(polymux_pwrite(volume, second, "tail", 4, 99996) == 4);
    int copy = polymux_open(volume, "copy", O_RDWR | O_CREAT, 0600);
    CHECK(copy == 0 && polymux_copy_file_range(volume, second, 99990, copy, 0, 1000) == 10);
    CHECK(polymux_pread(volume, copy, data, 16, 0) == 10 && memcmp(data + 6, "tail", 4) == 0);
    CHECK(polymux_fstat(volume, second, &found) == 0);
    CHECK(S_ISREG(found.st_mode) && found.st_size == 100000 && found.st_nlink == 1 && found.st_uid == geteuid());
    CHECK(polymux_close(volume, second) == 0 && polymux_close(volume, copy) == 0);
    FAILS(polymux_open(volume, "/file", O_RDWR | O_CREAT | O_EXCL, 0640), EEXIST);
    FAILS(polymux_open(volume, "/none", O_RDONLY, 0), ENOENT);
    FAILS(polymux_open(volume, "/file", O_RDONLY | O_DIRECTORY, 0), ENOTDIR);
    FAILS(polymux_open(volume, "/file", O_PATH, 0), EINVAL);
    FAILS(polymux_open(volume, NULL, O_RDONLY, 0), EFAULT);
    file = polymux_open(volume, "/", O_RDWR | O_TMPFILE, 0600);
    CHECK(file == 0 && polymux_fstat(volume, file, &found) == 0 && found.st_nlink == 0);
    CHECK(polymux_link_file(volume, file, "/unnamed") == 0 && polymux_fstat(volume, file, &found) == 0 && found.st_nlink == 1);
    FAILS(polymux_link_file(volume, file, "/unnamed"), EEXIST);
    CHECK(polymux_unlink(volume, "/unnamed") == 0);
    FAILS(polymux_open(volume, "/", O_RDWR | O_TMPFILE | O_CREAT, 0600), EINVAL);
    FAILS(polymux_open(volume, "/", O_RDWR, 0), EISDIR);
    FAILS(polymux_open(volume, "/", O_RDWR | O_DIRECTORY, 0), EISDIR);
    FAILS(polymux_open(volume, "/", O_RDONLY | O_TRUNC, 0), EISDIR);
    FAILS(polymux_open(volume, "/none", O_WRONLY | O_DIRECTORY, 0), ENOENT);
    CHECK(polymux_close(volume, file) == 0);
    file = polymux_open(volume, "/file", O_WRONLY | O_APPEND | O_DSYNC | O_CLOEXEC, 0);
    CHECK(polymux_write(volume, file, "!", 1) == 1 && polymux_lseek(volume, file, 0, SEEK_CUR) == 100001);
    FAILS(polymux_read(volume, file, data, 1), EBADF);
    CHECK(polymux_close(volume, file) == 0);
}

static void attributes(void)
{
    struct stat found;
    struct statvfs space;
    struct timespec times[2] = { { 1000, 5 }, { 0, UTIME_OMIT } };
    CHECK(polymux_chmod(volume, "/file", 0604) == 0 && polymux_stat(volume, "/file", &found, 0) == 0);
    CHECK((found.st_mode & 07777) == 0604);
    CHECK(polymux_chown(volume, "/file", (uid_t)-1, getegid(), 0) == 0);
    CHECK(polymux_utimens(volume, "/file", times, 0) == 0 && polymux_stat(volume, "/file", &found, 0) == 0);
    CHECK(found.st_atim.tv_sec == 1000 && found.st_atim.tv_nsec == 5 && found.st_mtim.tv_sec > 1000);
    CHECK(polymux_truncate(volume, "/file", 7) == 0 && polymux_stat(volume, "/file", &found, 0) == 0);
    CHECK(found.st_size == 7);
    FAILS(polymux_truncate(volume, "/", 7), EISDIR);
    FAILS(polymux_truncate(volume, "/file", -1), EINVAL);
    CHECK(polymux_access(volume, "/file", R_OK) == 0);
    FAILS(polymux_access(volume, "/none", F_OK), ENOENT);
    FAILS(polymux_access(volume, "/file", 8), EINVAL);
    int file = polymux_open(volume, "/file", O_RDWR, 0);
    CHECK(polymux_fchmod(volume, file, 0600) == 0 && polymux_futimens(volume, file, NULL) == 0);
    CHECK(polymux_fchown(volume, file, geteuid(), (gid_t)-1) == 0 && polymux_fstat(volume, file, &found) == 0);
    CHECK((found.st_mode & 07777) == 0600 && found.st_atim.tv_sec > 1000);
    CHECK(polymux_close(volume, file) == 0);
    CHECK(polymux_statvfs(volume, &space) == 0 && space.f_blocks >= space.f_bfree && space.f_namemax == 255);
    FAILS(polymux_stat(volume, "/file", &found, 12345), EINVAL);
    FAILS(polymux_stat(volume, "/file", NULL, 0), EFAULT);
    CHECK(polymux_syncfs(volume) == 0);
}

static void names(void)
{
    char target[8];
    struct stat found;
    CHECK(polymux_mkdir(volume, "/directory", 0755) == 0 && polymux_mkdir(volume, "/directory/inner", 0755) == 0);
    FAILS(polymux_rmdir(volume, "/directory"), ENOTEMPTY);
    FAILS(polymux_rmdir(volume, "/"), EBUSY);
    FAILS(polymux_rmdir(volume, "/directory/."), EINVAL);
    CHECK(polymux_rmdir(volume, "/directory/inner/") == 0);
    CHECK(polymux_symlink(volume, "../file", "/directory/link") == 0);
    CHECK(polymux_readlink(volume, "/directory/link", target, sizeof target) == 7 && memcmp(target, "../file", 7) == 0);
    CHECK(polymux_readlink(volume, "/directory/link", target, 2) == 2);
    FAILS(polymux_readlink(volume, "/directory/link", target, 0), EINVAL);
    CHECK(polymux_stat(volume, "/directory/link", &found, 0) == 0 && S_ISREG(found.st_mode));
    CHECK(polymux_stat(volume, "/directory/link", &found, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(found.st_mode));
    FAILS(polymux_open(volume, "/directory/link", O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0), ENOTDIR);
    FAILS(polymux_open(volume, "/directory/link", O_RDONLY | O_NOFOLLOW, 0), ELOOP);
    CHECK(polymux_link(volume, "/file", "/directory/second") == 0);
    FAILS(polymux_rename(volume, "/copy", "/file", RENAME_NOREPLACE), EEXIST);
    CHECK(polymux_rename(volume, "/copy", "/file", RENAME_EXCHANGE) == 0);
    CHECK(polymux_rename(volume, "/copy", "/file", 0) == 0);
    FAILS(polymux_rename(volume, "/copy", "/file", 1 << 20), EINVAL);
    CHECK(polymux_mknod(volume, "/pipe", S_IFIFO | 0600, 0) == 0);
    FAILS(polymux_open(volume, "/pipe", O_RDONLY, 0), ENXIO);
    CHECK(polymux_unlink(volume, "/pipe") == 0);
    FAILS(polymux_unlink(volume, "/directory"), EISDIR);
}

static void directories(void)
{
    struct polymux_dirent entry;
    off_t behind_first = 0;
    int seen = 0, directory = polymux_open(volume, "/directory", O_RDONLY | O_DIRECTORY, 0);
    CHECK(directory >= 0);
    while (polymux_readdir(volume, directory, &entry) == 1) {
        int is_link = strcmp(entry.name, "link") == 0;
        CHECK(is_link || strcmp(entry.name, "second") == 0);
        CHECK(entry.type == (is_link ? DT_LNK : DT_REG) && entry.ino != 0);
        if (seen++ == 0)
            behind_first = entry.position;
    }
    CHECK(seen == 2 && polymux_readdir(volume, directory, &entry) == 0);
    CHECK(polymux_seekdir(volume, directory, behind_first) == 0 && polymux_readdir(volume, directory, &entry) == 1);
    CHECK(polymux_readdir(volume, directory, &entry) == 0);
    CHECK(polymux_seekdir(volume, directory, 0) == 0 && polymux_readdir(volume, directory, &entry) == 1);
    FAILS(polymux_seekdir(volume, directory, -1), EINVAL);
    CHECK(polymux_fsync(volume, directory) == 0);
    FAILS(polymux_read(volume, directory, &entry, 1), EISDIR);
    CHECK(polymux_close(volume, directory) == 0);
    directory = polymux_open(volume, "/file", O_RDONLY, 0);
    FAILS(polymux_readdir(volume, directory, &entry), ENOTDIR);
    CHECK(polymux_close(volume, directory) == 0);
}

static void extended_attributes(void)
{
    char value[16];
    CHECK(polymux_setxattr(volume, "/file", "user.kind", "log", 3, XATTR_CREATE, 0) == 0);
    FAILS(polymux_setxattr(volume, "/file", "user.kind", "log", 3, XATTR_CREATE, 0), EEXIST);
    CHECK(polymux_getxattr(volume, "/file", "user.kind", NULL, 0, 0) == 3);
    CHECK(polymux_getxattr(volume, "/file", "user.kind", value, sizeof value, 0) == 3 && memcmp(value, "log", 3) == 0);
    FAILS(polymux_getxattr(volume, "/file", "user.kind", value, 2, 0), ERANGE);
    CHECK(polymux_listxattr(volume, "/file", value, sizeof value, 0) == 10 && strcmp(value, "user.kind") == 0);
    CHECK(polymux_removexattr(volume, "/file", "user.kind", 0) == 0);
    FAILS(polymux_getxattr(volume, "/file", "user.kind", value, sizeof value, 0), ENODATA);
}

static void *append(void *argument)
{
    char line[64];
    memset(line, *(char *)argument, sizeof line);
    int file = polymux_open(volume, "/log", O_WRONLY | O_CREAT | O_APPEND, 0644);
    CHECK(file >= 0);
    for (int count = 0; count < 500; count++)
        CHECK(polymux_write(volume, file, line, sizeof line) == sizeof line);
    CHECK(polymux_close(volume, file) == 0);
    return NULL;
}

static void threads(void)
{
    pthread_t appenders[4];
    char bytes[4] = { 'a', 'b', 'c', 'd' }, line[64];
    for (int number = 0; number < 4; number++)
        CHECK(pthread_create(&appenders[number], NULL, append, &bytes[number]) == 0);
    for (int number = 0; number < 4; number++)
        CHECK(pthread_join(appenders[number], NULL) == 0);
    int file = polymux_open(volume, "/log", O_RDONLY, 0), lines = 0;
    while (polymux_read(volume, file, line, sizeof line) == sizeof line) {
        for (size_t byte = 1; byte < sizeof line; byte++)
            CHECK(line[byte] == line[0]);
        lines++;
    }
    CHECK(lines == 2000 && polymux_close(volume, file) == 0);
}

/* A child has none of the threads and must not write beside its parent. */
static void children(void)
{
    int status, file = polymux_open(volume, "/file", O_RDWR, 0);
    pid_t child = fork();
    if (child == 0) {
        char byte;
        int is_refused = polymux_pread(volume, file, &byte, 1, 0) == -1 && errno == ENOTCONN &&
                         polymux_mkdir(volume, "/child", 0755) == -1 && errno == ENOTCONN &&
                         polymux_close(volume, file) == -1 && errno == ENOTCONN &&
                         polymux_close_volume((polymux_volume *)volume) == 0;
        _exit(is_refused ? 0 : 1);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(polymux_write(volume, file, "x", 1) == 1 && polymux_close(volume, file) == 0);
}

static polymux_volume *closed_at_exit;

static void close_at_exit(void)
{
    if (polymux_close_volume(closed_at_exit) != 0 || *polymux_error_message())
        _exit(3);
}

int main(int count, char **arguments)
{
    polymux_volume *opened = NULL, *other = NULL;
    CHECK(count == 2 && strlen(polymux_version()) > 0);
    FAILS(polymux_open_volume("none", 0, &opened), ENOENT);
    CHECK(opened == NULL && strstr(polymux_error_message(), "none.toml"));
    FAILS(polymux_open_volume(arguments[1], 1 << 20, &opened), EINVAL);
    FAILS(polymux_open_volume(NULL, 0, &opened), EINVAL);
    CHECK(polymux_open_volume(arguments[1], 0, &opened) == 0 && *polymux_error_message() == 0);
    FAILS(polymux_open_volume(arguments[1], 0, &other), EBUSY);
    CHECK(strstr(polymux_error_message(), "in use") && !strchr(polymux_error_message(), '\n'));
    volume = opened;
    FAILS(polymux_open(NULL, "/file", O_RDONLY, 0), EINVAL);
    files();
    attributes();
    names();
    directories();
    extended_attributes();
    threads();
    children();
    CHECK(polymux_open(volume, "/file", O_RDONLY, 0) == 0);
    CHECK(polymux_close_volume(opened) == 0 && polymux_close_volume(NULL) == 0);
    CHECK(polymux_open_volume(arguments[1], POLYMUX_READ_ONLY | POLYMUX_NO_MOVES, &opened) == 0);
    volume = opened;
    FAILS(polymux_unlink(volume, "/file"), EROFS);
    CHECK(polymux_close_volume(opened) == 0);
    CHECK(polymux_open_volume(arguments[1], 0, &closed_at_exit) == 0 && atexit(close_at_exit) == 0);
    return 0;
}
