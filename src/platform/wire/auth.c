#include "platform/wire/auth.h"

#include <string.h>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

inspan_status_t auth_mac(const uint8_t key[AUTH_KEY_BYTES], auth_side_t side,
                         const uint8_t hello[DATA_HELLO_BYTES], const uint8_t welcome[DATA_SIGNED_BYTES],
                         uint8_t mac[DATA_MAC_BYTES])
{
    static const char labels[2][16] = {"inspan acceptor", "inspan connect "};
    uint8_t text[sizeof labels[0] + DATA_HELLO_BYTES + DATA_SIGNED_BYTES];
    memcpy(text, labels[side], sizeof labels[0]);
    memcpy(text + sizeof labels[0], hello, DATA_HELLO_BYTES);
    memcpy(text + sizeof labels[0] + DATA_HELLO_BYTES, welcome, DATA_SIGNED_BYTES);
    unsigned length = 0;
    if (HMAC(EVP_sha256(), key, AUTH_KEY_BYTES, text, sizeof text, mac, &length) == NULL ||
        length != DATA_MAC_BYTES)
        return INSPAN_INTERNAL;
    return INSPAN_OK;
}

bool auth_equal(const uint8_t a[DATA_MAC_BYTES], const uint8_t b[DATA_MAC_BYTES])
{
    return CRYPTO_memcmp(a, b, DATA_MAC_BYTES) == 0;
}
