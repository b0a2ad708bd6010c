/* Which ends of a session the loop thread must answer: against a closed port and a name that does not
 * resolve. */
#include "agent/link.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "platform/os/os_socket.h"

#define PATIENT (20 * NS_PER_S)

typedef struct rig {
    rpc_client_t *client;
    inbox_t *inbox;
    link_t *link;
} rig_t;

static void wake(void *context)
{
    (void)context;
}

static void drop(const inbox_message_t *message)
{
    free(message->payload);
}

static rig_t open_rig(const char *target)
{
    rig_t rig = {.inbox = inbox_open(16, wake, NULL, drop)};
    assert_non_null(rig.inbox);
    assert_int_equal(rpc_client_open(target, NULL, &rig.client, NULL), INSPAN_OK);
    assert_int_equal(link_open(rig.client, NULL, rig.inbox, &rig.link, NULL), INSPAN_OK);
    return rig;
}

static void close_rig(rig_t *rig)
{
    inbox_shut(rig->inbox);
    link_close(rig->link);
    inbox_close(rig->inbox);
    rpc_client_close(rig->client);
}

static inbox_message_t next(rig_t *rig)
{
    inbox_message_t message = {0};
    if (!inbox_take(rig->inbox, &message, PATIENT)) fail_msg("nothing happens");
    free(message.payload);
    return message;
}

/* Nobody waits for an answer to these: one that came late would let go of the next stream. */
static void attempts_without_a_stream_go_on_by_themselves(void **state)
{
    (void)state;
    rig_t rig = open_rig("nowhere.invalid:7461");
    for (int i = 0; i < 3; i++) {
        inbox_message_t message = next(&rig);
        assert_int_equal(message.kind, LINK_DOWN);
        assert_int_equal(message.id, LINK_NEVER_UP);
    }
    close_rig(&rig);
}

static void a_stream_is_kept_until_it_is_let_go(void **state)
{
    (void)state;
    char target[64];
    uint16_t port = 0;
    int fd = -1;
    assert_int_equal(os_listen(0, 0, 1, &fd, &port, NULL), INSPAN_OK);
    close(fd); /* nobody listens there now */
    snprintf(target, sizeof target, "127.0.0.1:%u", port);
    rig_t rig = open_rig(target);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(next(&rig).kind, LINK_UP);
        inbox_message_t down = next(&rig);
        assert_int_equal(down.kind, LINK_DOWN);
        assert_int_equal(down.id, LINK_WAS_UP);
        inbox_message_t early;
        assert_false(inbox_take(rig.inbox, &early, 400 * NS_PER_MS)); /* no next stream before the answer */
        link_let_go(rig.link);
    }
    close_rig(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attempts_without_a_stream_go_on_by_themselves),
        cmocka_unit_test(a_stream_is_kept_until_it_is_let_go),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
