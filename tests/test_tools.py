"""Each checker must find a fault that is planted for it."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def run_layers(root):
    return subprocess.run([sys.executable, str(ROOT / "tools/check_layers.py"), "--root", str(root)],
                          capture_output=True, text=True)


def plant(root, name, text):
    path = root / "src" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_tree_keeps_its_layers():
    result = run_layers(ROOT)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("name, text, fault", [
    ("core/step/step.c", '#include "comm/comm.h"\n', 'core/step may not include "comm/comm.h"'),
    ("core/step/step.c", '#include "platform/os/os_time.h"\n', "core/step may not include"),
    ("ddp/ddp.c", '#include "comm/exec.h"\n', "ddp may not include"),
    ("cli/main.c", '#include "manager/registry/registry.h"\n', "cli may not include"),
    ("agent/agent.c", "#include <grpc/grpc.h>\n", "belongs to rpc alone"),
    ("manager/service/nodes.c", "#include <sqlite3.h>\n", "belongs to manager/registry alone"),
    ("comm/exec.c", "#include <dnnl.h>\n", "belongs to nn alone"),
    ("comm/exec.c", "#include <cmocka.h>\n", "belongs to tests alone"),
    ("comm/backends/engine.cc", "#include <gloo/allreduce.h>\n", "belongs to comm/backends/gloo alone"),
    ("nowhere/x.c", "", "not in the table of layers"),
])
def test_a_planted_include_is_found(tmp_path, name, text, fault):
    plant(tmp_path, name, text)
    result = run_layers(tmp_path)
    assert result.returncode == 1
    assert fault in result.stdout


def test_a_clean_tree_passes(tmp_path):
    plant(tmp_path, "ddp/ddp.c", '#include <inspan/elastic.h>\n#include "comm/comm.h"\n#include "base/error.h"\n')
    plant(tmp_path, "ddp/ddp_test.c", '#include <cmocka.h>\n#include "comm/exec.h"\n')
    assert run_layers(tmp_path).returncode == 0


def run_tests_check(root):
    return subprocess.run([sys.executable, str(ROOT / "tools/check_tests.py"), "--root", str(root), "--build",
                           str(ROOT / "build")], capture_output=True, text=True)


def test_an_unregistered_test_is_found(tmp_path):
    plant(tmp_path, "base/forgotten_test.c", "int main(void) { return 0; }\n")
    (tmp_path / "tests").mkdir()
    result = run_tests_check(tmp_path)
    assert result.returncode == 1
    assert "forgotten_test.c: not registered" in result.stdout


@pytest.mark.parametrize("name, line", [
    ("tests/test_x.py", "time.sl" + "eep(1)"),
    ("tests/test_x.py", "wait_for(lambda" + ": time.monotonic() > end, 5, \"5 s\")"),
    ("src/comm/x_test.c", "usl" + "eep(1000);"),
    ("src/comm/x_test.c", "po" + "ll(NULL, 0, 100);"),
    ("src/comm/x_test_rig.c", "po" + "ll( NULL, 0, 100); /* a moment */"),
    ("src/comm/x_test.c", "sel" + "ect(0, NULL, NULL, NULL, &moment);"),
])
def test_a_sleep_in_a_test_is_found(tmp_path, name, line):
    (tmp_path / "src" / "comm").mkdir(parents=True)
    (tmp_path / "tests").mkdir()
    (tmp_path / name).write_text(f"\n\n{line}\n")
    result = run_tests_check(tmp_path)
    assert result.returncode == 1
    assert f"{name}:3: wait for an event" in result.stdout
    (tmp_path / name).write_text(f"\n\n{line} // not a wait: the pause is what is measured\n")
    assert f"{name}:3" not in run_tests_check(tmp_path).stdout
