/* What `inspan plan` found, for people and as JSON. */
#ifndef CLI_PLAN_SHOW_H
#define CLI_PLAN_SHOW_H

#include <stdio.h>

#include "cli/plan_input.h"
#include "platform/json/json.h"

#define PLAN_SETS_MAX 64

typedef struct plan_found {
    plan_answer_t answer;
    uint64_t job;          /* number of the running one; 0: before a run */
    const char *file;      /* job file; NULL: not given */
    uint64_t members;      /* of the running job, a set */
    plan_prediction_t now; /* predicted for them */
    double measured;       /* samples/s that it reaches; 0: not known */
    double larger;         /* samples/s with twice the global batch; 0: there is no best set */
    uint32_t micro_batch;  /* a larger one that hides more of the reductions, 0: none gains by it; */
    double micro_larger;   /* samples/s with it */
    uint32_t n_sets;
    struct {
        uint64_t nodes; /* a set */
        double samples_per_s;
    } sets[PLAN_SETS_MAX];
} plan_found_t;

json_t *plan_show_json(const plan_input_t *input, const plan_found_t *found);
void plan_show(FILE *out, const plan_input_t *input, const plan_found_t *found);

#endif
