/*
 * The pace of one member: how long it computes, from the times of its own micro-batches. Pure: no clock, no
 * allocation; a fixed-size value that may be copied.
 *
 *     t(b) = a + b c       a micro-batch of b samples that is not the step's last
 *     t(b) = a + b c + e   the last one: the reduction works behind it (and takes of the same processor)
 *
 * a, c and e move together when a machine slows down. So the model keeps a *shape* (a / c, e / c, learnt
 * slowly) and one *level* (c), which follows at once. e is what last runs took beyond the published level, so
 * that a level that is a little wrong (few small runs) still predicts the time of the present share.
 *
 *   block     what is measured as one value: runs of 100 ms or more together. A processor quota is given in
 *             periods (20 ms here, 100 ms by default), shorter runs measure the period and not the machine.
 *   level     trimmed mean of the newest blocks since the last change: outliers do not count.
 *   noise     of one block, relative, learnt. It sets what counts as a change: two blocks that agree, or
 * three. change    two-sided CUSUM over log time, a value counts for 4 sigma at most. What came before is
 * forgotten. published what pace_estimate says: the level, but it moves only with a change or by more than
 * the uncertainty explains, so that a split made from it rests. unsteady  three changes to and fro within 12
 * steps: the mean over 24 steps is published until 12 steps pass without a change. Stealing (split.h) evens
 * out what is left. usual     the level that this member had for long: a slow drift (heat) becomes a change
 * against it, too.
 */
#ifndef PARTITION_PACE_H
#define PARTITION_PACE_H

#include <stdbool.h>
#include <stdint.h>

#define PACE_WINDOW   16          /* blocks */
#define PACE_RECENT   12          /* blocks in which two sizes are compared */
#define PACE_STEPS    24          /* that an unsteady member is averaged over */
#define PACE_EXTRAS   9           /* steps that step_ns is the median of */
#define PACE_BLOCK_NS 100000000.0 /* 100 ms */
#define PACE_TELLS    0.10        /* a change is told from about 10 % on */

typedef struct pace_block {
    double ns, samples;
    uint32_t runs, lasts;
    uint64_t step;
} pace_block_t;

typedef struct pace_sized { /* a block of runs of one size */
    uint32_t samples;
    double ns; /* of a run */
} pace_sized_t;

/* Read it by the functions below. Levels are logs of ns per sample. Rings: value i of all is at i % size. */
typedef struct pace_model {
    /* the shape, in samples: a / c, e / c */
    double overhead, excess;
    pace_sized_t recent[PACE_RECENT]; /* the oldest first; compared, then emptied */
    uint32_t n_recent;
    double overheads[PACE_EXTRAS];   /* seen from pairs of groups, a ring */
    uint32_t n_overheads, least;     /* least: smallest size that was measured; 0: none */
    pace_block_t lasts[PACE_EXTRAS]; /* of last runs, a ring; ns: as of the present speed */
    uint32_t n_lasts;
    /* blocks: [0] of runs that are not last, [1] of last ones */
    pace_block_t open[2];
    uint32_t open_size[2];            /* of its newest run */
    bool mixed[2];                    /* its runs have unlike sizes */
    pace_block_t window[PACE_WINDOW]; /* the oldest first */
    uint32_t n_window;
    double noise; /* of a block, relative */
    uint32_t n_noise;
    /* CUSUM: [0] slower, [1] faster; blocks since it left 0; the newest ones in a row that are off that way
     */
    double sum[2];
    uint32_t since[2], streak[2];
    /* what is published */
    double published, usual,
        told; /* told: where the newest change led; usual, told: NAN before they are known */
    bool known, measured, first_seen;
    double prior_step_ns;
    uint32_t usual_away; /* steps that published has been away from usual */
    /* prediction by vitals */
    double scaled_from;   /* level before pace_scale, while blocks are to confirm it */
    uint32_t scaled_left; /* so many */
    double unexplained;   /* log factor of a measured change that vitals have not told of yet */
    uint64_t unexplained_step;
    /* changes, the newest first */
    uint64_t change_steps[4];
    double change_factors[4]; /* log of speed after / before */
    uint32_t n_changes;
    uint32_t changes;
    bool changed;
    double factor;
    uint64_t since_step;
    bool unsteady;
    uint64_t unsteady_from; /* first step of the mean */
    double swing[2];        /* while unsteady: the levels that it goes between, the faster first */
    /* steps */
    uint64_t step; /* pace_step calls so far */
    bool ran;
    double step_ns_sum, step_units_sum;
    double step_levels[PACE_STEPS]; /* a ring; NAN: no run in that step */
    double extras[PACE_EXTRAS];     /* ns, a ring */
    uint32_t n_extras;
    uint32_t idle, busy,
        patience; /* steps in a row without and with runs; how many idle ones before it hopes */
} pace_model_t;

typedef struct pace_estimate {
    bool known;
    double sample_ns;   /* c + a / b for the micro-batch size b that is used mostly */
    double slope_ns;    /* c */
    double run_ns;      /* a */
    double step_ns;     /* of each step whatever the share: median of pace_step's, and e */
    double last_ns;     /* e, the part of step_ns that a member without leases does not have */
    double uncertainty; /* of sample_ns, relative, one sigma */
    bool changed; /* a change was found since the last pace_step; pace_step's own finds last until the next */
    bool predicted;     /* sample_ns comes from pace_seed or pace_scale and is not confirmed yet */
    bool unsteady;      /* changes to and fro: sample_ns is a mean of many steps */
    uint32_t changes;   /* found so far: where it moves, the next fields tell of a new one */
    double factor;      /* of the newest change: speed after / speed before; 1: none yet */
    uint32_t steps_ago; /* whole steps since that change began: 0: in this step */
    double usual;       /* speed now / this member's usual speed */
} pace_estimate_t;

void pace_init(pace_model_t *model);

/* From an earlier job of this machine and model (the registry): holds until two blocks are measured. 0:
 * unknown. */
void pace_seed(pace_model_t *model, double sample_ns, double step_ns);

/* A micro-batch was computed: pure time (without input, evaluation and waiting). last: the run that
 * elastic_grant called last, with the reduction behind it. The first run of all warms up and does not count.
 * True: with this run a change was found (pace_estimate has it); what is published has moved already. */
bool pace_run(pace_model_t *model, uint32_t samples, int64_t compute_ns, bool last);

/* A step ends. extra_ns: its update, and input that was not hidden; without waiting for others. Negative: not
 * measured. */
void pace_step(pace_model_t *model, int64_t extra_ns);

/* Vitals predict speed times factor, from now on (0.3: slower), before it is measured. What a measured change
 * of the last 3 steps has said already is not counted twice. Nothing while unsteady. */
void pace_scale(pace_model_t *model, double factor);

void pace_estimate(const pace_model_t *model, pace_estimate_t *estimate);

/* Pure compute per sample in micro-batches of b samples: what a lease costs is this times its samples. */
double pace_sample_ns(const pace_estimate_t *estimate, uint32_t b);

/*
 * What a share costs as a line, for who shares out: so much a sample, and a rest whatever the share is. It
 * goes through what `share` samples really cost, in runs of `run` and a last one of `last` samples (run > 0);
 * beside that point a sample more or less is one of a run. share 0: runs alone. Neither is negative.
 */
void pace_line(const pace_estimate_t *estimate, double share, double run, double last, double *sample_ns,
               double *step_ns);

/* Median of n <= PACE_RECENT values; 0: none. */
double pace_median(const double *values, uint32_t n);

/* Predicted time of one run of so many samples; 0: unknown. */
double pace_run_ns(const pace_model_t *model, double samples, bool last);

/* Micro-batch to use, in samples, need <= run <= most (most where need is more): the smallest that costs at
 * most 3 % more per sample than `most`. Before two sizes are known: one that teaches (most, or half of it).
 */
uint32_t pace_best_run(const pace_model_t *model, uint32_t most, uint32_t need);

/* The `run` and `last` of a member for a share of so many samples: about ten runs a step where smaller runs
 * cost little (by 4 %: stealing needs them), less than the share where that is not 1; last so large that its
 * backward pass (two thirds of it) hides reduction_ns, the whole share where it must be: then nothing can be
 * stolen. capacity: largest micro-batch that fits. All in samples; both >= 1. */
void pace_runs(const pace_model_t *model, uint32_t share, uint32_t capacity, double reduction_ns,
               uint32_t *run, uint32_t *last);

#endif
