/* A worker that speaks the local protocol by itself: the session's library is not under test here. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "agent/agent_test.h"
#include "platform/os/os_file.h"
#include "platform/os/os_time.h"
#include "platform/wire/local.h"

static uint8_t frame[LOCAL_FRAME_MAX + 8], in[2 * (LOCAL_FRAME_MAX + 8)];
static size_t in_used;
static local_end_t end;
static local_registered_t registered;
static local_view_t view;
static bool elastic_job;
static bool outlives; /* its agent may be killed: the next read shows it */

static int try_agent(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", getenv("INSPAN_SOCKET"));
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0) return fd;
    close(fd);
    return -1;
}

static int call_agent(void)
{
    int fd = try_agent();
    if (fd < 0) _exit(90);
    return fd;
}

static void say(int fd, size_t n)
{
    if (send(fd, frame, n, MSG_NOSIGNAL) != (ssize_t)n && !outlives) _exit(91);
}

static void say_tick(int fd, uint64_t step)
{
    size_t n = 0;
    inspan_progress_t progress = {
        .step = step, .steps = 100, .loss = 2.5, .pace_sample_ns = 70, .share_samples = 24};
    local_encode_tick(&progress, frame, sizeof frame, &n);
    say(fd, n);
}

static void say_end(int fd, local_frame_type_t type, inspan_status_t status, const char *text)
{
    size_t n = 0;
    end = (local_end_t){.status = status, .cause = {.status = status, .rank = 0, .noticed_by = 0}};
    snprintf(end.text, sizeof end.text, "%s", text);
    local_encode_end(type, &end, frame, sizeof frame, &n);
    say(fd, n);
}

/* Prints how much its owner gives, whenever that changes. */
static void take_vitals(const uint8_t *body, size_t n)
{
    static double allowed = -1;
    local_vitals_t vitals;
    if (local_decode_vitals(body, n, &vitals) != INSPAN_OK) _exit(89);
    if (vitals.allowed != allowed && elastic_job) {
        printf("may use %.2f, limit %d, battery %d\n", vitals.allowed, (int)vitals.limit, vitals.on_battery);
        fflush(stdout);
    }
    allowed = vitals.allowed;
}

/* The next frame; ticks while it waits. 0: the agent hung up. */
static local_frame_type_t hear(int fd)
{
    static uint64_t step = 1;
    for (;;) {
        local_frame_type_t type;
        const uint8_t *body = NULL;
        size_t n = 0, whole = 0;
        inspan_status_t status = local_peek(in, in_used, &type, &body, &n, &whole);
        if (status == INSPAN_CORRUPT) _exit(92);
        if (status == INSPAN_OK) {
            if (type == LOCAL_VITALS) take_vitals(body, n);
            if (type == LOCAL_LOST) local_decode_end(body, n, &end);
            if (type == LOCAL_REGISTERED) local_decode_registered(body, n, &registered);
            if (type == LOCAL_VIEW && local_decode_view(body, n, &view) == INSPAN_OK) free(view.members);
            memmove(in, in + whole, in_used -= whole);
            return type;
        }
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        if (poll(&wait, 1, 100) == 0) {
            say_tick(fd, step++);
            continue;
        }
        ssize_t got = recv(fd, in + in_used, sizeof in - in_used, 0);
        if (got <= 0) return (local_frame_type_t)0;
        in_used += (size_t)got;
    }
}

static void hear_until(int fd, local_frame_type_t wanted)
{
    for (local_frame_type_t type; (type = hear(fd)) != wanted;)
        if (type == 0) _exit(93);
}

/* From HELLO to READY. */
static int begin(bool with_view)
{
    size_t n = 0;
    int fd = call_agent();
    local_hello_t hello = {LOCAL_MAJOR, LOCAL_MINOR, (uint32_t)getpid(), 4711};
    local_encode_hello(&hello, frame, sizeof frame, &n);
    say(fd, n);
    hear_until(fd, LOCAL_WELCOME);
    local_encode_bound(7555, frame, sizeof frame, &n);
    say(fd, n);
    if (!with_view) return fd;
    hear_until(fd, LOCAL_VIEW);
    local_encode_ready(1, frame, sizeof frame, &n);
    say(fd, n);
    return fd;
}

static void value_of(const char *config, const char *key, char *out, size_t size)
{
    const char *at = strstr(config, key);
    out[0] = '\0';
    if (at != NULL) snprintf(out, size, "%.*s", (int)strcspn(at + strlen(key), "\n"), at + strlen(key));
}

static int print_much(int fd)
{
    static char line[1001];
    memset(line, 'x', 999);
    line[999] = '\n';
    ns_t start = os_now();
    for (int i = 0; i < 40000; i++) fwrite(line, 1, 1000, i % 2 ? stderr : stdout);
    fflush(stdout);
    fprintf(stderr, "the last line\n");
    char summary[64];
    snprintf(summary, sizeof summary, "{\"print_ms\":%lld}", (long long)((os_now() - start) / NS_PER_MS));
    say_end(fd, LOCAL_DONE, INSPAN_OK, summary);
    hear_until(fd, LOCAL_BYE);
    return 0;
}

static void write_results(void)
{
    inspan_error_t err;
    if (os_mkdir_all("out/step-00000200", 0700, &err) != INSPAN_OK ||
        os_file_write("out/model.safetensors", "weights", 7, 0600, &err) != INSPAN_OK ||
        os_file_write("out/config.json", "{}", 2, 0600, &err) != INSPAN_OK ||
        os_file_write("out/step-00000200/empty", "", 0, 0600, &err) != INSPAN_OK ||
        os_file_write("out/half.tmp-77", "half", 4, 0600, &err) != INSPAN_OK)
        _exit(94);
}

static int finish(int fd)
{
    say_end(fd, LOCAL_DONE, INSPAN_OK, "{\"steps\":100}");
    hear_until(fd, LOCAL_BYE);
    return 0;
}

static int until_stopped(int fd)
{
    say_tick(fd, 1);
    for (;;) {
        local_frame_type_t type = hear(fd);
        if (type == LOCAL_STOP) {
            say_end(fd, LOCAL_FAILED, INSPAN_ABORTED, "cancelled at step 1");
            hear_until(fd, LOCAL_BYE);
            return 3;
        }
        if (type == LOCAL_LOST) {
            char text[300];
            snprintf(text, sizeof text, "told: %s", end.cause.text);
            say_end(fd, LOCAL_FAILED, end.cause.status, text);
            hear_until(fd, LOCAL_BYE);
            return 3;
        }
        if (type == 0) return 95;
    }
}

/* Deaf to STOP and SIGTERM, with a child of the same kind. */
static int stubborn(int fd)
{
    signal(SIGTERM, SIG_IGN);
    pid_t child = fork();
    if (child == 0) {
        close(fd);
        for (;;) pause();
    }
    printf("child %d\n", (int)child);
    fflush(stdout);
    for (;;)
        if (hear(fd) == 0) return 96;
}

/* ---- A member of an elastic job */

static void say_state(int fd)
{
    size_t n = 0;
    local_blame_t blame = {.view = view.view, .cause = {.status = INSPAN_PEER_LOST, .rank = 9}};
    snprintf(blame.cause.text, sizeof blame.cause.text, "rank 9 is gone");
    local_encode_ready(view.view, frame, sizeof frame, &n);
    say(fd, n);
    local_encode_state(true, frame, sizeof frame, &n);
    say(fd, n);
    local_encode_blame(&blame, frame, sizeof frame, &n);
    say(fd, n);
    say_tick(fd, 7);
}

static void say_saved(int fd)
{
    size_t n = 0;
    local_saved_t saved = {.step = 2, .view = view.view, .folder = "out/step-00000002"};
    local_encode_saved(&saved, frame, sizeof frame, &n);
    say(fd, n);
}

static void say_span(int fd)
{
    static local_ledger_t span = {.seed = 3, .batch = 8, .first_step = 1, .last_step = 2, .view = 1, .n = 1};
    size_t n = 0;
    span.shares[0].n = 8;
    local_encode_ledger(&span, frame, sizeof frame, &n);
    say(fd, n);
}

static void say_verdict(int fd)
{
    size_t n = 0;
    local_verdict_t verdict = {
        .step = 6, .started = 5, .cause = LOCAL_CAUSE_HEAT, .factor = 0.5, .evidence = "94 C, was 61"};
    local_encode_verdict(&verdict, frame, sizeof frame, &n);
    say(fd, n);
}

/* The agent was killed: call again until its next life answers. One that is just dying may still take a call.
 */
static int call_again(void)
{
    const ns_t deadline = os_now() + 10 * NS_PER_S;
    size_t n = 0;
    printf("the agent is away\n");
    fflush(stdout);
    for (;;) {
        int fd = try_agent();
        local_frame_type_t type = (local_frame_type_t)0;
        if (os_now() > deadline) _exit(99);
        in_used = 0;
        if (fd >= 0) {
            local_hello_t hello = {LOCAL_MAJOR, LOCAL_MINOR, (uint32_t)getpid(), 4711};
            local_encode_hello(&hello, frame, sizeof frame, &n);
            say(fd, n);
            type = hear(fd);
        }
        if (type == LOCAL_WELCOME) {
            local_encode_bound(7555, frame, sizeof frame, &n);
            say(fd, n);
            return fd;
        }
        if (fd >= 0) close(fd);
        poll(NULL, 0, 20); /* not a wait: the deadline decides */
    }
}

static int elastic(int fd)
{
    char text[300];
    size_t bytes = 0, n = 0;
    char *resume = NULL;
    if (os_file_read("resume/model.safetensors", 100, &resume, &bytes, NULL) == INSPAN_OK)
        printf("goes on from %s\n", resume);
    fflush(stdout);
    free(resume);
    say_state(fd);
    if (os_mkdir_all("out/step-00000002", 0700, NULL) != INSPAN_OK ||
        os_file_write("out/step-00000002/manifest.json", "{}", 2, 0600, NULL) != INSPAN_OK)
        return 94;
    say_saved(fd);
    say_span(fd);
    say_verdict(fd);
    for (;;) {
        const local_frame_type_t type = hear(fd);
        if (type == LOCAL_VIEW) say_state(fd);
        if (type == LOCAL_LEAVE) {
            local_encode_left(view.view, frame, sizeof frame, &n);
            say(fd, n);
        }
        if (type == LOCAL_REGISTERED) {
            printf("registered step %d: %s\n", (int)registered.step, registered.text);
            fflush(stdout);
        }
        if (type == LOCAL_STOP) {
            snprintf(text, sizeof text, "stopped in view %d", (int)view.view);
            say_end(fd, LOCAL_FAILED, INSPAN_ABORTED, text);
            hear_until(fd, LOCAL_BYE);
            return 3;
        }
        if (type != 0) continue;
        close(fd);
        fd = call_again();
        say_state(fd);
        say_saved(fd);
        say_span(fd);
        say_verdict(fd);
        say_tick(fd, 8);
    }
}

int test_worker_main(const char *folder)
{
    char path[4096], mode[64], data[512];
    char *config = NULL;
    size_t bytes = 0;
    snprintf(path, sizeof path, "%s/job.conf", folder);
    if (os_file_read(path, 65536, &config, &bytes, NULL) != INSPAN_OK) return 97;
    value_of(config, "mode=", mode, sizeof mode);
    value_of(config, "data.path=", data, sizeof data);
    free(config);
    printf("mode %s\n", mode);
    fflush(stdout);
    if (strcmp(mode, "exit") == 0) return 17;
    elastic_job = strcmp(mode, "elastic") == 0;
    int fd = begin(strcmp(mode, "bound") != 0);
    if (strcmp(mode, "bound") == 0) return until_stopped(fd);
    if (strcmp(mode, "wait") == 0) return until_stopped(fd);
    if (elastic_job) {
        outlives = true;
        signal(SIGPIPE, SIG_IGN);
        return elastic(fd);
    }
    if (strcmp(mode, "stubborn") == 0) return stubborn(fd);
    if (strcmp(mode, "print") == 0) return print_much(fd);
    if (strcmp(mode, "kill") == 0) raise(SIGKILL);
    if (strcmp(mode, "freeze") == 0) {
        say_tick(fd, 1);
        raise(SIGSTOP);
    }
    if (strcmp(mode, "garbage") == 0) {
        memset(frame, 0xee, sizeof frame);
        say(fd, sizeof frame);
        for (;;) pause();
    }
    if (strcmp(mode, "crowd") == 0) { /* others who know the path: nobody takes this worker's place */
        for (int i = 0; i < 8; i++) call_agent();
    }
    if (strcmp(mode, "results") == 0) write_results();
    if (strcmp(mode, "data") == 0) {
        char *text = NULL;
        if (os_file_read(data, 1 << 24, &text, &bytes, NULL) != INSPAN_OK) return 98;
        printf("data %zu bytes, first %.5s, path %s\n", bytes, text, data);
        fflush(stdout);
        free(text);
    }
    return finish(fd);
}
