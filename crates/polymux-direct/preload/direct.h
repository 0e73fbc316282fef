/* What the preloaded library and the library that it loads for files of a volume call in one another. Both come from one build. */

#ifndef POLYMUX_DIRECT_H
#define POLYMUX_DIRECT_H

#include <stddef.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/types.h>

#define POLYMUX_DIRECT_VERSION 2

/* The command of an inquiry, and its answers: polymux_lease::command in C. */
#define POLYMUX_REQUEST _IOC(_IOC_READ | _IOC_WRITE, 0xd7, 1, POLYMUX_REQUEST_BYTES)
#define POLYMUX_REQUEST_BYTES 64
#define POLYMUX_REQUEST_VERSION 2
#define POLYMUX_INQUIRY 2
#define POLYMUX_NOT_WANTED 22
#define POLYMUX_WANTED 23
#define POLYMUX_OFF 1
#define POLYMUX_COLLECTS_WRITES 13
#define POLYMUX_OLD_KERNEL 19

/* Answers of `read` and `write` instead of a number of bytes, and of `watch` and `ask`. */
enum {
	/* There is a lease: `read` and `write` may serve the number from now on. */
	POLYMUX_LEASED = 0,
	/* The kernel has to answer this time. */
	POLYMUX_KERNEL = -1,
	/* There is no lease: the kernel has to answer, until `ask` says otherwise. */
	POLYMUX_NO_LEASE = -2,
	/* The kernel has to answer as long as the number names this open file. */
	POLYMUX_FOREIGN = -3,
	/* This and an error number less: the call ended with that error. */
	POLYMUX_ERROR = -1000,
};

/* Offered by the preloaded library. */
struct polymux_preload {
	/* Moves descriptors to numbers that are not in the way of the program, and changes the numbers; returns 0, or -1 and leaves all as they are. They are not the program's from then on. */
	int (*place)(int *numbers, int count);
	/* Closes one of those; if it names something else by now, forgets it only. */
	void (*close_placed)(int number);
	/* Closes all of them. */
	void (*close_all_placed)(void);
	/* Reads of a number without a lease since the last call. */
	uint32_t (*take_reads)(int number);
	/* Writes. */
	uint32_t (*take_writes)(int number);
	/* Whether calls of a number without a lease are to be made by `read_past_pages` and `write_past_pages` from now on. */
	void (*avoid_pages)(int number, int on);
	/* Whether the process may have locks on the file of a number, which the end of any descriptor of the file would end. */
	int (*may_have_locks)(int number);
	/* Whether a descriptor that was opened since then may be moved, which ends the one that it was opened as. The process takes no locks until `end_moving` then. */
	int (*begin_moving)(void);
	void (*end_moving)(void);
	/* POLYMUX_REPORT when the process began; empty where no report is wanted. */
	const char *report;
};

/* Offered by the loaded library, as the symbol `polymux_direct`. No function throws or is entered again in one thread. Calls through the kernel wait as they do without the library, and so may `forget` for the end
 * of a description; `ask` waits for a quarter of a second, and `prepare_for_locks` for calls under way. */
struct polymux_direct {
	uint32_t version;
	uint32_t size;
	/* Before anything else, once. */
	void (*start)(const struct polymux_preload *);
	/* The number names a file that may be on a volume. */
	int (*watch)(int number);
	/* Calls for it have become slow: asks for a lease, if it is time for that. */
	int (*ask)(int number);
	/* Threads in different lanes do not slow one another down. */
	ssize_t (*read)(int number, unsigned int lane, void *buffer, size_t length, off_t offset);
	/* As pwrite(2), with signals blocked where that must not be interrupted. */
	ssize_t (*write)(int number, unsigned int lane, const void *data, size_t length, off_t offset);
	/* The same for want of a lease: through the kernel, past the page cache. */
	ssize_t (*read_past_pages)(int number, void *buffer, size_t length, off_t offset);
	ssize_t (*write_past_pages)(int number, const void *data, size_t length, off_t offset);
	/* The number is about to be closed, or to name another file. Returns -1 where that is none of its business: this process shares the memory of another one. */
	int (*forget)(int number);
	/* Gives all leases back. Their descriptors are closed when the reads end that go on by them. */
	void (*give_back_all)(void);
	/* The process is about to take the first lock of its own on a file: what would end it is closed. */
	void (*prepare_for_locks)(void);
};

#endif
