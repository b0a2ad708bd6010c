/* Shared by the files of the pace model. */
#ifndef PARTITION_PACE_INTERNAL_H
#define PARTITION_PACE_INTERNAL_H

#include "core/partition/pace.h"

/* Work of a block in samples: what its time is divided by to give the level. */
double pace_units(const pace_model_t *m, const pace_block_t *block);

/* Log level of blocks [from, to) of the window; at least one. */
double pace_level(const pace_model_t *m, uint32_t from, uint32_t to);

/* A closed block of runs of one size: what it teaches of the shape, which needs no level. */
void pace_learn_size(pace_model_t *m, const pace_block_t *block, uint32_t samples);

/* The next block of this size says little of the level: the shape is not known yet, and it is the first of
 * its size. */
bool pace_teaches(const pace_model_t *m, uint32_t samples);

/* A closed block of last runs; the level must be known. */
void pace_learn_excess(pace_model_t *m, const pace_block_t *block);

/* Another level is published: what last runs take beyond it is less, or more. */
void pace_judge_excess(pace_model_t *m);

/* Relative uncertainty that the excess adds to a block of last runs. */
double pace_excess_noise(const pace_model_t *m, const pace_block_t *block);

/* Moves all levels (log) that the model holds: the unit has changed. */
void pace_shift(pace_model_t *m, double shift);

#endif
