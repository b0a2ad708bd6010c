#include "core/sched/sched.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"

#define GB 1000000000ull

static sched_node_t node(const char *name, uint64_t memory, double cores)
{
    return (sched_node_t){
        .name = name, .machine = name, .memory_bytes = memory, .cores = cores, .ready = true};
}

static sched_job_t job(uint64_t id, uint32_t min, uint32_t max, uint64_t memory)
{
    return (sched_job_t){.id = id, .min_nodes = min, .max_nodes = max, .memory_bytes = memory};
}

static void takes_the_strongest_and_ranks_by_name(void **state)
{
    (void)state;
    sched_node_t nodes[] = {node("n10", 8 * GB, 4), node("n9", 8 * GB, 4), node("n2", 8 * GB, 8),
                            node("n1", 8 * GB, 1)};
    sched_job_t one = job(1, 1, 3, GB);
    sched_placement_t placement;
    sched_round(&one, 1, nodes, 4, &placement);
    assert_true(placement.starts);
    assert_int_equal(placement.n_nodes, 3);
    assert_string_equal(nodes[placement.nodes[0]].name, "n2");
    assert_string_equal(nodes[placement.nodes[1]].name, "n9");
    assert_string_equal(nodes[placement.nodes[2]].name, "n10");
}

static void says_why_it_waits(void **state)
{
    (void)state;
    sched_node_t nodes[] = {node("a", 8 * GB, 4), node("b", 2 * GB, 4)};
    sched_job_t two = job(1, 2, 2, 31 * GB / 10);
    sched_placement_t placement;
    sched_round(&two, 1, nodes, 2, &placement);
    assert_false(placement.starts);
    assert_string_equal(placement.why, "needs 2 nodes with 3.1 GB each: 1 is ready (b has 2.0 GB)");
    nodes[1].memory_bytes = 8 * GB;
    nodes[1].ready = false;
    nodes[0].busy = true;
    sched_round(&two, 1, nodes, 2, &placement);
    assert_string_equal(placement.why, "needs 2 nodes with 3.1 GB each: 0 are ready (a is busy, b is away)");
    sched_round(&two, 1, nodes, 0, &placement);
    assert_string_equal(placement.why, "needs 2 nodes with 3.1 GB each: 0 are ready");
}

static void admits_what_could_run_one_day(void **state)
{
    (void)state;
    inspan_error_t err;
    sched_node_t nodes[] = {node("a", 8 * GB, 4), node("b", 2 * GB, 4)};
    sched_job_t wish = job(1, 1, 1, 9 * GB);
    wish.model_bytes = 3 * GB;
    assert_int_equal(sched_admit(&wish, nodes, 2, &err), INSPAN_LIMIT);
    assert_non_null(strstr(err.text, "model larger than memory: needs 9.0 GB"));
    assert_non_null(strstr(err.text, "weights 3.0 GB"));
    assert_non_null(strstr(err.text, "the largest node a has 8.0 GB"));
    assert_int_equal(sched_admit(&wish, nodes, 0, &err), INSPAN_OK);
    wish.memory_bytes = 8 * GB;
    assert_int_equal(sched_admit(&wish, nodes, 2, &err), INSPAN_OK);

    const char *pins[] = {"b", "zebra"};
    wish.pinned = pins;
    wish.n_pinned = 1;
    assert_int_equal(sched_admit(&wish, nodes, 2, &err), INSPAN_LIMIT);
    assert_non_null(strstr(err.text, "the node b has 2.0 GB"));
    wish.n_pinned = 2;
    assert_int_equal(sched_admit(&wish, nodes, 2, &err), INSPAN_NOT_FOUND);
    assert_non_null(strstr(err.text, "zebra"));
    const char *twice[] = {"a", "a"};
    wish.pinned = twice;
    assert_int_equal(sched_admit(&wish, nodes, 2, &err), INSPAN_INVALID);

    sched_job_t wrong = job(1, 3, 2, 0);
    assert_int_equal(sched_admit(&wrong, nodes, 2, &err), INSPAN_INVALID);
    wrong = job(1, 0, 2, 0);
    assert_int_equal(sched_admit(&wrong, nodes, 2, &err), INSPAN_INVALID);
    wrong = job(1, 257, 300, 0);
    assert_int_equal(sched_admit(&wrong, nodes, 2, &err), INSPAN_INVALID);
}

static void pinned_jobs_run_on_exactly_these(void **state)
{
    (void)state;
    sched_node_t nodes[] = {node("a", GB, 4), node("b", GB, 9), node("c", GB, 1)};
    const char *pins[] = {"c", "a"};
    sched_job_t pinned = job(1, 1, 8, 0);
    pinned.pinned = pins;
    pinned.n_pinned = 2;
    sched_placement_t placement;
    sched_round(&pinned, 1, nodes, 3, &placement);
    assert_true(placement.starts);
    assert_int_equal(placement.n_nodes, 2);
    assert_int_equal(placement.nodes[0], 0);
    assert_int_equal(placement.nodes[1], 2);
    nodes[2].ready = false;
    sched_round(&pinned, 1, nodes, 3, &placement);
    assert_false(placement.starts);
}

static void nodes_that_get_free_are_waited_for(void **state)
{
    (void)state;
    sched_node_t nodes[] = {node("a", GB, 4), node("b", GB, 4)};
    nodes[1].busy = nodes[1].leaving = true;
    sched_job_t job_of_two = job(1, 1, 2, 0), job_of_one = job(2, 1, 1, 0);
    sched_placement_t placement;
    sched_round(&job_of_two, 1, nodes, 2, &placement);
    assert_false(placement.starts);
    assert_string_equal(placement.why, "waits for node b, whose last job is just ending");
    sched_round(&job_of_one, 1, nodes, 2, &placement);
    assert_true(placement.starts);
    nodes[1].leaving = false; /* a job at work may take hours: start with what there is */
    sched_round(&job_of_two, 1, nodes, 2, &placement);
    assert_true(placement.starts);
    assert_int_equal(placement.n_nodes, 1);
}

static void a_waiting_job_is_not_starved(void **state)
{
    (void)state;
    sched_node_t nodes[] = {node("a", GB, 4), node("b", GB, 4), node("small", GB / 10, 1)};
    nodes[0].busy = true;
    sched_job_t queue[] = {job(1, 2, 2, GB / 2), job(2, 1, 1, GB / 2), job(3, 1, 1, 0)};
    sched_placement_t placements[3];
    sched_round(queue, 3, nodes, 3, placements);
    assert_false(placements[0].starts);
    assert_false(placements[1].starts); /* b is kept for job 1 */
    assert_non_null(strstr(placements[1].why, "b is kept for an earlier job"));
    assert_true(placements[2].starts); /* job 1 could not use the small node */
    assert_int_equal(placements[2].nodes[0], 2);
    nodes[0].ready = false; /* job 1 now waits for an absent machine: nothing is held */
    sched_round(queue, 3, nodes, 3, placements);
    assert_false(placements[0].starts);
    assert_true(placements[1].starts);
}

static void loopback_nodes_work_only_together(void **state)
{
    (void)state;
    sched_node_t nodes[] = {node("a", GB, 4), node("b", GB, 4), node("c", GB, 4)};
    nodes[0].local_only = true;
    sched_job_t two = job(1, 2, 3, 0);
    sched_placement_t placement;
    sched_round(&two, 1, nodes, 3, &placement);
    assert_true(placement.starts);
    assert_int_equal(placement.n_nodes, 2);
    assert_int_equal(placement.nodes[0], 1);
    nodes[1].local_only = true;
    nodes[1].machine = "a";
    nodes[2].local_only = true;
    sched_round(&two, 1, nodes, 3, &placement); /* a and b share a machine */
    assert_true(placement.starts);
    assert_int_equal(placement.nodes[0], 0);
    assert_int_equal(placement.nodes[1], 1);
    two.min_nodes = 3;
    sched_round(&two, 1, nodes, 3, &placement);
    assert_false(placement.starts);
    assert_non_null(strstr(placement.why, "no routable address"));
}

static void gpu_and_cores_are_wishes_that_count(void **state)
{
    (void)state;
    sched_node_t nodes[] = {node("a", GB, 16), node("b", GB, 2)};
    sched_job_t wish = job(1, 1, 2, 0);
    wish.gpu = true;
    sched_placement_t placement;
    sched_round(&wish, 1, nodes, 2, &placement);
    assert_false(placement.starts);
    assert_non_null(strstr(placement.why, "a has no GPU"));
    nodes[1].gpus = 1;
    sched_round(&wish, 1, nodes, 2, &placement);
    assert_true(placement.starts);
    assert_int_equal(placement.n_nodes, 1);
    assert_int_equal(placement.nodes[0], 1);
    wish.cores = 4;
    sched_round(&wish, 1, nodes, 2, &placement);
    assert_false(placement.starts);
}

/* Several agents of one machine each offer all of its memory, but it is there only once. */
static void memory_is_counted_by_machine(void **state)
{
    (void)state;
    sched_node_t nodes[] = {node("a", 8 * GB, 4), node("b", 8 * GB, 4), node("c", 8 * GB, 4),
                            node("d", 8 * GB, 4)};
    for (uint32_t i = 0; i < 3; i++) nodes[i].machine = "host";
    inspan_error_t err;
    sched_placement_t placement;
    sched_job_t three = job(1, 3, 3, 5 * GB);
    three.model_bytes = 2 * GB;
    assert_int_equal(sched_admit(&three, nodes, 3, &err), INSPAN_LIMIT);
    assert_non_null(strstr(err.text,
                           "needs 5.0 GB on each of 3 nodes (weights 2.0 GB), but 3 nodes share one "
                           "machine (that of node a), which has 8.0 GB: enough for 1;"));
    assert_int_equal(sched_admit(&three, nodes, 4, &err), INSPAN_LIMIT); /* d is one more, not two */
    three.min_nodes = 2;
    assert_int_equal(sched_admit(&three, nodes, 4, &err), INSPAN_OK);
    sched_round(&three, 1, nodes, 4, &placement);
    assert_true(placement.starts);
    assert_int_equal(placement.n_nodes, 2);
    assert_int_equal(placement.nodes[0], 0);
    assert_int_equal(placement.nodes[1], 3);
    three.memory_bytes = 4 * GB; /* two fit exactly */
    sched_round(&three, 1, nodes, 4, &placement);
    assert_int_equal(placement.n_nodes, 3);
    const char *pins[] = {"a", "b", "c"};
    sched_job_t pinned = job(2, 1, 8, 3 * GB);
    pinned.pinned = pins;
    pinned.n_pinned = 3;
    assert_int_equal(sched_admit(&pinned, nodes, 4, &err), INSPAN_LIMIT);
    assert_non_null(strstr(err.text, "enough for 2"));
    pinned.memory_bytes = 8 * GB / 3;
    assert_int_equal(sched_admit(&pinned, nodes, 4, &err), INSPAN_OK);
    /* without a boot id each node is a machine of its own */
    for (uint32_t i = 0; i < 3; i++) nodes[i].machine = "";
    assert_int_equal(sched_admit(&three, nodes, 3, &err), INSPAN_OK);
}

static void memory_in_use_is_not_given_away(void **state)
{
    (void)state;
    sched_node_t nodes[] = {node("a", 8 * GB, 4), node("b", 8 * GB, 4), node("c", 8 * GB, 4)};
    for (uint32_t i = 0; i < 3; i++) nodes[i].machine = "host";
    nodes[0].busy = true;
    nodes[0].used_bytes = 3 * GB;
    sched_job_t queue[] = {job(1, 1, 2, 4 * GB), job(2, 1, 1, 2 * GB)};
    sched_placement_t placements[2];
    sched_round(queue, 2, nodes, 3, placements);
    assert_true(placements[0].starts);
    assert_int_equal(placements[0].n_nodes, 1); /* 5 GB are left: one of 4 */
    assert_false(placements[1].starts);         /* and then 1 GB */
    assert_string_equal(placements[1].why, "needs 1 node with 2.0 GB each: 0 are ready (a is busy, b is kept "
                                           "for an earlier job, c shares the 8.0 GB of its machine)");
    nodes[0].busy = false;
    nodes[0].used_bytes = 0;
    sched_round(queue, 2, nodes, 3, placements);
    assert_int_equal(placements[0].n_nodes, 2);
}

/* Random clusters and queues: nobody gets a node that does not fit, is busy, or is given to another. */
static void rounds_keep_their_promises(void **state)
{
    (void)state;
    rng_t rng;
    rng_seed(&rng, 7, 0);
    char names[12][16];
    for (uint32_t round = 0; round < 3000; round++) {
        sched_node_t nodes[12];
        sched_job_t jobs[5];
        sched_placement_t placements[5];
        uint32_t n_nodes = (uint32_t)rng_below(&rng, 13), n_jobs = (uint32_t)rng_below(&rng, 6);
        for (uint32_t i = 0; i < n_nodes; i++) {
            snprintf(names[i], sizeof names[i], "n%u", i);
            nodes[i] = (sched_node_t){.name = names[i],
                                      .machine = rng_below(&rng, 2) ? "m" : names[i],
                                      .memory_bytes = rng_below(&rng, 8),
                                      .cores = (double)rng_below(&rng, 4),
                                      .gpus = (uint32_t)rng_below(&rng, 2),
                                      .ready = rng_below(&rng, 4) > 0,
                                      .busy = rng_below(&rng, 4) == 0,
                                      .local_only = rng_below(&rng, 3) == 0};
            if (nodes[i].busy) nodes[i].used_bytes = rng_below(&rng, 4);
        }
        for (uint32_t j = 0; j < n_jobs; j++) {
            jobs[j] = job(j, 1 + (uint32_t)rng_below(&rng, 4), 0, rng_below(&rng, 8));
            jobs[j].max_nodes = jobs[j].min_nodes + (uint32_t)rng_below(&rng, 4);
            jobs[j].gpu = rng_below(&rng, 3) == 0;
        }
        sched_round(jobs, n_jobs, nodes, n_nodes, placements);
        bool taken[12] = {false};
        uint64_t memory[12] = {0}, most[12] = {0}; /* of a machine, at its first node's place */
        uint32_t machine[12];
        for (uint32_t i = 0; i < n_nodes; i++) {
            machine[i] = 0;
            while (strcmp(nodes[machine[i]].machine, nodes[i].machine) != 0) machine[i]++;
            memory[machine[i]] += nodes[i].used_bytes;
            if (nodes[i].memory_bytes > most[machine[i]]) most[machine[i]] = nodes[i].memory_bytes;
        }
        for (uint32_t j = 0; j < n_jobs; j++) {
            if (!placements[j].starts) {
                assert_true(placements[j].why[0] != '\0');
                continue;
            }
            assert_in_range(placements[j].n_nodes, jobs[j].min_nodes, jobs[j].max_nodes);
            for (uint32_t i = 0; i < placements[j].n_nodes; i++) {
                const sched_node_t *one = &nodes[placements[j].nodes[i]];
                assert_true(one->ready && !one->busy && !taken[placements[j].nodes[i]]);
                assert_true(one->memory_bytes >= jobs[j].memory_bytes && (!jobs[j].gpu || one->gpus > 0));
                taken[placements[j].nodes[i]] = true;
                memory[machine[placements[j].nodes[i]]] += jobs[j].memory_bytes;
                assert_true(jobs[j].memory_bytes == 0 ||
                            memory[machine[placements[j].nodes[i]]] <= most[machine[placements[j].nodes[i]]]);
                for (uint32_t k = 0; k < i; k++) {
                    const sched_node_t *other = &nodes[placements[j].nodes[k]];
                    bool together = strcmp(one->machine, other->machine) == 0;
                    assert_true(together || (!one->local_only && !other->local_only));
                }
            }
        }
    }
}

static void a_running_job_grows_after_those_that_wait(void **state)
{
    (void)state;
    sched_node_t nodes[] = {node("a", 8 * GB, 4), node("b", 8 * GB, 4), node("c", 8 * GB, 4)};
    static const uint32_t members[] = {0};
    sched_job_t jobs[] = {job(1, 1, 1, GB), job(2, 1, 2, GB)};
    sched_placement_t placements[2];
    nodes[0].busy = true;
    for (int i = 0; i < 3; i++) nodes[i].elastic = true;
    jobs[1].grows = true;
    jobs[1].members = members;
    jobs[1].n_members = 1;
    sched_round(jobs, 2, nodes, 3, placements);
    assert_true(placements[0].starts);
    assert_string_equal(nodes[placements[0].nodes[0]].name, "b");
    assert_true(placements[1].starts);
    assert_int_equal(placements[1].n_nodes, 1);
    assert_string_equal(nodes[placements[1].nodes[0]].name, "c");

    nodes[2].elastic = false; /* its agent would not know what to do */
    sched_round(&jobs[1], 1, nodes, 3, placements);
    assert_int_equal(placements[0].n_nodes, 1);
    assert_string_equal(nodes[placements[0].nodes[0]].name, "b");
    nodes[1].local_only = true; /* not reached by the member on another machine */
    sched_round(&jobs[1], 1, nodes, 3, placements);
    assert_false(placements[0].starts);
    nodes[1].machine = "a";
    sched_round(&jobs[1], 1, nodes, 3, placements);
    assert_true(placements[0].starts);

    static const uint32_t avoided[] = {1};
    jobs[1].avoided = avoided;
    jobs[1].n_avoided = 1;
    sched_round(&jobs[1], 1, nodes, 3, placements);
    assert_false(placements[0].starts);
    jobs[1].n_avoided = 0;

    jobs[0].min_nodes = jobs[0].max_nodes = 2; /* waits for a busy node: what it could use is kept for it */
    nodes[2].ready = false;
    sched_round(jobs, 2, nodes, 3, placements);
    assert_false(placements[0].starts);
    assert_false(placements[1].starts);
    static const char *const pinned[] = {"a", "c"}; /* it grows onto these only */
    jobs[1].pinned = pinned;
    jobs[1].n_pinned = 2;
    sched_round(&jobs[1], 1, nodes, 3, placements);
    assert_false(placements[0].starts);
    nodes[2].ready = nodes[2].elastic = true;
    sched_round(&jobs[1], 1, nodes, 3, placements);
    assert_string_equal(nodes[placements[0].nodes[0]].name, "c");
    assert_int_equal(placements[0].n_nodes, 1);
}

static void nodes_that_rest_are_not_used(void **state)
{
    (void)state;
    sched_node_t nodes[] = {node("a", 8 * GB, 4), node("b", 8 * GB, 4)};
    nodes[0].resting = "cools down";
    nodes[1].resting = "is drained";
    sched_job_t one = job(1, 1, 1, GB);
    sched_placement_t placement;
    sched_round(&one, 1, nodes, 2, &placement);
    assert_false(placement.starts);
    assert_string_equal(placement.why,
                        "needs 1 node with 1.0 GB each: 0 are ready (a cools down, b is drained)");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(takes_the_strongest_and_ranks_by_name),
        cmocka_unit_test(says_why_it_waits),
        cmocka_unit_test(admits_what_could_run_one_day),
        cmocka_unit_test(pinned_jobs_run_on_exactly_these),
        cmocka_unit_test(nodes_that_get_free_are_waited_for),
        cmocka_unit_test(a_waiting_job_is_not_starved),
        cmocka_unit_test(loopback_nodes_work_only_together),
        cmocka_unit_test(gpu_and_cores_are_wishes_that_count),
        cmocka_unit_test(memory_is_counted_by_machine),
        cmocka_unit_test(memory_in_use_is_not_given_away),
        cmocka_unit_test(rounds_keep_their_promises),
        cmocka_unit_test(a_running_job_grows_after_those_that_wait),
        cmocka_unit_test(nodes_that_rest_are_not_used),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
