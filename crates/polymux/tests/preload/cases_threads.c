/* Threads, their ends, and handlers of signals in the middle of reads. */

#include "cases.h"

#include <limits.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <sys/time.h>

#define BLOCK 4096
#define BLOCKS (TABLE_SIZE / BLOCK)
#define THREADS 4
#define NUMBERS 40
/* What the C library takes from each stack for thread-local variables of this program. */
#define OF_THREAD_LOCALS 73728

typedef void *(*thread_function)(void *);

/* What a file has, not read in the way that is looked at here. */
static char *contents_of(const char *name)
{
	char *bytes = malloc(TABLE_SIZE);
	int number = open_read(name);
	require(bytes != NULL && read(number, bytes, TABLE_SIZE) == TABLE_SIZE, name);
	close(number);
	return bytes;
}

/* Reads some blocks, the same ones each time, without printing anything. */
static uint64_t sum_of_blocks(int number, long first, long count)
{
	char block[BLOCK];
	uint64_t sum = 0;
	for (long place = 0; place < count; place++) {
		ssize_t length = pread(number, block, sizeof(block), (first + place * 101) % BLOCKS * BLOCK);
		sum = sum * 31 + (length < 0 ? (uint64_t)errno : sum_of(block, (size_t)length));
	}
	return sum;
}

static void say_sum(const char *what, uint64_t sum)
{
	printf("%s: %016lx\n", what, (unsigned long)sum);
	fflush(stdout);
}

static pthread_t start(thread_function function, void *argument)
{
	pthread_t thread;
	errno = pthread_create(&thread, NULL, function, argument);
	require(errno == 0, "a thread");
	return thread;
}

static void *join(pthread_t thread)
{
	void *result;
	errno = pthread_join(thread, &result);
	require(errno == 0, "the end of a thread");
	return result;
}

/* Runs some threads, each with its own argument of an array, to their ends. */
static void run_threads(int count, thread_function function, void *arguments, size_t size)
{
	pthread_t threads[64];
	for (int one = 0; one < count; one++)
		threads[one] = start(function, (char *)arguments + (size_t)one * size);
	for (int one = 0; one < count; one++)
		join(threads[one]);
}

static void handle(int signal, void (*handler)(int), int flags)
{
	struct sigaction action = { .sa_handler = handler, .sa_flags = flags };
	require(sigaction(signal, &action, NULL) == 0, "sigaction");
}

static void set_timer(long microseconds)
{
	struct itimerval timer = { { 0, microseconds }, { 0, microseconds } };
	require(setitimer(ITIMER_REAL, &timer, NULL) == 0, "setitimer");
}

struct reader {
	int number, index;
	uint64_t sum;
};

static void *read_blocks(void *argument)
{
	struct reader *reader = argument;
	reader->sum = sum_of_blocks(reader->number, reader->index * 17, 2000);
	return NULL;
}

static void *open_and_read_blocks(void *argument)
{
	struct reader *reader = argument;
	reader->number = warmed(reader->index % 2 == 0 ? "table" : "other");
	read_blocks(reader);
	close(reader->number);
	return NULL;
}

static void *warm_and_read_blocks(void *argument)
{
	struct reader *reader = argument;
	warm(reader->number);
	return read_blocks(reader);
}

static void run_readers(int number, int count, thread_function function)
{
	struct reader readers[64];
	for (int one = 0; one < count; one++)
		readers[one] = (struct reader){ number, one, 0 };
	run_threads(count, function, readers, sizeof(readers[0]));
	for (int one = 0; one < count; one++)
		say_sum("thread", readers[one].sum);
}

static void threads_read_one_number(void)
{
	int table = warmed("table");
	run_readers(table, THREADS, read_blocks);
	show_all("main", table);
}

static void threads_warm_one_number(void)
{
	int table = open_read("table");
	run_readers(table, THREADS, warm_and_read_blocks);
	show_all("main", table);
}

static void threads_with_numbers_of_their_own(void)
{
	run_readers(-1, 2 * THREADS, open_and_read_blocks);
}

static void *read_some_blocks(void *argument)
{
	struct reader *reader = argument;
	reader->sum = sum_of_blocks(reader->number, reader->index, 20);
	return NULL;
}

static void many_short_threads(void)
{
	int table = open_read("table");
	for (int round = 0; round < 4; round++) {
		run_readers(table, 50, read_some_blocks);
		if (round == 0)
			warm(table);
	}
}

/* Readers that run while something is done to their number. */

static struct {
	atomic_bool is_over;
	atomic_long reads, wrong;
	atomic_int number;
	const char *table, *other;
} shared;

static void note_read(bool is_right)
{
	atomic_fetch_add(&shared.reads, 1);
	if (!is_right)
		atomic_fetch_add(&shared.wrong, 1);
}

static void *read_while_it_is_closed(void *argument)
{
	struct reader *reader = argument;
	char block[BLOCK];
	for (long place = reader->index; !atomic_load(&shared.is_over); place += 7) {
		off_t offset = place % BLOCKS * BLOCK;
		if (place % 5 == 0)
			posix_fadvise(shared.number, 0, 0, POSIX_FADV_DONTNEED);
		ssize_t count = pread(shared.number, block, sizeof(block), offset);
		note_read(count == BLOCK ? memcmp(block, shared.table + offset, BLOCK) == 0 : count == -1 && errno == EBADF);
	}
	return NULL;
}

static void *read_one_of_two(void *argument)
{
	(void)argument;
	static const off_t offset = 7 * BLOCK;
	char block[BLOCK];
	while (!atomic_load(&shared.is_over)) {
		ssize_t count = pread(shared.number, block, sizeof(block), offset);
		note_read(count == BLOCK && (memcmp(block, shared.table + offset, BLOCK) == 0 || memcmp(block, shared.other + offset, BLOCK) == 0));
	}
	return NULL;
}

static void run_while_others_read(thread_function function, void (*change)(void))
{
	struct reader readers[3] = { { 0, 0, 0 }, { 0, 1, 0 }, { 0, 2, 0 } };
	pthread_t threads[3];
	shared.table = contents_of("table");
	shared.other = contents_of("other");
	for (int one = 0; one < 3; one++)
		threads[one] = start(function, &readers[one]);
	change();
	atomic_store(&shared.is_over, true);
	for (int one = 0; one < 3; one++)
		join(threads[one]);
	say("read", shared.reads > 0);
	say("wrong", shared.wrong);
}

static void close_and_open_often(void)
{
	int moved = 0;
	for (int round = 0; round < 1000; round++) {
		require(close(shared.number) == 0, "close");
		int again = open_read("table");
		moved += again != shared.number;
		shared.number = again;
		if (round % 50 == 0)
			warm(again);
	}
	say("moved", moved);
}

static void closed_and_opened_while_others_read(void)
{
	shared.number = warmed("table");
	run_while_others_read(read_while_it_is_closed, close_and_open_often);
	show_all("main", shared.number);
}

static void duplicate_often(void)
{
	int table = open_read("table"), other = open_read("other"), wrong = 0;
	char block[BLOCK];
	for (int round = 0; round < 400; round++) {
		const char *expected = round % 2 == 0 ? shared.other : shared.table;
		require(dup2(round % 2 == 0 ? other : table, shared.number) == shared.number, "dup2");
		if (round % 100 < 2)
			warm(shared.number);
		wrong += pread(shared.number, block, sizeof(block), 5 * BLOCK) != BLOCK || memcmp(block, expected + 5 * BLOCK, BLOCK) != 0;
	}
	say("wrong after dup2", wrong);
}

static void number_alternates_while_others_read(void)
{
	shared.number = warmed("table");
	run_while_others_read(read_one_of_two, duplicate_often);
	show_all("main", shared.number);
}

/* Each stamp fills the same bytes, over an edge of tiers. */
#define STAMP_PLACE (2 * MIB - BLOCK)
#define STAMP_LENGTH (2 * BLOCK)
#define STAMPS 100

static atomic_int stamps_begun, stamps_done;

static void *read_stamps(void *argument)
{
	(void)argument;
	unsigned char bytes[STAMP_LENGTH];
	while (!atomic_load(&shared.is_over)) {
		int done = atomic_load(&stamps_done);
		bool is_right = pread(shared.number, bytes, sizeof(bytes), STAMP_PLACE) == STAMP_LENGTH;
		int begun = atomic_load(&stamps_begun);
		for (size_t place = 0; place < sizeof(bytes); place++)
			is_right = is_right && bytes[place] >= done && bytes[place] <= begun;
		note_read(is_right);
	}
	return NULL;
}

static void stamp(int number, int value)
{
	char bytes[STAMP_LENGTH];
	memset(bytes, value, sizeof(bytes));
	atomic_store(&stamps_begun, value);
	require(pwrite(number, bytes, sizeof(bytes), STAMP_PLACE) == STAMP_LENGTH, "a stamp");
	atomic_store(&stamps_done, value);
}

static void write_stamps(void)
{
	for (int round = 0; round < STAMPS / 20; round++) {
		int writer = open_write("table");
		for (int one = 0; one < 20; one++)
			stamp(writer, 1 + round * 20 + one);
		close(writer);
		usleep(20000);
		warm(shared.number);
	}
}

static void bytes_never_become_older(void)
{
	shared.number = warmed("table");
	int writer = open_write("table");
	stamp(writer, 0);
	close(writer);
	warm(shared.number);
	run_while_others_read(read_stamps, write_stamps);
	show("main", shared.number, 4 * BLOCK, STAMP_PLACE - BLOCK);
}

static void fork_often(void)
{
	for (int round = 0; round < 10; round++) {
		pid_t child = fork();
		if (child == 0) {
			show_all("child", shared.number);
			warm(shared.number);
			say_sum("warmed", sum_of_blocks(shared.number, round, 300));
			_exit(round);
		}
		wait_for("child", child);
	}
}

static void forks_while_others_read(void)
{
	shared.number = warmed("table");
	run_while_others_read(read_while_it_is_closed, fork_often);
	show_all("main", shared.number);
}

static void *fork_and_read(void *argument)
{
	struct reader *reader = argument;
	pid_t child = fork();
	if (child == 0) {
		show_all("child of a thread", reader->number);
		warm(reader->number);
		show_all("warmed", reader->number);
		/* The only thread of a child: its end is the end of the process, as that of the last thread always is. */
		pthread_exit(NULL);
	}
	wait_for("child", child);
	return read_blocks(reader);
}

static void fork_of_a_thread(void)
{
	struct reader reader = { warmed("table"), 3, 0 };
	join(start(fork_and_read, &reader));
	say_sum("thread", reader.sum);
	show_all("main", reader.number);
}

/* Handlers. */

static volatile sig_atomic_t handled;
static volatile uint64_t handled_sum;
static volatile sig_atomic_t handled_wrong;
static int handler_number;
static sigjmp_buf jump_place;

static void read_in_handler(int signal)
{
	(void)signal;
	int error = errno;
	uint64_t sum = sum_of_blocks(handler_number, 7, 3);
	if (handled_sum == 0)
		handled_sum = sum;
	handled_wrong += sum != handled_sum;
	handled++;
	errno = error;
}

static void open_and_close_in_handler(int signal)
{
	int error = errno;
	handler_number = open("other", O_RDONLY);
	read_in_handler(signal);
	close(handler_number);
	errno = error;
}

static void count_in_handler(int signal)
{
	(void)signal;
	handled++;
}

static void jump_from_handler(int signal)
{
	(void)signal;
	siglongjmp(jump_place, 1);
}

/* Reads of two kinds under a storm of signals, of which none may be seen in what comes. */
static void read_until_handled(int number, int enough)
{
	uint64_t expected = sum_of_blocks(number, 0, 50);
	int wrong = 0;
	set_timer(200);
	while (handled < enough)
		wrong += sum_of_blocks(number, 0, 50) != expected;
	warm(number);
	wrong += sum_of_blocks(number, 0, 50) != expected;
	set_timer(0);
	say_sum("sum", expected);
	say("wrong", wrong);
}

static void handler_reads_another_file(void)
{
	int table = warmed("table");
	handler_number = warmed("other");
	handle(SIGALRM, read_in_handler, SA_RESTART);
	read_until_handled(table, 300);
	say_sum("in the handler", handled_sum);
	say("wrong in the handler", handled_wrong);
	show_all("other", handler_number);
}

static void handler_reads_the_same_number(void)
{
	int table = open_read("table");
	handler_number = table;
	handle(SIGALRM, read_in_handler, 0);
	read_until_handled(table, 300);
	say_sum("in the handler", handled_sum);
	say("wrong in the handler", handled_wrong);
	show_all("table", table);
}

static void handler_opens_and_closes(void)
{
	int table = open_read("table");
	handle(SIGALRM, open_and_close_in_handler, SA_RESTART);
	read_until_handled(table, 300);
	say_sum("in the handler", handled_sum);
	say("wrong in the handler", handled_wrong);
	show_all("table", table);
}

static void interrupted_reads_are_whole(void)
{
	static char buffer[MIB];
	int table = open_read("table"), short_reads = 0;
	handle(SIGALRM, count_in_handler, 0);
	read_until_handled(table, 300);
	set_timer(200);
	for (int round = 0; round < 300; round++) {
		if (round % 50 == 0)
			posix_fadvise(table, 0, 0, POSIX_FADV_DONTNEED);
		short_reads += pread(table, buffer, sizeof(buffer), round % 8 * MIB) != MIB;
	}
	set_timer(0);
	say("short reads", short_reads);
	struct timespec time = { 0, 100000000 };
	set_timer(1000);
	say("nanosleep", nanosleep(&time, NULL));
	set_timer(0);
}

static void jump_out_of_reads(int table)
{
	volatile int jumps = 0;
	handle(SIGALRM, jump_from_handler, 0);
	if (sigsetjmp(jump_place, 1) != 0)
		jumps++;
	if (jumps < 50) {
		struct itimerval once = { { 0, 0 }, { 0, 100 + jumps * 50 } };
		setitimer(ITIMER_REAL, &once, NULL);
		for (;;)
			warm(table);
	}
	say("jumps", jumps);
}

static void jumps_out_of_reads(void)
{
	int table = open_read("table");
	jump_out_of_reads(table);
	show_all("after", table);
	warm(table);
	show_all("warmed", table);
	close(table);
	int other = warmed("other");
	show_all("other", other);
}

/* With so few numbers, those that nobody told the program of are among the ones it uses. */
static void allow_few_numbers(void)
{
	static const struct rlimit few = { NUMBERS, NUMBERS };
	require(setrlimit(RLIMIT_NOFILE, &few) == 0, "setrlimit");
}

static void jumps_out_and_uses_any_number(void)
{
	allow_few_numbers();
	int table = open_read("table"), other = open_read("other"), wrong = 0;
	jump_out_of_reads(table);
	run_readers(table, 1, warm_and_read_blocks);
	uint64_t expected = sum_of_blocks(table, 0, 20);
	for (int number = other + 1; number < NUMBERS; number++) {
		wrong += dup2(other, number) != number;
		/* In another thread than the one that jumped. */
		struct reader reader = { table, 0, 0 };
		run_threads(1, read_some_blocks, &reader, sizeof(reader));
		wrong += reader.sum != expected;
	}
	say("wrong", wrong);
	show_all("table", table);
	show_all("other", NUMBERS - 1);
}

static void use_numbers_in_handler(int signal)
{
	(void)signal;
	for (int number = NUMBERS / 2; handled == 0 && number < NUMBERS; number++)
		handled_wrong += dup2(handler_number, number) != number;
	handled = 1;
}

static void handler_uses_any_number(void)
{
	allow_few_numbers();
	int table = open_read("table"), wrong = 0;
	handler_number = open_read("other");
	handle(SIGALRM, use_numbers_in_handler, SA_RESTART);
	uint64_t expected = sum_of_blocks(table, 0, 50);
	for (int round = 0; round < 20; round++) {
		for (int number = NUMBERS / 2; number < NUMBERS; number++)
			close(number);
		warm(table);
		handled = 0;
		set_timer(100 + round * 20);
		while (handled == 0)
			wrong += sum_of_blocks(table, 0, 50) != expected;
		set_timer(0);
		wrong += sum_of_blocks(table, 0, 50) != expected;
	}
	say("wrong", wrong);
	say("wrong in the handler", handled_wrong);
	show_all("table", table);
	show_all("other", NUMBERS - 1);
}

static void read_on_a_stack(long room)
{
	long size = sysconf(_SC_MINSIGSTKSZ) + room;
	char *memory = mmap(NULL, (size_t)size + BLOCK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	require(memory != MAP_FAILED && mprotect(memory, BLOCK, PROT_NONE) == 0, "a stack");
	stack_t stack = { .ss_sp = memory + BLOCK, .ss_size = (size_t)size };
	require(sigaltstack(&stack, NULL) == 0, "sigaltstack");
	handler_number = open_read("table");
	handle(SIGUSR1, read_in_handler, SA_ONSTACK);
	for (int round = 0; round < 200; round++) {
		posix_fadvise(handler_number, 0, 0, POSIX_FADV_DONTNEED);
		raise(SIGUSR1);
	}
	say("handled", handled);
	say_sum("in the handler", handled_sum);
	say("wrong in the handler", handled_wrong);
	show_all("after", handler_number);
	warm(handler_number);
	show_all("warmed", handler_number);
}

static void reads_on_an_alternate_stack(void)
{
	read_on_a_stack(16384);
}

/* A block that the handler reads takes half of it. */
static void reads_on_a_narrow_alternate_stack(void)
{
	read_on_a_stack(2 * BLOCK);
}

static void mask_and_pending_signals_stay(void)
{
	sigset_t set, before, after, pending;
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	sigaddset(&set, SIGRTMIN + 3);
	handle(SIGUSR1, count_in_handler, 0);
	require(sigprocmask(SIG_BLOCK, &set, NULL) == 0, "sigprocmask");
	raise(SIGUSR1);
	sigprocmask(SIG_BLOCK, NULL, &before);
	int table = warmed("table");
	show_all("table", table);
	sigprocmask(SIG_BLOCK, NULL, &after);
	int differences = 0;
	for (int signal = 1; signal < NSIG; signal++)
		differences += sigismember(&before, signal) != sigismember(&after, signal);
	say("differences", differences);
	sigpending(&pending);
	say("pending", sigismember(&pending, SIGUSR1));
	say("handled", handled);
	require(sigprocmask(SIG_UNBLOCK, &set, NULL) == 0, "sigprocmask");
	say("handled", handled);
	show_all("table", table);
}

static pthread_t main_thread;

static void *send_signals(void *argument)
{
	for (int sent = 0; sent < 500;) {
		if (pthread_sigqueue(main_thread, SIGRTMIN, (union sigval){ 0 }) == 0)
			sent++;
		else
			sched_yield();
		usleep(20);
	}
	return argument;
}

static void no_signal_is_lost(void)
{
	main_thread = pthread_self();
	handle(SIGRTMIN, count_in_handler, SA_RESTART);
	pthread_t sender = start(send_signals, NULL);
	while (handled < 400) {
		int table = warmed("table");
		sum_of_blocks(table, 0, 50);
		close(table);
	}
	join(sender);
	int table = warmed("table");
	say("handled", handled);
	show_all("table", table);
}

/* Ends of threads. */

static atomic_int cleaned, passed;

static void clean(void *number)
{
	close(*(int *)number);
	atomic_fetch_add(&cleaned, 1);
}

static void *read_until_cancelled(void *argument)
{
	int number = open_read("table");
	pthread_cleanup_push(clean, &number);
	if (argument != NULL)
		atomic_store((atomic_bool *)argument, true);
	for (;;)
		warm(number);
	pthread_cleanup_pop(1);
	return NULL;
}

static void *read_after_cancellation(void *argument)
{
	int number = warmed("table");
	char byte;
	bool is_disabled = *(bool *)argument;
	pthread_cleanup_push(clean, &number);
	if (is_disabled)
		pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
	pthread_cancel(pthread_self());
	say("in the thread", pread(number, &byte, 1, MIB));
	show_all("in the thread", number);
	atomic_fetch_add(&passed, 1);
	pthread_cleanup_pop(1);
	return NULL;
}

static void cancelled_by_itself(void)
{
	bool is_disabled = false;
	void *result = join(start(read_after_cancellation, &is_disabled));
	say("cancelled", result == PTHREAD_CANCELED);
	say("cleaned", cleaned);
	say("passed", passed);
	show_all("main", warmed("table"));
}

static void cancellation_is_disabled(void)
{
	bool is_disabled = true;
	void *result = join(start(read_after_cancellation, &is_disabled));
	say("cancelled", result == PTHREAD_CANCELED);
	say("cleaned", cleaned);
	say("passed", passed);
}

static void cancelled_by_another(void)
{
	int cancelled = 0;
	for (int round = 0; round < 60; round++) {
		atomic_bool has_begun = false;
		pthread_t thread = start(read_until_cancelled, &has_begun);
		while (!atomic_load(&has_begun))
			sched_yield();
		usleep((unsigned int)round * 100);
		pthread_cancel(thread);
		cancelled += join(thread) == PTHREAD_CANCELED;
	}
	say("cancelled", cancelled);
	say("cleaned", cleaned);
	int table = open_read("table"), first = table;
	warm(table);
	show_all("main", table);
	say("next number", open_read("other") - first);
}

static void note_clean(void *argument)
{
	(void)argument;
	atomic_fetch_add(&cleaned, 1);
}

static void *close_after_cancellation(void *number)
{
	pthread_cleanup_push(note_clean, NULL);
	pthread_cancel(pthread_self());
	close(*(int *)number);
	atomic_fetch_add(&passed, 1);
	pthread_cleanup_pop(0);
	return NULL;
}

static void *replace_after_cancellation(void *number)
{
	int other = open_read("other");
	pthread_cleanup_push(note_clean, NULL);
	pthread_cancel(pthread_self());
	dup2(other, *(int *)number);
	atomic_fetch_add(&passed, 1);
	pthread_testcancel();
	pthread_cleanup_pop(0);
	return NULL;
}

static void cancelled_in(thread_function function)
{
	int table = warmed("table");
	void *result = join(start(function, &table));
	say("cancelled", result == PTHREAD_CANCELED);
	say("cleaned", cleaned);
	say("passed", passed);
	show_all("number", table);
	say("close", close(table));
}

static void close_is_a_point_of_cancellation(void)
{
	cancelled_in(close_after_cancellation);
}

static void dup2_is_no_point_of_cancellation(void)
{
	cancelled_in(replace_after_cancellation);
}

static pthread_key_t key;

static void read_at_end_of_thread(void *argument)
{
	struct reader *reader = argument;
	show_all("at the end of the thread", reader->number);
	warm(reader->number);
	show_all("warmed", reader->number);
}

static void *read_with_a_destructor(void *argument)
{
	struct reader *reader = argument;
	require(pthread_setspecific(key, reader) == 0, "pthread_setspecific");
	if (reader->index != 0)
		warm(reader->number);
	return read_blocks(reader);
}

static void destructor_of_a_thread_reads(void)
{
	require(pthread_key_create(&key, read_at_end_of_thread) == 0, "pthread_key_create");
	for (int round = 0; round < 2; round++) {
		struct reader reader = { open_read("table"), round, 0 };
		join(start(read_with_a_destructor, &reader));
		say_sum("thread", reader.sum);
		show_all("main", reader.number);
	}
}

static void read_at_exit(void)
{
	show_all("at exit", handler_number);
	int other = warmed("other");
	show_all("another at exit", other);
	close(other);
	show_all("still", handler_number);
}

static void read_in_atexit(void)
{
	require(atexit(read_at_exit) == 0, "atexit");
	handler_number = warmed("table");
	show_all("table", handler_number);
}

static void read_in_threads_with_stacks(long more)
{
	struct reader reader = { open_read("table"), 5, 0 };
	pthread_attr_t attributes;
	pthread_t thread;
	pthread_attr_init(&attributes);
	require(pthread_attr_setstacksize(&attributes, (size_t)(sysconf(_SC_THREAD_STACK_MIN) + OF_THREAD_LOCALS + more)) == 0, "the size of a stack");
	for (int round = 0; round < 3; round++) {
		errno = pthread_create(&thread, &attributes, warm_and_read_blocks, &reader);
		require(errno == 0, "a thread");
		join(thread);
		say_sum("thread", reader.sum);
	}
	pthread_attr_destroy(&attributes);
	warm(reader.number);
	show_all("main", reader.number);
}

static void small_stacks(void)
{
	read_in_threads_with_stacks(16384);
}

static void narrow_stacks(void)
{
	read_in_threads_with_stacks(-4096);
}

static void *read_after_main(void *argument)
{
	join(main_thread);
	read_at_end_of_thread(argument);
	exit(3);
}

static void main_thread_ends_first(void)
{
	static struct reader reader;
	reader.number = warmed("table");
	main_thread = pthread_self();
	start(read_after_main, &reader);
	pthread_exit(NULL);
}

const struct test_case thread_cases[] = {
	{ "threads_read_one_number", true, threads_read_one_number },
	{ "threads_warm_one_number", true, threads_warm_one_number },
	{ "threads_with_numbers_of_their_own", true, threads_with_numbers_of_their_own },
	{ "many_short_threads", true, many_short_threads },
	{ "closed_and_opened_while_others_read", true, closed_and_opened_while_others_read },
	{ "number_alternates_while_others_read", true, number_alternates_while_others_read },
	{ "bytes_never_become_older", true, bytes_never_become_older },
	{ "forks_while_others_read", true, forks_while_others_read },
	{ "fork_of_a_thread", true, fork_of_a_thread },
	{ "handler_reads_another_file", true, handler_reads_another_file },
	{ "handler_reads_the_same_number", true, handler_reads_the_same_number },
	{ "handler_opens_and_closes", true, handler_opens_and_closes },
	{ "interrupted_reads_are_whole", true, interrupted_reads_are_whole },
	{ "jumps_out_of_reads", false, jumps_out_of_reads },
	{ "jumps_out_and_uses_any_number", false, jumps_out_and_uses_any_number },
	{ "handler_uses_any_number", false, handler_uses_any_number },
	{ "reads_on_an_alternate_stack", true, reads_on_an_alternate_stack },
	{ "reads_on_a_narrow_alternate_stack", true, reads_on_a_narrow_alternate_stack },
	{ "mask_and_pending_signals_stay", true, mask_and_pending_signals_stay },
	{ "no_signal_is_lost", true, no_signal_is_lost },
	{ "cancelled_by_itself", true, cancelled_by_itself },
	{ "cancellation_is_disabled", true, cancellation_is_disabled },
	{ "cancelled_by_another", true, cancelled_by_another },
	{ "close_is_a_point_of_cancellation", true, close_is_a_point_of_cancellation },
	{ "dup2_is_no_point_of_cancellation", true, dup2_is_no_point_of_cancellation },
	{ "destructor_of_a_thread_reads", true, destructor_of_a_thread_reads },
	{ "read_in_atexit", true, read_in_atexit },
	{ "small_stacks", true, small_stacks },
	{ "narrow_stacks", true, narrow_stacks },
	{ "main_thread_ends_first", true, main_thread_ends_first },
	{ NULL, false, NULL },
};
