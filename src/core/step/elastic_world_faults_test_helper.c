/* The manager of the random cluster, and what goes wrong in it. */
#include <stdlib.h>

#include "core/step/elastic_world_parts_test.h"

/* ---- the manager ---- */

proc_t *world_start_proc(world_t *world, bool newcomer)
{
    proc_t *p = &world->procs[world->n_procs];
    elastic_config_t config = world->config;
    config.number = world->n_procs++;
    config.newcomer = newcomer;
    p->world = world;
    p->number = config.number;
    p->up = true;
    p->layout = world_layout(world, LAYOUT);
    if (elastic_open(&config, world_perform, p, &p->e) != INSPAN_OK) abort();
    for (uint32_t c = 0; c < BUCKETS; c++) p->weights[c] = newcomer ? 0xdead : world->weights[0][c];
    return p;
}

void world_issue(world_t *world, const view_t *members)
{
    if (members->n == 0 || world->view + 1 >= VIEWS) return;
    world->views[++world->view] = *members;
    world->result->views++;
    TRACE(world, "manager: view %" PRIu64 ", %u members\n", world->view, members->n);
}

static view_t without(const view_t *view, uint32_t gone)
{
    view_t left = {0};
    for (uint32_t i = 0; i < view->n; i++)
        if (!(gone >> view->numbers[i] & 1)) left.numbers[left.n++] = view->numbers[i];
    return left;
}

/* Views for the dead, the leavers and broken communicators. */
bool world_manage(world_t *world)
{
    const view_t *now = &world->views[world->view];
    uint32_t gone = 0;
    bool broken = false;
    for (uint32_t i = 0; i < now->n; i++) {
        proc_t *p = &world->procs[now->numbers[i]];
        if (!p->up || (p->left == world->view && below(world, 2))) gone |= 1u << p->number;
        if (gone && below(world, 3) == 0) break; /* one after the other */
        broken =
            broken || (p->up && elastic_phase(p->e) == ELASTIC_BROKEN && elastic_view(p->e) == world->view);
    }
    if (!gone && !broken) return false;
    view_t next = without(now, gone);
    if (next.n == 0) return false;
    world_issue(world, &next);
    return true;
}

/* ---- faults ---- */

static void lose_tail(world_t *world, uint32_t from)
{
    for (uint32_t to = 0; to < world->n_procs; to++) {
        uint32_t keep = below(world, 4), seen = 0, out = 0;
        for (uint32_t i = 0; i < world->n_messages; i++) {
            const message_t *m = &world->messages[i];
            if (m->from == from && m->to == to && ++seen > keep) continue;
            world->messages[out++] = *m;
        }
        world->n_messages = out;
    }
}

bool world_fault(world_t *world)
{
    const view_t *now = &world->views[world->view];
    proc_t *p = &world->procs[now->numbers[below(world, now->n)]];
    bool room = world->view + 8 < VIEWS;
    switch (below(world, 6)) {
    case 0:
        if (world->crashes == 0 || !p->up) return false;
        world->crashes--;
        p->up = false;
        TRACE(world, "rank %u crashes\n", p->number);
        lose_tail(world, p->number);
        return true;
    case 1: /* between two actions to come */
        if (world->crashes == 0 || !p->up || p->fuse) return false;
        world->crashes--;
        p->fuse = 1 + below(world, 8);
        return true;
    case 2:
        if (world->zombies == 0 || !p->up || now->n < 2 || !room) return false;
        world->zombies--;
        TRACE(world, "rank %u is wrongly declared dead\n", p->number);
        view_t left = without(now, 1u << p->number);
        world_issue(world, &left);
        return true;
    case 3:
        if (world->broken == 0 || !p->up || elastic_view(p->e) == 0 || !room) return false;
        world->broken--;
        TRACE(world, "rank %u: view %" PRIu64 " is broken\n", p->number, elastic_view(p->e));
        world_feed(p, (elastic_event_t){.type = ELASTIC_EV_BROKEN, .view = elastic_view(p->e)});
        return true;
    case 4: {
        if (world->newcomers == 0 || world->n_procs == PROCS || !room) return false;
        view_t more = *now;
        do {
            world->newcomers--;
            more.numbers[more.n++] = world_start_proc(world, true)->number;
        } while (world->newcomers && world->n_procs < PROCS && below(world, 2));
        world_issue(world, &more);
        return true;
    }
    default:
        if (world->leavers == 0 || !p->up || !room) return false;
        world->leavers--;
        TRACE(world, "rank %u wants to leave\n", p->number);
        world_feed(p, (elastic_event_t){.type = ELASTIC_EV_LEAVE});
        return true;
    }
}
