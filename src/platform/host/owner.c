#include "platform/host/owner.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "platform/os/os_file.h"

enum { FILE_MAX = 4096 };

const owner_wishes_t owner_gives_all = {1, 1, 1, 95, 1};

/* Half on battery and when hot: the machine goes on working, and its owner's battery and lap have it easier.
 * 95: desktops are made to work up to there. In use: whoever starts a job at his own machine is using it. */
const owner_wishes_t owner_defaults = {1, 0.5, 0.5, 95, 1};

const owner_wish_t owner_wish_table[OWNER_WISHES] = {
    {"at-most", offsetof(owner_wishes_t, at_most), 1, "SHARE",
     "share of this machine for jobs, at all times"},
    {"on-battery", offsetof(owner_wishes_t, on_battery), 1, "SHARE", "share while it runs on its battery"},
    {"when-hot", offsetof(owner_wishes_t, when_hot), 1, "SHARE", "share while its processor is hot"},
    {"hot-above", offsetof(owner_wishes_t, hot_above_c), 150, "CELSIUS", "what counts as hot"},
    {"when-in-use", offsetof(owner_wishes_t, when_in_use), 1, "SHARE",
     "share while somebody uses its keyboard or mouse (2 minutes)"},
};

double *owner_wish_of(owner_wishes_t *wishes, const owner_wish_t *wish)
{
    return (double *)(void *)((char *)wishes + wish->offset);
}

/* ---- What applies ---------------------------------------------------------------------------- */

const char *owner_limit_text(owner_limit_t limit)
{
    switch (limit) {
    case OWNER_GIVES_ALL: break;
    case OWNER_ALWAYS: return "its owner's wish";
    case OWNER_ON_BATTERY: return "on battery";
    case OWNER_WHEN_HOT: return "hot";
    case OWNER_IN_USE: return "in use by its owner";
    }
    return "";
}

static void bound(double share, owner_limit_t why, double *least, owner_limit_t *limit)
{
    if (share >= *least) return;
    *least = share;
    *limit = why;
}

double owner_allowed(const owner_wishes_t *wishes, const vitals_t *vitals, bool *hot, owner_limit_t *limit)
{
    double least = 1;
    const double release = *hot ? wishes->hot_above_c - OWNER_COOLER : wishes->hot_above_c;
    *hot = vitals->temperature_c > 0 && vitals->temperature_c > release;
    *limit = OWNER_GIVES_ALL;
    bound(wishes->at_most, OWNER_ALWAYS, &least, limit);
    if (vitals->on_battery) bound(wishes->on_battery, OWNER_ON_BATTERY, &least, limit);
    if (*hot) bound(wishes->when_hot, OWNER_WHEN_HOT, &least, limit);
    if (vitals->owner_active) bound(wishes->when_in_use, OWNER_IN_USE, &least, limit);
    return least;
}

/* ---- The file -------------------------------------------------------------------------------- */

static inspan_status_t take_line(const char *path, int number, const char *name, const char *value,
                                 owner_wishes_t *wishes, inspan_error_t *err)
{
    for (size_t i = 0; i < OWNER_WISHES; i++) {
        const owner_wish_t *wish = &owner_wish_table[i];
        if (strcmp(name, wish->name) != 0) continue;
        char *end = NULL;
        const double read = strtod(value, &end);
        if (end == value || *end != '\0' || !(read >= 0 && read <= wish->most))
            return error_set(err, INSPAN_INVALID, "%s, line %d: %s is %.40s, expected a number from 0 to %g",
                             path, number, name, value, wish->most);
        *owner_wish_of(wishes, wish) = read;
    }
    return INSPAN_OK;
}

inspan_status_t owner_load(const char *path, owner_wishes_t *wishes, inspan_error_t *err)
{
    char *text = NULL;
    size_t bytes = 0;
    inspan_status_t status = os_file_read(path, FILE_MAX, &text, &bytes, err);
    if (status == INSPAN_NOT_FOUND) *wishes = owner_gives_all;
    if (status != INSPAN_OK) return status;
    owner_wishes_t found = owner_defaults;
    char *rest = text;
    int number = 0;
    for (char *line; status == INSPAN_OK && (line = strsep(&rest, "\n")) != NULL;) {
        number++;
        for (size_t n = strlen(line); n > 0 && isspace((unsigned char)line[n - 1]);) line[--n] = '\0';
        char *name = strsep(&line, " \t");
        if (name[0] == '#' || name[0] == '\0' || line == NULL) continue;
        while (isspace((unsigned char)*line)) line++;
        status = take_line(path, number, name, line, &found, err);
    }
    free(text);
    if (status == INSPAN_OK) *wishes = found;
    return status;
}

inspan_status_t owner_save(const char *path, const owner_wishes_t *wishes, inspan_error_t *err)
{
    char text[1024];
    owner_wishes_t copy = *wishes;
    int used = snprintf(text, sizeof text, "# What this machine gives to jobs: inspan give --help\n");
    for (size_t i = 0; i < OWNER_WISHES; i++)
        used += snprintf(text + used, sizeof text - (size_t)used, "%s %g\n", owner_wish_table[i].name,
                         *owner_wish_of(&copy, &owner_wish_table[i]));
    return os_file_write(path, text, (size_t)used, 0600, err);
}
