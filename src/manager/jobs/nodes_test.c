/* Where nodes are reached and whether they live, over a real registry, without any rpc: orders are counted.
 */
#include "manager/jobs/fleet.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/protocol.h"
#include "platform/os/os_file.h"

#define GB 1000000000ull

typedef struct rig {
    char folder[64];
    registry_t *registry;
    fleet_t *fleet;
    ns_t now;
    uint32_t starts, views, stops, losts, ended, dropped;
    char addresses[8][64]; /* of the members in the last view */
} rig_t;

static rig_t rig;

static bool count_order(void *context, fleet_node_t *node, const Inspan__V1__AgentDown *down)
{
    (void)context;
    (void)node;
    rig.starts += down->kind_case == INSPAN__V1__AGENT_DOWN__KIND_START;
    rig.stops += down->kind_case == INSPAN__V1__AGENT_DOWN__KIND_STOP;
    rig.losts += down->kind_case == INSPAN__V1__AGENT_DOWN__KIND_LOST;
    if (down->kind_case != INSPAN__V1__AGENT_DOWN__KIND_VIEW) return true;
    rig.views++;
    for (size_t i = 0; i < down->view->n_members && i < 8; i++)
        snprintf(rig.addresses[i], sizeof rig.addresses[i], "%s", down->view->members[i]->address);
    return true;
}

static void count_drop(void *context, void *session, inspan_status_t status, const char *text)
{
    (void)context;
    (void)session;
    (void)status;
    (void)text;
    rig.dropped++;
}

static void count_news(void *context, fleet_job_t *job, const char *text, bool ended)
{
    (void)context;
    (void)text;
    if (ended) assert_true(control_job_over(&job->control));
    rig.ended += ended;
}

static bool every_file(void *context, const char *hash, uint64_t bytes)
{
    (void)context;
    (void)hash;
    (void)bytes;
    return true;
}

static void open_fleet(void)
{
    inspan_error_t err = {0};
    fleet_ports_t ports = {
        .send = count_order, .drop = count_drop, .job_changed = count_news, .file_present = every_file};
    if (registry_open(rig.folder, 0, &rig.registry, &err) != INSPAN_OK ||
        fleet_open(rig.registry, &ports, rig.now, &rig.fleet, &err) != INSPAN_OK)
        fail_msg("%s", err.text);
}

static void close_fleet(void)
{
    fleet_close(rig.fleet);
    registry_close(rig.registry);
}

static int set_up(void **state)
{
    (void)state;
    memset(&rig, 0, sizeof rig);
    rig.now = 100 * NS_PER_S;
    snprintf(rig.folder, sizeof rig.folder, "/tmp/inspan-fleet-XXXXXX");
    if (mkdtemp(rig.folder) == NULL) return -1;
    open_fleet();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    close_fleet();
    return os_remove_all(rig.folder, NULL) == INSPAN_OK ? 0 : -1;
}

typedef struct machine {
    const char *address, *peer, *boot, *name; /* name NULL: by number */
    char *interface_address;                  /* NULL: none */
    Inspan__V1__WorkerReport *worker;
} machine_t;

static inspan_status_t join(uint32_t k, const machine_t *machine, fleet_node_t **node, inspan_error_t *err)
{
    char id[64], name[96];
    snprintf(id, sizeof id, "00000000-0000-4000-8000-%012u", k);
    snprintf(name, sizeof name, "n%u", k);
    if (machine->name != NULL) snprintf(name, sizeof name, "%s", machine->name);
    Inspan__V1__Register message = INSPAN__V1__REGISTER__INIT;
    Inspan__V1__Inventory inventory = INSPAN__V1__INVENTORY__INIT;
    Inspan__V1__Interface interface = INSPAN__V1__INTERFACE__INIT, *interfaces[] = {&interface};
    Inspan__V1__WorkerReport *workers[] = {machine->worker};
    char *addresses[] = {machine->interface_address};
    interface.addresses = addresses;
    interface.n_addresses = 1;
    inventory.interfaces = interfaces;
    inventory.n_interfaces = machine->interface_address != NULL;
    inventory.memory_bytes = 8 * GB;
    inventory.boot_id = (char *)machine->boot;
    message.node_id = id;
    message.name = name;
    message.address = (char *)machine->address;
    message.protocol_major = PROTOCOL_MAJOR;
    message.incarnation = k + 1;
    message.inventory = &inventory;
    message.workers = workers;
    message.n_workers = machine->worker != NULL;
    Inspan__V1__Registered reply;
    inspan_status_t status =
        fleet_register(rig.fleet, &message, machine->peer, &rig, rig.now, node, &reply, err);
    if (status == INSPAN_OK) fleet_catch_up(rig.fleet, *node, &message, rig.now);
    return status;
}

static fleet_node_t *join_ok(uint32_t k, const machine_t *machine)
{
    fleet_node_t *node = NULL;
    inspan_error_t err = {0};
    if (join(k, machine, &node, &err) != INSPAN_OK) fail_msg("%s", err.text);
    return node;
}

static inspan_status_t submit(uint32_t min, fleet_job_t **job, inspan_error_t *err)
{
    Inspan__V1__SubmitRequest request = INSPAN__V1__SUBMIT_REQUEST__INIT;
    request.name = (char *)"j";
    request.config = (char *)"name=j\n";
    request.min_nodes = request.max_nodes = min;
    request.failure_timeout_ns = 5 * NS_PER_S;
    return fleet_submit(rig.fleet, &request, rig.now, job, err);
}

static void report(fleet_node_t *node, uint64_t job, uint32_t rank, Inspan__V1__WorkerState state)
{
    Inspan__V1__WorkerReport message = INSPAN__V1__WORKER_REPORT__INIT;
    message.job_id = job;
    message.rank = rank;
    message.state = state;
    message.data_port = 7500;
    fleet_report(rig.fleet, node, &message, rig.now);
}

static const machine_t lan_a = {.address = "192.168.1.7", .peer = "192.168.1.7", .boot = "a"};
static const machine_t lan_b = {.address = "192.168.1.8", .peer = "192.168.1.8", .boot = "b"};

static void addresses_serve_the_whole_job(void **state)
{
    (void)state;
    /* the manager's own machine came over loopback; the other one is on the LAN */
    machine_t own = {
        .address = "127.0.0.1", .peer = "127.0.0.1", .boot = "m", .interface_address = (char *)"192.168.1.2"};
    fleet_node_t *nodes[] = {join_ok(0, &own), join_ok(1, &lan_b)};
    fleet_job_t *job = NULL;
    inspan_error_t err = {0};
    assert_int_equal(submit(2, &job, &err), INSPAN_OK);
    assert_int_equal(rig.starts, 2);
    for (uint32_t r = 0; r < 2; r++)
        report(nodes[r], job->control.id, r, INSPAN__V1__WORKER_STATE__WORKER_BOUND);
    assert_int_equal(rig.views, 2);
    assert_string_equal(rig.addresses[0], "192.168.1.2");
    assert_string_equal(rig.addresses[1], "192.168.1.8");

    machine_t nowhere = {.address = "127.0.1.1", .peer = "127.0.0.1", .boot = "x"};
    join_ok(2, &nowhere);
    join_ok(3, &lan_a);
    assert_int_equal(submit(2, &job, &err), INSPAN_OK);
    assert_int_equal(job->control.state, CONTROL_QUEUED);
    assert_non_null(strstr(job->why, "no routable address"));
    machine_t nameless = {.address = "myhost", .peer = "", .boot = "y"};
    fleet_node_t *node = NULL;
    assert_int_equal(join(4, &nameless, &node, &err), INSPAN_INVALID);
    assert_non_null(strstr(err.text, "no routable address"));
}

static void a_changed_address_is_taken_over(void **state)
{
    (void)state;
    fleet_node_t *node = join_ok(0, &lan_a), *again;
    fleet_broke(rig.fleet, node, rig.now);
    machine_t moved = lan_a;
    moved.address = "192.168.1.99";
    again = join_ok(0, &moved);
    assert_ptr_equal(node, again);
    assert_int_equal(fleet_n_nodes(rig.fleet), 1);
    assert_string_equal(again->address, "192.168.1.99");
}

static void a_new_name_is_taken_over(void **state)
{
    (void)state;
    machine_t machine = lan_a;
    fleet_node_t *node = join_ok(0, &machine);
    join_ok(1, &lan_b);
    const struct {
        const char *wish, *name;
    } lives[] = {{"n0", "n0"},     {"attic", "attic"},     {"", "attic"},  {"n1", "n1-2"},
                 {"n1-2", "n1-2"}, {"my node", "my-node"}, {"", "my-node"}};
    for (size_t i = 0; i < sizeof lives / sizeof lives[0]; i++) {
        fleet_broke(rig.fleet, node, rig.now);
        machine.name = lives[i].wish;
        assert_ptr_equal(join_ok(0, &machine), node);
        assert_string_equal(node->name, lives[i].name);
    }
    close_fleet();
    open_fleet();
    assert_string_equal(fleet_node_at(rig.fleet, 0)->name, "my-node"); /* stored */
    machine.name = "";
    assert_string_equal(join_ok(7, &machine)->name, "node"); /* no wish, no host name */
}

static void our_own_stall_is_not_their_silence(void **state)
{
    (void)state;
    fleet_node_t *node = join_ok(0, &lan_a);
    fleet_tick(rig.fleet, rig.now);
    rig.now += 60 * NS_PER_S; /* suspended */
    fleet_tick(rig.fleet, rig.now);
    assert_string_equal(fleet_node_state(rig.fleet, node), "ready");
    for (int i = 0; i < 60; i++) {
        rig.now += NS_PER_S / 10;
        fleet_tick(rig.fleet, rig.now);
    }
    assert_string_equal(fleet_node_state(rig.fleet, node), "lost");
    assert_int_equal(rig.dropped, 1);
}

int main(void)
{
#define WITH_FLEET(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        WITH_FLEET(addresses_serve_the_whole_job),
        WITH_FLEET(a_changed_address_is_taken_over),
        WITH_FLEET(a_new_name_is_taken_over),
        WITH_FLEET(our_own_stall_is_not_their_silence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
