"""Class vectors of Partial FC in checkpoints: files of safetensors beside last.ckpt.

Each rank writes its own rows, and any number of ranks reads them. An index has the SHA-256 of each file. A checkpoint
names their folder, which is whole before it is written; folders of earlier steps go once it is in its place.
"""

import hashlib
import json
import logging
import re
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from pml_ext._errors import UserError
from pml_ext._files import sha256_of, write_atomically
from pml_ext.distributed import PartialFC
from pml_ext.distributed.partial_fc import has_rows

log = logging.getLogger("pml_ext")

CLASSES = "classes"
"""The key of what a checkpoint says of these files."""
PATTERN = "classes_*_of_*"
_INDEX = "index.json"
_NAME = re.compile(r"classes_(\d+)_of_(\d+)")  # as `_folder` writes it: step and ranks


def take_share(checkpoint: dict[str, Any], name: str, loss: PartialFC, optimizer: Optimizer) -> dict[str, Tensor]:
    """Take this rank's class vectors and their optimizer state out of a checkpoint, which then says whose they are.

    Of weights alone, without an optimizer, there is nothing to write: no one resumes these, and embedding needs no
    classes. name: of the vectors in the model.
    """
    rows = {"weight": checkpoint["state_dict"].pop(name)}
    if "optimizer_states" not in checkpoint:
        return {}
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    place = next(n for n, parameter in enumerate(parameters) if parameter is loss.weight)
    states = checkpoint["optimizer_states"][0]["state"]
    state = states.pop(place, {})
    rows |= {key: value for key, value in state.items() if has_rows(value, loss.weight)}
    states[place] = {key: value for key, value in state.items() if key not in rows}
    checkpoint[CLASSES] = {
        "step": checkpoint["global_step"], "ranks": loss.ranks, "place": place,
        "shape": (loss.num_classes, loss.weight.shape[1]),
    }  # fmt: skip
    return rows


def write_share(
    rows: dict[str, Tensor], said: dict[str, Any], loss: PartialFC, folder: Path, group: ProcessGroup | None
) -> None:
    """Write what `take_share` returned, where all ranks do (group; None: one process). It reads no tensor of the loss.

    said: of the checkpoint.
    """
    path, own = _folder(folder, said), loss.classes
    file = _file(path, own.start, own.stop)
    try:
        path.mkdir(parents=True, exist_ok=True)
        content = save(rows)
        write_atomically(file, content)
        part: Any = (own.start, own.stop, hashlib.sha256(content).hexdigest())
    except Exception as error:  # the others must know of it
        part = str(error)
    parts = _of_all_ranks(part, group)
    failed = [f"rank {rank}: {reason}" for rank, reason in enumerate(parts) if isinstance(reason, str)]
    if failed:
        raise UserError(f"class vectors {path} cannot be written; last.ckpt is kept as it was: {'; '.join(failed)}")
    if own.start == 0:
        write_atomically(path / _INDEX, json.dumps(parts))


def read_share(checkpoint: dict[str, Any], name: str, loss: PartialFC, folder: Path) -> None:
    """Put into a checkpoint the class vectors and optimizer state of this rank, which other ranks may have written."""
    said, own = checkpoint[CLASSES], (loss.num_classes, loss.weight.shape[1])
    if (there := tuple(said["shape"])) != own:
        raise ValueError(f"its classes × embedding size are {there}; those of the config {own}")
    path = _folder(folder, said)
    try:
        rows = _read_share(path, loss)
    except Exception as error:
        raise ValueError(f"class vectors {path}: {error}") from error
    checkpoint["state_dict"][name] = rows.pop("weight")
    checkpoint["optimizer_states"][0]["state"][said["place"]] |= rows


def _read_share(path: Path, loss: PartialFC) -> dict[str, Tensor]:
    parts = sorted(json.loads((path / _INDEX).read_text(encoding="utf-8")))
    own, found = loss.classes, dict[str, list[Tensor]]()
    for begin, end, sha256 in parts:
        first, after = max(begin, own.start), min(end, own.stop)
        if first < after:
            file = _file(path, begin, end)
            if sha256_of(file) != sha256:
                raise ValueError(f"{file.name} is damaged or not its own: its SHA-256 is not the one in {_INDEX}")
            with safe_open(file, "pt") as rows:
                for key in rows.keys():  # noqa: SIM118
                    found.setdefault(key, []).append(rows.get_slice(key)[first - begin : after - begin])
    return {key: torch.cat(values) for key, values in found.items()}


def remove_older(folder: Path, checkpoint: dict[str, Any]) -> None:
    """Remove the folders that a checkpoint which has just been written replaces.

    They are of steps before its own, or of its step by another number of ranks; later ones may be of the next.
    """
    if CLASSES not in checkpoint:
        return
    current = _folder(folder, checkpoint[CLASSES])
    for path in folder.glob(PATTERN):
        found = _NAME.fullmatch(path.name)
        if found is None or path == current or int(found[1]) > checkpoint[CLASSES]["step"]:
            continue
        try:
            shutil.rmtree(path)
        except OSError as error:
            log.warning("%s is not needed any more and cannot be removed: %s", path, error)


def _of_all_ranks(given: Any, group: ProcessGroup | None) -> list[Any]:
    if group is None:
        return [given]
    found: list[Any] = [None] * group.size()
    torch.distributed.all_gather_object(found, given, group)
    return found


def _file(path: Path, begin: int, end: int) -> Path:
    return path / f"{begin}_to_{end}.safetensors"


def _folder(folder: Path, said: dict[str, Any]) -> Path:
    return folder / f"classes_{said['step']}_of_{said['ranks']}"
