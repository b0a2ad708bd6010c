/* See engine.h. */
#include "comm/backends/engine.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

struct comm_engine {
    inspan_comm_t *comm;
    const backend_t *backend;
    void *self;
    pthread_t thread;
    atomic_uint_least64_t operations;

    pthread_mutex_t lock; /* of the queue; taken under comm->lock never */
    os_cond_t changed;
    comm_run_t *first, *last; /* to be done, by `next` */
    bool ends;

    /* I/O thread */
    uint64_t next;    /* the first operation that was not looked at yet */
    ns_t failed;      /* when the first one failed that nothing was heard of yet; 0: none */
    comm_run_t *fell; /* that one */
};

/* ---- The thread ------------------------------------------------------------------------------ */

static comm_run_t *next_run(comm_engine_t *engine)
{
    pthread_mutex_lock(&engine->lock);
    while (engine->first == NULL && !engine->ends)
        os_cond_wait(&engine->changed, &engine->lock); /* engine_close ends it */
    comm_run_t *run = engine->first;
    if (run != NULL) engine->first = run->next;
    pthread_mutex_unlock(&engine->lock);
    return run;
}

/* Who waits for it is woken from here: the way over the I/O thread takes as long as a small sum. */
static void give_back(comm_engine_t *engine, comm_run_t *run)
{
    inspan_comm_t *comm = engine->comm;
    pthread_mutex_lock(&comm->lock);
    if (run->ended == INSPAN_OK && comm_op_finish_early(comm, run->op)) run->op = NULL;
    run->next = NULL;
    if (comm->given_back_first == NULL)
        comm->given_back_first = run;
    else
        comm->given_back_last->next = run;
    comm->given_back_last = run;
    pthread_mutex_unlock(&comm->lock);
    comm_wake(comm);
}

static void *engine_main(void *argument)
{
    comm_engine_t *engine = argument;
    for (comm_run_t *run; (run = next_run(engine)) != NULL;) {
        const backend_call_t call = {
            .call = run->plan->call, .seq = run->seq, .in = run->in, .out = run->out};
        run->fault = (backend_fault_t){.rank = -1};
        run->ended = engine->backend->submit(engine->self, &call, &run->fault);
        if (run->ended == INSPAN_OK) atomic_fetch_add_explicit(&engine->operations, 1, memory_order_relaxed);
        give_back(engine, run);
    }
    return NULL;
}

static int start_thread(comm_engine_t *engine)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int rc = pthread_create(&engine->thread, NULL, engine_main, engine);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc == 0) pthread_setname_np(engine->thread, "inspan-backend");
    return rc;
}

/* ---- Life ------------------------------------------------------------------------------------ */

static inspan_status_t create(inspan_comm_t *comm, const backend_options_t *options, const backend_t *backend,
                              inspan_error_t *err)
{
    comm_engine_t *engine = calloc(1, sizeof *engine);
    if (engine == NULL) return error_set(err, INSPAN_NO_MEMORY, "%s: no memory", backend->name);
    engine->comm = comm;
    engine->backend = backend;
    engine->next = 1;
    inspan_status_t status = backend->create(options, &engine->self, err);
    if (status != INSPAN_OK) {
        free(engine);
        return status;
    }
    pthread_mutex_init(&engine->lock, NULL);
    os_cond_open(&engine->changed);
    if (start_thread(engine) != 0) {
        backend->destroy(engine->self);
        os_cond_close(&engine->changed);
        pthread_mutex_destroy(&engine->lock);
        free(engine);
        return error_set(err, INSPAN_NO_MEMORY, "%s: no thread", backend->name);
    }
    comm->engine = engine;
    return INSPAN_OK;
}

inspan_status_t engine_open(inspan_comm_t *comm, const backend_t *backend, const char *address,
                            const int *sockets, inspan_error_t *err)
{
    const backend_options_t options = {.rank = comm->rank,
                                       .world = comm->world,
                                       .address = address,
                                       .sockets = sockets,
                                       .weights = comm->weights,
                                       .patience = 4 * comm->failure_timeout};
    const bool wanted = backend->create != NULL && comm->world > 1;
    return wanted ? create(comm, &options, backend, err) : INSPAN_OK;
}

void engine_close(inspan_comm_t *comm)
{
    comm_engine_t *engine = comm->engine;
    if (engine == NULL) return;
    pthread_mutex_lock(&engine->lock);
    engine->ends = true;
    os_cond_broadcast(&engine->changed);
    pthread_mutex_unlock(&engine->lock);
    pthread_join(engine->thread, NULL);
    engine->backend->destroy(engine->self);
    os_cond_close(&engine->changed);
    pthread_mutex_destroy(&engine->lock);
    free(engine);
    comm->engine = NULL;
}

/* ---- Looking --------------------------------------------------------------------------------- */

bool engine_carries(const inspan_comm_t *comm, const data_call_t *call)
{
    return comm->engine != NULL && backend_carries(comm->engine->backend, comm->world, call);
}

void engine_traffic(const inspan_comm_t *comm, uint64_t *sent, uint64_t *received)
{
    *sent = *received = 0;
    if (comm->engine != NULL) comm->engine->backend->traffic(comm->engine->self, sent, received);
}

const char *comm_backend_name(const inspan_comm_t *comm)
{
    return comm->engine != NULL ? comm->engine->backend->name : backend_native.name;
}

uint64_t comm_backend_operations(const inspan_comm_t *comm)
{
    return comm->engine != NULL ? atomic_load_explicit(&comm->engine->operations, memory_order_relaxed) : 0;
}

/* ---- The I/O thread's side ------------------------------------------------------------------- */

static bool all_have_called(const inspan_comm_t *comm, uint64_t seq)
{
    for (uint32_t peer = 0; peer < comm->world; peer++)
        if (peer != comm->rank && comm->peers[peer].posted < seq) return false;
    return true;
}

void engine_offer(inspan_comm_t *comm)
{
    comm_engine_t *engine = comm->engine;
    if (engine == NULL) return;
    for (; engine->next <= comm->posted && comm->health == COMM_HEALTHY; engine->next++) {
        comm_run_t *run = exec_run(comm, engine->next);
        if (run == NULL || run->plan->call.algorithm != DATA_BY_BACKEND) continue;
        if (!all_have_called(comm, run->seq)) return;
        run->held = true;
        run->next = NULL;
        comm->n_held++;
        pthread_mutex_lock(&engine->lock);
        if (engine->first == NULL)
            engine->first = run;
        else
            engine->last->next = run;
        engine->last = run;
        os_cond_signal(&engine->changed);
        pthread_mutex_unlock(&engine->lock);
    }
}

void engine_take_back(inspan_comm_t *comm)
{
    pthread_mutex_lock(&comm->lock);
    comm_run_t *run = comm->given_back_first;
    comm->given_back_first = NULL;
    pthread_mutex_unlock(&comm->lock);
    for (comm_run_t *next; run != NULL; run = next) {
        next = run->next;
        run->next = NULL;
        run->held = false;
        comm->n_held--;
        if (comm->health == COMM_FAILED) {
            exec_run_end(comm, run, comm->cause.status);
        } else if (comm->health == COMM_HEALTHY && run->ended == INSPAN_OK) {
            exec_run_done(comm, run);
        } else if (comm->health == COMM_HEALTHY && comm->engine->failed == 0) {
            comm->engine->failed = comm->transport->now(comm->transport_self);
            comm->engine->fell = run;
            comm->transport->tick_in(comm->transport_self, ENGINE_GRACE);
        } /* SETTLING: it ends with all others */
    }
}

void engine_abort(inspan_comm_t *comm)
{
    if (comm->engine != NULL) comm->engine->backend->abort(comm->engine->self);
}

void engine_tick(inspan_comm_t *comm)
{
    comm_engine_t *engine = comm->engine;
    if (engine == NULL || engine->failed == 0 || comm->health != COMM_HEALTHY) return;
    const ns_t passed = comm->transport->now(comm->transport_self) - engine->failed;
    if (passed < ENGINE_GRACE) {
        comm->transport->tick_in(comm->transport_self, ENGINE_GRACE - passed);
        return;
    }
    const backend_fault_t *fault = &engine->fell->fault;
    const bool known = fault->rank >= 0 && fault->rank < (int32_t)comm->world;
    if (known)
        fail_peer(comm, (uint32_t)fault->rank, INSPAN_PEER_LOST, "lost its connection for %s: %.60s",
                  engine->backend->name, fault->text);
    else
        fail_peer(comm, comm->rank, INSPAN_IO, "could not go on with %s: %.60s", engine->backend->name,
                  fault->text);
}
