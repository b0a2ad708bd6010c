"""Every operation of the group "inspan" against Gloo's, or, where Gloo has none, against what it must be.

Run as three ranks; each computes what all of them give from a seed.
"""

import gc
import os
import threading
from datetime import timedelta

import torch
import torch.distributed as dist

import inspan.torch

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
SIZES = [0, 7, 40_001]
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int32, torch.int64, torch.uint8, torch.int8, torch.int16]
OTHERS = [torch.bool, torch.complex64, torch.complex128]
GLOO_TYPES = {torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8, torch.int8}
Op = dist.ReduceOp
checks = 0


def given(rank, size, dtype, salt=0):
    """What rank gives: small numbers, so that every order of addition gives the same in all types."""
    numbers = (torch.arange(size, dtype=torch.int64) * 7 + rank * 3 + salt) % 5 + 1
    if dtype == torch.bool:
        return numbers % 2 == 0
    return (numbers * (1 + 2j)).to(dtype) if dtype.is_complex else numbers.to(dtype)


def same(found, expected, what):
    global checks
    checks += 1
    assert found.dtype == expected.dtype and found.shape == expected.shape, (what, found, expected)
    assert torch.equal(found, expected), (what, found, expected)


def reduced(op, dtype, size, salt=0):
    """The reduction, made here."""
    parts = [given(rank, size, dtype, salt) for rank in range(WORLD)]
    total = parts[0].clone()
    for part in parts[1:]:
        if op == Op.MIN:
            total = torch.minimum(total, part)
        elif op == Op.MAX:
            total = torch.maximum(total, part)
        elif op == Op.PRODUCT:
            total = total & part if dtype == torch.bool else total * part
        elif op == Op.BAND:
            total = total & part
        elif op == Op.BOR:
            total = total | part
        elif op == Op.BXOR:
            total = total ^ part
        else:
            total = total | part if dtype == torch.bool else total + part
    if op == Op.AVG:
        (torch.view_as_real(total) if dtype.is_complex else total).div_(WORLD)
    return total


def reductions(dtype):
    if dtype.is_complex:
        return [Op.SUM, Op.AVG]
    if dtype.is_floating_point:
        return [Op.SUM, Op.AVG, Op.PRODUCT, Op.MIN, Op.MAX]
    return [Op.SUM, Op.PRODUCT, Op.MIN, Op.MAX, Op.BAND, Op.BOR, Op.BXOR]


def check_reductions(ours, gloo):
    for dtype in FLOATS + INTEGERS + OTHERS:
        for op in reductions(dtype):
            for size in SIZES:
                what = (dtype, op, size)
                expected = reduced(op, dtype, size)
                if dtype in GLOO_TYPES and op != Op.AVG and size in (7, 40_001):
                    theirs = given(RANK, size, dtype)
                    dist.all_reduce(theirs, op, group=gloo)
                    same(expected, theirs, ("gloo", *what))
                tensor = given(RANK, size, dtype)
                dist.all_reduce(tensor, op, group=ours)
                same(tensor, expected, ("all_reduce", *what))
                tensor, root = given(RANK, size, dtype), size % WORLD
                dist.reduce(tensor, root, op, group=ours)
                same(tensor, expected if RANK == root else given(RANK, size, dtype), ("reduce", *what))
            output = torch.empty(33, dtype=dtype)
            dist.reduce_scatter(output, [given(RANK, 33, dtype, to) for to in range(WORLD)], op, group=ours)
            same(output, reduced(op, dtype, 33, RANK), ("reduce_scatter", dtype, op))
            whole = torch.cat([given(RANK, 1000, dtype, to) for to in range(WORLD)])
            output = torch.empty(1000, dtype=dtype)
            dist.reduce_scatter_tensor(output, whole, op, group=ours)
            same(output, reduced(op, dtype, 1000, RANK), ("reduce_scatter_tensor", dtype, op))
            views = list(whole.chunk(WORLD))  # one after the other: without a copy
            dist.reduce_scatter(output, views, op, group=ours)
            same(output, reduced(op, dtype, 1000, RANK), ("reduce_scatter of views", dtype, op))


def check_moves(ours):
    for dtype in FLOATS + INTEGERS + OTHERS + [torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn]:
        sizes = [7] if dtype in (torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn) else SIZES
        for size in sizes:
            def data(rank, salt=0):
                return given(rank, size, torch.int64, salt).to(dtype) if len(sizes) == 1 else given(rank, size, dtype, salt)

            def equal(found, expected, what):
                narrow = dtype == torch.float8_e4m3fn
                same(found.view(torch.uint8) if narrow else found, expected.view(torch.uint8) if narrow else expected,
                     (what, dtype, size))

            root = size % WORLD
            tensor = data(RANK)
            dist.broadcast(tensor, root, group=ours)
            equal(tensor, data(root), "broadcast")
            outputs = [torch.empty(size, dtype=dtype) for _ in range(WORLD)]
            dist.all_gather(outputs, data(RANK), group=ours)
            for rank in range(WORLD):
                equal(outputs[rank], data(rank), "all_gather")
            flat = torch.empty(size * WORLD, dtype=dtype)
            dist.all_gather_into_tensor(flat, data(RANK), group=ours)
            for rank in range(WORLD):
                equal(flat[rank * size:(rank + 1) * size], data(rank), "all_gather_into_tensor")
            own = flat[RANK * size:(RANK + 1) * size]  # in place
            dist.all_gather_into_tensor(flat, own, group=ours)
            equal(own, data(RANK), "all_gather_into_tensor in place")
            outputs = [torch.empty(size, dtype=dtype) for _ in range(WORLD)] if RANK == root else None
            dist.gather(data(RANK), outputs, root, group=ours)
            for rank, output in enumerate(outputs or []):
                equal(output, data(rank), "gather")
            output = torch.empty(size, dtype=dtype)
            dist.scatter(output, [data(root, to) for to in range(WORLD)] if RANK == root else None, root, group=ours)
            equal(output, data(root, RANK), "scatter")
            outputs = [torch.empty(size, dtype=dtype) for _ in range(WORLD)]
            dist.all_to_all(outputs, [data(RANK, to) for to in range(WORLD)], group=ours)
            for rank in range(WORLD):
                equal(outputs[rank], data(rank, RANK), "all_to_all")
            output = torch.empty(size * WORLD, dtype=dtype)
            dist.all_to_all_single(output, torch.cat([data(RANK, to) for to in range(WORLD)]), group=ours)
            for rank in range(WORLD):
                equal(output[rank * size:(rank + 1) * size], data(rank, RANK), "all_to_all_single")


def check_unequal(ours):
    """Parts of unlike lengths, some of nothing; several dimensions."""
    def rows(from_, to):
        return (from_ + 2 * to) % 4

    gives = torch.cat([given(RANK, rows(RANK, to) * 5, torch.float32, to).view(-1, 5) for to in range(WORLD)])
    gets = torch.empty(sum(rows(from_, RANK) for from_ in range(WORLD)), 5)
    dist.all_to_all_single(gets, gives, [rows(from_, RANK) for from_ in range(WORLD)], [rows(RANK, to) for to in range(WORLD)],
                           group=ours)
    same(gets, torch.cat([given(from_, rows(from_, RANK) * 5, torch.float32, RANK).view(-1, 5) for from_ in range(WORLD)]),
         "all_to_all_single with sizes")
    outputs = [torch.empty(rank * 3 + 1) for rank in range(WORLD)]
    dist.all_gather(outputs, given(RANK, RANK * 3 + 1, torch.float32), group=ours)
    for rank in range(WORLD):
        same(outputs[rank], given(rank, rank * 3 + 1, torch.float32), "all_gather of unlike lengths")


def views_of(size):
    """Tensors of (size, size) that do not lie contiguously, each with the memory around it."""
    memory = torch.full((size + 4, 2 * size + 4), -9.0)
    yield "column", memory[2:size + 2, 2:2 * size + 2:2], memory
    memory = torch.full((size + 4, size + 4), -9.0)
    yield "transpose", memory[2:size + 2, 2:size + 2].t(), memory
    memory = torch.full((size * size + 8,), -9.0)
    yield "offset", memory[4:size * size + 4].view(size, size), memory
    memory = torch.empty(1, size, size, 1).contiguous(memory_format=torch.channels_last)
    yield "channels last", memory[0, :, :, 0], memory


def check_views(ours):
    for size in (1, 5, 90):
        mine = [given(rank, size * size, torch.float32).view(size, size) for rank in range(WORLD)]
        for name, view, memory in views_of(size):
            outside = memory.clone()
            view.copy_(mine[RANK])
            dist.all_reduce(view, group=ours)
            same(view, sum(mine), ("all_reduce", name))
            view.copy_(mine[RANK])
            dist.broadcast(view, 1, group=ours)
            same(view, mine[1], ("broadcast", name))
            output = [view if rank == RANK else torch.empty(size, size) for rank in range(WORLD)]
            dist.all_gather(output, mine[RANK], group=ours)
            same(view, mine[RANK], ("all_gather", name))
            dist.scatter(view, [mine[to].t().t() for to in range(WORLD)] if RANK == 2 else None, 2, group=ours)
            same(view, mine[RANK], ("scatter", name))
            view.fill_(-9.0)  # whatever lies between its elements is what it was
            if name != "channels last":
                same(memory, outside, ("guards", name))
    turned = given(RANK, 12, torch.complex64).view(3, 4).conj()
    ours._get_backend(torch.device("cpu")).allreduce([turned], options(Op.SUM)).wait()
    total = reduced(Op.SUM, torch.complex64, 12).view(3, 4)
    same(turned.resolve_conj(), total.conj().resolve_conj(), "conjugate view")


def raises(kind, text, call):
    global checks
    checks += 1
    try:
        call()
    except kind as error:
        assert text in str(error), str(error)
        return
    raise AssertionError(f"expected {kind.__name__} with {text!r}")


def check_refusals(ours):
    one = torch.ones(1)
    raises(ValueError, "expanded tensor", lambda: dist.all_reduce(one.expand(4), group=ours))
    raises(ValueError, "use tensor.to_dense()", lambda: dist.all_reduce(torch.eye(3).to_sparse(), group=ours))
    raises(ValueError, "bitwise reductions are for integers", lambda: dist.all_reduce(one, Op.BAND, group=ours))
    raises(ValueError, "use torch.view_as_real",
           lambda: ours._get_backend(torch.device("cpu")).allreduce([torch.ones(2, dtype=torch.complex64)],
                                                                   options(Op.PRODUCT)))
    raises(ValueError, "use SUM", lambda: dist.all_reduce(torch.ones(2, dtype=torch.int32), Op.AVG, group=ours))
    raises(NotImplementedError, "names its sender", lambda: dist.recv(one, group=ours))
    raises(ValueError, "on meta; this process group carries tensors of the CPU",
           lambda: ours._get_backend(torch.device("cpu")).allreduce([torch.ones(2, device="meta")], options(Op.SUM)))
    dist.barrier(group=ours)  # nothing was sent: the group is as before


def options(op):
    wanted = dist.AllreduceOptions()
    wanted.reduceOp = op
    return wanted


def check_works(ours):
    tensor = torch.ones(4)
    work = dist.all_reduce(tensor, group=ours, async_op=True)
    future = work.get_future()
    values = []
    future.then(lambda done: values.append(done.value()[0].sum().item())).wait()
    same(torch.tensor(values), torch.tensor([4.0 * WORLD]), "a future's callback has the result")

    def inside(_):  # waits for another operation on the thread that completes futures
        other = torch.full((3,), 2.0)
        return dist.all_reduce(other, group=ours, async_op=True).get_future().wait()[0]

    nested = dist.all_reduce(torch.ones(2), group=ours, async_op=True).get_future().then(inside)
    same(nested.wait(), torch.full((3,), 2.0 * WORLD), "an operation within a callback")
    works, tensors = [], [torch.full((10 + k,), float(k)) for k in range(600)]  # more than may be pending at once
    for tensor in tensors:
        works.append(dist.all_reduce(tensor, group=ours, async_op=True))
    for k, (work, tensor) in enumerate(zip(works, tensors)):
        work.wait()
        same(tensor, torch.full((10 + k,), float(k * WORLD)), "many at once")


def check_pairs(ours):
    left, right = (RANK - 1) % WORLD, (RANK + 1) % WORLD
    for size in (0, 1, 100_000):
        got, other = torch.empty(size), torch.empty(size, dtype=torch.int16)
        works = [dist.irecv(got, left, tag=1, group=ours), dist.irecv(other, left, tag=2, group=ours),
                 dist.isend(given(RANK, size, torch.int16), right, tag=2, group=ours),
                 dist.isend(given(RANK, size, torch.float32), right, tag=1, group=ours)]
        for work in works:
            work.wait()
        same(got, given(left, size, torch.float32), "recv, tag 1")
        same(other, given(left, size, torch.int16), "recv, tag 2")
    ops = [dist.P2POp(dist.isend, given(RANK, 50, torch.float64), right, group=ours),
           dist.P2POp(dist.irecv, batch := torch.empty(50, dtype=torch.float64), left, group=ours)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    same(batch, given(left, 50, torch.float64), "batch_isend_irecv")


def check_coalesced(ours):
    backend = ours._get_backend(torch.device("cpu"))
    tensors = [given(RANK, 7, torch.float32), given(RANK, 12, torch.int64), given(RANK, 6, torch.float32).view(2, 3).t()]
    wanted = dist.distributed_c10d.AllreduceCoalescedOptions()
    backend.allreduce_coalesced(tensors, wanted).wait()
    same(tensors[0], reduced(Op.SUM, torch.float32, 7), "allreduce_coalesced")
    same(tensors[1], reduced(Op.SUM, torch.int64, 12), "allreduce_coalesced")
    same(tensors[2], reduced(Op.SUM, torch.float32, 6).view(2, 3).t(), "allreduce_coalesced")
    with dist._coalescing_manager(ours):
        first, second = given(RANK, 9, torch.float32), given(RANK, 5, torch.float32)
        dist.all_reduce(first, group=ours)
        dist.all_reduce(second, group=ours)
    same(first, reduced(Op.SUM, torch.float32, 9), "coalescing manager")
    same(second, reduced(Op.SUM, torch.float32, 5), "coalescing manager")
    flats = [torch.empty(4 * WORLD), torch.empty(6 * WORLD)]
    with dist._coalescing_manager(ours):
        dist.all_gather_into_tensor(flats[0], given(RANK, 4, torch.float32), group=ours)
        dist.all_gather_into_tensor(flats[1], given(RANK, 6, torch.float32), group=ours)
    for flat, size in zip(flats, (4, 6)):
        same(flat, torch.cat([given(rank, size, torch.float32) for rank in range(WORLD)]), "all_gather coalesced")
    outputs = [torch.empty(4), torch.empty(6)]
    wholes = [torch.cat([given(RANK, size, torch.float32, to) for to in range(WORLD)]) for size in (4, 6)]
    with dist._coalescing_manager(ours):
        for output, whole in zip(outputs, wholes):
            dist.reduce_scatter_tensor(output, whole, group=ours)
    for output, size in zip(outputs, (4, 6)):
        same(output, reduced(Op.SUM, torch.float32, size, RANK), "reduce_scatter coalesced")
    lists = [[torch.empty(3), torch.empty(2, dtype=torch.int32)] for _ in range(WORLD)]
    backend.allgather_coalesced(lists, [given(RANK, 3, torch.float32), given(RANK, 2, torch.int32)],
                                dist.distributed_c10d.AllgatherOptions()).wait()
    for rank in range(WORLD):
        same(lists[rank][0], given(rank, 3, torch.float32), "allgather_coalesced")
        same(lists[rank][1], given(rank, 2, torch.int32), "allgather_coalesced")


def check_objects(ours):
    objects = [None] * WORLD
    dist.all_gather_object(objects, {"rank": RANK, "text": "x" * (RANK * 1000)}, group=ours)
    assert [o["rank"] for o in objects] == list(range(WORLD)), objects
    sent = [{"from": RANK}, "text", 3]
    dist.broadcast_object_list(sent, 1, group=ours)
    assert sent == [{"from": 1}, "text", 3], sent
    got = [None]
    dist.scatter_object_list(got, [{"to": to} for to in range(WORLD)] if RANK == 0 else None, 0, group=ours)
    assert got == [{"to": RANK}], got
    gathered = [None] * WORLD if RANK == 2 else None
    dist.gather_object(RANK * 10, gathered, 2, group=ours)
    assert RANK != 2 or gathered == [0, 10, 20], gathered


def check_subgroups():
    pairs = [dist.new_group([0, 2], backend="inspan"), dist.new_group([2, 1], backend="inspan"),
             dist.new_group([1], backend="inspan")]
    for pair, members in zip(pairs, ([0, 2], [1, 2], [1])):
        if RANK not in members:
            continue
        tensor = given(RANK, 11, torch.float32)
        dist.all_reduce(tensor, group=pair)
        same(tensor, sum(given(rank, 11, torch.float32) for rank in members), ("subgroup", members))
        dist.broadcast(tensor, members[-1], group=pair)
        dist.barrier(group=pair)
        dist.destroy_process_group(pair)


def check_debug_wrapper():
    """TORCH_DISTRIBUTED_DEBUG=DETAIL puts a group of c10d's around each."""
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    wrapped = dist.new_group(backend="inspan")
    dist.set_debug_level(dist.DebugLevel.OFF)
    tensor = torch.ones(3)
    dist.all_reduce(tensor, group=wrapped)
    same(tensor, torch.full((3,), float(WORLD)), "debug wrapper")
    inspan.torch.monitored_barrier(wrapped)
    dist.destroy_process_group(wrapped)


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=40))
    gloo = dist.group.WORLD
    before = descriptors(), threading.active_count()
    ours = dist.new_group(backend="inspan")
    assert dist.get_backend(ours) == "inspan"
    with torch.no_grad():
        check_reductions(ours, gloo)
        for check in (check_moves, check_unequal, check_views, check_pairs, check_coalesced, check_objects, check_works,
                      check_refusals):
            check(ours)
    numbers = [None] * WORLD  # of collectives, so the same on all, whatever was sent between two
    dist.all_gather_object(numbers, ours._get_backend(torch.device("cpu"))._get_sequence_number_for_group())
    assert numbers == numbers[:1] * WORLD and numbers[0] > 100, numbers
    dist.monitored_barrier(group=ours)
    inspan.torch.monitored_barrier(ours, timedelta(seconds=20), wait_all_ranks=True)
    check_subgroups()
    check_debug_wrapper()
    dist.barrier(group=gloo)
    dist.destroy_process_group(ours)
    del ours
    gc.collect()
    after = descriptors(), threading.active_count()
    assert after == before, f"descriptors and threads: {before} before, {after} after"
    dist.barrier()
    dist.destroy_process_group()
    print(f"rank {RANK}: {checks} checks")


main()
