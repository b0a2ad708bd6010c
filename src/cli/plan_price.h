/*
 * Prices the reductions of `inspan plan` by simulating their schedules on the machines' links: the schedules
 * that the communicator takes (direct with equal shards, one-shot for what is small), so that what is
 * predicted is what will run. Remembers prices: sets with the same links have the same.
 */
#ifndef CLI_PLAN_PRICE_H
#define CLI_PLAN_PRICE_H

#include <inspan/status.h>

#include "core/partition/plan.h"

typedef struct plan_pricer plan_pricer_t;

plan_pricer_t *plan_pricer_open(uint64_t bucket_bytes); /* NULL: no memory */
void plan_pricer_close(plan_pricer_t *pricer);

plan_price_t plan_pricer_price(plan_pricer_t *pricer);

#endif
