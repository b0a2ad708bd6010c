#include "platform/host/owner.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "platform/os/os_file.h"

static char folder[64], path[80];

static int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/inspan-owner-XXXXXX");
    if (mkdtemp(folder) == NULL) return 1;
    snprintf(path, sizeof path, "%s/owner", folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    return os_remove_all(folder, NULL) != INSPAN_OK;
}

static void test_the_least_counts(void **state)
{
    (void)state;
    const owner_wishes_t wishes = {
        .at_most = 0.9, .on_battery = 0.5, .when_hot = 0.7, .hot_above_c = 80, .when_in_use = 0};
    vitals_t vitals = {.temperature_c = 60};
    bool hot = false;
    owner_limit_t limit;
    assert_true(owner_allowed(&wishes, &vitals, &hot, &limit) == 0.9);
    assert_int_equal(limit, OWNER_ALWAYS);
    vitals.on_battery = true;
    assert_true(owner_allowed(&wishes, &vitals, &hot, &limit) == 0.5);
    assert_int_equal(limit, OWNER_ON_BATTERY);
    vitals.temperature_c = 90; /* hot too, but the battery is stricter */
    assert_true(owner_allowed(&wishes, &vitals, &hot, &limit) == 0.5);
    vitals.owner_active = true;
    assert_true(owner_allowed(&wishes, &vitals, &hot, &limit) == 0);
    assert_string_equal(owner_limit_text(limit), "in use by its owner");
    vitals = (vitals_t){.temperature_c = 60};
    assert_true(owner_allowed(&owner_gives_all, &vitals, &hot, &limit) == 1);
    assert_int_equal(limit, OWNER_GIVES_ALL);
    assert_string_equal(owner_limit_text(limit), "");
}

/* About the border it does not go to and fro. */
static void test_heat_has_hysteresis(void **state)
{
    (void)state;
    const owner_wishes_t wishes = {1, 1, 0.25, 80, 1};
    static const struct {
        double celsius, allowed;
    } course[] = {{79, 1}, {80, 1}, {80.5, 0.25}, {79, 0.25}, {75.5, 0.25},
                  {75, 1}, {79, 1}, {81, 0.25},   {0, 1}};
    bool hot = false;
    for (size_t i = 0; i < sizeof course / sizeof course[0]; i++) {
        const vitals_t vitals = {.temperature_c = course[i].celsius};
        owner_limit_t limit;
        assert_true(owner_allowed(&wishes, &vitals, &hot, &limit) == course[i].allowed);
        assert_int_equal(limit, course[i].allowed < 1 ? OWNER_WHEN_HOT : OWNER_GIVES_ALL);
    }
}

static void write_text(const char *text)
{
    assert_int_equal(os_file_write(path, text, strlen(text), 0600, NULL), INSPAN_OK);
}

static void test_the_file(void **state)
{
    (void)state;
    inspan_error_t err;
    owner_wishes_t wishes = owner_defaults, found;
    assert_int_equal(owner_load(path, &wishes, &err), INSPAN_NOT_FOUND);
    assert_memory_equal(&wishes, &owner_gives_all, sizeof wishes);
    wishes = (owner_wishes_t){0.75, 0, 0.125, 71.5, 1};
    assert_int_equal(owner_save(path, &wishes, &err), INSPAN_OK);
    assert_int_equal(owner_load(path, &found, &err), INSPAN_OK);
    assert_memory_equal(&found, &wishes, sizeof found);

    write_text("# by hand\n\n  \nwhen-in-use\t 0.25 \r\nfrom-a-newer-version yes\nalone\n");
    assert_int_equal(owner_load(path, &found, &err), INSPAN_OK);
    assert_true(found.when_in_use == 0.25);
    assert_true(found.on_battery == owner_defaults.on_battery); /* not mentioned */

    static const char *const bad[] = {"at-most 1.5\n", "at-most -0.1\n", "at-most nan\n", "at-most 0.5x\n",
                                      "hot-above 1e9\n"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char text[64];
        snprintf(text, sizeof text, "when-hot 0.5\n%s", bad[i]);
        write_text(text);
        assert_int_equal(owner_load(path, &found, &err), INSPAN_INVALID);
        assert_true(found.when_in_use == 0.25); /* as it was */
        assert_non_null(strstr(err.text, "line 2"));
    }
    write_text("on-battery\n"); /* no value is no wish */
    assert_int_equal(owner_load(path, &found, &err), INSPAN_OK);
    assert_true(found.on_battery == owner_defaults.on_battery);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_least_counts),
        cmocka_unit_test(test_heat_has_hysteresis),
        cmocka_unit_test_setup_teardown(test_the_file, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
