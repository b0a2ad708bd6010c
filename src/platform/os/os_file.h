/* Files: read whole under a cap, write atomically (temporary name, fsync, rename, fsync of the folder),
 * folders. */
#ifndef OS_FILE_H
#define OS_FILE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <inspan/status.h>

/*
 * Read the file into a fresh buffer with a 0 byte after its end (*data: the caller frees; *bytes without that
 * 0). NOT_FOUND, IO (also for a folder), LIMIT (longer than cap), NO_MEMORY, TIMEOUT (a pipe or terminal that
 * says nothing for 5 s); the text names the path.
 */
inspan_status_t os_file_read(const char *path, size_t cap, char **data, size_t *bytes, inspan_error_t *err);

/* Replace path by these bytes or leave it as it was. IO: the text names path and cause (disk full, ...). */
inspan_status_t os_file_write(const char *path, const void *data, size_t bytes, mode_t mode,
                              inspan_error_t *err);

/* The same in pieces: begin creates `path.tmp-PID`, commit renames; abandon (or a crash) leaves path as it
 * was. */
typedef struct os_file_writer os_file_writer_t;
inspan_status_t os_file_writer_open(const char *path, mode_t mode, os_file_writer_t **writer,
                                    inspan_error_t *err);
inspan_status_t os_file_writer_add(os_file_writer_t *writer, const void *data, size_t bytes,
                                   inspan_error_t *err);
inspan_status_t os_file_writer_commit(os_file_writer_t *writer,
                                      inspan_error_t *err); /* frees writer, ok or not */
void os_file_writer_abandon(os_file_writer_t *writer);      /* frees writer */

/* mkdir -p; every folder made gets `mode`. IO (also where a file is in the way), INVALID (no path). */
inspan_status_t os_mkdir_all(const char *path, mode_t mode, inspan_error_t *err);

/* rm -r of a folder of ours; does not follow links. IO. */
inspan_status_t os_remove_all(const char *path, inspan_error_t *err);

/* What was made, renamed or removed in a folder survives the loss of power from now on. IO. */
inspan_status_t os_folder_sync(const char *path, inspan_error_t *err);

/* Bytes that this user may still write where path lies (a file or folder that is there). IO. */
inspan_status_t os_disk_free(const char *path, uint64_t *bytes, inspan_error_t *err);

/* n bytes for secrets, from the kernel; INTERNAL if it has none (never seen after boot). */
inspan_status_t os_random(void *bytes, size_t n);

/* A random UUID (version 4, RFC 9562) as text. INTERNAL as above. */
#define OS_UUID_TEXT 37
inspan_status_t os_uuid(char text[OS_UUID_TEXT]);

#endif
