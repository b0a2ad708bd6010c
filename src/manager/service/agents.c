/*
 * Agents.Attach: one session a stream.
 *
 *   OPEN --- Register ---> REGISTERED --- the client half-closes ---> (left)
 *    | not within 5 s          |  stream broke ---> (disconnected)
 *    v                         v  dropped (lost, replaced) ---> (over)
 *   (refused)
 */
#include <stdlib.h>

#include "base/log.h"
#include "core/sched/sched.h"
#include "manager/service/service_internal.h"

#define REGISTER_WITHIN (5 * NS_PER_S)
#define SESSIONS_MAX    (SCHED_NODES_MAX + 64)

struct session {
    rpc_call_t *call;
    fleet_node_t *node; /* NULL: not registered yet, or not its session any more */
    ns_t opened;
    bool over;
    session_t *next;
};

void agents_on_open(void *context, rpc_call_t *call)
{
    service_t *service = context;
    session_t *session = service->n_sessions < SESSIONS_MAX ? calloc(1, sizeof *session) : NULL;
    if (session == NULL) {
        rpc_call_finish(call, INSPAN_LIMIT, "the manager has too many agents connected");
        return;
    }
    session->call = call;
    session->opened = os_now();
    session->next = service->sessions;
    service->sessions = session;
    service->n_sessions++;
    rpc_call_set_data(call, session);
}

static void end(session_t *session, inspan_status_t status, const char *text)
{
    session->over = true;
    rpc_call_finish(session->call, status, text);
}

bool agents_send(void *context, fleet_node_t *node, const Inspan__V1__AgentDown *message)
{
    (void)context;
    session_t *session = node->session;
    if (session == NULL || session->over) return false;
    inspan_status_t status = rpc_call_send(session->call, &message->base);
    if (status == INSPAN_OK) return true;
    if (status == INSPAN_LIMIT) {
        log_warn("node %s takes no messages any more: its stream is closed", node->name);
        end(session, INSPAN_LIMIT, "the agent does not read its stream");
    }
    return false;
}

void agents_drop(void *context, void *which, inspan_status_t status, const char *text)
{
    (void)context;
    session_t *session = which;
    session->node = NULL;
    end(session, status, text);
}

static void take_registration(service_t *service, session_t *session, const Inspan__V1__AgentUp *up)
{
    if (up->kind_case != INSPAN__V1__AGENT_UP__KIND_REGISTER_NODE) {
        end(session, INSPAN_INVALID, "the first message of an agent must be its registration");
        return;
    }
    inspan_error_t err;
    Inspan__V1__Registered registered;
    fleet_node_t *node = NULL;
    ns_t now = os_now();
    inspan_status_t status = fleet_register(service->fleet, up->register_node, rpc_call_peer(session->call),
                                            session, now, &node, &registered, &err);
    if (status != INSPAN_OK) {
        log_warn("an agent at %s is refused: %s", rpc_call_peer(session->call), err.text);
        end(session, status, err.text);
        return;
    }
    session->node = node;
    Inspan__V1__AgentDown down = INSPAN__V1__AGENT_DOWN__INIT;
    down.kind_case = INSPAN__V1__AGENT_DOWN__KIND_REGISTERED;
    down.registered = &registered;
    if (agents_send(service, node, &down)) fleet_catch_up(service->fleet, node, up->register_node, now);
}

static void take_artifact(service_t *service, session_t *session, const Inspan__V1__Artifact *message)
{
    inspan_error_t err;
    Inspan__V1__ArtifactAnswer answer;
    Inspan__V1__AgentDown down = INSPAN__V1__AGENT_DOWN__INIT;
    fleet_node_t *node = session->node;
    fleet_artifact(service->fleet, node, message, os_now(), &answer, &err);
    down.kind_case = INSPAN__V1__AGENT_DOWN__KIND_ARTIFACT;
    down.artifact = &answer;
    agents_send(service, node, &down);
}

void agents_on_message(void *context, rpc_call_t *call, const ProtobufCMessage *message)
{
    service_t *service = context;
    session_t *session = rpc_call_data(call);
    const Inspan__V1__AgentUp *up = (const Inspan__V1__AgentUp *)message;
    if (session == NULL || session->over) return;
    if (session->node == NULL) {
        take_registration(service, session, up);
        return;
    }
    switch (up->kind_case) {
    case INSPAN__V1__AGENT_UP__KIND_HEARTBEAT:
        fleet_heartbeat(service->fleet, session->node, up->heartbeat, os_now());
        break;
    case INSPAN__V1__AGENT_UP__KIND_WORKER:
        fleet_report(service->fleet, session->node, up->worker, os_now());
        break;
    case INSPAN__V1__AGENT_UP__KIND_NOTE:
        fleet_note(service->fleet, session->node, up->note, os_now());
        break;
    case INSPAN__V1__AGENT_UP__KIND_VERDICT:
        fleet_verdict(service->fleet, session->node, up->verdict, os_now());
        break;
    case INSPAN__V1__AGENT_UP__KIND_ARTIFACT: take_artifact(service, session, up->artifact); break;
    case INSPAN__V1__AGENT_UP__KIND_LEDGER:
        fleet_ledger(service->fleet, session->node, up->ledger, os_now());
        break;
    case INSPAN__V1__AGENT_UP__KIND_REGISTER_NODE: /* once a stream: a new address comes on a new stream */
        end(session, INSPAN_INVALID, "registered already on this stream");
        break;
    default: break; /* what a newer minor version added */
    }
}

void agents_on_half_close(void *context, rpc_call_t *call)
{
    service_t *service = context;
    session_t *session = rpc_call_data(call);
    if (session == NULL || session->over) return;
    fleet_node_t *node = session->node;
    session->node = NULL;
    if (node != NULL) fleet_left(service->fleet, node, os_now());
    end(session, INSPAN_OK, "");
}

void agents_on_closed(void *context, rpc_call_t *call)
{
    service_t *service = context;
    session_t *session = rpc_call_data(call);
    if (session == NULL) return;
    if (session->node != NULL && session->node->session == session)
        fleet_broke(service->fleet, session->node, os_now());
    for (session_t **at = &service->sessions; *at != NULL; at = &(*at)->next)
        if (*at == session) {
            *at = session->next;
            break;
        }
    service->n_sessions--;
    free(session);
}

void agents_tick(service_t *service, ns_t now)
{
    for (session_t *session = service->sessions; session != NULL; session = session->next)
        if (session->node == NULL && !session->over && now - session->opened > REGISTER_WITHIN)
            end(session, INSPAN_TIMEOUT, "no registration within 5 s");
}
