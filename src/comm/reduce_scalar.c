/* The reference kernels: plain C, every processor. The vector kernels must give these bits. */
#include "base/half.h"
#include "comm/reduce_kernels.h"

/* Where b is a NaN it wins; where a is one, b < a fails and a stays. */
#define SAME(x)       (x)
#define SUM(a, b)     ((a) + (b))
#define MIN(a, b)     ((b) < (a) || (b) != (b) ? (b) : (a))
#define MAX(a, b)     ((b) > (a) || (b) != (b) ? (b) : (a))
#define PRODUCT(a, b) ((a) * (b))
#define AND(a, b)     ((a) & (b))
#define OR(a, b)      ((a) | (b))
#define XOR(a, b)     ((a) ^ (b))
#define IMIN(a, b)    ((b) < (a) ? (b) : (a))
#define IMAX(a, b)    ((b) > (a) ? (b) : (a))

#define KERNEL(name, stored_t, value_t, from, to, op)                                                        \
    static void name(void *dst, const void *src, size_t count)                                               \
    {                                                                                                        \
        stored_t *d = dst;                                                                                   \
        const stored_t *s = src;                                                                             \
        for (size_t i = 0; i < count; i++) {                                                                 \
            const value_t a = (value_t)from(d[i]), b = (value_t)from(s[i]);                                  \
            d[i] = (stored_t)to(op(a, b));                                                                   \
        }                                                                                                    \
    }

/* Computed in value_t: floating-point types, sums of halves rounded once from fp32. */
#define FLOATS(type, stored_t, value_t, from, to)                                                            \
    KERNEL(type##_sum, stored_t, value_t, from, to, SUM)                                                     \
    KERNEL(type##_min, stored_t, value_t, from, to, MIN)                                                     \
    KERNEL(type##_max, stored_t, value_t, from, to, MAX)                                                     \
    KERNEL(type##_product, stored_t, value_t, from, to, PRODUCT)

/* signed_t: the type itself, which compares. wide_t: unsigned and no narrower than int, so that what wraps
 * around is defined. */
#define INTEGERS(type, stored_t, signed_t, wide_t)                                                           \
    KERNEL(type##_sum, stored_t, wide_t, SAME, SAME, SUM)                                                    \
    KERNEL(type##_min, stored_t, signed_t, SAME, SAME, IMIN)                                                 \
    KERNEL(type##_max, stored_t, signed_t, SAME, SAME, IMAX)                                                 \
    KERNEL(type##_product, stored_t, wide_t, SAME, SAME, PRODUCT)                                            \
    KERNEL(type##_and, stored_t, wide_t, SAME, SAME, AND)                                                    \
    KERNEL(type##_or, stored_t, wide_t, SAME, SAME, OR)                                                      \
    KERNEL(type##_xor, stored_t, wide_t, SAME, SAME, XOR)

FLOATS(fp32, reduce_f32_t, float, SAME, SAME)
FLOATS(fp64, reduce_f64_t, double, SAME, SAME)
FLOATS(fp16, reduce_u16_t, float, fp16_to_fp32, fp32_to_fp16)
FLOATS(bf16, reduce_u16_t, float, bf16_to_fp32, fp32_to_bf16)
INTEGERS(int32, reduce_u32_t, int32_t, uint32_t)
INTEGERS(int64, reduce_u64_t, int64_t, uint64_t)
INTEGERS(uint8, reduce_u8_t, uint8_t, uint32_t)
INTEGERS(int8, reduce_u8_t, int8_t, uint32_t)
INTEGERS(int16, reduce_u16_t, int16_t, uint32_t)

#define FLOAT_ROW(type)                                                                                      \
    {                                                                                                        \
        type##_sum, type##_min, type##_max, type##_product                                                   \
    }
#define INTEGER_ROW(type)                                                                                    \
    {                                                                                                        \
        type##_sum, type##_min, type##_max, type##_product, type##_and, type##_or, type##_xor                \
    }

const reduce_table_t reduce_scalar = {
    [INSPAN_FP32] = FLOAT_ROW(fp32),     [INSPAN_FP64] = FLOAT_ROW(fp64),
    [INSPAN_FP16] = FLOAT_ROW(fp16),     [INSPAN_BF16] = FLOAT_ROW(bf16),
    [INSPAN_INT32] = INTEGER_ROW(int32), [INSPAN_INT64] = INTEGER_ROW(int64),
    [INSPAN_UINT8] = INTEGER_ROW(uint8), [INSPAN_INT8] = INTEGER_ROW(int8),
    [INSPAN_INT16] = INTEGER_ROW(int16),
};
