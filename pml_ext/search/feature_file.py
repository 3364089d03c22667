"""Embeddings of pictures as a file that is written and read in blocks, so that memory does not bound it.

A `.parquet` or `.npz` as `read_embeddings` knows them, with a record of the model; other programs' are read too.
"""

import json
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from pml_ext._errors import UserError
from pml_ext._files import replacing
from pml_ext._ops.normalize import normalise_
from pml_ext.search.files import read_embeddings, require_file
from pml_ext.search.model_record import KEY, ModelRecord

SUFFIXES = (".parquet", ".npz")
_VERSIONS = "pml_ext_versions"
_BLOCK = 65_536  # rows


class FeatureBlock(NamedTuple):
    """Some rows.

    Attributes:
        embeddings: (n, D) float32 of unit length.
        paths: of the pictures.
        labels: None where the set has none.
    """

    embeddings: np.ndarray
    paths: list[str]
    labels: list[str] | None


class Version(NamedTuple):
    """A state of a file that grows: a name that no other has, and how many rows it had."""

    name: str
    rows: int


@dataclass(frozen=True)
class FeatureFile:
    """A file of embeddings.

    Attributes:
        rows, dim: of the embeddings.
        record: what made them; None in files of other programs.
        versions: the file's states, the present one last; none in files of other programs.
        labelled: whether it has labels.
    """

    path: Path
    rows: int
    dim: int
    record: ModelRecord | None
    versions: tuple[Version, ...]
    labelled: bool

    @classmethod
    def open(cls, path: str | Path) -> "FeatureFile":
        """Look at a file without reading its embeddings.

        Raises:
            UserError: missing, damaged, or of a kind that is not known.
        """
        path = require_file(path)
        if path.suffix == ".parquet" and (found := _ours(path)):
            return found
        data = read_embeddings(path, need_labels=False)
        facts = dict[str, str]()
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as content:
                facts = {name: str(content[name]) for name in (KEY, _VERSIONS) if name in content}
        labelled = bool((data.labels != "").any()) if data.labels.dtype.kind == "U" else True
        rows, dim = data.embeddings.shape
        return cls(path, rows, dim, *_facts(facts, path), labelled)

    def blocks(self, start: int = 0, *, size: int = _BLOCK) -> Iterator[FeatureBlock]:
        """The rows from `start` on, normalised, at most `size` at a time.

        Raises:
            UserError: embeddings that are not finite or zero.
        """
        if self.path.suffix != ".parquet" or not self.versions:
            data = read_embeddings(self.path, need_labels=False)
            paths = [""] * self.rows if data.paths is None else data.paths.tolist()
            labels = [str(label) for label in data.labels] if self.labelled else None
            for row in range(start, self.rows, size):
                rows = slice(row, row + size)
                unit = normalise_(data.embeddings[rows].float().clone()).numpy()
                yield FeatureBlock(unit, paths[rows], labels and labels[rows])
            return
        seen = 0
        with _opened(self.path) as file:
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
                yield FeatureBlock(normalise_(embeddings).numpy(), part["path"].to_pylist(), labels)

    def paths(self, rows: Sequence[int] | None = None) -> list[str]:
        """The paths of some rows' pictures, or of all, relative to the file's folder; empty where the file has none."""
        if self.path.suffix == ".parquet" and self.versions:
            with _opened(self.path) as file:
                column = file.read(columns=["path"])["path"]
            return [str(path) for path in (column if rows is None else column.take([*rows])).to_pylist()]
        found = read_embeddings(self.path, need_labels=False).paths
        if found is None:
            return []
        return [str(path) for path in (found if rows is None else found[[*rows]])]


def write_features(
    path: Path, blocks: Iterable[FeatureBlock], record: ModelRecord, versions: tuple[Version, ...] = ()
) -> FeatureFile:
    """Write a file whole, or leave the one that is there.

    Args:
        path: a `.parquet`, which needs the memory of a block only, or a `.npz`.
        versions: of the file whose rows the first blocks are.
    Raises:
        UserError: pyarrow is not installed.
        OSError: the file cannot be written.
    """
    write = _write_parquet if path.suffix == ".parquet" else _write_npz
    write(path, blocks, record, versions)
    return FeatureFile.open(path)


def _write_parquet(
    path: Path, blocks: Iterable[FeatureBlock], record: ModelRecord, versions: tuple[Version, ...]
) -> None:
    pyarrow, parquet = require_pyarrow(path)
    kind = pyarrow.list_(pyarrow.float32(), record.embedding_dim)
    rows, writer = 0, None
    with replacing(path) as file:
        for block in blocks:
            columns = {"path": block.paths, "embedding": _lists(pyarrow, kind, block.embeddings)}
            if block.labels is not None:
                columns["label"] = block.labels
            table = pyarrow.table(columns)
            if writer is None:
                writer = parquet.ParquetWriter(file, table.schema, compression="NONE", use_dictionary=False)
            writer.write_table(table)
            rows += len(table)
        assert writer is not None, "no embeddings to write"
        writer.add_key_value_metadata(_kept(record, versions, rows))
        writer.close()


def _write_npz(path: Path, blocks: Iterable[FeatureBlock], record: ModelRecord, versions: tuple[Version, ...]) -> None:
    every = list(blocks)
    embeddings = np.concatenate([block.embeddings for block in every])
    arrays: dict[str, Any] = {name: np.array(text) for name, text in _kept(record, versions, len(embeddings)).items()}
    arrays["paths"] = np.array([path for block in every for path in block.paths], dtype=str)
    if every[0].labels is not None:
        arrays["labels"] = np.array([label for block in every for label in block.labels or []], dtype=str)
    with replacing(path) as file:
        np.savez(file, embeddings=embeddings, **arrays)


def _kept(record: ModelRecord, versions: tuple[Version, ...], rows: int) -> dict[str, str]:
    return {KEY: record.as_json(), _VERSIONS: json.dumps([*versions, Version(secrets.token_hex(16), rows)])}


def _facts(found: dict[str, str], path: Path) -> tuple[ModelRecord | None, tuple[Version, ...]]:
    if not found:
        return None, ()
    try:
        record = ModelRecord.from_json(found[KEY], path)
        versions = tuple(Version(str(name), int(rows)) for name, rows in json.loads(found[_VERSIONS]))
    except (UserError, KeyError, ValueError, TypeError) as error:
        raise UserError(f"{path} says in a damaged way what made it: {error}") from error
    return record, versions


def _ours(path: Path) -> FeatureFile | None:
    """A .parquet of this package; None for another program's."""
    with _opened(path) as file:
        schema, rows = file.schema_arrow, file.metadata.num_rows
        kept = file.metadata.metadata or {}
    names = (KEY, _VERSIONS)
    facts = {name: kept[name.encode()].decode("utf-8", "replace") for name in names if name.encode() in kept}
    if not facts:
        return None
    record, versions = _facts(facts, path)
    dim = getattr(schema.field("embedding").type, "list_size", 0) if "embedding" in schema.names else 0
    if record is None or "path" not in schema.names or dim != record.embedding_dim or versions[-1].rows != rows:
        raise UserError(f"{path} does not hold what it says of itself: was it changed?")
    return FeatureFile(path, rows, dim, record, versions, "label" in schema.names)


def _opened(path: Path) -> Any:
    parquet = require_pyarrow(path)[1]
    try:
        return parquet.ParquetFile(path)
    except Exception as error:  # what pyarrow raises on damaged input is not documented
        raise UserError(f"{path} is not a readable .parquet file; is it whole? ({error})") from error


def require_pyarrow(path: Path) -> tuple[Any, Any]:
    """pyarrow and its parquet part, or an error that says how to install it."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ModuleNotFoundError as error:
        raise UserError(
            f"{path}: a .parquet file needs pyarrow: pip install 'pml_ext[parquet]', or name an .npz file"
        ) from error
    return pyarrow, parquet


def _lists(pyarrow: Any, kind: Any, embeddings: np.ndarray) -> Any:
    flat = pyarrow.array(np.ascontiguousarray(embeddings, dtype=np.float32).reshape(-1))
    return pyarrow.FixedSizeListArray.from_arrays(flat, type=kind)
