"""A minute of each of the long tests (tools/soak.py runs them for as long as one likes)."""

import subprocess
import sys

import pytest

from conftest import ROOT


@pytest.mark.parametrize("name", ["chaos", "manager", "checkpoint"])
def test_a_minute_of(name):
    words = [sys.executable, str(ROOT / "tools" / "soak.py"), name, "--short"]
    result = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
