/* Files that are overwritten, by whom and whenever. */

#include "cases.h"

#include <sched.h>
#include <setjmp.h>
#include <sys/file.h>
#include <sys/sendfile.h>
#include <sys/time.h>
#include <sys/uio.h>

#define PAGE 4096L
#define HANDLERS_STACK 65536

/* Writes what is there already at some places, often enough that the file gets a lease if it can have one. */
static void warm_writing(int number)
{
	char block[PAGE];
	for (long place = 0; place < 500; place++) {
		off_t offset = place * 37 % 1024 * PAGE;
		require(pread(number, block, sizeof(block), offset) == PAGE, "a block is read");
		require(pwrite(number, block, sizeof(block), offset) == PAGE, "a block is written");
		usleep(100);
	}
}

static int warmed_to_write(const char *name)
{
	int number = open_write(name);
	warm_writing(number);
	return number;
}

static void put(const char *what, int number, char byte, size_t length, off_t offset)
{
	char *bytes = malloc(length + 1);
	require(bytes != NULL, "memory");
	memset(bytes, byte, length);
	say(what, pwrite(number, bytes, length, offset));
	free(bytes);
}

static void try_write(const char *what, int number, const void *data, size_t length, off_t offset)
{
	const void *volatile hidden_data = data;
	volatile size_t hidden_length = length;
	say(what, pwrite(number, hidden_data, hidden_length, offset));
}

static void show_size(const char *what, int number)
{
	struct stat facts;
	say(what, fstat(number, &facts) == 0 ? (long)facts.st_size : -1);
}

static void show_by_name(const char *what, const char *name)
{
	static char bytes[64 * 1024];
	uint64_t sum = 0;
	ssize_t count;
	int number = open_read(name);
	while ((count = read(number, bytes, sizeof(bytes))) > 0)
		sum = sum * 31 + sum_of(bytes, (size_t)count);
	printf("%s: %016lx\n", what, (unsigned long)sum);
	fflush(stdout);
	close(number);
}

static void show_flags(const char *what, int number)
{
	say(what, fcntl(number, F_GETFL));
}

static void writes_all_over(void)
{
	int table = warmed_to_write("table");
	for (long place = 0; place < 64; place++)
		put("written", table, (char)place, (size_t)(1 + place * 1111), place * 131071 % (TABLE_SIZE - 80000));
	show_all("table", table);
	show_by_name("by name", "table");
	say("synced", fdatasync(table));
	say("closed", close(table));
	show_by_name("closed", "table");
}

static void writes_of_two_descriptions(void)
{
	int one = warmed_to_write("table"), other = warmed_to_write("table");
	for (long place = 0; place < 100; place++) {
		put("one", one, (char)place, 5000, place * 70001);
		show("other", other, 5000, place * 70001);
		put("other", other, (char)(place + 1), 500, place * 70001 + 100);
		show("one", one, 5000, place * 70001);
	}
	show_by_name("by name", "table");
}

static void writes_and_mappings_agree(void)
{
	int table = warmed_to_write("table");
	char *mapped = mmap(NULL, TABLE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, table, 0);
	require(mapped != MAP_FAILED, "mmap");
	for (long place = 0; place < 20; place++) {
		off_t offset = place * 400000;
		put("written", table, (char)('a' + place), 6000, offset);
		say("mapped", mapped[offset] == 'a' + place && mapped[offset + 5999] == 'a' + place);
		mapped[offset + 3] = 'Z';
		show("read", table, 6000, offset);
	}
	say("synced", msync(mapped, TABLE_SIZE, MS_SYNC));
	warm_writing(table);
	put("after", table, 'q', 6000, MIB);
	say("mapped after", mapped[MIB] == 'q');
	show_by_name("by name", "table");
}

static void calls_of_all_kinds_are_mixed(void)
{
	static char bytes[20000];
	int table = warmed_to_write("table");
	struct iovec parts[2] = { { bytes, 100 }, { bytes + 5000, 9000 } };
	memset(bytes, 'm', sizeof(bytes));
	say("lseek", lseek(table, 3 * MIB, SEEK_SET));
	say("write", write(table, bytes, 10000));
	show("after write", table, 20000, 3 * MIB - 5000);
	say("pwritev", pwritev(table, parts, 2, 5 * MIB));
	show("after pwritev", table, 20000, 5 * MIB - 5000);
	put("pwrite", table, 'p', 3000, 5 * MIB + 50);
	say("preadv", preadv(table, parts, 2, 5 * MIB));
	say("bytes", (long)(sum_of(bytes, sizeof(bytes)) >> 1));
	say("read", read(table, bytes, 100));
	say("position", lseek(table, 0, SEEK_CUR));
	put("pwrite again", table, 'r', 3000, 6 * MIB);
	show_all("table", table);
	show_by_name("by name", "table");
}

static void stream_and_writes_are_mixed(void)
{
	FILE *stream = fopen("table", "r+");
	require(stream != NULL, "fopen");
	int table = fileno(stream);
	warm_writing(table);
	say("seek", fseek(stream, 2 * MIB, SEEK_SET));
	say("fwrite", (long)fwrite("hello", 1, 5, stream));
	say("flush", fflush(stream));
	show("hello", table, 10, 2 * MIB);
	put("written", table, 'x', 3, 2 * MIB + 5);
	say("seek", fseek(stream, 2 * MIB, SEEK_SET));
	char text[9] = { 0 };
	say("fread", (long)fread(text, 1, 8, stream));
	printf("%s\n", text);
	say("closed", fclose(stream));
	show_by_name("by name", "table");
}

static void copies_of_what_was_written(void)
{
	int table = warmed_to_write("table"), out = open("out", O_RDWR | O_CREAT, 0644);
	require(out >= 0, "out");
	put("written", table, 's', 100000, 2 * MIB - 50000);
	off_t from = 2 * MIB - 60000;
	say("sendfile", sendfile(out, table, &from, 120000));
	show("sent", out, 120000, 0);
	loff_t source = 2 * MIB - 60000, target = 5 * MIB;
	say("copied", copy_file_range(table, &source, table, &target, 60000, 0));
	show("copy", table, 70000, 5 * MIB - 5000);
	put("written", table, 't', 100000, 5 * MIB);
	show_by_name("by name", "table");
}

static void appends_as_soon_as_it_is_asked_for(void)
{
	int table = warmed_to_write("table");
	int flags = fcntl(table, F_GETFL);
	say("append", fcntl(table, F_SETFL, flags | O_APPEND));
	put("appended", table, 'A', 5000, 0);
	show_size("size", table);
	warm_writing(open_write("other"));
	put("appended", table, 'B', 5000, MIB);
	say("in place", fcntl(table, F_SETFL, flags));
	put("written", table, 'C', 5000, MIB);
	warm_writing(table);
	put("written", table, 'D', 500, MIB);
	show_size("size", table);
	show_by_name("by name", "table");
}

static void appends_after_a_raw_call(void)
{
	int table = warmed_to_write("table");
	long flags = syscall(SYS_fcntl, table, F_GETFL);
	say("append", syscall(SYS_fcntl, table, F_SETFL, flags | O_APPEND));
	put("appended", table, 'A', 5000, 0);
	show_size("size", table);
	show_by_name("by name", "table");
}

static void appends_after_a_child_asked_for_it(void)
{
	int table = warmed_to_write("table");
	pid_t child = fork();
	if (child == 0) {
		int flags = fcntl(table, F_GETFL);
		_exit(fcntl(table, F_SETFL, flags | O_APPEND) == 0 ? 0 : 1);
	}
	wait_for("child", child);
	put("appended", table, 'A', 5000, 0);
	show_size("size", table);
	show_by_name("by name", "table");
}

static void flags_are_those_of_the_program(void)
{
	int table = warmed_to_write("table");
	show_flags("flags", table);
	int copy = dup(table), second = dup2(table, 200), third = dup3(table, 201, O_CLOEXEC);
	int fourth = fcntl(table, F_DUPFD, 300), fifth = fcntl(table, F_DUPFD_CLOEXEC, 300);
	show_flags("dup", copy);
	show_flags("dup2", second);
	show_flags("dup3", third);
	show_flags("F_DUPFD", fourth);
	show_flags("F_DUPFD_CLOEXEC", fifth);
	say("closed on exec", fcntl(third, F_GETFD) + 10 * fcntl(fifth, F_GETFD) + 100 * fcntl(fourth, F_GETFD));
	pid_t child = fork();
	if (child == 0) {
		show_flags("child", table);
		show_flags("child's", second);
		warm_writing(table);
		show_flags("child", table);
		_exit(0);
	}
	wait_for("child", child);
	say("set", fcntl(table, F_SETFL, fcntl(table, F_GETFL) | O_NONBLOCK));
	show_flags("flags", table);
	warm_writing(table);
	show_flags("flags", table);
	say("closed", close(table));
	show_flags("closed", table);
	show_flags("dup", copy);
	put("written", copy, 'w', 5000, MIB);
	show_by_name("by name", "table");
}

static void flags_of_a_number_that_was_given_anew(void)
{
	int table = warmed_to_write("table");
	close(table);
	int other = open("other", O_RDWR | O_DIRECT);
	require(other == table, "the same number");
	show_flags("other", other);
	syscall(SYS_close, other);
	int again = (int)syscall(SYS_openat, AT_FDCWD, "other", O_RDONLY);
	show_flags("raw", again);
}

/* Nothing of the library is seen in them. */
static void flags_are_those_that_the_kernel_has(void)
{
	int table = warmed_to_write("table");
	say("raw", syscall(SYS_fcntl, table, F_GETFL));
	char command[200];
	snprintf(command, sizeof(command), "grep flags /proc/self/fdinfo/%d; cksum <&%d", table, table);
	say("shell", system(command));
	put("written", table, 'w', 5000, MIB);
	show_by_name("by name", "table");
}

static void directly_at_the_wish_of_the_program(void)
{
	int table = warmed_to_write("table");
	static char page[2 * PAGE] __attribute__((aligned(4096)));
	memset(page, 'd', sizeof(page));
	say("set", fcntl(table, F_SETFL, fcntl(table, F_GETFL) | O_DIRECT));
	show_flags("flags", table);
	for (int count = 0; count < 100; count++)
		require(pwrite(table, page, PAGE, count * PAGE) == PAGE, "written");
	show_flags("flags", table);
	say("cleared", fcntl(table, F_SETFL, fcntl(table, F_GETFL) & ~O_DIRECT));
	warm_writing(table);
	show_flags("flags", table);
	show_by_name("by name", "table");
}

static void durable_writes(void)
{
	for (int which = 0; which < 2; which++) {
		int table = open("table", O_RDWR | (which == 0 ? O_SYNC : O_DSYNC));
		require(table >= 0, "table");
		warm_writing(table);
		put("written", table, 'y', 5000, MIB);
		show_flags("flags", table);
		show("table", table, 6000, MIB);
		close(table);
	}
}

static void descriptions_that_only_write_or_only_read(void)
{
	int writing = open("table", O_WRONLY), reading = open_read("table");
	for (int count = 0; count < 100; count++) {
		put("written", writing, (char)count, 300, count * 70000L);
		usleep(100);
	}
	warm(reading);
	put("written", writing, 'w', 5000, MIB);
	show("read", reading, 6000, MIB);
	put("by one that reads", reading, 'v', 5000, MIB);
	show("by one that writes", writing, 5000, MIB);
	show_by_name("by name", "table");
}

static void around_the_end(void)
{
	int table = warmed_to_write("table");
	put("to the end", table, 'a', 100, TABLE_SIZE - 100);
	show_size("size", table);
	put("over the end", table, 'b', 100, TABLE_SIZE - 50);
	show_size("size", table);
	put("behind the end", table, 'c', 100, TABLE_SIZE + 5000);
	show_size("size", table);
	show("hole", table, 10000, TABLE_SIZE - 1000);
	put("far away", table, 'd', 10, 3 * TABLE_SIZE);
	show_size("size", table);
	warm_writing(table);
	put("in what has grown", table, 'e', 100, TABLE_SIZE + 2000);
	show("grown", table, 10000, TABLE_SIZE);
	show_by_name("by name", "table");
}

static void grows_step_by_step(void)
{
	int table = warmed_to_write("table");
	for (long place = 0; place < 300; place++) {
		off_t end = TABLE_SIZE + place * 1000;
		require(pwrite(table, "0123456789", 10, end + 990) == 10, "appended");
		require(pwrite(table, "abc", 3, place * 5000) == 3, "written");
		struct stat facts;
		require(fstat(table, &facts) == 0 && facts.st_size == end + 1000, "it has its size");
	}
	show_by_name("by name", "table");
}

static void say_end(const char *what, int number, off_t offset)
{
	say(what, lseek(number, offset, SEEK_END));
	say("position", lseek(number, 0, SEEK_CUR));
}

/* Its end is where the last writer put it, and positions are those of the description. */
static void ends_of_files(void)
{
	int table = warmed_to_write("table"), other = open_write("table");
	say_end("end", table, 0);
	say_end("before the end", table, -5000);
	say_end("behind the end", table, 5000);
	say_end("before the file", table, -TABLE_SIZE - 1);
	say_end("far away", table, INT64_MAX);
	put("grown by another", other, 'g', 5000, TABLE_SIZE);
	say_end("end", table, 0);
	say("written", write(table, "end", 3));
	say_end("end", other, 0);
	pid_t child = fork();
	if (child == 0) {
		say("cut by a child", ftruncate(other, 5 * MIB));
		say_end("end", table, -1);
		_exit(0);
	}
	wait_for("child", child);
	say("position", lseek(table, 0, SEEK_CUR));
	say_end("end", table, 0);
	say("data", lseek(table, MIB, SEEK_DATA));
	say("hole", lseek(table, MIB, SEEK_HOLE));
	say("origin", lseek(table, 0, 77));
	show_by_name("by name", "table");
}

static void holes_are_filled(void)
{
	int sparse = open_write("sparse");
	char block[PAGE];
	for (long place = 0; place < 500; place++) {
		off_t offset = place % 250 * PAGE;
		require(pread(sparse, block, sizeof(block), offset) == PAGE, "read");
		require(pwrite(sparse, block, sizeof(block), offset) == PAGE, "written");
		usleep(100);
	}
	put("before", sparse, 'a', 5000, MIB - 2500);
	put("within", sparse, 'b', 5000, 2 * MIB - 77);
	put("after", sparse, 'c', 5000, 3 * MIB - 2500);
	show_by_name("by name", "sparse");
	show_size("size", sparse);
}

static void cut_and_punched(void)
{
	int table = warmed_to_write("table");
	say("punched", fallocate(table, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, MIB, MIB));
	put("within", table, 'h', 5000, MIB + 100);
	show("hole", table, 10000, MIB);
	warm_writing(table);
	say("cut", ftruncate(table, 5 * MIB));
	put("behind the cut", table, 'i', 5000, 6 * MIB);
	show("gap", table, 2 * MIB, 5 * MIB - 1000);
	show_size("size", table);
	say("cut by name", truncate("table", 5 * MIB));
	put("before the cut", table, 'j', 5000, 4 * MIB);
	show_by_name("by name", "table");
}

static void removed_and_renamed(void)
{
	int table = warmed_to_write("table");
	say("renamed", rename("table", "moved"));
	put("written", table, 'r', 5000, MIB);
	show_by_name("moved", "moved");
	warm_writing(table);
	say("removed", unlink("moved"));
	put("written", table, 's', 5000, MIB);
	show_all("removed", table);
	struct stat facts;
	say("names", fstat(table, &facts) == 0 ? (long)facts.st_nlink : -1);
}

static int signals_seen;

static void count_signal(int number)
{
	(void)number;
	signals_seen++;
}

static void beyond_the_limit_of_sizes(void)
{
	int table = warmed_to_write("table");
	struct sigaction action = { .sa_handler = count_signal };
	sigaction(SIGXFSZ, &action, NULL);
	struct rlimit limit = { 4 * MIB + 100, RLIM_INFINITY };
	require(setrlimit(RLIMIT_FSIZE, &limit) == 0, "setrlimit");
	put("below", table, 'a', 5000, 3 * MIB);
	say("signals", signals_seen);
	put("over it", table, 'b', 5000, 4 * MIB - 1000);
	say("signals", signals_seen);
	put("behind it", table, 'c', 5000, 5 * MIB);
	say("signals", signals_seen);
	put("at it", table, 'd', 5000, 4 * MIB + 100);
	say("signals", signals_seen);
	signal(SIGXFSZ, SIG_IGN);
	put("ignored", table, 'e', 5000, 5 * MIB);
	limit.rlim_cur = RLIM_INFINITY;
	require(setrlimit(RLIMIT_FSIZE, &limit) == 0, "setrlimit");
	put("without it", table, 'f', 5000, 5 * MIB);
	show_by_name("by name", "table");
}

static void ended_by_the_limit_of_sizes(void)
{
	pid_t child = fork();
	if (child == 0) {
		int table = warmed_to_write("table");
		struct rlimit limit = { MIB, RLIM_INFINITY }, no_core = { 0, 0 };
		setrlimit(RLIMIT_CORE, &no_core);
		setrlimit(RLIMIT_FSIZE, &limit);
		put("behind it", table, 'c', 5000, 5 * MIB);
		_exit(0);
	}
	wait_for("child", child);
	show_by_name("by name", "table");
}

static void a_limit_of_sizes_from_the_beginning(void)
{
	struct sigaction action = { .sa_handler = count_signal };
	sigaction(SIGXFSZ, &action, NULL);
	struct rlimit limit = { 6 * MIB, RLIM_INFINITY };
	require(setrlimit(RLIMIT_FSIZE, &limit) == 0, "setrlimit");
	int table = warmed_to_write("table");
	put("below", table, 'a', 5000, 5 * MIB);
	put("behind it", table, 'b', 5000, 7 * MIB);
	say("signals", signals_seen);
	show_by_name("by name", "table");
}

static void bad_arguments(void)
{
	int table = warmed_to_write("table");
	char *pages = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	require(pages != MAP_FAILED && munmap(pages + PAGE, PAGE) == 0, "a page before nothing");
	memset(pages, 'b', PAGE);
	try_write("null", table, NULL, 100, 0);
	try_write("no memory", table, (void *)PAGE, 100, 0);
	try_write("no bytes", table, NULL, 0, 0);
	try_write("no bytes beyond", table, pages, 0, 2 * TABLE_SIZE);
	try_write("negative", table, pages, 100, -1);
	try_write("the least", table, pages, 100, INT64_MIN);
	try_write("the greatest", table, pages, 100, INT64_MAX);
	try_write("negative length", table, pages, (size_t)-1, 0);
	try_write("closed", 250, pages, 100, 0);
	try_write("minus one", -1, pages, 100, 0);
	show_size("size", table);
	put("after", table, 'x', 100, MIB);
	show_by_name("by name", "table");
}

static void from_a_mapping_of_the_file_itself(void)
{
	int table = warmed_to_write("table");
	char *mapped = mmap(NULL, TABLE_SIZE, PROT_READ, MAP_SHARED, table, 0);
	require(mapped != MAP_FAILED, "mmap");
	say("copied", pwrite(table, mapped + MIB, 100000, 5 * MIB));
	say("over two tiers", pwrite(table, mapped + 2 * MIB - 5000, 10000, 6 * MIB));
	show_by_name("by name", "table");
}

static void numbers_that_are_not_open(void)
{
	warmed_to_write("table");
	long written = 0;
	for (int number = 250; number < 8000; number++)
		written += pwrite(number, "x", 1, 0) >= 0 || errno != EBADF;
	say("written", written);
	show_by_name("by name", "table");
}

static void closed_and_another_opened(void)
{
	int table = warmed_to_write("table");
	close(table);
	int other = open_write("other");
	require(other == table, "the same number");
	put("other", other, 'o', 5000, MIB);
	warm_writing(other);
	syscall(SYS_close, other);
	int small = (int)syscall(SYS_openat, AT_FDCWD, "small", O_RDWR);
	require(small == table, "the same number");
	put("small", small, 's', 500, 10);
	require(dup2(open_write("table"), small) == small, "dup2");
	put("table", small, 't', 5000, 2 * MIB);
	show_by_name("table", "table");
	show_by_name("other", "other");
	show_by_name("small", "small");
}

static void replaced_by_a_raw_call(void)
{
	int table = warmed_to_write("table"), other = open_write("other");
	syscall(SYS_dup2, other, table);
	put("other", table, 'o', 5000, MIB);
	show_by_name("table", "table");
	show_by_name("other", "other");
	close(table);
	int reading = open_read("table");
	require(reading == table, "the same number");
	put("reading", table, 'r', 100, 0);
	show_by_name("table", "table");
}

static void all_numbers_are_closed_by_a_raw_call(void)
{
	int table = warmed_to_write("table");
	syscall(SYS_close_range, 3, ~0U, 0);
	put("closed", table, 'c', 5000, MIB);
	for (int round = 0; round < 3; round++) {
		table = warmed_to_write("table");
		put("written", table, (char)('d' + round), 5000, MIB);
		put("grown", table, 'g', 5000, TABLE_SIZE + 5000 * round);
		show("grown", table, 6000, TABLE_SIZE + 5000 * round);
		syscall(SYS_close_range, 3, ~0U, 0);
	}
	show_by_name("table", "table");
}

static void a_stream_is_opened_again_for_more(void)
{
	int other = open_write("table");
	FILE *stream = fopen("table", "r");
	require(stream != NULL, "fopen");
	warm_writing(other);
	warm(fileno(stream));
	stream = freopen("table", "r+", stream);
	require(stream != NULL, "freopen");
	for (long place = 0; place < 40; place++)
		put("written", fileno(stream), (char)place, 3000, TABLE_SIZE - 20000 + place * 1000);
	warm_writing(fileno(stream));
	put("written", fileno(stream), 'w', 3000, MIB);
	show_by_name("table", "table");
}

static void reopened_for_reading_by_raw_calls(void)
{
	int table = warmed_to_write("table");
	syscall(SYS_close, table);
	require(syscall(SYS_openat, AT_FDCWD, "table", O_RDONLY) == table, "the same number");
	put("reading", table, 'r', 100, 0);
	syscall(SYS_close, table);
	require(syscall(SYS_openat, AT_FDCWD, "table", O_PATH) == table, "the same number");
	put("a path", table, 'p', 100, 0);
	show_by_name("table", "table");
}

/* Locks of a process go when it closes any descriptor of their file. */
static void try_lock(const char *what, short type)
{
	pid_t child = fork();
	if (child == 0) {
		int number = open_write("table");
		struct flock lock = { .l_type = type, .l_whence = SEEK_SET, .l_start = 0, .l_len = 100 };
		say(what, fcntl(number, F_SETLK, &lock));
		_exit(0);
	}
	require(waitpid(child, NULL, 0) == child, "waitpid");
}

static void locks_stay(void)
{
	int table = open_write("table");
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 100 };
	say("locked", fcntl(table, F_SETLK, &lock));
	warm_writing(table);
	try_lock("while there is a lease", F_WRLCK);
	put("written", table, 'l', 5000, MIB);
	show_by_name("by name", "table");
	say("locked again", fcntl(table, F_SETLK, &lock));
	warm_writing(table);
	say("cut", ftruncate(table, TABLE_SIZE - 5));
	put("written", table, 'm', 5000, MIB);
	try_lock("after a lease", F_RDLCK);
	lock.l_type = F_UNLCK;
	say("unlocked", fcntl(table, F_SETLK, &lock));
	try_lock("unlocked", F_WRLCK);
	say("flock", flock(table, LOCK_EX));
	warm_writing(table);
	int other = open_write("table");
	say("flock of another", flock(other, LOCK_EX | LOCK_NB));
}

static void locks_are_kept_over_exec(void)
{
	int ends[2];
	char byte;
	require(pipe2(ends, O_CLOEXEC) == 0, "pipe2");
	pid_t child = fork();
	if (child == 0) {
		int table = warmed_to_write("table");
		struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 100 };
		require(fcntl(table, F_SETLK, &lock) == 0, "locked");
		execlp("sh", "sh", "-c", "sleep 1", NULL);
		_exit(1);
	}
	close(ends[1]);
	/* It ends with the program that the child was. */
	say("executed", read(ends[0], &byte, 1));
	try_lock("while it runs", F_WRLCK);
	wait_for("child", child);
	try_lock("when it has ended", F_WRLCK);
}

static void locks_of_a_file_that_has_a_lease_already(void)
{
	int table = warmed_to_write("table"), other = open_write("table");
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 100 };
	say("locked", fcntl(table, F_SETLK, &lock));
	say("cut", ftruncate(table, TABLE_SIZE - 5));
	warm_writing(table);
	syscall(SYS_close, open_read("small"));
	try_lock("while it is open", F_WRLCK);
	warm_writing(other);
	try_lock("while another one has a lease", F_WRLCK);
	say("closed", close(other));
	try_lock("after a close", F_WRLCK);
	say("locked by lockf", lockf(table, F_TLOCK, 100));
	say("tested", lockf(table, F_TEST, 100));
	warm_writing(table);
	try_lock("locked by lockf", F_RDLCK);
	say("unlocked", lockf(table, F_ULOCK, 100));
	try_lock("unlocked", F_RDLCK);
	say("nonsense", lockf(table, 77, 100));
	show_by_name("by name", "table");
}

static void times_follow_writes(void)
{
	int table = warmed_to_write("table");
	struct stat before, after;
	const struct timespec times[2] = { { 1000000000, 5 }, { 1000000000, 7 } };
	say("set", futimens(table, times));
	fstat(table, &before);
	say("as set", before.st_mtim.tv_sec == 1000000000 && before.st_mtim.tv_nsec == 7);
	usleep(20000);
	put("written", table, 't', 5000, MIB);
	fstat(table, &after);
	say("newer", after.st_mtim.tv_sec > 1000000000 && after.st_ctim.tv_sec >= before.st_ctim.tv_sec);
	warm_writing(table);
	usleep(20000);
	fstat(table, &before);
	usleep(20000);
	put("written", table, 'u', 5000, MIB);
	struct stat by_name;
	say("stat", stat("table", &by_name));
	say("newer again", by_name.st_mtim.tv_sec > before.st_mtim.tv_sec || by_name.st_mtim.tv_nsec > before.st_mtim.tv_nsec);
	say("size", by_name.st_size);
}

static void a_child_writes(void)
{
	int table = warmed_to_write("table");
	pid_t child = fork();
	if (child == 0) {
		put("child", table, 'c', 5000, MIB);
		warm_writing(table);
		put("child", table, 'd', 5000, 3 * MIB);
		show("child", table, 6000, 3 * MIB);
		_exit(0);
	}
	wait_for("child", child);
	show("parent", table, 6000, MIB);
	show("parent", table, 6000, 3 * MIB);
	put("parent", table, 'p', 100, MIB);
	show_by_name("by name", "table");
}

static int write_in_shared_memory(void *argument)
{
	int table = *(int *)argument;
	(void)!pwrite(table, "vfork", 5, 5 * MIB);
	close(table);
	return 0;
}

static void a_child_that_shares_the_memory_writes(void)
{
	static char stack[HANDLERS_STACK] __attribute__((aligned(16)));
	int table = warmed_to_write("table");
	pid_t child = clone(write_in_shared_memory, stack + sizeof(stack), CLONE_VM | CLONE_VFORK | SIGCHLD, &table);
	require(child > 0, "clone");
	wait_for("child", child);
	show("parent", table, 100, 5 * MIB);
	put("parent", table, 'p', 100, 5 * MIB);
	show_flags("flags", table);
	show_by_name("by name", "table");
}

static void children_are_killed_while_they_write(void)
{
	atomic_long *writes = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	require(writes != MAP_FAILED, "shared memory");
	for (int round = 0; round < 20; round++) {
		atomic_store(writes, 0);
		pid_t child = fork();
		if (child == 0) {
			int table = open_write("table");
			static char block[PAGE];
			for (long place = 0;; place = (place + 1) % 512) {
				memset(block, 'a' + round, sizeof(block));
				(void)!pwrite(table, block, sizeof(block), 2 * place * PAGE);
				atomic_fetch_add(writes, 1);
			}
		}
		while (atomic_load(writes) < 600 + 17 * round)
			usleep(100);
		kill(child, SIGKILL);
		wait_for("child", child);
	}
	int table = warmed_to_write("table");
	/* Whole blocks of one round, and between them what was there. */
	static char block[PAGE];
	for (long place = 0; place < 512; place++) {
		require(pread(table, block, sizeof(block), 2 * place * PAGE) == PAGE, "read");
		for (long at = 1; at < PAGE; at++)
			require(block[at] == block[0], "a block is that of one write");
		memset(block, 'z', sizeof(block));
		require(pwrite(table, block, sizeof(block), 2 * place * PAGE) == PAGE, "written");
	}
	show_by_name("by name", "table");
}

static void exec_with_the_descriptor(void)
{
	int table = warmed_to_write("table");
	put("written", table, 'e', 5000, MIB);
	char command[100];
	snprintf(command, sizeof(command), "cksum <&%d; printf hello >&%d", table, table);
	say("shell", system(command));
	show_by_name("by name", "table");
	put("written", table, 'f', 5000, MIB);
	show_by_name("by name", "table");
}

static void through_a_socket(void)
{
	int table = warmed_to_write("table"), pair[2];
	require(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "socketpair");
	char byte = 'x', control[CMSG_SPACE(sizeof(int))] = { 0 };
	struct iovec part = { &byte, 1 };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control) };
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);
	*header = (struct cmsghdr){ .cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS };
	memcpy(CMSG_DATA(header), &table, sizeof(int));
	require(sendmsg(pair[0], &message, 0) == 1, "sendmsg");
	close(table);
	require(recvmsg(pair[1], &message, 0) == 1, "recvmsg");
	int received;
	memcpy(&received, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(int));
	put("received", received, 's', 5000, MIB);
	warm_writing(received);
	put("received", received, 't', 500, MIB);
	show_by_name("by name", "table");
}

#define WRITERS 4

struct writer {
	int number, place;
	bool is_closed_by_others;
};

static void *write_own_blocks(void *argument)
{
	const struct writer *writer = argument;
	char block[PAGE];
	for (int round = 0; round < 30; round++)
		for (long place = writer->place; place < 1024; place += 16) {
			memset(block, round + writer->place, sizeof(block));
			require(pwrite(writer->number, block, sizeof(block), place * PAGE) == PAGE, "written");
			require(pread(writer->number, block, sizeof(block), place * PAGE) == PAGE, "read");
			for (long at = 0; at < PAGE; at++)
				require(block[at] == (char)(round + writer->place), "it reads what it wrote");
		}
	return NULL;
}

static void threads_write_blocks_of_their_own(void)
{
	pthread_t threads[WRITERS];
	static struct writer writers[WRITERS];
	int table = warmed_to_write("table");
	for (int place = 0; place < WRITERS; place++) {
		writers[place] = (struct writer){ .number = place % 2 == 0 ? table : open_write("table"), .place = place };
		require(pthread_create(&threads[place], NULL, write_own_blocks, &writers[place]) == 0, "a thread");
	}
	for (int place = 0; place < WRITERS; place++)
		require(pthread_join(threads[place], NULL) == 0, "joined");
	show_all("table", table);
	show_by_name("by name", "table");
}

static atomic_bool is_over;

static void *count_up(void *argument)
{
	const struct writer *writer = argument;
	for (uint64_t count = 1; !atomic_load(&is_over); count++)
		require(pwrite(writer->number, &count, sizeof(count), 5 * MIB + 8 * writer->place) == 8, "written");
	return NULL;
}

static void counters_never_go_back(void)
{
	pthread_t threads[2];
	static struct writer writers[2];
	for (int place = 0; place < 2; place++) {
		writers[place] = (struct writer){ .number = warmed_to_write("table"), .place = place };
		require(pthread_create(&threads[place], NULL, count_up, &writers[place]) == 0, "a thread");
	}
	int reading[3] = { open_read("table"), open_write("table"), warmed("table") };
	uint64_t last[2] = { 0, 0 };
	for (int round = 0; round < 3000; round++) {
		uint64_t now[2];
		require(pread(reading[round % 3], now, sizeof(now), 5 * MIB) == 16, "read");
		for (int place = 0; place < 2; place++) {
			require(round == 0 || now[place] >= last[place], "a counter goes on");
			last[place] = now[place];
		}
	}
	atomic_store(&is_over, true);
	for (int place = 0; place < 2; place++)
		pthread_join(threads[place], NULL);
	(void)!pwrite(reading[1], "0123456789012345", 16, 5 * MIB);
	show_by_name("by name", "table");
}

static void *write_to_what_the_number_is(void *argument)
{
	const struct writer *writer = argument;
	while (!atomic_load(&is_over))
		(void)!pwrite(writer->number, "0123", 4, 8 * writer->place + 3 * MIB);
	return NULL;
}

/* Whatever the number names then, no third file is written. */
static void number_alternates_while_threads_write(void)
{
	pthread_t threads[WRITERS];
	static struct writer writers[WRITERS];
	int table = warmed_to_write("table"), other = open_write("other");
	for (int place = 0; place < WRITERS; place++) {
		writers[place] = (struct writer){ .number = table, .place = place };
		require(pthread_create(&threads[place], NULL, write_to_what_the_number_is, &writers[place]) == 0, "a thread");
	}
	for (int round = 0; round < 300; round++) {
		int next = open_write(round % 2 == 0 ? "other" : "table");
		if (round % 3 == 0)
			syscall(SYS_dup2, next, table);
		else
			dup2(next, table);
		close(next);
		usleep(200);
	}
	atomic_store(&is_over, true);
	for (int place = 0; place < WRITERS; place++)
		pthread_join(threads[place], NULL);
	for (int place = 0; place < WRITERS; place++) {
		(void)!pwrite(other, "0123", 4, 8 * place + 3 * MIB);
		(void)!pwrite(open_write("table"), "0123", 4, 8 * place + 3 * MIB);
	}
	show_by_name("table", "table");
	show_by_name("other", "other");
	show_by_name("sparse", "sparse");
}

static int written_by_handler = -1;
static volatile long handler_errors;

static void write_in_handler(int signal)
{
	(void)signal;
	int error = errno;
	handler_errors += pwrite(written_by_handler, "handler", 7, 6 * MIB) != 7;
	errno = error;
}

static void start_timer(long microseconds)
{
	struct itimerval timer = { { 0, microseconds }, { 0, microseconds } };
	require(setitimer(ITIMER_REAL, &timer, NULL) == 0, "setitimer");
}

static void handlers_write_while_their_thread_does(void)
{
	static char block[PAGE];
	int table = warmed_to_write("table");
	struct sigaction action = { .sa_handler = write_in_handler, .sa_flags = SA_RESTART };
	written_by_handler = table;
	sigaction(SIGALRM, &action, NULL);
	start_timer(300);
	for (int round = 0; round < 20000; round++)
		require(pwrite(table, block, sizeof(block), round % 1000 * PAGE) == PAGE, "written");
	start_timer(0);
	say("errors", handler_errors);
	show_by_name("by name", "table");
}

static sigjmp_buf before_the_write;

static void jump(int signal)
{
	siglongjmp(before_the_write, signal);
}

static void jumps_out_of_writes(void)
{
	static char block[PAGE];
	int table = warmed_to_write("table");
	struct sigaction action = { .sa_handler = jump };
	sigaction(SIGALRM, &action, NULL);
	for (volatile int round = 0; round < 500; round++) {
		if (sigsetjmp(before_the_write, 1) == 0) {
			start_timer(100 + round);
			for (;;)
				(void)!pwrite(table, block, sizeof(block), round % 1000 * PAGE);
		}
	}
	start_timer(0);
	put("after", table, 'j', 2 * MIB, 0);
	warm_writing(table);
	put("after", table, 'k', 100, MIB);
	say("cut", ftruncate(table, 5 * MIB));
	show_by_name("by name", "table");
}

static void *write_for_ever(void *argument)
{
	const struct writer *writer = argument;
	for (;;)
		(void)!pwrite(writer->number, "cancelled", 9, MIB + 100 * writer->place);
	return NULL;
}

static void writers_are_cancelled(void)
{
	static struct writer writer;
	writer.number = warmed_to_write("table");
	for (int round = 0; round < 100; round++) {
		pthread_t thread;
		void *result;
		require(pthread_create(&thread, NULL, write_for_ever, &writer) == 0, "a thread");
		usleep((useconds_t)(round * 10));
		require(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0, "cancelled");
		require(result == PTHREAD_CANCELED, "it was");
	}
	(void)!pwrite(writer.number, "cancelled", 9, MIB);
	say("cut", ftruncate(writer.number, 5 * MIB));
	show_by_name("by name", "table");
}

static void durable_after_sync(void)
{
	int table = warmed_to_write("table");
	for (long place = 0; place < 50; place++) {
		put("written", table, (char)place, 3000, place * 100000);
		say("synced", place % 2 == 0 ? fsync(table) : fdatasync(table));
	}
	say("range", sync_file_range(table, 0, MIB, SYNC_FILE_RANGE_WRITE));
	say("whole", syncfs(table));
	show_by_name("by name", "table");
}

const struct test_case write_cases[] = {
	{ "writes_all_over", true, writes_all_over },
	{ "writes_of_two_descriptions", true, writes_of_two_descriptions },
	{ "writes_and_mappings_agree", true, writes_and_mappings_agree },
	{ "calls_of_all_kinds_are_mixed", true, calls_of_all_kinds_are_mixed },
	{ "stream_and_writes_are_mixed", true, stream_and_writes_are_mixed },
	{ "copies_of_what_was_written", true, copies_of_what_was_written },
	{ "appends_as_soon_as_it_is_asked_for", true, appends_as_soon_as_it_is_asked_for },
	{ "appends_after_a_raw_call", true, appends_after_a_raw_call },
	{ "appends_after_a_child_asked_for_it", true, appends_after_a_child_asked_for_it },
	{ "flags_are_those_of_the_program", true, flags_are_those_of_the_program },
	{ "flags_of_a_number_that_was_given_anew", true, flags_of_a_number_that_was_given_anew },
	{ "flags_are_those_that_the_kernel_has", true, flags_are_those_that_the_kernel_has },
	{ "directly_at_the_wish_of_the_program", true, directly_at_the_wish_of_the_program },
	{ "durable_writes", false, durable_writes },
	{ "descriptions_that_only_write_or_only_read", false, descriptions_that_only_write_or_only_read },
	{ "around_the_end", true, around_the_end },
	{ "grows_step_by_step", true, grows_step_by_step },
	{ "ends_of_files", true, ends_of_files },
	{ "holes_are_filled", false, holes_are_filled },
	{ "cut_and_punched", true, cut_and_punched },
	{ "removed_and_renamed", true, removed_and_renamed },
	{ "beyond_the_limit_of_sizes", true, beyond_the_limit_of_sizes },
	{ "ended_by_the_limit_of_sizes", false, ended_by_the_limit_of_sizes },
	{ "a_limit_of_sizes_from_the_beginning", false, a_limit_of_sizes_from_the_beginning },
	{ "bad_arguments", true, bad_arguments },
	{ "from_a_mapping_of_the_file_itself", true, from_a_mapping_of_the_file_itself },
	{ "numbers_that_are_not_open", true, numbers_that_are_not_open },
	{ "closed_and_another_opened", true, closed_and_another_opened },
	{ "replaced_by_a_raw_call", true, replaced_by_a_raw_call },
	{ "all_numbers_are_closed_by_a_raw_call", true, all_numbers_are_closed_by_a_raw_call },
	{ "a_stream_is_opened_again_for_more", true, a_stream_is_opened_again_for_more },
	{ "reopened_for_reading_by_raw_calls", true, reopened_for_reading_by_raw_calls },
	{ "locks_stay", true, locks_stay },
	{ "locks_are_kept_over_exec", false, locks_are_kept_over_exec },
	{ "locks_of_a_file_that_has_a_lease_already", true, locks_of_a_file_that_has_a_lease_already },
	{ "times_follow_writes", true, times_follow_writes },
	{ "a_child_writes", true, a_child_writes },
	{ "a_child_that_shares_the_memory_writes", true, a_child_that_shares_the_memory_writes },
	{ "children_are_killed_while_they_write", true, children_are_killed_while_they_write },
	{ "exec_with_the_descriptor", true, exec_with_the_descriptor },
	{ "through_a_socket", true, through_a_socket },
	{ "threads_write_blocks_of_their_own", true, threads_write_blocks_of_their_own },
	{ "counters_never_go_back", true, counters_never_go_back },
	{ "number_alternates_while_threads_write", true, number_alternates_while_threads_write },
	{ "handlers_write_while_their_thread_does", true, handlers_write_while_their_thread_does },
	{ "jumps_out_of_writes", true, jumps_out_of_writes },
	{ "writers_are_cancelled", true, writers_are_cancelled },
	{ "durable_after_sync", true, durable_after_sync },
	{ NULL, false, NULL },
};
