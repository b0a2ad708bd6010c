/* Views of a session: they come, break, are overtaken; each session's agent is played by the test.
 */
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "platform/os/os_socket.h"
#include "platform/os/os_time.h"
#include "worker/scene_test.h"

enum { ALL = 0xff };

/* ---- Users ----------------------------------------------------------------------------------- */

/* false: the communicator broke. */
static bool sum(rank_t *rank, const worker_view_t *view)
{
    inspan_op_t *op = NULL;
    double mine = view->numbers[view->rank], all = 0, expected = 0;
    for (uint32_t i = 0; i < view->world; i++) expected += view->numbers[i];
    assert_int_equal(mine, scene_number(rank->rank));
    if (inspan_allreduce(view->comm, &mine, &all, 1, INSPAN_FP64, INSPAN_SUM, &op) != INSPAN_OK) return false;
    if (inspan_op_wait(op, PATIENCE) != INSPAN_OK) return false;
    assert_true(all == expected);
    atomic_store(&rank->summed, view->number);
    return true;
}

/* Follows the views and adds numbers up in each, until it is stopped or the test is through. */
static void user_follows(rank_t *rank)
{
    const inspan_views_t *views = inspan_worker_views(rank->worker);
    worker_view_t view = {.number = 0};
    inspan_status_t status = INSPAN_OK;
    while (status == INSPAN_OK && !atomic_load(&rank->quit)) {
        const uint64_t above = view.number;
        status = views->next(views->context, above, PATIENCE, &view, &rank->err);
        if (status != INSPAN_OK) break;
        assert_true(view.number > above);
        assert_int_equal(view.first, view.number == 1);
        while (!views->changed(views->context) && !atomic_load(&rank->quit) && sum(rank, &view))
            poll(NULL, 0, 1); /* not a wait: leaves the processor to the others */
        while (!views->changed(views->context) && !atomic_load(&rank->quit))
            poll(NULL, 0, 1); /* not a wait: the event ends it */
    }
    inspan_worker_finish(rank->worker, status, status == INSPAN_OK ? "{}" : rank->err.text);
}

/* ---- Helpers --------------------------------------------------------------------------------- */

/* All of `who` open the view and have added up in it; the time that took. */
static double until_open(scene_t *scene, uint64_t view, uint32_t who)
{
    const ns_t begun = os_now();
    for (uint32_t r = 0; r < scene->world; r++) {
        rank_t *rank = &scene->ranks[r];
        if (!(who >> r & 1)) continue;
        while (rank->ready != view) {
            const local_frame_type_t type = scene_hear(rank, false);
            if (type != LOCAL_READY && type != LOCAL_BLAME) fail_msg("rank %u says %d", r, type);
        }
    }
    const double took = ns_to_s(os_now() - begun);
    const ns_t deadline = os_now() + PATIENCE;
    for (uint32_t r = 0; r < scene->world; r++)
        while ((who >> r & 1) && atomic_load(&scene->ranks[r].summed) != view) {
            if (os_now() > deadline) fail_msg("rank %u does not work in view %d", r, (int)view);
            poll(NULL, 0, 1); /* not a wait: the deadline decides */
        }
    return took;
}

static void until_blamed(rank_t *rank, uint64_t view, uint32_t culprit)
{
    assert_int_equal(scene_hear(rank, false), LOCAL_BLAME);
    assert_int_equal(rank->blame.view, view);
    if (rank->blame.cause.rank != (int32_t)scene_number(culprit)) fail_msg("%s", rank->blame.cause.text);
}

static void stop(rank_t *rank)
{
    size_t n = 0;
    scene_say(rank, local_encode_empty(LOCAL_STOP, scene_frame, sizeof scene_frame, &n), &n);
    while (scene_hear(rank, false) != LOCAL_FAILED) {
    }
    assert_int_equal(rank->end.status, INSPAN_ABORTED);
    scene_bye(rank);
}

static void stop_all(scene_t *scene, uint32_t but)
{
    for (uint32_t r = 0; r < scene->world; r++)
        if (!(but >> r & 1)) stop(&scene->ranks[r]);
    scene_end(scene);
}

/* ---- Tests ----------------------------------------------------------------------------------- */

static void test_members_come_and_go(void **state)
{
    (void)state;
    static const uint32_t views[] = {0x7, 0x5, 0xd, 0x1, 0x19, 0x1f};
    scene_t scene;
    scene_start_bound(&scene, 5, 5 * NS_PER_S, user_follows);
    for (uint32_t i = 0; i < sizeof views / sizeof views[0]; i++) {
        scene_announce(&scene, 2 * i + 1, views[i], views[i]); /* numbers may be left out */
        const double took = until_open(&scene, 2 * i + 1, views[i]);
        print_message("view of %d: open in %.1f ms\n", __builtin_popcount(views[i]), took * 1e3);
        assert_true(took < 1);
    }
    for (uint32_t r = 0; r < 5; r++)
        assert_int_equal(scene.ranks[r].blame.view, 0); /* nobody broke anything */
    scene_announce(&scene, 3, 0x3, 0x3);                /* an old one: no effect */
    until_open(&scene, 11, 0x1f);
    stop_all(&scene, 0);
}

/* One fails: the others blame it by its number, and go on with the next view. */
static void test_a_member_breaks(void **state)
{
    (void)state;
    scene_t scene;
    scene_start_bound(&scene, 4, 5 * NS_PER_S, user_follows);
    scene_announce(&scene, 1, 0xf, ALL);
    until_open(&scene, 1, 0xf);
    atomic_store(&scene.ranks[2].quit, true);
    inspan_worker_fail(scene.ranks[2].worker, INSPAN_NO_MEMORY, "no memory for a batch");
    assert_int_equal(scene_hear(&scene.ranks[2], false), LOCAL_FAILED);
    assert_int_equal(scene.ranks[2].end.status, INSPAN_NO_MEMORY);
    assert_int_equal(scene.ranks[2].end.cause.rank, scene_number(2));
    scene_bye(&scene.ranks[2]);
    for (uint32_t r = 0; r < 4; r++)
        if (r != 2) until_blamed(&scene.ranks[r], 1, 2);
    scene_announce(&scene, 2, 0xb, ALL);
    const double took = until_open(&scene, 2, 0xb);
    print_message("after a failure: open in %.1f ms\n", took * 1e3);
    assert_true(took < 1);
    stop_all(&scene, 0x4);
}

/* Ranks 0 and 1 are opening a view of which 2 never hears; a newer one comes: nobody is blamed, nothing
 * waited for. */
static void test_an_opening_is_overtaken(void **state)
{
    (void)state;
    scene_t scene;
    scene_start_bound(&scene, 3, 10 * NS_PER_S, user_follows);
    scene_announce(&scene, 1, 0x7, 0x3);
    for (uint64_t view = 2; view < 12; view++) scene_announce(&scene, view, view % 2 ? 0x7 : 0x3, 0x3);
    scene_announce(&scene, 12, 0x3, 0x3);
    const double took = until_open(&scene, 12, 0x3);
    print_message("overtaken: open in %.1f ms\n", took * 1e3);
    assert_true(took < 2);
    assert_int_equal(scene.ranks[0].blame.view + scene.ranks[1].blame.view, 0);
    stop_all(&scene, 0);
}

/* Members hear of views at different times; connections of older and of newer ones meet at the listeners. */
static void test_connections_of_other_views(void **state)
{
    (void)state;
    scene_t scene;
    scene_start_bound(&scene, 3, 10 * NS_PER_S, user_follows);
    scene_announce(&scene, 1, 0x3, ALL);
    until_open(&scene, 1, 0x3);
    scene_announce(&scene, 2, 0x3, 0x1); /* 0 is faster: it calls at 1, which is in view 1 */
    scene_announce(&scene, 2, 0x3, 0x2);
    until_open(&scene, 2, 0x3);
    scene_announce(&scene, 3, 0x7, 0x5); /* 0 and 2 call at 1 in view 3 */
    scene_announce(&scene, 4, 0x7, 0x2); /* and find it in view 4 */
    scene_announce(&scene, 4, 0x7, 0x4);
    scene_announce(&scene, 4, 0x7, 0x1);
    double took = until_open(&scene, 4, 0x7);
    print_message("views at different times: open in %.1f ms\n", took * 1e3);
    assert_true(took < 2);
    for (uint32_t view = 5; view < 45; view++) { /* in another order each time */
        for (uint32_t i = 0; i < 3; i++)
            scene_announce(&scene, view, 0x7, 1u << (i * (1 + view % 2) + view / 2) % 3);
        if (view % 5 == 4) until_open(&scene, view, 0x7);
    }
    for (uint32_t r = 0; r < 3; r++) assert_int_equal(scene.ranks[r].blame.view, 0);
    stop_all(&scene, 0);
}

/* Rank 2's process is dead when the view is announced: it is blamed for the opening, and the others wait. */
static void test_an_opening_fails(void **state)
{
    (void)state;
    scene_t scene;
    int fd = -1;
    uint16_t port = 0;
    scene_start_bound(&scene, 3, NS_PER_S, user_follows);
    assert_int_equal(os_listen(0, 0, 1, &fd, &port, NULL), INSPAN_OK);
    close(fd);
    const uint16_t right = scene.ranks[2].port;
    scene.ranks[2].port = port;
    scene_announce(&scene, 1, 0x7, 0x3);
    until_blamed(&scene.ranks[0], 1, 2);
    until_blamed(&scene.ranks[1], 1, 2);
    scene.ranks[2].port = right;
    scene_announce(&scene, 2, 0x3, 0x3);
    until_open(&scene, 2, 0x3);
    scene_announce(&scene, 3, 0x7, 0x7);
    until_open(&scene, 3, 0x7);
    stop_all(&scene, 0);
}

/* LOST ends the view, not the member; nobody has to be told of it. */
static void test_lost_ends_the_view_only(void **state)
{
    (void)state;
    scene_t scene;
    scene_start_bound(&scene, 2, 5 * NS_PER_S, user_follows);
    scene_announce(&scene, 1, 0x3, ALL);
    until_open(&scene, 1, 0x3);
    scene_say_end(&scene.ranks[0], LOCAL_LOST, INSPAN_PEER_LOST, "node cellar: agent silent for 5.0 s");
    scene_announce(&scene, 2, 0x1, 0x1);
    until_open(&scene, 2, 0x1);
    scene_announce(&scene, 3, 0x3, ALL);
    until_open(&scene, 3, 0x3);
    stop_all(&scene, 0);
}

/* ---- What is told besides -------------------------------------------------------------------- */

static void give_span(const inspan_views_t *views, uint64_t first, uint64_t last)
{
    static _Thread_local local_ledger_t span;
    span = (local_ledger_t){.seed = 1, .batch = 8, .first_step = first, .last_step = last, .view = 1, .n = 1};
    span.shares[0] = (local_share_t){.rank = (int32_t)scene_number(0), .n = 8};
    views->ledger(views->context, &span);
}

static void user_tells(rank_t *rank)
{
    const inspan_views_t *views = inspan_worker_views(rank->worker);
    worker_view_t view;
    local_saved_t saved = {.step = 2, .view = 1, .folder = "out/step-00000002"};
    worker_registered_t answer;
    assert_int_equal(views->next(views->context, 0, PATIENCE, &view, &rank->err), INSPAN_OK);
    assert_false(views->leaving(views->context));
    assert_false(views->registered(views->context, &answer));
    views->full(views->context, true);
    views->full(views->context, true); /* told once */
    give_span(views, 1, 1);
    give_span(views, 1, 2); /* it grows */
    give_span(views, 3, 3);
    local_verdict_t verdict = {.about = scene_number(0), .factor = 0.5, .evidence = "swap"};
    for (verdict.step = 1; verdict.step < 4; verdict.step++) views->verdict(views->context, &verdict);
    for (uint64_t step = 2; step < 6; step++) {
        saved.step = step;
        assert_true(views->saved(views->context, &saved));
    }
    saved.result = true;
    assert_false(views->saved(views->context, &saved)); /* too many */
    sem_wait(&rank->go);
    assert_true(views->leaving(views->context));
    assert_true(views->registered(views->context, &answer));
    assert_int_equal(answer.step, 3); /* in the order of the answers' artifacts */
    assert_int_equal(answer.status, INSPAN_MISMATCH);
    assert_string_equal(answer.text, "view 1 is over");
    assert_false(views->registered(views->context, &answer));
    views->left(views->context, 1);
    sem_wait(&rank->go);
    give_span(views, 3, 9);
    inspan_worker_finish(rank->worker, INSPAN_OK, "{}");
}

/* Three, in their order. */
static void hear_verdicts(rank_t *rank, uint64_t first, uint64_t last)
{
    for (uint64_t step = first; step <= last; step++) {
        assert_int_equal(scene_hear(rank, false), LOCAL_VERDICT);
        assert_int_equal(rank->verdict.step, step);
        assert_int_equal(rank->verdict.about, scene_number(0));
        assert_string_equal(rank->verdict.evidence, "swap");
    }
}

static void hear_all_again(rank_t *rank)
{
    assert_int_equal(scene_hear(rank, false), LOCAL_BOUND);
    assert_int_equal(scene_hear(rank, false), LOCAL_READY);
    assert_int_equal(scene_hear(rank, false), LOCAL_STATE);
}

static void test_state_ledger_and_artifacts(void **state)
{
    (void)state;
    scene_t scene;
    size_t n = 0;
    scene_start_bound(&scene, 1, 5 * NS_PER_S, user_tells);
    rank_t *rank = &scene.ranks[0];
    scene_announce(&scene, 1, 0x1, ALL);
    assert_int_equal(scene_hear(rank, false), LOCAL_READY);
    assert_int_equal(scene_hear(rank, false), LOCAL_STATE);
    assert_true(rank->full);
    hear_verdicts(rank, 1, 3);
    unsigned spans = 0, saved = 0;
    while (spans < 2 || saved < 4) { /* the ledger waits for the next tick, but goes before what it led to */
        const local_frame_type_t type = scene_hear(rank, false);
        saved += type == LOCAL_SAVED;
        assert_true(type != LOCAL_SAVED || spans == 2);
        if (type == LOCAL_SAVED) assert_int_equal(rank->saved.step, saved + 1);
        if (type == LOCAL_LEDGER && rank->span.first_step == 1 && rank->span.last_step == 1) continue;
        spans += type == LOCAL_LEDGER;
        if (type == LOCAL_LEDGER) assert_int_equal(rank->span.last_step, spans + 1);
    }
    local_registered_t registered = {.step = 3, .status = INSPAN_MISMATCH, .text = "view 1 is over"};
    scene_say(rank, local_encode_registered(&registered, scene_frame, sizeof scene_frame, &n), &n);
    scene_say(rank, local_encode_empty(LOCAL_LEAVE, scene_frame, sizeof scene_frame, &n), &n);
    close(rank->fd); /* the agent is restarted: all that matters is said again; what was answered is not */
    scene_accept_session(rank);
    assert_int_equal(scene_hear(rank, true), LOCAL_HELLO);
    scene_say_welcome(rank, LOCAL_MAJOR);
    hear_all_again(rank);
    hear_verdicts(rank, 1, 3);
    for (uint64_t last = 2; last < 4; last++) {
        assert_int_equal(scene_hear(rank, false), LOCAL_LEDGER);
        assert_int_equal(rank->span.last_step, last);
    }
    for (uint64_t step = 2; step < 6; step++) {
        if (step == 3) continue;
        assert_int_equal(scene_hear(rank, false), LOCAL_SAVED);
        assert_int_equal(rank->saved.step, step);
    }
    sem_post(&rank->go);
    assert_int_equal(scene_hear(rank, false), LOCAL_LEFT);
    sem_post(&rank->go);
    assert_int_equal(scene_hear(rank, false), LOCAL_LEDGER); /* before the end */
    assert_int_equal(rank->span.last_step, 9);
    assert_int_equal(scene_hear(rank, false), LOCAL_DONE);
    scene_bye(rank);
    scene_end(&scene);
}

static void wake_user(void *argument)
{
    sem_post(&((rank_t *)argument)->go);
}

/* Who is not there to connect yet has told no port: nobody waits for it in a view. Woken by the first vitals,
 * and by others only where the owner gives more or less. */
static void user_reads_vitals(rank_t *rank)
{
    const inspan_views_t *views = inspan_worker_views(rank->worker);
    local_vitals_t vitals;
    assert_false(views->vitals(views->context, &vitals));
    views->watch(views->context, wake_user, rank);
    views->full(views->context, true); /* the test hears that this far is done */
    sem_wait(&rank->go);
    assert_true(views->vitals(views->context, &vitals));
    assert_true(vitals.allowed == 1 && vitals.clock_mhz == 3000);
    views->full(views->context, false);
    sem_wait(&rank->go);
    assert_true(views->vitals(views->context, &vitals));
    assert_true(vitals.allowed == 0.5 && vitals.clock_mhz == 1000);
    assert_int_equal(vitals.limit, LOCAL_LIMIT_HEAT);
    views->watch(views->context, NULL, NULL);
    inspan_worker_finish(rank->worker, INSPAN_OK, "{}");
}

static void test_vitals_arrive(void **state)
{
    (void)state;
    scene_t scene;
    size_t n = 0;
    local_vitals_t vitals = {.clock_mhz = 3000, .allowed = 1};
    scene_start(&scene, 1, user_reads_vitals);
    rank_t *rank = &scene.ranks[0];
    scene_say_welcome(rank, LOCAL_MAJOR);
    assert_int_equal(scene_hear(rank, false), LOCAL_STATE);
    scene_say(rank, local_encode_vitals(&vitals, scene_frame, sizeof scene_frame, &n), &n);
    assert_int_equal(scene_hear(rank, false), LOCAL_STATE);
    vitals.clock_mhz = 2000;
    scene_say(rank, local_encode_vitals(&vitals, scene_frame, sizeof scene_frame, &n), &n);
    vitals.allowed = 2; /* cannot be right: passed over */
    scene_say(rank, local_encode_vitals(&vitals, scene_frame, sizeof scene_frame, &n), &n);
    vitals = (local_vitals_t){.clock_mhz = 1000, .allowed = 0.5, .limit = LOCAL_LIMIT_HEAT};
    scene_say(rank, local_encode_vitals(&vitals, scene_frame, sizeof scene_frame, &n), &n);
    assert_int_equal(scene_hear(rank, false), LOCAL_DONE);
    scene_bye(rank);
    scene_end(&scene);
}

static void user_leaves(rank_t *rank)
{
    const inspan_views_t *views = inspan_worker_views(rank->worker);
    worker_view_t view;
    assert_int_equal(views->next(views->context, 0, PATIENCE, &view, &rank->err), INSPAN_OK);
    views->left(views->context, 1);
    assert_int_equal(views->next(views->context, 1, PATIENCE, &view, &rank->err), INSPAN_OK);
    views->left(views->context, 1); /* late: void */
    sem_wait(&rank->go);
    views->left(views->context, 2);
    sem_wait(&rank->go);
    inspan_worker_finish(rank->worker, INSPAN_OK, "{}");
}

static void meet_again(rank_t *rank)
{
    close(rank->fd);
    scene_accept_session(rank);
    assert_int_equal(scene_hear(rank, true), LOCAL_HELLO);
    scene_say_welcome(rank, LOCAL_MAJOR);
    assert_int_equal(scene_hear(rank, false), LOCAL_BOUND);
    assert_int_equal(scene_hear(rank, false), LOCAL_READY);
}

/* G3: a LEFT is of its view; it is said again to an agent that calls again, but not in a newer view. */
static void test_left_is_of_a_view(void **state)
{
    (void)state;
    scene_t scene;
    scene_start_bound(&scene, 1, 5 * NS_PER_S, user_leaves);
    rank_t *rank = &scene.ranks[0];
    scene_announce(&scene, 1, 0x1, ALL);
    assert_int_equal(scene_hear(rank, false), LOCAL_READY);
    assert_int_equal(scene_hear(rank, false), LOCAL_LEFT);
    assert_int_equal(rank->left, 1);
    meet_again(rank);
    assert_int_equal(scene_hear(rank, false), LOCAL_LEFT);
    scene_announce(&scene, 2, 0x1, ALL);
    assert_int_equal(scene_hear(rank, false), LOCAL_READY);
    meet_again(rank);
    sem_post(&rank->go);
    assert_int_equal(scene_hear(rank, false), LOCAL_LEFT);
    assert_int_equal(rank->left, 2);
    sem_post(&rank->go);
    assert_int_equal(scene_hear(rank, false), LOCAL_DONE);
    scene_bye(rank);
    scene_end(&scene);
}

/* Whoever waits for a view ends when its agent is gone. */
static void test_agent_is_gone_while_waiting(void **state)
{
    (void)state;
    scene_t scene;
    scene_start_bound(&scene, 1, NS_PER_S, user_follows);
    close(scene.ranks[0].fd);
    scene.ranks[0].fd = -1;
    unlink(scene.ranks[0].path);
    scene_end(&scene);
}

/* One that takes every call and hangs up is as good as none: its worker does not call it for ever. */
static void test_agent_that_hangs_up(void **state)
{
    (void)state;
    scene_t scene;
    scene_start_bound(&scene, 1, NS_PER_S, user_follows);
    rank_t *rank = &scene.ranks[0];
    const ns_t begun = os_now();
    struct pollfd calls = {.fd = rank->listener, .events = POLLIN};
    close(rank->fd);
    rank->fd = -1;
    while (poll(&calls, 1, 2000) > 0) { /* it calls five times a second */
        if (os_now() - begun > PATIENCE / 2) fail_msg("the worker still calls");
        const int fd = accept(rank->listener, NULL, NULL);
        if (fd >= 0) close(fd);
    }
    scene_end(&scene);
}

/* A thread of a worker that prints more than its named pipe takes, while nobody reads: it goes on once the
 * agent counts as gone. */
static void test_output_without_a_reader(void **state)
{
    (void)state;
    scene_t scene;
    char path[64];
    static char much[1 << 20];
    scene_start_bound(&scene, 1, NS_PER_S, user_follows);
    snprintf(path, sizeof path, "%s/output", scene.folder);
    assert_int_equal(mkfifo(path, 0600), 0);
    int pipe_fd = open(path, O_RDWR | O_CLOEXEC), kept = dup(STDOUT_FILENO);
    fflush(stdout);
    assert_int_equal(dup2(pipe_fd, STDOUT_FILENO), STDOUT_FILENO);
    close(scene.ranks[0].fd);
    scene.ranks[0].fd = -1;
    unlink(scene.ranks[0].path);
    const ns_t begun = os_now();
    ssize_t written = 0;
    for (size_t at = 0; at < sizeof much && written >= 0; at += 4096)
        written = write(STDOUT_FILENO, much, 4096);
    const ns_t took = os_now() - begun;
    dup2(kept, STDOUT_FILENO);
    close(kept);
    close(pipe_fd);
    assert_true(took < 5 * NS_PER_S);
    scene_end(&scene);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_members_come_and_go),        cmocka_unit_test(test_a_member_breaks),
        cmocka_unit_test(test_an_opening_is_overtaken),    cmocka_unit_test(test_connections_of_other_views),
        cmocka_unit_test(test_an_opening_fails),           cmocka_unit_test(test_lost_ends_the_view_only),
        cmocka_unit_test(test_state_ledger_and_artifacts), cmocka_unit_test(test_agent_is_gone_while_waiting),
        cmocka_unit_test(test_output_without_a_reader),    cmocka_unit_test(test_left_is_of_a_view),
        cmocka_unit_test(test_agent_that_hangs_up),        cmocka_unit_test(test_vitals_arrive),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
