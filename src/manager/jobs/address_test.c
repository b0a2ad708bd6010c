#include "manager/jobs/address.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void loopback_is_told_from_the_rest(void **state)
{
    (void)state;
    static const char *const loopback[] = {"127.0.0.1", "127.0.1.1", "::1", "::ffff:127.0.0.1"};
    static const char *const other[] = {"10.0.0.1",  "fe80::1%eth0", "fd00::1",   "0.0.0.0",        "",
                                        "localhost", "127.1",        "300.1.1.1", "::ffff:10.0.0.1"};
    for (size_t i = 0; i < sizeof loopback / sizeof loopback[0]; i++)
        assert_true(address_is_loopback(loopback[i]));
    for (size_t i = 0; i < sizeof other / sizeof other[0]; i++) assert_false(address_is_loopback(other[i]));
    assert_false(address_is_numeric("localhost"));
    assert_true(address_is_numeric("fe80::1%eth0"));
}

static void what_the_manager_saw_beats_loopback(void **state)
{
    (void)state;
    assert_string_equal(address_of_node("192.168.1.7", "10.0.0.1"), "192.168.1.7");
    assert_string_equal(address_of_node("127.0.1.1", "192.168.1.7"), "192.168.1.7");
    assert_string_equal(address_of_node("", "192.168.1.7"), "192.168.1.7");
    assert_string_equal(address_of_node("0.0.0.0", "192.168.1.7"), "192.168.1.7");
    assert_string_equal(address_of_node("myhost", "fd00::7"), "fd00::7");
    assert_string_equal(address_of_node("127.0.0.1", "127.0.0.1"), "127.0.0.1");
    assert_string_equal(address_of_node("myhost", NULL), "myhost");
}

static void the_interface_towards_the_other_is_chosen(void **state)
{
    (void)state;
    char *vpn[] = {(char *)"10.8.0.2", (char *)"fe80::2"},
         *lan[] = {(char *)"192.168.1.7", (char *)"fd00:1::7"};
    Inspan__V1__Interface first = INSPAN__V1__INTERFACE__INIT, second = INSPAN__V1__INTERFACE__INIT;
    first.addresses = vpn;
    first.n_addresses = 2;
    second.addresses = lan;
    second.n_addresses = 2;
    Inspan__V1__Interface *interfaces[] = {&first, &second};
    Inspan__V1__Inventory inventory = INSPAN__V1__INVENTORY__INIT;
    inventory.interfaces = interfaces;
    inventory.n_interfaces = 2;
    assert_string_equal(address_towards(&inventory, "192.168.1.20"), "192.168.1.7");
    assert_string_equal(address_towards(&inventory, "10.8.0.1"), "10.8.0.2");
    assert_string_equal(address_towards(&inventory, "fd00:1::20"), "fd00:1::7");
    assert_string_equal(address_towards(&inventory, "::ffff:192.168.1.20"), "192.168.1.7");
    assert_null(address_towards(&inventory, "nonsense"));
    assert_null(address_towards(NULL, "192.168.1.20"));
    inventory.n_interfaces = 0;
    assert_null(address_towards(&inventory, "192.168.1.20"));
    assert_false(address_has_routable("127.0.0.1", &inventory));
    assert_true(address_has_routable("10.0.0.1", &inventory));
    inventory.n_interfaces = 1;
    assert_true(address_has_routable("127.0.0.1", &inventory));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loopback_is_told_from_the_rest),
        cmocka_unit_test(what_the_manager_saw_beats_loopback),
        cmocka_unit_test(the_interface_towards_the_other_is_chosen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
