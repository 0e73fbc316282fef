/* Numbers that come to name other files, by every way there is. */

#include "cases.h"
#include <dirent.h>
#include <sys/file.h>

/* The numbers of leases are above the limit: with this one they are not far away. */
#define LIMIT 512

static void reads_all_over(void)
{
	int table = open_read("table");
	warm(table);
	show_all("table", table);
	show("long", table, 3 * MIB, MIB + 5);
}

static void close_and_open_another(void)
{
	int table = open_read("table");
	warm(table);
	show_all("table", table);
	close(table);
	show("closed", table, 100, 0);
	int other = open_read("other");
	say("number", other - table);
	show_all("other", other);
}

static void raw_close_and_open_another(void)
{
	int table = open_read("table");
	warm(table);
	show_all("table", table);
	syscall(SYS_close, table);
	long other = syscall(SYS_openat, AT_FDCWD, "other", O_RDONLY);
	say("number", other - table);
	show_all("other", (int)other);
}

/* More reads than it takes to be looked at, and the answer to the last one. */
static void read_often(const char *what, int number)
{
	char byte;
	for (int count = 0; count < 40; count++)
		(void)!pread(number, &byte, 1, count);
	show(what, number, 4096, 4096);
}

static struct rlimit limit_numbers(rlim_t current)
{
	struct rlimit limit;
	require(getrlimit(RLIMIT_NOFILE, &limit) == 0, "getrlimit");
	limit.rlim_cur = current;
	require(setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit");
	return limit;
}

static void dup2_of_another_over_it(void)
{
	int table = warm_file("table"), other = open_read("other");
	say("dup2", dup2(other, table) - table);
	show_all("other", table);
	close(other);
	show_all("other", table);
	say("dup2 of itself", dup2(table, table) - table);
	say("dup2 of none", dup2(other, table));
	show_all("other", table);
}

static void raw_dup2_of_another_over_it(void)
{
	int table = warm_file("table"), other = open_read("other");
	say("dup3", syscall(SYS_dup3, other, table, 0) - table);
	show_all("other", table);
	warm(table);
	show_all("other", table);
	int small = open_read("small");
#ifdef SYS_dup2
	say("dup2", syscall(SYS_dup2, small, table) - table);
#else
	say("dup2", syscall(SYS_dup3, small, table, 0) - table);
#endif
	show("small", table, 4096, 0);
	show("small", table, 4096, 900);
}

static void dup3_of_another_over_it(void)
{
	int table = warm_file("table"), other = open_read("other");
	say("dup3", dup3(other, table, O_CLOEXEC) - table);
	say("flags", fcntl(table, F_GETFD));
	show_all("other", table);
	say("dup3 of itself", dup3(table, table, 0));
	show_all("other", table);
}

static void dup2_of_it_over_another(void)
{
	int table = warm_file("table"), other = warm_file("other");
	say("dup2", dup2(table, other) - other);
	show_all("other", other);
	show_all("table", table);
	warm(other);
	show_all("other", other);
}

static void fclose_and_open_another(void)
{
	int table = warm_file("table");
	FILE *stream = fdopen(table, "r");
	require(stream != NULL, "fdopen");
	say("getc", getc(stream));
	show_all("table", table);
	say("fclose", fclose(stream));
	int other = open_read("other");
	say("number", other - table);
	show_all("other", other);
}

static void freopen_of_another(void)
{
	FILE *stream = fopen("table", "r");
	require(stream != NULL, "fopen");
	int table = fileno(stream);
	warm(table);
	show_all("table", table);
	stream = freopen("other", "r", stream);
	require(stream != NULL, "freopen");
	say("number", fileno(stream) - table);
	show_all("other", fileno(stream));
	fclose(stream);
}

static void open_another_after_closing_all(int before)
{
	show("closed", before, 100, 0);
	int other = open_read("other");
	say("number", other - before);
	show_all("other", other);
	warm(other);
	show_all("other", other);
	int again = open_read("table");
	say("number", again - before);
	show_all("table", again);
}

static void close_range_and_open_another(void)
{
	int table = warm_file("table");
	say("close_range", close_range(3, ~0U, 0));
	open_another_after_closing_all(table);
}

static void raw_close_range_and_open_another(void)
{
	int table = warm_file("table");
	say("close_range", syscall(SYS_close_range, 3, ~0U, 0));
	open_another_after_closing_all(table);
}

/* Descriptors of three leases are closed unseen, and their numbers are those of new leases. */
static void raw_close_range_and_other_leases(void)
{
	int first = warm_file("table"), second = warm_file("other"), third = warm_file("sparse");
	syscall(SYS_close_range, 3, ~0U, 0);
	say("first", open_read("sparse") - first);
	say("second", open_read("table") - second);
	say("third", open_read("other") - third);
	warm(third);
	show_all("third", third);
	warm(second);
	show_all("second", second);
	show_all("third", third);
	warm(first);
	show_all("first", first);
	show_all("second", second);
	show_all("third", third);
}

static void closefrom_and_open_another(void)
{
	int table = warm_file("table");
	closefrom(3);
	open_another_after_closing_all(table);
}

static int close_each(int end, bool is_raw)
{
	int closed = 0;
	for (int number = 3; number < end; number++)
		closed += (is_raw ? (int)syscall(SYS_close, number) : close(number)) == 0;
	return closed;
}

static void close_each_number(void)
{
	limit_numbers(LIMIT);
	int table = warm_file("table");
	say("closed", close_each(LIMIT, false));
	open_another_after_closing_all(table);
}

static void raw_close_each_number(void)
{
	int table = warm_file("table");
	close_each(32768, true);
	open_another_after_closing_all(table);
}

static void close_each_number_below_a_hard_limit(void)
{
	struct rlimit limit = { LIMIT, LIMIT };
	require(setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit");
	int table = warm_file("table");
	say("closed", close_each(LIMIT, false));
	open_another_after_closing_all(table);
}

static void close_what_the_process_file_system_lists(void)
{
	int table = warm_file("table");
	DIR *list = opendir("/proc/self/fd");
	require(list != NULL, "/proc/self/fd");
	for (struct dirent *entry = readdir(list); entry != NULL; entry = readdir(list)) {
		int number = atoi(entry->d_name);
		if (number > 2 && number != dirfd(list))
			close(number);
	}
	closedir(list);
	open_another_after_closing_all(table);
}

static void f_dupfd(void)
{
	int table = warm_file("table");
	int next = fcntl(table, F_DUPFD, 0), high = fcntl(table, F_DUPFD_CLOEXEC, 400);
	say("next", next - table);
	say("high", high);
	say("flags", fcntl(high, F_GETFD));
	show_all("next", next);
	warm(high);
	show_all("high", high);
	show_all("table", table);
	close(high);
	show_all("next", next);
	show_all("table", table);
}

static void dup_and_close_the_original(void)
{
	int table = warm_file("table"), copy = dup(table);
	say("copy", copy - table);
	close(table);
	show("closed", table, 100, 0);
	show_all("copy", copy);
	warm(copy);
	show_all("copy", copy);
}

static void closed_number(void)
{
	int table = warm_file("table");
	say("close", close(table));
	show("closed", table, 100, 0);
	read_often("closed", table);
	say("close again", close(table));
	say("negative", close(-1));
	show("negative", -1, 100, 0);
}

static void lowest_free_numbers(void)
{
	int first = warm_file("table"), second = warm_file("other"), third = warm_file("sparse");
	say("second", second - first);
	say("third", third - first);
	close(second);
	say("again", open_read("small") - first);
	say("next", open_read("empty") - first);
	close(first);
	close(third);
	say("again", warm_file("other") - first);
	int ends[2];
	require(pipe(ends) == 0, "pipe");
	say("pipe", ends[0] - first);
	say("pipe", ends[1] - first);
}

static int open_until_none_is_left(void)
{
	int count = 0;
	while (open("small", O_RDONLY) >= 0)
		count++;
	say("open", -1);
	return count;
}

static void as_many_numbers_as_before(void)
{
	limit_numbers(64);
	int table = warm_file("table");
	warm_file("other");
	say("opened", open_until_none_is_left());
	show_all("table", table);
	close(table);
	say("opened", open_until_none_is_left());
	close(table);
	table = open_read("table");
	warm(table);
	say("opened", open_until_none_is_left());
	show_all("table", table);
	/* A report needs a number. */
	close(table);
}

static void lease_where_no_number_is_left(void)
{
	limit_numbers(64);
	/* The library is loaded by now. */
	close(warm_file("other"));
	int table = open_read("table");
	say("opened", open_until_none_is_left());
	warm(table);
	show_all("table", table);
	say("opened", open_until_none_is_left());
	close(table);
}

static void limit_lowered_after_a_lease(void)
{
	int table = warm_file("table");
	limit_numbers(64);
	show_all("table", table);
	say("opened", open_until_none_is_left());
	show_all("table", table);
	limit_numbers((rlim_t)table + 1);
	show_all("table", table);
	warm(table);
	show_all("table", table);
	limit_numbers(LIMIT);
}

static void limit_stays_the_same(void)
{
	struct rlimit before = limit_numbers(LIMIT), after;
	warm_file("table");
	getrlimit(RLIMIT_NOFILE, &after);
	say("soft", (long)(after.rlim_cur - before.rlim_cur));
	say("hard", (long)(after.rlim_max - before.rlim_max));
	say("sysconf", sysconf(_SC_OPEN_MAX));
	say("too high", dup2(0, LIMIT));
}

static void limit_raised_after_a_lease(void)
{
	limit_numbers(LIMIT);
	int table = warm_file("table"), other = open_read("other");
	limit_numbers(LIMIT + 64);
	show_all("table", table);
	for (int number = LIMIT; number < LIMIT + 64; number++)
		require(dup2(other, number) == number, "dup2");
	show_all("table", table);
	show_all("first", LIMIT);
	show_all("last", LIMIT + 63);
	warm(LIMIT + 1);
	show_all("second", LIMIT + 1);
	say("closed", close_each(LIMIT + 64, false));
}

static void raw_dup2_over_high_numbers(void)
{
	limit_numbers(LIMIT);
	int table = warm_file("table"), other = open_read("other");
	limit_numbers(LIMIT + 64);
	for (int number = LIMIT; number < LIMIT + 64; number++)
		require(syscall(SYS_dup3, other, number, 0) == number, "dup3");
	show_all("table", table);
	show_all("first", LIMIT);
	warm(LIMIT);
	show_all("first", LIMIT);
	close(table);
	show_all("first", LIMIT);
	show_all("second", LIMIT + 1);
}

static void raw_dup2_over_one_high_number(void)
{
	limit_numbers(LIMIT);
	int table = warm_file("table"), other = open_read("other");
	limit_numbers(LIMIT + 64);
	say("dup3", syscall(SYS_dup3, other, LIMIT, 0));
	show_all("table", table);
	close(table);
	show_all("other", LIMIT);
}

static void dup2_onto_the_highest_number(void)
{
	limit_numbers(LIMIT);
	int table = warm_file("table");
	say("highest", dup2(table, LIMIT - 1));
	say("too high", dup2(table, LIMIT));
	close(table);
	show_all("highest", LIMIT - 1);
	warm(LIMIT - 1);
	show_all("highest", LIMIT - 1);
	say("another", dup2(open_read("other"), LIMIT - 1));
	show_all("another", LIMIT - 1);
}

static void standard_input(void)
{
	int table = warm_file("table");
	say("dup2", dup2(table, 0));
	close(table);
	warm(0);
	show_all("input", 0);
	say("getchar", getchar());
	close(0);
	say("other", open_read("other"));
	show_all("other", 0);
}

static void reopened_by_the_process_file_system(void)
{
	int table = warm_file("table");
	char path[64];
	snprintf(path, sizeof(path), "/proc/self/fd/%d", table);
	int again = open_read(path);
	warm(again);
	show_all("again", again);
	close(table);
	show_all("again", again);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", again);
	say("number", open_read(path) - table);
	show_all("table", table);
}

static void opened_for_reading_and_writing(void)
{
	int table = open("table", O_RDWR);
	require(table >= 0, "table");
	warm(table);
	show_all("table", table);
	say("written", pwrite(table, "polymux", 7, MIB));
	show("new", table, 4096, MIB - 100);
	int again = open_read("table");
	warm(again);
	show("again", again, 4096, MIB - 100);
	show_all("table", table);
}

static void opened_for_writing(void)
{
	int table = open("table", O_WRONLY);
	require(table >= 0, "table");
	read_often("table", table);
	say("written", pwrite(table, "polymux", 7, MIB));
}

static void opened_for_its_path(void)
{
	int table = open("table", O_PATH);
	require(table >= 0, "table");
	read_often("table", table);
}

/* The number names the same file, and yet cannot be read. */
static void raw_replaced_by_one_for_writing(void)
{
	int table = warm_file("table");
	syscall(SYS_close, table);
	say("number", syscall(SYS_openat, AT_FDCWD, "table", O_WRONLY) - table);
	show("table", table, 4096, 4096);
	read_often("table", table);
}

static void replaced_by_its_path(void)
{
	int table = warm_file("table");
	say("dup2", dup2(open("table", O_PATH), table) - table);
	show("table", table, 4096, 4096);
	read_often("table", table);
}

static void read_past_the_page_cache(void)
{
	int table = open("table", O_RDONLY | O_DIRECT);
	require(table >= 0, "table");
	char *block = aligned_alloc(4096, 4096);
	require(block != NULL, "memory");
	uint64_t sums = 0;
	long bytes = 0;
	for (off_t place = 0; place < 100; place++) {
		bytes += pread(table, block, 4096, place * 7 * 4096);
		sums = sums * 31 + sum_of(block, 4096);
	}
	say("bytes", bytes);
	printf("sums: %016lx\n", (unsigned long)sums);
	free(block);
}

static void numbers_that_are_no_files(void)
{
	int ends[2], sockets[2], directory = open(".", O_RDONLY | O_DIRECTORY);
	require(pipe(ends) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0, "pipe");
	read_often("directory", directory);
	read_often("pipe", ends[0]);
	read_often("other end", ends[1]);
	read_often("socket", sockets[0]);
	read_often("device", open_read("/dev/zero"));
	int table = warm_file("table");
	syscall(SYS_dup3, directory, table, 0);
	show("directory", table, 100, 0);
	dup2(ends[0], table);
	read_often("pipe", table);
	syscall(SYS_dup3, sockets[1], table, 0);
	read_often("socket", table);
}

static void non_blocking(void)
{
	int table = warm_file("table"), flags = fcntl(table, F_GETFL);
	say("set", fcntl(table, F_SETFL, flags | O_NONBLOCK));
	show_all("table", table);
	say("changed", (fcntl(table, F_GETFL) ^ flags) == O_NONBLOCK);
	warm(table);
	show_all("table", table);
}

static void close_on_exec(void)
{
	int table = warm_file("table");
	say("before", fcntl(table, F_GETFD));
	say("set", fcntl(table, F_SETFD, FD_CLOEXEC));
	show_all("table", table);
	say("after", fcntl(table, F_GETFD));
}

static void try_to_flock(void)
{
	int table = open_read("table");
	say("shared", flock(table, LOCK_SH | LOCK_NB));
	say("exclusive", flock(table, LOCK_EX | LOCK_NB));
}

static void in_child(void (*run)(void))
{
	pid_t child = fork();
	require(child >= 0, "fork");
	if (child == 0) {
		run();
		_exit(0);
	}
	wait_for("child", child);
}

static void flock_stays_held(void)
{
	int locked = open_read("table");
	say("flock", flock(locked, LOCK_EX));
	int table = warm_file("table");
	in_child(try_to_flock);
	close(table);
	warm(locked);
	in_child(try_to_flock);
	say("shared", flock(locked, LOCK_SH));
	show_all("locked", locked);
	in_child(try_to_flock);
	close(locked);
	in_child(try_to_flock);
}

static void look_at_record_locks(void)
{
	int table = open_read("table");
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	say("look", fcntl(table, F_GETLK, &lock));
	say("type", lock.l_type);
	say("start", lock.l_start);
	say("length", lock.l_len);
	say("owner", lock.l_pid == getppid() ? 1 : lock.l_pid == -1 ? 2 : 3);
}

static void record_lock_stays_held(void)
{
	int table = open_read("table");
	struct flock lock = { .l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = 1000, .l_len = 50 };
	say("lock", fcntl(table, F_SETLK, &lock));
	warm(table);
	show_all("table", table);
	in_child(look_at_record_locks);
	lock.l_type = F_UNLCK;
	say("unlock", fcntl(table, F_SETLK, &lock));
	in_child(look_at_record_locks);
	show_all("table", table);
}

static void lock_of_the_description_stays_held(void)
{
	int table = open_read("table"), copy = dup(table);
	struct flock lock = { .l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = 1000, .l_len = 50 };
	say("lock", fcntl(table, F_OFD_SETLK, &lock));
	warm(table);
	show_all("table", table);
	in_child(look_at_record_locks);
	close(table);
	in_child(look_at_record_locks);
	close(copy);
	in_child(look_at_record_locks);
}

static void close_range_in_a_table_of_its_own(void)
{
	int table = warm_file("table"), other = open_read("other");
	say("close_range", close_range((unsigned int)other, ~0U, CLOSE_RANGE_UNSHARE));
	show_all("table", table);
	show("other", other, 100, 0);
	warm(table);
	show_all("table", table);
	say("number", open_read("sparse") - other);
	warm(other);
	show_all("sparse", other);
}

static void close_range_on_exec(void)
{
	int table = warm_file("table");
	say("close_range", close_range(3, ~0U, CLOSE_RANGE_CLOEXEC));
	say("flags", fcntl(table, F_GETFD));
	show_all("table", table);
	say("wrong", close_range(5, 3, 0));
	say("wrong", close_range(3, ~0U, 1 << 20));
	show_all("table", table);
}

struct own_table {
	bool is_raw;
	int table;
	pthread_barrier_t turns;
};

/* Both threads open files of the same numbers, in tables of their own, by turns. */
static void *read_by_an_own_table(void *given)
{
	struct own_table *own = given;
	say("unshare", own->is_raw ? syscall(SYS_unshare, CLONE_FILES) : unshare(CLONE_FILES));
	show_all("its table", own->table);
	int sparse = open_read("sparse");
	warm(sparse);
	show_all("its sparse", sparse);
	pthread_barrier_wait(&own->turns);
	pthread_barrier_wait(&own->turns);
	show_all("its sparse", sparse);
	close(own->table);
	say("its number", open_read("other") - own->table);
	warm(own->table);
	show_all("its other", own->table);
	pthread_barrier_wait(&own->turns);
	pthread_barrier_wait(&own->turns);
	show_all("its other", own->table);
	show_all("its sparse", sparse);
	return NULL;
}

static void with_a_table_of_its_own(bool is_raw)
{
	struct own_table own = { .is_raw = is_raw, .table = warm_file("table") };
	pthread_t thread;
	pthread_barrier_init(&own.turns, NULL, 2);
	require(pthread_create(&thread, NULL, read_by_an_own_table, &own) == 0, "thread");
	pthread_barrier_wait(&own.turns);
	show_all("table", own.table);
	int other = fcntl(open_read("other"), F_DUPFD, own.table + 5);
	warm(other);
	show_all("other", other);
	syscall(SYS_close, own.table + 1);
	int sparse = open_read("sparse");
	say("sparse", sparse - own.table);
	show_all("sparse", sparse);
	pthread_barrier_wait(&own.turns);
	pthread_barrier_wait(&own.turns);
	show_all("table", own.table);
	warm(own.table);
	show_all("table", own.table);
	pthread_barrier_wait(&own.turns);
	pthread_join(thread, NULL);
	show_all("table", own.table);
	show_all("sparse", sparse);
	show_all("other", other);
}

static void thread_with_a_table_of_its_own(void)
{
	with_a_table_of_its_own(false);
}

static void raw_thread_with_a_table_of_its_own(void)
{
	with_a_table_of_its_own(true);
}

static void position_stays(void)
{
	int table = open_read("table");
	char bytes[1000];
	say("read", read(table, bytes, sizeof(bytes)));
	warm(table);
	show_all("table", table);
	say("position", lseek(table, 0, SEEK_CUR));
	say("read", read(table, bytes, sizeof(bytes)));
	printf("sum: %016lx\n", (unsigned long)sum_of(bytes, sizeof(bytes)));
	show_all("table", table);
	say("seek", lseek(table, 3 * MIB, SEEK_SET));
	show("table", table, 4096, 5 * MIB);
	say("read", read(table, bytes, sizeof(bytes)));
	printf("sum: %016lx\n", (unsigned long)sum_of(bytes, sizeof(bytes)));
	say("position", lseek(table, 0, SEEK_CUR));
	say("end", lseek(table, 0, SEEK_END));
}

const struct test_case descriptor_cases[] = {
	{ "reads_all_over", true, reads_all_over },
	{ "close_and_open_another", true, close_and_open_another },
	{ "raw_close_and_open_another", true, raw_close_and_open_another },
	{ "dup2_of_another_over_it", true, dup2_of_another_over_it },
	{ "raw_dup2_of_another_over_it", true, raw_dup2_of_another_over_it },
	{ "dup3_of_another_over_it", true, dup3_of_another_over_it },
	{ "dup2_of_it_over_another", true, dup2_of_it_over_another },
	{ "fclose_and_open_another", true, fclose_and_open_another },
	{ "freopen_of_another", true, freopen_of_another },
	{ "close_range_and_open_another", true, close_range_and_open_another },
	{ "raw_close_range_and_open_another", true, raw_close_range_and_open_another },
	{ "raw_close_range_and_other_leases", true, raw_close_range_and_other_leases },
	{ "closefrom_and_open_another", true, closefrom_and_open_another },
	{ "close_each_number", true, close_each_number },
	{ "raw_close_each_number", true, raw_close_each_number },
	{ "close_each_number_below_a_hard_limit", false, close_each_number_below_a_hard_limit },
	{ "close_what_the_process_file_system_lists", true, close_what_the_process_file_system_lists },
	{ "f_dupfd", true, f_dupfd },
	{ "dup_and_close_the_original", true, dup_and_close_the_original },
	{ "closed_number", true, closed_number },
	{ "lowest_free_numbers", true, lowest_free_numbers },
	{ "as_many_numbers_as_before", true, as_many_numbers_as_before },
	{ "lease_where_no_number_is_left", true, lease_where_no_number_is_left },
	{ "limit_lowered_after_a_lease", true, limit_lowered_after_a_lease },
	{ "limit_stays_the_same", true, limit_stays_the_same },
	{ "limit_raised_after_a_lease", true, limit_raised_after_a_lease },
	{ "raw_dup2_over_high_numbers", true, raw_dup2_over_high_numbers },
	{ "raw_dup2_over_one_high_number", true, raw_dup2_over_one_high_number },
	{ "dup2_onto_the_highest_number", true, dup2_onto_the_highest_number },
	{ "standard_input", true, standard_input },
	{ "reopened_by_the_process_file_system", true, reopened_by_the_process_file_system },
	{ "opened_for_reading_and_writing", false, opened_for_reading_and_writing },
	{ "opened_for_writing", false, opened_for_writing },
	{ "opened_for_its_path", false, opened_for_its_path },
	{ "raw_replaced_by_one_for_writing", true, raw_replaced_by_one_for_writing },
	{ "replaced_by_its_path", true, replaced_by_its_path },
	{ "read_past_the_page_cache", false, read_past_the_page_cache },
	{ "numbers_that_are_no_files", true, numbers_that_are_no_files },
	{ "non_blocking", true, non_blocking },
	{ "close_on_exec", true, close_on_exec },
	{ "flock_stays_held", true, flock_stays_held },
	{ "record_lock_stays_held", true, record_lock_stays_held },
	{ "lock_of_the_description_stays_held", true, lock_of_the_description_stays_held },
	{ "close_range_in_a_table_of_its_own", true, close_range_in_a_table_of_its_own },
	{ "close_range_on_exec", true, close_range_on_exec },
	{ "thread_with_a_table_of_its_own", true, thread_with_a_table_of_its_own },
	{ "raw_thread_with_a_table_of_its_own", true, raw_thread_with_a_table_of_its_own },
	{ "position_stays", true, position_stays },
	{ NULL, false, NULL },
};
