#include "cli/place.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/table.h"
#include "platform/os/os_file.h"

static void addresses(void **state)
{
    (void)state;
    static const char *const right[][2] = {
        {"host", "host:7461"},
        {"host:80", "host:80"},
        {"192.168.1.5", "192.168.1.5:7461"},
        {"192.168.1.5:65535", "192.168.1.5:65535"},
        {"::1", "[::1]:7461"},
        {"[::1]", "[::1]:7461"},
        {"[fe80::1%eth0]:9", "[fe80::1%eth0]:9"},
        {"fe80::1%eth0", "[fe80::1%eth0]:7461"},
        {"my-host_2.lan", "my-host_2.lan:7461"},
    };
    char target[PLACE_TARGET_MAX];
    inspan_error_t err = {0};
    for (size_t i = 0; i < sizeof right / sizeof right[0]; i++) {
        assert_int_equal(place_target(right[i][0], PROTOCOL_MANAGER_PORT, target, &err), INSPAN_OK);
        assert_string_equal(target, right[i][1]);
    }
    assert_int_equal(place_target("host:0", PROTOCOL_MANAGER_PORT, target, &err), INSPAN_INVALID);
}

static void client_file(void **state)
{
    (void)state;
    char folder[] = "/tmp/inspan-place-test-XXXXXX", inner[64], path[128];
    inspan_error_t err = {0};
    place_t place;
    struct stat info;
    unsetenv("INSPAN_MANAGER");
    unsetenv("INSPAN_TOKEN");
    assert_non_null(mkdtemp(folder));
    snprintf(inner, sizeof inner, "%s/a/b", folder);
    place_options_t options = {.folder = inner};

    assert_int_equal(place_find(&options, &place, &err), INSPAN_NOT_FOUND);
    assert_non_null(strstr(err.text, "inspan up"));
    assert_int_equal(place_save_client(inner, "10.0.0.1:7461", "secret", &err), INSPAN_OK);
    snprintf(path, sizeof path, "%s/client.json", inner);
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
    assert_int_equal(place_find(&options, &place, &err), INSPAN_OK);
    assert_string_equal(place.manager, "10.0.0.1:7461");
    assert_string_equal(place.token, "secret");

    setenv("INSPAN_MANAGER", "other", 1); /* each is looked for by itself */
    assert_int_equal(place_find(&options, &place, &err), INSPAN_OK);
    assert_string_equal(place.manager, "other:7461");
    assert_string_equal(place.token, "secret");
    options.manager = "third:1";
    options.token = "t3";
    assert_int_equal(place_find(&options, &place, &err), INSPAN_OK);
    assert_string_equal(place.manager, "third:1");
    assert_string_equal(place.token, "t3");
    options.token = "two words";
    assert_int_equal(place_find(&options, &place, &err), INSPAN_INVALID);
    unsetenv("INSPAN_MANAGER");
    options = (place_options_t){.folder = inner};

    const char *hostile[] = {"", "{", "[]", "{\"manager\": 5}", "{\"manager\": \"unix:/x\"}", "\xff"};
    for (size_t i = 0; i < sizeof hostile / sizeof hostile[0]; i++) {
        assert_int_equal(os_file_write(path, hostile[i], strlen(hostile[i]), 0600, &err), INSPAN_OK);
        assert_int_not_equal(place_find(&options, &place, &err), INSPAN_OK);
    }
    options.token_file = path;
    assert_int_equal(os_file_write(path, "from-file\n", 10, 0600, &err), INSPAN_OK);
    char token[PLACE_TOKEN_MAX];
    assert_int_equal(place_token(&options, token, &err), INSPAN_OK);
    assert_string_equal(token, "from-file");
    options.token_file = "/no/such/token";
    assert_int_equal(place_token(&options, token, &err), INSPAN_NOT_FOUND);
    assert_int_equal(os_remove_all(folder, &err), INSPAN_OK);
}

static void folders(void **state)
{
    (void)state;
    char folder[PLACE_PATH_MAX], here[PLACE_PATH_MAX];
    inspan_error_t err = {0};
    setenv("INSPAN_DIR", "/env", 1);
    assert_int_equal(place_folder("/opt", folder, &err), INSPAN_OK);
    assert_string_equal(folder, "/opt");
    assert_int_equal(place_folder(NULL, folder, &err), INSPAN_OK);
    assert_string_equal(folder, "/env");
    unsetenv("INSPAN_DIR");
    assert_int_equal(place_folder(NULL, folder, &err), INSPAN_OK);
    assert_int_equal(folder[0], '/');
    assert_int_equal(place_folder("relative", folder, &err), INSPAN_OK);
    assert_non_null(getcwd(here, sizeof here));
    assert_memory_equal(folder, here, strlen(here));
    char own[64];
    place_own_address(own, sizeof own);
    assert_true(strlen(own) >= 7);
}

static void tables_are_aligned_and_clean(void **state)
{
    (void)state;
    const char *headings[] = {"NAME", ">CORES", "WHY", NULL};
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    table_t *table = table_open(headings);
    const char *cells[] = {"b\xc3\xbcro", "4", "ok", "workstation", "16.5", "\x1b[2Jevil\n"};
    for (size_t i = 0; i < sizeof cells / sizeof cells[0]; i++) table_add(table, "%s", cells[i]);
    table_print(table, out);
    table_close(table);
    fclose(out);
    assert_string_equal(text, "NAME         CORES  WHY\n"
                              "b\xc3\xbcro             4  ok\n"
                              "workstation   16.5  ?[2Jevil?\n");
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(addresses),
        cmocka_unit_test(client_file),
        cmocka_unit_test(folders),
        cmocka_unit_test(tables_are_aligned_and_clean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
