"""A script as people have it: DistributedDataParallel over Gloo, started by torchrun. Prints rank 0's losses."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(),
                                    nn.Linear(8 * 64, 600), nn.ReLU(), nn.Linear(600, 10))
        self.unused = nn.Linear(3, 3)

    def forward(self, x):
        return self.layers(x)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(3)
    data = TensorDataset(torch.randn(96, 1, 8, 8), torch.randint(10, (96,)))
    sampler = DistributedSampler(data, shuffle=True, seed=5)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    torch.manual_seed(10 + rank)  # the wrapper sends rank 0's weights to all
    model = DistributedDataParallel(Net(), find_unused_parameters=True, bucket_cap_mb=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            total = loss.detach().clone()
            dist.all_reduce(total)
            losses.append(total.item() / dist.get_world_size())
    gathered = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, [p.sum().item() for p in model.parameters()])
    assert all(values == gathered[0] for values in gathered), "the ranks' weights differ"
    if int(os.environ["RANK"]) == 0:
        print("LOSSES", " ".join(f"{loss!r}" for loss in losses))
    dist.destroy_process_group()


main()
