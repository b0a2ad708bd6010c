#include "platform/host/loop.h"

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>

#include <cmocka.h>

typedef struct scene {
    loop_t *loop;
    loop_watch_t *watch;
    loop_timer_t *timer, *deadline;
    int fd, ticks, wakes, signals, bytes;
    bool hung_up, late;
} scene_t;

static void on_deadline(void *context)
{
    scene_t *scene = context;
    scene->late = true;
    loop_stop(scene->loop);
}

static void on_wake(void *context)
{
    scene_t *scene = context;
    scene->wakes++;
    loop_stop(scene->loop);
}

static void open_scene(scene_t *scene)
{
    *scene = (scene_t){.fd = -1};
    assert_int_equal(loop_open(on_wake, scene, &scene->loop, NULL), INSPAN_OK);
    assert_int_equal(loop_timer(scene->loop, 20 * NS_PER_S, 0, on_deadline, scene, &scene->deadline, NULL),
                     INSPAN_OK);
}

static void *wake_from_outside(void *context)
{
    loop_wake(((scene_t *)context)->loop);
    return NULL;
}

static void test_wake(void **state)
{
    (void)state;
    scene_t scene;
    pthread_t thread;
    open_scene(&scene);
    assert_int_equal(pthread_create(&thread, NULL, wake_from_outside, &scene), 0);
    loop_run(scene.loop);
    pthread_join(thread, NULL);
    assert_int_equal(scene.wakes, 1);
    assert_false(scene.late);
    loop_close(scene.loop);
}

static void on_readable(void *context, bool readable, bool writable)
{
    scene_t *scene = context;
    char bytes[4];
    (void)writable;
    if (!readable) return;
    ssize_t got = read(scene->fd, bytes, sizeof bytes);
    if (got > 0) {
        scene->bytes += (int)got;
        return;
    }
    scene->hung_up = true;
    loop_unwatch(scene->watch);
    loop_stop(scene->loop);
}

static void test_watch_until_hang_up(void **state)
{
    (void)state;
    scene_t scene;
    int ends[2];
    open_scene(&scene);
    assert_int_equal(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
    scene.fd = ends[0];
    assert_int_equal(loop_watch(scene.loop, ends[0], true, false, on_readable, &scene, &scene.watch, NULL),
                     INSPAN_OK);
    assert_int_equal(write(ends[1], "123456789", 9), 9);
    close(ends[1]);
    loop_run(scene.loop);
    assert_int_equal(scene.bytes, 9);
    assert_true(scene.hung_up);
    close(ends[0]);
    loop_close(scene.loop);
}

static void on_tick(void *context)
{
    scene_t *scene = context;
    if (++scene->ticks < 3) return;
    loop_timer_stop(scene->timer);
    raise(SIGUSR2);
}

static void on_signal(void *context)
{
    scene_t *scene = context;
    scene->signals++;
    loop_stop(scene->loop);
}

static void test_timer_and_signal(void **state)
{
    (void)state;
    scene_t scene;
    open_scene(&scene);
    assert_int_equal(loop_signal(scene.loop, SIGUSR2, on_signal, &scene, NULL), INSPAN_OK);
    assert_int_equal(loop_timer(scene.loop, 0, NS_PER_MS, on_tick, &scene, &scene.timer, NULL), INSPAN_OK);
    loop_run(scene.loop);
    assert_int_equal(scene.ticks, 3);
    assert_int_equal(scene.signals, 1);
    loop_close(scene.loop);
}

static void test_bad_descriptor(void **state)
{
    (void)state;
    scene_t scene;
    inspan_error_t err;
    open_scene(&scene);
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    close(fd);
    assert_int_equal(loop_watch(scene.loop, fd, true, false, on_readable, &scene, &scene.watch, &err),
                     INSPAN_IO);
    loop_close(scene.loop); /* with the deadline's timer still in it */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wake),
        cmocka_unit_test(test_watch_until_hang_up),
        cmocka_unit_test(test_timer_and_signal),
        cmocka_unit_test(test_bad_descriptor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
