/* What the bytes are, whatever is asked for and whoever changes the file meanwhile. */

#include "cases.h"

#include <limits.h>
#include <sys/sendfile.h>
#include <sys/uio.h>

#define PAGE 4096L

ssize_t __pread_chk(int number, void *buffer, size_t length, off_t offset, size_t capacity);
ssize_t __pread64_chk(int number, void *buffer, size_t length, off_t offset, size_t capacity);

/* Reads into a buffer that may be bad, which no compiler may see. */
static void try_read(const char *what, int number, void *buffer, size_t length, off_t offset)
{
	void *volatile hidden_buffer = buffer;
	volatile size_t hidden_length = length;
	say(what, pread(number, hidden_buffer, hidden_length, offset));
}

static void say_sum(const char *what, const void *bytes, size_t length)
{
	printf("%s: %016lx\n", what, (unsigned long)sum_of(bytes, length));
	fflush(stdout);
}

static char *map_pages(int count, int protection)
{
	char *pages = mmap(NULL, (size_t)(count * PAGE), protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	require(pages != MAP_FAILED, "mmap");
	return pages;
}

/* A page to write to, after which there is none. */
static char *map_page_before_nothing(void)
{
	char *pages = map_pages(2, PROT_READ | PROT_WRITE);
	require(munmap(pages + PAGE, PAGE) == 0, "munmap");
	return pages;
}

static char *map_file(const char *name, int flags)
{
	int number = open_write(name);
	char *bytes = mmap(NULL, TABLE_SIZE, PROT_READ | PROT_WRITE, flags, number, 0);
	require(bytes != MAP_FAILED, "mmap of a file");
	close(number);
	return bytes;
}

static void fill(int number, char byte, size_t length, off_t offset)
{
	char *bytes = malloc(length);
	require(bytes != NULL, "memory");
	memset(bytes, byte, length);
	say("written", pwrite(number, bytes, length, offset));
	free(bytes);
}

static void reads_around_the_end(void)
{
	static const struct {
		size_t length;
		off_t before_end;
	} reads[] = {
		{ 100, 10 }, { 100, 100 }, { 100, 101 }, { 1, 1 }, { 1, 0 }, { 100, 0 }, { 100, -1 }, { 100, -PAGE },
		{ PAGE, PAGE }, { 2 * PAGE, PAGE }, { PAGE, PAGE - 1 }, { 3 * MIB, MIB }, { 2 * MIB, 2 * MIB }, { 2 * TABLE_SIZE, TABLE_SIZE }, { 100, -(1L << 40) },
	};
	int table = warmed("table");
	for (size_t one = 0; one < sizeof(reads) / sizeof(reads[0]); one++)
		show("read", table, reads[one].length, TABLE_SIZE - reads[one].before_end);
}

static void reads_of_no_bytes(void)
{
	char byte = 'x';
	int table = warmed("table");
	try_read("begin", table, &byte, 0, 0);
	try_read("middle", table, &byte, 0, MIB + 1);
	try_read("end", table, &byte, 0, TABLE_SIZE);
	try_read("beyond", table, &byte, 0, 2 * TABLE_SIZE);
	try_read("negative", table, &byte, 0, -1);
	try_read("no buffer", table, NULL, 0, 0);
	try_read("bad buffer", table, (void *)PAGE, 0, 0);
	say("untouched", byte == 'x');
}

static void reads_at_negative_offsets(void)
{
	static char buffer[PAGE];
	int table = warmed("table");
	try_read("-1", table, buffer, sizeof(buffer), -1);
	try_read("-1 of one byte", table, buffer, 1, -1);
	try_read("a page before", table, buffer, sizeof(buffer), -PAGE);
	try_read("the least", table, buffer, sizeof(buffer), INT64_MIN);
	try_read("no buffer", table, NULL, sizeof(buffer), -1);
	show_all("after", table);
}

static void reads_at_greatest_offsets(void)
{
	static char buffer[PAGE];
	int table = warmed("table");
	try_read("greatest", table, buffer, 1, INT64_MAX);
	try_read("a page from the greatest", table, buffer, sizeof(buffer), INT64_MAX);
	try_read("a page to the greatest", table, buffer, sizeof(buffer), INT64_MAX - PAGE);
	try_read("a page over the greatest", table, buffer, sizeof(buffer), INT64_MAX - 100);
	try_read("no bytes", table, buffer, 0, INT64_MAX);
	try_read("32 bits", table, buffer, sizeof(buffer), UINT32_MAX);
	show("past 32 bits", table, sizeof(buffer), (1L << 32) + MIB);
	show_all("after", table);
}

static void reads_into_bad_buffers(void)
{
	int table = warmed("table");
	char *gone = map_pages(1, PROT_READ | PROT_WRITE);
	munmap(gone, PAGE);
	try_read("null", table, NULL, PAGE, 0);
	try_read("null over an edge of tiers", table, NULL, PAGE, 2 * MIB - 100);
	try_read("unmapped", table, gone, PAGE, MIB);
	try_read("of the kernel", table, (void *)(UINTPTR_MAX - PAGE + 1), 100, 0);
	try_read("wraps around", table, (void *)(UINTPTR_MAX - 10), 100, 0);
	try_read("null at the end", table, NULL, PAGE, TABLE_SIZE);
	try_read("null before the end", table, NULL, PAGE, TABLE_SIZE - 1);
	try_read("no access", table, map_pages(1, PROT_NONE), PAGE, MIB);
	show_all("after", table);
}

static void reads_into_constant_pages(void)
{
	int table = warmed("table");
	char *pages = map_pages(2, PROT_READ | PROT_WRITE);
	require(mprotect(pages + PAGE, PAGE, PROT_READ) == 0, "mprotect");
	try_read("constant", table, pages + PAGE, PAGE, MIB);
	say_sum("nothing came", pages + PAGE, PAGE);
	try_read("half constant", table, pages, 2 * PAGE, MIB);
	try_read("a literal", table, (void *)(uintptr_t) "a literal", 5, MIB);
	char *bytes = mmap(NULL, TABLE_SIZE, PROT_READ, MAP_SHARED, table, 0);
	require(bytes != MAP_FAILED, "mmap");
	try_read("of the file itself", table, bytes + MIB, PAGE, 0);
	show_all("after", table);
}

static void reads_into_a_buffer_that_ends_early(void)
{
	int table = warmed("table");
	char *page = map_page_before_nothing();
	try_read("two pages", table, page, 2 * PAGE, MIB);
	say_sum("bytes", page, PAGE);
	try_read("a page that begins in the middle", table, page + PAGE / 2, PAGE, MIB);
	say_sum("bytes", page, PAGE);
	try_read("over an edge of tiers", table, page, 2 * PAGE, 2 * MIB - PAGE);
	say_sum("bytes", page, PAGE);
	try_read("over an edge of tiers, in the second", table, page, 2 * PAGE, 2 * MIB - PAGE / 2);
	try_read("a megabyte", table, page, MIB, 5 * MIB);
	try_read("no longer than the file", table, page, 2 * PAGE, TABLE_SIZE - PAGE);
	say_sum("bytes", page, PAGE);
	show_all("after", table);
}

static void reads_with_huge_lengths(void)
{
	static char buffer[PAGE];
	int table = warmed("table");
	try_read("at most", table, buffer, SSIZE_MAX, TABLE_SIZE - 100);
	try_read("more", table, buffer, (size_t)SSIZE_MAX + 1, TABLE_SIZE - 100);
	try_read("all bits", table, buffer, SIZE_MAX, TABLE_SIZE - 100);
	try_read("all bits at the end", table, buffer, SIZE_MAX, TABLE_SIZE);
	try_read("2 GiB", table, buffer, 1UL << 31, TABLE_SIZE - 100);
	say_sum("bytes", buffer, 100);
	try_read("4 GiB and 5", table, buffer, (1UL << 32) + 5, TABLE_SIZE - 200);
	say_sum("bytes", buffer, 200);
	try_read("16 GiB at the end", table, buffer, 1UL << 34, TABLE_SIZE);
	show_all("after", table);
}

static void errno_of_reads(void)
{
	static const off_t offsets[] = { 0, MIB + 1, 2 * MIB - 10, TABLE_SIZE - 10, TABLE_SIZE, 2 * TABLE_SIZE };
	static char buffer[PAGE];
	int table = open_read("table"), kept = 0;
	for (int round = 0; round < 300; round++) {
		posix_fadvise(table, 0, 0, POSIX_FADV_DONTNEED);
		errno = 77;
		require(pread(table, buffer, sizeof(buffer), round * PAGE) == PAGE, "a read");
		kept += errno == 77;
	}
	say("kept while it becomes quick", kept);
	for (size_t one = 0; one < sizeof(offsets) / sizeof(offsets[0]); one++) {
		errno = 77;
		ssize_t count = pread(table, buffer, sizeof(buffer), offsets[one]);
		printf("%zd bytes, errno %d\n", count, errno);
	}
	errno = 77;
	try_read("negative", table, buffer, 1, -1);
	errno = 77;
	try_read("null", table, NULL, PAGE, 0);
	errno = 77;
	close(table);
	say("errno of close", errno);
	try_read("closed", table, buffer, 1, 0);
}

static void reads_of_holes(void)
{
	int sparse = warmed("sparse");
	show_all("all over", sparse);
	show("whole", sparse, 4 * MIB, 0);
	show("hole", sparse, 2 * MIB, MIB);
	show("in the hole", sparse, 5000, 2 * MIB - 2500);
	show("before and hole", sparse, 100, MIB - 50);
	show("hole and after", sparse, 100, 3 * MIB - 50);
	show("before, hole and after", sparse, 2 * MIB + 2, MIB - 1);
	show("last byte before", sparse, 1, MIB - 1);
	show("first byte of the hole", sparse, 1, MIB);
	show("last byte of the hole", sparse, 1, 3 * MIB - 1);
	show("first byte after", sparse, 1, 3 * MIB);
	show("over the end", sparse, MIB, 4 * MIB - 7);
	char *bytes = malloc(2 * MIB);
	require(bytes != NULL, "memory");
	memset(bytes, 'x', 2 * MIB);
	say("over old bytes", pread(sparse, bytes, 2 * MIB, MIB));
	say_sum("bytes", bytes, 2 * MIB);
	free(bytes);
}

static void bad_buffers_over_a_hole(void)
{
	int sparse = warmed("sparse");
	char *page = map_page_before_nothing();
	memset(page, 'x', PAGE);
	try_read("null", sparse, NULL, PAGE, 2 * MIB);
	try_read("unmapped", sparse, page + PAGE, PAGE, MIB + 100);
	try_read("null, before and hole", sparse, NULL, PAGE, MIB - 100);
	try_read("constant", sparse, map_pages(1, PROT_READ), PAGE, 2 * MIB);
	try_read("ends early", sparse, page, 2 * PAGE, 2 * MIB);
	say_sum("bytes", page, PAGE);
	try_read("ends early, in the hole", sparse, page, 2 * PAGE, MIB - PAGE / 2);
	say_sum("bytes", page, PAGE);
	try_read("ends early, after the hole", sparse, page, 2 * PAGE, 3 * MIB - PAGE / 2);
	say_sum("bytes", page, PAGE);
	show_all("after", sparse);
}

static void reads_of_small_files(void)
{
	int small = warmed("small"), empty = warmed("empty");
	show("all", small, 1000, 0);
	show("more", small, 5000, 0);
	show("some", small, 300, 350);
	show("over the end", small, 300, 900);
	show("at the end", small, 300, 1000);
	show("nothing", empty, 300, 0);
	show("nothing, beyond", empty, 300, 300);
	show_all("small", small);
	show_all("empty", empty);
}

static void reads_by_other_calls(void)
{
	static char first[5000], second[3], third[70000];
	struct iovec parts[] = { { first, sizeof(first) }, { NULL, 0 }, { second, sizeof(second) }, { third, sizeof(third) } };
	int table = warmed("table");
	for (off_t offset = 2 * MIB - 6000; offset < 8 * MIB; offset += 2 * MIB) {
		say("pread64", pread64(table, third, sizeof(third), offset));
		say_sum("bytes", third, sizeof(third));
		say("raw", syscall(SYS_pread64, table, third, sizeof(third), offset));
		say_sum("bytes", third, sizeof(third));
		say("preadv", preadv(table, parts, 4, offset));
		say_sum("bytes", third, sizeof(third));
		say("preadv2", preadv2(table, parts, 4, offset + 1, 0));
		say_sum("bytes", third, sizeof(third));
		show("pread", table, sizeof(third), offset);
	}
	say("preadv2 at the position", preadv2(table, parts, 4, -1, 0));
	say("position", lseek(table, 0, SEEK_CUR));
	say("preadv of nothing", preadv(table, parts, 0, 0));
	say("preadv at a negative offset", preadv(table, parts, 4, -1));
	parts[2].iov_base = NULL;
	say("preadv into a bad part", preadv(table, parts, 4, 0));
}

static void checked_reads(void)
{
	static char buffer[70000];
	int table = warmed("table");
	say("fits", __pread_chk(table, buffer, 5000, MIB + 1, 5000));
	say_sum("bytes", buffer, sizeof(buffer));
	say("has room", __pread64_chk(table, buffer, 70000, 2 * MIB - 100, SIZE_MAX));
	say_sum("bytes", buffer, sizeof(buffer));
	say("over the end", __pread_chk(table, buffer, 5000, TABLE_SIZE - 7, sizeof(buffer)));
	say("negative", __pread_chk(table, buffer, 5000, -1, sizeof(buffer)));
	for (int call = 0; call < 2; call++) {
		pid_t child = fork();
		if (child == 0) {
			static const struct rlimit none;
			setrlimit(RLIMIT_CORE, &none);
			close(STDERR_FILENO);
			(void)!(call == 0 ? __pread_chk : __pread64_chk)(table, buffer, 5001, MIB, 5000);
			_exit(0);
		}
		wait_for("overflow", child);
	}
	show_all("after", table);
}

static void mapping_has_the_same_bytes(void)
{
	int table = warmed("table");
	char *bytes = mmap(NULL, TABLE_SIZE, PROT_READ, MAP_SHARED, table, 0);
	require(bytes != MAP_FAILED, "mmap");
	char *copy = malloc(TABLE_SIZE);
	require(copy != NULL, "memory");
	say("count", pread(table, copy, TABLE_SIZE, 0));
	say("difference", memcmp(bytes, copy, TABLE_SIZE));
	pid_t child = fork();
	if (child == 0) {
		say("difference in the child", memcmp(bytes, copy, TABLE_SIZE));
		warm(table);
		show_all("child", table);
		close(table);
		say_sum("mapped in the child", bytes, TABLE_SIZE);
		_exit(0);
	}
	wait_for("child", child);
	close(table);
	say_sum("closed", bytes, TABLE_SIZE);
	free(copy);
}

static void reads_into_mappings_of_files(void)
{
	int table = warmed("table");
	char *of_other = map_file("other", MAP_PRIVATE);
	say("private, of another file", pread(table, of_other + 100, MIB, MIB + 7));
	say_sum("bytes", of_other, TABLE_SIZE);
	char *own = map_file("table", MAP_PRIVATE);
	say("private, of the file", pread(table, own + 5 * MIB + 1, 3 * MIB - 1, MIB));
	say_sum("bytes", own, TABLE_SIZE);
	show_all("after", table);
}

static void reads_into_shared_mappings_of_files(void)
{
	int table = warmed("table");
	char *of_other = map_file("other", MAP_SHARED);
	say("of another file", pread(table, of_other + 3 * MIB, MIB, MIB + 7));
	say_sum("bytes", of_other, TABLE_SIZE);
	warm(table);
	char *own = map_file("table", MAP_SHARED);
	say("of the file", pread(table, own + 5 * MIB, 2 * MIB, MIB));
	say_sum("bytes", own, TABLE_SIZE);
	show_all("table", table);
	show("changed place", table, 3 * MIB, 4 * MIB + 7);
	show("other", open_read("other"), TABLE_SIZE, 0);
}

static void streams_and_reads(void)
{
	static char buffer[10000];
	FILE *stream = fopen("table", "r");
	require(stream != NULL, "fopen");
	int number = fileno(stream);
	warm(number);
	for (int round = 0; round < 5; round++) {
		say("fread", (long)fread(buffer, 1, sizeof(buffer), stream));
		say_sum("bytes", buffer, sizeof(buffer));
		show("pread", number, 9000, round * 2 * MIB - 100 * (round > 0));
		say("position", ftell(stream));
	}
	say("fseek", fseek(stream, -100, SEEK_END));
	show_all("all over", number);
	say("fread", (long)fread(buffer, 1, sizeof(buffer), stream));
	say("end", feof(stream) != 0);
	say("fclose", fclose(stream));
	show("closed", number, 100, 0);
}

static void reads_do_not_move_the_position(void)
{
	static char buffer[5000];
	int table = warmed("table");
	say("at first", lseek(table, 0, SEEK_CUR));
	for (int round = 0; round < 4; round++) {
		say("read", read(table, buffer, sizeof(buffer)));
		say_sum("bytes", buffer, sizeof(buffer));
		show("pread", table, 100000, 7 * MIB);
		say("position", lseek(table, 0, SEEK_CUR));
		say("moved", lseek(table, 2 * MIB - 7000, SEEK_CUR));
	}
	say("end", lseek(table, 0, SEEK_END));
	say("read", read(table, buffer, sizeof(buffer)));
	show("pread", table, 10000, 0);
}

static void copies_by_the_kernel(void)
{
	int table = warmed("table"), ends[2];
	int copy = open("copy", O_RDWR | O_CREAT | O_TRUNC, 0600);
	require(copy >= 0 && pipe(ends) == 0, "copy");
	off_t from = 2 * MIB - 5000, to = 20000;
	say("sendfile", sendfile(copy, table, &from, 10000));
	say("offset", from);
	say("sendfile at the position", sendfile(copy, table, NULL, 10000));
	say("copy_file_range", copy_file_range(table, &from, copy, &to, 30000, 0));
	show("copy", copy, 100000, 0);
	say("position", lseek(table, 0, SEEK_CUR));
	static char buffer[4096];
	from = 4 * MIB - 2048;
	for (size_t left = sizeof(buffer); left > 0;) {
		ssize_t count = splice(table, &from, ends[1], NULL, left, 0);
		require(count > 0 && read(ends[0], buffer + sizeof(buffer) - left, (size_t)count) == count, "splice");
		left -= (size_t)count;
	}
	say_sum("spliced", buffer, sizeof(buffer));
	show_all("after", table);
}

static void own_writes_are_read(void)
{
	int table = warmed("table"), writer = open_write("table");
	show_all("opened to be written", table);
	for (int round = 0; round < 20; round++) {
		off_t offset = round * 421 * 1024 - round;
		fill(writer, (char)round, (size_t)(1 + round * 3001), offset);
		show("read", table, 70000, offset < 1000 ? 0 : offset - 1000);
	}
	show_all("written", table);
	close(writer);
	show_all("closed", table);
	warm(table);
	show("whole", table, TABLE_SIZE, 0);
	writer = open_write("table");
	fill(writer, 'y', 100, 3 * MIB);
	show("written again", table, 4096, 3 * MIB - 50);
}

static void writes_of_a_child_are_read(void)
{
	int table = warmed("table");
	for (int round = 0; round < 3; round++) {
		pid_t child = fork();
		if (child == 0) {
			fill(open_write("table"), (char)('a' + round), 3000, round * 2 * MIB + 1000);
			show("child", table, 70000, round * 2 * MIB);
			_exit(0);
		}
		wait_for("child", child);
		show("read", table, 70000, round * 2 * MIB);
		show_all("all over", table);
		warm(table);
	}
}

static void writes_through_a_link_are_read(void)
{
	int table = warmed("table");
	say("link", link("table", "alias"));
	int writer = open_write("alias"), alias = warmed("alias");
	fill(writer, 'l', 5000, 2 * MIB - 2500);
	show("by the name", table, 70000, 2 * MIB - 35000);
	show("by the link", alias, 70000, 2 * MIB - 35000);
	say("unlink", unlink("table"));
	fill(writer, 'm', 5000, 4 * MIB - 2500);
	show("by the name", table, 70000, 4 * MIB - 35000);
	show("by the link", alias, 70000, 4 * MIB - 35000);
}

static void copies_into_the_file_are_read(void)
{
	int table = warmed("table"), other = warmed("other"), writer = open_write("table");
	off_t from = 3 * MIB + 5, to = MIB + 9;
	say("copy_file_range", copy_file_range(other, &from, writer, &to, 100000, 0));
	show("read", table, 200000, MIB);
	say("moved", lseek(writer, 5 * MIB + 1, SEEK_SET));
	say("sendfile", sendfile(writer, other, &from, 100000));
	show("read", table, 200000, 5 * MIB);
	from = 0;
	to = 6 * MIB;
	say("within", copy_file_range(table, &from, writer, &to, MIB, 0));
	show("read", table, 2 * MIB, 6 * MIB);
	show_all("other", other);
}

static void writes_through_a_mapping_are_read(void)
{
	int table = warmed("table");
	char *bytes = map_file("table", MAP_SHARED);
	show_all("mapped", table);
	for (int round = 0; round < 4; round++) {
		memset(bytes + round * 2 * MIB + 1000, 'p' + round, 5000);
		show("read", table, 70000, round * 2 * MIB);
	}
	show_all("written", table);
	require(munmap(bytes, TABLE_SIZE) == 0, "munmap");
	show("unmapped", table, TABLE_SIZE, 0);
	warm(table);
	show("later", table, TABLE_SIZE, 0);
}

static void becomes_shorter_and_longer(void)
{
	static const off_t sizes[] = { 5 * MIB + 3, 3 * MIB - 1, 7 * MIB, MIB, 100, 0, 4 * MIB, TABLE_SIZE + 9 };
	int table = warmed("table"), writer = open_write("table");
	for (size_t one = 0; one < sizeof(sizes) / sizeof(sizes[0]); one++) {
		say("ftruncate", ftruncate(writer, sizes[one]));
		show("whole", table, 9 * MIB, 0);
		show("end", table, 5000, sizes[one] < 2500 ? 0 : sizes[one] - 2500);
		show_all("all over", table);
	}
	close(writer);
	say("truncate", truncate("table", 6 * MIB + 1));
	show("whole", table, 9 * MIB, 0);
	warm(table);
	show("later", table, 9 * MIB, 0);
}

static void becomes_longer_by_appending(void)
{
	int table = warmed("table"), writer = open("table", O_WRONLY | O_APPEND);
	require(writer >= 0, "append");
	char bytes[3000];
	show("before", table, 5000, TABLE_SIZE - 100);
	for (int round = 0; round < 5; round++) {
		memset(bytes, 'a' + round, sizeof(bytes));
		say("written", write(writer, bytes, sizeof(bytes)));
		show("end", table, 20000, TABLE_SIZE - 100);
		show("beyond", table, 20000, TABLE_SIZE + 3000 * (round + 1));
	}
	close(writer);
	warm(table);
	show("later", table, 20000, TABLE_SIZE - 100);
	show_all("all over", table);
}

static void punched_bytes_are_zero(void)
{
	int table = warmed("table"), writer = open_write("table");
	for (int round = 0; round < 4; round++) {
		off_t offset = round * 2 * MIB + 1000 * round;
		say("punched", fallocate(writer, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, 300000));
		show("read", table, 500000, offset < 1000 ? 0 : offset - 1000);
	}
	say("allocated", fallocate(writer, 0, TABLE_SIZE, 5000));
	show("end", table, 100000, TABLE_SIZE - 100);
	close(writer);
	warm(table);
	show("later", table, 9 * MIB, 0);
}

static void unlinked_file_stays(void)
{
	int table = warmed("table"), writer = open_write("table");
	say("unlink", unlink("table"));
	show_all("unlinked", table);
	warm(table);
	show("whole", table, TABLE_SIZE, 0);
	fill(writer, 'u', 5000, MIB);
	show("written", table, 70000, MIB - 100);
	int new = open("table", O_RDWR | O_CREAT | O_EXCL, 0600);
	require(new >= 0, "a new file");
	fill(new, 'n', 5000, 0);
	show_all("another has the name", table);
	show("the other", new, 70000, 0);
	struct stat facts;
	say("fstat", fstat(table, &facts));
	say("links", (long)facts.st_nlink);
}

static void file_that_is_renamed_over_stays(void)
{
	int table = warmed("table"), other = warmed("other");
	say("rename", rename("other", "table"));
	show_all("table", table);
	show_all("other", other);
	int again = warmed("table");
	show_all("opened again", again);
	fill(open_write("table"), 'r', 5000, MIB);
	show("table", table, 70000, MIB - 100);
	show("other", other, 70000, MIB - 100);
	show("opened again", again, 70000, MIB - 100);
}

static void replaced_again_and_again(void)
{
	for (int round = 0; round < 10; round++) {
		int table = open_read("table");
		if (round == 0)
			warm(table);
		show("old", table, 70000, MIB);
		int new = open("new", O_RDWR | O_CREAT | O_EXCL, 0600);
		require(new >= 0, "new");
		fill(new, (char)('a' + round), 3 * MIB, 0);
		close(new);
		say("rename", rename("new", "table"));
		show("still old", table, 70000, MIB);
		close(table);
		table = open_read("table");
		show("new", table, 70000, MIB);
		show("end", table, 70000, 3 * MIB - 5);
		close(table);
	}
}

static void opened_anew_without_its_bytes(void)
{
	int table = warmed("table");
	int writer = open("table", O_RDWR | O_TRUNC);
	require(writer >= 0, "truncation");
	show("empty", table, 100000, 0);
	show("beyond", table, 100000, MIB);
	fill(writer, 't', 50000, 0);
	show("begin", table, 100000, 0);
	fill(writer, 'v', 50000, 3 * MIB);
	show("whole", table, TABLE_SIZE, 0);
	close(writer);
	warm(table);
	show("later", table, TABLE_SIZE, 0);
	say("truncated by another", close(open("table", O_WRONLY | O_TRUNC)));
	show("empty again", table, 100000, 0);
}

static void facts_of_a_read_file(void)
{
	static const char *const names[] = { "table", "other", "sparse" };
	for (size_t one = 0; one < 3; one++) {
		int number = warmed(names[one]);
		struct stat facts;
		say("fstat", fstat(number, &facts));
		say("size", facts.st_size);
		printf("mode: %o\n", facts.st_mode);
		say("links", (long)facts.st_nlink);
		say("flags", fcntl(number, F_GETFL) & O_ACCMODE);
		say("advice", posix_fadvise(number, 0, 0, POSIX_FADV_RANDOM));
		say("fsync", fsync(number));
		say("fchmod", fchmod(number, 0));
		show_all("without permissions", number);
		say("fchmod", fchmod(number, 0644));
		warm(number);
		show_all("with permissions", number);
	}
}

static void long_reads(void)
{
	static const size_t lengths[] = { MIB, MIB + 1, 2 * MIB - 1, 2 * MIB, 3 * MIB, 3 * MIB - 4095, TABLE_SIZE };
	static const off_t offsets[] = { 0, 1, 4095, 4096, MIB, 2 * MIB - 1, 2 * MIB, 2 * MIB + 1, 4 * MIB - 4097, 5 * MIB };
	int table = warmed("table");
	for (size_t length = 0; length < sizeof(lengths) / sizeof(lengths[0]); length++)
		for (size_t offset = 0; offset < sizeof(offsets) / sizeof(offsets[0]); offset++)
			show("read", table, lengths[length], offsets[offset]);
}

static void every_short_length(void)
{
	char buffer[302];
	uint64_t sums = 0;
	int table = warmed("table"), wrong = 0, spilled = 0;
	for (size_t length = 1; length <= 300; length++) {
		buffer[length] = 'x';
		wrong += pread(table, buffer, length, (off_t)length * 27691 + 1) != (ssize_t)length;
		spilled += buffer[length] != 'x';
		sums = sums * 31 + sum_of(buffer, length);
		wrong += pread(table, buffer, length, 2 * MIB - 150) != (ssize_t)length;
		spilled += buffer[length] != 'x';
		sums = sums * 31 + sum_of(buffer, length);
	}
	say("wrong", wrong);
	say("spilled", spilled);
	say_sum("sums", &sums, sizeof(sums));
}

static void numbers_that_cannot_be_read_at_places(void)
{
	char buffer[100];
	int numbers[] = { open(".", O_RDONLY), open("table", O_WRONLY), open("table", O_PATH), socket(AF_UNIX, SOCK_STREAM, 0), -1, 1 << 20, INT32_MAX, INT32_MIN };
	for (size_t one = 0; one < sizeof(numbers) / sizeof(numbers[0]); one++) {
		for (int round = 0; round < 300; round++)
			(void)!pread(numbers[one], buffer, sizeof(buffer), 0);
		try_read("read", numbers[one], buffer, sizeof(buffer), 0);
	}
}

const struct test_case content_cases[] = {
	{ "reads_around_the_end", true, reads_around_the_end },
	{ "reads_of_no_bytes", true, reads_of_no_bytes },
	{ "reads_at_negative_offsets", true, reads_at_negative_offsets },
	{ "reads_at_greatest_offsets", true, reads_at_greatest_offsets },
	{ "reads_into_bad_buffers", true, reads_into_bad_buffers },
	{ "reads_into_constant_pages", true, reads_into_constant_pages },
	{ "reads_into_a_buffer_that_ends_early", true, reads_into_a_buffer_that_ends_early },
	{ "reads_with_huge_lengths", true, reads_with_huge_lengths },
	{ "errno_of_reads", true, errno_of_reads },
	{ "reads_of_holes", true, reads_of_holes },
	{ "bad_buffers_over_a_hole", true, bad_buffers_over_a_hole },
	{ "reads_of_small_files", false, reads_of_small_files },
	{ "reads_by_other_calls", true, reads_by_other_calls },
	{ "checked_reads", true, checked_reads },
	{ "mapping_has_the_same_bytes", true, mapping_has_the_same_bytes },
	{ "reads_into_mappings_of_files", true, reads_into_mappings_of_files },
	{ "reads_into_shared_mappings_of_files", true, reads_into_shared_mappings_of_files },
	{ "streams_and_reads", true, streams_and_reads },
	{ "reads_do_not_move_the_position", true, reads_do_not_move_the_position },
	{ "copies_by_the_kernel", true, copies_by_the_kernel },
	{ "own_writes_are_read", true, own_writes_are_read },
	{ "writes_of_a_child_are_read", true, writes_of_a_child_are_read },
	{ "writes_through_a_link_are_read", true, writes_through_a_link_are_read },
	{ "copies_into_the_file_are_read", true, copies_into_the_file_are_read },
	{ "writes_through_a_mapping_are_read", true, writes_through_a_mapping_are_read },
	{ "becomes_shorter_and_longer", true, becomes_shorter_and_longer },
	{ "becomes_longer_by_appending", true, becomes_longer_by_appending },
	{ "punched_bytes_are_zero", true, punched_bytes_are_zero },
	{ "unlinked_file_stays", true, unlinked_file_stays },
	{ "file_that_is_renamed_over_stays", true, file_that_is_renamed_over_stays },
	{ "replaced_again_and_again", true, replaced_again_and_again },
	{ "opened_anew_without_its_bytes", true, opened_anew_without_its_bytes },
	{ "facts_of_a_read_file", true, facts_of_a_read_file },
	{ "long_reads", true, long_reads },
	{ "every_short_length", true, every_short_length },
	{ "numbers_that_cannot_be_read_at_places", false, numbers_that_cannot_be_read_at_places },
	{ NULL, false, NULL },
};
