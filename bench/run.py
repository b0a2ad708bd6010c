"""Run the benchmarks: all, or those named. Each prints a table and one JSON line; none fails on a time."""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
BENCHES = {"allreduce": "allreduce.py", "train": "train_step.py", "overlap": "overlap.py",
           "commit": "commit.py"}


def main():
    names = sys.argv[1:] or list(BENCHES)
    unknown = [name for name in names if name not in BENCHES]
    if unknown:
        sys.exit(f"no benchmark {unknown[0]}: {', '.join(BENCHES)}")
    for name in names:
        subprocess.run([sys.executable, str(HERE / BENCHES[name])], check=True, cwd=HERE)


if __name__ == "__main__":
    main()
