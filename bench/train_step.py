"""Full training steps (forward, backward, clipping, AdamW) of a GPT: Inspan's native one against PyTorch eager.

Both run on one thread of this machine, start from the same weights, see the same batches, and take turns in one run;
their losses must agree, so that it is the same work. Quoted: the median step of each in tokens per second, and the ratio
(above 1: Inspan is faster) as the median over the turns, each turn's two medians a second apart, so that a machine whose
speed wanders moves both; by the clock and by processor time. A few early steps of each are not counted.

usage: train_step.py [--quick]
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy
import torch
from torch.nn import functional

HERE = Path(__file__).resolve().parent
DRIVER = HERE.parent / "build" / "bench" / "train-step"
VOCABULARY, CONTEXT, BATCHES = 256, 128, 8
MODELS = [{"dim": 128, "layers": 4, "heads": 4, "batch": 16, "steps": 8},
          {"dim": 384, "layers": 6, "heads": 6, "batch": 8, "steps": 3}]
ROUNDS, WARM_STEPS = 12, 2


class Block(torch.nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = torch.nn.LayerNorm(dim), torch.nn.LayerNorm(dim)
        self.c_attn, self.attn_proj = torch.nn.Linear(dim, 3 * dim), torch.nn.Linear(dim, dim)
        self.c_fc, self.mlp_proj = torch.nn.Linear(dim, 4 * dim), torch.nn.Linear(4 * dim, dim)

    def forward(self, x):
        batch, time_, dim = x.shape
        q, k, v = (t.view(batch, time_, self.heads, -1).transpose(1, 2)
                   for t in self.c_attn(self.ln_1(x)).split(dim, dim=2))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn_proj(y.transpose(1, 2).reshape(batch, time_, dim))
        return x + self.mlp_proj(functional.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class Gpt(torch.nn.Module):
    def __init__(self, model, context=CONTEXT):
        super().__init__()
        dim = model["dim"]
        self.wte, self.wpe = torch.nn.Embedding(VOCABULARY, dim), torch.nn.Embedding(context, dim)
        self.blocks = torch.nn.ModuleList(Block(dim, model["heads"]) for _ in range(model["layers"]))
        self.ln_f = torch.nn.LayerNorm(dim)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe.weight[:tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = self.ln_f(x) @ self.wte.weight.T
        return functional.cross_entropy(logits.view(-1, VOCABULARY), targets.reshape(-1))


def read_safetensors(path):
    data = Path(path).read_bytes()
    length = int.from_bytes(data[:8], "little")
    for name, entry in json.loads(data[8:8 + length]).items():
        if name != "__metadata__":
            first, end = entry["data_offsets"]
            values = numpy.frombuffer(data[8 + length:][first:end], dtype="<f4").reshape(entry["shape"])
            yield name, torch.from_numpy(values.copy())


def load(gpt, path):
    """Our names and (in, out) layout into torch's own."""
    own = {"attn.c_attn": "c_attn", "attn.c_proj": "attn_proj", "mlp.c_fc": "c_fc", "mlp.c_proj": "mlp_proj"}
    parameters, seen = dict(gpt.named_parameters()), set()
    for name, values in read_safetensors(path):
        for theirs, ours in own.items():
            if theirs in name:
                name, values = name.replace(theirs, ours), values.T if values.dim() == 2 else values
        name = name.replace("h.", "blocks.", 1) if name.startswith("h.") else name
        parameters[name].data.copy_(values)
        seen.add(name)
    assert seen == set(parameters), seen ^ set(parameters)


class Torch:
    def __init__(self, model, tokens, weights):
        self.gpt, self.step = Gpt(model), 0
        load(self.gpt, weights)
        decayed = [p for p in self.gpt.parameters() if p.dim() >= 2]
        plain = [p for p in self.gpt.parameters() if p.dim() < 2]
        self.optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1},
                                            {"params": plain, "weight_decay": 0.0}], lr=1e-3, betas=(0.9, 0.999))
        self.tokens = torch.from_numpy(tokens.astype(numpy.int64))

    def run(self, steps):
        seconds, cpu, losses = [], [], []
        for _ in range(steps):
            start, start_cpu = time.perf_counter(), time.process_time()
            batch = self.tokens[self.step % BATCHES]
            loss = self.gpt(batch[:, :-1], batch[:, 1:])
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.gpt.parameters(), 1.0)
            self.optimizer.step()
            losses.append(loss.item())
            seconds.append(time.perf_counter() - start)
            cpu.append(time.process_time() - start_cpu)
            self.step += 1
        return seconds, cpu, losses


class Native:
    def __init__(self, model, tokens_path, weights_path):
        numbers = [str(model[k]) for k in ("layers", "heads", "dim")] + [str(CONTEXT), str(model["batch"])]
        self.process = subprocess.Popen([str(DRIVER), *numbers, str(tokens_path), str(weights_path)],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.gemm = self.answer()["gemm"]

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"train-step ended with {self.process.wait()}")
        return json.loads(line)

    def run(self, steps):
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        answer = self.answer()
        return answer["seconds"], answer["cpu_seconds"], answer["losses"]

    def close(self):
        self.process.stdin.close()
        self.process.wait(timeout=60)


def compare(model, rounds, folder):
    generator = numpy.random.default_rng(1)
    # Squares of uniforms: some tokens are much likelier, so that there is something to learn and losses fall.
    tokens = (generator.random((BATCHES, model["batch"], CONTEXT + 1)) ** 2 * VOCABULARY).astype("<u2")
    (folder / "tokens").write_bytes(tokens.tobytes())
    native = Native(model, folder / "tokens", folder / "weights")
    try:
        native_losses = native.run(WARM_STEPS)[2]  # the weights are on disk by the time of its answer
        sides = {"inspan": native, "torch": Torch(model, tokens, folder / "weights")}
        seconds, ratios, cpu_ratios = {"inspan": [], "torch": []}, [], []
        losses = {"inspan": native_losses, "torch": sides["torch"].run(WARM_STEPS)[2]}
        for turn in range(rounds):
            middle, middle_cpu = {}, {}
            for name in ("inspan", "torch") if turn % 2 == 0 else ("torch", "inspan"):
                took, took_cpu, found = sides[name].run(model["steps"])
                middle[name], middle_cpu[name] = statistics.median(took), statistics.median(took_cpu)
                seconds[name] += took
                losses[name] += found
            ratios.append(middle["torch"] / middle["inspan"])
            cpu_ratios.append(middle_cpu["torch"] / middle_cpu["inspan"])
    finally:
        native.close()
    difference = max(abs(a - b) / b for a, b in zip(losses["inspan"], losses["torch"]))
    if difference > 0.005:
        sys.exit(f"not the same work: losses differ by {difference:.2%}")
    rate = {name: model["batch"] * CONTEXT / statistics.median(took) for name, took in seconds.items()}
    shape = {k: model[k] for k in ("dim", "layers", "heads", "batch")}
    return {**shape, "context": CONTEXT, "inspan_tokens_per_s": rate["inspan"], "torch_tokens_per_s": rate["torch"],
            "ratio": statistics.median(ratios), "ratio_least": min(ratios), "ratio_most": max(ratios),
            "cpu_ratio": statistics.median(cpu_ratios), "steps": len(seconds["inspan"]),
            "loss_difference": difference, "gemm": native.gemm}


def main():
    torch.set_num_threads(1)
    rounds = 2 if "--quick" in sys.argv[1:] else ROUNDS
    rows = []
    for model in MODELS:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(compare(model, rounds, Path(folder)))
    print(f"training step of a GPT, one thread, context {CONTEXT}, medians; PyTorch {torch.__version__} eager")
    print(f"{'dim':>5} {'layers':>6} {'batch':>6} {'inspan':>14} {'torch':>14} {'ratio':>6} {'by cpu':>7} {'turns':>12}")
    for row in rows:
        print(f"{row['dim']:>5} {row['layers']:>6} {row['batch']:>6} {row['inspan_tokens_per_s']:>8.0f} tok/s"
              f" {row['torch_tokens_per_s']:>8.0f} tok/s {row['ratio']:>6.2f} {row['cpu_ratio']:>7.2f}"
              f" {row['ratio_least']:>5.2f} to {row['ratio_most']:.2f}")
    print(rows[0]["gemm"])
    print(json.dumps({"bench": "train", "torch": torch.__version__, "results": rows}))


if __name__ == "__main__":
    main()
