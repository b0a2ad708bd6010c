#include "core/control/liveness.h"

static void enter(liveness_t *node, liveness_state_t state, ns_t now)
{
    node->state = state;
    node->since = now;
    node->restored = false;
}

void liveness_attach(liveness_t *node, ns_t now)
{
    enter(node, LIVENESS_ATTACHED, now);
    node->heard = now;
}

void liveness_heard(liveness_t *node, ns_t now)
{
    if (node->state == LIVENESS_ATTACHED) node->heard = now;
}

void liveness_broke(liveness_t *node, ns_t now)
{
    if (node->state == LIVENESS_ATTACHED) enter(node, LIVENESS_DISCONNECTED, now);
}

void liveness_left(liveness_t *node, ns_t now)
{
    if (node->state == LIVENESS_ATTACHED || node->state == LIVENESS_DISCONNECTED)
        enter(node, LIVENESS_LEFT, now);
}

void liveness_restore(liveness_t *node, ns_t now)
{
    enter(node, LIVENESS_DISCONNECTED, now);
    node->heard = now;
    node->restored = true;
}

ns_t liveness_silent_since(const liveness_t *node)
{
    bool broke = node->state == LIVENESS_DISCONNECTED && node->since - node->heard < LIVENESS_TALKS;
    return broke ? node->since : node->heard;
}

bool liveness_check(liveness_t *node, ns_t now, ns_t timeout)
{
    if (node->state != LIVENESS_ATTACHED && node->state != LIVENESS_DISCONNECTED) return false;
    if (now - liveness_silent_since(node) < (node->restored ? 2 * timeout : timeout)) return false;
    enter(node, LIVENESS_LOST, now);
    return true;
}

void liveness_forgive(liveness_t *node, ns_t gap, ns_t now)
{
    /* what was heard since then was heard: never a time to come */
    node->heard = node->heard + gap < now ? node->heard + gap : now;
    node->since = node->since + gap < now ? node->since + gap : now;
}
