/*
 * A policy that says anything a policy may say, and more: random shares and steals, sums that are wrong,
 * members that are not there. It checks what it is asked.
 */
#ifndef STEP_ELASTIC_POLICY_TEST_H
#define STEP_ELASTIC_POLICY_TEST_H

#include "base/rng.h"
#include "core/step/elastic.h"

typedef struct random_policy {
    uint64_t salt;   /* of shares: a function of what is asked, as all members of a first view derive them */
    rng_t rng;       /* of steals */
    uint32_t leases; /* of a step */
    char wrong[200]; /* what a question was wrong about; empty: nothing */
} random_policy_t;

elastic_policy_t random_policy(random_policy_t *policy);
elastic_pace_t random_pace(uint64_t draw);

#endif
