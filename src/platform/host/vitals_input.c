/*
 * Does somebody sit at the machine? Two counters that anyone may read grow with each report of a keyboard, a
 * mouse or a touchpad, and say nothing of what was typed: interrupts of i8042 and of i2c-hid devices, and the
 * requests (urbnum) of USB devices with a keyboard's or mouse's interface. What is not seen that way
 * (Bluetooth, remote sessions) does not count as use.
 */
#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "platform/host/inventory_internal.h"
#include "platform/host/vitals_internal.h"

static const ns_t look_period = 5 * NS_PER_S;

/* ---- Looking for them ------------------------------------------------------------------------ */

static void add_usb(vitals_sampler_t *sampler, const char *device)
{
    char path[VITALS_PATH];
    snprintf(path, sizeof path, "/sys/bus/usb/devices/%.64s/urbnum", device);
    for (uint32_t i = 0; i < sampler->n_inputs; i++)
        if (strcmp(sampler->inputs[i].path, path) == 0) return;
    if (sampler->n_inputs == VITALS_INPUTS) return;
    vitals_input_t *input = &sampler->inputs[sampler->n_inputs++];
    memcpy(input->path, path, sizeof path);
    input->count = -1;
}

/* "1-2:1.0" is an interface of device "1-2": class 03 (HID), protocol 01 (keyboard) or 02 (mouse). */
static void find_usb(vitals_sampler_t *sampler)
{
    char full[PATH_MAX];
    snprintf(full, sizeof full, "%s/sys/bus/usb/devices", sampler->root);
    DIR *folder = opendir(full);
    for (struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;) {
        char path[PATH_MAX], device[256];
        snprintf(device, sizeof device, "%s", entry->d_name);
        char *colon = strchr(device, ':');
        if (colon == NULL) continue;
        snprintf(path, sizeof path, "/sys/bus/usb/devices/%s/bInterfaceClass", entry->d_name);
        if (inventory_number(sampler->root, path, 0) != 3) continue;
        snprintf(path, sizeof path, "/sys/bus/usb/devices/%s/bInterfaceProtocol", entry->d_name);
        const double protocol = inventory_number(sampler->root, path, 0);
        *colon = '\0';
        if (protocol == 1 || protocol == 2) add_usb(sampler, device);
    }
    if (folder != NULL) closedir(folder);
}

static void add_line(vitals_sampler_t *sampler, const char *name)
{
    if (sampler->n_lines < VITALS_INPUTS)
        snprintf(sampler->lines[sampler->n_lines++], sizeof sampler->lines[0], "%s", name);
}

/* Their interrupts bear the device's name: "i2c-SYNA2393:00" is bound, "SYNA2393:00" counts. */
static void find_lines(vitals_sampler_t *sampler)
{
    static const char *const drivers[] = {"i2c_hid_acpi", "i2c_hid_of", "i2c_hid"};
    sampler->n_lines = 0;
    add_line(sampler, "i8042");
    for (size_t i = 0; i < sizeof drivers / sizeof drivers[0]; i++) {
        char full[PATH_MAX];
        snprintf(full, sizeof full, "%s/sys/bus/i2c/drivers/%s", sampler->root, drivers[i]);
        DIR *folder = opendir(full);
        for (struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;)
            if (strncmp(entry->d_name, "i2c-", 4) == 0 && strlen(entry->d_name) < sizeof sampler->lines[0])
                add_line(sampler, entry->d_name + 4);
        if (folder != NULL) closedir(folder);
    }
}

/* ---- Their counters -------------------------------------------------------------------------- */

/* A line ends with the names of its devices: "  1:  0  9  IO-APIC  1-edge  i8042". */
static bool names_one(const vitals_sampler_t *sampler, const char *line)
{
    for (uint32_t i = 0; i < sampler->n_lines; i++) {
        const size_t n = strlen(sampler->lines[i]);
        for (const char *at = line; (at = strstr(at, sampler->lines[i])) != NULL; at += n)
            if (at > line && at[-1] == ' ' && (at[n] == '\0' || at[n] == ',')) return true;
    }
    return false;
}

/* Over all cores; -1: there is no such line. */
static double read_interrupts(vitals_sampler_t *sampler)
{
    double sum = 0;
    bool found = false;
    char *rest = sampler->text;
    if (vitals_text(sampler, "/proc/interrupts") == 0) return -1;
    for (char *line; (line = strsep(&rest, "\n")) != NULL;) {
        char *at = strchr(line, ':');
        if (at == NULL || !names_one(sampler, at)) continue;
        found = true;
        for (at++;;) {
            char *end = at;
            const unsigned long long count = strtoull(at, &end, 10);
            if (end == at || (*end != ' ' && *end != '\0')) break;
            sum += (double)count;
            at = end;
        }
    }
    return found ? sum : -1;
}

/* The first look at a counter only remembers it. */
static bool grew(double *count, double now)
{
    const bool more = *count >= 0 && now > *count;
    *count = now;
    return more;
}

bool vitals_owner_active(vitals_sampler_t *sampler, ns_t now)
{
    bool used = false;
    if (sampler->inputs_at == 0 || now - sampler->inputs_at >= look_period) {
        find_usb(sampler);
        find_lines(sampler);
        sampler->inputs_at = now;
        sampler->has_lines = true;
    }
    if (sampler->has_lines) {
        const double interrupts = read_interrupts(sampler);
        sampler->has_lines = interrupts >= 0; /* until the next look: the file is long on large machines */
        used |= grew(&sampler->interrupts, interrupts);
    }
    for (uint32_t i = 0; i < sampler->n_inputs; i++) {
        const double count = inventory_number(sampler->root, sampler->inputs[i].path, -1);
        if (count < 0) { /* pulled out */
            sampler->inputs[i--] = sampler->inputs[--sampler->n_inputs];
            continue;
        }
        used |= grew(&sampler->inputs[i].count, count);
    }
    if (used) sampler->input_at = now;
    return sampler->input_at != 0 && now - sampler->input_at < VITALS_IN_USE;
}
