#include "manager/registry/registry.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
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

#include "manager/registry/registry_internal.h"
#include "platform/os/os_file.h"
#include "platform/os/os_time.h"

static char folder[64];

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/inspan-registry-XXXXXX");
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
    inspan_error_t err = {0};
    inspan_status_t status = registry_open(folder, 5 * NS_PER_S, &registry, &err);
    if (status != INSPAN_OK) print_error("%s\n", err.text);
    assert_int_equal(status, INSPAN_OK);
    return registry;
}

static registry_job_t new_job(const char *name)
{
    return (registry_job_t){.name = name,
                            .state = "queued",
                            .outcome = "",
                            .reason = "waits",
                            .submitted_wall = 5,
                            .request = {"abc", 3}};
}

typedef struct counts {
    uint32_t rows;
    uint64_t first, last;
    char text[256];
} counts_t;

static bool count_job(void *context, const registry_job_t *job)
{
    counts_t *counts = context;
    if (counts->rows++ == 0) counts->first = job->id;
    counts->last = job->id;
    snprintf(counts->text, sizeof counts->text, "%s %s %s %.*s", job->name, job->state, job->reason,
             (int)job->request.bytes, (const char *)job->request.data);
    return true;
}

static bool count_node(void *context, const registry_node_t *node)
{
    counts_t *counts = context;
    counts->rows++;
    snprintf(counts->text, sizeof counts->text, "%s %s %s %s", node->node_id, node->name, node->address,
             node->state);
    return true;
}

static bool count_rank(void *context, const registry_rank_t *rank)
{
    counts_t *counts = context;
    counts->rows++;
    snprintf(counts->text, sizeof counts->text, "%u %s %s %u", rank->rank, rank->node_name, rank->state,
             rank->port);
    return true;
}

static bool count_view(void *context, const registry_view_t *view)
{
    counts_t *counts = context;
    counts->rows++;
    counts->last = view->view;
    return true;
}

static bool count_event(void *context, ns_t wall, const char *text)
{
    counts_t *counts = context;
    counts->rows++;
    snprintf(counts->text, sizeof counts->text, "%lld %s", (long long)wall, text);
    return true;
}

static void rows_survive_reopening(void **state)
{
    (void)state;
    inspan_error_t err;
    registry_t *registry = open_ok();
    assert_int_equal(registry_incarnation(registry), 1);
    char id[37];
    snprintf(id, sizeof id, "%s", registry_cluster_id(registry));
    assert_int_equal(strlen(id), 36);

    registry_node_t node = {
        .node_id = "n1", .name = "alpha", .address = "10.0.0.1", .state = "ready", .registration = {"x", 1}};
    assert_int_equal(registry_put_node(registry, &node, &err), INSPAN_OK);
    assert_int_equal(node.handle, 1);
    node.address = "10.0.0.9";
    assert_int_equal(registry_put_node(registry, &node, &err), INSPAN_OK);
    registry_node_t again = node; /* the same id without its handle: the same row */
    again.handle = 0;
    assert_int_equal(registry_put_node(registry, &again, &err), INSPAN_OK);
    assert_int_equal(again.handle, 1);
    registry_node_t same_name = {.node_id = "n2", .name = "alpha", .address = "a", .state = "ready"};
    assert_int_equal(registry_put_node(registry, &same_name, &err), INSPAN_IO); /* UNIQUE */
    assert_non_null(strstr(err.text, "UNIQUE"));

    registry_job_t job = new_job("first");
    assert_int_equal(registry_put_job(registry, &job, NULL, 0, &err), INSPAN_OK);
    assert_int_equal(job.id, 1);
    job.state = "starting";
    job.reason = "";
    registry_rank_t ranks[] = {
        {.rank = 0, .node = 1, .node_name = "alpha", .state = "assigned"},
        {.rank = 1, .node = 1, .node_name = "alpha", .state = "assigned", .report = {"", 0}},
    };
    assert_int_equal(registry_put_job(registry, &job, ranks, 2, &err), INSPAN_OK);
    ranks[1].state = "bound";
    ranks[1].port = 7501;
    registry_view_t view = {.job = 1, .view = 1, .key = {"k", 1}, .members = {"m", 1}};
    assert_int_equal(registry_put_view(registry, &view, ranks, 2, &err), INSPAN_OK);
    assert_int_equal(registry_put_view(registry, &view, ranks, 2, &err), INSPAN_EXISTS);
    assert_int_equal(registry_put_event(registry, 77, 1, 1, "view 1 announced", &err), INSPAN_OK);
    ranks[0].node = 99; /* a node that nobody knows: nothing of the transaction may stay */
    job.state = "running";
    assert_int_not_equal(registry_put_job(registry, &job, ranks, 2, &err), INSPAN_OK);
    registry_close(registry);

    registry = open_ok();
    assert_int_equal(registry_incarnation(registry), 2);
    assert_string_equal(registry_cluster_id(registry), id);
    counts_t counts = {0};
    assert_int_equal(registry_each_node(registry, count_node, &counts, &err), INSPAN_OK);
    assert_int_equal(counts.rows, 1);
    assert_string_equal(counts.text, "n1 alpha 10.0.0.9 ready");
    counts = (counts_t){0};
    assert_int_equal(registry_each_job(registry, 0, 10, count_job, &counts, &err), INSPAN_OK);
    assert_string_equal(counts.text, "first starting  abc");
    counts = (counts_t){0};
    assert_int_equal(registry_each_rank(registry, 1, count_rank, &counts, &err), INSPAN_OK);
    assert_int_equal(counts.rows, 2);
    assert_string_equal(counts.text, "1 alpha bound 7501");
    counts = (counts_t){0};
    assert_int_equal(registry_last_view(registry, 1, count_view, &counts, &err), INSPAN_OK);
    assert_int_equal(counts.last, 1);
    counts = (counts_t){0};
    assert_int_equal(registry_last_view(registry, 2, count_view, &counts, &err), INSPAN_OK);
    assert_int_equal(counts.rows, 0);
    counts = (counts_t){0};
    assert_int_equal(registry_each_event(registry, 1, count_event, &counts, &err), INSPAN_OK);
    assert_string_equal(counts.text, "77 view 1 announced");
    registry_close(registry);
}

static void unfinished_jobs_are_never_forgotten(void **state)
{
    (void)state;
    inspan_error_t err;
    registry_t *registry = open_ok();
    for (int i = 0; i < 6; i++) {
        registry_job_t job = new_job("j");
        if (i > 0) job.state = "done";
        assert_int_equal(registry_put_job(registry, &job, NULL, 0, &err), INSPAN_OK);
    }
    counts_t counts = {0};
    assert_int_equal(registry_each_job(registry, 0, 2, count_job, &counts, &err), INSPAN_OK);
    assert_int_equal(counts.rows, 3);
    assert_int_equal(counts.first, 1);
    assert_int_equal(counts.last, 6);
    counts = (counts_t){0};
    assert_int_equal(registry_each_job(registry, 4, 0, count_job, &counts, &err), INSPAN_OK);
    assert_int_equal(counts.first, 4);
    registry_close(registry);
}

static void a_second_manager_is_refused(void **state)
{
    (void)state;
    registry_t *registry = open_ok(), *second = NULL;
    inspan_error_t err;
    assert_int_equal(registry_open(folder, 0, &second, &err), INSPAN_EXISTS);
    assert_non_null(strstr(err.text, "another manager (process "));
    assert_non_null(strstr(err.text, folder));
    registry_close(registry);
    registry_close(open_ok());
}

/* A child writes and says over a pipe what was acknowledged; killed in the middle, all of it must be there.
 */
static void acknowledged_writes_survive_kill_9(void **state)
{
    (void)state;
    for (int round = 0; round < 4; round++) {
        int pipes[2];
        assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            registry_t *registry = NULL;
            if (registry_open(folder, 0, &registry, NULL) != INSPAN_OK) _exit(1);
            for (;;) {
                registry_job_t job = new_job("k");
                if (registry_put_job(registry, &job, NULL, 0, NULL) != INSPAN_OK) _exit(2);
                if (write(pipes[1], &job.id, sizeof job.id) != sizeof job.id) _exit(3);
            }
        }
        close(pipes[1]);
        uint64_t id = 0, acknowledged = 0;
        for (int i = 0; i < 20 + 7 * round && read(pipes[0], &id, sizeof id) == sizeof id; i++)
            acknowledged = id;
        kill(child, SIGKILL);
        while (read(pipes[0], &id, sizeof id) == sizeof id) acknowledged = id;
        close(pipes[0]);
        int how = 0;
        assert_int_equal(waitpid(child, &how, 0), child);
        assert_true(WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL);
        assert_true(acknowledged > 0);
        registry_t *registry = open_ok();
        counts_t counts = {0};
        assert_int_equal(registry_each_job(registry, 0, 1, count_job, &counts, NULL), INSPAN_OK);
        assert_in_range(counts.rows, acknowledged, acknowledged + 1); /* ids from 1 without a gap */
        assert_true(counts.last >= acknowledged);
        registry_close(registry);
    }
}

typedef struct holder {
    char path[128];
    int ready[2];
    ns_t hold;
} holder_t;

static void *hold_write_lock(void *argument)
{
    holder_t *holder = argument;
    sqlite3 *other = NULL;
    bool good = sqlite3_open(holder->path, &other) == SQLITE_OK &&
                sqlite3_exec(other, "BEGIN IMMEDIATE; DELETE FROM events", NULL, NULL, NULL) == SQLITE_OK;
    char byte = good ? 1 : 0;
    if (write(holder->ready[1], &byte, 1) != 1) good = false;
    struct timespec nap = {.tv_sec = holder->hold / NS_PER_S, .tv_nsec = holder->hold % NS_PER_S};
    nanosleep(&nap, NULL); /* not a wait: how long the lock is held is under test */
    sqlite3_exec(other, "ROLLBACK", NULL, NULL, NULL);
    sqlite3_close(other);
    return NULL;
}

static inspan_status_t put_while_locked(registry_t *registry, ns_t hold, inspan_error_t *err)
{
    holder_t holder = {.hold = hold};
    snprintf(holder.path, sizeof holder.path, "%s/registry.db", folder);
    assert_int_equal(pipe2(holder.ready, O_CLOEXEC), 0);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, hold_write_lock, &holder), 0);
    char byte = 0;
    assert_int_equal(read(holder.ready[0], &byte, 1), 1);
    assert_int_equal(byte, 1);
    registry_job_t job = new_job("x");
    inspan_status_t status = registry_put_job(registry, &job, NULL, 0, err);
    pthread_join(thread, NULL);
    close(holder.ready[0]);
    close(holder.ready[1]);
    return status;
}

static void a_lock_of_another_is_waited_for(void **state)
{
    (void)state;
    inspan_error_t err = {0};
    registry_t *registry = open_ok();
    ns_t start = os_now();
    assert_int_equal(put_while_locked(registry, NS_PER_S, &err), INSPAN_OK);
    assert_true(os_now() - start > NS_PER_S / 2);
    registry_close(registry);

    assert_int_equal(registry_open(folder, 100 * NS_PER_MS, &registry, &err), INSPAN_OK);
    assert_int_equal(put_while_locked(registry, NS_PER_S, &err), INSPAN_IO); /* bounded, and said */
    assert_non_null(strstr(err.text, "locked by another program"));
    registry_job_t job = new_job("y");
    assert_int_equal(registry_put_job(registry, &job, NULL, 0, &err), INSPAN_OK);
    registry_close(registry);
}

static void a_full_disk_is_said_and_survived(void **state)
{
    (void)state;
    inspan_error_t err = {0};
    registry_t *registry = open_ok();
    assert_int_equal(sqlite3_exec(registry->db, "PRAGMA max_page_count=1", NULL, NULL, NULL), SQLITE_OK);
    static char big[20000];
    registry_job_t job = new_job("big");
    job.request = (registry_blob_t){big, sizeof big};
    assert_int_equal(registry_put_job(registry, &job, NULL, 0, &err), INSPAN_IO);
    assert_non_null(strstr(err.text, "disk full"));
    assert_int_equal(job.id, 0);
    assert_int_equal(sqlite3_exec(registry->db, "PRAGMA max_page_count=100000", NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(registry_put_job(registry, &job, NULL, 0, &err), INSPAN_OK);
    counts_t counts = {0};
    assert_int_equal(registry_each_job(registry, 0, 10, count_job, &counts, &err), INSPAN_OK);
    assert_int_equal(counts.rows, 1);
    registry_close(registry);
}

static void a_newer_schema_is_refused(void **state)
{
    (void)state;
    inspan_error_t err;
    registry_t *registry = open_ok();
    assert_int_equal(sqlite3_exec(registry->db, "PRAGMA user_version=99", NULL, NULL, NULL), SQLITE_OK);
    registry_close(registry);
    assert_int_equal(registry_open(folder, 0, &registry, &err), INSPAN_VERSION);
    assert_non_null(strstr(err.text, "schema version 99"));
}

static void migrations_go_forward_or_not_at_all(void **state)
{
    (void)state;
    inspan_error_t err;
    registry_t *registry = open_ok();
    registry_job_t job = new_job("old");
    assert_int_equal(registry_put_job(registry, &job, NULL, 0, &err), INSPAN_OK);
    registry_migration_t steps[8];
    uint32_t n = registry_n_migrations;
    assert_true(n + 2 <= 8);
    memcpy(steps, registry_migrations, n * sizeof *steps);
    steps[n].sql = "ALTER TABLE jobs ADD COLUMN priority INTEGER NOT NULL DEFAULT 3;";
    steps[n + 1].sql = "UPDATE nowhere SET x = 1;";
    assert_int_not_equal(registry_migrate(registry, steps, n + 2, &err), INSPAN_OK);
    assert_int_not_equal(sqlite3_exec(registry->db, "SELECT priority FROM jobs", NULL, NULL, NULL),
                         SQLITE_OK);
    steps[n + 1].sql = "UPDATE jobs SET priority = priority + 1;";
    assert_int_equal(registry_migrate(registry, steps, n + 2, &err), INSPAN_OK);
    assert_int_equal(registry_migrate(registry, steps, n + 2, &err),
                     INSPAN_OK); /* done before: nothing to do */
    sqlite3_stmt *row = NULL;
    assert_int_equal(sqlite3_prepare_v2(registry->db, "SELECT priority FROM jobs", -1, &row, NULL),
                     SQLITE_OK);
    assert_int_equal(sqlite3_step(row), SQLITE_ROW);
    assert_int_equal(sqlite3_column_int(row, 0), 4);
    sqlite3_finalize(row);
    registry_close(registry);
}

static void overwrite(off_t offset, const void *bytes, size_t n)
{
    char path[128];
    snprintf(path, sizeof path, "%s/registry.db", folder);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, bytes, n, offset), (ssize_t)n);
    close(fd);
}

static bool is_moved_aside(void)
{
    bool found = false;
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (const struct dirent *entry; (entry = readdir(dir)) != NULL;)
        found = found || strncmp(entry->d_name, "registry.db.damaged-", 20) == 0;
    closedir(dir);
    return found;
}

/* The cluster stays itself: its id, its incarnations, its numbers of jobs. */
static void a_damaged_file_is_moved_aside(void **state)
{
    (void)state;
    inspan_error_t err;
    char id[37], garbage[3000];
    memset(garbage, 0x5a, sizeof garbage);
    for (int what = 0; what < 2; what++) {
        registry_t *registry = open_ok();
        snprintf(id, sizeof id, "%s", registry_cluster_id(registry));
        uint64_t incarnation = registry_incarnation(registry);
        for (int i = 0; i < 200; i++)
            assert_int_equal(registry_put_event(registry, i, 0, 0, "filler", &err), INSPAN_OK);
        registry_job_t job = new_job("before");
        assert_int_equal(registry_put_job(registry, &job, NULL, 0, &err), INSPAN_OK);
        registry_close(registry);
        overwrite(what == 0 ? 4096 + 8 : 0, garbage, what == 0 ? sizeof garbage : 100);
        registry = open_ok();
        assert_true(is_moved_aside());
        assert_non_null(strstr(registry_notice(registry), "was moved to"));
        assert_string_equal(registry_cluster_id(registry), id);
        assert_int_equal(registry_incarnation(registry), incarnation + 1);
        registry_job_t after = new_job("after");
        assert_int_equal(registry_put_job(registry, &after, NULL, 0, &err), INSPAN_OK);
        assert_true(after.id > job.id);
        registry_close(registry);
        registry = open_ok(); /* said again, and nothing more happens */
        assert_true(registry_notice(registry)[0] != '\0');
        registry_job_t next = new_job("next");
        assert_int_equal(registry_put_job(registry, &next, NULL, 0, &err), INSPAN_OK);
        assert_int_equal(next.id, after.id + 1);
        registry_close(registry);
    }
}

static void a_copy_is_whole_and_an_old_one_takes_nothing_back(void **state)
{
    (void)state;
    inspan_error_t err;
    char copy[128], file[128];
    snprintf(copy, sizeof copy, "%s/copy.db", folder);
    snprintf(file, sizeof file, "%s/registry.db", folder);
    registry_t *registry = open_ok();
    registry_job_t job = new_job("copied");
    assert_int_equal(registry_put_job(registry, &job, NULL, 0, &err), INSPAN_OK);
    assert_int_equal(registry_backup(registry, copy, &err), INSPAN_OK);
    assert_int_equal(registry_backup(registry, copy, &err), INSPAN_EXISTS);
    registry_job_t later = new_job("later");
    assert_int_equal(registry_put_job(registry, &later, NULL, 0, &err), INSPAN_OK);
    registry_close(registry);
    registry_close(open_ok());
    assert_int_equal(rename(copy, file), 0);
    registry = open_ok();
    assert_int_equal(registry_incarnation(registry), 3);
    counts_t counts = {0};
    assert_int_equal(registry_each_job(registry, 0, 10, count_job, &counts, &err), INSPAN_OK);
    assert_int_equal(counts.rows, 1);
    registry_job_t next = new_job("next");
    assert_int_equal(registry_put_job(registry, &next, NULL, 0, &err), INSPAN_OK);
    assert_true(next.id > later.id); /* a number is never used again */
    registry_close(registry);
}

int main(void)
{
#define IN_FOLDER(f) cmocka_unit_test_setup_teardown(f, make_folder, remove_folder)
    const struct CMUnitTest tests[] = {
        IN_FOLDER(rows_survive_reopening),
        IN_FOLDER(unfinished_jobs_are_never_forgotten),
        IN_FOLDER(a_second_manager_is_refused),
        IN_FOLDER(acknowledged_writes_survive_kill_9),
        IN_FOLDER(a_lock_of_another_is_waited_for),
        IN_FOLDER(a_full_disk_is_said_and_survived),
        IN_FOLDER(a_newer_schema_is_refused),
        IN_FOLDER(migrations_go_forward_or_not_at_all),
        IN_FOLDER(a_damaged_file_is_moved_aside),
        IN_FOLDER(a_copy_is_whole_and_an_old_one_takes_nothing_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
