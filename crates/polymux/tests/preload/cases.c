/* Runs one of the cases, or lists them. */

#include "cases.h"

void say(const char *what, long count)
{
	if (count < 0)
		printf("%s: %ld (%s)\n", what, count, strerrorname_np(errno));
	else
		printf("%s: %ld\n", what, count);
	fflush(stdout);
}

void require(bool condition, const char *what)
{
	if (condition)
		return;
	printf("cannot run: %s: %s\n", what, strerror(errno));
	fflush(stdout);
	_exit(99);
}

int open_read(const char *name)
{
	int number = open(name, O_RDONLY);
	require(number >= 0, name);
	return number;
}

int open_write(const char *name)
{
	int number = open(name, O_RDWR);
	require(number >= 0, name);
	return number;
}

void warm(int number)
{
	char block[4096];
	for (long place = 0; place < 200; place++) {
		/* What the page cache has is read too quickly to be worth a lease. */
		posix_fadvise(number, 0, 0, POSIX_FADV_DONTNEED);
		(void)!pread(number, block, sizeof(block), place * 37 % 1024 * 4096);
	}
}

int warmed(const char *name)
{
	int number = open_read(name);
	warm(number);
	return number;
}

int warm_file(const char *name)
{
	int number = warmed(name);
	show_all(name, number);
	return number;
}

uint64_t sum_of(const void *bytes, size_t length)
{
	uint64_t sum = 0xcbf29ce484222325;
	for (size_t place = 0; place < length; place++)
		sum = (sum ^ ((const unsigned char *)bytes)[place]) * 0x100000001b3;
	return sum;
}

void show(const char *what, int number, size_t length, off_t offset)
{
	char *buffer = calloc(1, length);
	require(buffer != NULL, "memory");
	ssize_t count = pread(number, buffer, length, offset);
	printf("%s: %zd", what, count);
	if (count < 0)
		printf(" (%s)", strerrorname_np(errno));
	printf(" %016lx\n", (unsigned long)sum_of(buffer, count < 0 ? 0 : (size_t)count));
	fflush(stdout);
	free(buffer);
}

void show_all(const char *what, int number)
{
	static const size_t lengths[] = { 1, 100, 4096, 70000 };
	static _Thread_local char buffer[70000];
	uint64_t sums = 0;
	for (long place = 0; place < 64; place++) {
		ssize_t count = pread(number, buffer, lengths[place % 4], place * 131071);
		sums = sums * 31 + (count < 0 ? (uint64_t)errno : sum_of(buffer, (size_t)count));
	}
	printf("%s: %016lx\n", what, (unsigned long)sums);
	fflush(stdout);
}

void wait_for(const char *what, pid_t child)
{
	int status;
	require(waitpid(child, &status, 0) == child, "waitpid");
	if (WIFSIGNALED(status))
		printf("%s: signal %d\n", what, WTERMSIG(status));
	else
		printf("%s: exit %d\n", what, WEXITSTATUS(status));
	fflush(stdout);
}

int main(int count, char **arguments)
{
	static const struct test_case *const all[] = { descriptor_cases, process_cases, content_cases, thread_cases, write_cases };
	static const char *const names[] = { "descriptors", "processes", "contents", "threads", "writes" };
	for (size_t list = 0; list < sizeof(all) / sizeof(all[0]); list++)
		for (const struct test_case *one = all[list]; one->name != NULL; one++) {
			if (count < 3) {
				printf("%s %s %s\n", names[list], one->is_direct ? "direct" : "any", one->name);
			} else if (strcmp(one->name, arguments[1]) == 0) {
				require(chdir(arguments[2]) == 0, arguments[2]);
				one->run();
				return 0;
			}
		}
	return count < 3 ? 0 : 98;
}
