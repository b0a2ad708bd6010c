#!/usr/bin/env python3
"""Check that every test is registered, and that no test waits by sleeping.

A foo_test.c must belong to a target that `meson introspect --tests` knows; a tests/test_*.py is collected by pytest by
its name. Exit code 1 and one line a fault. `--root DIR`, `--build DIR`: other places.
"""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

# Sleeping, and sleeping by another name.
SLEEP = re.compile(r"\b(?:u?sleep|(?:clock_)?nanosleep|time\.sleep)\s*\(|\bpoll\s*\(\s*NULL\b|"
                   r"\bselect\s*\(\s*0\b|\bwait_for\(\s*lambda:\s*time\.")


def registered_sources(build):
    """Sources of all targets that are run as tests."""
    def introspect(what):
        return json.loads(subprocess.run(["meson", "introspect", str(build), what], check=True, capture_output=True,
                                         text=True).stdout)
    programs = {test["cmd"][0] for test in introspect("--tests")}
    sources = set()
    for target in introspect("--targets"):
        if programs & set(target["filename"]):
            for group in target["target_sources"]:
                sources.update(str(Path(s).resolve()) for s in group.get("sources", []))
    return sources


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    here = Path(__file__).resolve().parent.parent
    parser.add_argument("--root", type=Path, default=here)
    parser.add_argument("--build", type=Path, default=here / "build")
    options = parser.parse_args()
    known = registered_sources(options.build)
    faults = []
    tests = sorted((options.root / "src").rglob("*_test.c")) + sorted((options.root / "tests").rglob("*_test.c"))
    for path in tests:
        if str(path.resolve()) not in known:
            faults.append(f"{path.relative_to(options.root)}: not registered as a test (test_units in its meson.build)")
    scripts = sorted((options.root / "tests").rglob("*.py"))
    for path in scripts:
        if "def test_" in path.read_text() and not path.name.startswith("test_"):
            faults.append(f"{path.relative_to(options.root)}: pytest collects test_*.py alone")
    helpers = [path for path in sorted((options.root / "src").rglob("*_test_*.c")) if path not in tests]
    for path in tests + helpers + scripts:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if SLEEP.search(line) and "not a wait:" not in line:
                faults.append(f"{path.relative_to(options.root)}:{number}: wait for an event with a deadline, not for a "
                              "sleep (or say why after 'not a wait:')")
    for fault in faults:
        print(fault)
    print(f"tests: {len(tests)} programs, {len(scripts)} scripts, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
