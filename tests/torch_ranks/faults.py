"""What goes wrong is an error on every rank, within a bound, that names who and what. Run as three ranks.

Each case has a group of its own, since the first failure ends a group. Rank 2 is killed in the last one.
"""

import os
import signal
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ErrorType

import inspan.torch

RANK = int(os.environ["RANK"])


def new_group(seconds=20.0, ranks=None):
    return dist.new_group(ranks, timeout=timedelta(seconds=seconds), backend="inspan")


def error_of(call, within, at_least=0.0):
    """The CommError that it raises, in time and without using the processor meanwhile."""
    begun, used = time.monotonic(), time.process_time()
    try:
        call()
    except inspan.torch.CommError as error:
        took = time.monotonic() - begun
        assert at_least <= took < within, f"{took:.2f} s: {error}"
        assert time.process_time() - used < 0.1 + 0.2 * took, f"{time.process_time() - used:.2f} s of CPU in {took:.2f} s"
        return error
    raise AssertionError("no error")


def expect(error, *texts, status=None, rank=None):
    print(f"rank {RANK}: {error}", flush=True)
    for text in texts:
        assert text in str(error), f"{text!r} is not in: {error}"
    assert status is None or error.status == status, error.status
    assert rank is None or error.rank == rank, error.rank


def missing_call():
    """Rank 1 does not call: after the group's time the others fail with its name; and so does its next call."""
    group = new_group(1.5)
    if RANK == 1:
        dist.barrier()  # the others are through
        expect(error_of(lambda: dist.barrier(group=group), 1.0), "rank 1 (node", status=inspan.torch.Status.TIMEOUT)
        return
    error = error_of(lambda: dist.all_reduce(torch.ones(1000), group=group), 4.0, at_least=1.4)
    expect(error, "rank 1 (node", "127.0.0.1:", "did not make this call in time", "allreduce #1", "longer timeout",
           status=inspan.torch.Status.TIMEOUT, rank=1)
    again = error_of(lambda: dist.all_reduce(torch.ones(1), group=group), 0.5)
    expect(again, "did not make this call in time", status=inspan.torch.Status.TIMEOUT)
    assert group._get_backend(torch.device("cpu")).get_error() == ErrorType.TIMEOUT
    dist.barrier()


def missing_call_of_subgroup():
    """The name of a rank is its number in the job, also in a subgroup where it has another."""
    group = new_group(1.0, [0, 2])
    if RANK == 0:
        expect(error_of(lambda: dist.all_reduce(torch.ones(3), group=group), 3.0), "rank 2 (node")
    dist.barrier()


def missing_send():
    group = new_group(20)
    if RANK == 0:
        work = dist.irecv(torch.ones(10), 2, tag=7, group=group)
        error = error_of(lambda: work.wait(timedelta(seconds=0.5)), 3.0, at_least=0.4)
        expect(error, "rank 2 (node", "did not send in time", "tag 7", status=inspan.torch.Status.TIMEOUT)
    dist.barrier()


def a_future_fails_too():
    group = new_group(0.7)
    if RANK == 0:
        future = dist.all_reduce(torch.ones(3), group=group, async_op=True).get_future()
        begun = time.monotonic()
        try:
            future.wait()
        except RuntimeError as error:
            assert "did not make this call in time" in str(error), error
            assert time.monotonic() - begun < 3
        else:
            raise AssertionError("no error")
    dist.barrier()


def other_calls():
    """Ranks that call different things: all hear what each called."""
    group = new_group()
    tensor = torch.ones(10 if RANK != 1 else 11)
    error = error_of(lambda: dist.all_reduce(tensor, group=group), 5.0)
    expect(error, "rank 0 called allreduce #1, 40 B", "rank 1 allreduce #1, 44 B", "differ in what they call",
           status=inspan.torch.Status.MISMATCH)
    dist.barrier()


def monitored():
    group = new_group()
    if RANK == 0:
        error = error_of(lambda: inspan.torch.monitored_barrier(group, timedelta(seconds=1), wait_all_ranks=True), 3.0,
                         at_least=0.9)
        expect(error, "rank 1, rank 2 did not come within 1.0 s", status=inspan.torch.Status.TIMEOUT, rank=1)
    dist.barrier()
    group = new_group()
    if RANK == 0:
        error = error_of(lambda: dist.monitored_barrier(group, timedelta(seconds=1)), 3.0)
        expect(error, "rank 2 did not come")
    elif RANK == 1:
        expect(error_of(lambda: inspan.torch.monitored_barrier(group, timedelta(seconds=1)), 3.0), "rank 2 did not come")
    dist.barrier()


def nobody_comes():
    """A rank that never opens its group: the others say who, before a byte is sent."""
    if RANK == 2:
        dist.barrier()
        return
    store = dist.PrefixStore("alone", dist.distributed_c10d._get_default_store())
    error = error_of(lambda: inspan.torch.ProcessGroupInspan(store, RANK, 3, timedelta(seconds=1)), 4.0, at_least=0.9)
    expect(error, "rank 2 of the group's 3 did not come to the meeting within 1.0 s", rank=2)
    dist.barrier()


def stopped():
    """A rank that only sleeps holds the others up; nobody blames it, and waiting costs nothing."""
    group = new_group()
    if RANK == 2:
        time.sleep(1.5)  # not a wait: what it is busy with
    used = time.process_time()
    dist.all_reduce(torch.ones(10), group=group)
    assert time.process_time() - used < 0.3
    dist.barrier()


def frozen():
    """A process that is stopped answers nothing: lost after twice the failure timeout, on all others."""
    os.environ["INSPAN_FAILURE_TIMEOUT"] = "1s"
    group = new_group(60)
    del os.environ["INSPAN_FAILURE_TIMEOUT"]
    pids = [0] * 3
    dist.all_gather_object(pids, os.getpid(), group=group)
    dist.barrier()
    if RANK == 0:
        os.kill(pids[2], signal.SIGSTOP)
    try:
        if RANK != 2:
            error = error_of(lambda: dist.all_reduce(torch.ones(100), group=group), 6.0, at_least=1.0)
            expect(error, "rank 2 (node", "silent", status=inspan.torch.Status.PEER_LOST, rank=2)
    finally:
        if RANK == 0:
            os.kill(pids[2], signal.SIGCONT)
    dist.barrier()
    if RANK == 2:
        error_of(lambda: dist.barrier(group=group), 5.0)


def killed():
    """kill -9 in the middle of an operation: at once, on all survivors, with its name; later calls the same."""
    group = new_group(60)
    dist.all_reduce(torch.ones(10), group=group)
    if RANK == 2:
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
        time.sleep(30)  # not a wait: it is killed meanwhile
    error = error_of(lambda: dist.all_reduce(torch.ones(1_000_000), group=group), 3.0)
    expect(error, "rank 2 (node", "127.0.0.1:", "allreduce #2", status=inspan.torch.Status.PEER_LOST, rank=2)
    expect(error_of(lambda: dist.barrier(group=group), 0.5), "rank 2 (node", status=inspan.torch.Status.PEER_LOST)


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=40))
    for case in (missing_call, missing_call_of_subgroup, missing_send, a_future_fails_too, other_calls, monitored,
                 nobody_comes, stopped, frozen, killed):
        print(f"rank {RANK}: {case.__name__}", flush=True)
        case()
    print(f"rank {RANK}: done", flush=True)
    os._exit(0)  # Gloo's group lacks a rank


main()
