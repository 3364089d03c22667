"""Reads embeddings, labels, cameras and image paths from a gallery or a file of any program."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pml_ext._ops.numerics import unit_rows
from pml_ext._shared.checks import warn_caller
from pml_ext._shared.errors import UserError, import_library
from pml_ext._shared.files import EMBEDDING_SUFFIXES
from pml_ext._shared.identities import find_columns, is_junk, read_ids
from pml_ext._shared.images import IMAGE_SUFFIXES
from pml_ext._shared.names import closest_path
from pml_ext._shared.text import first_of
from pml_ext.deploy.gallery import Gallery, is_gallery
from pml_ext.deploy.model_record import ModelRecord

NAMES = {"embedding": "embeddings", "identity": "labels", "camera": "cameras", "path": "paths"}
_COLUMNS = {"embedding": "embedding", "identity": "label", "camera": "camera", "path": "path"}
"""Documented names of columns, in arrays and in Parquet; see COLUMN_NAMES for others."""
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
        """(N,) mask of junk: label −1, which ReID ignores."""
        return is_junk(self.labels)

    @property
    def rows(self) -> int:
        return len(self.embeddings)

    @property
    def dim(self) -> int:
        return self.embeddings.shape[1]

    def take(self, rows: np.ndarray) -> "EmbeddingSet":
        """Returns the samples of some rows."""
        cameras = None if self.cameras is None else self.cameras[rows]
        paths = None if self.paths is None else self.paths[rows]
        also = {name: values[rows] for name, values in self.also.items()}
        return EmbeddingSet(self.embeddings[rows], self.labels[rows], cameras, paths, also, self.record)

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
        """Number of different labels except junk; None without labels."""
        return len(np.unique(self.labels[~self.is_junk])) if self.has_labels else None


def open_embeddings(path: str | Path) -> Gallery | EmbeddingSet:
    """Open a gallery without reading its embeddings, or read a file; labels are optional."""
    return Gallery.open(path) if is_gallery(path) else read_embeddings(path, need_labels=False)


def is_readable(path: str | Path) -> bool:
    """Returns whether a path is a gallery, or has the suffix of a file of embeddings."""
    return is_gallery(path) or Path(path).suffix.lower() in EMBEDDING_SUFFIXES


def read_embeddings(path: str | Path, *, need_labels: bool = True, also: Sequence[str] = ()) -> EmbeddingSet:
    """Read a gallery or a file (see `pml-ext metrics --help`).

    Raises UserError if something is missing, damaged or inconsistent.

    Args:
        need_labels: False: missing labels are empty strings.
        also: names of further arrays or columns of integers or strings.
    """
    path = Path(os.path.expanduser(path))  # leaves ~nobody as it is
    if is_gallery(path):
        return _read_gallery(Gallery.open(path), need_labels, also)
    columns = _COLUMNS if path.suffix.lower() == ".parquet" else NAMES
    required = ("embedding", "identity")[: 1 + need_labels]

    def choose(names: Iterable[str]) -> dict[str, str]:
        # The prefix keeps a further array, such as one named path, apart from the column of that name.
        return find_columns(path, names, columns, required, also) | {f"also {name}": name for name in also}

    content = _read_file(path, choose)
    embeddings = _check_floats(content.pop("embedding"), path)
    count = len(embeddings)
    paths = content.pop("path", None)
    if paths is not None:
        paths = _check_paths(paths, count, f"{path}: {columns['path']}")
    more = {name: read_ids(content.pop(f"also {name}"), count, f"{path}: {name}") for name in {*also}}
    ids = {column: read_ids(values, count, f"{path}: {columns[column]}") for column, values in content.items()}
    labels = ids.get("identity", np.full(count, ""))
    return EmbeddingSet(embeddings, labels, ids.get("camera"), paths, more)


def _read_gallery(gallery: Gallery, need_labels: bool, also: Sequence[str]) -> EmbeddingSet:
    """Its labels are the names of folders, which the user may call None or nan; so they stay as they are."""
    has_labels = gallery.manifest.has_labels
    if need_labels and not has_labels:
        raise UserError(
            f"{gallery.folder} has no labels: `pml-ext embed --label-by-folder` labels images by their folders"
        )
    if missing := [name for name in also if name not in gallery.columns]:
        raise UserError(f"{gallery.folder} lacks {', '.join(missing)}; it holds {', '.join(gallery.columns)}")
    labels = np.array(gallery.column("label")) if has_labels else np.full(gallery.rows, "")
    more = {name: np.array(gallery.column(name)) for name in also}
    embeddings, paths = torch.from_numpy(gallery.embeddings()), np.array(gallery.column("path"))
    return EmbeddingSet(embeddings, labels, None, paths, more, gallery.record)


def images_inside(paths: Iterable[str], folder: str | Path) -> list[Path | None]:
    """Returns the images in a folder or below it, and None for others, with a warning, and for empty paths.

    A file from an untrusted source must not put images from outside this folder on a page.
    """
    root = Path(folder).expanduser().resolve()
    images, outside = list[Path | None](), 0
    for path in paths:
        image = (root / path).resolve()
        is_inside = image.is_relative_to(root)
        outside += not is_inside
        images.append(image if path and is_inside else None)
    if outside:
        warn_caller(
            f"{outside} of {len(images)} images lie outside {root} and are not shown. Give --images their folder"
        )
    return images


Choose = Callable[[Iterable[str]], dict[str, str]]
"""Names in a file -> column -> its name in the file."""


def _read_file(path: Path, choose: Choose) -> dict[str, Any]:
    """Returns column -> values."""
    suffix = path.suffix.lower()
    if path.is_dir() or suffix in IMAGE_SUFFIXES:
        raise UserError(
            f"{path} is no gallery. Embed its images first: pml-ext embed {path} --model RUN --label-by-folder "
            "--output GALLERY"
        )
    if not path.is_file() and suffix in ("", *EMBEDDING_SUFFIXES):
        raise UserError(f"no gallery or file of embeddings at {path}{closest_path(path)}")
    if suffix not in EMBEDDING_SUFFIXES:
        raise UserError(
            f"{path} is no gallery, and a file of embeddings must end in {', '.join(EMBEDDING_SUFFIXES)}; "
            f"got {path.suffix!r}{closest_path(path)}"
        )
    try:
        if suffix == ".parquet":
            return _read_parquet(path, choose)
        return _read_npz(path, choose) if suffix == ".npz" else _read_tensors(path, choose)
    except UserError:
        raise
    except Exception as error:  # the readers do not document their errors on damaged input
        raise UserError(
            f"{path} is not a readable {path.suffix} file of arrays, without pickled objects; is it complete? ({error})"
        ) from error


def _read_npz(path: Path, choose: Choose) -> dict[str, Any]:
    # Opened here, because numpy does not close a file that it cannot read.
    with path.open("rb") as opened:
        file = np.load(opened, allow_pickle=False)
        return {column: file[name] for column, name in choose(file.files).items()}


def _read_tensors(path: Path, choose: Choose) -> dict[str, Any]:
    """Returns tensors as arrays, bfloat16 as float32."""
    content = import_library("safetensors.torch", needed_for=str(path), install="safetensors").load_file(path)
    arrays = dict[str, Any]()
    for column, name in choose(content).items():
        value = content[name]
        arrays[column] = (value.float() if value.dtype == torch.bfloat16 else value).numpy()
    return arrays


def _read_parquet(path: Path, choose: Choose) -> dict[str, Any]:
    import_library("pyarrow", needed_for=f"{path}: reading it", install="pyarrow")
    from pyarrow.parquet import ParquetFile

    with path.open("rb") as opened, ParquetFile(opened, page_checksum_verification=True) as file:
        places = choose(file.schema_arrow.names)
        table = file.read(columns=[*{*places.values()}])
    content = {column: table[name].to_pylist() for column, name in places.items() if column != "embedding"}
    return content | {"embedding": _rows_of_lists(table[places["embedding"]].combine_chunks(), path)}


def _rows_of_lists(lists: Any, path: Path) -> np.ndarray:
    from pyarrow import ExtensionArray, types
    from pyarrow.compute import list_value_length, unique

    kind = lists.type
    if isinstance(lists, ExtensionArray):  # a tensor column is stored as lists
        lists = lists.storage
    is_list = types.is_list(lists.type) or types.is_large_list(lists.type) or types.is_fixed_size_list(lists.type)
    if not is_list or not (types.is_floating(lists.type.value_type) or types.is_integer(lists.type.value_type)):
        raise UserError(f"{path}: embedding must be a list of numbers in each row; got {str(kind)[:60]}")
    if len(lengths := unique(list_value_length(lists)).to_pylist()) > 1:
        raise UserError(f"{path}: embedding must have the same length in every row; got {first_of(lengths)}")
    values: np.ndarray = lists.flatten().to_numpy(zero_copy_only=False)
    return values.reshape(len(lists), -1)


def _check_floats(values: Any, path: Path) -> Tensor:
    if not isinstance(values, np.ndarray) or values.dtype.kind != "f":
        kind = values.dtype if isinstance(values, np.ndarray) else type(values).__name__
        raise UserError(f"{path}: embeddings must be an array of floating type; got {kind}")
    # torch needs native byte order, at most 64 bits, and writable memory.
    x = torch.from_numpy(np.require(values, f"f{min(values.dtype.itemsize, 8)}", ["C", "W"]))
    if x.ndim != 2 or 0 in x.shape:
        raise UserError(f"{path}: embeddings must have shape (N, D), one row per sample; got {tuple(x.shape)}")
    for what, bad in (("not finite", ~torch.isfinite(x).all(dim=1)), ("zero", (x == 0).all(dim=1))):
        if bad.any():
            first = int(bad.nonzero()[0])
            raise UserError(f"{path}: {int(bad.sum())} of {len(x)} embeddings are {what}, first row {first}")
    return x


def _check_paths(values: Any, count: int, what: str) -> np.ndarray:
    paths = np.asarray(values)
    if paths.dtype.kind == "O":  # of Parquet, with None for a sample without a path
        paths = np.array([path or "" for path in values])
    if paths.shape != (count,) or paths.dtype.kind != "U":
        raise UserError(f"{what} must be {count} strings, one per embedding; got {paths.dtype} {paths.shape}")
    return paths
