"""Running the real program: every helper has a deadline, and every test checks that it left nothing behind."""

import json
import os
import random
import re
import signal
import struct
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
INSPAN = ROOT / "build" / "inspan"

USER_ERROR, CLUSTER_ERROR, JOB_FAILED = 1, 2, 3

MINI_JOB = """
name: mini
model: {kind: gpt, layers: 2, heads: 2, dim: 32, context: 32}
data: {kind: text, path: book.txt}
train: {steps: 20, global_batch: 24, lr: 1e-2, warmup: 2}
checkpoint: {dir: out}
"""
ENDLESS = ["--set", "train.steps=10000000"]


def wait_for(condition, seconds, what):
    """The condition's first true value; fails when it stays false."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            pytest.fail(f"after {seconds} s still not: {what}")
        time.sleep(0.02)  # not a wait: the pause of a poll with a deadline


class Program:
    """One run of inspan in the background."""

    def __init__(self, words, env, cwd):
        self.words = [w if isinstance(w, bytes) else str(w) for w in words]
        self.process = subprocess.Popen([str(INSPAN), *self.words], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        text=True, env=env, cwd=cwd, stdin=subprocess.DEVNULL)

    def finish(self, seconds=120):
        try:
            out, err = self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.process.terminate()
            out, err = self.process.communicate(timeout=20)
            pytest.fail(f"inspan {self.words} did not end in {seconds} s\n{out[-2000:]}\n{err[-2000:]}")
        return subprocess.CompletedProcess(self.words, self.process.returncode, out, err)

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
        return self.finish(30)


class Inspan:
    """inspan with a state folder of its own."""

    def __init__(self, folder):
        self.folder = folder
        self.env = {**os.environ, "INSPAN_DIR": str(folder / "state")}
        self.env.pop("INSPAN_MANAGER", None)

    def start(self, *words, env=None, cwd=None):
        return Program(words, {**self.env, **(env or {})}, cwd or self.folder)

    def run(self, *words, seconds=120, env=None, cwd=None):
        return self.start(*words, env=env, cwd=cwd).finish(seconds)

    def json(self, *words, seconds=120):
        result = self.run(*words, "--json", seconds=seconds)
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)

    def processes(self):
        """(pid, command line) of everything that runs with this state folder or below this test's folder."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                environment = (entry / "environ").read_bytes()
                dead = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
            except OSError:
                continue
            if not dead and (str(self.folder) in words or str(self.folder).encode() in environment):
                found.append((int(entry.name), words.strip()))
        return found


@pytest.fixture
def inspan(tmp_path):
    program = Inspan(tmp_path)
    yield program
    left = program.processes()
    for pid, _ in left:  # do not let one failure spoil the others
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    assert not left, f"processes left behind: {left}"


class Cluster:
    """`inspan up --local N` with its nodes registered."""

    def __init__(self, inspan, nodes, *options):
        self.inspan = inspan
        self.up = inspan.start("up", "--local", nodes, "--port", "0", *options)
        wait_for(lambda: self.ready(nodes), 60, f"{nodes} nodes are ready")

    def ready(self, nodes):
        assert self.up.process.poll() is None, self.up.finish()
        if not (self.inspan.folder / "state" / "client.json").exists():
            return False
        result = self.inspan.run("nodes", "--json")
        if result.returncode != 0:
            return False
        return sum(node["state"] == "ready" for node in json.loads(result.stdout)["nodes"]) == nodes

    def stop(self):
        return self.up.stop()


@pytest.fixture
def cluster(inspan):
    """cluster(3) starts one; it is taken down afterwards."""
    started = []

    def start(nodes, *options):
        started.append(Cluster(inspan, nodes, *options))
        return started[-1]

    yield start
    for one in started:
        one.stop()


@pytest.fixture
def job_file(tmp_path):
    """job_file(text) writes job.yaml beside the data and gives its path."""

    def write(text, name="job.yaml"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def write_text(folder):
    """book.txt: a text with some structure, 200 kB."""
    words = "the quick brown ox drew a heavy wagon over the long dry road to town and the driver sang".split()
    choose = random.Random(1)
    path = folder / "book.txt"
    path.write_text(" ".join(choose.choice(words) for _ in range(40000)))
    return path


@pytest.fixture
def text_file(tmp_path):
    return write_text(tmp_path)


@pytest.fixture
def image_files(tmp_path):
    """IDX images (8 x 8, 4 classes: where the bright patch is) and labels."""
    choose = random.Random(2)
    images, labels = bytearray(), bytearray()
    for _ in range(1000):
        label = choose.randrange(4)
        top, left = (label // 2) * 4, (label % 2) * 4
        for y in range(8):
            for x in range(8):
                bright = top <= y < top + 4 and left <= x < left + 4
                images.append(choose.randrange(100, 256) if bright else choose.randrange(0, 120))
        labels.append(label)
    (tmp_path / "images.idx").write_bytes(struct.pack(">IIII", 0x803, 1000, 8, 8) + bytes(images))
    (tmp_path / "labels.idx").write_bytes(struct.pack(">II", 0x801, 1000) + bytes(labels))
    return tmp_path / "images.idx", tmp_path / "labels.idx"


@pytest.fixture
def table_file(tmp_path):
    """CSV: 6 numbers and a class of 3."""
    choose = random.Random(3)
    lines = ["a,b,c,d,e,f,class"]
    for _ in range(600):
        label = choose.randrange(3)
        lines.append(",".join(f"{choose.gauss(label if i % 3 == label else 0, 1):.4f}" for i in range(6)) + f",{label}")
    path = tmp_path / "table.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def job(job_file, text_file):
    return job_file(MINI_JOB)


@pytest.fixture
def temporary(inspan, tmp_path):
    """Private clusters of this test have their folders apart from those of other programs."""
    (tmp_path / "t").mkdir()
    inspan.env["TMPDIR"] = str(tmp_path / "t")


@pytest.fixture
def laboratory(inspan, job):
    """Skips by name where namespaces or quotas cannot be made."""
    probe = inspan.run("train", job, "--local", "1", "--cpu", "1", "--link", "1gbit", "--set", "train.steps=1")
    if probe.returncode != 0 and re.search("needs root|may not make|needs the program|no cgroup|cpu controller|"
                                           "cannot be written|does not work in this container", probe.stderr):
        pytest.skip(f"no laboratory here: {probe.stderr.strip()}")
    assert probe.returncode == 0, probe.stderr
