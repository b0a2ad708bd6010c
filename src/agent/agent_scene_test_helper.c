#include "agent/agent_scene_test.h"

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

#include "agent/agent.h"
#include "platform/os/os_file.h"
#include "platform/os/os_time.h"

char folder[64], files[80], state_folder[256], log_path[80];
test_manager_t *manager;
os_process_t agent;
Inspan__V1__Artifact *resume;
uint32_t newcomer_rank;

/* ---- The scene */

void start_agent(const char *token, os_process_t *process)
{
    char target[64], runtime[96], root[80];
    snprintf(target, sizeof target, "127.0.0.1:%u", test_manager_port(manager));
    snprintf(runtime, sizeof runtime, "XDG_RUNTIME_DIR=%s", folder);
    snprintf(root, sizeof root, "%s/root", folder);
    const char *const arguments[] = {"agent-test", "agent", state_folder, target, token, root, NULL};
    const char *const environment[] = {"INSPAN_LOG=info", runtime, NULL};
    int output = open(log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    os_spawn_options_t options = {"/proc/self/exe", arguments, environment, NULL, output};
    inspan_error_t err = {.text = ""};
    inspan_status_t status = os_spawn(&options, process, &err);
    close(output);
    if (status != INSPAN_OK) fail_msg("%s", err.text);
}

os_exit_t wait_end(os_process_t *process)
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

void wait_gone(pid_t pid)
{
    ns_t deadline = os_now() + 10 * NS_PER_S;
    while (os_process_start_ticks(pid) != 0) {
        assert_true(os_now() < deadline);
        poll(NULL, 0, 10); /* not a wait: the deadline decides */
    }
}

int open_scene(void **state)
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

void put_in_root(const char *path, const char *text)
{
    char full[512], place[512];
    snprintf(full, sizeof full, "%s/root%s", folder, path);
    snprintf(place, sizeof place, "%s", full);
    *strrchr(place, '/') = '\0';
    assert_int_equal(os_mkdir_all(place, 0700, NULL), INSPAN_OK);
    assert_int_equal(os_file_write(full, text, strlen(text), 0600, NULL), INSPAN_OK);
}

static bool look_in_log(const char *text, bool print)
{
    char *all = NULL;
    size_t bytes = 0;
    bool found =
        os_file_read(log_path, 1 << 20, &all, &bytes, NULL) == INSPAN_OK && strstr(all, text) != NULL;
    if (!found && print) print_message("%s", all ? all : "");
    free(all);
    return found;
}

bool log_says(const char *text)
{
    return look_in_log(text, true);
}

bool log_has(const char *text)
{
    return look_in_log(text, false);
}

int close_scene(void **state)
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

void order_start_with(uint64_t job, const char *mode, Inspan__V1__DataFile *data)
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

void order_view_of(uint64_t job, uint64_t number, uint32_t rank)
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

void order_view_number(uint64_t job, uint64_t number)
{
    order_view_of(job, number, 0);
}

void order_view(uint64_t job)
{
    order_view_number(job, 1);
}

void order_start(uint64_t job, const char *mode)
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

void order_stop(uint64_t job, bool kill_it)
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

void order_log(uint64_t job, uint64_t request_id, bool follow, uint64_t tail)
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

void order_leave(uint64_t job)
{
    Inspan__V1__StopWorker stop = INSPAN__V1__STOP_WORKER__INIT;
    Inspan__V1__AgentDown down = INSPAN__V1__AGENT_DOWN__INIT;
    stop.job_id = job;
    stop.leave = true;
    down.kind_case = INSPAN__V1__AGENT_DOWN__KIND_STOP;
    down.stop = &stop;
    test_manager_order(manager, &down);
}

void order_answer(uint64_t job, uint64_t step, const char *text)
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

/* ---- The program's other roles */

int scene_role(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "worker") == 0) return test_worker_main(argv[2]);
    if (argc == 6 && strcmp(argv[1], "agent") == 0) {
        agent_options_t options = {
            .folder = argv[2], .manager = argv[3], .token = argv[4], .root = argv[5], .name = "attic"};
        return agent_main(&options);
    }
    return -1;
}
