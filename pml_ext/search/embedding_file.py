"""What `pml-ext embed` writes and `pml-ext search` reads: embeddings of pictures, with a record of their model.

A `.parquet` or `.npz` that `read_embeddings` reads too. A `.parquet` is written and read in blocks, so that it may be
larger than memory. Files of other programs are read as well.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from pml_ext._errors import UserError
from pml_ext._files import replacing
from pml_ext._ops.normalize import normalise_
from pml_ext.search import parquet_file
from pml_ext.search.embedding_blocks import Block, ContentChecksum, Version
from pml_ext.search.embedding_set import EmbeddingSet, read_embeddings, require_file
from pml_ext.search.file_formats import read_named
from pml_ext.search.model_record import KEY, ModelRecord

SUFFIXES = (".parquet", ".npz")
_VERSIONS = "pml_ext_versions"
_TEXTS = ("labels", "fingerprints")
_BLOCK = 16_384  # rows; reading 400,000 of 512 dimensions takes 0.5 GB beside the imports, of 65,536 1.2 GB


@dataclass(frozen=True)
class EmbeddingFile:
    """A file of embeddings; files of other programs have no record of a model (None) and no versions.

    versions: the file's states, the present one last; texts: which of labels and fingerprints it has; content: the
    whole file, None for a `.parquet` of `pml-ext embed`, which is read in blocks; offsets: see `Block`, of `content`.
    """

    path: Path
    rows: int
    dim: int
    record: ModelRecord | None
    versions: tuple[Version, ...]
    texts: frozenset[str]
    content: EmbeddingSet | None = None
    offsets: np.ndarray | None = None

    @classmethod
    def open(cls, path: str | Path) -> "EmbeddingFile":
        """Open a file; the embeddings of a `.parquet` of `pml-ext embed` are not read yet."""
        path = require_file(path)
        if path.suffix == ".parquet":
            record, versions = _read_origin(parquet_file.read_metadata(path), path)
            if record is not None:
                rows, dim, texts = parquet_file.read_layout(path, offsets=record.normalization is not None)
                return cls(path, rows, dim, record, versions, texts)._checked()
        about = read_named(path, (KEY, _VERSIONS, "fingerprints", "offsets"))[1] if path.suffix == ".npz" else {}
        record, versions = _read_origin(about, path)
        also = ("fingerprints",) if record is not None and "fingerprints" in about else ()
        offsets = _offsets(about, record, path)
        content = read_embeddings(path, need_labels=False, also=also)
        if also and content.also["fingerprints"].dtype.kind != "U":
            raise UserError(f"{path}: fingerprints must be strings; got {content.also['fingerprints'].dtype}")
        labelled = content.labels.dtype.kind != "U" or bool((content.labels != "").any())
        rows, dim = content.embeddings.shape
        texts = frozenset((*(("labels",) if labelled else ()), *also))
        if offsets is not None and offsets.shape != (rows,):
            raise UserError(f"{path}: offsets must have shape ({rows},), one per embedding; got {offsets.shape}")
        return cls(path, rows, dim, record, versions, texts, content, offsets)._checked()

    def _checked(self) -> "EmbeddingFile":
        rows = [version.rows for version in self.versions]
        if self.record is not None and (
            self.record.embedding_dim != self.dim or rows[-1:] != [self.rows] or [0, *rows] != sorted({0, *rows})
        ):
            raise UserError(
                f"{self.path} does not match its own record: {self.rows} rows of {self.dim} dimensions; the record has "
                f"{rows[-1] if rows else 0} of {self.record.embedding_dim}: was it changed?"
            )
        return self

    def blocks(self, start: int = 0, *, size: int = _BLOCK, checksum: ContentChecksum | None = None) -> Iterator[Block]:
        """The rows from `start` on, normalised, at most `size` at a time; finite and not zero, or a UserError.

        After the last row a UserError, too, where rows from 0 on are not those written; `checksum` names them.
        """
        checksum = checksum or ContentChecksum()
        for block in self._blocks_as_written(start, size):
            if start == 0:
                checksum.update(block)
            embeddings = torch.from_numpy(block.embeddings.astype(np.float32))
            if not (torch.isfinite(embeddings).all() and (embeddings != 0).any(dim=1).all()):
                raise UserError(f"{self.path}: embeddings must be finite and not zero: is it damaged?")
            if block.offsets is not None and not (abs(block.offsets) <= 1 + 1e-3).all():  # as nan is not
                raise UserError(f"{self.path}: offsets must be cosines, from -1 to 1: is it damaged?")
            yield block._replace(embeddings=normalise_(embeddings).numpy())
        if start == 0:
            self._require(checksum)

    def read_checksum(self) -> str:
        """The name of the file's rows, which reads all of them; a UserError where they are not those written."""
        checksum = ContentChecksum()
        for block in self._blocks_as_written(0, _BLOCK):
            checksum.update(block)
        self._require(checksum)
        return checksum.name

    def _require(self, checksum: ContentChecksum) -> None:
        if self.versions and not checksum.agrees(self.versions[-1].name):
            raise UserError(
                f"{self.path} was changed or damaged after it was written: its checksum is another; embed its pictures "
                "again with pml-ext embed --overwrite"
            )

    def _blocks_as_written(self, start: int, size: int) -> Iterator[Block]:
        if self.content is None:
            yield from parquet_file.read_blocks(self.path, start, size)
            return
        columns = {"labels": self.content.labels, **self.content.also}
        texts: dict[str, Any] = {name: columns[name].astype(str).tolist() for name in _TEXTS if name in self.texts}
        paths = self.paths() or [""] * self.rows
        for row in range(start, self.rows, size):
            rows = slice(row, row + size)
            embeddings = self.content.embeddings[rows].numpy()
            of_rows = {name: values[rows] for name, values in texts.items()}
            yield Block(
                embeddings, paths[rows], **of_rows, offsets=None if self.offsets is None else self.offsets[rows]
            )

    def paths(self, rows: Sequence[int] | None = None) -> list[str]:
        """The paths of some rows' pictures, or of all, relative to the file's folder; empty where the file has none."""
        if self.content is None:
            return parquet_file.read_texts(self.path, "paths", rows)
        paths = [] if self.content.paths is None else self.content.paths.tolist()
        return paths if rows is None or not paths else [paths[row] for row in rows]

    def identities(self) -> int:
        """Distinct labels; in a file without labels each row counts as an identity."""
        if "labels" not in self.texts:
            return self.rows
        labels = parquet_file.read_texts(self.path, "labels") if self.content is None else self.content.labels.tolist()
        return len(set(labels))

    def fingerprints(self) -> list[str]:
        """Of all rows' pictures, "" where one is unknown."""
        if "fingerprints" not in self.texts:
            return [""] * self.rows
        if self.content is None:
            return parquet_file.read_texts(self.path, "fingerprints")
        known: list[str] = self.content.also["fingerprints"].tolist()
        return known


def write_embeddings(
    path: Path, blocks: Iterable[Block], record: ModelRecord, versions: tuple[Version, ...] = ()
) -> EmbeddingFile:
    """Write a file whole, or keep the old one where that fails; a `.parquet` needs the memory of one block only.

    versions: of the file whose rows the first blocks are.
    """
    checksum, rows = ContentChecksum(), 0

    def counted() -> Iterator[Block]:
        nonlocal rows
        for block in blocks:
            block = block._replace(embeddings=np.ascontiguousarray(block.embeddings, dtype=np.float32))
            rows += len(block.paths)
            checksum.update(block)
            yield block

    def origin() -> dict[str, str]:
        return {KEY: record.as_json(), _VERSIONS: json.dumps([*versions, Version(checksum.name, rows)])}

    if path.suffix == ".parquet":
        parquet_file.write_parquet(path, counted(), record.embedding_dim, origin)
        return EmbeddingFile.open(path)
    parts = list(counted())
    arrays: dict[str, Any] = {"embeddings": np.concatenate([block.embeddings for block in parts])}
    for name in ("paths", *_TEXTS):
        if getattr(parts[0], name) is not None:
            arrays[name] = np.array([text for block in parts for text in getattr(block, name)], dtype=str)
    if record.normalization is not None:
        arrays["offsets"] = np.concatenate([block.offsets for block in parts if block.offsets is not None])
    with replacing(path) as file:
        np.savez(file, **(arrays | origin()))
    return EmbeddingFile.open(path)


def _offsets(about: dict[str, Any], record: ModelRecord | None, path: Path) -> np.ndarray | None:
    """The offsets in an .npz whose record names a cohort."""
    if record is None or record.normalization is None:
        return None
    found = about.get("offsets")
    if not isinstance(found, np.ndarray) or found.dtype != np.float32:
        raise UserError(f"{path} is of normalised scores and must have offsets of float32: was it changed?")
    return found


def _read_origin(about: dict[str, Any], path: Path) -> tuple[ModelRecord | None, tuple[Version, ...]]:
    """The model and the versions that the metadata of a file name; None and none for another program's file."""
    if KEY not in about and _VERSIONS not in about:
        return None, ()
    try:
        record = ModelRecord.from_json(str(about[KEY]), path)
        versions = msgspec.json.decode(str(about[_VERSIONS]), type=tuple[Version, ...])
    except (KeyError, UserError, msgspec.MsgspecError, RecursionError) as error:
        raise UserError(f"{path}: the record of its origin is damaged: {error}") from error
    return record, versions
