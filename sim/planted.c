/*
 * Bugs to be switched on: those of model/README.md by their names (the ones of the step machine are planted
 * in core/step itself, see core/step/planted.h), and more in the driver, the transport, recovery and
 * checkpoints. seeds: `inspan-sim --plants` proves that each is found within so many.
 */
#include <string.h>

#include "sim/internal.h"

int sim_plant_now;

/* Most show within a few histories. Those that need one fault on top of another at a certain moment are
 * looked for in dense ones. NOC2 is no bug by itself: without it R1 hides NOSALV and SELFFULL, which it is
 * planted with. */
enum { USUAL = 1000, RARE = 8000 };
#define X(name, where, text) {#name, text},
#define Y(name, text)        {#name, text},
const sim_plant_t sim_plants[] = {PLANTED_LIST(X) SIM_PLANT_OWN(Y)};
#undef X
#undef Y
const size_t sim_n_plants = sizeof sim_plants / sizeof *sim_plants;

bool sim_plant(const char *name)
{
    sim_plant_now = SIM_PLANT_NONE;
    if (name == NULL) return true;
    for (size_t i = 0; i < sim_n_plants; i++) {
        if (strcmp(sim_plants[i].name, name) != 0) continue;
        sim_plant_now = (int)i + 1;
        return true;
    }
    return false;
}

uint32_t sim_plant_seeds(const sim_plant_t *plant)
{
    switch (plant - sim_plants + 1) {
    case SIM_PLANT_NOC2: return 0;
    case SIM_PLANT_SKIPSALV:
    case SIM_PLANT_SELFFULL:
    case SIM_PLANT_REUSE:
    case SIM_PLANT_TORNVIEW:
    case SIM_PLANT_BLINDCHUNK:
    case SIM_PLANT_LATECHUNK: return RARE;
    default: return USUAL;
    }
}

bool sim_plant_dense(const sim_plant_t *plant)
{
    switch (plant - sim_plants + 1) {
    case SIM_PLANT_SKIPSALV:
    case SIM_PLANT_SELFFULL:
    case SIM_PLANT_NOSALV:
    case SIM_PLANT_BLINDCHUNK:
    case SIM_PLANT_LATECHUNK: return true;
    default: return false;
    }
}

uint32_t sim_planted_core(void)
{
    enum { core = 1, shell = 0, manager = 0, checkpoint = 0 };
#define X(name, where, text)                                                                                 \
    if (sim_plant_now == SIM_PLANT_##name && where)                                                          \
        return PLANTED_##name | (sim_planted(SELFFULL) || sim_planted(NOSALV) ? PLANTED_NOC2 : 0);
    PLANTED_LIST(X)
#undef X
    return 0;
}
