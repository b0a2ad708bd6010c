/* The fleet: how much and what kind of text it takes, and how much it shows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/sched/sched.h"
#include "manager/jobs/convert.h"
#include "manager/jobs/fleet_world_test.h"

static void nodes_that_are_gone_make_room(void **state)
{
    (void)state;
    fleet_node_t *node = NULL;
    inspan_error_t err = {0};
    for (uint32_t k = 0; k < SCHED_NODES_MAX; k++) attach(k);
    assert_int_equal(try_attach(5000, NULL, &node, &err), INSPAN_LIMIT); /* all of them live */
    fleet_left(world.fleet, fleet_node_at(world.fleet, 7), world.now);
    world.now += TICK;
    fleet_left(world.fleet, fleet_node_at(world.fleet, 3), world.now);
    uint64_t handle = fleet_node_at(world.fleet, 7)->handle;
    break_disk(true);
    inspan_status_t status = try_attach(5000, NULL, &node, &err);
    break_disk(false);
    assert_int_not_equal(status, INSPAN_OK);
    assert_string_equal(fleet_node_by_handle(world.fleet, handle)->name, "n7"); /* as if nothing had been */
    node = attach(5000);
    assert_int_equal(fleet_n_nodes(world.fleet), SCHED_NODES_MAX);
    assert_null(fleet_node_by_handle(world.fleet, handle)); /* the one that is gone for longest */
    assert_int_equal(attach(7)->handle, handle);            /* it comes back: number 3 goes */
    assert_int_equal(fleet_n_nodes(world.fleet), SCHED_NODES_MAX);
    assert_int_equal(try_attach(3, NULL, &node, &err), INSPAN_LIMIT);
    restart();
    assert_int_equal(fleet_n_nodes(world.fleet), SCHED_NODES_MAX);
}

static void a_registration_has_a_cap(void **state)
{
    (void)state;
    char *text = malloc(100001);
    assert_non_null(text);
    memset(text, 'x', 100000);
    text[100000] = '\0';
    Inspan__V1__Register message = INSPAN__V1__REGISTER__INIT;
    Inspan__V1__Inventory inventory = INSPAN__V1__INVENTORY__INIT;
    inventory.cpu_model = text;
    message.inventory = &inventory;
    fleet_node_t *node = NULL;
    inspan_error_t err = {0};
    assert_int_equal(try_attach(0, &message, &node, &err), INSPAN_LIMIT);
    text[20000] = '\0';
    assert_int_equal(try_attach(0, &message, &node, &err), INSPAN_OK);
    free(text);
}

static void what_is_shown_of_a_large_job_fits_a_message(void **state)
{
    (void)state;
    enum { WORLD = 256 };
    static char summary[FLEET_SUMMARY_MAX + 1], name[250];
    static Inspan__V1__ResultFile files[FLEET_RESULTS_MAX];
    static Inspan__V1__ResultFile *results[FLEET_RESULTS_MAX];
    memset(summary, ' ', FLEET_SUMMARY_MAX);
    memset(name, 'x', sizeof name - 1);
    for (uint32_t i = 0; i < FLEET_RESULTS_MAX; i++) {
        inspan__v1__result_file__init(&files[i]);
        files[i].name = name;
        files[i].hash = (char *)"0123456789abcdef0123456789abcdef";
        results[i] = &files[i];
    }
    for (uint32_t k = 0; k < WORLD; k++) attach(k);
    uint64_t job = run_job(WORLD, 5 * S);
    for (uint32_t r = 0; r < WORLD; r++) {
        Inspan__V1__WorkerReport report = report_of(job, r, INSPAN__V1__WORKER_STATE__WORKER_DONE);
        report.summary_json = summary;
        report.results = results;
        report.n_results = FLEET_RESULTS_MAX;
        fleet_report(world.fleet,
                     fleet_node_by_handle(world.fleet, fleet_job(world.fleet, job)->control.ranks[r].node),
                     &report, world.now);
    }
    assert_int_equal(state_of(job), CONTROL_DONE);
    fleet_info_t *info = fleet_job_info(fleet_job(world.fleet, job), true);
    assert_non_null(info);
    Inspan__V1__JobInfo *message = fleet_info_message(info);
    assert_true(protobuf_c_message_get_packed_size(&message->base) < 4u << 20);
    assert_int_equal(message->n_ranks, WORLD);
    assert_string_equal(message->summary_json, summary);
    assert_string_equal(message->ranks[0]->summary_json, summary);
    assert_true(message->n_results > 1000);
    fleet_info_free(info);

    /* a failure with a text that no agent writes: the verdict has it cut, nothing else */
    job = run_job(1, 5 * S);
    static char text[100001];
    memset(text, 'x', sizeof text - 1);
    Inspan__V1__Failure own = INSPAN__V1__FAILURE__INIT;
    own.status = INSPAN_IO;
    own.text = text;
    tell_failed(job, 0, 0, 0, &own);
    assert_int_equal(state_of(job), CONTROL_FAILED);
    assert_true(strlen(reason_of(job)) > 200);
    info = fleet_job_info(fleet_job(world.fleet, job), true);
    assert_true(protobuf_c_message_get_packed_size(&fleet_info_message(info)->base) < 4096);
    fleet_info_free(info);
}

static void texts_of_a_submission_have_caps(void **state)
{
    (void)state;
    attach(0);
    char *big = malloc(5001);
    assert_non_null(big);
    memset(big, 'x', 5000);
    big[5000] = '\0';
    const struct {
        const char *name, *key, *path, *hash;
        inspan_status_t status;
    } cases[] = {
        {"fine", "data.train",
         "/data/b\xc3\xbc"
         "cher.txt",
         "", INSPAN_OK},
        {"l\xfc"
         "ge",
         "data.train", "a", "", INSPAN_INVALID},
        {"fine", "data.train", "/data/b\xfc", "", INSPAN_INVALID},
        {"red \x1b[31m", "data.train", "a", "", INSPAN_INVALID},
        {"two\nlines", "data.train", "a", "", INSPAN_INVALID},
        {big, "data.train", "a", "", INSPAN_LIMIT},
        {"fine", "data.train\nworker.path=/bin/sh", "a", "", INSPAN_INVALID},
        {"fine", big, "a", "", INSPAN_LIMIT},
        {"fine", "data.train", "a\nb", "", INSPAN_INVALID},
        {"fine", "data.train", "a\x7f", "", INSPAN_INVALID},
        {"fine", "data.train", big, "", INSPAN_LIMIT},
        {"fine", "data.train", "a", big, INSPAN_LIMIT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        Inspan__V1__SubmitRequest request = request_for(1, 5 * S);
        Inspan__V1__DataFile file = INSPAN__V1__DATA_FILE__INIT, *files[] = {&file};
        request.name = (char *)cases[i].name;
        file.key = (char *)cases[i].key;
        file.path = (char *)cases[i].path;
        file.hash = (char *)cases[i].hash;
        request.data = files;
        request.n_data = 1;
        fleet_job_t *job = NULL;
        inspan_error_t err = {0};
        inspan_status_t status = fleet_submit(world.fleet, &request, world.now, &job, &err);
        if (status != cases[i].status) fail_msg("case %zu: status %d: %s", i, status, err.text);
    }
    free(big);
}

/* What an agent says is shown to people and put into JSON: it is text whatever comes, and cut between
 * characters. */
static void texts_of_agents_are_made_text(void **state)
{
    (void)state;
    char copy[8];
    const struct {
        const char *from, *to;
    } cases[] = {{"plain", "plain"},
                 {"a\nb\x7f", "a b "},
                 {"\xff\xc3\xbc\xc3", "?\xc3\xbc?"},
                 {"123456\xc3\xbc", "123456"}, /* half a character has no room, the whole neither */
                 {"12345\xc3\xbc", "12345\xc3\xbc"},
                 {"12345678", "1234567"},
                 {"", ""},
                 {NULL, ""}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        convert_text(cases[i].from, copy, sizeof copy);
        assert_string_equal(copy, cases[i].to);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_A_WORLD(nodes_that_are_gone_make_room),
        IN_A_WORLD(a_registration_has_a_cap),
        IN_A_WORLD(what_is_shown_of_a_large_job_fits_a_message),
        IN_A_WORLD(texts_of_a_submission_have_caps),
        IN_A_WORLD(texts_of_agents_are_made_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
