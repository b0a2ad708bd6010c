/*
 * The tcp transport over loopback: the conformance suite in IPv4 and IPv6 with ranks as threads, and what it
 * costs and how fast it fails. Opening is tested in tcp_open_test.c, what processes suffer in
 * tcp_process_test.c.
 */
#include <malloc.h>
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

#include "comm/internal.h"
#include "comm/transport/tcp_world_test.h"
#include "platform/os/os_socket.h"
#include "platform/os/os_time.h"

/* ---- Waiting --------------------------------------------------------------------------------- */

static void waiting_costs_no_cpu(void **state)
{
    (void)state;
    world_t world;
    comm_options_t options = {.failure_timeout = 5 * NS_PER_S};
    tcp_world_open(&world, 3, &options);
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
    tcp_world_close(&world);
}

/* A steady state allocates nothing: checked through the C library's own account. */
static void steady_state_allocates_nothing(void **state)
{
    (void)state;
    if (SANITIZED) skip();
    world_t world;
    comm_options_t options = {.failure_timeout = 5 * NS_PER_S};
    tcp_world_open(&world, 3, &options);
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
    tcp_world_close(&world);
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
        tcp_world_open(&world, 5, &options);
        tcp_world_each(&world, abort_or_fail, &all);
        ns_t longest = 0;
        for (uint32_t r = 0; r < 5; r++) {
            inspan_cause_t cause;
            assert_int_equal(all.status[r], INSPAN_ABORTED);
            assert_int_equal(all.later[r], INSPAN_ABORTED);
            assert_true(inspan_comm_cause(world.comms[r], &cause) && cause.rank == 1);
            if (all.failed_at[r] - all.aborted_at > longest) longest = all.failed_at[r] - all.aborted_at;
        }
        if (longest < best) best = longest;
        tcp_world_close(&world);
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
        tcp_world_open(&world, 3, &options);
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
        tcp_world_close(&world);
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
    static const harness_t v4 = {"comm over tcp, IPv4", tcp_world_open, tcp_world_close, NULL};
    static const harness_t v6 = {"comm over tcp, IPv6", tcp_world_open, tcp_world_close, NULL};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_fail_in_100_ms),
        cmocka_unit_test(hostile_member_is_told),
        cmocka_unit_test(waiting_costs_no_cpu),
        cmocka_unit_test(steady_state_allocates_nothing),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    int failed = cmocka_run_group_tests_name("tcp", tests, NULL, NULL);
    failed += conformance_run(&v4);
    tcp_test_host = "::1";
    if (has_ipv6())
        failed += conformance_run(&v6);
    else
        print_message("skipped: no IPv6 loopback here\n");
    return failed;
}
