/*
 * Gloo as a backend: the conformance suite, and what only a backend with connections of its own can get
 * wrong. What processes suffer under it is in transport/tcp_process_test.c.
 */
#include <dirent.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "comm/backends/engine.h"
#include "comm/transport/tcp.h"
#include "comm/transport/tcp_world_test.h"
#include "platform/os/os_time.h"

static void open_gloo(world_t *world, uint32_t n, const comm_options_t *options)
{
    comm_options_t with = *options;
    with.backend = "gloo";
    tcp_world_open(world, n, &with);
}

static const harness_t over_gloo = {"comm with gloo", open_gloo, tcp_world_close, &backend_gloo};

static const comm_options_t plain = {.failure_timeout = 5 * NS_PER_S};

/* ---- Descriptors ----------------------------------------------------------------------------- */

enum { FDS = 1024 };

/* Fills which are sockets, by inode; 0: no socket. The number of descriptors. */
static int look_at_descriptors(ino_t inodes[FDS])
{
    int n = 0;
    memset(inodes, 0, FDS * sizeof *inodes);
    for (int fd = 0; fd < FDS; fd++) {
        struct stat info;
        if (fstat(fd, &info) != 0) continue;
        n++;
        if (S_ISSOCK(info.st_mode)) inodes[fd] = info.st_ino;
    }
    return n;
}

static void leaves_no_descriptor(void **state)
{
    (void)state;
    ino_t inodes[FDS];
    world_t world;
    const int before = look_at_descriptors(inodes);
    for (int round = 0; round < 3; round++) {
        open_gloo(&world, 3, &plain);
        assert_true(look_at_descriptors(inodes) > before);
        tcp_world_close(&world);
        assert_int_equal(look_at_descriptors(inodes), before);
    }
}

/* ---- Waiting --------------------------------------------------------------------------------- */

static void waiting_costs_no_cpu(void **state)
{
    (void)state;
    world_t world;
    inspan_op_t *ops[3];
    open_gloo(&world, 3, &plain);
    for (uint32_t r = 0; r < 2; r++) assert_int_equal(inspan_barrier(world.comms[r], &ops[r]), INSPAN_OK);
    const ns_t cpu = os_process_cpu();
    assert_int_equal(inspan_op_wait(ops[0], 500 * NS_PER_MS), INSPAN_TIMEOUT);
    if (!SANITIZED) assert_true(os_process_cpu() - cpu < 50 * NS_PER_MS); /* of nine threads */
    assert_int_equal(inspan_barrier(world.comms[2], &ops[2]), INSPAN_OK);
    for (uint32_t r = 0; r < 3; r++) assert_int_equal(inspan_op_wait(ops[r], PATIENCE), INSPAN_OK);
    tcp_world_close(&world);
}

/* ---- Failing --------------------------------------------------------------------------------- */

enum { LONG = 8000000 };

typedef struct breaking {
    float *in, *out[3];
    ns_t failed_at[3];
    inspan_status_t status[3];
    inspan_op_t *ops[3];
} breaking_t;

static void breaking_open(breaking_t *b)
{
    *b = (breaking_t){.in = calloc(LONG, sizeof *b->in)};
    for (int r = 0; r < 3; r++) b->out[r] = malloc(LONG * sizeof *b->in);
}

static void breaking_close(breaking_t *b)
{
    for (int r = 0; r < 3; r++) free(b->out[r]);
    free(b->in);
}

static void await_end(world_t *world, uint32_t rank, void *context)
{
    breaking_t *b = context;
    (void)world;
    b->status[rank] = inspan_op_wait(b->ops[rank], PATIENCE);
    b->failed_at[rank] = os_now();
}

static void start_all(world_t *world, breaking_t *b)
{
    for (uint32_t r = 0; r < 3; r++)
        assert_int_equal(
            inspan_allreduce(world->comms[r], b->in, b->out[r], LONG, INSPAN_FP32, INSPAN_SUM, &b->ops[r]),
            INSPAN_OK);
}

static void await_traffic(const inspan_comm_t *comm, uint64_t bytes)
{
    inspan_comm_stats_t stats = {0};
    for (const ns_t end = os_now() + PATIENCE; stats.bytes_received < bytes;
         poll(NULL, 0, 1)) { /* not a wait: the deadline decides; traffic has no event */
        inspan_comm_stats(comm, &stats);
        assert_true(os_now() < end);
    }
}

/* Three ranks, an all-reduce under way. */
static void begin_breaking(world_t *world, breaking_t *b)
{
    breaking_open(b);
    open_gloo(world, 3, &plain);
    start_all(world, b);
    await_traffic(world->comms[0], 1000000);
}

/* In the middle of its bytes: all ranks fail in 100 ms, with the one cause. One round of three may be late.
 */
static void abort_ends_what_is_under_way(void **state)
{
    (void)state;
    ns_t best = PATIENCE;
    for (int round = 0; round < 3; round++) {
        world_t world;
        breaking_t b;
        begin_breaking(&world, &b);
        const ns_t aborted_at = os_now();
        inspan_comm_abort(world.comms[1], "tired");
        tcp_world_each(&world, await_end, &b);
        ns_t longest = 0;
        for (uint32_t r = 0; r < 3; r++) {
            inspan_cause_t cause;
            inspan_op_t *op = NULL;
            assert_int_equal(b.status[r], INSPAN_ABORTED);
            assert_true(inspan_comm_cause(world.comms[r], &cause) && cause.rank == 1);
            assert_int_equal(inspan_barrier(world.comms[r], &op), INSPAN_ABORTED);
            if (b.failed_at[r] - aborted_at > longest) longest = b.failed_at[r] - aborted_at;
        }
        if (longest < best) best = longest;
        breaking_close(&b); /* nobody touches it any more: the sanitizer would tell */
        tcp_world_close(&world);
    }
    assert_true(best < (SANITIZED ? 1000 : 100) * NS_PER_MS);
}

/* A rank closes with an operation under way: that is a failure for all, and takes no longer. */
static void closing_under_way(void **state)
{
    (void)state;
    world_t world;
    breaking_t b;
    begin_breaking(&world, &b);
    const ns_t begin = os_now();
    comm_close_begin(world.comms[2]);
    tcp_world_each(&world, await_end, &b);
    for (uint32_t r = 0; r < 3; r++) assert_int_equal(b.status[r], INSPAN_ABORTED);
    tcp_world_close(&world);
    assert_true(os_now() - begin < 5 * NS_PER_S);
    breaking_close(&b);
}

/* One of Gloo's connections breaks and nothing else does: the ranks at its ends are named, after a moment in
 * which nobody has told a better cause. */
static void its_connection_breaks_alone(void **state)
{
    (void)state;
    world_t world;
    breaking_t b;
    ino_t inodes[FDS];
    breaking_open(&b);
    open_gloo(&world, 3, &plain);
    look_at_descriptors(inodes);
    int broken = 0;
    for (int a = 0; a < FDS && broken == 0; a++)
        for (int c = a + 1; c < FDS && broken == 0; c++)
            if (inodes[a] != 0 && inodes[a] == inodes[c]) { /* the plug-in has a copy of each of its own */
                assert_int_equal(shutdown(a, SHUT_RDWR), 0);
                broken++;
            }
    assert_int_equal(broken, 1);
    start_all(&world, &b);
    tcp_world_each(&world, await_end, &b);
    for (uint32_t r = 0; r < 3; r++) {
        inspan_cause_t cause = {0};
        assert_int_equal(b.status[r], INSPAN_PEER_LOST);
        assert_true(inspan_comm_cause(world.comms[r], &cause));
        if (strstr(cause.text, "lost its connection for gloo") == NULL) fail_msg("%s", cause.text);
        assert_non_null(strstr(cause.text, "node-"));
    }
    tcp_world_close(&world);
    breaking_close(&b);
}

/* ---- Opening --------------------------------------------------------------------------------- */

static void ranks_with_other_backends(void **state)
{
    (void)state;
    tcp_net_t net;
    tcp_net_listen(&net, 3);
    tcp_open_all_t all;
    world_t world = {.n = 3, .self = &net};
    tcp_fill_options(&all, &net, 3, &plain);
    all.options[0].backend = all.options[1].backend = "gloo";
    tcp_world_each(&world, tcp_open_rank, &all);
    for (uint32_t r = 0; r < 2; r++) {
        assert_int_equal(all.status[r], INSPAN_PEER_LOST);
        assert_int_equal(all.causes[r].rank, 2);
        if (strstr(all.errors[r].text, "rank 2 (node node-2,") == NULL ||
            strstr(all.errors[r].text, "does not use this backend") == NULL)
            fail_msg("%s", all.errors[r].text);
    }
    if (all.status[2] == INSPAN_OK) inspan_comm_close(world.comms[2]);
    all.options[0].backend = "glue";
    tcp_open_rank(&world, 0, &all);
    assert_int_equal(all.status[0], INSPAN_INVALID);
    tcp_net_close(&net, 3);
}

/* What one says to the others when it gives up after all were connected. */
static void giving_up_is_heard(void **state)
{
    (void)state;
    int kept[2], second[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, kept), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, second), 0);
    inspan_member_t members[2] = {{.node = "a"}, {.node = "b"}};
    const comm_options_t options = {.members = members, .world = 2, .failure_timeout = NS_PER_S};
    const int kept_fds[2] = {-1, kept[0]}, second_fds[2] = {-1, second[0]};
    const inspan_cause_t said = {.status = INSPAN_ABORTED, .rank = -1, .text = "a newer view is there"};
    inspan_cause_t cause = {.status = INSPAN_OK};
    inspan_error_t err;
    tcp_say_farewell(kept[1], &said);
    close(second[1]);
    assert_int_equal(backend_agree(&options, &backend_gloo, kept_fds, second_fds, &cause, &err),
                     INSPAN_ABORTED);
    assert_int_equal(cause.rank, -1);
    assert_string_equal(err.text, said.text);
    close(kept[0]);
    close(kept[1]);
    close(second[0]);
}

static void sum_up(world_t *world, uint32_t rank, void *context)
{
    float in = (float)rank + 1, out = 0;
    inspan_op_t *op = NULL;
    (void)context;
    CHECK(inspan_allreduce(world->comms[rank], &in, &out, 1, INSPAN_FP32, INSPAN_SUM, &op) == INSPAN_OK);
    CHECK(world->wait(world, rank, op) == INSPAN_OK);
    CHECK(out == 3);
}

static void over_ipv6(void **state)
{
    (void)state;
    const int fd = socket(AF_INET6, SOCK_STREAM, 0);
    if (fd < 0 || access("/proc/net/if_inet6", R_OK) != 0) skip();
    close(fd);
    world_t world;
    conformance_failures = 0;
    tcp_test_host = "::1";
    open_gloo(&world, 2, &plain);
    tcp_world_each(&world, sum_up, NULL);
    assert_int_equal(conformance_failures, 0);
    assert_int_equal(comm_backend_operations(world.comms[0]), 1);
    tcp_world_close(&world);
    tcp_test_host = "127.0.0.1";
}

/* A world of one needs no backend, and has none. */
static void alone(void **state)
{
    (void)state;
    world_t world;
    open_gloo(&world, 1, &plain);
    assert_string_equal(comm_backend_name(world.comms[0]), "native");
    tcp_world_close(&world);
}

int main(int argc, char **argv)
{
    backend_probe_t probe;
    backend_gloo.probe(&probe);
    if (!probe.available) {
        printf("skipped: gloo: %s\n", probe.why);
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(leaves_no_descriptor),
        cmocka_unit_test(waiting_costs_no_cpu),
        cmocka_unit_test(abort_ends_what_is_under_way),
        cmocka_unit_test(closing_under_way),
        cmocka_unit_test(its_connection_breaks_alone),
        cmocka_unit_test(ranks_with_other_backends),
        cmocka_unit_test(giving_up_is_heard),
        cmocka_unit_test(over_ipv6),
        cmocka_unit_test(alone),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const int failed = cmocka_run_group_tests_name("gloo", tests, NULL, NULL);
    return failed + conformance_run(&over_gloo);
}
