#include "cli/bench_rendezvous.h"

#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/error.h"
#include "platform/os/os_socket.h"
#include "platform/os/os_time.h"

#define PATIENCE (20 * NS_PER_S)

typedef struct joiner {
    bench_group_t group;
    uint16_t port;
    ns_t timeout;
    inspan_status_t status;
    inspan_error_t err;
} joiner_t;

static void *join_main(void *argument)
{
    joiner_t *joiner = argument;
    joiner->status = bench_join("127.0.0.1", joiner->port, &joiner->group, joiner->timeout, &joiner->err);
    return NULL;
}

static void *stranger_main(void *argument) /* says something, but nothing of ours */
{
    os_address_t to;
    int fd = -1;
    if (os_address_parse("127.0.0.1", *(uint16_t *)argument, &to) != INSPAN_OK ||
        os_connect(&to, &fd, NULL) != INSPAN_OK)
        return NULL;
    char bytes[100] = "GET / HTTP/1.1\r\n\r\n";
    struct pollfd ready = {.fd = fd, .events = POLLOUT};
    if (poll(&ready, 1, 5000) == 1) (void)!send(fd, bytes, sizeof bytes, MSG_NOSIGNAL);
    close(fd);
    return NULL;
}

static joiner_t joiner(uint32_t rank, uint32_t world, uint16_t port)
{
    joiner_t j = {.group = {.rank = rank, .world = world}, .port = port, .timeout = PATIENCE};
    j.group.members[rank].port = (uint16_t)(7000 + rank);
    j.group.members[rank].incarnation = 100 + rank;
    return j;
}

static void all_learn_the_same(void **state)
{
    (void)state;
    for (int own = 0; own < 2; own++) {
        int listener = -1;
        uint16_t port = 0;
        assert_int_equal(os_listen(0, 0, 16, &listener, &port, NULL), INSPAN_OK);
        joiner_t joiners[4];
        pthread_t threads[4], stranger;
        assert_int_equal(pthread_create(&stranger, NULL, stranger_main, &port), 0);
        for (uint32_t r = (uint32_t)own; r < 4; r++) {
            joiners[r] = joiner(r, 4, port);
            assert_int_equal(pthread_create(&threads[r], NULL, join_main, &joiners[r]), 0);
        }
        bench_group_t group = joiner(0, 4, port).group;
        assert_int_equal(bench_serve(listener, &group, own != 0, PATIENCE, NULL, NULL, NULL), INSPAN_OK);
        for (uint32_t r = (uint32_t)own; r < 4; r++) {
            pthread_join(threads[r], NULL);
            assert_int_equal(joiners[r].status, INSPAN_OK);
            assert_memory_equal(joiners[r].group.key, group.key, COMM_KEY_BYTES);
            for (uint32_t k = 0; k < 4; k++) {
                const inspan_member_t *member = &joiners[r].group.members[k];
                assert_int_equal(member->port, 7000 + k);
                assert_int_equal(member->incarnation, 100 + k);
                assert_string_equal(member->address, "127.0.0.1");
            }
        }
        pthread_join(stranger, NULL);
        close(listener);
    }
}

static void misfits_are_told(void **state)
{
    (void)state;
    int listener = -1;
    uint16_t port = 0;
    assert_int_equal(os_listen(0, 0, 16, &listener, &port, NULL), INSPAN_OK);
    joiner_t other = joiner(1, 3, port);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, join_main, &other), 0);
    bench_group_t group = joiner(0, 2, port).group;
    inspan_error_t err;
    assert_int_equal(bench_serve(listener, &group, true, 500 * NS_PER_MS, NULL, NULL, &err), INSPAN_TIMEOUT);
    assert_non_null(strstr(err.text, "1 of 2 ranks did not come"));
    assert_non_null(strstr(err.text, "rank 1"));
    pthread_join(thread, NULL);
    assert_int_equal(other.status, INSPAN_REFUSED);
    close(listener);

    joiner_t alone = joiner(1, 2, port); /* nobody listens there any more */
    alone.timeout = 300 * NS_PER_MS;
    join_main(&alone);
    assert_int_equal(alone.status, INSPAN_TIMEOUT);
    assert_int_equal(bench_join("no such host.", 1, &alone.group, NS_PER_S, &err), INSPAN_INVALID);
}

static inspan_status_t look(void *context, inspan_error_t *err)
{
    int *looks = context;
    if (++*looks < 3) return INSPAN_OK;
    return error_set(err, INSPAN_ABORTED, "rank 1 has ended");
}

static void a_wait_in_vain_ends_early(void **state)
{
    (void)state;
    int listener = -1, looks = 0;
    uint16_t port = 0;
    inspan_error_t err;
    assert_int_equal(os_listen(0, 0, 16, &listener, &port, NULL), INSPAN_OK);
    bench_group_t group = joiner(0, 2, port).group;
    const ns_t begin = os_now();
    assert_int_equal(bench_serve(listener, &group, true, 600 * NS_PER_S, look, &looks, &err), INSPAN_ABORTED);
    assert_string_equal(err.text, "rank 1 has ended");
    assert_true(os_now() - begin < 60 * NS_PER_S);
    close(listener);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_learn_the_same),
                                       cmocka_unit_test(misfits_are_told),
                                       cmocka_unit_test(a_wait_in_vain_ends_early)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
