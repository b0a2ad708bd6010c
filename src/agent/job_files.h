/* Files of a job on this node: small pure helpers and the cache's cap. Any thread. */
#ifndef AGENT_JOB_FILES_H
#define AGENT_JOB_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <inspan/status.h>

#define JOB_FILES_CACHE_CAP ((uint64_t)4000 * 1000 * 1000)
#define JOB_FILES_KEPT      50 /* job folders */
#define JOB_FILES_VALUE_MAX 255

/* What may become part of a path: letters, digits, '.', '_', '-', not starting with '.'; 32 hex digits. */
bool job_files_good_key(const char *key);
bool job_files_good_hash(const char *hash);

/* The `key=value` text with key's line replaced or added; the caller frees; NULL: out of memory. */
char *job_files_set(const char *config, const char *key, const char *value);

void job_files_touch(const char *path); /* used just now */

/* Let go of the files that were not used for longest until `bytes` more fit the cap and the disk. LIMIT: they
 * cannot. */
inspan_status_t job_files_make_room(const char *cache, uint64_t bytes, inspan_error_t *err);

/* Remove what a process that is gone left half written (NAME.tmp-PID), in this folder and below. */
void job_files_drop_halves(const char *folder);

/* Remove the oldest job folders beyond JOB_FILES_KEPT, but for those in `used`. */
void job_files_prune(const char *jobs, const uint64_t *used, size_t n_used);

#endif
