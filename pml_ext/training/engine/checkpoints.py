"""Checkpoints that are whole or not there, and what of a config must stay when one is resumed."""

import os
from pathlib import Path
from typing import Any

import torch
import yaml
from lightning.fabric.plugins import TorchCheckpointIO
from yacs.config import CfgNode as CN

from pml_ext.training.config.load import ConfigError

# What the optimizer's and the schedule's state hold, so that a change in the config would have no effect.
_HELD = (
    "OPT", "SCHED", "BASE_LR", "HEADS_LR_FACTOR", "BIAS_LR_FACTOR", "MOMENTUM", "NESTEROV",
    "WEIGHT_DECAY", "WEIGHT_DECAY_NORM", "WEIGHT_DECAY_BIAS",
)  # fmt: skip
_HELD_BY_ONE_CYCLE = ("ONECYCLE", "MAX_EPOCH", "IMS_PER_BATCH")
CONFIG = "config"
"""The checkpoint's entry with the config's YAML."""


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be written."""


class WholeCheckpoints(TorchCheckpointIO):
    """Writes beside the file and then puts it in the old one's place, so that one or the other is there, whole."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        path = Path(path)
        part = path.with_name(path.name + ".part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with part.open("wb") as file:
                torch.save(checkpoint, file)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        except (OSError, RuntimeError) as error:  # the latter where torch's own writer fails
            if part.exists():
                part.unlink()
            kept = "the one before is kept as it was" if path.exists() else "there is none before it"
            # torch's writer fails once more over what the system said
            reason = error.__context__ if isinstance(error.__context__, OSError) else error
            raise CheckpointError(f"checkpoint {path} cannot be written; {kept}: {reason}") from error


def check_resumable(solver: CN, checkpoint: Path) -> None:
    """Raises a ConfigError where a checkpoint's epochs or optimizer state do not go with the config's SOLVER."""
    content = torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True)
    if CONFIG not in content:
        raise ConfigError(f"{checkpoint} holds no config to go on with; start anew from its weights with MODEL.WEIGHTS")
    if content["epoch"] > solver.MAX_EPOCH:
        raise ConfigError(
            f"SOLVER.MAX_EPOCH is {solver.MAX_EPOCH}; {checkpoint} has {content['epoch']} epochs behind it"
        )
    before = yaml.safe_load(content[CONFIG])["SOLVER"]
    held = _HELD + (_HELD_BY_ONE_CYCLE if solver.SCHED == "OneCycleLR" else ())
    changed = [key for key in held if before[key] != solver[key]]
    if changed:
        lines = [f"  SOLVER.{key} = {solver[key]!r}: was {before[key]!r}" for key in changed]
        raise ConfigError(
            f"{checkpoint} cannot be resumed with another optimizer or schedule:\n" + "\n".join(lines) + "\n"
            "Resume with the values as they were, or start anew from its weights with MODEL.WEIGHTS"
        )
