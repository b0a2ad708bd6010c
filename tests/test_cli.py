"""The command line where no cluster is needed: help, exit codes, and bad input told with its place."""

import json

import pytest

from conftest import CLUSTER_ERROR, USER_ERROR

COMMANDS = ["up", "join", "train", "nodes", "jobs", "job", "logs", "cancel", "generate", "bench", "version"]

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
    (["job", "seven"], '"seven" is no job\'s number'),
    (["job", "0"], '"0" is no job\'s number'),
    (["up", "--port", "65536"], "--port 65536"),
    (["up", "--cpu", "1"], "--cpu and --link need --local N"),
    (["up", "--data-ports", "9-8"], "--data-ports 9-8: expected A-B"),
    (["join", "host"], "no token"),
    (["join", "host:x", "--token", "t"], "the port must be a number"),
    (["join", "a b", "--token", "t"], "is no address"),
    (["join", "host", "--token", "two words"], "copy it again"),
    (["generate", "no-such-folder"], "no-such-folder"),
])
def test_what_the_user_got_wrong(inspan, words, says):
    result = inspan.run(*words)
    assert result.returncode == USER_ERROR
    assert says in result.stderr
    assert result.stderr.startswith("inspan: ")
    assert result.stderr.count("\n") == 1


def test_errors_are_json_too(inspan):
    result = inspan.run("nodes", "--json")
    assert result.returncode == USER_ERROR
    error = json.loads(result.stdout)["error"]
    assert error["status"] == "not found"
    assert "inspan up" in error["text"]
    assert json.loads(inspan.run("nodes", "--json", "--nosuch").stdout)["error"]["status"] == "invalid argument"


def test_a_manager_that_is_not_there(inspan):
    result = inspan.run("nodes", "--manager", "127.0.0.1:1", "--token", "t", seconds=20)
    assert result.returncode == CLUSTER_ERROR
    assert "127.0.0.1:1" in result.stderr
    result = inspan.run("nodes", "--json", seconds=20, env={"INSPAN_MANAGER": "127.0.0.1:1"})
    assert result.returncode == CLUSTER_ERROR
    assert json.loads(result.stdout)["error"]["status"] == "unreachable"


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
    ("data: {path: book.txt}\nsync: {mode: local}\n", "sync.mode"),
])
def test_job_files_are_checked_with_their_lines(inspan, job_file, text_file, text, says):
    result = inspan.run("train", job_file(text), "--local", "1")
    assert result.returncode == USER_ERROR
    assert says in result.stderr


def test_overrides_are_checked_alike(inspan, job_file, text_file):
    job = job_file(MODEL + "data: {path: book.txt}\n")
    for override, says in [("train.stepz=5", "did you mean train.steps?"), ("train.steps=many", "whole number"),
                           ("train.steps", "expected KEY=VALUE"), ("=5", "expected KEY=VALUE")]:
        result = inspan.run("train", job, "--set", override, "--local", "1")
        assert result.returncode == USER_ERROR
        assert says in result.stderr


def test_a_missing_job_file(inspan):
    result = inspan.run("train", "no-such.yaml", "--json")
    assert result.returncode == USER_ERROR
    assert "no-such.yaml" in json.loads(result.stdout)["error"]["text"]


@pytest.mark.parametrize("kind, content, says", [
    ("text", None, "data.path"),
    ("text", b"", "data.txt"),
    ("text", b"short", "data.txt"),
    ("csv", b"1,2,0\n3,x,1\n", "line 2"),
    ("idx", b"not an IDX file at all", "data.txt"),
])
def test_data_is_checked_before_anything_starts(inspan, job_file, kind, content, says):
    model = {"text": MODEL, "csv": "model: {kind: mlp}\n", "idx": "model: {kind: conv}\n"}[kind]
    labels = ", labels: data.txt" if kind == "idx" else ""
    if content is not None:
        (inspan.folder / "data.txt").write_bytes(content)
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
