"""Class vectors of Partial FC in checkpoints: each rank writes its own beside last.ckpt; any number can read them.

A checkpoint names their files, which are there before it is; files of earlier steps go once it is in its place.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from pml_ext.distributed import PartialFC
from pml_ext.distributed.partial_fc import classes_of_rank
from pml_ext.distributed.row_steps import has_rows
from pml_ext.runner.engine.whole_files import save_whole

CLASSES = "classes"
"""The key of what a checkpoint says of these files."""
PATTERN = "classes_*.pt"
_NAME = re.compile(r"classes_(\d+)_\d+_of_(\d+)\.pt")  # as `_file` writes it: step and ranks


def write_share(checkpoint: dict[str, Any], name: str, loss: PartialFC, optimizer: Optimizer, folder: Path) -> None:
    """Move this rank's class vectors and their optimizer state from a checkpoint to a file of its own.

    name: of the vectors in the model.
    Of weights alone, without an optimizer, they are left out: no one resumes these, and embedding needs no classes.
    """
    del checkpoint["state_dict"][name]
    if "optimizer_states" not in checkpoint:
        return
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    place = next(n for n, parameter in enumerate(parameters) if parameter is loss.weight)
    state = checkpoint["optimizer_states"][0]["state"].pop(place, {})
    said = checkpoint[CLASSES] = {
        "step": checkpoint["global_step"], "ranks": loss.ranks, "place": place,
        "num_classes": loss.num_classes, "embedding_size": loss.weight.shape[1],
    }  # fmt: skip
    save_whole({"weight": loss.weight.detach(), "state": state}, _file(folder, said, loss.rank), "class vectors")


def read_share(checkpoint: dict[str, Any], name: str, loss: PartialFC, folder: Path) -> None:
    """Put into a checkpoint the class vectors and optimizer state of this rank, which other ranks may have written."""
    said = checkpoint[CLASSES]
    for size, own in (("num_classes", loss.num_classes), ("embedding_size", loss.weight.shape[1])):
        if said[size] != own:
            raise ValueError(f"its {size} is {said[size]}; that of the config is {own}")
    parts = list(_overlapping(said, loss.classes, folder))
    weights, states = zip(*parts, strict=True)
    checkpoint["state_dict"][name] = torch.cat(weights)
    checkpoint["optimizer_states"][0]["state"][said["place"]] = {
        key: torch.cat([state[key] for state in states]) if has_rows(value, weights[0]) else value
        for key, value in states[0].items()
    }


def remove_older(folder: Path, checkpoint: dict[str, Any]) -> None:
    """Remove the shares that a checkpoint which has just been written replaces.

    They are of steps before its own, or of its step by another number of ranks; later ones may be of the next.
    """
    if CLASSES in checkpoint:
        said = checkpoint[CLASSES]
        for path in folder.glob(PATTERN):
            found = _NAME.fullmatch(path.name)
            if found and (
                int(found[1]) < said["step"] or (int(found[1]) == said["step"] and int(found[2]) != said["ranks"])
            ):
                path.unlink(missing_ok=True)


def _overlapping(said: dict[str, Any], classes: range, folder: Path) -> Iterator[tuple[Tensor, dict[str, Any]]]:
    """The rows of some classes in each file that has any of them; a file is read only where it has them."""
    for rank in range(said["ranks"]):
        there = classes_of_rank(said["num_classes"], rank, said["ranks"])
        first, end = max(there.start, classes.start), min(there.stop, classes.stop)
        if first >= end:
            continue
        content = torch.load(_file(folder, said, rank), map_location="cpu", weights_only=True, mmap=True)
        weight, rows = content["weight"], slice(first - there.start, end - there.start)
        if weight.shape != (len(there), said["embedding_size"]):
            raise ValueError(
                f"class vectors of rank {rank} have shape {tuple(weight.shape)}, expected {len(there)} rows"
            )
        yield (
            weight[rows],
            {name: value[rows] if has_rows(value, weight) else value for name, value in content["state"].items()},
        )


def _file(folder: Path, said: dict[str, Any], rank: int) -> Path:
    return folder / f"classes_{said['step']}_{rank}_of_{said['ranks']}.pt"
