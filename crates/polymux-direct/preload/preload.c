/*
 * libpolymux_preload: for programs that know nothing of leases, pread(2) and pwrite(2) go past the mount (docs/design/0047, docs/design/0049).
 *
 * Invariants:
 *  - Descriptors are always the real ones of the kernel. Any call may be left to the kernel, and is right then, only slower.
 *  - Numbers of descriptors are guesses here: a program can close them by ways that are not seen. The loaded library looks, at each call, whether a number still names the file.
 *  - A process that uses no file of a volume pays for a table look-up in pread(), pwrite() and close(), and for the loading of this small file: it starts no thread, needs no library but
 *    the C library, and allocates nothing.
 *  - The loaded library is not entered again by a signal handler in the same thread (`enter`): what a handler does meanwhile, the kernel does. Threads are not cancelled in it.
 *  - errno stays as the kernel's call leaves it, and pread() and pwrite() stay points of cancellation. Frames of this file that a cancellation unwinds hold nothing.
 */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "direct.h"
#include "numbers.h"

#undef pread
#undef pread64
#undef pwrite
#undef pwrite64
#undef fcntl
#undef fcntl64
#undef lockf
#undef lockf64
#undef lseek
#undef lseek64
#undef __pread_chk
#undef __pread64_chk

_Static_assert(sizeof(off_t) == 8, "offsets have 64 bits");

#define EXPORT __attribute__((visibility("default")))

/* Threads have tables of descriptors of their own, or the process has rights that its caller has not: everything is left to the kernel. */
static atomic_bool is_off;

/* The functions of the C library by their other names. Looking them up with dlsym(3) would cost time at the start of each process, and take away what dlerror(3) has for it. So this
 * library comes last in LD_PRELOAD: others call it, and it calls none of them. Calls without such a name are made as the C library makes them. */
extern ssize_t __pread64(int, void *, size_t, off_t);
extern ssize_t __pwrite64(int, const void *, size_t, off_t);
extern int __fcntl(int, int, ...);
extern off_t __lseek(int, off_t, int);
extern int __close(int);
extern int __dup2(int, int);
extern int _IO_fclose(FILE *);
extern _Noreturn void __chk_fail(void);

/* What a process was at its beginning. Every call of another library here would be a part of the time that all programs need to start; so would a page that nothing else touches. */

struct root {
	uint64_t inode;
	uint64_t mount;
	uint32_t device_major, device_minor;
};

static struct root root_at_beginning __attribute__((section(".data"))) = { 0, 0, 0, 0 };

/* POLYMUX_REPORT, if a report is wanted. The program may change its environment, and write over the place where it was. */
static char report[4096];

static inline long statx_of_root(struct statx *facts)
{
	long mask = STATX_INO | STATX_MNT_ID;
#if defined(__x86_64__)
	long result;
	register long flags __asm__("r10") = mask;
	register struct statx *place __asm__("r8") = facts;
	__asm__ volatile("syscall" : "=a"(result) : "a"(SYS_statx), "D"(AT_FDCWD), "S"("/"), "d"(0), "r"(flags), "r"(place) : "rcx", "r11", "memory");
	return result;
#else
	return syscall(SYS_statx, AT_FDCWD, "/", 0, mask, facts);
#endif
}

/* With an inode number of 0 where it is not known. */
static struct root root_of_process(void)
{
	struct statx facts;
	struct root root = { 0, 0, 0, 0 };
	if (statx_of_root(&facts) == 0)
		root = (struct root){ facts.stx_ino, facts.stx_mnt_id, facts.stx_dev_major, facts.stx_dev_minor };
	return root;
}

/* As the C library calls it. */
static __attribute__((constructor)) void begin(int count, char **arguments, char **environment)
{
	static const char name[] = "POLYMUX_REPORT=";
	(void)count;
	(void)arguments;
	root_at_beginning = root_of_process();
	for (char **one = environment; *one != NULL; one++) {
		size_t same = 0;
		while (same < sizeof(name) - 1 && (*one)[same] == name[same])
			same++;
		if (same == sizeof(name) - 1 && strlen(*one) - same < sizeof(report))
			strcpy(report, *one + same);
	}
}

/* The time in which a thread is in the loaded library. */

static __thread __attribute__((tls_model("initial-exec"))) char *entered_at;
/* How the thread was to be cancelled before it came in, where that was changed. A handler that jumps out leaves it to the next entry. */
static __thread __attribute__((tls_model("initial-exec"))) int cancel_state;
static __thread __attribute__((tls_model("initial-exec"))) bool is_cancel_changed;

struct entry {
	int error;
};

static bool is_on_signal_stack(void)
{
	stack_t stack;
	return sigaltstack(NULL, &stack) != 0 || (stack.ss_flags & SS_ONSTACK) != 0;
}

/* Whether a frame at this address interrupts one that is in the library. A frame that was left by a jump out of a signal handler is above, or was on another stack. */
static bool is_within(const char *here)
{
	if (entered_at == NULL)
		return false;
	return here < entered_at || is_on_signal_stack();
}

static void restore_cancel_state(void)
{
	if (is_cancel_changed)
		pthread_setcancelstate(cancel_state, NULL);
	is_cancel_changed = false;
}

static bool enter(struct entry *entry)
{
	entry->error = errno;
	if (is_within((const char *)entry)) {
		errno = entry->error;
		return false;
	}
	if (entered_at != NULL)
		restore_cancel_state();
	entered_at = (char *)entry;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
	is_cancel_changed = true;
	return true;
}

#define STACK_NEEDED (32 * 1024)
#define PAGE 4096

/* Whether there is so much stack as loading a library and asking for a lease take. Below the stack of a thread lies a page that cannot be read: the kernel is asked, by a call that does nothing else. */
static bool has_stack(void)
{
	const char *here = __builtin_frame_address(0);
	if (is_on_signal_stack())
		return false;
	for (long below = PAGE; below <= STACK_NEEDED; below += PAGE)
		if (syscall(SYS_rt_sigprocmask, -1, here - below, NULL, 8) != 0 && errno == EFAULT)
			return false;
	return true;
}

static void leave(const struct entry *entry)
{
	restore_cancel_state();
	entered_at = NULL;
	errno = entry->error;
}

/* For what needs more than a few hundred bytes of stack. */
static bool enter_with_stack(struct entry *entry)
{
	if (!enter(entry))
		return false;
	if (has_stack())
		return true;
	leave(entry);
	return false;
}

/* Locks of the process (F_SETLK). Closing any descriptor of a file ends all that the process has on it, so a process that uses such locks gets no further descriptors of its files. */

static atomic_bool uses_locks;
/* A descriptor is being moved to where it stays: that closes the one that it was opened as. */
static atomic_int moving_process;

static const struct timespec moment = { 0, 20000 };

static int may_have_locks(int number)
{
	/* As another owner would want it: locks of this process that it had before exec(2) are in the way, too. */
	struct flock wanted = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	return atomic_load(&uses_locks) || syscall(SYS_fcntl, number, F_OFD_GETLK, &wanted) != 0 || wanted.l_type != F_UNLCK;
}

static int begin_moving(void)
{
	atomic_store(&moving_process, (int)syscall(SYS_getpid));
	if (!atomic_load(&uses_locks))
		return 1;
	atomic_store(&moving_process, 0);
	return 0;
}

static void end_moving(void)
{
	atomic_store(&moving_process, 0);
}

/* The loaded library. */

static _Atomic(const struct polymux_direct *) loaded;
static atomic_bool is_loading;
/* Where there is no descriptor or memory left just now it is tried again. */
static atomic_int attempts_left = 4;

static uint32_t take_reads(int number);
static uint32_t take_writes(int number);
static void avoid_pages(int number, int on);

static const struct polymux_preload offered = { place, close_placed, close_all_placed, take_reads, take_writes, avoid_pages, may_have_locks, begin_moving, end_moving, report };

static const struct polymux_direct *loaded_library(void)
{
	return atomic_load_explicit(&loaded, memory_order_acquire);
}

/* From the directory of this library, which must be named from the root: the working directory is anything. */
static const struct polymux_direct *open_library(void)
{
	static const char name[] = "libpolymux_direct.so";
	/* Not on the stack, which may be short. */
	static char path[4096];
	Dl_info info;
	if (dladdr((void *)known, &info) == 0 || info.dli_fname == NULL || info.dli_fname[0] != '/')
		return NULL;
	/* A process that has another root by now finds other files by the same names. */
	struct root root = root_of_process();
	if (root.inode == 0 || memcmp(&root, &root_at_beginning, sizeof(root)) != 0)
		return NULL;
	size_t length = (size_t)(strrchr(info.dli_fname, '/') - info.dli_fname) + 1;
	if (length + sizeof(name) > sizeof(path))
		return NULL;
	memcpy(path, info.dli_fname, length);
	memcpy(path + length, name, sizeof(name));
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	const struct polymux_direct *direct = library == NULL ? NULL : dlsym(library, "polymux_direct");
	if (direct == NULL || direct->version != POLYMUX_DIRECT_VERSION || direct->size != sizeof(*direct))
		return NULL;
	direct->start(&offered);
	return direct;
}

/* Loads it, the first time. Other threads go through the kernel meanwhile. */
static const struct polymux_direct *load(void)
{
	const struct polymux_direct *direct = loaded_library();
	if (direct != NULL || atomic_load(&attempts_left) <= 0 || atomic_exchange(&is_loading, true))
		return direct;
	sigset_t all, before;
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &before);
	atomic_fetch_sub(&attempts_left, 1);
	direct = open_library();
	atomic_store_explicit(&loaded, direct, memory_order_release);
	atomic_store(&is_loading, direct != NULL);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return direct;
}

/* Before a lock is taken. A move waits for the end of a description, and is waited for. */
static void begin_to_lock(void)
{
	struct entry entry;
	const struct polymux_direct *direct = loaded_library();
	bool is_first = !atomic_exchange(&uses_locks, true);
	while (atomic_load(&moving_process) != 0 && atomic_load(&moving_process) == (int)syscall(SYS_getpid))
		syscall(SYS_nanosleep, &moment, NULL);
	if (!is_first || direct == NULL || !enter(&entry))
		return;
	direct->prepare_for_locks();
	leave(&entry);
}

/* Not every command has an argument: the C library reads one all the same. */
static int control(int number, int command, void *argument)
{
	if (command == F_SETLK || command == F_SETLKW)
		begin_to_lock();
	return __fcntl(number, command, argument);
}

EXPORT int fcntl64(int number, int command, ...)
{
	va_list arguments;
	va_start(arguments, command);
	void *argument = va_arg(arguments, void *);
	va_end(arguments);
	return control(number, command, argument);
}

EXPORT int fcntl(int number, int command, ...)
{
	va_list arguments;
	va_start(arguments, command);
	void *argument = va_arg(arguments, void *);
	va_end(arguments);
	return control(number, command, argument);
}

/* As the C library has it, which calls its own fcntl(2) in it. */
EXPORT int lockf64(int number, int command, off_t length)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_CUR, .l_len = length };
	switch (command) {
	case F_TEST:
		lock.l_type = F_RDLCK;
		if (__fcntl(number, F_GETLK, &lock) < 0)
			return -1;
		if (lock.l_type == F_UNLCK || lock.l_pid == getpid())
			return 0;
		errno = EACCES;
		return -1;
	case F_ULOCK:
		lock.l_type = F_UNLCK;
		return __fcntl(number, F_SETLK, &lock);
	case F_LOCK:
		begin_to_lock();
		return __fcntl(number, F_SETLKW, &lock);
	case F_TLOCK:
		begin_to_lock();
		return __fcntl(number, F_SETLK, &lock);
	default:
		errno = EINVAL;
		return -1;
	}
}

EXPORT int lockf(int number, int command, off_t length)
{
	return lockf64(number, command, length);
}

/* Reading and writing. */

struct call {
	int number;
	bool is_write;
	/* Where bytes are read to. */
	void *buffer;
	/* Where bytes that are written come from. */
	const void *data;
	size_t length;
	off_t offset;
};

static inline ssize_t call_kernel(const struct call *call)
{
	if (call->is_write)
		return __pwrite64(call->number, call->data, call->length, call->offset);
	return __pread64(call->number, call->buffer, call->length, call->offset);
}

/* A call to the kernel that takes longer had to wait for the daemon or a device. Bytes are copied at 4 GB a second or faster. */
#define QUICK_NS 3000
#define BYTES_OF_NS 4
/* A slow call counts as many quick ones: files of which one call in five is slow get a lease, and those that memory serves get none. */
#define SLOW 4
/* Sixteen slow calls. */
#define SLOWNESS_MAX (16 * SLOW)
/* Where calls are quick, one of so many of each thread is timed and counted: the clock costs a tenth of such a read, and so does a counter that two processors change. */
#define CALLS_OF_A_SAMPLE 16
/* The kernel reads and writes no more at once (MAX_RW_COUNT). */
#define LENGTH_MAX 0x7ffff000
#define FUSE_MAGIC 0x65735546

/* As many of the first calls are timed. */
#define FIRST_CALLS 32

static _Atomic uint8_t slowness[NUMBERS];
/* Calls that go through the kernel are to leave no page there. */
static _Atomic bool avoids_pages[NUMBERS];
static _Atomic uint8_t timed_calls[NUMBERS];
/* The daemon was asked whether programs use leases on the file. */
static _Atomic bool has_inquired[NUMBERS];
static _Atomic uint32_t reads_without_lease[NUMBERS];
static _Atomic uint32_t writes_without_lease[NUMBERS];

static uint32_t take_calls(_Atomic uint32_t *calls, int number)
{
	if (number < 0 || number >= NUMBERS)
		return 0;
	return atomic_exchange_explicit(&calls[number], 0, memory_order_relaxed);
}

static uint32_t take_reads(int number)
{
	return take_calls(reads_without_lease, number);
}

static uint32_t take_writes(int number)
{
	return take_calls(writes_without_lease, number);
}

/* Kinds of devices, as far as they are known: the question may be one to a server, so each is asked about once. */
enum kind { NO_FUSE = 1, FUSE = 2, WITHOUT_LEASES_FOR_CHANGES = 3 };

static _Atomic uint64_t kinds[16];

static enum kind known_kind(uint64_t minor)
{
	uint64_t found = atomic_load_explicit(&kinds[minor % 16], memory_order_relaxed);
	return found >> 2 == minor ? (enum kind)(found & 3) : 0;
}

static void note_kind(uint64_t minor, enum kind kind)
{
	atomic_store_explicit(&kinds[minor % 16], minor << 2 | kind, memory_order_relaxed);
}

/* The minor number of the device of a regular file, and 1; 0 for those on file systems with a device of their own, which FUSE is not. */
static uint64_t minor_of(int number)
{
	struct statx facts;
	if (syscall(SYS_statx, number, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &facts) != 0)
		return 0;
	return S_ISREG(facts.stx_mode) && facts.stx_dev_major == 0 ? (uint64_t)facts.stx_dev_minor + 1 : 0;
}

static bool is_on_fuse(int number)
{
	struct statfs system;
	uint64_t minor = minor_of(number);
	if (minor == 0)
		return false;
	if (known_kind(minor) == 0)
		note_kind(minor, fstatfs(number, &system) == 0 && system.f_type == FUSE_MAGIC ? FUSE : NO_FUSE);
	return known_kind(minor) != NO_FUSE;
}

/* Asks the daemon whether programs use leases on a file that changes: then this one does so, too, before its calls end those of the others. */
static bool is_leased_by_others(int number)
{
	uint32_t words[POLYMUX_REQUEST_BYTES / sizeof(uint32_t)] = { POLYMUX_REQUEST_VERSION, POLYMUX_INQUIRY };
	uint64_t minor = minor_of(number);
	if (minor == 0 || known_kind(minor) == WITHOUT_LEASES_FOR_CHANGES)
		return false;
	bool is_answered = syscall(SYS_ioctl, number, POLYMUX_REQUEST, words) == 0 && words[0] == POLYMUX_REQUEST_VERSION;
	if (is_answered && words[1] == POLYMUX_WANTED)
		return true;
	bool has_none = is_answered ? words[1] == POLYMUX_COLLECTS_WRITES || words[1] == POLYMUX_OLD_KERNEL || words[1] == POLYMUX_OFF : errno == ENOTTY || errno == ENOSYS;
	if (has_none)
		note_kind(minor, WITHOUT_LEASES_FOR_CHANGES);
	return false;
}

/* Files of numbers with leases, by which such a number is recognised. */
static struct identity leased[NUMBERS];

static void note_answer(int number, int answer)
{
	if (answer == POLYMUX_LEASED && identify(number, &leased[number]))
		change_known(number, WATCHED, LEASED);
	else if (answer == POLYMUX_FOREIGN)
		change_known(number, WATCHED, FOREIGN);
}

/* The first time that a number was used often. */
static void look_about(void)
{
	static atomic_bool has_looked;
	if (atomic_exchange(&has_looked, true))
		return;
	if (getauxval(AT_SECURE) != 0)
		atomic_store(&is_off, true);
}

/* A number that was used some times. */
static void begin_to_watch(int number)
{
	struct entry entry;
	if (!enter_with_stack(&entry))
		return;
	look_about();
	if (atomic_load(&is_off)) {
		leave(&entry);
		return;
	}
	bool is_fuse = is_on_fuse(number);
	change_known(number, CALLS_BEFORE, is_fuse ? WATCHED : FOREIGN);
	if (is_fuse) {
		atomic_store_explicit(&slowness[number], 0, memory_order_relaxed);
		atomic_store_explicit(&timed_calls[number], 0, memory_order_relaxed);
		atomic_store_explicit(&has_inquired[number], false, memory_order_relaxed);
		avoid_pages(number, 0);
		atomic_store_explicit(&reads_without_lease[number], 0, memory_order_relaxed);
		atomic_store_explicit(&writes_without_lease[number], 0, memory_order_relaxed);
		/* Who wants a report wants it of files that are read quickly, too. */
		const struct polymux_direct *direct = report[0] != 0 ? load() : loaded_library();
		if (direct != NULL)
			note_answer(number, direct->watch(number));
	}
	leave(&entry);
}

static void become_slower(int number)
{
	int slower = atomic_load_explicit(&slowness[number], memory_order_relaxed) + SLOW;
	if (slower > SLOWNESS_MAX)
		slower = SLOWNESS_MAX;
	struct entry entry;
	if (!atomic_exchange_explicit(&has_inquired[number], true, memory_order_relaxed) && enter(&entry)) {
		if (is_leased_by_others(number))
			slower = SLOWNESS_MAX;
		leave(&entry);
	}
	atomic_store_explicit(&slowness[number], (uint8_t)slower, memory_order_relaxed);
	if (slower < SLOWNESS_MAX || !enter_with_stack(&entry))
		return;
	const struct polymux_direct *direct = load();
	int answer = direct == NULL ? POLYMUX_NO_LEASE : direct->ask(number);
	/* After the end of a lease the file has to show again that one pays; after a refusal it is not asked for at each call. */
	uint8_t rest = answer == POLYMUX_LEASED || direct == NULL ? 0 : SLOWNESS_MAX / 2;
	atomic_store_explicit(&slowness[number], rest, memory_order_relaxed);
	note_answer(number, answer);
	leave(&entry);
}

static uint64_t nanoseconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* Leaves the library with its answer to a call. Returns whether that is what the call returns, with errno; otherwise the kernel has to answer. */
static bool leave_with(struct entry *entry, ssize_t *answer)
{
	bool has_failed = *answer <= POLYMUX_ERROR;
	bool is_served = has_failed || *answer >= 0;
	if (has_failed) {
		entry->error = (int)(POLYMUX_ERROR - *answer);
		*answer = -1;
	}
	leave(entry);
	return is_served;
}

/* A call for want of a lease. */
static ssize_t call_through_kernel(const struct call *call)
{
	struct entry entry;
	ssize_t answer;
	if (!atomic_load_explicit(&avoids_pages[call->number], memory_order_relaxed))
		return call_kernel(call);
	pthread_testcancel();
	if (call->length > LENGTH_MAX || !enter(&entry))
		return call_kernel(call);
	if (call->is_write)
		answer = loaded_library()->write_past_pages(call->number, call->data, call->length, call->offset);
	else
		answer = loaded_library()->read_past_pages(call->number, call->buffer, call->length, call->offset);
	return leave_with(&entry, &answer) ? answer : call_kernel(call);
}

static void avoid_pages(int number, int on)
{
	if (number >= 0 && number < NUMBERS)
		atomic_store_explicit(&avoids_pages[number], on != 0, memory_order_relaxed);
}

static ssize_t call_watched(const struct call *call)
{
	static __thread __attribute__((tls_model("initial-exec"))) unsigned int quick_calls;
	int number = call->number;
	uint8_t slow = atomic_load_explicit(&slowness[number], memory_order_relaxed);
	uint8_t timed = atomic_load_explicit(&timed_calls[number], memory_order_relaxed);
	bool is_sampled = slow == 0 && timed >= FIRST_CALLS && report[0] == 0;
	if (timed < FIRST_CALLS)
		atomic_store_explicit(&timed_calls[number], timed + 1, memory_order_relaxed);
	if (is_sampled && ++quick_calls % CALLS_OF_A_SAMPLE != 0)
		return call_kernel(call);
	_Atomic uint32_t *counter = call->is_write ? &writes_without_lease[number] : &reads_without_lease[number];
	atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + 1, memory_order_relaxed);
	uint64_t began = nanoseconds();
	ssize_t count = call_through_kernel(call);
	uint64_t passed = nanoseconds() - began;
	if (count > 0 && passed > QUICK_NS + (uint64_t)count / BYTES_OF_NS)
		become_slower(number);
	else if (slow > 0)
		atomic_store_explicit(&slowness[number], slow - 1, memory_order_relaxed);
	return count;
}

static unsigned int lane_of_thread(void)
{
	static atomic_uint threads;
	static __thread __attribute__((tls_model("initial-exec"))) unsigned int lane;
	if (lane == 0)
		lane = atomic_fetch_add_explicit(&threads, 1, memory_order_relaxed) + 1;
	return lane;
}

static ssize_t call_leased(const struct call *call)
{
	const struct polymux_direct *direct = loaded_library();
	unsigned int lane = lane_of_thread();
	struct entry entry;
	ssize_t count;
	pthread_testcancel();
	/* Nothing may end a thread that has announced a write, or is in the library. */
	if (call->length > LENGTH_MAX || !enter(&entry))
		return call_kernel(call);
	if (call->is_write)
		count = direct->write(call->number, lane, call->data, call->length, call->offset);
	else
		count = direct->read(call->number, lane, call->buffer, call->length, call->offset);
	if (leave_with(&entry, &count))
		return count;
	if (count != POLYMUX_NO_LEASE)
		return call_kernel(call);
	change_known(call->number, LEASED, WATCHED);
	return known_of(call->number) == WATCHED ? call_watched(call) : call_kernel(call);
}

static inline ssize_t serve(const struct call *call)
{
	uint8_t value = known_of(call->number);
	if (value == FOREIGN || atomic_load_explicit(&is_off, memory_order_relaxed))
		return call_kernel(call);
	if (value == LEASED)
		return call_leased(call);
	if (value == WATCHED)
		return call_watched(call);
	if (value == PLACED)
		return is_placed(call->number) ? -1 : call_kernel(call);
	if (value < CALLS_BEFORE)
		change_known(call->number, value, value + 1);
	else
		begin_to_watch(call->number);
	return call_kernel(call);
}

static inline ssize_t read_at(int number, void *buffer, size_t length, off_t offset)
{
	const struct call call = { .number = number, .buffer = buffer, .length = length, .offset = offset };
	return serve(&call);
}

static inline ssize_t write_at(int number, const void *data, size_t length, off_t offset)
{
	const struct call call = { .number = number, .is_write = true, .data = data, .length = length, .offset = offset };
	return serve(&call);
}

EXPORT ssize_t pwrite64(int number, const void *data, size_t length, off_t offset)
{
	return write_at(number, data, length, offset);
}

EXPORT ssize_t pwrite(int number, const void *data, size_t length, off_t offset)
{
	return write_at(number, data, length, offset);
}

EXPORT ssize_t pread64(int number, void *buffer, size_t length, off_t offset)
{
	return read_at(number, buffer, length, offset);
}

EXPORT ssize_t pread(int number, void *buffer, size_t length, off_t offset)
{
	return read_at(number, buffer, length, offset);
}

/* Calls of programs that were compiled with checks of the lengths of buffers (_FORTIFY_SOURCE). */
EXPORT ssize_t __pread64_chk(int number, void *buffer, size_t length, off_t offset, size_t capacity)
{
	if (length > capacity)
		__chk_fail();
	return read_at(number, buffer, length, offset);
}

EXPORT ssize_t __pread_chk(int number, void *buffer, size_t length, off_t offset, size_t capacity)
{
	return __pread64_chk(number, buffer, length, offset, capacity);
}

/* The end of a file. While a file changes beside a lease the kernel keeps no attributes, because times of objects change without it; its size it knows all the same, since files grow
 * and are cut through the mount alone. */
static off_t seek_from_end(int number, off_t offset)
{
	struct statx facts;
	int error = errno;
	off_t target;
	bool is_known = syscall(SYS_statx, number, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_INO | STATX_SIZE, &facts) == 0;
	struct identity identity = { 0, 0, 0 };
	errno = error;
	if (is_known)
		identity = (struct identity){ facts.stx_ino, facts.stx_dev_major, facts.stx_dev_minor };
	if (!is_known || !are_same(&identity, &leased[number]) || __builtin_add_overflow((off_t)facts.stx_size, offset, &target) || target < 0)
		return __lseek(number, offset, SEEK_END);
	return __lseek(number, target, SEEK_SET);
}

EXPORT off_t lseek64(int number, off_t offset, int origin)
{
	if (is_placed(number))
		return -1;
	if (origin == SEEK_END && known_of(number) == LEASED)
		return seek_from_end(number, offset);
	return __lseek(number, offset, origin);
}

EXPORT off_t lseek(int number, off_t offset, int origin)
{
	return lseek64(number, offset, origin);
}

/* Ends of descriptors. */

/* What was known of a number is no longer true. */
static void forget(int number)
{
	uint8_t value = known_of(number);
	struct entry entry;
	if (value == 0 || value == PLACED || number < 0 || number >= NUMBERS)
		return;
	const struct polymux_direct *direct = loaded_library();
	if ((value == WATCHED || value == LEASED) && direct != NULL) {
		/* Otherwise the next read finds another file under the number. */
		if (!enter(&entry))
			return;
		bool is_ours = direct->forget(number) == 0;
		leave(&entry);
		if (!is_ours)
			return;
	}
	change_known(number, value, 0);
	avoid_pages(number, 0);
}

static void forget_range(unsigned int first, unsigned int last)
{
	unsigned int end = (unsigned int)end_of_known();
	for (unsigned int number = first; number < end && number <= last; number++)
		forget((int)number);
}

EXPORT int close(int number)
{
	if (is_placed(number))
		return -1;
	forget(number);
	return __close(number);
}

EXPORT int fclose(FILE *stream)
{
	int error = errno;
	forget(fileno(stream));
	errno = error;
	return _IO_fclose(stream);
}

#define ATTEMPTS 1000

/* A program that has raised its limit may want a number that a lease has: the leases are given back, and reads that go on by them waited for. */
static bool free_number(int number)
{
	struct rlimit limit;
	struct entry entry;
	if (!is_placed(number))
		return true;
	if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || (rlim_t)number >= limit.rlim_cur || !enter(&entry))
		return false;
	loaded_library()->give_back_all();
	leave(&entry);
	for (int attempt = 0; attempt < ATTEMPTS && known_of(number) == PLACED; attempt++)
		syscall(SYS_nanosleep, &moment, NULL);
	return !is_placed(number);
}

EXPORT int dup2(int from, int to)
{
	if (is_placed(from) || !free_number(to))
		return -1;
	if (from != to)
		forget(to);
	return __dup2(from, to);
}

EXPORT int dup3(int from, int to, int flags)
{
	if (is_placed(from) || !free_number(to))
		return -1;
	if (from != to)
		forget(to);
	return (int)syscall(SYS_dup3, from, to, flags);
}

/* The calling thread gets a table of its own: a number no longer means one file. */
static void turn_off(void)
{
	forget_range(0, NUMBERS);
	atomic_store(&is_off, true);
}

/* CLOSE_RANGE_UNSHARE and CLOSE_RANGE_CLOEXEC of include/uapi/linux/close_range.h. */
#define OWN_TABLE 2
#define ONLY_ON_EXEC 4

static int close_gap(unsigned int first, unsigned int last, int flags)
{
	return (int)syscall(SYS_close_range, first, last, flags);
}

/* Descriptors of leases are left out, as if they were not there. */
EXPORT int close_range(unsigned int first, unsigned int last, int flags)
{
	if ((flags & OWN_TABLE) != 0)
		turn_off();
	if ((flags & ONLY_ON_EXEC) != 0 || first > last)
		return close_gap(first, last, flags);
	forget_range(first, last);
	unsigned int end = (unsigned int)end_of_known();
	for (unsigned int number = first; number < end && number <= last; number++) {
		if (known_of((int)number) != PLACED)
			continue;
		if (number > first && close_gap(first, number - 1, flags) != 0)
			return -1;
		first = number + 1;
	}
	return first > last ? 0 : close_gap(first, last, flags);
}

EXPORT void closefrom(int first)
{
	struct rlimit limit;
	if (first < 0)
		first = 0;
	if (close_range((unsigned int)first, ~0U, 0) == 0 || getrlimit(RLIMIT_NOFILE, &limit) != 0)
		return;
	for (int number = first; (rlim_t)number < limit.rlim_cur; number++)
		close(number);
}

EXPORT int unshare(int flags)
{
	if ((flags & CLONE_FILES) != 0)
		turn_off();
	return (int)syscall(SYS_unshare, flags);
}
