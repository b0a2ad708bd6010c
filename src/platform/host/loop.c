#include "platform/host/loop.h"

#include <stdlib.h>
#include <uv.h>

#include "base/error.h"

struct loop {
    uv_loop_t uv;
    uv_async_t async;
    loop_fn wake;
    void *context;
};

struct loop_watch {
    uv_poll_t poll;
    loop_watch_fn fn;
    void *context;
};

struct loop_timer {
    uv_timer_t timer;
    loop_fn fn;
    void *context;
};

typedef struct loop_signal_watch {
    uv_signal_t signal;
    loop_fn fn;
    void *context;
} loop_signal_watch_t;

static void on_async(uv_async_t *async)
{
    loop_t *loop = async->data;
    if (loop->wake != NULL) loop->wake(loop->context);
}

inspan_status_t loop_open(loop_fn wake, void *context, loop_t **out, inspan_error_t *err)
{
    loop_t *loop = calloc(1, sizeof *loop);
    if (loop == NULL) return error_set(err, INSPAN_NO_MEMORY, "no memory for the event loop");
    loop->wake = wake;
    loop->context = context;
    int failed = uv_loop_init(&loop->uv);
    if (failed != 0) {
        free(loop);
        return error_set(err, INSPAN_IO, "cannot make the event loop: %s", uv_strerror(failed));
    }
    failed = uv_async_init(&loop->uv, &loop->async, on_async);
    if (failed != 0) {
        uv_loop_close(&loop->uv);
        free(loop);
        return error_set(err, INSPAN_IO, "cannot make the event loop: %s", uv_strerror(failed));
    }
    loop->async.data = loop;
    *out = loop;
    return INSPAN_OK;
}

/* Every handle but the loop's own async is an allocation that its first member, the handle, begins. */
static void on_closed(uv_handle_t *handle)
{
    free(handle);
}

static void close_one(uv_handle_t *handle, void *context)
{
    loop_t *loop = context;
    if (uv_is_closing(handle)) return;
    uv_close(handle, handle == (uv_handle_t *)&loop->async ? NULL : on_closed);
}

void loop_close(loop_t *loop)
{
    if (loop == NULL) return;
    uv_walk(&loop->uv, close_one, loop);
    uv_run(&loop->uv, UV_RUN_DEFAULT); /* only closing callbacks are left */
    uv_loop_close(&loop->uv);
    free(loop);
}

void loop_run(loop_t *loop)
{
    uv_run(&loop->uv, UV_RUN_DEFAULT);
}

void loop_stop(loop_t *loop)
{
    uv_stop(&loop->uv);
}

void loop_wake(loop_t *loop)
{
    uv_async_send(&loop->async);
}

/* ---- Descriptors ----------------------------------------------------------------------------- */

static void on_poll(uv_poll_t *poll, int status, int events)
{
    loop_watch_t *watch = (loop_watch_t *)poll;
    bool broken = status < 0;
    watch->fn(watch->context, broken || (events & (UV_READABLE | UV_DISCONNECT)) != 0,
              (events & UV_WRITABLE) != 0);
}

inspan_status_t loop_watch(loop_t *loop, int fd, bool read, bool write, loop_watch_fn fn, void *context,
                           loop_watch_t **out, inspan_error_t *err)
{
    loop_watch_t *watch = calloc(1, sizeof *watch);
    if (watch == NULL) return error_set(err, INSPAN_NO_MEMORY, "no memory to watch a descriptor");
    watch->fn = fn;
    watch->context = context;
    int failed = uv_poll_init(&loop->uv, &watch->poll, fd);
    if (failed != 0) {
        free(watch);
        return error_set(err, INSPAN_IO, "cannot watch a descriptor: %s", uv_strerror(failed));
    }
    loop_watch_change(watch, read, write);
    *out = watch;
    return INSPAN_OK;
}

void loop_watch_change(loop_watch_t *watch, bool read, bool write)
{
    int events = (read ? UV_READABLE : 0) | (write ? UV_WRITABLE : 0);
    if (events == 0)
        uv_poll_stop(&watch->poll);
    else
        uv_poll_start(&watch->poll, events, on_poll);
}

void loop_unwatch(loop_watch_t *watch)
{
    if (watch != NULL) uv_close((uv_handle_t *)&watch->poll, on_closed); /* stops at once: fd may be closed */
}

/* ---- Timers, signals ------------------------------------------------------------------------- */

static uint64_t to_ms(ns_t duration)
{
    return (uint64_t)((duration + NS_PER_MS - 1) / NS_PER_MS);
}

static void on_timer(uv_timer_t *handle)
{
    loop_timer_t *timer = (loop_timer_t *)handle;
    timer->fn(timer->context);
}

inspan_status_t loop_timer(loop_t *loop, ns_t first, ns_t period, loop_fn fn, void *context,
                           loop_timer_t **out, inspan_error_t *err)
{
    loop_timer_t *timer = calloc(1, sizeof *timer);
    if (timer == NULL) return error_set(err, INSPAN_NO_MEMORY, "no memory for a timer");
    timer->fn = fn;
    timer->context = context;
    uv_timer_init(&loop->uv, &timer->timer);
    uv_timer_start(&timer->timer, on_timer, to_ms(first), to_ms(period));
    *out = timer;
    return INSPAN_OK;
}

void loop_timer_stop(loop_timer_t *timer)
{
    if (timer != NULL) uv_close((uv_handle_t *)&timer->timer, on_closed);
}

static void on_signal(uv_signal_t *handle, int number)
{
    (void)number;
    loop_signal_watch_t *watch = (loop_signal_watch_t *)handle;
    watch->fn(watch->context);
}

inspan_status_t loop_signal(loop_t *loop, int number, loop_fn fn, void *context, inspan_error_t *err)
{
    loop_signal_watch_t *watch = calloc(1, sizeof *watch);
    if (watch == NULL) return error_set(err, INSPAN_NO_MEMORY, "no memory for a signal");
    watch->fn = fn;
    watch->context = context;
    int failed = uv_signal_init(&loop->uv, &watch->signal);
    if (failed != 0) {
        free(watch);
        return error_set(err, INSPAN_IO, "cannot catch signal %d: %s", number, uv_strerror(failed));
    }
    failed = uv_signal_start(&watch->signal, on_signal, number);
    if (failed == 0) return INSPAN_OK;
    uv_close((uv_handle_t *)&watch->signal, on_closed);
    return error_set(err, INSPAN_IO, "cannot catch signal %d: %s", number, uv_strerror(failed));
}
