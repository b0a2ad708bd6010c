"""Machines come and go: no step is lost, no sample counted twice, and the result is that of an undisturbed run."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
import safetensors_file

from conftest import Inspan, wait_for, write_text
from test_failures import agent_of

JOB = """
model: {{kind: gpt, layers: 2, heads: 2, dim: 32, context: 32}}
data: {{kind: text, path: book.txt}}
train: {{steps: {steps}, global_batch: 24, optimizer: sgd, lr: 1e-2, warmup: 5, seed: 3, dtype: fp64, check_every: 1}}
nodes: {{min: 1, max: 3}}
failure_timeout: 2s
on_loss: {on_loss}
checkpoint: {{dir: {out}, every: {every}}}
"""
STEPS = 300


@pytest.fixture
def write_job(job_file, text_file):
    def write(out, steps=STEPS, on_loss="recompute", every=0):
        return job_file(JOB.format(out=out, steps=steps, on_loss=on_loss, every=every), f"{out}.yaml")

    return write


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The weights of the same job without faults: computed once, when they are first asked for."""
    folder, found = tmp_path_factory.mktemp("undisturbed"), {}

    def run():
        if not found:
            write_text(folder)
            (folder / "job.yaml").write_text(JOB.format(out="out", steps=STEPS, on_loss="recompute", every=0))
            result = Inspan(folder).run("train", folder / "job.yaml", "--local", "1", "--json", seconds=180)
            assert result.returncode == 0, result.stderr
            found["weights"] = safetensors_file.read(folder / "out" / "model.safetensors")
        return found["weights"]

    return run


class Running:
    """A job in mid-training on `nodes` nodes."""

    def __init__(self, inspan, job, nodes=3):
        self.inspan = inspan
        self.train = inspan.start("train", job, "--json")
        self.nodes = nodes
        wait_for(lambda: self.at(5), 60, f"{nodes} nodes train")

    def job(self):
        return self.inspan.json("job", 1)

    def members(self):
        return [rank for rank in self.job()["ranks"] if rank["state"] == "running"]

    def at(self, step):
        assert self.train.process.poll() is None, self.train.finish()
        jobs = self.inspan.json("jobs")["jobs"]
        if not jobs or jobs[0]["state"] != "running":
            return False
        return len(self.members()) == self.nodes and self.step() >= step

    def step(self):
        return self.job().get("progress", {}).get("step", 0)

    def goes_on(self, steps=5, seconds=30):
        first = self.step()
        wait_for(lambda: self.step() >= first + steps, seconds, "training goes on")

    def ledger(self):
        return self.inspan.json("job", 1, "--ledger")

    def finish(self, seconds=180):
        result = self.train.finish(seconds)
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)

    def result(self, out="out"):
        return safetensors_file.read(self.inspan.folder / out / "model.safetensors")


def check(running, summary, reference, steps=STEPS):
    assert summary["state"] == "done"
    assert (summary["steps"], summary["samples"]) == (steps, steps * 24)
    assert safetensors_file.relative_distance(running.result(), reference) < 1e-9
    ledger = running.ledger()
    assert ledger["exact"], ledger
    assert (ledger["first_step"], ledger["steps"], ledger["dropped"]) == (0, steps, 0)


@pytest.mark.parametrize("victim", ["first", "last"])
def test_a_killed_worker_costs_no_sample(inspan, cluster, write_job, undisturbed, victim):
    """The leader, or another: survivors go on within a second; the machine comes back as a new worker."""
    cluster(3)
    running = Running(inspan, write_job("out"))
    lost = running.members()[0 if victim == "first" else -1]
    os.kill(lost["pid"], signal.SIGKILL)
    start = time.monotonic()
    running.goes_on(2, 10)
    assert time.monotonic() - start < 1.5
    wait_for(lambda: running.at(0), 30, "its node is back")
    summary = running.finish()
    assert summary["views"] >= 3
    assert summary["samples_recomputed"] <= 24
    assert 0 < summary["recovery_worst_s"] < 1.0
    check(running, summary, undisturbed())


def test_a_frozen_worker_is_left_out(inspan, cluster, write_job, undisturbed):
    cluster(3)
    running = Running(inspan, write_job("out"))
    lost = running.members()[1]
    os.kill(lost["pid"], signal.SIGSTOP)
    start, step = time.monotonic(), running.step()
    wait_for(lambda: running.step() > step + 3, 10, "training goes on")
    assert time.monotonic() - start < 2 + 2
    wait_for(lambda: not os.path.exists(f"/proc/{lost['pid']}"), 10, "the frozen worker is gone")
    check(running, running.finish(), undisturbed())


def test_a_killed_agent_comes_back(inspan, cluster, write_job, undisturbed):
    cluster(3)
    running = Running(inspan, write_job("out"))
    os.kill(agent_of(inspan, running.members()[1]), signal.SIGKILL)
    running.goes_on(5, 15)
    check(running, running.finish(), undisturbed())


def manager_of(inspan):
    return next(pid for pid, words in inspan.processes() if " manager --folder" in words)


def test_a_killed_manager_is_not_missed(inspan, cluster, write_job, undisturbed):
    """It comes back by itself; training has not stood still, and the job ends under its number."""
    cluster(3)
    running = Running(inspan, write_job("out"))
    for _ in range(3):
        os.kill(manager_of(inspan), signal.SIGKILL)
        wait_for(lambda: inspan.run("jobs", "--json").returncode == 0, 20, "the manager is back")
        running.goes_on()
    summary = running.finish()
    assert summary["views"] == 1
    assert summary["samples_recomputed"] == 0
    check(running, summary, undisturbed())


def test_a_drained_node_costs_no_computation_and_comes_back(inspan, cluster, write_job, undisturbed):
    cluster(3)
    running = Running(inspan, write_job("out"))
    leaver = running.members()[1]["node"]
    assert inspan.run("drain", leaver).returncode == 0
    wait_for(lambda: leaver not in [rank["node"] for rank in running.members()], 20, "it has left")
    running.goes_on()
    assert leaver not in [rank["node"] for rank in running.members()]
    assert inspan.run("unban", leaver).returncode == 0
    wait_for(lambda: leaver in [rank["node"] for rank in running.members()], 30, "it is back")
    summary = running.finish()
    assert summary["samples_recomputed"] == 0
    check(running, summary, undisturbed())


def test_an_owner_takes_the_machine_back_and_gives_it_again(inspan, cluster, write_job, undisturbed):
    cluster(3)
    running = Running(inspan, write_job("out"))

    def node_1():
        return [node for node in inspan.json("nodes")["nodes"] if node["name"] == "node-2"][0]

    begun = time.monotonic()
    given = inspan.json("give", "--agent", 1, "--at-most", 0)["agents"]
    assert given == [{"agent": 1, "at_most": 0, "on_battery": 0.5, "when_hot": 0.5, "hot_above": 95, "when_in_use": 1}]
    wait_for(lambda: node_1()["vitals"]["allowed"] == 0, 10, "the manager knows")
    assert time.monotonic() - begun < 2
    wait_for(lambda: "node-2" not in [rank["node"] for rank in running.members()], 20, "it has left")
    running.goes_on()
    assert node_1()["state"] == "kept"
    assert "its owner's wish" in inspan.run("nodes").stdout
    assert "node-2" not in [rank["node"] for rank in running.members()]
    assert [agent["at_most"] for agent in inspan.json("give")["agents"]] == [1, 0, 1]
    assert inspan.run("give", "--at-most", 1).returncode == 0
    wait_for(lambda: "node-2" in [rank["node"] for rank in running.members()], 30, "it is back")
    summary = running.finish()
    assert summary["samples_recomputed"] == 0
    check(running, summary, undisturbed())


def test_what_an_owner_gives_is_known_after_a_restart(inspan):
    def kept():
        result = inspan.run("nodes", "--json")
        return result.returncode == 0 and [node["state"] for node in json.loads(result.stdout)["nodes"]] == ["kept"]

    for options in (["--at-most", 0], []):
        up = inspan.start("up", "--port", "0", *options)
        assert any("1 node has registered" in line for line in up.process.stdout)  # it ends at an error
        wait_for(kept, 20, "the node is kept")
        result = up.stop()
        assert result.returncode == 0, result.stderr
    assert inspan.json("give", "--at-most", 0.5)["agents"][0]["at_most"] == 0.5


def test_all_but_one_die_at_once(inspan, cluster, write_job, undisturbed):
    cluster(3)
    running = Running(inspan, write_job("out"))
    for rank in running.members()[:2]:
        os.kill(rank["pid"], signal.SIGKILL)
    running.goes_on(3, 15)
    check(running, running.finish(), undisturbed())


def test_all_die_and_training_starts_again_from_the_last_checkpoint(inspan, cluster, write_job, undisturbed):
    cluster(3)
    running = Running(inspan, write_job("out", every=40))
    wait_for(lambda: running.job()["checkpoints"], 60, "a checkpoint is registered")
    for rank in running.members():
        os.kill(rank["pid"], signal.SIGKILL)
    summary = running.finish()
    assert safetensors_file.relative_distance(running.result(), undisturbed()) < 1e-9
    assert summary["steps"] == STEPS
    ledger = running.ledger()
    assert ledger["exact"], ledger
    assert ledger["steps"] == STEPS


def test_dropped_samples_are_recorded(inspan, cluster, write_job):
    cluster(3)
    running = Running(inspan, write_job("out", on_loss="drop"))
    os.kill(running.members()[2]["pid"], signal.SIGKILL)
    running.finish()
    ledger = running.ledger()
    assert ledger["exact"], ledger
    assert ledger["samples"] + ledger["dropped"] == STEPS * 24
    assert ledger["dropped"] <= 24


def test_a_resumed_job_continues_exactly(inspan, cluster, write_job, undisturbed):
    """Cancelled in the middle, resumed with another number of nodes: the weights of a run without a break."""
    cluster(3)
    job = write_job("out", every=50)
    running = Running(inspan, job)
    wait_for(lambda: (inspan.folder / "out" / "step-00000100" / "manifest.json").exists(), 60, "a checkpoint is here")
    inspan.run("cancel", 1)
    running.train.finish(60)
    result = inspan.run("train", job, "--resume", "--json", "--set", "nodes.max=2", seconds=180)
    assert result.returncode == 0, result.stderr
    summary = json.loads(result.stdout)
    assert summary["state"] == "done"
    assert safetensors_file.relative_distance(running.result(), undisturbed()) < 1e-9


def test_a_backup_is_taken_while_a_job_runs(inspan, cluster, write_job):
    cluster(2)
    running = Running(inspan, write_job("out", steps=100000), nodes=2)
    path = inspan.folder / "copy.db"
    assert inspan.run("backup", path).returncode == 0
    assert path.read_bytes().startswith(b"SQLite format 3")
    inspan.run("cancel", 1)
    assert running.train.finish(30).returncode != 0


def test_a_damaged_registry_is_moved_aside(inspan, cluster, write_job):
    """The manager dies, its file is damaged: it starts with a new one, nodes register again, the user is told."""
    one = cluster(2)
    registry = Path(inspan.folder / "state" / "manager" / "registry.db")
    inspan.run("nodes")
    pid = manager_of(inspan)
    os.kill(pid, signal.SIGSTOP)
    for name in ("registry.db", "registry.db-wal"):
        path = registry.with_name(name)
        if path.exists():
            path.write_bytes(b"not a database at all" * 1000)
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: one.ready(2), 40, "both nodes are back")
    assert list(registry.parent.glob("registry.db.damaged-*"))
    result = inspan.run("train", write_job("out", steps=5), "--json")
    assert result.returncode == 0, result.stderr
