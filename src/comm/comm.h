/*
 * The communicator's side that ddp, worker and the benchmark see: how one is opened, its I/O thread, and
 * small messages between ranks. The collectives themselves are in <inspan/comm.h>.
 */
#ifndef COMM_COMM_H
#define COMM_COMM_H

#include <inspan/comm.h>

#include "base/units.h"

/* ---- The I/O thread: one per process, shared by the data plane and the agent's socket -------- */

typedef struct comm_io comm_io_t;

/* Start the thread (signals blocked in it). NO_MEMORY, IO. */
inspan_status_t comm_io_open(comm_io_t **io, inspan_error_t *err);
void comm_io_close(comm_io_t *io); /* everything added must have been removed; joins the thread */

typedef void (*comm_io_fn)(void *context, uint32_t epoll_events); /* on the I/O thread */
typedef void (*comm_io_timer_fn)(void *context, ns_t now);        /* on the I/O thread */

/*
 * Watch fd with epoll events (level-triggered). Any thread; removal and timer cancellation return only when
 * no callback of it runs or will run (on the I/O thread itself: at once). IO, NO_MEMORY, LIMIT (64 timers).
 */
inspan_status_t comm_io_add(comm_io_t *io, int fd, uint32_t events, comm_io_fn fn, void *context);
inspan_status_t comm_io_modify(comm_io_t *io, int fd, uint32_t events);
void comm_io_remove(comm_io_t *io, int fd);

/* Call fn every `period` (first after one period), or once if `once`. *timer: its id for cancel, never 0. */
inspan_status_t comm_io_timer(comm_io_t *io, ns_t period, bool once, comm_io_timer_fn fn, void *context,
                              uint32_t *timer);
void comm_io_timer_cancel(comm_io_t *io, uint32_t timer);

/* ---- Opening a communicator ------------------------------------------------------------------ */

typedef struct comm_listener comm_listener_t;

/*
 * Bind a data port: the first free one of [first_port, last_port] (0, 0: any) on all addresses, IPv6 and
 * IPv4. EXISTS: none free (the text names the range). Connections may queue there before comm_open.
 */
inspan_status_t comm_listen(uint16_t first_port, uint16_t last_port, comm_listener_t **listener,
                            uint16_t *port, inspan_error_t *err);
void comm_listener_close(comm_listener_t *listener);

#define COMM_KEY_BYTES 32

typedef struct comm_options {
    comm_io_t *io;
    uint64_t job, view;
    uint32_t rank, world;
    const inspan_member_t *members; /* (world) copied */
    uint8_t key[COMM_KEY_BYTES];    /* proves membership (HMAC-SHA256 challenge); never logged */
    comm_listener_t *listener;      /* stays the caller's; NULL where world is 1 */
    ns_t failure_timeout; /* >= 1 s: connects and probes get this long; a started transfer that stands still
                             twice this long is a lost link */
    inspan_schedule_t schedule; /* AUTO, or forced (tests, benchmarks) */
    const double
        *weights; /* (world) shard weights for AUTO and DIRECT; NULL: from the links, equal at first */
    uint64_t chunk_bytes; /* 0: chosen */
    const char *backend; /* NULL, "auto", "native"; "gloo": carries what it can (backends/backend.h), where it
                            can be used on all ranks, else comm_open fails */
    const int *cancel; /* NULL, or a descriptor (an eventfd, say): once it is readable, comm_open gives up at
                          once with ABORTED */
    inspan_cause_t
        *cause; /* NULL, or filled where comm_open fails because of a peer: whose fault, as far as
                  this rank knows, also what a peer told. The caller sets its status to OK before */
} comm_options_t;

/*
 * Connect every pair, try both directions of each with a probe of 64 KiB, agree that all are ready. Blocks
 * for at most 2 x failure_timeout. On failure the text names the pair, the direction, address and port, and
 * tells refused from filtered from wrong key, version, job or incarnation. A member that has another view of
 * the job is tried again until failure_timeout: it, or this rank, is about to learn of a newer one. With a
 * backend, failure_timeout more. REFUSED, UNREACHABLE, TIMEOUT, AUTH, VERSION, MISMATCH, ABORTED (cancelled),
 * UNSUPPORTED (the backend, on some rank), NO_MEMORY, IO.
 */
inspan_status_t comm_open(const comm_options_t *options, inspan_comm_t **comm, inspan_error_t *err);

/* What carries collectives: "native", "gloo". Any thread. */
const char *comm_backend_name(const inspan_comm_t *comm);
uint64_t comm_backend_operations(const inspan_comm_t *comm); /* done by it; native: not counted, 0 */

/* What this process could open a communicator with. */
typedef struct comm_backend_info {
    const char *name;
    bool available;
    char version[32]; /* of the library behind it; "": not known */
    char why[192];    /* one line for a person: what it is, or why not and what to do about it */
} comm_backend_info_t;
/* The index-th backend (0: native); false: there are no more. Loads its library; any thread. */
bool comm_backend_info(uint32_t index, comm_backend_info_t *info);
/* "auto", or the name of one. */
bool comm_backend_exists(const char *name);
/* Of NCCL, for which this version has no backend: what of it is here. */
void comm_nccl_info(comm_backend_info_t *info);

/* ---- Small messages between ranks (the step's control plane) --------------------------------- */

#define COMM_MESSAGE_MAX 4096

/*
 * Messages overtake bulk data. The handler runs on the I/O thread, one message at a time, in order per
 * sender; it must not block. Those that arrive before a handler is set are kept (at most 64 per peer; more
 * poison the communicator).
 */
typedef void (*comm_message_fn)(void *context, uint32_t from, const void *data, size_t bytes);
void comm_set_message_handler(inspan_comm_t *comm, comm_message_fn fn, void *context);

/* Queue a copy for `to` (also oneself). Any thread, does not block. LIMIT: over 256 queued; or the poison's
 * status. */
inspan_status_t comm_message(inspan_comm_t *comm, uint32_t to, const void *data, size_t bytes);

/* Bytes that so many fp32 numbers are on the wire. */
uint64_t comm_wire_bytes(inspan_wire_t wire, uint64_t elements);

/* ---- The tuner by parts (inspan_comm_tune is the whole), for who has a channel of his own ----- */

#define COMM_LINKS_MAX 64

/* (2 world) what this rank has measured of its links until operations last came to rest: its row of the table
 * of links. Only other programs of this version read it. */
void comm_links(inspan_comm_t *comm, float *row);
/* (world each) bytes/s of the ranks' ports by that table; 0: not seen, others were slower. false: nothing is
 * seen of any. world <= COMM_LINKS_MAX. */
bool comm_ports(const float *table, uint32_t world, double *up, double *down);
/* shares (world): whose share of a long sum is how large; all 0: equal. In: the present ones; out, and true:
 * others, where by that table a sum is faster by more than 5 % with them. world <= COMM_LINKS_MAX. */
bool comm_shares_by_links(const float *table, uint32_t world, uint8_t *shares);
/* The calls from now on are carried so (all-reduces by the direct schedule, where weights are not forced):
 * the same, before the same call, on all ranks, or it is a MISMATCH. (world) bytes, not all 0, or all equal:
 * equal. */
void comm_set_shares(inspan_comm_t *comm, const uint8_t *shares);

/*
 * Called once on the I/O thread when the communicator becomes poisoned (at once, by the caller, if it already
 * is). The worker session and the reducer both listen: LIMIT above 4 handlers. Removal returns when fn no
 * longer runs.
 */
typedef void (*comm_failure_fn)(void *context, const inspan_cause_t *cause);
inspan_status_t comm_add_failure_handler(inspan_comm_t *comm, comm_failure_fn fn, void *context);
void comm_remove_failure_handler(inspan_comm_t *comm, comm_failure_fn fn, void *context);

/* Called on the I/O thread when op has finished (status tells how); instead of waiting. Must not block. The
 * op is released before the call. Set right after the op was started, by the thread that started it; runs at
 * once if it is already finished. */
typedef void (*comm_done_fn)(void *context, inspan_status_t status);
void comm_op_on_done(inspan_op_t *op, comm_done_fn fn, void *context);

/* Poison with a cause that others found (the agent was told that a node is lost): first cause wins. Any
 * thread. */
void comm_poison(inspan_comm_t *comm, const inspan_cause_t *cause);

/* Begin what inspan_comm_close waits for (where views change, the next communicator is opened meanwhile), and
 * ask whether it would still wait. Neither blocks; no other call but inspan_comm_close may follow. */
void comm_close_begin(inspan_comm_t *comm);
bool comm_close_waits(inspan_comm_t *comm);

/* ---- The sim transport: all ranks in one process, in memory, deterministic ------------------- */

typedef struct comm_sim comm_sim_t; /* a world of `world` ranks; events happen only inside comm_sim_run */

inspan_status_t comm_sim_open(uint32_t world, uint64_t seed, comm_sim_t **sim);
void comm_sim_close(comm_sim_t *sim);
/* The communicator of one rank of it, with the same options as comm_open (io, key, listener unused). */
inspan_status_t comm_sim_comm(comm_sim_t *sim, const comm_options_t *options, inspan_comm_t **comm);
/* Deliver, in an order drawn from the seed, until nothing is left to deliver or `max_events` happened; their
 * number. */
uint64_t comm_sim_run(comm_sim_t *sim, uint64_t max_events);
void comm_sim_crash(comm_sim_t *sim, uint32_t rank); /* its connections break, like a kill -9 */

#endif
