/* What workers, agents and the manager say to each other here. */
#ifndef SIM_WORDS_H
#define SIM_WORDS_H

#include "sim/internal.h"

enum { /* worker -> agent */
       SIM_L_BOUND = 1,
       SIM_L_READY, /* view: its communicator is open */
       SIM_L_FULL,
       SIM_L_BLAME, /* view, a: number at fault + 1 and SIM_BLAME_OPENING; text */
       SIM_L_LEFT,
       SIM_L_SAVED, /* a: kind, b: step, view; data: the model */
       SIM_L_DONE,
       /* agent -> worker */
       SIM_L_VIEW, /* data: sim_view_t */
       SIM_L_LEAVE,
       SIM_L_REGISTERED, /* a: kind, b: step, c: accepted */
       SIM_L_BYE,
       /* agent -> manager */
       SIM_M_REGISTER, /* data: control_report_t[] of its workers */
       SIM_M_REPORT,   /* data: control_report_t */
       SIM_M_ARTIFACT, /* a: kind, b: step, c: worker, view; data: the model */
       SIM_M_GOODBYE,
       /* manager -> agent */
       SIM_M_START,     /* a: number, b: first step, c: newcomer; data: the model */
       SIM_M_VIEW,      /* a: number; data: sim_view_t */
       SIM_M_STOP,      /* a: number, b: kill */
       SIM_M_LEAVE,     /* a: number */
       SIM_M_REGISTERED /* a: kind, b: step, c: worker, d: accepted */
};

enum { SIM_BLAME_OPENING = 1 << 16 };
enum { SIM_KIND_CHECKPOINT = 1, SIM_KIND_RESULT };

#endif
