"""All-reduce between four namespaces on 1 Gbit/s links: Inspan against Gloo (through PyTorch), in turns in one run.

Quoted: medians of the rounds' medians and the ratio Inspan / Gloo. Needs root, ip and tc.
"""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from lab import Lab

HERE = Path(__file__).resolve().parent
INSPAN = HERE.parent / "build" / "inspan"
SIZES = [4000, 1000000, 25000000]
WORLD, ROUNDS, ITERATIONS = 4, 3, 12


def run_ranks(lab, make_command):
    ranks = [subprocess.Popen(lab.command(r, make_command(r)), stdout=subprocess.PIPE, text=True)
             for r in range(WORLD)]
    try:
        outputs = [rank.communicate(timeout=180)[0] for rank in ranks]
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.kill()
    if any(rank.returncode for rank in ranks):
        sys.exit(f"a rank failed: {[rank.returncode for rank in ranks]}")
    return json.loads(outputs[0])["results"]


def inspan(lab, port):
    sizes = ",".join(map(str, SIZES))
    return run_ranks(lab, lambda r: [str(INSPAN), "bench", "allreduce", "--rank", str(r), "--world", str(WORLD),
                                     "--rendezvous", f"{lab.address(0)}:{port}", "--bytes", sizes,
                                     "--iters", str(ITERATIONS), "--json"])


def gloo(lab, port):
    sizes = ",".join(map(str, SIZES))
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    return run_ranks(lab, lambda r: [sys.executable, str(HERE / "gloo_rank.py"), str(r), str(WORLD), lab.address(0),
                                     str(port), sizes, str(ITERATIONS)])


def main(rate="1gbit"):
    figures = {"inspan": {s: [] for s in SIZES}, "gloo": {s: [] for s in SIZES}}
    cpu = {"inspan": {s: [] for s in SIZES}, "gloo": {s: [] for s in SIZES}}
    with Lab(WORLD, rate) as lab:
        for turn in range(ROUNDS):
            for name, program in (("inspan", inspan), ("gloo", gloo)):
                for row in program(lab, 29500 + turn):
                    figures[name][row["bytes"]].append(row["median_s"])
                    cpu[name][row["bytes"]].append(row["cpu_s"])
    rows = []
    for size in SIZES:
        mine, theirs = (statistics.median(figures[n][size]) for n in ("inspan", "gloo"))
        rows.append({"bytes": size, "inspan_s": mine, "gloo_s": theirs, "ratio": mine / theirs,
                     "inspan_cpu_s": statistics.median(cpu["inspan"][size]),
                     "gloo_cpu_s": statistics.median(cpu["gloo"][size])})
    print(f"all-reduce, {WORLD} ranks in namespaces, {rate} links, median of {ROUNDS} rounds of {ITERATIONS}")
    print(f"{'bytes':>10} {'inspan':>10} {'gloo':>10} {'ratio':>7} {'cpu':>9} {'gloo cpu':>9}")
    for row in rows:
        print(f"{row['bytes']:>10} {row['inspan_s'] * 1e3:>7.2f} ms {row['gloo_s'] * 1e3:>7.2f} ms {row['ratio']:>7.3f} "
              f"{row['inspan_cpu_s'] * 1e3:>6.2f} ms {row['gloo_cpu_s'] * 1e3:>6.2f} ms")
    print(json.dumps({"bench": "allreduce", "world": WORLD, "rate": rate, "results": rows}))


if __name__ == "__main__":
    main(*sys.argv[1:])
