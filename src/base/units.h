/*
 * Units in types and their text forms. Sizes: K, M, G are powers of ten. Durations: ns, us, ms, s, m, h.
 * Rates: kbit, mbit, gbit per second.
 */
#ifndef BASE_UNITS_H
#define BASE_UNITS_H

#include <stddef.h>
#include <stdint.h>

#include <inspan/status.h>

typedef int64_t ns_t; /* nanoseconds: a duration, or a point of a monotonic clock */

#define NS_PER_US ((ns_t)1000)
#define NS_PER_MS ((ns_t)1000000)
#define NS_PER_S  ((ns_t)1000000000)

static inline double ns_to_s(ns_t ns)
{
    return (double)ns * 1e-9;
}

/* "25M" -> 25000000; "64" -> 64. INVALID for anything else, negative or above 2^63-1. */
inspan_status_t units_parse_size(const char *text, uint64_t *bytes);

/* "5s", "250ms", "1.5s" -> nanoseconds; a bare number is seconds. INVALID. */
inspan_status_t units_parse_duration(const char *text, ns_t *duration);

/* "1gbit", "200mbit" -> bits per second. INVALID. */
inspan_status_t units_parse_rate(const char *text, uint64_t *bits_per_s);

/* "25.0 MB", "313 ms": for people; text gets at most size bytes, always terminated. Returns text. */
const char *units_format_size(uint64_t bytes, char *text, size_t size);
const char *units_format_duration(ns_t duration, char *text, size_t size);

#endif
