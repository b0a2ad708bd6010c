"""The laboratory while it runs: `inspan lab`, and a job among machines as unequal as they come."""

import json
import os
import re
import subprocess

import pytest

from conftest import ENDLESS, INSPAN, USER_ERROR, wait_for

pytestmark = pytest.mark.usefixtures("temporary")


def all_of(nodes):
    """A model as small as this one is better off on fewer machines: these may not be let go."""
    return ["--set", f"nodes.min={nodes}"]


def places(inspan):
    """Where each agent of this test lives: {folder's number: (namespace, cgroup)}."""
    found = {}
    for _, words in inspan.processes():
        match = re.search(r"--enter-lab ([^:\s]+):(\S+) agent --folder=\S+/agents/(\d+) ", words)
        if match:
            found[int(match.group(3))] = match.group(1, 2)
    return found


def quota(group):
    """Cores, as the kernel has them."""
    def number(name):
        with open(f"{group}/{name}", encoding="ascii") as file:
            return [float(word) for word in file.read().split()]

    if os.path.exists(f"{group}/cpu.max"):
        value, period = number("cpu.max")
    else:
        value, period = number("cpu.cfs_quota_us") + number("cpu.cfs_period_us")
    assert period == 20000
    return value / period


def rates(namespace):
    """(up, down) in bits per second, as tc tells them."""
    outside = re.sub(r"inspan-(\w+)-(\d+)", r"isv\1.\2", namespace)
    ends = [["-n", namespace], "eth0"], [[], outside]
    answers = [subprocess.run(["tc", *where, "-j", "qdisc", "show", "dev", device], capture_output=True, check=True).stdout
               for where, device in ends]
    shapers = [next(row for row in json.loads(answer) if row["kind"] == "tbf") for answer in answers]
    return tuple(8 * shaper["options"]["rate"] for shaper in shapers)


def shown(inspan, *words):
    return {node["node"]: node for node in inspan.json("lab", "show", *words)["nodes"] if str(inspan.folder) in node["dir"]}


def step_of(inspan, number):
    return inspan.json("job", number).get("progress", {}).get("step", 0)


def test_quotas_and_links_change_while_a_job_runs(inspan, cluster, job, laboratory):
    cluster(2, "--cpu", "0.5,0.25", "--link", "1gbit,200mbit/100mbit")
    number = json.loads(inspan.run("train", job, "--detach", "--json", *all_of(2), *ENDLESS).stdout)["job"]
    wait_for(lambda: step_of(inspan, number) > 0, 60, "it runs")
    nodes = inspan.json("nodes")["nodes"]
    assert {node["name"]: node["inventory"]["usable_cores"] for node in nodes} == {"node-1": 0.5, "node-2": 0.25}
    before = shown(inspan)
    assert list(before) == ["node-1", "node-2"]
    assert (before["node-1"]["cores"], before["node-2"]["cores"]) == (0.5, 0.25)
    assert (before["node-2"]["up_bits_per_s"], before["node-2"]["down_bits_per_s"]) == (200e6, 100e6)
    assert not before["node-1"]["cut"]
    assert 0 <= before["node-2"]["throttled"] <= 1
    network, group = places(inspan)[1]

    answer = inspan.run("lab", "set", "node-2", "--cpu", "0.15", "--link", "50mbit/400mbit")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout == ("node node-2: 0.15 cores (before: 0.25), link 50mbit/400mbit "
                             "(before: 200mbit/100mbit)\n")
    assert quota(group) == pytest.approx(0.15)
    assert rates(network) == (50e6, 400e6)
    now = shown(inspan)
    assert now["node-1"]["cores"] == 0.5  # the other one stays as it was
    assert (now["node-1"]["up_bits_per_s"], now["node-1"]["down_bits_per_s"]) == (1e9, 1e9)
    assert now["node-2"]["cores"] == pytest.approx(0.15)

    one = inspan.json("lab", "set", "node-2", "--cpu", "0.25")  # alone: the link stays
    assert (one["cores"], one["up_bits_per_s"]) == (0.25, 50e6)
    assert inspan.run("lab", "set", "node-2", "--link=200mbit/100mbit").returncode == 0
    assert quota(group) == 0.25
    assert rates(network) == (200e6, 100e6)
    reached = step_of(inspan, number)
    wait_for(lambda: step_of(inspan, number) > reached + 1, 60, "the job goes on")
    info = inspan.json("job", number)
    assert (info["view"], info["workers_lost"]) == (1, 0)  # nobody was lost by a change
    table = inspan.run("lab", "show").stdout
    assert re.search(r"^node-2 +0\.25 +\d+ % +200mbit/100mbit +\d+ +\S+$", table, re.M), table
    assert inspan.run("cancel", number).returncode == 0


def test_a_private_cluster_has_a_laboratory_too(inspan, job, laboratory):
    program = inspan.start("train", job, "--local", "2", "--cpu", "0.5", *ENDLESS)
    wait_for(lambda: len(inspan.processes()) >= 6, 60, "manager, two agents and two workers run")
    folder = shown(inspan)["node-1"]["dir"]
    assert inspan.json("lab", "set", "node-1", "--cpu", "0.3", "--dir", folder)["cores"] == pytest.approx(0.3)
    assert {name: node["cores"] for name, node in shown(inspan, "--dir", folder).items()} == {"node-1": 0.3, "node-2": 0.5}
    refused = inspan.run("lab", "set", "node-1", "--link", "1gbit", "--dir", folder)
    assert refused.returncode == USER_ERROR
    assert "has no link of its own" in refused.stderr
    assert "without --link" in refused.stderr
    program.stop()
    assert shown(inspan) == {}


def test_what_cannot_be_set_is_told(inspan, cluster, job, laboratory):
    folder = inspan.folder / "state"
    cluster(2, "--link", "1gbit")
    refused = inspan.run("lab", "set", "node-1", "--cpu", "0.5", "--link", "10mbit")
    assert refused.returncode == USER_ERROR
    assert "node node-1 has no quota that could change" in refused.stderr
    assert shown(inspan)["node-1"]["up_bits_per_s"] == 1e9  # nothing was changed before it was refused
    assert "cores" not in shown(inspan)["node-1"]
    refused = inspan.run("lab", "set", "node-3", "--link", "1gbit", "--dir", folder)
    assert refused.returncode == USER_ERROR
    assert "did you mean node-1?" in refused.stderr


def test_an_ordinary_cluster_is_no_laboratory(inspan, cluster):
    cluster(2)
    node = shown(inspan, "node-2")["node-2"]
    assert "cores" not in node
    assert "cut" not in node
    refused = inspan.run("lab", "set", "node-2", "--cpu", "0.5", "--json")
    assert refused.returncode == USER_ERROR
    if os.geteuid() == 0:
        assert "is no machine of a laboratory" in json.loads(refused.stdout)["error"]["text"]
    else:
        assert "needs root" in refused.stderr


def test_two_clusters_with_one_name(inspan, cluster, job):
    """The one in the usual state folder counts; where there is none there, --dir must say which."""
    programs = [inspan.start("train", job, "--local", "2", *ENDLESS) for _ in range(2)]
    wait_for(lambda: len({node["dir"] for node in inspan.json("lab", "show")["nodes"]
                          if str(inspan.folder) in node["dir"]}) == 2, 60, "both are there")
    refused = inspan.run("lab", "show", "node-1")
    assert refused.returncode == USER_ERROR
    assert "say which with --dir" in refused.stderr
    cluster(2)
    assert shown(inspan, "node-1")["node-1"]["dir"] == str(inspan.folder / "state")
    for program in programs:
        program.stop()


@pytest.mark.skipif(os.geteuid() != 0, reason="tries to be somebody else, which root alone can")
def test_it_needs_root(inspan):
    program = os.open(INSPAN, os.O_PATH)  # nobody may not look into the folders on the way to it
    try:
        answer = subprocess.run([f"/proc/self/fd/{program}", "lab", "set", "node-1", "--cpu", "0.5"], pass_fds=[program],
                                user=65534, group=65534, extra_groups=[], cwd="/", capture_output=True, text=True,
                                timeout=60, check=False)
    finally:
        os.close(program)
    assert answer.returncode == USER_ERROR
    assert "needs root: try again with sudo" in answer.stderr


def test_four_machines_of_unequal_speed_count_every_sample_once(inspan, cluster, job, laboratory):
    """What a job's figures must be whatever the machines' speeds are; how fast it is, the benchmarks tell."""
    cluster(4, "--cpu", "0.8,0.4,0.4,0.2", "--link", "1gbit")
    summary = inspan.json("train", job, "--set", "train.global_batch=32", "--set", "train.steps=30", *all_of(4))
    assert (summary["state"], summary["steps"], summary["samples"]) == ("done", 30, 30 * 32)
    assert (summary["views"], summary["samples_recomputed"]) == (1, 0)
    assert sum(node["samples"] for node in summary["nodes"]) == 30 * 32
    assert sum(node["share"] for node in summary["nodes"]) == pytest.approx(1)
    assert {node["param_hash"] for node in summary["nodes"]} == {summary["param_hash"]}
    ledger = inspan.json("job", 1, "--ledger")
    assert ledger["exact"], ledger
    assert (ledger["steps"], ledger["samples"], ledger["dropped"]) == (30, 30 * 32, 0)


def test_who_is_behind_a_slow_link_is_let_go(inspan, cluster, job, laboratory):
    """Of three equally fast machines not any one, but the one whose link the others wait for; and it is said why."""
    cluster(3, "--cpu", "0.5", "--link", "1gbit,1gbit,20mbit")
    # 3.3 MB of gradients show what a link carries; with so many samples two machines are faster than one.
    model = ["--set", "model.dim=128", "--set", "model.layers=4", "--set", "train.global_batch=192"]
    number = json.loads(inspan.run("train", job, "--detach", "--json", *model, *ENDLESS).stdout)["job"]
    gone = wait_for(lambda: [verdict for verdict in inspan.json("job", number)["verdicts"] if verdict["let_go"]], 120,
                    "somebody is let go")
    assert gone[0]["node"] == "node-3" and "its link carries" in gone[0]["text"], gone
    wait_for(lambda: inspan.json("job", number)["view"] > 1, 60, "the others go on")
    reached = step_of(inspan, number)
    wait_for(lambda: step_of(inspan, number) > reached + 5, 60, "the job goes on")
    assert inspan.run("cancel", number).returncode == 0


def test_a_slow_link_makes_no_sums(inspan, laboratory):
    """What is measured of the links decides whose share of the sums is how large; where it is asked for, it is told."""
    answer = inspan.json("bench", "explain", "--local", "3", "--link", "300mbit,300mbit,60mbit")
    up = [link["up_bytes_per_s"] * 8e-6 for link in answer["links"]]
    assert up[2] < 75 and all(150 < speed < 400 for speed in up[:2]), answer
    choice = next(choice for choice in answer["choices"] if choice["bytes"] == 16 << 20)
    assert choice["schedule"] == "direct" and choice["weights"][2] < 0.1 * sum(choice["weights"]), answer
    least = (16 << 20) / (60e6 / 8)  # it sends its part and receives the sum
    assert least < choice["predicted_s"] < 1.5 * least, answer
    told = inspan.run("bench", "explain", "--local", "2").stdout
    assert "rank-1" in told and "shares of the sums" in told and "equal" in told


def test_gradients_are_rounded_where_links_are_slow(inspan, cluster, job, laboratory):
    """And only where the user allows it; all nodes hold the same weights all the same."""
    cluster(2, "--cpu", "0.5,0.5", "--link", "20mbit")
    words = ["train", job, "--json", *all_of(2), "--set", "model.dim=96", "--set", "train.steps=16", "--set", "sync.wire=auto"]
    close = json.loads(inspan.run(*words, "--set", "sync.exactness=close").stdout)
    assert (close["wire"], close["wire_changes"]) == ("int8", 1)
    assert {node["param_hash"] for node in close["nodes"]} == {close["param_hash"]}
    assert re.search(r"\[0\] step \d+: gradients go over the wire as int8: steps of \S+ s are expected, as bf16 \S+ s",
                     inspan.run("logs", close["job"]).stdout)
    exact = json.loads(inspan.run(*words, "--set", "train.steps=6").stdout)
    assert (exact["wire"], exact["wire_changes"]) == ("fp32", 0)


def test_buckets_are_laid_out_as_gradients_get_ready(inspan, job, laboratory):
    """In the order of registration all communication comes after backward: that is seen, changed, and said."""
    settings = ("sync.order=registered", "train.global_batch=16", "train.steps=40", "model.layers=4", "model.dim=128",
                "model.heads=4", "model.context=64")
    summary = inspan.json("train", job, "--local", "2", "--cpu", "0.5,0.5", "--link", "200mbit", *all_of(2),
                          *(word for setting in settings for word in ("--set", setting)))
    assert summary["layout_changes"] >= 1, summary
    assert "buckets" in summary["layout_reason"]
    assert summary["loss_last"] < summary["loss_first"]
