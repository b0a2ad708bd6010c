/* Connections: addresses, ports, peers that are absent, silent, killed or frozen, and descriptors. */
#include "rpc/rpc_test_fixture.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- Connections ---- */

static uint16_t free_port(void)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    assert_int_equal(bind(fd, (struct sockaddr *)&address, length), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &length), 0);
    close(fd);
    return ntohs(address.sin_port);
}

static void nobody_listens(void **state)
{
    (void)state;
    char target[64];
    snprintf(target, sizeof target, "127.0.0.1:%u", free_port());
    rpc_client_t *client = client_of(target, TOKEN);
    Inspan__V1__JobInfo *job = NULL;
    inspan_error_t err = {0};
    for (int i = 0; i < 3; i++) {
        ns_t start = os_now();
        assert_int_equal(get_job(client, 1, LONG, &job, &err), INSPAN_UNREACHABLE);
        assert_true(os_now() - start < 3 * NS_PER_S);
        assert_non_null(strstr(err.text, target));
        assert_non_null(strstr(err.text, "manager unreachable"));
        assert_non_null(strstr(err.text, "Connection refused"));
    }
    rpc_stream_t *stream = attach(client);
    ProtobufCMessage *message = NULL;
    assert_int_equal(rpc_stream_next(stream, LONG, &message, &err), INSPAN_UNREACHABLE);
    rpc_stream_close(stream);
    rpc_client_close(client);

    client = client_of("no-such-host.invalid:7461", NULL);
    assert_int_equal(get_job(client, 1, LONG, &job, &err), INSPAN_UNREACHABLE);
    assert_non_null(strstr(err.text, "no-such-host.invalid:7461"));
    rpc_client_close(client);
}

/* Accepts, says nothing: a call ends at its bound. Then something that is no gRPC. */
static void a_stranger_listens(void **state)
{
    (void)state;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    assert_int_equal(bind(fd, (struct sockaddr *)&address, length), 0);
    assert_int_equal(listen(fd, 8), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &length), 0);
    char target[64];
    snprintf(target, sizeof target, "127.0.0.1:%u", ntohs(address.sin_port));
    rpc_client_t *client = client_of(target, TOKEN);
    Inspan__V1__JobInfo *job = NULL;
    inspan_error_t err = {0};
    ns_t start = os_now();
    assert_int_equal(get_job(client, 1, 300 * NS_PER_MS, &job, &err), INSPAN_TIMEOUT);
    assert_true(os_now() - start < 5 * NS_PER_S);
    rpc_client_close(client);
    close(fd);
}

/* A listener whose backlog is full: the kernel drops what comes, as a firewall or a machine that is off
 * would. */
static void nobody_answers(void **state)
{
    (void)state;
    enum { FILL = 4 };
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), fill[FILL];
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    assert_int_equal(bind(fd, (struct sockaddr *)&address, length), 0);
    assert_int_equal(listen(fd, 0), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &length), 0);
    for (int i = 0; i < FILL; i++) {
        fill[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        connect(fill[i], (struct sockaddr *)&address, sizeof address);
    }
    char target[64];
    snprintf(target, sizeof target, "127.0.0.1:%u", ntohs(address.sin_port));
    rpc_client_t *client = client_of(target, TOKEN);
    Inspan__V1__JobInfo *job = NULL;
    inspan_error_t err = {0};
    ns_t start = os_now();
    assert_int_equal(get_job(client, 1, LONG, &job, &err), INSPAN_UNREACHABLE);
    assert_true(os_now() - start < 10 * NS_PER_S); /* 2 s by the settings */
    assert_non_null(strstr(err.text, "no answer"));
    rpc_client_close(client);
    for (int i = 0; i < FILL; i++) close(fill[i]);
    close(fd);
}

static void a_dying_server_ends_streams_and_its_successor_is_found(void **state)
{
    (void)state;
    fixture_t f;
    fixture_open(&f, "127.0.0.1:0");
    rpc_client_t *client = client_of(f.target, TOKEN);
    rpc_stream_t *stream = attach(client);
    send_heartbeat(stream, 1);
    expect_sequence(stream, 1);
    ns_t start = os_now();
    fixture_close(&f);
    assert_true(os_now() - start < 5 * NS_PER_S);
    assert_int_equal(atomic_load(&f.service.closed), 1);
    ProtobufCMessage *message = NULL;
    inspan_error_t err = {0};
    assert_int_equal(rpc_stream_next(stream, LONG, &message, &err), INSPAN_UNREACHABLE);
    Inspan__V1__AgentUp up = INSPAN__V1__AGENT_UP__INIT;
    assert_int_equal(rpc_stream_send(stream, &up.base, LONG, &err), INSPAN_UNREACHABLE);
    rpc_stream_close(stream);
    Inspan__V1__JobInfo *job = NULL;
    assert_int_equal(get_job(client, 1, LONG, &job, &err), INSPAN_UNREACHABLE);

    char listen_at[64];
    snprintf(listen_at, sizeof listen_at, "127.0.0.1:%u", f.port);
    fixture_open(&f, listen_at);
    expect_job(client, 1); /* at once: the first call after the restart goes through */
    stream = attach(client);
    send_heartbeat(stream, 2);
    expect_sequence(stream, 2);
    rpc_stream_close(stream);
    rpc_client_close(client);
    fixture_close(&f);
}

static void a_taken_port_is_named(void **state)
{
    (void)state;
    fixture_t f;
    fixture_open(&f, "[::]:0");
    char listen_at[3][64];
    snprintf(listen_at[0], sizeof listen_at[0], "[::]:%u", f.port);
    snprintf(listen_at[1], sizeof listen_at[1], "0.0.0.0:%u", f.port);
    snprintf(listen_at[2], sizeof listen_at[2], "127.0.0.1:%u", f.port);
    for (int i = 0; i < 3; i++) {
        rpc_server_options_t options = {.listen = listen_at[i]};
        rpc_server_t *second = NULL;
        uint16_t port = 0;
        inspan_error_t err = {0};
        assert_int_equal(rpc_server_open(&options, &second, &port, &err), INSPAN_EXISTS);
        assert_null(second);
        assert_non_null(strstr(err.text, listen_at[i]));
    }
    rpc_client_t *client = client_of(f.target, TOKEN); /* the first one is none the worse */
    expect_job(client, 1);
    rpc_client_close(client);
    fixture_close(&f);

    const char *wrong[] = {"nonsense", "203.0.113.7:0", "1.2.3.4:99999", ""};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        rpc_server_options_t options = {.listen = wrong[i]};
        rpc_server_t *server = NULL;
        uint16_t port = 0;
        inspan_error_t err = {0};
        inspan_status_t status = rpc_server_open(&options, &server, &port, &err);
        assert_true(status == INSPAN_INVALID || status == INSPAN_IO);
        assert_true(err.text[0] != 0);
    }
}

static void addresses(void **state)
{
    (void)state;
    rpc_client_t *client = NULL;
    inspan_error_t err = {0};
    const char *wrong[] = {"",     ":1",   "a:",     "a:0",   "a:65536", "a:-1",
                           "a:1x", "[::1", "[::1]x", "a b:1", "[]:1",    "http://a:1"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_int_equal(rpc_client_open(wrong[i], NULL, &client, &err), INSPAN_INVALID);
    assert_int_equal(rpc_client_open("a:1", "two\nlines", &client, &err), INSPAN_INVALID);

    const struct {
        const char *target, *source;
    } right[] = {{"127.0.0.1:1", "127.0.0.1"}, {"localhost", NULL}, {"127.9.9.9", "127.0.0.1"}};
    for (size_t i = 0; i < sizeof right / sizeof right[0]; i++) {
        char address[64] = "";
        client = client_of(right[i].target, NULL);
        assert_string_equal(rpc_client_target(client), right[i].target);
        assert_int_equal(rpc_client_local_address(client, address, sizeof address, &err), INSPAN_OK);
        if (right[i].source != NULL) assert_string_equal(address, right[i].source);
        rpc_client_close(client);
    }
}

static void ipv6(void **state)
{
    (void)state;
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in6 loopback = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    bool usable = fd >= 0 && bind(fd, (struct sockaddr *)&loopback, sizeof loopback) == 0;
    if (fd >= 0) close(fd);
    if (!usable) {
        print_message("skipped: this machine has no IPv6 loopback\n");
        skip();
    }
    fixture_t f;
    fixture_open(&f, "[::]:0");
    char target[64], address[64];
    inspan_error_t err = {0};
    snprintf(target, sizeof target, "[::1]:%u", f.port);
    rpc_client_t *client = client_of(target, TOKEN);
    expect_job(client, 1);
    assert_string_equal(f.service.peer, "::1");
    assert_int_equal(rpc_client_local_address(client, address, sizeof address, &err), INSPAN_OK);
    assert_string_equal(address, "::1");
    rpc_client_close(client);
    client = client_of(f.target, TOKEN); /* IPv4 to the same listener: the peer is no mapped address */
    expect_job(client, 1);
    assert_string_equal(f.service.peer, "127.0.0.1");
    rpc_client_close(client);
    fixture_close(&f);
}

static void descriptors_close_on_exec(void **state)
{
    (void)state;
    fixture_t f;
    fixture_open(&f, "127.0.0.1:0");
    rpc_client_t *client = client_of(f.target, TOKEN);
    rpc_stream_t *stream = attach(client);
    send_heartbeat(stream, 1);
    expect_sequence(stream, 1);
    DIR *folder = opendir("/proc/self/fd");
    assert_non_null(folder);
    int sockets = 0;
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        int fd = atoi(entry->d_name), type = 0;
        socklen_t length = sizeof type;
        if (fd <= 2 || getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length) != 0) continue;
        struct sockaddr_storage name;
        length = sizeof name;
        if (getsockname(fd, (struct sockaddr *)&name, &length) != 0) continue;
        if (name.ss_family != AF_INET && name.ss_family != AF_INET6) continue;
        sockets++;
        assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    }
    closedir(folder);
    assert_true(sockets >= 3); /* listener and both ends */
    rpc_stream_close(stream);
    rpc_client_close(client);
    fixture_close(&f);
}

static void a_server_that_never_ran_closes(void **state)
{
    (void)state;
    test_service_t service = {0};
    rpc_server_options_t options = {.listen = "127.0.0.1:0"};
    test_service_fill(&service, &options);
    rpc_server_t *server = NULL;
    uint16_t port = 0;
    inspan_error_t err = {0};
    assert_int_equal(rpc_server_open(&options, &server, &port, &err), INSPAN_OK);
    assert_true(port > 0);
    rpc_server_close(server);
    assert_int_equal(rpc_server_open(&options, &server, &port, &err), INSPAN_OK);
    rpc_server_stop(server); /* before run: run ends at once */
    rpc_server_run(server);
    rpc_server_close(server);
}

/* ---- A server of its own process ---- */

typedef struct child {
    pid_t pid;
    int input; /* its standard input: it stops when this closes */
    char target[64];
} child_t;

/* The program lies beside this one in the build tree. */
static void child_path(char path[4096])
{
    ssize_t n = readlink("/proc/self/exe", path, 4000);
    assert_true(n > 0);
    path[n] = 0;
    strcpy(strrchr(path, '/'), "/../src/rpc/rpc-test-server");
    if (access(path, X_OK) != 0) fail_msg("%s is not built", path);
}

static void child_open(child_t *child, const char *setting)
{
    char path[4096], command[5000], line[32] = "";
    child_path(path);
    snprintf(command, sizeof command, "%s exec '%s'", setting, path);
    int in[2], out[2];
    assert_int_equal(pipe2(in, O_CLOEXEC), 0);
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], 0);
    posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    char shell[] = "sh", option[] = "-c", *words[] = {shell, option, command, NULL};
    assert_int_equal(posix_spawn(&child->pid, "/bin/sh", &actions, NULL, words, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(in[0]);
    close(out[1]);
    child->input = in[1];
    assert_true(read(out[0], line, sizeof line - 1) > 0);
    close(out[0]);
    snprintf(child->target, sizeof child->target, "127.0.0.1:%d", atoi(line));
}

static void child_close(child_t *child, int expected_signal)
{
    int status = 0;
    close(child->input);
    assert_int_equal(waitpid(child->pid, &status, 0), child->pid);
    assert_int_equal(WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), expected_signal);
}

static void a_killed_server_is_noticed_at_once(void **state)
{
    (void)state;
    child_t child;
    child_open(&child, "");
    rpc_client_t *client = client_of(child.target, "secret");
    rpc_stream_t *stream = attach(client);
    send_heartbeat(stream, 1);
    expect_sequence(stream, 1);
    ns_t start = os_now();
    kill(child.pid, SIGKILL);
    ProtobufCMessage *message = NULL;
    inspan_error_t err = {0};
    assert_int_equal(rpc_stream_next(stream, LONG, &message, &err), INSPAN_UNREACHABLE);
    assert_true(os_now() - start < 2 * NS_PER_S);
    assert_non_null(strstr(err.text, child.target));
    rpc_stream_close(stream);
    rpc_client_close(client);
    child_close(&child, SIGKILL);
}

static void a_frozen_server_is_noticed(void **state)
{
    (void)state;
    child_t child;
    child_open(&child, "");
    rpc_client_t *client = client_of(child.target, "secret");
    rpc_stream_t *stream = attach(client);
    send_heartbeat(stream, 1);
    expect_sequence(stream, 1);
    ns_t start = os_now();
    kill(child.pid, SIGSTOP);
    Inspan__V1__JobInfo *job = NULL;
    ProtobufCMessage *message = NULL;
    inspan_error_t err = {0};
    assert_int_equal(get_job(client, 1, 200 * NS_PER_MS, &job, &err), INSPAN_TIMEOUT);
    assert_int_equal(rpc_stream_next(stream, LONG, &message, &err), INSPAN_UNREACHABLE);
    assert_true(os_now() - start < 8 * NS_PER_S); /* 4 s by the settings */
    rpc_stream_close(stream);
    kill(child.pid, SIGCONT);
    inspan_status_t status =
        INSPAN_UNREACHABLE; /* its return is noticed too, after what is left of the old connection */
    for (ns_t end = os_now() + LONG; os_now() < end && status != INSPAN_OK;)
        status = get_job(client, 1, LONG, &job, &err);
    assert_int_equal(status, INSPAN_OK);
    protobuf_c_message_free_unpacked(&job->base, NULL);
    rpc_client_close(client);
    child_close(&child, 0);
}

/* More connections than the server has descriptors: it lives, and serves on when they have gone. */
static void connections_beyond_the_descriptors(void **state)
{
    (void)state;
    enum { MANY = 300 };
    child_t child;
    child_open(&child, "ulimit -n 256; export INSPAN_LOG=error;");
    rpc_client_t *client = client_of(child.target, "secret");
    expect_job(client, 1);
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                  .sin_port = htons((uint16_t)atoi(strchr(child.target, ':') + 1))};
    int sockets[MANY];
    for (int i = 0; i < MANY; i++) {
        sockets[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        connect(sockets[i], (struct sockaddr *)&address, sizeof address);
        poll(NULL, 0, 8); /* not a wait: a quarter of the descriptors lasts longer than the gate looks away */
    }
    expect_job(client, 1); /* who is in stays in */
    for (int i = 0; i < MANY; i++) close(sockets[i]);
    rpc_client_t *late = client_of(child.target, "secret");
    Inspan__V1__JobInfo *job = NULL;
    inspan_status_t status = INSPAN_UNREACHABLE;
    for (ns_t end = os_now() + LONG; os_now() < end && status != INSPAN_OK;)
        status = get_job(late, 1, LONG, &job, NULL);
    assert_int_equal(status, INSPAN_OK);
    protobuf_c_message_free_unpacked(&job->base, NULL);
    rpc_client_close(late);
    rpc_client_close(client);
    child_close(&child, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nobody_listens),
        cmocka_unit_test(a_stranger_listens),
        cmocka_unit_test(nobody_answers),
        cmocka_unit_test(a_dying_server_ends_streams_and_its_successor_is_found),
        cmocka_unit_test(a_taken_port_is_named),
        cmocka_unit_test(addresses),
        cmocka_unit_test(ipv6),
        cmocka_unit_test(descriptors_close_on_exec),
        cmocka_unit_test(a_server_that_never_ran_closes),
        cmocka_unit_test(a_killed_server_is_noticed_at_once),
        cmocka_unit_test(a_frozen_server_is_noticed),
        cmocka_unit_test(connections_beyond_the_descriptors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
