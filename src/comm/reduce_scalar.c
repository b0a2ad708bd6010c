/* The reference kernels: plain C, every processor. The vector kernels must give these bits. */
#include "base/half.h"
#include "comm/reduce_kernels.h"

/* Where b is a NaN it wins; where a is one, b < a fails and a stays. */
#define SAME(x)    (x)
#define SUM(a, b)  ((a) + (b))
#define MIN(a, b)  ((b) < (a) || (b) != (b) ? (b) : (a))
#define MAX(a, b)  ((b) > (a) || (b) != (b) ? (b) : (a))
#define IMIN(a, b) ((b) < (a) ? (b) : (a))
#define IMAX(a, b) ((b) > (a) ? (b) : (a))

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

KERNEL(fp32_sum, reduce_f32_t, float, SAME, SAME, SUM)
KERNEL(fp32_min, reduce_f32_t, float, SAME, SAME, MIN)
KERNEL(fp32_max, reduce_f32_t, float, SAME, SAME, MAX)
KERNEL(fp64_sum, reduce_f64_t, double, SAME, SAME, SUM)
KERNEL(fp64_min, reduce_f64_t, double, SAME, SAME, MIN)
KERNEL(fp64_max, reduce_f64_t, double, SAME, SAME, MAX)
KERNEL(fp16_sum, reduce_u16_t, float, fp16_to_fp32, fp32_to_fp16, SUM)
KERNEL(fp16_min, reduce_u16_t, float, fp16_to_fp32, fp32_to_fp16, MIN)
KERNEL(fp16_max, reduce_u16_t, float, fp16_to_fp32, fp32_to_fp16, MAX)
KERNEL(bf16_sum, reduce_u16_t, float, bf16_to_fp32, fp32_to_bf16, SUM)
KERNEL(bf16_min, reduce_u16_t, float, bf16_to_fp32, fp32_to_bf16, MIN)
KERNEL(bf16_max, reduce_u16_t, float, bf16_to_fp32, fp32_to_bf16, MAX)
KERNEL(int32_sum, reduce_u32_t, uint32_t, SAME, SAME, SUM)
KERNEL(int32_min, reduce_u32_t, int32_t, SAME, SAME, IMIN)
KERNEL(int32_max, reduce_u32_t, int32_t, SAME, SAME, IMAX)
KERNEL(int64_sum, reduce_u64_t, uint64_t, SAME, SAME, SUM)
KERNEL(int64_min, reduce_u64_t, int64_t, SAME, SAME, IMIN)
KERNEL(int64_max, reduce_u64_t, int64_t, SAME, SAME, IMAX)

const reduce_table_t reduce_scalar = {
    [INSPAN_FP32] = {fp32_sum, fp32_min, fp32_max},     [INSPAN_FP64] = {fp64_sum, fp64_min, fp64_max},
    [INSPAN_FP16] = {fp16_sum, fp16_min, fp16_max},     [INSPAN_BF16] = {bf16_sum, bf16_min, bf16_max},
    [INSPAN_INT32] = {int32_sum, int32_min, int32_max}, [INSPAN_INT64] = {int64_sum, int64_min, int64_max},
};
