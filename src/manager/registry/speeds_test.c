/* Speeds of nodes, and a registry of the schema before them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "manager/registry/registry_internal.h"
#include "platform/os/os_file.h"

static char folder[64];
static inspan_error_t err;

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "%s/inspan-speeds-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    return mkdtemp(folder) == NULL ? -1 : 0;
}

static int remove_folder(void **state)
{
    (void)state;
    return os_remove_all(folder, NULL) == INSPAN_OK ? 0 : -1;
}

static registry_t *open_ok(void)
{
    registry_t *registry = NULL;
    if (registry_open(folder, 0, &registry, &err) != INSPAN_OK) fail_msg("%s", err.text);
    return registry;
}

static void put(registry_t *registry, const char *node, const char *model, uint64_t sample_ns, ns_t wall)
{
    registry_speed_t speed = {.node_id = node,
                              .model_key = model,
                              .centicores = 80,
                              .micro_batch = 8,
                              .sample_ns = sample_ns,
                              .step_ns = 9,
                              .wall = wall};
    if (registry_put_speed(registry, &speed, &err) != INSPAN_OK) fail_msg("%s", err.text);
}

static uint64_t find(registry_t *registry, const char *node, const char *model, uint32_t centicores)
{
    registry_speed_t speed = {.node_id = node, .model_key = model, .centicores = centicores, .sample_ns = 1};
    assert_int_equal(registry_find_speed(registry, &speed, &err), INSPAN_OK);
    assert_int_equal(speed.micro_batch, speed.sample_ns != 0 ? 8 : 0);
    return speed.sample_ns;
}

typedef struct list {
    uint32_t n;
    char text[4000];
} list_t;

static bool list_speed(void *context, const registry_speed_t *speed)
{
    list_t *list = context;
    size_t used = strlen(list->text);
    snprintf(list->text + used, sizeof list->text - used, "%s/%s:%llu ", speed->node_id, speed->model_key,
             (unsigned long long)speed->sample_ns);
    list->n++;
    return true;
}

static void the_last_speed_counts(void **state)
{
    (void)state;
    registry_t *registry = open_ok();
    put(registry, "a", "gpt", 100, 1);
    put(registry, "b", "gpt", 200, 2);
    put(registry, "a", "mlp", 7, 3);
    put(registry, "a", "gpt", 110, 4);
    registry_close(registry);
    registry = open_ok();
    assert_int_equal(find(registry, "a", "gpt", 80), 110);
    assert_int_equal(find(registry, "b", "gpt", 80), 200);
    assert_int_equal(find(registry, "b", "mlp", 80), 0);
    assert_int_equal(find(registry, "a", "gpt", 30), 0); /* not with so few cores */
    list_t list = {0};
    assert_int_equal(registry_each_speed(registry, "gpt", 10, list_speed, &list, &err), INSPAN_OK);
    assert_string_equal(list.text, "a/gpt:110 b/gpt:200 ");
    list = (list_t){0};
    assert_int_equal(registry_each_speed(registry, NULL, 2, list_speed, &list, &err), INSPAN_OK);
    assert_string_equal(list.text, "a/gpt:110 a/mlp:7 ");
    registry_speed_t wrong = {.node_id = "a", .model_key = "gpt", .sample_ns = UINT64_MAX};
    assert_int_equal(registry_put_speed(registry, &wrong, &err), INSPAN_INVALID);
    registry_close(registry);
}

static void a_node_keeps_the_newest(void **state)
{
    (void)state;
    registry_t *registry = open_ok();
    char model[16];
    put(registry, "b", "other", 5, 0);
    for (uint32_t i = 0; i < REGISTRY_SPEEDS_OF_NODE + 3; i++) {
        snprintf(model, sizeof model, "m%u", i);
        put(registry, "a", model, 1 + i, (ns_t)i);
    }
    list_t list = {0};
    assert_int_equal(registry_each_speed(registry, NULL, 1000, list_speed, &list, &err), INSPAN_OK);
    assert_int_equal(list.n, REGISTRY_SPEEDS_OF_NODE + 1);
    assert_int_equal(find(registry, "a", "m2", 80), 0);
    assert_int_equal(find(registry, "a", "m3", 80), 4);
    assert_int_equal(find(registry, "b", "other", 80), 5);
    registry_close(registry);
}

static bool take_verdicts(void *context, const registry_job_t *job)
{
    list_t *list = context;
    snprintf(list->text, sizeof list->text, "%s:%.*s", job->name, (int)job->verdicts.bytes,
             (const char *)job->verdicts.data);
    list->n++;
    return true;
}

static void expect_verdicts(registry_t *registry, const char *text)
{
    list_t list = {0};
    assert_int_equal(registry_each_job(registry, 1, 1, take_verdicts, &list, &err), INSPAN_OK);
    assert_int_equal(list.n, 1);
    assert_string_equal(list.text, text);
}

static void a_registry_without_speeds_is_brought_forward(void **state)
{
    (void)state;
    registry_t old = {.lock_fd = -1};
    snprintf(old.path, sizeof old.path, "%s/registry.db", folder);
    assert_int_equal(sqlite3_open(old.path, &old.db), SQLITE_OK);
    assert_int_equal(registry_migrate(&old, registry_migrations, 2, &err), INSPAN_OK);
    assert_int_equal(sqlite3_exec(old.db,
                                  "INSERT INTO jobs(name, state, outcome, reason, submitted_wall, "
                                  "started_wall, ended_wall, request) VALUES('old', 'done', '', '', 1, 2, 3, "
                                  "x'00')",
                                  NULL, NULL, NULL),
                     SQLITE_OK);
    assert_int_equal(sqlite3_close(old.db), SQLITE_OK);
    registry_t *registry = open_ok();
    expect_verdicts(registry, "old:");
    assert_int_equal(registry_put_verdicts(registry, 1, (registry_blob_t){"slow", 4}, &err), INSPAN_OK);
    expect_verdicts(registry, "old:slow");
    assert_int_equal(registry_put_verdicts(registry, 99, (registry_blob_t){"x", 1}, &err), INSPAN_OK);
    put(registry, "a", "gpt", 100, 1);
    registry_job_t job = {.id = 1, .name = "old", .state = "failed", .outcome = "", .reason = ""};
    assert_int_equal(registry_put_job(registry, &job, NULL, 0, &err), INSPAN_OK);
    expect_verdicts(registry, "old:slow"); /* the job's other columns are written apart */
    registry_close(registry);
    registry = open_ok();
    expect_verdicts(registry, "old:slow");
    assert_int_equal(find(registry, "a", "gpt", 80), 100);
    registry_close(registry);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_last_speed_counts, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(a_node_keeps_the_newest, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(a_registry_without_speeds_is_brought_forward, make_folder,
                                        remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
