#include "base/units.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct unit {
    const char *suffix;
    double factor;
} unit_t;

/* A decimal number (digits, one dot, no sign, no exponent) and one suffix of the table. */
static inspan_status_t parse_with_units(const char *text, const unit_t *units, size_t n, double limit,
                                        double *value)
{
    if (text == NULL || !isdigit((unsigned char)text[0])) return INSPAN_INVALID;
    char *end;
    size_t digits = strspn(text, "0123456789.");
    double number = strtod(text, &end);
    if (end != text + digits || !isfinite(number)) return INSPAN_INVALID;
    for (size_t i = 0; i < n; i++) {
        if (strcmp(end, units[i].suffix) != 0) continue;
        double scaled = number * units[i].factor;
        if (scaled >= limit) return INSPAN_INVALID;
        *value = scaled;
        return INSPAN_OK;
    }
    return INSPAN_INVALID;
}

inspan_status_t units_parse_size(const char *text, uint64_t *bytes)
{
    static const unit_t units[] = {{"", 1},     {"B", 1},   {"K", 1e3},  {"KB", 1e3}, {"M", 1e6},
                                   {"MB", 1e6}, {"G", 1e9}, {"GB", 1e9}, {"T", 1e12}};
    double value;
    inspan_status_t status = parse_with_units(text, units, sizeof units / sizeof units[0], 9.2e18, &value);
    if (status == INSPAN_OK) *bytes = (uint64_t)llround(value);
    return status;
}

inspan_status_t units_parse_duration(const char *text, ns_t *duration)
{
    static const unit_t units[] = {{"", 1e9},  {"ns", 1},   {"us", 1e3},  {"ms", 1e6},
                                   {"s", 1e9}, {"m", 60e9}, {"h", 3600e9}};
    double value;
    inspan_status_t status = parse_with_units(text, units, sizeof units / sizeof units[0], 9.2e18, &value);
    if (status == INSPAN_OK) *duration = (ns_t)llround(value);
    return status;
}

inspan_status_t units_parse_rate(const char *text, uint64_t *bits_per_s)
{
    static const unit_t units[] = {{"bit", 1}, {"kbit", 1e3}, {"mbit", 1e6}, {"gbit", 1e9}};
    double value;
    inspan_status_t status = parse_with_units(text, units, sizeof units / sizeof units[0], 9.2e18, &value);
    if (status == INSPAN_OK && value < 1) return INSPAN_INVALID;
    if (status == INSPAN_OK) *bits_per_s = (uint64_t)llround(value);
    return status;
}

const char *units_format_size(uint64_t bytes, char *text, size_t size)
{
    if (bytes < 1000)
        snprintf(text, size, "%llu B", (unsigned long long)bytes);
    else if (bytes < 1000000)
        snprintf(text, size, "%.1f KB", (double)bytes / 1e3);
    else if (bytes < 1000000000)
        snprintf(text, size, "%.1f MB", (double)bytes / 1e6);
    else
        snprintf(text, size, "%.1f GB", (double)bytes / 1e9);
    return text;
}

const char *units_format_duration(ns_t duration, char *text, size_t size)
{
    double s = ns_to_s(duration);
    if (s < 1e-3)
        snprintf(text, size, "%.0f us", s * 1e6);
    else if (s < 1)
        snprintf(text, size, "%.1f ms", s * 1e3);
    else if (s < 120)
        snprintf(text, size, "%.1f s", s);
    else if (s < 7200)
        snprintf(text, size, "%d min %d s", (int)(s / 60), (int)s % 60);
    else
        snprintf(text, size, "%d h %d min", (int)(s / 3600), (int)(s / 60) % 60);
    return text;
}
