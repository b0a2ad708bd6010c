/* manifest.json: which files make a checkpoint, how long they are, and their checksums. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/hash.h"
#include "platform/os/os_file.h"
#include "train/checkpoint_internal.h"

#define FORMAT     "inspan-checkpoint"
#define HASH_SIZE  33
#define READ_PIECE ((size_t)1 << 20)

/* Version 1 has exactly these. */
const char *const checkpoint_files[CHECKPOINT_FILES] = {
    CHECKPOINT_WEIGHTS, "config.json", CHECKPOINT_OPTIMIZER, CHECKPOINT_STATE, CHECKPOINT_MANIFEST};
#define N_FILES ((size_t)CHECKPOINT_FILES - 1) /* that the manifest lists */

typedef struct manifest {
    uint64_t step;
    struct {
        uint64_t bytes;
        char hash[HASH_SIZE];
    } file[N_FILES]; /* as in checkpoint_files */
} manifest_t;

/* ---- What the checkpoint's files share ------------------------------------------------------- */

inspan_status_t checkpoint_path(const char *folder, const char *name, char path[CHECKPOINT_PATH_MAX],
                                inspan_error_t *err)
{
    int length = snprintf(path, CHECKPOINT_PATH_MAX, "%s/%s", folder, name);
    if (length > 0 && length < CHECKPOINT_PATH_MAX) return INSPAN_OK;
    return error_set(err, INSPAN_INVALID, "path too long: %.100s...", folder);
}

inspan_status_t checkpoint_read_json(const char *path, json_t **json, inspan_error_t *err)
{
    char *text = NULL;
    size_t bytes = 0;
    *json = NULL;
    inspan_status_t status = os_file_read(path, CHECKPOINT_JSON_MAX, &text, &bytes, err);
    if (status == INSPAN_LIMIT) status = err->status = INSPAN_CORRUPT; /* ours are shorter */
    if (status != INSPAN_OK) return status;
    status = json_parse(text, bytes, json, err);
    if (status == INSPAN_OK && !json_is_object(*json))
        status = error_set(err, INSPAN_CORRUPT, "not a JSON object");
    free(text);
    if (status == INSPAN_OK) return INSPAN_OK;
    json_free(*json);
    *json = NULL;
    return error_prefix(err, "%s", path);
}

inspan_status_t checkpoint_write_json(const char *path, json_t *json, inspan_error_t *err)
{
    char *text = json_print(json, true);
    json_free(json);
    if (text == NULL) return error_set(err, INSPAN_NO_MEMORY, "no memory to write %s", path);
    inspan_status_t status = os_file_write(path, text, strlen(text), 0644, err);
    free(text);
    return status;
}

inspan_status_t checkpoint_whole(const json_t *json, const char *key, uint64_t *value, inspan_error_t *err)
{
    double number = json_get_number(json, key, -1);
    if (!(number >= 0 && number <= CHECKPOINT_EXACT) || number != floor(number))
        return error_set(err, INSPAN_CORRUPT, "%s is missing or not a whole number", key);
    *value = (uint64_t)number;
    return INSPAN_OK;
}

/* ---- Hashing --------------------------------------------------------------------------------- */

static inspan_status_t hash_open(const char *path, int fd, char hash[HASH_SIZE], uint64_t *bytes,
                                 inspan_error_t *err)
{
    hash_stream_t *stream = hash_stream_open();
    uint8_t *piece = malloc(READ_PIECE);
    inspan_status_t status = INSPAN_OK;
    *bytes = 0;
    if (stream == NULL || piece == NULL)
        status = error_set(err, INSPAN_NO_MEMORY, "no memory to read %s", path);
    while (status == INSPAN_OK) {
        ssize_t got = read(fd, piece, READ_PIECE);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) status = error_set_errno(err, INSPAN_IO, "cannot read %s", path);
        if (got <= 0) break;
        hash_stream_add(stream, piece, (size_t)got);
        *bytes += (uint64_t)got;
    }
    if (stream != NULL) hash_stream_finish128_hex(stream, hash);
    free(piece);
    return status;
}

static int open_plain(const char *path, uint64_t *size, inspan_error_t *err)
{
    struct stat info;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a named pipe must not hold us */
    if (fd < 0) {
        error_set_errno(err, errno == ENOENT || errno == ENOTDIR ? INSPAN_NOT_FOUND : INSPAN_IO,
                        "cannot read %s", path);
        return -1;
    }
    if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode)) {
        *size = (uint64_t)info.st_size;
        return fd;
    }
    close(fd);
    error_set(err, INSPAN_CORRUPT, "%s is not a file", path);
    return -1;
}

/* ---- Writing --------------------------------------------------------------------------------- */

inspan_status_t checkpoint_manifest_write(const char *folder, uint64_t step, uint64_t *bytes,
                                          inspan_error_t *err)
{
    char path[CHECKPOINT_PATH_MAX], hash[HASH_SIZE] = "";
    inspan_status_t status = INSPAN_OK;
    json_t *manifest = json_object(), *files = json_array();
    json_set_string(manifest, "format", FORMAT);
    json_set_number(manifest, "version", CHECKPOINT_VERSION);
    json_set_number(manifest, "step", (double)step);
    *bytes = 0;
    for (size_t i = 0; i < N_FILES && status == INSPAN_OK; i++) {
        uint64_t size = 0, length = 0;
        status = checkpoint_path(folder, checkpoint_files[i], path, err);
        int fd = status == INSPAN_OK ? open_plain(path, &size, err) : -1;
        if (status == INSPAN_OK && fd < 0) status = err->status;
        if (status == INSPAN_OK) status = hash_open(path, fd, hash, &length, err);
        if (fd >= 0) close(fd);
        if (status != INSPAN_OK) break;
        json_t *file = json_object();
        json_set_string(file, "name", checkpoint_files[i]);
        json_set_number(file, "bytes", (double)length);
        json_set_string(file, "xxh128", hash);
        json_append(files, file);
        *bytes += length;
    }
    json_set(manifest, "files", files);
    if (status == INSPAN_OK) status = checkpoint_path(folder, CHECKPOINT_MANIFEST, path, err);
    if (status == INSPAN_OK) return checkpoint_write_json(path, manifest, err);
    json_free(manifest);
    return status;
}

/* ---- Reading --------------------------------------------------------------------------------- */

static bool is_hash(const char *text)
{
    return text != NULL && strlen(text) == HASH_SIZE - 1 && strspn(text, "0123456789abcdef") == HASH_SIZE - 1;
}

static inspan_status_t take_file(const json_t *entry, manifest_t *manifest, inspan_error_t *err)
{
    const char *name = json_get_string(entry, "name"), *hash = json_get_string(entry, "xxh128");
    size_t i = 0;
    while (i < N_FILES && (name == NULL || strcmp(name, checkpoint_files[i]) != 0)) i++;
    if (i == N_FILES)
        return error_set(err, INSPAN_CORRUPT, "it names a file \"%.40s\" that a checkpoint does not have",
                         name != NULL ? name : "");
    if (manifest->file[i].hash[0] != '\0') return error_set(err, INSPAN_CORRUPT, "it names %s twice", name);
    if (!is_hash(hash))
        return error_set(err, INSPAN_CORRUPT, "the xxh128 of %s is missing or not 32 digits", name);
    memcpy(manifest->file[i].hash, hash, HASH_SIZE);
    inspan_status_t status = checkpoint_whole(entry, "bytes", &manifest->file[i].bytes, err);
    return status == INSPAN_OK ? status : error_prefix(err, "%s", name);
}

static inspan_status_t take_manifest(const json_t *json, manifest_t *manifest, inspan_error_t *err)
{
    uint64_t version = 0;
    const char *format = json_get_string(json, "format");
    memset(manifest, 0, sizeof *manifest);
    if (format == NULL || strcmp(format, FORMAT) != 0)
        return error_set(err, INSPAN_CORRUPT, "format is not " FORMAT);
    inspan_status_t status = checkpoint_whole(json, "version", &version, err);
    if (status == INSPAN_OK && version != CHECKPOINT_VERSION)
        return error_set(err, INSPAN_VERSION,
                         "version %" PRIu64 ", this program reads version %d: use the one that wrote it",
                         version, CHECKPOINT_VERSION);
    if (status == INSPAN_OK) status = checkpoint_whole(json, "step", &manifest->step, err);
    const json_t *files = json_get(json, "files");
    if (status == INSPAN_OK && (!json_is_array(files) || json_size(files) != N_FILES))
        return error_set(err, INSPAN_CORRUPT, "files does not list the %zu files of a checkpoint", N_FILES);
    for (const json_t *entry = files == NULL ? NULL : json_first(files); entry != NULL && status == INSPAN_OK;
         entry = json_next(entry))
        status = take_file(entry, manifest, err);
    return status;
}

static inspan_status_t check_file(const char *path, uint64_t bytes, const char *hash, inspan_error_t *err)
{
    char found[HASH_SIZE] = "";
    uint64_t size = 0, length = 0;
    int fd = open_plain(path, &size, err);
    if (fd < 0) return err->status;
    inspan_status_t status = INSPAN_OK;
    if (size != bytes)
        status =
            error_set(err, INSPAN_CORRUPT, "%s has %" PRIu64 " bytes, expected %" PRIu64, path, size, bytes);
    if (status == INSPAN_OK) status = hash_open(path, fd, found, &length, err);
    close(fd);
    if (status == INSPAN_OK && strcmp(found, hash) != 0)
        status = error_set(err, INSPAN_CORRUPT, "%s has the checksum %s, expected %s", path, found, hash);
    return status;
}

inspan_status_t checkpoint_verify(const char *folder, uint64_t *step, inspan_error_t *err)
{
    inspan_error_t unused;
    char path[CHECKPOINT_PATH_MAX];
    manifest_t manifest;
    json_t *json = NULL;
    if (err == NULL) err = &unused;
    inspan_status_t status = checkpoint_path(folder, CHECKPOINT_MANIFEST, path, err);
    if (status == INSPAN_OK) status = checkpoint_read_json(path, &json, err);
    if (status != INSPAN_OK) return status;
    status = take_manifest(json, &manifest, err);
    json_free(json);
    if (status != INSPAN_OK) return error_prefix(err, "%s", path);
    for (size_t i = 0; i < N_FILES && status == INSPAN_OK; i++) {
        status = checkpoint_path(folder, checkpoint_files[i], path, err);
        if (status == INSPAN_OK)
            status = check_file(path, manifest.file[i].bytes, manifest.file[i].hash, err);
    }
    *step = manifest.step;
    return status;
}
