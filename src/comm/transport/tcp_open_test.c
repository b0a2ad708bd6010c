/* Opening over tcp: members that are wrong, dead or late, and strangers. */
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/rng.h"
#include "comm/transport/tcp_world_test.h"
#include "platform/os/os_socket.h"
#include "platform/os/os_time.h"
#include "platform/wire/data.h"

enum { ANYBODY = -2 }; /* two sides of a pair that cannot tell which of them is wrong */

/* Open n ranks with options that spoil() has changed; all must fail, one must say `text` and blame `culprit`.
 */
static void must_fail(uint32_t n, void (*spoil)(tcp_open_all_t *), inspan_status_t status, int32_t culprit,
                      const char *text)
{
    tcp_net_t net;
    tcp_net_listen(&net, n);
    world_t world = {.n = n, .self = &net};
    comm_options_t options = {.failure_timeout = NS_PER_S};
    tcp_open_all_t all;
    tcp_fill_options(&all, &net, n, &options);
    inspan_member_t members[16][16];
    for (uint32_t r = 0; r < n; r++) {
        memcpy(members[r], net.members, sizeof members[r]);
        all.options[r].members = members[r];
    }
    spoil(&all);
    tcp_world_each(&world, tcp_open_rank, &all);
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
    tcp_net_close(&net, n);
}

static void other_key(tcp_open_all_t *all)
{
    all->options[2].key[31] ^= 1;
}

static void other_job(tcp_open_all_t *all)
{
    all->options[1].job = 6;
}

static void newer_view(tcp_open_all_t *all)
{
    all->options[2].view = 4;
}

static void other_incarnation(tcp_open_all_t *all)
{
    ((inspan_member_t *)all->options[2].members)[2].incarnation++;
}

static void other_world(tcp_open_all_t *all)
{
    all->options[2].world = 2;
    all->options[2].rank = 1;
}

static void closed_port(tcp_open_all_t *all) /* of a port that nobody has any more */
{
    int fd = -1;
    uint16_t port = 0;
    assert_int_equal(os_listen(0, 0, 1, &fd, &port, NULL), INSPAN_OK);
    close(fd);
    for (uint32_t r = 0; r < 3; r++) ((inspan_member_t *)all->options[r].members)[2].port = port;
}

static void no_address(tcp_open_all_t *all)
{
    snprintf(((inspan_member_t *)all->options[0].members)[1].address, INSPAN_NAME_MAX, "localhost");
}

static int silent = -1;

static void silent_port(tcp_open_all_t *all) /* somebody listens there and says nothing */
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
    must_fail(3, newer_view, INSPAN_TIMEOUT, 2, "did not answer in 1.0 s: it has view 4, this rank view 3");
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
    if (rank != 1) tcp_open_rank(world, rank, context);
}

static void dead_member_is_named_by_all(void **state)
{
    (void)state;
    tcp_net_t net;
    tcp_net_listen(&net, 4);
    comm_listener_close(net.listeners[1]);
    net.listeners[1] = NULL;
    world_t world = {.n = 4, .self = &net};
    comm_options_t options = {.failure_timeout = 5 * NS_PER_S};
    tcp_open_all_t all;
    tcp_fill_options(&all, &net, 4, &options);
    tcp_world_each(&world, open_unless_1, &all);
    for (uint32_t r = 0; r < 4; r++) {
        if (r == 1) continue;
        assert_int_not_equal(all.status[r], INSPAN_OK);
        assert_int_equal(all.causes[r].rank, 1);
        assert_string_equal(all.causes[r].node, "node-1");
        assert_true(all.took[r] < 4 * NS_PER_S);
    }
    tcp_net_close(&net, 4);
}

/* A stranger that connects to all ports all the time, with what `kind` says. */
typedef struct stranger {
    const tcp_net_t *net;
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
        tcp_net_t net;
        tcp_net_listen(&net, 3);
        stranger_t stranger = {.net = &net, .n = 3, .kind = kind};
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, stranger_main, &stranger), 0);
        world_t world = {.n = 3, .self = &net, .wait = tcp_world_wait, .each = tcp_world_each};
        comm_options_t options = {.failure_timeout = 10 * NS_PER_S};
        tcp_open_all_t all;
        tcp_fill_options(&all, &net, 3, &options);
        for (ns_t end = os_now() + NS_PER_S;
             __atomic_load_n(&stranger.connections, __ATOMIC_RELAXED) < 50 && os_now() < end;)
            sched_yield(); /* some are there already when the members come */
        tcp_world_each(&world, tcp_open_rank, &all);
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
        tcp_world_each(&world, tcp_close_rank, NULL);
        tcp_net_close(&net, 3);
    }
}

/* A member that opens late is waited for; one that was behind by a view catches up. */
static void open_late(world_t *world, uint32_t rank, void *context)
{
    tcp_open_all_t *all = context;
    if (rank == 1) poll(NULL, 0, 300); /* not a wait: being late is what is tested */
    tcp_open_rank(world, rank, context);
    (void)all;
}

static void late_members(void **state)
{
    (void)state;
    tcp_net_t net;
    tcp_net_listen(&net, 3);
    world_t world = {.n = 3, .self = &net, .wait = tcp_world_wait, .each = tcp_world_each};
    comm_options_t options = {.failure_timeout = 10 * NS_PER_S};
    tcp_open_all_t all;
    tcp_fill_options(&all, &net, 3, &options);
    tcp_world_each(&world, open_late, &all);
    for (uint32_t r = 0; r < 3; r++) assert_int_equal(all.status[r], INSPAN_OK);
    tcp_world_each(&world, tcp_close_rank, NULL);
    tcp_net_close(&net, 3);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_members_are_told),
        cmocka_unit_test(dead_member_is_named_by_all),
        cmocka_unit_test(strangers_harm_nothing),
        cmocka_unit_test(late_members),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests_name("tcp, opening", tests, NULL, NULL);
}
