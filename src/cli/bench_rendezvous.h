/*
 * How the ranks of `bench` find each other without a cluster: all connect to one place, say who they are, and
 * get the members and a key for the data plane. For a trusted network: the key crosses it in the clear.
 *
 *   JOIN, 28 bytes                 ANSWER, 44 bytes and, if OK, 74 for each rank
 *   OFFSET SIZE MEANING            OFFSET SIZE MEANING
 *        0    4 magic "ISPB"            0    4 magic
 *        4    4 version                 4    4 version
 *        8    4 rank                    8    4 status
 *       12    4 world                  12   32 key
 *       16    4 data port              44    . per rank: 64 address, 2 data port, 8 incarnation
 *       20    8 incarnation
 */
#ifndef CLI_BENCH_RENDEZVOUS_H
#define CLI_BENCH_RENDEZVOUS_H

#include "base/units.h"
#include "comm/comm.h"

#define BENCH_WORLD_MAX 64

typedef struct bench_group {
    uint32_t rank, world;
    inspan_member_t members[BENCH_WORLD_MAX]; /* before: only the own port and incarnation are set */
    uint8_t key[COMM_KEY_BYTES];
} bench_group_t;

/* Called every 100 ms while others are awaited: anything but OK ends the wait with that status and text. */
typedef inspan_status_t (*bench_look_fn)(void *context, inspan_error_t *err);

/*
 * Be the place: listener is a listening socket. own: this process is a rank too (group->rank), else it only
 * serves (own false, for --local). look may be NULL. Blocks until all have joined and been answered, or
 * `timeout`: TIMEOUT names who is missing.
 */
inspan_status_t bench_serve(int listener, bench_group_t *group, bool own, ns_t timeout, bench_look_fn look,
                            void *context, inspan_error_t *err);

/* Join at host:port, tried again until `timeout`. REFUSED: wrong world, or the rank is taken. TIMEOUT,
 * INVALID. */
inspan_status_t bench_join(const char *host, uint16_t port, bench_group_t *group, ns_t timeout,
                           inspan_error_t *err);

#endif
