#include "base/utf8.h"

#include <stdbool.h>

size_t utf8_length(const char *at, size_t left)
{
    const unsigned char *u = (const unsigned char *)at;
    if (u[0] < 0x80) return 1;
    size_t n = u[0] < 0xc2 || u[0] > 0xf4 ? 0 : u[0] < 0xe0 ? 2 : u[0] < 0xf0 ? 3 : 4;
    if (n == 0 || n > left) return 0;
    for (size_t i = 1; i < n; i++)
        if ((u[i] & 0xc0) != 0x80) return 0;
    bool overlong = (u[0] == 0xe0 && u[1] < 0xa0) || (u[0] == 0xf0 && u[1] < 0x90);
    bool no_character = (u[0] == 0xed && u[1] > 0x9f) || (u[0] == 0xf4 && u[1] > 0x8f);
    return overlong || no_character ? 0 : n;
}
