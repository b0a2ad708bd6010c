/*
 * Where things are: the state folder (--dir, $INSPAN_DIR, /var/lib/inspan for root, ~/.local/state/inspan)
 * and the manager (--manager, $INSPAN_MANAGER, client.json in the state folder) with its token (--token,
 * --token-file, $INSPAN_TOKEN, client.json).
 */
#ifndef CLI_PLACE_H
#define CLI_PLACE_H

#include <stddef.h>
#include <stdint.h>

#include <inspan/status.h>

#include "base/protocol.h"

#define PLACE_PATH_MAX 4096
#define PLACE_FOLDER_MAX                                                                                     \
    200                      /* of the state folder's path: what lies below must fit into a job's 255 bytes  \
                              */
#define PLACE_NODE_MAX   40  /* bytes of a node's name */
#define PLACE_TARGET_MAX 280 /* a host name has at most 253 bytes */
#define PLACE_TOKEN_MAX  256

/* The options that say so; NULL where not given. */
typedef struct place_options {
    const char *folder, *manager, *token, *token_file;
} place_options_t;

typedef struct place {
    char folder[PLACE_PATH_MAX];
    char manager[PLACE_TARGET_MAX]; /* "host:port", "[v6]:port" */
    char token[PLACE_TOKEN_MAX];
} place_t;

/* The state folder alone; not made. INVALID: no home folder, too long. */
inspan_status_t place_folder(const char *option, char folder[PLACE_PATH_MAX], inspan_error_t *err);

/* All of it. INVALID: malformed; NOT_FOUND: no manager is known (says how to name one). */
inspan_status_t place_find(const place_options_t *options, place_t *place, inspan_error_t *err);

/* "host", "host:port", "1.2.3.4", "fe80::1%eth0", "[::1]:7461" -> what gRPC connects to. INVALID. */
inspan_status_t place_target(const char *text, uint16_t default_port, char target[PLACE_TARGET_MAX],
                             inspan_error_t *err);

/* The token from the options or the environment; empty: none given. INVALID, or why the file cannot be read.
 */
inspan_status_t place_token(const place_options_t *options, char token[PLACE_TOKEN_MAX], inspan_error_t *err);

/* client.json in the folder (made if it is not there): mode 0600. IO. */
inspan_status_t place_save_client(const char *folder, const char *manager, const char *token,
                                  inspan_error_t *err);

/* The address under which other machines most likely reach this one: the source of the default route, else
 * the first interface that is up, else 127.0.0.1. */
void place_own_address(char *address, size_t size);

#endif
