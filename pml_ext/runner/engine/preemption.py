"""Checkpoints within an epoch, and the one that a run leaves when SIGTERM or Ctrl-C ends it."""

import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import Checkpoint

from pml_ext._errors import Terminated

log = logging.getLogger("pml_ext")

_VALIDATION = "epoch_loop.val_loop.batch_progress"  # in the state of Lightning's loops


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """SIGTERM raises Terminated in the block; while `Preemption` trains, after a checkpoint."""
    if current_thread() is not main_thread():  # which alone gets signals
        yield
        return

    def stop(*_: Any) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Preemption(Checkpoint):
    """Saves `file` every `period` steps (0: never), and when SIGTERM or Ctrl-C asks a rank to stop; then ends the run.

    A checkpoint lies between two steps, and after the validation and the end of the epoch that come between them. One
    process that is asked to stop while it validates leaves a checkpoint whose run validates anew; several finish the
    validation, because they reach its batches at different times.

    Raises Terminated after SIGTERM and KeyboardInterrupt after Ctrl-C. A second Ctrl-C raises at once, without saving.
    """

    def __init__(self, file: Path, period: int) -> None:
        self.file, self.period = file, period
        self._asked_by: int | None = None  # the signal
        self._is_due = self._is_in_validation = False

    def on_train_start(self, trainer: lightning.Trainer, *_: Any) -> None:
        if current_thread() is main_thread():
            # In place of Lightning's, which sends SIGTERM to the other ranks in the middle of whatever they exchange.
            # Lightning restores the handlers of before.
            signal.signal(signal.SIGTERM, self._ask)
            if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as for a script's background processes
                signal.signal(signal.SIGINT, self._ask)

    def _ask(self, number: int, _: Any) -> None:
        if self._asked_by == signal.SIGINT and self._is_second(number):
            _stop(number)
        if self._asked_by is None and number == signal.SIGINT and not torch.distributed.is_torchelastic_launched():
            log.warning("stopping after this step, with a checkpoint; Ctrl-C again stops at once, without one")
        self._asked_by = self._asked_by or number

    def _is_second(self, number: int) -> bool:
        """Whether a signal after Ctrl-C is a new one: the agent of several ranks sends them the terminal's again."""
        return number != signal.SIGINT or not torch.distributed.is_torchelastic_launched()

    def on_train_batch_end(self, trainer: lightning.Trainer, *_: Any) -> None:
        self._is_due |= self.period > 0 and trainer.global_step % self.period == 0
        loop = trainer.fit_loop.epoch_loop
        assert trainer.val_check_batch is not None
        steps = trainer.global_step if trainer.check_val_every_n_epoch is None else loop.batch_idx + 1
        if not loop.batch_progress.is_last_batch and steps % trainer.val_check_batch:
            self._conclude(trainer)

    def on_validation_batch_end(self, trainer: lightning.Trainer, *_: Any) -> None:
        if self._asked_by is not None and trainer.state.fn == "fit" and trainer.world_size == 1:
            self._is_in_validation = True
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
            _stop(self._asked_by)

    def on_save_checkpoint(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        if self._is_in_validation:
            # As Lightning leaves it where the first batch of a validation fails: it then runs all of them.
            progress = checkpoint["loops"]["fit_loop"][_VALIDATION]
            for counts in progress.values():
                if isinstance(counts, dict):
                    counts.update(ready=1, started=1, processed=0, completed=0)


def _stop(number: int | None) -> None:
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise Terminated
