/*
 * The I/O thread: one epoll set, a table of descriptors, a table of timers.
 *
 * One mutex guards both tables and is never held while a callback runs. `running` is what the thread is
 * inside of at the moment; removal from another thread waits on `idle` until that is something else. A slot
 * carries a generation that epoll hands back, so that an event of a removed descriptor, fetched in the same
 * batch, finds nobody.
 */
#include "comm/io.h"

#include <errno.h>
#include <fenv.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "platform/os/os_time.h"

#define IO_MAX_FDS    1024
#define IO_MAX_TIMERS 64
#define IO_BATCH      32
#define IO_WAKE       UINT64_MAX
#define IO_SPIN       (50 * NS_PER_US)
#define IO_LONGEST    (3600 * NS_PER_S) /* of one blocking wait, so that it fits an int of milliseconds */

typedef struct io_fd {
    int fd; /* -1: free */
    uint32_t generation;
    comm_io_fn fn;
    void *context;
} io_fd_t;

typedef struct io_timer {
    uint32_t id; /* 0: free */
    bool once;
    ns_t period, due;
    comm_io_timer_fn fn;
    void *context;
} io_timer_t;

struct comm_io {
    int epoll, wake;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t idle;
    bool stop;
    const void *running; /* io_fd_t or io_timer_t whose callback runs now */
    uint32_t running_generation;
    uint64_t calls; /* callbacks begun */
    io_fd_t fds[IO_MAX_FDS];
    uint32_t n_fds; /* slots ever used */
    io_timer_t timers[IO_MAX_TIMERS];
    uint32_t last_timer_id;
    atomic_int spinners;
};

static bool on_io_thread(const comm_io_t *io)
{
    return pthread_equal(pthread_self(), io->thread);
}

bool comm_io_is_current(const comm_io_t *io)
{
    return on_io_thread(io);
}

ns_t comm_io_cpu(comm_io_t *io)
{
    clockid_t clock;
    struct timespec now;
    if (pthread_getcpuclockid(io->thread, &clock) != 0 || clock_gettime(clock, &now) != 0) return 0;
    return (ns_t)now.tv_sec * NS_PER_S + now.tv_nsec;
}

void comm_io_spin(comm_io_t *io, bool on)
{
    atomic_fetch_add_explicit(&io->spinners, on ? 1 : -1, memory_order_relaxed);
}

static void wake(comm_io_t *io)
{
    uint64_t one = 1;
    ssize_t ignored = write(io->wake, &one, sizeof one);
    (void)ignored; /* EAGAIN: the counter is full, so it is awake anyway */
}

static void dispatch_fd(comm_io_t *io, uint64_t key, uint32_t events)
{
    io_fd_t *slot = &io->fds[key & UINT32_MAX];
    uint32_t generation = (uint32_t)(key >> 32);
    pthread_mutex_lock(&io->lock);
    if (slot->fd < 0 || slot->generation != generation) {
        pthread_mutex_unlock(&io->lock);
        return;
    }
    comm_io_fn fn = slot->fn;
    void *context = slot->context;
    io->running = slot;
    io->calls++;
    io->running_generation = generation;
    pthread_mutex_unlock(&io->lock);
    fn(context, events);
    pthread_mutex_lock(&io->lock);
    io->running = NULL;
    pthread_cond_broadcast(&io->idle);
    pthread_mutex_unlock(&io->lock);
}

/* Run the timers that are due; the time until the next one, or -1. */
static ns_t run_timers(comm_io_t *io)
{
    const ns_t now = os_now();
    ns_t next = -1;
    pthread_mutex_lock(&io->lock);
    for (uint32_t i = 0; i < IO_MAX_TIMERS; i++) {
        io_timer_t *timer = &io->timers[i];
        if (timer->id == 0 || timer->due > now) continue;
        comm_io_timer_fn fn = timer->fn;
        void *context = timer->context;
        io->running = timer;
        io->calls++;
        io->running_generation = timer->id;
        if (timer->once)
            timer->id = 0;
        else /* periods missed while the process was stopped are not made up for */
            timer->due = timer->due + timer->period > now ? timer->due + timer->period : now + timer->period;
        pthread_mutex_unlock(&io->lock);
        fn(context, now);
        pthread_mutex_lock(&io->lock);
        io->running = NULL;
        pthread_cond_broadcast(&io->idle);
    }
    for (uint32_t i = 0; i < IO_MAX_TIMERS; i++) { /* only now: callbacks set timers in any slot */
        const io_timer_t *timer = &io->timers[i];
        if (timer->id == 0) continue;
        const ns_t left = timer->due > now ? timer->due - now : 0;
        if (next < 0 || left < next) next = left;
    }
    pthread_mutex_unlock(&io->lock);
    return next;
}

/* Events, after at most 50 us of polling where somebody asked for it (yielding: see io.h), else blocking
 * until the next timer. */
static int wait_events(comm_io_t *io, struct epoll_event *events)
{
    ns_t until_timer = run_timers(io);
    if (atomic_load_explicit(&io->spinners, memory_order_relaxed) > 0) {
        ns_t end = os_now() + IO_SPIN;
        do {
            int n = epoll_wait(io->epoll, events, IO_BATCH, 0);
            if (n != 0) return n;
            sched_yield();
        } while (os_now() < end);
    }
    if (until_timer > IO_LONGEST) until_timer = IO_LONGEST;
    int ms = until_timer < 0 ? -1 : (int)((until_timer + NS_PER_MS - 1) / NS_PER_MS);
    return epoll_wait(io->epoll, events, IO_BATCH, ms);
}

static void *io_main(void *context)
{
    comm_io_t *io = context;
    struct epoll_event events[IO_BATCH];
    fesetenv(FE_DFL_ENV); /* a thread inherits its creator's: flush-to-zero there would change our sums */
    for (;;) {
        int n = wait_events(io, events);
        if (n < 0 && errno != EINTR) log_error("comm: epoll_wait: %s", strerror(errno));
        for (int i = 0; i < n; i++) {
            if (events[i].data.u64 != IO_WAKE) {
                dispatch_fd(io, events[i].data.u64, events[i].events);
                continue;
            }
            uint64_t count;
            ssize_t ignored = read(io->wake, &count, sizeof count);
            (void)ignored;
        }
        pthread_mutex_lock(&io->lock);
        bool stop = io->stop;
        pthread_mutex_unlock(&io->lock);
        if (stop) return NULL;
    }
}

/* The thread takes no signals: these are for the program's own threads. */
static int start_thread(comm_io_t *io)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_mutex_lock(&io->lock); /* io->thread is written before the thread can look at it */
    int rc = pthread_create(&io->thread, NULL, io_main, io);
    pthread_mutex_unlock(&io->lock);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc == 0) pthread_setname_np(io->thread, "inspan-io");
    return rc;
}

inspan_status_t comm_io_open(comm_io_t **out, inspan_error_t *err)
{
    comm_io_t *io = calloc(1, sizeof *io);
    if (io == NULL) return error_set(err, INSPAN_NO_MEMORY, "no memory for the I/O thread");
    for (uint32_t i = 0; i < IO_MAX_FDS; i++) io->fds[i].fd = -1;
    pthread_mutex_init(&io->lock, NULL);
    pthread_cond_init(&io->idle, NULL);
    io->epoll = epoll_create1(EPOLL_CLOEXEC);
    io->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = IO_WAKE};
    int rc = 0;
    if (io->epoll < 0 || io->wake < 0 || epoll_ctl(io->epoll, EPOLL_CTL_ADD, io->wake, &event) != 0)
        rc = errno;
    else
        rc = start_thread(io);
    if (rc == 0) {
        *out = io;
        return INSPAN_OK;
    }
    errno = rc;
    error_set_errno(err, INSPAN_IO, "cannot start the I/O thread");
    if (io->epoll >= 0) close(io->epoll);
    if (io->wake >= 0) close(io->wake);
    pthread_cond_destroy(&io->idle);
    pthread_mutex_destroy(&io->lock);
    free(io);
    return INSPAN_IO;
}

void comm_io_close(comm_io_t *io)
{
    if (io == NULL) return;
    pthread_mutex_lock(&io->lock);
    io->stop = true;
    pthread_mutex_unlock(&io->lock);
    wake(io);
    pthread_join(io->thread, NULL);
    close(io->epoll);
    close(io->wake);
    pthread_cond_destroy(&io->idle);
    pthread_mutex_destroy(&io->lock);
    free(io);
}

/* With the lock held: the slot of fd, or NULL. */
static io_fd_t *find_fd(comm_io_t *io, int fd)
{
    for (uint32_t i = 0; i < io->n_fds; i++)
        if (io->fds[i].fd == fd) return &io->fds[i];
    return NULL;
}

inspan_status_t comm_io_add(comm_io_t *io, int fd, uint32_t events, comm_io_fn fn, void *context)
{
    if (fd < 0) return INSPAN_INVALID;
    pthread_mutex_lock(&io->lock);
    io_fd_t *slot = find_fd(io, -1);
    if (slot == NULL && io->n_fds < IO_MAX_FDS) slot = &io->fds[io->n_fds++];
    inspan_status_t status = INSPAN_LIMIT;
    if (slot != NULL) {
        uint32_t generation = slot->generation + 1;
        *slot = (io_fd_t){.fd = fd, .generation = generation, .fn = fn, .context = context};
        struct epoll_event event = {.events = events,
                                    .data.u64 = (uint64_t)generation << 32 | (uint32_t)(slot - io->fds)};
        status = epoll_ctl(io->epoll, EPOLL_CTL_ADD, fd, &event) == 0 ? INSPAN_OK : INSPAN_IO;
        if (status != INSPAN_OK) slot->fd = -1;
    }
    pthread_mutex_unlock(&io->lock);
    return status;
}

inspan_status_t comm_io_modify(comm_io_t *io, int fd, uint32_t events)
{
    pthread_mutex_lock(&io->lock);
    io_fd_t *slot = fd < 0 ? NULL : find_fd(io, fd);
    inspan_status_t status = INSPAN_INVALID;
    if (slot != NULL) {
        struct epoll_event event = {
            .events = events, .data.u64 = (uint64_t)slot->generation << 32 | (uint32_t)(slot - io->fds)};
        status = epoll_ctl(io->epoll, EPOLL_CTL_MOD, fd, &event) == 0 ? INSPAN_OK : INSPAN_IO;
    }
    pthread_mutex_unlock(&io->lock);
    return status;
}

/* With the lock held: wait until the callback of (slot, generation) is over; not on the I/O thread itself. */
static void wait_until_idle(comm_io_t *io, const void *slot, uint32_t generation)
{
    if (on_io_thread(io)) return;
    while (io->running == slot && io->running_generation == generation)
        pthread_cond_wait(&io->idle, &io->lock);
}

void comm_io_remove(comm_io_t *io, int fd)
{
    if (fd < 0) return;
    pthread_mutex_lock(&io->lock);
    io_fd_t *slot = find_fd(io, fd);
    if (slot != NULL) {
        uint32_t generation = slot->generation;
        epoll_ctl(io->epoll, EPOLL_CTL_DEL, fd, NULL);
        slot->fd = -1;
        wait_until_idle(io, slot, generation);
    }
    pthread_mutex_unlock(&io->lock);
}

inspan_status_t comm_io_timer(comm_io_t *io, ns_t period, bool once, comm_io_timer_fn fn, void *context,
                              uint32_t *id)
{
    if (period <= 0) return INSPAN_INVALID;
    pthread_mutex_lock(&io->lock);
    inspan_status_t status = INSPAN_LIMIT;
    for (uint32_t i = 0; i < IO_MAX_TIMERS && status != INSPAN_OK; i++) {
        io_timer_t *timer = &io->timers[i];
        if (timer->id != 0 || io->running == timer) continue;
        if (++io->last_timer_id == 0) io->last_timer_id = 1;
        *timer = (io_timer_t){io->last_timer_id, once, period, os_now() + period, fn, context};
        *id = timer->id;
        status = INSPAN_OK;
    }
    pthread_mutex_unlock(&io->lock);
    if (status == INSPAN_OK && !on_io_thread(io)) wake(io); /* it may be asleep until a later timer */
    return status;
}

void comm_io_timer_cancel(comm_io_t *io, uint32_t id)
{
    if (id == 0) return;
    pthread_mutex_lock(&io->lock);
    for (uint32_t i = 0; i < IO_MAX_TIMERS; i++) {
        io_timer_t *timer = &io->timers[i];
        if (timer->id == id) timer->id = 0;
        wait_until_idle(io, timer, id);
    }
    pthread_mutex_unlock(&io->lock);
}

void comm_io_barrier(comm_io_t *io)
{
    pthread_mutex_lock(&io->lock);
    const uint64_t calls = io->calls;
    while (!on_io_thread(io) && io->running != NULL && io->calls == calls)
        pthread_cond_wait(&io->idle, &io->lock);
    pthread_mutex_unlock(&io->lock);
}
