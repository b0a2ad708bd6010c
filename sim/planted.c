/*
 * Bugs to be switched on: those of model/README.md by their names (the ones of the step machine are planted
 * in core/step itself, see core/step/planted.h), and more in the driver, the transport, recovery and
 * checkpoints. seeds: `inspan-sim --plants` proves that each is found within so many.
 */
#include <string.h>

#include "sim/internal.h"

int sim_plant_now;

typedef struct bound {
    int plant;
    uint32_t seeds;
} bound_t;

#define X(name, where, text) {#name, text, "all", 2000},
#define Y(name, text)        {#name, text, "all", 2000},
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
