#!/bin/sh
# The main job on one machine: a manager and three agents as processes of their own, which register by themselves, train
# a GPT together on the King James Bible (from Debian's package bible-kjv) and write text like it.
# Usage: tools/demo.sh PATH-OF-INSPAN [STEPS]
set -eu

inspan=$(realpath "$1")
steps=${2:-500}
work=$(mktemp -d "${TMPDIR:-/tmp}/inspan-demo.XXXXXX")
up=""

clean_up() {
    trap - EXIT INT TERM
    if [ -n "$up" ]; then
        kill "$up" 2>/dev/null || true
        wait "$up" 2>/dev/null || true
    fi
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
nodes: {min: 3, max: 3}
checkpoint: {dir: out}
YAML
say "They train a GPT of one million parameters on $(wc -c <"$work/bible.txt") bytes of text:"
"$inspan" train "$work/job.yaml"

say "It is kept as model.safetensors:"
ls -l "$work/out"

say "And it writes:"
"$inspan" generate "$work/out" --prompt "In the beginning" --tokens 500 --temperature 0.8 --seed 7
echo
