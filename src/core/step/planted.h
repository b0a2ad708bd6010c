/*
 * Bugs to be planted on purpose, so that tests and the simulator prove that they would find them. Names as in
 * model/README.md, where each was first found. Read only in builds with INSPAN_PLANTED; X(name, where, text).
 * where: core = in the step machine; shell = by whoever carries out its actions; manager = in the job
 * controller; checkpoint = by whoever publishes them.
 */
#ifndef STEP_PLANTED_H
#define STEP_PLANTED_H

#define PLANTED_LIST(X)                                                                                      \
    X(NOLASTVOTE, core, "the leader commits without the vote of the last member")                            \
    X(NOTALL, core, "the leader decides without all reports")                                                \
    X(NOR1, core, "a reconcile goes on from the lowest committed step")                                      \
    X(EARLYAPPLY, core, "a member commits when it votes")                                                    \
    X(DROPHELD, core, "reduced buckets are thrown away with the view")                                       \
    X(NOSALV, core, "reduced buckets are reported but not salvaged")                                         \
    X(SKIPSALV, shell, "a recomputed lease is not added to the sums of salvaged buckets")                    \
    X(STEALBUG, core, "a granted lease is granted to another member as well")                                \
    X(GRANTTWICE, core, "a lease that was granted by a claim stays reserved for another member")             \
    X(GRANTLATE, core, "the leader grants a lease after LAST")                                               \
    X(STEALGRANTED, core, "a steal takes leases that were granted")                                          \
    X(LATEDONE, core, "computing goes on after the report")                                                  \
    X(MIDBACK, shell, "a report in the middle of a backward pass")                                           \
    X(OLDMSG, core, "what comes from an older view counts")                                                  \
    X(NOEMPTY, core, "a member without leases takes no part in the reduction")                               \
    X(ADDUP, core, "a commit needs the voters' leases to make up the step")                                  \
    X(REUSE, manager, "a view is announced before it is persisted")                                          \
    X(SCALARS, shell, "what rides on votes enters the weights")                                              \
    X(BLINDCHUNK, core, "an update is applied to chunks of any version")                                     \
    X(LATECHUNK, core, "a chunk of an older version is stored")                                              \
    X(OLDSHARES, core, "a member keeps the shares of the last view")                                         \
    X(OLDWIRE, core, "a member goes on with the wire type that it had")                                      \
    X(OLDLAYOUT, core, "a member goes on with the bucket layout that it had")                                \
    X(BLINDLAYOUT, core, "the leader opens a step with a layout that not all members know")                  \
    X(LISTENNOVOTE, core, "the leader does not wait for the votes of listeners")                             \
    X(SELFFULL, core, "a newcomer declares itself full in a reconcile (shows with NOC2 alone)")              \
    X(NOFENCE, manager, "a checkpoint of an older view is registered")                                       \
    X(EARLYPUB, checkpoint, "a checkpoint is published before the next step committed")                      \
    X(NOC2, core, "a reconcile does not commit a step that every survivor holds (no bug by itself)")

enum planted_index {
#define X(name, where, text) PLANTED_INDEX_##name,
    PLANTED_LIST(X)
#undef X
        PLANTED_COUNT
};

enum planted {
#define X(name, where, text) PLANTED_##name = 1 << PLANTED_INDEX_##name,
    PLANTED_LIST(X)
#undef X
};

#endif
