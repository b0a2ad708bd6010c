/* UTF-8 (RFC 3629): is what came from outside text? */
#ifndef BASE_UTF8_H
#define BASE_UTF8_H

#include <stddef.h>

/* Bytes of the character at `at`, of which `left` > 0 bytes may be read: 1 to 4, or 0 where it is none (cut
 * off, overlong, a surrogate, beyond U+10FFFF). A zero byte is a character. */
size_t utf8_length(const char *at, size_t left);

#endif
