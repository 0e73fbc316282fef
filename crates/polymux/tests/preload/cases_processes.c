#include "cases.h"
#include <spawn.h>
#include <stdatomic.h>

/* What a child of fork(2) does with a number; it ends without handlers of exit(3). */
static void in_child(const char *what, void (*run)(int), int number)
{
	pid_t child = fork();
	require(child >= 0, "fork");
	if (child == 0) {
		run(number);
		_exit(0);
	}
	wait_for(what, child);
}

static void read_it(int table)
{
	show_all("child", table);
}

static void warm_it(int table)
{
	warm(table);
	show_all("child", table);
}

static void child_of_fork_reads(void)
{
	int table = warm_file("table");
	in_child("child", read_it, table);
	show_all("table", table);
	in_child("child", warm_it, table);
	show_all("table", table);
}

static void read_by_turns(int table, int from, int to)
{
	char turn;
	for (int count = 0; count < 10; count++) {
		require(read(from, &turn, 1) == 1, "read");
		show_all("by turns", table);
		require(write(to, &turn, 1) == 1, "write");
	}
}

static void child_and_parent_read_by_turns(void)
{
	int table = warm_file("table"), there[2], back[2];
	require(pipe(there) == 0 && pipe(back) == 0, "pipe");
	pid_t child = fork();
	require(child >= 0, "fork");
	if (child == 0) {
		read_by_turns(table, there[0], back[1]);
		_exit(0);
	}
	require(write(there[1], "", 1) == 1, "write");
	read_by_turns(table, back[0], there[1]);
	wait_for("child", child);
}

static void close_all_and_read_another(int table)
{
	say("close_range", close_range(3, ~0U, 0));
	show("closed", table, 100, 0);
	int other = open_read("other");
	say("number", other - table);
	warm(other);
	show_all("other", other);
}

static void raw_close_all_and_read_another(int table)
{
	say("close_range", syscall(SYS_close_range, 3, ~0U, 0));
	show("closed", table, 100, 0);
	say("number", open_read("other") - table);
	show_all("other", table);
	warm(table);
	show_all("other", table);
	say("sparse", warm_file("sparse") - table);
	show_all("other", table);
}

static void child_closes_all_and_reads_another(void)
{
	int table = warm_file("table");
	in_child("child", close_all_and_read_another, table);
	show_all("table", table);
	in_child("child", raw_close_all_and_read_another, table);
	show_all("table", table);
}

static void read_after_other_leases(int table)
{
	warm_file("sparse");
	warm_file("other");
	show_all("child", table);
	warm(table);
	show_all("child", table);
}

static void child_gets_leases_of_its_own(void)
{
	int table = warm_file("table");
	in_child("child", read_after_other_leases, table);
	show_all("table", table);
	warm_file("other");
	in_child("child", read_after_other_leases, table);
	show_all("table", table);
}

static void warm_another_at_its_number(int table)
{
	close(table);
	say("number", open_read("other") - table);
	warm(table);
	show_all("child", table);
}

static void child_closes_and_opens_another(void)
{
	int table = warm_file("table");
	in_child("child", warm_another_at_its_number, table);
	show_all("table", table);
}

static long raw_clone(long flags)
{
	return syscall(SYS_clone, flags | SIGCHLD, 0, 0, 0, 0);
}

static void raw_cloned_child_reads(void)
{
	int table = warm_file("table");
	long child = raw_clone(0);
	require(child >= 0, "clone");
	if (child == 0) {
		show_all("child", table);
		close_all_and_read_another(table);
		_exit(0);
	}
	wait_for("child", (pid_t)child);
	show_all("table", table);
}

/* The child has memory of its own, and the descriptors of its parent. */
static void child_that_shares_descriptors(void)
{
	int table = warm_file("table");
	long child = raw_clone(CLONE_FILES);
	require(child >= 0, "clone");
	if (child == 0) {
		show_all("child", table);
		int other = open_read("other");
		warm(other);
		show_all("child's other", other);
		_exit(0);
	}
	wait_for("child", (pid_t)child);
	show_all("table", table);
	show_all("child's other", table + 1);
	warm(table);
	show_all("table", table);
}

static void read_while_a_child_has_a_lease(int table, int from)
{
	char turn;
	require(read(from, &turn, 1) == 1, "read");
	show_all("table", table);
	show("table", table, MIB, 0);
	warm_file("sparse");
	show_all("table", table);
}

static void child_that_shares_descriptors_lives_on(void)
{
	int table = warm_file("table"), there[2], back[2];
	require(pipe(there) == 0 && pipe(back) == 0, "pipe");
	long child = raw_clone(CLONE_FILES);
	require(child >= 0, "clone");
	if (child == 0) {
		char turn = 0;
		show_all("child", table);
		int other = open_read("other");
		warm(other);
		show_all("child's other", other);
		require(write(there[1], &turn, 1) == 1 && read(back[0], &turn, 1) == 1, "pipe");
		show_all("child's other", other);
		show_all("child", table);
		_exit(0);
	}
	read_while_a_child_has_a_lease(table, there[0]);
	require(write(back[1], "", 1) == 1, "write");
	wait_for("child", (pid_t)child);
	show_all("table", table);
}

static char stack[1 << 20] __attribute__((aligned(64)));

/* The child has descriptors of its own, and the memory of its parent, which waits. */
static void run_in_borrowed_memory(int (*run)(void *), int *table)
{
	int child = clone(run, stack + sizeof(stack), CLONE_VM | CLONE_VFORK | SIGCHLD, table);
	require(child >= 0, "clone");
	wait_for("child", child);
	show_all("table", *table);
}

static int close_all_in_borrowed_memory(void *table)
{
	close_all_and_read_another(*(int *)table);
	return 0;
}

static int raw_close_all_in_borrowed_memory(void *table)
{
	raw_close_all_and_read_another(*(int *)table);
	return 0;
}

static void borrowed_memory_and_all_closed(void)
{
	int table = warm_file("table");
	run_in_borrowed_memory(close_all_in_borrowed_memory, &table);
	warm(table);
	show_all("table", table);
}

static void borrowed_memory_and_all_raw_closed(void)
{
	int table = warm_file("table");
	run_in_borrowed_memory(raw_close_all_in_borrowed_memory, &table);
	warm(table);
	show_all("table", table);
}

struct borrowing {
	int table, there[2], back[2];
};

static int lease_in_borrowed_memory(void *given)
{
	struct borrowing *borrowing = given;
	char turn = 0;
	show_all("child", borrowing->table);
	say("number", warm_file("other") - borrowing->table);
	require(write(borrowing->there[1], &turn, 1) == 1 && read(borrowing->back[0], &turn, 1) == 1, "pipe");
	return 0;
}

/* The child lives on with its lease, and waits while its parent opens the same file at the same number. */
static void borrowed_memory_and_a_lease(void)
{
	struct borrowing borrowing = { .table = warm_file("table") };
	char turn = 0;
	require(pipe(borrowing.there) == 0 && pipe(borrowing.back) == 0, "pipe");
	int child = clone(lease_in_borrowed_memory, stack + sizeof(stack), CLONE_VM | SIGCHLD, &borrowing);
	require(child >= 0 && read(borrowing.there[0], &turn, 1) == 1, "clone");
	int place = open_read("small"), sparse = fcntl(open_read("sparse"), F_DUPFD, place + 5);
	warm(sparse);
	show_all("sparse", sparse);
	syscall(SYS_close, place);
	say("other", open_read("other") - place);
	show_all("other", place);
	show_all("table", borrowing.table);
	require(write(borrowing.back[1], &turn, 1) == 1, "pipe");
	wait_for("child", child);
	warm(place);
	show_all("other", place);
	show_all("sparse", sparse);
}

static pid_t vfork_and_sum(int table)
{
	pid_t child = vfork();
	require(child >= 0, "vfork");
	if (child == 0) {
		dup2(table, 0);
		execl("/bin/sh", "sh", "-c", "cksum", NULL);
		_exit(1);
	}
	return child;
}

static void vfork_and_input_of_a_command(void)
{
	int table = warm_file("table");
	wait_for("child", vfork_and_sum(table));
	show_all("table", table);
	say("position", lseek(table, 0, SEEK_CUR));
}

static pid_t vfork_and_replace(int table, int other)
{
	pid_t child = vfork();
	require(child >= 0, "vfork");
	if (child == 0) {
		close(table);
		dup2(other, table);
		close_range((unsigned int)other, ~0U, 0);
		dup2(table, 0);
		close(table);
		execl("/bin/sh", "sh", "-c", "cksum", NULL);
		_exit(1);
	}
	return child;
}

static void vfork_and_closing_of_numbers(void)
{
	int table = warm_file("table"), other = warm_file("other");
	wait_for("child", vfork_and_replace(table, other));
	show_all("table", table);
	show_all("other", other);
	close(table);
	say("number", open_read("sparse") - table);
	show_all("sparse", table);
}

static void vfork_without_exec(void)
{
	int table = warm_file("table");
	pid_t child = vfork();
	require(child >= 0, "vfork");
	if (child == 0)
		_exit(close(table));
	wait_for("child", child);
	show_all("table", table);
	warm(table);
	show_all("table", table);
}

static void spawn_with_actions(void)
{
	extern char **environ;
	int table = warm_file("table"), other = warm_file("other");
	char *arguments[] = { "sh", "-c", "cksum; cksum <&9", NULL };
	posix_spawn_file_actions_t actions;
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, table, 0);
	posix_spawn_file_actions_addclose(&actions, table);
	posix_spawn_file_actions_adddup2(&actions, other, table);
	posix_spawn_file_actions_adddup2(&actions, table, 9);
	pid_t child;
	require(posix_spawn(&child, "/bin/sh", &actions, NULL, arguments, environ) == 0, "posix_spawn");
	wait_for("child", child);
	posix_spawn_file_actions_destroy(&actions);
	show_all("table", table);
	show_all("other", other);
}

static void exec_inherits_the_number(void)
{
	int table = warm_file("table");
	require(dup2(table, 9) == 9, "dup2");
	show_all("copy", 9);
	say("system", system("cksum <&9; exit 7"));
	show_all("copy", 9);
	show_all("table", table);
}

static void execute_itself(int is_clean)
{
	char *nothing[] = { NULL };
	extern char **environ;
	execle("/proc/self/exe", "cases", "reads_all_over", ".", NULL, is_clean ? nothing : environ);
	_exit(1);
}

static void children_execute_themselves(void)
{
	int table = warm_file("table");
	in_child("as it is", execute_itself, 0);
	in_child("without an environment", execute_itself, 1);
	show_all("table", table);
}

static void executes_itself(void)
{
	warm_file("table");
	execute_itself(0);
}

static void executes_itself_without_an_environment(void)
{
	warm_file("table");
	execute_itself(1);
}

struct reading {
	int number;
	atomic_bool ends;
};

static void *read_until_the_end(void *given)
{
	struct reading *reading = given;
	char bytes[4096];
	for (off_t place = 0; !atomic_load(&reading->ends); place = (place + 37 * 4096) % (7 * MIB))
		require(pread(reading->number, bytes, sizeof(bytes), place) == sizeof(bytes), "pread");
	return NULL;
}

static void with_readers(struct reading *reading, void (*run)(int), int times)
{
	pthread_t threads[4];
	for (int count = 0; count < 4; count++)
		require(pthread_create(&threads[count], NULL, read_until_the_end, reading) == 0, "thread");
	for (int count = 0; count < times; count++)
		in_child("child", run, reading->number);
	atomic_store(&reading->ends, true);
	for (int count = 0; count < 4; count++)
		pthread_join(threads[count], NULL);
	show_all("table", reading->number);
}

static void forks_while_threads_read(void)
{
	struct reading reading = { .number = warm_file("table") };
	with_readers(&reading, warm_it, 20);
}

/* No warm() before: leases are asked for while there are forks. */
static void forks_while_leases_begin(void)
{
	struct reading reading = { .number = open_read("table") };
	with_readers(&reading, warm_it, 20);
}

static void *warm_until_the_end(void *given)
{
	struct reading *reading = given;
	while (!atomic_load(&reading->ends)) {
		int other = open_read("other");
		warm(other);
		close(other);
	}
	return NULL;
}

static bool has_limit(rlim_t limit)
{
	struct rlimit now;
	return getrlimit(RLIMIT_NOFILE, &now) == 0 && now.rlim_cur == limit;
}

/* Leases are asked for all the time, and each time the limit is raised for a moment. */
static void limit_in_children(void)
{
	struct rlimit limit;
	struct reading reading = { .ends = false };
	pthread_t thread;
	require(getrlimit(RLIMIT_NOFILE, &limit) == 0, "getrlimit");
	limit.rlim_cur = 512;
	require(setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit");
	warm_file("table");
	require(pthread_create(&thread, NULL, warm_until_the_end, &reading) == 0, "thread");
	int others = 0;
	for (int count = 0; count < 1000; count++) {
		pid_t child = fork();
		if (child == 0)
			_exit(!has_limit(512));
		int status = 1;
		require(waitpid(child, &status, 0) == child, "fork");
		others += status != 0;
	}
	atomic_store(&reading.ends, true);
	pthread_join(thread, NULL);
	say("children with another limit", others);
}

static void copy_output(int from)
{
	char text[4096];
	for (ssize_t count = read(from, text, sizeof(text)); count > 0; count = read(from, text, sizeof(text)))
		fwrite(text, 1, (size_t)count, stdout);
	fflush(stdout);
}

static void become_a_daemon(int table)
{
	if (fork() != 0)
		_exit(0);
	setsid();
	show_all("daemon", table);
	warm(table);
	show_all("daemon", table);
	say("other", warm_file("other") - table);
}

static void daemon_reads(void)
{
	int table = warm_file("table"), ends[2];
	require(pipe(ends) == 0, "pipe");
	pid_t child = fork();
	require(child >= 0, "fork");
	if (child == 0) {
		dup2(ends[1], 1);
		close_range((unsigned int)ends[0], ~0U, 0);
		become_a_daemon(table);
		_exit(0);
	}
	close(ends[1]);
	wait_for("child", child);
	copy_output(ends[0]);
	show_all("table", table);
}

union control {
	struct cmsghdr header;
	char bytes[CMSG_SPACE(sizeof(int))];
};

static void send_number(int socket, int number)
{
	union control control = { .bytes = { 0 } };
	struct iovec byte = { "", 1 };
	struct msghdr message = { .msg_iov = &byte, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control) };
	control.header = (struct cmsghdr){ .cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS };
	memcpy(CMSG_DATA(&control.header), &number, sizeof(number));
	require(sendmsg(socket, &message, 0) == 1, "sendmsg");
}

static int receive_number(int socket)
{
	union control control;
	char byte;
	struct iovec place = { &byte, 1 };
	struct msghdr message = { .msg_iov = &place, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control) };
	int number;
	require(recvmsg(socket, &message, 0) == 1 && CMSG_FIRSTHDR(&message) != NULL, "recvmsg");
	memcpy(&number, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(number));
	return number;
}

static void number_sent_to_a_child(void)
{
	int sockets[2];
	require(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0, "socketpair");
	pid_t child = fork();
	require(child >= 0, "fork");
	if (child == 0) {
		int table = receive_number(sockets[1]);
		show_all("received", table);
		warm(table);
		show_all("received", table);
		send_number(sockets[1], warm_file("other"));
		_exit(0);
	}
	int table = warm_file("table");
	send_number(sockets[0], table);
	wait_for("child", child);
	show_all("table", table);
	close(table);
	say("number", receive_number(sockets[0]) - table);
	show_all("sent back", table);
}

static void number_sent_to_itself(void)
{
	int sockets[2], table = warm_file("table");
	require(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0, "socketpair");
	send_number(sockets[0], table);
	syscall(SYS_close, table);
	send_number(sockets[0], open_read("other"));
	syscall(SYS_close, table);
	say("number", receive_number(sockets[1]) - table);
	show_all("table", table);
	syscall(SYS_close, table);
	say("number", receive_number(sockets[1]) - table);
	show_all("other", table);
}

static void many_children_read(void)
{
	int table = warm_file("table");
	for (int count = 0; count < 50; count++) {
		in_child("child", count % 10 == 9 ? warm_it : read_it, table);
		if (count % 10 == 0)
			show_all("table", table);
	}
	show_all("table", table);
}

static void many_children_at_a_time(void)
{
	int table = warm_file("table");
	pid_t children[20];
	char bytes[4096], expected[4096];
	require(pread(table, expected, sizeof(expected), MIB) == sizeof(expected), "pread");
	for (int count = 0; count < 20; count++) {
		children[count] = fork();
		require(children[count] >= 0, "fork");
		if (children[count] == 0) {
			warm(table);
			_exit(pread(table, bytes, sizeof(bytes), MIB) != sizeof(bytes) || memcmp(bytes, expected, sizeof(bytes)) != 0);
		}
	}
	for (int count = 0; count < 20; count++)
		wait_for("child", children[count]);
	show_all("table", table);
}

static void write_some(int flags)
{
	int table = open("table", O_RDWR | flags);
	require(table >= 0, "table");
	for (off_t place = 0; place < 4; place++)
		say("written", pwrite(table, "polymux", 7, place * 2 * MIB + 10));
	show_all("child", table);
}

static void child_writes(void)
{
	int table = warm_file("table");
	in_child("child", write_some, 0);
	show_all("table", table);
	show("new", table, 100, 2 * MIB);
	warm(table);
	show_all("table", table);
	show("new", table, 100, 4 * MIB);
}

static void append_some(int table)
{
	write_some(O_APPEND);
	show("child", table, 4096, TABLE_SIZE - 10);
}

static void child_appends(void)
{
	int table = warm_file("table");
	show("end", table, 4096, TABLE_SIZE - 10);
	in_child("child", append_some, table);
	show("end", table, 4096, TABLE_SIZE - 10);
	show("beyond", table, 4096, TABLE_SIZE + 5);
	warm(table);
	show("end", table, 4096, TABLE_SIZE - 10);
	show_all("table", table);
}

static void truncate_it(int table)
{
	say("truncate", truncate("table", MIB));
	show_all("child", table);
}

static void child_truncates(void)
{
	int table = warm_file("table");
	in_child("child", truncate_it, table);
	show("beyond", table, 4096, 2 * MIB);
	show("end", table, 4096, MIB - 100);
	show_all("table", table);
	say("truncate", truncate("table", 3 * MIB));
	show("zeros", table, 4096, MIB - 100);
	warm(table);
	show_all("table", table);
}

static void unlink_it(int table)
{
	say("unlink", unlink("table"));
	show_all("child", table);
}

static void child_unlinks(void)
{
	int table = warm_file("table");
	in_child("child", unlink_it, table);
	show_all("table", table);
	warm(table);
	show_all("table", table);
	say("open", open("table", O_RDONLY));
	close(table);
	say("number", open_read("other") - table);
	show_all("other", table);
}

static void rename_another_over_it(int table)
{
	say("rename", rename("other", "table"));
	show_all("child", table);
}

static void child_renames_another_over_it(void)
{
	int table = warm_file("table"), other = warm_file("other");
	in_child("child", rename_another_over_it, table);
	show_all("table", table);
	show_all("other", other);
	int again = open_read("table");
	warm(again);
	show_all("again", again);
	warm(table);
	show_all("table", table);
}

static void forbid_it(int table)
{
	say("chmod", chmod("table", 0));
	show_all("child", table);
}

static void child_forbids_it(void)
{
	int table = warm_file("table");
	in_child("child", forbid_it, table);
	show_all("table", table);
	warm(table);
	show_all("table", table);
	say("chmod", chmod("table", 0644));
}

static void child_reads_on_alone(void)
{
	int table = warm_file("table"), ends[2];
	require(pipe(ends) == 0, "pipe");
	pid_t child = fork();
	require(child >= 0, "fork");
	if (child == 0) {
		char byte;
		close(ends[1]);
		require(read(ends[0], &byte, 1) == 0, "read");
		show_all("child", table);
		warm(table);
		show_all("child", table);
		_exit(0);
	}
	close(table);
	show("closed", table, 100, 0);
	say("number", open_read("other") - table);
	show_all("other", table);
	close(ends[1]);
	wait_for("child", child);
	show_all("other", table);
}

static void commands_run(void)
{
	int table = warm_file("table");
	say("system", system("cksum table; exit 3"));
	show_all("table", table);
	FILE *output = popen("cksum", "w");
	require(output != NULL, "popen");
	fputs("polymux", output);
	show_all("table", table);
	say("pclose", pclose(output));
	output = popen("cksum < other", "r");
	require(output != NULL, "popen");
	for (int letter = getc(output); letter != EOF; letter = getc(output))
		putchar(letter);
	say("pclose", pclose(output));
	show_all("table", table);
}

static int number_at_the_end = -1;

static void read_at_the_end(void)
{
	show_all("handler", number_at_the_end);
	show("handler", number_at_the_end, MIB, 3 * MIB);
}

__attribute__((destructor)) static void read_at_the_very_end(void)
{
	if (number_at_the_end >= 0)
		show_all("destructor", number_at_the_end);
}

static void exit_with_handlers(int table)
{
	(void)table;
	exit(5);
}

static void handlers_of_exit_read(void)
{
	number_at_the_end = warm_file("table");
	require(atexit(read_at_the_end) == 0, "atexit");
	in_child("child", exit_with_handlers, 0);
	in_child("child", read_it, number_at_the_end);
	show_all("table", number_at_the_end);
}

static void handlers_of_exit_close(void)
{
	number_at_the_end = warm_file("table");
	require(atexit(read_at_the_end) == 0, "atexit");
	close(number_at_the_end);
	say("number", open_read("other") - number_at_the_end);
}

static int number_of_handler;
static volatile sig_atomic_t handled, wrong;
static char expected_of_handler[4096];

static void read_in_handler(int signal)
{
	(void)signal;
	char bytes[4096];
	int error = errno;
	if (pread(number_of_handler, bytes, sizeof(bytes), MIB + 1) != sizeof(bytes) || memcmp(bytes, expected_of_handler, sizeof(bytes)) != 0)
		wrong++;
	handled++;
	errno = error;
}

static void handler_of_ended_children_reads(void)
{
	int table = number_of_handler = warm_file("table");
	require(pread(table, expected_of_handler, 4096, MIB + 1) == 4096, "pread");
	signal(SIGCHLD, read_in_handler);
	for (int count = 0; count < 20; count++) {
		pid_t child = fork();
		require(child >= 0, "fork");
		if (child == 0)
			_exit(count);
		while (handled == count)
			require(pread(table, (char[100]){ 0 }, 100, count * MIB / 4) == 100, "pread");
		wait_for("child", child);
	}
	say("handled", handled);
	say("wrong", wrong);
	show_all("table", table);
}

static void warm_in_handler(int signal)
{
	(void)signal;
	warm(number_of_handler);
	handled++;
}

static void handler_of_ended_children_gets_the_lease(void)
{
	int table = number_of_handler = open_read("table"), other = warm_file("other");
	signal(SIGCHLD, warm_in_handler);
	in_child("child", read_it, other);
	while (handled == 0)
		sched_yield();
	show_all("table", table);
	show_all("other", other);
	in_child("child", read_it, table);
	show_all("table", table);
}

const struct test_case process_cases[] = {
	{ "child_of_fork_reads", true, child_of_fork_reads },
	{ "child_and_parent_read_by_turns", true, child_and_parent_read_by_turns },
	{ "child_closes_all_and_reads_another", true, child_closes_all_and_reads_another },
	{ "child_gets_leases_of_its_own", true, child_gets_leases_of_its_own },
	{ "child_closes_and_opens_another", true, child_closes_and_opens_another },
	{ "raw_cloned_child_reads", true, raw_cloned_child_reads },
	{ "child_that_shares_descriptors", true, child_that_shares_descriptors },
	{ "child_that_shares_descriptors_lives_on", true, child_that_shares_descriptors_lives_on },
	{ "borrowed_memory_and_all_closed", true, borrowed_memory_and_all_closed },
	{ "borrowed_memory_and_all_raw_closed", true, borrowed_memory_and_all_raw_closed },
	{ "borrowed_memory_and_a_lease", true, borrowed_memory_and_a_lease },
	{ "vfork_and_input_of_a_command", true, vfork_and_input_of_a_command },
	{ "vfork_and_closing_of_numbers", true, vfork_and_closing_of_numbers },
	{ "vfork_without_exec", true, vfork_without_exec },
	{ "spawn_with_actions", true, spawn_with_actions },
	{ "exec_inherits_the_number", true, exec_inherits_the_number },
	{ "children_execute_themselves", true, children_execute_themselves },
	{ "executes_itself", true, executes_itself },
	{ "executes_itself_without_an_environment", false, executes_itself_without_an_environment },
	{ "forks_while_threads_read", true, forks_while_threads_read },
	{ "forks_while_leases_begin", true, forks_while_leases_begin },
	{ "limit_in_children", true, limit_in_children },
	{ "daemon_reads", true, daemon_reads },
	{ "number_sent_to_a_child", true, number_sent_to_a_child },
	{ "number_sent_to_itself", true, number_sent_to_itself },
	{ "many_children_read", true, many_children_read },
	{ "many_children_at_a_time", true, many_children_at_a_time },
	{ "child_writes", true, child_writes },
	{ "child_appends", true, child_appends },
	{ "child_truncates", true, child_truncates },
	{ "child_unlinks", true, child_unlinks },
	{ "child_renames_another_over_it", true, child_renames_another_over_it },
	{ "child_forbids_it", true, child_forbids_it },
	{ "child_reads_on_alone", true, child_reads_on_alone },
	{ "commands_run", true, commands_run },
	{ "handlers_of_exit_read", true, handlers_of_exit_read },
	{ "handlers_of_exit_close", true, handlers_of_exit_close },
	{ "handler_of_ended_children_reads", true, handler_of_ended_children_reads },
	{ "handler_of_ended_children_gets_the_lease", true, handler_of_ended_children_gets_the_lease },
	{ NULL, false, NULL },
};
