"""What do vote and commit cost a step where nothing fails? Two to five nodes, 1 Gbit/s links, a small model.

Measured by each worker between its own vote (it holds every reduced bucket) and the commit: one message round, and the wait
for the votes of slower members. Quoted: the mean of a step, by worker; and the step itself. Needs root.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
INSPAN = HERE.parent / "build" / "inspan"
STEPS, LINK, ROUNDS, WORLDS = 300, "1gbit", 3, (2, 3, 5)
JOB = """
model: {{kind: mlp, layers: 2, dim: 64}}
data: {{kind: csv, path: table.csv, validation: 0}}
train: {{steps: {steps}, global_batch: 60, lr: 1e-3}}
"""


def train(folder, nodes):
    result = subprocess.run([str(INSPAN), "train", "job.yaml", "--local", str(nodes), "--cpu", ",".join(["0.4"] * nodes),
                             "--link", LINK, "--json"], capture_output=True, text=True, cwd=folder, timeout=600)
    if result.returncode:
        sys.exit(result.stderr)
    return json.loads(result.stdout)


def main():
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "table.csv").write_text("".join(f"{i % 7},{i % 5},{i % 3}\n" for i in range(6000)))
        (folder / "job.yaml").write_text(JOB.format(steps=STEPS))
        for nodes in WORLDS:
            runs = [train(folder, nodes) for _ in range(ROUNDS)]
            waits = [statistics.median(node["commit_s"] for node in run["nodes"]) / STEPS for run in runs]
            rows.append({"nodes": nodes, "commit_s": statistics.median(waits),
                         "step_s": statistics.median(60 / run["samples_per_s"] for run in runs)})
    print(f"vote and commit, {LINK}, means over {STEPS} steps, the middle worker's, medians of {ROUNDS} runs")
    for row in rows:
        print(f"  {row['nodes']} nodes: {row['commit_s'] * 1e3:.3f} ms of a step of {row['step_s'] * 1e3:.2f} ms")
    print(json.dumps({"bench": "commit", "results": rows}))


if __name__ == "__main__":
    main()
