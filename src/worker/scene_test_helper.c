#include "worker/scene_test.h"

#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "platform/os/os_file.h"
#include "platform/os/os_time.h"

/* ---- The agent's side ------------------------------------------------------------------------ */

static void listen_at(rank_t *rank)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, rank->path, sizeof rank->path);
    rank->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(rank->listener, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(rank->listener, 4), 0);
}

static void wait_readable(int fd, ns_t deadline)
{
    ns_t left = deadline - os_now();
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    if (left <= 0 || poll(&wait, 1, (int)(left / NS_PER_MS) + 1) <= 0)
        fail_msg("the session said nothing in time");
}

void scene_accept_session(rank_t *rank)
{
    wait_readable(rank->listener, os_now() + PATIENCE);
    rank->fd = accept4(rank->listener, NULL, NULL, SOCK_CLOEXEC);
    rank->in_used = 0;
    assert_true(rank->fd >= 0);
}

static void take(rank_t *rank, local_frame_type_t type, const uint8_t *body, size_t n)
{
    inspan_status_t status = INSPAN_OK;
    if (type == LOCAL_HELLO) status = local_decode_hello(body, n, &rank->hello);
    if (type == LOCAL_BOUND) status = local_decode_bound(body, n, &rank->port);
    if (type == LOCAL_TICK) status = local_decode_tick(body, n, &rank->progress);
    if (type == LOCAL_FAILED || type == LOCAL_DONE) status = local_decode_end(body, n, &rank->end);
    if (type == LOCAL_READY) status = local_decode_ready(body, n, &rank->ready);
    if (type == LOCAL_LEFT) status = local_decode_left(body, n, &rank->left);
    if (type == LOCAL_BLAME) status = local_decode_blame(body, n, &rank->blame);
    if (type == LOCAL_SAVED) status = local_decode_saved(body, n, &rank->saved);
    if (type == LOCAL_VERDICT) status = local_decode_verdict(body, n, &rank->verdict);
    if (type == LOCAL_LEDGER) status = local_decode_ledger(body, n, &rank->span);
    if (type == LOCAL_STATE) status = local_decode_state(body, n, &rank->full);
    assert_int_equal(status, INSPAN_OK);
    rank->ticks += type == LOCAL_TICK;
}

/* The next frame that is no tick (or any, if a tick is wanted). */
local_frame_type_t scene_hear(rank_t *rank, bool ticks_too)
{
    ns_t deadline = os_now() + PATIENCE;
    for (;;) {
        local_frame_type_t type;
        const uint8_t *body = NULL;
        size_t n = 0, whole = 0;
        inspan_status_t status = local_peek(rank->in, rank->in_used, &type, &body, &n, &whole);
        assert_int_not_equal(status, INSPAN_CORRUPT);
        if (status == INSPAN_OK) {
            take(rank, type, body, n);
            memmove(rank->in, rank->in + whole, rank->in_used -= whole);
            if (type != LOCAL_TICK || ticks_too) return type;
            continue;
        }
        wait_readable(rank->fd, deadline);
        ssize_t got = recv(rank->fd, rank->in + rank->in_used, sizeof rank->in - rank->in_used, 0);
        if (got <= 0) fail_msg("the session hung up");
        rank->in_used += (size_t)got;
    }
}

uint8_t scene_frame[LOCAL_FRAME_MAX + 8];

/* n by address: it is filled while the arguments are evaluated. */
void scene_say(rank_t *rank, inspan_status_t encoded, const size_t *n)
{
    assert_int_equal(encoded, INSPAN_OK);
    assert_int_equal(send(rank->fd, scene_frame, *n, MSG_NOSIGNAL), *n);
}

void scene_say_welcome(rank_t *rank, uint16_t major)
{
    size_t n = 0;
    local_welcome_t welcome = {
        .major = major, .job = 5, .failure_timeout = rank->scene->failure_timeout, .threads = 2};
    snprintf(welcome.node, sizeof welcome.node, "node-%u", rank->rank);
    scene_say(rank, local_encode_welcome(&welcome, scene_frame, sizeof scene_frame, &n), &n);
}

void scene_say_end(rank_t *rank, local_frame_type_t type, inspan_status_t status, const char *text)
{
    static local_end_t end;
    size_t n = 0;
    end = (local_end_t){.status = status, .cause = {.status = status, .rank = 1, .node = "cellar"}};
    snprintf(end.text, sizeof end.text, "%s", text);
    snprintf(end.cause.text, sizeof end.cause.text, "%s", text);
    scene_say(rank, local_encode_end(type, &end, scene_frame, sizeof scene_frame, &n), &n);
}

uint32_t scene_number(uint32_t rank)
{
    return 3 + 2 * rank;
}

void scene_announce(scene_t *scene, uint64_t number, uint32_t members, uint32_t to)
{
    inspan_member_t list[8] = {{.port = 0}};
    uint32_t world = 0;
    for (uint32_t r = 0; r < scene->world; r++) {
        if (!(members >> r & 1)) continue;
        inspan_member_t *member = &list[world++];
        member->number = scene_number(r);
        snprintf(member->node, sizeof member->node, "node-%u", r);
        snprintf(member->address, sizeof member->address, "127.0.0.1");
        member->port = scene->ranks[r].port;
        member->incarnation = scene->ranks[r].hello.incarnation;
    }
    uint32_t place = 0;
    for (uint32_t r = 0; r < scene->world; r++) {
        if (!(members >> r & 1)) continue;
        size_t n = 0;
        local_view_t view = {.view = number,
                             .rank = place++,
                             .world = world,
                             .first = number == 1,
                             .members = list,
                             .key = {1, 2, 3}};
        if (to >> r & 1)
            scene_say(&scene->ranks[r],
                      local_encode_view(&view, LOCAL_MINOR, scene_frame, sizeof scene_frame, &n), &n);
    }
}

/* ---- The session's side ---------------------------------------------------------------------- */

static void *run_session(void *context)
{
    rank_t *rank = context;
    rank->opened = worker_open_at(rank->path, &rank->worker, &rank->err);
    if (rank->opened == INSPAN_OK) rank->scene->user(rank);
    sem_post(&rank->done);
    return NULL;
}

static void start(scene_t *scene, uint32_t world)
{
    assert_non_null(mkdtemp(scene->folder));
    scene->ranks = calloc(world, sizeof *scene->ranks);
    for (uint32_t r = 0; r < world; r++) {
        rank_t *rank = &scene->ranks[r];
        rank->scene = scene;
        rank->rank = r;
        sem_init(&rank->go, 0, 0);
        sem_init(&rank->done, 0, 0);
        snprintf(rank->path, sizeof rank->path, "%s/%u", scene->folder, r);
        listen_at(rank);
        assert_int_equal(pthread_create(&rank->thread, NULL, run_session, rank), 0);
        scene_accept_session(rank);
        assert_int_equal(scene_hear(rank, true), LOCAL_HELLO);
    }
}

void scene_start(scene_t *scene, uint32_t world, void (*user)(rank_t *))
{
    *scene = (scene_t){
        .folder = "/tmp/inspan-session-XXXXXX", .world = world, .failure_timeout = NS_PER_S, .user = user};
    start(scene, world);
}

static void until_bound(scene_t *scene)
{
    for (uint32_t r = 0; r < scene->world; r++) {
        scene_say_welcome(&scene->ranks[r], LOCAL_MAJOR);
        assert_int_equal(scene_hear(&scene->ranks[r], false), LOCAL_BOUND);
        assert_true(scene->ranks[r].port > 0);
    }
}

void scene_start_bound(scene_t *scene, uint32_t world, ns_t failure_timeout, void (*user)(rank_t *))
{
    *scene = (scene_t){.folder = "/tmp/inspan-session-XXXXXX",
                       .world = world,
                       .failure_timeout = failure_timeout,
                       .user = user};
    start(scene, world);
    until_bound(scene);
}

void scene_start_until_ready(scene_t *scene, uint32_t world, void (*user)(rank_t *))
{
    scene_start_bound(scene, world, NS_PER_S, user);
    scene_announce(scene, 1, UINT32_MAX, UINT32_MAX);
    for (uint32_t r = 0; r < world; r++) assert_int_equal(scene_hear(&scene->ranks[r], false), LOCAL_READY);
}

void scene_join(rank_t *rank)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 20;
    while (sem_timedwait(&rank->done, &until) != 0)
        if (errno == ETIMEDOUT) fail_msg("the session's thread does not end");
    pthread_join(rank->thread, NULL);
    close(rank->listener);
    if (rank->fd >= 0) close(rank->fd);
    sem_destroy(&rank->go);
    sem_destroy(&rank->done);
}

void scene_end(scene_t *scene)
{
    for (uint32_t r = 0; r < scene->world; r++) scene_join(&scene->ranks[r]);
    os_remove_all(scene->folder, NULL);
    free(scene->ranks);
}

void scene_bye(rank_t *rank)
{
    scene_say_end(rank, LOCAL_BYE, INSPAN_OK, "");
}
