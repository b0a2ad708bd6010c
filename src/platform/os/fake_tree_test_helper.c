#include "platform/os/fake_tree_test.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "platform/os/os_file.h"

void fake_tree_put(const char *root, const char *path, const char *text)
{
    char full[600], folder[600];
    snprintf(full, sizeof full, "%s%s", root, path);
    snprintf(folder, sizeof folder, "%s", full);
    *strrchr(folder, '/') = '\0';
    assert_int_equal(os_mkdir_all(folder, 0700, NULL), INSPAN_OK);
    FILE *file = fopen(full, "we");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}
