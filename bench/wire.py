"""Less on the wire: fp32, bf16, fp16 and int8, chosen by itself, and local updates. Laboratory of four nodes of 0.45 cores.

usage: wire.py [VERB...] [--quick] [--rounds N] [--json] [--strict]      (all verbs: speed auto loss)

Speed: a GPT of 10.9 million parameters (43.6 MB of gradients), global batch 16, on links of 1 Gbit/s and 100 Mbit/s. PyTorch's
DDP (Gloo) beside it, with its own bucket size, and with 5 MB, and with its bf16 hook. Exposed: the step's time beyond that of
the same four nodes that compute as many samples each at the same time, without any communication.

Local: the same on 100 Mbit/s with 32 updates of 4 samples on each node between two exchanges; what the nodes say of exposed
communication, an update.

Auto: a GPT of 0.8 million parameters on links of 1 Gbit/s, 100 and 20 Mbit/s, with sync.exactness close, beside each type that
this allows, set by hand.

Loss: a small GPT on a text with much to learn, the same samples with every type; what is held out, as training goes on.

--quick tries it with tiny models: its figures say nothing. --strict: exit code 1 where a bound is not met. Needs root.
"""

import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bounds import Bounds, parse
from cluster import Cluster, Failed, laboratory, wait_for
from phases import middle
from unequal import FULL, SMALL as MEDIUM, ddp, note, speeds, submit

NODES, CORES, BATCH = 4, 0.45, 16
TYPES = ("fp32", "bf16", "fp16", "int8")
MODES = (*TYPES, "local fp32", "local int8")
LINKS = ("1gbit", "100mbit")
AUTO_LINKS, AUTO_TYPES = (*LINKS, "20mbit"), ("fp32", "bf16", "int8")
SMALL = {"layers": 2, "heads": 2, "dim": 64, "context": 32}
LEARNING = {"layers": 3, "heads": 4, "dim": 128, "context": 64}
PEERS = {"25 MB buckets": (25, "none"), "5 MB buckets": (5, "none"), "bf16 hook": (5, "bf16")}
JOB = """
name: %(name)s
model: {kind: gpt, layers: %(layers)d, heads: %(heads)d, dim: %(dim)d, context: %(context)d}
data: {kind: text, path: book.txt, validation: 0.1}
train: {steps: %(steps)d, global_batch: %(batch)d, lr: 2e-3, warmup: %(warmup)d, evaluate_every: %(every)d}
sync: {wire: %(wire)s, exactness: close, mode: %(mode)s, local_batch: %(local)d}
nodes: {min: 4, max: 4}
checkpoint: {dir: %(name)s}
"""
LETTERS = "abcdefghijklmnopqrstuvwxyz     "


def write_chain(folder, length=400000, seed=5):
    """Text in which each letter depends on the two before it: there is much to learn, and none of it by heart."""
    choose = random.Random(seed)
    follows = {}
    text = ["a", "b"]
    while len(text) < length:
        pair = (text[-2], text[-1])
        if pair not in follows:
            follows[pair] = choose.choices(LETTERS, k=3)
        text.append(choose.choices(follows[pair], weights=(6, 3, 1))[0])
    (Path(folder) / "book.txt").write_text("".join(text))


def lab(link):
    cluster = Cluster(NODES, "--cpu", ",".join([str(CORES)] * NODES), *(["--link", link] if link else []))
    write_chain(cluster.folder)
    return cluster


def start(cluster, model, wire, steps, batch, every=0, local=0, warmup=30):
    """local: samples of an update; 0: exact mode."""
    name = f"{wire}-{len(list(cluster.folder.glob('*.yaml')))}"
    text = JOB % {**model, "name": name, "wire": wire, "steps": steps, "batch": batch, "every": every, "warmup": warmup,
                  "mode": "local" if local else "exact", "local": local or 1}
    return cluster.job(text, name)


def exposed_local(cluster, model, wire, updates, steps):
    """Of an update, as the nodes say: the mean of them."""
    def said():
        ranks = [rank.get("progress") or {} for rank in (job.info() or {"ranks": []})["ranks"]]
        done = [progress for progress in ranks if progress.get("step", 0) >= steps]
        return done if len(done) == NODES else None

    job = start(cluster, model, wire, 1000000, updates * BATCH, local=BATCH // NODES, warmup=2)
    ranks = wait_for(said, 900, f"{steps} steps", 0.2)
    job.cancel()
    return sum(rank["exposed_comm_s"] / rank["step"] for rank in ranks) / NODES / updates


def step_time(job, steps, skip=3):
    return 1 / speeds([job], 1, steps, skip)[0]


def torch_alone(cluster, model, each, steps, port):
    """Of a step of each node by itself, all at the same time; the slowest counts, as for ours."""
    with ThreadPoolExecutor(NODES) as pool:
        found = pool.map(lambda i: ddp(cluster, model, [each], [i], steps, port + i), range(NODES))
    return each / min(found)


def speed_round(cluster, model, steps, number, link, quick):
    each = BATCH // NODES
    alone = speeds([submit(cluster, model, each, [i]) for i in range(NODES)], each, steps, 2)
    row = {"compute_s": each / min(alone)}
    for wire in TYPES:
        row[wire] = step_time(start(cluster, model, wire, 1000000, BATCH), steps)
        note(f"{wire}: step {row[wire]:.3f} s, compute {row['compute_s']:.3f} s")
    if link == LINKS[-1]:
        for wire in ("fp32", "int8"):
            row[f"local {wire}"] = exposed_local(cluster, model, wire, 4 if quick else 32, 2)
            note(f"local, {wire}: {row[f'local {wire}']:.3f} s exposed of an update")
    port = 29700 + 20 * number
    row["torch_compute_s"] = torch_alone(cluster, model, each, steps, port)
    for i, (peer, (megabytes, hook)) in enumerate(PEERS.items()):
        row[peer] = BATCH / ddp(cluster, model, [each] * NODES, list(range(NODES)), steps, port + NODES + i, megabytes, hook)
        note(f"PyTorch, {peer}: step {row[peer]:.3f} s, compute {row['torch_compute_s']:.3f} s")
    return row


def speed(options, bounds):
    return {link: speed_on(link, SMALL if options.quick else FULL, options, bounds) for link in LINKS}


def speed_on(link, model, options, bounds):
    steps = 3 if options.quick else 8
    with lab(link) as cluster:
        rounds = [speed_round(cluster, model, steps, i, link, options.quick) for i in range(options.rounds)]
    result = {key: middle([row[key] for row in rounds]) for key in rounds[0]}
    exposed = {wire: middle([row[wire] - row["compute_s"] for row in rounds]) for wire in TYPES}
    peers = {peer: middle([row[peer] - row["torch_compute_s"] for row in rounds]) for peer in PEERS}
    print(f"{link}, medians of {len(rounds)} rounds: a step, and what of it is exposed communication")
    print(f"  compute of {BATCH // NODES} samples      {result['compute_s']:7.3f} s")
    for wire in TYPES:
        print(f"  {wire:<24} {result[wire]:7.3f} s {exposed[wire]:7.3f} s")
    print(f"  PyTorch, compute of as many {result['torch_compute_s']:4.3f} s")
    for peer in PEERS:
        print(f"  PyTorch, {peer:<15} {result[peer]:7.3f} s {peers[peer]:7.3f} s")
    if link == "1gbit":
        best = min(peers["25 MB buckets"], peers["5 MB buckets"])
        bounds.most("1 Gbit/s: fp32 exposes, of PyTorch's best in fp32", exposed["fp32"] / best, 0.6)
    else:
        for wire, bound in (("fp32", 5.05), ("bf16", 2.3), ("int8", 1.0)):
            bounds.most(f"100 Mbit/s: {wire} exposes, s", exposed[wire], bound)
        for wire in ("fp32", "int8"):
            print(f"  local, {wire:<17} {result[f'local {wire}']:17.3f} s of an update")
        bounds.most("100 Mbit/s: local exposes of an update, s", result["local fp32"], 0.1)
    return {"rounds": rounds, "exposed_s": exposed, "torch_exposed_s": peers}


def auto(options, bounds):
    model, steps = (SMALL, 5) if options.quick else (MEDIUM, 20)
    results = {}
    for link in AUTO_LINKS:
        rows = []
        with lab(link) as cluster:
            for _ in range(options.rounds):
                rows.append({wire: step_time(start(cluster, model, wire, 1000000, BATCH), steps, 12 if wire == "auto" else 3)
                             for wire in (*AUTO_TYPES, "auto")})
                note(f"{link}: {rows[-1]}")
        found = {wire: middle([row[wire] for row in rows]) for wire in rows[0]}
        best = min(AUTO_TYPES, key=found.get)
        print(f"{link}: steps of " + ", ".join(f"{value:.3f} s ({wire})" for wire, value in found.items()))
        bounds.most(f"{link}: auto against the best by hand ({best})", found["auto"] / found[best], 1.05)
        results[link] = rows
    return results


def loss(options, bounds):
    model = SMALL if options.quick else LEARNING
    steps, every = (40, 20) if options.quick else (600, 50)
    curves = {}
    with lab(None) as cluster:
        for wire in MODES:
            local = wire not in TYPES
            kind = wire.split()[-1]
            job = (start(cluster, model, kind, steps // 15, 480, max(every // 15, 1), 8, 2) if local
                   else start(cluster, model, kind, steps, 32, every))
            seen = {}
            while not job.has_ended():
                for rank in (job.info() or {"ranks": []})["ranks"]:
                    progress = rank.get("progress") or {}
                    if progress.get("validation_loss"):
                        seen.setdefault(progress["validation_loss"], progress["step"])
                time.sleep(0.1)
            summary = job.finish(60)
            curves[wire] = {**summary, "curve": [(step, value) for value, step in seen.items()]}
            note(f"{wire}: held out {summary['validation_last']}")
    print(f"held-out loss after {steps} steps of 32 samples, from {curves['fp32']['validation_first']:.3f}")
    for wire in MODES:
        ratio = curves[wire]["validation_last"] / curves["fp32"]["validation_last"]
        print(f"  {wire:<10} {curves[wire]['validation_last']:.4f}   {ratio:.4f} of fp32's")
        if wire != "fp32":
            bounds.most(f"{wire}: held-out loss against fp32's", ratio, 1.01 if wire in TYPES else 1.03)
    return curves


VERBS = {"speed": speed, "auto": auto, "loss": loss}


def main():
    options = parse(__doc__, VERBS, quick={"action": "store_true"}, rounds={"type": int, "help": "of each link (3)"})
    missing = laboratory()
    if missing is not None:
        sys.exit(f"wire: needs a laboratory: {missing}")
    options.rounds = options.rounds or (1 if options.quick else 3)
    bounds, results = Bounds(), {}
    try:
        for verb in options.verbs:
            results[verb] = VERBS[verb](options, bounds)
    except Failed as failure:
        sys.exit(f"wire: {failure}")
    bounds.finish("wire", options, results)


if __name__ == "__main__":
    main()
