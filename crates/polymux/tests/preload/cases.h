/*
 * Small programs that read files in ways of their own. Each runs in a directory with the same files on a native file system, and on a volume under the preloaded library; what it prints and
 * its exit status must be the same.
 *
 * The directory has: `table` and `other`, 8 MiB each of different bytes; `sparse`, 4 MiB with a hole from 1 to 3 MiB; `small`, 1000 bytes; `empty`. The first three are closed files on two tiers, which
 * get leases. A case may change files, and make others.
 */

#ifndef CASES_H
#define CASES_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1L << 20)
#define TABLE_SIZE (8 * MIB)

struct test_case {
	const char *name;
	/* Whether it must be served past the mount, at least in part. */
	bool is_direct;
	void (*run)(void);
};

/* Prints one line, with errno after it where `count` is negative. */
void say(const char *what, long count);
/* Ends the program with a message unless a condition holds: something that has nothing to do with the file system went wrong. */
void require(bool condition, const char *what);
/* Opens a file of the directory to be read. */
int open_read(const char *name);
/* Opens one to be read and written. */
int open_write(const char *name);
/* Reads at some places, slowly enough that the file gets a lease if it can have one. Prints nothing. */
void warm(int number);
/* Opens a file to be read, and does so. */
int warmed(const char *name);
/* The same, and shows all of it. */
int warm_file(const char *name);
/* A sum of bytes, by which contents are compared. */
uint64_t sum_of(const void *bytes, size_t length);
/* Reads with pread(2) and prints the number of bytes, errno if it is negative, and the sum of the bytes. */
void show(const char *what, int number, size_t length, off_t offset);
/* The same at 64 places, all over the file: prints one sum. */
void show_all(const char *what, int number);
/* Waits for a child and prints how it ended. */
void wait_for(const char *what, pid_t child);

extern const struct test_case descriptor_cases[], process_cases[], content_cases[], thread_cases[], write_cases[];

#endif
