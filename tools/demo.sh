#!/bin/sh
# The main job on one machine: a manager and three agents as processes of their own, which register by themselves, train
# a GPT together on the King James Bible (from Debian's package bible-kjv) and write text like it. In the middle one
# worker is killed, later a fourth agent joins: no step is lost, no sample counts twice.
# Usage: tools/demo.sh PATH-OF-INSPAN [STEPS]
set -eu

inspan=$(realpath "$1")
steps=${2:-500}
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

export INSPAN_DIR="$work/state"
bible -f gen1:1-rev22:21 >"$work/bible.txt"

say "A manager and three agents start on this machine; the agents register by themselves:"
"$inspan" up --local 3 --port 0 >"$work/up.log" 2>&1 &
up=$!
await 60 three_nodes
"$inspan" nodes

cat >"$work/job.yaml" <<YAML
name: bible-gpt
model: {kind: gpt, layers: 5, heads: 4, dim: 128, context: 128}
data: {kind: text, path: bible.txt, validation: 0.02}
train: {steps: $steps, global_batch: 48, optimizer: adamw, lr: 2e-3, warmup: 50, clip: 1.0, seed: 1, evaluate_every: 100}
nodes: {min: 2, max: 4}
failure_timeout: 2s
checkpoint: {dir: out}
YAML
# "step": of job 1, and the pid of one of its workers, out of its JSON (one member a line).
job_lines() { "$inspan" job 1 --json 2>/dev/null | tr ',{' '\n\n'; }
step_is() {
    step=$(job_lines | sed -n 's/^"step":\([0-9]*\).*/\1/p' | sort -n | tail -1)
    [ "${step:-0}" -ge "$1" ]
}

# A value out of what `up` noted for clients.
client() { sed -n "s/.*\"$1\":[[:space:]]*\"\([^\"]*\)\".*/\1/p" "$INSPAN_DIR/client.json"; }

# What happens meanwhile.
direct() {
    until step_is $((steps * 2 / 5)); do sleep 0.5; done
    victim=$(job_lines | sed -n 's/^"pid":\([0-9]*\).*/\1/p' | sed -n 2p)
    echo "    (demo: kill -9 of worker $victim)" >&2
    grep -q worker "/proc/$victim/cmdline" && kill -9 "$victim"
    until step_is $((steps * 3 / 5)); do sleep 0.5; done
    echo "    (demo: a fourth agent joins)" >&2
    token=$(client token)
    INSPAN_TOKEN=$token exec "$inspan" join "$(client manager)" --dir "$work/fourth" --name node-4 >"$work/fourth.log" 2>&1
}

say "They train a GPT of one million parameters on $(wc -c <"$work/bible.txt") bytes of text:"
direct &
director=$!
"$inspan" train "$work/job.yaml"

say "Which worker computed which samples:"
"$inspan" job 1 --ledger

say "It is kept as model.safetensors:"
ls -l "$work/out"

say "And it writes:"
"$inspan" generate "$work/out" --prompt "In the beginning" --tokens 500 --temperature 0.8 --seed 7
echo
