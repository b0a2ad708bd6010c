#include "cli/results.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "cli/place.h"
#include "platform/os/os_file.h"
#include "rpc/rpc_files.h"

bool results_name_is_safe(const char *name)
{
    size_t length = strlen(name);
    if (length == 0 || length > 255 || name[length - 1] == '/') return false;
    for (size_t i = 0; i < length; i++) {
        bool starts = i == 0 || name[i - 1] == '/';
        if (starts && !isalnum((unsigned char)name[i])) return false;
        if (!isalnum((unsigned char)name[i]) && strchr("._-/", name[i]) == NULL) return false;
    }
    return true;
}

inspan_status_t results_fetch(rpc_client_t *client, const Inspan__V1__JobInfo *job, const char *folder,
                              inspan_error_t *err)
{
    inspan_status_t status = INSPAN_OK;
    for (size_t i = 0; i < job->n_results && status == INSPAN_OK; i++) {
        const Inspan__V1__ResultFile *file = job->results[i];
        char path[PLACE_PATH_MAX + 300], parent[PLACE_PATH_MAX + 300];
        if (!results_name_is_safe(file->name))
            return error_set(err, INSPAN_CORRUPT, "a node offers a result with the name \"%.60s\"",
                             file->name);
        snprintf(path, sizeof path, "%s/%s", folder, file->name);
        snprintf(parent, sizeof parent, "%.*s", (int)(strrchr(path, '/') - path), path);
        status = os_mkdir_all(parent, 0755, err);
        if (status == INSPAN_OK)
            status = rpc_file_get(client, &(rpc_file_t){path, file->hash, file->bytes}, 0644, NULL, err);
        if (status != INSPAN_OK) error_prefix(err, "result %s", file->name);
    }
    return status;
}
