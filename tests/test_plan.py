"""inspan plan: what a job would reach on which machines, from speeds that are given, remembered, measured or guessed."""

import json

import pytest

from conftest import USER_ERROR, wait_for

# 10.7 million parameters, 43 MB of gradients.
GPT = ("model: {kind: gpt, layers: 6, heads: 6, dim: 384, context: 128}\n"
       "data: {path: book.txt}\ntrain: {global_batch: 128}\n")
SMALL = ("model: {kind: gpt, layers: 1, heads: 1, dim: 16, context: 16}\ndata: {path: book.txt}\n"
         "train: {steps: 100000, global_batch: 8}\n")


@pytest.fixture
def job(job_file, text_file):
    return job_file(GPT)


def imagined(job, **machines):
    """Words for machines that are not there: name=(samples/s, link)."""
    words = ["plan", job, "--no-cluster"]
    for name, (speed, link) in machines.items():
        words += ["--speed", f"{name}={speed}"] + (["--link", f"{name}={link}"] if link else [])
    return words


def test_machines_without_links_between_them_add_up(inspan, job):
    plan = inspan.json(*imagined(job, a=(41, None), b=(28, None)))
    assert plan["best"]["nodes"] == ["a", "b"]
    assert plan["best"]["limit"] == "compute"
    assert 65 < plan["best"]["samples_per_s"] <= 69
    assert sum(plan["best"]["shares"].values()) == 128
    assert plan["best"]["shares"]["a"] > plan["best"]["shares"]["b"]
    assert [rung["add"] for rung in plan["ladder"]] == ["a", "b"]
    nodes = {node["name"]: node for node in plan["nodes"]}
    assert nodes["a"]["alone"] == pytest.approx(41)
    assert nodes["a"]["speed_from"] == "--speed"
    assert nodes["a"]["link_bits_per_s"] is None
    assert nodes["b"]["best_without"] == pytest.approx(nodes["a"]["alone"])


def test_a_slow_link_is_named_and_left_out(inspan, job):
    plan = inspan.json(*imagined(job, a=(40, "1gbit"), b=(30, "1gbit"), c=(20, "20mbit")))
    assert plan["best"]["nodes"] == ["a", "b"]
    assert plan["ladder"][-1] == {"add": "c", "samples_per_s": pytest.approx(plan["ladder"][-1]["samples_per_s"]),
                                  "limit": "link", "limited_by": "c"}
    assert plan["ladder"][-1]["samples_per_s"] < plan["ladder"][0]["samples_per_s"]
    assert plan["gigabit_cable"]["node"] == "c"
    assert plan["gigabit_cable"]["nodes"] == ["a", "b", "c"]
    assert plan["gigabit_cable"]["samples_per_s"] > plan["best"]["samples_per_s"]
    fastest = max(node["alone"] for node in plan["nodes"])
    assert plan["best"]["samples_per_s"] > fastest


def test_never_worse_than_the_best_machine_alone(inspan, job):
    plan = inspan.json(*imagined(job, a=(400, "10mbit"), b=(400, "10mbit")))
    assert plan["best"]["nodes"] == ["a"]
    assert plan["best"]["samples_per_s"] == max(node["alone"] for node in plan["nodes"])


def test_every_set_of_few_machines_is_told(inspan, job):
    machines = {"a": (40, "1gbit"), "b": (30, "1gbit"), "c": (20, "20mbit")}
    plan = inspan.json(*imagined(job, **machines))
    sets = {tuple(one["nodes"]): one["samples_per_s"] for one in plan["sets"]}
    assert len(sets) == len(plan["sets"]) == 7
    assert max(sets.values()) == plan["best"]["samples_per_s"] == sets["a", "b"]
    assert sets["a", "b", "c"] == plan["ladder"][-1]["samples_per_s"]
    only = inspan.json(*imagined(job, **machines), "--nodes", "a,c")
    assert {tuple(one["nodes"]): one["samples_per_s"] for one in only["sets"]} == {
        names: speed for names, speed in sets.items() if "b" not in names}


def test_plain_words(inspan, job):
    result = inspan.run(*imagined(job, a=(40, "1gbit"), b=(30, "1gbit"), c=(20, "20mbit")))
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert "MB of gradients and 128 samples a step" in lines[1]
    assert any(line.startswith("with a alone ") and line.endswith(" samples/s") for line in lines)
    assert any(line.startswith("adding b ") for line in lines)
    assert any(line.startswith("adding c ") and line.endswith(": slower (its link is the limit)") for line in lines)
    assert any(line.startswith("best: a and b, ") for line in lines)
    assert f"  inspan train {job} --nodes a,b" in lines
    assert any(line.startswith("a 1 Gbit/s cable for c would give ") and line.endswith(", with a, b and c")
               for line in lines)


def test_the_batch_hides_the_links(inspan, job):
    """A larger step has more to compute for the same gradients, and the answer says what that would give."""
    words = imagined(job, a=(40, "150mbit"), b=(40, "150mbit"))
    plan = inspan.json(*words)
    assert plan["best"]["nodes"] == ["a"]
    assert plan["ladder"][1]["limit"] == "link"
    larger = inspan.json(*words, "--set", "train.global_batch=256")
    assert larger["best"]["samples_per_s"] == pytest.approx(plan["samples_per_s_with_twice_the_batch"], rel=0.05)
    assert larger["best"]["samples_per_s"] > plan["best"]["samples_per_s"]


def test_a_larger_micro_batch_hides_more(inspan, job):
    words = imagined(job, a=(40, "500mbit"), b=(40, "500mbit"))
    plan = inspan.json(*words)
    assert plan["best"]["limit"] == "link"
    assert plan["nodes"][0]["micro_batch"] == 16
    proposed = plan["larger_micro_batch"]
    assert proposed["train.micro_batch"] in (32, 64)
    there = inspan.json(*words, "--set", f"train.micro_batch={proposed['train.micro_batch']}")
    assert there["best"]["samples_per_s"] == pytest.approx(proposed["samples_per_s"])
    assert there["best"]["samples_per_s"] > 1.03 * plan["best"]["samples_per_s"]


def test_up_and_down_may_differ(inspan, job):
    slow = inspan.json(*imagined(job, a=(40, "1gbit"), b=(40, "20mbit/1gbit")))
    fast = inspan.json(*imagined(job, a=(40, "1gbit"), b=(40, "1gbit")))
    assert slow["ladder"][1]["samples_per_s"] < fast["ladder"][1]["samples_per_s"]
    assert slow["ladder"][1]["limited_by"] == "b"


def test_too_few_nodes_for_the_job(inspan, job_file, text_file):
    job = job_file(GPT + "nodes: {min: 3}\n")
    result = inspan.run(*imagined(job, a=(4, None), b=(4, None)))
    assert result.returncode == USER_ERROR
    assert "nodes.min 3" in result.stderr


@pytest.mark.parametrize("words, says", [
    (["--no-cluster"], "no node is there to plan with"),
    (["--no-cluster", "--speed", "a"], "--speed a: expected NODE=SAMPLES_PER_SECOND"),
    (["--no-cluster", "--speed", "a=fast"], "--speed a=fast: expected NODE=SAMPLES_PER_SECOND"),
    (["--no-cluster", "--speed", "a=0"], "--speed a=0: expected NODE=SAMPLES_PER_SECOND"),
    (["--no-cluster", "--speed", "a=1", "--link", "a=quick"], "--link a=quick: expected a rate"),
    (["--no-cluster", "--speed", "a=1", "--link", "b=1gbit"], "no usable node has the name b"),
    (["--no-cluster", "--speed", "a=1", "--nodes", "a,b"], '--nodes: no usable node has the name "b"'),
    (["--no-cluster", "--measure"], "--no-cluster: a running job and --measure need the cluster"),
    (["--no-cluster", "--job", "1"], "--no-cluster: a running job and --measure need the cluster"),
])
def test_what_the_user_got_wrong(inspan, job, words, says):
    result = inspan.run("plan", job, *words)
    assert result.returncode == USER_ERROR
    assert says in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_faulty_job_file_is_the_users(inspan, job_file):
    result = inspan.run("plan", job_file("data: {path: nowhere.txt}\n"), "--no-cluster", "--speed", "a=1", "--json")
    assert result.returncode == USER_ERROR
    assert "nowhere.txt" in json.loads(result.stdout)["error"]["text"]


def test_a_cluster_before_and_during_a_run(inspan, cluster, job_file, text_file):
    cluster(2)
    job = job_file(SMALL)
    plan = inspan.json("plan", job)
    assert [node["speed_from"] for node in plan["nodes"]] == ["guess", "guess"]
    assert all(node["fits"] and not node["member"] for node in plan["nodes"])
    assert "~ speeds are guesses" in inspan.run("plan", job).stdout
    number = inspan.json("train", job, "--detach")["job"]

    def planned():
        result = inspan.run("plan", number, "--json")
        found = json.loads(result.stdout) if result.returncode == 0 else {"nodes": []}
        return found if [n for n in found["nodes"] if n["speed_from"] == "this job"] else None

    plan = wait_for(planned, 60, "ranks tell their speeds")
    assert plan["now"]["samples_per_s"] > 0
    assert all(node["member"] for node in plan["nodes"] if node["speed_from"] == "this job")
    with_file = inspan.json("plan", job, "--job", number)
    assert with_file["job"] == number
    assert "\nnow: " in inspan.run("plan", number).stdout
    inspan.run("cancel", number)
    wait_for(lambda: inspan.json("job", number)["state"] == "cancelled", 60, "the job ends")
    result = inspan.run("plan", number)
    assert result.returncode == USER_ERROR
    assert f"job {number} does not run (cancelled)" in result.stderr


def test_what_a_job_reached_is_known_to_the_next(inspan, cluster, job_file, text_file):
    cluster(2)
    job = job_file(SMALL.replace("100000", "60"))
    done = inspan.json("train", job, "--nodes", "node-1")
    plan = inspan.json("plan", job)
    nodes = {node["name"]: node for node in plan["nodes"]}
    assert nodes["node-1"]["speed_from"] == "earlier jobs"
    assert nodes["node-1"]["speed"] == pytest.approx(done["nodes"][0]["speed"], rel=0.5)
    assert nodes["node-2"]["speed_from"] == "guess"
    # the same cores as the one that is known: the same guess
    assert nodes["node-2"]["speed"] == pytest.approx(nodes["node-1"]["speed"])
    other = inspan.json("plan", job, "--set", "model.dim=32")
    assert {node["speed_from"] for node in other["nodes"]} == {"guess"}


def test_measuring_needs_a_node_of_its_own(inspan, cluster, job_file, text_file):
    cluster(2)
    result = inspan.run("plan", job_file(SMALL), "--measure")
    assert result.returncode == USER_ERROR
    assert "--measure: none of the nodes, or more than one, lives on this machine" in result.stderr


def test_this_machine_is_measured(inspan, cluster, job_file, text_file):
    cluster(1)
    plan = inspan.json("plan", job_file(SMALL), "--measure")
    assert plan["nodes"][0]["speed_from"] == "measured here"
    assert plan["best"]["samples_per_s"] > 0


def test_less_on_the_wire_makes_more_of_slow_links(inspan, job):
    words = imagined(job, a=(40, "150mbit"), b=(40, "150mbit"))
    exact, short = inspan.json(*words), inspan.json(*words, "--set", "sync.wire=int8")
    assert short["gradient_bytes"] == pytest.approx(exact["gradient_bytes"] / 4, rel=0.02)
    assert short["best"]["nodes"] == ["a", "b"]
    assert short["best"]["samples_per_s"] > 1.5 * exact["best"]["samples_per_s"]
    assert short["wire"] == "int8" and exact["wire"] == "fp32"
    close = inspan.json(*words, "--set", "sync.exactness=close")
    assert (close["wire"], close["best"]) == ("int8", short["best"])
    fast = imagined(job, a=(40, "10gbit"), b=(40, "10gbit"))
    assert inspan.json(*fast, "--set", "sync.exactness=close")["wire"] == "fp32"
    text = inspan.run(*words, "--set", "sync.wire=int8").stdout
    assert "MB of gradients as int8 and 128 samples a step" in text.splitlines()[1]
