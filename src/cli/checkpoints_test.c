/* Fetching checkpoints from a manager that is a real gRPC server in a thread of this program. */
#include "cli/checkpoints.h"

#include <dirent.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "platform/os/os_file.h"
#include "platform/os/os_time.h"
#include "rpc/rpc_files.h"
#include "train/checkpoint.h"
#include "train/checkpoint_test.h"

#define BOUND (60 * NS_PER_S)
#define STEPS 4

typedef enum get_mode { GET_RIGHT, GET_FLIPPED, GET_NOT_FOUND, GET_STUCK } get_mode_t;

typedef struct fixture {
    char folder[64], made[80], into[80]; /* of all; where the "nodes" write; checkpoint.dir */
    rpc_server_t *server;
    pthread_t thread;
    rpc_client_t *client;
    interrupt_t interrupt;
    _Atomic get_mode_t mode;
    atomic_int gets;
    atomic_bool finished;
    Inspan__V1__ResultFile files[STEPS][CHECKPOINT_FILES], *lists[STEPS][CHECKPOINT_FILES];
    Inspan__V1__Artifact artifacts[STEPS]; /* of steps 1 to STEPS */
    char hashes[STEPS][CHECKPOINT_FILES][RPC_FILE_HASH];
} fixture_t;

/* ---- The manager ----------------------------------------------------------------------------- */

/* The file of this hash, from wherever it was made. */
static char *content_of(const fixture_t *fixture, const char *hash, size_t *bytes)
{
    char *content = NULL;
    for (uint64_t step = 1; step <= STEPS; step++) {
        for (size_t i = 0; i < CHECKPOINT_FILES; i++) {
            char path[160], name[32];
            if (strcmp(fixture->hashes[step - 1][i], hash) != 0) continue;
            checkpoint_name(step, name);
            snprintf(path, sizeof path, "%s/%s/%s", fixture->made, name, checkpoint_files[i]);
            if (os_file_read(path, 1 << 20, &content, bytes, NULL) == INSPAN_OK) return content;
        }
    }
    return NULL;
}

static void on_get(void *context, rpc_call_t *call, const ProtobufCMessage *message)
{
    fixture_t *fixture = context;
    const Inspan__V1__FileId *id = (const void *)message;
    Inspan__V1__FileChunk chunk = INSPAN__V1__FILE_CHUNK__INIT;
    const get_mode_t mode = atomic_load(&fixture->mode);
    atomic_fetch_add(&fixture->gets, 1);
    if (mode == GET_STUCK) return; /* until the client gives up */
    char *content = mode == GET_NOT_FOUND ? NULL : content_of(fixture, id->hash, &chunk.data.len);
    if (content == NULL) {
        rpc_call_finish(call, INSPAN_NOT_FOUND, "no such file");
        return;
    }
    if (mode == GET_FLIPPED) content[chunk.data.len / 2] ^= 1;
    chunk.data.data = (uint8_t *)content;
    (void)rpc_call_send(call, &chunk.base);
    free(content);
    rpc_call_finish(call, INSPAN_OK, NULL);
}

static const rpc_method_t methods[] = {
    {.path = "/inspan.v1.Files/Get",
     .request = &inspan__v1__file_id__descriptor,
     .server_streams = true,
     .on_message = on_get},
};

static void *serve(void *context)
{
    rpc_server_run(((fixture_t *)context)->server);
    return NULL;
}

/* ---- The checkpoints that it has ------------------------------------------------------------- */

static void make_checkpoints(fixture_t *fixture)
{
    training_t t;
    inspan_error_t err;
    checkpoint_writer_t *writer = NULL;
    checkpoint_result_t result;
    training_open(&t);
    const checkpoint_options_t options = {
        .folder = fixture->made, .keep = STEPS, .config = t.config, .arrays = t.arrays};
    if (checkpoint_open(&options, &writer, &err) != INSPAN_OK) fail_msg("%s", err.text);
    for (uint64_t step = 1; step <= STEPS; step++) {
        training_step(&t, step - 1);
        assert_int_equal(checkpoint_begin(writer, step, 1, &err), INSPAN_OK);
        assert_true(checkpoint_wait(writer, BOUND, &result) && result.status == INSPAN_OK);
        Inspan__V1__Artifact *artifact = &fixture->artifacts[step - 1];
        inspan__v1__artifact__init(artifact);
        artifact->step = step;
        artifact->n_files = CHECKPOINT_FILES;
        artifact->files = fixture->lists[step - 1];
        for (size_t i = 0; i < CHECKPOINT_FILES; i++) {
            char path[CHECKPOINT_PATH_MAX + 40];
            Inspan__V1__ResultFile *file = &fixture->files[step - 1][i];
            inspan__v1__result_file__init(file);
            fixture->lists[step - 1][i] = file;
            snprintf(path, sizeof path, "%s/%s", result.path, checkpoint_files[i]);
            file->name = (char *)(uintptr_t)checkpoint_files[i];
            file->hash = fixture->hashes[step - 1][i];
            assert_int_equal(rpc_file_hash(path, NULL, file->hash, &file->bytes, &err), INSPAN_OK);
        }
    }
    checkpoint_close(writer);
    training_close(&t);
}

static int set_up(void **state)
{
    fixture_t *fixture = calloc(1, sizeof *fixture);
    inspan_error_t err = {0};
    char target[32];
    uint16_t port = 0;
    if (fixture == NULL) return -1;
    *state = fixture;
    snprintf(fixture->folder, sizeof fixture->folder, "/tmp/inspan-fetch-XXXXXX");
    if (mkdtemp(fixture->folder) == NULL || !interrupt_open(&fixture->interrupt)) return -1;
    snprintf(fixture->made, sizeof fixture->made, "%s/made", fixture->folder);
    snprintf(fixture->into, sizeof fixture->into, "%s/out", fixture->folder);
    make_checkpoints(fixture);
    const rpc_server_options_t options = {.listen = "127.0.0.1:0",
                                          .token = "secret",
                                          .methods = methods,
                                          .n_methods = sizeof methods / sizeof methods[0],
                                          .context = fixture};
    if (rpc_server_open(&options, &fixture->server, &port, &err) != INSPAN_OK) return -1;
    if (pthread_create(&fixture->thread, NULL, serve, fixture) != 0) return -1;
    snprintf(target, sizeof target, "127.0.0.1:%u", port);
    return rpc_client_open(target, "secret", &fixture->client, &err) == INSPAN_OK ? 0 : -1;
}

static int tear_down(void **state)
{
    fixture_t *fixture = *state;
    rpc_client_close(fixture->client);
    rpc_server_stop(fixture->server);
    pthread_join(fixture->thread, NULL);
    rpc_server_close(fixture->server);
    interrupt_close(&fixture->interrupt);
    os_remove_all(fixture->folder, NULL);
    free(fixture);
    return 0;
}

/* ---- The job --------------------------------------------------------------------------------- */

static void offer(fixture_t *fixture, checkpoint_fetch_t *fetch, uint64_t first, uint64_t last)
{
    Inspan__V1__JobInfo job = INSPAN__V1__JOB_INFO__INIT;
    Inspan__V1__Artifact *list[STEPS];
    for (uint64_t step = first; step <= last; step++)
        list[job.n_checkpoints++] = &fixture->artifacts[step - 1];
    job.checkpoints = list;
    checkpoint_fetch_offer(fetch, &job);
}

static checkpoint_fetch_t *open_fetch(fixture_t *fixture, uint32_t keep)
{
    checkpoint_fetch_t *fetch = NULL;
    assert_int_equal(checkpoint_fetch_open(fixture->client, fixture->into, keep, &fetch, NULL), INSPAN_OK);
    return fetch;
}

static size_t entries(const fixture_t *fixture)
{
    DIR *dir = opendir(fixture->into);
    size_t n = 0;
    if (dir == NULL) return 0;
    while (readdir(dir) != NULL) n++;
    closedir(dir);
    return n - 2;
}

static uint64_t newest(const fixture_t *fixture)
{
    checkpoint_found_t found;
    inspan_error_t err;
    return checkpoint_find_newest(fixture->into, NULL, NULL, &found, &err) == INSPAN_OK ? found.step : 0;
}

static void must_finish(checkpoint_fetch_t *fetch, uint64_t expected)
{
    uint64_t step = 0;
    inspan_error_t err;
    if (checkpoint_fetch_finish(fetch, NULL, &step, &err) != INSPAN_OK) fail_msg("%s", err.text);
    assert_int_equal(step, expected);
}

/* ---- Tests ----------------------------------------------------------------------------------- */

static void the_newest_come_as_they_are_registered(void **state)
{
    fixture_t *fixture = *state;
    char text[600];
    checkpoint_fetch_t *fetch = open_fetch(fixture, 2);
    must_finish(fetch, 0);
    assert_false(checkpoint_fetch_told(fetch, text, sizeof text));
    for (uint64_t step = 1; step <= STEPS; step++) {
        offer(fixture, fetch, 1, step);
        must_finish(fetch, step);
        assert_int_equal(newest(fixture), step);
        assert_true(checkpoint_fetch_told(fetch, text, sizeof text));
        assert_non_null(strstr(text, "out/step-0000000"));
        assert_false(checkpoint_fetch_told(fetch, text, sizeof text));
    }
    assert_int_equal(entries(fixture), 2);
    checkpoint_fetch_close(fetch);
    /* another command: what lies here is not fetched again */
    const int gets = atomic_load(&fixture->gets);
    fetch = open_fetch(fixture, 2);
    offer(fixture, fetch, 2, STEPS);
    must_finish(fetch, STEPS);
    assert_int_equal(atomic_load(&fixture->gets), gets);
    checkpoint_fetch_close(fetch);
}

static void a_damaged_one_never_gets_a_name(void **state)
{
    fixture_t *fixture = *state;
    uint64_t step = 7;
    inspan_error_t err;
    char text[600];
    checkpoint_fetch_t *fetch = open_fetch(fixture, 2);
    atomic_store(&fixture->mode, GET_FLIPPED);
    offer(fixture, fetch, 1, 1);
    assert_int_equal(checkpoint_fetch_finish(fetch, NULL, &step, &err), INSPAN_CORRUPT);
    assert_non_null(strstr(err.text, "the checkpoint of step 1"));
    assert_int_equal(step, 0);
    assert_int_equal(entries(fixture), 0);
    assert_true(checkpoint_fetch_told(fetch, text, sizeof text));
    assert_non_null(strstr(text, "step 1 was not fetched"));
    /* the next one is tried all the same */
    atomic_store(&fixture->mode, GET_RIGHT);
    offer(fixture, fetch, 1, 2);
    must_finish(fetch, 2);
    checkpoint_fetch_close(fetch);
}

static void what_comes_back_in_time_is_fetched(void **state)
{
    fixture_t *fixture = *state;
    char text[600];
    checkpoint_fetch_t *fetch = open_fetch(fixture, 1);
    atomic_store(&fixture->mode, GET_NOT_FOUND);
    offer(fixture, fetch, 1, 1);
    for (const ns_t end = os_now() + BOUND; !checkpoint_fetch_told(fetch, text, sizeof text);)
        assert_true(os_now() < end);
    assert_non_null(strstr(text, "no such file"));
    atomic_store(&fixture->mode, GET_RIGHT);
    must_finish(fetch, 1);
    checkpoint_fetch_close(fetch);
}

static void *interrupt_soon(void *context)
{
    fixture_t *fixture = context;
    for (const ns_t end = os_now() + BOUND; atomic_load(&fixture->gets) == 0 && os_now() < end;)
        sched_yield();
    kill(getpid(), SIGINT); /* finish waits by now, or sees a signal that came before: then the next */
    for (const ns_t end = os_now() + BOUND; !atomic_load(&fixture->finished) && os_now() < end;) {
        poll(NULL, 0, 50); /* not a wait: the pause between two signals */
        kill(getpid(), SIGINT);
    }
    return NULL;
}

static void a_stuck_one_is_given_up(void **state)
{
    fixture_t *fixture = *state;
    uint64_t step = 7;
    inspan_error_t err;
    pthread_t thread;
    checkpoint_fetch_t *fetch = open_fetch(fixture, 1);
    atomic_store(&fixture->mode, GET_STUCK);
    assert_int_equal(pthread_create(&thread, NULL, interrupt_soon, fixture), 0);
    offer(fixture, fetch, 1, 1);
    const ns_t start = os_now();
    assert_int_equal(checkpoint_fetch_finish(fetch, &fixture->interrupt, &step, &err), INSPAN_ABORTED);
    atomic_store(&fixture->finished, true);
    assert_int_equal(step, 0);
    checkpoint_fetch_close(fetch);
    assert_true(os_now() - start < 30 * NS_PER_S); /* a stuck call's own bound is a minute */
    pthread_join(thread, NULL);
    assert_int_equal(entries(fixture), 0);
}

static void names_that_lead_away_are_refused(void **state)
{
    fixture_t *fixture = *state;
    static const char *const names[] = {"../../x", "a/b", "", ".hidden", "/etc/passwd"};
    inspan_error_t err;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char text[600];
        uint64_t step = 7;
        checkpoint_fetch_t *fetch = open_fetch(fixture, 1);
        fixture->files[0][1].name = (char *)(uintptr_t)names[i];
        offer(fixture, fetch, 1, 1);
        assert_int_equal(checkpoint_fetch_finish(fetch, NULL, &step, &err), INSPAN_CORRUPT);
        assert_true(checkpoint_fetch_told(fetch, text, sizeof text));
        assert_non_null(strstr(text, "with the name"));
        checkpoint_fetch_close(fetch);
        assert_int_equal(
            checkpoint_fetch_one(fixture->client, &fixture->artifacts[0], fixture->into, 1, &err),
            INSPAN_CORRUPT);
    }
    fixture->artifacts[1].n_files = 0;
    assert_int_equal(checkpoint_fetch_one(fixture->client, &fixture->artifacts[1], fixture->into, 1, &err),
                     INSPAN_CORRUPT);
    fixture->artifacts[2].n_files = 4; /* without its manifest */
    assert_int_equal(checkpoint_fetch_one(fixture->client, &fixture->artifacts[2], fixture->into, 1, &err),
                     INSPAN_NOT_FOUND);
    assert_int_equal(atomic_load(&fixture->gets), 4);
    assert_int_equal(entries(fixture), 0);
}

static void all_can_be_fetched_afterwards(void **state)
{
    fixture_t *fixture = *state;
    inspan_error_t err;
    for (uint64_t step = 1; step <= STEPS; step++)
        if (checkpoint_fetch_one(fixture->client, &fixture->artifacts[step - 1], fixture->into, UINT32_MAX,
                                 &err) != INSPAN_OK)
            fail_msg("%s", err.text);
    assert_int_equal(entries(fixture), STEPS);
    assert_int_equal(newest(fixture), STEPS);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(the_newest_come_as_they_are_registered), TEST(a_damaged_one_never_gets_a_name),
        TEST(what_comes_back_in_time_is_fetched),     TEST(a_stuck_one_is_given_up),
        TEST(names_that_lead_away_are_refused),       TEST(all_can_be_fetched_afterwards),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
