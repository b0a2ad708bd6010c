/* One line on stderr that tells how far something is: rewritten in place on a terminal, else a line now and
 * then. */
#ifndef CLI_PROGRESS_H
#define CLI_PROGRESS_H

#include <stdbool.h>

#include "base/units.h"

typedef struct progress {
    bool terminal, line_open; /* a line stands on the terminal without its end */
    ns_t shown_at;            /* when the last plain line was written */
} progress_t;

void progress_open(progress_t *progress);

/* Show the line. Where stderr is no terminal: only every 5 s, or when forced. */
void progress_show(progress_t *progress, const char *line, bool force);

/* Before other output, and at the end: the line on the terminal is ended. */
void progress_end(progress_t *progress);

#endif
