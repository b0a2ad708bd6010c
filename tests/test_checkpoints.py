"""Checkpoints and going on from them, through the whole program."""

import pytest

from conftest import USER_ERROR

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
