"""The demo, with a few steps: what `./dev demo` shows, and that it leaves nothing behind."""

import os
import re
import signal
import subprocess

from conftest import INSPAN, ROOT, wait_for


def start(folder, steps):
    environment = {**os.environ, "TMPDIR": str(folder)}
    return subprocess.Popen([str(ROOT / "tools" / "demo.sh"), str(INSPAN), str(steps)], stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, env=environment, cwd=folder, start_new_session=True)


def test_three_nodes_train_one_worker_dies_and_the_model_writes(inspan):
    demo = start(inspan.folder, 40)
    output = demo.communicate(timeout=240)[0].decode(errors="replace")
    assert demo.returncode == 0, output
    assert all(f"node-{k}" in output for k in (1, 2, 3)), output
    assert "step 40/40" in output and "held-out" in output, output
    assert re.search(r"lost worker \d", output) and "every sample exactly once" in output, output
    if "Each is measured alone" in output:  # with root
        assert len(re.findall(r"^  node-[123] alone +[\d.]+ samples/s +\(in the job, while it computes: [\d.]+\)$", output,
                              re.M)) == 3, output
        assert re.search(r"^  together +[\d.]+ samples/s +\d+ % of the sum, [\d.]+ times", output, re.M), output
    assert "model.safetensors" in output and "In the beginning" in output, output
    assert list(inspan.folder.glob("inspan-demo.*")) == []
    assert inspan.processes() == []


def test_an_interrupt_leaves_nothing(inspan):
    demo = start(inspan.folder, 100000)
    wait_for(lambda: any("worker" in words for _, words in inspan.processes()), 90, "workers run")
    os.killpg(demo.pid, signal.SIGINT)
    demo.communicate(timeout=60)
    assert demo.returncode != 0
    wait_for(lambda: inspan.processes() == [], 20, "all processes are gone")
    assert list(inspan.folder.glob("inspan-demo.*")) == []
