"""Embeddings, labels, cameras and paths of pictures from a file of any program, their values checked.

file_layout says what a file holds, file_readers takes the arrays out of it.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pml_ext._errors import UserError
from pml_ext._identities import JUNK
from pml_ext.search.file_readers import READERS, REQUIRED, read_parquet, refuse_other_cameras

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_INTEGERS = (
    torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64,
)  # fmt: skip


@dataclass(frozen=True)
class EmbeddingSet:
    """embeddings: (N, D) floating, on the CPU. labels, cameras: (N,) arrays of int64 or strings; paths: of strings."""

    embeddings: Tensor
    labels: np.ndarray
    cameras: np.ndarray | None
    paths: np.ndarray | None = None

    @property
    def is_junk(self) -> np.ndarray:
        """(N,) the identity −1 of sets with cameras: ignored, as in ReID."""
        if self.cameras is None or self.labels.dtype.kind == "U":
            return np.zeros(len(self.labels), dtype=bool)
        junk: np.ndarray = self.labels == JUNK
        return junk


def require_file(path: str | Path) -> Path:
    """The path of a file of embeddings that is there.

    Raises:
        UserError: no such file, a kind that is not known.
    """
    try:
        path = Path(path).expanduser()
    except RuntimeError as error:  # ~nouser
        raise UserError(f"no file of embeddings at {path}: {error}") from error
    if path.suffix not in READERS:
        raise UserError(f"{path}: the kind of file must be one of {', '.join(READERS)}; got {path.suffix!r}")
    if not path.is_file():
        raise UserError(f"no file of embeddings at {path}")
    return path


def read_embeddings(path: str | Path, *, need_labels: bool = True) -> EmbeddingSet:
    """Read a file; see the module for what it holds.

    Args:
        need_labels: False: where the file has none, they are empty text.
    Raises:
        UserError: a missing, unreadable or damaged file, a kind that is not known, missing names, shapes or
            values that do not fit.
    """
    path = require_file(path)
    read = READERS[path.suffix]
    if read is read_parquet:
        read = partial(read_parquet, need_labels=need_labels)
    try:
        content = read(path)
    except UserError:
        raise
    except Exception as error:  # what readers raise on damaged input is not documented
        raise UserError(
            f"{path} is not a readable {path.suffix} file of arrays, without pickled objects; is it whole? ({error})"
        ) from error
    if not need_labels and "labels" not in content and "embeddings" in content:
        content["labels"] = np.full(len(content["embeddings"]), "")
    if missing := [name for name in REQUIRED if name not in content]:
        raise UserError(f"{path} lacks {', '.join(missing)}; it holds {', '.join(content) or 'nothing'}")
    if "cameras" not in content:
        refuse_other_cameras(content, "cameras", path)
    embeddings = _floats(content["embeddings"], path)
    cameras, paths = content.get("cameras"), content.get("paths")
    if paths is not None:
        paths = _ids(paths, len(embeddings), f"{path}: paths")
        if paths.dtype.kind != "U":
            raise UserError(f"{path}: paths must be strings; got {paths.dtype}")
    return EmbeddingSet(
        embeddings,
        _ids(content["labels"], len(embeddings), f"{path}: labels"),
        None if cameras is None else _ids(cameras, len(embeddings), f"{path}: cameras"),
        paths,
    )


def _floats(values: Any, path: Path) -> Tensor:
    x = values
    if isinstance(values, np.ndarray) and values.dtype.kind == "f":
        # As torch takes them: the machine's byte order, no wider than it knows, not memory of the reader's.
        x = torch.from_numpy(np.require(values, f"f{min(values.dtype.itemsize, 8)}", ["C", "W"]))
    if not isinstance(x, Tensor) or x.dtype not in _FLOATS or not _has_plain_values(x):
        raise UserError(
            f"{path}: embeddings must be an array of floating type; got {_kind(values)}, and 16, 32 or 64 bits are read"
        )
    if x.ndim != 2 or 0 in x.shape:
        raise UserError(f"{path}: embeddings must have shape (N, D), a row a sample; got {tuple(x.shape)}")
    for what, bad in (("not finite", ~torch.isfinite(x).all(dim=1)), ("zero", (x == 0).all(dim=1))):
        if bad.any():
            first = int(bad.nonzero()[0])
            raise UserError(f"{path}: {int(bad.sum())} of {len(x)} embeddings are {what}, first row {first}")
    return x.detach()


def _has_plain_values(x: Tensor) -> bool:
    """Whether a tensor's values lie in memory, one after another: not so on a meta device, sparse or quantized."""
    return x.device.type == "cpu" and x.layout == torch.strided and not x.is_quantized and not x.is_nested


def _kind(values: Any) -> str:
    """What a value is, for people."""
    if not isinstance(values, Tensor):
        return str(getattr(values, "dtype", type(values).__name__))
    form = "" if _has_plain_values(values) else f" on {values.device}, {values.layout}"
    return f"{values.dtype}{form}"


def _ids(values: Any, count: int, what: str) -> np.ndarray:
    """Labels or cameras as an int64 or a string array."""
    if isinstance(values, Tensor):
        if values.dtype not in _INTEGERS or not _has_plain_values(values):
            raise UserError(f"{what} must be integers or strings; got {_kind(values)}")
        ids = values.numpy()
    else:
        if isinstance(values, (list, tuple)):
            _check_list(values, what)
        ids = np.asarray(values)
    if ids.shape != (count,):
        raise UserError(f"{what} must have shape ({count},), one an embedding; got {ids.shape}")
    if ids.dtype.kind not in "iuU":
        raise UserError(f"{what} must be integers or strings; got {ids.dtype}")
    if ids.dtype == np.uint64 and (ids > np.iinfo(np.int64).max).any():
        raise UserError(f"{what} must be below 2^63; got {ids.max()}")
    if ids.dtype.kind == "U":
        return ids
    return ids.astype(np.int64)


def _check_list(values: list[Any] | tuple[Any, ...], what: str) -> None:
    """All integers below 2^63, or all strings: numpy would turn [1, "a"] into strings, and 2^63 into a float."""
    kinds = {type(value) for value in values}
    if kinds not in ({int}, {str}):
        names = ", ".join(sorted(kind.__name__ for kind in kinds)) or "nothing"
        raise UserError(f"{what} must be integers or strings, one an embedding; got {names}")
    if kinds == {int} and not all(-(2**63) <= value < 2**63 for value in values):
        raise UserError(f"{what} must be below 2^63; got {max(values, key=abs):.3g}")
    if kinds == {str} and any("\0" in value for value in values):
        raise UserError(f"{what} must be text; got a NUL character")
