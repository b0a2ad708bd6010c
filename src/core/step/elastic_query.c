/* The questions that a shell may ask at any time, also inside an action. */
#include "core/step/elastic_internal.h"

void elastic_grant(const elastic_t *e, uint32_t most, uint32_t *first, uint32_t *n, bool *last)
{
    *first = *n = 0;
    *last = false;
    bool open = e->phase == ELASTIC_RUN || (PLANTED(e, LATEDONE) && e->phase == ELASTIC_RECONCILE);
    if (!open || most == 0) return;
    elastic_set_t left = set_minus(e->granted, e->computed);
    *last = set_empty(left) && e->sealed;
    if (set_empty(left)) return;
    *first = set_lowest(left);
    while (*n < most && elastic_has(&left, *first + *n)) (*n)++;
    *last = set_count(left) == *n && e->sealed;
}

bool elastic_sealed(const elastic_t *e)
{
    return e->phase == ELASTIC_RUN && e->sealed;
}

elastic_phase_t elastic_phase(const elastic_t *e)
{
    return e->phase;
}

elastic_role_t elastic_role(const elastic_t *e)
{
    return e->role;
}

bool elastic_is_leader(const elastic_t *e)
{
    return e->view != 0 && e->index == LEADER;
}

uint64_t elastic_view(const elastic_t *e)
{
    return e->view;
}

uint64_t elastic_step(const elastic_t *e)
{
    return e->step;
}

bool elastic_light(const elastic_t *e)
{
    return elastic_light_step(e, e->step);
}

uint32_t elastic_members(const elastic_t *e, const uint32_t **numbers, uint32_t *index)
{
    *numbers = e->numbers;
    *index = e->index;
    return e->n;
}

uint64_t elastic_full_set(const elastic_t *e)
{
    return e->full;
}

uint32_t elastic_owner(const elastic_t *e, uint32_t lease)
{
    if (lease >= e->config.leases || e->owner[lease] == NOBODY) return ELASTIC_MEMBERS_MAX;
    return e->owner[lease] & ~RESERVED;
}

elastic_pace_t elastic_pace_of(const elastic_t *e, uint32_t member)
{
    if (member == e->index) return e->pace;
    return member < e->n ? e->paces[member] : ELASTIC_PACE_UNKNOWN;
}

uint64_t elastic_stolen(const elastic_t *e)
{
    return e->stolen;
}

elastic_set_t elastic_computed(const elastic_t *e)
{
    return e->computed;
}

elastic_set_t elastic_contribution(const elastic_t *e)
{
    return set_or(e->computed, e->granted);
}

elastic_set_t elastic_dropped(const elastic_t *e)
{
    return e->dropped;
}

elastic_set_t elastic_expected(const elastic_t *e)
{
    return set_minus(set_first(e->config.leases), e->dropped);
}

bool elastic_held(const elastic_t *e, uint32_t bucket, uint64_t *tag)
{
    if (!elastic_has(&e->held, bucket)) return false;
    if (tag) *tag = e->tag[bucket];
    return true;
}

bool elastic_voted(const elastic_t *e)
{
    return e->voted;
}

/* N1: a member that is not full applies the update of step s to chunks of the version before s alone. */
bool elastic_applies(const elastic_t *e, uint32_t chunk)
{
    if (chunk >= e->config.chunks || elastic_light_step(e, e->step)) return false;
    if (PLANTED(e, BLINDCHUNK) && e->chunk[chunk] != 0) return true;
    return elastic_chunk(e, chunk);
}

bool elastic_chunk(const elastic_t *e, uint32_t chunk)
{
    if (chunk >= e->config.chunks) return false;
    if (e->role == ELASTIC_FULL || e->role == ELASTIC_LEAVING) return true;
    if (PLANTED(e, BLINDCHUNK)) return e->chunk[chunk] != 0;
    return e->chunk[chunk] == e->step + 1;
}

bool elastic_complete(const elastic_t *e)
{
    for (uint32_t i = 0; i < e->config.chunks; i++)
        if (!elastic_chunk(e, i)) return false;
    return e->role != ELASTIC_FRESH;
}

void elastic_samples(uint64_t batch, uint32_t leases, uint32_t lease, uint64_t *first, uint64_t *n)
{
    *first = (uint64_t)((unsigned __int128)batch * lease / leases);
    *n = (uint64_t)((unsigned __int128)batch * (lease + 1) / leases) - *first;
}

const char *elastic_phase_name(elastic_phase_t phase)
{
    static const char *const names[] = {"idle", "reconcile", "run", "broken", "done", "failed"};
    return (unsigned)phase < sizeof names / sizeof names[0] ? names[phase] : "unknown";
}

const char *elastic_role_name(elastic_role_t role)
{
    static const char *const names[] = {"fresh", "listener", "full", "leaving"};
    return (unsigned)role < sizeof names / sizeof names[0] ? names[role] : "unknown";
}

const char *elastic_action_name(elastic_action_type_t type)
{
    static const char *const names[] = {"send", "work",       "more",       "reduce", "pass",
                                        "take", "give chunk", "take chunk", "layout", "commit",
                                        "full", "left",       "stuck",      "end"};
    return (unsigned)type < sizeof names / sizeof names[0] ? names[type] : "unknown";
}

bool elastic_light_step(const elastic_t *e, uint64_t step)
{
    return step >= e->config.steps;
}

uint64_t elastic_end(const elastic_t *e)
{
    return e->config.steps + 2;
}

elastic_set_t elastic_buckets_of(const elastic_t *e, uint64_t step, uint32_t buckets)
{
    elastic_set_t all = set_first(buckets);
    return elastic_light_step(e, step) ? set_minus(all, set_first(buckets - 1)) : all;
}

elastic_layout_t elastic_layout_of_step(const elastic_t *e)
{
    return e->layout;
}

bool elastic_same_layout(elastic_layout_t a, elastic_layout_t b)
{
    return a.hash == b.hash && a.buckets == b.buckets;
}

bool elastic_knows(const elastic_t *e, elastic_layout_t layout)
{
    bool known = elastic_same_layout(layout, e->layout);
    for (int i = 0; i < ELASTIC_LAYOUTS_KNOWN; i++) known |= elastic_same_layout(layout, e->known[i]);
    return known;
}

void elastic_know_layout(elastic_t *e, const elastic_layout_t *layout)
{
    int at = 0;
    if (layout->buckets == 0 || layout->buckets > ELASTIC_BUCKETS_MAX) return;
    while (at + 1 < ELASTIC_LAYOUTS_KNOWN && !elastic_same_layout(*layout, e->known[at])) at++;
    for (; at > 0; at--) e->known[at] = e->known[at - 1];
    e->known[0] = *layout;
}

void elastic_set_layout(elastic_t *e, uint64_t hash)
{
    for (int i = 0; i < ELASTIC_LAYOUTS_KNOWN; i++)
        if (e->known[i].hash == hash && e->known[i].buckets > 0) e->next_layout = e->known[i];
}

bool elastic_holds_all(const elastic_t *e)
{
    return set_empty(set_minus(elastic_buckets_of(e, e->step, e->layout.buckets), e->held));
}

/* Who wants to leave needs no copy of anything. */
elastic_set_t elastic_chunks_here(const elastic_t *e)
{
    elastic_set_t set = EMPTY_SET;
    for (uint32_t i = 0; i < e->config.chunks; i++)
        if (e->wants_leave || elastic_chunk(e, i)) set_add(&set, i);
    return set;
}

const inspan_error_t *elastic_error(const elastic_t *e)
{
    return &e->error;
}

void elastic_hint(elastic_t *e, uint64_t hash)
{
    e->hint = hash;
}

elastic_pace_t elastic_sound_pace(const elastic_pace_t *pace)
{
    elastic_pace_t sound = *pace;
    if (sound.lease_ns > ELASTIC_PACE_NS_MAX) sound.lease_ns = ELASTIC_PACE_NS_MAX;
    if (sound.step_ns > ELASTIC_PACE_NS_MAX) sound.step_ns = ELASTIC_PACE_NS_MAX;
    if (sound.run > ELASTIC_LEASES_MAX) sound.run = ELASTIC_LEASES_MAX;
    if (sound.last > ELASTIC_LEASES_MAX) sound.last = ELASTIC_LEASES_MAX;
    if (sound.most > ELASTIC_LEASES_MAX) sound.most = ELASTIC_LEASES_MAX;
    return sound;
}

void elastic_set_pace(elastic_t *e, const elastic_pace_t *pace)
{
    e->pace = elastic_sound_pace(pace);
}

void elastic_set_shares(elastic_t *e, const uint8_t *shares)
{
    if (e->index == LEADER) memcpy(e->next_shares, shares, e->n);
}

void elastic_set_wire(elastic_t *e, uint8_t wire)
{
    if (e->index == LEADER && wire < e->config.wires) e->next_wire = wire;
}

uint8_t elastic_wire(const elastic_t *e)
{
    return e->wire;
}

const uint8_t *elastic_shares(const elastic_t *e)
{
    return e->shares;
}
