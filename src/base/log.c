#include "base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static _Atomic int log_level = -1;
static const char *_Atomic log_component = "inspan";

static const char *const level_names[] = {"DEBUG", "INFO", "WARN", "ERROR"};

static int level_from_environment(void)
{
    const char *wanted = getenv("INSPAN_LOG");
    if (wanted == NULL) return LOG_WARN;
    if (strcmp(wanted, "debug") == 0) return LOG_DEBUG;
    if (strcmp(wanted, "info") == 0) return LOG_INFO;
    if (strcmp(wanted, "error") == 0) return LOG_ERROR;
    return LOG_WARN;
}

void log_set_level(log_level_t level)
{
    atomic_store(&log_level, (int)level);
}

void log_set_component(const char *component)
{
    atomic_store(&log_component, component);
}

void log_write(log_level_t level, const char *format, ...)
{
    int enabled = atomic_load(&log_level);
    if (enabled < 0) {
        enabled = level_from_environment();
        atomic_store(&log_level, enabled);
    }
    if ((int)level < enabled || level > LOG_ERROR) return;

    char line[1024];
    struct timespec now;
    struct tm parts;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &parts);
    size_t used = strftime(line, sizeof line, "%Y-%m-%dT%H:%M:%S", &parts);
    used += (size_t)snprintf(line + used, sizeof line - used, ".%03d %-5s %s: ", (int)(now.tv_nsec / 1000000),
                             level_names[level], atomic_load(&log_component));
    va_list args;
    va_start(args, format);
    int length = vsnprintf(line + used, sizeof line - used - 1, format, args);
    va_end(args);
    if (length > 0) used += (size_t)length;
    if (used > sizeof line - 2) used = sizeof line - 2;
    line[used++] = '\n';
    ssize_t written = write(STDERR_FILENO, line, used); /* one write: lines of two threads never mix */
    (void)written;
}
