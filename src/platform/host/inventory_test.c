#include "platform/host/inventory.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "platform/os/fake_tree_test.h"
#include "platform/os/os_file.h"

static char root[64];
static inventory_t inventory;

static void put(const char *path, const char *text)
{
    fake_tree_put(root, path, text);
}

static int make_root(void **state)
{
    (void)state;
    strcpy(root, "/tmp/inspan-inventory-XXXXXX");
    return mkdtemp(root) == NULL;
}

static int remove_root(void **state)
{
    (void)state;
    return os_remove_all(root, NULL) != INSPAN_OK;
}

static void test_this_machine(void **state)
{
    (void)state;
    inventory_read("", "/tmp", &inventory);
    char name[128] = "";
    gethostname(name, sizeof name - 1);
    assert_string_equal(inventory.hostname, name);
    assert_true(inventory.cores >= 1);
    assert_true(inventory.usable_cores > 0 && inventory.usable_cores <= inventory.cores);
    assert_true(inventory.memory_bytes > 1000000);
    assert_true(inventory.memory_free_bytes <= inventory.memory_bytes);
    assert_true(inventory.disk_free_bytes > 0);
    assert_true(strlen(inventory.boot_id) == 36);
    for (uint32_t i = 0; i < inventory.n_interfaces; i++) {
        assert_string_not_equal(inventory.interfaces[i].name, "lo");
        assert_true(inventory.interfaces[i].n_addresses > 0);
    }
}

static void test_nothing_to_read(void **state)
{
    (void)state;
    inventory_read(root, "/no/such/folder", &inventory);
    assert_int_equal(inventory.n_gpus, 0);
    assert_int_equal(inventory.disk_free_bytes, 0);
    assert_false(inventory.has_battery);
    assert_true(inventory.usable_cores >= 1);
}

static void test_laptop(void **state)
{
    (void)state;
    put("/etc/machine-id", "abc\n");
    put("/etc/os-release", "NAME=Debian\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n");
    put("/proc/cpuinfo", "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\ncpu MHz\t\t: 1800.5\n"
                         "flags\t\t: fpu sse2 avx avx2 fma avx512foo\n\nprocessor\t: 1\n");
    put("/proc/meminfo", "MemTotal:       16000 kB\nMemFree:  1 kB\nMemAvailable:    8000 kB\n");
    put("/proc/self/mounts", "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n");
    put("/proc/self/cgroup", "0::/a\n");
    put("/sys/fs/cgroup/a/cpu.max", "8000 20000\n");
    put("/sys/fs/cgroup/a/memory.max", "10000000\n");
    put("/sys/fs/cgroup/a/memory.current", "9000000\n");
    put("/sys/class/power_supply/AC/type", "Mains\n");
    put("/sys/class/power_supply/BAT0/type", "Battery\n");
    put("/sys/class/power_supply/BAT0/status", "Discharging\n");
    put("/sys/class/power_supply/BAT0/capacity", "37\n");
    put("/sys/class/power_supply/mouse/type", "Battery\n");
    put("/sys/class/power_supply/mouse/scope", "Device\n");
    put("/sys/class/power_supply/mouse/capacity", "3\n");
    put("/sys/class/drm/card0/device/vendor", "0x1002\n");
    put("/sys/class/drm/card0/device/device", "0x744c\n");
    put("/sys/class/drm/card0/device/mem_info_vram_total", "25753026560\n");
    put("/sys/class/drm/card0/device/uevent", "DRIVER=amdgpu\nPCI_CLASS=30000\n");
    put("/sys/class/drm/card0-DP-1/status", "connected\n");
    put("/sys/class/drm/card1/device/vendor", "0x1a03\n"); /* a server's video chip */
    put("/proc/driver/nvidia/gpus/0000:01:00.0/information", "Model: \t\t NVIDIA GeForce RTX 3060\nIRQ: 1\n");
    inventory_read(root, "/tmp", &inventory);
    assert_string_equal(inventory.machine_id, "abc");
    assert_string_equal(inventory.os, "Debian GNU/Linux 12 (bookworm)");
    assert_string_equal(inventory.cpu_model, "Some CPU @ 2 GHz");
    assert_int_equal(inventory.n_instruction_sets, 4);
    assert_string_equal(inventory.instruction_sets[3], "avx2");
    assert_true(inventory.usable_cores == 0.4);
    assert_int_equal(inventory.memory_bytes, 10000000);
    assert_int_equal(inventory.memory_free_bytes, 1000000);
    assert_true(inventory.has_battery && inventory.on_battery);
    assert_true(fabs(inventory.battery_share - 0.37) < 1e-9);
    assert_int_equal(inventory.n_gpus, 2);
    assert_string_equal(inventory.gpus[0].name, "NVIDIA GeForce RTX 3060");
    assert_string_equal(inventory.gpus[1].name, "AMD GPU 0x744c");
    assert_string_equal(inventory.gpus[1].driver, "amdgpu");
    assert_int_equal(inventory.gpus[1].memory_bytes, 25753026560);
}

static void test_threads(void **state)
{
    (void)state;
    assert_int_equal(inventory_threads(0.2), 1);
    assert_int_equal(inventory_threads(1.9), 1);
    assert_int_equal(inventory_threads(1.9999999), 2);
    assert_int_equal(inventory_threads(2), 2);
    assert_int_equal(inventory_threads(7.99), 7);
    assert_int_equal(inventory_threads(0), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_this_machine),
        cmocka_unit_test_setup_teardown(test_nothing_to_read, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_laptop, make_root, remove_root),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
