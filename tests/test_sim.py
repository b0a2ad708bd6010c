"""The simulator: repeatable to the bit, finds what is planted, finds nothing else."""

import json
import subprocess

from conftest import ROOT

SIM = ROOT / "build" / "inspan-sim"


def sim(*words, seconds=170):
    return subprocess.run([str(SIM), *map(str, words)], capture_output=True, text=True, timeout=seconds)


def as_json(*words):
    result = sim(*words, "--json")
    return result.returncode, json.loads(result.stdout)


def test_help_has_an_example():
    result = sim("--help")
    assert result.returncode == 0
    assert "example:" in result.stdout


def test_wrong_options_are_told():
    for words in (["--faults", "flood"], ["--plant", "NONE"], ["--runs", "-1"], ["--runs", "x"], ["--nothing"], ["word"]):
        result = sim(*words)
        assert result.returncode == 2, words
        assert "inspan-sim" in result.stderr


def test_a_history_is_the_same_twice_and_in_other_processes():
    _, first = as_json("--seed", 500, "--runs", 300, "--jobs", 1)
    _, again = as_json("--seed", 500, "--runs", 300, "--jobs", 1)
    _, shared = as_json("--seed", 500, "--runs", 300, "--jobs", 3)
    assert first["hash"] == again["hash"] == shared["hash"]
    assert first["events"] == shared["events"] > 300 * 100
    _, other = as_json("--seed", 501, "--runs", 300, "--jobs", 1)
    assert other["hash"] != first["hash"]


def test_a_failure_is_shrunk_and_its_command_replays_it():
    code, found = as_json("--seed", 1, "--runs", 500, "--plant", "NOR1")
    assert code == 1 and found["failed"] and found["invariant"] == "I1"
    assert "rank" in found["text"] and "view" in found["text"] and "step" in found["text"]
    words = found["replay"].split()[1:]
    assert "--drop" in words
    first, second = sim(*words), sim(*words)
    assert first.returncode == 1
    assert first.stdout == second.stdout
    assert f"BROKEN {found['invariant']}: {found['text']}" in first.stdout


def test_without_faults_every_job_is_done():
    code, result = as_json("--seed", 1, "--runs", 1000, "--faults", "none")
    assert code == 0
    assert result["jobs_done"] == 1000 and result["faults"] == 0


def test_a_fixed_set_of_seeds_breaks_nothing():
    code, result = as_json("--seed", 1, "--runs", 4000)
    assert code == 0, result
    assert result["faults"] > 4000


def test_planted_bugs_are_found_each_within_its_number_of_seeds():
    result = sim("--plants")
    assert result.returncode == 0, result.stdout
    assert result.stdout.count("found ") == 47 and "0 missed" in result.stdout


def test_new_seeds_break_nothing():
    code, result = as_json("--minutes", "0.75", "--jobs", 1)
    assert code == 0, json.dumps(result, indent=1)[:4000]  # whole: the seed is new each time
    assert result["histories"] > 500
