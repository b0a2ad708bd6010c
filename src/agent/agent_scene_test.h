/* The whole agent as a process, between a manager and workers that the tests play (agent_test.h). */
#ifndef AGENT_SCENE_TEST_H
#define AGENT_SCENE_TEST_H

#include "agent/agent_test.h"
#include "platform/os/os_spawn.h"

#define TOKEN "a-token-for-tests"

#define STATE(name) INSPAN__V1__WORKER_STATE__WORKER_##name

extern char folder[64], files[80], state_folder[256], log_path[80];
extern test_manager_t *manager;
extern os_process_t agent;

extern Inspan__V1__Artifact *resume; /* of the next start */
extern uint32_t newcomer_rank;       /* of the next start; 0: no newcomer */

/* The program as agent or worker; -1: it is to run its tests. */
int scene_role(int argc, char **argv);

void start_agent(const char *token, os_process_t *process);
os_exit_t wait_end(os_process_t *process);
void wait_gone(pid_t pid);
int open_scene(void **state);
void put_in_root(const char *path,
                 const char *text); /* a file of the machine, as the agent's vitals see it */
bool log_says(const char *text);
bool log_has(const char *text); /* the same, and prints nothing */
int close_scene(void **state);
void order_start_with(uint64_t job, const char *mode, Inspan__V1__DataFile *data);
void order_view_of(uint64_t job, uint64_t number, uint32_t rank);
void order_view_number(uint64_t job, uint64_t number);
void order_view(uint64_t job);
void order_start(uint64_t job, const char *mode);
void order_stop(uint64_t job, bool kill_it);
void order_log(uint64_t job, uint64_t request_id, bool follow, uint64_t tail);
void order_leave(uint64_t job);
void order_answer(uint64_t job, uint64_t step, const char *text);

#endif
