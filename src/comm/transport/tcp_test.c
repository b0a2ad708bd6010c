/* The tcp transport over loopback: the conformance suite in IPv4 and IPv6 with ranks as threads, and what
 * only sockets can do: strangers, wrong keys, frozen and killed processes. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/hash.h"
#include "base/rng.h"
#include "comm/conformance_test.h"
#include "comm/internal.h"
#include "platform/os/os_socket.h"
#include "platform/os/os_time.h"
#include "platform/wire/data.h"

#define PATIENCE (60 * NS_PER_S)

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

typedef struct net {
    comm_io_t *ios[16];
    comm_listener_t *listeners[16];
    inspan_member_t members[16];
} net_t;

typedef struct rank_thread {
    world_t *world;
    uint32_t rank;
    void (*fn)(world_t *, uint32_t, void *);
    void *context;
} rank_thread_t;

static void *rank_main(void *argument)
{
    rank_thread_t *self = argument;
    self->fn(self->world, self->rank, self->context);
    return NULL;
}

static void tcp_each(world_t *world, void (*fn)(world_t *, uint32_t, void *), void *context)
{
    pthread_t threads[16];
    rank_thread_t ranks[16];
    for (uint32_t r = 0; r < world->n; r++) {
        ranks[r] = (rank_thread_t){world, r, fn, context};
        assert_int_equal(pthread_create(&threads[r], NULL, rank_main, &ranks[r]), 0);
    }
    for (uint32_t r = 0; r < world->n; r++) pthread_join(threads[r], NULL);
}

static inspan_status_t tcp_wait(world_t *world, uint32_t rank, inspan_op_t *op)
{
    (void)world, (void)rank;
    return inspan_op_wait(op, PATIENCE);
}

static const char *host = "127.0.0.1";

static void net_listen(net_t *net, uint32_t n)
{
    memset(net, 0, sizeof *net);
    for (uint32_t r = 0; r < n; r++) {
        inspan_member_t *member = &net->members[r];
        assert_int_equal(comm_io_open(&net->ios[r], NULL), INSPAN_OK);
        assert_int_equal(comm_listen(0, 0, &net->listeners[r], &member->port, NULL), INSPAN_OK);
        snprintf(member->node, sizeof member->node, "node-%u", r);
        snprintf(member->address, sizeof member->address, "%s", host);
        member->incarnation = 1000 + r;
    }
}

static void net_close(net_t *net, uint32_t n)
{
    for (uint32_t r = 0; r < n; r++) {
        comm_io_close(net->ios[r]);
        comm_listener_close(net->listeners[r]);
    }
}

typedef struct open_all {
    net_t *net;
    comm_options_t options[16];
    inspan_status_t status[16];
    inspan_error_t errors[16];
    inspan_cause_t causes[16];
    ns_t took[16];
} open_all_t;

static void open_rank(world_t *world, uint32_t rank, void *context)
{
    open_all_t *all = context;
    const ns_t begin = os_now();
    all->status[rank] = comm_open(&all->options[rank], &world->comms[rank], &all->errors[rank]);
    all->took[rank] = os_now() - begin;
}

static void fill_options(open_all_t *all, net_t *net, uint32_t n, const comm_options_t *options)
{
    memset(all, 0, sizeof *all);
    all->net = net;
    for (uint32_t r = 0; r < n; r++) {
        all->options[r] = *options;
        all->options[r].io = net->ios[r];
        all->options[r].listener = n > 1 ? net->listeners[r] : NULL;
        all->options[r].members = net->members;
        all->options[r].rank = r;
        all->options[r].cause = &all->causes[r];
        all->options[r].world = n;
        all->options[r].job = 5;
        all->options[r].view = 3;
        memset(all->options[r].key, 0x17, COMM_KEY_BYTES);
    }
}

static void tcp_open(world_t *world, uint32_t n, const comm_options_t *options)
{
    net_t *net = calloc(1, sizeof *net);
    net_listen(net, n);
    *world = (world_t){.n = n, .self = net, .wait = tcp_wait, .each = tcp_each};
    open_all_t all;
    fill_options(&all, net, n, options);
    tcp_each(world, open_rank, &all);
    for (uint32_t r = 0; r < n; r++) {
        if (all.status[r] != INSPAN_OK) print_message("rank %u: %s\n", r, all.errors[r].text);
        assert_int_equal(all.status[r], INSPAN_OK);
    }
}

static void close_rank(world_t *world, uint32_t rank, void *context)
{
    (void)context;
    inspan_comm_close(world->comms[rank]);
}

static void tcp_close(world_t *world)
{
    tcp_each(world, close_rank, NULL);
    net_close(world->self, world->n);
    free(world->self);
}

/* ---- Opening --------------------------------------------------------------------------------- */

enum { ANYBODY = -2 }; /* two sides of a pair that cannot tell which of them is wrong */

/* Open n ranks with options that spoil() has changed; all must fail, one must say `text` and blame `culprit`.
 */
static void must_fail(uint32_t n, void (*spoil)(open_all_t *), inspan_status_t status, int32_t culprit,
                      const char *text)
{
    net_t net;
    net_listen(&net, n);
    world_t world = {.n = n, .self = &net};
    comm_options_t options = {.failure_timeout = NS_PER_S};
    open_all_t all;
    fill_options(&all, &net, n, &options);
    inspan_member_t members[16][16];
    for (uint32_t r = 0; r < n; r++) {
        memcpy(members[r], net.members, sizeof members[r]);
        all.options[r].members = members[r];
    }
    spoil(&all);
    tcp_each(&world, open_rank, &all);
    bool found = false;
    for (uint32_t r = 0; r < n; r++) {
        assert_int_not_equal(all.status[r], INSPAN_OK);
        assert_true(all.took[r] < 3 * NS_PER_S);
        assert_int_not_equal(all.causes[r].status, INSPAN_OK);
        found |= all.status[r] == status && (culprit == ANYBODY || all.causes[r].rank == culprit) &&
                 strstr(all.errors[r].text, text) != NULL;
    }
    if (!found)
        for (uint32_t r = 0; r < n; r++)
            print_message("rank %u: %s: %s (rank %d)\n", r, inspan_status_text(all.status[r]),
                          all.errors[r].text, all.causes[r].rank);
    assert_true(found);
    net_close(&net, n);
}

static void other_key(open_all_t *all)
{
    all->options[2].key[31] ^= 1;
}

static void other_job(open_all_t *all)
{
    all->options[1].job = 6;
}

static void newer_view(open_all_t *all)
{
    all->options[2].view = 4;
}

static void other_incarnation(open_all_t *all)
{
    ((inspan_member_t *)all->options[2].members)[2].incarnation++;
}

static void other_world(open_all_t *all)
{
    all->options[2].world = 2;
    all->options[2].rank = 1;
}

static void closed_port(open_all_t *all) /* of a port that nobody has any more */
{
    int fd = -1;
    uint16_t port = 0;
    assert_int_equal(os_listen(0, 0, 1, &fd, &port, NULL), INSPAN_OK);
    close(fd);
    for (uint32_t r = 0; r < 3; r++) ((inspan_member_t *)all->options[r].members)[2].port = port;
}

static void no_address(open_all_t *all)
{
    snprintf(((inspan_member_t *)all->options[0].members)[1].address, INSPAN_NAME_MAX, "localhost");
}

static int silent = -1;

static void silent_port(open_all_t *all) /* somebody listens there and says nothing */
{
    uint16_t port = 0;
    assert_int_equal(os_listen(0, 0, 64, &silent, &port, NULL), INSPAN_OK);
    for (uint32_t r = 0; r < 3; r++) ((inspan_member_t *)all->options[r].members)[2].port = port;
}

static void wrong_members_are_told(void **state)
{
    (void)state;
    must_fail(3, other_key, INSPAN_AUTH, ANYBODY, "key");
    must_fail(3, other_job, INSPAN_MISMATCH, ANYBODY, "another job");
    must_fail(3, newer_view, INSPAN_MISMATCH, 2, "it has view 4, this rank still view 3");
    must_fail(3, other_incarnation, INSPAN_MISMATCH, ANYBODY, "restarted");
    must_fail(3, other_world, INSPAN_MISMATCH, ANYBODY, "other members");
    must_fail(3, closed_port, INSPAN_REFUSED, 2, "cannot connect to rank 2 (node node-2, 127.0.0.1:");
    must_fail(3, no_address, INSPAN_INVALID, 1, "\"localhost\" is no numeric address");
    must_fail(3, silent_port, INSPAN_TIMEOUT, 2, "did not answer");
    close(silent);
}

/* A member whose process is dead: all others name it, whoever of them finds it first and tells the others. */
static void open_unless_1(world_t *world, uint32_t rank, void *context)
{
    if (rank != 1) open_rank(world, rank, context);
}

static void dead_member_is_named_by_all(void **state)
{
    (void)state;
    net_t net;
    net_listen(&net, 4);
    comm_listener_close(net.listeners[1]);
    net.listeners[1] = NULL;
    world_t world = {.n = 4, .self = &net};
    comm_options_t options = {.failure_timeout = 5 * NS_PER_S};
    open_all_t all;
    fill_options(&all, &net, 4, &options);
    tcp_each(&world, open_unless_1, &all);
    for (uint32_t r = 0; r < 4; r++) {
        if (r == 1) continue;
        assert_int_not_equal(all.status[r], INSPAN_OK);
        assert_int_equal(all.causes[r].rank, 1);
        assert_string_equal(all.causes[r].node, "node-1");
        assert_true(all.took[r] < 4 * NS_PER_S);
    }
    net_close(&net, 4);
}

/* A stranger that connects to all ports all the time, with what `kind` says. */
typedef struct stranger {
    const net_t *net;
    uint32_t n;
    int kind; /* 0 silent, 1 garbage, 2 a HELLO without a key, 3 HELLO of another version, 4 half a HELLO */
    int stop, connections;
} stranger_t;

static void stranger_says(const stranger_t *stranger, int fd, uint32_t to, rng_t *rng)
{
    uint8_t bytes[4096];
    size_t n = sizeof bytes;
    for (size_t i = 0; i < n; i++) bytes[i] = (uint8_t)rng_next(rng);
    if (stranger->kind >= 2) {
        data_hello_t hello = {.major = DATA_MAJOR,
                              .job = 5,
                              .view = 3,
                              .world = stranger->n,
                              .from = (to + 1) % stranger->n,
                              .to = to,
                              .from_incarnation = 1000 + (to + 1) % stranger->n,
                              .to_incarnation = 1000 + to};
        if (stranger->kind == 3) hello.major = 99;
        data_encode_hello(&hello, bytes);
        n = stranger->kind == 4 ? 50 : sizeof bytes; /* what follows is a wrong PROOF */
    }
    if (stranger->kind > 0) (void)send(fd, bytes, n, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void *stranger_main(void *argument)
{
    stranger_t *stranger = argument;
    int fds[100];
    int used = 0;
    rng_t rng;
    rng_seed(&rng, 9, (uint64_t)stranger->kind);
    while (!__atomic_load_n(&stranger->stop, __ATOMIC_ACQUIRE)) {
        const uint32_t to = (uint32_t)rng_below(&rng, stranger->n);
        if (used == 100) { /* keep them open: that is what exhausts a naive server */
            for (int i = 0; i < used; i++) close(fds[i]);
            used = 0;
        }
        os_address_t address;
        if (os_address_parse(stranger->net->members[to].address, stranger->net->members[to].port, &address) !=
                INSPAN_OK ||
            os_connect(&address, &fds[used], NULL) != INSPAN_OK)
            continue;
        struct pollfd poller = {.fd = fds[used], .events = POLLOUT};
        poll(&poller, 1, 10);
        stranger_says(stranger, fds[used], to, &rng);
        used++;
        __atomic_fetch_add(&stranger->connections, 1, __ATOMIC_RELAXED);
    }
    for (int i = 0; i < used; i++) close(fds[i]);
    return NULL;
}

static void strangers_harm_nothing(void **state)
{
    (void)state;
    for (int kind = 0; kind < 5; kind++) {
        net_t net;
        net_listen(&net, 3);
        stranger_t stranger = {.net = &net, .n = 3, .kind = kind};
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, stranger_main, &stranger), 0);
        world_t world = {.n = 3, .self = &net, .wait = tcp_wait, .each = tcp_each};
        comm_options_t options = {.failure_timeout = 10 * NS_PER_S};
        open_all_t all;
        fill_options(&all, &net, 3, &options);
        for (ns_t end = os_now() + NS_PER_S;
             __atomic_load_n(&stranger.connections, __ATOMIC_RELAXED) < 50 && os_now() < end;)
            sched_yield(); /* some are there already when the members come */
        tcp_each(&world, open_rank, &all);
        for (uint32_t r = 0; r < 3; r++) {
            if (all.status[r] != INSPAN_OK)
                print_message("kind %d, rank %u: %s\n", kind, r, all.errors[r].text);
            assert_int_equal(all.status[r], INSPAN_OK);
        }
        __atomic_store_n(&stranger.stop, 1, __ATOMIC_RELEASE);
        pthread_join(thread, NULL);
        inspan_op_t *ops[3];
        for (uint32_t r = 0; r < 3; r++) assert_int_equal(inspan_barrier(world.comms[r], &ops[r]), INSPAN_OK);
        for (uint32_t r = 0; r < 3; r++) assert_int_equal(inspan_op_wait(ops[r], PATIENCE), INSPAN_OK);
        tcp_each(&world, close_rank, NULL);
        net_close(&net, 3);
    }
}

/* A member that opens late is waited for; one that was behind by a view catches up. */
static void open_late(world_t *world, uint32_t rank, void *context)
{
    open_all_t *all = context;
    if (rank == 1) poll(NULL, 0, 300); /* not a wait: being late is what is tested */
    open_rank(world, rank, context);
    (void)all;
}

static void late_members(void **state)
{
    (void)state;
    net_t net;
    net_listen(&net, 3);
    world_t world = {.n = 3, .self = &net, .wait = tcp_wait, .each = tcp_each};
    comm_options_t options = {.failure_timeout = 10 * NS_PER_S};
    open_all_t all;
    fill_options(&all, &net, 3, &options);
    tcp_each(&world, open_late, &all);
    for (uint32_t r = 0; r < 3; r++) assert_int_equal(all.status[r], INSPAN_OK);
    tcp_each(&world, close_rank, NULL);
    net_close(&net, 3);
}

/* ---- Waiting --------------------------------------------------------------------------------- */

static void waiting_costs_no_cpu(void **state)
{
    (void)state;
    world_t world;
    comm_options_t options = {.failure_timeout = 5 * NS_PER_S};
    tcp_open(&world, 3, &options);
    inspan_op_t *ops[3], *receive = NULL, *send = NULL;
    float word = 0, sent = 4;
    assert_int_equal(inspan_receive(world.comms[0], &word, 1, INSPAN_FP32, 1, 0, &receive), INSPAN_OK);
    for (uint32_t r = 0; r < 2; r++) assert_int_equal(inspan_barrier(world.comms[r], &ops[r]), INSPAN_OK);
    const ns_t cpu = os_process_cpu();
    assert_int_equal(inspan_op_wait(ops[0], 500 * NS_PER_MS), INSPAN_TIMEOUT);
    const ns_t used = os_process_cpu() - cpu;
    if (!SANITIZED)
        assert_true(used < 50 * NS_PER_MS); /* three ranks' I/O threads and this one: under 10 % of a core */
    assert_int_equal(inspan_barrier(world.comms[2], &ops[2]), INSPAN_OK);
    for (uint32_t r = 0; r < 3; r++) assert_int_equal(inspan_op_wait(ops[r], PATIENCE), INSPAN_OK);
    assert_int_equal(inspan_send(world.comms[1], &sent, 1, INSPAN_FP32, 0, 0, &send), INSPAN_OK);
    assert_int_equal(inspan_op_wait(send, PATIENCE), INSPAN_OK);
    assert_int_equal(inspan_op_wait(receive, PATIENCE), INSPAN_OK);
    assert_true(word == 4);
    tcp_close(&world);
}

/* A steady state allocates nothing: checked through the C library's own account. */
#include <malloc.h>

static void steady_state_allocates_nothing(void **state)
{
    (void)state;
    if (SANITIZED) skip();
    world_t world;
    comm_options_t options = {.failure_timeout = 5 * NS_PER_S};
    tcp_open(&world, 3, &options);
    enum { COUNT = 200000 };
    float *in = calloc(COUNT, sizeof *in), *out = calloc(3 * COUNT, sizeof *out);
    size_t before = 0;
    for (int step = 0; step < 30; step++) {
        inspan_op_t *ops[3][4];
        for (uint32_t r = 0; r < 3; r++) {
            assert_int_equal(inspan_allreduce(world.comms[r], in, out + r * COUNT, COUNT, INSPAN_FP32,
                                              INSPAN_SUM, &ops[r][0]),
                             INSPAN_OK);
            assert_int_equal(inspan_barrier(world.comms[r], &ops[r][1]), INSPAN_OK);
        }
        for (uint32_t r = 0; r < 3; r++)
            for (int k = 0; k < 2; k++) assert_int_equal(inspan_op_wait(ops[r][k], PATIENCE), INSPAN_OK);
        for (uint32_t r = 0; r < 3; r++) { /* counts that no step repeats, too */
            const uint32_t to = (r + 1) % 3, from = (r + 2) % 3;
            float *mine = out + r * COUNT;
            assert_int_equal(
                inspan_receive(world.comms[r], mine, COUNT / 2 - step, INSPAN_FP32, from, 1, &ops[r][0]),
                INSPAN_OK);
            assert_int_equal(
                inspan_receive(world.comms[r], mine + COUNT / 2, step, INSPAN_FP32, from, 2, &ops[r][1]),
                INSPAN_OK);
            assert_int_equal(inspan_send(world.comms[r], in, step, INSPAN_FP32, to, 2, &ops[r][2]),
                             INSPAN_OK);
            assert_int_equal(
                inspan_send(world.comms[r], in, COUNT / 2 - step, INSPAN_FP32, to, 1, &ops[r][3]), INSPAN_OK);
        }
        for (uint32_t r = 0; r < 3; r++)
            for (int k = 0; k < 4; k++) assert_int_equal(inspan_op_wait(ops[r][k], PATIENCE), INSPAN_OK);
        const struct mallinfo2 info = mallinfo2();
        if (step == 5) before = info.uordblks;
        if (step > 5) assert_int_equal(info.uordblks, before);
    }
    free(in);
    free(out);
    tcp_close(&world);
}

/* ---- Failing --------------------------------------------------------------------------------- */

typedef struct giving_up {
    pthread_barrier_t started;
    float *buffer;
    ns_t aborted_at, failed_at[16];
    inspan_status_t status[16], later[16];
} giving_up_t;

enum { GIVEN_UP = 2000000 };

static void abort_or_fail(world_t *world, uint32_t rank, void *context)
{
    giving_up_t *all = context;
    inspan_comm_t *comm = world->comms[rank];
    inspan_op_t *op = NULL;
    all->status[rank] = rank == 1 ? INSPAN_ABORTED
                                  : inspan_allreduce(comm, all->buffer, all->buffer + GIVEN_UP * (rank + 1),
                                                     GIVEN_UP, INSPAN_FP32, INSPAN_SUM, &op);
    pthread_barrier_wait(&all->started);
    if (rank == 1) {
        all->aborted_at = os_now();
        inspan_comm_abort(comm, "tired");
    }
    if (op != NULL) all->status[rank] = inspan_op_wait(op, PATIENCE);
    all->later[rank] = inspan_barrier(comm, &op);
    if (all->later[rank] == INSPAN_OK) all->later[rank] = inspan_op_wait(op, PATIENCE);
    all->failed_at[rank] = os_now();
}

/* In a ring rank 3 never talks to rank 1: it fails in 100 ms as all do, in what it waits for and what it
 * calls then. One round of three may be late: the machine has other things to do. */
static void all_fail_in_100_ms(void **state)
{
    (void)state;
    giving_up_t all = {.buffer = calloc((size_t)GIVEN_UP * 6, sizeof(float))};
    ns_t best = PATIENCE;
    pthread_barrier_init(&all.started, NULL, 5);
    for (int round = 0; round < 3; round++) {
        world_t world;
        comm_options_t options = {.failure_timeout = 5 * NS_PER_S, .schedule = INSPAN_SCHEDULE_RING};
        tcp_open(&world, 5, &options);
        tcp_each(&world, abort_or_fail, &all);
        ns_t longest = 0;
        for (uint32_t r = 0; r < 5; r++) {
            inspan_cause_t cause;
            assert_int_equal(all.status[r], INSPAN_ABORTED);
            assert_int_equal(all.later[r], INSPAN_ABORTED);
            assert_true(inspan_comm_cause(world.comms[r], &cause) && cause.rank == 1);
            if (all.failed_at[r] - all.aborted_at > longest) longest = all.failed_at[r] - all.aborted_at;
        }
        if (longest < best) best = longest;
        tcp_close(&world);
    }
    assert_true(best < (SANITIZED ? 1000 : 100) * NS_PER_MS);
    pthread_barrier_destroy(&all.started);
    free(all.buffer);
}

/* A member sends what is no frame: it is told so over the stream that it broke, and all blame it. */
static void hostile_member_is_told(void **state)
{
    (void)state;
    for (uint32_t evil = 0; evil < 3; evil += 2) {
        const uint32_t victim = 2 - evil;
        world_t world;
        comm_options_t options = {.failure_timeout = 5 * NS_PER_S};
        tcp_open(&world, 3, &options);
        inspan_op_t *ops[3];
        uint8_t junk[20000];
        memset(junk, 0xff, sizeof junk); /* much more than what is looked at: it stays unread in the socket */
        for (uint32_t r = 0; r < 3; r++)
            if (r != evil) assert_int_equal(inspan_barrier(world.comms[r], &ops[r]), INSPAN_OK);
        const struct iovec iov = {junk, sizeof junk};
        inspan_comm_t *comm = world.comms[evil];
        assert_int_equal(comm->transport->send(comm->transport_self, victim, &iov, 1), sizeof junk);
        for (uint32_t r = 0; r < 3; r++)
            if (r != evil) assert_int_equal(inspan_op_wait(ops[r], PATIENCE), INSPAN_CORRUPT);
        inspan_status_t status = inspan_barrier(comm, &ops[evil]);
        if (status == INSPAN_OK) status = inspan_op_wait(ops[evil], PATIENCE);
        assert_int_equal(status, INSPAN_CORRUPT);
        for (uint32_t r = 0; r < 3; r++) {
            inspan_cause_t cause;
            assert_true(inspan_comm_cause(world.comms[r], &cause));
            assert_int_equal(cause.rank, evil);
            assert_int_equal(cause.noticed_by, victim);
            assert_non_null(strstr(cause.text, "bytes that are no frame"));
        }
        tcp_close(&world);
    }
}

/* ---- Processes ------------------------------------------------------------------------------- */

enum { PROCS = 4 };

/* What the ranks of forked processes tell the test, in shared memory. */
typedef struct report {
    int ready, done;
    inspan_status_t status, later;
    ns_t failed_at;
    inspan_cause_t cause;
    uint64_t hash;
} report_t;

typedef struct shared {
    report_t reports[PROCS];
    int go;
} shared_t;

static bool wait_until(int *flag, int value)
{
    for (ns_t end = os_now() + PATIENCE; os_now() < end;
         poll(NULL, 0, 1)) /* not a wait: the deadline decides; shared memory has no event */
        if (__atomic_load_n(flag, __ATOMIC_ACQUIRE) == value) return true;
    return false;
}

/* What the ranks do, again and again. */
typedef struct workload {
    bool ring; /* sends to the next rank, receives from the one before; else all-reduces */
    uint64_t count;
    int times;
    ns_t failure_timeout;
} workload_t;

/* Start one step of it. Also where that fails, what was started must be waited for. */
static inspan_status_t start_step(inspan_comm_t *comm, const workload_t *work, const float *in, float *out,
                                  inspan_op_t *ops[2])
{
    ops[0] = ops[1] = NULL;
    if (!work->ring) return inspan_allreduce(comm, in, out, work->count, INSPAN_FP32, INSPAN_SUM, &ops[0]);
    const uint32_t rank = inspan_comm_rank(comm);
    const inspan_status_t status =
        inspan_receive(comm, out, work->count, INSPAN_FP32, (rank + PROCS - 1) % PROCS, 0, &ops[0]);
    if (status != INSPAN_OK) return status;
    return inspan_send(comm, in, work->count, INSPAN_FP32, (rank + 1) % PROCS, 0, &ops[1]);
}

/* Its first failure; nothing of it is left. */
static inspan_status_t wait_step(inspan_op_t *ops[2])
{
    inspan_status_t status = INSPAN_OK;
    for (int i = 0; i < 2; i++) {
        const inspan_status_t waited = ops[i] != NULL ? inspan_op_wait(ops[i], PATIENCE) : INSPAN_OK;
        if (status == INSPAN_OK) status = waited;
        ops[i] = NULL;
    }
    return status;
}

static void child_main(net_t *net, uint32_t rank, shared_t *shared, const workload_t *work)
{
    report_t *report = &shared->reports[rank];
    comm_io_t *io = NULL;
    inspan_comm_t *comm = NULL;
    comm_options_t options = {.failure_timeout = work->failure_timeout,
                              .rank = rank,
                              .world = PROCS,
                              .members = net->members,
                              .listener = net->listeners[rank],
                              .job = 1,
                              .view = 1};
    if (comm_io_open(&io, NULL) != INSPAN_OK) _exit(2);
    options.io = io;
    inspan_error_t err;
    if (comm_open(&options, &comm, &err) != INSPAN_OK) {
        fprintf(stderr, "%s\n", err.text);
        _exit(3);
    }
    const uint64_t count = work->count;
    float *in = malloc(count * sizeof *in);
    float *out[2] = {malloc(count * sizeof *in), malloc(count * sizeof *in)};
    inspan_op_t *ops[2][2] = {{NULL}};
    for (uint64_t i = 0; i < count; i++) in[i] = (float)((i * 31 + rank) % 1009) * 0.37f;
    report->hash = 0;
    /* The next step is under way before the last one's result is looked at: there is always one. */
    for (int k = 0; k <= work->times && report->status == INSPAN_OK; k++) {
        if (k < work->times) report->status = start_step(comm, work, in, out[k % 2], ops[k % 2]);
        if (k == 1) __atomic_store_n(&report->ready, 1, __ATOMIC_RELEASE);
        if (k == 0) continue;
        const int last = (k - 1) % 2;
        const inspan_status_t waited = wait_step(ops[last]);
        if (report->status == INSPAN_OK) report->status = waited;
        if (report->status == INSPAN_OK)
            report->hash = hash64(out[last], count * sizeof *in, report->hash);
        else
            wait_step(ops[k % 2]);
    }
    report->failed_at = os_now();
    inspan_op_t *op = NULL;
    report->later = inspan_barrier(comm, &op);
    if (report->later == INSPAN_OK) report->later = inspan_op_wait(op, PATIENCE);
    inspan_comm_cause(comm, &report->cause);
    __atomic_store_n(&report->done, 1, __ATOMIC_RELEASE);
    inspan_comm_close(comm);
    comm_io_close(io);
    _exit(0);
}

static shared_t *fork_ranks(net_t *net, pid_t *pids, const workload_t *work)
{
    shared_t *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(shared != MAP_FAILED);
    memset(net, 0, sizeof *net);
    for (uint32_t r = 0; r < PROCS; r++) {
        assert_int_equal(comm_listen(0, 0, &net->listeners[r], &net->members[r].port, NULL), INSPAN_OK);
        snprintf(net->members[r].node, sizeof net->members[r].node, "node-%u", r);
        snprintf(net->members[r].address, sizeof net->members[r].address, "127.0.0.1");
    }
    for (uint32_t r = 0; r < PROCS; r++) {
        pids[r] = fork();
        assert_true(pids[r] >= 0);
        if (pids[r] == 0) {
            alarm(120); /* whatever happens to the parent */
            child_main(net, r, shared, work);
        }
    }
    return shared;
}

static void reap(net_t *net, pid_t *pids, shared_t *shared)
{
    for (uint32_t r = 0; r < PROCS; r++) {
        kill(pids[r], SIGKILL);
        waitpid(pids[r], NULL, 0);
        comm_listener_close(net->listeners[r]);
    }
    munmap(shared, sizeof *shared);
}

/* kill -9 in the middle of 50 MB: all survivors fail within a second and name the rank; later calls too. */
static void kill_one(bool ring)
{
    net_t net;
    pid_t pids[PROCS];
    const workload_t work = {ring, 12500000, 1000, 5 * NS_PER_S};
    shared_t *shared = fork_ranks(&net, pids, &work);
    for (uint32_t r = 0; r < PROCS; r++) assert_true(wait_until(&shared->reports[r].ready, 1));
    kill(pids[2], SIGKILL);
    const ns_t killed = os_now();
    for (uint32_t r = 0; r < PROCS; r++) {
        if (r == 2) continue;
        report_t *report = &shared->reports[r];
        assert_true(wait_until(&report->done, 1));
        assert_int_equal(report->status, INSPAN_PEER_LOST);
        assert_int_equal(report->later, INSPAN_PEER_LOST);
        assert_int_equal(report->cause.rank, 2);
        assert_string_equal(report->cause.node, "node-2");
        if (!ring && strstr(report->cause.text, "allreduce #") == NULL)
            fail_msg("%s",
                     report->cause.text); /* in a ring, who notices first may just be between two steps */
        assert_true(report->failed_at - killed < NS_PER_S);
    }
    reap(&net, pids, shared);
}

static void killed_in_all_reduces(void **state)
{
    (void)state;
    kill_one(false);
}

static void killed_in_transfers(void **state)
{
    (void)state;
    kill_one(true);
}

/* A rank that stands still for a second is only late: the same bits as without. */
static void stopped_for_a_second(void **state)
{
    (void)state;
    uint64_t hashes[2];
    for (int stopped = 0; stopped < 2; stopped++) {
        net_t net;
        pid_t pids[PROCS];
        const workload_t work = {false, 2500000, 12, 5 * NS_PER_S};
        shared_t *shared = fork_ranks(&net, pids, &work);
        assert_true(wait_until(&shared->reports[1].ready, 1));
        if (stopped) {
            kill(pids[1], SIGSTOP);
            poll(NULL, 0, 1000); /* not a wait: standing still is what is tested */
            kill(pids[1], SIGCONT);
        }
        for (uint32_t r = 0; r < PROCS; r++) {
            assert_true(wait_until(&shared->reports[r].done, 1));
            assert_int_equal(shared->reports[r].status, INSPAN_OK);
            assert_int_equal(shared->reports[r].hash, shared->reports[0].hash);
        }
        hashes[stopped] = shared->reports[0].hash;
        reap(&net, pids, shared);
    }
    assert_int_equal(hashes[0], hashes[1]);
}

/* One that stands still for good is an error on all others, after twice the failure timeout. */
static void stop_one(bool ring)
{
    net_t net;
    pid_t pids[PROCS];
    const workload_t work = {ring, 2500000, 100000, NS_PER_S};
    shared_t *shared = fork_ranks(&net, pids, &work);
    assert_true(wait_until(&shared->reports[1].ready, 1));
    kill(pids[1], SIGSTOP);
    const ns_t stopped = os_now();
    for (uint32_t r = 0; r < PROCS; r++) {
        if (r == 1) continue;
        report_t *report = &shared->reports[r];
        assert_true(wait_until(&report->done, 1));
        assert_int_equal(report->status, INSPAN_PEER_LOST);
        assert_int_equal(report->cause.rank, 1);
        assert_true(report->failed_at - stopped < 4 * NS_PER_S);
    }
    kill(pids[1], SIGCONT); /* the others are gone: it must find out, not hang */
    assert_true(wait_until(&shared->reports[1].done, 1));
    assert_int_not_equal(shared->reports[1].status, INSPAN_OK);
    reap(&net, pids, shared);
}

static void stopped_in_all_reduces(void **state)
{
    (void)state;
    stop_one(false);
}

static void stopped_in_transfers(void **state)
{
    (void)state;
    stop_one(true);
}

/* A process that ends at any moment of the connecting (rank 2 never connects, so that it goes on): rank 0
 * names the one that ended, whatever it sees of it. */
static void member_dies_while_connecting(void **state)
{
    (void)state;
    for (int us = 500; us < 200000; us *= 4) {
        net_t net;
        net_listen(&net, 3);
        open_all_t all;
        comm_options_t options = {.failure_timeout = 10 * NS_PER_S};
        fill_options(&all, &net, 3, &options);
        const pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
            const struct itimerval end = {
                .it_value = {.tv_usec = us}}; /* SIGALRM ends it, not cleaner than -9 */
            inspan_comm_t *comm = NULL;
            setitimer(ITIMER_REAL, &end, NULL);
            comm_open(&all.options[1], &comm, NULL);
            for (;;) pause();
        }
        comm_listener_close(net.listeners[1]); /* now it is the child's alone */
        net.listeners[1] = NULL;
        world_t world = {.n = 3, .self = &net};
        open_rank(&world, 0, &all);
        assert_int_not_equal(all.status[0], INSPAN_OK);
        if (all.causes[0].rank != 1) print_message("%s\n", all.errors[0].text);
        assert_int_equal(all.causes[0].rank, 1);
        assert_int_equal(all.causes[0].noticed_by, 0);
        assert_true(all.took[0] < 5 * NS_PER_S);
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        net_close(&net, 3);
    }
}

static bool has_ipv6(void)
{
    os_address_t loopback;
    if (os_address_parse("::1", 0, &loopback) != INSPAN_OK) return false;
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool ok = fd >= 0 && bind(fd, (struct sockaddr *)&loopback.storage, loopback.length) == 0;
    if (fd >= 0) close(fd);
    return ok;
}

int main(int argc, char **argv)
{
    static const harness_t v4 = {"comm over tcp, IPv4", tcp_open, tcp_close};
    static const harness_t v6 = {"comm over tcp, IPv6", tcp_open, tcp_close};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_members_are_told), cmocka_unit_test(dead_member_is_named_by_all),
        cmocka_unit_test(all_fail_in_100_ms),     cmocka_unit_test(hostile_member_is_told),
        cmocka_unit_test(strangers_harm_nothing), cmocka_unit_test(late_members),
        cmocka_unit_test(waiting_costs_no_cpu),   cmocka_unit_test(steady_state_allocates_nothing),
    };
    const struct CMUnitTest processes[] = {
        cmocka_unit_test(member_dies_while_connecting), cmocka_unit_test(killed_in_all_reduces),
        cmocka_unit_test(killed_in_transfers),          cmocka_unit_test(stopped_for_a_second),
        cmocka_unit_test(stopped_in_all_reduces),       cmocka_unit_test(stopped_in_transfers)};
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    int failed = 0;
#ifndef __SANITIZE_THREAD__ /* forks */
    failed += cmocka_run_group_tests_name("tcp, processes", processes, NULL, NULL);
#else
    (void)processes;
#endif
    failed += cmocka_run_group_tests_name("tcp", tests, NULL, NULL);
    failed += conformance_run(&v4);
    host = "::1";
    if (has_ipv6())
        failed += conformance_run(&v6);
    else
        print_message("skipped: no IPv6 loopback here\n");
    return failed;
}
