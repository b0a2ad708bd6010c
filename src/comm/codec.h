/*
 * fp32 as it goes over the wire: as it is, or shorter.
 *
 *   TYPE   UNIT     OF ELEMENTS   WHAT
 *   fp32   4 bytes            1   the bits
 *   bf16   2                  1   rounded to nearest even; a NaN stays one, overflow is infinity
 *   fp16   2                  1   the same
 *   int8   256              255   an exponent k, then whole numbers q of -127 to 127, each rounded to nearest
 * even: q x 2^k, k the least that fits the greatest. Where one of the 255 is no finite number, or is 2^127 or
 * more, all are NaN. At the end of an array a unit is as long as what it holds, and one byte
 *
 * Encoding what was decoded gives the same bytes again, so a value that is passed on stays what it is. All
 * kernels give the same bits on every machine (but for the payload of NaNs). What rounding takes away can be
 * kept and put into what is sent the next time (error feedback: Seide and others 2014; Karimireddy and others
 * 2019).
 *
 * For fp32 itself there are sizes alone: who sends it as it is has nothing to encode.
 *
 * Threads: any, no state. Floating-point environment as of reduce.h. Nothing allocates or blocks. Arrays need
 * no alignment.
 */
#ifndef COMM_CODEC_H
#define COMM_CODEC_H

#include <inspan/comm.h>

#include "base/cpu.h"

#define CODEC_UNIT_MAX 256u /* bytes of the longest unit */

uint32_t codec_unit_bytes(inspan_wire_t wire);
uint32_t codec_unit_elements(inspan_wire_t wire);
uint64_t codec_bytes(inspan_wire_t wire, uint64_t elements); /* that so many take */
uint64_t codec_elements(inspan_wire_t wire, uint64_t bytes); /* in whole units, or to the end of an array */

/* dst (codec_bytes) = the first n elements of src encoded. */
void codec_encode(inspan_wire_t wire, void *dst, const void *src, size_t n);
/* dst (n) = src decoded, or dst + src decoded, in fp32. */
void codec_decode(inspan_wire_t wire, void *dst, const void *src, size_t n);
void codec_add(inspan_wire_t wire, void *dst, const void *src, size_t n);

/* error (n) = src - what `encoded` (n of src) says; 0 where that is no finite number. */
void codec_error(inspan_wire_t wire, void *error, const void *src, const void *encoded, size_t n);
/* dst (n) = what others make of src (add: dst + that); error as above, or NULL. */
void codec_pass(inspan_wire_t wire, bool add, void *dst, const void *src, void *error, size_t n);
/* encoded = data (n) encoded; data = what others make of it; error (or NULL) grows by what that takes away.
 */
void codec_round(inspan_wire_t wire, void *data, void *encoded, void *error, size_t n);

/* Kernels of at most `cap`, for tests: AVX-512 has none of its own. */
void codec_encode_isa(cpu_isa_t cap, inspan_wire_t wire, void *dst, const void *src, size_t n);
void codec_decode_isa(cpu_isa_t cap, inspan_wire_t wire, bool add, void *dst, const void *src, size_t n);

#endif
