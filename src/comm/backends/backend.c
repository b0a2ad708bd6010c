/* The table of backends, and native's entry. */
#include "comm/backends/backend.h"
#include "comm/comm.h"

#include <stdio.h>
#include <string.h>

_Static_assert(sizeof((backend_probe_t *)0)->version == sizeof((comm_backend_info_t *)0)->version &&
                   sizeof((backend_probe_t *)0)->why == sizeof((comm_backend_info_t *)0)->why,
               "a probe, as others see it");

#define ALL_DTYPES ((1u << INSPAN_DTYPES) - 1)
#define ALL_OPERATIONS                                                                                       \
    (1u << SCHED_ALLREDUCE | 1u << SCHED_REDUCE_SCATTER | 1u << SCHED_ALLGATHER | 1u << SCHED_BROADCAST |    \
     1u << SCHED_BARRIER)

static void native_probe(backend_probe_t *probe)
{
    *probe = (backend_probe_t){.available = true};
    snprintf(probe->version, sizeof probe->version, "%s", INSPAN_VERSION_TEXT);
    snprintf(probe->why, sizeof probe->why, "Inspan's own schedules over TCP");
}

const backend_t backend_native = {.name = "native",
                                  .caps = {.devices = BACKEND_CPU,
                                           .dtypes = ALL_DTYPES,
                                           .operations = ALL_OPERATIONS,
                                           .wire_types = true,
                                           .abort = true},
                                  .probe = native_probe};

const backend_t *const backend_table[] = {&backend_native, &backend_gloo, NULL};

const backend_t *backend_find(const char *name)
{
    if (name == NULL || strcmp(name, "auto") == 0) return &backend_native;
    for (int i = 0; backend_table[i] != NULL; i++)
        if (strcmp(name, backend_table[i]->name) == 0) return backend_table[i];
    return NULL;
}

bool comm_backend_exists(const char *name)
{
    return backend_find(name) != NULL;
}

bool comm_backend_info(uint32_t index, comm_backend_info_t *info)
{
    if (index >= sizeof backend_table / sizeof backend_table[0] - 1) return false;
    backend_probe_t probe;
    backend_table[index]->probe(&probe);
    *info = (comm_backend_info_t){.name = backend_table[index]->name, .available = probe.available};
    memcpy(info->version, probe.version, sizeof info->version);
    memcpy(info->why, probe.why, sizeof info->why);
    return true;
}

bool backend_carries(const backend_t *backend, uint32_t world, const data_call_t *call)
{
    const backend_caps_t *caps = &backend->caps;
    return backend->submit != NULL && world > 1 && (caps->operations >> call->collective & 1) &&
           call->owners == SCHED_BY_SHARDS && (caps->dtypes >> call->dtype & 1) &&
           (call->wire == INSPAN_WIRE_FP32 || caps->wire_types);
}
