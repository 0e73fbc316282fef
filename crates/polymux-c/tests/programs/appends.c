/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#define _GNU_SOURCE
/* Appends numbered lines to /log for ever, and prints the number of each once it is durable. To be killed. */
#include <polymux.h>
#include <stdio.h>
#include <unistd.h>

int main(int count, char **arguments)
{
    polymux_volume *volume;
    char line[32];
    if (count != 2 || polymux_open_volume(arguments[1], 0, &volume) != 0)
        return 1;
    alarm(300);
    int file = polymux_open(volume, "/log", O_WRONLY | O_CREAT | O_APPEND, 0644);
    for (int number = 0;; number++) {
        int length = snprintf(line, sizeof line, "%010d\n", number);
        if (polymux_write(volume, file, line, (size_t)length) != length || polymux_fdatasync(volume, file) != 0)
            return 2;
        printf("%d\n", number);
        fflush(stdout);
    }
}
