/*
 * What Inspan's layer over libgloo costs: two ranks in this process, an all-reduce by libgloo alone and one
 * through the communicator in turns, the median of the differences.
 *
 *     gloo-overhead FOLDER BYTES ITERATIONS     FOLDER: where inspan-gloo.so is
 */
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/backends/gloo/gloo_shim.h"
#include "comm/comm.h"
#include "comm/reduce.h"
#include "platform/os/os_time.h"

#define WARM_UP 5

typedef struct bench {
    const gloo_shim_t *shim;
    uint64_t count, iterations;
    inspan_member_t members[2];
    comm_listener_t *listeners[2];
    int sockets[2];
    pthread_barrier_t together;
    double *direct, *layered, *difference;
} bench_t;

typedef struct rank {
    bench_t *bench;
    uint32_t rank;
} rank_t;

static void end(const char *what)
{
    fprintf(stderr, "gloo-overhead: %s\n", what);
    exit(1);
}

/* A connection over loopback, as two ranks would have it. */
static void connect_pair(int fds[2])
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    fds[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(listener, (struct sockaddr *)&address, length) != 0 || listen(listener, 1) != 0 ||
        getsockname(listener, (struct sockaddr *)&address, &length) != 0 ||
        connect(fds[0], (struct sockaddr *)&address, length) != 0)
        end("no connection over loopback");
    fds[1] = accept(listener, NULL, NULL);
    for (int i = 0; i < 2; i++) setsockopt(fds[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    close(listener);
}

static void add(const void *context, void *dst, const void *src, size_t n)
{
    (void)context;
    reduce_apply(INSPAN_FP32, INSPAN_SUM, dst, src, n);
}

static void *run_rank(void *argument)
{
    const rank_t *self = argument;
    bench_t *bench = self->bench;
    const uint32_t rank = self->rank;
    comm_io_t *io = NULL;
    inspan_comm_t *comm = NULL;
    inspan_error_t err = {0};
    char text[160];
    const int sockets[2] = {rank == 0 ? -1 : bench->sockets[1], rank == 0 ? bench->sockets[0] : -1};
    gloo_engine_t *engine = bench->shim->open(rank, 2, sockets, "127.0.0.1", 20000, text, sizeof text);
    if (engine == NULL) end(text);
    comm_options_t options = {.rank = rank,
                              .world = 2,
                              .members = bench->members,
                              .listener = bench->listeners[rank],
                              .failure_timeout = 5 * NS_PER_S,
                              .backend = "gloo"};
    if (comm_io_open(&io, &err) != INSPAN_OK) end(err.text);
    options.io = io;
    if (comm_open(&options, &comm, &err) != INSPAN_OK) end(err.text);
    float *in = calloc(bench->count, sizeof *in), *out = calloc(bench->count, sizeof *in);
    if (in == NULL || out == NULL) end("no memory");
    for (uint64_t i = 0; i < WARM_UP + bench->iterations; i++) {
        const gloo_call_t call = {.operation = GLOO_ALLREDUCE,
                                  .tag = (uint32_t)i,
                                  .element_size = 4,
                                  .count = bench->count,
                                  .in = in,
                                  .out = out,
                                  .combine = add};
        gloo_fault_t fault;
        inspan_op_t *op = NULL;
        pthread_barrier_wait(&bench->together);
        const ns_t begin = os_now();
        if (bench->shim->run(engine, &call, &fault) != 0) end(fault.text);
        const ns_t direct = os_now() - begin;
        pthread_barrier_wait(&bench->together);
        const ns_t again = os_now();
        if (inspan_allreduce(comm, in, out, bench->count, INSPAN_FP32, INSPAN_SUM, &op) != INSPAN_OK ||
            inspan_op_wait(op, 60 * NS_PER_S) != INSPAN_OK)
            end("an all-reduce failed");
        const ns_t layered = os_now() - again;
        if (rank != 0 || i < WARM_UP) continue;
        bench->direct[i - WARM_UP] = (double)direct * 1e-3;
        bench->layered[i - WARM_UP] = (double)layered * 1e-3;
        bench->difference[i - WARM_UP] = (double)(layered - direct) * 1e-3;
    }
    free(in);
    free(out);
    inspan_comm_close(comm);
    comm_io_close(io);
    bench->shim->close(engine);
    return NULL;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, uint64_t n)
{
    qsort(values, n, sizeof *values, by_value);
    return values[n / 2];
}

int main(int argc, char **argv)
{
    char path[4096];
    bench_t bench = {.count = argc == 4 ? strtoull(argv[2], NULL, 10) / 4 : 0};
    if (argc == 4) bench.iterations = strtoull(argv[3], NULL, 10);
    if (bench.count == 0 || bench.iterations == 0 || bench.iterations > 100000)
        end("usage: gloo-overhead FOLDER BYTES ITERATIONS");
    snprintf(path, sizeof path, "%s/inspan-gloo.so", argv[1]);
    setenv("INSPAN_BACKENDS", argv[1], 1);
    signal(SIGPIPE, SIG_IGN);
    void *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    gloo_shim_fn get = NULL;
    if (module != NULL) *(void **)&get = dlsym(module, GLOO_SHIM_SYMBOL);
    if (get == NULL) end("inspan-gloo.so is not there");
    bench.shim = get();
    bench.direct = calloc(3 * bench.iterations, sizeof *bench.direct);
    bench.layered = bench.direct + bench.iterations;
    bench.difference = bench.layered + bench.iterations;
    connect_pair(bench.sockets);
    pthread_barrier_init(&bench.together, NULL, 2);
    rank_t ranks[2];
    pthread_t threads[2];
    for (uint32_t r = 0; r < 2; r++) {
        inspan_member_t *member = &bench.members[r];
        if (comm_listen(0, 0, &bench.listeners[r], &member->port, NULL) != INSPAN_OK) end("no port");
        member->number = r;
        snprintf(member->node, sizeof member->node, "node-%u", r);
        snprintf(member->address, sizeof member->address, "127.0.0.1");
    }
    for (uint32_t r = 0; r < 2; r++) {
        ranks[r] = (rank_t){&bench, r};
        if (pthread_create(&threads[r], NULL, run_rank, &ranks[r]) != 0) end("no thread");
    }
    for (uint32_t r = 0; r < 2; r++) pthread_join(threads[r], NULL);
    printf("{\"bytes\": %llu, \"iterations\": %llu, \"direct_us\": %.1f, \"layered_us\": %.1f, "
           "\"difference_us\": %.1f}\n",
           (unsigned long long)bench.count * 4, (unsigned long long)bench.iterations,
           median(bench.direct, bench.iterations), median(bench.layered, bench.iterations),
           median(bench.difference, bench.iterations));
    for (uint32_t r = 0; r < 2; r++) comm_listener_close(bench.listeners[r]);
    free(bench.direct);
    return 0;
}
