/* A text: its bytes are the tokens. */
#include "base/error.h"
#include "nn/data_internal.h"
#include "platform/os/os_file.h"

inspan_status_t data_read_text(const nn_data_config_t *config, data_content_t *content, inspan_error_t *err)
{
    size_t bytes = 0;
    inspan_status_t status = os_file_read(config->path, DATA_FILE_MAX, &content->file, &bytes, err);
    if (status != INSPAN_OK) return status;
    if (bytes == 0) return error_set(err, INSPAN_INVALID, "%s is empty", config->path);
    content->bytes = (uint8_t *)content->file;
    content->n_bytes = bytes;
    return INSPAN_OK;
}
