"""What `pml-ext embed` writes and `pml-ext search` reads: embeddings of pictures, with a record of their model.

A `.parquet` or `.npz` that `read_embeddings` reads too. A `.parquet` is written and read in blocks, so that it may be
larger than memory. Files of other programs are read as well.
"""

import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from pml_ext._errors import UserError, import_library
from pml_ext._files import replacing
from pml_ext._ops.normalize import normalise_
from pml_ext.search.embedding_set import EmbeddingSet, read_embeddings, require_file
from pml_ext.search.model_record import KEY, ModelRecord

SUFFIXES = (".parquet", ".npz")
_VERSIONS = "pml_ext_versions"
_ABOUT = (KEY, _VERSIONS)
_BLOCK = 65_536  # rows


class Block(NamedTuple):
    """Some rows of a file: (n, D) float32 of unit length, the pictures' paths, and labels where the file has some."""

    embeddings: np.ndarray
    paths: list[str]
    labels: list[str] | None


class Version(NamedTuple):
    """A state of a file that grows: its unique name, and how many rows it had."""

    name: str
    rows: int


@dataclass(frozen=True)
class EmbeddingFile:
    """A file of embeddings; files of other programs have no record of a model (None) and no versions.

    versions: the file's states, the present one last; content: the whole file, None for a `.parquet` read in blocks.
    """

    path: Path
    rows: int
    dim: int
    record: ModelRecord | None
    versions: tuple[Version, ...]
    labelled: bool
    content: EmbeddingSet | None = None

    @classmethod
    def open(cls, path: str | Path) -> "EmbeddingFile":
        """Open a file; the embeddings of a `.parquet` of `pml-ext embed` are not read yet."""
        path = require_file(path)
        if path.suffix == ".parquet" and (found := _open_own_parquet(path)):
            return found
        content = read_embeddings(path, need_labels=False)
        about = dict[str, str]()
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as arrays:
                about = {name: str(arrays[name]) for name in _ABOUT if name in arrays}
        labelled = content.labels.dtype.kind != "U" or bool((content.labels != "").any())
        rows, dim = content.embeddings.shape
        return cls(path, rows, dim, *_read_origin(about, path), labelled, content)

    def blocks(self, start: int = 0, *, size: int = _BLOCK) -> Iterator[Block]:
        """The rows from `start` on, normalised, at most `size` at a time; finite and not zero, or a UserError."""
        if self.content is not None:
            names = self.content.labels.astype(str).tolist() if self.labelled else None
            paths = self.paths() or [""] * self.rows
            for row in range(start, self.rows, size):
                rows = slice(row, row + size)
                unit = normalise_(self.content.embeddings[rows].float().clone()).numpy()
                yield Block(unit, paths[rows], names and names[rows])
            return
        seen = 0
        with _open_parquet(self.path) as file:
            for batch in file.iter_batches(batch_size=size):
                begin, seen = max(start - seen, 0), seen + len(batch)
                if begin >= len(batch):
                    continue
                part = batch.slice(begin)
                flat = part["embedding"].flatten().to_numpy(zero_copy_only=False).astype(np.float32)
                embeddings = torch.from_numpy(flat.reshape(len(part), self.dim))
                if not (torch.isfinite(embeddings).all() and (embeddings != 0).any(dim=1).all()):
                    raise UserError(f"{self.path}: embeddings must be finite and not zero: is it damaged?")
                labels = part["label"].to_pylist() if self.labelled else None
                yield Block(normalise_(embeddings).numpy(), part["path"].to_pylist(), labels)

    def paths(self, rows: Sequence[int] | None = None) -> list[str]:
        """The paths of some rows' pictures, or of all, relative to the file's folder; empty where the file has none."""
        if self.content is None:
            with _open_parquet(self.path) as file:
                column = file.read(columns=["path"])["path"]
            return [str(path) for path in (column if rows is None else column.take([*rows])).to_pylist()]
        paths = [] if self.content.paths is None else self.content.paths.tolist()
        return paths if rows is None or not paths else [paths[row] for row in rows]

    def identities(self) -> int:
        """Distinct labels; in a file without labels each row counts as an identity."""
        if not self.labelled:
            return self.rows
        if self.content is not None:
            return len(np.unique(self.content.labels))
        with _open_parquet(self.path) as file:
            return len(file.read(columns=["label"])["label"].unique())


def write_embeddings(
    path: Path, blocks: Iterable[Block], record: ModelRecord, versions: tuple[Version, ...] = ()
) -> EmbeddingFile:
    """Write a file whole, or keep the old one where that fails; a `.parquet` needs the memory of one block only."""

    def origin(rows: int) -> dict[str, str]:
        return {KEY: record.as_json(), _VERSIONS: json.dumps([*versions, Version(secrets.token_hex(16), rows)])}

    if path.suffix == ".parquet":
        _write_parquet(path, blocks, record.embedding_dim, origin)
    else:
        _write_npz(path, blocks, origin)
    return EmbeddingFile.open(path)


def _write_parquet(path: Path, blocks: Iterable[Block], dim: int, origin: Callable[[int], dict[str, str]]) -> None:
    require_pyarrow(path)
    import pyarrow
    from pyarrow import parquet

    kind = pyarrow.list_(pyarrow.float32(), dim)
    rows, writer = 0, None
    with replacing(path) as file:
        for block in blocks:
            flat = pyarrow.array(np.ascontiguousarray(block.embeddings, dtype=np.float32).reshape(-1))
            lists = pyarrow.FixedSizeListArray.from_arrays(flat, type=kind)
            labels = {} if block.labels is None else {"label": block.labels}
            table = pyarrow.table({"path": block.paths, "embedding": lists, **labels})
            if writer is None:
                writer = parquet.ParquetWriter(file, table.schema, compression="NONE", use_dictionary=False)
            writer.write_table(table)
            rows += len(table)
        assert writer is not None, "no embeddings to write"
        writer.add_key_value_metadata(origin(rows))
        writer.close()


def _write_npz(path: Path, blocks: Iterable[Block], origin: Callable[[int], dict[str, str]]) -> None:
    parts = list(blocks)
    arrays: dict[str, Any] = {"embeddings": np.concatenate([block.embeddings for block in parts])}
    arrays["paths"] = np.array([path for block in parts for path in block.paths], dtype=str)
    if parts[0].labels is not None:
        arrays["labels"] = np.array([label for block in parts for label in block.labels or []], dtype=str)
    with replacing(path) as file:
        np.savez(file, **(arrays | origin(len(arrays["paths"]))))


def _read_origin(about: dict[str, str], path: Path) -> tuple[ModelRecord | None, tuple[Version, ...]]:
    if not about:
        return None, ()
    try:
        record = ModelRecord.from_json(about[KEY], path)
        versions = tuple(Version(str(name), int(rows)) for name, rows in json.loads(about[_VERSIONS]))
    except (UserError, KeyError, ValueError, TypeError) as error:
        raise UserError(f"{path}: the record of its origin is damaged: {error}") from error
    return record, versions


def _open_own_parquet(path: Path) -> EmbeddingFile | None:
    """A .parquet of this package; None for another program's."""
    with _open_parquet(path) as file:
        schema, rows = file.schema_arrow, file.metadata.num_rows
        metadata = file.metadata.metadata or {}
    about = {name: metadata[name.encode()].decode("utf-8", "replace") for name in _ABOUT if name.encode() in metadata}
    record, versions = _read_origin(about, path)
    if record is None:
        return None
    dim = getattr(schema.field("embedding").type, "list_size", 0) if "embedding" in schema.names else 0
    if "path" not in schema.names or dim != record.embedding_dim or not versions or versions[-1].rows != rows:
        raise UserError(f"{path} does not match its own record of columns, dimensions and rows: was it changed?")
    return EmbeddingFile(path, rows, dim, record, versions, "label" in schema.names)


def _open_parquet(path: Path) -> Any:
    require_pyarrow(path)
    from pyarrow.parquet import ParquetFile

    try:
        return ParquetFile(path)
    except Exception as error:  # what pyarrow raises on damaged input is not documented
        raise UserError(f"{path} is not a readable .parquet file; is it whole? ({error})") from error


def require_pyarrow(path: Path) -> None:
    import_library("pyarrow", needed_for=f"{path}: a .parquet file", install="'pml_ext[parquet]', or name an .npz file")
