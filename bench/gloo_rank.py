"""One rank of an all-reduce measurement with PyTorch's Gloo; rank 0 prints JSON like `inspan bench allreduce`."""

import json
import resource
import statistics
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist


def main():
    rank, world, address, port, sizes, iterations = sys.argv[1:7]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://{address}:{port}", rank=int(rank), world_size=int(world),
                            timeout=timedelta(seconds=120))
    results = []
    for size in map(int, sizes.split(",")):
        data = torch.ones(size // 4)
        for _ in range(2):
            dist.all_reduce(data)
        dist.barrier()
        times, before = [], resource.getrusage(resource.RUSAGE_SELF)
        for _ in range(int(iterations)):
            data.fill_(1.0)
            start = time.perf_counter()
            dist.all_reduce(data)
            times.append(time.perf_counter() - start)
        after = resource.getrusage(resource.RUSAGE_SELF)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        assert data[0].item() == float(world)
        results.append({"bytes": size, "median_s": statistics.median(times), "min_s": min(times), "max_s": max(times),
                        "cpu_s": cpu / len(times)})
    if rank == "0":
        print(json.dumps({"results": results}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


main()
