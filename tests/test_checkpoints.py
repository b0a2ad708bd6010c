"""Checkpoints and going on from them, through the whole program."""

import json
import os
import shutil
import signal
import struct

import pytest

from conftest import USER_ERROR, wait_for

JOB = """
name: mini
model: {kind: gpt, layers: 1, heads: 2, dim: 16, context: 16}
data: {kind: text, path: book.txt}
train: {steps: 20, global_batch: 8, lr: 1e-2, warmup: 2}
checkpoint: {every: 5, keep: 2, dir: out}
"""


@pytest.fixture
def job(job_file, text_file):
    return job_file(JOB)


def test_there_must_be_something_to_go_on_from(inspan, job):
    result = inspan.run("train", job, "--resume", "--local", "1")
    assert result.returncode == USER_ERROR
    assert "--resume: there is no checkpoint in " in result.stderr
    assert "train without --resume" in result.stderr
    (inspan.folder / "out" / "step-00000005").mkdir(parents=True)
    result = inspan.run("train", job, "--resume", "--local", "1")
    assert result.returncode == USER_ERROR
    assert "the checkpoint of step 5 is damaged and passed by: cannot read " in result.stderr
    assert "manifest.json: No such file" in result.stderr
    assert "there is no complete checkpoint in " in result.stderr


def test_two_trainings_do_not_mix(inspan, job):
    (inspan.folder / "out" / "step-00000015").mkdir(parents=True)
    result = inspan.run("train", job, "--local", "1")
    assert result.returncode == USER_ERROR
    assert "holds checkpoints of an earlier training, up to step 15" in result.stderr
    assert "--resume" in result.stderr


EXACT = ["--set", "train.steps=300", "--set", "checkpoint.every=40", "--set", "train.dtype=fp64",
         "--set", "train.micro_batch=4"]


def steps_in(folder):
    return sorted(int(path.name[5:]) for path in folder.glob("step-????????"))


def tensors(path):
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + length])
    start = 8 + length
    return {name: struct.unpack_from(f"<{(entry['data_offsets'][1] - entry['data_offsets'][0]) // 8}d", data,
                                     start + entry["data_offsets"][0])
            for name, entry in header.items() if name != "__metadata__"}


def assert_same_model(one, other):
    a, b = tensors(one), tensors(other)
    assert a.keys() == b.keys()
    for name, values in a.items():
        size = sum(x * x for x in values) ** 0.5
        off = sum((x - y) ** 2 for x, y in zip(values, b[name])) ** 0.5
        assert off <= 1e-9 * max(size, 1e-3), name


def test_a_killed_job_goes_on_with_the_same_samples(inspan, job):
    """All of a private cluster is killed; another one, of another size, ends with the model of an undisturbed run."""
    whole = inspan.run("train", job, "--local", "1", *EXACT, "--set", "checkpoint.dir=whole")
    assert whole.returncode == 0, whole.stderr
    assert 0 < len(steps_in(inspan.folder / "whole")) <= 2
    first = inspan.start("train", job, "--local", "2", *EXACT)
    out = inspan.folder / "out"
    wait_for(lambda: steps_in(out) and first.process.poll() is None, 60, "a checkpoint is here")
    for pid, words in inspan.processes():  # as a power cut: nobody has time to say anything
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    first.finish(30)
    at = steps_in(out)[-1]
    assert at < 300
    shutil.copytree(out, inspan.folder / "kept")
    rest = inspan.run("train", job, "--local", "3", "--resume", *EXACT)
    assert rest.returncode == 0, rest.stderr
    assert f"it goes on after step {at} (" in rest.stderr
    assert_same_model(out / "model.safetensors", inspan.folder / "whole" / "model.safetensors")
    # the newest is damaged, the job another one
    kept = inspan.folder / "kept"
    (kept / f"step-{at + 1:08d}").mkdir()
    result = inspan.run("train", job, "--local", "1", "--resume", *EXACT, "--set", "checkpoint.dir=kept",
                        "--set", "train.global_batch=16")
    assert result.returncode == USER_ERROR
    assert f"the checkpoint of step {at + 1} is damaged and passed by" in result.stderr
    assert "train.global_batch is 16 in the job, 8 in the checkpoint" in result.stderr


def test_checkpoints_come_with_the_results(inspan, cluster, job):
    up = cluster(1)
    number = inspan.json("train", job, "--detach", "--set", "train.steps=40", "--set", "checkpoint.every=40")["job"]
    wait_for(lambda: inspan.json("job", number)["state"] == "done", 60, "the job is done")
    fetched = inspan.json("results", number, "elsewhere")
    assert fetched["checkpoints"] == [40]
    assert steps_in(inspan.folder / "elsewhere") == [40]
    result = inspan.run("train", job, "--resume", "--set", "checkpoint.dir=elsewhere", "--set", "train.steps=40")
    assert result.returncode == USER_ERROR
    assert "all 40 steps are done" in result.stderr
    result = inspan.run("train", job, "--resume", "--set", "checkpoint.dir=elsewhere", "--set", "train.steps=60")
    assert result.returncode == 0, result.stderr
    assert "it goes on after step 40" in result.stderr
    up.stop()
