#!/usr/bin/env python3
"""Make tests/data/torch_optimizer.json: what PyTorch's AdamW and SGD do to a few parameters, in fp64.

usage: make_torch_optimizer_figures.py OUT.json     (needs torch; nn-optimizer's test reads the file)
"""
import json
import math
import sys

import torch

SHAPES = {"matrix": [5, 7], "bias": [7], "odd": [3, 11]}
DECAYED = ["matrix", "odd"]
STEPS, WARMUP, LR, MIN_LR, SAMPLES = 12, 3, 0.02, 0.001, 8


def learning_rate(step):
    if step < WARMUP:
        return LR * (step + 1) / WARMUP
    progress = (step - WARMUP) / (STEPS - WARMUP)
    return MIN_LR + (LR - MIN_LR) * 0.5 * (1 + math.cos(math.pi * progress))


def run(kind, clip, start, gradients):
    weights = {name: torch.tensor(start[name], dtype=torch.float64, requires_grad=True) for name in SHAPES}
    groups = [
        {"params": [weights[n] for n in SHAPES if n in DECAYED], "weight_decay": 0.1},
        {"params": [weights[n] for n in SHAPES if n not in DECAYED], "weight_decay": 0.0},
    ]
    if kind == "adamw":
        optimizer = torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.99), eps=1e-8)
    else:
        optimizer = torch.optim.SGD(groups, lr=LR, momentum=0.9)
    norms = []
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        for name in SHAPES:
            weights[name].grad = torch.tensor(gradients[step][name], dtype=torch.float64) / SAMPLES
        limit = clip if clip > 0 else math.inf
        norms.append(torch.nn.utils.clip_grad_norm_(list(weights.values()), limit).item())
        optimizer.step()
    return {"kind": kind, "clip": clip, "norms": norms,
            "weights": {name: weights[name].detach().flatten().tolist() for name in SHAPES}}


def main():
    torch.manual_seed(7)
    start = {n: torch.randn(math.prod(s), dtype=torch.float64).tolist() for n, s in SHAPES.items()}
    gradients = [{n: (torch.randn(math.prod(s), dtype=torch.float64) * 3).tolist() for n, s in SHAPES.items()}
                 for _ in range(STEPS)]
    figures = {
        "torch": torch.__version__, "steps": STEPS, "warmup": WARMUP, "lr": LR, "min_lr": MIN_LR, "samples": SAMPLES,
        "start": start, "gradients": gradients,
        "runs": [run(kind, clip, start, gradients) for kind in ("adamw", "sgd") for clip in (0, 2.5)],
    }
    with open(sys.argv[1], "w", encoding="utf-8") as out:
        json.dump(figures, out, indent=None, separators=(",", ":"))
        out.write("\n")


if __name__ == "__main__":
    main()
