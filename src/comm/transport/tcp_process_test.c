/* Ranks as processes over tcp: killed, stopped, gone while connecting; with the executor, and with Gloo where
 * it is. */
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
#include "comm/backends/other_backend_test.h"
#include "comm/transport/tcp_world_test.h"
#include "platform/os/os_time.h"

enum { PROCS = 4 };

static const char *backend = "native";

/* What the ranks of forked processes tell the test, in shared memory. */
typedef struct report {
    int ready, done;
    inspan_status_t status, later;
    ns_t failed_at, aborted_at;
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
    bool broadcast; /* from rank 0, in place of all-reduces */
} workload_t;

/* Start one step of it. Also where that fails, what was started must be waited for. */
static inspan_status_t start_step(inspan_comm_t *comm, const workload_t *work, const float *in, float *out,
                                  inspan_op_t *ops[2])
{
    ops[0] = ops[1] = NULL;
    if (work->broadcast) return inspan_broadcast(comm, out, work->count, INSPAN_FP32, 0, &ops[0]);
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

/* Beside the work of rank 0. */
typedef struct aborter {
    inspan_comm_t *comm;
    shared_t *shared;
    report_t *report;
    bool ends;
} aborter_t;

static void *abort_when_told(void *argument)
{
    aborter_t *self = argument;
    for (; !__atomic_load_n(&self->ends, __ATOMIC_ACQUIRE);
         poll(NULL, 0, 1)) { /* not a wait: alarm ends it; shared memory has no event */
        if (__atomic_load_n(&self->shared->go, __ATOMIC_ACQUIRE) == 0) continue;
        self->report->aborted_at = os_now();
        inspan_comm_abort(self->comm, "told to");
        break;
    }
    return NULL;
}

static void child_main(tcp_net_t *net, uint32_t rank, shared_t *shared, const workload_t *work)
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
                              .view = 1,
                              .backend = backend};
    if (comm_io_open(&io, NULL) != INSPAN_OK) _exit(2);
    options.io = io;
    inspan_error_t err;
    if (comm_open(&options, &comm, &err) != INSPAN_OK) {
        fprintf(stderr, "%s\n", err.text);
        _exit(3);
    }
    pthread_t thread;
    aborter_t aborter = {comm, shared, report, false};
    if (rank == 0 && pthread_create(&thread, NULL, abort_when_told, &aborter) != 0) _exit(4);
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
    if (rank == 0) {
        __atomic_store_n(&aborter.ends, true, __ATOMIC_RELEASE);
        pthread_join(thread, NULL);
    }
    inspan_comm_close(comm);
    comm_io_close(io);
    _exit(0);
}

static shared_t *fork_ranks(tcp_net_t *net, pid_t *pids, const workload_t *work)
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

static void reap(tcp_net_t *net, pid_t *pids, shared_t *shared)
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
    tcp_net_t net;
    pid_t pids[PROCS];
    const workload_t work = {ring, 12500000, 1000, 5 * NS_PER_S, false};
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
        tcp_net_t net;
        pid_t pids[PROCS];
        const workload_t work = {false, 2500000, 12, 5 * NS_PER_S, false};
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
    tcp_net_t net;
    pid_t pids[PROCS];
    const workload_t work = {ring, 2500000, 100000, NS_PER_S, false};
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

/* One stands still in the middle of its bytes, so that others wait for the rest of a piece, or for room to
 * send: an abort ends these waits, too, in 100 ms. Of five rounds four may be late, for the machine has other
 * things to do. */
static void abort_beside_a_stopped_one(bool broadcast)
{
    ns_t best = PATIENCE;
    for (int round = 0; round < 5; round++) {
        tcp_net_t net;
        pid_t pids[PROCS];
        const workload_t work = {false, 12500000, 100000, 5 * NS_PER_S, broadcast};
        shared_t *shared = fork_ranks(&net, pids, &work);
        assert_true(wait_until(&shared->reports[2].ready, 1));
        kill(pids[2], SIGSTOP);
        poll(NULL, 0, 300); /* not a wait: until the others have sent and received what they can */
        __atomic_store_n(&shared->go, 1, __ATOMIC_RELEASE);
        ns_t longest = 0;
        for (uint32_t r = 0; r < PROCS; r++) {
            if (r == 2) continue;
            assert_true(wait_until(&shared->reports[r].done, 1));
            assert_int_equal(shared->reports[r].status, INSPAN_ABORTED);
            assert_int_equal(shared->reports[r].cause.rank, 0);
            const ns_t took = shared->reports[r].failed_at - shared->reports[0].aborted_at;
            if (took > longest) longest = took;
        }
        if (longest < best) best = longest;
        assert_true(longest < 2 * NS_PER_S); /* no wait was forgotten */
        kill(pids[2], SIGCONT);
        assert_true(wait_until(&shared->reports[2].done, 1));
        assert_int_equal(shared->reports[2].status, INSPAN_ABORTED);
        reap(&net, pids, shared);
    }
    if (best >= (SANITIZED ? 1000 : 100) * NS_PER_MS) fail_msg("%.0f ms", (double)best * 1e-6);
}

static void aborted_all_reduces_beside_a_stopped_one(void **state)
{
    (void)state;
    abort_beside_a_stopped_one(false);
}

static void aborted_broadcasts_beside_a_stopped_one(void **state)
{
    (void)state;
    abort_beside_a_stopped_one(true);
}

/* A process that ends at any moment of the connecting (rank 2 never connects, so that it goes on): rank 0
 * names the one that ended, whatever it sees of it. */
static void member_dies_while_connecting(void **state)
{
    (void)state;
    for (int us = 500; us < 200000; us *= 4) {
        tcp_net_t net;
        tcp_net_listen(&net, 3);
        tcp_open_all_t all;
        comm_options_t options = {.failure_timeout = 10 * NS_PER_S};
        tcp_fill_options(&all, &net, 3, &options);
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
        tcp_open_rank(&world, 0, &all);
        assert_int_not_equal(all.status[0], INSPAN_OK);
        if (all.causes[0].rank != 1) print_message("%s\n", all.errors[0].text);
        assert_int_equal(all.causes[0].rank, 1);
        assert_int_equal(all.causes[0].noticed_by, 0);
        assert_true(all.took[0] < 5 * NS_PER_S);
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        tcp_net_close(&net, 3);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(member_dies_while_connecting),
        cmocka_unit_test(killed_in_all_reduces),
        cmocka_unit_test(killed_in_transfers),
        cmocka_unit_test(stopped_for_a_second),
        cmocka_unit_test(stopped_in_all_reduces),
        cmocka_unit_test(stopped_in_transfers),
        cmocka_unit_test(aborted_all_reduces_beside_a_stopped_one),
        cmocka_unit_test(aborted_broadcasts_beside_a_stopped_one),
    };
    const struct CMUnitTest collectives[] = {
        /* those that a backend carries */
        cmocka_unit_test(killed_in_all_reduces),
        cmocka_unit_test(stopped_for_a_second),
        cmocka_unit_test(stopped_in_all_reduces),
        cmocka_unit_test(aborted_all_reduces_beside_a_stopped_one),
        cmocka_unit_test(aborted_broadcasts_beside_a_stopped_one),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    int failed = cmocka_run_group_tests_name("tcp, processes", tests, NULL, NULL);
    for (uint32_t i = 1; (backend = other_backend(&i)) != NULL;)
        failed += cmocka_run_group_tests_name(backend, collectives, NULL, NULL);
    return failed;
}
