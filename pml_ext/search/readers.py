"""Reads embeddings, labels, cameras and image paths from a gallery or a file of any program."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pml_ext._checks import warn_caller
from pml_ext._errors import UserError, import_library
from pml_ext._identities import JUNK
from pml_ext._ops.normalize import unit_rows
from pml_ext.search.gallery import Gallery, is_gallery, open_part
from pml_ext.search.model_record import ModelRecord

NAMES = ("embeddings", "labels", "cameras", "paths")
SUFFIXES = (".npz", ".safetensors", ".parquet")
_COLUMNS = {"embeddings": "embedding", "labels": "label", "cameras": "camera", "paths": "path"}
_BLOCK = 16_384  # rows


@dataclass(frozen=True)
class EmbeddingSet:
    """embeddings: (N, D) floating, on the CPU. labels, cameras: (N,) arrays of int64 or strings; paths: of strings.

    also: further arrays like labels, by name.
    """

    embeddings: Tensor
    labels: np.ndarray
    cameras: np.ndarray | None
    paths: np.ndarray | None = None
    also: dict[str, np.ndarray] = field(default_factory=dict)
    record: ModelRecord | None = None  # of a gallery
    cohort = None

    @property
    def has_labels(self) -> bool:
        return self.labels.dtype.kind != "U" or bool(np.char.str_len(self.labels).any())

    @property
    def is_junk(self) -> np.ndarray:
        """(N,) mask of junk: label −1 in a set with cameras, which ReID ignores."""
        if self.cameras is None or self.labels.dtype.kind == "U":
            return np.zeros(len(self.labels), dtype=bool)
        junk: np.ndarray = self.labels == JUNK
        return junk

    @property
    def rows(self) -> int:
        return len(self.embeddings)

    @property
    def dim(self) -> int:
        return self.embeddings.shape[1]

    def take(self, rows: np.ndarray) -> "EmbeddingSet":
        """Returns the samples of some rows."""
        taken: dict[str, Any] = {"embeddings": self.embeddings[rows], "labels": self.labels[rows]}
        if self.cameras is not None:
            taken["cameras"] = self.cameras[rows]
        if self.paths is not None:
            taken["paths"] = self.paths[rows]
        return replace(self, **taken, also={name: values[rows] for name, values in self.also.items()})

    def vectors(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield first row numbers and unit rows (n, D) as float32."""
        for row in range(0, self.rows, _BLOCK):
            yield row, unit_rows(self.embeddings[row : row + _BLOCK].float()).numpy()

    def as_queries(self, embeddings: np.ndarray) -> np.ndarray:
        return embeddings

    def describe(self, rows: Sequence[int]) -> tuple[list[str], list[str] | None]:
        """Returns paths (empty if the file has none) and labels of some rows."""
        paths = [""] * len(rows) if self.paths is None else self.paths[rows].tolist()
        return paths, self.labels[rows].astype(str).tolist() if self.has_labels else None

    def identities(self) -> int | None:
        """Number of different labels; None without labels."""
        return len(np.unique(self.labels)) if self.has_labels else None


def open_embeddings(path: str | Path) -> Gallery | EmbeddingSet:
    """Open a gallery without reading its embeddings, or read a file; labels are optional."""
    return Gallery.open(path) if is_gallery(path) else read_embeddings(path, need_labels=False)


def is_readable(path: str | Path) -> bool:
    """Returns whether a path is a gallery, or has the suffix of a file of embeddings."""
    return is_gallery(path) or Path(path).suffix in SUFFIXES


def read_embeddings(path: str | Path, *, need_labels: bool = True, also: Sequence[str] = ()) -> EmbeddingSet:
    """Read a gallery or a file (see `pml-ext evaluate --help`).

    Raises UserError if something is missing, damaged or inconsistent.

    Args:
        need_labels: False: missing labels are empty strings.
        also: names of further arrays or columns of integers or strings.
    """
    path = Path(os.path.expanduser(path))  # leaves ~nobody as it is
    gallery = Gallery.open(path) if is_gallery(path) else None
    if gallery is None:
        content = _read_file(path, also)
    else:
        content = _read_parquet([gallery.part(name) for name in gallery.manifest.parts], path, also)
    columns = _COLUMNS if gallery is not None or path.suffix == ".parquet" else {}
    _require_names(path, content, columns, [*NAMES[: 1 + need_labels], *also])
    embeddings = _check_floats(content["embeddings"], path)
    given = [name for name in (*NAMES[1:], *also) if name in content]
    ids = {name: _check_ids(content[name], len(embeddings), f"{path}: {name}") for name in given}
    paths = ids.get("paths")
    if paths is not None and paths.dtype.kind != "U":
        raise UserError(f"{path}: paths must be strings; got {paths.dtype}")
    return EmbeddingSet(
        embeddings,
        ids.get("labels", np.full(len(embeddings), "")),
        ids.get("cameras"),
        paths,
        {name: ids[name] for name in also},
        None if gallery is None else gallery.record,
    )


def images_inside(paths: Iterable[str], folder: str | Path) -> list[Path | None]:
    """Returns the images in a folder or below it, and None for others, with a warning.

    A file from an untrusted source must not put images from outside this folder on a page.
    """
    root = Path(folder).expanduser().resolve()
    found = [(root / path).resolve() for path in paths]
    inside = [path if path.is_relative_to(root) else None for path in found]
    if outside := inside.count(None):
        warn_caller(
            f"{outside} of {len(found)} images lie outside {root} and are not shown. Give --images their folder"
        )
    return inside


def _require_names(path: Path, content: dict[str, Any], columns: dict[str, str], required: Sequence[str]) -> None:
    """Raise unless the file has the required names. content: all names in the file."""
    if missing := [columns.get(name, name) for name in required if name not in content]:
        found = ", ".join(columns.get(name, name) for name in content) or "nothing"
        hint = "; `pml-ext embed --label-by-folder` labels images by their folders" if "labels" not in content else ""
        raise UserError(f"{path} lacks {', '.join(missing)}; it holds {found}{hint}")
    others = [name for name in content if name.lower().startswith("cam")]
    if others and "cameras" not in content:  # ignoring misspelt cameras would change every result
        expected = columns.get("cameras", "cameras")
        raise UserError(
            f"{path} has no {expected}, but {', '.join(others)}: name it {expected}, or remove it if cameras do not "
            "matter"
        )


def _read_file(path: Path, also: Sequence[str]) -> dict[str, Any]:
    """Returns all names in a file, with the arrays of NAMES and of `also`; other values may be None."""
    if path.suffix not in SUFFIXES:
        raise UserError(
            f"{path} is no gallery, and a file of embeddings must end in {', '.join(SUFFIXES)}; got {path.suffix!r}"
        )
    if not path.is_file():
        raise UserError(f"no file of embeddings at {path}")
    try:
        if path.suffix == ".npz":
            return _read_npz(path, (*NAMES, *also))
        if path.suffix == ".parquet":
            return _read_parquet([path], path, also)
        return _read_tensors(path)
    except UserError:
        raise
    except Exception as error:  # the readers do not document their errors on damaged input
        raise UserError(
            f"{path} is not a readable {path.suffix} file of arrays, without pickled objects; is it complete? ({error})"
        ) from error


def _read_npz(path: Path, names: Sequence[str]) -> dict[str, Any]:
    # Opened here, because numpy does not close a file that it cannot read.
    with path.open("rb") as opened:
        file = np.load(opened, allow_pickle=False)
        return {name: file[name] if name in names else None for name in file.files}


def _read_tensors(path: Path) -> dict[str, Any]:
    """Returns tensors as arrays, bfloat16 as float32."""
    content = import_library("safetensors.torch", needed_for=str(path), install="safetensors").load_file(path)
    arrays = dict[str, Any]()
    for name, value in content.items():
        arrays[name] = (value.float() if value.dtype == torch.bfloat16 else value).numpy()
    return arrays


def _read_parquet(files: Sequence[Path], path: Path, also: Sequence[str]) -> dict[str, Any]:
    """Returns the rows of Parquet files with equal columns; path: for messages."""
    import_library("pyarrow", needed_for=f"{path}: reading it", install="pyarrow")
    import pyarrow

    with open_part(files[0]) as file:
        columns = file.schema_arrow.names
    texts = {"label": "labels", "camera": "cameras", "path": "paths"} | {name: name for name in also}
    wanted = [name for name in columns if name in texts or name == "embedding"]
    tables = []
    for part in files:
        with open_part(part) as file:
            tables.append(file.read(columns=wanted))
    table = pyarrow.concat_tables(tables)
    content = {texts.get(name, name): table[name].to_pylist() if name in texts else None for name in columns}
    if "embedding" in columns:
        content["embeddings"] = _rows_of_lists(table["embedding"].combine_chunks(), path)
    return content


def _rows_of_lists(lists: Any, path: Path) -> np.ndarray:
    from pyarrow.compute import list_value_length, unique

    if len(lengths := unique(list_value_length(lists)).to_pylist()) > 1:
        raise UserError(f"{path}: embedding must have the same length in every row; got {lengths}")
    values: np.ndarray = lists.flatten().to_numpy(zero_copy_only=False)
    return values.reshape(len(lists), -1)


def _check_floats(values: Any, path: Path) -> Tensor:
    if not isinstance(values, np.ndarray) or values.dtype.kind != "f":
        given = values.dtype if isinstance(values, np.ndarray) else type(values).__name__
        raise UserError(f"{path}: embeddings must be an array of floating type; got {given}")
    # torch needs native byte order, at most 64 bits, and writable memory.
    x = torch.from_numpy(np.require(values, f"f{min(values.dtype.itemsize, 8)}", ["C", "W"]))
    if x.ndim != 2 or 0 in x.shape:
        raise UserError(f"{path}: embeddings must have shape (N, D), one row per sample; got {tuple(x.shape)}")
    for what, bad in (("not finite", ~torch.isfinite(x).all(dim=1)), ("zero", (x == 0).all(dim=1))):
        if bad.any():
            first = int(bad.nonzero()[0])
            raise UserError(f"{path}: {int(bad.sum())} of {len(x)} embeddings are {what}, first row {first}")
    return x


def _check_ids(values: Any, count: int, what: str) -> np.ndarray:
    """Returns labels, cameras or paths as an array (N,) of int64 or strings."""
    if isinstance(values, (list, tuple)):
        kinds = sorted({type(value).__name__ for value in values})
        if len(kinds) > 1:  # numpy would turn [1, "a"] into strings
            raise UserError(f"{what} must be all integers or all strings; got {', '.join(kinds)}")
    ids = np.asarray(values)
    if ids.shape != (count,):
        raise UserError(f"{what} must have shape ({count},), one per embedding; got {ids.shape}")
    if ids.dtype.kind not in "iuU":
        raise UserError(f"{what} must be integers or strings; got {ids.dtype}")
    if ids.dtype == np.uint64 and (ids > np.iinfo(np.int64).max).any():
        raise UserError(f"{what} must be below 2^63; got {ids.max()}")
    return ids if ids.dtype.kind == "U" else ids.astype(np.int64)
