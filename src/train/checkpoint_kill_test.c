/*
 * What a checkpoint is worth when its writer dies: at each of its calls to the system in turn, and at random
 * moments of a real process.
 *
 *   checkpoint_kill_test                 the tests
 *   checkpoint_kill_test ROUNDS SEED     so many kill -9 of a writing process, each followed by a resume
 *   checkpoint_kill_test write FOLDER    that process: trains and writes for ever, tells what is complete
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/hash.h"
#include "base/rng.h"
#include "platform/os/os_file.h"
#include "platform/os/os_spawn.h"
#include "platform/os/os_time.h"
#include "train/checkpoint.h"
#define TRAINING_COUNT 40000 /* half a megabyte of weights: a write takes long enough to be hit */
#include "train/checkpoint_test.h"

#define BOUND   (60 * NS_PER_S)
#define CRASHED 77

static inspan_error_t err;
static char folder[64];

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/inspan-checkpoint-XXXXXX");
    return mkdtemp(folder) == NULL;
}

static int remove_folder(void **state)
{
    (void)state;
    return os_remove_all(folder, &err) != INSPAN_OK;
}

/* ---- The system's calls, one of which does not come back ------------------------------------- */

typedef enum fault { NONE, CRASH, FAIL_ONCE, FAIL_ON } fault_t;

static fault_t fault;
static bool skip_sync; /* a killed process leaves its pages behind: nothing to sync for */
static atomic_uint calls, faulty;

/* true: this call fails. */
static bool strike(void)
{
    const unsigned call = atomic_fetch_add(&calls, 1);
    if (fault == NONE || call < faulty || (fault != FAIL_ON && call > faulty)) return false;
    if (fault == CRASH) _exit(CRASHED);
    errno = ENOSPC;
    return true;
}

#define WRAP(result, name, parameters, arguments)                                                            \
    result __real_##name parameters;                                                                         \
    result __wrap_##name parameters;                                                                         \
    result __wrap_##name parameters                                                                          \
    {                                                                                                        \
        return strike() ? -1 : __real_##name arguments;                                                      \
    }
WRAP(ssize_t, write, (int fd, const void *bytes, size_t n), (fd, bytes, n))
WRAP(int, rename, (const char *from, const char *to), (from, to))
WRAP(int, renameat2, (int a, const char *from, int b, const char *to, unsigned flags),
     (a, from, b, to, flags))
WRAP(int, mkdir, (const char *path, mode_t mode), (path, mode))
WRAP(int, remove, (const char *path), (path))

int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __wrap_fsync(int fd)
{
    if (strike()) return -1;
    return skip_sync ? 0 : __real_fsync(fd);
}

/* ---- One writer, struck once ----------------------------------------------------------------- */

/* Write step `step` of the training: the writer's status. */
static inspan_status_t write_step(const training_t *t, uint64_t step)
{
    checkpoint_result_t result;
    checkpoint_writer_t *writer = NULL;
    const checkpoint_options_t options = {
        .folder = folder, .keep = 1, .config = t->config, .arrays = t->arrays};
    inspan_status_t status = checkpoint_open(&options, &writer, &err);
    if (status == INSPAN_OK) status = checkpoint_begin(writer, step, 1, &err);
    if (status == INSPAN_OK)
        status = checkpoint_wait(writer, BOUND, &result) ? result.status : INSPAN_TIMEOUT;
    checkpoint_close(writer);
    return status;
}

/* The newest in the folder, loaded: it must be the training of its step, bit for bit. */
static uint64_t resume(training_t *back)
{
    static training_t through;
    checkpoint_found_t found;
    checkpoint_state_t at;
    if (checkpoint_find_newest(folder, NULL, NULL, &found, &err) != INSPAN_OK) fail_msg("%s", err.text);
    training_open(back);
    if (checkpoint_load(found.path, &back->config, &back->arrays, &at, &err) != INSPAN_OK)
        fail_msg("%s", err.text);
    assert_int_equal(at.step, found.step);
    training_open(&through);
    for (uint64_t step = 0; step < at.step; step++) training_step(&through, step);
    assert_true(training_same(&through, back));
    training_close(&through);
    return at.step;
}

/* In a process of its own: write step 2 and die at, or fail from, call `n` of the system; false: it came
 * through without reaching that call. */
static bool strike_at(training_t *t, fault_t kind, unsigned n, inspan_status_t *status)
{
    int ended = 0;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        fault = kind;
        atomic_store(&calls, 0);
        atomic_store(&faulty, n);
        inspan_status_t written = write_step(t, 2);
        _exit(atomic_load(&calls) <= n ? 99 : (int)written);
    }
    assert_true(child > 0 && waitpid(child, &ended, 0) == child && WIFEXITED(ended));
    *status = (inspan_status_t)WEXITSTATUS(ended);
    return WEXITSTATUS(ended) != 99;
}

/* again: step 2 lies there already, of another life, and is replaced. */
static void strike_everywhere(fault_t kind, bool again)
{
    static training_t one, two, back;
    inspan_status_t status = INSPAN_OK;
    unsigned n = 0, hit[2] = {0};
    skip_sync = true;
    training_open(&one), training_open(&two);
    training_step(&one, 0);
    training_step(&two, 0), training_step(&two, 1);
    for (;; n++) {
        char name[128];
        snprintf(name, sizeof name, "%s/step-00000002", folder);
        assert_int_equal(os_remove_all(name, &err), INSPAN_OK);
        assert_int_equal(write_step(&one, 1), INSPAN_OK);
        if (again) assert_int_equal(write_step(&two, 2), INSPAN_OK);
        if (!strike_at(&two, kind, n, &status)) break;
        const uint64_t step = resume(&back);
        training_close(&back);
        if (step != 2 && (again || status == INSPAN_OK)) fail_msg("call %u: step %" PRIu64, n, step);
        hit[step - 1]++;
        assert_int_equal(write_step(&two, 2), INSPAN_OK); /* and the next life goes on */
        if (n > 1000) fail_msg("no end");
    }
    assert_true(n > 20);
    assert_true(again || (hit[0] > 5 && hit[1] > 0)); /* the rename is in the midst of it */
    training_close(&one), training_close(&two);
    skip_sync = false;
}

static void dying_at_any_call_leaves_a_whole_one(void **state)
{
    (void)state;
    strike_everywhere(CRASH, false);
    strike_everywhere(CRASH, true);
}

static void failing_at_any_call_leaves_a_whole_one(void **state)
{
    (void)state;
    strike_everywhere(FAIL_ONCE, false);
    strike_everywhere(FAIL_ON, false);
    strike_everywhere(FAIL_ON, true);
}

/* ---- kill -9 at random moments --------------------------------------------------------------- */

/* Goes on from what is there, as a job with --resume does, and never ends by itself. */
static int write_for_ever(void)
{
    static training_t t;
    checkpoint_result_t result;
    uint64_t step = 0;
    checkpoint_found_t found;
    if (checkpoint_find_newest(folder, NULL, NULL, &found, &err) == INSPAN_OK)
        step = resume(&t);
    else
        training_open(&t);
    dprintf(STDOUT_FILENO, "resumed %" PRIu64 "\n", step);
    checkpoint_writer_t *writer = NULL;
    const checkpoint_options_t options = {
        .folder = folder, .keep = 2, .config = t.config, .arrays = t.arrays};
    if (checkpoint_open(&options, &writer, &err) != INSPAN_OK) return 1;
    for (const ns_t end = os_now() + BOUND; os_now() < end;) {
        training_step(&t, step++);
        if (checkpoint_begin(writer, step, 1, &err) != INSPAN_OK ||
            !checkpoint_wait(writer, BOUND, &result) || result.status != INSPAN_OK)
            return 1;
        dprintf(STDOUT_FILENO, "complete %" PRIu64 "\n", result.step);
    }
    return 1; /* whoever was to kill it is gone */
}

typedef struct life {
    os_process_t process;
    int output; /* what it tells */
    char line[64];
    size_t used;
    uint64_t resumed, complete; /* as told last */
    unsigned completes;
} life_t;

static void take_line(life_t *life)
{
    uint64_t step = 0;
    if (sscanf(life->line, "resumed %" SCNu64, &step) == 1)
        life->resumed = step;
    else if (sscanf(life->line, "complete %" SCNu64, &step) == 1)
        life->complete = step, life->completes++;
    else
        fail_msg("the writer says: %s", life->line);
}

/* What it tells within `bound`; false: it has told everything, for it has ended. */
static bool listen_to(life_t *life, ns_t bound)
{
    char bytes[256];
    struct pollfd ready = {.fd = life->output, .events = POLLIN};
    const struct timespec wait = {.tv_sec = bound / NS_PER_S, .tv_nsec = bound % NS_PER_S};
    if (ppoll(&ready, 1, &wait, NULL) <= 0) return true;
    ssize_t n = read(life->output, bytes, sizeof bytes);
    for (ssize_t i = 0; i < n; i++) {
        if (bytes[i] == '\n' || life->used + 1 == sizeof life->line) {
            life->line[life->used] = '\0';
            life->used = 0;
            take_line(life);
        } else {
            life->line[life->used++] = bytes[i];
        }
    }
    return n > 0;
}

/* One life: some checkpoints, then kill -9 within the next `span`. Returns what was told complete last. */
static uint64_t live_and_die(rng_t *rng, uint64_t expected, ns_t span)
{
    static const char *arguments[] = {"/proc/self/exe", "write", folder, NULL};
    life_t life = {.resumed = UINT64_MAX};
    int ends[2];
    os_exit_t result;
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    const os_spawn_options_t options = {
        .program = "/proc/self/exe", .arguments = arguments, .output = ends[1]};
    if (os_spawn(&options, &life.process, &err) != INSPAN_OK) fail_msg("%s", err.text);
    close(ends[1]);
    life.output = ends[0];
    const unsigned wanted = 1 + (unsigned)rng_below(rng, 3);
    const ns_t deadline = os_now() + BOUND;
    while (life.completes < wanted)
        if (!listen_to(&life, BOUND) || os_now() > deadline) fail_msg("the writer has ended or stands still");
    for (ns_t now = os_now(), kill_at = now + (ns_t)rng_below(rng, (uint64_t)span); now < kill_at;
         now = os_now())
        listen_to(&life, kill_at - now);
    os_process_signal(&life.process, SIGKILL);
    while (listen_to(&life, BOUND)) {
    }
    while (!os_process_poll(&life.process, &result)) {
        struct pollfd ended = {.fd = life.process.pidfd, .events = POLLIN};
        poll(&ended, 1, 100);
        if (os_now() > deadline) fail_msg("not reaped");
    }
    assert_int_equal(result.signal, SIGKILL);
    assert_int_equal(life.resumed, expected);
    close(life.output);
    return life.complete > life.resumed ? life.complete : life.resumed;
}

static unsigned leftovers(void)
{
    DIR *dir = opendir(folder);
    unsigned n = 0;
    assert_non_null(dir);
    for (const struct dirent *entry; (entry = readdir(dir)) != NULL;)
        n += strstr(entry->d_name, ".tmp-") != NULL;
    closedir(dir);
    return n;
}

static void kill_rounds(unsigned rounds, uint64_t seed)
{
    static training_t back;
    rng_t rng;
    uint64_t newest = 0;
    unsigned unfinished = 0;
    rng_seed(&rng, seed, 0);
    for (unsigned round = 1; round <= rounds; round++) {
        const uint64_t told = live_and_die(&rng, newest, 100 * NS_PER_MS);
        unfinished += leftovers();
        newest = resume(&back); /* checks every bit of it */
        training_close(&back);
        if (newest < told || newest > told + 1)
            fail_msg("seed %" PRIu64 ", round %u: step %" PRIu64 " was complete, %" PRIu64 " is there", seed,
                     round, told, newest);
        print_message("round %u: complete %" PRIu64 ", resumed at %" PRIu64 "\n", round, told, newest);
    }
    print_message("%u of %u kills left an unfinished one behind\n", unfinished, rounds);
}

static void killed_writers_lose_nothing_complete(void **state)
{
    (void)state;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    kill_rounds(5, (uint64_t)now.tv_nsec); /* other moments each time; the seed is told */
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)

static unsigned long rounds_wanted, seed_wanted;

static void killed_as_often_as_asked(void **state)
{
    (void)state;
    kill_rounds((unsigned)rounds_wanted, seed_wanted);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        TEST(dying_at_any_call_leaves_a_whole_one),
        TEST(failing_at_any_call_leaves_a_whole_one),
        TEST(killed_writers_lose_nothing_complete),
    };
    const struct CMUnitTest asked[] = {TEST(killed_as_often_as_asked)};
    if (argc == 3 && strcmp(argv[1], "write") == 0) {
        snprintf(folder, sizeof folder, "%s", argv[2]);
        return write_for_ever();
    }
    if (argc == 3) {
        rounds_wanted = strtoul(argv[1], NULL, 10);
        seed_wanted = strtoul(argv[2], NULL, 10);
        return cmocka_run_group_tests(asked, NULL, NULL);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
