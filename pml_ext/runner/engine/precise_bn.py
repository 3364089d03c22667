"""TEST.PRECISE_BN: batch-norm statistics of the finished weights, in place of training's moving averages."""

from collections.abc import Iterator
from itertools import count, islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn
from torch.utils.data import DataLoader


class _WithoutLosses(nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> None:
        # A classification layer with a margin wants labels; the statistics do not depend on them.
        self.model.output(images, torch.zeros(len(images), dtype=torch.long, device=images.device))


def recompute_statistics(model: Any, loader: DataLoader[Any], iterations: int, device: torch.device) -> None:
    """Replace every batch norm's running mean and variance by the plain averages over training batches.

    Of several processes each takes its own part of the batches, and all get the average. The loader is begun anew as
    often as so many batches take.
    """

    def batches() -> Iterator[Tensor]:
        for epoch in count():
            loader.batch_sampler.set_epoch(epoch)  # type: ignore[union-attr]
            for images, _, _, draws in loader:
                yield model.transform.finish(images.to(device), draws)

    update_bn(islice(batches(), iterations), _WithoutLosses(model).to(device), device)
    if torch.distributed.is_initialized():
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                for average in (module.running_mean, module.running_var):
                    if average is not None:
                        torch.distributed.all_reduce(average)
                        average.div_(torch.distributed.get_world_size())
