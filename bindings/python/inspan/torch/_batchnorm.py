"""Batch normalisation over the batches of all ranks, on the CPU, where PyTorch's own refuses to run.

Ranks may have batches and images of unlike sizes: every element counts once. Each rank gives the number of its elements, their
mean and their squared distances from it per channel; these are put together in fp64 (Chan, Golub, LeVeque 1979), so that all
ranks have the same statistics, to the bit.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


def _channels(tensor: torch.Tensor) -> list[int]:
    """All dimensions but that of the channels."""
    return [dim for dim in range(tensor.dim()) if dim != 1]


def _per_channel(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """(channels) so that it meets the channels of like, in its type."""
    return values.to(like.dtype).view(1, -1, *[1] * (like.dim() - 2))


class _Normalize(torch.autograd.Function):
    """x (batch, channels, ...) normalised by the moments of all ranks' x. Gives those moments, too."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor | None, eps: float,
                group: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        world, channels, dims = dist.get_world_size(group), x.size(1), _channels(x)
        wide = x.double()
        count = x.numel() // channels
        mean = wide.mean(dims) if count > 0 else torch.zeros(channels, dtype=torch.float64)
        squares = (wide - _per_channel(mean, wide)).square().sum(dims)
        own = torch.cat([mean, squares, torch.tensor([float(count)], dtype=torch.float64)])
        rows = torch.empty(world * own.numel(), dtype=torch.float64)
        dist.all_gather_into_tensor(rows, own, group=group)
        rows = rows.view(world, -1)
        means, distances, counts = rows[:, :channels], rows[:, channels:-1], rows[:, -1:]
        total = counts.sum()
        if total < 1:
            raise ValueError("SyncBatchNorm: no rank has an element; expected at least one sample on some rank")
        mean = (means * counts).sum(0) / total
        squares = (distances + counts * (means - mean).square()).sum(0)
        inverse = (squares / total + eps).rsqrt()
        y = (x - _per_channel(mean, x)) * _per_channel(inverse, x)
        ctx.save_for_backward(y, weight, inverse, total)
        ctx.group = group
        if weight is not None:
            y = y * _per_channel(weight, x)
        ctx.mark_non_differentiable(mean, squares, total)
        return y, mean, squares, total

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None, None]:
        normal, weight, inverse, total = ctx.saved_tensors
        grad, dims = grads[0], _channels(normal)
        own_sum, own_product = grad.double().sum(dims), (grad.double() * normal.double()).sum(dims)
        grad_weight = own_product.to(weight.dtype) if weight is not None and ctx.needs_input_grad[1] else None
        if not ctx.needs_input_grad[0]:
            return None, grad_weight, None, None
        sums = torch.cat([own_sum, own_product])
        dist.all_reduce(sums, group=ctx.group)
        mean_grad, mean_product = (sums / total).chunk(2)
        scale = inverse if weight is None else inverse * weight.double()
        grad_x = grad - _per_channel(mean_grad, normal) - normal * _per_channel(mean_product, normal)
        return grad_x * _per_channel(scale, normal), grad_weight, None, None


class SyncBatchNorm(_BatchNorm):
    """Batch normalisation of x (batch, channels, ...) by the statistics of all ranks' batches, on the CPU.

    Arguments as of torch.nn.BatchNorm2d; process_group: None, the default one. In training every rank calls it, also one
    with an empty batch. The running statistics are the same on all ranks; the variance is the unbiased one of all elements.
    Evaluation, and a world of one, is plain batch normalisation. ValueError: x has fewer than two dimensions, or is not on
    the CPU.
    """

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = True,
                 track_running_stats: bool = True, process_group: dist.ProcessGroup | None = None,
                 device: Any = None, dtype: Any = None) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device=device, dtype=dtype)
        self.process_group = process_group

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"SyncBatchNorm: expected (batch, channels, ...), found {input.dim()} dimensions")
        if input.device.type != "cpu":
            raise ValueError(f"SyncBatchNorm: the input is on {input.device}; this one is for the CPU: use "
                             "torch.nn.SyncBatchNorm there")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self._check_input_dim(input)
        by_batch = self.training or not self.track_running_stats
        together = by_batch and self.training and dist.is_initialized() and dist.get_world_size(self.process_group) > 1
        if not together:
            return self._alone(input, by_batch)
        y, mean, squares, total = _Normalize.apply(input, self.weight, self.eps, self.process_group)
        if self.track_running_stats:
            self._remember(mean, squares, total)
        return y if self.bias is None else y + _per_channel(self.bias, y)

    def _alone(self, input: torch.Tensor, by_batch: bool) -> torch.Tensor:
        mean, variance = self.running_mean, self.running_var
        momentum = self.momentum
        if self.training and self.track_running_stats:
            self.num_batches_tracked.add_(1)
            momentum = 1.0 / float(self.num_batches_tracked) if momentum is None else momentum
        return nn.functional.batch_norm(input, mean, variance, self.weight, self.bias, by_batch, momentum or 0.0, self.eps)

    @torch.no_grad()
    def _remember(self, mean: torch.Tensor, squares: torch.Tensor, total: torch.Tensor) -> None:
        self.num_batches_tracked.add_(1)
        momentum = self.momentum if self.momentum is not None else 1.0 / float(self.num_batches_tracked)
        variance = squares / max(float(total) - 1.0, 1.0)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
        self.running_var.lerp_(variance.to(self.running_var.dtype), momentum)

    @classmethod
    def convert(cls, module: nn.Module, process_group: dist.ProcessGroup | None = None) -> nn.Module:
        """The module with every batch normalisation in it replaced by one of this class, with the same state."""
        if isinstance(module, _BatchNorm) and not isinstance(module, cls):
            new = cls(module.num_features, module.eps, module.momentum, module.affine, module.track_running_stats,
                      process_group)
            for name in ("weight", "bias"):
                setattr(new, name, getattr(module, name))
            for name in ("running_mean", "running_var", "num_batches_tracked"):
                setattr(new, name, getattr(module, name))
            new.training = module.training
            return new
        for name, child in module.named_children():
            setattr(module, name, cls.convert(child, process_group))
        return module
