"""Training through the whole program: private clusters, the laboratory, and a cluster that stays."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
from pathlib import Path

import conftest
import pytest

from conftest import CLUSTER_ERROR, ENDLESS, INSPAN, JOB_FAILED, MINI_JOB, ROOT, USER_ERROR, wait_for

pytestmark = pytest.mark.usefixtures("temporary")


def private_folders(inspan):
    return set(Path(inspan.env["TMPDIR"]).iterdir())


def machines(owner=None):
    """Namespaces, bridges and links of laboratories whose owner, which their names tell, has ended (or is this one)."""
    names = [entry.name for entry in Path("/run/netns").glob("inspan-*")] if Path("/run/netns").exists() else []
    names += [name for _, name in socket.if_nameindex()]
    pids = {name: int(match.group(1)) for name in names if (match := re.match(r"(?:inspan-|is[bv])(\d+)[a-j]", name))}
    return {name for name, pid in pids.items() if pid == owner or not os.path.exists(f"/proc/{pid}")}


@pytest.fixture
def nothing_left(inspan, temporary):
    nets = machines()
    yield
    assert private_folders(inspan) == set()
    assert machines() <= nets


def test_a_private_cluster_trains_and_is_taken_down(inspan, job, nothing_left):
    result = inspan.run("train", job, "--local", "3", "--json")
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("\n") == 1
    summary = json.loads(result.stdout)
    assert summary["state"] == "done"
    assert (summary["steps"], summary["samples"], summary["views"]) == (20, 480, 1)
    assert summary["samples_recomputed"] == 0
    assert summary["loss_last"] < summary["loss_first"]
    nodes = summary["nodes"]
    assert [node["node"] for node in nodes] == ["node-1", "node-2", "node-3"]
    assert {node["param_hash"] for node in nodes} == {summary["param_hash"]}
    assert sum(node["share"] for node in nodes) == pytest.approx(1)
    assert summary["compute_s"] == max(node["compute_s"] for node in nodes) > 0
    assert summary["exposed_comm_s"] == max(node["exposed_comm_s"] for node in nodes) > 0
    assert summary["bytes_sent"] == sum(node["bytes_sent"] for node in nodes) > 0
    assert (inspan.folder / "out" / "model.safetensors").stat().st_size > 10000
    assert "step 20/20" in result.stderr


@pytest.mark.parametrize("fields", ["sync.wire=bf16", "sync.wire=int8", "sync.mode=local sync.local_batch=4",
                                    "sync.mode=local sync.local_batch=4 sync.wire=int8"])
def test_less_on_the_wire(inspan, job, fields, nothing_left):
    """All nodes hold the same weights, and the model learns."""
    words = [word for field in fields.split() for word in ("--set", field)]
    result = inspan.run("train", job, "--local", "3", "--json", *words)
    assert result.returncode == 0, result.stderr
    summary = json.loads(result.stdout)
    assert summary["state"] == "done" and summary["samples"] == 480
    assert summary["loss_last"] < summary["loss_first"]
    assert {node["param_hash"] for node in summary["nodes"]} == {summary["param_hash"]}


def test_people_get_a_table(inspan, job, nothing_left):
    result = inspan.run("train", job, "--local", "2")
    assert result.returncode == 0, result.stderr
    assert "20 steps, 480 samples" in result.stdout
    assert re.search(r"^ +1  node-2 ", result.stdout, re.M)
    assert "out/model.safetensors" in result.stdout


def test_paths_start_where_they_are_written(inspan, job_file, text_file, tmp_path, nothing_left):
    """In the job file: at its folder. On the command line: at the current one."""
    (tmp_path / "jobs").mkdir()
    (tmp_path / "here").mkdir()
    text_file.rename(tmp_path / "here" / "book.txt")
    job = job_file(MINI_JOB.replace("book.txt", "beside.txt"), "jobs/job.yaml")
    words = ["train", "../jobs/job.yaml", "--local", "1", "--set", "train.steps=2"]
    result = inspan.run(*words, "--set", "data.path=book.txt", cwd=tmp_path / "here")
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "jobs" / "out" / "model.safetensors").exists()
    assert "wrote ../jobs/out/model.safetensors" in result.stdout
    (tmp_path / "here" / "book.txt").rename(tmp_path / "jobs" / "beside.txt")
    result = inspan.run(*words, "--set", "checkpoint.dir=mine", cwd=tmp_path / "here")
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "here" / "mine" / "model.safetensors").exists()
    result = inspan.run(*words, "--set", "data.path=beside.txt", cwd=tmp_path / "here")
    assert result.returncode == USER_ERROR
    assert "data.path: beside.txt: No such file" in result.stderr


def test_the_readme_works_as_typed(inspan, cluster, text_file):
    """Its lines about training, in a folder as the clone's root is."""
    root = inspan.folder / "clone"
    (root / "build").mkdir(parents=True)
    (root / "build" / "inspan").symlink_to(INSPAN)
    shutil.copytree(ROOT / "examples", root / "examples")
    text_file.rename(root / "book.txt")
    block = re.search(r"## Three machines.*?```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.S).group(1)
    lines = [line for line in block.splitlines() if line.startswith("build/inspan ")]
    assert [line.split()[1] for line in lines] == ["up", "join", "nodes", "train", "generate"]
    cluster(2)
    for line in lines[2:]:
        if " train " in line:
            line += " --set train.steps=5 --set model.dim=16 --set train.global_batch=4"
        if " generate " in line:
            line += " --tokens 5"
        result = subprocess.run(line, shell=True, cwd=root, env=inspan.env, capture_output=True, timeout=120)
        assert result.returncode == 0, (line, result.stderr)


def test_data_on_its_way_is_shown(inspan, job, text_file, nothing_left):
    size = f"{text_file.stat().st_size / 1e3:.1f} KB"
    result = inspan.run("train", job, "--local", "1", "--set", "train.steps=1")
    assert result.returncode == 0, result.stderr
    assert f"sending book.txt: {size} of {size}\n" in result.stderr
    assert result.stderr.count("sending") == 1  # one line where stderr is no terminal and the network is fast
    assert result.stderr.index("sending book.txt") < result.stderr.index("is submitted")


def test_results_that_cannot_be_written_are_not_claimed(inspan, cluster, job, tmp_path):
    """The place goes while the job runs; what was trained is fetched afterwards."""
    cluster(1)
    (tmp_path / "results").mkdir()
    program = inspan.start("train", job, "--json", "--set", "train.steps=300", "--set", "checkpoint.dir=results/out")
    wait_for(lambda: (j := inspan.json("jobs")["jobs"]) and j[0]["state"] == "running", 60, "it runs")
    (tmp_path / "results").rmdir()
    (tmp_path / "results").write_text("in the way")
    result = program.finish(120)
    assert result.returncode == USER_ERROR, result.stderr
    assert "inspan results 1" in result.stderr
    summary = json.loads(result.stdout)
    assert (summary["state"], summary["results"]) == ("done", None)
    assert "inspan results 1" in summary["error"]["text"]
    assert inspan.json("results", 1, "kept")["files"] == ["model.safetensors", "config.json"]
    assert (tmp_path / "kept" / "model.safetensors").stat().st_size > 10000
    assert "inspan results 1" in inspan.run("job", 1).stdout
    result = inspan.run("results", 1, "results/out")
    assert result.returncode == USER_ERROR
    assert "wrote" not in result.stdout


def test_what_was_trained_can_write(inspan, job, nothing_left):
    assert inspan.run("train", job, "--local", "1", "--set", "train.steps=60").returncode == 0
    answer = inspan.json("generate", "out", "--prompt", "the quick", "--tokens", "30", "--temperature", "0")
    assert len(answer["text"]) == 30
    same = inspan.run("generate", "out/model.safetensors", "--prompt", "the quick", "--tokens", "30", "--temperature",
                      "0")
    assert same.stdout == "the quick" + answer["text"] + "\n"


def test_interrupt_cancels_and_leaves_nothing(inspan, job, nothing_left):
    program = inspan.start("train", job, "--local", "2", *ENDLESS)
    wait_for(lambda: len(inspan.processes()) >= 6, 60, "manager, two agents and two workers run")
    program.process.send_signal(signal.SIGINT)
    result = program.finish(40)
    assert result.returncode == JOB_FAILED
    assert "cancelling job 1" in result.stderr
    assert "was cancelled" in result.stderr
    assert inspan.processes() == []


def test_a_killed_owner_takes_its_cluster_with_it(inspan, job):
    program = inspan.start("train", job, "--local", "2", *ENDLESS)
    wait_for(lambda: len(inspan.processes()) >= 6, 60, "manager, two agents and two workers run")
    assert private_folders(inspan)
    program.process.kill()
    program.finish(10)
    wait_for(lambda: inspan.processes() == [], 20, "all processes have ended")
    assert inspan.run("train", job, "--local", "1").returncode == 0
    assert private_folders(inspan) == set()  # its folder is removed by the next one


def test_a_private_cluster_mends_itself(inspan, job, nothing_left):
    """kill -9 of an agent, then of the manager: both are started again, and the job ends as it should."""
    program = inspan.start("train", job, "--local", "2", "--json", "--set", "train.steps=2500")
    wait_for(lambda: len(inspan.processes()) >= 6, 60, "manager, two agents and two workers run")

    def child(kind):
        rows = subprocess.run(["ps", "-o", "pid=,args=", "--ppid", str(program.process.pid)], capture_output=True,
                              text=True, check=True).stdout
        found = re.search(rf"(\d+) inspan {kind}", rows)
        return found and int(found.group(1))

    for kind in ("agent", "manager"):
        killed = wait_for(lambda kind=kind: child(kind), 10, f"the {kind} runs")
        os.kill(killed, signal.SIGKILL)
        wait_for(lambda kind=kind, killed=killed: child(kind) not in (None, killed), 20, f"another {kind} runs")
    result = program.finish(120)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["steps"] == 2500
    assert "agent node-1 has ended (killed by signal 9" in result.stderr
    assert "manager has ended (killed by signal 9" in result.stderr


def test_a_model_larger_than_memory_is_refused_with_figures(inspan, job, nothing_left):
    result = inspan.run("train", job, "--local", "1", "--set", "model.dim=32768", "--set", "model.layers=200", "--json")
    assert result.returncode == USER_ERROR
    assert re.search(r"needs [\d.]+ GB.*has [\d.]+ [MG]B", json.loads(result.stdout)["error"]["text"])


def test_unequal_machines(inspan, job, laboratory, nothing_left):
    summary = inspan.json("train", job, "--local", "3", "--cpu", "0.5,0.3,0.2", "--link", "1gbit,200mbit/100mbit,100mbit")
    addresses = [node["address"] for node in summary["nodes"]]
    assert len(set(addresses)) == 3
    assert not any(address.startswith("127.") for address in addresses)
    for words in (["--cpu", "1,1"], ["--link", "fast"], ["--cpu", "0"]):
        result = inspan.run("train", job, "--local", "3", *words)
        assert result.returncode == USER_ERROR, result.stderr


def test_a_killed_laboratory_is_cleared_away_by_the_next(inspan, job, laboratory):
    program = inspan.start("train", job, "--local", "2", "--link", "1gbit", *ENDLESS)
    wait_for(lambda: len(inspan.processes()) >= 6, 60, "manager, two agents and two workers run")
    left = machines(program.process.pid)
    assert len(left) >= 5
    program.process.kill()
    program.finish(10)
    assert inspan.run("train", job, "--local", "1", "--link", "1gbit").returncode == 0
    assert not left & machines()


def test_bench_between_unequal_machines(inspan, laboratory):
    answer = inspan.json("bench", "allreduce", "--local", "3", "--link", "100mbit,1gbit,100mbit", "--bytes", "1M", "--iters",
                         "3", "--check")
    row = answer["results"][0]
    assert row["min_s"] > 0.08  # 1 MB can hardly leave a machine of 100 Mbit/s in less
    assert not machines(os.getpid())


def test_a_cluster_of_unequal_machines(inspan, cluster, job, laboratory):
    one = cluster(2, "--cpu", "0.5,0.25", "--link", "1gbit,200mbit")
    nodes = inspan.json("nodes")["nodes"]
    assert len({node["address"] for node in nodes}) == 2
    assert not any(node["address"].startswith("127.") for node in nodes)
    result = inspan.run("train", job, "--set", "train.steps=2", "--json")
    assert result.returncode == 0, result.stderr
    left = machines(one.up.process.pid)
    assert left
    assert one.stop().returncode == 0
    assert not machines() & left


# ---- A cluster that stays


def test_memory_is_counted_by_machine(inspan, cluster, job):
    """Three agents each offer all memory of the machine that they share."""
    cluster(3)
    memory = inspan.json("nodes")["nodes"][0]["inventory"]["memory_bytes"]
    wish = ["--set", f"nodes.memory={memory * 6 // 10}"]
    result = inspan.run("train", job, "--set", "nodes.min=3", *wish, "--json")
    assert result.returncode == USER_ERROR
    error = json.loads(result.stdout)["error"]["text"]
    assert re.search(r"needs [\d.]+ GB on each of 3 nodes .*share one machine.*has [\d.]+ GB: enough for 1", error)
    assert len(inspan.json("train", job, *wish)["nodes"]) == 1
    assert len(inspan.json("train", job, "--set", f"nodes.memory={memory // 3}")["nodes"]) == 3


def test_a_private_cluster_does_not_promise_memory_thrice(inspan, job, nothing_left):
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    result = inspan.run("train", job, "--local", "3", "--set", f"nodes.memory={pages // 2}", "--json")
    assert result.returncode == USER_ERROR
    assert re.search(r"needs [\d.]+ GB.*has [\d.]+ GB", json.loads(result.stdout)["error"]["text"])


def test_up_tells_how_to_join_and_ends_on_sigterm(inspan, cluster):
    one = cluster(2)
    known = json.loads((inspan.folder / "state" / "client.json").read_text())
    assert (inspan.folder / "state" / "client.json").stat().st_mode & 0o777 == 0o600
    result = one.stop()
    assert result.returncode == 0, result.stderr
    assert re.search(rf"inspan join \S+:\d+ --token {known['token']}\n", result.stdout)
    assert inspan.processes() == []
    result = inspan.run("nodes", seconds=20)
    assert result.returncode == CLUSTER_ERROR


def test_a_wrong_token_is_refused(inspan, cluster):
    cluster(1)
    manager = json.loads((inspan.folder / "state" / "client.json").read_text())["manager"]
    result = inspan.run("nodes", "--token", "wrong")
    assert result.returncode == USER_ERROR
    assert "token" in result.stderr
    other = {"INSPAN_DIR": str(inspan.folder / "other")}
    result = inspan.run("join", manager, "--token", "wrong", seconds=20, env=other)
    assert result.returncode == USER_ERROR
    assert "token" in result.stderr
    assert not (inspan.folder / "other" / "client.json").exists()


def test_a_program_that_joins_is_told(inspan, cluster):
    one = cluster(1)
    known = json.loads((inspan.folder / "state" / "client.json").read_text())
    other = {"INSPAN_DIR": str(inspan.folder / "other")}
    program = inspan.start("join", known["manager"], "--token", known["token"], "--name", "second", "--json", env=other)
    wait_for(lambda: one.ready(2), 30, "the second node is ready")
    result = program.stop()
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("\n") == 1
    told = json.loads(result.stdout)
    node = next(node for node in inspan.json("nodes")["nodes"] if node["name"] == "second")
    assert (told["node"], told["node_id"]) == ("second", node["node_id"])
    assert told["pid"] == program.process.pid
    result = inspan.run("join", known["manager"], "--token", "wrong", "--json", seconds=20, env=other)
    assert "token" in json.loads(result.stdout)["error"]["text"]


def test_a_program_that_cannot_be_started_again_ends_nothing(inspan, cluster, monkeypatch):
    """The manager dies while the program's file is away: `up` keeps the agents and tries again."""
    copy = inspan.folder / "inspan"
    shutil.copy(INSPAN, copy)
    monkeypatch.setattr(conftest, "INSPAN", copy)
    one = cluster(1)
    log = []
    readers = [threading.Thread(target=lambda pipe=pipe: log.extend(iter(pipe.readline, "")), daemon=True)
               for pipe in (one.up.process.stdout, one.up.process.stderr)]
    for reader in readers:
        reader.start()
    # until then a loss is a failed start, and ends it
    wait_for(lambda: any("1 node has registered" in line for line in log), 30, "`up` has seen its node")
    copy.rename(inspan.folder / "away")
    monkeypatch.setattr(conftest, "INSPAN", INSPAN)
    children = subprocess.run(["ps", "-o", "pid=,args=", "--ppid", str(one.up.process.pid)], capture_output=True,
                              text=True, check=True).stdout
    manager = int(re.search(r"(\d+) inspan manager", children).group(1))
    os.kill(manager, signal.SIGKILL)
    wait_for(lambda: any("manager cannot be started" in line for line in log), 30, f"a start has failed: {log}")
    (inspan.folder / "away").rename(copy)
    wait_for(lambda: one.ready(1), 60, "the manager is back and the agent with it")
    one.up.process.terminate()
    assert one.up.process.wait(30) == 0
    for reader in readers:
        reader.join(30)


def test_another_machine_joins_and_leaves(inspan, cluster):
    one = cluster(1)
    known = json.loads((inspan.folder / "state" / "client.json").read_text())
    other = {"INSPAN_DIR": str(inspan.folder / "other")}
    program = inspan.start("join", known["manager"], "--token", known["token"], "--name", "second", env=other)
    wait_for(lambda: one.ready(2), 30, "the second node is ready")
    assert inspan.json("nodes", "--dir", inspan.folder / "other") # what join noted is enough to look around
    result = program.stop()
    assert result.returncode == 0, result.stderr
    wait_for(lambda: one.ready(1), 30, "it has left")


def test_a_taken_port_and_a_taken_folder(inspan, cluster):
    cluster(1)
    port = json.loads((inspan.folder / "state" / "client.json").read_text())["manager"].rsplit(":", 1)[1]
    result = inspan.run("up", "--port", port, seconds=30, env={"INSPAN_DIR": str(inspan.folder / "other")})
    assert result.returncode == USER_ERROR
    assert port in result.stderr
    result = inspan.run("up", "--port", "0", seconds=30)
    assert result.returncode == USER_ERROR
    assert str(inspan.folder / "state") in result.stderr


def test_detached_jobs_are_listed_read_and_cancelled(inspan, cluster, job):
    cluster(2)
    first = json.loads(inspan.run("train", job, "--detach", "--json", "--nodes", "node-2").stdout)["job"]
    done = wait_for(lambda: (j := inspan.json("job", first))["state"] == "done" and j, 60, "the job is done")
    assert [rank["node"] for rank in done["ranks"]] == ["node-2"]
    assert {result["name"] for result in done["results"]} == {"model.safetensors", "config.json"}
    assert "step 20/20" in inspan.run("logs", first, "--rank", "0").stdout
    assert "[0] step 20/20" in inspan.run("logs", first).stdout
    lines = [json.loads(line) for line in inspan.run("logs", first, "--json").stdout.splitlines()]
    assert any(line["rank"] == 0 and line["text"].startswith("step 20/20") for line in lines)

    assert inspan.json("results", first)["results"] == "out"
    assert (inspan.folder / "out" / "model.safetensors").stat().st_size > 10000
    assert "has ended already: done" in inspan.run("cancel", first).stdout

    program = inspan.start("train", job, "--set", "nodes.min=5")
    wait_for(lambda: len(inspan.json("jobs")["jobs"]) == 2, 30, "the second job is there")
    assert inspan.run("cancel", 2).returncode == 0
    result = program.finish(30)
    assert result.returncode == JOB_FAILED
    assert "job 2: waits: " in result.stderr
    assert "needs 5 nodes" in result.stderr

    waits = json.loads(inspan.run("train", job, "--detach", "--json", "--set", "nodes.min=5").stdout)["job"]
    listed = {entry["job"]: entry for entry in inspan.json("jobs")["jobs"]}
    assert listed[first]["state"] == "done"
    assert listed[waits]["state"] == "queued"
    assert "needs 5 nodes" in listed[waits]["reason"]
    assert inspan.run("cancel", waits).returncode == 0
    assert inspan.json("job", waits)["state"] == "cancelled"
    assert inspan.run("job", 99).returncode == USER_ERROR
    assert inspan.run("train", job, "--nodes", "nobody").returncode == USER_ERROR


def test_logs_follow_a_job_to_its_end(inspan, cluster, job):
    cluster(1)
    number = json.loads(inspan.run("train", job, "--detach", "--json", "--set", "train.steps=400").stdout)["job"]
    result = inspan.run("logs", number, "-f", "--rank", "0", seconds=90)
    assert result.returncode == 0, result.stderr
    assert "step 400/400" in result.stdout


def test_training_outlives_the_manager(inspan, cluster, job):
    one = cluster(2)
    program = inspan.start("train", job, "--json", "--set", "train.steps=3000")
    wait_for(lambda: (j := inspan.json("jobs")["jobs"]) and j[0]["state"] == "running", 60, "it runs")
    children = subprocess.run(["ps", "-o", "pid=,args=", "--ppid", str(one.up.process.pid)], capture_output=True,
                              text=True, check=True).stdout
    os.kill(int(re.search(r"(\d+) inspan manager", children).group(1)), signal.SIGKILL)
    result = program.finish(120)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["steps"] == 3000
    assert "manager has ended (killed by signal 9" in one.stop().stderr
