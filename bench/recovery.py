"""How soon does a job go on after a loss? {worker killed, agent killed, link down, worker stopped} x {in the middle of
compute, of a bucket, between vote and commit}, among four nodes of a laboratory with 1 Gbit/s links.

A worker is stopped at a random moment (SIGSTOP); its log says in which phase of a step it stands; where it is not the
wanted one it goes on some milliseconds later and is stopped again, else it is struck. So nothing in the programs helps
but lines of their debug log (phases.py). Processes are known to be lost when they are killed; frozen or cut-off ones
`failure_timeout` after they were struck. For each strike:

    decided    from "known" to DECIDE of the new view, on the last survivor   <= 0.3 s and the micro-batch in progress
    committed  from "known" to the next commit, on the last survivor          <= that, the survivors' time for what the
               lost one had, and one reduction; with steps under 0.3 s: under 1 s
    again      samples that survivors computed again                           <= what the lost one has of a step

A killed agent must cost nothing at all: no view, no sample; the next commit is looked at. The jobs' weights are compared
with those of an undisturbed run (fp64: 1e-9), and their ledgers must be exact. Exit code 1: a bound or a result is
broken, or a combination was not met. Needs root; without it links and quotas are left out.

usage: recovery.py [--hits N] [--minutes M] [--kinds K,K] [--json] [--fresh]
The shares are equal (sync.split): a job this small would be faster without most of its nodes, and let them go.
The report is kept in build/bench/recovery.json, and goes on from there until every combination has its hits.
"""

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path

from cluster import Cluster, Failed, laboratory, wait_for, write_book
from phases import middle, pace

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
import safetensors_file  # noqa: E402

REPORT = ROOT / "build" / "bench" / "recovery.json"
KINDS, PHASES = ("worker", "agent", "link", "stop"), ("compute", "bucket", "vote")
NODES, CPU, LINK, TIMEOUT = 4, "0.45", "1gbit", 2.0
STEPS, MARGIN = 900, 80  # of a job; of its end nothing is struck
DECIDED, COMMITTED, SHORT_STEP = 0.3, 1.0, 0.3
JOB = """
name: %s
model: {kind: gpt, layers: 2, heads: 2, dim: 48, context: 48}
data: {kind: text, path: book.txt}
train: {steps: %d, global_batch: 24, optimizer: sgd, lr: 1e-2, warmup: 5, seed: 3, dtype: fp64}
nodes: {min: %d, max: %d}
sync: {bucket: 64K, split: equal}
failure_timeout: 2s
checkpoint: {dir: %s}
"""


# ---- strikes

def link_device(pid):
    """The bridge's end of the link of the laboratory's machine that a process lives in."""
    words = ["nsenter", "-t", str(pid), "-n", "ip", "-o", "link", "show", "type", "veth"]
    found = re.search(r"@if(\d+):", subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    every = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
    return re.search(rf"^{found[1]}: ([^@:]+)", every, re.MULTILINE)[1]


def set_link(device, state):
    subprocess.run(["ip", "link", "set", device, state], check=True)


def is_stopped(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
        return file.read().rsplit(")", 1)[1].split()[0] in "Tt"


def stop(pid, log):
    """Stop a worker and read its log to the end."""
    at = time.time()
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: is_stopped(pid), 5, "a worker is stopped", 0.0005)
    quiet = 0
    while quiet < 3:  # its agent writes down what it has said
        time.sleep(0.001)
        quiet = 0 if log.read() else quiet + 1
    return at


class Scene:
    """A job among four nodes, of which one after the other is struck."""

    def __init__(self, cluster, job, choose):
        self.cluster, self.job, self.choose = cluster, job, choose

    def step(self):
        return max((e.step for log in self.job.read_logs().values() for e in [log.last("committed")] if e), default=0)

    def whole(self):
        """{rank: pid} of the members, where all nodes are in and have had some steps; else None."""
        if self.job.has_ended():
            return {}
        job = self.job.info()
        ranks = {r["rank"]: r["pid"] for r in (job or {"ranks": []})["ranks"] if r["state"] == "running"}
        if len(ranks) < NODES:
            self.forgive()
            return None
        logs = self.job.read_logs()
        for rank in ranks:
            commits = [e for e in logs[rank].events[-400:] if e.what == "committed"] if rank in logs else []
            if len(commits) < 6 or any(e.view != job["view"] for e in commits[-6:]):
                return None
        return ranks

    def forgive(self):
        """What was broken on purpose is not held against a node: it comes back at once."""
        for node in (self.cluster.ask("nodes", fails=True) or {"nodes": []})["nodes"]:
            if node["state"] in ("cooling", "quarantined"):
                self.cluster.run("unban", node["name"])

    def aim(self, pid, log, phase, seconds=40):
        """Stop the worker in that phase. When that was; None: the job or the worker is over."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            time.sleep(self.choose.random() * 0.03)
            try:
                at = stop(pid, log)
            except (ProcessLookupError, FileNotFoundError):
                return None
            if log.phase() == phase:
                return at
            os.kill(pid, signal.SIGCONT)
        raise Failed(f"rank {log.rank} was never found in phase {phase} within {seconds} s")

    def do(self, kind, pid, at):
        """The fault, to a worker that is stopped. When, and what undoes it."""
        if kind == "stop":
            return at, lambda: None
        if kind == "link":
            device = link_device(pid)
            set_link(device, "down")
            at = time.time()
            os.kill(pid, signal.SIGCONT)
            return at, lambda: set_link(device, "up")
        victim = pid if kind == "worker" else self.cluster.agent_of(pid)
        os.kill(victim, signal.SIGKILL)
        at = time.time()
        if kind == "agent":
            os.kill(pid, signal.SIGCONT)
        return at, lambda: None

    def hit(self, kind, phase):
        """Strike, look at what the others do, mend. The figures of it."""
        ranks = wait_for(self.whole, 90, "all nodes train together", 0.05)
        if not ranks or self.step() > STEPS - MARGIN:
            return None
        logs = self.job.logs
        view = logs[min(ranks)].last("committed").view
        paces = {rank: pace(logs[rank], view) for rank in ranks}
        victim = self.choose.choice(sorted(rank for rank in ranks if paces[rank].share > 0))
        at = self.aim(ranks[victim], logs[victim], phase)
        if at is None:
            said = [verdict["text"] for verdict in (self.job.info() or {}).get("verdicts", []) if verdict["let_go"]]
            print(f"  rank {victim} has gone by itself: {said[-1:]}", file=sys.stderr, flush=True)
            return self.hit(kind, phase)
        at, undo = self.do(kind, ranks[victim], at)
        figures = {"kind": kind, "phase": phase, "leader": victim == min(ranks), "step": self.step()}
        try:
            others = [logs[rank] for rank in ranks if kind == "agent" or rank != victim]
            if kind == "agent":
                figures |= self.nothing_happens(others, view, at, paces)
            else:
                figures |= self.goes_on(others, view, at, paces, victim, TIMEOUT if kind in ("link", "stop") else 0.0)
        finally:
            undo()
        return figures

    def goes_on(self, others, view, at, paces, victim, timeout):
        def recovered():
            self.job.read_logs()
            if self.job.has_ended():
                raise Failed(f"the job has ended: {self.job.text(self.job.err)}")
            views = sorted({e.view for log in others for e in log.events[-300:] if e.what == "decided" and e.view > view})
            for new in views:  # one may be over before all have decided
                if all(log.last("decided", new) and log.first("committed", at, new) for log in others):
                    return new
            return None

        new = wait_for(recovered, 30 + timeout, "the others go on", 0.005)
        known = at + timeout
        again = 0
        for log in others:
            before = [e for e in log.events if e.what == "committed" and e.at <= at]
            again += log.first("committed", at, new).n - (before[-1].n if before else 0)
        noticed = [e.at for log in others for e in (log.first("broken", at, view), log.first("entered", at)) if e]
        step_s = middle([p.step_s for p in paces.values()])
        run_s = max(p.run_s for p in paces.values())
        lost = paces[victim].share
        rest = [p for rank, p in paces.items() if rank != victim]
        # Whole micro-batches: as long as the one that has most of what is lost.
        lost_s = -(-lost // len(rest)) * max(p.sample_s for p in rest)
        bound = DECIDED + run_s + lost_s + max(p.reduction_s for p in rest)
        if step_s < SHORT_STEP:
            bound = min(bound, COMMITTED)
        return {
            "noticed_s": min(noticed) - at,
            "decided_s": max(log.last("decided", new).at for log in others) - known, "decided_bound_s": DECIDED + run_s,
            "committed_s": max(log.first("committed", at, new).at for log in others) - known, "committed_bound_s": bound,
            "again": again, "again_bound": lost, "views": new - view, "step_s": step_s,
        }

    def nothing_happens(self, others, view, at, paces):
        def goes_on():
            self.job.read_logs()
            return all(sum(e.at > at and e.what == "committed" for e in log.events[-400:]) >= 3 for log in others)

        wait_for(goes_on, 30, "the job goes on without an agent", 0.02)
        after = [log.first("committed", at) for log in others]
        before = [next(e for e in reversed(log.events) if e.what == "committed" and e.at <= at) for log in others]
        return {
            "committed_s": max(e.at for e in after) - at, "committed_bound_s": COMMITTED,
            "again": sum(a.n - b.n for a, b in zip(after, before)), "again_bound": 0,
            "views": max(e.view for e in after) - view, "views_bound": 0, "step_s": middle([p.step_s for p in paces.values()]),
        }


def faults_of(hit):
    """What a strike broke, as texts."""
    found = []
    for key in ("decided_s", "committed_s", "again", "views"):
        bound = hit.get(key.removesuffix("_s") + ("_bound_s" if key.endswith("_s") else "_bound"))
        if bound is not None and hit[key] > bound:
            found.append(f"{hit['kind']} in {hit['phase']} at step {hit['step']}: {key} {hit[key]:.3f}, at most {bound:.3f}")
    return found


# ---- the run

def undisturbed(folder):
    """The weights of the job alone, without quotas; kept beside the report."""
    kept = REPORT.parent / f"recovery-{zlib.crc32((JOB + str(STEPS)).encode()):08x}.safetensors"
    if not kept.exists():
        write_book(folder)
        (folder / "alone.yaml").write_text(JOB % ("alone", STEPS, 1, 1, "alone"))
        words = [str(ROOT / "build" / "inspan"), "train", "alone.yaml", "--local", "1"]
        result = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=900, check=False)
        if result.returncode != 0:
            raise Failed(f"the undisturbed run: {result.stderr}")
        kept.write_bytes((folder / "alone" / "model.safetensors").read_bytes())
    return safetensors_file.read(kept)


def wanted(report, kinds, hits):
    """The combination with the fewest hits, or None."""
    counts = {(kind, phase): 0 for kind in kinds for phase in PHASES}
    for hit in report["hits"]:
        counts[hit["kind"], hit["phase"]] = counts.get((hit["kind"], hit["phase"]), 0) + 1
    open_ones = [(n, cell) for cell, n in counts.items() if n < hits and cell[0] in kinds]
    return min(open_ones, key=lambda one: one[0])[1] if open_ones else None


def part(report, options, save):
    """One job with as many strikes as it has time for."""
    quotas = ["--link", LINK, "--cpu", CPU] if options.laboratory else []
    choose = random.Random(len(report["parts"]) + 1)
    with Cluster(NODES, *quotas) as cluster:
        reference = undisturbed(cluster.folder)
        write_book(cluster.folder)
        job = cluster.job(JOB % ("struck", STEPS, 1, NODES, "out"), "struck")
        scene, hits = Scene(cluster, job, choose), []
        while (cell := wanted({"hits": report["hits"] + hits}, options.kinds, options.hits)) is not None:
            if time.monotonic() > options.until:
                break
            figures = scene.hit(*cell)
            if figures is None:
                break
            hits.append(figures)
            print(f"  {json.dumps(figures)}", file=sys.stderr, flush=True)
        summary = job.finish(600)
        ledger = job.ledger()
        distance = safetensors_file.relative_distance(
            safetensors_file.read(cluster.folder / "out" / "model.safetensors"), reference)
    report["hits"] += hits
    report["parts"].append({"hits": len(hits), "distance": distance, "exact": ledger["exact"], "steps": ledger["steps"],
                            "dropped": ledger["dropped"], "views": summary["views"],
                            "samples_recomputed": summary["samples_recomputed"]})
    save()


def faults(report, options):
    found = [text for hit in report["hits"] for text in faults_of(hit)]
    for number, one in enumerate(report["parts"], 1):
        if not one["exact"] or one["steps"] != STEPS or one["dropped"] != 0:
            found.append(f"part {number}: the ledger is not exact: {one}")
        if not one["distance"] < 1e-9:
            found.append(f"part {number}: the weights are off by {one['distance']:g}, at most 1e-9 is right")
    cell = wanted(report, options.kinds, options.hits)
    if cell is not None:
        found.append(f"not met often enough: {cell[0]} in {cell[1]}; go on with the same command")
    return found


def rows_of(report):
    for kind in KINDS:
        for phase in PHASES:
            hits = [hit for hit in report["hits"] if (hit["kind"], hit["phase"]) == (kind, phase)]
            if hits:
                yield {"kind": kind, "phase": phase, "hits": len(hits), "leader": sum(h["leader"] for h in hits),
                       **{f"{key}_{name}": of([h[key] for h in hits])
                          for key in ("noticed_s", "decided_s", "decided_bound_s", "committed_s", "committed_bound_s",
                                      "again", "again_bound", "views", "step_s") if key in hits[0]
                          for name, of in (("median", middle), ("worst", max), ("least", min))}}


def show(report, rows):
    print(f"after a strike, {NODES} nodes of {CPU} cores, {LINK}, failure_timeout {TIMEOUT:.0f} s; medians (worst), bounds: "
          "the least")
    print(f"{'strike':<8} {'in':<8} {'hits':>4} {'noticed':>8} {'known to decided':>24} {'known to committed':>24} "
          f"{'again':>9} {'step':>7}")

    def cell(row, key):
        if f"{key}_median" not in row:
            return "-"
        return f"{row[f'{key}_median']:.3f} ({row[f'{key}_worst']:.3f}) <{row[key.replace('_s', '_bound_s') + '_least']:.2f} s"

    for row in rows:
        noticed = f"{row['noticed_s_median']:.3f} s" if "noticed_s_median" in row else "-"
        print(f"{row['kind']:<8} {row['phase']:<8} {row['hits']:>4} {noticed:>8} {cell(row, 'decided_s'):>24} "
              f"{cell(row, 'committed_s'):>24} {row['again_worst']:>3.0f} of {row['again_bound_least']:.0f} "
              f"{row['step_s_median'] * 1e3:>4.0f} ms")
    for one in report["parts"]:
        print(f"  a job of {one['steps']} steps with {one['hits']} strikes: ledger {'exact' if one['exact'] else 'NOT EXACT'}, "
              f"weights off by {one['distance']:.1e}, {one['samples_recomputed']:.0f} samples computed again")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hits", type=int, default=3, help="of each combination (3)")
    parser.add_argument("--minutes", type=float, default=20, help="no new strike after that (20)")
    parser.add_argument("--kinds", help=f"of {', '.join(KINDS)} (all)")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--fresh", action="store_true", help="forget the kept report")
    options = parser.parse_args()
    missing = laboratory()
    options.laboratory = missing is None
    if missing is not None:
        print(f"no laboratory here, links are left out: {missing}", file=sys.stderr)
    options.kinds = options.kinds.split(",") if options.kinds else [k for k in KINDS if k != "link" or missing is None]
    options.until = time.monotonic() + 60 * options.minutes
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    report = {"bench": "recovery", "hits": [], "parts": []}
    if REPORT.exists() and not options.fresh:
        kept = json.loads(REPORT.read_text())
        if wanted(kept, options.kinds, options.hits) is not None:
            report = kept

    def save():
        REPORT.write_text(json.dumps(report, indent=1))

    stopped = None
    try:
        while wanted(report, options.kinds, options.hits) is not None and time.monotonic() < options.until:
            part(report, options, save)
    except Failed as failed:
        stopped = str(failed)
    found = faults(report, options) + ([stopped] if stopped else [])
    rows = list(rows_of(report))
    if options.json:
        print(json.dumps({**report, "rows": rows, "faults": found}))
    else:
        show(report, rows)
        print(json.dumps({"bench": "recovery", "rows": rows, "parts": report["parts"], "faults": found}))
    for text in found:
        print(f"recovery: {text}", file=sys.stderr)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
