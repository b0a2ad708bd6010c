/*
 * What this machine's owner gives to jobs, and when: shares from 0 (nothing: workers leave) to 1 (all that is
 * usable). The least of those that apply just now counts. Kept as lines "name number" in a file of the
 * agent's folder, which `inspan up`, `join` and `give` write and the agent looks at twice a second.
 */
#ifndef HOST_OWNER_H
#define HOST_OWNER_H

#include <stddef.h>

#include <inspan/status.h>

#include "platform/host/vitals.h"

typedef struct owner_wishes {
    double at_most;     /* always */
    double on_battery;  /* while a battery that supplies the machine is being emptied */
    double when_hot;    /* from hot_above_c until it is OWNER_COOLER cooler again */
    double hot_above_c; /* degrees Celsius */
    double when_in_use; /* within VITALS_IN_USE of input */
} owner_wishes_t;

#define OWNER_COOLER 5.0
#define OWNER_FILE   "owner" /* below the agent's folder */

extern const owner_wishes_t owner_gives_all; /* where there is no file: private clusters */
extern const owner_wishes_t owner_defaults;  /* where `up` and `join` are told nothing else */

typedef enum owner_limit {
    OWNER_GIVES_ALL,
    OWNER_ALWAYS,
    OWNER_ON_BATTERY,
    OWNER_WHEN_HOT,
    OWNER_IN_USE
} owner_limit_t;

/* "on battery"; "" where all is given. */
const char *owner_limit_text(owner_limit_t limit);

/* The least share that applies, and why. *hot: remembered from call to call, false at first. A temperature
 * that is not known is not hot. */
double owner_allowed(const owner_wishes_t *wishes, const vitals_t *vitals, bool *hot, owner_limit_t *limit);

/* The wishes by name, as the file, options and JSON have them: "at-most", "on-battery", ... */
enum { OWNER_WISHES = 5 };
typedef struct owner_wish {
    const char *name;
    size_t offset; /* of its double in owner_wishes_t */
    double most;
    const char *argument, *help;
} owner_wish_t;
extern const owner_wish_t owner_wish_table[OWNER_WISHES];
double *owner_wish_of(owner_wishes_t *wishes, const owner_wish_t *wish);

/* NOT_FOUND (*wishes: owner_gives_all). INVALID: names the line; *wishes is as it was. A wish that is not
 * mentioned is the default one, a name that this version does not know is passed over. */
inspan_status_t owner_load(const char *path, owner_wishes_t *wishes, inspan_error_t *err);
inspan_status_t owner_save(const char *path, const owner_wishes_t *wishes, inspan_error_t *err);

#endif
