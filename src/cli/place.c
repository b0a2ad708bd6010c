#include "cli/place.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <pwd.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/error.h"
#include "platform/json/json.h"
#include "platform/os/os_file.h"
#include "platform/os/os_socket.h"

#define CLIENT_FILE_MAX 65536

inspan_status_t place_folder(const char *option, char folder[PLACE_PATH_MAX], inspan_error_t *err)
{
    const char *chosen = option != NULL ? option : getenv("INSPAN_DIR");
    const char *home = getenv("HOME");
    int length;
    if (chosen != NULL && chosen[0] != '\0' && chosen[0] != '/') {
        char here[PLACE_PATH_MAX]; /* absolute, since agents and manager are processes of their own */
        if (getcwd(here, sizeof here) == NULL) return error_set_errno(err, INSPAN_IO, "the current folder");
        length = snprintf(folder, PLACE_PATH_MAX, "%s/%s", here, chosen);
    } else if (chosen != NULL && chosen[0] != '\0') {
        length = snprintf(folder, PLACE_PATH_MAX, "%s", chosen);
    } else if (geteuid() == 0) {
        length = snprintf(folder, PLACE_PATH_MAX, "/var/lib/inspan");
    } else {
        const struct passwd *user = home != NULL && home[0] == '/' ? NULL : getpwuid(geteuid());
        if (user != NULL) home = user->pw_dir;
        if (home == NULL || home[0] != '/')
            return error_set(err, INSPAN_INVALID, "no home folder for Inspan's state: give --dir FOLDER");
        length = snprintf(folder, PLACE_PATH_MAX, "%s/.local/state/inspan", home);
    }
    if (length < 0 || length > PLACE_FOLDER_MAX)
        return error_set(err, INSPAN_INVALID,
                         "the path of the state folder is longer than %d bytes: give a shorter --dir",
                         PLACE_FOLDER_MAX);
    return INSPAN_OK;
}

inspan_status_t place_target(const char *text, uint16_t default_port, char target[PLACE_TARGET_MAX],
                             inspan_error_t *err)
{
    os_target_t parsed;
    inspan_status_t status = os_target_parse(text, default_port, &parsed, err);
    const bool v6 = status == INSPAN_OK && strchr(parsed.host, ':') != NULL;
    if (status == INSPAN_OK)
        snprintf(target, PLACE_TARGET_MAX, v6 ? "[%s]:%u" : "%s:%u", parsed.host, parsed.port);
    return status;
}

/* A token is one printable word. */
static inspan_status_t check_token(const char *token, inspan_error_t *err)
{
    size_t length = strlen(token);
    if (length == 0 || length >= PLACE_TOKEN_MAX)
        return error_set(err, INSPAN_INVALID, "the token has %zu bytes, expected 1 to %d", length,
                         PLACE_TOKEN_MAX - 1);
    for (const char *at = token; *at != '\0'; at++)
        if (!isgraph((unsigned char)*at))
            return error_set(err, INSPAN_INVALID,
                             "the token has a character that no token has: copy it again");
    return INSPAN_OK;
}

inspan_status_t place_token(const place_options_t *options, char token[PLACE_TOKEN_MAX], inspan_error_t *err)
{
    const char *given = options->token;
    char *text = NULL;
    size_t bytes = 0;
    inspan_status_t status = INSPAN_OK;
    token[0] = '\0';
    if (given == NULL && options->token_file != NULL) {
        status = os_file_read(options->token_file, CLIENT_FILE_MAX, &text, &bytes, err);
        if (status != INSPAN_OK) return status;
        text[strcspn(text, "\r\n")] = '\0';
        given = text;
    }
    if (given == NULL) given = getenv("INSPAN_TOKEN");
    if (given != NULL) {
        status = check_token(given, err);
        if (status == INSPAN_OK) snprintf(token, PLACE_TOKEN_MAX, "%s", given);
    }
    free(text);
    return status;
}

/* Fill what is still empty of manager and token from client.json; a missing file is no error. */
static inspan_status_t load_client(place_t *place, inspan_error_t *err)
{
    char path[PLACE_PATH_MAX + 16];
    char *text = NULL;
    size_t bytes = 0;
    json_t *root = NULL;
    inspan_error_t cause = {0};
    snprintf(path, sizeof path, "%s/client.json", place->folder);
    if (os_file_read(path, CLIENT_FILE_MAX, &text, &bytes, &cause) != INSPAN_OK) {
        if (cause.status == INSPAN_NOT_FOUND || place->manager[0] != '\0') return INSPAN_OK;
        *err = cause;
        return cause.status;
    }
    inspan_status_t status = json_parse(text, bytes, &root, err);
    free(text);
    if (status != INSPAN_OK) {
        error_prefix(err, "%s", path);
        return status;
    }
    const char *manager = json_get_string(root, "manager");
    const char *token = json_get_string(root, "token");
    if (place->manager[0] == '\0' && manager != NULL)
        status = place_target(manager, PROTOCOL_MANAGER_PORT, place->manager, err);
    if (status == INSPAN_OK && place->token[0] == '\0' && token != NULL &&
        check_token(token, NULL) == INSPAN_OK)
        snprintf(place->token, sizeof place->token, "%s", token);
    json_free(root);
    return status;
}

inspan_status_t place_find(const place_options_t *options, place_t *place, inspan_error_t *err)
{
    memset(place, 0, sizeof *place);
    inspan_status_t status = place_folder(options->folder, place->folder, err);
    const char *manager = options->manager != NULL ? options->manager : getenv("INSPAN_MANAGER");
    if (status == INSPAN_OK && manager != NULL && manager[0] != '\0')
        status = place_target(manager, PROTOCOL_MANAGER_PORT, place->manager, err);
    if (status == INSPAN_OK) status = place_token(options, place->token, err);
    if (status == INSPAN_OK && (place->manager[0] == '\0' || place->token[0] == '\0'))
        status = load_client(place, err);
    if (status == INSPAN_OK && place->manager[0] == '\0')
        return error_set(
            err, INSPAN_NOT_FOUND,
            "no cluster is known here (no %.200s/client.json): start one with \"inspan up\", or name its "
            "manager with --manager HOST --token T",
            place->folder);
    return status;
}

inspan_status_t place_save_client(const char *folder, const char *manager, const char *token,
                                  inspan_error_t *err)
{
    char path[PLACE_PATH_MAX + 16];
    inspan_status_t status = os_mkdir_all(folder, 0700, err);
    if (status != INSPAN_OK) return status;
    json_t *root = json_object();
    json_set_string(root, "manager", manager);
    json_set_string(root, "token", token);
    char *text = json_print(root, true);
    json_free(root);
    if (text == NULL) return error_set(err, INSPAN_NO_MEMORY, "client.json: out of memory");
    snprintf(path, sizeof path, "%s/client.json", folder);
    status = os_file_write(path, text, strlen(text), 0600, err);
    free(text);
    return status;
}

static bool source_of_default_route(char *address, size_t size)
{
    os_address_t far_away, own;
    bool found =
        os_address_parse("192.0.2.1", 9, &far_away) == INSPAN_OK && os_source_towards(&far_away, &own) == 0;
    if (found) os_address_host(&own, address, size);
    return found;
}

static bool first_interface(char *address, size_t size)
{
    struct ifaddrs *list = NULL;
    if (getifaddrs(&list) != 0) return false;
    bool found = false;
    for (const struct ifaddrs *at = list; at != NULL && !found; at = at->ifa_next) {
        if (at->ifa_addr == NULL || at->ifa_addr->sa_family != AF_INET) continue;
        if ((at->ifa_flags & IFF_UP) == 0 || (at->ifa_flags & IFF_LOOPBACK) != 0) continue;
        const struct sockaddr_in *own = (const void *)at->ifa_addr;
        found = inet_ntop(AF_INET, &own->sin_addr, address, (socklen_t)size) != NULL;
    }
    freeifaddrs(list);
    return found;
}

void place_own_address(char *address, size_t size)
{
    if (!source_of_default_route(address, size) && !first_interface(address, size))
        snprintf(address, size, "127.0.0.1");
}
