#include "rpc/rpc_client.h"

#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/error.h"
#include "base/protocol.h"

/* ---- Channel ---- */

static grpc_arg integer_arg(const char *key, int value)
{
    grpc_arg arg = {.type = GRPC_ARG_INTEGER, .key = (char *)(uintptr_t)key};
    arg.value.integer = value;
    return arg;
}

static grpc_arg string_arg(const char *key, const char *value)
{
    grpc_arg arg = {.type = GRPC_ARG_STRING, .key = (char *)(uintptr_t)key};
    arg.value.string = (char *)(uintptr_t)value;
    return arg;
}

static grpc_channel *create_channel(const rpc_client_t *client)
{
    grpc_arg args[] = {
        string_arg(GRPC_ARG_PRIMARY_USER_AGENT_STRING, "inspan/" INSPAN_VERSION_TEXT),
        /* A host name for servers that look at it: a scoped IPv6 address in brackets is none. */
        string_arg(GRPC_ARG_DEFAULT_AUTHORITY,
                   strchr(client->place.host, '%') != NULL ? "manager" : client->target),
        integer_arg(GRPC_ARG_ENABLE_HTTP_PROXY,
                    0), /* the manager is on this LAN, whatever $http_proxy says */
        integer_arg(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1), /* a TCP connection of its own */
        integer_arg(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, RPC_MESSAGE_LIMIT),
        integer_arg(GRPC_ARG_ENABLE_RETRIES, 0), /* callers know what may be done twice */
        integer_arg(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100),
        integer_arg(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000),
        integer_arg(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS,
                    2000), /* in truth the bound of one connection attempt */
        integer_arg(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, 1000),
        integer_arg(GRPC_ARG_KEEPALIVE_TIME_MS, 2000), /* a frozen or cut-off manager is noticed after 4 s */
        integer_arg(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 2000),
        integer_arg(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0),              /* on idle streams too */
        integer_arg(GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, 1), /* identity only */
    };
    grpc_channel_args all = {sizeof args / sizeof args[0], args};
    sigset_t saved;
    rpc_signals_block(&saved);
    grpc_channel_credentials *plain = grpc_insecure_credentials_create();
    grpc_channel *channel = grpc_channel_create(client->grpc_target, plain, &all);
    grpc_channel_credentials_release(plain);
    rpc_signals_restore(&saved);
    return channel;
}

grpc_call *rpc_client_call(rpc_client_t *client, const char *path, grpc_completion_queue *queue, ns_t timeout)
{
    pthread_mutex_lock(&client->lock);
    if (client->channel != NULL &&
        grpc_channel_check_connectivity_state(client->channel, 0) == GRPC_CHANNEL_TRANSIENT_FAILURE) {
        grpc_channel_destroy(client->channel);
        client->channel = NULL;
        client->manager.length = 0; /* it may have moved */
    }
    if (client->channel == NULL) client->channel = create_channel(client);
    grpc_slice method = grpc_slice_from_copied_string(path);
    grpc_call *call = grpc_channel_create_call(client->channel, NULL, GRPC_PROPAGATE_DEFAULTS, queue, method,
                                               NULL, rpc_deadline(timeout), NULL);
    grpc_slice_unref(method);
    pthread_mutex_unlock(&client->lock);
    return call;
}

static void *stream_loop(void *argument)
{
    grpc_completion_queue *queue = argument;
    for (;;) {
        grpc_event event = grpc_completion_queue_next(queue, rpc_deadline(-1), NULL);
        if (event.type == GRPC_QUEUE_SHUTDOWN) return NULL;
        if (event.type != GRPC_OP_COMPLETE) continue;
        rpc_tag_t *tag = event.tag;
        tag->done(tag, event.success != 0);
    }
}

grpc_completion_queue *rpc_client_queue(rpc_client_t *client)
{
    pthread_mutex_lock(&client->lock);
    if (client->queue == NULL) {
        grpc_completion_queue *queue = grpc_completion_queue_create_for_next(NULL);
        sigset_t saved;
        rpc_signals_block(&saved);
        if (pthread_create(&client->thread, NULL, stream_loop, queue) == 0) {
            client->queue = queue;
        } else {
            grpc_completion_queue_shutdown(queue);
            grpc_completion_queue_destroy(queue);
        }
        rpc_signals_restore(&saved);
    }
    grpc_completion_queue *queue = client->queue;
    pthread_mutex_unlock(&client->lock);
    return queue;
}

/* ---- Life ---- */

static char *make_bearer(const char *token)
{
    size_t size = strlen("Bearer ") + strlen(token) + 1;
    char *bearer = malloc(size);
    if (bearer != NULL) snprintf(bearer, size, "Bearer %s", token);
    return bearer;
}

/* gRPC takes "%" only escaped, and a scope only in its ipv6 scheme. */
static char *make_grpc_target(const rpc_client_t *client)
{
    char address[sizeof(struct in6_addr)];
    char bare[256];
    snprintf(bare, sizeof bare, "%s", client->place.host);
    char *scope = strchr(bare, '%');
    if (scope != NULL) *scope++ = 0;
    bool is_v6 = inet_pton(AF_INET6, bare, address) == 1;
    size_t size = strlen(client->place.host) + 64;
    char *target = malloc(size);
    if (target == NULL) return NULL;
    if (is_v6 && scope != NULL)
        snprintf(target, size, "ipv6:%%5B%s%%25%s%%5D:%u", bare, scope, client->place.port);
    else if (is_v6)
        snprintf(target, size, "ipv6:%%5B%s%%5D:%u", bare, client->place.port);
    else if (inet_pton(AF_INET, bare, address) == 1)
        snprintf(target, size, "ipv4:%s:%u", bare, client->place.port);
    else
        snprintf(target, size, "dns:///%s:%u", client->place.host, client->place.port);
    return target;
}

inspan_status_t rpc_client_open(const char *target, const char *token, rpc_client_t **client,
                                inspan_error_t *err)
{
    *client = NULL;
    rpc_client_t *made = calloc(1, sizeof *made);
    if (made == NULL) return error_set(err, INSPAN_NO_MEMORY, "no memory for a client");
    inspan_status_t status = os_target_parse(target, PROTOCOL_MANAGER_PORT, &made->place, err);
    const char *scope = strchr(made->place.host, '%');
    if (status == INSPAN_OK && scope != NULL && if_nametoindex(scope + 1) == 0)
        status = error_set(err, INSPAN_INVALID, "'%s': this machine has no network interface '%s'", target,
                           scope + 1);
    if (status == INSPAN_OK && token != NULL &&
        !grpc_header_nonbin_value_is_legal(grpc_slice_from_static_string(token)))
        status = error_set(err, INSPAN_INVALID, "the token has characters that no token of a cluster has");
    if (status != INSPAN_OK) {
        free(made);
        return status;
    }
    pthread_mutex_init(&made->lock, NULL);
    made->target = strdup(target);
    made->grpc_target = make_grpc_target(made);
    made->bearer = token != NULL ? make_bearer(token) : NULL;
    rpc_library_acquire();
    if (made->target == NULL || made->grpc_target == NULL || (token != NULL && made->bearer == NULL)) {
        rpc_client_close(made);
        return error_set(err, INSPAN_NO_MEMORY, "no memory for a client");
    }
    if (token != NULL) {
        made->authorization.key = grpc_slice_from_static_string("authorization");
        made->authorization.value = grpc_slice_from_static_string(made->bearer);
    }
    *client = made;
    return INSPAN_OK;
}

void rpc_client_close(rpc_client_t *client)
{
    if (client == NULL) return;
    if (client->queue != NULL) {
        grpc_completion_queue_shutdown(client->queue);
        pthread_join(client->thread, NULL);
        grpc_completion_queue_destroy(client->queue);
    }
    if (client->channel != NULL) grpc_channel_destroy(client->channel);
    pthread_mutex_destroy(&client->lock);
    free(client->target);
    free(client->grpc_target);
    free(client->bearer);
    free(client);
    rpc_library_release();
}

const char *rpc_client_target(const rpc_client_t *client)
{
    return client->target;
}

void rpc_client_metadata(const rpc_client_t *client, grpc_op *send_initial_metadata)
{
    if (client->bearer == NULL) return;
    send_initial_metadata->data.send_initial_metadata.count = 1;
    send_initial_metadata->data.send_initial_metadata.metadata =
        (grpc_metadata *)(uintptr_t)&client->authorization;
}

/* ---- Outcome ---- */

/* gRPC nests: "failed to connect to all addresses; last error: UNKNOWN: ipv4:...: ... : Connection refused".
 */
static const char *innermost(const char *details)
{
    const char *cause = details;
    for (const char *next; (next = strstr(cause, ": ")) != NULL;) cause = next + 2;
    if (*cause == 0) return details;
    bool silence = strcmp(cause, "tcp handshaker shutdown") == 0 || strcmp(cause, "FD Shutdown") == 0;
    return silence ? "no answer (is the machine on, does a firewall drop it?)" : cause;
}

static bool never_connected(const char *details)
{
    static const char *const signs[] = {"failed to connect", "Failed to connect", "DNS resolution", "resolv",
                                        "empty address list"};
    for (size_t i = 0; i < sizeof signs / sizeof signs[0]; i++)
        if (strstr(details, signs[i]) != NULL) return true;
    return false;
}

inspan_status_t rpc_client_outcome(const rpc_client_t *client, const char *path, grpc_status_code code,
                                   grpc_slice details, const grpc_metadata_array *trailing,
                                   inspan_error_t *err)
{
    char text[INSPAN_ERROR_TEXT];
    size_t n = GRPC_SLICE_LENGTH(details);
    if (n >= sizeof text) n = sizeof text - 1;
    memcpy(text, GRPC_SLICE_START_PTR(details), n);
    text[n] = 0;
    for (char *at = text; *at != 0; at++)
        if ((unsigned char)*at < ' ') *at = ' '; /* one line */

    inspan_status_t status;
    if (rpc_status_find(trailing, &status) && (status == INSPAN_OK) == (code == GRPC_STATUS_OK))
        return status == INSPAN_OK ? INSPAN_OK : error_set(err, status, "%s", text);
    status = rpc_status_from_grpc(code);
    switch (status) {
    case INSPAN_OK: return INSPAN_OK;
    case INSPAN_UNREACHABLE:
        if (never_connected(text))
            return error_set(
                err, status,
                "manager unreachable at %s: %s; is it running there (`inspan up`), and is the address right?",
                client->target, innermost(text));
        return error_set(err, status, "connection to the manager at %s lost: %s", client->target, text);
    case INSPAN_TIMEOUT:
        return error_set(err, status, "the manager at %s did not answer %s in time", client->target, path);
    case INSPAN_ABORTED: return error_set(err, status, "%s was cancelled", path);
    case INSPAN_UNSUPPORTED:
        return error_set(err, status,
                         "what listens at %s does not know %s: is it an Inspan manager of this version?",
                         client->target, path);
    default: return error_set(err, status, "%s at %s: %s", path, client->target, text);
    }
}

/* ---- Unary ---- */

typedef struct unary {
    grpc_call *call;
    grpc_completion_queue *queue;
    grpc_byte_buffer *request, *reply;
    grpc_metadata_array initial, trailing;
    grpc_status_code code;
    grpc_slice details;
} unary_t;

/* The batch has a deadline in core; the bound here is for a core that breaks its promise. */
static bool run_unary(rpc_client_t *client, unary_t *unary, ns_t timeout)
{
    grpc_op ops[6];
    memset(ops, 0, sizeof ops);
    ops[0].op = GRPC_OP_SEND_INITIAL_METADATA;
    rpc_client_metadata(client, &ops[0]);
    ops[1].op = GRPC_OP_SEND_MESSAGE;
    ops[1].data.send_message.send_message = unary->request;
    ops[2].op = GRPC_OP_SEND_CLOSE_FROM_CLIENT;
    ops[3].op = GRPC_OP_RECV_INITIAL_METADATA;
    ops[3].data.recv_initial_metadata.recv_initial_metadata = &unary->initial;
    ops[4].op = GRPC_OP_RECV_MESSAGE;
    ops[4].data.recv_message.recv_message = &unary->reply;
    ops[5].op = GRPC_OP_RECV_STATUS_ON_CLIENT;
    ops[5].data.recv_status_on_client.trailing_metadata = &unary->trailing;
    ops[5].data.recv_status_on_client.status = &unary->code;
    ops[5].data.recv_status_on_client.status_details = &unary->details;
    if (grpc_call_start_batch(unary->call, ops, 6, unary, NULL) != GRPC_CALL_OK) return false;
    grpc_event event =
        grpc_completion_queue_pluck(unary->queue, unary, rpc_deadline(timeout + NS_PER_S), NULL);
    if (event.type != GRPC_QUEUE_TIMEOUT) return true;
    grpc_call_cancel(unary->call, NULL);
    grpc_completion_queue_pluck(unary->queue, unary, rpc_deadline(-1), NULL);
    return true;
}

static inspan_status_t unary_outcome(rpc_client_t *client, const char *path, unary_t *unary,
                                     const ProtobufCMessageDescriptor *type, ns_t timeout,
                                     ProtobufCMessage **reply, inspan_error_t *err)
{
    inspan_status_t status =
        rpc_client_outcome(client, path, unary->code, unary->details, &unary->trailing, err);
    inspan_status_t ignored;
    if (status == INSPAN_TIMEOUT && !rpc_status_find(&unary->trailing, &ignored)) {
        char bound[32];
        return error_set(err, status, "the manager at %s did not answer %s within %s", client->target, path,
                         units_format_duration(timeout, bound, sizeof bound));
    }
    if (status != INSPAN_OK) return status;
    *reply = unary->reply != NULL ? rpc_unpack(unary->reply, type) : NULL;
    if (*reply != NULL) return INSPAN_OK;
    return error_set(err, INSPAN_CORRUPT, "the answer of the manager at %s to %s is not a valid %s",
                     client->target, path, type->name);
}

inspan_status_t rpc_call_unary(rpc_client_t *client, const char *path, const ProtobufCMessage *request,
                               const ProtobufCMessageDescriptor *reply_type, ns_t timeout,
                               ProtobufCMessage **reply, inspan_error_t *err)
{
    *reply = NULL;
    unary_t unary = {.details = grpc_empty_slice()};
    size_t bytes = 0;
    unary.request = rpc_pack(request, &bytes);
    if (unary.request == NULL)
        return error_set(err, INSPAN_LIMIT, "%s: the request has %zu bytes, more than the %u of a message",
                         path, bytes, RPC_MESSAGE_LIMIT);
    if (timeout < 0) timeout = 0;
    grpc_metadata_array_init(&unary.initial);
    grpc_metadata_array_init(&unary.trailing);
    unary.queue = grpc_completion_queue_create_for_pluck(NULL);
    unary.call = rpc_client_call(client, path, unary.queue, timeout);
    inspan_status_t status;
    if (unary.call != NULL && run_unary(client, &unary, timeout))
        status = unary_outcome(client, path, &unary, reply_type, timeout, reply, err);
    else
        status = error_set(err, INSPAN_INTERNAL, "%s: the call could not begin", path);
    if (unary.call != NULL) grpc_call_unref(unary.call);
    grpc_completion_queue_shutdown(unary.queue);
    grpc_completion_queue_destroy(unary.queue);
    grpc_byte_buffer_destroy(unary.request);
    grpc_byte_buffer_destroy(unary.reply);
    grpc_metadata_array_destroy(&unary.initial);
    grpc_metadata_array_destroy(&unary.trailing);
    grpc_slice_unref(unary.details);
    return status;
}

/* ---- This machine's address towards the manager ---- */

static bool is_link_local(const struct addrinfo *at)
{
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)(const void *)at->ai_addr;
    return at->ai_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr);
}

/* The first address with a route; link-local ones last, as no other machine can use them without its own
 * scope. */
static int choose(rpc_client_t *client, const struct addrinfo *found, os_address_t *source)
{
    int cause = EADDRNOTAVAIL;
    for (int link_local = 0; link_local < 2; link_local++)
        for (const struct addrinfo *at = found; at != NULL; at = at->ai_next) {
            if (is_link_local(at) != (link_local == 1)) continue;
            os_address_t manager = {.length = at->ai_addrlen};
            memcpy(&manager.storage, at->ai_addr, at->ai_addrlen);
            cause = os_source_towards(&manager, source);
            if (cause != 0) continue;
            pthread_mutex_lock(&client->lock);
            client->manager = manager;
            pthread_mutex_unlock(&client->lock);
            return 0;
        }
    return cause;
}

inspan_status_t rpc_client_local_address(rpc_client_t *client, char *address, size_t size,
                                         inspan_error_t *err)
{
    os_address_t source;
    pthread_mutex_lock(&client->lock);
    const os_address_t manager = client->manager;
    pthread_mutex_unlock(&client->lock);
    if (manager.length == 0 || os_source_towards(&manager, &source) != 0) {
        struct addrinfo hints = {.ai_socktype = SOCK_DGRAM}, *found = NULL;
        char port[8];
        snprintf(port, sizeof port, "%u", client->place.port);
        int failed = getaddrinfo(client->place.host, port, &hints, &found);
        if (failed != 0)
            return error_set(err, INSPAN_UNREACHABLE,
                             "manager unreachable: the name '%s' is not known here: %s", client->place.host,
                             gai_strerror(failed));
        const int cause = choose(client, found, &source);
        freeaddrinfo(found);
        errno = cause;
        if (cause != 0)
            return error_set_errno(err, INSPAN_UNREACHABLE,
                                   "manager unreachable at %s: no route from this machine", client->target);
    }
    os_address_host(&source, address, size);
    return INSPAN_OK;
}
