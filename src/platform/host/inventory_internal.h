/* Shared by the parts of the inventory and the vitals. All read below `root`. */
#ifndef HOST_INVENTORY_INTERNAL_H
#define HOST_INVENTORY_INTERNAL_H

#include "platform/host/inventory.h"

char *inventory_file(const char *root, const char *path); /* the caller frees; NULL: none */
bool inventory_line(const char *root, const char *path, char *out, size_t size); /* its first line */
double inventory_number(const char *root, const char *path, double fallback);

void inventory_read_gpus(const char *root, inventory_t *inventory);
void inventory_read_interfaces(const char *root, inventory_t *inventory);
void inventory_read_battery(const char *root, inventory_t *inventory);

/* Bytes: of all of it, and what a new process can get. */
void inventory_read_memory(const char *root, uint64_t *total, uint64_t *available);
/* Cores online, and how many of them this process (not its calling thread alone) may use. */
double inventory_affinity(uint32_t *online);

#endif
