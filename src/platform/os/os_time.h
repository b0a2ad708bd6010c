/* The machine's clocks. Cores never read them: they take times in. */
#ifndef OS_TIME_H
#define OS_TIME_H

#include "base/units.h"

ns_t os_now(void);        /* CLOCK_MONOTONIC: for every bound and measurement */
ns_t os_wall_now(void);   /* CLOCK_REALTIME since 1970: a label for people, never compared between machines */
ns_t os_thread_cpu(void); /* CPU time of the calling thread */
ns_t os_process_cpu(void);

#endif
