"""Progress of a run: a bar on a terminal, a line per epoch in the log."""

import logging
import sys
from typing import Any

import lightning
from torch import Tensor
from tqdm import tqdm  # type: ignore[import-untyped]

from pml_ext.metrics import keys
from pml_ext.runner.engine.messages import IN_THE_FILE_ONLY
from pml_ext.runner.evaluation.results import as_text, heading, labels_of

log = logging.getLogger("pml_ext")

_STEPS_BETWEEN_NUMBERS = 10


class Progress(lightning.Callback):
    """One bar over the whole run with the time left, the losses, the learning rate and the last validation's score.

    The bar is on standard error if that is a terminal; else standard error gets the log's line per epoch.
    """

    def __init__(self) -> None:
        self._bar: tqdm | None = None
        self._sums: dict[str, Tensor] = {}
        self._steps = 0
        self._rate = 0.0
        self._score = ""
        self._is_measured = False  # in this epoch

    def state_dict(self) -> dict[str, Any]:
        """The numbers of the epoch so far, for a run that goes on within it."""
        return {"sums": dict(self._sums), "steps": self._steps, "rate": self._rate}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._sums, self._steps, self._rate = state_dict["sums"], state_dict["steps"], state_dict["rate"]

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        assert trainer.max_epochs is not None
        self._open(trainer, int(trainer.max_epochs * trainer.num_training_batches), trainer.global_step)

    def on_train_batch_start(self, trainer: lightning.Trainer, *_: Any) -> None:
        self._rate = trainer.optimizers[0].param_groups[0]["lr"]  # of this step: after it, it is the next one's

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, *_: Any, **__: Any
    ) -> None:
        assert self._bar is not None
        for name, value in trainer.callback_metrics.items():
            if name == "loss" or name.startswith("loss/"):
                self._sums[name] = self._sums.get(name, 0) + value
        self._steps += 1
        self._bar.update()
        if not self._bar.disable and self._bar.n % _STEPS_BETWEEN_NUMBERS == 0:
            self._bar.set_postfix_str(f"{self._numbers()}{self._score}", refresh=False)

    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        assert self._bar is not None
        if trainer.is_global_zero and self._steps:
            epoch = f"epoch {trainer.current_epoch + 1} of {trainer.max_epochs}"
            measured = self._score if self._is_measured else ""
            # A validation's line stays above the bar; losses alone are in the bar.
            extra = {} if self._bar.disable or measured else IN_THE_FILE_ONLY
            with self._bar.external_write_mode(file=sys.stderr):
                log.info("%s: %s%s", epoch, self._numbers(), measured, extra=extra)
        self._sums, self._steps, self._is_measured = {}, 0, False

    def on_train_end(self, *_: Any) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def on_exception(self, *_: Any) -> None:
        self.on_train_end()

    def on_validation_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        if self._bar is None:
            self._open(trainer, int(sum(trainer.num_val_batches)), 0)

    def on_validation_batch_end(self, trainer: lightning.Trainer, *_: Any, **__: Any) -> None:
        if self._bar is not None and not trainer.training and trainer.state.fn == "validate":
            self._bar.update()

    def on_validation_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        if trainer.state.fn == "validate":  # before or after training
            self.on_train_end()
            return
        results = getattr(pl_module, "results", {})
        self._score = f"; {_main_metrics(next(iter(results.values())))}" if results else ""
        self._is_measured = True

    def _numbers(self) -> str:
        """Mean losses of the epoch so far, and the learning rate of its last step."""
        means = {name: float(value) / self._steps for name, value in self._sums.items()}
        parts = [f"{name.removeprefix('loss/')} {value:.4g}" for name, value in means.items()]
        return ", ".join([*parts, f"learning rate {self._rate:.3g}"])

    def _open(self, trainer: lightning.Trainer, steps: int, done: int) -> None:
        shown = trainer.is_global_zero and sys.stderr.isatty()
        # smoothing 0: the time left follows from all steps so far, validations between them included
        self._bar = tqdm(total=steps, initial=done, disable=not shown, smoothing=0, dynamic_ncols=True, unit="step")


def _main_metrics(values: dict[str, float]) -> str:
    """The first metric of a test set, and mAP and OPIS where they are measured."""
    labels = labels_of(values)
    also = (keys.REID_MEAN_AVERAGE_PRECISION, keys.OPIS)
    shown = [name for i, name in enumerate(labels) if i == 0 or name in also]
    return ", ".join(f"{heading(name, labels[name])} {as_text(name, values[name])}" for name in shown)
