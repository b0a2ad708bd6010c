"""model/check.sh: a stated result passes, another one does not, and what is missing is named."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

MODEL = Path(__file__).resolve().parent.parent / "model"
needs_spin = pytest.mark.skipif(not shutil.which("spin") or not shutil.which("gcc"), reason="spin or gcc is missing")


def check(folder, *names, **environment):
    return subprocess.run(["/bin/bash", str(folder / "check.sh"), "quick", *names], capture_output=True, text=True,
                          env=os.environ | environment, timeout=300)


@needs_spin
def test_a_planted_bug_is_found():
    result = check(MODEL, "NOR1", "DROPGRANT")
    assert result.returncode == 0, result.stdout + result.stderr
    assert sorted(line.split()[1] for line in result.stdout.splitlines()) == ["DROPGRANT", "NOR1"]


@needs_spin
@pytest.mark.parametrize("stated", ["ok", "rd["])
def test_another_result_than_the_stated_one_fails(tmp_path, stated):
    shutil.copy(MODEL / "step.pml", tmp_path)
    text = (MODEL / "check.sh").read_text()
    assert "quick|NOR1|assertion violated 0|" in text
    (tmp_path / "check.sh").write_text(text.replace("quick|NOR1|assertion violated 0|", f"quick|NOR1|{stated}|"))
    result = check(tmp_path, "NOR1")
    assert result.returncode == 1
    assert f"FAIL NOR1: expected '{stated}'" in result.stdout


def test_what_is_missing_is_named(tmp_path):
    (tmp_path / "dirname").symlink_to(shutil.which("dirname"))
    result = check(MODEL, PATH=str(tmp_path))
    assert result.returncode == 2
    assert "spin is missing" in result.stderr


@needs_spin
def test_an_unknown_name_is_refused():
    result = check(MODEL, "NO-SUCH-LINE")
    assert result.returncode == 2
    assert "NO-SUCH-LINE" in result.stderr
