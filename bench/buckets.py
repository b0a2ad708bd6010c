"""Buckets of gradients as the planner lays them, against fixed sizes and orders. Laboratory of three equal nodes.

usage: buckets.py [MODEL...] [--quick] [--rounds N] [--json] [--strict]      (all models: gpt small deep mlp wide)

Each model on links of 1 Gbit/s, 200 and 100 Mbit/s: first once with each of 1, 2, 5, 10 and 25 MB and both orders, then
the best of these and the planned ones in turns, the latter both from the right and from the wrong order; medians of the
turns. A time is that of a step, without the first steps, in which the planner looks on.

wrong: the best of the grid in the wrong order, without the planner.

--quick tries it with two settings and few steps: its figures say nothing. --strict: exit code 1 where a bound is not met.
Needs root.
"""

import sys
from pathlib import Path

from bounds import Bounds, parse
from cluster import Cluster, Failed, laboratory, write_book
from phases import middle
from unequal import note, speeds

NODES, CORES = 3, 0.6
LINKS = ("1gbit", "200mbit", "100mbit")
SIZES, ORDERS = ("1M", "2M", "5M", "10M", "25M"), ("reversed", "registered")
GPT = "{kind: gpt, layers: %d, heads: %d, dim: %d, context: %d}"
TEXT = "{kind: text, path: book.txt, validation: 0.1}"
ROWS = "{kind: csv, path: rows.csv, validation: 0.1}"
MODELS = {
    "gpt": (GPT % (6, 6, 384, 64), TEXT, 12),
    "small": (GPT % (4, 4, 128, 64), TEXT, 24),
    "deep": (GPT % (24, 4, 128, 32), TEXT, 12),
    "mlp": ("{kind: mlp, layers: 4, dim: 1024}", ROWS, 192),
    "wide": ("{kind: mlp, layers: 2, dim: 2048}", ROWS, 192),
}
SKIP, STEPS = 14, 24  # the planner has changed what it wants to change by then
JOB = """
name: %(name)s
model: %(model)s
data: %(data)s
train: {steps: 1000000, global_batch: %(batch)d, optimizer: sgd, lr: 1e-3}
sync: {bucket: %(bucket)s, order: %(order)s}
nodes: {min: %(nodes)d, max: %(nodes)d}
checkpoint: {dir: %(name)s}
"""


def write_rows(folder, rows=2000, columns=64):
    lines = [",".join([str((i * 7 + c * 3) % 19 / 19) for c in range(columns)] + [str(i % 10)]) for i in range(rows)]
    (Path(folder) / "rows.csv").write_text("\n".join(lines) + "\n")


def lab(link):
    cluster = Cluster(NODES, "--cpu", ",".join([str(CORES)] * NODES), "--link", link)
    write_book(cluster.folder)
    write_rows(cluster.folder)
    return cluster


def step_time(cluster, name, bucket, order, steps):
    model, data, batch = MODELS[name]
    job = f"{name}-{bucket}-{order}-{len(list(cluster.folder.glob('*.yaml')))}"
    text = JOB % {"name": job, "model": model, "data": data, "batch": batch, "bucket": bucket, "order": order, "nodes": NODES}
    return 1 / speeds([cluster.job(text, job)], 1, steps, SKIP)[0]


def measure(cluster, name, options):
    steps = 4 if options.quick else STEPS
    sizes = SIZES[:1] if options.quick else SIZES
    grid = {(size, order): step_time(cluster, name, size, order, steps) for size in sizes for order in ORDERS}
    best = min(grid, key=grid.get)
    turns = {"best": [], "planned": [], "from wrong": []}
    for _ in range(options.rounds):
        turns["best"].append(step_time(cluster, name, *best, steps))
        turns["planned"].append(step_time(cluster, name, "auto", "reversed", steps))
        turns["from wrong"].append(step_time(cluster, name, "auto", "registered", steps))
    row = {"best": f"{best[0]} {best[1]}", "grid": {f"{size} {order}": s for (size, order), s in grid.items()},
           **{f"{key.replace(' ', '_')}_s": middle(found) for key, found in turns.items()},
           "wrong_s": min(s for (_, order), s in grid.items() if order == "registered")}
    note(f"{name}: best of the grid ({row['best']}) {row['best_s']:.3f} s, planned {row['planned_s']:.3f} s, "
         f"from the wrong order {row['from_wrong_s']:.3f} s; the wrong order without a plan {row['wrong_s']:.3f} s")
    return row


def main():
    options = parse(__doc__, tuple(MODELS), quick={"action": "store_true"},
                    rounds={"type": int, "default": 3, "help": "turns (3)"})
    missing = laboratory()
    if missing:
        sys.exit(f"no laboratory here: {missing}")
    bounds, result = Bounds(), {}
    try:
        for link in LINKS[:1] if options.quick else LINKS:
            with lab(link) as cluster:
                result[link] = {name: measure(cluster, name, options) for name in options.verbs}
    except Failed as error:
        sys.exit(f"the measurement stopped: {error}")
    print(f"{NODES} nodes of {CORES} cores; a step in seconds, medians of {options.rounds}")
    print(f"{'link':<8} {'model':<6} {'best of the grid':<17} {'':>7} {'planned':>8} {'ratio':>6} {'from wrong':>11} "
          f"{'wrong':>7}")
    for link, rows in result.items():
        for name, row in rows.items():
            print(f"{link:<8} {name:<6} {row['best']:<17} {row['best_s']:7.3f} {row['planned_s']:8.3f} "
                  f"{row['planned_s'] / row['best_s']:6.3f} {row['from_wrong_s']:11.3f} {row['wrong_s']:7.3f}")
            bounds.most(f"{name} on {link}: planned / best of the grid", row["planned_s"] / row["best_s"], 1.0)
            bounds.most(f"{name} on {link}: from the wrong order / wrong", row["from_wrong_s"] / row["wrong_s"], 1.0)
    bounds.finish("buckets", options, {"results": result})


if __name__ == "__main__":
    main()
