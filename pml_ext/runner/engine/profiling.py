"""Shares of a run's time: data loading, forward, loss, backward, optimizer, evaluation."""

import time
from collections import defaultdict
from typing import Any

import lightning
import torch

PHASES = ("data loading", "forward", "loss", "backward", "optimizer", "evaluation")


class Profile(lightning.Callback):
    """Adds up the time of each phase.

    Data loading includes the start of each epoch's workers. On a GPU every mark waits for the device, which takes
    time.

    Attributes:
        seconds: by phase.
        iterations: how many training steps.
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
        for phase in PHASES:
            each = "" if phase == "evaluation" else f"{1e3 * self.seconds[phase] / max(self.iterations, 1):.1f}"
            share = 100 * self.seconds[phase] / total if total else 0.0
            lines.append(f"{phase:12}  {self.seconds[phase]:9.2f}  {share:5.1f} %  {each:>12}")
        return "\n".join(lines)
