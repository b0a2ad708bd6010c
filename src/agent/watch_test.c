#include "agent/watch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/log.h"
#include "platform/os/fake_tree_test.h"
#include "platform/os/os_file.h"
#include "platform/os/os_time.h"

enum { SIGHT = 7 };

static const ns_t patience = 20 * NS_PER_S;
static char folder[64], root[80], wishes_path[80];
static inbox_t *inbox;
static watch_t *watch;

static void put(const char *path, const char *text)
{
    fake_tree_put(root, path, text);
}

static int open_folder(void **state)
{
    (void)state;
    log_set_level(LOG_NONE);
    strcpy(folder, "/tmp/inspan-watch-XXXXXX");
    if (mkdtemp(folder) == NULL) return 1;
    snprintf(root, sizeof root, "%s/root", folder);
    snprintf(wishes_path, sizeof wishes_path, "%s/owner", folder);
    inbox = inbox_open(4, NULL, NULL, NULL);
    return inbox == NULL;
}

static int remove_folder(void **state)
{
    (void)state;
    inbox_close(inbox);
    return os_remove_all(folder, NULL) != INSPAN_OK;
}

static void start(void)
{
    inspan_error_t err;
    if (watch_open(root, wishes_path, inbox, SIGHT, &watch, &err) != INSPAN_OK) fail_msg("%s", err.text);
}

static void stop(void)
{
    inbox_shut(inbox);
    watch_close(watch);
}

/* Until it has seen that; how long that took. */
static ns_t until(double allowed, owner_limit_t limit)
{
    const ns_t begun = os_now();
    watch_sight_t sight = {.allowed = -1};
    inbox_message_t message;
    while (sight.allowed != allowed) {
        if (!inbox_take(inbox, &message, begun + patience - os_now())) fail_msg("%g is not seen", allowed);
        assert_int_equal(message.kind, SIGHT);
        assert_true(watch_newest(watch, os_now(), &sight));
    }
    assert_int_equal(sight.limit, limit);
    return os_now() - begun;
}

static void test_wishes_and_machine_change(void **state)
{
    (void)state;
    owner_wishes_t wishes = owner_defaults;
    const pid_t worker = getpid();
    start();
    until(1, OWNER_GIVES_ALL); /* no file: all */
    watch_workers(watch, &worker, 1);
    wishes.at_most = 0.75;
    assert_int_equal(owner_save(wishes_path, &wishes, NULL), INSPAN_OK);
    assert_true(until(0.75, OWNER_ALWAYS) < 2 * NS_PER_S);
    put("/sys/class/power_supply/BAT0/type", "Battery\n");
    put("/sys/class/power_supply/BAT0/status", "Discharging\n");
    assert_true(until(0.5, OWNER_ON_BATTERY) < 2 * NS_PER_S);
    assert_int_equal(os_file_write(wishes_path, "at-most 7\n", 10, 0600, NULL), INSPAN_OK);
    put("/sys/class/power_supply/BAT0/status", "Charging\n");
    until(0.75, OWNER_ALWAYS); /* what cannot be read changes nothing */
    assert_int_equal(unlink(wishes_path), 0);
    until(1, OWNER_GIVES_ALL);
    watch_sight_t sight;
    assert_true(watch_newest(watch, os_now() + 6 * NS_PER_S, &sight));
    assert_true(sight.vitals.cores == 0); /* as old as that it says nothing of the machine */
    stop();
}

/* The first worker does not wait for the next look of an idle machine. */
static void test_the_first_worker_is_looked_at_at_once(void **state)
{
    (void)state;
    inbox_message_t message;
    const pid_t worker = getpid();
    start();
    assert_true(inbox_take(inbox, &message, patience));
    const ns_t begun = os_now();
    watch_workers(watch, &worker, 1);
    assert_true(inbox_take(inbox, &message, patience));
    assert_true(os_now() - begun < NS_PER_S);
    stop();
}

static void test_a_sensor_hangs(void **state)
{
    (void)state;
    char path[160];
    watch_sight_t sight;
    put("/sys/class/thermal/thermal_zone0/type", "cpu\n");
    snprintf(path, sizeof path, "%s/sys/class/thermal/thermal_zone0/temp", root);
    assert_int_equal(mkfifo(path, 0600), 0); /* nobody ever writes: the read waits for 5 s */
    start();
    const ns_t begun = os_now();
    assert_false(watch_newest(watch, os_now(), &sight));
    stop();
    assert_true(os_now() - begun < 4 * NS_PER_S);
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, open_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_FOLDER(test_wishes_and_machine_change),
        IN_FOLDER(test_the_first_worker_is_looked_at_at_once),
        IN_FOLDER(test_a_sensor_hangs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
