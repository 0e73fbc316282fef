/* What is known of the numbers of descriptors, and where those of leases are. Included once, by preload.c. */

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* Numbers from here on are left to the kernel. */
#define NUMBERS 65536

/* What is known of a number: how often it was used, or one of these. */
enum {
	/* After so many calls it is looked at. */
	CALLS_BEFORE = 2,
	/* On a FUSE file system, perhaps a volume: it gets a lease when calls for it are slow. */
	WATCHED = 252,
	/* A descriptor of a lease, and not the program's. */
	PLACED = 253,
	/* It has a lease. */
	LEASED = 254,
	/* Anything else. */
	FOREIGN = 255,
};

static _Atomic uint8_t known[NUMBERS];
/* Above every number of which something is known. */
static atomic_int known_end;

static inline int end_of_known(void)
{
	return atomic_load_explicit(&known_end, memory_order_relaxed);
}

static inline uint8_t known_of(int number)
{
	if (number < 0 || number >= NUMBERS)
		return FOREIGN;
	return atomic_load_explicit(&known[number], memory_order_relaxed);
}

static void note_known_end(int number)
{
	int end = end_of_known();
	while (end <= number && !atomic_compare_exchange_weak_explicit(&known_end, &end, number + 1, memory_order_relaxed, memory_order_relaxed))
		;
}

/* Sets what is known of a number below NUMBERS, unless it has changed: it may be a descriptor of a lease by now. */
static void change_known(int number, uint8_t from, uint8_t to)
{
	if (atomic_compare_exchange_strong_explicit(&known[number], &from, to, memory_order_relaxed, memory_order_relaxed))
		note_known_end(number);
}

/* A limit so much higher is raised for descriptors of leases: enough for all that a user may have. */
#define ABOVE_MAX 4096
/* A program with a limit from here on does not miss some hundred numbers, */
#define LARGE_LIMIT 16384
/* which begin here then: each fork copies a table up to the highest number. */
#define LOWEST_OF_LARGE 2048

/* A file, by which a descriptor is recognised. */
struct identity {
	uint64_t inode;
	uint32_t device_major, device_minor;
};

static bool identify(int number, struct identity *identity)
{
	struct statx facts;
	if (syscall(SYS_statx, number, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_INO, &facts) != 0)
		return false;
	*identity = (struct identity){ facts.stx_ino, facts.stx_dev_major, facts.stx_dev_minor };
	return true;
}

static inline bool are_same(const struct identity *one, const struct identity *other)
{
	return one->inode == other->inode && one->device_major == other->device_major && one->device_minor == other->device_minor;
}

/* Descriptors of leases. An entry is free where its number is 0. Numbers are added by one thread at a time. */
#define PLACED_MAX 1024

static struct {
	atomic_int number;
	struct identity identity;
} all_placed[PLACED_MAX];
/* Above every entry that was ever used. */
static atomic_int all_placed_end;

static bool has_room_for(int count)
{
	int room = 0;
	for (int place = 0; place < PLACED_MAX && room < count; place++)
		room += atomic_load_explicit(&all_placed[place].number, memory_order_relaxed) == 0;
	return room == count;
}

static void note_placed(int number)
{
	int place = 0;
	while (atomic_load_explicit(&all_placed[place].number, memory_order_relaxed) != 0)
		place++;
	identify(number, &all_placed[place].identity);
	atomic_store_explicit(&all_placed[place].number, number, memory_order_release);
	if (place >= atomic_load_explicit(&all_placed_end, memory_order_relaxed))
		atomic_store_explicit(&all_placed_end, place + 1, memory_order_release);
	atomic_store_explicit(&known[number], PLACED, memory_order_relaxed);
	note_known_end(number);
}

/* The entry of a number, or -1. */
static int entry_of(int number)
{
	int end = atomic_load_explicit(&all_placed_end, memory_order_acquire);
	for (int place = 0; place < end; place++)
		if (atomic_load_explicit(&all_placed[place].number, memory_order_acquire) == number)
			return place;
	return -1;
}

/* Whether a number still is that of the lease: a program can close any number by a raw system call, and come to use it. */
static bool is_intact(int place)
{
	struct identity now;
	int number = atomic_load_explicit(&all_placed[place].number, memory_order_acquire);
	return identify(number, &now) && are_same(&now, &all_placed[place].identity);
}

/* Whether a number is open, but not the program's; errno says so then. */
static bool is_placed(int number)
{
	if (known_of(number) != PLACED)
		return false;
	int place = entry_of(number), error = errno;
	if (place < 0 || !is_intact(place)) {
		/* The program has closed it without being seen, and may have it now. */
		errno = error;
		return false;
	}
	errno = EBADF;
	return true;
}

/* Closes a descriptor of a lease; if the number names something else by now, only forgets it. It counts as placed until it is closed: who waits for that may use the number then. */
static void close_placed(int number)
{
	int place = entry_of(number);
	if (place < 0)
		return;
	if (is_intact(place))
		syscall(SYS_close, number);
	atomic_store_explicit(&all_placed[place].number, 0, memory_order_release);
	change_known(number, PLACED, 0);
}

static void close_all_placed(void)
{
	int end = atomic_load_explicit(&all_placed_end, memory_order_acquire);
	for (int place = 0; place < end; place++) {
		int number = atomic_load_explicit(&all_placed[place].number, memory_order_acquire);
		if (number != 0)
			close_placed(number);
	}
}

/* As many descriptors has a lease at the most: a connection, and an object on each tier. */
#define MOVED_MAX 65

/* Descriptors that are moved. */
struct move {
	const int *from;
	int to[MOVED_MAX];
	int count;
	int lowest;
	struct rlimit raised;
	bool is_done;
};

/* In a process of its own, because limits are those of a process, that has the same table of descriptors and the same memory. */
static int move_all(void *argument)
{
	struct move *move = argument;
	syscall(SYS_prlimit64, 0, RLIMIT_NOFILE, &move->raised, NULL);
	int done = 0;
	for (; done < move->count; done++) {
		long number = syscall(SYS_fcntl, move->from[done], F_DUPFD_CLOEXEC, move->lowest);
		if (number < 0)
			break;
		move->to[done] = (int)number;
		if (number >= NUMBERS) {
			done++;
			break;
		}
	}
	move->is_done = done == move->count && move->to[done - 1] < NUMBERS;
	for (int place = 0; place < done; place++)
		syscall(SYS_close, move->is_done ? move->from[place] : move->to[place]);
	syscall(SYS_exit, 0);
	return 0;
}

/*
 * Moves descriptors above the limit of the program: it can open as many files as without them, and finds the same lowest free numbers. The limit itself stays: children of a fork would
 * inherit a raised one. Called with signals blocked, by one thread at a time.
 */
static int place(int *numbers, int count)
{
	static char stack[16384] __attribute__((aligned(16)));
	struct rlimit limit;
	struct move move = { .from = numbers, .count = count };
	if (count < 1 || count > MOVED_MAX || !has_room_for(count) || getrlimit(RLIMIT_NOFILE, &limit) != 0)
		return -1;
	move.raised = limit;
	move.raised.rlim_cur = limit.rlim_max - limit.rlim_cur < ABOVE_MAX ? limit.rlim_max : limit.rlim_cur + ABOVE_MAX;
	if (limit.rlim_cur >= LARGE_LIMIT)
		move.lowest = LOWEST_OF_LARGE;
	else if (move.raised.rlim_cur > limit.rlim_cur)
		move.lowest = (int)limit.rlim_cur;
	else
		return -1;
	int flags = CLONE_VM | CLONE_FILES | CLONE_VFORK;
	int child = clone(move_all, stack + sizeof(stack), flags, &move);
	if (child < 0)
		return -1;
	/* Not by waitpid(3), which is a point of cancellation. */
	while (syscall(SYS_wait4, child, NULL, __WALL, NULL) < 0 && errno == EINTR)
		;
	if (!move.is_done)
		return -1;
	for (int index = 0; index < count; index++) {
		numbers[index] = move.to[index];
		note_placed(numbers[index]);
	}
	return 0;
}
