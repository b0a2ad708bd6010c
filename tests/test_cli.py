"""The command line where no cluster is needed: help, exit codes, and bad input told with its place."""

import json
import os
import signal
import socket
import subprocess
import time

import pytest

from conftest import CLUSTER_ERROR, INSPAN, JOB_FAILED, USER_ERROR, wait_for

COMMANDS = ["up", "join", "train", "plan", "nodes", "jobs", "job", "logs", "cancel", "give", "results", "generate", "bench", "doctor",
            "lab", "version"]

MODEL = "model: {kind: gpt, layers: 2, heads: 2, dim: 32, context: 32}\n"


def test_the_overview_lists_every_command(inspan):
    result = inspan.run("--help")
    assert result.returncode == 0
    for command in COMMANDS:
        assert f"\n  {command} " in result.stdout
    assert "Exit codes" in result.stdout
    assert inspan.run().returncode == USER_ERROR


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(inspan, command):
    result = inspan.run(command, "--help")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(f"Usage: inspan {command}")
    assert f"\nExample:\n  inspan {command}" in result.stdout
    assert "Exit codes: 0" in result.stdout
    assert inspan.run("help", command).stdout == result.stdout


@pytest.mark.parametrize("words, says", [
    (["nodse"], "did you mean nodes?"),
    (["xyzzy"], 'unknown command "xyzzy"'),
    (["help", "trian"], "did you mean train?"),
    (["nodes", "--jsno"], "did you mean --json?"),
    (["nodes", "surplus"], 'unexpected "surplus"'),
    (["train"], "expected 1 more argument"),
    (["train", "job.yaml", "--local", "0"], "--local 0: expected a number from 1 to 64"),
    (["train", "job.yaml", "--local"], "--local: expected N after it"),
    (["plan"], "expected 1 more argument"),
    (["plan", "0"], '"0" is no job\'s number'),
    (["plan", "3", "--measure"], "--measure and --set need FILE.yaml"),
    (["plan", "3", "--job", "4"], "--job goes with FILE.yaml"),
    (["job", "seven"], '"seven" is no job\'s number'),
    (["job", "0"], '"0" is no job\'s number'),
    (["up", "--port", "65536"], "--port 65536"),
    (["up", "--cpu", "1"], "--cpu and --link need --local N"),
    (["up", "--address", "garbage"], "--address garbage: expected a numeric address"),
    (["up", "--local", "2", "--name", "foo"], "does not go with --local"),
    (["up", "--dir", "/tmp/" + 200 * "a"], "state folder is longer than 200 bytes"),
    (["join", "host", "--token", "t", "--name", 41 * "n"], "at most 40 bytes"),
    (["bench", "allgather"], "there is bench allreduce and bench explain"),
    (["bench", "explain", "--local", "2", "--schedule", "ring"], "do not go with it"),
    (["bench", "explain", "--local", "1"], "at least two"),
    (["bench", "allreduce", "--local", "2", "--backend", "glue"], '"glue" is none of auto, native, gloo'),
    (["bench", "allreduce", "--local", "2", "--backend", "gloo", "--wire", "bf16"], "are for the native backend"),
    (["bench", "allreduce", "--local", "2", "--rank", "1"], "do not go with it"),
    (["bench", "allreduce", "--local", "2", "--bytes", "1"], "multiples of 4"),
    (["bench", "allreduce", "--local", "2", "--weights", "0,0"], "at least one must be above 0"),
    (["bench", "allreduce", "--rank", "0", "--world", "2", "--rendezvous", "host"], '"host" is not HOST:PORT'),
    (["bench", "allreduce", "--rank", "0", "--world", "2", "--rendezvous", "h:x"], "--rendezvous: \"h:x\": the port"),
    (["generate", "out/other.safetensors"], "expected a folder with model.safetensors"),
    (["results", "none"], "is no job's number"),
    (["up", "--on-battery", "2"], "--on-battery 2: expected a number from 0 to 1"),
    (["give", "--when-hot", "warm"], "--when-hot warm: expected a number"),
    (["give", "--at-most", "0.5"], "no agent has run here"),
    (["up", "--data-ports", "9-8"], "--data-ports 9-8: expected A-B"),
    (["join", "host"], "no token"),
    (["join", "host:x", "--token", "t"], "the port must be a number"),
    (["join", "a b", "--token", "t"], "is no address"),
    (["join", "host", "--token", "two words"], "copy it again"),
    (["generate", "no-such-folder"], "no-such-folder"),
    (["lab", "list"], "there are lab show and lab set"),
    (["lab", "set", "--cpu", "0.3"], "which node?"),
    (["lab", "set", "node-1"], "give --cpu C, --link R or both"),
    (["lab", "set", "node-1", "--cpu", "0.3,0.4"], "expected one value"),
    (["lab", "set", "node-1", "--cpu", "much"], "expected a number from 0.05 to 1024"),
    (["lab", "set", "node-1", "--link", "fast"], "expected a rate as 1gbit"),
    (["lab", "show", "--cpu", "1"], "lab show changes nothing"),
])
def test_what_the_user_got_wrong(inspan, words, says):
    result = inspan.run(*words)
    assert result.returncode == USER_ERROR
    assert says in result.stderr
    assert result.stderr.startswith("inspan: ")
    assert result.stderr.count("\n") == 1


def test_help_is_an_option_not_a_word(inspan):
    """-h as the value of an option is that value."""
    result = inspan.run("generate", "no-such-folder", "-p", "-h")
    assert result.returncode == USER_ERROR
    assert "no-such-folder" in result.stderr
    assert inspan.run("train", "-h").returncode == 0
    assert inspan.run("train", "surplus", "--help", "--local", "3").returncode == 0


def test_an_answer_that_cannot_be_written_is_a_failure(inspan):
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full")
    for words in (["version"], ["version", "--json"], ["--version"], ["train", "--help"]):
        with open("/dev/full", "w") as full:
            result = subprocess.run([INSPAN, *words], env=inspan.env, stdout=full, stderr=subprocess.PIPE, text=True,
                                    timeout=30)
        assert result.returncode == USER_ERROR, words
        assert "cannot write the answer: No space left" in result.stderr


def test_closed_descriptors_are_not_taken_by_others(inspan):
    """A socket that is opened where stdout was closed would get the output."""
    script = f'exec "{INSPAN}" bench allreduce --local 2 --bytes 1M --iters 100000 <&- >&- 2>&-'
    program = subprocess.Popen(["sh", "-c", script], env=inspan.env, cwd=inspan.folder)
    wait_for(lambda: len(inspan.processes()) >= 3, 30, "both ranks run")
    assert [os.readlink(f"/proc/{program.pid}/fd/{fd}") for fd in range(3)] == 3 * ["/dev/null"]
    program.terminate()
    assert program.wait(20) == JOB_FAILED


def test_errors_are_json_too(inspan):
    result = inspan.run("nodes", "--json")
    assert result.returncode == USER_ERROR
    error = json.loads(result.stdout)["error"]
    assert error["status"] == "not found"
    assert "inspan up" in error["text"]
    assert json.loads(inspan.run("nodes", "--json", "--nosuch").stdout)["error"]["status"] == "invalid argument"
    error = json.loads(inspan.run("join", "host", "--json").stdout)["error"]
    assert "no token" in error["text"]


def test_a_manager_that_is_not_there(inspan):
    result = inspan.run("nodes", "--manager", "127.0.0.1:1", "--token", "t", seconds=20)
    assert result.returncode == CLUSTER_ERROR
    assert "127.0.0.1:1" in result.stderr
    result = inspan.run("nodes", "--json", seconds=20, env={"INSPAN_MANAGER": "127.0.0.1:1"})
    assert result.returncode == CLUSTER_ERROR
    assert json.loads(result.stdout)["error"]["status"] == "unreachable"


def test_training_without_a_manager_is_the_clusters_fault(inspan, job_file, text_file):
    job = job_file(MODEL + "data: {path: book.txt}\n")
    result = inspan.run("train", job, "--manager", "127.0.0.1:1", "--token", "t", seconds=30)
    assert result.returncode == CLUSTER_ERROR
    assert "127.0.0.1:1" in result.stderr


def test_version(inspan):
    version = inspan.json("version")
    assert version["version"]
    assert {"gRPC core", "SQLite", "libuv"} <= set(version["libraries"])
    assert version["gemm"]
    assert inspan.run("--version").stdout.startswith(f"inspan {version['version']} ")


def test_bench_measures_and_checks_its_sums(inspan):
    answer = inspan.json("bench", "allreduce", "--local", "3", "--bytes", "4K,100K", "--iters", "3", "--check")
    assert [row["bytes"] for row in answer["results"]] == [4000, 100000]
    for row in answer["results"]:
        assert 0 < row["min_s"] <= row["median_s"] <= row["max_s"]
        assert row["cpu_s"] >= 0
    assert answer["checked_sums"] == 2 * (3 + 3)
    result = inspan.run("bench", "allreduce", "--local", "2", "--bytes", "4K", "--iters", "2", "--check")
    assert "all 5 sums are right on all 2 ranks" in result.stdout


@pytest.fixture
def taken_port():
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        yield taken.getsockname()[1]


@pytest.mark.parametrize("ranks", [1, 3])
def test_bench_hears_at_once_of_a_rank_that_cannot_start(inspan, taken_port, ranks):
    start = time.monotonic()
    result = inspan.run("bench", "allreduce", "--local", str(ranks), "--data-ports", f"{taken_port}-{taken_port}", "--json")
    assert time.monotonic() - start < 15  # the ranks' own patience with each other is 30 s
    assert result.returncode not in (0, JOB_FAILED)
    assert result.stdout.count("\n") == 1
    assert "has failed (exit code" in json.loads(result.stdout)["error"]["text"]
    assert str(taken_port) in result.stderr


def test_bench_ends_on_an_interrupt(inspan):
    program = inspan.start("bench", "allreduce", "--local", "2", "--bytes", "1M", "--iters", "100000")
    wait_for(lambda: len(inspan.processes()) >= 3, 30, "both ranks run")
    program.process.send_signal(signal.SIGINT)
    result = program.finish(20)
    assert result.returncode == JOB_FAILED
    assert inspan.processes() == []


@pytest.mark.parametrize("text, says", [
    ("", "job.yaml:1: the file is empty"),
    ("just words\n", "job.yaml:1: expected fields"),
    ("name: a\nmodel: {kind: gpt, layer: 3}\n", "job.yaml:2: unknown field model.layer: did you mean model.layers?"),
    ("name: a\n\ntrian: {steps: 3}\n", "job.yaml:3: unknown field trian: did you mean train?"),
    ("train:\n  steps: many\n", "job.yaml:2: train.steps: expected a whole number"),
    ("train:\n\tsteps: 3\n", "job.yaml:2: not YAML"),
    ("name: a\nname: b\n", "job.yaml:2: name is given twice, first on line 1"),
    ("model: {kind: transformer}\n", "job.yaml:1: model.kind: expected one of gpt|mlp|conv"),
    ("failure_timeout: 10ms\n", "job.yaml:1: failure_timeout"),
    ("name: a\n", "data.path"),
    ("model: {dim: 100, heads: 3}\ndata: {path: book.txt}\n", "heads"),
    ("data: {path: book.txt}\nsync: {mode: eager}\n", "sync.mode"),
])
def test_job_files_are_checked_with_their_lines(inspan, job_file, text_file, text, says):
    result = inspan.run("train", job_file(text), "--local", "1")
    assert result.returncode == USER_ERROR
    assert says in result.stderr


def test_overrides_are_checked_alike(inspan, job_file, text_file):
    job = job_file(MODEL + "data: {path: book.txt}\n")
    for override, says in [("train.stepz=5", "did you mean train.steps?"), ("train.steps=many", "whole number"),
                           ("train.steps", "expected KEY=VALUE"), ("=5", "expected KEY=VALUE"),
                           ("nodes=3", "did you mean nodes.min?"), (b"name=\xff", "not UTF-8"),
                           ("data.path=none.txt", "none.txt"),
                           ("checkpoint.dir=book.txt/out", "book.txt is no folder")]:
        result = inspan.run("train", job, "--set", override, "--local", "1")
        assert result.returncode == USER_ERROR
        assert says in result.stderr


def test_a_missing_job_file(inspan):
    result = inspan.run("train", "no-such.yaml", "--json")
    assert result.returncode == USER_ERROR
    assert "no-such.yaml" in json.loads(result.stdout)["error"]["text"]


@pytest.mark.parametrize("kind, content, says", [
    ("text", None, "data.path"),
    ("text", "folder", "data.txt: not a plain file"),
    ("text", "pipe", "data.txt: not a plain file"),
    ("text", "secret", "Permission denied"),
    ("text", b"", "data.txt"),
    ("text", b"short", "data.txt"),
    ("csv", b"1,2,0\n3,x,1\n", "line 2"),
    ("idx", b"not an IDX file at all", "data.txt"),
])
def test_data_is_checked_before_anything_starts(inspan, job_file, kind, content, says):
    model = {"text": MODEL, "csv": "model: {kind: mlp}\n", "idx": "model: {kind: conv}\n"}[kind]
    labels = ", labels: data.txt" if kind == "idx" else ""
    path = inspan.folder / "data.txt"
    if content == "folder":
        path.mkdir()
    elif content == "pipe":
        os.mkfifo(path)
    elif content == "secret":
        if os.geteuid() == 0:
            pytest.skip("root may read everything")
        path.write_bytes(1000 * b"a")
        path.chmod(0)
    elif content is not None:
        path.write_bytes(content)
    job = job_file(model + f"data: {{kind: {kind}, path: data.txt{labels}}}\n")
    result = inspan.run("train", job, "--local", "2")
    assert result.returncode == USER_ERROR
    assert says in result.stderr
    assert "submitted" not in result.stderr


def test_options_that_do_not_go_together(inspan, job_file, text_file):
    job = job_file(MODEL + "data: {path: book.txt}\nnodes: {min: 3}\n")
    for words in (["--cpu", "1"], ["--local", "3", "--detach"], ["--local", "3", "--nodes", "a"],
                  ["--local", "3", "--manager", "a"], ["--local", "2"], ["--nodes", ","]):
        assert inspan.run("train", job, *words).returncode == USER_ERROR, words
