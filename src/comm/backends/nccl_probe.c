/* What of NCCL is on this machine. This version has no backend for it: only what `inspan doctor` tells. */
#include <dlfcn.h>
#include <stdio.h>

#include "comm/comm.h"

/* "2.28.3" of libnccl; false: it is not there. */
static bool library_version(char *text, size_t size)
{
    void *library = dlopen("libnccl.so.2", RTLD_LAZY | RTLD_LOCAL);
    if (library == NULL) return false;
    int (*get_version)(int *) = NULL;
    *(void **)&get_version = dlsym(library, "ncclGetVersion");
    int version = 0;
    const bool known = get_version != NULL && get_version(&version) == 0 && version > 0;
    if (known && version >= 10000)
        snprintf(text, size, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
    else if (known) /* before 2.9 */
        snprintf(text, size, "%d.%d.%d", version / 1000, version / 100 % 10, version % 100);
    else
        snprintf(text, size, "of unknown version");
    dlclose(library);
    return true;
}

/* GPUs that the driver shows this process; -1: there is no driver. */
static int gpus(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (driver == NULL) return -1;
    int (*init)(unsigned) = NULL, (*get_count)(int *) = NULL;
    *(void **)&init = dlsym(driver, "cuInit");
    *(void **)&get_count = dlsym(driver, "cuDeviceGetCount");
    int count = 0;
    const bool works = init != NULL && get_count != NULL && init(0) == 0 && get_count(&count) == 0;
    return works ? count : 0; /* the driver stays loaded: it does not like to be unloaded */
}

void comm_nccl_info(comm_backend_info_t *info)
{
    *info = (comm_backend_info_t){.name = "nccl"};
    const bool library = library_version(info->version, sizeof info->version);
    const int count = gpus();
    char found[64];
    if (count < 0)
        snprintf(found, sizeof found, "no NVIDIA driver");
    else
        snprintf(found, sizeof found, "%d NVIDIA GPU%s", count, count == 1 ? "" : "s");
    snprintf(info->why, sizeof info->why, "this version of Inspan has no backend for it (here: %s%s, %s)",
             library ? "libnccl " : "no libnccl.so.2", info->version, found);
}
