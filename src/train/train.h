/* The native training loop: the one entry header of train. */
#ifndef TRAIN_TRAIN_H
#define TRAIN_TRAIN_H

#include "train/job.h"

/*
 * Run as a worker process: read `folder`/job.conf (job_format's text; data.path is local by now), meet the
 * agent at $INSPAN_SOCKET, train, write results into `folder`/out. Returns the process's exit code (0, or 3
 * job failed).
 */
int train_worker_main(const char *folder);

#endif
