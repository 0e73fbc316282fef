/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Appends the lines of standard input to a file of a volume, each durable before the next one is read, and prints the size of the file.
 *
 *   cc log_lines.c $(pkg-config --cflags --libs polymux) -o log_lines
 *   dmesg --follow | ./log_lines media /logs/kernel
 */
#define _GNU_SOURCE
#include <errno.h>
#include <polymux.h>
#include <stdio.h>
#include <string.h>

static int append_lines(polymux_volume *volume, const char *path)
{
    char line[4096];
    struct stat found;
    int file = polymux_open(volume, path, O_WRONLY | O_CREAT | O_APPEND, 0644);
    if (file < 0)
        return -1;
    while (fgets(line, sizeof line, stdin)) {
        size_t length = strlen(line);
        if (polymux_write(volume, file, line, length) != (ssize_t)length || polymux_fdatasync(volume, file) != 0)
            return -1;
    }
    if (polymux_fstat(volume, file, &found) != 0)
        return -1;
    printf("%lld\n", (long long)found.st_size);
    return polymux_close(volume, file);
}

int main(int count, char **arguments)
{
    polymux_volume *volume;
    int failed;
    if (count != 3) {
        fprintf(stderr, "usage: %s VOLUME PATH\n", arguments[0]);
        return 2;
    }
    if (polymux_open_volume(arguments[1], 0, &volume) != 0) {
        fprintf(stderr, "%s\n", polymux_error_message());
        return 1;
    }
    for (size_t index = 0; polymux_warning(volume, index); index++)
        fprintf(stderr, "warning: %s\n", polymux_warning(volume, index));
    failed = append_lines(volume, arguments[2]);
    if (failed)
        fprintf(stderr, "%s: %s\n", arguments[2], strerror(errno));
    if (polymux_close_volume(volume) != 0) {
        fprintf(stderr, "%s\n", polymux_error_message());
        failed = 1;
    }
    return failed ? 1 : 0;
}
