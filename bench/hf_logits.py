#!/usr/bin/env python3
"""The same GPT file in Inspan and in Hugging Face transformers: the figures that a test compares our logits with.

usage: hf_logits.py INSPAN [OUT]       (needs torch, transformers and safetensors: pip install torch transformers;
                                        INSPAN is the built binary; OUT: tests/data/gpt)

Trains a small GPT by INSPAN, opens what it wrote by GPT2LMHeadModel.from_pretrained, and writes into OUT: the model's two
files as INSPAN wrote them, and logits.json with some token sequences and the logits of transformers for the token after
each (weights as in the file, arithmetic in float64). Prints how far the same logits in float32 are from them: that is
what a right implementation in float32 differs by. The test nn-transformers allows 1e-4 of the largest logit.
"""
import json
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from transformers import GPT2LMHeadModel

WORDS = "the quick brown ox drew a heavy wagon over the long dry road to town and the driver sang".split()
JOB = """
model: {kind: gpt, layers: 2, heads: 2, dim: 16, context: 24}
data: {kind: text, path: book.txt}
train: {steps: 150, global_batch: 16, lr: 1e-2, warmup: 10, seed: 5}
checkpoint: {dir: out}
"""


def train(inspan, folder):
    choose = random.Random(1)
    (folder / "book.txt").write_text(" ".join(choose.choice(WORDS) for _ in range(4000)))
    (folder / "job.yaml").write_text(JOB)
    subprocess.run([inspan, "train", folder / "job.yaml", "--local", "1"], check=True, stdout=sys.stderr)
    return folder / "out"


def logits_after(model, tokens):
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0, -1]


def main():
    inspan = Path(sys.argv[1]).resolve()
    root = Path(__file__).resolve().parent.parent
    out = Path(sys.argv[2]) if len(sys.argv) > 2 else root / "tests" / "data" / "gpt"
    with tempfile.TemporaryDirectory() as folder:
        saved = train(inspan, Path(folder))
        model, report = GPT2LMHeadModel.from_pretrained(saved, output_loading_info=True)
        if any(report.values()):
            sys.exit(f"not every tensor found its place: {report}")
        out.mkdir(parents=True, exist_ok=True)
        for name in ("model.safetensors", "config.json"):
            shutil.copy(saved / name, out / name)
    context = model.config.n_positions
    choose = random.Random(2)
    sequences = [list(b"t"), list(b"the driver"), list(b"drew a heavy wagon over "), [0, 255, 10],
                 [choose.randrange(256) for _ in range(context)]]
    model.eval()
    single = [logits_after(model, tokens) for tokens in sequences]
    model.double()
    entries, worst = [], 0.0
    for tokens, approximate in zip(sequences, single):
        exact = logits_after(model, tokens)
        worst = max(worst, float((approximate.double() - exact).abs().max() / exact.abs().max()))
        entries.append({"tokens": tokens, "logits": [float(f"{x:.9g}") for x in exact.tolist()]})
    figures = {"torch": torch.__version__, "transformers": transformers.__version__,
               "float32_relative_difference": float(f"{worst:.3g}"), "sequences": entries}
    (out / "logits.json").write_text(json.dumps(figures) + "\n")
    print(json.dumps({key: value for key, value in figures.items() if key != "sequences"}))


if __name__ == "__main__":
    main()
