/* The one way an error is made: fill the caller's inspan_error_t and return its status. */
#ifndef BASE_ERROR_H
#define BASE_ERROR_H

#include <inspan/status.h>

/*
 * error_set(err, status, format, ...): write status and text into err (may be NULL) and return status, so
 * that `return error_set(...)` reads well. error_set_errno adds ": " and the text of errno (as it was on
 * entry). Macros, so that compiler and analyser see that what comes back is `status`.
 */
#define error_set(err, status, ...)       error_status(error_fill(err, status, __VA_ARGS__), status)
#define error_set_errno(err, status, ...) error_status(error_fill_errno(err, status, __VA_ARGS__), status)

static inline inspan_status_t error_status(inspan_status_t filled, inspan_status_t status)
{
    (void)filled;
    return status;
}

inspan_status_t error_fill(inspan_error_t *err, inspan_status_t status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
inspan_status_t error_fill_errno(inspan_error_t *err, inspan_status_t status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Put "context: " before the text that err already has; returns err's status. */
inspan_status_t error_prefix(inspan_error_t *err, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
