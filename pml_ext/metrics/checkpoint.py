"""The model file that computed embeddings, as recorded in files about them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from pml_ext._shared.checks import warn_caller
from pml_ext._shared.files import sha256_of

# Ranges that the decoder checks on reading.
CountAbove0 = Annotated[int, Meta(gt=0, le=2**63 - 1)]
Sha256 = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]


@dataclass(frozen=True)
class Checkpoint:
    """Name and SHA-256 of the model file that computed the embeddings."""

    file: str
    sha256: Sha256


ModelFile = str | Path | Checkpoint
"""A model file, or its record, such as `Embedder.record.checkpoint`."""


def checkpoint_of(model: ModelFile) -> Checkpoint:
    """Returns the name and the hash of a model file."""
    if isinstance(model, Checkpoint):
        return model
    return Checkpoint(Path(model).name, sha256_of(Path(model)))


def require_checkpoint(expected: Checkpoint | None, model: ModelFile | None, source: str | Path) -> None:
    """Raise unless the model file is the one that the file `source` records; warn if there is none to compare."""
    if model is None:
        if expected is not None:
            warn_caller(
                f"{source} records the checkpoint {expected.file}, which was not compared with the model in use: pass "
                "its checkpoint"
            )
        return
    actual = checkpoint_of(model)
    if expected is None:
        raise ValueError(
            f"{source} records no checkpoint to compare {actual.file} with. Save it with its checkpoint (`pml-ext "
            "threshold choose --checkpoint FILE`)"
        )
    if actual.sha256 != expected.sha256:
        raise ValueError(
            f"{source} is of the checkpoint {expected.file} with SHA-256 {expected.sha256}; {actual.file} has "
            f"{actual.sha256}: it is not this model's. Make it from embeddings of this model"
        )
