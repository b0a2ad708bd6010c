/* GPUs, network interfaces, battery: what lies in /sys, and NVIDIA's management library where there is one.
 */
#include <arpa/inet.h>
#include <dirent.h>
#include <dlfcn.h>
#include <ifaddrs.h>
#include <limits.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "platform/host/inventory_internal.h"

/* Call fn with each name in a folder, in the order of names, so that an inventory does not change by chance.
 */
typedef void (*entry_fn)(const char *root, const char *path, const char *name, inventory_t *inventory);

static void each_entry(const char *root, const char *path, entry_fn fn, inventory_t *inventory)
{
    char full[PATH_MAX];
    snprintf(full, sizeof full, "%s%s", root, path);
    struct dirent **entries = NULL;
    int n = scandir(full, &entries, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        if (entries[i]->d_name[0] != '.') fn(root, path, entries[i]->d_name, inventory);
        free(entries[i]);
    }
    free(entries);
}

/* ---- GPUs ------------------------------------------------------------------------------------ */

static inventory_gpu_t *new_gpu(inventory_t *inventory)
{
    return inventory->n_gpus < INVENTORY_GPUS ? &inventory->gpus[inventory->n_gpus++] : NULL;
}

/* NVIDIA's library, found at run time; its numbers of functions and structures have been stable for ten
 * years. */
typedef struct nvml {
    void *library;
    int (*init)(void);
    int (*shutdown)(void);
    int (*count)(unsigned *n);
    int (*handle)(unsigned index, void **device);
    int (*name)(void *device, char *name, unsigned size);
    int (*memory)(void *device, unsigned long long memory[3]); /* total, free, used */
    int (*driver)(char *version, unsigned size);
} nvml_t;

static bool nvml_load(nvml_t *nvml)
{
    nvml->library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (nvml->library == NULL) return false;
    *(void **)&nvml->init = dlsym(nvml->library, "nvmlInit_v2");
    *(void **)&nvml->shutdown = dlsym(nvml->library, "nvmlShutdown");
    *(void **)&nvml->count = dlsym(nvml->library, "nvmlDeviceGetCount_v2");
    *(void **)&nvml->handle = dlsym(nvml->library, "nvmlDeviceGetHandleByIndex_v2");
    *(void **)&nvml->name = dlsym(nvml->library, "nvmlDeviceGetName");
    *(void **)&nvml->memory = dlsym(nvml->library, "nvmlDeviceGetMemoryInfo");
    *(void **)&nvml->driver = dlsym(nvml->library, "nvmlSystemGetDriverVersion");
    bool whole = nvml->init && nvml->shutdown && nvml->count && nvml->handle && nvml->name && nvml->memory &&
                 nvml->driver;
    if (whole && nvml->init() == 0) return true;
    dlclose(nvml->library);
    return false;
}

static bool read_nvml(inventory_t *inventory)
{
    nvml_t nvml = {.library = NULL};
    if (!nvml_load(&nvml)) return false;
    unsigned n = 0;
    char driver[32] = "";
    if (nvml.driver(driver, sizeof driver) != 0) driver[0] = '\0';
    if (nvml.count(&n) != 0) n = 0;
    for (unsigned i = 0; i < n; i++) {
        void *device = NULL;
        unsigned long long memory[3] = {0};
        inventory_gpu_t *gpu = nvml.handle(i, &device) == 0 ? new_gpu(inventory) : NULL;
        if (gpu == NULL) continue;
        if (nvml.name(device, gpu->name, sizeof gpu->name) != 0)
            snprintf(gpu->name, sizeof gpu->name, "NVIDIA GPU");
        if (nvml.memory(device, memory) == 0) gpu->memory_bytes = memory[0];
        snprintf(gpu->driver, sizeof gpu->driver, "nvidia %.24s", driver);
    }
    nvml.shutdown();
    dlclose(nvml.library);
    return n > 0;
}

/* The driver without its library: names, not sizes. */
static void add_nvidia_proc(const char *root, const char *path, const char *name, inventory_t *inventory)
{
    char file[PATH_MAX];
    snprintf(file, sizeof file, "%s/%s/information", path, name);
    char *text = inventory_file(root, file);
    inventory_gpu_t *gpu = text != NULL ? new_gpu(inventory) : NULL;
    if (gpu != NULL) {
        const char *model = strstr(text, "Model:");
        if (model != NULL) model += 6 + strspn(model + 6, " \t");
        snprintf(gpu->name, sizeof gpu->name, "%.*s", model ? (int)strcspn(model, "\n") : 10,
                 model ? model : "NVIDIA GPU");
        snprintf(gpu->driver, sizeof gpu->driver, "nvidia");
    }
    free(text);
}

/* AMD's and Intel's cards; the video chips of servers and virtual machines are none that trains. */
static void add_drm_card(const char *root, const char *path, const char *name, inventory_t *inventory)
{
    char file[PATH_MAX], vendor[16] = "", device[16] = "", *uevent;
    if (strncmp(name, "card", 4) != 0 || strchr(name, '-') != NULL) return;
    snprintf(file, sizeof file, "%s/%s/device/vendor", path, name);
    inventory_line(root, file, vendor, sizeof vendor);
    snprintf(file, sizeof file, "%s/%s/device/device", path, name);
    inventory_line(root, file, device, sizeof device);
    const char *maker = strcmp(vendor, "0x1002") == 0   ? "AMD"
                        : strcmp(vendor, "0x8086") == 0 ? "Intel"
                                                        : NULL;
    inventory_gpu_t *gpu = maker != NULL ? new_gpu(inventory) : NULL;
    if (gpu == NULL) return;
    snprintf(file, sizeof file, "%s/%s/device/product_name", path, name);
    if (!inventory_line(root, file, gpu->name, sizeof gpu->name) || gpu->name[0] == '\0')
        snprintf(gpu->name, sizeof gpu->name, "%s GPU %s", maker, device);
    snprintf(file, sizeof file, "%s/%s/device/mem_info_vram_total", path, name);
    double memory = inventory_number(root, file, 0);
    gpu->memory_bytes = memory > 0 ? (uint64_t)memory : 0;
    snprintf(file, sizeof file, "%s/%s/device/uevent", path, name);
    uevent = inventory_file(root, file);
    const char *driver = uevent != NULL ? strstr(uevent, "DRIVER=") : NULL;
    if (driver != NULL)
        snprintf(gpu->driver, sizeof gpu->driver, "%.*s", (int)strcspn(driver + 7, "\n"), driver + 7);
    free(uevent);
}

void inventory_read_gpus(const char *root, inventory_t *inventory)
{
    bool own_machine = root[0] == '\0';
    if (!own_machine || !read_nvml(inventory))
        each_entry(root, "/proc/driver/nvidia/gpus", add_nvidia_proc, inventory);
    each_entry(root, "/sys/class/drm", add_drm_card, inventory);
}

/* ---- Interfaces ------------------------------------------------------------------------------ */

static inventory_interface_t *interface_named(inventory_t *inventory, const char *name, const char *root)
{
    for (uint32_t i = 0; i < inventory->n_interfaces; i++)
        if (strcmp(inventory->interfaces[i].name, name) == 0) return &inventory->interfaces[i];
    if (inventory->n_interfaces == INVENTORY_INTERFACES || strchr(name, '/') != NULL) return NULL;
    inventory_interface_t *interface = &inventory->interfaces[inventory->n_interfaces++];
    snprintf(interface->name, sizeof interface->name, "%s", name);
    char path[128], full[PATH_MAX];
    snprintf(path, sizeof path, "/sys/class/net/%s/speed", interface->name);
    double mbit = inventory_number(root, path, -1);
    if (mbit > 0 && mbit < 1e7) interface->speed_bits_per_s = (uint64_t)(mbit * 1e6);
    snprintf(full, sizeof full, "%s/sys/class/net/%s/phy80211", root, interface->name);
    interface->wireless = access(full, F_OK) == 0;
    snprintf(full, sizeof full, "%s/sys/class/net/%s/wireless", root, interface->name);
    interface->wireless |= access(full, F_OK) == 0;
    return interface;
}

static bool numeric_address(const struct sockaddr *address, const char *name, char *out, size_t size)
{
    char text[INET6_ADDRSTRLEN];
    if (address == NULL) return false;
    if (address->sa_family == AF_INET) {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)(const void *)address;
        return inet_ntop(AF_INET, &v4->sin_addr, out, (socklen_t)size) != NULL;
    }
    if (address->sa_family != AF_INET6) return false;
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)(const void *)address;
    if (inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof text) == NULL) return false;
    bool scoped = IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr);
    snprintf(out, size, "%s%s%.16s", text, scoped ? "%" : "", scoped ? name : "");
    return true;
}

void inventory_read_interfaces(const char *root, inventory_t *inventory)
{
    struct ifaddrs *all = NULL;
    if (getifaddrs(&all) != 0) return;
    for (struct ifaddrs *at = all; at != NULL; at = at->ifa_next) {
        unsigned needed = IFF_UP | IFF_RUNNING;
        char address[64];
        if ((at->ifa_flags & needed) != needed || (at->ifa_flags & IFF_LOOPBACK) != 0) continue;
        if (!numeric_address(at->ifa_addr, at->ifa_name, address, sizeof address)) continue;
        inventory_interface_t *interface = interface_named(inventory, at->ifa_name, root);
        if (interface == NULL || interface->n_addresses == INVENTORY_ADDRESSES) continue;
        snprintf(interface->addresses[interface->n_addresses++], sizeof interface->addresses[0], "%s",
                 address);
    }
    freeifaddrs(all);
}

/* ---- Battery --------------------------------------------------------------------------------- */

/* Batteries of mice and keyboards have scope Device. On battery: one that supplies the machine is being
 * emptied. */
static void add_supply(const char *root, const char *path, const char *name, inventory_t *inventory)
{
    char file[PATH_MAX], type[32] = "", scope[32] = "", status[32] = "";
    snprintf(file, sizeof file, "%s/%s/type", path, name);
    inventory_line(root, file, type, sizeof type);
    snprintf(file, sizeof file, "%s/%s/scope", path, name);
    inventory_line(root, file, scope, sizeof scope);
    if (strcmp(type, "Battery") != 0 || strcmp(scope, "Device") == 0) return;
    snprintf(file, sizeof file, "%s/%s/status", path, name);
    inventory_line(root, file, status, sizeof status);
    snprintf(file, sizeof file, "%s/%s/capacity", path, name);
    double share = inventory_number(root, file, 0) / 100;
    if (!inventory->has_battery || share < inventory->battery_share) inventory->battery_share = share;
    inventory->has_battery = true;
    inventory->on_battery |= strcmp(status, "Discharging") == 0;
}

void inventory_read_battery(const char *root, inventory_t *inventory)
{
    each_entry(root, "/sys/class/power_supply", add_supply, inventory);
}
