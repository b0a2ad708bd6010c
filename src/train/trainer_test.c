#include "train/trainer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "train/trainer_internal.h"

static void ranks_with_other_weights_are_named(void **state)
{
    (void)state;
    char text[32];
    const double same[] = {1, 2, 1, 2, 1, 2}, one[] = {1, 2, 1, 3, 1, 2},
                 two[] = {5, 2, 1, 2, 1, 2, 1, 2, 1, 9};
    const double split[] = {1, 1, 2, 2}, alone[] = {7, 7};
    assert_int_equal(trainer_odd_ones(same, 3, text, sizeof text), 0);
    assert_string_equal(text, "");
    assert_int_equal(trainer_odd_ones(one, 3, text, sizeof text), 1);
    assert_string_equal(text, "1");
    assert_int_equal(trainer_odd_ones(two, 5, text, sizeof text), 2);
    assert_string_equal(text, "0, 4");
    assert_int_equal(trainer_odd_ones(split, 2, text, sizeof text), 1);
    assert_string_equal(text, "1");
    assert_int_equal(trainer_odd_ones(alone, 1, text, sizeof text), 0);
    double many[512];
    for (int i = 0; i < 512; i++) many[i] = i; /* all differ: the text is cut, not overrun */
    assert_int_equal(trainer_odd_ones(many, 256, text, sizeof text), 255);
    assert_true(strlen(text) < sizeof text);
}

static uint32_t micro_batch_of(const job_config_t *job, uint64_t share, uint64_t data, uint64_t memory)
{
    nn_model_config_t model;
    inspan_error_t err;
    uint32_t micro_batch = 0;
    job_model_config(job, &model);
    model.vocabulary = 256;
    assert_int_equal(trainer_micro_batch(job, &model, share, data, memory, &micro_batch, &err), INSPAN_OK);
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
    for (trainer.step = 1; trainer.step <= 100; trainer.step++) {
        now += NS_PER_S / 10;
        if (trainer.step % 7 == 0) now += 10 * NS_PER_S, trainer.evaluation += 10 * NS_PER_S;
        double speed = trainer_speed(&trainer, now);
        if (!(speed > 499.9 && speed < 500.1)) fail_msg("step %d: %g samples/s", (int)trainer.step, speed);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {

        cmocka_unit_test(ranks_with_other_weights_are_named),
        cmocka_unit_test(micro_batches_fit_into_memory),
        cmocka_unit_test(evaluations_do_not_slow_the_shown_speed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
