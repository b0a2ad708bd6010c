/*
 * grpc.reflection.v1 and v1alpha: tools ask which services there are and get the descriptors of proto/, which
 * the build embeds as one FileDescriptorSet. protobuf-c keeps no descriptors in that form, so the few fields
 * needed are read here from the wire format: of our own bytes, checked all the same.
 *
 *   FileDescriptorSet.file = 1; FileDescriptorProto: name = 1, package = 2, dependency = 3, message_type = 4,
 *   enum_type = 5, service = 6; DescriptorProto: name = 1, nested_type = 3, enum_type = 4;
 * EnumDescriptorProto and ServiceDescriptorProto: name = 1; ServiceDescriptorProto.method = 2;
 * MethodDescriptorProto.name = 1.
 */
#include <stdlib.h>
#include <string.h>

#include "base/vec.h"
#include "grpc/reflection/v1/reflection.pb-c.h"
#include "rpc/rpc_server.h"

extern const unsigned char proto_descriptor_set[];
extern const unsigned int proto_descriptor_set_bytes;

typedef Grpc__Reflection__V1__ServerReflectionRequest request_t;
typedef Grpc__Reflection__V1__ServerReflectionResponse response_t;

typedef struct text {
    const uint8_t *at;
    size_t n;
} text_t;

struct rpc_reflection {
    rpc_server_t *server;
    vec_of(text_t) files;    /* each a FileDescriptorProto */
    vec_of(char *) services; /* full names of those that the server has */
};

/* ---- The wire format ---- */

static bool read_varint(text_t *from, uint64_t *value)
{
    *value = 0;
    for (unsigned shift = 0; shift < 64 && from->n > 0; shift += 7) {
        uint8_t byte = *from->at++;
        from->n--;
        *value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) return true;
    }
    return false;
}

static bool skip_bytes(text_t *from, uint64_t n)
{
    if (n > from->n) return false;
    from->at += n;
    from->n -= (size_t)n;
    return true;
}

/* The next length-delimited field of `from`, over fields of other kinds. False at the end. */
static bool next_field(text_t *from, uint64_t *number, text_t *value)
{
    uint64_t key, length;
    while (from->n > 0 && read_varint(from, &key)) {
        *number = key >> 3;
        switch (key & 7) {
        case 0:
            if (!read_varint(from, &length)) return false;
            break;
        case 1:
            if (!skip_bytes(from, 8)) return false;
            break;
        case 5:
            if (!skip_bytes(from, 4)) return false;
            break;
        case 2:
            if (!read_varint(from, &length) || length > from->n) return false;
            *value = (text_t){from->at, (size_t)length};
            return skip_bytes(from, length);
        default: return false;
        }
    }
    return false;
}

static text_t field(text_t message, uint64_t wanted)
{
    uint64_t number = 0;
    text_t value = {NULL, 0};
    while (next_field(&message, &number, &value))
        if (number == wanted) return value;
    return (text_t){(const uint8_t *)"", 0};
}

/* ---- Names ---- */

static bool same(text_t a, const char *b)
{
    return a.n == strlen(b) && memcmp(a.at, b, a.n) == 0;
}

/* If symbol begins with name as a whole part: what follows it ("" at its end); else NULL. */
static const char *after_part(const char *symbol, text_t name)
{
    if (name.n == 0 || strncmp(symbol, (const char *)name.at, name.n) != 0) return NULL;
    if (symbol[name.n] == 0) return symbol + name.n;
    return symbol[name.n] == '.' ? symbol + name.n + 1 : NULL;
}

/* Does scope have something called symbol among its fields of these numbers (0: end of list)? */
static bool defines(text_t scope, const char *symbol, const uint64_t *kinds)
{
    static const uint64_t in_message[] = {3, 4, 0}, in_service[] = {2, 0}, in_leaf[] = {0};
    uint64_t number = 0;
    text_t value = {NULL, 0};
    while (next_field(&scope, &number, &value)) {
        bool wanted = false;
        for (const uint64_t *kind = kinds; *kind != 0; kind++) wanted = wanted || *kind == number;
        const char *rest = wanted ? after_part(symbol, field(value, 1)) : NULL;
        if (rest == NULL) continue;
        if (*rest == 0) return true;
        bool of_file = kinds[0] == 4;
        const uint64_t *inner = (of_file && number == 4) || (!of_file && number == 3) ? in_message
                                : of_file && number == 6                              ? in_service
                                                                                      : in_leaf;
        if (defines(value, rest, inner)) return true;
    }
    return false;
}

static bool file_defines(text_t file, const char *symbol)
{
    static const uint64_t in_file[] = {4, 5, 6, 0};
    const char *rest = after_part(symbol, field(file, 2));
    return rest != NULL && *rest != 0 && defines(file, rest, in_file);
}

/* ---- The service ---- */

static bool index_services(rpc_reflection_t *reflection, text_t file)
{
    text_t package = field(file, 2), value = {NULL, 0};
    uint64_t number = 0;
    while (next_field(&file, &number, &value)) {
        if (number != 6) continue;
        text_t name = field(value, 1);
        char *full = malloc(package.n + 1 + name.n + 1);
        if (full == NULL) return false;
        memcpy(full, package.at, package.n);
        full[package.n] = '.';
        memcpy(full + package.n + 1, name.at, name.n);
        full[package.n + 1 + name.n] = 0;
        if (!VEC_PUSH(&reflection->services, full)) {
            free(full);
            return false;
        }
    }
    return true;
}

static void send_error(rpc_call_t *call, response_t response, grpc_status_code code, const char *text)
{
    Grpc__Reflection__V1__ErrorResponse error = GRPC__REFLECTION__V1__ERROR_RESPONSE__INIT;
    error.error_code = code;
    error.error_message = (char *)(uintptr_t)text;
    response.message_response_case =
        GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_ERROR_RESPONSE;
    response.error_response = &error;
    rpc_call_send(call, &response.base);
}

static void send_services(rpc_reflection_t *reflection, rpc_call_t *call, response_t response)
{
    enum { MOST = 32 };
    Grpc__Reflection__V1__ServiceResponse services[MOST], *list[MOST];
    Grpc__Reflection__V1__ListServiceResponse answer = GRPC__REFLECTION__V1__LIST_SERVICE_RESPONSE__INIT;
    for (size_t i = 0; i < reflection->services.n && answer.n_service < MOST; i++) {
        const char *name = reflection->services.items[i];
        if (!rpc_server_serves(reflection->server, name, strlen(name))) continue;
        Grpc__Reflection__V1__ServiceResponse *service = &services[answer.n_service];
        grpc__reflection__v1__service_response__init(service);
        service->name = reflection->services.items[i];
        list[answer.n_service++] = service;
    }
    answer.service = list;
    response.message_response_case =
        GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_LIST_SERVICES_RESPONSE;
    response.list_services_response = &answer;
    rpc_call_send(call, &response.base);
}

static void send_file(rpc_reflection_t *reflection, rpc_call_t *call, response_t response,
                      const request_t *request)
{
    bool by_name = request->message_request_case ==
                   GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_FILE_BY_FILENAME;
    for (size_t i = 0; i < reflection->files.n; i++) {
        text_t file = reflection->files.items[i];
        if (by_name ? !same(field(file, 1), request->file_by_filename)
                    : !file_defines(file, request->file_containing_symbol))
            continue;
        ProtobufCBinaryData data;
        data.len = file.n;
        data.data = (uint8_t *)(uintptr_t)file.at;
        Grpc__Reflection__V1__FileDescriptorResponse answer =
            GRPC__REFLECTION__V1__FILE_DESCRIPTOR_RESPONSE__INIT;
        answer.n_file_descriptor_proto = 1;
        answer.file_descriptor_proto = &data;
        response.message_response_case =
            GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_FILE_DESCRIPTOR_RESPONSE;
        response.file_descriptor_response = &answer;
        rpc_call_send(call, &response.base);
        return;
    }
    send_error(call, response, GRPC_STATUS_NOT_FOUND, by_name ? "no such file" : "no such symbol");
}

static void answer(void *context, rpc_call_t *call, const ProtobufCMessage *message)
{
    rpc_reflection_t *reflection = context;
    request_t request = *(const request_t *)message;
    response_t response = GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__INIT;
    response.valid_host = request.host;
    response.original_request = &request;
    switch (request.message_request_case) {
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_LIST_SERVICES:
        send_services(reflection, call, response);
        break;
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_FILE_BY_FILENAME:
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_FILE_CONTAINING_SYMBOL:
        send_file(reflection, call, response, &request);
        break;
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST__NOT_SET:
        send_error(call, response, GRPC_STATUS_INVALID_ARGUMENT, "the request asks for nothing");
        break;
    default: send_error(call, response, GRPC_STATUS_NOT_FOUND, "there are no extensions (proto3)"); break;
    }
    if (rpc_call_queued(call) > RPC_CALL_BYTES_LIMIT / 2)
        rpc_call_finish(call, INSPAN_LIMIT, "too many answers wait to be read");
}

static void half_close(void *context, rpc_call_t *call)
{
    (void)context;
    rpc_call_finish(call, INSPAN_OK, NULL);
}

#define METHOD(package)                                                                                      \
    {                                                                                                        \
        .path = "/" package ".ServerReflection/ServerReflectionInfo",                                        \
        .request = &grpc__reflection__v1__server_reflection_request__descriptor, .client_streams = true,     \
        .server_streams = true, .on_message = answer, .on_half_close = half_close                            \
    }

static const rpc_method_t methods[] = {METHOD("grpc.reflection.v1"), METHOD("grpc.reflection.v1alpha")};

rpc_reflection_t *rpc_reflection_open(rpc_server_t *server, rpc_service_t *service)
{
    rpc_reflection_t *reflection = calloc(1, sizeof *reflection);
    if (reflection == NULL) return NULL;
    reflection->server = server;
    *service = (rpc_service_t){methods, sizeof methods / sizeof methods[0], reflection};
    text_t set = {proto_descriptor_set, proto_descriptor_set_bytes}, file = {NULL, 0};
    uint64_t number = 0;
    while (next_field(&set, &number, &file)) {
        if (number == 1 && VEC_PUSH(&reflection->files, file) && index_services(reflection, file)) continue;
        rpc_reflection_close(reflection);
        return NULL;
    }
    return reflection;
}

void rpc_reflection_close(rpc_reflection_t *reflection)
{
    if (reflection == NULL) return;
    for (size_t i = 0; i < reflection->services.n; i++) free(reflection->services.items[i]);
    vec_free(&reflection->services);
    vec_free(&reflection->files);
    free(reflection);
}
