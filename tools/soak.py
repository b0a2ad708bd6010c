"""The long versions of tests: faults for half an hour, hundreds of kills, a hundred thousand simulated histories.

usage: soak.py [NAME ...] [--short] [--goal N]     names: sim, chaos, manager, checkpoint, model (default: all)

Each keeps its report in build/soak/NAME.json and goes on where it was interrupted; a report whose goal is reached is
started anew. --short runs what `./dev check` runs of it, without a kept report. Exit code 1: something was violated.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from conftest import Inspan, wait_for  # noqa: E402

REPORTS = ROOT / "build" / "soak"
WORDS = "the quick brown ox drew a heavy wagon over the long dry road to town and the driver sang".split()

CHAOS_JOB = """
model: {kind: gpt, layers: 2, heads: 4, dim: 64, context: 64}
data: {kind: text, path: book.txt}
train: {steps: 1000000, global_batch: 40, lr: 1e-3, seed: 1}
nodes: {min: 1, max: 5}
failure_timeout: 2s
checkpoint: {dir: out, every: 500, keep: 2}
"""
MANAGER_JOB = """
model: {kind: mlp, layers: 1, dim: 16}
data: {kind: csv, path: table.csv}
train: {steps: 100000000, global_batch: 8, lr: 1e-3}
nodes: {min: 1, max: 2}
failure_timeout: 5s
checkpoint: {dir: out}
"""


class Violation(Exception):
    pass


class Place:
    """A cluster of agents on this machine, in a folder of its own."""

    def __init__(self, agents, *options):
        self.folder = Path(tempfile.mkdtemp(prefix="inspan-soak."))
        self.inspan = Inspan(self.folder)
        choose = random.Random(1)
        (self.folder / "book.txt").write_text(" ".join(choose.choice(WORDS) for _ in range(40000)))
        rows = ["a,b,class"] + [f"{choose.gauss(i % 2, 1):.3f},{choose.gauss(0, 1):.3f},{i % 2}" for i in range(400)]
        (self.folder / "table.csv").write_text("\n".join(rows) + "\n")
        self.programs = [self.inspan.start("up", "--local", agents, "--port", 0, *options)]
        self.agents = agents

    def __enter__(self):
        try:
            wait_for(self.ready, 60, "all nodes are ready")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind, *_):
        self.close(show=kind is not None)

    def close(self, show=True):
        for program in self.programs[1:]:  # they would wait for the manager
            program.process.kill()
        for program in reversed(self.programs):
            result = program.stop()
            if show:
                print(f"--- inspan {program.words}: {result.returncode}\n{result.stderr[-3000:]}", file=sys.stderr)
        for pid, _ in self.inspan.processes():
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def ready(self):
        if self.programs[0].process.poll() is not None:
            raise Violation(self.programs[0].finish().stderr[-2000:])
        answer = self.ask("nodes")
        return answer and sum(node["state"] == "ready" for node in answer["nodes"]) == self.agents

    def ask(self, *words):
        """The JSON answer, or None when the manager does not answer."""
        result = self.inspan.run(*words, "--json")
        return json.loads(result.stdout) if result.returncode == 0 else None

    def train(self, text, name):
        path = self.folder / name
        path.write_text(text)
        self.programs.append(self.inspan.start("train", path))

    def manager(self):
        return next((pid for pid, words in self.inspan.processes() if " manager --folder" in words), None)


# ---- chaos: faults among five nodes

def has_laboratory():
    with tempfile.TemporaryDirectory() as folder:
        one = Inspan(Path(folder))
        result = one.run("bench", "allreduce", "--local", 2, "--link", "1gbit", "--bytes", "4K", "--iters", 1)
        return result.returncode == 0


def soak_chaos(report, goal, save, short):
    """goal: seconds of faults, one about every 15 s, among 5 nodes with failure_timeout 2 s."""
    laboratory = has_laboratory()
    options = ["--link", "1gbit"] if laboratory else []
    kinds = "worker,agent,manager,freeze" + (",link" if laboratory else "")
    part = 60 if short else 300
    while report["done"] < goal:
        with Place(5, *options) as place:
            place.train(CHAOS_JOB, "job.yaml")

            def runs():
                job = place.ask("job", 1)
                members = [rank for rank in job["ranks"] if rank["state"] == "running"] if job else []
                return len(members) == 5 and job["progress"]["step"] > 20

            wait_for(runs, 90, "five nodes train")
            every, quiet = ("6s", "8s") if short else ("15s", "30s")
            result = place.inspan.run("chaos", 1, "--every", every, "--quiet", quiet, "--for", f"{part}s", "--hold", "6s",
                                      "--kinds", kinds, "--seed", len(report["parts"]) + 1, "--json", seconds=part + 180)
            if not result.stdout.startswith("{"):
                raise Violation(f"chaos ended with {result.returncode}: {result.stderr[-1000:]}")
            found = json.loads(result.stdout)
            place.ask("cancel", 1)
        report["parts"].append(found)
        report["done"] += found["seconds"]
        save()
        if result.returncode != 0 or found["violation"]:
            raise Violation(found["violation"] or result.stderr[-1000:])
    parts = report["parts"]
    faults = [fault for one in parts for fault in one["faults"]]
    committed = sorted(fault["committed_after_s"] for fault in faults if "committed_after_s" in fault)
    seconds = sum(one["seconds"] for one in parts)
    detection = sum(one["detection_s"] for one in parts)
    expected = sum(one["quiet_steps_per_s"] * one["seconds"] for one in parts)
    without = sum(one["quiet_steps_per_s"] * (one["seconds"] - one["detection_s"]) for one in parts)
    steps = sum(one["steps"] for one in parts)
    report["summary"] = {
        "seconds": seconds, "faults": len(faults), "recoveries": len(committed), "steps": steps,
        "next_step_median_s": committed[len(committed) // 2] if committed else None,
        "next_step_worst_s": committed[-1] if committed else None,
        "detection_s": detection, "goodput": steps / expected, "goodput_without_detection": steps / without,
    }


# ---- manager: kill -9 under load

def integrity(folder):
    """PRAGMA integrity_check of a copy of the registry as the kill left it."""
    with tempfile.TemporaryDirectory() as copy:
        for path in (folder / "state" / "manager").glob("registry.db*"):
            shutil.copy(path, copy)
        connection = sqlite3.connect(Path(copy) / "registry.db")
        try:
            return connection.execute("PRAGMA integrity_check").fetchone()[0]
        finally:
            connection.close()


def soak_manager(report, goal, save, short):
    """goal: kills of the manager while jobs run, are submitted, cancelled and asked for."""
    choose = random.Random(report["done"] + 1)
    with Place(2) as place:
        place.train(MANAGER_JOB, "long.yaml")
        wait_for(lambda: (place.ask("jobs") or {"jobs": []})["jobs"], 60, "the long job is known")
        acknowledged = {1}
        (place.folder / "small.yaml").write_text(MANAGER_JOB.replace("1000000", "3"))
        while report["done"] < goal:
            submit = place.inspan.start("train", place.folder / "small.yaml", "--detach", "--json")
            time.sleep(choose.random() * 0.4)  # not a wait: the kill comes at any moment of it
            pid = place.manager()
            if pid is None:
                raise Violation("the manager has ended by itself")
            os.kill(pid, signal.SIGSTOP)  # so that nothing restarts it while the file is looked at
            os.kill(pid, signal.SIGKILL)
            found = integrity(place.folder)
            if found != "ok":
                raise Violation(f"after kill {report['done'] + 1}: integrity_check says {found}")
            answer = submit.finish(60)
            if answer.returncode == 0:
                acknowledged.add(json.loads(answer.stdout)["job"])
            jobs = wait_for(lambda: place.ask("jobs"), 30, "the manager is back")["jobs"]
            lost = acknowledged - {job["job"] for job in jobs}
            if lost:
                raise Violation(f"after kill {report['done'] + 1}: acknowledged jobs {sorted(lost)} are lost")
            if place.ask("job", 1)["state"] not in ("running", "starting"):
                raise Violation(f"the long job is {place.ask('job', 1)['state']}: {place.ask('job', 1)['reason']}")
            for job in jobs:  # room for the next: only every third stays queued
                if job["state"] == "queued" and job["job"] % 3 and place.ask("cancel", job["job"]) is None:
                    raise Violation(f"job {job['job']} could not be cancelled")
            report["done"] += 1
            save()
        def step():
            return (place.ask("job", 1) or {}).get("progress", {}).get("step", 0)

        first = wait_for(step, 30, "the long job trains")
        wait_for(lambda: step() > first + 10, 30, "the long job goes on")
        report["summary"] = {"kills": report["done"], "acknowledged": len(acknowledged), "lost": 0}


# ---- those that are programs of their own

def soak_sim(report, goal, save, short):
    """goal: simulated histories."""
    step = 2000 if short else 10000
    while report["done"] < goal:
        runs = min(step, goal - report["done"])
        words = [str(ROOT / "build" / "inspan-sim"), "--seed", str(report["done"] + 1), "--runs", str(runs), "--json"]
        result = subprocess.run(words, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise Violation(f"{' '.join(words)}\n{result.stdout[-3000:]}{result.stderr[-1000:]}")
        report["done"] += runs
        save()
    report["summary"] = {"histories": report["done"], "violations": 0}


def soak_checkpoint(report, goal, save, short):
    """goal: kill -9 of a writer of checkpoints, each followed by a resume."""
    program = ROOT / "build" / "tests" / "test-train-checkpoint-kill"
    while report["done"] < goal:
        result = subprocess.run([str(program), "1", str(report["done"] + 1)], capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise Violation(f"{program.name} {report['done'] + 1}\n{result.stdout[-2000:]}{result.stderr[-2000:]}")
        report["done"] += 1
        save()
    report["summary"] = {"kills": report["done"], "resumes": report["done"]}


def soak_model(report, goal, save, short):
    """goal: 1, the model checker's large runs."""
    result = subprocess.run([str(ROOT / "model" / "check.sh"), "quick" if short else "full"], check=False)
    if result.returncode != 0:
        raise Violation(f"model/check.sh ended with {result.returncode}")
    report["done"] = goal
    report["summary"] = {"runs": 1}


SOAKS = {  # name: (function, goal, goal of the short version)
    "sim": (soak_sim, 100000, 4000),
    "chaos": (soak_chaos, 1800, 60),
    "manager": (soak_manager, 200, 20),
    "checkpoint": (soak_checkpoint, 50, 5),
    "model": (soak_model, 1, 1),
}


def run(name, short, goal):
    function, long_goal, short_goal = SOAKS[name]
    goal = goal or (short_goal if short else long_goal)
    path = REPORTS / f"{name}.json"
    report = {"name": name, "goal": goal, "done": 0, "parts": []}
    if not short and path.exists():
        kept = json.loads(path.read_text())
        if kept["goal"] == goal and kept["done"] < goal and "violation" not in kept:
            report = kept

    def save():
        print(f"soak {name}: {report['done']:.0f} of {goal}", flush=True)
        if not short:
            REPORTS.mkdir(parents=True, exist_ok=True)
            path.with_suffix(".tmp").write_text(json.dumps(report, indent=1))
            path.with_suffix(".tmp").rename(path)

    try:
        function(report, goal, save, short)
    except Violation as violation:
        report["violation"] = str(violation)
    save()
    print(f"soak {name}: {'VIOLATION: ' + report['violation'] if 'violation' in report else json.dumps(report['summary'])}",
          flush=True)
    return "violation" not in report


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--goal", type=int)
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in SOAKS]
    if unknown:
        parser.error(f"no soak is called {', '.join(unknown)}: {', '.join(SOAKS)}")
    results = [run(name, options.short, options.goal) for name in options.names or SOAKS]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
