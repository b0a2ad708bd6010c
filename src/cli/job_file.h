/*
 * Job files: YAML, checked against the one table of fields (train/job.h) while it is read, so that every
 * fault is told with its file and line. Two levels: "section: {field: value}" or a field by itself; block and
 * flow style alike.
 */
#ifndef CLI_JOB_FILE_H
#define CLI_JOB_FILE_H

#include <stddef.h>

#include <inspan/status.h>

#include "train/job.h"

#define JOB_FILE_MAX ((size_t)1 << 20)

/* Defaults, then what the file says. NOT_FOUND, IO, LIMIT (over JOB_FILE_MAX); INVALID: "FILE:LINE: what is
 * wrong". */
inspan_status_t job_file_load(const char *path, job_config_t *job, inspan_error_t *err);

/* The same from memory; name stands for the file in messages. */
inspan_status_t job_file_parse(const char *name, const char *text, size_t bytes, job_config_t *job,
                               inspan_error_t *err);

#endif
