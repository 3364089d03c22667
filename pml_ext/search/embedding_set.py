"""Embeddings, labels, cameras and paths of pictures from a file of any program, read whole and checked."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pml_ext._errors import UserError
from pml_ext._identities import JUNK
from pml_ext.search.file_formats import READERS, read_arrays


@dataclass(frozen=True)
class EmbeddingSet:
    """embeddings: (N, D) floating, on the CPU. labels, cameras: (N,) arrays of int64 or strings; paths: of strings.

    also: arrays like labels that were asked for by name.
    """

    embeddings: Tensor
    labels: np.ndarray
    cameras: np.ndarray | None
    paths: np.ndarray | None = None
    also: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def has_labels(self) -> bool:
        return self.labels.dtype.kind != "U" or bool(np.char.str_len(self.labels).any())

    @property
    def is_junk(self) -> np.ndarray:
        """(N,) whether a sample has the label −1, which ReID ignores, in a set with cameras."""
        if self.cameras is None or self.labels.dtype.kind == "U":
            return np.zeros(len(self.labels), dtype=bool)
        junk: np.ndarray = self.labels == JUNK
        return junk


def require_file(path: str | Path) -> Path:
    """The path of a file of embeddings that exists and has a known suffix, else a UserError."""
    try:
        path = Path(path).expanduser()
    except RuntimeError as error:  # ~nouser
        raise UserError(f"no file of embeddings at {path}: {error}") from error
    if path.suffix not in READERS:
        raise UserError(f"{path}: the kind of file must be one of {', '.join(READERS)}; got {path.suffix!r}")
    if not path.is_file():
        raise UserError(f"no file of embeddings at {path}")
    return path


def read_embeddings(path: str | Path, *, need_labels: bool = True, also: Sequence[str] = ()) -> EmbeddingSet:
    """Read a file that file_format_help describes; a UserError where something is missing, damaged or does not fit.

    need_labels False: missing labels are empty strings; also: names of more arrays or columns of integers or strings.
    """
    path = require_file(path)
    arrays = read_arrays(path, need_labels=need_labels, also=also)
    embeddings = _check_floats(arrays["embeddings"], path)

    def ids(name: str) -> np.ndarray | None:
        return _check_ids(arrays[name], len(embeddings), f"{path}: {name}") if name in arrays else None

    labels, paths = ids("labels"), ids("paths")
    if paths is not None and paths.dtype.kind != "U":
        raise UserError(f"{path}: paths must be strings; got {paths.dtype}")
    known = np.full(len(embeddings), "") if labels is None else labels
    more = {name: _check_ids(arrays[name], len(embeddings), f"{path}: {name}") for name in also}
    return EmbeddingSet(embeddings, known, ids("cameras"), paths, more)


def pictures_inside(paths: Iterable[str], folder: str | Path) -> tuple[list[Path | None], str | None]:
    """The pictures that lie in a folder or below it, None for others; and a warning about those, where there are any.

    A file from elsewhere must not put pictures from outside this folder on a page.
    """
    root = Path(folder).expanduser().resolve()
    found = [(root / path).resolve() for path in paths]
    inside = [path if path.is_relative_to(root) else None for path in found]
    if not (outside := inside.count(None)):
        return inside, None
    return (
        inside,
        f"{outside} of {len(found)} pictures lie outside {root} and are not shown: give --images their folder",
    )


def _check_floats(values: Any, path: Path) -> Tensor:
    if not isinstance(values, np.ndarray) or values.dtype.kind != "f":
        given = values.dtype if isinstance(values, np.ndarray) else type(values).__name__
        raise UserError(f"{path}: embeddings must be an array of floating type; got {given}")
    # torch needs the machine's byte order, at most 64 bits, and memory that it may write to.
    x = torch.from_numpy(np.require(values, f"f{min(values.dtype.itemsize, 8)}", ["C", "W"]))
    if x.ndim != 2 or 0 in x.shape:
        raise UserError(f"{path}: embeddings must have shape (N, D), one row per sample; got {tuple(x.shape)}")
    for what, bad in (("not finite", ~torch.isfinite(x).all(dim=1)), ("zero", (x == 0).all(dim=1))):
        if bad.any():
            first = int(bad.nonzero()[0])
            raise UserError(f"{path}: {int(bad.sum())} of {len(x)} embeddings are {what}, first row {first}")
    return x


def _check_ids(values: Any, count: int, what: str) -> np.ndarray:
    """Labels, cameras or paths as an array (N,) of int64 or of strings."""
    if isinstance(values, (list, tuple)):
        # numpy would turn [1, "a"] into strings, and 2^63 into a float.
        kinds = {type(value) for value in values}
        if kinds not in ({int}, {str}):
            names = ", ".join(sorted(kind.__name__ for kind in kinds)) or "nothing"
            raise UserError(f"{what} must be integers or strings, one per embedding; got {names}")
        if kinds == {int} and not all(-(2**63) <= value < 2**63 for value in values):
            raise UserError(f"{what} must be below 2^63; got {max(values, key=abs):.3g}")
        if kinds == {str} and any("\0" in value for value in values):
            raise UserError(f"{what} must be text; got a NUL character")
    ids = np.asarray(values)
    if ids.shape != (count,):
        raise UserError(f"{what} must have shape ({count},), one per embedding; got {ids.shape}")
    if ids.dtype.kind not in "iuU":
        raise UserError(f"{what} must be integers or strings; got {ids.dtype}")
    if ids.dtype == np.uint64 and (ids > np.iinfo(np.int64).max).any():
        raise UserError(f"{what} must be below 2^63; got {ids.max()}")
    return ids if ids.dtype.kind == "U" else ids.astype(np.int64)
