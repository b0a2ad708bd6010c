"""Does communication hide behind the backward pass? Two nodes, 1 Gbit/s links, a GPT of 10.7 million parameters.

Measured apart: compute (one node, half the batch, no communication) and communication (all-reduce of as many bytes
between the same two machines). Together: the step of both nodes. Hidden = 1 - (step - compute) / communication. Needs root.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
INSPAN = HERE.parent / "build" / "inspan"
STEPS, BATCH, LINK, ROUNDS = 12, 16, "1gbit", 3
JOB = """
model: {{kind: gpt, layers: 6, heads: 6, dim: 384, context: 128}}
data: {{kind: text, path: book.txt, validation: 0}}
train: {{steps: {steps}, global_batch: {batch}, lr: 1e-3}}
"""


def inspan(folder, *words):
    result = subprocess.run([str(INSPAN), *words, "--json"], capture_output=True, text=True, cwd=folder, timeout=600)
    if result.returncode:
        sys.exit(result.stderr)
    return json.loads(result.stdout)


def train(folder, nodes, batch, *options):
    (folder / "job.yaml").write_text(JOB.format(steps=STEPS, batch=batch))
    return inspan(folder, "train", "job.yaml", "--local", str(nodes), "--cpu", ",".join(["1"] * nodes), *options)


def main():
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "book.txt").write_text("the ox drew the wagon over the long road to the town. " * 20000)
        for _ in range(ROUNDS):
            alone = train(folder, 1, BATCH // 2)
            both = train(folder, 2, BATCH, "--link", LINK)
            size = (folder / "out" / "model.safetensors").stat().st_size // 4 * 4  # about one gradient a weight
            wire = inspan(folder, "bench", "allreduce", "--local", "2", "--link", LINK, "--bytes", str(size),
                          "--iters", "6")
            rows.append({"compute_s": alone["compute_s"] / STEPS, "step_s": BATCH / both["samples_per_s"],
                         "communication_s": wire["results"][0]["median_s"],
                         "exposed_s": both["exposed_comm_s"] / STEPS, "bytes": size})
    middle = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
    apart = middle["compute_s"] + middle["communication_s"]
    hidden = 1 - (middle["step_s"] - middle["compute_s"]) / middle["communication_s"]
    print(f"overlap, 2 nodes, {LINK}, {middle['bytes'] / 1e6:.1f} MB of gradients, median of {ROUNDS} runs of {STEPS} steps")
    print(f"  compute alone       {middle['compute_s'] * 1e3:7.1f} ms")
    print(f"  communication alone {middle['communication_s'] * 1e3:7.1f} ms")
    print(f"  sum                 {apart * 1e3:7.1f} ms")
    print(f"  step of both        {middle['step_s'] * 1e3:7.1f} ms   ({middle['step_s'] / apart:.3f} of the sum, "
          f"{hidden * 100:.0f} % of the communication hidden, exposed {middle['exposed_s'] * 1e3:.1f} ms)")
    print(json.dumps({"bench": "overlap", **middle, "sum_s": apart, "ratio": middle["step_s"] / apart}))


if __name__ == "__main__":
    main()
