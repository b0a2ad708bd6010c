"""The process group "inspan" of PyTorch.

    import inspan.torch
    torch.distributed.init_process_group("inspan")

It carries tensors of the CPU over libinspan's communicator. DistributedDataParallel, FSDP, subgroups, DTensor and the
object collectives run on it as they are. docs/pytorch.md has the details.
"""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist

if not dist.is_available():
    raise ImportError(f"this PyTorch ({torch.__version__}) is built without torch.distributed")

from inspan._lib import CommError, Status  # noqa: E402
from inspan.torch._batchnorm import SyncBatchNorm  # noqa: E402
from inspan.torch._group import ProcessGroupInspan  # noqa: E402

__all__ = ["CommError", "ProcessGroupInspan", "Status", "SyncBatchNorm", "monitored_barrier"]


def _create(options: dist.distributed_c10d._DistributedBackendOptions, _: object) -> ProcessGroupInspan:
    timeout = options.timeout
    if not isinstance(timeout, timedelta):
        timeout = timedelta(seconds=float(timeout))
    return ProcessGroupInspan(options.store, options.group_rank, options.group_size, timeout,
                              list(options.global_ranks_in_group), options.group_id)


def monitored_barrier(group: dist.ProcessGroup | None = None, timeout: timedelta | None = None,
                      wait_all_ranks: bool = False) -> None:
    """A barrier of all ranks of the group (None: the default one) that names the ranks that do not come.

    timeout: None, the group's. wait_all_ranks: wait for all until then, and name all that are missing; else the first.
    Blocks. CommError: on rank 0 with status TIMEOUT and the names, on the others with what ended the group.
    """
    of = group if group is not None else dist.distributed_c10d._get_default_group()
    backend = of._get_backend(torch.device("cpu"))
    backend = getattr(backend, "wrapped_pg", backend)  # TORCH_DISTRIBUTED_DEBUG=DETAIL puts one around it
    if not isinstance(backend, ProcessGroupInspan):
        raise ValueError(f"inspan.torch.monitored_barrier: the group's backend is {dist.get_backend(of)}, not inspan")
    backend.monitored_barrier_for(timeout, wait_all_ranks)


dist.Backend.register_backend("inspan", _create, extended_api=True, devices=["cpu", "cuda"])
