/* Members that an elastic job is better off without: let go like leavers, and not taken again for a while. */
#include <stdio.h>
#include <string.h>

#include "core/control/job_internal.h"

#define FIRST_PAUSE   (60 * NS_PER_S)
#define LONGEST_PAUSE (3600 * NS_PER_S)
#define FORGIVEN      (600 * NS_PER_S) /* so long after its pause it counts as a new one */

static control_left_out_t *find(const control_job_t *job, uint64_t node)
{
    for (size_t i = 0; i < job->left_out.n; i++)
        if (job->left_out.items[i].node == node) return &job->left_out.items[i];
    return NULL;
}

/* One that would be let go with it, or in its place: the prediction was made with all the others there. */
static bool somebody_leaves(const control_job_t *job)
{
    for (uint32_t i = 0; i < job->members.n; i++) {
        const control_rank_t *rank = &job->ranks[job->members.members[i]];
        if (rank->leaving && !control_is_gone(rank)) return true;
    }
    return false;
}

static bool can_do_without(const control_job_t *job, uint32_t r)
{
    uint32_t left = 0;
    bool full = false;
    for (uint32_t i = 0; i < job->members.n; i++) {
        const control_rank_t *rank = &job->ranks[job->members.members[i]];
        if (job->members.members[i] == r || control_is_gone(rank)) continue;
        left++;
        full = full || rank->full;
    }
    return full && left >= job->min_nodes;
}

/* Near the end the new view costs more than it gains. */
static bool is_settled(const control_job_t *job)
{
    if (!job->elastic || job->state != CONTROL_RUNNING || job->has_result || control_any_done(job))
        return false;
    if (job->steps > 0 && job->step + CONTROL_STEPS_NEAR > job->steps) return false;
    return !job->changed && !job->retry && !job->fence && !job->waiting;
}

static ns_t pause_of(uint32_t times)
{
    ns_t pause = FIRST_PAUSE;
    for (uint32_t i = 1; i < times && pause < LONGEST_PAUSE; i++) pause *= 2;
    return pause < LONGEST_PAUSE ? pause : LONGEST_PAUSE;
}

bool control_job_keep_out(control_job_t *job, const control_left_out_t *entry)
{
    control_left_out_t *known = find(job, entry->node), added = *entry;
    if (added.since == 0) added.since = added.until - pause_of(added.times);
    if (known != NULL) {
        *known = added;
        return true;
    }
    if (job->left_out.n == CONTROL_LEFT_OUT_MAX) { /* the oldest goes */
        job->left_out.n--;
        memmove(&job->left_out.items[0], &job->left_out.items[1],
                job->left_out.n * sizeof job->left_out.items[0]);
    }
    return VEC_PUSH(&job->left_out, added);
}

static control_left_out_t next_entry(const control_job_t *job, const control_rank_t *rank, const char *reason,
                                     ns_t now)
{
    const control_left_out_t *known = find(job, rank->node);
    control_left_out_t entry = {.node = rank->node, .times = 1, .step = job->step};
    if (known != NULL && now < known->until + FORGIVEN) entry.times = known->times + 1;
    entry.since = now;
    entry.until = now + pause_of(entry.times);
    memcpy(entry.node_name, rank->node_name, sizeof entry.node_name);
    snprintf(entry.reason, sizeof entry.reason, "%s", reason);
    return entry;
}

bool control_job_leave_out(control_job_t *job, uint32_t r, const char *reason, ns_t now)
{
    if (!is_settled(job) || r >= job->world || !control_job_member(job, r)) return false;
    control_rank_t *rank = &job->ranks[r];
    if (control_is_gone(rank) || rank->view != job->view || !rank->attached) return false;
    if (somebody_leaves(job) || !can_do_without(job, r)) return false;
    control_left_out_t entry = next_entry(job, rank, reason, now);
    if (!control_job_keep_out(job, &entry)) return false;
    rank->leaving = true;
    snprintf(rank->why, sizeof rank->why, "the job is predicted to be faster without it%s%.100s",
             reason[0] != '\0' ? ": " : "", reason);
    control_push(job, CONTROL_ASK_TO_LEAVE, r, false);
    return true;
}

void control_job_take_back(control_job_t *job, uint64_t node)
{
    control_left_out_t *entry = find(job, node);
    ns_t until = entry != NULL ? entry->since + pause_of(entry->times) / 6 : 0;
    if (entry != NULL && until < entry->until) entry->until = until;
}

bool control_job_avoids(const control_job_t *job, uint64_t node, ns_t now)
{
    const control_left_out_t *entry = find(job, node);
    return entry != NULL && now < entry->until && control_job_active(job) >= job->min_nodes;
}
