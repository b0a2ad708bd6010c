#include "manager/jobs/address.h"

#include <arpa/inet.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef struct parsed {
    int family; /* 0: not numeric */
    uint8_t bytes[16];
    size_t n;
} parsed_t;

static parsed_t parse(const char *address)
{
    parsed_t parsed = {0};
    char text[64];
    if (address == NULL) return parsed;
    size_t length = strcspn(address, "%");
    if (length == 0 || length >= sizeof text) return parsed;
    memcpy(text, address, length);
    text[length] = '\0';
    if (inet_pton(AF_INET, text, parsed.bytes) == 1) {
        parsed.family = AF_INET;
        parsed.n = 4;
    } else if (inet_pton(AF_INET6, text, parsed.bytes) == 1) {
        static const uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
        parsed.family = AF_INET6;
        parsed.n = 16;
        if (memcmp(parsed.bytes, mapped, sizeof mapped) == 0) {
            memmove(parsed.bytes, parsed.bytes + 12, 4);
            parsed.family = AF_INET;
            parsed.n = 4;
        }
    }
    return parsed;
}

bool address_is_numeric(const char *address)
{
    return parse(address).family != 0;
}

bool address_is_loopback(const char *address)
{
    static const uint8_t one[16] = {[15] = 1};
    parsed_t parsed = parse(address);
    if (parsed.family == AF_INET) return parsed.bytes[0] == 127;
    return parsed.family == AF_INET6 && memcmp(parsed.bytes, one, sizeof one) == 0;
}

static bool is_link_local(const parsed_t *parsed)
{
    if (parsed->family == AF_INET) return parsed->bytes[0] == 169 && parsed->bytes[1] == 254;
    return parsed->bytes[0] == 0xfe && (parsed->bytes[1] & 0xc0) == 0x80;
}

static bool is_unspecified(const parsed_t *parsed)
{
    static const uint8_t zero[16];
    return memcmp(parsed->bytes, zero, parsed->n) == 0;
}

const char *address_of_node(const char *advertised, const char *peer)
{
    parsed_t own = parse(advertised);
    bool useless = own.family == 0 || is_unspecified(&own) || address_is_loopback(advertised);
    if (!useless || !address_is_numeric(peer)) return advertised != NULL ? advertised : "";
    return peer;
}

static bool is_routable(const char *address)
{
    parsed_t parsed = parse(address);
    return parsed.family != 0 && !address_is_loopback(address) && !is_link_local(&parsed) &&
           !is_unspecified(&parsed);
}

bool address_has_routable(const char *address, const Inspan__V1__Inventory *inventory)
{
    if (address_is_numeric(address) && !address_is_loopback(address)) return true;
    for (size_t i = 0; inventory != NULL && i < inventory->n_interfaces; i++)
        for (size_t j = 0; j < inventory->interfaces[i]->n_addresses; j++)
            if (is_routable(inventory->interfaces[i]->addresses[j])) return true;
    return false;
}

static int common_bits(const parsed_t *a, const parsed_t *b)
{
    if (a->family != b->family) return -1;
    for (size_t i = 0; i < a->n; i++) {
        uint8_t differ = a->bytes[i] ^ b->bytes[i];
        if (differ != 0) return (int)(8 * i) + __builtin_clz(differ) - 24;
    }
    return (int)(8 * a->n);
}

const char *address_towards(const Inspan__V1__Inventory *inventory, const char *other)
{
    parsed_t there = parse(other);
    const char *best = NULL;
    int most = -1;
    if (there.family == 0 || inventory == NULL) return NULL;
    for (size_t i = 0; i < inventory->n_interfaces; i++)
        for (size_t j = 0; j < inventory->interfaces[i]->n_addresses; j++) {
            const char *address = inventory->interfaces[i]->addresses[j];
            parsed_t here = parse(address);
            int bits = is_routable(address) ? common_bits(&here, &there) : -1;
            if (bits <= most) continue;
            most = bits;
            best = address;
        }
    return best;
}
