"""A gallery: a folder with embeddings of images as Parquet parts, and a manifest of the live parts.

    gallery/manifest.json      the model, and the live parts
    gallery/parts/*.parquet    path, embedding, content_hash; label and offset if the gallery has them
    gallery/index.….faiss      see index.py
    gallery/cohort.npz         the cohort of the offsets
    gallery/unreadable.txt     images of the last run that could not be embedded

Parts never change. A part and its manifest entry are written atomically, under a lock. A killed process therefore
leaves a consistent gallery, and several processes may add parts concurrently.
"""

import os
import secrets
from collections.abc import Callable, Iterator, Sequence
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
from pml_ext.metrics.threshold.samples import is_same_cohort
from pml_ext.search.model_record import KEY, ModelRecord, load_cohort_of

PART_ROWS = 16_384
_ONE_PAGE = 2**31 - 1  # bytes
_MANIFEST, _COHORT = "manifest.json", "cohort.npz"


@dataclass(frozen=True)
class Part:
    """rows: number of rows. vectors_at: byte offset of their embeddings, contiguous float32."""

    rows: int
    vectors_at: int


@dataclass(frozen=True)
class IndexDepth:
    """A query for up to `neighbours` rows visits `probes` lists, with this `recall` of sampled rows' neighbours."""

    neighbours: int
    probes: int
    recall: float


@dataclass
class IndexRecord:
    """A search index of these parts, in this order.

    depths: by ascending number of neighbours; empty if the recall was too low even with all lists, and no index file
    exists.
    """

    file: str
    parts: list[str]
    lists: int
    depths: list[IndexDepth]


@dataclass
class Manifest:
    """Contents of manifest.json."""

    model: ModelRecord
    has_labels: bool
    is_normalized: bool
    parts: dict[str, Part]
    index: IndexRecord | None = None
    format: Literal["pml_ext gallery 2"] = "pml_ext gallery 2"


class Gallery:
    """A snapshot of a gallery; rows are numbered from 0 across the parts, in the manifest's order.

    indices: cache of the index file that was read last, by its name; see index.py.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder, self.manifest = folder, manifest
        self.indices: dict[str, Any] = {}
        self._offsets: dict[str, np.ndarray] = {}

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
        normalization = None if cohort is None else load_cohort_of(cohort, record)
        if not is_gallery(folder):
            folder.mkdir(parents=True, exist_ok=True)
            others = {path.name for path in folder.iterdir() if not path.name.startswith(".")} - {_COHORT}
            if others:
                raise UserError(f"{folder} is a folder with other files ({min(others)}). Give --output a new folder")
        with lock_of(folder):
            if not is_gallery(folder):
                (folder / "parts").mkdir(exist_ok=True)
                if cohort is not None:
                    write_atomically(folder / _COHORT, cohort.read_bytes())
                _write_manifest(folder, Manifest(record, has_labels, cohort is not None, {}))
        gallery = cls(folder, _read_manifest(folder))
        gallery._require_same_kind(record, has_labels, normalization)
        with gallery._changing() as manifest:
            manifest.parts = {name: part for name, part in manifest.parts.items() if gallery.part(name).is_file()}
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

    def part(self, name: str) -> Path:
        return self.folder / "parts" / name

    def first_rows(self) -> dict[str, int]:
        """Returns the number of each part's first row."""
        parts = self.manifest.parts
        starts = accumulate((part.rows for part in parts.values()), initial=0)
        return dict(zip(parts, starts, strict=False))

    def column(self, name: str) -> list[Any]:
        """Returns the values of a column other than the embeddings."""
        return [value for part in self.manifest.parts for value in self._read(part, [name])[name].to_pylist()]

    def vectors(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield first row numbers and vectors, (n, D) or (n, D + 2); scores are inner products with `as_queries`."""
        first_rows = self.first_rows()
        for name in self.manifest.parts:
            yield first_rows[name], self._vectors_of(name)

    def take_vectors(self, rows: np.ndarray) -> np.ndarray:
        """Returns the vectors of sorted rows, reading only these."""
        return np.concatenate([self._vectors_of(name, rows_inside) for name, rows_inside in self._by_part(rows)])

    def as_queries(self, embeddings: np.ndarray) -> np.ndarray:
        """Returns unit rows (n, D) as queries for `vectors`."""
        if self.cohort is None:
            return embeddings
        return self.cohort.augment(torch.from_numpy(embeddings)).float().numpy()

    def describe(self, rows: Sequence[int]) -> tuple[list[str], list[str] | None]:
        """Returns paths, relative to the gallery's parent folder, and labels of sorted rows."""
        names = ["path", "label"] if self.manifest.has_labels else ["path"]
        texts: dict[str, list[str]] = {name: [] for name in names}
        for part, rows_inside in self._by_part(np.asarray(rows, dtype=np.int64)):
            table = self._read(part, names).take(rows_inside)
            for name in names:
                texts[name] += table[name].to_pylist()
        return texts["path"], texts.get("label")

    def identities(self) -> int | None:
        """Number of different labels; None without labels."""
        return len(set(self.column("label"))) if self.manifest.has_labels else None

    def add(self, paths: list[str], labels: list[str], hashes: list[str], embeddings: np.ndarray) -> None:
        """Add a part with these rows; labels are left out if the gallery has none."""
        import pyarrow

        kind = pyarrow.list_(pyarrow.float32(), self.dim)
        flat = pyarrow.array(np.ascontiguousarray(embeddings, dtype=np.float32).reshape(-1))
        columns = {"embedding": pyarrow.FixedSizeListArray.from_arrays(flat, type=kind)}
        columns |= {"path": paths, "content_hash": hashes}
        if self.manifest.has_labels:
            columns["label"] = labels
        if self.cohort is not None:
            columns["offset"] = self.cohort.offsets(torch.from_numpy(embeddings)).float().numpy()
        with self._changing() as manifest:
            self._write_part(manifest, pyarrow.table(columns, metadata={KEY: self.record.as_json()}))

    def keep(self, stays: np.ndarray) -> None:
        """Keep the rows with stays, (rows,), True; parts with other rows are rewritten."""
        with self._changing() as manifest:
            for name, row in self.first_rows().items():
                mask = stays[row : row + self.manifest.parts[name].rows]
                if name in manifest.parts and not mask.all():
                    del manifest.parts[name]
                    if mask.any():
                        self._write_part(manifest, self._read(name, None).filter(mask))

    def keep_index(self, record: IndexRecord, write: Callable[[IO[bytes]], object] | None) -> None:
        """Replace the index; write None: no index file."""
        with self._changing() as manifest:
            if write is not None:
                with replacing(self.folder / record.file) as file:
                    write(file)
            manifest.index = record

    def _write_part(self, manifest: Manifest, table: Any) -> None:
        """Write a table with embeddings in its first column, uncompressed and in one page, readable as an array."""
        from pyarrow import parquet

        name = f"{secrets.token_hex(8)}.parquet"
        path = self.part(name)
        with replacing(path) as file:
            parquet.write_table(
                table, file, row_group_size=len(table), data_page_size=_ONE_PAGE, compression="NONE",
                use_dictionary=False, write_page_checksum=True,
            )  # fmt: skip
        vectors = table["embedding"].combine_chunks().flatten().to_numpy()
        chunk = parquet.read_metadata(path).row_group(0).column(0)
        vectors_at = chunk.data_page_offset + chunk.total_compressed_size - vectors.nbytes
        if not np.array_equal(np.fromfile(path, np.float32, vectors.size, offset=vectors_at), vectors):
            raise RuntimeError(f"{path}: pyarrow did not write the embeddings as one array")
        manifest.parts[name] = Part(len(table), vectors_at)

    @contextmanager
    def _changing(self) -> Iterator[Manifest]:
        """Yield the current manifest, write it after the block, and remove files that it does not list."""
        with lock_of(self.folder):
            manifest = _read_manifest(self.folder)
            yield manifest
            _write_manifest(self.folder, manifest)
            self.manifest = manifest
            kept = {*map(self.part, manifest.parts)}
            if manifest.index is not None:
                kept.add(self.folder / manifest.index.file)
            files = [path for pattern in ("parts/*", "index.*", ".*.part") for path in self.folder.glob(pattern)]
            for path in files:
                if path not in kept:
                    with suppress(OSError):  # Windows does not remove a file that another process has open
                        path.unlink()

    def _by_part(self, rows: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
        """Yield parts with some of the sorted rows, and these rows' numbers inside the part."""
        for name, first in self.first_rows().items():
            start, stop = np.searchsorted(rows, [first, first + self.manifest.parts[name].rows])
            if start < stop:
                yield name, rows[start:stop] - first

    def _vectors_of(self, name: str, rows: Any = slice(None)) -> np.ndarray:
        """Returns the vectors of some rows of a part, memory-mapped."""
        part = self.manifest.parts[name]
        with _readable(self.part(name)):
            file = np.memmap(self.part(name), np.float32, "r", part.vectors_at, (part.rows, self.dim))
            embeddings = np.asarray(file[rows])
        if self.cohort is None:
            return embeddings
        half = 0.5 * self.cohort.strength * self._offsets_of(name)[rows]
        return np.column_stack([embeddings, np.ones_like(half), -half])

    def _offsets_of(self, part: str) -> np.ndarray:
        """Returns the offsets of a part's rows, read once: every search needs them."""
        if part not in self._offsets:
            self._offsets[part] = self._read(part, ["offset"])["offset"].to_numpy()
        return self._offsets[part]

    def _read(self, part: str, columns: list[str] | None) -> Any:
        """Returns columns of a part as a pyarrow Table; None: all."""
        with open_part(self.part(part)) as file:
            return file.read(columns)


def is_gallery(folder: str | Path) -> bool:
    return Path(os.path.expanduser(folder), _MANIFEST).is_file()


@contextmanager
def open_part(path: Path) -> Iterator[Any]:
    """Open a Parquet file; errors of pyarrow in the block become UserErrors."""
    import_library("pyarrow", needed_for=f"{path}: a Parquet file", install="pyarrow")
    from pyarrow.parquet import ParquetFile

    # pre_buffer would read the complete file into memory, and no buffer_size a complete row group
    options = {"page_checksum_verification": True, "pre_buffer": False, "buffer_size": 2**20}
    with _readable(path), ParquetFile(path, **options) as file:
        yield file


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Convert any error in the block to a UserError about a Parquet file."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # pyarrow does not document its errors
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
