"""Several processes that train one network: torch's own launcher starts them (`torchrun -m pairingnet train ...`).

Each takes every n-th piece of a batch; gradients and counts are summed, so the step is that of one process with
the whole batch.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import torch
from torch import Tensor, distributed


def start() -> tuple[int, int]:
    """(rank, number of processes); joins the others where the launcher started several."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count > 1 and not distributed.is_initialized():
        distributed.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    return int(os.environ.get("RANK", "0")), count


def leave() -> None:
    """Part from the others when all are done: the one that keeps the list must not be gone while another reads it."""
    if distributed.is_available() and distributed.is_initialized():
        distributed.barrier()
        distributed.destroy_process_group()


def sum_over_processes(tensors: Iterable[Tensor]) -> None:
    """Add the tensors of all processes, in place; nothing to do in one."""
    if distributed.is_available() and distributed.is_initialized():
        for tensor in tensors:
            distributed.all_reduce(tensor)


def mean_over_processes(tensors: Iterable[Tensor]) -> None:
    """Average the tensors of all processes, in place."""
    if distributed.is_available() and distributed.is_initialized():
        for tensor in tensors:
            distributed.all_reduce(tensor)
            tensor.div_(distributed.get_world_size())
