#!/bin/sh
# The main job on one machine: a manager and three agents as processes of their own, which register by themselves, train
# a GPT together on the King James Bible (from Debian's package bible-kjv) and write text like it. In the middle one
# worker is killed, later a fourth agent joins: no step is lost, no sample counts twice. With root the three are unequal
# machines on a network of their own (quotas, namespaces), and each is measured alone before: what they reach together
# stands beside the sum.
# Usage: tools/demo.sh PATH-OF-INSPAN [STEPS]
set -eu

inspan=$(realpath "$1")
work=$(mktemp -d "${TMPDIR:-/tmp}/inspan-demo.XXXXXX")
up=""
director=""

clean_up() {
    trap - EXIT INT TERM
    for program in $director $up; do
        kill "$program" 2>/dev/null || true
        wait "$program" 2>/dev/null || true
    done
    rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }

# Wait until the command succeeds, at most this many seconds; the cluster must still be running.
await() {
    limit=$(($(date +%s) + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        kill -0 "$up" 2>/dev/null || { cat "$work/up.log" >&2; exit 2; }
        [ "$(date +%s)" -lt "$limit" ] || { echo "demo: '$*' did not succeed in time" >&2; cat "$work/up.log" >&2; exit 2; }
        sleep 0.2
    done
}

three_nodes() { [ "$("$inspan" nodes --json | grep -o '"node_id"' | wc -l)" = 3 ]; }

# Can this machine be divided into unequal ones? Not without root, and not in every container.
can_be_divided() {
    [ "$(id -u)" = 0 ] && [ "$(nproc)" -ge 2 ] &&
        "$inspan" bench allreduce --local 1 --cpu 0.5 --link 1gbit --bytes 4K --iters 1 >/dev/null 2>&1
}

export INSPAN_DIR="$work/state"
bible -f gen1:1-rev22:21 >"$work/bible.txt"

if can_be_divided; then
    divided=true
    steps=${2:-400}
    say "A manager and three agents start on this machine, as machines of 0.8, 0.5 and 0.4 core with links of 1 Gbit/s;
the agents register by themselves:"
    "$inspan" up --local 3 --port 0 --cpu 0.8,0.5,0.4 --link 1gbit >"$work/up.log" 2>&1 &
else
    divided=false
    steps=${2:-500}
    say "A manager and three agents start on this machine; the agents register by themselves:"
    "$inspan" up --local 3 --port 0 >"$work/up.log" 2>&1 &
fi
up=$!
await 60 three_nodes
"$inspan" nodes

cat >"$work/job.yaml" <<YAML
name: bible-gpt
model: {kind: gpt, layers: 5, heads: 4, dim: 128, context: 128}
data: {kind: text, path: bible.txt, validation: 0.02}
train: {steps: $steps, global_batch: 48, optimizer: adamw, lr: 2e-3, warmup: 50, clip: 1.0, seed: 1, evaluate_every: 100}
nodes: {min: 2, max: 4}
failure_timeout: 5s
checkpoint: {dir: out}
YAML
# The JSON of job $1, one member a line.
job_lines() { "$inspan" job "$1" --json 2>/dev/null | tr ',' '\n' | tr '{' '\n'; }
# The number of the first member $2 of job $1: that of the job itself, its ranks come later.
job_number() { job_lines "$1" | sed -n "s/^\"$2\":\([0-9.]*\).*/\1/p" | head -1; }
step_is() {
    step=$(job_number "$1" step)
    [ "${step:-0}" -ge "$2" ]
}

# A value out of what `up` noted for clients.
client() { sed -n "s/.*\"$1\":[[:space:]]*\"\([^\"]*\)\".*/\1/p" "$INSPAN_DIR/client.json"; }

# The same model in small batches on one node, the others idle: samples/s of its newest steps, after 30 or 15 seconds.
solo() {
    number=$("$inspan" train "$work/job.yaml" --nodes "$1" --set nodes.min=1 --set nodes.max=1 --set train.steps=1000000 \
        --set train.global_batch=8 --set data.validation=0 --detach --json | sed 's/.*"job":\([0-9]*\).*/\1/')
    limit=$(($(date +%s) + 15))
    until step_is "$number" 30 || [ "$(date +%s)" -ge "$limit" ]; do sleep 0.2; done
    echo "$1 $(job_number "$number" samples_per_s)" >>"$work/alone"
    "$inspan" cancel "$number" >/dev/null
    await 30 idle
}
idle() { [ "$("$inspan" nodes --json | grep -o '"state":"ready"' | wc -l)" = 3 ]; }

jobs=0
if $divided; then
    say "Each is measured alone, as long as 30 small steps take, at most 15 s:"
    for node in node-1 node-2 node-3; do solo $node; done
    jobs=3
    awk '{printf "  %s alone: %.1f samples/s\n", $1, $2}' "$work/alone"
fi
job=$((jobs + 1))

# What happens meanwhile.
direct() {
    until step_is $job $((steps * 7 / 20)); do sleep 0.5; done
    job_number $job samples_per_s >"$work/together"
    until step_is $job $((steps * 2 / 5)); do sleep 0.5; done
    victim=$(job_lines $job | sed -n 's/^"pid":\([0-9]*\).*/\1/p' | sed -n 2p)
    echo "    (demo: kill -9 of worker $victim)" >&2
    grep -q worker "/proc/$victim/cmdline" && kill -9 "$victim"
    until step_is $job $((steps * 3 / 5)); do sleep 0.5; done
    echo "    (demo: a fourth agent joins)" >&2
    token=$(client token)
    INSPAN_TOKEN=$token exec "$inspan" join "$(client manager)" --dir "$work/fourth" --name node-4 >"$work/fourth.log" 2>&1
}

say "They train a GPT of one million parameters on $(wc -c <"$work/bible.txt") bytes of text:"
direct &
director=$!
"$inspan" train "$work/job.yaml"

# Beside each node alone: its pure computing in the job itself, out of its rank's summary (the newest, where it came back).
compare() {
    job_lines $job | awk -v together="$(cat "$work/together")" -v alone="$work/alone" '
        {gsub(/["}\]]/, "")}
        /^node:/ {node = substr($0, 6)}
        /^speed:/ {speed[node] = substr($0, 7)}
        END {
            while ((getline line <alone) > 0) {
                split(line, of, " ")
                printf "  %s alone %8.1f samples/s   (in the job, while it computes: %.1f)\n", of[1], of[2], speed[of[1]]
                sum += of[2]
                if (of[2] > best) best = of[2]
            }
            printf "  their sum    %8.1f samples/s\n", sum
            printf "  together     %8.1f samples/s   %.0f %% of the sum, %.2f times the fastest alone\n", together,
                100 * together / sum, together / best
        }'
}
if $divided; then
    say "Together, before anything happened to them, beside each alone:"
    compare
    load=$(cut -d. -f1 /proc/loadavg)
    [ "$load" -le $(($(nproc) * 3)) ] ||
        echo "  (this machine is busy with other things, load $load: these figures are worth little)"
fi

say "Which worker computed which samples:"
"$inspan" job $job --ledger

say "It is kept as model.safetensors:"
ls -l "$work/out"

say "And it writes:"
"$inspan" generate "$work/out" --prompt "In the beginning" --tokens 500 --temperature 0.8 --seed 7
echo
