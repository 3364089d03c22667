"""What the options of a run add to its training: frozen layers, a profile, a memory format."""

import logging
import re
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import lightning
import torch
from yacs.config import CfgNode as CN

log = logging.getLogger("pml_ext")

_PHASES = ("data loading", "forward", "loss", "backward", "optimizer", "evaluation")


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
    if patterns and not wanted:
        log.info("MODEL.FREEZE_LAYERS %s: nothing is frozen", list(patterns))
    if wanted and not iterations:
        log.warning("MODEL.FREEZE_LAYERS %s: nothing is frozen, SOLVER.FREEZE_ITERS is 0", wanted)
    return [FreezeLayers(wanted, iterations)] if wanted and iterations else []


class Profile(lightning.Callback):
    """Adds up the seconds of each phase and counts the training steps.

    Data loading includes the start of each epoch's workers. On a GPU every mark waits for the device.
    """

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.iterations = 0
        self._last = 0.0

    def _mark(self, phase: str | None) -> None:
        """Add the time since the last mark to a phase; None discards it."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        now = time.perf_counter()
        if phase is not None:
            self.seconds[phase] += now - self._last
        self._last = now

    def on_fit_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        network_output: Any = pl_module.output

        def timed(*batch: Any) -> Any:
            output = network_output(*batch)
            if pl_module.training:
                self._mark("forward")
            return output

        pl_module.output = timed  # type: ignore[assignment]

    def on_train_epoch_start(self, *_: Any) -> None:
        self._mark(None)

    def on_train_start(self, *_: Any) -> None:
        self._mark(None)  # a run that goes on within an epoch does not start it

    def on_train_batch_start(self, *_: Any) -> None:
        self._mark("data loading")

    def on_before_backward(self, *_: Any) -> None:
        self._mark("loss")

    def on_after_backward(self, *_: Any) -> None:
        self._mark("backward")

    def on_train_batch_end(self, *_: Any) -> None:
        self._mark("optimizer")
        self.iterations += 1

    def on_validation_start(self, *_: Any) -> None:
        self._mark(None)

    def on_validation_end(self, *_: Any) -> None:
        self._mark("evaluation")

    def table(self) -> str:
        """A row per phase: seconds, share and, except for evaluation, milliseconds per iteration."""
        total = sum(self.seconds.values())
        lines = [f"{'':12}  {'seconds':>9}  {'share':>7}  {'ms/iteration':>12}"]
        for phase in _PHASES:
            each = "" if phase == "evaluation" else f"{1e3 * self.seconds[phase] / max(self.iterations, 1):.1f}"
            share = 100 * self.seconds[phase] / total if total else 0.0
            lines.append(f"{phase:12}  {self.seconds[phase]:9.2f}  {share:5.1f} %  {each:>12}")
        return "\n".join(lines)


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
