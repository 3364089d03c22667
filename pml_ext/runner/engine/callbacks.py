"""What the options of a run add to its training: frozen layers, a memory format."""

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


def freeze_callbacks(patterns: Sequence[str], solver: CN, *, steps_per_epoch: int) -> list[FreezeLayers]:
    """The callback for MODEL.FREEZE_LAYERS, if any; an empty pattern is FastReID's old "nothing"."""
    iterations = int(solver.FREEZE_ITERS + round(solver.FREEZE_EPOCHS * steps_per_epoch))
    wanted = [pattern for pattern in patterns if pattern]
    if wanted and not iterations:
        log.warning("MODEL.FREEZE_LAYERS %s: nothing is frozen, SOLVER.FREEZE_ITERS is 0", wanted)
    return [FreezeLayers(wanted, iterations)] if wanted and iterations else []


class ChannelsLast(lightning.Callback):
    """Keeps the weights of convolutions in torch's channels_last layout, which their fast kernels want.

    always: from before DDP and the optimizer see them, and in measurements too, as on GPUs. Otherwise in training only,
    as on a CPU, where a step of a small convolutional network takes about a fifth less time: in the usual layout a
    model measures the same here as when its checkpoint is read again. Only the order of sums differs.
    """

    def __init__(self, *, always: bool) -> None:
        self.always = always

    def setup(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, stage: str) -> None:
        if self.always:
            pl_module.to(memory_format=torch.channels_last)

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        pl_module.to(memory_format=torch.channels_last)

    def on_validation_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        if not self.always:
            pl_module.to(memory_format=torch.contiguous_format)

    def on_validation_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        if trainer.state.fn == "fit":
            self.on_train_start(trainer, pl_module)

    on_train_end = on_validation_start
