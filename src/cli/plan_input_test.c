/* Where speeds and links of machines come from, and which source counts. */
#include "cli/plan_input.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define PAYLOAD (PLAN_CABLE_BYTES_PER_S / 1e9)

/* A node with one interface. */
typedef struct fake {
    Inspan__V1__Node node;
    Inspan__V1__Inventory inventory;
    Inspan__V1__Interface interface, *interfaces[1];
    Inspan__V1__Vitals vitals;
    char *addresses[1], *sets[1];
} fake_t;

static char name_a[] = "a", name_b[] = "b", ready[] = "ready", lost[] = "lost", running[] = "running";
static char address[] = "10.0.0.1", avx2[] = "avx2", processor[] = "Processor X @ 2.00GHz";

static void fake_open(fake_t *fake, char *name, double cores)
{
    inspan__v1__node__init(&fake->node);
    inspan__v1__inventory__init(&fake->inventory);
    inspan__v1__interface__init(&fake->interface);
    inspan__v1__vitals__init(&fake->vitals);
    fake->addresses[0] = address;
    fake->interface.n_addresses = 1;
    fake->interface.addresses = fake->addresses;
    fake->interfaces[0] = &fake->interface;
    fake->inventory.n_interfaces = 1;
    fake->inventory.interfaces = fake->interfaces;
    fake->sets[0] = avx2;
    fake->inventory.n_instruction_sets = 1;
    fake->inventory.instruction_sets = fake->sets;
    fake->inventory.cpu_model = processor;
    fake->inventory.usable_cores = cores;
    fake->inventory.memory_bytes = 8000000000;
    fake->node.name = fake->node.node_id = name;
    fake->node.state = ready;
    fake->node.address = address;
    fake->node.inventory = &fake->inventory;
}

typedef struct scene {
    plan_input_t input;
    fake_t a, b;
    Inspan__V1__Node *nodes[2];
    Inspan__V1__NodeList list;
} scene_t;

static scene_t *scene_open(void)
{
    scene_t *scene = calloc(1, sizeof *scene);
    assert_non_null(scene);
    job_config_t *job = &scene->input.job;
    job_defaults(job);
    job->model.layers = 6, job->model.heads = 6, job->model.dim = 384, job->model.context = 128;
    job->train.global_batch = 128;
    job_model_config(job, &scene->input.model);
    scene->input.model.vocabulary = 256;
    assert_int_equal(plan_input_job(&scene->input, NULL), INSPAN_OK);
    fake_open(&scene->a, name_a, 4);
    fake_open(&scene->b, name_b, 2);
    scene->nodes[0] = &scene->a.node;
    scene->nodes[1] = &scene->b.node;
    inspan__v1__node_list__init(&scene->list);
    scene->list.n_nodes = 2;
    scene->list.nodes = scene->nodes;
    return scene;
}

static void the_job_is_known(void **state)
{
    (void)state;
    scene_t *scene = scene_open();
    const plan_job_t *plan = &scene->input.plan;
    assert_true(plan->gradient_bytes > 42000000 && plan->gradient_bytes < 45000000);
    assert_int_equal(plan->bucket_bytes, plan->gradient_bytes / 32);
    assert_int_equal(plan->batch, 128);
    assert_int_equal(plan->leases, 128);
    assert_string_equal(scene->input.key, "gpt 6x384 heads 6 context 128 vocabulary 256 fp32 adamw");
    assert_true(scene->input.sample_flops > 8e9 && scene->input.sample_flops < 10e9);
    free(scene);
}

static void guesses_follow_cores_clock_and_instructions(void **state)
{
    (void)state;
    scene_t *scene = scene_open();
    plan_input_t *input = &scene->input;
    plan_input_nodes(input, &scene->list);
    plan_input_settle(input);
    assert_int_equal(input->n, 2);
    assert_float_equal(input->nodes[1].sample_s / input->nodes[0].sample_s, 2, 1e-9);
    assert_float_equal(input->machines[0].clock_hz, 2e9, 1);
    assert_float_equal(input->nodes[0].sample_s, input->sample_flops / (4 * 2e9 * 16), 1e-12);
    assert_int_equal(input->nodes[0].micro_batch, 16);
    assert_string_equal(plan_speed_source(input->machines[0].speed_from), "guess");
    free(scene);
}

static void links_come_from_the_interface(void **state)
{
    (void)state;
    scene_t *scene = scene_open();
    plan_input_t *input = &scene->input;
    scene->a.interface.speed_bits_per_s = 2500000000;
    scene->b.interface.wireless = true;
    plan_input_nodes(input, &scene->list);
    assert_float_equal(input->nodes[0].up_bytes_per_s, 2.5e9 * PAYLOAD, 1);
    assert_int_equal(input->machines[0].link_from, PLAN_LINK_INTERFACE);
    assert_float_equal(input->nodes[1].down_bytes_per_s, 100e6 * PAYLOAD, 1);
    assert_int_equal(input->machines[1].link_from, PLAN_LINK_GUESS);
    const cli_list_t links = {.items = {"b=1gbit/200mbit"}, .n = 1};
    assert_int_equal(plan_input_links(input, &links, NULL), INSPAN_OK);
    assert_float_equal(input->nodes[1].up_bytes_per_s, 1e9 * PAYLOAD, 1);
    assert_float_equal(input->nodes[1].down_bytes_per_s, 200e6 * PAYLOAD, 1);
    assert_float_equal(input->machines[1].link_bits_per_s, 200e6, 1);
    free(scene);
}

static void nodes_that_cannot_be_used_are_none(void **state)
{
    (void)state;
    scene_t *scene = scene_open();
    scene->a.node.state = lost;
    scene->b.node.vitals = &scene->b.vitals;
    scene->b.vitals.allowed = 0;
    plan_input_nodes(&scene->input, &scene->list);
    assert_int_equal(scene->input.n, 0);
    assert_int_equal(scene->input.unused, 2);
    free(scene);
}

static void what_owners_keep_is_taken_off(void **state)
{
    (void)state;
    scene_t *scene = scene_open();
    plan_input_t *input = &scene->input;
    scene->a.node.vitals = &scene->a.vitals;
    scene->a.vitals.allowed = 0.25;
    scene->a.vitals.cores = 2; /* now; four when it registered */
    scene->a.vitals.clock_best_mhz = 4000;
    plan_input_nodes(input, &scene->list);
    plan_input_settle(input);
    assert_float_equal(input->nodes[0].sample_s, input->sample_flops / (2 * 4e9 * 16) / 0.25, 1e-12);
    free(scene);
}

static Inspan__V1__Speed speed_of(char *node, char *key, double cores, uint64_t sample_ns)
{
    Inspan__V1__Speed speed = INSPAN__V1__SPEED__INIT;
    speed.node_id = node;
    speed.model_key = key;
    speed.cores = cores;
    speed.sample_ns = sample_ns;
    speed.step_ns = 20000000;
    speed.micro_batch = 8;
    return speed;
}

static void earlier_jobs_are_remembered_by_cores(void **state)
{
    (void)state;
    scene_t *scene = scene_open();
    plan_input_t *input = &scene->input;
    static char other[] = "another model";
    Inspan__V1__Speed speeds[] = {
        speed_of(name_a, other, 4, 1000), speed_of(name_a, input->key, 1, 400000000),
        speed_of(name_a, input->key, 4, 100000000), speed_of(name_a, input->key, 4, 900000000), /* older */
        speed_of(name_b, input->key, 4, 100000000)};
    Inspan__V1__Speed *pointers[] = {&speeds[0], &speeds[1], &speeds[2], &speeds[3], &speeds[4]};
    Inspan__V1__SpeedList list = INSPAN__V1__SPEED_LIST__INIT;
    list.n_speeds = 5;
    list.speeds = pointers;
    plan_input_nodes(input, &scene->list);
    plan_input_registry(input, &list);
    assert_float_equal(input->nodes[0].sample_s, 0.1, 1e-12);
    assert_float_equal(input->nodes[0].step_s, 0.02, 1e-12);
    assert_int_equal(input->nodes[0].micro_batch, 16); /* as large as hiding needs, whatever the runs were */
    assert_int_equal(input->machines[0].speed_from, PLAN_SPEED_REGISTRY);
    assert_float_equal(input->nodes[1].sample_s, 0.2, 1e-12); /* it has two cores now */
    free(scene);
}

static void a_known_machine_scales_the_guesses(void **state)
{
    (void)state;
    scene_t *scene = scene_open();
    plan_input_t *input = &scene->input;
    plan_input_nodes(input, &scene->list);
    plan_input_set_speed(input, 0, PLAN_SPEED_REGISTRY, 0.25, 0.01);
    plan_input_set_speed(input, 0, PLAN_SPEED_MEASURED, 9, 9); /* worse source */
    plan_input_settle(input);
    assert_float_equal(input->nodes[0].sample_s, 0.25, 1e-12);
    assert_float_equal(input->nodes[1].sample_s, 0.5, 1e-9);
    assert_int_equal(input->machines[1].speed_from, PLAN_SPEED_GUESS);
    free(scene);
}

static void ranks_tell_their_paces(void **state)
{
    (void)state;
    scene_t *scene = scene_open();
    plan_input_t *input = &scene->input;
    Inspan__V1__Progress progress[2] = {INSPAN__V1__PROGRESS__INIT, INSPAN__V1__PROGRESS__INIT};
    Inspan__V1__Rank ranks[2] = {INSPAN__V1__RANK__INIT, INSPAN__V1__RANK__INIT};
    Inspan__V1__Rank *pointers[] = {&ranks[0], &ranks[1]};
    Inspan__V1__JobInfo job = INSPAN__V1__JOB_INFO__INIT;
    progress[0].pace_sample_ns = 50000000;
    progress[0].pace_step_ns = 10000000;
    progress[1].samples = 100; /* an older worker */
    progress[1].compute_s = 30;
    for (int r = 0; r < 2; r++) {
        ranks[r].node_id = r == 0 ? name_b : name_a;
        ranks[r].state = running;
        ranks[r].progress = &progress[r];
    }
    job.n_ranks = 2;
    job.ranks = pointers;
    plan_input_nodes(input, &scene->list);
    plan_input_run(input, &job);
    assert_float_equal(input->nodes[1].sample_s, 0.05, 1e-12);
    assert_float_equal(input->nodes[1].step_s, 0.01, 1e-12);
    assert_float_equal(input->nodes[0].sample_s, 0.3, 1e-12);
    assert_true(input->machines[0].member && input->machines[1].member);
    free(scene);
}

static void speeds_given_are_of_the_machine_alone(void **state)
{
    (void)state;
    scene_t *scene = scene_open();
    plan_input_t *input = &scene->input;
    plan_prediction_t got;
    const cli_list_t speeds = {.items = {"c=12.5"}, .n = 1};
    assert_int_equal(plan_input_speeds(input, &speeds, NULL), INSPAN_OK);
    assert_int_equal(input->n, 1);
    plan_predict(&input->plan, input->nodes, 1, (plan_price_t){0}, &got);
    assert_float_equal(got.samples_per_s, 12.5, 1e-9);
    free(scene);
}

static void a_micro_batch_fits_its_memory(void **state)
{
    (void)state;
    scene_t *scene = scene_open();
    uint64_t weights = 0, activations = 0;
    assert_int_equal(nn_model_memory(&scene->input.model, 16, &weights, &activations, NULL), INSPAN_OK);
    assert_int_equal(plan_input_micro_batch(&scene->input, 0, 16), 16);
    assert_int_equal(plan_input_micro_batch(&scene->input, 64000000000, 16), 16);
    assert_int_equal(plan_input_micro_batch(&scene->input, 2 * activations - 1, 16), 8);
    assert_int_equal(plan_input_micro_batch(&scene->input, 1, 16), 1);
    free(scene);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_job_is_known),
        cmocka_unit_test(guesses_follow_cores_clock_and_instructions),
        cmocka_unit_test(links_come_from_the_interface),
        cmocka_unit_test(nodes_that_cannot_be_used_are_none),
        cmocka_unit_test(what_owners_keep_is_taken_off),
        cmocka_unit_test(earlier_jobs_are_remembered_by_cores),
        cmocka_unit_test(a_known_machine_scales_the_guesses),
        cmocka_unit_test(ranks_tell_their_paces),
        cmocka_unit_test(speeds_given_are_of_the_machine_alone),
        cmocka_unit_test(a_micro_batch_fits_its_memory),
    };
    return cmocka_run_group_tests_name("plan-input", tests, NULL, NULL);
}
