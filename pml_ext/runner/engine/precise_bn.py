"""TEST.PRECISE_BN: batch-norm statistics of the finished weights, in place of training's moving averages."""

from collections.abc import Iterator
from itertools import count, islice
from typing import Any

import torch
from lightning.fabric.utilities import move_data_to_device
from torch import nn
from torch.optim.swa_utils import update_bn
from torch.utils.data import DataLoader


class _WithoutLosses(nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.run = getattr(model, "compute_outputs", model)

    def forward(self, batch: dict[str, Any]) -> None:
        self.run(batch)


def recompute_statistics(
    model: nn.Module, data: Any, loader: DataLoader[Any], iterations: int, device: torch.device
) -> None:
    """Replace every batch norm's running mean and variance by the plain averages over training batches.

    Of several processes each takes its part of the batches, and all get the average. The loader is begun anew as
    often as so many batches take; `data` finishes its batches on the device.
    """

    def batches() -> Iterator[dict[str, Any]]:
        for epoch in count():
            loader.batch_sampler.set_epoch(epoch)  # type: ignore[union-attr]
            for batch in loader:
                yield data.on_after_batch_transfer(move_data_to_device(batch, device), 0)

    update_bn(islice(batches(), iterations), _WithoutLosses(model).to(device))
    if torch.distributed.is_initialized():
        for layer in model.modules():
            if isinstance(layer, nn.modules.batchnorm._BatchNorm):
                for average in (layer.running_mean, layer.running_var):
                    if average is not None:
                        torch.distributed.all_reduce(average)
                        average.div_(torch.distributed.get_world_size())
