/* inspan-sim: command line. Histories are independent, so processes share the seeds out among themselves. */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "sim/sim.h"

typedef struct arguments {
    uint64_t seed, runs;
    double minutes;
    uint32_t jobs, kinds, dropped;
    const char *plant, *kinds_text;
    bool seeded, trace, json, no_shrink, plants, list_plants, dense;
} arguments_t;

static const char help[] =
    "usage: inspan-sim [options]\n"
    "\n"
    "Runs the real cores of Inspan (elastic step, job controller, liveness, scheduler, collectives) as a "
    "whole cluster\n"
    "over a simulated network, clocks and disks, breaks things, and checks the invariants I1 to I7 after "
    "every event.\n"
    "One seed is one history, to the bit. A failure is shrunk and printed with the command that replays it.\n"
    "\n"
    "  --seed N        first seed (default: a new one)\n"
    "  --runs N        histories, seeds N, N+1, ... (default 1; with --minutes: no limit)\n"
    "  --minutes M     go on for so long\n"
    "  --jobs N        processes (default: one a processor)\n"
    "  --faults KINDS  only these, by commas: crash-worker crash-agent crash-node crash-manager "
    "freeze-worker\n"
    "                  freeze-node freeze-manager slow-node slow-link cut-link one-way partition reset clock "
    "torn\n"
    "                  join drain; or all (default), none\n"
    "  --dense         small clusters with one fault on top of another (otherwise every fourth history)\n"
    "  --drop MASK     leave out these faults of the seed (what shrinking found)\n"
    "  --plant NAME    switch a bug on, to see that it is found; --list-plants: their names\n"
    "  --plants        each planted bug must be found within its number of seeds\n"
    "  --no-shrink     print a failing history as it is\n"
    "  --trace         print the history (one run)\n"
    "  --json          one JSON object at the end\n"
    "  --help\n"
    "\n"
    "example: inspan-sim --runs 10000\n"
    "         inspan-sim --seed 42 --trace\n"
    "exit status: 0 nothing found, 1 an invariant is broken, 2 wrong usage\n";

static double wall(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ---- Arguments --------------------------------------------------------------------------------- */

static bool number(const char *text, uint64_t *value)
{
    char *end;
    errno = 0;
    *value = strtoull(text, &end, 0);
    return errno == 0 && end != text && *end == '\0' && text[0] != '-';
}

static int wrong(const char *option, const char *text)
{
    fprintf(stderr, "inspan-sim: --%s %s: not understood; see inspan-sim --help\n", option, text);
    return 2;
}

static int take(arguments_t *a, const char *name, char *value)
{
    uint64_t n = 0;
    if (strcmp(name, "help") == 0) {
        fputs(help, stdout);
        exit(0);
    }
    if (strcmp(name, "trace") == 0) return a->trace = true, 0;
    if (strcmp(name, "json") == 0) return a->json = true, 0;
    if (strcmp(name, "no-shrink") == 0) return a->no_shrink = true, 0;
    if (strcmp(name, "dense") == 0) return a->dense = true, 0;
    if (strcmp(name, "plants") == 0) return a->plants = true, 0;
    if (strcmp(name, "list-plants") == 0) return a->list_plants = true, 0;
    if (strcmp(name, "plant") == 0) {
        a->plant = value;
        return sim_plant(value) ? 0 : wrong(name, value);
    }
    if (strcmp(name, "faults") == 0) {
        a->kinds_text = value;
        return sim_fault_kinds(value, &a->kinds) ? 0 : wrong(name, value);
    }
    if (strcmp(name, "minutes") == 0) {
        char *end;
        a->minutes = strtod(value, &end);
        return end != value && *end == '\0' && a->minutes > 0 ? 0 : wrong(name, value);
    }
    if (!number(value, &n)) return wrong(name, value);
    if (strcmp(name, "seed") == 0) return a->seed = n, a->seeded = true, 0;
    if (strcmp(name, "runs") == 0) return n > 0 ? (a->runs = n, 0) : wrong(name, value);
    if (strcmp(name, "drop") == 0) return a->dropped = (uint32_t)n, 0;
    if (n == 0 || n > 512) return wrong(name, value);
    a->jobs = (uint32_t)n;
    return 0;
}

static int parse(int argc, char **argv, arguments_t *a)
{
    static const struct option options[] = {
        {"seed", 1, NULL, 0},      {"runs", 1, NULL, 0},   {"minutes", 1, NULL, 0},
        {"jobs", 1, NULL, 0},      {"faults", 1, NULL, 0}, {"drop", 1, NULL, 0},
        {"plant", 1, NULL, 0},     {"plants", 0, NULL, 0}, {"list-plants", 0, NULL, 0},
        {"no-shrink", 0, NULL, 0}, {"dense", 0, NULL, 0},  {"trace", 0, NULL, 0},
        {"json", 0, NULL, 0},      {"help", 0, NULL, 0},   {NULL, 0, NULL, 0}};
    int index, got;
    while ((got = getopt_long(argc, argv, "", options, &index)) == 0) {
        const int rc = take(a, options[index].name, optarg);
        if (rc != 0) return rc;
    }
    if (got != -1 || optind != argc) {
        if (optind < argc && got == -1)
            fprintf(stderr, "inspan-sim: %s: no operand is wanted\n", argv[optind]);
        fputs("see inspan-sim --help\n", stderr);
        return 2;
    }
    if (!a->seeded && getrandom(&a->seed, sizeof a->seed, 0) == sizeof a->seed) a->seed %= 1000000000;
    if (a->jobs == 0) a->jobs = (uint32_t)sysconf(_SC_NPROCESSORS_ONLN);
    if (a->runs == 0) a->runs = a->minutes > 0 ? UINT64_MAX : 1;
    if (a->runs < a->jobs) a->jobs = (uint32_t)a->runs;
    return 0;
}

/* ---- Processes share the seeds out ------------------------------------------------------------- */

typedef struct sums {
    uint64_t histories, events, struck, views, commits, done, hash;
    uint64_t failed_seed, worst_seed;
    ns_t worst;
    bool failed;
} sums_t;

static sim_options_t options_of(const arguments_t *a, uint64_t seed)
{
    return (sim_options_t){
        .seed = seed, .kinds = a->kinds, .dropped = a->dropped, .plant = a->plant, .dense = a->dense};
}

static volatile sig_atomic_t stopped;

static void stop(int signal)
{
    (void)signal;
    stopped = 1;
}

/* Seeds first, first + jobs, ...; of a whole set the hash does not depend on how many processes there are. */
static sums_t run_share(const arguments_t *a, uint32_t job, double until)
{
    sums_t sums = {0};
    for (uint64_t i = job; i < a->runs && !stopped && (until == 0 || wall() < until); i += a->jobs) {
        const sim_options_t options = options_of(a, a->seed + i);
        sim_result_t result;
        sim_run(&options, &result);
        sums.histories++;
        sums.events += result.events;
        sums.struck += result.struck;
        sums.views += result.views;
        sums.commits += result.commits;
        sums.done += result.done;
        sums.hash ^= result.hash * (2 * i + 1);
        if (result.worst > sums.worst) {
            sums.worst = result.worst;
            sums.worst_seed = options.seed;
        }
        if (!result.failed) continue;
        sums.failed = true;
        sums.failed_seed = options.seed;
        break;
    }
    return sums;
}

static void add(sums_t *sums, const sums_t *share)
{
    sums->histories += share->histories;
    sums->events += share->events;
    sums->struck += share->struck;
    sums->views += share->views;
    sums->commits += share->commits;
    sums->done += share->done;
    sums->hash ^= share->hash;
    if (share->worst > sums->worst) {
        sums->worst = share->worst;
        sums->worst_seed = share->worst_seed;
    }
    if (share->failed && (!sums->failed || share->failed_seed < sums->failed_seed)) {
        sums->failed = true;
        sums->failed_seed = share->failed_seed;
    }
}

typedef struct child {
    pid_t pid;
    int fd;
} child_t;

static child_t start_child(const arguments_t *a, uint32_t job, double until)
{
    int ends[2];
    if (pipe(ends) != 0) {
        perror("inspan-sim: pipe");
        exit(2);
    }
    fflush(NULL);
    const pid_t pid = fork();
    if (pid < 0) {
        perror("inspan-sim: fork");
        exit(2);
    }
    if (pid > 0) {
        close(ends[1]);
        return (child_t){pid, ends[0]};
    }
    close(ends[0]);
    const sums_t sums = run_share(a, job, until);
    const bool told = write(ends[1], &sums, sizeof sums) == (ssize_t)sizeof sums;
    _exit(told ? 0 : 2);
}

/* The first failure ends the others. false: a process of ours crashed. */
static bool collect(child_t *children, uint32_t n, sums_t *sums)
{
    struct pollfd fds[512];
    uint32_t left = n;
    bool good = true;
    for (uint32_t i = 0; i < n; i++) fds[i] = (struct pollfd){.fd = children[i].fd, .events = POLLIN};
    while (left > 0) {
        if (poll(fds, n, 1000) < 0 && errno != EINTR) return false;
        for (uint32_t i = 0; i < n; i++) {
            if (fds[i].fd < 0 || fds[i].revents == 0) continue;
            sums_t share;
            const bool whole = read(fds[i].fd, &share, sizeof share) == (ssize_t)sizeof share;
            int status = 0;
            waitpid(children[i].pid, &status, 0);
            close(fds[i].fd);
            fds[i].fd = -1;
            left--;
            if (!whole) {
                fprintf(stderr, "inspan-sim: a process crashed (status %d); --jobs 1 shows where\n", status);
                good = false;
            } else {
                add(sums, &share);
            }
            for (uint32_t k = 0; (!good || sums->failed) && k < n; k++)
                if (fds[k].fd >= 0) kill(children[k].pid, SIGTERM);
        }
    }
    return good;
}

static bool run_all(const arguments_t *a, sums_t *sums)
{
    const double until = a->minutes > 0 ? wall() + 60 * a->minutes : 0;
    child_t children[512];
    memset(sums, 0, sizeof *sums);
    if (a->jobs == 1) {
        *sums = run_share(a, 0, until);
        return true;
    }
    for (uint32_t i = 0; i < a->jobs; i++) children[i] = start_child(a, i, until);
    return collect(children, a->jobs, sums);
}

/* ---- Telling ----------------------------------------------------------------------------------- */

static void command_text(const arguments_t *a, const sim_options_t *options, char *text, size_t size)
{
    int n = snprintf(text, size, "build/inspan-sim --seed %" PRIu64, options->seed);
    if (options->dropped != 0) n += snprintf(text + n, size - (size_t)n, " --drop 0x%x", options->dropped);
    if (a->kinds_text != NULL) n += snprintf(text + n, size - (size_t)n, " --faults %s", a->kinds_text);
    if (a->plant != NULL) n += snprintf(text + n, size - (size_t)n, " --plant %s", a->plant);
    if (a->dense) n += snprintf(text + n, size - (size_t)n, " --dense");
    snprintf(text + n, size - (size_t)n, " --trace");
}

static void print_string(const char *text)
{
    putchar('"');
    for (; *text != '\0'; text++) {
        if (*text == '"' || *text == '\\') putchar('\\');
        putchar((unsigned char)*text < 32 ? ' ' : *text);
    }
    putchar('"');
}

static void print_json(const sums_t *sums, double seconds, const sim_result_t *result, const char *command)
{
    printf("{\"histories\": %" PRIu64 ", \"events\": %" PRIu64 ", \"faults\": %" PRIu64
           ", \"views\": %" PRIu64 ", \"commits\": %" PRIu64 ", \"jobs_done\": %" PRIu64
           ", \"longest_wait_s\": %.3f, \"longest_wait_seed\": %" PRIu64
           ", \"seconds\": %.3f, \"hash\": \"%016" PRIx64 "\", \"failed\": %s",
           sums->histories, sums->events, sums->struck, sums->views, sums->commits, sums->done,
           ns_to_s(sums->worst), sums->worst_seed, seconds, sums->hash, sums->failed ? "true" : "false");
    if (sums->failed) {
        printf(", \"seed\": %" PRIu64 ", \"invariant\": \"%s\", \"text\": ", sums->failed_seed,
               result->invariant);
        print_string(result->text);
        printf(", \"replay\": ");
        print_string(command);
    }
    puts("}");
}

static void tell_failure(const arguments_t *a, const sums_t *sums, double seconds)
{
    sim_options_t options = options_of(a, sums->failed_seed);
    sim_result_t result;
    char command[256];
    sim_run(&options, &result);
    if (!a->no_shrink) sim_shrink(&options, &result);
    command_text(a, &options, command, sizeof command);
    if (a->json) {
        print_json(sums, seconds, &result, command);
        return;
    }
    printf("BROKEN %s, seed %" PRIu64 " (history %016" PRIx64 "):\n  %s\n", result.invariant, options.seed,
           result.hash, result.text);
    puts("with these faults:");
    options.list_faults = true;
    sim_run(&options, &result);
    printf("replay: %s\n", command);
}

/* ---- Planted bugs ------------------------------------------------------------------------------ */

static bool plant_found(const arguments_t *a, const sim_plant_t *plant)
{
    arguments_t one = *a;
    sums_t sums;
    one.plant = plant->name;
    one.seed = 1;
    one.runs = a->runs > 1 ? a->runs : sim_plant_seeds(plant);
    one.dense = sim_plant_dense(plant);
    if (!run_all(&one, &sums) || !sums.failed) {
        printf("MISSED %-13s not within %u seeds: %s\n", plant->name, sim_plant_seeds(plant), plant->text);
        return false;
    }
    sim_options_t options = options_of(&one, sums.failed_seed);
    sim_result_t result;
    sim_run(&options, &result);
    printf("found  %-13s %s at seed %4" PRIu64 " of %4u: %s\n", plant->name, result.invariant,
           sums.failed_seed, sim_plant_seeds(plant), plant->text);
    fflush(stdout);
    return true;
}

static int run_plants(const arguments_t *a)
{
    uint32_t missed = 0;
    for (size_t i = 0; i < sim_n_plants; i++)
        if (sim_plant_seeds(&sim_plants[i]) > 0) missed += !plant_found(a, &sim_plants[i]);
    printf("%u missed\n", missed);
    return missed > 0;
}

static int trace_one(const arguments_t *a)
{
    sim_options_t options = options_of(a, a->seed);
    sim_result_t result;
    options.trace = true;
    sim_run(&options, &result);
    printf("history %016" PRIx64 ", %" PRIu64 " events, %s\n", result.hash, result.events,
           result.failed ? "BROKEN"
           : result.done ? "the job is done"
                         : "the job has ended");
    return result.failed;
}

int main(int argc, char **argv)
{
    arguments_t a = {.kinds = (1u << SIM_FAULT_KINDS) - 1};
    const int rc = parse(argc, argv, &a);
    if (rc != 0) return rc;
    signal(SIGINT, stop);
    signal(SIGTERM, stop);
    if (a.list_plants) {
        for (size_t i = 0; i < sim_n_plants; i++)
            printf("%-13s %s\n", sim_plants[i].name, sim_plants[i].text);
        return 0;
    }
    if (a.plants) return run_plants(&a);
    if (a.trace) return trace_one(&a);
    const double begun = wall();
    sums_t sums;
    if (!run_all(&a, &sums)) return 2;
    const double seconds = wall() - begun;
    if (sums.failed) {
        tell_failure(&a, &sums, seconds);
        return 1;
    }
    if (a.json)
        print_json(&sums, seconds, NULL, "");
    else
        printf("%" PRIu64 " histories from seed %" PRIu64 ", %.1f s (%.0f a second): %" PRIu64
               " faults, %" PRIu64 " views, %" PRIu64 " commits, %" PRIu64
               " jobs done; longest wait without a fault %.1f s (seed %" PRIu64
               "); nothing broken; hash %016" PRIx64 "\n",
               sums.histories, a.seed, seconds, (double)sums.histories / (seconds > 0 ? seconds : 1),
               sums.struck, sums.views, sums.commits, sums.done, ns_to_s(sums.worst), sums.worst_seed,
               sums.hash);
    return 0;
}
