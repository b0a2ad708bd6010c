/*
 * The step driver: carries out what the pure step machine (core/step/elastic.h) decides, on the communicator
 * of the present view.
 *
 * Two threads feed the machine: the training thread (views, leases, gradients) and the communicator's I/O
 * thread (messages, finished operations, the poison). `lock` guards the machine and all that is marked so;
 * messages are sent under it. Everything else that the machine asks for is queued (`todo`) and done by the
 * training thread, in order, when it comes by: in next, and while a backward pass reports gradients. No
 * operation is started and no callback of the caller runs while the lock is held.
 *
 * Whoever waits is woken: by operations and messages (`news`), by the source of views (`poked`).
 *
 * Lock order: the source's, then `lock`, then what the communicator and the exchange lock.
 */
#ifndef WORKER_DRIVER_INTERNAL_H
#define WORKER_DRIVER_INTERNAL_H

#include <pthread.h>

#include <inspan/elastic.h>

#include "comm/comm.h"
#include "core/buckets/bucket_plan.h"
#include "core/partition/pace.h"
#include "core/partition/plan.h"
#include "core/partition/verdict.h"
#include "core/step/elastic.h"
#include "ddp/buckets.h"
#include "ddp/exchange.h"
#include "ddp/manifest.h"
#include "platform/os/os_cond.h"
#include "worker/views.h"

#define DRIVER_COPIES  ELASTIC_MEMBERS_MAX /* chunks on their way: one a pair of members and step */
#define DRIVER_COMMITS 4                   /* committed, not applied yet */

typedef struct driver_todo {
    elastic_action_type_t type;
    uint32_t bucket, peer;
    uint64_t step, view;
} driver_todo_t;

/* What the machine says of a step inside its COMMIT. */
typedef struct driver_commit {
    elastic_set_t applies, counted;
    bool light;
} driver_commit_t;

/* Weights and state of one bucket, from or to another member: its arrays one by one, then the hash of all. */
typedef struct driver_copy {
    bool active, give;
    uint32_t chunk, peer;
    uint64_t version;
    uint32_t started;  /* arrays, the hash included */
    uint32_t finished; /* under lock */
    uint64_t hash;     /* sent or received */
} driver_copy_t;

typedef struct driver_array {
    void *data;
    uint64_t count;
} driver_array_t;

#define DRIVER_VITALS     16
#define DRIVER_REDUCTIONS 8 /* steps that the time of reductions is the least of */

/* How fast this member is, and what its machine's owner allows. */
typedef struct driver_pace {
    /* the training thread's */
    pace_model_t model;
    ns_t handed_at;        /* the work that is out, where its time counts; 0: none is */
    inspan_timing_t apart; /* of it */
    double input_ns;       /* of a sample, smoothed */
    double allowed;        /* 0 .. 1 of this machine, its owner's word */
    ns_t rest_until;       /* no run begins before */
    bool has_vitals;
    partition_vitals_t vitals;                 /* the newest */
    partition_vitals_t applied;                /* that the model was scaled by last */
    partition_vitals_t history[DRIVER_VITALS]; /* at the ends of the last steps, by `steps` */
    local_limit_t limit;                       /* why `allowed` is below 1 */
    uint64_t steps;
    uint32_t changes;      /* of speed, seen; */
    uint64_t share_before; /* samples of the table when the newest was */
    ns_t view_at;          /* the present view began, */
    uint64_t view_step;    /* with this step */
    ns_t doubted_at;       /* when the newest was seen, whose cause does not show yet; 0: none */
    inspan_verdict_t verdicts[INSPAN_VERDICTS_MAX];
    uint32_t n_verdicts; /* ever */
    /* under lock */
    uint64_t table_step, table_view; /* of stats.share, by step + 1 */
    elastic_pace_t told;             /* to the machine */
    ns_t told_at;
    ns_t reduce_started[ELASTIC_BUCKETS_MAX];
    ns_t reduced_at, reducing; /* the last end; in this step, all together */
    ns_t reductions[DRIVER_REDUCTIONS];
    uint32_t n_reductions;                           /* ever, in this view */
    ns_t committed_at, durations[DRIVER_REDUCTIONS]; /* of whole steps, from commit to commit */
    uint32_t n_durations;                            /* ever, in this view */
} driver_pace_t;

/* What the members' traffic shows of their links; under lock. */
typedef struct driver_links {
    float told[2 * ELASTIC_MEMBERS_MAX]; /* own row, to the leader */
    ns_t told_at;
    uint8_t applied[ELASTIC_MEMBERS_MAX]; /* shares of the sums, by the communicator */
    /* the leader: (world, 2 world) what all have told; the shares that it has made of it */
    float table[2 * ELASTIC_MEMBERS_MAX * ELASTIC_MEMBERS_MAX];
    uint8_t chosen[ELASTIC_MEMBERS_MAX];
    bool news;
} driver_links_t;

typedef struct driver_measured {
    double reduce_s; /* of all gradients, among n members; 0: not known */
    double step_s;   /* of whole steps, and of how many; 0: not known */
    uint32_t steps;
    uint32_t n;
    uint64_t bytes; /* of all gradients, as they were sent */
    bool links;     /* the members' ports are measured */
} driver_measured_t;

/* What predictions of the present view go by. Not to be copied: what it holds points into it. */
typedef struct driver_outlook {
    plan_node_t nodes[ELASTIC_MEMBERS_MAX]; /* (measured.n) */
    plan_job_t job;
    driver_measured_t measured;
    plan_scaled_t scaled;
    plan_price_t price;
} driver_outlook_t;

/* In which types gradients may go over the wire, the most exact first. */
typedef struct driver_wire {
    inspan_wire_t types[INSPAN_WIRES];
    uint64_t bytes[INSPAN_WIRES]; /* of all gradients */
    uint32_t n;
    /* the leader's */
    plan_wire_t state;
    inspan_wire_t chosen;    /* last, and */
    double chosen_s, left_s; /* what steps were expected to take, in it and in the one before */
} driver_wire_t;

typedef struct driver_known {
    uint64_t hash; /* the machine's */
    layout_t layout;
} driver_known_t;

/* How gradients may lie in buckets. */
typedef struct driver_layout {
    bool possible, plans; /* a layout fits into a message; the leader plans */
    uint64_t first;       /* hash of the buckets that all members begin with */
    uint64_t *counts;     /* (n_params) elements */
    /* the training thread's */
    ns_t *ready_at;               /* (n_params) in the last run */
    float *gaps;                  /* (n_params) seconds before the end of last runs, smoothed */
    uint64_t traced;              /* runs in gaps */
    bucket_gradient_t *gradients; /* the leader's, of one plan (n_params each) */
    uint32_t *order, *sizes;
    void *room; /* for planning: nothing is allocated in a step */
    bucket_planner_t planner;
    uint64_t since;          /* step that the present layout began with, and */
    double before_s;         /* what steps took before; 0: not known, or told */
    layout_t previous;       /* the one before, to go back to */
    bool goes_back;          /* the newest proposal is that one */
    double chosen_s, left_s; /* what the newest plan is expected to expose, and what there was; where it
                                goes back: what steps take, and took */
    /* under lock */
    driver_known_t known[ELASTIC_LAYOUTS_KNOWN]; /* the newest first */
    uint64_t chosen;                             /* hash of this member's newest plan */
    float *table; /* the leader: (members, n_params) gaps, of the members in `told` */
    uint64_t told;
} driver_layout_t;

struct inspan_elastic {
    const inspan_views_t *views;
    inspan_elastic_options_t options;     /* without state */
    const inspan_parameter_t *parameters; /* (buckets.n_params) */
    ddp_buckets_t buckets;
    exchange_t *exchange;
    driver_array_t *arrays; /* of all chunks */
    uint32_t n_chunks;      /* buckets of the first layout, without the tally */
    uint32_t *chunk_of;     /* (n_params) */
    uint32_t *chunk_first;  /* (n_chunks + 1): arrays of chunk c are [chunk_first[c], chunk_first[c + 1]) */
    uint64_t largest_lease; /* samples */

    pthread_mutex_t lock;
    os_cond_t changed;
    /* under lock */
    elastic_t *machine;
    inspan_comm_t *comm; /* of the present view; NULL: none */
    driver_todo_t *todo; /* a ring */
    uint32_t todo_size, todo_first, todo_n;
    driver_commit_t commits[DRIVER_COMMITS];
    uint32_t commit_first, commit_n;
    inspan_error_t failure; /* the first of this member's own */
    bool poked;             /* the source of views has something to say */
    bool news;              /* something happened since the training thread looked */
    bool send_failed, compared;
    ns_t voted_at;  /* in this step; 0: not yet */
    ns_t broken_at; /* when a view's failure was known, the first since the last commit; 0: none */
    uint32_t
        owner[ELASTIC_LEASES_MAX]; /* number of who was given the lease in this step; UINT32_MAX: nobody */
    bool recompute[ELASTIC_LEASES_MAX]; /* its owner is lost */
    bool own[ELASTIC_LEASES_MAX];       /* this member's by the step's table */
    driver_copy_t copies[DRIVER_COPIES];
    driver_links_t links;

    /* the training thread's */
    bool attached, working, applying, leaving, left, ended, is_full;
    bool applying_light; /* the APPLY that is out */
    uint64_t applied_step;
    bool same_model; /* a newcomer's: seen to be that of the members */
    uint64_t view, views_seen;
    uint32_t world, rank, numbers[ELASTIC_MEMBERS_MAX];
    uint32_t n_copies;
    bool has_open;
    inspan_work_t open; /* COMPUTE that was handed out and is not computed yet */
    inspan_error_t misuse;
    bool *apply;                    /* (n_params) */
    uint64_t *rows;                 /* own rows, then all: (2 x world x MANIFEST_WORDS) */
    local_ledger_t span, next_span; /* of the ledger: the present one; scratch */
    uint64_t span_told;             /* its last step + 1 when it was told */
    ns_t span_told_at;
    ns_t idle_since, recovering_since;
    driver_pace_t pace;
    plan_leave_t leave; /* the leader's */
    driver_wire_t wire;
    driver_layout_t layout;
    inspan_elastic_stats_t stats;
};

/* driver.c */

/* Feed the machine; the lock is held. A failure for good is kept. */
inspan_status_t driver_feed(inspan_elastic_t *e, const elastic_event_t *event);
void driver_feed_locked(inspan_elastic_t *e, const elastic_event_t *event); /* takes the lock */
uint64_t driver_samples(const inspan_elastic_t *e, uint32_t lease);         /* of that lease */
/* With the first view: the worker's number is known. */
inspan_status_t driver_open_machine(inspan_elastic_t *e, uint32_t number, inspan_error_t *err);
void driver_fail(inspan_elastic_t *e, const inspan_error_t *err); /* lock held; the first counts */

/* Carry out what is queued, as far as it can be now. true: a COMMIT is next. Training thread. */
bool driver_run_todo(inspan_elastic_t *e);

/* driver_compute.c: training thread */

uint32_t driver_left(const inspan_elastic_t *e); /* lock held: leases granted and not computed */
bool driver_take_run(inspan_elastic_t *e, inspan_work_t *work); /* false: nothing to compute just now */

/* driver_view.c: training thread */

/* Leave the present view: nothing is pending afterwards. */
void driver_detach(inspan_elastic_t *e);
/* Wait for the next view and enter it. OK: entered, or that view is over already. */
inspan_status_t driver_enter_view(inspan_elastic_t *e, inspan_error_t *err);

/* driver_chunks.c: training thread */

inspan_status_t driver_chunks_open(inspan_elastic_t *e, inspan_error_t *err);
bool driver_start_copy(inspan_elastic_t *e, const driver_todo_t *todo); /* false: no room just now */
void driver_pump_copies(inspan_elastic_t *e);
bool driver_gives(const inspan_elastic_t *e); /* a chunk is still being sent */

/* driver_pace.c: training thread; "lock": with the lock held */

void driver_pace_open(inspan_elastic_t *e);
void driver_pace_handed(inspan_elastic_t *e); /* work is handed out now */
void driver_pace_computed(inspan_elastic_t *e, const inspan_work_t *work);
void driver_pace_applied(inspan_elastic_t *e, bool light);
void driver_pace_reduced(inspan_elastic_t *e, uint32_t bucket); /* lock; any thread */
void driver_pace_committed(inspan_elastic_t *e, bool light);    /* lock; any thread */
void driver_pace_opened(inspan_elastic_t *e, uint64_t share);   /* lock; any thread: the table is here */
void driver_pace_view(inspan_elastic_t *e);                     /* lock */
/* lock: from this step on reductions take `factor` times as long. */
void driver_pace_rewired(inspan_elastic_t *e, double factor);
void driver_pace_tell(inspan_elastic_t *e); /* lock; before a vote or report */
uint32_t driver_pace_next_run(const inspan_elastic_t *e, uint32_t left, bool sealed); /* lock; leases */
ns_t driver_pace_rest(inspan_elastic_t *e, ns_t now); /* until when no run is to begin; 0: it may */
void driver_pace_stats(const inspan_elastic_t *e, inspan_elastic_stats_t *stats); /* lock */
ns_t driver_pace_reduce_ns(const inspan_elastic_t *e);                            /* lock; 0: not known */
ns_t driver_pace_whole_step(const inspan_elastic_t *e); /* lock; median of the last ones; 0: not known */
/* All members of a first view, the same on all. */
inspan_status_t driver_pace_share(inspan_elastic_t *e, elastic_pace_t paces[ELASTIC_MEMBERS_MAX],
                                  inspan_error_t *err);

/* driver_links.c */

void driver_links_view(inspan_elastic_t *e); /* lock: a view begins */
/* lock, I/O thread: true: it was one of these. */
bool driver_links_message(inspan_elastic_t *e, uint32_t from, const void *data, size_t bytes);
/* lock; the leader: (members each) bytes/s. false: nothing is known. */
bool driver_links_ports(const inspan_elastic_t *e, double *up, double *down);
void driver_links_tell(inspan_elastic_t *e);  /* training thread; before a vote */
void driver_links_apply(inspan_elastic_t *e); /* training thread; before a reduction of a step */

/* driver_verdict.c: training thread */

void driver_look_at_vitals(inspan_elastic_t *e);
void driver_notice_change(inspan_elastic_t *e);             /* after a run */
void driver_judge_step(inspan_elastic_t *e, uint64_t step); /* after a step */

/* driver_outlook.c: training thread */

void driver_look_ahead(inspan_elastic_t *e, uint64_t step); /* after a step: the leader */

/* driver_wire.c */

inspan_status_t driver_wire_open(inspan_elastic_t *e, inspan_error_t *err);
bool driver_may_rewire(const inspan_elastic_t *e); /* training thread, as the following */
void driver_choose_wire(inspan_elastic_t *e, const driver_outlook_t *outlook);
/* Before a reduction of a step: gradients go as the machine says. */
void driver_wire_apply(inspan_elastic_t *e);

/* driver_layout.c: training thread; "lock": with the lock held */

inspan_status_t driver_layout_open(inspan_elastic_t *e, inspan_error_t *err);
void driver_layout_close(inspan_elastic_t *e);
/* As the machine knows a layout: with all settings that members must share. */
uint64_t driver_layout_hash(const inspan_elastic_t *e, uint64_t buckets_hash);
void driver_layout_view(inspan_elastic_t *e); /* lock: a view begins, the machine is not told yet */
/* lock, I/O thread: true: it was one of these. */
bool driver_layout_message(inspan_elastic_t *e, uint32_t from, const void *data, size_t bytes);
void driver_layout_ready(inspan_elastic_t *e, uint32_t parameter); /* in the last run */
void driver_layout_computed(inspan_elastic_t *e);                  /* the last run */
void driver_layout_tell(inspan_elastic_t *e);                      /* before a vote */
void driver_layout_apply(inspan_elastic_t *e);                     /* DO_LAYOUT */
bool driver_may_lay_out(const inspan_elastic_t *e);
void driver_choose_layout(inspan_elastic_t *e, uint64_t step, const driver_outlook_t *outlook);
void driver_shuffle_layout(inspan_elastic_t *e, uint64_t step); /* options.shuffle_buckets */

/* driver_leave.c: training thread */

bool driver_may_leave_out(const inspan_elastic_t *e, uint64_t step);
void driver_leave_out(inspan_elastic_t *e, uint64_t step, const driver_outlook_t *outlook);

/* driver_policy.c */

elastic_policy_t driver_policy(void);

/* driver_ledger.c: training thread */

void driver_note_ledger(inspan_elastic_t *e, uint64_t step); /* the step's reduced tally is here */
void driver_tell_ledger(inspan_elastic_t *e);                /* what was not told yet */

#endif
