"""A cohort and its numbers as an .npz file, checked when it is read."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal
from zipfile import BadZipFile

import msgspec
import numpy as np
import torch
from msgspec import Meta
from torch import Tensor

from pml_ext._files import replacing
from pml_ext._version import __version__
from pml_ext.metrics.threshold.structures import Checkpoint, CountAbove0, Sha256

Format = Literal["pml_ext cohort normalization 1"]
Strength = Annotated[float, Meta(ge=0, le=2)]


@dataclass(frozen=True)
class CohortRecord:
    """What is known of a normalisation beside the cohort's numbers; sha256: of these, see `checksum`."""

    k: CountAbove0
    strength: Strength
    samples: CountAbove0
    embedding_dim: CountAbove0
    sha256: Sha256
    checkpoint: Checkpoint | None = None
    version: str = __version__
    format: Format = "pml_ext cohort normalization 1"


def checksum(cohort: Tensor) -> str:
    """SHA-256 of type, shape and numbers."""
    values = _little_endian(cohort)
    return hashlib.sha256(f"{values.dtype.str} {values.shape}".encode() + values.tobytes()).hexdigest()


def write_cohort(path: Path, cohort: Tensor, record: CohortRecord) -> None:
    """Write the file atomically; any program with NumPy can read it."""
    if path.suffix != ".npz":
        raise ValueError(f"a cohort is saved as .npz; got {path.name}")
    with replacing(path) as file:
        np.savez(file, cohort=_little_endian(cohort), record=np.array(msgspec.json.encode(record).decode()))


def read_cohort(path: Path) -> tuple[Tensor, CohortRecord]:
    """What `write_cohort` wrote; ValueError for another or a changed file."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            found, text = torch.from_numpy(arrays["cohort"]), str(arrays["record"])
        record = msgspec.json.decode(text, type=CohortRecord)
    except FileNotFoundError:
        raise
    except (BadZipFile, KeyError, ValueError, TypeError, AttributeError, EOFError, RecursionError) as error:
        what = f"it has no {error}" if isinstance(error, KeyError) else error
        raise ValueError(f"{path} is not a saved cohort normalization: {what}") from error
    if checksum(found) != record.sha256:
        raise ValueError(f"{path} was changed after it was written: its cohort's checksum is another. Save it again")
    return found, record


def _little_endian(cohort: Tensor) -> np.ndarray:
    values = cohort.detach().cpu().numpy()
    return np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
