"""FSDP, FSDP2, functional collectives and hooks of DDP: over Gloo, then over Inspan, the same losses. Run as two ranks."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

import inspan.torch  # noqa: F401: registers the group

RANK = int(os.environ["RANK"])


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(17, 33), nn.GELU(), nn.Sequential(nn.Linear(33, 40), nn.GELU()), nn.Linear(40, 5))


def train(model, steps=5):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    torch.manual_seed(20 + RANK)
    losses = []
    for _ in range(steps):
        loss = nn.functional.mse_loss(model(torch.randn(6, 17)), torch.randn(6, 5))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total = loss.detach().clone()
        dist.all_reduce(total, dist.ReduceOp.SUM)
        losses.append(total.item() / 2)
    return losses


def fsdp():
    return train(FullyShardedDataParallel(network(), device_id=torch.device("cpu"), use_orig_params=True))


def fsdp2():
    model = network()
    mesh = init_device_mesh("cpu", (2,))
    fully_shard(model[2], mesh=mesh)
    fully_shard(model, mesh=mesh)
    return train(model)


def fsdp2_mixed():
    model = network()
    mesh = init_device_mesh("cpu", (2,))
    fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
    return train(model)


def ddp_bf16_hook():
    model = DistributedDataParallel(network())
    model.register_comm_hook(dist.group.WORLD, default_hooks.bf16_compress_hook)
    return train(model)


def ddp_power_sgd():
    """Its hook waits for one operation within the callback of another."""
    torch.manual_seed(2)
    model = DistributedDataParallel(network())
    state = powerSGD_hook.PowerSGDState(dist.group.WORLD, matrix_approximation_rank=1, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return train(model)


def ddp_no_sync():
    """Gradients of two micro-batches, the first without a reduction."""
    model = DistributedDataParallel(network(), gradient_as_bucket_view=True)
    torch.manual_seed(30 + RANK)
    with model.no_sync():
        model(torch.randn(3, 17)).square().mean().backward()
    model(torch.randn(3, 17)).square().mean().backward()
    return [p.grad.double().norm().item() for p in model.parameters()]


def functional_collectives():
    """What DTensor and compiled code use."""
    group, mine = dist.group.WORLD, torch.arange(6.0) * (RANK + 1)
    results = [functional.all_reduce(mine, "sum", group), functional.all_gather_tensor(mine, 0, group),
               functional.reduce_scatter_tensor(mine, "sum", 0, group), functional.broadcast(mine, 1, group),
               functional.all_to_all_single(mine, None, None, group)]
    return [value for result in results for value in functional.wait_tensor(result).tolist()]


def batch_norm_of_unequal_batches():
    """Batches of 2 and 6 images of unlike sizes, and then none on a rank: as one process has it on all of them."""
    torch.manual_seed(4)
    images = [torch.randn(2, 3, 4, 5, dtype=torch.float64), torch.randn(6, 3, 2, 3, dtype=torch.float64)]
    values = []
    for step in range(3):
        if step == 2:
            images[1] = images[1][:0]  # rank 1 has nothing
        alone, ours = (nn.Sequential(nn.BatchNorm2d(3, momentum=None if step == 1 else 0.1).double()) for _ in range(2))
        with torch.no_grad():
            for layer in (alone[0], ours[0]):
                layer.weight.copy_(torch.tensor([0.5, 2.0, -1.0]))
                layer.bias.copy_(torch.tensor([0.1, 0.2, 0.3]))
        ours = inspan.torch.SyncBatchNorm.convert(ours)
        assert type(ours[0]) is inspan.torch.SyncBatchNorm
        # One process: the pixels of all images as one long image
        whole = torch.cat([x.transpose(0, 1).reshape(3, -1) for x in images], 1).unsqueeze(0).unsqueeze(-1)
        whole.requires_grad_()
        mine = images[RANK].clone().requires_grad_()
        for _ in range(2):
            (alone(whole) * whole.detach().cos()).sum().backward()
            (ours(mine) * mine.detach().cos()).sum().backward()
        sizes = [x.numel() // 3 for x in images]
        expected = whole.grad[0, :, :, 0].split(sizes, 1)[RANK]
        torch.testing.assert_close(mine.grad.transpose(0, 1).reshape(3, -1), expected, rtol=1e-9, atol=1e-12)
        for name in ("weight", "bias"):  # local sums: added up over ranks they are the whole's
            total = getattr(ours[0], name).grad.clone()
            dist.all_reduce(total)
            torch.testing.assert_close(total, getattr(alone[0], name).grad, rtol=1e-9, atol=1e-12)
        for name, buffer in ours[0].named_buffers():
            torch.testing.assert_close(buffer, getattr(alone[0], name), rtol=1e-9, atol=1e-12)
            copies = [torch.empty_like(buffer) for _ in range(2)]
            dist.all_gather(copies, buffer)
            assert torch.equal(copies[0], copies[1]), name  # the same bits
        ours.eval(), alone.eval()
        torch.testing.assert_close(ours(images[0]), alone(images[0]))
        values += ours[0].running_var.tolist()
    return values


def main():
    results = {}
    for backend in ("gloo", "inspan"):
        dist.init_process_group(backend, timeout=timedelta(seconds=40))
        for case in (fsdp, fsdp2, fsdp2_mixed, ddp_bf16_hook, ddp_power_sgd, ddp_no_sync, functional_collectives,
                     batch_norm_of_unequal_batches):
            results[backend, case.__name__] = case()
            dist.barrier()
        dist.destroy_process_group()
    for (backend, name), losses in results.items():
        if backend == "gloo":
            ours = results["inspan", name]
            assert all(abs(a - b) <= 1e-6 * abs(a) for a, b in zip(losses, ours, strict=True)), (name, losses, ours)
            print(f"rank {RANK}: {name}: {ours}")
    print(f"rank {RANK}: done")


main()
