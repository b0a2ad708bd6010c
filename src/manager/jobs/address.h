/* Which address do workers of other nodes reach? Decides over texts only, no sockets. */
#ifndef MANAGER_JOBS_ADDRESS_H
#define MANAGER_JOBS_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>

#include "inspan/v1/inspan.pb-c.h"

/* Numeric IPv4 or IPv6 (a %scope may follow) from 127/8, ::1, or mapped from them; nothing else. */
bool address_is_loopback(const char *address);
bool address_is_numeric(const char *address);

/* What the node advertises; when that is loopback (or none) and the manager saw it come from elsewhere, what
 * it saw. */
const char *address_of_node(const char *advertised, const char *peer);

/* Does the node have any address that other machines may reach? */
bool address_has_routable(const char *address, const Inspan__V1__Inventory *inventory);

/*
 * The address under which a member of another machine, reached at `other`, finds a node that advertises
 * loopback: that of its interfaces which shares the longest prefix with `other` (same family; link-local ones
 * never). NULL: none.
 */
const char *address_towards(const Inspan__V1__Inventory *inventory, const char *other);

#endif
