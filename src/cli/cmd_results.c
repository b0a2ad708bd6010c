/* results N: what a job has written, fetched (again) from the manager. */
#include <inttypes.h>
#include <stdio.h>

#include "base/error.h"
#include "cli/checkpoints.h"
#include "cli/client.h"
#include "cli/common_options.h"
#include "cli/results.h"
#include "cli/show.h"
#include "train/checkpoint.h"

#define KEEP_ALL UINT32_MAX

static inspan_status_t fetch_all(rpc_client_t *client, const Inspan__V1__JobInfo *job, const char *folder,
                                 inspan_error_t *err)
{
    if (job->n_results == 0 && job->n_checkpoints == 0)
        return error_set(err, INSPAN_NOT_FOUND, "job %" PRIu64 " (%.20s) has no results", job->id,
                         job->state);
    inspan_status_t status = results_fetch(client, job, folder, err);
    for (size_t i = 0; status == INSPAN_OK && i < job->n_checkpoints; i++)
        status = checkpoint_fetch_one(client, job->checkpoints[i], folder, KEEP_ALL, err);
    return status;
}

static inspan_status_t fetch(const place_options_t *place, const char *number, const char *folder,
                             Inspan__V1__JobInfo **job, inspan_error_t *err)
{
    rpc_client_t *client = NULL;
    uint64_t id = 0;
    inspan_status_t status = client_parse_job(number, &id, err);
    if (status == INSPAN_OK) status = client_open(place, &client, err);
    if (status != INSPAN_OK) return status;
    *job = client_job(client, id, err);
    status = *job == NULL ? err->status : fetch_all(client, *job, folder, err);
    rpc_client_close(client);
    return status;
}

int cmd_results(int argc, char **argv)
{
    place_options_t place = {0};
    bool json = false;
    cli_operands_t operands;
    int code = common_parse(argc, argv, 1, 2, &place, &json, &operands);
    if (code >= 0) return code;

    inspan_error_t err = {0};
    Inspan__V1__JobInfo *job = NULL;
    const char *folder = operands.n > 1 ? operands.items[1] : "out";
    inspan_status_t status = fetch(&place, operands.items[0], folder, &job, &err);
    code = CLI_EXIT_OK;
    if (status != INSPAN_OK) {
        code = cli_fail(&err, json);
        if (status == INSPAN_IO) code = CLI_EXIT_USER; /* the disk here, not the cluster */
    } else if (json) {
        json_t *object = json_object(), *files = json_array();
        json_set_number(object, "job", (double)job->id);
        json_set_string(object, "results", folder);
        for (size_t i = 0; i < job->n_results; i++) json_append_string(files, job->results[i]->name);
        json_set(object, "files", files);
        json_t *steps = json_array();
        for (size_t i = 0; i < job->n_checkpoints; i++)
            json_append_number(steps, (double)job->checkpoints[i]->step);
        json_set(object, "checkpoints", steps);
        code = show_print_json(object);
    } else {
        for (size_t i = 0; i < job->n_results; i++) printf("wrote %s/%s\n", folder, job->results[i]->name);
        for (size_t i = 0; i < job->n_checkpoints; i++) {
            char name[32];
            checkpoint_name(job->checkpoints[i]->step, name);
            printf("wrote %s/%s\n", folder, name);
        }
    }
    client_free(job);
    return code;
}
