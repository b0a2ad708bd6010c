/*
 * The log: one line an event to stderr, "2026-01-31T12:00:00.123 INFO  agent: text". No secret goes in.
 * The only global mutable state of the library. Any thread.
 */
#ifndef BASE_LOG_H
#define BASE_LOG_H

typedef enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR, LOG_NONE } log_level_t;

void log_set_level(log_level_t level);         /* default LOG_WARN, or $INSPAN_LOG=debug|info|warn|error */
void log_set_component(const char *component); /* static string, "manager", "agent", "worker" */
void log_write(log_level_t level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define log_debug(...) log_write(LOG_DEBUG, __VA_ARGS__)
#define log_info(...)  log_write(LOG_INFO, __VA_ARGS__)
#define log_warn(...)  log_write(LOG_WARN, __VA_ARGS__)
#define log_error(...) log_write(LOG_ERROR, __VA_ARGS__)

#endif
