/*
 * Status codes of every call, and the error that carries one to a person.
 *
 * One list makes the enum and the names. 0 is success. A function's comment names the codes that it can give.
 */
#ifndef INSPAN_STATUS_H
#define INSPAN_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

#define INSPAN_API __attribute__((visibility("default")))

/*      name          text                                  when */
#define INSPAN_STATUS_LIST(X)                                                                                \
    X(OK, "ok")                        /* done                                                            */ \
    X(PENDING, "not finished yet")     /* a test of a running operation, never an error                   */ \
    X(INVALID, "invalid argument")     /* the caller's or the user's mistake                              */ \
    X(NO_MEMORY, "out of memory")      /* an allocation failed                                            */ \
    X(TIMEOUT, "timed out")            /* the bound of a wait passed                                      */ \
    X(ABORTED, "aborted")              /* given up on request, here or by another rank                    */ \
    X(PEER_LOST, "peer lost")          /* a peer's connection broke or went silent                        */ \
    X(REFUSED, "refused")              /* the other side said no, or nobody listens there                 */ \
    X(UNREACHABLE, "unreachable")      /* no route, or packets vanish (filtered)                          */ \
    X(AUTH, "not authorised")          /* wrong token or key                                              */ \
    X(VERSION, "incompatible version") /* another major version of protocol or file                       */ \
    X(MISMATCH, "ranks disagree")      /* layout, parameters or call order differ between ranks           */ \
    X(NOT_FOUND, "not found")          /* no such node, job, file                                         */ \
    X(EXISTS, "already exists")        /* a name, port or file is taken                                   */ \
    X(LIMIT, "limit reached")          /* a cap (queue, size, memory) would be passed                     */ \
    X(CORRUPT, "corrupt data")         /* a file or message that cannot be right                          */ \
    X(IO, "input/output error")        /* the operating system reported a failure                         */ \
    X(UNSUPPORTED, "not supported")    /* this build or machine cannot do it                              */ \
    X(JOB_FAILED, "job failed")        /* the training job itself ended with an error                     */ \
    X(INTERNAL, "internal error")      /* a broken promise inside Inspan: please report it                */

typedef enum inspan_status {
#define X(name, text) INSPAN_##name,
    INSPAN_STATUS_LIST(X)
#undef X
} inspan_status_t;

#define INSPAN_ERROR_TEXT 512

/* What failed, where, what was expected and found, what to do next. Filled only on failure. */
typedef struct inspan_error {
    inspan_status_t status;
    char text[INSPAN_ERROR_TEXT]; /* one line, no newline at the end, always terminated */
} inspan_error_t;

/* Short English name of a status ("peer lost"); never NULL, static storage. Any thread. */
INSPAN_API const char *inspan_status_text(inspan_status_t status);

#ifdef __cplusplus
}
#endif
#endif
