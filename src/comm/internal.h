/*
 * The communicator's inside, shared by its files; nothing outside src/comm includes this.
 *
 *   comm.c     public calls: start, wait, close         any thread, under comm->lock
 *   plan.c     schedules made ready to run, cached      calling thread; free runs under comm->lock
 *   exec.c     running them: what may start, finish     I/O thread only, as all below
 *   rx.c tx.c  frames in and out of a byte stream
 *   stage.c    pages for bytes that came early
 *   transfer.c sends and receives: who meets whom, what goes next
 *   exchange.c gather, scatter, all-to-all: transfers under one handle
 *   blocks.c   reduce, reduce-scatter and all-gather with only the own part in memory
 *   open.c     queue.c: for programs that are no workers: opening, finished operations
 *   tune.c     the links as measured, and what is chosen by them
 *   fail.c     the first failure: spread, settle, finish everything
 *   message.c  small messages
 *   backends/  what may carry collectives in place of exec.c
 *   transport/ tcp (sockets) and sim (memory): byte streams between ranks, nothing of frames or collectives
 *
 * Threads. All that moves data runs on one thread, the transport's ("I/O thread"; for sim: the caller of
 * comm_sim_run), without locks. comm->lock guards what calls share with it: handles, the queue of started
 * operations, messages, the cause. It is held for moments only and never while a callback of the user runs.
 *
 * Flow control. A receiver always reads its sockets, so what arrives must have a place. Pieces of SENDs that
 * are not `staged` have one by the schedule's promise. Others are charged, in pages of 4 KiB, to a window
 * that the receiver opens when it starts the operation (POST) and refills as it consumes (CREDIT). Windows
 * are open for the COMM_OPEN_WINDOWS oldest operations, which bounds staging memory; the oldest always has
 * one, so it always advances, and by induction all do. Before the POST is there, small operations may use the
 * peer's eager budget (64 KiB a pair). Lower sequence numbers go first on each stream, control frames before
 * all pieces. Sends go only when their receive was started (WANT), so what they carry always has a place.
 */
#ifndef COMM_INTERNAL_H
#define COMM_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/uio.h>

#include "comm/backends/backend.h"
#include "comm/codec.h"
#include "comm/comm.h"
#include "core/collective/meter.h"
#include "core/collective/schedule.h"
#include "platform/os/os_cond.h"
#include "platform/wire/data.h"

#define COMM_MAX_OPS      256  /* pending operations */
#define COMM_MAX_AHEAD    256  /* operations that a rank may be ahead of its slowest peer */
#define COMM_RING         1024 /* of sequence numbers: more than own span + how far a peer can be ahead */
#define COMM_MAX_PLANS    64
#define COMM_MAX_MESSAGES 256
#define COMM_MAX_KEPT     64

#define COMM_PAGE         4096
#define COMM_WINDOW       (1u << 20)
#define COMM_OPEN_WINDOWS 3
#define COMM_EAGER_BUDGET 65536
#define COMM_EAGER_MOST   16384 /* staged bytes to one peer of an operation that may go eagerly */
#define COMM_NONE         UINT32_MAX

/* Tags of sends and receives from here on are the communicator's own: of the parts of an exchange. */
#define COMM_TAGS         (UINT32_MAX - 15)
#define COMM_TAG_GATHER   (COMM_TAGS + 0)
#define COMM_TAG_SCATTER  (COMM_TAGS + 1)
#define COMM_TAG_ALLTOALL (COMM_TAGS + 2)
#define RECV_STARTED      UINT8_MAX /* in run->waits: a RECV takes its data directly from now on */

_Static_assert((COMM_RING & (COMM_RING - 1)) == 0 && COMM_RING > COMM_MAX_OPS + 2 * COMM_MAX_AHEAD,
               "ring of calls");
_Static_assert(DATA_PIECE_MAX % COMM_PAGE == 0 && COMM_PAGE % 8 == 0,
               "pieces end at pages, pages at elements");

/* ---- Transport: byte streams to each peer. All on the I/O thread but wake -------------------- */

typedef struct comm_transport {
    /* Bytes taken or got; 0: none now; -1: the stream is broken, errno tells (0: the peer closed it). */
    ssize_t (*send)(void *self, uint32_t peer, const struct iovec *iov, int n);
    ssize_t (*receive)(void *self, uint32_t peer, const struct iovec *iov, int n);
    void (*want_write)(void *self, uint32_t peer, bool on); /* call exec_writable when it takes bytes again */
    bool (*drained)(void *self, uint32_t peer);             /* the other side has all that was sent */
    void (*drop)(void *self, uint32_t peer);                /* close this stream */
    void (*tick_in)(void *self, ns_t after);                /* call exec_tick once, then */
    ns_t (*now)(void *self);
    void (*wake)(void *self);          /* any thread: call exec_wake soon */
    void (*spin)(void *self, bool on); /* any thread: short waits ahead */
    ns_t (*cpu)(void *self);           /* any thread: CPU time of the I/O thread */
    /* one way, the least that was seen; 0: not known */
    ns_t (*latency)(void *self, uint32_t peer);
    bool (*is_current)(void *self); /* any thread: this is the I/O thread */
    void (*stop)(void *self);       /* close all streams, call exec_* no more */
    void (*close)(void *self); /* after stop, any other thread: no callback runs afterwards; frees self */
    bool blocking;             /* inspan_op_wait may sleep: somebody else runs the I/O thread */
} comm_transport_t;

/* ---- Plans and runs -------------------------------------------------------------------------- */

typedef struct comm_run comm_run_t;

typedef struct comm_plan { /* read-only once built, but for the last three */
    data_call_t call;
    schedule_t *schedule;
    uint32_t element_size;
    uint64_t bytes;             /* of the whole buffer */
    uint8_t *waits;             /* (n_ops) operations each one waits for */
    uint32_t *dependents_first; /* (n_ops + 1) into dependents */
    uint32_t *dependents;
    uint32_t *sends_first, *sends;     /* (world + 1), operations per peer in list order */
    uint32_t *recvs_first, *recvs;     /* (world + 1), operations per peer by (chunk, tag) */
    uint32_t *position;                /* (n_ops) of a SEND in its peer's sends */
    uint32_t *bits_first;              /* (world + 1) first word of each peer's bitmaps */
    uint64_t *staged_to, *staged_from; /* (world) bytes in pages that need credit */
    uint64_t
        *encoded_at; /* (n_chunks) of a sum made here that goes out in another type: where it is kept so */
    uint64_t encoded_bytes;
    comm_run_t *free_runs; /* under comm->lock */
    uint32_t users;        /* runs in use; under comm->lock */
    uint64_t last_use;
} comm_plan_t;

/* A chain of staged pages: bytes of one transfer that came before they could be placed. */
typedef struct page_chain {
    uint32_t first, last; /* COMM_NONE: empty */
} page_chain_t;

struct comm_run {
    comm_plan_t *plan;
    comm_run_t *next; /* of the plan's free runs, or of those waiting to begin */
    inspan_op_t *op;  /* NULL: finished already, by the backend's thread */
    uint64_t seq;
    ns_t since;
    const uint8_t *in;
    uint8_t *out, *tmp;
    uint64_t in_first, out_first; /* elements of the whole buffer that lie before in, out */
    uint8_t
        *encoded;   /* (encoded_bytes) sums as they go out: encoded once, however many there are to send to */
    float *error;   /* (count) or NULL: what rounding took away */
    uint32_t left;  /* operations not finished */
    bool open;      /* has windows */
    uint8_t *waits; /* (n_ops) what it still waits for, or RECV_STARTED */
    uint64_t *moved;     /* (n_ops) SEND: bytes handed to frames; RECV: bytes placed; as on the wire */
    uint64_t *arrived;   /* (n_ops) RECV: bytes of complete pieces, placed or staged */
    uint8_t *whole;      /* (n_ops) RECV: its last piece arrived */
    page_chain_t *chain; /* (n_ops) RECV: staged */
    uint32_t *work;      /* (n_ops) queue of operations that may start and are no SEND */
    uint32_t work_head, work_tail;
    uint32_t *n_ready; /* (world) bits set in them */
    uint64_t
        *ready[2];    /* bitmaps of SENDs that may start, per peer by position; [1]: those that need credit */
    uint64_t *window; /* (world) what the peer may still send */
    uint64_t *to_tell;     /* (world) credit not yet told */
    uint8_t *tell;         /* (world) it is worth a frame; counted in credits_due */
    uint64_t *uncovered;   /* (world) staged bytes for which no credit was told yet */
    bool held;             /* by the backend, which has its buffers */
    inspan_status_t ended; /* what the backend said of it */
    backend_fault_t fault;
};

/* ---- Handles --------------------------------------------------------------------------------- */

typedef enum op_state { OP_FREE, OP_PENDING, OP_DONE } op_state_t;

/*
 * A send or a receive. It lives in its handle, so it needs no memory of its own, and the handle's index is
 * the slot that the peer's frames name. `phase` is the I/O thread's alone; the rest the caller fills in
 * before it hands the transfer over.
 *
 *   SEND:    IDLE -> UNMET (in peer.sends) -WANT-> MOVING (in peer.sending, and units of tx) -> IDLE
 *   RECEIVE: IDLE -> UNMET (in peer.to_want) -WANT is out-> MOVING (found by its slot) -> IDLE
 */
typedef enum transfer_phase { TRANSFER_IDLE, TRANSFER_UNMET, TRANSFER_MOVING } transfer_phase_t;

typedef struct comm_transfer {
    transfer_phase_t phase;
    bool receive;
    uint8_t dtype;
    uint32_t peer, tag;
    uint8_t *data; /* (bytes) the caller's; of a SEND only read */
    uint64_t count, bytes;
    uint64_t moved;  /* SEND: bytes handed to frames; RECEIVE: bytes of whole parts */
    uint64_t number; /* of the receive, among the receiver's from this sender */
    uint32_t slot;   /* of the receive, at the receiver */
    ns_t since;
    inspan_op_t *op;
    struct comm_transfer *next;
} comm_transfer_t;

typedef struct transfer_queue {
    comm_transfer_t *first, *last;
} transfer_queue_t;

typedef struct want { /* a receive that the peer has started and that no send here has met yet */
    uint64_t number, count;
    uint32_t slot, tag;
    uint8_t dtype;
} want_t;

struct inspan_op {
    inspan_comm_t *comm;
    op_state_t state;
    inspan_status_t status;
    bool small; /* who waits for it polls */
    os_cond_t finished;
    comm_done_fn done;
    void *done_context;
    inspan_op_t *next_free;
    comm_transfer_t transfer;
    uint32_t parts_left; /* of an exchange; I/O thread, once it is started */
    inspan_status_t parts_status;
};

/* ---- Peers ----------------------------------------------------------------------------------- */

typedef struct comm_message_node {
    struct comm_message_node *next;
    uint32_t bytes;
    uint8_t data[COMM_MESSAGE_MAX];
} comm_message_node_t;

typedef struct message_queue {
    comm_message_node_t *first, *last;
    uint32_t n;
} message_queue_t;

typedef enum rx_mode { RX_HEADER, RX_CONTROL, RX_PLACE, RX_APPLY, RX_STAGE, RX_DISCARD } rx_mode_t;

#define RX_LOOK        8192
#define RX_PIECE_PAGES (DATA_PIECE_MAX / COMM_PAGE)

typedef struct rx {
    rx_mode_t mode;
    data_frame_t frame;
    uint32_t left;   /* of the payload */
    uint8_t *at;     /* PLACE, APPLY: where the next byte or element goes */
    comm_run_t *run; /* of a piece; NULL: it came before the operation was started */
    uint32_t op;
    comm_transfer_t *transfer; /* of a part; else NULL */
    uint32_t carry;            /* APPLY: bytes of a split unit */
    uint8_t carried[CODEC_UNIT_MAX];
    uint32_t pages[RX_PIECE_PAGES], n_pages; /* STAGE */
    uint8_t look[RX_LOOK];                   /* bytes read ahead */
    uint32_t look_at, look_end;
    uint8_t control[DATA_MESSAGE_MAX];
} rx_t;

#define TX_UNITS   8
#define TX_BYTES   (4 * DATA_PIECE_MAX)
#define TX_CONTROL 12288
#define TX_NO_SLOT UINT8_MAX

typedef struct tx_unit {
    uint8_t header[DATA_HEADER_BYTES];
    uint32_t header_bytes; /* 0 for control: its frames lie ready in tx.control */
    const uint8_t *payload;
    uint32_t bytes;
    comm_run_t *run;           /* of a piece, else NULL */
    comm_transfer_t *transfer; /* of a part, else NULL */
    uint32_t op;
    uint8_t slot; /* of tx.encoded, or TX_NO_SLOT */
    bool last;    /* of its SEND, or of its transfer */
} tx_unit_t;

typedef struct tx {
    tx_unit_t units[TX_UNITS];
    uint32_t n;
    uint32_t sent;   /* bytes of units[0] that are gone */
    uint64_t bytes;  /* in units, payload */
    uint64_t posted; /* last operation told by POST */
    bool blocked, control_busy;
    bool part_next;        /* pieces of collectives and parts of sends go in turns */
    bool ping, bye, abort; /* to be sent */
    bool bye_sent;
    ns_t last;
    uint8_t *encoded; /* (TX_UNITS, DATA_PIECE_MAX) pieces in another type than they lie in; NULL: none ever
                         were */
    uint8_t slots;    /* bits: which of encoded are in use */
    uint8_t *rescue;  /* (DATA_PIECE_MAX) rest of a piece whose buffer is no longer ours */
    uint8_t control[TX_CONTROL];
} tx_t;

typedef struct peer_call { /* what the peer said about an operation */
    uint64_t seq;
    data_call_t call;
    uint64_t credit;
} peer_call_t;

typedef struct early { /* a transfer that came before the operation was started here */
    uint64_t seq;      /* 0: free */
    uint32_t chunk, tag;
    uint64_t arrived;
    page_chain_t chain;
} early_t;

#define MAX_EARLY (COMM_EAGER_BUDGET / COMM_PAGE)

typedef struct comm_peer {
    bool gone;              /* the stream is closed */
    bool bye;               /* it closed in order: no operation beyond `posted` will come */
    bool aborted;           /* it sent its cause */
    bool last_word;         /* and it will send no other */
    bool deaf;              /* what it sends goes nowhere; it is still told the cause */
    int broken;             /* errno of a send to it that failed */
    bool dirty;             /* something to send */
    uint64_t posted;        /* its last operation */
    uint64_t eager_in;      /* eager budget that it has left */
    uint64_t eager_out;     /* that we have left */
    uint64_t eager_to_tell; /* consumed, not yet told */
    uint32_t credits_due;   /* runs whose to_tell is worth a frame */
    ns_t heard;             /* last bytes from it */
    early_t early[MAX_EARLY];
    peer_call_t *calls;       /* (COMM_RING) by sequence number */
    transfer_queue_t sends;   /* to it, no receive has met them yet; in call order */
    transfer_queue_t sending; /* to it, under way; each sends a part in turn */
    transfer_queue_t to_want; /* receives from it that it was not told of yet */
    uint64_t wants_out;       /* number of our last receive from it */
    uint64_t wants_in;        /* number of its last receive from us */
    want_t *wants;            /* (COMM_MAX_OPS) those that no send has met, in call order: it has no more */
    uint32_t n_wants;
    message_queue_t messages; /* to it; under lock */
    message_queue_t kept;     /* from it, before there was a handler */
    rx_t rx;
    tx_t tx;
} comm_peer_t;

/* ---- The communicator ------------------------------------------------------------------------ */

typedef struct page {
    uint32_t next;
    uint32_t bytes; /* used */
    uint8_t charge; /* DATA_EAGER, DATA_WINDOW or 0 */
} page_t;

typedef struct stage {
    uint8_t *memory; /* (n, COMM_PAGE) */
    page_t *pages;
    uint32_t n, free;
} stage_t;

#define COMM_MAX_LISTENERS 4

typedef struct failure_listener {
    comm_failure_fn fn; /* NULL: free */
    void *context;
    bool told;
} failure_listener_t;

/* ---- The tuner ------------------------------------------------------------------------------- */

#define TUNE_TIERS 8 /* of sizes: 4 KiB, 16 KiB, ... 64 MiB */

typedef struct tune_choice {
    sched_algorithm_t algorithm;
    bool equal;      /* shards */
    double *weights; /* (world) */
    ns_t predicted;  /* of the tier's size */
} tune_choice_t;

typedef struct tune { /* calling threads, one at a time */
    bool chosen;
    ns_t hop; /* least time of a short operation: one hop, program to program; 0: not known */
    tune_choice_t choices[TUNE_TIERS];
    bool shared;     /* not equally: */
    double *shares;  /* (world) of all-reduces by the direct schedule, where nothing else is chosen */
    double *weights; /* (TUNE_TIERS, world) */
    /* (world, 2 world) what this rank says, what all say, what the choices are of */
    float *own, *table, *used;
    int32_t *words; /* the choices, to be sent */
} tune_t;

typedef struct comm_engine comm_engine_t; /* backends/engine.h */

typedef enum comm_health { COMM_HEALTHY, COMM_SETTLING, COMM_FAILED } comm_health_t;

struct inspan_comm {
    uint64_t job, view;
    uint32_t rank, world;
    inspan_member_t *members;
    ns_t failure_timeout;
    inspan_schedule_t forced;
    double *weights; /* (world) or NULL */
    uint64_t chunk_bytes;
    const comm_transport_t *transport;
    void *transport_self;
    comm_engine_t *engine; /* NULL: native */

    /* Calling threads, one at a time. */
    tune_t tune;
    comm_plan_t *plans[COMM_MAX_PLANS];
    uint32_t n_plans;
    uint64_t plan_clock;

    /* Under lock. */
    pthread_mutex_t lock;
    os_cond_t changed; /* closed, handler_running */
    inspan_op_t ops[COMM_MAX_OPS];
    inspan_op_t *free_ops;
    uint32_t pending;
    comm_run_t *queued_first, *queued_last;
    transfer_queue_t queued_transfers;
    comm_run_t *given_back_first, *given_back_last; /* by the backend */
    bool failed;                                    /* cause is final */
    bool wake_sent;
    inspan_cause_t cause;
    bool proposed; /* a cause from another thread waits in proposal */
    inspan_cause_t proposal;
    ns_t expired; /* an operation that is pending for so long has failed, says the caller; 0: none */
    bool closing, closed;
    comm_message_fn on_message;
    void *on_message_context;
    failure_listener_t listeners[COMM_MAX_LISTENERS];
    bool handler_running;
    comm_message_node_t *message_nodes, *free_messages;
    uint64_t operations;
    ns_t busy_since, busy;
    float *measured; /* (2 world) the own row of the table of links (tune.c), but for the hop */

    /* I/O thread. */
    comm_health_t health;
    ns_t settle_since, close_until, last_tick;
    bool last_word;                           /* this rank adds no cause of its own any more */
    comm_run_t *waiting_first, *waiting_last; /* started, not yet begun */
    comm_run_t *runs[COMM_RING];              /* active, by sequence number */
    data_call_t calls[COMM_RING];             /* own, by sequence number */
    uint64_t oldest, posted;                  /* active ones lie in [oldest, posted] */
    uint32_t n_active, n_open, n_held;
    uint32_t n_transfers; /* begun, not finished */
    bool working;         /* some run has work queued */
    uint8_t *scratch;     /* (DATA_PIECE_MAX + CODEC_UNIT_MAX) bytes to be reduced or converted */
    stage_t stage;
    comm_peer_t *peers; /* (world) */
    meter_t meter;
    ns_t delays_at;          /* latencies were looked at */
    meter_stream_t *streams; /* (world) the meter's */
    atomic_uint_least64_t bytes_sent, bytes_received;
};

static inline comm_run_t *exec_run(const inspan_comm_t *comm, uint64_t seq)
{
    if (seq < comm->oldest || seq > comm->posted) return NULL;
    return comm->runs[seq % COMM_RING];
}

/* What people call a rank of the communicator. */
static inline uint32_t comm_number(const inspan_comm_t *comm, uint32_t rank)
{
    return comm->members[rank].number;
}

static inline uint64_t pages_cost(uint64_t bytes)
{
    return bytes == 0 ? COMM_PAGE : (bytes + COMM_PAGE - 1) / COMM_PAGE * COMM_PAGE;
}

/* Where an operation's data lie. in_first, out_first: elements of the whole that lie before in and out, which
 * are never touched. */
typedef struct comm_buffers {
    const void *in;
    void *out;
    float *error; /* or NULL */
    uint64_t in_first, out_first;
} comm_buffers_t;

/* comm.c */
/* What its shape says of a call; its algorithm and layout come with the plan. */
data_call_t comm_call_of(sched_collective_t collective, uint64_t count, inspan_dtype_t dtype,
                         inspan_reduction_t reduction);
/* Start it; arguments were checked. NO_MEMORY, LIMIT, or the cause's status. */
inspan_status_t comm_start(inspan_comm_t *comm, data_call_t call, const comm_buffers_t *buffers,
                           inspan_op_t **op);
bool comm_overlap(const void *a, uint64_t a_bytes, const void *b, uint64_t b_bytes);
/* With the lock held: a handle for a new operation (LIMIT, ABORTED, or the cause's status); give one back
 * that was not used; hand a transfer over (what: receive, dtype, peer, tag, data, count). */
inspan_status_t comm_take_op(inspan_comm_t *comm, uint64_t bytes, inspan_op_t **op);
void comm_return_op(inspan_comm_t *comm, inspan_op_t *op);
void comm_queue_transfer(inspan_comm_t *comm, inspan_op_t *op, const comm_transfer_t *what);
inspan_status_t comm_create(const comm_options_t *options, const comm_transport_t *transport, void *self,
                            inspan_comm_t **comm, inspan_error_t *err);
void comm_free(inspan_comm_t *comm); /* not its transport */
void comm_wake(inspan_comm_t *comm);
void comm_op_finish(inspan_comm_t *comm, inspan_op_t *op, inspan_status_t status); /* I/O thread */
/* Well, on any other thread, with the lock held: where it is waited for. false: its callback is the I/O
 * thread's. */
bool comm_op_finish_early(inspan_comm_t *comm, inspan_op_t *op);
void comm_own_cause(const inspan_comm_t *comm, inspan_cause_t *cause, const char *operation,
                    const char *what); /* this rank is at fault: "rank N (node X) `what`" */
void comm_describe_call(const inspan_comm_t *comm, const data_call_t *call, uint64_t seq, char *text,
                        size_t size);
const char *comm_dtype_name(uint8_t dtype);
inspan_status_t comm_check_options(const comm_options_t *options, inspan_error_t *err);

/* plan.c */
inspan_status_t plan_get(inspan_comm_t *comm, const data_call_t *call, comm_plan_t **plan);
inspan_status_t plan_take_run(inspan_comm_t *comm, comm_plan_t *plan, comm_run_t **run);
void plan_return_run(comm_run_t *run); /* under lock */
void plan_free_all(inspan_comm_t *comm);
uint64_t plan_chunk_bytes(const inspan_comm_t *comm, uint64_t bytes); /* for an operation of so many */
/* Of an operation's chunk: how it goes over the wire (FP32: as it lies), its elements, its bytes on the wire,
 * what of them belongs together, and how many elements so many of them are. */
inspan_wire_t plan_wire(const comm_plan_t *plan, uint32_t op);
uint64_t plan_count(const comm_plan_t *plan, uint32_t op);
uint64_t plan_bytes(const comm_plan_t *plan, uint32_t op);
uint32_t plan_unit(const comm_plan_t *plan, uint32_t op);
uint64_t plan_elements(const comm_plan_t *plan, uint32_t op, uint64_t bytes);
/* Where the element behind `moved` bytes of the wire (whole units) lies for the side `buffer`, and its error
 * (NULL: nobody wants it). */
uint8_t *run_place(const comm_run_t *run, uint32_t op, sched_buffer_t buffer, uint64_t moved);
float *run_error(const comm_run_t *run, uint32_t op, uint64_t moved);
/* May a piece of so many bytes end here, `left` bytes before the chunk's end? */
bool plan_whole(const comm_plan_t *plan, uint32_t op, uint64_t bytes, uint64_t left);
/* The RECV of (peer, chunk, tag), or COMM_NONE. */
uint32_t plan_find_recv(const comm_plan_t *plan, uint32_t peer, uint32_t chunk, uint32_t tag);

/* exec.c: entry points of the transport, on the I/O thread */
void exec_wake(inspan_comm_t *comm);
void exec_readable(inspan_comm_t *comm, uint32_t peer);
void exec_writable(inspan_comm_t *comm, uint32_t peer);
void exec_tick(inspan_comm_t *comm);
/* exec.c: for rx and tx */
void exec_finish_op(inspan_comm_t *comm, comm_run_t *run, uint32_t op);
void exec_apply(const comm_run_t *run, uint32_t op, uint8_t *to, const uint8_t *bytes, uint32_t n);
void exec_consume(inspan_comm_t *comm, comm_run_t *run,
                  uint32_t op); /* place what is staged of a RECV that may */
void exec_credit(inspan_comm_t *comm, comm_run_t *run, uint32_t peer, uint64_t cost, bool eager);
void exec_mark(inspan_comm_t *comm, uint32_t peer);
void exec_drop_all(inspan_comm_t *comm, inspan_status_t status); /* end all runs */
void exec_check_call(inspan_comm_t *comm, uint32_t peer, uint64_t seq);
void exec_run_end(inspan_comm_t *comm, comm_run_t *run, inspan_status_t status); /* in any way */
void exec_run_done(inspan_comm_t *comm, comm_run_t *run);                        /* well */
void exec_listen(inspan_comm_t *comm); /* before something begins: peers' silence counts from now on */

/* transfer.c */
void transfer_push(transfer_queue_t *queue, comm_transfer_t *transfer);
comm_transfer_t *transfer_pop(transfer_queue_t *queue); /* NULL: empty */
void transfer_begin(inspan_comm_t *comm, comm_transfer_t *transfer);
void transfer_wanted(inspan_comm_t *comm, uint32_t peer, const want_t *want); /* by the peer, from us */
/* The receive that a part from the peer belongs to; NULL: none, *wrong says why. */
comm_transfer_t *transfer_find(inspan_comm_t *comm, uint32_t peer, const data_frame_t *part,
                               const char **wrong);
void transfer_advance(inspan_comm_t *comm, comm_transfer_t *transfer, uint32_t bytes); /* came in whole */
void transfer_finish(inspan_comm_t *comm, comm_transfer_t *transfer, inspan_status_t status);
uint64_t
transfer_copy(inspan_comm_t *comm); /* a piece from oneself to oneself; bytes, at least 1, or 0: none */
bool transfer_with(const inspan_comm_t *comm, uint32_t peer); /* some are under way with it */
const comm_transfer_t *transfer_oldest(const inspan_comm_t *comm);
void transfer_describe(const comm_transfer_t *transfer, char *text, size_t size);
void transfer_drop_all(inspan_comm_t *comm, inspan_status_t status);

/* rx.c, tx.c */
void rx_read(inspan_comm_t *comm, uint32_t peer);
void rx_closed(inspan_comm_t *comm, uint32_t peer, int error); /* the stream is broken; 0: it ended */
void rx_discard(inspan_comm_t *comm, uint32_t peer); /* what is being received goes nowhere any more */
void tx_flush(inspan_comm_t *comm, uint32_t peer);
void tx_rescue(inspan_comm_t *comm, uint32_t peer); /* let go of all buffers of operations */
bool tx_idle(const inspan_comm_t *comm, uint32_t peer);
inspan_status_t tx_open_encoded(inspan_comm_t *comm); /* calling thread, before what needs it is started */

/* tune.c */
inspan_status_t tune_open(inspan_comm_t *comm);
void tune_close(inspan_comm_t *comm);
void tune_note(inspan_comm_t *comm); /* I/O thread: nothing is active any more, what was measured counts */
uint64_t tune_tier_bytes(uint32_t tier);
/* What carries a call; NULL: nothing was chosen for it. */
const tune_choice_t *tune_choice(const inspan_comm_t *comm, uint8_t collective, uint64_t bytes);

/* stage.c */
inspan_status_t stage_open(stage_t *stage, uint32_t peers);
void stage_close(stage_t *stage);
uint32_t stage_take(stage_t *stage); /* COMM_NONE: none left, a peer passed its credit */
void stage_give(stage_t *stage, uint32_t page);
void stage_append(stage_t *stage, page_chain_t *chain, uint32_t page);

/* fail.c */
void fail_propose(inspan_comm_t *comm, const inspan_cause_t *cause); /* found by this rank */
void fail_heard(inspan_comm_t *comm, uint32_t peer, const inspan_cause_t *cause, bool last_word);
void fail_settle(inspan_comm_t *comm, bool now); /* make the cause final, if its time has come or `now` */
void fail_peer(inspan_comm_t *comm, uint32_t peer, inspan_status_t status, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
void fail_protocol(inspan_comm_t *comm, uint32_t peer, const char *what);
/* The oldest operation, if it is pending for so long: whom does it wait for? */
void fail_expired(inspan_comm_t *comm, ns_t pending);
void fail_tell_listeners(inspan_comm_t *comm);

/* message.c */
void message_wait_for_handler(inspan_comm_t *comm); /* lock held: no callback of the user runs any more */
void message_arrived(inspan_comm_t *comm, uint32_t peer, const uint8_t *data, size_t bytes);
void message_deliver_kept(inspan_comm_t *comm); /* own messages, and kept ones once there is a handler */
size_t message_take(inspan_comm_t *comm, uint32_t peer, uint8_t *frames,
                    size_t room); /* as frames, ready to send */
inspan_status_t message_open(inspan_comm_t *comm);
void message_close(inspan_comm_t *comm);

#endif
