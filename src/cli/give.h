/* The owner's wishes from the command line: options of up, join and give, into the agents' files. */
#ifndef CLI_GIVE_H
#define CLI_GIVE_H

#include "cli/options.h"
#include "platform/host/owner.h"

/* Of the option table; NAN: not given. */
typedef struct give_options {
    double values[OWNER_WISHES];
} give_options_t;

#define GIVE_OPTION(given, i)                                                                                \
    {                                                                                                        \
        .name = owner_wish_table[i].name, .type = CLI_REAL, .argument = owner_wish_table[i].argument,        \
        .help = owner_wish_table[i].help, .value = &(given)->values[i], .most = owner_wish_table[i].most     \
    }
#define GIVE_OPTIONS(given)                                                                                  \
    GIVE_OPTION(given, 0), GIVE_OPTION(given, 1), GIVE_OPTION(given, 2), GIVE_OPTION(given, 3),              \
        GIVE_OPTION(given, 4)

void give_none(give_options_t *given);
bool give_any(const give_options_t *given);

/* Into the file of an agent's folder (made if it is not there): what is given, else what the file has, else
 * `otherwise`. *wishes: all of it. IO, INVALID (the file: names the line). */
inspan_status_t give_save(const char *agent_folder, const give_options_t *given,
                          const owner_wishes_t *otherwise, owner_wishes_t *wishes, inspan_error_t *err);

/* What the file has; none: owner_gives_all. */
inspan_status_t give_load(const char *agent_folder, owner_wishes_t *wishes, inspan_error_t *err);

#endif
