#include "platform/os/os_cgroup.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "platform/os/fake_tree_test.h"
#include "platform/os/os_file.h"

static char root[64];

static void put(const char *path, const char *text)
{
    fake_tree_put(root, path, text);
}

static int make_root(void **state)
{
    (void)state;
    strcpy(root, "/tmp/inspan-cgroup-XXXXXX");
    return mkdtemp(root) == NULL;
}

static int remove_root(void **state)
{
    (void)state;
    return os_remove_all(root, NULL) != INSPAN_OK;
}

static void test_nothing_there(void **state)
{
    (void)state;
    uint64_t kills;
    assert_true(isinf(os_cgroup_cores(root, 0)));
    assert_true(os_cgroup_memory_limit(root, 0) == UINT64_MAX);
    assert_int_equal(os_cgroup_memory_used(root, 0), 0);
    assert_false(os_cgroup_oom_kills(root, 0, &kills));
}

static void test_v2_takes_the_least_on_the_way_up(void **state)
{
    (void)state;
    put("/proc/self/mounts", "proc /proc proc rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n");
    put("/proc/12/cgroup", "0::/user.slice/app.scope\n");
    put("/sys/fs/cgroup/user.slice/app.scope/cpu.max", "max 100000\n");
    put("/sys/fs/cgroup/user.slice/cpu.max", "150000 100000\n");
    put("/sys/fs/cgroup/user.slice/app.scope/memory.max", "max\n");
    put("/sys/fs/cgroup/user.slice/memory.max", "300000000\n");
    put("/sys/fs/cgroup/user.slice/memory.current", "1000\n");
    put("/sys/fs/cgroup/user.slice/app.scope/memory.events", "low 0\nhigh 0\nmax 3\noom 2\noom_kill 2\n");
    uint64_t kills = 0;
    assert_true(os_cgroup_cores(root, 12) == 1.5);
    assert_int_equal(os_cgroup_memory_limit(root, 12), 300000000);
    assert_int_equal(os_cgroup_memory_used(root, 12), 1000);
    assert_true(os_cgroup_oom_kills(root, 12, &kills));
    assert_int_equal(kills, 2);
    assert_true(isinf(os_cgroup_cores(root, 13))); /* no such process */
}

static void test_v1_and_hybrid(void **state)
{
    (void)state;
    put("/proc/self/mounts", "cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\n"
                             "cgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0\n"
                             "cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n"
                             "cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n");
    put("/proc/self/cgroup", "4:cpuset:/other\n3:cpu,cpuacct:/lab/m0\n2:memory:/not/here\n0::/\n");
    put("/sys/fs/cgroup/cpu,cpuacct/lab/m0/cpu.cfs_quota_us", "4000\n");
    put("/sys/fs/cgroup/cpu,cpuacct/lab/m0/cpu.cfs_period_us", "20000\n");
    put("/sys/fs/cgroup/cpu,cpuacct/lab/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/cpu,cpuacct/lab/cpu.cfs_period_us", "100000\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    uint64_t kills;
    assert_true(os_cgroup_cores(root, 0) == 0.2);
    assert_true(os_cgroup_memory_limit(root, 0) == UINT64_MAX); /* v1's way to say none */
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "500\n");
    assert_int_equal(os_cgroup_memory_limit(root, 0),
                     500); /* the path is of another namespace: the mount's root */
    assert_false(os_cgroup_oom_kills(root, 0, &kills));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_nothing_there, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_v2_takes_the_least_on_the_way_up, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_v1_and_hybrid, make_root, remove_root),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
