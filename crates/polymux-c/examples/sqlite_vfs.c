/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * SQLite on a volume without a mount: a VFS over libpolymux, as an extension that the shell and every program with SQLite can load.
 *
 *   cc -shared -fPIC sqlite_vfs.c $(pkg-config --cflags --libs polymux) -o polymux_vfs.so
 *   POLYMUX_VOLUME=media sqlite3 -cmd '.load ./polymux_vfs' -cmd '.open file:/app.db?vfs=polymux'
 *
 * The volume is opened when the extension is loaded and closed when the process ends; where databases are still open then, it is only synced, and
 * is as after a crash, which loses nothing that SQLite was told is durable. It belongs to this process alone, so that locks between
 * connections, and the index of the write-ahead log that they share, are kept in memory: the index is made anew from the log when the
 * database is opened next, which is what SQLite does after a crash.
 *
 * What is true here: `files` and everything that hangs on it is used under `guard`. A connection's lock level is in its own structure, and
 * the counts of a file are the sums over its connections.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <polymux.h>
#include <pthread.h>
#include <sqlite3ext.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
SQLITE_EXTENSION_INIT1

#define SLOTS SQLITE_SHM_NLOCK

/* What the connections to one file share. */
struct shared_file {
    struct shared_file *next;
    ino_t ino;
    int users;
    int readers;           /* connections at SHARED or above */
    const void *reserved;  /* the one at RESERVED or above */
    const void *pending;   /* the one that waits for readers to leave, or that is EXCLUSIVE */
    int regions;           /* of the index of the write-ahead log */
    int region_bytes;
    char **region;
    int index_users;
    int slot_readers[SLOTS];
    const void *slot_writer[SLOTS];
};

struct connection {
    sqlite3_file base;
    int descriptor;
    int level;             /* SQLITE_LOCK_NONE to SQLITE_LOCK_EXCLUSIVE */
    int uses_index;
    unsigned slots_shared; /* slots of the index, one bit each */
    int syncs_directory;   /* it was made just now: its name has to be durable with its first sync */
    char *path;
    char *removed_at_end;
    struct shared_file *shared;
};

static polymux_volume *volume;
static pid_t owner;
static sqlite3_vfs *system_vfs;
static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static struct shared_file *files;

/* The entry of a file, made where there is none. Null: no memory. */
static struct shared_file *share(ino_t ino)
{
    struct shared_file *found;
    pthread_mutex_lock(&guard);
    for (found = files; found && found->ino != ino; found = found->next)
        ;
    if (!found && (found = calloc(1, sizeof *found))) {
        found->ino = ino;
        found->next = files;
        files = found;
    }
    if (found)
        found->users++;
    pthread_mutex_unlock(&guard);
    return found;
}

static void drop_regions(struct shared_file *file)
{
    for (int number = 0; number < file->regions; number++)
        free(file->region[number]);
    free(file->region);
    file->region = NULL;
    file->regions = 0;
}

static void drop_share(struct shared_file *file)
{
    struct shared_file **place;
    pthread_mutex_lock(&guard);
    if (--file->users == 0) {
        for (place = &files; *place != file; place = &(*place)->next)
            ;
        *place = file->next;
        drop_regions(file);
        free(file);
    }
    pthread_mutex_unlock(&guard);
}

static int failure(int otherwise)
{
    return errno == ENOSPC || errno == EDQUOT ? SQLITE_FULL : otherwise;
}

static int sync_directory(const char *path)
{
    char directory[4096];
    const char *slash = strrchr(path, '/');
    size_t length = slash && slash != path ? (size_t)(slash - path) : 1;
    memcpy(directory, path, length);
    directory[length] = 0;
    int descriptor = polymux_open(volume, directory, O_RDONLY | O_DIRECTORY, 0);
    if (descriptor < 0)
        return SQLITE_IOERR_DIR_FSYNC;
    int failed = polymux_fsync(volume, descriptor);
    polymux_close(volume, descriptor);
    return failed ? SQLITE_IOERR_DIR_FSYNC : SQLITE_OK;
}

static int read_at(sqlite3_file *base, void *data, int length, sqlite3_int64 offset)
{
    struct connection *self = (struct connection *)base;
    ssize_t count = polymux_pread(volume, self->descriptor, data, (size_t)length, offset);
    if (count < 0)
        return SQLITE_IOERR_READ;
    if (count == length)
        return SQLITE_OK;
    memset((char *)data + count, 0, (size_t)(length - count));
    return SQLITE_IOERR_SHORT_READ;
}

static int write_at(sqlite3_file *base, const void *data, int length, sqlite3_int64 offset)
{
    struct connection *self = (struct connection *)base;
    const char *rest = data;
    while (length > 0) {
        ssize_t count = polymux_pwrite(volume, self->descriptor, rest, (size_t)length, offset);
        if (count <= 0)
            return count < 0 ? failure(SQLITE_IOERR_WRITE) : SQLITE_FULL;
        rest += count;
        offset += count;
        length -= (int)count;
    }
    return SQLITE_OK;
}

static int truncate_to(sqlite3_file *base, sqlite3_int64 size)
{
    return polymux_ftruncate(volume, ((struct connection *)base)->descriptor, size) ? SQLITE_IOERR_TRUNCATE : SQLITE_OK;
}

static int sync_file(sqlite3_file *base, int flags)
{
    struct connection *self = (struct connection *)base;
    int failed = flags & SQLITE_SYNC_DATAONLY ? polymux_fdatasync(volume, self->descriptor)
                                              : polymux_fsync(volume, self->descriptor);
    if (failed)
        return SQLITE_IOERR_FSYNC;
    if (self->syncs_directory) {
        int result = sync_directory(self->path);
        if (result != SQLITE_OK)
            return result;
        self->syncs_directory = 0;
    }
    return SQLITE_OK;
}

static int file_size(sqlite3_file *base, sqlite3_int64 *size)
{
    struct stat found;
    if (polymux_fstat(volume, ((struct connection *)base)->descriptor, &found))
        return SQLITE_IOERR_FSTAT;
    *size = found.st_size;
    return SQLITE_OK;
}

/* One step up. The caller has `guard`. */
static int raise_level(struct connection *self, int level)
{
    struct shared_file *file = self->shared;
    if (level == SQLITE_LOCK_SHARED) {
        if (file->pending)
            return SQLITE_BUSY;
        file->readers++;
    } else if (level == SQLITE_LOCK_RESERVED) {
        if (file->reserved)
            return SQLITE_BUSY;
        file->reserved = self;
    } else {
        if ((file->reserved && file->reserved != self) || (file->pending && file->pending != self))
            return SQLITE_BUSY;
        file->reserved = file->pending = self;
        self->level = SQLITE_LOCK_PENDING;
        if (file->readers > 1)
            return SQLITE_BUSY;
    }
    self->level = level;
    return SQLITE_OK;
}

static int lock(sqlite3_file *base, int level)
{
    struct connection *self = (struct connection *)base;
    int result = SQLITE_OK;
    pthread_mutex_lock(&guard);
    if (self->level < level)
        result = raise_level(self, level);
    pthread_mutex_unlock(&guard);
    return result;
}

static int unlock(sqlite3_file *base, int level)
{
    struct connection *self = (struct connection *)base;
    struct shared_file *file = self->shared;
    pthread_mutex_lock(&guard);
    if (self->level > level) {
        if (file->reserved == self)
            file->reserved = NULL;
        if (file->pending == self)
            file->pending = NULL;
        if (level == SQLITE_LOCK_NONE && self->level >= SQLITE_LOCK_SHARED)
            file->readers--;
        self->level = level;
    }
    pthread_mutex_unlock(&guard);
    return SQLITE_OK;
}

static int check_reserved(sqlite3_file *base, int *is_reserved)
{
    pthread_mutex_lock(&guard);
    *is_reserved = ((struct connection *)base)->shared->reserved != NULL;
    pthread_mutex_unlock(&guard);
    return SQLITE_OK;
}

static int control(sqlite3_file *base, int operation, void *argument)
{
    (void)base, (void)operation, (void)argument;
    return SQLITE_NOTFOUND;
}

static int sector_size(sqlite3_file *base)
{
    (void)base;
    return 4096;
}

static int characteristics(sqlite3_file *base)
{
    (void)base;
    return SQLITE_IOCAP_POWERSAFE_OVERWRITE;
}

/* Makes the index as long as wanted. The caller has `guard`. */
static int grow_index(struct shared_file *file, int regions, int bytes)
{
    char **longer = realloc(file->region, (size_t)regions * sizeof *longer);
    if (!longer)
        return SQLITE_NOMEM;
    file->region = longer;
    file->region_bytes = bytes;
    while (file->regions < regions) {
        if (!(file->region[file->regions] = calloc(1, (size_t)bytes)))
            return SQLITE_NOMEM;
        file->regions++;
    }
    return SQLITE_OK;
}

static int map_index(sqlite3_file *base, int region, int bytes, int extends, void volatile **memory)
{
    struct connection *self = (struct connection *)base;
    struct shared_file *file = self->shared;
    int result = SQLITE_OK;
    pthread_mutex_lock(&guard);
    if (!self->uses_index)
        file->index_users++;
    self->uses_index = 1;
    if (region >= file->regions && extends)
        result = grow_index(file, region + 1, bytes);
    *memory = result == SQLITE_OK && region < file->regions ? file->region[region] : NULL;
    pthread_mutex_unlock(&guard);
    return result;
}

/* Releases or takes one slot. The caller has `guard` and has found that it can be taken. */
static void change_slot(struct connection *self, int slot, int flags)
{
    struct shared_file *file = self->shared;
    unsigned bit = 1u << slot;
    if (flags & SQLITE_SHM_UNLOCK) {
        if (file->slot_writer[slot] == self)
            file->slot_writer[slot] = NULL;
        else if (self->slots_shared & bit)
            file->slot_readers[slot]--;
        self->slots_shared &= ~bit;
    } else if (flags & SQLITE_SHM_SHARED) {
        if (!(self->slots_shared & bit))
            file->slot_readers[slot]++;
        self->slots_shared |= bit;
    } else {
        file->slot_writer[slot] = self;
    }
}

static int can_take_slot(const struct connection *self, int slot, int flags)
{
    const struct shared_file *file = self->shared;
    int own = self->slots_shared & (1u << slot) ? 1 : 0;
    if (file->slot_writer[slot] && file->slot_writer[slot] != self)
        return 0;
    return flags & SQLITE_SHM_SHARED || file->slot_readers[slot] == own;
}

static int lock_index(sqlite3_file *base, int first, int count, int flags)
{
    struct connection *self = (struct connection *)base;
    int result = SQLITE_OK;
    pthread_mutex_lock(&guard);
    for (int slot = first; slot < first + count && flags & SQLITE_SHM_LOCK; slot++)
        if (!can_take_slot(self, slot, flags))
            result = SQLITE_BUSY;
    for (int slot = first; slot < first + count && result == SQLITE_OK; slot++)
        change_slot(self, slot, flags);
    pthread_mutex_unlock(&guard);
    return result;
}

static void index_barrier(sqlite3_file *base)
{
    (void)base;
    __sync_synchronize();
}

static int unmap_index(sqlite3_file *base, int removes)
{
    struct connection *self = (struct connection *)base;
    pthread_mutex_lock(&guard);
    for (int slot = 0; slot < SLOTS; slot++)
        change_slot(self, slot, SQLITE_SHM_UNLOCK);
    if (self->uses_index && --self->shared->index_users == 0 && removes)
        drop_regions(self->shared);
    self->uses_index = 0;
    pthread_mutex_unlock(&guard);
    return SQLITE_OK;
}

static int close_file(sqlite3_file *base)
{
    struct connection *self = (struct connection *)base;
    if (self->uses_index)
        unmap_index(base, 0);
    unlock(base, SQLITE_LOCK_NONE);
    drop_share(self->shared);
    int failed = polymux_close(volume, self->descriptor);
    if (self->removed_at_end)
        polymux_unlink(volume, self->removed_at_end);
    free(self->removed_at_end);
    free(self->path);
    return failed ? SQLITE_IOERR_CLOSE : SQLITE_OK;
}

static const sqlite3_io_methods methods = {
    2, close_file, read_at, write_at, truncate_to, sync_file, file_size, lock, unlock, check_reserved, control, sector_size,
    characteristics, map_index, lock_index, index_barrier, unmap_index, NULL, NULL,
};

static int open_flags(int wanted)
{
    int flags = wanted & SQLITE_OPEN_READWRITE ? O_RDWR : O_RDONLY;
    if (wanted & SQLITE_OPEN_CREATE)
        flags |= O_CREAT;
    if (wanted & SQLITE_OPEN_EXCLUSIVE)
        flags |= O_EXCL;
    return flags;
}

/* A journal has the mode of its database, so that it shows no one more than the database does. */
static mode_t mode_of_new_file(const char *path, int wanted)
{
    char database[4096];
    const char *suffix = strrchr(path, '-');
    struct stat found;
    if (wanted & SQLITE_OPEN_DELETEONCLOSE)
        return 0600;
    if (wanted & (SQLITE_OPEN_WAL | SQLITE_OPEN_MAIN_JOURNAL) && suffix && suffix - path < (long)sizeof database) {
        memcpy(database, path, (size_t)(suffix - path));
        database[suffix - path] = 0;
        if (polymux_stat(volume, database, &found, 0) == 0)
            return found.st_mode & 0777;
    }
    return 0644;
}

static int open_file(sqlite3_vfs *vfs, const char *path, sqlite3_file *base, int wanted, int *opened)
{
    struct connection *self = (struct connection *)base;
    struct stat found;
    (void)vfs;
    memset(self, 0, sizeof *self);
    if (!path) {
        self->descriptor = polymux_open(volume, "/", O_RDWR | O_TMPFILE, 0600);
    } else {
        self->descriptor = polymux_open(volume, path, open_flags(wanted), mode_of_new_file(path, wanted));
        if (self->descriptor < 0 && (errno == EACCES || errno == EROFS) && wanted & SQLITE_OPEN_READWRITE) {
            wanted = (wanted & ~(SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE)) | SQLITE_OPEN_READONLY;
            self->descriptor = polymux_open(volume, path, O_RDONLY, 0);
        }
    }
    if (self->descriptor < 0)
        return SQLITE_CANTOPEN;
    self->syncs_directory = path && wanted & SQLITE_OPEN_CREATE;
    self->path = path ? strdup(path) : NULL;
    self->removed_at_end = path && wanted & SQLITE_OPEN_DELETEONCLOSE ? strdup(path) : NULL;
    self->shared = polymux_fstat(volume, self->descriptor, &found) == 0 ? share(found.st_ino) : NULL;
    if (!self->shared || (path && !self->path)) {
        if (self->shared)
            drop_share(self->shared);
        polymux_close(volume, self->descriptor);
        free(self->path);
        free(self->removed_at_end);
        return SQLITE_NOMEM;
    }
    if (opened)
        *opened = wanted;
    self->base.pMethods = &methods;
    return SQLITE_OK;
}

static int remove_file(sqlite3_vfs *vfs, const char *path, int syncs)
{
    (void)vfs;
    if (polymux_unlink(volume, path))
        return errno == ENOENT ? SQLITE_IOERR_DELETE_NOENT : SQLITE_IOERR_DELETE;
    return syncs ? sync_directory(path) : SQLITE_OK;
}

/*
 * Whether there is a file with bytes: an empty journal is none. A tier that does not answer must not make a journal look empty, so the
 * size of such a file is asked of an open one.
 */
static int exists(const char *path, int *is_there)
{
    struct stat found;
    *is_there = 0;
    if (polymux_stat(volume, path, &found, 0))
        return errno == ENOENT || errno == ENOTDIR ? SQLITE_OK : SQLITE_IOERR_ACCESS;
    if (S_ISREG(found.st_mode) && found.st_size == 0) {
        int descriptor = polymux_open(volume, path, O_RDONLY, 0);
        if (descriptor < 0)
            return errno == ENOENT ? SQLITE_OK : SQLITE_IOERR_ACCESS;
        int failed = polymux_fstat(volume, descriptor, &found);
        polymux_close(volume, descriptor);
        if (failed)
            return SQLITE_IOERR_ACCESS;
    }
    *is_there = !S_ISREG(found.st_mode) || found.st_size > 0;
    return SQLITE_OK;
}

static int check_access(sqlite3_vfs *vfs, const char *path, int wanted, int *is_allowed)
{
    (void)vfs;
    if (wanted == SQLITE_ACCESS_EXISTS)
        return exists(path, is_allowed);
    *is_allowed = polymux_access(volume, path, R_OK | W_OK) == 0;
    return SQLITE_OK;
}

/* Follows a link at the end of a path, so that a database has one journal by whichever name it is opened. 1: it was one; -1: too long. */
static int follow_link(char *path, int length)
{
    char target[4096], *slash;
    ssize_t bytes = polymux_readlink(volume, path, target, sizeof target - 1);
    if (bytes < 0)
        return 0;
    target[bytes] = 0;
    slash = strrchr(path, '/');
    if (*target == '/')
        slash = path;
    else
        slash++;
    if (slash - path + bytes >= length)
        return -1;
    memcpy(slash, target, (size_t)bytes + 1);
    return 1;
}

static int full_path(sqlite3_vfs *vfs, const char *path, int length, char *full)
{
    int links = 0, followed;
    (void)vfs;
    if (snprintf(full, (size_t)length, "%s%s", *path == '/' ? "" : "/", path) >= length)
        return SQLITE_CANTOPEN;
    while ((followed = follow_link(full, length)) == 1)
        if (++links > 40)
            return SQLITE_CANTOPEN;
    return followed < 0 ? SQLITE_CANTOPEN : links ? SQLITE_OK_SYMLINK : SQLITE_OK;
}

static void *load_library(sqlite3_vfs *vfs, const char *path)
{
    (void)vfs;
    return system_vfs->xDlOpen(system_vfs, path);
}

static void library_error(sqlite3_vfs *vfs, int length, char *text)
{
    (void)vfs;
    system_vfs->xDlError(system_vfs, length, text);
}

static void (*library_symbol(sqlite3_vfs *vfs, void *library, const char *name))(void)
{
    (void)vfs;
    return system_vfs->xDlSym(system_vfs, library, name);
}

static void close_library(sqlite3_vfs *vfs, void *library)
{
    (void)vfs;
    system_vfs->xDlClose(system_vfs, library);
}

static int randomness(sqlite3_vfs *vfs, int length, char *data)
{
    (void)vfs;
    return system_vfs->xRandomness(system_vfs, length, data);
}

static int pause_for(sqlite3_vfs *vfs, int microseconds)
{
    (void)vfs;
    return system_vfs->xSleep(system_vfs, microseconds);
}

static int current_time(sqlite3_vfs *vfs, double *now)
{
    (void)vfs;
    return system_vfs->xCurrentTime(system_vfs, now);
}

static int last_error(sqlite3_vfs *vfs, int length, char *text)
{
    (void)vfs, (void)length, (void)text;
    return errno;
}

static sqlite3_vfs polymux_vfs = {
    .iVersion = 1,
    .szOsFile = sizeof(struct connection),
    .mxPathname = 1024,
    .zName = "polymux",
    .xOpen = open_file,
    .xDelete = remove_file,
    .xAccess = check_access,
    .xFullPathname = full_path,
    .xDlOpen = load_library,
    .xDlError = library_error,
    .xDlSym = library_symbol,
    .xDlClose = close_library,
    .xRandomness = randomness,
    .xSleep = pause_for,
    .xCurrentTime = current_time,
    .xGetLastError = last_error,
};

static void close_volume(void)
{
    polymux_volume *closed = volume;
    int failed;
    if (getpid() != owner)
        return;
    pthread_mutex_lock(&guard);
    if (files) {
        failed = polymux_syncfs(closed);
    } else {
        /* Whatever is opened by a later function of atexit(3) fails. */
        volume = NULL;
        failed = polymux_close_volume(closed);
    }
    pthread_mutex_unlock(&guard);
    if (failed)
        fprintf(stderr, "the volume did not end cleanly: %s\n", strerror(errno));
}

/* Opens the volume once for the process. */
static int open_volume(char **message)
{
    const char *name = getenv("POLYMUX_VOLUME");
    if (volume)
        return SQLITE_OK;
    if (!name) {
        *message = sqlite3_mprintf("POLYMUX_VOLUME names no volume");
        return SQLITE_ERROR;
    }
    system_vfs = sqlite3_vfs_find(NULL);
    owner = getpid();
    if (polymux_open_volume(name, 0, &volume)) {
        *message = sqlite3_mprintf("%s", polymux_error_message());
        return SQLITE_CANTOPEN;
    }
    atexit(close_volume);
    return sqlite3_vfs_register(&polymux_vfs, 0);
}

int sqlite3_extension_init(sqlite3 *database, char **message, const sqlite3_api_routines *api)
{
    int result;
    (void)database;
    SQLITE_EXTENSION_INIT2(api);
    pthread_mutex_lock(&guard);
    result = open_volume(message);
    pthread_mutex_unlock(&guard);
    return result == SQLITE_OK ? SQLITE_OK_LOAD_PERMANENTLY : result;
}
