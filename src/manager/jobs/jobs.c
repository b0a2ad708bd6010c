/* Jobs: submitted, placed, moved by the reports of their workers; act.c does what their controller decides.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/protocol.h"
#include "base/utf8.h"
#include "core/sched/sched.h"
#include "manager/jobs/address.h"
#include "manager/jobs/convert.h"
#include "manager/jobs/fleet_internal.h"
#include "platform/os/os_time.h"

#define NAME_MAX_BYTES   100
#define MODEL_KEY_BYTES  128
#define LEAVING_NS       (10 * NS_PER_S)
#define DATA_BYTES_PER_S 1000000 /* the slowest link that a data file is given time for */

fleet_job_t *fleet_job(const fleet_t *fleet, uint64_t id)
{
    for (size_t i = fleet->jobs.n; i-- > 0;)
        if (fleet->jobs.items[i]->control.id == id) return fleet->jobs.items[i];
    return NULL;
}

static bool artifact_names_file(const Inspan__V1__Artifact *artifact, const char *hash)
{
    for (size_t i = 0; artifact != NULL && i < artifact->n_files; i++)
        if (strcmp(artifact->files[i]->hash, hash) == 0) return true;
    return false;
}

static bool job_names_file(const fleet_job_t *job, const char *hash)
{
    for (size_t i = 0; i < job->request->n_data; i++)
        if (strcmp(job->request->data[i]->hash, hash) == 0) return true;
    for (uint32_t r = 0; job->reports != NULL && r < job->control.world; r++)
        for (size_t i = 0; job->reports[r] != NULL && i < job->reports[r]->n_results; i++)
            if (strcmp(job->reports[r]->results[i]->hash, hash) == 0) return true;
    for (uint32_t i = 0; i < job->n_checkpoints; i++)
        if (artifact_names_file(job->checkpoints[i], hash)) return true;
    return artifact_names_file(job->result, hash) || artifact_names_file(job->request->resume, hash);
}

bool fleet_names_file(const fleet_t *fleet, const char *hash)
{
    for (size_t i = 0; i < fleet->jobs.n; i++)
        if (job_names_file(fleet->jobs.items[i], hash)) return true;
    return false;
}

uint32_t fleet_n_jobs(const fleet_t *fleet)
{
    return (uint32_t)fleet->jobs.n;
}

fleet_job_t *fleet_job_at(const fleet_t *fleet, uint32_t index)
{
    return fleet->jobs.items[index];
}

fleet_job_t *fleet_job_new(uint64_t id, const Inspan__V1__SubmitRequest *request)
{
    fleet_job_t *job = calloc(1, sizeof *job);
    if (job == NULL) return NULL;
    control_limits_t limits = CONTROL_LIMITS_DEFAULT;
    for (size_t i = 0; i < request->n_data; i++)
        if (request->data[i]->fetch)
            limits.start += (ns_t)(request->data[i]->bytes / DATA_BYTES_PER_S) * NS_PER_S;
    job->request = convert_copy(&request->base);
    if (job->request == NULL || control_job_open(&job->control, id, &limits) != INSPAN_OK) {
        fleet_job_free(job);
        return NULL;
    }
    return job;
}

static void free_reports(fleet_job_t *job)
{
    for (uint32_t r = 0; job->reports != NULL && r < job->control.world; r++)
        if (job->reports[r] != NULL) protobuf_c_message_free_unpacked(&job->reports[r]->base, NULL);
    free(job->reports);
    job->reports = NULL;
}

void fleet_job_free(fleet_job_t *job)
{
    if (job == NULL) return;
    free_reports(job);
    fleet_free_artifacts(job);
    if (job->said != NULL) inspan__v1__job_info__free_unpacked(job->said, NULL);
    if (job->request != NULL) protobuf_c_message_free_unpacked(&job->request->base, NULL);
    control_job_close(&job->control);
    free(job);
}

/* ---- Submitting ---- */

static bool has_control_character(const char *text)
{
    for (; *text != '\0'; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f) return true;
    return false;
}

static bool is_utf8(const char *text)
{
    size_t left = strlen(text);
    for (size_t n; left > 0; text += n, left -= n)
        if ((n = utf8_length(text, left)) == 0) return false;
    return true;
}

/* Texts that go onto terminals, into JSON and, as lines, into a worker's configuration. */
static inspan_status_t check_text(const char *what, const char *text, size_t most, inspan_error_t *err)
{
    if (strlen(text) > most)
        return error_set(err, INSPAN_LIMIT, "the %s is longer than %zu bytes", what, most);
    if (has_control_character(text))
        return error_set(err, INSPAN_INVALID, "the %s has control characters", what);
    if (!is_utf8(text)) return error_set(err, INSPAN_INVALID, "the %s is not UTF-8", what);
    return INSPAN_OK;
}

static inspan_status_t check_texts(const Inspan__V1__SubmitRequest *request, inspan_error_t *err)
{
    inspan_status_t status = check_text("job's name", request->name, NAME_MAX_BYTES, err);
    if (status == INSPAN_OK)
        status = check_text("name of the model", request->model_key, MODEL_KEY_BYTES, err);
    for (size_t i = 0; i < request->n_data && status == INSPAN_OK; i++) {
        status = check_text("data file's key", request->data[i]->key, 64, err);
        if (status == INSPAN_OK) status = check_text("data file's path", request->data[i]->path, 4096, err);
        if (status == INSPAN_OK) status = check_text("data file's hash", request->data[i]->hash, 64, err);
    }
    for (size_t i = 0; i < request->n_pinned && status == INSPAN_OK; i++)
        status = check_text("name of a node", request->pinned[i], 64, err);
    for (size_t i = 0; request->resume != NULL && i < request->resume->n_files && status == INSPAN_OK; i++) {
        status = check_text("name of a checkpoint's file", request->resume->files[i]->name, 255, err);
        if (status == INSPAN_OK)
            status = check_text("checkpoint file's hash", request->resume->files[i]->hash, 64, err);
    }
    return status;
}

static inspan_status_t check_data(const fleet_t *fleet, const Inspan__V1__SubmitRequest *request,
                                  inspan_error_t *err)
{
    for (size_t i = 0; i < request->n_data; i++) {
        const Inspan__V1__DataFile *file = request->data[i];
        char has[32], most[32];
        if (!file->fetch) continue;
        if (file->bytes > FLEET_DATA_MAX)
            return error_set(err, INSPAN_LIMIT,
                             "%.200s has %s, more than %s: it must lie at the same path on each node",
                             file->path, units_format_size(file->bytes, has, sizeof has),
                             units_format_size(FLEET_DATA_MAX, most, sizeof most));
        if (!fleet->ports.file_present(fleet->ports.context, file->hash, file->bytes))
            return error_set(err, INSPAN_NOT_FOUND, "the data file %.200s (%.64s) was not uploaded",
                             file->path, file->hash);
    }
    for (size_t i = 0; request->resume != NULL && i < request->resume->n_files; i++) {
        const Inspan__V1__ResultFile *file = request->resume->files[i];
        if (!fleet->ports.file_present(fleet->ports.context, file->hash, file->bytes))
            return error_set(err, INSPAN_NOT_FOUND, "the checkpoint's file %.200s (%.64s) was not uploaded",
                             file->name, file->hash);
    }
    return INSPAN_OK;
}

static inspan_status_t check_request(const fleet_t *fleet, const Inspan__V1__SubmitRequest *request,
                                     inspan_error_t *err)
{
    if (request->n_data > FLEET_DATA_FILES)
        return error_set(err, INSPAN_LIMIT, "%zu data files, at most %d", request->n_data, FLEET_DATA_FILES);
    if (request->n_pinned > SCHED_WORLD_MAX)
        return error_set(err, INSPAN_LIMIT, "%zu nodes named, at most %d", request->n_pinned,
                         SCHED_WORLD_MAX);
    inspan_status_t status = check_texts(request, err);
    if (status != INSPAN_OK) return status;
    if (!is_utf8(request->config))
        return error_set(err, INSPAN_INVALID, "the job's configuration is not UTF-8");
    if (request->config[0] == '\0') return error_set(err, INSPAN_INVALID, "the job has no configuration");
    if (strlen(request->config) > FLEET_CONFIG_MAX)
        return error_set(err, INSPAN_LIMIT, "the job's configuration is longer than %d bytes",
                         FLEET_CONFIG_MAX);
    if (request->failure_timeout_ns < NS_PER_S || request->failure_timeout_ns > 3600 * NS_PER_S)
        return error_set(err, INSPAN_INVALID, "failure_timeout %.3f s: expected 1 s to 1 h",
                         ns_to_s(request->failure_timeout_ns));
    if (request->resume != NULL && request->resume->n_files > FLEET_RESULTS_MAX)
        return error_set(err, INSPAN_LIMIT, "a checkpoint of %zu files, at most %d", request->resume->n_files,
                         FLEET_RESULTS_MAX);
    uint32_t waiting = 0;
    for (size_t i = 0; i < fleet->jobs.n; i++)
        waiting += fleet->jobs.items[i]->control.state == CONTROL_QUEUED;
    if (waiting >= FLEET_QUEUE_MAX)
        return error_set(err, INSPAN_LIMIT, "%u jobs wait already: cancel some", waiting);
    return check_data(fleet, request, err);
}

/* `nodes.gpu` of the job's own text: any kind but none is a wish. */
static bool wishes_gpu(const char *config)
{
    const char *line = strncmp(config, "nodes.gpu=", 10) == 0 ? config : strstr(config, "\nnodes.gpu=");
    if (line == NULL) return false;
    const char *value = strchr(line, '=') + 1;
    size_t length = strcspn(value, "\r\n");
    return length > 0 && !(length == 4 && strncmp(value, "none", 4) == 0);
}

static sched_job_t wish_of(uint64_t id, const Inspan__V1__SubmitRequest *request)
{
    bool elastic = !request->abort_on_loss && request->min_nodes <= CONTROL_ELASTIC_MAX;
    return (sched_job_t){
        .id = id,
        .memory_bytes = request->memory_bytes,
        .model_bytes = request->model_bytes,
        .gpu = wishes_gpu(request->config),
        .min_nodes = request->start_nodes > request->min_nodes ? request->start_nodes : request->min_nodes,
        .max_nodes =
            elastic && request->max_nodes > CONTROL_ELASTIC_MAX ? CONTROL_ELASTIC_MAX : request->max_nodes,
        .pinned = (const char *const *)request->pinned,
        .n_pinned = (uint32_t)request->n_pinned};
}

static sched_node_t offer_of(const fleet_t *fleet, const fleet_node_t *node)
{
    const Inspan__V1__Inventory *inventory = node->registration->inventory;
    const fleet_job_t *last = fleet_job_on(fleet, node);
    sched_node_t offer = {.name = node->name,
                          .machine = "",
                          .ready = node->life.state == LIVENESS_ATTACHED && node->session != NULL,
                          .busy = last != NULL,
                          .local_only = !address_has_routable(node->address, inventory),
                          .elastic = node->registration->protocol_minor >= FLEET_ELASTIC};
    ns_t wall = os_wall_now();
    if (node->rest.drained)
        offer.resting = "is drained";
    else if (node->rest.quarantined)
        offer.resting = "is in quarantine";
    else if (!rest_usable(&node->rest, wall))
        offer.resting = "cools down";
    else if (fleet_node_kept(node))
        offer.resting = "is kept by its owner";
    /* a process that nobody can end does not hold others up for ever */
    offer.leaving =
        last != NULL && control_job_over(&last->control) && os_now() - last->ended_at < LEAVING_NS;
    if (last != NULL) offer.used_bytes = last->request->memory_bytes;
    if (inventory == NULL) return offer;
    offer.machine = inventory->boot_id;
    offer.memory_bytes = inventory->memory_bytes;
    offer.cores = inventory->usable_cores;
    offer.gpus = (uint32_t)inventory->n_gpus;
    return offer;
}

static inspan_status_t offers_of(const fleet_t *fleet, sched_node_t **offers, inspan_error_t *err)
{
    *offers = calloc(fleet->nodes.n > 0 ? fleet->nodes.n : 1, sizeof **offers);
    if (*offers == NULL) return error_set(err, INSPAN_NO_MEMORY, "out of memory");
    for (size_t i = 0; i < fleet->nodes.n; i++) (*offers)[i] = offer_of(fleet, fleet->nodes.items[i]);
    return INSPAN_OK;
}

inspan_status_t fleet_submit(fleet_t *fleet, const Inspan__V1__SubmitRequest *request, ns_t now,
                             fleet_job_t **out, inspan_error_t *err)
{
    inspan_status_t status = check_request(fleet, request, err);
    if (status != INSPAN_OK) return status;
    sched_node_t *offers = NULL;
    status = offers_of(fleet, &offers, err);
    if (status != INSPAN_OK) return status;
    sched_job_t wish = wish_of(0, request);
    status = sched_admit(&wish, offers, (uint32_t)fleet->nodes.n, err);
    free(offers);
    if (status != INSPAN_OK) return status;
    fleet_job_t *job = fleet_job_new(0, request);
    if (job == NULL) return error_set(err, INSPAN_NO_MEMORY, "out of memory");
    job->submitted_wall = os_wall_now();
    job->told = CONTROL_QUEUED;
    /* in memory first: a job in the registry that nobody follows would never end */
    status = VEC_PUSH(&fleet->jobs, job) ? INSPAN_OK : error_set(err, INSPAN_NO_MEMORY, "out of memory");
    if (status == INSPAN_OK) {
        status = fleet_store_job(fleet, job, err); /* gives the id */
        if (status != INSPAN_OK) fleet->jobs.n--;
    }
    if (status != INSPAN_OK) {
        fleet_job_free(job);
        return status;
    }
    fleet_event(fleet, job->control.id, 0, "submitted");
    fleet->look_at_queue = true;
    fleet_schedule(fleet, now); /* so that the answer says whether it starts or why it waits */
    *out = job;
    return INSPAN_OK;
}

inspan_status_t fleet_cancel(fleet_t *fleet, uint64_t id, const char *text, ns_t now, fleet_job_t **out,
                             inspan_error_t *err)
{
    fleet_job_t *job = fleet_job(fleet, id);
    if (job == NULL)
        return error_set(err, INSPAN_NOT_FOUND, "no unfinished job %llu: see `inspan jobs`",
                         (unsigned long long)id);
    control_job_cancel(&job->control, text, now);
    fleet_act(fleet, job, now);
    *out = job;
    if (job->control.unstored || job->unsaved)
        return error_set(err, INSPAN_IO,
                         "the registry cannot be written: job %llu will be cancelled as soon as it can",
                         (unsigned long long)id);
    return INSPAN_OK;
}

/* ---- The queue ---- */

/* Loopback serves only ranks of one machine; where the job spans several, each gets the address towards the
 * others. */
static const char *address_for(const fleet_t *fleet, const sched_placement_t *placement, uint32_t r)
{
    const fleet_node_t *node = fleet->nodes.items[placement->nodes[r]];
    if (!address_is_loopback(node->address)) return node->address;
    const Inspan__V1__Inventory *own = node->registration->inventory;
    for (uint32_t i = 0; i < placement->n_nodes; i++) {
        const fleet_node_t *other = fleet->nodes.items[placement->nodes[i]];
        if (address_is_loopback(other->address)) continue;
        const char *found = address_towards(own, other->address);
        return found != NULL ? found : node->address;
    }
    return node->address; /* all of them loopback: the scheduler made sure that they share the machine */
}

void fleet_make_elastic(fleet_job_t *job)
{
    const Inspan__V1__SubmitRequest *request = job->request;
    uint32_t pinned = (uint32_t)request->n_pinned; /* exactly these, as far as they are there */
    control_job_elastic(&job->control,
                        pinned > 0 && request->min_nodes > pinned ? pinned : request->min_nodes,
                        pinned > 0 ? pinned : request->max_nodes);
}

/* It may lose members, and every agent knows how that goes. */
static bool is_elastic(const fleet_t *fleet, const fleet_job_t *job, const sched_placement_t *placement)
{
    if (job->request->abort_on_loss || placement->n_nodes > CONTROL_ELASTIC_MAX) return false;
    for (uint32_t r = 0; r < placement->n_nodes; r++)
        if (fleet->nodes.items[placement->nodes[r]]->registration->protocol_minor < FLEET_ELASTIC)
            return false;
    return true;
}

static void start(fleet_t *fleet, fleet_job_t *job, const sched_placement_t *placement, ns_t now)
{
    control_rank_t *ranks = calloc(placement->n_nodes, sizeof *ranks);
    Inspan__V1__WorkerReport **reports = calloc(placement->n_nodes, sizeof(Inspan__V1__WorkerReport *));
    for (uint32_t r = 0; ranks != NULL && r < placement->n_nodes; r++) {
        const fleet_node_t *node = fleet->nodes.items[placement->nodes[r]];
        ranks[r].node = node->handle;
        snprintf(ranks[r].node_name, sizeof ranks[r].node_name, "%s", node->name);
        snprintf(ranks[r].node_id, sizeof ranks[r].node_id, "%s", node->node_id);
        snprintf(ranks[r].address, sizeof ranks[r].address, "%s", address_for(fleet, placement, r));
    }
    job->control.elastic = false;
    if (is_elastic(fleet, job, placement)) fleet_make_elastic(job);
    if (ranks == NULL || reports == NULL ||
        control_job_start(&job->control, ranks, placement->n_nodes, now) != INSPAN_OK) {
        free(reports);
        snprintf(job->why, sizeof job->why, "the manager is out of memory");
        log_error("job %llu cannot start: out of memory", (unsigned long long)job->control.id);
    } else {
        free_reports(job);
        job->reports = reports;
        job->why[0] = '\0';
        fleet_act(fleet, job, now);
    }
    free(ranks);
}

/* ---- Growing ---- */

/* Members that were reached by loopback until now are reached from another machine, too. */
static void widen_addresses(const fleet_t *fleet, fleet_job_t *job, const char *newcomer)
{
    if (address_is_loopback(newcomer)) return;
    for (uint32_t r = 0; r < job->control.world; r++) {
        control_rank_t *rank = &job->control.ranks[r];
        const fleet_node_t *node = fleet_node_by_handle(fleet, rank->node);
        if (rank->state >= CONTROL_RANK_LEFT || !address_is_loopback(rank->address) || node == NULL) continue;
        const char *found = address_towards(node->registration->inventory, newcomer);
        if (found != NULL) snprintf(rank->address, sizeof rank->address, "%s", found);
    }
}

static const char *address_of_newcomer(const fleet_job_t *job, const fleet_node_t *node)
{
    if (!address_is_loopback(node->address)) return node->address;
    for (uint32_t r = 0; r < job->control.world; r++) {
        const control_rank_t *rank = &job->control.ranks[r];
        if (rank->state >= CONTROL_RANK_LEFT || address_is_loopback(rank->address)) continue;
        const char *found = address_towards(node->registration->inventory, rank->address);
        return found != NULL ? found : node->address;
    }
    return node->address;
}

static void grow(fleet_t *fleet, fleet_job_t *job, const fleet_node_t *node, ns_t now)
{
    control_rank_t rank = {.node = node->handle};
    snprintf(rank.node_name, sizeof rank.node_name, "%s", node->name);
    snprintf(rank.node_id, sizeof rank.node_id, "%s", node->node_id);
    snprintf(rank.address, sizeof rank.address, "%s", address_of_newcomer(job, node));
    uint32_t world = job->control.world;
    Inspan__V1__WorkerReport **reports =
        realloc(job->reports, ((size_t)world + 1) * sizeof(Inspan__V1__WorkerReport *));
    if (reports == NULL) return; /* asked again soon */
    job->reports = reports;
    reports[world] = NULL;
    if (control_job_grow(&job->control, &rank, now) != INSPAN_OK) return;
    widen_addresses(fleet, job, rank.address);
    log_info("job %llu: worker %u starts on node %s", (unsigned long long)job->control.id, world, node->name);
    fleet_act(fleet, job, now);
}

static bool is_at_work(const fleet_job_t *job, uint32_t r)
{
    return job->control.ranks[r].state < CONTROL_RANK_LEFT;
}

static bool ran_out_of_memory(const fleet_job_t *job, uint32_t r)
{
    const Inspan__V1__WorkerReport *report = job->reports[r];
    return job->control.ranks[r].state == CONTROL_RANK_FAILED && report != NULL && report->failure != NULL &&
           report->failure->status == INSPAN_NO_MEMORY;
}

/* Indices of the nodes of such workers; the caller frees them. */
static const uint32_t *nodes_of(const fleet_t *fleet, const fleet_job_t *job,
                                bool (*which)(const fleet_job_t *, uint32_t), uint32_t *n)
{
    *n = 0;
    uint32_t *nodes = calloc(CONTROL_RANKS_MAX, sizeof *nodes);
    for (uint32_t r = 0; nodes != NULL && r < job->control.world; r++) {
        if (!which(job, r)) continue;
        for (uint32_t i = 0; i < fleet->nodes.n; i++)
            if (fleet->nodes.items[i]->handle == job->control.ranks[r].node) nodes[(*n)++] = i;
    }
    return nodes;
}

/* Those where it ran out of memory, and those that it does without for a while. One that has too few anyway
 * tries them again: it ends with that reason, or another process is gone. The caller frees it. */
static const uint32_t *avoided_by(const fleet_t *fleet, const fleet_job_t *job, ns_t now, uint32_t *n)
{
    const uint32_t most = CONTROL_RANKS_MAX;
    uint32_t *nodes = (uint32_t *)(uintptr_t)nodes_of(fleet, job, ran_out_of_memory, n);
    for (uint32_t i = 0; nodes != NULL && i < fleet->nodes.n && *n < most; i++)
        if (control_job_avoids(&job->control, fleet->nodes.items[i]->handle, now)) nodes[(*n)++] = i;
    if (control_job_active(&job->control) < job->control.min_nodes) *n = 0;
    return nodes;
}

/* ---- One round ---- */

typedef struct round {
    vec_of(fleet_job_t *) jobs;
    vec_of(sched_job_t) wishes;
    sched_node_t *offers;
    sched_placement_t *placements;
} round_t;

static bool add_wish(round_t *round, fleet_job_t *job, sched_job_t wish)
{
    return VEC_PUSH(&round->jobs, job) && VEC_PUSH(&round->wishes, wish);
}

/* Those that wait, then those that run on fewer nodes than they may. */
static bool collect(const fleet_t *fleet, round_t *round, ns_t now)
{
    bool good = true;
    for (size_t i = 0; i < fleet->jobs.n && good; i++) {
        fleet_job_t *job = fleet->jobs.items[i];
        if (job->control.state == CONTROL_QUEUED)
            good = add_wish(round, job, wish_of(job->control.id, job->request));
    }
    for (size_t i = 0; i < fleet->jobs.n && good; i++) {
        fleet_job_t *job = fleet->jobs.items[i];
        uint32_t wanted = control_job_wants(&job->control);
        if (wanted == 0) continue;
        sched_job_t wish = wish_of(job->control.id, job->request);
        wish.grows = true;
        wish.min_nodes = 1;
        wish.max_nodes = wanted;
        wish.members = nodes_of(fleet, job, is_at_work, &wish.n_members);
        wish.avoided = avoided_by(fleet, job, now, &wish.n_avoided);
        good = wish.members != NULL && wish.avoided != NULL && add_wish(round, job, wish);
        if (good) continue;
        free((void *)(uintptr_t)wish.members);
        free((void *)(uintptr_t)wish.avoided);
    }
    return good;
}

static void carry_out(fleet_t *fleet, fleet_job_t *job, const sched_placement_t *placement, bool grows,
                      ns_t now)
{
    if (grows) {
        for (uint32_t i = 0; placement->starts && i < placement->n_nodes; i++)
            grow(fleet, job, fleet->nodes.items[placement->nodes[i]], now);
    } else if (placement->starts) {
        start(fleet, job, placement, now);
    } else if (strcmp(job->why, placement->why) != 0) {
        snprintf(job->why, sizeof job->why, "%s", placement->why);
        char text[CONTROL_REASON_MAX + 16];
        snprintf(text, sizeof text, "waits: %s", job->why);
        fleet->ports.job_changed(fleet->ports.context, job, text, false);
    }
}

void fleet_schedule(fleet_t *fleet, ns_t now)
{
    fleet->look_at_queue = false;
    round_t round = {.offers = NULL};
    bool good = collect(fleet, &round, now);
    if (good && round.jobs.n > 0) {
        round.placements = calloc(round.jobs.n, sizeof *round.placements);
        good = round.placements != NULL && offers_of(fleet, &round.offers, NULL) == INSPAN_OK;
    }
    if (good && round.jobs.n > 0) {
        sched_round(round.wishes.items, (uint32_t)round.jobs.n, round.offers, (uint32_t)fleet->nodes.n,
                    round.placements);
        for (size_t i = 0; i < round.jobs.n; i++)
            carry_out(fleet, round.jobs.items[i], &round.placements[i], round.wishes.items[i].grows, now);
    }
    if (!good) fleet->look_at_queue = true; /* no memory now: at the next tick */
    for (size_t i = 0; i < round.wishes.n; i++) {
        free((void *)round.wishes.items[i].members);
        free((void *)round.wishes.items[i].avoided);
    }
    free(round.offers);
    free(round.placements);
    vec_free(&round.jobs);
    vec_free(&round.wishes);
}

/* ---- Reports ---- */

static bool is_end(const Inspan__V1__WorkerReport *message)
{
    return message->state == INSPAN__V1__WORKER_STATE__WORKER_DONE ||
           message->state == INSPAN__V1__WORKER_STATE__WORKER_FAILED;
}

/* The last report of a rank; what a newer one does not say is kept from the older. */
void fleet_keep_report(fleet_job_t *job, const Inspan__V1__WorkerReport *message)
{
    if (job->reports == NULL || message->rank >= job->control.world) return;
    if (strlen(message->summary_json) > FLEET_SUMMARY_MAX || message->n_results > FLEET_RESULTS_MAX) return;
    if (protobuf_c_message_get_packed_size(&message->base) > FLEET_REPORT_MAX) return;
    if (message->failure != NULL &&
        protobuf_c_message_get_packed_size(&message->failure->base) > FLEET_FAILURE_MAX)
        return;
    Inspan__V1__WorkerReport *old = job->reports[message->rank];
    if (old != NULL && is_end(old) && !is_end(message)) return; /* late */
    Inspan__V1__WorkerReport *fresh = convert_copy(&message->base);
    if (fresh == NULL) return; /* the next one replaces it */
    if (old != NULL && fresh->progress == NULL) {
        fresh->progress = old->progress;
        old->progress = NULL;
    }
    if (old != NULL && fresh->failure == NULL && is_end(fresh)) {
        fresh->failure = old->failure;
        old->failure = NULL;
    }
    if (old != NULL) protobuf_c_message_free_unpacked(&old->base, NULL);
    job->reports[message->rank] = fresh;
}

void fleet_report(fleet_t *fleet, fleet_node_t *node, const Inspan__V1__WorkerReport *message, ns_t now)
{
    liveness_heard(&node->life, now);
    fleet_job_t *job = fleet_job(fleet, message->job_id);
    control_report_t report;
    if (job == NULL || !convert_report(message, node->handle, &report)) return;
    if (report.rank >= job->control.world || job->control.ranks[report.rank].node != node->handle) return;
    fleet_keep_report(job, message);
    fleet_note_speed(fleet, job, node, message, now);
    control_job_report(&job->control, &report, now);
    bool silent = job->control.actions.n == 0;
    fleet_act(fleet, job, now);
    if (silent) fleet->ports.job_changed(fleet->ports.context, job, NULL, false);
}
