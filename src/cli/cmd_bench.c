/*
 * inspan bench allreduce, inspan bench explain: one process is one rank, so that ranks can stand in any
 * namespaces or machines; --local N starts all of them here, with --link and --cpu as the machines of a
 * laboratory.
 */
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "cli/bench_rendezvous.h"
#include "cli/common_options.h"
#include "cli/interrupt.h"
#include "cli/show.h"
#include "platform/host/lab.h"
#include "platform/json/json.h"
#include "platform/os/os_file.h"
#include "platform/os/os_socket.h"
#include "platform/os/os_spawn.h"
#include "platform/os/os_time.h"

#define SIZES_MAX      32
#define ITERATIONS_MAX 100000
#define WARM_UP        3
#define NO_RANK        UINT64_MAX /* none was given */
#define RENDEZVOUS     (30 * NS_PER_S)
#define OP_TIMEOUT     (600 * NS_PER_S)
#define TUNED_FROM     (256u << 10) /* bytes: after each one of those, else after some */
#define TUNED_EVERY    16

typedef struct bench {
    uint64_t rank, world, iterations, local, chunk;
    const char *rendezvous, *bytes, *weights, *schedule, *wire, *backend, *data_ports, *cpu, *link;
    bool check, json, joined;
    const char *what; /* allreduce, explain */
    /* parsed */
    uint64_t sizes[SIZES_MAX];
    uint32_t n_sizes;
    double shares[BENCH_WORLD_MAX];
    inspan_schedule_t algorithm;
    inspan_wire_t wire_type;
    os_target_t place; /* of the rendezvous */
} bench_t;

typedef struct figure { /* of one size, over all ranks */
    double median_s, min_s, max_s, cpu_s;
} figure_t;

/* ---- Arguments ------------------------------------------------------------------------------- */

static inspan_status_t parse_sizes(bench_t *bench, inspan_error_t *err)
{
    char text[512];
    if ((size_t)snprintf(text, sizeof text, "%s", bench->bytes) >= sizeof text)
        return error_set(err, INSPAN_INVALID, "--bytes: too long");
    for (char *rest = text, *word; (word = strsep(&rest, ",")) != NULL;) {
        uint64_t bytes = 0;
        if (bench->n_sizes == SIZES_MAX)
            return error_set(err, INSPAN_INVALID, "--bytes: at most %d sizes", SIZES_MAX);
        if (units_parse_size(word, &bytes) != INSPAN_OK || bytes % 4 != 0)
            return error_set(
                err, INSPAN_INVALID,
                "--bytes: \"%s\": expected sizes that are multiples of 4 (fp32 numbers), as in 4K,25M", word);
        bench->sizes[bench->n_sizes++] = bytes;
    }
    return INSPAN_OK;
}

static inspan_status_t parse_weights(bench_t *bench, inspan_error_t *err)
{
    const char *at = bench->weights;
    double sum = 0;
    for (uint64_t r = 0; r < bench->world; r++) {
        char *end = NULL;
        bench->shares[r] = strtod(at, &end);
        const bool last = r + 1 == bench->world;
        if (end == at || !isfinite(bench->shares[r]) || bench->shares[r] < 0 || *end != (last ? '\0' : ','))
            return error_set(err, INSPAN_INVALID,
                             "--weights: one number >= 0 for each of %llu ranks, as in 1,1,0.2",
                             (unsigned long long)bench->world);
        at = end + 1;
        sum += bench->shares[r];
    }
    if (!(sum > 0)) return error_set(err, INSPAN_INVALID, "--weights: at least one must be above 0");
    return INSPAN_OK;
}

static inspan_status_t parse_schedule(bench_t *bench, inspan_error_t *err)
{
    for (inspan_schedule_t i = INSPAN_SCHEDULE_AUTO; i <= INSPAN_SCHEDULE_TREES; i++)
        if (strcmp(bench->schedule, inspan_schedule_name(i)) == 0) {
            bench->algorithm = i;
            return INSPAN_OK;
        }
    return error_set(err, INSPAN_INVALID,
                     "--schedule: \"%s\" is none of auto, one-shot, direct, ring, doubling, trees",
                     bench->schedule);
}

static inspan_status_t parse_wire(bench_t *bench, inspan_error_t *err)
{
    for (int i = 0; i < INSPAN_WIRES; i++)
        if (strcmp(bench->wire, inspan_wire_name((inspan_wire_t)i)) == 0) {
            bench->wire_type = (inspan_wire_t)i;
            return INSPAN_OK;
        }
    return error_set(err, INSPAN_INVALID, "--wire: \"%s\" is none of fp32, bf16, fp16, int8", bench->wire);
}

static bool explains(const bench_t *bench)
{
    return strcmp(bench->what, "explain") == 0;
}

/* A backend has one way of its own: what chooses the executor's does not go with it. */
static inspan_status_t parse_backend(const bench_t *bench, inspan_error_t *err)
{
    if (!comm_backend_exists(bench->backend))
        return error_set(err, INSPAN_INVALID, "--backend: \"%.40s\" is none of auto, native, gloo",
                         bench->backend);
    if (strcmp(bench->backend, "auto") == 0 || strcmp(bench->backend, "native") == 0) return INSPAN_OK;
    if (explains(bench))
        return error_set(err, INSPAN_INVALID, "bench explain shows what the native backend chooses");
    if (strcmp(bench->schedule, "auto") != 0 || bench->weights != NULL || bench->chunk > 0 ||
        bench->wire_type != INSPAN_WIRE_FP32)
        return error_set(
            err, INSPAN_INVALID,
            "--schedule, --weights, --chunk and --wire are for the native backend: they do not go "
            "with --backend %s",
            bench->backend);
    return INSPAN_OK;
}

static inspan_status_t parse_rendezvous(bench_t *bench, inspan_error_t *err)
{
    inspan_status_t status = os_target_parse(bench->rendezvous, 0, &bench->place, err);
    if (status != INSPAN_OK)
        error_prefix(err, "--rendezvous");
    else if (bench->place.port == 0)
        status = error_set(err, INSPAN_INVALID, "--rendezvous: \"%s\" is not HOST:PORT", bench->rendezvous);
    return status;
}

static inspan_status_t parse(bench_t *bench, inspan_error_t *err)
{
    if (bench->local > 0 && (bench->world > 0 || bench->rank != NO_RANK || bench->rendezvous != NULL))
        return error_set(err, INSPAN_INVALID,
                         "--local N starts all ranks: --rank, --world and --rendezvous do not go with it");
    if (bench->local > 0) bench->world = bench->local;
    if ((bench->cpu != NULL || bench->link != NULL) && bench->local == 0)
        return error_set(err, INSPAN_INVALID, "--cpu and --link make a laboratory: they need --local N");
    if (bench->local == 0 && (bench->rendezvous == NULL || bench->world == 0 || bench->rank >= bench->world))
        return error_set(err, INSPAN_INVALID,
                         "give --local N, or --rank R --world N --rendezvous HOST:PORT with R < N");
    if (strcmp(bench->wire, "fp32") != 0 && (explains(bench) || strcmp(bench->schedule, "auto") != 0))
        return error_set(
            err, INSPAN_INVALID,
            "--wire %s: another type than fp32 goes with bench allreduce, by the direct schedule",
            bench->wire);
    if (explains(bench) && (strcmp(bench->schedule, "auto") != 0 || bench->weights != NULL))
        return error_set(
            err, INSPAN_INVALID,
            "bench explain shows what is chosen: --schedule and --weights, which choose, do not go with it");
    if (explains(bench) && bench->world < 2)
        return error_set(err, INSPAN_INVALID,
                         "bench explain looks at the links between ranks: it needs at least two");
    inspan_status_t status = parse_sizes(bench, err);
    if (status == INSPAN_OK) status = parse_schedule(bench, err);
    if (status == INSPAN_OK) status = parse_wire(bench, err);
    if (status == INSPAN_OK && bench->weights != NULL) status = parse_weights(bench, err);
    if (status == INSPAN_OK) status = parse_backend(bench, err);
    if (status == INSPAN_OK && bench->local == 0) status = parse_rendezvous(bench, err);
    return status;
}

/* ---- Measuring ------------------------------------------------------------------------------- */

/* The cause says more than a status. */
static inspan_status_t tell(const inspan_comm_t *comm, inspan_status_t status, const char *what,
                            inspan_error_t *err)
{
    inspan_cause_t cause;
    if (status == INSPAN_OK) return INSPAN_OK;
    if (inspan_comm_cause(comm, &cause)) return error_set(err, status, "%s", cause.text);
    return error_set(err, status, "%s: %s", what, inspan_status_text(status));
}

static inspan_status_t wait_for(inspan_comm_t *comm, inspan_status_t started, inspan_op_t *op,
                                inspan_error_t *err)
{
    const inspan_status_t status = started == INSPAN_OK ? inspan_op_wait(op, OP_TIMEOUT) : started;
    return tell(comm, status, "a collective did not finish", err);
}

static inspan_status_t reduce(inspan_comm_t *comm, const void *in, void *out, uint64_t n,
                              inspan_dtype_t dtype, inspan_reduction_t reduction, inspan_error_t *err)
{
    inspan_op_t *op = NULL;
    const inspan_status_t started = inspan_allreduce(comm, in, out, n, dtype, reduction, &op);
    return wait_for(comm, started, op, err);
}

static void fill(float *in, uint64_t count, uint32_t rank)
{
    for (uint64_t i = 0; i < count; i++) in[i] = (float)(i % 13 + rank);
}

/* Small integers: their sum is exact in any order, and within a hundredth of the greatest where it was
 * rounded. */
static inspan_status_t check_sum(const float *out, uint64_t count, uint32_t world, inspan_wire_t wire,
                                 inspan_error_t *err)
{
    const float greatest = (float)(world * 12) + 0.5f * (float)(world * (world - 1)),
                most_off = wire == INSPAN_WIRE_FP32 ? 0 : 0.01f * greatest;
    for (uint64_t i = 0; i < count; i++) {
        const uint64_t whole = world * (i % 13) + (uint64_t)world * (world - 1) / 2;
        const float expected = (float)whole;
        if (!(fabsf(out[i] - expected) <= most_off))
            return error_set(err, INSPAN_CORRUPT, "element %llu of the sum is %g, expected %g",
                             (unsigned long long)i, (double)out[i], (double)expected);
    }
    return INSPAN_OK;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* What the operations before showed of the links counts for those to come. */
static inspan_status_t tune(inspan_comm_t *comm, bool *changed, inspan_error_t *err)
{
    return tell(comm, inspan_comm_tune(comm, OP_TIMEOUT, changed), "the links could not be compared", err);
}

/* The slowest rank's time of each iteration counts; CPU is the mean of the ranks. */
static inspan_status_t measure(const bench_t *bench, inspan_comm_t *comm, uint64_t bytes, double *times,
                               figure_t *figure, inspan_error_t *err)
{
    const uint64_t count = bytes / 4, n = bench->iterations;
    const bool has_error = bench->wire_type == INSPAN_WIRE_INT8; /* as in training */
    float *in = malloc(bytes + 64), *out = malloc(bytes + 64), *error = has_error ? malloc(bytes + 64) : NULL;
    inspan_status_t status = in != NULL && out != NULL && (error != NULL || !has_error)
                                 ? INSPAN_OK
                                 : error_set(err, INSPAN_NO_MEMORY, "no memory for two times %llu bytes",
                                             (unsigned long long)bytes);
    if (status == INSPAN_OK) fill(in, count, inspan_comm_rank(comm));
    ns_t cpu = 0;
    bool changed = false;
    for (uint64_t i = 0; i < WARM_UP + n && status == INSPAN_OK; i++) {
        if (i <= WARM_UP || bytes >= TUNED_FROM || i % TUNED_EVERY == 0) status = tune(comm, &changed, err);
        if (status != INSPAN_OK) break;
        inspan_op_t *op = NULL;
        const inspan_status_t started = inspan_barrier(comm, &op); /* all start together */
        status = wait_for(comm, started, op, err);
        const ns_t cpu_before = os_process_cpu(), begin = os_now();
        if (status == INSPAN_OK)
            status = wait_for(
                comm, inspan_allreduce_wire(comm, in, out, error, count, 0, bench->wire_type, &op), op, err);
        if (i >= WARM_UP) {
            times[i - WARM_UP] = ns_to_s(os_now() - begin);
            cpu += os_process_cpu() - cpu_before;
        }
        if (status == INSPAN_OK && bench->check)
            status = check_sum(out, count, inspan_comm_world(comm), bench->wire_type, err);
    }
    free(in);
    free(out);
    free(error);
    double cpu_mean = ns_to_s(cpu) / (double)n / inspan_comm_world(comm), *slowest = times + n;
    if (status == INSPAN_OK) status = reduce(comm, times, slowest, n, INSPAN_FP64, INSPAN_MAX, err);
    if (status == INSPAN_OK)
        status = reduce(comm, &cpu_mean, &figure->cpu_s, 1, INSPAN_FP64, INSPAN_SUM, err);
    if (status != INSPAN_OK) return status;
    qsort(slowest, n, sizeof *slowest, by_value);
    figure->median_s = n % 2 ? slowest[n / 2] : (slowest[n / 2 - 1] + slowest[n / 2]) / 2;
    figure->min_s = slowest[0];
    figure->max_s = slowest[n - 1];
    return INSPAN_OK;
}

static int print(const bench_t *bench, const inspan_comm_t *comm, const figure_t *figures)
{
    const uint64_t checked = bench->check ? (uint64_t)bench->n_sizes * (WARM_UP + bench->iterations) : 0;
    if (!bench->json) {
        printf("%12s %12s %12s %12s %12s\n", "bytes", "median", "fastest", "slowest", "cpu a rank");
        for (uint32_t i = 0; i < bench->n_sizes; i++)
            printf("%12llu %9.3f ms %9.3f ms %9.3f ms %9.3f ms\n", (unsigned long long)bench->sizes[i],
                   figures[i].median_s * 1e3, figures[i].min_s * 1e3, figures[i].max_s * 1e3,
                   figures[i].cpu_s * 1e3);
        if (bench->check)
            printf("all %llu sums are right on all %llu ranks\n", (unsigned long long)checked,
                   (unsigned long long)bench->world);
        printf("carried by: %s\n", comm_backend_name(comm));
        return CLI_EXIT_OK;
    }
    json_t *root = json_object(), *results = json_array();
    json_set_string(root, "bench", "allreduce");
    json_set_number(root, "world", (double)bench->world);
    json_set_string(root, "schedule", bench->schedule);
    json_set_string(root, "wire", bench->wire);
    json_set_string(root, "backend", comm_backend_name(comm)); /* the one that ran */
    json_set_number(root, "iterations", (double)bench->iterations);
    if (bench->check)
        json_set_number(root, "checked_sums", (double)checked); /* of each rank; all are right */
    for (uint32_t i = 0; i < bench->n_sizes; i++) {
        json_t *row = json_object();
        json_set_number(row, "bytes", (double)bench->sizes[i]);
        json_set_number(row, "median_s", figures[i].median_s);
        json_set_number(row, "min_s", figures[i].min_s);
        json_set_number(row, "max_s", figures[i].max_s);
        json_set_number(row, "cpu_s", figures[i].cpu_s);
        json_append(results, row);
    }
    json_set(root, "results", results);
    return show_print_json(root);
}

/* ---- Explaining ------------------------------------------------------------------------------ */

#define EXPLAIN_BYTES (16u << 20)
#define EXPLAIN_TIMES 6

static const char *rate_text(double bytes_per_s, bool wavers, char text[32])
{
    if (bytes_per_s > 0)
        snprintf(text, 32, "%s%.0f Mbit/s", wavers ? "~" : "", bytes_per_s * 8e-6);
    else
        snprintf(text, 32, "not seen");
    return text;
}

static void print_ports(const inspan_comm_t *comm)
{
    printf("%4s  %-16s %13s %13s %10s\n", "rank", "node", "up", "down", "latency");
    for (uint32_t r = 0; r < inspan_comm_world(comm); r++) {
        inspan_port_t port;
        char up[32], down[32];
        if (!inspan_comm_port(comm, r, &port)) continue;
        printf("%4u  %-16s %13s %13s %7.0f us\n", r, inspan_comm_member(comm, r)->node,
               rate_text(port.up, port.up_wavers, up), rate_text(port.down, port.down_wavers, down),
               (double)port.latency_ns * 1e-3);
    }
    printf("~: it wavers, more than the port is behind it. Not seen: the port was never what held its data "
           "up.\n");
}

/* From each size that choices are made for to the next; *choice: zero at first. */
static bool next_choice(const inspan_comm_t *comm, inspan_choice_t *choice)
{
    const uint64_t before = choice->bytes;
    return inspan_comm_choice(comm, 2 * before + 1, choice) && choice->bytes > before;
}

static void print_choices(const inspan_comm_t *comm)
{
    printf("\n%12s  %-10s %13s  %s\n", "all-reduce", "schedule", "predicted", "shares of the sums");
    inspan_choice_t choice = {0};
    while (next_choice(comm, &choice)) {
        double sum = 0;
        printf("%12llu  %-10s %10.3f ms ", (unsigned long long)choice.bytes,
               inspan_schedule_name(choice.schedule), (double)choice.predicted_ns * 1e-6);
        for (uint32_t r = 0; choice.weights != NULL && r < inspan_comm_world(comm); r++)
            sum += choice.weights[r];
        for (uint32_t r = 0; choice.weights != NULL && r < inspan_comm_world(comm); r++)
            printf(" %.3f", choice.weights[r] / sum);
        printf("%s\n", choice.weights == NULL ? " equal" : "");
    }
}

static json_t *ports_json(const inspan_comm_t *comm)
{
    json_t *ports = json_array();
    for (uint32_t r = 0; r < inspan_comm_world(comm); r++) {
        inspan_port_t port;
        if (!inspan_comm_port(comm, r, &port)) continue;
        json_t *row = json_object();
        json_set_number(row, "rank", r);
        json_set_string(row, "node", inspan_comm_member(comm, r)->node);
        json_set_number(row, "up_bytes_per_s", port.up);
        json_set_number(row, "down_bytes_per_s", port.down); /* 0: not seen */
        json_set_bool(row, "up_wavers", port.up_wavers);
        json_set_bool(row, "down_wavers", port.down_wavers);
        json_set_number(row, "latency_s", ns_to_s(port.latency_ns));
        json_append(ports, row);
    }
    return ports;
}

static json_t *choices_json(const inspan_comm_t *comm)
{
    json_t *choices = json_array();
    inspan_choice_t choice = {0};
    while (next_choice(comm, &choice)) {
        json_t *row = json_object(), *weights = json_array();
        json_set_number(row, "bytes", (double)choice.bytes);
        json_set_string(row, "schedule", inspan_schedule_name(choice.schedule));
        json_set_number(row, "predicted_s", ns_to_s(choice.predicted_ns));
        for (uint32_t r = 0; choice.weights != NULL && r < inspan_comm_world(comm); r++)
            json_append_number(weights, choice.weights[r]);
        json_set(row, "weights", weights); /* empty: equal shares */
        json_append(choices, row);
    }
    return choices;
}

static int print_explanation(const bench_t *bench, const inspan_comm_t *comm)
{
    if (!bench->json) {
        print_ports(comm);
        print_choices(comm);
        return CLI_EXIT_OK;
    }
    json_t *root = json_object();
    json_set_string(root, "bench", "explain");
    json_set_number(root, "world", (double)bench->world);
    json_set(root, "links", ports_json(comm));
    json_set(root, "choices", choices_json(comm));
    return show_print_json(root);
}

/* Traffic shows what the links carry. */
static inspan_status_t look_at_links(inspan_comm_t *comm, inspan_error_t *err)
{
    float *in = calloc(1, EXPLAIN_BYTES), *out = malloc(EXPLAIN_BYTES);
    inspan_status_t status =
        in != NULL && out != NULL ? INSPAN_OK : error_set(err, INSPAN_NO_MEMORY, "no memory");
    bool changed = false;
    for (int i = 0; i < EXPLAIN_TIMES && status == INSPAN_OK; i++) {
        status = reduce(comm, in, out, EXPLAIN_BYTES / 4, INSPAN_FP32, INSPAN_SUM, err);
        if (status == INSPAN_OK) status = tune(comm, &changed, err);
        if (i > 0 && !changed) break; /* the same on all ranks */
    }
    free(in);
    free(out);
    return status;
}

/* ---- One rank -------------------------------------------------------------------------------- */

/* Find the others: rank 0 is the place where all meet, unless --local made another one. */
static inspan_status_t meet(const bench_t *bench, bench_group_t *group, inspan_error_t *err)
{
    if (group->world == 1) {
        snprintf(group->members[0].node, sizeof group->members[0].node, "rank-0");
        return INSPAN_OK;
    }
    if (group->rank != 0 || bench->joined)
        return bench_join(bench->place.host, bench->place.port, group, RENDEZVOUS, err);
    int listener = -1;
    uint16_t port = 0;
    inspan_status_t status = os_listen(bench->place.port, bench->place.port, 64, &listener, &port, err);
    if (status != INSPAN_OK) return status;
    status = bench_serve(listener, group, true, RENDEZVOUS, NULL, NULL, err);
    close(listener);
    return status;
}

static inspan_status_t run_sizes(const bench_t *bench, inspan_comm_t *comm, figure_t *figures,
                                 inspan_error_t *err)
{
    double *times = calloc(2 * bench->iterations, sizeof *times);
    inspan_status_t status =
        times != NULL ? INSPAN_OK : error_set(err, INSPAN_NO_MEMORY, "no memory for the times");
    for (uint32_t i = 0; i < bench->n_sizes && status == INSPAN_OK; i++)
        status = measure(bench, comm, bench->sizes[i], times, &figures[i], err);
    free(times);
    return status;
}

static int run_rank(const bench_t *bench)
{
    inspan_error_t err = {0};
    bench_group_t group = {.rank = (uint32_t)bench->rank, .world = (uint32_t)bench->world};
    comm_io_t *io = NULL;
    comm_listener_t *listener = NULL;
    inspan_comm_t *comm = NULL;
    int printed = CLI_EXIT_OK;
    uint16_t first = 0, last = 0;
    inspan_member_t *own = &group.members[group.rank];
    inspan_status_t status = os_random(&own->incarnation, sizeof own->incarnation);
    if (status == INSPAN_OK && bench->data_ports != NULL)
        status = common_data_ports(bench->data_ports, &first, &last, &err);
    if (status == INSPAN_OK) status = comm_io_open(&io, &err);
    if (status == INSPAN_OK) status = comm_listen(first, last, &listener, &own->port, &err);
    if (status == INSPAN_OK) status = meet(bench, &group, &err);
    comm_options_t options = {.io = io,
                              .job = 1,
                              .view = 1,
                              .rank = group.rank,
                              .world = group.world,
                              .members = group.members,
                              .listener = listener,
                              .failure_timeout = 5 * NS_PER_S,
                              .schedule = bench->algorithm,
                              .weights = bench->weights != NULL ? bench->shares : NULL,
                              .chunk_bytes = bench->chunk,
                              .backend = bench->backend};
    memcpy(options.key, group.key, sizeof options.key);
    if (status == INSPAN_OK) status = comm_open(&options, &comm, &err);
    figure_t figures[SIZES_MAX];
    const bool explaining = explains(bench);
    if (status == INSPAN_OK)
        status = explaining ? look_at_links(comm, &err) : run_sizes(bench, comm, figures, &err);
    if (status == INSPAN_OK && group.rank == 0)
        printed = explaining ? print_explanation(bench, comm) : print(bench, comm, figures);
    if (status != INSPAN_OK && comm != NULL)
        inspan_comm_abort(comm, err.text); /* a wrong sum is an end for all */
    inspan_comm_close(comm);
    comm_listener_close(listener);
    comm_io_close(io);
    /* of --local: the answer in JSON is the program's that started this one */
    if (status != INSPAN_OK) return cli_fail(&err, bench->json && !bench->joined);
    return printed;
}

/* ---- All ranks here -------------------------------------------------------------------------- */

typedef struct flock {
    const bench_t *bench;
    lab_t *lab; /* NULL: plain processes on this machine */
    os_process_t ranks[BENCH_WORLD_MAX];
    int codes[BENCH_WORLD_MAX]; /* or RANK_RUNS */
    uint32_t running;
    int worst; /* exit code of the rank that failed first, and what there is to say of it */
    inspan_error_t err;
    interrupt_t *interrupt;
} flock_t;

#define RANK_RUNS (-1)

static inspan_status_t start_rank(flock_t *flock, uint32_t rank, const char *meeting, inspan_error_t *err)
{
    const bench_t *bench = flock->bench;
    char words[6][32];
    snprintf(words[0], sizeof words[0], "%u", rank);
    snprintf(words[1], sizeof words[1], "%llu", (unsigned long long)bench->world);
    snprintf(words[2], sizeof words[2], "%llu", (unsigned long long)bench->iterations);
    snprintf(words[3], sizeof words[3], "%llu", (unsigned long long)bench->chunk);
    const char *arguments[40];
    uint32_t n = 0;
    arguments[n++] = "inspan";
    if (flock->lab != NULL) {
        arguments[n++] = "--enter-lab";
        arguments[n++] = lab_where(flock->lab, rank);
    }
    const char *const fixed[] = {"bench",   bench->what, "--joined",   "--rank",      words[0],
                                 "--world", words[1],    "--iters",    words[2],      "--rendezvous",
                                 meeting,   "--bytes",   bench->bytes, "--schedule",  bench->schedule,
                                 "--wire",  bench->wire, "--backend",  bench->backend};
    for (size_t i = 0; i < COUNT_OF(fixed); i++) arguments[n++] = fixed[i];
    if (bench->chunk > 0) arguments[n++] = "--chunk", arguments[n++] = words[3];
    if (bench->weights != NULL) arguments[n++] = "--weights", arguments[n++] = bench->weights;
    if (bench->data_ports != NULL) arguments[n++] = "--data-ports", arguments[n++] = bench->data_ports;
    if (bench->check) arguments[n++] = "--check";
    if (bench->json) arguments[n++] = "--json";
    arguments[n] = NULL;
    const os_spawn_options_t options = {.program = "/proc/self/exe", .arguments = arguments, .output = -1};
    const inspan_status_t status = os_spawn(&options, &flock->ranks[rank], err);
    if (status == INSPAN_OK) flock->codes[rank] = RANK_RUNS;
    flock->running += status == INSPAN_OK;
    return status;
}

/* Note who has ended. The first failure is the one that counts: those of the others follow from it. */
static void note_ends(flock_t *flock)
{
    for (uint32_t r = 0; r < flock->bench->world; r++) {
        os_exit_t end;
        char how[160];
        if (flock->codes[r] != RANK_RUNS || !os_process_poll(&flock->ranks[r], &end)) continue;
        flock->codes[r] = end.code >= 0 ? end.code : CLI_EXIT_JOB;
        flock->running--;
        if (flock->codes[r] == CLI_EXIT_OK || flock->worst != CLI_EXIT_OK) continue;
        flock->worst = flock->codes[r];
        error_set(&flock->err, INSPAN_JOB_FAILED, "rank %u has failed (%s)%s", r,
                  os_exit_text(&end, how, sizeof how),
                  end.code > 0 ? ": its own message stands on stderr" : "");
    }
}

static void kill_all(const flock_t *flock)
{
    for (uint32_t r = 0; r < flock->bench->world; r++)
        if (flock->codes[r] == RANK_RUNS) os_process_signal(&flock->ranks[r], SIGKILL);
}

/* While the ranks find each other. */
static inspan_status_t look_after(void *context, inspan_error_t *err)
{
    flock_t *flock = context;
    note_ends(flock);
    if (flock->worst != CLI_EXIT_OK) {
        *err = flock->err;
        return err->status;
    }
    if (interrupt_wait(flock->interrupt, 0) == 0) return INSPAN_OK;
    return error_set(err, INSPAN_ABORTED, "interrupted");
}

/* Until all have ended; a failure ends the others after a moment in which they can say theirs. */
static inspan_status_t await_all(flock_t *flock, inspan_error_t *err)
{
    ns_t kill_at = INT64_MAX;
    bool stop = false;
    while (flock->running > 0) {
        note_ends(flock);
        if (flock->worst != CLI_EXIT_OK && kill_at == INT64_MAX) kill_at = os_now() + 3 * NS_PER_S;
        stop = stop || interrupt_wait(flock->interrupt, flock->running > 0 ? 10 * NS_PER_MS : 0) > 0;
        if (stop || os_now() >= kill_at) kill_all(flock);
    }
    if (stop) return error_set(err, INSPAN_ABORTED, "interrupted");
    if (flock->worst != CLI_EXIT_OK) *err = flock->err;
    return flock->worst != CLI_EXIT_OK ? err->status : INSPAN_OK;
}

static inspan_status_t open_lab(const bench_t *bench, lab_t **lab, inspan_error_t *err)
{
    double cores[BENCH_WORLD_MAX];
    lab_link_t links[BENCH_WORLD_MAX];
    const uint32_t n = (uint32_t)bench->world;
    inspan_status_t status = INSPAN_OK;
    if (bench->cpu != NULL) status = lab_parse_cores(bench->cpu, n, cores, err);
    if (status == INSPAN_OK && bench->link != NULL) status = lab_parse_links(bench->link, n, links, err);
    const lab_options_t options = {.machines = n,
                                   .cores = bench->cpu != NULL ? cores : NULL,
                                   .links = bench->link != NULL ? links : NULL};
    return status == INSPAN_OK ? lab_open(&options, lab, err) : status;
}

static int run_local(const bench_t *bench)
{
    inspan_error_t err = {0};
    interrupt_t interrupt;
    flock_t flock = {.bench = bench, .interrupt = &interrupt};
    bench_group_t group = {.world = (uint32_t)bench->world};
    int listener = -1;
    uint16_t port = 0;
    char meeting[128];
    inspan_status_t status =
        interrupt_open(&interrupt) ? INSPAN_OK : error_set(&err, INSPAN_IO, "no descriptor for signals");
    if (status == INSPAN_OK && (bench->cpu != NULL || bench->link != NULL))
        status = open_lab(bench, &flock.lab, &err);
    if (status == INSPAN_OK) status = os_listen(0, 0, 64, &listener, &port, &err);
    snprintf(meeting, sizeof meeting, "%s:%u", flock.lab != NULL ? lab_host_address(flock.lab) : "127.0.0.1",
             port);
    for (uint32_t r = 0; r < bench->world && status == INSPAN_OK; r++)
        status = start_rank(&flock, r, meeting, &err);
    if (status == INSPAN_OK && bench->world > 1)
        status = bench_serve(listener, &group, false, RENDEZVOUS, look_after, &flock, &err);
    inspan_error_t later = {0};
    if (status != INSPAN_OK) kill_all(&flock);
    const inspan_status_t ended = await_all(&flock, &later);
    if (status == INSPAN_OK && ended != INSPAN_OK) {
        status = ended;
        err = later;
    }
    if (listener >= 0) close(listener);
    lab_close(flock.lab);
    interrupt_close(&interrupt);
    if (status == INSPAN_OK) return CLI_EXIT_OK;
    const int code = cli_fail(&err, bench->json);
    if (status == INSPAN_ABORTED) return CLI_EXIT_JOB;
    return status == INSPAN_JOB_FAILED ? flock.worst : code;
}

int cmd_bench(int argc, char **argv)
{
    bench_t bench = {.rank = NO_RANK,
                     .iterations = 20,
                     .bytes = "4K,1M,25M",
                     .schedule = "auto",
                     .wire = "fp32",
                     .backend = "auto"};
    const cli_option_t options[] = {
        {"local", 0, CLI_COUNT, "N", "start all N ranks on this machine", &bench.local, 1, BENCH_WORLD_MAX},
        OPTION_CPU(&bench.cpu),
        OPTION_LINK(&bench.link),
        {"rank", 0, CLI_COUNT, "R", "be rank R", &bench.rank, 0, BENCH_WORLD_MAX - 1},
        {"world", 0, CLI_COUNT, "N", "of N ranks", &bench.world, 1, BENCH_WORLD_MAX},
        {"rendezvous", 0, CLI_TEXT, "HOST:PORT", "where rank 0 listens and the others find it",
         &bench.rendezvous, 0, 0},
        {"bytes", 0, CLI_TEXT, "B,B,...", "sizes (default 4K,1M,25M)", &bench.bytes, 0, 0},
        {"iters", 0, CLI_COUNT, "K", "measured operations of each size (default 20)", &bench.iterations, 1,
         ITERATIONS_MAX},
        {"schedule", 0, CLI_TEXT, "NAME", "auto, one-shot, direct, ring, doubling or trees", &bench.schedule,
         0, 0},
        {"wire", 0, CLI_TEXT, "TYPE", "numbers on the wire: fp32, bf16, fp16 or int8 (default fp32)",
         &bench.wire, 0, 0},
        {"backend", 0, CLI_TEXT, "NAME", "what carries it: auto, native or gloo (inspan doctor: what can)",
         &bench.backend, 0, 0},
        {"weights", 0, CLI_TEXT, "W,W,...", "share of the sums that each rank makes, as in 1,1,1,0",
         &bench.weights, 0, 0},
        {"chunk", 0, CLI_SIZE, "BYTES", "longest chunk (default: chosen by size)", &bench.chunk, 0, 0},
        {"check", 0, CLI_FLAG, NULL, "compare every sum with the expected one", &bench.check, 0, 0},
        OPTION_DATA_PORTS(&bench.data_ports),
        OPTION_JSON(&bench.json),
        {"joined", 0, CLI_FLAG, NULL, NULL, &bench.joined, 0,
         0}, /* of --local: rank 0 joins as the others do */
    };
    cli_operands_t operands;
    const int code = cli_parse(argc, argv, options, COUNT_OF(options), 1, 1, &operands);
    if (code >= 0) return code;
    inspan_error_t err = {0};
    inspan_status_t status = INSPAN_OK;
    bench.what = operands.items[0];
    if (strcmp(bench.what, "allreduce") != 0 && !explains(&bench))
        status = error_set(&err, INSPAN_INVALID, "bench %.60s: there is bench allreduce and bench explain",
                           bench.what);
    if (status == INSPAN_OK) status = parse(&bench, &err);
    if (status != INSPAN_OK) return cli_fail_user(&err, bench.json);
    return bench.local > 0 ? run_local(&bench) : run_rank(&bench);
}
