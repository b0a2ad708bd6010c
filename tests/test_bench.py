"""What the measurements in bench/ stand on: the phases of a step as workers log them, and bounds that can be broken."""

import json
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parent.parent / "bench"
sys.path.insert(0, str(BENCH))
import phases  # noqa: E402
import recovery  # noqa: E402
import run  # noqa: E402

JOB = """
model: {kind: gpt, layers: 2, heads: 2, dim: 32, context: 32}
data: {kind: text, path: book.txt}
train: {steps: 8, global_batch: 12, lr: 1e-3}
sync: {bucket: 16K, split: equal}
checkpoint: {dir: out}
"""


def line(at, text):
    return f"2026-01-31T12:00:{at:06.3f} DEBUG worker: {text}"


def steps_of(first, n, start):
    """The lines of n steps of 100 ms, of two micro-batches of 3 samples each."""
    for step in range(first, first + n):
        at = start + 0.1 * (step - first)
        for offset, text in [(0.00, "computes 3 samples"), (0.03, "computed 3 samples"), (0.03, "computes 3 samples"),
                             (0.05, "bucket 0 is reduced"), (0.06, "computed 3 samples"), (0.06, "bucket 1 is reduced"),
                             (0.09, "voted"), (0.1, "committed")]:
            tail = ", 0 samples again so far" if text == "committed" else ""
            yield line(at + offset, f"step {step}: {text} in view 1{tail}")


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "agents" / "0" / "jobs" / "1" / "rank-0.log"
    path.parent.mkdir(parents=True)
    path.write_text("")
    return phases.WorkerLog(path, 0)


def test_the_pace_of_a_worker(log):
    log.path.write_text("\n".join(steps_of(0, 10, 1)) + "\n")
    log.read()
    found = phases.pace(log, 1)
    assert found.steps == 9
    assert found.share == 6
    for name, expected in [("step_s", 0.1), ("sample_s", 0.01), ("run_s", 0.03), ("reduction_s", 0.04), ("vote_s", 0.01)]:
        assert getattr(found, name) == pytest.approx(expected, abs=1e-3), name
    assert phases.pace(log, 2) is None


def test_the_phase_in_which_a_worker_stands(log):
    lines = list(steps_of(0, 1, 1))
    found = []
    for n in range(1, len(lines) + 1):
        log.path.write_text("\n".join(lines[:n]) + "\n")
        log.read()
        found.append(log.phase())
    assert found == ["compute", "compute", "compute", "bucket", "bucket", "bucket", "vote", None]


def test_half_a_line_is_read_when_it_is_whole(log):
    text = line(1, "step 0: voted in view 1") + "\n"
    log.path.write_text(text[:40])
    assert log.read() == []
    log.path.write_text(text)
    assert [event.what for event in log.read()] == ["voted"]


def test_a_log_that_was_begun_anew_is_read_on(log):
    log.path.write_text(line(1, "step 0: voted in view 1") + "\n")
    log.read()
    with open(log.path, "a", encoding="ascii") as file:
        file.write(line(2, "step 1: voted in view 1") + "\n")
    log.path.rename(log.path.with_name("rank-0.log.1"))
    log.path.write_text(line(3, "step 2: voted in view 1") + "\n")
    assert [event.step for event in log.read()] == [1, 2]


def test_workers_log_the_phases_of_each_step(inspan, job_file, text_file):
    """The real program: bench/recovery.py and bench/unequal.py read these lines."""
    folder = inspan.folder / "kept"
    result = inspan.run("train", job_file(JOB), "--local", 2, "--dir", folder, "--json", env={"INSPAN_LOG": "debug"})
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["state"] == "done"
    paths = sorted(folder.glob("agents/*/jobs/1/rank-*.log"))
    assert len(paths) == 2
    for rank, path in enumerate(paths):
        log = phases.WorkerLog(path, rank)
        log.read()
        assert log.first("entered", 0) is not None
        for step in range(8):
            whats = [event.what for event in log.events if event.step == step]
            assert whats[0] == "computes" and whats[-1] == "committed", whats
            for what in ("computed", "reduces"):
                assert what in whats, whats
        assert sorted(log.commits()) == list(range(10))  # and the closing and the saving step
        assert any(event.what == "voted" for event in log.events)  # the leader's last vote is the commit itself
        found = phases.pace(log, 1)
        assert found.share > 0 and found.step_s > 0 and found.sample_s >= 0


HIT = {"kind": "worker", "phase": "vote", "leader": False, "step": 7, "decided_s": 0.1, "decided_bound_s": 0.3,
       "committed_s": 0.2, "committed_bound_s": 0.5, "again": 3, "again_bound": 6, "views": 1, "step_s": 0.1}


@pytest.mark.parametrize("change", [{"decided_s": 0.31}, {"committed_s": 0.6}, {"again": 7}])
def test_a_broken_bound_of_a_recovery_is_told(change):
    assert recovery.faults_of(HIT) == []
    assert len(recovery.faults_of({**HIT, **change})) == 1


def test_a_killed_agent_that_cost_a_view_is_told():
    hit = {**HIT, "kind": "agent", "views_bound": 0}
    assert len(recovery.faults_of(hit)) == 1
    assert recovery.faults_of({**hit, "views": 0}) == []


def test_strikes_go_to_what_was_struck_least():
    hits = [{"kind": "worker", "phase": phase} for phase in recovery.PHASES]
    assert recovery.wanted({"hits": hits[:2]}, ["worker"], 1) == ("worker", "vote")
    assert recovery.wanted({"hits": hits}, ["worker"], 1) is None


def test_words_behind_a_benchmark_are_its_own():
    assert run.chosen(["unequal", "plan", "--quick", "commit"]) == [("unequal", ["plan", "--quick"]), ("commit", [])]
    assert [name for name, _ in run.chosen([])] == list(run.BENCHES)
