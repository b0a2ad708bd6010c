/*
 * Copies for newcomers: weights and optimiser state of one bucket of the first layout, straight from the
 * donor's memory into the newcomer's while the others compute. Weights stay as they are until the step
 * commits, and it cannot commit before the newcomer has voted, which it does not do before the copy is in.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/hash.h"
#include "worker/driver_internal.h"

#define ARRAYS_AHEAD 4u  /* of one copy under way */
#define ROOM_KEPT    32u /* operations that are left to gradients */

inspan_status_t driver_chunks_open(inspan_elastic_t *e, inspan_error_t *err)
{
    const uint32_t n = e->buckets.n_params, n_state = e->options.n_state;
    const inspan_state_t *state = e->options.state;
    uint32_t used = 0;
    e->arrays = calloc((size_t)n + n_state, sizeof e->arrays[0]);
    e->n_chunks = e->buckets.layout.n_buckets;
    e->chunk_first = calloc(e->n_chunks + 1, sizeof e->chunk_first[0]);
    e->chunk_of = calloc(n, sizeof e->chunk_of[0]);
    if (e->arrays == NULL || e->chunk_first == NULL || e->chunk_of == NULL)
        return error_set(err, INSPAN_NO_MEMORY, "no memory for a list of %u arrays", n + n_state);
    for (uint32_t i = 0; i < n_state; i++)
        if (state[i].parameter >= n)
            return error_set(err, INSPAN_INVALID, "state array %u is of parameter %u; there are %u", i,
                             state[i].parameter, n);
    for (uint32_t c = 0; c < e->n_chunks; c++) {
        const layout_bucket_t *bucket = &e->buckets.layout.buckets[c];
        e->chunk_first[c] = used;
        for (uint32_t k = 0; k < bucket->n_params; k++) {
            const uint32_t p = e->buckets.layout.order[bucket->first_order + k];
            e->chunk_of[p] = c;
            e->arrays[used++] = (driver_array_t){e->parameters[p].weights, e->parameters[p].count};
            for (uint32_t i = 0; i < n_state; i++)
                if (state[i].parameter == p)
                    e->arrays[used++] = (driver_array_t){state[i].data, state[i].count};
        }
    }
    e->chunk_first[e->n_chunks] = used;
    return INSPAN_OK;
}

static uint32_t arrays_of(const inspan_elastic_t *e, uint32_t chunk)
{
    return e->chunk_first[chunk + 1] - e->chunk_first[chunk];
}

static uint64_t chunk_hash(const inspan_elastic_t *e, uint32_t chunk, uint64_t *bytes)
{
    uint64_t hash = 0;
    *bytes = 0;
    for (uint32_t i = e->chunk_first[chunk]; i < e->chunk_first[chunk + 1]; i++) {
        const size_t size = e->arrays[i].count * e->buckets.element_size;
        hash = hash64(e->arrays[i].data, size, hash);
        *bytes += size;
    }
    return hash;
}

bool driver_start_copy(inspan_elastic_t *e, const driver_todo_t *todo)
{
    uint32_t i = 0;
    while (i < DRIVER_COPIES && e->copies[i].active) i++;
    if (i == DRIVER_COPIES) return false;
    driver_copy_t *copy = &e->copies[i];
    pthread_mutex_lock(&e->lock);
    *copy = (driver_copy_t){.active = true,
                            .give = todo->type == ELASTIC_DO_GIVE_CHUNK,
                            .chunk = todo->bucket,
                            .peer = todo->peer,
                            .version = todo->step};
    pthread_mutex_unlock(&e->lock);
    e->n_copies++;
    uint64_t bytes = 0;
    if (copy->give) copy->hash = chunk_hash(e, copy->chunk, &bytes);
    e->stats.bytes_copied += bytes;
    return true;
}

bool driver_gives(const inspan_elastic_t *e)
{
    for (uint32_t i = 0; e->n_copies > 0 && i < DRIVER_COPIES; i++)
        if (e->copies[i].active && e->copies[i].give) return true;
    return false;
}

/* The next array, or behind the last one the hash. */
static inspan_status_t start_array(inspan_elastic_t *e, driver_copy_t *copy)
{
    const uint32_t index = (uint32_t)(copy - e->copies), tag = EXCHANGE_TAGS + copy->chunk;
    const bool is_hash = copy->started == arrays_of(e, copy->chunk);
    const driver_array_t *array = is_hash ? NULL : &e->arrays[e->chunk_first[copy->chunk] + copy->started];
    void *data = is_hash ? (void *)&copy->hash : array->data;
    const uint64_t count = is_hash ? 1 : array->count;
    const inspan_dtype_t dtype = is_hash ? INSPAN_INT64 : e->buckets.dtype;
    return copy->give ? exchange_send(e->exchange, data, count, dtype, copy->peer, tag, index)
                      : exchange_receive(e->exchange, data, count, dtype, copy->peer, tag, index);
}

static void finish_copy(inspan_elastic_t *e, driver_copy_t *copy)
{
    uint64_t bytes = 0;
    inspan_error_t err = {.status = INSPAN_OK};
    copy->active = false;
    e->n_copies--;
    if (copy->give) {
        pthread_mutex_lock(&e->lock);
        e->news = true; /* a commit, or another copy, may wait for its place */
        pthread_mutex_unlock(&e->lock);
        return;
    }
    const uint64_t found = chunk_hash(e, copy->chunk, &bytes);
    e->stats.bytes_copied += bytes;
    if (found != copy->hash)
        error_set(&err, INSPAN_IO,
                  "weights that rank %u sent (chunk %u of step %" PRIu64 ") arrived with hash %016" PRIx64
                  ", expected %016" PRIx64 ": memory or network of one of the two machines damages data",
                  e->numbers[copy->peer], copy->chunk, copy->version, found, copy->hash);
    const elastic_event_t event = {
        .type = ELASTIC_EV_CHUNK, .view = e->view, .bucket = copy->chunk, .step = copy->version};
    pthread_mutex_lock(&e->lock);
    if (err.status != INSPAN_OK)
        driver_fail(e, &err);
    else
        driver_feed(e, &event);
    pthread_mutex_unlock(&e->lock);
}

void driver_pump_copies(inspan_elastic_t *e)
{
    for (uint32_t i = 0; e->n_copies > 0 && i < DRIVER_COPIES; i++) {
        driver_copy_t *copy = &e->copies[i];
        if (!copy->active) continue;
        pthread_mutex_lock(&e->lock);
        const uint32_t finished = copy->finished;
        pthread_mutex_unlock(&e->lock);
        const uint32_t all = arrays_of(e, copy->chunk) + 1;
        /* One at a time goes even where there is little room, so that no copy waits for another. */
        while (copy->started < all && copy->started - finished < ARRAYS_AHEAD &&
               (copy->started == finished || exchange_room(e->exchange) > ROOM_KEPT)) {
            if (start_array(e, copy) != INSPAN_OK) break; /* no room, or the view is over */
            copy->started++;
        }
        if (finished == all) finish_copy(e, copy);
    }
}
