#include <string.h>

#include "base/error.h"
#include "base/vec.h"
#include "cli/client.h"
#include "cli/common_options.h"
#include "cli/interrupt.h"
#include "cli/show.h"
#include "cli/watch.h"

#define RANKS_MAX    256
#define LINE_MAX_LEN 65536
#define LOOK_PERIOD  (200 * NS_PER_MS)
#define QUIET_BOUND  (20 * NS_PER_S) /* without -f the log ends; silence this long is a fault */

/* Output of several ranks: whole lines, each with its rank before it. */
typedef struct printer {
    bool json, one_rank, any;
    vec_of(char) lines[RANKS_MAX]; /* what has come of each rank's unfinished line */
} printer_t;

static void print_json_line(uint32_t rank, const char *text, size_t n)
{
    json_t *object = json_object();
    json_set_number(object, "rank", rank);
    show_set_bytes(object, "text", text, n);
    show_print_json(object);
}

static void end_line(printer_t *printer, uint32_t rank)
{
    if (printer->json)
        print_json_line(rank, printer->lines[rank].items, printer->lines[rank].n);
    else
        printf("[%u] %.*s\n", rank, (int)printer->lines[rank].n, printer->lines[rank].items);
    printer->lines[rank].n = 0;
}

static void print_chunk(printer_t *printer, const Inspan__V1__LogChunk *chunk)
{
    if (chunk->dropped_bytes > 0)
        fprintf(stderr, "inspan: rank %u: %llu bytes of its output were dropped (the log is capped)\n",
                chunk->rank, (unsigned long long)chunk->dropped_bytes);
    printer->any |= chunk->data.len > 0;
    if (printer->one_rank && !printer->json) {
        fwrite(chunk->data.data, 1, chunk->data.len, stdout);
    } else if (chunk->rank < RANKS_MAX) {
        for (size_t i = 0; i < chunk->data.len; i++) {
            char byte = (char)chunk->data.data[i];
            if (byte == '\n' || printer->lines[chunk->rank].n >= LINE_MAX_LEN) end_line(printer, chunk->rank);
            if (byte != '\n') (void)VEC_PUSH(&printer->lines[chunk->rank], byte);
        }
    }
    fflush(stdout);
}

static void close_printer(printer_t *printer)
{
    for (uint32_t i = 0; i < RANKS_MAX; i++) {
        if (printer->lines[i].n > 0) end_line(printer, i);
        vec_free(&printer->lines[i]);
    }
    fflush(stdout);
}

static inspan_status_t read_log(rpc_client_t *client, const Inspan__V1__LogRequest *request,
                                interrupt_t *interrupt, printer_t *printer, inspan_error_t *err)
{
    rpc_stream_t *stream = NULL;
    inspan_status_t status = rpc_stream_open(client, "/inspan.v1.Cluster/ReadLog",
                                             &inspan__v1__log_chunk__descriptor, &stream, err);
    if (status != INSPAN_OK) return status;
    status = rpc_stream_send(stream, &request->base, CLIENT_BOUND, err);
    if (status == INSPAN_OK) rpc_stream_half_close(stream);
    ns_t quiet = 0;
    while (status == INSPAN_OK && interrupt_wait(interrupt, 0) == 0 && ferror(stdout) == 0) {
        ProtobufCMessage *message = NULL;
        status = rpc_stream_next(stream, LOOK_PERIOD, &message, err);
        if (status == INSPAN_TIMEOUT) {
            quiet += LOOK_PERIOD;
            if (request->follow || quiet < QUIET_BOUND) status = INSPAN_OK;
            continue;
        }
        quiet = 0;
        if (status != INSPAN_OK || message == NULL) break;
        print_chunk(printer, (const Inspan__V1__LogChunk *)(const void *)message);
        client_free(message);
    }
    rpc_stream_close(stream);
    return status;
}

/* A worker whose data is still being fetched has no log yet: whoever follows the job waits for it. */
static inspan_status_t follow_log(rpc_client_t *client, const Inspan__V1__LogRequest *request,
                                  interrupt_t *interrupt, printer_t *printer, inspan_error_t *err)
{
    for (;;) {
        Inspan__V1__JobInfo *job = client_job(client, request->job_id, err);
        if (job == NULL) return err->status;
        const bool ended = watch_has_ended(job);
        client_free(job);
        const inspan_status_t status = read_log(client, request, interrupt, printer, err);
        if (status != INSPAN_OK || printer->any || ended || !request->follow) return status;
        if (interrupt_wait(interrupt, LOOK_PERIOD) != 0) return INSPAN_OK;
    }
}

int cmd_logs(int argc, char **argv)
{
    place_options_t place = {0};
    bool json = false, follow = false;
    uint64_t rank = RANKS_MAX, tail = 0, id = 0;
    const cli_option_t options[] = {{.name = "follow",
                                     .letter = 'f',
                                     .type = CLI_FLAG,
                                     .help = "go on until the job ends",
                                     .value = &follow},
                                    {.name = "rank",
                                     .type = CLI_COUNT,
                                     .argument = "R",
                                     .help = "this rank's output alone, as it is",
                                     .value = &rank,
                                     .most = RANKS_MAX - 1},
                                    {.name = "tail",
                                     .type = CLI_SIZE,
                                     .argument = "BYTES",
                                     .help = "begin that far from the end, as in 4K",
                                     .value = &tail},
                                    OPTION_MANAGER(&place),
                                    OPTION_TOKEN(&place),
                                    OPTION_DIR(&place),
                                    OPTION_JSON(&json)};
    cli_operands_t operands;
    int code = cli_parse(argc, argv, options, COUNT_OF(options), 1, 1, &operands);
    if (code >= 0) return code;

    inspan_error_t err = {0};
    rpc_client_t *client = NULL;
    interrupt_t interrupt;
    Inspan__V1__LogRequest request = INSPAN__V1__LOG_REQUEST__INIT;
    inspan_status_t status = client_parse_job(operands.items[0], &id, &err);
    if (status == INSPAN_OK && !interrupt_open(&interrupt))
        status = error_set(&err, INSPAN_IO, "no descriptor left");
    if (status != INSPAN_OK) return cli_fail(&err, json);
    request.job_id = id;
    request.rank = rank < RANKS_MAX ? (int32_t)rank : -1;
    request.follow = follow;
    request.tail_bytes = tail;
    printer_t *printer = calloc(1, sizeof *printer);
    if (printer == NULL) status = error_set(&err, INSPAN_NO_MEMORY, "out of memory");
    if (status == INSPAN_OK) status = client_open(&place, &client, &err);
    if (status == INSPAN_OK) {
        printer->json = json;
        printer->one_rank = request.rank >= 0;
        status = follow_log(client, &request, &interrupt, printer, &err);
        close_printer(printer);
    }
    free(printer);
    if (client != NULL) rpc_client_close(client);
    interrupt_close(&interrupt);
    return status == INSPAN_OK ? CLI_EXIT_OK : cli_fail(&err, json);
}
