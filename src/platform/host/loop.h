/*
 * The event loop of a daemon: descriptors, timers, signals, and a wake-up from other threads. The only
 * includer of libuv. All calls and callbacks are on the thread that runs the loop, but loop_wake.
 *
 * A callback may remove itself or any other; after removal it is not called again. The caller owns
 * descriptors: remove the watch, then close.
 */
#ifndef HOST_LOOP_H
#define HOST_LOOP_H

#include <stdbool.h>

#include <inspan/status.h>

#include "base/units.h"

typedef struct loop loop_t;
typedef struct loop_watch loop_watch_t;
typedef struct loop_timer loop_timer_t;

typedef void (*loop_fn)(void *context);
typedef void (*loop_watch_fn)(void *context, bool readable,
                              bool writable); /* an error or hang-up shows as readable */

/* wake: called some time after loop_wake (several may fold into one). NO_MEMORY, IO. */
inspan_status_t loop_open(loop_fn wake, void *context, loop_t **loop, inspan_error_t *err);
void loop_close(loop_t *loop); /* what was added and not removed goes too */

void loop_run(loop_t *loop);  /* until loop_stop */
void loop_stop(loop_t *loop); /* from a callback */
void loop_wake(loop_t *loop); /* any thread */

/* Level-triggered. NO_MEMORY, IO. */
inspan_status_t loop_watch(loop_t *loop, int fd, bool read, bool write, loop_watch_fn fn, void *context,
                           loop_watch_t **watch, inspan_error_t *err);
void loop_watch_change(loop_watch_t *watch, bool read, bool write);
void loop_unwatch(loop_watch_t *watch); /* NULL is fine */

/* First call after `first`, then each `period` (0: once). NO_MEMORY. */
inspan_status_t loop_timer(loop_t *loop, ns_t first, ns_t period, loop_fn fn, void *context,
                           loop_timer_t **timer, inspan_error_t *err);
void loop_timer_stop(loop_timer_t *timer); /* NULL is fine */

/* Call fn for each arrival of a signal, until the loop closes. NO_MEMORY, IO. */
inspan_status_t loop_signal(loop_t *loop, int signal, loop_fn fn, void *context, inspan_error_t *err);

#endif
