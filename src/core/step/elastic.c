#include "core/step/elastic.h"

#include <stdlib.h>

#include "core/step/elastic_internal.h"

inspan_status_t elastic_open(const elastic_config_t *config, elastic_do_fn perform, void *context,
                             elastic_t **e)
{
    *e = NULL;
    if (config->leases == 0 || config->leases > ELASTIC_LEASES_MAX || config->buckets == 0 ||
        config->buckets > ELASTIC_BUCKETS_MAX || config->steps > UINT64_MAX - 2 ||
        config->first_step > config->steps)
        return INSPAN_INVALID;
    elastic_t *made = calloc(1, sizeof *made);
    if (!made) return INSPAN_NO_MEMORY;
    made->config = *config;
    made->perform = perform;
    made->context = context;
    made->step = config->newcomer ? 0 : config->first_step;
    made->role = config->newcomer ? ELASTIC_FRESH : ELASTIC_FULL;
    *e = made;
    return INSPAN_OK;
}

void elastic_close(elastic_t *e)
{
    free(e);
}

inspan_status_t elastic_handle(elastic_t *e, const elastic_event_t *event)
{
    (void)e, (void)event;
    return INSPAN_UNSUPPORTED; /* the next commits */
}
