/*
 * The built-in gemm: what remains where neither library can be trusted or found, and what the tests compare
 * with. Blocks of A and panels of B are packed onto the stack so that the inner kernel reads both in order:
 * MR x NR results stay in registers over a run of KC products (Goto, van de Geijn 2008).
 */
#include "nn/kernels_gemm.h"

#include "nn/simd.h"

#if defined(__AVX512F__)
#define MR 12
#elif defined(__AVX2__)
#define MR 6
#else
#define MR 4
#endif
#define NR ((size_t)(2 * LANES))
#define KC ((size_t)256)
#define MC ((size_t)(MR * 8))

/*
 * packed[p][i] = alpha op(a)[i][p] in panels of MR rows, zero beyond `rows`. The inner loop runs along the
 * memory of a; the stores, which are strided for one of the two, stay in the first-level cache.
 */
static void pack_a(bool transpose, size_t rows, size_t depth, const real_t *a, size_t lda, real_t alpha,
                   real_t *packed)
{
    for (size_t first = 0; first < rows; first += MR, packed += depth * MR) {
        size_t used = rows - first < MR ? rows - first : MR;
        if (used < MR) memset(packed, 0, depth * MR * sizeof *packed);
        if (transpose) {
            const real_t *from = a + first;
            for (size_t p = 0; p < depth; p++, from += lda)
                for (size_t i = 0; i < used; i++) packed[p * MR + i] = alpha * from[i];
        } else {
            const real_t *from = a + first * lda;
            for (size_t i = 0; i < used; i++, from += lda)
                for (size_t p = 0; p < depth; p++) packed[p * MR + i] = alpha * from[p];
        }
    }
}

/* packed[p][j] = op(b)[p][j] for one panel of NR columns, zero beyond `columns`. */
static void pack_b(bool transpose, size_t depth, size_t columns, const real_t *b, size_t ldb, real_t *packed)
{
    if (columns < NR) memset(packed, 0, depth * NR * sizeof *packed);
    if (transpose) {
        for (size_t j = 0; j < columns; j++, b += ldb)
            for (size_t p = 0; p < depth; p++) packed[p * NR + j] = b[p];
    } else {
        for (size_t p = 0; p < depth; p++, b += ldb) memcpy(packed + p * NR, b, columns * sizeof *packed);
    }
}

/* out (MR, NR) = a (depth, MR)^T b (depth, NR) */
static inline void multiply(size_t depth, const real_t *a, const real_t *b, real_t *out)
{
    vec_real_t left[MR], right[MR];
#pragma GCC unroll 16
    for (int i = 0; i < MR; i++) left[i] = right[i] = (vec_real_t){0};
    for (size_t p = 0; p < depth; p++, a += MR, b += NR) {
        vec_real_t b0 = v_load(b), b1 = v_load(b + LANES);
#pragma GCC unroll 16
        for (int i = 0; i < MR; i++) {
            left[i] += a[i] * b0;
            right[i] += a[i] * b1;
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < MR; i++) {
        v_store(out + (size_t)i * NR, left[i]);
        v_store(out + (size_t)i * NR + LANES, right[i]);
    }
}

static void store(size_t rows, size_t columns, const real_t *out, real_t beta, real_t *c, size_t ldc)
{
    for (size_t i = 0; i < rows; i++, c += ldc, out += NR) {
        FOR_VECTORS(j, w, columns)
        {
            vec_real_t sum = v_load(out + j);
            if (beta != 0) sum += beta * v_load_part(c + j, w, 0);
            v_store_part(c + j, w, sum);
        }
    }
}

static void block(bool transpose_b, size_t rows, size_t n, size_t depth, const real_t *packed_a,
                  const real_t *b, size_t ldb, real_t beta, real_t *c, size_t ldc)
{
    real_t packed_b[KC * NR] __attribute__((aligned(64)));
    real_t out[MR * NR] __attribute__((aligned(64)));
    for (size_t j = 0; j < n; j += NR) {
        size_t columns = n - j < NR ? n - j : NR;
        pack_b(transpose_b, depth, columns, b + (transpose_b ? j * ldb : j), ldb, packed_b);
        for (size_t i = 0; i < rows; i += MR) {
            multiply(depth, packed_a + i * depth, packed_b, out);
            store(rows - i < MR ? rows - i : MR, columns, out, beta, c + i * ldc + j, ldc);
        }
    }
}

void KERNEL(gemm)(bool transpose_a, bool transpose_b, size_t m, size_t n, size_t k, real_t alpha,
                  const real_t *a, size_t lda, const real_t *b, size_t ldb, real_t beta, real_t *c,
                  size_t ldc)
{
    real_t packed_a[MC * KC] __attribute__((aligned(64)));
    if (k == 0)
        for (size_t i = 0; i < m; i++)
            for (size_t j = 0; j < n; j++) c[i * ldc + j] = beta == 0 ? 0 : beta * c[i * ldc + j];
    for (size_t p = 0; p < k; p += KC) {
        size_t depth = k - p < KC ? k - p : KC;
        for (size_t i = 0; i < m; i += MC) {
            size_t rows = m - i < MC ? m - i : MC;
            pack_a(transpose_a, rows, depth, a + (transpose_a ? p * lda + i : i * lda + p), lda, alpha,
                   packed_a);
            block(transpose_b, rows, n, depth, packed_a, b + (transpose_b ? p : p * ldb), ldb,
                  p == 0 ? beta : 1, c + i * ldc, ldc);
        }
    }
}
