/* The agent's tests: a manager and workers that do what a test says, real processes and sockets between them.
 */
#ifndef AGENT_TEST_H
#define AGENT_TEST_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <inspan/status.h>

#include "base/units.h"
#include "inspan/v1/inspan.pb-c.h"

/* ---- The manager: a real rpc server in a thread; all calls from the test's thread */

typedef struct test_manager test_manager_t;

/* folder: its files. port 0: any. */
test_manager_t *test_manager_open(const char *folder, uint16_t port, const char *token);
void test_manager_close(test_manager_t *manager); /* as a crash would: no good-bye to agents */
uint16_t test_manager_port(const test_manager_t *manager);

/* Registrations from now on: refused with this status (OK: accepted), answered with this node id (NULL: their
 * own). */
void test_manager_refuse(test_manager_t *manager, inspan_status_t status, const char *text);
void test_manager_give_id(test_manager_t *manager, const char *node_id);

/* Registrations from now on are answered only when this is called with false. */
void test_manager_hold(test_manager_t *manager, bool hold);

/* Order for the newest session. The message is packed at once. */
void test_manager_order(test_manager_t *manager, const Inspan__V1__AgentDown *message);

/* Wait (20 s, then the test fails) for what a session brought; copies, freed by the manager at its close. */
const Inspan__V1__Register *test_manager_wait_register(test_manager_t *manager,
                                                       unsigned number); /* 1st, 2nd, ... */
const Inspan__V1__WorkerReport *test_manager_wait_state(test_manager_t *manager, uint64_t job,
                                                        Inspan__V1__WorkerState state);
void test_manager_wait_heartbeats(test_manager_t *manager, unsigned number);
/* Until a heartbeat says that its owner gives so much; a copy, as above. */
Inspan__V1__Vitals test_manager_wait_allowed(test_manager_t *manager, double allowed);
unsigned test_manager_heartbeats(test_manager_t *manager); /* so far */
void test_manager_wait_left(test_manager_t *manager);      /* a session that was half-closed by its agent */
/* Until a failed worker of the job is reported without a pid. */
void test_manager_wait_freed(test_manager_t *manager, uint64_t job);
/* The n-th registration of an artifact, message of the ledger, verdict, report of a worker with this view
 * open. */
const Inspan__V1__Artifact *test_manager_wait_artifact(test_manager_t *manager, unsigned number);
const Inspan__V1__LedgerSpans *test_manager_wait_ledger(test_manager_t *manager, unsigned number);
const Inspan__V1__Verdict *test_manager_wait_verdict(test_manager_t *manager, unsigned number);
const Inspan__V1__WorkerReport *test_manager_wait_rank(test_manager_t *manager, uint64_t job, uint32_t rank,
                                                       Inspan__V1__WorkerState state, bool without_process);
const Inspan__V1__WorkerReport *test_manager_wait_view(test_manager_t *manager, uint64_t job, uint64_t view);
unsigned test_manager_reports(test_manager_t *manager, uint64_t job, Inspan__V1__WorkerState state);

/* Files/Stat is answered no more; wait until one was asked so. */
void test_manager_mute_stat(test_manager_t *manager, bool mute);
void test_manager_wait_muted(test_manager_t *manager);

/* The text of one PushLog request once its end has come; *dropped: its dropped bytes. */
const char *test_manager_wait_log(test_manager_t *manager, uint64_t request_id, uint64_t *bytes,
                                  uint64_t *dropped);

void test_manager_put(test_manager_t *manager, const void *data, size_t bytes, char hash[33]);
bool test_manager_has(test_manager_t *manager, const char *hash, char *text, size_t size);
unsigned test_manager_gets(test_manager_t *manager); /* files fetched so far */

/* ---- The worker: this test program again, as `worker FOLDER` */

/* Does what job.conf's "mode" says; returns the exit code. */
int test_worker_main(const char *folder);

#endif
