/* The manager process: the one entry header of manager. */
#ifndef MANAGER_MANAGER_H
#define MANAGER_MANAGER_H

#include <stdbool.h>
#include <stdint.h>

#include <inspan/status.h>

typedef struct manager_options {
    const char *folder;     /* state folder: <folder>/registry.db, token, files/ */
    const char *listen;     /* "[::]:7461", "127.0.0.1:0" */
    const char *ready_file; /* written (atomically, 0600) as "PORT\nTOKEN\n" once it answers; NULL: none */
} manager_options_t;

/* Run until SIGTERM or SIGINT. Returns the exit code: 0, 1 user error, 2 cluster error; errors go to stderr.
 */
int manager_main(const manager_options_t *options);

#endif
