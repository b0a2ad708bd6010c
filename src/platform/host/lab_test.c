#include "platform/host/lab.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define MACHINES 3
#define BOUND_MS 20000

/* Skip by name where the laboratory cannot run; anything else that fails is a failure. */
static void need(bool links, bool cores)
{
    inspan_error_t err = {0};
    if (lab_probe(links, cores, &err) == INSPAN_OK) return;
    print_message("skipped: %s\n", err.text);
    skip();
}

static lab_t *open_lab(const double *cores, const lab_link_t *links)
{
    lab_t *lab = NULL;
    inspan_error_t err = {0};
    lab_options_t options = {.machines = MACHINES, .cores = cores, .links = links};
    if (lab_open(&options, &lab, &err) != INSPAN_OK) fail_msg("%s", err.text);
    return lab;
}

/* Whether anything named PREFIX... is among the interfaces or in the folder. */
static bool interface_exists(const char *prefix)
{
    struct if_nameindex *list = if_nameindex();
    bool found = false;
    for (const struct if_nameindex *at = list; at != NULL && at->if_name != NULL; at++)
        found = found || strncmp(at->if_name, prefix, strlen(prefix)) == 0;
    if (list != NULL) if_freenameindex(list);
    return found;
}

static bool entry_exists(const char *folder_name, const char *prefix)
{
    DIR *folder = opendir(folder_name);
    bool found = false;
    const struct dirent *entry;
    while (folder != NULL && (entry = readdir(folder)) != NULL)
        found = found || strncmp(entry->d_name, prefix, strlen(prefix)) == 0;
    if (folder != NULL) closedir(folder);
    return found;
}

static void assert_nothing_left(pid_t owner, const char *groups)
{
    char name[64];
    snprintf(name, sizeof name, "isb%ld", (long)owner);
    assert_false(interface_exists(name));
    snprintf(name, sizeof name, "isv%ld", (long)owner);
    assert_false(interface_exists(name));
    snprintf(name, sizeof name, "inspan-%ld", (long)owner);
    assert_false(entry_exists("/run/netns", name));
    if (groups[0] != '\0') assert_false(entry_exists(groups, name));
    snprintf(name, sizeof name, "%ld", (long)owner);
    assert_false(entry_exists("/run/inspan-lab", name));
}

/* The folder that holds the machines' groups, from a machine's place "netns:group". */
static void groups_folder(const lab_t *lab, char *folder, size_t size)
{
    snprintf(folder, size, "%s", strchr(lab_where(lab, 0), ':') + 1);
    char *slash = strrchr(folder, '/');
    if (slash != NULL) *slash = '\0';
}

static void read_line(const char *folder, const char *name, char *line, size_t size)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "re");
    line[0] = '\0';
    if (file == NULL) return;
    if (fgets(line, (int)size, file) == NULL) line[0] = '\0';
    fclose(file);
}

/* ---- In the machines: children that exit with 0, or with the number of what went wrong ---- */

static int serve(const char *where, const char *address, int ready)
{
    if (lab_enter(where, NULL) != INSPAN_OK) return 1;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(7555)};
    int one = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    inet_pton(AF_INET, address, &at.sin_addr); /* of this machine: fails anywhere else */
    if (bind(fd, (struct sockaddr *)&at, sizeof at) != 0 || listen(fd, 4) != 0) return 2;
    if (write(ready, "x", 1) != 1) return 3;
    struct pollfd watched = {.fd = fd, .events = POLLIN};
    if (poll(&watched, 1, BOUND_MS) != 1) return 4;
    int client = accept(fd, NULL, NULL);
    return client >= 0 && write(client, "hello", 5) == 5 ? 0 : 5;
}

static int call(const char *where, const char *address)
{
    if (lab_enter(where, NULL) != INSPAN_OK) return 1;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(7555)};
    struct timeval bound = {.tv_sec = BOUND_MS / 1000};
    char text[8] = "";
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &bound, sizeof bound);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &bound, sizeof bound);
    inet_pton(AF_INET, address, &at.sin_addr);
    if (connect(fd, (struct sockaddr *)&at, sizeof at) != 0) return 6;
    return recv(fd, text, 5, MSG_WAITALL) == 5 && memcmp(text, "hello", 5) == 0 ? 0 : 7;
}

static pid_t fork_serve(const lab_t *lab, uint32_t machine, int *ready)
{
    int ends[2];
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    pid_t pid = fork();
    if (pid == 0) _exit(serve(lab_where(lab, machine), lab_address(lab, machine), ends[1]));
    close(ends[1]);
    *ready = ends[0];
    return pid;
}

static int exit_code(pid_t pid)
{
    int result;
    assert_int_equal(waitpid(pid, &result, 0), pid);
    return WIFEXITED(result) ? WEXITSTATUS(result) : 128 + WTERMSIG(result);
}

static void wait_ready(int ready)
{
    char byte;
    struct pollfd watched = {.fd = ready, .events = POLLIN};
    assert_int_equal(poll(&watched, 1, BOUND_MS), 1);
    if (read(ready, &byte, 1) != 1) fail_msg("the process inside has ended");
    close(ready);
}

/* ---- Tests ---- */

static void machines_reach_each_other(void **state)
{
    (void)state;
    need(true, false);
    const lab_link_t links[MACHINES] = {{1000000000, 1000000000}, {200000000, 100000000}, {0, 0}};
    lab_t *lab = open_lab(NULL, links);
    for (uint32_t i = 0; i < MACHINES; i++) {
        int ready = -1;
        pid_t server = fork_serve(lab, i, &ready);
        wait_ready(ready);
        pid_t client = fork();
        if (client == 0) _exit(call(lab_where(lab, (i + 1) % MACHINES), lab_address(lab, i)));
        assert_int_equal(exit_code(client), 0);
        assert_int_equal(exit_code(server), 0);
    }
    int ready = -1; /* and this process, outside, by the bridge */
    pid_t server = fork_serve(lab, 0, &ready);
    wait_ready(ready);
    assert_int_equal(call("-:-", lab_address(lab, 0)), 0);
    assert_int_equal(exit_code(server), 0);
    assert_string_not_equal(lab_host_address(lab), "127.0.0.1");
    lab_close(lab);
    assert_nothing_left(getpid(), "");
}

static void quotas_are_set(void **state)
{
    (void)state;
    need(false, true);
    const double cores[MACHINES] = {0.8, 0.25, 1.5};
    const char *quotas[MACHINES] = {"16000", "5000", "30000"};
    char groups[1024];
    lab_t *lab = open_lab(cores, NULL);
    groups_folder(lab, groups, sizeof groups);
    assert_string_equal(lab_address(lab, 1), "127.0.0.1");
    for (uint32_t i = 0; i < MACHINES; i++) {
        char line[128];
        const char *group = strchr(lab_where(lab, i), ':') + 1;
        read_line(group, "cpu.cfs_quota_us", line, sizeof line);
        if (line[0] == '\0') read_line(group, "cpu.max", line, sizeof line);
        assert_memory_equal(line, quotas[i], strlen(quotas[i]));
    }
    int ends[2]; /* a process inside is in the group, and is killed by close */
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    pid_t inside = fork();
    if (inside == 0) {
        if (lab_enter(lab_where(lab, 1), NULL) != INSPAN_OK || write(ends[1], "x", 1) != 1) _exit(1);
        for (;;) pause();
    }
    close(ends[1]);
    wait_ready(ends[0]);
    char line[128];
    read_line(strchr(lab_where(lab, 1), ':') + 1, "cgroup.procs", line, sizeof line);
    assert_int_equal(atol(line), inside);
    lab_close(lab);
    assert_int_equal(exit_code(inside), 128 + SIGKILL);
    assert_nothing_left(getpid(), groups);
}

static void two_laboratories_stand_side_by_side(void **state)
{
    (void)state;
    need(true, false);
    const lab_link_t links[MACHINES] = {{0, 0}, {0, 0}, {0, 0}};
    lab_t *one = open_lab(NULL, links);
    lab_t *two = open_lab(NULL, links);
    assert_string_not_equal(lab_address(one, 0), lab_address(two, 0));
    lab_close(one);
    int ready = -1; /* closing one left the other whole */
    pid_t server = fork_serve(two, 2, &ready);
    wait_ready(ready);
    assert_int_equal(call("-:-", lab_address(two, 2)), 0);
    assert_int_equal(exit_code(server), 0);
    lab_close(two);
    assert_nothing_left(getpid(), "");
}

/* What a process that lives in a machine tells of it, and what may change. */
static void a_machine_changes_while_it_is_used(void **state)
{
    (void)state;
    need(true, true);
    const lab_link_t links[MACHINES] = {{0, 0}, {200000000, 100000000}, {0, 0}};
    const double cores[MACHINES] = {0.5, 0.8, 0.5};
    lab_t *lab = open_lab(cores, links);
    lab_machine_t machine;
    lab_has_t has;
    for (uint32_t i = 0; i < 2; i++) {
        int ready = -1;
        pid_t inside = fork_serve(lab, i, &ready);
        wait_ready(ready);
        assert_int_equal(lab_machine_of(inside, &machine, NULL), INSPAN_OK);
        assert_memory_equal(machine.network, lab_where(lab, i), strlen(machine.network));
        assert_string_equal(machine.group, strchr(lab_where(lab, i), ':') + 1);
        assert_int_equal(lab_machine_look(&machine, &has, NULL), INSPAN_OK);
        assert_true(has.cores == cores[i] && has.throttled >= 0 && has.throttled <= 1 && !has.cut);
        assert_memory_equal(&has.link, &links[i], sizeof has.link);

        const lab_link_t slow = {10000000, 20000000};
        assert_int_equal(lab_machine_set_cores(&machine, 0.3, NULL), INSPAN_OK);
        assert_int_equal(lab_machine_set_link(&machine, &slow, NULL),
                         INSPAN_OK); /* also where it was not shaped */
        assert_int_equal(lab_link_set(machine.device, false, NULL), INSPAN_OK);
        assert_int_equal(lab_machine_look(&machine, &has, NULL), INSPAN_OK);
        assert_true(has.cores == 0.3 && has.cut);
        assert_memory_equal(&has.link, &slow, sizeof slow);
        assert_int_equal(lab_machine_set_cores(&machine, 0.01, NULL), INSPAN_INVALID);
        assert_int_equal(lab_link_set(machine.device, true, NULL), INSPAN_OK);
        kill(inside, SIGKILL);
        assert_int_equal(exit_code(inside), 128 + SIGKILL);
    }
    inspan_error_t err = {0};
    assert_int_equal(lab_machine_of(getpid(), &machine, &err), INSPAN_NOT_FOUND);
    assert_int_equal(lab_machine_set_cores(&machine, 1, &err), INSPAN_NOT_FOUND);
    assert_int_equal(lab_machine_set_link(&machine, &links[1], &err), INSPAN_NOT_FOUND);
    assert_int_equal(lab_machine_of(0, &machine, &err), INSPAN_IO);
    lab_close(lab);
}

/* An owner that is killed, with a process of its still inside: the next start removes all of it. */
static void leftovers_of_the_dead_are_removed(void **state)
{
    (void)state;
    need(true, true);
    const lab_link_t links[MACHINES] = {{0, 0}, {0, 0}, {0, 0}};
    const double cores[MACHINES] = {0.5, 0.5, 0.5};
    int ends[2];
    pid_t inside = 0;
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    pid_t owner = fork();
    if (owner == 0) {
        lab_t *lab = NULL;
        lab_options_t options = {.machines = MACHINES, .cores = cores, .links = links};
        if (lab_open(&options, &lab, NULL) != INSPAN_OK) _exit(1);
        pid_t child = fork();
        if (child == 0) {
            close_range(3, ~0u, 0); /* as an exec does: the owner's lock is not inherited */
            if (lab_enter(lab_where(lab, 0), NULL) != INSPAN_OK) _exit(1);
            for (;;) pause();
        }
        if (write(ends[1], &child, sizeof child) != (ssize_t)sizeof child) _exit(1);
        for (;;) pause();
    }
    close(ends[1]);
    struct pollfd watched = {.fd = ends[0], .events = POLLIN};
    assert_int_equal(poll(&watched, 1, BOUND_MS), 1);
    assert_int_equal(read(ends[0], &inside, sizeof inside), sizeof inside);
    close(ends[0]);
    kill(owner, SIGKILL);
    assert_int_equal(exit_code(owner), 128 + SIGKILL);

    char groups[1024], name[32];
    snprintf(name, sizeof name, "isb%ld", (long)owner);
    assert_true(interface_exists(name));
    lab_t *lab = open_lab(cores, NULL);
    groups_folder(lab, groups, sizeof groups);
    assert_nothing_left(owner, groups);
    lab_close(lab);
    assert_nothing_left(getpid(), groups);
}

static void what_the_user_writes(void **state)
{
    (void)state;
    double cores[4];
    lab_link_t links[4];
    inspan_error_t err = {0};
    assert_int_equal(lab_parse_cores("0.8,0.4,2", 3, cores, &err), INSPAN_OK);
    assert_true(cores[0] == 0.8 && cores[1] == 0.4 && cores[2] == 2);
    assert_int_equal(lab_parse_cores("0.5", 4, cores, &err), INSPAN_OK);
    assert_true(cores[0] == 0.5 && cores[3] == 0.5);
    const char *wrong_cores[] = {"",       ",",     "0.5,0.5", "0.5,,1",  "x,1,1", "0.5 ,1,1",
                                 "-1,1,1", "0,1,1", "nan,1,1", "1e9,1,1", "1,1,1,"};
    for (size_t i = 0; i < sizeof wrong_cores / sizeof wrong_cores[0]; i++)
        assert_int_equal(lab_parse_cores(wrong_cores[i], 3, cores, &err), INSPAN_INVALID);

    assert_int_equal(lab_parse_links("1gbit,200mbit/100mbit", 2, links, &err), INSPAN_OK);
    assert_true(links[0].up_bits_per_s == 1000000000 && links[0].down_bits_per_s == 1000000000);
    assert_true(links[1].up_bits_per_s == 200000000 && links[1].down_bits_per_s == 100000000);
    assert_int_equal(lab_parse_links("10mbit/20mbit", 4, links, &err), INSPAN_OK);
    assert_true(links[3].up_bits_per_s == 10000000 && links[3].down_bits_per_s == 20000000);
    const char *wrong_links[] = {
        "", "1", "1gbit,1gbit,1gbit", "1gbit/,1gbit", "/1gbit,1gbit", "1gb,1gbit", "1gbit/1gbit/1gbit,1gbit"};
    for (size_t i = 0; i < sizeof wrong_links / sizeof wrong_links[0]; i++)
        assert_int_equal(lab_parse_links(wrong_links[i], 2, links, &err), INSPAN_INVALID);
    assert_int_equal(lab_parse_links("1gbit,fast", 2, links, &err), INSPAN_INVALID);
    assert_non_null(strstr(err.text, "machine 1"));
}

static void nothing_asked_needs_no_root(void **state)
{
    (void)state;
    lab_t *lab = open_lab(NULL, NULL);
    assert_string_equal(lab_host_address(lab), "127.0.0.1");
    assert_string_equal(lab_address(lab, 2), "127.0.0.1");
    assert_int_equal(lab_enter(lab_where(lab, 2), NULL), INSPAN_OK);
    lab_close(lab);
    inspan_error_t err = {0};
    assert_int_equal(lab_enter("", &err), INSPAN_INVALID);
    assert_int_equal(lab_enter("a", &err), INSPAN_INVALID);
    assert_int_equal(lab_enter(":-", &err), INSPAN_INVALID);
    assert_int_equal(lab_enter("a:", &err), INSPAN_INVALID);
    assert_int_equal(lab_enter("../x:-", &err), INSPAN_INVALID);
    assert_int_equal(lab_enter("no-such-machine:-", &err), INSPAN_IO);
    lab_options_t none = {.machines = 0}, many = {.machines = 65};
    assert_int_equal(lab_open(&none, &lab, &err), INSPAN_INVALID);
    assert_int_equal(lab_open(&many, &lab, &err), INSPAN_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_the_user_writes),
        cmocka_unit_test(nothing_asked_needs_no_root),
        cmocka_unit_test(machines_reach_each_other),
        cmocka_unit_test(quotas_are_set),
        cmocka_unit_test(two_laboratories_stand_side_by_side),
        cmocka_unit_test(a_machine_changes_while_it_is_used),
        cmocka_unit_test(leftovers_of_the_dead_are_removed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
