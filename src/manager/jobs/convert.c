#include "manager/jobs/convert.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

convert_packed_t convert_pack(const ProtobufCMessage *message)
{
    convert_packed_t packed = {NULL, protobuf_c_message_get_packed_size(message)};
    packed.data = malloc(packed.bytes > 0 ? packed.bytes : 1);
    if (packed.data != NULL) protobuf_c_message_pack(message, packed.data);
    return packed;
}

void *convert_copy(const ProtobufCMessage *message)
{
    convert_packed_t packed = convert_pack(message);
    if (packed.data == NULL) return NULL;
    ProtobufCMessage *copy = protobuf_c_message_unpack(message->descriptor, NULL, packed.bytes, packed.data);
    free(packed.data);
    return copy;
}

/* Control characters become blanks, what is no UTF-8 a question mark; a character is whole or not there. */
void convert_text(const char *text, char *copy, size_t size)
{
    size_t n = 0, left = text != NULL ? strlen(text) : 0;
    while (left > 0) {
        size_t length = utf8_length(text, left), taken = length > 0 ? length : 1;
        unsigned char c = (unsigned char)text[0];
        if (taken >= size - n) break;
        memcpy(copy + n, text, taken);
        if (length == 0) copy[n] = '?';
        if (c < 0x20 || c == 0x7f) copy[n] = ' ';
        n += taken;
        text += taken;
        left -= taken;
    }
    copy[n] = '\0';
}

void convert_cause(const Inspan__V1__Failure *failure, inspan_cause_t *cause)
{
    memset(cause, 0, sizeof *cause);
    cause->status = (inspan_status_t)failure->status;
    if (failure->status == INSPAN_OK || failure->status > INSPAN_INTERNAL) cause->status = INSPAN_JOB_FAILED;
    cause->rank = failure->rank >= 0 && failure->rank < CONTROL_RANKS_MAX ? failure->rank : -1;
    cause->noticed_by =
        failure->noticed_by >= 0 && failure->noticed_by < CONTROL_RANKS_MAX ? failure->noticed_by : -1;
    cause->waited_ns = failure->waited_ns > 0 ? failure->waited_ns : 0;
    convert_text(failure->node, cause->node, sizeof cause->node);
    convert_text(failure->address, cause->address, sizeof cause->address);
    convert_text(failure->operation, cause->operation, sizeof cause->operation);
    convert_text(failure->text, cause->text, sizeof cause->text);
}

void convert_failure(const inspan_cause_t *cause, Inspan__V1__Failure *failure)
{
    inspan__v1__failure__init(failure);
    failure->status = cause->status;
    failure->rank = cause->rank;
    failure->node = (char *)cause->node;
    failure->address = (char *)cause->address;
    failure->operation = (char *)cause->operation;
    failure->waited_ns = cause->waited_ns;
    failure->noticed_by = cause->noticed_by;
    failure->text = (char *)cause->text;
}

bool convert_report(const Inspan__V1__WorkerReport *message, uint64_t node, control_report_t *report)
{
    static const control_rank_state_t states[] = {
        [INSPAN__V1__WORKER_STATE__WORKER_STARTED] = CONTROL_RANK_STARTED,
        [INSPAN__V1__WORKER_STATE__WORKER_BOUND] = CONTROL_RANK_BOUND,
        [INSPAN__V1__WORKER_STATE__WORKER_READY] = CONTROL_RANK_READY,
        [INSPAN__V1__WORKER_STATE__WORKER_RUNNING] = CONTROL_RANK_RUNNING,
        [INSPAN__V1__WORKER_STATE__WORKER_LEFT] = CONTROL_RANK_LEFT,
        [INSPAN__V1__WORKER_STATE__WORKER_DONE] = CONTROL_RANK_DONE,
        [INSPAN__V1__WORKER_STATE__WORKER_FAILED] = CONTROL_RANK_FAILED,
    };
    int state = (int)message->state;
    if (state <= INSPAN__V1__WORKER_STATE__WORKER_UNKNOWN || state > INSPAN__V1__WORKER_STATE__WORKER_LEFT)
        return false;
    if (message->data_port > UINT16_MAX) return false;
    memset(report, 0, sizeof *report);
    report->node = node;
    report->rank = message->rank;
    report->state = states[state];
    report->port = (uint16_t)message->data_port;
    report->pid = message->pid;
    report->incarnation = message->incarnation;
    report->view = message->view;
    report->exit_code = message->exit_code;
    report->exit_signal = message->exit_signal;
    report->has_cause = message->failure != NULL;
    if (report->has_cause) convert_cause(message->failure, &report->cause);
    report->full = message->full;
    report->left_view = message->left_view;
    report->has_blame = message->blame != NULL && message->blame_view != 0;
    report->blame_view = message->blame_view;
    if (report->has_blame) convert_cause(message->blame, &report->blame);
    if (message->progress == NULL) return true;
    report->step = message->progress->step;
    report->steps = message->progress->steps;
    report->speed = message->progress->samples_per_s;
    return true;
}
