/*
 * What a set of machines would reach: the time of a step and samples per second, predicted from each one's
 * speed and link; the best set among them; and whether a job does better without one of its members. Pure: no
 * clock, no memory but the caller's.
 *
 * Model of a step. All begin with the update of the step before (step_s). Member i then computes its share
 * k_i, and in the backward pass of its last micro-batch (two thirds of its time) its buckets become ready one
 * after the other. A bucket is reduced when all members have it; buckets follow each other on the links, all
 * together in R seconds. Moving and adding bytes takes processor time too, c_i. So of B buckets the last but
 * one has been reduced, or could be but for its own work, at
 *
 *   f_i = max(C_i + c_i, C_i - (B-1)/B w_i + (B-1)/B R),   C_i = step_s + k_i sample_s,   w_i: that backward
 * pass
 *
 * and the step takes max f_i + R/B + commit. (A member's buckets become ready evenly, and R is spread evenly
 * over them, so that only the first and the last of them can decide.) f_i grows with k_i: hence giving leases
 * one by one to whoever would have them done soonest minimises the step's time exactly.
 *
 * A set of one reduces nothing.
 */
#ifndef PARTITION_PLAN_H
#define PARTITION_PLAN_H

#include <stdbool.h>
#include <stdint.h>

enum {
    PLAN_NODES_MAX = 64,   /* members of a view at most */
    PLAN_EXHAUSTIVE = 12,  /* up to so many nodes every set is looked at; above, one node at a time */
    PLAN_LEASES_MAX = 256, /* of a step */
    PLAN_LEAVE_STEPS = 5,  /* calls in a row in which a member must be too much */
    PLAN_LEAVE_MEMORY = 16 /* members that were taken out and are remembered */
};
#define PLAN_NONE       UINT32_MAX
#define PLAN_LEAVE_GAIN 1.03 /* predicted factor above which a member is better left out */
/* Factor of a step's time that a more exact way of sending gradients is worth; and before one comes back to
 * it: what is in between stays as it is. */
#define PLAN_WIRE_LOSS 1.03
#define PLAN_WIRE_BACK 1.01

typedef struct plan_node {
    double sample_s; /* pure compute of one sample at its micro-batch; finite, > 0 */
    double step_s;   /* of each step whatever the share: update, input that is not hidden */
    double byte_s;   /* its processors' time for a byte that it sends or receives in a reduction */
    double up_bytes_per_s, down_bytes_per_s; /* payload; > 0; INFINITY: no limit, or unknown */
    uint64_t memory_bytes;                   /* that a worker may use; 0: unknown, enough */
    uint32_t micro_batch; /* samples of its last micro-batch, if its share has so many; >= 1 */
} plan_node_t;

typedef struct plan_job {
    uint64_t gradient_bytes, bucket_bytes; /* as they are sent: of all gradients; of one bucket, > 0 */
    uint64_t batch;                        /* samples of a step, > 0 */
    uint32_t leases;                       /* of a step: 1 .. PLAN_LEASES_MAX, at most batch */
    uint64_t memory_bytes;                 /* that a worker needs; 0: nothing is known of it */
    uint32_t least, most;                  /* nodes; 0: no bound */
    double commit_s;                       /* of the vote's round, where there are several members */
} plan_job_t;

/* All-reduce of `bytes` over these members, from the common start to the last result; and what each sends and
 * receives in it. */
typedef struct plan_reduction {
    double seconds;
    double moved[PLAN_NODES_MAX]; /* bytes */
} plan_reduction_t;

/* Never called with fewer than two members. */
typedef void (*plan_price_fn)(void *context, const plan_node_t *const *members, uint32_t n, uint64_t bytes,
                              plan_reduction_t *reduction);

typedef struct plan_price {
    plan_price_fn fn; /* NULL: plan_price_direct */
    void *context;
} plan_price_t;

/* The closed form of the direct all-reduce with equal shards: each port carries 2 (n-1)/n of the bytes each
 * way, the slowest decides. */
void plan_price_direct(void *context, const plan_node_t *const *members, uint32_t n, uint64_t bytes,
                       plan_reduction_t *reduction);

/* A price times a factor; context of plan_price_scaled. */
typedef struct plan_scaled {
    plan_price_t price;
    double factor;
} plan_scaled_t;

void plan_price_scaled(void *context, const plan_node_t *const *members, uint32_t n, uint64_t bytes,
                       plan_reduction_t *reduction);

typedef enum plan_limit {
    PLAN_LIMIT_COMPUTE, /* more or faster machines would help */
    PLAN_LIMIT_LINK     /* the reduction is not hidden: faster links would gain more than 5 % */
} plan_limit_t;

typedef struct plan_prediction {
    double samples_per_s, step_s;
    double reduce_s;  /* R */
    double exposed_s; /* of the step: after the last member has computed and moved its bytes */
    double unlinked;  /* samples/s if no link limited anything */
    plan_limit_t limit;
    uint32_t by;                    /* LINK: index of the node with the slowest link, PLAN_NONE: all alike */
    uint32_t share[PLAN_NODES_MAX]; /* leases, by index of the node; 0 outside the set */
} plan_prediction_t;

/* The set of the first n nodes; n <= PLAN_NODES_MAX. */
uint64_t plan_everyone(uint32_t n);

/* Members: bit i of `set` is nodes[i]; at least one. */
void plan_predict(const plan_job_t *job, const plan_node_t *nodes, uint64_t set, plan_price_t price,
                  plan_prediction_t *prediction);

/* Upper bound of its samples_per_s, without the price: every member of an all-reduce sends and receives all
 * bytes at least once. */
double plan_bound(const plan_job_t *job, const plan_node_t *nodes, uint64_t set);

/* Does it have the memory? */
bool plan_fits(const plan_job_t *job, const plan_node_t *node);

/* The nodes in the order in which each adds most (or costs least), the fastest alone first. */
typedef struct plan_rung {
    uint32_t node;
    double samples_per_s; /* of it and all before it */
    plan_limit_t limit;   /* of that set */
    uint32_t by;
} plan_rung_t;

typedef struct plan_answer {
    uint64_t best; /* 0: no node fits, or fewer than job->least do */
    plan_prediction_t prediction;
    double alone[PLAN_NODES_MAX]; /* samples/s, by node; 0: it does not fit */
    double other[PLAN_NODES_MAX]; /* of the best set with this node in or out, the other way than now; 0:
                                     cannot be */
    uint32_t n_rungs;
    plan_rung_t rungs[PLAN_NODES_MAX];
    uint32_t cable; /* node that a cable helps most, else the one with the slowest link; PLAN_NONE: all have 1
                       Gbit/s */
    uint64_t cable_best;
    double cable_samples_per_s; /* of the best set if that node had a cable of 1 Gbit/s */
} plan_answer_t;

#define PLAN_CABLE_BYTES_PER_S 119.6e6 /* payload that 1 Gbit/s of Ethernet carries */

/* n: 1 .. PLAN_NODES_MAX. */
void plan_search(const plan_job_t *job, const plan_node_t *nodes, uint32_t n, plan_price_t price,
                 plan_answer_t *answer);

/* ---- While a job runs ------------------------------------------------------------------------ */

/*
 * How many times longer than priced a reduction among all n nodes takes, going by the time that their steps
 * really take: 1 .. most; 1 where a step as priced is predicted to take that long already.
 */
double plan_reduction_factor(const plan_job_t *job, const plan_node_t *nodes, uint32_t n, plan_price_t price,
                             double step_s, double most);

/* All zero at first. Of one leader; nothing of it is agreed with anybody. */
typedef struct plan_leave {
    uint32_t id;    /* of the member that is better left out, */
    uint32_t calls; /* in so many calls in a row */
    struct {
        uint32_t id, times;
    } left[PLAN_LEAVE_MEMORY]; /* who was taken out, how often: twice the calls each time that it is back */
} plan_leave_t;

/*
 * Once a step: index of the member who should go because the job is predicted to be faster by more than
 * PLAN_LEAVE_GAIN, without it or (one after the other) without it and some more; PLAN_NONE: nobody. It must
 * be the same member in PLAN_LEAVE_STEPS calls in a row, twice as many each time that it was taken out before
 * (16 times at most). ids: names of the members that stay the same over views. Never below `least` members.
 * *gain (NULL is fine): the factor that this call predicts, 1 where nobody should go.
 */
uint32_t plan_leave_out(plan_leave_t *state, const plan_job_t *job, const plan_node_t *nodes,
                        const uint32_t *ids, uint32_t n, uint32_t least, plan_price_t price, double *gain);

/* Index of the first way, the most exact one, whose cost is at most PLAN_WIRE_LOSS times the least; before
 * the present one: PLAN_WIRE_BACK times. cost (n_ways): time of a step or of a sample; INFINITY: cannot be.
 */
uint32_t plan_most_exact(const double *cost, uint32_t n_ways, uint32_t present);

/* All zero at first. Of one leader, as plan_leave_t. */
typedef struct plan_wire {
    uint32_t wanted, calls; /* another way than the present one, in so many calls in a row */
    uint32_t returns;       /* to a more exact one: each makes the next one wait twice as long */
} plan_wire_t;

/*
 * Once a step: in which of n_ways gradients are best sent among all n nodes from now on. bytes (n_ways): of
 * all gradients, the most exact way first; present: how they go now, with job->gradient_bytes =
 * bytes[present]. By plan_most_exact, where it is the same one in 3 calls in a row; to a more exact one,
 * twice as many each time that it came back to one (96 at most). step_s (n_ways): the predictions.
 */
uint32_t plan_choose_wire(plan_wire_t *state, const plan_job_t *job, const plan_node_t *nodes, uint32_t n,
                          plan_price_t price, const uint64_t *bytes, uint32_t n_ways, uint32_t present,
                          double *step_s);

#endif
