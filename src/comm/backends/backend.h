/*
 * Backends: what may carry collectives in place of the communicator's own executor, in one table.
 *
 *   native   the executor (exec.c): it is in every communicator, so there is nothing to create; owner of
 * every message, needs nothing but the communicator's own links gloo     libgloo's collectives, a plug-in
 * (gloo/): opaque, one call in and one out
 *
 * A communicator is opened with one backend (comm_options_t.backend). What that one cannot do - an operation,
 * a type, a world of one - the executor does, and always sends, receives, messages, and everything about
 * failures.
 *
 * An opaque backend moves its data on sockets of its own, but does not make them: opening connects every pair
 * of ranks in both directions anyway, proves the job's key on both and keeps one for the executor; the other
 * is the backend's. So it needs no rendezvous, no port and no trust beyond the communicator's.
 *
 * Operations of a backend keep the executor's order and checks (engine.c): they have its sequence numbers,
 * are told to all peers (POST), and one is begun only when every rank is known to have made the same call. A
 * backend therefore never sees calls that differ, and never waits for a rank that is late: all its waits are
 * for data under way.
 */
#ifndef COMM_BACKENDS_BACKEND_H
#define COMM_BACKENDS_BACKEND_H

#include <inspan/comm.h>

#include "base/units.h"
#include "core/collective/schedule.h"
#include "platform/wire/data.h"

#define BACKEND_NAME_MAX    24
#define BACKEND_VERSION_MAX 32
#define BACKEND_WHY_MAX     192

/* Bits of devices: where the buffers of its operations may lie. */
#define BACKEND_CPU  1u
#define BACKEND_CUDA 2u

/* Whether this process could use it now. */
typedef struct backend_probe {
    bool available;
    char version[BACKEND_VERSION_MAX]; /* of the foreign library; all ranks must have the same one */
    char why[BACKEND_WHY_MAX]; /* one line for a person: what it is, or why not and what to do about it */
} backend_probe_t;

typedef struct backend_caps {
    uint32_t devices;    /* BACKEND_CPU, ... */
    uint32_t dtypes;     /* bits 1 << inspan_dtype_t */
    uint32_t operations; /* bits 1 << sched_collective_t */
    bool wire_types;     /* fp32 that goes shorter over the wire (inspan_allreduce_wire) */
    bool abort;          /* an operation under way can be ended from outside */
} backend_caps_t;

typedef struct backend_options {
    uint32_t rank, world;
    const char *address; /* this rank's own, numeric */
    const int *sockets; /* (world) connected, authenticated streams; -1: oneself. Not the backend's: copies */
    const double *weights; /* (world) of shards, or NULL; valid as long as the backend */
    ns_t patience;         /* data under way that stands still for so long will not come */
} backend_options_t;

/* One operation. All ranks have made the same call. */
typedef struct backend_call {
    data_call_t call;
    uint64_t seq;
    const void *in; /* a broadcast's is out */
    void *out;
} backend_call_t;

/* Why an operation did not end well. */
typedef struct backend_fault {
    int32_t rank; /* whose connection broke, -1: not known */
    char text[160];
} backend_fault_t;

typedef struct backend {
    const char *name;
    backend_caps_t caps;
    void (*probe)(backend_probe_t *probe); /* any thread; loads what it needs, at most once */
    /*
     * The rest is NULL for native. create: on every rank at once, blocks shortly; *self is freed by destroy.
     * UNSUPPORTED, NO_MEMORY, IO, with a text.
     */
    inspan_status_t (*create)(const backend_options_t *options, void **self, inspan_error_t *err);
    /* Blocks until it is done, on the one thread that all operations of `self` run on, in the order of `seq`.
     * OK; else, also after abort, `fault` is filled and nothing of it touches the buffers any more. */
    inspan_status_t (*submit)(void *self, const backend_call_t *call, backend_fault_t *fault);
    /* Any thread, does not block: the operation under way and all later ones fail at once, here and, since
     * their connections break, on the peers that are in one. */
    void (*abort)(void *self);
    /* Bytes over its connections so far. Any thread. */
    void (*traffic)(void *self, uint64_t *sent, uint64_t *received);
    void (*destroy)(void *self); /* no operation is under way */
} backend_t;

extern const backend_t backend_native, backend_gloo;

/* All of them, NULL at the end. */
extern const backend_t *const backend_table[];

/* NULL, "auto" and "native" are native. NULL: there is none of that name. */
const backend_t *backend_find(const char *name);

/* Does it carry such a call among `world` ranks? */
bool backend_carries(const backend_t *backend, uint32_t world, const data_call_t *call);

#endif
