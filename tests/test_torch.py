"""The PyTorch process group: real ranks over loopback, against c10d's Gloo. Needs a Python with PyTorch.

It is looked for in $INSPAN_TORCH_PYTHON and in build/venv (where ./dev bench installs it).
"""

import json
import os
import re
import socket
import subprocess
import time
from pathlib import Path

import pytest

from conftest import ROOT

SCRIPTS = ROOT / "tests" / "torch_ranks"
PYTHON = os.environ.get("INSPAN_TORCH_PYTHON") or str(ROOT / "build" / "venv" / "bin" / "python")


def why_not():
    """Why there is no PyTorch to test with; None: there is."""
    if not Path(PYTHON).exists():
        return f"no Python with PyTorch at {PYTHON} (set INSPAN_TORCH_PYTHON, or run ./dev bench once, which installs it)"
    found = subprocess.run([PYTHON, "-c", "import importlib.util; print(importlib.util.find_spec('torch') is not None)"],
                           capture_output=True, text=True, timeout=30)
    return None if found.stdout.strip() == "True" else f"{PYTHON} has no PyTorch"


WHY_NOT = why_not()
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))


def environment(**more):
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith(("INSPAN_", "GLOO_", "TORCH", "MASTER_", "RANK", "WORLD_"))}
    return {**kept, "PYTHONPATH": str(ROOT / "bindings" / "python"), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore",
            **more}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_ranks(script, world, tmp_path, seconds=120):
    """Outputs and exit codes of all ranks of a script; none of them is left."""
    port = free_port()
    ranks, files = [], []
    try:
        for rank in range(world):
            files.append((tmp_path / f"rank-{rank}.txt").open("w+"))
            ranks.append(subprocess.Popen(
                [PYTHON, str(SCRIPTS / script)], stdout=files[-1], stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                env=environment(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world))))
        deadline = time.monotonic() + seconds
        for rank in ranks:
            rank.wait(max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        pass  # the assertions show what each said
    finally:
        codes = [rank.poll() for rank in ranks]
        for rank in ranks:
            if rank.poll() is None:
                rank.kill()
            rank.wait(10)
    outputs = []
    for file in files:
        file.seek(0)
        outputs.append(file.read())
        file.close()
    return codes, outputs


def all_well(codes, outputs, expected=None):
    expected = expected or [0] * len(codes)
    if codes != expected:
        pytest.fail(f"exit codes {codes} (None: did not end in time)\n" + "\n".join(text[-3000:] for text in outputs))


def test_every_operation_gives_what_gloo_gives(tmp_path):
    codes, outputs = run_ranks("collectives.py", 3, tmp_path)
    all_well(codes, outputs)
    for text in outputs:
        assert int(re.search(r"(\d+) checks", text)[1]) > 1200, text


def test_faults_are_errors_that_name_the_rank(tmp_path):
    codes, outputs = run_ranks("faults.py", 3, tmp_path)
    all_well(codes, outputs, [0, 0, -9])  # rank 2 is killed in the last case
    assert "done" in outputs[0] and "done" in outputs[1]


def test_fsdp_and_hooks_train_as_over_gloo(tmp_path):
    codes, outputs = run_ranks("sharded.py", 2, tmp_path)
    all_well(codes, outputs)
    for case in ("fsdp", "fsdp2", "fsdp2_mixed", "ddp_bf16_hook", "ddp_power_sgd", "ddp_no_sync",
                 "functional_collectives", "batch_norm_of_unequal_batches"):
        assert f"{case}:" in outputs[0]


def losses_in(output):
    return [float(word) for word in re.search(r"LOSSES (.*)", output)[1].split()]


def losses_under_torchrun(script):
    """Without a cluster."""
    result = subprocess.run([PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)],
                            capture_output=True, text=True, timeout=120, env=environment(), stdin=subprocess.DEVNULL)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    return losses_in(result.stdout)


def test_a_script_for_gloo_gives_the_same_losses_under_torchrun(tmp_path):
    text = (SCRIPTS / "ddp_script.py").read_text()
    changed = tmp_path / "script.py"
    changed.write_text(text.replace('init_process_group("gloo")', 'init_process_group("inspan")')
                       .replace("import torch\n", "import inspan.torch\nimport torch\n", 1))
    assert changed.read_text() != text
    codes, outputs = run_ranks("ddp_script.py", 2, tmp_path)
    all_well(codes, outputs)
    gloo, ours = losses_in(outputs[0]), losses_under_torchrun(changed)
    assert len(gloo) == 18 and gloo[-1] < gloo[0]
    assert ours == pytest.approx(gloo, rel=1e-6)


# ---- Addresses, ports, the library ------------------------------------------------------------------

def in_torch(code, **more):
    """The JSON that a line of Python in the package prints."""
    result = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, timeout=60, env=environment(**more),
                            stdin=subprocess.DEVNULL)
    assert result.returncode == 0, result.stderr[-3000:]
    return json.loads(result.stdout)


def test_addresses_and_variables():
    """One process, for importing PyTorch is what takes time."""
    found = in_torch("""
import ipaddress, json, os
from inspan._lib import CommError
from inspan.torch import _group, _meet
from inspan.torch._meet import Interface, Place

lan = Interface("eth0", ipaddress.ip_interface("192.0.2.10/24"))
vpn = Interface("tun0", ipaddress.ip_interface("198.51.100.7/24"))
six = Interface("eth1", ipaddress.ip_interface("fd00::1/64"))
local6 = Interface("eth0", ipaddress.ip_interface("fe80::1/64"))
local4 = Interface("eth2", ipaddress.ip_interface("169.254.3.4/16"))

def place(*addresses):
    return Place("b", "other machine", addresses, 7500, 1)

def error(call):
    try:
        call()
    except Exception as raised:
        return str(raised)

def names(interfaces):
    return [interface.address for interface in interfaces]

answers = {
    "lan before vpn": _meet.address_of(place("203.0.113.9", "192.0.2.20"), [vpn, lan]),
    "ipv6": _meet.address_of(place("fd00::9"), [lan, six]),
    "nothing": _meet.address_of(place(), [lan]),
    "no link-local": names(_meet.own_interfaces([local6, lan, local4])),
    "only link-local": names(_meet.own_interfaces([local6, local4])),
    "one machine": _meet._addresses([Place("a", "m", (), 1, 1)] * 2, 0, [0, 1]),
    "only loopback": error(lambda: _meet._addresses([Place("a", "m", (), 1, 1), place("192.0.2.20")], 0, [4, 5])),
}
os.environ["INSPAN_SOCKET_IFNAME"] = "tun0"
answers["by name"] = names(_meet.own_interfaces([lan, vpn]))
os.environ["INSPAN_SOCKET_IFNAME"] = "wlan7"
answers["no such interface"] = error(lambda: _meet.own_interfaces([lan, vpn]))
del os.environ["INSPAN_SOCKET_IFNAME"]
os.environ["INSPAN_DATA_PORTS"] = "7500-7599"
answers["ports"] = _meet.data_ports()
os.environ["INSPAN_DATA_PORTS"] = "7599-7500"
answers["wrong ports"] = error(_meet.data_ports)
os.environ["INSPAN_FAILURE_TIMEOUT"] = "20s"
answers["timeout"] = _group._failure_timeout_s()
os.environ["INSPAN_FAILURE_TIMEOUT"] = "soon"
answers["wrong timeout"] = error(_group._failure_timeout_s)
print(json.dumps(answers))
""")
    assert found["lan before vpn"] == "192.0.2.20"
    assert found["ipv6"] == "fd00::9"
    assert found["nothing"] is None
    assert found["no link-local"] == ["192.0.2.10"]
    assert found["only link-local"] == ["169.254.3.4"]
    assert found["one machine"] == ["127.0.0.1", "127.0.0.1"]
    assert "rank 4 (node a) has no address but loopback" in found["only loopback"]
    assert found["by name"] == ["198.51.100.7"]
    assert "INSPAN_SOCKET_IFNAME=wlan7: no such interface" in found["no such interface"]
    assert found["ports"] == [7500, 7599]
    assert "expected a range of ports" in found["wrong ports"]
    assert found["timeout"] == 20.0
    assert "expected seconds from 1 to 3600" in found["wrong timeout"]


def test_a_library_that_is_not_there_is_named(tmp_path):
    result = subprocess.run([PYTHON, "-c", "import inspan._lib; inspan._lib.lib()"], capture_output=True, text=True,
                            timeout=30, env=environment(INSPAN_LIBRARY=str(tmp_path / "libinspan.so")))
    assert result.returncode == 1
    assert "INSPAN_LIBRARY names" in result.stderr and "which does not exist" in result.stderr
