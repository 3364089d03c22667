"""On which device the metrics of a test set with queries are computed: the network's, where they fit."""

import logging

import numpy as np
import torch
from torch import distributed as dist

from pml_ext.metrics.opis_settings import OPISSettings
from pml_ext.runner.data.datasets import OpenSet

log = logging.getLogger("pml_ext")

# Measured: 5 copies of the embeddings under TEST.NORMALIZE and 0.25 GB of blocks; more of these where most pairs tie.
_COPIES, _BLOCKS = 6, 2**31
_OF_A_CLASS = 64  # bytes a threshold
_OF_A_DRAWN_PAIR = 60


def device_with_room(size: int, device: torch.device, group: dist.ProcessGroup | None) -> torch.device:
    """`device` if it has `size` bytes free, on every rank of a group that exchanges its tensors; else the CPU.

    The CPU, too, for devices that do not tell what is free; one of them is MPS, which has no float64 either.
    """
    if device.type == "cpu":
        return device
    lacks = size - _free_bytes(device)
    if group is not None:  # all ranks need the same answer
        lacks_most = torch.tensor(lacks, device=device)
        dist.all_reduce(lacks_most, dist.ReduceOp.MAX, group=group)
        lacks = int(lacks_most)
    if lacks <= 0:
        return device
    log.info("metrics are computed on the CPU: they need %d MB, %d more than %s has", size >> 20, lacks >> 20, device)
    return torch.device("cpu")


def _free_bytes(device: torch.device) -> int:
    module = torch.get_device_module(device)
    if not hasattr(module, "mem_get_info"):
        return 0
    # What torch keeps from earlier tensors is free for new ones.
    return int(module.mem_get_info(device)[0] + module.memory_reserved(device) - module.memory_allocated(device))


def bytes_to_measure(data: OpenSet, dimension: int, opis: OPISSettings) -> int:
    """At most what the calculators take at a time, beside what their caller has."""
    sizes = np.unique(np.concatenate([part.identities for part in data.parts]), return_counts=True)[1]
    drawn = (opis.negatives_per_positive or 0) * int((sizes * (sizes - 1) // 2).sum())
    embeddings = 4 * dimension * int(sizes.sum())
    return _COPIES * embeddings + _BLOCKS + _OF_A_CLASS * len(sizes) * opis.grid + _OF_A_DRAWN_PAIR * drawn
