/* Reads a file at random for some seconds and compares each read with the bytes that it had in the beginning. Exit status: 2 for a wrong byte, 3 for a read that failed. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

int main(int count, char **arguments)
{
	static char block[70000];
	struct stat facts;
	int file = count == 3 ? open(arguments[1], O_RDONLY) : -1;
	if (file < 0 || fstat(file, &facts) != 0)
		return 1;
	size_t size = (size_t)facts.st_size;
	char *all = malloc(size);
	if (all == NULL || read(file, all, size) != (ssize_t)size)
		return 1;
	time_t end = time(NULL) + atoi(arguments[2]);
	unsigned int seed = 1;
	for (unsigned long round = 0; time(NULL) < end; round++) {
		size_t length = 1 + (size_t)rand_r(&seed) % sizeof(block);
		size_t offset = (size_t)rand_r(&seed) % (size - length);
		/* Otherwise the page cache answers, and no lease would pay. */
		if (round % 4 == 0)
			posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
		if (pread(file, block, length, (off_t)offset) != (ssize_t)length)
			return 3;
		if (memcmp(block, all + offset, length) != 0) {
			printf("wrong bytes at %zu, %zu long\n", offset, length);
			return 2;
		}
	}
	return 0;
}
