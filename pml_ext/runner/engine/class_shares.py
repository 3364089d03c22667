"""Class vectors of Partial FC in checkpoints, by torch.distributed.checkpoint: files of safetensors beside last.ckpt.

Each rank writes its own rows, and any number of ranks reads them. A checkpoint names their folder, which is whole
before it is written; folders of earlier steps go once it is in its place.
"""

import logging
import re
import shutil
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.optim import Optimizer

from pml_ext._errors import UserError
from pml_ext.distributed import PartialFC
from pml_ext.distributed.row_steps import has_rows

log = logging.getLogger("pml_ext")

CLASSES = "classes"
"""The key of what a checkpoint says of these files."""
PATTERN = "classes_*_of_*"
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
    if group is None:
        _allow_one_process()
    path = _folder(folder, said)
    writer = HuggingFaceStorageWriter(str(path), save_distributed=True)
    writer.per_thread_copy_ahead = 0  # else it waits for the first GPU, on which these tensors are not
    parts = {key: _part(value, loss) for key, value in rows.items()}
    try:
        save(parts, storage_writer=writer, process_group=group, no_dist=group is None)
    except CheckpointException as error:  # no Exception, and of all ranks
        reasons = "; ".join(f"rank {rank}: {reason}" for rank, (reason, _) in error.failures.items())
        raise UserError(f"class vectors {path} cannot be written; last.ckpt is kept as it was: {reasons}") from error


def read_share(checkpoint: dict[str, Any], name: str, loss: PartialFC, folder: Path) -> None:
    """Put into a checkpoint the class vectors and optimizer state of this rank, which other ranks may have written."""
    said, own = checkpoint[CLASSES], (loss.num_classes, loss.weight.shape[1])
    if (there := tuple(said["shape"])) != own:
        raise ValueError(f"its classes × embedding size are {there}; those of the config {own}")
    path = _folder(folder, said)
    try:
        rows = _read_share(path, loss)
    except (Exception, CheckpointException) as error:  # the second is no Exception
        raise ValueError(f"class vectors {path}: {error}") from error
    checkpoint["state_dict"][name] = rows.pop("weight")
    checkpoint["optimizer_states"][0]["state"][said["place"]] |= rows


def _read_share(path: Path, loss: PartialFC) -> dict[str, Tensor]:
    reader, rows = HuggingFaceStorageReader(str(path)), dict[str, Tensor]()
    there = reader.read_metadata().state_dict_metadata
    if "weight" not in there:
        raise ValueError("no file has class vectors")
    for key, saved in there.items():
        assert isinstance(saved, TensorStorageMetadata)  # which all is in such files
        parts = sorted((part.offsets[0], part.offsets[0] + part.sizes[0]) for part in saved.chunks)
        begins, ends = zip(*parts, strict=True)
        if (*begins, loss.num_classes) != (0, *ends):
            raise ValueError(
                f"{key} must have each of {loss.num_classes} classes once; a file is missing or not its own"
            )
        rows[key] = _part(torch.empty(loss.weight.shape, dtype=saved.properties.dtype), loss)
    _allow_one_process()
    load(rows, storage_reader=reader, no_dist=True)
    return rows


def remove_older(folder: Path, checkpoint: dict[str, Any]) -> None:
    """Remove the folders that a checkpoint which has just been written replaces.

    They are of steps before its own, or of its step by another number of ranks; later ones may be of the next.
    """
    if CLASSES in checkpoint:
        said = checkpoint[CLASSES]
        for path in folder.glob(PATTERN):
            found = _NAME.fullmatch(path.name)
            if found and (
                int(found[1]) < said["step"] or (int(found[1]) == said["step"] and int(found[2]) != said["ranks"])
            ):
                try:
                    shutil.rmtree(path)
                except OSError as error:
                    log.warning("%s is not needed any more and cannot be removed: %s", path, error)


def _part(rows: Tensor, loss: PartialFC) -> Tensor:
    """Rows of a rank's classes, as `torch.distributed.checkpoint.CheckpointableTensor` says which they are of all."""
    vars(rows).update(
        global_shape=(loss.num_classes, rows.shape[1]), global_offsets=((loss.classes.start, 0),),
        local_offsets=((0, 0),), local_sizes=(tuple(rows.shape),),
    )  # fmt: skip
    return rows


def _allow_one_process() -> None:
    """torch.distributed.checkpoint warns where there is no group of processes, even if it is told so."""
    warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)


def _folder(folder: Path, said: dict[str, Any]) -> Path:
    return folder / f"classes_{said['step']}_of_{said['ranks']}"
