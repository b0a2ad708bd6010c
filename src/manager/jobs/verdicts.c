/* What workers say of speeds: a line for who watches the job, the newest kept with it; members that it does
 * without. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "manager/jobs/convert.h"
#include "manager/jobs/fleet_internal.h"
#include "platform/os/os_time.h"

#define WINDOW       (10 * NS_PER_S)
#define IN_WINDOW    (2 * CONTROL_ELASTIC_MAX)
#define STALE_STEPS  200 /* a prediction so old is not acted upon */
#define EVIDENCE_MAX 201
#define TEXT_MAX     600

/* ---- May it be? ---- */

static bool is_member(const fleet_job_t *job, uint32_t rank)
{
    return rank < job->control.world && control_job_member(&job->control, rank);
}

/* Of oneself, or of another by one who works beside it. */
static bool is_acceptable(const fleet_job_t *job, const fleet_node_t *node,
                          const Inspan__V1__Verdict *message)
{
    if (job == NULL || control_job_over(&job->control)) return false;
    if (message->said_by >= job->control.world || message->rank >= job->control.world ||
        job->control.ranks[message->said_by].node != node->handle)
        return false;
    if (message->said_by != message->rank &&
        !(is_member(job, message->said_by) && is_member(job, message->rank)))
        return false;
    return message->factor > 0 && message->factor <= 1e9;
}

/* Its agent says it again on each new stream. */
static bool is_known(const fleet_job_t *job, const Inspan__V1__Verdict *message)
{
    for (size_t i = 0; job->said != NULL && i < job->said->n_verdicts; i++) {
        const Inspan__V1__Verdict *old = job->said->verdicts[i];
        if (old->rank == message->rank && old->said_by == message->said_by && old->step == message->step &&
            old->started_step == message->started_step)
            return true;
    }
    return false;
}

static bool are_too_many(fleet_job_t *job, ns_t now)
{
    if (now - job->verdicts_since >= WINDOW) {
        job->verdicts_since = now;
        job->n_verdicts = 0;
    }
    if (++job->n_verdicts == IN_WINDOW)
        log_warn("job %llu: its workers say more about their speed than can be kept",
                 (unsigned long long)job->control.id);
    return job->n_verdicts >= IN_WINDOW;
}

/* ---- In words ---- */

static const char *cause_text(Inspan__V1__VerdictCause cause)
{
    static const char *const texts[] = {"cause unknown",
                                        "its CPU quota changed",
                                        "the clock speed of its CPU changed",
                                        "it is hot",
                                        "it is on battery",
                                        "its owner uses it",
                                        "other programs run there",
                                        "it swaps",
                                        "its link",
                                        "its input"};
    return (size_t)cause < sizeof texts / sizeof texts[0] ? texts[cause] : texts[0];
}

static bool changes_speed(const Inspan__V1__Verdict *verdict)
{
    return verdict->factor < 0.995 || (verdict->factor > 1.005 && !verdict->leave);
}

static void append(char *text, const char *more)
{
    size_t used = strlen(text);
    snprintf(text + used, TEXT_MAX - used, "%s", more);
}

static void describe(const Inspan__V1__Verdict *verdict, bool leaves, char text[TEXT_MAX])
{
    char part[160] = "";
    const bool slower = changes_speed(verdict);
    snprintf(text, TEXT_MAX, "rank %u (%.63s)", verdict->rank, verdict->node);
    if (leaves && !slower) {
        append(text, " is let go, the job is predicted to be faster without it: ");
        append(text, verdict->evidence[0] != '\0' ? verdict->evidence : cause_text(verdict->cause));
        return;
    }
    if (slower)
        snprintf(part, sizeof part, " %s %.2fx%s since step %llu", verdict->factor < 1 ? "slowed to" : "is",
                 verdict->factor, verdict->factor < 1 ? "" : " as fast as before",
                 (unsigned long long)verdict->started_step);
    append(text, part);
    append(text, ": ");
    append(text, verdict->evidence[0] != '\0' ? verdict->evidence : cause_text(verdict->cause));
    if (verdict->share_before != verdict->share_after) {
        snprintf(part, sizeof part, "; its share %s from %llu to %llu samples",
                 verdict->share_after < verdict->share_before ? "shrinks" : "grows",
                 (unsigned long long)verdict->share_before, (unsigned long long)verdict->share_after);
        append(text, part);
    }
    if (leaves) append(text, "; it is let go: the job is predicted to be faster without it");
}

/* ---- Kept ---- */

typedef struct left_out_message {
    Inspan__V1__LeftOut message;
    char node_id[64];
} left_out_message_t;

static void fill_left_out(const fleet_t *fleet, const control_left_out_t *from, ns_t now,
                          left_out_message_t *to)
{
    const fleet_node_t *node = fleet_node_by_handle(fleet, from->node);
    snprintf(to->node_id, sizeof to->node_id, "%s", node != NULL ? node->node_id : "");
    inspan__v1__left_out__init(&to->message);
    to->message.node = (char *)from->node_name;
    to->message.node_id = to->node_id;
    to->message.reason = (char *)from->reason;
    to->message.times = from->times;
    to->message.step = from->step;
    to->message.power = from->power;
    to->message.until_wall_ns = os_wall_now() + (from->until - now);
}

typedef struct said_parts { /* too large for a stack frame */
    Inspan__V1__Verdict *verdicts[FLEET_VERDICTS];
    left_out_message_t left_out[CONTROL_LEFT_OUT_MAX];
    Inspan__V1__LeftOut *pointers[CONTROL_LEFT_OUT_MAX];
} said_parts_t;

/* In memory, and in the registry as far as it takes it: what is lost there is a line for people. */
static void keep(fleet_t *fleet, fleet_job_t *job, Inspan__V1__Verdict *verdict, ns_t now)
{
    said_parts_t *parts = calloc(1, sizeof *parts);
    if (parts == NULL) return;
    Inspan__V1__JobInfo said = INSPAN__V1__JOB_INFO__INIT;
    size_t old = job->said != NULL ? job->said->n_verdicts : 0;
    for (size_t i = old == FLEET_VERDICTS; i < old; i++)
        parts->verdicts[said.n_verdicts++] = job->said->verdicts[i];
    parts->verdicts[said.n_verdicts++] = verdict;
    said.verdicts = parts->verdicts;
    for (size_t i = 0; i < job->control.left_out.n && i < CONTROL_LEFT_OUT_MAX; i++) {
        fill_left_out(fleet, &job->control.left_out.items[i], now, &parts->left_out[i]);
        parts->pointers[said.n_left_out++] = &parts->left_out[i].message;
    }
    said.left_out = parts->pointers;
    convert_packed_t packed = convert_pack(&said.base);
    Inspan__V1__JobInfo *fresh =
        packed.data != NULL ? inspan__v1__job_info__unpack(NULL, packed.bytes, packed.data) : NULL;
    if (fresh != NULL) {
        if (job->said != NULL) inspan__v1__job_info__free_unpacked(job->said, NULL);
        job->said = fresh;
        inspan_error_t err;
        registry_blob_t blob = {packed.data, packed.bytes};
        if (registry_put_verdicts(fleet->registry, job->control.id, blob, &err) != INSPAN_OK)
            log_warn("job %llu: a verdict is not stored: %s", (unsigned long long)job->control.id, err.text);
    }
    free(packed.data);
    free(parts);
}

void fleet_recall_left_out(const fleet_t *fleet, fleet_job_t *job, ns_t now)
{
    static const ns_t longest = 3600 * NS_PER_S; /* a clock that was set back makes it no longer */
    for (size_t i = 0; job->said != NULL && i < job->said->n_left_out; i++) {
        const Inspan__V1__LeftOut *from = job->said->left_out[i];
        control_left_out_t entry = {.times = from->times, .step = from->step, .power = from->power};
        for (uint32_t k = 0; k < fleet_n_nodes(fleet); k++)
            if (strcmp(fleet_node_at(fleet, k)->node_id, from->node_id) == 0)
                entry.node = fleet_node_at(fleet, k)->handle;
        if (entry.node == 0) continue;
        ns_t left = from->until_wall_ns - os_wall_now();
        entry.until = now + (left < longest ? left : longest);
        snprintf(entry.node_name, sizeof entry.node_name, "%s", from->node);
        snprintf(entry.reason, sizeof entry.reason, "%s", from->reason);
        if (!control_job_keep_out(&job->control, &entry)) return;
    }
}

void fleet_verdict(fleet_t *fleet, fleet_node_t *node, const Inspan__V1__Verdict *message, ns_t now)
{
    char evidence[EVIDENCE_MAX], text[TEXT_MAX];
    liveness_heard(&node->life, now);
    fleet_job_t *job = fleet_job(fleet, message->job_id);
    if (!is_acceptable(job, node, message) || is_known(job, message) || are_too_many(job, now)) return;
    control_job_t *control = &job->control;
    convert_text(message->evidence, evidence, sizeof evidence);
    const bool fresh = message->step + STALE_STEPS >= control->step;
    const bool leaves =
        message->leave && fresh && control_job_leave_out(control, message->rank, evidence, now);
    for (size_t i = 0; i < control->left_out.n && leaves; i++) {
        control_left_out_t *entry = &control->left_out.items[i];
        const fleet_node_t *its = fleet_node_by_handle(fleet, entry->node);
        if (entry->node == control->ranks[message->rank].node && its != NULL) entry->power = fleet_power(its);
    }
    if (!leaves && !changes_speed(message)) return; /* it must stay: nothing that people can do */
    Inspan__V1__Verdict verdict = *message;
    verdict.base = (ProtobufCMessage)PROTOBUF_C_MESSAGE_INIT(&inspan__v1__verdict__descriptor);
    verdict.leave = leaves;
    verdict.evidence = evidence;
    verdict.node = control->ranks[message->rank].node_name;
    verdict.wall_ns = os_wall_now();
    describe(&verdict, leaves, text);
    verdict.text = text;
    keep(fleet, job, &verdict, now);
    log_info("job %llu: %s", (unsigned long long)control->id, text);
    fleet_event(fleet, control->id, 0, text);
    fleet->ports.job_changed(fleet->ports.context, job, text, false);
    fleet_act(fleet, job, now);
}
