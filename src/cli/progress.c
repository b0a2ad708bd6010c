#include "cli/progress.h"

#include <stdio.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "platform/os/os_time.h"

#define PLAIN_EVERY (5 * NS_PER_S)

void progress_open(progress_t *progress)
{
    *progress = (progress_t){.terminal = isatty(STDERR_FILENO) != 0};
}

void progress_show(progress_t *progress, const char *line, bool force)
{
    if (progress->terminal) {
        struct winsize window = {0};
        int width =
            ioctl(STDERR_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 1 ? window.ws_col - 1 : 79;
        fprintf(stderr, "\r%.*s\033[K", width, line);
        progress->line_open = true;
    } else if (force || progress->shown_at == 0 || os_now() - progress->shown_at >= PLAIN_EVERY) {
        fprintf(stderr, "%s\n", line);
        progress->shown_at = os_now();
    }
}

void progress_end(progress_t *progress)
{
    if (progress->line_open) fputc('\n', stderr);
    progress->line_open = false;
}
