/* The whole agent as a process, between a manager and workers that the tests play (agent_test.h). */
#include "agent/agent.h"

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

#include "agent/agent_test.h"
#include "base/log.h"
#include "platform/os/os_file.h"
#include "platform/os/os_spawn.h"
#include "platform/os/os_time.h"

#define TOKEN "a-token-for-tests"

#define STATE(name) INSPAN__V1__WORKER_STATE__WORKER_##name

static char folder[64], files[80], state_folder[256], log_path[80];
static test_manager_t *manager;
static os_process_t agent;

/* ---- The scene */

static void start_agent(const char *token, os_process_t *process)
{
    char target[64], runtime[96];
    snprintf(target, sizeof target, "127.0.0.1:%u", test_manager_port(manager));
    snprintf(runtime, sizeof runtime, "XDG_RUNTIME_DIR=%s", folder);
    const char *const arguments[] = {"agent-test", "agent", state_folder, target, token, NULL};
    const char *const environment[] = {"INSPAN_LOG=info", runtime, NULL};
    int output = open(log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    os_spawn_options_t options = {"/proc/self/exe", arguments, environment, NULL, output};
    inspan_error_t err = {.text = ""};
    inspan_status_t status = os_spawn(&options, process, &err);
    close(output);
    if (status != INSPAN_OK) fail_msg("%s", err.text);
}

static os_exit_t wait_end(os_process_t *process)
{
    os_exit_t result = {0};
    ns_t deadline = os_now() + 20 * NS_PER_S;
    while (!os_process_poll(process, &result)) {
        assert_true(os_now() < deadline);
        struct pollfd fd = {.fd = process->pidfd, .events = POLLIN};
        poll(&fd, 1, process->pidfd >= 0 ? 1000 : 20);
    }
    return result;
}

static void wait_gone(pid_t pid)
{
    ns_t deadline = os_now() + 10 * NS_PER_S;
    while (os_process_start_ticks(pid) != 0) {
        assert_true(os_now() < deadline);
        poll(NULL, 0, 10); /* not a wait: the deadline decides */
    }
}

static int open_scene(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/inspan-agent-XXXXXX");
    if (mkdtemp(folder) == NULL) return 1;
    snprintf(files, sizeof files, "%s/files", folder);
    snprintf(state_folder, sizeof state_folder, "%s/agent", folder);
    snprintf(log_path, sizeof log_path, "%s/agent.log", folder);
    mkdir(files, 0700);
    manager = test_manager_open(files, 0, TOKEN);
    start_agent(TOKEN, &agent);
    return 0;
}

static bool log_says(const char *text)
{
    char *all = NULL;
    size_t bytes = 0;
    bool found =
        os_file_read(log_path, 1 << 20, &all, &bytes, NULL) == INSPAN_OK && strstr(all, text) != NULL;
    if (!found) print_message("%s", all ? all : "");
    free(all);
    return found;
}

static int close_scene(void **state)
{
    (void)state;
    if (agent.pid != 0) {
        kill(agent.pid, SIGTERM);
        if (wait_end(&agent).code != 0) { /* a sanitizer's finding too */
            log_says("(the agent's whole log)");
            return 1;
        }
    }
    test_manager_close(manager);
    return os_remove_all(folder, NULL) != INSPAN_OK;
}

/* ---- Orders */

static Inspan__V1__Artifact *resume; /* of the next start, as the next two */
static uint32_t newcomer_rank;       /* 0: no newcomer */

static void order_start_with(uint64_t job, const char *mode, Inspan__V1__DataFile *data)
{
    char config[600];
    Inspan__V1__StartWorker start = INSPAN__V1__START_WORKER__INIT;
    Inspan__V1__AgentDown down = INSPAN__V1__AGENT_DOWN__INIT;
    snprintf(config, sizeof config, "name=test\nmode=%s\ndata.path=unset\n", mode);
    start.job_id = job;
    start.config = config;
    start.failure_timeout_ns = NS_PER_S;
    start.n_data = data != NULL;
    start.data = &data;
    start.resume = resume;
    start.rank = newcomer_rank;
    start.newcomer = newcomer_rank > 0;
    down.kind_case = INSPAN__V1__AGENT_DOWN__KIND_START;
    down.start = &start;
    test_manager_order(manager, &down);
}

static void order_view_of(uint64_t job, uint64_t number, uint32_t rank)
{
    uint8_t key[32] = {1, 2, 3};
    Inspan__V1__Member member = INSPAN__V1__MEMBER__INIT, *members = &member;
    Inspan__V1__View view = INSPAN__V1__VIEW__INIT;
    Inspan__V1__AgentDown down = INSPAN__V1__AGENT_DOWN__INIT;
    member.node = (char *)"attic";
    member.address = (char *)"127.0.0.1";
    member.port = 7555;
    member.rank = view.rank = rank;
    view.job_id = job;
    view.view = number;
    view.n_members = 1;
    view.members = &members;
    view.key.data = key;
    view.key.len = sizeof key;
    down.kind_case = INSPAN__V1__AGENT_DOWN__KIND_VIEW;
    down.view = &view;
    test_manager_order(manager, &down);
}

static void order_view_number(uint64_t job, uint64_t number)
{
    order_view_of(job, number, 0);
}

static void order_view(uint64_t job)
{
    order_view_number(job, 1);
}

static void order_start(uint64_t job, const char *mode)
{
    order_start_with(job, mode, NULL);
    const Inspan__V1__WorkerReport *bound = NULL;
    if (strcmp(mode, "exit") != 0) {
        bound = test_manager_wait_state(manager, job, STATE(BOUND));
        assert_int_equal(bound->data_port, 7555);
        assert_int_equal(bound->incarnation, 4711);
        assert_true(bound->pid > 0);
    }
    if (strcmp(mode, "bound") != 0) order_view(job);
}

static void order_stop(uint64_t job, bool kill_it)
{
    Inspan__V1__StopWorker stop = INSPAN__V1__STOP_WORKER__INIT;
    Inspan__V1__AgentDown down = INSPAN__V1__AGENT_DOWN__INIT;
    stop.job_id = job;
    stop.kill = kill_it;
    stop.reason = (char *)"cancelled by a test";
    down.kind_case = INSPAN__V1__AGENT_DOWN__KIND_STOP;
    down.stop = &stop;
    test_manager_order(manager, &down);
}

static void order_log(uint64_t job, uint64_t request_id, bool follow, uint64_t tail)
{
    Inspan__V1__LogRequest request = INSPAN__V1__LOG_REQUEST__INIT;
    Inspan__V1__AgentDown down = INSPAN__V1__AGENT_DOWN__INIT;
    request.job_id = job;
    request.rank = -1;
    request.follow = follow;
    request.tail_bytes = tail;
    request.request_id = request_id;
    down.kind_case = INSPAN__V1__AGENT_DOWN__KIND_LOG;
    down.log = &request;
    test_manager_order(manager, &down);
}

static void order_leave(uint64_t job)
{
    Inspan__V1__StopWorker stop = INSPAN__V1__STOP_WORKER__INIT;
    Inspan__V1__AgentDown down = INSPAN__V1__AGENT_DOWN__INIT;
    stop.job_id = job;
    stop.leave = true;
    down.kind_case = INSPAN__V1__AGENT_DOWN__KIND_STOP;
    down.stop = &stop;
    test_manager_order(manager, &down);
}

static void order_answer(uint64_t job, uint64_t step, const char *text)
{
    Inspan__V1__ArtifactAnswer answer = INSPAN__V1__ARTIFACT_ANSWER__INIT;
    Inspan__V1__AgentDown down = INSPAN__V1__AGENT_DOWN__INIT;
    answer.job_id = job;
    answer.step = step;
    answer.text = (char *)(uintptr_t)text;
    down.kind_case = INSPAN__V1__AGENT_DOWN__KIND_ARTIFACT;
    down.artifact = &answer;
    test_manager_order(manager, &down);
}

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

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "worker") == 0) return test_worker_main(argv[2]);
    if (argc == 5 && strcmp(argv[1], "agent") == 0) {
        agent_options_t options = {.folder = argv[2], .manager = argv[3], .token = argv[4], .name = "attic"};
        return agent_main(&options);
    }
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
        cmocka_unit_test_setup_teardown(test_leftovers_are_ended, open_scene, close_scene),
        cmocka_unit_test_setup_teardown(test_a_worker_is_taken_over, open_scene, close_scene),
        cmocka_unit_test_setup_teardown(test_checkpoints_of_lost_workers_go, open_scene, close_scene),
        cmocka_unit_test_setup_teardown(test_leaves_when_it_is_asked_to_end, open_scene, close_scene),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
