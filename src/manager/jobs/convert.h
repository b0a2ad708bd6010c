/*
 * Between the wire's messages and the cores' structs. Strings from the wire are cut to their fields; numbers
 * out of range are refused. Also copies, packs and frees messages.
 */
#ifndef MANAGER_JOBS_CONVERT_H
#define MANAGER_JOBS_CONVERT_H

#include <stdbool.h>
#include <stdint.h>

#include <protobuf-c/protobuf-c.h>

#include "core/control/job.h"
#include "inspan/v1/inspan.pb-c.h"

/* A deep copy, free it with protobuf_c_message_free_unpacked; NULL: no memory. */
void *convert_copy(const ProtobufCMessage *message);

/* A packed message in one allocation; data NULL: no memory. */
typedef struct convert_packed {
    uint8_t *data;
    size_t bytes;
} convert_packed_t;
convert_packed_t convert_pack(const ProtobufCMessage *message);

void convert_cause(const Inspan__V1__Failure *failure, inspan_cause_t *cause);
/* The failure borrows the cause's strings. */
void convert_failure(const inspan_cause_t *cause, Inspan__V1__Failure *failure);

/* false: a state or a port that cannot be. */
bool convert_report(const Inspan__V1__WorkerReport *message, uint64_t node, control_report_t *report);

/* A copy of text with everything but printable characters replaced, cut to size. */
void convert_text(const char *text, char *copy, size_t size);

#endif
