/* Bugs planted on purpose must be found by the random histories, each within its number of seeds. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "core/step/elastic_world_test.h"
#include "core/step/planted.h"

typedef struct planted_case {
    const char *name;
    uint32_t bugs;
    uint64_t seeds; /* within so many it must be found */
    const world_options_t *world;
} planted_case_t;

static const planted_case_t cases[] = {
    {"NOLASTVOTE", PLANTED_NOLASTVOTE, 100, &world_all_faults},
    {"NOTALL", PLANTED_NOTALL, 100, &world_all_faults},
    {"NOR1", PLANTED_NOR1, 1000, &world_all_faults},
    {"EARLYAPPLY", PLANTED_EARLYAPPLY, 100, &world_all_faults},
    {"DROPHELD", PLANTED_DROPHELD, 1000, &world_all_faults},
    /* R1 commits what every survivor holds: without that, salvage is what keeps I1. */
    {"NOSALV+NOC2", PLANTED_NOSALV | PLANTED_NOC2, 1000, &world_all_faults},
    {"SKIPSALV", PLANTED_SKIPSALV, 5000, &world_small},
    {"STEALBUG", PLANTED_STEALBUG, 100, &world_all_faults},
    {"GRANTTWICE", PLANTED_GRANTTWICE, 100, &world_steals},
    {"GRANTLATE", PLANTED_GRANTLATE, 100, &world_steals},
    {"STEALGRANTED", PLANTED_STEALGRANTED, 100, &world_steals},
    {"LATEDONE", PLANTED_LATEDONE, 1000, &world_all_faults},
    {"MIDBACK", PLANTED_MIDBACK, 100, &world_all_faults},
    {"OLDMSG", PLANTED_OLDMSG, 1000, &world_all_faults},
    {"NOEMPTY", PLANTED_NOEMPTY, 100, &world_all_faults},
    {"ADDUP", PLANTED_ADDUP, 2000, &world_all_faults},
    {"SCALARS", PLANTED_SCALARS, 100, &world_all_faults},
    {"BLINDCHUNK", PLANTED_BLINDCHUNK, 5000, &world_all_faults},
    {"LATECHUNK", PLANTED_LATECHUNK, 5000, &world_all_faults},
    {"OLDSHARES", PLANTED_OLDSHARES, 100, &world_all_faults},
    {"OLDWIRE", PLANTED_OLDWIRE, 100, &world_all_faults},
    {"OLDLAYOUT", PLANTED_OLDLAYOUT, 100, &world_all_faults},
    {"BLINDLAYOUT", PLANTED_BLINDLAYOUT, 100, &world_all_faults},
    {"LISTENNOVOTE", PLANTED_LISTENNOVOTE, 100, &world_all_faults},
    {"SELFFULL+NOC2", PLANTED_SELFFULL | PLANTED_NOC2, 3000, &world_small},
};

static uint64_t seeds_to_find(uint32_t bugs, const world_options_t *world, uint64_t most, char violation[512])
{
    world_options_t options = *world;
    options.planted = bugs;
    for (uint64_t seed = 0; seed < most; seed++) {
        world_result_t result = {0};
        world_run(seed, &options, &result);
        if (!result.violation[0]) continue;
        snprintf(violation, 512, "%s", result.violation);
        return seed + 1;
    }
    return 0;
}

static void every_planted_bug_is_found(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char violation[512] = "";
        uint64_t seeds = seeds_to_find(cases[i].bugs, cases[i].world, cases[i].seeds, violation);
        printf("%-14s found after %" PRIu64 " of %" PRIu64 " seeds: %s\n", cases[i].name, seeds,
               cases[i].seeds, violation);
        if (seeds == 0) fail_msg("%s was not found in %" PRIu64 " seeds", cases[i].name, cases[i].seeds);
    }
}

/* The same build without a bug finds nothing; nor does what is no bug by itself. */
static void without_a_bug_nothing_is_found(void **state)
{
    (void)state;
    char violation[512] = "";
    if (seeds_to_find(0, &world_all_faults, 500, violation)) fail_msg("without a bug: %s", violation);
    if (seeds_to_find(0, &world_steals, 500, violation)) fail_msg("with steals: %s", violation);
    if (seeds_to_find(PLANTED_NOC2, &world_small, 500, violation)) fail_msg("NOC2: %s", violation);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_planted_bug_is_found),
        cmocka_unit_test(without_a_bug_nothing_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
