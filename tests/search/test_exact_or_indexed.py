"""The closest rows, against comparing all of them; and when an index is built, kept and added to."""

import os
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from pml_ext._errors import UserError
from pml_ext.search import exact_or_indexed
from pml_ext.search.embedding_file import Block, EmbeddingFile, write_embeddings
from pml_ext.search.exact_or_indexed import Nearest
from pml_ext.search.model_record import ModelRecord

pytest.importorskip("faiss")
DIM = 8
open_nearest = partial(exact_or_indexed.open_nearest, exact_up_to=500)


def rows(count: int, seed: int = 0) -> np.ndarray:
    """Unit rows around one centre for every 20."""
    generator = np.random.default_rng(seed)
    centres = np.random.default_rng(5).standard_normal((60, DIM))
    x = (centres[generator.integers(0, 60, count)] + 0.3 * generator.standard_normal((count, DIM))).astype(np.float32)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def written(path: Path, x: np.ndarray, old: EmbeddingFile | None = None) -> EmbeddingFile:
    before = list(old.blocks()) if old else []
    block = Block(x, [f"{i}.jpg" for i in range(len(x))], None)
    return write_embeddings(path, [*before, block], ModelRecord({}, "w", "0" * 64, DIM), old.versions if old else ())


def true_rows(x: np.ndarray, queries: np.ndarray, k: int) -> np.ndarray:
    """By loops."""
    found = [sorted(range(len(x)), key=lambda row: -float(q.astype(float) @ x[row].astype(float)))[:k] for q in queries]
    return np.array(found)


def recall(found: Nearest, x: np.ndarray, queries: np.ndarray) -> float:
    pairs = zip(found.search(queries, 10)[1].tolist(), true_rows(x, queries, 10).tolist(), strict=True)
    return float(np.mean([len(set(mine) & set(true)) / 10 for mine, true in pairs]))


def test_few_rows_are_all_compared(tmp_path: Path) -> None:
    x, queries = rows(40), rows(5, seed=1)
    found = open_nearest(written(tmp_path / "f.npz", x))
    assert found.is_exact and found.recall == 1
    cosines, places = found.search(queries, 7)
    np.testing.assert_array_equal(places, true_rows(x, queries, 7))
    np.testing.assert_allclose(cosines, np.take_along_axis(queries @ x.T, places, 1), atol=1e-6)
    assert found.search(queries, 100)[1].shape == (5, 40)
    assert [path.name for path in tmp_path.iterdir()] == ["f.npz"]


def test_an_index_is_built_once_and_finds_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = rows(1200)
    file = written(tmp_path / "f.npz", x)
    found = open_nearest(file)
    assert found.lists == 35 and found.recall >= 0.95
    queries = x[:: len(x) // 60]
    assert recall(found, x, queries) > 0.9
    assert not found.is_exact, "these rows have neighbourhoods"
    names = sorted(path.name for path in tmp_path.iterdir())
    assert len(names) == 3 and names[0] == "f.npz" and names[1].endswith(".faiss") and names[2] == "f.npz.faiss.json"
    with monkeypatch.context() as patch:
        patch.setattr(exact_or_indexed, "_build", None)  # calling it would fail
        again = open_nearest(EmbeddingFile.open(file.path))
    np.testing.assert_array_equal(again.search(queries, 10)[1], found.search(queries, 10)[1])
    assert (again.lists, again.probes, again.recall) == (found.lists, found.probes, found.recall)


def test_more_rows_go_into_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = written(tmp_path / "f.npz", rows(800))
    open_nearest(first)
    more = rows(300, seed=3)
    with monkeypatch.context() as patch:
        patch.setattr(exact_or_indexed, "_build", None)
        grown = open_nearest(written(first.path, more, first))
    places = grown.search(more[:50], 1)[1][:, 0]
    np.testing.assert_array_equal(places, 800 + np.arange(50))
    assert len(list(tmp_path.glob("*.faiss"))) == 1
    # Another file of that name, and one that has outgrown the lists, get a new one.
    other = rows(700, seed=4)
    replaced = open_nearest(written(first.path, other))
    np.testing.assert_array_equal(replaced.search(other[:20], 1)[1][:, 0], np.arange(20))
    large = open_nearest(written(first.path, rows(900, seed=6), EmbeddingFile.open(first.path)))
    assert (replaced.lists, large.lists) == (26, 40)


def test_files_of_other_programs_have_one_too(tmp_path: Path) -> None:
    path = tmp_path / "f.npz"
    for scale, seed in ((3, 0), (1, 8)):
        x = rows(600, seed)
        np.savez(path, embeddings=scale * x)
        os.utime(path, ns=(seed, seed))
        np.testing.assert_array_equal(open_nearest(EmbeddingFile.open(path)).search(x[:9], 1)[1][:, 0], range(9))


def test_an_index_that_is_damaged_or_gone(tmp_path: Path) -> None:
    file = written(tmp_path / "f.npz", rows(600))
    open_nearest(file)
    (index,) = tmp_path.glob("*.faiss")
    index.write_bytes(b"\0" * index.stat().st_size)
    with pytest.raises(UserError, match=r"cannot be read .*: remove it, and it is built again"):
        open_nearest(file)
    index.unlink()
    assert open_nearest(file).index.ntotal == 600
    (tmp_path / "f.npz.faiss.json").write_text("{]")
    assert open_nearest(file).index.ntotal == 600


def test_a_folder_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    file = written(tmp_path / "f.npz", rows(600))
    monkeypatch.setattr(exact_or_indexed, "write_atomically", full)
    with caplog.at_level("WARNING", logger="pml_ext"):
        found = open_nearest(file)
    assert "cannot be kept and is built each time" in caplog.text
    assert found.search(rows(600)[:1], 1)[1] == [[0]]


def test_without_faiss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path / "f.npz", rows(20))
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(UserError, match="searching needs faiss: pip install faiss-cpu"):
        open_nearest(file)
