#!/usr/bin/env python3
"""Make tests/data/torch_layers.json: results and gradients of layers and small models from PyTorch, in fp64.

usage: make_torch_figures.py OUT.json     (needs torch; the tests nn-layers and nn-torch read the file)

A layer's entry has its inputs, its output y, a cotangent dy (the loss is sum(y * dy)) and the gradients d<input>. A
model's entry has its config, weights and gradients under our names and (in, out) layout, its batch, and its loss: the
sum over samples of the mean over a sample's targets.
"""
import json
import sys

import torch
from torch.nn import functional

REAL = torch.float64


def numbers(tensor):
    return [float(f"{x:.17g}") for x in tensor.detach().to(REAL).flatten().tolist()]


def layer(function, **inputs):
    inputs = {name: x.clone().requires_grad_(x.is_floating_point()) for name, x in inputs.items()}
    y = function(**inputs)
    dy = torch.randn_like(y)
    (y * dy).sum().backward()
    entry = {"y": numbers(y), "dy": numbers(dy)}
    for name, x in inputs.items():
        entry[name] = numbers(x) if x.is_floating_point() else x.flatten().tolist()
        if x.requires_grad:
            entry["d" + name] = numbers(x.grad)
    return entry


def attention(qkv, heads):
    batch, time, _ = qkv.shape
    q, k, v = (t.view(batch, time, heads, -1).transpose(1, 2) for t in qkv.chunk(3, dim=2))
    y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return y.transpose(1, 2).reshape(batch, time, -1)


def layers():
    randn = lambda *shape: torch.randn(*shape, dtype=REAL)
    target = torch.tensor([0, 8, 3, 3, 5])
    return {
        "linear": layer(lambda x, w, b: x @ w + b, x=randn(5, 7), w=randn(7, 9), b=randn(9)),
        "layernorm": layer(lambda x, gamma, beta: functional.layer_norm(x, (19,), gamma, beta, 1e-5),
                           x=3 * randn(4, 19) + 1, gamma=randn(19), beta=randn(19)),
        "gelu": layer(lambda x, b: functional.gelu(x + b, approximate="tanh"), x=3 * randn(4, 21), b=randn(21)),
        "attention": layer(lambda qkv: attention(qkv, 2), qkv=2 * randn(2, 7, 3 * 6)),
        "cross_entropy": layer(lambda x: functional.cross_entropy(x, target, reduction="none"), x=4 * randn(5, 9)),
        "embedding": layer(lambda wte, wpe: functional.embedding(torch.tensor([[4, 0, 4], [1, 2, 4]]), wte) + wpe,
                           wte=randn(5, 6), wpe=randn(3, 6)),
        "conv": layer(lambda x, w, b: functional.max_pool2d(functional.relu(functional.conv2d(x, w, b, padding=1)), 2),
                      x=randn(2, 2, 7, 6), w=randn(3, 2, 3, 3), b=randn(3)),
    }


def model(config, weights, loss_of, batch):
    weights = {name: w.requires_grad_() for name, w in weights.items()}
    loss = loss_of(weights)
    loss.backward()
    return {"config": config, "batch": batch, "loss": loss.item(),
            "weights": {name: numbers(w) for name, w in weights.items()},
            "grads": {name: numbers(w.grad) for name, w in weights.items()}}


def gpt():
    layers_, heads, dim, context, vocabulary, samples = 2, 2, 6, 5, 11, 3
    shapes = {"wte.weight": (vocabulary, dim), "wpe.weight": (context, dim)}
    for i in range(layers_):
        shapes |= {f"h.{i}.ln_1.weight": (dim,), f"h.{i}.ln_1.bias": (dim,),
                   f"h.{i}.attn.c_attn.weight": (dim, 3 * dim), f"h.{i}.attn.c_attn.bias": (3 * dim,),
                   f"h.{i}.attn.c_proj.weight": (dim, dim), f"h.{i}.attn.c_proj.bias": (dim,),
                   f"h.{i}.ln_2.weight": (dim,), f"h.{i}.ln_2.bias": (dim,),
                   f"h.{i}.mlp.c_fc.weight": (dim, 4 * dim), f"h.{i}.mlp.c_fc.bias": (4 * dim,),
                   f"h.{i}.mlp.c_proj.weight": (4 * dim, dim), f"h.{i}.mlp.c_proj.bias": (dim,)}
    shapes |= {"ln_f.weight": (dim,), "ln_f.bias": (dim,)}
    tokens = torch.randint(vocabulary, (samples, context + 1))

    def loss_of(w):
        norm = lambda x, name: functional.layer_norm(x, (dim,), w[name + ".weight"], w[name + ".bias"], 1e-5)
        linear = lambda x, name: x @ w[name + ".weight"] + w[name + ".bias"]
        x = functional.embedding(tokens[:, :-1], w["wte.weight"]) + w["wpe.weight"]
        for i in range(layers_):
            x = x + linear(attention(linear(norm(x, f"h.{i}.ln_1"), f"h.{i}.attn.c_attn"), heads),
                           f"h.{i}.attn.c_proj")
            hidden = functional.gelu(linear(norm(x, f"h.{i}.ln_2"), f"h.{i}.mlp.c_fc"), approximate="tanh")
            x = x + linear(hidden, f"h.{i}.mlp.c_proj")
        logits = norm(x, "ln_f") @ w["wte.weight"].T
        return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum") / context

    config = {"kind": "gpt", "layers": layers_, "heads": heads, "dim": dim, "context": context,
              "vocabulary": vocabulary}
    weights = {name: 0.4 * torch.randn(*shape, dtype=REAL) for name, shape in shapes.items()}
    return model(config, weights, loss_of, {"samples": samples, "tokens": tokens.flatten().tolist()})


def classifier_batch(samples, inputs, classes):
    features, labels = torch.randn(samples, inputs, dtype=REAL), torch.randint(classes, (samples,))
    return features, labels, {"samples": samples, "features": numbers(features), "labels": labels.tolist()}


def mlp():
    samples, inputs, dim, classes = 4, 5, 7, 3
    sizes = [inputs, dim, dim, classes]
    features, labels, batch = classifier_batch(samples, inputs, classes)
    weights = {}
    for i in range(3):
        weights |= {f"layers.{i}.weight": torch.randn(sizes[i], sizes[i + 1], dtype=REAL),
                    f"layers.{i}.bias": torch.randn(sizes[i + 1], dtype=REAL)}

    def loss_of(w):
        x = features
        for i in range(3):
            x = x @ w[f"layers.{i}.weight"] + w[f"layers.{i}.bias"]
            x = functional.gelu(x, approximate="tanh") if i < 2 else x
        return functional.cross_entropy(x, labels, reduction="sum")

    return model({"kind": "mlp", "layers": 2, "dim": dim, "inputs": inputs, "classes": classes}, weights, loss_of,
                 batch)


def conv():
    samples, channels, height, width, filters, classes = 3, 2, 9, 10, 3, 4
    features, labels, batch = classifier_batch(samples, channels * height * width, classes)
    flat = 2 * filters * (height // 4) * (width // 4)
    shapes = {"conv1.weight": (filters, channels, 3, 3), "conv1.bias": (filters,),
              "conv2.weight": (2 * filters, filters, 3, 3), "conv2.bias": (2 * filters,),
              "head.weight": (flat, classes), "head.bias": (classes,)}

    def loss_of(w):
        x = features.view(samples, channels, height, width)
        for name in ("conv1", "conv2"):
            x = functional.conv2d(x, w[name + ".weight"], w[name + ".bias"], padding=1)
            x = functional.max_pool2d(functional.relu(x), 2)
        return functional.cross_entropy(x.flatten(1) @ w["head.weight"] + w["head.bias"], labels, reduction="sum")

    weights = {name: 0.5 * torch.randn(*shape, dtype=REAL) for name, shape in shapes.items()}
    config = {"kind": "conv", "channels": channels, "height": height, "width": width, "filters": filters,
              "inputs": channels * height * width, "classes": classes}
    return model(config, weights, loss_of, batch)


def main():
    torch.manual_seed(11)
    figures = {"torch": torch.__version__, "layers": layers(), "models": [gpt(), mlp(), conv()]}
    with open(sys.argv[1], "w", encoding="utf-8") as out:
        json.dump(figures, out, separators=(",", ":"))
        out.write("\n")


if __name__ == "__main__":
    main()
