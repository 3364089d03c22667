"""TEST.PRECISE_BN: statistics of batch norms as averages over training batches, in place of moving averages."""

from collections.abc import Iterator
from itertools import count, islice
from typing import Any

import lightning
import torch
from lightning.fabric.utilities import move_data_to_device
from torch import nn
from torch.optim.swa_utils import update_bn
from torch.utils.data import DataLoader
from yacs.config import CfgNode as CN

from pml_ext._shared.errors import UserError
from pml_ext.runner.config.network_keys import is_grey
from pml_ext.runner.data.datasets import load_train_set
from pml_ext.runner.engine.data_module import DataModule
from pml_ext.runner.engine.training_module import TrainingModule
from pml_ext.runner.modeling.interfaces import as_float


def precise_bn_loader(cfg: CN, data: DataModule) -> DataLoader[Any]:
    """Returns training batches of TEST.PRECISE_BN.DATASET."""
    cfg = cfg.clone()
    cfg.defrost()
    cfg.DATASETS.NAMES, cfg.DATASETS.REC_PATH = (cfg.TEST.PRECISE_BN.DATASET,), ""
    try:
        return data.loader_of(load_train_set(cfg.DATASETS, grey=is_grey(cfg), cfg=cfg))
    except ValueError as error:
        raise UserError(f"TEST.PRECISE_BN.DATASET: {error}") from error


def apply_precise_bn(cfg: CN, module: TrainingModule, loader: DataLoader[Any], trainer: lightning.Trainer) -> None:
    """Recompute the batch norms' statistics on the loader's batches."""
    lightning.seed_everything(cfg.SEED, workers=True, verbose=False)
    recompute_statistics(module.model, loader, cfg.TEST.PRECISE_BN.NUM_ITER, trainer.strategy.root_device)


class _WithoutLosses(nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.run = getattr(model, "compute_outputs", model)

    def forward(self, batch: dict[str, Any]) -> None:
        self.run(batch)


def recompute_statistics(model: nn.Module, loader: DataLoader[Any], iterations: int, device: torch.device) -> None:
    """Replace every batch norm's running mean and variance by the plain averages over training batches.

    Of several processes each takes its part of the batches, and all get the average. The loader is begun anew as
    often as so many batches take.
    """

    def batches() -> Iterator[dict[str, Any]]:
        for epoch in count():
            loader.batch_sampler.set_epoch(epoch)  # type: ignore[union-attr]
            for batch in loader:
                batch = move_data_to_device(batch, device)
                yield {**batch, "images": as_float(batch["images"])}

    update_bn(islice(batches(), iterations), _WithoutLosses(model).to(device))
    if torch.distributed.is_initialized():
        for layer in model.modules():
            if isinstance(layer, nn.modules.batchnorm._BatchNorm):
                for average in (layer.running_mean, layer.running_var):
                    if average is not None:
                        torch.distributed.all_reduce(average)
                        average.div_(torch.distributed.get_world_size())
