#include "platform/os/os_cond.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "platform/os/os_time.h"

#define PATIENCE (20 * NS_PER_S)

enum { WAITERS = 3 };

typedef struct room {
    pthread_mutex_t mutex;
    os_cond_t changed, counted;
    int go, waiting, through;
} room_t;

static void room_open(room_t *room)
{
    *room = (room_t){0};
    pthread_mutex_init(&room->mutex, NULL);
    os_cond_open(&room->changed);
    os_cond_open(&room->counted);
}

static void room_close(room_t *room)
{
    os_cond_close(&room->changed);
    os_cond_close(&room->counted);
    pthread_mutex_destroy(&room->mutex);
}

/* A wait is over at its deadline by the monotonic clock: not before, and it does come back. */
static void a_deadline_ends_the_wait(void **state)
{
    (void)state;
    room_t room;
    room_open(&room);
    pthread_mutex_lock(&room.mutex);
    ns_t deadline = os_now() + 30 * NS_PER_MS;
    while (os_cond_wait_until(&room.changed, &room.mutex, deadline)) {
    }
    assert_true(os_now() >= deadline);
    assert_int_equal(pthread_mutex_trylock(&room.mutex), EBUSY); /* held again */
    pthread_mutex_unlock(&room.mutex);
    room_close(&room);
}

static void a_deadline_of_the_past_does_not_wait(void **state)
{
    (void)state;
    room_t room;
    room_open(&room);
    pthread_mutex_lock(&room.mutex);
    const ns_t past[] = {INT64_MIN, -1, 0, 1, os_now() - 1};
    for (size_t i = 0; i < sizeof past / sizeof past[0]; i++)
        assert_false(os_cond_wait_until(&room.changed, &room.mutex, past[i]));
    pthread_mutex_unlock(&room.mutex);
    room_close(&room);
}

static void *wait_to_go(void *context)
{
    room_t *room = context;
    ns_t deadline = os_now() + PATIENCE;
    pthread_mutex_lock(&room->mutex);
    room->waiting++;
    os_cond_signal(&room->counted);
    while (room->go == 0 && os_cond_wait_until(&room->changed, &room->mutex, deadline)) {
    }
    if (room->go > 0) room->go--, room->through++;
    os_cond_signal(&room->counted);
    pthread_mutex_unlock(&room->mutex);
    return NULL;
}

/* With the mutex held: until *count is n. */
static bool reached(room_t *room, const int *count, int n)
{
    ns_t deadline = os_now() + PATIENCE;
    while (*count < n && os_cond_wait_until(&room->counted, &room->mutex, deadline)) {
    }
    return *count == n;
}

static void signal_wakes_one_and_broadcast_all(void **state)
{
    (void)state;
    room_t room;
    pthread_t threads[WAITERS];
    room_open(&room);
    for (int i = 0; i < WAITERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, wait_to_go, &room), 0);
    pthread_mutex_lock(&room.mutex);
    assert_true(reached(&room, &room.waiting, WAITERS));
    room.go = 1;
    os_cond_signal(&room.changed);
    assert_true(reached(&room, &room.through, 1));
    room.go = WAITERS - 1;
    os_cond_broadcast(&room.changed);
    assert_true(reached(&room, &room.through, WAITERS));
    pthread_mutex_unlock(&room.mutex);
    for (int i = 0; i < WAITERS; i++) pthread_join(threads[i], NULL);
    room_close(&room);
}

/* A deadline at the end of time waits like one without a bound. */
static void *go_now(void *context)
{
    room_t *room = context;
    pthread_mutex_lock(&room->mutex);
    room->go = 1;
    os_cond_broadcast(&room->changed);
    pthread_mutex_unlock(&room->mutex);
    return NULL;
}

static void the_latest_deadline_is_one(void **state)
{
    (void)state;
    room_t room;
    pthread_t thread;
    room_open(&room);
    pthread_mutex_lock(&room.mutex);
    assert_int_equal(pthread_create(&thread, NULL, go_now, &room), 0);
    while (room.go == 0) assert_true(os_cond_wait_until(&room.changed, &room.mutex, INT64_MAX));
    pthread_mutex_unlock(&room.mutex);
    pthread_join(thread, NULL);
    pthread_mutex_lock(&room.mutex);
    room.go = 0;
    assert_int_equal(pthread_create(&thread, NULL, go_now, &room), 0);
    while (room.go == 0)
        os_cond_wait(&room.changed, &room.mutex); /* the thread's bound: it has nothing to wait for */
    pthread_mutex_unlock(&room.mutex);
    pthread_join(thread, NULL);
    room_close(&room);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_deadline_ends_the_wait),
        cmocka_unit_test(a_deadline_of_the_past_does_not_wait),
        cmocka_unit_test(signal_wakes_one_and_broadcast_all),
        cmocka_unit_test(the_latest_deadline_is_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
