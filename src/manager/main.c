/* The manager process: folder, token, registry, server, signals. */
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/error.h"
#include "base/log.h"
#include "manager/manager.h"
#include "manager/service/service.h"
#include "platform/os/os_file.h"
#include "platform/os/os_time.h"

#define TOKEN_BYTES 24
#define TOKEN_TEXT  64

typedef struct manager {
    char token[TOKEN_TEXT];
    registry_t *registry;
    service_t *service;
    rpc_server_t *server;
    uint16_t port;
} manager_t;

static inspan_status_t make_token(const char *path, char token[TOKEN_TEXT], inspan_error_t *err)
{
    uint8_t bytes[TOKEN_BYTES];
    if (os_random(bytes, sizeof bytes) != INSPAN_OK)
        return error_set(err, INSPAN_INTERNAL, "the kernel gives no random bytes for a token");
    for (size_t i = 0; i < sizeof bytes; i++) snprintf(token + 2 * i, 3, "%02x", bytes[i]);
    char line[TOKEN_TEXT + 1];
    int length = snprintf(line, sizeof line, "%s\n", token);
    return os_file_write(path, line, (size_t)length, 0600, err);
}

/* The token is made once and stays: join commands given out go on working. */
static inspan_status_t load_token(const char *folder, char token[TOKEN_TEXT], inspan_error_t *err)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%.4000s/token", folder);
    char *text = NULL;
    size_t bytes = 0;
    inspan_status_t status = os_file_read(path, TOKEN_TEXT, &text, &bytes, err);
    if (status == INSPAN_NOT_FOUND) return make_token(path, token, err);
    if (status != INSPAN_OK) return status;
    text[strcspn(text, "\r\n")] = '\0';
    struct stat info;
    size_t length = strlen(text);
    if (length < 16 || length >= TOKEN_TEXT)
        status = error_set(err, INSPAN_CORRUPT,
                           "%s: expected one line of 16 to %d characters; remove it to get a new one", path,
                           TOKEN_TEXT - 1);
    else
        snprintf(token, TOKEN_TEXT, "%s", text);
    if (status == INSPAN_OK && stat(path, &info) == 0 && (info.st_mode & 0077) != 0)
        log_warn("%s can be read by others: chmod 600 it", path);
    explicit_bzero(text, bytes);
    free(text);
    return status;
}

static inspan_status_t write_ready_file(const char *path, const manager_t *manager, inspan_error_t *err)
{
    char text[TOKEN_TEXT + 16];
    int length = snprintf(text, sizeof text, "%u\n%s\n", manager->port, manager->token);
    return os_file_write(path, text, (size_t)length, 0600, err);
}

static inspan_status_t start(manager_t *manager, const manager_options_t *options, inspan_error_t *err)
{
    inspan_status_t status = registry_open(options->folder, 0, &manager->registry, err);
    if (status == INSPAN_OK) status = load_token(options->folder, manager->token, err);
    if (status == INSPAN_OK)
        status = service_open(options->folder, manager->registry, os_now(), &manager->service, err);
    if (status != INSPAN_OK) return status;
    rpc_server_options_t server = {.listen = options->listen,
                                   .token = manager->token,
                                   .context = manager->service,
                                   .tick = service_tick,
                                   .tick_period = SERVICE_TICK_NS};
    server.methods = service_methods(&server.n_methods);
    status = rpc_server_open(&server, &manager->server, &manager->port, err);
    if (status == INSPAN_OK && options->ready_file != NULL)
        status = write_ready_file(options->ready_file, manager, err);
    return status;
}

static void stop(manager_t *manager)
{
    if (manager->server != NULL) rpc_server_close(manager->server);
    service_close(manager->service);
    registry_close(manager->registry);
    explicit_bzero(manager->token, sizeof manager->token);
}

/* SIGUSR1 is ours: it wakes the waiting thread when the server has ended without a signal. */
static void our_signals(sigset_t *signals)
{
    sigemptyset(signals);
    sigaddset(signals, SIGTERM);
    sigaddset(signals, SIGINT);
    sigaddset(signals, SIGUSR1);
}

static void *wait_for_signal(void *context)
{
    manager_t *manager = context;
    sigset_t signals;
    int which = 0;
    our_signals(&signals);
    while (sigwait(&signals, &which) != 0) {
    }
    log_info("stops on signal %d", which);
    rpc_server_stop(manager->server);
    return NULL;
}

/* Whose matter: the user's (port, folder, file; trying again mends nothing) or the machine's? */
static int exit_code_of(inspan_status_t status)
{
    switch (status) {
    case INSPAN_INVALID:
    case INSPAN_EXISTS:
    case INSPAN_VERSION:
    case INSPAN_NOT_FOUND:
    case INSPAN_CORRUPT: return 1;
    default: return 2;
    }
}

int manager_main(const manager_options_t *options)
{
    manager_t manager = {0};
    inspan_error_t err = {0};
    sigset_t signals, before;
    log_set_component("manager");
    /* blocked before gRPC makes its threads, which inherit the mask */
    our_signals(&signals);
    pthread_sigmask(SIG_BLOCK, &signals, &before);
    signal(SIGPIPE, SIG_IGN);

    pthread_t waiter;
    bool waiting = false;
    inspan_status_t status = start(&manager, options, &err);
    if (status == INSPAN_OK) {
        waiting = pthread_create(&waiter, NULL, wait_for_signal, &manager) == 0;
        if (!waiting) status = error_set(&err, INSPAN_NO_MEMORY, "cannot start a thread");
    }
    if (status == INSPAN_OK) {
        log_info("cluster %s, port %u, incarnation %llu", registry_cluster_id(manager.registry), manager.port,
                 (unsigned long long)registry_incarnation(manager.registry));
        rpc_server_run(manager.server);
    } else {
        fprintf(stderr, "inspan: %s\n", err.text);
    }
    if (waiting) {
        pthread_kill(waiter, SIGUSR1); /* if it still waits */
        pthread_join(waiter, NULL);
    }
    stop(&manager);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return status == INSPAN_OK ? 0 : exit_code_of(status);
}
