#include "train/trainer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "train/trainer_internal.h"

static uint32_t micro_batch_of(job_config_t *job, uint64_t batch, uint64_t data, uint64_t memory)
{
    nn_model_config_t model;
    inspan_error_t err;
    uint32_t micro_batch = 0;
    job->train.global_batch = batch;
    job_model_config(job, &model);
    model.vocabulary = 256;
    assert_int_equal(trainer_micro_batch(job, &model, data, memory, &micro_batch, &err), INSPAN_OK);
    return micro_batch;
}

static void micro_batches_fit_into_memory(void **state)
{
    (void)state;
    job_config_t job;
    nn_model_config_t model;
    inspan_error_t err;
    uint64_t all[17];
    job_defaults(&job);
    job_model_config(&job, &model);
    model.vocabulary = 256;
    for (uint32_t n = 1; n <= 16; n++)
        assert_int_equal(job_memory(&job, &model, n, 1000, &all[n], &err), INSPAN_OK);
    assert_int_equal(micro_batch_of(&job, 64, 1000, UINT64_MAX), 16);
    assert_int_equal(micro_batch_of(&job, 5, 1000, UINT64_MAX), 5);
    assert_int_equal(micro_batch_of(&job, 64, 1000, all[16]), 16);
    assert_int_equal(micro_batch_of(&job, 64, 1000, all[16] - 1), 8);
    assert_int_equal(micro_batch_of(&job, 64, 2000, all[16]), 8); /* data take room as well */
    assert_int_equal(micro_batch_of(&job, 64, 1000, all[8] - 1), 4);
    assert_int_equal(micro_batch_of(&job, 64, 1000, 0), 1);
    assert_int_equal(job_set(&job, "train.micro_batch", "16", &err), INSPAN_OK); /* the user's word */
    assert_int_equal(micro_batch_of(&job, 64, 1000, 0), 16);
}

/* Evaluations take a hundred times a step here: the shown speed and what is left do not jump. */
static void evaluations_do_not_slow_the_shown_speed(void **state)
{
    (void)state;
    static trainer_t trainer;
    ns_t now = 1000 * NS_PER_S;
    trainer.job.train.global_batch = 50;
    trainer.recent[TRAIN_RECENT - 1] = now;
    assert_true(trainer_speed(&trainer, now) == 0);
    for (trainer.applied = 1; trainer.applied <= 100; trainer.applied++) {
        now += NS_PER_S / 10;
        if (trainer.applied % 7 == 0) now += 10 * NS_PER_S, trainer.evaluation += 10 * NS_PER_S;
        double speed = trainer_speed(&trainer, now);
        if (!(speed > 499.9 && speed < 500.1)) fail_msg("step %d: %g samples/s", (int)trainer.applied, speed);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {

        cmocka_unit_test(micro_batches_fit_into_memory),
        cmocka_unit_test(evaluations_do_not_slow_the_shown_speed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
