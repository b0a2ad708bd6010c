#include "platform/os/os_socket.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static void addresses(void **state)
{
    (void)state;
    os_address_t address;
    char text[OS_ADDRESS_MAX];
    assert_int_equal(os_address_parse("10.1.2.3", 7500, &address), INSPAN_OK);
    assert_string_equal(os_address_format(&address, text, sizeof text), "10.1.2.3:7500");
    assert_int_equal(os_address_parse("::1", 65535, &address), INSPAN_OK);
    assert_string_equal(os_address_format(&address, text, sizeof text), "[::1]:65535");
    assert_int_equal(os_address_parse("fe80::2%lo", 1, &address), INSPAN_OK);
    assert_string_equal(os_address_format(&address, text, sizeof text), "[fe80::2%lo]:1");
    assert_int_equal(os_address_parse("::ffff:10.0.0.9", 5, &address), INSPAN_OK);
    assert_string_equal(os_address_format(&address, text, sizeof text), "10.0.0.9:5");
    const char *wrong[] = {"localhost", "10.0.0.256", "[::1]", "10.0.0.1:80", "fe80::1%nosuchif0"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_int_equal(os_address_parse(wrong[i], 1, &address), INSPAN_INVALID);
    assert_int_equal(os_address_parse("fe80::2%lo", 1, &address), INSPAN_OK);
    assert_string_equal(os_address_host(&address, text, sizeof text), "fe80::2%lo");
    assert_int_equal(os_address_parse("::ffff:10.0.0.9", 5, &address), INSPAN_OK);
    assert_string_equal(os_address_host(&address, text, sizeof text), "10.0.0.9");
    memset(&address, 0, sizeof address);
    assert_string_equal(os_address_format(&address, text, sizeof text), "?");
    assert_string_equal(os_address_host(&address, text, sizeof text), "?");
}

static void targets(void **state)
{
    (void)state;
    static const struct {
        const char *text, *host;
        uint16_t port; /* where 7461 is the default */
    } right[] = {{"host", "host", 7461},
                 {"host:80", "host", 80},
                 {"my-host_2.lan", "my-host_2.lan", 7461},
                 {"192.168.1.5:65535", "192.168.1.5", 65535},
                 {"::1", "::1", 7461},
                 {"[::1]", "::1", 7461},
                 {"[fe80::1%eth0]:9", "fe80::1%eth0", 9},
                 {"fe80::1%eth0", "fe80::1%eth0", 7461}};
    static const char *const wrong[] = {"",        ":80",   "host:",    "host:0",   "host:65536",
                                        "host:x",  "[::1",  "[::1]80",  "[]:80",    "a b",
                                        "unix:/x", "a/b",   "h:-1",     "dns:///x", "h: 80",
                                        "[::1]:x", "h:80x", "h:000080", "h:+1",     "\x1b[31m"};
    os_target_t target;
    inspan_error_t err;
    for (size_t i = 0; i < sizeof right / sizeof right[0]; i++) {
        assert_int_equal(os_target_parse(right[i].text, 7461, &target, &err), INSPAN_OK);
        assert_string_equal(target.host, right[i].host);
        assert_int_equal(target.port, right[i].port);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        if (os_target_parse(wrong[i], 7461, &target, &err) != INSPAN_INVALID)
            fail_msg("\"%s\" became %s and %u", wrong[i], target.host, target.port);
    assert_int_equal(os_target_parse("host:0", 0, &target, &err), INSPAN_OK);
    char longest[OS_HOST_MAX + 1];
    memset(longest, 'a', sizeof longest);
    longest[OS_HOST_MAX] = '\0';
    assert_int_equal(os_target_parse(longest, 1, &target, &err), INSPAN_INVALID);
    longest[OS_HOST_MAX - 1] = '\0';
    assert_int_equal(os_target_parse(longest, 1, &target, &err), INSPAN_OK);
    assert_string_equal(target.host, longest);
}

static void source_of_a_route(void **state)
{
    (void)state;
    os_address_t to, source;
    char text[OS_ADDRESS_MAX];
    assert_int_equal(os_address_parse("127.0.0.2", 9, &to), INSPAN_OK);
    assert_int_equal(os_source_towards(&to, &source), 0);
    assert_string_equal(os_address_host(&source, text, sizeof text), "127.0.0.1");
    memset(&to, 0, sizeof to);
    to.storage.ss_family = 255; /* no such family */
    assert_int_not_equal(os_source_towards(&to, &source), 0);
}

/* The error of a connect when it is decided: 0 or an errno; -1: not within 5 s. */
static int decided(int fd)
{
    struct pollfd poller = {.fd = fd, .events = POLLOUT};
    return poll(&poller, 1, 5000) == 1 ? os_socket_error(fd) : -1;
}

static void listen_and_connect(const char *host)
{
    int listener = -1, fd = -1, peer = -1;
    uint16_t port = 0;
    assert_int_equal(os_listen(0, 0, 8, &listener, &port, NULL), INSPAN_OK);
    assert_true(port != 0);
    assert_true(fcntl(listener, F_GETFD) & FD_CLOEXEC);
    os_address_t to, from;
    assert_int_equal(os_address_parse(host, port, &to), INSPAN_OK);
    assert_int_equal(os_connect(&to, &fd, NULL), INSPAN_OK);
    assert_int_equal(decided(fd), 0);
    struct pollfd poller = {.fd = listener, .events = POLLIN};
    assert_int_equal(poll(&poller, 1, 5000), 1);
    peer = os_accept(listener, &from);
    assert_true(peer >= 0 && (fcntl(peer, F_GETFD) & FD_CLOEXEC) && (fcntl(peer, F_GETFL) & O_NONBLOCK));
    char text[OS_ADDRESS_MAX];
    os_address_format(&from, text, sizeof text);
    assert_memory_equal(text, strchr(host, ':') ? "[::1]" : "127.0.0.1", strchr(host, ':') ? 5 : 9);
    os_socket_tune(fd, 3000000000, 131072);
    assert_int_equal(os_accept(listener, &from), -1); /* none more */

    inspan_error_t err; /* taken, alone and in a range of which it is all */
    int other = -1;
    uint16_t other_port = 0;
    assert_int_equal(os_listen(port, port, 8, &other, &other_port, &err), INSPAN_EXISTS);
    assert_non_null(strstr(err.text, "port"));
    assert_int_equal(os_listen(9, 8, 8, &other, &other_port, &err), INSPAN_INVALID);
    if (port < 65535) {
        assert_int_equal(
            os_listen(port, port + 1 < 65535 ? port + 2 : port + 1, 8, &other, &other_port, &err), INSPAN_OK);
        assert_true(other_port > port);
        close(other);
    }
    close(listener);
    close(fd);
    close(peer);
    assert_int_equal(os_connect(&to, &fd, &err), INSPAN_OK);
    assert_int_equal(decided(fd), ECONNREFUSED);
    close(fd);
}

static void both_families(void **state)
{
    (void)state;
    listen_and_connect("127.0.0.1");
    int probe = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    os_address_t loopback;
    assert_int_equal(os_address_parse("::1", 0, &loopback), INSPAN_OK);
    if (probe < 0 || bind(probe, (struct sockaddr *)&loopback.storage, loopback.length) != 0)
        print_message("skipped: no IPv6 loopback here\n");
    else
        listen_and_connect("::1");
    if (probe >= 0) close(probe);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(addresses), cmocka_unit_test(targets),
                                       cmocka_unit_test(source_of_a_route), cmocka_unit_test(both_families)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
