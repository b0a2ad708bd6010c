/* Shared by the parts of the inventory. All read below `root`. */
#ifndef HOST_INVENTORY_INTERNAL_H
#define HOST_INVENTORY_INTERNAL_H

#include "platform/host/inventory.h"

char *inventory_file(const char *root, const char *path); /* the caller frees; NULL: none */
bool inventory_line(const char *root, const char *path, char *out, size_t size); /* its first line */
double inventory_number(const char *root, const char *path, double fallback);

void inventory_read_gpus(const char *root, inventory_t *inventory);
void inventory_read_interfaces(const char *root, inventory_t *inventory);
void inventory_read_battery(const char *root, inventory_t *inventory);

#endif
