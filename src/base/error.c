#include "base/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *inspan_status_text(inspan_status_t status)
{
    static const char *const texts[] = {
#define X(name, text) text,
        INSPAN_STATUS_LIST(X)
#undef X
    };
    if ((unsigned)status >= sizeof texts / sizeof texts[0]) return "unknown status";
    return texts[status];
}

inspan_status_t error_fill(inspan_error_t *err, inspan_status_t status, const char *format, ...)
{
    if (err == NULL) return status;
    va_list args;
    va_start(args, format);
    err->status = status;
    vsnprintf(err->text, sizeof err->text, format, args);
    va_end(args);
    return status;
}

inspan_status_t error_fill_errno(inspan_error_t *err, inspan_status_t status, const char *format, ...)
{
    int cause = errno;
    if (err == NULL) return status;
    va_list args;
    va_start(args, format);
    err->status = status;
    vsnprintf(err->text, sizeof err->text, format, args);
    va_end(args);
    size_t used = strlen(err->text);
    snprintf(err->text + used, sizeof err->text - used, ": %s", strerror(cause));
    return status;
}

inspan_status_t error_prefix(inspan_error_t *err, const char *format, ...)
{
    if (err == NULL) return INSPAN_INTERNAL;
    char prefix[INSPAN_ERROR_TEXT];
    char old[INSPAN_ERROR_TEXT];
    va_list args;
    va_start(args, format);
    vsnprintf(prefix, sizeof prefix, format, args);
    va_end(args);
    memcpy(old, err->text, sizeof old);
    int length = snprintf(err->text, sizeof err->text, "%s: ", prefix);
    if (length > 0 && (size_t)length < sizeof err->text)
        snprintf(err->text + length, sizeof err->text - (size_t)length, "%s", old);
    return err->status;
}
