"""N nodes give the result of one: through the whole program, real processes and sockets."""

import json

import pytest
import safetensors_file

MODELS = {
    "gpt": "model: {{kind: gpt, layers: 2, heads: 2, dim: 32, context: 32}}\n"
           "data: {{kind: text, path: {book}, validation: 0.05}}\n",
    "mlp": "model: {{kind: mlp, layers: 2, dim: 32}}\n"
           "data: {{kind: csv, path: {table}, validation: 0.1}}\n",
    "conv": "model: {{kind: conv, filters: 4}}\n"
            "data: {{kind: idx, path: {images}, labels: {labels}, validation: 0.1}}\n",
}


@pytest.fixture
def train(inspan, job_file, text_file, image_files, table_file):
    def run(model, nodes, dtype, optimizer, steps):
        head = MODELS[model].format(book=text_file, table=table_file, images=image_files[0], labels=image_files[1])
        out = f"out-{nodes}"
        job = job_file(head + f"train: {{steps: {steps}, global_batch: 20, optimizer: {optimizer}, lr: 5e-3, warmup: 5, "
                              f"seed: 3, dtype: {dtype}, check_every: 1}}\ncheckpoint: {{dir: {out}}}\n")
        result = inspan.run("train", job, "--local", nodes, "--json", seconds=180)
        assert result.returncode == 0, result.stderr
        summary = json.loads(result.stdout)
        return summary, safetensors_file.read(inspan.folder / out / "model.safetensors")

    return run


def check_summary(summary, nodes, steps):
    assert summary["steps"] == steps
    assert summary["samples"] == steps * 20
    assert len(summary["nodes"]) == nodes
    assert summary["loss_last"] < summary["loss_first"]


@pytest.mark.parametrize("model", list(MODELS))
def test_fp64_runs_agree_to_1e_9(train, model):
    reference_summary, reference = train(model, 1, "fp64", "adamw", 20)
    check_summary(reference_summary, 1, 20)
    for nodes in (2, 3, 5):
        summary, weights = train(model, nodes, "fp64", "adamw", 20)
        check_summary(summary, nodes, 20)
        assert safetensors_file.relative_distance(weights, reference) < 1e-9, nodes


@pytest.mark.parametrize("model", list(MODELS))
def test_fp32_sgd_agrees_to_1e_4_over_50_steps(train, model):
    _, reference = train(model, 1, "fp32", "sgd", 50)
    for nodes in (2, 3, 5):
        summary, weights = train(model, nodes, "fp32", "sgd", 50)
        check_summary(summary, nodes, 50)
        assert safetensors_file.relative_distance(weights, reference) < 1e-4, nodes


def test_fp32_adamw_reaches_the_same_held_out_loss(train):
    reference, _ = train("gpt", 1, "fp32", "adamw", 50)
    for nodes in (2, 3, 5):
        summary, _ = train("gpt", nodes, "fp32", "adamw", 50)
        assert abs(summary["validation_last"] / reference["validation_last"] - 1) < 0.005, nodes


def test_a_lost_sample_would_show(train):
    """The comparison can fail: one sample less in the batch moves the result far beyond the bound."""
    _, reference = train("mlp", 1, "fp64", "sgd", 20)
    _, shorter = train("mlp", 1, "fp64", "sgd", 19)
    assert safetensors_file.relative_distance(shorter, reference) > 1e-6
