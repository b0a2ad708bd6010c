"""Machines and processes that die or freeze where a loss is to end the job (on_loss: abort): it ends in time, the error
names node and cause, nothing is left."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from conftest import JOB_FAILED, wait_for

TIMEOUT = 2  # failure_timeout of the jobs here, seconds
JOB = """
model: {kind: gpt, layers: 2, heads: 2, dim: 64, context: 64}
data: {kind: text, path: book.txt}
train: {steps: 100000, global_batch: 24, lr: 1e-3}
nodes: {min: 3, max: 3}
on_loss: abort
failure_timeout: 2s
checkpoint: {dir: out}
"""


class Running:
    """A job of three nodes in mid-training."""

    def __init__(self, inspan, job):
        self.inspan = inspan
        self.train = inspan.start("train", job)
        self.ranks = wait_for(self._started, 60, "all ranks train")

    def _job(self):
        return self.inspan.json("job", 1)

    def _started(self):
        assert self.train.process.poll() is None, self.train.finish()
        jobs = self.inspan.json("jobs")["jobs"]
        if not jobs:
            return None
        job = self._job()
        ready = job["state"] == "running" and len(job["ranks"]) == 3
        if not ready or any(rank.get("progress", {}).get("step", 0) < 2 for rank in job["ranks"]):
            return None
        return job["ranks"]

    def survivors_end(self, lost_pid, seconds):
        """Seconds until the other workers' processes are gone."""
        start = time.monotonic()
        others = [rank["pid"] for rank in self.ranks if rank["pid"] != lost_pid]
        wait_for(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in others), seconds, "survivors have ended")
        return time.monotonic() - start

    def ports(self):
        return {rank["port"] for rank in self.ranks}

    def error(self):
        result = self.train.finish(30)
        assert result.returncode == JOB_FAILED, result.stderr
        job = self._job()
        assert job["state"] == "failed"
        return result.stderr


@pytest.fixture
def running(inspan, cluster, job_file, text_file):
    cluster(3)
    one = Running(inspan, job_file(JOB))
    yield one
    assert all(one.ports()), one.ranks
    wait_for(lambda: not one.ports() & ports_in_use(), 10, "the workers' ports are free")


def ports_in_use():
    """Local TCP ports of all sockets but those that only remember a connection (TIME_WAIT)."""
    ports = set()
    for name in ("/proc/net/tcp", "/proc/net/tcp6"):
        lines = Path(name).read_text().splitlines()[1:] if Path(name).exists() else []
        fields = [line.split() for line in lines]
        ports |= {int(field[1].rsplit(":", 1)[1], 16) for field in fields if field[3] != "06"}
    return ports


def agent_of(inspan, rank):
    """The agent's pid: the parent of the worker's process."""
    with open(f"/proc/{rank['pid']}/stat") as stat:
        return int(stat.read().rsplit(")", 1)[1].split()[1])


def test_a_killed_worker_ends_the_job_within_a_second(running):
    lost = running.ranks[1]
    os.kill(lost["pid"], signal.SIGKILL)
    assert running.survivors_end(lost["pid"], 10) < 1.0
    error = running.error()
    assert lost["node"] in error
    assert "signal 9" in error


def test_a_worker_killed_while_all_connect_is_named(inspan, cluster, job_file, text_file):
    """As soon as its process is known: before, while or after the ranks connect, the cause is the same."""
    cluster(3)
    for job in range(1, 5):
        train = inspan.start("train", job_file(JOB))

        def started():
            known = [one["job"] for one in inspan.json("jobs")["jobs"]]
            ranks = inspan.json("job", job)["ranks"] if job in known else []
            return ranks if len(ranks) == 3 and all(rank.get("pid") for rank in ranks) else None

        lost = wait_for(started, 60, "the workers have started")[job % 3]
        os.kill(lost["pid"], signal.SIGKILL)
        result = train.finish(30)
        assert result.returncode == JOB_FAILED
        assert lost["node"] in result.stderr and "signal 9" in result.stderr, result.stderr


def test_a_frozen_worker_ends_the_job_within_the_failure_timeout(running):
    lost = running.ranks[2]
    os.kill(lost["pid"], signal.SIGSTOP)
    assert running.survivors_end(lost["pid"], 20) < TIMEOUT + 2
    error = running.error()
    assert lost["node"] in error
    assert "silent" in error
    wait_for(lambda: not os.path.exists(f"/proc/{lost['pid']}"), 10, "the frozen worker is gone")


def test_a_killed_agent_costs_nothing(running):
    """`up` starts it again, and it takes its worker over."""
    rank = running.ranks[1]
    agent = agent_of(running.inspan, rank)
    os.kill(agent, signal.SIGKILL)
    wait_for(lambda: not os.path.exists(f"/proc/{agent}"), 10, "the agent is gone")
    time.sleep(2 * TIMEOUT)  # not a wait: nothing may happen meanwhile
    step = running._job()["progress"]["step"]
    wait_for(lambda: running._job()["progress"]["step"] > step + 5, 30, "training goes on")
    assert [one["pid"] for one in running._job()["ranks"]] == [one["pid"] for one in running.ranks]
    running.inspan.run("cancel", 1)
    assert running.train.finish(30).returncode != 0
    wait_for(lambda: not os.path.exists(f"/proc/{rank['pid']}"), 10, "the worker is gone")


def test_a_short_freeze_is_survived(running):
    lost = running.ranks[0]
    os.kill(lost["pid"], signal.SIGSTOP)
    time.sleep(0.8)  # not a wait: the freeze is what is tested
    os.kill(lost["pid"], signal.SIGCONT)
    step = running._job()["progress"]["step"]
    wait_for(lambda: running._job()["progress"]["step"] > step + 5, 30, "training goes on")
    running.inspan.run("cancel", 1)
    assert running.train.finish(30).returncode != 0


def test_a_patient_job_survives_what_a_patient_user_allows(inspan, cluster, job_file, text_file):
    """The failure_timeout of the job counts, also where it is longer than the cluster's 5 s."""
    cluster(3)
    running = Running(inspan, job_file(JOB.replace("failure_timeout: 2s", "failure_timeout: 20s")))
    agent = agent_of(inspan, running.ranks[1])
    os.kill(agent, signal.SIGSTOP)
    # a connection without a sign of life is cut after 4 s, and then the agent's absence begins
    time.sleep(12)  # not a wait: the freeze is what is tested
    os.kill(agent, signal.SIGCONT)
    step = running._job()["progress"]["step"]
    wait_for(lambda: running._job()["progress"]["step"] > step + 5, 30, "training goes on")
    assert running._job()["state"] == "running"
    running.inspan.run("cancel", 1)
    assert running.train.finish(30).returncode != 0


def test_cancel_ends_the_job_and_frees_the_nodes(running):
    result = running.inspan.run("cancel", 1)
    assert result.returncode == 0, result.stderr
    running.survivors_end(None, 10)
    running.train.finish(30)
    assert running._job()["state"] == "cancelled"
    nodes = wait_for(lambda: [n for n in running.inspan.json("nodes")["nodes"] if n["state"] == "ready"], 10, "ready")
    assert nodes


def test_no_half_written_file_remains(running, inspan):
    os.kill(running.ranks[0]["pid"], signal.SIGKILL)
    running.error()
    left = [str(path) for path in inspan.folder.rglob("*.tmp-*")]
    assert not left
    assert not (inspan.folder / "out" / "model.safetensors").exists()


WRITER = """
model: {kind: mlp, layers: 3, dim: 4096}
data: {kind: csv, path: table.csv}
train: {steps: 1, global_batch: 4}
nodes: {min: 1, max: 1}
on_loss: abort
checkpoint: {dir: out}
"""


def half_written(inspan):
    return [path for path in inspan.folder.rglob("*.tmp-*") if "model.safetensors" in path.name]


@pytest.mark.parametrize("victim", ["worker", "agent", "owner"])
def test_a_kill_while_the_model_is_written(inspan, cluster, job_file, table_file, victim):
    """134 MB, of which some are on the disk when the kill comes."""
    one = cluster(1)
    train = inspan.start("train", job_file(WRITER))
    half = wait_for(lambda: half_written(inspan), 60, "the model is being written")[0]
    worker = int(half.name.rsplit("-", 1)[1])
    os.kill(worker, signal.SIGSTOP)
    assert half.exists(), "the model was written too fast for this test"
    agent = agent_of(inspan, {"pid": worker})
    if victim == "owner":
        one.up.process.kill()
        one.up.finish(10)
    else:
        os.kill(worker if victim == "worker" else agent, signal.SIGKILL)
    if victim == "owner":  # its client would try for a minute to reach it
        train.process.kill()
    assert train.finish(60).returncode != 0
    wait_for(lambda: not os.path.exists(f"/proc/{worker}"), 20, "the worker is gone")
    if victim == "owner":  # nobody was there to clear away: the next start does
        wait_for(lambda: inspan.processes() == [], 20, "the cluster is gone")
        cluster(1)
    wait_for(lambda: not list(inspan.folder.rglob("*.tmp-*")), 20, "no half-written file remains")
    assert not list(inspan.folder.rglob("model.safetensors"))
    assert not (inspan.folder / "out").exists()


def test_the_next_job_runs_after_a_failure(running, inspan, job_file):
    os.kill(running.ranks[0]["pid"], signal.SIGKILL)
    running.error()
    job = job_file(JOB, "next.yaml")
    wait_for(lambda: sum(n["state"] == "ready" for n in inspan.json("nodes")["nodes"]) == 3, 20, "all nodes are free")
    result = inspan.run("train", job, "--set", "train.steps=3", "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["steps"] == 3
