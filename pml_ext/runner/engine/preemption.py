"""Checkpoints within an epoch, and on SIGTERM or Ctrl-C."""

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


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Make SIGTERM raise Terminated in the block; under `Preemption`, after saving a checkpoint."""
    if current_thread() is not main_thread():  # only the main thread gets signals
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
    """Saves `file` every `period` steps (0: never), and before SIGTERM or Ctrl-C ends the run.

    A checkpoint is saved between two steps, after any validation and epoch end between them.

    Raises Terminated after SIGTERM and KeyboardInterrupt after Ctrl-C. A second Ctrl-C raises at once, without saving.
    """

    def __init__(self, file: Path, period: int) -> None:
        self.file, self.period = file, period
        self._asked_by: int | None = None  # the signal
        self._is_due = False

    def on_train_start(self, trainer: lightning.Trainer, *_: Any) -> None:
        if current_thread() is main_thread():
            # In place of Lightning's, which sends SIGTERM to the other ranks in the middle of whatever they exchange.
            # Lightning restores the handlers of before.
            signal.signal(signal.SIGTERM, self._ask)
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
            raise KeyboardInterrupt if self._asked_by == signal.SIGINT else Terminated
