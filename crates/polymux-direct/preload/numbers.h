/* What is known of the numbers of descriptors, and where those of leases are. Included once, by preload.c. */

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* Numbers from here on are left to the kernel. */
#define NUMBERS 65536

/* What is known of a number: how often it was read, or one of these. */
enum {
	/* After so many reads it is looked at. */
	READS_BEFORE = 16,
	/* On a FUSE file system, perhaps a volume: it gets a lease when its reads are slow. */
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
/* Where they begin at the latest: the kernel allocates a table up to the highest number. A program with more numbers than that does not miss some hundred above. */
#define LOWEST_MAX 16384

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
	if (count < 1 || count > MOVED_MAX || getrlimit(RLIMIT_NOFILE, &limit) != 0)
		return -1;
	move.raised = limit;
	move.raised.rlim_cur = limit.rlim_max - limit.rlim_cur < ABOVE_MAX ? limit.rlim_max : limit.rlim_cur + ABOVE_MAX;
	if (limit.rlim_cur >= LOWEST_MAX)
		move.lowest = LOWEST_MAX;
	else if (move.raised.rlim_cur > limit.rlim_cur)
		move.lowest = (int)limit.rlim_cur;
	else
		return -1;
	int flags = CLONE_VM | CLONE_FILES | CLONE_VFORK;
	int child = clone(move_all, stack + sizeof(stack), flags, &move);
	if (child < 0)
		return -1;
	while (waitpid(child, NULL, __WALL) < 0 && errno == EINTR)
		;
	for (int index = 0; move.is_done && index < count; index++) {
		numbers[index] = move.to[index];
		atomic_store_explicit(&known[numbers[index]], PLACED, memory_order_relaxed);
		note_known_end(numbers[index]);
	}
	return move.is_done ? 0 : -1;
}

static void close_placed(int number, bool is_intact)
{
	change_known(number, PLACED, 0);
	if (is_intact)
		syscall(SYS_close, number);
}

static void close_all_placed(void)
{
	int end = end_of_known();
	for (int number = 0; number < end; number++)
		if (known_of(number) == PLACED)
			close_placed(number, true);
}
