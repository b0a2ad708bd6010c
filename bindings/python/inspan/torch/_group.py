"""The process group: c10d's operations, carried by libinspan's communicator."""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
import time
from datetime import timedelta
from typing import Any, Callable, Iterable, Sequence

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend, ErrorType

from inspan._lib import CommError, Error, Member, Options, Part, Status, lib
from inspan.torch import _meet, _tensors
from inspan.torch._work import Waiter, Work, failure_of

_FAILURE_TIMEOUT_S = 5.0
_MOST_PENDING = 200  # operations; the library's own limit is 256 with those of exchanges
_BARRIER_TAG = 0x8000_0000  # above what c10d can name
_GRACE_S = 5.0  # rank 0 finds out first who did not come to a monitored barrier, and says so

# Until they are shut down: c10d's C++ does not always keep the Python object. What is left at the end is closed in order.
_open_groups: "set[ProcessGroupInspan]" = set()

Start = Callable[[Any], int]  # the call of the library with a place for the handle: its status


def _failure_timeout_s() -> float:
    text = os.environ.get("INSPAN_FAILURE_TIMEOUT", "")
    if not text:
        return _FAILURE_TIMEOUT_S
    try:
        seconds = float(text.removesuffix("s"))
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds <= 3600:
        raise ValueError(f"INSPAN_FAILURE_TIMEOUT={text}: expected seconds from 1 to 3600, such as 5s")
    return seconds


def _only(name: str, tensors: Sequence[Any]) -> Any:
    if len(tensors) != 1:
        raise ValueError(f"inspan: {name}: expected one tensor (or one list of tensors) per rank, found {len(tensors)}")
    return tensors[0]


class ProcessGroupInspan(Backend):
    """One group of ranks. c10d makes it: `dist.init_process_group("inspan")`, `dist.new_group(...)`.

    Operations start at once, in the order of the calls, which is the same on all ranks, and complete on a thread of their
    own. The first failure ends the group on all its ranks, with the same error: CommError, which names the rank at fault.
    Tensors are the CPU's; shapes and types agree between ranks.
    """

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta, numbers: Sequence[int] = (),
                 name: str = "") -> None:
        """numbers: (size) the ranks' numbers in the whole job, for errors; default: 0, 1, ... Blocks until all are there."""
        super().__init__(rank, size)
        self._timeout = timeout
        self._numbers = list(numbers) or list(range(size))
        self._pid = os.getpid()
        self._calls = threading.Lock()  # the library takes one call at a time
        self._changed = threading.Condition()
        self._pending = 0
        self._sequence = 0
        self._comm = ctypes.c_void_p()
        self._scratch = _tensors.Scratch()
        self._options = Backend.Options("inspan", timeout)
        self._closed = False
        self._waiter = Waiter.share()
        try:
            self._open(store, timeout)
        except BaseException:
            self._closed = True
            self._waiter.leave()
            raise
        _open_groups.add(self)

    def _open(self, store: dist.Store, timeout: timedelta) -> None:
        rank, size = self.rank(), self.size()
        listener, port, error = ctypes.c_void_p(), ctypes.c_uint16(), Error()
        first, last = _meet.data_ports()
        if size > 1 and lib().inspan_listen(first, last, ctypes.byref(listener), ctypes.byref(port),
                                            ctypes.byref(error)) != Status.OK:
            raise error.raised(f"rank {self._numbers[rank]} cannot listen for the others")
        try:
            meeting = _meet.meet(store, rank, self._numbers, port.value, timeout)
            members = (Member * size)()
            for member, number, place, address in zip(members, self._numbers, meeting.places, meeting.addresses):
                member.number = number
                member.node = place.node.encode()[:63]
                member.address = address.encode()[:63]
                member.port = place.port
                member.incarnation = place.incarnation
            options = Options(io=self._waiter.io, listener=listener, job=meeting.job, view=1, rank=rank, world=size,
                              members=members, failure_timeout_ns=int(_failure_timeout_s() * 1e9))
            options.key[:] = meeting.key
            if lib().inspan_comm_open(ctypes.byref(options), ctypes.byref(self._comm), ctypes.byref(error)) != Status.OK:
                failed = error.raised(f"rank {self._numbers[rank]} cannot open the group")
                if failed.status in (Status.UNREACHABLE, Status.REFUSED):
                    failed.args = (f"{failed}; where a rank has several networks, name the interface that leads to the others "
                                   "in its INSPAN_SOCKET_IFNAME",)
                raise failed
        finally:
            lib().inspan_listener_close(listener)

    # ---- Works

    def _seconds(self, timeout: timedelta | None) -> float:
        unset = timeout is None or timeout <= timedelta(0)
        return (self._timeout if unset else timeout).total_seconds()

    def _begin(self, name: str, outputs: Iterable[torch.Tensor], timeout: timedelta | None, collective: bool = True) -> Work:
        """collective: all ranks call it, so it counts in the sequence that c10d compares between ranks."""
        work = Work(self, name, list(outputs), self._seconds(timeout))
        if collective:
            with self._changed:
                self._sequence += 1
                work.sequence = self._sequence
        return work

    def _wait_for_room(self, work: Work) -> None:
        """Until an operation of this group finishes."""
        with self._changed:
            before = self._pending
            while before > 0 and self._pending >= before:
                if not self._changed.wait(max(0.0, work.deadline - time.monotonic())):
                    raise CommError(Status.TIMEOUT, f"inspan: {work.name}: {before} operations of this group were pending for "
                                                    f"{work.timeout_s:.1f} s, and no more may be; wait for some of them")
        if before == 0:
            raise CommError(Status.LIMIT, f"inspan: {work.name} of {self.size()} ranks takes more operations than the 256 "
                                          "that may be pending; use smaller groups")

    def _start(self, work: Work, call: Start) -> None:
        """One operation more for the work. CommError: it, or the group, has failed."""
        operation = ctypes.c_void_p()
        while True:
            with self._calls:
                if self._closed:
                    raise self._closed_error()
                status = call(ctypes.byref(operation)) if self._pending < _MOST_PENDING else Status.LIMIT
                if status == Status.OK:
                    with self._changed:
                        self._pending += 1
                    with work._lock:
                        work.left += 1
                    self._waiter.add(operation, work)
                    return
            if status == Status.INVALID:
                raise ValueError(f"inspan: {work.name}: the library refused the call: do the tensors overlap?")
            if status != Status.LIMIT:
                raise self.failure(work.name, status)
            self._wait_for_room(work)

    def _run(self, work: Work, calls: Iterable[Start]) -> Work:
        """Start all; what keeps the work's tensors alive is in work.keep."""
        try:
            for call in calls:
                self._start(work, call)
        except BaseException as error:
            if work.finished(error):
                work.complete()
            raise
        if work.finished(None):  # of nothing
            work.complete()
        else:
            self._waiter.watch(work)
        return work

    def failure(self, name: str, status: int) -> CommError:
        """The exception for an operation of this group that ended with a status."""
        with self._calls:
            return self._closed_error() if self._closed else failure_of(self._comm, f"inspan: {name}", status)

    def _closed_error(self) -> CommError:
        return CommError(Status.ABORTED, "inspan: the process group was closed; nothing can be called on it any more")

    def expire(self, seconds: float) -> None:
        """A work's time is over: where an operation has been pending for so long, the group fails, naming who is waited for.

        What was started in the meantime does not count: half the time is long enough.
        """
        with self._calls:
            if not self._closed:
                lib().inspan_comm_expire(self._comm, max(1, int(seconds * 0.5e9)))

    def ended(self) -> None:
        """The waiter: one operation has."""
        with self._changed:
            self._pending -= 1
            self._changed.notify_all()

    # ---- All-reduce, reduce, reduce-scatter

    def _average(self, work: Work, tensor: torch.Tensor) -> None:
        """Divided as real numbers, which rounds alike on all machines."""
        parts = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        work.after.append(lambda: parts.div_(self.size()))

    def _reduce_in_place(self, work: Work, tensor: torch.Tensor, op: dist.ReduceOp,
                         call: Callable[[int, int, int, int, int], Start]) -> Start:
        """call(in, out, count, dtype, reduction) where tensor is both: its input is copied first."""
        count, dtype, reduction, average = _tensors.reduced(work.name, tensor, op)
        back: list[Callable[[], None]] = []
        out = _tensors.packed_output(work.name, tensor, back, keeps=True)
        copy, give_back = self._scratch.borrow(out)
        if average:
            self._average(work, out)
        work.after += back + [give_back]
        work.keep += [out, copy]
        return call(copy.data_ptr(), out.data_ptr(), count, dtype, reduction)

    def _allreduce(self, name: str, tensors: Sequence[torch.Tensor], opts: Any) -> Work:
        _tensors.check(name, tensors)
        work = self._begin(name, tensors, opts.timeout)

        def call(in_: int, out: int, count: int, dtype: int, reduction: int) -> Start:
            return lambda op: lib().inspan_allreduce(self._comm, in_, out, count, dtype, reduction, op)

        return self._run(work, [self._reduce_in_place(work, tensor, opts.reduceOp, call) for tensor in tensors])

    def allreduce(self, tensors: list[torch.Tensor], opts: Any) -> Work:
        """Each tensor becomes its reduction over ranks, in place."""
        return self._allreduce("allreduce", tensors, opts)

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any) -> Work:
        """The same of several tensors, those of a type as one operation."""
        name = "allreduce_coalesced"
        _tensors.check(name, tensors)
        work = self._begin(name, tensors, opts.timeout)
        flats = []
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
            group = [tensor.detach() for tensor in tensors if tensor.dtype == dtype]
            flat = torch.cat([tensor.reshape(-1) for tensor in group])
            flats.append(flat)
            for tensor, part in zip(group, flat.split([tensor.numel() for tensor in group])):
                _tensors.packed_output(name, tensor, [], keeps=False)  # may it be written to?
                work.after.append(lambda tensor=tensor, part=part: tensor.copy_(part.view(tensor.shape)))

        def call(in_: int, out: int, count: int, dtype: int, reduction: int) -> Start:
            return lambda op: lib().inspan_allreduce(self._comm, in_, out, count, dtype, reduction, op)

        copies = work.after
        work.after = []
        calls = [self._reduce_in_place(work, flat, opts.reduceOp, call) for flat in flats]
        work.after += copies
        return self._run(work, calls)

    def reduce(self, tensors: list[torch.Tensor], opts: Any) -> Work:
        """The root's tensor becomes the reduction; the others' stay as they are."""
        tensor = _only("reduce", tensors)
        _tensors.check("reduce", tensors)
        work = self._begin("reduce", tensors, opts.timeout)
        root = int(opts.rootRank)

        def call(in_: int, out: int, count: int, dtype: int, reduction: int) -> Start:
            return lambda op: lib().inspan_reduce(self._comm, in_, out, count, dtype, reduction, root, op)

        if self.rank() == root:
            return self._run(work, [self._reduce_in_place(work, tensor, opts.reduceOp, call)])
        count, dtype, reduction, _ = _tensors.reduced("reduce", tensor, opts.reduceOp)
        flat = _tensors.packed_input(tensor)
        work.keep.append(flat)
        return self._run(work, [call(flat.data_ptr(), 0, count, dtype, reduction)])

    def _reduce_scatter(self, work: Work, output: torch.Tensor, flat: torch.Tensor, op: dist.ReduceOp) -> Start:
        """output (n) = block `rank` of the reduction of flat (world x n), which is contiguous."""
        name = work.name
        if flat.dtype != output.dtype or flat.numel() != output.numel() * self.size():
            raise ValueError(f"inspan: {name}: expected an input of {self.size()} x {output.numel()} elements of "
                             f"{output.dtype}, found {flat.numel()} of {flat.dtype}")
        count, dtype, reduction, average = _tensors.reduced(name, output, op)
        back: list[Callable[[], None]] = []
        out = _tensors.packed_output(name, output, back, keeps=False)
        begin, end = flat.data_ptr(), flat.data_ptr() + flat.numel() * flat.element_size()
        if out.numel() > 0 and begin < out.data_ptr() + out.numel() * out.element_size() and out.data_ptr() < end:
            target, out = out, torch.empty_like(out)  # it lies within the input
            back.insert(0, lambda: target.copy_(out))
        if average:
            self._average(work, out)
        work.after += back
        work.keep += [out, flat]
        in_, to = flat.data_ptr(), out.data_ptr()
        return lambda handle: lib().inspan_reduce_scatter_blocks(self._comm, in_, to, count, dtype, reduction, handle)

    def reduce_scatter(self, output_tensors: list[torch.Tensor], input_tensors: list[list[torch.Tensor]], opts: Any) -> Work:
        """output = the reduction of the rank-th of (world) inputs, all of its shape."""
        name = "reduce_scatter"
        output, inputs = _only(name, output_tensors), _only(name, input_tensors)
        _tensors.check(name, [output, *inputs])
        if len(inputs) != self.size() or any(tensor.numel() != output.numel() for tensor in inputs):
            raise ValueError(f"inspan: {name}: expected {self.size()} inputs of {output.numel()} elements, found "
                             f"{[tensor.numel() for tensor in inputs]}")
        work = self._begin(name, [output], opts.timeout)
        return self._run(work, [self._reduce_scatter(work, output, self._one_input(inputs), opts.reduceOp)])

    def _one_input(self, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
        """The inputs one after the other: as they lie, or copied."""
        if _tensors.one_after_the_other(inputs):
            first = inputs[0].detach()
            return first.as_strided((len(inputs) * first.numel(),), (1,))
        return torch.cat([_tensors.packed_input(tensor).reshape(-1) for tensor in inputs])

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any) -> Work:
        """output (n, ...) = block `rank` of the reduction of input (world x n, ...)."""
        return self._reduce_scatter_all("reduce_scatter_single", [output], [input], opts)

    def reduce_scatter_single_coalesced(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any) -> Work:
        """The same of several tensors."""
        return self._reduce_scatter_all("reduce_scatter_single_coalesced", outputs, inputs, opts)

    def _reduce_scatter_all(self, name: str, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor],
                            opts: Any) -> Work:
        _tensors.check(name, [*outputs, *inputs])
        work = self._begin(name, outputs, opts.timeout)
        return self._run(work, [self._reduce_scatter(work, output, _tensors.packed_input(input_), opts.reduceOp)
                                for output, input_ in zip(outputs, inputs, strict=True)])

    # ---- All-gather, gather, scatter, all-to-all

    def _parts(self, tensors: Sequence[torch.Tensor], work: Work) -> Any:
        """What the library calls parts, of flat tensors by rank."""
        parts = (Part * len(tensors))()
        for part, tensor in zip(parts, tensors):
            part.data, part.count = tensor.data_ptr(), _tensors.carried(tensor)[0]
        work.keep += [parts, *tensors]
        return parts

    def _outputs(self, work: Work, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [_tensors.packed_output(work.name, tensor, work.after, keeps=False) for tensor in tensors]

    def _same(self, name: str, tensors: Sequence[torch.Tensor], like: torch.Tensor, exactly: int | None = None) -> None:
        """They have like's type, and (exactly: so many of them) its number of elements."""
        for index, tensor in enumerate(tensors):
            if tensor.dtype != like.dtype:
                raise ValueError(f"inspan: {name}: expected tensors of {like.dtype}, found {tensor.dtype} (tensor {index})")
        if exactly is None:
            return
        if len(tensors) != exactly or any(tensor.numel() != like.numel() for tensor in tensors):
            raise ValueError(f"inspan: {name}: expected {exactly} tensors of {like.numel()} elements, found "
                             f"{[tensor.numel() for tensor in tensors]}")

    def _exchange(self, work: Work, to: Sequence[torch.Tensor], from_: Sequence[torch.Tensor]) -> Start:
        """to[r] goes to rank r, from_[r] comes from it. Flat tensors of one type."""
        dtype = _tensors.carried(to[0])[1]
        gives, gets = self._parts(to, work), self._parts(from_, work)
        return lambda op: lib().inspan_alltoall(self._comm, gives, gets, dtype, op)

    def allgather(self, output_tensors: list[list[torch.Tensor]], input_tensors: list[torch.Tensor], opts: Any) -> Work:
        """outputs[r] (world) = rank r's input. Lengths may differ between ranks, where all name the same ones."""
        name = "allgather"
        outputs, input_ = _only(name, output_tensors), _only(name, input_tensors)
        return self._allgather_lists(name, [outputs], [input_], opts)

    def allgather_coalesced(self, output_lists: list[list[torch.Tensor]], input_list: list[torch.Tensor], opts: Any) -> Work:
        """The same of several inputs: output_lists[r][i] = rank r's input_list[i]."""
        name = "allgather_coalesced"
        if len(output_lists) != self.size() or any(len(outputs) != len(input_list) for outputs in output_lists):
            raise ValueError(f"inspan: {name}: expected {self.size()} lists of {len(input_list)} outputs, found lists of "
                             f"{[len(outputs) for outputs in output_lists]}")
        return self._allgather_lists(name, [list(outputs) for outputs in zip(*output_lists)], input_list, opts)

    def _allgather_lists(self, name: str, lists: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor],
                         opts: Any) -> Work:
        for outputs, input_ in zip(lists, inputs, strict=True):
            _tensors.check(name, [*outputs, input_])
            self._same(name, outputs, input_)
            if len(outputs) != self.size() or outputs[self.rank()].numel() != input_.numel():
                raise ValueError(f"inspan: {name}: expected {self.size()} outputs, the own one of {input_.numel()} elements, "
                                 f"found {[tensor.numel() for tensor in outputs]}")
        work = self._begin(name, [tensor for outputs in lists for tensor in outputs], opts.timeout)
        calls = []
        for outputs, input_ in zip(lists, inputs):
            flat = _tensors.packed_input(input_)
            calls.append(self._exchange(work, [flat] * self.size(), self._outputs(work, outputs)))
        return self._run(work, calls)

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any) -> Work:
        """output (world x n, ...) = the inputs (n, ...) of all ranks."""
        return self._allgather_all("all_gather_single", [output], [input], opts)

    def all_gather_single_coalesced(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any) -> Work:
        """The same of several tensors."""
        return self._allgather_all("all_gather_single_coalesced", outputs, inputs, opts)

    def _allgather_all(self, name: str, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any) -> Work:
        _tensors.check(name, [*outputs, *inputs])
        work = self._begin(name, outputs, opts.timeout)
        return self._run(work, [self._allgather_blocks(work, output, input_)
                                for output, input_ in zip(outputs, inputs, strict=True)])

    def _allgather_blocks(self, work: Work, output: torch.Tensor, input_: torch.Tensor) -> Start:
        if input_.dtype != output.dtype or output.numel() != input_.numel() * self.size():
            raise ValueError(f"inspan: {work.name}: expected an output of {self.size()} x {input_.numel()} elements of "
                             f"{input_.dtype}, found {output.numel()} of {output.dtype}")
        flat, out = _tensors.packed_input(input_), self._outputs(work, [output])[0]
        begin, end = out.data_ptr(), out.data_ptr() + out.numel() * out.element_size()
        size = flat.numel() * flat.element_size()
        within = size > 0 and begin < flat.data_ptr() + size and flat.data_ptr() < end
        if within and flat.data_ptr() != begin + self.rank() * size:
            flat = flat.clone()  # it lies in the output, but not where it will be
        count, dtype = _tensors.carried(flat)
        work.keep += [flat, out]
        in_, to = flat.data_ptr(), out.data_ptr()
        return lambda op: lib().inspan_allgather_blocks(self._comm, in_, to, count, dtype, op)

    def gather(self, output_tensors: list[list[torch.Tensor]], input_tensors: list[torch.Tensor], opts: Any) -> Work:
        """The root's outputs[r] = rank r's input, all of one shape."""
        name = "gather"
        input_ = _only(name, input_tensors)
        root, is_root = int(opts.rootRank), self.rank() == int(opts.rootRank)
        outputs = _only(name, output_tensors) if is_root else []
        _tensors.check(name, [*outputs, input_])
        self._same(name, outputs, input_, self.size() if is_root else None)
        work = self._begin(name, outputs, opts.timeout)
        flat = _tensors.packed_input(input_)
        work.keep.append(flat)
        count, dtype = _tensors.carried(flat)
        parts = self._parts(self._outputs(work, outputs), work) if is_root else None
        return self._run(work, [lambda op: lib().inspan_gather(self._comm, flat.data_ptr(), count, parts, dtype, root, op)])

    def scatter(self, output_tensors: list[torch.Tensor], input_tensors: list[list[torch.Tensor]], opts: Any) -> Work:
        """Rank r's output = the root's inputs[r], all of one shape."""
        name = "scatter"
        output = _only(name, output_tensors)
        root, is_root = int(opts.rootRank), self.rank() == int(opts.rootRank)
        inputs = _only(name, input_tensors) if is_root else []
        _tensors.check(name, [output, *inputs])
        self._same(name, inputs, output, self.size() if is_root else None)
        work = self._begin(name, [output], opts.timeout)
        parts = self._parts([_tensors.packed_input(tensor) for tensor in inputs], work) if is_root else None
        out = self._outputs(work, [output])[0]
        work.keep.append(out)
        count, dtype = _tensors.carried(out)
        return self._run(work, [lambda op: lib().inspan_scatter(self._comm, parts, out.data_ptr(), count, dtype, root, op)])

    def alltoall(self, output_tensors: list[torch.Tensor], input_tensors: list[torch.Tensor], opts: Any) -> Work:
        """outputs[r] = rank r's inputs[own rank]."""
        name = "alltoall"
        _tensors.check(name, [*output_tensors, *input_tensors])
        if len(output_tensors) != self.size() or len(input_tensors) != self.size():
            raise ValueError(f"inspan: {name}: expected {self.size()} inputs and outputs, found {len(input_tensors)} and "
                             f"{len(output_tensors)}")
        self._same(name, [*output_tensors, *input_tensors], input_tensors[0])
        work = self._begin(name, output_tensors, opts.timeout)
        gives = [_tensors.packed_input(tensor) for tensor in input_tensors]
        return self._run(work, [self._exchange(work, gives, self._outputs(work, output_tensors))])

    def _splits(self, name: str, tensor: torch.Tensor, sizes: Sequence[int]) -> list[int]:
        """Rows per rank: as given, or the same for all."""
        rows = tensor.size(0) if tensor.dim() > 0 else tensor.numel()
        if not sizes:
            if rows % self.size() != 0:
                raise ValueError(f"inspan: {name}: {rows} rows do not split evenly over {self.size()} ranks; give the sizes")
            return [rows // self.size()] * self.size()
        if len(sizes) != self.size() or sum(sizes) != rows or min(sizes) < 0:
            raise ValueError(f"inspan: {name}: expected {self.size()} sizes that add up to {rows} rows, found {list(sizes)}")
        return list(sizes)

    def all_to_all_single(self, output: torch.Tensor, input: torch.Tensor, output_split_sizes: Sequence[int],
                          input_split_sizes: Sequence[int], opts: Any) -> Work:
        """Rows of input go to the ranks in turn, rows of output come from them; sizes: rows per rank, none: even."""
        name = "all_to_all_single"
        _tensors.check(name, [output, input])
        self._same(name, [output], input)
        gives, gets = self._splits(name, input, input_split_sizes), self._splits(name, output, output_split_sizes)
        work = self._begin(name, [output], opts.timeout)
        flat, out = _tensors.packed_input(input), self._outputs(work, [output])[0]
        work.keep += [flat, out]
        return self._run(work, [self._exchange(work, flat.split(gives) if flat.dim() else [flat],
                                               out.split(gets) if out.dim() else [out])])

    # ---- Broadcast, send, receive, barriers

    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> Work:
        """Every rank's tensors become the root's."""
        _tensors.check("broadcast", tensors)
        work = self._begin("broadcast", tensors, opts.timeout)
        root = int(opts.rootRank)
        calls = []
        for tensor in tensors:
            flat = _tensors.packed_input(tensor) if self.rank() == root else self._outputs(work, [tensor])[0]
            calls.append(self._broadcast(work, flat, root))
        return self._run(work, calls)

    def _broadcast(self, work: Work, flat: torch.Tensor, root: int) -> Start:
        work.keep.append(flat)
        count, dtype = _tensors.carried(flat)
        return lambda op: lib().inspan_broadcast(self._comm, flat.data_ptr(), count, dtype, root, op)

    def send(self, tensors: list[torch.Tensor], dst: int, tag: int = 0) -> Work:
        """Finished once the receiver has it: never before its receive has begun."""
        tensor = _only("send", tensors)
        _tensors.check("send", tensors)
        work = self._begin("send", [], None, collective=False)
        flat = _tensors.packed_input(tensor)
        work.keep.append(flat)
        count, dtype = _tensors.carried(flat)
        return self._run(work, [lambda op: lib().inspan_send(self._comm, flat.data_ptr(), count, dtype, dst, tag, op)])

    def recv(self, tensors: list[torch.Tensor], src: int, tag: int = 0) -> Work:
        """The first send of src with this tag that no receive has met; shape and type are the sender's."""
        tensor = _only("recv", tensors)
        _tensors.check("recv", tensors)
        work = self._begin("recv", tensors, None, collective=False)
        work.source = src
        out = self._outputs(work, [tensor])[0]
        work.keep.append(out)
        count, dtype = _tensors.carried(out)
        return self._run(work, [lambda op: lib().inspan_receive(self._comm, out.data_ptr(), count, dtype, src, tag, op)])

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int = 0) -> Work:
        """Not there: data go straight into the receiver's memory, so a sender must be told of each receive."""
        raise NotImplementedError("inspan: recv from any rank is not supported, for a receive names its sender: use "
                                  "dist.recv(tensor, src=RANK), or one dist.irecv per rank")

    def barrier(self, opts: Any) -> Work:
        """Finished once all ranks have called it."""
        work = self._begin("barrier", [], opts.timeout)
        return self._run(work, [lambda op: lib().inspan_barrier(self._comm, op)])

    def monitored_barrier(self, opts: Any, wait_all_ranks: bool = False) -> None:
        """dist.monitored_barrier: as monitored_barrier_for."""
        self.monitored_barrier_for(opts.timeout, wait_all_ranks)

    def monitored_barrier_for(self, timeout: timedelta | None, wait_all_ranks: bool = False) -> None:
        """A barrier that names the ranks that do not come: all of them (wait_all_ranks) or the first. Blocks.

        CommError with status TIMEOUT on rank 0, which says who is missing; the group has then failed on all ranks.
        """
        seconds = self._seconds(timeout)
        token = torch.zeros(1, dtype=torch.uint8)
        if self.rank() != 0:
            self._report(token, seconds + _GRACE_S)
            return
        until = time.monotonic() + seconds
        arrivals = {rank: self._transfer("monitored_barrier", False, token.clone(), rank, seconds + _GRACE_S)
                    for rank in range(1, self.size())}
        missing = []
        for rank, work in arrivals.items():
            if work.wait_quietly(until - time.monotonic()):
                work.wait()  # raises where the group has failed
            else:
                missing.append(rank)
                if not wait_all_ranks:
                    break
        if missing:
            self._give_up(missing, seconds)
        for work in [self._transfer("monitored_barrier", True, token, rank, seconds) for rank in arrivals]:
            work.wait()

    def _report(self, token: torch.Tensor, seconds: float) -> None:
        """Of the other ranks: tell rank 0 that this one is there, and wait for its answer."""
        answer = self._transfer("monitored_barrier", False, token.clone(), 0, seconds)
        self._transfer("monitored_barrier", True, token, 0, seconds).wait()
        answer.wait()

    def _transfer(self, name: str, send: bool, tensor: torch.Tensor, peer: int, seconds: float) -> Work:
        work = self._begin(name, [], timedelta(seconds=seconds), collective=False)
        work.keep.append(tensor)
        call = lib().inspan_send if send else lib().inspan_receive
        count, dtype = _tensors.carried(tensor)
        return self._run(work, [lambda op: call(self._comm, tensor.data_ptr(), count, dtype, peer, _BARRIER_TAG, op)])

    def _give_up(self, missing: Sequence[int], seconds: float) -> None:
        numbers = [self._numbers[rank] for rank in missing]
        names = ", ".join(f"rank {number}" for number in numbers)
        text = f"monitored_barrier: {names} did not come within {seconds:.1f} s"
        with self._calls:
            if not self._closed:
                lib().inspan_comm_abort(self._comm, text.encode())
        raise CommError(Status.TIMEOUT, f"inspan: {text}; the output of {'that rank' if len(numbers) == 1 else 'those ranks'} "
                                        "says what kept it", numbers[0], operation="monitored_barrier", waited_s=seconds)

    # ---- What c10d asks and tells

    def getBackendName(self) -> str:
        return "inspan"

    @property
    def options(self) -> Any:
        return self._options

    @property
    def supports_splitting(self) -> bool:
        return False

    @property
    def supports_coalescing(self) -> bool:
        return False

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout
        self._options._timeout = timeout

    _set_default_timeout = set_timeout

    def _set_sequence_number_for_group(self) -> None:
        """They begin at 0 everywhere."""

    def _get_sequence_number_for_group(self) -> int:
        """How many collectives were started: the same on all ranks."""
        return self._sequence

    def get_error(self) -> Any:
        error = self.failure("group", Status.OK)
        if error.status == Status.OK:
            return ErrorType.SUCCESS
        return ErrorType.TIMEOUT if error.status == Status.TIMEOUT else ErrorType.REMOTE_ERROR

    # Names before PyTorch 2.14 or so.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    # ---- The end

    def abort(self) -> None:
        """Give up: the group fails on all ranks at once."""
        with self._calls:
            if not self._closed and self._pid == os.getpid():
                lib().inspan_comm_abort(self._comm, b"the process group was aborted")
        self.shutdown()

    def shutdown(self) -> None:
        """Close sockets; what is still pending fails on all ranks. Blocks for a second at most. Again: nothing."""
        if self._pid != os.getpid():  # a forked child: the sockets are its parent's
            return
        with self._calls:
            if self._closed:
                return
            self._closed = True
            _open_groups.discard(self)
            comm, self._comm = self._comm, ctypes.c_void_p()
        lib().inspan_comm_close(comm)
        with self._changed:
            self._changed.wait_for(lambda: self._pending == 0, timeout=1.0)
        self._waiter.leave()


@atexit.register
def _close_all() -> None:
    for group in list(_open_groups):
        group.shutdown()
