"""One rank of an all-reduce measurement with PyTorch's Gloo, measured as `inspan bench allreduce` measures.

A barrier before each operation, its time is that of the slowest rank, three operations first that do not count. Rank 0
prints the same JSON.
"""

import json
import resource
import statistics
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

WARM_UP = 3


def main():
    rank, world, address, port, sizes, iterations = sys.argv[1:7]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://{address}:{port}", rank=int(rank), world_size=int(world),
                            timeout=timedelta(seconds=120))
    results = []
    for size in map(int, sizes.split(",")):
        data = torch.ones(size // 4)
        for _ in range(WARM_UP):
            dist.all_reduce(data)
        times, before = [], resource.getrusage(resource.RUSAGE_SELF)
        for _ in range(int(iterations)):
            data.fill_(1.0)
            dist.barrier()
            start = time.perf_counter()
            dist.all_reduce(data)
            times.append(time.perf_counter() - start)
        after = resource.getrusage(resource.RUSAGE_SELF)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        slowest = torch.tensor(times, dtype=torch.float64)  # of all ranks, for each operation
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        times = slowest.tolist()
        assert data[0].item() == float(world)
        results.append({"bytes": size, "median_s": statistics.median(times), "min_s": min(times), "max_s": max(times),
                        "cpu_s": cpu / len(times)})
    if rank == "0":
        print(json.dumps({"results": results}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


main()
