/* What the checkpoint's files share. */
#ifndef TRAIN_CHECKPOINT_INTERNAL_H
#define TRAIN_CHECKPOINT_INTERNAL_H

#include "platform/json/json.h"
#include "train/checkpoint.h"

#define CHECKPOINT_VERSION  1
#define CHECKPOINT_JSON_MAX (64u << 10)        /* of state.json and manifest.json */
#define CHECKPOINT_EXACT    9007199254740992.0 /* 2^53: whole numbers up to here are exact in JSON */

#define CHECKPOINT_MANIFEST  "manifest.json"
#define CHECKPOINT_STATE     "state.json"
#define CHECKPOINT_WEIGHTS   "model.safetensors"
#define CHECKPOINT_OPTIMIZER "optimizer.safetensors"

/* folder/name. INVALID: too long. */
inspan_status_t checkpoint_path(const char *folder, const char *name, char path[CHECKPOINT_PATH_MAX],
                                inspan_error_t *err);

/* A small JSON object from a file; json_free. CORRUPT, NOT_FOUND, IO, NO_MEMORY: the text names the file. */
inspan_status_t checkpoint_read_json(const char *path, json_t **json, inspan_error_t *err);

/* Write and free json. IO, NO_MEMORY. */
inspan_status_t checkpoint_write_json(const char *path, json_t *json, inspan_error_t *err);

/* A field that must be a whole number up to 2^53. CORRUPT: the text names the key. */
inspan_status_t checkpoint_whole(const json_t *json, const char *key, uint64_t *value, inspan_error_t *err);

/* state.json from what is to be written, and compared with what a job has. */
inspan_status_t checkpoint_state_write(const char *folder, const checkpoint_config_t *config,
                                       const checkpoint_state_t *state, inspan_error_t *err);

/* Hash the files of a folder and write manifest.json; *bytes of all. */
inspan_status_t checkpoint_manifest_write(const char *folder, uint64_t step, uint64_t *bytes,
                                          inspan_error_t *err);

/* Rename staged to DIR/step-N in place of what is there, make it last, remove the oldest beyond keep. */
inspan_status_t checkpoint_publish(const char *folder, const char *staged, uint64_t step, uint32_t keep,
                                   inspan_error_t *err);

#endif
