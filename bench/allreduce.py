"""All-reduce between network namespaces: Inspan beside Gloo (through PyTorch), in turns in one run.

usage: allreduce.py [VERB...] [--rounds N] [--json] [--strict]      (all verbs: equal slow unshaped)

Equal: two, three and four ranks on links of 1 Gbit/s. Slow: four ranks, the link of one of them 200 or 100 Mbit/s. Unshaped:
four ranks, links as fast as this machine. Medians of the rounds' medians. The wire's bound comes from iperf3's goodput on the
same links: 2 (n - 1) / n times the bytes where links are equal, the bytes once where one link is slow.

--strict: exit code 1 where a bound is not met. Needs root, ip, tc and iperf3.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

from bounds import Bounds, parse
from lab import Lab

HERE = Path(__file__).resolve().parent
INSPAN = HERE.parent / "build" / "inspan"
KB, MB = 1000, 1000000
NAMES = {4 * KB: "4 KB", MB: "1 MB", 25 * MB: "25 MB", 100 * MB: "100 MB"}
ITERATIONS = {4 * KB: 100, MB: 40, 25 * MB: 12, 100 * MB: 5}
SLOW = ("200mbit", "100mbit")
PEERS = ("inspan", "gloo")
ports = iter(range(29500, 29900))


def run_ranks(lab, make_command):
    ranks = [subprocess.Popen(lab.command(r, make_command(r)), stdout=subprocess.PIPE, text=True)
             for r in range(lab.machines)]
    try:
        outputs = [rank.communicate(timeout=180)[0] for rank in ranks]
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.kill()
    if any(rank.returncode for rank in ranks):
        sys.exit(f"a rank failed: {[rank.returncode for rank in ranks]}")
    return json.loads(outputs[0])["results"][0]


def inspan(lab, size):
    port = next(ports)
    return run_ranks(lab, lambda r: [str(INSPAN), "bench", "allreduce", "--rank", str(r), "--world", str(lab.machines),
                                     "--rendezvous", f"{lab.address(0)}:{port}", "--bytes", str(size),
                                     "--iters", str(ITERATIONS[size]), "--json"])


def gloo(lab, size):
    port = next(ports)
    os.environ.update(GLOO_SOCKET_IFNAME="eth0", TORCH_CPP_LOG_LEVEL="ERROR")
    return run_ranks(lab, lambda r: [sys.executable, str(HERE / "gloo_rank.py"), str(r), str(lab.machines), lab.address(0),
                                     str(port), str(size), str(ITERATIONS[size])])


def goodput(lab, sender=1):
    """Bytes per second of one stream to rank 0."""
    words = lab.command(0, ["iperf3", "-s", "-1", "--forceflush"])
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        while "listening" not in server.stdout.readline() and server.poll() is None:
            pass
        said = subprocess.run(lab.command(sender, ["iperf3", "-c", lab.address(0), "-t", "4", "-O", "1", "-J"]),
                              capture_output=True, text=True, check=False)
        server.kill()
    if said.returncode != 0:
        sys.exit(f"iperf3: {json.loads(said.stdout or '{}').get('error', said.stderr)}")
    return json.loads(said.stdout)["end"]["sum_received"]["bits_per_second"] / 8


def measure(lab, sizes, rounds):
    """{size: {peer: {"s", "cpu_s"}}}"""
    found = {}
    for size in sizes:
        turns = {peer: [] for peer in PEERS}
        for _ in range(rounds):
            turns["inspan"].append(inspan(lab, size))
            turns["gloo"].append(gloo(lab, size))
        found[size] = {peer: {"s": statistics.median(row["median_s"] for row in rows),
                              "cpu_s": statistics.median(row["cpu_s"] for row in rows)} for peer, rows in turns.items()}
    return found


def show(title, found, bound=None):
    print(title)
    print(f"{'':>8} {'Inspan':>11} {'Gloo':>11} {'ratio':>7} {'cpu':>10} {'Gloo cpu':>10}"
          + (f" {'the wire':>11}" if bound else ""))
    for size, row in found.items():
        mine, theirs = row["inspan"], row["gloo"]
        print(f"{NAMES[size]:>8} {mine['s'] * 1e3:>8.2f} ms {theirs['s'] * 1e3:>8.2f} ms {mine['s'] / theirs['s']:>7.3f} "
              f"{mine['cpu_s'] * 1e3:>7.2f} ms {theirs['cpu_s'] * 1e3:>7.2f} ms"
              + (f" {bound(size) * 1e3:>8.2f} ms" if bound else ""))


def equal(options, bounds):
    results = {}
    for world in (4, 3, 2):
        with Lab(world, "1gbit") as lab:
            rate = goodput(lab)
            found = measure(lab, list(ITERATIONS), options.rounds)

        def bound(size, world=world, rate=rate):
            return 2 * (world - 1) / world * size / rate

        show(f"{world} ranks, links of 1 Gbit/s (goodput {rate * 8 / 1e9:.4f} Gbit/s)", found, bound)
        bounds.most(f"{world} ranks: 4 KB, ms", found[4 * KB]["inspan"]["s"] * 1e3, 0.15)
        for size, most in ((MB, 1.02), (25 * MB, 1.006), (100 * MB, 1.006)):
            bounds.most(f"{world} ranks: {NAMES[size]} against the wire", found[size]["inspan"]["s"] / bound(size), most)
        results[world] = {"goodput": rate, "found": found}
    return results


def slow(options, bounds):
    results = {}
    for rate in SLOW:
        with Lab(4, ["1gbit"] * 3 + [rate]) as lab:
            goes = goodput(lab, 3)
            found = measure(lab, [MB, 25 * MB], options.rounds)
        show(f"4 ranks, one link of {rate}, the others 1 Gbit/s (goodput {goes * 8 / 1e6:.1f} Mbit/s)", found,
             lambda size, goes=goes: size / goes)
        bounds.most(f"{rate}: 25 MB against the wire", found[25 * MB]["inspan"]["s"] / (25 * MB / goes), 1.019)
        if rate == "200mbit":
            bounds.most(f"{rate}: 1 MB, ms", found[MB]["inspan"]["s"] * 1e3, 44)
        results[rate] = {"goodput": goes, "found": found}
    return results


def unshaped(options, bounds):
    with Lab(4, None) as lab:
        found = measure(lab, [MB, 25 * MB, 100 * MB], options.rounds)
    show("4 ranks, links not shaped", found)
    for size, least in ((MB, 3), (25 * MB, 1.25), (100 * MB, 1.15)):
        mine, theirs = found[size]["inspan"], found[size]["gloo"]
        bounds.least(f"not shaped: {NAMES[size]}, times as fast as Gloo", theirs["s"] / mine["s"], least)
        bounds.most(f"not shaped: {NAMES[size]}, processor time of Gloo's", mine["cpu_s"] / theirs["cpu_s"], 0.75)
    return found


VERBS = {"equal": equal, "slow": slow, "unshaped": unshaped}


def main():
    options = parse(__doc__, VERBS, rounds={"type": int, "default": 3})
    missing = [name for name in ("ip", "tc", "iperf3") if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        sys.exit(f"allreduce: needs {'root' if not missing else ', '.join(missing)} (`./dev bench` installs what is missing)")
    bounds = Bounds()
    results = {verb: VERBS[verb](options, bounds) for verb in options.verbs}
    bounds.finish("allreduce", options, results)


if __name__ == "__main__":
    main()
