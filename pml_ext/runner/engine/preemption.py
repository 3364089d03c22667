"""Checkpoints within an epoch, and the one that a run leaves when SIGTERM ends it."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any

import lightning
from lightning.pytorch.callbacks import Checkpoint

from pml_ext._errors import Terminated

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
    """Writes `file` each `period` steps (0: never), and where SIGTERM asks a rank to stop; then it raises Terminated.

    A checkpoint lies between two steps, and after the validation and the end of the epoch that come between them. One
    process that is asked to stop while it validates leaves a checkpoint whose run validates anew; several finish the
    validation, because they reach its batches at different times.
    """

    def __init__(self, file: Path, period: int) -> None:
        self.file, self.period = file, period
        self._is_asked = self._is_due = self._is_in_validation = False

    def on_train_start(self, *_: Any) -> None:
        if current_thread() is main_thread():
            # In place of Lightning's, which sends to the other ranks in the middle of whatever they exchange. Lightning
            # restores the handler of before.
            signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, *_: Any) -> None:
        self._is_asked = True

    def on_train_batch_end(self, trainer: lightning.Trainer, *_: Any) -> None:
        self._is_due |= self.period > 0 and trainer.global_step % self.period == 0
        loop = trainer.fit_loop.epoch_loop
        assert trainer.val_check_batch is not None
        steps = trainer.global_step if trainer.check_val_every_n_epoch is None else loop.batch_idx + 1
        if not loop.batch_progress.is_last_batch and steps % trainer.val_check_batch:
            self._conclude(trainer)

    def on_validation_batch_end(self, trainer: lightning.Trainer, *_: Any) -> None:
        if self._is_asked and trainer.state.fn == "fit" and trainer.world_size == 1:
            self._is_in_validation = True
            self._conclude(trainer)

    def on_validation_end(self, trainer: lightning.Trainer, *_: Any) -> None:
        if trainer.state.fn == "fit" and not trainer.fit_loop.epoch_loop.batch_progress.is_last_batch:
            self._conclude(trainer)

    def on_train_epoch_end(self, trainer: lightning.Trainer, *_: Any) -> None:
        self._conclude(trainer)

    def _conclude(self, trainer: lightning.Trainer) -> None:
        """Save where it is time, and stop where any rank is asked to."""
        stop = trainer.strategy.reduce_boolean_decision(self._is_asked, all=False)
        if stop or self._is_due:
            trainer.save_checkpoint(self.file)
            self._is_due = False
        if stop:
            raise Terminated

    def on_save_checkpoint(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        if self._is_in_validation:
            # As Lightning leaves it where the first batch of a validation fails: it then runs all of them.
            progress = checkpoint["loops"]["fit_loop"][_VALIDATION]
            for counts in progress.values():
                if isinstance(counts, dict):
                    counts.update(ready=1, started=1, processed=0, completed=0)
