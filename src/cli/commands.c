/* The table of all subcommands. */
#include "cli/cli.h"

const cli_command_t cli_commands[] = {
    {"up", "[options]", "Start a cluster: manager and agent on this machine",
     "It prints the line with which other machines join. With --local N it starts N agents on this one\n"
     "machine, for trying out; as root, --cpu and --link make them unequal machines on a real network.",
     "  inspan up\n  inspan up --local 3 --cpu 1,0.5,0.5 --link 1gbit,1gbit,200mbit", cmd_up},
    {"join", "HOST[:PORT] --token T [options]", "Make this machine a node of the cluster at HOST", NULL,
     "  inspan join 192.168.1.5 --token 7f3a...", cmd_join},
    {"train", "FILE.yaml [options]", "Train the model that a job file describes",
     "Progress goes to stderr, the summary to stdout (with --json: one object). Results are written to\n"
     "checkpoint.dir. Relative paths in the job file start at its folder, those given by --set at the\n"
     "current one. With --local N no cluster is needed: a private one with N agents\n"
     "runs the job on this machine and is taken down. Ctrl-C cancels the job.",
     "  inspan train gpt.yaml --set train.steps=50\n  inspan train gpt.yaml --local 3 --json", cmd_train},
    {"plan", "FILE.yaml|N [options]", "Predict what a job reaches, on which nodes, and what would help",
     "Before a run (FILE.yaml) from what earlier jobs of the same model reached on each node, else from "
     "guesses;\n"
     "during one (N, or FILE.yaml --job N) from its ranks. Prints each node alone, what adding each brings "
     "and\n"
     "what limits, the best set, and what a faster cable would give.",
     "  inspan plan gpt.yaml --link laptop=100mbit\n  inspan plan 3 --json\n"
     "  inspan plan gpt.yaml --no-cluster --speed desktop=40 --speed laptop=12 --link laptop=54mbit",
     cmd_plan},
    {"nodes", "[options]", "List the nodes and what they have", NULL, "  inspan nodes --json", cmd_nodes},
    {"jobs", "[options]", "List the jobs", NULL, "  inspan jobs", cmd_jobs},
    {"job", "N [options]", "Show one job with its ranks",
     "With --ledger: which rank computed which samples of each committed step, and whether that is exact.",
     "  inspan job 3 --json\n  inspan job 3 --ledger", cmd_job},
    {"logs", "N [options]", "Print what a job's ranks have written",
     "Each line has its rank before it; with --rank R that rank's output is printed as it is.",
     "  inspan logs 3 -f\n  inspan logs 3 --rank 0 --tail 4K", cmd_logs},
    {"cancel", "N [options]", "Stop a job", NULL, "  inspan cancel 3", cmd_cancel},
    {"drain", "NODE [options]", "Take a node out of use, in peace",
     "Its workers finish or hand over their work and leave their jobs; nothing is computed twice. It gets "
     "no\n"
     "new work until inspan unban NODE.",
     "  inspan drain laptop", cmd_drain},
    {"unban", "NODE [options]", "Use a node again that was drained, is cooling down or in quarantine", NULL,
     "  inspan unban laptop", cmd_unban},
    {"give", "[options]", "Say how much of this machine jobs get, and when",
     "Shares go from 0 (its workers hand over and leave, and it gets no more work) to 1 (all it can). The "
     "least\n"
     "that applies counts, within 2 seconds. Kept for later starts; without options: shows what is set.\n"
     "inspan nodes shows what each node gives just now.",
     "  inspan give --on-battery 0.25 --when-in-use 0\n  inspan give --at-most 0.5 --json", cmd_give},
    {"chaos", "N [options]", "Break a running job on purpose and measure how it goes on",
     "Kills workers, agents and the manager, freezes workers, pulls cables of a laboratory: only what lives\n"
     "on this machine. Prints faults, how soon each was known, how soon the next step was committed, "
     "goodput,\n"
     "and whether the ledger is exact.",
     "  inspan chaos 3 --every 15s --for 30m --kinds worker,freeze --json", cmd_chaos},
    {"lab", "show [NODE] | set NODE [options]",
     "Show or change the quotas and links of local machines as they run",
     "For clusters of this machine that were started with --local N and --cpu or --link, as root; also "
     "those\n"
     "of inspan train --local N. A change holds at once, without a word to those that run there: it is what "
     "a\n"
     "machine that gets hot, or a cable that goes bad, looks like.",
     "  inspan lab show\n  inspan lab set node-1 --cpu 0.3\n  inspan lab set node-2 --link 100mbit/400mbit",
     cmd_lab},
    {"backup", "FILE [options]", "Copy the manager's registry while it is in use", NULL,
     "  inspan backup registry-2026-01-31.db", cmd_backup},
    {"results", "N [FOLDER] [options]", "Fetch what a job has written",
     "Into FOLDER (default: out). inspan train does this by itself; for --detach, or when it could not.",
     "  inspan results 3\n  inspan results 3 /mnt/models/gpt --json", cmd_results},
    {"generate", "FOLDER|model.safetensors [options]", "Let a trained GPT write", NULL,
     "  inspan generate out --prompt \"In the beginning\" --tokens 300 --temperature 0.8", cmd_generate},
    {"bench", "allreduce|explain [options]", "Measure collectives between ranks",
     "One process is one rank; --local N starts all ranks on this machine. explain: what was measured of "
     "the\n"
     "links, and which schedule and whose shares of the sums all-reduces of each size get by that.",
     "  inspan bench allreduce --local 4 --bytes 4K,1M,25M --iters 20\n"
     "  inspan bench allreduce --rank 0 --world 2 --rendezvous 192.168.1.5:7600 --bytes 25M --iters 10 "
     "--json\n"
     "  inspan bench explain --local 4 --link 1gbit,1gbit,1gbit,200mbit",
     cmd_bench},
    {"doctor", "[options]", "Show what this machine can do, and what the rest would need",
     "One line for each backend that could carry collectives here: whether it can, and else what to install.",
     "  inspan doctor --json", cmd_doctor},
    {"version", "[options]", "Print the versions of Inspan and of what it stands on", NULL,
     "  inspan version --json", cmd_version},
    {"manager", "--folder FOLDER [options]", NULL, NULL, NULL, cmd_manager},
    {"agent", "--folder FOLDER --manager HOST:PORT [options]", NULL, NULL, NULL, cmd_agent},
    {"worker", "FOLDER", NULL, NULL, NULL, cmd_worker},
    {0},
};
