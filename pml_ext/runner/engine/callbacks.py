"""Layers that stay as they are in the first steps of a training."""

import logging
import re
from collections.abc import Sequence
from typing import Any

import lightning
import torch
from yacs.config import CfgNode as CN

log = logging.getLogger("pml_ext")


class FreezeLayers(lightning.Callback):
    """Skips parameters in the optimizer's first steps.

    As in FastReID, a pattern is matched from the start of a parameter's name, and a part of the model whose whole
    name is given (`backbone`, not `backbone.conv1`) is in evaluation mode meanwhile, with fixed batch statistics.
    Weight decay and momentum leave a frozen parameter alone too.
    """

    def __init__(self, patterns: list[str], iterations: int) -> None:
        self.patterns, self.iterations = patterns, iterations

    def on_train_batch_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, *_: Any) -> None:
        frozen = trainer.global_step < self.iterations
        module: Any = pl_module
        for name, part in module.model.named_children():
            if name in self.patterns and part.training == frozen:
                part.train(not frozen)

    def on_before_optimizer_step(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        if trainer.global_step < self.iterations:
            for name, parameter in pl_module.named_parameters():
                if any(re.match(pattern, name.removeprefix("model.")) for pattern in self.patterns):
                    parameter.grad = None


def freeze_callbacks(patterns: Sequence[str], solver: CN, *, steps_per_epoch: int) -> list[FreezeLayers]:
    """The callback for MODEL.FREEZE_LAYERS, if any; an empty pattern is FastReID's old "nothing"."""
    iterations = int(solver.FREEZE_ITERS + round(solver.FREEZE_EPOCHS * steps_per_epoch))
    wanted = [pattern for pattern in patterns if pattern]
    if wanted and not iterations:
        log.warning("MODEL.FREEZE_LAYERS %s: nothing is frozen, SOLVER.FREEZE_ITERS is 0", wanted)
    return [FreezeLayers(wanted, iterations)] if wanted and iterations else []
