"""MODEL.FREEZE_LAYERS for SOLVER.FREEZE_ITERS: parameters that stay as they are while the rest begins to learn."""

import logging
import re
from typing import Any

import lightning
import torch
from yacs.config import CfgNode as CN

log = logging.getLogger("pml_ext")


class FreezeLayers(lightning.Callback):
    """Leaves parameters out of the optimizer's first steps.

    As in FastReID, a pattern is matched from the start of a parameter's name, and a part of the model whose whole
    name is given (`backbone`, not `backbone.conv1`) is in evaluation mode meanwhile, its batch statistics fixed.
    Weight decay and momentum leave a frozen parameter alone too.

    Args:
        patterns: regular expressions.
        iterations: how many optimizer steps.
    """

    def __init__(self, patterns: list[str], iterations: int) -> None:
        self.patterns, self.iterations = patterns, iterations

    def on_train_batch_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, *_: Any) -> None:
        frozen = trainer.global_step < self.iterations
        for name, part in pl_module.named_children():
            if name in self.patterns and part.training == frozen:
                part.train(not frozen)

    def on_before_optimizer_step(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        if trainer.global_step < self.iterations:
            for name, parameter in pl_module.named_parameters():
                if any(re.match(pattern, name) for pattern in self.patterns):
                    parameter.grad = None


def freeze_callbacks(patterns: list[str], *, iterations: int) -> list[lightning.Callback]:
    """The callback for MODEL.FREEZE_LAYERS and SOLVER.FREEZE_ITERS, where they freeze anything.

    Args:
        patterns: an empty one is FastReID's old "nothing".
        iterations: how many optimizer steps.
    """
    if patterns and not any(patterns):
        log.info("MODEL.FREEZE_LAYERS %s: nothing is frozen", patterns)
    patterns = [pattern for pattern in patterns if pattern]
    if patterns and not iterations:
        log.warning("MODEL.FREEZE_LAYERS %s: nothing is frozen, SOLVER.FREEZE_ITERS is 0", patterns)
    return [FreezeLayers(patterns, iterations)] if patterns and iterations else []


def frozen_iterations(options: CN, *, steps_per_epoch: int) -> int:
    """How long MODEL.FREEZE_LAYERS stay as they are: FREEZE_ITERS, and FREEZE_EPOCHS in iterations.

    Args:
        options: the config's SOLVER.
    """
    return int(options.FREEZE_ITERS + round(options.FREEZE_EPOCHS * steps_per_epoch))
