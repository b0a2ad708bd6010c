"""Works (c10d's handles of operations that go on), and the thread that completes them.

An operation's end is put into a queue by the library's I/O thread; the waiter takes it out, completes works and futures,
and sleeps otherwise: until the next end, or until a work's time is over. It is one thread for all groups of the process. A
callback of a future runs on it, and may itself wait for another work: so before works with futures are completed, a second
thread takes its place at the queue, and they go on in turns.
"""

from __future__ import annotations

import ctypes
import heapq
import itertools
import os
import threading
import time
import weakref
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Callable

import torch
import torch.distributed as dist

from inspan._lib import Cause, CommError, Error, Finished, Status, lib, status_text

if TYPE_CHECKING:
    from inspan.torch._group import ProcessGroupInspan

_BATCH = 64
_MOST_THREADS = 16
_MOST_OVER = 1000  # works that are through, in the list of deadlines
_FOREVER_NS = 1 << 62
_JOIN_S = 5.0  # for callbacks that run while the last group is closed


class Work(dist._Work):
    """One call of a collective, a send or a receive: one or more operations of the library.

    outputs: the tensors with the result, in c10d's order. c10d hands `wait` and `get_future` of it through to the user.
    """

    def __init__(self, group: "ProcessGroupInspan", name: str, outputs: list[torch.Tensor], timeout_s: float) -> None:
        super().__init__()
        self.group = group
        self.name = name
        self.outputs = outputs
        self.timeout_s = timeout_s
        self.deadline = time.monotonic() + timeout_s
        self.source = -1  # of a receive
        self.sequence = 0
        self.keep: list[Any] = []  # what must live until the operations have finished
        self.after: list[Callable[[], None]] = []  # on the waiter, once all have: copies out, divisions
        self.left = 1  # operations, and one until all are started
        self._error: BaseException | None = None
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._ended: torch.futures.Future[None] | None = None
        self._future: torch.futures.Future[list[torch.Tensor]] | None = None

    # ---- For the group and the waiter

    def finished(self, error: BaseException | None) -> bool:
        """One of its operations has ended; was it the last?"""
        with self._lock:
            self._error = self._error or error
            self.left -= 1
            return self.left == 0

    @property
    def has_future(self) -> bool:
        return self._future is not None

    def complete(self) -> None:
        """All operations have ended: the rest of the work, and everybody who waits is told."""
        if self._error is None:
            try:
                with torch.no_grad():
                    for step in self.after:
                        step()
            except BaseException as error:  # noqa: BLE001: it belongs to who waits
                self._error = error
        self.after = []
        self.keep = []
        with self._lock:
            self._done.set()
            ended = self._ended
        if ended is not None:
            ended.set_result(None)

    def _value(self, _: "torch.futures.Future[None]") -> list[torch.Tensor]:
        if self._error is not None:
            raise self._error
        return self.outputs

    # ---- What c10d calls

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Block until it is finished; raises what made it fail. timeout: at most so long, 0: the group's timeout holds."""
        seconds = timeout.total_seconds() if timeout is not None else 0.0
        if seconds <= 0:
            self._done.wait()  # bounded: the waiter ends it when its own time is over
        elif not self._done.wait(seconds):
            self.group.expire(seconds)
            self._done.wait()  # bounded: the library fails within 100 ms
        if self._error is not None:
            raise self._error
        return True

    def wait_quietly(self, seconds: float) -> bool:
        """Is it finished within so many seconds? Nothing else happens."""
        return self._done.wait(max(seconds, 0.0))

    def get_future(self) -> "torch.futures.Future[list[torch.Tensor]]":
        with self._lock:
            if self._future is None:
                # Of a callback, since Future.set_exception is not seen by c10d's own code.
                self._ended = torch.futures.Future()
                self._future = self._ended.then(self._value)
                if self._done.is_set():
                    self._ended.set_result(None)
            return self._future

    def is_completed(self) -> bool:
        return self._done.is_set()

    def is_success(self) -> bool:
        return self._done.is_set() and self._error is None

    def exception(self) -> BaseException | None:
        return self._error

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return self.outputs

    def synchronize(self) -> None:
        self.wait()

    def source_rank(self) -> int:
        return self.source

    def _source_rank(self) -> int:
        return self.source

    def _get_sequence_number(self) -> int:
        return self.sequence


def _is_over(work: Work | None) -> bool:
    return work is None or work.is_completed()


class Waiter:
    """The queue, the I/O thread below it, and the thread that waits. One for all groups of a process: `share`."""

    _shared: "Waiter | None" = None
    _shared_lock = threading.Lock()

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.io = ctypes.c_void_p()
        self.queue = ctypes.c_void_p()
        self._users = 0
        self._lock = threading.Lock()
        self._turn = threading.Lock()  # whose holder waits in the queue
        self._tokens = itertools.count(1)
        self._works: dict[int, Work] = {}
        # Weak: a work that is through must not keep its tensors until its time would be over.
        self._deadlines: list[tuple[float, int, weakref.ref[Work]]] = []
        self._waits_until = float("inf")
        self._closing = False
        self._broken: BaseException | None = None
        self._idle = 0
        self._threads: list[threading.Thread] = []

    @classmethod
    def share(cls) -> "Waiter":
        """The process's waiter, opened by its first user; each gives it back by `leave`."""
        with cls._shared_lock:
            waiter = cls._shared
            if waiter is None or waiter.pid != os.getpid():
                waiter = Waiter()
                error = Error()
                if lib().inspan_io_open(ctypes.byref(waiter.io), ctypes.byref(error)) != Status.OK:
                    raise error.raised("the I/O thread cannot be started")
                if lib().inspan_queue_open(ctypes.byref(waiter.queue)) != Status.OK:
                    lib().inspan_io_close(waiter.io)
                    raise MemoryError("no memory for the queue of finished operations")
                waiter._spawn()
                cls._shared = waiter
            waiter._users += 1
            return waiter

    def leave(self) -> None:
        """The last one closes it; all its works are complete."""
        with self._shared_lock:
            self._users -= 1
            if self._users > 0:
                return
            if Waiter._shared is self:
                Waiter._shared = None
        self._closing = True
        lib().inspan_queue_wake(self.queue)
        until = time.monotonic() + _JOIN_S
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, until - time.monotonic()))
        lib().inspan_io_close(self.io)
        if not any(thread.is_alive() for thread in self._threads):  # else a callback still runs: the queue stays
            lib().inspan_queue_close(self.queue)

    # ---- Works

    def watch(self, work: Work) -> None:
        """From now on the work's time counts."""
        with self._lock:
            if len(self._deadlines) > _MOST_OVER + 2 * len(self._works):  # behind one that waits for long
                self._deadlines = [entry for entry in self._deadlines if not _is_over(entry[2]())]
                heapq.heapify(self._deadlines)
            heapq.heappush(self._deadlines, (work.deadline, next(self._tokens), weakref.ref(work)))
            sooner = work.deadline < self._waits_until
        if sooner:
            lib().inspan_queue_wake(self.queue)

    def add(self, operation: ctypes.c_void_p, work: Work) -> None:
        """The operation belongs to the work; its handle is the queue's from now on."""
        with self._lock:
            if self._broken is not None:
                raise RuntimeError("inspan: the thread that completes operations has failed") from self._broken
            token = next(self._tokens)
            self._works[token] = work
        if lib().inspan_op_to_queue(operation, self.queue, token) != Status.OK:
            raise MemoryError("no memory to wait for an operation")

    # ---- The thread

    def _spawn(self) -> None:
        thread = threading.Thread(target=self._run, name=f"inspan-waiter-{len(self._threads)}", daemon=True)
        self._threads.append(thread)
        self._idle += 1
        thread.start()

    def _next_timeout_ns(self) -> int:
        with self._lock:
            while self._deadlines and _is_over(self._deadlines[0][2]()):
                heapq.heappop(self._deadlines)
            self._waits_until = self._deadlines[0][0] if self._deadlines else float("inf")
            if not self._deadlines:
                return _FOREVER_NS
            return max(0, int((self._waits_until - time.monotonic()) * 1e9))

    def _expire(self) -> None:
        """Works whose time is over: their groups fail, naming who is waited for."""
        now = time.monotonic()
        late: list[Work | None] = []
        with self._lock:
            while self._deadlines and self._deadlines[0][0] <= now:
                late.append(heapq.heappop(self._deadlines)[2]())
        for work in late:
            if work is None or work.is_completed():
                continue
            work.group.expire(work.timeout_s)
            with self._lock:  # its operation may have begun late, and not be pending for long enough
                heapq.heappush(self._deadlines, (now + 0.1 * work.timeout_s + 0.02, next(self._tokens), weakref.ref(work)))

    def _take(self, finished: Any) -> list[Work]:
        """Wait for ends, or for a time to be over; the works that are through."""
        n = ctypes.c_size_t()
        lib().inspan_queue_take(self.queue, self._next_timeout_ns(), finished, _BATCH, ctypes.byref(n))
        through = []
        for entry in finished[:n.value]:
            with self._lock:
                work = self._works.pop(entry.token)
            error = None if entry.status == Status.OK else work.group.failure(work.name, entry.status)
            work.group.ended()
            if work.finished(error):
                through.append(work)
        self._expire()
        return through

    def _run(self) -> None:
        finished = (Finished * _BATCH)()
        try:
            while self._one_turn(finished):
                pass
        except BaseException as error:
            self._break(error)
            raise

    def _one_turn(self, finished: Any) -> bool:
        """Wait in the queue, and complete what is through. False: it is over."""
        with self._turn:
            if self._closing:
                lib().inspan_queue_wake(self.queue)  # the next one, too
                return False
            through = self._take(finished)
            with self._lock:
                self._idle -= 1
                # What runs in a callback may wait: somebody else must be there to end it.
                blocked = self._idle == 0 and len(self._threads) < _MOST_THREADS
                if blocked and any(work.has_future for work in through):
                    self._spawn()
        for work in through:
            work.complete()
        with self._lock:
            self._idle += 1
        return True

    def _break(self, error: BaseException) -> None:
        """A mistake in this file must not leave anybody waiting: all works end with it."""
        with self._lock:
            self._broken = error
            works = set(self._works.values())
            self._works.clear()
        for work in works:
            work.finished(error)
            work.complete()


def failure_of(comm: ctypes.c_void_p, name: str, status: int) -> CommError:
    """The exception for a status of this communicator: its first failure, or the bare status where it is healthy."""
    cause = Cause()
    if not comm or not lib().inspan_comm_cause(comm, ctypes.byref(cause)):
        return CommError(Status(status), f"{name}: {status_text(status)}")
    hints = {Status.TIMEOUT: "where that rank is only slow, give the group a longer timeout",
             Status.PEER_LOST: "the output of that rank may say more",
             Status.MISMATCH: "the ranks' scripts differ in what they call, or in the shapes of their tensors"}
    hint = hints.get(Status(cause.status))
    text = cause.text.decode(errors="replace") + (f"; {hint}" if hint else "")
    return CommError(Status(cause.status), f"{name}: {text}", cause.rank, cause.node.decode(errors="replace"),
                     cause.address.decode(errors="replace"), cause.operation.decode(errors="replace"), cause.waited_ns / 1e9)
