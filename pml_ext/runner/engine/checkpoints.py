"""Checkpoints are written whole or not at all; checks that a run can resume one. `trainer.py` chooses the best."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import yaml
from lightning.fabric.plugins import TorchCheckpointIO
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor
from yacs.config import CfgNode as CN

from pml_ext._errors import UserError
from pml_ext._files import replacing, sha256_of, sha256_record, write_atomically
from pml_ext.runner.config.run_folder import CHECKPOINTS, LAST
from pml_ext.runner.engine.class_shares import remove_older

# What a resumed run must have as before: what is trained, with which losses and on what, and the state of the optimizer
# and the schedule, where a change in the config would have no effect.
_HELD = (
    "MODEL.META_ARCHITECTURE", "MODEL.BACKBONE.NAME", "MODEL.BACKBONE.DEPTH", "MODEL.HEADS.NAME", "MODEL.LOSSES.NAME",
    "DATASETS.NAMES",
    "SOLVER.OPT", "SOLVER.SCHED", "SOLVER.BASE_LR", "SOLVER.HEADS_LR_FACTOR", "SOLVER.BIAS_LR_FACTOR",
    "SOLVER.MOMENTUM", "SOLVER.NESTEROV", "SOLVER.WEIGHT_DECAY", "SOLVER.WEIGHT_DECAY_NORM",
    "SOLVER.WEIGHT_DECAY_BIAS",
)  # fmt: skip
_HELD_BY_ONE_CYCLE = ("SOLVER.ONECYCLE", "SOLVER.MAX_EPOCH", "SOLVER.IMS_PER_BATCH")
CONFIG = "config"
"""The key of the config's YAML in a checkpoint."""


def save_whole(content: Any, path: Path) -> None:
    """Replace a file atomically, in a folder that is made where it is missing; a UserError where that fails.

    Its SHA-256 is beside it; for a moment there is none, never that of another file.
    """
    record = sha256_record(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            torch.save(content, file)
            record.unlink(missing_ok=True)
        write_atomically(record, f"{sha256_of(path)}  {path.name}\n")
    except (OSError, RuntimeError) as error:  # the latter where torch's own writer fails
        kept = "the one before is kept as it was" if path.exists() else "there is none before it"
        # torch's writer raises another error over the system's
        reason = error.__context__ if isinstance(error.__context__, OSError) else error
        raise UserError(f"checkpoint {path} cannot be written; {kept}: {reason}") from error


class WholeCheckpoints(TorchCheckpointIO):
    """Replaces a checkpoint atomically: the old or the new one is there, whole."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        save_whole(checkpoint, Path(path))
        remove_older(Path(path).parent, checkpoint)


class BackgroundCheckpoints(WholeCheckpoints):
    """Writes in a thread, from a copy in the host's memory.

    Two files at most wait for it, as the best and the last checkpoint of an epoch: a slow disk holds up training, and
    does not fill the memory. An error is raised by the next save, or by `teardown`, which waits for the thread.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._waiting: deque[Future[None]] = deque()

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        self.submit(checkpoint, super().save_checkpoint, path)

    def submit(self, content: dict[str, Any], write: Callable[..., None], *args: Any) -> None:
        """Let the thread write a copy, unless what it writes before fails: a checkpoint names other files."""
        self._wait(until=1)
        copy = apply_to_collection(content, Tensor, lambda tensor: tensor.detach().to("cpu", copy=True))
        before = self._waiting[-1] if self._waiting else None

        def write_after() -> None:
            if before is not None:
                before.result()
            write(copy, *args)

        self._waiting.append(self._thread.submit(write_after))

    def teardown(self) -> None:
        self._wait(until=0)

    def _wait(self, *, until: int) -> None:
        while len(self._waiting) > until or (self._waiting and self._waiting[0].done()):
            self._waiting.popleft().result()


def last_checkpoint(output: Path) -> Path | None:
    """The checkpoint in OUTPUT_DIR from which a run resumes; None if there is none yet."""
    last = output.expanduser() / CHECKPOINTS / LAST
    return last if last.exists() else None


def steps_of(checkpoint: Path) -> int:
    """The number of training steps behind a checkpoint."""
    return int(_read(checkpoint)["global_step"])


def check_resumable(cfg: CN, checkpoint: Path) -> tuple[int, int]:
    """The whole epochs behind a checkpoint, and the steps of the next one; they must go with the config."""
    content = _read(checkpoint)
    with _of_a_run(checkpoint):
        progress = content["loops"]["fit_loop"]
        epoch = progress["epoch_progress"]["current"]
        epochs, is_within_epoch = int(epoch["processed"]), epoch["started"] > epoch["processed"]
        steps = int(progress["epoch_loop.batch_progress"]["current"]["processed"]) if is_within_epoch else 0
        held = _HELD + (_HELD_BY_ONE_CYCLE if cfg.SOLVER.SCHED == "OneCycleLR" else ())
        held += ("SOLVER.IMS_PER_BATCH",) if steps else ()
        before, now = yaml.safe_load(content[CONFIG]), yaml.safe_load(cfg.dump())
        changed = [line for key in held if (line := _difference(key, before, now))]
    if epochs > cfg.SOLVER.MAX_EPOCH:
        raise UserError(f"SOLVER.MAX_EPOCH is {cfg.SOLVER.MAX_EPOCH}; {checkpoint} has {epochs} epochs behind it")
    if changed:
        raise UserError(
            f"{checkpoint} cannot be resumed with other settings:\n" + "\n".join(changed) + "\n"
            "Resume with the values as they were, or start anew from its weights with MODEL.WEIGHTS"
        )
    return epochs, steps


def _difference(key: str, before: Any, now: Any) -> str | None:
    """A line about a key whose value has changed; None if it has not."""
    for name in key.split("."):
        before, now = before[name], now[name]
    return None if before == now else f"  {key} = {now!r}: was {before!r}"


def _read(checkpoint: Path) -> dict[str, Any]:
    with _of_a_run(checkpoint):
        content: dict[str, Any] = torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True)
    return content


@contextmanager
def _of_a_run(checkpoint: Path) -> Iterator[None]:
    """Turn any error over a checkpoint's content into one message about it."""
    try:
        yield
    except Exception as error:
        raise not_of_a_run(checkpoint, error) from error


def not_of_a_run(checkpoint: Path, error: Exception) -> UserError:
    """The message about a checkpoint whose content raised an error."""
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    return UserError(
        f"{checkpoint} cannot be resumed: it is not as a run leaves it ({reason:.300}). Take an earlier copy, with "
        "its folder classes_*_of_* where it has one, or start anew, from its weights with MODEL.WEIGHTS where they are "
        "whole"
    )
