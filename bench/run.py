"""Run the benchmarks: all, or those named, each with the words behind its name (`unequal plan --quick`). Each prints a
table and one JSON line; a time fails none but `recovery`, whose bounds are promises."""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
BENCHES = {"allreduce": "allreduce.py", "train": "train_step.py", "overlap": "overlap.py",
           "commit": "commit.py", "recovery": "recovery.py", "unequal": "unequal.py",
           "wire": "wire.py", "buckets": "buckets.py"}


def chosen(words):
    """[(name, its words)]"""
    found = []
    for word in words:
        if word in BENCHES:
            found.append((word, []))
        elif found:
            found[-1][1].append(word)
        else:
            sys.exit(f"no benchmark {word}: {', '.join(BENCHES)}")
    return found or [(name, []) for name in BENCHES]


def main():
    failed = [name for name, words in chosen(sys.argv[1:])
              if subprocess.run([sys.executable, str(HERE / BENCHES[name]), *words], check=False, cwd=HERE).returncode]
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
