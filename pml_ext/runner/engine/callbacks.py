"""Lightning callbacks of a training run: frozen layers, logged values, one line per epoch, and preemption."""

import logging
import re
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import Checkpoint, TQDMProgressBar
from lightning.pytorch.loggers import MLFlowLogger
from torch import Tensor
from tqdm import tqdm  # type: ignore[import-untyped]
from yacs.config import CfgNode as CN

from pml_ext._ops.distributed import norm_over_ranks
from pml_ext._shared.errors import Terminated, stopping_signals
from pml_ext.losses import DiscriminativeLoss
from pml_ext.metrics import keys
from pml_ext.metrics.headings import as_text, heading, labels_of

log = logging.getLogger("pml_ext")

STEPS_BETWEEN_ENTRIES = 10
"""Number of steps between logged values."""


class FreezeLayers(lightning.Callback):
    """Skips parameters in the optimizer's first steps.

    As in FastReID, a pattern is matched from the start of a parameter's name, and a top-level module named in
    full (`backbone`, not `backbone.conv1`) is in evaluation mode, with fixed batch statistics. Weight decay and
    momentum do not change a frozen parameter.
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
    """Returns the callback for MODEL.FREEZE_LAYERS, if any; an empty pattern is FastReID's old "nothing"."""
    iterations = int(solver.FREEZE_ITERS + round(solver.FREEZE_EPOCHS * steps_per_epoch))
    wanted = [pattern for pattern in patterns if pattern]
    if wanted and not iterations:
        log.warning("MODEL.FREEZE_LAYERS %s: nothing is frozen, because SOLVER.FREEZE_ITERS is 0", wanted)
    return [FreezeLayers(wanted, iterations)] if wanted and iterations else []


def is_recorded(trainer: lightning.Trainer) -> bool:
    """Returns whether the loggers record the current step."""
    return (trainer.global_step + 1) % STEPS_BETWEEN_ENTRIES == 0


class Monitor(lightning.Callback):
    """Logs the learning rate, the gradient norm before clipping, and images per second over all processes."""

    def __init__(self, images_per_batch: int, hyperparameters: dict[str, Any]) -> None:
        self.images_per_batch, self.hyperparameters = images_per_batch, hyperparameters
        self._since, self._steps = 0.0, 0

    def on_fit_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        for logger in trainer.loggers:
            if trainer.ckpt_path is None or not isinstance(logger, MLFlowLogger):  # MLflow refuses changed values
                logger.log_hyperparams(self.hyperparameters)

    def on_train_epoch_start(self, *_: Any) -> None:
        # The time between two epochs does not count.
        self._since, self._steps = time.perf_counter(), 0

    def on_train_start(self, *_: Any) -> None:
        self.on_train_epoch_start()  # which a run that goes on within an epoch does not call

    def on_before_optimizer_step(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        self._steps += 1
        if not is_recorded(trainer):
            return
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        module: Any = pl_module
        norms = [norm_over_ranks(p.grad, 2.0, module.ranks_of(p)) for p in parameters]
        pl_module.log("gradient_norm", torch.stack(norms).norm())
        pl_module.log("learning_rate", float(optimizer.param_groups[0]["lr"]))
        now = time.perf_counter()
        pl_module.log("images_per_second", self._steps * self.images_per_batch / (now - self._since))
        self._since, self._steps = now, 0


@torch.no_grad()
def bound_statistics(loss: DiscriminativeLoss, embeddings: Tensor, labels: Tensor) -> dict[str, float]:
    """Returns both sides of the discriminative loss's Lemma 3.1 on a batch, the largest possible gap, ε and the κ.

    The lemma assumes equal class sizes, so each class is cut to the size of the smallest.
    """
    same_before = (labels[:, None] == labels).tril(-1).sum(dim=1)
    kept = same_before < labels.unique(return_counts=True)[1].min()
    bound = loss.tightness(embeddings[kept], labels[kept])
    return bound._asdict() | {"bound_limit": bound.limit}


class Progress(lightning.Callback):
    """Logs one line per epoch: mean losses, learning rate of the last step, and validation score."""

    def __init__(self) -> None:
        self._rate = 0.0
        self._score = ""  # of this epoch

    def on_train_batch_start(self, trainer: lightning.Trainer, *_: Any) -> None:
        self._rate = trainer.optimizers[0].param_groups[0]["lr"]  # of this step: after it, it is the next one's

    def on_validation_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        results = getattr(pl_module, "results", {})
        values: dict[str, float] = next(iter(results.values()), {})
        if trainer.state.fn == "fit" and values:
            self._score = f"; {_main_metrics(values)}"

    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        module: Any = pl_module
        means = module.losses_of_epoch.means()
        if trainer.is_global_zero and means:
            means["loss"] = sum(means.values())
            parts = [f"{name} {value:.4g}" for name, value in means.items()]
            shares = [f"{name} {100 * share:.3g} %" for name, share in module.losses_of_epoch.shares.items()]
            if shares:
                parts.append(f"gradient shares {' / '.join(shares)}")
            numbers = ", ".join([*parts, f"learning rate {self._rate:.3g}"])
            with tqdm.external_write_mode(file=sys.stderr):  # above the bar
                log.info("epoch %d of %s: %s%s", trainer.current_epoch + 1, trainer.max_epochs, numbers, self._score)
        self._score = ""


class RunBar(TQDMProgressBar):
    """A bar of the whole run, with the run's remaining time; counts epochs as the log does."""

    def get_metrics(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule
    ) -> dict[str, int | str | float | dict[str, float]]:
        metrics = super().get_metrics(trainer, pl_module)
        metrics.pop("v_num", None)
        return metrics

    def on_train_epoch_start(self, trainer: lightning.Trainer, *_: Any) -> None:
        bar, done = self.train_progress_bar, self._steps_before(trainer)
        if bar.total is None:  # the first epoch here; a resumed run has done others
            bar.reset(self._steps_of_epoch() * (trainer.max_epochs or 1))
            bar.initial = bar.n = done
        bar.set_description(f"epoch {trainer.current_epoch + 1} of {trainer.max_epochs}")

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        super().on_train_batch_end(trainer, pl_module, outputs, batch, self._steps_before(trainer) + batch_idx)

    def _steps_of_epoch(self) -> int:
        return int(self.total_train_batches)

    def _steps_before(self, trainer: lightning.Trainer) -> int:
        return trainer.current_epoch * self._steps_of_epoch()


def _main_metrics(values: dict[str, float]) -> str:
    """Returns the first metric of a test set, and mAP and OPIS if available, as text."""
    labels = labels_of(values)
    also = (keys.REID_MEAN_AVERAGE_PRECISION, keys.OPIS)
    shown = [name for i, name in enumerate(labels) if i == 0 or name in also]
    return ", ".join(f"{heading(name, labels[name])} {as_text(name, values[name])}" for name in shown)


class Preemption(Checkpoint):
    """Saves `file` every `period` steps (0: never), and before Ctrl-C or one of `stopping_signals` ends the run.

    A checkpoint is saved between two steps, after any validation and epoch end between them.

    Raises KeyboardInterrupt after Ctrl-C, otherwise Terminated. A second Ctrl-C raises at once, without saving.
    """

    def __init__(self, file: Path, period: int) -> None:
        self.file, self.period = file, period
        self._asked_by: int | None = None  # the signal
        self._is_due = False

    def on_train_start(self, trainer: lightning.Trainer, *_: Any) -> None:
        if current_thread() is main_thread():
            # In place of Lightning's, which sends SIGTERM to the other ranks in the middle of whatever they exchange.
            # Lightning restores the handlers of before.
            for number in {signal.SIGTERM, *stopping_signals()}:
                signal.signal(number, self._ask)
            if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as for a script's background processes
                signal.signal(signal.SIGINT, self._ask)

    def _ask(self, number: int, _: Any) -> None:
        self._asked_by = self._asked_by or number
        # The agent of several ranks sends them the terminal's signal again.
        if number == signal.SIGINT and not torch.distributed.is_torchelastic_launched():
            log.warning("stopping after this step, with a checkpoint; Ctrl-C again stops at once, without one")
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def on_train_batch_end(self, trainer: lightning.Trainer, *_: Any) -> None:
        self._is_due |= self.period > 0 and trainer.global_step % self.period == 0
        loop = trainer.fit_loop.epoch_loop
        assert trainer.val_check_batch is not None
        steps = trainer.global_step if trainer.check_val_every_n_epoch is None else loop.batch_idx + 1
        if not loop.batch_progress.is_last_batch and steps % trainer.val_check_batch:
            self._conclude(trainer)

    def on_validation_end(self, trainer: lightning.Trainer, *_: Any) -> None:
        if trainer.state.fn == "fit" and not trainer.fit_loop.epoch_loop.batch_progress.is_last_batch:
            self._conclude(trainer)

    def on_train_epoch_end(self, trainer: lightning.Trainer, *_: Any) -> None:
        self._conclude(trainer)

    def _conclude(self, trainer: lightning.Trainer) -> None:
        """Save if it is time, and stop if any rank is asked to."""
        is_asked = trainer.strategy.reduce_boolean_decision(self._asked_by is not None, all=False)
        if is_asked or self._is_due:
            trainer.save_checkpoint(self.file)
            self._is_due = False
        if is_asked:
            if self._asked_by == signal.SIGINT:
                raise KeyboardInterrupt
            raise Terminated(self._asked_by or signal.SIGTERM)
