/* The inbox, and the core fed through it by threads as the agent does it: for the thread sanitizer. */
#include "agent/inbox.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "agent/core.h"
#include "base/log.h"

#define S NS_PER_S

typedef struct scene {
    agent_core_t *core;
    ns_t now;
    int spawns, releases;
    uint64_t serial;
} scene_t;

static void do_report(void *context, const agent_worker_t *worker)
{
    (void)context;
    (void)worker;
}

static inspan_status_t do_prepare(void *context, agent_worker_t *worker, inspan_error_t *err)
{
    (void)err;
    ((scene_t *)context)->serial = worker->serial;
    return INSPAN_OK;
}

static inspan_status_t do_upload(void *context, agent_worker_t *worker, inspan_error_t *err)
{
    (void)context;
    (void)worker;
    (void)err;
    return INSPAN_OK;
}

static void do_abandon(void *context, agent_worker_t *worker)
{
    (void)context;
    (void)worker;
}

static inspan_status_t do_spawn(void *context, agent_worker_t *worker, inspan_error_t *err)
{
    (void)err;
    worker->pid = 4242;
    ((scene_t *)context)->spawns++;
    return INSPAN_OK;
}

static void do_send(void *context, agent_worker_t *worker, const uint8_t *frame, size_t n)
{
    (void)context;
    (void)worker;
    (void)frame;
    assert_true(n > 0);
}

static void do_signal(void *context, agent_worker_t *worker, int signal)
{
    (void)context;
    (void)worker;
    (void)signal;
}

static void do_release(void *context, agent_worker_t *worker)
{
    (void)worker;
    ((scene_t *)context)->releases++;
}

static const agent_actions_t actions = {.report = do_report,
                                        .prepare = do_prepare,
                                        .upload = do_upload,
                                        .abandon = do_abandon,
                                        .spawn = do_spawn,
                                        .send = do_send,
                                        .signal = do_signal,
                                        .release = do_release};

enum { MANAGER_ORDERS = 1, WORKER_FRAME, WORKER_EXIT, PREPARED, UPLOADED };
enum { THREADED_JOBS = 48 };

typedef struct crowd {
    scene_t scene;
    inbox_t *inbox;
} crowd_t;

typedef struct frame_copy {
    size_t n;
    uint8_t bytes[128];
} frame_copy_t;

static void post(crowd_t *crowd, int kind, uint64_t id, void *payload)
{
    assert_int_equal(inbox_post(crowd->inbox, (inbox_message_t){kind, id, payload}), INSPAN_OK);
}

static void *manager_thread(void *context) /* the fake rpc: gives orders as fast as they are taken */
{
    crowd_t *crowd = context;
    for (uint64_t job = 1; job <= THREADED_JOBS; job++) post(crowd, MANAGER_ORDERS, job, NULL);
    return NULL;
}

typedef struct life {
    crowd_t *crowd;
    uint64_t serial;
} life_t;

static void *worker_thread(void *context) /* prepare, process and upload of one worker */
{
    life_t *life = context;
    post(life->crowd, PREPARED, life->serial, NULL);
    frame_copy_t *hello = malloc(sizeof *hello);
    local_hello_t body = {.major = LOCAL_MAJOR, .incarnation = life->serial};
    local_encode_hello(&body, hello->bytes, sizeof hello->bytes, &hello->n);
    post(life->crowd, WORKER_FRAME, life->serial, hello);
    post(life->crowd, WORKER_EXIT, life->serial, NULL);
    free(life);
    return NULL;
}

static void dispatch(crowd_t *crowd, const inbox_message_t *message, pthread_t *threads, size_t *n_threads)
{
    scene_t *scene = &crowd->scene;
    agent_worker_t *worker = agent_core_by_serial(scene->core, message->id);
    os_exit_t result = {.code = 1, .memory_limit = UINT64_MAX};
    frame_copy_t *copy = message->payload;
    local_frame_type_t type;
    const uint8_t *body = NULL;
    size_t n = 0, whole = 0;
    switch (message->kind) {
    case MANAGER_ORDERS: {
        life_t *life = malloc(sizeof *life);
        assert_int_equal(agent_core_start(scene->core, scene->now, message->id, 0, S, NULL), INSPAN_OK);
        *life = (life_t){crowd, scene->serial};
        assert_int_equal(pthread_create(&threads[(*n_threads)++], NULL, worker_thread, life), 0);
        break;
    }
    case PREPARED: agent_core_prepared(scene->core, scene->now, message->id, INSPAN_OK, NULL); break;
    case WORKER_FRAME:
        assert_int_equal(local_peek(copy->bytes, copy->n, &type, &body, &n, &whole), INSPAN_OK);
        assert_int_equal(agent_core_frame(scene->core, scene->now, worker, type, body, n), INSPAN_OK);
        free(copy);
        break;
    case WORKER_EXIT: agent_core_exited(scene->core, scene->now, worker, &result); break;
    default: fail();
    }
}

static void test_fed_by_threads(void **state)
{
    (void)state;
    crowd_t crowd = {.inbox = inbox_open(8, NULL, NULL, NULL)};
    crowd.scene.now = 1000 * S;
    crowd.scene.core = agent_core_open(&actions, &crowd.scene);
    agent_core_link(crowd.scene.core, crowd.scene.now, true);
    pthread_t manager, threads[THREADED_JOBS];
    size_t n_threads = 0;
    int ended = 0;
    assert_int_equal(pthread_create(&manager, NULL, manager_thread, &crowd), 0);
    while (ended < THREADED_JOBS) {
        inbox_message_t message;
        assert_true(inbox_take(crowd.inbox, &message, 20 * S));
        dispatch(&crowd, &message, threads, &n_threads);
        if (message.kind == WORKER_EXIT) {
            ended++;
            crowd.scene.now += 2 * S; /* told, and the link stayed: forgotten at the next tick */
            agent_core_tick(crowd.scene.core, crowd.scene.now);
        }
    }
    pthread_join(manager, NULL);
    for (size_t i = 0; i < n_threads; i++) pthread_join(threads[i], NULL);
    assert_int_equal(crowd.scene.spawns, THREADED_JOBS);
    agent_core_close(crowd.scene.core);
    assert_int_equal(crowd.scene.releases, THREADED_JOBS);
    inbox_close(crowd.inbox);
}

static void *poster_thread(void *context)
{
    crowd_t *crowd = context;
    inspan_status_t status = INSPAN_OK;
    for (int i = 0; i < 100 && status == INSPAN_OK; i++)
        status = inbox_post(crowd->inbox, (inbox_message_t){WORKER_EXIT, (uint64_t)i, NULL});
    return status == INSPAN_ABORTED ? crowd : NULL;
}

static int dropped;

static void count_drop(const inbox_message_t *message)
{
    (void)message;
    dropped++;
}

static void test_inbox_is_bounded(void **state)
{
    (void)state;
    crowd_t crowd = {.inbox = inbox_open(3, NULL, NULL, count_drop)};
    inbox_message_t message;
    pthread_t thread;
    void *aborted = NULL;
    assert_false(inbox_take(crowd.inbox, &message, NS_PER_MS));
    assert_int_equal(pthread_create(&thread, NULL, poster_thread, &crowd), 0);
    for (uint64_t i = 0; i < 10; i++) {
        assert_true(inbox_take(crowd.inbox, &message, 20 * S));
        assert_int_equal(message.id, i);
    }
    inbox_shut(crowd.inbox);
    pthread_join(thread, &aborted);
    assert_non_null(aborted);
    dropped = 0;
    inbox_close(crowd.inbox);
    assert_true(dropped <= 3);
}

int main(void)
{
    log_set_level(LOG_NONE);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fed_by_threads),
        cmocka_unit_test(test_inbox_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
