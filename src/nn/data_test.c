#include <limits.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/rng.h"
#include "nn/data_internal.h"
#include "platform/os/os_file.h"

static inspan_error_t err;
static char folder[64];

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/inspan-data-test-XXXXXX");
    return mkdtemp(folder) == NULL;
}

static int remove_folder(void **state)
{
    (void)state;
    return os_remove_all(folder, &err) != INSPAN_OK;
}

/* Not os_file_write: waiting for the disk thousands of times would take long. */
static void write_file(const char *path, const void *bytes, size_t n)
{
    unlink(path); /* some file systems flush a file that is written anew in place */
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

static const char *put(const char *name, const void *bytes, size_t n)
{
    static char paths[2][PATH_MAX]; /* images and labels are there at the same time */
    static int turn;
    char *path = paths[turn ^= 1];
    snprintf(path, PATH_MAX, "%s/%s", folder, name);
    write_file(path, bytes, n);
    return path;
}

static void refused(const nn_data_config_t *config, inspan_status_t expected, const char *text)
{
    nn_data_t *data = NULL;
    memset(&err, 0, sizeof err);
    inspan_status_t status = nn_data_open(config, &data, &err);
    if (status != expected || strstr(err.text, text) == NULL)
        fail_msg("status %s, '%s' lacks '%s'", inspan_status_text(status), err.text, text);
}

static nn_data_t *opened(const nn_data_config_t *config)
{
    nn_data_t *data = NULL;
    if (nn_data_open(config, &data, &err) != INSPAN_OK) fail_msg("%s", err.text);
    assert_int_equal(nn_data_reserve(data, 32), INSPAN_OK);
    return data;
}

/* ---- The order ------------------------------------------------------------------------------- */

static void every_pass_has_each_sample_once(void **state)
{
    (void)state;
    for (uint64_t n = 1; n < 300; n = n < 20 ? n + 1 : n + 37) {
        for (uint64_t pass = 0; pass < 3; pass++) {
            bool seen[300] = {false};
            for (uint64_t i = 0; i < n; i++) {
                uint64_t place = data_permute(9, pass, n, i);
                assert_true(place < n);
                assert_false(seen[place]);
                seen[place] = true;
            }
        }
    }
    int moved = 0;
    for (uint64_t i = 0; i < 1000; i++) moved += data_permute(1, 0, 1000, i) != data_permute(1, 1, 1000, i);
    assert_true(moved > 900);
    assert_true(data_permute(1, 0, UINT64_MAX, 5) < UINT64_MAX);
    /* The order belongs to a job's meaning: it is the same in every version and on every machine. */
    assert_int_equal(data_permute(1, 0, 1000, 0), 294);
    assert_int_equal(data_permute(1, 7, 1000000007, 123456789), 590608923);
}

/* ---- Text ------------------------------------------------------------------------------------ */

enum { TEXT_BYTES = 5000, CONTEXT = 16 };

static nn_data_config_t text_config(size_t bytes)
{
    static uint8_t text[TEXT_BYTES];
    for (size_t i = 0; i < TEXT_BYTES; i++) text[i] = (uint8_t)(i * 7 + i / 256);
    nn_data_config_t config = {.kind = NN_DATA_TEXT, .validation = 0.1, .context = CONTEXT, .seed = 3};
    config.path = put("text", text, bytes);
    return config;
}

static bool same_samples(nn_data_t *data, uint64_t first, uint32_t n, const uint16_t *expected)
{
    nn_batch_t batch;
    nn_data_batch(data, first, n, &batch);
    return memcmp(batch.tokens, expected, n * (CONTEXT + 1) * sizeof *expected) == 0;
}

static void text_windows_depend_on_the_position_alone(void **state)
{
    (void)state;
    nn_data_config_t config = text_config(TEXT_BYTES);
    nn_data_t *data = opened(&config), *other = opened(&config);
    assert_int_equal(nn_data_samples(data), 4500 / CONTEXT - 1);
    assert_int_equal(nn_data_validation_samples(data), 499 / CONTEXT);
    nn_model_config_t shape = {0};
    nn_data_shape(data, &shape);
    assert_int_equal(shape.vocabulary, 256);
    nn_batch_t batch;
    uint16_t kept[32 * (CONTEXT + 1)];
    for (uint64_t first = 0; first < 3 * nn_data_samples(data); first += 29) {
        nn_data_batch(data, first, 32, &batch);
        assert_int_equal(batch.samples, 32);
        memcpy(kept, batch.tokens, sizeof kept);
        for (uint32_t k = 0; k < 32; k += 5) /* in pieces, in any order, by another process */
            assert_true(same_samples(other, first + 31 - k, 1, kept + (31 - k) * (CONTEXT + 1)));
    }
    config.seed = 4;
    nn_data_t *third = opened(&config);
    assert_false(same_samples(third, 0, 32, kept));
    nn_data_close(third);
    nn_data_close(other);
    nn_data_close(data);
}

static void held_out_text_is_never_trained_on(void **state)
{
    (void)state;
    uint8_t text[2000];
    memset(text, 'a', sizeof text);
    memset(text + 1800, 'b', 200);
    nn_data_config_t config = {.kind = NN_DATA_TEXT, .validation = 0.1, .context = 7, .seed = 1};
    config.path = put("ab", text, sizeof text);
    nn_data_t *data = opened(&config);
    nn_batch_t batch;
    uint64_t passes = 40 * nn_data_samples(data);
    for (uint64_t first = 0; first < passes; first += 32) {
        nn_data_batch(data, first, 32, &batch);
        for (size_t i = 0; i < 32 * 8; i++) assert_int_equal(batch.tokens[i], 'a');
    }
    uint64_t held = nn_data_validation_samples(data);
    assert_int_equal(held, 199 / 7);
    for (uint64_t first = 0; first < held; first += 32) {
        nn_data_validation_batch(data, first, 32, &batch);
        for (size_t i = 0; i < batch.samples * 8; i++) assert_int_equal(batch.tokens[i], 'b');
    }
    nn_data_validation_batch(data, held - 1, 32, &batch);
    assert_int_equal(batch.samples, 1);
    nn_data_validation_batch(data, held, 32, &batch);
    assert_int_equal(batch.samples, 0);
    nn_data_close(data);
}

static void short_and_unreadable_texts(void **state)
{
    (void)state;
    nn_data_config_t config = text_config(CONTEXT + 1);
    config.validation = 0;
    nn_data_t *data = opened(&config); /* exactly one window */
    assert_int_equal(nn_data_samples(data), 1);
    assert_int_equal(nn_data_validation_samples(data), 0);
    nn_batch_t batch;
    nn_data_batch(data, 5, 32, &batch);
    assert_int_equal(batch.tokens[0], 0);
    nn_data_close(data);
    for (size_t bytes = CONTEXT + 2; bytes < 4 * CONTEXT; bytes++) { /* around each number of windows */
        config.path = text_config(bytes).path;
        data = opened(&config);
        for (uint64_t first = 0; first < 200; first += 32) nn_data_batch(data, first, 32, &batch);
        nn_data_close(data);
    }
    config.path = text_config(CONTEXT).path;
    refused(&config, INSPAN_INVALID, "one window of the model needs 17");
    config.path = put("empty", "", 0);
    refused(&config, INSPAN_INVALID, "empty is empty");
    config.path = text_config(100).path;
    config.validation = 0.1;
    refused(&config, INSPAN_INVALID, "held-out share 0.1 is 10 bytes");
    config.path = "/nonexistent/book.txt";
    refused(&config, INSPAN_NOT_FOUND, "/nonexistent/book.txt");
    config.path = folder;
    refused(&config, INSPAN_IO, folder);
    config.validation = 1;
    refused(&config, INSPAN_INVALID, "held-out share");
    config.validation = NAN;
    refused(&config, INSPAN_INVALID, "held-out share");
}

/* ---- IDX ------------------------------------------------------------------------------------- */

static size_t put_u32(uint8_t *to, uint32_t value)
{
    for (int i = 0; i < 4; i++) to[i] = (uint8_t)(value >> (24 - 8 * i));
    return 4;
}

static size_t make_idx(uint8_t *to, uint32_t n_dims, const uint32_t *extents, uint8_t first)
{
    size_t used = put_u32(to, 0x800 + n_dims), numbers = 1;
    for (uint32_t i = 0; i < n_dims; i++) {
        used += put_u32(to + used, extents[i]);
        numbers *= extents[i];
    }
    for (size_t i = 0; i < numbers; i++) to[used + i] = (uint8_t)(first + i);
    return used + numbers;
}

static void idx_images_and_labels(void **state)
{
    (void)state;
    uint8_t images[256], labels[64];
    uint32_t extents[] = {10, 2, 3};
    size_t n_images = make_idx(images, 3, extents, 0), n_labels = make_idx(labels, 1, extents, 0);
    for (int dtype = NN_FP32; dtype <= NN_FP64; dtype++) {
        nn_data_config_t config = {
            .kind = NN_DATA_IDX, .validation = 0.2, .seed = 1, .dtype = (nn_dtype_t)dtype};
        config.path = put("images", images, n_images);
        config.labels = put("labels", labels, n_labels);
        nn_data_t *data = opened(&config);
        nn_model_config_t shape = {0};
        nn_data_shape(data, &shape);
        assert_int_equal(shape.inputs, 6);
        assert_int_equal(shape.classes, 10);
        assert_int_equal(shape.channels, 1);
        assert_int_equal(shape.height, 2);
        assert_int_equal(shape.width, 3);
        assert_int_equal(nn_data_samples(data), 8);
        assert_int_equal(nn_data_validation_samples(data), 2);
        nn_batch_t batch;
        int seen[10] = {0};
        nn_data_batch(data, 0, 8, &batch);
        for (uint32_t k = 0; k < 8; k++) seen[batch.labels[k]]++;
        for (uint32_t k = 0; k < 8; k++) { /* label i is of the image that starts with 6 i */
            double pixel = dtype == NN_FP64 ? ((const double *)batch.features)[6 * k + 1]
                                            : (double)((const float *)batch.features)[6 * k + 1];
            assert_true(pixel == (batch.labels[k] * 6 + 1) / 256.0);
        }
        nn_data_validation_batch(data, 0, 8, &batch);
        assert_int_equal(batch.samples, 2);
        for (uint32_t k = 0; k < 2; k++) seen[batch.labels[k]]++;
        for (int i = 0; i < 10; i++) assert_int_equal(seen[i], 1);
        nn_data_close(data);
    }
}

static void broken_idx_files(void **state)
{
    (void)state;
    uint8_t images[256], labels[64], broken[256];
    uint32_t extents[] = {10, 2, 3}, huge[] = {0xffffffff, 0xffffffff, 0xffffffff}, none[] = {0, 2, 3};
    size_t n_images = make_idx(images, 3, extents, 0), n_labels = make_idx(labels, 1, extents, 0);
    nn_data_config_t config = {.kind = NN_DATA_IDX, .validation = 0.2};
    config.labels = put("labels", labels, n_labels);
    for (size_t n = 1; n < n_images; n++) { /* cut everywhere */
        config.path = put("cut", images, n);
        refused(&config, INSPAN_CORRUPT, "cut");
        config.labels = put("labels", labels, n_labels);
    }
    config.path = put("more", images, n_images + 1);
    refused(&config, INSPAN_CORRUPT, "bytes too many");
    config.labels = put("labels", labels, n_labels);
    config.path = put("empty", "", 0);
    refused(&config, INSPAN_INVALID, "is empty");
    config.labels = put("labels", labels, n_labels);
    config.path = put("gz", "\x1f\x8b\x08\x00zz", 6);
    refused(&config, INSPAN_UNSUPPORTED, "gunzip");
    config.labels = put("labels", labels, n_labels);
    memcpy(broken, images, n_images);
    broken[2] = 0x0d;
    config.path = put("reals", broken, n_images);
    refused(&config, INSPAN_UNSUPPORTED, "32-bit reals");
    config.labels = put("labels", labels, n_labels);
    broken[2] = 0x42;
    config.path = put("what", broken, n_images);
    refused(&config, INSPAN_CORRUPT, "not an IDX file");
    put_u32(broken, 0x803);
    for (int i = 0; i < 3; i++) put_u32(broken + 4 + 4 * i, huge[i]);
    config.labels = put("labels", labels, n_labels);
    config.path = put("huge", broken, n_images);
    refused(&config, INSPAN_CORRUPT, "pass 2^64");
    size_t n_none = make_idx(broken, 3, none, 0);
    config.labels = put("labels", labels, n_labels);
    config.path = put("none", broken, n_none);
    refused(&config, INSPAN_INVALID, "no samples");
    config.labels = put("images", images, n_images);
    config.path = put("labels", labels, n_labels);
    refused(&config, INSPAN_CORRUPT, "swapped");
    extents[0] = 9;
    n_labels = make_idx(labels, 1, extents, 0);
    config.path = put("images", images, n_images);
    config.labels = put("labels", labels, n_labels);
    refused(&config, INSPAN_CORRUPT, "has 9 labels");
    extents[0] = 10;
    n_labels = make_idx(labels, 1, extents, 0);
    memset(labels + 8, 0, 10);
    config.labels = put("labels", labels, n_labels);
    config.path = put("images", images, n_images);
    refused(&config, INSPAN_INVALID, "one label alone");
    config.labels = "/nonexistent/labels";
    refused(&config, INSPAN_NOT_FOUND, "/nonexistent/labels");
    config.labels = NULL;
    refused(&config, INSPAN_INVALID, "need a file of labels");
}

/* ---- CSV ------------------------------------------------------------------------------------- */

static nn_data_config_t csv_config(const char *text)
{
    nn_data_config_t config = {.kind = NN_DATA_CSV, .dtype = NN_FP64};
    config.path = put("table.csv", text, strlen(text));
    return config;
}

static void csv_tables(void **state)
{
    (void)state;
    static const char *const tables[] = {
        "1,2.5,0\n3,-4e1,2\n",
        "width,height,kind\n1,2.5,0\n3,-4e1,2\n",
        "1,2.5,0\r\n3,-4e1,2",
        " 1 , 2.5 ,0\n\n3,\t-4e1, 2\n\n",
        ("\xef\xbb\xbf"
         "1,2.5,0\n3,-40,2\n"),
        "a,b,c\r\n1,2.5,0\r\n3,-40,2\r\n",
    };
    for (size_t t = 0; t < sizeof tables / sizeof tables[0]; t++) {
        nn_data_config_t config = csv_config(tables[t]);
        nn_data_t *data = opened(&config);
        nn_model_config_t shape = {0};
        nn_data_shape(data, &shape);
        assert_int_equal(shape.inputs, 2);
        assert_int_equal(shape.classes, 3);
        assert_int_equal(nn_data_samples(data), 2);
        nn_batch_t batch;
        nn_data_batch(data, 0, 2, &batch);
        const double *features = batch.features;
        uint32_t zero = batch.labels[0] == 0 ? 0 : 1;
        assert_int_equal(batch.labels[1 - zero], 2);
        assert_true(features[2 * zero] == 1 && features[2 * zero + 1] == 2.5);
        assert_true(features[2 - 2 * zero] == 3 && features[3 - 2 * zero] == -40);
        nn_data_close(data);
    }
}

static void broken_csv_files(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        inspan_status_t status;
        const char *found;
    } faults[] = {
        {"", INSPAN_INVALID, "is empty"},
        {"\n\n", INSPAN_INVALID, "no samples"},
        {"a,b\n", INSPAN_INVALID, "no samples"},
        {"1,0\n2,x\n", INSPAN_CORRUPT, "line 2, column 2: expected a label"},
        {"1,0\n2,-1\n", INSPAN_CORRUPT, "line 2, column 2: expected a label"},
        {"1,0\n2,1.5\n", INSPAN_CORRUPT, "found '1.5'"},
        {"1,0\n2,99999999999\n", INSPAN_CORRUPT, "0 to 65535"},
        {"1,0\n2,65536\n", INSPAN_CORRUPT, "0 to 65535"},
        {"a,b,c\n1,2,0\n1,red,1\n", INSPAN_CORRUPT, "line 3, column 2: expected a number, found 'red'"},
        {"1,2,0\n1,,1\n", INSPAN_CORRUPT, "line 2, column 2: expected a number, found ''"},
        {"1,2,0\n1,nan,1\n", INSPAN_CORRUPT, "found 'nan'"},
        {"1,2,0\n1,1e999,1\n", INSPAN_CORRUPT, "found '1e999'"},
        {"1,2,0\n1,0x10,1\n", INSPAN_CORRUPT, "found '0x10'"},
        {"1,2,0\n1,\"2\",1\n", INSPAN_CORRUPT, "line 2, column 2"},
        {"1,2,0\n1,0\n", INSPAN_CORRUPT, "line 2: expected 3 columns as in the first line, found fewer"},
        {"1,2,0\n1,2,3,0\n", INSPAN_CORRUPT, "found more"},
        {"1,2,0\n1,2,0,\n", INSPAN_CORRUPT, "found more"},
        {"1;2;0\n", INSPAN_CORRUPT, "apart by commas"},
        {"1,0\n2,0\n", INSPAN_INVALID, "all labels are 0"},
    };
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        nn_data_config_t config = csv_config(faults[i].text);
        refused(&config, faults[i].status, faults[i].found);
    }
    nn_data_config_t config = csv_config("1,0\n1e39,1\n");
    nn_data_t *data = opened(&config);
    nn_data_close(data);
    config.dtype = NN_FP32;
    refused(&config, INSPAN_CORRUPT, "a number within fp32");
    config.path = put("zero.csv", "1,0\n2,1\n3\0,1\n", 13);
    refused(&config, INSPAN_CORRUPT, "line 3 holds a 0 byte");
    config = csv_config("1,0\n2,1\n");
    config.validation = 0.1;
    refused(&config, INSPAN_INVALID, "not even one");
    config.validation = 0.5;
    data = opened(&config);
    assert_int_equal(nn_data_validation_samples(data), 1);
    nn_data_close(data);
}

/* Random damage to right files: an error or a data set, and nothing read outside (the sanitizer watches). */
static void damaged_files(void **state)
{
    (void)state;
    static const char table[] = "a,b,kind\n1,2.5,0\n3,-4e1,2\n0.5,1e-3,1\r\n\n7,8,0\n";
    static const char pieces[] = "0123456789.,-+eE\n\r \t\"\xff";
    uint8_t idx[80], labels[16];
    uint32_t extents[] = {4, 3, 5};
    size_t n_idx = make_idx(idx, 3, extents, 0), n_labels = make_idx(labels, 1, extents, 0), opened_ones = 0;
    char damaged_path[PATH_MAX];
    nn_data_config_t csv = {.kind = NN_DATA_CSV}, images = {.kind = NN_DATA_IDX};
    images.labels = put("labels", labels, n_labels);
    snprintf(damaged_path, sizeof damaged_path, "%s/damaged", folder);
    csv.path = images.path = damaged_path;
    rng_t rng;
    rng_seed(&rng, 11, 0);
    for (int round = 0; round < 3000; round++) {
        const bool is_table = round % 3 != 0;
        uint8_t bytes[sizeof table + sizeof idx];
        size_t n = is_table ? sizeof table - 1 : n_idx;
        memcpy(bytes, is_table ? (const void *)table : idx, n);
        for (uint64_t k = rng_below(&rng, 4) + 1; k > 0; k--)
            bytes[rng_below(&rng, is_table ? n : 20)] =
                is_table && rng_below(&rng, 4) ? (uint8_t)pieces[rng_below(&rng, sizeof pieces - 1)]
                                               : (uint8_t)rng_next(&rng);
        if (rng_below(&rng, 4) == 0) n = rng_below(&rng, n);
        write_file(damaged_path, bytes, n);
        nn_data_t *data = NULL;
        memset(&err, 0, sizeof err);
        inspan_status_t status = nn_data_open(is_table ? &csv : &images, &data, &err);
        if (status != INSPAN_OK) {
            assert_true(status == INSPAN_CORRUPT || status == INSPAN_INVALID || status == INSPAN_UNSUPPORTED);
            assert_non_null(strstr(err.text, "damaged"));
            continue;
        }
        nn_batch_t batch;
        assert_int_equal(nn_data_reserve(data, 8), INSPAN_OK);
        nn_data_batch(data, 3, 8, &batch);
        nn_data_close(data);
        opened_ones++;
    }
    assert_true(opened_ones > 100 && opened_ones < 2900);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pass_has_each_sample_once),
        cmocka_unit_test(text_windows_depend_on_the_position_alone),
        cmocka_unit_test(held_out_text_is_never_trained_on),
        cmocka_unit_test(short_and_unreadable_texts),
        cmocka_unit_test(idx_images_and_labels),
        cmocka_unit_test(broken_idx_files),
        cmocka_unit_test(csv_tables),
        cmocka_unit_test(broken_csv_files),
        cmocka_unit_test(damaged_files),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
