#include "cli/give.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>

#include "platform/os/os_file.h"

void give_none(give_options_t *given)
{
    for (size_t i = 0; i < OWNER_WISHES; i++) given->values[i] = NAN;
}

bool give_any(const give_options_t *given)
{
    for (size_t i = 0; i < OWNER_WISHES; i++)
        if (!isnan(given->values[i])) return true;
    return false;
}

inspan_status_t give_load(const char *agent_folder, owner_wishes_t *wishes, inspan_error_t *err)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%.3900s/" OWNER_FILE, agent_folder);
    inspan_status_t status = owner_load(path, wishes, err);
    return status == INSPAN_NOT_FOUND ? INSPAN_OK : status;
}

inspan_status_t give_save(const char *agent_folder, const give_options_t *given,
                          const owner_wishes_t *otherwise, owner_wishes_t *wishes, inspan_error_t *err)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%.3900s/" OWNER_FILE, agent_folder);
    inspan_status_t status = os_mkdir_all(agent_folder, 0700, err);
    if (status != INSPAN_OK) return status;
    owner_wishes_t before;
    status = owner_load(path, &before, err);
    if (status != INSPAN_OK && status != INSPAN_NOT_FOUND) return status;
    *wishes = status == INSPAN_OK ? before : *otherwise;
    bool changed = status != INSPAN_OK;
    for (size_t i = 0; i < OWNER_WISHES; i++) {
        double *wish = owner_wish_of(wishes, &owner_wish_table[i]);
        if (isnan(given->values[i]) || *wish == given->values[i]) continue;
        *wish = given->values[i];
        changed = true;
    }
    return changed ? owner_save(path, wishes, err) : INSPAN_OK;
}
