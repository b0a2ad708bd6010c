#include "platform/host/vitals.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "platform/os/fake_tree_test.h"
#include "platform/os/os_file.h"
#include "platform/os/os_time.h"

#define S NS_PER_S

static char root[64];
static vitals_sampler_t *sampler;

static void put(const char *path, const char *text)
{
    fake_tree_put(root, path, text);
}

static int make_root(void **state)
{
    (void)state;
    strcpy(root, "/tmp/inspan-vitals-XXXXXX");
    if (mkdtemp(root) == NULL) return 1;
    sampler = vitals_open(root);
    return sampler == NULL;
}

static int remove_root(void **state)
{
    (void)state;
    vitals_close(sampler);
    return os_remove_all(root, NULL) != INSPAN_OK;
}

static vitals_t sample(ns_t now)
{
    vitals_t vitals;
    vitals_sample(sampler, now, NULL, 0, &vitals);
    return vitals;
}

static bool near(double a, double b)
{
    return fabs(a - b) < 1e-9;
}

static void test_this_machine(void **state)
{
    (void)state;
    vitals_sampler_t *own = vitals_open("");
    vitals_t vitals;
    const pid_t self = getpid();
    assert_non_null(own);
    vitals_sample(own, os_now(), &self, 1, &vitals);
    assert_true(vitals.cores > 0);
    assert_true(vitals.memory_free_bytes > 0);
    vitals_sample(own, os_now() + S, &self, 1, &vitals); /* as if a second later */
    assert_true(vitals.others_cores >= 0);
    assert_true(vitals.throttled >= 0 && vitals.throttled <= 1);
    vitals_close(own);
}

static void test_nothing_to_read(void **state)
{
    (void)state;
    for (int i = 1; i <= 2; i++) {
        const vitals_t vitals = sample(i * S);
        assert_true(vitals.cores >= 1);
        assert_true(vitals.throttled == 0 && vitals.clock_mhz == 0 && vitals.clock_best_mhz == 0);
        assert_true(vitals.temperature_c == 0 && vitals.load == 0 && vitals.memory_free_bytes == 0);
        assert_true(isnan(vitals.others_cores) && isnan(vitals.swap_bytes_per_s));
        assert_false(vitals.on_battery || vitals.owner_active);
    }
}

static void quota_test(const char *group, const char *quota_file, const char *full, const char *cut)
{
    char stat[128], file[128];
    snprintf(stat, sizeof stat, "%s/cpu.stat", group);
    snprintf(file, sizeof file, "%s/%s", group, quota_file);
    put(file, full);
    put(stat, "nr_periods 100\nnr_throttled 10\nthrottled_time 5\n");
    vitals_t vitals = sample(S);
    assert_true(near(vitals.cores, 0.8));
    assert_true(vitals.throttled == 0); /* no sample before */
    put(file, cut);
    put(stat, "nr_periods 150\nnr_throttled 50\nthrottled_time 500\n");
    vitals = sample(2 * S);
    assert_true(near(vitals.cores, 0.24));
    assert_true(near(vitals.throttled, 0.8));
    vitals = sample(3 * S); /* idle: no periods */
    assert_true(vitals.throttled == 0);
    put(stat, "nr_periods 10\nnr_throttled 4\n"); /* another group: it began anew */
    assert_true(sample(4 * S).throttled == 0);
}

static void test_quota_v1(void **state)
{
    (void)state;
    put("/proc/self/mounts", "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu,cpuacct 0 0\n");
    put("/proc/self/cgroup", "4:cpu,cpuacct:/lab/a\n");
    put("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/cpu/lab/a/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/cpu/lab/cpu.cfs_period_us", "20000\n");
    quota_test("/sys/fs/cgroup/cpu/lab", "cpu.cfs_quota_us", "16000\n", "4800\n");
}

static void test_quota_v2(void **state)
{
    (void)state;
    put("/proc/self/mounts", "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n");
    put("/proc/self/cgroup", "0::/lab/a\n");
    put("/sys/fs/cgroup/lab/cpu.max", "max 100000\n");
    quota_test("/sys/fs/cgroup/lab/a", "cpu.max", "16000 20000\n", "4800 20000\n");
}

static void put_process(pid_t pid, int user, int system)
{
    char path[64], text[256];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    snprintf(text, sizeof text, "%d (a) odd) name) S 1 7 7 0 -1 4194304 1 2 3 4 %d %d 20 5 20 0 3 0 99\n",
             (int)pid, user, system);
    put(path, text);
}

static void test_other_programs(void **state)
{
    (void)state;
    const double ticks = (double)sysconf(_SC_CLK_TCK);
    const pid_t workers[] = {41, 42};
    char text[160];
    vitals_t vitals;
    put_process(41, 100, 10);
    put("/proc/stat", "cpu  1000 10 100 5000 60 5 5 20 0 0\ncpu0 1 1\n");
    vitals_sample(sampler, S, workers, 1, &vitals);
    assert_true(isnan(vitals.others_cores)); /* a rate needs two samples */
    put_process(41, 100 + (int)(1.5 * ticks), 10);
    snprintf(text, sizeof text, "cpu  %d 10 100 9000 70 5 5 %d 0 0\n", 1000 + (int)(2 * ticks),
             20 + (int)(0.5 * ticks));
    put("/proc/stat", text);
    vitals_sample(sampler, 3 * S, workers, 1, &vitals);
    assert_true(near(vitals.others_cores, 0.5)); /* (2 + 0.5 of a hypervisor - 1.5) s in 2 s */
    put_process(42, 700, 0);
    put("/proc/stat", "cpu  9000000 10 100 9000 70 5 5 20 0 0\n");
    vitals_sample(sampler, 4 * S, workers, 2, &vitals);
    assert_true(near(vitals.others_cores, 0.5)); /* a worker came: what it had used before is nobody's */
    put("/proc/stat", "cpu  9000000 10 100 9900 70 5 5 20 0 0\n");
    vitals_sample(sampler, 5 * S, workers, 2, &vitals);
    assert_true(vitals.others_cores == 0);
    vitals_sample(sampler, 5 * S + 1, workers, 2, &vitals); /* too soon for a rate */
    assert_true(vitals.others_cores == 0);
    put("/proc/stat", "nonsense\n");
    vitals_sample(sampler, 6 * S, workers, 2, &vitals);
    assert_true(isnan(vitals.others_cores));
}

static void test_swap(void **state)
{
    (void)state;
    put("/proc/vmstat", "nr_free_pages 7\npswpin 100\npswpout 200\npswpin_zero 9\n");
    assert_true(isnan(sample(S).swap_bytes_per_s));
    put("/proc/vmstat", "nr_free_pages 7\npswpin 110\npswpout 290\n");
    assert_true(near(sample(3 * S).swap_bytes_per_s, 50.0 * (double)sysconf(_SC_PAGESIZE)));
}

static void put_clock(int cpu, const char *khz)
{
    char path[96];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/cpufreq/scaling_cur_freq", cpu);
    put(path, khz);
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/cpufreq/cpuinfo_max_freq", cpu);
    put(path, cpu < 2 ? "4200000\n" : "3100000\n");
}

/* As many of the fastest cores as the workers keep busy: idle ones say nothing. */
static void test_clock(void **state)
{
    (void)state;
    const pid_t worker = 41;
    char text[64];
    vitals_t vitals;
    put("/proc/cpuinfo", "cpu MHz\t\t: 1800.5\ncpu MHz\t\t: 2200.25\n");
    assert_true(near(sample(S).clock_mhz, 2200.25)); /* no cpufreq here */
    put_clock(0, "800000\n");
    put_clock(1, "3000000\n");
    put_clock(3, "2000000\n"); /* cpu2 is offline */
    put_process(41, 0, 0);
    put("/proc/stat", "cpu  1 0 0 0 0 0 0 0\n");
    vitals_sample(sampler, 40 * S, &worker, 1, &vitals);
    assert_true(near(vitals.clock_mhz, 3000));
    assert_true(near(vitals.clock_best_mhz, 4200));
    const int ticks = (int)sysconf(_SC_CLK_TCK);
    put_process(41, 2 * ticks, 0);
    snprintf(text, sizeof text, "cpu  %d 0 0 0 0 0 0 0\n", 1 + 2 * ticks);
    put("/proc/stat", text);
    vitals_sample(sampler, 41 * S, &worker, 1, &vitals); /* two cores are busy */
    assert_true(near(vitals.clock_mhz, 2500));
}

static void test_temperature(void **state)
{
    (void)state;
    put("/sys/class/thermal/thermal_zone0/temp", "45000\n");
    put("/sys/class/thermal/thermal_zone1/temp", "71500\n");
    put("/sys/class/thermal/thermal_zone2/temp", "255000\n"); /* a sensor that is not wired */
    assert_true(sample(S).temperature_c == 71.5);
    put("/sys/class/thermal/thermal_zone0/temp", "81000\n");
    assert_true(sample(2 * S).temperature_c == 81);
    put("/sys/class/thermal/thermal_zone3/type", "x86_pkg_temp\n"); /* the processor's own is meant */
    put("/sys/class/thermal/thermal_zone3/temp", "60000\n");
    put("/sys/class/hwmon/hwmon4/name", "k10temp\n");
    put("/sys/class/hwmon/hwmon4/temp1_input", "63000\n");
    put("/sys/class/hwmon/hwmon5/name", "nvme\n");
    put("/sys/class/hwmon/hwmon5/temp1_input", "90000\n");
    assert_true(sample(3 * S).temperature_c == 81); /* found at the next look */
    assert_true(sample(40 * S).temperature_c == 63);
}

static void test_battery(void **state)
{
    (void)state;
    put("/sys/class/power_supply/BAT0/type", "Battery\n");
    put("/sys/class/power_supply/BAT0/status", "Charging\n");
    assert_false(sample(S).on_battery);
    put("/sys/class/power_supply/BAT0/status", "Discharging\n");
    assert_true(sample(2 * S).on_battery);
}

static void test_keyboard(void **state)
{
    (void)state;
    put("/proc/interrupts", "     CPU0 CPU1\n  1: 5 900 IO-APIC 1-edge i8042\n  9: 7 7 IO-APIC acpi\n"
                            " 51: 3 3 intel-gpio 51 SYNA2393:00\n");
    assert_false(sample(S).owner_active); /* whatever was before is not known to be recent */
    put("/proc/interrupts", "     CPU0 CPU1\n  1: 5 900 IO-APIC 1-edge i8042\n  9: 8 9 IO-APIC acpi\n"
                            " 51: 4 3 intel-gpio 51 SYNA2393:00\n");
    assert_false(sample(2 * S).owner_active); /* not known as a touchpad */
    put("/proc/interrupts", "     CPU0 CPU1\n  1: 6 900 IO-APIC 1-edge i8042\n");
    assert_true(sample(3 * S).owner_active);
    assert_true(sample(3 * S + VITALS_IN_USE - 1).owner_active);
    assert_false(sample(3 * S + VITALS_IN_USE).owner_active);
}

static void test_touchpad(void **state)
{
    (void)state;
    put("/sys/bus/i2c/drivers/i2c_hid_acpi/i2c-SYNA2393:00/name", "x\n");
    put("/proc/interrupts", " 51: 3 3 intel-gpio 51 SYNA2393:00\n");
    assert_false(sample(S).owner_active);
    put("/proc/interrupts", " 51: 3 4 intel-gpio 51 SYNA2393:00\n");
    assert_true(sample(2 * S).owner_active);
}

static void put_usb(const char *interface, const char *class, const char *protocol)
{
    char path[128];
    snprintf(path, sizeof path, "/sys/bus/usb/devices/%s/bInterfaceClass", interface);
    put(path, class);
    snprintf(path, sizeof path, "/sys/bus/usb/devices/%s/bInterfaceProtocol", interface);
    put(path, protocol);
}

static void test_usb(void **state)
{
    (void)state;
    put_usb("1-2:1.0", "03\n", "02\n"); /* a mouse */
    put_usb("1-3:1.0", "03\n", "00\n"); /* an uninterruptible power supply is HID, too */
    put_usb("1-4:1.0", "08\n", "50\n"); /* a disk */
    put("/sys/bus/usb/devices/1-2/urbnum", "30\n");
    put("/sys/bus/usb/devices/1-3/urbnum", "30\n");
    put("/sys/bus/usb/devices/1-4/urbnum", "30\n");
    assert_false(sample(S).owner_active);
    put("/sys/bus/usb/devices/1-3/urbnum", "31\n");
    put("/sys/bus/usb/devices/1-4/urbnum", "31\n");
    assert_false(sample(2 * S).owner_active);
    put("/sys/bus/usb/devices/1-2/urbnum", "31\n");
    assert_true(sample(3 * S).owner_active);
    const ns_t later = 4 * S + VITALS_IN_USE;
    put_usb("1-5:1.1", "03\n", "01\n"); /* a keyboard is plugged in: that alone is no use */
    put("/sys/bus/usb/devices/1-5/urbnum", "9\n");
    assert_false(sample(later).owner_active);
    put("/sys/bus/usb/devices/1-5/urbnum", "10\n");
    char gone[128];
    snprintf(gone, sizeof gone, "%s/sys/bus/usb/devices/1-2", root);
    assert_int_equal(os_remove_all(gone, NULL), INSPAN_OK); /* the mouse is pulled out */
    assert_true(sample(later + S).owner_active);
}

#define IN_ROOT(test) cmocka_unit_test_setup_teardown(test, make_root, remove_root)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_this_machine),
        IN_ROOT(test_nothing_to_read),
        IN_ROOT(test_quota_v1),
        IN_ROOT(test_quota_v2),
        IN_ROOT(test_other_programs),
        IN_ROOT(test_swap),
        IN_ROOT(test_clock),
        IN_ROOT(test_temperature),
        IN_ROOT(test_battery),
        IN_ROOT(test_keyboard),
        IN_ROOT(test_touchpad),
        IN_ROOT(test_usb),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
