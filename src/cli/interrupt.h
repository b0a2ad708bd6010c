/*
 * Ctrl-C, SIGTERM and SIGHUP as events of a descriptor, so that what was started is taken down in order. To
 * be opened before any thread exists (gRPC's): these must have the signals blocked too. Children started by
 * os_spawn get their default signals back.
 */
#ifndef CLI_INTERRUPT_H
#define CLI_INTERRUPT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/units.h"

typedef struct interrupt {
    int fd;         /* readable when a signal came */
    uint32_t count; /* of signals so far */
} interrupt_t;

/* false: the system has no descriptor left. */
bool interrupt_open(interrupt_t *interrupt);
void interrupt_close(interrupt_t *interrupt);

/* Signals so far; waits at most `timeout` for the next one. Does not wait when one had come unseen. */
uint32_t interrupt_wait(interrupt_t *interrupt, ns_t timeout);

#endif
