/* jobs, job N, cancel N */
#include <inttypes.h>
#include <string.h>

#include "cli/client.h"
#include "cli/common_options.h"
#include "cli/ledger.h"
#include "cli/show.h"
#include "cli/summary.h"
#include "cli/watch.h"

int cmd_jobs(int argc, char **argv)
{
    place_options_t place = {0};
    bool json = false;
    cli_operands_t operands;
    int code = common_parse(argc, argv, 0, 0, &place, &json, &operands);
    if (code >= 0) return code;

    inspan_error_t err = {0};
    rpc_client_t *client = NULL;
    Inspan__V1__JobList *list = NULL;
    Inspan__V1__Empty request = INSPAN__V1__EMPTY__INIT;
    if (client_open(&place, &client, &err) == INSPAN_OK)
        list =
            client_call(client, "Cluster/ListJobs", &request.base, &inspan__v1__job_list__descriptor, &err);
    code = CLI_EXIT_OK;
    if (list == NULL)
        code = cli_fail(&err, json);
    else if (json)
        code = show_print_json(show_jobs_json(list));
    else
        show_jobs(stdout, list);
    client_free(list);
    if (client != NULL) rpc_client_close(client);
    return code;
}

typedef Inspan__V1__JobInfo *(*job_call_t)(rpc_client_t *client, uint64_t id, inspan_error_t *err);

/* The common part of job and cancel: call, show. */
static int one_job(const place_options_t *place, const char *number, bool json, job_call_t call,
                   void (*show)(const Inspan__V1__JobInfo *job))
{
    inspan_error_t err = {0};
    rpc_client_t *client = NULL;
    Inspan__V1__JobInfo *job = NULL;
    uint64_t id = 0;
    if (client_parse_job(number, &id, &err) == INSPAN_OK && client_open(place, &client, &err) == INSPAN_OK)
        job = call(client, id, &err);
    int code = CLI_EXIT_OK;
    if (job == NULL)
        code = cli_fail(&err, json);
    else if (json)
        code = show_print_json(show_job_json(job));
    else
        show(job);
    client_free(job);
    if (client != NULL) rpc_client_close(client);
    return code;
}

static void show_whole_job(const Inspan__V1__JobInfo *job)
{
    show_job(stdout, job);
    if (!watch_has_ended(job) || job->n_ranks == 0) return;
    json_t *summary = summary_json(job);
    fputc('\n', stdout);
    summary_print(stdout, summary);
    json_free(summary);
}

/* job N --ledger */
static int show_ledger(const place_options_t *place, const char *number, bool json)
{
    inspan_error_t err = {0};
    rpc_client_t *client = NULL;
    ledger_t ledger = {0};
    uint64_t id = 0;
    inspan_status_t status = client_parse_job(number, &id, &err);
    if (status == INSPAN_OK) status = client_open(place, &client, &err);
    if (status == INSPAN_OK) status = ledger_read(client, id, &ledger, &err);
    int code = CLI_EXIT_OK;
    if (status != INSPAN_OK)
        code = cli_fail(&err, json);
    else if (json)
        code = show_print_json(ledger_json(&ledger));
    else
        ledger_show(stdout, &ledger);
    ledger_free(&ledger);
    if (client != NULL) rpc_client_close(client);
    return code;
}

int cmd_job(int argc, char **argv)
{
    place_options_t place = {0};
    bool json = false, ledger = false;
    const cli_option_t options[] = {{.name = "ledger",
                                     .type = CLI_FLAG,
                                     .help = "which rank computed which samples of each committed step",
                                     .value = &ledger},
                                    OPTION_MANAGER(&place),
                                    OPTION_TOKEN(&place),
                                    OPTION_DIR(&place),
                                    OPTION_JSON(&json)};
    cli_operands_t operands;
    int code = cli_parse(argc, argv, options, COUNT_OF(options), 1, 1, &operands);
    if (code >= 0) return code;
    if (ledger) return show_ledger(&place, operands.items[0], json);
    return one_job(&place, operands.items[0], json, client_job, show_whole_job);
}

static void show_cancelled(const Inspan__V1__JobInfo *job)
{
    const bool cancelled = strcmp(job->state, "cancelled") == 0;
    printf("job %" PRIu64 "%s: %s\n", job->id, watch_has_ended(job) && !cancelled ? " has ended already" : "",
           watch_has_ended(job) ? job->state : "is being cancelled");
}

int cmd_cancel(int argc, char **argv)
{
    place_options_t place = {0};
    bool json = false;
    cli_operands_t operands;
    int code = common_parse(argc, argv, 1, 1, &place, &json, &operands);
    if (code >= 0) return code;
    return one_job(&place, operands.items[0], json, client_cancel, show_cancelled);
}
