/* Gloo as a backend: finds and loads the plug-in (gloo_shim.h), and speaks to it. */
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "comm/backends/backend.h"
#include "comm/backends/gloo/gloo_shim.h"
#include "comm/reduce.h"

#define PLUGIN "inspan-gloo.so"

typedef struct gloo {
    gloo_engine_t *engine;
    uint32_t rank, world;
    const double *weights; /* (world) or NULL */
    size_t *parts;         /* (world) of the all-gather under way */
} gloo_t;

/* ---- The plug-in ----------------------------------------------------------------------------- */

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const gloo_shim_t *shim; /* NULL: why says why not; both are written once */
static char why[BACKEND_WHY_MAX];

/* The folder of the program or library that this code is in; "" if that cannot be told. */
static void own_folder(char *folder, size_t size)
{
    Dl_info info;
    struct link_map *map = NULL;
    ssize_t n = -1;
    folder[0] = '\0';
    if (dladdr1((void *)(uintptr_t)own_folder, &info, (void **)&map, RTLD_DL_LINKMAP) == 0) return;
    if (map != NULL && map->l_name[0] == '\0')
        n = readlink("/proc/self/exe", folder, size - 1);
    else if ((size_t)snprintf(folder, size, "%s", info.dli_fname) < size)
        n = (ssize_t)strlen(folder);
    folder[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(folder, '/');
    if (slash != NULL) *slash = '\0';
}

/* Where it is: $INSPAN_BACKENDS, else beside this program or library (also one folder up, as in a build),
 * else where libraries are installed. */
static bool find_plugin(char *path, size_t size)
{
    static const char *const places[] = {"", "/..", "/inspan", "/../lib/inspan", INSPAN_PLUGIN_FOLDER};
    char own[2048];
    const char *given = getenv("INSPAN_BACKENDS");
    if (given != NULL && given[0] != '\0')
        return (size_t)snprintf(path, size, "%s/" PLUGIN, given) < size && access(path, R_OK) == 0;
    own_folder(own, sizeof own);
    for (size_t i = 0; own[0] != '\0' && i < sizeof places / sizeof places[0]; i++)
        if ((size_t)snprintf(path, size, "%s%s/" PLUGIN, own, places[i]) < size && access(path, R_OK) == 0)
            return true;
    return false;
}

static void load(void)
{
    char path[4096];
    if (!find_plugin(path, sizeof path)) {
        snprintf(why, sizeof why,
                 "this Inspan was built without Gloo: apt install libgloo-dev, then build again");
        return;
    }
    void *module = dlopen(path, RTLD_NOW | RTLD_LOCAL); /* stays: threads of it may still be ending */
    if (module == NULL) {
        const char *error = dlerror();
        if (error != NULL && strstr(error, "libgloo.so") != NULL && strstr(error, "cannot open") != NULL)
            snprintf(why, sizeof why, "libgloo is not installed: apt install libgloo0");
        else
            snprintf(why, sizeof why, PLUGIN " cannot be loaded: %.150s", error != NULL ? error : "?");
        return;
    }
    gloo_shim_fn get = NULL;
    *(void **)&get = dlsym(module, GLOO_SHIM_SYMBOL);
    const gloo_shim_t *found = get != NULL ? get() : NULL;
    if (found == NULL || found->abi != GLOO_SHIM_ABI) {
        snprintf(why, sizeof why,
                 PLUGIN " is of another version of Inspan: install both from the same build");
        dlclose(module);
        return;
    }
    shim = found;
}

static void gloo_probe(backend_probe_t *probe)
{
    pthread_once(&once, load);
    *probe = (backend_probe_t){.available = shim != NULL};
    snprintf(probe->version, sizeof probe->version, "%s", shim != NULL ? shim->version : "");
    if (shim != NULL)
        snprintf(probe->why, sizeof probe->why, "libgloo %s over TCP", shim->version);
    else
        snprintf(probe->why, sizeof probe->why, "%s", why);
}

/* ---- The backend ----------------------------------------------------------------------------- */

static void gloo_destroy(void *self)
{
    gloo_t *gloo = self;
    if (gloo->engine != NULL) shim->close(gloo->engine);
    free(gloo->parts);
    free(gloo);
}

static inspan_status_t gloo_create(const backend_options_t *options, void **self, inspan_error_t *err)
{
    pthread_once(&once, load);
    if (shim == NULL) return error_set(err, INSPAN_UNSUPPORTED, "gloo: %s", why);
    gloo_t *gloo = calloc(1, sizeof *gloo);
    char text[160] = "";
    if (gloo != NULL) gloo->parts = calloc(options->world, sizeof *gloo->parts);
    if (gloo == NULL || gloo->parts == NULL) {
        free(gloo);
        return error_set(err, INSPAN_NO_MEMORY, "gloo: no memory");
    }
    gloo->rank = options->rank;
    gloo->world = options->world;
    gloo->weights = options->weights;
    gloo->engine = shim->open(options->rank, options->world, options->sockets, options->address,
                              options->patience / NS_PER_MS, text, sizeof text);
    if (gloo->engine == NULL) {
        gloo_destroy(gloo);
        return error_set(err, INSPAN_IO, "gloo: %s", text);
    }
    *self = gloo;
    return INSPAN_OK;
}

static void combine(const void *context, void *dst, const void *src, size_t n)
{
    const data_call_t *call = context;
    reduce_apply((inspan_dtype_t)call->dtype, (inspan_reduction_t)call->reduction, dst, src, n);
}

static gloo_operation_t operation_of(uint8_t collective)
{
    switch (collective) {
    case SCHED_ALLREDUCE: return GLOO_ALLREDUCE;
    case SCHED_ALLGATHER: return GLOO_ALLGATHER;
    case SCHED_BROADCAST: return GLOO_BROADCAST;
    default: return GLOO_BARRIER;
    }
}

static inspan_status_t gloo_submit(void *self, const backend_call_t *what, backend_fault_t *fault)
{
    gloo_t *gloo = self;
    const data_call_t *call = &what->call;
    gloo_call_t job = {.operation = operation_of(call->collective),
                       .tag = (uint32_t)what->seq,
                       .root = call->root,
                       .element_size = (uint32_t)inspan_dtype_size((inspan_dtype_t)call->dtype),
                       .count = call->count,
                       .in = what->in,
                       .out = what->out,
                       .parts = gloo->parts,
                       .combine = combine,
                       .context = call};
    if (call->count == 0 && call->collective != SCHED_BARRIER) return INSPAN_OK;
    if (call->collective == SCHED_ALLGATHER) {
        uint64_t first = 0, n = 0;
        for (uint32_t r = 0; r < gloo->world; r++) {
            sched_shard(call->count, gloo->world, gloo->weights, r, &first, &n);
            gloo->parts[r] = n;
            if (r == gloo->rank) job.in = (const uint8_t *)what->in + first * job.element_size;
        }
    }
    gloo_fault_t found = {.rank = -1};
    if (shim->run(gloo->engine, &job, &found) == 0) return INSPAN_OK;
    fault->rank = found.rank;
    snprintf(fault->text, sizeof fault->text, "%s", found.text);
    return INSPAN_IO;
}

static void gloo_abort(void *self)
{
    shim->abort(((gloo_t *)self)->engine);
}

static void gloo_traffic(void *self, uint64_t *sent, uint64_t *received)
{
    shim->traffic(((gloo_t *)self)->engine, sent, received);
}

/* Not reduce-scatter: this Gloo has none for shards of unequal length. */
const backend_t backend_gloo = {.name = "gloo",
                                .caps = {.devices = BACKEND_CPU,
                                         .dtypes = (1u << INSPAN_DTYPES) - 1,
                                         .operations = 1u << SCHED_ALLREDUCE | 1u << SCHED_ALLGATHER |
                                                       1u << SCHED_BROADCAST | 1u << SCHED_BARRIER,
                                         .wire_types = false,
                                         .abort = true},
                                .probe = gloo_probe,
                                .create = gloo_create,
                                .submit = gloo_submit,
                                .abort = gloo_abort,
                                .traffic = gloo_traffic,
                                .destroy = gloo_destroy};
