/* Folders that stand for /proc and /sys in tests. */
#ifndef OS_FAKE_TREE_TEST_H
#define OS_FAKE_TREE_TEST_H

/* The file root + path has this text now; folders on the way are made. Fails the test if that does not go. */
void fake_tree_put(const char *root, const char *path, const char *text);

#endif
