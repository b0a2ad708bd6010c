/* What happens at the service's limits: lists longer than a message, disks and queues that are full. */
#include "manager/service/service_test_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

#include "base/hash.h"
#include "manager/jobs/convert.h"
#include "manager/service/store.h"

/* ---- Lists ---- */

#define JOBS  200
#define WORLD 120

/* A rank whose report has all that a list shows of it. */
static convert_packed_t long_report(uint32_t rank, bool runs)
{
    static char text[401];
    memset(text, 'x', sizeof text - 1);
    Inspan__V1__WorkerReport report = INSPAN__V1__WORKER_REPORT__INIT;
    Inspan__V1__Progress progress = INSPAN__V1__PROGRESS__INIT;
    Inspan__V1__Failure failure = INSPAN__V1__FAILURE__INIT;
    report.rank = rank;
    report.state = runs ? INSPAN__V1__WORKER_STATE__WORKER_RUNNING : INSPAN__V1__WORKER_STATE__WORKER_FAILED;
    progress.step = 1000000;
    progress.loss = 2.5;
    failure.text = text;
    report.progress = &progress;
    report.failure = runs ? NULL : &failure;
    return convert_pack(&report.base);
}

static void put_long_jobs(registry_t *registry)
{
    inspan_error_t err = {0};
    Inspan__V1__Register registration = INSPAN__V1__REGISTER__INIT;
    Inspan__V1__SubmitRequest submitted = request_for(WORLD, WORLD);
    convert_packed_t node_blob = convert_pack(&registration.base), request = convert_pack(&submitted.base);
    registry_node_t node = {.node_id = "n",
                            .name = "n",
                            .address = "192.0.2.1",
                            .state = "ready",
                            .registration = {node_blob.data, node_blob.bytes}};
    assert_int_equal(registry_put_node(registry, &node, &err), INSPAN_OK);
    registry_rank_t *ranks = calloc(WORLD, sizeof *ranks);
    assert_non_null(ranks);
    for (uint32_t i = 0; i < JOBS; i++) {
        const bool runs = i == 0; /* the oldest still */
        for (uint32_t r = 0; r < WORLD && i < 2; r++) {
            convert_packed_t report = long_report(r, runs);
            free((void *)ranks[r].report.data);
            ranks[r] = (registry_rank_t){.rank = r,
                                         .node = node.handle,
                                         .node_name = "n",
                                         .node_id = "n",
                                         .address = "192.0.2.1",
                                         .state = runs ? "running" : "failed",
                                         .report = {report.data, report.bytes}};
        }
        registry_job_t job = {.name = "long",
                              .state = runs ? "running" : "failed",
                              .outcome = runs ? "" : "failed",
                              .reason = "for a test",
                              .request = {request.data, request.bytes}};
        if (registry_put_job(registry, &job, ranks, WORLD, &err) != INSPAN_OK) fail_msg("%s", err.text);
    }
    for (uint32_t r = 0; r < WORLD; r++) free((void *)ranks[r].report.data);
    free(ranks);
    free(node_blob.data);
    free(request.data);
}

static void running_and_the_newest_jobs_are_listed(void **state)
{
    (void)state;
    inspan_error_t err = {0};
    stop_manager();
    registry_t *registry = NULL;
    assert_int_equal(registry_open(manager.folder, 0, &registry, &err), INSPAN_OK);
    put_long_jobs(registry);
    registry_close(registry);
    start_manager();
    Inspan__V1__Empty empty = INSPAN__V1__EMPTY__INIT;
    Inspan__V1__JobList *jobs =
        call("/inspan.v1.Cluster/ListJobs", &empty.base, &inspan__v1__job_list__descriptor);
    assert_true(jobs->n_jobs >= 20 && jobs->n_jobs < JOBS);
    assert_int_equal(jobs->jobs[0]->id, 1);
    assert_string_equal(jobs->jobs[0]->state, "running");
    for (size_t i = 1; i < jobs->n_jobs; i++)
        assert_int_equal(jobs->jobs[i]->id, JOBS - jobs->n_jobs + 1 + i);
    release(jobs);
    Inspan__V1__JobInfo *job = get_job(1);
    assert_int_equal(job->n_ranks, WORLD);
    release(job);
}

static void all_nodes_are_listed(void **state)
{
    (void)state;
    enum { NODES = 100 };
    static char model[50001];
    inspan_error_t err = {0};
    registry_t *registry = NULL;
    Inspan__V1__Register registration = INSPAN__V1__REGISTER__INIT;
    Inspan__V1__Inventory inventory = INSPAN__V1__INVENTORY__INIT;
    memset(model, 'x', sizeof model - 1);
    inventory.cpu_model = model;
    registration.inventory = &inventory;
    convert_packed_t packed = convert_pack(&registration.base);
    stop_manager();
    assert_int_equal(registry_open(manager.folder, 0, &registry, &err), INSPAN_OK);
    for (uint32_t k = 0; k < NODES; k++) {
        char name[16];
        snprintf(name, sizeof name, "n%u", k);
        registry_node_t node = {.node_id = name,
                                .name = name,
                                .address = "192.0.2.1",
                                .state = "left",
                                .registration = {packed.data, packed.bytes}};
        assert_int_equal(registry_put_node(registry, &node, &err), INSPAN_OK);
    }
    free(packed.data);
    registry_close(registry);
    start_manager();
    Inspan__V1__NodeList *nodes = list_nodes();
    assert_int_equal(nodes->n_nodes, NODES);
    assert_non_null(nodes->nodes[0]->inventory);
    assert_null(nodes->nodes[NODES - 1]->inventory);
    assert_string_equal(nodes->nodes[NODES - 1]->name, "n99");
    release(nodes);
}

static void a_job_that_nobody_follows_cannot_be_watched(void **state)
{
    (void)state;
    inspan_error_t err = {0};
    Inspan__V1__SubmitRequest submitted = request_for(1, 1);
    convert_packed_t request = convert_pack(&submitted.base);
    registry_job_t row = {.name = "lost",
                          .state = "queued",
                          .outcome = "queued",
                          .reason = "",
                          .request = {request.data, request.bytes}};
    assert_int_equal(registry_put_job(manager.registry, &row, NULL, 0, &err), INSPAN_OK);
    free(request.data);
    Inspan__V1__JobRequest which = INSPAN__V1__JOB_REQUEST__INIT;
    which.id = row.id;
    rpc_stream_t *stream = open_stream(manager.people, "/inspan.v1.Cluster/Watch",
                                       &inspan__v1__job_event__descriptor, &which.base);
    ProtobufCMessage *message = NULL;
    inspan_status_t status;
    while ((status = rpc_stream_next(stream, PATIENT, &message, &err)) == INSPAN_OK && message != NULL)
        release(message);
    assert_int_equal(status, INSPAN_INTERNAL); /* not a good end: the job has none */
    rpc_stream_close(stream);
}

/* ---- The disk ---- */

static void uploads_together_do_not_fill_the_disk(void **state)
{
    (void)state;
    enum { PUTS = 900 };
    static store_put_t *puts[PUTS];
    inspan_error_t err = {0};
    store_t *store = NULL;
    char folder[128];
    snprintf(folder, sizeof folder, "%s/other", manager.folder);
    assert_int_equal(store_open(folder, &store, &err), INSPAN_OK);
    struct statvfs disk;
    assert_int_equal(statvfs(folder, &disk), 0);
    uint64_t room = (uint64_t)disk.f_bavail * disk.f_frsize;
    struct rlimit files;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
    uint32_t n = 0;
    inspan_status_t status = INSPAN_OK;
    if (room / STORE_FILE_MAX + 1 < PUTS && room / STORE_FILE_MAX + 64 < files.rlim_cur)
        for (; n < PUTS && status == INSPAN_OK; n++) {
            char hash[STORE_HASH_TEXT];
            snprintf(hash, sizeof hash, "%032x", n);
            status = store_put_begin(store, hash, STORE_FILE_MAX, &puts[n], &err);
        }
    if (n > 0) {
        assert_int_equal(status, INSPAN_LIMIT);
        assert_non_null(strstr(err.text, "no room"));
        assert_true(n - 1 <= room / STORE_FILE_MAX + 1);
        if (n > 1) { /* who gives up gives its room back */
            store_put_abandon(puts[0]);
            assert_int_equal(store_put_begin(store, "0123456789abcdef0123456789abcdef", STORE_FILE_MAX / 2,
                                             &puts[0], &err),
                             INSPAN_OK);
        }
    }
    for (uint32_t i = 0; i + 1 < n; i++) store_put_abandon(puts[i]);
    store_close(store);
    if (n == 0) skip(); /* a disk too large for the descriptors of this test */
}

/* ---- Queues ---- */

#define QUEUE_BYTES (4u << 20)
#define READERS     12 /* more than the queue, at 1 MiB ahead each */
#define FILE_BYTES  (5u << 20)

static void store_file(char hash[STORE_HASH_TEXT])
{
    uint8_t *data = malloc(FILE_BYTES);
    assert_non_null(data);
    for (size_t i = 0; i < FILE_BYTES; i++) data[i] = (uint8_t)(i * 2654435761u >> 13);
    hash_stream_t *hashing = hash_stream_open();
    hash_stream_add(hashing, data, FILE_BYTES);
    hash_stream_finish128_hex(hashing, hash);
    inspan_error_t err = {0};
    store_t *store = NULL;
    store_put_t *put = NULL;
    char folder[128];
    snprintf(folder, sizeof folder, "%s/files", manager.folder);
    assert_int_equal(store_open(folder, &store, &err), INSPAN_OK);
    assert_int_equal(store_put_begin(store, hash, FILE_BYTES, &put, &err), INSPAN_OK);
    assert_int_equal(store_put_add(put, data, FILE_BYTES, &err), INSPAN_OK);
    assert_int_equal(store_put_commit(put, &err), INSPAN_OK);
    store_close(store);
    free(data);
}

static uint64_t read_all(rpc_stream_t *stream)
{
    uint64_t got = 0;
    inspan_error_t err = {0};
    ProtobufCMessage *message = NULL;
    inspan_status_t status;
    while ((status = rpc_stream_next(stream, PATIENT, &message, &err)) == INSPAN_OK && message != NULL) {
        got += ((Inspan__V1__FileChunk *)message)->data.len;
        release(message);
    }
    if (status != INSPAN_OK) print_error("after %llu bytes: %s\n", (unsigned long long)got, err.text);
    return got;
}

static void many_slow_readers_all_get_their_file(void **state)
{
    (void)state;
    static rpc_stream_t *readers[READERS];
    char hash[STORE_HASH_TEXT];
    stop_manager();
    manager.queue_bytes = QUEUE_BYTES;
    start_manager();
    store_file(hash);
    Inspan__V1__FileId id = INSPAN__V1__FILE_ID__INIT;
    id.hash = hash;
    for (uint32_t i = 0; i < READERS; i++)
        readers[i] = open_stream(manager.people, "/inspan.v1.Files/Get", &inspan__v1__file_chunk__descriptor,
                                 &id.base);
    uint32_t served = 0;
    for (uint32_t i = READERS; i-- > 0;) { /* the last one waits for room behind all others */
        served += read_all(readers[i]) == FILE_BYTES;
        rpc_stream_close(readers[i]);
    }
    assert_int_equal(served, READERS);
}

int main(void)
{
#define WITH_MANAGER(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        WITH_MANAGER(running_and_the_newest_jobs_are_listed),
        WITH_MANAGER(all_nodes_are_listed),
        WITH_MANAGER(a_job_that_nobody_follows_cannot_be_watched),
        WITH_MANAGER(uploads_together_do_not_fill_the_disk),
        WITH_MANAGER(many_slow_readers_all_get_their_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
