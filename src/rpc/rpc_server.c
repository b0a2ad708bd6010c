#include "rpc/rpc_server.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "platform/os/os_socket.h"
#include "platform/os/os_time.h"

#define DRAIN_TIME   NS_PER_S
#define SWEEP_PERIOD NS_PER_S
#define GATE_PERIOD  (250 * NS_PER_MS)

/* ---- Opening ---- */

/* gRPC closes its listener for good at the first EMFILE: take every descriptor that we may have. */
static void raise_descriptor_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= limit.rlim_max) return;
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) log_warn("rpc: cannot raise the limit of open files");
}

static grpc_arg integer_arg(const char *key, int value)
{
    grpc_arg arg = {.type = GRPC_ARG_INTEGER, .key = (char *)(uintptr_t)key};
    arg.value.integer = value;
    return arg;
}

static grpc_server *create_server(void)
{
    grpc_arg args[] = {
        integer_arg(GRPC_ARG_ALLOW_REUSEPORT, 0), /* a second manager must not bind the same port */
        integer_arg(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, RPC_MESSAGE_LIMIT),
        integer_arg(GRPC_ARG_MAX_CONCURRENT_STREAMS, 1024), /* of one connection */
        integer_arg(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 5000),
        /* A frozen or cut-off client is noticed after 4 s; so is a connection that never makes a call. */
        integer_arg(GRPC_ARG_KEEPALIVE_TIME_MS, 2000),
        integer_arg(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 2000),
        integer_arg(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1),
        integer_arg(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0),
        integer_arg(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 500), /* clients do the same */
        /* A small compressed message could unfold to a huge one. Identity only. */
        integer_arg(GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, 1),
    };
    grpc_channel_args all = {sizeof args / sizeof args[0], args};
    return grpc_server_create(&all, NULL);
}

/* gRPC says only that it could not bind: find out why. */
static inspan_status_t explain_bind_failure(const char *listen, inspan_error_t *err)
{
    os_target_t target;
    char port[8];
    if (os_target_parse(listen, 0, &target, err) != INSPAN_OK) return INSPAN_INVALID;
    snprintf(port, sizeof port, "%u", target.port);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *found = NULL;
    int failed = getaddrinfo(target.host, port, &hints, &found);
    if (failed != 0)
        return error_set(err, INSPAN_INVALID, "cannot listen at %s: %s", listen, gai_strerror(failed));
    int cause = 0;
    for (struct addrinfo *at = found; at != NULL && cause == 0; at = at->ai_next) {
        int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        int on = 1, off = 0;
        if (fd >= 0) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (fd >= 0 && at->ai_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
        if (fd < 0 || bind(fd, at->ai_addr, at->ai_addrlen) != 0) cause = errno;
        if (fd >= 0) close(fd);
    }
    freeaddrinfo(found);
    if (cause == EADDRINUSE)
        return error_set(
            err, INSPAN_EXISTS,
            "cannot listen at %s: the port is taken (another manager, or another program); stop it or "
            "choose another port",
            listen);
    errno = cause;
    return error_set_errno(err, INSPAN_IO, "cannot listen at %s", listen);
}

static void *poll_loop(void *argument)
{
    rpc_server_t *server = argument;
    while (grpc_completion_queue_next(server->poll_queue, rpc_deadline(GATE_PERIOD), NULL).type !=
           GRPC_QUEUE_SHUTDOWN)
        gate_check(&server->gate);
    return NULL;
}

static void accept_done(rpc_tag_t *tag, bool ok);

static void request_call(rpc_server_t *server)
{
    struct rpc_accept *accept = &server->accept;
    accept->tag.done = accept_done;
    accept->call = NULL;
    grpc_call_details_init(&accept->details);
    grpc_metadata_array_init(&accept->metadata);
    grpc_call_error error =
        grpc_server_request_call(server->grpc, &accept->call, &accept->details, &accept->metadata,
                                 server->queue, server->queue, &accept->tag);
    if (error == GRPC_CALL_OK) return;
    grpc_call_details_destroy(&accept->details);
    grpc_metadata_array_destroy(&accept->metadata);
    log_error("rpc: cannot accept calls any more: %s", grpc_call_error_to_string(error));
}

static void accept_done(rpc_tag_t *tag, bool ok)
{
    rpc_server_t *server = RPC_OWNER(tag, rpc_server_t, accept.tag);
    if (ok) rpc_call_accept(server);
    grpc_call_details_destroy(&server->accept.details);
    grpc_metadata_array_destroy(&server->accept.metadata);
    if (ok) request_call(server); /* else the server shuts down */
}

static void shut_down_done(rpc_tag_t *tag, bool ok)
{
    (void)ok;
    RPC_OWNER(tag, rpc_server_t, shut_down)->is_shut_down = true;
}

static inspan_status_t make_services(rpc_server_t *server)
{
    const rpc_server_options_t *options = &server->options;
    server->services[RPC_SERVICE_USER] =
        (rpc_service_t){options->methods, options->n_methods, options->context};
    server->health = rpc_health_open(server, &server->services[RPC_SERVICE_HEALTH]);
    server->reflection = rpc_reflection_open(server, &server->services[RPC_SERVICE_REFLECTION]);
    if (options->token != NULL) {
        size_t size = strlen("Bearer ") + strlen(options->token) + 1;
        server->bearer = malloc(size);
        if (server->bearer == NULL) return INSPAN_NO_MEMORY;
        strcpy(server->bearer, "Bearer ");
        strcat(server->bearer, options->token);
    }
    return server->health != NULL && server->reflection != NULL ? INSPAN_OK : INSPAN_NO_MEMORY;
}

static inspan_status_t start(rpc_server_t *server, uint16_t *port, inspan_error_t *err)
{
    server->grpc = create_server();
    server->queue = grpc_completion_queue_create_for_next(NULL);
    server->poll_queue = grpc_completion_queue_create_for_next(NULL);
    grpc_server_register_completion_queue(server->grpc, server->queue, NULL);
    grpc_server_register_completion_queue(server->grpc, server->poll_queue, NULL);
    grpc_server_credentials *plain = grpc_insecure_server_credentials_create();
    int bound = grpc_server_add_http2_port(server->grpc, server->options.listen, plain);
    grpc_server_credentials_release(plain);
    grpc_server_start(server->grpc); /* even if nothing is bound: only a started server can be shut down */
    request_call(server);
    gate_open(&server->gate, (uint16_t)(bound > 0 ? bound : 0));
    if (pthread_create(&server->poll_thread, NULL, poll_loop, server) != 0) {
        server->poll_thread = 0;
        return error_set(err, INSPAN_NO_MEMORY, "cannot start the server's second thread");
    }
    if (bound <= 0) return explain_bind_failure(server->options.listen, err);
    *port = (uint16_t)bound;
    return INSPAN_OK;
}

inspan_status_t rpc_server_open(const rpc_server_options_t *options, rpc_server_t **server, uint16_t *port,
                                inspan_error_t *err)
{
    *server = NULL;
    if (options->tick != NULL && options->tick_period <= 0)
        return error_set(err, INSPAN_INVALID, "a server's tick needs a period");
    rpc_server_t *made = calloc(1, sizeof *made);
    if (made == NULL) return error_set(err, INSPAN_NO_MEMORY, "no memory for a server");
    made->options = *options;
    if (made->options.queue_bytes == 0) made->options.queue_bytes = RPC_SERVER_BYTES_LIMIT;
    made->shut_down.done = shut_down_done;
    raise_descriptor_limit();
    rpc_library_acquire();
    sigset_t saved;
    rpc_signals_block(&saved);
    inspan_status_t status = make_services(made);
    if (status != INSPAN_OK)
        error_set(err, status, "no memory for a server");
    else
        status = start(made, port, err);
    rpc_signals_restore(&saved);
    if (status == INSPAN_OK)
        *server = made;
    else
        rpc_server_close(made);
    return status;
}

/* ---- Running ---- */

static void tick(rpc_server_t *server)
{
    ns_t now = os_now();
    if (server->options.tick != NULL && now >= server->next_tick) {
        server->next_tick = now + server->options.tick_period;
        server->options.tick(server->options.context, now);
    }
    if (now >= server->next_sweep) {
        server->next_sweep = now + SWEEP_PERIOD;
        rpc_call_sweep(server, now);
    }
}

/* One event, or none until `until`. */
static void step(rpc_server_t *server, ns_t until)
{
    ns_t wait = until - os_now();
    grpc_event event = grpc_completion_queue_next(server->queue, rpc_deadline(wait > 0 ? wait : 0), NULL);
    if (event.type == GRPC_OP_COMPLETE) {
        rpc_tag_t *tag = event.tag;
        tag->done(tag, event.success != 0);
    }
}

static ns_t next_wake(const rpc_server_t *server)
{
    if (server->options.tick == NULL || server->next_sweep < server->next_tick) return server->next_sweep;
    return server->next_tick;
}

static void drain(rpc_server_t *server)
{
    ns_t deadline = os_now() + DRAIN_TIME;
    bool cancelled = false;
    gate_release(&server->gate);
    rpc_health_stop(server->health);
    for (rpc_call_t *call = server->calls; call != NULL; call = call->next)
        rpc_call_finish(call, INSPAN_UNREACHABLE, "the manager is stopping");
    while (!server->is_shut_down || server->n_calls > 0) {
        step(server, os_now() + 100 * NS_PER_MS);
        if (!cancelled && os_now() >= deadline) {
            grpc_server_cancel_all_calls(server->grpc);
            cancelled = true;
        }
    }
    server->drained = true;
}

void rpc_server_run(rpc_server_t *server)
{
    while (!atomic_load(&server->stopping)) {
        step(server, next_wake(server));
        tick(server);
    }
    drain(server);
}

void rpc_server_stop(rpc_server_t *server)
{
    if (atomic_exchange(&server->stopping, true)) return;
    grpc_server_shutdown_and_notify(server->grpc, server->queue,
                                    &server->shut_down); /* ends the accept: wakes run */
}

static void close_queue(grpc_completion_queue *queue)
{
    grpc_completion_queue_shutdown(queue);
    while (grpc_completion_queue_next(queue, rpc_deadline(-1), NULL).type != GRPC_QUEUE_SHUTDOWN) {
    }
    grpc_completion_queue_destroy(queue);
}

void rpc_server_close(rpc_server_t *server)
{
    if (server == NULL) return;
    if (server->grpc != NULL) {
        rpc_server_stop(server);
        if (!server->drained) drain(server);
        grpc_server_destroy(server->grpc);
        close_queue(server->queue);
        grpc_completion_queue_shutdown(server->poll_queue);
        if (server->poll_thread != 0) pthread_join(server->poll_thread, NULL);
        grpc_completion_queue_destroy(server->poll_queue);
        gate_destroy(&server->gate);
    }
    rpc_health_close(server->health);
    rpc_reflection_close(server->reflection);
    free(server->bearer);
    free(server);
    rpc_library_release();
}

bool rpc_server_serves(const rpc_server_t *server, const char *name, size_t length)
{
    for (int s = 0; s < RPC_N_SERVICES; s++)
        for (uint32_t m = 0; m < server->services[s].n_methods; m++) {
            const char *path = server->services[s].methods[m].path;
            if (strncmp(path + 1, name, length) == 0 && path[1 + length] == '/') return true;
        }
    return false;
}
