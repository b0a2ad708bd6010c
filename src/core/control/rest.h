/*
 * A node whose workers are lost again and again is rested. Pure: wall times come in, for they outlive the
 * manager.
 *
 * After a loss the node is not used for 1 s, after the next ones for 2, 4, ... 60 s; ten minutes without a
 * loss and all is forgotten. The fifth loss within ten minutes: quarantine, until somebody ends it. Drained:
 * by a person's wish.
 */
#ifndef CORE_CONTROL_REST_H
#define CORE_CONTROL_REST_H

#include <stdbool.h>
#include <stdint.h>

#include "base/units.h"

#define REST_LOSSES  5
#define REST_WITHIN  (600 * NS_PER_S)
#define REST_LONGEST (60 * NS_PER_S)

typedef struct rest {
    bool drained, quarantined;
    ns_t until; /* cools down; 0: not */
    uint32_t in_a_row;
    ns_t losses[REST_LOSSES]; /* the last ones, oldest first; 0: none */
} rest_t;

void rest_lost(rest_t *rest, ns_t wall);
void rest_end(rest_t *rest); /* drain, cool-down and quarantine; losses are forgotten */
/* How long it still cools down; 0: not. A clock that was set back does not make it longer. */
ns_t rest_left(const rest_t *rest, ns_t wall);
uint32_t rest_losses(const rest_t *rest, ns_t wall); /* within the last ten minutes */
bool rest_usable(const rest_t *rest, ns_t wall);

#endif
