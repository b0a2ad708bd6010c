"""Tensors as the library sees them: a pointer, a number of elements, a type.

What lies contiguously goes by pointer, without a copy. Everything else (a column, a transpose, channels-last, a conjugate
view) is packed into a contiguous tensor before, and unpacked after.
"""

from __future__ import annotations

import threading
from typing import Callable, Sequence

import torch
import torch.distributed as dist

from inspan._lib import Dtype, Reduction

_OWN = {torch.float32: Dtype.FP32, torch.float64: Dtype.FP64, torch.float16: Dtype.FP16, torch.bfloat16: Dtype.BF16,
        torch.int32: Dtype.INT32, torch.int64: Dtype.INT64, torch.uint8: Dtype.UINT8, torch.int8: Dtype.INT8,
        torch.int16: Dtype.INT16, torch.bool: Dtype.UINT8}
_BY_SIZE = {1: Dtype.UINT8, 2: Dtype.INT16, 4: Dtype.INT32, 8: Dtype.INT64}
_COMPLEX = {torch.complex64: Dtype.FP32, torch.complex128: Dtype.FP64}
_UNSIGNED = {torch.uint16: Dtype.INT16, torch.uint32: Dtype.INT32, torch.uint64: Dtype.INT64}
_RedOp = dist.ReduceOp.RedOpType
_REDUCTIONS = {_RedOp.SUM: Reduction.SUM, _RedOp.AVG: Reduction.SUM, _RedOp.PRODUCT: Reduction.PRODUCT,
               _RedOp.MIN: Reduction.MIN, _RedOp.MAX: Reduction.MAX, _RedOp.BAND: Reduction.BIT_AND,
               _RedOp.BOR: Reduction.BIT_OR, _RedOp.BXOR: Reduction.BIT_XOR}
# Truth values are 0 and 1, and stay so.
_TRUTH = {Reduction.SUM: Reduction.MAX, Reduction.PRODUCT: Reduction.MIN}


def check(name: str, tensors: Sequence[torch.Tensor]) -> None:
    """What the group cannot carry is refused by name, before a byte is sent. ValueError."""
    for index, tensor in enumerate(tensors):
        what = f"inspan: {name}: tensor {index}"
        if tensor.device.type != "cpu":
            raise ValueError(f"{what} is on {tensor.device}; this process group carries tensors of the CPU: move it there "
                             "(tensor.cpu()), or give each device its own group "
                             "(init_process_group('cpu:inspan,cuda:nccl'))")
        if tensor.layout != torch.strided:
            raise ValueError(f"{what} is {tensor.layout}; this process group carries dense tensors: use tensor.to_dense() "
                             "(of an embedding: sparse=False)")


def is_flat(tensor: torch.Tensor) -> bool:
    """Do its elements lie one after the other, as they are?"""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def _overlaps_itself(tensor: torch.Tensor) -> bool:
    return any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.size()))


def packed_input(tensor: torch.Tensor) -> torch.Tensor:
    """The same values, one after the other."""
    tensor = tensor.detach()
    return tensor if is_flat(tensor) else tensor.resolve_conj().resolve_neg().contiguous()


def packed_output(name: str, tensor: torch.Tensor, after: list[Callable[[], None]], keeps: bool) -> torch.Tensor:
    """Where a result for this tensor may be written one element after the other; `after` then has the way back.

    keeps: what is there now is read, too. ValueError where two elements share memory.
    """
    tensor = tensor.detach()
    if is_flat(tensor):
        return tensor
    if _overlaps_itself(tensor):
        raise ValueError(f"inspan: {name}: a result cannot be written to an expanded tensor (strides {tensor.stride()}): "
                         "several of its elements share memory; use tensor.clone()")
    flat = tensor.resolve_conj().resolve_neg().contiguous() if keeps else torch.empty(tensor.shape, dtype=tensor.dtype)
    after.append(lambda: tensor.copy_(flat))
    return flat


def carried(tensor: torch.Tensor) -> tuple[int, Dtype]:
    """Number of elements and type, for moving alone: a type that the library does not have goes as integers of its size."""
    count = tensor.numel()
    if tensor.dtype in _OWN:
        return count, _OWN[tensor.dtype]
    if tensor.dtype in _COMPLEX:
        return 2 * count, _COMPLEX[tensor.dtype]
    size = tensor.element_size()
    return (2 * count, Dtype.INT64) if size == 16 else (count, _BY_SIZE[size])


def reduced(name: str, tensor: torch.Tensor, op: dist.ReduceOp) -> tuple[int, Dtype, Reduction, bool]:
    """Number of elements, type, reduction, and whether the result is to be divided by the world. ValueError."""
    kind = op.op if hasattr(op, "op") else op
    if kind not in _REDUCTIONS:
        raise ValueError(f"inspan: {name}: there is no reduction {kind}; there are "
                         f"{', '.join(known.name for known in _REDUCTIONS)}")
    reduction, average = _REDUCTIONS[kind], kind == _RedOp.AVG
    bitwise = reduction in (Reduction.BIT_AND, Reduction.BIT_OR, Reduction.BIT_XOR)
    dtype, count = tensor.dtype, tensor.numel()
    wrong = f"inspan: {name}: {kind.name} of {dtype} is not defined"
    if average and not (dtype.is_floating_point or dtype.is_complex):
        raise ValueError(f"{wrong}: an average of integers would be cut; use SUM, and divide by the world's size")
    if dtype in _COMPLEX:
        if reduction != Reduction.SUM:
            raise ValueError(f"{wrong}: complex numbers are only added; use torch.view_as_real for their parts")
        return 2 * count, _COMPLEX[dtype], reduction, average
    if dtype in _UNSIGNED:
        if reduction in (Reduction.MIN, Reduction.MAX):
            raise ValueError(f"{wrong} here: convert to a signed type that holds the values")
        return count, _UNSIGNED[dtype], reduction, average
    if dtype not in _OWN:
        raise ValueError(f"{wrong}: convert it to one of {', '.join(str(known) for known in _OWN)}")
    if bitwise and dtype.is_floating_point:
        raise ValueError(f"{wrong}: bitwise reductions are for integers and bool")
    if dtype == torch.bool:
        reduction = _TRUTH.get(reduction, reduction)
    return count, _OWN[dtype], reduction, average


def one_after_the_other(tensors: Sequence[torch.Tensor]) -> bool:
    """Are they views of one memory, equally long, contiguous, and consecutive?"""
    first = tensors[0]
    size = first.numel() * first.element_size()
    return all(tensor.dtype == first.dtype and tensor.numel() == first.numel() and is_flat(tensor)
               and tensor.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
               and tensor.data_ptr() == first.data_ptr() + index * size for index, tensor in enumerate(tensors))


class Scratch:
    """Memory that operations borrow: an all-reduce in place needs its input twice. Kept, so that training allocates once."""

    _MOST_KEPT = 256 << 20  # bytes
    _LEAST = 4096

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[int, list[torch.Tensor]] = {}
        self._bytes = 0

    def borrow(self, like: torch.Tensor) -> tuple[torch.Tensor, Callable[[], None]]:
        """A flat copy of a flat tensor, and what gives its memory back."""
        size = like.numel() * like.element_size()
        room = max(self._LEAST, 1 << (size - 1).bit_length() if size > 0 else 0)
        if room > 2 * self._LEAST and size <= room - room // 4:
            room -= room // 4  # finer steps: at most a third is unused
        with self._lock:
            kept = self._kept.get(room)
            memory = kept.pop() if kept else None
            if memory is not None:
                self._bytes -= room
        if memory is None:
            memory = torch.empty(room, dtype=torch.uint8)
        copy = memory[:size].view(like.dtype)
        copy.copy_(like.reshape(-1))
        return copy, lambda: self._give_back(memory, room)

    def _give_back(self, memory: torch.Tensor, room: int) -> None:
        with self._lock:
            if self._bytes + room <= self._MOST_KEPT:
                self._bytes += room
                self._kept.setdefault(room, []).append(memory)
