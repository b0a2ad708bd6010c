#include "train/cluster_test.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/error.h"
#include "comm/comm.h"
#include "platform/os/os_file.h"
#include "platform/os/os_time.h"
#include "train/result.h"
#include "worker/driver_internal.h"
#include "worker/views.h"
#include "worker/worker_internal.h"

enum { COUNT_FROM = 9, VOTE = 3, COMMIT = 4 };

#define PATIENCE (60 * NS_PER_S)
#define SETTLE   (100 * NS_PER_MS) /* a death may be known a little later than what it broke */

/* ---- The worker's process -------------------------------------------------------------------- */

static cluster_t *here; /* NULL in the test's own process */
static worker_t *self;
static trainer_t *training;
static uint32_t readies;

/* Allocations of the training thread are counted: the test is linked with --wrap. */
static _Thread_local uint64_t allocations;
void *__real_malloc(size_t bytes);
void *__real_calloc(size_t n, size_t bytes);
void *__real_realloc(void *old, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);
void __real_inspan_elastic_ready(inspan_elastic_t *e, uint32_t parameter);
void __wrap_inspan_elastic_ready(inspan_elastic_t *e, uint32_t parameter);
inspan_status_t __real_nn_model_backward(nn_model_t *model, const nn_batch_t *batch, void *const *grads,
                                         nn_ready_fn ready, void *context, double *loss_sum,
                                         inspan_error_t *err);
inspan_status_t __wrap_nn_model_backward(nn_model_t *model, const nn_batch_t *batch, void *const *grads,
                                         nn_ready_fn ready, void *context, double *loss_sum,
                                         inspan_error_t *err);
inspan_status_t __real_nn_model_open(const nn_model_config_t *config, uint32_t micro_batch, uint32_t threads,
                                     nn_model_t **model, inspan_error_t *err);
inspan_status_t __wrap_nn_model_open(const nn_model_config_t *config, uint32_t micro_batch, uint32_t threads,
                                     nn_model_t **model, inspan_error_t *err);
inspan_status_t __real_comm_message(inspan_comm_t *comm, uint32_t to, const void *data, size_t bytes);
inspan_status_t __wrap_comm_message(inspan_comm_t *comm, uint32_t to, const void *data, size_t bytes);

void *__wrap_malloc(size_t bytes)
{
    allocations++;
    return __real_malloc(bytes);
}

void *__wrap_calloc(size_t n, size_t bytes)
{
    allocations++;
    return __real_calloc(n, bytes);
}

void *__wrap_realloc(void *old, size_t bytes)
{
    allocations++;
    return __real_realloc(old, bytes);
}

static bool struck(trouble_type_t type, uint64_t step)
{
    return self != NULL && self->trouble.type == type && self->trouble.step == step;
}

/* Half of the gradients are there. */
void __wrap_inspan_elastic_ready(inspan_elastic_t *e, uint32_t parameter)
{
    __real_inspan_elastic_ready(e, parameter);
    readies++;
    if (training != NULL && struck(KILL_IN_BUCKET, training->step) && readies >= training->n_params / 2)
        raise(SIGKILL);
}

/* A slow machine: other workers are not slowed by it, as they would be if it kept a processor busy. */
inspan_status_t __wrap_nn_model_backward(nn_model_t *model, const nn_batch_t *batch, void *const *grads,
                                         nn_ready_fn ready, void *context, double *loss_sum,
                                         inspan_error_t *err)
{
    if (self != NULL && here->slow != NULL) {
        const ns_t more = batch->samples *
                          here->slow((uint32_t)(self - here->workers), training != NULL ? training->step : 0);
        const struct timespec pause = {.tv_sec = more / NS_PER_S, .tv_nsec = more % NS_PER_S};
        nanosleep(&pause, NULL); /* not a wait: the work of a slower machine */
    }
    return __real_nn_model_backward(model, batch, grads, ready, context, loss_sum, err);
}

inspan_status_t __wrap_nn_model_open(const nn_model_config_t *config, uint32_t micro_batch, uint32_t threads,
                                     nn_model_t **model, inspan_error_t *err)
{
    if (self != NULL && self->fits > 0 && micro_batch > self->fits)
        return error_set(err, INSPAN_NO_MEMORY, "no memory for %u samples", micro_batch);
    return __real_nn_model_open(config, micro_batch, threads, model, err);
}

static void killed_soon(void)
{
    const struct itimerval soon = {.it_value = {.tv_usec = 100000}};
    setitimer(ITIMER_REAL, &soon, NULL); /* SIGALRM ends the process */
}

inspan_status_t __wrap_comm_message(inspan_comm_t *comm, uint32_t to, const void *data, size_t bytes)
{
    static uint32_t told;
    uint32_t type = 0;
    uint64_t step = 0;
    if (bytes >= 24) {
        memcpy(&type, data, sizeof type);
        memcpy(&step, (const char *)data + 16, sizeof step);
    }
    if (here != NULL && inspan_comm_world(comm) > 1 && strcmp(here->job.sync.backend, "auto") != 0 &&
        strcmp(comm_backend_name(comm), here->job.sync.backend) != 0)
        abort(); /* the job asks for one backend, and another one carries it */
    if (type == COMMIT && struck(KILL_BEFORE_COMMIT, step)) raise(SIGKILL);
    if (type == COMMIT && struck(KILL_IN_COMMIT, step) && told++ > 0) {
        killed_soon();
        return INSPAN_OK;
    }
    const inspan_status_t status = __real_comm_message(comm, to, data, bytes);
    if (type == VOTE && struck(KILL_AFTER_VOTE, step)) raise(SIGKILL);
    return status;
}

/* The test does something meanwhile. */
static void hold(void)
{
    const uint32_t number = (uint32_t)(self - here->workers);
    if (write(here->events[1], &number, sizeof number) != sizeof number) _exit(9);
    while (sem_wait(&here->go) != 0) {
    }
}

static void on_computing(void *context, const inspan_work_t *work)
{
    (void)context;
    readies = 0;
    if (work->light) return;
    if (struck(KILL_IN_COMPUTE, work->step)) raise(SIGKILL);
    if (struck(STOP_IN_COMPUTE, work->step)) raise(SIGSTOP);
    if (!struck(LOSE_A_LEASE, work->step) || !work->last) return;
    ddp_buckets_t *buckets = &training->elastic->buckets;
    for (uint32_t b = 0; b + 1 < buckets->n; b++)
        ((float *)(void *)buckets->local[b])[buckets->layout.buckets[b].tail + work->first_lease] = 0;
}

static void on_applied(void *context, uint64_t step, uint64_t hash)
{
    (void)context;
    outcome_t *outcome = &self->outcome;
    if (step >= STEPS_MAX) _exit(8);
    inspan_elastic_stats(training->elastic, &outcome->stats);
    outcome->hashes[step] =
        outcome->stats.full ? hash : 0; /* of a newcomer some parameters are not here yet */
    if (step == COUNT_FROM) allocations = 0;
    outcome->allocations = allocations;
    for (uint32_t i = 0; i < training->elastic->buckets.leases && i < LEASES_SEEN; i++)
        outcome->owners[step][i] = inspan_elastic_lease_owner(training->elastic, i);
    if (struck(KILL_AFTER_APPLY, step)) raise(SIGKILL);
    if (struck(DAMAGE_WEIGHTS, step)) ((uint8_t *)training->params[0].weights)[2] ^= 1;
    const bool joining = here->joiners > 0 && here->join_at == step && self == here->workers;
    if (joining || struck(CANCEL, step) || struck(LEAVE, step) || struck(GIVE_HALF, step)) hold();
}

static void on_progress(void *context, const inspan_progress_t *progress)
{
    (void)context;
    if (progress->step < STEPS_MAX) self->outcome.reported[progress->step] = progress->param_hash;
}

typedef struct session {
    inspan_worker_t *worker;
    result_t result;
} session_t;

static inspan_status_t on_save(void *context, trainer_t *trainer, uint64_t view, inspan_error_t *err)
{
    session_t *session = context;
    return result_save(&session->result, trainer, inspan_worker_views(session->worker), view, err);
}

static void on_failed(void *context, inspan_status_t status, const char *text)
{
    inspan_worker_fail(((session_t *)context)->worker, status, text);
}

static void on_note(void *context, const char *text)
{
    (void)context;
    snprintf(self->outcome.note, sizeof self->outcome.note, "%s", text);
}

static size_t as_doubles(const trainer_t *trainer, bool gradient, double *all)
{
    size_t at = 0;
    for (uint32_t i = 0; i < trainer->n_params; i++) {
        const void *from = gradient ? trainer->reduced[i] : trainer->params[i].weights;
        for (uint64_t k = 0; k < trainer->params[i].count && at < ELEMENTS_MAX; k++)
            all[at++] = trainer->model_config.dtype == NN_FP64 ? ((const double *)from)[k]
                                                               : (double)((const float *)from)[k];
    }
    return at;
}

static void keep(outcome_t *outcome)
{
    const trainer_t *trainer = training;
    inspan_elastic_stats(trainer->elastic, &outcome->stats);
    outcome->n = as_doubles(trainer, false, outcome->weights);
    /* after a failure operations may still write there, until the driver is closed */
    if (outcome->status == INSPAN_OK) as_doubles(trainer, true, outcome->gradient);
    outcome->validation_first = trainer->validation_first;
    outcome->validation_last = trainer->validation;
    outcome->loss_last = trainer->loss;
    outcome->accounted = trainer->compute + trainer->update + outcome->stats.exposed_ns +
                         outcome->stats.rested_ns + trainer->input + trainer->evaluation;
    outcome->wall = trainer->ended - trainer->started;
    char *summary = trainer_summary(trainer);
    snprintf(outcome->summary, sizeof outcome->summary, "%s", summary != NULL ? summary : "");
    free(summary);
    outcome->ended = true;
}

static void train(session_t *session)
{
    outcome_t *outcome = &self->outcome;
    trainer_options_t options = {
        .job = &self->job,
        .views = inspan_worker_views(session->worker),
        .newcomer = !self->in_first,
        .threads = 1,
        .shuffle_buckets = here->shuffled,
        .hooks = {session, on_failed, on_progress, on_computing, on_applied, on_save, on_note},
    };
    char folder[160];
    snprintf(folder, sizeof folder, "%s/%u", here->own, (unsigned)(self - here->workers));
    if (here->own[0] != '\0') options.folder = folder;
    if (here->resume[0] != '\0' && self->in_first) options.resume = here->resume;
    if (here->quiet) options.hooks.applied = NULL;
    outcome->status = trainer_open(&options, &training, &outcome->err);
    if (outcome->status != INSPAN_OK) return;
    outcome->status = trainer_run(training, &outcome->err);
    keep(outcome);
    trainer_close(training);
    training = NULL;
}

static void session_path(const cluster_t *cluster, uint32_t number, char path[108])
{
    snprintf(path, 108, "%s/%u", cluster->folder, number);
}

static void be_worker(cluster_t *cluster, uint32_t number)
{
    char path[108], folder[128];
    session_t session = {0};
    outcome_t *outcome = &cluster->workers[number].outcome;
    here = cluster;
    self = &cluster->workers[number];
    session_path(cluster, number, path);
    snprintf(folder, sizeof folder, "%s", cluster->save_to[0] != '\0' ? cluster->save_to : cluster->folder);
    session.result = (result_t){folder, cluster->save_to[0] == '\0'};
    outcome->status = worker_open_at(path, &session.worker, &outcome->err);
    if (outcome->status != INSPAN_OK) return;
    assert_int_equal(inspan_worker_backend(session.worker, cluster->job.sync.backend), INSPAN_OK);
    train(&session);
    inspan_worker_finish(session.worker, outcome->status,
                         outcome->status == INSPAN_OK ? outcome->summary : outcome->err.text);
}

/* ---- Agents and manager ---------------------------------------------------------------------- */

static uint8_t frame[LOCAL_FRAME_MAX + 8];

static void say(worker_t *worker, inspan_status_t encoded, const size_t *n)
{
    assert_int_equal(encoded, INSPAN_OK);
    if (worker->fd < 0) return;
    ssize_t ignored = send(worker->fd, frame, *n, MSG_NOSIGNAL); /* it may be dead */
    (void)ignored;
}

static void say_end(worker_t *worker, local_frame_type_t type, inspan_status_t status)
{
    static local_end_t end;
    size_t n = 0;
    end = (local_end_t){.status = status, .cause = {.rank = -1, .noticed_by = -1}};
    say(worker, local_encode_end(type, &end, frame, sizeof frame, &n), &n);
}

static void say_empty(worker_t *worker, local_frame_type_t type)
{
    size_t n = 0;
    say(worker, local_encode_empty(type, frame, sizeof frame, &n), &n);
}

static void say_welcome(cluster_t *cluster, worker_t *worker)
{
    size_t n = 0;
    local_welcome_t welcome = {.major = LOCAL_MAJOR,
                               .minor = LOCAL_MINOR,
                               .job = 7,
                               .failure_timeout = cluster->failure_timeout,
                               .threads = 1};
    snprintf(welcome.node, sizeof welcome.node, "node-%u", (unsigned)(worker - cluster->workers));
    say(worker, local_encode_welcome(&welcome, frame, sizeof frame, &n), &n);
}

static void start_worker(cluster_t *cluster)
{
    const uint32_t number = cluster->started++;
    worker_t *worker = &cluster->workers[number];
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char path[108];
    assert_true(number < WORKERS_MAX);
    if (worker->job.train.steps == 0) worker->job = cluster->job;
    session_path(cluster, number, path);
    memcpy(address.sun_path, path, sizeof path);
    worker->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(worker->listener, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(worker->listener, 4), 0);
    fflush(NULL);
    worker->running = true;
    worker->in_first = number < cluster->n;
    worker->fd = -1;
    const pid_t pid = fork(); /* all that is in *worker is shared */
    assert_true(pid >= 0);
    if (pid != 0) {
        worker->pid = pid;
        return;
    }
    for (uint32_t i = 0; i < cluster->started; i++) { /* others' sockets must end with them */
        if (cluster->workers[i].listener >= 0) close(cluster->workers[i].listener);
        if (cluster->workers[i].running && cluster->workers[i].fd >= 0) close(cluster->workers[i].fd);
    }
    be_worker(cluster, number);
    exit(0); /* a leak checker looks then */
}

/* The next view: of all members that are there. */
static void issue_view(cluster_t *cluster)
{
    inspan_member_t members[WORKERS_MAX] = {{.port = 0}};
    uint32_t world = 0, rank = 0;
    cluster->view++;
    cluster->views++;
    for (uint32_t i = 0; i < cluster->started; i++) {
        worker_t *worker = &cluster->workers[i];
        worker->blamed = false;
        if (!worker->member) continue;
        inspan_member_t *member = &members[world++];
        member->number = i;
        member->port = worker->port;
        member->incarnation = worker->incarnation;
        snprintf(member->node, sizeof member->node, "node-%u", i);
        snprintf(member->address, sizeof member->address, "127.0.0.1");
    }
    for (uint32_t i = 0; i < cluster->started; i++) {
        size_t n = 0;
        if (!cluster->workers[i].member) continue;
        local_view_t view = {.view = cluster->view,
                             .rank = rank,
                             .world = world,
                             .first = cluster->view == 1,
                             .key = "cluster",
                             .members = members};
        say(&cluster->workers[i], local_encode_view(&view, LOCAL_MINOR, frame, sizeof frame, &n), &n);
        rank++;
    }
}

static void on_bound(cluster_t *cluster)
{
    uint32_t waiting = 0;
    for (uint32_t i = 0; i < cluster->started; i++)
        waiting += cluster->workers[i].running && !cluster->workers[i].bound;
    if (waiting > 0 || cluster->failed) return;
    for (uint32_t i = 0; i < cluster->started; i++)
        cluster->workers[i].member |= cluster->workers[i].running && !cluster->workers[i].has_left;
    issue_view(cluster);
    if (cluster->joined) sem_post(&cluster->go);
}

static void stop_all(cluster_t *cluster)
{
    cluster->failed = true;
    for (uint32_t i = 0; i < cluster->started; i++)
        if (cluster->workers[i].running && !cluster->workers[i].said_end)
            say_empty(&cluster->workers[i], LOCAL_STOP);
}

static void on_end(cluster_t *cluster, worker_t *worker, local_frame_type_t type)
{
    worker->said_end = true;
    worker->member = false;
    say_end(worker, LOCAL_BYE, INSPAN_OK);
    if (type == LOCAL_FAILED && worker->in_first) stop_all(cluster);
    if (type == LOCAL_FAILED && !worker->in_first) issue_view(cluster); /* a newcomer's own trouble */
}

/* As an agent does: the worker removes its own at its end. */
static void keep_checkpoint(const cluster_t *cluster, const worker_t *worker, const local_saved_t *saved)
{
    char kept[160], from[640], to[256], name[32];
    inspan_error_t err;
    checkpoint_name(saved->step, name);
    snprintf(kept, sizeof kept, "%s/kept/%s", cluster->own, name);
    assert_int_equal(os_mkdir_all(kept, 0755, &err), INSPAN_OK);
    for (size_t i = 0; i < CHECKPOINT_FILES; i++) {
        snprintf(from, sizeof from, "%s/%u/%s/%s", cluster->own, (unsigned)(worker - cluster->workers),
                 saved->folder, checkpoint_files[i]);
        snprintf(to, sizeof to, "%s/%s", kept, checkpoint_files[i]);
        assert_int_equal(link(from, to), 0);
    }
}

static void on_saved(cluster_t *cluster, worker_t *worker, const local_saved_t *saved)
{
    size_t n = 0;
    const uint32_t late = cluster->late_answer && saved->result ? ++cluster->results_said : 0;
    const bool fenced = saved->view != cluster->view || late == 2; /* 2: it was the answer to the first */
    if (late == 1) {
        issue_view(cluster);
        return;
    }
    local_registered_t answer = {saved->step, saved->result, fenced ? INSPAN_ABORTED : INSPAN_OK, ""};
    if (!fenced && saved->result) cluster->saves++;
    if (!fenced && !saved->result && saved->step < STEPS_MAX) {
        cluster->checkpoints[saved->step]++;
        cluster->checkpoint_by[saved->step] = (uint32_t)(worker - cluster->workers);
        keep_checkpoint(cluster, worker, saved);
    }
    say(worker, local_encode_registered(&answer, frame, sizeof frame, &n), &n);
}

static ns_t settle_at;

static void on_blame(cluster_t *cluster, const local_blame_t *blame)
{
    if (blame->view != cluster->view) return;
    const int32_t rank = blame->cause.rank;
    const bool lost = blame->cause.status == INSPAN_PEER_LOST || blame->cause.status == INSPAN_TIMEOUT;
    if (lost && rank >= 0 && rank < (int32_t)cluster->started) cluster->workers[rank].blamed = true;
    if (settle_at == 0) settle_at = os_now() + SETTLE;
}

/* Nobody has died: who is blamed goes; a reset connection is nobody's fault. */
static void settle(cluster_t *cluster)
{
    settle_at = 0;
    if (cluster->failed) return;
    for (uint32_t i = 0; i < cluster->started; i++) {
        worker_t *worker = &cluster->workers[i];
        if (!worker->blamed || !worker->member) continue;
        worker->member = false;
        kill(worker->pid, SIGKILL); /* the fence */
    }
    issue_view(cluster);
}

static void on_left(cluster_t *cluster, worker_t *worker, uint64_t view)
{
    if (view != cluster->view) return; /* G3 */
    const bool stays = cluster->widow && cluster->taken_back++ == 0;
    for (uint32_t i = 0; i < cluster->started && stays; i++) {
        worker_t *other = &cluster->workers[i];
        if (other == worker || !other->member) continue;
        other->member = false;
        kill(other->pid, SIGKILL);
    }
    worker->has_left = !stays;
    worker->member = stays;
    issue_view(cluster);
    if (!stays) say_empty(worker, LOCAL_STOP);
}

static void take_frame(cluster_t *cluster, worker_t *worker, local_frame_type_t type, const uint8_t *body,
                       size_t n)
{
    static local_hello_t hello;
    static local_blame_t blame;
    static local_saved_t saved;
    uint64_t left_view = 0;
    switch (type) {
    case LOCAL_HELLO:
        assert_int_equal(local_decode_hello(body, n, &hello), INSPAN_OK);
        worker->incarnation = hello.incarnation;
        say_welcome(cluster, worker);
        if (cluster->failed) say_empty(worker, LOCAL_STOP); /* another one ended the job before it called */
        break;
    case LOCAL_BOUND:
        assert_int_equal(local_decode_bound(body, n, &worker->port), INSPAN_OK);
        worker->bound = true;
        on_bound(cluster);
        break;
    case LOCAL_BLAME:
        assert_int_equal(local_decode_blame(body, n, &blame), INSPAN_OK);
        on_blame(cluster, &blame);
        break;
    case LOCAL_LEFT:
        assert_int_equal(local_decode_left(body, n, &left_view), INSPAN_OK);
        on_left(cluster, worker, left_view);
        break;
    case LOCAL_SAVED:
        assert_int_equal(local_decode_saved(body, n, &saved), INSPAN_OK);
        on_saved(cluster, worker, &saved);
        break;
    case LOCAL_FAILED:
    case LOCAL_DONE:
        assert_int_equal(local_decode_end(body, n, &worker->end), INSPAN_OK);
        on_end(cluster, worker, type);
        break;
    default: break;
    }
}

/* Its socket is closed: its process is dead, or about to exit. */
static void on_hang_up(cluster_t *cluster, worker_t *worker)
{
    int how = 0;
    close(worker->fd);
    worker->fd = -1;
    assert_int_equal(waitpid(worker->pid, &how, 0), worker->pid);
    worker->running = false;
    worker->was_killed = WIFSIGNALED(how);
    const bool lost = worker->member && !worker->said_end;
    worker->member = false;
    if (!worker->was_killed && (!WIFEXITED(how) || WEXITSTATUS(how) != 0))
        fail_msg("worker %u ended with %x", (unsigned)(worker - cluster->workers), (unsigned)how);
    if (!lost || cluster->failed) return;
    settle_at = 0;
    issue_view(cluster);
}

static void on_readable(cluster_t *cluster, worker_t *worker)
{
    ssize_t got = recv(worker->fd, worker->in + worker->in_used, sizeof worker->in - worker->in_used, 0);
    if (got <= 0) {
        on_hang_up(cluster, worker);
        return;
    }
    worker->in_used += (size_t)got;
    for (;;) {
        local_frame_type_t type;
        const uint8_t *body = NULL;
        size_t n = 0, whole = 0;
        inspan_status_t status = local_peek(worker->in, worker->in_used, &type, &body, &n, &whole);
        assert_int_not_equal(status, INSPAN_CORRUPT);
        if (status != INSPAN_OK) return;
        take_frame(cluster, worker, type, body, n);
        memmove(worker->in, worker->in + whole, worker->in_used -= whole);
    }
}

static void say_vitals(worker_t *worker)
{
    size_t n = 0;
    const local_vitals_t vitals = {.cores = 1,
                                   .others_cores = (double)NAN,
                                   .swap_bytes_per_s = (double)NAN,
                                   .allowed = 0.5,
                                   .owner_active = true,
                                   .limit = LOCAL_LIMIT_OWNER};
    say(worker, local_encode_vitals(&vitals, frame, sizeof frame, &n), &n);
}

/* A worker is held: do what the test wants there. */
static void on_event(cluster_t *cluster)
{
    uint32_t number = 0;
    assert_int_equal(read(cluster->events[0], &number, sizeof number), sizeof number);
    worker_t *worker = &cluster->workers[number];
    if (worker->trouble.type == GIVE_HALF) {
        say_vitals(worker);
        sem_post(&cluster->go);
        return;
    }
    if (worker->trouble.type == LEAVE || worker->trouble.type == CANCEL) {
        say_empty(worker, worker->trouble.type == LEAVE ? LOCAL_LEAVE : LOCAL_STOP);
        sem_post(&cluster->go);
        return;
    }
    cluster->joined = true;
    for (uint32_t i = 0; i < cluster->joiners; i++)
        start_worker(cluster); /* it goes on when they are bound */
}

static bool any_runs(const cluster_t *cluster)
{
    for (uint32_t i = 0; i < cluster->started; i++)
        if (cluster->workers[i].running) return true;
    return false;
}

static void kill_all(cluster_t *cluster)
{
    for (uint32_t i = 0; i < cluster->started; i++) {
        if (!cluster->workers[i].running) continue;
        kill(cluster->workers[i].pid, SIGKILL);
        waitpid(cluster->workers[i].pid, NULL, 0);
    }
}

static void poll_once(cluster_t *cluster, int bound_ms)
{
    struct pollfd fds[WORKERS_MAX + 1] = {{.fd = cluster->events[0], .events = POLLIN}};
    for (uint32_t i = 0; i < WORKERS_MAX; i++) {
        const worker_t *worker = &cluster->workers[i];
        const bool there = i < cluster->started && worker->running;
        fds[i + 1] = (struct pollfd){.fd = !there            ? -1
                                           : worker->fd >= 0 ? worker->fd
                                                             : worker->listener,
                                     .events = POLLIN};
    }
    if (poll(fds, WORKERS_MAX + 1, bound_ms) <= 0) return;
    for (uint32_t i = 0; i < WORKERS_MAX; i++) {
        worker_t *worker = &cluster->workers[i];
        if (fds[i + 1].revents == 0) continue;
        if (worker->fd >= 0)
            on_readable(cluster, worker);
        else
            worker->fd = accept4(worker->listener, NULL, NULL, SOCK_CLOEXEC);
    }
    if (fds[0].revents != 0) on_event(cluster);
}

void cluster_run(cluster_t *cluster)
{
    const ns_t deadline = os_now() + PATIENCE;
    settle_at = 0;
    if (cluster->failure_timeout == 0) cluster->failure_timeout = 10 * NS_PER_S;
    assert_non_null(mkdtemp(cluster->folder));
    assert_int_equal(pipe(cluster->events), 0);
    assert_int_equal(sem_init(&cluster->go, 1, 0), 0);
    for (uint32_t i = 0; i < cluster->n; i++) start_worker(cluster);
    while (any_runs(cluster)) {
        const ns_t now = os_now(), next = settle_at != 0 && settle_at < deadline ? settle_at : deadline;
        if (now >= deadline) {
            kill_all(cluster);
            fail_msg("%u workers hang in view %llu", cluster->started, (unsigned long long)cluster->view);
        }
        poll_once(cluster, next > now ? (int)((next - now) / NS_PER_MS) + 1 : 0);
        if (settle_at != 0 && os_now() >= settle_at) settle(cluster);
    }
}

cluster_t *cluster_open(const job_config_t *job, uint32_t n)
{
    cluster_t *cluster =
        mmap(NULL, sizeof *cluster, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(cluster != MAP_FAILED);
    cluster->job = *job;
    cluster->n = n;
    for (uint32_t i = 0; i < WORKERS_MAX; i++) cluster->workers[i].listener = -1;
    snprintf(cluster->folder, sizeof cluster->folder, "/tmp/inspan-cluster-XXXXXX");
    return cluster;
}

void cluster_close(cluster_t *cluster)
{
    for (uint32_t i = 0; i < cluster->started; i++) {
        close(cluster->workers[i].listener);
        if (cluster->workers[i].fd >= 0) close(cluster->workers[i].fd);
    }
    close(cluster->events[0]);
    close(cluster->events[1]);
    sem_destroy(&cluster->go);
    os_remove_all(cluster->folder, NULL);
    munmap(cluster, sizeof *cluster);
}

/* ---- What is right --------------------------------------------------------------------------- */

void cluster_assert_well(const cluster_t *cluster)
{
    for (uint32_t i = 0; i < cluster->started; i++) {
        const worker_t *worker = &cluster->workers[i];
        if (worker->was_killed) continue;
        if (worker->outcome.status != INSPAN_OK)
            fail_msg("worker %u of %u: %s", i, cluster->started, worker->outcome.err.text);
        assert_true(worker->outcome.ended);
    }
}

const outcome_t *cluster_result(const cluster_t *cluster)
{
    for (uint32_t i = 0; i < cluster->started; i++) {
        const worker_t *worker = &cluster->workers[i];
        if (!worker->was_killed && !worker->has_left && worker->outcome.ended &&
            worker->outcome.status == INSPAN_OK)
            return &worker->outcome;
    }
    fail_msg("no worker ended well");
    return NULL;
}

void cluster_assert_same_bits(const cluster_t *cluster)
{
    const outcome_t *first = cluster_result(cluster);
    for (uint32_t i = 0; i < cluster->started; i++) {
        const worker_t *worker = &cluster->workers[i];
        const outcome_t *other = &worker->outcome;
        for (uint64_t step = 0; step < cluster->job.train.steps && step < STEPS_MAX; step++) {
            if (other->hashes[step] == first->hashes[step] || other->hashes[step] == 0 ||
                first->hashes[step] == 0)
                continue;
            fail_msg("worker %u: other bits after step %llu", i, (unsigned long long)step);
        }
        if (worker->was_killed || worker->has_left || !other->ended || !other->stats.full) continue;
        assert_int_equal(other->n, first->n);
        assert_memory_equal(other->weights, first->weights, first->n * sizeof(double));
        assert_true(other->validation_last == first->validation_last && other->loss_last == first->loss_last);
    }
}

void cluster_assert_ledger(const cluster_t *cluster)
{
    const uint64_t leases = cluster->job.train.global_batch;
    for (uint64_t step = 0; step < cluster->job.train.steps; step++)
        for (uint32_t lease = 0; lease < leases && lease < LEASES_SEEN; lease++) {
            int64_t owner = -1;
            for (uint32_t i = 0; i < cluster->started; i++) {
                const outcome_t *outcome = &cluster->workers[i].outcome;
                if (outcome->hashes[step] == 0) continue;
                const int64_t told = outcome->owners[step][lease];
                if (told < 0 || told >= cluster->started || (owner >= 0 && told != owner))
                    fail_msg("step %llu, lease %u: worker %u says it was computed by %lld, others by %lld",
                             (unsigned long long)step, lease, i, (long long)told, (long long)owner);
                owner = told;
            }
            if (owner < 0) fail_msg("step %llu was applied by nobody", (unsigned long long)step);
        }
}

uint64_t cluster_retold(const outcome_t *outcome, uint64_t steps)
{
    uint64_t n = 0;
    for (uint64_t step = 1; step < steps; step++)
        n += memcmp(outcome->owners[step], outcome->owners[step - 1], sizeof outcome->owners[0]) != 0;
    return n;
}
