"""A node whose address changes (DHCP gave it another one) registers again under the same id."""

import json
import os
import shutil
import subprocess

import pytest

from conftest import INSPAN, wait_for


def ip(*words):
    return subprocess.run(["ip", *map(str, words)], capture_output=True, text=True, timeout=20)


@pytest.fixture
def far():
    """A network namespace on a cable of its own: (name, interface inside, prefix of its subnet).

    Not named inspan-*: that is what tests of the laboratory look for as leftovers.
    """
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("no namespace here: needs root and the program ip")
    pid = os.getpid()
    name, near, inside, prefix = f"address-test-{pid}", f"it{pid}a", f"it{pid}b", f"10.{200 + pid % 40}.{pid // 40 % 250}"
    made = ip("netns", "add", name)
    if made.returncode != 0:
        pytest.skip(f"no namespace here: {made.stderr.strip()}")
    entered = ip("-n", name, "link")
    if entered.returncode != 0:
        ip("netns", "del", name)
        pytest.skip(f"namespaces cannot be entered here: {entered.stderr.strip()}")
    try:
        for words in [("link", "add", near, "type", "veth", "peer", "name", inside),
                      ("link", "set", inside, "netns", name), ("addr", "add", f"{prefix}.1/24", "dev", near),
                      ("link", "set", near, "up"), ("-n", name, "link", "set", inside, "up"),
                      ("-n", name, "addr", "add", f"{prefix}.2/24", "dev", inside)]:
            result = ip(*words)
            assert result.returncode == 0, result.stderr
        yield name, inside, prefix
    finally:
        ip("link", "del", near)
        ip("netns", "del", name)


def test_a_changed_address_is_registered_again(inspan, cluster, far):
    name, inside, prefix = far
    up = cluster(1)
    client = inspan.folder / "state" / "client.json"
    token = (inspan.folder / "state" / "manager" / "token").read_text().strip()
    port = json.loads(client.read_text())["manager"].rsplit(":", 1)[1]
    agent = subprocess.Popen(["ip", "netns", "exec", name, INSPAN, "join", f"{prefix}.1:{port}", "--token", token, "--name",
                              "far", "--dir", inspan.folder / "far"], env=inspan.env,
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        def node():
            return next((node for node in inspan.json("nodes")["nodes"] if node["name"] == "far"), None)

        first = wait_for(node, 20, "the far node is registered")
        assert first["address"] == f"{prefix}.2"
        for words in [("addr", "add", f"{prefix}.7/24", "dev", inside), ("addr", "del", f"{prefix}.2/24", "dev", inside),
                      ("addr", "replace", f"{prefix}.7/24", "dev", inside)]:
            ip("-n", name, *words)
        second = wait_for(lambda: (found := node()) and found["address"] == f"{prefix}.7" and found, 20,
                          "the new address is known")
        assert second["node_id"] == first["node_id"]
        assert len(inspan.json("nodes")["nodes"]) == 2
    finally:
        agent.terminate()
        agent.wait(20)
        up.stop()
