from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from pml_ext.runner.data.loaders import collate
from pml_ext.runner.data.transforms import BatchStep, Transform
from pml_ext.runner.engine.data_module import DataModule
from pml_ext.runner.engine.precise_bn import recompute_statistics


class EpochBatches(torch.utils.data.BatchSampler):
    """Two batches of two; the second epoch in another order."""

    def set_epoch(self, epoch: int) -> None:
        self.sampler = range(4) if epoch % 2 == 0 else [0, 2, 1, 3]


class Doubled(BatchStep):
    def draw(self, image: Tensor) -> np.ndarray:
        return np.zeros(0)

    def apply(self, images: Tensor, draws: np.ndarray) -> Tensor:
        return images * 2


class Data:
    transform = Transform([Doubled()])
    on_after_batch_transfer = DataModule.on_after_batch_transfer


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(2, momentum=0.3)

    def compute_outputs(self, batch: dict[str, Any]) -> dict[str, Tensor]:
        return {"features": self.norm(batch["images"])}


@pytest.mark.parametrize("others", [0, 2])
def test_statistics_are_the_plain_averages_over_batches_and_processes(
    others: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other processes found statistics of 1."""
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: others > 0)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 1 + others)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda average: average.add_(others))
    images, model = torch.randn(4, 2, 3, 3), Model()
    loader = DataLoader(
        [{"images": image / 2, "draws": [np.zeros(0)]} for image in images],  # type: ignore[arg-type]
        batch_sampler=EpochBatches(range(4), batch_size=2, drop_last=False),
        collate_fn=collate,
    )
    model.norm(torch.randn(2, 2, 3, 3))  # a moving average to be replaced
    recompute_statistics(model, Data(), loader, 3, torch.device("cpu"))
    batches = [images[[0, 1]], images[[2, 3]], images[[0, 2]]]
    mean = sum(batch.mean(dim=(0, 2, 3)) for batch in batches) / 3
    variance = sum(batch.var(dim=(0, 2, 3)) for batch in batches) / 3
    torch.testing.assert_close(model.norm.running_mean, (mean + others) / (1 + others))
    torch.testing.assert_close(model.norm.running_var, (variance + others) / (1 + others))
    assert model.norm.momentum == 0.3
