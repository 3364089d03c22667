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
    assert (file.rows, file.dim, file.record, "labels" in file.texts) == (11, 5, RECORD, labels)
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
    assert (file.rows, file.dim, file.record, file.versions, file.texts) == (6, 5, None, (), frozenset())
    np.testing.assert_allclose(joined(file)[0], rows(6), atol=1e-6)
    assert file.paths() == []
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns: dict[str, Any] = {"label": list("aabbcc"), "path": [f"{i}.png" for i in range(6)], "embedding": list(x)}
    parquet.write_table(pyarrow.table(columns), tmp_path / "other.parquet")
    file = EmbeddingFile.open(tmp_path / "other.parquet")
    assert (file.rows, file.record, file.texts) == (6, None, {"labels"})
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
    with pytest.raises(UserError, match="does not match its own record: 5 rows of 5 dimensions; the record has 6 of 5"):
        EmbeddingFile.open(tmp_path / "fewer.parquet")
    parquet.write_table(table.replace_schema_metadata({"pml_ext": "{}"}), tmp_path / "odd.parquet")
    with pytest.raises(UserError, match="the record of its origin is damaged"):
        EmbeddingFile.open(tmp_path / "odd.parquet")
    nans = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array([float("nan")] * 30, pyarrow.float32()), 5)
    bad = table.set_column(table.schema.names.index("embedding"), "embedding", nans).replace_schema_metadata(kept)
    parquet.write_table(bad, tmp_path / "nan.parquet")
    with pytest.raises(UserError, match="must be finite and not zero"):
        list(EmbeddingFile.open(tmp_path / "nan.parquet").blocks())


def with_metadata(path: Path) -> Any:
    """The table of a .parquet, that is written again with all that the file said of itself."""
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        return file.read().replace_schema_metadata(file.metadata.metadata)


def own_npz(path: Path, **changed: Any) -> Path:
    """A file as pml-ext embed writes it, with other arrays in places of its own; None drops one."""
    write_embeddings(path, blocks(rows(6)), RECORD)
    with np.load(path) as arrays:
        content = {**arrays, **changed}
    np.savez(path, **{name: value for name, value in content.items() if value is not None})
    return path


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"pml_ext_versions": "[]"}, "6 rows of 5 dimensions; the record has 0 of 5"),
        ({"pml_ext_versions": '[["a", 7]]'}, "6 rows of 5 dimensions; the record has 7 of 5"),
        ({"pml_ext_versions": '[["a", -1], ["b", 6]]'}, "does not match its own record"),
        ({"pml_ext_versions": '[["a", 6, 1]]'}, "the record of its origin is damaged"),
        ({"pml_ext_versions": '[["a", "6"]]'}, "the record of its origin is damaged"),
        ({"pml_ext_versions": "[" * 100_000}, "the record of its origin is damaged"),
        ({"pml_ext_versions": None}, "the record of its origin is damaged: 'pml_ext_versions'"),
        ({"pml_ext": None}, "the record of its origin is damaged: 'pml_ext'"),
        ({"pml_ext": "{" * 100_000}, "the record of its origin is damaged"),
        ({"pml_ext": np.array([{}], dtype=object)}, "an array of Python objects, which is not loaded"),
        ({"embeddings": rows(6)[:, :4]}, "6 rows of 4 dimensions; the record has 6 of 5"),
        ({"embeddings": rows(7), "paths": np.array(list("abcdefg"))}, "7 rows of 5 dimensions; the record has 6"),
        ({"embeddings": rows(6).astype(str)}, "must be an array of floating type; got <U"),
        ({"embeddings": rows(6)[::-1]}, "was changed or damaged after it was written"),
        ({"paths": np.array(list("abcdef"))}, "was changed or damaged after it was written"),
        ({"fingerprints": np.arange(6)}, "fingerprints must be strings; got int64"),
        ({"fingerprints": np.array(["a"])}, r"fingerprints must have shape \(6,\)"),
    ],
)
def test_own_files_that_were_changed(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        list(EmbeddingFile.open(own_npz(tmp_path / "f.npz", **changed)).blocks())
    assert len(str(caught.value)) < 500 and "\n" not in str(caught.value)


def test_columns_of_own_tables_that_were_changed(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "f.parquet"
    table = with_metadata(write_embeddings(path, blocks(rows(6), labels=True), RECORD).path)
    lists, texts = table["embedding"].to_pylist(), table["path"].to_pylist()
    fixed = pyarrow.list_(pyarrow.float32(), 5)
    for name, values, message in (
        ("path", pyarrow.array([None, *texts[1:]]), "missing values in path"),
        ("label", pyarrow.array([None] * 6, pyarrow.string()), "missing values in label"),
        ("path", pyarrow.array(range(6)), "columns of pml-ext embed are path, .* got .*path int64"),
        ("embedding", pyarrow.array([None, *lists[1:]], fixed), "missing values in embedding"),
        ("embedding", pyarrow.array([[None] * 5, *lists[1:]], fixed), "missing values in embedding"),
        ("embedding", pyarrow.array([[str(v) for v in row] for row in lists]), "columns of pml-ext embed"),
        ("embedding", pyarrow.array([[row] for row in lists]), "columns of pml-ext embed"),
        ("embedding", pyarrow.array([[row] * 5 for row in lists], pyarrow.list_(fixed, 5)), "columns of pml-ext embed"),
        ("embedding", pyarrow.array(lists, pyarrow.list_(pyarrow.float64(), 5)), "columns of pml-ext embed"),
        ("embedding", pyarrow.array(lists[::-1], fixed), "was changed or damaged after it was written"),
        ("label", pyarrow.array(["x"] * 6), "was changed or damaged after it was written"),
    ):
        parquet.write_table(table.set_column(table.schema.names.index(name), name, values), path)
        with pytest.raises(UserError, match=message):
            list(EmbeddingFile.open(path).blocks())
        with pytest.raises(UserError):
            EmbeddingFile.open(path).read_checksum()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_no_damaged_byte_is_searched(tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("pyarrow")
    path = write_embeddings(tmp_path / f"f{suffix}", blocks(rows(60), labels=True), RECORD).path
    whole, good = path.read_bytes(), joined(EmbeddingFile.open(path))
    refused = 0
    for place in range(0, len(whole), 29):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        try:
            file = EmbeddingFile.open(path)
            found, record = joined(file), file.record
        except UserError:
            refused += 1
            continue
        assert record == RECORD, place  # the byte meant nothing: padding, or a date
        np.testing.assert_array_equal(found[0], good[0])
        assert found[1:] == good[1:], place
    assert refused > 100
