/*
 * What this machine has and may use: read once when an agent registers; what changes while it works is in
 * vitals.h. `root` is put before /proc, /sys and /etc: "" in production, a folder in tests. What cannot be
 * found out stays zero or empty.
 */
#ifndef HOST_INVENTORY_H
#define HOST_INVENTORY_H

#include <stdbool.h>
#include <stdint.h>

#include <inspan/status.h>

enum { INVENTORY_GPUS = 16, INVENTORY_INTERFACES = 32, INVENTORY_ADDRESSES = 8, INVENTORY_SETS = 24 };

typedef struct inventory_gpu {
    char name[96], driver[32];
    uint64_t memory_bytes;
} inventory_gpu_t;

typedef struct inventory_interface {
    char name[32];
    char addresses[INVENTORY_ADDRESSES][64]; /* numeric, link-local ones with %scope */
    uint32_t n_addresses;
    uint64_t speed_bits_per_s; /* 0: unknown (Wi-Fi, virtual) */
    bool wireless;
} inventory_interface_t;

typedef struct inventory {
    char hostname[128], machine_id[64], boot_id[64], os[128], cpu_model[128], architecture[32];
    uint32_t cores;                            /* logical ones of the machine that are online */
    double usable_cores;                       /* least of them, the affinity and the control groups' quota */
    char instruction_sets[INVENTORY_SETS][16]; /* those that kernels are chosen by */
    uint32_t n_instruction_sets;
    uint64_t memory_bytes;      /* least of the machine's and the control groups' limit */
    uint64_t memory_free_bytes; /* that a new process can get */
    uint64_t disk_free_bytes;   /* where `folder` is */
    inventory_gpu_t gpus[INVENTORY_GPUS];
    uint32_t n_gpus;
    inventory_interface_t interfaces[INVENTORY_INTERFACES]; /* up, with an address, no loopback */
    uint32_t n_interfaces;
    bool has_battery, on_battery;
    double battery_share; /* 0..1 */
} inventory_t;

void inventory_read(const char *root, const char *folder, inventory_t *inventory);

/* Worker threads for that many usable cores: at least one, never more than there is quota for. */
uint32_t inventory_threads(double usable_cores);

#endif
