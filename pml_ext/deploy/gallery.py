"""A gallery: a folder with embeddings of images in parts, and a manifest of the live parts.

    gallery/manifest.json      the model, and the live parts
    gallery/parts/ID.npy       (n, D) embeddings; (n, D + 2) vectors if the gallery has a cohort
    gallery/parts/ID.parquet   path, content_hash and, in a gallery with labels, label of the same rows
    gallery/cohort.npz         the cohort of normalised scores
    gallery/unreadable.txt     images of the last run that could not be embedded

Parts never change. Their files and the manifest are written atomically, under a lock. A killed process therefore
leaves a consistent gallery, and several processes may add parts concurrently.
"""

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from pml_ext._shared.errors import UserError, import_library
from pml_ext._shared.files import (
    decode_json,
    encode_json,
    is_hidden,
    is_of_system,
    locked,
    replacing,
    sha256_of,
    write_atomically,
)
from pml_ext._shared.names import closest_path
from pml_ext.deploy.model_record import KEY, ModelRecord, load_cohort_of
from pml_ext.metrics import CohortNormalization
from pml_ext.metrics.checkpoint import Sha256
from pml_ext.thresholds.samples import is_same_cohort

PART_ROWS = 16_384
_MANIFEST, _COHORT, _LOCK = "manifest.json", "cohort.npz", ".lock"


@dataclass(frozen=True)
class GalleryPart:
    """rows: number of rows. sha256: of the file of vectors; pages of Parquet files have checksums of their own."""

    rows: int
    sha256: Sha256


@dataclass
class Manifest:
    """Contents of manifest.json."""

    model: ModelRecord
    has_labels: bool
    is_normalized: bool
    parts: dict[str, GalleryPart]
    format: Literal["pml_ext gallery 3"] = "pml_ext gallery 3"


class Gallery:
    """A snapshot of a gallery; rows are numbered from 0 across the parts, in the manifest's order."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        import_library("pyarrow", needed_for=f"{folder}: a gallery", install="pyarrow")
        self.folder, self.manifest = folder, manifest
        self._vectors: dict[str, np.ndarray] = {}  # memory-mapped, by part

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
        normalization = None if cohort is None else load_cohort_of(cohort, record)
        if not is_gallery(folder):
            folder.mkdir(parents=True, exist_ok=True)
            names = [path.name for path in folder.iterdir() if not is_hidden(path.name) and not is_of_system(path.name)]
            if others := {*names} - {_COHORT}:
                raise UserError(f"{folder} is a folder with other files ({min(others)}). Give --output a new folder")
        with locked(folder / _LOCK):
            if not is_gallery(folder):
                (folder / "parts").mkdir(exist_ok=True)
                if cohort is not None:
                    write_atomically(folder / _COHORT, cohort.read_bytes())
                _write_manifest(folder, Manifest(record, has_labels, cohort is not None, {}))
        gallery = cls(folder, _read_manifest(folder))
        gallery._require_same_kind(record, has_labels, normalization)
        with gallery._changing() as manifest:
            for name in [*manifest.parts]:
                if not all(path.is_file() for path in gallery.files_of(name)):
                    del manifest.parts[name]
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
            raise UserError(f"{self.folder} was made without this cohort: leave out --cohort, or give another --output")

    @property
    def base(self) -> Path:
        """Folder that paths are relative to."""
        return Path(os.path.abspath(self.folder)).parent

    @property
    def record(self) -> ModelRecord:
        return self.manifest.model

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.manifest.parts.values())

    @property
    def dim(self) -> int:
        return self.record.embedding_dim

    @cached_property
    def cohort(self) -> CohortNormalization | None:
        """The cohort of normalised scores; None for cosines."""
        return load_cohort_of(self.folder / _COHORT, self.record) if self.manifest.is_normalized else None

    def files_of(self, part: str) -> tuple[Path, Path]:
        """Returns the files of a part: of its vectors, and of the other columns."""
        parts = self.folder / "parts"
        return parts / f"{part}.npy", parts / f"{part}.parquet"

    def first_rows(self) -> dict[str, int]:
        """Returns the number of each part's first row."""
        numbers, first = dict[str, int](), 0
        for name, part in self.manifest.parts.items():
            numbers[name] = first
            first += part.rows
        return numbers

    def vectors(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield first row numbers and vectors of the parts, memory-mapped.

        Vectors are embeddings (n, D), with two more coordinates if the gallery has a cohort, see
        `CohortNormalization.augment`. Scores are their inner products with `as_queries`.
        """
        for name, first in self.first_rows().items():
            yield first, self._vectors_of(name)

    def embeddings(self) -> np.ndarray:
        """Returns the embeddings (rows, D) in memory."""
        return np.concatenate([vectors[:, : self.dim] for _, vectors in self.vectors()])

    @property
    def columns(self) -> list[str]:
        """Names of the columns beside the embeddings."""
        return ["path", "content_hash", "label"] if self.manifest.has_labels else ["path", "content_hash"]

    def column(self, name: str) -> list[str]:
        """Returns the values of one of `columns`."""
        tables = [self._table_of(part, [name]) for part in self.manifest.parts]
        return [value for table in tables for value in table[name].to_pylist()]

    def as_queries(self, embeddings: np.ndarray) -> np.ndarray:
        """Returns unit rows (n, D) as queries for `vectors`."""
        if self.cohort is None:
            return embeddings
        return self.cohort.augment(torch.from_numpy(embeddings), "query").float().numpy()

    def describe(self, rows: Sequence[int]) -> tuple[list[str], list[str] | None]:
        """Returns paths, relative to the gallery's parent folder, and labels of some rows."""
        numbers = np.asarray(rows, dtype=np.int64)
        paths, labels = np.full((2, len(numbers)), "", dtype=object)
        for name, first in self.first_rows().items():
            mask = (first <= numbers) & (numbers < first + self.manifest.parts[name].rows)
            if mask.any():
                table = self._table_of(name, self.columns).take(numbers[mask] - first)
                paths[mask] = table["path"].to_pylist()
                if self.manifest.has_labels:
                    labels[mask] = table["label"].to_pylist()
        return paths.tolist(), labels.tolist() if self.manifest.has_labels else None

    def identities(self) -> int | None:
        """Number of different labels; None without labels."""
        return len(set(self.column("label"))) if self.manifest.has_labels else None

    def add(self, paths: list[str], labels: list[str], hashes: list[str], embeddings: np.ndarray) -> None:
        """Add a part with these rows; labels are left out if the gallery has none."""
        import pyarrow

        vectors = np.asarray(embeddings, dtype=np.float32)
        if self.cohort is not None:
            vectors = self.cohort.augment(torch.from_numpy(vectors), "gallery").float().numpy()
        values = {"path": paths, "content_hash": hashes, "label": labels}
        table = pyarrow.table({name: values[name] for name in self.columns}, metadata={KEY: self.record.as_json()})
        with self._changing() as manifest:
            self._write_part(manifest, vectors, table)

    def keep(self, stays: np.ndarray) -> None:
        """Keep the rows with stays, (rows,), True; parts with other rows are rewritten."""
        with self._changing() as manifest:
            for name, first in self.first_rows().items():
                mask = stays[first : first + self.manifest.parts[name].rows]
                if name in manifest.parts and not mask.all():
                    del manifest.parts[name]
                    if mask.any():
                        table = self._table_of(name, self.columns).filter(mask)
                        self._write_part(manifest, self._vectors_of(name)[mask], table)

    def _write_part(self, manifest: Manifest, vectors: np.ndarray, table: Any) -> None:
        from pyarrow import parquet

        name = secrets.token_hex(8)
        vectors_file, table_file = self.files_of(name)
        with replacing(vectors_file) as file:
            np.save(file, vectors)
        with replacing(table_file) as file:
            parquet.write_table(table, file, write_page_checksum=True)
        manifest.parts[name] = GalleryPart(len(vectors), sha256_of(vectors_file))

    @contextmanager
    def _changing(self) -> Iterator[Manifest]:
        """Yield the current manifest, write it after the block, and remove files that it does not list."""
        with locked(self.folder / _LOCK):
            manifest = _read_manifest(self.folder)
            yield manifest
            _write_manifest(self.folder, manifest)
            self.manifest = manifest
            live = {path for name in manifest.parts for path in self.files_of(name)}
            for path in [*self.folder.glob("parts/*"), *self.folder.glob(".*.part")]:
                if path not in live:
                    with suppress(OSError):  # Windows does not remove a file that another process has open
                        path.unlink()

    def _vectors_of(self, part: str) -> np.ndarray:
        """Returns the vectors of a part, memory-mapped; the first time, their checksum is compared."""
        if part not in self._vectors:
            path = self.files_of(part)[0]
            with _reading(path):
                if sha256_of(path) != self.manifest.parts[part].sha256:
                    raise ValueError("its SHA-256 differs from the manifest's")
                self._vectors[part] = np.load(path, mmap_mode="c")
        return self._vectors[part]

    def _table_of(self, part: str, columns: list[str]) -> Any:
        """Returns some of `columns` of a part as a pyarrow Table."""
        from pyarrow.parquet import ParquetFile

        path = self.files_of(part)[1]
        with _reading(path), path.open("rb") as opened, ParquetFile(opened, page_checksum_verification=True) as file:
            return file.read(columns)


def is_gallery(folder: str | Path) -> bool:
    return Path(os.path.expanduser(folder), _MANIFEST).is_file()


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Convert any error in the block to a UserError about a file of a part."""
    try:
        yield
    except Exception as error:  # pyarrow does not document its errors
        raise UserError(
            f"{path} is damaged, missing or replaced ({error}). If pml-ext embed has changed the gallery, open it "
            "again, or run this command again; otherwise remove the file and run pml-ext embed"
        ) from error


def _read_manifest(folder: Path) -> Manifest:
    path = folder / _MANIFEST
    try:
        return decode_json(path.read_bytes(), Manifest)
    except FileNotFoundError as error:
        raise UserError(f"no gallery at {folder}: it has no {_MANIFEST}{closest_path(folder)}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{path} is damaged, or of another version of pml_ext ({error}): remove {folder} and embed again"
        ) from error


def _write_manifest(folder: Path, manifest: Manifest) -> None:
    write_atomically(folder / _MANIFEST, encode_json(manifest))
