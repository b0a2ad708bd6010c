/* Lives of an agent after one another, and workers of elastic jobs. */
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "agent/agent_scene_test.h"
#include "platform/host/owner.h"
#include "platform/os/os_file.h"
#include "platform/os/os_time.h"

/* Killed itself, with a worker that cannot notice: the next life ends it. */
static void test_leftovers_are_ended(void **state)
{
    (void)state;
    order_start(1, "stubborn");
    pid_t pid = (pid_t)test_manager_wait_state(manager, 1, STATE(RUNNING))->pid;
    kill(pid, SIGSTOP);
    kill(agent.pid, SIGKILL); /* not its session: the worker has one of its own */
    assert_int_equal(wait_end(&agent).signal, SIGKILL);
    assert_true(os_process_start_ticks(pid) != 0);
    start_agent(TOKEN, &agent);
    const Inspan__V1__Register *again = test_manager_wait_register(manager, 2);
    wait_gone(pid);
    assert_int_equal(again->n_workers, 1);
    const Inspan__V1__WorkerReport *failed = again->workers[0]; /* or it was registered just before */
    if (failed->state != STATE(FAILED)) failed = test_manager_wait_state(manager, 1, STATE(FAILED));
    assert_int_equal(failed->failure->status, INSPAN_PEER_LOST);
    assert_non_null(strstr(failed->failure->text, "silent for"));

    order_start(2, "stubborn"); /* and one whose order is lost is ended at once */
    pid = (pid_t)test_manager_wait_state(manager, 2, STATE(RUNNING))->pid;
    kill(pid, SIGSTOP);
    kill(agent.pid, SIGKILL);
    wait_end(&agent);
    char path[300];
    snprintf(path, sizeof path, "%s/run/order-2-0", state_folder);
    assert_int_equal(unlink(path), 0);
    start_agent(TOKEN, &agent);
    wait_gone(pid);
    test_manager_wait_register(manager, 3);
    assert_true(log_says("left behind"));
    order_stop(2, true); /* the manager learns that it is gone */
    assert_int_equal(test_manager_wait_state(manager, 2, STATE(FAILED))->failure->status, INSPAN_NOT_FOUND);
}

static bool worker_printed(const char *text)
{
    char path[300];
    char *all = NULL;
    size_t bytes = 0;
    bool found = false;
    ns_t deadline = os_now() + 10 * NS_PER_S;
    snprintf(path, sizeof path, "%s/jobs/1/rank-0.log", state_folder);
    while (!found && os_now() < deadline) {
        if (os_file_read(path, 1 << 20, &all, &bytes, NULL) == INSPAN_OK) found = strstr(all, text) != NULL;
        free(all);
        all = NULL;
        poll(NULL, 0, 10); /* not a wait: the deadline decides */
    }
    return found;
}

/* Killed itself: the next life goes on with its worker, and the manager hears all that it must know. */
static void test_a_worker_is_taken_over(void **state)
{
    (void)state;
    Inspan__V1__Artifact from = INSPAN__V1__ARTIFACT__INIT;
    Inspan__V1__ResultFile file = INSPAN__V1__RESULT_FILE__INIT, *its_files = &file;
    char hash[33];
    test_manager_put(manager, "weights of step 1", 17, hash);
    file.name = (char *)"model.safetensors";
    file.hash = hash;
    file.bytes = 17;
    from.n_files = 1;
    from.files = &its_files;
    resume = &from;
    order_start(1, "elastic");
    resume = NULL;
    const Inspan__V1__WorkerReport *running = test_manager_wait_view(manager, 1, 1);
    const pid_t pid = (pid_t)running->pid;
    assert_true(running->full);
    assert_int_equal(running->blame->rank, 9);
    assert_true(worker_printed("goes on from weights of step 1"));
    assert_int_equal(test_manager_wait_ledger(manager, 1)->spans[0]->last_step, 2);
    const Inspan__V1__Verdict *verdict = test_manager_wait_verdict(manager, 1);
    assert_int_equal(verdict->step, 6);
    assert_int_equal(verdict->started_step, 5);
    assert_int_equal(verdict->cause, INSPAN__V1__VERDICT_CAUSE__CAUSE_HEAT);
    assert_true(verdict->factor == 0.5 && !verdict->leave);
    assert_string_equal(verdict->evidence, "94 C, was 61");
    const Inspan__V1__Artifact *artifact = test_manager_wait_artifact(manager, 1);
    assert_int_equal(artifact->step, 2);
    assert_int_equal(artifact->view, 1);
    assert_int_equal(artifact->n_files, 1);
    assert_string_equal(artifact->files[0]->name, "manifest.json");
    assert_true(test_manager_has(manager, artifact->files[0]->hash, hash, sizeof hash));

    kill(agent.pid, SIGKILL);
    wait_end(&agent);
    start_agent(TOKEN, &agent);
    const Inspan__V1__Register *again = test_manager_wait_register(manager, 2);
    assert_int_equal(again->n_workers, 1);
    assert_int_equal(again->workers[0]->pid, pid);
    assert_int_equal(again->workers[0]->incarnation, 4711);
    assert_int_equal(again->workers[0]->state, STATE(RUNNING));
    assert_int_equal(again->workers[0]->view, 1);
    assert_true(again->workers[0]->full);
    assert_int_equal(again->workers[0]->blame_view, 1);
    assert_true(worker_printed("the agent is away")); /* nobody read then */
    assert_int_equal(test_manager_wait_artifact(manager, 2)->step, 2);
    assert_int_equal(test_manager_wait_ledger(manager, 2)->spans[0]->last_step, 2);
    assert_string_equal(test_manager_wait_verdict(manager, 2)->evidence, "94 C, was 61"); /* told again */
    assert_int_equal(again->workers[0]->progress->pace_sample_ns, 70);
    assert_int_equal(again->workers[0]->progress->share_samples, 24);
    order_answer(1, 2, "well done");
    assert_true(worker_printed("registered step 2: well done"));
    order_view_number(1, 2);
    test_manager_wait_view(manager, 1, 2);
    order_leave(1);
    test_manager_wait_state(manager, 1, STATE(LEFT));
    order_stop(1, false);
    assert_string_equal(test_manager_wait_state(manager, 1, STATE(FAILED))->failure->text,
                        "stopped in view 2");
    wait_gone(pid);
    test_manager_wait_freed(manager, 1);
}

static bool state_has(const char *name)
{
    char path[400];
    snprintf(path, sizeof path, "%s/jobs/1/%s", state_folder, name);
    return access(path, F_OK) == 0;
}

/* It registers a worker that runs; before the manager has answered the worker is gone. */
static void test_an_end_before_the_answer_is_told(void **state)
{
    (void)state;
    order_start(1, "elastic");
    const pid_t pid = (pid_t)test_manager_wait_view(manager, 1, 1)->pid;
    kill(agent.pid, SIGKILL);
    wait_end(&agent);
    test_manager_hold(manager, true);
    start_agent(TOKEN, &agent);
    assert_int_equal(test_manager_wait_register(manager, 2)->workers[0]->state, STATE(RUNNING));
    kill(pid, SIGKILL);
    wait_gone(pid);
    const ns_t deadline = os_now() + 10 * NS_PER_S;
    while (!log_has("rank 0 failed") && os_now() < deadline)
        poll(NULL, 0, 10); /* not a wait: the deadline decides */
    test_manager_hold(manager, false);
    assert_int_equal(test_manager_wait_state(manager, 1, STATE(FAILED))->failure->status, INSPAN_PEER_LOST);
}

/* Members of a job come and go on one node: what one has saved goes when the next comes. */
static void test_checkpoints_of_lost_workers_go(void **state)
{
    (void)state;
    order_start(1, "elastic");
    test_manager_wait_artifact(manager, 1);
    pid_t pid = (pid_t)test_manager_wait_state(manager, 1, STATE(RUNNING))->pid;
    for (newcomer_rank = 4; newcomer_rank < 7; newcomer_rank++) {
        assert_true(state_has(newcomer_rank == 4   ? "out/step-00000002/manifest.json"
                              : newcomer_rank == 5 ? "rank-4/out/step-00000002/manifest.json"
                                                   : "rank-5/out/step-00000002/manifest.json"));
        kill(pid, SIGKILL);
        test_manager_wait_rank(manager, 1, newcomer_rank == 4 ? 0 : newcomer_rank - 1, STATE(FAILED), true);
        order_start_with(1, "elastic", NULL);
        pid = (pid_t)test_manager_wait_rank(manager, 1, newcomer_rank, STATE(BOUND), false)->pid;
        assert_false(state_has("out"));
        assert_false(newcomer_rank == 6 && state_has("rank-4/out"));
        assert_true(state_has("rank-0.log")); /* people read them afterwards */
        if (newcomer_rank == 6) break;
        order_view_of(1, newcomer_rank, newcomer_rank); /* any higher number */
        test_manager_wait_artifact(manager, newcomer_rank - 2);
    }
    newcomer_rank = 0;
}

/* SIGTERM: the worker hands over its work; the manager lets it go; then the agent ends. */
static void test_leaves_when_it_is_asked_to_end(void **state)
{
    (void)state;
    order_start(1, "elastic");
    test_manager_wait_view(manager, 1, 1);
    kill(agent.pid, SIGTERM);
    test_manager_wait_state(manager, 1, STATE(LEFT));
    order_stop(1, false);
    assert_int_equal(wait_end(&agent).code, 0);
    test_manager_wait_left(manager);
    start_agent(TOKEN, &agent);
    order_start(2, "elastic");
    test_manager_wait_view(manager, 2, 1);
    kill(agent.pid, SIGTERM);
    test_manager_wait_state(manager, 2, STATE(LEFT));
    ns_t begun = os_now();
    kill(agent.pid, SIGTERM); /* asked twice: at once */
    assert_int_equal(wait_end(&agent).code, 0);
    assert_true(os_now() - begun < 6 * NS_PER_S);
}

/* What the owner wants counts within 2 s, for the worker and in heartbeats; at 0 it hands over and leaves. */
static void test_owner_on_battery(void **state)
{
    (void)state;
    char path[300];
    owner_wishes_t wishes = owner_defaults;
    snprintf(path, sizeof path, "%s/" OWNER_FILE, state_folder);
    put_in_root("/sys/class/power_supply/BAT0/type", "Battery\n");
    put_in_root("/sys/class/power_supply/BAT0/status", "Charging\n");
    test_manager_wait_register(manager, 1);
    wishes.on_battery = 0.5;
    assert_int_equal(owner_save(path, &wishes, NULL), INSPAN_OK);
    order_start(1, "elastic");
    test_manager_wait_view(manager, 1, 1);
    assert_true(worker_printed("may use 1.00, limit 0, battery 0"));

    ns_t begun = os_now();
    put_in_root("/sys/class/power_supply/BAT0/status", "Discharging\n");
    assert_true(worker_printed("may use 0.50, limit 2, battery 1"));
    const Inspan__V1__Vitals vitals = test_manager_wait_allowed(manager, 0.5);
    assert_true(os_now() - begun < 2 * NS_PER_S);
    assert_string_equal(vitals.limit, "on battery");
    assert_true(vitals.on_battery && vitals.cores >= 1);

    begun = os_now();
    wishes.on_battery = 0;
    assert_int_equal(owner_save(path, &wishes, NULL), INSPAN_OK);
    test_manager_wait_state(manager, 1, STATE(LEFT));
    assert_true(os_now() - begun < 2 * NS_PER_S);
    order_stop(1, false);
    test_manager_wait_freed(manager, 1);

    kill(agent.pid, SIGKILL); /* a later life knows the wishes, from its registration on */
    wait_end(&agent);
    start_agent(TOKEN, &agent);
    const Inspan__V1__Register *again = test_manager_wait_register(manager, 2);
    assert_non_null(again->vitals);
    assert_true(again->vitals->allowed == 0);
    assert_int_equal(os_file_write(path, "on-battery lots\n", 16, 0600, NULL), INSPAN_OK);
    put_in_root("/sys/class/power_supply/BAT0/status", "Charging\n");
    test_manager_wait_allowed(manager, 1);
    put_in_root("/sys/class/power_supply/BAT0/status", "Discharging\n");
    test_manager_wait_allowed(manager, 0); /* what cannot be read changes nothing */
    assert_true(log_says("expected a number from 0 to 1"));
}

int main(int argc, char **argv)
{
    const int role = scene_role(argc, argv);
    if (role >= 0) return role;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_leftovers_are_ended, open_scene, close_scene),
        cmocka_unit_test_setup_teardown(test_a_worker_is_taken_over, open_scene, close_scene),
        cmocka_unit_test_setup_teardown(test_an_end_before_the_answer_is_told, open_scene, close_scene),
        cmocka_unit_test_setup_teardown(test_checkpoints_of_lost_workers_go, open_scene, close_scene),
        cmocka_unit_test_setup_teardown(test_leaves_when_it_is_asked_to_end, open_scene, close_scene),
        cmocka_unit_test_setup_teardown(test_owner_on_battery, open_scene, close_scene),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
