"""What carries collectives: what inspan doctor says, what the benchmark runs, and how a rank without it is named."""

import json
import socket

import pytest

from conftest import INSPAN, JOB_FAILED, MINI_JOB, USER_ERROR

PLUGIN = INSPAN.parent / "inspan-gloo.so"

needs_gloo = pytest.mark.skipif(not PLUGIN.exists(), reason="gloo: this build has no inspan-gloo.so: apt install libgloo-dev")


@pytest.fixture
def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


@pytest.fixture
def no_plugins(tmp_path):
    folder = tmp_path / "plugins"
    folder.mkdir()
    return {"INSPAN_BACKENDS": str(folder)}


def backend(inspan, name, env=None):
    result = inspan.run("doctor", "--json", env=env)
    assert result.returncode == 0, result.stderr
    return {row["name"]: row for row in json.loads(result.stdout)["backends"]}[name]


def test_doctor_says_what_can_be_used_and_why_not_the_rest(inspan):
    native = backend(inspan, "native")
    assert native["available"] and native["version"] == inspan.json("version")["version"]
    assert backend(inspan, "gloo")["available"] == PLUGIN.exists()
    nccl = backend(inspan, "nccl")
    assert not nccl["available"] and "no backend for it (here: " in nccl["why"]
    lines = inspan.run("doctor").stdout.splitlines()[1:]
    assert [line.split()[:2] for line in lines] == [["native", "yes"], ["gloo", "yes" if PLUGIN.exists() else "no"],
                                                   ["nccl", "no"]]


def test_doctor_names_what_is_missing(inspan, no_plugins, tmp_path):
    gloo = backend(inspan, "gloo", no_plugins)
    assert not gloo["available"] and "apt install libgloo-dev" in gloo["why"]
    (tmp_path / "plugins" / "inspan-gloo.so").write_text("no library")
    assert "inspan-gloo.so cannot be loaded" in backend(inspan, "gloo", no_plugins)["why"]


@needs_gloo
def test_doctor_names_the_package_of_a_library_that_was_removed(inspan, no_plugins, tmp_path):
    plugin = PLUGIN.read_bytes().replace(b"libgloo.so.0\0", b"libgloo.so.9\0")
    (tmp_path / "plugins" / "inspan-gloo.so").write_bytes(plugin)
    assert backend(inspan, "gloo", no_plugins)["why"] == "libgloo is not installed: apt install libgloo0"


@pytest.mark.parametrize("name", ["auto", "native", pytest.param("gloo", marks=needs_gloo)])
def test_bench_says_which_backend_ran(inspan, name):
    answer = inspan.json("bench", "allreduce", "--local", "3", "--bytes", "4,4K,1M", "--iters", "2", "--check",
                         "--backend", name)
    assert answer["backend"] == ("native" if name == "auto" else name)
    assert answer["checked_sums"] == 3 * 5


@needs_gloo
@pytest.mark.parametrize("without", [0, 1])
def test_the_rank_that_cannot_is_named_by_all(inspan, free_port, no_plugins, without):
    ranks = [inspan.start("bench", "allreduce", "--rank", rank, "--world", 2, "--rendezvous", f"127.0.0.1:{free_port}",
                          "--bytes", "4K", "--backend", "gloo", env=no_plugins if rank == without else None)
             for rank in range(2)]
    for result in [rank.finish(60) for rank in ranks]:
        assert result.returncode == USER_ERROR, result.stderr
        assert f"rank {without} (node " in result.stderr
        assert "cannot use gloo: this Inspan was built without Gloo" in result.stderr


@needs_gloo
def test_ranks_that_were_told_different_backends(inspan, free_port):
    ranks = [inspan.start("bench", "allreduce", "--rank", rank, "--world", 2, "--rendezvous", f"127.0.0.1:{free_port}",
                          "--bytes", "4K", "--iters", "1", "--backend", "gloo" if rank else "native") for rank in range(2)]
    results = [rank.finish(60) for rank in ranks]
    assert "does not use this backend" in results[1].stderr
    assert all(result.returncode != 0 for result in results)


@needs_gloo
def test_a_job_comes_to_the_same_with_gloo(inspan, job_file, text_file):
    path = job_file(MINI_JOB)
    lost = {}
    for name in ["native", "gloo"]:
        result = inspan.run("train", path, "--local", 3, "--json", "--set", f"sync.backend={name}",
                            "--set", "train.dtype=fp64")
        assert result.returncode == 0, result.stderr
        lost[name] = json.loads(result.stdout)["loss_last"]
    assert lost["gloo"] == pytest.approx(lost["native"], rel=1e-9)


def test_a_job_with_gloo_where_it_is_not(inspan, job_file, text_file, no_plugins):
    result = inspan.run("train", job_file(MINI_JOB), "--local", 2, "--set", "sync.backend=gloo", env=no_plugins)
    assert result.returncode == JOB_FAILED
    assert "rank 0 (node node-1" in result.stderr and "cannot use gloo" in result.stderr
    result = inspan.run("train", job_file(MINI_JOB), "--local", 2, "--set", "sync.backend=gloo", "--set", "sync.wire=bf16")
    assert result.returncode == USER_ERROR
    assert "sync.backend gloo sends gradients as they are" in result.stderr
