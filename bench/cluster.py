"""A private cluster on this machine for measurements: jobs, their workers' logs, the processes behind them."""

import json
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from phases import WorkerLog

INSPAN = Path(__file__).resolve().parent.parent / "build" / "inspan"
WORDS = "the quick brown ox drew a heavy wagon over the long dry road to town and the driver sang".split()


class Failed(Exception):
    """The measurement cannot go on; the text is for people."""


def wait_for(condition, seconds, what, pause=0.02):
    """The condition's first true value."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise Failed(f"after {seconds:.0f} s still not: {what}")
        time.sleep(pause)


def write_book(folder, words=40000, seed=1):
    choose = random.Random(seed)
    (Path(folder) / "book.txt").write_text(" ".join(choose.choice(WORDS) for _ in range(words)))


def laboratory():
    """Can links be shaped and CPU quotas be set here (root, ip, tc, cgroups)? None, or what is missing."""
    with tempfile.TemporaryDirectory() as folder:
        words = [str(INSPAN), "bench", "allreduce", "--local", "2", "--link", "1gbit", "--cpu", "0.5", "--bytes", "4K",
                 "--iters", "1"]
        result = subprocess.run(words, capture_output=True, text=True, check=False,
                                env={**os.environ, "INSPAN_DIR": folder})
    return None if result.returncode == 0 else result.stderr.strip()


def control_group(pid):
    """The folder of the control group with the CPU quota that a process is in."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for _, where, kind, options, *_ in mounts:
            first = kind == "cgroup" and "cpu" in controllers.split(",") and "cpu" in options.split(",")
            if first or (kind == "cgroup2" and not controllers and path != "/"):
                return Path(where) / path.lstrip("/")
    raise Failed(f"process {pid} is in no control group with a CPU quota")


def beside(pid, words, **options):
    """Start a program in the laboratory's machine that a process lives in: its network and its CPU quota."""
    members = control_group(pid) / "cgroup.procs"
    return subprocess.Popen(["nsenter", "-t", str(pid), "-n", *words], text=True, **options,
                            preexec_fn=lambda: members.write_text(str(os.getpid())))


class Job:
    """One that was submitted. Its summary is that of `inspan train`, once it has ended."""

    def __init__(self, cluster, text, name, options):
        self.cluster, self.name = cluster, name
        path = cluster.folder / f"{name}.yaml"
        path.write_text(text)
        self.out = open(cluster.folder / f"{name}.out", "w+")
        self.err = open(cluster.folder / f"{name}.err", "w+")
        before = {job["job"] for job in cluster.ask("jobs")["jobs"]}
        self.process = cluster.start("train", path, "--json", *options, out=self.out, err=self.err)
        self.logs = {}
        self.number = wait_for(lambda: self._number(before), 30, f"job {name} is known")

    def _number(self, before):
        if self.process.poll() is not None:
            raise Failed(f"inspan train {self.name}: {self.text(self.err)}")
        jobs = self.cluster.ask("jobs", fails=True)
        return next((job["job"] for job in (jobs or {"jobs": []})["jobs"]
                     if job["job"] not in before and job["name"] == self.name), None)

    @staticmethod
    def text(file):
        file.seek(0)
        return file.read()[-4000:]

    def info(self):
        """None where the manager does not answer just now."""
        return self.cluster.ask("job", self.number, fails=True)

    def has_ended(self):
        return self.process.poll() is not None

    def read_logs(self):
        """{rank: WorkerLog} of all workers that it has had, read up to now."""
        for path in self.cluster.folder.glob(f"state/agents/*/jobs/{self.number}/rank-*.log"):
            rank = int(path.stem.removeprefix("rank-"))
            if rank not in self.logs:
                self.logs[rank] = WorkerLog(path, rank)
        for log in self.logs.values():
            log.read()
        return self.logs

    def finish(self, seconds):
        """The summary."""
        deadline = time.monotonic() + seconds
        while self.process.poll() is None:  # the logs are read meanwhile: they have a cap
            if time.monotonic() > deadline:
                raise Failed(f"job {self.name} has not ended within {seconds:.0f} s: {self.text(self.err)}")
            self.read_logs()
            time.sleep(0.2)
        if self.process.returncode != 0:
            raise Failed(f"job {self.name}: {self.text(self.err)}")
        self.read_logs()
        self.out.seek(0)
        return json.loads(self.out.read())

    def cancel(self):
        self.cluster.run("cancel", self.number)
        wait_for(self.has_ended, 60, f"job {self.name} is cancelled")
        self.read_logs()

    def ledger(self):
        return self.cluster.ask("job", self.number, "--ledger")


class Cluster:
    """with Cluster(4, "--link", "1gbit") as cluster: `inspan up --local 4` whose workers log the phases of each step."""

    def __init__(self, agents, *options):
        self.agents = agents
        self.folder = Path(tempfile.mkdtemp(prefix="inspan-bench."))
        self.env = {**os.environ, "INSPAN_DIR": str(self.folder / "state"), "INSPAN_LOG": "debug"}
        self.env.pop("INSPAN_MANAGER", None)
        self.programs = []
        self.up_out, self.up_err = (open(self.folder / name, "w+") for name in ("up.out", "up.err"))
        self.up = self.start("up", "--local", agents, "--port", 0, *options, out=self.up_out, err=self.up_err)

    def __enter__(self):
        try:
            wait_for(self._ready, 60, f"{self.agents} nodes are ready")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_):
        self.close()

    def start(self, *words, out=subprocess.PIPE, err=subprocess.PIPE):
        program = subprocess.Popen([str(INSPAN), *map(str, words)], stdout=out, stderr=err, text=True, env=self.env,
                                   cwd=self.folder, stdin=subprocess.DEVNULL)
        self.programs.append(program)
        return program

    def run(self, *words, seconds=60):
        env = {**self.env, "INSPAN_LOG": "warn"}
        return subprocess.run([str(INSPAN), *map(str, words)], capture_output=True, text=True, env=env,
                              cwd=self.folder, timeout=seconds, check=False)

    def ask(self, *words, fails=False):
        """The JSON answer. fails: None where there is none."""
        result = self.run(*words, "--json")
        if result.returncode == 0:
            return json.loads(result.stdout)
        if fails:
            return None
        raise Failed(f"inspan {' '.join(map(str, words))}: {result.stderr.strip()}")

    def _ready(self):
        if self.up.poll() is not None:
            raise Failed(f"inspan up: {Job.text(self.up_err)}")
        if not (self.folder / "state" / "client.json").exists():
            return False
        nodes = self.ask("nodes", fails=True)
        return nodes and sum(node["state"] == "ready" for node in nodes["nodes"]) == self.agents

    def job(self, text, name, *options):
        return Job(self, text, name, options)

    def processes(self):
        """{pid: words} of all that runs in this cluster's folder."""
        found = {}
        for entry in Path("/proc").iterdir():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")[:-1] if entry.name.isdigit() else []
            except OSError:
                continue
            words = [word.decode(errors="replace") for word in words]
            if int(entry.name) != os.getpid() if words else False:
                if any(str(self.folder) in word for word in words):
                    found[int(entry.name)] = words
        return found

    def agent(self, number):
        """Pid of the agent that has this place (0 is node-1), or None."""
        wanted = f"--folder={self.folder}/state/agents/{number}"
        return next((pid for pid, words in self.processes().items() if "agent" in words and wanted in words), None)

    def agent_of(self, worker):
        """Pid of the agent of a worker's pid, or None."""
        words = self.processes().get(worker, [""])
        start = f"{self.folder}/state/agents/"
        return self.agent(words[-1].removeprefix(start).split("/")[0]) if words[-1].startswith(start) else None

    def close(self):
        for program in reversed(self.programs):
            if program.poll() is None:
                program.terminate()
        for program in self.programs:
            try:
                program.wait(30)
            except subprocess.TimeoutExpired:
                program.kill()
                program.wait()
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        shutil.rmtree(self.folder, ignore_errors=True)
