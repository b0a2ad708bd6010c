/*
 * Whose share of the sums is how large. Each member tells the leader what its traffic has shown of its links,
 * when that has changed; the leader makes shares of it, and the next COMMIT carries them
 * (elastic_set_shares): from the step that this opens on, all reduce by them. A member behind a slow link
 * makes no sums, so its link carries the gradients once each way. Every new view begins with equal shares and
 * an empty table.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "comm/comm.h"
#include "platform/os/os_time.h"
#include "worker/driver_internal.h"

#define MESSAGE_TYPE 0x736b6e6cu /* "lnks": none of the step machine's, which are small */
#define TOLD_AT_MOST NS_PER_S    /* once in that time */

typedef struct links_message {
    uint32_t type, members;
    uint64_t view;
    float row[2 * ELASTIC_MEMBERS_MAX]; /* 2 members of them */
} links_message_t;

_Static_assert(sizeof(links_message_t) <= COMM_MESSAGE_MAX && ELASTIC_MEMBERS_MAX <= COMM_LINKS_MAX,
               "a row of links fits");

static size_t message_bytes(uint32_t members)
{
    return offsetof(links_message_t, row) + 2 * members * sizeof(float);
}

static float *row_of(float *table, uint32_t world, uint32_t rank)
{
    return table + (size_t)rank * 2 * world;
}

void driver_links_view(inspan_elastic_t *e)
{
    memset(&e->links, 0, sizeof e->links);
}

/* A hint like a pace: what cannot be is not believed, and breaks nothing. */
static bool plausible(const float *row, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (!(row[i] > -1e12f && row[i] < 1e12f)) return false;
    return true;
}

bool driver_links_message(inspan_elastic_t *e, uint32_t from, const void *data, size_t bytes)
{
    links_message_t message;
    if (bytes < offsetof(links_message_t, row) || bytes > sizeof message) return false;
    memcpy(&message, data, bytes);
    if (message.type != MESSAGE_TYPE) return false;
    const uint32_t n = 2 * e->world;
    if (message.members == e->world && message.view == e->view && bytes == message_bytes(e->world) &&
        plausible(message.row, n)) {
        memcpy(row_of(e->links.table, e->world, from), message.row, n * sizeof(float));
        e->links.news = true;
    }
    return true;
}

bool driver_links_ports(const inspan_elastic_t *e, double *up, double *down)
{
    return comm_ports(e->links.table, e->world, up, down);
}

/* The leader: shares of what all have told. */
static void share_out(inspan_elastic_t *e)
{
    if (!e->links.news) return;
    e->links.news = false;
    if (comm_shares_by_links(e->links.table, e->world, e->links.chosen))
        elastic_set_shares(e->machine, e->links.chosen);
}

void driver_links_tell(inspan_elastic_t *e)
{
    links_message_t message = {.type = MESSAGE_TYPE, .members = e->world, .view = e->view};
    const uint32_t n = 2 * e->world;
    const ns_t now = os_now();
    if (e->comm == NULL || e->world < 2) return;
    comm_links(e->comm, message.row);
    pthread_mutex_lock(&e->lock);
    if (now - e->links.told_at >= TOLD_AT_MOST &&
        memcmp(message.row, e->links.told, n * sizeof(float)) != 0) {
        e->links.told_at = now;
        memcpy(e->links.told, message.row, n * sizeof(float));
        if (e->rank == 0)
            driver_links_message(e, 0, &message, message_bytes(e->world));
        else
            comm_message(e->comm, 0, &message, message_bytes(e->world)); /* not sent: the next one */
    }
    if (e->rank == 0) share_out(e);
    pthread_mutex_unlock(&e->lock);
}

void driver_links_apply(inspan_elastic_t *e)
{
    uint8_t shares[ELASTIC_MEMBERS_MAX];
    pthread_mutex_lock(&e->lock);
    memcpy(shares, elastic_shares(e->machine), e->world);
    const uint64_t step = elastic_step(e->machine);
    const bool changed = memcmp(shares, e->links.applied, e->world) != 0;
    memcpy(e->links.applied, shares, e->world);
    pthread_mutex_unlock(&e->lock);
    if (!changed) return;
    comm_set_shares(e->comm, shares);
    char text[ELASTIC_MEMBERS_MAX * 4 + 1] = "";
    size_t used = 0;
    for (uint32_t r = 0; r < e->world; r++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%u", r > 0 ? "," : "", shares[r]);
    log_info("step %" PRIu64 ": the members' shares of the sums, by their links: %s (all alike: equal)", step,
             text);
}
