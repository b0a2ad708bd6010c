#include "comm/loopback_world_test.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

typedef struct world {
    uint32_t n;
    inspan_member_t members[LOOPBACK_RANKS_MAX];
    comm_listener_t *listeners[LOOPBACK_RANKS_MAX];
    loopback_rank_fn fn;
    void *context;
} world_t;

typedef struct rank {
    world_t *world;
    uint32_t rank;
    inspan_status_t status;
    inspan_error_t err;
} rank_t;

static void *run_rank(void *argument)
{
    rank_t *self = argument;
    world_t *world = self->world;
    comm_io_t *io = NULL;
    inspan_comm_t *comm = NULL;
    self->status = comm_io_open(&io, &self->err);
    if (self->status != INSPAN_OK) return NULL;
    comm_options_t options = {.io = io,
                              .job = 7,
                              .view = 1,
                              .rank = self->rank,
                              .world = world->n,
                              .members = world->members,
                              .key = "a key for tests",
                              .listener = world->listeners[self->rank],
                              .failure_timeout = 10 * NS_PER_S};
    self->status = comm_open(&options, &comm, &self->err);
    if (self->status == INSPAN_OK) {
        world->fn(comm, self->rank, world->context);
        inspan_comm_close(comm);
    }
    comm_io_close(io);
    return NULL;
}

void loopback_world_run(uint32_t n, loopback_rank_fn fn, void *context)
{
    world_t world = {.n = n, .fn = fn, .context = context};
    rank_t ranks[LOOPBACK_RANKS_MAX] = {{0}};
    pthread_t threads[LOOPBACK_RANKS_MAX];
    assert_in_range(n, 1, LOOPBACK_RANKS_MAX);
    for (uint32_t r = 0; r < n; r++) {
        inspan_member_t *member = &world.members[r];
        if (n > 1) assert_int_equal(comm_listen(0, 0, &world.listeners[r], &member->port, NULL), INSPAN_OK);
        snprintf(member->node, sizeof member->node, "node-%u", r);
        snprintf(member->address, sizeof member->address, "127.0.0.1");
        member->number = r;
        member->incarnation = 100 + r;
    }
    for (uint32_t r = 0; r < n; r++) {
        ranks[r].world = &world;
        ranks[r].rank = r;
        assert_int_equal(pthread_create(&threads[r], NULL, run_rank, &ranks[r]), 0);
    }
    for (uint32_t r = 0; r < n; r++) pthread_join(threads[r], NULL);
    for (uint32_t r = 0; r < n; r++) {
        comm_listener_close(world.listeners[r]);
        if (ranks[r].status != INSPAN_OK) fail_msg("rank %u: %s", r, ranks[r].err.text);
    }
}
