/* Quotas against a fake tree: files are only written to, so what the kernel would do is put there by hand. */
#include "platform/host/lab_parts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "platform/os/fake_tree_test.h"
#include "platform/os/os_file.h"

static char root[64];

static int make_root(void **state)
{
    (void)state;
    strcpy(root, "/tmp/inspan-lab-XXXXXX");
    return mkdtemp(root) == NULL;
}

static int remove_root(void **state)
{
    (void)state;
    return os_remove_all(root, NULL) != INSPAN_OK;
}

static const char *at(const char *path)
{
    static char full[4][600];
    static unsigned next;
    char *text = full[next++ % 4];
    snprintf(text, sizeof full[0], "%s%s", root, path);
    return text;
}

static void put(const char *path, const char *text)
{
    fake_tree_put(root, path, text);
}

static void assert_says(const char *path, const char *expected)
{
    char *text = NULL;
    size_t bytes = 0;
    assert_int_equal(os_file_read(path[0] == '/' && strncmp(path, root, strlen(root)) == 0 ? path : at(path),
                                  4096, &text, &bytes, NULL),
                     INSPAN_OK);
    assert_string_equal(text, expected);
    free(text);
}

static bool exists(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0;
}

#define MOUNTS_V2                                                                                            \
    "22 1 0:20 / /proc rw - proc proc rw\n30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n"

static void find(lab_cpu_t *cpu)
{
    inspan_error_t err = {0};
    if (lab_cpu_find(root, cpu, &err) != INSPAN_OK) fail_msg("%s", err.text);
}

static void put_v2(const char *subtree)
{
    put("/proc/self/mountinfo", MOUNTS_V2);
    put("/proc/self/cgroup", "0::/user.slice/session-1.scope\n");
    put("/sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory pids\n");
    put("/sys/fs/cgroup/cgroup.subtree_control", subtree);
    put("/sys/fs/cgroup/user.slice/session-1.scope/cgroup.procs", "12\n");
}

/* A group of a machine with the files that the kernel would make. */
static void make(const lab_cpu_t *cpu, uint32_t machine, char group[LAB_PATH_SIZE])
{
    char file[LAB_PATH_SIZE + 32];
    assert_int_equal(lab_cpu_make(cpu, "4711a", machine, group, NULL), INSPAN_OK);
    static const char *const names[] = {"cpu.max", "cpu.max.burst", "cpu.cfs_period_us", "cpu.cfs_quota_us"};
    for (size_t i = cpu->unified ? 0 : 2; i < (cpu->unified ? 2u : 4u); i++) {
        snprintf(file, sizeof file, "%s/%s", group, names[i]);
        put(file + strlen(root), "");
    }
}

static void v2_is_handed_down_already(void **state)
{
    (void)state;
    lab_cpu_t cpu;
    char group[LAB_PATH_SIZE], file[LAB_PATH_SIZE + 32];
    put_v2("cpu memory\n");
    find(&cpu);
    assert_true(cpu.unified);
    assert_string_equal(cpu.parent, at("/sys/fs/cgroup")); /* a group with processes can have none below it */
    assert_int_equal(lab_cpu_enable(&cpu, NULL), INSPAN_OK);
    assert_says("/sys/fs/cgroup/cgroup.subtree_control", "cpu memory\n");
    make(&cpu, 2, group);
    assert_string_equal(group, at("/sys/fs/cgroup/inspan-4711a-2"));
    assert_int_equal(lab_cpu_set(true, group, 0.25, NULL), INSPAN_OK);
    snprintf(file, sizeof file, "%s/cpu.max", group);
    assert_says(file, "5000 20000"); /* a period of 20 ms */
    snprintf(file, sizeof file, "%s/cpu.max.burst", group);
    assert_says(file, "5000"); /* and what it could not use of the one before */
    inspan_error_t err = {0};
    assert_int_equal(lab_cpu_set(true, group, 0.04, &err), INSPAN_INVALID);
    assert_non_null(strstr(err.text, "at least 0.05"));
    assert_int_equal(lab_cpu_make(&cpu, "4711a", 2, group, &err), INSPAN_IO); /* there already */
}

/* The machine's own root group may keep its processes; that of a container may not. */
static void v2_is_handed_down(void **state)
{
    (void)state;
    lab_cpu_t cpu;
    put_v2("memory\n");
    put("/sys/fs/cgroup/cgroup.procs", "1\n812\n");
    find(&cpu);
    assert_says("/sys/fs/cgroup/cgroup.subtree_control", "memory\n"); /* finding changes nothing */
    assert_int_equal(lab_cpu_enable(&cpu, NULL), INSPAN_OK);
    assert_says("/sys/fs/cgroup/cgroup.subtree_control", "+cpury\n"); /* written over: only the kernel adds */
    assert_false(exists(at("/sys/fs/cgroup/inspan-others")));
}

static void v2_of_a_container_is_rid_of_its_processes(void **state)
{
    (void)state;
    lab_cpu_t cpu;
    char moved[64] = "";
    put_v2("");
    put("/sys/fs/cgroup/cgroup.type", "domain\n");
    put("/sys/fs/cgroup/cgroup.procs", "0\n1\n812\n"); /* 0: a process outside the container */
    assert_int_equal(os_mkdir_all(at("/sys/fs/cgroup/inspan-others"), 0700, NULL), INSPAN_OK);
    /* a pipe keeps every write apart from the others, as the kernel's file does */
    assert_int_equal(mkfifo(at("/sys/fs/cgroup/inspan-others/cgroup.procs"), 0600), 0);
    FILE *pipe = fopen(at("/sys/fs/cgroup/inspan-others/cgroup.procs"), "r+e");
    assert_non_null(pipe);
    find(&cpu);
    assert_int_equal(lab_cpu_enable(&cpu, NULL), INSPAN_OK);
    assert_int_equal(fread(moved, 1, 8, pipe),
                     8); /* none ever leaves this tree: they are moved again and again */
    assert_string_equal(moved, "18121812");
    fclose(pipe);
    assert_says("/sys/fs/cgroup/cgroup.subtree_control", "+cpu");
}

static void what_is_missing_is_told(void **state)
{
    (void)state;
    lab_cpu_t cpu;
    inspan_error_t err = {0};
    assert_int_equal(lab_cpu_find(root, &cpu, &err), INSPAN_UNSUPPORTED);
    put_v2("");
    put("/sys/fs/cgroup/cgroup.controllers", "memory pids\n"); /* cpu belongs to version 1, or to nobody */
    assert_int_equal(lab_cpu_find(root, &cpu, &err), INSPAN_UNSUPPORTED);
    assert_non_null(strstr(err.text, "cpu controller"));
    put_v2("");
    find(&cpu);
    assert_int_equal(unlink(at("/sys/fs/cgroup/cgroup.subtree_control")), 0);
    assert_int_equal(lab_cpu_enable(&cpu, &err), INSPAN_UNSUPPORTED);
    assert_non_null(strstr(err.text, "subtree_control"));
}

static void v1_lies_below_the_own_group(void **state)
{
    (void)state;
    lab_cpu_t cpu;
    char group[LAB_PATH_SIZE], file[LAB_PATH_SIZE + 32];
    put("/proc/self/mountinfo", "30 1 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
                                "31 1 0:27 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
                                "32 1 0:28 /docker/x /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n");
    put("/proc/self/cgroup", "3:cpuset:/elsewhere\n2:cpu,cpuacct:/docker/x/mine\n0::/\n");
    put("/sys/fs/cgroup/unified/cgroup.controllers", "\n");
    put("/sys/fs/cgroup/cpu/mine/cgroup.procs", "");
    find(&cpu);
    assert_false(cpu.unified);
    assert_string_equal(cpu.parent, at("/sys/fs/cgroup/cpu/mine"));
    assert_int_equal(lab_cpu_enable(&cpu, NULL), INSPAN_OK);
    make(&cpu, 0, group);
    assert_int_equal(lab_cpu_set(false, group, 1.5, NULL), INSPAN_OK); /* without cpu.cfs_burst_us */
    snprintf(file, sizeof file, "%s/cpu.cfs_quota_us", group);
    assert_says(file, "30000");
    snprintf(file, sizeof file, "%s/cpu.cfs_period_us", group);
    assert_says(file, "20000");
    put("/proc/self/cgroup", "2:cpu,cpuacct:/docker/xylophone\n"); /* not below what is mounted */
    find(&cpu);
    assert_string_equal(cpu.parent, at("/sys/fs/cgroup/cpu"));
}

static void a_process_tells_its_machine(void **state)
{
    (void)state;
    lab_cpu_t cpu;
    char group[LAB_PATH_SIZE], made[LAB_PATH_SIZE];
    put_v2("cpu\n");
    find(&cpu);
    make(&cpu, 1, made);
    put("/proc/77/cgroup", "3:memory:/inspan-4711a-1\n0::/inspan-4711a-1\n");
    put("/proc/78/cgroup", "0::/inspan-others\n");
    put("/proc/79/cgroup", "0::/inspan-4711a-3\n"); /* gone meanwhile */
    put("/proc/80/cgroup", "0::/\n");
    assert_true(lab_cpu_group_of(root, &cpu, 77, group));
    assert_string_equal(group, made);
    for (int64_t pid = 78; pid <= 81; pid++) assert_false(lab_cpu_group_of(root, &cpu, pid, group));
}

static void leftovers_are_removed(void **state)
{
    (void)state;
    lab_cpu_t cpu;
    char group[LAB_PATH_SIZE], other[LAB_PATH_SIZE];
    put_v2("cpu\n");
    find(&cpu);
    for (uint32_t machine = 0; machine < 3; machine++)
        assert_int_equal(lab_cpu_make(&cpu, "4711a", machine, group, NULL), INSPAN_OK);
    assert_int_equal(lab_cpu_make(&cpu, "4711b", 0, other, NULL), INSPAN_OK);
    lab_cpu_close(cpu.parent, "4711a");
    for (uint32_t machine = 0; machine < 3; machine++) {
        snprintf(group, sizeof group, "/sys/fs/cgroup/inspan-4711a-%u", machine);
        assert_false(exists(at(group)));
    }
    assert_true(exists(other)); /* another laboratory's */
    assert_true(exists(at("/sys/fs/cgroup/user.slice")));
}

/* The same for real, where this machine's cpu controller is version 2. */
static void v2_of_this_machine(void **state)
{
    (void)state;
    lab_cpu_t cpu;
    inspan_error_t err = {0};
    inspan_status_t status = lab_cpu_find("", &cpu, &err);
    if (status == INSPAN_OK && !cpu.unified)
        status = error_set(&err, INSPAN_UNSUPPORTED, "the cpu controller is version 1's on this machine");
    if (status == INSPAN_OK) status = lab_cpu_enable(&cpu, &err);
    if (status != INSPAN_OK) {
        print_message("skipped: %s\n", err.text);
        skip();
    }
    char tag[LAB_TAG_SIZE], group[LAB_PATH_SIZE], file[LAB_PATH_SIZE + 32], *text = NULL;
    size_t bytes = 0;
    snprintf(tag, sizeof tag, "%ldk", (long)getpid()); /* a letter that no laboratory takes */
    assert_int_equal(lab_cpu_make(&cpu, tag, 0, group, NULL), INSPAN_OK);
    assert_int_equal(lab_cpu_set(true, group, 0.25, NULL), INSPAN_OK);
    snprintf(file, sizeof file, "%s/cpu.max", group);
    assert_int_equal(os_file_read(file, 4096, &text, &bytes, NULL), INSPAN_OK);
    assert_string_equal(text, "5000 20000\n");
    free(text);
    snprintf(file, sizeof file, "%s/cpu.stat", group);
    assert_int_equal(os_file_read(file, 4096, &text, &bytes, NULL), INSPAN_OK);
    assert_non_null(strstr(text, "nr_throttled "));
    free(text);
    lab_cpu_close(cpu.parent, tag);
    assert_false(exists(group));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(v2_is_handed_down_already, make_root, remove_root),
        cmocka_unit_test_setup_teardown(v2_is_handed_down, make_root, remove_root),
        cmocka_unit_test_setup_teardown(v2_of_a_container_is_rid_of_its_processes, make_root, remove_root),
        cmocka_unit_test_setup_teardown(what_is_missing_is_told, make_root, remove_root),
        cmocka_unit_test_setup_teardown(v1_lies_below_the_own_group, make_root, remove_root),
        cmocka_unit_test_setup_teardown(a_process_tells_its_machine, make_root, remove_root),
        cmocka_unit_test_setup_teardown(leftovers_are_removed, make_root, remove_root),
        cmocka_unit_test(v2_of_this_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
