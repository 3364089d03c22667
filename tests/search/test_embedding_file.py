"""Files of features: what is written is read, by this package's own reader too."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pml_ext._errors import UserError
from pml_ext.search.embedding_file import Block, EmbeddingFile, write_embeddings
from pml_ext.search.embedding_set import read_embeddings
from pml_ext.search.model_record import ModelRecord

RECORD = ModelRecord({"MODEL.BACKBONE.DEPTH": "18x"}, "/models/last.ckpt", "0" * 64, 5)
SUFFIXES = (".parquet", ".npz")


def rows(count: int, seed: int = 0) -> np.ndarray:
    x = np.random.default_rng(seed).standard_normal((count, 5)).astype(np.float32)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def blocks(x: np.ndarray, *, size: int = 3, labels: bool = False, first: int = 0) -> Iterator[Block]:
    for start in range(0, len(x), size):
        part = x[start : start + size]
        names = [f"{first + start + i}.jpg" for i in range(len(part))]
        yield Block(part, names, [f"id{len(name)}" for name in names] if labels else None)


def joined(file: EmbeddingFile, start: int = 0) -> tuple[np.ndarray, list[str], list[str]]:
    found = list(file.blocks(start, size=4))
    paths = [path for block in found for path in block.paths]
    return np.concatenate([b.embeddings for b in found]), paths, [label for b in found for label in b.labels or []]


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("labels", [False, True])
def test_what_is_written_is_read(tmp_path: Path, suffix: str, labels: bool) -> None:
    pytest.importorskip("pyarrow")
    x = rows(11)
    file = write_embeddings(tmp_path / f"f{suffix}", blocks(x, labels=labels), RECORD)
    assert (file.rows, file.dim, file.record, file.labelled) == (11, 5, RECORD, labels)
    assert [version.rows for version in file.versions] == [11]
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"f{suffix}"]
    for start in (0, 5, 8, 11):
        if start < 11:
            found, paths, names = joined(file, start)
            np.testing.assert_allclose(found, x[start:], atol=1e-6)
            assert paths == [f"{i}.jpg" for i in range(start, 11)]
            assert len(names) == (11 - start if labels else 0)
        else:
            assert list(file.blocks(start, size=4)) == []
    assert file.paths() == [f"{i}.jpg" for i in range(11)]
    read = read_embeddings(file.path, need_labels=labels)
    torch.testing.assert_close(read.embeddings, torch.from_numpy(x), atol=1e-6, rtol=0)
    assert read.paths is not None and read.paths.tolist() == file.paths()
    assert read.labels.tolist() == ([f"id{len(f'{i}.jpg')}" for i in range(11)] if labels else [""] * 11)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_that_grows_keeps_its_past(tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("pyarrow")
    old = write_embeddings(tmp_path / f"f{suffix}", blocks(rows(4)), RECORD)

    def both() -> Iterator[Block]:
        yield from old.blocks()
        yield from blocks(rows(3, seed=1), first=4)

    new = write_embeddings(tmp_path / f"f{suffix}", both(), RECORD, old.versions)
    assert [version.rows for version in new.versions] == [4, 7] and new.versions[0] == old.versions[0]
    np.testing.assert_allclose(joined(new)[0], np.concatenate([rows(4), rows(3, seed=1)]), atol=1e-6)
    assert new.paths() == [f"{i}.jpg" for i in range(7)]


def test_files_of_other_programs(tmp_path: Path) -> None:
    x = rows(6) * 7
    np.savez(tmp_path / "other.npz", embeddings=x.astype(np.float64))
    file = EmbeddingFile.open(tmp_path / "other.npz")
    assert (file.rows, file.dim, file.record, file.versions, file.labelled) == (6, 5, None, (), False)
    np.testing.assert_allclose(joined(file)[0], rows(6), atol=1e-6)
    assert file.paths() == []
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns: dict[str, Any] = {"label": list("aabbcc"), "path": [f"{i}.png" for i in range(6)], "embedding": list(x)}
    parquet.write_table(pyarrow.table(columns), tmp_path / "other.parquet")
    file = EmbeddingFile.open(tmp_path / "other.parquet")
    assert (file.rows, file.record, file.labelled) == (6, None, True)
    np.testing.assert_allclose(joined(file)[0], rows(6), atol=1e-6)
    assert file.paths()[5] == "5.png"


def test_damage_is_named(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    whole = write_embeddings(tmp_path / "f.parquet", blocks(rows(6)), RECORD).path.read_bytes()
    (tmp_path / "cut.parquet").write_bytes(whole[:-20])
    with pytest.raises(UserError, match=r"not a readable .parquet file; is it whole"):
        EmbeddingFile.open(tmp_path / "cut.parquet")
    with parquet.ParquetFile(tmp_path / "f.parquet") as file:
        kept, table = file.metadata.metadata, file.read()
    fewer = table.slice(1).replace_schema_metadata(kept)
    parquet.write_table(fewer, tmp_path / "fewer.parquet")
    with pytest.raises(UserError, match="does not match its own record of columns, dimensions and rows"):
        EmbeddingFile.open(tmp_path / "fewer.parquet")
    parquet.write_table(table.replace_schema_metadata({"pml_ext": "{}"}), tmp_path / "odd.parquet")
    with pytest.raises(UserError, match="the record of its origin is damaged"):
        EmbeddingFile.open(tmp_path / "odd.parquet")
    nans = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array([float("nan")] * 30, pyarrow.float32()), 5)
    bad = table.set_column(table.schema.names.index("embedding"), "embedding", nans).replace_schema_metadata(kept)
    parquet.write_table(bad, tmp_path / "nan.parquet")
    with pytest.raises(UserError, match="must be finite and not zero"):
        list(EmbeddingFile.open(tmp_path / "nan.parquet").blocks())
