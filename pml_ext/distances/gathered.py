"""One order of the samples for all ranks, where PML's distributed wrappers have gathered the batch."""

import sys
from types import FrameType

import torch
from torch import Tensor

from pml_ext._ops.distributed import rank_and_ranks
from pml_ext._pml import gathering_code


def orders_if_gathered(labels: Tensor, ref_labels: Tensor | None = None) -> tuple[Tensor | None, Tensor | None]:
    """The samples of embeddings and of ref_emb in the order of the ranks; None where they were not gathered.

    PML's wrappers put a rank's own samples first, so "the first and second sample of a class" differ between ranks. The
    tensors do not show this, so we look for the wrappers among the calling functions. labels, ref_labels: (B,), (R,).
    """
    rank, world = (0, 1) if torch.compiler.is_compiling() else rank_and_ranks()
    if world == 1:
        return None, None
    codes = gathering_code()
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code not in codes:
        frame = frame.f_back
    if frame is None:
        return None, None
    if frame.f_code is codes[-1]:  # for a memory
        _check_memory(ref_labels, len(labels) // world)
        return None, None
    blocks = [0 if i == rank else i + (i < rank) for i in range(world)]

    def order(ids: Tensor) -> Tensor:
        return torch.arange(len(ids), device=ids.device).view(world, -1)[blocks].view(-1)

    is_gathered = not frame.f_locals["self"].efficient  # otherwise embeddings are the rank's own
    return order(labels) if is_gathered else None, None if ref_labels is None else order(ref_labels)


def _check_memory(labels: Tensor | None, share: int) -> None:
    """Refuses a memory whose arcs would join samples of two ranks: its order differs between ranks."""
    if labels is None:
        return
    if len(labels) % share == 0:
        of_ranks = labels.view(-1, share)
        counts = (of_ranks.unsqueeze(2) == of_ranks.unsqueeze(1)).sum(2)
        if not bool((counts % 2).any()):
            return
    raise ValueError(
        "consecutive samples must be the same ones on all ranks; in a CrossBatchMemory in a DistributedLossWrapper "
        "they are where every class has an even number of samples on each rank and the memory holds whole batches. "
        "Use such a sampler and memory_size, or LoOp(..., pairing='all')"
    )
