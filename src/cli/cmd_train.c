#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "cli/checkpoints.h"
#include "cli/client.h"
#include "cli/cluster.h"
#include "cli/common_options.h"
#include "cli/results.h"
#include "cli/show.h"
#include "cli/submit.h"
#include "cli/summary.h"
#include "cli/watch.h"

#define JOIN_BOUND (30 * NS_PER_S)

typedef struct train {
    place_options_t place;
    const char *nodes, *cpu, *link;
    uint64_t local;
    bool json, detach, resume;
    interrupt_t interrupt;
    submit_t *submit;
    cluster_t *cluster; /* of --local */
    rpc_client_t *client;
    Inspan__V1__JobInfo *job; /* as it ended */
    bool fetched;             /* all its results lie in checkpoint.dir */
    uint64_t checkpoint;      /* step of the newest that does; 0: none was fetched */
} train_t;

/* A job begins with all agents of a private cluster, as far as it may have them, and goes on with nodes.min.
 */
static inspan_status_t fit_to_local(train_t *train, inspan_error_t *err)
{
    job_config_t *job = &train->submit->job;
    if (job->nodes.min > train->local)
        return error_set(err, INSPAN_INVALID, "the job needs nodes.min %u, and --local %" PRIu64 " has fewer",
                         job->nodes.min, train->local);
    train->submit->start_nodes = train->local < job->nodes.max ? (uint32_t)train->local : job->nodes.max;
    return INSPAN_OK;
}

static inspan_status_t check_options(train_t *train, char *nodes, inspan_error_t *err)
{
    if (train->local == 0 && (train->cpu != NULL || train->link != NULL))
        return error_set(err, INSPAN_INVALID, "--cpu and --link need --local N");
    if (train->local > 0 && (train->detach || train->nodes != NULL))
        return error_set(err, INSPAN_INVALID,
                         "--local has a cluster of its own, which ends with the job: --detach and "
                         "--nodes do not go with it");
    if (train->local > 0 && (train->place.manager != NULL || train->place.token != NULL))
        return error_set(err, INSPAN_INVALID,
                         "--local has a cluster of its own: --manager and --token do not go with it");
    if (train->resume && submit_find_checkpoint(train->submit, err) != INSPAN_OK) return err->status;
    if (!train->detach && submit_check_results(train->submit, err) != INSPAN_OK) return err->status;
    if (nodes != NULL) return submit_pin(train->submit, nodes, err);
    return train->local > 0 ? fit_to_local(train, err) : INSPAN_OK;
}

static inspan_status_t connect_cluster(train_t *train, inspan_error_t *err)
{
    if (train->local == 0) return client_open(&train->place, &train->client, err);
    cluster_options_t options = {.agents = (uint32_t)train->local, .cpu = train->cpu, .link = train->link};
    char folder[PLACE_PATH_MAX];
    inspan_status_t status = INSPAN_OK;
    if (train->place.folder != NULL) { /* kept: to look at afterwards */
        status = place_folder(train->place.folder, folder, err);
        options.folder = folder;
    }
    if (status == INSPAN_OK) status = cluster_open(&options, &train->interrupt, &train->cluster, err);
    if (status == INSPAN_OK)
        status = rpc_client_open(cluster_manager(train->cluster), cluster_token(train->cluster),
                                 &train->client, err);
    if (status == INSPAN_OK)
        status = cluster_await_nodes(train->cluster, train->client, &train->interrupt, JOIN_BOUND, err);
    return status;
}

/* The job has ended and its results could not be written here: what to do about it. */
static inspan_status_t tell_where_results_are(const train_t *train, inspan_error_t *err)
{
    char text[INSPAN_ERROR_TEXT];
    snprintf(text, sizeof text, "%s", err->text);
    if (train->cluster != NULL && train->place.folder == NULL)
        return error_set(err, err->status, "%.400s; the private cluster ends, and the results with it", text);
    return error_set(err, err->status,
                     "%.400s; the manager keeps the results for a day: inspan results %" PRIu64 " FOLDER",
                     text, train->job->id);
}

static void tell_submitted(const train_t *train, uint64_t id)
{
    const submit_t *submit = train->submit;
    if (!train->detach) {
        fprintf(stderr, "job %" PRIu64 " (%s) is submitted", id, submit->job.name);
        if (submit->resume.given)
            fprintf(stderr, "; it goes on after step %" PRIu64 " (%s)", submit->resume.step,
                    submit->resume.path);
        fputc('\n', stderr);
    } else if (train->json) {
        json_t *object = json_object();
        json_set_number(object, "job", (double)id);
        show_print_json(object);
    } else {
        printf("job %" PRIu64 " is submitted (inspan job %" PRIu64 " shows it, inspan results %" PRIu64
               " fetches what it writes)\n",
               id, id, id);
    }
}

/* Follow the job to its end, with its checkpoints on the way. */
static inspan_status_t follow(train_t *train, uint64_t id, inspan_error_t *err)
{
    const job_config_t *job = &train->submit->job;
    watch_options_t watch = {.global_batch = job->train.global_batch,
                             .evaluate_every = job->train.evaluate_every,
                             .interrupt = &train->interrupt,
                             .cluster = train->cluster};
    inspan_status_t status = INSPAN_OK;
    inspan_error_t lost = {0};
    if (job->checkpoint.every > 0)
        status = checkpoint_fetch_open(train->client, train->submit->results, submit_keep(train->submit),
                                       &watch.checkpoints, err);
    if (status == INSPAN_OK) status = watch_job(train->client, id, &watch, &train->job, err);
    /* a checkpoint that is not here is no reason to leave the result there */
    if (status == INSPAN_OK && watch.checkpoints != NULL &&
        checkpoint_fetch_finish(watch.checkpoints, &train->interrupt, &train->checkpoint, &lost) != INSPAN_OK)
        fprintf(stderr, "inspan: %s\n", lost.text);
    checkpoint_fetch_close(watch.checkpoints);
    return status;
}

static inspan_status_t run(train_t *train, inspan_error_t *err)
{
    uint64_t id = 0;
    inspan_status_t status = connect_cluster(train, err);
    if (status == INSPAN_OK) status = submit_send(train->submit, train->client, &train->interrupt, &id, err);
    if (status != INSPAN_OK) return status;
    tell_submitted(train, id);
    if (train->detach) return INSPAN_OK;
    status = follow(train, id, err);
    if (status != INSPAN_OK) return status;
    status = results_fetch(train->client, train->job, train->submit->results, err);
    train->fetched = status == INSPAN_OK;
    return train->fetched ? INSPAN_OK : tell_where_results_are(train, err);
}

/* "out/step-00000200"; empty: none was fetched. */
static void checkpoint_text(const train_t *train, char text[PLACE_PATH_MAX + 40])
{
    char name[32];
    text[0] = '\0';
    if (train->checkpoint == 0) return;
    checkpoint_name(train->checkpoint, name);
    snprintf(text, PLACE_PATH_MAX + 40, "%s/%s", train->submit->results, name);
}

/* What is left to say once the job has ended; lost: why its results are not here, or NULL. The exit code. */
static int conclude(const train_t *train, const inspan_error_t *lost)
{
    char checkpoint[PLACE_PATH_MAX + 40];
    bool done = strcmp(train->job->state, "done") == 0;
    json_t *summary = summary_json(train->job);
    checkpoint_text(train, checkpoint);
    if (train->json) {
        const bool written = train->fetched && train->job->n_results > 0;
        json_set_string(summary, "results", written ? train->submit->results : NULL);
        json_set_string(summary, "checkpoint", checkpoint[0] != '\0' ? checkpoint : NULL);
        if (lost != NULL) json_set(summary, "error", cli_error_json(lost));
        if (show_print_json(summary) != CLI_EXIT_OK) return CLI_EXIT_CLUSTER;
    } else {
        summary_print(stdout, summary);
        for (size_t i = 0; train->fetched && i < train->job->n_results; i++)
            printf("  wrote %s/%s\n", train->submit->results, train->job->results[i]->name);
        if (checkpoint[0] != '\0') printf("  newest checkpoint %s\n", checkpoint);
        json_free(summary);
    }
    fflush(stdout);
    if (done) return CLI_EXIT_OK;
    const char *reason = train->job->reason;
    if (reason[0] == '\0' && train->job->failure != NULL) reason = train->job->failure->text;
    fprintf(stderr, "inspan: job %" PRIu64 " %s%s%s\n", train->job->id,
            strcmp(train->job->state, "cancelled") == 0 ? "was cancelled" : "failed",
            reason[0] != '\0' ? ": " : "", reason);
    if (checkpoint[0] != '\0')
        fprintf(stderr, "inspan: \"inspan train ... --resume\" goes on after step %" PRIu64 "\n",
                train->checkpoint);
    return CLI_EXIT_JOB;
}

/* Everything between the checks and the exit code; whatever happens, the private cluster is taken down. */
static int train_checked(train_t *train)
{
    inspan_error_t err = {0};
    if (!interrupt_open(&train->interrupt)) {
        error_set(&err, INSPAN_IO, "no descriptor left");
        return cli_fail(&err, train->json);
    }
    inspan_status_t status = run(train, &err);
    int code = CLI_EXIT_OK;
    if (train->job != NULL) code = conclude(train, status != INSPAN_OK ? &err : NULL);
    if (status == INSPAN_ABORTED) code = CLI_EXIT_JOB;
    if (status != INSPAN_OK) {
        int failed = cli_fail(&err, train->json && train->job == NULL);
        if (train->job != NULL && status == INSPAN_IO)
            failed = CLI_EXIT_USER; /* the disk here, not the cluster */
        if (code == CLI_EXIT_OK) code = failed;
    }
    client_free(train->job);
    if (train->client != NULL) rpc_client_close(train->client);
    cluster_close(train->cluster);
    interrupt_close(&train->interrupt);
    return code;
}

int cmd_train(int argc, char **argv)
{
    train_t train = {0};
    cli_list_t set = {0};
    const cli_option_t options[] = {
        {.name = "set",
         .type = CLI_LIST,
         .argument = "KEY=VALUE",
         .help = "override a field, as in train.steps=50",
         .value = &set},
        {.name = "nodes",
         .type = CLI_TEXT,
         .argument = "A,B",
         .help = "run on these nodes",
         .value = &train.nodes},
        OPTION_LOCAL(&train.local),
        OPTION_CPU(&train.cpu),
        OPTION_LINK(&train.link),
        {.name = "resume",
         .type = CLI_FLAG,
         .help = "go on from the newest complete checkpoint in checkpoint.dir",
         .value = &train.resume},
        {.name = "detach",
         .type = CLI_FLAG,
         .help = "submit and return; inspan job N shows it, inspan results N fetches",
         .value = &train.detach},
        OPTION_MANAGER(&train.place),
        OPTION_TOKEN(&train.place),
        OPTION_DIR(&train.place),
        OPTION_JSON(&train.json)};
    cli_operands_t operands;
    int code = cli_parse(argc, argv, options, COUNT_OF(options), 1, 1, &operands);
    if (code >= 0) return code;

    inspan_error_t err = {0};
    char *nodes = train.nodes != NULL ? strdup(train.nodes) : NULL;
    train.submit = calloc(1, sizeof *train.submit);
    if (train.submit == NULL || (train.nodes != NULL && nodes == NULL)) {
        error_set(&err, INSPAN_NO_MEMORY, "out of memory");
        code = cli_fail(&err, train.json);
    } else if (submit_prepare(operands.items[0], &set, train.submit, &err) != INSPAN_OK ||
               check_options(&train, nodes, &err) != INSPAN_OK) {
        code = cli_fail_user(&err, train.json);
    } else {
        code = train_checked(&train);
    }
    free(train.submit);
    free(nodes);
    return code;
}
