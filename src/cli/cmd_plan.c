/* plan FILE.yaml, plan N: what a job reaches on which nodes, before and while it runs */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "cli/client.h"
#include "cli/common_options.h"
#include "cli/plan_measure.h"
#include "cli/plan_price.h"
#include "cli/plan_show.h"
#include "cli/show.h"
#include "cli/submit.h"

/* A larger micro-batch needs memory: proposed where it gains so much. */
#define MICRO_GAIN       1.03
#define MOST_MICRO_BATCH 256
#define ALL_SETS_OF      6 /* nodes: 63 sets */

typedef struct plan {
    place_options_t place;
    cli_list_t set, links, speeds;
    const char *nodes;
    uint64_t number; /* of the running job; 0: none */
    bool json, no_cluster, measure;
    submit_t submit; /* where there is a job file */
    plan_input_t input;
    plan_found_t found;
    rpc_client_t *client;
} plan_t;

/* ---- The job --------------------------------------------------------------------------------- */

static inspan_status_t read_file(plan_t *plan, inspan_error_t *err)
{
    const submit_t *submit = &plan->submit;
    inspan_status_t status = submit_prepare(plan->found.file, &plan->set, &plan->submit, err);
    if (status != INSPAN_OK) return status;
    plan->input.job = submit->job;
    plan->input.model = submit->model;
    for (uint32_t i = 0; i < submit->n_data; i++) plan->input.data_bytes += submit->data[i].bytes;
    return plan_input_job(&plan->input, err);
}

/* Without the job file: as far as the manager's copy goes, which has no data. */
static inspan_status_t read_config(plan_t *plan, const Inspan__V1__JobInfo *job, inspan_error_t *err)
{
    plan_input_t *input = &plan->input;
    inspan_status_t status = job_parse(job->config, &input->job, err);
    if (status != INSPAN_OK) return status;
    if (strcmp(input->job.data.kind, "text") != 0)
        return error_set(err, INSPAN_INVALID,
                         "the model of job %" PRIu64
                         " depends on its data: inspan plan FILE.yaml --job %" PRIu64,
                         job->id, job->id);
    job_model_config(&input->job, &input->model);
    input->model.vocabulary = 256; /* of bytes */
    return plan_input_job(input, err);
}

static inspan_status_t look_at_job(plan_t *plan, inspan_error_t *err)
{
    Inspan__V1__JobInfo *job = client_job(plan->client, plan->number, err);
    if (job == NULL) return err->status;
    inspan_status_t status = INSPAN_OK;
    if (plan->found.file == NULL) status = read_config(plan, job, err);
    if (status == INSPAN_OK && strcmp(job->state, "running") != 0)
        status = error_set(err, INSPAN_INVALID,
                           "job %" PRIu64 " does not run (%s): inspan plan FILE.yaml plans a job", job->id,
                           job->state);
    plan->found.job = job->id;
    if (status == INSPAN_OK) {
        plan_input_run(&plan->input, job);
        if (job->progress != NULL) plan->found.measured = job->progress->samples_per_s;
    }
    client_free(job);
    return status;
}

/* ---- The machines ---------------------------------------------------------------------------- */

static inspan_status_t look_at_cluster(plan_t *plan, inspan_error_t *err)
{
    inspan_status_t status = client_open(&plan->place, &plan->client, err);
    if (status != INSPAN_OK) return status;
    Inspan__V1__NodeList *nodes = client_nodes(plan->client, err);
    if (nodes == NULL) return err->status;
    plan_input_nodes(&plan->input, nodes);
    client_free(nodes);
    return INSPAN_OK;
}

/* Of all jobs of this model. An older manager keeps none. */
static inspan_status_t look_at_registry(plan_t *plan, inspan_error_t *err)
{
    Inspan__V1__SpeedsRequest request = INSPAN__V1__SPEEDS_REQUEST__INIT;
    request.model_key = plan->input.key;
    Inspan__V1__SpeedList *speeds = client_call(plan->client, "Cluster/ListSpeeds", &request.base,
                                                &inspan__v1__speed_list__descriptor, err);
    if (speeds == NULL) return err->status == INSPAN_UNSUPPORTED ? INSPAN_OK : err->status;
    plan_input_registry(&plan->input, speeds);
    client_free(speeds);
    return INSPAN_OK;
}

static inspan_status_t measure(plan_t *plan, inspan_error_t *err)
{
    plan_measured_t measured;
    const submit_t *submit = &plan->submit;
    const uint32_t own = plan_input_own(&plan->input);
    if (own == PLAN_NONE)
        return error_set(err, INSPAN_INVALID,
                         "--measure: none of the nodes, or more than one, lives on this machine");
    inspan_status_t status =
        plan_measure(&submit->job, submit->data[0].path, submit->n_data > 1 ? submit->data[1].path : NULL,
                     plan->input.nodes[own].micro_batch, &measured, err);
    if (status == INSPAN_OK)
        plan_input_set_speed(&plan->input, own, PLAN_SPEED_MEASURED, measured.sample_s, measured.step_s);
    return status == INSPAN_OK ? status : error_prefix(err, "--measure");
}

static inspan_status_t gather(plan_t *plan, inspan_error_t *err)
{
    plan_input_t *input = &plan->input;
    inspan_status_t status = INSPAN_OK;
    if (!plan->no_cluster) status = look_at_cluster(plan, err);
    if (status == INSPAN_OK && plan->number != 0) status = look_at_job(plan, err);
    if (status == INSPAN_OK && !plan->no_cluster) status = look_at_registry(plan, err);
    if (status == INSPAN_OK && plan->measure) status = measure(plan, err);
    if (status == INSPAN_OK) status = plan_input_speeds(input, &plan->speeds, err);
    if (status == INSPAN_OK) status = plan_input_links(input, &plan->links, err);
    if (status != INSPAN_OK) return status;
    plan_input_settle(input); /* also by machines that --nodes leaves out */
    if (plan->nodes != NULL) status = plan_input_choose(input, plan->nodes, err);
    if (status != INSPAN_OK) return status;
    for (uint32_t i = 0; i < input->n; i++)
        plan->found.members |= input->machines[i].member ? UINT64_C(1) << i : 0;
    if (input->n > 0) return INSPAN_OK;
    return error_set(err, INSPAN_NOT_FOUND,
                     "no node is there to plan with (%u cannot be used now): inspan join adds one, --speed "
                     "NODE=SAMPLES_PER_SECOND imagines one",
                     input->unused);
}

/* ---- The search ------------------------------------------------------------------------------ */

/* Twice the batch: whether it would help, and by how much. */
static double try_larger(const plan_input_t *input, plan_price_t price)
{
    plan_answer_t answer;
    plan_job_t job = input->plan;
    job.batch *= 2;
    job.leases = job.batch < PLAN_LEASES_MAX ? (uint32_t)job.batch : PLAN_LEASES_MAX;
    plan_search(&job, input->nodes, input->n, price, &answer);
    return answer.best != 0 ? answer.prediction.samples_per_s : 0;
}

/* Larger micro-batches, where they fit: reductions hide behind the backward pass of the last one. */
static void try_micro_batches(const plan_input_t *input, plan_price_t price, plan_found_t *found)
{
    plan_node_t nodes[PLAN_NODES_MAX];
    plan_answer_t answer;
    double best = found->answer.prediction.samples_per_s * MICRO_GAIN;
    const uint32_t now = job_micro_batch(&input->job, input->plan.batch);
    for (uint32_t wanted = 2 * now; wanted <= input->plan.batch && wanted <= MOST_MICRO_BATCH; wanted *= 2) {
        for (uint32_t i = 0; i < input->n; i++) {
            nodes[i] = input->nodes[i];
            const uint32_t fits = plan_input_micro_batch(input, nodes[i].memory_bytes, wanted);
            if (fits > nodes[i].micro_batch) nodes[i].micro_batch = fits;
        }
        plan_search(&input->plan, nodes, input->n, price, &answer);
        if (answer.best == 0 || answer.prediction.samples_per_s <= best) break;
        found->micro_batch = wanted;
        found->micro_larger = answer.prediction.samples_per_s;
        best = answer.prediction.samples_per_s * MICRO_GAIN;
    }
}

/* Every set of few nodes, of many those of the ladder. */
static void predict_sets(const plan_input_t *input, plan_price_t price, plan_found_t *found)
{
    plan_prediction_t prediction;
    uint64_t fitting = 0, set = 0;
    for (uint32_t r = 0; r < found->answer.n_rungs; r++) {
        set |= UINT64_C(1) << found->answer.rungs[r].node;
        found->sets[r].nodes = set;
        found->sets[r].samples_per_s = found->answer.rungs[r].samples_per_s;
    }
    found->n_sets = found->answer.n_rungs;
    fitting = set;
    if (input->n > ALL_SETS_OF) return;
    found->n_sets = 0;
    for (set = 1; set < UINT64_C(1) << input->n; set++) {
        if ((set & ~fitting) != 0) continue;
        plan_predict(&input->plan, input->nodes, set, price, &prediction);
        found->sets[found->n_sets].nodes = set;
        found->sets[found->n_sets++].samples_per_s = prediction.samples_per_s;
    }
}

/* As the job's leader chooses while it runs, but each type with the set that is best for it. */
static inspan_status_t choose_wire(plan_input_t *input, inspan_error_t *err)
{
    const uint32_t wires = job_wires(&input->job);
    double cost[INSPAN_WIRES]; /* seconds a sample */
    for (inspan_wire_t wire = 0; wire < INSPAN_WIRES; wire++) {
        plan_answer_t answer;
        cost[wire] = INFINITY;
        if ((wires >> wire & 1) == 0) continue;
        plan_input_wire(input, wire);
        plan_pricer_t *pricer = plan_pricer_open(input->plan.bucket_bytes);
        if (pricer == NULL) return error_set(err, INSPAN_NO_MEMORY, "out of memory");
        plan_search(&input->plan, input->nodes, input->n, plan_pricer_price(pricer), &answer);
        plan_pricer_close(pricer);
        if (answer.best != 0) cost[wire] = 1 / answer.prediction.samples_per_s;
    }
    if (wires != 0) plan_input_wire(input, (inspan_wire_t)plan_most_exact(cost, INSPAN_WIRES, 0));
    return INSPAN_OK;
}

static inspan_status_t search(plan_t *plan, inspan_error_t *err)
{
    if (choose_wire(&plan->input, err) != INSPAN_OK) return err->status;
    const plan_input_t *input = &plan->input;
    plan_found_t *found = &plan->found;
    plan_pricer_t *pricer = plan_pricer_open(input->plan.bucket_bytes);
    if (pricer == NULL) return error_set(err, INSPAN_NO_MEMORY, "out of memory");
    const plan_price_t price = plan_pricer_price(pricer);
    plan_search(&input->plan, input->nodes, input->n, price, &found->answer);
    if (found->members != 0) plan_predict(&input->plan, input->nodes, found->members, price, &found->now);
    if (found->answer.best != 0) {
        found->larger = try_larger(input, price);
        try_micro_batches(input, price, found);
        predict_sets(input, price, found);
    }
    plan_pricer_close(pricer);
    return INSPAN_OK;
}

static int tell(const plan_t *plan)
{
    inspan_error_t err = {0};
    int code = CLI_EXIT_OK;
    if (plan->json)
        code = show_print_json(plan_show_json(&plan->input, &plan->found));
    else
        plan_show(stdout, &plan->input, &plan->found);
    if (plan->found.answer.best != 0 || code != CLI_EXIT_OK) return code;
    char size[32];
    error_set(&err, INSPAN_LIMIT,
              "the job needs nodes.min %u with %s of memory each, and there are not so many",
              plan->input.job.nodes.min, units_format_size(plan->input.plan.memory_bytes, size, sizeof size));
    return cli_fail_user(&err, false);
}

/* FILE.yaml, or a running job's number. INVALID. */
static inspan_status_t take_operand(plan_t *plan, const char *operand, inspan_error_t *err)
{
    const bool number = strspn(operand, "0123456789") == strlen(operand);
    if (number && plan->number != 0)
        return error_set(err, INSPAN_INVALID, "--job goes with FILE.yaml, not with a job's number");
    if (plan->no_cluster && (number || plan->number != 0 || plan->measure))
        return error_set(err, INSPAN_INVALID, "--no-cluster: a running job and --measure need the cluster");
    if (!number) {
        plan->found.file = operand;
        return INSPAN_OK;
    }
    if (plan->measure || plan->set.n > 0)
        return error_set(err, INSPAN_INVALID, "--measure and --set need FILE.yaml");
    return client_parse_job(operand, &plan->number, err);
}

/* Everything after the options; the exit code. */
static int plan_checked(plan_t *plan, const char *operand)
{
    inspan_error_t err = {0};
    inspan_status_t status = take_operand(plan, operand, &err);
    if (status == INSPAN_OK && plan->found.file != NULL) status = read_file(plan, &err);
    if (status != INSPAN_OK) return cli_fail_user(&err, plan->json);
    status = gather(plan, &err);
    if (status == INSPAN_OK) status = search(plan, &err);
    return status == INSPAN_OK ? tell(plan) : cli_fail(&err, plan->json);
}

int cmd_plan(int argc, char **argv)
{
    plan_t *plan = calloc(1, sizeof *plan);
    if (plan == NULL) {
        inspan_error_t err;
        error_set(&err, INSPAN_NO_MEMORY, "out of memory");
        return cli_fail(&err, false);
    }
    const cli_option_t options[] = {
        {.name = "set",
         .type = CLI_LIST,
         .argument = "KEY=VALUE",
         .help = "override a field, as in train.global_batch=256",
         .value = &plan->set},
        {.name = "nodes",
         .type = CLI_TEXT,
         .argument = "A,B",
         .help = "only these nodes",
         .value = &plan->nodes},
        {.name = "job",
         .type = CLI_COUNT,
         .argument = "N",
         .help = "with FILE.yaml: its running job, whose ranks tell their speeds",
         .value = &plan->number,
         .least = 1,
         .most = 9e15},
        {.name = "link",
         .type = CLI_LIST,
         .argument = "NODE=RATE",
         .help = "a node's link, as in laptop=100mbit or laptop=50mbit/200mbit (up/down)",
         .value = &plan->links},
        {.name = "speed",
         .type = CLI_LIST,
         .argument = "NODE=S",
         .help = "samples/s of a node alone, also of a machine that is not there yet",
         .value = &plan->speeds},
        {.name = "measure",
         .type = CLI_FLAG,
         .help = "measure this machine, if it is a node: 3 s of its processors",
         .value = &plan->measure},
        {.name = "no-cluster",
         .type = CLI_FLAG,
         .help = "only the machines that --speed names",
         .value = &plan->no_cluster},
        OPTION_MANAGER(&plan->place),
        OPTION_TOKEN(&plan->place),
        OPTION_DIR(&plan->place),
        OPTION_JSON(&plan->json)};
    cli_operands_t operands;
    int code = cli_parse(argc, argv, options, COUNT_OF(options), 1, 1, &operands);
    if (code < 0) code = plan_checked(plan, operands.items[0]);
    if (plan->client != NULL) rpc_client_close(plan->client);
    free(plan);
    return code;
}
