/* What <inspan/open.h> says of opening, over what the worker session uses too (comm.h). */
#include <inspan/open.h>

#include <string.h>

#include "base/error.h"
#include "comm/internal.h"

_Static_assert(INSPAN_KEY_BYTES == COMM_KEY_BYTES, "keys");

inspan_status_t inspan_io_open(inspan_io_t **io, inspan_error_t *err)
{
    return comm_io_open(io, err);
}

void inspan_io_close(inspan_io_t *io)
{
    if (io != NULL) comm_io_close(io);
}

inspan_status_t inspan_listen(uint16_t first_port, uint16_t last_port, inspan_listener_t **listener,
                              uint16_t *port, inspan_error_t *err)
{
    return comm_listen(first_port, last_port, listener, port, err);
}

void inspan_listener_close(inspan_listener_t *listener)
{
    comm_listener_close(listener);
}

inspan_status_t inspan_comm_open(const inspan_comm_options_t *options, inspan_comm_t **comm,
                                 inspan_error_t *err)
{
    if (options == NULL || comm == NULL)
        return error_set(err, INSPAN_INVALID, "a communicator needs options and a place to go");
    comm_options_t inner = {.io = options->io,
                            .listener = options->listener,
                            .job = options->job,
                            .view = options->view,
                            .rank = options->rank,
                            .world = options->world,
                            .members = options->members,
                            .failure_timeout = options->failure_timeout_ns};
    memcpy(inner.key, options->key, sizeof inner.key);
    return comm_open(&inner, comm, err);
}

void inspan_comm_expire(inspan_comm_t *comm, int64_t pending_ns)
{
    if (pending_ns <= 0) return;
    pthread_mutex_lock(&comm->lock);
    if (comm->expired == 0 || pending_ns < comm->expired) comm->expired = pending_ns;
    pthread_mutex_unlock(&comm->lock);
    comm_wake(comm);
}
