/* The client's side against a manager that is a real gRPC server in a thread of this program, and does as
 * told. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rng.h"
#include "cli/client.h"
#include "cli/results.h"
#include "cli/show.h"
#include "cli/summary.h"
#include "cli/watch.h"
#include "platform/os/os_file.h"
#include "rpc/rpc_files.h"

#define STORE_MAX (8u << 20)

typedef enum get_fault { GET_RIGHT, GET_FLIPPED, GET_SHORT, GET_LONG } get_fault_t;

/* What Watch does for each job's number. */
enum { JOB_RUNS_THROUGH = 1, JOB_WAITS_FOR_CANCEL, JOB_NEEDS_ASKING_TWICE, JOB_IGNORES_CANCEL, JOB_FAILS };

typedef struct fake {
    rpc_server_t *server;
    uint16_t port;
    pthread_t thread;
    uint8_t *stored; /* (STORE_MAX) */
    size_t stored_bytes;
    char hash[64], coming[64];
    _Atomic get_fault_t fault;
    _Atomic int stats, puts, watches, cancels;
    rpc_call_t *watcher; /* server's thread only */
} fake_t;

static void on_stat(void *context, rpc_call_t *call, const ProtobufCMessage *message)
{
    fake_t *fake = context;
    const Inspan__V1__FileId *id = (const void *)message;
    Inspan__V1__FileStat stat = INSPAN__V1__FILE_STAT__INIT;
    stat.present = strcmp(id->hash, fake->hash) == 0;
    atomic_fetch_add(&fake->stats, 1);
    rpc_call_reply(call, &stat.base);
}

static void on_put(void *context, rpc_call_t *call, const ProtobufCMessage *message)
{
    fake_t *fake = context;
    const Inspan__V1__FileChunk *chunk = (const void *)message;
    if (rpc_call_data(call) == NULL) {
        fake->stored_bytes = 0;
        rpc_call_set_data(call, fake);
        atomic_fetch_add(&fake->puts, 1);
        snprintf(fake->coming, sizeof fake->coming, "%s", chunk->hash);
    }
    if (fake->stored_bytes + chunk->data.len > STORE_MAX) {
        rpc_call_finish(call, INSPAN_LIMIT, "the file is too large");
        return;
    }
    if (chunk->data.len > 0) memcpy(fake->stored + fake->stored_bytes, chunk->data.data, chunk->data.len);
    fake->stored_bytes += chunk->data.len;
}

static void on_put_end(void *context, rpc_call_t *call)
{
    fake_t *fake = context;
    Inspan__V1__FileStat stat = INSPAN__V1__FILE_STAT__INIT;
    memcpy(fake->hash, fake->coming, sizeof fake->hash);
    stat.present = true;
    rpc_call_reply(call, &stat.base);
}

static void on_get(void *context, rpc_call_t *call, const ProtobufCMessage *message)
{
    (void)message;
    fake_t *fake = context;
    uint8_t *copy = malloc(STORE_MAX + 1);
    size_t bytes = fake->stored_bytes, sent = 0;
    if (copy == NULL) abort();
    memcpy(copy, fake->stored, STORE_MAX);
    if (fake->fault == GET_FLIPPED && bytes > 0) copy[bytes / 2] ^= 1;
    if (fake->fault == GET_SHORT) bytes -= bytes > 0;
    if (fake->fault == GET_LONG) copy[bytes++] = 0;
    while (sent < bytes) {
        Inspan__V1__FileChunk chunk = INSPAN__V1__FILE_CHUNK__INIT;
        chunk.data.len = bytes - sent < 700000 ? bytes - sent : 700000;
        chunk.data.data = copy + sent;
        sent += chunk.data.len;
        if (rpc_call_send(call, &chunk.base) != INSPAN_OK) break;
    }
    free(copy);
    rpc_call_finish(call, INSPAN_OK, NULL);
}

static void send_state(rpc_call_t *call, uint64_t id, const char *state, uint64_t step, const char *text)
{
    Inspan__V1__JobEvent event = INSPAN__V1__JOB_EVENT__INIT;
    Inspan__V1__JobInfo job = INSPAN__V1__JOB_INFO__INIT;
    Inspan__V1__Progress progress = INSPAN__V1__PROGRESS__INIT;
    progress.step = step;
    progress.steps = 3;
    progress.loss = 2.5;
    job.id = id;
    job.state = (char *)(uintptr_t)state;
    job.progress = &progress;
    event.job = &job;
    event.text = (char *)(uintptr_t)text;
    (void)rpc_call_send(call, &event.base);
}

static void on_watch(void *context, rpc_call_t *call, const ProtobufCMessage *message)
{
    fake_t *fake = context;
    uint64_t id = ((const Inspan__V1__JobRequest *)(const void *)message)->id;
    bool again = atomic_fetch_add(&fake->watches, 1) > 0;
    switch (id) {
    case JOB_RUNS_THROUGH:
    case JOB_FAILS:
        for (uint64_t step = 1; step <= 3; step++)
            send_state(call, id, "running", step, step == 2 ? "half way" : "");
        send_state(call, id, id == JOB_FAILS ? "failed" : "done", 3, "");
        rpc_call_finish(call, INSPAN_OK, NULL);
        break;
    case JOB_NEEDS_ASKING_TWICE:
        send_state(call, id, again ? "done" : "running", 1, "");
        rpc_call_finish(call, INSPAN_OK, NULL);
        break;
    default:
        send_state(call, id, "running", 1, "");
        fake->watcher = call;
        kill(getpid(),
             SIGINT); /* the user presses Ctrl-C now: blocked here, seen by the watcher's descriptor */
        break;
    }
}

static void on_watch_closed(void *context, rpc_call_t *call)
{
    fake_t *fake = context;
    if (fake->watcher == call) fake->watcher = NULL;
}

static void on_cancel(void *context, rpc_call_t *call, const ProtobufCMessage *message)
{
    fake_t *fake = context;
    uint64_t id = ((const Inspan__V1__JobRequest *)(const void *)message)->id;
    Inspan__V1__JobInfo job = INSPAN__V1__JOB_INFO__INIT;
    atomic_fetch_add(&fake->cancels, 1);
    job.id = id;
    job.state = (char *)(uintptr_t) "running";
    rpc_call_reply(call, &job.base);
    if (fake->watcher == NULL) return;
    if (id == JOB_IGNORES_CANCEL) {
        kill(getpid(), SIGINT); /* impatient */
        return;
    }
    send_state(fake->watcher, id, "cancelled", 1, "cancelled by a user");
    rpc_call_finish(fake->watcher, INSPAN_OK, NULL);
}

static void on_get_job(void *context, rpc_call_t *call, const ProtobufCMessage *message)
{
    (void)context;
    uint64_t id = ((const Inspan__V1__JobRequest *)(const void *)message)->id;
    static const char *const states[] = {"", "done", "cancelled", "done", "running", "failed"};
    Inspan__V1__JobInfo job = INSPAN__V1__JOB_INFO__INIT;
    job.id = id;
    job.state = (char *)(uintptr_t)states[id];
    rpc_call_reply(call, &job.base);
}

static const rpc_method_t methods[] = {
    {.path = "/inspan.v1.Files/Stat", .request = &inspan__v1__file_id__descriptor, .on_message = on_stat},
    {.path = "/inspan.v1.Files/Put",
     .request = &inspan__v1__file_chunk__descriptor,
     .client_streams = true,
     .on_message = on_put,
     .on_half_close = on_put_end},
    {.path = "/inspan.v1.Files/Get",
     .request = &inspan__v1__file_id__descriptor,
     .server_streams = true,
     .on_message = on_get},
    {.path = "/inspan.v1.Cluster/Watch",
     .request = &inspan__v1__job_request__descriptor,
     .server_streams = true,
     .on_message = on_watch,
     .on_closed = on_watch_closed},
    {.path = "/inspan.v1.Cluster/Cancel",
     .request = &inspan__v1__job_request__descriptor,
     .on_message = on_cancel},
    {.path = "/inspan.v1.Cluster/GetJob",
     .request = &inspan__v1__job_request__descriptor,
     .on_message = on_get_job},
};

static void *serve(void *context)
{
    rpc_server_run(((fake_t *)context)->server);
    return NULL;
}

typedef struct fixture {
    fake_t fake;
    rpc_client_t *client;
    interrupt_t interrupt;
    char folder[64];
} fixture_t;

static int set_up(void **state)
{
    fixture_t *fixture = calloc(1, sizeof *fixture);
    if (fixture == NULL) return -1;
    *state = fixture;
    fixture->fake.stored = calloc(1, STORE_MAX);
    snprintf(fixture->folder, sizeof fixture->folder, "/tmp/inspan-client-test-XXXXXX");
    rpc_server_options_t options = {.listen = "127.0.0.1:0",
                                    .token = "secret",
                                    .methods = methods,
                                    .n_methods = sizeof methods / sizeof methods[0],
                                    .context = &fixture->fake};
    inspan_error_t err = {0};
    char target[32];
    if (fixture->fake.stored == NULL || mkdtemp(fixture->folder) == NULL ||
        !interrupt_open(&fixture->interrupt))
        return -1;
    if (rpc_server_open(&options, &fixture->fake.server, &fixture->fake.port, &err) != INSPAN_OK) return -1;
    if (pthread_create(&fixture->fake.thread, NULL, serve, &fixture->fake) != 0) return -1;
    snprintf(target, sizeof target, "127.0.0.1:%u", fixture->fake.port);
    return rpc_client_open(target, "secret", &fixture->client, &err) == INSPAN_OK ? 0 : -1;
}

static void stop_server(fixture_t *fixture)
{
    if (fixture->fake.server == NULL) return;
    rpc_server_stop(fixture->fake.server);
    pthread_join(fixture->fake.thread, NULL);
    rpc_server_close(fixture->fake.server);
    fixture->fake.server = NULL;
}

static int tear_down(void **state)
{
    fixture_t *fixture = *state;
    rpc_client_close(fixture->client);
    stop_server(fixture);
    interrupt_close(&fixture->interrupt);
    os_remove_all(fixture->folder, NULL);
    free(fixture->fake.stored);
    free(fixture);
    return 0;
}

static void make_file(const fixture_t *fixture, const char *name, size_t bytes, char *path, size_t size)
{
    uint8_t *data = malloc(bytes + 1);
    rng_t rng;
    assert_non_null(data);
    rng_seed(&rng, bytes, 0);
    for (size_t i = 0; i < bytes; i++) data[i] = (uint8_t)rng_next(&rng);
    snprintf(path, size, "%s/%s", fixture->folder, name);
    assert_int_equal(os_file_write(path, data, bytes, 0600, NULL), INSPAN_OK);
    free(data);
}

typedef struct told {
    uint64_t last, bytes;
    int calls;
} told_t;

static inspan_status_t on_chunk(void *context, uint64_t sent, uint64_t bytes, inspan_error_t *err)
{
    (void)err;
    told_t *told = context;
    if (told->calls++ == 0) assert_int_equal(sent, 0);
    assert_true(sent >= told->last && sent <= bytes);
    told->last = sent;
    told->bytes = bytes;
    return INSPAN_OK;
}

static void files_go_there_and_back(void **state)
{
    fixture_t *fixture = *state;
    const size_t sizes[] = {0, 1, 1000, RPC_FILE_CHUNK - 1, RPC_FILE_CHUNK, RPC_FILE_CHUNK + 1, 3500000};
    inspan_error_t err = {0};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        char path[128], back[128], hash[RPC_FILE_HASH], again[RPC_FILE_HASH];
        uint64_t bytes = 0;
        make_file(fixture, "data", sizes[i], path, sizeof path);
        snprintf(back, sizeof back, "%s/back", fixture->folder);
        assert_int_equal(rpc_file_hash(path, NULL, hash, &bytes, &err), INSPAN_OK);
        assert_int_equal(bytes, sizes[i]);
        told_t told = {0};
        const rpc_file_watch_t watch = {.context = &told, .chunk = on_chunk};
        if (rpc_file_put(fixture->client, &(rpc_file_t){path, hash, bytes}, &watch, &err) != INSPAN_OK)
            fail_msg("%s", err.text);
        assert_int_equal(told.last, bytes);
        assert_int_equal(told.bytes, bytes);
        assert_true((uint64_t)told.calls >= 1 + (bytes + RPC_FILE_CHUNK - 1) / RPC_FILE_CHUNK);
        assert_int_equal(fixture->fake.stored_bytes, sizes[i]);
        int puts = atomic_load(&fixture->fake.puts);
        assert_int_equal(rpc_file_put(fixture->client, &(rpc_file_t){path, hash, bytes}, NULL, &err),
                         INSPAN_OK);
        assert_int_equal(atomic_load(&fixture->fake.puts), puts); /* it was there: not sent again */
        if (rpc_file_get(fixture->client, &(rpc_file_t){back, hash, bytes}, 0644, NULL, &err) != INSPAN_OK)
            fail_msg("%s", err.text);
        assert_int_equal(rpc_file_hash(back, NULL, again, &bytes, &err), INSPAN_OK);
        assert_string_equal(again, hash);
    }
}

static void damaged_files_are_refused(void **state)
{
    fixture_t *fixture = *state;
    char path[128], back[128], hash[RPC_FILE_HASH];
    uint64_t bytes = 0;
    inspan_error_t err = {0};
    make_file(fixture, "data", 1500000, path, sizeof path);
    snprintf(back, sizeof back, "%s/back", fixture->folder);
    assert_int_equal(rpc_file_hash(path, NULL, hash, &bytes, &err), INSPAN_OK);
    assert_int_equal(rpc_file_put(fixture->client, &(rpc_file_t){path, hash, bytes}, NULL, &err), INSPAN_OK);
    for (get_fault_t fault = GET_FLIPPED; fault <= GET_LONG; fault++) {
        atomic_store(&fixture->fake.fault, fault);
        assert_int_equal(rpc_file_get(fixture->client, &(rpc_file_t){back, hash, bytes}, 0644, NULL, &err),
                         INSPAN_CORRUPT);
        assert_int_equal(access(back, F_OK), -1);
    }
    assert_int_equal(rpc_file_put(fixture->client, &(rpc_file_t){path, "another", bytes - 1}, NULL, &err),
                     INSPAN_CORRUPT);
    assert_int_equal(rpc_file_put(fixture->client, &(rpc_file_t){path, "third", bytes + 1}, NULL, &err),
                     INSPAN_CORRUPT);
    assert_int_equal(rpc_file_hash("/no/such/file", NULL, hash, &bytes, &err), INSPAN_NOT_FOUND);
    assert_int_equal(rpc_file_hash("/tmp", NULL, hash, &bytes, &err), INSPAN_IO);
    snprintf(path, sizeof path, "%s/pipe", fixture->folder);
    assert_int_equal(mkfifo(path, 0600), 0);
    alarm(30); /* a pipe that nobody writes does not hold us */
    assert_int_equal(rpc_file_hash(path, NULL, hash, &bytes, &err), INSPAN_IO);
    alarm(0);
    assert_non_null(strstr(err.text, "not a plain file"));
}

static inspan_status_t give_up(void *context, uint64_t done, uint64_t all, inspan_error_t *err)
{
    (void)all;
    const uint64_t *from = context;
    if (done < *from) return INSPAN_OK;
    err->status = INSPAN_REFUSED;
    snprintf(err->text, sizeof err->text, "enough");
    return INSPAN_REFUSED;
}

static bool take_none(void *context, rpc_stream_t *stream)
{
    (void)context;
    return stream == NULL;
}

/* Whoever watches a transfer can end it, before the first chunk and in the middle, and its word is what is
 * told. */
static void transfers_are_given_up(void **state)
{
    fixture_t *fixture = *state;
    char path[128], back[128], hash[RPC_FILE_HASH];
    uint64_t bytes = 0;
    inspan_error_t err = {0};
    make_file(fixture, "data", 3 * RPC_FILE_CHUNK, path, sizeof path);
    snprintf(back, sizeof back, "%s/back", fixture->folder);
    assert_int_equal(rpc_file_hash(path, NULL, hash, &bytes, &err), INSPAN_OK);
    const rpc_file_t there = {path, hash, bytes}, here = {back, hash, bytes};
    for (uint64_t from = 0; from <= 2 * RPC_FILE_CHUNK; from += 2 * RPC_FILE_CHUNK) {
        const rpc_file_watch_t watch = {.context = &from, .chunk = give_up};
        assert_int_equal(rpc_file_hash(path, &watch, hash, &bytes, &err), INSPAN_REFUSED);
        assert_int_equal(rpc_file_put(fixture->client, &there, &watch, &err), INSPAN_REFUSED);
        assert_string_equal(err.text, "enough");
    }
    assert_int_equal(rpc_file_hash(path, NULL, hash, &bytes, &err), INSPAN_OK);
    assert_int_equal(rpc_file_put(fixture->client, &there, NULL, &err), INSPAN_OK);
    for (uint64_t from = 0; from <= 2 * RPC_FILE_CHUNK; from += 2 * RPC_FILE_CHUNK) {
        const rpc_file_watch_t watch = {.context = &from, .chunk = give_up};
        assert_int_equal(rpc_file_get(fixture->client, &here, 0600, &watch, &err), INSPAN_REFUSED);
        assert_int_equal(access(back, F_OK), -1);
    }
    const rpc_file_watch_t none = {.stream = take_none};
    assert_int_equal(rpc_file_get(fixture->client, &here, 0600, &none, &err), INSPAN_ABORTED);
    assert_int_equal(rpc_file_put(fixture->client, &there, &none, &err), INSPAN_ABORTED);
}

static void results_stay_in_their_folder(void **state)
{
    fixture_t *fixture = *state;
    static const char *const bad[] = {"",   "/etc/passwd", "../x", "a/../../x", ".hidden", "a/.b", "a//b",
                                      "a/", "a b",         "a\nb", "..",        "a/b/..",  "\xff"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (results_name_is_safe(bad[i])) fail_msg("\"%s\" was taken", bad[i]);
    char path[128], folder[96], hash[RPC_FILE_HASH];
    inspan_error_t err = {0};
    Inspan__V1__ResultFile file = INSPAN__V1__RESULT_FILE__INIT, *files[] = {&file};
    Inspan__V1__JobInfo job = INSPAN__V1__JOB_INFO__INIT;
    make_file(fixture, "data", 70000, path, sizeof path);
    snprintf(folder, sizeof folder, "%s/a/out", fixture->folder);
    assert_int_equal(rpc_file_hash(path, NULL, hash, &file.bytes, &err), INSPAN_OK);
    assert_int_equal(rpc_file_put(fixture->client, &(rpc_file_t){path, hash, file.bytes}, NULL, &err),
                     INSPAN_OK);
    file.hash = hash;
    job.n_results = 1;
    job.results = files;
    file.name = (char *)(uintptr_t) "step-00000200/model.safetensors";
    assert_int_equal(results_fetch(fixture->client, &job, folder, &err), INSPAN_OK);
    snprintf(path, sizeof path, "%s/step-00000200/model.safetensors", folder);
    assert_int_equal(access(path, R_OK), 0);
    file.name = (char *)(uintptr_t) "../evil";
    assert_int_equal(results_fetch(fixture->client, &job, folder, &err), INSPAN_CORRUPT);
    snprintf(path, sizeof path, "%s/a/evil", fixture->folder);
    assert_int_equal(access(path, F_OK), -1);
}

static Inspan__V1__JobInfo *watch(fixture_t *fixture, uint64_t id, inspan_status_t expected,
                                  inspan_error_t *err)
{
    Inspan__V1__JobInfo *job = NULL;
    watch_options_t options = {.interrupt = &fixture->interrupt, .away_bound = NS_PER_S};
    inspan_status_t status = watch_job(fixture->client, id, &options, &job, err);
    if (status != expected) fail_msg("job %d: %s", (int)id, err->text);
    return job;
}

static void a_job_is_watched_to_its_end(void **state)
{
    inspan_error_t err = {0};
    Inspan__V1__JobInfo *job = watch(*state, JOB_RUNS_THROUGH, INSPAN_OK, &err);
    assert_string_equal(job->state, "done");
    client_free(job);
    job = watch(*state, JOB_FAILS, INSPAN_OK, &err);
    assert_string_equal(job->state, "failed");
    client_free(job);
}

static void a_stream_that_ends_early_is_asked_again(void **state)
{
    fixture_t *fixture = *state;
    inspan_error_t err = {0};
    Inspan__V1__JobInfo *job = watch(fixture, JOB_NEEDS_ASKING_TWICE, INSPAN_OK, &err);
    assert_string_equal(job->state, "done");
    assert_int_equal(atomic_load(&fixture->fake.watches), 2);
    client_free(job);
}

static void the_first_interrupt_cancels(void **state)
{
    fixture_t *fixture = *state;
    inspan_error_t err = {0};
    Inspan__V1__JobInfo *job = watch(fixture, JOB_WAITS_FOR_CANCEL, INSPAN_OK, &err);
    assert_string_equal(job->state, "cancelled");
    assert_int_equal(atomic_load(&fixture->fake.cancels), 1);
    client_free(job);
}

static void the_second_interrupt_leaves(void **state)
{
    fixture_t *fixture = *state;
    inspan_error_t err = {0};
    assert_null(watch(fixture, JOB_IGNORES_CANCEL, INSPAN_ABORTED, &err));
    assert_int_equal(atomic_load(&fixture->fake.cancels), 1);
    assert_non_null(strstr(err.text, "inspan job 4"));
}

static void a_manager_that_stays_away_is_given_up(void **state)
{
    fixture_t *fixture = *state;
    inspan_error_t err = {0};
    stop_server(fixture);
    assert_null(watch(fixture, JOB_RUNS_THROUGH, INSPAN_UNREACHABLE, &err));
    assert_non_null(strstr(err.text, "inspan job 1"));
}

/* ---- Without a manager ----------------------------------------------------------------------- */

static void summaries(void **state)
{
    (void)state;
    Inspan__V1__Rank ranks[2] = {INSPAN__V1__RANK__INIT, INSPAN__V1__RANK__INIT},
                     *list[] = {&ranks[0], &ranks[1]};
    Inspan__V1__JobInfo job = INSPAN__V1__JOB_INFO__INIT;
    job.id = 3;
    job.state = (char *)(uintptr_t) "done";
    job.n_ranks = 2;
    job.ranks = list;
    job.view = 1;
    ranks[1].rank = 1;
    ranks[0].state = ranks[1].state = (char *)(uintptr_t) "done";
    ranks[0].summary_json =
        (char *)(uintptr_t) "{\"steps\": 5, \"samples\": 30, \"compute_s\": 2, \"exposed_comm_s\": 0.5,"
                            "\"bytes_sent\": 100, \"param_hash\": \"ab\", \"loss_first\": 3, \"loss_last\": "
                            "2}";
    ranks[1].summary_json =
        (char *)(uintptr_t) "{\"steps\": 5, \"samples\": 10, \"compute_s\": 3, \"exposed_comm_s\": 0.25,"
                            "\"bytes_sent\": 200, \"param_hash\": \"ab\"}";
    Inspan__V1__Progress progress = INSPAN__V1__PROGRESS__INIT;
    progress.pace_sample_ns = 50000000;
    progress.share_samples = 24;
    ranks[1].progress = &progress;
    Inspan__V1__Verdict verdict = INSPAN__V1__VERDICT__INIT, *verdicts[] = {&verdict};
    verdict.rank = 1;
    verdict.factor = 0.3;
    verdict.cause = INSPAN__V1__VERDICT_CAUSE__CAUSE_QUOTA;
    verdict.text =
        (char *)(uintptr_t) "rank 1 (b) slowed to 0.30x since step 50: CPU quota 0.24 cores, was 0.80";
    job.verdicts = verdicts;
    job.n_verdicts = 1;
    Inspan__V1__LeftOut left = INSPAN__V1__LEFT_OUT__INIT, *left_out[] = {&left};
    left.node = (char *)(uintptr_t) "c";
    left.reason = (char *)(uintptr_t) "its link";
    left.step = 7;
    job.left_out = left_out;
    job.n_left_out = 1;
    json_t *summary = summary_json(&job);
    const json_t *second = json_next(json_first(json_get(summary, "nodes")));
    assert_true(json_get_number(second, "speed", 0) == 20);
    assert_true(json_get_number(second, "share_samples", 0) == 24);
    const json_t *said = json_first(json_get(summary, "verdicts"));
    assert_true(json_get_number(said, "factor", 0) == 0.3);
    assert_string_equal(json_get_string(said, "cause"), "quota");
    assert_string_equal(json_get_string(json_first(json_get(summary, "left_out")), "reason"), "its link");
    char *shown = NULL;
    size_t shown_bytes = 0;
    FILE *text = open_memstream(&shown, &shown_bytes);
    show_job(text, &job);
    summary_print(text, summary);
    fclose(text);
    assert_non_null(strstr(shown, "slowed to 0.30x since step 50"));
    assert_non_null(strstr(shown, "20/s"));
    assert_non_null(strstr(shown, "left out from step 7 on"));
    free(shown);
    assert_true(json_get_number(summary, "steps", 0) == 5);
    assert_true(json_get_number(summary, "samples", 0) == 40);
    assert_true(json_get_number(summary, "compute_s", 0) == 3);
    assert_true(json_get_number(summary, "exposed_comm_s", 0) == 0.5);
    assert_true(json_get_number(summary, "bytes_sent", 0) == 300);
    assert_true(json_get_number(summary, "loss_last", 0) == 2);
    assert_string_equal(json_get_string(summary, "param_hash"), "ab");
    assert_null(json_get(summary, "error"));
    const json_t *first = json_first(json_get(summary, "nodes"));
    assert_true(json_get_number(first, "share", 0) == 0.75);
    assert_true(json_get_number(first, "samples_per_s", 0) == 15);
    json_free(summary);

    static const char *const hostile[] = {
        "", "{", "[]", "7", "{\"samples\": \"many\", \"param_hash\": 5}", "{\"steps\": 1e308}"};
    for (size_t i = 0; i < sizeof hostile / sizeof hostile[0]; i++) {
        FILE *out = fopen("/dev/null", "we");
        ranks[1].summary_json = (char *)(uintptr_t)hostile[i];
        summary = summary_json(&job);
        assert_null(json_get_string(summary, "param_hash")); /* rank 1 has none, or another one */
        summary_print(out, summary);
        json_free(summary);
        fclose(out);
    }
    job.state = (char *)(uintptr_t) "failed";
    job.reason = (char *)(uintptr_t) "node b: agent silent for 5.0 s";
    summary = summary_json(&job);
    assert_string_equal(json_get_string(json_get(summary, "error"), "text"), job.reason);
    json_free(summary);
}

static void progress_lines(void **state)
{
    (void)state;
    char line[256];
    Inspan__V1__Progress progress = INSPAN__V1__PROGRESS__INIT;
    progress.steps = 500;
    watch_format(&progress, 48, 100, line, sizeof line);
    assert_string_equal(line, "step 0/500");
    progress.step = 120;
    progress.loss = 2.31;
    progress.validation_loss = 0.0 / 0.0;
    progress.samples_per_s = 480;
    progress.compute_s = 3;
    progress.exposed_comm_s = 1;
    watch_format(&progress, 48, 100, line, sizeof line);
    assert_string_equal(line, "step 120/500  loss 2.3100  480 samples/s  comm 25 %  left 38.0 s");
    progress.samples_per_s = progress.exposed_comm_s = 0;
    progress.validation_loss = 2.4;
    watch_format(&progress, 48, 100, line, sizeof line); /* an older one is told as such */
    assert_string_equal(line, "step 120/500  loss 2.3100  held-out 2.4000 (step 100)  comm 0 %");
    watch_format(&progress, 48, 120, line, sizeof line);
    assert_string_equal(line, "step 120/500  loss 2.3100  held-out 2.4000  comm 0 %");
}

static void job_numbers(void **state)
{
    (void)state;
    uint64_t id = 0;
    inspan_error_t err = {0};
    assert_int_equal(client_parse_job("17", &id, &err), INSPAN_OK);
    assert_int_equal(id, 17);
    const char *wrong[] = {"", "0", "-1", "1x", "x", "99999999999999999999999"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_int_equal(client_parse_job(wrong[i], &id, &err), INSPAN_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(files_go_there_and_back, set_up, tear_down),
        cmocka_unit_test_setup_teardown(damaged_files_are_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(transfers_are_given_up, set_up, tear_down),
        cmocka_unit_test_setup_teardown(results_stay_in_their_folder, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_job_is_watched_to_its_end, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_stream_that_ends_early_is_asked_again, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_first_interrupt_cancels, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_second_interrupt_leaves, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_manager_that_stays_away_is_given_up, set_up, tear_down),
        cmocka_unit_test(summaries),
        cmocka_unit_test(progress_lines),
        cmocka_unit_test(job_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
