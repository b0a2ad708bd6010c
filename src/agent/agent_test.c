/* Registration, workers' ends, output, data, the agent's own end. */
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "agent/agent_scene_test.h"
#include "platform/os/os_file.h"
#include "platform/os/os_time.h"

/* ---- Registration */

static void test_registers_by_itself(void **state)
{
    (void)state;
    const Inspan__V1__Register *first = test_manager_wait_register(manager, 1);
    assert_int_equal(strlen(first->node_id), 36);
    assert_string_equal(first->name, "attic");
    assert_string_equal(first->address, "127.0.0.1");
    assert_int_equal(first->protocol_major, 1);
    assert_true(first->inventory->memory_bytes > 0);
    assert_true(first->inventory->usable_cores > 0);
    test_manager_wait_heartbeats(manager, 3);
    char id[64];
    snprintf(id, sizeof id, "%s", first->node_id);
    kill(agent.pid, SIGKILL);
    assert_int_equal(wait_end(&agent).signal, SIGKILL);
    start_agent(TOKEN, &agent);
    const Inspan__V1__Register *second = test_manager_wait_register(manager, 2);
    assert_string_equal(second->node_id, id); /* kept */
    assert_true(second->incarnation != first->incarnation);
}

static void test_refusals(void **state)
{
    (void)state;
    os_process_t other;
    test_manager_wait_register(manager, 1);
    start_agent(TOKEN, &other);
    assert_int_equal(wait_end(&other).code, 1);
    assert_true(log_says("another agent runs on"));
    char kept[256];
    strcpy(kept, state_folder);
    while (strlen(state_folder) < 206) strcat(state_folder, "/abcdefghi");
    start_agent(TOKEN, &other);
    assert_int_equal(wait_end(&other).code, 1);
    assert_true(log_says("use a shorter --dir"));
    strcpy(state_folder, kept);
    strcat(state_folder, "2");
    start_agent("a-wrong-token", &other);
    assert_int_equal(wait_end(&other).code, 1);
    assert_true(log_says("cannot join the cluster"));
    strcpy(state_folder, kept);
}

/* Another version is for good; a name or an address that does not suit may be mended, so the agent tries on.
 */
static void test_refused_by_the_manager(void **state)
{
    (void)state;
    os_process_t other;
    char kept[256];
    test_manager_wait_register(manager, 1);
    strcpy(kept, state_folder);
    strcat(state_folder, "2");
    test_manager_refuse(manager, INSPAN_UNREACHABLE, "node attic: no routable address");
    start_agent(TOKEN, &other);
    test_manager_wait_register(manager, 4);
    test_manager_refuse(manager, INSPAN_VERSION, "the agent speaks protocol 1, the manager 9");
    assert_int_equal(wait_end(&other).code, 1);
    assert_true(log_says("no routable address"));
    assert_true(log_says("the agent speaks protocol 1, the manager 9"));
    strcpy(state_folder, kept);
}

/* Case 26: a copied state folder. The manager gives the second one an id of its own, and it keeps it. */
static void test_new_id_is_kept(void **state)
{
    (void)state;
    const char *given = "11111111-2222-4333-8444-555555555555";
    test_manager_wait_register(manager, 1);
    kill(agent.pid, SIGTERM);
    assert_int_equal(wait_end(&agent).code, 0);
    test_manager_give_id(manager, given);
    for (unsigned life = 2; life <= 3; life++) {
        unsigned beats = test_manager_heartbeats(manager);
        start_agent(TOKEN, &agent);
        const Inspan__V1__Register *registered = test_manager_wait_register(manager, life);
        test_manager_wait_heartbeats(manager, beats + 1); /* it has the answer */
        if (life == 3) assert_string_equal(registered->node_id, given);
        kill(agent.pid, SIGTERM);
        assert_int_equal(wait_end(&agent).code, 0);
    }
}

static void test_manager_comes_back(void **state)
{
    (void)state;
    test_manager_wait_register(manager, 1);
    order_start(1, "wait");
    test_manager_wait_state(manager, 1, STATE(RUNNING));
    uint16_t port = test_manager_port(manager);
    test_manager_close(manager);
    manager = test_manager_open(files, port, TOKEN);
    const Inspan__V1__Register *again = test_manager_wait_register(manager, 1);
    assert_int_equal(again->n_workers, 1); /* it went on meanwhile */
    assert_int_equal(again->workers[0]->job_id, 1);
    assert_int_equal(again->workers[0]->state, STATE(RUNNING));
    order_stop(1, false);
    test_manager_wait_state(manager, 1, STATE(FAILED));
    assert_true(log_says("no session with the manager"));
}

/* ---- Ends of a worker */

static void test_done_with_results(void **state)
{
    (void)state;
    char text[64];
    order_start(7, "results");
    const Inspan__V1__WorkerReport *done = test_manager_wait_state(manager, 7, STATE(DONE));
    assert_string_equal(done->summary_json, "{\"steps\":100}");
    assert_int_equal(done->n_results, 3); /* not the half-written one */
    bool model = false, empty = false;
    for (size_t i = 0; i < done->n_results; i++) {
        assert_true(test_manager_has(manager, done->results[i]->hash, text, sizeof text));
        model |= strcmp(done->results[i]->name, "model.safetensors") == 0 && strcmp(text, "weights") == 0 &&
                 done->results[i]->bytes == 7;
        empty |= strcmp(done->results[i]->name, "step-00000200/empty") == 0 && text[0] == '\0';
    }
    assert_true(model && empty);
    assert_int_equal(done->exit_code, 0);
    assert_int_equal(test_manager_reports(manager, 7, STATE(FAILED)), 0);
}

static void test_exit_code_and_signal(void **state)
{
    (void)state;
    order_start(1, "exit");
    const Inspan__V1__WorkerReport *failed = test_manager_wait_state(manager, 1, STATE(FAILED));
    assert_int_equal(failed->exit_code, 17);
    assert_non_null(strstr(failed->failure->text, "exit code 17"));
    assert_non_null(strstr(failed->failure->text, "attic-2"));
    assert_int_equal(failed->failure->rank, 0);
    order_start(2, "kill");
    failed = test_manager_wait_state(manager, 2, STATE(FAILED));
    assert_int_equal(failed->exit_signal, SIGKILL);
    assert_non_null(strstr(failed->failure->text, "killed by signal 9"));
    assert_string_equal(failed->failure->node, "attic-2");
}

static void test_frozen_worker(void **state)
{
    (void)state;
    order_start(1, "freeze");
    pid_t pid = (pid_t)test_manager_wait_state(manager, 1, STATE(RUNNING))->pid;
    const Inspan__V1__WorkerReport *failed = test_manager_wait_state(manager, 1, STATE(FAILED));
    assert_non_null(strstr(failed->failure->text, "silent for 1."));
    assert_non_null(strstr(failed->failure->text, "stopped or frozen"));
    assert_true(failed->failure->waited_ns >= NS_PER_S);
    wait_gone(pid);
    test_manager_wait_freed(manager, 1);
    assert_int_equal(test_manager_reports(manager, 1, STATE(FAILED)), 2); /* at once, and when it was gone */
}

static void test_garbage_from_a_worker(void **state)
{
    (void)state;
    order_start(1, "garbage");
    const Inspan__V1__WorkerReport *failed = test_manager_wait_state(manager, 1, STATE(FAILED));
    assert_int_equal(failed->failure->status, INSPAN_CORRUPT);
    wait_gone((pid_t)test_manager_wait_state(manager, 1, STATE(READY))->pid);
    order_start(2, "crowd");
    test_manager_wait_state(manager, 2, STATE(DONE));
}

static void test_stop_between_steps(void **state)
{
    (void)state;
    order_start(1, "wait");
    test_manager_wait_state(manager, 1, STATE(RUNNING));
    order_stop(1, false);
    const Inspan__V1__WorkerReport *failed = test_manager_wait_state(manager, 1, STATE(FAILED));
    assert_int_equal(failed->failure->status, INSPAN_ABORTED);
    assert_string_equal(failed->failure->text, "cancelled at step 1");
}

/* Case 34: deaf to SIGTERM, with a child: two seconds later nothing of it is left. */
static void test_kill_all_of_it(void **state)
{
    (void)state;
    uint64_t bytes, dropped;
    int child = 0;
    order_start(1, "stubborn");
    pid_t pid = (pid_t)test_manager_wait_state(manager, 1, STATE(RUNNING))->pid;
    order_stop(1, true);
    const Inspan__V1__WorkerReport *failed = test_manager_wait_state(manager, 1, STATE(FAILED));
    assert_string_equal(failed->failure->text, "cancelled by a test");
    assert_int_equal(failed->exit_signal, SIGKILL);
    order_log(1, 9, false, 0);
    const char *text = test_manager_wait_log(manager, 9, &bytes, &dropped);
    assert_non_null(strstr(text, "child "));
    assert_int_equal(sscanf(strstr(text, "child "), "child %d", &child), 1);
    wait_gone(pid);
    wait_gone(child);
}

static void test_lost_member_is_told(void **state)
{
    (void)state;
    Inspan__V1__Failure failure = INSPAN__V1__FAILURE__INIT;
    Inspan__V1__MemberLost lost = INSPAN__V1__MEMBER_LOST__INIT;
    Inspan__V1__AgentDown down = INSPAN__V1__AGENT_DOWN__INIT;
    order_start(1, "wait");
    test_manager_wait_state(manager, 1, STATE(RUNNING));
    failure.status = INSPAN_PEER_LOST;
    failure.rank = 2;
    failure.node = (char *)"cellar";
    failure.text = (char *)"node cellar: agent silent for 5.0 s";
    lost.job_id = 1;
    lost.failure = &failure;
    down.kind_case = INSPAN__V1__AGENT_DOWN__KIND_LOST;
    down.lost = &lost;
    test_manager_order(manager, &down);
    const Inspan__V1__WorkerReport *failed = test_manager_wait_state(manager, 1, STATE(FAILED));
    assert_string_equal(failed->failure->text, "told: node cellar: agent silent for 5.0 s");
}

/* ---- Output */

/* Case 32: 40 MB with nobody looking; the newest 8 MB and more are there, the rest is counted. */
static void test_output_is_drained_and_capped(void **state)
{
    (void)state;
    uint64_t bytes = 0, dropped = 0;
    order_start(1, "print");
    test_manager_wait_state(manager, 1, STATE(DONE));
    order_log(1, 1, false, 0);
    const char *text = test_manager_wait_log(manager, 1, &bytes, &dropped);
    assert_true(bytes >= 8 << 20 && bytes <= 16 << 20);
    assert_int_equal(bytes + dropped, 40000000 + strlen("mode print\n") + strlen("the last line\n"));
    assert_string_equal(text + bytes - strlen("the last line\n"), "the last line\n");
    static const uint64_t tails[][2] = {{1, 14}, {14, 14}, {15, 1014}, {24, 1014}}; /* whole lines */
    for (uint64_t i = 0; i < 4; i++) {
        order_log(1, 20 + i, false, tails[i][0]);
        text = test_manager_wait_log(manager, 20 + i, &bytes, &dropped);
        assert_int_equal(bytes, tails[i][1]);
        assert_string_equal(text + bytes - 14, "the last line\n");
    }
    order_log(999, 3, true, 0); /* no such job: an end all the same */
    test_manager_wait_log(manager, 3, &bytes, &dropped);
    assert_int_equal(bytes, 0);
    char path[300];
    struct stat now, older;
    snprintf(path, sizeof path, "%s/jobs/1/rank-0.log", state_folder);
    assert_int_equal(stat(path, &now), 0);
    strcat(path, ".1");
    assert_int_equal(stat(path, &older), 0);
    assert_true(now.st_size + older.st_size <= 16 << 20);
}

static void test_follow_until_the_end(void **state)
{
    (void)state;
    uint64_t bytes, dropped;
    order_start(1, "wait");
    test_manager_wait_state(manager, 1, STATE(RUNNING));
    order_log(1, 1, true, 0);
    order_stop(1, false);
    assert_string_equal(test_manager_wait_log(manager, 1, &bytes, &dropped), "mode wait\n");
}

/* ---- Data */

static void test_data_is_fetched_once(void **state)
{
    (void)state;
    size_t size = (3 << 20) + 7;
    char *data = malloc(size), hash[33];
    uint64_t bytes, dropped;
    for (size_t i = 0; i < size; i++) data[i] = (char)('a' + i % 23);
    test_manager_put(manager, data, size, hash);
    free(data);
    Inspan__V1__DataFile file = INSPAN__V1__DATA_FILE__INIT;
    file.key = (char *)"data.path";
    file.hash = hash;
    file.bytes = size;
    file.path = (char *)"/home/somebody/book.txt";
    file.fetch = true;
    for (uint64_t job = 1; job <= 2; job++) {
        order_start_with(job, "data", &file);
        test_manager_wait_state(manager, job, STATE(BOUND));
        order_view(job);
        test_manager_wait_state(manager, job, STATE(DONE));
        order_log(job, job, false, 0);
        assert_non_null(
            strstr(test_manager_wait_log(manager, job, &bytes, &dropped), "data 3145735 bytes, first abcde"));
    }
    assert_int_equal(test_manager_gets(manager), 1);
    char path[300];
    snprintf(path, sizeof path, "%s/cache/%s", state_folder, hash);
    assert_int_equal(os_file_write(path, "spoiled", 7, 0600, NULL), INSPAN_OK); /* a bad disk: fetched anew */
    order_start_with(3, "data", &file);
    test_manager_wait_state(manager, 3, STATE(BOUND));
    order_view(3);
    test_manager_wait_state(manager, 3, STATE(DONE));
    assert_int_equal(test_manager_gets(manager), 2);
}

static void test_bad_data(void **state)
{
    (void)state;
    char hash[33], path[300], other[128];
    test_manager_put(manager, "right", 5, hash);
    Inspan__V1__DataFile file = INSPAN__V1__DATA_FILE__INIT;
    file.key = (char *)"data.path";
    file.hash = hash;
    file.bytes = 6; /* not what the manager sends */
    file.fetch = true;
    order_start_with(1, "data", &file);
    const Inspan__V1__WorkerReport *failed = test_manager_wait_state(manager, 1, STATE(FAILED));
    assert_int_equal(failed->failure->status, INSPAN_CORRUPT);
    snprintf(other, sizeof other, "%s/%s", files, hash);
    assert_int_equal(os_file_write(other, "wrong", 5, 0600, NULL), INSPAN_OK);
    file.bytes = 5;
    order_start_with(2, "data", &file);
    failed = test_manager_wait_state(manager, 2, STATE(FAILED));
    assert_int_equal(failed->failure->status, INSPAN_CORRUPT);
    assert_non_null(strstr(failed->failure->text, hash));
    snprintf(path, sizeof path, "%s/cache/%s", state_folder, hash);
    assert_int_not_equal(access(path, F_OK), 0); /* nothing wrong under a final name */
    file.key = (char *)"../../etc/passwd";
    order_start_with(3, "data", &file);
    test_manager_wait_state(manager, 3, STATE(FAILED));
    file.key = (char *)"data.path"; /* a file that must lie here already */
    file.fetch = false;
    file.path = other;
    order_start_with(4, "data", &file);
    failed = test_manager_wait_state(manager, 4, STATE(FAILED));
    assert_int_equal(failed->failure->status, INSPAN_MISMATCH);
    assert_non_null(strstr(failed->failure->text, other));
    file.path = (char *)"/no/such/file";
    order_start_with(5, "data", &file);
    failed = test_manager_wait_state(manager, 5, STATE(FAILED));
    assert_int_equal(failed->failure->status, INSPAN_NOT_FOUND);
    assert_int_equal(os_file_write(other, "right", 5, 0600, NULL), INSPAN_OK);
    file.path = other;
    order_start_with(6, "data", &file);
    test_manager_wait_state(manager, 6, STATE(BOUND));
    order_view(6);
    test_manager_wait_state(manager, 6, STATE(DONE));
}

/* ---- Ends of the agent */

static unsigned entries(const char *path)
{
    unsigned n = 0;
    DIR *listing = opendir(path);
    assert_non_null(listing);
    for (struct dirent *entry; (entry = readdir(listing)) != NULL;) n += entry->d_name[0] != '.';
    closedir(listing);
    return n;
}

static void test_good_bye(void **state)
{
    (void)state;
    order_start(1, "stubborn");
    pid_t pid = (pid_t)test_manager_wait_state(manager, 1, STATE(RUNNING))->pid;
    kill(agent.pid, SIGTERM);
    test_manager_wait_left(manager);
    assert_int_equal(wait_end(&agent).code, 0);
    assert_int_equal(os_process_start_ticks(pid), 0);
    const Inspan__V1__WorkerReport *failed = test_manager_wait_state(manager, 1, STATE(FAILED));
    assert_non_null(strstr(failed->failure->text, "the agent of node attic-2 was stopped"));
    char path[300];
    snprintf(path, sizeof path, "%s/run", state_folder);
    assert_int_equal(entries(path), 0);
}

/* Its manager is frozen while results are asked for: the agent ends all the same, and soon. */
static void test_end_beside_a_frozen_manager(void **state)
{
    (void)state;
    test_manager_mute_stat(manager, true);
    order_start(1, "results");
    test_manager_wait_muted(manager);
    ns_t begun = os_now();
    kill(agent.pid, SIGTERM);
    assert_int_equal(wait_end(&agent).code, 0);
    assert_true(os_now() - begun < 5 * NS_PER_S); /* and not the 10 s that an answer is waited for */
}

/* Where the state folder's path is too long for a socket's: elsewhere, and gone afterwards. */
static void test_sockets_elsewhere(void **state)
{
    (void)state;
    char path[100];
    test_manager_wait_register(manager, 1);
    kill(agent.pid, SIGTERM);
    assert_int_equal(wait_end(&agent).code, 0);
    while (strlen(state_folder) < 120) strcat(state_folder, "/abcdefghi");
    start_agent(TOKEN, &agent);
    test_manager_wait_register(manager, 2);
    snprintf(path, sizeof path, "%s/inspan", folder);
    assert_int_equal(entries(path), 1);
    order_start(1, "wait");
    test_manager_wait_state(manager, 1, STATE(RUNNING));
    kill(agent.pid, SIGTERM);
    assert_int_equal(wait_end(&agent).code, 0);
    assert_int_equal(entries(path), 0);
    agent.pid = 0;
}

/* A restored backup, readable by all: closed again. One that others could write to is not used. */
static void test_private_folder(void **state)
{
    (void)state;
    char path[300];
    struct stat info;
    test_manager_wait_register(manager, 1);
    kill(agent.pid, SIGTERM);
    assert_int_equal(wait_end(&agent).code, 0);
    snprintf(path, sizeof path, "%s/run", state_folder);
    assert_int_equal(chmod(path, 0755), 0);
    start_agent(TOKEN, &agent);
    test_manager_wait_register(manager, 2);
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0700);
    kill(agent.pid, SIGTERM);
    assert_int_equal(wait_end(&agent).code, 0);
    assert_int_equal(chmod(path, 0777), 0);
    start_agent(TOKEN, &agent);
    assert_int_equal(wait_end(&agent).code, 1);
    assert_true(log_says("with mode 777: expected a folder of user"));
    assert_int_equal(chmod(path, 0700), 0);
    start_agent(TOKEN, &agent);
    test_manager_wait_register(manager, 3);
}

int main(int argc, char **argv)
{
    const int role = scene_role(argc, argv);
    if (role >= 0) return role;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_registers_by_itself, open_scene, close_scene),
        cmocka_unit_test_setup_teardown(test_refusals, open_scene, close_scene),
        cmocka_unit_test_setup_teardown(test_refused_by_the_manager, open_scene, close_scene),
        cmocka_unit_test_setup_teardown(test_new_id_is_kept, open_scene, close_scene),
        cmocka_unit_test_setup_teardown(test_manager_comes_back, open_scene, close_scene),
        cmocka_unit_test_setup_teardown(test_done_with_results, open_scene, close_scene),
        cmocka_unit_test_setup_teardown(test_exit_code_and_signal, open_scene, close_scene),
        cmocka_unit_test_setup_teardown(test_frozen_worker, open_scene, close_scene),
        cmocka_unit_test_setup_teardown(test_garbage_from_a_worker, open_scene, close_scene),
        cmocka_unit_test_setup_teardown(test_stop_between_steps, open_scene, close_scene),
        cmocka_unit_test_setup_teardown(test_kill_all_of_it, open_scene, close_scene),
        cmocka_unit_test_setup_teardown(test_lost_member_is_told, open_scene, close_scene),
        cmocka_unit_test_setup_teardown(test_output_is_drained_and_capped, open_scene, close_scene),
        cmocka_unit_test_setup_teardown(test_follow_until_the_end, open_scene, close_scene),
        cmocka_unit_test_setup_teardown(test_data_is_fetched_once, open_scene, close_scene),
        cmocka_unit_test_setup_teardown(test_bad_data, open_scene, close_scene),
        cmocka_unit_test_setup_teardown(test_good_bye, open_scene, close_scene),
        cmocka_unit_test_setup_teardown(test_end_beside_a_frozen_manager, open_scene, close_scene),
        cmocka_unit_test_setup_teardown(test_sockets_elsewhere, open_scene, close_scene),
        cmocka_unit_test_setup_teardown(test_private_folder, open_scene, close_scene),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
