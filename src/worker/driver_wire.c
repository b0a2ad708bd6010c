/*
 * In which type gradients go over the wire, where the caller leaves that open (options.wires): once a step
 * the leader predicts a step in each of the types, from the members' paces and their measured links
 * (driver_outlook.c), and the next COMMIT carries its choice (elastic_set_wire). What int8 rounds away is
 * made up for in later steps, also by another type.
 */
#include <inttypes.h>
#include <stdio.h>

#include "base/log.h"
#include "worker/driver_internal.h"

#define MEASURED_LEAST 3u /* steps of this view in the present type */

static bool may_use(const inspan_elastic_options_t *options, inspan_wire_t type)
{
    return type == options->wire || (options->wires >> type & 1) != 0;
}

inspan_status_t driver_wire_open(inspan_elastic_t *e, inspan_error_t *err)
{
    driver_wire_t *wire = &e->wire;
    for (inspan_wire_t type = 0; type < INSPAN_WIRES; type++) { /* the most exact first */
        if (!may_use(&e->options, type)) continue;
        wire->bytes[wire->n] = ddp_buckets_wire_bytes(&e->buckets, type);
        wire->types[wire->n++] = type;
    }
    return may_use(&e->options, INSPAN_WIRE_INT8) ? ddp_buckets_keep_errors(&e->buckets, err) : INSPAN_OK;
}

static uint32_t index_of(const driver_wire_t *wire, inspan_wire_t type)
{
    uint32_t i = 0;
    while (i + 1 < wire->n && wire->types[i] != type) i++;
    return i;
}

bool driver_may_rewire(const inspan_elastic_t *e)
{
    return e->wire.n > 1;
}

void driver_choose_wire(inspan_elastic_t *e, const driver_outlook_t *outlook)
{
    driver_wire_t *wire = &e->wire;
    double step_s[INSPAN_WIRES];
    if (outlook->measured.steps < MEASURED_LEAST || !(outlook->measured.reduce_s > 0)) return;
    const uint32_t present = index_of(wire, e->buckets.wire);
    const uint32_t chosen = plan_choose_wire(&wire->state, &outlook->job, outlook->nodes, e->world,
                                             outlook->price, wire->bytes, wire->n, present, step_s);
    if (chosen == present) return;
    wire->chosen = wire->types[chosen];
    wire->chosen_s = step_s[chosen];
    wire->left_s = step_s[present];
    pthread_mutex_lock(&e->lock);
    elastic_set_wire(e->machine, (uint8_t)wire->chosen);
    pthread_mutex_unlock(&e->lock);
}

/* Lock held. */
static void rewire(inspan_elastic_t *e, inspan_wire_t type, uint64_t step)
{
    const driver_wire_t *wire = &e->wire;
    const inspan_wire_t before = e->buckets.wire;
    const double bytes = (double)wire->bytes[index_of(wire, type)];
    driver_pace_rewired(e, bytes / (double)wire->bytes[index_of(wire, before)]);
    e->buckets.wire = type;
    e->stats.rewires++;
    if (wire->chosen_s > 0 && wire->chosen == type) /* else it was another leader's choice */
        snprintf(e->stats.wire_reason, sizeof e->stats.wire_reason,
                 "step %" PRIu64
                 ": gradients go over the wire as %s: steps of %.3g s are expected, as %s %.3g s",
                 step, inspan_wire_name(type), wire->chosen_s, inspan_wire_name(before), wire->left_s);
    log_info("step %" PRIu64 ": gradients go over the wire as %s, no longer as %s", step,
             inspan_wire_name(type), inspan_wire_name(before));
}

void driver_wire_apply(inspan_elastic_t *e)
{
    pthread_mutex_lock(&e->lock);
    const inspan_wire_t type = (inspan_wire_t)elastic_wire(e->machine);
    if (type != e->buckets.wire) rewire(e, type, elastic_step(e->machine));
    pthread_mutex_unlock(&e->lock);
}
