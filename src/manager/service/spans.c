/* Cluster.ReadLedger: a page of the registry at a time, at the reader's pace. */
#include <stdlib.h>

#include "base/error.h"
#include "manager/service/service_internal.h"

#define PAGE_SPANS  100
#define AHEAD_BYTES (1u << 20)
#define PAGE_BYTES  (2u << 20) /* a message has at most 4 MiB */

struct ledger_read {
    rpc_call_t *call;
    uint64_t job, next; /* step that the next page begins at */
    bool over;
    ledger_read_t *next_read;
};

typedef struct page {
    Inspan__V1__LedgerSpans message;
    Inspan__V1__LedgerSpan *spans[PAGE_SPANS];
    size_t bytes;
    bool good;
} page_t;

static bool take_span(void *context, const registry_span_t *row)
{
    page_t *page = context;
    if (page->bytes + row->shares.bytes > PAGE_BYTES && page->message.n_spans > 0) return false;
    Inspan__V1__LedgerSpan *span = inspan__v1__ledger_span__unpack(NULL, row->shares.bytes, row->shares.data);
    page->good = span != NULL;
    if (span == NULL) return false;
    span->first_step = row->first_step;
    span->last_step = row->last_step;
    span->view = row->view;
    page->spans[page->message.n_spans++] = span;
    page->bytes += row->shares.bytes + 64;
    return page->message.n_spans < PAGE_SPANS;
}

static void finish(ledger_read_t *read, inspan_status_t status, const char *text)
{
    read->over = true;
    rpc_call_finish(read->call, status, text);
}

/* One page. false: nothing more for now. */
static bool send_page(service_t *service, ledger_read_t *read, page_t *page)
{
    inspan_error_t err;
    *page = (page_t){.good = true};
    inspan__v1__ledger_spans__init(&page->message);
    page->message.spans = page->spans;
    page->message.job_id = read->job;
    inspan_status_t status =
        registry_ledger(service->registry, read->job, &page->message.seed, &page->message.batch, &err);
    if (status == INSPAN_OK)
        status =
            registry_each_span(service->registry, read->job, read->next, PAGE_SPANS, take_span, page, &err);
    if (status == INSPAN_OK && !page->good)
        status = error_set(&err, INSPAN_CORRUPT, "a span of the ledger cannot be read, at step %llu or later",
                           (unsigned long long)read->next);
    if (status == INSPAN_OK && page->message.n_spans > 0) {
        status = rpc_call_send(read->call, &page->message.base);
        if (status == INSPAN_LIMIT) return false; /* goes on by on_writable or the tick */
        if (status != INSPAN_OK) error_set(&err, status, "the ledger cannot be sent");
    }
    if (status != INSPAN_OK) {
        finish(read, err.status, err.text);
        return false;
    }
    if (page->message.n_spans == 0) {
        finish(read, INSPAN_OK, "");
        return false;
    }
    read->next = page->spans[page->message.n_spans - 1]->last_step + 1;
    return true;
}

static void pump(service_t *service, ledger_read_t *read)
{
    page_t *page = malloc(sizeof *page);
    if (page == NULL) {
        finish(read, INSPAN_NO_MEMORY, "the manager is out of memory");
        return;
    }
    for (bool more = true; more && !read->over && rpc_call_queued(read->call) < AHEAD_BYTES;) {
        more = send_page(service, read, page);
        for (size_t i = 0; i < page->message.n_spans; i++)
            protobuf_c_message_free_unpacked(&page->spans[i]->base, NULL);
    }
    free(page);
}

void spans_read(void *context, rpc_call_t *call, const ProtobufCMessage *message)
{
    service_t *service = context;
    uint64_t id = ((const Inspan__V1__JobRequest *)message)->id;
    fleet_job_t *loaded = NULL;
    inspan_error_t err;
    bool known = fleet_job_or_load(service->fleet, id, os_now(), &loaded, &err) != NULL;
    fleet_job_free(loaded);
    if (!known) {
        service_fail(call, &err);
        return;
    }
    ledger_read_t *read = calloc(1, sizeof *read);
    if (read == NULL) {
        rpc_call_finish(call, INSPAN_NO_MEMORY, "the manager is out of memory");
        return;
    }
    read->call = call;
    read->job = id;
    read->next_read = service->ledger_reads;
    service->ledger_reads = read;
    rpc_call_set_data(call, read);
    pump(service, read);
}

void spans_read_writable(void *context, rpc_call_t *call)
{
    ledger_read_t *read = rpc_call_data(call);
    if (read != NULL && !read->over) pump(context, read);
}

void spans_tick(service_t *service)
{
    for (ledger_read_t *read = service->ledger_reads; read != NULL; read = read->next_read)
        if (!read->over && rpc_call_queued(read->call) == 0) pump(service, read);
}

void spans_read_closed(void *context, rpc_call_t *call)
{
    service_t *service = context;
    ledger_read_t *read = rpc_call_data(call);
    if (read == NULL) return;
    for (ledger_read_t **at = &service->ledger_reads; *at != NULL; at = &(*at)->next_read)
        if (*at == read) {
            *at = read->next_read;
            break;
        }
    free(read);
}
