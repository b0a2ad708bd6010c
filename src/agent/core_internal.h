/* The core's inside, shared by core.c (a worker's life), core_elastic.c (what only elastic jobs need) and
 * core_vitals.c. */
#ifndef AGENT_CORE_INTERNAL_H
#define AGENT_CORE_INTERNAL_H

#include "agent/core.h"

enum { CORE_REMEMBERED = 64 };

typedef struct core_ended {
    uint64_t job;
    uint32_t rank;
} core_ended_t;

struct agent_core {
    agent_actions_t actions;
    void *context;
    agent_worker_t *workers[AGENT_WORKERS];
    uint32_t n_workers;
    uint64_t next_serial;
    core_ended_t ended[CORE_REMEMBERED]; /* forgotten ones: a late order for them is no surprise */
    uint64_t n_ended;
    bool link_up;
    ns_t link_since, last_tick;
    char node[INSPAN_NAME_MAX], address[INSPAN_NAME_MAX];
    uint32_t threads;
    uint16_t first_port, last_port;
    uint8_t frame[LOCAL_FRAME_MAX + 8];
    bool has_vitals;
    local_vitals_t vitals;
    local_end_t end; /* scratch, as the next: too large for a stack frame */
    local_ledger_t ledger;
};

/* core.c */
void core_tell(agent_core_t *core, ns_t now, agent_worker_t *worker);
void core_send_empty(agent_core_t *core, agent_worker_t *worker, local_frame_type_t type);
bool core_is_over(const agent_worker_t *worker);
void core_gone_if_finished(agent_core_t *core, ns_t now, agent_worker_t *worker);

/* core_vitals.c */
void core_send_vitals(agent_core_t *core, ns_t now, agent_worker_t *worker); /* if it is time */

/* core_elastic.c: frames of a worker, what a link that came up needs */
inspan_status_t core_on_blame(agent_core_t *core, ns_t now, agent_worker_t *worker, const uint8_t *body,
                              size_t n);
inspan_status_t core_on_state(agent_core_t *core, ns_t now, agent_worker_t *worker, const uint8_t *body,
                              size_t n);
inspan_status_t core_on_left(agent_core_t *core, ns_t now, agent_worker_t *worker, const uint8_t *body,
                             size_t n);
void core_elastic_new_view(agent_worker_t *worker); /* what was said of an older one is void */
inspan_status_t core_on_saved(agent_core_t *core, ns_t now, agent_worker_t *worker, const uint8_t *body,
                              size_t n);
inspan_status_t core_on_note(agent_core_t *core, agent_worker_t *worker, const uint8_t *body, size_t n);
inspan_status_t core_on_verdict(agent_core_t *core, agent_worker_t *worker, const uint8_t *body, size_t n);
inspan_status_t core_on_ledger(agent_core_t *core, agent_worker_t *worker, const uint8_t *body, size_t n);
void core_elastic_link_up(agent_core_t *core, agent_worker_t *worker);
void core_elastic_forget(agent_worker_t *worker);

#endif
