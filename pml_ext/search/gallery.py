"""A gallery: a folder with embeddings of images as Parquet parts, and a manifest of the live parts.

    gallery/manifest.json      the model, and the names of the live parts
    gallery/parts/*.parquet    path, embedding, content_hash; label and offset where the gallery has them
    gallery/index.….faiss      see index.py
    gallery/cohort.npz         the cohort of the offsets
    gallery/unreadable.txt     images of the last run that could not be embedded

Parts never change. A part and the manifest that names it are written atomically, under a lock. So a killed process
leaves a complete gallery, and several processes may add parts at the same time.
"""

import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import IO, Any, Literal

import msgspec
import numpy as np
import torch

from pml_ext._errors import UserError, import_library
from pml_ext._files import replacing, write_atomically
from pml_ext.metrics import CohortNormalization
from pml_ext.search.model_record import KEY, ModelRecord, load_cohort_of

PART_ROWS = 16_384
_GROUP = 1_024  # rows; a hit is read with its group, 0.5 MB of 128 dimensions
_MANIFEST, _COHORT = "manifest.json", "cohort.npz"


@dataclass(frozen=True)
class IndexRecord:
    """An index of some parts, in this order; parts: names and numbers of rows.

    A query visits `probes` of `lists`, which found `recall` of the 10 nearest neighbours of sampled rows. probes None:
    the recall was too low even with all lists, and there is no file.
    """

    file: str
    parts: dict[str, int]
    lists: int
    probes: int | None
    recall: float


@dataclass
class Manifest:
    """What manifest.json holds; parts: names and numbers of rows."""

    model: ModelRecord
    has_labels: bool
    is_normalized: bool
    parts: dict[str, int]
    index: IndexRecord | None = None
    format: Literal["pml_ext gallery 1"] = "pml_ext gallery 1"


class Gallery:
    """A gallery as it was when it was opened; rows are numbered from 0 through the parts, in the manifest's order."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder, self.manifest = folder, manifest

    @classmethod
    def open(cls, folder: str | Path, *, may_be_empty: bool = False) -> "Gallery":
        """Open a gallery; UserError if it is damaged."""
        folder = Path(folder).expanduser()
        gallery = cls(folder, _read_manifest(folder))
        if not (gallery.rows or may_be_empty):
            raise UserError(f"{folder} has no embeddings yet: run pml-ext embed")
        return gallery

    @classmethod
    def create(cls, folder: Path, record: ModelRecord, *, has_labels: bool, cohort: Path | None) -> "Gallery":
        """Create a gallery, or open one for more embeddings of the same kind; cohort: for normalised scores."""
        import_library("pyarrow", needed_for=f"{folder}: a gallery", install="pyarrow")
        given = None if cohort is None else load_cohort_of(cohort, record)
        if not is_gallery(folder):
            folder.mkdir(parents=True, exist_ok=True)
            others = {path.name for path in folder.iterdir() if not path.name.startswith(".")} - {_COHORT}
            if others:
                raise UserError(f"{folder} is a folder with other files ({min(others)}): give --output a new folder")
        with lock_of(folder):
            if not is_gallery(folder):
                (folder / "parts").mkdir(exist_ok=True)
                if cohort is not None:
                    write_atomically(folder / _COHORT, cohort.read_bytes())
                _write_manifest(folder, Manifest(record, has_labels, cohort is not None, {}))
        gallery = cls(folder, _read_manifest(folder))
        gallery._require_same_kind(record, has_labels, given)
        with gallery._changing() as manifest:
            manifest.parts = {name: rows for name, rows in manifest.parts.items() if gallery.part(name).is_file()}
        return gallery

    def _require_same_kind(self, record: ModelRecord, has_labels: bool, cohort: CohortNormalization | None) -> None:
        manifest, old = self.manifest, self.record
        if not old.same_model(record):
            raise UserError(
                f"{self.folder} is of {old.weights} (SHA-256 {old.sha256[:12]}…): its embeddings and those of "
                f"{record.weights} ({record.sha256[:12]}…) with this config cannot be compared; give another --output"
            )
        if manifest.has_labels != has_labels:
            advice = "give --label-by-folder" if manifest.has_labels else "leave out --label-by-folder"
            raise UserError(f"{self.folder} has {'' if manifest.has_labels else 'no '}labels: {advice}")
        if cohort is not None and not is_same_cohort(self.cohort, cohort):
            raise UserError(
                f"{self.folder} was made without this cohort: leave out --normalize, or give another --output"
            )

    @property
    def base(self) -> Path:
        """The folder that paths are relative to."""
        return Path(os.path.abspath(self.folder)).parent

    @property
    def record(self) -> ModelRecord:
        return self.manifest.model

    @property
    def rows(self) -> int:
        return sum(self.manifest.parts.values())

    @property
    def dim(self) -> int:
        return self.record.embedding_dim

    @cached_property
    def cohort(self) -> CohortNormalization | None:
        """The cohort of normalised scores; None for cosines."""
        return load_cohort_of(self.folder / _COHORT, self.record) if self.manifest.is_normalized else None

    def part(self, name: str) -> Path:
        return self.folder / "parts" / name

    def first_rows(self) -> dict[str, int]:
        """The number of each part's first row."""
        counts = self.manifest.parts.values()
        return dict(zip(self.manifest.parts, accumulate(counts, initial=0), strict=False))

    def batches(self, columns: Sequence[str], parts: Iterable[str] | None = None) -> Iterator[tuple[int, Any]]:
        """The number of the first row and a pyarrow RecordBatch, again and again, for some parts or all."""
        first_rows = self.first_rows()
        for name in self.manifest.parts if parts is None else parts:
            row = first_rows[name]
            with open_part(self.part(name)) as file:
                for batch in file.iter_batches(PART_ROWS, columns=[*columns]):
                    yield row, batch
                    row += len(batch)

    def column(self, name: str) -> list[str]:
        """A column of texts."""
        return [text for _, batch in self.batches([name]) for text in batch[name].to_pylist()]

    def vectors(self, parts: Iterable[str] | None = None) -> Iterator[tuple[int, np.ndarray]]:
        """First row numbers and vectors whose inner product with `as_queries` is the score: (n, D), or (n, D + 2)."""
        for row, batch in self.batches(self._vector_columns, parts):
            yield row, self._vectors_of(batch)

    def take_vectors(self, rows: Sequence[int]) -> np.ndarray:
        return self._vectors_of(self.take(rows, self._vector_columns))

    def as_queries(self, embeddings: np.ndarray) -> np.ndarray:
        """Unit rows (n, D) as queries of a search for `vectors`."""
        if self.cohort is None:
            return embeddings
        offsets = self.cohort.offsets(torch.from_numpy(embeddings)).float().numpy()
        return search_sides(embeddings, offsets, self.cohort.strength)[0]

    def take(self, rows: Sequence[int], columns: Sequence[str]) -> Any:
        """A pyarrow RecordBatch of some rows, which must be sorted; reads only their row groups."""
        import pyarrow

        if not rows:
            return next(self.batches(columns))[1].slice(0, 0)
        wanted, tables = np.asarray(rows, dtype=np.int64), []
        for name, first in self.first_rows().items():
            inside = wanted[(wanted >= first) & (wanted < first + self.manifest.parts[name])] - first
            if len(inside):
                groups = np.unique(inside // _GROUP)
                places = np.searchsorted(groups, inside // _GROUP) * _GROUP + inside % _GROUP
                with open_part(self.part(name)) as file:
                    tables.append(file.read_row_groups(groups.tolist(), [*columns]).take(places))
        (batch,) = pyarrow.concat_tables(tables).combine_chunks().to_batches()
        return batch

    def describe(self, rows: Sequence[int]) -> tuple[list[str], list[str] | None]:
        """Paths, relative to the folder that the gallery is in, and labels of some sorted rows."""
        has_labels = self.manifest.has_labels
        batch = self.take(rows, ["path", "label"] if has_labels else ["path"])
        return batch["path"].to_pylist(), batch["label"].to_pylist() if has_labels else None

    def identities(self) -> int | None:
        """The number of different labels; None if there are none."""
        return len(set(self.column("label"))) if self.manifest.has_labels else None

    def add(self, paths: list[str], labels: list[str], hashes: list[str], embeddings: np.ndarray) -> None:
        """Add a part with these rows; labels are left out where the gallery has none."""
        import pyarrow

        kind = pyarrow.list_(pyarrow.float32(), self.dim)
        flat = pyarrow.array(np.ascontiguousarray(embeddings, dtype=np.float32).reshape(-1))
        columns = {"path": paths, "content_hash": hashes}
        if self.manifest.has_labels:
            columns["label"] = labels
        table = pyarrow.table(columns | {"embedding": pyarrow.FixedSizeListArray.from_arrays(flat, type=kind)})
        if self.cohort is not None:
            offsets = self.cohort.offsets(torch.from_numpy(embeddings)).float().numpy()
            table = table.append_column("offset", pyarrow.array(offsets))
        with self._changing() as manifest:
            self._write_part(manifest, table.replace_schema_metadata({KEY: self.record.as_json()}))

    def keep(self, stays: np.ndarray) -> None:
        """Keep the rows where stays, of shape (rows,), is true: parts with others are written again without them."""
        ends = np.cumsum([*self.manifest.parts.values()])[:-1]
        masks = dict(zip(self.manifest.parts, np.split(stays, ends), strict=True))
        with self._changing() as manifest:
            for name, mask in masks.items():
                if name in manifest.parts and not mask.all():
                    with open_part(self.part(name)) as file:
                        table = file.read()
                    del manifest.parts[name]
                    if mask.any():
                        self._write_part(manifest, table.filter(mask))

    def keep_index(self, record: IndexRecord, write: Callable[[IO[bytes]], object] | None) -> None:
        """Replace the index; write None: it has no file."""
        with self._changing() as manifest:
            if write is not None:
                with replacing(self.folder / record.file) as file:
                    write(file)
            manifest.index = record

    def _write_part(self, manifest: Manifest, table: Any) -> None:
        from pyarrow import parquet

        name = f"{secrets.token_hex(8)}.parquet"
        with replacing(self.part(name)) as file:
            parquet.write_table(
                table, file, row_group_size=_GROUP, compression="NONE", use_dictionary=False, write_page_checksum=True
            )
        manifest.parts[name] = len(table)

    @contextmanager
    def _changing(self) -> Iterator[Manifest]:
        """The present manifest, which is written after the block; then files that it does not name are removed."""
        with lock_of(self.folder):
            manifest = _read_manifest(self.folder)
            yield manifest
            _write_manifest(self.folder, manifest)
            self.manifest = manifest
            kept = {*map(self.part, manifest.parts)}
            if manifest.index is not None:
                kept.add(self.folder / manifest.index.file)
            found = [path for pattern in ("parts/*", "index.*", ".*.part") for path in self.folder.glob(pattern)]
            for path in found:
                if path not in kept:
                    with suppress(OSError):  # Windows keeps a file that a search has open
                        path.unlink()

    @property
    def _vector_columns(self) -> list[str]:
        return ["embedding", "offset"] if self.manifest.is_normalized else ["embedding"]

    def _vectors_of(self, batch: Any) -> np.ndarray:
        embeddings = self._embeddings_of(batch)
        if self.cohort is None:
            return embeddings
        return search_sides(embeddings, batch["offset"].to_numpy(), self.cohort.strength)[1]

    def _embeddings_of(self, batch: Any) -> np.ndarray:
        embeddings: np.ndarray = batch["embedding"].flatten().to_numpy().reshape(-1, self.dim)
        return embeddings


def is_gallery(folder: str | Path) -> bool:
    return Path(os.path.expanduser(folder), _MANIFEST).is_file()


def search_sides(unit: np.ndarray, offsets: np.ndarray, strength: float) -> tuple[np.ndarray, np.ndarray]:
    """Unit rows (n, D) as queries and as rows that are searched, (n, D + 2): inner products are normalised scores."""
    column = (-0.5 * strength * offsets).astype(np.float32)
    ones = np.ones_like(column)
    return np.column_stack([unit, column, ones]), np.column_stack([unit, ones, column])


def is_same_cohort(one: Any, other: Any) -> bool:
    """Whether two normalisations, as cohorts or as records, are the same; None is that of plain cosines."""
    if one is None or other is None:
        return one is other
    return bool((one.k, one.strength, one.sha256) == (other.k, other.strength, other.sha256))


@contextmanager
def open_part(path: Path) -> Iterator[Any]:
    """An open Parquet file; what pyarrow raises in the block becomes a UserError."""
    import_library("pyarrow", needed_for=f"{path}: a Parquet file", install="pyarrow")
    from pyarrow.parquet import ParquetFile

    try:
        # pre_buffer would read the whole file into memory, and without buffer_size a whole row group
        with ParquetFile(path, page_checksum_verification=True, pre_buffer=False, buffer_size=2**20) as file:
            yield file
    except UserError:
        raise
    except Exception as error:  # undocumented
        advice = "is it complete?"
        if is_gallery(path.parent.parent):
            advice = (
                "run this command again if pml-ext embed is running; otherwise remove the file and run pml-ext embed"
            )
        raise UserError(f"{path} is not a readable .parquet file: {advice} ({error})") from error


@contextmanager
def lock_of(folder: Path) -> Iterator[None]:
    """Wait until no other process changes the gallery."""
    filelock = import_library("filelock", needed_for=f"{folder}: changing a gallery", install="filelock")
    with filelock.FileLock(folder / ".lock"):
        yield


def _read_manifest(folder: Path) -> Manifest:
    path = folder / _MANIFEST
    try:
        return msgspec.json.decode(path.read_bytes(), type=Manifest)
    except FileNotFoundError as error:
        raise UserError(f"no gallery at {folder}: it has no {_MANIFEST}") from error
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise UserError(
            f"{path} is damaged, or of another version of pml_ext ({error}): remove {folder} and embed again"
        ) from error


def _write_manifest(folder: Path, manifest: Manifest) -> None:
    write_atomically(folder / _MANIFEST, msgspec.json.encode(manifest))
