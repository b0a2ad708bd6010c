#include "base/vec.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

/* To the address sanitizer a request that cannot be met is a mistake; here it is what is tested. */
__attribute__((visibility("default"))) const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}

typedef struct pair {
    int a;
    double b;
} pair_t;

static void it_grows_and_keeps_what_it_has(void **state)
{
    (void)state;
    vec_of(int) v = {0};
    for (int i = 0; i < 1000; i++) {
        assert_true(VEC_PUSH(&v, 3 * i));
        assert_int_equal(v.n, i + 1);
        assert_true(v.capacity >= v.n);
    }
    for (int i = 0; i < 1000; i++) assert_int_equal(v.items[i], 3 * i);
    vec_free(&v);
    assert_null(v.items);
    assert_int_equal(v.n, 0);
    assert_true(VEC_PUSH(&v, 7)); /* freed is empty: to be used again */
    assert_int_equal(v.items[0], 7);
    vec_free(&v);
    vec_free(&v);
}

static void it_holds_structs(void **state)
{
    (void)state;
    vec_of(pair_t) v = {0};
    for (int i = 0; i < 20; i++) assert_true(VEC_PUSH(&v, (pair_t){i, i / 2.0}));
    for (int i = 0; i < 20; i++) assert_true(v.items[i].a == i && v.items[i].b == i / 2.0);
    vec_free(&v);
}

static void room_is_made_in_one_step(void **state)
{
    (void)state;
    vec_of(pair_t) v = {0};
    assert_true(vec_grow((void **)&v.items, &v.capacity, 1000, sizeof *v.items));
    assert_int_equal(v.capacity, 1000);
    pair_t *items = v.items;
    for (int i = 0; i < 1000; i++) assert_true(VEC_PUSH(&v, (pair_t){i, 0}));
    assert_ptr_equal(v.items, items);
    vec_free(&v);
}

/* More than there is: false, and what is there stays. */
static void no_memory_changes_nothing(void **state)
{
    (void)state;
    vec_of(pair_t) v = {0};
    assert_true(VEC_PUSH(&v, (pair_t){1, 2}));
    pair_t *items = v.items;
    size_t capacity = v.capacity;
    volatile size_t wraps_to_16 = SIZE_MAX / sizeof(pair_t) + 2,
                    most = SIZE_MAX; /* the compiler would see through them */
    assert_false(vec_grow((void **)&v.items, &v.capacity, wraps_to_16, sizeof(pair_t)));
    assert_false(vec_grow((void **)&v.items, &v.capacity, most, sizeof(pair_t)));
    assert_ptr_equal(v.items, items);
    assert_int_equal(v.capacity, capacity);
    assert_int_equal(v.n, 1);
    assert_int_equal(v.items[0].a, 1);
    vec_free(&v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_grows_and_keeps_what_it_has),
        cmocka_unit_test(it_holds_structs),
        cmocka_unit_test(room_is_made_in_one_step),
        cmocka_unit_test(no_memory_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
