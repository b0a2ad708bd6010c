#include "agent/watch.h"

#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/error.h"
#include "base/log.h"
#include "platform/os/os_cond.h"
#include "platform/os/os_time.h"

static const ns_t busy_period = 500 * NS_PER_MS, idle_period = 2 * NS_PER_S;
static const ns_t too_old = 5 * NS_PER_S;
static const ns_t close_bound = 2 * NS_PER_S;

struct watch {
    pthread_t thread;
    inbox_t *inbox;
    int kind;

    /* the thread's */
    vitals_sampler_t *sampler;
    char path[PATH_MAX];
    struct stat file; /* as the wishes were read from it; st_ino 0: none */
    owner_wishes_t wishes;
    bool looked, hot;

    pthread_mutex_t mutex;
    os_cond_t changed;
    /* below: under mutex */
    bool stopping, hurry, ended;
    pid_t workers[VITALS_WORKERS];
    uint32_t n_workers;
    watch_sight_t sight;
    ns_t sight_at; /* 0: none yet */
};

/* ---- The wishes ------------------------------------------------------------------------------ */

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_ino == b->st_ino && a->st_size == b->st_size && a->st_mtim.tv_sec == b->st_mtim.tv_sec &&
           a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

/* What cannot be read is told once, and the wishes stay as they were. */
static void look_at_wishes(watch_t *watch)
{
    struct stat file = {0};
    inspan_error_t err = {.status = INSPAN_OK};
    if (stat(watch->path, &file) != 0) file = (struct stat){0};
    if (watch->looked && same_file(&file, &watch->file)) return;
    watch->looked = true;
    watch->file = file;
    inspan_status_t status = owner_load(watch->path, &watch->wishes, &err);
    if (status != INSPAN_OK && status != INSPAN_NOT_FOUND)
        log_warn("what this machine's owner gives is not known: %s; what was known before counts on",
                 err.text);
}

/* ---- The thread ------------------------------------------------------------------------------ */

static void look(watch_t *watch, const pid_t *workers, uint32_t n)
{
    watch_sight_t sight;
    look_at_wishes(watch);
    vitals_sample(watch->sampler, os_now(), workers, n, &sight.vitals);
    sight.allowed = owner_allowed(&watch->wishes, &sight.vitals, &watch->hot, &sight.limit);
    pthread_mutex_lock(&watch->mutex);
    watch->sight = sight;
    watch->sight_at = os_now();
    const bool stopping = watch->stopping;
    pthread_mutex_unlock(&watch->mutex);
    if (!stopping) inbox_post(watch->inbox, (inbox_message_t){watch->kind, 0, NULL});
}

static void *run(void *context)
{
    watch_t *watch = context;
    pthread_mutex_lock(&watch->mutex);
    while (!watch->stopping) {
        pid_t workers[VITALS_WORKERS];
        const uint32_t n = watch->n_workers;
        const ns_t next = os_now() + (n > 0 ? busy_period : idle_period);
        memcpy(workers, watch->workers, n * sizeof workers[0]);
        watch->hurry = false;
        pthread_mutex_unlock(&watch->mutex);
        look(watch, workers, n);
        pthread_mutex_lock(&watch->mutex);
        while (!watch->stopping && !watch->hurry &&
               os_cond_wait_until(&watch->changed, &watch->mutex, next)) {
        }
    }
    watch->ended = true;
    os_cond_broadcast(&watch->changed);
    pthread_mutex_unlock(&watch->mutex);
    return NULL;
}

/* ---- Life ------------------------------------------------------------------------------------ */

inspan_status_t watch_open(const char *root, const char *wishes, inbox_t *inbox, int kind, watch_t **out,
                           inspan_error_t *err)
{
    watch_t *watch = calloc(1, sizeof *watch);
    vitals_sampler_t *sampler = vitals_open(root);
    if (watch == NULL || sampler == NULL) {
        free(watch);
        vitals_close(sampler);
        return error_set(err, INSPAN_NO_MEMORY, "no memory to watch this machine");
    }
    watch->sampler = sampler;
    watch->inbox = inbox;
    watch->kind = kind;
    watch->wishes = owner_gives_all;
    snprintf(watch->path, sizeof watch->path, "%s", wishes);
    pthread_mutex_init(&watch->mutex, NULL);
    os_cond_open(&watch->changed);
    if (pthread_create(&watch->thread, NULL, run, watch) != 0) {
        vitals_close(sampler);
        free(watch);
        return error_set(err, INSPAN_IO, "cannot start a thread");
    }
    *out = watch;
    return INSPAN_OK;
}

void watch_close(watch_t *watch)
{
    const ns_t deadline = os_now() + close_bound;
    if (watch == NULL) return;
    pthread_mutex_lock(&watch->mutex);
    watch->stopping = true;
    os_cond_broadcast(&watch->changed);
    while (!watch->ended && os_cond_wait_until(&watch->changed, &watch->mutex, deadline)) {
    }
    const bool ended = watch->ended;
    pthread_mutex_unlock(&watch->mutex);
    if (!ended) {
        log_warn("a sensor of this machine does not answer");
        pthread_detach(watch->thread); /* it may wake up: what it uses stays */
        return;
    }
    pthread_join(watch->thread, NULL);
    vitals_close(watch->sampler);
    os_cond_close(&watch->changed);
    pthread_mutex_destroy(&watch->mutex);
    free(watch);
}

void watch_workers(watch_t *watch, const pid_t *workers, uint32_t n)
{
    if (n > VITALS_WORKERS) n = VITALS_WORKERS;
    pthread_mutex_lock(&watch->mutex);
    if (n > 0 && watch->n_workers == 0) {
        watch->hurry = true;
        os_cond_broadcast(&watch->changed);
    }
    memcpy(watch->workers, workers, n * sizeof workers[0]);
    watch->n_workers = n;
    pthread_mutex_unlock(&watch->mutex);
}

bool watch_newest(watch_t *watch, ns_t now, watch_sight_t *sight)
{
    pthread_mutex_lock(&watch->mutex);
    *sight = watch->sight;
    const ns_t at = watch->sight_at;
    pthread_mutex_unlock(&watch->mutex);
    if (at != 0 && now - at > too_old)
        sight->vitals = (vitals_t){.others_cores = NAN, .swap_bytes_per_s = NAN};
    return at != 0;
}
