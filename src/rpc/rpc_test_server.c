/*
 * rpc_test_service.h as a program, for what takes a process: foreign clients, kill -9, SIGSTOP, few
 * descriptors. `rpc-test-server [LISTEN]` prints its port and serves until its standard input ends. The token
 * is "secret".
 */
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#include "rpc/rpc_test_service.h"

static void *stop_at_end_of_input(void *server)
{
    char byte;
    while (read(0, &byte, 1) > 0) {
    }
    rpc_server_stop(server);
    return NULL;
}

int main(int argc, char **argv)
{
    test_service_t service = {0};
    rpc_server_options_t options = {.listen = argc > 1 ? argv[1] : "127.0.0.1:0", .token = "secret"};
    test_service_fill(&service, &options);
    rpc_server_t *server = NULL;
    uint16_t port = 0;
    inspan_error_t err = {0};
    if (rpc_server_open(&options, &server, &port, &err) != INSPAN_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    pthread_t thread;
    if (pthread_create(&thread, NULL, stop_at_end_of_input, server) != 0) return 1;
    printf("%u\n", port);
    fflush(stdout);
    rpc_server_run(server);
    pthread_join(thread, NULL);
    rpc_server_close(server);
    return 0;
}
