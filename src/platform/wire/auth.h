/*
 * Proof that a peer holds the job's key, by HMAC-SHA256 over both sides' nonces and claims (see wire/data.h).
 * The key itself never crosses the wire. The only user of libcrypto outside the control plane. Any thread.
 */
#ifndef WIRE_AUTH_H
#define WIRE_AUTH_H

#include "platform/wire/data.h"

#define AUTH_KEY_BYTES 32

typedef enum auth_side { AUTH_ACCEPTOR, AUTH_CONNECTOR } auth_side_t; /* so that no proof can be sent back */

/* The MAC of one side over the HELLO and the signed part of the WELCOME as they crossed the wire. INTERNAL.
 */
inspan_status_t auth_mac(const uint8_t key[AUTH_KEY_BYTES], auth_side_t side,
                         const uint8_t hello[DATA_HELLO_BYTES], const uint8_t welcome[DATA_SIGNED_BYTES],
                         uint8_t mac[DATA_MAC_BYTES]);

/* In a time that does not depend on the bytes. */
bool auth_equal(const uint8_t a[DATA_MAC_BYTES], const uint8_t b[DATA_MAC_BYTES]);

#endif
