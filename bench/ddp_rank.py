"""One rank of a data-parallel training of a GPT with PyTorch (DDP, Gloo), or alone: the same work as Inspan's native one.

usage: ddp_rank.py RANK ADDRESS PORT SHARE,SHARE,... STEPS WARM LAYERS HEADS DIM CONTEXT [BUCKET_MB HOOK]
SHARE: samples of a step, of each rank. HOOK: none or bf16. Rank 0 prints {"samples_per_s": ...} over STEPS steps behind WARM ones.
"""

import json
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from train_step import VOCABULARY, Gpt


def main():
    rank, address, port, shares, steps, warm, layers, heads, dim, context = sys.argv[1:11]
    megabytes, hook = sys.argv[11:13] if len(sys.argv) > 11 else (25, "none")
    rank, steps, warm, context = int(rank), int(steps), int(warm), int(context)
    shares = [int(share) for share in shares.split(",")]
    world, batch, own = len(shares), sum(shares), shares[rank]
    torch.set_num_threads(1)
    torch.manual_seed(1)
    gpt = model = Gpt({"layers": int(layers), "heads": int(heads), "dim": int(dim)}, context)
    if world > 1:
        dist.init_process_group("gloo", init_method=f"tcp://{address}:{port}", rank=rank, world_size=world,
                                timeout=timedelta(seconds=300))
        model = torch.nn.parallel.DistributedDataParallel(gpt, gradient_as_bucket_view=True, bucket_cap_mb=int(megabytes))
        if hook == "bf16":
            model.register_comm_hook(None, bf16_compress_hook)
    optimizer = torch.optim.AdamW(gpt.parameters(), lr=1e-3)
    choose = torch.Generator().manual_seed(rank)
    for step in range(warm + steps):
        if step == warm:
            start = time.perf_counter()
        tokens = torch.randint(0, VOCABULARY, (own, context + 1), generator=choose)
        # DDP takes the mean over ranks: each weighs as much as it has samples.
        loss = model(tokens[:, :-1], tokens[:, 1:]) * (own * world / batch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(gpt.parameters(), 1.0)
        optimizer.step()
    if rank == 0:
        print(json.dumps({"samples_per_s": steps * batch / (time.perf_counter() - start)}), flush=True)
    if world > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
