/* Lines of workers for those who watch the job. */
#include <stdio.h>

#include "manager/jobs/fleet_internal.h"

#define NOTE_MAX 480

void fleet_note(fleet_t *fleet, fleet_node_t *node, const Inspan__V1__Note *message, ns_t now)
{
    char text[NOTE_MAX + 128];
    liveness_heard(&node->life, now);
    fleet_job_t *job = fleet_job(fleet, message->job_id);
    if (job == NULL || message->rank >= job->control.world ||
        job->control.ranks[message->rank].node != node->handle)
        return;
    snprintf(text, sizeof text, "rank %u (%.63s): %.*s", message->rank, node->name, NOTE_MAX, message->text);
    fleet_event(fleet, job->control.id, 0, text);
    fleet->ports.job_changed(fleet->ports.context, job, text, false);
}
