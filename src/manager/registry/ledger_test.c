/* Checkpoints under their view, the ledger against a plain array, and kill -9 after every write. */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/rng.h"
#include "manager/registry/registry.h"
#include "platform/os/os_file.h"

static char folder[64];
static registry_t *registry;
static inspan_error_t err;

static void open_registry(void)
{
    if (registry_open(folder, 0, &registry, &err) != INSPAN_OK) fail_msg("%s", err.text);
}

static int set_up(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "%s/inspan-ledger-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    if (mkdtemp(folder) == NULL) return -1;
    open_registry();
    registry_job_t job = {.name = "j", .state = "running", .outcome = "", .reason = "", .request = {"r", 1}};
    return registry_put_job(registry, &job, NULL, 0, &err) == INSPAN_OK ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    registry_close(registry);
    return os_remove_all(folder, NULL) == INSPAN_OK ? 0 : -1;
}

static inspan_status_t put_view(uint64_t view)
{
    registry_view_t row = {.job = 1, .view = view, .key = {"k", 1}, .members = {"m", 1}};
    return registry_put_view(registry, &row, NULL, 0, &err);
}

static inspan_status_t put_artifact(uint64_t step, uint64_t view, bool result, const char *message)
{
    registry_artifact_t artifact = {
        .job = 1, .step = step, .view = view, .result = result, .message = {message, strlen(message)}};
    return registry_put_artifact(registry, &artifact, 2, &err);
}

typedef struct list {
    char text[4000];
    uint32_t n;
} list_t;

static bool list_artifact(void *context, const registry_artifact_t *artifact)
{
    list_t *list = context;
    size_t used = strlen(list->text);
    snprintf(list->text + used, sizeof list->text - used, "%s%llu:%.*s ", artifact->result ? "R" : "",
             (unsigned long long)artifact->step, (int)artifact->message.bytes,
             (const char *)artifact->message.data);
    list->n++;
    return true;
}

static void expect_artifacts(const char *text)
{
    list_t list = {.n = 0};
    assert_int_equal(registry_each_artifact(registry, 1, list_artifact, &list, &err), INSPAN_OK);
    assert_string_equal(list.text, text);
}

static void only_the_newest_view_registers(void **state)
{
    (void)state;
    assert_int_equal(put_artifact(10, 0, false, "none"), INSPAN_ABORTED);
    assert_int_equal(put_view(1), INSPAN_OK);
    assert_int_equal(put_artifact(10, 1, false, "a"), INSPAN_OK);
    assert_int_equal(put_artifact(20, 2, false, "future"), INSPAN_ABORTED);
    assert_int_equal(put_view(2), INSPAN_OK);
    assert_int_equal(put_artifact(20, 1, false, "late"), INSPAN_ABORTED); /* P1 */
    assert_non_null(strstr(err.text, "was made under view 1, the newest is 2"));
    assert_int_equal(put_artifact(10, 1, false, "a"), INSPAN_OK); /* its answer was lost: the same again */
    assert_int_equal(put_artifact(20, 2, false, "b"), INSPAN_OK);
    expect_artifacts("10:a 20:b ");
    assert_int_equal(put_artifact(30, 2, false, "c"), INSPAN_OK); /* the newest two are kept */
    assert_int_equal(put_artifact(40, 2, true, "model"), INSPAN_OK);
    registry_close(registry);
    open_registry();
    expect_artifacts("20:b 30:c R40:model ");
}

static inspan_status_t put_span(uint64_t first, uint64_t last, uint64_t view, const char *shares)
{
    registry_span_t span = {
        .job = 1, .first_step = first, .last_step = last, .view = view, .shares = {shares, strlen(shares)}};
    return registry_put_spans(registry, 1, 42, 64, &span, 1, &err);
}

static bool list_span(void *context, const registry_span_t *span)
{
    list_t *list = context;
    size_t used = strlen(list->text);
    snprintf(list->text + used, sizeof list->text - used, "%llu-%llu/%llu%.*s ",
             (unsigned long long)span->first_step, (unsigned long long)span->last_step,
             (unsigned long long)span->view, (int)span->shares.bytes, (const char *)span->shares.data);
    list->n++;
    return true;
}

static void expect_spans(const char *text)
{
    list_t list = {.n = 0};
    assert_int_equal(registry_each_span(registry, 1, 0, 1000, list_span, &list, &err), INSPAN_OK);
    assert_string_equal(list.text, text);
}

static void spans_come_again_and_longer(void **state)
{
    (void)state;
    uint64_t seed = 1, batch = 1;
    assert_int_equal(registry_ledger(registry, 1, &seed, &batch, &err), INSPAN_OK);
    assert_int_equal(seed + batch, 0);
    assert_int_equal(put_span(0, 4, 1, "a"), INSPAN_OK);
    assert_int_equal(put_span(0, 9, 1, "a"), INSPAN_OK);
    assert_int_equal(put_span(0, 9, 1, "a"), INSPAN_OK);
    assert_int_equal(put_span(0, 7, 1, "a"), INSPAN_OK); /* late */
    expect_spans("0-9/1a ");
    assert_int_equal(put_span(10, 12, 2, "b"), INSPAN_OK);
    assert_int_equal(put_span(11, 15, 2, "b"), INSPAN_OK); /* another member tells, from its own start on */
    expect_spans("0-9/1a 10-15/2b ");
    assert_int_equal(put_span(16, 16, 2, "c"), INSPAN_OK);
    assert_int_equal(put_span(8, 8, 5, "d"), INSPAN_OK); /* a new lineage begins after step 7 */
    expect_spans("0-7/1a 8-8/5d ");
    assert_int_equal(put_span(16, 16, 2, "c"), INSPAN_OK); /* late word of the old one */
    assert_int_equal(put_span(9, 20, 5, "d"), INSPAN_OK);
    expect_spans("0-7/1a 8-20/5d ");
    assert_int_equal(put_span(3, 2, 5, "x"), INSPAN_INVALID);
    assert_int_equal(registry_ledger(registry, 1, &seed, &batch, &err), INSPAN_OK);
    assert_int_equal(seed, 42);
    assert_int_equal(batch, 64);
}

typedef struct model {
    uint64_t view[64];
    char shares[64];
} model_t;

static bool compare_span(void *context, const registry_span_t *span)
{
    model_t *model = context;
    for (uint64_t step = span->first_step; step <= span->last_step; step++) {
        assert_int_equal(model->view[step], span->view);
        assert_int_equal(model->shares[step], ((const char *)span->shares.data)[0]);
        model->view[step] = 0;
    }
    return true;
}

/* What is told for one step in one view is always the same; spans arrive in pieces, overlapping, again. */
static void random_spans_agree_with_an_array(void **state)
{
    (void)state;
    rng_t rng;
    rng_seed(&rng, 3, 3);
    model_t model = {.shares = ""};
    uint64_t view = 1, from = 0;
    for (int i = 0; i < 600; i++) {
        if (rng_below(&rng, 60) == 0) { /* a new lineage, or only a new view */
            view++;
            from = rng_below(&rng, 2) == 0 ? from : rng_below(&rng, from + 1);
            continue;
        }
        uint64_t first = from + rng_below(&rng, 4), last = first + rng_below(&rng, 6);
        if (first > 63) first = 63;
        if (last > 63) last = 63;
        char shares[2] = {(char)('a' + (char)view % 20), '\0'};
        assert_int_equal(put_span(first, last, view, shares), INSPAN_OK);
        for (uint64_t step = first; step < 64; step++) /* older views have nothing to say from here on */
            if (model.view[step] < view) model.view[step] = step <= last ? view : 0;
        for (uint64_t step = first; step <= last; step++) model.shares[step] = shares[0];
        if (rng_below(&rng, 8) == 0) from = last + 1 < 60 ? last + 1 : 0;
        if (from == 0) view++;
        model_t copy = model;
        assert_int_equal(registry_each_span(registry, 1, 0, 1000, compare_span, &copy, &err), INSPAN_OK);
        for (uint64_t step = 0; step < 64; step++) assert_int_equal(copy.view[step], 0); /* all were there */
    }
}

/* ---- kill -9 at every write ---- */

static inspan_status_t write_number(uint32_t k)
{
    char text[32];
    registry_node_t node = {
        .node_id = text, .name = text, .address = "a", .state = "ready", .drained = true, .losses = {"l", 1}};
    registry_rank_t rank = {.job = 1, .rank = k, .node = 1, .node_name = "n", .state = "bound"};
    registry_job_t job = {.name = "k", .state = "queued", .outcome = "", .reason = "", .elastic = true};
    snprintf(text, sizeof text, "n%u", k);
    switch (k % 7) {
    case 0: return registry_put_node(registry, &node, &err);
    case 1: return registry_put_job(registry, &job, NULL, 0, &err);
    case 2: return registry_put_rank(registry, &rank, &err);
    case 3: return put_view(k);
    case 4: return put_artifact(k, k - 1, false, text);
    case 5: return put_span(k, k, k, text);
    default: return registry_put_event(registry, k, 1, 0, text, &err);
    }
}

static bool count(void *context)
{
    ++*(uint32_t *)context;
    return true;
}
static bool count_node(void *context, const registry_node_t *node)
{
    return node->drained && node->losses.bytes == 1 && count(context);
}
static bool count_job(void *context, const registry_job_t *job)
{
    return (job->elastic || job->id == 1) && count(context);
}
static bool count_rank(void *context, const registry_rank_t *rank)
{
    (void)rank;
    return count(context);
}
static bool count_span(void *context, const registry_span_t *span)
{
    (void)span;
    return count(context);
}
static bool count_event(void *context, ns_t wall, const char *text)
{
    (void)wall, (void)text;
    return count(context);
}
static bool newest_view(void *context, const registry_view_t *view)
{
    *(uint32_t *)context = (uint32_t)view->view;
    return true;
}
static bool newest_artifact(void *context, const registry_artifact_t *artifact)
{
    *(uint32_t *)context = (uint32_t)artifact->step;
    return true;
}

/* Numbers 0 .. n - 1 were acknowledged; number n may be there or not. */
static void expect_all_of(uint32_t n)
{
    uint32_t nodes = 0, jobs = 0, ranks = 0, view = 0, step = 0, spans = 0, events = 0;
    assert_int_equal(registry_each_node(registry, count_node, &nodes, &err), INSPAN_OK);
    assert_int_equal(registry_each_job(registry, 0, 1000, count_job, &jobs, &err), INSPAN_OK);
    assert_int_equal(registry_each_rank(registry, 1, count_rank, &ranks, &err), INSPAN_OK);
    assert_int_equal(registry_last_view(registry, 1, newest_view, &view, &err), INSPAN_OK);
    assert_int_equal(registry_each_artifact(registry, 1, newest_artifact, &step, &err), INSPAN_OK);
    assert_int_equal(registry_each_span(registry, 1, 0, 1000, count_span, &spans, &err), INSPAN_OK);
    assert_int_equal(registry_each_event(registry, 1, count_event, &events, &err), INSPAN_OK);
    assert_in_range(nodes, (n + 6) / 7, (n + 7) / 7);
    assert_in_range(jobs, 1 + (n + 5) / 7, 1 + (n + 6) / 7);
    assert_in_range(ranks, (n + 4) / 7, (n + 5) / 7);
    assert_true(view >= (n < 4 ? 0 : (n - 4) / 7 * 7 + 3));
    assert_true(step >= (n < 5 ? 0 : (n - 5) / 7 * 7 + 4));
    assert_in_range(spans, (n + 1) / 7, (n + 2) / 7);
    assert_in_range(events, n / 7, (n + 1) / 7);
}

static void every_acknowledged_write_survives_kill_9(void **state)
{
    (void)state;
    registry_close(registry);
    registry = NULL;
    for (uint32_t round = 0; round < 21; round++) {
        char child_folder[80];
        snprintf(child_folder, sizeof child_folder, "%s/%u", folder, round);
        int pipes[2];
        assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            registry_job_t job = {.name = "j", .state = "running", .outcome = "", .reason = ""};
            if (registry_open(child_folder, 0, &registry, NULL) != INSPAN_OK) _exit(1);
            if (registry_put_job(registry, &job, NULL, 0, NULL) != INSPAN_OK) _exit(2);
            for (uint32_t k = 0;; k++) {
                if (write_number(k) != INSPAN_OK) _exit(3);
                if (write(pipes[1], &k, sizeof k) != sizeof k) _exit(4);
            }
        }
        close(pipes[1]);
        uint32_t k = 0, acknowledged = 0;
        /* one write after another is the one that is cut */
        for (uint32_t i = 0; i < 14 + round && read(pipes[0], &k, sizeof k) == sizeof k; i++)
            acknowledged = k + 1;
        kill(child, SIGKILL);
        while (read(pipes[0], &k, sizeof k) == sizeof k) acknowledged = k + 1;
        close(pipes[0]);
        int how = 0;
        assert_int_equal(waitpid(child, &how, 0), child);
        assert_true(WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL);
        assert_true(acknowledged >= 14);
        if (registry_open(child_folder, 0, &registry, &err) != INSPAN_OK) fail_msg("%s", err.text);
        assert_string_equal(registry_notice(registry), ""); /* no damage */
        expect_all_of(acknowledged);
        registry_close(registry);
        registry = NULL;
    }
    open_registry();
}

int main(void)
{
#define IN_FOLDER(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        IN_FOLDER(only_the_newest_view_registers),
        IN_FOLDER(spans_come_again_and_longer),
        IN_FOLDER(random_spans_agree_with_an_array),
        IN_FOLDER(every_acknowledged_write_survives_kill_9),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
