/*
 * Who computes which part of a step: shares before it (split), what moves within it (steal). Pure, integers
 * only: the same input gives the same table on every machine. The types mirror those of the elastic step's
 * policy field by field; the step driver hands them over.
 */
#ifndef PARTITION_SPLIT_H
#define PARTITION_SPLIT_H

#include <stdbool.h>
#include <stdint.h>

#define PARTITION_MEMBERS_MAX 64
#define PARTITION_LEASES_MAX  256

/* elastic_pace_t. In leases; 0: unknown. */
typedef struct partition_pace {
    uint64_t lease_ns; /* pure compute of one lease */
    uint64_t step_ns;  /* of each step whatever the share */
    uint32_t run;      /* leases of one micro-batch; 0: all at once */
    uint32_t last;     /* leases of the last one; 0: like run */
    uint32_t most;     /* in one step; 0: takes part without leases */
} partition_pace_t;

/* elastic_progress_of_t: one member in this step, as the leader knows it. */
typedef struct partition_progress {
    partition_pace_t pace;
    uint32_t reserved, granted,
        computed;     /* leases: not granted yet; granted; of these surely computed at heard_at */
    int64_t heard_at; /* its last claim, or the opening of the step */
    bool sealed;
} partition_progress_t;

/*
 * Shares of `leases` for the members in `full` (bit per index; others get 0) that minimise when the step is
 * computed, max_i(step_ns_i + share_i lease_ns_i), exactly; on a tie the lower index gets less. share: in:
 * those of the step before (all 0: none), out: the new ones, sum = leases. The old ones stay where the new
 * ones finish less than 3 % earlier, unless a member without leases would get two or more. Where one costs
 * more than the others' whole step, a member has none. Unknown paces: the mean of the known ones; none known:
 * equal shares. Where the sum of `most` is less than `leases`, the rest goes where it costs least, `most`
 * notwithstanding (not to most = 0, unless all are). context: unused. n <= PARTITION_MEMBERS_MAX.
 */
void partition_split(void *context, uint32_t leases, uint64_t full, uint32_t n, const partition_pace_t *pace,
                     uint32_t *share);

/* When the last member has computed its share, predicted, in ns. */
uint64_t partition_finish(uint64_t full, uint32_t n, const partition_pace_t *pace, const uint32_t *share);

/*
 * Member `to` claims and its reserve runs out: so many leases of the tail of *from's reserve are better done
 * by it. 0: none, it seals. The victim is who has a reserve beyond its last run and is predicted to finish
 * last: by its pace, or by its progress in this step where that is slower (also by its silence). The thief
 * takes what makes both finish together, but spends at most half the difference on it; never for a gain of
 * less than half of what it spends, nor above its `most`.
 */
uint32_t partition_steal(void *context, int64_t now, int64_t opened_at, uint32_t n,
                         const partition_progress_t *members, uint32_t to, uint32_t *from);

/* When member i has computed what it was granted and what is reserved for it, predicted at `now`: what steal
 * compares. */
int64_t partition_predict(int64_t now, int64_t opened_at, const partition_progress_t *member);

#endif
