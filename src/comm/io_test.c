#include "comm/io.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cmocka.h>

#include "platform/os/os_cond.h"
#include "platform/os/os_time.h"

#define DEADLINE (20 * NS_PER_S)

/* Something that callbacks count and a test waits for. */
typedef struct counter {
    pthread_mutex_t lock;
    os_cond_t changed;
    uint64_t n;
    int fd;
    comm_io_t *io;
    uint32_t timer;
} counter_t;

static void counter_init(counter_t *counter, comm_io_t *io, int fd)
{
    *counter = (counter_t){.io = io, .fd = fd};
    pthread_mutex_init(&counter->lock, NULL);
    os_cond_open(&counter->changed);
}

static void count(counter_t *counter)
{
    pthread_mutex_lock(&counter->lock);
    counter->n++;
    os_cond_broadcast(&counter->changed);
    pthread_mutex_unlock(&counter->lock);
}

static bool wait_for(counter_t *counter, uint64_t n)
{
    ns_t end = os_now() + DEADLINE;
    pthread_mutex_lock(&counter->lock);
    while (counter->n < n && os_cond_wait_until(&counter->changed, &counter->lock, end)) {
    }
    bool reached = counter->n >= n;
    pthread_mutex_unlock(&counter->lock);
    return reached;
}

static void on_readable(void *context, uint32_t events)
{
    counter_t *counter = context;
    uint64_t value;
    if (!(events & EPOLLIN) || read(counter->fd, &value, sizeof value) != sizeof value) return;
    count(counter);
}

static void on_timer(void *context, ns_t now)
{
    (void)now;
    count(context);
}

static void post(int fd)
{
    uint64_t one = 1;
    assert_int_equal(write(fd, &one, sizeof one), sizeof one);
}

static void descriptors_and_removal(void **state)
{
    (void)state;
    comm_io_t *io = NULL;
    assert_int_equal(comm_io_open(&io, NULL), INSPAN_OK);
    counter_t counters[3];
    for (int i = 0; i < 3; i++) {
        int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        counter_init(&counters[i], io, fd);
        assert_int_equal(comm_io_add(io, fd, EPOLLIN, on_readable, &counters[i]), INSPAN_OK);
        assert_int_equal(comm_io_add(io, fd, EPOLLIN, on_readable, &counters[i]), INSPAN_IO); /* twice */
    }
    for (int i = 0; i < 3; i++) post(counters[i].fd);
    for (int i = 0; i < 3; i++) assert_true(wait_for(&counters[i], 1));
    comm_io_remove(io, counters[1].fd);
    post(counters[1].fd);
    post(counters[2].fd);
    assert_true(wait_for(&counters[2], 2));
    assert_int_equal(counters[1].n, 1); /* nothing more after removal */
    assert_int_equal(comm_io_modify(io, counters[1].fd, EPOLLIN), INSPAN_INVALID);
    assert_int_equal(comm_io_add(io, counters[1].fd, EPOLLIN, on_readable, &counters[1]), INSPAN_OK);
    assert_true(wait_for(&counters[1], 2)); /* what was posted meanwhile */
    for (int i = 0; i < 3; i++) {
        comm_io_remove(io, counters[i].fd);
        close(counters[i].fd);
    }
    assert_int_equal(comm_io_add(io, -1, EPOLLIN, on_readable, NULL), INSPAN_INVALID);
    comm_io_close(io);
}

static void on_timer_cancel_itself(void *context, ns_t now)
{
    counter_t *counter = context;
    (void)now;
    comm_io_timer_cancel(counter->io, counter->timer);
    count(counter);
}

static void timers(void **state)
{
    (void)state;
    comm_io_t *io = NULL;
    assert_int_equal(comm_io_open(&io, NULL), INSPAN_OK);
    counter_t often, once, self;
    counter_init(&often, io, -1);
    counter_init(&once, io, -1);
    counter_init(&self, io, -1);
    uint32_t id = 0, once_id = 0;
    assert_int_equal(comm_io_timer(io, 3600 * NS_PER_S, false, on_timer, &often, &id), INSPAN_OK);
    comm_io_timer_cancel(io, id);
    ns_t start = os_now();
    assert_int_equal(comm_io_timer(io, 2 * NS_PER_MS, true, on_timer, &once, &once_id), INSPAN_OK);
    assert_int_equal(comm_io_timer(io, 2 * NS_PER_MS, false, on_timer, &often, &id), INSPAN_OK);
    pthread_mutex_lock(&self.lock);
    assert_int_equal(comm_io_timer(io, NS_PER_MS, false, on_timer_cancel_itself, &self, &self.timer),
                     INSPAN_OK);
    pthread_mutex_unlock(&self.lock);
    assert_true(wait_for(&often, 5));
    assert_true(os_now() - start >= 5 * 2 * NS_PER_MS);
    assert_true(wait_for(&once, 1));
    assert_true(wait_for(&self, 1));
    comm_io_timer_cancel(io, id);
    assert_int_equal(once.n, 1);
    uint64_t n = often.n;
    assert_int_equal(comm_io_timer(io, 5 * NS_PER_MS, true, on_timer, &once, &once_id), INSPAN_OK);
    assert_true(wait_for(&once, 2));
    comm_io_barrier(io);          /* the timer is free once its callback has returned */
    assert_int_equal(often.n, n); /* cancelled means no more */
    assert_int_equal(self.n, 1);  /* from inside its own callback too */
    uint32_t ids[64];
    for (int i = 0; i < 64; i++)
        assert_int_equal(comm_io_timer(io, 3600 * NS_PER_S, false, on_timer, &often, &ids[i]), INSPAN_OK);
    assert_int_equal(comm_io_timer(io, NS_PER_S, false, on_timer, &often, &id), INSPAN_LIMIT);
    for (int i = 0; i < 64; i++) comm_io_timer_cancel(io, ids[i]);
    comm_io_close(io);
}

/* A chain of one-shot timers, each set from the callback of the one before, into slots before and behind it.
 */
static void on_timer_set_next(void *context, ns_t now)
{
    counter_t *counter = context;
    (void)now;
    if (counter->n < 6)
        (void)comm_io_timer(counter->io, NS_PER_MS, true, on_timer_set_next, counter, &counter->timer);
    count(counter);
}

static void timers_set_by_timers(void **state)
{
    (void)state;
    comm_io_t *io = NULL;
    assert_int_equal(comm_io_open(&io, NULL), INSPAN_OK);
    counter_t never, chain;
    counter_init(&never, io, -1);
    counter_init(&chain, io, -1);
    uint32_t first = 0, late = 0;
    assert_int_equal(comm_io_timer(io, 3600 * NS_PER_S, false, on_timer, &never, &first), INSPAN_OK);
    assert_int_equal(comm_io_timer(io, 3600 * NS_PER_S, false, on_timer, &never, &late), INSPAN_OK);
    comm_io_timer_cancel(io, first); /* so a slot before the only other timer is free */
    assert_int_equal(comm_io_timer(io, NS_PER_MS, true, on_timer_set_next, &chain, &first), INSPAN_OK);
    assert_true(wait_for(&chain, 7));
    comm_io_timer_cancel(io, late);
    comm_io_close(io);
}

/* Removal waits for a running callback: its context may be freed right after. */
static void removal_races(void **state)
{
    (void)state;
    comm_io_t *io = NULL;
    assert_int_equal(comm_io_open(&io, NULL), INSPAN_OK);
    for (int round = 0; round < 500; round++) {
        int fd = eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK);
        counter_t *counter = malloc(sizeof *counter);
        counter_init(counter, io, fd);
        assert_int_equal(comm_io_add(io, fd, EPOLLIN, on_readable, counter), INSPAN_OK);
        uint32_t timer = 0;
        assert_int_equal(comm_io_timer(io, NS_PER_US, false, on_timer, counter, &timer), INSPAN_OK);
        if (round % 2) assert_true(wait_for(counter, 1));
        comm_io_timer_cancel(io, timer);
        comm_io_remove(io, fd);
        close(fd);
        free(counter);
    }
    comm_io_close(io);
}

static void waiting_costs_nothing(void **state)
{
    (void)state;
    comm_io_t *io = NULL;
    assert_int_equal(comm_io_open(&io, NULL), INSPAN_OK);
    counter_t late;
    counter_init(&late, io, -1);
    uint32_t id = 0;
    ns_t before = os_process_cpu();
    comm_io_spin(io, true); /* even then: at most 50 us before it blocks */
    assert_int_equal(comm_io_timer(io, 300 * NS_PER_MS, true, on_timer, &late, &id), INSPAN_OK);
    assert_true(wait_for(&late, 1));
    comm_io_spin(io, false);
    assert_true(os_process_cpu() - before < 20 * NS_PER_MS);
    assert_true(comm_io_cpu(io) < 20 * NS_PER_MS);
    comm_io_close(io);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(descriptors_and_removal), cmocka_unit_test(timers),
        cmocka_unit_test(timers_set_by_timers),    cmocka_unit_test(removal_races),
        cmocka_unit_test(waiting_costs_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
