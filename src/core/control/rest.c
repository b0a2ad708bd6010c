#include "core/control/rest.h"

#include <string.h>

static bool is_recent(ns_t then, ns_t wall)
{
    return then != 0 && then <= wall && wall - then < REST_WITHIN;
}

uint32_t rest_losses(const rest_t *rest, ns_t wall)
{
    uint32_t n = 0;
    for (int i = 0; i < REST_LOSSES; i++) n += is_recent(rest->losses[i], wall);
    return n;
}

void rest_lost(rest_t *rest, ns_t wall)
{
    if (!is_recent(rest->losses[REST_LOSSES - 1], wall)) rest->in_a_row = 0;
    memmove(rest->losses, rest->losses + 1, sizeof rest->losses - sizeof rest->losses[0]);
    rest->losses[REST_LOSSES - 1] = wall;
    ns_t pause = NS_PER_S;
    for (uint32_t i = 0; i < rest->in_a_row && pause < REST_LONGEST; i++) pause *= 2;
    rest->until = wall + (pause < REST_LONGEST ? pause : REST_LONGEST);
    rest->in_a_row++;
    if (rest_losses(rest, wall) == REST_LOSSES) rest->quarantined = true;
}

void rest_end(rest_t *rest)
{
    memset(rest, 0, sizeof *rest);
}

ns_t rest_left(const rest_t *rest, ns_t wall)
{
    ns_t left = rest->until - wall;
    return left > 0 && left <= REST_LONGEST ? left : 0;
}

bool rest_usable(const rest_t *rest, ns_t wall)
{
    return !rest->drained && !rest->quarantined && rest_left(rest, wall) == 0;
}
