#include "nn/safetensors.h"

#include <dirent.h>
#include <limits.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/rng.h"
#include "nn/nn.h"
#include "platform/os/os_file.h"

#define REFERENCE                                                                                            \
    "tests/data/reference.safetensors" /* written by the reference writer (Python's safetensors 0.8.0) */

static inspan_error_t err;
static char folder[64], path[PATH_MAX];

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/inspan-safetensors-XXXXXX");
    if (mkdtemp(folder) == NULL) return 1;
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    return os_remove_all(folder, &err) != INSPAN_OK;
}

static nn_param_t tensor(const char *name, uint32_t n_dims, uint64_t a, uint64_t b, void *weights)
{
    nn_param_t param = {.n_dims = n_dims, .shape = {a, b}, .count = 1, .weights = weights};
    snprintf(param.name, sizeof param.name, "%s", name);
    for (uint32_t i = 0; i < n_dims; i++) param.count *= param.shape[i];
    return param;
}

/* ---- There and back; the reference's file ---------------------------------------------------- */

static void reads_what_it_wrote(void **state)
{
    (void)state;
    double a[6] = {1, -2, 0.1, 1e-300, -0.0, INFINITY}, b[1] = {5}, a_back[6], b_back[1];
    float a_single[6];
    nn_param_t out[3] = {tensor("a", 2, 2, 3, a), tensor("b \"\\\xc3\xa4", 0, 0, 0, b),
                         tensor("none", 2, 0, 4, b)};
    nn_param_t in[3] = {tensor("b \"\\\xc3\xa4", 0, 0, 0, b_back), tensor("a", 2, 2, 3, a_back),
                        tensor("none", 2, 0, 4, b_back)};
    const char *metadata[] = {"format", "pt", "step", "7"};
    assert_int_equal(nn_safetensors_write(path, out, 3, NN_FP64, metadata, 2, &err), INSPAN_OK);
    assert_int_equal(nn_safetensors_read(path, in, 3, NN_FP64, &err), INSPAN_OK);
    assert_memory_equal(a, a_back, sizeof a);
    assert_true(b_back[0] == 5);
    nn_param_t single = tensor("a", 2, 2, 3, a_single);
    assert_int_equal(nn_safetensors_read(path, &single, 1, NN_FP32, &err), INSPAN_OK);
    assert_true(a_single[2] == 0.1f && a_single[3] == 0);
    assert_int_equal(nn_safetensors_write(path, NULL, 0, NN_FP32, NULL, 0, &err), INSPAN_OK);
    assert_int_equal(nn_safetensors_read(path, NULL, 0, NN_FP32, &err), INSPAN_OK);
    assert_int_equal(nn_safetensors_write("/nonexistent/x", out, 1, NN_FP64, NULL, 0, &err), INSPAN_IO);
}

static void reads_the_reference_writers_file(void **state)
{
    (void)state;
    float f32[6], f64[2], f16[6], bf16[3], scalar, named;
    nn_param_t in[] = {
        tensor("f32", 2, 2, 3, f32),        tensor("f64", 1, 2, 0, f64),
        tensor("f16", 1, 6, 0, f16),        tensor("bf16", 2, 3, 1, bf16),
        tensor("scalar", 0, 0, 0, &scalar), tensor("n\xc3\xa4me \"quoted\"", 1, 1, 0, &named),
        tensor("empty", 2, 0, 3, f32),
    };
    if (nn_safetensors_read(REFERENCE, in, 7, NN_FP32, &err) != INSPAN_OK) fail_msg("%s", err.text);
    assert_true(f32[1] == -2.25f && f32[2] == 3e-39f && f32[4] == 1e30f && signbit(f32[5]));
    assert_true(f64[0] == (float)(1 / 3.0));
    assert_true(f16[0] == 1 && f16[1] == -0.5f && f16[2] == 65504 && f16[3] == 0x1p-24f && isinf(f16[5]));
    assert_true(fabsf(f16[4] - 0.333f) < 1e-4f);
    assert_true(bf16[1] == -3.140625f && scalar == 7 && named == 5);
    double real[3];
    nn_param_t wide = tensor("bf16", 2, 3, 1, real);
    assert_int_equal(nn_safetensors_read(REFERENCE, &wide, 1, NN_FP64, &err), INSPAN_OK);
    assert_true(real[1] == -3.140625);
    nn_param_t whole = tensor("i64", 1, 3, 0, real);
    assert_int_equal(nn_safetensors_read(REFERENCE, &whole, 1, NN_FP64, &err), INSPAN_MISMATCH);
    assert_non_null(strstr(err.text, "I64"));
    nn_param_t missing = tensor("f33", 2, 2, 3, real);
    assert_int_equal(nn_safetensors_read(REFERENCE, &missing, 1, NN_FP64, &err), INSPAN_NOT_FOUND);
    nn_param_t turned = tensor("f32", 2, 3, 2, real);
    assert_int_equal(nn_safetensors_read(REFERENCE, &turned, 1, NN_FP64, &err), INSPAN_MISMATCH);
    assert_non_null(strstr(err.text, "has shape (2, 3), expected (3, 2)"));
}

/* ---- Hostile files --------------------------------------------------------------------------- */

static void put_file(uint64_t length, const char *header, size_t header_bytes, size_t data_bytes)
{
    char file[4096] = {0};
    memcpy(file, &length, 8);
    memcpy(file + 8, header, header_bytes);
    FILE *out = fopen(path, "wb"); /* not os_file_write: it waits for the disk */
    assert_non_null(out);
    assert_int_equal(fwrite(file, 1, 8 + header_bytes + data_bytes, out), 8 + header_bytes + data_bytes);
    assert_int_equal(fclose(out), 0);
}

#define T(name, dtype, shape, offsets)                                                                       \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":[" shape "],\"data_offsets\":[" offsets "]}"

typedef struct hostile {
    const char *header;
    size_t data_bytes;
    const char *text; /* NULL: a right file */
} hostile_t;

static const hostile_t hostile[] = {
    {"{" T("w", "F32", "2", "0,8") "}", 8, NULL},
    {"{" T("w", "F32", "2", "0,8") "}   \n ", 8, NULL},
    {"{" T("w", "F32", "2", "4,12") "," T("v", "F32", "", "0,4") "}", 12, NULL},
    {"{\"__metadata__\":{\"a\":\"b\"}," T("w", "F32", "2", "0,8") "}", 8, NULL},
    {"{" T("w", "F32", "2", "0,8") "," T("e", "F32", "0", "8,8") "," T("f", "I8", "0,7", "0,0") "}", 8, NULL},
    {"{" T("w", "F32", "2", "0,8") "}", 7, "truncated?"},
    {"{" T("w", "F32", "2", "0,8") "}", 0, "truncated?"},
    {"{" T("w", "F32", "2", "0,8") "}", 9, "bytes too many"},
    {"{}", 3, "bytes too many"},
    {"", 8, "does not start with '{'"},
    {" {}", 0, "does not start with '{'"},
    {"[]", 0, "does not start with '{'"},
    {"{", 0, "not JSON"},
    {"{} x", 0, "not JSON"},
    {"{" T("w", "F32", "2", "0,8") "," T("w", "F32", "2", "8,16") "}", 16, "\"w\": is there twice"},
    {"{" T("w", "F32", "2", "0,8") "," T("v", "F32", "2", "4,12") "}", 12, "tensors overlap"},
    {"{" T("w", "F32", "2", "0,8") "," T("v", "F32", "2", "0,8") "}", 8, "tensors overlap"},
    {"{" T("w", "F32", "2", "0,8") "," T("v", "F32", "2", "9,17") "}", 17, "a hole"},
    {"{" T("w", "F32", "2", "4,12") "}", 12, "a hole"},
    {"{" T("w", "F32", "2", "8,0") "}", 8, "before they begin"},
    {"{" T("w", "F32", "3", "0,8") "}", 8, "need 12 bytes"},
    {"{" T("w", "F64", "2", "0,8") "}", 8, "need 16 bytes"},
    {"{" T("w", "F32", "2", "-8,0") "}", 8, "two whole numbers"},
    {"{" T("w", "F32", "2", "0,8.5") "}", 9, "two whole numbers"},
    {"{" T("w", "F32", "2", "0,1e300") "}", 9, "two whole numbers"},
    {"{" T("w", "F32", "2", "0") "}", 8, "two whole numbers"},
    {"{" T("w", "F32", "2", "0,8,8") "}", 8, "two whole numbers"},
    {"{" T("w", "F32", "2", "0,\"8\"") "}", 8, "two whole numbers"},
    {"{" T("w", "F32", "-2", "0,8") "}", 8, "shape"},
    {"{" T("w", "F32", "1.5", "0,8") "}", 8, "shape"},
    {"{" T("w", "F32", "4294967296,4294967296,4", "0,8") "}", 8, "2^64"},
    {"{" T("w", "F64", "4294967296,2147483648", "0,8") "}", 8, "2^64 bytes"},
    {"{" T("w", "F32", "1,1,1,1,1,1,1,1,2", "0,8") "}", 8, "more than 8 dimensions"},
    {"{" T("w", "F31", "2", "0,8") "}", 8, "unknown dtype \"F31\""},
    {"{" T("w", "", "2", "0,8") "}", 8, "unknown dtype"},
    {"{\"w\":{\"dtype\":5,\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "dtype is missing"},
    {"{\"w\":{\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "dtype is missing"},
    {"{\"w\":{\"dtype\":\"F32\",\"data_offsets\":[0,8]}}", 8, "shape is missing"},
    {"{\"w\":{\"dtype\":\"F32\",\"shape\":2,\"data_offsets\":[0,8]}}", 8, "shape is missing"},
    {"{\"w\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8, "two whole numbers"},
    {"{\"w\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8,
     "dtype is there twice"},
    {"{\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"x\":1}}", 8, "unknown field \"x\""},
    {"{\"w\":7}", 0, "not an object"},
    {"{\"w\":null}", 0, "not an object"},
    {"{\"__metadata__\":{\"a\":5}," T("w", "F32", "2", "0,8") "}", 8, "not a text"},
    {"{\"__metadata__\":[]," T("w", "F32", "2", "0,8") "}", 8, "__metadata__"},
    {"{\"__metadata__\":{},\"__metadata__\":{}," T("w", "F32", "2", "0,8") "}", 8,
     "__metadata__ is there twice"},
    {"{" T("w\xff", "F32", "2", "0,8") "}", 8, "not UTF-8 at byte 3"},
    {"{" T("w\xc0\xaf", "F32", "2", "0,8") "}", 8, "not UTF-8"},
    {"{" T("w\xed\xa0\x80", "F32", "2", "0,8") "}", 8, "not UTF-8"},
    {"{" T("w\xf4\x90\x80\x80", "F32", "2", "0,8") "}", 8, "not UTF-8"},
    {"{\"w\xe2\x82", 8, "not UTF-8"},
};

static void every_hostile_file_has_its_error(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof hostile / sizeof hostile[0]; i++) {
        float weights[2] = {11, 12};
        nn_param_t in = tensor("w", 1, 2, 0, weights);
        size_t length = strlen(hostile[i].header);
        put_file(length, hostile[i].header, length, hostile[i].data_bytes);
        memset(&err, 0, sizeof err);
        inspan_status_t status = nn_safetensors_read(path, &in, 1, NN_FP32, &err);
        if (hostile[i].text == NULL) {
            if (status != INSPAN_OK) fail_msg("%s: %s", hostile[i].header, err.text);
            assert_true(weights[0] == 0);
            continue;
        }
        if (status != INSPAN_CORRUPT || strstr(err.text, hostile[i].text) == NULL ||
            strstr(err.text, "model.safetensors") == NULL)
            fail_msg("%s: '%s' lacks '%s'", hostile[i].header, err.text, hostile[i].text);
        assert_true(weights[0] == 11 && weights[1] == 12);
    }
}

static void wrong_lengths_and_things_that_are_no_files(void **state)
{
    (void)state;
    float weights[2];
    nn_param_t in = tensor("w", 1, 2, 0, weights);
    static const uint64_t lengths[] = {3, 100, 1u << 20, 15999999, 100000001, 1ull << 40, UINT64_MAX};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        put_file(lengths[i], "{}", 2, 0);
        assert_int_equal(nn_safetensors_read(path, &in, 1, NN_FP32, &err), INSPAN_CORRUPT);
        assert_non_null(strstr(err.text, "its header claims"));
    }
    put_file(16000001, "{}", 2, 0); /* refused by its length alone, though the file has so many bytes */
    assert_int_equal(truncate(path, 20 << 20), 0);
    assert_int_equal(nn_safetensors_read(path, &in, 1, NN_FP32, &err), INSPAN_CORRUPT);
    assert_non_null(strstr(err.text, "at most 16000000 are allowed"));
    for (size_t bytes = 0; bytes < 8; bytes++) {
        assert_int_equal(os_file_write(path, "\2\0\0\0\0\0\0\0", bytes, 0600, &err), INSPAN_OK);
        assert_int_equal(nn_safetensors_read(path, &in, 1, NN_FP32, &err), INSPAN_CORRUPT);
    }
    assert_int_equal(nn_safetensors_read(folder, &in, 1, NN_FP32, &err), INSPAN_IO);
    assert_int_equal(nn_safetensors_read("/nonexistent/x", &in, 1, NN_FP32, &err), INSPAN_NOT_FOUND);
    char pipe[PATH_MAX];
    snprintf(pipe, sizeof pipe, "%s/pipe", folder);
    assert_int_equal(mkfifo(pipe, 0600), 0);
    assert_int_equal(nn_safetensors_read(pipe, &in, 1, NN_FP32, &err), INSPAN_IO); /* and does not wait */
}

/* Deep nesting must not overflow the stack. */
static void nesting_is_bounded(void **state)
{
    (void)state;
    enum { DEPTH = 200000 };
    char *text = malloc(DEPTH + 8);
    assert_non_null(text);
    memcpy(text, "{\"w\":", 5);
    memset(text + 5, '[', DEPTH);
    safetensors_header_t *header = NULL;
    assert_int_equal(safetensors_header_parse(text, DEPTH, 8, &header, &err), INSPAN_CORRUPT);
    free(text);
}

/* Random damage to a right header: read outside nothing (the sanitizer watches), accept only what keeps the
 * rules. */
static void damaged_headers(void **state)
{
    (void)state;
    char *file = NULL;
    size_t bytes = 0;
    uint64_t length = 0;
    assert_int_equal(os_file_read(REFERENCE, 1 << 20, &file, &bytes, &err), INSPAN_OK);
    memcpy(&length, file, 8);
    static const char pieces[] = "{}[]\",:0123456789-.eE\\u \xc3\xff";
    rng_t rng;
    rng_seed(&rng, 5, 0);
    int accepted = 0, refused = 0;
    for (int round = 0; round < 20000; round++) {
        size_t n = length - (rng_below(&rng, 3) == 0 ? rng_below(&rng, length) : 0);
        char *damaged = malloc(n + 1); /* exactly as long as what may be read */
        assert_non_null(damaged);
        memcpy(damaged, file + 8, n);
        damaged[n] = '\0';
        for (uint64_t k = rng_below(&rng, 4) + 1; k > 0 && n > 0; k--) {
            char with =
                rng_below(&rng, 2) ? pieces[rng_below(&rng, sizeof pieces - 1)] : (char)rng_next(&rng);
            damaged[rng_below(&rng, n)] = with;
        }
        safetensors_header_t *header = NULL;
        if (safetensors_header_parse(damaged, n, bytes - 8 - length, &header, &err) == INSPAN_OK) {
            size_t n_entries = 0;
            uint64_t sum = 0;
            const safetensors_entry_t *entries = safetensors_entries(header, &n_entries);
            for (size_t i = 0; i < n_entries; i++) sum += entries[i].bytes;
            assert_int_equal(sum, bytes - 8 - length);
            accepted++;
        } else {
            assert_int_equal(err.status, INSPAN_CORRUPT);
            refused++;
        }
        safetensors_header_free(header);
        free(damaged);
    }
    assert_true(accepted > 100 && refused > 10000); /* names may change, all else may not */
    free(file);
}

/* A disk that is full (here: a limit on the file's length) leaves the earlier file whole and no half one
 * behind. */
static void a_failed_write_changes_nothing(void **state)
{
    (void)state;
    static float weights[5000];
    char *before = NULL, *after = NULL;
    size_t n_before = 0, n_after = 0;
    nn_param_t small = tensor("w", 1, 10, 0, weights), large = tensor("w", 1, 5000, 0, weights);
    assert_int_equal(nn_safetensors_write(path, &small, 1, NN_FP32, NULL, 0, &err), INSPAN_OK);
    assert_int_equal(os_file_read(path, 1 << 20, &before, &n_before, &err), INSPAN_OK);
    struct rlimit old, limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    limit = (struct rlimit){.rlim_cur = 10000, .rlim_max = old.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    inspan_status_t status = nn_safetensors_write(path, &large, 1, NN_FP32, NULL, 0, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    signal(SIGXFSZ, SIG_DFL);
    assert_int_equal(status, INSPAN_IO);
    assert_non_null(strstr(err.text, path));
    assert_int_equal(os_file_read(path, 1 << 20, &after, &n_after, &err), INSPAN_OK);
    assert_int_equal(n_before, n_after);
    assert_memory_equal(before, after, n_before);
    free(before);
    free(after);
    int entries = 0;
    DIR *listing = opendir(folder);
    assert_non_null(listing);
    for (const struct dirent *entry = readdir(listing); entry != NULL; entry = readdir(listing))
        entries += strstr(entry->d_name, ".tmp-") != NULL;
    closedir(listing);
    assert_int_equal(entries, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_what_it_wrote),
        cmocka_unit_test(reads_the_reference_writers_file),
        cmocka_unit_test(every_hostile_file_has_its_error),
        cmocka_unit_test(wrong_lengths_and_things_that_are_no_files),
        cmocka_unit_test(nesting_is_bounded),
        cmocka_unit_test(damaged_headers),
        cmocka_unit_test(a_failed_write_changes_nothing),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
