#include "comm/transport/tcp_world_test.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "platform/os/os_time.h"

const char *tcp_test_host = "127.0.0.1";

typedef struct rank_thread {
    world_t *world;
    uint32_t rank;
    void (*fn)(world_t *, uint32_t, void *);
    void *context;
} rank_thread_t;

static void *rank_main(void *argument)
{
    rank_thread_t *self = argument;
    self->fn(self->world, self->rank, self->context);
    return NULL;
}

void tcp_world_each(world_t *world, void (*fn)(world_t *, uint32_t, void *), void *context)
{
    pthread_t threads[16];
    rank_thread_t ranks[16];
    for (uint32_t r = 0; r < world->n; r++) {
        ranks[r] = (rank_thread_t){world, r, fn, context};
        assert_int_equal(pthread_create(&threads[r], NULL, rank_main, &ranks[r]), 0);
    }
    for (uint32_t r = 0; r < world->n; r++) pthread_join(threads[r], NULL);
}

inspan_status_t tcp_world_wait(world_t *world, uint32_t rank, inspan_op_t *op)
{
    (void)world, (void)rank;
    return inspan_op_wait(op, PATIENCE);
}

void tcp_net_listen(tcp_net_t *net, uint32_t n)
{
    memset(net, 0, sizeof *net);
    for (uint32_t r = 0; r < n; r++) {
        inspan_member_t *member = &net->members[r];
        assert_int_equal(comm_io_open(&net->ios[r], NULL), INSPAN_OK);
        assert_int_equal(comm_listen(0, 0, &net->listeners[r], &member->port, NULL), INSPAN_OK);
        snprintf(member->node, sizeof member->node, "node-%u", r);
        snprintf(member->address, sizeof member->address, "%s", tcp_test_host);
        member->number = r;
        member->incarnation = 1000 + r;
    }
}

void tcp_net_close(tcp_net_t *net, uint32_t n)
{
    for (uint32_t r = 0; r < n; r++) {
        comm_io_close(net->ios[r]);
        comm_listener_close(net->listeners[r]);
    }
}

void tcp_open_rank(world_t *world, uint32_t rank, void *context)
{
    tcp_open_all_t *all = context;
    const ns_t begin = os_now();
    all->status[rank] = comm_open(&all->options[rank], &world->comms[rank], &all->errors[rank]);
    all->took[rank] = os_now() - begin;
}

void tcp_fill_options(tcp_open_all_t *all, tcp_net_t *net, uint32_t n, const comm_options_t *options)
{
    memset(all, 0, sizeof *all);
    all->net = net;
    for (uint32_t r = 0; r < n; r++) {
        all->options[r] = *options;
        all->options[r].io = net->ios[r];
        all->options[r].listener = n > 1 ? net->listeners[r] : NULL;
        all->options[r].members = net->members;
        all->options[r].rank = r;
        all->options[r].cause = &all->causes[r];
        all->options[r].world = n;
        all->options[r].job = 5;
        all->options[r].view = 3;
        memset(all->options[r].key, 0x17, COMM_KEY_BYTES);
    }
}

void tcp_world_open(world_t *world, uint32_t n, const comm_options_t *options)
{
    tcp_net_t *net = calloc(1, sizeof *net);
    tcp_net_listen(net, n);
    *world = (world_t){.n = n, .self = net, .wait = tcp_world_wait, .each = tcp_world_each};
    tcp_open_all_t all;
    tcp_fill_options(&all, net, n, options);
    tcp_world_each(world, tcp_open_rank, &all);
    for (uint32_t r = 0; r < n; r++) {
        if (all.status[r] != INSPAN_OK) print_message("rank %u: %s\n", r, all.errors[r].text);
        assert_int_equal(all.status[r], INSPAN_OK);
    }
}

void tcp_close_rank(world_t *world, uint32_t rank, void *context)
{
    (void)context;
    inspan_comm_close(world->comms[rank]);
}

void tcp_world_close(world_t *world)
{
    tcp_world_each(world, tcp_close_rank, NULL);
    tcp_net_close(world->self, world->n);
    free(world->self);
}
