/* The one way an error is made: fill the caller's inspan_error_t and return its status. */
#ifndef BASE_ERROR_H
#define BASE_ERROR_H

#include <inspan/status.h>

/* Write status and text into err (may be NULL) and return status, so that `return error_set(...)` reads well.
 */
inspan_status_t error_set(inspan_error_t *err, inspan_status_t status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The same with ": " and the text of errno (as it was on entry) at the end. */
inspan_status_t error_set_errno(inspan_error_t *err, inspan_status_t status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Put "context: " before the text that err already has; returns err's status. */
inspan_status_t error_prefix(inspan_error_t *err, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
